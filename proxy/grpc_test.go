package proxy

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	a2apb0 "github.com/a2aproject/a2a-go/a2apb"
	a2apb "github.com/a2aproject/a2a-go/v2/a2apb/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/wopproxy/wopproxy/ancestry"
	"github.com/wopproxy/wopproxy/proxy/internal/wire"
)

// grpcAgent is an A2A agent of both generations on grpc-go. What it does with a
// message is a function of the test, and it remembers what it was sent.
type grpcAgent struct {
	a2apb.UnimplementedA2AServiceServer
	old  grpcAgent03
	addr string

	mu   sync.Mutex
	seen []grpcCall
	// do answers a message with the state of its task, or an error.
	do func(ctx context.Context, m *a2apb.Message) (a2apb.TaskState, error)
}

// grpcAgent03 speaks 0.3 for an agent.
type grpcAgent03 struct {
	a2apb0.UnimplementedA2AServiceServer
	*grpcAgent
}

// grpcCall is what has reached an agent.
type grpcCall struct {
	metadata metadata.MD
	message  *structpb.Struct // its metadata
	text     string
}

// newGRPCAgent starts an agent whose tasks are named in their order, "NAME-task-1".
func newGRPCAgent(t testing.TB, opts ...grpc.ServerOption) *grpcAgent {
	t.Helper()
	a := &grpcAgent{do: func(context.Context, *a2apb.Message) (a2apb.TaskState, error) {
		return a2apb.TaskState_TASK_STATE_COMPLETED, nil
	}}
	a.old.grpcAgent = a
	s := grpc.NewServer(append(opts, grpc.MaxRecvMsgSize(16<<20), grpc.UnknownServiceHandler(echo))...)
	a2apb.RegisterA2AServiceServer(s, a)
	a2apb0.RegisterA2AServiceServer(s, &a.old)
	a.addr = serveGRPC(t, s)
	return a
}

// serveGRPC serves s, and returns its host:port.
func serveGRPC(t testing.TB, s *grpc.Server) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = s.Serve(l) }() // ends with Stop
	t.Cleanup(s.Stop)
	return l.Addr().String()
}

// echo is every other service: it sends back what comes, while it comes, in a
// stream that is open both ways.
func echo(_ any, stream grpc.ServerStream) error {
	md, _ := metadata.FromIncomingContext(stream.Context())
	if err := stream.SetHeader(metadata.MD{"got-bin": md["some-bin"], "got-timeout": {fmt.Sprint(hasDeadline(stream.Context()))}}); err != nil {
		return err
	}
	stream.SetTrailer(metadata.Pairs("end", "reached"))
	for {
		var m structpb.Struct
		if err := stream.RecvMsg(&m); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if err := stream.SendMsg(&m); err != nil {
			return err
		}
	}
}

func hasDeadline(ctx context.Context) bool {
	_, ok := ctx.Deadline()
	return ok
}

// sent takes a message and returns its task.
func (a *grpcAgent) sent(ctx context.Context, m *a2apb.Message) (*a2apb.Task, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	a.mu.Lock()
	a.seen = append(a.seen, grpcCall{md, m.GetMetadata(), m.GetParts()[0].GetText()})
	id, do := m.GetTaskId(), a.do
	if id == "" {
		id = fmt.Sprintf("task-%d-of-%s", len(a.seen), a.addr)
	}
	a.mu.Unlock()
	state, err := do(ctx, m)
	return &a2apb.Task{Id: id, ContextId: "context-of-" + id, Status: &a2apb.TaskStatus{State: state}}, err
}

// calls returns what has come so far.
func (a *grpcAgent) calls() []grpcCall {
	a.mu.Lock()
	defer a.mu.Unlock()
	return append([]grpcCall(nil), a.seen...)
}

func (a *grpcAgent) SendMessage(ctx context.Context, r *a2apb.SendMessageRequest) (*a2apb.SendMessageResponse, error) {
	task, err := a.sent(ctx, r.GetMessage())
	return &a2apb.SendMessageResponse{Payload: &a2apb.SendMessageResponse_Task{Task: task}}, err
}

// SendStreamingMessage says at first that the task works, unless it has failed
// at once, and then what became of it.
func (a *grpcAgent) SendStreamingMessage(r *a2apb.SendMessageRequest, s grpc.ServerStreamingServer[a2apb.StreamResponse]) error {
	task, err := a.sent(s.Context(), r.GetMessage())
	end := task.GetStatus()
	if err != nil && end.GetState() == 0 {
		return err
	}
	task.Status = &a2apb.TaskStatus{State: a2apb.TaskState_TASK_STATE_WORKING}
	if err != nil {
		_ = s.Send(&a2apb.StreamResponse{Payload: &a2apb.StreamResponse_Task{Task: task}})
		return err
	}
	return errors.Join(
		s.Send(&a2apb.StreamResponse{Payload: &a2apb.StreamResponse_Task{Task: task}}),
		s.Send(&a2apb.StreamResponse{Payload: &a2apb.StreamResponse_StatusUpdate{StatusUpdate: &a2apb.TaskStatusUpdateEvent{
			TaskId: task.GetId(), ContextId: task.GetContextId(), Status: end,
		}}}))
}

func (a *grpcAgent) GetTask(_ context.Context, r *a2apb.GetTaskRequest) (*a2apb.Task, error) {
	if r.GetId() == "none" {
		return nil, status.Error(codes.NotFound, "no such task: \"none\"")
	}
	return &a2apb.Task{Id: r.GetId(), Status: &a2apb.TaskStatus{State: a2apb.TaskState_TASK_STATE_WORKING}}, nil
}

func (a *grpcAgent) CancelTask(_ context.Context, r *a2apb.CancelTaskRequest) (*a2apb.Task, error) {
	return &a2apb.Task{Id: r.GetId(), Status: &a2apb.TaskStatus{State: a2apb.TaskState_TASK_STATE_CANCELED}}, nil
}

func (a *grpcAgent) SubscribeToTask(r *a2apb.SubscribeToTaskRequest, s grpc.ServerStreamingServer[a2apb.StreamResponse]) error {
	task := &a2apb.Task{Id: r.GetId(), Status: &a2apb.TaskStatus{State: a2apb.TaskState_TASK_STATE_WORKING}}
	return s.Send(&a2apb.StreamResponse{Payload: &a2apb.StreamResponse_Task{Task: task}})
}

func (a *grpcAgent03) task(ctx context.Context, r *a2apb0.SendMessageRequest) (*a2apb0.Task, error) {
	m := r.GetRequest()
	task, err := a.sent(ctx, &a2apb.Message{
		TaskId: m.GetTaskId(), Metadata: m.GetMetadata(),
		Parts: []*a2apb.Part{{Content: &a2apb.Part_Text{Text: m.GetParts()[0].GetText()}}},
	})
	if err != nil {
		return nil, err
	}
	return &a2apb0.Task{Id: task.GetId(), ContextId: task.GetContextId(), Status: &a2apb0.TaskStatus{State: a2apb0.TaskState(task.GetStatus().GetState())}}, nil
}

func (a *grpcAgent03) SendMessage(ctx context.Context, r *a2apb0.SendMessageRequest) (*a2apb0.SendMessageResponse, error) {
	task, err := a.task(ctx, r)
	return &a2apb0.SendMessageResponse{Payload: &a2apb0.SendMessageResponse_Task{Task: task}}, err
}

func (a *grpcAgent03) SendStreamingMessage(r *a2apb0.SendMessageRequest, s grpc.ServerStreamingServer[a2apb0.StreamResponse]) error {
	task, err := a.task(s.Context(), r)
	if err != nil {
		return err
	}
	return errors.Join(
		s.Send(&a2apb0.StreamResponse{Payload: &a2apb0.StreamResponse_Task{Task: task}}),
		s.Send(&a2apb0.StreamResponse{Payload: &a2apb0.StreamResponse_StatusUpdate{StatusUpdate: &a2apb0.TaskStatusUpdateEvent{
			TaskId: task.GetId(), Status: task.GetStatus(), Final: true,
		}}}))
}

func (a *grpcAgent03) GetTask(_ context.Context, r *a2apb0.GetTaskRequest) (*a2apb0.Task, error) {
	return &a2apb0.Task{Id: strings.TrimPrefix(r.GetName(), "tasks/"), Status: &a2apb0.TaskStatus{State: a2apb0.TaskState_TASK_STATE_WORKING}}, nil
}

func (a *grpcAgent03) CancelTask(_ context.Context, r *a2apb0.CancelTaskRequest) (*a2apb0.Task, error) {
	return &a2apb0.Task{Id: strings.TrimPrefix(r.GetName(), "tasks/"), Status: &a2apb0.TaskStatus{State: a2apb0.TaskState_TASK_STATE_CANCELLED}}, nil
}

func (a *grpcAgent03) TaskSubscription(r *a2apb0.TaskSubscriptionRequest, s grpc.ServerStreamingServer[a2apb0.StreamResponse]) error {
	task := &a2apb0.Task{Id: strings.TrimPrefix(r.GetName(), "tasks/"), Status: &a2apb0.TaskStatus{State: a2apb0.TaskState_TASK_STATE_WORKING}}
	return s.Send(&a2apb0.StreamResponse{Payload: &a2apb0.StreamResponse_Task{Task: task}})
}

// grpcCaller calls an agent in one way of several.
type grpcCaller struct {
	name      string
	send      func(ctx context.Context, c *grpc.ClientConn, task, text string, md *structpb.Struct) (string, error)
	get       func(ctx context.Context, c *grpc.ClientConn, task string) error
	cancel    func(ctx context.Context, c *grpc.ClientConn, task string) error
	subscribe func(ctx context.Context, c *grpc.ClientConn, task string) error
}

// drain reads a stream to its end and returns the last message.
func drain[T any](s grpc.ServerStreamingClient[T], err error) (*T, error) {
	if err != nil {
		return nil, err
	}
	for last := (*T)(nil); ; {
		m, err := s.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return last, nil
		case err != nil:
			return nil, err
		}
		last = m
	}
}

func request10(task, text string, md *structpb.Struct) *a2apb.SendMessageRequest {
	return &a2apb.SendMessageRequest{Message: &a2apb.Message{
		MessageId: "message-1", TaskId: task, Metadata: md, Parts: []*a2apb.Part{{Content: &a2apb.Part_Text{Text: text}}},
	}}
}

func request03(task, text string, md *structpb.Struct) *a2apb0.SendMessageRequest {
	return &a2apb0.SendMessageRequest{Request: &a2apb0.Message{
		MessageId: "message-1", TaskId: task, Metadata: md, Parts: []*a2apb0.Part{{Part: &a2apb0.Part_Text{Text: text}}},
	}}
}

// grpcCallers are both generations, each unary and streaming.
var grpcCallers = func() []grpcCaller {
	new10 := grpcCaller{
		name: "1.0",
		send: func(ctx context.Context, c *grpc.ClientConn, task, text string, md *structpb.Struct) (string, error) {
			r, err := a2apb.NewA2AServiceClient(c).SendMessage(ctx, request10(task, text, md))
			return r.GetTask().GetId(), err
		},
		get: func(ctx context.Context, c *grpc.ClientConn, task string) error {
			_, err := a2apb.NewA2AServiceClient(c).GetTask(ctx, &a2apb.GetTaskRequest{Id: task})
			return err
		},
		cancel: func(ctx context.Context, c *grpc.ClientConn, task string) error {
			_, err := a2apb.NewA2AServiceClient(c).CancelTask(ctx, &a2apb.CancelTaskRequest{Id: task})
			return err
		},
		subscribe: func(ctx context.Context, c *grpc.ClientConn, task string) error {
			_, err := drain(a2apb.NewA2AServiceClient(c).SubscribeToTask(ctx, &a2apb.SubscribeToTaskRequest{Id: task}))
			return err
		},
	}
	old := grpcCaller{
		name: "0.3",
		send: func(ctx context.Context, c *grpc.ClientConn, task, text string, md *structpb.Struct) (string, error) {
			r, err := a2apb0.NewA2AServiceClient(c).SendMessage(ctx, request03(task, text, md))
			return r.GetTask().GetId(), err
		},
		get: func(ctx context.Context, c *grpc.ClientConn, task string) error {
			_, err := a2apb0.NewA2AServiceClient(c).GetTask(ctx, &a2apb0.GetTaskRequest{Name: "tasks/" + task})
			return err
		},
		cancel: func(ctx context.Context, c *grpc.ClientConn, task string) error {
			_, err := a2apb0.NewA2AServiceClient(c).CancelTask(ctx, &a2apb0.CancelTaskRequest{Name: "tasks/" + task})
			return err
		},
		subscribe: func(ctx context.Context, c *grpc.ClientConn, task string) error {
			_, err := drain(a2apb0.NewA2AServiceClient(c).TaskSubscription(ctx, &a2apb0.TaskSubscriptionRequest{Name: "tasks/" + task}))
			return err
		},
	}
	new10s, olds := new10, old
	new10s.name, olds.name = "1.0 stream", "0.3 stream"
	new10s.send = func(ctx context.Context, c *grpc.ClientConn, task, text string, md *structpb.Struct) (string, error) {
		last, err := drain(a2apb.NewA2AServiceClient(c).SendStreamingMessage(ctx, request10(task, text, md)))
		return last.GetStatusUpdate().GetTaskId(), err
	}
	olds.send = func(ctx context.Context, c *grpc.ClientConn, task, text string, md *structpb.Struct) (string, error) {
		last, err := drain(a2apb0.NewA2AServiceClient(c).SendStreamingMessage(ctx, request03(task, text, md)))
		return last.GetStatusUpdate().GetTaskId(), err
	}
	return []grpcCaller{new10, new10s, old, olds}
}()

// dialGRPC returns a client of target.
func dialGRPC(t testing.TB, target string, opts ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	opts = append([]grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy()}, opts...)
	c, err := grpc.NewClient("passthrough:///"+strings.TrimPrefix(target, "http://"), opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// through makes a client go by a tunnel of s, as grpc-go does with a proxy.
func (s *sidecar) through(t testing.TB) grpc.DialOption {
	return grpc.WithContextDialer(func(_ context.Context, target string) (net.Conn, error) {
		c := s.connect(t, target)
		return c, c.SetDeadline(noDeadline)
	})
}

// grpcHost adds an agent on gRPC to the host of a sidecar.
func (a *grpcAgent) host(o *Options, _ *Policy) {
	o.GRPCUpstream = &url.URL{Scheme: "http", Host: a.addr}
}

// newGRPCSidecar starts an agent and the sidecar of its host, which serves
// nothing but gRPC.
func newGRPCSidecar(t testing.TB, hostID string, tune ...func(*Options, *Policy)) (*grpcAgent, *sidecar) {
	t.Helper()
	a := newGRPCAgent(t)
	return a, newSidecar(t, hostID, "http://127.0.0.1:1", append([]func(*Options, *Policy){a.host}, tune...)...)
}

// TestGRPCChain: a message over gRPC begins a run on one host, whose message
// over gRPC begins one on another: recorded with its evidence, known by the id
// of its task, in one trace.
func TestGRPCChain(t *testing.T) {
	for _, by := range grpcCallers {
		t.Run(by.name, func(t *testing.T) {
			back, callee := newGRPCSidecar(t, "back.example.com")
			front, caller := newGRPCSidecar(t, "front.example.com")
			out := dialGRPC(t, callee.ingress.URL, caller.through(t))
			front.do = func(context.Context, *a2apb.Message) (a2apb.TaskState, error) {
				_, err := by.send(t.Context(), out, "", "on", nil)
				return a2apb.TaskState_TASK_STATE_COMPLETED, err
			}
			ctx := metadata.AppendToOutgoingContext(t.Context(), "traceparent", "00-11111111111111111111111111111111-2222222222222222-01")
			task, err := by.send(ctx, dialGRPC(t, caller.ingress.URL), "", "go", nil)
			if err != nil {
				t.Fatal(err)
			}
			caller.handled.wait(t)
			callee.handled.wait(t)
			parents, children := caller.recorded(t), callee.recorded(t)
			if len(parents) != 1 || len(children) != 1 {
				t.Fatalf("runs: %v, %v, want one on each side", parents, children)
			}
			parent, child := parents[0], children[0]
			if parent.Alias != ancestry.RunID(task) || parent.Trace.String() != "11111111111111111111111111111111" || parent.Parent() != nil {
				t.Errorf("parent = %+v, want the run of %s in the caller's trace", parent, task)
			}
			p := child.Parent()
			if p == nil || p.Run != parent.Run || p.Host != "front.example.com" || p.Cause != ancestry.CauseA2AMessage || child.Trace != parent.Trace {
				t.Errorf("parent of %+v = %+v, want %s", child, p, parent.Run)
			}
			if !strings.HasPrefix(string(child.Alias), "task-1-of-") || child.Operation != by.operation() {
				t.Errorf("child = %+v, want it named after its task", child)
			}
			kids, _, err := caller.recorder.Children(t.Context(), parent.Run, "", 10)
			if err != nil || len(kids) != 1 || kids[0].Evidence != ancestry.EvidenceSingleFlight || kids[0].Alias != child.Alias {
				t.Errorf("children noted by the caller = %+v, %v, want %s by single-flight", kids, err, child.Run)
			}
			md := back.calls()[0].metadata
			if md.Get("run-id")[0] != string(child.Run) || !strings.Contains(md.Get("traceparent")[0], child.Trace.String()) ||
				len(md.Get("content-length"))+len(md.Get("grpc-accept-encoding")) > 0 || len(md.Get("run-ancestry")) != 1 {
				t.Errorf("the agent was given %v", md)
			}
			if n := len(callee.Live()) + len(caller.Live()); n != 0 {
				t.Errorf("live runs = %d, want none after the tasks have ended", n)
			}
			caller.wantSeries(t, fmt.Sprintf(`rpc_server_call_duration_seconds_count{rpc_method=%q,rpc_system_name="grpc"}`, by.operation()), 1)
			caller.wantSeries(t, `wopproxy_exchanges_total{direction="egress",outcome="answered",protocol="a2a"}`, 1)
		})
	}
}

// operation is what the caller's way of sending is called.
func (c grpcCaller) operation() string {
	if strings.HasSuffix(c.name, "stream") {
		return "SendStreamingMessage"
	}
	return "SendMessage"
}

// carrying makes ctx say which run a call belongs to.
func carrying(ctx context.Context, run string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "run-id", run)
}

// TestGRPCLaterRequests: whoever asks for a task that there is, goes on with it,
// or ends it, does not become its parent.
func TestGRPCLaterRequests(t *testing.T) {
	for _, by := range grpcCallers {
		t.Run(by.name, func(t *testing.T) {
			a, callee := newGRPCSidecar(t, "back.example.com")
			a.do = func(context.Context, *a2apb.Message) (a2apb.TaskState, error) {
				return a2apb.TaskState_TASK_STATE_WORKING, nil
			}
			_, caller := newGRPCSidecar(t, "front.example.com")
			c := dialGRPC(t, callee.ingress.URL, caller.through(t))
			task, err := by.send(carrying(t.Context(), "run-1"), c, "", "go", nil)
			if err != nil {
				t.Fatal(err)
			}
			later := carrying(t.Context(), "run-2")
			_, err = by.send(later, c, task, "go on", nil)
			if err = errors.Join(err, by.get(later, c, task), by.subscribe(later, c, task)); err != nil {
				t.Fatal(err)
			}
			callee.handled.wait(t)
			if live := callee.Live(); len(live) != 1 || live[0].Alias != ancestry.RunID(task) {
				t.Errorf("live = %+v, want the run of %s", live, task)
			}
			if err := by.cancel(later, c, task); err != nil {
				t.Fatal(err)
			}
			caller.handled.wait(t)
			callee.handled.wait(t)
			if live := callee.Live(); len(live) != 0 {
				t.Errorf("live = %+v, want none after the task was canceled", live)
			}
			runs := callee.recorded(t)
			if len(runs) != 1 || runs[0].Parent() == nil || runs[0].Parent().Run != "run-1" {
				t.Errorf("runs = %+v, want one, of run-1", runs)
			}
			for _, l := range caller.noted() {
				if l.Parent() == nil || l.Parent().Run != "run-1" {
					t.Errorf("the caller notes %+v, want children of run-1 alone", l)
				}
			}
			if got := a.calls()[1].metadata.Get("run-id"); len(got) != 1 || got[0] != task {
				t.Errorf("the later turn is given run %v, want %s", got, task)
			}
		})
	}
}

// inMessageOf returns metadata with a carrier in it.
func inMessageOf(t *testing.T, traceparent string) *structpb.Struct {
	t.Helper()
	md, err := structpb.NewStruct(map[string]any{"other": 1, "openwop": map[string]any{"traceparent": traceparent, "interrupt": true}})
	if err != nil {
		t.Fatal(err)
	}
	return md
}

// traceOf returns the trace that a message carries.
func (c grpcCall) traceOf() string {
	parent := c.message.GetFields()["openwop"].GetStructValue().GetFields()["traceparent"].GetStringValue()
	if parent == "" {
		return ""
	}
	return strings.Split(parent, "-")[1]
}

// TestGRPCInMessage: the carrier in a message wins where it arrives, is brought
// up to date where it leaves, and is made only where that was asked for.
func TestGRPCInMessage(t *testing.T) {
	const theirs, header = "11111111111111111111111111111111", "22222222222222222222222222222222"
	for _, by := range grpcCallers {
		t.Run(by.name, func(t *testing.T) {
			a, s := newGRPCSidecar(t, "back.example.com")
			ctx := metadata.AppendToOutgoingContext(t.Context(), "traceparent", "00-"+header+"-2222222222222222-01")
			send := func(ctx context.Context, c *grpc.ClientConn, md *structpb.Struct) grpcCall {
				t.Helper()
				if _, err := by.send(ctx, c, "", "go", md); err != nil {
					t.Fatal(err)
				}
				calls := a.calls()
				return calls[len(calls)-1]
			}
			got := send(ctx, dialGRPC(t, s.ingress.URL), inMessageOf(t, "00-"+theirs+"-1111111111111111-01"))
			if head := got.metadata.Get("traceparent")[0]; got.traceOf() != theirs || !strings.Contains(head, theirs) ||
				!got.message.GetFields()["openwop"].GetStructValue().GetFields()["interrupt"].GetBoolValue() {
				t.Errorf("in: the agent was given %s and %v, want the trace of the message", head, got.message)
			}
			s.wantSeries(t, `wopproxy_context_conflicts_total{direction="ingress"}`, 1)

			out := dialGRPC(t, a.addr, s.through(t))
			ctx = carrying(ctx, "run-1")
			if got := send(ctx, out, inMessageOf(t, "00-"+theirs+"-1111111111111111-01")); got.traceOf() == "" || !strings.Contains(got.metadata.Get("traceparent")[0], got.traceOf()) {
				t.Errorf("out: the agent was given %v and %v, want one trace", got.metadata, got.message)
			}
			if got := send(ctx, out, nil); got.message != nil {
				t.Errorf("unasked: the agent was given %v, want no metadata", got.message)
			}
			_, asked := newGRPCSidecar(t, "asked.example.com", func(_ *Options, p *Policy) { p.A2AInMessage = func(string) bool { return true } })
			if got := send(ctx, dialGRPC(t, a.addr, asked.through(t)), nil); got.traceOf() != header {
				t.Errorf("asked for: the agent was given %v, want the trace in it", got.message)
			}
		})
	}
}

// TestGRPCUnread: what can't be read passes whole, with the context in its
// headers. Whether it begins a run or goes on with one is then not known.
func TestGRPCUnread(t *testing.T) {
	long := strings.Repeat("x", 5<<20)
	for name, tt := range map[string]struct {
		text   string
		opts   []grpc.CallOption
		reason string
	}{
		"compressed": {"go", []grpc.CallOption{grpc.UseCompressor(gzip.Name)}, "compressed"},
		"long":       {long, nil, "too-large"},
	} {
		t.Run(name, func(t *testing.T) {
			a, s := newGRPCSidecar(t, "back.example.com")
			md := inMessageOf(t, "00-11111111111111111111111111111111-1111111111111111-01")
			send := func(ctx context.Context, c *grpc.ClientConn) grpcCall {
				t.Helper()
				if _, err := a2apb.NewA2AServiceClient(c).SendMessage(ctx, request10("", tt.text, md), tt.opts...); err != nil {
					t.Fatal(err)
				}
				calls := a.calls()
				got := calls[len(calls)-1]
				if got.text != tt.text || got.traceOf() != "11111111111111111111111111111111" || len(got.metadata.Get("traceparent")) != 1 {
					t.Errorf("the agent was given %v and %d bytes, want the message as it was and a header", got.metadata, len(got.text))
				}
				return got
			}
			send(metadata.AppendToOutgoingContext(t.Context(), "run-ancestry", `"p-1";host="up.example.com";cause=a2a-message`), dialGRPC(t, s.ingress.URL))
			s.wantSeries(t, refused(ingress, tt.reason), 1)
			if runs := s.recorded(t); len(runs) != 1 || runs[0].Parent() != nil || runs[0].Reason != reasonUnread {
				t.Errorf("runs = %+v, want one without a parent", runs)
			}
			if got := send(carrying(t.Context(), "run-1"), dialGRPC(t, a.addr, s.through(t))); !strings.HasPrefix(got.metadata.Get("run-ancestry")[0], `"run-1"`) {
				t.Errorf("out: the agent was given %v, want the run", got.metadata)
			}
			s.wantSeries(t, refused(egress, tt.reason), 1)
			if name == "long" {
				s.wantSeries(t, hit(limitBody), 2)
			}
		})
	}
}

// TestGRPCTrailersOnly: an error that has nothing but its head never loses its
// status, through both directions of two sidecars.
func TestGRPCTrailersOnly(t *testing.T) {
	_, callee := newGRPCSidecar(t, "back.example.com")
	_, caller := newGRPCSidecar(t, "front.example.com")
	in, out := dialGRPC(t, callee.ingress.URL), dialGRPC(t, callee.ingress.URL, caller.through(t))
	const each = 1000
	var all sync.WaitGroup
	for _, c := range []*grpc.ClientConn{in, out} {
		for range 8 {
			all.Go(func() {
				for range each / 8 {
					_, err := a2apb.NewA2AServiceClient(c).GetTask(t.Context(), &a2apb.GetTaskRequest{Id: "none"})
					if got := status.Convert(err); got.Code() != codes.NotFound || got.Message() != `no such task: "none"` {
						t.Errorf("status = %v", err)
					}
				}
			})
		}
	}
	all.Wait()
	caller.wantSeries(t, `rpc_client_call_duration_seconds_count{error_type="NOT_FOUND",rpc_method="GetTask",rpc_response_status_code="NOT_FOUND",rpc_system_name="grpc"}`, each)
	// What the caller did wrong is no error of the server's.
	callee.wantSeries(t, `rpc_server_call_duration_seconds_count{rpc_method="GetTask",rpc_response_status_code="NOT_FOUND",rpc_system_name="grpc"}`, 2*each)
}

// TestGRPCErrors: an error ends the run that began with the request, as it does
// over JSON-RPC, unless all it says is that the caller waits no longer; and none
// ends the run of an earlier request.
func TestGRPCErrors(t *testing.T) {
	for _, tt := range []struct {
		code codes.Code
		live int
	}{{codes.Internal, 0}, {codes.InvalidArgument, 0}, {codes.DeadlineExceeded, 1}, {codes.Canceled, 1}} {
		for _, by := range grpcCallers {
			t.Run(fmt.Sprint(by.name, " ", tt.code), func(t *testing.T) {
				a, s := newGRPCSidecar(t, "back.example.com")
				a.do = func(_ context.Context, m *a2apb.Message) (a2apb.TaskState, error) {
					if m.GetParts()[0].GetText() == "fail" {
						return 0, status.Error(tt.code, "as asked")
					}
					return a2apb.TaskState_TASK_STATE_WORKING, nil
				}
				c := dialGRPC(t, s.ingress.URL)
				_, err := by.send(t.Context(), c, "", "fail", nil)
				if status.Code(err) != tt.code {
					t.Fatalf("send = %v, want %v", err, tt.code)
				}
				s.handled.wait(t)
				if live := s.Live(); len(live) != tt.live {
					t.Errorf("live = %+v, want %d", live, tt.live)
				}
				task, err := by.send(t.Context(), c, "", "go", nil)
				if err != nil {
					t.Fatal(err)
				}
				if _, err = by.send(t.Context(), c, task, "fail", nil); status.Code(err) != tt.code {
					t.Fatalf("send = %v, want %v", err, tt.code)
				}
				s.handled.wait(t)
				if live := s.Live(); len(live) != tt.live+1 {
					t.Errorf("live = %+v, want the task that works on among %d", live, tt.live+1)
				}
			})
		}
	}
}

// TestGRPCLateError: the status of a stream that has begun stands in its
// trailers, and what the stream has said of its task stays true.
func TestGRPCLateError(t *testing.T) {
	a, s := newGRPCSidecar(t, "back.example.com")
	a.do = func(context.Context, *a2apb.Message) (a2apb.TaskState, error) {
		return a2apb.TaskState_TASK_STATE_WORKING, status.Error(codes.Internal, "as asked")
	}
	_, err := drain(a2apb.NewA2AServiceClient(dialGRPC(t, s.ingress.URL)).SendStreamingMessage(t.Context(), request10("", "go", nil)))
	if status.Code(err) != codes.Internal {
		t.Fatalf("the stream ends with %v", err)
	}
	s.wantSeries(t, `rpc_server_call_duration_seconds_count{error_type="INTERNAL",rpc_method="SendStreamingMessage",rpc_response_status_code="INTERNAL",rpc_system_name="grpc"}`, 1)
	if live := s.Live(); len(live) != 1 || !strings.HasPrefix(string(live[0].Alias), "task-1-of-") {
		t.Errorf("live = %+v, want the task that works", live)
	}
}

// TestGRPCAnnounced: a request that says how long it is says so rightly after an
// edit.
func TestGRPCAnnounced(t *testing.T) {
	length := make(chan [2]int64, 1)
	to := peer(t, func(_ http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		length <- [2]int64{r.ContentLength, int64(len(b))}
	})
	s := newSidecar(t, "back.example.com", "http://"+to)
	message, err := proto.Marshal(request10("", "go", inMessageOf(t, "00-11111111111111111111111111111111-1111111111111111-01")))
	if err != nil {
		t.Fatal(err)
	}
	body := wire.AppendFrame(nil, message)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.ingress.URL+"/lf.a2a.v1.A2AService/SendMessage", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header = http.Header{"Content-Type": {"application/grpc+proto"}}
	tr := &http.Transport{Protocols: new(http.Protocols)}
	tr.Protocols.SetUnencryptedHTTP2(true)
	defer tr.CloseIdleConnections()
	resp, err := tr.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if got := receive(t, length, "the request"); got[0] != got[1] || got[1] <= int64(len(body)) {
		t.Errorf("announced and read = %v, want one length above %d", got, len(body))
	}
}

// TestIsGRPC: gRPC-Web, and what only looks like gRPC, is not taken for it; and
// other encodings than protobuf are not read.
func TestIsGRPC(t *testing.T) {
	for _, tt := range []struct {
		contentType string
		grpc, reads bool
	}{
		{"application/grpc", true, true},
		{"application/grpc;x=y", true, true},
		{"application/grpc+proto", true, true},
		{"application/grpc+json", true, false},
		{"application/grpc-web", false, false},
		{"application/grpc-web+proto", false, false},
		{"application/json", false, false},
		{"", false, false},
	} {
		r := &http.Request{Method: http.MethodPost, ProtoMajor: 2, Header: http.Header{"Content-Type": {tt.contentType}}}
		if got := isGRPC(r); got != tt.grpc {
			t.Errorf("isGRPC(%q) = %v", tt.contentType, got)
		}
		if got := readsGRPC(tt.contentType); got != tt.reads {
			t.Errorf("readsGRPC(%q) = %v", tt.contentType, got)
		}
		if r.ProtoMajor = 1; isGRPC(r) {
			t.Errorf("%q over HTTP/1 is taken for gRPC", tt.contentType)
		}
	}
}

// TestGRPCCancelled: who hangs up is heard by the agent, and so is the deadline;
// the run goes on.
func TestGRPCCancelled(t *testing.T) {
	for _, by := range grpcCallers {
		t.Run(by.name, func(t *testing.T) {
			a, s := newGRPCSidecar(t, "back.example.com")
			came, gone := make(chan bool), make(chan error)
			a.do = func(ctx context.Context, _ *a2apb.Message) (a2apb.TaskState, error) {
				came <- hasDeadline(ctx)
				<-ctx.Done()
				gone <- ctx.Err()
				return 0, ctx.Err()
			}
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			sent := make(chan error, 1)
			c := dialGRPC(t, s.ingress.URL)
			go func() {
				_, err := by.send(ctx, c, "", "go", nil)
				sent <- err
			}()
			if !receive(t, came, "the message") {
				t.Error("the agent has no deadline, want the client's")
			}
			cancel()
			if err := receive(t, gone, "the agent to hear of it"); !errors.Is(err, context.Canceled) {
				t.Errorf("the agent's context ends with %v", err)
			}
			if err := receive(t, sent, "the client to return"); status.Code(err) != codes.Canceled {
				t.Errorf("send = %v", err)
			}
			s.wantSeries(t, `wopproxy_exchanges_total{direction="ingress",outcome="client-gone",protocol="a2a"}`, 1)
			if live := s.Live(); len(live) != 1 {
				t.Errorf("live = %+v, want the run: its task may go on", live)
			}
		})
	}
}

// TestGRPCOfOthers: gRPC that is not A2A, and a method of A2A that is not known
// yet, pass as they come, open both ways, with their binary metadata,
// their deadline and their trailers.
func TestGRPCOfOthers(t *testing.T) {
	a, s := newGRPCSidecar(t, "back.example.com")
	for name, c := range map[string]*grpc.ClientConn{
		"ingress": dialGRPC(t, s.ingress.URL), "egress": dialGRPC(t, a.addr, s.through(t)),
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(t.Context(), "some-bin", "\x00\xff\n"), patience)
			defer cancel()
			for _, method := range []string{"/other.Service/Chat", "/a2a.v2.A2AService/SendMessage", "/lf.a2a.v1.A2AService/Chat"} {
				stream, err := c.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method)
				if err != nil {
					t.Fatal(err)
				}
				for _, text := range []string{"one", strings.Repeat("x", 3<<20)} {
					want := &structpb.Struct{Fields: map[string]*structpb.Value{"text": structpb.NewStringValue(text)}}
					var got structpb.Struct
					if err := errors.Join(stream.SendMsg(want), stream.RecvMsg(&got)); err != nil {
						t.Fatal(err)
					}
					if got.GetFields()["text"].GetStringValue() != text {
						t.Errorf("%s: the echo differs", method)
					}
				}
				head, err := stream.Header()
				if err != nil || head.Get("got-bin")[0] != "\x00\xff\n" || head.Get("got-timeout")[0] != "true" {
					t.Errorf("%s: the agent was given %v, %v", method, head, err)
				}
				if err := errors.Join(stream.CloseSend(), stream.RecvMsg(&structpb.Struct{})); !errors.Is(err, io.EOF) || stream.Trailer().Get("end") == nil {
					t.Errorf("%s ends with %v and %v", method, err, stream.Trailer())
				}
			}
		})
	}
	if runs := s.recorded(t); len(runs) != 0 {
		t.Errorf("runs = %+v, want none", runs)
	}
}

// TestGRPCLeftOpen: a client that leaves its side open after its message waits
// for nothing, and its message is edited all the same.
func TestGRPCLeftOpen(t *testing.T) {
	to := peer(t, func(w http.ResponseWriter, r *http.Request) {
		head := make([]byte, 5)
		_, err := io.ReadFull(r.Body, head)
		size, _ := wire.FrameLength(head)
		message := make([]byte, size-5)
		if _, more := io.ReadFull(r.Body, message); errors.Join(err, more) != nil {
			t.Errorf("the message: %v, %v", err, more)
		}
		w.Header().Set("Content-Type", "application/grpc")
		w.Header().Set("Trailer", "Grpc-Status")
		_, _ = w.Write(wire.AppendFrame(nil, message))
		w.Header().Set("Grpc-Status", "0")
	})
	s := newSidecar(t, "back.example.com", "http://"+to, func(_ *Options, p *Policy) { p.BodyPatience = time.Hour })
	body, err := proto.Marshal(request10("", "go", inMessageOf(t, "00-11111111111111111111111111111111-1111111111111111-01")))
	if err != nil {
		t.Fatal(err)
	}
	open, side := io.Pipe()
	defer side.Close()
	go func() { _, _ = side.Write(wire.AppendFrame(nil, body)) }()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.ingress.URL+"/lf.a2a.v1.A2AService/SendMessage", open)
	if err != nil {
		t.Fatal(err)
	}
	r.Header = http.Header{"Content-Type": {"application/grpc"}, "Te": {"trailers"}}
	tr := &http.Transport{Protocols: new(http.Protocols)}
	tr.Protocols.SetUnencryptedHTTP2(true)
	defer tr.CloseIdleConnections()
	resp, err := tr.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	echo, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	var got a2apb.SendMessageRequest
	if err := proto.Unmarshal(echo[5:], &got); err != nil {
		t.Fatal(err)
	}
	call := grpcCall{message: got.GetMessage().GetMetadata()}
	state := call.message.GetFields()["openwop"].GetStructValue().GetFields()["tracestate"].GetStringValue()
	if call.traceOf() != "11111111111111111111111111111111" || !strings.HasPrefix(state, "wop=") || resp.Trailer.Get("Grpc-Status") != "0" {
		t.Errorf("the host got %v, and its answer ends with %v", call.message, resp.Trailer)
	}
}

// TestGRPCManyStreams: a client of gRPC has one connection for all its calls, and
// none of them waits for another to end.
func TestGRPCManyStreams(t *testing.T) {
	const streams = 300 // more than net/http admits of its own accord
	a, s := newGRPCSidecar(t, "back.example.com")
	for name, c := range map[string]*grpc.ClientConn{
		"ingress": dialGRPC(t, s.ingress.URL), "egress": dialGRPC(t, a.addr, s.through(t)),
	} {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		for i := range streams {
			stream, err := c.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, "/other.Service/Chat")
			if err == nil {
				err = errors.Join(stream.SendMsg(&structpb.Struct{}), stream.RecvMsg(&structpb.Struct{}))
			}
			if err != nil {
				t.Fatalf("%s: stream %d: %v", name, i, err)
			}
		}
	}
}

// TestGRPCFailures: what goes wrong on our side reaches a gRPC client as
// UNAVAILABLE, in plain words and without a JSON-RPC body; a runaway delegation
// as an error that is not worth another try.
func TestGRPCFailures(t *testing.T) {
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dead := closed.Addr().String()
	_ = closed.Close()
	s := newSidecar(t, "test.example.com", "http://127.0.0.1:1", func(o *Options, p *Policy) {
		o.GRPCUpstream = &url.URL{Scheme: "http", Host: dead}
		p.MaxDepth = 1
	})
	breaks, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer breaks.Close()
	go func() { // ends with the listener
		for {
			c, err := breaks.Accept()
			if err != nil {
				return
			}
			_, _ = c.Read(make([]byte, 1))
			_ = c.Close()
		}
	}()
	deep := metadata.AppendToOutgoingContext(t.Context(), "run-ancestry", `"p-2";host="a.example.com";cause=a2a-message, "p-1";host="b.example.com";cause=a2a-message`)
	for _, tt := range []struct {
		name string
		ctx  context.Context
		c    *grpc.ClientConn
		code codes.Code
		text string
	}{
		{"no host", t.Context(), dialGRPC(t, s.ingress.URL), codes.Unavailable, "wopproxy: upstream could not be reached"},
		{"a destination that hangs up", t.Context(), dialGRPC(t, breaks.Addr().String(), s.through(t)), codes.Unavailable, "wopproxy: upstream could not be reached"},
		{"too deep", deep, dialGRPC(t, s.ingress.URL), codes.Unknown, "limits.maxDepth"},
	} {
		for _, by := range grpcCallers {
			_, err := by.send(tt.ctx, tt.c, "", "go", nil)
			if got := status.Convert(err); got.Code() != tt.code || !strings.Contains(got.Message(), tt.text) || strings.Contains(got.Message(), "jsonrpc") {
				t.Errorf("%s, %s: %v, want %v and %q", tt.name, by.name, err, tt.code, tt.text)
			}
		}
	}
	s.handled.wait(t)
	if live := s.Live(); len(live) != 0 {
		t.Errorf("live = %+v, want none", live)
	}
}

// ownTLS is a server's certificate for loopback, and whom it leads to.
func ownTLS(t *testing.T) (grpc.ServerOption, *x509.CertPool) {
	t.Helper()
	ca, err := NewCA("agents.example.com")
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := ca.certificate("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca.PEM())
	return grpc.Creds(credentials.NewServerTLSFromCert(leaf)), roots
}

// TestGRPCOverTLS: gRPC is read inside TLS that is opened, goes out over TLS
// that we originate, and reaches a host that speaks TLS itself.
func TestGRPCOverTLS(t *testing.T) {
	secure, roots := ownTLS(t)
	a := newGRPCAgent(t, secure)
	s := newInterceptingSidecar(t, roots)
	opened := dialGRPC(t, a.addr, s.through(t), grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: s.roots(t)})))

	originating := newSidecar(t, "test.example.com", "http://127.0.0.1:1", func(o *Options, p *Policy) {
		o.Roots, p.OriginateTLS = roots, func(string) bool { return true }
	})
	plain := dialGRPC(t, a.addr, originating.through(t))

	behind := newSidecar(t, "test.example.com", "http://127.0.0.1:1", func(o *Options, _ *Policy) {
		o.GRPCUpstream = &url.URL{Scheme: "https", Host: a.addr}
	})
	behind.inbound.trust(roots)
	for name, c := range map[string]*grpc.ClientConn{"opened": opened, "originated": plain, "behind ingress": dialGRPC(t, behind.ingress.URL)} {
		for _, by := range grpcCallers {
			if _, err := by.send(carrying(t.Context(), "run-1"), c, "", name, nil); err != nil {
				t.Errorf("%s, %s: %v", name, by.name, err)
				continue
			}
			calls := a.calls()
			if got := calls[len(calls)-1]; got.text != name || len(got.metadata.Get("traceparent")) != 1 {
				t.Errorf("%s, %s: the agent was given %+v, want it stamped", name, by.name, got)
			}
		}
	}
	n := float64(len(grpcCallers))
	s.wantSeries(t, `wopproxy_exchanges_total{direction="egress",outcome="answered",protocol="a2a"}`, n)
	originating.wantSeries(t, `wopproxy_exchanges_total{direction="egress",outcome="answered",protocol="a2a"}`, n)
	behind.wantSeries(t, `wopproxy_exchanges_total{direction="ingress",outcome="answered",protocol="a2a"}`, n)
}

// TestGRPCAccuracy: many runs at once call out by one connection. Those whose
// host forwards what it was given are all linked, and none is linked wrongly.
func TestGRPCAccuracy(t *testing.T) {
	const runs = 64
	for _, forwards := range []bool{true, false} {
		t.Run(fmt.Sprintf("forwards=%v", forwards), func(t *testing.T) {
			_, callee := newGRPCSidecar(t, "back.example.com")
			front, caller := newGRPCSidecar(t, "front.example.com")
			out := dialGRPC(t, callee.ingress.URL, caller.through(t))
			var mu sync.Mutex
			parents := map[ancestry.RunID]string{} // task of the child → text of the parent
			var all sync.WaitGroup
			all.Add(runs)
			front.do = func(ctx context.Context, m *a2apb.Message) (a2apb.TaskState, error) {
				all.Done()
				all.Wait() // now all are live
				next, md := t.Context(), metadata.MD{}
				if in, _ := metadata.FromIncomingContext(ctx); forwards {
					md = metadata.MD{"traceparent": in["traceparent"], "tracestate": in["tracestate"]}
				}
				for i := range 4 {
					child, err := grpcCallers[i].send(metadata.NewOutgoingContext(next, md), out, "", "on", nil)
					if err != nil {
						return 0, err
					}
					mu.Lock()
					parents[ancestry.RunID(child)] = m.GetParts()[0].GetText()
					mu.Unlock()
				}
				return a2apb.TaskState_TASK_STATE_COMPLETED, nil
			}
			in := dialGRPC(t, caller.ingress.URL)
			tasks := map[string]ancestry.RunID{} // by text
			var sent sync.WaitGroup
			for i := range runs {
				sent.Go(func() {
					text := fmt.Sprint("run ", i)
					task, err := grpcCallers[i%len(grpcCallers)].send(t.Context(), in, "", text, nil)
					if err != nil {
						t.Error(err)
					}
					mu.Lock()
					tasks[text] = ancestry.RunID(task)
					mu.Unlock()
				})
			}
			sent.Wait()
			caller.handled.wait(t)
			callee.handled.wait(t)
			linked, wrong := 0, 0
			for _, l := range callee.recorded(t) {
				if l.Parent() == nil {
					continue
				}
				linked++
				run, err := caller.recorder.Lookup(t.Context(), l.Parent().Run)
				if err != nil || run.Alias != tasks[parents[l.Alias]] {
					wrong++
				}
			}
			want := 0
			if forwards {
				want = runs * 4
			}
			if linked != want || wrong != 0 || len(parents) != runs*4 {
				t.Errorf("of %d calls %d are linked, %d of them wrongly; want %d and 0", len(parents), linked, wrong, want)
			}
		})
	}
}
