package ancestry

import (
	"context"
	"time"
)

// Store keeps links. The methods may be called concurrently.
//
// A run may have two ids: the one minted for it when it arrived (Link.Run), and
// the one its host gave it (Link.Alias), learned later. Both name the same run
// in every method, for good.
//
// ancestrytest.Store checks all that is promised here; each implementation
// runs it.
type Store interface {
	// Record makes links durable, all or none, and returns when they are.
	//
	// A link whose Run is stored already adds what was unknown (the alias, and
	// the chain only if the stored link has neither parent nor reason) and
	// changes nothing that was known: the first recorded parent of a run stays.
	// A link whose Alias already names another run makes its Run one more name
	// of that run, which keeps its own parent: that is what an idempotent
	// replay looks like.
	Record(ctx context.Context, links []Link) error

	// Lookup returns the link of a run on this host, by either of its ids, or
	// ErrNotFound.
	Lookup(ctx context.Context, id RunID) (Link, error)

	// Children returns the runs whose parent is id, on this host and noted on
	// others, oldest first, at most limit of them. after is the cursor
	// of the page before ("" for the first); next is "" on the last page.
	Children(ctx context.Context, id RunID, after string, limit int) (links []Link, next string, err error)

	// Trace returns the runs of one trace, oldest first, at most limit of them.
	Trace(ctx context.Context, id TraceID, limit int) ([]Link, error)

	// Prune forgets what the store's retention no longer covers at now, and
	// reports how many links went.
	Prune(ctx context.Context, now time.Time) (int, error)

	// Close releases the store. Links acknowledged before are kept.
	Close() error
}
