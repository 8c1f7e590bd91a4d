package attribution

import (
	"container/list"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/wopproxy/wopproxy/ancestry"
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

// Key is the id of a conversation: something both sides repeat on each of its
// messages.
type Key struct{ Kind, ID string }

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
	byTrace  map[ancestry.TraceID][]*Run
	bindings map[Key][]*Run
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
		byTrace:  make(map[ancestry.TraceID][]*Run),
		bindings: make(map[Key][]*Run),
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

// Retire notes that a trace has had a run which the table does not know.
func (t *Table) Retire(trace ancestry.TraceID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.retired.has(trace) {
		t.retired.add(trace)
	}
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
	return true
}

// Restore makes a run live again that was known before, unless it is live
// already: then it returns that one. It reports false when the table is full.
func (t *Table) Restore(r *Run) (*Run, bool) {
	t.mu.Lock()
	known := t.byID[r.First]
	t.mu.Unlock()
	if known != nil {
		return known, true
	}
	if !t.Start(r) {
		return r, false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
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

// Rejoin makes r known in one more trace: that of a request which goes on with
// it.
func (t *Table) Rejoin(r *Run, trace ancestry.TraceID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if r.node != nil {
		t.joinLocked(r, trace)
	}
}

// joinLocked notes that r is known in trace. The first and the newest traces of
// a run are kept.
func (t *Table) joinLocked(r *Run, trace ancestry.TraceID) {
	if trace.IsZero() || slices.Contains(r.traces, trace) {
		return
	}
	if len(r.traces) == maxTraces {
		drop(t.byTrace, r.traces[1], r)
		r.traces = slices.Delete(r.traces, 1, 2)
	}
	r.traces = append(r.traces, trace)
	t.byTrace[trace] = append(t.byTrace[trace], r)
}

// Owns reports whether r is known in trace.
func (t *Table) Owns(r *Run, trace ancestry.TraceID) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Contains(r.traces, trace)
}

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

// Visit makes r live for as long as an exchange in trace works on its behalf
// without being its own. It returns the run that is live then, for Leave. It
// reports false when the table is full.
func (t *Table) Visit(r *Run, trace ancestry.TraceID) (*Run, bool) {
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.expireLocked(now)
	if known := t.byID[r.First]; known != nil {
		r = known
	}
	r.over = r.over || r.node == nil || r.ended
	if r.node == nil && !t.startLocked(r, now) {
		return r, false
	}
	t.touchLocked(r, now)
	t.joinLocked(r, trace)
	r.visits++
	return r, true
}

// Leave ends a visit. A run that had ended before the first of them, or has
// since, ends with the last.
func (t *Table) Leave(r *Run) {
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	if r.visits == 0 { // its time was over in the meantime
		return
	}
	if r.visits--; r.visits == 0 && r.over {
		t.endLocked(r, now)
	}
}

// Bind notes that key belongs to r. It reports false when there is no place.
func (t *Table) Bind(r *Run, key Key) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.bindLocked(r, key)
}

func (t *Table) bindLocked(r *Run, key Key) bool {
	if r.node == nil || slices.Contains(t.bindings[key], r) {
		return true
	}
	if t.bound >= t.o.MaxBindings {
		// A conversation whose second run is unknown must not look like one
		// with a single run.
		t.blindUntil, t.blindWhy = time.Now().Add(t.o.TTL), ReasonTableFull
		return false
	}
	t.bound++
	t.bindings[key] = append(t.bindings[key], r)
	r.bindings = append(r.bindings, key)
	return true
}

// Mention notes the ids, as Mentions returns them, in a request that r was
// given later than the one that started it; all says that there are no more.
// After one without all, r may know the ids of every other run, and none is
// evidence, as if r had been started without Read.
// It reports false when there is no place.
func (t *Table) Mention(r *Run, ids []string, all bool) bool {
	fits := true
	for _, id := range ids {
		fits = t.Bind(r, Key{kindMentioned, id}) && fits
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if r.node == nil || r.read == all {
		return fits
	}
	if r.read = all; all {
		t.unread--
	} else {
		t.unread++
	}
	return fits
}

// Own notes that id is one of r's own, if it is one that nobody else uses by
// chance. It reports false when there is no place.
func (t *Table) Own(r *Run, id string) bool {
	return !t.o.Echoes || !Opaque(id) || t.Bind(r, Key{kindOwn, strings.ToLower(id)})
}

// otherTrace is a trace in which something works that is no run.
type otherTrace struct {
	n     int       // exchanges in flight
	until time.Time // the end of the quarantine of the last one
}

// Other notes an exchange that arrives at this host, in trace if that is known,
// and is no run. While it is in flight, a single live run need not be the only
// thing that calls out, nor the only one that does so in its trace.
func (t *Table) Other(trace ancestry.TraceID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.other++
	if trace.IsZero() {
		return
	}
	o := t.others[trace]
	if o == nil {
		o = &otherTrace{}
		t.others[trace] = o
	}
	o.n++
}

// OtherDone ends what Other began. An exchange that may leave work behind
// counts for as long as the quarantine.
func (t *Table) OtherDone(trace ancestry.TraceID, leavesWork bool) {
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.other--
	if leavesWork = leavesWork && t.o.Quarantine > 0; leavesWork {
		t.otherUntil = now.Add(t.o.Quarantine)
	}
	o := t.others[trace]
	if o == nil {
		return
	}
	if o.n--; leavesWork {
		o.until = t.otherUntil
		time.AfterFunc(t.o.Quarantine, func() { t.forgetOther(trace) })
	} else if o.n == 0 && !now.Before(o.until) {
		delete(t.others, trace)
	}
}

// forgetOther drops what is known of a trace if its quarantine is over.
func (t *Table) forgetOther(trace ancestry.TraceID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if o := t.others[trace]; o != nil && o.n == 0 && !time.Now().Before(o.until) {
		delete(t.others, trace)
	}
}

// Bound returns the one live run that key is bound to, or nil.
func (t *Table) Bound(key Key) *Run {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.expireLocked(time.Now())
	if runs := t.bindings[key]; len(runs) == 1 {
		t.touchLocked(runs[0], time.Now())
		return runs[0]
	}
	return nil
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
		drop(t.byTrace, trace, r)
		t.retired.add(trace)
	}
	r.traces = nil
	for _, key := range r.bindings {
		drop(t.bindings, key, r)
		t.bound--
	}
	r.bindings = nil
}

// retired remembers the traces of the runs that left the table last. What such a
// run has left behind may call out long after, and must not be taken for a later
// run of the same trace.
type retired struct {
	count map[ancestry.TraceID]int // times that a trace is in ring
	ring  []ancestry.TraceID
	next  int
}

// maxRetired bounds what is remembered: half a megabyte, and at a hundred runs a
// second the last two minutes.
const maxRetired = 1 << 14

func (r *retired) add(trace ancestry.TraceID) {
	if len(r.ring) < maxRetired {
		r.ring = append(r.ring, trace)
	} else {
		old := r.ring[r.next]
		if r.count[old]--; r.count[old] == 0 {
			delete(r.count, old)
		}
		r.ring[r.next] = trace
		r.next = (r.next + 1) % maxRetired
	}
	r.count[trace]++
}

func (r *retired) has(trace ancestry.TraceID) bool { return r.count[trace] > 0 }

// drop takes v from what stands under k.
func drop[K, V comparable](index map[K][]V, k K, v V) {
	all := index[k]
	i := slices.Index(all, v)
	if i < 0 {
		return
	}
	if all = slices.Delete(all, i, i+1); len(all) == 0 {
		delete(index, k)
		return
	}
	index[k] = all
}
