// Command accuracy measures whose calls wopproxy says they are, against the
// truth.
//
//	go run ./test/accuracy          the whole table, a few minutes
//	go run ./test/accuracy -quick   fewer runs and columns, within a minute
//
// It builds wopproxy and puts it beside hosts in Go, Node and Python. To each
// host it sends A2A messages, many at once, and each message makes its run call
// an MCP server four times, one after the other or all at once, with pauses of
// random length, through few connections that all runs share. The command plays
// that server. A message bears a random marker, which the host repeats in the
// arguments of the run's calls and nowhere else: so the command knows who made a
// call, and wopproxy can't. It compares that with what wopproxy says: to the
// server, in Run-Ancestry, and afterwards in its store.
//
// It exits 1 if a single call was given to a run that did not make it, if a call
// of a host that cooperates was given to none, or if what the server was told is
// not what the store has.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
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

// options says how much is measured.
type options struct {
	quick   bool
	all     bool   // it is a fault if the runtime of a host is missing
	seed    uint64 // of the order and length of all pauses
	modes   []mode
	hosts   []host
	program string // a wopproxy; empty: one is built
}

// run is main without the process.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	if len(args) == 1 && args[0] == "host" {
		return status(runHost(ctx, stdout, nil), stderr)
	}
	o, err := parse(args, stderr)
	if err == nil {
		err = measure(ctx, o, stdout, stderr)
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
	fmt.Fprintln(stderr, "accuracy:", err)
	return 1
}

func parse(args []string, stderr io.Writer) (options, error) {
	f := flag.NewFlagSet("accuracy", flag.ContinueOnError)
	f.SetOutput(stderr)
	var o options
	f.BoolVar(&o.quick, "quick", false, "fewer runs, and only the concurrencies 1, 8 and 64")
	f.BoolVar(&o.all, "all", false, "fail where a runtime is missing, instead of leaving its hosts out")
	f.Uint64Var(&o.seed, "seed", 0, "of all pauses; 0: any, and it is printed")
	only := f.String("only", "", "one `mode` alone, by its name in the table")
	if err := f.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return o, err
		}
		return o, errUsage
	}
	if o.seed == 0 {
		o.seed = uint64(rand.Uint32())
	}
	o.modes, o.hosts = modes, hosts
	if *only != "" {
		i := slices.IndexFunc(modes, func(m mode) bool { return m.name == *only })
		if i < 0 {
			fmt.Fprintf(stderr, "accuracy: -only %q: want one of %q\n", *only, names(modes))
			return o, errUsage
		}
		o.modes = modes[i : i+1]
	}
	if f.NArg() > 0 {
		fmt.Fprintf(stderr, "accuracy: %q: want no arguments\n", f.Args())
		return o, errUsage
	}
	return o, nil
}

// measure fills the table, prints it, and returns what breaks the rule.
func measure(ctx context.Context, o options, stdout, stderr io.Writer) error {
	began := time.Now()
	dir, err := os.MkdirTemp("", "wopproxy-accuracy-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if o.program == "" {
		o.program = filepath.Join(dir, "wopproxy")
		if err := program.Build(ctx, o.program, stderr); err != nil {
			return err
		}
	}
	there, missing, err := findHosts(ctx, o.hosts, dir)
	if err != nil {
		return err
	}
	for _, m := range missing {
		fmt.Fprintln(stderr, "left out:", m)
	}
	var faults []error
	if o.all && len(missing) > 0 {
		faults = append(faults, fmt.Errorf("left out: %s", strings.Join(missing, "; ")))
	}
	t := &table{columns: columns(o.quick)}
	turns := make(chan struct{}, 2) // while one mode waits another works
	var all sync.WaitGroup
	var crowd sync.Mutex
	var mu sync.Mutex // of faults, and of stderr
	for i, m := range o.modes {
		row := t.add(m)
		turns <- struct{}{}
		all.Go(func() {
			errs := row.fill(ctx, newStages(filepath.Join(dir, fmt.Sprint(i)), m, there, o, &crowd), t.columns)
			mu.Lock()
			defer mu.Unlock()
			faults = append(faults, errs...)
			fmt.Fprintf(stderr, "%-*s %6.1fs\n", widest(names(modes)), m.name, time.Since(began).Seconds())
			<-turns
		})
	}
	all.Wait()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err := t.write(stdout); err != nil {
		return err
	}
	fmt.Fprintf(stdout, "\nSeed %d. %d calls in %.0f s.\n", o.seed, t.calls(), time.Since(began).Seconds())
	return errors.Join(faults...)
}

// columns are the numbers of runs that are at work at once.
func columns(quick bool) []int {
	if quick {
		return []int{1, 8, 64}
	}
	return []int{1, 2, 4, 8, 16, 64}
}

func names(modes []mode) (all []string) {
	for _, m := range modes {
		all = append(all, m.name)
	}
	return all
}

func widest(texts []string) (n int) {
	for _, t := range texts {
		n = max(n, len(t))
	}
	return n
}
