package webhook_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/wopproxy/wopproxy/deploy/inject"
	"github.com/wopproxy/wopproxy/deploy/webhook"
)

const podReview = `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u-1","object":{
  "apiVersion":"v1","kind":"Pod","metadata":{"name":"agent"},"spec":{"containers":[{"name":"agent","ports":[{"name":"http","containerPort":8080}]}]}}}}`

// TestHandler pins what becomes of each request, and how it is counted.
func TestHandler(t *testing.T) {
	reg := prometheus.NewRegistry()
	h := webhook.Handler(webhook.Options{Inject: inject.Options{Image: "w:1"}, Registerer: reg, Logger: slog.New(slog.DiscardHandler)})
	for _, tt := range []struct {
		name, media, body string
		code              int
		says, outcome     string
	}{
		{"a pod", "application/json", podReview, 200, `"patchType":"JSONPatch"`, "injected"},
		{"a pod with the media type's parameter", "application/json; charset=utf-8", podReview, 200, `"allowed":true`, "injected"},
		{"a pod that wants none", "application/json", strings.Replace(podReview, `"name":"agent"`, `"name":"agent","labels":{"wopproxy.dev/inject":"false"}`, 1), 200, `"allowed":true`, "unchanged"},
		{"a pod that can't have one", "application/json", strings.Replace(podReview, `"spec":{`, `"spec":{"hostNetwork":true,`, 1), 200, `"warnings":["wopproxy: no sidecar: it has hostNetwork`, "refused"},
		{"no review", "application/json", `{}`, 400, "not an AdmissionReview", "invalid"},
		{"no JSON", "application/json", `{`, 400, "not an AdmissionReview", "invalid"},
		{"a form", "application/x-www-form-urlencoded", podReview, 415, "want application/json", "invalid"},
		{"3 MiB", "application/json", podReview + strings.Repeat(" ", 3<<20-len(podReview)), 200, `"allowed":true`, "injected"},
		{"a byte more", "application/json", podReview + strings.Repeat(" ", 3<<20-len(podReview)+1), 413, "larger than 3 MiB", "too_large"},
	} {
		before := metric(t, reg, "wopproxy_webhook_reviews_total", tt.outcome)
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, webhook.Path, strings.NewReader(tt.body))
		r.Header.Set("Content-Type", tt.media)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != tt.code || !strings.Contains(w.Body.String(), tt.says) {
			t.Errorf("%s: %d %.300s, want %d and %s", tt.name, w.Code, w.Body, tt.code, tt.says)
		}
		if n := metric(t, reg, "wopproxy_webhook_reviews_total", tt.outcome) - before; n != 1 {
			t.Errorf("%s: counted %v times as %s, want once", tt.name, n, tt.outcome)
		}
	}
	for _, other := range []struct{ method, path string }{{http.MethodGet, webhook.Path}, {http.MethodPost, "/"}} {
		w := httptest.NewRecorder()
		if h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), other.method, other.path, nil)); w.Code < 400 {
			t.Errorf("%s %s = %d", other.method, other.path, w.Code)
		}
	}
}

// TestInTLS has a client that trusts the published bundle ask over the network, as an
// API server does.
func TestInTLS(t *testing.T) {
	c := newCluster(t)
	k := startKeeper(t, c.api(t))
	for deadline := time.Now().Add(time.Minute); !k.Ready(); {
		if time.Now().After(deadline) {
			t.Fatal("there is no certificate after a minute")
		}
		<-time.After(time.Millisecond)
	}
	srv := httptest.NewUnstartedServer(webhook.Handler(webhook.Options{Inject: inject.Options{Image: "w:1"}, Registerer: k.reg, Logger: slog.New(slog.DiscardHandler)}))
	srv.TLS = &tls.Config{GetCertificate: k.Certificate}
	srv.StartTLS()
	defer srv.Close()
	_, bundle := c.state()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(bundle)
	for name, believed := range map[string]bool{"wop-injector.wop.svc": true, "other.wop.svc": false} {
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: name}, DisableKeepAlives: true}}
		resp, err := client.Post(srv.URL+webhook.Path, "application/json", strings.NewReader(podReview))
		if (err == nil) != believed {
			t.Errorf("asked as %s: %v, want it believed = %v", name, err, believed)
		}
		if err == nil {
			resp.Body.Close()
		}
	}
}

// writePair writes a certificate of its own for a name, and its key, as of a time.
func writePair(t *testing.T, dir, name string, at time.Time) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{name}, NotAfter: at.Add(24 * time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{"tls.crt": {Type: "CERTIFICATE", Bytes: der}, "tls.key": {Type: "PRIVATE KEY", Bytes: private}} {
		path := filepath.Join(dir, file)
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, at, at); err != nil {
			t.Fatal(err)
		}
	}
}

// TestFiles: a certificate that somebody else renews is shown from then on, and one
// that can't be read changes nothing.
func TestFiles(t *testing.T) {
	dir := t.TempDir()
	crt, key := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	log := new(strings.Builder)
	logger := slog.New(slog.NewTextHandler(log, nil))
	reg := prometheus.NewRegistry()
	if _, err := webhook.OpenFiles(crt, key, reg, logger); err == nil {
		t.Error("files that are not there are opened")
	}
	began := time.Now().Add(-time.Hour)
	writePair(t, dir, "first", began)
	f, err := webhook.OpenFiles(crt, key, reg, logger)
	if err != nil {
		t.Fatal(err)
	}
	shown := func() string {
		c, err := f.Certificate(&tls.ClientHelloInfo{})
		if err != nil {
			t.Fatal(err)
		}
		if got := metric(t, reg, "wopproxy_webhook_certificate_expiry_timestamp_seconds", ""); int64(got) != c.Leaf.NotAfter.Unix() {
			t.Errorf("expiry = %v, want that of what is shown, %d", got, c.Leaf.NotAfter.Unix())
		}
		return c.Leaf.DNSNames[0]
	}
	if got := shown(); got != "first" {
		t.Errorf("shown is %q, want the first", got)
	}
	writePair(t, dir, "second", began.Add(time.Minute))
	if got := shown(); got != "second" || log.Len() > 0 {
		t.Errorf("shown is %q, want the second; log: %s", got, log)
	}
	if err := os.WriteFile(key, []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := shown(); got != "second" || !strings.Contains(log.String(), "the last one stays") {
		t.Errorf("shown is %q, want the second as long as there is none; log: %s", got, log)
	}
	writePair(t, dir, "third", began.Add(2*time.Minute))
	if got := shown(); got != "third" {
		t.Errorf("shown is %q, want the third", got)
	}
}
