package wire

import "cmp"

// Edit is the context that a message shall carry from now on.
type Edit struct {
	Traceparent string // valid, or empty to remove a stale one
	Tracestate  string // valid, or empty to remove a stale one
	Baggage     string // MCP only; valid, or empty to remove a stale one
	Ancestry    string // MCP only: the text of Run-Ancestry, or empty to remove it

	// InMessage says that an A2A message without metadata.openwop shall get one.
	// Without it only one that is there is brought up to date.
	InMessage bool
	// Tylo is written to params.tylo.trace of MCP messages; nil leaves that as it is.
	Tylo *TyloIDs
	// Into is where the edited body is made, if it has the room; what it holds is
	// lost. nil: in new memory.
	Into []byte
	// MaxSize is how long the edited body may be. Default 4 MiB.
	MaxSize int
}

// Stamp returns the body with the carriers of its protocol brought in line with
// e. If it refuses to, or if there is nothing to change, it returns the body
// that Read was given, the same slice. Stamping the result again changes nothing.
func (m *Message) Stamp(e Edit) ([]byte, Refusal) {
	if m.Refusal != "" {
		return m.doc.body, m.Refusal
	}
	if e.Traceparent == "" {
		e.Tracestate = "" // it means nothing without the former
	}
	size := len(e.Traceparent) + len(e.Tracestate) + len(e.Baggage) + len(e.Ancestry)
	p := splice{text: make([]byte, 0, size+size/8+256)} // with the keys, and Tylo, and what is escaped
	switch {
	case m.Protocol == MCP:
		m.stampMCP(&p, e)
	case m.rpc != nil:
		m.stampGRPC(&p, e)
	case m.Protocol == A2A:
		m.stampA2A(&p, e)
	}
	return p.apply(m.doc.body, e.Into, cmp.Or(e.MaxSize, maxSize))
}
