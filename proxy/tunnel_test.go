package proxy

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/wopproxy/wopproxy/ancestry"
)

// tunnelled is a Transport of a client that opens a tunnel even to a target
// without TLS, as undici and gRPC do.
func (s *sidecar) tunnelled(t testing.TB, h2c bool, header ...string) *http.Transport {
	tr := direct(t)
	tr.DialContext = func(_ context.Context, _, addr string) (net.Conn, error) {
		c := s.connect(t, addr, header...)
		return c, c.SetDeadline(noDeadline)
	}
	if h2c {
		tr.Protocols = new(http.Protocols)
		tr.Protocols.SetUnencryptedHTTP2(true)
	}
	return tr
}

// talker is a server that speaks no HTTP: serve has each connection.
func talker(t testing.TB, serve func(*rawConn)) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var conns sync.WaitGroup
	t.Cleanup(conns.Wait)
	t.Cleanup(func() { ln.Close() })
	conns.Go(func() { // ends with ln
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			_ = c.SetDeadline(time.Now().Add(patience))
			conns.Go(func() { // ends when serve returns
				defer c.Close()
				serve(&rawConn{c, bufio.NewReader(c), t})
			})
		}
	})
	return ln.Addr().String()
}

// tlsPeer starts a server that speaks TLS.
func tlsPeer(t testing.TB, h http.HandlerFunc) *httptest.Server {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	s.Config.ErrorLog = discardLog
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

func tunnelsOf(kind tunnelKind) string {
	return fmt.Sprintf("wopproxy_tunnels_total{kind=%q}", kind)
}

// TLS passes blind: what the client verifies is the server's own certificate.
func TestTunnelTLS(t *testing.T) {
	far := tlsPeer(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %v %s", r.Proto, r.Header["Traceparent"], b)
	})
	s := newSidecar(t, "agent.example.com", far.URL)
	tr := far.Client().Transport.(*http.Transport)
	tr.Proxy = http.ProxyURL(s.proxyURL())
	r := request(t, far.Listener.Addr().String(), []byte(call))
	r.URL.Scheme = "https"
	resp, err := tr.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	if want := fmt.Sprintf("HTTP/1.1 [%s] %s", traced, call); err != nil || string(b) != want {
		t.Errorf("the server got %q, %v, want %q", b, err, want)
	}
	if resp.TLS == nil || !resp.TLS.PeerCertificates[0].Equal(far.Certificate()) {
		t.Error("the certificate is not the server's")
	}
	s.wantSeries(t, tunnelsOf(tunnelTLS), 1)
	s.wantSeries(t, "wopproxy_tunnels", 1)
	tr.CloseIdleConnections()
	s.awaitSeries(t, "wopproxy_tunnels", 0)
}

// settings are those that a server of HTTP/2 may open with: none.
const settings = "\x00\x00\x00\x04\x00\x00\x00\x00\x00"

// A server that opens with HTTP/2 does not wait for a client that says nothing
// for ever: what it has said passes then.
func TestServerFirst(t *testing.T) {
	for _, tt := range []struct {
		after time.Duration
		say   string
		want  tunnelKind
	}{
		{serverFirst - time.Millisecond, h2Preface, tunnelH2C},
		{serverFirst + time.Millisecond, h2Preface, tunnelOther},
		{0, "GET / HTTP/1.1\r\n", tunnelOther},
	} {
		synctest.Test(t, func(t *testing.T) {
			host, client := net.Pipe()
			server, upstream := net.Pipe()
			var talk sync.WaitGroup
			talk.Go(func() {
				_, _ = io.WriteString(server, settings)
				time.Sleep(tt.after)
				_, _ = io.WriteString(host, tt.say)
			})
			began := time.Now()
			kind, early, err := sniff(bufio.NewReader(client), client, upstream)
			if kind != tt.want || string(early) != settings || err != nil || time.Since(began) > serverFirst {
				t.Errorf("after %v: sniff = %v, %q, %v, want %v", tt.after, kind, early, err, tt.want)
			}
			_ = client.Close() // ends what is still being said
			talk.Wait()
		})
	}
}

// Both ends of a tunnel may speak whatever they like, and either may begin: all
// bytes pass, and what was found is counted.
func TestTunnelsPassOtherProtocols(t *testing.T) {
	echo := func(c *rawConn) { // answers each line, and the rest when there is no more
		for {
			line, err := c.ReadString('\n')
			_, _ = io.WriteString(c.Conn, "<"+line+">")
			if err != nil {
				return
			}
		}
	}
	rows := []struct {
		name, say, hear string
		serve           func(*rawConn)
		kind            tunnelKind
	}{
		{"the server speaks first", "QUIT\r\n", "220 mail.example.com\r\n<QUIT\r\n>", func(c *rawConn) {
			_, _ = io.WriteString(c.Conn, "220 mail.example.com\r\n")
			echo(c)
		}, tunnelOther},
		{"the server speaks HTTP/2 first, the client does not", "QUIT\r\n", settings + "<QUIT\r\n>", func(c *rawConn) {
			_, _ = io.WriteString(c.Conn, settings)
			echo(c)
		}, tunnelOther},
		{"SSH", "SSH-2.0-Go\r\n", "<SSH-2.0-Go\r\n>", echo, tunnelOther},
		{"lower case", "get / HTTP/1.1\r\n", "<get / HTTP/1.1\r\n>", echo, tunnelOther},
		{"one byte", "A", "<A>", echo, tunnelOther},
		{"half a method", "GET", "<GET>", echo, tunnelOther},
		{"a method and a space", "GET ", "<GET >", echo, tunnelOther},
		{"half a preface", "PRI * HTTP/2.0\r\n", "<PRI * HTTP/2.0\r\n>", echo, tunnelOther},
		{"almost a preface", "PRI * HTTP/3.0\r\n\r\n", "<PRI * HTTP/3.0\r\n><\r\n>", echo, tunnelOther},
		{"a command like a method", "HELO example.com\r\n", "<HELO example.com\r\n>", echo, tunnelOther},
		{"binary", "\x00\xff\r\n", "<\x00\xff\r\n>", echo, tunnelOther},
		{"TLS, or so it seems", "\x16\x03\x01\x00\n", "<\x16\x03\x01\x00\n>", echo, tunnelTLS},
		{"a long method", strings.Repeat("A", 30) + " /\n", "<" + strings.Repeat("A", 30) + " /\n>", echo, tunnelOther},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			to := talker(t, row.serve)
			s := newSidecar(t, "agent.example.com", "http://"+to)
			c := s.connect(t, to)
			if _, err := io.WriteString(c.Conn, row.say); err != nil {
				t.Fatal(err)
			}
			if !strings.HasSuffix(row.say, "\n") {
				_ = c.Conn.(*net.TCPConn).CloseWrite()
			}
			got := make([]byte, len(row.hear))
			if n, err := io.ReadFull(c, got); err != nil || string(got) != row.hear {
				t.Errorf("heard %q, %v, want %q", got[:n], err, row.hear)
			}
			s.awaitSeries(t, tunnelsOf(row.kind), 1)
			_ = c.Close()
			s.awaitSeries(t, "wopproxy_tunnels", 0)
		})
	}
}

// What the client sends in one piece with its CONNECT is not lost.
func TestTunnelEarlyBytes(t *testing.T) {
	to := talker(t, func(c *rawConn) {
		line, _ := c.ReadString('\n')
		_, _ = io.WriteString(c.Conn, line)
	})
	s := newSidecar(t, "agent.example.com", "http://"+to)
	c := dialRaw(t, s.egress.URL)
	c.send("CONNECT " + to + " HTTP/1.1\nHost: " + to + "\n\nSSH-2.0-early\n")
	c.answer(http.MethodConnect)
	if line, err := c.ReadString('\n'); line != "SSH-2.0-early\n" || err != nil {
		t.Errorf("echo = %q, %v", line, err)
	}
}

// Node, told to take its proxy from the environment, also takes it for what a
// client that knows the proxy itself says to it, as grpc-js does.
func TestTunnelAskedForTwice(t *testing.T) {
	to := talker(t, func(c *rawConn) {
		line, _ := c.ReadString('\n')
		_, _ = io.WriteString(c.Conn, line)
	})
	s := newSidecar(t, "agent.example.com", "http://"+to)
	c := dialRaw(t, s.egress.URL)
	c.send("CONNECT " + s.egress.URL + "/" + to + " HTTP/1.1\nHost: " + to + "\n\n")
	if got := c.answer(http.MethodConnect).StatusCode; got != http.StatusOK {
		t.Fatalf("status = %d, want a tunnel", got)
	}
	c.send("SSH-2.0-x\n")
	if line, err := c.ReadString('\n'); strings.TrimSpace(line) != "SSH-2.0-x" || err != nil {
		t.Errorf("echo = %q, %v", line, err)
	}
}

// A side that has said all it has to say still hears the other.
func TestTunnelHalfClose(t *testing.T) {
	for _, first := range []string{"client", "server"} {
		t.Run(first+" first", func(t *testing.T) {
			heard := make(chan string, 1)
			to := talker(t, func(c *rawConn) {
				if first == "server" {
					_, _ = io.WriteString(c.Conn, "bye\n")
					_ = c.Conn.(*net.TCPConn).CloseWrite()
				}
				b, _ := io.ReadAll(c)
				heard <- string(b)
				if first == "client" {
					_, _ = io.WriteString(c.Conn, "bye\n")
				}
			})
			s := newSidecar(t, "agent.example.com", "http://"+to)
			c := s.connect(t, to)
			end := func() {
				_, _ = io.WriteString(c.Conn, "hello, I speak no HTTP\n")
				_ = c.Conn.(*net.TCPConn).CloseWrite()
			}
			if first == "client" {
				end()
			}
			if b, err := io.ReadAll(c); string(b) != "bye\n" || err != nil {
				t.Errorf("the client heard %q, %v", b, err)
			}
			if first == "server" {
				end()
			}
			if got := receive(t, heard, "the server to hear the end"); got != "hello, I speak no HTTP\n" {
				t.Errorf("the server heard %q", got)
			}
			s.awaitSeries(t, "wopproxy_tunnels", 0)
		})
	}
}

// Plain HTTP in a tunnel is handled like any other: request by request, over one
// connection on either side.
func TestTunnelKeepAlive(t *testing.T) {
	var conns atomic.Int32
	got := make(chan http.Header, 1)
	far := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { got <- r.Header.Clone() }))
	far.Config.ConnState = func(_ net.Conn, st http.ConnState) {
		if st == http.StateNew {
			conns.Add(1)
		}
	}
	far.Start()
	defer far.Close()
	to := far.Listener.Addr().String()
	s := newSidecar(t, "agent.example.com", "http://"+to)
	c := s.connect(t, to)
	for _, run := range []ancestry.RunID{"r-1", "r-2", "r-3"} {
		c.send("POST /mcp HTTP/1.1\nHost: " + to + "\nRun-Id: " + string(run) + "\nContent-Type: application/json\nContent-Length: " + fmt.Sprint(len(call)) + "\n\n" + call)
		if resp := c.answer(http.MethodPost); resp.StatusCode != http.StatusOK {
			t.Fatalf("answer = %s", resp.Status)
		}
		chain, err := ancestry.ParseChain(receive(t, got, "the request")["Run-Ancestry"])
		if err != nil || chain.Parent() == nil || chain.Parent().Run != run {
			t.Errorf("parent = %+v, %v, want %s", chain.Parent(), err, run)
		}
	}
	if n := conns.Load(); n != 1 {
		t.Errorf("%d connections to the server, want 1", n)
	}
	s.awaitSeries(t, `wopproxy_attributions_total{evidence="run-id"}`, 3)
	s.wantSeries(t, tunnelsOf(tunnelHTTP1), 1)
}

// HTTP/2 without TLS in a tunnel: streams are exchanges of their own, all at once,
// over one connection on either side.
func TestTunnelH2C(t *testing.T) {
	const streams = 20
	var conns atomic.Int32
	var here sync.WaitGroup
	here.Add(streams)
	far := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		here.Done()
		here.Wait() // for every one of them
		if !strings.Contains(string(b), r.Header.Get("Traceparent")) || r.ProtoMajor != 2 {
			t.Errorf("%s: header %q and body %s disagree", r.Proto, r.Header.Get("Traceparent"), b)
		}
		fmt.Fprint(w, r.Header.Get("Run-Ancestry"))
	}))
	far.Config.Protocols = new(http.Protocols)
	far.Config.Protocols.SetUnencryptedHTTP2(true)
	far.Config.ConnState = func(_ net.Conn, st http.ConnState) {
		if st == http.StateNew {
			conns.Add(1)
		}
	}
	far.Start()
	defer far.Close()
	to := far.Listener.Addr().String()
	s := newSidecar(t, "agent.example.com", "http://"+to)
	tr, err := s.tunnelled(t, true).NewClientConn(t.Context(), "http", to)
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	var all sync.WaitGroup
	for i := range streams {
		all.Go(func() {
			run := fmt.Sprintf("r-%d", i)
			resp, err := tr.RoundTrip(request(t, to, []byte(call), "Run-Id", run))
			if err != nil {
				t.Error(err)
				here.Done()
				return
			}
			defer resp.Body.Close()
			b, err := io.ReadAll(resp.Body)
			if err != nil || !strings.HasPrefix(string(b), `"`+run+`"`) {
				t.Errorf("stream of %s: parent = %q, %v", run, b, err)
			}
		})
	}
	all.Wait()
	if n := conns.Load(); n != 1 {
		t.Errorf("%d connections to the server, want 1", n)
	}
	s.awaitSeries(t, `wopproxy_attributions_total{evidence="run-id"}`, streams)
	s.wantSeries(t, tunnelsOf(tunnelH2C), 1)
}

// The credential of the CONNECT request is that of every request inside, if its
// password is the right one.
func TestTunnelCredential(t *testing.T) {
	got := make(chan http.Header, 1)
	to := peer(t, func(w http.ResponseWriter, r *http.Request) { got <- r.Header.Clone() })
	for _, h2c := range []bool{false, true} {
		for password, want := range map[string]ancestry.RunID{"s3cret": "r-9", "guess": "", "": ""} {
			t.Run(fmt.Sprintf("h2c=%v/password=%s", h2c, password), func(t *testing.T) {
				s := newSidecar(t, "agent.example.com", "http://"+to, func(_ *Options, p *Policy) { p.Secret = "s3cret" })
				tr := s.tunnelled(t, h2c, "Proxy-Authorization: Basic "+base64.StdEncoding.EncodeToString([]byte("r-9:"+password))+"\n")
				for range 2 {
					resp, err := tr.RoundTrip(request(t, to, []byte(call)))
					if err != nil {
						t.Fatal(err)
					}
					resp.Body.Close()
					h := receive(t, got, "the request")
					chain, err := ancestry.ParseChain(h["Run-Ancestry"])
					if err != nil {
						t.Fatal(err)
					}
					if p := chain.Parent(); want == "" && p != nil || want != "" && (p == nil || p.Run != want) {
						t.Errorf("parent = %+v, want %q", p, want)
					}
					if h["Proxy-Authorization"] != nil {
						t.Error("the credential has travelled on")
					}
				}
				reason := `wopproxy_attributions_total{evidence="proxy-credential"}`
				if want == "" {
					reason = `wopproxy_abstentions_total{reason="no-live-run"}`
				}
				s.awaitSeries(t, reason, 2)
			})
		}
	}
}

// Another credential inside a tunnel than that of its CONNECT is a header like
// any other hop-by-hop one.
func TestTunnelCredentialInside(t *testing.T) {
	got := make(chan http.Header, 1)
	to := peer(t, func(w http.ResponseWriter, r *http.Request) { got <- r.Header.Clone() })
	s := newSidecar(t, "agent.example.com", "http://"+to, func(_ *Options, p *Policy) { p.Secret = "s3cret" })
	r := request(t, to, []byte(call), "Proxy-Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte("r-9:s3cret")))
	resp, err := s.tunnelled(t, false).RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if h := receive(t, got, "the request"); h["Proxy-Authorization"] != nil || h["Run-Ancestry"] != nil {
		t.Errorf("headers = %v, want neither a credential nor an ancestry", h)
	}
}

// CONNECT is refused where it is not allowed, and when there are too many.
func TestConnectIsRefused(t *testing.T) {
	to := talker(t, func(c *rawConn) { _, _ = io.Copy(io.Discard, c) })
	s := newSidecar(t, "agent.example.com", "http://"+to, func(o *Options, p *Policy) { o.MaxTunnels = 1 })
	connect := func(target string) int {
		c := dialRaw(t, s.egress.URL)
		c.send("CONNECT " + target + " HTTP/1.1\nHost: " + target + "\n\n")
		return c.answer(http.MethodConnect).StatusCode
	}
	for _, target := range []string{"example.com", "127.0.0.1", "http://proxy.example.com:8089/example.com"} {
		if got := connect(target); got != http.StatusBadRequest {
			t.Errorf("CONNECT %s = %d, want 400: it has no port", target, got)
		}
	}
	if err := s.SetPolicy(Policy{ConnectPorts: []int{443}}); err != nil {
		t.Fatal(err)
	}
	if got := connect(to); got != http.StatusForbidden {
		t.Errorf("CONNECT to another port than 443 = %d, want 403", got)
	}
	if err := s.SetPolicy(Policy{}); err != nil {
		t.Fatal(err)
	}
	first := s.connect(t, to)
	if got := connect(to); got != http.StatusServiceUnavailable {
		t.Errorf("the second tunnel of one = %d, want 503", got)
	}
	s.wantSeries(t, hit(limitTunnels), 1)
	_ = first.Close()
	s.awaitSeries(t, "wopproxy_tunnels", 0)
	if got := connect(to); got != http.StatusOK {
		t.Errorf("a tunnel after the first was closed = %d, want 200", got)
	}
}

// A drain lets the exchange inside a tunnel finish, then the tunnel closes; one in
// which nobody has spoken, and one that waits for a next request, close at once.
func TestDrainWaitsForExchanges(t *testing.T) {
	for _, h2c := range []bool{false, true} {
		t.Run(fmt.Sprintf("h2c=%v", h2c), func(t *testing.T) {
			here, release := make(chan struct{}), make(chan struct{})
			to := peer(t, func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/slow" {
					close(here)
					select {
					case <-release:
					case <-r.Context().Done():
						return
					}
				}
				fmt.Fprint(w, "whole")
			})
			s := newSidecar(t, "agent.example.com", "http://"+to)
			quiet := s.connect(t, to)
			between := s.tunnelled(t, h2c)
			resp, err := between.RoundTrip(get(t, "http://"+to+"/"))
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
			answer := make(chan string, 1)
			go func() {
				resp, err := s.tunnelled(t, h2c).RoundTrip(get(t, "http://"+to+"/slow"))
				if err != nil {
					answer <- err.Error()
					return
				}
				b, _ := io.ReadAll(resp.Body)
				resp.Body.Close()
				answer <- string(b)
			}()
			receive(t, here, "the slow request")
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			drained := make(chan error, 1)
			go func() { drained <- s.Drain(ctx) }()
			if _, err := quiet.ReadByte(); !errors.Is(err, io.EOF) {
				t.Errorf("the quiet tunnel: %v, want it to be closed", err)
			}
			s.awaitSeries(t, "wopproxy_tunnels", 1)
			select {
			case err := <-drained:
				t.Errorf("Drain = %v before the exchange was over", err)
			case got := <-answer:
				t.Errorf("answer = %q before it was given", got)
			default:
			}
			close(release)
			if got := receive(t, answer, "the answer"); got != "whole" {
				t.Errorf("answer = %q, want all of it", got)
			}
			if err := receive(t, drained, "the drain"); err != nil {
				t.Errorf("Drain = %v, want nil", err)
			}
		})
	}
}

// What is left when the drain has had its time is cut, and the drain says so.
func TestDrainCuts(t *testing.T) {
	to := talker(t, func(c *rawConn) { _, _ = io.Copy(c.Conn, c) })
	s := newSidecar(t, "agent.example.com", "http://"+to)
	c := s.connect(t, to)
	if _, err := io.WriteString(c.Conn, "no HTTP\n"); err != nil {
		t.Fatal(err)
	}
	if _, err := c.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	drained := make(chan error, 1)
	go func() { drained <- s.Drain(ctx) }()
	if _, err := io.WriteString(c.Conn, "still\n"); err != nil {
		t.Fatal(err)
	}
	if line, err := c.ReadString('\n'); line != "still\n" || err != nil {
		t.Errorf("echo = %q, %v: a blind tunnel may go on until the drain has had its time", line, err)
	}
	cancel()
	if err := receive(t, drained, "the drain"); err == nil {
		t.Error("Drain = nil, though it has cut a tunnel")
	}
	if _, err := c.ReadByte(); err == nil {
		t.Error("the tunnel is still open")
	}
	s.awaitSeries(t, "wopproxy_tunnels", 0)
}

// A tunnel that is still being opened when the drain is over has no sides yet that
// could be closed. It must not come to life afterwards.
func TestDrainMeetsTunnelThatOpens(t *testing.T) {
	set := tunnels{limit: 1}
	tun := &tunnel{set: &set}
	if !set.add(tun) {
		t.Fatal("no room for one tunnel")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := set.drain(ctx); err == nil {
		t.Error("drain = nil, though a tunnel was open")
	}
	near, far := net.Pipe()
	defer near.Close()
	if tun.attach(&tun.client, far) {
		t.Fatal("attach = true after the cut")
	}
	if _, err := near.Read(make([]byte, 1)); err == nil {
		t.Error("the side that came too late is open")
	}
}

// A tunnel that opens while a drain has begun already ends like those that were
// open before it: at once if nobody has spoken, else with the request that is
// there.
func TestDrainMeetsTunnelThatIsNew(t *testing.T) {
	to := peer(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "whole") })
	late := func(t *testing.T, say string) (*rawConn, <-chan struct{}) {
		near, client := net.Pipe()
		upstream, err := net.Dial("tcp", to)
		if err != nil {
			t.Fatal(err)
		}
		s := newSidecar(t, "agent.example.com", "http://"+to)
		tun := &tunnel{set: &s.tunnels, target: to, client: client, upstream: upstream, dial: s.dialOut}
		s.tunnels.add(tun)
		if say == "" {
			tun.finish(t.Context())
		} else {
			go func() { _, _ = io.WriteString(near, say) }() // ends when it is read
		}
		over := make(chan struct{})
		go func() {
			defer close(over)
			tun.serve(s.Egress(), func(tunnelKind) { tun.finish(t.Context()) })
		}()
		return &rawConn{near, bufio.NewReader(near), t}, over
	}
	t.Run("quiet", func(t *testing.T) {
		c, over := late(t, "")
		receive(t, over, "the tunnel to end")
		if _, err := c.ReadByte(); err == nil {
			t.Error("the tunnel is open")
		}
	})
	t.Run("with a request", func(t *testing.T) {
		c, over := late(t, "GET / HTTP/1.1\r\nHost: "+to+"\r\n\r\n")
		resp := c.answer(http.MethodGet)
		if b, err := io.ReadAll(resp.Body); string(b) != "whole" || err != nil || !resp.Close {
			t.Errorf("answer = %q, %v, Connection: close is %v, want all of it and the last of its tunnel", b, err, resp.Close)
		}
		receive(t, over, "the tunnel to end")
	})
}

// A real client of TLS inside a tunnel may take its time before it speaks.
func TestTunnelWaitsForTheFirstByte(t *testing.T) {
	far := tlsPeer(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") })
	s := newSidecar(t, "agent.example.com", far.URL)
	c := s.connect(t, far.Listener.Addr().String())
	s.awaitSeries(t, "wopproxy_tunnels", 1)
	pool := far.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
	secure := tls.Client(c.Conn, &tls.Config{RootCAs: pool, ServerName: "example.com"})
	if err := secure.HandshakeContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	_ = secure.Close()
}
