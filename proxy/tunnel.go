package proxy

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/wopproxy/wopproxy/ancestry"
)

// tunnels knows every tunnel that is open. http.Server forgets a connection once
// it is hijacked, and never knew one that was redirected, so the drain must count
// them itself.
type tunnels struct {
	mu    sync.Mutex
	open  map[*tunnel]struct{}
	limit int
	empty chan struct{} // non-nil while a drain waits; closed with the last tunnel
}

// tunnel is one open tunnel: by CONNECT, or of a redirected connection.
type tunnel struct {
	set      *tunnels
	target   string         // host:port of the CONNECT request, or where the connection was to go
	name     string         // target as rules know it: by the name that TLS asks for, if that is all there is
	run      ancestry.RunID // from the credential of the CONNECT request, if any
	client   net.Conn
	upstream net.Conn
	dial     dialFunc // for connections beyond upstream

	redirected direction // the way of a redirected connection; empty: it was opened by CONNECT

	maxHeader int // bytes of a request inside

	roots     *x509.CertPool // whom certificates must lead to; nil: the system's
	intercept *interceptor   // nil: TLS passes blind

	mu     sync.Mutex
	quiet  bool            // nobody has spoken yet
	ending bool            // a drain wants it to end
	cut    bool            // closed
	server *http.Server    // once the tunnel is known to carry HTTP
	names  map[string]bool // what was claimed of target, and whether it counts

	lookedUp time.Duration // for that
}

// add reports false when there are too many.
func (s *tunnels) add(t *tunnel) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.open) >= s.limit {
		return false
	}
	if s.open == nil {
		s.open = make(map[*tunnel]struct{})
	}
	s.open[t] = struct{}{}
	return true
}

func (s *tunnels) remove(t *tunnel) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, t)
	if s.empty != nil && len(s.open) == 0 {
		close(s.empty)
		s.empty = nil
	}
}

func (s *tunnels) len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.open)
}

// drain waits until the last tunnel is closed. Tunnels that carry HTTP are
// asked to finish what is in flight; blind ones may go on until ctx ends, when
// whatever is left is cut.
func (s *tunnels) drain(ctx context.Context) error {
	s.mu.Lock()
	if len(s.open) == 0 {
		s.mu.Unlock()
		return nil
	}
	empty := make(chan struct{})
	s.empty = empty
	for t := range s.open {
		go t.finish(ctx) // ends with ctx
	}
	s.mu.Unlock()
	select {
	case <-empty:
		return nil
	case <-ctx.Done():
	}
	s.mu.Lock()
	cut := len(s.open)
	for t := range s.open {
		t.abort()
	}
	s.mu.Unlock()
	if cut == 0 {
		return nil
	}
	return errors.New("drain: tunnels were still open and have been cut")
}

// finish lets the HTTP exchanges inside t end and takes no new ones. A tunnel
// in which nobody has spoken is closed.
func (t *tunnel) finish(ctx context.Context) {
	t.mu.Lock()
	t.ending = true
	srv, quiet := t.server, t.quiet
	t.mu.Unlock()
	switch {
	case srv != nil:
		_ = srv.Shutdown(ctx) // drain reports what is left
	case quiet:
		t.close()
	}
}

// attach adds a side to the tunnel. It reports false when the tunnel has been
// closed meanwhile, and then closes that side, too.
func (t *tunnel) attach(side *net.Conn, c net.Conn) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.cut {
		_ = c.Close()
		return false
	}
	*side = c
	return true
}

// close closes the sides that are there, and keeps others from being attached.
func (t *tunnel) close() { t.end(func(c net.Conn) { _ = c.Close() }) }

// abort does the same to a tunnel that breaks off.
func (t *tunnel) abort() { t.end(func(c net.Conn) { reset(c, c) }) }

func (t *tunnel) end(side func(net.Conn)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.cut = true
	for _, c := range []net.Conn{t.client, t.upstream} {
		if c != nil {
			side(c)
		}
	}
}

// serve runs the tunnel to its end. exchange handles a request found inside.
func (t *tunnel) serve(exchange http.Handler, opened func(tunnelKind)) {
	defer t.set.remove(t)
	defer t.close()
	client := bufio.NewReaderSize(t.client, t.ahead())
	t.mu.Lock()
	t.quiet = true
	ending := t.ending
	t.mu.Unlock()
	if ending {
		return // the drain has met it before it was quiet
	}
	kind, early, err := sniff(client, t.client, t.upstream)
	if err != nil {
		if !errors.Is(err, io.EOF) {
			t.abort()
		}
		return
	}
	t.mu.Lock()
	t.quiet = false
	t.mu.Unlock()
	t.name = t.target
	if t.redirected != "" {
		kind = t.asRedirected(kind, client)
	}
	opened(kind)
	switch kind {
	case tunnelHTTP1, tunnelH2C:
		if len(early) > 0 && !t.attach(&t.upstream, &earlyConn{t.upstream, bufio.NewReader(io.MultiReader(bytes.NewReader(early), t.upstream))}) {
			return
		}
		t.serveHTTP(t.onceConn(client), "http", t.target, t.transport(kind), exchange)
	case tunnelTLS:
		if t.intercept == nil || !t.intercept.wants(t.name) {
			t.pipe(client, early)
			return
		}
		t.serveTLS(client, exchange)
	default:
		t.pipe(client, early)
	}
}

// pipe passes bytes both ways.
func (t *tunnel) pipe(client *bufio.Reader, early []byte) {
	said, _ := client.Peek(client.Buffered())
	j := &joint{
		client:   joined{ReadWriteCloser: t.client, conn: t.client, said: said},
		upstream: joined{ReadWriteCloser: t.upstream, conn: t.upstream, said: early},
	}
	j.pass()
}

// serveHTTP serves the requests inside the tunnel until the client hangs up.
// They leave through the tunnel's own upstream connection, so that whoever
// counts on one connection being one peer still may.
func (t *tunnel) serveHTTP(conn closingConn, scheme, host string, tr *http.Transport, exchange http.Handler) {
	defer tr.CloseIdleConnections()
	srv := &http.Server{
		Protocols:         new(http.Protocols),
		ReadHeaderTimeout: time.Minute,
		MaxHeaderBytes:    t.maxHeader,
		BaseContext: func(net.Listener) context.Context {
			return context.WithValue(context.Background(), tunnelKey{}, &inTunnel{t, sendBy{tr}})
		},
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			r.URL.Scheme, r.URL.Host = scheme, host
			if t.redirected == egress && scheme == "http" {
				r.URL.Host = claimed(r, t.target)
			}
			exchange.ServeHTTP(w, r)
		}),
		HTTP2:    &http.HTTP2Config{MaxConcurrentStreams: MaxStreams},
		ErrorLog: discardLog,
	}
	srv.Protocols.SetHTTP1(true)
	srv.Protocols.SetHTTP2(true)
	srv.Protocols.SetUnencryptedHTTP2(true)
	t.mu.Lock()
	t.server = srv
	if t.ending {
		srv.SetKeepAlivesEnabled(false) // the request that is there already, and no other
	}
	t.mu.Unlock()
	ln := &onceListener{conn: conn, closed: make(chan struct{})}
	_ = srv.Serve(ln) // ends when conn is closed, or at once by Shutdown
	if ln.accepted {
		<-conn.closed
	}
}

// closingConn is a connection to serve, and what tells when it is closed.
type closingConn struct {
	net.Conn
	closed <-chan struct{}
}

// onceConn returns the client's side, from which some bytes may have been read
// ahead.
func (t *tunnel) onceConn(client *bufio.Reader) closingConn {
	closed := make(chan struct{})
	return closingConn{&onceConn{Conn: t.client, r: client, target: t.name, closed: closed}, closed}
}

// tunnelKey is the context key of *inTunnel.
type tunnelKey struct{}

// inTunnel is what a request found in a tunnel takes from it.
type inTunnel struct {
	*tunnel
	rt sender
}

// transport returns a Transport for what was found in the clear.
func (t *tunnel) transport(kind tunnelKind) *http.Transport {
	tr := newTransport(t.reuse())
	tr.TLSClientConfig = t.tls() // where TLS is originated
	tr.Protocols = new(http.Protocols)
	tr.Protocols.SetHTTP1(kind == tunnelHTTP1)
	tr.Protocols.SetUnencryptedHTTP2(kind == tunnelH2C)
	if kind == tunnelH2C {
		tr.Protocols.SetHTTP2(true)
		// Streams that begin at once share the connection, instead of each opening
		// one while the first is not yet known to speak HTTP/2.
		tr.MaxConnsPerHost = 1
	}
	return tr
}

// tls says whom a destination's certificate must lead to.
func (t *tunnel) tls() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: t.roots}
}

// reuse returns a dial function that gives out the connection which is open
// already before it opens others to the same target. Where TLS is originated the
// port may be another than the client has asked for.
func (t *tunnel) reuse() dialFunc {
	ready := make(chan net.Conn, 1)
	ready <- t.upstream
	host, port, _ := net.SplitHostPort(t.target) // checked by connect, or of the kernel's
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		if _, other, err := net.SplitHostPort(addr); err == nil && other != port {
			return t.dial(ctx, network, net.JoinHostPort(host, other)) // whatever a request claims
		}
		select {
		case c := <-ready:
			return c, nil
		default:
			return t.dial(ctx, network, t.target)
		}
	}
}

// onceConn is a connection whose first bytes were looked at already, and which
// tells when it is closed.
type onceConn struct {
	net.Conn
	r      *bufio.Reader
	target string // host:port that the client asked for
	hello  bool   // a whole hello of TLS has come
	once   sync.Once
	closed chan struct{}
}

func (c *onceConn) Read(b []byte) (int, error) { return c.r.Read(b) }

// NetConn returns the connection itself.
func (c *onceConn) NetConn() net.Conn { return c.Conn }

func (c *onceConn) Close() error {
	err := c.Conn.Close()
	c.once.Do(func() { close(c.closed) })
	return err
}

// onceListener accepts one connection and ends with it, or when it is closed.
type onceListener struct {
	conn     closingConn
	accepted bool // Accept is called by one goroutine only
	once     sync.Once
	closed   chan struct{}
}

func (l *onceListener) Accept() (net.Conn, error) {
	if !l.accepted {
		l.accepted = true
		return l.conn.Conn, nil // itself: the server looks for *tls.Conn
	}
	select {
	case <-l.conn.closed:
	case <-l.closed:
	}
	return nil, net.ErrClosed
}

// Close unblocks Accept: Shutdown waits for that before it closes connections
// that idle. The connection goes on until it does.
func (l *onceListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *onceListener) Addr() net.Addr { return l.conn.LocalAddr() }
