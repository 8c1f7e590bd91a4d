package wire

import (
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// rpc is what is known of a method of A2A's gRPC service: its name in JSON-RPC
// 1.0, and the fields of its messages. A field 0 is none.
type rpc struct {
	name    string
	named   bool  // 0.3: the id of a task stands in a resource name
	message int   // request: the message that is sent
	task    int   // request: the id of the task
	push    []int // request: the way to the push config; nil: none, empty: the request is one
	url     int   // of that push config
	token   int   // of that push config
	auth    int   // of that push config
	answer  rpcAnswer
}

// rpcAnswer is the kind of message that answers a method.
type rpcAnswer uint8

const (
	answersOther rpcAnswer = iota // nothing is to be learnt of it
	answersTask                   // Task
	answersSend                   // SendMessageResponse: a task or a message
	answersEvent                  // StreamResponse: those, under the same numbers, or an update
)

// The services of both generations, as they stand in paths.
const (
	service03 = "/a2a.v1.A2AService/"
	service10 = "/lf.a2a.v1.A2AService/"
)

// rpcs are the methods, by path.
var rpcs = func() map[string]*rpc {
	m := map[string]*rpc{}
	for path, r := range map[string]rpc{
		service03 + "SendMessage":                      {message: 1, push: []int{2, 2}, url: 2, token: 3, auth: 4, answer: answersSend},
		service03 + "SendStreamingMessage":             {message: 1, push: []int{2, 2}, url: 2, token: 3, auth: 4, answer: answersEvent},
		service03 + "GetTask":                          {task: 1, answer: answersTask},
		service03 + "ListTasks":                        {},
		service03 + "CancelTask":                       {task: 1, answer: answersTask},
		service03 + "TaskSubscription":                 {name: "SubscribeToTask", task: 1, answer: answersEvent},
		service03 + "CreateTaskPushNotificationConfig": {task: 1, push: []int{3, 2}, url: 2, token: 3, auth: 4},
		service03 + "GetTaskPushNotificationConfig":    {task: 1},
		service03 + "ListTaskPushNotificationConfig":   {name: "ListTaskPushNotificationConfigs", task: 1},
		service03 + "DeleteTaskPushNotificationConfig": {task: 1},
		service03 + "GetAgentCard":                     {name: "GetExtendedAgentCard"},

		service10 + "SendMessage":                      {message: 2, push: []int{3, 2}, url: 4, token: 5, auth: 6, answer: answersSend},
		service10 + "SendStreamingMessage":             {message: 2, push: []int{3, 2}, url: 4, token: 5, auth: 6, answer: answersEvent},
		service10 + "GetTask":                          {task: 2, answer: answersTask},
		service10 + "ListTasks":                        {},
		service10 + "CancelTask":                       {task: 2, answer: answersTask},
		service10 + "SubscribeToTask":                  {task: 2, answer: answersEvent},
		service10 + "CreateTaskPushNotificationConfig": {task: 3, push: []int{}, url: 4, token: 5, auth: 6},
		service10 + "GetTaskPushNotificationConfig":    {task: 2},
		service10 + "ListTaskPushNotificationConfigs":  {task: 1},
		service10 + "DeleteTaskPushNotificationConfig": {task: 2},
		service10 + "GetExtendedAgentCard":             {},
	} {
		r.name = cmp.Or(r.name, path[strings.LastIndexByte(path, '/')+1:])
		r.named = strings.HasPrefix(path, service03)
		m[path] = &r
	}
	return m
}()

// IsA2AService reports whether path is that of a method of A2A's gRPC service,
// in any generation, whether or not the method is known.
func IsA2AService(path string) bool {
	return strings.HasPrefix(path, service03) || strings.HasPrefix(path, service10)
}

// KnownRPC reports whether the gRPC method at path is one of A2A's that Read and
// ReadRPCAnswer know. Each has one message as its request.
func KnownRPC(path string) bool { return rpcs[path] != nil }

// Fields of the messages that A2A and google.protobuf.Struct are made of.
const (
	messageContextID = 2
	messageTaskID    = 3

	messageMessageID = 1
	messageMetadata  = 6

	taskID        = 1
	taskContextID = 2
	taskStatus    = 3
	updateTaskID  = 1
	updateContext = 2
	updateStatus  = 3
	statusState   = 1

	authCredentials = 2

	structFields = 1
	entryKey     = 1
	entryValue   = 2
	valueString  = 3
	valueStruct  = 5
)

// pbDoc is where the carrier stands in the body of a gRPC request: values that
// lie in each other, from the outermost in, and the two entries of the last.
// What is absent has no end.
type pbDoc struct {
	message  span // of SendMessageRequest
	metadata span // of the message, a Struct
	entry    span // of that, with the key openwop
	value    span // of that entry
	openwop  span // the Struct in that value
	parent   span // its entry traceparent
	state    span // its entry tracestate
}

// readGRPC reads the body of a gRPC request for path. Where there is no body, or
// one that can't be read, the path alone speaks.
func (m *Message) readGRPC(path string) {
	m.Protocol, m.Kind = A2A, Request
	if m.rpc = rpcs[path]; m.rpc == nil {
		m.Method, m.Refusal = path[strings.LastIndexByte(path, '/')+1:], RefusedUnrecognised
		return
	}
	m.Method = m.rpc.name
	b := m.doc.body
	if _, m.Refusal = FrameMessage(b); m.Refusal == "" {
		m.Refusal = m.readRequest(span{from: frameHead, to: int32(len(b))})
	}
}

// readRequest reads the request message at in.
func (m *Message) readRequest(in span) Refusal {
	b, r := m.doc.body, m.rpc
	p, ok := pbPick(b, in, r.message, r.task)
	if !ok {
		return RefusedNotProtobuf
	}
	if m.TaskID = pbText(b, p.at[1], maxID); r.named {
		m.TaskID = taskOf(m.TaskID)
	}
	m.readPush(in)
	if m.sends = r.message != 0; !m.sends {
		return ""
	}
	switch m.pb.message = p.at[0]; {
	case p.twice:
		return RefusedDuplicateKey
	case m.pb.message.to == 0:
		return RefusedMessageNotObject
	}
	return m.readSent()
}

// taskOf returns the id of a task from the name of it, or of what is its own:
// tasks/ID, tasks/ID/pushNotificationConfigs/ID.
func taskOf(name string) string {
	rest, ok := strings.CutPrefix(name, "tasks/")
	if !ok {
		return ""
	}
	id, _, _ := strings.Cut(rest, "/")
	return id
}

// readPush reads where push notifications shall go.
func (m *Message) readPush(at span) {
	b, r := m.doc.body, m.rpc
	if r.push == nil {
		return
	}
	for _, number := range r.push {
		p, ok := pbPick(b, at, number)
		if at = p.at[0]; !ok || at.to == 0 {
			return
		}
	}
	p, ok := pbPick(b, at, r.url, r.token, r.auth)
	if !ok {
		return
	}
	m.WebhookURL, m.WebhookToken = pbText(b, p.at[0], maxCarrier), pbText(b, p.at[1], maxCarrier)
	if auth, ok := pbPick(b, p.at[2], authCredentials); ok {
		m.WebhookCredentials = pbText(b, auth.at[0], maxCarrier)
	}
}

// readSent reads the message that is sent.
func (m *Message) readSent() Refusal {
	b, d := m.doc.body, &m.pb
	p, ok := pbPick(b, d.message, messageMessageID, messageContextID, messageTaskID, messageMetadata)
	if !ok {
		return RefusedNotProtobuf
	}
	m.MessageID, m.ContextID, m.TaskID = pbText(b, p.at[0], maxID), pbText(b, p.at[1], maxID), pbText(b, p.at[2], maxID)
	switch d.metadata = p.at[3]; {
	case p.twice:
		return RefusedDuplicateKey
	case d.metadata.to == 0:
		return ""
	}
	return m.readCarrier()
}

// readCarrier reads metadata.openwop of the message.
func (m *Message) readCarrier() Refusal {
	b, d := m.doc.body, &m.pb
	entry, refusal := structEntry(b, d.metadata, "openwop")
	if refusal != "" || entry.field.to == 0 {
		return refusal
	}
	d.entry, d.value = entry.field, entry.value
	v, ok := pbPick(b, d.value, valueStruct)
	switch {
	case !ok:
		return RefusedNotProtobuf
	case v.n != 1 || v.at[0].to == 0:
		return RefusedMetaNotObject
	}
	d.openwop = v.at[0]
	for _, leaf := range []struct {
		key  string
		at   *span
		text *string
	}{{"traceparent", &d.parent, &m.Traceparent}, {"tracestate", &d.state, &m.Tracestate}} {
		if entry, refusal = structEntry(b, d.openwop, leaf.key); refusal != "" {
			return refusal
		}
		if *leaf.at = entry.field; entry.value.to == 0 {
			continue
		}
		v, ok := pbPick(b, entry.value, valueString)
		switch {
		case !ok:
			return RefusedNotProtobuf
		case v.n > 1: // of several kinds, readers take the last
			return RefusedDuplicateKey
		}
		*leaf.text = pbText(b, v.at[0], maxCarrier)
	}
	return ""
}

// entry is one entry of a Struct.
type entry struct{ field, value span }

// structEntry looks for the entry of a Struct with that key.
func structEntry(b []byte, in span, key string) (found entry, refusal Refusal) {
	ok := pbFields(b, int(in.from), int(in.to), func(f pbField) {
		if f.number != structFields || f.typ != pbBytes {
			return
		}
		p, ok := pbPick(b, f.span(), entryKey, entryValue)
		switch {
		case !ok:
			refusal = RefusedNotProtobuf
		case p.twice:
			refusal = RefusedDuplicateKey // two keys, of which readers take the last
		case string(b[p.at[0].from:p.at[0].to]) != key:
		case found.field.to > 0 || p.n > 2:
			refusal = RefusedDuplicateKey
		default:
			found = entry{f.span(), p.at[1]}
		}
	})
	if !ok {
		refusal = RefusedNotProtobuf
	}
	if refusal != "" {
		return entry{}, refusal
	}
	return found, ""
}

// stampGRPC plans the same edits as stampA2A.
func (m *Message) stampGRPC(p *splice, e Edit) {
	d, more := &m.pb, 0
	switch {
	case !m.sends || !e.InMessage && d.openwop.to == 0:
		return
	case d.openwop.to > 0:
		more = p.setEntries(m.doc.body, d, e)
		more = p.lengthen(m.doc.body, more, d.openwop, d.value, d.entry, d.metadata, d.message)
	case e.Traceparent == "":
		return
	case d.metadata.to > 0:
		more = p.insert(int(d.metadata.to), openWOPEntry(e))
		more = p.lengthen(m.doc.body, more, d.metadata, d.message)
	default:
		more = p.insert(int(d.message.to), appendPB(nil, messageMetadata, openWOPEntry(e)))
		more = p.lengthen(m.doc.body, more, d.message)
	}
	if more != 0 {
		from := len(p.text)
		p.text = binary.BigEndian.AppendUint32(p.text, uint32(len(m.doc.body)-frameHead+more))
		p.add(edit{1, frameHead - 1, from, len(p.text)})
	}
}

// setEntries plans the edits of the entries of openwop, and returns how much
// longer they make it.
func (p *splice) setEntries(b []byte, d *pbDoc, e Edit) (more int) {
	var missing []byte
	for _, leaf := range []struct {
		at        span
		key, text string
	}{{d.parent, "traceparent", e.Traceparent}, {d.state, "tracestate", e.Tracestate}} {
		want := appendStringEntry(nil, leaf.key, leaf.text)
		switch {
		case leaf.at.to == 0:
			missing = append(missing, want...)
		case string(b[leaf.at.key:leaf.at.to]) != string(want):
			from := len(p.text)
			p.text = append(p.text, want...)
			p.add(edit{int(leaf.at.key), int(leaf.at.to - leaf.at.key), from, len(p.text)})
			more += len(want) - int(leaf.at.to-leaf.at.key)
		}
	}
	if len(missing) > 0 {
		more += p.insert(int(d.openwop.to), missing)
	}
	return more
}

// insert plans to put text at offset at, and returns its length.
func (p *splice) insert(at int, text []byte) int {
	from := len(p.text)
	p.text = append(p.text, text...)
	p.add(edit{at, 0, from, len(p.text)})
	return len(text)
}

// lengthen plans the new lengths of fields that lie in each other, given from
// the innermost out, of which the first becomes longer by more. It returns how
// much longer the message around them becomes.
func (p *splice) lengthen(b []byte, more int, fields ...span) int {
	if more == 0 {
		return 0
	}
	for _, s := range fields {
		_, tag := binary.Uvarint(b[s.key:])
		at, del, from := int(s.key)+tag, int(s.from-s.key)-tag, len(p.text)
		p.text = binary.AppendUvarint(p.text, uint64(int(s.to-s.from)+more))
		p.add(edit{at, del, from, len(p.text)})
		more += len(p.text) - from - del
	}
	return more
}

// openWOPEntry is the entry openwop of a Struct.
func openWOPEntry(e Edit) []byte {
	carrier := appendStringEntry(nil, "traceparent", e.Traceparent)
	carrier = appendStringEntry(carrier, "tracestate", e.Tracestate)
	return appendEntry(nil, "openwop", appendPB(nil, valueStruct, carrier))
}

// appendStringEntry appends an entry of a Struct, or nothing if it has no text.
func appendStringEntry(dst []byte, key, text string) []byte {
	if text == "" {
		return dst
	}
	return appendEntry(dst, key, appendPB(nil, valueString, text))
}

func appendEntry(dst []byte, key string, value []byte) []byte {
	return appendPB(dst, structFields, appendPB(appendPB(nil, entryKey, key), entryValue, value))
}

// ReadRPCAnswer reads one message that answers a gRPC request for path: the
// answer, or an event of its stream. Like ReadAnswer it returns false for what
// it cannot read, or not without guessing.
func ReadRPCAnswer(message []byte, path string) (Answer, bool) {
	r := rpcs[path]
	if r == nil || len(message) > maxBody {
		return Answer{}, false
	}
	a, ok := Answer{Kind: Response}, false
	switch all := (span{to: int32(len(message))}); r.answer {
	case answersTask:
		ok = a.readTask(message, all)
	case answersSend:
		ok = a.readEvent(message, all, 1, 2)
	case answersEvent:
		ok = a.readEvent(message, all, 1, 2, 3, 4)
	}
	if !ok {
		return Answer{}, false
	}
	return a, true
}

// readEvent reads a SendMessageResponse or a StreamResponse: one, among kinds, of
// a task, a message, a status update and an artifact update.
func (a *Answer) readEvent(b []byte, in span, kinds ...int) bool {
	p, ok := pbPick(b, in, kinds...)
	if !ok || p.n != 1 {
		return false
	}
	switch task, message, status, artifact := p.at[0], p.at[1], p.at[2], p.at[3]; {
	case task.to > 0:
		return a.readTask(b, task)
	case message.to > 0:
		p, ok := pbPick(b, message, messageTaskID, messageContextID)
		a.TaskID, a.ContextID = pbText(b, p.at[0], maxID), pbText(b, p.at[1], maxID)
		a.BareMessage = a.TaskID == ""
		return ok && !p.twice
	case status.to > 0:
		return a.readAbout(b, status, updateTaskID, updateContext, updateStatus)
	case artifact.to > 0:
		return a.readAbout(b, artifact, updateTaskID, updateContext, 0)
	}
	return false
}

func (a *Answer) readTask(b []byte, in span) bool {
	return a.readAbout(b, in, taskID, taskContextID, taskStatus)
}

// readAbout reads what tells of a task, and reports whether it names one.
func (a *Answer) readAbout(b []byte, in span, id, context, status int) bool {
	p, ok := pbPick(b, in, id, context, status)
	if !ok || p.twice {
		return false
	}
	a.TaskID, a.ContextID = pbText(b, p.at[0], maxID), pbText(b, p.at[1], maxID)
	states := 0
	ok = pbFields(b, int(p.at[2].from), int(p.at[2].to), func(f pbField) {
		if f.number == statusState && f.typ == pbVarint {
			states++
			a.State = stateOf(f.varint)
		}
	})
	return ok && states < 2 && a.TaskID != ""
}

// stateOf reads the number of a state, the same in 0.3 and 1.0. 0 is a state
// that was not given.
func stateOf(number uint64) State {
	states := [...]State{"", StateSubmitted, StateWorking, StateCompleted, StateFailed, StateCanceled,
		StateInputRequired, StateRejected, StateAuthRequired}
	if number < uint64(len(states)) {
		return states[number]
	}
	return StateUnknown
}

// statuses are the names of gRPC's codes.
var statuses = [...]string{"OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND",
	"ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE",
	"UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED"}

// KnownStatus reports whether name is that of a gRPC status that is an error, so
// that it may become a metric label.
func KnownStatus(name string) bool { return slices.Contains(statuses[1:], name) }

// ReadStatus reads grpc-status and grpc-message, which end the answer to a gRPC
// request. It returns false for a success. The error code is the status's name.
func ReadStatus(status, message string) (Answer, bool) {
	n, err := strconv.ParseUint(status, 10, 32)
	if err == nil && n == 0 {
		return Answer{}, false
	}
	a := Answer{Kind: Response, ErrorCode: otherError}
	if err == nil && n < uint64(len(statuses)) {
		a.ErrorCode = statuses[n]
	}
	a.ErrorMessage = percentDecode(message, maxErrorMessage)
	return a, true
}

// percentDecode decodes a grpc-message and cuts it to at most limit bytes at the
// end of a character. An escape that is none stays, as gRPC demands.
func percentDecode(s string, limit int) string {
	b := make([]byte, 0, min(len(s), limit+utf8.UTFMax))
	for i := 0; i < len(s) && len(b) < cap(b); i++ {
		if s[i] == '%' && i+2 < len(s) {
			if c, err := hex.DecodeString(s[i+1 : i+3]); err == nil {
				b = append(b, c...)
				i += 2
				continue
			}
		}
		b = append(b, s[i])
	}
	text := strings.ToValidUTF8(string(b), "\uFFFD")
	for len(text) > limit {
		_, n := utf8.DecodeLastRuneInString(text)
		text = text[:len(text)-n]
	}
	return text
}
