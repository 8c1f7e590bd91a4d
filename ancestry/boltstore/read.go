package boltstore

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	bolt "go.etcd.io/bbolt"

	"github.com/wopproxy/wopproxy/ancestry"
)

// Lookup returns the link of a run on this host.
func (s *Store) Lookup(ctx context.Context, id ancestry.RunID) (l ancestry.Link, err error) {
	err = s.read(ctx, func(v *view) error {
		if _, err := ancestry.ParseRunID(string(id)); err != nil {
			return ancestry.ErrNotFound // it could be the key of a run elsewhere
		}
		f, err := v.find(string(id))
		if err != nil {
			return err
		}
		if f == nil {
			return ancestry.ErrNotFound
		}
		l = *f.link()
		return nil
	})
	return l, err
}

// Children lists the runs whose parent is id.
func (s *Store) Children(ctx context.Context, id ancestry.RunID, after string, limit int) (links []ancestry.Link, next string, err error) {
	if err := ancestry.CheckCursor(after); err != nil {
		return nil, "", err
	}
	if limit <= 0 {
		return nil, "", nil
	}
	err = s.read(ctx, func(v *view) error {
		if _, err := ancestry.ParseRunID(string(id)); err != nil {
			return nil
		}
		names, err := v.names(string(id))
		if err != nil {
			return err
		}
		var prefixes [][]byte
		for _, name := range names {
			prefixes = append(prefixes, pair(name, nil))
		}
		links, err = v.list(bucketChildren, prefixes, parsePlace(after), limit+1)
		return err
	})
	if len(links) > limit {
		return links[:limit], links[limit-1].Cursor(), err
	}
	return links, "", err
}

// Trace lists the runs of a trace.
func (s *Store) Trace(ctx context.Context, id ancestry.TraceID, limit int) (links []ancestry.Link, err error) {
	if id.IsZero() || limit <= 0 {
		return nil, nil
	}
	err = s.read(ctx, func(v *view) error {
		links, err = v.list(bucketTraces, [][]byte{id[:]}, nil, limit)
		return err
	})
	return links, err
}

// read calls fn with a view of the store.
func (s *Store) read(ctx context.Context, fn func(*view) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	err := guard(func() error {
		v := s.view(nil)
		defer v.close()
		if s.closed.Load() {
			return errClosed
		}
		return fn(v)
	})
	if err != nil && !errors.Is(err, ancestry.ErrNotFound) {
		return fmt.Errorf("read ancestry store: %w", err)
	}
	return err
}

// view reads what is in no window yet, and all windows, each at the moment it is
// first asked. They stay open until it is closed.
type view struct {
	s       *Store
	recent  []*recent // newest first
	windows []*window // newest first, older than all that is recent
	txs     []*bolt.Tx
}

// view returns a view of the store, with a change on top unless that is nil.
func (s *Store) view(change *recent) *view {
	s.readers.RLock()
	// What leaves here is in a window before.
	layers := *s.recent.Load()
	if change != nil {
		layers = append([]*recent{change}, layers...)
	}
	windows := *s.windows.Load()
	return &view{s: s, recent: layers, windows: windows, txs: make([]*bolt.Tx, len(windows))}
}

// close may be called again.
func (v *view) close() {
	if v.txs == nil {
		return
	}
	for _, tx := range v.txs {
		if tx != nil {
			_ = tx.Rollback() // of a read transaction: it can only have ended already
		}
	}
	v.txs = nil
	v.s.readers.RUnlock()
}

// tx returns a transaction on window i.
func (v *view) tx(i int) (tx *bolt.Tx, err error) {
	if v.txs[i] == nil {
		v.txs[i], err = v.windows[i].db.Begin(false)
	}
	return v.txs[i], err
}

// found is a stored link. Its record is valid until the transaction changes.
type found struct {
	l      ancestry.Link
	record []byte
}

// link returns the link, or nil of nil.
func (f *found) link() *ancestry.Link {
	if f == nil {
		return nil
	}
	return &f.l
}

// key returns the key of the link, or "" of nil.
func (f *found) key() string {
	if f == nil {
		return ""
	}
	return f.l.Key()
}

// maxNames bounds how many names lead to a run. Each replay adds one name, but
// only runs that were found to be one another in turn add up.
const maxNames = 1000

// find returns the link that name leads to, or nil. The newest that knows a name
// is right about it.
func (v *view) find(name string) (*found, error) {
	for range maxNames {
		target, f, err := v.probe(name)
		if err != nil || f != nil || target == "" {
			return f, err
		}
		name = target
	}
	return nil, fmt.Errorf("run %.40q: %w: names lead nowhere", name, errRecord)
}

// probe returns the link of name, or what it is a name of.
func (v *view) probe(name string) (target string, f *found, err error) {
	if name == "" {
		return "", nil, nil
	}
	for _, r := range v.recent {
		target, record := r.probe(name)
		if target != "" {
			return target, nil, nil
		}
		if record != nil {
			f, err = foundIn(name, record)
			return "", f, err
		}
	}
	key := []byte(name)
	hash := hashName(key)
	for i, w := range v.windows {
		if w.filter != nil && !w.filter.has(hash) {
			continue
		}
		tx, err := v.tx(i)
		if err != nil {
			return "", nil, err
		}
		if b := tx.Bucket(bucketNames).Get(key); b != nil {
			return string(b), nil, nil
		}
		if record := tx.Bucket(bucketLinks).Get(key); record != nil {
			f, err := foundIn(name, record)
			return "", f, err
		}
	}
	return "", nil, nil
}

func foundIn(key string, record []byte) (*found, error) {
	l, err := decodeLink(key, record)
	return &found{l, record}, err
}

// names returns all names of the run that name is one of, and at least name.
func (v *view) names(name string) ([]string, error) {
	f, err := v.find(name)
	if err != nil || f == nil {
		return []string{name}, err
	}
	names := []string{f.key()}
	known := map[string]bool{f.key(): true}
	add := func(name string) {
		if name != "" && !known[name] {
			known[name] = true
			names = append(names, name)
		}
	}
	// A run that became a name of this one brought its alias along.
	aliasOf := func(key string, record []byte) error {
		if record == nil {
			return nil
		}
		f, err := foundIn(key, record)
		add(string(f.l.Alias))
		return err
	}
	for n := 0; n < len(names); n++ { // names grows
		for _, r := range v.recent {
			record, others := r.around(names[n])
			if err := aliasOf(names[n], record); err != nil {
				return nil, err
			}
			for _, name := range others {
				add(name)
			}
		}
		for i := range v.windows {
			tx, err := v.tx(i)
			if err != nil {
				return nil, err
			}
			if err := aliasOf(names[n], tx.Bucket(bucketLinks).Get([]byte(names[n]))); err != nil {
				return nil, err
			}
			prefix := pair(names[n], nil)
			c := tx.Bucket(bucketOthers).Cursor()
			for k, _ := c.Seek(prefix); bytes.HasPrefix(k, prefix); k, _ = c.Next() {
				add(string(k[len(prefix):]))
			}
		}
	}
	return names, nil
}

// list returns the links that an index names under one of the prefixes, by
// their place, from after on, at most limit of them.
func (v *view) list(index []byte, prefixes [][]byte, after []byte, limit int) ([]ancestry.Link, error) {
	var sources []*source
	for _, prefix := range prefixes {
		for _, r := range v.recent {
			sources = append(sources, r.source(index, prefix, after))
		}
	}
	for i := range v.windows {
		tx, err := v.tx(i)
		if err != nil {
			return nil, err
		}
		for _, prefix := range prefixes {
			sources = append(sources, cursorSource(tx.Bucket(index).Cursor(), prefix, after))
		}
	}
	var links []ancestry.Link
	for len(links) < limit {
		place := least(sources)
		if place == nil {
			break
		}
		place = bytes.Clone(place)
		for _, s := range sources { // a link completed later is listed twice
			if bytes.Equal(s.place, place) {
				s.place = s.next()
			}
		}
		key := string(place[8:])
		f, err := v.find(key)
		if err != nil {
			return nil, err
		}
		if f.key() == key { // neither forgotten, nor a name of another run by now
			links = append(links, f.l)
		}
	}
	return links, nil
}

// source is one sorted run of an index.
type source struct {
	place []byte        // where it stands; nil at the end
	next  func() []byte // the place after that
}

func newSource(next func() []byte) *source { return &source{place: next(), next: next} }

// cursorSource returns the places under a prefix that come behind after.
func cursorSource(c *bolt.Cursor, prefix, after []byte) *source {
	from := append(bytes.Clone(prefix), after...)
	k, _ := c.Seek(from)
	if len(after) > 0 && bytes.Equal(k, from) {
		k, _ = c.Next()
	}
	return newSource(func() (place []byte) {
		if bytes.HasPrefix(k, prefix) && len(k) > len(prefix)+8 {
			place = k[len(prefix):]
			k, _ = c.Next()
		}
		return place
	})
}

// least returns the first place of all sources, or nil at their end.
func least(sources []*source) []byte {
	var first []byte
	for _, s := range sources {
		if s.place != nil && (first == nil || bytes.Compare(s.place, first) < 0) {
			first = s.place
		}
	}
	return first
}

// pair returns a, 0, b: run ids are visible ASCII.
func pair(a string, b []byte) []byte {
	k := make([]byte, 0, len(a)+1+len(b))
	return append(append(append(k, a...), 0), b...)
}

// placeOf returns the cursor of l with the time in binary. It sorts alike.
func placeOf(l ancestry.Link) []byte {
	b := make([]byte, 8, 8+len(l.Run)+1+len(l.Host))
	binary.BigEndian.PutUint64(b, uint64(l.Time.UnixMilli())^1<<63)
	return append(b, l.Key()...)
}

// parsePlace returns the place of a cursor that has been checked.
func parsePlace(cursor string) []byte {
	if cursor == "" {
		return nil
	}
	const digits = 16
	b, _ := hex.DecodeString(strings.ToLower(cursor[:digits]))
	return append(b, cursor[digits:]...)
}
