package proxy

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
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
		DialContext:         dial,
		DisableCompression:  true,
		ForceAttemptHTTP2:   true,
		MaxIdleConns:        1024,
		MaxIdleConnsPerHost: 256,
		IdleConnTimeout:     90 * time.Second,
		TLSHandshakeTimeout: dialTimeout,
	}
}

// transports sends each request by the protocol that it needs.
type transports struct {
	http1 *http.Transport // and HTTP/2 where TLS negotiates it
	h2c   *http.Transport
}

func newTransports(dial dialFunc) *transports {
	t := &transports{newTransport(dial), newTransport(dial)}
	t.h2c.Protocols = new(http.Protocols)
	t.h2c.Protocols.SetUnencryptedHTTP2(true)
	return t
}

// RoundTrip uses HTTP/2 without TLS for gRPC alone: nothing else needs it, and
// a server that does not speak it can't be told from one that does.
func (t *transports) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme == "http" && isGRPC(r) {
		return t.h2c.RoundTrip(r)
	}
	return t.http1.RoundTrip(r)
}

// trust sets whom certificates must lead to; nil means the system's roots.
func (t *transports) trust(roots *x509.CertPool) {
	t.http1.TLSClientConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
}

func (t *transports) closeIdle() {
	t.http1.CloseIdleConnections()
	t.h2c.CloseIdleConnections()
}

// dialOut dials a destination of the host's choice, unless the policy forbids
// its address. The check sees the resolved address that is about to be dialled,
// so that a name can't be resolved twice with two results.
func (p *Proxy) dialOut(ctx context.Context, network, addr string) (net.Conn, error) {
	d := net.Dialer{
		Timeout: p.policy.Load().DialTimeout, KeepAlive: 30 * time.Second,
		ControlContext: func(_ context.Context, _, resolved string, _ syscall.RawConn) error {
			return p.policy.Load().mayDial(resolved)
		},
	}
	conn, err := d.DialContext(ctx, network, addr)
	if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() && ctx.Err() == nil {
		p.metrics.limit(limitDial)
	}
	return conn, err
}

// forbiddenAddress is an address that the policy keeps the host from reaching
// through us.
type forbiddenAddress struct{ addr netip.Addr }

func (e forbiddenAddress) Error() string {
	return fmt.Sprintf("address %s is link-local, and egress.denyLinkLocal forbids it", e.addr)
}

// mayDial refuses link-local addresses, where clouds keep their credentials.
func (p *policy) mayDial(resolved string) error {
	if !p.DenyLinkLocal {
		return nil
	}
	ap, err := netip.ParseAddrPort(resolved)
	if err != nil {
		return nil // a Unix socket; no address of the kind in question
	}
	if a := ap.Addr().Unmap(); a.IsLinkLocalUnicast() || a.IsLinkLocalMulticast() || a == ec2IPv6 {
		return forbiddenAddress{a}
	}
	return nil
}

// ec2IPv6 is the metadata service of AWS, which on IPv6 is not link-local.
var ec2IPv6 = netip.MustParseAddr("fd00:ec2::254")
