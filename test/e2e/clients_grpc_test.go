package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	grpcstatus "google.golang.org/grpc/status"
)

// failures is how many calls fail in a row without an answer: a proxy that loses
// the status of one in many must not come through.
const failures = 1000

// TestGRPC lets grpc-go and grpc-js call a service that is nobody's business,
// through both proxies: its messages, metadata, trailers and failures pass.
func TestGRPC(t *testing.T) {
	servers := map[string]func(*testing.T) string{"Go": newGRPCServer, "JavaScript": func(t *testing.T) string {
		return fmt.Sprintf("127.0.0.1:%v", node(t).spawn(t, nil, "grpc-server.mjs").awaitLog(t, "listening")["port"])
	}}
	clients := map[string]func(t *testing.T, a *sidecar, target string) error{"Go": callGRPC, "JavaScript": func(t *testing.T, a *sidecar, target string) error {
		return node(t).spawn(t, nodeProxyEnv(a), "grpc-client.mjs", target, strconv.Itoa(failures)).success(t)
	}}
	for _, tt := range []struct{ client, server string }{{"Go", "Go"}, {"Go", "JavaScript"}, {"JavaScript", "Go"}, {"JavaScript", "JavaScript"}} {
		t.Run(tt.client+" to "+tt.server, func(t *testing.T) {
			host := start(t, "callee.example.com", "http://"+servers[tt.server](t))
			a := start(t, "caller.example.com", idleHost(t))
			if err := clients[tt.client](t, a, strings.TrimPrefix(host.ingress, "http://")); err != nil {
				t.Error(err)
			}
			a.sawCalls(t, failures+3, "egress", "http")
			host.sawCalls(t, failures+3, "ingress", "http")
			if a.metric(t, "wopproxy_tunnels_total", `kind="h2c"`) == 0 {
				t.Error(`wopproxy_tunnels_total{kind="h2c"} = 0, want the tunnel of the client`)
			}
		})
	}
}

// raw is a codec for messages that are bytes.
type raw struct{}

func (raw) Name() string                  { return "raw" }
func (raw) Marshal(v any) ([]byte, error) { return *v.(*[]byte), nil }
func (raw) Unmarshal(b []byte, v any) error {
	*v.(*[]byte) = slices.Clone(b)
	return nil
}

// echo is the service of node/echo.mjs.
var echo = grpc.ServiceDesc{
	ServiceName: "peers.Echo",
	HandlerType: (*any)(nil),
	Methods: []grpc.MethodDesc{{MethodName: "Unary", Handler: func(_ any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		var m []byte
		if err := decode(&m); err != nil {
			return nil, err
		}
		if string(m) == "fail" {
			return nil, grpcstatus.Error(codes.FailedPrecondition, "not so")
		}
		return &m, grpc.SetTrailer(ctx, sentBack(ctx))
	}}},
	Streams: []grpc.StreamDesc{
		{StreamName: "Down", ServerStreams: true, Handler: func(_ any, s grpc.ServerStream) error {
			var m []byte
			if err := s.RecvMsg(&m); err != nil {
				return err
			}
			s.SetTrailer(sentBack(s.Context()))
			return errors.Join(s.SendMsg(&m), s.SendMsg(&m), s.SendMsg(&m))
		}},
		{StreamName: "Both", ServerStreams: true, ClientStreams: true, Handler: func(_ any, s grpc.ServerStream) error {
			s.SetTrailer(sentBack(s.Context()))
			for {
				var m []byte
				if err := s.RecvMsg(&m); err != nil {
					if errors.Is(err, io.EOF) {
						return nil
					}
					return err
				}
				if err := s.SendMsg(&m); err != nil {
					return err
				}
			}
		}},
	},
}

// sentBack is the metadata of a call that goes into its trailers.
func sentBack(ctx context.Context) metadata.MD {
	in, _ := metadata.FromIncomingContext(ctx)
	return metadata.MD{"x-key": in["x-key"], "data-bin": in["data-bin"]}
}

// newGRPCServer serves echo on grpc-go.
func newGRPCServer(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := grpc.NewServer(grpc.ForceServerCodec(raw{}))
	srv.RegisterService(&echo, nil)
	go srv.Serve(ln) //nolint:errcheck // it ends with the test
	t.Cleanup(srv.Stop)
	return ln.Addr().String()
}

// callGRPC does what node/grpc-client.mjs does, on grpc-go.
func callGRPC(t *testing.T, a *sidecar, target string) error {
	egress, err := url.Parse(a.egress)
	if err != nil {
		return err
	}
	conn, err := grpc.NewClient("passthrough:///"+target,
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.ForceCodec(raw{})),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			// Explicitly: grpc-go takes no proxy for loopback.
			return openTunnel(ctx, egress.Host, addr)
		}))
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	sent := metadata.MD{"x-key": {"a value"}, "data-bin": {"\x00\xff\x07"}}
	ctx = metadata.NewOutgoingContext(ctx, sent)
	message, answer := []byte{0, 1, 2, 0xff, 0x0a, 0}, []byte(nil)
	var trailer metadata.MD
	if err := conn.Invoke(ctx, "/peers.Echo/Unary", &message, &answer, grpc.Trailer(&trailer)); err != nil || !bytes.Equal(answer, message) {
		return fmt.Errorf("unary = %q, %w, want %q", answer, err, message)
	}
	if err := sameTrailer(sent, trailer); err != nil {
		return fmt.Errorf("unary: %w", err)
	}
	if err := streamDown(ctx, conn, message, sent); err != nil {
		return fmt.Errorf("stream: %w", err)
	}
	if err := streamBoth(ctx, conn, sent); err != nil {
		return fmt.Errorf("streams in both directions: %w", err)
	}
	fail := []byte("fail")
	for i := range failures {
		err := conn.Invoke(ctx, "/peers.Echo/Unary", &fail, &answer)
		if s := grpcstatus.Convert(err); s.Code() != codes.FailedPrecondition || s.Message() != "not so" {
			return fmt.Errorf("failure %d = %w, want %v and its message", i, err, codes.FailedPrecondition)
		}
	}
	return nil
}

func sameTrailer(want, got metadata.MD) error {
	for key, values := range want {
		if !slices.Equal(got[key], values) {
			return fmt.Errorf("trailer %s = %q, want %q", key, got[key], values)
		}
	}
	return nil
}

func streamDown(ctx context.Context, conn *grpc.ClientConn, message []byte, sent metadata.MD) error {
	s, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, "/peers.Echo/Down")
	if err != nil {
		return err
	}
	if err := errors.Join(s.SendMsg(&message), s.CloseSend()); err != nil {
		return err
	}
	for i := range 3 {
		var m []byte
		if err := s.RecvMsg(&m); err != nil || !bytes.Equal(m, message) {
			return fmt.Errorf("message %d = %q, %w, want %q", i, m, err, message)
		}
	}
	return ended(s, sent)
}

// streamBoth sends each message only when the one before has come back.
func streamBoth(ctx context.Context, conn *grpc.ClientConn, sent metadata.MD) error {
	s, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/peers.Echo/Both")
	if err != nil {
		return err
	}
	for _, text := range []string{"one", "two", "three"} {
		m, back := []byte(text), []byte(nil)
		if err := s.SendMsg(&m); err != nil {
			return err
		}
		if err := s.RecvMsg(&back); err != nil || string(back) != text {
			return fmt.Errorf("message = %q, %w, want %q", back, err, text)
		}
	}
	if err := s.CloseSend(); err != nil {
		return err
	}
	return ended(s, sent)
}

// ended reads the end of a stream.
func ended(s grpc.ClientStream, sent metadata.MD) error {
	var m []byte
	if err := s.RecvMsg(&m); !errors.Is(err, io.EOF) {
		return fmt.Errorf("at the end: %q, %w, want %w", m, err, io.EOF)
	}
	return sameTrailer(sent, s.Trailer())
}
