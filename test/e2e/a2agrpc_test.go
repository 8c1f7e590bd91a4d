package e2e

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"net"
	"net/http"
	"net/textproto"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2aclient"
	a2agrpc0 "github.com/a2aproject/a2a-go/v2/a2agrpc/v0"
	a2agrpc "github.com/a2aproject/a2a-go/v2/a2agrpc/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
)

// serveGRPC serves the agent over gRPC, in both generations, on a port of its
// own, as agents do.
func (p *peer) serveGRPC(t testing.TB, opts ...grpc.ServerOption) (addr string) {
	t.Helper()
	srv := grpc.NewServer(append(opts,
		grpc.UnaryInterceptor(func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
			p.noteCall(ctx, info.FullMethod, fmt.Sprint(req))
			return handle(ctx, req)
		}),
		grpc.StreamInterceptor(func(s any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
			p.noteCall(stream.Context(), info.FullMethod, "")
			return handle(s, stream)
		}))...)
	a2agrpc.NewHandler(p.agent).RegisterWith(srv)
	a2agrpc0.NewHandler(p.agent).RegisterWith(srv)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = srv.Serve(l) }() // ends with Stop
	t.Cleanup(srv.Stop)
	return l.Addr().String()
}

// noteCall notes a call of gRPC as the request that it is. The body is what the
// message of a unary one says, as text.
func (p *peer) noteCall(ctx context.Context, method, body string) {
	header := http.Header{}
	md, _ := metadata.FromIncomingContext(ctx)
	for name, values := range md {
		header[textproto.CanonicalMIMEHeaderKey(name)] = slices.Clone(values)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.wire = append(p.wire, a2aRequest{method: http.MethodPost, uri: method, header: header, body: body, left: ctx.Done()})
}

// grpcBy makes a client of gRPC go by the proxy that c goes by, if any, and send
// the headers that a tracer would. grpc-go takes no proxy from the environment
// for loopback.
func grpcBy(c *http.Client) []grpc.DialOption {
	opts := []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy()}
	next := c.Transport
	if tr, ok := next.(tracer); ok {
		next = tr.next
		opts = append(opts, grpc.WithUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, call grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			return call(withHeaders(ctx), method, req, reply, cc, opts...)
		}))
	}
	tr, ok := next.(*http.Transport)
	if !ok || tr.Proxy == nil {
		return opts
	}
	proxy, err := tr.Proxy(&http.Request{URL: &url.URL{Scheme: "http", Host: "agent.example.com"}})
	return append(opts, grpc.WithContextDialer(func(ctx context.Context, target string) (net.Conn, error) {
		if err != nil {
			return nil, err
		}
		return connect(ctx, proxy, target)
	}))
}

// withHeaders puts the headers that ctx has for a tracer into the metadata.
func withHeaders(ctx context.Context) context.Context {
	h, _ := ctx.Value(headersKey{}).(http.Header)
	for name, values := range h {
		for _, v := range values {
			ctx = metadata.AppendToOutgoingContext(ctx, name, v)
		}
	}
	return ctx
}

// connect opens a tunnel to target.
func connect(ctx context.Context, proxy *url.URL, target string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", proxy.Host)
	if err != nil {
		return nil, err
	}
	r := &http.Request{Method: http.MethodConnect, URL: &url.URL{Opaque: target}, Host: target, Header: http.Header{}}
	if u := proxy.User; u != nil {
		password, _ := u.Password()
		r.Header.Set("Proxy-Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(u.Username()+":"+password)))
	}
	if err := r.Write(conn); err != nil {
		return nil, err
	}
	read := bufio.NewReader(conn)
	resp, err := http.ReadResponse(read, r)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("CONNECT %s: %s", target, resp.Status)
	}
	return &tunnelConn{conn, read}, nil
}

// tunnelConn is a connection of which some bytes may have been read ahead.
type tunnelConn struct {
	net.Conn
	read *bufio.Reader
}

func (c *tunnelConn) Read(b []byte) (int, error) { return c.read.Read(b) }

// TestGRPCOverTLS lets a run call an agent over gRPC and TLS. The agent has no
// wopproxy: what it is given was stamped where the program opens the TLS, or
// where it makes it for a host that speaks without.
func TestGRPCOverTLS(t *testing.T) {
	cert := newTLSPeer(t) // for its certificate
	p := &peer{jobs: map[string]job{"work": finish}}
	p.handler()
	addr := p.serveGRPC(t, grpc.Creds(credentials.NewServerTLSFromCert(&cert.TLS.Certificates[0])))
	dir := t.TempDir()
	roots, bundle := filepath.Join(dir, "roots.pem"), filepath.Join(dir, "bundle.pem")
	write(t, roots, cert.certPEM())
	for name, how := range map[string]settings{
		"opened":     {"egress.roots": roots, "egress.intercept": []string{addr}, "egress.ca.bundle": bundle},
		"originated": {"egress.roots": roots, "egress.originateTLS": []string{addr}},
	} {
		for _, b := range bindings[len(overHTTP):] {
			t.Run(name+"/"+b.name, func(t *testing.T) {
				a := newAgent(t, "caller.example.com", how)
				opts := grpcBy(a.client(t))
				if name == "opened" {
					opts = append(opts, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: pool(t, bundle, cert.certPEM())})))
				}
				option := a2agrpc.WithGRPCTransport(opts...)
				if b.version != a2a.Version {
					option = a2agrpc0.WithGRPCTransport(opts...)
				}
				var trace string
				run := a.chat(t, func(ctx context.Context, in *http.Request) error {
					trace = traceOf(in.Header.Get("Traceparent"))
					c, err := a2aclient.NewFromCard(ctx, &a2a.AgentCard{SupportedInterfaces: []*a2a.AgentInterface{
						{URL: addr, ProtocolBinding: b.kind, ProtocolVersion: b.version},
					}}, a2aclient.WithDefaultsDisabled(), option)
					if err != nil {
						return err
					}
					_, err = ask(ctx, c, say("work"))
					return err
				})
				if t.Failed() {
					return
				}
				_, wire := p.seen()
				got := wire[len(wire)-1]
				if ancestry := got.header.Get("Run-Ancestry"); traceOf(got.header.Get("Traceparent")) != trace || !strings.HasPrefix(ancestry, `"`+run+`"`) {
					t.Errorf("the agent was given %v, want trace %s and run %s", got.header, trace, run)
				}
				a.sawCalls(t, 1, "egress", "a2a")
			})
		}
	}
}
