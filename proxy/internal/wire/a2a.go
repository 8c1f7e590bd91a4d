package wire

import "cmp"

// readREST reads the body of an A2A REST request. It is what params is in
// JSON-RPC, so the slots are the same.
func (m *Message) readREST() {
	d := &m.doc
	if m.Refusal = d.scan(paramsNode); m.Refusal != "" {
		return
	}
	m.Kind = Request
	x := method{task: atMessageTaskID, sends: true}
	if !d.has(atMessage) && (d.has(atPush) || d.has(atFlatURL)) {
		x = method{task: atTaskID} // a push config: its path has the operation
	}
	m.readA2A(x)
	switch {
	case d.twice&(guardEnvelope|guardA2A) != 0:
		m.Refusal = RefusedDuplicateKey
	case d.variant&(guardEnvelope|guardA2A) != 0:
		m.Refusal = RefusedCaseVariant
	}
}

// readA2A reads params of a request of A2A.
func (m *Message) readA2A(x method) {
	d := &m.doc
	if x.task != 0 {
		m.TaskID = d.text(x.task, maxID)
	}
	if d.has(atPush) {
		m.WebhookURL = d.text(atPushURL, maxCarrier)
		m.WebhookToken = d.text(atPushToken, maxCarrier)
		m.WebhookCredentials = d.text(atPushCredentials, maxCarrier)
	} else if !x.sends {
		m.WebhookURL = d.text(atFlatURL, maxCarrier)
		m.WebhookToken = d.text(atFlatToken, maxCarrier)
		m.WebhookCredentials = d.text(atFlatCredentials, maxCarrier)
	}
	if m.sends = x.sends; !m.sends {
		return // only messages have a carrier
	}
	m.MessageID = d.text(atMessageID, maxID)
	m.ContextID = d.text(atContextID, maxID)
	m.Traceparent = d.text(atOpenWOPTraceparent, maxCarrier)
	m.Tracestate = d.text(atOpenWOPTracestate, maxCarrier)

	switch {
	case d.first(atParams) != '{':
		m.Refusal = RefusedParamsNotObject
	case d.first(atMessage) != '{':
		m.Refusal = RefusedMessageNotObject
	case !d.objectOrAbsent(atMetadata) || !d.objectOrAbsent(atOpenWOP):
		m.Refusal = RefusedMetaNotObject
	}
}

// maxReferences bounds how many tasks of one message are looked at.
const maxReferences = 16

// References returns the first 16 tasks that a message of A2A refers to, besides
// the one that it goes on with. They are bounded and untrusted like other ids.
func (m *Message) References() (ids []string) {
	if m.Protocol != A2A || m.doc.first(atReferences) != '[' {
		return nil
	}
	one := doc{body: m.doc.body}
	n := 0
	one.array(int(m.doc.at[atReferences].from), 1, func(i int) int {
		if n++; n > maxReferences {
			return one.value(i, 1, nil)
		}
		i = one.value(i, 1, referenceNode)
		if id := one.text(atReferences, maxID); id != "" {
			ids = append(ids, id)
		}
		return i
	})
	return ids
}

var referenceNode = &node{slot: atReferences}

// stampA2A plans the edits of message.metadata.openwop. It has no slot for
// baggage, and keys other than these two are not ours to add.
func (m *Message) stampA2A(p *splice, e Edit) {
	if !m.sends || !e.InMessage && !m.doc.has(atOpenWOP) {
		return
	}
	p.object(&m.doc, atMessage, []member{{slot: atMetadata, key: "metadata", members: []member{
		{slot: atOpenWOP, key: "openwop", members: []member{
			{slot: atOpenWOPTraceparent, key: "traceparent", text: e.Traceparent},
			{slot: atOpenWOPTracestate, key: "tracestate", text: e.Tracestate},
		}},
	}}})
}

// State is where a task stands, in A2A of all versions and in MCP.
type State string

// The states. StateUnknown is one that this list does not have.
const (
	StateSubmitted     State = "submitted"
	StateWorking       State = "working"
	StateInputRequired State = "input-required"
	StateAuthRequired  State = "auth-required"
	StateCompleted     State = "completed"
	StateCanceled      State = "canceled"
	StateFailed        State = "failed"
	StateRejected      State = "rejected"
	StateUnknown       State = "unknown"
)

// Terminal reports whether a task in this state has ended for good.
func (s State) Terminal() bool {
	return s == StateCompleted || s == StateCanceled || s == StateFailed || s == StateRejected
}

// parseState reads the name of a state: A2A 0.3 "completed", 1.0
// "TASK_STATE_COMPLETED", MCP "cancelled". It returns "" for "".
func parseState(name string) State {
	switch name {
	case "":
		return ""
	case "submitted", "TASK_STATE_SUBMITTED":
		return StateSubmitted
	case "working", "TASK_STATE_WORKING":
		return StateWorking
	case "input-required", "TASK_STATE_INPUT_REQUIRED", "input_required":
		return StateInputRequired
	case "auth-required", "TASK_STATE_AUTH_REQUIRED":
		return StateAuthRequired
	case "completed", "TASK_STATE_COMPLETED":
		return StateCompleted
	case "canceled", "TASK_STATE_CANCELED", "TASK_STATE_CANCELLED", "cancelled":
		return StateCanceled
	case "failed", "TASK_STATE_FAILED":
		return StateFailed
	case "rejected", "TASK_STATE_REJECTED":
		return StateRejected
	}
	return StateUnknown
}

// readAnswerA2A reads a result of A2A, in the shape of 0.3 or of 1.0, and
// reports whether it has one.
func (d *doc) readAnswerA2A(a *Answer) bool {
	message, wrappers := false, 0
	for _, s := range [...]slot{atTaskWrapper, atMessageWrapper, atStatusWrapper, atArtifactWrapper} {
		if d.has(s) {
			wrappers++
		}
	}
	switch {
	case wrappers > 1: // it must be one of them
		return false
	case d.first(atTaskWrapper) == '{':
		a.TaskID, a.ContextID = d.text(atWrappedID, maxID), d.text(atWrappedContextID, maxID)
	case d.first(atMessageWrapper) == '{':
		message = true
		fallthrough
	case d.first(atStatusWrapper) == '{', d.first(atArtifactWrapper) == '{':
		a.TaskID, a.ContextID = d.text(atWrappedTaskID, maxID), d.text(atWrappedContextID, maxID)
	default:
		switch kind := d.text(atKind, maxID); {
		case kind == "message" || kind == "" && d.has(atAnswerMessageID):
			message = true
			a.TaskID = d.text(atAnswerTaskID, maxID)
		case kind == "task" || kind == "" && d.first(atStatus) == '{' && !d.has(atAnswerTaskID):
			a.TaskID = d.text(atAnswerID, maxID)
		default:
			a.TaskID = d.text(atAnswerTaskID, maxID)
		}
		a.ContextID = d.text(atAnswerContextID, maxID)
	}
	a.State = parseState(cmp.Or(d.text(atWrappedState, maxID), d.text(atState, maxID)))
	a.BareMessage = message && a.TaskID == ""
	return message || a.TaskID != ""
}
