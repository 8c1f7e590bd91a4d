package proxy

import (
	"context"
	"encoding/base64"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/elazarl/goproxy"

	"github.com/wopproxy/wopproxy/ancestry"
)

// Egress returns the forward proxy that the host calls out through: requests in
// absolute form, CONNECT, and base paths. This file is all that knows goproxy,
// which takes the connections of CONNECT over.
func (p *Proxy) Egress() http.Handler {
	g := goproxy.NewProxyHttpServer()
	// By default both take an upstream proxy from the environment. In a pod
	// whose HTTP_PROXY is this process, that would be us.
	g.Tr, g.ConnectDial = newTransport(p.dialOut), nil
	g.Logger = silent{}
	e := &egressHandler{p: p, proxy: g}
	g.OnRequest().HandleConnectFunc(func(_ string, ctx *goproxy.ProxyCtx) (*goproxy.ConnectAction, string) {
		return &goproxy.ConnectAction{Action: goproxy.ConnectHijack, Hijack: e.connected}, ctx.Req.URL.Host
	})
	return e
}

type egressHandler struct {
	p     *Proxy
	proxy *goproxy.ProxyHttpServer
}

func (e *egressHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodConnect {
		e.connect(w, r)
		return
	}
	base, target, err := basePath(r)
	if target != nil && err == nil {
		r.URL, r.Host = target, target.Host
	}
	status, why := 0, ""
	switch {
	case err != nil || !r.URL.IsAbs():
		status, why = http.StatusBadGateway, "this is a forward proxy: use it as HTTP_PROXY, or put /_run/<runId>/ in front of an absolute URL"
	case rounds(r.URL) > maxRounds:
		status, why = http.StatusLoopDetected, "the URL leads through base paths of more than "+strconv.Itoa(maxRounds)+" further proxies: the call would go round in circles"
	}
	if why != "" {
		x := e.p.begin(egress, r)
		defer x.end(r)
		x.outcome = outcomeRefused
		x.fail(status, why).write(w)
		return
	}
	if r.URL.Scheme == "http" && allows(e.p.policy.Load().OriginateTLS, authority(r.URL), false) {
		r.URL.Scheme, r.URL.Host = "https", strings.TrimSuffix(r.URL.Host, ":80")
	}
	x := e.p.begin(egress, r)
	defer x.end(r)
	x.clues.BasePath = base
	x.clues.Credential = credential(x.policy, r)
	if t, ok := r.Context().Value(tunnelKey{}).(*inTunnel); ok {
		x.clues.Credential = t.run
	}
	out := x.outgoing(r)
	x.duplex(w)
	x.guard(func() { x.leave(out); x.handOff(out) })
	if f := x.withheld(); f != nil {
		f.write(w)
		return
	}
	x.prepare(out)
	x.handedOff(ancestry.HandoffDispatching)
	x.forward(w, out, x.way(r), x.fromPeer)
}

// way is the way to the destination of r.
func (x *exchange) way(r *http.Request) sender {
	if t, ok := r.Context().Value(tunnelKey{}).(*inTunnel); ok {
		return t.rt
	}
	return x.policy.outbound
}

// fromPeer looks at the answer to a call of the host.
func (x *exchange) fromPeer(resp *http.Response) {
	x.guard(func() { x.noteChild(&x.out, resp.Header); x.noteSession(resp.Header) })
	x.owed = nil // noted for our own use; the host need not wait for it
	x.observe(resp)
	if resp.StatusCode < http.StatusMultipleChoices {
		x.handedOff(ancestry.HandoffRunning)
	}
}

// basePath recognises http://egress/_run/<runId>/<absolute-url>. The URL keeps
// its escapes; the double slash may have been lost on the way.
func basePath(r *http.Request) (run ancestry.RunID, target *url.URL, err error) {
	rest, ok := strings.CutPrefix(r.URL.EscapedPath(), "/_run/")
	if !ok || r.URL.IsAbs() {
		return "", nil, nil
	}
	segment, raw, _ := strings.Cut(rest, "/")
	if run, err = ancestry.ParseSegmentV1(segment); err != nil {
		return "", nil, err
	}
	for _, scheme := range []string{"http:/", "https:/"} {
		if tail, ok := strings.CutPrefix(raw, scheme); ok {
			raw = scheme + "/" + strings.TrimPrefix(tail, "/")
		}
	}
	if r.URL.RawQuery != "" || r.URL.ForceQuery {
		raw += "?" + r.URL.RawQuery
	}
	target, err = url.Parse(raw)
	if err == nil && (target.Host == "" || target.Scheme != "http" && target.Scheme != "https") {
		err = errNotAbsolute
	}
	return run, target, err
}

// maxRounds is through how many other proxies a call may lead by base paths that
// are put one into another. Two that do so in turn would be a loop with as many
// rounds as there is room for in a URL.
const maxRounds = 4

// rounds is the number of further proxies that a URL leads through, as far as it
// matters.
func rounds(u *url.URL) (n int) {
	for n <= maxRounds && strings.HasPrefix(u.Path, "/_run/") {
		_, next, err := basePath(&http.Request{URL: &url.URL{Path: u.Path, RawPath: u.RawPath}})
		if err != nil || next == nil {
			break
		}
		u = next
		n++
	}
	return n
}

// credential returns the run that the user name of the proxy credential names,
// if the password is the one that makes it a run id.
func credential(pol *policy, r *http.Request) ancestry.RunID {
	encoded, ok := strings.CutPrefix(r.Header.Get("Proxy-Authorization"), "Basic ")
	if !ok {
		return ""
	}
	raw, err := base64.StdEncoding.DecodeString(encoded)
	user, password, ok := strings.Cut(string(raw), ":")
	if err != nil || !ok || !pol.secretMatches(password) {
		return ""
	}
	id, err := ancestry.ParseRunID(user)
	if err != nil {
		return ""
	}
	return id
}

// connect opens a tunnel, if policy and bounds allow it and the target answers.
func (e *egressHandler) connect(w http.ResponseWriter, r *http.Request) {
	if r.ProtoMajor != 1 {
		http.Error(w, "wopproxy: CONNECT needs HTTP/1.1", http.StatusHTTPVersionNotSupported)
		return
	}
	if t, ok := r.Context().Value(tunnelKey{}).(*inTunnel); ok && t.redirected != "" {
		http.Error(w, "wopproxy: CONNECT is for a proxy, and this connection was opened to "+t.target+" before it was redirected: send CONNECT to egress.listen", http.StatusMethodNotAllowed)
		return
	}
	pol := e.p.policy.Load()
	target := connectTarget(r)
	r.URL.Host, r.Host = target, target
	_, port, err := net.SplitHostPort(target)
	if err != nil {
		http.Error(w, "wopproxy: CONNECT needs host:port", http.StatusBadRequest)
		return
	}
	if n, _ := strconv.Atoi(port); len(pol.ConnectPorts) > 0 && !slices.Contains(pol.ConnectPorts, n) {
		http.Error(w, "wopproxy: CONNECT to port "+port+" is not allowed by egress.connectPorts", http.StatusForbidden)
		return
	}
	t := &tunnel{set: &e.p.tunnels, target: target, run: credential(pol, r), dial: e.p.dialOut, roots: e.p.o.Roots, intercept: e.p.intercept, maxHeader: e.p.o.MaxHeader}
	if !e.p.tunnels.add(t) {
		e.p.metrics.limit(limitTunnels)
		http.Error(w, "wopproxy: too many tunnels are open", http.StatusServiceUnavailable)
		return
	}
	upstream, err := e.p.dialOut(r.Context(), "tcp", target)
	if err == nil && !t.attach(&t.upstream, upstream) {
		err = net.ErrClosed // the drain was faster
	}
	if err != nil {
		e.p.tunnels.remove(t)
		x := &exchange{p: e.p, policy: pol, dir: egress}
		defer x.end(r)
		x.failure(r, err).write(w)
		return
	}
	// goproxy takes the connection over and calls connected.
	e.proxy.ServeHTTP(hijackWriter{w}, r.WithContext(context.WithValue(r.Context(), tunnelKey{}, &inTunnel{tunnel: t})))
}

// connectTarget is what CONNECT asks for, host:port if it asks rightly. Node, told
// to take its proxy from the environment, sends CONNECT http://proxy/host:port for
// a client that knows the proxy itself, such as grpc-js.
func connectTarget(r *http.Request) string {
	u, err := url.Parse(r.RequestURI)
	if err != nil || u.Scheme != "http" || u.Host == "" {
		return r.URL.Host
	}
	return strings.TrimPrefix(u.Path, "/")
}

// connected has the client's side of the tunnel.
func (e *egressHandler) connected(r *http.Request, client net.Conn, _ *goproxy.ProxyCtx) {
	t := r.Context().Value(tunnelKey{}).(*inTunnel).tunnel
	if !t.attach(&t.client, client) {
		t.set.remove(t)
		return
	}
	if _, err := io.WriteString(client, "HTTP/1.1 200 Connection established\r\n\r\n"); err != nil {
		t.set.remove(t)
		t.close()
		return
	}
	t.serve(e, func(k tunnelKind) { e.p.metrics.tunnels.WithLabelValues(string(k)).Inc() })
}

// silent keeps goproxy from logging: what matters is logged by us.
type silent struct{}

func (silent) Printf(string, ...any) {}
