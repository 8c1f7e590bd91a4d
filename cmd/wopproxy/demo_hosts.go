package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/wopproxy/wopproxy/ancestry"
)

// demoHost is an agent host such as one finds: it speaks its protocol, uses the
// HTTP proxy it is told to use, and knows nothing of ours. Its memory is the
// demo's, to tell right links from wrong ones afterwards.
type demoHost struct {
	handle  func(*demoHost, http.ResponseWriter, *http.Request)
	call    caller      // how it asks the next host
	next    string      // base URL of the host it asks
	forward atomic.Bool // hand on trace headers, as OpenTelemetry would
	client  *http.Client
	ln      net.Listener
	srv     *http.Server

	mu     sync.Mutex
	memory map[string]memory // by question
}

// memory is what a host knows of a run it has served.
type memory struct {
	run   ancestry.RunID
	trace string
}

// caller asks a question of the host at base.
type caller func(ctx context.Context, c *http.Client, base, question string, header http.Header) error

// newAgent returns an A2A agent that asks the host at next before it answers.
func newAgent(call caller, next string) *demoHost {
	return &demoHost{handle: (*demoHost).handleMessage, call: call, next: next}
}

// newToolServer returns an MCP server with one tool.
func newToolServer() *demoHost { return &demoHost{handle: (*demoHost).handleCall} }

func (h *demoHost) start() (err error) {
	if h.ln, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		return err
	}
	h.memory = map[string]memory{}
	h.srv = &http.Server{
		ReadHeaderTimeout: demoTimeout,
		Handler:           http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { h.handle(h, w, r) }),
	}
	go h.srv.Serve(h.ln) // ends with stop
	return nil
}

func (h *demoHost) addr() string { return h.ln.Addr().String() }
func (h *demoHost) stop() error  { return h.srv.Close() }

// useProxy is what HTTP_PROXY does for a host of its own process.
func (h *demoHost) useProxy(proxy string) {
	u, _ := url.Parse(proxy) // made from a listener's address
	h.client = &http.Client{Transport: &http.Transport{Proxy: http.ProxyURL(u)}, Timeout: demoTimeout}
}

// remember notes which run served a question, and in which trace.
func (h *demoHost) remember(question, run string, r *http.Request) {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, trace, _ := strings.Cut(r.Header.Get("traceparent"), "-")
	trace, _, _ = strings.Cut(trace, "-")
	h.memory[question] = memory{ancestry.RunID(run), trace}
}

func (h *demoHost) recall(question string) (memory, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	m, ok := h.memory[question]
	return m, ok
}

func (h *demoHost) forget() {
	h.mu.Lock()
	defer h.mu.Unlock()
	clear(h.memory)
}

// rpc is a JSON-RPC request of either protocol, as far as the hosts read it.
type rpc struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params struct {
		Message struct { // A2A
			Parts []struct {
				Text string `json:"text"`
			} `json:"parts"`
		} `json:"message"`
		Arguments struct { // MCP
			Question string `json:"question"`
		} `json:"arguments"`
	} `json:"params"`
}

// handleMessage serves A2A message/send: it makes a task, asks the next host,
// and answers with the finished task.
func (h *demoHost) handleMessage(w http.ResponseWriter, r *http.Request) {
	var req rpc
	if err := json.NewDecoder(r.Body).Decode(&req); err != nil || req.Method != "message/send" || len(req.Params.Message.Parts) != 1 {
		http.Error(w, "not a message", http.StatusBadRequest)
		return
	}
	question, task := req.Params.Message.Parts[0].Text, "task-"+random(8)
	h.remember(question, task, r)
	time.Sleep(5 * time.Millisecond) // think
	if err := h.call(r.Context(), h.client, h.next, question, h.headers(r)); err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	answer(w, req.ID, map[string]any{
		"kind": "task", "id": task, "contextId": "ctx-" + random(8),
		"status": map[string]any{"state": "completed"},
	})
}

// handleCall serves MCP tools/call. The server has no name of its own for what
// it does, so the run is known by the id it was handed.
func (h *demoHost) handleCall(w http.ResponseWriter, r *http.Request) {
	var req rpc
	if err := json.NewDecoder(r.Body).Decode(&req); err != nil || req.Method != "tools/call" {
		http.Error(w, "not a call", http.StatusBadRequest)
		return
	}
	h.remember(req.Params.Arguments.Question, r.Header.Get("Run-Id"), r)
	time.Sleep(5 * time.Millisecond) // work
	answer(w, req.ID, map[string]any{"content": []any{map[string]any{"type": "text", "text": "42"}}})
}

// headers are what the host hands on: nothing, or what OpenTelemetry hands on,
// which is the trace it was called in, with a span of its own.
func (h *demoHost) headers(r *http.Request) http.Header {
	out := http.Header{}
	if parent := strings.Split(r.Header.Get("traceparent"), "-"); h.forward.Load() && len(parent) == 4 {
		parent[2] = random(8)
		out.Set("traceparent", strings.Join(parent, "-"))
		out["Tracestate"] = r.Header["Tracestate"]
	}
	return out
}

// sendMessage asks an A2A agent.
func sendMessage(ctx context.Context, c *http.Client, base, question string, header http.Header) error {
	return post(ctx, c, base+"/a2a", header, map[string]any{
		"jsonrpc": "2.0", "id": 1, "method": "message/send",
		"params": map[string]any{"message": map[string]any{
			"kind": "message", "role": "user", "messageId": random(8),
			"parts": []any{map[string]any{"kind": "text", "text": question}},
		}},
	})
}

// callTool calls the tool of an MCP server.
func callTool(ctx context.Context, c *http.Client, base, question string, header http.Header) error {
	if header == nil {
		header = http.Header{}
	}
	header.Set("Accept", "application/json, text/event-stream")
	return post(ctx, c, base+"/mcp", header, map[string]any{
		"jsonrpc": "2.0", "id": 1, "method": "tools/call",
		"params": map[string]any{"name": "answer", "arguments": map[string]any{"question": question}},
	})
}

func post(ctx context.Context, c *http.Client, url string, header http.Header, message any) error {
	body, err := json.Marshal(message)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, demoTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	maps.Copy(req.Header, header)
	req.Header.Set("Content-Type", "application/json")
	text, err := do(c, req)
	if err == nil && !bytes.Contains(text, []byte(`"result"`)) {
		err = fmt.Errorf("%s: no result: %s", url, text)
	}
	return err
}

// getAncestry asks a host for the parent of a run.
func getAncestry(ctx context.Context, base string, run ancestry.RunID) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/v1/runs/"+url.PathEscape(string(run))+"/ancestry", nil)
	if err != nil {
		return nil, err
	}
	return do(http.DefaultClient, req)
}

func do(c *http.Client, req *http.Request) ([]byte, error) {
	resp, err := c.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", req.URL, resp.Status, text)
	}
	return text, err
}

func answer(w http.ResponseWriter, id json.RawMessage, result any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{"jsonrpc": "2.0", "id": id, "result": result})
}

func random(n int) string {
	b := make([]byte, n)
	rand.Read(b) // never fails
	return hex.EncodeToString(b)
}
