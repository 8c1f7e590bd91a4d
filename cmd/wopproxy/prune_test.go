package main

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/wopproxy/wopproxy/ancestry"
)

// prunedStore knows when its retention was applied.
type prunedStore struct {
	ancestry.Store
	at []time.Time
}

func (s *prunedStore) Prune(ctx context.Context, now time.Time) (int, error) {
	s.at = append(s.at, now)
	return s.Store.Prune(ctx, now)
}

// TestPruneKeepsUp applies the retention often enough for its number of links to be
// what a disk is sized by: a busy host makes ten million within the hour.
func TestPruneKeepsUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &prunedStore{Store: ancestry.NewMemory()}
		s := &sidecar{store: store, log: slog.New(slog.DiscardHandler)}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if err := s.prune(ctx); err != nil {
			t.Fatal(err)
		}
		last := time.Now().Add(-time.Hour)
		for _, at := range store.at {
			if late := at.Sub(last); late > time.Minute {
				t.Errorf("nothing was pruned for %v", late)
			}
			last = at
		}
		if n := len(store.at); n < 59 {
			t.Errorf("pruned %d times in an hour", n)
		}
	})
}
