package boltstore

import (
	"bytes"

	"github.com/wopproxy/wopproxy/ancestry"
)

// fillLinks leaves little room in full pages of links: minted ids ascend. In the
// indexes most keys are random, and a page is split in the middle.
const fillLinks = 0.9

// writer finds out what a group of links changes in what a view sees. The change
// is the first thing that the view asks.
type writer struct {
	v      *view
	change *recent
	group  []ancestry.Link // what the journal needs to tell the same
}

// record notes what l changes, and nothing else.
func (w *writer) record(l ancestry.Link) error {
	byRun, err := w.v.find(l.Key())
	if err != nil {
		return err
	}
	var byAlias *found
	alias := ancestry.Link{Host: l.Host, Run: l.Alias}.Key()
	if l.Alias != "" {
		if byAlias, err = w.v.find(alias); err != nil {
			return err
		}
	}
	m := ancestry.Merge(l, byRun.link(), byAlias.link())
	key := m.Key()
	stored := byRun
	if stored.key() != key {
		stored = byAlias
	}
	if record := encodeLink(m); stored == nil || !bytes.Equal(record, stored.record) {
		w.change.put(m, record)
		if stored != nil && (key != l.Key() || !bytes.Equal(record, encodeLink(l))) {
			w.group = append(w.group, m) // what it was may be forgotten before m is in a window
		}
	}
	w.group = append(w.group, l)
	if byAlias == nil && m.Alias == l.Alias && m.Alias != "" {
		w.change.name(alias, key)
	}
	// A run that is a name of another one from now on, with or without a link.
	other := l.Key()
	if byRun != nil {
		other = byRun.key()
	}
	if other != key {
		w.change.name(other, key)
		w.change.other(key, other)
	}
	return nil
}
