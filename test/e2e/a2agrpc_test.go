package e2e

import (
	"bufio"
	"context"
	"encoding/base64"
	"fmt"
	"net"
	"net/http"
	"net/textproto"
	"net/url"
	"slices"
	"testing"

	a2agrpc0 "github.com/a2aproject/a2a-go/v2/a2agrpc/v0"
	a2agrpc "github.com/a2aproject/a2a-go/v2/a2agrpc/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
)

// serveGRPC serves the agent over gRPC, in both generations, on a port of its
// own, as agents do.
func (p *peer) serveGRPC(t testing.TB) (addr string) {
	t.Helper()
	srv := grpc.NewServer(
		grpc.UnaryInterceptor(func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
			p.noteCall(ctx, info.FullMethod, fmt.Sprint(req))
			return handle(ctx, req)
		}),
		grpc.StreamInterceptor(func(s any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
			p.noteCall(stream.Context(), info.FullMethod, "")
			return handle(s, stream)
		}))
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
