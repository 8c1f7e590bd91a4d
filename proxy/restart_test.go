package proxy

import (
	"net/http"
	"net/http/httptest"
	"testing"

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
