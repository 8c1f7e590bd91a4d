package proxy

import (
	"bytes"
	"net/http"
	"net/url"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"

	"github.com/wopproxy/wopproxy/ancestry"
	"github.com/wopproxy/wopproxy/evidence"
	"github.com/wopproxy/wopproxy/proxy/internal/attribution"
	"github.com/wopproxy/wopproxy/proxy/internal/wire"
)

// Each exchange that starts work is a step in the workflow of its run, where
// evidence is made. The step is named when the exchange begins, for the callee to
// name as its cause, and told of when it has ended and nobody waits any more.

// carriedPlace takes the caller's step out of a chain, where it would go on to those
// that it did not lead to.
func carriedPlace(c *ancestry.Chain) evidence.Place {
	p := c.Parent()
	place := evidence.Place{Workflow: p.Workflow, Step: p.Step}
	p.Workflow, p.Step = "", ""
	return place
}

// openWorkflow says which workflow the run belongs to that begins with the exchange.
func (x *exchange) openWorkflow() {
	if x.p.o.Evidence == nil {
		return
	}
	if x.chain.Parent() == nil {
		x.carried = evidence.Place{}
	}
	from := evidence.Origin{Carried: x.carried}
	if len(x.msg.ContextID) >= unlikely {
		from.Context = x.msg.ContextID
	}
	x.run.Evidence = x.p.o.Evidence.Open(x.run.First, from)
}

// workflowOf is the workflow that a run belongs to; "" where no evidence is made.
func workflowOf(run *attribution.Run) string {
	if run.Evidence == nil {
		return ""
	}
	return run.Evidence.Workflow
}

// converse ties a conversation that the host has named to the workflow of the run.
func (x *exchange) converse(contextID string) {
	if m := x.p.o.Evidence; m != nil && x.run.Evidence != nil && len(contextID) >= unlikely {
		m.Converse(x.run.Evidence, contextID)
	}
}

// evidenceOf is what evidence knows of the run of the exchange; nil: it has none.
func (x *exchange) evidenceOf() *evidence.Run {
	switch {
	case x.run == nil:
		return nil
	case x.run.Evidence == nil: // the host's word is all there is of it
		return x.p.o.Evidence.Resume(x.run.First, "")
	}
	return x.run.Evidence
}

// callName is what a request of MCP is known by while it is at work: its id, in its
// session or pipe. Others have none.
func (x *exchange) callName(id string) string {
	if x.msg.Protocol != wire.MCP || id == "" || x.session == "" && !x.pipe {
		return ""
	}
	return string(x.dir) + x.server + x.path + "\x00" + x.session + "\x00" + id
}

// cancelStep notes that the caller wants no answer to an earlier request.
func (x *exchange) cancelStep() {
	if m := x.p.o.Evidence; m != nil && x.msg.Cancelled != "" {
		m.Cancel(x.callName(x.msg.Cancelled))
	}
}

// noteProgress tells of progress that the callee tells of on the stream of the request.
func (x *exchange) noteProgress(a wire.Answer) {
	if x.step != nil && x.msg.ProgressToken != "" && a.ProgressOf() == x.msg.ProgressToken {
		x.p.o.Evidence.Progress(x.step, x.observed())
	}
}

// arriveStep begins the step of a request that starts, or goes on with, a run.
func (x *exchange) arriveStep() {
	if x.p.o.Evidence == nil {
		return
	}
	x.step = x.p.o.Evidence.Arrive(x.evidenceOf(), x.carried, x.began)
	x.step.Direction, x.step.Protocol = evidence.Ingress, x.protocolOfStep()
	x.p.o.Evidence.Name(x.step, x.callName(x.msg.ID))
	if x.span != nil {
		x.span.SetAttributes(stepAttributes(x.step)...)
	}
}

// leaveStep begins the step of a call that starts work elsewhere.
func (x *exchange) leaveStep() {
	x.cancelStep()
	if x.dispatches() {
		x.step = x.p.o.Evidence.Leave(x.evidenceOf(), x.began)
		x.step.Direction, x.step.Protocol = evidence.Egress, x.protocolOfStep()
		x.p.o.Evidence.Name(x.step, x.callName(x.msg.ID))
		if x.msg.Protocol == wire.A2A {
			x.step.Peer, x.step.Agent = evidence.OriginOf(x.out.URL), x.agent()
		}
	}
}

// agent is the address of the A2A agent that is called, as its card gives it.
func (x *exchange) agent() string {
	u := x.out.URL
	if u == nil {
		return ""
	}
	path := u.Path
	switch {
	case x.head.hints.GRPC != "":
		path = ""
	case x.head.hints.REST:
		path = path[:max(strings.LastIndex(path, "/message:"), strings.LastIndex(path, "/tasks/"), 0)]
		path = strings.TrimSuffix(path, "/v1") // of 0.3
	}
	return agentAt(authority(u), path)
}

// agentAt is the one form of an agent's address.
func agentAt(authority, path string) string {
	return strings.ToLower(authority) + strings.TrimSuffix(path, "/")
}

// discovers reports whether a request is for the card of an A2A agent which evidence is
// made of: of any that the host calls, and of the host itself.
func (x *exchange) discovers(r *http.Request) bool {
	path := r.URL.Path
	return x.p.o.Evidence != nil && r.Method == http.MethodGet && strings.HasSuffix(path, evidence.CardPath) &&
		(x.dir == egress || path == evidence.CardPath)
}

// noteCard tells of the card that the host has fetched, or remembers that which it has
// given of itself. A card speaks for the addresses at the place that it was fetched
// from, and for no other.
func (x *exchange) noteCard() {
	card, ok := wire.ReadCard(x.heard.Seen)
	if !ok || !x.heard.Whole {
		return
	}
	m, ref := x.p.o.Evidence, evidence.CardRef(x.heard.Seen)
	if x.dir == ingress {
		m.Introduce("", ref)
		return
	}
	own := agentAt(authority(x.out.URL), "")
	for _, text := range card.URLs {
		u, err := url.Parse(text)
		if err != nil || u.Host == "" {
			u = &url.URL{Host: text} // of gRPC, without scheme and path
		}
		if at := authority(u); agentAt(at, "") == own {
			m.Introduce(agentAt(at, u.Path), ref)
		}
	}
	o := x.observed()
	o.Protocol, o.Outcome, o.Card = evidence.A2A, evidence.OK, &evidence.Card{Ref: ref, Signed: card.Signed}
	m.Discover(x.evidenceOf(), x.began, o)
}

// overheard is what was read of an answer's body, as it came.
type overheard struct {
	evidence.Body
	cut bool // there is more, which is not kept
}

// hears reports whether the body of the answer is kept until the exchange has ended.
func (x *exchange) hears() bool { return x.fetches || x.digests() }

// digests reports whether the bodies are told of: those of MCP and A2A alone.
func (x *exchange) digests() bool {
	return x.step != nil && x.msg.Protocol != wire.None && x.p.o.Evidence.Digests()
}

// hear keeps the next part of the answer's body, as far as it is told of.
func (x *exchange) hear(part []byte, last bool) {
	h := &x.heard
	if h.cut || h.Whole {
		return
	}
	n := min(len(part), evidence.MaxBody-len(h.Seen))
	if !x.share.take(int64(n)) {
		x.p.metrics.limit(limitBodies)
		h.Seen, h.cut = nil, true
		return
	}
	h.Seen = append(h.Seen, part[:n]...)
	h.cut = n < len(part)
	h.Whole = last && !h.cut
}

// request is what there is of the request's body: as the caller has sent it, or as the
// callee gets it, so that both sides of a hop tell of the same.
func (x *exchange) request() evidence.Body {
	body := x.body
	if x.dir == egress {
		body = x.passed
	}
	if body == nil || x.rest != nil || x.pipe { // not read, or not to its end; or a line
		return evidence.Body{}
	}
	b := evidence.Body{Seen: body[:min(len(body), evidence.MaxBody)], Whole: len(body) <= evidence.MaxBody}
	if x.edited.has(body) {
		b.Seen = bytes.Clone(b.Seen) // the memory is lent to others after this
	}
	return b
}

// noteState tells of the state of a task, in the step whose call has become it.
func (x *exchange) noteState(a wire.Answer) {
	m := x.p.o.Evidence
	if m == nil || a.TaskID == "" || a.State == "" {
		return
	}
	if x.deferState(a) {
		return
	}
	// What the host tells of its own accord may be of any task, and a stream may speak
	// of others later.
	if x.step != nil && x.asTask == "" && a.Kind == wire.Response {
		x.asTask = a.TaskID
	}
	own := x.step
	if x.asTask != a.TaskID {
		own = nil
	}
	if len(a.TaskID) >= unlikely { // else a task of the same name may have been before
		own = m.Task(x.server+"\x00"+a.TaskID, own)
	}
	if own == nil {
		return
	}
	o := x.observed()
	if own != x.step { // told by a poll or a post, whose own way and trace are not the step's
		o = evidence.Observed{Direction: own.Direction, Protocol: own.Protocol, Ended: o.Ended}
	}
	o.Task = a.TaskID
	m.State(own, string(a.State), o)
}

// findReceipt tells of the receipt of another in the head of an answer, or in its
// trailers.
func (x *exchange) findReceipt(h http.Header) {
	if values := h[headerReceipt]; x.step != nil && values != nil {
		x.p.o.Evidence.UpstreamHeader(x.step, values)
	}
}

// findReceipts tells of those in an answer, or an event of one.
func (x *exchange) findReceipts(answer []byte) {
	if x.step != nil && (x.attachment == nil || !x.attachment.looked) {
		x.p.o.Evidence.Upstream(x.step, answer)
	}
}

// endStep tells how the exchange has ended.
func (x *exchange) endStep() {
	m := x.p.o.Evidence
	if m == nil {
		return
	}
	x.endAttachment()
	if x.step == nil && x.starts && x.outcome == outcomeRefused { // before it was of any run
		x.step = m.Arrive(nil, x.carried, x.began)
	}
	if x.step != nil {
		m.End(x.step, x.observedEnd())
	}
	if x.heard.Whole && x.fetches {
		x.noteCard()
	}
}

// observedEnd is what was seen of the exchange, with the bodies if they are told of.
func (x *exchange) observedEnd() evidence.Observed {
	o := x.observed()
	if x.digests() {
		o.Request, o.Response = x.request(), x.heard.Body
	}
	return o
}

// observed is what was seen of the exchange.
func (x *exchange) observed() evidence.Observed {
	o := evidence.Observed{
		Direction: evidence.Ingress, Protocol: x.protocolOfStep(), Method: x.msg.Method, Target: x.msg.Target,
		Outcome: x.outcomeOfStep(), Answered: x.replied(), Status: x.status, Code: x.errorCode, Evidence: x.evidence,
		Trace: ancestry.TraceID(x.context.TraceID), Span: ancestry.SpanID(x.context.SpanID), Ended: time.Now(),
	}
	if x.dir == egress {
		o.Direction, o.Callee = evidence.Egress, x.child.Host
		if o.Callee == "" {
			o.Callee = evidence.OriginOf(x.out.URL)
		}
		return o
	}
	if p := x.chain.Parent(); p != nil {
		o.Caller, o.Evidence = p.Host, ancestry.EvidenceRunAncestry
	}
	return o
}

// protocolOfStep is that of the exchange, as receipts name it.
func (x *exchange) protocolOfStep() string {
	switch x.msg.Protocol {
	case wire.MCP:
		return evidence.MCP
	case wire.A2A:
		return evidence.A2A
	}
	return evidence.HTTP
}

// outcomeOfStep says how the exchange has ended, as receipts do. What nobody has
// read is not said to be well, nor to have ended.
func (x *exchange) outcomeOfStep() evidence.Outcome {
	switch {
	case x.outcome == outcomeRefused, x.outcome == outcomeUpstream && x.fault == ancestry.HandoffRefused:
		return evidence.Rejected
	case x.outcome == outcomeUpstream && x.fault == ancestry.HandoffTimeout:
		return evidence.Timeout
	case x.outcome == outcomeUpstream:
		return evidence.Unreachable
	case x.outcome == outcomeClient && !x.whole:
		return evidence.Cancelled
	case x.errorCode != "" || x.failed != 0:
		return evidence.ProtocolError
	case x.stays || x.resumable() || x.msg.Kind == wire.Batch:
		return evidence.Ongoing
	case x.streamed && !x.answered && !x.illegible:
		return evidence.Unreachable // it broke off
	case x.msg.Protocol != wire.None && !x.answered:
		return evidence.Ongoing
	}
	return evidence.OK
}

// replied reports whether the request was answered, or may have been by what nobody has
// read. That it is cancelled is no answer.
func (x *exchange) replied() bool {
	if x.answered {
		return !x.gaveUp
	}
	return x.failed != 0 || x.whole && x.illegible
}

// stepAttributes are those of PEAC's conventions for spans, but for peac.record.ref:
// a receipt that is not sealed is signed when the span has ended, and its correlation
// group names the span. The span is a child of that of the first parent as far as the wire says so;
// for links to those of the others, nothing here knows their spans.
func stepAttributes(s *evidence.Step) []attribute.KeyValue {
	a := []attribute.KeyValue{attribute.String("peac.workflow_id", s.Workflow), attribute.String("peac.step_id", s.Step)}
	if s.Protocol == evidence.MCP || s.Protocol == evidence.A2A {
		a = append(a, attribute.String("peac.framework", s.Protocol))
	}
	return a
}
