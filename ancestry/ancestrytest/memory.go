// Package ancestrytest holds the contract of ancestry.Store as a test, and a
// store whose commits a test can delay and break.
package ancestrytest

import (
	"context"

	"github.com/wopproxy/wopproxy/ancestry"
)

// MemoryStore is an ancestry.Memory with a hook for faults. It must be made by
// Memory.
type MemoryStore struct {
	*ancestry.Memory

	// RecordHook, unless nil, is called by Record before anything is kept: it
	// may wait, and an error it returns is the result. Set it before use.
	RecordHook func(links []ancestry.Link) error
}

// Memory returns an empty store without a hook.
func Memory() *MemoryStore { return &MemoryStore{Memory: ancestry.NewMemory()} }

// Record calls the hook and keeps links.
func (s *MemoryStore) Record(ctx context.Context, links []ancestry.Link) error {
	if s.RecordHook != nil {
		if err := s.RecordHook(links); err != nil {
			return err
		}
	}
	return s.Memory.Record(ctx, links)
}
