package proxy

import (
	"cmp"
	"net/http"

	"github.com/wopproxy/wopproxy/ancestry"
	"github.com/wopproxy/wopproxy/proxy/internal/wire"
)

// A call by which a run has another host do something is a handoff, and is
// followed for as long as anything is seen of it: through the call itself, and,
// where it becomes a task or is asked something back, through later requests,
// streams and webhooks. What can't be read moves nothing.

// What a handoff is known again by.
const (
	keyTask     = "task"     // the callee's task that it has become
	keyRequest  = "request"  // the JSON-RPC request in its MCP session
	keyQuestion = "question" // the state of the MCP server's question, which the retry repeats
)

// handOff begins to follow the call, or notes that it goes on with one that is
// followed.
func (x *exchange) handOff(r *http.Request) {
	if x.msg.Cancelled != "" {
		for _, h := range x.requested(x.msg.Cancelled) {
			x.p.moveHandoff(h, ancestry.HandoffCancelled, "")
		}
		return
	}
	if x.run == nil || !x.dispatches() {
		return
	}
	if x.handoff = x.p.handoffs.Resume(x.run.First, x.calleesTask(x.msg.TaskID)); x.handoff != nil {
		x.turn = true
		return
	}
	if x.handoff = x.p.handoffs.Resume(x.run.First, x.calleesQuestion(x.msg.RequestState)); x.handoff == nil {
		x.beginHandoff(r)
	}
	if x.msg.Protocol == wire.MCP {
		x.p.handoffs.Bind(x.handoff, x.calleesRequest(x.msg.ID))
	}
}

func (x *exchange) beginHandoff(r *http.Request) {
	peer := x.server
	if x.pipe {
		peer = "stdio"
	}
	var room bool
	x.handoff, room = x.p.handoffs.Begin(ancestry.Handoff{
		Run: x.run.First, Peer: peer, Protocol: x.protocol(), Operation: x.operation(r),
	}, x.began)
	if !room {
		x.p.metrics.limit(limitHandoffs)
	}
	x.p.metrics.handoff(x.handoff, ancestry.HandoffPending)
}

// moveHandoff takes a handoff to another state, if that may follow.
func (p *Proxy) moveHandoff(h *ancestry.Tracked, to ancestry.HandoffState, why ancestry.HandoffError) {
	if p.handoffs.Move(h, to, why) {
		p.metrics.handoff(h, to)
	}
}

// handedOff takes the exchange's own handoff a step further.
func (x *exchange) handedOff(to ancestry.HandoffState) {
	if x.handoff != nil {
		x.p.moveHandoff(x.handoff, to, "")
	}
}

// calleesTask is the key of a task of the host that is called.
func (x *exchange) calleesTask(id string) ancestry.HandoffKey {
	if len(id) < unlikely {
		return ancestry.HandoffKey{} // a task of the same name may have been before
	}
	return ancestry.HandoffKey{Kind: keyTask, ID: x.server + "\x00" + id}
}

// calleesRequest is the key of a request in the MCP session of the exchange.
func (x *exchange) calleesRequest(id string) ancestry.HandoffKey {
	if x.session == "" || id == "" {
		return ancestry.HandoffKey{}
	}
	return ancestry.HandoffKey{Kind: keyRequest, ID: x.server + x.path + "\x00" + x.requestKey(id).ID}
}

// requested returns the handoff of an earlier request of the session, if that is
// the only one of its id: some clients use one again.
func (x *exchange) requested(id string) []*ancestry.Tracked {
	if known := x.p.handoffs.Known(x.calleesRequest(id)); len(known) == 1 {
		return known
	}
	return nil
}

// calleesQuestion is the key of a call that was answered with a question.
func (x *exchange) calleesQuestion(state []byte) ancestry.HandoffKey {
	if len(state) == 0 {
		return ancestry.HandoffKey{}
	}
	return ancestry.HandoffKey{Kind: keyQuestion, ID: x.server + x.path + "\x00" + x.requestStateKey(state).ID}
}

// followAnswer takes from an answer what it says of handoffs.
func (x *exchange) followAnswer(a wire.Answer) {
	if x.dir != egress {
		return
	}
	if x.msg.Protocol == wire.MCP && x.msg.Method == "tasks/result" {
		x.followResult(a)
		return
	}
	h := x.handoff
	switch {
	case a.TaskID != "":
		if h != nil && x.task == "" && !x.turn {
			x.task = a.TaskID
			x.followed = x.became(h, a.TaskID)
		}
		x.followTask(x.calleesTask(a.TaskID), a)
	case h != nil:
		x.followed = x.judge(h, a)
	}
}

// became notes that a call has become a task, and reports whether the task will
// be known again.
func (x *exchange) became(h *ancestry.Tracked, task string) bool {
	k := x.calleesTask(task)
	x.p.handoffs.NameTask(h, task, "")
	x.p.handoffs.Bind(h, k)
	return k.ID != ""
}

// followLate takes the answer to an earlier request, which the host has fetched
// on a stream of its own.
func (x *exchange) followLate(a wire.Answer) {
	for _, h := range x.requested(a.ID) {
		switch {
		case a.TaskID != "":
			x.became(h, a.TaskID)
		case !x.judge(h, a) && a.ResultType == "input_required":
			x.p.handoffs.Leave(h)
		}
	}
	x.followTask(x.calleesTask(a.TaskID), a)
}

// judge takes an answer that tells of no task, and reports whether the call will
// be known again in what follows on it. An error in a task that has begun is
// none of the task's, and a message no result of it: neither says how that goes on.
func (x *exchange) judge(h *ancestry.Tracked, a wire.Answer) (followed bool) {
	p := x.p
	switch {
	case (a.ErrorCode != "" || a.BareMessage) && h == x.handoff && (x.turn || x.task != ""):
		return x.followed
	case lapsed(a.ErrorCode):
		p.moveHandoff(h, ancestry.HandoffCancelled, "")
	case a.ErrorCode != "":
		p.moveHandoff(h, ancestry.HandoffFailed, ancestry.HandoffRPCError)
	case a.ResultType == "input_required":
		p.moveHandoff(h, ancestry.HandoffRunning, "")
		k := x.calleesQuestion(a.RequestState)
		p.handoffs.Bind(h, k)
		return k.ID != "" // else nothing ties the retry to it
	case a.ToolError:
		p.moveHandoff(h, ancestry.HandoffFailed, ancestry.HandoffToolError)
	case x.msg.Protocol == wire.MCP || a.BareMessage:
		x.results = append(x.results, h)
	}
	return false
}

// followResult takes the result of an MCP task. An error may be the task's own,
// or say that there is none.
func (x *exchange) followResult(a wire.Answer) {
	for _, h := range x.p.handoffs.Known(x.calleesTask(x.msg.TaskID)) {
		switch {
		case a.ErrorCode != "":
		case a.ToolError:
			x.p.moveHandoff(h, ancestry.HandoffFailed, ancestry.HandoffToolError)
		default:
			x.results = append(x.results, h)
		}
	}
}

// followTask takes what a message says of the task with that key. Its own call
// knows it also by an id that is too short to be a key.
func (x *exchange) followTask(k ancestry.HandoffKey, a wire.Answer) {
	known := x.p.handoffs.Known(k)
	if k.ID == "" && x.handoff != nil && x.task == a.TaskID && a.TaskID != "" {
		known = []*ancestry.Tracked{x.handoff}
	}
	for _, h := range known {
		x.p.handoffs.NameTask(h, a.TaskID, string(a.State))
		if a.State != "" {
			x.p.moveHandoff(h, ancestry.HandoffRunning, "") // a post may come before the answer's head
		}
		switch a.State {
		case wire.StateCompleted:
			x.completed(h, a)
		case wire.StateFailed:
			x.p.moveHandoff(h, ancestry.HandoffFailed, ancestry.HandoffTaskFailed)
		case wire.StateRejected:
			x.p.moveHandoff(h, ancestry.HandoffFailed, ancestry.HandoffRejected)
		case wire.StateCanceled:
			x.p.moveHandoff(h, ancestry.HandoffCancelled, "")
		}
	}
}

// completed takes the word that a task has a result, and that result if it comes
// along. A2A sends it before or with the word, and MCP may have to be asked.
func (x *exchange) completed(h *ancestry.Tracked, a wire.Answer) {
	switch {
	case a.TaskToolError:
		x.p.moveHandoff(h, ancestry.HandoffFailed, ancestry.HandoffToolError)
	case x.msg.Protocol != wire.MCP || a.TaskResult:
		x.results = append(x.results, h)
	}
}

// deliver notes that the results which were read were also handed on.
func (x *exchange) deliver() {
	for _, h := range x.results {
		x.p.moveHandoff(h, ancestry.HandoffRunning, "") // over stdio, answers have no head
		x.p.moveHandoff(h, ancestry.HandoffHarvested, "")
	}
	x.results = nil
}

// endHandoff settles what the end of the exchange says of handoffs.
func (x *exchange) endHandoff() {
	if x.dir == ingress && x.post != nil && x.told != nil && x.outcome == outcomeAnswered && x.failed == 0 {
		x.server = x.post.Peer // who has posted is not told by the connection
		x.followTask(x.calleesTask(x.told.TaskID), *x.told)
		x.noteState(*x.told)
	}
	if !x.undelivered {
		x.deliver()
	}
	h := x.handoff
	if h == nil || x.turn {
		return // the end of a turn is not that of the task
	}
	switch {
	case x.outcome == outcomeRefused:
		x.p.moveHandoff(h, ancestry.HandoffFailed, ancestry.HandoffRefused)
	case x.followed || x.resumable():
		return
	case x.task != "": // goes on, unseen
	case x.outcome == outcomeClient && !x.whole || x.undelivered:
		x.p.moveHandoff(h, ancestry.HandoffCancelled, "")
	case x.outcome == outcomeUpstream:
		x.p.moveHandoff(h, ancestry.HandoffFailed, cmp.Or(x.fault, ancestry.HandoffBroken))
	case x.status >= http.StatusMultipleChoices:
		x.p.moveHandoff(h, ancestry.HandoffFailed, ancestry.HandoffHTTPStatus)
	case x.streamed && !x.answered:
		x.p.moveHandoff(h, ancestry.HandoffFailed, ancestry.HandoffBroken)
	}
	x.p.handoffs.Leave(h)
}

// resumable reports whether the answer may still be fetched on another stream,
// as in MCP's sessions before the 2026 revision.
func (x *exchange) resumable() bool {
	return x.msg.Protocol == wire.MCP && x.session != "" && x.streamed && (!x.answered || x.undelivered) && x.msg.ProtocolVersion < "2026"
}
