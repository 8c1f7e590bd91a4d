package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"
)

// tally is what became of some calls.
type tally struct {
	calls, right, wrong, abstained int
	misguessed                     int            // calls that a guess would have got wrong
	by                             map[string]int // the evidence that links rest on
}

func (t *tally) add(o tally) {
	t.calls += o.calls
	t.right += o.right
	t.wrong += o.wrong
	t.abstained += o.abstained
	t.misguessed += o.misguessed
	if t.by == nil {
		t.by = map[string]int{}
	}
	for e, n := range o.by {
		t.by[e] += n
	}
}

// verdict is what is known of a call that was said to be of some run.
type verdict struct {
	of    *message // whose run made it
	wrong bool     // it was said to be another's: to the server, or in the store
	noted bool     // the store has it
}

// judge compares what wopproxy says of each call with the truth: what the
// server was told, and what the store has. Its error says what breaks the rule.
func (s *stage) judge(ctx context.Context, at int, all []*message) (tally, error) {
	t := tally{by: map[string]int{}}
	verdicts := map[string]*verdict{} // by the run that the call has started
	for _, m := range all {
		own, err := s.ownLink(ctx, m)
		if err != nil {
			return t, err
		}
		t.calls += len(m.calls)
		for _, c := range m.calls {
			if !c.guessed {
				t.misguessed++
			}
			if len(c.chain) == 0 {
				t.abstained++
				continue
			}
			verdicts[c.child] = &verdict{of: m, wrong: !s.isRight(own, m, c)}
		}
	}
	strangers, err := s.readStore(ctx, all, verdicts, &t)
	if err != nil {
		return t, err
	}
	var errs []error
	lost := 0
	for _, v := range verdicts {
		if v.wrong {
			t.wrong++
			continue
		}
		t.right++
		if !v.noted {
			lost++
		}
	}
	if lost+strangers > 0 {
		errs = append(errs, fmt.Errorf("the store lacks %d links of which the server was told, and has %d of which it was not", lost, strangers))
	}
	if want := callsPerRun * len(all); t.calls != want || s.book.strays > 0 {
		errs = append(errs, fmt.Errorf("%d calls have arrived, and %d of nobody: want %d", t.calls, s.book.strays, want))
	}
	if err := s.rule(at, t); err != nil {
		errs = append(errs, err, s.reasons(ctx))
	}
	return t, errors.Join(errs...)
}

// readStore notes in the verdicts which runs the store has as children of which
// run, and returns how many it has that no call has started. A link is noted
// after its call was answered: it waits for those that there should be.
func (s *stage) readStore(ctx context.Context, all []*message, verdicts map[string]*verdict, t *tally) (strangers int, err error) {
	want := map[*message]int{}
	for _, v := range verdicts {
		if !v.wrong {
			want[v.of]++
		}
	}
	deadline := time.Now().Add(s.patience)
	for _, m := range all {
		children, err := s.children(ctx, m.task, want[m], deadline)
		if err != nil {
			return 0, err
		}
		for _, l := range children {
			t.by[l.Evidence]++
			if v := verdicts[l.RunID]; v != nil {
				v.noted, v.wrong = true, v.wrong || v.of != m
			} else {
				strangers++
			}
		}
	}
	return strangers, nil
}

// rule says what may not be.
func (s *stage) rule(at int, t tally) error {
	var errs []error
	if t.wrong > 0 {
		errs = append(errs, fmt.Errorf("%d of %d calls are said to be of a run that did not make them", t.wrong, t.calls))
	}
	if t.abstained > 0 && (at == 1 || !s.mode.alone) {
		errs = append(errs, fmt.Errorf("%d of %d calls are said to be of no run", t.abstained, t.calls))
	}
	for e, n := range t.by {
		if !slices.Contains(s.mode.by, e) {
			errs = append(errs, fmt.Errorf("%d calls are linked by %s: want it by %s", n, e, strings.Join(s.mode.by, " or ")))
		}
	}
	return errors.Join(errs...)
}

// reasons returns what wopproxy has counted that may explain a fault, since it
// was started.
func (s *stage) reasons(ctx context.Context) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.admin+"/metrics", nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	return fmt.Errorf("counted: %s", strings.Join(explaining.FindAllString(string(text), -1), ", "))
}

var explaining = regexp.MustCompile(`(?m)^wopproxy_(abstentions|attributions|limit_hits|attribution_conflicts)_total\S* [1-9].*$`)

// link is what the store has of a run.
type link struct {
	RunID, HostID, Alias, TraceID, Evidence string
	Chain                                   struct {
		Ancestors []struct{ RunID, HostID string }
	}
}

// isRight reports whether a call was said to be of the run that made it, caused
// by who sent its message, in their trace.
func (s *stage) isRight(own link, m *message, c call) bool {
	return len(c.chain) == 2 && (c.chain[0].run == own.RunID || c.chain[0].run == own.Alias) && c.chain[0].host == s.hostID() &&
		c.chain[1] == ancestor{m.root, caller} && c.trace == m.trace
}

// ownLink returns what the store has of a run by the name that its host gave
// it, and wants its parent to be who sent the message.
func (s *stage) ownLink(ctx context.Context, m *message) (l link, err error) {
	if err := s.get(ctx, m.task, "", &l); err != nil {
		return l, err
	}
	if a := l.Chain.Ancestors; len(a) != 1 || a[0].RunID != m.root || a[0].HostID != caller || l.TraceID != m.trace {
		return l, fmt.Errorf("run %s: the store has %+v, want the parent %s of %s in trace %s", m.task, l, m.root, caller, m.trace)
	}
	return l, nil
}

// children returns the runs that a run has caused, as soon as there are as many
// as there should be, and at the deadline what there is.
func (s *stage) children(ctx context.Context, run string, want int, deadline time.Time) ([]link, error) {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for ; ; <-tick.C {
		var page struct{ Runs []link }
		if err := s.get(ctx, run, "/children", &page); err != nil {
			return nil, err
		}
		if len(page.Runs) >= want || time.Now().After(deadline) {
			return page.Runs, nil
		}
	}
}

// get asks for what the store has of a run.
func (s *stage) get(ctx context.Context, run, what string, answer any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.admin+"/ancestry/v1/runs/"+url.PathEscape(run)+what, nil)
	if err != nil {
		return err
	}
	return ask(req, answer)
}
