package boltstore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/wopproxy/wopproxy/ancestry"
	"github.com/wopproxy/wopproxy/ancestry/peac"
	"github.com/wopproxy/wopproxy/evidence"
)

// receipt is the nth of a workflow, of an exchange that began n seconds after at.
func receipt(workflow string, n int, run ancestry.RunID, at time.Time) evidence.Receipt {
	return evidence.Receipt{
		ID: peac.NewReceiptID(at.Add(time.Duration(n) * time.Second)), Workflow: workflow, Step: fmt.Sprintf("step_%020d", n),
		Run: run, Exchange: fmt.Sprint("exchange ", n), External: []string{"step_of-a-peer-0123456789"}, JWS: fmt.Sprintf("e30.%d.sig", n),
	}
}

const (
	workflowA = "wf_aaaaaaaaaaaaaaaaaaaaaaaa"
	workflowB = "wf_aaaaaaaaaaaaaaaaaaaaaaab"
)

// pages reads all receipts of a workflow, so many at once.
func pages(t *testing.T, s evidence.Store, workflow string, limit int) (all []evidence.Receipt) {
	t.Helper()
	for after := ""; ; {
		page, next, err := s.Receipts(t.Context(), workflow, after, limit)
		if err != nil || len(page) > limit {
			t.Fatalf("Receipts = %d of %d, %v", len(page), limit, err)
		}
		all = append(all, page...)
		if next == "" {
			return all
		}
		after = next
	}
}

func wantWhole(t *testing.T, s evidence.Store, workflow string, want bool) {
	t.Helper()
	if got, err := s.Whole(t.Context(), workflow); got != want || err != nil {
		t.Errorf("Whole(%s) = %v, %v, want %v", workflow, got, err, want)
	}
}

// TestReceipts holds both stores to what evidence.Store promises.
func TestReceipts(t *testing.T) {
	for name, open := range map[string]func(t *testing.T) evidence.Store{
		"memory": func(*testing.T) evidence.Store { return evidence.NewMemory() },
		"bolt": func(t *testing.T) evidence.Store {
			s, err := Open(Options{Dir: t.TempDir()})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { s.Close() })
			return s
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, at := open(t), time.Now().Add(-time.Minute)
			var want []evidence.Receipt
			for n := range 7 {
				want = append(want, receipt(workflowA, n, "run_1", at))
			}
			want[6].Run, want[6].Audience, want[6].External = "", "https://b.example.com", nil
			add := func(lost []string, receipts ...evidence.Receipt) {
				t.Helper()
				if err := s.Add(t.Context(), receipts, lost); err != nil {
					t.Fatal(err)
				}
			}
			add(nil, want[3], want[0])
			add(nil, receipt(workflowB, 1, "run_2", at), receipt(workflowB, 2, "run_1", at))
			add(nil, want...)
			changed := want[0]
			changed.JWS = "another"
			add(nil, changed)
			for _, limit := range []int{1, 3, 7, 100} {
				if diff := cmp.Diff(want, pages(t, s, workflowA, limit)); diff != "" {
					t.Errorf("pages of %d (-want +got):\n%s", limit, diff)
				}
			}
			for _, limit := range []int{0, 1, 3, 7, 100} {
				newest := slices.Clone(want[max(0, len(want)-limit):])
				slices.Reverse(newest)
				if got, err := s.Latest(t.Context(), workflowA, limit); err != nil || !cmp.Equal(newest, got, cmpopts.EquateEmpty()) {
					t.Errorf("Latest(%d) = %v, %v, want %v", limit, got, err, newest)
				}
			}
			if got, err := s.Latest(t.Context(), workflowB, 10); len(got) != 2 || err != nil { // nothing sorts behind it
				t.Errorf("the latest of another workflow: %v, %v", got, err)
			}
			if got := pages(t, s, workflowB, 10); len(got) != 2 {
				t.Errorf("another workflow has %d receipts, want 2", len(got))
			}
			if got := pages(t, s, "wf_unknown", 10); len(got) != 0 {
				t.Errorf("an unknown one has %d", len(got))
			}
			for run, want := range map[ancestry.RunID]string{"run_1": workflowA, "run_2": workflowB} {
				if got, err := s.Workflow(t.Context(), run); got != want || err != nil {
					t.Errorf("Workflow(%s) = %s, %v, want %s", run, got, err, want)
				}
			}
			if got, err := s.Workflow(t.Context(), "run_3"); !errors.Is(err, ancestry.ErrNotFound) {
				t.Errorf("Workflow of none = %s, %v", got, err)
			}
			wantWhole(t, s, workflowA, true)
			add([]string{workflowA})
			wantWhole(t, s, workflowA, false)
			wantWhole(t, s, workflowB, true)
			old := "wf_long-ago-0123456789-0123"
			add([]string{""}, receipt(old, 0, "", at.Add(-3*time.Hour)))
			wantWhole(t, s, workflowB, false)
			wantWhole(t, s, old, true)
			cancelled, cancel := context.WithCancel(t.Context())
			cancel()
			if _, err := s.Latest(cancelled, workflowA, 1); !errors.Is(err, context.Canceled) {
				t.Errorf("Latest with a context that has ended: %v", err)
			}
			if err := s.Add(cancelled, want, nil); !errors.Is(err, context.Canceled) {
				t.Errorf("Add with a context that has ended: %v", err)
			}
		})
	}
}

// TestReceiptsReopened has receipts survive, and an end in disorder be known.
func TestReceiptsReopened(t *testing.T) {
	dir := t.TempDir()
	open := func() *Store {
		t.Helper()
		s, err := Open(Options{Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	s, at := open(), time.Now().Add(-10*time.Second)
	want := []evidence.Receipt{receipt(workflowA, 0, "run_1", at), receipt(workflowA, 1, "run_1", at)}
	if err := s.Add(t.Context(), want[:1], nil); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open()
	wantWhole(t, s, workflowA, true)
	if err := s.Add(t.Context(), want[1:], nil); err != nil {
		t.Fatal(err)
	}
	// A process that is killed leaves its mark, and nothing else that Close does not.
	mark := filepath.Join(dir, "receiving")
	if _, err := os.Stat(mark); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(mark); err == nil {
		t.Fatal("a store that was closed has its mark")
	}
	if err := os.WriteFile(mark, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s = open()
	defer s.Close()
	if diff := cmp.Diff(want, pages(t, s, workflowA, 10)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	wantWhole(t, s, workflowA, false)
	later := receipt(workflowB, 0, "run_2", time.Now().Add(time.Minute))
	if err := s.Add(t.Context(), []evidence.Receipt{later}, nil); err != nil {
		t.Fatal(err)
	}
	wantWhole(t, s, workflowB, true)
}

// TestReceiptsKilled has an end in disorder be dated so that what had begun just
// before it counts as at work: no file tells the time to the millisecond.
func TestReceiptsKilled(t *testing.T) {
	dir := t.TempDir()
	s, err := Open(Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Add(t.Context(), nil, nil); err != nil { // no receipt, but they are to come
		t.Fatal(err)
	}
	mark := filepath.Join(dir, "receiving")
	if _, err := os.Stat(mark); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(mark, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	written := time.Now().Add(-3 * time.Hour)
	for _, f := range files {
		if err := os.Chtimes(f, written, written); err != nil {
			t.Fatal(err)
		}
	}
	if s, err = Open(Options{Dir: dir}); err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	just := receipt(workflowA, 0, "", written.Add(time.Second))
	later := receipt(workflowB, 0, "", written.Add(time.Minute))
	quiet := receipt("wf_quiet-0123456789-0123", 0, "", written.Add(-2*time.Hour))
	if err := s.Add(t.Context(), []evidence.Receipt{just, later, quiet}, nil); err != nil {
		t.Fatal(err)
	}
	wantWhole(t, s, just.Workflow, false)
	wantWhole(t, s, later.Workflow, true)
	wantWhole(t, s, quiet.Workflow, true)
}

// TestReceiptsOwed has an orderly end remember that the last receipts could not be
// added, and forget it when they were in the end.
func TestReceiptsOwed(t *testing.T) {
	for _, tt := range []struct {
		name string
		do   func(t *testing.T, s *Store, dir string)
		want bool
	}{
		{"all was added", func(*testing.T, *Store, string) {}, true},
		{"the last was not", failToAdd, false},
		{"it was in the end", func(t *testing.T, s *Store, dir string) {
			failToAdd(t, s, dir)
			if err := s.Add(t.Context(), []evidence.Receipt{receipt(workflowA, 1, "run_1", time.Now())}, nil); err != nil {
				t.Fatal(err)
			}
		}, true},
		{"nothing could be", func(t *testing.T, s *Store, dir string) {
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			again, err := Open(Options{Dir: dir})
			if err != nil {
				t.Fatal(err)
			}
			mark := filepath.Join(dir, "receiving")
			if err := os.Mkdir(mark, 0o700); err != nil { // what is in the way of the mark
				t.Fatal(err)
			}
			if err := again.Add(t.Context(), []evidence.Receipt{receipt(workflowA, 1, "run_1", time.Now())}, nil); err == nil {
				t.Fatal("added without a mark")
			}
			if err := os.Remove(mark); err != nil {
				t.Fatal(err)
			}
			if err := again.Close(); err != nil {
				t.Fatal(err)
			}
		}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			s, err := Open(Options{Dir: dir})
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Add(t.Context(), []evidence.Receipt{receipt(workflowA, 0, "run_1", time.Now().Add(-time.Minute))}, nil); err != nil {
				t.Fatal(err)
			}
			tt.do(t, s, dir)
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			if s, err = Open(Options{Dir: dir}); err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			wantWhole(t, s, workflowA, tt.want)
		})
	}
}

// failToAdd adds what no store takes.
func failToAdd(t *testing.T, s *Store, _ string) {
	t.Helper()
	long := receipt(strings.Repeat("w", 1<<16), 0, "", time.Now())
	if err := s.Add(t.Context(), []evidence.Receipt{long}, nil); err == nil {
		t.Fatal("a workflow with an id of 64 KiB was added")
	}
}

// TestReceiptsWindows has a workflow be read across windows, and go with the links.
func TestReceiptsWindows(t *testing.T) {
	now := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	s, err := Open(Options{Dir: t.TempDir(), Window: time.Hour, MaxAge: 24 * time.Hour, Fill: 3, Now: func() time.Time { return now }})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var want []evidence.Receipt
	for n := range 8 {
		r := receipt(workflowA, n, "run_1", now)
		want = append(want, r)
		if err := s.Add(t.Context(), []evidence.Receipt{r, want[0]}, nil); err != nil {
			t.Fatal(err)
		}
		now = now.Add(10 * time.Minute)
	}
	if n := len(*s.windows.Load()); n < 2 {
		t.Fatalf("%d windows", n)
	}
	if diff := cmp.Diff(want, pages(t, s, workflowA, 2)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	newest := slices.Clone(want[3:])
	slices.Reverse(newest)
	if got, err := s.Latest(t.Context(), workflowA, 5); err != nil || !cmp.Equal(newest, got) {
		t.Errorf("Latest = %v, %v, want %v", got, err, newest)
	}
	if w, err := s.Workflow(t.Context(), "run_1"); w != workflowA || err != nil {
		t.Errorf("Workflow = %s, %v", w, err)
	}
	if _, err := s.Prune(t.Context(), now.Add(48*time.Hour)); err != nil {
		t.Fatal(err)
	}
	if got := pages(t, s, workflowA, 10); len(got) != 0 {
		t.Errorf("%d receipts are left", len(got))
	}
}

// TestReceiptsParted has a workflow of which some receipts were forgotten be known
// not to be whole, for as long as others are kept.
func TestReceiptsParted(t *testing.T) {
	now := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	dir := t.TempDir()
	open := func() *Store {
		t.Helper()
		s, err := Open(Options{Dir: dir, Window: time.Hour, MaxAge: 3 * time.Hour, Now: func() time.Time { return now }})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	s := open()
	defer func() { s.Close() }()
	add := func(hour int, lost []string, workflows ...string) {
		t.Helper()
		now = time.Date(2026, 11, 1, hour, 1, 0, 0, time.UTC)
		var receipts []evidence.Receipt
		for _, w := range workflows {
			receipts = append(receipts, receipt(w, 0, "", now))
		}
		if err := s.Add(t.Context(), receipts, lost); err != nil {
			t.Fatal(err)
		}
	}
	prune := func(windows int) {
		t.Helper()
		if _, err := s.Prune(t.Context(), now); err != nil {
			t.Fatal(err)
		}
		if n := len(*s.windows.Load()); n != windows {
			t.Fatalf("%d windows, want %d", n, windows)
		}
	}
	const lost, long, old, next, later, young = "wf_lost", "wf_long", "wf_old", "wf_next", "wf_later", "wf_young"
	add(0, []string{lost}, old, next, later, long)
	// A call that began before an end in disorder, and is over after it.
	began := receipt("wf_call", 0, "", now.Add(30*time.Minute))
	add(1, []string{lost, ""}, next)
	now = now.Add(time.Minute)
	add(2, nil, lost, young)
	if err := s.Add(t.Context(), []evidence.Receipt{began}, nil); err != nil {
		t.Fatal(err)
	}
	add(4, nil, later)
	wantWhole(t, s, later, false) // by the end in disorder
	prune(3)                      // the first went
	for workflow, want := range map[string]bool{next: false, later: false, lost: false, "wf_call": false, young: true} {
		wantWhole(t, s, workflow, want)
	}
	add(5, nil)
	prune(3) // the second went, and the end in disorder
	for workflow, want := range map[string]bool{lost: false, "wf_call": false, later: false, young: true} {
		wantWhole(t, s, workflow, want)
	}
	if got := pages(t, s, old, 10); len(got) != 0 {
		t.Errorf("%d receipts of a workflow that is forgotten", len(got))
	}
	// What is noted goes out itself, where receipts have come since.
	add(8, nil, later)
	prune(2)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open()
	wantWhole(t, s, later, false)
	wantWhole(t, s, "wf_unknown", true)
}

// TestReceiptsUnnoted has nothing be forgotten where it can't be noted whose
// receipts are.
func TestReceiptsUnnoted(t *testing.T) {
	now := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	s, err := Open(Options{Dir: t.TempDir(), Window: time.Hour, MaxAge: time.Hour, Now: func() time.Time { return now }})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for range 2 {
		if err := s.Add(t.Context(), []evidence.Receipt{receipt(workflowA, 0, "", now)}, nil); err != nil {
			t.Fatal(err)
		}
		now = now.Add(time.Hour)
	}
	state := func(broken error) {
		s.write.Lock()
		defer s.write.Unlock()
		s.broken = broken
	}
	state(errDamaged)
	if _, err := s.Prune(t.Context(), now); !errors.Is(err, errDamaged) || len(pages(t, s, workflowA, 10)) != 2 {
		t.Errorf("Prune = %v, %d receipts are left, want 2", err, len(pages(t, s, workflowA, 10)))
	}
	state(nil)
	if _, err := s.Prune(t.Context(), now); err != nil || len(pages(t, s, workflowA, 10)) != 1 {
		t.Errorf("Prune = %v, %d receipts are left, want 1", err, len(pages(t, s, workflowA, 10)))
	}
	wantWhole(t, s, workflowA, false)
}
