package proxy

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"math"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// client sends over HTTP/1.1 without TLS, in the goroutine of its caller, what can
// be written at once: requests that are short and at hand. All others are for
// http.Transport, whose two goroutines for each connection they need. Here those
// would cost 32 of some 190 allocations, and four changes of goroutine.
//
// It keeps to what http.Transport does: which requests are sent again, what
// becomes of a connection, how an answer is read.
type client struct {
	dial dialFunc

	mu    sync.Mutex
	idle  map[string][]*clientConn // by host:port, last used last
	n     int                      // of all of them
	sweep *time.Timer              // runs while there are any
	over  bool                     // nobody has asked for a connection since closeIdle
}

// Bounds of a client: those of newTransport, and of what is written at once. So
// much fits into the buffers of a connection, whether anybody reads it or not.
const (
	maxIdle       = 1024
	maxIdleToHost = 256
	idleTimeout   = 90 * time.Second
	maxAtOnce     = 16 << 10
	maxAnswerHead = 10 << 20
)

// takes reports whether r is for a client. Whatever about it is out of the
// ordinary is for http.Transport to judge.
func (c *client) takes(r *http.Request, atHand bool) bool {
	h := r.Header
	room := maxAtOnce - int64(len(r.URL.Path)+len(r.URL.RawQuery))
	if r.Body != nil {
		room -= r.ContentLength
	}
	return r.Method != http.MethodConnect && r.URL.Scheme == "http" && r.URL.Opaque == "" &&
		r.URL.Host != "" && plainHost(r.URL.Host) && plainHost(r.Host) &&
		(r.Body == nil || atHand && r.ContentLength > 0) && len(r.TransferEncoding) == 0 && len(r.Trailer) == 0 &&
		h["Upgrade"] == nil && h["Expect"] == nil && plainValues(h, room)
}

// plainHost reports whether a host is one that goes on the wire as it is.
func plainHost(host string) bool {
	for i := range len(host) {
		switch c := host[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '.', c == '-', c == '_', c == ':', c == '[', c == ']':
		default:
			return false
		}
	}
	return true
}

// plainValues reports whether no header has what would end it early, and all of
// them fit into so many bytes. Names come from a server that has checked them, or
// from us.
func plainValues(h http.Header, room int64) bool {
	for name, values := range h {
		for _, v := range values {
			room -= int64(len(name) + len(v))
			for i := range len(v) {
				if c := v[i]; c < ' ' && c != '\t' || c == 0x7f {
					return false
				}
			}
		}
	}
	return room >= 0
}

// send sends r and returns the answer, whose body has to be closed. A connection
// that turns out to be closed is replaced, if nothing has been written or the
// method is one that may be repeated.
func (c *client) send(r *http.Request, x *exchange) (*http.Response, error) {
	buf := requestBuffers.Get().(*bytes.Buffer)
	defer requestBuffers.Put(buf)
	buf.Reset()
	if err := writeRequest(buf, r); err != nil {
		return nil, err
	}
	key := authority(r.URL)
	for {
		conn, err := c.conn(r.Context(), key)
		if err != nil {
			return nil, err
		}
		resp, err := conn.exchange(buf.Bytes(), r, x)
		if err == nil {
			return resp, nil
		}
		_ = conn.Close()
		if r.Context().Err() != nil {
			return nil, context.Cause(r.Context())
		}
		if !conn.reused || conn.read || conn.wrote && !repeatable(r.Method) {
			return nil, err
		}
	}
}

func repeatable(method string) bool {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace:
		return true
	}
	return false
}

// requestBuffers hold requests until they are answered; none grows far beyond
// maxAtOnce.
var requestBuffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// writeRequest writes r as it goes on the wire, in the form that http.Transport
// gives it, but for the order of the headers: that is any, as in a map.
func writeRequest(b *bytes.Buffer, r *http.Request) error {
	host := r.Host
	if host == "" {
		host = r.URL.Host
	}
	line := func(parts ...string) {
		for _, s := range parts {
			b.WriteString(s)
		}
		b.WriteString("\r\n")
	}
	line(r.Method, " ", r.URL.RequestURI(), " HTTP/1.1")
	line("Host: ", host)
	for name, values := range r.Header {
		switch name {
		case "Host", "Content-Length", "Transfer-Encoding", "Trailer":
			continue
		case "User-Agent":
			if values = values[:min(len(values), 1)]; len(values) == 0 || values[0] == "" {
				continue
			}
		}
		for _, v := range values {
			line(name, ": ", strings.Trim(v, " \t"))
		}
	}
	empty := r.Body == nil
	if !empty || r.Method == http.MethodPost || r.Method == http.MethodPut || r.Method == http.MethodPatch {
		b.WriteString("Content-Length: ")
		length := int64(0)
		if !empty {
			length = r.ContentLength
		}
		b.Write(strconv.AppendInt(b.AvailableBuffer(), length, 10))
		b.WriteString("\r\n")
	}
	b.WriteString("\r\n")
	if empty {
		return nil
	}
	defer r.Body.Close()
	_, err := io.CopyN(b, r.Body, r.ContentLength)
	return err
}

// conn returns a connection to addr: the one that was used last of those that are
// still open, or a new one.
func (c *client) conn(ctx context.Context, addr string) (*clientConn, error) {
	for {
		conn := c.take(addr)
		if conn == nil {
			break
		}
		if conn.quiet() {
			conn.reused, conn.read, conn.wrote = true, false, false
			return conn, nil
		}
		_ = conn.Close()
	}
	nc, err := c.dial(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	return newClientConn(c, addr, nc), nil
}

func (c *client) take(addr string) *clientConn {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = false
	idle := c.idle[addr]
	if len(idle) == 0 {
		return nil
	}
	conn := idle[len(idle)-1]
	idle[len(idle)-1] = nil
	c.idle[addr] = idle[:len(idle)-1]
	c.n--
	return conn
}

// keep takes conn back, to be used again.
func (c *client) keep(conn *clientConn) {
	conn.reader(false)
	conn.since = time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	idle := c.idle[conn.addr]
	if c.over || c.n >= maxIdle || len(idle) >= maxIdleToHost || conn.raw == nil {
		_ = conn.Close()
		return
	}
	if c.idle == nil {
		c.idle = make(map[string][]*clientConn)
	}
	c.idle[conn.addr] = append(idle, conn)
	if c.n++; c.sweep == nil {
		c.sweep = time.AfterFunc(idleTimeout/6, c.sweepIdle)
	}
}

// sweepIdle closes the connections that nobody has used for long, and those that
// the other side has closed.
func (c *client) sweepIdle() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dropLocked(func(conn *clientConn) bool { return time.Since(conn.since) > idleTimeout || !conn.quiet() })
	c.sweep = nil
	if c.n > 0 {
		c.sweep = time.AfterFunc(idleTimeout/6, c.sweepIdle)
	}
}

// closeIdle closes what is not in use, and what is no longer, until somebody asks
// for a connection again.
func (c *client) closeIdle() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
	c.dropLocked(func(*clientConn) bool { return true })
}

func (c *client) dropLocked(over func(*clientConn) bool) {
	c.n = 0
	for addr, idle := range c.idle {
		idle = slices.DeleteFunc(idle, func(conn *clientConn) bool {
			end := over(conn)
			if end {
				_ = conn.Close()
			}
			return end
		})
		if c.idle[addr] = idle; len(idle) == 0 {
			delete(c.idle, addr)
		}
		c.n += len(idle)
	}
}

// clientConn is one connection of a client. It belongs to one request at a time.
type clientConn struct {
	net.Conn
	client *client
	addr   string
	raw    syscall.RawConn // nil: it can't be looked at, and is not used again
	since  time.Time       // the last use
	reused bool
	wrote  bool // something of the request was written
	read   bool // something of the answer was read
	left   int64
	r      *bufio.Reader // nil while idle

	peek   func(fd uintptr) bool
	silent bool // what peek found
	abort  func()
}

func newClientConn(c *client, addr string, nc net.Conn) *clientConn {
	conn := &clientConn{Conn: nc, client: c, addr: addr}
	if s, ok := nc.(syscall.Conn); ok && canPeek {
		conn.raw, _ = s.SyscallConn()
	}
	conn.peek = func(fd uintptr) bool { conn.silent = nothingToRead(fd); return true }
	conn.abort = func() { _ = nc.Close() }
	return conn
}

// quiet reports whether the other side has neither closed the connection nor said
// anything that nobody has asked for.
func (c *clientConn) quiet() bool {
	c.silent = false
	return c.raw.Read(c.peek) == nil && c.silent
}

// Read reads from the connection, of a head no more than is admitted.
func (c *clientConn) Read(b []byte) (int, error) {
	if c.left <= 0 {
		return 0, errLongHead
	}
	n, err := c.Conn.Read(b[:min(int64(len(b)), c.left)])
	c.left -= int64(n)
	c.read = c.read || n > 0
	return n, err
}

var errLongHead = errors.New("the head of the answer is longer than " + strconv.Itoa(maxAnswerHead) + " bytes")

// answerReaders read answers; idle connections have none.
var answerReaders = sync.Pool{New: func() any { return bufio.NewReader(nil) }}

// reader gives the connection a reader, or takes it back.
func (c *clientConn) reader(used bool) {
	if used {
		c.r = answerReaders.Get().(*bufio.Reader)
		c.r.Reset(c)
		return
	}
	c.r.Reset(nil)
	answerReaders.Put(c.r)
	c.r = nil
}

// exchange sends a request and reads the head of its answer. An answer that comes
// although the request could not be written counts.
func (c *clientConn) exchange(request []byte, r *http.Request, x *exchange) (*http.Response, error) {
	stop := context.AfterFunc(r.Context(), c.abort)
	n, writeErr := c.Write(request)
	c.wrote = n > 0
	if writeErr != nil && n == 0 {
		stop()
		return nil, writeErr
	}
	c.reader(true)
	resp, err := c.head(r, x)
	if err != nil {
		stop()
		if writeErr != nil {
			err = writeErr
		}
		return nil, err
	}
	c.left = math.MaxInt64
	body := &answerBody{Reader: resp.Body, conn: c, ctx: r.Context(), stop: stop}
	body.once = resp.Close || writeErr != nil || resp.StatusCode == http.StatusSwitchingProtocols
	if resp.Body == http.NoBody || r.Method == http.MethodHead || resp.ContentLength == 0 {
		body.end(true)
		resp.Body = http.NoBody
		return resp, nil
	}
	resp.Body = body
	return resp, nil
}

// head reads the head of the answer, behind those that only inform.
func (c *clientConn) head(r *http.Request, x *exchange) (*http.Response, error) {
	for {
		c.left = maxAnswerHead
		resp, err := http.ReadResponse(c.r, r)
		if err != nil {
			return nil, err
		}
		if resp.StatusCode/100 != 1 || resp.StatusCode == http.StatusSwitchingProtocols {
			return resp, nil
		}
		x.inform(resp.StatusCode, resp.Header)
	}
}

// answerBody is the body of an answer. At its end the connection is free for
// another request; closed before that, it is closed.
type answerBody struct {
	io.Reader
	conn *clientConn
	ctx  context.Context
	stop func() bool
	once bool // the connection is not used again
	over atomic.Bool
}

func (b *answerBody) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	switch {
	case errors.Is(err, io.EOF):
		b.end(true)
	case err != nil:
		if b.end(false); b.ctx.Err() != nil {
			err = context.Cause(b.ctx)
		}
	}
	return n, err
}

func (b *answerBody) Close() error {
	b.end(false)
	return nil
}

// end gives the connection back, or closes it, once.
func (b *answerBody) end(whole bool) {
	if b.over.Swap(true) {
		return
	}
	unwatched := b.stop()
	if whole && unwatched && !b.once && b.conn.r.Buffered() == 0 {
		b.conn.client.keep(b.conn)
		return
	}
	_ = b.conn.Close()
}
