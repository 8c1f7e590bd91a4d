package proxy

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"net/textproto"
	"strings"
	"sync"
)

// flushingWriter copies an answer to the client as it comes. goproxy flushes
// event streams only, and hands other bodies to net/http's own ReadFrom, which
// costs an allocation and a system call more for each.
type flushingWriter struct {
	http.ResponseWriter
	x     *exchange // nil for CONNECT
	taken net.Conn  // by an upgrade
}

// WriteHeader sends the head of a stream at once: its first byte may be hours
// away, and the client may say nothing before it. An answer without a body is
// not flushed, or the trailers-only answers of gRPC would lose their status.
func (w *flushingWriter) WriteHeader(status int) {
	w.ResponseWriter.WriteHeader(status)
	if w.x != nil && w.x.open {
		w.Flush()
	}
}

// Write notes what could not be handed on.
func (w *flushingWriter) Write(b []byte) (int, error) {
	n, err := w.ResponseWriter.Write(b)
	if err != nil && w.x != nil {
		w.x.undelivered = true
	}
	return n, err
}

// ReadFrom flushes after each read when the length is not known: it is a stream
// then, for all we know.
func (w *flushingWriter) ReadFrom(src io.Reader) (n int64, err error) {
	buf := copyBuffers.Get()
	defer copyBuffers.Put(buf)
	stream := w.Header().Get("Content-Length") == ""
	for {
		got, readErr := src.Read(buf)
		if got > 0 {
			wrote, err := w.Write(buf[:got])
			n += int64(wrote)
			if err != nil {
				return n, err
			}
			if stream {
				w.Flush()
			}
		}
		if readErr == io.EOF {
			return n, nil
		}
		if readErr != nil {
			return n, readErr
		}
	}
}

// Flush sends what is buffered.
func (w *flushingWriter) Flush() { _ = http.NewResponseController(w.ResponseWriter).Flush() }

// Unwrap is for http.ResponseController.
func (w *flushingWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Hijack hands over the connection together with what the client has sent
// already, which goproxy and ReverseProxy would lose.
func (w *flushingWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	w.taken = conn
	if rw.Reader.Buffered() > 0 {
		// Who looks into rw as well, as goproxy does for upgrades, must not find
		// the same bytes a second time.
		conn = &earlyConn{conn, rw.Reader}
		rw = bufio.NewReadWriter(bufio.NewReader(conn), rw.Writer)
	}
	return conn, rw, nil
}

// earlyConn is a connection from which some bytes were read ahead.
type earlyConn struct {
	net.Conn
	r *bufio.Reader
}

func (c *earlyConn) Read(b []byte) (int, error) { return c.r.Read(b) }

// CloseWrite keeps half-open connections half open.
func (c *earlyConn) CloseWrite() error {
	closeWrite(c.Conn)
	return nil
}

// bufferPool lends buffers for copying; *bufferPool is an httputil.BufferPool.
type bufferPool struct{ pool sync.Pool }

var copyBuffers = bufferPool{sync.Pool{New: func() any { return new([32 << 10]byte) }}}

func (b *bufferPool) Get() []byte    { return b.pool.Get().(*[32 << 10]byte)[:] }
func (b *bufferPool) Put(buf []byte) { b.pool.Put((*[32 << 10]byte)(buf)) }

// errNotAbsolute refuses a base path without a destination.
var errNotAbsolute = errors.New("no absolute http or https URL behind /_run/<runId>/")

// hopByHop are the headers that end with a connection. Upgrade and Connection
// itself are goproxy's to judge.
var hopByHop = []string{"Keep-Alive", "Proxy-Connection", "Proxy-Authenticate", "Proxy-Authorization", "Te", "Trailer", "Transfer-Encoding"}

// removeHopByHop removes what must not travel on from a request, the headers
// that Connection names included: goproxy would remove Connection alone. The
// one value of TE that says something end to end, trailers, stays: gRPC needs
// it.
func removeHopByHop(h http.Header) {
	trailers := h["Te"] != nil && strings.Contains(strings.Join(h["Te"], ","), "trailers")
	upgrade := isUpgrade(h)
	removeNamed(h, upgrade)
	for _, name := range hopByHop {
		delete(h, name)
	}
	if trailers {
		h["Te"] = []string{"trailers"}
	}
	if !upgrade {
		delete(h, "Upgrade")
		delete(h, "Connection")
	}
}

// removeHopByHopOfAnswer does the same for a response.
func removeHopByHopOfAnswer(resp *http.Response) {
	if resp.StatusCode == http.StatusSwitchingProtocols {
		return
	}
	removeNamed(resp.Header, false)
	for _, name := range hopByHop {
		if name != "Proxy-Authenticate" {
			delete(resp.Header, name)
		}
	}
	delete(resp.Header, "Connection")
	delete(resp.Header, "Upgrade")
}

// removeNamed removes the headers that Connection names.
func removeNamed(h http.Header, upgrade bool) {
	for _, v := range h["Connection"] {
		for name := range strings.SplitSeq(v, ",") {
			name = textproto.CanonicalMIMEHeaderKey(strings.TrimSpace(name))
			if name != "" && (!upgrade || name != "Upgrade") {
				delete(h, name)
			}
		}
	}
}

// isUpgrade reports whether a request asks for a WebSocket, the one upgrade
// that goproxy passes on.
func isUpgrade(h http.Header) bool {
	return strings.EqualFold(h.Get("Upgrade"), "websocket")
}
