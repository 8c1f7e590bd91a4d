package ancestry_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/wopproxy/wopproxy/ancestry"
)

// TestHandoffTransitions tries every state after every other one: what is not
// listed changes nothing.
func TestHandoffTransitions(t *testing.T) {
	const (
		pending     = ancestry.HandoffPending
		dispatching = ancestry.HandoffDispatching
		running     = ancestry.HandoffRunning
		harvested   = ancestry.HandoffHarvested
		failed      = ancestry.HandoffFailed
		cancelled   = ancestry.HandoffCancelled
	)
	legal := map[ancestry.HandoffState][]ancestry.HandoffState{
		pending:     {dispatching, failed, cancelled},
		dispatching: {running, failed, cancelled},
		running:     {harvested, failed, cancelled},
	}
	paths := map[ancestry.HandoffState][]ancestry.HandoffState{
		pending: {}, dispatching: {dispatching}, running: {dispatching, running},
		harvested: {dispatching, running, harvested}, failed: {failed}, cancelled: {cancelled},
	}
	for _, from := range ancestry.HandoffStates() {
		if got, want := from.Ended(), len(legal[from]) == 0; got != want {
			t.Errorf("%s.Ended() = %v, want %v", from, got, want)
		}
		for _, to := range append(ancestry.HandoffStates(), "", "invented") {
			want := slices.Contains(legal[from], to)
			if got := from.Precedes(to); got != want {
				t.Errorf("%s.Precedes(%s) = %v, want %v", from, to, got, want)
			}
			table := ancestry.NewHandoffs(10, time.Hour, func() {})
			h, _ := table.Begin(ancestry.Handoff{Run: "r"}, time.Now())
			for _, s := range paths[from] {
				if !table.Move(h, s, ancestry.HandoffRefused) {
					t.Fatalf("Move to %s on the way to %s = false", s, from)
				}
			}
			before := table.Of("r")[0]
			if got := table.Move(h, to, ancestry.HandoffTimeout); got != want {
				t.Errorf("Move from %s to %s = %v, want %v", from, to, got, want)
			}
			after := table.Of("r")[0]
			if !want {
				before.Seen, after.Seen = time.Time{}, time.Time{}
				if diff := cmp.Diff(before, after); diff != "" {
					t.Errorf("an illegal step from %s to %s changes (-before +after):\n%s", from, to, diff)
				}
				continue
			}
			last := after.Steps[len(after.Steps)-1]
			if after.State != to || last.State != to || len(after.Steps) != len(before.Steps)+1 || after.Open == to.Ended() || (after.Error == ancestry.HandoffTimeout) != (to == failed) {
				t.Errorf("after the step from %s to %s = %+v", from, to, after)
			}
		}
	}
}

// TestHandoffTimes pins that each step bears the time it was seen at, and that
// one of which nothing more is seen says when it was last heard of.
func TestHandoffTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := ancestry.NewHandoffs(10, time.Hour, func() {})
		began := time.Now().UTC()
		h, _ := table.Begin(ancestry.Handoff{Run: "r", Peer: "p.example:443", Protocol: "a2a", Operation: "SendMessage"}, began)
		time.Sleep(time.Second)
		table.Move(h, ancestry.HandoffDispatching, "")
		time.Sleep(time.Second)
		table.Move(h, ancestry.HandoffRunning, "")
		time.Sleep(time.Second)
		table.NameTask(h, "task-1", "working")
		table.NameChild(h, "p.example", "child")
		time.Sleep(time.Second)
		want := ancestry.Handoff{
			Run: "r", Peer: "p.example:443", Protocol: "a2a", Operation: "SendMessage", Host: "p.example", Child: "child",
			Task: "task-1", TaskState: "working", State: "running", Seen: began.Add(3 * time.Second), Open: true,
			Steps: []ancestry.HandoffStep{{State: "pending", Time: began}, {State: "dispatching", Time: began.Add(time.Second)}, {State: "running", Time: began.Add(2 * time.Second)}},
		}
		check := func(what string) {
			t.Helper()
			got := table.Of("r")[0]
			got.ID = ""
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", what, diff)
			}
		}
		check("running")
		table.NameTask(h, "task-1", "")
		want.Seen = began.Add(4 * time.Second)
		check("a task that was named without a state")
		table.Leave(h)
		want.Open = false
		check("left")
		time.Sleep(time.Second)
		if table.NameTask(h, "task-1", "working"); table.Open() != 0 {
			t.Errorf("open = %d, want none", table.Open())
		}
		check("heard of once more")
	})
}

// TestHandoffKeys: what is known by a key is known until it has ended, and only
// its own run goes on with it.
func TestHandoffKeys(t *testing.T) {
	table := ancestry.NewHandoffs(100, time.Hour, func() {})
	begin := func(run ancestry.RunID, keys ...ancestry.HandoffKey) *ancestry.Tracked {
		h, _ := table.Begin(ancestry.Handoff{Run: run}, time.Now())
		for _, k := range keys {
			table.Bind(h, k)
		}
		return h
	}
	key := func(id string) ancestry.HandoffKey { return ancestry.HandoffKey{Kind: "task", ID: id} }
	a, b := begin("a", key("1")), begin("b", key("1"), key(""))
	if got := table.Known(key("1")); len(got) != 2 || table.Resume("a", key("1")) != a || table.Resume("b", key("1")) != b {
		t.Errorf("Known = %v, Resume = %p, want both, and each of its run", got, table.Resume("a", key("1")))
	}
	if got := table.Known(key("")); got != nil || table.Resume("b", key("")) != nil || table.Resume("c", key("1")) != nil {
		t.Errorf("Known by no key, or of another run = %v, want none", got)
	}
	twin := begin("a", key("1"))
	if got := table.Resume("a", key("1")); got != nil {
		t.Errorf("Resume where two may be meant = %p, want none", got)
	}
	table.Bind(twin, key("2")) // its next one
	if got := table.Resume("a", key("1")); got != a || table.Resume("a", key("2")) != twin {
		t.Errorf("Resume by a key that was replaced = %p, want %p", got, a)
	}
	table.Move(a, ancestry.HandoffCancelled, "")
	table.Leave(b)
	table.Bind(a, key("3"))
	if got := append(table.Known(key("1")), table.Known(key("3"))...); got != nil {
		t.Errorf("Known after the end = %v, want none", got)
	}
	for range 100 {
		begin("many", key("4"))
	}
	if got := len(table.Known(key("4"))); got != 16 {
		t.Errorf("%d handoffs are known by one key, want 16", got)
	}
}

// TestHandoffsAreBounded: the first to end makes room, then the quietest, and
// whatever goes leaves nothing behind.
func TestHandoffsAreBounded(t *testing.T) {
	table := ancestry.NewHandoffs(3, time.Hour, func() {})
	key := func(n int) ancestry.HandoffKey { return ancestry.HandoffKey{Kind: "task", ID: fmt.Sprint(n)} }
	var all []*ancestry.Tracked
	began := func(wantRoom bool) {
		t.Helper()
		h, room := table.Begin(ancestry.Handoff{Run: "r", Operation: fmt.Sprint(len(all))}, time.Now())
		if room != wantRoom {
			t.Errorf("room for the %d. = %v, want %v", len(all), room, wantRoom)
		}
		table.Bind(h, key(len(all)))
		all = append(all, h)
	}
	left := func(want string) {
		t.Helper()
		got := ""
		for _, h := range table.Of("r") {
			got += h.Operation
		}
		if got != want {
			t.Errorf("left = %s, want %s", got, want)
		}
	}
	began(true)
	began(true)
	began(true)
	table.Move(all[1], ancestry.HandoffFailed, ancestry.HandoffRefused)
	began(true) // for the one that has ended
	left("023")
	table.Move(all[0], ancestry.HandoffDispatching, "")
	began(false) // 2 was the quietest
	left("034")
	if table.Known(key(2)) != nil || table.Open() != 3 {
		t.Errorf("known of the forgotten: %v; open %d, want none and 3", table.Known(key(2)), table.Open())
	}
	if !table.Move(all[2], ancestry.HandoffCancelled, "") || table.Open() != 3 {
		t.Errorf("a forgotten one still counts: open = %d, want 3", table.Open())
	}
	table.Bind(all[2], key(2))
	if table.Known(key(2)) != nil {
		t.Error("a forgotten one is known again")
	}
	table.Move(all[4], ancestry.HandoffCancelled, "")
	table.Move(all[0], ancestry.HandoffCancelled, "")
	table.Move(all[3], ancestry.HandoffCancelled, "")
	for range 3 {
		if _, room := table.Begin(ancestry.Handoff{Run: "s"}, time.Now()); !room {
			t.Error("no room where all have ended")
		}
	}
	left("")
	if got := len(table.Of("s", "r", "s")); got != 3 {
		t.Errorf("of both runs = %d, want 3", got)
	}
}

// TestHandoffsAge: of one that was quiet for too long nothing more is expected.
func TestHandoffsAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ttl = time.Hour
		over := 0
		table := ancestry.NewHandoffs(10, ttl, func() { over++ })
		key := ancestry.HandoffKey{Kind: "task", ID: "t-1"}
		begin := func(run ancestry.RunID) *ancestry.Tracked {
			h, _ := table.Begin(ancestry.Handoff{Run: run}, time.Now())
			table.Bind(h, key)
			return h
		}
		quiet, heard := begin("quiet"), begin("heard")
		time.Sleep(ttl / 2)
		table.Move(heard, ancestry.HandoffDispatching, "")
		time.Sleep(ttl/2 - time.Nanosecond)
		if n := table.Open(); n != 2 || over != 0 {
			t.Errorf("just before its time: %d are open, and %d given up, want 2 and none", n, over)
		}
		time.Sleep(time.Nanosecond)
		known := table.Known(key)
		if n := table.Open(); n != 1 || over != 1 || len(known) != 1 || known[0] != heard {
			t.Errorf("at its time: %d are open, and %d given up, %d known, want 1 of each", n, over, len(known))
		}
		if h := table.Of("quiet"); len(h) != 1 || h[0].Open || h[0].State != ancestry.HandoffPending {
			t.Errorf("what was given up is told as %+v, want it pending and not open", h)
		}
		table.Move(quiet, ancestry.HandoffFailed, ancestry.HandoffTimeout) // by an exchange that lasts for so long
		if h := table.Of("quiet"); h[0].State != ancestry.HandoffFailed {
			t.Errorf("what ends after all is told as %+v, want it failed", h)
		}
		time.Sleep(ttl)
		if n := table.Open(); n != 0 || over != 2 {
			t.Errorf("in the end %d are open, and %d given up, want none and 2", n, over)
		}
	})
}

// TestHandoffsOfABusyRun: the newest are told.
func TestHandoffsOfABusyRun(t *testing.T) {
	table := ancestry.NewHandoffs(5000, time.Hour, func() {})
	for i := range 1500 {
		for _, run := range []ancestry.RunID{"first", "alias"} {
			table.Begin(ancestry.Handoff{Run: run, Operation: fmt.Sprint(i)}, time.Now())
		}
	}
	got := table.Of("first", "alias")
	if len(got) != 1000 || got[0].Operation != "1000" || got[0].Run != "first" || got[999].Operation != "1499" || got[999].Run != "alias" {
		t.Errorf("%d handoffs, first %+v, last %+v; want the newest 1000 in order", len(got), got[0], got[len(got)-1])
	}
	ids := map[string]bool{}
	for _, h := range got {
		ids[h.ID] = true
	}
	if len(ids) != 1000 {
		t.Errorf("%d ids of 1000 handoffs", len(ids))
	}
}

// TestHandoffsTogether is for the race detector.
func TestHandoffsTogether(t *testing.T) {
	table := ancestry.NewHandoffs(50, time.Hour, func() {})
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 200 {
				k := ancestry.HandoffKey{Kind: "task", ID: fmt.Sprint(j % 20)}
				h, _ := table.Begin(ancestry.Handoff{Run: ancestry.RunID(fmt.Sprint(i % 3))}, time.Now())
				table.Bind(h, k)
				table.Move(h, ancestry.HandoffDispatching, "")
				for _, known := range table.Known(k) {
					table.Move(known, ancestry.HandoffRunning, "")
					table.NameTask(known, k.ID, "working")
				}
				table.Of("0", "1")
				if j%2 == 0 {
					table.Move(h, ancestry.HandoffHarvested, "")
				}
			}
		})
	}
	wg.Wait()
	if n := len(table.Of("0", "1", "2")); n != 50 {
		t.Errorf("%d are remembered, want 50", n)
	}
}

// handoffsOf makes a table of what runs have done.
func handoffsOf(begun ...ancestry.Handoff) *ancestry.Handoffs {
	table := ancestry.NewHandoffs(100_000, time.Hour, func() {})
	for _, h := range begun {
		tr, _ := table.Begin(h, time.Unix(1, 0))
		table.NameChild(tr, h.Host, h.Child)
		table.Move(tr, ancestry.HandoffDispatching, "")
	}
	return table
}

func TestAdminHandoffs(t *testing.T) {
	table := handoffsOf(
		ancestry.Handoff{Run: "run_01JD0000000000000000000000", Peer: "p.example:443", Protocol: "mcp", Operation: "tools/call"},
		ancestry.Handoff{Run: "unrecorded", Peer: "q.example:443"})
	s := links{list: []ancestry.Link{{Run: "run_01JD0000000000000000000000", Alias: "acme/child"}, {Run: "quiet"}}}
	a := newAPI(t, ancestry.APIOptions{Reader: s, Handoffs: table.Of})
	for path, want := range map[string]string{
		"run_01JD0000000000000000000000": "p.example:443",
		"acme~2Fchild":                   "p.example:443",
		"acme%2Fchild":                   "p.example:443",
		"unrecorded":                     "q.example:443",
		"quiet":                          "",
	} {
		var got struct {
			RunID    string
			Handoffs []ancestry.Handoff
		}
		resp := ask(a.Admin(), "/ancestry/v1/runs/"+path+"/handoffs")
		if err := json.NewDecoder(resp.Body).Decode(&got); err != nil || resp.StatusCode != 200 || got.RunID == "" || got.Handoffs == nil {
			t.Fatalf("%s: %d %+v %v", path, resp.StatusCode, got, err)
		}
		peers := ""
		for _, h := range got.Handoffs {
			peers += h.Peer
		}
		if peers != want {
			t.Errorf("handoffs of %s = %q, want %q", path, peers, want)
		}
	}
	for path, want := range map[string]int{"stranger": 404, "%20": 400} {
		if got := ask(a.Admin(), "/ancestry/v1/runs/"+path+"/handoffs").StatusCode; got != want {
			t.Errorf("handoffs of %q: status %d, want %d", path, got, want)
		}
	}
	if got := ask(newAPI(t, ancestry.APIOptions{Reader: s}).Admin(), "/ancestry/v1/runs/quiet/handoffs"); body(t, got) != `{"runId":"quiet","handoffs":[]}` {
		t.Errorf("where none are known: %d", got.StatusCode)
	}
}

// TestAdminTreeWithHandoffs: a child bears the call that started it, and calls
// without one stand beside.
func TestAdminTreeWithHandoffs(t *testing.T) {
	away := child("minted", at(selfID, "a"))
	away.Host, away.Alias = "other.example", "task"
	s := links{list: []ancestry.Link{
		{Run: "a", Alias: "hosts-own"}, away, child("self", at(selfID, "a")),
		child("deep", at("other.example", "task")), child("minted", at("third.example", "a")),
	}}
	table := handoffsOf(
		ancestry.Handoff{Run: "a", Host: "other.example", Child: "minted", Operation: "first"},
		ancestry.Handoff{Run: "hosts-own", Host: "other.example", Child: "task", Operation: "again"},
		ancestry.Handoff{Run: "a", Host: selfID, Child: "self", Operation: "to itself"},
		ancestry.Handoff{Run: "a", Operation: "nowhere"},
		ancestry.Handoff{Run: "a", Host: "third.example", Child: "minted", Operation: "namesake"},
		ancestry.Handoff{Run: "task", Operation: "of another host's run of that name"},
	)
	var got struct {
		Root struct {
			Handoff  *ancestry.Handoff
			Handoffs []ancestry.Handoff
			Children []struct {
				RunID    string
				Handoff  *ancestry.Handoff
				Handoffs []ancestry.Handoff
			}
		}
		Nodes int
	}
	a := newAPI(t, ancestry.APIOptions{Reader: s, Handoffs: table.Of})
	if err := json.Unmarshal([]byte(body(t, ask(a.Admin(), "/ancestry/v1/runs/a/tree"))), &got); err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprint(got.Nodes)
	for _, c := range got.Root.Children {
		text += fmt.Sprintf(" %s: %s %s %d", c.RunID, c.Handoff.Operation, c.Handoff.State, len(c.Handoffs))
	}
	for _, h := range got.Root.Handoffs {
		text += " " + h.Operation
	}
	if want := "6 task: again dispatching 0 self: to itself dispatching 0 nowhere namesake"; text != want || got.Root.Handoff != nil {
		t.Errorf("tree = %q, want %q", text, want)
	}
}

// TestAdminTreeOfCallsIsBounded: calls count like runs.
func TestAdminTreeOfCallsIsBounded(t *testing.T) {
	var begun []ancestry.Handoff
	s := links{list: []ancestry.Link{{Run: "w"}}}
	for i := range 10 {
		run := ancestry.RunID(fmt.Sprint("c", i))
		s.list = append(s.list, child(run, at(selfID, "w")))
		for range 1000 {
			begun = append(begun, ancestry.Handoff{Run: run})
		}
	}
	a := newAPI(t, ancestry.APIOptions{Reader: s, Handoffs: handoffsOf(begun...).Of})
	var got tree
	if err := json.Unmarshal([]byte(body(t, ask(a.Admin(), "/ancestry/v1/runs/w/tree"))), &got); err != nil {
		t.Fatal(err)
	}
	last := got.Root.Children[9]
	if got.Nodes != 10_000 || !got.Truncated || !last.Truncated || got.Root.Children[8].Truncated {
		t.Errorf("%d nodes, truncated %v, the last run's %v; want 10000, and only that cut", got.Nodes, got.Truncated, last.Truncated)
	}
}

// TestWriteTreeOfWhatWasCaused draws a tree with everything that a node may have.
func TestWriteTreeOfWhatWasCaused(t *testing.T) {
	at := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	tree := ancestry.Tree{Root: &ancestry.TreeNode{
		Run: "r-0001", HostID: "front.example", Children: []*ancestry.TreeNode{
			{Run: "r-7f3a", HostID: "front.example", Cause: "core.dispatch", Children: []*ancestry.TreeNode{{
				Run: "task\u202e", HostID: "research.example", Cause: "a2a-message",
				Handoff: &ancestry.Handoff{State: "running", TaskState: "input-required", Open: true},
			}}, Truncated: true},
			{Run: "done", HostID: "tools.example", Cause: "mcp-tool-call", Handoff: &ancestry.Handoff{State: "harvested", TaskState: "completed", Seen: at}},
		}, Handoffs: []ancestry.Handoff{
			{Operation: "tools/call", Peer: "tools.example:443", State: "failed", Error: "tool-error", Seen: at},
			{Operation: "SendMessage", Peer: "agent.example:80", State: "running", Seen: at},
		},
	}}
	want := `r-0001  front.example
├─ core.dispatch → r-7f3a  front.example
│  ├─ a2a-message → "task\u202e"  research.example  running, task input-required
│  └─ …
├─ mcp-tool-call → done  tools.example  harvested
├─ tools/call → tools.example:443  failed: tool-error
└─ SendMessage → agent.example:80  running, last seen 2026-07-01T12:00:00Z
`
	var got strings.Builder
	if err := tree.WriteTree(&got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if err := (ancestry.Tree{}).WriteTree(&got); err == nil {
		t.Error("a tree without a root is drawn")
	}
}
