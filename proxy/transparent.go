package proxy

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"
)

// In transparent mode the kernel leads connections here that were meant for
// others, and tells where they were to go (see package redirect). That address is
// where they go on to, whatever is said inside: a name that a request claims to be
// for is never dialled. Rules that go by name believe it where somebody else
// answers for it: for TLS the certificate, for the rest the name servers.

// redirectOutcome says what became of a redirected connection.
type redirectOutcome string

const (
	redirectTaken       redirectOutcome = "taken"
	redirectDirect      redirectOutcome = "direct"      // nobody has redirected it: it was meant for us
	redirectLoop        redirectOutcome = "loop"        // it is one of our own
	redirectRefused     redirectOutcome = "refused"     // by a rule or a bound of ours
	redirectUnreachable redirectOutcome = "unreachable" // where it was to go took no connection
)

// RedirectedIngress returns a listener for connections into the host that the
// kernel has redirected to ln. Accept gives those to the port of
// Options.Upstream, or to where Ingress listens, for a server of h, which leads to
// Ingress. The others, to further ports of the host, go where they were meant to,
// and what they have of HTTP is given to h here. What was meant for another address
// than this machine's is refused: who shares a link with it can send it such.
func (p *Proxy) RedirectedIngress(ln net.Listener, h http.Handler) net.Listener {
	dial := (&net.Dialer{Timeout: dialTimeout, KeepAlive: 30 * time.Second}).DialContext
	own := upstreamPort(p.o.Upstream)
	return &redirected{
		Listener: ln, p: p, dir: ingress, tunnels: &p.entries, exchange: h, dial: dial, admits: new(localAddresses).have,
		straight: func(dst netip.AddrPort) bool { return dst.Port() == own || leadsTo(p.o.IngressAddr, dst) },
	}
}

// upstreamPort is the port at which the host speaks HTTP without TLS, or 0.
func upstreamPort(u *url.URL) uint16 {
	if u.Scheme != "http" {
		return 0
	}
	ap, err := netip.ParseAddrPort("[::]:" + authority(u)[strings.LastIndexByte(authority(u), ':')+1:])
	if err != nil {
		return 0
	}
	return ap.Port()
}

// RedirectedEgress returns a listener for the host's calls that the kernel has
// redirected to ln. Each is a tunnel to where it was to go, as one that CONNECT
// has opened, and what it has of HTTP is given to h, which leads to Egress. Accept
// gives none.
func (p *Proxy) RedirectedEgress(ln net.Listener, h http.Handler) net.Listener {
	return &redirected{
		Listener: ln, p: p, dir: egress, tunnels: &p.tunnels, exchange: h, dial: p.dialOut, intercept: p.intercept,
		admits:   func(netip.Addr) bool { return true },
		straight: func(netip.AddrPort) bool { return false },
	}
}

// redirected is a listener for redirected connections.
type redirected struct {
	net.Listener
	p         *Proxy
	dir       direction
	tunnels   *tunnels
	exchange  http.Handler // for requests found inside
	dial      dialFunc
	intercept *interceptor
	admits    func(dst netip.Addr) bool     // whether what was meant for dst may go on
	straight  func(dst netip.AddrPort) bool // whether Accept gives what was meant for dst
}

// Accept returns the next connection that is straight, and serves all others by
// itself.
func (l *redirected) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		dst, err := originalDst(c)
		switch {
		case err != nil || l.p.takesRedirected(dst):
			l.direct(c)
		case !l.admits(dst.Addr()):
			l.p.o.Logger.Debug("a connection that was meant for another machine is refused", "direction", l.dir, "peer", c.RemoteAddr().String(), "to", dst.String())
			l.refuse(c, redirectRefused)
		case l.straight(dst):
			l.count(redirectTaken)
			return c, nil
		default:
			go l.tunnel(c, dst) // ends with the connection, and is counted by the drain
		}
	}
}

var errNotRedirected = errors.New("nobody has redirected the connection")

// direct refuses a connection that was opened to this listener itself: to go on
// to where it was meant to go would come back here.
func (l *redirected) direct(c net.Conn) {
	l.p.o.Logger.Debug("a connection that nobody has redirected is refused", "direction", l.dir, "peer", c.RemoteAddr().String())
	l.refuse(c, redirectDirect)
}

// tunnel goes on to where the connection was to go, and serves it.
func (l *redirected) tunnel(c net.Conn, dst netip.AddrPort) {
	p := l.p
	t := &tunnel{
		set: l.tunnels, target: dst.String(), redirected: l.dir, client: c,
		dial: l.dial, roots: p.o.Roots, intercept: l.intercept, maxHeader: p.o.MaxHeader,
	}
	if !l.tunnels.add(t) {
		p.metrics.limit(limitTunnels)
		l.refuse(c, redirectRefused)
		return
	}
	defer l.tunnels.remove(t)
	outcome, done := l.connect(t, dst)
	defer done()
	if outcome != redirectTaken {
		l.refuse(c, outcome)
		t.close()
		return
	}
	l.count(redirectTaken)
	t.serve(l.exchange, func(k tunnelKind) { p.metrics.tunnels.WithLabelValues(string(k)).Inc() })
}

// connect opens the way to where the tunnel leads. done is called when t is over.
func (l *redirected) connect(t *tunnel, dst netip.AddrPort) (o redirectOutcome, done func()) {
	done = func() {}
	from := pair{addrPort(t.client.RemoteAddr()), dst}
	if l.p.circle.has(from) {
		return l.loop(t), done
	}
	upstream, err := l.dial(context.Background(), "tcp", t.target) // bounded by its own timeout
	if err != nil {
		return l.failed(t, err), done
	}
	if !t.attach(&t.upstream, upstream) {
		return redirectRefused, done // the drain was faster
	}
	to := pair{addrPort(upstream.LocalAddr()), dst}
	l.p.circle.add(to)
	forget := func() { l.p.circle.remove(to) }
	if l.p.circle.has(from) {
		// What has come of it by now has to find it.
		return l.loop(t), func() { time.AfterFunc(dialTimeout, forget) }
	}
	return redirectTaken, forget
}

// failed says what it comes to that where t leads was not reached.
func (l *redirected) failed(t *tunnel, err error) redirectOutcome {
	l.p.o.Logger.Warn("next hop failed", "direction", l.dir, "peer", t.target, "err", err)
	if _, ok := errors.AsType[forbiddenAddress](err); ok {
		return redirectRefused
	}
	return redirectUnreachable
}

// loop says, once, what has to be done about t, which is a call of ours.
func (l *redirected) loop(t *tunnel) redirectOutcome {
	l.p.ownCall.Do(func() {
		l.p.o.Logger.Error("wopproxy's own calls are redirected to itself, and are refused: the rules have to exempt the user that it runs as, see wopproxy redirect -uid",
			"direction", l.dir, "peer", t.target)
	})
	return redirectLoop
}

// refuse ends a connection as one that could not be opened, as far as that is
// still possible.
func (l *redirected) refuse(c net.Conn, o redirectOutcome) {
	l.count(o)
	reset(c, c)
}

func (l *redirected) count(o redirectOutcome) {
	l.p.metrics.redirects.WithLabelValues(string(l.dir), string(o)).Inc()
}

// circle knows the connections that redirected ones go on by. Where the rules do
// not exempt our own calls, each of them comes back as a new one, which would go on
// by another without end. Both ends tell a connection: to another address the same
// port may be in use. One may come back before it is noted here, and is then found
// out a round later.
type circle struct {
	mu  sync.Mutex
	own map[pair]struct{} // from our side
}

func (c *circle) has(p pair) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, ok := c.own[p]
	return ok
}

func (c *circle) add(p pair) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.own == nil {
		c.own = make(map[pair]struct{})
	}
	c.own[p] = struct{}{}
}

func (c *circle) remove(p pair) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.own, p)
}

// localAddresses are those by which others reach this machine.
type localAddresses struct {
	mu    sync.Mutex
	known map[netip.Addr]bool
}

// have reports whether a is one of them. They are read again for one that is not
// known: machines get further ones.
func (o *localAddresses) have(a netip.Addr) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.known[a] {
		return true
	}
	o.known = make(map[netip.Addr]bool)
	all, _ := net.InterfaceAddrs() // of none, none is
	for _, at := range all {
		if n, ok := at.(*net.IPNet); ok {
			if own, ok := netip.AddrFromSlice(n.IP); ok && !own.IsLoopback() {
				o.known[own.Unmap()] = true
			}
		}
	}
	return o.known[a]
}

// addrPort is the address of one end of a connection.
func addrPort(a net.Addr) netip.AddrPort {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	return unmapped(tcp.AddrPort())
}

// takesRedirected reports whether redirected connections are taken at end.
func (p *Proxy) takesRedirected(end netip.AddrPort) bool {
	return slices.ContainsFunc(p.o.Transparent, func(own netip.AddrPort) bool { return leadsTo(own, end) })
}

// claimed is the authority that a redirected request claims to be for, at the
// port that it was really sent to.
func claimed(r *http.Request, target string) string {
	name := r.Host
	if host, _, err := net.SplitHostPort(name); err == nil {
		name = host
	}
	if name = strings.Trim(name, "[]"); name == "" || !plainHost(name) {
		return target
	}
	_, port, _ := net.SplitHostPort(target) // an address of the kernel's
	return net.JoinHostPort(name, port)
}

// How long name servers may take to vouch for a name, and for all names of one
// tunnel together.
const (
	lookUpFor  = time.Second
	lookUpsFor = 5 * time.Second
)

// vouches reports whether rules by name have to judge what a request claims. What a
// redirected one claims in the clear counts if the name leads to where it was really
// sent; if it does not, or nobody says so in time, only the address counts.
func (x *exchange) vouches(ctx context.Context, t *tunnel, u *url.URL) bool {
	name := authority(u)
	if t.redirected != egress || u.Scheme != "http" || name == t.target {
		return true
	}
	t.mu.Lock()
	counts, known := t.names[name]
	left := lookUpsFor - t.lookedUp
	t.mu.Unlock()
	if known {
		return counts
	}
	if left <= 0 {
		x.p.metrics.limit(limitLookUp)
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, min(lookUpFor, left))
	defer cancel()
	began := time.Now()
	dst, _ := netip.ParseAddrPort(t.target)
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", u.Hostname())
	counts = slices.ContainsFunc(addrs, func(a netip.Addr) bool { return a.Unmap() == dst.Addr() })
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lookedUp += time.Since(began)
	if none, ok := errors.AsType[*net.DNSError](err); err != nil && (!ok || !none.IsNotFound) {
		return false // which is no answer
	}
	if t.names == nil || len(t.names) >= maxNames {
		t.names = make(map[string]bool)
	}
	t.names[name] = counts
	return counts
}

// maxNames bounds the names that are remembered of one tunnel.
const maxNames = 100

// asRedirected has a second look at what speaks first: what is meant for another
// proxy passes blind, and TLS says whom it is for.
func (t *tunnel) asRedirected(kind tunnelKind, client *bufio.Reader) tunnelKind {
	switch kind {
	case tunnelHTTP1:
		if b, _ := client.Peek(client.Buffered()); t.redirected == egress && isAbsolute(b) {
			return tunnelOther
		}
	case tunnelTLS:
		if t.intercept != nil {
			t.name = t.askedFor(client)
		}
	}
	return kind
}

// isAbsolute reports whether a request that begins with b has a target in
// absolute form: it is meant for a proxy, which has to get it as it is.
func isAbsolute(b []byte) bool {
	_, target, ok := bytes.Cut(b, []byte(" "))
	return ok && len(target) > 0 && target[0] != '/' && target[0] != '*'
}

// Lengths of the records of TLS.
const (
	recordHeader = 5
	maxRecord    = 16 << 10
)

// ahead is how much of what the client says is looked at before it goes on.
func (t *tunnel) ahead() int {
	if t.redirected != "" && t.intercept != nil {
		return recordHeader + maxRecord // a hello
	}
	return 4 << 10
}

// askedFor is host:port that a client which opens with TLS asks for, in its hello,
// which stays unread; its address if it asks for none or does not say in time.
func (t *tunnel) askedFor(client *bufio.Reader) string {
	_ = t.client.SetReadDeadline(time.Now().Add(sniffPatience))
	name := helloName(client)
	_ = t.client.SetReadDeadline(time.Time{})
	if name == "" {
		return t.target
	}
	_, port, _ := net.SplitHostPort(t.target)
	return net.JoinHostPort(name, port)
}

// helloName reads the server's name off the first record of TLS, without taking
// it; "" if there is none, or what stands there is no host name (RFC 6066, 3).
func helloName(r *bufio.Reader) (name string) {
	b, err := r.Peek(recordHeader)
	if err != nil {
		return ""
	}
	length := int(b[3])<<8 | int(b[4])
	if length > maxRecord {
		return ""
	}
	if b, err = r.Peek(recordHeader + length); err != nil {
		return ""
	}
	conn := tls.Server(&heard{Reader: bytes.NewReader(b)}, &tls.Config{
		MinVersion: tls.VersionTLS12,
		GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			name = hello.ServerName
			return nil, errHeard
		},
	})
	_ = conn.Handshake() // ends there, or because there is no more
	if !isHostname(name) {
		return "" // crypto/tls takes any bytes
	}
	return name
}

// isHostname reports whether name can be a DNS name, as far as its characters go.
func isHostname(name string) bool {
	return plainHost(name) && !strings.ContainsAny(name, "[]:")
}

var errHeard = errors.New("all that was asked is known")

// heard is a connection of which some bytes were read; nobody hears an answer.
type heard struct {
	*bytes.Reader
	net.Conn
}

func (h *heard) Read(b []byte) (int, error)     { return h.Reader.Read(b) }
func (*heard) Write(b []byte) (int, error)      { return len(b), nil }
func (*heard) Close() error                     { return nil }
func (*heard) SetDeadline(time.Time) error      { return nil }
func (*heard) SetWriteDeadline(time.Time) error { return nil }
func (*heard) SetReadDeadline(time.Time) error  { return nil }
