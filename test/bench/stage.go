package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"time"

	"github.com/wopproxy/wopproxy/test/internal/program"
	"github.com/wopproxy/wopproxy/test/internal/rawhttp"
)

// stage is all that is measured, and what it is measured with.
type stage struct {
	options
	cores     cores
	dir       string
	ca        string // a file
	program   string // the wopproxy
	authority *rawhttp.Authority
	upstream  *upstream
	present   []*contender // that could be started
	stderr    io.Writer
}

// set builds and starts everything. What it returns stops all.
func (s *stage) set(ctx context.Context) (stop func() error, err error) {
	var stops []func() error
	stop = func() (err error) {
		for _, f := range slices.Backward(stops) {
			err = errors.Join(err, f())
		}
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, stop())
		}
	}()
	if s.dir, err = os.MkdirTemp("", "wopproxy-bench-"); err != nil {
		return nil, err
	}
	stops = append(stops, func() error { return os.RemoveAll(s.dir) })
	if s.profiles != "" {
		if err := os.MkdirAll(s.profiles, 0o700); err != nil {
			return nil, err
		}
	}
	if s.program = s.options.program; s.program == "" {
		s.program = filepath.Join(s.dir, "wopproxy")
		if err := program.Build(ctx, s.program, s.stderr); err != nil {
			return nil, err
		}
	}
	s.ca = filepath.Join(s.dir, "ca.pem")
	if s.authority, err = rawhttp.NewAuthority(s.ca); err != nil {
		return nil, err
	}
	cert, err := s.authority.Issue()
	if err != nil {
		return nil, err
	}
	if s.upstream, err = newUpstream(cert, s.think); err != nil {
		return nil, err
	}
	stops = append(stops, s.upstream.Close)
	var missing string
	if s.cores, missing = findCores(); missing != "" {
		fmt.Fprintln(s.stderr, missing)
	} else if err := s.cores.withdraw(); err != nil {
		return nil, fmt.Errorf("taskset: %w", err)
	}
	runtime.GOMAXPROCS(1)
	debug.SetGCPercent(400) // the clients' processor is for clients
	return stop, s.startAll(ctx, &stops)
}

// startAll starts the contenders that are installed.
func (s *stage) startAll(ctx context.Context, stops *[]func() error) error {
	for _, c := range s.contenders {
		if c.start != nil {
			err := c.start(ctx, s, c)
			*stops = append(*stops, c.stop)
			if errors.Is(err, errMissing) && !s.all {
				fmt.Fprintln(s.stderr, "left out:", err)
				continue
			}
			if err != nil {
				return fmt.Errorf("start %s: %w", c.name, err)
			}
		}
		s.present = append(s.present, c)
	}
	for _, c := range s.present {
		if err := c.rest(ctx); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
	}
	return nil
}

// play measures everything, round by round: in every second one in the opposite
// order, so that a machine that grows slower is unfair to nobody.
func (s *stage) play(ctx context.Context, t *table) error {
	began := time.Now()
	for _, size := range s.connections {
		for round := range s.rounds {
			if spent := time.Since(began); round > 0 && s.budget > 0 && spent+spent/time.Duration(round) > s.budget {
				fmt.Fprintln(s.stderr, "no more rounds: there is no time for another")
				break
			}
			order := slices.Clone(s.present)
			if round%2 == 1 {
				slices.Reverse(order)
			}
			for _, c := range order {
				if ctx.Err() != nil {
					return ctx.Err()
				}
				if err := s.turn(ctx, t, c, size, round); err != nil {
					return fmt.Errorf("%s, %d connections: %w", c.name, size, err)
				}
			}
			fmt.Fprintf(s.stderr, "%3d connections, round %d of %d: %5.1fs\n", size, round+1, s.rounds, time.Since(began).Seconds())
		}
	}
	return nil
}

// turn is one contender's part of a round.
func (s *stage) turn(ctx context.Context, t *table, c *contender, size, round int) error {
	all, err := newCrowd(ctx, size, c, s.upstream, s.authority.Pool)
	if err != nil {
		return err
	}
	defer all.close()
	for i, k := range s.kinds {
		s.prepare(c, k, all)
		if i == 0 {
			if err := all.warm(); err != nil {
				return fmt.Errorf("%s: %w", k.name, err)
			}
		}
		if s.think > 0 {
			if err := s.ponder(t, c, k, all, round); err != nil {
				return fmt.Errorf("%s at %d/s: %w", k.name, thinkRate, err)
			}
			continue
		}
		f, err := s.measure(ctx, c, k, all)
		if err != nil {
			return fmt.Errorf("%s: %w", k.name, err)
		}
		t.add(c, k, size, f)
		// What can't take the rate has no latency at it, but a queue.
		if size == s.latencyAt && k.name == latencyKind && f.rate > 1.2*latencyRate {
			took, err := all.paced(latencyRate, s.paced)
			if err != nil {
				return fmt.Errorf("%s at %d/s: %w", k.name, latencyRate, err)
			}
			t.delays[round][c] = delay{quantile(took, 0.5), quantile(took, 0.99)}
		}
	}
	for _, cl := range all {
		c.calls += cl.calls
	}
	return nil
}

// prepare gives each client its request. Those of a host's own calls are of its
// live runs, in turn.
func (s *stage) prepare(c *contender, k traffic, all crowd) {
	for i, cl := range all {
		run := ""
		if len(c.runs) > 0 {
			run = c.runs[i%len(c.runs)]
		}
		cl.takes(k.request(c, s.address(c), run), &k)
	}
}

// Latency is measured of one kind of traffic, at one rate.
const (
	latencyKind = "mcp1k"
	latencyRate = 1000 // a second
)

// address is the upstream's, as a contender's requests name it.
func (s *stage) address(c *contender) string {
	if c.way == intercepted || c.way == directlyTLS {
		return s.upstream.tls
	}
	return s.upstream.plain
}

// figures are what one measurement has found.
type figures struct {
	cpu      time.Duration // of an exchange
	rate     float64       // exchanges a second
	allocs   float64       // of an exchange; 0: unknown
	resident int64         // bytes
}

// measure lets the clients loose, and sees what it costs.
func (s *stage) measure(ctx context.Context, c *contender, k traffic, all crowd) (f figures, err error) {
	allocated, err := c.allocations(ctx)
	if err != nil {
		return f, err
	}
	kind := s.upstream.kinds[k.path]
	seen, before := kind.tell(), all.done()
	end := all.begin()
	time.Sleep(s.window / 4)
	profiled := s.profile(ctx, c, k, len(all))
	f, err = s.look(c, all)
	if err := errors.Join(profiled(), end(), err); err != nil {
		return f, err
	}
	done := all.done() - before
	after, err := c.allocations(ctx)
	if err != nil {
		return f, err
	}
	f.allocs = (after - allocated - c.scrape) / float64(done)
	return f, kind.tell().minus(seen).check(c, k, done)
}

// atLeast is how often each client has to have been answered, or a slow proxy
// would be judged by answers that were half made before.
const atLeast = 1

// look measures for a window, or longer if that is not enough.
func (s *stage) look(c *contender, all crowd) (f figures, err error) {
	pids, used, err := c.used()
	if err != nil {
		return f, err
	}
	began, before := time.Now(), all.done()
	for end := began.Add(s.window); time.Now().Before(end) || all.done()-before < int64(atLeast*len(all)); {
		time.Sleep(min(s.window, max(time.Until(end), 10*time.Millisecond)))
		if time.Since(began) > deadline/2 {
			break
		}
	}
	done, took := float64(all.done()-before), time.Since(began)
	if done == 0 {
		return f, fmt.Errorf("not one answer in %v", took)
	}
	after, err := cpu(pids)
	if err != nil {
		return f, err
	}
	f.cpu = time.Duration(float64(after.since(used)) / done)
	f.rate = done / took.Seconds()
	f.resident, err = resident(pids)
	return f, err
}
