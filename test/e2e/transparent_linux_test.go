package e2e

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// proxyUser is the user that wopproxy runs as in these tests: that of its image.
const proxyUser = 65532

// pod is a network namespace whose TCP is redirected to the wopproxy in it, which
// runs as a user of its own, without any right; and the world at the other end of
// the cable.
type pod struct {
	*sidecar
	in, world *netns
	dir       string // which that user reads
	values    settings
}

// newPod sets the rules and starts the proxy of a host at port 8080.
func newPod(t *testing.T, overrides settings) *pod {
	t.Helper()
	return newPodWith(t, func(*pod) settings { return overrides })
}

// newPodWith is newPod for settings that name files of the pod.
func newPodWith(t *testing.T, overrides func(*pod) settings) *pod {
	t.Helper()
	pair := newPair(t)
	if _, err := exec.LookPath("setpriv"); err != nil {
		missing(t, "no setpriv", "install util-linux")
	}
	p := &pod{sidecar: &sidecar{hostID: "agent.example.com", public: "http://agent.example.com"}, in: pair[0], world: pair[1]}
	p.dir = sharedDir(t)
	p.named(t, "10.77.0.2 tools.example.com\n10.77.0.1 agent.example.com\n")
	p.values = settings{
		"host.id": p.hostID, "host.wellKnownUrl": p.public + "/.well-known/openwop",
		"ingress.listen": "127.0.0.1:8088", "ingress.upstream": "http://127.0.0.1:8080", "ingress.transparent": ":8188",
		"egress.listen": "127.0.0.1:8089", "egress.transparent": ":8189", "admin.listen": ":9090",
		"ancestry.store.bolt.dir": filepath.Join(p.dir, "store"), "ancestry.commitTimeout": "10s",
		"drain.delay": "0s",
	}
	maps.Copy(p.values, overrides(p))
	p.redirect(t, "-inbound", "8188", "-outbound", "8189", "-exclude-outbound-ports", "53,9999", "-exclude-outbound-cidrs", "10.77.0.3/32,fd77::3/128")
	p.launch(t)
	return p
}

// sharedDir is a folder that every user may read, with the program in it.
func sharedDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "wopproxy-pod-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	text, err := os.ReadFile(program)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "wopproxy"), text, 0o755)
	}
	for _, name := range []string{"store", "out"} {
		err = errors.Join(err, os.Mkdir(filepath.Join(dir, name), 0o755), os.Chown(filepath.Join(dir, name), proxyUser, proxyUser))
	}
	if err = errors.Join(err, os.Chmod(dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	return dir
}

// named has what is run in the pod find these hosts by name.
func (p *pod) named(t *testing.T, hosts string) {
	t.Helper()
	dir := filepath.Join("/etc/netns", p.in.name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Skip("names of a network namespace take a right that is not there: ", err)
	}
	t.Cleanup(func() {
		os.RemoveAll(dir)
		os.Remove(filepath.Dir(dir)) // if it is empty
	})
	p.readable(t, filepath.Join(dir, "hosts"), hosts)
	p.readable(t, filepath.Join(dir, "resolv.conf"), "") // and no others
}

// readable writes a file for every user to read.
func (p *pod) readable(t *testing.T, path, text string) {
	t.Helper()
	write(t, path, text)
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
}

// redirect runs the command, as the init container does.
func (p *pod) redirect(t *testing.T, args ...string) {
	t.Helper()
	set := p.in.run(t, append([]string{"redirect"}, args...)...)
	if err := set.success(t); err != nil {
		t.Fatal(err)
	}
}

// launch starts the proxy, for the first time or again.
func (p *pod) launch(t *testing.T) {
	t.Helper()
	p.file = filepath.Join(p.dir, "wopproxy.yaml")
	p.configure(t, p.values)
	if err := os.Chmod(p.file, 0o644); err != nil {
		t.Fatal(err)
	}
	id := strconv.Itoa(proxyUser)
	proc := spawn(t, append(cleanEnv(), "GORACE=atexit_sleep_ms=0"), "ip", "netns", "exec", p.in.name,
		"setpriv", "--reuid", id, "--regid", id, "--clear-groups", "--bounding-set=-all", "--no-new-privs",
		filepath.Join(p.dir, "wopproxy"), "serve", "-config", p.file)
	p.process = proc
	t.Cleanup(func() { p.end(t, proc) })
	p.awaitLog(t, "serving")
	// Tests ask from outside of the namespace.
	admin := &url.URL{Scheme: "http", Host: "127.0.0.1:9090"}
	front := httptest.NewServer(&httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(admin) },
		Transport: &http.Transport{DialContext: p.in.dial, DisableKeepAlives: true},
	})
	t.Cleanup(front.Close)
	p.admin = front.URL
}

// redirected is how many connections have had that outcome.
func (p *pod) redirected(t *testing.T, direction, outcome string) float64 {
	t.Helper()
	return p.metric(t, "wopproxy_redirected_connections_total", `direction="`+direction+`"`, `outcome="`+outcome+`"`)
}

// counts runs f, which has so many connections more come to the outcome.
func (p *pod) counts(t *testing.T, want float64, direction, outcome string, f func()) {
	t.Helper()
	before := p.redirected(t, direction, outcome)
	f()
	p.awaitMetric(t, before+want, "wopproxy_redirected_connections_total", `direction="`+direction+`"`, `outcome="`+outcome+`"`)
}

// sight is what a server has seen of a request.
type sight struct {
	Server, Host, From, Proto, URI string
	Header                         http.Header
	Body                           string
}

// mirror starts a server in the namespace that answers each request with what it
// has seen of it.
func (n *netns) mirror(t *testing.T, addr string, wrap func(*httptest.Server)) *httptest.Server {
	t.Helper()
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(sight{addr, r.Host, r.RemoteAddr, r.Proto, r.RequestURI, r.Header, string(body)})
	}))
	_ = s.Listener.Close()
	s.Listener = n.listen(t, addr)
	s.Config.Protocols = new(http.Protocols)
	s.Config.Protocols.SetHTTP1(true)
	s.Config.Protocols.SetUnencryptedHTTP2(true)
	if wrap == nil {
		s.Start()
	} else {
		wrap(s)
	}
	t.Cleanup(s.Close)
	return s
}

// tell makes a tool call with the headers, and returns what the server has seen.
func tell(t *testing.T, c *http.Client, url, host string, header http.Header) (sight, http.Header) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(toolCall))
	if err != nil {
		t.Fatal(err)
	}
	if header != nil {
		req.Header = header.Clone()
	}
	req.Header.Set("Content-Type", "application/json")
	if req.Host = req.URL.Host; host != "" {
		req.Host = host
	}
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("status %d: %s", resp.StatusCode, body)
	}
	return decode[sight](t, body), resp.Header
}

// ofRun says whose call it is, in place of a host that hands on context.
var ofRun = http.Header{"Run-Id": {"run-of-the-host"}}

const (
	parentOfCall   = `"run-of-the-host";host="agent.example.com"`
	headerAncestry = "Run-Ancestry"
)

// callOf is the ancestry of a call that another host's run makes.
func callOf(run string) string {
	return `"` + run + `";host="caller.example.com";wk="https://caller.example.com/.well-known/openwop";cause=mcp-tool-call`
}

// ends are the addresses of both ends, without IPv6 those of IPv4 alone.
func (p *pod) ends(t *testing.T) map[string][2]string {
	t.Helper()
	ends := map[string][2]string{"IPv4": {p.in.addr, p.world.addr}}
	if _, err := os.Stat("/proc/net/if_inet6"); err == nil {
		ends["IPv6"] = [2]string{p.in.addr6, p.world.addr6}
	} else {
		t.Log("no IPv6 here")
	}
	return ends
}

// more gives the world's end of the cable a further address.
func (p *pod) more(t *testing.T, addr string) {
	t.Helper()
	if out, err := exec.Command("ip", "-n", p.world.name, "addr", "add", addr, "dev", "cable").CombinedOutput(); err != nil {
		t.Fatalf("ip addr add: %v: %s", err, out)
	}
}

// TestTransparentBesideListen pins that a call to the ingress listener which the
// kernel redirects on its way is one run, and not a second one of the proxy's own.
func TestTransparentBesideListen(t *testing.T) {
	p := newPod(t, settings{"ingress.listen": ":8088"})
	p.in.mirror(t, ":8080", nil)
	p.counts(t, 1, "ingress", "taken", func() {
		s, answer := tell(t, p.world.client(t, ""), "http://10.77.0.1:8088/mcp", "", http.Header{headerAncestry: {callOf("r1")}})
		id, _, _ := strings.Cut(strings.Trim(answer.Get("Run-Id"), `"`), `"`)
		if s.Header.Get("Run-Id") != id || id == "" {
			t.Errorf("the host was told run %q, and the caller %q", s.Header.Get("Run-Id"), answer.Get("Run-Id"))
		}
	})
}

// TestTransparent has the kernel lead a host's calls, and those to it, through a
// wopproxy of which neither side knows.
func TestTransparent(t *testing.T) {
	p := newPod(t, nil)
	p.in.mirror(t, ":8080", nil)
	for name, end := range p.ends(t) {
		inside, outside := end[0], end[1]
		p.world.mirror(t, net.JoinHostPort(outside, "9000"), nil)
		p.world.mirror(t, net.JoinHostPort(outside, "9999"), nil)
		caller, host := p.world.client(t, ""), p.in.client(t, "")

		t.Run(name+"/into the host", func(t *testing.T) {
			p.counts(t, 1, "ingress", "taken", func() {
				s, answer := tell(t, caller, "http://"+net.JoinHostPort(inside, "8080")+"/mcp", "", http.Header{headerAncestry: {callOf("r1")}})
				id, _, _ := strings.Cut(strings.Trim(answer.Get("Run-Id"), `"`), `"`)
				if s.Header.Get("Run-Id") != id || id == "" {
					t.Errorf("the host was told run %q, and the caller %q", s.Header.Get("Run-Id"), answer.Get("Run-Id"))
				}
				l, ok := p.link(t, id)
				if !ok || l.parent().RunID != "r1" {
					t.Errorf("recorded of %s: %+v, %v, want parent r1", id, l, ok)
				}
				if s.Host != net.JoinHostPort(inside, "8080") {
					t.Errorf("the host saw Host %q", s.Host)
				}
			})
		})
		t.Run(name+"/out of the host", func(t *testing.T) {
			p.counts(t, 1, "egress", "taken", func() {
				s, _ := tell(t, host, "http://"+net.JoinHostPort(outside, "9000")+"/mcp", "", ofRun)
				if !strings.HasPrefix(s.Header.Get(headerAncestry), parentOfCall) || !strings.Contains(s.Body, `"_meta":{"traceparent":`) || s.Header.Get("Run-Id") != "" {
					t.Errorf("the server saw %+v, want a call of run-of-the-host", s)
				}
			})
		})
		t.Run(name+"/an excluded port", func(t *testing.T) {
			p.counts(t, 0, "egress", "taken", func() {
				if s, _ := tell(t, host, "http://"+net.JoinHostPort(outside, "9999")+"/mcp", "", ofRun); s.Body != toolCall || s.Header.Get("Run-Id") == "" {
					t.Errorf("the server saw %+v, want the call as it was", s)
				}
			})
		})
		t.Run(name+"/the pod with itself", func(t *testing.T) {
			p.counts(t, 0, "egress", "taken", func() {
				p.counts(t, 0, "ingress", "taken", func() {
					if s, _ := tell(t, host, "http://"+net.JoinHostPort(inside, "8080")+"/mcp", "", ofRun); s.Body != toolCall {
						t.Errorf("the host saw %+v, want the call as it was", s)
					}
				})
			})
		})
		t.Run(name+"/a call of the proxy's user", func(t *testing.T) {
			p.counts(t, 0, "egress", "taken", func() {
				c := &http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, addr string) (c net.Conn, err error) {
					err = p.in.do(func() error {
						if err := syscall.Setfsuid(proxyUser); err != nil { // of this thread alone
							return err
						}
						c, err = new(net.Dialer).DialContext(ctx, network, addr)
						return err
					})
					return c, err
				}}}
				if s, _ := tell(t, c, "http://"+net.JoinHostPort(outside, "9000")+"/mcp", "", ofRun); s.Body != toolCall {
					t.Errorf("the server saw %+v, want the call as it was", s)
				}
			})
		})
		t.Run(name+"/to the listeners themselves", func(t *testing.T) {
			for _, tt := range []struct {
				from      *netns
				addr, way string
			}{
				{p.world, net.JoinHostPort(inside, "8188"), "ingress"},
				{p.world, net.JoinHostPort(inside, "8189"), "ingress"}, // which the rules redirect
				{p.in, net.JoinHostPort(inside, "8189"), "egress"},
				{p.in, "127.0.0.1:8189", "egress"},
				{p.in, "127.0.0.1:8188", "ingress"},
			} {
				p.counts(t, 1, tt.way, "direct", func() { wantReset(t, tt.from, tt.addr) })
			}
		})
	}

	t.Run("an excluded network", func(t *testing.T) {
		p.more(t, "10.77.0.3/24")
		p.world.mirror(t, "10.77.0.3:9000", nil)
		p.counts(t, 0, "egress", "taken", func() {
			if s, _ := tell(t, p.in.client(t, ""), "http://10.77.0.3:9000/mcp", "", ofRun); s.Body != toolCall {
				t.Errorf("the server saw %+v, want the call as it was", s)
			}
		})
	})
	t.Run("nobody there", func(t *testing.T) {
		p.counts(t, 1, "egress", "unreachable", func() { wantReset(t, p.in, "10.77.0.2:1") })
		p.counts(t, 1, "ingress", "unreachable", func() { wantReset(t, p.world, "10.77.0.1:1") })
	})
	t.Run("meant for another machine", func(t *testing.T) {
		// Who shares the cable can send the pod what is not for it.
		if out, err := exec.Command("ip", "-n", p.world.name, "route", "add", "10.77.1.0/24", "via", p.in.addr).CombinedOutput(); err != nil {
			t.Fatalf("ip route add: %v: %s", err, out)
		}
		p.counts(t, 1, "ingress", "refused", func() { wantReset(t, p.world, "10.77.1.1:8080") })
	})
	t.Run("h2c", func(t *testing.T) {
		c := p.in.client(t, "")
		c.Transport.(*http.Transport).Protocols = new(http.Protocols)
		c.Transport.(*http.Transport).Protocols.SetUnencryptedHTTP2(true)
		s, _ := tell(t, c, "http://10.77.0.2:9000/mcp", "", ofRun)
		if s.Proto != "HTTP/2.0" || !strings.Contains(s.Body, "traceparent") {
			t.Errorf("the server saw %+v, want HTTP/2 and the call stamped", s)
		}
	})
	t.Run("into another port of the host", func(t *testing.T) {
		p.in.mirror(t, "10.77.0.1:8081", nil)
		s, answer := tell(t, p.world.client(t, ""), "http://10.77.0.1:8081/mcp", "", http.Header{headerAncestry: {callOf("r2")}})
		if s.Server != "10.77.0.1:8081" || s.Header.Get("Run-Id") == "" || answer.Get("Run-Id") == "" {
			t.Errorf("the host saw %+v, want it there, as a run", s)
		}
	})
	t.Run("servers that speak first", func(t *testing.T) {
		for way, n := range map[string][2]*netns{"10.77.0.2:25": {p.in, p.world}, "10.77.0.1:25": {p.world, p.in}} {
			greeter(t, n[1], way)
			if got := greeted(t, n[0], way); got != "220 hello\nEHLO\n" {
				t.Errorf("%s said %q", way, got)
			}
		}
	})
	t.Run("a request for another proxy", func(t *testing.T) {
		c := p.in.client(t, "http://10.77.0.2:9000")
		if s, _ := tell(t, c, "http://far.example.com/mcp", "", ofRun); s.URI != "http://far.example.com/mcp" || s.Body != toolCall {
			t.Errorf("the other proxy saw %+v, want the request as it was", s)
		}
	})
	t.Run("the claim to be somebody else", func(t *testing.T) {
		s, _ := tell(t, p.in.client(t, ""), "http://10.77.0.2:9000/mcp", "10.77.0.2:9999", ofRun)
		if s.Server != "10.77.0.2:9000" || s.Host != "10.77.0.2:9999" {
			t.Errorf("%s saw Host %s, want the address that was called to see what was claimed", s.Server, s.Host)
		}
	})
}

// wantReset fails t unless a connection to addr is reset.
func wantReset(t *testing.T, n *netns, addr string) {
	t.Helper()
	if b, err := hear(t, n, addr); !errors.Is(err, syscall.ECONNRESET) || len(b) > 0 {
		t.Errorf("%s answered %q, %v, want a reset", addr, b, err)
	}
}

// hear returns what is said on a connection to addr by itself.
func hear(t *testing.T, n *netns, addr string) ([]byte, error) {
	t.Helper()
	c, err := n.dial(t.Context(), "tcp", addr)
	if err != nil {
		return nil, err // it has ended already
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	return io.ReadAll(c)
}

// greeter starts a server that speaks first, and repeats a line.
func greeter(t *testing.T, n *netns, addr string) {
	t.Helper()
	ln := n.listen(t, addr)
	var conns sync.WaitGroup
	t.Cleanup(conns.Wait)
	t.Cleanup(func() { ln.Close() })
	conns.Go(func() { // ends with ln
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			conns.Go(func() { // ends with the client
				defer c.Close()
				_ = c.SetDeadline(time.Now().Add(patience))
				_, _ = io.WriteString(c, "220 hello\n")
				line, _ := bufio.NewReader(c).ReadString('\n')
				_, _ = io.WriteString(c, line)
			})
		}
	})
}

// greeted reads a greeting, says a line, and returns all that it has heard.
func greeted(t *testing.T, n *netns, addr string) string {
	t.Helper()
	c, err := n.dial(t.Context(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	r := bufio.NewReader(c)
	greeting, err := r.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(c, "EHLO\n")
	rest, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return greeting + string(rest)
}

// TestTransparentTLS opens the TLS of what is named, by the name in the hello, and
// of nothing else.
func TestTransparentTLS(t *testing.T) {
	opened := newTLSPeer(t)
	roots := func(dir string) string { return filepath.Join(dir, "roots.pem") }
	p := newPodWith(t, func(p *pod) settings {
		p.readable(t, roots(p.dir), opened.certPEM())
		return settings{
			"egress.intercept": []string{"tools.example.com"}, "egress.roots": roots(p.dir),
			"egress.ca.bundle": filepath.Join(p.dir, "out", "bundle.pem"),
		}
	})
	for _, end := range p.ends(t) {
		addr := net.JoinHostPort(end[1], "443")
		p.world.mirror(t, addr, func(s *httptest.Server) { s.EnableHTTP2 = true; s.StartTLS() })
		call := func(name string) (sight, *tls.ConnectionState) {
			c := p.in.client(t, "")
			tr := c.Transport.(*http.Transport)
			tr.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) { return p.in.dial(ctx, network, addr) }
			tr.TLSClientConfig = &tls.Config{RootCAs: pool(t, filepath.Join(p.dir, "out", "bundle.pem"), opened.certPEM())}
			tr.ForceAttemptHTTP2 = true
			var state *tls.ConnectionState
			tr.TLSClientConfig.VerifyConnection = func(s tls.ConnectionState) error { state = &s; return nil }
			s, _ := tell(t, c, "https://"+name+"/mcp", "", ofRun)
			return s, state
		}
		s, seen := call("tools.example.com")
		if !strings.Contains(s.Body, "traceparent") || s.Host != "tools.example.com" || s.Server != addr || s.Proto != "HTTP/2.0" {
			t.Errorf("named: the server saw %+v, want the call stamped", s)
		}
		if seen.PeerCertificates[0].Equal(opened.Certificate()) {
			t.Error("named: the host was shown the server's own certificate")
		}
		s, seen = call("private.example.com")
		if s.Body != toolCall || !seen.PeerCertificates[0].Equal(opened.Certificate()) {
			t.Errorf("not named: the server saw %+v, want the call as it was, and TLS from end to end", s)
		}
	}
}

// TestTransparentTrust tells ancestry to those who are named, where somebody else
// than the request says that it is them.
func TestTransparentTrust(t *testing.T) {
	p := newPod(t, settings{
		"trust.egress.mode": "listed", "trust.egress.hosts": []string{"tools.example.com"},
		"egress.denyAddresses": []string{"10.77.0.5/32"},
	})
	p.more(t, "10.77.0.4/24")
	p.more(t, "10.77.0.5/24")
	for _, addr := range []string{"10.77.0.2:9000", "10.77.0.4:9000", "10.77.0.5:9000"} {
		p.world.mirror(t, addr, nil)
	}
	for _, tt := range []struct {
		addr, claims string
		told         bool
	}{
		{"10.77.0.2:9000", "tools.example.com:9000", true},
		{"10.77.0.2:9000", "tools.example.com", true}, // the port is that of the connection
		{"10.77.0.4:9000", "tools.example.com:9000", false},
		{"10.77.0.2:9000", "nobody.example.com:9000", false},
		{"10.77.0.2:9000", "", false},
	} {
		s, _ := tell(t, p.in.client(t, ""), "http://"+tt.addr+"/mcp", tt.claims, ofRun)
		if told := s.Header.Get(headerAncestry) != ""; told != tt.told || !strings.Contains(s.Body, "traceparent") {
			t.Errorf("%s, claimed to be %q, saw %+v, want ancestry %v", tt.addr, tt.claims, s, tt.told)
		}
	}
	p.counts(t, 1, "egress", "refused", func() { wantReset(t, p.in, "10.77.0.5:9000") })
}

// TestTransparentLife kills the proxy under its rules, starts it anew, has the rules
// exempt somebody else, and takes them away.
func TestTransparentLife(t *testing.T) {
	p := newPod(t, nil)
	p.in.mirror(t, ":8080", nil)
	p.world.mirror(t, "10.77.0.2:9000", nil)
	stamped := func() bool {
		c := p.in.client(t, "")
		defer c.CloseIdleConnections()
		s, _ := tell(t, c, "http://10.77.0.2:9000/mcp", "", ofRun)
		return s.Body != toolCall
	}
	if !stamped() {
		t.Fatal("the call was not seen")
	}
	p.signal(t, syscall.SIGKILL)
	p.wait(t)
	if c, err := p.in.dial(t.Context(), "tcp", "10.77.0.2:9000"); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("without the proxy: %v, %v, want the connection refused", c, err)
	}
	p.launch(t)
	if !stamped() {
		t.Error("after a restart the call was not seen")
	}

	// Its own calls now come back to it: the rules are replaced as a whole.
	p.redirect(t, "-uid", "65531", "-outbound", "8189")
	if b, err := hear(t, p.in, "10.77.0.2:9000"); len(b) > 0 || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("in a circle: heard %q, %v, want an end", b, err)
	}
	p.awaitLog(t, "wopproxy's own calls are redirected to itself, and are refused: the rules have to exempt the user that it runs as, see wopproxy redirect -uid")
	p.awaitMetric(t, 0, "wopproxy_tunnels")
	if loops := p.redirected(t, "egress", "loop"); loops < 1 {
		t.Errorf("%v loops were counted", loops)
	}
	if s, _ := tell(t, p.world.client(t, ""), "http://10.77.0.1:8080/mcp", "", nil); s.Header.Get("Run-Id") != "" {
		t.Error("inbound is still redirected")
	}

	for range 2 {
		p.redirect(t, "-remove")
		if stamped() {
			t.Error("without rules the call was redirected")
		}
	}
}

// TestRedirectRules holds the rules that the kernel has against those that nft makes
// of what -print says.
func TestRedirectRules(t *testing.T) {
	pair := newPair(t)
	nft, err := exec.LookPath("nft")
	if err != nil {
		missing(t, "no nft", "install nftables")
	}
	list := func(n *netns) string {
		t.Helper()
		out, err := exec.Command("ip", "netns", "exec", n.name, nft, "list", "ruleset").CombinedOutput()
		if err != nil {
			t.Fatalf("nft list ruleset: %v: %s", err, out)
		}
		return string(out)
	}
	for _, args := range [][]string{
		{"-inbound", "1"},
		{"-outbound", "2"},
		{"-uid", "4294967294", "-inbound", "1", "-outbound", "65535", "-app-ports", "80,81", "-exclude-inbound-ports", "22,23", "-exclude-outbound-ports", "25", "-exclude-outbound-cidrs", "10.0.0.0/9,0.0.0.0/0,192.0.2.1/32,fd00::/10,2001:db8::1/128"},
	} {
		args = append([]string{"redirect"}, args...)
		for range 2 { // the second time they are there
			if err := pair[0].run(t, args...).success(t); err != nil {
				t.Fatal(err)
			}
		}
		script := execute(t, append(args, "-print")...)
		if err := script.success(t); err != nil {
			t.Fatal(err)
		}
		load := exec.Command("ip", "netns", "exec", pair[1].name, nft, "-f", "-")
		load.Stdin = script.stdout
		if out, err := load.CombinedOutput(); err != nil {
			t.Fatalf("nft -f: %v: %s", err, out)
		}
		if got, want := list(pair[0]), list(pair[1]); got != want || !strings.Contains(want, "redirect to") {
			t.Errorf("%q: the kernel has\n%s\nand by nft\n%s", args, got, want)
		}
	}
	for range 2 { // the second time there are none
		if err := pair[0].run(t, "redirect", "-remove").success(t); err != nil {
			t.Fatal(err)
		}
	}
	if got := list(pair[0]); got != "" {
		t.Errorf("after -remove the kernel has\n%s", got)
	}
	powerless := spawn(t, cleanEnv(), "ip", "netns", "exec", pair[0].name, "setpriv", "--bounding-set=-net_admin", program, "redirect", "-inbound", "1")
	if code := powerless.wait(t); code != 1 || !strings.Contains(powerless.stderr.String(), "NET_ADMIN") {
		t.Errorf("without NET_ADMIN: exit code %d, %s", code, powerless.stderr)
	}
}
