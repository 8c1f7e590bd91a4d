package main

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/wopproxy/wopproxy/config"
)

// openConfigured opens a sidecar beside a host that nobody calls, whose file holds
// text, too.
func openConfigured(t *testing.T, text string) *sidecar {
	t.Helper()
	c, err := config.Parse(strings.NewReader(`
host: { id: h.example.com, wellKnownUrl: "https://h.example.com/.well-known/openwop" }
ingress: { listen: "127.0.0.1:0", upstream: "http://127.0.0.1:1" }
ancestry: { store: { bolt: { dir: "` + filepath.Join(t.TempDir(), "store") + `" } } }
drain: { delay: 0s, timeout: 5s }
` + text))
	if err != nil {
		t.Fatal(err)
	}
	l, err := listen(c)
	if err != nil {
		t.Fatal(err)
	}
	s, err := newSidecar(t.Context(), c, l, func(string) (string, bool) { return "", false }, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestHealthListener: who may reach it learns how the proxy is, and no run.
func TestHealthListener(t *testing.T) {
	s := openConfigured(t, `egress: { listen: "127.0.0.1:0" }
admin: { listen: "127.0.0.1:0", health: "127.0.0.1:0" }
`)
	serving := begin(t.Context(), s.run)
	for _, path := range []string{"/livez", "/startupz", "/readyz", "/metrics"} {
		ask(t, http.MethodGet, s.health.Addr().String()+path)
	}
	for _, path := range []string{"/ancestry/v1/runs", "/log/level", "/drain", "/debug/pprof/"} {
		w := httptest.NewRecorder()
		healthHandler(s.metrics, s.ready).ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
		if w.Code != http.StatusNotFound {
			t.Errorf("%s on the health listener = %d, want 404", path, w.Code)
		}
	}
	if err := serving.stop(); err != nil {
		t.Error(err)
	}
}

// TestShareWithHost shows what a host finds, and that it goes on trusting the
// authority after a restart of the proxy.
func TestShareWithHost(t *testing.T) {
	dir, share := t.TempDir(), t.TempDir()
	text := `egress: { listen: "127.0.0.1:0", intercept: [a.example.com],
  ca: { cert: "` + dir + `/ca/ca.pem", key: "` + dir + `/ca/key.pem", create: true, bundle: "` + share + `/bundle.pem" } }
admin: { listen: "127.0.0.1:0" }
`
	var before []byte
	for _, start := range []string{"first", "second"} {
		s := openConfigured(t, text)
		if err := shareWithHost(share, s.started, s.trust); err != nil {
			t.Fatal(err)
		}
		ours := s.trust.ca.PEM()
		if before != nil && !bytes.Equal(ours, before) {
			t.Error("the authority has changed with the restart")
		}
		before = ours
		for name, want := range map[string][]byte{
			"ca.pem": ours, "bundle.pem": ours, "roots.jks": {0xfe, 0xed, 0xfe, 0xed},
			"carry/node.cjs": []byte("AsyncLocalStorage"), "carry/python/sitecustomize.py": []byte("contextvars"),
		} {
			got, err := os.ReadFile(filepath.Join(share, name))
			if err != nil || !bytes.Contains(got, want) {
				t.Errorf("%s start: %s lacks what it is for (%v)", start, name, err)
			}
			if info, err := os.Stat(filepath.Join(share, name)); err != nil || info.Mode().Perm() != 0o644 {
				t.Errorf("%s start: %s: %v, %v, want it readable to the host, which is another user", start, name, info.Mode(), err)
			}
		}
		serving := begin(t.Context(), s.run)
		if err := serving.stop(); err != nil {
			t.Error(err)
		}
	}
	if info, err := os.Stat(dir + "/ca/key.pem"); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the key: %v, %v, want it readable to its owner alone", info.Mode(), err)
	}
}

// TestShareNothingIntercepted: then there are no roots to share.
func TestShareNothingIntercepted(t *testing.T) {
	dir := t.TempDir()
	if err := shareWithHost(dir, config.Default(), trust{}); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 || entries[0].Name() != "carry" {
		t.Errorf("the folder has %v (%v), want the shims alone", entries, err)
	}
}
