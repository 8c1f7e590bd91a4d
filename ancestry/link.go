package ancestry

import (
	"encoding/hex"
	"errors"
	"fmt"
	"time"
)

// Cause says how a parent started a child. The values are OpenWOP's enum and
// there are no others.
type Cause string

// The causes of OpenWOP RFC 0040.
const (
	CauseMCPToolCall Cause = "mcp-tool-call"
	CauseA2AMessage  Cause = "a2a-message"
	CauseSubWorkflow Cause = "core.subWorkflow"
	CauseDispatch    Cause = "core.dispatch"
)

// ParseCause accepts the four causes of OpenWOP and nothing else.
func ParseCause(s string) (Cause, error) {
	for _, c := range [...]Cause{CauseMCPToolCall, CauseA2AMessage, CauseSubWorkflow, CauseDispatch} {
		if s == string(c) {
			return c, nil // not s, which may hold on to all of a header
		}
	}
	return "", fmt.Errorf("unknown cause %q", s)
}

// Evidence names what a link rests on: the rung of the ladder that decided
// which run an outbound call belongs to, or, for a run that began here, what
// has named its parent. It is empty exactly when no parent is
// asserted.
type Evidence string

// The rungs, strongest first, and what names parents on the way in.
const (
	EvidenceRunID           Evidence = "run-id"           // request header Run-Id, sent by the host
	EvidenceTraceState      Evidence = "trace-state"      // tracestate member wop=, given to the host at ingress
	EvidenceTraceID         Evidence = "trace-id"         // trace id of exactly one live run
	EvidenceProxyCredential Evidence = "proxy-credential" // user name of the proxy URL
	EvidenceBasePath        Evidence = "base-path"        // /_run/<runId>/ in front of the URL
	EvidenceProcess         Evidence = "process"          // the process that called works for exactly one run
	EvidenceConversation    Evidence = "conversation"     // id of a conversation bound to exactly one live run
	EvidenceEchoedID        Evidence = "echoed-id"        // an id of exactly one live run occurs in the message
	EvidenceSingleFlight    Evidence = "single-flight"    // exactly one run is live on this host
	EvidenceRunAncestry     Evidence = "run-ancestry"     // header Run-Ancestry, sent by the caller's proxy
	EvidenceEventLog        Evidence = "event-log"        // the parent's log, told by the host of both
)

// TraceID is a W3C trace id. The zero value means that none is known.
type TraceID [16]byte

// SpanID is a W3C parent id. The zero value means that none is known.
type SpanID [8]byte

// String returns 32 lower-case hex digits.
func (t TraceID) String() string { return hex.EncodeToString(t[:]) }

// String returns 16 lower-case hex digits.
func (s SpanID) String() string { return hex.EncodeToString(s[:]) }

// IsZero reports whether no trace id is known.
func (t TraceID) IsZero() bool { return t == TraceID{} }

// IsZero reports whether no span id is known.
func (s SpanID) IsZero() bool { return s == SpanID{} }

// MarshalText renders the id as hex, and a zero id as nothing.
func (t TraceID) MarshalText() ([]byte, error) { return marshalID(t[:], t.IsZero()), nil }

// UnmarshalText accepts what MarshalText returns.
func (t *TraceID) UnmarshalText(b []byte) error { return unmarshalID(t[:], b) }

// MarshalText renders the id as hex, and a zero id as nothing.
func (s SpanID) MarshalText() ([]byte, error) { return marshalID(s[:], s.IsZero()), nil }

// UnmarshalText accepts what MarshalText returns.
func (s *SpanID) UnmarshalText(b []byte) error { return unmarshalID(s[:], b) }

func marshalID(id []byte, zero bool) []byte {
	if zero {
		return nil
	}
	return hex.AppendEncode(nil, id)
}

func unmarshalID(dst, text []byte) error {
	if len(text) == 0 {
		clear(dst)
		return nil
	}
	if len(text) != 2*len(dst) {
		return fmt.Errorf("id %q: want %d hex digits", text, 2*len(dst))
	}
	_, err := hex.Decode(dst, text)
	return err
}

// Ancestor is one run above another one: who it was, where it ran, and how it
// caused the run below it.
type Ancestor struct {
	Run       RunID  `json:"runId"`
	Host      string `json:"hostId"`                 // hostId of the host it ran on
	WellKnown string `json:"wellKnownUrl,omitempty"` // that host's /.well-known/openwop URL, if known
	Cause     Cause  `json:"cause"`                  // how it started the run below
	Event     string `json:"event,omitempty"`        // id of the event on its own log that did so, if known

	// Workflow and Step are where it stood in the evidence of its workflow when it did
	// so. They travel in the header alone, in its first member, and are not stored.
	Workflow string `json:"-"`
	Step     string `json:"-"`
}

// Chain is the ancestry of a run, nearest first: Ancestors[0] is its parent.
// An empty chain belongs to a run without a known parent.
type Chain struct {
	Ancestors []Ancestor `json:"ancestors,omitempty"`
	// More says that older ancestors exist which are not listed.
	More bool `json:"more,omitempty"`
	// Depth counts the ancestors, those not listed included. Zero means as
	// many as are listed.
	Depth int `json:"depth,omitempty"`
}

// Parent returns the nearest ancestor, or nil.
func (c Chain) Parent() *Ancestor {
	if len(c.Ancestors) == 0 {
		return nil
	}
	return &c.Ancestors[0]
}

// Link is what is known of one run: who caused it, on what evidence, and where
// it stands in the trace. It is the unit of the store.
//
// The run is usually one of this host. A link whose Host is set was noted on
// the way out: a run on another host that one of ours has started.
type Link struct {
	Run   RunID  `json:"runId"`            // the child, by the first id it was known by
	Host  string `json:"hostId,omitempty"` // empty: this host
	Alias RunID  `json:"alias,omitempty"`  // its other id, once learned: the host's own

	Chain    Chain    `json:"chain"`                 // its ancestors; empty when no parent is asserted
	Evidence Evidence `json:"evidence,omitempty"`    // what the parent rests on
	Reason   string   `json:"reason,omitempty"`      // why there is no parent, from a closed set
	Source   RunID    `json:"sourceRunId,omitempty"` // of a fork: the run whose log it begins with, as its creator named it

	Trace      TraceID   `json:"traceId,omitzero"`
	Span       SpanID    `json:"spanId,omitzero"`       // the span the run was handed
	ParentSpan SpanID    `json:"parentSpanId,omitzero"` // the caller's span
	Operation  string    `json:"operation,omitempty"`   // "tools/call", "message/send", "POST /chat"
	Workflow   string    `json:"workflowId,omitempty"`  // what the run belongs to in evidence, where that is made
	Time       time.Time `json:"time"`                  // when the run was first seen, to the millisecond
}

// Parent returns the run's parent, or nil when none is asserted.
func (l Link) Parent() *Ancestor { return l.Chain.Parent() }

// ID returns the id that the run's own host knows it by, if that was learned,
// and the first one known otherwise.
func (l Link) ID() RunID {
	if l.Alias != "" {
		return l.Alias
	}
	return l.Run
}

// ErrNotFound is returned by a Store that knows no such run.
var ErrNotFound = errors.New("run not found")
