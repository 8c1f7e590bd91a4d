package peac

import (
	"encoding/json"
	"regexp"
	"slices"
)

// WorkflowGroup is the extension of a receipt that has its WorkflowContext.
const WorkflowGroup = "org.peacprotocol/workflow"

// maxParents is how many parents a step may name.
const maxParents = 16

var (
	workflowID = regexp.MustCompile(`^wf_[a-zA-Z0-9_-]{20,48}$`)
	stepID     = regexp.MustCompile(`^step_[a-zA-Z0-9_-]{20,48}$`)
	framework  = regexp.MustCompile(`^[a-z][a-z0-9_-]*$`)
	hashRef    = regexp.MustCompile(`^sha256:[a-f0-9]{64}$`)
)

// WorkflowContext is the place of a step in the graph of its workflow. What is
// optional is absent where it is empty. Lengths are UTF-16 code units.
type WorkflowContext struct {
	// WorkflowID is wf_ and 20 to 48 letters, digits, - and _.
	WorkflowID string `json:"workflow_id"`
	// StepID is step_ and the like.
	StepID string `json:"step_id"`
	// ParentStepIDs are the steps that led to this one: at most 16, each once and
	// not itself. A root has none, which is written [] and not left out.
	ParentStepIDs []string `json:"parent_step_ids"`
	// OrchestratorID names who directs the workflow, in at most 256.
	OrchestratorID string `json:"orchestrator_id,omitempty"`
	// OrchestratorReceiptRef names the receipt that opened the workflow, in at
	// most 256: jti: and its id while it is not signed yet.
	OrchestratorReceiptRef string `json:"orchestrator_receipt_ref,omitempty"`
	// StepIndex counts from 0; StepTotal is at least 1. Neither is beyond 2^53−1.
	StepIndex *int64 `json:"step_index,omitempty"`
	StepTotal *int64 `json:"step_total,omitempty"`
	// ToolName is what was called, in at most 256.
	ToolName string `json:"tool_name,omitempty"`
	// Framework is an identifier in lower case, in at most 64: mcp, a2a.
	Framework string `json:"framework,omitempty"`
	// PrevReceiptHash is the reference of the receipt before this one, if both
	// tell of the same step.
	PrevReceiptHash string `json:"prev_receipt_hash,omitempty"`
}

// MarshalJSON writes the context; a root has an empty list of parents.
func (w WorkflowContext) MarshalJSON() ([]byte, error) {
	type plain WorkflowContext
	if w.ParentStepIDs == nil {
		w.ParentStepIDs = []string{}
	}
	return json.Marshal(plain(w))
}

// Validate checks w by the rules and in the order of ParseWorkflowContext.
func (w WorkflowContext) Validate() error {
	raw, err := marshal(w)
	if err != nil {
		return err
	}
	_, err = ParseWorkflowContext(raw)
	return err
}

// ParseWorkflowContext reads the value of a receipt's WorkflowGroup. PEAC fixes
// the order of the checks: the first that fails gives the code. What isn't I-JSON
// comes before all of them.
func ParseWorkflowContext(raw []byte) (WorkflowContext, error) {
	v, err := parse(raw)
	if err == nil {
		err = checkContext(v)
	}
	var w WorkflowContext
	if err != nil {
		return w, err
	}
	return w, decode(v, &w)
}

// decode fills to with v, which was checked: it can't fail.
func decode(v, to any) error { return json.Unmarshal(appendValue(nil, v), to) }

// checkContext applies PEAC's ordered checks to a value.
func checkContext(v any) error {
	o, isObject := v.(object)
	if _, isArray := v.([]any); !isObject && !isArray {
		return fail(CodeContextInvalid, "no object")
	}
	if !matches(o["workflow_id"], workflowID) {
		return fail(CodeWorkflowIDInvalid, "workflow_id is none")
	}
	if !matches(o["step_id"], stepID) {
		return fail(CodeStepIDInvalid, "step_id is none")
	}
	parents, isArray := o["parent_step_ids"].([]any)
	if len(parents) > maxParents {
		return fail(CodeLimitExceeded, "parent_step_ids has %d, at most %d may be there", len(parents), maxParents)
	}
	if name, there := o["framework"]; there && (!matches(name, framework) || len(name.(string)) > 64) {
		return fail(CodeContextInvalid, "framework is no identifier in lower case of at most 64")
	}
	if hash, there := o["prev_receipt_hash"]; there && !matches(hash, hashRef) {
		return fail(CodeContextInvalid, "prev_receipt_hash is no sha256: and 64 hex digits")
	}
	if slices.Contains(primitives(parents), o["step_id"]) {
		return fail(CodeDAGInvalid, "the step is its own parent")
	}
	if seen := map[any]bool{}; slices.ContainsFunc(primitives(parents), func(p any) bool {
		twice := seen[p]
		seen[p] = true
		return twice
	}) {
		return fail(CodeDAGInvalid, "a parent is named twice")
	}
	if !isArray || slices.ContainsFunc(parents, func(p any) bool { return !matches(p, stepID) }) {
		return fail(CodeContextInvalid, "parent_step_ids is no list of step ids")
	}
	return closed(CodeContextInvalid, o, []rule{
		{"workflow_id", true, nil}, {"step_id", true, nil}, {"parent_step_ids", true, nil},
		{"framework", false, nil}, {"prev_receipt_hash", false, nil},
		{"orchestrator_id", false, upTo(256)}, {"orchestrator_receipt_ref", false, upTo(256)},
		{"tool_name", false, upTo(256)}, {"step_index", false, integer(0)}, {"step_total", false, integer(1)},
	})
}

// primitives are the items that equal one another if they look the same.
func primitives(items []any) (found []any) {
	for _, item := range items {
		switch item.(type) {
		case object, []any:
		default:
			found = append(found, item)
		}
	}
	return found
}

func matches(v any, pattern *regexp.Regexp) bool {
	s, ok := v.(string)
	return ok && pattern.MatchString(s)
}

// rule says what a member of a closed object has to be; nil is anything.
type rule struct {
	name     string
	required bool
	holds    func(any) bool
}

// closed checks that o has what rules require, and nothing that they don't know.
// The code is that of any fault.
func closed(code Code, o object, rules []rule) error {
	known := 0
	for _, r := range rules {
		v, there := o[r.name]
		switch {
		case !there && r.required:
			return fail(code, "%s is missing", r.name)
		case there && r.holds != nil && !r.holds(v):
			return fail(code, "%s is not what it has to be", r.name)
		case there:
			known++
		}
	}
	if known != len(o) {
		return fail(code, "a member is there that is not known")
	}
	return nil
}

func upTo(most int) func(any) bool { return between(0, most) }

func between(least, most int) func(any) bool {
	return func(v any) bool {
		s, ok := v.(string)
		return ok && least <= length(s) && length(s) <= most
	}
}

func like(pattern *regexp.Regexp) func(any) bool {
	return func(v any) bool { return matches(v, pattern) }
}

func integer(least float64) func(any) bool {
	return func(v any) bool {
		f, ok := v.(float64)
		return ok && f >= least && f == float64(int64(f))
	}
}

func oneOf(words ...string) func(any) bool {
	return func(v any) bool {
		s, ok := v.(string)
		return ok && slices.Contains(words, s)
	}
}

// listOf is a list of at most most items that item holds for.
func listOf(most int, item func(any) bool) func(any) bool {
	return func(v any) bool {
		items, ok := v.([]any)
		return ok && len(items) <= most && !slices.ContainsFunc(items, func(x any) bool { return !item(x) })
	}
}
