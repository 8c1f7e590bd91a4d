package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
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

func (s *sidecar) drainNow(w http.ResponseWriter, r *http.Request) {
	s.beginDrain(r.Context())
	fmt.Fprintln(w, "draining")
}

// parting has clients of h leave their connections while the proxy drains, each with
// the next answer. To close a connection instead would lose the request that may be
// on its way.
func (s *sidecar) parting(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.drain.begun.Load() {
			w = lastAnswer{w}
		}
		h.ServeHTTP(w, r)
	})
}

// lastAnswer is the last one on its connection. HTTP/2 has a GOAWAY for the header,
// which net/http sends.
type lastAnswer struct{ http.ResponseWriter }

func (a lastAnswer) WriteHeader(status int) {
	if status >= http.StatusOK { // those before it only inform, or make another protocol of it
		a.Header().Set("Connection", "close")
	}
	a.ResponseWriter.WriteHeader(status)
}

func (a lastAnswer) Write(p []byte) (int, error) {
	a.Header().Set("Connection", "close") // has no effect behind the head
	return a.ResponseWriter.Write(p)
}

// Unwrap is for http.ResponseController.
func (a lastAnswer) Unwrap() http.ResponseWriter { return a.ResponseWriter }
