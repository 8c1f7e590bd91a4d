package ancestry_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/wopproxy/wopproxy/ancestry"
)

func TestMerge(t *testing.T) {
	at := time.UnixMilli(1).UTC()
	parent := func(run ancestry.RunID) ancestry.Chain {
		return ancestry.Chain{Ancestors: []ancestry.Ancestor{{Run: run, Host: "h", Cause: ancestry.CauseDispatch}}}
	}
	bare := ancestry.Link{Run: "r", Time: at}
	root := ancestry.Link{Run: "r", Reason: "no-evidence", Time: at}
	child := ancestry.Link{Run: "r", Alias: "h", Chain: parent("p"), Evidence: ancestry.EvidenceRunID, Time: at}
	byHost := ancestry.Link{Run: "h", Time: at}
	replay := ancestry.Link{Run: "r2", Alias: "h", Chain: parent("q"), Evidence: ancestry.EvidenceTraceID, Time: at.Add(1e9)}
	with := func(l ancestry.Link, fn func(*ancestry.Link)) ancestry.Link { fn(&l); return l }
	for _, c := range []struct {
		name           string
		l              ancestry.Link
		byRun, byAlias *ancestry.Link
		want           ancestry.Link
	}{
		{"new", child, nil, nil, child},
		{"alias is the run", with(bare, func(l *ancestry.Link) { l.Alias = "r" }), nil, nil, bare},
		{"again", child, &child, &child, child},
		{"chain is learned", child, &bare, nil, child},
		{"alias is learned", with(bare, func(l *ancestry.Link) { l.Alias = "h" }), &root, nil,
			with(root, func(l *ancestry.Link) { l.Alias = "h" })},
		{"alias is known", with(bare, func(l *ancestry.Link) { l.Alias = "x" }), &child, nil, child},
		{"alias is what the run is known by", with(bare, func(l *ancestry.Link) { l.Alias = "h" }), &byHost, nil, byHost},
		{"a reason settles", with(child, func(l *ancestry.Link) { l.Alias = "" }), &root, nil, root},
		{"replay", replay, nil, &child, child},
		{"replay of a run that is known by its host's id", replay, nil, &byHost,
			with(byHost, func(l *ancestry.Link) { l.Chain, l.Evidence = replay.Chain, replay.Evidence })},
		{"replay with a link of its own", replay, &replay, &child, child},
		{"what the replay knew first fills what is unknown", with(bare, func(l *ancestry.Link) { l.Run, l.Alias = "r2", "h" }), &replay, &byHost,
			with(byHost, func(l *ancestry.Link) { l.Chain, l.Evidence = replay.Chain, replay.Evidence })},
		{"trace is one piece",
			with(bare, func(l *ancestry.Link) { l.Trace, l.Span, l.Operation = ancestry.TraceID{2}, ancestry.SpanID{2}, "new" }),
			new(with(bare, func(l *ancestry.Link) { l.Trace, l.Operation = ancestry.TraceID{1}, "old" })), nil,
			with(bare, func(l *ancestry.Link) { l.Trace, l.Operation = ancestry.TraceID{1}, "old" })},
	} {
		got := ancestry.Merge(c.l, c.byRun, c.byAlias)
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
		if diff := cmp.Diff(got, ancestry.Merge(c.l, &got, &got)); diff != "" {
			t.Errorf("%s: merged twice (-once +twice):\n%s", c.name, diff)
		}
	}
}

func TestCursor(t *testing.T) {
	at := func(ms int64, run ancestry.RunID, host string) string {
		return ancestry.Link{Run: run, Host: host, Time: time.UnixMilli(ms)}.Cursor()
	}
	want := []string{
		at(-62135596800000, "z", ""), at(-1, "y", ""), at(0, "x", ""), at(1, "a", ""), at(1, "a", "peer"), at(1, "aa", ""), at(1<<40, "a", ""),
	}
	got := slices.Sorted(slices.Values(want))
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("cursors sort otherwise (-want +got):\n%s", diff)
	}
	for _, s := range append(got, "") {
		if err := ancestry.CheckCursor(s); err != nil {
			t.Errorf("CheckCursor(%q) = %v", s, err)
		}
	}
	if err := ancestry.CheckCursor(want[0][:16]); err == nil {
		t.Error("CheckCursor without a key = nil")
	}
}

func TestValidate(t *testing.T) {
	ok := ancestry.Link{Run: "r", Alias: "h", Host: "peer", Operation: strings.Repeat("o", 256), Chain: ancestry.Chain{Ancestors: []ancestry.Ancestor{planner()}}}
	if err := ok.Validate(); err != nil {
		t.Errorf("Validate = %v", err)
	}
	for _, c := range []struct {
		name string
		edit func(*ancestry.Link)
	}{
		{"no run", func(l *ancestry.Link) { l.Run = "" }},
		{"alias with a space", func(l *ancestry.Link) { l.Alias = "a b" }},
		{"host with a space", func(l *ancestry.Link) { l.Host = "a b" }},
		{"long operation", func(l *ancestry.Link) { l.Operation += "o" }},
		{"long reason", func(l *ancestry.Link) { l.Reason = l.Operation + "o" }},
		{"long evidence", func(l *ancestry.Link) { l.Evidence = ancestry.Evidence(l.Operation + "o") }},
		{"depth below zero", func(l *ancestry.Link) { l.Chain.Depth = -1 }},
		{"depth too large", func(l *ancestry.Link) { l.Chain.Depth = 1e9 + 1 }},
		{"ancestor without cause", func(l *ancestry.Link) { l.Chain.Ancestors = []ancestry.Ancestor{{Run: "p", Host: "h"}} }},
	} {
		l := ok
		c.edit(&l)
		if err := l.Validate(); err == nil {
			t.Errorf("%s: Validate = nil, want an error", c.name)
		}
	}
}
