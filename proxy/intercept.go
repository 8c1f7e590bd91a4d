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
	// pinned are the destinations whose certificate a client has refused, with
	// the time of the last refusal. They pass blind from then on: a client that
	// accepts one certificate alone must not be cut off.
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

// refused notes that a client did not take our certificate for target.
func (i *interceptor) refused(target string, err error) {
	i.count(handshakeRefused)
	i.p.o.Logger.Warn("a client refuses our certificate; its TLS passes blind from now on", "peer", target, "err", err)
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
		// Half a hello, or a client that has gone, says nothing about our certificate.
		if isRemoteAlert(err) {
			i.refused(t.target, err)
		} else {
			i.count(handshakeFailed)
		}
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

// isRemoteAlert reports whether the client has said why it hangs up.
func isRemoteAlert(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	return ok && op.Op == "remote error" && !errors.Is(err, io.EOF)
}
