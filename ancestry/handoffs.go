package ancestry

import (
	"cmp"
	"container/list"
	"slices"
	"strconv"
	"sync"
	"time"
)

// Handoffs follows the handoffs of this host's runs, in memory: after a restart
// nothing is known of those before. Its methods may be called concurrently; each
// takes time that does not grow with what is held.
type Handoffs struct {
	limit int
	ttl   time.Duration
	over  func()
	boot  string // tells the ids of this process from those of any other

	mu     sync.Mutex
	began  uint64
	newest map[RunID]*Tracked // of each run
	byKey  map[HandoffKey][]*Tracked
	open   *list.List // of *Tracked of which more may be seen, longest quiet first
	closed *list.List // of *Tracked, first to close first
}

// Tracked is a handoff that is followed.
type Tracked struct {
	// Guarded by Handoffs.mu, but for Run, Peer, Protocol and Operation, which
	// never change. Steps is nil: at has the times.
	h            Handoff
	number       uint64
	at           [4]time.Time // of pending, dispatching, running and the end
	keys         []HandoffKey
	node         *list.Element // nil: forgotten
	newer, older *Tracked      // of the same run
}

// Protocol returns what the handoff speaks.
func (h *Tracked) Protocol() string { return h.h.Protocol }

// HandoffKey is something that later messages repeat, by which a handoff is
// known again in them. One with an empty ID is no key.
type HandoffKey struct{ Kind, ID string }

// NewHandoffs returns an empty memory of at most limit handoffs. Where there is
// no more room those go first that have ended, and then those that have been
// quiet for longest. Of one that was not heard of for ttl nothing more is expected:
// over is told of each, and must not block.
func NewHandoffs(limit int, ttl time.Duration, over func()) *Handoffs {
	return &Handoffs{
		limit: limit, ttl: ttl, over: over, boot: string(NewRunID(time.Now()))[len("run_"):] + "-",
		newest: map[RunID]*Tracked{}, byKey: map[HandoffKey][]*Tracked{},
		open: list.New(), closed: list.New(),
	}
}

// Begin follows a new handoff, which is pending since then. It reports false if
// one that is still open had to make room.
func (t *Handoffs) Begin(h Handoff, since time.Time) (*Tracked, bool) {
	h.State, h.Seen, h.Open = HandoffPending, since, true
	tr := &Tracked{h: h}
	tr.at[0] = since
	t.lock()
	defer t.mu.Unlock()
	room := true
	if t.open.Len()+t.closed.Len() >= t.limit {
		oldest := t.closed.Front()
		if room = oldest != nil; !room {
			oldest = t.open.Front()
		}
		t.forgetLocked(oldest.Value.(*Tracked))
	}
	t.began++
	tr.number, tr.node = t.began, t.open.PushBack(tr)
	if before := t.newest[h.Run]; before != nil {
		before.newer, tr.older = tr, before
	}
	t.newest[h.Run] = tr
	return tr, room
}

// lock locks mu, and gives up those that were quiet for too long.
func (t *Handoffs) lock() {
	t.mu.Lock()
	for first := t.open.Front(); first != nil; first = t.open.Front() {
		h := first.Value.(*Tracked)
		if time.Since(h.h.Seen) < t.ttl {
			return
		}
		t.closeLocked(h)
		t.over()
	}
}

// Move takes h to another state, if that is a legal step, which it reports. why
// counts for HandoffFailed alone.
func (t *Handoffs) Move(h *Tracked, to HandoffState, why HandoffError) bool {
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.heardLocked(h, now)
	if !h.h.State.Precedes(to) {
		return false
	}
	h.h.State = to
	h.at[to.step()] = now
	if to == HandoffFailed {
		h.h.Error = why
	}
	if to.Ended() {
		t.closeLocked(h)
	}
	return true
}

// step is where the time of a transition to s is kept.
func (s HandoffState) step() int {
	switch s {
	case HandoffPending:
		return 0
	case HandoffDispatching:
		return 1
	case HandoffRunning:
		return 2
	}
	return 3
}

// Leave notes that no more will be seen of h.
func (t *Handoffs) Leave(h *Tracked) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closeLocked(h)
}

// NameChild notes which run the callee has begun.
func (t *Handoffs) NameChild(h *Tracked, host string, run RunID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	h.h.Host, h.h.Child = host, run
}

// NameTask notes what the callee says of the task that h has become. An empty
// state says nothing.
func (t *Handoffs) NameTask(h *Tracked, id, state string) {
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.heardLocked(h, now)
	h.h.Task, h.h.TaskState = id, cmp.Or(state, h.h.TaskState)
}

// heardLocked notes that h was heard of.
func (t *Handoffs) heardLocked(h *Tracked, now time.Time) {
	if !h.h.Open {
		return
	}
	h.h.Seen = now
	if h.node != nil {
		t.open.MoveToBack(h.node)
	}
}

// Bind makes h known by k, instead of the key of that kind that it had before.
func (t *Handoffs) Bind(h *Tracked, k HandoffKey) {
	if k.ID == "" {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if h.node == nil || !h.h.Open || slices.Contains(h.keys, k) {
		return
	}
	if i := slices.IndexFunc(h.keys, func(other HandoffKey) bool { return other.Kind == k.Kind }); i >= 0 {
		t.unbindLocked(h, h.keys[i])
		h.keys[i] = k
	} else {
		h.keys = append(h.keys, k)
	}
	if same := t.byKey[k]; len(same) >= maxSameKey {
		t.closeLocked(same[0])
	}
	t.byKey[k] = append(t.byKey[k], h)
}

// maxSameKey bounds the handoffs that are known by one key, as when run after run
// goes on with a task.
const maxSameKey = 16

// Known returns the open handoffs that are known by k.
func (t *Handoffs) Known(k HandoffKey) []*Tracked {
	t.lock()
	defer t.mu.Unlock()
	return slices.Clone(t.byKey[k])
}

// Resume returns the one open handoff of a run that is known by k, or nil if
// there is none, or are several.
func (t *Handoffs) Resume(run RunID, k HandoffKey) *Tracked {
	now := time.Now()
	t.lock()
	defer t.mu.Unlock()
	var found *Tracked
	for _, h := range t.byKey[k] {
		switch {
		case h.h.Run != run:
		case found != nil:
			return nil
		default:
			found = h
		}
	}
	if found != nil {
		t.heardLocked(found, now)
	}
	return found
}

// Open returns how many handoffs there are of which more may be seen.
func (t *Handoffs) Open() int {
	t.lock()
	defer t.mu.Unlock()
	return t.open.Len()
}

// Of returns the handoffs of a run, whichever of ids it is known by, oldest
// first; of more than 1000 the newest.
func (t *Handoffs) Of(ids ...RunID) []Handoff {
	ids = slices.Compact(slices.Sorted(slices.Values(ids)))
	t.lock()
	defer t.mu.Unlock()
	var found []*Tracked
	for _, id := range ids {
		for h, n := t.newest[id], 0; h != nil && n < maxPage; h, n = h.older, n+1 {
			found = append(found, h)
		}
	}
	slices.SortFunc(found, func(a, b *Tracked) int { return cmp.Compare(a.number, b.number) })
	found = found[max(0, len(found)-maxPage):]
	all := make([]Handoff, len(found))
	for i, h := range found {
		all[i] = t.tellLocked(h)
	}
	return all
}

// tellLocked returns what is known of h.
func (t *Handoffs) tellLocked(h *Tracked) Handoff {
	told := h.h
	told.ID = t.boot + strconv.FormatUint(h.number, 10)
	told.Seen = told.Seen.UTC()
	for i, s := range []HandoffState{HandoffPending, HandoffDispatching, HandoffRunning, told.State} {
		if !h.at[i].IsZero() {
			told.Steps = append(told.Steps, HandoffStep{s, h.at[i].UTC()})
		}
	}
	return told
}

// closeLocked notes that no more will be seen of h, which stays as long as there
// is room.
func (t *Handoffs) closeLocked(h *Tracked) {
	if !h.h.Open {
		return
	}
	h.h.Open = false
	t.unbindAllLocked(h)
	if h.node != nil {
		t.open.Remove(h.node)
		h.node = t.closed.PushBack(h)
	}
}

func (t *Handoffs) unbindAllLocked(h *Tracked) {
	for _, k := range h.keys {
		t.unbindLocked(h, k)
	}
	h.keys = nil
}

func (t *Handoffs) unbindLocked(h *Tracked, k HandoffKey) {
	left := slices.DeleteFunc(t.byKey[k], func(other *Tracked) bool { return other == h })
	if len(left) == 0 {
		delete(t.byKey, k)
	} else {
		t.byKey[k] = left
	}
}

func (t *Handoffs) forgetLocked(h *Tracked) {
	t.unbindAllLocked(h)
	if h.h.Open {
		t.open.Remove(h.node)
	} else {
		t.closed.Remove(h.node)
	}
	h.node = nil
	if h.older != nil {
		h.older.newer = h.newer
	}
	switch {
	case h.newer != nil:
		h.newer.older = h.older
	case h.older != nil:
		t.newest[h.h.Run] = h.older
	default:
		delete(t.newest, h.h.Run)
	}
	h.newer, h.older = nil, nil
}
