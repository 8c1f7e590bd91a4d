package proxy

import (
	"net/http"
	"slices"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/wopproxy/wopproxy/ancestry"
	"github.com/wopproxy/wopproxy/proxy/internal/openwop"
	"github.com/wopproxy/wopproxy/proxy/internal/wire"
)

// Why a run that arrived has no parent; the closed set of Link.Reason.
const (
	reasonNoAncestry = "no-ancestry"      // the caller named none
	reasonInvalid    = "invalid-ancestry" // what it named does not validate
	reasonUntrusted  = "untrusted"        // it is not among those who may
	reasonFork       = "fork"             // a fork has no parent, whoever asked for it
	reasonContinued  = "continued"        // the run began before the proxy could see it
	reasonUnread     = "unread"           // or so it may have: the message could not be read
)

// read decides what a request to the host is, before anything is done with it.
func (x *exchange) read(r *http.Request) {
	x.trusted = x.policy.trusts(r.RemoteAddr)
	if x.post, _ = x.findPost(r, arriving(r.URL)); x.post != nil {
		x.owner = x.post.Run
	} else {
		x.owner = x.inputTo()
	}
	if x.owner != nil {
		return // nothing begins
	}
	if x.starts = x.startsRun(r); x.starts {
		x.chain, x.reason = x.callersAncestry(r)
	}
}

// arrive adopts the context of a request that comes to the host and, if a run
// begins with it, starts that run.
func (x *exchange) arrive(r *http.Request) {
	// A host that forwards headers would otherwise hand on, as its own word,
	// what a stranger has claimed.
	delete(r.Header, x.policy.RunIDHeader)
	delete(r.Header, x.policy.runIDShadow)
	x.cancelStep()
	if !x.trusted {
		delete(r.Header, x.policy.AncestryHeader)
	}
	if !x.starts && x.owner == nil && x.msg.Protocol == wire.None && x.head.openwop == openwop.None {
		x.noteOther(r)
		disown(r.Header)
		return // else it carries what it carries
	}
	x.adopt(r)
	switch {
	case x.post != nil:
		x.joinRequest()
	case x.starts:
		x.continueRun(r)
	}
	x.linkTasks(r)
	x.openSpan(trace.SpanKindServer, r)
	switch {
	case x.owner != nil:
		x.visit(r)
	case x.run != nil:
		x.rejoin()
	case x.starts:
		x.startRun(r)
	default:
		x.noteOther(r)
	}
	if x.msg.WebhookURL != "" {
		x.expectToLeave(r)
	}
	if x.run == nil {
		x.context.State = x.context.State.Without(stateKey)
		disown(r.Header)
		return
	}
	if x.starts {
		x.bindSessions(r)
		x.noteIDs(r)
		x.arriveStep()
	}
	x.context.State = x.context.State.With(stateKey, x.p.runs.State(x.run))
	r.Header[x.policy.RunIDHeader] = []string{string(x.run.ID())}
	if x.span != nil {
		x.span.SetAttributes(attribute.String("wopproxy.run.id", string(x.run.ID())))
	}
}

// stateKey is our member of tracestate. It is for one host's own use: it is
// set at ingress and removed at egress.
const stateKey = "wop"

// disown takes our member out of a tracestate that goes to the host as it came:
// a stranger could make the host's calls those of a run of its choice.
func disown(h http.Header) {
	forged := func(v string) bool { return strings.Contains(v, stateKey+"=") }
	if !slices.ContainsFunc(h[headerTracestate], forged) {
		return
	}
	state, _ := wire.ParseTracestate(h[headerTracestate]...) // what is invalid is void
	if state = state.Without(stateKey); state == "" {
		delete(h, headerTracestate)
	} else {
		h[headerTracestate] = []string{string(state)}
	}
}

// startsRun reports whether a run begins with this request.
func (x *exchange) startsRun(r *http.Request) bool {
	switch x.msg.Protocol {
	case wire.MCP:
		if x.body == nil { // too long or compressed; the 2026 revision says in a header what it is
			return r.Method == http.MethodPost && x.policy.mcpMethods[r.Header.Get("Mcp-Method")]
		}
		if x.msg.Kind == wire.Request {
			return x.policy.mcpMethods[x.msg.Method]
		}
		for _, item := range x.msg.Batch {
			if item.Kind == wire.Request && x.policy.mcpMethods[item.Method] {
				return true
			}
		}
		return false
	case wire.A2A:
		return x.sends()
	}
	switch x.head.openwop {
	case openwop.Create, openwop.Fork:
		return x.head.inspect
	}
	return x.policy.Starts != nil && x.policy.Starts(r.Method, r.URL.EscapedPath())
}

// sends reports whether an A2A request is a message: the one kind that begins
// a task, or goes on with one.
func (x *exchange) sends() bool {
	switch x.msg.Method {
	case "message/send", "message/stream", "SendMessage", "SendStreamingMessage":
		return true
	}
	return x.head.hints.REST && x.head.task == ""
}

// noteOther keeps single-flight honest: while a request is in flight that is no
// run, whatever the host calls may be on its behalf. What only answers or
// notifies asks for no work; what only reads leaves none behind.
func (x *exchange) noteOther(r *http.Request) {
	if x.msg.Kind == wire.Response || x.msg.Kind == wire.Notification && !x.prompts() {
		return
	}
	x.working = true
	x.trace = ancestry.TraceID(x.received.TraceID)
	if h := r.Header; x.trace.IsZero() && h[headerTraceparent] != nil {
		x.trace = ancestry.TraceID(wire.ParseContext(h[headerTraceparent], nil, nil).TraceID)
	}
	x.p.runs.Other(x.trace)
}

// prompts reports whether a notification has a stdio server ask its client for
// something, usually roots. Over HTTP what it asks does not leave by egress.
func (x *exchange) prompts() bool {
	return x.pipe && (x.msg.Method == "notifications/initialized" || x.msg.Method == "notifications/roots/list_changed")
}

// idle ends noteOther, at the end of the exchange or as soon as it turns out to
// be a stream of events that only listens.
func (x *exchange) idle(r *http.Request) {
	if x.working {
		x.working = false
		reads := r.Method == http.MethodGet || r.Method == http.MethodHead || r.Method == http.MethodOptions || readsTasks[x.msg.Method]
		x.p.runs.OtherDone(x.trace, !reads)
	}
}

// adopt takes the context of the first carrier that has a valid one. What the
// others say becomes a link, and so does all of it when the caller is not
// trusted.
func (x *exchange) adopt(r *http.Request) {
	found := x.contexts(r)
	if !x.trusted {
		x.strayed(found[:]...)
		x.claimed = slices.ContainsFunc(found[:], spanContext.Valid)
		return
	}
	var conflicts []spanContext
	x.received, conflicts = wire.Adopt(found[:]...)
	x.strayed(conflicts...)
	x.p.metrics.conflicting(x.dir, len(conflicts))
}

// strayed makes contexts that came along, and do not count, links of our span.
func (x *exchange) strayed(contexts ...spanContext) {
	if x.p.tracer == nil {
		return
	}
	for _, c := range contexts {
		if c.Valid() {
			x.stray = append(x.stray, trace.Link{SpanContext: remote(c)})
		}
	}
}

// unlikely is how many characters an id has to have that nobody else uses by
// chance; a UUID has 36, our own ids 30.
const unlikely = 16

// callersAncestry reads Run-Ancestry, from the header or, where there is none,
// from the message. What does not validate as a whole is not used in part.
func (x *exchange) callersAncestry(r *http.Request) (chain ancestry.Chain, reason string) {
	values := r.Header[x.policy.AncestryHeader]
	x.wants = len(values) > 0
	if len(values) == 0 && x.msg.Ancestry != "" {
		values = []string{x.msg.Ancestry}
	}
	outcome := "absent"
	switch {
	case len(values) == 0:
		reason = reasonNoAncestry
	case !x.trusted:
		reason, outcome = reasonUntrusted, "untrusted"
	default:
		var err error
		if chain, err = ancestry.ParseChain(values); err != nil {
			x.p.o.Logger.DebugContext(r.Context(), "ancestry ignored", "peer", r.RemoteAddr, "err", err)
			chain, reason, outcome = ancestry.Chain{}, reasonInvalid, "invalid"
		} else if chain.Parent() == nil {
			reason = reasonNoAncestry
		} else {
			outcome = "adopted"
			x.carried = carriedPlace(&chain)
		}
	}
	x.p.metrics.ancestry.WithLabelValues(outcome).Inc()
	return chain, reason
}
