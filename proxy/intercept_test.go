package proxy

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
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
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

// secureServer is an HTTPS server that wopproxy trusts and the host need not.
func secureServer(t *testing.T, h http.HandlerFunc) (*httptest.Server, *x509.CertPool) {
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

func newInterceptingSidecar(t *testing.T, roots *x509.CertPool) *sidecar {
	t.Helper()
	ca, err := NewCA("test.example.com")
	if err != nil {
		t.Fatal(err)
	}
	return newSidecar(t, "test.example.com", "http://127.0.0.1:1", func(o *Options, p *Policy) {
		o.CA, o.Roots = ca, roots
		p.Intercept = func(string) bool { return true }
	})
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
func (s *sidecar) roots(t *testing.T) *x509.CertPool {
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
// from then on talks to its destination as if we were not there.
func TestPinnedClient(t *testing.T) {
	up, roots := secureServer(t, func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "hello") })
	s := newInterceptingSidecar(t, roots)
	c := s.trusting(t, roots, false) // trusts the server alone
	if _, err := c.Get(up.URL); err == nil {
		t.Fatal("the first call succeeded, want our certificate refused")
	}
	s.awaitHandshake(t, "refused")
	resp, err := c.Get(up.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if ours(resp.TLS) {
		t.Error("the second call was intercepted, want it blind")
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

// TestHalfAHello: a client that hangs up in the middle of the handshake says
// nothing about our certificate, so nothing changes for the next one.
func TestHalfAHello(t *testing.T) {
	up, roots := secureServer(t, func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "hello") })
	s := newInterceptingSidecar(t, roots)
	conn := s.tunnelTo(t, strings.TrimPrefix(up.URL, "https://"))
	conn.Write([]byte{0x16, 3, 1, 2, 0, 1})
	conn.(*net.TCPConn).CloseWrite()
	s.awaitHandshake(t, "failed")
	resp, err := s.trusting(t, s.roots(t), false).Get(up.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if !ours(resp.TLS) {
		t.Error("the next client is not intercepted any more")
	}
}

// TestUpstreamIsVerified: what the host would refuse, we refuse.
func TestUpstreamIsVerified(t *testing.T) {
	up, _ := secureServer(t, func(http.ResponseWriter, *http.Request) { t.Error("a request reached a server that nobody trusts") })
	s := newInterceptingSidecar(t, x509.NewCertPool())
	resp, err := s.trusting(t, s.roots(t), false).Get(up.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusBadGateway {
		t.Errorf("status = %d, want 502", resp.StatusCode)
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

func TestParseCA(t *testing.T) {
	ca, err := NewCA("test.example.com")
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := ca.certificate("example.com")
	if err != nil {
		t.Fatal(err)
	}
	keyPEM := func(key any) []byte {
		der, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			t.Fatal(err)
		}
		return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
	}
	leafPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: leaf.Certificate[0]})
	for name, tt := range map[string]struct {
		cert, key []byte
		ok        bool
	}{
		"its own files":          {ca.PEM(), keyPEM(ca.key), true},
		"another's key":          {ca.PEM(), keyPEM(ca.leaf), false},
		"not an authority":       {leafPEM, keyPEM(ca.leaf), false},
		"no PEM":                 {[]byte("x"), keyPEM(ca.key), false},
		"nothing":                {nil, nil, false},
		"certificate as the key": {ca.PEM(), ca.PEM(), false},
	} {
		if _, err := ParseCA(tt.cert, tt.key); (err == nil) != tt.ok {
			t.Errorf("%s: ParseCA = %v, want ok %v", name, err, tt.ok)
		}
	}
}
