package audit

import (
	"encoding/json"
	"fmt"
)

// Rule names what was broken, from a closed set.
type Rule string

// The rules. The first group is RFC 0037 B, the second RFC 0039 A, the third
// RFC 0039 B.
const (
	RuleModelUnadvertised  Rule = "model-unadvertised"   // a handoff on a host that does not advertise the execution model
	RuleHandoffOrder       Rule = "handoff-order"        // a phase that may not follow the one before
	RuleHandoffCause       Rule = "handoff-cause"        // causationId is not the event that the phase must follow from
	RuleHandoffChild       Rule = "handoff-child"        // childRunId is missing, stands where it must not, or changes
	RuleHandoffWorker      Rule = "handoff-worker"       // the worker was not decided on, or changes
	RuleHandoffParent      Rule = "handoff-parent"       // parentRunId is not the run of the log
	RuleDispatchFailedOnce Rule = "dispatch-failed-once" // one dispatch has failed more than once
	RuleHarvest            Rule = "harvest"              // output taken from a child that has not completed, or none of it
	RuleChildOutcome       Rule = "child-outcome"        // what is said of a child's end is not how it ended
	RuleDecisionEarly      Rule = "decision-early"       // a decision while a worker of the one before is still out
	RuleAfterTerminate     Rule = "after-terminate"      // a decision or a dispatch after the decision to terminate
	RuleAgent              Rule = "agent"                // another agent decides than the one that began
	RuleIteration          Rule = "iteration"            // decisions are not counted 1, 2, 3
	RuleEnd                Rule = "end"                  // events after the run's end, or a second end

	RuleConfidenceSkipped Rule = "confidence-skipped" // a decision under the floor was carried out without escalation
	RuleConfidenceOrder   Rule = "confidence-order"   // it was carried out before the escalation was asked and answered
	RuleEscalationFloor   Rule = "escalation-floor"   // an escalation that is not under the floor, or names another floor
	RuleEscalationLevel   Rule = "escalation-level"   // an escalation on a host that does not advertise version 2
	RuleEscalationCause   Rule = "escalation-cause"   // its causationId is not on this log
	RuleEscalationKind    Rule = "escalation-kind"    // it asks by another interrupt than is advertised

	RuleMemoryExpiry Rule = "memory-expiry" // an entry's expiry does not follow from when it was written
	RuleForkRefusal  Rule = "fork-refusal"  // a fork refused for want of memory in the wrong form
)

// Rules lists the closed set.
func Rules() []Rule {
	return []Rule{
		RuleModelUnadvertised, RuleHandoffOrder, RuleHandoffCause, RuleHandoffChild, RuleHandoffWorker,
		RuleHandoffParent, RuleDispatchFailedOnce, RuleHarvest, RuleChildOutcome, RuleDecisionEarly,
		RuleAfterTerminate, RuleAgent, RuleIteration, RuleEnd,
		RuleConfidenceSkipped, RuleConfidenceOrder, RuleEscalationFloor, RuleEscalationLevel,
		RuleEscalationCause, RuleEscalationKind,
		RuleMemoryExpiry, RuleForkRefusal,
	}
}

// Finding is one breach of a rule.
type Finding struct {
	Rule     Rule   `json:"rule"`
	Run      string `json:"runId"`
	Event    string `json:"eventId,omitempty"`
	Sequence int64  `json:"sequence"`
	Text     string `json:"text"`
}

func (f Finding) String() string {
	return fmt.Sprintf("%s #%d %s: %s", f.Run, f.Sequence, f.Rule, f.Text)
}

// Model is what the host advertises of its execution model.
type Model struct {
	// Version is multiAgent.executionModel.version; 0 if none is advertised, -1
	// if it is not known. What is not known breaks no rule.
	Version int
	// Floor is confidenceEscalationFloor; 0 means the default, 0.5.
	Floor float64
	// InterruptKind is confidenceEscalationInterruptKind; empty: not advertised.
	InterruptKind string
}

// UnknownModel is that of a host whose discovery was not seen.
var UnknownModel = Model{Version: -1}

func (m Model) floor() float64 {
	if m.Floor == 0 {
		return 0.5
	}
	return m.Floor
}

// ParseDiscovery reads the model from a discovery document of either major.
func ParseDiscovery(doc []byte) (Model, error) {
	var d struct {
		MultiAgent struct {
			Model *struct {
				Supported     *bool   `json:"supported"` // v1 alone has it
				Version       int     `json:"version"`
				Floor         float64 `json:"confidenceEscalationFloor"`
				InterruptKind string  `json:"confidenceEscalationInterruptKind"`
			} `json:"executionModel"`
		} `json:"multiAgent"`
	}
	if err := json.Unmarshal(doc, &d); err != nil {
		return UnknownModel, fmt.Errorf("discovery: %w", err)
	}
	m := d.MultiAgent.Model
	if m == nil || m.Supported != nil && !*m.Supported {
		return Model{}, nil
	}
	if m.Floor != 0 && (m.Floor < 0.5 || m.Floor > 1) {
		return UnknownModel, fmt.Errorf("discovery: confidenceEscalationFloor is %g, want 0.5 to 1", m.Floor)
	}
	return Model{Version: m.Version, Floor: m.Floor, InterruptKind: m.InterruptKind}, nil
}
