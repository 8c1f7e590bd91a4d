package boltstore

import (
	"context"
	"fmt"
	"time"

	bolt "go.etcd.io/bbolt"
)

// applyOnTheSide writes what is recorded to windows until ctx ends: when there is
// a good deal of it, and when it has waited for long.
func (s *Store) applyOnTheSide(ctx context.Context) {
	defer close(s.stopped)
	late := time.NewTicker(s.o.Delay)
	defer late.Stop()
	for {
		select {
		case <-s.due:
		case <-late.C:
		case <-ctx.Done():
			return
		}
		if err := s.apply(); err != nil {
			s.o.Logger.WarnContext(ctx, "write links to their window failed: they are in the journal", "err", err)
		}
	}
}

// apply writes what is recorded to the newest window.
func (s *Store) apply() error {
	s.applying.Lock()
	defer s.applying.Unlock()
	if err := s.usable(); err != nil {
		return err
	}
	return s.applyLocked(nil)
}

// applyLocked writes what is recorded to the window of now, and calls then unless
// it is nil. After an error all of it is tried again the next time, and Record
// takes nothing before that has succeeded.
func (s *Store) applyLocked(then func() error) error {
	err := guard(func() error {
		left := s.aging != nil
		if err := s.takeAndCommit(); err != nil {
			return err
		}
		if left { // what is recorded from now on comes next time
			if err := s.takeAndCommit(); err != nil {
				return err
			}
		}
		if then == nil {
			return nil
		}
		return then()
	})
	s.write.Lock()
	defer s.write.Unlock()
	s.failed = err != nil
	return s.breakLocked(err)
}

// takeAndCommit writes one segment of what is recorded to the window of now.
func (s *Store) takeAndCommit() error {
	if err := s.take(); err != nil || s.aging == nil {
		return err
	}
	if err := s.rotate(s.o.Now()); err != nil {
		return err
	}
	if err := s.commit(); err != nil {
		return err
	}
	s.release()
	return nil
}

// take makes what is recorded the next to be written, unless something is already.
func (s *Store) take() error {
	s.write.Lock()
	defer s.write.Unlock()
	if s.aging != nil || s.fresh.empty() {
		return nil
	}
	if err := s.journal.turn(); err != nil {
		return err
	}
	s.aging, s.fresh = s.fresh, newRecent()
	s.recent.Store(&[]*recent{s.fresh, s.aging})
	return nil
}

// commit writes what is aging to the newest window in one transaction.
func (s *Store) commit() error {
	newest := (*s.windows.Load())[0]
	err := newest.db.Update(func(tx *bolt.Tx) error { return s.aging.write(tx) })
	if err != nil {
		return err
	}
	s.applied = s.aging.last
	return s.measure(newest)
}

// measure notes how full the newest window is.
func (s *Store) measure(newest *window) error {
	links, receipts, err := newest.count()
	s.filled = links + receipts
	return err
}

// release forgets what has been written.
func (s *Store) release() {
	s.write.Lock()
	defer s.write.Unlock()
	s.aging = nil
	s.recent.Store(&[]*recent{s.fresh})
	if s.fresh.empty() {
		s.journal.rewind()
	}
}

// replay records again what the journal holds and no window. Look-ups find it at
// once; it is written to a window on the side, before anything else is recorded.
func (s *Store) replay(windows []*window) error {
	s.recent.Store(&[]*recent{s.fresh})
	// An earlier version knows no journal: what it has written since says nothing
	// of one.
	for _, w := range windows {
		var known bool
		var err error
		if s.applied, known, err = w.applied(); err != nil {
			return explain(w.path, err)
		}
		if known {
			break
		}
	}
	j, groups, torn, err := openJournal(s.o.Dir, int64(s.o.Journal), s.applied)
	if err != nil {
		return err
	}
	s.journal = j
	for _, g := range groups {
		change, _, err := s.change(g.links)
		if err != nil {
			return fmt.Errorf("%s: group %d: %w", s.o.Dir, g.number, err)
		}
		s.fresh.add(change, g.number)
	}
	if torn {
		s.o.Logger.Warn("the end of the journal is not whole: a group was not acknowledged", "dir", s.o.Dir)
	}
	if len(groups) == 0 {
		j.rewind()
		return nil
	}
	if missing := groups[0].number - s.applied - 1; missing > 0 {
		s.o.Logger.Warn("groups of links are neither in a window nor in the journal", "dir", s.o.Dir, "groups", missing)
	}
	s.o.Logger.Info("journal replayed", "dir", s.o.Dir, "groups", len(groups))
	s.aging, s.fresh = s.fresh, newRecent()
	s.recent.Store(&[]*recent{s.fresh, s.aging})
	s.due <- struct{}{} // there is room: nobody else has begun
	return nil
}
