package proxy

import (
	"bytes"
	"io"
	"net/http"
	"strings"

	"github.com/wopproxy/wopproxy/ancestry"
	"github.com/wopproxy/wopproxy/proxy/internal/attribution"
	"github.com/wopproxy/wopproxy/proxy/internal/openwop"
	"github.com/wopproxy/wopproxy/proxy/internal/wire"
)

// observe puts an observer on the answer, if there is anything to learn from
// it. The bytes pass as they come.
func (x *exchange) observe(resp *http.Response) {
	if resp.StatusCode == http.StatusSwitchingProtocols {
		return
	}
	if x.status = resp.StatusCode; x.status >= http.StatusBadRequest {
		x.failed = x.status
	}
	contentType := resp.Header.Get("Content-Type")
	stream := strings.HasPrefix(contentType, "text/event-stream")
	if stream && (x.msg.Method == "tasks/resubscribe" || x.msg.Method == "SubscribeToTask" ||
		resp.Request.Method == http.MethodGet && (x.msg.Protocol != wire.None || x.head.openwop == openwop.Events)) {
		x.idle(resp.Request) // it listens; work begins with other requests
	}
	if x.head.hints.GRPC != "" {
		x.learnStatus(resp.Header) // an error may have no other answer than its head
	}
	if resp.Body == nil || resp.Body == http.NoBody || !x.curious() {
		return
	}
	if resp.Header["Content-Encoding"] != nil {
		x.p.metrics.limit(limitAnswer)
		return
	}
	o := &observer{ReadCloser: resp.Body, x: x, ctx: resp.Request.Context(), want: resp.ContentLength}
	switch {
	case x.head.hints.GRPC != "" && !strings.HasPrefix(contentType, mediaGRPC):
		return // not the host's
	case x.head.hints.GRPC != "":
		o.parts, o.limit, o.trailer = &frames{limit: x.policy.InspectedBody}, limitAnswer, &resp.Trailer
	case stream:
		o.parts, o.limit = &events{limit: x.policy.InspectedEvent}, limitEvent
		x.streamed = true
	case resp.ContentLength > x.policy.InspectedBody:
		x.p.metrics.limit(limitAnswer)
		return
	}
	resp.Body = o
}

// curious reports whether an answer can tell of a run, its id or its end.
func (x *exchange) curious() bool {
	return x.msg.Protocol != wire.None || x.dir == ingress && x.head.openwop != openwop.None
}

// observer reads an answer as it passes. What it learns takes effect before the
// bytes that said so are handed on.
type observer struct {
	io.ReadCloser
	x       *exchange
	ctx     contextDone
	want    int64        // Content-Length, or -1
	parts   parts        // of a stream; nil: the body is one document
	limit   string       // what a part that is too long is counted as
	trailer *http.Header // of gRPC: complete at the body's end

	seen  []byte // the document so far; nil once it is read or too long
	total int64
	tries int // attempts at a document whose end is not announced
	done  bool
}

// contextDone is as much of a context as waiting takes.
type contextDone interface{ Done() <-chan struct{} }

// documentTries bounds the attempts at a document of unknown length: each chunk
// that ends in a bracket may be the last.
const documentTries = 16

func (o *observer) Read(b []byte) (int, error) {
	n, err := o.ReadCloser.Read(b)
	if !o.done && (n > 0 || err != nil) {
		o.x.guard(func() { o.see(b[:n], err == io.EOF) })
	}
	if err != nil && err != io.EOF {
		o.x.broken = err
	}
	o.x.awaitCommit(o.ctx)
	return n, err
}

func (o *observer) see(chunk []byte, last bool) {
	if o.parts != nil {
		o.parts.write(chunk, func(data []byte) { o.x.learn(data, false) }, func() {
			o.x.p.metrics.limit(o.limit)
			o.x.streamed = false // this may have been the answer
		})
		if last && o.trailer != nil {
			o.x.learnStatus(*o.trailer)
		}
		return
	}
	o.total += int64(len(chunk))
	if o.total > o.x.policy.InspectedBody {
		o.x.p.metrics.limit(limitAnswer)
		o.seen, o.done = nil, true
		return
	}
	o.seen = append(o.seen, chunk...)
	whole := last || o.total == o.want
	if !whole && o.want < 0 && o.tries < documentTries && endsInBracket(chunk) {
		o.tries++
		whole = wire.Complete(o.seen)
	}
	if whole {
		o.x.learn(o.seen, true)
		o.seen, o.done = nil, true
	}
}

func endsInBracket(b []byte) bool {
	b = bytes.TrimRight(b, " \t\r\n")
	return len(b) > 0 && (b[len(b)-1] == '}' || b[len(b)-1] == ']')
}

// learn takes from one document or event what it says about the exchange's run.
// A document is the answer to the exchange's own request, whatever id it bears:
// some servers round large ones. On a stream the id decides.
func (x *exchange) learn(data []byte, alone bool) {
	if x.head.openwop != openwop.None {
		x.learnOpenWOP(data)
		return
	}
	bare := x.head.hints.REST || x.head.hints.GRPC != "" || x.msg.Protocol == wire.A2A && x.body == nil
	var a wire.Answer
	var ok bool
	if path := x.head.hints.GRPC; path != "" {
		a, ok = wire.ReadRPCAnswer(data, path)
	} else {
		a, ok = wire.ReadAnswer(data, x.msg.Protocol, bare)
	}
	if ok {
		x.take(a, alone, bare)
	}
}

// learnStatus takes the status that ends an answer of gRPC from its trailers, or
// from the head of one that has no body.
func (x *exchange) learnStatus(h http.Header) {
	if status := h["Grpc-Status"]; len(status) == 1 {
		if a, failed := wire.ReadStatus(status[0], h.Get("Grpc-Message")); failed {
			x.take(a, true, true)
		}
	}
}

// take learns from an answer that was read. A bare one has no id, and needs
// none.
func (x *exchange) take(a wire.Answer, alone, bare bool) {
	if a.Kind == wire.Batch {
		x.answered = true
		return
	}
	if a.Kind == wire.Request || a.Kind == wire.Notification {
		x.endTask(a) // a notification may be about any task
		return
	}
	if x.msg.Kind != wire.Request && !bare {
		x.lateAnswer(a)
		return
	}
	if !alone && a.ID != "" && a.ID != x.msg.ID {
		return // on a stream that serves several requests
	}
	x.learnTask(a)
	x.errorCode = a.ErrorCode
	x.endWithResult(a)
	if x.msg.Protocol == wire.MCP || a.ErrorCode != "" && !lapsed(a.ErrorCode) || a.State.Terminal() || a.BareMessage {
		x.answered = true
	}
	if x.msg.Protocol == wire.MCP || a.ErrorCode != "" {
		x.finish(x.errorType(a.ErrorCode, a.ToolError), a.ErrorCode, a.ErrorMessage)
	}
}

// lapsed reports whether a gRPC error says that the caller waits no longer: like
// a client that hangs up, that is no word of the host's on the task.
func lapsed(code string) bool { return code == "CANCELLED" || code == "DEADLINE_EXCEEDED" }

// learnTask follows the task that a message tells of: its id is the host's own
// id of the run, and its state says whether the run goes on.
func (x *exchange) learnTask(a wire.Answer) {
	switch {
	case a.ResultType == "input_required":
		x.stays = true
		if len(a.RequestState) > 0 {
			x.bind(x.requestStateKey(a.RequestState))
		}
	case a.State != "":
		x.stays = !a.State.Terminal()
	case a.TaskID != "" && x.msg.Protocol == wire.MCP:
		x.stays = true
	}
	if x.asked != nil && a.TaskID != "" {
		x.p.webhooks.Name(x.asked, a.TaskID)
		x.asked = nil // a stream may speak of other tasks later
	}
	x.noteTask(a.TaskID)
	id, err := x.taskRun(a)
	if err != nil {
		return
	}
	switch {
	case x.dir == egress:
		x.nameChild(id)
	case x.starts && x.run != nil && !x.named:
		// The first task is the run's own; a stream may speak of others later.
		x.named = true
		x.alias(id)
		if x.pipe {
			x.bind(attribution.Key{Kind: kindTask, ID: a.TaskID})
		}
	}
	own := x.run != nil && x.run.ID() == id
	if own && x.dir == ingress {
		x.own(a.ContextID)
	}
	if x.msg.Protocol == wire.MCP && x.dir == egress && x.policy.SessionsPerRun {
		x.bind(peerTask(x.server, a.TaskID))
	}
	if x.msg.Protocol == wire.A2A && (own || x.dir == egress && x.policy.SessionsPerRun) {
		x.bindConversation(attribution.KindA2ATask, a.TaskID)
		x.bindConversation(attribution.KindA2AContext, a.ContextID)
	}
	x.endTask(a)
}

// taskRun is the run that a task is: A2A uses the run's id, MCP its projection
// into one path segment.
func (x *exchange) taskRun(a wire.Answer) (ancestry.RunID, error) {
	if x.msg.Protocol == wire.MCP {
		if id, err := ancestry.ParseSegmentV2(a.TaskID); err == nil {
			return id, nil
		}
	}
	return ancestry.ParseRunID(a.TaskID)
}

// endTask ends the run of a task that the host says has ended, whichever
// request asked.
func (x *exchange) endTask(a wire.Answer) {
	host := x.dir == ingress || x.pipe && x.msg.Kind == wire.Notification // it is the host that says so
	if !host || a.TaskID == "" || !a.State.Terminal() {
		return
	}
	if id, err := x.taskRun(a); err == nil {
		if run := x.p.runs.Known(id); run != nil {
			x.p.runs.End(run)
		}
	}
}

// lateAnswer ends a run whose client went away before the answer: it comes on a
// stream that the client has opened to fetch it.
func (x *exchange) lateAnswer(a wire.Answer) {
	if x.dir != ingress || x.session == "" {
		return
	}
	if run := x.p.runs.Bound(x.requestKey(a.ID)); run != nil {
		x.p.runs.End(run)
	}
}

// requestKey names a request of an MCP session, whose ids are unique in it.
func (x *exchange) requestKey(id string) attribution.Key {
	return attribution.Key{Kind: "mcp-request", ID: x.session + "\x00" + id}
}

// alias makes id the host's name of the run that began with this exchange.
func (x *exchange) alias(id ancestry.RunID) {
	if id == x.run.ID() || x.link.Run == "" {
		return
	}
	x.run = x.p.runs.Alias(x.run, id)
	x.own(string(id))
	if x.run.First != x.link.Run {
		// A replay of a run that is live here. If its own records were lost, this
		// is the last chance to say who began it before the replay's are read.
		older := ancestry.Link{
			Run: x.run.First, Alias: id, Chain: x.run.Chain, Reason: reasonNoAncestry,
			Trace: x.run.Trace, Span: x.run.Span, Operation: x.run.Operation, Time: x.run.Started.UTC(),
		}
		if older.Parent() != nil {
			older.Evidence, older.Reason = ancestry.EvidenceRunAncestry, ""
		}
		x.record(older)
	}
	// The whole link again: if the first record of it was lost, this one must not
	// leave the parent open for somebody else.
	x.link.Alias = id
	x.record(x.link)
}

// nameChild gives the child that the callee's proxy has named the id that the
// callee itself goes by.
func (x *exchange) nameChild(id ancestry.RunID) {
	if x.child.Run == "" || x.child.Alias != "" || x.child.Run == id {
		return
	}
	x.child.Alias = id
	x.record(x.child)
	x.commit = nil // noted for our own use; the host's answer need not wait
}

// requestStateKey is the conversation of an MCP call that the server has
// answered with a question: the retry bears what the question bore.
func (x *exchange) requestStateKey(state []byte) attribution.Key {
	return attribution.Key{Kind: "mcp-request-state", ID: x.session + "\x00" + digest(state)}
}

// learnOpenWOP follows the host's own API: the id of a run that was created,
// and the end of a run that somebody reads.
func (x *exchange) learnOpenWOP(data []byte) {
	switch x.head.openwop {
	case openwop.Create, openwop.Fork:
		if x.head.openwop == openwop.Fork && x.failed != 0 {
			x.p.watch.refused(x, data)
		}
		raw, ok := openwop.Created(data)
		id, err := ancestry.ParseRunID(raw)
		if !ok || err != nil || x.run == nil {
			return
		}
		x.stays, x.answered = true, true
		// Only a declared replay may name a run that there was before; and of one
		// that was not seen to begin, the replayer is not the parent.
		if known := x.p.knownID(id); known == x.replay {
			x.alias(id)
		} else {
			x.p.metrics.ambiguous.Inc()
		}
		return
	case openwop.Events, openwop.Poll:
		x.p.watch.see(data, x.streamed, &x.checked)
	}
	x.learnEnd(data)
}

// learnEnd ends the run that an answer about it shows to be over.
func (x *exchange) learnEnd(data []byte) {
	if !openwop.Ended(x.head.openwop, data) {
		return
	}
	for _, parse := range []func(string) (ancestry.RunID, error){ancestry.ParseSegmentV1, ancestry.ParseSegmentV2} {
		id, err := parse(x.head.segment)
		if err != nil {
			continue
		}
		if run := x.p.runs.Known(id); run != nil {
			x.p.runs.End(run)
			return
		}
	}
}

// end settles what is left when the response has been sent, or cannot be.
func (x *exchange) end(r *http.Request) {
	x.idle(r)
	if x.served != nil {
		x.served()
	}
	switch gone := r.Context().Err() != nil; {
	case x.outcome != outcomeAnswered || x.answered:
	case gone:
		x.outcome = outcomeClient
	case x.broken != nil:
		x.outcome = outcomeUpstream
	}
	x.p.metrics.exchanges.WithLabelValues(string(x.dir), x.protocol(), string(x.outcome)).Inc()
	switch {
	case x.outcome == outcomeUpstream:
		x.finish("upstream", "", "upstream failed")
	case x.outcome == outcomeClient:
		x.finish("cancelled", "", "client gone")
	case x.failed != 0:
		x.finish("_OTHER", "", http.StatusText(x.failed))
	default:
		x.finish("", "", "")
	}
	if x.asked != nil && x.refusedWebhook() {
		x.p.webhooks.Remove(x.asked)
	}
	switch {
	case x.dir != ingress || x.run == nil:
	case x.owner != nil:
		if x.visits {
			x.p.runs.Leave(x.run)
		}
	case x.goesOn && (x.failed != 0 || x.errorCode != ""):
		// What was refused is this turn. Whether the run has ended is another
		// question, which only a terminal state answers; and if it had, it still has.
		x.p.runs.Relapse(x.run)
	case x.over():
		x.p.runs.End(x.run)
	case x.msg.Protocol == wire.MCP && !x.answered && x.session != "":
		x.bind(x.requestKey(x.msg.ID))
	}
}

// over reports whether the run that began with this exchange ends with it. A
// client that hangs up ends neither an A2A task nor, before the 2026 revision,
// an MCP request: the host works on, and may be asked for the answer later. So
// it is when the host itself ends the stream of a session's request unanswered.
func (x *exchange) over() bool {
	switch {
	case x.failed != 0 || x.outcome == outcomeUpstream || x.outcome == outcomeRefused:
		return !x.goesOn
	case x.stays || x.status == http.StatusAccepted && !x.answered:
		return false
	case x.pipe:
		return true // answered, or cancelled in so many words
	case x.msg.Protocol == wire.A2A:
		return x.answered
	case x.msg.Protocol == wire.MCP && (x.outcome == outcomeClient || x.streamed && !x.answered && x.session != ""):
		return x.msg.ProtocolVersion >= "2026"
	}
	return true
}
