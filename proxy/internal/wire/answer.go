package wire

import (
	"bytes"
	"cmp"
)

// maxErrorMessage bounds Answer.ErrorMessage, which is cut there.
const maxErrorMessage = 512

// otherError is the code of an error that gives none, as OpenTelemetry has it.
const otherError = "_OTHER"

// Answer is what came back: a JSON-RPC response, an event of a stream, or a
// webhook. Texts are bounded and untrusted like those of a Message.
type Answer struct {
	Kind Kind   // Request and Notification are what an MCP server sends of its own accord
	ID   string // in the form of Message.ID; empty without an envelope

	ErrorCode    string // empty exactly when there is no error; _OTHER if it has no code
	ErrorMessage string // cut to 512 bytes
	ToolError    bool   // MCP: result.isError

	ResultType string // MCP: result.resultType, such as "task" or "input_required"
	// RequestState is what the retry of the request shall bear if the answer is a
	// question. MCP; of any length, and usually part of the body.
	RequestState []byte
	TaskID       string // MCP or A2A: the task that was made, or that this is about
	ContextID    string // A2A
	State        State  // of the task; empty if the answer does not say
	BareMessage  bool   // A2A: a message instead of a task

	TaskResult    bool // MCP: the result of the task comes along
	TaskToolError bool // MCP: and has isError

	// Batch has the first 64 messages of an array.
	Batch []Answer

	// ProgressToken is that of the request whose progress a notification tells, as it
	// is written there, part of the body. MCP.
	ProgressToken []byte
}

// ProgressOf returns the token of the request whose progress a notification of MCP
// tells, in the form of Message.ProgressToken; "": it tells of none.
func (a *Answer) ProgressOf() string { return canonicalID(a.ProgressToken) }

// ReadAnswer reads a response body, the data of a stream's event, or the body
// of a webhook. bare says that there is no JSON-RPC envelope: A2A over REST, and
// all webhooks, in the shapes of 0.3 and 1.0. It returns false for what it
// cannot read, or not without guessing.
func ReadAnswer(body []byte, p Protocol, bare bool) (Answer, bool) {
	if len(body) > maxBody {
		return Answer{}, false
	}
	d := doc{body: body}
	if bare {
		if d.scan(bareAnswerTree) != "" {
			return Answer{}, false
		}
		return d.bareAnswer()
	}
	if start := skipSpace(body, 0); start < len(body) && body[start] == '[' {
		return d.answers(start, p)
	}
	if d.scan(answerTree) != "" {
		return Answer{}, false
	}
	return d.answer(p)
}

// answers reads an array of messages.
func (d *doc) answers(start int, p Protocol) (Answer, bool) {
	batch := Answer{Kind: Batch}
	n := 0
	end := d.array(start, 1, func(i int) int {
		if n++; n > maxBatch {
			return d.value(i, 1, nil)
		}
		d.at, d.twice = [slots]span{}, 0
		i = d.value(i, 1, answerTree)
		if i < 0 {
			return i
		}
		if a, ok := d.answer(p); ok {
			batch.Batch = append(batch.Batch, a)
		}
		return i
	})
	if d.end(end) != "" || len(batch.Batch) == 0 {
		return Answer{}, false
	}
	return batch, true
}

// Complete reports whether body is one whole JSON text, nested no deeper than
// the 128 levels that are read.
func Complete(body []byte) bool {
	d := doc{body: body}
	return d.scan(nil) == ""
}

// answer reads the message at the root.
func (d *doc) answer(p Protocol) (Answer, bool) {
	a := Answer{Kind: d.kind()}
	if a.Kind == Unknown || d.twice&guardEnvelope != 0 {
		return Answer{}, false
	}
	a.ID = d.canonicalID(atID)
	d.readError(&a)
	switch p {
	case MCP:
		d.readAnswerMCP(&a)
	case A2A:
		d.readAnswerA2A(&a)
	}
	return a, true
}

// bareAnswer reads a result or an error that stands at the root.
func (d *doc) bareAnswer() (Answer, bool) {
	a := Answer{Kind: Response}
	if d.first(atResult) != '{' || d.twice&guardEnvelope != 0 {
		return Answer{}, false
	}
	d.readError(&a)
	if !d.readAnswerA2A(&a) && a.ErrorCode == "" {
		return Answer{}, false
	}
	return a, true
}

// readError reads the member error of JSON-RPC, or of a google.rpc.Status.
func (d *doc) readError(a *Answer) {
	if c := d.first(atError); c == 0 || c == 'n' { // some servers write "error": null beside a result
		return
	}
	if raw := d.raw(atErrorCode); len(raw) > 0 && len(raw) <= maxID && isNumber(raw[0]) {
		a.ErrorCode = canonicalNumber(raw)
	}
	a.ErrorCode = cmp.Or(a.ErrorCode, d.text(atErrorCode, maxID), otherError)
	a.ErrorMessage = d.prefix(atErrorMessage, maxErrorMessage)
}

// readAnswerMCP reads a result of MCP, or what a notification says of a task:
// flat in tasks/get and since 2026-07-28, in result.task before.
func (d *doc) readAnswerMCP(a *Answer) {
	a.ToolError = bytes.Equal(d.raw(atIsError), []byte("true"))
	a.ResultType = d.text(atResultType, maxID)
	a.RequestState = d.bytes(atQuestionState)
	a.TaskResult = d.first(atTaskResult) == '{'
	a.TaskToolError = bytes.Equal(d.raw(atTaskIsError), []byte("true"))
	if a.Kind == Notification && bytes.Equal(d.raw(atMethod), []byte(`"notifications/progress"`)) {
		a.ProgressToken = d.raw(atToldProgress)
	}
	if d.first(atTaskWrapper) == '{' {
		a.TaskID = d.text(atWrappedTaskID, maxID)
		a.State = parseState(d.text(atWrappedStatus, maxID))
		return
	}
	state := parseState(d.text(atStatus, maxID))
	if a.ResultType != "task" && state == "" {
		return // taskId alone may be anything that a tool returns
	}
	a.TaskID, a.State = d.text(atAnswerTaskID, maxID), state
}
