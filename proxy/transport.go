package proxy

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"syscall"
	"time"
)

// dialFunc opens a connection.
type dialFunc func(ctx context.Context, network, addr string) (net.Conn, error)

// dialTimeout bounds the opening of a connection, on egress unless the policy
// says otherwise. There is no bound on the wait for an answer: an agent may think
// for minutes.
const dialTimeout = 10 * time.Second

// newTransport returns a Transport that changes nothing on its way: it takes no
// proxy from the environment (in a pod whose HTTP_PROXY is this process that
// would be us), asks for no compression of its own, and keeps connections.
func newTransport(dial dialFunc) *http.Transport {
	if dial == nil {
		dial = (&net.Dialer{Timeout: dialTimeout, KeepAlive: 30 * time.Second}).DialContext
	}
	return &http.Transport{
		DialContext:         lending(dial),
		DisableCompression:  true,
		ForceAttemptHTTP2:   true,
		MaxIdleConns:        1024,
		MaxIdleConnsPerHost: 256,
		IdleConnTimeout:     90 * time.Second,
		TLSHandshakeTimeout: dialTimeout,
	}
}

// lending returns dial with connections that borrow what they need to copy the body
// of a request: net would make 32 KB for each.
func lending(dial dialFunc) dialFunc {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if tcp, ok := conn.(*net.TCPConn); ok {
			return lentConn{tcp}, err
		}
		return conn, err
	}
}

// lentConn is a connection whose ReadFrom borrows its buffer.
type lentConn struct{ *net.TCPConn }

// ReadFrom implements io.ReaderFrom.
func (c lentConn) ReadFrom(r io.Reader) (int64, error) {
	buf := copyBuffers.Get()
	defer copyBuffers.Put(buf)
	return io.CopyBuffer(struct{ io.Writer }{c.TCPConn}, r, buf)
}

// transports sends each request by the protocol that it needs.
type transports struct {
	plain *client
	http1 *http.Transport // and HTTP/2 where TLS negotiates it
	h2c   *http.Transport
}

func newTransports(dial dialFunc) *transports {
	t := &transports{http1: newTransport(dial), h2c: newTransport(dial)}
	t.plain = &client{dial: t.http1.DialContext}
	t.h2c.Protocols = new(http.Protocols)
	t.h2c.Protocols.SetUnencryptedHTTP2(true)
	return t
}

// send uses HTTP/2 without TLS for gRPC alone: nothing else needs it, and a server
// that does not speak it can't be told from one that does.
func (t *transports) send(r *http.Request, x *exchange) (*http.Response, error) {
	if r.URL.Scheme == "http" && isGRPC(r) {
		return sendBy{t.h2c}.send(r, x)
	}
	if canPeek && t.plain.takes(r, x.atHand) {
		return t.plain.send(r, x)
	}
	return sendBy{t.http1}.send(r, x)
}

// trust sets whom certificates must lead to; nil means the system's roots.
func (t *transports) trust(roots *x509.CertPool) {
	t.http1.TLSClientConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
}

func (t *transports) closeIdle() {
	t.plain.closeIdle()
	t.http1.CloseIdleConnections()
	t.h2c.CloseIdleConnections()
}

// dialOut dials a destination of the host's choice, unless its address is
// forbidden. The check sees the resolved address that is about to be dialled,
// so that a name can't be resolved twice with two results.
func (p *Proxy) dialOut(ctx context.Context, network, addr string) (net.Conn, error) {
	d := net.Dialer{
		Timeout: p.policy.Load().DialTimeout, KeepAlive: 30 * time.Second,
		ControlContext: func(_ context.Context, _, resolved string, _ syscall.RawConn) error {
			return p.mayDial(resolved)
		},
	}
	conn, err := d.DialContext(ctx, network, addr)
	if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() && ctx.Err() == nil {
		p.metrics.limit(limitDial)
	}
	return conn, err
}

// dialHost dials the host, unless its name leads to Ingress, by mistake or since a
// while: each request would come back as another one, without end.
func (p *Proxy) dialHost(ctx context.Context, network, addr string) (net.Conn, error) {
	d := net.Dialer{
		Timeout: dialTimeout, KeepAlive: 30 * time.Second,
		ControlContext: func(_ context.Context, _, resolved string, _ syscall.RawConn) error {
			ap, err := netip.ParseAddrPort(resolved)
			if err != nil {
				return nil
			}
			for _, end := range endsOf(ap.Addr()) {
				if leadsTo(p.o.IngressAddr, netip.AddrPortFrom(end, ap.Port())) {
					return forbiddenAddress{addr: ap, why: "is ingress.listen of this proxy: ingress.upstream has to lead to the host itself", loop: true}
				}
			}
			return nil
		},
	}
	return d.DialContext(ctx, network, addr)
}

// forbiddenAddress is an address that nobody reaches through us.
type forbiddenAddress struct {
	addr netip.AddrPort
	why  string
	loop bool // we would call ourselves
}

func (e forbiddenAddress) Error() string { return fmt.Sprintf("address %s %s", e.addr.Addr(), e.why) }

// mayDial refuses addresses that lead back to Egress, those where clouds keep
// their credentials, and those that the policy names.
func (p *Proxy) mayDial(resolved string) error {
	ap, err := netip.ParseAddrPort(resolved)
	if err != nil {
		return nil // a Unix socket; no address of the kind in question
	}
	pol := p.policy.Load()
	for _, end := range endsOf(ap.Addr()) {
		switch {
		case leadsTo(p.o.EgressAddr, netip.AddrPortFrom(end, ap.Port())):
			return forbiddenAddress{addr: ap, why: "is egress.listen of this proxy: the call would go round in circles", loop: true}
		case p.takesRedirected(netip.AddrPortFrom(end, ap.Port())):
			return forbiddenAddress{addr: ap, why: "is ingress.transparent or egress.transparent of this proxy, which take no calls", loop: true}
		case pol.DenyLinkLocal && (end.IsLinkLocalUnicast() || end.IsLinkLocalMulticast() || slices.Contains(metadataAddrs, end)):
			return forbiddenAddress{addr: ap, why: "is link-local or a cloud's for credentials, and egress.denyLinkLocal forbids it"}
		case slices.ContainsFunc(pol.DenyAddresses, func(n netip.Prefix) bool { return n.Contains(end) }):
			return forbiddenAddress{addr: ap, why: "is forbidden by egress.denyAddresses"}
		}
	}
	return nil
}

// metadataAddrs are the addresses at which clouds give credentials to whoever asks,
// and which are not link-local.
var metadataAddrs = []netip.Addr{
	netip.MustParseAddr("fd00:ec2::254"),   // AWS
	netip.MustParseAddr("fd20:ce::254"),    // Google
	netip.MustParseAddr("100.100.100.200"), // Alibaba
	netip.MustParseAddr("192.0.0.192"),     // Oracle
	netip.MustParseAddr("168.63.129.16"),   // Azure
}

// Addresses behind which there is one of IPv4.
var (
	nat64     = netip.MustParsePrefix("64:ff9b::/96")
	sixToFour = netip.MustParsePrefix("2002::/16")
)

// endsOf are the addresses that a connection to a may end at. IPv4 may be written
// as IPv6 in several ways, and systems take the unspecified address for their own.
func endsOf(a netip.Addr) []netip.Addr {
	a = a.Unmap().WithZone("")
	b := a.As16()
	switch {
	case a.IsUnspecified():
		return []netip.Addr{a, netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}
	case nat64.Contains(a):
		return []netip.Addr{a, netip.AddrFrom4([4]byte(b[12:]))}
	case sixToFour.Contains(a):
		return []netip.Addr{a, netip.AddrFrom4([4]byte(b[2:6]))}
	}
	return []netip.Addr{a}
}

// leadsTo reports whether what is served at own, if that is known, is reached at
// end. Base paths can be put one into another, so a single request to Egress could
// pass us thousands of times.
func leadsTo(own, end netip.AddrPort) bool {
	switch {
	case !own.IsValid() || own.Port() != end.Port():
		return false
	case !own.Addr().IsUnspecified():
		return own.Addr().Unmap().WithZone("") == end.Addr()
	case own.Addr().Is4() && !end.Addr().Is4():
		return false // another program may listen there
	case end.Addr().IsLoopback():
		return true
	}
	addrs, _ := net.InterfaceAddrs() // none is known, then
	return slices.ContainsFunc(addrs, func(a net.Addr) bool {
		n, ok := a.(*net.IPNet)
		if !ok {
			return false
		}
		ip, _ := netip.AddrFromSlice(n.IP)
		return ip.Unmap() == end.Addr()
	})
}
