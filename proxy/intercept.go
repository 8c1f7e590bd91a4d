package proxy

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"time"
)

// interceptor opens the TLS of named destinations: the host is shown a
// certificate of our CA, and the destination's own is verified as strictly as
// the host would.
type interceptor struct {
	p      *Proxy
	config *tls.Config // shared by all connections, so that sessions resume

	mu sync.Mutex
	// pinned are the destinations whose certificate a client has refused, or to
	// which one speaks TLS that we do not, with the last time of it. They pass
	// blind from then on: a client that accepts one certificate alone must not be
	// cut off.
	pinned map[string]time.Time
}

// handshakeOutcome says how a handshake with a client went.
type handshakeOutcome string

const (
	handshakeIntercepted handshakeOutcome = "intercepted"
	handshakeRefused     handshakeOutcome = "refused" // the client does not take our certificate
	handshakeFailed      handshakeOutcome = "failed"  // it hung up, or speaks no TLS that we do
)

// count counts one handshake.
func (i *interceptor) count(o handshakeOutcome) {
	i.p.metrics.handshakes.WithLabelValues(string(o)).Inc()
}

// Bounds on pinned: a destination is tried again after a day.
const (
	maxPinned    = 10_000
	pinnedFor    = 24 * time.Hour
	handshakeFor = 10 * time.Second
)

func newInterceptor(p *Proxy) *interceptor {
	i := &interceptor{p: p, pinned: map[string]time.Time{}}
	i.config = &tls.Config{
		MinVersion: tls.VersionTLS12,
		NextProtos: []string{"h2", "http/1.1"},
		GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			hello.Conn.(*onceConn).hello = true
			return nil, nil // the same for all
		},
		GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
			return p.o.CA.certificate(serverName(hello))
		},
	}
	return i
}

// serverName is the name that the client wants to talk to. A client that dials
// an address sends none.
func serverName(hello *tls.ClientHelloInfo) string {
	if hello.ServerName != "" {
		return hello.ServerName
	}
	host, _, _ := net.SplitHostPort(hello.Conn.(*onceConn).target) // checked by connect
	return host
}

// wants reports whether the TLS of a tunnel to target shall be opened.
func (i *interceptor) wants(target string) bool {
	if !allows(i.p.policy.Load().Intercept, target, false) {
		return false
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	at, ok := i.pinned[target]
	if ok && time.Since(at) > pinnedFor {
		delete(i.pinned, target)
		return true
	}
	return !ok
}

// leave lets the TLS to target pass blind from now on.
func (i *interceptor) leave(target string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if len(i.pinned) >= maxPinned {
		for target := range i.pinned { // any one
			delete(i.pinned, target)
			break
		}
	}
	i.pinned[target] = time.Now()
}

// serveTLS speaks TLS with the client in the destination's name, and serves
// what is inside.
func (t *tunnel) serveTLS(client *bufio.Reader, exchange http.Handler) {
	i := t.intercept
	once := t.onceConn(client)
	conn := tls.Server(once.Conn, i.config)
	ctx, cancel := context.WithTimeout(context.Background(), handshakeFor)
	defer cancel()
	if err := conn.HandshakeContext(ctx); err != nil {
		i.failed(once.Conn.(*onceConn), err)
		return
	}
	i.count(handshakeIntercepted)
	host := t.target
	if name := conn.ConnectionState().ServerName; name != "" {
		_, port, _ := net.SplitHostPort(t.target)
		host = net.JoinHostPort(name, port)
	}
	tr := newTransport(t.reuse())
	tr.TLSClientConfig = t.tls()
	t.serveHTTP(closingConn{conn, once.closed}, "https", host, tr, exchange)
}

// failed judges a handshake that came to nothing. Half a hello, or a client that
// has gone, says nothing about our certificate; a client that hangs up with an
// alert does not want it, and one whose whole hello we have nothing to answer to
// may well be understood by its destination.
func (i *interceptor) failed(c *onceConn, err error) {
	_, network := errors.AsType[net.Error](err)
	gone := network || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
	switch {
	case isRemoteAlert(err):
		i.count(handshakeRefused)
		i.p.o.Logger.Warn("a client refuses our certificate; its TLS passes blind from now on", "peer", c.target, "err", err)
		i.leave(c.target)
	case c.hello && !gone:
		i.count(handshakeFailed)
		i.p.o.Logger.Warn("a client speaks TLS that we do not; it passes blind from now on", "peer", c.target, "err", err)
		i.leave(c.target)
	default:
		i.count(handshakeFailed)
	}
}

// isRemoteAlert reports whether the client has said why it hangs up.
func isRemoteAlert(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	return ok && op.Op == "remote error"
}
