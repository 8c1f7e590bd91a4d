package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2aclient"
	"github.com/a2aproject/a2a-go/v2/a2aclient/agentcard"
	"github.com/a2aproject/a2a-go/v2/a2acompat/a2av0"
	a2agrpc0 "github.com/a2aproject/a2a-go/v2/a2agrpc/v0"
	a2agrpc "github.com/a2aproject/a2a-go/v2/a2agrpc/v1"
	"github.com/a2aproject/a2a-go/v2/a2asrv"
	"github.com/a2aproject/a2a-go/v2/a2asrv/push"
)

// binding is one of the ways in which A2A is spoken over HTTP.
type binding struct {
	name    string
	version a2a.ProtocolVersion
	kind    a2a.TransportProtocol
	path    string // of its interface on the agent
	send    string // what the proxy calls an operation that sends
	stream  string
	option  func(*http.Client) a2aclient.FactoryOption
}

var bindings = []binding{
	{"JSON-RPC", a2a.Version, a2a.TransportProtocolJSONRPC, "/a2a", "SendMessage", "SendStreamingMessage",
		a2aclient.WithJSONRPCTransport},
	{"REST", a2a.Version, a2a.TransportProtocolHTTPJSON, "/rest", "POST /message:send", "POST /message:stream",
		a2aclient.WithRESTTransport},
	{"JSON-RPC 0.3", a2av0.Version, a2a.TransportProtocolJSONRPC, "/old", "message/send", "message/stream",
		func(c *http.Client) a2aclient.FactoryOption {
			return a2av0.WithJSONRPCTransport(a2av0.JSONRPCTransportConfig{Client: c})
		}},
	{"REST 0.3", a2av0.Version, a2a.TransportProtocolHTTPJSON, "/oldrest", "POST /message:send", "POST /message:stream",
		func(c *http.Client) a2aclient.FactoryOption {
			return a2av0.WithRESTTransport(a2av0.RESTTransportConfig{Client: c})
		}},
	{"gRPC", a2a.Version, a2a.TransportProtocolGRPC, "/lf.a2a.v1.A2AService", "SendMessage", "SendStreamingMessage",
		func(c *http.Client) a2aclient.FactoryOption { return a2agrpc.WithGRPCTransport(grpcBy(c)...) }},
	{"gRPC 0.3", a2av0.Version, a2a.TransportProtocolGRPC, "/a2a.v1.A2AService", "SendMessage", "SendStreamingMessage",
		func(c *http.Client) a2aclient.FactoryOption { return a2agrpc0.WithGRPCTransport(grpcBy(c)...) }},
}

// overHTTP are the bindings whose client is an http.Client.
var overHTTP = bindings[:4]

// url is where a peer serves the binding that is reached at base, and at grpc
// over gRPC, where an address has neither scheme nor path.
func (b binding) url(base, grpc string) string {
	if b.kind == a2a.TransportProtocolGRPC {
		return strings.TrimPrefix(grpc, "http://")
	}
	return base + b.path
}

// peer is an A2A agent of the official SDK behind its own wopproxy. It knows
// nothing of wopproxy: what it does with a message is a function of the test.
type peer struct {
	*sidecar
	agent a2asrv.RequestHandler
	host  string // the agent's own address, which is all that it knows
	grpc  string // and that of its port for gRPC

	mu    sync.Mutex
	jobs  map[string]job // by the text of the message
	turns []turn
	wire  []a2aRequest
	// sends delivers webhooks; nil: as the SDK does by default.
	sends push.Sender

	// node is the agent, where that is a process of its own.
	node *process
}

// job is what an agent does with a message. What it emits goes to the client;
// an error fails the task.
type job func(ctx context.Context, x *a2asrv.ExecutorContext, emit func(a2a.Event) bool) error

// turn is a message as the agent's code was given it.
type turn struct {
	text, task, run     string
	traceparent, state  string // of the header
	inParent, inState   string // of metadata.openwop in the message
	hasOpenWOP, hasMeta bool
}

// a2aRequest is an HTTP request that reached the agent.
type a2aRequest struct {
	method, uri string // as they stood in the request line
	header      http.Header
	body        string
	left        <-chan struct{} // closed when the request's context has ended
}

// newPeer starts an A2A agent and its wopproxy.
func newPeer(t testing.TB, hostID string, overrides ...settings) *peer {
	t.Helper()
	p := &peer{jobs: map[string]job{}}
	mux := p.handler()
	host := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.noteWire(r)
		mux(w, r)
	}))
	t.Cleanup(host.Close)
	p.host = host.URL
	p.grpc = p.serveGRPC(t)
	p.sidecar = start(t, hostID, host.URL, append([]settings{{"ingress.grpcUpstream": "http://" + p.grpc}}, overrides...)...)
	return p
}

// handler serves all bindings and the card. It goes by prefixes, because a
// http.ServeMux cleans paths.
func (p *peer) handler() http.HandlerFunc {
	p.agent = a2asrv.NewHandler(p, a2asrv.WithLogger(slog.New(slog.DiscardHandler)),
		a2asrv.WithPushNotifications(push.NewInMemoryStore(), senderFunc(p.sendPush)),
		a2asrv.WithExtendedAgentCardProducer(a2asrv.ExtendedAgentCardProducerFn(
			func(ctx context.Context, _ *a2a.GetExtendedAgentCardRequest) (*a2a.AgentCard, error) {
				return p.card(ctx)
			})))
	h := p.agent
	servers := map[string]http.Handler{
		"/a2a": a2asrv.NewJSONRPCHandler(h), "/rest": a2asrv.NewRESTHandler(h),
		"/old": a2av0.NewJSONRPCHandler(h), "/oldrest": a2av0.NewRESTHandler(h),
		"/.well-known": a2asrv.NewAgentCardHandler(a2av0.NewAgentCardProducer(a2asrv.AgentCardProducerFn(p.card))),
	}
	return func(w http.ResponseWriter, r *http.Request) {
		first, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
		srv := servers["/"+first]
		if srv == nil {
			http.NotFound(w, r)
			return
		}
		http.StripPrefix("/"+first, srv).ServeHTTP(w, r)
	}
}

// card is a card for clients of either generation. It gives the agent's own
// address, as agents do that are configured for themselves.
func (p *peer) card(context.Context) (*a2a.AgentCard, error) {
	c := &a2a.AgentCard{
		Name: p.hostID, Description: "an agent", Version: "1",
		Capabilities: a2a.AgentCapabilities{Streaming: true, PushNotifications: true, ExtendedAgentCard: true},
	}
	for _, b := range bindings {
		c.SupportedInterfaces = append(c.SupportedInterfaces,
			&a2a.AgentInterface{URL: b.url(p.host, p.grpc), ProtocolBinding: b.kind, ProtocolVersion: b.version})
	}
	return c, nil
}

// does says what the agent does with a message of that text.
func (p *peer) does(text string, do job) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.jobs[text] = do
}

// Execute implements a2asrv.AgentExecutor.
func (p *peer) Execute(ctx context.Context, x *a2asrv.ExecutorContext) iter.Seq2[a2a.Event, error] {
	return func(yield func(a2a.Event, error) bool) {
		text := x.Message.Parts[0].Text()
		p.mu.Lock()
		p.turns = append(p.turns, newTurn(text, x))
		do := p.jobs[text]
		p.mu.Unlock()
		if do == nil {
			yield(nil, fmt.Errorf("nothing to do with %q", text))
			return
		}
		if err := do(ctx, x, func(e a2a.Event) bool { return yield(e, nil) }); err != nil {
			yield(a2a.NewStatusUpdateEvent(x, a2a.TaskStateFailed, say(err.Error())), nil)
		}
	}
}

// Cancel implements a2asrv.AgentExecutor.
func (p *peer) Cancel(_ context.Context, x *a2asrv.ExecutorContext) iter.Seq2[a2a.Event, error] {
	return func(yield func(a2a.Event, error) bool) {
		yield(a2a.NewStatusUpdateEvent(x, a2a.TaskStateCanceled, nil), nil)
	}
}

func newTurn(text string, x *a2asrv.ExecutorContext) turn {
	n := turn{
		text: text, task: string(x.TaskID), run: param(x, "Run-Id"),
		traceparent: param(x, "traceparent"), state: param(x, "tracestate"), hasMeta: x.Message.Metadata != nil,
	}
	var openwop map[string]any
	openwop, n.hasOpenWOP = x.Message.Metadata["openwop"].(map[string]any)
	n.inParent, _ = openwop["traceparent"].(string)
	n.inState, _ = openwop["tracestate"].(string)
	return n
}

// param is a header of the request that brought the message.
func param(x *a2asrv.ExecutorContext, name string) string {
	v, _ := x.ServiceParams.Get(name)
	return strings.Join(v, ",")
}

// senderFunc is a push.Sender.
type senderFunc func(context.Context, *a2a.PushConfig, a2a.Event) error

func (f senderFunc) SendPush(ctx context.Context, c *a2a.PushConfig, e a2a.Event) error {
	return f(ctx, c, e)
}

func (p *peer) sendPush(ctx context.Context, c *a2a.PushConfig, e a2a.Event) error {
	p.mu.Lock()
	sends := p.sends
	p.mu.Unlock()
	if sends == nil {
		return errors.New("no webhook was expected")
	}
	return sends.SendPush(ctx, c, e)
}

// noteWire reads a request and gives it its body back.
func (p *peer) noteWire(r *http.Request) {
	body, err := io.ReadAll(r.Body)
	r.Body = io.NopCloser(io.MultiReader(bytes.NewReader(body), failing{err}))
	p.mu.Lock()
	defer p.mu.Unlock()
	p.wire = append(p.wire, a2aRequest{r.Method, r.RequestURI, r.Header.Clone(), string(body), r.Context().Done()})
}

// seen returns what has reached the agent's code so far, and what its server.
func (p *peer) seen() ([]turn, []a2aRequest) {
	if p.node != nil {
		return nodeTurns(p.node), nodeA2ARequests(p.node)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.turns), slices.Clone(p.wire)
}

// lastTurn returns the newest message that has reached the agent's code.
func (p *peer) lastTurn(t testing.TB) turn {
	t.Helper()
	turns, _ := p.seen()
	if len(turns) == 0 {
		t.Fatalf("%s: no message has reached the agent", p.hostID)
	}
	return turns[len(turns)-1]
}

// fetchCard reads the agent's card from its ingress, by way of c.
func (p *peer) fetchCard(ctx context.Context, c *http.Client) (*a2a.AgentCard, error) {
	return (&agentcard.Resolver{Client: c, CardParser: a2av0.NewAgentCardParser()}).Resolve(ctx, p.ingress)
}

// dial reads the agent's card and returns a client of the SDK for one binding,
// both by way of c.
func (p *peer) dial(ctx context.Context, c *http.Client, b binding) (*a2aclient.Client, error) {
	card, err := p.fetchCard(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("card: %w", err)
	}
	return a2aclient.NewFromCard(ctx, card, a2aclient.WithDefaultsDisabled(), b.option(c))
}

// say makes a message of one text.
func say(text string) *a2a.Message {
	return a2a.NewMessage(a2a.MessageRoleUser, a2a.NewTextPart(text))
}

// ask sends a message and returns the task it made.
func ask(ctx context.Context, c *a2aclient.Client, m *a2a.Message) (*a2a.Task, error) {
	res, err := c.SendMessage(ctx, &a2a.SendMessageRequest{Message: m})
	if err != nil {
		return nil, err
	}
	task, ok := res.(*a2a.Task)
	if !ok {
		return nil, fmt.Errorf("answer = %T, want a task", res)
	}
	return task, nil
}

// finish makes a job that completes its task at once.
func finish(_ context.Context, x *a2asrv.ExecutorContext, emit func(a2a.Event) bool) error {
	emit(a2a.NewSubmittedTask(x, x.Message))
	emit(a2a.NewStatusUpdateEvent(x, a2a.TaskStateCompleted, nil))
	return nil
}

// post sends JSON and returns the status and the body of the answer.
func post(ctx context.Context, c *http.Client, url, body string, header http.Header) (int, []byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	maps.Copy(req.Header, header)
	resp, err := c.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	return resp.StatusCode, answer, err
}

// inMessage is the carrier that OpenWOP has in an A2A message.
func inMessage(traceparent string) map[string]any {
	return map[string]any{"openwop": map[string]any{"traceparent": traceparent}}
}

// taskOf returns the id of the task in the JSON of an answer of JSON-RPC 0.3.
func taskOf(answer []byte) string {
	var m struct{ Result struct{ ID string } }
	if json.Unmarshal(answer, &m) != nil {
		return ""
	}
	return m.Result.ID
}

// serveHost serves a host and returns its address.
func serveHost(t testing.TB, h http.Handler) string {
	t.Helper()
	host := httptest.NewServer(h)
	t.Cleanup(host.Close)
	return host.URL
}

// answerTo sends a request directly and reads the whole answer.
func answerTo(t testing.TB, req *http.Request) (*http.Response, []byte) {
	t.Helper()
	resp, err := direct.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, body
}
