package proxy

import (
	"bufio"
	"errors"
	"net"
	"net/http"
	"net/textproto"
	"strings"
	"sync"
)

// hijackWriter is what goproxy is given for CONNECT: it hands over the connection
// together with what the client has sent already, which goproxy would lose.
type hijackWriter struct{ http.ResponseWriter }

func (w hijackWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err == nil && rw.Reader.Buffered() > 0 {
		conn = &earlyConn{conn, rw.Reader}
	}
	return conn, rw, err
}

// earlyConn is a connection from which some bytes were read ahead.
type earlyConn struct {
	net.Conn
	r *bufio.Reader
}

func (c *earlyConn) Read(b []byte) (int, error) { return c.r.Read(b) }

// NetConn returns the connection itself.
func (c *earlyConn) NetConn() net.Conn { return c.Conn }

// CloseWrite keeps half-open connections half open.
func (c *earlyConn) CloseWrite() error {
	closeWrite(c.Conn)
	return nil
}

// bufferPool lends buffers for copying.
type bufferPool struct{ pool sync.Pool }

var copyBuffers = bufferPool{sync.Pool{New: func() any { return new([32 << 10]byte) }}}

func (b *bufferPool) Get() []byte    { return b.pool.Get().(*[32 << 10]byte)[:] }
func (b *bufferPool) Put(buf []byte) { b.pool.Put((*[32 << 10]byte)(buf)) }

// errNotAbsolute refuses a base path without a destination.
var errNotAbsolute = errors.New("no absolute http or https URL behind /_run/<runId>/")

// hopByHop are the headers that end with a connection, but for those of upgrades.
var hopByHop = []string{"Keep-Alive", "Proxy-Connection", "Proxy-Authenticate", "Proxy-Authorization", "Te", "Trailer", "Transfer-Encoding"}

// removeHopByHop removes what must not travel on from a request, the headers
// that Connection names included. The one value of TE that says something end to
// end, trailers, stays: gRPC needs it.
func removeHopByHop(h http.Header) {
	trailers := h["Te"] != nil && strings.Contains(strings.Join(h["Te"], ","), "trailers")
	upgrade := upgradeOf(h)
	removeNamed(h)
	for _, name := range hopByHop {
		delete(h, name)
	}
	delete(h, "Connection")
	delete(h, "Upgrade")
	if trailers {
		h["Te"] = []string{"trailers"}
	}
	if upgrade != "" {
		h["Connection"], h["Upgrade"] = []string{"Upgrade"}, []string{upgrade}
	}
}

// removeHopByHopOfAnswer does the same for a response, but for what a proxy may
// say of itself.
func removeHopByHopOfAnswer(h http.Header) {
	removeNamed(h)
	for _, name := range hopByHop {
		if name != "Proxy-Authenticate" {
			delete(h, name)
		}
	}
	delete(h, "Connection")
	delete(h, "Upgrade")
}

// removeNamed removes the headers that Connection names.
func removeNamed(h http.Header) {
	for _, v := range h["Connection"] {
		for name := range strings.SplitSeq(v, ",") {
			if name = textproto.CanonicalMIMEHeaderKey(strings.TrimSpace(name)); name != "" {
				delete(h, name)
			}
		}
	}
}

// upgradeOf is the protocol that a message asks to speak from now on, or agrees
// to. HTTP/2 does not count: that is between neighbours, who know it without
// asking.
func upgradeOf(h http.Header) string {
	if h["Upgrade"] == nil {
		return ""
	}
	to := h.Get("Upgrade")
	for _, v := range h["Connection"] {
		for token := range strings.SplitSeq(v, ",") {
			if strings.EqualFold(strings.TrimSpace(token), "upgrade") && !strings.EqualFold(to, "h2c") {
				return to
			}
		}
	}
	return ""
}
