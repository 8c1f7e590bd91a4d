package ancestrytest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/wopproxy/wopproxy/ancestry"
)

// Store runs the contract of ancestry.Store against what open returns: an empty
// store for each call, which the caller closes when t ends.
func Store(t *testing.T, open func(t *testing.T) ancestry.Store) {
	for _, c := range []struct {
		name string
		run  func(contract)
	}{
		{"a link comes back as it was", contract.comesBack},
		{"time is kept to the millisecond", contract.milliseconds},
		{"an unknown run is not found", contract.notFound},
		{"records all or none", contract.allOrNone},
		{"both ids name the run", contract.bothIDs},
		{"an alias learned later names the run", contract.aliasLater},
		{"recording again adds what was unknown", contract.addsUnknown},
		{"recording again changes nothing known", contract.keepsKnown},
		{"a root stays a root", contract.rootStays},
		{"a replay is one more name of the run", contract.replay},
		{"a run found to be a replay becomes a name", contract.replayLearnedLater},
		{"the order of one batch is the order of calls", contract.oneBatch},
		{"the same id elsewhere is another run", contract.elsewhere},
		{"a run on another host is not looked up", contract.noForeignLookup},
		{"children are found by every name of the parent", contract.childrenByName},
		{"children are listed oldest first", contract.childrenOrder},
		{"children are paged", contract.childrenPaged},
		{"a cursor that no page returned is refused", contract.cursor},
		{"traces are listed oldest first, up to the limit", contract.trace},
		{"a replay is listed once", contract.replayListedOnce},
		{"the context ends a call", contract.cancelled},
		{"pruning keeps what retention covers", contract.prune},
		{"methods may be called concurrently", contract.concurrent},
	} {
		t.Run(c.name, func(t *testing.T) { c.run(contract{t, open(t)}) })
	}
}

// contract is one test on one empty store.
type contract struct {
	*testing.T
	s ancestry.Store
}

// base is when the runs of a test begin: the same each time it is asked, however
// slow the machine.
var base = sync.OnceValue(func() time.Time { return time.Now().UTC().Truncate(time.Second) })

func trace(b byte) ancestry.TraceID { return ancestry.TraceID{b, 15: b} }

// child returns a link from parent to run.
func child(run, parent ancestry.RunID, at time.Time) ancestry.Link {
	return ancestry.Link{
		Run: run,
		Chain: ancestry.Chain{Ancestors: []ancestry.Ancestor{{
			Run: parent, Host: "host.example.com", Cause: ancestry.CauseA2AMessage,
		}}},
		Evidence: ancestry.EvidenceRunAncestry,
		Time:     at,
	}
}

func (c contract) record(links ...ancestry.Link) {
	c.Helper()
	if err := c.s.Record(c.Context(), links); err != nil {
		c.Fatalf("Record(%v) = %v", runs(links), err)
	}
}

func (c contract) lookup(id ancestry.RunID) ancestry.Link {
	c.Helper()
	l, err := c.s.Lookup(c.Context(), id)
	if err != nil {
		c.Fatalf("Lookup(%q) = %v", id, err)
	}
	return l
}

// want checks what each of ids looks up.
func (c contract) want(want ancestry.Link, ids ...ancestry.RunID) {
	c.Helper()
	for _, id := range ids {
		if diff := cmp.Diff(want, c.lookup(id), cmpopts.EquateEmpty()); diff != "" {
			c.Errorf("Lookup(%q) (-want +got):\n%s", id, diff)
		}
	}
}

// wantMissing checks that none of ids is known.
func (c contract) wantMissing(ids ...ancestry.RunID) {
	c.Helper()
	for _, id := range ids {
		if l, err := c.s.Lookup(c.Context(), id); !errors.Is(err, ancestry.ErrNotFound) {
			c.Errorf("Lookup(%q) = %v, %v, want ErrNotFound", id, l, err)
		}
	}
}

// wantChildren checks the children of id, read in pages of limit.
func (c contract) wantChildren(id ancestry.RunID, limit int, want ...string) {
	c.Helper()
	var got []string
	after := ""
	for {
		links, next, err := c.s.Children(c.Context(), id, after, limit)
		if err != nil {
			c.Fatalf("Children(%q, %q) = %v", id, after, err)
		}
		if len(links) > limit {
			c.Errorf("Children(%q, %q) = %d links, want at most %d", id, after, len(links), limit)
		}
		got = append(got, runs(links)...)
		if next == "" {
			break
		}
		if next <= after {
			c.Fatalf("Children(%q, %q): next cursor %q goes back", id, after, next)
		}
		after = next
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		c.Errorf("Children(%q) in pages of %d (-want +got):\n%s", id, limit, diff)
	}
}

func (c contract) wantTrace(id ancestry.TraceID, limit int, want ...string) {
	c.Helper()
	links, err := c.s.Trace(c.Context(), id, limit)
	if err != nil {
		c.Fatalf("Trace(%v) = %v", id, err)
	}
	if diff := cmp.Diff(want, runs(links), cmpopts.EquateEmpty()); diff != "" {
		c.Errorf("Trace(%v, %d) (-want +got):\n%s", id, limit, diff)
	}
}

func runs(links []ancestry.Link) []string {
	var keys []string
	for _, l := range links {
		keys = append(keys, l.Key())
	}
	return keys
}

func (c contract) comesBack() {
	full := child("run-1", "parent-1", base())
	full.Alias = "acme/host-given-0001"
	full.Chain.Ancestors[0].WellKnown = "https://host.example.com/.well-known/openwop"
	full.Chain.Ancestors[0].Event = "event-1"
	full.Chain.Ancestors = append(full.Chain.Ancestors, ancestry.Ancestor{
		Run: "grandparent", Host: "front.example.com", Cause: ancestry.CauseDispatch,
	})
	full.Chain.More, full.Chain.Depth = true, 7
	full.Trace, full.Span, full.ParentSpan = trace(1), ancestry.SpanID{2}, ancestry.SpanID{3}
	full.Operation, full.Workflow = "tools/call", "wf_f379bbe2-a2fd-8410-a502-84b01b301c71"
	c.record(full)
	root := ancestry.Link{Run: "run-2", Reason: "no-evidence", Time: base().Add(-time.Hour)}
	c.record(root)
	c.want(full, "run-1")
	c.want(root, "run-2")
	fork := ancestry.Link{Run: "run-3", Reason: "fork", Source: "acme/host-given-0001", Time: base()}
	c.record(fork)
	c.record(ancestry.Link{Run: "run-3", Alias: "acme/host-given-0003", Time: base()})
	fork.Alias = "acme/host-given-0003"
	c.want(fork, "run-3", fork.Alias)
}

func (c contract) milliseconds() {
	at := base().Add(123*time.Millisecond + 456*time.Microsecond).Local()
	c.record(ancestry.Link{Run: "run-1", Time: at})
	if got, want := c.lookup("run-1").Time, at.Truncate(time.Millisecond); !got.Equal(want) {
		c.Errorf("Time = %v, want %v", got, want)
	}
	old := time.Date(1931, 1, 2, 3, 4, 5, 6e6, time.UTC)
	c.record(child("run-2", "p", old), child("run-3", "p", at))
	c.want(child("run-2", "p", old), "run-2")
	c.wantChildren("p", 10, "run-2", "run-3")
}

func (c contract) notFound() {
	c.wantMissing("run-1")
	c.record(ancestry.Link{Run: "run-1", Alias: "host-1", Time: base()})
	c.wantMissing("run-2", "run-", "run-11", "host-", "parent-1")
	c.wantChildren("run-1", 10)
	c.wantTrace(trace(1), 10)
	c.wantTrace(ancestry.TraceID{}, 10)
}

func (c contract) allOrNone() {
	err := c.s.Record(c.Context(), []ancestry.Link{{Run: "run-1", Time: base()}, {Run: "no spaces", Time: base()}})
	if err == nil {
		c.Error("Record of an invalid link = nil, want an error")
	}
	c.wantMissing("run-1")
	if err := c.s.Record(c.Context(), nil); err != nil {
		c.Errorf("Record of nothing = %v", err)
	}
}

func (c contract) bothIDs() {
	l := child("run-1", "parent-1", base())
	l.Alias = "host-1"
	c.record(l)
	c.want(l, "run-1", "host-1")
	same := ancestry.Link{Run: "run-2", Alias: "run-2", Time: base()}
	c.record(same)
	same.Alias = ""
	c.want(same, "run-2")
}

func (c contract) aliasLater() {
	l := child("run-1", "parent-1", base())
	c.record(l)
	c.record(ancestry.Link{Run: "run-1", Alias: "host-1", Time: base().Add(time.Second)})
	l.Alias = "host-1"
	c.want(l, "run-1", "host-1")
	// The alias names the run when it is recorded under it, too.
	c.record(ancestry.Link{Run: "host-1", Operation: "tools/call", Time: base()})
	l.Operation = "tools/call"
	c.want(l, "run-1", "host-1")
	c.wantChildren("parent-1", 10, "run-1")
}

func (c contract) addsUnknown() {
	c.record(ancestry.Link{Run: "run-1", Time: base()})
	l := child("run-1", "parent-1", base().Add(time.Second))
	l.Alias, l.Trace, l.Span, l.Operation = "host-1", trace(1), ancestry.SpanID{1}, "message/send"
	l.Workflow = "wf_f379bbe2-a2fd-8410-a502-84b01b301c71"
	c.record(l)
	l.Time = base()
	c.want(l, "run-1", "host-1")
	c.wantChildren("parent-1", 10, "run-1")
	c.wantTrace(trace(1), 10, "run-1")
}

func (c contract) keepsKnown() {
	l := child("run-1", "parent-1", base())
	l.Alias, l.Trace, l.Span, l.Operation = "host-1", trace(1), ancestry.SpanID{1}, "message/send"
	l.Workflow = "wf_f379bbe2-a2fd-8410-a502-84b01b301c71"
	c.record(l)
	other := child("run-1", "parent-2", base().Add(time.Second))
	other.Alias, other.Trace, other.Span, other.Operation = "host-2", trace(2), ancestry.SpanID{2}, "tools/call"
	other.Workflow = "wf_4bfd100a-6e51-8af1-b3a3-dc41386f4974"
	other.Evidence = ancestry.EvidenceTraceID
	c.record(other)
	c.record(ancestry.Link{Run: "run-1", Reason: "no-evidence", Time: base()})
	c.want(l, "run-1", "host-1")
	c.wantMissing("host-2")
	c.wantChildren("parent-1", 10, "run-1")
	c.wantChildren("parent-2", 10)
	c.wantTrace(trace(1), 10, "run-1")
	c.wantTrace(trace(2), 10)
}

func (c contract) rootStays() {
	root := ancestry.Link{Run: "run-1", Reason: "no-evidence", Time: base()}
	c.record(root)
	c.record(child("run-1", "parent-1", base()))
	c.want(root, "run-1")
	c.wantChildren("parent-1", 10)
}

func (c contract) replay() {
	first := child("run-1", "parent-1", base())
	first.Alias = "host-1"
	c.record(first)
	again := child("run-2", "parent-2", base().Add(time.Second))
	again.Alias = "host-1"
	c.record(again)
	c.want(first, "run-1", "host-1", "run-2")
	c.wantChildren("parent-2", 10)

	// The host's own id may have been the first one known.
	seen := child("host-3", "parent-1", base())
	c.record(seen)
	again.Run, again.Alias = "run-3", "host-3"
	c.record(again)
	c.want(seen, "host-3", "run-3")
}

func (c contract) replayLearnedLater() {
	first := child("run-1", "parent-1", base())
	first.Alias = "host-1"
	c.record(first)
	again := child("run-2", "parent-2", base().Add(time.Second))
	again.Alias = "host-2"
	c.record(again)
	c.want(again, "run-2", "host-2")
	c.record(ancestry.Link{Run: "run-2", Alias: "host-1", Time: base()})
	c.want(first, "run-1", "host-1", "run-2", "host-2")
	c.wantChildren("parent-1", 10, "run-1")
	c.wantChildren("parent-2", 10)
	// Nothing undoes it.
	c.record(again)
	c.want(first, "run-1", "host-1", "run-2", "host-2")
	c.wantChildren("parent-2", 10)
}

func (c contract) oneBatch() {
	first := child("run-1", "parent-1", base())
	again := child("run-2", "parent-2", base())
	again.Alias = "host-1"
	c.record(first, child("run-1", "parent-2", base()), ancestry.Link{Run: "run-1", Alias: "host-1", Time: base()}, again)
	first.Alias = "host-1"
	c.want(first, "run-1", "host-1", "run-2")
	c.wantChildren("parent-1", 10, "run-1")
	c.wantChildren("parent-2", 10)
}

func (c contract) elsewhere() {
	here, there := child("run-1", "p", base()), child("run-1", "p", base())
	there.Host, there.Alias = "peer.example.com", "host-1"
	other := there
	other.Host, other.Alias = "other.example.com", ""
	c.record(here)
	c.record(there, other)
	c.record(ancestry.Link{Run: "run-9", Alias: "host-1", Time: base()})
	c.want(here, "run-1")
	c.want(ancestry.Link{Run: "run-9", Alias: "host-1", Time: base()}, "run-9", "host-1")
	c.wantChildren("p", 2, "run-1", "run-1 other.example.com", "run-1 peer.example.com")
}

func (c contract) noForeignLookup() {
	l := child("run-1", "p", base())
	l.Host, l.Alias = "peer.example.com", "host-1"
	c.record(l)
	c.wantMissing("run-1", "host-1", "run-1 peer.example.com")
	// Its first parent stays all the same.
	second := child("run-1", "q", base())
	second.Host = "peer.example.com"
	c.record(second)
	c.wantChildren("p", 10, "run-1 peer.example.com")
	c.wantChildren("q", 10)
}

func (c contract) childrenByName() {
	at := base()
	c.record(child("c-1", "run-1", at), child("c-2", "host-1", at.Add(time.Second)))
	c.wantChildren("run-1", 10, "c-1")
	c.wantChildren("host-1", 10, "c-2")
	c.record(ancestry.Link{Run: "run-1", Alias: "host-1", Time: at})
	c.record(child("c-3", "run-2", at.Add(2*time.Second)), child("c-4", "host-2", at.Add(3*time.Second)))
	c.record(ancestry.Link{Run: "run-2", Alias: "host-2", Time: at})
	c.record(ancestry.Link{Run: "run-2", Alias: "host-1", Time: at}) // a replay of run-1
	for _, id := range []ancestry.RunID{"run-1", "host-1", "run-2", "host-2"} {
		c.wantChildren(id, 3, "c-1", "c-2", "c-3", "c-4")
	}
}

func (c contract) childrenOrder() {
	at := base()
	for _, l := range []struct {
		run ancestry.RunID
		at  time.Duration
	}{{"c", 3}, {"a", 1}, {"e", 2}, {"b", 2}, {"d", 0}} {
		c.record(child(l.run, "p", at.Add(l.at*time.Millisecond)))
	}
	c.record(child("x", "p-and-more", at), child("y", "P", at))
	c.wantChildren("p", 10, "d", "a", "b", "e", "c")
}

func (c contract) childrenPaged() {
	var want []string
	at := base()
	for i := range 7 {
		l := child(ancestry.RunID(fmt.Sprint("c-", i)), "p", at.Add(time.Duration(i/2)*time.Millisecond))
		want = append(want, l.Key())
		c.record(l)
	}
	for _, limit := range []int{1, 2, 3, 6, 7, 8} {
		c.wantChildren("p", limit, want...)
	}
	if links, _, err := c.s.Children(c.Context(), "p", "", 0); err != nil || len(links) > 0 {
		c.Errorf("Children with limit 0 = %v, %v, want none", runs(links), err)
	}
}

func (c contract) cursor() {
	c.record(child("c", "p", base()))
	for _, after := range []string{"x", "0123456789abcdef", "0123456789ABCDEFc", "zzzzzzzzzzzzzzzzzzc"} {
		if _, _, err := c.s.Children(c.Context(), "p", after, 1); !errors.Is(err, ancestry.ErrCursor) {
			c.Errorf("Children after %q = %v, want ErrCursor", after, err)
		}
	}
}

func (c contract) trace() {
	at := base()
	for i, run := range []ancestry.RunID{"c", "a", "b"} {
		l := child(run, "p", at.Add(-time.Duration(i)*time.Second))
		l.Trace = trace(1)
		c.record(l)
	}
	other := child("d", "p", at)
	other.Trace = trace(2)
	c.record(other)
	c.wantTrace(trace(1), 10, "b", "a", "c")
	c.wantTrace(trace(1), 2, "b", "a")
	c.wantTrace(trace(1), 0)
	c.wantTrace(trace(2), 10, "d")
	c.wantTrace(trace(3), 10)
}

func (c contract) replayListedOnce() {
	for _, run := range []ancestry.RunID{"run-1", "run-2"} {
		l := child(run, "p", base())
		l.Trace = trace(1)
		c.record(l)
		c.record(ancestry.Link{Run: run, Alias: "host-1", Time: base()})
	}
	c.wantChildren("p", 1, "run-1")
	c.wantTrace(trace(1), 10, "run-1")
}

func (c contract) cancelled() {
	ctx, cancel := context.WithCancel(c.Context())
	cancel()
	if err := c.s.Record(ctx, []ancestry.Link{{Run: "run-1", Time: base()}}); !errors.Is(err, context.Canceled) {
		c.Errorf("Record = %v, want context.Canceled", err)
	}
	c.wantMissing("run-1")
	if _, err := c.s.Lookup(ctx, "run-1"); !errors.Is(err, context.Canceled) {
		c.Errorf("Lookup = %v, want context.Canceled", err)
	}
	if _, _, err := c.s.Children(ctx, "run-1", "", 1); !errors.Is(err, context.Canceled) {
		c.Errorf("Children = %v, want context.Canceled", err)
	}
	if _, err := c.s.Trace(ctx, trace(1), 1); !errors.Is(err, context.Canceled) {
		c.Errorf("Trace = %v, want context.Canceled", err)
	}
	if _, err := c.s.Prune(ctx, time.Now()); !errors.Is(err, context.Canceled) {
		c.Errorf("Prune = %v, want context.Canceled", err)
	}
}

func (c contract) prune() {
	l := child("run-1", "p", base())
	c.record(l)
	if n, err := c.s.Prune(c.Context(), time.Now()); n != 0 || err != nil {
		c.Errorf("Prune = %d, %v, want 0, nil", n, err)
	}
	c.want(l, "run-1")
	c.wantChildren("p", 10, "run-1")
}

// concurrent lets writers disagree about the parents of the same runs while
// readers look. Each run must end with one parent, that no reader ever saw
// change.
func (c contract) concurrent() {
	const writers, each = 4, 25
	at := base()
	var mu sync.Mutex
	seen := map[ancestry.RunID]ancestry.RunID{}
	look := func(run ancestry.RunID) {
		l, err := c.s.Lookup(c.Context(), run)
		if err != nil {
			c.Errorf("Lookup(%q) = %v", run, err)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		p := l.Parent().Run
		if first, ok := seen[run]; ok && first != p {
			c.Errorf("parent of %q was %q and became %q", run, first, p)
		}
		seen[run] = p
	}
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			parent := ancestry.RunID(fmt.Sprint("p-", w))
			for i := range each {
				run := ancestry.RunID(fmt.Sprint("run-", i))
				l := child(run, parent, at.Add(time.Duration(i)*time.Millisecond))
				l.Trace = trace(1)
				if err := c.s.Record(c.Context(), []ancestry.Link{l}); err != nil {
					c.Errorf("Record(%q) = %v", run, err)
				}
				look(run)
			}
		})
		wg.Go(func() {
			for range each {
				if _, _, err := c.s.Children(c.Context(), "p-0", "", each); err != nil {
					c.Errorf("Children = %v", err)
				}
				if _, err := c.s.Trace(c.Context(), trace(1), each); err != nil {
					c.Errorf("Trace = %v", err)
				}
				if _, err := c.s.Prune(c.Context(), at); err != nil {
					c.Errorf("Prune = %v", err)
				}
			}
		})
	}
	wg.Wait()
	total := 0
	for w := range writers {
		links, _, err := c.s.Children(c.Context(), ancestry.RunID(fmt.Sprint("p-", w)), "", each)
		if err != nil {
			c.Errorf("Children = %v", err)
		}
		total += len(links)
		for _, l := range links {
			look(l.Run)
		}
	}
	if total != each {
		c.Errorf("%d runs have a parent, want %d", total, each)
	}
}
