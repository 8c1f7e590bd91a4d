package evidence

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/wopproxy/wopproxy/ancestry/peac"
)

// after returns an office that takes over the store of one before.
func after(t *testing.T, before *office, tune ...func(*Options)) *office {
	t.Helper()
	return newOffice(t, append([]func(*Options){func(o *Options) { o.Store.(*gate).Memory = before.store.Memory }}, tune...)...)
}

// parentsOf returns what the receipts of a workflow say of the parents of each step.
func (of *office) parentsOf(t *testing.T, workflow string) map[string][]string {
	t.Helper()
	receipts, external := of.receipts(t, workflow)
	if faults := peac.CheckSet(receipts, external); len(faults) > 0 {
		t.Errorf("faults of the set: %+v", faults)
	}
	parents := map[string][]string{}
	for _, r := range receipts {
		parents[r.Workflow.StepID] = r.Workflow.ParentStepIDs
	}
	return parents
}

// TestResume has a run go on after a restart: its steps have the parents of which
// there are receipts, and no others.
func TestResume(t *testing.T) {
	began := time.Now().Add(-time.Minute)
	tick := func() time.Time { began = began.Add(time.Second); return began }
	before := newOffice(t)
	run, other := before.Open("run_1", Origin{}), before.Open("run_2", Origin{})
	other.Workflow = run.Workflow // as one that it has begun itself
	one := before.Arrive(run, Place{}, tick())
	before.State(one, "working", ended(Ongoing)) // told later than what follows begins
	two := before.Arrive(run, Place{}, tick())
	call := before.Leave(run, tick())
	lost := before.Arrive(run, Place{}, tick()) // killed before it ends
	others := before.Arrive(other, Place{}, tick())
	for _, s := range []*Step{two, one, others} {
		before.End(s, ended(OK))
	}
	before.End(call, Observed{Direction: Egress, Protocol: MCP, Outcome: OK, Ended: time.Now()})
	before.work()
	before.stop()

	of := after(t, before)
	resumed := of.Resume("run_1", run.Workflow)
	first := of.Leave(resumed, tick())
	early := of.Leave(resumed, one.began.Add(time.Millisecond)) // by a clock that was set back
	three := of.Arrive(of.Resume("run_1", run.Workflow), Place{}, tick())
	second := of.Leave(resumed, tick())
	four := of.Arrive(resumed, Place{run.Workflow, "step_0123456789-0123456789_"}, tick())
	five := of.Arrive(resumed, Place{}, tick())
	for _, s := range []*Step{three, four, five} {
		of.State(s, "working", ended(Ongoing))
		of.End(s, ended(OK))
	}
	for _, s := range []*Step{first, second, early} {
		of.End(s, Observed{Direction: Egress, Protocol: MCP, Outcome: OK, Ended: time.Now()})
	}
	of.work()
	of.stop()
	parents := of.parentsOf(t, run.Workflow)
	for s, want := range map[*Step][]string{
		first: {one.Step, two.Step}, three: {two.Step}, second: {one.Step, two.Step, three.Step},
		early: {one.Step}, four: {"step_0123456789-0123456789_"}, five: {four.Step},
	} {
		if got := parents[s.Step]; !slices.Equal(got, want) {
			t.Errorf("parents of the step that began at %v: %v, want %v", s.began, got, want)
		}
	}
	if parents[lost.Step] != nil {
		t.Error("a step that nothing has told of has a receipt")
	}
	receipts, _ := of.receipts(t, run.Workflow)
	for _, r := range receipts {
		if r.Workflow.StepID == three.Step && group(t, r, peac.CorrelationGroup, "parent_jti") != two.id {
			t.Errorf("parent_jti = %v, want %s", group(t, r, peac.CorrelationGroup, "parent_jti"), two.id)
		}
	}
}

// TestResumeSealed has what was signed at once be stored as any other, and be a parent
// once.
func TestResumeSealed(t *testing.T) {
	before := newOffice(t)
	run := before.Open("run_1", Origin{})
	one := before.Arrive(run, Place{}, time.Now().Add(-time.Minute))
	before.End(one, ended(OK))
	before.work()
	before.stop()

	of := after(t, before)
	of.work()
	resumed := of.Resume("run_1", run.Workflow)
	if ref, _ := of.Seal(of.Arrive(resumed, Place{}, time.Now().Add(-40*time.Second)), ended(OK)); ref != "" {
		t.Error("a step was sealed whose parents only the store knows")
	}
	of.stop()

	of = after(t, before)
	of.work()
	resumed = of.Resume("run_1", run.Workflow)
	two := of.Arrive(resumed, Place{run.Workflow, "step_0123456789-0123456789_"}, time.Now().Add(-30*time.Second))
	if ref, _ := of.Seal(two, ended(OK)); ref == "" {
		t.Fatal("a step was not sealed whose parent was carried in")
	}
	deadline := time.After(time.Minute)
	for len(of.parentsOf(t, run.Workflow)[two.Step]) == 0 {
		select {
		case <-deadline:
			t.Fatal("what was sealed is not stored")
		case <-time.After(time.Millisecond):
		}
	}
	call := of.Leave(resumed, time.Now())
	of.End(call, Observed{Direction: Egress, Protocol: MCP, Outcome: OK, Ended: time.Now()})
	of.stop()
	if got, want := of.parentsOf(t, run.Workflow)[call.Step], []string{one.Step, two.Step}; !slices.Equal(got, want) {
		t.Errorf("parents %v, want %v", got, want)
	}
}

// TestResumeBounds has the newest parents be named of many, and counts the others.
func TestResumeBounds(t *testing.T) {
	began := time.Now().Add(-time.Hour)
	for _, tt := range []struct{ earlier, now, want, cut int }{
		{16, 0, 16, 0}, {17, 0, 16, 1}, {14, 2, 16, 0}, {14, 3, 16, 1}, {1, 16, 16, 1}, {1, 17, 16, 1}, {0, 0, 0, 0},
	} {
		before := newOffice(t)
		run := before.Open("run_1", Origin{})
		var steps []string
		arrive := func(of *office, run *Run) {
			s := of.Arrive(run, Place{}, began.Add(time.Duration(len(steps))*time.Second))
			of.End(s, ended(OK))
			steps = append(steps, s.Step)
		}
		for range tt.earlier {
			arrive(before, run)
		}
		before.work()
		before.stop()
		of := after(t, before)
		resumed := of.Resume("run_1", run.Workflow)
		for range tt.now {
			arrive(of, resumed)
		}
		call := of.Leave(resumed, time.Now())
		of.End(call, Observed{Direction: Egress, Protocol: MCP, Outcome: OK, Ended: time.Now()})
		of.work()
		of.stop()
		got, want := of.parentsOf(t, run.Workflow)[call.Step], steps[len(steps)-tt.want:]
		if !slices.Equal(got, want) {
			t.Errorf("of %d and %d: parents %v, want %v", tt.earlier, tt.now, got, want)
		}
		if got := testutil.ToFloat64(of.metrics.limits.WithLabelValues(limitParents)); got != float64(tt.cut) {
			t.Errorf("of %d and %d: %v cuts are counted, want %d", tt.earlier, tt.now, got, tt.cut)
		}
	}
}

// forgetful is a store that can't tell what it has.
type forgetful struct {
	*Memory
	asked chan struct{} // gets one for each question
	told  chan struct{} // closed: answers are given
}

func (s *forgetful) Latest(ctx context.Context, _ string, _ int) ([]Receipt, error) {
	s.asked <- struct{}{}
	select {
	case <-s.told:
		return nil, errors.New("the disk is gone")
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// TestResumeFault has a store that can't tell what was before cost parents, and
// nothing else: nobody waits for it, and it is asked once.
func TestResumeFault(t *testing.T) {
	before := newOffice(t)
	run := before.Open("run_1", Origin{})
	before.End(before.Arrive(run, Place{}, time.Now().Add(-time.Minute)), ended(OK))
	before.work()
	before.stop()
	for name, tell := range map[string]bool{"it fails": true, "it never answers": false} {
		store := &forgetful{before.store.Memory, make(chan struct{}, 10), make(chan struct{})}
		if tell {
			close(store.told)
		}
		of := newOffice(t, func(o *Options) {
			if o.Store = store; !tell {
				o.Recall = 20 * time.Millisecond
			}
		})
		of.work()
		resumed := of.Resume("run_1", run.Workflow)
		first := of.Arrive(resumed, Place{}, time.Now())
		of.End(first, ended(OK))
		select {
		case <-store.asked:
		case <-time.After(time.Minute):
			t.Fatalf("%s: it was never asked", name)
		}
		second := of.Arrive(resumed, Place{}, time.Now()) // while it may be thinking still
		of.End(second, ended(OK))
		of.stop()
		for step, want := range map[*Step][]string{first: {}, second: {first.Step}} {
			found := false
			stored, _, err := store.Receipts(t.Context(), run.Workflow, "", 100)
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range stored {
				if s.Step != step.Step {
					continue
				}
				found = true
				r, err := peac.Verify(s.JWS, testKeys.Of(of.o.Issuer), time.Now())
				if err != nil || !slices.Equal(r.Workflow.ParentStepIDs, want) {
					t.Errorf("%s: parents %v, %v, want %v", name, r.Workflow, err, want)
				}
			}
			if !found {
				t.Errorf("%s: a receipt is lost", name)
			}
		}
		if len(store.asked) > 0 {
			t.Errorf("%s: it was asked again", name)
		}
	}
}

// crowded is a store whose newest receipts are all of other runs.
type crowded struct{ *Memory }

func (crowded) Latest(_ context.Context, _ string, limit int) ([]Receipt, error) {
	return slices.Repeat([]Receipt{{Run: "run_2"}}, limit), nil
}

// TestResumeCrowded counts that steps of the run may lie behind what is read.
func TestResumeCrowded(t *testing.T) {
	store := crowded{NewMemory()}
	of := newOffice(t, func(o *Options) { o.Store = store })
	resumed := of.Resume("run_1", "")
	for range 2 {
		of.End(of.Leave(resumed, time.Now()), Observed{Direction: Egress, Protocol: MCP, Outcome: OK, Ended: time.Now()})
	}
	of.work()
	of.stop()
	if got := testutil.ToFloat64(of.metrics.limits.WithLabelValues(limitParents)); got != 1 {
		t.Errorf("counted %v times, want once", got)
	}
	if stored, _, err := store.Receipts(t.Context(), resumed.Workflow, "", 10); len(stored) != 2 || err != nil {
		t.Errorf("%d receipts, %v, want 2", len(stored), err)
	}
}

// TestSealResumed signs nothing at once where the store is to tell of the parents.
func TestSealResumed(t *testing.T) {
	before := newOffice(t)
	run := before.Open("run_1", Origin{})
	one := before.Arrive(run, Place{}, time.Now().Add(-time.Minute))
	before.End(one, ended(OK))
	before.work()
	before.stop()

	of := after(t, before)
	two := of.Arrive(of.Resume("run_1", run.Workflow), Place{}, time.Now())
	if ref, _ := of.Seal(two, ended(OK)); ref != "" {
		t.Error("a step was signed without its parent")
	}
	of.End(two, ended(OK))
	of.work()
	of.stop()
	if got := of.parentsOf(t, run.Workflow)[two.Step]; !slices.Equal(got, []string{one.Step}) {
		t.Errorf("parents %v, want %s", got, one.Step)
	}
}
