package proxy

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/wopproxy/wopproxy/ancestry"
	"github.com/wopproxy/wopproxy/proxy/internal/attribution"
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

// continueRun recognises a request that goes on with a run instead of starting
// one: a later turn of an A2A task, or the retry of an MCP call that the server
// has answered with a question. The first parent of that run stays.
func (x *exchange) continueRun(r *http.Request) {
	if len(x.msg.RequestState) > 0 {
		x.run = x.p.runs.Bound(x.requestStateKey(x.msg.RequestState))
		if x.run != nil && !sameParent(x.run.Chain.Parent(), x.chain.Parent()) {
			x.run = nil // the state of another caller's call, by chance or not
		}
		return
	}
	if x.msg.Protocol == wire.A2A && x.unread() {
		x.chain, x.reason, x.wants = ancestry.Chain{}, reasonUnread, false
		return
	}
	if x.msg.Protocol != wire.A2A || x.msg.TaskID == "" {
		return
	}
	id, err := ancestry.ParseRunID(x.msg.TaskID)
	if err != nil {
		return
	}
	if x.run = x.p.knownRun(r.Context(), id); x.run == nil {
		// It began before the proxy could see it, with another message than this;
		// if there is such a task at all, which only the host's answer can tell.
		x.chain, x.reason, x.wants = ancestry.Chain{}, reasonContinued, false
	}
}

// unread reports whether a gRPC request is known by its path alone, so that
// nothing tells whether it goes on with a task.
func (x *exchange) unread() bool {
	switch x.msg.Refusal {
	case wire.RefusedFraming, wire.RefusedCompressed, wire.RefusedNotProtobuf, wire.RefusedDuplicateKey:
		return x.head.hints.GRPC != ""
	}
	return x.body == nil && x.head.hints.GRPC != ""
}

// sameParent reports whether two calls come from one run, as far as is known.
func sameParent(a, b *ancestry.Ancestor) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Run == b.Run && a.Host == b.Host
}

// rejoin makes the run of a request that goes on with it known in the request's
// own trace and conversation, too. The caller is not told the run's id, or its
// proxy would note as a child what another run may have begun.
func (x *exchange) rejoin() {
	x.wants, x.goesOn = false, true
	x.p.runs.Rejoin(x.run, ancestry.TraceID(x.context.TraceID))
	x.bindContext()
}

// knownRun returns the run of that id if it is live, or was and can be made
// live again from its link.
func (p *Proxy) knownRun(ctx context.Context, id ancestry.RunID) *attribution.Run {
	if run := p.runs.Resume(id); run != nil {
		return run
	}
	run := p.storedRun(ctx, id)
	if run == nil {
		return nil
	}
	p.recall(ctx, run)
	run, ok := p.runs.Restore(run)
	if !ok {
		p.metrics.limit(limitRuns)
	}
	return run
}

// recall asks the store, after a restart, whether the trace of a run that begins
// had another one before: that one may be at work still, and call out.
func (p *Proxy) recall(ctx context.Context, run *attribution.Run) {
	if run.Trace.IsZero() || !p.runs.Unseen() {
		return
	}
	links, err := p.o.Recorder.Trace(ctx, run.Trace, 2)
	other := func(l ancestry.Link) bool { return l.Host == "" && l.Run != run.First }
	if err != nil || slices.ContainsFunc(links, other) {
		p.runs.Retire(run.Trace)
	}
}

// knownID reports whether a run of that id has been recorded.
func (p *Proxy) knownID(id ancestry.RunID) bool {
	return p.runs.Known(id) != nil || p.storedRun(context.Background(), id) != nil
}

// storedRun makes a run from what is recorded of it. It is not live.
func (p *Proxy) storedRun(ctx context.Context, id ancestry.RunID) *attribution.Run {
	l, err := p.o.Recorder.Lookup(ctx, id)
	if err != nil {
		if !errors.Is(err, ancestry.ErrNotFound) {
			p.o.Logger.WarnContext(ctx, "run could not be looked up", "run", id, "err", err)
		}
		return nil
	}
	run := &attribution.Run{
		First: l.Run, Chain: l.Chain, Trace: l.Trace, Span: l.Span,
		Operation: l.Operation, Started: l.Time,
	}
	if l.Alias != "" {
		p.runs.Alias(run, l.Alias)
	}
	return run
}

// startRun begins a run with this request, makes it live and records who caused
// it.
func (x *exchange) startRun(r *http.Request) {
	if x.head.openwop == openwop.Fork {
		x.chain, x.reason = ancestry.Chain{}, reasonFork
	}
	var evidence ancestry.Evidence
	if x.chain.Parent() != nil {
		evidence = ancestry.EvidenceRunAncestry
	}
	c := x.context
	x.run = &attribution.Run{
		First: ancestry.NewRunID(x.began), Chain: x.chain,
		Trace: ancestry.TraceID(c.TraceID), Span: ancestry.SpanID(c.SpanID), Flags: c.Flags,
		State: string(c.State.Without(stateKey)), Baggage: c.Baggage,
		Operation: x.operation(r), Started: x.began,
	}
	if x.p.o.EchoedIDs {
		x.run.Mentions, x.run.Read = x.mentions(r)
	}
	x.p.recall(r.Context(), x.run)
	if !x.p.runs.Start(x.run) {
		x.p.metrics.limit(limitRuns)
	}
	x.link = ancestry.Link{
		Run: x.run.First, Chain: x.chain, Evidence: evidence, Reason: x.reason,
		Trace: x.run.Trace, Span: x.run.Span, ParentSpan: ancestry.SpanID(x.received.SpanID),
		Operation: x.run.Operation, Time: x.began.UTC().Truncate(time.Millisecond),
	}
	x.record(x.link)
	x.bindContext()
}

// bindContext ties the A2A conversation that a message belongs to to its run.
func (x *exchange) bindContext() {
	if x.msg.Protocol == wire.A2A {
		x.bindConversation(attribution.KindA2AContext, x.msg.ContextID)
	}
}

// unlikely is how many characters an id has to have that nobody else uses by
// chance; a UUID has 36, our own ids 30.
const unlikely = 16

// bindConversation ties an id that both sides of a conversation repeat to the
// run of the exchange, unless it is so short that others may use the same by
// chance: "default" names no conversation.
func (x *exchange) bindConversation(kind, id string) {
	if len(id) >= unlikely {
		x.bind(attribution.Key{Kind: kind, ID: id})
	}
}

// noteIDs notes what ids the host is given with a request of a run: the run's
// own, and all that the request mentions.
func (x *exchange) noteIDs(r *http.Request) {
	if !x.p.o.EchoedIDs {
		return
	}
	fits := true
	if x.goesOn {
		ids, all := x.mentions(r)
		fits = x.p.runs.Mention(x.run, ids, all)
	}
	for _, id := range []string{string(x.run.First), string(x.run.ID()), x.msg.MessageID, x.msg.ContextID} {
		fits = x.p.runs.Own(x.run, id) && fits
	}
	if !fits {
		x.p.metrics.limit(limitBindings)
	}
}

// mentions returns the ids that the host is given with a request, and whether
// there are no more.
func (x *exchange) mentions(r *http.Request) (ids []string, all bool) {
	ids, all = attribution.Mentions(x.body)
	for _, a := range x.chain.Ancestors {
		ids = append(ids, strings.ToLower(string(a.Run)))
	}
	return ids, all && (x.body != nil || r.ContentLength == 0)
}

// own notes an id that the host has given to the run.
func (x *exchange) own(id string) {
	if !x.p.runs.Own(x.run, id) {
		x.p.metrics.limit(limitBindings)
	}
}

// bindSessions ties the sessions that vendors' headers name to the run of the
// exchange.
func (x *exchange) bindSessions(r *http.Request) {
	for _, k := range x.sessions(r) {
		x.bind(k)
	}
}

// sessions are what the configured headers of r name.
func (x *exchange) sessions(r *http.Request) []attribution.Key {
	const longest = 256
	var keys []attribution.Key
	for _, name := range x.policy.SessionHeaders {
		if v := r.Header.Get(name); len(v) >= unlikely && len(v) <= longest {
			keys = append(keys, attribution.Key{Kind: attribution.KindHeader, ID: name + "\x00" + v})
		}
	}
	return keys
}

// bind ties a conversation to the run of the exchange.
func (x *exchange) bind(k attribution.Key) {
	if x.run != nil && k.ID != "" && !x.p.runs.Bind(x.run, k) {
		x.p.metrics.limit(limitBindings)
	}
}

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
		}
	}
	x.p.metrics.ancestry.WithLabelValues(outcome).Inc()
	return chain, reason
}
