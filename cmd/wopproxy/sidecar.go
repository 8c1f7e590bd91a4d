package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"golang.org/x/sync/errgroup"

	"github.com/wopproxy/wopproxy/ancestry"
	"github.com/wopproxy/wopproxy/config"
	"github.com/wopproxy/wopproxy/evidence"
	"github.com/wopproxy/wopproxy/proxy"
)

// lookupEnv is os.LookupEnv, or stands in for it.
type lookupEnv func(name string) (value string, ok bool)

// sidecar is one wopproxy: everything is open and bound, and nothing is served
// until run.
type sidecar struct {
	source configSource // what is read again when it changes
	env    lookupEnv
	log    *slog.Logger

	started  *config.Config                // what takes a restart to change is read here
	config   atomic.Pointer[config.Config] // the newest, for the rest
	secrets  atomic.Pointer[secrets]
	level    slog.LevelVar
	metrics  *prometheus.Registry
	reloads  reloadMetrics
	store    ancestry.Store
	recorder *ancestry.Recorder
	minter   *evidence.Minter         // nil: no evidence
	tracing  *sdktrace.TracerProvider // nil: no spans
	trust    trust
	proxy    *proxy.Proxy
	api      *ancestry.API
	inbound  http.Handler  // what callers of the host reach
	serving  chan struct{} // closed when everything is served
	drain    drain
	listeners
}

// listeners are the addresses that a sidecar serves on.
type listeners struct {
	ingress, egress, admin      net.Listener
	redirectedIn, redirectedOut net.Listener // nil: none is configured
	health                      net.Listener // likewise
}

// listen binds all of them, before anything is served: a start works or fails
// as a whole.
func listen(c *config.Config) (*listeners, error) {
	var l listeners
	for _, b := range []struct {
		key  string
		addr config.Address
		ln   *net.Listener
	}{
		{"ingress.listen", c.Ingress.Listen, &l.ingress},
		{"egress.listen", c.Egress.Listen, &l.egress},
		{"admin.listen", c.Admin.Listen, &l.admin},
		{"admin.health", c.Admin.Health, &l.health},
		{"ingress.transparent", c.Ingress.Transparent, &l.redirectedIn},
		{"egress.transparent", c.Egress.Transparent, &l.redirectedOut},
	} {
		if b.addr == "" {
			continue
		}
		ln, err := net.Listen("tcp", string(b.addr))
		if err != nil {
			return nil, errors.Join(fmt.Errorf("%s: %w: choose an address of this machine that no other program uses", b.key, err), l.close())
		}
		*b.ln = ln
	}
	return &l, nil
}

func (l *listeners) close() error {
	var errs []error
	for _, ln := range []net.Listener{l.ingress, l.egress, l.admin, l.redirectedIn, l.redirectedOut, l.health} {
		if ln != nil {
			errs = append(errs, ln.Close())
		}
	}
	return errors.Join(errs...)
}

// newSidecar opens the store and puts the parts together. It takes over l.
func newSidecar(ctx context.Context, c *config.Config, l *listeners, env lookupEnv, stderr io.Writer) (*sidecar, error) {
	return newSidecarOn(ctx, c, l, theStore, env, stderr)
}

// newSidecarOn is newSidecar for a store that is not simply the one in c.
func newSidecarOn(ctx context.Context, c *config.Config, l *listeners, store openStore, env lookupEnv, stderr io.Writer) (*sidecar, error) {
	s := &sidecar{listeners: *l, env: env, started: c, metrics: prometheus.NewRegistry(), serving: make(chan struct{}), drain: drain{over: make(chan struct{})}}
	s.level.Set(c.Log.Level)
	s.log = slog.New(slog.NewJSONHandler(stderr, &slog.HandlerOptions{Level: &s.level}))
	s.config.Store(c)
	s.metrics.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), buildInfo())
	s.reloads.register(s.metrics)
	if err := s.open(ctx, c, store); err != nil {
		err = errors.Join(err, l.close())
		if s.store != nil {
			err = errors.Join(err, s.store.Close())
		}
		return nil, err
	}
	return s, nil
}

// open opens the store and puts the parts together.
func (s *sidecar) open(ctx context.Context, c *config.Config, open openStore) error {
	sec, err := readSecrets(c, s.env)
	if err != nil {
		return err
	}
	s.secrets.Store(sec)
	signing, err := evidenceOptions(c, sec)
	if err != nil {
		return err
	}
	if s.store, err = open(c, s.log); err != nil {
		return err
	}
	s.countFullJournal()
	s.recorder = ancestry.NewRecorder(s.store, ancestry.RecorderOptions{Queue: c.Limits.Queue, Registerer: s.metrics, Logger: s.log})
	if s.minter, err = s.newMinter(ctx, signing); err != nil {
		return err
	}
	if s.tracing, err = newTracing(ctx, c, sec, s.env, s.metrics, s.log); err != nil {
		return err
	}
	if s.trust, err = newTrust(c, s.env); err != nil {
		return err
	}
	if s.proxy, err = proxy.New(s.proxyOptions(c), proxyPolicy(c, sec)); err != nil {
		return err
	}
	s.api, err = ancestry.NewAPI(ancestry.APIOptions{
		Reader: s.recorder, HostID: c.Host.ID,
		Auth:     ancestry.AuthMode(c.Ancestry.Auth.Mode),
		Bearer:   func() string { return s.secrets.Load().bearer },
		Upstream: c.Ingress.Upstream.URL, RewriteHost: c.Ingress.Host == config.HostUpstream,
		Endpoint:   s.proxy.AncestryEndpoint,
		Live:       s.proxy.Live,
		Handoffs:   s.proxy.Handoffs,
		Evidence:   s.signed(),
		Findings:   func(ids ...ancestry.RunID) (any, bool) { return s.proxy.Findings(ids...) },
		Registerer: s.metrics, Logger: s.log,
	})
	if err != nil {
		return err
	}
	s.inbound = s.published(s.api.Wrap(s.proxy.Ingress()))
	return nil
}

// run serves until ctx ends, then stops in the order that loses nothing: unready
// first, then go on serving while load balancers notice, finish what is in
// flight, store what is queued, close the store; the admin listeners go last,
// so that metrics can be scraped to the end.
func (s *sidecar) run(ctx context.Context) error {
	c := s.started
	late := context.WithoutCancel(ctx) // what outlives ctx is stopped below, in turn
	admin := begin(late, func(ctx context.Context) error {
		return serve(ctx, s.admin, s.adminHandler(c), s.adminServer())
	})
	health := begin(late, func(ctx context.Context) error {
		if s.health == nil {
			return nil
		}
		return serve(ctx, s.health, healthHandler(s.metrics, s.ready), s.adminServer())
	})
	recorder := begin(late, func(ctx context.Context) error { s.recorder.Run(ctx); return nil })
	minter := begin(late, s.mint)
	pruner := begin(late, s.prune)
	traffic := begin(late, func(ctx context.Context) error { return s.serveTraffic(ctx, c) })
	reloader := begin(ctx, s.watch())
	// What is read here is no traffic: it must not hold up the drain, nor the host's.
	follower := begin(ctx, func(ctx context.Context) error { s.proxy.Follow(ctx); return nil })
	s.log.InfoContext(ctx, "serving", s.addresses()...)
	close(s.serving)

	select {
	case <-ctx.Done():
		s.beginDrain(ctx)
		select {
		case <-s.drain.over:
		case <-traffic.done:
		}
	case <-traffic.done: // a listener has failed
		s.drain.begun.Store(true)
	}
	err := errors.Join(reloader.stop(), follower.stop(), traffic.stop(), recorder.stop(), minter.stop(), pruner.stop(), s.flushSpans(late), s.settle(), s.store.Close(), admin.stop(), health.stop())
	s.log.InfoContext(ctx, "stopped")
	return err
}

// mint signs evidence until ctx ends, and then what is left.
func (s *sidecar) mint(ctx context.Context) error {
	if s.minter != nil {
		s.minter.Run(ctx)
	}
	return nil
}

// addresses says where the host is served, for the log.
func (s *sidecar) addresses() []any {
	a := []any{"host", s.started.Host.ID, "ingress", s.ingress.Addr().String(), "egress", s.egress.Addr().String(), "admin", s.admin.Addr().String()}
	if s.redirectedIn != nil {
		a = append(a, "transparent_ingress", s.redirectedIn.Addr().String())
	}
	if s.redirectedOut != nil {
		a = append(a, "transparent_egress", s.redirectedOut.Addr().String())
	}
	return a
}

// serveTraffic serves ingress and egress until ctx ends and all that was in
// flight is done, tunnels included, or the drain has had its time. When one
// listener fails, the other stops too.
func (s *sidecar) serveTraffic(ctx context.Context, c *config.Config) error {
	forHost := func() serverOptions {
		return serverOptions{drain: s.drainTimeout, maxHeader: int(c.Limits.Header), connections: s.proxy.Connections()}
	}
	forCallers := func() serverOptions {
		o := forHost()
		o.parted = s.drain.over
		return o
	}
	g, ctx := errgroup.WithContext(ctx)
	into, out := s.parting(s.proxy.CheckOrigin(s.inbound)), s.proxy.Egress()
	g.Go(func() error { return serve(ctx, s.ingress, into, forCallers()) })
	g.Go(func() error { return serve(ctx, s.egress, out, forHost()) })
	if s.redirectedIn != nil {
		g.Go(func() error { return serve(ctx, s.proxy.RedirectedIngress(s.redirectedIn, into), into, forCallers()) })
	}
	if s.redirectedOut != nil {
		g.Go(func() error { return serve(ctx, s.proxy.RedirectedEgress(s.redirectedOut, out), out, forHost()) })
	}
	g.Go(func() error {
		<-ctx.Done()
		drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.drainTimeout())
		defer cancel()
		return s.proxy.Drain(drain)
	})
	return g.Wait()
}

// drainTimeout is what the file says when the drain begins.
func (s *sidecar) drainTimeout() time.Duration { return s.config.Load().Drain.Timeout.Duration }

// flushSpans exports the last spans. Telemetry that can't be delivered is no
// reason to fail.
func (s *sidecar) flushSpans(ctx context.Context) error {
	if s.tracing == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if err := s.tracing.Shutdown(ctx); err != nil {
		s.log.WarnContext(ctx, "the last spans could not be exported", "err", err)
	}
	return nil
}

// prune applies the retention once a minute: a disk is sized by the number of links,
// and a busy host makes a hundred thousand in that time. Where nothing is to go it
// costs next to nothing.
func (s *sidecar) prune(ctx context.Context) error {
	tick := time.NewTicker(time.Minute)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-tick.C:
			s.pruneAt(ctx, now)
		}
	}
}

func (s *sidecar) pruneAt(ctx context.Context, now time.Time) {
	n, err := s.store.Prune(ctx, now)
	if err != nil && ctx.Err() == nil {
		s.log.ErrorContext(ctx, "links could not be pruned", "err", err)
	} else if n > 0 {
		s.log.InfoContext(ctx, "links pruned", "links", n)
	}
}

// task is a goroutine with an owner.
type task struct {
	cancel context.CancelFunc
	done   chan struct{}
	err    error // valid once done is closed
}

// begin runs f until ctx ends or stop is called.
func begin(ctx context.Context, f func(context.Context) error) *task {
	ctx, cancel := context.WithCancel(ctx)
	t := &task{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(t.done)
		t.err = f(ctx)
	}()
	return t
}

// stop ends the task and returns when it has ended.
func (t *task) stop() error {
	t.cancel()
	<-t.done
	return t.err
}

// serverOptions bound what one listener spends on a client.
type serverOptions struct {
	drain       func() time.Duration // asked when the drain begins
	maxHeader   int
	connections func(net.Conn, http.ConnState) // bounds how many there are
	parted      <-chan struct{}                // when it is closed, no connection is kept without a request; nil: never
}

// adminServer is enough for probes and operators.
func (s *sidecar) adminServer() serverOptions {
	return serverOptions{drain: func() time.Duration { return time.Second }, maxHeader: 64 << 10, connections: s.proxy.Connections()}
}

// serve answers requests on ln until ctx ends, then lets the requests in flight
// finish. It returns when they have, or with an error when drain is over.
func serve(ctx context.Context, ln net.Listener, h http.Handler, o serverOptions) error {
	srv := &http.Server{
		Handler:           h,
		Protocols:         new(http.Protocols),
		HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: proxy.MaxStreams},
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    o.maxHeader,
		ConnState:         o.connections,
		ErrorLog:          log.New(io.Discard, "", 0), // speaks of clients' mistakes only
		// No read or write timeout: streams may live for hours.
	}
	srv.Protocols.SetHTTP1(true)
	srv.Protocols.SetHTTP2(true) // where ln speaks TLS
	srv.Protocols.SetUnencryptedHTTP2(true)
	served := make(chan struct{})
	defer close(served)
	go func() { // ends with us
		select {
		case <-o.parted:
			srv.SetKeepAlivesEnabled(false)
		case <-served:
		}
	}()
	drained := make(chan error, 1)
	stop := context.AfterFunc(ctx, func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), o.drain())
		defer cancel()
		err := srv.Shutdown(ctx)
		if err != nil {
			err = errors.Join(fmt.Errorf("drain %s: requests were still in flight and have been cut: %w", ln.Addr(), err), srv.Close())
		}
		drained <- err
	})
	if err := srv.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
		stop()
		return err
	}
	return <-drained // Serve returns when Shutdown starts, not when it is done
}
