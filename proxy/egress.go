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
// absolute form, CONNECT, and base paths. This file is all that knows goproxy.
func (p *Proxy) Egress() http.Handler {
	g := goproxy.NewProxyHttpServer()
	// By default both take an upstream proxy from the environment. In a pod
	// whose HTTP_PROXY is this process, that would be us.
	g.Tr, g.ConnectDial = p.outbound.http1, nil
	g.KeepAcceptEncoding = true // whether to compress is between the peers
	g.Logger = silent{}
	roundTrip := goproxy.RoundTripperFunc(func(r *http.Request, _ *goproxy.ProxyCtx) (*http.Response, error) {
		return p.roundTrip(r), nil
	})
	g.OnRequest().DoFunc(func(r *http.Request, ctx *goproxy.ProxyCtx) (*http.Request, *http.Response) {
		ctx.RoundTripper = roundTrip // which runs after goproxy's own edits of the headers
		return r, nil
	})
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
	if err != nil || target == nil && !r.URL.IsAbs() {
		x := e.p.begin(egress, r)
		defer x.end(r)
		x.outcome = outcomeRefused
		x.fail(http.StatusBadGateway, "this is a forward proxy: use it as HTTP_PROXY, or put /_run/<runId>/ in front of an absolute URL").write(w)
		return
	}
	if target != nil {
		r.URL, r.Host = target, target.Host
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
	removeHopByHop(r.Header)
	if x.body == nil {
		_ = http.NewResponseController(w).EnableFullDuplex() // as on ingress
	}
	// goproxy ignores an error in the middle of an answer, and would end the
	// client's stream as if all of it had come.
	defer func() {
		if x.broken != nil {
			panic(http.ErrAbortHandler)
		}
	}()
	fw := &flushingWriter{ResponseWriter: w, x: x}
	e.proxy.ServeHTTP(fw, r.WithContext(context.WithValue(r.Context(), exchangeKey{}, x)))
	if fw.taken != nil {
		_ = fw.taken.Close() // goproxy leaves it open when the other side has closed
	}
}

// roundTrip sends one request of the host out. It returns no error: what fails
// is answered, or goproxy would send the error's text to the host.
func (p *Proxy) roundTrip(r *http.Request) *http.Response {
	x := exchangeOf(r)
	x.guard(func() { x.leave(r); x.handOff(r) })
	if f := x.withheld(); f != nil {
		return f.response(r)
	}
	x.prepare(r)
	x.handedOff(ancestry.HandoffDispatching)
	var rt http.RoundTripper = p.outbound
	if t, ok := r.Context().Value(tunnelKey{}).(*inTunnel); ok {
		rt = t.rt
	}
	r.Close = false // the host closes its connection to us, not ours to the peer
	if r.Header["User-Agent"] == nil {
		r.Header["User-Agent"] = []string{""} // or the transport would sign for us
	}
	resp, err := rt.RoundTrip(r)
	if err != nil {
		return x.failure(r, err).response(r)
	}
	removeHopByHopOfAnswer(resp)
	x.open = resp.ContentLength < 0 && r.Method != http.MethodHead && resp.StatusCode != http.StatusSwitchingProtocols
	x.guard(func() { x.noteChild(r, resp.Header); x.noteSession(resp.Header) })
	x.commit = nil // noted for our own use; the host need not wait for it
	x.observe(resp)
	if resp.StatusCode < http.StatusMultipleChoices {
		x.handedOff(ancestry.HandoffRunning)
	}
	if _, observed := resp.Body.(*observer); !observed && resp.StatusCode != http.StatusSwitchingProtocols {
		resp.Body = &watched{resp.Body, x}
	}
	return resp
}

// watched notes how an answer ends.
type watched struct {
	io.ReadCloser
	x *exchange
}

func (b *watched) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.x.noteEnd(err, err == io.EOF)
	return n, err
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
	e.proxy.ServeHTTP(&flushingWriter{ResponseWriter: w}, r.WithContext(context.WithValue(r.Context(), tunnelKey{}, &inTunnel{tunnel: t})))
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
