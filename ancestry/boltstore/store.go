// Package boltstore keeps parent links on disk, embedded, in bbolt.
//
// It promises what ancestry.Store does: links that Record has returned for
// survive kill -9 and power loss, and readers never wait for the writer's disk.
//
// Links live in one file per window of time, or in several while there are many.
// Run ids are often random, and one B-tree would pay for random keys as it grows,
// and for deletions for ever after. So only the newest file is ever written and
// stays small, a look-up asks the files from the newest to the oldest, with a
// filter before each, and retention unlinks whole files. What is learned of a run after its window has ended is
// written to the newest file, with all that was known, and hides the older
// record.
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
	MaxLinks int              // Prune forgets the oldest windows beyond this many links; default 10 million
	Fill     int              // links after which a window ends early; default a 64th of MaxLinks, at least 65536
	Logger   *slog.Logger     // default: discard
	Now      func() time.Time // default time.Now
}

// maxWindows bounds the files that MaxAge and Window ask for: all are open.
const maxWindows = 1000

// errClosed is returned by every method after Close.
var errClosed = errors.New("ancestry store is closed")

// Store is an ancestry.Store.
type Store struct {
	o       Options
	windows atomic.Pointer[[]*window] // newest first, never empty; replaced, never changed
	closed  atomic.Bool
	lock    *os.File // of the directory
	settled bool

	// readers is held for reading by each view, never while a disk is waited for.
	// Who has it for writing knows that windows which are not listed any more are
	// not read any more.
	readers sync.RWMutex

	write  sync.Mutex // held by the one who writes or replaces windows
	filled int        // links in the newest window
	broken error      // a commit that panicked: what bbolt holds in memory cannot be trusted
}

// ErrInUse is returned by Open for a store that another process has open.
var ErrInUse = errors.New("is used by another process")

// Open opens the store in o.Dir, and creates it if there is none.
func Open(o Options) (*Store, error) {
	o.Window = cmp.Or(o.Window, 24*time.Hour)
	o.Wait = cmp.Or(o.Wait, lockTimeout)
	o.MaxAge = cmp.Or(o.MaxAge, 720*time.Hour)
	o.MaxLinks = cmp.Or(o.MaxLinks, 10_000_000)
	o.Fill = cmp.Or(o.Fill, max(o.MaxLinks/64, 1<<16))
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	if o.Now == nil {
		o.Now = time.Now
	}
	s := &Store{o: o}
	if err := s.open(); err != nil {
		return nil, fmt.Errorf("open ancestry store: %w", err)
	}
	return s, nil
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
	s.settled = os.Remove(s.mark()) == nil
	var windows []*window
	defer func() {
		if err != nil {
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
	s.filled, err = windows[0].count()
	return err
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
	s.write.Lock()
	defer s.write.Unlock()
	if s.closed.Load() {
		return errClosed
	}
	if s.broken != nil {
		return s.broken
	}
	err := guard(func() error {
		if err := s.rotate(s.o.Now()); err != nil {
			return err
		}
		return s.commit(links)
	})
	if errors.Is(err, errDamaged) {
		s.broken = fmt.Errorf("record links: %w: restart wopproxy", err)
		return s.broken
	}
	if err != nil {
		return fmt.Errorf("record links: %w", err)
	}
	return nil
}

// commit writes links to the newest window in one transaction.
func (s *Store) commit(links []ancestry.Link) error {
	tx, err := (*s.windows.Load())[0].db.Begin(true)
	if err != nil {
		return err
	}
	defer tx.Rollback() // does nothing after Commit
	v := s.view(tx)
	defer v.close()
	w := newWriter(v, tx)
	for _, l := range links {
		if err := w.record(l); err != nil {
			return err
		}
	}
	if err := w.links.SetSequence(w.links.Sequence() + w.added); err != nil {
		return err
	}
	v.close() // nobody shall wait for it while the disk is slow
	if err := tx.Commit(); err != nil {
		return err
	}
	s.filled += int(w.added)
	return nil
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
	return createWindow(s.o.Dir, start, start.Add(s.o.Window))
}

// Prune forgets windows that ended before MaxAge, then the oldest ones while
// there are more than MaxLinks links. It never forgets the newest. A link that
// was completed in a later window counts in both.
func (s *Store) Prune(ctx context.Context, now time.Time) (int, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	forgotten, gone, err := s.forget(now)
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
func (s *Store) forget(now time.Time) (forgotten []*window, gone int, err error) {
	s.write.Lock()
	defer s.write.Unlock()
	if s.closed.Load() {
		return nil, 0, errClosed
	}
	if s.broken == nil {
		// A host without traffic writes no new window, and must still forget.
		if err := guard(func() error { return s.rotate(now) }); err != nil {
			return nil, 0, err
		}
	}
	windows := *s.windows.Load()
	counts, total := make([]int, len(windows)), 0
	for i, w := range windows {
		if counts[i], err = w.count(); err != nil {
			return nil, 0, err
		}
		total += counts[i]
	}
	keep := len(windows)
	for ; keep > 1; keep-- {
		if windows[keep-1].end.After(now.Add(-s.o.MaxAge)) && total <= s.o.MaxLinks {
			break
		}
		gone += counts[keep-1]
		total -= counts[keep-1]
	}
	kept := slices.Clone(windows[:keep])
	s.windows.Store(&kept)
	return windows[keep:], gone, nil
}

// Close waits for commits and readers, and releases the files.
func (s *Store) Close() error {
	s.write.Lock()
	defer s.write.Unlock()
	if s.closed.Swap(true) {
		return nil
	}
	s.readers.Lock()
	defer s.readers.Unlock()
	windows := *s.windows.Load()
	if s.broken != nil {
		windows = windows[1:] // its lock may be held for ever: the process takes it along
	}
	err := closeAll(windows)
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
