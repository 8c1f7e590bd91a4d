package boltstore

import (
	"bytes"

	bolt "go.etcd.io/bbolt"

	"github.com/wopproxy/wopproxy/ancestry"
)

// fillLinks leaves little room in full pages of links: minted ids ascend. In the
// indexes most keys are random, and a page is split in the middle.
const fillLinks = 0.9

// writer records links in one transaction on the newest window.
type writer struct {
	v                                      *view
	links, names, others, children, traces *bolt.Bucket
	added                                  uint64 // records that the window did not have
}

func newWriter(v *view, tx *bolt.Tx) *writer {
	w := &writer{
		v: v, links: tx.Bucket(bucketLinks), names: tx.Bucket(bucketNames), others: tx.Bucket(bucketOthers),
		children: tx.Bucket(bucketChildren), traces: tx.Bucket(bucketTraces),
	}
	w.links.FillPercent = fillLinks
	return w
}

// record writes what l changes, and nothing else.
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
	if err := w.put(m, stored); err != nil {
		return err
	}
	if byAlias == nil && m.Alias == l.Alias && m.Alias != "" {
		if err := w.names.Put([]byte(alias), []byte(key)); err != nil {
			return err
		}
	}
	// A run that is a name of another one from now on, with or without a link.
	other := l.Key()
	if byRun != nil {
		other = byRun.key()
	}
	if other == key {
		return nil
	}
	if err := w.names.Put([]byte(other), []byte(key)); err != nil {
		return err
	}
	return w.others.Put(pair(key, []byte(other)), nil)
}

// put writes m, of which stored is the record so far.
func (w *writer) put(m ancestry.Link, stored *found) error {
	key, record := []byte(m.Key()), encodeLink(m)
	if stored != nil && bytes.Equal(record, stored.record) {
		return nil
	}
	if stored == nil || !stored.newest {
		w.added++
	}
	if stored == nil && w.names.Get(key) != nil {
		// The run it was a name of has been forgotten.
		if err := w.names.Delete(key); err != nil {
			return err
		}
	}
	if err := w.links.Put(key, record); err != nil {
		return err
	}
	place := placeOf(m)
	if p := m.Parent(); p != nil {
		if err := w.children.Put(pair(string(p.Run), place), nil); err != nil {
			return err
		}
	}
	if m.Trace.IsZero() {
		return nil
	}
	return w.traces.Put(append(m.Trace[:], place...), nil)
}
