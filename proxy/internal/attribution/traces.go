package attribution

import (
	"slices"
	"time"

	"github.com/wopproxy/wopproxy/ancestry"
)

// Retire notes that a trace has had a run which the table does not know.
func (t *Table) Retire(trace ancestry.TraceID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.retired.has(trace) {
		t.retired.add(trace)
	}
}

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
		t.partLocked(r, r.traces[1])
		r.traces = slices.Delete(r.traces, 1, 2)
	}
	r.traces = append(r.traces, trace)
	add(t.byTrace, trace, r)
	add(t.bySpan, Span{trace, r.Span}, r)
}

// partLocked is the opposite of joinLocked, but for r's own list.
func (t *Table) partLocked(r *Run, trace ancestry.TraceID) {
	drop(t.byTrace, trace, r)
	drop(t.bySpan, Span{trace, r.Span}, r)
}

// Owns reports whether r is known in trace.
func (t *Table) Owns(r *Run, trace ancestry.TraceID) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Contains(r.traces, trace)
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

// otherTrace is a trace in which something works that is no run.
type otherTrace struct {
	n       int       // exchanges in flight
	until   time.Time // the end of the quarantine of the last one
	waiting bool      // a timer runs that will forget it
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
		if !o.waiting {
			o.waiting = true
			time.AfterFunc(t.o.Quarantine, func() { t.forgetOther(trace) })
		}
	} else if o.n == 0 && !o.waiting {
		delete(t.others, trace)
	}
}

// forgetOther drops what is known of a trace once its quarantine is over.
func (t *Table) forgetOther(trace ancestry.TraceID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	o := t.others[trace]
	if left := time.Until(o.until); left > 0 {
		time.AfterFunc(left, func() { t.forgetOther(trace) })
		return
	}
	if o.waiting = false; o.n == 0 {
		delete(t.others, trace)
	}
}

// retired remembers the traces of the runs that left the table last. What such a
// run has left behind may call out long after, and must not be taken for a later
// run of the same trace.
type retired struct {
	count map[ancestry.TraceID]int // times that a trace is in ring
	ring  []ancestry.TraceID
	next  int
}

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
