// Command bench measures what wopproxy costs, beside no proxy at all and beside
// other proxies.
//
//	go run ./test/bench          the whole table, about a quarter of an hour
//	go run ./test/bench -quick   one number of connections, within a minute
//	go run ./test/bench -quick -only ingress,reverseproxy -case mcp1k
//	go run ./test/bench -guard   the Go benchmarks, beside what is recorded
//	go run ./test/bench -think 20ms  what is added to a host that thinks
//	go run ./test/bench -store   of the store instead, with 10 million links; 25 GB of disk
//
// It builds wopproxy and starts it, with all that it does: a store on disk,
// metrics, spans for a collector. Beside it stand nginx, haproxy, squid and
// mitmproxy, those that are installed, and as the measure of all a ReverseProxy
// of Go's library, and goproxy, each a process of its own. Proxies have one
// processor for themselves, and clients and upstream another. What is compared is
// measured in turns: every round has all of them, every second round in the
// opposite order, and a cell is the median of the rounds. Below stand the bounds
// that wopproxy is held to and what was found, in bold where that is too much.
//
// The clients compare every answer with what the upstream sent, and the upstream
// sees that wopproxy stamped every message: it exits 1 if one did not arrive as
// it should.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/wopproxy/wopproxy/test/internal/program"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal kills us at once
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// errUsage is returned for a mistake that has been explained already.
var errUsage = errors.New("usage")

// options says what is measured, and how long.
type options struct {
	all         bool // it is a fault if a contender is missing
	contenders  []*contender
	kinds       []traffic
	connections []int
	rounds      int
	window      time.Duration // of one measurement
	latencyAt   int           // connections
	paced       time.Duration // of one measurement of latency
	think       time.Duration // the upstream takes so long, and only latency is measured; 0: it answers at once
	budget      time.Duration // of all rounds but the first; 0: none is left out
	profiles    string        // a folder for them; empty: none are made
	program     string        // a wopproxy; empty: one is built
	guard       bool          // the Go benchmarks instead
	record      bool
	store       *storeBench // instead of all of these but program; nil: no
}

// run is main without the process.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	if len(args) > 1 && args[0] == "peer" {
		return status(runPeer(ctx, args[1:], stdout, stderr), stderr)
	}
	if len(args) == 4 && args[0] == storeWriter {
		return status(writeUntilKilled(ctx, args[1], args[2], args[3], stdout), stderr)
	}
	o, err := parse(args, stderr)
	switch {
	case err != nil:
	case o.guard:
		err = guard(ctx, stdout, stderr)
	case o.record:
		err = record(ctx, stderr)
	case o.store != nil:
		err = o.store.run(ctx, o, stdout, stderr)
	default:
		err = bench(ctx, o, stdout, stderr)
	}
	return status(err, stderr)
}

func status(err error, stderr io.Writer) int {
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
		return 0
	case errors.Is(err, errUsage):
		return 2
	}
	fmt.Fprintln(stderr, "bench:", err)
	return 1
}

func parse(args []string, stderr io.Writer) (options, error) {
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.SetOutput(stderr)
	o := options{contenders: contenders(), kinds: kinds}
	quick := f.Bool("quick", false, "fewer and shorter rounds, with 64 connections only")
	f.BoolVar(&o.all, "all", false, "fail where a proxy is missing, instead of leaving it out")
	only := f.String("only", "", "these `contenders`, by name, with commas")
	cases := f.String("case", "", "these `kinds` of traffic, by name, with commas")
	conns := f.String("connections", "", "these `numbers` of connections, with commas (default 1,64,512)")
	f.IntVar(&o.rounds, "rounds", 0, "`number` of rounds (default 5; 3 if quick)")
	f.DurationVar(&o.window, "window", 0, "how `long` one measurement takes (default 500ms; 120ms if quick)")
	f.DurationVar(&o.think, "think", 0, "let the upstream take so `long`, and measure what proxies add to that, of "+thinkWho+" and "+thinkWhat+" unless others are named")
	store := f.Bool("store", false, "measure the store instead; -quick takes a hundredth of the links")
	ids := f.String("ids", "", "with -store: these `kinds` of ids, with commas (default ULID,UUID)")
	stored := f.Int("links", 10_000_000, "with -store: `number` of links in the largest store")
	f.StringVar(&o.profiles, "cpuprofile", "", "write a profile of each cell of wopproxy into this `folder`; a window is 1s then at least")
	f.StringVar(&o.program, "program", "", "a wopproxy, as a `file`, instead of building one")
	f.BoolVar(&o.guard, "guard", false, "instead: run the Go benchmarks, and fail if one allocates more than is recorded")
	f.BoolVar(&o.record, "record", false, "instead: record what they find")
	if err := f.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return o, err
		}
		return o, errUsage
	}
	rounds, window := 5, 500*time.Millisecond
	o.connections, o.latencyAt, o.paced = []int{1, 64, 512}, 64, 2*time.Second
	if *quick {
		rounds, window = 3, 120*time.Millisecond
		o.connections, o.paced, o.budget = []int{64}, 400*time.Millisecond, 35*time.Second
	}
	if o.rounds == 0 {
		o.rounds = rounds
	}
	if o.window == 0 {
		o.window = window
	}
	if o.profiles != "" {
		o.window = max(o.window, time.Second) // no profile is shorter
	}
	err := o.checkThink(only, cases, conns)
	err = errors.Join(err,
		choose(&o.contenders, *only, "-only", func(c *contender) string { return c.name }),
		choose(&o.kinds, *cases, "-case", func(k traffic) string { return k.name }),
		o.connect(*conns))
	if f.NArg() > 0 {
		err = errors.Join(err, fmt.Errorf("%q: want no arguments", f.Args()))
	}
	if o.rounds < 0 || o.window < 0 {
		err = errors.Join(err, errors.New("-rounds and -window: want more than nothing"))
	}
	if *stored < 1000 {
		err = errors.Join(err, errors.New("-links: want at least 1000"))
	}
	if *store {
		o.store = newStoreBench(*stored, *quick)
		err = errors.Join(err, choose(&o.store.kinds, *ids, "-ids", func(k idKind) string { return string(k) }))
	}
	if err != nil {
		fmt.Fprintln(stderr, "bench:", err)
		return o, errUsage
	}
	return o, nil
}

// choose leaves those of all that are named, in the order in which they stand.
func choose[T any](all *[]T, names, flag string, name func(T) string) error {
	if names == "" {
		return nil
	}
	var known []string
	for _, v := range *all {
		known = append(known, name(v))
	}
	wanted := strings.Split(names, ",")
	for _, w := range wanted {
		if !slices.Contains(known, w) {
			return fmt.Errorf("%s %q: want some of %s", flag, w, strings.Join(known, ","))
		}
	}
	*all = slices.DeleteFunc(slices.Clone(*all), func(v T) bool { return !slices.Contains(wanted, name(v)) })
	return nil
}

// maxConnections is what the configurations of other proxies here allow for.
const maxConnections = 1024

func (o *options) connect(numbers string) error {
	if numbers == "" {
		return nil
	}
	o.connections = nil
	for text := range strings.SplitSeq(numbers, ",") {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > maxConnections {
			return fmt.Errorf("-connections %q: want numbers between 1 and %d", text, maxConnections)
		}
		o.connections = append(o.connections, n)
	}
	slices.Sort(o.connections) // memory only grows
	o.connections = slices.Compact(o.connections)
	return nil
}

// bench sets the stage, plays, and prints what came of it.
func bench(ctx context.Context, o options, stdout, stderr io.Writer) (err error) {
	began := time.Now()
	s := &stage{options: o, stderr: stderr}
	stop, err := s.set(ctx)
	if err != nil {
		return err
	}
	defer func() {
		// Whoever interrupts us need not read how everybody else ended.
		if stopped := stop(); ctx.Err() != nil {
			err = ctx.Err()
		} else {
			err = errors.Join(err, stopped)
		}
	}()
	t := newTable(o, s.present)
	if err := s.play(ctx, t); err != nil {
		return err
	}
	if err := t.write(stdout); err != nil {
		return err
	}
	size, err := os.Stat(s.program)
	if err != nil {
		return err
	}
	if held := t.held(); len(held) > 1 {
		fmt.Fprintln(stdout)
		if err := program.WriteMarkdown(stdout, held); err != nil {
			return err
		}
	}
	fmt.Fprintf(stdout, "\nwopproxy is %.1f MB. %.0f s.\n", float64(size.Size())/1e6, time.Since(began).Seconds())
	for _, c := range s.present {
		left, err := c.finish(ctx)
		if err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		for _, l := range left {
			fmt.Fprintln(stdout, l)
		}
	}
	return nil
}
