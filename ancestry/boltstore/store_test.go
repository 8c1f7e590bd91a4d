package boltstore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/wopproxy/wopproxy/ancestry"
	"github.com/wopproxy/wopproxy/ancestry/ancestrytest"
)

// open opens a store, and checks the invariants of its files when t ends.
func open(t testing.TB, o Options) *Store {
	t.Helper()
	if o.Dir == "" {
		o.Dir = t.TempDir()
	}
	s, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeChecked(t, s) })
	return s
}

// closeChecked checks each file of s and closes it.
func closeChecked(t testing.TB, s *Store) {
	t.Helper()
	if s.closed.Load() {
		return
	}
	if err := s.apply(); err != nil {
		t.Errorf("apply = %v", err)
	}
	for i, w := range *s.windows.Load() {
		checkWindow(t, w, i == 0)
	}
	if err := s.Close(); err != nil {
		t.Errorf("Close = %v", err)
	}
}

// checkWindow checks the pages of w, its count, its indexes and its filter.
func checkWindow(t testing.TB, w *window, newest bool) {
	t.Helper()
	if newest != (w.filter == nil) {
		t.Errorf("%s: filter present = %v, newest = %v", w.path, w.filter != nil, newest)
	}
	err := w.db.View(func(tx *bolt.Tx) error {
		for err := range tx.Check() {
			t.Errorf("%s: %v", w.path, err)
		}
		n := 0
		err := tx.Bucket(bucketLinks).ForEach(func(k, record []byte) error {
			n++
			l, err := decodeLink(string(k), record)
			if err != nil {
				return err
			}
			if w.filter != nil && !w.filter.has(hashName(k)) {
				t.Errorf("%s: filter hides %q", w.path, k)
			}
			if p := l.Parent(); p != nil && !has(tx, bucketChildren, pair(string(p.Run), placeOf(l))) {
				t.Errorf("%s: %q is not listed under its parent", w.path, k)
			}
			if !l.Trace.IsZero() && !has(tx, bucketTraces, append(l.Trace[:], placeOf(l)...)) {
				t.Errorf("%s: %q is not listed in its trace", w.path, k)
			}
			return nil
		})
		if got := tx.Bucket(bucketLinks).Sequence(); got != uint64(n) {
			t.Errorf("%s: count is %d, want %d", w.path, got, n)
		}
		return errors.Join(err, tx.Bucket(bucketNames).ForEach(func(k, v []byte) error {
			if w.filter != nil && !w.filter.has(hashName(k)) {
				t.Errorf("%s: filter hides name %q", w.path, k)
			}
			if string(k) == string(v) {
				t.Errorf("%s: %q names itself", w.path, k)
			}
			return nil
		}))
	})
	if err != nil {
		t.Errorf("%s: %v", w.path, err)
	}
}

func has(tx *bolt.Tx, bucket, key []byte) bool {
	k, _ := tx.Bucket(bucket).Cursor().Seek(key)
	return string(k) == string(key)
}

// record records links and has them written to a window.
func record(t testing.TB, s *Store, links ...ancestry.Link) {
	t.Helper()
	if err := (applied{s}).Record(t.Context(), links); err != nil {
		t.Fatal(err)
	}
}

// applied is a store that keeps nothing in the journal alone.
type applied struct{ *Store }

func (s applied) Record(ctx context.Context, links []ancestry.Link) error {
	if err := s.Store.Record(ctx, links); err != nil {
		return err
	}
	return s.apply()
}

func wantFound(t testing.TB, s ancestry.Store, want bool, ids ...ancestry.RunID) {
	t.Helper()
	for _, id := range ids {
		_, err := s.Lookup(t.Context(), id)
		if found := err == nil; found != want || err != nil && !errors.Is(err, ancestry.ErrNotFound) {
			t.Errorf("Lookup(%q) = %v, want found %v", id, err, want)
		}
	}
}

// link returns a link that has everything.
func link(i int) ancestry.Link {
	return ancestry.Link{
		Run:   ancestry.RunID(fmt.Sprintf("run_%026d", i)),
		Alias: ancestry.RunID(fmt.Sprintf("acme/host-given-%d", i)),
		Chain: ancestry.Chain{Ancestors: []ancestry.Ancestor{{
			Run: ancestry.RunID(fmt.Sprint("parent-", i/10)), Host: "host.example.com/agent",
			WellKnown: "https://host.example.com/.well-known/openwop", Cause: ancestry.CauseMCPToolCall,
		}}},
		Evidence:  ancestry.EvidenceTraceState,
		Trace:     ancestry.TraceID{byte(i), byte(i >> 8), 15: 1},
		Operation: "tools/call",
		Time:      time.UnixMilli(1_700_000_000_000 + int64(i)).UTC(),
	}
}

// links returns the first n links.
func links(n int) []ancestry.Link {
	all := make([]ancestry.Link, n)
	for i := range all {
		all[i] = link(i)
	}
	return all
}

// clock is a time that a test sets.
type clock struct{ ns atomic.Int64 }

func newClock() *clock {
	c := &clock{}
	c.set(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	return c
}

func (c *clock) now() time.Time      { return time.Unix(0, c.ns.Load()).UTC() }
func (c *clock) set(t time.Time)     { c.ns.Store(t.UnixNano()) }
func (c *clock) add(d time.Duration) { c.ns.Add(int64(d)) }
func (s *Store) files(t testing.TB) int {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(s.o.Dir, "links-*"))
	if err != nil {
		t.Fatal(err)
	}
	return len(names)
}

func TestStoreContract(t *testing.T) {
	t.Run("in the journal", func(t *testing.T) {
		ancestrytest.Store(t, func(t *testing.T) ancestry.Store { return open(t, Options{Delay: time.Hour}) })
	})
	t.Run("in one window", func(t *testing.T) {
		ancestrytest.Store(t, func(t *testing.T) ancestry.Store { return applied{open(t, Options{})} })
	})
	// What a link builds on is in the journal, on its way to a window, or there.
	t.Run("in a journal that is full at once", func(t *testing.T) {
		ancestrytest.Store(t, func(t *testing.T) ancestry.Store {
			return open(t, Options{Journal: minJournal, Delay: time.Millisecond})
		})
	})
	// Every call finds what it builds on in an older file.
	t.Run("in a window for each record", func(t *testing.T) {
		ancestrytest.Store(t, func(t *testing.T) ancestry.Store {
			c := newClock()
			c.set(time.Now()) // the contract prunes at the present
			return rotating{open(t, Options{Now: c.now}), c}
		})
	})
}

// rotating begins a window before each record.
type rotating struct {
	*Store
	c *clock
}

func (s rotating) Record(ctx context.Context, links []ancestry.Link) error {
	s.c.add(24 * time.Hour)
	return applied{s.Store}.Record(ctx, links)
}

func TestWindows(t *testing.T) {
	c := newClock()
	s := open(t, Options{Now: c.now, Window: time.Hour})
	record(t, s, link(1))
	c.add(time.Hour - time.Nanosecond)
	record(t, s, link(2))
	if got := s.files(t); got != 1 {
		t.Errorf("%d files just before the end of the window, want 1", got)
	}
	c.add(time.Nanosecond)
	record(t, s, link(3))
	if got := s.files(t); got != 2 {
		t.Errorf("%d files at the end of the window, want 2", got)
	}
	c.add(-10 * time.Hour)
	record(t, s, link(4))
	if got := s.files(t); got != 2 {
		t.Errorf("%d files after the clock jumped back, want 2", got)
	}
	for i := 1; i <= 4; i++ {
		wantFound(t, s, true, link(i).Run, link(i).Alias)
	}
	// Windows of another length begin with the next one, and never overlap.
	s.o.Window = 24 * time.Hour
	c.add(11 * time.Hour)
	record(t, s, link(5))
	if w := *s.windows.Load(); len(w) != 3 || !w[0].start.Equal(w[1].end) {
		t.Errorf("%d windows, the last from %v, want 3 and %v", len(w), w[0].start, w[1].end)
	}
	if name := filepath.Base((*s.windows.Load())[1].path); name != "links-20260101T010000Z.db" {
		t.Errorf("file is named %s", name)
	}
}

// A clock that jumps, back or ahead and back, loses nothing and stops nothing: the
// store goes on with the window it has, and with the next when that is full.
func TestClockJumps(t *testing.T) {
	c := newClock()
	o := Options{Dir: t.TempDir(), Now: c.now, Window: time.Hour, Fill: 4, MaxAge: 48 * time.Hour}
	s := open(t, o)
	n := 0
	add := func() {
		t.Helper()
		l := link(n)
		l.Time = c.now() // as runs are noted that begin now
		record(t, s, l)
		n++
		for i := range n {
			wantFound(t, s, true, link(i).Run, link(i).Alias)
		}
		if links, _, err := s.Children(t.Context(), "parent-0", "", 100); len(links) != min(n, 10) || err != nil {
			t.Errorf("%d links: %d children, %v", n, len(links), err)
		}
	}
	for _, jump := range []time.Duration{0, -time.Hour, -1000 * time.Hour, 3 * time.Hour, 1000 * time.Hour, 30 * time.Hour, -40 * time.Hour} {
		c.add(jump)
		for range 3 {
			add()
		}
		if gone, err := s.Prune(t.Context(), c.now()); gone != 0 || err != nil {
			t.Errorf("Prune after %v = %d, %v", jump, gone, err)
		}
		closeChecked(t, s)
		s = open(t, o)
	}
	if windows := len(*s.windows.Load()); windows < n/4 {
		t.Errorf("%d links in %d windows of 4", n, windows)
	}
	c.add(2000 * time.Hour)
	if gone, err := s.Prune(t.Context(), c.now()); gone != n || err != nil {
		t.Errorf("Prune when all are old = %d, %v, want %d", gone, err, n)
	}
}

// A window that is full ends early, and all that it holds is found as before.
func TestFullWindows(t *testing.T) {
	c := newClock()
	o := Options{Dir: t.TempDir(), Now: c.now, Window: time.Hour, Fill: 3, MaxLinks: 7, MaxAge: 2 * time.Hour}
	s := open(t, o)
	for i := range 5 { // within a second: files are named by it
		record(t, s, link(2*i), link(2*i+1))
	}
	var sizes []int
	for i, w := range *s.windows.Load() {
		n, _, err := w.count()
		if err != nil {
			t.Fatal(err)
		}
		sizes = append(sizes, n)
		if want := c.now().Add(time.Duration(2-i) * time.Second); !w.start.Equal(want) {
			t.Errorf("window %d starts at %v, want %v", i, w.start, want)
		}
	}
	if !slices.Equal(sizes, []int{2, 4, 4}) {
		t.Errorf("windows of %d links, want 2, 4 and 4", sizes)
	}
	closeChecked(t, s)
	s = open(t, o)
	for i := range 10 {
		wantFound(t, s, true, link(i).Run, link(i).Alias)
	}
	// What is known already fills nothing.
	for range 5 {
		record(t, s, link(9))
	}
	record(t, s, link(10))
	if n := len(*s.windows.Load()); n != 3 {
		t.Errorf("%d windows, want 3", n)
	}
	if n, err := s.Prune(t.Context(), c.now()); n != 4 || err != nil {
		t.Errorf("Prune of 11 links to 7 = %d, %v, want 4", n, err)
	}
	// A window has ended when it was full, not when its hour was over.
	if n, err := s.Prune(t.Context(), c.now().Add(2*time.Hour+2*time.Second-time.Nanosecond)); n != 0 || err != nil {
		t.Errorf("Prune before the age = %d, %v, want 0", n, err)
	}
	if n, err := s.Prune(t.Context(), c.now().Add(2*time.Hour+2*time.Second)); n != 4 || err != nil {
		t.Errorf("Prune at the age = %d, %v, want 4", n, err)
	}
}

// A closed window without a filter, or with one of an earlier layout, gets it
// when it is opened.
func TestOpenMakesFilter(t *testing.T) {
	c := newClock()
	o := Options{Dir: t.TempDir(), Now: c.now, Fill: 1}
	s := open(t, o)
	record(t, s, link(0))
	record(t, s, link(1))
	path := (*s.windows.Load())[1].path
	closeChecked(t, s)
	db, err := bolt.Open(path, 0o600, boltOptions())
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(func(tx *bolt.Tx) error {
		meta := tx.Bucket(bucketMeta)
		return errors.Join(meta.Delete(keyFilter), meta.Put([]byte("filter"), []byte("\x00")))
	})
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		s = open(t, o)
		wantFound(t, s, true, link(0).Run, link(0).Alias, link(1).Run)
		wantFound(t, s, false, link(2).Run)
		closeChecked(t, s)
	}
}

// A disk that was full when a window was due may have left half a file.
func TestHalfAWindow(t *testing.T) {
	c := newClock()
	s := open(t, Options{Now: c.now, Fill: 1})
	record(t, s, link(0))
	next := c.now().Add(time.Second)
	left := filepath.Join(s.o.Dir, next.Format(fileLayout+unfinished))
	for _, text := range []string{"", "half a page", strings.Repeat("x", 64<<10)} {
		write(t, left, text)
		record(t, s, link(len(text)+1))
		wantFound(t, s, true, link(0).Run, link(len(text)+1).Run)
		left = filepath.Join(s.o.Dir, (*s.windows.Load())[0].start.Add(time.Second).Format(fileLayout+unfinished))
	}
	// The window before is not lost while the next one can't be made.
	if err := os.MkdirAll(filepath.Join(left, "in the way"), 0o700); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := s.Record(t.Context(), []ancestry.Link{link(5)}); err == nil && s.apply() == nil {
			t.Error("apply without a window = nil")
		}
		wantFound(t, s, true, link(0).Run)
	}
	if err := os.RemoveAll(left); err != nil {
		t.Fatal(err)
	}
	record(t, s, link(5))
	wantFound(t, s, true, link(0).Run, link(5).Run)
}

func TestReopen(t *testing.T) {
	c := newClock()
	o := Options{Dir: t.TempDir(), Now: c.now, Window: time.Hour}
	s := open(t, o)
	for i := range 5 {
		record(t, s, link(i))
		c.add(time.Hour)
	}
	closeChecked(t, s)
	if err := s.Close(); err != nil {
		t.Errorf("second Close = %v", err)
	}
	if err := s.Record(t.Context(), []ancestry.Link{link(9)}); !errors.Is(err, errClosed) {
		t.Errorf("Record after Close = %v", err)
	}
	if _, err := s.Lookup(t.Context(), link(1).Run); !errors.Is(err, errClosed) {
		t.Errorf("Lookup after Close = %v", err)
	}
	if _, err := s.Prune(t.Context(), c.now()); !errors.Is(err, errClosed) {
		t.Errorf("Prune after Close = %v", err)
	}
	s = open(t, o)
	for i := range 5 {
		wantFound(t, s, true, link(i).Run, link(i).Alias)
	}
	record(t, s, link(5))
	wantFound(t, s, true, link(5).Run)
}

func TestPrune(t *testing.T) {
	c := newClock()
	s := open(t, Options{Now: c.now, Window: time.Hour, MaxAge: 3 * time.Hour})
	start := c.now()
	for i := range 3 {
		record(t, s, link(2*i), link(2*i+1))
		c.add(time.Hour)
	}
	// The first window ended an hour after start, and is kept three hours more.
	prune := func(at time.Duration, want int) {
		t.Helper()
		if n, err := s.Prune(t.Context(), start.Add(at)); n != want || err != nil {
			t.Errorf("Prune at %v = %d, %v, want %d", at, n, err, want)
		}
	}
	prune(4*time.Hour-time.Nanosecond, 0)
	wantFound(t, s, true, link(0).Run)
	prune(4*time.Hour, 2)
	wantFound(t, s, false, link(0).Run, link(0).Alias, link(1).Run)
	wantFound(t, s, true, link(2).Run, link(4).Run)
	if links, _, err := s.Children(t.Context(), "parent-0", "", 10); len(links) != 4 || err != nil {
		t.Errorf("Children after Prune = %d, %v, want 4", len(links), err)
	}
	// A host without traffic forgets its last links as well.
	prune(24*time.Hour, 4)
	wantFound(t, s, false, link(4).Run)
	if got := s.files(t); got != 1 {
		t.Errorf("%d files are left, want 1", got)
	}
	record(t, s, link(0)) // what was forgotten may come again
	wantFound(t, s, true, link(0).Run, link(0).Alias)
}

func TestPruneMaxLinks(t *testing.T) {
	c := newClock()
	s := open(t, Options{Now: c.now, Window: time.Hour, MaxLinks: 5})
	for i := range 4 {
		record(t, s, link(2*i), link(2*i+1))
		c.add(time.Hour)
	}
	c.add(-time.Hour) // still within the fourth window
	if n, err := s.Prune(t.Context(), c.now()); n != 4 || err != nil {
		t.Errorf("Prune of 8 links to 5 = %d, %v, want 4", n, err)
	}
	wantFound(t, s, false, link(3).Run)
	wantFound(t, s, true, link(4).Run, link(7).Run)

	s = open(t, Options{Now: c.now, Window: time.Hour, MaxLinks: 1})
	record(t, s, link(0), link(1))
	if n, err := s.Prune(t.Context(), c.now()); n != 0 || err != nil {
		t.Errorf("Prune of the window in use = %d, %v, want 0", n, err)
	}
}

// A run whose window has been forgotten leaves names in later windows. They
// must not lead a new run astray.
func TestForgottenNames(t *testing.T) {
	c := newClock()
	s := open(t, Options{Now: c.now, Window: time.Hour, MaxAge: 30 * time.Minute})
	first := link(1)
	record(t, s, first)
	c.add(time.Hour)
	replay := link(2)
	replay.Alias = first.Alias
	record(t, s, replay)
	c.add(30 * time.Minute)
	if n, err := s.Prune(t.Context(), c.now()); n != 1 || err != nil {
		t.Fatalf("Prune = %d, %v, want 1", n, err)
	}
	wantFound(t, s, false, first.Run, first.Alias, replay.Run)
	if got := s.files(t); got != 1 {
		t.Fatalf("%d files, want the one that holds the name", got)
	}
	record(t, s, replay)
	for _, id := range []ancestry.RunID{replay.Run, first.Alias} {
		if l, err := s.Lookup(t.Context(), id); l.Run != replay.Run || err != nil {
			t.Errorf("Lookup(%q) = %q, %v, want %q", id, l.Run, err, replay.Run)
		}
	}
	wantFound(t, s, false, first.Run)
}

// A run that is completed in a later window lives as long as that.
func TestCompletedLater(t *testing.T) {
	c := newClock()
	s := open(t, Options{Now: c.now, Window: time.Hour, MaxAge: time.Hour})
	l := link(1)
	alias := l.Alias
	l.Alias = ""
	record(t, s, l)
	c.add(time.Hour)
	record(t, s, ancestry.Link{Run: l.Run, Alias: alias, Time: c.now()})
	for _, want := range []bool{true, false} {
		links, next, err := s.Children(t.Context(), l.Parent().Run, "", 10)
		if err != nil || next != "" || len(links) != 1 || links[0].Alias != alias {
			t.Errorf("Children in two windows %v = %v, %q, %v", want, links, next, err)
		}
		if traced, err := s.Trace(t.Context(), l.Trace, 10); err != nil || len(traced) != 1 {
			t.Errorf("Trace in two windows %v = %v, %v", want, traced, err)
		}
		if _, err := s.Prune(t.Context(), c.now().Add(time.Hour)); err != nil {
			t.Fatal(err)
		}
	}
}

// Retention runs while others read: they get an answer or ErrNotFound, never
// an error.
func TestPruneUnderReaders(t *testing.T) {
	c := newClock()
	s := open(t, Options{Now: c.now, Window: time.Hour, MaxAge: time.Hour})
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; ctx.Err() == nil; i++ {
			if _, err := s.Lookup(t.Context(), link(i%50).Run); err != nil && !errors.Is(err, ancestry.ErrNotFound) {
				t.Errorf("Lookup = %v", err)
				return
			}
			if _, _, err := s.Children(t.Context(), link(i%50).Parent().Run, "", 10); err != nil {
				t.Errorf("Children = %v", err)
				return
			}
		}
	}()
	for i := range 50 {
		record(t, s, link(i))
		c.add(time.Hour)
		if _, err := s.Prune(t.Context(), c.now()); err != nil {
			t.Error(err)
		}
	}
	stop()
	<-done
}

// A disk that has no room for a window loses no acknowledged link, and the rest is
// refused whole.
func TestFullDisk(t *testing.T) {
	o := Options{Dir: t.TempDir(), Delay: time.Hour}
	s := open(t, o)
	record(t, s, link(0))
	db := (*s.windows.Load())[0].db
	db.MaxSize = 64 << 10
	batch := links(2001)[1:]
	if err := s.Record(t.Context(), batch); err != nil {
		t.Fatalf("Record in the journal = %v", err)
	}
	if err := s.apply(); err == nil {
		t.Fatal("apply beyond the size of the disk = nil")
	}
	wantFound(t, s, true, link(0).Run, link(1).Run, link(2000).Run)
	for range 2 {
		if err := s.Record(t.Context(), []ancestry.Link{link(3000)}); err == nil {
			t.Fatal("Record while nothing can be applied = nil")
		}
		wantFound(t, s, false, link(3000).Run)
	}
	if n, err := s.Prune(t.Context(), s.o.Now()); n != 0 || err == nil {
		t.Errorf("Prune = %d, %v, want 0 and why nothing was applied", n, err)
	}
	if err := s.Close(); err == nil {
		t.Error("Close = nil though links are in the journal alone")
	}
	s = open(t, o)
	wantFound(t, s, true, link(0).Run, link(1).Run, link(2000).Run)
	wantFound(t, s, false, link(3000).Run)
	record(t, s, link(3000))
	wantFound(t, s, true, link(3000).Run)
}

func TestOpenRefuses(t *testing.T) {
	// older writes a store with two windows and returns the path of the older.
	older := func(t *testing.T, dir string) string {
		c := newClock()
		s := open(t, Options{Dir: dir, Now: c.now, Window: time.Hour})
		record(t, s, links(500)...)
		c.add(time.Hour)
		record(t, s, link(1000))
		path := (*s.windows.Load())[1].path
		closeChecked(t, s)
		return path
	}
	edit := func(t *testing.T, path string, fn func(*bolt.Tx) error) {
		db, err := bolt.Open(path, 0o600, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(db.Update(fn), db.Close()); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name    string
		prepare func(t *testing.T, dir string)
		want    string
	}{
		{"locked", func(t *testing.T, dir string) { open(t, Options{Dir: dir}) },
			"is used by another process: stop it or give this one its own ancestry.store.bolt.dir"},
		{"not a database", func(t *testing.T, dir string) { write(t, older(t, dir), strings.Repeat("not a database ", 1000)) },
			"cannot be used (invalid database): restore it, or move it away to start without its links"},
		{"empty", func(t *testing.T, dir string) { write(t, older(t, dir), "") }, "cannot be used (the file is empty)"},
		{"short", func(t *testing.T, dir string) { write(t, older(t, dir), "short") }, "cannot be used (invalid database)"},
		{"truncated", func(t *testing.T, dir string) { truncate(t, older(t, dir), 16<<10) }, "cannot be used"},
		{"cut by a page", func(t *testing.T, dir string) {
			path := older(t, dir)
			var used int64
			edit(t, path, func(tx *bolt.Tx) error { used = tx.Size(); return nil })
			truncate(t, path, used-4096)
		}, "cannot be used"},
		{"foreign", func(t *testing.T, dir string) {
			edit(t, older(t, dir), func(tx *bolt.Tx) error { return tx.Bucket(bucketMeta).Put(keyMagic, []byte("else")) })
		}, "cannot be used (not a store of wopproxy)"},
		{"foreign without meta", func(t *testing.T, dir string) {
			edit(t, older(t, dir), func(tx *bolt.Tx) error { return tx.DeleteBucket(bucketMeta) })
		}, "cannot be used (not a store of wopproxy)"},
		{"newer", func(t *testing.T, dir string) {
			edit(t, older(t, dir), func(tx *bolt.Tx) error { return tx.Bucket(bucketMeta).Put(keySchema, []byte{2}) })
		}, "was written by a newer wopproxy (unknown schema 02: this one knows 1): run that version"},
		{"without a bucket", func(t *testing.T, dir string) {
			edit(t, older(t, dir), func(tx *bolt.Tx) error { return tx.DeleteBucket(bucketNames) })
		}, "bucket names is missing"},
		{"damaged filter", func(t *testing.T, dir string) {
			edit(t, older(t, dir), func(tx *bolt.Tx) error {
				b := append([]byte(nil), tx.Bucket(bucketMeta).Get(keyFilter)...)
				b[20] ^= 1
				return tx.Bucket(bucketMeta).Put(keyFilter, b)
			})
		}, "cannot be used (damaged filter)"},
		{"directory is a file", func(t *testing.T, dir string) {
			if err := os.Remove(dir); err != nil {
				t.Fatal(err)
			}
			write(t, dir, "")
		}, "not a directory"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "store")
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			c.prepare(t, dir)
			before := contents(t, dir)
			s, err := Open(Options{Dir: dir})
			if err == nil {
				s.Close()
				t.Fatal("Open = nil, want an error")
			}
			if !strings.HasPrefix(err.Error(), "open ancestry store: "+dir) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Open = %q, want %q", err, c.want)
			}
			if contents(t, dir) != before {
				t.Error("Open changed a file that it refused")
			}
		})
	}
}

func TestOpenChecksOptions(t *testing.T) {
	for _, c := range []struct {
		name string
		o    Options
		want string
	}{
		{"no directory", Options{}, "open ancestry store: no directory"},
		{"short window", Options{Dir: "x", Window: time.Second}, "open ancestry store: window of 1s: want at least a minute, in whole seconds"},
		{"negative age", Options{Dir: "x", MaxAge: -1}, "open ancestry store: negative retention"},
		{"too many files", Options{Dir: "x", Window: time.Minute}, "open ancestry store: age of 720h0m0s in windows of 1m0s makes more than 1000 files: choose longer windows"},
	} {
		if _, err := Open(c.o); err == nil || err.Error() != c.want {
			t.Errorf("%s: Open = %v, want %s", c.name, err, c.want)
		}
	}
}

// No user may create a file in /proc, not even root.
func TestOpenUnwritable(t *testing.T) {
	dir := t.TempDir()
	if os.Geteuid() == 0 {
		dir = "/proc/self"
	} else if err := os.Chmod(dir, 0o500); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(Options{Dir: dir}); err == nil || !strings.Contains(err.Error(), "open ancestry store: "+dir) {
		t.Errorf("Open of a directory without write access = %v", err)
	}
	if got := explain("dir/file", os.ErrPermission).Error(); !strings.Contains(got, "dir/file: permission denied: let the user that wopproxy runs as own") {
		t.Errorf("explain(permission) = %q", got)
	}
}

// A crash while a window is being created leaves a file that never held links.
func TestOpenAfterCrashInCreation(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "links-20260101T000000Z.db.new"), "half")
	write(t, filepath.Join(dir, "lost+found"), "not ours")
	s := open(t, Options{Dir: dir})
	record(t, s, link(1))
	if got := s.files(t); got != 1 {
		t.Errorf("%d windows, want 1", got)
	}
	if _, err := os.Stat(filepath.Join(dir, "lost+found")); err != nil {
		t.Errorf("a file that is not ours: %v", err)
	}
}

// A page that is overwritten while the store is open must not end the process.
func TestDamageIsAnError(t *testing.T) {
	dir := t.TempDir()
	s := open(t, Options{Dir: dir})
	record(t, s, links(200)...)
	w := (*s.windows.Load())[0]
	closeChecked(t, s)
	b, err := os.ReadFile(w.path)
	if err != nil {
		t.Fatal(err)
	}
	damage := func(t *testing.T, from int, with byte) {
		damaged := append([]byte(nil), b...)
		for i := from; i < len(damaged); i++ {
			damaged[i] = with
		}
		write(t, w.path, string(damaged))
		s, err := Open(Options{Dir: dir})
		if err != nil {
			return // noticed at once
		}
		var errs []error
		for i := range 200 {
			_, err := s.Lookup(t.Context(), link(i).Run)
			_, _, err2 := s.Children(t.Context(), link(i).Parent().Run, "", 10)
			errs = append(errs, err, err2)
		}
		err = s.Record(t.Context(), []ancestry.Link{link(1000)})
		if errors.Join(append(errs, err)...) == nil {
			t.Error("no method noticed the damage")
		}
		if errors.Is(err, errDamaged) && s.Record(t.Context(), nil) == nil {
			t.Error("Record after a damaged commit = nil")
		}
		if s.broken == nil {
			_ = s.Close()
		}
	}
	for _, with := range []byte{0x00, 0xff, 0x41} {
		for _, from := range []int{8 << 10, 16 << 10, 32 << 10} {
			t.Run(fmt.Sprintf("%02x from %d", with, from), func(t *testing.T) { damage(t, from, with) })
		}
	}
}

// A file that shrinks under an open store faults on access.
func TestShrunkWhileOpen(t *testing.T) {
	s, err := Open(Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	record(t, s, links(500)...)
	path := (*s.windows.Load())[0].path
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	truncate(t, path, 8<<10)
	if _, err := s.Lookup(t.Context(), link(1).Run); !errors.Is(err, errDamaged) {
		t.Errorf("Lookup = %v, want errDamaged", err)
	}
	for range 2 { // after a commit that went wrong inside bbolt there is no other
		if err := s.Record(t.Context(), []ancestry.Link{link(1000)}); !errors.Is(err, errDamaged) || !strings.Contains(err.Error(), "restart wopproxy") {
			t.Errorf("Record = %v, want errDamaged", err)
		}
		write(t, path, string(whole))
	}
	if err := s.Close(); err != nil {
		t.Errorf("Close = %v", err)
	}
}

func write(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func truncate(t testing.TB, path string, size int64) {
	t.Helper()
	if err := os.Truncate(path, size); err != nil {
		t.Fatal(err)
	}
}

// contents returns all files of dir as one text.
func contents(t testing.TB, dir string) string {
	t.Helper()
	var all strings.Builder
	names, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&all, "%s\n%s\n", name, b)
	}
	return all.String()
}

// TestOpenAtOnce: of many that open an empty directory at the same time, one has
// it, and what it records is there afterwards.
func TestOpenAtOnce(t *testing.T) {
	for range 10 {
		dir := t.TempDir()
		type opened struct {
			store *Store
			err   error
		}
		all := make(chan opened)
		for range 8 {
			go func() {
				s, err := Open(Options{Dir: dir})
				all <- opened{s, err}
			}()
		}
		var owner *Store
		for range 8 {
			switch o := <-all; {
			case o.err == nil && owner != nil:
				t.Error("two have opened it")
			case o.err == nil:
				owner = o.store
			case !strings.Contains(o.err.Error(), "is used by another process"):
				t.Errorf("Open = %v", o.err)
			}
		}
		if owner == nil {
			t.Fatal("nobody has opened it")
		}
		if err := owner.Record(t.Context(), []ancestry.Link{{Run: "r", Reason: "no-ancestry", Time: time.Now()}}); err != nil {
			t.Error(err)
		}
		if err := owner.Close(); err != nil {
			t.Error(err)
		}
		again, err := Open(Options{Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := again.Lookup(t.Context(), "r"); err != nil {
			t.Error(err)
		}
		if err := again.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A store says whether its runs were over when it was closed: a new one has none,
// and one that was left without a word may have some.
func TestSettled(t *testing.T) {
	dir := t.TempDir()
	for i, want := range []bool{true, false, true, false} {
		s, err := Open(Options{Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		if s.Settled() != want {
			t.Errorf("open %d: Settled = %v, want %v", i, !want, want)
		}
		if i == 1 {
			if err := s.Settle(); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
