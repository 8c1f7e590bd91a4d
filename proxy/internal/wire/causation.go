package wire

import "slices"

// Causation is an event on another host that is known to have caused events of
// a run.
type Causation struct {
	Event string // its id, which no event of the run's own host has by chance
	Host  string // the hostId of the host that it is an event of
	Limit int    // a longer event of the run passes as it is, in every rendering
}

// CausationOutcome says what became of an event, or of a document that events
// were looked for in. An event that is not caused by the one that is known has
// none.
type CausationOutcome string

// The outcomes.
const (
	CausationAnnotated CausationOutcome = "annotated" // it names the host now
	CausationOwn       CausationOutcome = "own"       // the host itself says something in that place
	CausationCollision CausationOutcome = "collision" // the run has an event of the same id: nothing is known for certain
	CausationAmbiguous CausationOutcome = "ambiguous" // a key that matters occurs twice, or in another case
	CausationTooLarge  CausationOutcome = "too-large" // the event is longer than the limit
	CausationUnread    CausationOutcome = "unread"    // a document that can't be read, or is in a form that is not known
)

var causationOutcomes = []CausationOutcome{
	CausationAnnotated, CausationOwn, CausationCollision, CausationAmbiguous, CausationTooLarge, CausationUnread,
}

// CausationOutcomes returns every outcome there is.
func CausationOutcomes() []CausationOutcome { return slices.Clone(causationOutcomes) }

// causedTypes are the events whose payload may name the host of their cause, as
// v1 and v2 spell them. core.workflowChain.confidence-escalated declares the
// member, too, but its cause stands in its own log by definition.
var causedTypes = map[string]bool{
	"core.workflowChain.event": true, "workflow-chain.event": true,
	"agent.reasoned":   true,
	"agent.toolCalled": true, "agent.tool-called": true,
	"agent.toolReturned": true, "agent.tool-returned": true,
	"agent.handoff":           true,
	"agent.decided":           true,
	"runOrchestrator.decided": true, "orchestrator.decided": true,
	"prompt.composed":      true,
	"agent.promptResolved": true, "agent.prompt-resolved": true,
	"agent.verified": true,
}

const (
	atEvent = envelope + iota
	atEventID
	atEventType
	atEventCause
	atPayload
	atCauseHost
	atSpecVersion
	atData
	atEvents
	eventSlots
)

var eventEdges = []edge{
	on("eventId", atEventID, guardOpenWOP),
	on("type", atEventType, guardOpenWOP),
	on("causationId", atEventCause, guardOpenWOP),
	on("payload", atPayload, guardOpenWOP, on("causationHostId", atCauseHost, guardOpenWOP)),
	on("specversion", atSpecVersion, guardOpenWOP),
	on("data", atData, guardOpenWOP),
}

// eventTree is what to watch in an event, and eventsTree in a document that is
// one, or has a list of them.
var (
	eventTree  = &node{atEvent, guardOpenWOP, eventEdges}
	eventsTree = &node{atEvent, guardOpenWOP, append([]edge{on("events", atEvents, guardOpenWOP)}, eventEdges...)}
)

// Annotate returns body with payload.causationHostId in each event that c has
// caused: body is one event, a list of them, or an object that has such a list, as
// the answer to a poll. Nothing else changes, and if nothing does, body itself is
// returned. note is given the outcome of every event that has one, and if it is
// left as it is for a fault in its form, which. What Annotate adds has no line
// break.
//
// A CloudEvent is a frame around the event in its data.
func (c Causation) Annotate(body []byte, note func(CausationOutcome, Refusal)) []byte {
	if len(body) > maxBody {
		note(CausationUnread, RefusedTooLarge)
		return body
	}
	d := doc{body: body}
	if why := d.scan(eventsTree); why != "" {
		note(CausationUnread, why)
		return body
	}
	a := annotation{c: c}
	switch why := d.ambiguous(guardOpenWOP); {
	case why != "" && !d.has(atSpecVersion): // whose attributes are in lower case
		note(CausationAmbiguous, why)
		return body
	case d.first(atEvent) == '[':
		a.list(body, int(d.at[atEvent].from))
	case d.first(atEvents) == '[' && !d.has(atEventType):
		a.list(body, int(d.at[atEvents].from))
	case d.first(atEvent) == '{':
		a.event(&d)
	}
	if slices.Contains(a.noted, noted{CausationCollision, ""}) {
		note(CausationCollision, "")
		return body
	}
	for _, n := range a.noted {
		note(n.outcome, n.why)
	}
	if len(a.patches) == 0 {
		return body
	}
	return applied(body, a.patches)
}

// annotation collects the patches of one document.
type annotation struct {
	c       Causation
	noted   []noted
	patches []patch
}

type noted struct {
	outcome CausationOutcome
	why     Refusal
}

// list takes each element of the array at from, which is known to be one.
func (a *annotation) list(body []byte, from int) {
	one := doc{body: body}
	one.array(from, 1, func(i int) int {
		one.at, one.twice, one.variant = [slots]span{}, 0, 0
		i = one.value(i, 1, eventTree)
		if one.first(atEvent) == '{' {
			a.event(&one)
		}
		return i
	})
}

// longestEscaped is how long an event id or type may be as written, where each
// of 128 characters may be an escape.
const longestEscaped = 6 * 128

func (a *annotation) event(d *doc) {
	if d.has(atSpecVersion) {
		a.cloudEvent(d)
		return
	}
	outcome, why := a.judge(d)
	if outcome == "" {
		return
	}
	a.noted = append(a.noted, noted{outcome, why})
	if outcome != CausationAnnotated {
		return
	}
	at := d.at[atPayload]
	text := append([]byte(`"causationHostId":`), appendQuoted(nil, a.c.Host)...)
	if at.members > 0 {
		text = append(text, ',')
	}
	a.patches = append(a.patches, patch{int(at.from) + 1, int(at.from) + 1, text})
}

// cloudEvent takes the event inside of a CloudEvent. In one that has spread the
// event over its own attributes, nothing says where its members are.
func (a *annotation) cloudEvent(d *doc) {
	inner := doc{body: d.body}
	if d.first(atData) == '{' {
		inner.value(int(d.at[atData].from), 1, eventTree)
	}
	if !inner.has(atEventID) || inner.has(atSpecVersion) {
		a.noted = append(a.noted, noted{CausationUnread, RefusedUnrecognised})
		return
	}
	a.event(&inner)
}

// judge says what is to become of an event, and which fault in its form speaks
// against an edit.
func (a *annotation) judge(d *doc) (CausationOutcome, Refusal) {
	switch why := d.ambiguous(guardOpenWOP); {
	case why != "":
		return CausationAmbiguous, why
	case d.text(atEventID, longestEscaped) == a.c.Event:
		return CausationCollision, ""
	case d.text(atEventCause, longestEscaped) != a.c.Event,
		!causedTypes[d.text(atEventType, longestEscaped)], d.first(atPayload) != '{':
		return "", ""
	case d.has(atCauseHost):
		return CausationOwn, ""
	case int(d.at[atEvent].to-d.at[atEvent].from) > a.c.Limit:
		return CausationTooLarge, RefusedTooLarge
	}
	return CausationAnnotated, ""
}
