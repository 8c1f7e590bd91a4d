// Package boltstore keeps parent links, and the receipts of evidence, on disk,
// embedded, in bbolt.
//
// It promises what ancestry.Store does: links that Record has returned for
// survive kill -9 and power loss, and readers never wait for the writer's disk.
//
// A group of links is durable once it is in the journal: one write and one wait.
// It is then kept in memory, where look-ups find it, and many groups at a time are
// written to a B-tree, when nobody waits for that.
//
// Links live in one file per window of time, or in several while there are many.
// Run ids are often random, and one B-tree would pay for random keys as it grows,
// and for deletions for ever after. So only the newest file is ever written and
// stays small, a look-up asks the files from the newest to the oldest, with a
// filter before each, and retention unlinks whole files. What is learned of a run after its window has ended is
// written to the newest file, with all that was known, and hides the older
// record.
//
// Receipts lie in the same windows, so that both are forgotten together. They go
// there without a journal, many at a time: nobody waits for them.
//
// A file that is locked, damaged, foreign or of a newer schema is an error at
// Open that says what to do. No file is ever replaced, and none makes the
// process panic.
package boltstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/wopproxy/wopproxy/ancestry"
)

// Options configures a Store. Dir is required.
type Options struct {
	Dir      string           // directory of the files; created if it is missing
	Window   time.Duration    // span of one file, at least a minute, in whole seconds; default 24 h
	MaxAge   time.Duration    // Prune forgets windows that ended this long ago; default 720 h
	Wait     time.Duration    // how long Open waits for another process to let go of Dir; default 100 ms, negative: not at all
	MaxLinks int              // Prune forgets the oldest windows beyond this many links and receipts; default 10 million
	Fill     int              // links and receipts after which a window ends early; default a 64th of MaxLinks, at least 65536
	Journal  int              // bytes of each of its two files, at least 1024, and what is kept in memory of each; default 512 KiB
	Delay    time.Duration    // how long a link may be in the journal alone; default 5 s
	Logger   *slog.Logger     // default: discard
	Now      func() time.Time // default time.Now
}

// minJournal is the smallest journal that is worth two files.
const minJournal = 1 << 10

// maxWindows bounds the files that MaxAge and Window ask for: all are open.
const maxWindows = 1000

// errClosed is returned by every method after Close.
var errClosed = errors.New("ancestry store is closed")

// Store is an ancestry.Store.
type Store struct {
	o       Options
	recent  atomic.Pointer[[]*recent] // what no window has yet, newest first, never empty; replaced after windows
	windows atomic.Pointer[[]*window] // newest first, never empty; replaced, never changed
	closed  atomic.Bool
	lock    *os.File // of the directory
	settled bool
	due     chan struct{} // holds a token when a good deal can be applied
	stop    context.CancelFunc
	stopped chan struct{} // closed when nobody applies on the side any more

	// readers is held for reading by each view, never while a disk is waited for.
	// Who has it for writing knows that windows which are not listed any more are
	// not read any more.
	readers sync.RWMutex

	pruning  sync.Mutex // held by the one who forgets windows; taken before applying
	applying sync.Mutex // held by the one who writes or replaces windows; taken before write
	aging    *recent    // what is being written to a window, or is to be again; nil if nothing is
	applied  uint64     // number of the last group of the journal that is in a window
	filled   int        // links and receipts in the newest window
	// receiving says that receipts were added and the store was not closed since,
	// which a mark in the directory says, too.
	receiving bool
	owing     bool // the last receipts, or what was lost, could not be added

	write   sync.Mutex // held by the one who writes to the journal, never while a window is written
	fresh   *recent    // what the active segment of the journal holds
	scratch *recent    // what change returned the last time
	group   []ancestry.Link
	journal *journal
	full    atomic.Uint64 // see Full
	failed  bool          // the last attempt to write to a window
	broken  error         // a commit that panicked: what bbolt holds in memory cannot be trusted
}

// ErrInUse is returned by Open for a store that another process has open.
var ErrInUse = errors.New("is used by another process")

// Open opens the store in o.Dir, and creates it if there is none.
func Open(o Options) (*Store, error) {
	s := newStore(o)
	if err := s.open(); err != nil {
		return nil, fmt.Errorf("open ancestry store: %w", err)
	}
	ctx, stop := context.WithCancel(context.Background())
	s.stop = stop
	go s.applyOnTheSide(ctx)
	return s, nil
}

func newStore(o Options) *Store {
	o.Window = cmp.Or(o.Window, 24*time.Hour)
	o.Wait = cmp.Or(o.Wait, lockTimeout)
	o.MaxAge = cmp.Or(o.MaxAge, 720*time.Hour)
	o.MaxLinks = cmp.Or(o.MaxLinks, 10_000_000)
	o.Fill = cmp.Or(o.Fill, max(o.MaxLinks/64, 1<<16))
	o.Journal = cmp.Or(o.Journal, 512<<10)
	o.Delay = cmp.Or(o.Delay, 5*time.Second)
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Store{o: o, due: make(chan struct{}, 1), stopped: make(chan struct{}), fresh: newRecent(), scratch: newRecent()}
}

func (s *Store) open() (err error) {
	if err := s.o.check(); err != nil {
		return err
	}
	if err := os.MkdirAll(s.o.Dir, 0o700); err != nil {
		return explain(s.o.Dir, err)
	}
	if s.lock, err = lockDir(s.o.Dir, s.o.Wait); err != nil {
		return explain(s.o.Dir, err)
	}
	ended, err := s.disorder()
	if err != nil {
		s.lock.Close() // releases it
		return explain(s.o.Dir, err)
	}
	s.settled = os.Remove(s.mark()) == nil
	var windows []*window
	defer func() {
		if err != nil {
			if s.journal != nil {
				err = errors.Join(err, s.journal.close())
			}
			err = errors.Join(err, closeAll(windows))
			s.lock.Close() // releases it
		}
	}()
	starts, err := listWindows(s.o.Dir)
	if err != nil {
		return explain(s.o.Dir, err)
	}
	for i, start := range starts {
		open := openClosed
		if i == len(starts)-1 {
			open = openWindow // still written
		}
		w, err := open(s.o.Dir, start)
		if err != nil {
			return err
		}
		windows = slices.Insert(windows, 0, w)
	}
	if len(windows) == 0 {
		w, err := s.create(time.Time{}, s.o.Now())
		if err != nil {
			return err
		}
		windows = []*window{w}
		s.settled = true
	}
	s.windows.Store(&windows)
	if err := s.measure(windows[0]); err != nil {
		return explain(windows[0].path, err)
	}
	if s.receiving {
		if err := guard(func() error { return windows[0].add(nil, nil, ended) }); err != nil {
			return explain(windows[0].path, err)
		}
	}
	return s.replay(windows)
}

// Settled reports whether the store was new when it was opened, or had been
// settled when it was closed. Otherwise runs that it has may be at work still.
func (s *Store) Settled() bool { return s.settled }

// Settle notes that all runs of the store are over. It is to be called last
// before Close; the note is gone when the store is opened again.
func (s *Store) Settle() error {
	f, err := os.Create(s.mark())
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

func (s *Store) mark() string { return filepath.Join(s.o.Dir, "settled") }

func (o Options) check() error {
	switch {
	case o.Dir == "":
		return errors.New("no directory")
	case o.Window < time.Minute || o.Window%time.Second != 0:
		return fmt.Errorf("window of %v: want at least a minute, in whole seconds", o.Window)
	case o.Journal < minJournal || o.Delay < 0:
		return fmt.Errorf("journal of %d bytes, applied after %v: want at least %d bytes, and no negative delay", o.Journal, o.Delay, minJournal)
	case o.MaxAge < 0 || o.MaxLinks < 0 || o.Fill < 0:
		return errors.New("negative retention")
	case o.MaxAge/o.Window > maxWindows:
		return fmt.Errorf("age of %v in windows of %v makes more than %d files: choose longer windows", o.MaxAge, o.Window, maxWindows)
	}
	return nil
}

// Record makes links durable, all or none.
func (s *Store) Record(ctx context.Context, links []ancestry.Link) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	for _, l := range links {
		if err := l.Validate(); err != nil {
			return fmt.Errorf("record run %.40q: %w", l.Run, err)
		}
	}
	if len(links) == 0 {
		return s.usable()
	}
	for {
		done, err := s.append(links)
		if err == nil && !done {
			err = s.apply()
		}
		if err != nil {
			return fmt.Errorf("record links: %w", err)
		}
		if done {
			return nil
		}
	}
}

// append records links in the journal, unless what is there has to be applied
// before.
func (s *Store) append(links []ancestry.Link) (done bool, err error) {
	s.write.Lock()
	defer s.write.Unlock()
	if err := s.usableLocked(); err != nil || s.failed {
		return false, err
	}
	change, group, err := s.change(links)
	if err != nil {
		return false, s.breakLocked(err)
	}
	if change.none() { // all of it is known, and durable
		return true, nil
	}
	number := s.journal.next
	if fits, err := s.journal.append(group); err != nil || !fits {
		if !fits {
			s.full.Add(1)
		}
		return false, err
	}
	s.fresh.add(change, number)
	if s.journal.half() {
		select {
		case s.due <- struct{}{}:
		default: // it is known
		}
	}
	return true, nil
}

// change returns what links change, and a group that changes the same even where
// windows are forgotten first, until it is called again. No disk is written to.
func (s *Store) change(links []ancestry.Link) (*recent, []ancestry.Link, error) {
	s.scratch.clear()
	w := &writer{change: s.scratch, group: s.group[:0]}
	err := guard(func() error {
		w.v = s.view(w.change)
		defer w.v.close()
		for _, l := range links {
			if err := w.record(l); err != nil {
				return err
			}
		}
		return nil
	})
	s.group = w.group
	return w.change, w.group, err
}

// Full returns how often a group of links had to wait, since Open, because the
// journal had no room for it.
func (s *Store) Full() uint64 { return s.full.Load() }

// usable returns why nothing can be recorded any more, or nil.
func (s *Store) usable() error {
	s.write.Lock()
	defer s.write.Unlock()
	return s.usableLocked()
}

func (s *Store) usableLocked() error {
	if s.closed.Load() {
		return errClosed
	}
	return s.broken
}

// breakLocked notes an error after which nothing can be recorded any more.
func (s *Store) breakLocked(err error) error {
	if errors.Is(err, errDamaged) && s.broken == nil {
		s.broken = fmt.Errorf("%w: restart wopproxy", err)
		return s.broken
	}
	return err
}

// rotate starts a new window when the newest is over at now, or full. A clock
// that has jumped back finds that it is not over, and goes on with it.
func (s *Store) rotate(now time.Time) error {
	windows := *s.windows.Load()
	end := windows[0].end
	if now.Before(end) {
		if s.filled < s.o.Fill {
			return nil
		}
		end = now.UTC().Truncate(time.Second)
		if next := windows[0].start.Add(time.Second); end.Before(next) {
			end = next // files are named by the second
		}
	}
	closed, err := windows[0].closed(end)
	if err != nil {
		return err
	}
	w, err := s.create(closed.end, now)
	if err != nil {
		_ = closed.held.Rollback() // it is written again, and the next filter has all
		return err
	}
	next := append([]*window{w, closed}, windows[1:]...)
	s.windows.Store(&next)
	s.filled = 0
	s.o.Logger.Info("ancestry window started", "path", w.path, "windows", len(next))
	return nil
}

// create makes the window that holds now and begins at from at the earliest.
func (s *Store) create(from, now time.Time) (*window, error) {
	start := now.UTC().Truncate(s.o.Window)
	if start.Before(from) { // windows were longer before, or lay elsewhere
		start = from.UTC()
	}
	return createWindow(s.o.Dir, start, start.Add(s.o.Window), s.applied)
}

// Prune forgets windows that ended before MaxAge, then the oldest ones while
// there are more than MaxLinks links and receipts. It never forgets the newest. A
// link that was completed in a later window counts in both. A workflow of which
// receipts are forgotten and others are kept is not whole any more; where that can't
// be noted, nothing is forgotten.
func (s *Store) Prune(ctx context.Context, now time.Time) (int, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	forgotten, gone, err := s.forget(ctx, now)
	s.readers.Lock()   // until those who read in them are done
	s.readers.Unlock() //nolint:staticcheck // nothing is to be done meanwhile
	for _, w := range forgotten {
		err = errors.Join(err, w.remove())
	}
	if len(forgotten) > 0 {
		err = errors.Join(err, syncDir(s.o.Dir))
	}
	if err != nil {
		return gone, fmt.Errorf("prune ancestry store: %w", err)
	}
	return gone, nil
}

// forget takes the windows that go out of the list, where no reader will find
// them from now on.
func (s *Store) forget(ctx context.Context, now time.Time) (forgotten []*window, gone int, err error) {
	s.pruning.Lock()
	defer s.pruning.Unlock()
	going, gone, unapplied, err := s.outgoing(now)
	if err != nil || going == 0 {
		return nil, 0, errors.Join(err, unapplied)
	}
	left, err := s.leavings(ctx, going)
	if err != nil {
		return nil, 0, errors.Join(err, unapplied)
	}
	s.applying.Lock()
	defer s.applying.Unlock()
	if err := s.inherit(ctx, left); err != nil {
		return nil, 0, errors.Join(err, unapplied)
	}
	windows := *s.windows.Load() // there may be newer ones
	keep := len(windows) - going
	kept := slices.Clone(windows[:keep])
	s.windows.Store(&kept)
	return windows[keep:], gone, unapplied
}

// outgoing returns how many windows are to go, the oldest, and how many links with
// them. That something could not be applied is no reason to forget nothing: that may
// make room.
func (s *Store) outgoing(now time.Time) (going, gone int, unapplied, err error) {
	s.applying.Lock()
	defer s.applying.Unlock()
	unusable := s.usable()
	if errors.Is(unusable, errClosed) {
		return 0, 0, nil, unusable
	}
	if unusable == nil {
		// A host without traffic writes no new window, and must still forget.
		unapplied = s.applyLocked(func() error { return s.rotate(now) })
	}
	windows := *s.windows.Load()
	links, receipts, total := make([]int, len(windows)), make([]int, len(windows)), 0
	for i, w := range windows {
		if links[i], receipts[i], err = w.count(); err != nil {
			return 0, 0, nil, err
		}
		total += links[i] + receipts[i]
	}
	keep := len(windows)
	for ; keep > 1; keep-- {
		if windows[keep-1].end.After(now.Add(-s.o.MaxAge)) && total <= s.o.MaxLinks {
			break
		}
		gone += links[keep-1]
		total -= links[keep-1] + receipts[keep-1]
	}
	return len(windows) - keep, gone, unapplied, nil
}

// Close waits for commits and readers, writes what is recorded to its window, and
// releases the files.
func (s *Store) Close() error {
	s.stop()
	<-s.stopped
	s.applying.Lock()
	defer s.applying.Unlock()
	err := s.usable()
	if errors.Is(err, errClosed) {
		return nil
	}
	if err == nil {
		// What can't be applied now is still in the journal.
		err = s.applyLocked(nil)
	}
	s.write.Lock()
	defer s.write.Unlock()
	s.closed.Store(true)
	s.readers.Lock()
	defer s.readers.Unlock()
	windows := *s.windows.Load()
	if s.broken != nil {
		windows = windows[1:] // its lock may be held for ever: the process takes it along
		err = nil
	}
	err = errors.Join(err, closeAll(windows), s.journal.close())
	switch {
	case s.owing: // the mark stays: it is an end in disorder
		err = errors.Join(err, s.receive())
	case err == nil && s.receiving:
		err = os.Remove(s.receiptsMark())
	}
	s.lock.Close() // releases it
	if err != nil {
		return fmt.Errorf("close ancestry store: %w", err)
	}
	return nil
}

func closeAll(windows []*window) error {
	var errs []error
	for _, w := range windows {
		errs = append(errs, w.shut())
	}
	return errors.Join(errs...)
}
