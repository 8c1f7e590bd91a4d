package ancestry

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
)

// Lookup, Children and Trace answer as the store will once it holds everything
// that the Recorder has accepted. What the store knows of the runs concerned
// goes into a Memory, the links on their way are recorded on top, and that is
// asked.
//
// The links on their way are read before the store is, so a commit in between
// is seen twice, which changes nothing, and never missed.

// Lookup is Store.Lookup.
func (r *Recorder) Lookup(ctx context.Context, id RunID) (Link, error) {
	o := r.overlay()
	if len(o.queued) == 0 {
		return r.store.Lookup(ctx, id)
	}
	if err := o.reach(ctx, id); err != nil {
		return Link{}, err
	}
	m, err := o.memory(ctx, nil)
	if err != nil {
		return Link{}, err
	}
	return m.Lookup(ctx, id)
}

// Children is Store.Children. Of a run on another host, noted twice with two
// parents, it may show the second while both notes are on their way to a store
// that has the first.
func (r *Recorder) Children(ctx context.Context, id RunID, after string, limit int) ([]Link, string, error) {
	o := r.overlay()
	if len(o.queued) == 0 {
		return r.store.Children(ctx, id, after, limit)
	}
	if err := o.reach(ctx, id); err != nil {
		return nil, "", err
	}
	names := o.names()
	var listed []Link
	var end string // where the first page that goes on ends: beyond it some are unknown
	for _, name := range names {
		page, next, err := r.store.Children(ctx, name, after, limit)
		if err != nil {
			return nil, "", err
		}
		listed = append(listed, page...)
		if next != "" && (end == "" || next < end) {
			end = next
		}
	}
	if err := o.children(ctx, names, listed); err != nil {
		return nil, "", err
	}
	m, err := o.memory(ctx, listed)
	if err != nil {
		return nil, "", err
	}
	links, next, err := m.Children(ctx, id, after, limit)
	if end != "" && (next == "" || next > end) {
		links, next = upTo(links, end), end
	}
	return links, next, err
}

// Trace is Store.Trace.
func (r *Recorder) Trace(ctx context.Context, id TraceID, limit int) ([]Link, error) {
	o := r.overlay()
	listed, err := r.store.Trace(ctx, id, limit)
	if err != nil || len(o.queued) == 0 {
		return listed, err
	}
	for _, l := range o.queued {
		if l.Trace == id {
			o.touch(l)
		}
	}
	for _, l := range listed {
		o.touch(l)
	}
	if err := o.reach(ctx); err != nil {
		return nil, err
	}
	m, err := o.memory(ctx, listed)
	if err != nil {
		return nil, err
	}
	links, err := m.Trace(ctx, id, limit)
	if len(listed) == limit && limit > 0 { // the store may have more
		links = upTo(links, listed[limit-1].Cursor())
	}
	return links, err
}

// upTo cuts what lies beyond the cursor end.
func upTo(links []Link, end string) []Link {
	n := len(links)
	for n > 0 && links[n-1].Cursor() > end {
		n--
	}
	return links[:n]
}

// overlay finds those of the queued links that bear on an answer.
type overlay struct {
	store   Store
	queued  []Link          // on their way to the store, oldest first
	touched map[string]bool // names that the answer depends on
	links   []Link          // the queued links that have one of them
	found   map[RunID]*Link // what the store answered; nil if it knows no such run
}

// overlay returns an overlay of what is on its way now.
func (r *Recorder) overlay() *overlay {
	r.mu.Lock()
	storing, pending := r.storing.links, r.pending.links
	r.mu.Unlock()
	// Batches only grow, so what they held may be read without the lock.
	return &overlay{
		store:   r.store,
		queued:  slices.Concat(storing, pending),
		touched: map[string]bool{},
		found:   map[RunID]*Link{},
	}
}

// reach touches all names of ids, and finds the queued links of every touched
// run and what the store knows of it. One run may be named by several links,
// each with a name that the next one lacks.
func (o *overlay) reach(ctx context.Context, ids ...RunID) error {
	for n := -1; n != len(o.touched); {
		n = len(o.touched)
		o.links = o.links[:0]
		for _, l := range o.queued {
			if !o.touched[l.Key()] && (l.Alias == "" || !o.touched[linkKey(l.Host, l.Alias)]) {
				continue
			}
			o.links = append(o.links, l)
			o.touch(l)
			if l.Host == "" {
				ids = append(ids, l.Run, l.Alias)
			}
		}
		for _, id := range ids {
			if err := o.find(ctx, id); err != nil {
				return err
			}
		}
		ids = ids[:0]
	}
	return nil
}

// find asks the store for id, once.
func (o *overlay) find(ctx context.Context, id RunID) error {
	if _, asked := o.found[id]; asked || id == "" {
		return nil
	}
	o.touched[string(id)] = true
	l, err := o.store.Lookup(ctx, id)
	switch {
	case errors.Is(err, ErrNotFound):
		o.found[id] = nil
	case err != nil:
		return err
	default:
		o.found[id] = &l
		o.touch(l)
	}
	return nil
}

// touch adds the names of l.
func (o *overlay) touch(l Link) {
	o.touched[l.Key()] = true
	if l.Alias != "" {
		o.touched[linkKey(l.Host, l.Alias)] = true
	}
}

// names returns the touched names of runs on this host.
func (o *overlay) names() []RunID {
	var ids []RunID
	for key := range o.touched {
		if !strings.Contains(key, " ") { // as the key of a run elsewhere does
			ids = append(ids, RunID(key))
		}
	}
	return ids
}

// children reaches the children of the run that has names: those the store has
// listed, and those that are queued.
func (o *overlay) children(ctx context.Context, names []RunID, listed []Link) error {
	var parents []RunID
	for _, l := range slices.Concat(listed, o.queued) {
		if p := l.Parent(); p != nil {
			parents = append(parents, p.Run)
		}
	}
	for _, id := range parents { // a parent may go by a name that only the store knows
		if err := o.find(ctx, id); err != nil {
			return err
		}
	}
	for _, l := range o.queued {
		p := l.Parent()
		if p == nil {
			continue
		}
		known := o.found[p.Run]
		if slices.Contains(names, p.Run) || known != nil && slices.Contains(names, known.Run) {
			o.touch(l)
		}
	}
	for _, l := range listed {
		o.touch(l)
	}
	return o.reach(ctx)
}

// memory returns what the store knows, found and listed, with the queued links
// recorded on top.
func (o *overlay) memory(ctx context.Context, listed []Link) (*Memory, error) {
	m := NewMemory()
	for _, l := range listed {
		m.seed(l.Run, l)
	}
	for _, id := range slices.Sorted(maps.Keys(o.found)) {
		if l := o.found[id]; l != nil {
			m.seed(id, *l)
		}
	}
	return m, m.Record(ctx, o.links)
}
