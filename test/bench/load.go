package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// client holds one connection, and sends one request after the other on it.
type client struct {
	conn    net.Conn
	r       *bufio.Reader
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
	var d net.Dialer
	address := c.address
	switch c.way {
	case directly:
		address = u.plain.Addr().String()
	case directlyTLS:
		address = u.tls.Addr().String()
	}
	conn, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	cl := newClient(conn)
	if c.way == intercepted {
		if err := cl.connect(u.tls.Addr().String()); err != nil {
			return nil, errors.Join(err, conn.Close())
		}
	}
	if c.way == intercepted || c.way == directlyTLS {
		secure := tls.Client(conn, &tls.Config{RootCAs: roots, ServerName: "127.0.0.1", MinVersion: tls.VersionTLS12})
		if err := secure.HandshakeContext(ctx); err != nil {
			return nil, errors.Join(fmt.Errorf("TLS: %w", err), conn.Close())
		}
		cl.conn = secure
		cl.r.Reset(secure)
	}
	return cl, nil
}

func newClient(conn net.Conn) *client {
	return &client{conn: conn, r: bufio.NewReaderSize(conn, 16<<10)}
}

// connect opens a tunnel.
func (c *client) connect(to string) error {
	if _, err := fmt.Fprintf(c.conn, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", to, to); err != nil {
		return err
	}
	status, err := c.r.ReadSlice('\n')
	if err != nil || !bytes.HasPrefix(status, []byte("HTTP/1.")) || !bytes.HasPrefix(status[8:], []byte(" 200")) {
		return fmt.Errorf("CONNECT was answered %q (%w)", status, err)
	}
	for {
		line, err := c.r.ReadSlice('\n')
		if err != nil {
			return err
		}
		if len(bytes.TrimSpace(line)) == 0 {
			return nil
		}
	}
}

// takes makes the client send requests of one kind from now on.
func (c *client) takes(request []byte, k *traffic) {
	c.request, c.answer, c.agent = request, &k.answer, k.agent
	c.marks = marks(c.request)
}

// exchange sends one request and compares what comes back with what the
// upstream has sent. header, unless nil, is called with each line of the head.
func (c *client) exchange(n uint64, header func(line []byte)) error {
	for _, at := range c.marks {
		number(c.request[at:], n)
	}
	if _, err := c.conn.Write(c.request); err != nil {
		return err
	}
	if err := c.read(header); err != nil {
		return err
	}
	c.done.Add(1)
	if c.agent {
		c.calls++
	}
	return nil
}

var (
	okStatus         = []byte(" 200")
	chunkedHeader    = []byte("transfer-encoding: chunked")
	lengthHeader     = []byte("content-length:")
	errAnswerDiffers = errors.New("the answer is not what the upstream sent")
)

// read takes one answer.
func (c *client) read(header func(line []byte)) error {
	line, err := c.r.ReadSlice('\n')
	if err != nil {
		return err
	}
	if len(line) < 12 || !bytes.Equal(line[8:12], okStatus) {
		return fmt.Errorf("answered %q", bytes.TrimSpace(line))
	}
	length, chunked := -1, false
	for {
		if line, err = c.r.ReadSlice('\n'); err != nil {
			return err
		}
		if len(line) <= 2 {
			break
		}
		if header != nil {
			header(line)
		}
		if len(line) > len(lengthHeader) && bytes.EqualFold(line[:len(lengthHeader)], lengthHeader) {
			if length, err = strconv.Atoi(string(bytes.TrimSpace(line[len(lengthHeader):]))); err != nil {
				return err
			}
		}
		if len(line) >= len(chunkedHeader) && bytes.EqualFold(line[:len(chunkedHeader)], chunkedHeader) {
			chunked = true
		}
	}
	if !chunked {
		if length != len(c.answer.body) {
			return fmt.Errorf("%w: Content-Length %d, want %d", errAnswerDiffers, length, len(c.answer.body))
		}
		return c.compare(0, length)
	}
	return c.chunks()
}

// chunks compares a body that comes in chunks.
func (c *client) chunks() error {
	for at := 0; ; {
		line, err := c.r.ReadSlice('\n')
		if err != nil {
			return err
		}
		size, err := strconv.ParseInt(string(bytes.TrimSpace(line)), 16, 32)
		if err != nil {
			return err
		}
		if err := c.compare(at, int(size)); err != nil {
			return err
		}
		at += int(size)
		if _, err := c.r.Discard(2); err != nil {
			return err
		}
		if size == 0 {
			if at != len(c.answer.body) {
				return fmt.Errorf("%w: %d bytes, want %d", errAnswerDiffers, at, len(c.answer.body))
			}
			return nil
		}
	}
}

// compare reads n bytes, which have to be those of the answer from at on.
func (c *client) compare(at, n int) error {
	if at+n > len(c.answer.body) {
		return fmt.Errorf("%w: more than %d bytes", errAnswerDiffers, len(c.answer.body))
	}
	for n > 0 {
		if c.r.Buffered() == 0 {
			if _, err := c.r.Peek(1); err != nil {
				return err
			}
		}
		got, err := c.r.Peek(min(n, c.r.Buffered()))
		if err != nil {
			return err
		}
		if !c.answer.same(got, at) {
			return errAnswerDiffers
		}
		at, n = at+len(got), n-len(got)
		if _, err := c.r.Discard(len(got)); err != nil {
			return err
		}
	}
	return nil
}

// same reports whether got stands in the answer at this place, outside of the
// hole.
func (a *answer) same(got []byte, at int) bool {
	from, to := min(max(a.hole[0]-at, 0), len(got)), min(max(a.hole[1]-at, 0), len(got))
	return bytes.Equal(got[:from], a.body[at:at+from]) && bytes.Equal(got[to:], a.body[at+to:at+len(got)])
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
		err = errors.Join(err, c.conn.Close())
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
		_ = c.conn.SetDeadline(time.Now().Add(deadline))
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
// and memory is taken that is kept.
func (all crowd) warm() error {
	end := all.begin()
	for until := time.Now().Add(patience); all.done() < 2*int64(len(all)) && time.Now().Before(until); {
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
		_ = c.conn.SetDeadline(time.Now().Add(d + deadline))
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
