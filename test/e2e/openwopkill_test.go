package e2e

import (
	"fmt"
	"os"
	"testing"
)

// TestOpenWOPKill kills either proxy, as a kernel out of memory does, amid fifty runs
// of which each calls another host: half of the calls have been answered by then, half
// are under way. What was acknowledged is there afterwards, what was not is there or
// not, and nothing is wrong.
func TestOpenWOPKill(t *testing.T) {
	const runs = 50
	causes := map[string]string{"a2a": "a2a-message", "mcp": "mcp-tool-call"}
	for i, majors := range owPairs {
		victim := []string{"planner", "worker"}[i%2]
		t.Run(fmt.Sprintf("the %s, from v%d to v%d", victim, majors[0], majors[1]), func(t *testing.T) {
			t.Parallel()
			planner := newOWHost(t, "planner.example.com", majors[0], "127.0.0.2")
			worker := newOWHost(t, "worker.example.com", majors[1], "127.0.0.3")
			via := func(i int) string { return []string{"a2a", "mcp"}[i/2%2] }
			above := func(i int) ancestor {
				return ancestor{RunID: fmt.Sprintf("acme/%016d", i), HostID: "front.example.com", WellKnownURL: "https://front.example.com/.well-known/openwop", Cause: "a2a-message"}
			}
			var begun [runs]*owRun
			for i := range begun {
				a := above(i)
				begun[i] = planner.begun(t, owPlan{Label: fmt.Sprint("run ", i), Wait: true, Calls: []owCall{
					{Via: via(i), To: worker.at(), Plan: owPlan{Label: fmt.Sprint("of run ", i), Wait: i%2 == 1}},
				}}, forgedAncestry(a.RunID, a.HostID, a.WellKnownURL))
			}
			planner.open()
			for i := 0; i < runs; i += 2 {
				if err := begun[i].await(t); err != nil {
					t.Fatal(err)
				}
			}
			eventually(t, "the other calls have come to the worker", func() bool {
				worker.mu.Lock()
				defer worker.mu.Unlock()
				return len(worker.order) == runs
			})
			dead := map[string]*owHost{"planner": planner, "worker": worker}[victim]
			dead.signal(t, os.Kill)
			if code := dead.wait(t); code != -1 {
				t.Errorf("exit code after kill -9 = %d, want death by the signal", code)
			}
			worker.open()
			for i := 1; i < runs; i += 2 {
				if err := begun[i].await(t); err == nil {
					t.Errorf("the call of run %d was answered by a proxy that is dead", i)
				}
			}
			dead.serve(t, nil, dead.file)
			dead.dialOut(t)
			known := 0
			for i, run := range begun {
				if got := planner.ancestry(t, run.id); got != above(i) {
					t.Errorf("parent of run %d = %+v, want %+v", i, got, above(i))
				}
				want := planner.as(run.id, causes[via(i)])
				child := worker.called("of " + run.plan.Label)
				if i%2 == 0 {
					if got, _ := worker.parentOf(t, child.plan.Label, via(i)); got != want {
						t.Errorf("parent of an acknowledged call = %+v, want %+v", got, want)
					}
					continue
				}
				l, ok := worker.link(t, child.minted)
				if got := l.parent(); ok && got != (ancestor{}) && (got.RunID != want.RunID || got.HostID != want.HostID) {
					t.Errorf("parent of a call that was cut = %+v, want %+v or none", got, want)
				}
				if ok {
					known++
				}
			}
			t.Logf("of %d calls that were cut, %d are known", runs/2, known)
			// The store goes on where it was, on both sides.
			after := planner.begun(t, owPlan{Label: "after", Calls: []owCall{{Via: "a2a", To: worker.at(), Plan: owPlan{Label: "of after"}}}}, nil)
			if err := after.await(t); err != nil {
				t.Fatal(err)
			}
			// By the minted id, if it has called before its own was told.
			if got, _ := worker.parentOf(t, "of after", "a2a"); got != planner.as(after.id, "a2a-message") && got != planner.as(after.minted, "a2a-message") {
				t.Errorf("parent of a call after the kill = %+v, want %s", got, after.id)
			}
		})
	}
}
