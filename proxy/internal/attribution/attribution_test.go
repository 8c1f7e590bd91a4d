package attribution

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/wopproxy/wopproxy/ancestry"
)

var (
	traceA = ancestry.TraceID{1}
	traceB = ancestry.TraceID{2}
	spanA  = ancestry.SpanID{1}
	spanB  = ancestry.SpanID{2}
)

func newTable(o Options) *Table {
	if o.HostID == "" {
		o.HostID = "test.example.com/agent"
	}
	return NewTable(o)
}

func start(t *testing.T, tab *Table, r *Run) *Run {
	t.Helper()
	if !tab.Start(r) {
		t.Fatalf("Start(%s) = false, want true", r.First)
	}
	return r
}

// TestLadder shows each rung alone, each pair of neighbours, and each reason
// to abstain, on a host where runs a and b are live in traces of their own and
// c and d share one.
func TestLadder(t *testing.T) {
	shared := ancestry.TraceID{3}
	ctx := func(id string) Key { return Key{KindA2AContext, id} }
	tests := []struct {
		name     string
		clues    func(tab *Table, a *Run) Clues
		want     ancestry.RunID
		evidence ancestry.Evidence
		reason   Reason
		conflict bool
	}{
		{"header Run-Id", func(*Table, *Run) Clues { return Clues{RunID: "a"} }, "a", ancestry.EvidenceRunID, "", false},
		{"Run-Id of a run that is not live is still the host's word", func(*Table, *Run) Clues { return Clues{RunID: "z"} }, "z", ancestry.EvidenceRunID, "", false},
		{"our tracestate member", func(tab *Table, a *Run) Clues {
			return Clues{Spans: [2]Span{{traceA, spanB}}, States: [2]string{tab.State(a)}}
		}, "a", ancestry.EvidenceTraceState, "", false},
		{"tracestate member of another host", func(_ *Table, a *Run) Clues {
			return Clues{States: [2]string{newTable(Options{HostID: "other"}).State(a)}}
		}, "", "", ReasonManyLiveRuns, false},
		{"tracestate member of our own making, garbled", func(tab *Table, a *Run) Clues { return Clues{States: [2]string{tab.State(a) + "~zz"}} }, "", "", ReasonManyLiveRuns, false},
		{"our tracestate member beside a trace that the run was never in", func(tab *Table, a *Run) Clues {
			return Clues{Spans: [2]Span{{traceB, spanB}}, States: [2]string{tab.State(a)}}
		}, "b", ancestry.EvidenceTraceID, "", false},
		{"our tracestate member beside nobody's trace", func(tab *Table, a *Run) Clues {
			return Clues{Spans: [2]Span{{ancestry.TraceID{9}, spanB}}, States: [2]string{tab.State(a)}}
		}, "", "", ReasonUnproven, false},
		{"trace of one run", func(*Table, *Run) Clues { return Clues{Spans: [2]Span{{traceA, spanB}}} }, "a", ancestry.EvidenceTraceID, "", false},
		{"trace in the header, unknown trace in the message", func(*Table, *Run) Clues {
			return Clues{Spans: [2]Span{{ancestry.TraceID{9}, spanA}, {traceB, spanA}}}
		}, "b", ancestry.EvidenceTraceID, "", false},
		{"trace of two runs, span of neither", func(*Table, *Run) Clues { return Clues{Spans: [2]Span{{shared, ancestry.SpanID{9}}}} }, "", "", ReasonSharedTrace, false},
		{"trace of two runs, span handed to one", func(*Table, *Run) Clues { return Clues{Spans: [2]Span{{shared, spanB}}} }, "d", ancestry.EvidenceTraceID, "", false},
		{"trace of nobody", func(*Table, *Run) Clues { return Clues{Spans: [2]Span{{ancestry.TraceID{9}, spanA}}} }, "", "", ReasonManyLiveRuns, false},
		{"proxy credential", func(*Table, *Run) Clues { return Clues{Credential: "b"} }, "b", ancestry.EvidenceProxyCredential, "", false},
		{"base path", func(*Table, *Run) Clues { return Clues{BasePath: "b"} }, "b", ancestry.EvidenceBasePath, "", false},
		{"conversation of one run", func(*Table, *Run) Clues { return Clues{Keys: []Key{ctx("of-a")}} }, "a", ancestry.EvidenceConversation, "", false},
		{"conversation of two runs", func(*Table, *Run) Clues { return Clues{Keys: []Key{ctx("of-both")}} }, "", "", ReasonSharedKey, false},
		{"unknown conversation", func(*Table, *Run) Clues { return Clues{Keys: []Key{ctx("unknown"), {KindMCPSession, "of-a"}}} }, "", "", ReasonManyLiveRuns, false},
		{"nothing", func(*Table, *Run) Clues { return Clues{} }, "", "", ReasonManyLiveRuns, false},
		{"two rungs agree", func(*Table, *Run) Clues { return Clues{RunID: "a", Spans: [2]Span{{traceA, spanA}}} }, "a", ancestry.EvidenceRunID, "", false},
		{"two rungs agree by two names of one run", func(tab *Table, a *Run) Clues {
			return Clues{RunID: "host-a", Spans: [2]Span{{traceA, spanA}}, States: [2]string{tab.State(a)}}
		}, "a", ancestry.EvidenceRunID, "", false},
		{"two rungs disagree", func(*Table, *Run) Clues { return Clues{RunID: "a", Spans: [2]Span{{traceB, spanA}}} }, "a", ancestry.EvidenceRunID, "", true},
		{"a lower rung disagrees", func(*Table, *Run) Clues { return Clues{Spans: [2]Span{{traceA, spanA}}, Credential: "b"} }, "a", ancestry.EvidenceTraceID, "", true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tab := newTable(Options{})
			a := start(t, tab, &Run{First: "a", Trace: traceA, Span: spanA})
			b := start(t, tab, &Run{First: "b", Trace: traceB, Span: spanA})
			start(t, tab, &Run{First: "c", Trace: shared, Span: spanA})
			start(t, tab, &Run{First: "d", Trace: shared, Span: spanB})
			tab.Bind(a, ctx("of-a"))
			tab.Bind(a, ctx("of-both"))
			tab.Bind(b, ctx("of-both"))
			want := tt.want
			if tt.name == "two rungs agree by two names of one run" {
				tab.Alias(a, "host-a")
				want = "host-a"
			}
			got := tab.Attribute(tt.clues(tab, a))
			if got.ID != want || got.Evidence != tt.evidence || got.Reason != tt.reason || got.Conflict != tt.conflict {
				t.Errorf("Attribute = %+v, want run %q by %q, reason %q, conflict %v", got, want, tt.evidence, tt.reason, tt.conflict)
			}
			if got.Evidence != "" && want != "z" && got.Run == nil {
				t.Errorf("Attribute named %q, which is live, without its run", got.ID)
			}
		})
	}
}

// TestSingleFlight moves the clock over each edge at which the last rung
// starts or stops to hold.
func TestSingleFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tab := newTable(Options{})
		expect := func(when string, id ancestry.RunID, why Reason) {
			t.Helper()
			if v := tab.Attribute(Clues{}); v.ID != id || v.Reason != why {
				t.Errorf("%s: Attribute = %q (%s), want %q (%s)", when, v.ID, v.Reason, id, why)
			}
		}
		expect("no run", "", ReasonNoLiveRun)
		a := start(t, tab, &Run{First: "a"})
		expect("one run", "a", "")
		b := start(t, tab, &Run{First: "b"})
		expect("two runs", "", ReasonManyLiveRuns)
		tab.End(b)
		time.Sleep(time.Second - time.Nanosecond)
		expect("one run, the other in quarantine", "", ReasonManyLiveRuns)
		time.Sleep(time.Nanosecond)
		expect("one run, the other gone", "a", "")

		tab.Other(ancestry.TraceID{})
		tab.Other(ancestry.TraceID{})
		expect("other exchanges in flight", "", ReasonOtherWork)
		tab.OtherDone(ancestry.TraceID{}, true)
		tab.OtherDone(ancestry.TraceID{}, false)
		expect("other exchange just over", "", ReasonOtherWork)
		time.Sleep(time.Second)
		expect("other exchange over", "a", "")
		tab.Other(ancestry.TraceID{})
		tab.OtherDone(ancestry.TraceID{}, false)
		expect("harmless exchange over", "a", "")

		tab.End(a)
		expect("the last run in quarantine leaves work behind", "a", "")
		time.Sleep(time.Second)
		expect("all gone", "", ReasonNoLiveRun)

		off := newTable(Options{NoSingle: true})
		start(t, off, &Run{First: "a"})
		if v := off.Attribute(Clues{}); v.Reason != ReasonSingleFlightOff {
			t.Errorf("turned off: Attribute = %+v, want reason %s", v, ReasonSingleFlightOff)
		}
	})
}

// TestATraceStaysShared: a call left behind by one run must not be taken for
// that of another run of the same trace, however much later it comes. Only the
// span that a run was handed still tells it.
func TestATraceStaysShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tab := newTable(Options{})
		a := start(t, tab, &Run{First: "a", Trace: traceA, Span: spanA})
		tab.End(a)
		time.Sleep(time.Minute)
		start(t, tab, &Run{First: "b", Trace: traceA, Span: spanB})
		start(t, tab, &Run{First: "c", Trace: traceB})
		if v := tab.Attribute(Clues{Spans: [2]Span{{traceA, ancestry.SpanID{7}}}}); v.Reason != ReasonSharedTrace {
			t.Errorf("a span of the host's own: %+v, want %s", v, ReasonSharedTrace)
		}
		if v := tab.Attribute(Clues{Spans: [2]Span{{traceA, spanA}}}); v.Reason != ReasonSharedTrace {
			t.Errorf("the span of the run that ended: %+v, want %s", v, ReasonSharedTrace)
		}
		if v := tab.Attribute(Clues{Spans: [2]Span{{traceA, spanB}}}); v.ID != "b" {
			t.Errorf("the span that b was handed: %+v, want b", v)
		}
	})
}

func TestRetiredIsBounded(t *testing.T) {
	r := retired{count: map[ancestry.TraceID]int{}}
	for i := range 3 * maxRetired {
		r.add(ancestry.TraceID{byte(i), byte(i >> 8), byte(i >> 16), 1})
	}
	r.add(traceA)
	r.add(traceA)
	if len(r.ring) != maxRetired || len(r.count) != maxRetired-1 || !r.has(traceA) || r.has(ancestry.TraceID{0, 0, 0, 1}) {
		t.Errorf("%d places, %d traces, newest %v, oldest %v", len(r.ring), len(r.count), r.has(traceA), r.has(ancestry.TraceID{0, 0, 0, 1}))
	}
	for i := range maxRetired {
		r.add(ancestry.TraceID{byte(i), byte(i >> 8), byte(i >> 16), 2})
	}
	if r.has(traceA) {
		t.Error("a trace is remembered for ever")
	}
}

// TestOtherWorkInATrace: what works in the run's own trace without being a run
// makes the trace ambiguous, even for the span that the run was handed.
func TestOtherWorkInATrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tab := newTable(Options{})
		start(t, tab, &Run{First: "a", Trace: traceA, Span: spanA})
		start(t, tab, &Run{First: "b", Trace: traceB, Span: spanA})
		for _, span := range []ancestry.SpanID{spanA, spanB} {
			clues := Clues{Spans: [2]Span{{traceA, span}}}
			expect := func(when string, id ancestry.RunID) {
				t.Helper()
				if v := tab.Attribute(clues); v.ID != id || id == "" && v.Reason != ReasonOtherWork {
					t.Errorf("span %s, %s: %+v, want %q", span, when, v, id)
				}
			}
			tab.Other(traceA)
			tab.Other(traceA)
			expect("two at work", "")
			tab.OtherDone(traceA, true)
			tab.OtherDone(traceA, false)
			expect("one may have left work behind", "")
			if v := tab.Attribute(Clues{Spans: [2]Span{{traceB, spanB}}}); v.ID != "b" {
				t.Errorf("another trace: %+v, want b", v)
			}
			time.Sleep(time.Second)
			synctest.Wait()
			expect("quarantine over", "a")
			tab.Other(traceA)
			tab.OtherDone(traceA, false)
			expect("only read", "a")
			if len(tab.others) != 0 {
				t.Errorf("%d traces of other work are left", len(tab.others))
			}
		}
	})
}

// TestSingleFlightRenewsNothing: a run whose end was not seen must not be kept
// live by the calls that are attributed to it for want of another.
func TestSingleFlightRenewsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tab := newTable(Options{TTL: time.Hour})
		start(t, tab, &Run{First: "a"})
		time.Sleep(time.Hour - time.Nanosecond)
		if v := tab.Attribute(Clues{}); v.ID != "a" {
			t.Fatalf("before the ttl: %+v, want a", v)
		}
		time.Sleep(time.Nanosecond)
		if v := tab.Attribute(Clues{}); v.Reason != ReasonNoLiveRun {
			t.Errorf("at the ttl: %+v, want %s", v, ReasonNoLiveRun)
		}
	})
}

func TestTableForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tab := newTable(Options{TTL: time.Hour})
		a := start(t, tab, &Run{First: "a", Trace: traceA})
		tab.Alias(a, "host-a")
		tab.Bind(a, Key{KindA2AContext, "c"})
		time.Sleep(time.Hour - time.Nanosecond)
		if v := tab.Attribute(Clues{Spans: [2]Span{{Trace: traceA}}}); v.Run != a {
			t.Fatalf("just before the ttl: %+v, want a", v)
		}
		time.Sleep(time.Hour - time.Nanosecond) // the attribution was activity
		if tab.Resume("host-a") != a {
			t.Fatal("Resume just before the second ttl = nil, want a")
		}
		time.Sleep(time.Hour)
		if r := tab.Resume("a"); r != nil {
			t.Errorf("at the ttl: Resume = %v, want nil", r.First)
		}
		if live, bound := tab.Len(); live+bound+len(tab.byID)+len(tab.byTrace)+len(tab.bindings) != 0 {
			t.Errorf("at the ttl something is left: %d live, %d bound, %d ids, %d traces", live, bound, len(tab.byID), len(tab.byTrace))
		}
	})
}

// TestFullTableIsNotTrusted: a run that found no place may be the one that
// calls, so the rungs that count live runs abstain until it is surely over.
func TestFullTableIsNotTrusted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tab := newTable(Options{MaxRuns: 1, TTL: time.Minute})
		a := start(t, tab, &Run{First: "a", Trace: traceA, Span: spanA})
		tab.Bind(a, Key{KindA2AContext, "c"})
		if tab.Start(&Run{First: "b", Trace: traceA, Span: spanB}) {
			t.Fatal("Start into a full table = true, want false")
		}
		for name, c := range map[string]Clues{
			"single flight": {}, "trace": {Spans: [2]Span{{traceA, ancestry.SpanID{9}}}}, "exact span": {Spans: [2]Span{{traceA, spanA}}},
			"conversation": {Keys: []Key{{KindA2AContext, "c"}}},
		} {
			if v := tab.Attribute(c); v.Reason != ReasonTableFull {
				t.Errorf("%s: %+v, want reason %s", name, v, ReasonTableFull)
			}
		}
		for name, c := range map[string]Clues{
			"run id": {RunID: "a"}, "state": {Spans: [2]Span{{traceA, spanA}}, States: [2]string{tab.State(a)}},
		} {
			if v := tab.Attribute(c); v.Run != a {
				t.Errorf("%s: %+v, want a", name, v)
			}
		}
		time.Sleep(time.Minute - time.Nanosecond)
		tab.Resume("a")
		time.Sleep(time.Nanosecond)
		if v := tab.Attribute(Clues{}); v.Run != a {
			t.Errorf("when the lost run is over: %+v, want a", v)
		}
	})
}

func TestFullBindingsAreNotTrusted(t *testing.T) {
	tab := newTable(Options{MaxBindings: 1})
	a, b := start(t, tab, &Run{First: "a"}), start(t, tab, &Run{First: "b"})
	key := Key{KindA2AContext, "c"}
	for range 2 {
		if !tab.Bind(a, key) {
			t.Error("Bind twice the same = false, want true")
		}
	}
	if tab.Bind(b, key) {
		t.Error("Bind without a place = true, want false")
	}
	if v := tab.Attribute(Clues{Keys: []Key{key}}); v.Evidence != "" {
		t.Errorf("Attribute = %+v, want none: b is bound to the key too", v)
	}
}

// TestReplay: the host answered with a run it already has, so the second
// arrival was that run all along.
func TestReplay(t *testing.T) {
	tab := newTable(Options{})
	a := start(t, tab, &Run{First: "a", Trace: traceA})
	if got := tab.Alias(a, "task"); got != a || a.ID() != "task" {
		t.Fatalf("Alias = %s with id %s, want a with id task", got.First, a.ID())
	}
	b := start(t, tab, &Run{First: "b", Trace: traceB})
	if got := tab.Alias(b, "task"); got != a {
		t.Fatalf("Alias of a replay = %s, want a", got.First)
	}
	if v := tab.Attribute(Clues{RunID: "b"}); v.Run != a || v.ID != "task" {
		t.Errorf("Attribute by the replay's id = %+v, want a by its name task", v)
	}
	if live, _ := tab.Len(); live != 1 {
		t.Errorf("%d runs live, want 1", live)
	}
}

func TestResumeBringsBackAnEndedRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tab := newTable(Options{})
		a := start(t, tab, &Run{First: "a"})
		tab.End(a)
		if tab.Resume("a") != a {
			t.Fatal("Resume = nil, want a")
		}
		time.Sleep(time.Minute)
		var live []*Run
		for r, active := range tab.Live {
			live = append(live, r)
			if idle := time.Since(active); idle != time.Minute {
				t.Errorf("a has been idle for %v, want 1m", idle)
			}
		}
		if !slices.Equal(live, []*Run{a}) {
			t.Errorf("Live = %v, want a", live)
		}
	})
}

// BenchmarkAttribute shows that the cost does not grow with the table.
func BenchmarkAttribute(b *testing.B) {
	for _, live := range []int{1, 1000, 100_000} {
		tab := newTable(Options{MaxRuns: live})
		var last *Run
		for i := range live {
			last = &Run{First: ancestry.RunID(fmt.Sprintf("run_%026d", i)), Trace: ancestry.TraceID{1, byte(i), byte(i >> 8), byte(i >> 16)}}
			tab.Start(last)
		}
		for name, c := range map[string]Clues{
			"state": {Spans: [2]Span{{Trace: last.Trace}}, States: [2]string{tab.State(last)}}, "trace": {Spans: [2]Span{{Trace: last.Trace}}}, "none": {},
		} {
			b.Run(fmt.Sprintf("%s/live=%d", name, live), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					tab.Attribute(c)
				}
			})
		}
	}
}

// TestUnseen: while runs may be at work that began before the table was there, no
// run is the only one, and none is alone in a trace that the store knows another
// run of. What names a run itself counts as ever.
func TestUnseen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tab := newTable(Options{Unseen: time.Minute})
		a := start(t, tab, &Run{First: "a", Trace: traceA, Span: ancestry.SpanID{1}})
		b := start(t, tab, &Run{First: "b", Trace: traceB, Span: ancestry.SpanID{2}})
		tab.End(b)
		tab.Bind(a, Key{KindA2AContext, "conversation-1234"})
		tab.Retire(traceA)
		time.Sleep(2 * time.Second) // b is over
		for _, tt := range []struct {
			name  string
			clues Clues
			want  ancestry.RunID
			why   Reason
		}{
			{"nothing", Clues{}, "", ReasonRestarted},
			{"its conversation", Clues{Keys: []Key{{KindA2AContext, "conversation-1234"}}}, "", ReasonRestarted},
			{"a trace that another run had", Clues{Spans: [2]Span{{}, {Trace: traceA}}}, "", ReasonSharedTrace},
			{"the span that it was handed", Clues{Spans: [2]Span{{}, {Trace: traceA, Span: a.Span}}}, "a", ""},
			{"its id", Clues{RunID: "a"}, "a", ""},
		} {
			if v := tab.Attribute(tt.clues); v.ID != tt.want || v.Reason != tt.why {
				t.Errorf("%s: Attribute = %q (%s), want %q (%s)", tt.name, v.ID, v.Reason, tt.want, tt.why)
			}
		}
		if !tab.Unseen() {
			t.Error("Unseen = false, want true")
		}
		time.Sleep(time.Minute)
		if v := tab.Attribute(Clues{}); v.ID != "a" || tab.Unseen() {
			t.Errorf("a minute later: Attribute = %+v, Unseen = %v, want a", v, tab.Unseen())
		}
	})
}

// A run that works inside of another one bears what that was handed: as long as it
// may call, neither is named by it.
func TestLadderWithin(t *testing.T) {
	tab := newTable(Options{Quarantine: -1})
	outer := start(t, tab, &Run{First: "outer", Trace: traceA, Span: spanA})
	start(t, tab, &Run{First: "beside", Trace: traceA, Span: spanB})
	handed := func(r *Run) Clues {
		return Clues{Spans: [2]Span{{traceA, ancestry.SpanID{9}}}, States: [2]string{tab.State(r)}}
	}
	if v := tab.Attribute(handed(outer)); v.ID != "outer" {
		t.Fatalf("before: %+v, want outer", v)
	}
	inner := start(t, tab, &Run{First: "inner", Trace: traceA, Span: spanA, Within: []ancestry.RunID{"outer"}})
	deepest := start(t, tab, &Run{First: "deepest", Trace: traceA, Span: spanA, Within: []ancestry.RunID{"outer", "inner"}})
	for _, r := range []*Run{outer, inner} {
		if v := tab.Attribute(handed(r)); v.Evidence != "" || v.Reason != ReasonSharedTrace {
			t.Errorf("what %s was handed: %+v, want %s", r.First, v, ReasonSharedTrace)
		}
	}
	for _, id := range []ancestry.RunID{"beside", "deepest"} {
		if v := tab.Attribute(handed(tab.Known(id))); v.ID != id {
			t.Errorf("what %s was handed: %+v, want %s", id, v, id)
		}
	}
	c := handed(outer)
	c.RunID = "outer"
	if v := tab.Attribute(c); v.ID != "outer" || v.Evidence != ancestry.EvidenceRunID {
		t.Errorf("with the host's own word: %+v, want outer", v)
	}
	tab.End(inner)
	if v := tab.Attribute(handed(outer)); v.Reason != ReasonSharedTrace {
		t.Errorf("while the deepest is live: %+v, want %s", v, ReasonSharedTrace)
	}
	tab.End(deepest)
	if v := tab.Attribute(handed(outer)); v.ID != "outer" {
		t.Errorf("when both have ended: %+v, want outer", v)
	}
}
