package audit

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// MaxEvents is how many events of a run are remembered, so that what names them
// as its cause can be checked. A longer log counts as not whole from there on.
const MaxEvents = 20_000

// Run checks the log of one run, event by event. The zero value is not usable;
// see NewRun.
type Run struct {
	model Model
	id    string

	next  int64               // the sequence number that comes next
	whole bool                // all before it were seen
	seen  map[string]struct{} // ids of the events so far

	agent      string
	iterations int64
	decisions  map[string]*decision
	latest     *decision
	last       *decision // the decision to terminate
	escalation *escalation
	chains     map[string]step   // by the id of the event that a next step may name
	open       int               // chains that have not ended
	children   map[string]string // child run → the phase that told of its end
	end        string            // the type of the event that ended the run
	found      []Finding         // by the event that is looked at
}

// decision is one of the planner's.
type decision struct {
	event      string
	kind       string
	workers    []string
	confidence *float64
	escalation *escalation
}

// escalation is what must happen before a decision under the floor is carried
// out.
type escalation struct {
	confidence float64
	cause      string
	asked      bool
	answered   bool
	taken      bool // by the decision that it is about
}

// chain is one worker's way from dispatch to harvest.
type chain struct {
	worker, child string
	phase         string
}

// step is an event of a chain.
type step struct {
	chain *chain
	phase string
}

// NewRun returns a checker for the log of one run of a host with that model.
func NewRun(id string, m Model) *Run {
	return &Run{
		model: m, id: id, whole: true,
		seen:      make(map[string]struct{}),
		decisions: make(map[string]*decision),
		chains:    make(map[string]step),
		children:  make(map[string]string),
	}
}

// Event checks the next event of the log and returns what is wrong with it. An
// event that was seen before, as after a stream is resumed, is not looked at
// again; so is one that comes too late to be in order.
func (r *Run) Event(e Event) []Finding {
	if e.Sequence < r.next {
		return nil
	}
	if e.Sequence > r.next {
		r.whole = false
	}
	r.next = e.Sequence + 1
	if len(r.seen) < MaxEvents {
		r.seen[e.ID] = struct{}{}
	} else {
		r.whole = false
	}
	r.found = nil
	if r.end != "" {
		r.breach(RuleEnd, e, "%s after %s", e.Type, r.end)
	}
	r.look(e)
	return r.found
}

// look reads the payloads of the types that the rules know, in the spelling of
// either major. A payload of another shape than the type's is no evidence.
func (r *Run) look(e Event) {
	switch e.Type {
	case "runOrchestrator.decided", "orchestrator.decided":
		r.decided(e)
	case "core.workflowChain.event", "workflow-chain.event":
		r.handoff(e)
	case "core.workflowChain.confidence-escalated", "workflow-chain.confidence-escalated":
		r.escalated(e)
	case "interrupt.requested", "clarification.requested", "approval.requested", "node.suspended":
		r.asked(e)
	case "interrupt.resolved", "clarification.resolved", "approval.received", "approval.granted",
		"approval.rejected", "approval.overridden", "node.resumed":
		if r.escalation != nil && r.escalation.asked {
			r.escalation.answered = true
		}
	case "run.completed", "run.failed", "run.cancelled":
		r.ended(e)
	}
}

func (r *Run) breach(rule Rule, e Event, format string, args ...any) {
	r.found = append(r.found, Finding{
		Rule: rule, Run: r.id, Event: e.ID, Sequence: e.Sequence, Text: fmt.Sprintf(format, args...),
	})
}

// ID returns the run that the log is of.
func (r *Run) ID() string { return r.id }

// Next returns the sequence number behind the last event that was looked at.
func (r *Run) Next() int64 { return r.next }

// Ended reports whether the log has its end.
func (r *Run) Ended() bool { return r.end != "" }

// Held reports whether the latest decision may not be carried out yet: it is
// under the floor, and nobody has been asked about it and answered.
func (r *Run) Held() bool {
	d := r.latest
	return d != nil && r.under(d) && (d.escalation == nil || !d.escalation.answered)
}

// under reports whether the floor applies to d and d is under it.
func (r *Run) under(d *decision) bool {
	return d.confidence != nil && *d.confidence < r.model.floor() && (d.kind == "next-worker" || d.kind == "terminate") &&
		(r.model.Version < 0 || r.model.Version >= 2)
}

func (r *Run) decided(e Event) {
	var p struct {
		Agent     string `json:"agentId"`
		Iteration *int64 `json:"iteration"`
		Decision  struct {
			Kind       string   `json:"kind"`
			Workers    []string `json:"nextWorkerIds"`
			Confidence *float64 `json:"confidence"`
		} `json:"decision"`
	}
	if json.Unmarshal(e.Payload, &p) != nil || p.Decision.Kind == "" {
		return
	}
	if r.last != nil {
		r.breach(RuleAfterTerminate, e, "a decision after the decision to terminate, %s", r.last.event)
	}
	if r.whole && r.open > 0 {
		r.breach(RuleDecisionEarly, e, "a decision while %d dispatched workers have not ended", r.open)
	}
	if r.agent != "" && p.Agent != r.agent {
		r.breach(RuleAgent, e, "agent %s decides, and %s did before", p.Agent, r.agent)
	}
	r.agent = p.Agent
	r.count(e, p.Iteration)
	d := &decision{event: e.ID, kind: p.Decision.Kind, workers: p.Decision.Workers, confidence: p.Decision.Confidence}
	if x := r.escalation; x != nil && !x.taken && d.confidence != nil && x.confidence == *d.confidence {
		d.escalation, x.taken = x, true // the host has held it until it was answered
	}
	r.decisions[e.ID], r.latest = d, d
	if d.kind == "terminate" {
		r.last = d
	}
}

// count checks that decisions are counted without a gap, from level 5 on.
func (r *Run) count(e Event, iteration *int64) {
	switch {
	case iteration == nil && r.model.Version >= 5:
		r.breach(RuleIteration, e, "the decision has no iteration")
	case iteration == nil:
	case r.whole && *iteration != r.iterations+1:
		r.breach(RuleIteration, e, "iteration is %d after %d", *iteration, r.iterations)
		r.iterations = *iteration
	default:
		r.iterations = *iteration
	}
}

func (r *Run) escalated(e Event) {
	var p struct {
		Confidence *float64 `json:"confidence"`
		Floor      *float64 `json:"floor"`
		Parent     string   `json:"parentRunId"`
	}
	if json.Unmarshal(e.Payload, &p) != nil || p.Confidence == nil || p.Floor == nil {
		return
	}
	if r.model.Version >= 0 && r.model.Version < 2 {
		r.breach(RuleEscalationLevel, e, "an escalation, and the host advertises version %d", r.model.Version)
	}
	if *p.Confidence >= *p.Floor {
		r.breach(RuleEscalationFloor, e, "confidence %g is not under the floor %g", *p.Confidence, *p.Floor)
	}
	if r.model.Version >= 2 && *p.Floor != r.model.floor() {
		r.breach(RuleEscalationFloor, e, "the floor is %g, and %g is advertised", *p.Floor, r.model.floor())
	}
	r.parent(e, p.Parent)
	if _, ok := r.seen[e.Cause]; e.Cause != "" && !ok && r.whole {
		r.breach(RuleEscalationCause, e, "causationId %s is not on this log", e.Cause)
	}
	r.escalation = &escalation{confidence: *p.Confidence, cause: e.Cause}
	d := r.decisions[e.Cause]
	if d == nil && r.latest != nil && r.latest.escalation == nil && r.latest.confidence != nil && *r.latest.confidence == *p.Confidence {
		d = r.latest
	}
	if d != nil && d.escalation == nil {
		d.escalation, r.escalation.taken = r.escalation, true
	}
}

// asked notes the interrupt by which an escalation asks a human.
func (r *Run) asked(e Event) {
	x := r.escalation
	if x == nil || x.asked {
		return
	}
	kind, _, _ := strings.Cut(e.Type, ".")
	if kind != "clarification" && kind != "approval" {
		var p struct {
			Kind string `json:"kind"`
		}
		_ = json.Unmarshal(e.Payload, &p) // of another shape: its kind is not known
		kind = p.Kind
	}
	x.asked = true
	if want := r.model.InterruptKind; want != "" && kind != "" && kind != want && !strings.HasPrefix(want, "x-host-") {
		r.breach(RuleEscalationKind, e, "the escalation asks by %s, and %s is advertised", kind, want)
	}
}

// parent checks the run that a payload names as the planner's.
func (r *Run) parent(e Event, named string) {
	if named != "" && named != e.Run {
		r.breach(RuleHandoffParent, e, "parentRunId is %s", named)
	}
}

func (r *Run) ended(e Event) {
	if r.end != "" {
		return // said already
	}
	r.end = e.Type
	if d := r.last; d != nil && e.Type == "run.completed" {
		r.carriedOut(d, e)
	}
}

// carriedOut checks that d may be carried out now.
func (r *Run) carriedOut(d *decision, e Event) {
	switch x := d.escalation; {
	case !r.under(d):
	case x == nil && r.whole:
		r.breach(RuleConfidenceSkipped, e, "decision %s has confidence %g, under the floor %g, and was not escalated", d.event, *d.confidence, r.model.floor())
	case x != nil && !x.answered && r.whole:
		r.breach(RuleConfidenceOrder, e, "decision %s was escalated, and is carried out before an answer", d.event)
	}
}

// follows says which phase each phase must name as its cause.
var follows = map[string]string{
	"dispatch.succeeded": "dispatch.began",
	"dispatch.failed":    "dispatch.began",
	"child.completed":    "dispatch.succeeded",
	"child.failed":       "dispatch.succeeded",
	"child.cancelled":    "dispatch.succeeded",
	"output.harvested":   "child.completed",
}

// handoffPayload is that of an event of the handoff state machine.
type handoffPayload struct {
	Phase     string    `json:"phase"`
	Worker    string    `json:"workerId"`
	Parent    string    `json:"parentRunId"`
	Child     string    `json:"childRunId"`
	Harvested *[]string `json:"harvestedKeys"`
	CauseHost string    `json:"causationHostId"` // of a cause that is on another host's log
}

func (r *Run) handoff(e Event) {
	var p handoffPayload
	if json.Unmarshal(e.Payload, &p) != nil || p.Phase == "" {
		return
	}
	if r.model.Version == 0 {
		r.breach(RuleModelUnadvertised, e, "a handoff, and the host advertises no execution model")
	}
	r.parent(e, p.Parent)
	if early := p.Phase == "dispatch.began" || p.Phase == "dispatch.failed"; early != (p.Child == "") {
		if early {
			r.breach(RuleHandoffChild, e, "%s names childRunId %s", p.Phase, p.Child)
		} else {
			r.breach(RuleHandoffChild, e, "%s has no childRunId", p.Phase)
		}
	}
	if p.Phase == "dispatch.began" {
		r.began(e, p)
		return
	}
	r.proceeded(e, p)
}

// began opens a chain.
func (r *Run) began(e Event, p handoffPayload) {
	r.chains[e.ID] = step{&chain{worker: p.Worker, phase: p.Phase}, p.Phase}
	r.open++
	d := r.decisions[e.Cause]
	switch {
	case d == nil && r.whole && p.CauseHost == "":
		r.breach(RuleHandoffCause, e, "the causationId of dispatch.began, %q, is no decision", e.Cause)
		return
	case d == nil:
		return
	case d.kind == "terminate":
		r.breach(RuleAfterTerminate, e, "a dispatch by the decision to terminate")
	case !slices.Contains(d.workers, p.Worker):
		r.breach(RuleHandoffWorker, e, "worker %s is not among those decided on: %s", p.Worker, strings.Join(d.workers, ", "))
	}
	r.carriedOut(d, e)
}

// proceeded follows a chain by the event that it names as its cause.
func (r *Run) proceeded(e Event, p handoffPayload) {
	want, known := follows[p.Phase]
	from, ok := r.chains[e.Cause]
	if !known || !ok {
		if known && r.whole && p.CauseHost == "" {
			r.breach(RuleHandoffCause, e, "the causationId of %s, %q, is no event of a handoff", p.Phase, e.Cause)
		}
		return
	}
	c := from.chain
	switch {
	case from.phase != want && p.Phase == "output.harvested":
		r.breach(RuleHarvest, e, "output is harvested after %s", from.phase)
	case from.phase != want:
		r.breach(RuleHandoffCause, e, "%s must follow from a %s, and names a %s", p.Phase, want, from.phase)
	case c.phase == p.Phase && p.Phase == "dispatch.failed":
		r.breach(RuleDispatchFailedOnce, e, "the dispatch of %s fails a second time", c.worker)
	case c.phase != want:
		r.breach(RuleHandoffOrder, e, "%s after %s", p.Phase, c.phase)
	}
	if c.worker != p.Worker {
		r.breach(RuleHandoffWorker, e, "worker %s, and the handoff began with %s", p.Worker, c.worker)
	}
	if c.child != "" && p.Child != "" && p.Child != c.child {
		r.breach(RuleHandoffChild, e, "childRunId %s, and it was %s before", p.Child, c.child)
	}
	if p.Phase == "output.harvested" && p.Harvested != nil && len(*p.Harvested) == 0 {
		r.breach(RuleHarvest, e, "nothing is harvested: harvestedKeys is empty")
	}
	r.proceed(e, c, p)
}

// proceed moves a chain on.
func (r *Run) proceed(e Event, c *chain, p handoffPayload) {
	if ends(p.Phase) && !ends(c.phase) && c.phase != "output.harvested" {
		r.open--
	}
	if strings.HasPrefix(p.Phase, "child.") && p.Child != "" {
		r.children[p.Child] = p.Phase
	}
	c.phase = p.Phase
	if c.child == "" {
		c.child = p.Child
	}
	r.chains[e.ID] = step{c, p.Phase}
}

// ends reports whether a worker is no longer out in that phase.
func ends(phase string) bool {
	return phase == "dispatch.failed" || strings.HasPrefix(phase, "child.")
}
