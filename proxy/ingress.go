package proxy

import (
	"context"
	"net/http"
	"net/http/httptrace"
	"net/http/httputil"
	"net/url"
	"strings"

	"github.com/wopproxy/wopproxy/ancestry"
	"github.com/wopproxy/wopproxy/proxy/internal/wire"
)

// Ingress returns the reverse proxy in front of the host.
func (p *Proxy) Ingress() http.Handler {
	rp := &httputil.ReverseProxy{
		Transport: hostTransport{p},
		// FlushInterval stays 0: streams and bodies of unknown length are
		// flushed as they come anyway, and with -1 the flush races with the end
		// of gRPC answers that have no body.
		Rewrite:        p.toHost,
		ModifyResponse: fromHost,
		ErrorHandler:   hostFailed,
		BufferPool:     &copyBuffers,
		ErrorLog:       discardLog,
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		x := p.begin(ingress, r)
		defer x.end(r)
		x.guard(func() { x.read(r) })
		if f := x.refuse(); f != nil {
			x.outcome = outcomeRefused
			f.write(w)
			return
		}
		if x.body == nil {
			// Go's server closes the body when the response starts, while the
			// transport may still be reading it (golang/go#40747).
			_ = http.NewResponseController(w).EnableFullDuplex() // HTTP/2 always is
		}
		if r.Header["Upgrade"] != nil {
			w = &flushingWriter{ResponseWriter: w} // for its Hijack
		}
		x.broken = errAborted // then ReverseProxy panics
		rp.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), exchangeKey{}, x)))
		x.broken = nil
	})
}

// toHost prepares the request for the host. It runs after the hop-by-hop
// headers are gone, so that a caller can't name ours in Connection and have
// them removed.
func (p *Proxy) toHost(r *httputil.ProxyRequest) {
	x := exchangeOf(r.In)
	upstream := p.o.Upstream
	if p.o.GRPCUpstream != nil && isGRPC(r.In) {
		upstream = p.o.GRPCUpstream
	}
	r.Out.URL.Scheme, r.Out.URL.Host = upstream.Scheme, upstream.Host
	prefixPath(r.Out.URL, upstream)
	r.Out.URL.RawQuery = r.In.URL.RawQuery // ReverseProxy drops what it can't parse
	r.Out.Trailer = r.In.Trailer           // a copy would miss what comes behind the body
	if !x.policy.RewriteHost {
		r.Out.Host = r.In.Host
	} else {
		r.Out.Host = ""
	}
	for _, name := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"} {
		if v := r.In.Header[name]; v != nil {
			r.Out.Header[name] = v
		}
	}
	x.guard(func() { x.arrive(r.Out) })
	x.guard(func() { x.askForCard(r.In, r.Out); x.askForDiscovery(r.In, r.Out); x.askForCauses(r.In, r.Out) })
	x.prepare(r.Out)
	if x.starts && x.run != nil && x.policy.ProcessPerRun {
		r.Out = x.alone(r.Out)
	}
}

// hostTransport sends requests to the host.
type hostTransport struct{ p *Proxy }

func (t hostTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if x := exchangeOf(r); x != nil && x.unshared {
		return t.p.single.RoundTrip(r)
	}
	return t.p.inbound.RoundTrip(r)
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
func fromHost(resp *http.Response) error {
	x := exchangeOf(resp.Request)
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
	x.observe(resp)
	x.awaitCommit(resp.Request.Context())
	return nil
}

// hostFailed answers for a host that could not be reached.
func hostFailed(w http.ResponseWriter, r *http.Request, err error) {
	x := exchangeOf(r)
	f := x.failure(r, err)
	f.write(w)
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
