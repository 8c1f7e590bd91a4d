package proxy

import (
	"context"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// nameServer answers questions for addresses, and lets each name have another one
// each time it is asked for.
type nameServer struct {
	mu    sync.Mutex
	next  []netip.Addr // of the answers to come; the last one stays
	asked int
}

// useNameServer makes the system's resolver ask a server of the test's own.
func useNameServer(t *testing.T, answers ...string) *nameServer {
	t.Helper()
	s := &nameServer{}
	for _, a := range answers {
		s.next = append(s.next, netip.MustParseAddr(a))
	}
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { defer close(done); s.serve(conn) }()
	before := net.DefaultResolver
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "udp", conn.LocalAddr().String())
	}}
	t.Cleanup(func() { net.DefaultResolver = before; conn.Close(); <-done })
	return s
}

func (s *nameServer) serve(conn net.PacketConn) {
	for b := make([]byte, 1500); ; {
		n, from, err := conn.ReadFrom(b)
		if err != nil {
			return
		}
		var m dnsmessage.Message
		if m.Unpack(b[:n]) != nil || len(m.Questions) != 1 {
			continue
		}
		m.Response, m.Additionals = true, nil
		q := m.Questions[0]
		if a := s.answer(q.Type); a.IsValid() {
			h := dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class}
			if a.Is4() {
				m.Answers = []dnsmessage.Resource{{Header: h, Body: &dnsmessage.AResource{A: a.As4()}}}
			} else {
				m.Answers = []dnsmessage.Resource{{Header: h, Body: &dnsmessage.AAAAResource{AAAA: a.As16()}}}
			}
		}
		if out, err := m.Pack(); err == nil {
			_, _ = conn.WriteTo(out, from)
		}
	}
}

// answer takes the next address if it is of the type that is asked for.
func (s *nameServer) answer(typ dnsmessage.Type) netip.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.next[0]
	if typ != dnsmessage.TypeA && a.Is4() || typ != dnsmessage.TypeAAAA && a.Is6() {
		return netip.Addr{}
	}
	if s.asked++; len(s.next) > 1 {
		s.next = s.next[1:]
	}
	return a
}

// answers is how many addresses were given out.
func (s *nameServer) answers() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked
}

// get asks for a path through egress, in absolute form, and returns the answer.
func (s *sidecar) get(t testing.TB, to string) (int, string) {
	t.Helper()
	c := dialRaw(t, s.egress.URL)
	c.send("GET http://" + to + "/ HTTP/1.1\nHost: " + to + "\n\n")
	resp := c.answer(http.MethodGet)
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

// ask sends CONNECT and returns the answer.
func (s *sidecar) ask(t testing.TB, to string) (int, string) {
	t.Helper()
	c := dialRaw(t, s.egress.URL)
	c.send("CONNECT " + to + " HTTP/1.1\nHost: " + to + "\n\n")
	resp := c.answer(http.MethodConnect)
	if resp.StatusCode == http.StatusOK {
		return resp.StatusCode, ""
	}
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

// wantNoWay checks that neither a request nor a tunnel leads to an address.
func (s *sidecar) wantNoWay(t *testing.T, to string, status int, says string) {
	t.Helper()
	for way, try := range map[string]func(testing.TB, string) (int, string){"GET": s.get, "CONNECT": s.ask} {
		if code, body := try(t, to); code != status || !strings.Contains(body, says) {
			t.Errorf("%s %s: answer = %d %q, want %d that names %s", way, to, code, body, status, says)
		}
	}
	s.awaitSeries(t, "wopproxy_tunnels", 0)
}

// Addresses at which clouds give out credentials are refused in every spelling
// that leads there.
func TestMetadataIsOutOfReach(t *testing.T) {
	s := newSidecar(t, "agent.example.com", "http://127.0.0.1:1", func(_ *Options, p *Policy) { p.DenyLinkLocal = true })
	for _, to := range []string{
		"169.254.169.254:80", "169.254.170.2:80", "[fe80::1]:80", "[ff02::1]:80", "[fd00:ec2::254]:80", "[fd20:ce::254]:80",
		"100.100.100.200:80", "192.0.0.192:80", "168.63.129.16:80",
		"[::ffff:169.254.169.254]:80", "[64:ff9b::169.254.169.254]:80", "[2002:a9fe:a9fe::1]:80",
	} {
		s.wantNoWay(t, to, http.StatusBadGateway, "denyLinkLocal")
	}
	useNameServer(t, "169.254.169.254")
	s.wantNoWay(t, "metadata.google.internal:80", http.StatusBadGateway, "denyLinkLocal")
}

// deny is the one network that a policy forbids.
func deny(cidr string) []netip.Prefix { return []netip.Prefix{netip.MustParsePrefix(cidr)} }

// What egress.denyAddresses names is refused, and nothing beside it. A policy that
// comes later counts for the connections that are opened later.
func TestDeniedAddresses(t *testing.T) {
	last := make(chan seen, 1)
	to := target(t, last)
	_, port, _ := net.SplitHostPort(to)
	for _, row := range []struct{ cidr, to string }{
		{"10.0.0.0/8", "10.1.2.3:80"},
		{"10.0.0.0/8", "[::ffff:10.1.2.3]:80"},
		{"10.0.0.0/8", "[64:ff9b::a01:203]:80"},
		{"64:ff9b::/96", "[64:ff9b::a01:203]:80"},
		{"fd00::/8", "[fd12::1]:80"},
		{"127.0.0.0/8", to},
		{"127.0.0.0/8", "localhost:" + port},
		{"127.0.0.0/8", "0.0.0.0:" + port},
		{"127.0.0.0/8", "[::]:" + port},
		{"::1/128", "[::]:" + port},
	} {
		t.Run(row.cidr+" "+row.to, func(t *testing.T) {
			s := newSidecar(t, "agent.example.com", "http://127.0.0.1:1", func(_ *Options, p *Policy) {
				p.DenyAddresses = deny(row.cidr)
				p.DialTimeout = patience
			})
			s.wantNoWay(t, row.to, http.StatusBadGateway, "denyAddresses")
			if len(last) > 0 {
				t.Error("the server was sent a request")
			}
		})
	}
	s := newSidecar(t, "agent.example.com", "http://127.0.0.1:1", func(_ *Options, p *Policy) { p.DenyAddresses = deny("10.0.0.0/8") })
	if code, body := s.get(t, to); code != http.StatusOK {
		t.Errorf("beside the network: %d %s, want 200", code, body)
	}
	receive(t, last, "the request")
}

// A connection that is kept when its address becomes forbidden is closed, and one
// that is in use is used for nothing else: neither leads there again.
func TestDeniedLater(t *testing.T) {
	last := make(chan seen, 1)
	hold, gone := make(chan struct{}), make(chan struct{}, 9)
	far, roots := secureServer(t, nil)
	answer := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		last <- seen{head: r.Header}
		if r.URL.Path == "/hold" {
			w.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(w).Flush()
			select {
			case <-hold:
			case <-r.Context().Done():
			}
		}
		_, _ = io.WriteString(w, "ok")
	})
	far.Config.Handler = answer
	near := httptest.NewUnstartedServer(answer)
	near.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateClosed {
			gone <- struct{}{}
		}
	}
	near.Start()
	t.Cleanup(near.Close)
	for name, to := range map[string]string{"HTTP/1": near.Listener.Addr().String(), "HTTP/2": far.Listener.Addr().String()} {
		t.Run(name, func(t *testing.T) {
			pol := Policy{OriginateTLS: func(to string) bool { return to == far.Listener.Addr().String() }}
			s := newSidecar(t, "agent.example.com", "http://127.0.0.1:1", func(o *Options, p *Policy) { o.Roots, *p = roots, pol })
			ask := func() {
				t.Helper()
				if code, body := s.get(t, to); code != http.StatusOK || body != "ok" {
					t.Fatalf("answer = %d %q, want ok", code, body)
				}
				receive(t, last, "the request")
			}
			held := dialRaw(t, s.egress.URL)
			held.send("GET http://" + to + "/hold HTTP/1.1\nHost: " + to + "\n\n")
			resp := held.answer(http.MethodGet)
			receive(t, last, "the request")
			ask()

			pol.DenyAddresses = deny("127.0.0.0/8")
			if err := s.SetPolicy(pol); err != nil {
				t.Fatal(err)
			}
			if name == "HTTP/1" { // in HTTP/2 there is but one connection, and it is in use
				receive(t, gone, "the idle connection to be closed")
			}
			select {
			case hold <- struct{}{}:
			case <-time.After(patience):
				t.Fatal("the request under way has not waited")
			}
			if b, err := io.ReadAll(resp.Body); string(b) != "ok" || err != nil {
				t.Errorf("the answer under way = %q, %v, want it whole", b, err)
			}
			s.handled.wait(t)
			s.wantNoWay(t, to, http.StatusBadGateway, "denyAddresses")
			if len(last) > 0 {
				t.Error("the server was sent another request")
			}

			pol.DenyAddresses = nil
			if err := s.SetPolicy(pol); err != nil {
				t.Fatal(err)
			}
			ask()
		})
	}
}

// A policy that allows the same addresses as before costs no connection.
func TestConnectionsKept(t *testing.T) {
	var opened atomic.Int32
	count := func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			opened.Add(1)
		}
	}
	answer := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") })
	near := httptest.NewUnstartedServer(answer)
	near.Config.ConnState = count
	near.Start()
	t.Cleanup(near.Close)
	far := httptest.NewUnstartedServer(answer)
	far.Config.ConnState = count
	far.StartTLS()
	t.Cleanup(far.Close)
	roots := x509.NewCertPool()
	roots.AddCert(far.Certificate())
	policy := func(n int) Policy {
		return Policy{
			DenyLinkLocal: true, DenyAddresses: deny("10.0.0.0/8"), DialTimeout: patience,
			ConnectPorts: []int{n}, OriginateTLS: func(to string) bool { return to == far.Listener.Addr().String() },
		}
	}
	s := newSidecar(t, "agent.example.com", "http://127.0.0.1:1", func(o *Options, p *Policy) { o.Roots, *p = roots, policy(1) })
	for n := range 3 {
		for _, to := range []string{near.Listener.Addr().String(), far.Listener.Addr().String()} {
			if code, body := s.get(t, to); code != http.StatusOK || body != "ok" {
				t.Fatalf("answer = %d %q, want ok", code, body)
			}
		}
		s.handled.wait(t) // or the connection may not be free yet
		if err := s.SetPolicy(policy(2 + n)); err != nil {
			t.Fatal(err)
		}
	}
	if n := opened.Load(); n != 2 {
		t.Errorf("%d connections to two servers, want 2", n)
	}
}

// A name that resolves to a public address when it is looked at, and to another
// one when it is used, leads nowhere it should not: what is checked is what is
// dialled, each time.
func TestDNSRebinding(t *testing.T) {
	last := make(chan seen, 9)
	to := target(t, last)
	_, port, _ := net.SplitHostPort(to)
	for name, row := range map[string]struct {
		answers []string
		policy  Policy
		says    string
	}{
		"metadata":      {[]string{"127.0.0.1", "169.254.169.254"}, Policy{DenyLinkLocal: true}, "denyLinkLocal"},
		"metadata IPv6": {[]string{"127.0.0.1", "fd00:ec2::254"}, Policy{DenyLinkLocal: true}, "denyLinkLocal"},
		"denied":        {[]string{"127.0.0.1", "10.0.0.1"}, Policy{DenyAddresses: deny("10.0.0.0/8")}, "denyAddresses"},
	} {
		for _, originate := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, TLS originated %v", name, originate), func(t *testing.T) {
				dns := useNameServer(t, row.answers...)
				s := newSidecar(t, "agent.example.com", "http://127.0.0.1:1", func(_ *Options, p *Policy) {
					p.DenyLinkLocal, p.DenyAddresses = row.policy.DenyLinkLocal, row.policy.DenyAddresses
					if originate {
						p.OriginateTLS = func(string) bool { return true }
					}
				})
				name := "rebound.example.com:" + port
				if code, body := s.get(t, name); originate != (code == http.StatusBadGateway) || strings.Contains(body, "egress.deny") {
					t.Errorf("while the name is good: %d %s", code, body) // the server speaks no TLS
				}
				s.policy.Load().outbound.closeIdle() // or there would be no second look
				s.wantNoWay(t, name, http.StatusBadGateway, row.says)
				if n := dns.answers(); n < 3 {
					t.Errorf("the name was resolved %d times, want it for each connection", n)
				}
			})
		}
	}
}

// A call that leads back to egress is refused, or a base path that is put into
// itself would pass the proxy once for each time that it fits into one target.
func TestCallsToEgressItself(t *testing.T) {
	for _, listen := range []string{"127.0.0.1:0", "0.0.0.0:0", "[::]:0"} {
		t.Run(listen, func(t *testing.T) {
			ln, err := net.Listen("tcp", listen)
			if err != nil {
				t.Skipf("no such address on this machine: %v", err)
			}
			s := newSidecar(t, "agent.example.com", "http://127.0.0.1:1", func(o *Options, _ *Policy) {
				o.EgressAddr = ln.Addr().(*net.TCPAddr).AddrPort()
			})
			s.egress.Listener.Close() // served by no one from now on
			var served atomic.Int64
			srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { served.Add(1); s.Egress().ServeHTTP(w, r) })}
			done := make(chan struct{})
			go func() { defer close(done); _ = srv.Serve(ln) }()
			t.Cleanup(func() { srv.Close(); <-done })
			_, port, _ := net.SplitHostPort(ln.Addr().String())
			s.egress.URL = "http://127.0.0.1:" + port
			useNameServer(t, "127.0.0.1")
			to := []string{"127.0.0.1:" + port, "localhost:" + port, "sidecar.example.com:" + port, "0.0.0.0:" + port, "[::]:" + port,
				"[::ffff:127.0.0.1]:" + port, "[::ffff:7f00:1]:" + port}
			if listen != "127.0.0.1:0" {
				to = append(to, "127.0.0.2:"+port, "[::1]:"+port)
				for _, a := range ownAddresses(t) {
					to = append(to, net.JoinHostPort(a, port))
				}
			}
			for _, to := range to {
				s.wantNoWay(t, to, http.StatusLoopDetected, "egress.listen")
			}
			served.Store(0)
			c := dialRaw(t, s.egress.URL)
			c.send("GET " + strings.Repeat("/_run/r/http://127.0.0.1:"+port, 100) + "/ HTTP/1.1\nHost: a\n\n")
			if resp := c.answer(http.MethodGet); resp.StatusCode != http.StatusLoopDetected || served.Load() != 1 {
				t.Errorf("a path through us a hundred times: %s after %d rounds, want 508 after one", resp.Status, served.Load())
			}
		})
	}
}

// An upstream whose name leads to ingress is not called, however a request gets there.
func TestIngressLeadsToItself(t *testing.T) {
	for _, listen := range []string{"127.0.0.1:0", "0.0.0.0:0"} {
		t.Run(listen, func(t *testing.T) {
			ln, err := net.Listen("tcp", listen)
			if err != nil {
				t.Fatal(err)
			}
			addr := ln.Addr().(*net.TCPAddr).AddrPort()
			port := strconv.Itoa(int(addr.Port()))
			useNameServer(t, "127.0.0.1")
			s := newSidecar(t, "agent.example.com", "http://host.example.com:"+port, func(o *Options, _ *Policy) { o.IngressAddr = addr })
			var served atomic.Int64
			ingress := s.Ingress()
			srv := &http.Server{ErrorLog: discardLog, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { served.Add(1); ingress.ServeHTTP(w, r) })}
			done := make(chan struct{})
			go func() { defer close(done); _ = srv.Serve(ln) }()
			t.Cleanup(func() { srv.Close(); <-done })
			for n, body := range []string{"", "short", strings.Repeat("x", 64<<10)} {
				c := dialRaw(t, "127.0.0.1:"+port)
				c.send("POST /mcp HTTP/1.1\nHost: a\nContent-Length: " + strconv.Itoa(len(body)) + "\n\n" + body)
				resp := c.answer(http.MethodPost)
				says, err := io.ReadAll(resp.Body)
				if err != nil || resp.StatusCode != http.StatusLoopDetected || !strings.Contains(string(says), "ingress.upstream") {
					t.Errorf("answer = %s %s, %v, want 508 that says what to mend", resp.Status, says, err)
				}
				if got := served.Load(); got != int64(n)+1 {
					t.Errorf("after %d requests %d were served", n+1, got)
				}
			}
		})
	}
}

// Two proxies whose base paths lead to each other hand on a call for a few rounds
// and no more, however often they stand in its URL.
func TestLoopThroughTwoEgresses(t *testing.T) {
	last := make(chan seen, 1)
	to := target(t, last)
	a, b := newSidecar(t, "a.example.com", "http://127.0.0.1:1"), newSidecar(t, "b.example.com", "http://127.0.0.1:1")
	for rounds, want := range map[int]int{1: http.StatusOK, 2: http.StatusOK, 5: http.StatusOK, 6: http.StatusLoopDetected, 300: http.StatusLoopDetected} {
		path := ""
		for i := range rounds - 1 {
			path += "/_run/r-1/" + []*sidecar{b, a}[i%2].egress.URL
		}
		path += "/_run/r-1/http://" + to + "/other?a=/_run/r-1/http://x/"
		before := total(a.series(t), "wopproxy_exchanges_total") + total(b.series(t), "wopproxy_exchanges_total")
		for form, target := range map[string]string{"base path": path, "absolute": a.egress.URL + path} {
			s := a
			if form == "absolute" {
				s = b
			}
			if form == "absolute" && rounds == 5 {
				continue // which is one more than there may be
			}
			c := dialRaw(t, s.egress.URL)
			c.send("GET " + target + " HTTP/1.1\nHost: a\n\n")
			if resp := c.answer(http.MethodGet); resp.StatusCode != want {
				t.Errorf("%s, %d rounds: answer = %s, want %d", form, rounds, resp.Status, want)
			}
			if want == http.StatusOK {
				receive(t, last, "the request")
			}
		}
		a.handled.wait(t)
		b.handled.wait(t)
		after := total(a.series(t), "wopproxy_exchanges_total") + total(b.series(t), "wopproxy_exchanges_total")
		if took := after - before; want != http.StatusOK && took != 2 {
			t.Errorf("two calls of %d rounds took %v exchanges, want one each", rounds, took)
		}
	}
}

// Hosts that have each other do the work go round in circles until the depth of
// the delegation, or the visits to a host, are more than may be; also where the
// ancestry no longer lists them all.
func TestLoopOfHosts(t *testing.T) {
	for name, row := range map[string]struct {
		tune  func(*Policy)
		calls int64 // of either host
		limit string
	}{
		"maxDepth":              {func(p *Policy) { p.MaxDepth = 5 }, 6, limitDepth},
		"maxDepth, listed half": {func(p *Policy) { p.MaxDepth = 40 }, 41, limitDepth},
		"maxVisitsPerHost":      {func(p *Policy) { p.MaxVisitsPerHost = 3 }, 8, limitVisits},
	} {
		t.Run(name, func(t *testing.T) {
			var a, b *sidecar
			var calls atomic.Int64
			host := func(own, other **sidecar) string {
				return "http://" + peer(t, func(w http.ResponseWriter, r *http.Request) {
					if calls.Add(1) > 100 { // nothing else may
						w.WriteHeader(http.StatusInternalServerError)
						return
					}
					resp, body := post(t, (*own).client(), (*other).ingress.URL+"/mcp", call, http.Header{"Run-Id": r.Header["Run-Id"]})
					w.WriteHeader(resp.StatusCode)
					_, _ = io.WriteString(w, body)
				})
			}
			tune := func(_ *Options, p *Policy) { row.tune(p) }
			a = newSidecar(t, "a.example.com", host(&a, &b), tune)
			b = newSidecar(t, "b.example.com", host(&b, &a), tune)
			resp, body := post(t, http.DefaultClient, a.ingress.URL+"/chat", "{}", nil)
			if resp.StatusCode != http.StatusLoopDetected || !strings.Contains(body, "limits.max") {
				t.Errorf("answer = %s %q, want 508 that names the limit", resp.Status, body)
			}
			a.handled.wait(t)
			b.handled.wait(t)
			if n := calls.Load(); n != row.calls {
				t.Errorf("the hosts were called %d times, want %d", n, row.calls)
			}
			if n := a.series(t)[hit(row.limit)] + b.series(t)[hit(row.limit)]; n != 1 {
				t.Errorf("%s was hit %v times, want once", row.limit, n)
			}
		})
	}
}

// ownAddresses are those of IPv4 that the machine has besides loopback.
func ownAddresses(t *testing.T) (own []string) {
	t.Helper()
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil && !n.IP.IsLoopback() {
			own = append(own, n.IP.String())
		}
	}
	return own
}

// Callers of ingress reach the host and nothing else, whatever their request says.
func TestIngressLeadsToTheHostAlone(t *testing.T) {
	last := make(chan seen, 1)
	to := target(t, last)
	for _, line := range []string{
		"GET http://169.254.169.254/latest/meta-data/ HTTP/1.1\nHost: 169.254.169.254",
		"GET / HTTP/1.1\nHost: 169.254.169.254", "GET //169.254.169.254/ HTTP/1.1\nHost: a", "GET /http://169.254.169.254/ HTTP/1.1\nHost: a",
		"GET /_run/r-1/http://169.254.169.254/ HTTP/1.1\nHost: a", "GET @169.254.169.254/ HTTP/1.1\nHost: a", "GET http:169.254.169.254 HTTP/1.1\nHost: a",
		"GET / HTTP/1.1\nHost: a\nX-Forwarded-Host: 169.254.169.254\nForwarded: host=169.254.169.254",
		"CONNECT 169.254.169.254:80 HTTP/1.1\nHost: 169.254.169.254:80",
	} {
		s := newSidecar(t, "agent.example.com", "http://"+to)
		c := dialRaw(t, s.ingress.URL)
		c.send(line + "\n\n")
		resp := c.answer(http.MethodGet)
		if resp.StatusCode == http.StatusBadRequest {
			continue // no request at all
		}
		if receive(t, last, "the request"); resp.StatusCode != http.StatusOK {
			t.Errorf("%q: answer = %s, want the host's", line, resp.Status)
		}
	}
}

// TestLeadsTo: what listens on all addresses of one family is not at those of the other.
func TestLeadsTo(t *testing.T) {
	for _, tt := range []struct {
		own, end string
		want     bool
	}{
		{"127.0.0.1:80", "127.0.0.1:80", true},
		{"127.0.0.1:80", "127.0.0.1:81", false},
		{"0.0.0.0:80", "127.0.0.1:80", true},
		{"0.0.0.0:80", "[::1]:80", false},
		{"[::]:80", "[::1]:80", true},
		{"[::]:80", "127.0.0.1:80", true},
		{"[::]:80", "192.0.2.1:80", false},
	} {
		if got := leadsTo(netip.MustParseAddrPort(tt.own), netip.MustParseAddrPort(tt.end)); got != tt.want {
			t.Errorf("leadsTo(%s, %s) = %v, want %v", tt.own, tt.end, got, tt.want)
		}
	}
}
