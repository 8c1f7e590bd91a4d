package proxy

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// hello is what a client of TLS says first to a server of that name.
func hello(t testing.TB, name string) []byte {
	t.Helper()
	client, server := net.Pipe()
	defer server.Close()
	go func() { // ends with the pipe
		_ = tls.Client(client, &tls.Config{ServerName: name, InsecureSkipVerify: name == "", NextProtos: []string{"h2"}}).Handshake()
		client.Close()
	}()
	head := make([]byte, recordHeader)
	if _, err := io.ReadFull(server, head); err != nil {
		t.Fatal(err)
	}
	rest := make([]byte, int(head[3])<<8|int(head[4]))
	if _, err := io.ReadFull(server, rest); err != nil {
		t.Fatal(err)
	}
	return append(head, rest...)
}

const hostnameRunes = "-._0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

// FuzzHelloName looks for a hello that can't be read, and takes nothing of any.
func FuzzHelloName(f *testing.F) {
	whole := hello(f, "tools.example.com")
	for _, b := range [][]byte{whole, hello(f, ""), whole[:40], whole[:3], append(whole, "more"...), {0x16, 3, 1, 0xff, 0xff, 1}, []byte("GET / HTTP/1.1\r\n\r\n"), nil} {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bufio.NewReaderSize(bytes.NewReader(b), recordHeader+maxRecord)
		name := helloName(r)
		foreign := func(r rune) bool { return !strings.ContainsRune(hostnameRunes, r) }
		if strings.ContainsFunc(name, foreign) || strings.HasSuffix(name, ".") {
			t.Errorf("helloName(%x) = %q, which is no name", b, name)
		}
		if rest, err := io.ReadAll(r); !bytes.Equal(rest, b) {
			t.Errorf("helloName(%x) has left %x, %v", b, rest, err)
		}
	})
}

func TestHelloName(t *testing.T) {
	whole := hello(t, "tools.example.com")
	for _, tt := range []struct {
		what string
		b    []byte
		want string
	}{
		{"a hello", whole, "tools.example.com"},
		{"and more behind it", append(bytes.Clone(whole), "more"...), "tools.example.com"},
		{"without a name", hello(t, ""), ""},
		{"with what is no name", bytes.Replace(whole, []byte("tools.example.com"), []byte("tools\x00example.com"), 1), ""},
		{"with a port in it", bytes.Replace(whole, []byte("tools.example.com"), []byte("tools.example:443"), 1), ""},
		{"half of one", whole[:len(whole)/2], ""},
		{"too long to be one", append([]byte{0x16, 3, 1, 0x40, 1}, make([]byte, maxRecord+1)...), ""},
	} {
		if got := helloName(bufio.NewReaderSize(bytes.NewReader(tt.b), recordHeader+maxRecord)); got != tt.want {
			t.Errorf("%s: helloName = %q, want %q", tt.what, got, tt.want)
		}
	}
}

func TestClaimed(t *testing.T) {
	const target = "[2001:db8::1]:8080"
	for host, want := range map[string]string{
		"tools.example.com":      "tools.example.com:8080",
		"tools.example.com:9000": "tools.example.com:8080",
		"[2001:db8::2]:80":       "[2001:db8::2]:8080",
		"[2001:db8::2]":          "[2001:db8::2]:8080",
		"":                       target,
		":80":                    target,
		"a b":                    target,
		"tools.example.com/x":    target,
	} {
		if got := claimed(&http.Request{Host: host}, target); got != want {
			t.Errorf("claimed(%q) = %q, want %q", host, got, want)
		}
	}
}

func TestIsAbsolute(t *testing.T) {
	for head, want := range map[string]bool{
		"GET http://far.example.com/ HTTP/1.1": true,
		"GET /http://x HTTP/1.1":               false,
		"OPTIONS * HTTP/1.1":                   false,
		"GET ":                                 false,
		"GET":                                  false,
	} {
		if got := isAbsolute([]byte(head)); got != want {
			t.Errorf("isAbsolute(%q) = %v, want %v", head, got, want)
		}
	}
}

// What a redirected request claims in the clear is looked up where a rule makes a
// difference between that and where it was sent, as long as that takes no time to
// speak of; what is no answer is not remembered.
func TestVouching(t *testing.T) {
	const name, target = "tools.example.com", "192.0.2.1:80"
	rule := func(trusted ...string) func(string) bool {
		return func(to string) bool { return slices.Contains(trusted, to) }
	}
	for _, tt := range []struct {
		what     string
		rule     func(string) bool
		leads    string
		lookedUp time.Duration
		want     bool
		asked    int
	}{
		{"all", nil, "192.0.2.1", 0, true, 0},
		{"none", rule(), "192.0.2.1", 0, false, 0},
		{"neither", rule("other.example.com:80"), "192.0.2.1", 0, false, 0},
		{"both", rule(name+":80", target), "192.0.2.9", 0, true, 0},
		{"the name, which leads there", rule(name + ":80"), "192.0.2.1", 0, true, 1},
		{"the name, which leads elsewhere", rule(name + ":80"), "192.0.2.9", 0, false, 1},
		{"the address, and the name leads there", rule(target), "192.0.2.1", 0, false, 1},
		{"the address, and the name leads elsewhere", rule(target), "192.0.2.9", 0, true, 1},
		{"the name, when too long was looked up", rule(name + ":80"), "192.0.2.1", lookUpsFor, false, 0},
	} {
		t.Run(tt.what, func(t *testing.T) {
			dns := useNameServer(t, tt.leads)
			s := newSidecar(t, "agent.example.com", "http://127.0.0.1:1", func(_ *Options, p *Policy) { p.TrustDestination = tt.rule })
			tun := &tunnel{redirected: egress, target: target, lookedUp: tt.lookedUp}
			x := &exchange{p: s.Proxy, policy: s.policy.Load(), dir: egress}
			r := request(t, name, nil).WithContext(context.WithValue(t.Context(), tunnelKey{}, &inTunnel{tunnel: tun}))
			ask := func() {
				t.Helper()
				if got := x.tells(r); got != tt.want {
					t.Errorf("tells = %v, want %v", got, tt.want)
				}
			}
			if tt.asked > 0 { // at first nobody answers
				good := net.DefaultResolver
				net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) { return nil, errBroken }}
				if got := x.tells(r); got != tt.rule(target) {
					t.Errorf("without an answer: tells = %v, want what counts for the address", got)
				}
				net.DefaultResolver = good
			}
			ask()
			ask()
			if n := dns.answers(); n != tt.asked {
				t.Errorf("%d questions were answered, want %d", n, tt.asked)
			}
			spent := 0.0
			if tt.lookedUp > 0 {
				spent = 2
			}
			s.wantSeries(t, hit(limitLookUp), spent)
		})
	}
}

// A redirected connection leads to where it was to go, whatever is asked of it later.
func TestConnectOnRedirected(t *testing.T) {
	s := newSidecar(t, "agent.example.com", "http://127.0.0.1:1")
	r := httptest.NewRequest(http.MethodConnect, "http://other.example.com:443", nil)
	r = r.WithContext(context.WithValue(r.Context(), tunnelKey{}, &inTunnel{tunnel: &tunnel{redirected: egress, target: "192.0.2.1:80"}}))
	w := httptest.NewRecorder()
	s.Egress().ServeHTTP(w, r)
	if w.Code != http.StatusMethodNotAllowed || !strings.Contains(w.Body.String(), "was opened to 192.0.2.1:80") {
		t.Errorf("CONNECT = %d %s, want it refused with where the connection leads", w.Code, w.Body)
	}
	s.wantSeries(t, "wopproxy_tunnels", 0)
}

// A connection that nobody has redirected is refused: here, as where it was meant to
// go is not known, or is the listener itself.
func TestNotRedirected(t *testing.T) {
	s := newSidecar(t, "agent.example.com", "http://127.0.0.1:1")
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := s.RedirectedEgress(ln, http.NotFoundHandler())
	ended := make(chan error, 1)
	go func() { _, err := l.Accept(); ended <- err }()             // ends with ln
	if c, err := net.Dial("tcp", ln.Addr().String()); err == nil { // it may be reset already
		if b, err := io.ReadAll(c); err == nil || len(b) > 0 {
			t.Errorf("read %q, %v, want a reset", b, err)
		}
		c.Close()
	}
	s.awaitSeries(t, `wopproxy_redirected_connections_total{direction="egress",outcome="direct"}`, 1)
	ln.Close()
	if err := receive(t, ended, "Accept to end"); err == nil {
		t.Error("Accept gave a connection")
	}
}

// Where they listen for redirected connections is no place to call.
func TestCallsToRedirected(t *testing.T) {
	p := &Proxy{o: Options{Transparent: []netip.AddrPort{{}, netip.MustParseAddrPort("[::]:8189")}}}
	p.policy.Store(&policy{})
	for addr, want := range map[string]bool{"127.0.0.1:8189": true, "[::1]:8189": true, "127.0.0.1:8188": false, "192.0.2.1:8189": false} {
		if err := p.mayDial(addr); (err != nil) != want {
			t.Errorf("mayDial(%s) = %v, want an error %v", addr, err, want)
		}
	}
}

// A loop that was found out is remembered until what came of it has ended, and no
// longer.
func TestLoopIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		here, there := net.Pipe()
		defer here.Close()
		defer there.Close()
		p := &Proxy{o: Options{Logger: slog.New(slog.DiscardHandler)}}
		l := &redirected{p: p, dir: egress, dial: func(context.Context, string, string) (net.Conn, error) { return there, nil }}
		// Both ends of a pipe have the same address: the call finds itself.
		outcome, done := l.connect(&tunnel{client: here}, netip.MustParseAddrPort("192.0.2.1:80"))
		if outcome != redirectLoop {
			t.Fatalf("the outcome is %s, want a loop", outcome)
		}
		known := func() int {
			p.circle.mu.Lock()
			defer p.circle.mu.Unlock()
			return len(p.circle.own)
		}
		done()
		if n := known(); n != 1 {
			t.Errorf("%d connections are known as ours, want 1", n)
		}
		time.Sleep(dialTimeout + time.Second)
		synctest.Wait()
		if n := known(); n != 0 {
			t.Errorf("%d connections are known as ours when they are long gone, want none", n)
		}
	})
}

// A connection into the host was meant for an address of this machine, and not for
// loopback, where nobody else can have meant it for.
func TestLocalAddresses(t *testing.T) {
	var o localAddresses
	for _, a := range ownAddresses(t) {
		if !o.have(netip.MustParseAddr(a)) {
			t.Errorf("%s is none of this machine's, want it to be", a)
		}
	}
	for _, a := range []string{"127.0.0.1", "::1", "169.254.169.254", "192.0.2.1", "2001:db8::1", "0.0.0.0"} {
		if o.have(netip.MustParseAddr(a)) {
			t.Errorf("%s is this machine's, want it not to be", a)
		}
	}
}
