package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

const drainManual = `drain [-url URL]

Tells a running wopproxy that its host is about to be stopped, and exits 0 when it
has heard it. From then on it is not ready, and callers leave the connections that
they keep to it: each answer of ingress is the last on its connection, and one that
has no request when drain.delay is over is closed. New connections are served until
the wopproxy is stopped itself, which then takes what is left of drain.delay alone.
There is no way back.

For a preStop hook in an image without a shell. Kubernetes stops a sidecar only when
the host has ended: a call on a connection that is kept would find nobody there.

`

func drainCommand(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	return askCommand(ctx, newFlags("drain", drainManual, stderr), http.MethodPut,
		"http://127.0.0.1:9090/drain", "`URL` of /drain on the admin listener", args, stdout)
}

// drain is the first half of a stop. Who knows that a stop is to come may ask for it
// before.
type drain struct {
	once  sync.Once
	begun atomic.Bool
	over  chan struct{} // closed when load balancers have had their time
}

// beginDrain begins the drain, unless it has begun.
func (s *sidecar) beginDrain(ctx context.Context) {
	s.drain.once.Do(func() {
		d := s.config.Load().Drain
		s.drain.begun.Store(true)
		time.AfterFunc(d.Delay.Duration, func() { close(s.drain.over) })
		s.log.InfoContext(ctx, "draining", "delay", d.Delay.String(), "timeout", d.Timeout.String())
	})
}

// drainNow begins the drain for who stops this program. There is no way back, so
// nobody else on the network may ask for it.
func (s *sidecar) drainNow(w http.ResponseWriter, r *http.Request) {
	if !fromHere(r) {
		http.Error(w, "only a program beside this one may have it drain", http.StatusForbidden)
		return
	}
	s.beginDrain(r.Context())
	fmt.Fprintln(w, "draining")
}

// fromHere reports whether r comes from this machine, or from this pod.
func fromHere(r *http.Request) bool {
	remote, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return false
	}
	from := remote.Addr().Unmap()
	local, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	return from.IsLoopback() || ok && local.AddrPort().Addr().Unmap() == from
}

// parting has clients of h leave their connections while the proxy drains, each with
// the next answer. To close a connection instead would lose the request that may be
// on its way.
func (s *sidecar) parting(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.ServeHTTP(lastAnswer{w, &s.drain.begun}, r)
	})
}

// lastAnswer is the last one on its connection if the drain has begun before its
// head is written. HTTP/2 has a GOAWAY for the header, which net/http sends.
type lastAnswer struct {
	http.ResponseWriter
	begun *atomic.Bool
}

func (a lastAnswer) WriteHeader(status int) {
	if status >= http.StatusOK { // those before it only inform, or make another protocol of it
		a.part()
	}
	a.ResponseWriter.WriteHeader(status)
}

func (a lastAnswer) Write(p []byte) (int, error) {
	a.part() // has no effect behind the head
	return a.ResponseWriter.Write(p)
}

func (a lastAnswer) part() {
	if a.begun.Load() {
		a.Header().Set("Connection", "close")
	}
}

// Unwrap is for http.ResponseController.
func (a lastAnswer) Unwrap() http.ResponseWriter { return a.ResponseWriter }
