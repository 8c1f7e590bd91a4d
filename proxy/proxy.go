// Package proxy is the data path: Ingress stands in front of the host, adopts
// the context of each call that arrives and starts its run; Egress stands
// behind it, attributes each call that leaves to a run and stamps that run's
// context into it. Stdio does both for a host that speaks over its pipes.
//
// The package promises two things before all others. Traffic comes first: what
// it cannot read, or fails to edit, passes as it came, and no fault of its own
// fails, delays without bound, or changes a call. And a parent is asserted on
// evidence only: where there is none, the call is attributed to no run and the
// reason is counted.
package proxy

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"io"
	"log"
	"log/slog"
	"net/http"
	"net/netip"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	"github.com/wopproxy/wopproxy/ancestry"
	"github.com/wopproxy/wopproxy/evidence"
	"github.com/wopproxy/wopproxy/proxy/internal/attribution"
	"github.com/wopproxy/wopproxy/proxy/internal/wire"
)

// Recorder keeps the links that the data path observes. *ancestry.Recorder is
// one. Record must not block.
type Recorder interface {
	Record(ancestry.Link) ancestry.Commit
	Lookup(context.Context, ancestry.RunID) (ancestry.Link, error)
	Trace(ctx context.Context, id ancestry.TraceID, limit int) ([]ancestry.Link, error)
	Children(ctx context.Context, id ancestry.RunID, after string, limit int) (links []ancestry.Link, next string, err error)
}

// Options configure a Proxy for its lifetime. HostID and Recorder are required,
// and for Ingress Upstream.
type Options struct {
	HostID    string   // the host's stable id, as its peers know it
	WellKnown string   // the host's public /.well-known/openwop URL; empty: it has none
	Upstream  *url.URL // the host itself
	Recorder  Recorder

	GRPCUpstream *url.URL       // where the host takes gRPC; default Upstream
	EgressAddr   netip.AddrPort // where Egress is served: calls that lead back there are refused; default: not known

	IngressAddr netip.AddrPort   // where Ingress listens: what RedirectedIngress gets that was meant for there is Ingress's, and an Upstream that leads there is not called; default: not known
	Transparent []netip.AddrPort // where RedirectedIngress and RedirectedEgress listen: what is meant for there is refused; default: not known

	RunTTL       time.Duration // a run is forgotten this long after its last activity; default 1 h
	Quarantine   time.Duration // a run that ended still counts as live this long; default 1 s, negative: not at all
	MaxRuns      int           // live runs at most; default 100 000
	MaxWatched   int           // runs whose events are checked against the execution model, and entries of memory that they have written; default 10 000
	MaxBindings  int           // conversation ids bound at most; default 100 000
	MaxWebhooks  int           // webhooks that are known again at most; default 100 000
	WebhookTTL   time.Duration // a webhook is forgotten this long after its last use; default 24 h
	MaxTasks     int           // A2A tasks on other hosts whose first span is known, at most; default 100 000
	TaskTTL      time.Duration // one is forgotten this long after its last use; default 24 h
	MaxHandoffs  int           // handoffs that are remembered at most; default 15 000
	HandoffTTL   time.Duration // one that is open is given up this long after it was last heard of; default 24 h
	MaxTunnels   int           // tunnels open at once, by CONNECT and of redirected connections, either way; default 10 000
	EchoedIDs    bool          // attribute a call to the only run whose opaque ids are in its body
	Restarted    bool          // runs may be at work that began before; evidence that needs all live runs to be known waits for RunTTL
	SingleFlight bool          // attribute a call to the only live run when there is nothing else to go by

	MaxConnections int // connections of clients that one server holds open; default 10 000
	MaxHeader      int // bytes; longer heads of requests inside tunnels are answered 431; default 64 KiB

	CA    *CA            // signs for the destinations that Policy.Intercept names; nil: all TLS passes blind
	Roots *x509.CertPool // whom upstream certificates must lead to; default: the system's

	Evidence *evidence.Minter // signs what was observed; nil: nothing is

	Tracer     trace.TracerProvider  // where our spans go; nil: no spans, span ids are handed on unchanged
	Registerer prometheus.Registerer // default: metrics are not exposed
	Logger     *slog.Logger          // default: discard
}

// Proxy serves both directions of one host.
type Proxy struct {
	o          Options
	policy     atomic.Pointer[policy]
	runs       *attribution.Table
	webhooks   *attribution.Webhooks
	tasks      *tasks
	handoffs   *ancestry.Handoffs
	metrics    *metrics
	tracer     trace.Tracer    // nil: no spans
	inbound    *transports     // to the host
	single     *http.Transport // to the host, on a connection for each request
	tylo       *wire.TyloTable
	spoken     endpoints
	processes  *processes
	tunnels    tunnels // out of the host
	entries    tunnels // into it; callers can't use up what the host has
	circle     circle
	bodies     atomic.Int64 // bytes that exchanges hold of large bodies
	watch      *watcher
	advertised *advertised
	follower   *follower
	extension  string       // of discovery
	intercept  *interceptor // nil: no TLS is intercepted

	signedCard  sync.Once // the warning of a signed agent card
	foreignName sync.Once // that of a host that goes by another name
	ownCall     sync.Once // that of rules which do not exempt our own calls
}

// New checks o and p and returns a Proxy. It opens nothing and starts nothing.
func New(o Options, p Policy) (*Proxy, error) {
	if o.HostID == "" || o.Recorder == nil {
		return nil, errors.New("proxy: HostID and Recorder are required")
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.MaxTunnels == 0 {
		o.MaxTunnels = 10_000
	}
	if o.MaxConnections == 0 {
		o.MaxConnections = 10_000
	}
	if o.MaxHeader == 0 {
		o.MaxHeader = 64 << 10
	}
	if o.MaxWebhooks == 0 {
		o.MaxWebhooks = 100_000
	}
	if o.WebhookTTL == 0 {
		o.WebhookTTL = 24 * time.Hour
	}
	if o.MaxTasks == 0 {
		o.MaxTasks = 100_000
	}
	if o.MaxHandoffs == 0 {
		o.MaxHandoffs = 15_000
	}
	if o.TaskTTL == 0 {
		o.TaskTTL = 24 * time.Hour
	}
	if o.MaxRuns == 0 {
		o.MaxRuns = 100_000
	}
	px := &Proxy{
		o: o,
		runs: attribution.NewTable(attribution.Options{
			HostID: o.HostID, TTL: o.RunTTL, Quarantine: o.Quarantine,
			MaxRuns: o.MaxRuns, MaxBindings: o.MaxBindings, NoSingle: !o.SingleFlight, Unseen: o.unseen(), Echoes: o.EchoedIDs,
		}),
		webhooks:  attribution.NewWebhooks(o.MaxWebhooks, o.WebhookTTL),
		tasks:     newTasks(o.MaxTasks, o.TaskTTL),
		processes: newProcesses(),
		tunnels:   tunnels{limit: o.MaxTunnels},
		entries:   tunnels{limit: o.MaxTunnels},
		tylo:      wire.NewTyloTable(tyloIDs, time.Hour),
	}
	px.handoffs = ancestry.NewHandoffs(o.MaxHandoffs, cmp.Or(o.HandoffTTL, 24*time.Hour), func() { px.metrics.limit(limitHandoffTTL) })
	if err := px.SetPolicy(p); err != nil {
		return nil, err
	}
	if o.Tracer != nil {
		px.tracer = o.Tracer.Tracer(tracerName)
	}
	if o.CA != nil {
		px.intercept = newInterceptor(px)
	}
	px.inbound = newTransports(px.dialHost)
	px.single = newTransport(px.dialHost)
	px.single.DisableKeepAlives = true
	px.extension = ancestry.Extension(o.HostID)
	px.advertised = newAdvertised(px)
	px.watch = newWatcher(px, cmp.Or(o.MaxWatched, 10_000))
	px.follower = newFollower(px)
	px.metrics = newMetrics(o.Registerer, func() holdings {
		runs, bindings := px.runs.Len()
		return holdings{runs, bindings, px.webhooks.Len(), px.tunnels.len() + px.entries.len(), px.handoffs.Open(), px.follower.len()}
	})
	return px, nil
}

// unseen is how long runs may be at work that began before.
func (o Options) unseen() time.Duration {
	if !o.Restarted {
		return 0
	}
	return o.runTTL()
}

func (o Options) runTTL() time.Duration { return cmp.Or(o.RunTTL, time.Hour) }

// Idle reports whether no run is live.
func (p *Proxy) Idle() bool {
	for range p.runs.Live {
		return false
	}
	return true
}

// SetPolicy replaces the policy. Exchanges that have begun keep the one they
// began with; those that follow open connections of their own if it allows others.
// It is not to be called twice at once.
func (p *Proxy) SetPolicy(pol Policy) error {
	ready, err := pol.compile()
	if err != nil {
		return err
	}
	old := p.policy.Load()
	if old != nil && old.reaches(ready) {
		ready.outbound = old.outbound
		p.policy.Store(ready)
		return nil
	}
	ready.outbound = newTransports(p.dialOut)
	ready.outbound.trust(p.o.Roots)
	p.policy.Store(ready)
	if old != nil {
		old.outbound.closeIdle()
	}
	return nil
}

// Drain waits until every tunnel is closed, or cuts what is left when ctx ends.
// Call it after the listeners that open them have stopped accepting.
func (p *Proxy) Drain(ctx context.Context) error {
	var entries error
	var wait sync.WaitGroup
	wait.Go(func() { entries = p.entries.drain(ctx) })
	err := p.tunnels.drain(ctx)
	wait.Wait()
	// A connection that was opened and never used holds up the next server's
	// own shutdown for five seconds.
	p.inbound.closeIdle()
	p.policy.Load().outbound.closeIdle()
	return errors.Join(err, entries)
}

// Live lists the runs that are live now, longest idle first.
func (p *Proxy) Live() []ancestry.LiveRun {
	runs := []ancestry.LiveRun{}
	for r, active := range p.runs.Live {
		l := ancestry.LiveRun{
			Run: r.First, Parent: r.Chain.Parent(), Trace: r.Trace,
			Operation: r.Operation, Workflow: workflowOf(r), Began: r.Started, Active: active,
		}
		if id := r.ID(); id != r.First {
			l.Alias = id
		}
		runs = append(runs, l)
	}
	return runs
}

// Handoffs returns the calls by which a run, under any of its ids, has other
// hosts do something, oldest first.
func (p *Proxy) Handoffs(ids ...ancestry.RunID) []ancestry.Handoff { return p.handoffs.Of(ids...) }

// MaxStreams is how many requests one HTTP/2 connection may have open at once,
// in servers of a Proxy. A client of gRPC makes all its calls by one connection,
// and would wait at the 250 that net/http admits, which servers of gRPC do not.
const MaxStreams = 10_000

// tyloIDs bounds the ids of Tylo whose spelling is remembered.
const tyloIDs = 10_000

// discardLog is for servers whose complaints are about peers, not about us.
var discardLog = log.New(io.Discard, "", 0)
