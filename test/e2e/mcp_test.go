package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// way is one way by which a host's calls reach its egress.
type way struct {
	name     string
	evidence string   // what then names the calling run
	agent    settings // of the agent's wopproxy
	// route returns what the host calls with, and the address it calls instead
	// of endpoint.
	route func(t testing.TB, a *agent, run, endpoint string) (*http.Client, string)
}

var ways = []way{
	{"absolute form", "single-flight", nil, func(t testing.TB, a *agent, _, endpoint string) (*http.Client, string) {
		return a.client(t), endpoint
	}},
	{"tunnel", "single-flight", nil, func(t testing.TB, a *agent, _, endpoint string) (*http.Client, string) {
		return tunnelling(t, a.sidecar), endpoint
	}},
	{"base path", "base-path", settings{"attribution.singleFlight": false}, func(_ testing.TB, a *agent, run, endpoint string) (*http.Client, string) {
		return &http.Client{Transport: &http.Transport{}}, a.egress + "/_run/" + run + "/" + endpoint
	}},
	{"credential", "proxy-credential", settings{
		"attribution.singleFlight": false, "egress.credentials.secret.env": "EGRESS_SECRET", "env": []string{"EGRESS_SECRET=s3cret"},
	}, func(t testing.TB, a *agent, run, endpoint string) (*http.Client, string) {
		return a.client(t, run, "s3cret"), endpoint
	}},
}

// startsRun are the methods that start a run, by default.
var startsRun = []string{"tools/call", "resources/read", "prompts/get"}

// TestMCP lets a run of one host use everything an MCP server of another host
// offers, by every way out and in both kinds of session. Each use is a run there
// whose parent is the calling run; nothing else is.
func TestMCP(t *testing.T) {
	for _, revision := range []string{stateful, stateless} {
		for _, w := range ways {
			t.Run(revision+"/"+w.name, func(t *testing.T) {
				tools := newToolServer(t, "tools.example.com", revision)
				a := newAgent(t, "agent.example.com", w.agent)
				var trace string
				run := a.chat(t, func(ctx context.Context, in *http.Request) error {
					trace = traceOf(in.Header.Get("Traceparent"))
					c, endpoint := w.route(t, a, in.Header.Get("Run-Id"), tools.endpoint())
					defer c.CloseIdleConnections()
					return useAll(ctx, tools, c, endpoint)
				})
				if t.Failed() {
					return
				}
				checkUse(t, a, tools, run, trace, w.evidence)
				if w.name == "tunnel" && a.metric(t, "wopproxy_tunnels_total", `kind="http1"`) == 0 {
					t.Error(`wopproxy_tunnels_total{kind="http1"} = 0, want the tunnels of the client`)
				}
			})
		}
	}
}

// checkUse looks at what a run has left that has used all of a server, on the
// wire and on both hosts.
func checkUse(t *testing.T, a *agent, tools *toolServer, run, trace, evidence string) {
	t.Helper()
	calls, wire := tools.seen()
	checkWire(t, wire, trace)
	runs := checkCalls(t, tools.revision, calls, trace)
	// The call of a tool that does not exist is a run without a handler.
	want := len(runs) + 1
	links := tools.trace(t, trace)
	if len(links) != want {
		t.Errorf("runs of trace %s on the server = %d, want %d: %+v", trace, len(links), want, links)
	}
	for _, l := range links {
		checkChild(t, a, tools, run, l)
	}
	checkChildren(t, a, tools, run, evidence, links)
	checkUseHandoffs(t, a, tools, run)
	// What proxies count shows that the calls came their way.
	a.sawCalls(t, float64(len(wire)), "egress", "mcp")
	tools.sawCalls(t, float64(len(wire)), "ingress", "mcp")
	eventually(t, "no run is live any more", func() bool { return len(a.live(t)) == 0 && len(tools.live(t)) == 0 })
}

// checkUseHandoffs looks at what became of each call. A question that the server
// asks within a call is none of its own, whether it is asked on the side or by an
// answer.
func checkUseHandoffs(t *testing.T, a *agent, tools *toolServer, run string) {
	t.Helper()
	absent := toRunning
	if tools.revision == stateless {
		absent = " pending dispatching" // the error comes with a status of HTTP
	}
	a.wantHandoffs(t, run,
		"tools/call"+toHarvested, "tools/call"+toHarvested, "tools/call"+toHarvested,
		"tools/call"+toRunning+" failed error=tool-error", "tools/call"+absent+" failed error=rpc-error",
		"resources/read"+toHarvested, "prompts/get"+toHarvested)
	for _, h := range a.handoffs(t, run) {
		l, ok := tools.link(t, h.Child)
		if !ok || l.parent().RunID != run || h.HostID != tools.hostID || h.Protocol != "mcp" || l.Operation != h.Operation {
			t.Errorf("handoff %+v, and its child on the server %+v", h, l)
		}
	}
	a.checkHandoffTree(t, run)
}

// useAll uses all that the server has to offer.
func useAll(ctx context.Context, s *toolServer, c *http.Client, endpoint string) (err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*patience)
	defer cancel()
	cs, err := s.connect(ctx, c, endpoint)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cs.Close()) }()
	list, err := cs.ListTools(ctx, nil)
	if err != nil || len(list.Tools) != 6 {
		return fmt.Errorf("tools/list = %+v, %w, want 6 tools", list, err)
	}
	if err := callTool(ctx, cs, "echo", map[string]any{"n": s.number}, fmt.Sprintf(`{"n":%d}`, s.number), false); err != nil {
		return err
	}
	if err := callTool(ctx, cs, "stream", nil, "streamed", false); err != nil {
		return err
	}
	if err := callTool(ctx, cs, "ask", nil, "accept", false); err != nil {
		return err
	}
	if err := callTool(ctx, cs, "fail", nil, "no", true); err != nil {
		return err
	}
	var wireErr *jsonrpc.Error
	if _, err := cs.CallTool(ctx, &mcp.CallToolParams{Name: "absent"}); !errors.As(err, &wireErr) || wireErr.Code != jsonrpc.CodeInvalidParams {
		return fmt.Errorf("call of an unknown tool: error = %w, want code %d", err, jsonrpc.CodeInvalidParams)
	}
	res, err := cs.ReadResource(ctx, &mcp.ReadResourceParams{URI: "file:///notes"})
	if err != nil || len(res.Contents) != 1 || res.Contents[0].Text != "a note" {
		return fmt.Errorf("resources/read = %+v, %w", res, err)
	}
	prompt, err := cs.GetPrompt(ctx, &mcp.GetPromptParams{Name: "greet"})
	if err != nil || len(prompt.Messages) != 1 {
		return fmt.Errorf("prompts/get = %+v, %w", prompt, err)
	}
	return nil
}

// callTool calls a tool and compares its answer.
func callTool(ctx context.Context, cs *mcp.ClientSession, name string, args any, want string, wantError bool) error {
	params := &mcp.CallToolParams{Name: name, Arguments: args}
	params.SetProgressToken("token-" + name)
	res, err := cs.CallTool(ctx, params)
	if err != nil {
		return fmt.Errorf("tool %s: %w", name, err)
	}
	if len(res.Content) != 1 {
		return fmt.Errorf("tool %s: content = %+v, want one item", name, res.Content)
	}
	if got := res.Content[0].(*mcp.TextContent).Text; got != want || res.IsError != wantError {
		return fmt.Errorf("tool %s = %q (error %v), want %q (error %v)", name, got, res.IsError, want, wantError)
	}
	return nil
}

// checkWire looks at every HTTP request that reached the server: each bears the
// trace of the run, in its header and, if it asks or tells something, in the
// message, and only those that start a run bear one.
func checkWire(t *testing.T, wire []wireRequest, trace string) {
	t.Helper()
	for _, r := range wire {
		name := strings.TrimSpace(r.httpMethod + " " + r.rpcMethod)
		if got := traceOf(r.traceparent); got != trace {
			t.Errorf("%s: trace = %q, want %q", name, got, trace)
		}
		wantInMessage := r.traceparent
		if r.rpcMethod == "" {
			wantInMessage = ""
			if strings.Contains(r.body, "traceparent") {
				t.Errorf("%s: body = %s, want no traceparent in what is no request", name, r.body)
			}
		}
		if r.inMessage != wantInMessage {
			t.Errorf("%s: params._meta.traceparent = %q, want %q", name, r.inMessage, wantInMessage)
		}
		starts := slices.Contains(startsRun, r.rpcMethod)
		if (r.run != "") != starts {
			t.Errorf("%s: Run-Id = %q, want one: %v", name, r.run, starts)
		}
		if got := strings.Count(r.state, "wop="); (got == 1) != starts || got > 1 {
			t.Errorf("%s: tracestate = %q, want one member wop=: %v", name, r.state, starts)
		}
	}
}

// checkCalls looks at what the handlers were given and returns the runs they
// served.
func checkCalls(t *testing.T, revision string, calls []call, trace string) map[string]bool {
	t.Helper()
	var names []string
	runs := map[string]bool{}
	for _, c := range calls {
		names = append(names, c.what)
		runs[c.run] = true
		if c.messageContext == "" || c.messageContext != c.headerParent || traceOf(c.messageContext) != trace {
			t.Errorf("%s: _meta.traceparent = %q and header = %q, want the same in trace %s", c.what, c.messageContext, c.headerParent, trace)
		}
	}
	want := []string{"echo", "stream", "ask", "fail", "file:///notes", "greet"}
	if revision == stateless {
		want = slices.Insert(want, 3, "ask") // asked, and called again with the answer
	}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("handlers called (-want +got):\n%s", diff)
	}
	// A call that was answered with a question is one run, however often it is
	// sent.
	if len(runs) != 6 {
		t.Errorf("runs served = %d, want 6: %+v", len(runs), calls)
	}
	return runs
}

// checkChild looks at a run of the server from its own side.
func checkChild(t *testing.T, a *agent, s *toolServer, parent string, l link) {
	t.Helper()
	want := ancestor{RunID: parent, HostID: a.hostID, WellKnownURL: a.public + "/.well-known/openwop", Cause: "mcp-tool-call"}
	if diff := cmp.Diff([]ancestor{want}, l.Chain.Ancestors); diff != "" {
		t.Errorf("ancestors of %s %s (-want +got):\n%s", l.Operation, l.RunID, diff)
	}
	if l.Evidence != "run-ancestry" || !slices.Contains(startsRun, l.Operation) {
		t.Errorf("run %s: evidence %q and operation %q, want run-ancestry and one of %v", l.RunID, l.Evidence, l.Operation, startsRun)
	}
	if got := s.parent(t, l.RunID); got != want {
		t.Errorf("parent of %s over the read API = %+v, want %+v", l.RunID, got, want)
	}
	if diff := cmp.Diff([]hop{{l.RunID, s.hostID}, {parent, a.hostID}}, s.walk(t, l.RunID)); diff != "" {
		t.Errorf("walk from %s (-want +got):\n%s", l.RunID, diff)
	}
}

// checkChildren looks at the same runs from the caller's side.
func checkChildren(t *testing.T, a *agent, s *toolServer, parent, evidence string, links []link) {
	t.Helper()
	type child struct{ run, host, evidence, operation, parent, trace string }
	var want, got []child
	for _, l := range links {
		want = append(want, child{l.RunID, s.hostID, evidence, l.Operation, parent, l.TraceID})
	}
	for _, l := range a.children(t, parent) {
		got = append(got, child{l.RunID, l.HostID, l.Evidence, l.Operation, l.parent().RunID, l.TraceID})
	}
	byRun := cmpopts.SortSlices(func(x, y child) bool { return x.run < y.run })
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(child{}), byRun); diff != "" {
		t.Errorf("children of %s on %s (-want +got):\n%s", parent, a.hostID, diff)
	}
	if l, ok := a.link(t, parent); !ok || l.parent() != (ancestor{}) || l.Operation != "POST /chat" {
		t.Errorf("run %s on %s = %+v, %v, want a root of POST /chat", parent, a.hostID, l, ok)
	}
}

// TestMCPClientGone pins what a client that gives up means: to a stateless
// server it is the cancellation, to a stateful one it is not, and only the
// notification is.
func TestMCPClientGone(t *testing.T) {
	t.Run("stateless", func(t *testing.T) {
		tools := newToolServer(t, "tools.example.com", stateless)
		a := newAgent(t, "agent.example.com")
		run := a.chat(t, func(ctx context.Context, _ *http.Request) error {
			cs, err := tools.connect(ctx, a.client(t), tools.endpoint())
			if err != nil {
				return err
			}
			return errors.Join(giveUp(ctx, tools, cs), cs.Close())
		})
		a.wantHandoffs(t, run, "tools/call pending dispatching cancelled") // it has had no head of an answer
		a.awaitMetric(t, 1, "wopproxy_exchanges_total", `direction="egress"`, `outcome="client-gone"`)
		tools.awaitMetric(t, 1, "wopproxy_exchanges_total", `direction="ingress"`, `outcome="client-gone"`)
		eventually(t, "the cancelled run has ended", func() bool { return len(tools.live(t)) == 0 })
	})
	t.Run("stateful, notification", func(t *testing.T) {
		tools := newToolServer(t, "tools.example.com", stateful)
		a := newAgent(t, "agent.example.com")
		run := a.chat(t, func(ctx context.Context, _ *http.Request) error {
			cs, err := tools.connect(ctx, a.client(t), tools.endpoint())
			if err != nil {
				return err
			}
			return errors.Join(giveUp(ctx, tools, cs), cs.Close())
		})
		eventually(t, "the handoff is cancelled, with or without a head of an answer", func() bool {
			h := a.handoffs(t, run)
			return len(h) == 1 && h[0].State == "cancelled"
		})
		_, wire := tools.seen()
		i := slices.IndexFunc(wire, func(r wireRequest) bool { return r.rpcMethod == "notifications/cancelled" })
		if i < 0 || wire[i].inMessage == "" || wire[i].inMessage != wire[i].traceparent || wire[i].run != "" {
			t.Errorf("requests = %+v, want notifications/cancelled with the trace context and no run", wire)
		}
	})
	t.Run("stateful, disconnect", func(t *testing.T) {
		tools := newToolServer(t, "tools.example.com", stateful)
		a := newAgent(t, "agent.example.com")
		a.chat(t, func(ctx context.Context, _ *http.Request) error {
			c := a.client(t)
			cs, err := tools.connect(ctx, c, tools.endpoint())
			if err != nil {
				return err
			}
			return errors.Join(hangUp(ctx, t, tools, c, cs.ID()), cs.Close())
		})
	})
}

// giveUp cancels a call that is under way and waits until the tool has heard.
func giveUp(ctx context.Context, s *toolServer, cs *mcp.ClientSession) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	returned := make(chan error, 1)
	go func() { // ends with the call
		_, err := cs.CallTool(ctx, &mcp.CallToolParams{Name: "hang"})
		returned <- err
	}()
	if err := await(s.entered, "the tool runs"); err != nil {
		return err
	}
	cancel()
	select {
	case err := <-s.left:
		if !errors.Is(err, context.Canceled) {
			return fmt.Errorf("the tool's context ended with %w, want %w", err, context.Canceled)
		}
	case <-time.After(2 * time.Second): // the client is no longer waiting
		return errors.New("the tool's context was not cancelled within 2s")
	}
	if err := <-returned; !errors.Is(err, context.Canceled) {
		return fmt.Errorf("error of the cancelled call = %w, want %w", err, context.Canceled)
	}
	return nil
}

// hangUp breaks the connection of a call without a word. The tool goes on, and
// so does its run.
func hangUp(ctx context.Context, t *testing.T, s *toolServer, c *http.Client, session string) error {
	callCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	req, err := http.NewRequestWithContext(callCtx, http.MethodPost, s.endpoint(),
		strings.NewReader(`{"jsonrpc":"2.0","id":"mine","method":"tools/call","params":{"name":"hang"}}`))
	if err != nil {
		return err
	}
	for name, v := range map[string]string{
		"Content-Type": "application/json", "Accept": "application/json, text/event-stream",
		"Mcp-Session-Id": session, "MCP-Protocol-Version": stateful,
	} {
		req.Header.Set(name, v)
	}
	returned := make(chan error, 1)
	go func() { // ends with the call
		resp, err := c.Do(req)
		if err == nil {
			resp.Body.Close()
		}
		returned <- err
	}()
	if err := await(s.entered, "the tool runs"); err != nil {
		return err
	}
	cancel()
	<-returned
	s.awaitMetric(t, 1, "wopproxy_exchanges_total", `direction="ingress"`, `outcome="client-gone"`)
	if live := s.live(t); len(live) != 1 || live[0].Operation != "tools/call" {
		t.Errorf("live runs after the client has hung up = %+v, want the call", live)
	}
	close(s.release)
	if err := <-s.left; err != nil {
		return fmt.Errorf("the tool's context ended with %w, want it untouched by a disconnect", err)
	}
	return nil
}

func await(c <-chan struct{}, what string) error {
	select {
	case <-c:
		return nil
	case <-time.After(patience):
		return fmt.Errorf("not so within %v: %s", patience, what)
	}
}

// TestMCPResume lets a server end the stream of a call on purpose. The call is
// not over: its run stays live until its answer has passed, on the stream of
// another request.
func TestMCPResume(t *testing.T) {
	tools := newToolServer(t, "tools.example.com", stateful)
	a := newAgent(t, "agent.example.com")
	run := a.chat(t, func(ctx context.Context, _ *http.Request) error {
		cs, err := tools.connect(ctx, a.client(t), tools.endpoint())
		if err != nil {
			return err
		}
		defer cs.Close()
		returned := make(chan error, 1)
		go func() { returned <- callTool(ctx, cs, "poll", nil, "let go", false) }() // ends with the call
		if err := await(tools.entered, "the tool runs"); err != nil {
			return err
		}
		eventually(t, "the client has come back for the answer", func() bool {
			_, wire := tools.seen()
			return slices.ContainsFunc(wire, func(r wireRequest) bool { return r.httpMethod == http.MethodGet && r.lastEvent != "" })
		})
		// The stream of the POST has ended when the client resumes.
		tools.awaitMetric(t, 3, "wopproxy_exchanges_total", `direction="ingress"`, `outcome="answered"`)
		if live := tools.live(t); len(live) != 1 || live[0].Operation != "tools/call" {
			t.Errorf("live runs while the answer is awaited = %+v, want the call", live)
		}
		close(tools.release)
		<-tools.left
		return <-returned
	})
	a.wantHandoffs(t, run, "tools/call"+toHarvested)
	calls, _ := tools.seen()
	if len(calls) != 1 {
		t.Fatalf("handlers called = %+v, want one", calls)
	}
	if got := tools.parent(t, calls[0].run); got.RunID != run {
		t.Errorf("parent of %s = %+v, want %s", calls[0].run, got, run)
	}
	eventually(t, "the answered run has ended", func() bool { return len(tools.live(t)) == 0 })
}

// TestMCPSessionEnds pins that the end of a session passes, and that what the
// server says of a dead one reaches the client as it is.
func TestMCPSessionEnds(t *testing.T) {
	tools := newToolServer(t, "tools.example.com", stateful)
	a := newAgent(t, "agent.example.com")
	a.chat(t, func(ctx context.Context, _ *http.Request) error {
		c := a.client(t)
		cs, err := tools.connect(ctx, c, tools.endpoint())
		if err != nil {
			return err
		}
		session := cs.ID()
		if err := cs.Close(); err != nil {
			return err
		}
		_, wire := tools.seen()
		if last := wire[len(wire)-1]; last.httpMethod != http.MethodDelete || last.session != session || session == "" {
			t.Errorf("last request = %+v, want the DELETE of session %q", last, session)
		}
		through, err := inSession(ctx, c, tools.endpoint(), session)
		if err != nil {
			return err
		}
		straight, err := inSession(ctx, direct, tools.own+"/mcp", session)
		if err != nil {
			return err
		}
		if diff := cmp.Diff(straight, through); diff != "" || through.Status != http.StatusNotFound {
			t.Errorf("answer in an ended session = %+v, want 404 as without proxies (-straight +through):\n%s", through, diff)
		}
		return nil
	})
}

// answer is what a client sees of one.
type answer struct {
	Status            int
	ContentType, Body string
}

// inSession asks for the list of tools in a session.
func inSession(ctx context.Context, c *http.Client, endpoint, session string) (answer, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, endpoint, strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`))
	if err != nil {
		return answer{}, err
	}
	req.Header = http.Header{"Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"}, "Mcp-Session-Id": {session}}
	resp, err := c.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header.Get("Content-Type"), string(body)}, err
}
