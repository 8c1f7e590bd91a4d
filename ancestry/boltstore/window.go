package boltstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"syscall"
	"time"

	bolt "go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
)

// Buckets of a window.
var (
	bucketMeta     = []byte("meta")     // magic, schema, end, filter
	bucketLinks    = []byte("links")    // key of a link → record; its sequence counts them
	bucketNames    = []byte("names")    // another name of a run → key of its link, or a name nearer to it
	bucketOthers   = []byte("others")   // key, 0, name → nothing: names reversed, but for the alias in the record
	bucketChildren = []byte("children") // run id of the parent, 0, place of the child → nothing
	bucketTraces   = []byte("traces")   // trace id, place of the run → nothing

	// Those of evidence are made with the first receipt.
	bucketReceipts  = []byte("receipts")  // workflow, 0, id of the receipt → record; its sequence counts them
	bucketWorkflows = []byte("workflows") // run id → workflow
	bucketLost      = []byte("lost")      // workflow → nothing: receipts of it were lost
	bucketBreaks    = []byte("breaks")    // milliseconds since 1970 → nothing: any workflow then at work may have lost some

	keyMagic  = []byte("magic")
	keySchema = []byte("schema")
	keyEnd    = []byte("end") // when the window is over, as RFC 3339
	// Number of the last group of the journal that is here or in an older window.
	// A window without it knew no journal.
	keyJournal = []byte("journal")
	keyFilter  = []byte("blocks") // in a closed window only; "filter" was another layout, and is not read

	magic = []byte("wopproxy ancestry")
)

// schema is the layout that this code reads and writes.
const schema = 1

// A window is the file of one span of time. Its end is fixed when it is created,
// so that another Options.Window applies to the next one, and comes earlier if
// it is full before. A window is never changed once shared: closing it replaces
// it by a copy with a filter.
type window struct {
	start  time.Time
	end    time.Time // nothing is written from then on
	path   string
	db     *bolt.DB
	filter *filter  // nil for the newest window, which is still written
	held   *bolt.Tx // keeps the filter where it is mapped; nil if there is none
}

const (
	fileLayout  = "links-20060102T150405Z.db"
	unfinished  = ".new"
	lockTimeout = 100 * time.Millisecond
)

// guard turns a panic of bbolt into an error. It panics on pages that make no
// sense, and a page beyond the end of a truncated file is a fault.
func guard(op func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("%w: %v", errDamaged, v)
		}
	}()
	return op()
}

var errDamaged = errors.New("database is damaged")

// explain says what to do about an error at opening path.
func explain(path string, err error) error {
	switch {
	case errors.Is(err, berrors.ErrTimeout):
		return fmt.Errorf("%s %w: stop it or give this one its own ancestry.store.bolt.dir", path, ErrInUse)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%s: %w: let the user that wopproxy runs as own the directory and its files", path, err)
	case errors.Is(err, syscall.EROFS), errors.Is(err, syscall.ENOSPC):
		return fmt.Errorf("%s: %w: make the disk writable, or make room on it, or name another ancestry.store.bolt.dir", path, err)
	case errors.Is(err, errNewer):
		return fmt.Errorf("%s was written by a newer wopproxy (%w): run that version, or move the file away to start without its links", path, err)
	}
	return fmt.Errorf("%s cannot be used (%w): restore it, or move it away to start without its links", path, err)
}

var (
	errForeign = errors.New("not a store of wopproxy")
	errNewer   = errors.New("unknown schema")
)

// listWindows returns the starts of the windows in dir, oldest first, and
// removes what a crash left of one that was being created: it held no links.
func listWindows(dir string) ([]time.Time, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var starts []time.Time
	for _, e := range entries {
		if start, err := time.Parse(fileLayout, e.Name()); err == nil {
			starts = append(starts, start)
		}
		if _, err := time.Parse(fileLayout+unfinished, e.Name()); err == nil {
			if err := os.Remove(filepath.Join(dir, e.Name())); err != nil {
				return nil, err
			}
		}
	}
	slices.SortFunc(starts, time.Time.Compare)
	return starts, nil
}

// createWindow makes an empty window and opens it. Under its final name a file
// is always complete, so an empty or headless one is damage and not a crash.
func createWindow(dir string, start, end time.Time, applied uint64) (*window, error) {
	path := filepath.Join(dir, start.Format(fileLayout))
	if err := initFile(path+unfinished, end, applied); err != nil {
		return nil, explain(path+unfinished, err)
	}
	if err := os.Rename(path+unfinished, path); err != nil {
		return nil, explain(path, err)
	}
	if err := syncDir(dir); err != nil {
		return nil, explain(dir, err)
	}
	return openWindow(dir, start)
}

func initFile(path string, end time.Time, applied uint64) error {
	// A disk that was full may have left a part of it.
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	db, err := bolt.Open(path, 0o600, boltOptions())
	if err != nil {
		return err
	}
	err = db.Update(func(tx *bolt.Tx) error {
		for _, name := range [][]byte{bucketLinks, bucketNames, bucketOthers, bucketChildren, bucketTraces} {
			if _, err := tx.CreateBucket(name); err != nil {
				return err
			}
		}
		meta, err := tx.CreateBucket(bucketMeta)
		if err != nil {
			return err
		}
		return errors.Join(
			meta.Put(keyMagic, magic),
			meta.Put(keySchema, []byte{schema}),
			meta.Put(keyEnd, []byte(end.Format(time.RFC3339))),
			meta.Put(keyJournal, encodeNumber(applied)),
		)
	})
	return errors.Join(err, db.Close())
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func boltOptions() *bolt.Options {
	return &bolt.Options{Timeout: lockTimeout, FreelistType: bolt.FreelistMapType, NoStatistics: true}
}

// openWindow opens the file of the window that starts at start, for writing.
func openWindow(dir string, start time.Time) (*window, error) {
	w := &window{start: start, path: filepath.Join(dir, start.Format(fileLayout))}
	err := guard(func() error {
		// Opening for writing may change a file. Make sure first that it is ours.
		err := w.inspect()
		if err != nil {
			return err
		}
		if err := w.db.Close(); err != nil {
			return err
		}
		w.db, err = bolt.Open(w.path, 0o600, boltOptions())
		return err
	})
	if err != nil {
		return nil, explain(w.path, err)
	}
	return w, nil
}

// openClosed opens the file of a window that is not written any more.
func openClosed(dir string, start time.Time) (*window, error) {
	w := &window{start: start, path: filepath.Join(dir, start.Format(fileLayout))}
	err := guard(func() error {
		if err := w.inspect(); err != nil {
			return err
		}
		return w.hold()
	})
	if errors.Is(err, errNoFilter) { // of an earlier version
		if err = w.shut(); err == nil {
			if w, err = openWindow(dir, start); err != nil {
				return nil, err
			}
			w, err = w.closed(w.end)
		}
	}
	if err != nil {
		if w.db != nil {
			err = errors.Join(err, w.shut())
		}
		return nil, explain(w.path, err)
	}
	return w, nil
}

// inspect opens the file of w for reading only, checks it, and reads the end of
// its window.
func (w *window) inspect() (err error) {
	info, err := os.Stat(w.path)
	if err != nil {
		return err
	}
	if info.Size() == 0 {
		return errors.New("the file is empty")
	}
	o := boltOptions()
	o.ReadOnly = true
	db, err := bolt.Open(w.path, 0o600, o)
	if err != nil {
		return err
	}
	err = guard(func() error { return db.View(func(tx *bolt.Tx) error { return w.check(tx, info.Size()) }) })
	if err != nil {
		return errors.Join(err, db.Close())
	}
	w.db = db
	return nil
}

func (w *window) check(tx *bolt.Tx, size int64) (err error) {
	if tx.Size() > size {
		return fmt.Errorf("the file has %d bytes of %d", size, tx.Size())
	}
	meta := tx.Bucket(bucketMeta)
	if meta == nil || string(meta.Get(keyMagic)) != string(magic) {
		return errForeign
	}
	if v := meta.Get(keySchema); len(v) != 1 || v[0] != schema {
		return fmt.Errorf("%w %x: this one knows %d", errNewer, v, schema)
	}
	for _, name := range [][]byte{bucketLinks, bucketNames, bucketOthers, bucketChildren, bucketTraces} {
		if tx.Bucket(name) == nil {
			return fmt.Errorf("bucket %s is missing", name)
		}
	}
	w.end, err = time.Parse(time.RFC3339, string(meta.Get(keyEnd)))
	return err
}

// count returns the number of links in w, and of receipts.
func (w *window) count() (links, receipts int, err error) {
	err = guard(func() error {
		return w.db.View(func(tx *bolt.Tx) error {
			links = int(tx.Bucket(bucketLinks).Sequence())
			if b := tx.Bucket(bucketReceipts); b != nil {
				receipts = int(b.Sequence())
			}
			return nil
		})
	})
	return links, receipts, err
}

// applied returns the number of the last group that is here, or older, if that is
// known.
func (w *window) applied() (number uint64, known bool, err error) {
	err = guard(func() error {
		return w.db.View(func(tx *bolt.Tx) error {
			b := tx.Bucket(bucketMeta).Get(keyJournal)
			if b == nil {
				return nil
			}
			if len(b) != 8 {
				return errRecord
			}
			number, known = binary.BigEndian.Uint64(b), true
			return nil
		})
	})
	return number, known, err
}

func encodeNumber(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

var errNoFilter = errors.New("no filter")

// hold finds the filter of w, and keeps it mapped until w is shut.
func (w *window) hold() error {
	tx, err := w.db.Begin(false)
	if err != nil {
		return err
	}
	b := tx.Bucket(bucketMeta).Get(keyFilter)
	if b == nil {
		return errors.Join(errNoFilter, tx.Rollback())
	}
	if w.filter, err = decodeFilter(b); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	w.held = tx
	return nil
}

// closed returns w with its end and its filter, as a window that is not written
// any more. It must be done before there is a newer window: a filter that is
// older than a link would hide it.
func (w *window) closed(end time.Time) (*window, error) {
	c := *w
	c.end = end
	return &c, guard(func() error {
		if err := c.db.Update(c.seal); err != nil {
			return err
		}
		return c.hold()
	})
}

// seal stores the end of w, and a filter of its names.
func (w *window) seal(tx *bolt.Tx) error {
	links, names, meta := tx.Bucket(bucketLinks), tx.Bucket(bucketNames), tx.Bucket(bucketMeta)
	n := 0
	count := func(_, _ []byte) error { n++; return nil }
	if err := errors.Join(links.ForEach(count), names.ForEach(count)); err != nil {
		return err
	}
	f := newFilter(n)
	add := func(name, _ []byte) error { f.add(name); return nil }
	return errors.Join(
		links.ForEach(add), names.ForEach(add),
		meta.Put(keyFilter, f.encode()),
		meta.Put(keyEnd, []byte(w.end.Format(time.RFC3339))),
	)
}

// shut closes the file of w. Nobody may be reading in it.
func (w *window) shut() error {
	if w.held != nil {
		_ = w.held.Rollback() // of a read transaction: it can only have ended already
	}
	return w.db.Close()
}

// remove closes w and unlinks its file.
func (w *window) remove() error {
	return errors.Join(w.shut(), os.Remove(w.path))
}
