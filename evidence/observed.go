package evidence

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strconv"
	"time"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/wopproxy/wopproxy/ancestry"
	"github.com/wopproxy/wopproxy/ancestry/peac"
)

// Outcome says how an exchange ended, and nothing of what came of the work: a tool that
// says of itself that it has failed (MCP's isError) has answered, and its word is part of
// the result, which receipts don't tell.
type Outcome string

// The outcomes.
const (
	OK            Outcome = "ok"             // it was answered, and not by an error
	ProtocolError Outcome = "protocol_error" // the answer was an error
	Rejected      Outcome = "rejected"       // by this proxy
	Timeout       Outcome = "timeout"
	Cancelled     Outcome = "cancelled" // by the caller
	Unreachable   Outcome = "unreachable"
	Ongoing       Outcome = "ongoing" // the task that it became goes on, or nobody has read the answer
)

// The directions and protocols of an exchange.
const (
	Ingress = "ingress"
	Egress  = "egress"

	MCP  = "mcp"
	A2A  = "a2a"
	HTTP = "http"
)

// Observed is what was seen of an exchange when it ended.
type Observed struct {
	Direction string // Ingress or Egress
	Protocol  string // MCP, A2A or HTTP
	Method    string // of the protocol
	Target    string // of MCP: the name of the tool or prompt
	Outcome   Outcome
	Answered  bool   // something came, read or not, and not just that the call is cancelled
	Status    int    // of HTTP; 0: there was none
	Code      string // of an answer that is an error; other than a number it is left out
	Evidence  ancestry.Evidence
	Trace     ancestry.TraceID // the context that the exchange had on the wire
	Span      ancestry.SpanID
	Caller    string // hostId of who called, where that is known
	Callee    string // who was called: its hostId, where that is known, or its origin
	Task      string // of A2A or MCP: the task that a state is of
	Card      *Card  // the agent card that was fetched; nil: none was
	Request   Body   // with Options.Digests, as it came to the host or left it
	Response  Body   // likewise
	Ended     time.Time
}

// Body is as much of one as digests are made of. It must not change.
type Body struct {
	Seen  []byte // from its beginning; nil: nothing is told of it
	Whole bool   // that is all of it
}

// The bodies, or beginnings, that digests are of.
const (
	MaxBody = 1 << 20 // no more need be kept
	minBody = 64 << 10
)

// digest is that of the body where all of it was seen, and else of so much of its
// beginning as another reader can cut off, too; nil: there was less.
func (b Body) digest() *peac.Digest {
	alg, seen := "sha-256", b.Seen
	switch n := len(seen); {
	case seen == nil:
		return nil
	case b.Whole && n <= MaxBody:
	case n >= MaxBody:
		alg, seen = "sha-256:trunc-1m", seen[:MaxBody]
	case n >= minBody:
		alg, seen = "sha-256:trunc-64k", seen[:minBody]
	default:
		return nil
	}
	sum := sha256.Sum256(seen)
	return &peac.Digest{Alg: alg, Value: hex.EncodeToString(sum[:])}
}

// CardPath is where an agent's card is, below whatever path the agent has.
const CardPath = peac.CardPath

// Card is an agent card that was fetched from CardPath.
type Card struct {
	Ref    string // CardRef of its bytes as they came
	Signed bool
}

// CardRef is the reference that stands for an agent card.
func CardRef(card []byte) string {
	sum := sha256.Sum256(card)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// progress is the type of a receipt about a step that goes on, and the group that
// says how.
const progress = "dev.wopproxy/progress"

// progressGroup is the value of the group.
type progressGroup struct {
	V     int    `json:"v"` // 1
	State string `json:"state"`
	Count int    `json:"count,omitempty"` // how often progress was told of
}

// claims returns what is to be signed of e.
func (m *Minter) claims(e *entry, issued time.Time) peac.Claims {
	s, o := e.step, &e.o
	others := m.judge(e.upstream)
	id := s.id
	if e.state != "" {
		id = peac.NewReceiptID(o.Ended)
	}
	c := peac.Claims{
		Kind: peac.Evidence, Type: m.typeOf(e), ID: id, IssuedAt: issued.Unix(),
		OccurredAt: instant(o.Ended),
		Extensions: map[string]any{
			peac.WorkflowGroup:    m.place(s, o),
			peac.CorrelationGroup: m.correlation(s, o, others),
			peac.ExchangeGroup:    exchange(s, o, e.bodies),
		},
	}
	if o.Ended.Unix() > c.IssuedAt { // the clock was set back meanwhile
		c.IssuedAt = o.Ended.Unix()
	}
	switch c.Type {
	case progress:
		c.Extensions[progress] = progressGroup{1, e.state, e.count}
	case peac.AccessDecision:
		c.Extensions[peac.AccessGroup] = peac.Access{
			Resource: m.names.HostRef(s.audience, m.o.Host), Action: cmp.Or(kindOf(o), o.Protocol), Decision: "deny",
		}
	case peac.CardObserved:
		c.Extensions[peac.HandoffGroup] = peac.NewCardObservation(o.Card.Ref, o.Card.Signed, instant(o.Ended))
	case taskTypes[e.state]:
		c.Extensions[peac.HandoffGroup] = peac.NewTaskHandoff(c.Type, m.namerOf(s).TaskRef(s.audience, s.Peer, o.Task), e.state,
			peac.AgentCard{CardRef: e.from}, peac.AgentCard{CardRef: e.to}, instant(o.Ended))
	case peac.ExchangeGroup:
	default:
		c.Extensions[peac.ActionGroup] = m.action(s, o, c.Type, others)
	}
	return c
}

// taskTypes are the types of receipts about a task, by the state that it has come to.
// There is none for a state that nobody knows, nor for one that A2A 1.0 has not.
var taskTypes = map[string]string{
	"submitted": peac.TaskSubmitted,
	"working":   peac.TaskStateChanged, "input-required": peac.TaskStateChanged, "auth-required": peac.TaskStateChanged, "canceled": peac.TaskStateChanged,
	"completed": peac.TaskCompleted, "failed": peac.TaskFailed, "rejected": peac.TaskRejected,
}

// typeOf says what was observed. What is neither of MCP nor of A2A has no type of
// PEAC's, and the state of a task only where the card of who has handed it over is
// known.
func (m *Minter) typeOf(e *entry) string {
	switch o := &e.o; {
	case e.from != "" && taskTypes[e.state] != "":
		return taskTypes[e.state]
	case e.state != "":
		return progress
	case o.Card != nil:
		return peac.CardObserved
	case o.Outcome == Rejected:
		return peac.AccessDecision
	case o.Protocol != MCP && o.Protocol != A2A:
		return peac.ExchangeGroup
	case o.Outcome == Timeout:
		return peac.ActionTimedOut
	case o.Outcome == Cancelled:
		return peac.ActionCancelled
	case o.Protocol == A2A && o.Direction == Egress:
		return peac.ActionDelegated
	}
	return peac.ActionInvoked
}

func (m *Minter) action(s *Step, o *Observed, receiptType string, others upstream) peac.AgentAction {
	a := peac.NewAgentAction(receiptType, m.names.HostRef(s.audience, m.o.Host), "ref:"+s.Step, instant(o.Ended))
	if receiptType == peac.ActionDelegated {
		a.DelegatedToRef = m.names.HostRef(s.audience, cmp.Or(o.Callee, "unknown"))
	}
	if o.Caller != "" && m.o.Privacy != Strict {
		a.CallerRef = m.names.HostRef(s.audience, o.Caller)
	}
	a.UpstreamArtifactRef = others.ref
	return a
}

func (m *Minter) place(s *Step, o *Observed) peac.WorkflowContext {
	w := peac.WorkflowContext{WorkflowID: s.Workflow, StepID: s.Step, ParentStepIDs: s.parentIDs(), PrevReceiptHash: s.prev}
	if o.Protocol == MCP || o.Protocol == A2A {
		w.Framework = o.Protocol
	}
	if s.opened != "" {
		w.OrchestratorReceiptRef = "jti:" + s.opened
	}
	switch m.o.Privacy {
	case Balanced:
		w.ToolName = kindOf(o)
	case Open:
		w.ToolName = toolOf(o)
	}
	return w
}

func (s *Step) parentIDs() []string {
	ids := make([]string, len(s.parents))
	for i, p := range s.parents {
		ids[i] = p.step
	}
	return ids
}

func (m *Minter) correlation(s *Step, o *Observed, others upstream) peac.Correlation {
	c := peac.Correlation{WorkflowID: s.Workflow, DependsOn: others.jtis}
	if m.o.Privacy != Strict {
		if !o.Trace.IsZero() {
			c.TraceID = o.Trace.String()
		}
		if !o.Span.IsZero() {
			c.SpanID = o.Span.String()
		}
	}
	if n := len(s.parents); n > 0 {
		c.ParentJTI = s.parents[n-1].receipt
	}
	return c
}

func exchange(s *Step, o *Observed, b bodies) peac.Exchange {
	x := peac.Exchange{
		V: 1, Direction: o.Direction, Protocol: o.Protocol, Outcome: string(o.Outcome),
		DurationMS: max(o.Ended.Sub(s.began).Milliseconds(), 0), Evidence: string(o.Evidence),
	}
	if o.Status >= 100 && o.Status < 600 {
		x.Status = o.Status
	}
	if n, err := strconv.ParseInt(o.Code, 10, 64); err == nil && n > -1<<53 && n < 1<<53 {
		x.RPCCode = &n
	}
	x.RequestDigest, x.ResponseDigest = b.request.digest(), b.response.digest()
	return x
}

// kindOf names the kind of a call, which tells nothing of its contents.
func kindOf(o *Observed) string {
	switch o.Method {
	case "tools/call":
		return "tool_call"
	case "resources/read":
		return "resource_read"
	case "prompts/get":
		return "prompt_get"
	}
	if o.Protocol == A2A && o.Card == nil {
		return "agent_task"
	}
	return ""
}

// toolOf is the name of the tool or prompt, if a receipt may bear it. What names a
// resource may be anything.
func toolOf(o *Observed) string {
	const bound = 256
	named := o.Method == "tools/call" || o.Method == "prompts/get"
	if !named || o.Target == "" || !utf8.ValidString(o.Target) || len(utf16.Encode([]rune(o.Target))) > bound {
		return kindOf(o)
	}
	if text, _ := json.Marshal(o.Target); peac.CheckIJSON(text) != nil { // with a noncharacter it could not be signed
		return kindOf(o)
	}
	return o.Target
}

// instant is the form of times in receipts: whole seconds, which are never after
// what was issued in the same one.
func instant(t time.Time) string { return t.UTC().Truncate(time.Second).Format(time.RFC3339) }
