package boltstore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/wopproxy/wopproxy/ancestry"
)

// journalled opens a store that applies nothing unless it must.
func journalled(t testing.TB, o Options) *Store {
	t.Helper()
	o.Delay = time.Hour
	return open(t, o)
}

// add records links in the journal.
func add(t testing.TB, s *Store, links ...ancestry.Link) {
	t.Helper()
	if err := s.Record(t.Context(), links); err != nil {
		t.Fatal(err)
	}
}

// crashed returns a copy of the files of s, as they are found after a crash.
func crashed(t testing.TB, s *Store) (dir string) {
	t.Helper()
	s.applying.Lock() // a file is not copied while it is written
	defer s.applying.Unlock()
	dir = filepath.Join(t.TempDir(), "store")
	if err := os.CopyFS(dir, os.DirFS(s.o.Dir)); err != nil {
		t.Fatal(err)
	}
	return dir
}

// counted returns how many links are in the windows of s.
func counted(t testing.TB, s *Store) (n int) {
	t.Helper()
	for _, w := range *s.windows.Load() {
		more, _, err := w.count()
		if err != nil {
			t.Fatal(err)
		}
		n += more
	}
	return n
}

// What is in the journal alone is there after a crash, and after another one
// before anything has been recorded.
func TestReplay(t *testing.T) {
	s := journalled(t, Options{})
	record(t, s, link(0))
	for i := range 20 {
		add(t, s, link(2*i), link(2*i+1))
	}
	if n := counted(t, s); n != 1 {
		t.Fatalf("%d links are in a window, want 1: the others are to be in the journal", n)
	}
	dir := crashed(t, s)
	for range 3 {
		again := journalled(t, Options{Dir: dir})
		for i := range 40 {
			wantFound(t, again, true, link(i).Run, link(i).Alias)
		}
		wantFound(t, again, false, link(40).Run)
		if err := again.apply(); err != nil {
			t.Fatal(err)
		}
		if n := counted(t, again); n != 40 {
			t.Errorf("%d links are in a window after a start, want 40", n)
		}
		dir = crashed(t, again)
	}
}

// twoRuns are groups that say something else if they are recorded twice: that two
// runs are one.
func twoRuns(at time.Time) []ancestry.Link {
	return []ancestry.Link{
		{Run: "run-1", Alias: "host-1", Time: at},
		{Run: "run-1", Alias: "host-2", Operation: "tools/call", Time: at},
		{Run: "run-9", Alias: "host-2", Time: at},
	}
}

func wantTwoRuns(t *testing.T, what string, s *Store) {
	t.Helper()
	for _, id := range []ancestry.RunID{"run-1", "host-1", "run-9", "host-2"} {
		want := ancestry.RunID("run-1")
		if id == "run-9" || id == "host-2" {
			want = "run-9"
		}
		if l, err := s.Lookup(t.Context(), id); l.Run != want || err != nil {
			t.Errorf("%s: Lookup(%q) = %q, %v, want %q", what, id, l.Run, err, want)
		}
	}
}

// A store that opens waits for no window: what is in the journal is found at once,
// and is in a window before the journal takes anything else.
func TestOpenBeforeApply(t *testing.T) {
	s := journalled(t, Options{})
	add(t, s, links(20)...)
	again := newStore(Options{Dir: crashed(t, s)})
	again.stop = func() {} // nobody applies on the side
	close(again.stopped)
	if err := again.open(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeChecked(t, again) })
	if n := counted(t, again); n != 0 {
		t.Errorf("%d links are in a window, want 0", n)
	}
	if len(again.due) == 0 {
		t.Error("nobody is told that there is something to write")
	}
	wantFound(t, again, true, link(0).Run, link(19).Alias)
	add(t, again, link(20))
	if n := counted(t, again); n != 20 {
		t.Errorf("%d links are in a window, want 20", n)
	}
	wantFound(t, journalled(t, Options{Dir: crashed(t, again)}), true, link(0).Run, link(19).Alias, link(20).Run)
}

// A group is applied once, though it may still be in the journal.
func TestCrashAfterApply(t *testing.T) {
	c := newClock()
	s := journalled(t, Options{Now: c.now, Window: time.Hour})
	for _, l := range twoRuns(c.now()) {
		add(t, s, l)
	}
	wantTwoRuns(t, "in the journal", s)
	wantTwoRuns(t, "after a crash", journalled(t, Options{Dir: crashed(t, s)}))
	if err := s.apply(); err != nil {
		t.Fatal(err)
	}
	wantTwoRuns(t, "applied", s)
	wantTwoRuns(t, "after a crash, applied", journalled(t, Options{Dir: crashed(t, s)}))
	c.add(2 * time.Hour)
	if _, err := s.Prune(t.Context(), c.now()); err != nil { // begins a window
		t.Fatal(err)
	}
	if n := s.files(t); n != 2 {
		t.Fatalf("%d windows, want 2", n)
	}
	again := journalled(t, Options{Dir: crashed(t, s)})
	wantTwoRuns(t, "after a crash, with a window begun", again)
	if n := counted(t, again); n != 2 {
		t.Errorf("%d links, want 2", n)
	}
}

// Each segment is used again and again, and a crash at any time loses nothing.
func TestJournalTurns(t *testing.T) {
	s := journalled(t, Options{Journal: minJournal})
	for i := range 60 {
		add(t, s, link(i))
		if i%7 == 0 {
			if err := s.apply(); err != nil {
				t.Fatal(err)
			}
		}
		again := journalled(t, Options{Dir: crashed(t, s), Journal: minJournal})
		for j := range i + 1 {
			wantFound(t, again, true, link(j).Run, link(j).Alias)
		}
		wantFound(t, again, false, link(i+1).Run)
		closeChecked(t, again)
	}
}

// Links that find the journal full wait until some of it is applied, and are counted.
func TestJournalFull(t *testing.T) {
	s := journalled(t, Options{Journal: minJournal})
	s.applying.Lock() // nothing is applied meanwhile
	failed := make(chan error, 1)
	go func() {
		for i := range 60 {
			if err := s.Record(t.Context(), links(i + 1)[i:]); err != nil {
				failed <- err
				return
			}
		}
		failed <- nil
	}()
	for deadline := time.Now().Add(time.Minute); s.Full() == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the journal is not full after a minute")
		}
	}
	s.applying.Unlock()
	if err := <-failed; err != nil {
		t.Fatal(err)
	}
	for i := range 60 {
		wantFound(t, s, true, link(i).Run)
	}
	roomy := journalled(t, Options{})
	add(t, roomy, links(60)...)
	if n := roomy.Full(); n != 0 {
		t.Errorf("links have waited %d times for a journal that has room", n)
	}
}

// What completes a link that is forgotten before that could be applied is not all
// that is left of it after a crash: then anybody could still be its parent.
func TestReplayAfterForgetting(t *testing.T) {
	whole := link(5000)
	alias := whole.Alias
	whole.Alias = ""
	another := ancestry.Link{Run: whole.Run, Alias: alias, Chain: link(9).Chain, Evidence: link(9).Evidence, Time: whole.Time}
	another.Chain.Ancestors[0].Run = "another"
	for name, later := range map[string]ancestry.Link{
		"its other name":                     {Run: whole.Run, Alias: alias, Time: whole.Time},
		"its other name, and another parent": another,
	} {
		t.Run(name, func(t *testing.T) {
			c := newClock()
			s := journalled(t, Options{Now: c.now, Window: time.Hour, MaxAge: 30 * time.Minute})
			record(t, s, whole)
			c.add(time.Hour)
			record(t, s, link(5001)) // in the next window
			add(t, s, later)
			(*s.windows.Load())[0].db.MaxSize = 64 << 10
			add(t, s, links(2000)...)
			c.add(30 * time.Minute)
			if n, err := s.Prune(t.Context(), c.now()); n != 1 || err == nil {
				t.Fatalf("Prune = %d, %v, want the first window gone, and that nothing could be applied", n, err)
			}
			again := journalled(t, Options{Dir: crashed(t, s), Now: c.now, Window: time.Hour})
			for _, when := range []string{"in the journal", "in a window"} {
				for _, at := range []*Store{s, again} {
					for _, id := range []ancestry.RunID{whole.Run, alias} {
						l, err := at.Lookup(t.Context(), id)
						if p := l.Parent(); err != nil || p == nil || *p != *whole.Parent() || l.Alias != alias || l.Run != whole.Run {
							t.Errorf("%s: Lookup(%s) = %+v, %v, want it complete, with its first parent", when, id, l, err)
						}
					}
				}
				if err := again.apply(); err != nil {
					t.Fatal(err)
				}
			}
			(*s.windows.Load())[0].db.MaxSize = 0
		})
	}
}

// A group that is larger than a segment is taken, and the segment is no larger
// for ever.
func TestLargeGroup(t *testing.T) {
	s := journalled(t, Options{Journal: minJournal})
	add(t, s, link(1000))
	add(t, s, links(500)...)
	again := journalled(t, Options{Dir: crashed(t, s), Journal: minJournal})
	for i := range 500 {
		wantFound(t, again, true, link(i).Run)
	}
	for i := range 20 {
		add(t, s, link(2000+i))
	}
	wantFound(t, s, true, link(0).Run, link(499).Run, link(1000).Run, link(2019).Run)
	for n := range s.journal.parts {
		info, err := os.Stat(segmentPath(s.o.Dir, n))
		if err != nil {
			t.Fatal(err)
		}
		if info.Size() != minJournal {
			t.Errorf("%s has %d bytes, want %d", info.Name(), info.Size(), minJournal)
		}
	}
}

// What was stored before there was a journal opens as it is.
func TestOpenBeforeJournal(t *testing.T) {
	o := Options{Dir: t.TempDir()}
	s := open(t, o)
	record(t, s, links(10)...)
	path := (*s.windows.Load())[0].path
	closeChecked(t, s)
	for n := range 2 {
		if err := os.Remove(segmentPath(o.Dir, n)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
	}
	asBeforeJournal(t, path)
	s = journalled(t, o)
	add(t, s, link(10))
	again := journalled(t, Options{Dir: crashed(t, s)})
	for i := range 11 {
		wantFound(t, again, true, link(i).Run, link(i).Alias)
	}
}

// asBeforeJournal makes a window one of a version that knew no journal.
func asBeforeJournal(t *testing.T, path string) {
	t.Helper()
	db, err := bolt.Open(path, 0o600, boltOptions())
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(func(tx *bolt.Tx) error { return tx.Bucket(bucketMeta).Delete(keyJournal) })
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
}

// What is in windows is not recorded again because an earlier version, which knew
// no journal, has begun another one since.
func TestOpenAfterEarlierVersion(t *testing.T) {
	c := newClock()
	o := Options{Dir: t.TempDir(), Now: c.now, Window: time.Hour}
	s := journalled(t, o)
	for _, l := range twoRuns(c.now()) {
		add(t, s, l)
	}
	closeChecked(t, s)
	c.add(2 * time.Hour)
	s = journalled(t, o)
	if _, err := s.Prune(t.Context(), c.now()); err != nil { // begins a window
		t.Fatal(err)
	}
	path := (*s.windows.Load())[0].path
	closeChecked(t, s)
	asBeforeJournal(t, path)
	for range 2 {
		s = journalled(t, o)
		wantTwoRuns(t, "after an earlier version", s)
		c.add(2 * time.Hour)
		if _, err := s.Prune(t.Context(), c.now()); err != nil {
			t.Fatal(err)
		}
		closeChecked(t, s)
	}
}

// segmentOf returns a segment with groups from a number on, and where each ends.
func segmentOf(from uint64, groups ...[]ancestry.Link) (b, salt []byte, ends []int) {
	salt = []byte("saltsalt")
	b = makeHead(salt)
	for i, g := range groups {
		b = appendFrame(b, from+uint64(i), g, salt)
		ends = append(ends, len(b))
	}
	return b, salt, ends
}

func threeGroups() [][]ancestry.Link {
	return [][]ancestry.Link{links(2), {link(2)}, {link(3), link(4), link(5)}}
}

// A write that was cut, at any byte, leaves the groups before it, and no part of
// its own, whatever was there before.
func TestTornTail(t *testing.T) {
	whole, salt, ends := segmentOf(7, threeGroups()...)
	// From its last use the segment has other frames, at other places.
	stale, _, _ := segmentOf(1, []ancestry.Link{link(100)}, []ancestry.Link{link(101)}, links(4))
	for _, before := range [][]byte{nil, make([]byte, len(whole)+500), stale, bytes.Repeat([]byte{0xff}, len(whole)+500)} {
		for cut := segmentHead; cut <= len(whole); cut++ {
			b := slices.Clone(whole[:cut])
			if len(before) > cut {
				b = append(b, before[cut:]...)
			}
			groups, _, err := readFrames(b, salt, 6)
			if err != nil {
				t.Fatalf("cut at %d of %v: %v", cut, ends, err)
			}
			want := 0
			for _, end := range ends {
				// Zeros that fill a frame up may be missing if they were zeros before.
				if cut >= end || bytes.HasPrefix(b, whole[:end]) {
					want++
				}
			}
			if len(groups) < want || len(groups) > want+1 || len(groups) > want && cut < ends[want]-frameAlign {
				t.Fatalf("cut at %d of %v: %d groups, want %d", cut, ends, len(groups), want)
			}
		}
	}
}

// What a segment has from its last use does not follow what it has from this one.
func TestStaleFrames(t *testing.T) {
	b, salt, _ := segmentOf(7, links(2), links(2))
	b = appendFrame(b, 3, links(2), salt)
	b = appendFrame(b, 4, links(2), salt)
	for applied, want := range map[uint64]int{0: 2, 6: 2, 7: 1, 8: 0} {
		groups, torn, err := readFrames(b, salt, applied)
		if len(groups) != want || torn || err != nil {
			t.Errorf("after %d: %d groups, torn %v, %v, want %d", applied, len(groups), torn, err, want)
		}
	}
}

// A store has what was acknowledged before the write that was cut, and goes on.
func TestOpenTornTail(t *testing.T) {
	s := journalled(t, Options{})
	add(t, s, link(0))
	before := s.journal.parts[0].used
	add(t, s, link(1), link(2))
	after := s.journal.parts[0].used
	image := crashed(t, s)
	b, err := os.ReadFile(segmentPath(image, 0))
	if err != nil {
		t.Fatal(err)
	}
	for cut := before; cut < after-frameAlign; cut += 13 {
		dir := filepath.Join(t.TempDir(), "store")
		if err := os.CopyFS(dir, os.DirFS(image)); err != nil {
			t.Fatal(err)
		}
		torn := slices.Clone(b)
		clear(torn[cut:])
		write(t, segmentPath(dir, 0), string(torn))
		s := journalled(t, Options{Dir: dir})
		wantFound(t, s, true, link(0).Run, link(0).Alias)
		wantFound(t, s, false, link(1).Run, link(2).Run, link(2).Alias)
		add(t, s, link(2))
		again := journalled(t, Options{Dir: crashed(t, s)})
		wantFound(t, again, true, link(0).Run, link(2).Run)
		wantFound(t, again, false, link(1).Run)
		closeChecked(t, again)
		closeChecked(t, s)
	}
}

// A bit that is wrong anywhere before the last group is an error, or has changed
// nothing.
func TestDamagedJournal(t *testing.T) {
	whole, _, ends := segmentOf(7, threeGroups()...)
	read := func(b []byte) ([]group, error) {
		salt, err := readHead(b)
		if err != nil {
			return nil, err
		}
		groups, _, err := readFrames(b, salt, 6)
		return groups, err
	}
	want, err := read(whole)
	if err != nil || len(want) != 3 {
		t.Fatalf("%d groups, %v, want 3", len(want), err)
	}
	noticed := 0
	for at := range ends[1] {
		for bit := range 8 {
			b := slices.Clone(whole)
			b[at] ^= 1 << bit
			groups, err := read(b)
			if err != nil {
				noticed++
			} else if len(groups) != 3 {
				t.Fatalf("bit %d of byte %d of %v is wrong: %d groups and no error", bit, at, ends, len(groups))
			}
		}
	}
	if unnoticed := 8*ends[1] - noticed; unnoticed > 8*2*frameAlign {
		t.Errorf("%d wrong bits were not noticed: more than there are in what fills frames up", unnoticed)
	}
	// Groups that are in a window are of no interest any more.
	if groups, _, err := readFrames(whole, []byte("saltsalt"), 8); len(groups) != 1 || err != nil {
		t.Errorf("%d groups after 8, %v, want 1", len(groups), err)
	}
}

func TestOpenRefusesJournal(t *testing.T) {
	for _, c := range []struct {
		name   string
		damage func(b []byte) []byte
		want   string
	}{
		{"a group", func(b []byte) []byte { b[segmentHead+frameHead+5] ^= 1; return b },
			"cannot be used (damaged journal: group 2 follows bytes from 32 on that make no sense): restore it, or move it away to start without its links"},
		{"the head", func(b []byte) []byte { b[20] ^= 1; return b }, "cannot be used (damaged journal: its head)"},
		{"empty", func([]byte) []byte { return nil }, "cannot be used (not a store of wopproxy)"},
		{"cut in its head", func(b []byte) []byte { return b[:20] }, "cannot be used (not a store of wopproxy)"},
		{"foreign", func(b []byte) []byte { b[0] = 'x'; return b }, "cannot be used (not a store of wopproxy)"},
		{"newer", func(b []byte) []byte { b[16] = 2; return b }, "was written by a newer wopproxy (unknown schema 2: this one knows 1): run that version"},
		{"a group that holds no link", func(b []byte) []byte {
			salt := b[17:][:saltSize]
			return appendFrame(b[:segmentHead:segmentHead], 1, []ancestry.Link{{}}, salt)
		}, "cannot be used (damaged journal: group 1: "},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := journalled(t, Options{})
			add(t, s, link(0))
			add(t, s, link(1))
			dir := crashed(t, s)
			path := segmentPath(dir, 0)
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			write(t, path, string(c.damage(b)))
			before := contents(t, dir)
			for range 2 {
				again, err := Open(Options{Dir: dir})
				if err == nil {
					again.Close()
					t.Fatal("Open = nil, want an error")
				}
				if !strings.HasPrefix(err.Error(), "open ancestry store: "+path) || !strings.Contains(err.Error(), c.want) {
					t.Errorf("Open = %q, want %q", err, c.want)
				}
			}
			if contents(t, dir) != before {
				t.Error("Open changed a file that it refused")
			}
			// What the message says to do works.
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			record(t, open(t, Options{Dir: dir}), link(2))
		})
	}
}

// A disk that takes no group loses none that it took, and has none by halves.
func TestFullDiskOfJournal(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_RDWR, 0)
	if err != nil {
		t.Skip("there is no /dev/full here: ", err)
	}
	defer full.Close()
	s := journalled(t, Options{})
	add(t, s, link(0))
	part := &s.journal.parts[s.journal.active]
	disk := part.f
	part.f = full
	for range 2 {
		if err := s.Record(t.Context(), []ancestry.Link{link(1), link(2)}); !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("Record on a full disk = %v", err)
		}
		wantFound(t, s, true, link(0).Run)
		wantFound(t, s, false, link(1).Run, link(2).Run)
	}
	part.f = disk
	wantFound(t, journalled(t, Options{Dir: crashed(t, s)}), false, link(1).Run)
	add(t, s, link(3)) // another group takes the place
	add(t, s, link(1), link(2))
	again := journalled(t, Options{Dir: crashed(t, s)})
	wantFound(t, again, true, link(0).Run, link(1).Run, link(2).Run, link(3).Run)
}

// A disk may have what it says that it could not make durable. The group that gets
// its number, in the other segment, is the one that counts.
func TestUnacknowledgedGroup(t *testing.T) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	s := journalled(t, Options{})
	add(t, s, link(0))
	part := &s.journal.parts[s.journal.active]
	disk := part.f
	part.f = null // takes everything, and makes nothing durable
	if err := s.Record(t.Context(), links(2)); err == nil {
		t.Skip("what is written to ", os.DevNull, " can be made durable here")
	}
	if _, err := disk.WriteAt(s.journal.buf, part.used); err != nil {
		t.Fatal(err)
	}
	wantFound(t, journalled(t, Options{Dir: crashed(t, s)}), true, link(0).Run, link(1).Run)
	if err := s.apply(); err == nil {
		t.Error("apply while the disk makes nothing durable = nil")
	}
	part.f = disk
	if err := s.apply(); err != nil {
		t.Fatal(err)
	}
	add(t, s, link(2))
	again := journalled(t, Options{Dir: crashed(t, s)})
	wantFound(t, again, true, link(0).Run, link(2).Run)
	wantFound(t, again, false, link(1).Run)
}

// A segment that can't be made leaves nothing behind, and is made later.
func TestNoRoomForJournal(t *testing.T) {
	for _, suffix := range []string{unfinished, ""} {
		s := journalled(t, Options{})
		path := segmentPath(s.o.Dir, 0)
		obstacle := path + suffix
		if err := os.MkdirAll(filepath.Join(obstacle, "in the way"), 0o700); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := s.Record(t.Context(), []ancestry.Link{link(0)}); !errors.Is(err, fs.ErrExist) && !errors.Is(err, syscall.EISDIR) {
				t.Errorf("Record with a folder at %s = %v", obstacle, err)
			}
			wantFound(t, s, false, link(0).Run)
		}
		if _, err := os.Stat(path + unfinished); suffix == "" && !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("half a segment: %v", err)
		}
		if err := os.RemoveAll(obstacle); err != nil {
			t.Fatal(err)
		}
		write(t, path+unfinished, "half")
		add(t, s, link(0))
		wantFound(t, journalled(t, Options{Dir: crashed(t, s)}), true, link(0).Run)
	}
}

// What is known and durable already is not written again.
func TestKnownIsNotJournalled(t *testing.T) {
	s := journalled(t, Options{})
	add(t, s, links(3)...)
	used := s.journal.parts[0].used
	add(t, s, links(3)...)
	if got := s.journal.parts[0].used; got != used {
		t.Errorf("the journal has grown from %d to %d bytes", used, got)
	}
}

// Links wait no longer than they should, whether others come or not.
func TestAppliedInTime(t *testing.T) {
	s := open(t, Options{Delay: time.Millisecond})
	add(t, s, link(0))
	for deadline := time.Now().Add(time.Minute); counted(t, s) == 0; {
		if time.Now().After(deadline) {
			t.Fatal("nothing is applied after a minute")
		}
		<-time.After(time.Millisecond)
	}
	wantFound(t, s, true, link(0).Run, link(0).Alias)
}

// FuzzJournal holds that the reader of a segment makes whole groups of anything,
// in order, or says that it is damaged.
func FuzzJournal(f *testing.F) {
	whole, salt, ends := segmentOf(7, threeGroups()...)
	f.Add(whole[segmentHead:], uint64(6))
	f.Add(whole[segmentHead:ends[1]+30], uint64(7))
	f.Add(whole[ends[0]:], uint64(0))
	f.Add(make([]byte, 100), uint64(1))
	f.Fuzz(func(t *testing.T, frames []byte, applied uint64) {
		frames = slices.Clone(frames)
		// A checksum that is right is seldom found by chance.
		for at := 0; at+frameHead <= len(frames); {
			n := binary.LittleEndian.Uint32(frames[at+4:])
			if int64(n) > int64(len(frames)-at-frameHead) {
				break
			}
			binary.LittleEndian.PutUint32(frames[at:], frameSum(frames[at+4:at+frameHead+int(n)], salt))
			at += int(aligned(frameHead + int64(n)))
		}
		groups, _, err := readFrames(append(makeHead(salt), frames...), salt, applied)
		if err != nil {
			if !errors.Is(err, errJournal) || groups != nil {
				t.Fatalf("%d groups, %v", len(groups), err)
			}
			return
		}
		for i, g := range groups {
			if g.number <= applied || i > 0 && g.number != groups[i-1].number+1 {
				t.Fatalf("group %d after %d, and %d is applied", g.number, groups[max(0, i-1)].number, applied)
			}
			b := appendFrame(makeHead(salt), g.number, g.links, salt)
			again, _, err := readFrames(b, salt, g.number-1)
			if err != nil || len(again) != 1 || fmt.Sprint(again[0].links) != fmt.Sprint(g.links) {
				t.Fatalf("group %d comes back as %v, %v, want %v", g.number, again, err, g.links)
			}
		}
	})
}

// In memory as in a window, what was last said of a name holds: the run that it
// named may have been forgotten since.
func TestRecentNames(t *testing.T) {
	l := link(1)
	r := newRecent()
	r.name(l.Key(), "run-forgotten")
	r.put(l, encodeLink(l))
	if target, record := r.probe(l.Key()); target != "" || record == nil {
		t.Errorf("a run that was a name: probe = %q, %q", target, record)
	}
	r.name(l.Key(), "run-other")
	if target, _ := r.probe(l.Key()); target != "run-other" {
		t.Errorf("a run that is a name again: probe = %q", target)
	}
	all := newRecent()
	all.name(l.Key(), "run-forgotten")
	change := newRecent()
	change.put(l, encodeLink(l))
	all.add(change, 1)
	if target, record := all.probe(l.Key()); target != "" || record == nil {
		t.Errorf("a change of a run that was a name: probe = %q, %q", target, record)
	}
}
