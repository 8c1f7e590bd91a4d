package e2e

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// toolCall is a request that must be answered so that a client can tell what it
// belongs to.
const toolCall = `{"jsonrpc":"2.0","id":"call-7","method":"tools/call","params":{"name":"x"}}`

// egressConn is a connection to the egress of s, to say what no client would.
type egressConn struct {
	net.Conn
	r *bufio.Reader
}

func dialEgress(t *testing.T, s *sidecar) *egressConn {
	t.Helper()
	conn, err := net.DialTimeout("tcp", strings.TrimPrefix(s.egress, "http://"), patience)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(2 * patience)); err != nil {
		t.Fatal(err)
	}
	return &egressConn{conn, bufio.NewReader(conn)}
}

// say sends text as it is, and returns the answer to it and its body.
func (c *egressConn) say(t *testing.T, text string) (*http.Response, string) {
	t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
	method, _, _ := strings.Cut(text, " ")
	resp, err := http.ReadResponse(c.r, &http.Request{Method: method})
	if err != nil {
		t.Fatalf("answer to %q: %v", text, err)
	}
	if method == http.MethodConnect && resp.StatusCode == http.StatusOK {
		return resp, "" // the tunnel is what follows
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(body)
}

func connectTo(target string) string {
	return "CONNECT " + target + " HTTP/1.1\r\nHost: " + target + "\r\n\r\n"
}

// postTool calls a tool and returns status, content type and body.
func postTool(t *testing.T, c *http.Client, url string) (status int, typ, body string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(toolCall))
	if err != nil {
		t.Fatal(err)
	}
	req.Header = http.Header{"Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"}}
	resp, err := c.Do(req)
	if err != nil {
		t.Fatalf("POST %s: %v", url, err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, resp.Header.Get("Content-Type"), string(b)
}

// rpcError is the JSON-RPC error that answers toolCall.
func rpcError(status int, message string) string {
	return fmt.Sprintf(`{"error":{"code":%d,"message":"wopproxy: %s"},"id":"call-7","jsonrpc":"2.0"}`, status, message)
}

// others keeps calls of other clients going, through the same proxy, until it is
// told to stop, and fails t if one of them is not answered as ever.
func others(t *testing.T, s *sidecar) (stop func()) {
	t.Helper()
	tools := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":"call-7","result":{}}`)
	}))
	t.Cleanup(tools.Close)
	c, quit, done := s.client(t), make(chan struct{}), make(chan int)
	go func() { // ends when told to
		n := 0
		for {
			resp, err := c.Post(tools.URL, "application/json", strings.NewReader(toolCall))
			if err != nil {
				t.Errorf("other traffic: %v", err)
				done <- n
				return
			}
			body, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if err != nil || resp.StatusCode != http.StatusOK || !strings.Contains(string(body), `"result"`) {
				t.Errorf("other traffic: status %d %s, %v", resp.StatusCode, body, err)
			}
			n++
			select {
			case <-quit:
				done <- n
				return
			default:
			}
		}
	}()
	return func() {
		t.Helper()
		close(quit)
		if n := <-done; n == 0 {
			t.Error("there was no other traffic")
		}
	}
}

// refusing is an address on which nobody listens: the client's side of a
// connection, on which nobody can begin to while that is open.
func refusing(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	conn, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn.LocalAddr().String()
}

// TestConnectToNowhere: the target of a tunnel refuses the connection, or its
// name leads nowhere.
func TestConnectToNowhere(t *testing.T) {
	// With Go's own resolver, names that DNS can't have are looked up nowhere.
	s := start(t, "agent.example.com", "http://127.0.0.1:1", settings{"env": []string{"GODEBUG=netdns=go"}})
	defer others(t, s)()
	targets := []string{refusing(t), strings.Repeat("x", 64) + ".example.com:80"}
	for _, nowhere := range targets {
		resp, body := dialEgress(t, s).say(t, connectTo(nowhere))
		if resp.StatusCode != http.StatusBadGateway || body != "wopproxy: upstream could not be reached\n" {
			t.Errorf("CONNECT %s: %d %q, want 502", nowhere, resp.StatusCode, body)
		}
		status, typ, body := postTool(t, s.client(t), "http://"+nowhere+"/mcp")
		if want := rpcError(502, "upstream could not be reached"); status != 502 || typ != "application/json" || body != want {
			t.Errorf("a call to %s: %d %s %s, want 502 %s", nowhere, status, typ, body, want)
		}
	}
	for _, protocol := range []string{"http", "mcp"} {
		s.awaitMetric(t, float64(len(targets)), "wopproxy_exchanges_total", `direction="egress"`, `outcome="upstream-error"`, fmt.Sprintf("protocol=%q", protocol))
	}
	s.awaitMetric(t, 0, "wopproxy_tunnels")
}

// TestHalfAHello: a client begins to speak TLS to a destination whose TLS is
// opened, and goes away. That says nothing of the certificate: the next client
// is served as ever.
func TestHalfAHello(t *testing.T) {
	peer := newTLSPeer(t)
	dir := t.TempDir()
	roots, bundle := filepath.Join(dir, "roots.pem"), filepath.Join(dir, "bundle.pem")
	write(t, roots, peer.certPEM())
	target := strings.TrimPrefix(peer.URL, "https://")
	s := start(t, "agent.example.com", "http://127.0.0.1:1", settings{
		"egress.intercept": []string{target}, "egress.ca.bundle": bundle, "egress.roots": roots,
	})
	defer others(t, s)()
	for _, half := range []string{
		"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03half of it", // a record of 512 bytes announced
		"\x16\x03\x01\x00\x05\x01\xff\xff\xff\xff",               // a message that is longer than any
		"\x16\x03\x01\x00\x04junk",
	} {
		c := dialEgress(t, s)
		if resp, _ := c.say(t, connectTo(target)); resp.StatusCode != http.StatusOK {
			t.Fatalf("CONNECT: %d, want 200", resp.StatusCode)
		}
		if _, err := io.WriteString(c, half); err != nil {
			t.Fatal(err)
		}
		_ = c.Conn.(*net.TCPConn).CloseWrite()
		if rest, _ := io.ReadAll(c.r); strings.Contains(string(rest), "HTTP/") { // an alert, or nothing
			t.Errorf("answer to %q: %q, want no HTTP", half, rest)
		}
	}
	s.awaitMetric(t, 3, "wopproxy_interceptions_total", `outcome="failed"`)
	s.awaitMetric(t, 0, "wopproxy_interceptions_total", `outcome="refused"`)
	c := s.client(t)
	c.Transport.(*http.Transport).TLSClientConfig = &tls.Config{RootCAs: pool(t, bundle, peer.certPEM())}
	if got := callTLS(t, c, peer.URL); !strings.Contains(got, `"_meta":{"traceparent":`) {
		t.Errorf("after half a hello: the server saw %s, want the call stamped", got)
	}
	s.awaitMetric(t, 1, "wopproxy_interceptions_total", `outcome="intercepted"`)
	c.CloseIdleConnections()
	s.awaitMetric(t, 0, "wopproxy_tunnels")
}

// expired makes a certificate for 127.0.0.1 whose time is over, by an authority
// that is trusted.
func expired(t *testing.T) (leaf tls.Certificate, root string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "Test Root"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	ca, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(2), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: time.Now().Add(-time.Hour),
	}, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	root = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca}))
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, root
}

// TestExpiredUpstream: the certificate of a destination whose TLS is opened has
// expired. The host, which is shown a certificate of ours, learns it from the
// answer; nothing is sent to the destination.
func TestExpiredUpstream(t *testing.T) {
	leaf, root := expired(t)
	reached := make(chan struct{}, 10)
	peer := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached <- struct{}{} }))
	peer.TLS = &tls.Config{Certificates: []tls.Certificate{leaf}}
	peer.Config.ErrorLog = log.New(io.Discard, "", 0)
	peer.StartTLS()
	t.Cleanup(peer.Close)
	dir := t.TempDir()
	roots, bundle := filepath.Join(dir, "roots.pem"), filepath.Join(dir, "bundle.pem")
	write(t, roots, root)
	target := strings.TrimPrefix(peer.URL, "https://")
	s := start(t, "agent.example.com", "http://127.0.0.1:1", settings{
		"egress.intercept": []string{target}, "egress.ca.bundle": bundle, "egress.roots": roots,
		"egress.originateTLS": []string{target},
	})
	defer others(t, s)()
	c := s.client(t)
	c.Transport.(*http.Transport).TLSClientConfig = &tls.Config{RootCAs: pool(t, bundle, root)}
	for _, scheme := range []string{"https://", "http://"} { // intercepted, originated
		status, typ, body := postTool(t, c, scheme+target+"/mcp")
		if want := rpcError(502, "upstream's certificate could not be verified"); status != 502 || typ != "application/json" || body != want {
			t.Errorf("%s: %d %s %s, want 502 %s", scheme, status, typ, body, want)
		}
	}
	if len(reached) > 0 {
		t.Error("the expired server was sent a request")
	}
	s.awaitMetric(t, 2, "wopproxy_exchanges_total", `direction="egress"`, `outcome="upstream-error"`, `protocol="mcp"`)
	if line := s.awaitLog(t, "next hop failed"); !strings.Contains(fmt.Sprint(line["err"]), "certificate has expired") {
		t.Errorf("the log says %v, want that the certificate has expired", line)
	}
}

// TestClientTrustsNoCA: a client of an opened destination does not take our
// certificate. It is cut off once, and that destination passes blind from then
// on; the others stay open.
func TestClientTrustsNoCA(t *testing.T) {
	peer, other := newTLSPeer(t), newTLSPeer(t)
	dir := t.TempDir()
	roots, bundle := filepath.Join(dir, "roots.pem"), filepath.Join(dir, "bundle.pem")
	write(t, roots, peer.certPEM())
	s := start(t, "agent.example.com", "http://127.0.0.1:1", settings{
		"egress.intercept": []string{strings.TrimPrefix(peer.URL, "https://"), strings.TrimPrefix(other.URL, "https://")},
		"egress.ca.bundle": bundle, "egress.roots": roots,
	})
	defer others(t, s)()
	none, own, both := s.client(t), s.client(t), s.client(t)
	none.Transport.(*http.Transport).TLSClientConfig = &tls.Config{RootCAs: x509.NewCertPool()}
	certs := x509.NewCertPool()
	certs.AddCert(peer.Certificate())
	own.Transport.(*http.Transport).TLSClientConfig = &tls.Config{RootCAs: certs}
	both.Transport.(*http.Transport).TLSClientConfig = &tls.Config{RootCAs: pool(t, bundle, peer.certPEM())}
	if _, err := none.Get(peer.URL); err == nil {
		t.Error("a client that trusts nobody was answered")
	}
	s.awaitMetric(t, 1, "wopproxy_interceptions_total", `outcome="refused"`)
	for name, c := range map[string]*http.Client{"the server's own certificate": own, "ours as well": both} {
		if got := callTLS(t, c, peer.URL); strings.Contains(got, "traceparent") {
			t.Errorf("a client that takes %s: the server saw %s, want the call as it was", name, got)
		}
	}
	s.awaitMetric(t, 0, "wopproxy_interceptions_total", `outcome="intercepted"`)
	if got := callTLS(t, both, other.URL); !strings.Contains(got, `"_meta":{"traceparent":`) {
		t.Errorf("another destination: the server saw %s, want the call stamped", got)
	}
	s.awaitMetric(t, 1, "wopproxy_interceptions_total", `outcome="intercepted"`)
}

// TestCAThatCannotSign: files from which no certificate could come that a host
// takes keep the program from starting.
func TestCAThatCannotSign(t *testing.T) {
	leaf, root := expired(t)
	other, _ := expired(t)
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		write(t, path, text)
		return path
	}
	key := func(name string, c tls.Certificate) string {
		der, err := x509.MarshalPKCS8PrivateKey(c.PrivateKey)
		if err != nil {
			t.Fatal(err)
		}
		return file(name, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})))
	}
	rootFile, keyFile := file("root.pem", root), key("key.pem", leaf) // the root has signed with the same key
	leafFile := file("leaf.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: leaf.Certificate[0]})))
	for name, tt := range map[string]struct{ cert, key, says string }{
		"another's key":    {rootFile, key("other.pem", other), "private key does not match public key"},
		"not an authority": {leafFile, keyFile, "the certificate is not one of an authority"},
		"no file":          {rootFile, filepath.Join(dir, "absent.pem"), "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			refuses(t, "serve", plainSettings(t, settings{
				"egress.intercept": []string{"*.example.com"}, "egress.ca.cert": tt.cert, "egress.ca.key": tt.key,
			}), "egress.ca: ", tt.says)
		})
	}
}

// TestProxyCredentials: a credential names its run even when that has ended,
// since work that it left behind is still its own. One with a wrong secret names
// nobody, and the call passes all the same.
func TestProxyCredentials(t *testing.T) {
	tools := newToolServer(t, "tools.example.com", stateless)
	a := newAgent(t, "agent.example.com", settings{
		"attribution.singleFlight": false, "egress.credentials.secret.env": "EGRESS_SECRET", "env": []string{"EGRESS_SECRET=s3cret"},
	})
	run := a.chat(t, nothing)
	if live := a.live(t); len(live) != 0 {
		t.Fatalf("%v is live, want the run over", live)
	}
	call := func(user, password string) {
		t.Helper()
		status, _, body := postTool(t, a.client(t, user, password), tools.ingress+"/mcp")
		if status != http.StatusOK {
			t.Errorf("call of %s: status %d %s, want 200", user, status, body)
		}
	}
	for _, wrong := range []string{"", "S3cret", "s3cret "} {
		call(run, wrong)
	}
	call("not a run id", "s3cret")
	if got := a.metric(t, "wopproxy_attributions_total"); got != 0 {
		t.Errorf("calls attributed by a wrong credential: %v, want 0", got)
	}
	a.awaitMetric(t, 4, "wopproxy_abstentions_total", `reason="single-flight-off"`)
	call(run, "s3cret")
	a.awaitMetric(t, 1, "wopproxy_attributions_total", `evidence="proxy-credential"`)
	if children := a.children(t, run); len(children) != 1 || children[0].Evidence != "proxy-credential" {
		t.Errorf("children of %s: %+v, want the one call", run, children)
	}
}

// nothing is the work of a run that ends at once.
func nothing(context.Context, *http.Request) error { return nil }

// TestGarbageForTheEgress: what is no request for a forward proxy is answered as
// a gateway answers, never as a server that knows no such resource.
func TestGarbageForTheEgress(t *testing.T) {
	s := start(t, "agent.example.com", "http://127.0.0.1:1")
	defer others(t, s)()
	const says = "this is a forward proxy: use it as HTTP_PROXY, or put /_run/<runId>/ in front of an absolute URL"
	paths := []string{
		"/mcp", "/_run/", "/_run/r1", "/_run/r1/", "/_run/r1/mcp", "/_run/r1/ftp://example.com/", "/_run/r1/http:", "/_run/r1/http:///x",
		"/_run//http://example.com/", "/_run/%00/http://example.com/", "/_run/" + strings.Repeat("r", 5000) + "/http://example.com/",
		"/_run/r1/http://[::1/", "/_run/r1/http://example.com:port/",
	}
	for _, path := range paths {
		status, typ, body := postTool(t, direct, s.egress+path)
		decoded := decode[struct {
			ID    string
			Error struct {
				Code    int
				Message string
			}
		}](t, []byte(body))
		if status != 502 || typ != "application/json" || decoded.ID != "call-7" || decoded.Error.Code != 502 || decoded.Error.Message != "wopproxy: "+says {
			t.Errorf("POST %s: %d %s %s, want 502 and a JSON-RPC error", path, status, typ, body)
		}
	}
	if status, body := get(t, s.egress+"/_run/r1"); status != 502 || string(body) != "wopproxy: "+says+"\n" {
		t.Errorf("GET: %d %s, want 502", status, body)
	}
	s.awaitMetric(t, float64(len(paths)), "wopproxy_exchanges_total", `direction="egress"`, `outcome="refused"`, `protocol="mcp"`)
	s.awaitMetric(t, 1, "wopproxy_exchanges_total", `direction="egress"`, `outcome="refused"`, `protocol="http"`)
}
