package e2e

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestTLS runs the program as an operator does who wants the TLS of one
// destination opened: the host trusts the bundle that the program writes, the
// program trusts a root of its own, and every other destination stays private.
func TestTLS(t *testing.T) {
	opened, private := newTLSPeer(t), newTLSPeer(t)
	dir := t.TempDir()
	roots, bundle := filepath.Join(dir, "roots.pem"), filepath.Join(dir, "out", "bundle.pem")
	write(t, roots, opened.certPEM())
	target, err := url.Parse(opened.URL)
	if err != nil {
		t.Fatal(err)
	}
	s := start(t, "agent.example.com", "http://127.0.0.1:1", settings{
		"egress.intercept": []string{target.Host}, "egress.ca.bundle": bundle, "egress.roots": roots,
	})
	c := s.client(t)
	c.Transport.(*http.Transport).TLSClientConfig = &tls.Config{RootCAs: pool(t, bundle, private.certPEM())}

	if got := callTLS(t, c, opened.URL); !strings.Contains(got, `"_meta":{"traceparent":`) {
		t.Errorf("opened: the server saw %s, want the call stamped", got)
	}
	if got := callTLS(t, c, private.URL); strings.Contains(got, "traceparent") {
		t.Errorf("private: the server saw %s, want the call as it was", got)
	}
	s.awaitMetric(t, 1, "wopproxy_interceptions_total", `outcome="intercepted"`)
	s.awaitMetric(t, 2, "wopproxy_tunnels_total", `kind="tls"`)
	s.sawCalls(t, 1, "egress", "mcp")
}

// tlsPeer is an HTTPS server that answers with what it was sent.
type tlsPeer struct{ *httptest.Server }

func newTLSPeer(t *testing.T) tlsPeer {
	t.Helper()
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.Copy(w, r.Body)
	}))
	t.Cleanup(s.Close)
	return tlsPeer{s}
}

func (p tlsPeer) certPEM() string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: p.Certificate().Raw}))
}

// pool trusts what is in a file, and one certificate more.
func pool(t *testing.T, file, more string) *x509.CertPool {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	p := x509.NewCertPool()
	if !p.AppendCertsFromPEM(text) || !p.AppendCertsFromPEM([]byte(more)) {
		t.Fatalf("%s holds no certificate", file)
	}
	return p
}

func callTLS(t *testing.T, c *http.Client, url string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/mcp",
		strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x"}}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header = http.Header{"Content-Type": {"application/json"}, "Run-Id": {"run-of-the-host"}}
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}
