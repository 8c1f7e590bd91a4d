package attribution

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/wopproxy/wopproxy/ancestry"
)

// A set behaves as a list of different runs does, also across the size from
// which on it knows where each stands.
func TestRunSet(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	runs := make([]*Run, 4*few)
	for i := range runs {
		runs[i] = &Run{First: ancestry.RunID(fmt.Sprint(i))}
	}
	index := map[string]*runSet{}
	var want []*Run
	for range 20_000 {
		r := runs[rnd.IntN(len(runs))]
		i := slices.Index(want, r)
		if rnd.IntN(2) == 0 {
			add(index, "k", r)
			if i < 0 {
				want = append(want, r)
			}
		} else {
			drop(index, "k", r)
			if i >= 0 {
				want = slices.Delete(want, i, i+1)
			}
		}
		s := index["k"]
		if s.len() != len(want) || s.has(r) != slices.Contains(want, r) {
			t.Fatalf("%d runs, has = %v; want %d, %v", s.len(), s.has(r), len(want), slices.Contains(want, r))
		}
		switch only := s.only(); {
		case len(want) == 1 && only != want[0], len(want) != 1 && only != nil:
			t.Fatalf("only = %v of %d", only, len(want))
		case len(want) == 0 && s != nil:
			t.Fatal("an empty set is kept")
		}
		for _, r := range want {
			if !s.has(r) {
				t.Fatalf("%s is missing of %d", r.First, len(want))
			}
		}
	}
}

// BenchmarkLife shows that a run costs the same from its start to its end,
// however many others share its trace and its session.
func BenchmarkLife(b *testing.B) {
	session := Key{KindMCPSession, "session-1234567890"}
	for _, live := range []int{1, 1000, 100_000} {
		b.Run(fmt.Sprintf("live=%d", live), func(b *testing.B) {
			tab := NewTable(Options{MaxRuns: live + 1, MaxBindings: live + 1, Quarantine: -1})
			begin := func(i int) *Run {
				span := ancestry.SpanID{byte(i), byte(i >> 8), byte(i >> 16), 1}
				r := &Run{First: ancestry.RunID(fmt.Sprintf("run_%026d", i)), Trace: traceA, Span: span}
				tab.Start(r)
				tab.Bind(r, session)
				return r
			}
			runs := make([]*Run, live)
			for i := range runs {
				runs[i] = begin(i)
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				r := begin(live + i)
				tab.Attribute(Clues{Spans: [2]Span{{Trace: traceA, Span: r.Span}}, Keys: []Key{session}})
				old := i % live
				tab.End(runs[old])
				runs[old] = r
			}
		})
	}
}
