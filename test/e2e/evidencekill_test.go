package e2e

import (
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/wopproxy/wopproxy/ancestry/peac"
)

// TestEvidenceKill kills the program between two turns of a task. What was signed of
// the first is there afterwards, and leads to the second; nobody says that it is all
// there was.
func TestEvidenceKill(t *testing.T) {
	front := signs(t, "front.example.com")
	p := newPeer(t, "front.example.com", front.settings)
	tools, other := newToolServer(t, "tools.example.com", stateless), newPeer(t, "other.example.com")
	other.does("help", help)
	p.does("told", told(t, p, tools, other))
	task := begunTask(t, p)

	// evidence waits until there is enough of it, all of which holds.
	evidence := func(enough func(map[string]int) bool) (b peac.Bundle, report peac.Report) {
		t.Helper()
		keys := front.published(t, p.sidecar)
		if !poll(func() bool {
			code, body := get(t, p.admin+"/ancestry/v1/runs/"+url.PathEscape(string(task.TaskID))+"/evidence")
			if code != http.StatusOK {
				return false
			}
			var err error
			if b, err = peac.ParseBundle(body); err != nil {
				t.Fatalf("%v: %s", err, body)
			}
			report = b.Verify(keys, time.Now())
			return report.OK() && enough(shape(report))
		}) {
			var tree strings.Builder
			_ = report.WriteTree(&tree) // never fails
			t.Fatalf("the evidence is never enough: %v\n%s", shape(report), &tree)
		}
		return b, report
	}
	const invoked = "org.peacprotocol/agent-action-invoked-observed"
	before, _ := evidence(func(s map[string]int) bool { return s[invoked] >= 4 })

	p.signal(t, os.Kill)
	if code := p.wait(t); code != -1 {
		t.Errorf("exit code after kill -9 = %d, want death by the signal", code)
	}
	p.serve(t, nil, p.file)
	after, _ := evidence(func(map[string]int) bool { return true })
	for _, jws := range before.Receipts {
		if !slices.Contains(after.Receipts, jws) {
			t.Errorf("a receipt is lost: %s", payloadOf(t, jws))
		}
	}
	goOn(t, p, task)
	// Calls of the second turn are nobody's: runs may be live that nobody knows any more.
	whole, report := evidence(func(s map[string]int) bool { return s[invoked] >= 5 })
	turns := slices.DeleteFunc(report.Steps, func(s peac.StepReport) bool {
		said := s.Receipts[0].Claims.Extensions[peac.ExchangeGroup].(map[string]any)
		return said["direction"] != "ingress"
	})
	if len(turns) != 2 || len(turns[0].Parents) != 0 || !slices.Equal(turns[1].Parents, []string{turns[0].ID}) {
		t.Errorf("the turns are not one behind the other: %+v", turns)
	}
	if after.Summary != "" || whole.Summary != "" {
		t.Error("what was at work at the kill is said to be whole")
	}
}
