package main

import (
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"runtime"
	"sync"
	"time"

	"github.com/elazarl/goproxy"

	"github.com/wopproxy/wopproxy/test/internal/rawhttp"
)

// runPeer is one of the proxies that this command brings along, each a process
// of its own. It writes its addresses when it serves, until ctx ends.
func runPeer(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	f := flag.NewFlagSet("peer", flag.ContinueOnError)
	f.SetOutput(stderr)
	to := f.String("upstream", "", "`address` to forward to")
	ca := f.String("ca", "", "PEM `file` with the authority, and whom to trust")
	if err := f.Parse(args[1:]); err != nil {
		return err
	}
	authority, err := rawhttp.LoadAuthority(*ca)
	if err != nil {
		return err
	}
	transport := &http.Transport{
		DisableCompression: true, MaxIdleConns: 4096, MaxIdleConnsPerHost: 1024,
		TLSClientConfig: &tls.Config{RootCAs: authority.Pool, MinVersion: tls.VersionTLS12},
	}
	var handler http.Handler
	switch args[0] {
	case "reverseproxy":
		handler = reverseProxy(&url.URL{Scheme: "http", Host: *to}, transport)
	case "goproxy":
		handler = bareGoproxy(transport, authority)
	default:
		return fmt.Errorf("peer %q: want reverseproxy or goproxy", args[0])
	}
	return servePeer(ctx, handler, stdout)
}

// reverseProxy is what is had from the standard library with care, and without
// any work of one's own: connections that are kept, and buffers that are.
func reverseProxy(to *url.URL, transport *http.Transport) http.Handler {
	return &httputil.ReverseProxy{
		Transport: transport, BufferPool: &copyBuffers, FlushInterval: 0,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(to)
			r.Out.Host = r.In.Host
		},
	}
}

type pool struct{ sync.Pool }

func (p *pool) Get() []byte  { return *p.Pool.Get().(*[]byte) }
func (p *pool) Put(b []byte) { p.Pool.Put(&b) }

var copyBuffers = pool{sync.Pool{New: func() any { b := make([]byte, 32<<10); return &b }}}

// bareGoproxy is goproxy as it comes, but for what nobody could leave as it is:
// it keeps connections, and has an authority that is not of RSA, with a cache.
func bareGoproxy(transport *http.Transport, a *rawhttp.Authority) http.Handler {
	g := goproxy.NewProxyHttpServer()
	g.Tr, g.ConnectDial = transport, nil
	g.KeepAcceptEncoding = true
	g.Logger = log.New(io.Discard, "", 0)
	g.CertStore = &certStore{}
	open := &goproxy.ConnectAction{Action: goproxy.ConnectMitm, TLSConfig: goproxy.TLSConfigFromCA(&a.Cert)}
	g.OnRequest().HandleConnectFunc(func(host string, _ *goproxy.ProxyCtx) (*goproxy.ConnectAction, string) {
		return open, host
	})
	return g
}

// certStore keeps the certificates that goproxy has made.
type certStore struct{ m sync.Map }

func (s *certStore) Fetch(host string, issue func() (*tls.Certificate, error)) (*tls.Certificate, error) {
	if c, ok := s.m.Load(host); ok {
		return c.(*tls.Certificate), nil
	}
	c, err := issue()
	if err == nil {
		s.m.Store(host, c)
	}
	return c, err
}

// servePeer serves a proxy, and beside it what it has allocated, as wopproxy
// tells it.
func servePeer(ctx context.Context, proxy http.Handler, stdout io.Writer) error {
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	admin, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	// Without it the server reads what is left of a request as soon as an answer
	// is flushed, even if that is but its end: then the transport finds it closed, and
	// gives up an event stream that has begun.
	duplex := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).EnableFullDuplex()
		proxy.ServeHTTP(w, r)
	})
	srv := &http.Server{Handler: duplex, ReadHeaderTimeout: time.Minute}
	metrics := &http.Server{Handler: http.HandlerFunc(tellAllocations), ReadHeaderTimeout: time.Minute}
	context.AfterFunc(ctx, func() { _, _ = srv.Close(), metrics.Close() })
	fmt.Fprintln(stdout, ready, ln.Addr(), admin.Addr())
	go func() { _ = metrics.Serve(admin) }() // ends with the other
	if err := srv.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func tellAllocations(w http.ResponseWriter, _ *http.Request) {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	fmt.Fprintf(w, "%s %d\n", mallocs, m.Mallocs)
}
