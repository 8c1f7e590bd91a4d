package peac

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestWriteTree draws a workflow with a fork, a join and a chain, whole and then
// with a receipt less.
func TestWriteTree(t *testing.T) {
	draw := func(b Bundle) string {
		var text strings.Builder
		if err := verifyBundle(b).WriteTree(&text); err != nil {
			t.Fatal(err)
		}
		return text.String()
	}
	b := workflow(t, unchanged)
	root := verifyBundle(b).Summary.Evidence.ReceiptMerkleRoot
	want := `step_root00000000000000000000  ok  dev.wopproxy/progress
├─ step_left00000000000000000000  ok  dev.wopproxy/progress
│  ├─ step_failed000000000000000000  ok  dev.wopproxy/progress
│  └─ step_retry0000000000000000000  ok  dev.wopproxy/progress
│     └─ step_join00000000000000000000  ok  dev.wopproxy/progress  3 receipts  after step_retry0000000000000000000, step_right0000000000000000000
└─ step_right0000000000000000000  ok  dev.wopproxy/progress
summary  ok  ` + wf + `  failed  8 receipts  ` + root + "\n"
	if diff := cmp.Diff(want, draw(b)); diff != "" {
		t.Error(diff)
	}
	less := b
	less.Receipts = b.Receipts[:7]
	if got, want := draw(less), "summary  FAILED  "+wf+"  failed  8 receipts  "+root+"\n"; !strings.HasSuffix(got, want) {
		t.Errorf("%s\nends not in %s", got, want)
	}
	b.Receipts, b.Summary = slices.Delete(b.Receipts, 1, 2), ""
	got := draw(b)
	for _, line := range []string{
		"step_failed000000000000000000  FAILED  dev.wopproxy/progress\n   E_WORKFLOW_PARENT_NOT_FOUND: its parent step_left00000000000000000000 is not there\n",
		"no summary that holds: nothing that is signed says how many receipts there are\n",
	} {
		if !strings.Contains(got, line) {
			t.Errorf("%s\nlacks %s", got, line)
		}
	}
}

// TestWriteTreeCycle draws every step of a cycle once.
func TestWriteTreeCycle(t *testing.T) {
	r := Report{}
	for _, s := range [][2]string{{"a", "b"}, {"b", "c"}, {"c", "a"}} {
		r.Steps = append(r.Steps, StepReport{ID: s[0], Parents: []string{s[1]}, Receipts: make([]Receipt, 1)})
	}
	r.Faults = []Fault{{Code: CodeDAGInvalid, What: "\x1b[2J\u202e"}}
	var text strings.Builder
	if err := r.WriteTree(&text); err != nil {
		t.Fatal(err)
	}
	want := "a  ok  \n└─ c  ok  \n   └─ b  ok  \n" + `E_WORKFLOW_DAG_INVALID: "\x1b[2J\u202e"` + "\nno summary that holds: nothing that is signed says how many receipts there are\n"
	if diff := cmp.Diff(want, text.String()); diff != "" {
		t.Error(diff)
	}
}
