package ancestry

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

// Memory is a Store that forgets everything when the process ends. A Recorder
// answers from one while links are on their way to the disk; demos and tests
// keep their runs in one. A listing takes time in proportion to all links.
type Memory struct {
	mu    sync.RWMutex
	links map[string]Link   // by Key
	names map[string]string // another name of a run, to its Key or to a name nearer to it
}

// NewMemory returns an empty store.
func NewMemory() *Memory {
	return &Memory{links: map[string]Link{}, names: map[string]string{}}
}

// Record keeps links as Store promises, but for durability.
func (m *Memory) Record(ctx context.Context, links []Link) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	for _, l := range links {
		if err := l.Validate(); err != nil {
			return fmt.Errorf("record run %.40q: %w", l.Run, err)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, l := range links {
		m.recordLocked(l)
	}
	return nil
}

func (m *Memory) recordLocked(l Link) {
	l.Time = time.UnixMilli(l.Time.UnixMilli()).UTC()
	l.Chain.Ancestors = slices.Clone(l.Chain.Ancestors)
	if p := l.Parent(); p != nil {
		p.Workflow, p.Step = "", "" // as on a disk
	}
	byRun := m.findLocked(l.Key())
	var byAlias *Link
	if l.Alias != "" {
		byAlias = m.findLocked(linkKey(l.Host, l.Alias))
	}
	stored := Merge(l, byRun, byAlias)
	m.links[stored.Key()] = stored
	m.nameLocked(l.Key(), stored.Key())
	if stored.Alias != "" {
		m.nameLocked(linkKey(stored.Host, stored.Alias), stored.Key())
	}
}

// nameLocked makes key, and all that it is a name of, names of run. A key that
// had a link of its own gives it up.
func (m *Memory) nameLocked(key, run string) {
	key, run = m.resolveLocked(key), m.resolveLocked(run)
	if key != run { // else it would name itself
		m.names[key] = run
		delete(m.links, key)
	}
}

// findLocked returns the link that key names, or nil.
func (m *Memory) findLocked(key string) *Link {
	if l, ok := m.links[m.resolveLocked(key)]; ok {
		return &l
	}
	return nil
}

// resolveLocked follows names to the Key of a link, if key has one.
func (m *Memory) resolveLocked(key string) string {
	for {
		next, ok := m.names[key]
		if !ok {
			return key
		}
		key = next
	}
}

// seed takes over a link that another store returned for id.
func (m *Memory) seed(id RunID, l Link) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.recordLocked(l)
	m.nameLocked(linkKey(l.Host, id), l.Key())
}

// Lookup returns the link of a run on this host.
func (m *Memory) Lookup(ctx context.Context, id RunID) (Link, error) {
	if err := ctx.Err(); err != nil {
		return Link{}, err
	}
	if _, err := ParseRunID(string(id)); err != nil {
		return Link{}, ErrNotFound // it could be the key of a run elsewhere
	}
	m.mu.RLock()
	defer m.mu.RUnlock()
	l := m.findLocked(string(id))
	if l == nil {
		return Link{}, ErrNotFound
	}
	return l.clone(), nil
}

// Children lists the runs whose parent is id.
func (m *Memory) Children(ctx context.Context, id RunID, after string, limit int) ([]Link, string, error) {
	if err := cmp.Or(ctx.Err(), CheckCursor(after)); err != nil {
		return nil, "", err
	}
	run := m.resolve(id)
	links := m.list(func(l Link) bool {
		p := l.Parent()
		return p != nil && m.resolveLocked(string(p.Run)) == run && l.Cursor() > after
	})
	if limit <= 0 {
		return nil, "", nil
	}
	if len(links) <= limit {
		return links, "", nil
	}
	return links[:limit], links[limit-1].Cursor(), nil
}

// Trace lists the runs of a trace.
func (m *Memory) Trace(ctx context.Context, id TraceID, limit int) ([]Link, error) {
	if err := ctx.Err(); err != nil || id.IsZero() {
		return nil, err
	}
	links := m.list(func(l Link) bool { return l.Trace == id })
	return links[:min(len(links), max(limit, 0))], nil
}

func (m *Memory) resolve(id RunID) string {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.resolveLocked(string(id))
}

// list returns the links that keep approves of, which is called under the lock.
func (m *Memory) list(keep func(Link) bool) []Link {
	m.mu.RLock()
	defer m.mu.RUnlock()
	var links []Link
	for _, l := range m.links {
		if keep(l) {
			links = append(links, l.clone())
		}
	}
	slices.SortFunc(links, func(a, b Link) int { return cmp.Compare(a.Cursor(), b.Cursor()) })
	return links
}

// Prune forgets nothing: there is no retention.
func (m *Memory) Prune(ctx context.Context, _ time.Time) (int, error) { return 0, ctx.Err() }

// Close does nothing.
func (m *Memory) Close() error { return nil }

// clone returns a link whose ancestors the receiver may change.
func (l Link) clone() Link {
	l.Chain.Ancestors = slices.Clone(l.Chain.Ancestors)
	return l
}
