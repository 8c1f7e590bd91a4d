package main

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestHealth asks what is well, what is not, what hangs and what is not there, all
// of it past the proxy that the environment names.
func TestHealth(t *testing.T) {
	release := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/readyz":
			io.WriteString(w, "degraded\n")
		case "/draining":
			http.Error(w, "draining", http.StatusServiceUnavailable)
		case "/elsewhere":
			http.Redirect(w, r, "/readyz", http.StatusFound)
		case "/hangs":
			<-release
		}
	}))
	defer srv.Close()
	defer close(release)
	t.Setenv("HTTP_PROXY", "http://127.0.0.1:1")
	t.Setenv("http_proxy", "http://127.0.0.1:1")
	tests := []struct {
		name, url string
		code      int
		stdout    string
		stderr    string
	}{
		{"well", srv.URL + "/readyz", 0, "degraded\n", ""},
		{"not well", srv.URL + "/draining", 1, "", "503 Service Unavailable draining"},
		{"another place", srv.URL + "/elsewhere", 1, "", "302 Found"},
		{"no answer", srv.URL + "/hangs", 1, "", "deadline exceeded"},
		{"nobody there", "http://127.0.0.1:1/readyz", 1, "", "connection refused"},
		{"no URL", "readyz", 1, "", "ask readyz"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			timeout := "1m"
			if tt.stderr == "deadline exceeded" {
				timeout = "50ms"
			}
			var stdout, stderr bytes.Buffer
			code := run(t.Context(), []string{"health", "-url", tt.url, "-timeout", timeout}, &stdout, &stderr)
			if code != tt.code || stdout.String() != tt.stdout || !strings.Contains(stderr.String(), tt.stderr) {
				t.Errorf("health = %d, %q, %q; want %d, %q, %q", code, &stdout, &stderr, tt.code, tt.stdout, tt.stderr)
			}
		})
	}
}
