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

	mu    sync.Mutex
	known map[string]*destination
}

// destination is what is known of one whose TLS is to be opened.
type destination struct {
	// blind is when a client has last refused our certificate there, or spoken
	// TLS that we do not: it passes blind from then on, because a client that
	// accepts one certificate alone must not be cut off. Zero: it does not.
	blind  time.Time
	served bool // a request has come inside
	left   int  // clients in a row that went when they had seen our certificate
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

// Bounds on what is known. A destination that passes blind is tried again after
// a day. Some clients do not say that they refuse a certificate, but hang up: so
// many in a row are taken for a refusal.
const (
	maxKnown     = 10_000
	blindFor     = 24 * time.Hour
	maxLeft      = 3
	handshakeFor = 10 * time.Second
)

func newInterceptor(p *Proxy) *interceptor {
	i := &interceptor{p: p, known: map[string]*destination{}}
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
	d := i.known[target]
	if d == nil || d.blind.IsZero() {
		return true
	}
	if time.Since(d.blind) > blindFor {
		delete(i.known, target)
		return true
	}
	return false
}

// noteLocked returns what is known of target, to add to it.
func (i *interceptor) noteLocked(target string) *destination {
	d := i.known[target]
	if d != nil {
		return d
	}
	if len(i.known) >= maxKnown {
		for target := range i.known { // any one
			delete(i.known, target)
			break
		}
	}
	d = &destination{}
	i.known[target] = d
	return d
}

// leave lets the TLS to target pass blind from now on.
func (i *interceptor) leave(target, why string, err error) {
	i.p.o.Logger.Warn("TLS to a destination passes blind from now on", "peer", target, "why", why, "err", err)
	i.mu.Lock()
	defer i.mu.Unlock()
	i.noteLocked(target).blind = time.Now()
}

// served notes that a client has sent a request, so that it has come to terms
// with our certificate.
func (i *interceptor) served(target string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	d := i.noteLocked(target)
	d.served, d.left = true, 0
}

// left notes that a client has hung up on our certificate without a word: during
// the handshake, or behind it without a request. The latter counts only as long
// as no request has come, since pools of connections leave some of them unused.
func (i *interceptor) left(target string, during bool) {
	i.mu.Lock()
	d := i.noteLocked(target)
	if during || !d.served {
		d.left++
	}
	refused := d.left == maxLeft
	i.mu.Unlock()
	if refused {
		i.count(handshakeRefused)
		i.leave(target, "clients hang up when they have seen our certificate", nil)
	}
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
	host := t.name
	if name := conn.ConnectionState().ServerName; name != "" {
		_, port, _ := net.SplitHostPort(t.target)
		host = net.JoinHostPort(name, port)
	}
	tr := newTransport(t.reuse())
	tr.TLSClientConfig = t.tls()
	var used sync.Once
	t.serveHTTP(closingConn{conn, once.closed}, "https", host, tr, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		used.Do(func() { i.served(t.name) })
		exchange.ServeHTTP(w, r)
	}))
	used.Do(func() { i.left(t.name, false) })
}

// failed judges a handshake that came to nothing. Half a hello says nothing about
// our certificate. A client that answers it with an alert does not want it; an
// alert that OpenSSL sends under TLS 1.3 is not encrypted as crypto/tls expects,
// and looks like a broken record. One whose whole hello we have nothing to answer
// to may well be understood by its destination.
func (i *interceptor) failed(c *onceConn, err error) {
	_, network := errors.AsType[net.Error](err)
	switch {
	case isAlert(err) && c.hello:
		i.count(handshakeRefused)
		i.leave(c.target, "a client refuses our certificate", err)
	case !c.hello:
		i.count(handshakeFailed)
	case network, errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		i.count(handshakeFailed)
		i.left(c.target, true)
	default:
		i.count(handshakeFailed)
		i.leave(c.target, "a client speaks TLS that we do not", err)
	}
}

// isAlert reports whether the client has said that it hangs up, or what we can't
// tell from that.
func isAlert(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	return ok && (op.Op == "remote error" || op.Op == "local error")
}
