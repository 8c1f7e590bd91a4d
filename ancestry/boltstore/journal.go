package boltstore

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/wopproxy/wopproxy/ancestry"
)

// A journal keeps groups of links from when they are acknowledged until they
// are in a window. One group is one frame, one write, and one wait for the disk.
//
// It has two segments. One takes new groups while those of the other are being
// written to a window, and each is used again from its start. A segment is
// filled with zeros when it is created, so that the disk has nothing but the
// frame to make durable.
//
// Groups are numbered. The number of the last one that is in a window stands in
// that window, written by the same transaction, so that each is recorded once,
// and what a segment holds from its last use is known by its numbers.
type journal struct {
	dir    string
	size   int64 // of a segment; one group may be larger
	next   uint64
	active int // the segment that takes groups
	parts  [2]segment
	buf    []byte
	failed bool // the last append: its frame may be there all the same
}

// segment is one file of a journal.
//
//	magic, version, salt (8), zeros (3), crc (4) of all that
//	frame: crc (4), length (4), number (8), payload, zeros to a multiple of 8
//
// All numbers are little-endian. The checksum covers the salt and all that
// follows it in the frame: no peer can put a frame into the text of a link.
type segment struct {
	f    *os.File // nil: not created yet
	salt []byte
	used int64 // where the next frame goes
	end  int64 // of the file
}

var (
	journalMagic = []byte("wopproxy journal")

	castagnoli = crc32.MakeTable(crc32.Castagnoli)

	errJournal = errors.New("damaged journal")
)

const (
	journalVersion = 1
	saltSize       = 8
	segmentHead    = 32
	frameHead      = 16
	frameAlign     = 8
)

// group is what one frame holds.
type group struct {
	number uint64
	links  []ancestry.Link
}

func segmentPath(dir string, n int) string {
	return filepath.Join(dir, fmt.Sprintf("journal-%d", n+1))
}

// openJournal opens what there is of the journal in dir, and returns the groups
// after applied, in order. It changes nothing. torn says that the last one is not
// whole.
func openJournal(dir string, size int64, applied uint64) (j *journal, groups []group, torn bool, err error) {
	j = &journal{dir: dir, size: size, next: applied + 1}
	defer func() {
		if err != nil {
			err = errors.Join(err, j.close())
		}
	}()
	for n := range j.parts {
		path := segmentPath(dir, n)
		read, cut, err := j.parts[n].open(path, applied)
		if err != nil {
			return j, nil, false, explain(path, err)
		}
		torn = torn || cut
		groups = append(groups, read...)
	}
	slices.SortFunc(groups, func(a, b group) int { return cmp.Compare(a.number, b.number) })
	for i, g := range groups {
		if i > 0 && g.number != groups[i-1].number+1 {
			err := fmt.Errorf("%w: groups after %d are missing", errJournal, groups[i-1].number)
			return j, nil, false, explain(segmentPath(dir, 0), err)
		}
		j.next = g.number + 1
	}
	// Both may hold groups. Nothing is written before those are in a window.
	for n := range j.parts {
		j.parts[n].used = max(j.parts[n].end, size)
	}
	return j, groups, torn, nil
}

// open reads the groups after applied of a segment, if it is there.
func (s *segment) open(path string, applied uint64) (groups []group, torn bool, err error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	s.f = f // to be closed
	b, err := io.ReadAll(f)
	if err != nil {
		return nil, false, err
	}
	s.end = int64(len(b))
	if s.salt, err = readHead(b); err != nil {
		return nil, false, err
	}
	return readFrames(b, s.salt, applied)
}

func readHead(b []byte) (salt []byte, err error) {
	rest, ok := bytes.CutPrefix(b, journalMagic)
	switch {
	case !ok || len(b) < segmentHead:
		return nil, errForeign
	case rest[0] != journalVersion:
		return nil, fmt.Errorf("%w %x: this one knows %d", errNewer, rest[0], journalVersion)
	}
	salt = bytes.Clone(rest[1:][:saltSize])
	if !bytes.Equal(b[:segmentHead], makeHead(salt)) {
		return nil, fmt.Errorf("%w: its head", errJournal)
	}
	return salt, nil
}

func makeHead(salt []byte) []byte {
	b := slices.Concat(journalMagic, []byte{journalVersion}, salt, make([]byte, 3))
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// readFrames returns the groups of a segment that come after applied. A frame
// that is not whole ends them: the process ended as it wrote it, and nobody was
// told that it was stored. torn says that there is such a one. Behind it there
// is nothing but what was there before: a whole frame with a higher number says
// that the file is damaged.
func readFrames(b, salt []byte, applied uint64) (groups []group, torn bool, err error) {
	at, last := segmentHead, uint64(0)
	for {
		number, payload, size := frameAt(b[at:], salt)
		if size == 0 || last > 0 && number != last+1 {
			break
		}
		at, last = at+size, number
		if number <= applied {
			continue
		}
		links, err := decodeGroup(payload)
		if err != nil {
			return nil, false, fmt.Errorf("%w: group %d: %w", errJournal, number, err)
		}
		groups = append(groups, group{number, links})
	}
	newest := max(applied, last)
	for later := at; later+frameHead <= len(b); later += frameAlign {
		number := binary.LittleEndian.Uint64(b[later+8:])
		if number <= newest {
			continue
		}
		if _, _, size := frameAt(b[later:], salt); size > 0 {
			return nil, false, fmt.Errorf("%w: group %d follows bytes from %d on that make no sense", errJournal, number, at)
		}
		torn = torn || later == at && number == newest+1
	}
	return groups, torn, nil
}

// frameAt returns the frame that b begins with, and its size: 0 if there is none.
func frameAt(b, salt []byte) (number uint64, payload []byte, size int) {
	if len(b) < frameHead {
		return 0, nil, 0
	}
	n := int64(binary.LittleEndian.Uint32(b[4:]))
	whole := aligned(frameHead + n)
	if n == 0 || whole > int64(len(b)) || binary.LittleEndian.Uint32(b) != frameSum(b[4:frameHead+n], salt) {
		return 0, nil, 0
	}
	return binary.LittleEndian.Uint64(b[8:]), b[frameHead : frameHead+n], int(whole)
}

func aligned(n int64) int64 { return (n + frameAlign - 1) &^ (frameAlign - 1) }

func frameSum(b, salt []byte) uint32 {
	return crc32.Update(crc32.Checksum(salt, castagnoli), castagnoli, b)
}

// appendFrame appends links as a frame of a segment with a salt.
func appendFrame(b []byte, number uint64, links []ancestry.Link, salt []byte) []byte {
	at := len(b)
	b = append(b, make([]byte, frameHead)...)
	for _, l := range links {
		var scratch [512]byte
		key, record := l.Key(), appendLink(scratch[:0], l) // whole: it is cut where it is kept
		b = append(binary.AppendUvarint(b, uint64(len(key))), key...)
		b = append(binary.AppendUvarint(b, uint64(len(record))), record...)
	}
	frame := b[at:]
	binary.LittleEndian.PutUint32(frame[4:], uint32(len(frame)-frameHead))
	binary.LittleEndian.PutUint64(frame[8:], number)
	binary.LittleEndian.PutUint32(frame, frameSum(frame[4:], salt))
	return append(b, make([]byte, aligned(int64(len(frame)))-int64(len(frame)))...)
}

// decodeGroup returns the links of a payload.
func decodeGroup(b []byte) (links []ancestry.Link, err error) {
	text := func() []byte {
		size, n := binary.Uvarint(b)
		if n <= 0 || size > uint64(len(b)-n) {
			err = errRecord
			return nil
		}
		v := b[n:][:size]
		b = b[n+int(size):]
		return v
	}
	for len(b) > 0 {
		key, record := text(), text()
		if err != nil {
			return nil, err
		}
		l, err := decodeLink(string(key), record)
		if err == nil {
			err = l.Validate()
		}
		if err != nil {
			return nil, err
		}
		links = append(links, l)
	}
	return links, nil
}

// append makes links durable in the active segment. It reports false, and has
// done nothing, if they don't fit there.
func (j *journal) append(links []ancestry.Link) (fits bool, err error) {
	s := &j.parts[j.active]
	if s.f == nil {
		created, err := createSegment(segmentPath(j.dir, j.active), j.size)
		if err != nil {
			return true, err
		}
		*s = created
	}
	j.buf = appendFrame(j.buf[:0], j.next, links, s.salt)
	if s.used > segmentHead && s.used+int64(len(j.buf)) > j.size {
		return false, nil
	}
	// After an error all of it is written again, to the same place: a disk may
	// have dropped what it could not make durable.
	j.failed = true
	if err := s.write(j.buf); err != nil {
		return true, err
	}
	j.failed = false
	s.used += int64(len(j.buf))
	j.next++
	return true, nil
}

// write makes b durable where the next frame goes.
func (s *segment) write(b []byte) error {
	if _, err := s.f.WriteAt(b, s.used); err != nil {
		return err
	}
	s.end = max(s.end, s.used+int64(len(b)))
	return syncData(s.f)
}

// half reports whether the active segment is half full.
func (j *journal) half() bool { return j.parts[j.active].used > j.size/2 }

// turn makes the other segment the active one. What it held is in a window.
func (j *journal) turn() error {
	if j.failed {
		// The number of that group goes to another one, in the other segment.
		if err := j.parts[j.active].write(make([]byte, frameHead)); err != nil {
			return err
		}
		j.failed = false
	}
	j.active = 1 - j.active
	j.rewind()
	return nil
}

// rewind lets the active segment begin anew. What it held is in a window.
func (j *journal) rewind() {
	s := &j.parts[j.active]
	s.used = segmentHead
	if s.end > j.size && s.f.Truncate(j.size) == nil {
		s.end = j.size
	}
}

func (j *journal) close() error {
	var errs []error
	for _, s := range j.parts {
		if s.f != nil {
			errs = append(errs, s.f.Close())
		}
	}
	return errors.Join(errs...)
}

// createSegment makes an empty segment. Under its final name it is complete.
func createSegment(path string, size int64) (s segment, err error) {
	f, err := os.OpenFile(path+unfinished, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return s, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close())
			_ = os.Remove(path + unfinished) // it would only take room
		}
	}()
	s = segment{f: f, salt: make([]byte, saltSize), used: segmentHead, end: max(size, segmentHead)}
	_, _ = rand.Read(s.salt) // never fails
	b := make([]byte, s.end)
	copy(b, makeHead(s.salt))
	if _, err := f.Write(b); err != nil {
		return s, err
	}
	if err := f.Sync(); err != nil {
		return s, err
	}
	if err := os.Rename(path+unfinished, path); err != nil {
		return s, err
	}
	return s, syncDir(filepath.Dir(path))
}
