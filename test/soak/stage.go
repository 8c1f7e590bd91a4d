package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/wopproxy/wopproxy/test/internal/program"
	"github.com/wopproxy/wopproxy/test/internal/rawhttp"
)

// stage is a wopproxy and all who talk through it.
type stage struct {
	options
	dir       string
	authority *rawhttp.Authority
	peers     *peers
	sidecar   *program.Process
	at        program.Addresses
	lots      []*kind // to pick from
	scores    *scores
	numbers   atomic.Uint64 // of exchanges
	reloads   int
}

// soak sets the stage, lets the traffic pass, and says what came of it.
func soak(ctx context.Context, o options, stdout, stderr io.Writer) (err error) {
	s := &stage{options: o, lots: lots(o.kinds), scores: &scores{}}
	if s.dir, err = os.MkdirTemp("", "wopproxy-soak-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(s.dir)) }()
	if s.out != "" {
		if err := os.MkdirAll(s.out, 0o700); err != nil {
			return err
		}
	}
	if s.program == "" {
		s.program = filepath.Join(s.dir, "wopproxy")
		if err := program.Build(ctx, s.program, stderr); err != nil {
			return err
		}
	}
	stop, err := s.set(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(stderr, "metrics: http://%s/metrics\n", s.at.Admin)
	r, err := s.play(ctx, stderr)
	stopped := stop()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err := errors.Join(err, stopped); err != nil {
		return errors.Join(append(s.scores.first, err)...)
	}
	return r.report(s, stdout)
}

// set starts the peers and wopproxy. What it returns stops them.
func (s *stage) set(ctx context.Context) (stop func() error, err error) {
	ca := filepath.Join(s.dir, "ca.pem")
	if s.authority, err = rawhttp.NewAuthority(ca); err != nil {
		return nil, err
	}
	cert, err := s.authority.Issue()
	if err != nil {
		return nil, err
	}
	if s.peers, err = newPeers(ctx, s.kinds, s.scores, &cert); err != nil {
		return nil, err
	}
	s.peers.roots = s.authority.Pool
	if err := os.Mkdir(filepath.Join(s.dir, "etc"), 0o700); err != nil {
		return nil, errors.Join(err, s.peers.Close())
	}
	if err := s.configure(good); err != nil {
		return nil, errors.Join(err, s.peers.Close())
	}
	if s.sidecar, err = program.Start(ctx, program.CleanEnv(), s.program, "serve", "-config", s.file()); err != nil {
		return nil, errors.Join(err, s.peers.Close())
	}
	stop = func() error { return errors.Join(s.sidecar.Stop(), s.peers.Close()) }
	if s.at, err = s.sidecar.Serving(); err != nil {
		return nil, errors.Join(err, stop())
	}
	s.peers.egress = s.at.Egress
	return stop, nil
}

// The configurations that take turns. Whichever is in force, exchanges end in the
// same way.
const (
	good   = "log: { level: info }\n"
	better = "log: { level: warn }\ncarriers: { tylo: [tylo.example.com] }\n"
	faulty = "log: { level: debug }\ncarriers: { tylo: [tylo example com] }\n"
)

// What is kept at most. Of links there may be twice as many for a while.
const (
	keptLinks    = 100_000
	keptHandoffs = 5000
)

func (s *stage) file() string  { return filepath.Join(s.dir, "etc", "wopproxy.yaml") }
func (s *stage) store() string { return filepath.Join(s.dir, "store") }

// configure replaces the file that the sidecar reads. What is remembered for long is
// bounded so that it is full within minutes: links, tasks, handoffs. An answer waits
// for its link as long as it takes: whoever has it may ask for it. The host makes
// calls that no run asked for, so that a call is not the only run's for certain.
func (s *stage) configure(turn string) error {
	ca := filepath.Join(s.dir, "ca.pem")
	next := s.file() + ".next"
	err := os.WriteFile(next, fmt.Appendf(nil, `
host: { id: %s, wellKnownUrl: "https://soak.example.com/.well-known/openwop" }
ingress: { listen: "127.0.0.1:0", upstream: "http://%s" }
egress:
  listen: "127.0.0.1:0"
  intercept: [%q]
  ca: { cert: %q, key: %q }
  roots: %q
admin: { listen: "127.0.0.1:0", pprof: true }
ancestry:
  store: { bolt: { dir: %q } }
  retention: { links: %d }
  auth: { mode: none }
  commitTimeout: 30s
attribution: { singleFlight: false }
tracing: { sample: 0.01 }
drain: { delay: 0s, timeout: 10s }
runs: { ttl: %v }
limits: { tasks: 20000, handoffs: %d }
%s`, hostID, s.peers.host, s.peers.toolsTLS, ca, ca, ca, s.store(), keptLinks, s.ttl(), keptHandoffs, turn), 0o600)
	return errors.Join(err, os.Rename(next, s.file()))
}

// ttl is when a run ends by its age. If it is quick none does: each has to end for a
// better reason.
func (s *stage) ttl() time.Duration {
	if s.quick {
		return time.Hour
	}
	return patience
}

// reconfigure has another configuration read every now and then until ctx ends,
// and leaves a good one.
func (s *stage) reconfigure(ctx context.Context) error {
	const (
		succeeded = "wopproxy_config_last_reload_successful"
		at        = "wopproxy_config_last_reload_success_timestamp_seconds"
	)
	for turn := 0; ; turn++ {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(s.reload):
		}
		before, err := program.Metrics(ctx, s.at.Admin)
		if err != nil {
			return ignore(ctx, err)
		}
		text := []string{better, faulty, good}[turn%3]
		if err := errors.Join(s.configure(text), s.sidecar.Signal(syscall.SIGHUP)); err != nil {
			return err
		}
		err = s.await(ctx, "the configuration is read", func(m map[string]float64) bool {
			if text == faulty {
				return m[succeeded] == 0
			}
			return m[succeeded] == 1 && m[at] > before[at]
		})
		if err != nil {
			return ignore(ctx, err)
		}
		s.reloads++
	}
}

// ignore leaves the errors out that come of an end.
func ignore(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// await asks for metrics until they are as wanted.
func (s *stage) await(ctx context.Context, what string, is func(map[string]float64) bool) error {
	for end := time.Now().Add(s.waits()); ; {
		m, err := program.Metrics(ctx, s.at.Admin)
		if err != nil {
			return err
		}
		if is(m) {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("not so after %v: %s", s.waits(), what)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// waits is how long what has to become so may take: longer than runs and idle
// connections last, where those are waited for.
func (s *stage) waits() time.Duration {
	if s.quick {
		return patience
	}
	return 2 * patience
}

// play lets the traffic pass.
func (s *stage) play(ctx context.Context, stderr io.Writer) (*result, error) {
	r := &result{began: time.Now()}
	// What is made once is there before it is counted.
	warm := s.caller(0)
	for _, k := range s.kinds {
		if k.share > 0 && !k.byAge {
			warm.play(k, s.numbers.Add(1))
		}
	}
	warm.drop()
	if err := s.settle(ctx, nil); err != nil {
		return nil, fmt.Errorf("before the traffic: %w", err)
	}
	var err error
	if r.before, err = s.look(ctx); err != nil {
		return nil, err
	}
	if err := s.traffic(ctx, r, stderr); err != nil {
		return nil, err
	}
	last, err := s.look(ctx)
	if err != nil {
		return nil, err
	}
	r.took = r.add(last).at
	r.unsettled = s.settle(ctx, &r.before)
	r.after, err = s.look(ctx)
	return r, err
}

// traffic lets the callers loose until there was enough, and takes samples.
func (s *stage) traffic(ctx context.Context, r *result, stderr io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var end <-chan time.Time
	if s.lasts > 0 {
		end = time.After(s.lasts)
	}
	var over atomic.Bool
	more := func() bool {
		return !over.Load() && (s.exchanges == 0 || s.scores.exchanges.Load() < s.exchanges) && s.scores.faults.Load() < tooMany
	}
	var callers sync.WaitGroup
	for i := range s.callers {
		callers.Go(func() { s.caller(uint64(i) + 1).work(more) })
	}
	reloading := make(chan error, 1)
	go func() { reloading <- s.reconfigure(ctx) }()
	done := make(chan struct{})
	go func() { callers.Wait(); close(done) }()
	tick := time.NewTicker(s.every)
	defer tick.Stop()
	interrupted := ctx.Done()
	var failed error
	for {
		select {
		case <-done:
			cancel()
			return errors.Join(failed, <-reloading)
		case <-interrupted:
			interrupted = nil
			over.Store(true)
		case <-end:
			over.Store(true)
		case failed = <-reloading:
			reloading <- nil
			over.Store(true)
		case <-tick.C:
			sm, err := s.look(ctx)
			if err != nil {
				failed = err
				over.Store(true)
				continue
			}
			sm = r.add(sm)
			fmt.Fprintf(stderr, "%7.0fs %10d exchanges, %5.0f a second, %.0f MiB\n", sm.at.Seconds(), sm.exchanges, sm.rate, sm.own)
		}
	}
}
