package proxy

import (
	"strings"

	"github.com/wopproxy/wopproxy/ancestry"
	"github.com/wopproxy/wopproxy/proxy/internal/attribution"
	"github.com/wopproxy/wopproxy/proxy/internal/openwop"
	"github.com/wopproxy/wopproxy/proxy/internal/wire"
)

// take learns from an answer that was read. A bare one has no id, and needs
// none.
func (x *exchange) take(a wire.Answer, alone, bare bool) {
	if a.Kind == wire.Batch {
		x.answered = true
		return
	}
	if a.Kind == wire.Request || a.Kind == wire.Notification {
		x.endTask(a) // a notification may be about any task
		x.noteState(a)
		x.noteProgress(a)
		if x.dir == egress {
			x.followTask(x.calleesTask(a.TaskID), a)
		}
		return
	}
	if x.msg.Kind != wire.Request && !bare {
		x.lateAnswer(a)
		return
	}
	if !alone && a.ID != "" && a.ID != x.msg.ID {
		return // on a stream that serves several requests
	}
	x.weigh(a)
	x.learnTask(a)
	x.endWithResult(a)
	x.followAnswer(a)
	if x.msg.Protocol == wire.MCP || a.ErrorCode != "" {
		x.finish(x.errorType(a.ErrorCode, a.ToolError), a.ErrorCode, a.ErrorMessage)
	}
}

// weigh says how the exchange stands with an answer. It may be done twice.
func (x *exchange) weigh(a wire.Answer) {
	switch {
	case a.ResultType == "input_required":
		x.stays = true
	case a.State != "":
		x.stays = !a.State.Terminal()
	case a.TaskID != "" && x.msg.Protocol == wire.MCP:
		x.stays = true
	}
	x.gaveUp = gaveUp(a)
	x.errorCode, x.spoken = a.ErrorCode, x.spoken || a.BareMessage
	if x.msg.Protocol == wire.MCP || a.ErrorCode != "" && !lapsed(a.ErrorCode) || a.State.Terminal() || a.BareMessage {
		x.answered = true
	}
}

// lapsed reports whether a gRPC error says that the caller waits no longer: like
// a client that hangs up, that is no word of the host's on the task.
func lapsed(code string) bool { return code == "CANCELLED" || code == "DEADLINE_EXCEEDED" }

// gaveUp reports whether an error of MCP is the server's own word that the request was
// cancelled. There is no code for that, and none that JSON-RPC knows as 0, which
// Python's SDK and Go's write with these texts. Any other error is an answer, also to a
// request that was cancelled: nobody can tell which of the two has ended it.
func gaveUp(a wire.Answer) bool {
	return a.ErrorCode == "0" && (a.ErrorMessage == "Request cancelled" || strings.HasSuffix(a.ErrorMessage, "context canceled"))
}

// learnTask follows the task that a message tells of: its id is the host's own
// id of the run.
func (x *exchange) learnTask(a wire.Answer) {
	if a.ResultType == "input_required" && len(a.RequestState) > 0 {
		x.bind(x.requestStateKey(a.RequestState))
	}
	if x.asked != nil && a.TaskID != "" {
		x.p.webhooks.Name(x.asked, a.TaskID)
		x.asked = nil // a stream may speak of other tasks later
	}
	x.noteTask(a.TaskID)
	x.noteState(a)
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
		x.p.follower.begin(id, !id.TenantBound())
		if x.pipe {
			x.bind(attribution.Key{Kind: kindTask, ID: a.TaskID})
		}
	}
	own := x.run != nil && x.run.ID() == id
	if own && x.dir == ingress {
		x.own(a.ContextID)
		x.converse(a.ContextID)
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
	if x.dir == egress {
		x.followLate(a)
		return
	}
	if x.session == "" {
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
		id, ok := x.created(data)
		if !ok {
			return
		}
		x.stays, x.answered = true, true
		// Only a declared replay may name a run that there was before; and of one
		// that was not seen to begin, the replayer is not the parent.
		if known := x.p.knownID(id); known == x.replay {
			x.alias(id)
			x.p.follower.begin(id, x.head.v1)
		} else {
			x.p.metrics.ambiguous.Inc()
		}
		return
	case openwop.Events, openwop.Poll:
		x.p.watch.see(data, x.head.v1, x.streamed, &x.checked)
	}
	x.learnEnd(data)
}

// created is the run that the host says it has created for this exchange.
func (x *exchange) created(data []byte) (id ancestry.RunID, ok bool) {
	raw, ok := openwop.Created(data)
	id, err := ancestry.ParseRunID(raw)
	return id, ok && err == nil && x.run != nil
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
