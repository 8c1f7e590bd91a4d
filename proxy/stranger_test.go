package proxy

import (
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/wopproxy/wopproxy/ancestry"
	"github.com/wopproxy/wopproxy/proxy/internal/attribution"
)

// TestStrangersStateNamesNoRun has a caller send, with a request that starts no
// run, the tracestate member that we give to the host: whoever was called by a
// run knows all that is in it. The host forwards what it gets, as OpenTelemetry
// does, and its call must not be taken for that run's.
func TestStrangersStateNamesNoRun(t *testing.T) {
	var far atomic.Pointer[http.Header]
	tools := peer(t, func(_ http.ResponseWriter, r *http.Request) { far.Store(&r.Header) })
	var s *sidecar
	client := &http.Client{Transport: &http.Transport{Proxy: func(*http.Request) (*url.URL, error) { return s.proxyURL(), nil }}}
	host := peer(t, func(_ http.ResponseWriter, r *http.Request) {
		out, _ := http.NewRequest(http.MethodPost, "http://"+tools, strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x"}}`))
		out.Header.Set("Content-Type", "application/json")
		out.Header.Set("Accept", "application/json, text/event-stream")
		for _, name := range []string{headerTraceparent, headerTracestate} {
			out.Header[name] = r.Header[name]
		}
		if resp, err := client.Do(out); err == nil {
			resp.Body.Close()
		}
	})
	s = newSidecar(t, "host.example", "http://"+host)
	t.Cleanup(client.CloseIdleConnections)

	victim := &attribution.Run{First: "run_01M7XZ1TQ871RDX9J2H7ZJQ8GC"}
	req, _ := http.NewRequest(http.MethodGet, s.ingress.URL+"/status", nil)
	req.Header.Set(headerTraceparent, "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
	req.Header.Set(headerTracestate, "other=1,"+stateKey+"="+s.runs.State(victim))
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if far.Load() == nil {
		t.Fatal("the host's call did not arrive")
	}
	if got := (*far.Load())[ancestry.HeaderRunAncestry]; got != nil {
		t.Errorf("%s = %q, want none: a stranger named the parent", ancestry.HeaderRunAncestry, got)
	}
	if got := far.Load().Get(headerTracestate); got != "other=1" {
		t.Errorf("tracestate = %q, want other=1: the rest is not ours to remove", got)
	}
}
