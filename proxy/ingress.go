package proxy

import (
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"

	"github.com/wopproxy/wopproxy/ancestry"
	"github.com/wopproxy/wopproxy/proxy/internal/wire"
)

// Ingress returns the reverse proxy in front of the host.
func (p *Proxy) Ingress() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		x := p.begin(ingress, r)
		defer x.end(r)
		x.guard(func() { x.read(r) })
		if f := x.refuse(); f != nil {
			x.outcome = outcomeRefused
			f.write(w)
			return
		}
		out := x.toHost(r)
		x.duplex(w)
		x.forward(w, out, x.host(r), x.fromHost)
	})
}

// duplex lets the answer begin while the body of the request is still read: Go's
// server would close the body then (golang/go#40747).
func (x *exchange) duplex(w http.ResponseWriter) {
	if !x.atHand && x.out.Body != nil {
		_ = http.NewResponseController(w).EnableFullDuplex() // HTTP/2 always is
	}
}

// toHost returns what the host gets of r. Our own headers come in when those that
// the caller names in Connection are gone: it can't have ours removed.
func (x *exchange) toHost(r *http.Request) *http.Request {
	out := x.outgoing(r)
	upstream := x.p.o.Upstream
	if x.p.o.GRPCUpstream != nil && isGRPC(r) {
		upstream = x.p.o.GRPCUpstream
	}
	if t, ok := r.Context().Value(tunnelKey{}).(*inTunnel); ok {
		upstream = &url.URL{Scheme: "http", Host: t.target}
	}
	out.URL.Scheme, out.URL.Host = upstream.Scheme, upstream.Host
	prefixPath(out.URL, upstream)
	if x.policy.RewriteHost {
		out.Host = ""
	}
	x.guard(func() { x.arrive(out) })
	x.guard(func() { x.askForCard(r, out); x.askForDiscovery(r, out); x.askForCauses(r, out) })
	x.guard(func() { x.wantsReceipt(r) })
	x.prepare(out)
	if x.starts && x.run != nil && x.policy.ProcessPerRun {
		out = x.alone(out)
	}
	return out
}

// host is the way to the host.
func (x *exchange) host(r *http.Request) sender {
	if x.unshared {
		return sendBy{x.p.single}
	}
	if t, ok := r.Context().Value(tunnelKey{}).(*inTunnel); ok {
		return t.rt
	}
	return x.p.inbound
}

// alone gives a request of a run a connection of its own, so that the process
// which holds the host's side of it is known to work for this run.
func (x *exchange) alone(r *http.Request) *http.Request {
	if r.ProtoMajor != 1 {
		return r // several share a connection, whatever one does
	}
	x.unshared = true
	since := x.p.processes.os.ticks()
	return r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{
		GotConn: func(info httptrace.GotConnInfo) {
			if x.served != nil {
				x.served() // a connection that was of no use
			}
			x.served = x.p.processes.serve(info.Conn, x.run, since)
		},
	}))
}

// prepare stamps r, and measures what that took.
func (x *exchange) prepare(r *http.Request) {
	if x.curious() && r.Header["Accept-Encoding"] != nil && !signed(r.Header, "accept-encoding") {
		delete(r.Header, "Accept-Encoding") // an answer that is compressed can't be observed
	}
	if x.head.hints.GRPC != "" && !signed(r.Header, "grpc-accept-encoding") {
		delete(r.Header, "Grpc-Accept-Encoding")
	}
	x.guard(func() { x.stamp(r) })
	x.p.metrics.overhead.WithLabelValues(string(x.dir)).Observe(sinceSeconds(x.began))
}

// prefixPath puts the path of base in front of u's, keeping the escapes of both
// as they are.
func prefixPath(u, base *url.URL) {
	if base.Path == "" || base.Path == "/" {
		return
	}
	raw := strings.TrimSuffix(base.EscapedPath(), "/") + u.EscapedPath()
	u.Path, u.RawPath = strings.TrimSuffix(base.Path, "/")+u.Path, raw
}

// fromHost looks at the host's answer and holds it back until the link of its
// run is durable, or has had its time.
func (x *exchange) fromHost(resp *http.Response) {
	x.replay = strings.EqualFold(resp.Header.Get("OpenWOP-Idempotent-Replay"), "true")
	if x.run != nil && x.wants && !x.replay {
		resp.Header[x.policy.RunIDHeader] = []string{ancestry.FormatRunID(x.run.ID(), x.p.o.HostID)}
	}
	if x.causes != nil {
		x.causes.passEvents(resp)
	}
	if x.document != nil {
		x.passDocument(resp)
	}
	x.attach(resp)
	x.observe(resp)
	if o, ok := resp.Body.(*observer); ok && o.parts == nil && o.want > 0 {
		return // it waits with the first bytes, which the head leaves with: their links share a commit
	}
	x.awaitCommit(resp.Request.Context())
}

// CheckOrigin returns a handler that refuses what the host would refuse if it
// could see it: with Policy.RewriteHost its own check of Host is blind, so ours
// stands in for it, also for what wopproxy answers on the same listener.
func (p *Proxy) CheckOrigin(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if pol := p.policy.Load(); pol.RewriteHost {
			origin := r.Header.Get("Origin")
			if !allows(pol.AllowedHosts, r.Host, true) || origin != "" && !allows(pol.AllowedOrigins, origin, true) {
				p.metrics.exchanges.WithLabelValues(string(ingress), "http", string(outcomeRefused)).Inc()
				http.Error(w, "wopproxy: Host or Origin is not allowed by ingress.allowedHosts and ingress.allowedOrigins", http.StatusForbidden)
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// refuse says why a request must not reach the host, if so: the delegation goes
// round in circles.
func (x *exchange) refuse() *failure {
	p := x.policy
	visits := 0
	for _, a := range x.chain.Ancestors {
		if a.Host == x.p.o.HostID {
			visits++
		}
	}
	switch {
	case p.MaxDepth > 0 && x.chain.Count() > p.MaxDepth:
		x.p.metrics.limit(limitDepth)
		return x.fail(http.StatusLoopDetected, "delegation is deeper than limits.maxDepth allows: "+x.chain.Header())
	case p.MaxVisitsPerHost > 0 && visits > p.MaxVisitsPerHost:
		x.p.metrics.limit(limitVisits)
		return x.fail(http.StatusLoopDetected, "delegation has visited this host more often than limits.maxVisitsPerHost allows: "+x.chain.Header())
	}
	return nil
}

// isRPC reports whether the answer to the exchange is a JSON-RPC message.
func (x *exchange) isRPC() bool {
	return x.msg.Kind == wire.Request && !x.head.hints.REST && x.head.hints.GRPC == ""
}
