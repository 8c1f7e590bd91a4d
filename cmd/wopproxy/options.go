package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"

	"github.com/prometheus/client_golang/prometheus"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/wopproxy/wopproxy/config"
	"github.com/wopproxy/wopproxy/proxy"
)

// secrets are the values that the configuration only points to.
type secrets struct {
	bearer string // ancestry.auth.bearer
	egress string // egress.credentials.secret
	watch  string // executionModel.watch.credential
	idKey  string // evidence.idKey
	otlp   map[string]string
}

// readSecrets reads all of them, and reports all that can't be read.
func readSecrets(c *config.Config, env lookupEnv) (*secrets, error) {
	var errs []error
	read := func(key string, s config.Secret) string {
		if s.IsZero() {
			return ""
		}
		v, err := s.Read(env)
		if errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("%w: put it back, or make another and write it there", err)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", key, err))
		}
		return v
	}
	s := &secrets{
		bearer: read("ancestry.auth.bearer", c.Ancestry.Auth.Bearer),
		egress: read("egress.credentials.secret", c.Egress.Credentials.Secret),
		watch:  read("executionModel.watch.credential", c.ExecutionModel.Watch.Credential),
		idKey:  read("evidence.idKey", c.Evidence.IDKey),
		otlp:   map[string]string{},
	}
	for name, secret := range c.Tracing.OTLP.Headers {
		s.otlp[name] = read("tracing.otlp.headers."+name, secret)
	}
	return s, errors.Join(errs...)
}

// proxyOptions is the part of the configuration that takes a restart to change.
func (s *sidecar) proxyOptions(c *config.Config) proxy.Options {
	quarantine := c.Attribution.Quarantine.Duration
	if quarantine == 0 {
		quarantine = -1 // none, where 0 is the default
	}
	o := proxy.Options{
		HostID: c.Host.ID, WellKnown: c.Host.WellKnownURL.String(), Upstream: c.Ingress.Upstream.URL, GRPCUpstream: c.Ingress.GRPCUpstream.URL,
		Recorder: s.recorder, EgressAddr: addrOf(s.egress), IngressAddr: addrOf(s.ingress), Transparent: []netip.AddrPort{addrOf(s.redirectedIn), addrOf(s.redirectedOut)},
		RunTTL: c.Runs.TTL.Duration, Quarantine: quarantine,
		MaxRuns: c.Limits.LiveRuns, MaxBindings: c.Limits.Bindings, MaxTunnels: c.Limits.Tunnels, MaxConnections: c.Limits.Connections, MaxHeader: int(c.Limits.Header), MaxWatched: c.Limits.WatchedRuns,
		MaxWebhooks: c.Limits.Webhooks, WebhookTTL: c.Attribution.WebhookTTL.Duration,
		MaxTasks: c.Limits.Tasks, MaxHandoffs: c.Limits.Handoffs, HandoffTTL: c.Limits.HandoffTTL.Duration, TaskTTL: c.Tracing.TaskTTL.Duration,
		Restarted:    s.restarted(),
		SingleFlight: c.Attribution.SingleFlight, EchoedIDs: c.Attribution.EchoedIDs,
		CA: s.trust.ca, Roots: s.trust.roots, Evidence: s.minter,
		Registerer: s.metrics, Logger: s.log,
	}
	if s.tracing != nil {
		o.Tracer = s.tracing
	}
	return o
}

// addrOf is where a listener is found, if there is one: stdio has no egress.
func addrOf(ln net.Listener) netip.AddrPort {
	if ln == nil {
		return netip.AddrPort{}
	}
	tcp, ok := ln.Addr().(*net.TCPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	return tcp.AddrPort()
}

// restarted reports whether the host may be at work for runs that began before
// this start: they were not over when the store was last closed, or nobody was
// there to say so.
func (s *sidecar) restarted() bool {
	st, ok := s.store.(settler)
	if !ok || st.Settled() {
		return false
	}
	s.log.Info("runs that began before this start may be at work still; where evidence needs all live runs to be known, calls are left alone until runs.ttl is over", "ttl", s.started.Runs.TTL.String())
	return true
}

// settle notes for the next start that no run is left.
func (s *sidecar) settle() error {
	if st, ok := s.store.(settler); ok && s.proxy.Idle() {
		return st.Settle()
	}
	return nil
}

// proxyPolicy is the part that can change while the proxy runs.
func proxyPolicy(c *config.Config, s *secrets) proxy.Policy {
	p := proxy.Policy{
		Starts: c.Runs.Start.Match, MCPMethods: c.Runs.MCPMethods,
		AncestryHeader: string(c.Headers.RunAncestry), RunIDHeader: string(c.Headers.RunID),
		CommitTimeout: c.Ancestry.CommitTimeout.Duration,
		RewriteHost:   c.Ingress.Host == config.HostUpstream,
		Claim:         proxy.Claim(c.Ingress.Discovery.Causation),
		PublicURL:     c.Ingress.PublicURL.URL, KeepCards: !c.Ingress.AgentCards.Rewrite,
		OwnAddresses: hosts(c.Ingress.AgentCards.Own), StripSignatures: c.Ingress.AgentCards.Signed == config.SignedStrip,
		Secret: s.egress, ConnectPorts: c.Egress.ConnectPorts, DenyLinkLocal: c.Egress.DenyLinkLocal,
		DenyAddresses: c.Egress.DenyAddresses.Prefixes(),
		DialTimeout:   c.Egress.DialTimeout.Duration,
		Tylo:          hosts(c.Carriers.Tylo), A2AInMessage: hosts(c.Carriers.A2AInMessage), AncestryInMessage: hosts(c.Carriers.AncestryInMessage),
		Intercept: hosts(c.Egress.Intercept), OriginateTLS: hosts(c.Egress.OriginateTLS),
		AttachReceipts:      c.Evidence.Attach,
		WithholdUnescalated: c.ExecutionModel.WithholdUnescalated,
		WatchURL:            c.ExecutionModel.Watch.URL.URL, WatchCredential: s.watch, MaxFollowed: c.Limits.FollowedRuns,
		SessionsPerRun: c.Attribution.SessionsPerRun,
		ProcessPerRun:  c.Attribution.ProcessPerRun, ProcessScan: c.Limits.ProcessScan.Duration,
		WebhookParent: c.Attribution.WebhookContext == config.WebhookParent,
		Sample:        c.Tracing.Sample,
		InspectedBody: int64(c.Limits.InspectedBody), InspectedBodies: int64(c.Limits.InspectedBodies), InspectedEvent: int(c.Limits.InspectedEvent),
		BodyPatience: c.Limits.BodyPatience.Duration,
		StdioLine:    int64(c.Limits.StdioLine),
		MaxDepth:     c.Limits.MaxDepth, MaxVisitsPerHost: c.Limits.MaxVisitsPerHost,
	}
	if p.WatchURL == nil && p.WatchCredential != "" {
		p.WatchURL = c.Ingress.Upstream.URL
	}
	if p.RewriteHost { // the host can no longer check them; an empty list lets nothing in
		p.AllowedHosts, p.AllowedOrigins = c.Ingress.AllowedHosts.Match, c.Ingress.AllowedOrigins.Match
	}
	for _, name := range c.Attribution.SessionHeaders {
		p.SessionHeaders = append(p.SessionHeaders, string(name))
	}
	for _, f := range c.Tracing.Propagators {
		p.Propagators = append(p.Propagators, string(f))
	}
	switch t := c.Trust.Ingress; t.Mode {
	case config.TrustNone:
		p.TrustCaller = func(netip.Addr) bool { return false }
	case config.TrustListed:
		p.TrustCaller = t.CIDRs.Contains
	}
	switch t := c.Trust.Egress; t.Mode {
	case config.TrustNone:
		p.TrustDestination = func(string) bool { return false }
	case config.TrustListed:
		p.TrustDestination = t.Hosts.Match
	}
	return p
}

// hosts returns the rule of a list, and none for an empty one.
func hosts(h config.Hosts) func(string) bool {
	if len(h) == 0 {
		return nil
	}
	return h.Match
}

// newTracing returns nil if nobody has said where spans should go: then the
// proxy makes none. The exporters read the OTEL_* variables themselves.
func newTracing(ctx context.Context, c *config.Config, s *secrets, env lookupEnv, reg prometheus.Registerer, log *slog.Logger) (*sdktrace.TracerProvider, error) {
	given := func(name string) string { v, _ := env(name); return v }
	endpoint := c.Tracing.OTLP.Endpoint.String()
	if endpoint == "" && given("OTEL_EXPORTER_OTLP_ENDPOINT") == "" && given("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") == "" ||
		given("OTEL_SDK_DISABLED") == "true" || given("OTEL_TRACES_EXPORTER") == "none" {
		return nil, nil
	}
	protocol := string(c.Tracing.OTLP.Protocol)
	if !c.Given("tracing.otlp.protocol") {
		for _, name := range []string{"OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"} {
			if v := given(name); v != "" {
				protocol = v
			}
		}
	}
	o := proxy.TracingOptions{
		Endpoint: endpoint, Protocol: protocol, Headers: s.otlp,
		Sample: c.Tracing.Sample, HostID: c.Host.ID,
	}
	o.Version, _ = build()
	if c.Given("tracing.otlp.timeout") {
		o.Timeout = c.Tracing.OTLP.Timeout.Duration
	}
	if !c.Given("tracing.sample") && given("OTEL_TRACES_SAMPLER") != "" {
		o.Sample = -1
	}
	failures := prometheus.NewCounter(prometheus.CounterOpts{
		Name: "wopproxy_span_export_failures_total", Help: "Batches of spans that could not be exported.",
	})
	reg.MustRegister(failures)
	o.Failed = func(err error) {
		failures.Inc()
		log.WarnContext(ctx, "spans could not be exported", "err", err)
	}
	return proxy.NewTracerProvider(ctx, o)
}
