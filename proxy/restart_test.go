package proxy

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/wopproxy/wopproxy/ancestry"
)

// TestRestarted: a proxy that is started beside a host at work does not know the
// runs that began before. A call that could be one of theirs is nobody's; one that
// can only be of a run that it has seen is that run's.
func TestRestarted(t *testing.T) {
	const old, fresh = "00-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa-bbbbbbbbbbbbbbbb-01", "00-cccccccccccccccccccccccccccccccc-dddddddddddddddd-01"
	tools := peer(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"jsonrpc":"2.0","id":1,"result":{}}`))
	})
	for _, tt := range []struct {
		name      string
		restarted bool
		caller    string // the trace that the new run arrives in
		forwards  bool   // the host hands on traceparent, from a span of its own
		evidence  string
		reason    string
	}{
		{"unmarked", true, fresh, false, "", "restarted"},
		{"in a trace of its own", true, fresh, true, "trace-id", ""},
		{"in the trace of an older run", true, old, true, "", "shared-trace"},
		{"unmarked, and nothing is at work", false, fresh, false, "single-flight", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			store := ancestry.NewMemory()
			var s *sidecar
			host := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				if r.Header.Get("X-Old") != "" {
					return
				}
				h := http.Header{}
				if tt.forwards {
					h.Set("Traceparent", r.Header.Get("Traceparent")[:36]+"eeeeeeeeeeeeeeee-01")
				}
				post(t, s.client(), "http://"+tools+"/mcp", call, h)
			}))
			defer host.Close()
			before := newSidecarOn(t, store, "h.example.com", host.URL)
			post(t, http.DefaultClient, before.ingress.URL+"/chat", `{}`, http.Header{"X-Old": {"1"}, "Traceparent": {old}})

			s = newSidecarOn(t, store, "h.example.com", host.URL, func(o *Options, _ *Policy) { o.Restarted = tt.restarted })
			post(t, http.DefaultClient, s.ingress.URL+"/chat", `{}`, http.Header{"Traceparent": {tt.caller}})
			if tt.evidence != "" {
				s.wantSeries(t, `wopproxy_attributions_total{evidence="`+tt.evidence+`"}`, 1)
			} else {
				s.wantSeries(t, `wopproxy_abstentions_total{reason="`+tt.reason+`"}`, 1)
			}
		})
	}
}

// The trace of a run is kept with it: a call that is made long after the run was
// forgotten, or by another process, goes out in it all the same.
func TestCallMadeMuchLater(t *testing.T) {
	var mu sync.Mutex
	var sent http.Header
	tools := peer(t, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		sent = r.Header.Clone()
		mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":1,"result":{}}`)
	})
	h := newLoggedHost(t)
	handed := make(chan http.Header, 1)
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		handed <- r.Header.Clone()
		h.ServeHTTP(w, r)
	}))
	defer front.Close()
	store := ancestry.NewMemory()
	forgetful := func(o *Options, _ *Policy) { o.RunTTL = time.Nanosecond }
	s := newSidecarOn(t, store, "h.example.com", front.URL, forgetful)
	header := elsewhere()
	header.Set("Traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
	s.creates(t, "/v1/runs", "r-1", header)
	given := receive(t, handed, "the run")
	for _, now := range []*sidecar{s, newSidecarOn(t, store, "h.example.com", front.URL, forgetful)} {
		for name, own := range map[string]http.Header{
			"the run's id":       {"Run-Id": {"r-1"}},
			"what it was handed": {"Traceparent": given["Traceparent"], "Tracestate": given["Tracestate"]},
			"its id beside a trace that a library made up": {"Run-Id": {"r-1"}, "Traceparent": {"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}},
		} {
			own.Set("Content-Type", "application/json")
			own.Set("Accept", "application/json, text/event-stream")
			post(t, now.client(), "http://"+tools+"/mcp", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t"}}`, own)
			mu.Lock()
			chain, err := ancestry.ParseChain(sent["Run-Ancestry"])
			trace := sent.Get("Traceparent")
			mu.Unlock()
			if err != nil || chain.Parent() == nil || chain.Parent().Run != "r-1" || !strings.HasPrefix(trace, "00-4bf92f3577b34da6a3ce929d0e0e4736-") {
				t.Errorf("with %s: caller %+v, %v, Traceparent %s", name, chain.Parent(), err, trace)
			}
		}
		now.wantSeries(t, "wopproxy_live_runs", 0)
	}
}
