package attribution

import (
	"container/list"
	"sync"
	"sync/atomic"
	"time"

	"github.com/wopproxy/wopproxy/ancestry"
	"github.com/wopproxy/wopproxy/evidence"
)

// Options bounds a Table. The zero value of each field means its default.
type Options struct {
	HostID      string        // the host whose runs these are; part of the tracestate member
	TTL         time.Duration // a run is forgotten this long after its last activity; default 1 h
	Unseen      time.Duration // runs that the table does not know may be at work for so long; default: there are none
	Quarantine  time.Duration // a run that ended still counts as live this long; default 1 s, negative: not at all
	MaxRuns     int           // runs kept at most; default 100 000
	MaxBindings int           // conversation ids kept at most; default 100 000
	NoSingle    bool          // never attribute by single-flight
	Echoes      bool          // attribute by ids of runs in what they send
}

func (o Options) withDefaults() Options {
	if o.TTL == 0 {
		o.TTL = time.Hour
	}
	if o.Quarantine == 0 {
		o.Quarantine = time.Second
	}
	if o.MaxRuns == 0 {
		o.MaxRuns = 100_000
	}
	if o.MaxBindings == 0 {
		o.MaxBindings = 100_000
	}
	return o
}

// Run is one run of this host, with the context it was handed. Only its alias
// changes after Start.
type Run struct {
	First     ancestry.RunID // the id it was started under
	Chain     ancestry.Chain // its ancestors
	Trace     ancestry.TraceID
	Span      ancestry.SpanID // the span id that the host was handed
	Flags     byte            // trace flags
	State     string          // tracestate, without our own member
	Baggage   string
	Operation string // what started it: "tools/call", "POST /chat"
	Started   time.Time
	Mentions  []string // the ids in the request that started it, as Mentions returns them
	Read      bool     // it mentions no others
	// Within are the first ids of the runs of this host that it works inside of,
	// in what they were handed: a call that bears their context may be its own.
	Within []ancestry.RunID
	// Evidence is where it stands in its workflow; nil: no evidence is made.
	Evidence *evidence.Run

	alias atomic.Pointer[ancestry.RunID]
	entry // where it stands in the table that holds it
}

// entry is what the table knows of a run; guarded by Table.mu.
type entry struct {
	node     *list.Element // in active or ended; nil: in no table
	touched  time.Time     // the last activity, or the end
	ended    bool
	revived  bool // it had ended, and nothing was heard of it since it was made live again
	visits   int  // exchanges that work for it without being its own
	over     bool // it ends with the last of them
	read     bool // all ids that its requests mention are known
	bindings []Key
	traces   []ancestry.TraceID // it was seen in, Trace first
}

// ID returns the id that the host knows the run by, or the one minted for it
// as long as that is not known.
func (r *Run) ID() ancestry.RunID {
	if id := r.alias.Load(); id != nil {
		return *id
	}
	return r.First
}

// The kinds of conversation.
const (
	KindA2AContext = "a2a-context"
	KindA2ATask    = "a2a-task"
	KindMCPSession = "mcp-session"
	KindHeader     = "header" // of a vendor; the id begins with its name
	kindMentioned  = "mentioned"
	kindOwn        = "own"
)

// Table holds the runs that are live on this host, and those that ended within
// the quarantine. Its methods may be called concurrently; each takes time that
// does not grow with the number of runs.
type Table struct {
	o   Options
	tag string
	// born is when the table began to see runs, in the precision of links.
	born time.Time

	mu       sync.Mutex
	byID     map[ancestry.RunID]*Run // by either id
	byTrace  map[ancestry.TraceID]*runSet
	bySpan   map[Span]*runSet // by what they were handed, in each of their traces
	bindings map[Key]*runSet
	within   map[ancestry.RunID]int           // how many work inside of each
	bound    int                              // bindings in use
	unread   int                              // runs whose requests mention nobody knows what
	retired  retired                          // traces in which a run has ended
	active   *list.List                       // of *Run, longest idle first
	ended    *list.List                       // of *Run, first to end first
	other    int                              // exchanges in flight that are no run
	others   map[ancestry.TraceID]*otherTrace // the traces that they are in
	// otherUntil is the end of the quarantine of such exchanges.
	otherUntil time.Time
	// blindUntil is when the last run that found no place, or that began before the
	// table was there, has surely ended; blindWhy says which of the two it was.
	blindUntil time.Time
	blindWhy   Reason
}

// NewTable returns an empty table.
func NewTable(o Options) *Table {
	o = o.withDefaults()
	return &Table{
		o: o, tag: hostTag(o.HostID), born: time.Now().Truncate(time.Millisecond),
		blindUntil: time.Now().Add(o.Unseen), blindWhy: ReasonRestarted,
		byID:     make(map[ancestry.RunID]*Run),
		byTrace:  make(map[ancestry.TraceID]*runSet),
		bySpan:   make(map[Span]*runSet),
		bindings: make(map[Key]*runSet),
		within:   make(map[ancestry.RunID]int),
		others:   make(map[ancestry.TraceID]*otherTrace),
		retired:  retired{count: make(map[ancestry.TraceID]int)},
		active:   list.New(),
		ended:    list.New(),
	}
}

// Unseen reports whether runs may be at work that began before the table was
// there.
func (t *Table) Unseen() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.blindWhy == ReasonRestarted && time.Now().Before(t.blindUntil)
}

// Start makes r live. It reports false when the table is full: r is then not
// held, and until it has surely ended no rung that needs all live runs answers.
func (t *Table) Start(r *Run) bool {
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.expireLocked(now)
	return t.startLocked(r, now)
}

func (t *Table) startLocked(r *Run, now time.Time) bool {
	if t.active.Len()+t.ended.Len() >= t.o.MaxRuns {
		t.blindUntil, t.blindWhy = now.Add(t.o.TTL), ReasonTableFull
		return false
	}
	r.touched, r.ended, r.read = now, false, r.Read
	if !r.read {
		t.unread++
	}
	r.node = t.active.PushBack(r)
	t.byID[r.First], t.byID[r.ID()] = r, r
	t.joinLocked(r, r.Trace)
	for _, id := range r.Mentions {
		t.bindLocked(r, Key{kindMentioned, id})
	}
	for _, id := range r.Within {
		t.within[id]++
	}
	return true
}

// Restore makes a run live again that was known before, unless it is live
// already: then it returns that one. It reports false when the table is full.
func (t *Table) Restore(r *Run) (*Run, bool) {
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	if known := t.byID[r.First]; known != nil {
		return known, true
	}
	t.expireLocked(now)
	if !t.startLocked(r, now) {
		return r, false
	}
	r.revived = !r.Started.Before(t.born) // else it may be at work since before
	return r, true
}

// Relapse ends r again if it had ended before Restore or Resume made it live, and
// nothing was heard of it since: what it was made live for has not come about.
func (t *Table) Relapse(r *Run) {
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	if r.revived && r.visits == 0 {
		t.endLocked(r, now)
	}
}

// maxTraces bounds the traces that one run is known in: a conversation may go
// on in a new one with each turn.
const maxTraces = 16

// Alias makes id a second name of r, the one its host uses. When id already
// names another live run, r was that run all along (a replay of the request
// that began it): r's names then lead to the older one, which is returned.
func (t *Table) Alias(r *Run, id ancestry.RunID) *Run {
	t.mu.Lock()
	defer t.mu.Unlock()
	if older := t.byID[id]; older != nil && older != r {
		if r.node != nil {
			t.removeLocked(r)
			t.byID[r.First] = older
		}
		t.touchLocked(older, time.Now())
		return older
	}
	if id == r.First || r.alias.Load() != nil {
		return r
	}
	r.alias.Store(&id)
	if r.node != nil {
		t.byID[id] = r
	}
	return r
}

// Resume returns the live run named id and marks it active again, or nil.
func (t *Table) Resume(id ancestry.RunID) *Run {
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.expireLocked(now)
	r := t.byID[id]
	if r != nil {
		r.over = false
		ended := r.ended
		t.touchLocked(r, now)
		r.revived = ended
	}
	return r
}

// Known returns the run named id if it is live or in quarantine, or nil. Unlike
// Resume it is no activity.
func (t *Table) Known(id ancestry.RunID) *Run {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.byID[id]
}

// End marks r as ended. It leaves the table when the quarantine is over.
func (t *Table) End(r *Run) {
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	if r.visits > 0 {
		r.over = true
		return
	}
	t.endLocked(r, now)
}

func (t *Table) endLocked(r *Run, now time.Time) {
	if r.node == nil || r.ended {
		return
	}
	r.over = false
	if t.o.Quarantine < 0 {
		t.removeLocked(r)
		return
	}
	t.active.Remove(r.node)
	r.ended, r.touched = true, now
	r.node = t.ended.PushBack(r)
	t.expireLocked(now)
}

// Live calls yield for each run that is live now, longest idle first, with the
// time of its last activity.
func (t *Table) Live(yield func(r *Run, active time.Time) bool) {
	type seen struct {
		run    *Run
		active time.Time
	}
	t.mu.Lock()
	t.expireLocked(time.Now())
	runs := make([]seen, 0, t.active.Len())
	for n := t.active.Front(); n != nil; n = n.Next() {
		r := n.Value.(*Run)
		runs = append(runs, seen{r, r.touched})
	}
	t.mu.Unlock()
	for _, s := range runs {
		if !yield(s.run, s.active) {
			return
		}
	}
}

// Len returns how many runs are live and how many conversation ids are bound.
func (t *Table) Len() (live, bindings int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.expireLocked(time.Now())
	return t.active.Len(), t.bound
}

// touchLocked moves r to the end of the queue of active runs, also when it had
// ended.
func (t *Table) touchLocked(r *Run, now time.Time) {
	if r.node == nil {
		return
	}
	r.touched, r.revived = now, false
	if !r.ended {
		t.active.MoveToBack(r.node)
		return
	}
	t.ended.Remove(r.node)
	r.ended = false
	r.node = t.active.PushBack(r)
}

// expireLocked forgets the runs whose time is over. Both lists are in the order
// of their clocks, so it looks only at what goes.
func (t *Table) expireLocked(now time.Time) {
	for _, q := range []struct {
		runs *list.List
		age  time.Duration
	}{{t.ended, t.o.Quarantine}, {t.active, t.o.TTL}} {
		for n := q.runs.Front(); n != nil; n = q.runs.Front() {
			r := n.Value.(*Run)
			if now.Sub(r.touched) < q.age {
				break
			}
			t.removeLocked(r)
		}
	}
}

// removeLocked takes r out of every index.
func (t *Table) removeLocked(r *Run) {
	if r.ended {
		t.ended.Remove(r.node)
	} else {
		t.active.Remove(r.node)
	}
	r.node = nil
	r.visits, r.over = 0, false
	if !r.read {
		t.unread--
	}
	for _, id := range []ancestry.RunID{r.First, r.ID()} {
		if t.byID[id] == r {
			delete(t.byID, id)
		}
	}
	for _, trace := range r.traces {
		t.partLocked(r, trace)
		t.retired.add(trace)
	}
	r.traces = nil
	for _, key := range r.bindings {
		drop(t.bindings, key, r)
		t.bound--
	}
	r.bindings = nil
	for _, id := range r.Within {
		if t.within[id]--; t.within[id] == 0 {
			delete(t.within, id)
		}
	}
}

// maxRetired bounds what is remembered: half a megabyte, and at a hundred runs a
// second the last two minutes.
const maxRetired = 1 << 14
