package proxy

import (
	"cmp"
	"net/http"

	"go.opentelemetry.io/otel/trace"

	"github.com/wopproxy/wopproxy/ancestry"
	"github.com/wopproxy/wopproxy/evidence"
	"github.com/wopproxy/wopproxy/proxy/internal/attribution"
	"github.com/wopproxy/wopproxy/proxy/internal/openwop"
	"github.com/wopproxy/wopproxy/proxy/internal/wire"
)

// leave decides which run a request that leaves the host belongs to, and what
// context it goes out with.
func (x *exchange) leave(r *http.Request) {
	found := x.contexts(r)
	x.attribute(r, found)
	if x.p.o.Evidence != nil {
		x.guard(x.leaveStep) // by itself: what follows takes away what is not to be told
	}
	tells := x.tells(r)
	x.nameAncestry(r, tells)
	if !tells {
		delete(r.Header, headerBaggage)
	}
	if x.run == nil && x.msg.Protocol == wire.None {
		return // carries what it carries
	}
	x.outboundContext(found)
	x.linkTasks(r)
	x.openSpan(trace.SpanKindClient, r)
	if x.msg.WebhookURL != "" {
		x.expectToArrive()
	}
	// Ours alone: it tells the next host nothing.
	x.context.State = x.context.State.Without(stateKey)
	if !tells {
		x.context.Baggage = ""
	} else if x.policy.Tylo != nil && x.policy.Tylo(authority(r.URL)) && x.context.Valid() {
		ids := x.p.tylo.IDs(x.context)
		x.tylo, x.context.State = &ids, ids.Annotate(x.context.State)
	}
}

// tells reports whether the destination of r is told ancestry and baggage.
func (x *exchange) tells(r *http.Request) bool {
	rule := x.policy.TrustDestination
	if rule == nil {
		return true
	}
	told := rule(authority(r.URL))
	if t, ok := r.Context().Value(tunnelKey{}).(*inTunnel); ok && told != rule(t.target) && !x.vouches(r.Context(), t.tunnel, r.URL) {
		return !told
	}
	return told
}

// attribute asks the ladder whose call this is.
func (x *exchange) attribute(r *http.Request, found [len(carriers)]spanContext) {
	c := &x.clues // the credential and the base path are in it already
	if id, err := ancestry.ParseRunID(r.Header.Get(x.policy.RunIDHeader)); err == nil {
		c.RunID = id
	}
	// The header is a word between the host and us.
	delete(r.Header, x.policy.RunIDHeader)
	for i := range c.Spans {
		c.Spans[i] = attribution.Span{Trace: ancestry.TraceID(found[i].TraceID), Span: ancestry.SpanID(found[i].SpanID)}
		c.States[i] = found[i].State.Member(stateKey)
	}
	if x.msg.Protocol == wire.A2A {
		c.Keys = append(c.Keys,
			attribution.Key{Kind: attribution.KindA2ATask, ID: x.msg.TaskID},
			attribution.Key{Kind: attribution.KindA2AContext, ID: x.msg.ContextID})
	}
	x.server, x.path = authority(r.URL), r.URL.Path
	if x.msg.Protocol == wire.MCP && x.policy.SessionsPerRun {
		c.Keys = append(c.Keys, peerTask(x.server, x.msg.TaskID))
	}
	if x.session != "" && x.policy.SessionsPerRun {
		c.Keys = append(c.Keys, attribution.Key{Kind: attribution.KindMCPSession, ID: x.session})
	}
	c.Keys = append(c.Keys, x.sessions(r)...)
	if x.post, c.Unsure = x.findPost(r, leaving(r.URL)); x.post != nil {
		c.Webhook = x.post.Run
	}
	v := x.askLadder(r)
	run := x.runOf(r, v)
	if v.Evidence == ancestry.EvidenceTraceState && v.Run == nil && (run == nil || run.Trace != v.Trace) {
		c.States, c.Echoed = [2]string{}, nil
		if v = x.p.runs.Attribute(*c); v.Evidence == "" {
			v.Reason = attribution.ReasonUnproven
		}
		run = x.runOf(r, v)
	}
	if x.pipe && x.msg.Kind == wire.Notification && v.Evidence == ancestry.EvidenceSingleFlight {
		// A server tells its client of much that no request has caused.
		v = attribution.Verdict{Reason: attribution.ReasonSingleFlightOff}
	}
	x.count(v)
	if v.Evidence == "" {
		return
	}
	if run == nil {
		run = &attribution.Run{First: v.ID} // the host's word is all there is
	}
	x.evidence, x.run = v.Evidence, run
	if !weaker(v.Evidence) {
		x.bindSessions(r) // else a session would be its own evidence, or chance's
	}
}

// askLadder asks first for what the call says by itself, and looks further only
// where that decides nothing.
func (x *exchange) askLadder(r *http.Request) attribution.Verdict {
	c := &x.clues
	v := x.p.runs.Attribute(*c)
	if x.policy.ProcessPerRun && weaker(v.Evidence) {
		id, why := x.runOfProcess(r)
		if c.Process, c.Unsure = id, cmp.Or(c.Unsure, why); id != "" || why != "" {
			v = x.p.runs.Attribute(*c)
		}
	}
	if x.p.o.EchoedIDs && x.body != nil && (v.Evidence == "" || v.Evidence == ancestry.EvidenceSingleFlight) {
		ids, ok := attribution.Echoed(x.body)
		if !ok {
			x.p.metrics.limit(limitEchoes)
		}
		if c.Echoed = ids; len(ids) > 0 {
			v = x.p.runs.Attribute(*c)
		}
	}
	return v
}

// weaker reports whether the process that calls would say more than e does.
func weaker(e ancestry.Evidence) bool {
	switch e {
	case "", ancestry.EvidenceConversation, ancestry.EvidenceEchoedID, ancestry.EvidenceSingleFlight:
		return true
	}
	return false
}

// runOf returns the run that v names, from wherever it is known, or nil.
func (x *exchange) runOf(r *http.Request, v attribution.Verdict) *attribution.Run {
	switch asked := x.clues.Webhook; {
	case v.Run != nil || v.Evidence == "":
		return v.Run
	case asked != nil && asked.ID() == v.ID:
		return asked // which may be over for long
	}
	run := x.p.storedRun(r.Context(), v.ID)
	if run != nil && x.p.runs.Unseen() {
		x.p.follower.resume(run) // it began before this start, and is at work
	}
	return run
}

// count counts the verdict on a message. Other requests that say nothing of
// where they come from are not worth a count.
func (x *exchange) count(v attribution.Verdict) {
	if v.Conflict {
		x.p.metrics.disputes.Inc()
	}
	if x.msg.Protocol == wire.None && x.head.openwop == openwop.None && x.post == nil && x.clues.Unsure == "" {
		return
	}
	if v.Evidence != "" {
		x.p.metrics.links.WithLabelValues(string(v.Evidence)).Inc()
	} else {
		x.p.metrics.abstentions.WithLabelValues(string(v.Reason)).Inc()
	}
}

// outboundContext chooses the context that the call continues. A call that is
// attributed continues its run's trace: from the host's own span where it sent
// one of that trace, else from the span that the run was handed. A context of
// another trace is then an orphan that a library made up, and becomes a link.
// A call that is not attributed keeps what it has.
func (x *exchange) outboundContext(found [len(carriers)]spanContext) {
	for _, f := range found {
		if f.Valid() && !x.received.Valid() && x.belongs(f) {
			x.received = f
		}
	}
	switch run := x.run; {
	case x.received.Valid() || run == nil:
	case run.Trace.IsZero():
		x.received = x.newContext()
	default:
		x.received = spanContext{
			TraceID: wire.TraceID(run.Trace), SpanID: wire.SpanID(run.Span),
			Flags: run.Flags, State: wire.Tracestate(run.State), Baggage: run.Baggage,
		}
	}
	for _, f := range found {
		if f.Valid() && f.TraceID != x.received.TraceID {
			x.strayed(f)
			x.p.metrics.conflicting(x.dir, 1)
		}
	}
}

// belongs reports whether c, which the host sent, may continue: it is of a trace
// of the run that the call belongs to, or nothing is known that speaks against
// it.
func (x *exchange) belongs(c spanContext) bool {
	run := x.run
	return run == nil || run.Trace.IsZero() || run.Trace == ancestry.TraceID(c.TraceID) ||
		x.p.runs.Owns(run, ancestry.TraceID(c.TraceID)) ||
		c.State.Member(stateKey) == x.p.runs.State(run) // derived from what we gave
}

// nameAncestry says who causes what the call starts. Where that is not known,
// nothing is said: an ancestry that the host has merely passed on names its
// caller, who is not the parent.
func (x *exchange) nameAncestry(r *http.Request, tells bool) {
	name := x.policy.AncestryHeader
	delete(r.Header, name)
	if x.run == nil {
		return
	}
	var cause ancestry.Cause
	switch x.msg.Protocol {
	case wire.MCP:
		cause = ancestry.CauseMCPToolCall
	case wire.A2A:
		cause = ancestry.CauseA2AMessage
	default:
		return // OpenWOP has no cause for a plain request
	}
	event := x.causingEvent() // also where it is not told: it causes one call
	if !tells || x.head.sealed {
		return
	}
	a := ancestry.Ancestor{Run: x.run.ID(), Host: x.p.o.HostID, WellKnown: x.p.o.WellKnown, Cause: cause}
	if ancestry.ValidEvent(event) {
		a.Event = event
	}
	if x.step != nil {
		place := x.p.o.Evidence.For(x.step, evidence.OriginOf(r.URL))
		a.Workflow, a.Step = place.Workflow, place.Step
	}
	x.sent = x.run.Chain.With(a)
	r.Header[name] = []string{x.sent.Header()}
}

// noteSession ties a session that the call has opened to the run, if the host
// opens its sessions for one run each.
func (x *exchange) noteSession(h http.Header) {
	if id := h.Get(headerMCPSession); id != "" && x.policy.SessionsPerRun {
		x.bind(attribution.Key{Kind: attribution.KindMCPSession, ID: id})
	}
}

// noteChild records the run that the call has started on another host, whose
// proxy tells its id in the answer.
func (x *exchange) noteChild(r *http.Request, h http.Header) {
	values := h[x.policy.RunIDHeader]
	if values == nil || len(x.sent.Ancestors) == 0 {
		return
	}
	delete(h, x.policy.RunIDHeader) // it was meant for us
	id, host, err := ancestry.ParseRunIDHeader(values)
	if err != nil || host == "" {
		x.p.metrics.ancestry.WithLabelValues("invalid").Inc()
		return
	}
	if x.handoff != nil {
		x.p.handoffs.NameChild(x.handoff, host, id)
	}
	if host == x.p.o.HostID {
		return // a call to itself: its own ingress has recorded the run
	}
	x.child = ancestry.Link{
		Run: id, Host: host, Chain: x.sent, Evidence: x.evidence,
		Trace: ancestry.TraceID(x.context.TraceID), ParentSpan: ancestry.SpanID(x.context.SpanID),
		Operation: x.operation(r), Time: x.began.UTC(),
	}
	x.record(x.child)
}
