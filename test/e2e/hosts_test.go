package e2e

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
)

// agent is a host whose runs begin with POST /chat, behind its own wopproxy. It
// knows nothing of wopproxy: what a run does is a function of the test.
type agent struct {
	*sidecar
	mu   sync.Mutex
	work map[string]work
	runs map[string]string
	hook http.HandlerFunc // takes what is posted to /hook
}

// work is what a run does before it answers. in is the request that began it,
// as the host has received it.
type work func(ctx context.Context, in *http.Request) error

// newAgent starts an agent host and its wopproxy.
func newAgent(t testing.TB, hostID string, overrides ...settings) *agent {
	t.Helper()
	a := &agent{work: map[string]work{}, runs: map[string]string{}}
	host := httptest.NewServer(a)
	t.Cleanup(host.Close)
	a.sidecar = start(t, hostID, host.URL, overrides...)
	return a
}

func (a *agent) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/hook" {
		a.hook(w, r)
		return
	}
	body, _ := io.ReadAll(r.Body)
	a.mu.Lock()
	do := a.work[string(body)]
	a.runs[string(body)] = r.Header.Get("Run-Id")
	a.mu.Unlock()
	if do == nil {
		http.Error(w, "nothing to do", http.StatusNotFound)
		return
	}
	if err := do(r.Context(), r); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

// chat lets a run do some work, and returns the run's id when the answer has
// come. An error of the work fails t.
func (a *agent) chat(t testing.TB, do work) (run string) {
	t.Helper()
	run, err := a.tryChat(t.Context(), nil, do)
	if err != nil {
		t.Errorf("run %s: %v", run, err)
	}
	return run
}

// tryChat is chat for tests in which a run may fail, and for goroutines. The
// caller sends header along.
func (a *agent) tryChat(ctx context.Context, header http.Header, do work) (run string, err error) {
	token := randomHex(8)
	a.mu.Lock()
	a.work[token] = do
	a.mu.Unlock()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, a.ingress+"/chat", strings.NewReader(token))
	if err != nil {
		return "", err
	}
	maps.Copy(req.Header, header)
	resp, err := direct.Do(req)
	a.mu.Lock()
	run = a.runs[token]
	delete(a.work, token)
	delete(a.runs, token)
	a.mu.Unlock()
	if err != nil {
		return run, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %d: %s", resp.StatusCode, body)
	}
	return run, err
}

// traceOf returns the trace id in a traceparent, or nothing.
func traceOf(traceparent string) string {
	if parts := strings.Split(traceparent, "-"); len(parts) == 4 && len(parts[1]) == 32 {
		return parts[1]
	}
	return ""
}

// ownSpan continues the trace of a request in a span of the host's own, as
// OpenTelemetry does, and returns the headers to send on.
func ownSpan(in *http.Request) http.Header {
	parts := strings.Split(in.Header.Get("Traceparent"), "-")
	if len(parts) != 4 {
		return http.Header{}
	}
	h := http.Header{"Traceparent": {parts[0] + "-" + parts[1] + "-" + randomHex(8) + "-" + parts[3]}}
	if state := in.Header.Values("Tracestate"); len(state) > 0 {
		h["Tracestate"] = state
	}
	return h
}

func randomHex(n int) string {
	b := make([]byte, n)
	rand.Read(b) // never fails
	return hex.EncodeToString(b)
}
