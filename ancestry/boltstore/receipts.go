package boltstore

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/wopproxy/wopproxy/ancestry"
	"github.com/wopproxy/wopproxy/evidence"
)

// Tags of a receipt, whose workflow and id are its key.
const (
	tagReceiptStep     = 1
	tagReceiptRun      = 2
	tagReceiptExchange = 3
	tagReceiptExternal = 4 // one of them
	tagReceiptJWS      = 5
	tagReceiptAudience = 6
)

// Add makes receipts durable, all or none, and notes what was lost. A store that is
// closed when the last Add has failed is found to have ended in disorder.
func (s *Store) Add(ctx context.Context, receipts []evidence.Receipt, lost []string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := s.add(receipts, lost); err != nil {
		return fmt.Errorf("store receipts: %w", err)
	}
	return nil
}

func (s *Store) add(receipts []evidence.Receipt, lost []string) (err error) {
	s.applying.Lock()
	defer s.applying.Unlock()
	defer func() { s.owing = err != nil }()
	if err := s.usable(); err != nil {
		return err
	}
	if err := s.receive(); err != nil {
		return err
	}
	now := s.o.Now()
	err = guard(func() error {
		if err := s.rotate(now); err != nil {
			return err
		}
		newest := (*s.windows.Load())[0]
		var breaks []time.Time
		if slices.Contains(lost, "") {
			breaks = []time.Time{now}
		}
		if err := newest.add(receipts, lost, breaks...); err != nil {
			return err
		}
		return s.measure(newest)
	})
	s.write.Lock()
	defer s.write.Unlock()
	return s.breakLocked(err)
}

// receive leaves a mark that receipts are being added: found at Open, it says that
// the process ended before it had stored all of them.
func (s *Store) receive() error {
	if s.receiving {
		return nil
	}
	f, err := os.Create(s.receiptsMark())
	if err != nil {
		return err
	}
	if err := errors.Join(f.Sync(), f.Close(), syncDir(s.o.Dir)); err != nil {
		return err
	}
	s.receiving = true
	return nil
}

func (s *Store) receiptsMark() string { return filepath.Join(s.o.Dir, "receiving") }

// coarse is how much earlier than they happened a file system may tell of writes.
const coarse = 2 * time.Second

// disorder returns when the store was last written, or a little later, if it was not
// closed since receipts were added, and notes whether that is so.
func (s *Store) disorder() (at time.Time, err error) {
	if _, err := os.Stat(s.receiptsMark()); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		return at, err
	}
	s.receiving = true
	entries, err := os.ReadDir(s.o.Dir)
	if err != nil {
		return at, err
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			return at, err
		}
		if info.ModTime().After(at) {
			at = info.ModTime()
		}
	}
	if now := s.o.Now(); now.After(at) { // it ended before this one was opened
		at = at.Add(min(coarse, now.Sub(at)))
	}
	return at, nil
}

// add writes receipts, the workflows that have lost some, and when any may have.
func (w *window) add(receipts []evidence.Receipt, lost []string, breaks ...time.Time) error {
	return w.db.Update(func(tx *bolt.Tx) error {
		var b [4]*bolt.Bucket
		for i, name := range [][]byte{bucketReceipts, bucketWorkflows, bucketLost, bucketBreaks} {
			var err error
			if b[i], err = tx.CreateBucketIfNotExists(name); err != nil {
				return err
			}
		}
		kept, workflows, marks, times := b[0], b[1], b[2], b[3]
		for _, r := range receipts {
			if err := addReceipt(kept, workflows, r); err != nil {
				return err
			}
		}
		for _, workflow := range lost {
			if workflow == "" {
				continue // breaks say when
			}
			if err := marks.Put([]byte(workflow), nil); err != nil {
				return err
			}
		}
		for _, at := range breaks {
			if err := times.Put(encodeNumber(uint64(at.UnixMilli())), nil); err != nil {
				return err
			}
		}
		return nil
	})
}

func addReceipt(kept, workflows *bolt.Bucket, r evidence.Receipt) error {
	key := pair(r.Workflow, []byte(r.ID))
	if kept.Get(key) != nil {
		return nil
	}
	if err := kept.Put(key, encodeReceipt(r)); err != nil {
		return err
	}
	if err := kept.SetSequence(kept.Sequence() + 1); err != nil {
		return err
	}
	run := []byte(r.Run)
	if len(run) == 0 || workflows.Get(run) != nil {
		return nil
	}
	return workflows.Put(run, []byte(r.Workflow))
}

// Receipts lists the receipts of a workflow.
func (s *Store) Receipts(ctx context.Context, workflow, after string, limit int) (page []evidence.Receipt, next string, err error) {
	if limit <= 0 {
		return nil, "", ctx.Err()
	}
	err = s.read(ctx, func(v *view) error {
		page, err = v.receipts(workflow, after, limit+1)
		return err
	})
	if len(page) > limit {
		return page[:limit], page[limit-1].ID, err
	}
	return page, "", err
}

// receipts returns the receipts of a workflow from after on, at most limit of them.
func (v *view) receipts(workflow, after string, limit int) (page []evidence.Receipt, err error) {
	prefix := pair(workflow, nil)
	var buckets []*bolt.Bucket
	var sources []*source
	for i := range v.windows {
		b, err := v.bucket(i, bucketReceipts)
		if err != nil {
			return nil, err
		}
		if b != nil {
			buckets = append(buckets, b)
			sources = append(sources, cursorSource(b.Cursor(), prefix, []byte(after)))
		}
	}
	for len(page) < limit {
		id := least(sources)
		if id == nil {
			break
		}
		id = bytes.Clone(id)
		var record []byte
		for i, s := range sources {
			if bytes.Equal(s.place, id) { // twice, if it was added again by who did not know
				record = buckets[i].Get(pair(workflow, id))
				s.place = s.next()
			}
		}
		r, err := decodeReceipt(record)
		if err != nil {
			return nil, fmt.Errorf("receipt %.40q: %w", id, err)
		}
		r.Workflow, r.ID = workflow, string(id)
		page = append(page, r)
	}
	return page, nil
}

// Latest lists the newest receipts of a workflow.
func (s *Store) Latest(ctx context.Context, workflow string, limit int) (page []evidence.Receipt, err error) {
	if limit <= 0 {
		return nil, ctx.Err()
	}
	err = s.read(ctx, func(v *view) error {
		page, err = v.latest(ctx, workflow, limit)
		return err
	})
	return page, err
}

func (v *view) latest(ctx context.Context, workflow string, limit int) (page []evidence.Receipt, err error) {
	prefix := pair(workflow, nil)
	records := map[string][]byte{} // by id
	for i := range v.windows {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		b, err := v.bucket(i, bucketReceipts)
		if err != nil {
			return nil, err
		}
		if b == nil {
			continue
		}
		c := b.Cursor()
		before := c.Prev
		if k, _ := c.Seek(append(bytes.Clone(prefix), 0xff)); k == nil { // nothing is behind the workflow
			before = c.Last
		}
		k, record := before()
		for n := 0; n < limit && bytes.HasPrefix(k, prefix); n++ {
			records[string(k[len(prefix):])] = record // as the oldest window has it, where several do
			k, record = c.Prev()
		}
	}
	ids := slices.Sorted(maps.Keys(records))
	slices.Reverse(ids)
	for _, id := range ids[:min(limit, len(ids))] {
		r, err := decodeReceipt(records[id])
		if err != nil {
			return nil, fmt.Errorf("receipt %.40q: %w", id, err)
		}
		r.Workflow, r.ID = workflow, id
		page = append(page, r)
	}
	return page, nil
}

// bucket returns a bucket of window i, or nil: those of evidence come with the first
// receipt.
func (v *view) bucket(i int, name []byte) (*bolt.Bucket, error) {
	tx, err := v.tx(i)
	if err != nil {
		return nil, err
	}
	return tx.Bucket(name), nil
}

// Workflow returns the workflow that was stored first with a run.
func (s *Store) Workflow(ctx context.Context, run ancestry.RunID) (workflow string, err error) {
	err = s.read(ctx, func(v *view) error {
		for i := len(v.windows) - 1; i >= 0 && workflow == "" && run != ""; i-- {
			b, err := v.bucket(i, bucketWorkflows)
			if err != nil {
				return err
			}
			if b != nil {
				workflow = string(b.Get([]byte(run)))
			}
		}
		if workflow == "" {
			return ancestry.ErrNotFound
		}
		return nil
	})
	return workflow, err
}

// Whole reports whether nothing of a workflow is known to be lost.
func (s *Store) Whole(ctx context.Context, workflow string) (whole bool, err error) {
	err = s.read(ctx, func(v *view) error {
		var breaks []time.Time
		for i := range v.windows {
			lost, err := v.bucket(i, bucketLost)
			if err != nil {
				return err
			}
			if lost == nil {
				continue
			}
			if k, _ := lost.Cursor().Seek([]byte(workflow)); string(k) == workflow {
				return nil
			}
			at, err := v.breaks(i)
			if err != nil {
				return err
			}
			breaks = append(breaks, at...)
		}
		if len(breaks) == 0 {
			whole = true
			return nil
		}
		began, err := v.began(workflow)
		if err != nil {
			return err
		}
		whole = true
		for _, at := range breaks {
			whole = whole && !evidence.Affected(began, at)
		}
		return nil
	})
	return whole, err
}

// breaks returns when workflows may have lost receipts, by window i.
func (v *view) breaks(i int) (breaks []time.Time, err error) {
	b, err := v.bucket(i, bucketBreaks)
	if err != nil || b == nil {
		return nil, err
	}
	err = b.ForEach(func(k, _ []byte) error {
		if len(k) != 8 {
			return errRecord
		}
		breaks = append(breaks, time.UnixMilli(int64(binary.BigEndian.Uint64(k))))
		return nil
	})
	return breaks, err
}

// leavings are what the windows that go out say of workflows that may stay.
type leavings struct {
	windows int             // that there were, with those that go
	others  map[string]bool // workflows with receipts, or a loss, in one that goes
	parted  []string        // those of them with receipts in one that stays
	breaks  []time.Time
}

// leavings reads the oldest windows, so many, and which workflows of theirs the
// others have, but for the newest: who writes there could have to wait.
func (s *Store) leavings(ctx context.Context, going int) (*leavings, error) {
	l := &leavings{others: map[string]bool{}}
	err := s.read(ctx, func(v *view) error {
		l.windows = len(v.windows)
		for i := l.windows - going; i < l.windows; i++ {
			breaks, err := v.breaks(i)
			if err != nil {
				return err
			}
			l.breaks = append(l.breaks, breaks...)
			for _, name := range [][]byte{bucketReceipts, bucketLost} {
				b, err := v.bucket(i, name)
				if err != nil {
					return err
				}
				if b != nil {
					l.addOthers(b.Cursor())
				}
			}
		}
		return l.part(ctx, v, 1, l.windows-going)
	})
	return l, err
}

// addOthers adds the workflows whose keys c has.
func (l *leavings) addOthers(c *bolt.Cursor) {
	for k, _ := c.First(); k != nil; {
		workflow, _, _ := bytes.Cut(k, []byte{0})
		l.others[string(workflow)] = true
		k, _ = c.Seek(append(bytes.Clone(workflow), 1))
	}
}

// part notes which of the others have receipts in windows of v.
func (l *leavings) part(ctx context.Context, v *view, from, to int) error {
	var kept []*bolt.Cursor
	for i := from; i < to; i++ {
		b, err := v.bucket(i, bucketReceipts)
		if err != nil {
			return err
		}
		if b != nil {
			kept = append(kept, b.Cursor())
		}
	}
	for workflow := range l.others {
		if err := ctx.Err(); err != nil {
			return err
		}
		prefix := pair(workflow, nil)
		if slices.ContainsFunc(kept, func(c *bolt.Cursor) bool { k, _ := c.Seek(prefix); return bytes.HasPrefix(k, prefix) }) {
			l.parted = append(l.parted, workflow)
			delete(l.others, workflow)
		}
	}
	return nil
}

// inherit notes in the newest window what is to be known of those that go out, also
// of workflows that have got receipts since. It is called with applying held.
func (s *Store) inherit(ctx context.Context, l *leavings) error {
	err := s.read(ctx, func(v *view) error { return l.part(ctx, v, 0, 1+len(v.windows)-l.windows) })
	if err != nil || len(l.parted)+len(l.breaks) == 0 {
		return err
	}
	if err := s.usable(); err != nil {
		return err
	}
	newest := (*s.windows.Load())[0]
	err = guard(func() error { return newest.add(nil, l.parted, l.breaks...) })
	s.write.Lock()
	defer s.write.Unlock()
	return s.breakLocked(err)
}

// began returns when the exchanges of a workflow began, and the runs that they were
// of.
func (v *view) began(workflow string) (began []time.Time, err error) {
	seen := map[ancestry.RunID]bool{"": true}
	for after := ""; ; {
		const some = 1000
		page, err := v.receipts(workflow, after, some)
		if err != nil {
			return nil, err
		}
		for _, r := range page {
			at, _ := evidence.Began(r.ID)
			began = append(began, at)
			if seen[r.Run] {
				continue
			}
			seen[r.Run] = true
			f, err := v.find(string(r.Run))
			if err != nil {
				return nil, err
			}
			if f != nil {
				began = append(began, f.l.Time)
			}
		}
		if len(page) < some {
			return began, nil
		}
		after = page[some-1].ID
	}
}

func encodeReceipt(r evidence.Receipt) []byte {
	b := append(make([]byte, 0, len(r.JWS)+256), recordVersion)
	b = appendField(b, tagReceiptStep, r.Step)
	b = appendField(b, tagReceiptRun, string(r.Run))
	b = appendField(b, tagReceiptExchange, r.Exchange)
	for _, step := range r.External {
		b = appendField(b, tagReceiptExternal, step)
	}
	b = appendField(b, tagReceiptAudience, r.Audience)
	return appendField(b, tagReceiptJWS, r.JWS)
}

func decodeReceipt(record []byte) (r evidence.Receipt, err error) {
	if len(record) == 0 || record[0] != recordVersion {
		return r, errRecord
	}
	err = eachField(record[1:], func(tag byte, v []byte) error {
		switch tag {
		case tagReceiptStep:
			r.Step = string(v)
		case tagReceiptRun:
			r.Run = ancestry.RunID(v)
		case tagReceiptExchange:
			r.Exchange = string(v)
		case tagReceiptExternal:
			r.External = append(r.External, string(v))
		case tagReceiptJWS:
			r.JWS = string(v)
		case tagReceiptAudience:
			r.Audience = string(v)
		}
		return nil
	})
	return r, err
}
