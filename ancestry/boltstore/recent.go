package boltstore

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"sync"

	bolt "go.etcd.io/bbolt"

	"github.com/wopproxy/wopproxy/ancestry"
)

// recent is a window in memory: the links that are in the journal and in no file
// yet. It holds what the buckets of a window do, and is asked before them.
type recent struct {
	mu     sync.RWMutex
	last   uint64              // number of the last group
	links  map[string][]byte   // as bucketLinks
	names  map[string]string   // as bucketNames
	others map[string][]string // by the key, as bucketOthers
	places map[indexed][]string
}

// clear makes r as it was when it was new.
func (r *recent) clear() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.links) > 64 { // large maps stay large, and are slow to clear
		r.links, r.names, r.places = map[string][]byte{}, map[string]string{}, map[indexed][]string{}
	}
	clear(r.links)
	clear(r.names)
	clear(r.others)
	clear(r.places)
}

// indexed is a prefix of the keys of an index.
type indexed struct{ index, prefix string }

func (a indexed) compare(b indexed) int {
	return cmp.Or(strings.Compare(a.index, b.index), strings.Compare(a.prefix, b.prefix))
}

func newRecent() *recent {
	return &recent{
		links: map[string][]byte{}, names: map[string]string{},
		others: map[string][]string{}, places: map[indexed][]string{},
	}
}

// put takes the record of a link.
func (r *recent) put(l ancestry.Link, record []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.putLocked(l.Key(), record)
	place := string(placeOf(l))
	if p := l.Parent(); p != nil {
		r.listLocked(bucketChildren, pair(string(p.Run), nil), place)
	}
	if !l.Trace.IsZero() {
		r.listLocked(bucketTraces, l.Trace[:], place)
	}
}

func (r *recent) putLocked(key string, record []byte) {
	delete(r.names, key) // the run it was a name of has been forgotten
	r.links[key] = record
}

func (r *recent) listLocked(index, prefix []byte, place string) {
	at := indexed{string(index), string(prefix)}
	r.places[at] = append(r.places[at], place)
}

// name makes name another name of what has key.
func (r *recent) name(name, key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.names[name] = key
}

// other notes that name was the key of a link, and is a name of key from now on.
func (r *recent) other(key, name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.others[key] = append(r.others[key], name)
}

// probe returns what name is a name of, or its record.
func (r *recent) probe(name string) (target string, record []byte) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if target := r.names[name]; target != "" {
		return target, nil
	}
	return "", r.links[name]
}

// around returns the record of key, and the names that it took over.
func (r *recent) around(key string) (record []byte, others []string) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.links[key], slices.Clone(r.others[key])
}

// source returns the places under a prefix of an index, from after on.
func (r *recent) source(index, prefix, after []byte) *source {
	r.mu.RLock()
	places := slices.Clone(r.places[indexed{string(index), string(prefix)}])
	r.mu.RUnlock()
	slices.Sort(places)
	places = slices.Compact(places) // a link is listed again when it changes
	n, found := slices.BinarySearch(places, string(after))
	if found {
		n++
	}
	places = places[n:]
	return newSource(func() []byte {
		if len(places) == 0 {
			return nil
		}
		place := places[0]
		places = places[1:]
		return []byte(place)
	})
}

// empty reports whether no group has been taken over.
func (r *recent) empty() bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.last == 0
}

// none reports whether nothing is changed.
func (r *recent) none() bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return len(r.links)+len(r.names)+len(r.others) == 0
}

// add takes over what the group with that number has changed.
func (r *recent) add(change *recent, number uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last = number
	for key, record := range change.links {
		r.putLocked(key, record)
	}
	maps.Copy(r.names, change.names)
	for key, names := range change.others {
		r.others[key] = append(r.others[key], names...)
	}
	for at, places := range change.places {
		r.places[at] = append(r.places[at], places...)
	}
}

// write brings a window up to date, and may do so again. Keys are written in
// their order: each page is then found and split once.
func (r *recent) write(tx *bolt.Tx) error {
	r.mu.RLock()
	defer r.mu.RUnlock()
	links, names, others := tx.Bucket(bucketLinks), tx.Bucket(bucketNames), tx.Bucket(bucketOthers)
	links.FillPercent = fillLinks
	var added uint64 // records that the window did not have
	for _, key := range slices.Sorted(maps.Keys(r.links)) {
		k := []byte(key)
		if links.Get(k) == nil {
			added++
		}
		if err := links.Put(k, r.links[key]); err != nil {
			return err
		}
		if names.Get(k) != nil { // and is none any more, unless it is written again
			if err := names.Delete(k); err != nil {
				return err
			}
		}
	}
	if err := links.SetSequence(links.Sequence() + added); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(r.names)) {
		if err := names.Put([]byte(name), []byte(r.names[name])); err != nil {
			return err
		}
	}
	for _, key := range slices.Sorted(maps.Keys(r.others)) {
		for _, name := range r.others[key] {
			if err := others.Put(pair(key, []byte(name)), nil); err != nil {
				return err
			}
		}
	}
	for _, at := range slices.SortedFunc(maps.Keys(r.places), indexed.compare) {
		index := tx.Bucket([]byte(at.index))
		for _, place := range r.places[at] {
			if err := index.Put([]byte(at.prefix+place), nil); err != nil {
				return err
			}
		}
	}
	return tx.Bucket(bucketMeta).Put(keyJournal, encodeNumber(r.last))
}
