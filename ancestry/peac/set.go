package peac

import (
	"maps"
	"slices"
	"strings"
)

// Fault is what is wrong with a set of receipts, beyond what each of them says.
type Fault struct {
	// Step and Ref name the step and the receipt, where it is about one.
	Step string `json:"step_id,omitempty"`
	Ref  string `json:"receipt_ref,omitempty"`
	Code Code   `json:"code"`
	What string `json:"message"`
}

// CheckSet says what is wrong with receipts as the record of one workflow: each
// is there once, all are of one workflow, every parent is a step that is there or
// one of external (steps that a peer carried in), no step leads to itself, and
// what tells of one step is one chain, without a fork. Receipts without a place
// in a workflow don't belong into the set. The order is that of the steps.
func CheckSet(receipts []Receipt, external []string) []Fault { return check(receipts, external, false) }

// check is CheckSet, also for some receipts of a workflow: what may be among the
// others is no fault then.
func check(receipts []Receipt, external []string, extract bool) []Fault {
	s := newSet(receipts)
	s.extract = extract
	s.unique(receipts)
	elsewhere := map[string]bool{}
	for _, step := range external {
		elsewhere[step] = true
	}
	steps := slices.Sorted(maps.Keys(s.steps))
	for _, step := range steps {
		for _, p := range s.parents[step] {
			if s.steps[p] == nil && !elsewhere[p] && !extract {
				s.fault(step, "", CodeParentNotFound, "its parent "+p+" is not there")
			}
		}
		s.chain(step)
	}
	for _, step := range s.cyclic() {
		s.fault(step, "", CodeCycleDetected, "it is on a cycle, or between two")
	}
	s.indexes(steps)
	return s.faults
}

// set is receipts by their steps.
type set struct {
	steps   map[string][]Receipt
	parents map[string][]string // by step, each once, as they are first named
	refs    map[string]bool
	extract bool // there are others
	faults  []Fault
}

func newSet(receipts []Receipt) *set {
	s := &set{steps: map[string][]Receipt{}, parents: map[string][]string{}, refs: map[string]bool{}}
	for _, r := range receipts {
		if r.Workflow == nil {
			s.fault("", r.Ref, CodeContextInvalid, "it has no place in a workflow")
			continue
		}
		step := r.Workflow.StepID
		s.refs[r.Ref] = true
		s.steps[step] = append(s.steps[step], r)
		for _, p := range r.Workflow.ParentStepIDs {
			if !slices.Contains(s.parents[step], p) {
				s.parents[step] = append(s.parents[step], p)
			}
		}
	}
	return s
}

func (s *set) fault(step, ref string, code Code, what string) {
	s.faults = append(s.faults, Fault{step, ref, code, what})
}

// unique checks that each receipt is there once, and all are of one workflow.
func (s *set) unique(receipts []Receipt) {
	refs, ids, of := map[string]bool{}, map[[2]string]bool{}, ""
	for _, r := range receipts {
		step := ""
		if w := r.Workflow; w != nil {
			step = w.StepID
			if of == "" {
				of = w.WorkflowID
			}
			if w.WorkflowID != of {
				s.fault(step, r.Ref, CodeDAGInvalid, "it is of another workflow, "+w.WorkflowID)
			}
		}
		id := [2]string{r.Claims.Issuer, r.Claims.ID}
		switch {
		case refs[r.Ref]:
			s.fault(step, r.Ref, CodeDuplicateRef, "the receipt is there twice")
		case ids[id]:
			s.fault(step, r.Ref, CodeDAGInvalid, "two receipts have its id")
		}
		refs[r.Ref], ids[id] = true, true
	}
}

// chain checks that the receipts of a step follow one another.
func (s *set) chain(step string) {
	links := s.steps[step]
	heads, after, own := 0, map[string]bool{}, map[string]bool{}
	for _, r := range links {
		own[r.Ref] = true
	}
	for _, r := range links {
		prev := r.Workflow.PrevReceiptHash
		if prev != "" && after[prev] {
			s.fault(step, r.Ref, CodeDAGInvalid, "two receipts follow the same one")
		}
		after[prev] = true
		if !own[prev] {
			heads++
		}
		if prev != "" && !s.refs[prev] && !s.extract {
			s.fault(step, r.Ref, CodeDAGInvalid, "the receipt before it is not there")
		}
	}
	if heads != 1 && !s.extract {
		s.fault(step, "", CodeDAGInvalid, "its receipts are not one chain")
	}
}

// cyclic returns the steps that lie on a cycle or between two, in order. It takes
// away what nothing leads to, and what leads to nothing, for as long as there is
// any: what is left goes round. Nothing is called for a step, however deep they
// go.
func (s *set) cyclic() []string {
	next, prev := map[string][]string{}, map[string][]string{}
	for step := range s.steps {
		for _, p := range s.parents[step] {
			if s.steps[p] != nil {
				next[p], prev[step] = append(next[p], step), append(prev[step], p)
			}
		}
	}
	left := map[string]bool{}
	for step := range s.steps {
		left[step] = true
	}
	for _, way := range []struct{ in, out map[string][]string }{{prev, next}, {next, prev}} {
		waits, free := map[string]int{}, []string{}
		for step := range left {
			for _, p := range way.in[step] {
				if left[p] {
					waits[step]++
				}
			}
			if waits[step] == 0 {
				free = append(free, step)
			}
		}
		for len(free) > 0 {
			step := free[len(free)-1]
			free = free[:len(free)-1]
			delete(left, step)
			for _, o := range way.out[step] {
				if waits[o]--; waits[o] == 0 && left[o] {
					free = append(free, o)
				}
			}
		}
	}
	return slices.Sorted(maps.Keys(left))
}

// indexes checks the numbers of steps, where they have some.
func (s *set) indexes(steps []string) {
	at := map[int64]string{}
	for _, step := range steps {
		for _, r := range s.steps[step] {
			i, total := r.Workflow.StepIndex, r.Workflow.StepTotal
			if i == nil {
				continue
			}
			if other := at[*i]; other != "" && other != step {
				s.fault(step, r.Ref, CodeDAGInvalid, "another step has its index")
			}
			if at[*i] = step; total != nil && *i >= *total {
				s.fault(step, r.Ref, CodeDAGInvalid, "its index is not below the total")
			}
		}
	}
}

// CheckSummary says what is wrong with a receipt as the summary of receipts: it
// has to be of their issuer and workflow, count and commit to all of them, and
// name none, and no failed step, that isn't there; nor an agent that none of them
// names, if they name any.
func CheckSummary(summary Receipt, receipts []Receipt) []Fault {
	return checkSummaryOf(summary, receipts, nil)
}

// checkSummaryOf is CheckSummary, also for some receipts, each of which was proven
// to be in the commitment all.
func checkSummaryOf(summary Receipt, receipts []Receipt, all *Commitment) (faults []Fault) {
	fault := func(what string) {
		faults = append(faults, Fault{Ref: summary.Ref, Code: CodeSummaryInvalid, What: what})
	}
	if summary.Summary == nil {
		fault("it is no summary")
		return faults
	}
	e, names, steps := summary.Summary.Evidence, map[string]bool{}, map[string]bool{}
	for _, r := range receipts {
		names[r.Ref], names["jti:"+r.Claims.ID] = true, true
		if r.Workflow != nil {
			steps[r.Workflow.StepID] = true
		}
		if r.Claims.Issuer != summary.Claims.Issuer || r.Workflow == nil || r.Workflow.WorkflowID != e.WorkflowID {
			fault("the receipt " + r.Ref + " is of another issuer or workflow")
		}
	}
	if all != nil {
		if e.ReceiptMerkleRoot != all.Root || e.ReceiptCount == nil || *e.ReceiptCount != all.TreeSize {
			fault("it commits to other receipts")
		}
		return append(faults, times(summary, receipts)...)
	}
	for _, named := range e.ReceiptRefs {
		if !names[named] {
			fault("it names a receipt that is not there: " + named)
		}
	}
	if e.ReceiptCount != nil && *e.ReceiptCount != int64(len(receipts)) {
		fault("it counts other receipts than there are")
	}
	if c, err := Commit(refsOf(receipts)); e.ReceiptMerkleRoot != "" && (err != nil || c.Root != e.ReceiptMerkleRoot) {
		fault("it commits to other receipts")
	}
	if e.ErrorContext != nil && !steps[e.ErrorContext.FailedStepID] {
		fault("the step that failed is not there")
	}
	agents := agentsOf(receipts)
	for _, agent := range e.AgentsInvolved {
		if len(agents) > 0 && !agents[agent] {
			fault("it names an agent that no receipt names: " + agent)
		}
	}
	return append(faults, times(summary, receipts)...)
}

// agentsOf returns the agents that receipts name as who acted, called or was called.
func agentsOf(receipts []Receipt) map[string]bool {
	agents := map[string]bool{}
	for _, r := range receipts {
		action, _ := r.Claims.Extensions[ActionGroup].(object)
		for _, member := range []string{"agent_ref", "caller_ref", "delegated_to_ref"} {
			if ref, named := action[member].(string); named {
				agents[ref] = true
			}
		}
	}
	return agents
}

// times checks that a summary comes after what it tells of.
func times(summary Receipt, receipts []Receipt) (faults []Fault) {
	issued, _ := moment(summary.Summary.IssuedAt, zulu)
	started, _ := moment(summary.Summary.Evidence.StartedAt, zulu)
	completed, ended := moment(summary.Summary.Evidence.CompletedAt, zulu)
	var what []string
	if started.After(issued) || ended && (completed.Before(started) || completed.After(issued)) {
		what = append(what, "its times are out of order")
	}
	if slices.ContainsFunc(receipts, func(r Receipt) bool { return r.Claims.IssuedAt > issued.Unix() }) {
		what = append(what, "it is older than a receipt")
	}
	if len(what) > 0 {
		faults = append(faults, Fault{Ref: summary.Ref, Code: CodeSummaryInvalid, What: strings.Join(what, ", ")})
	}
	return faults
}
