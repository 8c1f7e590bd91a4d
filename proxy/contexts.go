package proxy

import (
	"net/http"

	"github.com/wopproxy/wopproxy/proxy/internal/wire"
)

// carriers names the places where a message may carry trace context, the one
// that counts most first.
var carriers = [...]string{"in-message", "header", "foreign", "tylo-message", "tylo-header", "environment"}

// contexts reads every carrier of a request, in the order of carriers; what is
// absent or malformed is not valid. Malformed is counted, and never an error.
func (x *exchange) contexts(r *http.Request) [len(carriers)]spanContext {
	var found [len(carriers)]spanContext
	see := func(i int, c spanContext) {
		found[i] = c
		outcome := "valid"
		if !c.Valid() {
			outcome = "invalid"
		}
		x.p.metrics.contexts.WithLabelValues(string(x.dir), carriers[i], outcome).Inc()
	}
	if m := &x.msg; m.Traceparent != "" {
		see(0, m.Context())
	}
	if h := r.Header; h[headerTraceparent] != nil {
		see(1, wire.ParseContext(h[headerTraceparent], h[headerTracestate], h[headerBaggage]))
	}
	if len(x.policy.foreign) > 0 && !found[1].Valid() {
		if c, ok := x.policy.extractForeign(r.Header); ok {
			see(2, c)
		}
	}
	if x.msg.Tylo.Valid() {
		see(3, x.tyloContext(x.msg.Tylo))
	}
	if h := r.Header; h[headerTyloTrace] != nil || h[headerTyloParent] != nil {
		ids, _ := wire.ParseTyloHeaders(h[headerTyloTrace], h[headerTyloParent])
		see(4, x.tyloContext(ids))
	}
	if x.ambient.Valid() {
		see(5, x.ambient)
	}
	return found
}

// tyloContext is the W3C context of Tylo ids. They bear no flags, so the
// decision to sample is ours, as it is for a trace that begins here.
func (x *exchange) tyloContext(ids wire.TyloIDs) spanContext {
	x.p.tylo.Remember(ids)
	return ids.Context(x.flags())
}
