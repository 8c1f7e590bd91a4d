package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// The revisions that the SDK is driven in: with sessions, and without.
const (
	stateful  = "2025-11-25"
	stateless = "2026-07-28"
)

// toolServer is an MCP server of the official SDK behind its own wopproxy. It
// notes what reaches it.
type toolServer struct {
	*sidecar
	revision string
	own      string // base URL of the server itself
	number   int64  // the tool that echoes is told; as large as the server can hold

	// progressed takes a token for each progress event that has reached the
	// client. The tool that streams waits for one after each event, so an event
	// that is held back anywhere stops the tool.
	progressed chan struct{}
	// entered tells that a hanging tool runs, left how its context then stood;
	// release lets it go.
	entered chan struct{}
	left    chan error
	release chan struct{}

	mu    sync.Mutex
	calls []call
	wire  []wireRequest

	// node is the server, where that is a process of its own.
	node *process
}

// call is what a handler of the server was given.
type call struct {
	what                         string // "echo", "file:///notes", "greet"
	args                         string // of a tool, as JSON
	run                          string // header Run-Id
	headerParent, messageContext string // traceparent in the header and in _meta
}

// wireRequest is an HTTP request that reached the server.
type wireRequest struct {
	httpMethod  string
	rpcMethod   string // empty: a response, or no message at all
	traceparent string
	state       string // tracestate
	inMessage   string // params._meta.traceparent
	run         string // header Run-Id
	session     string
	lastEvent   string // Last-Event-ID
	body        string
}

// newToolServer starts an MCP server and its wopproxy.
func newToolServer(t testing.TB, hostID, revision string, overrides ...settings) *toolServer {
	t.Helper()
	s := &toolServer{
		// A number that floating point cannot hold: what a splice leaves alone.
		revision: revision, number: 9007199254740993, progressed: make(chan struct{}, 16),
		entered: make(chan struct{}, 1), left: make(chan error, 1), release: make(chan struct{}),
	}
	srv := s.sdkServer()
	o := &mcp.StreamableHTTPOptions{Stateless: revision == stateless, PropagateRequestCancellation: true}
	if revision == stateful {
		o.EventStore = mcp.NewMemoryEventStore(nil)
	}
	handler := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return srv }, o)
	host := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.noteWire(r)
		handler.ServeHTTP(w, r)
	}))
	t.Cleanup(host.CloseClientConnections)
	t.Cleanup(host.Close)
	s.own = host.URL
	s.sidecar = start(t, hostID, host.URL, overrides...)
	return s
}

// sdkServer is the server itself: tools of every kind, a resource, a prompt.
func (s *toolServer) sdkServer() *mcp.Server {
	srv := mcp.NewServer(&mcp.Implementation{Name: "tools", Version: "1"}, nil)
	tools := map[string]func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error){
		"echo": func(_ context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return text(string(r.Params.Arguments)), nil
		},
		"fail": func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			r := text("no")
			r.IsError = true
			return r, nil
		},
		"stream": s.stream,
		"ask":    s.ask,
		"hang":   s.hang,
		"poll":   s.poll,
	}
	for name, handle := range tools {
		srv.AddTool(&mcp.Tool{Name: name, InputSchema: json.RawMessage(`{"type":"object"}`)},
			func(ctx context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
				s.noteCall(name, string(r.Params.Arguments), r.Params.Meta, r.Extra.Header)
				return handle(ctx, r)
			})
	}
	srv.AddResource(&mcp.Resource{URI: "file:///notes", Name: "notes"}, func(_ context.Context, r *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
		s.noteCall(r.Params.URI, "", r.Params.Meta, r.Extra.Header)
		return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{{URI: r.Params.URI, Text: "a note"}}}, nil
	})
	srv.AddPrompt(&mcp.Prompt{Name: "greet"}, func(_ context.Context, r *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
		s.noteCall(r.Params.Name, "", r.Params.Meta, r.Extra.Header)
		return &mcp.GetPromptResult{Messages: []*mcp.PromptMessage{{Role: "user", Content: &mcp.TextContent{Text: "hello"}}}}, nil
	})
	return srv
}

func text(s string) *mcp.CallToolResult {
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: s}}}
}

// streamed is how many progress events the streaming tool sends.
const streamed = 3

// stream sends progress events, each only when the one before has arrived.
func (s *toolServer) stream(ctx context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	for i := range streamed {
		err := r.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{
			ProgressToken: r.Params.GetProgressToken(), Progress: float64(i + 1), Total: streamed,
		})
		if err != nil {
			return nil, err
		}
		select {
		case <-s.progressed:
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(patience):
			return nil, fmt.Errorf("progress event %d has not arrived within %v", i+1, patience)
		}
	}
	return text("streamed"), nil
}

// ask wants a word from the client: by a request of its own where the revision
// has such, else by an answer that asks to be called again.
func (s *toolServer) ask(ctx context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	question := &mcp.ElicitParams{Message: "really?", RequestedSchema: json.RawMessage(`{"type":"object","properties":{}}`)}
	if s.revision == stateful {
		answer, err := r.Session.Elicit(ctx, question)
		if err != nil {
			return nil, err
		}
		return text(answer.Action), nil
	}
	if len(r.Params.InputResponses) == 0 {
		return &mcp.CallToolResult{InputRequests: mcp.InputRequestMap{"sure": question}, RequestState: randomHex(16)}, nil
	}
	answer, ok := r.Params.InputResponses["sure"].(*mcp.ElicitResult)
	if !ok {
		return nil, fmt.Errorf("input responses %v: no answer to the question", r.Params.InputResponses)
	}
	return text(answer.Action), nil
}

// hang works until it is released or cancelled.
func (s *toolServer) hang(ctx context.Context, _ *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	s.entered <- struct{}{}
	select {
	case <-ctx.Done():
	case <-s.release:
	}
	s.left <- ctx.Err()
	return text("let go"), nil
}

// poll ends the stream of its own request on purpose and works on: the client
// is to come back for the answer.
func (s *toolServer) poll(ctx context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	r.Extra.CloseSSEStream(mcp.CloseSSEStreamArgs{RetryAfter: 10 * time.Millisecond})
	return s.hang(ctx, r)
}

func (s *toolServer) noteCall(what, args string, meta mcp.Meta, h http.Header) {
	s.mu.Lock()
	defer s.mu.Unlock()
	inMessage, _ := meta["traceparent"].(string)
	s.calls = append(s.calls, call{what, args, h.Get("Run-Id"), h.Get("Traceparent"), inMessage})
}

// noteWire reads a request and gives it its body back.
func (s *toolServer) noteWire(r *http.Request) {
	body, err := io.ReadAll(r.Body)
	r.Body = io.NopCloser(io.MultiReader(bytes.NewReader(body), failing{err}))
	var msg struct {
		Method string
		Params struct {
			Meta struct{ Traceparent string } `json:"_meta"`
		}
	}
	_ = json.Unmarshal(body, &msg) // GET and DELETE have no body
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wire = append(s.wire, wireRequest{
		r.Method, msg.Method, r.Header.Get("Traceparent"), r.Header.Get("Tracestate"), msg.Params.Meta.Traceparent,
		r.Header.Get("Run-Id"), r.Header.Get("Mcp-Session-Id"), r.Header.Get("Last-Event-ID"), string(body),
	})
}

// failing ends a body the way it ended before.
type failing struct{ err error }

func (f failing) Read([]byte) (int, error) {
	if f.err != nil {
		return 0, f.err
	}
	return 0, io.EOF
}

// seen returns what has reached the handlers so far, and what the server.
func (s *toolServer) seen() ([]call, []wireRequest) {
	if s.node != nil {
		return nodeCalls(s.node), nodeRequests(s.node)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]call(nil), s.calls...), append([]wireRequest(nil), s.wire...)
}

// connect opens a client session of the official SDK in the server's revision.
func (s *toolServer) connect(ctx context.Context, c *http.Client, endpoint string) (*mcp.ClientSession, error) {
	client := mcp.NewClient(&mcp.Implementation{Name: "agent", Version: "1"}, &mcp.ClientOptions{
		ElicitationHandler: func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			return &mcp.ElicitResult{Action: "accept"}, nil
		},
		ProgressNotificationHandler: func(context.Context, *mcp.ProgressNotificationClientRequest) { s.progressed <- struct{}{} },
	})
	cs, err := client.Connect(ctx, &mcp.StreamableClientTransport{Endpoint: endpoint, HTTPClient: c}, &mcp.ClientSessionOptions{ProtocolVersion: s.revision})
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	if got := cs.InitializeResult().ProtocolVersion; got != s.revision {
		return nil, errors.Join(fmt.Errorf("protocol version = %s, want %s", got, s.revision), cs.Close())
	}
	return cs, nil
}

// endpoint is where callers reach the server.
func (s *toolServer) endpoint() string { return s.ingress + "/mcp" }

// tunnelling returns a client that opens a CONNECT tunnel through the egress
// even for http, as Node's fetch does.
func tunnelling(t testing.TB, s *sidecar) *http.Client {
	egress, err := url.Parse(s.egress)
	if err != nil {
		t.Fatal(err)
	}
	tr := &http.Transport{DisableCompression: true, DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		return openTunnel(ctx, egress.Host, addr)
	}}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

// openTunnel asks the proxy for a tunnel to target.
func openTunnel(ctx context.Context, proxy, target string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", proxy)
	if err != nil {
		return nil, err
	}
	if _, err := fmt.Fprintf(conn, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", target, target); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	r := bufio.NewReader(conn)
	resp, err := http.ReadResponse(r, &http.Request{Method: http.MethodConnect})
	switch {
	case err != nil:
		return nil, errors.Join(err, conn.Close())
	case resp.StatusCode != http.StatusOK:
		return nil, errors.Join(fmt.Errorf("CONNECT %s: %s", target, resp.Status), conn.Close())
	case r.Buffered() > 0:
		return nil, errors.Join(errors.New("the proxy has spoken inside the tunnel"), conn.Close())
	}
	return conn, nil
}
