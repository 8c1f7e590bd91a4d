package wire

import (
	"bytes"
	"cmp"
	"math"
	"strconv"
	"unicode/utf8"
)

// Bounds of what is read from a message, in bytes as written. What is longer is
// not read.
const (
	maxID      = 256     // ids of requests, tasks, contexts and messages
	maxName    = 2048    // methods, names, resource URIs
	maxCarrier = 8192    // carriers, webhook URLs and tokens
	maxBatch   = 64      // messages of a batch that are looked at
	maxSize    = 4 << 20 // default of Edit.MaxSize; what MCP servers accept

	maxBody = 64 << 20 // no longer body is looked at; offsets are 32 bits
)

// Kind is what a JSON-RPC message is.
type Kind uint8

// The kinds. Unknown is what is not JSON-RPC.
const (
	Unknown Kind = iota
	Request
	Notification
	Response
	Batch
)

// String returns the name in lower case, for metric labels.
func (k Kind) String() string {
	return [...]string{"unknown", "request", "notification", "response", "batch"}[k]
}

func (k Kind) hasMethod() bool { return k == Request || k == Notification }

// Hints is what the headers of a request and its route tell of its body.
type Hints struct {
	// Protocol is what the headers or the route say. If they have signs of both,
	// it is A2A: signs of both are not MCP. None leaves it to the body.
	Protocol Protocol
	// AcceptsBoth says that Accept names application/json and text/event-stream,
	// as every MCP client over HTTP does.
	AcceptsBoth bool
	// REST says that the body is that of an A2A REST request, which is not
	// JSON-RPC: a SendMessageRequest or a push config.
	REST bool
	// GRPC is the path of a request to A2A's gRPC service, of either generation.
	// Its body is one frame with a protobuf message, or was not read.
	GRPC string
}

// Message is what Read found in a body. It keeps the body for Stamp.
//
// Texts are valid UTF-8 and empty when the member is absent, is no string, is
// ambiguous or exceeds its bound. All of them are untrusted.
type Message struct {
	Protocol Protocol
	Kind     Kind
	Shared   bool   // MCP and A2A both use the name of the method, and nothing else tells which it is
	Method   string // empty for REST, where the path has it; for gRPC the name that it has in JSON-RPC 1.0
	ID       string // of a request or response, see canonicalID
	Target   string // MCP: name of the tool or prompt, or URI of the resource

	ProtocolVersion string // MCP: of the request, or asked for by initialize
	RequestState    []byte // MCP: of the retry that answers a server's question, see Answer.RequestState
	TaskID          string // MCP or A2A: the task this is about
	ProgressToken   string // MCP: of a request, or of the request whose progress is told, in the form of ID
	Cancelled       string // MCP: the request that is cancelled, in the form of ID
	ContextID       string // A2A: of the message
	MessageID       string // A2A: of the message
	WebhookURL      string // A2A: where push notifications shall go
	WebhookToken    string // A2A: what they shall bear
	// WebhookCredentials is what they shall bear in Authorization. A2A.
	WebhookCredentials string

	// The carrier in the message, as found: _meta of MCP, metadata.openwop of A2A.
	Traceparent, Tracestate, Baggage string
	Ancestry                         string  // MCP: the text of Run-Ancestry
	Tylo                             TyloIDs // MCP: params.tylo.trace, if valid

	// Refusal says why Stamp will not edit the body; empty if it will. What can
	// be read of a refused message is read.
	Refusal Refusal
	// TyloRefusal says why Stamp will leave params.tylo alone, though not the rest.
	TyloRefusal Refusal

	// Batch has the first 64 messages of a batch.
	Batch []Item

	doc   doc
	sends bool // A2A: there is to be a message

	rpc *rpc  // of gRPC; nil: JSON
	pb  pbDoc // of gRPC
}

// Item is one message of a batch.
type Item struct {
	Kind               Kind
	Method, ID, Target string
}

// Read tells what body is and what it carries, in one pass. Everything that is
// not positively MCP or A2A has the Protocol None and costs no allocation.
//
// The Message refers to body, which must not change while it is in use.
func Read(body []byte, h Hints) Message {
	if h.REST || h.GRPC != "" {
		h.Protocol = A2A
	}
	m := Message{Protocol: h.Protocol, doc: doc{body: body}}
	switch start := skipSpace(body, 0); {
	case len(body) > maxBody:
		m.Refusal = RefusedTooLarge
	case h.GRPC != "":
		m.readGRPC(h.GRPC)
	case h.REST:
		m.readREST()
	case h.Protocol == None && !bytes.Contains(body, []byte(`jsonrpc"`)):
		// Nobody escapes letters in this key. Not to look for it by scanning
		// makes the JSON of other programs as good as free.
		m.Refusal = RefusedUnrecognised
	case start < len(body) && body[start] == '[':
		m.readBatch(start, h)
	default:
		m.readRPC(h)
	}
	return m
}

// Context returns the context that the message carries, or the zero value.
func (m *Message) Context() TraceContext {
	return contextOf(m.Traceparent, m.Tracestate, m.Baggage)
}

func (m *Message) readRPC(h Hints) {
	d := &m.doc
	if m.Refusal = d.scan(requestTree); m.Refusal != "" {
		return
	}
	x := m.envelope(h)
	switch {
	case !m.Kind.hasMethod():
	case m.Protocol == MCP:
		m.readMCP()
	case m.Protocol == A2A:
		m.readA2A(x)
	}
	m.Refusal = cmp.Or(m.refuseEnvelope(), m.Refusal)
}

// envelope reads what all JSON-RPC messages have and decides the protocol.
func (m *Message) envelope(h Hints) method {
	d := &m.doc
	m.Kind = d.kind()
	x := d.method()
	if m.Kind.hasMethod() {
		m.Protocol = d.detect(x, h)
	}
	if m.Protocol == None {
		m.Shared = x.shared() && h.Protocol == None && m.Kind == Request
		return method{}
	}
	if m.Method = x.name; m.Method == "" {
		m.Method = d.text(atMethod, maxName)
	}
	m.ID = d.canonicalID(atID)
	if m.Protocol == MCP && x.target != 0 {
		m.Target = d.text(x.target, maxName)
	}
	return x
}

// refuseEnvelope says what speaks against an edit, apart from the shape of what
// the protocol has inside.
func (m *Message) refuseEnvelope() Refusal {
	d, g := &m.doc, guardEnvelope
	switch m.Protocol {
	case MCP:
		g |= guardMCP
	case A2A:
		g |= guardA2A
	}
	switch id := d.first(atID); {
	case m.Kind == Response:
		return RefusedNotAMessage
	case m.Protocol == None:
		return RefusedUnrecognised
	case d.twice&g != 0:
		return RefusedDuplicateKey
	case d.variant&g != 0:
		return RefusedCaseVariant
	case m.Kind == Unknown:
		return RefusedNotAMessage
	case m.Kind == Notification && m.Protocol == A2A: // A2A has none
		return RefusedUnrecognised
	case m.Kind == Request && id != '"' && !isNumber(id):
		return RefusedUnrecognised
	}
	return ""
}

func (m *Message) readBatch(start int, h Hints) {
	d := &m.doc
	m.Kind = Batch
	var seen [A2A + 1]bool
	n := 0
	end := d.array(start, 1, func(i int) int {
		if n++; n > maxBatch {
			return d.value(i, 1, nil)
		}
		d.at = [slots]span{}
		if i = d.value(i, 1, requestTree); i < 0 {
			return i
		}
		one := Message{Protocol: h.Protocol, doc: *d}
		one.envelope(h)
		if one.Kind.hasMethod() {
			seen[one.Protocol] = true
		}
		m.Batch = append(m.Batch, Item{one.Kind, one.Method, one.ID, one.Target})
		return i
	})
	d.at = [slots]span{}
	if m.Refusal = d.end(end); m.Refusal != "" {
		m.Batch = nil
		return
	}
	m.Refusal = RefusedBatch
	switch seen {
	case [...]bool{MCP: true, A2A: false}:
		m.Protocol = MCP
	case [...]bool{A2A: true}:
		m.Protocol = A2A
	case [...]bool{A2A: false}: // nothing but responses: the headers alone tell
	default:
		m.Protocol = None
	}
	if m.Protocol == None {
		m.Batch = nil
	}
}

// kind tells what the object at the root is. What has a method and a result is
// neither a request nor a response.
func (d *doc) kind() Kind {
	answers := d.has(atResult) || d.has(atError)
	switch {
	case string(d.raw(atVersion)) != `"2.0"` && d.text(atVersion, maxID) != "2.0":
		return Unknown
	case !d.has(atMethod) && answers:
		return Response
	case answers || d.first(atMethod) != '"' && d.at[atMethod].key >= 0:
		return Unknown
	case d.has(atID):
		return Request
	}
	return Notification
}

// canonicalID returns the id in s.
func (d *doc) canonicalID(s slot) string { return canonicalID(d.raw(s)) }

// canonicalID returns an id as JSON text, so that "1" and 1
// differ while 1, 1.0 and 1e0 do not: some servers answer with another spelling
// of the number. It is empty if there is no id, if it is neither string nor
// number, or if it exceeds its bound.
func canonicalID(raw []byte) string {
	switch {
	case len(raw) == 0 || len(raw) > maxID:
		return ""
	case raw[0] == '"':
		if bytes.IndexByte(raw, '\\') < 0 && utf8.Valid(raw) {
			return string(raw)
		}
		return string(appendQuoted(nil, unquote(raw[1:len(raw)-1], 3*maxID)))
	case !isNumber(raw[0]):
		return ""
	}
	return canonicalNumber(raw)
}

func isNumber(first byte) bool { return first == '-' || '0' <= first && first <= '9' }

// canonicalNumber returns a JSON number as an integer without fraction or
// exponent, if it is one that float64 holds exactly, and else as it is written.
func canonicalNumber(raw []byte) string {
	if !bytes.ContainsAny(raw, ".eE") && string(raw) != "-0" {
		return string(raw)
	}
	f, err := strconv.ParseFloat(string(raw), 64)
	if err != nil || f != math.Trunc(f) || math.Abs(f) > 1<<53 {
		return string(raw)
	}
	return strconv.FormatInt(int64(f), 10)
}
