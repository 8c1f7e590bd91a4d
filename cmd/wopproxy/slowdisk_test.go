package main

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/wopproxy/wopproxy/ancestry"
	"github.com/wopproxy/wopproxy/config"
)

// slowDisk is a store whose commits take until the test lets them go on.
type slowDisk struct {
	ancestry.Store
	commits chan struct{}
}

func (s slowDisk) Record(ctx context.Context, links []ancestry.Link) error {
	<-s.commits
	return s.Store.Record(ctx, links)
}

// TestSlowDisk has the disk take seconds for a commit. An answer waits for it no
// longer than the file says, the program tells of it, and nothing is lost.
func TestSlowDisk(t *testing.T) {
	host := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.Header.Get("Run-Id")) }))
	defer host.Close()
	c, err := config.Parse(strings.NewReader(`
host: { id: h.example.com, wellKnownUrl: "https://h.example.com/.well-known/openwop" }
ingress: { listen: "127.0.0.1:0", upstream: "` + host.URL + `" }
egress: { listen: "127.0.0.1:0" }
admin: { listen: "127.0.0.1:0" }
ancestry: { store: { bolt: { dir: "` + filepath.Join(t.TempDir(), "store") + `" } }, auth: { mode: none }, commitTimeout: 20ms }
runs: { start: ["POST /chat"] }
drain: { delay: 0s, timeout: 5s }
`))
	if err != nil {
		t.Fatal(err)
	}
	l, err := listen(c)
	if err != nil {
		t.Fatal(err)
	}
	commits := make(chan struct{})
	slow := func(c *config.Config, log *slog.Logger) (ancestry.Store, error) {
		s, err := theStore(c, log)
		return slowDisk{s, commits}, err
	}
	s, err := newSidecarOn(t.Context(), c, l, slow, func(string) (string, bool) { return "", false }, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	serving := begin(t.Context(), s.run)
	ready := func() string { return ask(t, http.MethodGet, s.admin.Addr().String()+"/readyz") }
	await := func(what string, prefix string) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); !strings.HasPrefix(ready(), prefix); {
			if time.Now().After(deadline) {
				t.Fatalf("readyz is not %s: %s", prefix, what)
			}
			<-time.After(10 * time.Millisecond)
		}
	}
	var runs []string
	chat := func() { runs = append(runs, ask(t, http.MethodPost, s.ingress.Addr().String()+"/chat")) }
	await("before", "ok")
	chat()
	await("while a commit takes more than a second", "degraded")
	for range 3 {
		chat()
	}
	if text := ask(t, http.MethodGet, s.admin.Addr().String()+"/metrics"); !strings.Contains(text, "\nwopproxy_store_degraded 1\n") {
		t.Error("the metrics say nothing")
	}
	close(commits)
	await("after", "ok")
	chat()
	for _, run := range runs {
		if _, err := s.recorder.Lookup(t.Context(), ancestry.RunID(run)); err != nil {
			t.Errorf("run %q: %v", run, err)
		}
	}
	if err := serving.stop(); err != nil {
		t.Error(err)
	}
}

// ask sends a request and returns the body of the answer, which is to be 200.
func ask(t *testing.T, method, address string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://"+address, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s %s: %s, %v", method, address, resp.Status, err)
	}
	return string(text)
}
