package proxy

import (
	"context"
	"net"
	"net/http"
	"testing"
)

// tunnelled is a Transport of a client that opens a tunnel even to a target
// without TLS, as undici and gRPC do.
func (s *sidecar) tunnelled(t testing.TB, h2c bool, header ...string) *http.Transport {
	tr := direct(t)
	tr.DialContext = func(_ context.Context, _, addr string) (net.Conn, error) {
		c := s.connect(t, addr, header...)
		return c, c.SetDeadline(noDeadline)
	}
	if h2c {
		tr.Protocols = new(http.Protocols)
		tr.Protocols.SetUnencryptedHTTP2(true)
	}
	return tr
}
