package proxy

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/wopproxy/wopproxy/ancestry"
)

// secureServer is an HTTPS server that wopproxy trusts and the host need not.
func secureServer(t testing.TB, h http.HandlerFunc) (*httptest.Server, *x509.CertPool) {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	s.EnableHTTP2 = true
	s.Config.ErrorLog = discardLog
	s.StartTLS()
	t.Cleanup(s.Close)
	roots := x509.NewCertPool()
	roots.AddCert(s.Certificate())
	return s, roots
}

func newInterceptingSidecar(t testing.TB, roots *x509.CertPool) *sidecar {
	t.Helper()
	return newSidecar(t, "test.example.com", "http://127.0.0.1:1", intercepting(t, roots))
}

// intercepting tunes a sidecar to open all TLS.
func intercepting(t testing.TB, roots *x509.CertPool) func(*Options, *Policy) {
	t.Helper()
	ca, err := NewCA("test.example.com")
	if err != nil {
		t.Fatal(err)
	}
	return func(o *Options, p *Policy) {
		o.CA, o.Roots = ca, roots
		p.Intercept = func(string) bool { return true }
	}
}

// trusting returns a client that calls out through s and trusts roots.
func (s *sidecar) trusting(t *testing.T, roots *x509.CertPool, h2 bool) *http.Client {
	t.Helper()
	u, err := url.Parse(s.egress.URL)
	if err != nil {
		t.Fatal(err)
	}
	tr := &http.Transport{
		Proxy: http.ProxyURL(u), TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: h2, DisableCompression: true,
	}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

// roots is what the host trusts once it was given our CA.
func (s *sidecar) roots(t testing.TB) *x509.CertPool {
	t.Helper()
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(s.o.CA.PEM()) {
		t.Fatal("the CA's PEM holds no certificate")
	}
	return pool
}

// ours reports whether we made the certificate that the client was shown.
func ours(c *tls.ConnectionState) bool {
	return slices.Contains(c.PeerCertificates[0].Subject.Organization, "wopproxy")
}

// tunnelTo opens a tunnel to addr through s.
func (s *sidecar) tunnelTo(t *testing.T, addr string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.egress.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	fmt.Fprintf(conn, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", addr, addr)
	resp, err := http.ReadResponse(bufio.NewReaderSize(conn, 16), &http.Request{Method: http.MethodConnect})
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("CONNECT: %v, %v", resp, err)
	}
	return conn
}

// TestInterception: what is inside is stamped, and streams pass as they come.
// The server has an address for a name, so the client sends no SNI.
func TestInterception(t *testing.T) {
	for name, h2 := range map[string]bool{"HTTP/1.1": false, "HTTP/2": true} {
		t.Run(name, func(t *testing.T) {
			gate := make(chan struct{})
			up, roots := secureServer(t, func(w http.ResponseWriter, r *http.Request) {
				b, _ := io.ReadAll(r.Body)
				w.Header().Set("Content-Type", "text/event-stream")
				io.WriteString(w, "data: "+string(b)+"\n\n")
				w.(http.Flusher).Flush()
				<-gate
			})
			s := newInterceptingSidecar(t, roots)
			req, _ := http.NewRequest(http.MethodPost, up.URL+"/mcp", strings.NewReader(call))
			req.Header = http.Header{"Content-Type": {"application/json"}, "Run-Id": {"r-1"}}
			resp, err := s.trusting(t, s.roots(t), h2).Do(req)
			if err != nil {
				close(gate)
				t.Fatal(err)
			}
			defer resp.Body.Close()
			first, err := bufio.NewReader(resp.Body).ReadString('\n') // before the server goes on
			close(gate)
			if err != nil || !strings.Contains(first, "traceparent") {
				t.Errorf("first event = %s (%v), want the call as it was stamped", first, err)
			}
			if got := resp.ProtoMajor == 2; got != h2 {
				t.Errorf("protocol = %s, want HTTP/2 %v", resp.Proto, h2)
			}
			if !ours(resp.TLS) {
				t.Errorf("certificate of %v, want ours", resp.TLS.PeerCertificates[0].Subject)
			}
		})
	}
}

// TestInterceptionByName: the certificate is for the name that the client asks
// for, also where CONNECT names an address, and the destination is verified by
// that name.
func TestInterceptionByName(t *testing.T) {
	up, roots := secureServer(t, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.Host) })
	s := newInterceptingSidecar(t, roots)
	conn := s.tunnelTo(t, strings.TrimPrefix(up.URL, "https://"))
	c := tls.Client(conn, &tls.Config{RootCAs: s.roots(t), ServerName: "example.com"}) // a name of httptest's certificate
	fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: example.com\r\nConnection: close\r\n\r\n")
	answer, err := io.ReadAll(c)
	if err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 200") || !strings.HasSuffix(string(answer), "example.com") {
		t.Fatalf("answer = %q, %v, want 200 from example.com", answer, err)
	}
	if names := c.ConnectionState().PeerCertificates[0].DNSNames; !slices.Equal(names, []string{"example.com"}) {
		t.Errorf("certificate for %v, want example.com", names)
	}
}

// TestPinnedClient: a client that does not trust our CA is cut off once, and
// from then on talks to its destination as if we were not there. All other
// destinations are intercepted as before.
func TestPinnedClient(t *testing.T) {
	hello := func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "hello") }
	up, roots := secureServer(t, hello)
	other, _ := secureServer(t, hello)
	s := newInterceptingSidecar(t, roots)
	c := s.trusting(t, roots, false) // trusts the server alone
	if _, err := c.Get(up.URL); err == nil {
		t.Fatal("the first call succeeded, want our certificate refused")
	}
	s.awaitHandshake(t, "refused")
	if s.showsOurs(t, c, up.URL) {
		t.Error("the second call was intercepted, want it blind")
	}
	if !s.showsOurs(t, s.trusting(t, s.roots(t), false), other.URL) {
		t.Error("another destination is not intercepted any more")
	}
	s.awaitSeries(t, `wopproxy_interceptions_total{outcome="refused"}`, 1)
}

// TestClientLooksLater: some clients that pin a certificate look at it when the
// handshake is over, and hang up. Several in a row are taken for what they are,
// unless a request has shown that clients do get on with us.
func TestClientLooksLater(t *testing.T) {
	for name, works := range map[string]bool{"pinned": false, "others get on with it": true} {
		t.Run(name, func(t *testing.T) {
			hello := func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "hello") }
			up, roots := secureServer(t, hello)
			other, _ := secureServer(t, hello)
			s := newInterceptingSidecar(t, roots)
			c := s.trusting(t, s.roots(t), false)
			if works && !s.showsOurs(t, c, up.URL) {
				t.Fatal("the first call was not intercepted")
			}
			c.CloseIdleConnections()
			s.awaitSeries(t, "wopproxy_tunnels", 0)
			look := func() *x509.Certificate {
				looks := tls.Client(s.tunnelTo(t, up.Listener.Addr().String()), &tls.Config{ServerName: "example.com", InsecureSkipVerify: true})
				if err := looks.HandshakeContext(t.Context()); err != nil {
					t.Fatal(err)
				}
				looks.Close()
				s.awaitSeries(t, "wopproxy_tunnels", 0)
				return looks.ConnectionState().PeerCertificates[0]
			}
			for n := range maxLeft {
				if cert := look(); cert.Equal(up.Certificate()) {
					t.Errorf("look %d: the server's own certificate, want ours", n)
				}
			}
			if blind := look().Equal(up.Certificate()); blind == works {
				t.Errorf("after %d looks it passes blind: %v, want %v", maxLeft, blind, !works)
			}
			want := map[bool]float64{false: 1, true: 0}[works]
			s.awaitSeries(t, `wopproxy_interceptions_total{outcome="refused"}`, want)
			if !s.showsOurs(t, c, other.URL) {
				t.Error("another destination is not intercepted any more")
			}
		})
	}
}

// TestBlindForADay: a destination is tried again when a day has passed, and what
// is known of destinations is bounded.
func TestBlindForADay(t *testing.T) {
	s := assemble(t, ancestry.NewMemory(), "test.example.com", "http://127.0.0.1:1", func(_ *Options, p *Policy) {
		p.Intercept = func(target string) bool { return target != "private.example.com:443" }
	})
	i := newInterceptor(s.Proxy)
	synctest.Test(t, func(t *testing.T) {
		const target = "example.com:443"
		if i.wants("private.example.com:443") || !i.wants(target) {
			t.Error("what is wanted is not what the policy says")
		}
		i.served(target)
		i.leave(target, "a test", nil)
		time.Sleep(blindFor)
		if i.wants(target) {
			t.Error("intercepted again within the day")
		}
		time.Sleep(time.Nanosecond)
		if !i.wants(target) {
			t.Error("not intercepted after a day")
		}
		for n := range maxKnown + 10 {
			i.leave(fmt.Sprintf("h%d.example.com:443", n), "a test", nil)
		}
		if len(i.known) != maxKnown || i.wants(fmt.Sprintf("h%d.example.com:443", maxKnown+9)) {
			t.Errorf("%d destinations are known, want %d, the last one among them", len(i.known), maxKnown)
		}
	})
}

// TestUnencryptedAlert: OpenSSL, when it refuses a certificate under TLS 1.3, says
// so before it begins to encrypt. That is a refusal as well.
func TestUnencryptedAlert(t *testing.T) {
	up, roots := secureServer(t, func(http.ResponseWriter, *http.Request) {})
	s := newInterceptingSidecar(t, roots)
	addr := up.Listener.Addr().String()
	conn := s.tunnelTo(t, addr)
	_ = tls.Client(deaf{conn}, &tls.Config{ServerName: "example.com"}).Handshake() // says hello
	if _, err := conn.Read(make([]byte, 1)); err != nil {                          // we have answered
		t.Fatal(err)
	}
	conn.Write([]byte("\x15\x03\x03\x00\x02\x02\x30")) // fatal: unknown authority
	s.awaitHandshake(t, "refused")
	eventually(t, "the destination passes blind", func() bool { return !s.intercept.wants(addr) })
}

// TestClientHangsUp: Node hangs up without a word when it refuses a certificate.
// Several in a row are taken for what they are; one request in between shows
// that they were something else.
func TestClientHangsUp(t *testing.T) {
	up, roots := secureServer(t, func(http.ResponseWriter, *http.Request) {})
	s := newInterceptingSidecar(t, roots)
	addr := up.Listener.Addr().String()
	hangUp := func() {
		t.Helper()
		conn := s.tunnelTo(t, addr)
		_ = tls.Client(deaf{conn}, &tls.Config{ServerName: "example.com"}).Handshake()
		conn.(*net.TCPConn).CloseWrite()
		s.awaitSeries(t, "wopproxy_tunnels", 0)
	}
	c := s.trusting(t, s.roots(t), false)
	for range 2 {
		for range maxLeft - 1 {
			hangUp()
		}
		if !s.showsOurs(t, c, up.URL) {
			t.Fatalf("not intercepted any more after %d clients in a row", maxLeft-1)
		}
		c.CloseIdleConnections()
		s.awaitSeries(t, "wopproxy_tunnels", 0)
	}
	for range maxLeft {
		if !s.intercept.wants(addr) {
			t.Error("it passes blind too early")
		}
		hangUp()
	}
	if s.intercept.wants(addr) {
		t.Errorf("still intercepted after %d clients in a row", maxLeft)
	}
	s.awaitSeries(t, `wopproxy_interceptions_total{outcome="refused"}`, 1)
	s.awaitSeries(t, `wopproxy_interceptions_total{outcome="failed"}`, 2*(maxLeft-1)+maxLeft)
}

// showsOurs calls url, which must answer, and reports whether the client was
// shown a certificate that we made.
func (s *sidecar) showsOurs(t *testing.T, c *http.Client, url string) bool {
	t.Helper()
	resp, err := c.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("GET %s = %s, want 200", url, resp.Status)
	}
	return ours(resp.TLS)
}

// TestOtherTLS: a client that speaks TLS which we do not is cut off once. Its
// destination may well understand it, so from then on it passes blind.
func TestOtherTLS(t *testing.T) {
	for name, tt := range map[string]*tls.Config{
		"an old version":   {MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11},
		"another protocol": {NextProtos: []string{"mqtt"}},
	} {
		t.Run(name, func(t *testing.T) {
			up := httptest.NewUnstartedServer(http.NotFoundHandler())
			up.TLS = &tls.Config{MinVersion: tls.VersionTLS10, NextProtos: []string{"mqtt", "http/1.1"}}
			up.Config.ErrorLog = discardLog
			up.StartTLS()
			defer up.Close()
			other, roots := secureServer(t, func(http.ResponseWriter, *http.Request) {})
			s := newInterceptingSidecar(t, roots)
			theirs := tt.Clone()
			theirs.RootCAs, theirs.ServerName = x509.NewCertPool(), "127.0.0.1"
			theirs.RootCAs.AddCert(up.Certificate())
			handshake := func() error {
				c := tls.Client(s.tunnelTo(t, up.Listener.Addr().String()), theirs)
				defer c.Close()
				return c.HandshakeContext(t.Context())
			}
			if handshake() == nil {
				t.Fatal("the first handshake succeeded, want it to meet us")
			}
			s.awaitHandshake(t, "failed")
			if err := handshake(); err != nil {
				t.Errorf("the second handshake: %v, want it blind", err)
			}
			if !s.showsOurs(t, s.trusting(t, s.roots(t), false), other.URL) {
				t.Error("another destination is not intercepted any more")
			}
		})
	}
}

// awaitHandshake waits until the first one with that outcome is counted.
func (s *sidecar) awaitHandshake(t *testing.T, outcome string) {
	t.Helper()
	for deadline := time.Now().Add(5 * time.Second); testutil.ToFloat64(s.metrics.handshakes.WithLabelValues(outcome)) < 1; {
		if time.Now().After(deadline) {
			t.Fatalf("no handshake was counted as %s", outcome)
		}
		time.Sleep(time.Millisecond)
	}
}

// TestHalfAHello: a client that hangs up in the middle of the handshake, before
// or behind its hello, says nothing about our certificate, so nothing changes for
// the next one. Nor does one that sends what is no hello.
func TestHalfAHello(t *testing.T) {
	whole := func(c net.Conn) {
		_ = tls.Client(deaf{c}, &tls.Config{ServerName: "example.com"}).Handshake() // which fails: it hears nothing
	}
	for name, say := range map[string]func(net.Conn){
		"half":  func(c net.Conn) { c.Write([]byte{0x16, 3, 1, 2, 0, 1}) },
		"whole": whole,
		"junk":  func(c net.Conn) { c.Write([]byte("\x16\x03\x01\x00\x04junk")) },
	} {
		t.Run(name, func(t *testing.T) {
			up, roots := secureServer(t, func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "hello") })
			s := newInterceptingSidecar(t, roots)
			conn := s.tunnelTo(t, strings.TrimPrefix(up.URL, "https://"))
			say(conn)
			conn.(*net.TCPConn).CloseWrite()
			s.awaitHandshake(t, "failed")
			if !s.showsOurs(t, s.trusting(t, s.roots(t), false), up.URL) {
				t.Error("the next client is not intercepted any more")
			}
		})
	}
}

// deaf is a connection on which nothing is heard.
type deaf struct{ net.Conn }

func (deaf) Read([]byte) (int, error) { return 0, io.EOF }

// TestHalfAHelloThenSilence: a client that stops in the middle of its hello is
// given up in time, on both sides, and nothing changes for the next one.
func TestHalfAHelloThenSilence(t *testing.T) {
	ca, err := NewCA("test.example.com")
	if err != nil {
		t.Fatal(err)
	}
	s := assemble(t, ancestry.NewMemory(), "test.example.com", "http://127.0.0.1:1", func(o *Options, p *Policy) {
		o.CA = ca
		p.Intercept = func(string) bool { return true }
	})
	const target = "example.com:443"
	synctest.Test(t, func(t *testing.T) {
		near, client := net.Pipe()
		far, upstream := net.Pipe()
		tun := &tunnel{set: &s.tunnels, target: target, client: client, upstream: upstream, dial: s.dialOut, intercept: s.intercept}
		s.tunnels.add(tun)
		began := time.Now()
		go tun.serve(s.Egress(), func(tunnelKind) {}) // ends when it gives up
		if _, err := near.Write([]byte{0x16, 3, 1, 2, 0, 1}); err != nil {
			t.Fatal(err)
		}
		for name, side := range map[string]net.Conn{"client": near, "destination": far} {
			if n, err := side.Read(make([]byte, 1)); n != 0 || err == nil {
				t.Errorf("the %s has read %d bytes, %v, want the end", name, n, err)
			}
		}
		if took := time.Since(began); took != handshakeFor {
			t.Errorf("given up after %v, want %v", took, handshakeFor)
		}
		synctest.Wait()
		if n := s.tunnels.len(); n != 0 {
			t.Errorf("%d tunnels are open, want none", n)
		}
	})
	if got := s.series(t)[`wopproxy_interceptions_total{outcome="failed"}`]; got != 1 {
		t.Errorf("%v handshakes have failed, want 1", got)
	}
	if !s.intercept.wants(target) {
		t.Error("the next client would not be intercepted any more")
	}
}

// TestSilentUpstream: a destination that takes the connection and then says
// nothing to our hello is given up in time, and the host is told.
func TestSilentUpstream(t *testing.T) {
	ca, err := NewCA("test.example.com")
	if err != nil {
		t.Fatal(err)
	}
	s := assemble(t, ancestry.NewMemory(), "test.example.com", "http://127.0.0.1:1", func(o *Options, p *Policy) {
		o.CA = ca
		p.Intercept = func(string) bool { return true }
	})
	synctest.Test(t, func(t *testing.T) {
		if s.o.CA, err = NewCA("test.example.com"); err != nil { // in the time of the bubble
			t.Fatal(err)
		}
		near, client := net.Pipe()
		far, upstream := net.Pipe()
		tun := &tunnel{set: &s.tunnels, target: "example.com:443", client: client, upstream: upstream, dial: s.dialOut, intercept: s.intercept}
		s.tunnels.add(tun)
		go tun.serve(s.Egress(), func(tunnelKind) {}) // ends with near
		go io.Copy(io.Discard, far)                   // ends when it is given up
		c := tls.Client(near, &tls.Config{RootCAs: rootsOf(s.o.CA), ServerName: "example.com"})
		began := time.Now()
		fmt.Fprintf(c, "POST /mcp HTTP/1.1\r\nHost: example.com\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(call), call)
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		checkFailure(t, resp, http.StatusGatewayTimeout, "1")
		if took := time.Since(began); took != dialTimeout {
			t.Errorf("answered after %v, want %v", took, dialTimeout)
		}
		c.Close()
		synctest.Wait()
	})
	if got := s.series(t)[`wopproxy_exchanges_total{direction="egress",outcome="upstream-error",protocol="mcp"}`]; got != 1 {
		t.Errorf("%v exchanges have failed, want 1", got)
	}
}

// authorityPEM makes a CA whose own certificate is as tune has it, and returns it
// with its key as ParseCA reads them.
func authorityPEM(t *testing.T, tune func(*x509.Certificate)) (certPEM, keyPEM []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: "an authority"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	tune(tmpl)
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), privatePEM(t, key)
}

func privatePEM(t *testing.T, key any) []byte {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

// certified starts an HTTPS server whose certificate, signed by ca, is for
// 127.0.0.1 and as tune has it.
func certified(t *testing.T, ca *CA, h http.HandlerFunc, tune func(*x509.Certificate)) *httptest.Server {
	t.Helper()
	tmpl := &x509.Certificate{
		SerialNumber: serial(), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	tune(tmpl)
	der, err := x509.CreateCertificate(rand.Reader, tmpl, ca.cert, ca.leaf.Public(), ca.key)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(h)
	s.EnableHTTP2 = true
	s.Config.ErrorLog = discardLog
	s.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: ca.leaf}}}
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

// rootsOf trusts ca alone.
func rootsOf(ca *CA) *x509.CertPool {
	roots := x509.NewCertPool()
	roots.AddCert(ca.cert)
	return roots
}

// TestUpstreamIsVerified: what the host would refuse, we refuse: whatever is
// wrong with a certificate, nothing is sent to its owner, and the host learns
// why. Calls to other destinations go on.
func TestUpstreamIsVerified(t *testing.T) {
	known, err := NewCA("known.example.com")
	if err != nil {
		t.Fatal(err)
	}
	unknown, err := NewCA("unknown.example.com")
	if err != nil {
		t.Fatal(err)
	}
	rows := []struct {
		name string
		ca   *CA
		tune func(*x509.Certificate)
	}{
		{"unknown issuer", unknown, func(*x509.Certificate) {}},
		{"expired", known, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }},
		{"not valid yet", known, func(c *x509.Certificate) { c.NotBefore = time.Now().Add(time.Minute) }},
		{"another address", known, func(c *x509.Certificate) { c.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 2)} }},
		{"a name for an address", known, func(c *x509.Certificate) { c.IPAddresses, c.DNSNames = nil, []string{"127.0.0.1", "localhost"} }},
		{"not for servers", known, func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} }},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			up := certified(t, row.ca, func(http.ResponseWriter, *http.Request) { t.Error("a request reached a server that nobody trusts") }, row.tune)
			sound := certified(t, known, func(http.ResponseWriter, *http.Request) {}, func(*x509.Certificate) {})
			s := newInterceptingSidecar(t, rootsOf(known))
			if err := s.SetPolicy(Policy{Intercept: func(string) bool { return true }, OriginateTLS: func(string) bool { return true }}); err != nil {
				t.Fatal(err)
			}
			calls := 0.0
			for _, h2 := range []bool{false, true} {
				c := s.trusting(t, s.roots(t), h2)
				for _, url := range []string{up.URL, up.URL, strings.Replace(up.URL, "https:", "http:", 1)} { // again in the same tunnel; originated
					req, _ := http.NewRequest(http.MethodPost, url+"/mcp", strings.NewReader(strings.Replace(call, `"id":1`, `"id":"a<b"`, 1)))
					req.Header.Set("Content-Type", "application/json")
					resp, err := c.Do(req)
					if err != nil {
						t.Fatal(err)
					}
					checkFailure(t, resp, http.StatusBadGateway, `"a<b"`)
					resp.Body.Close()
					calls++
				}
				resp, err := c.Get(up.URL)
				if err != nil {
					t.Fatal(err)
				}
				b, _ := io.ReadAll(resp.Body)
				resp.Body.Close()
				if want := "wopproxy: upstream's certificate could not be verified\n"; resp.StatusCode != http.StatusBadGateway || string(b) != want {
					t.Errorf("GET = %s %q, want 502 %q", resp.Status, b, want)
				}
				s.showsOurs(t, c, sound.URL)
			}
			s.awaitSeries(t, `wopproxy_exchanges_total{direction="egress",outcome="upstream-error",protocol="mcp"}`, calls)
			s.awaitSeries(t, `wopproxy_exchanges_total{direction="egress",outcome="upstream-error",protocol="http"}`, 2)
			s.awaitSeries(t, `wopproxy_exchanges_total{direction="egress",outcome="answered",protocol="http"}`, 2)
		})
	}
}

// TestInterceptedNames: whatever the destination's own certificate is made out
// to, ours is for what the client has asked for, and it is that which the
// destination must prove to be.
func TestInterceptedNames(t *testing.T) {
	theirs, err := NewCA("theirs.example.com")
	if err != nil {
		t.Fatal(err)
	}
	hello := func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "hello") }
	rows := []struct {
		name, connect, sni string // connect: the host in CONNECT
		names              []string
		leaf               string // the name or address that ours is for
		status             int
	}{
		{name: "an address, without SNI", connect: "127.0.0.1", leaf: "127.0.0.1", status: http.StatusOK},
		{name: "a name, without SNI", connect: "localhost", names: []string{"localhost"}, leaf: "localhost", status: http.StatusOK},
		{name: "a wildcard", connect: "127.0.0.1", sni: "a.example.com", names: []string{"*.example.com"}, leaf: "a.example.com", status: http.StatusOK},
		{name: "a wildcard, in capitals", connect: "127.0.0.1", sni: "A.Example.com", names: []string{"*.example.com"}, leaf: "a.example.com", status: http.StatusOK},
		{name: "below a wildcard's names", connect: "127.0.0.1", sni: "a.b.example.com", names: []string{"*.example.com"}, leaf: "a.b.example.com", status: http.StatusBadGateway},
		{name: "above a wildcard's names", connect: "127.0.0.1", sni: "example.com", names: []string{"*.example.com"}, leaf: "example.com", status: http.StatusBadGateway},
		{name: "another name than CONNECT's", connect: "127.0.0.1", sni: "other.example.org", names: []string{"*.example.com"}, leaf: "other.example.org", status: http.StatusBadGateway},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			up := certified(t, theirs, hello, func(c *x509.Certificate) { c.DNSNames = row.names })
			s := newInterceptingSidecar(t, rootsOf(theirs))
			_, port, _ := net.SplitHostPort(up.Listener.Addr().String())
			// Go's client insists on a name where it verifies: we do that for it.
			c := tls.Client(s.tunnelTo(t, net.JoinHostPort(row.connect, port)), &tls.Config{ServerName: row.sni, InsecureSkipVerify: true})
			fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", row.leaf)
			resp, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			if resp.StatusCode != row.status {
				t.Errorf("answer = %s, want %d", resp.Status, row.status)
			}
			leaf := c.ConnectionState().PeerCertificates[0]
			if _, err := leaf.Verify(x509.VerifyOptions{DNSName: row.leaf, Roots: s.roots(t)}); err != nil {
				t.Errorf("our certificate: %v", err)
			}
			if n := len(leaf.DNSNames) + len(leaf.IPAddresses); n != 1 {
				t.Errorf("our certificate is for %v and %v, want one alone", leaf.DNSNames, leaf.IPAddresses)
			}
		})
	}
}

// TestResumption: a client that has been here resumes its session, by which it
// spares both sides most of the handshake, and is intercepted all the same.
func TestResumption(t *testing.T) {
	up, roots := secureServer(t, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.Header.Get("Traceparent")) })
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		t.Run(tls.VersionName(version), func(t *testing.T) {
			s := newInterceptingSidecar(t, roots)
			c := s.trusting(t, s.roots(t), false)
			tr := c.Transport.(*http.Transport)
			tr.DisableKeepAlives = true
			tr.TLSClientConfig.MaxVersion = version
			tr.TLSClientConfig.ClientSessionCache = tls.NewLRUClientSessionCache(1)
			for i := range 3 {
				resp, got := post(t, c, up.URL+"/mcp", call, http.Header{"Run-Id": {"r-1"}})
				if got == "" || !ours(resp.TLS) || resp.TLS.Version != version {
					t.Errorf("connection %d: answer = %s %q, want the call stamped", i, resp.Status, got)
				}
				if resp.TLS.DidResume != (i > 0) {
					t.Errorf("connection %d: resumed = %v", i, resp.TLS.DidResume)
				}
			}
			s.awaitSeries(t, `wopproxy_interceptions_total{outcome="intercepted"}`, 3)
		})
	}
}

// TestCertificateIsKept: who comes again, and resumes nothing, is shown the same
// certificate.
func TestCertificateIsKept(t *testing.T) {
	up, roots := secureServer(t, func(http.ResponseWriter, *http.Request) {})
	s := newInterceptingSidecar(t, roots)
	var first *x509.Certificate
	for range 3 {
		c := s.trusting(t, s.roots(t), false)
		resp, _ := post(t, c, up.URL+"/mcp", call, http.Header{"Run-Id": {"r-1"}})
		shown := resp.TLS.PeerCertificates[0]
		if first == nil {
			first = shown
		}
		if !ours(resp.TLS) || resp.TLS.DidResume || !shown.Equal(first) {
			t.Errorf("shown %v of %v, resumed: %v, want %v again", shown.SerialNumber, shown.Subject, resp.TLS.DidResume, first.SerialNumber)
		}
	}
}

func TestOriginateTLS(t *testing.T) {
	up, roots := secureServer(t, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.Header.Get("Traceparent")) })
	s := newSidecar(t, "test.example.com", "http://127.0.0.1:1", func(o *Options, p *Policy) {
		o.Roots = roots
		p.OriginateTLS = func(string) bool { return true }
	})
	resp, got := post(t, s.client(), strings.Replace(up.URL, "https:", "http:", 1)+"/mcp", call, http.Header{"Run-Id": {"r-1"}})
	if resp.StatusCode != http.StatusOK || got == "" {
		t.Errorf("answer = %d %q, want the call stamped and sent over TLS", resp.StatusCode, got)
	}
}

func TestCA(t *testing.T) {
	ca, err := NewCA("test.example.com")
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca.PEM())
	for _, name := range []string{"example.com", "a.b.example.com", "127.0.0.1", "::1"} {
		c, err := ca.certificate(name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Leaf.Verify(x509.VerifyOptions{DNSName: name, Roots: roots}); err != nil {
			t.Errorf("certificate for %s: %v", name, err)
		}
		if again, _ := ca.certificate(name); again != c {
			t.Errorf("certificate for %s was made twice", name)
		}
		if c.Leaf.PublicKeyAlgorithm != x509.ECDSA || c.Leaf.SignatureAlgorithm != x509.ECDSAWithSHA256 {
			// With RSA a new name costs a hundred times as much.
			t.Errorf("certificate for %s has a key of %v, and is signed by %v", name, c.Leaf.PublicKeyAlgorithm, c.Leaf.SignatureAlgorithm)
		}
		if left := time.Until(c.Leaf.NotAfter); left > leafLifetime || time.Since(c.Leaf.NotBefore) < clockSkew {
			t.Errorf("certificate for %s is valid from %v to %v", name, c.Leaf.NotBefore, c.Leaf.NotAfter)
		}
	}
	for i := range maxIssued {
		if _, err := ca.certificate(fmt.Sprintf("h%d.example.com", i)); err != nil {
			t.Fatal(err)
		}
	}
	if len(ca.names) != maxIssued || ca.used.Len() != maxIssued || ca.names["example.com"] != nil {
		t.Errorf("%d certificates are kept, want the %d used last", len(ca.names), maxIssued)
	}
}

// TestLeafIsRenewed: no client is shown a certificate that is about to expire,
// or one that outlives the authority's own.
func TestLeafIsRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca, err := NewCA("test.example.com")
		if err != nil {
			t.Fatal(err)
		}
		first, err := ca.certificate("example.com")
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(leafLifetime - clockSkew - time.Nanosecond)
		if c, _ := ca.certificate("example.com"); c != first {
			t.Error("a certificate that has more than an hour to go was made anew")
		}
		time.Sleep(time.Nanosecond)
		c, err := ca.certificate("example.com")
		if err != nil || c == first {
			t.Fatalf("an hour before its end the certificate was not renewed: %v", err)
		}
		if _, err := c.Leaf.Verify(x509.VerifyOptions{DNSName: "example.com", Roots: rootsOf(ca)}); err != nil || len(ca.names) != 1 {
			t.Errorf("the new certificate: %v; %d are kept, want the new one alone", err, len(ca.names))
		}

		certPEM, keyPEM := authorityPEM(t, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(2 * time.Hour) })
		short, err := ParseCA(certPEM, keyPEM)
		if err != nil {
			t.Fatal(err)
		}
		if c, err := short.certificate("example.com"); err != nil || !c.Leaf.NotAfter.Equal(short.cert.NotAfter) {
			t.Errorf("certificate of an authority that ends %v: %v, %v, want the same end", short.cert.NotAfter, c, err)
		}
	})
}

func TestParseCA(t *testing.T) {
	ca, err := NewCA("test.example.com")
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := ca.certificate("example.com")
	if err != nil {
		t.Fatal(err)
	}
	leafPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: leaf.Certificate[0]})
	otherPEM, otherKey := authorityPEM(t, func(*x509.Certificate) {})
	expiredPEM, expiredKey := authorityPEM(t, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) })
	futurePEM, futureKey := authorityPEM(t, func(c *x509.Certificate) { c.NotBefore = time.Now().Add(time.Minute) })
	mutePEM, muteKey := authorityPEM(t, func(c *x509.Certificate) { c.KeyUsage = x509.KeyUsageDigitalSignature })
	for name, tt := range map[string]struct {
		cert, key []byte
		says      string // in the error; empty: there is none
	}{
		"its own files":          {ca.PEM(), privatePEM(t, ca.key), ""},
		"an operator's":          {otherPEM, otherKey, ""},
		"another's key":          {ca.PEM(), privatePEM(t, ca.leaf), "private key does not match public key"},
		"not an authority":       {leafPEM, privatePEM(t, ca.leaf), "not one of an authority"},
		"may not sign":           {mutePEM, muteKey, "not one of an authority"},
		"expired":                {expiredPEM, expiredKey, "has expired, on 2"},
		"not valid yet":          {futurePEM, futureKey, "not valid yet, but from 2"},
		"no PEM":                 {[]byte("x"), privatePEM(t, ca.key), "failed to find any PEM data in certificate input"},
		"nothing":                {nil, nil, "failed to find any PEM data in certificate input"},
		"certificate as the key": {ca.PEM(), ca.PEM(), "found a certificate rather than a key"},
		"key as the certificate": {privatePEM(t, ca.key), privatePEM(t, ca.key), "PEM inputs may have been switched"},
	} {
		_, err := ParseCA(tt.cert, tt.key)
		if (err == nil) != (tt.says == "") || err != nil && !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: ParseCA = %v, want %q", name, err, tt.says)
		}
	}
}
