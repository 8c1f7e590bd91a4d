package main

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/wopproxy/wopproxy/test/internal/rawhttp"
)

// client sends one request after the other, and compares what comes back with what
// the upstream has sent.
type client struct {
	*rawhttp.Client
	request []byte
	marks   []int
	answer  *answer
	agent   bool         // MCP or A2A
	done    atomic.Int64 // exchanges
	calls   int64        // and those that were of an agent
}

// dial connects to a contender as its way wants it, and by CONNECT and TLS
// where it is to be opened.
func dial(ctx context.Context, c *contender, u *upstream, roots *x509.CertPool) (*client, error) {
	address := c.address
	switch c.way {
	case directly:
		address = u.plain
	case directlyTLS:
		address = u.tls
	}
	raw, err := rawhttp.Dial(ctx, address)
	if err != nil {
		return nil, err
	}
	if c.way == intercepted {
		err = raw.Connect(u.tls)
	}
	if err == nil && (c.way == intercepted || c.way == directlyTLS) {
		err = raw.Secure(ctx, roots)
	}
	if err != nil {
		return nil, errors.Join(err, raw.Close())
	}
	return &client{Client: raw}, nil
}

// takes makes the client send requests of one kind from now on.
func (c *client) takes(request []byte, k *traffic) {
	c.request, c.answer, c.agent = request, &k.answer, k.agent
	c.marks = rawhttp.Marks(c.request)
}

// exchange makes one. header, unless nil, is called with each line of the answer's
// head.
func (c *client) exchange(n uint64, header func(line []byte)) error {
	for _, at := range c.marks {
		rawhttp.Number(c.request[at:], n)
	}
	if err := c.Send(c.request); err != nil {
		return err
	}
	h, err := c.Head(header)
	if err != nil {
		return err
	}
	if h.Status != 200 {
		return fmt.Errorf("answered %q", c.Status())
	}
	if err := c.Body(h, &c.answer.Answer); err != nil {
		return err
	}
	c.done.Add(1)
	if c.agent {
		c.calls++
	}
	return nil
}

// numbers are of all requests: no two are of the same trace.
var numbers atomic.Uint64

// crowd is the clients of one contender.
type crowd []*client

func newCrowd(ctx context.Context, size int, c *contender, u *upstream, roots *x509.CertPool) (all crowd, err error) {
	for range size {
		cl, err := dial(ctx, c, u, roots)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("connection %d: %w", len(all)+1, err), all.close())
		}
		all = append(all, cl)
	}
	return all, nil
}

func (all crowd) close() (err error) {
	for _, c := range all {
		err = errors.Join(err, c.Close())
	}
	return err
}

// done is how many exchanges all clients have made.
func (all crowd) done() (n int64) {
	for _, c := range all {
		n += c.done.Load()
	}
	return n
}

// deadline bounds every exchange of a measurement.
const deadline = time.Minute

// begin lets every client make exchanges until the function that it returns is
// called, which returns the first fault.
func (all crowd) begin() (end func() error) {
	var stop atomic.Bool
	var tasks sync.WaitGroup
	var once sync.Once
	var fault error
	for _, c := range all {
		c.SetDeadline(time.Now().Add(deadline))
		tasks.Go(func() {
			for !stop.Load() {
				if err := c.exchange(numbers.Add(1), nil); err != nil {
					once.Do(func() { fault = err })
					stop.Store(true)
				}
			}
		})
	}
	return func() error {
		stop.Store(true)
		tasks.Wait()
		return fault
	}
}

// warm lets every client make a few exchanges, for which connections are opened
// and memory is taken that is kept. Some begin before others: hundreds of handshakes
// at a time would take a busy machine longer than a proxy waits for one of them.
func (all crowd) warm() error {
	for some := range slices.Chunk(all, 32) {
		if err := some.reach(int64(len(some))); err != nil {
			return err
		}
	}
	return all.reach(3 * int64(len(all)))
}

// reach lets every client make exchanges until they have made n, or patience is over.
func (all crowd) reach(n int64) error {
	end := all.begin()
	for until := time.Now().Add(patience); all.done() < n && time.Now().Before(until); {
		time.Sleep(time.Millisecond)
	}
	return end()
}

// paced makes exchanges at a fixed rate, whether earlier ones have ended or not,
// and returns how long each took from the moment at which it should have begun:
// one that has to wait for a connection waits at its own cost.
func (all crowd) paced(rate int, d time.Duration) (took []time.Duration, err error) {
	// One thread sleeps until an exchange is due, another reads the answers.
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	n := int(d.Seconds() * float64(rate))
	took = make([]time.Duration, n)
	type due struct {
		i  int
		at time.Time
	}
	idle := make(chan chan due, len(all))
	var once sync.Once
	var tasks sync.WaitGroup
	for _, c := range all {
		c.SetDeadline(time.Now().Add(d + deadline))
		turn := make(chan due, 1)
		tasks.Go(func() {
			for {
				idle <- turn
				next, ok := <-turn
				if !ok {
					return
				}
				e := c.exchange(numbers.Add(1), nil)
				took[next.i] = time.Since(next.at)
				if e != nil {
					once.Do(func() { err = e })
				}
			}
		})
	}
	began := time.Now().Add(time.Millisecond)
	for i := range n {
		at := began.Add(time.Duration(i) * time.Second / time.Duration(rate))
		sleepUntil(at)
		turn := <-idle
		turn <- due{i, at}
		runtime.Gosched() // to the client, before this thread sleeps
	}
	for range all {
		close(<-idle)
	}
	tasks.Wait()
	return took, err
}

// quantile of what is measured, between 0 and 1.
func quantile(took []time.Duration, q float64) time.Duration {
	sorted := slices.Sorted(slices.Values(took))
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}
