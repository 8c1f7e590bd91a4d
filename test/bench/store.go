package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/wopproxy/wopproxy/ancestry"
	"github.com/wopproxy/wopproxy/ancestry/boltstore"
	"github.com/wopproxy/wopproxy/test/internal/program"
)

// storeBench measures the embedded store as it grows.
type storeBench struct {
	kinds   []idKind
	sizes   []int         // links that are stored, ascending
	written int           // links of each measurement of writes, and of a window: so it meets a full one and a new one
	reading time.Duration // of each measurement of reads
	dir     string        // for all files
	program string        // a wopproxy
	stderr  io.Writer
}

// newStoreBench returns the measurement of stores of up to n links, or a quick
// one of up to a hundredth of them.
func newStoreBench(n int, quick bool) *storeBench {
	b := &storeBench{kinds: []idKind{ulids, uuids}, written: 1 << 17, reading: 10 * time.Second}
	if quick {
		n /= 100
		b.written, b.reading = 1<<13, time.Second
	}
	b.sizes = []int{0, n / 10, n}
	return b
}

// storeRow is what was measured at one size.
type storeRow struct {
	ids                 idKind
	stored              int
	full, empty         writeCost
	run, none, children quantiles // look-ups of runs that are there, of runs that are not, and of children
	opened              quantiles // after kill -9
	idle                footprint
	bytes               float64       // on disk, per link
	forgotten           int           // links, half of all, when the store is largest
	pruned              time.Duration // and how long that took
}

// writeCost is what links cost that are written in groups.
type writeCost struct {
	cpu    time.Duration // of the process, per link
	commit quantiles
}

// groupSize is how many links share a commit: so many callers wait at a time.
const groupSize = 64

// bytesALink is more than a link takes on the disk.
const bytesALink = 2500

// run measures a store of each kind of ids, and prints a table.
func (b *storeBench) run(ctx context.Context, o options, stdout, stderr io.Writer) (err error) {
	start := time.Now()
	b.stderr = stderr
	if b.dir, err = os.MkdirTemp("", "wopproxy-bench-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.dir)) }()
	if err := b.room(); err != nil {
		return err
	}
	if b.program = o.program; b.program == "" {
		b.program = filepath.Join(b.dir, "wopproxy")
		if err := program.Build(ctx, b.program, stderr); err != nil {
			return err
		}
	}
	var rows []storeRow
	for _, ids := range b.kinds {
		of, err := b.grow(ctx, links{ids: ids})
		if err != nil {
			return fmt.Errorf("store of %ss: %w", ids, err)
		}
		rows = append(rows, of...)
	}
	if err := writeStoreTable(stdout, rows); err != nil {
		return err
	}
	fmt.Fprintf(stdout, "\n%.0f s.\n", time.Since(start).Seconds())
	return nil
}

// room checks that the disk has room for the largest store.
func (b *storeBench) room() error {
	var disk syscall.Statfs_t
	if err := syscall.Statfs(b.dir, &disk); err != nil {
		return err
	}
	free, want := int64(disk.Bavail)*int64(disk.Bsize), int64(slices.Max(b.sizes)+4*b.written)*bytesALink
	if free < want {
		return fmt.Errorf("%s has room for %d MiB, and %d may be wanted: set TMPDIR to a larger disk, or take fewer -links", b.dir, free>>20, want>>20)
	}
	return nil
}

// grow measures one store at each size. It is removed afterwards.
func (b *storeBench) grow(ctx context.Context, of links) (rows []storeRow, err error) {
	dir := filepath.Join(b.dir, string(of.ids))
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	stored := 0
	for _, size := range b.sizes {
		start := time.Now()
		if err := b.fill(ctx, dir, of, stored, size); err != nil {
			return nil, err
		}
		fmt.Fprintf(b.stderr, "%d %ss stored, %.0f s\n", size, of.ids, time.Since(start).Seconds())
		row := storeRow{ids: of.ids, stored: size}
		stored, err = b.measure(ctx, dir, of, &row)
		if err != nil {
			return nil, err
		}
		rows = append(rows, row)
	}
	last := &rows[len(rows)-1]
	last.forgotten, last.pruned, err = pruneHalf(ctx, dir, stored)
	return rows, err
}

// measure fills in a row for the store in dir, and returns how many links of it
// are stored then.
func (b *storeBench) measure(ctx context.Context, dir string, of links, row *storeRow) (stored int, err error) {
	if row.stored > 0 {
		if row.bytes, err = bytesPerLink(dir, row.stored); err != nil {
			return 0, err
		}
	}
	if row.idle, err = b.footprint(ctx, dir); err != nil {
		return 0, err
	}
	if row.opened, err = b.crashes(ctx, dir, of); err != nil {
		return 0, err
	}
	s, err := b.open(dir)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	stored = row.stored
	if err := b.compare(ctx, s, dir+"-empty", of, row); err != nil {
		return 0, err
	}
	stored += b.written
	n, err := b.read(ctx, s, of, stored, row)
	return stored + n, err
}

func (b *storeBench) open(dir string) (*boltstore.Store, error) {
	return boltstore.Open(boltstore.Options{Dir: dir, Fill: b.written})
}

// fill records the links from one number to another, in large groups.
func (b *storeBench) fill(ctx context.Context, dir string, of links, from, to int) error {
	s, err := b.open(dir)
	if err != nil {
		return err
	}
	for at := from; at < to && err == nil; {
		n := min(2048, to-at)
		err = s.Record(ctx, of.group(at, n))
		at += n
	}
	return errors.Join(err, s.Close())
}

func (s links) group(from, n int) []ancestry.Link {
	group := make([]ancestry.Link, n)
	for i := range group {
		group[i] = s.link(from + i)
	}
	return group
}

// compare writes to the store, and in turns to an empty one.
func (b *storeBench) compare(ctx context.Context, full *boltstore.Store, emptyDir string, of links, row *storeRow) (err error) {
	defer func() { err = errors.Join(err, os.RemoveAll(emptyDir)) }()
	empty, err := b.open(emptyDir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, empty.Close()) }()
	const turns = 16
	each := b.written / turns
	var inFull, inEmpty writing
	for turn := range turns {
		// A B B A: what drifts hits both alike.
		steps := []func() error{
			func() error { return inEmpty.write(ctx, empty, links{ids: of.ids, salt: 1}, turn*each, each) },
			func() error { return inFull.write(ctx, full, of, row.stored+turn*each, each) },
		}
		if turn%2 == 1 {
			slices.Reverse(steps)
		}
		for _, step := range steps {
			if err := step(); err != nil {
				return err
			}
		}
	}
	row.full, row.empty = inFull.cost(), inEmpty.cost()
	return nil
}

// writing adds up the costs of writes to one store.
type writing struct {
	links   int
	cpu     time.Duration
	commits []time.Duration
}

// write records n links in groups, made before the clock runs.
func (w *writing) write(ctx context.Context, s ancestry.Store, of links, from, n int) error {
	groups := make([][]ancestry.Link, 0, n/groupSize)
	for at := from; at < from+n; at += groupSize {
		groups = append(groups, of.group(at, groupSize))
	}
	cpu := cpuTime()
	for _, g := range groups {
		start := time.Now()
		if err := s.Record(ctx, g); err != nil {
			return err
		}
		w.commits = append(w.commits, time.Since(start))
	}
	w.cpu += cpuTime() - cpu
	w.links += n
	return nil
}

func (w *writing) cost() writeCost {
	return writeCost{w.cpu / time.Duration(max(1, w.links)), quantilesOf(w.commits)}
}

// cpuTime is what this process has used so far.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// read looks runs up, at random among all that are stored, while a recorder
// takes 1000 links a second. It returns how many were written.
func (b *storeBench) read(ctx context.Context, s *boltstore.Store, of links, stored int, row *storeRow) (written int, err error) {
	ctx, cancel := context.WithTimeout(ctx, b.reading)
	defer cancel()
	r := ancestry.NewRecorder(s, ancestry.RecorderOptions{})
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { r.Run(ctx) })
	running.Go(func() {
		for tick := time.NewTicker(time.Millisecond); ctx.Err() == nil; <-tick.C {
			r.Record(of.link(stored + written))
			written++
		}
	})
	var run, none, children []time.Duration
	timed := func(to *[]time.Duration, fn func() error) {
		start := time.Now()
		e := fn()
		*to = append(*to, time.Since(start))
		if ctx.Err() == nil {
			err = errors.Join(err, e)
		}
	}
	strangers := links{ids: of.ids, salt: 2}
	for tick := time.NewTicker(500 * time.Microsecond); ctx.Err() == nil && err == nil; <-tick.C {
		i := rand.IntN(stored)
		timed(&run, func() error { _, err := r.Lookup(ctx, of.run(i)); return err })
		timed(&none, func() error {
			_, err := r.Lookup(ctx, strangers.run(i))
			if err == nil {
				return fmt.Errorf("%s was found, and never stored", strangers.run(i))
			}
			if errors.Is(err, ancestry.ErrNotFound) {
				return nil
			}
			return err
		})
		timed(&children, func() error {
			l, _, err := r.Children(ctx, of.parent(i), "", 100)
			if len(l) != siblings && i/siblings*siblings+siblings <= stored && err == nil {
				return fmt.Errorf("%d children of %s, want %d", len(l), of.parent(i), siblings)
			}
			return err
		})
	}
	running.Wait()
	row.run, row.none, row.children = quantilesOf(run), quantilesOf(none), quantilesOf(children)
	return written, err
}

// crashes kills a process that writes to the store, several times, and returns
// how long the next one takes to open it.
func (b *storeBench) crashes(ctx context.Context, dir string, of links) (quantiles, error) {
	self, err := os.Executable()
	if err != nil {
		return quantiles{}, err
	}
	var took []time.Duration
	for round := range 7 {
		cmd := exec.CommandContext(ctx, self, storeWriter, dir, string(of.ids), strconv.Itoa(round))
		cmd.Stderr = b.stderr
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			return quantiles{}, err
		}
		line, err := bufio.NewReader(out).ReadString('\n')
		if err == nil && round > 0 {
			var d time.Duration
			d, err = time.ParseDuration(strings.TrimSpace(line))
			took = append(took, d)
		}
		time.Sleep(50 * time.Millisecond) // it writes
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if err != nil {
			return quantiles{}, fmt.Errorf("writer to kill: %w", err)
		}
	}
	return quantilesOf(took), nil
}

// storeWriter is the argument that makes this command a process to kill.
const storeWriter = "store-writer"

// writeUntilKilled opens a store, says how long that took, and writes for ever.
func writeUntilKilled(ctx context.Context, dir, ids, round string, stdout io.Writer) error {
	n, err := strconv.ParseUint(round, 10, 32)
	if err != nil {
		return err
	}
	start := time.Now()
	s, err := boltstore.Open(boltstore.Options{Dir: dir})
	if err != nil {
		return err
	}
	fmt.Fprintln(stdout, time.Since(start))
	of := links{ids: idKind(ids), salt: 100 + n}
	for at := 0; ; at += groupSize {
		if err := s.Record(ctx, of.group(at, groupSize)); err != nil {
			return err
		}
	}
}

// bytesPerLink is what the store takes on the disk.
func bytesPerLink(dir string, n int) (float64, error) {
	var blocks int64
	err := filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if st, ok := info.Sys().(*syscall.Stat_t); err == nil && ok {
			blocks += st.Blocks
		}
		return err
	})
	return float64(512*blocks) / float64(max(1, n)), err
}

// pruneHalf forgets half of the links.
func pruneHalf(ctx context.Context, dir string, stored int) (n int, took time.Duration, err error) {
	s, err := boltstore.Open(boltstore.Options{Dir: dir, MaxLinks: max(1, stored/2)})
	if err != nil {
		return 0, 0, err
	}
	start := time.Now()
	n, err = s.Prune(ctx, time.Now())
	took = time.Since(start)
	return n, took, errors.Join(err, s.Close())
}

// quantiles are of durations.
type quantiles struct{ p50, p99, max time.Duration }

func quantilesOf(all []time.Duration) quantiles {
	if len(all) == 0 {
		return quantiles{}
	}
	slices.Sort(all)
	at := func(q float64) time.Duration { return all[int(q*float64(len(all)-1))] }
	return quantiles{at(0.5), at(0.99), all[len(all)-1]}
}
