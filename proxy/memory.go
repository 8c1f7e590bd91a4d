package proxy

import (
	"container/list"

	"github.com/wopproxy/wopproxy/audit"
)

// memory knows what the host's runs have written of late, so that entries which
// somebody reads can be held against that.
type memory struct {
	limit  int // entries at most; the one written first is forgotten
	byName map[entryName]*list.Element
	order  *list.List // of *written, first written first
}

// entryName is what names an entry on one host.
type entryName struct{ ref, id string }

// written is an entry of which a log has told.
type written struct {
	audit.Write
	several bool // more than one write: nobody knows of which an entry tells
}

func newMemory(limit int) memory {
	return memory{limit: limit, byName: map[entryName]*list.Element{}, order: list.New()}
}

// write notes a write, of which several readers of a log may tell. It reports
// false if another entry had to make room.
func (m *memory) write(w audit.Write) bool {
	name := entryName{w.Ref, w.ID}
	if n := m.byName[name]; n != nil {
		before := n.Value.(*written)
		before.several = before.several || !before.Same(w)
		return true
	}
	full := m.order.Len() >= m.limit
	if full {
		first := m.order.Remove(m.order.Front()).(*written)
		delete(m.byName, entryName{first.Ref, first.ID})
	}
	m.byName[name] = m.order.PushBack(&written{Write: w})
	return !full
}

// remembers reports whether the answer shows memory of a host whose runs are known
// to have written some. For others such a path may be anything.
func (x *exchange) remembers() bool {
	return x.dir == ingress && x.head.memory && x.p.watch.hasMemory()
}

func (w *watcher) hasMemory() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.memory.byName) > 0
}

// remembered takes the answer to who has read memory.
func (w *watcher) remembered(doc []byte) {
	entries := audit.ParseEntries(doc)
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, x := range entries {
		n := w.memory.byName[entryName{x.Ref, x.ID}]
		if n == nil {
			continue
		}
		if known := n.Value.(*written); !known.several {
			if found := known.Check(x); len(found) > 0 {
				w.reportLocked(w.runLocked(known.Run()), found)
			}
		}
	}
}
