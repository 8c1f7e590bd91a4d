package e2e

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

const (
	reloaded    = "configuration reloaded"
	notReloaded = "configuration not reloaded; the old one stays in force"
)

// startsAt reports whether a run begins with a POST to the path, as the host
// sees it.
func startsAt(t *testing.T, s *sidecar, path string) bool {
	t.Helper()
	resp, err := direct.Post(s.ingress+path, "text/plain", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	return resp.Header.Get("Seen-Run") != ""
}

// TestReloadFile changes the configuration under a running program: a good file
// takes effect, a bad one changes nothing and is reported, and the next good one
// takes effect again.
func TestReloadFile(t *testing.T) {
	s := start(t, "host.example.com", idleHost(t))
	good, err := os.ReadFile(s.file)
	if err != nil {
		t.Fatal(err)
	}
	if startsAt(t, s, "/ask") || !startsAt(t, s, "/chat") {
		t.Fatal("before any change: a run begins with /ask, or none with /chat")
	}
	success := s.metric(t, "wopproxy_config_last_reload_success_timestamp_seconds")

	write(t, s.file, strings.ReplaceAll(string(good), "POST /chat", "POST /ask"))
	s.awaitLog(t, reloaded)
	if !startsAt(t, s, "/ask") || startsAt(t, s, "/chat") {
		t.Error("after the change: no run begins with /ask, or one with /chat")
	}
	if got := s.metric(t, "wopproxy_config_last_reload_success_timestamp_seconds"); got <= success {
		t.Errorf("wopproxy_config_last_reload_success_timestamp_seconds = %v, want more than %v", got, success)
	}

	write(t, s.file, strings.ReplaceAll(string(good), "POST /chat", "POST chat"))
	line := s.awaitLog(t, notReloaded)
	if text, _ := line["err"].(string); !strings.Contains(text, "runs.start[0]: ") {
		t.Errorf("log line = %v, want it to name runs.start[0]", line)
	}
	if got := s.metric(t, "wopproxy_config_last_reload_successful"); got != 0 {
		t.Errorf("wopproxy_config_last_reload_successful = %v, want 0", got)
	}
	if !startsAt(t, s, "/ask") || startsAt(t, s, "/chat") {
		t.Error("after the bad file: the configuration before it is no longer in force")
	}
	if code, _ := get(t, s.admin+"/readyz"); code != http.StatusOK {
		t.Errorf("readyz after the bad file = %d, want 200", code)
	}

	write(t, s.file, string(good))
	s.awaitLogAfter(t, 1, reloaded)
	if got := s.metric(t, "wopproxy_config_last_reload_successful"); got != 1 {
		t.Errorf("wopproxy_config_last_reload_successful = %v, want 1", got)
	}
	if !startsAt(t, s, "/chat") {
		t.Error("after the good file: no run begins with /chat")
	}
}

// TestReloadMount changes a file the way Kubernetes changes a mounted ConfigMap:
// the file is a link into a folder that is itself a link, and only that moves.
func TestReloadMount(t *testing.T) {
	s := start(t, "host.example.com", idleHost(t))
	good, err := os.ReadFile(s.file)
	if err != nil {
		t.Fatal(err)
	}
	s.stop(t)

	mount := t.TempDir()
	for version, start := range map[string]string{"..v1": "POST /chat", "..v2": "POST /ask"} {
		if err := os.Mkdir(filepath.Join(mount, version), 0o700); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(mount, version, "wopproxy.yaml"), strings.ReplaceAll(string(good), "POST /chat", start))
	}
	relink := func(to, name string) {
		t.Helper()
		next := filepath.Join(mount, "..next")
		if err := os.Symlink(to, next); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(next, filepath.Join(mount, name)); err != nil {
			t.Fatal(err)
		}
	}
	relink("..v1", "..data")
	relink("..data/wopproxy.yaml", "wopproxy.yaml")
	s.serve(t, nil, filepath.Join(mount, "wopproxy.yaml"))
	if startsAt(t, s, "/ask") {
		t.Fatal("before the change: a run begins with /ask")
	}
	relink("..v2", "..data")
	s.awaitLog(t, reloaded)
	if !startsAt(t, s, "/ask") {
		t.Error("after the change: no run begins with /ask")
	}
}

// TestReloadSignal rotates a secret, which no watched file shows, and says so by
// SIGHUP.
func TestReloadSignal(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	write(t, secret, "old\n")
	far := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":1,"result":{}}`)
	}))
	defer far.Close()
	a := newAgent(t, "agent.example.com", settings{"attribution.singleFlight": false, "egress.credentials.secret.file": secret})
	attributed := func() float64 { return a.metric(t, "wopproxy_attributions_total", `evidence="proxy-credential"`) }
	call := func() {
		a.chat(t, func(ctx context.Context, in *http.Request) error {
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, far.URL+"/mcp", strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x"}}`))
			if err != nil {
				return err
			}
			req.Header = http.Header{"Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"}}
			resp, err := a.client(t, in.Header.Get("Run-Id"), "new").Do(req)
			if err != nil {
				return err
			}
			return resp.Body.Close()
		})
	}
	if call(); attributed() != 0 {
		t.Fatal("a secret that is not the configured one has made a user name evidence")
	}
	write(t, secret, "new\n")
	a.signal(t, syscall.SIGHUP)
	a.awaitLog(t, reloaded)
	if call(); attributed() != 1 {
		t.Errorf("calls attributed by the new secret = %v, want 1", attributed())
	}
}

// TestReloadAtOnce pins that SIGHUP never ends the program, not even as its
// first word after it serves.
func TestReloadAtOnce(t *testing.T) {
	s := start(t, "host.example.com", idleHost(t))
	s.stop(t)
	for range 5 {
		p := execute(t, "serve", "-config", s.file)
		p.awaitLog(t, "serving")
		p.signal(t, syscall.SIGHUP)
		p.awaitLog(t, reloaded)
		p.signal(t, syscall.SIGTERM)
		if code := p.wait(t); code != 0 {
			t.Errorf("exit code = %d, want 0", code)
		}
	}
}

// TestReloadTells pins that a change which takes a restart is not passed off as
// one that has been made.
func TestReloadTells(t *testing.T) {
	for _, tt := range []struct {
		key string
		new any
	}{
		{"host.id", "other.example.com"},
		{"host.wellKnownUrl", "https://other.example.com/.well-known/openwop"},
		{"ingress.upstream", "http://127.0.0.1:2"},
		{"ingress.listen", "127.0.0.1:3"},
		{"ancestry.store.bolt.dir", "/nonexistent"},
		{"ancestry.auth.mode", "host"},
		{"ancestry.retention.age", "48h"},
		{"runs.ttl", "2h"},
		{"attribution.singleFlight", false},
		{"attribution.quarantine", "2s"},
		{"tracing.otlp.endpoint", "http://127.0.0.1:1"},
		{"limits.liveRuns", 1000},
		{"limits.tunnels", 1000},
	} {
		t.Run(tt.key, func(t *testing.T) {
			t.Parallel()
			base := plainSettings(t, settings{"ancestry.auth.mode": "none"})
			s := &sidecar{file: filepath.Join(t.TempDir(), "wopproxy.yaml")}
			s.configure(t, base)
			p := execute(t, "serve", "-config", s.file)
			p.awaitLog(t, "serving")
			base[tt.key] = tt.new
			s.configure(t, base)
			line := p.awaitLog(t, "configuration reloaded; some changes take a restart")
			if line["keys"] != tt.key {
				t.Errorf("keys = %v, want %s", line["keys"], tt.key)
			}
		})
	}
}
