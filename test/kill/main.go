// Command kill shows that what wopproxy has acknowledged survives its death.
//
//	go run ./test/kill                 200 rounds, two to three minutes
//	go run ./test/kill -rounds 1000
//
// It builds wopproxy, starts it beside a host, and lets callers begin runs without
// pause, over plain HTTP and over A2A, where the host gives each run a second id.
// At a random moment it kills wopproxy with SIGKILL, as a kernel out of memory
// does, and starts it again; now and then it kills it while it starts. After
// each start the store has every run whose answer a caller has seen, by both of its
// ids, with the parent that the caller named; it has no run that no caller began,
// and none twice. Of the evidence that it signs, what a reader has seen is there, and
// holds; no run that was at work at the kill is said to be told of as a whole, and one
// that was over for hours is. At the end all rounds are looked at once more.
//
// It exits 1 at the first difference, and keeps the store for you to look at.
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

// run is main without the process.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	f := flag.NewFlagSet("kill", flag.ContinueOnError)
	f.SetOutput(stderr)
	var k killer
	f.IntVar(&k.rounds, "rounds", 200, "`number` of deaths under load")
	f.IntVar(&k.callers, "callers", 16, "`number` of callers at a time")
	f.StringVar(&k.program, "program", "", "a wopproxy, as a `file`, instead of building one")
	if err := f.Parse(args); errors.Is(err, flag.ErrHelp) {
		return 0
	} else if err != nil {
		return 2
	}
	if f.NArg() > 0 || k.rounds < 1 || k.callers < 1 {
		fmt.Fprintln(stderr, "kill: want no arguments, and at least one round and one caller")
		return 2
	}
	if err := k.run(ctx, stdout, stderr); err != nil {
		fmt.Fprintln(stderr, "kill:", err)
		return 1
	}
	return 0
}

// killer plays all rounds on one store.
type killer struct {
	rounds, callers int
	program         string

	dir            string
	host           *host
	sidecar        *program.Process
	ingress, admin string // base URLs of the sidecar
	all            []*round
	starts         []time.Duration
	records        records
}

func (k *killer) run(ctx context.Context, stdout, stderr io.Writer) (err error) {
	began := time.Now()
	if k.dir, err = os.MkdirTemp("", "wopproxy-kill-"); err != nil {
		return err
	}
	defer func() {
		if err != nil && ctx.Err() == nil {
			err = fmt.Errorf("%w\nthe store is left in %s", err, k.dir)
			return
		}
		err = errors.Join(err, os.RemoveAll(k.dir))
	}()
	if k.program == "" {
		k.program = filepath.Join(k.dir, "wopproxy")
		if err := program.Build(ctx, k.program, stderr); err != nil {
			return err
		}
	}
	if k.host, err = newHost(); err != nil {
		return err
	}
	defer k.host.Close()
	if err := k.configure(ctx); err != nil {
		return err
	}
	for n := range k.rounds {
		if err := k.play(ctx, n); err != nil {
			return fmt.Errorf("round %d: %w", n, err)
		}
	}
	stored, err := k.finish(ctx)
	if err != nil {
		return fmt.Errorf("after the last round: %w", err)
	}
	answered, read := 0, 0
	for _, r := range k.all {
		answered += len(r.answered)
		read += len(r.records)
	}
	slices.Sort(k.starts)
	fmt.Fprintf(stdout, "%d rounds, %.0f s: %d runs were answered, %d are stored, none is missing and none was not begun.\n",
		k.rounds, time.Since(began).Seconds(), answered, stored)
	fmt.Fprintf(stdout, "The evidence of %d runs was read before a kill, and is there and holds.\n", read)
	fmt.Fprintf(stdout, "A start after a kill took %v, at most %v.\n",
		k.starts[len(k.starts)/2].Round(time.Millisecond), k.starts[len(k.starts)-1].Round(time.Millisecond))
	return nil
}

// configure writes the file that the sidecar is started with. An answer waits
// for its link as long as it takes, so that each that is seen is a promise.
func (k *killer) configure(ctx context.Context) error {
	evidence, err := k.sign(ctx)
	if err != nil {
		return err
	}
	return os.WriteFile(k.file(), fmt.Appendf(nil, `
host: { id: host.example.com, wellKnownUrl: "https://host.example.com/.well-known/openwop" }
ingress: { listen: "127.0.0.1:0", upstream: %q }
egress: { listen: "127.0.0.1:0" }
admin: { listen: "127.0.0.1:0" }
ancestry: { store: { bolt: { dir: %q } }, auth: { mode: none }, commitTimeout: 30s }
runs: { start: ["POST /chat"] }
drain: { delay: 0s, timeout: 5s }
%s`, k.host.url, k.store(), evidence), 0o600)
}

func (k *killer) file() string { return filepath.Join(k.dir, "wopproxy.yaml") }

// start starts the sidecar, and returns when it serves.
func (k *killer) start(ctx context.Context) (err error) {
	began := time.Now()
	if k.sidecar, err = k.launch(ctx); err != nil {
		return err
	}
	at, err := k.sidecar.Serving()
	if err != nil {
		k.sidecar.Kill()
		return err
	}
	k.starts = append(k.starts, time.Since(began))
	k.ingress, k.admin = "http://"+at.Ingress, "http://"+at.Admin
	return nil
}

func (k *killer) launch(ctx context.Context) (*program.Process, error) {
	return program.Start(ctx, program.CleanEnv(), k.program, "serve", "-config", k.file())
}

// play starts the sidecar, looks at what the round before has left, and kills
// it under load.
func (k *killer) play(ctx context.Context, n int) error {
	if n%4 == 3 { // before it has come far
		p, err := k.launch(ctx)
		if err != nil {
			return err
		}
		pause(ctx, rand.N(60*time.Millisecond))
		p.Kill()
	}
	if err := k.start(ctx); err != nil {
		return err
	}
	if n > 0 {
		before := k.all[n-1]
		_, err := k.check(ctx, before)
		if err == nil {
			err = k.checkReceipts(ctx, before, k.rounds <= 10 || n%10 == 0)
		}
		if err != nil {
			k.sidecar.Kill()
			return err
		}
	}
	r := newRound(n, k.host)
	k.all = append(k.all, r)
	load := r.load(k.ingress, k.callers)
	var readers sync.WaitGroup
	for range 4 {
		readers.Go(func() { r.follow(ctx, k) }) // until the sidecar is dead
	}
	err := r.await(ctx)
	pause(ctx, rand.N(100*time.Millisecond))
	k.sidecar.Kill()
	load.Wait()
	close(r.ended)
	readers.Wait()
	return errors.Join(err, ctx.Err())
}

// finish looks at all rounds, and stops the sidecar as it wants to be stopped.
func (k *killer) finish(ctx context.Context) (stored int, err error) {
	if err := k.start(ctx); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, k.sidecar.Stop()) }()
	for _, r := range k.all {
		n, err := k.check(ctx, r)
		if err != nil {
			return 0, err
		}
		if err := k.checkReceipts(ctx, r, false); err != nil {
			return 0, err
		}
		stored += n
	}
	return stored, k.recovers(ctx)
}

// pause waits for d, unless ctx ends before.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// link is a run as the admin listener tells of it.
type link struct {
	Run   string `json:"runId"`
	Alias string
	Chain struct {
		Ancestors []struct {
			Run  string `json:"runId"`
			Host string `json:"hostId"`
		}
	}
}

// parent is the run that caused it; empty if that is none of the callers'.
func (l link) parent() string {
	if a := l.Chain.Ancestors; len(a) == 1 && a[0].Host == callerID {
		return a[0].Run
	}
	return ""
}

// list returns the runs of a round that the store has.
func (k *killer) list(ctx context.Context, r *round) ([]link, error) {
	var list struct{ Runs []link }
	if err := program.GetJSON(ctx, k.admin+"/ancestry/v1/traces/"+r.trace, &list); err != nil {
		return nil, err
	}
	if len(list.Runs) >= maxRuns {
		return nil, fmt.Errorf("trace %s has %d runs, more than were begun", r.trace, len(list.Runs))
	}
	return list.Runs, nil
}

// check compares what the store has of a round with what was seen of it, and
// returns how many runs that are.
func (k *killer) check(ctx context.Context, r *round) (n int, err error) {
	runs, err := k.list(ctx, r)
	if err != nil {
		return 0, err
	}
	stored := map[string]link{} // by the run's parent
	for _, l := range runs {
		parent := l.parent()
		if !r.begun[parent] {
			return 0, fmt.Errorf("the store has a run that nobody began: %+v", l)
		}
		if before, ok := stored[parent]; ok {
			return 0, fmt.Errorf("the store has two runs of the one that %s began: %+v and %+v", parent, before, l)
		}
		if l.Alias != "" && l.Alias != r.host.task(parent) {
			return 0, fmt.Errorf("the store has a name that the host did not give: %+v, and not %q", l, r.host.task(parent))
		}
		stored[parent] = l
	}
	for parent, a := range r.answered {
		l, ok := stored[parent]
		if !ok || l.Run != a.run && l.Alias != a.run || l.Alias != a.task {
			return 0, fmt.Errorf("the run that %s began was answered as %+v, and the store has %v, %+v", parent, a, ok, l)
		}
	}
	return len(stored), r.sample(func(a answer) error { return k.find(ctx, a) })
}

// find looks a run up by each of its names.
func (k *killer) find(ctx context.Context, a answer) error {
	for _, id := range []string{a.run, a.task} {
		if id == "" {
			continue
		}
		var l link
		if err := program.GetJSON(ctx, k.admin+"/ancestry/v1/runs/"+id, &l); err != nil {
			return err
		}
		if l.Run != a.run && l.Alias != a.run {
			return fmt.Errorf("%s leads to %+v, want %+v", id, l, a)
		}
	}
	return nil
}
