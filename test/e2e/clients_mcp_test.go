package e2e

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"testing"
)

// newNodeToolServer starts an MCP server of the TypeScript SDK and its wopproxy.
func newNodeToolServer(t *testing.T, hostID string, args []string, overrides ...settings) *toolServer {
	t.Helper()
	s := &toolServer{revision: stateful, number: 42, progressed: make(chan struct{}, 16)}
	s.node = node(t).spawn(t, nil, "mcp-server.mjs", args...)
	s.own = fmt.Sprintf("http://127.0.0.1:%v", s.node.awaitLog(t, "listening")["port"])
	s.sidecar = start(t, hostID, s.own, overrides...)
	go func() { // ends with t
		for range s.progressed {
			get(t, s.own+"/progressed")
		}
	}()
	t.Cleanup(func() { close(s.progressed) })
	return s
}

// field is a string in what a peer has logged, empty if it is not there.
func field(attrs map[string]any, name string) string {
	s, _ := attrs[name].(string)
	return s
}

func nodeCalls(p *process) (calls []call) {
	logged, _ := p.stderr.find("call")
	for _, m := range logged {
		calls = append(calls, call{field(m, "what"), field(m, "args"), field(m, "run"), field(m, "headerParent"), field(m, "messageContext")})
	}
	return calls
}

func nodeRequests(p *process) (wire []wireRequest) {
	logged, _ := p.stderr.find("request")
	for _, m := range logged {
		wire = append(wire, wireRequest{
			field(m, "httpMethod"), field(m, "rpcMethod"), field(m, "traceparent"), field(m, "state"), field(m, "inMessage"),
			field(m, "run"), field(m, "session"), field(m, "lastEvent"), field(m, "body"),
		})
	}
	return wire
}

// TestMCPTypeScript is TestMCP with the TypeScript SDK on either side, and on
// both: all that a server offers is used by a run of another host.
func TestMCPTypeScript(t *testing.T) {
	n := node(t)
	use := map[string]func(ctx context.Context, t *testing.T, a *agent, s *toolServer) error{
		"Go": func(ctx context.Context, t *testing.T, a *agent, s *toolServer) error {
			return useAll(ctx, s, a.client(t), s.endpoint())
		},
		"TypeScript": func(_ context.Context, t *testing.T, a *agent, s *toolServer) error {
			p := nodeClient(t, n, a, s.endpoint())
			for i := range streamed {
				p.awaitLogAfter(t, i, "progress")
				s.progressed <- struct{}{}
			}
			return p.success(t)
		},
	}
	serve := map[string]func(t *testing.T) *toolServer{
		"Go":         func(t *testing.T) *toolServer { return newToolServer(t, "tools.example.com", stateful) },
		"TypeScript": func(t *testing.T) *toolServer { return newNodeToolServer(t, "tools.example.com", nil) },
	}
	for _, tt := range []struct{ client, server string }{{"Go", "TypeScript"}, {"TypeScript", "Go"}, {"TypeScript", "TypeScript"}} {
		t.Run(tt.client+" to "+tt.server, func(t *testing.T) {
			tools := serve[tt.server](t)
			a := newAgent(t, "agent.example.com")
			var trace string
			run := a.chat(t, func(ctx context.Context, in *http.Request) error {
				trace = traceOf(in.Header.Get("Traceparent"))
				return use[tt.client](ctx, t, a, tools)
			})
			if t.Failed() {
				return
			}
			checkUse(t, a, tools, run, trace, "single-flight")
			if tt.client == "TypeScript" && a.metric(t, "wopproxy_tunnels_total", `kind="http1"`) == 0 {
				t.Error(`wopproxy_tunnels_total{kind="http1"} = 0, want the tunnels of the client`)
			}
		})
	}
}

// TestMCPTypeScriptResume is TestMCPResume with the TypeScript SDK on both sides.
func TestMCPTypeScriptResume(t *testing.T) {
	n := node(t)
	tools := newNodeToolServer(t, "tools.example.com", nil)
	a := newAgent(t, "agent.example.com")
	run := a.chat(t, func(context.Context, *http.Request) error {
		p := nodeClient(t, n, a, tools.endpoint(), "poll", "let go")
		tools.node.awaitLog(t, "entered")
		eventually(t, "the client has come back for the answer", func() bool {
			_, wire := tools.seen()
			return slices.ContainsFunc(wire, func(r wireRequest) bool { return r.httpMethod == http.MethodGet && r.lastEvent != "" })
		})
		if live := tools.live(t); len(live) != 1 || live[0].Operation != "tools/call" {
			t.Errorf("live runs while the answer is awaited = %+v, want the call", live)
		}
		get(t, tools.own+"/release")
		return p.success(t)
	})
	calls, _ := tools.seen()
	if len(calls) != 1 {
		t.Fatalf("handlers called = %+v, want one", calls)
	}
	if got := tools.parent(t, calls[0].run); got.RunID != run {
		t.Errorf("parent of %s = %+v, want %s", calls[0].run, got, run)
	}
	eventually(t, "the answered run has ended", func() bool { return len(tools.live(t)) == 0 })
}

// nodeClient starts a client of the TypeScript SDK whose environment names a's
// egress as its proxy.
func nodeClient(t *testing.T, n nodeRuntime, a *agent, args ...string) *process {
	t.Helper()
	if !n.readsProxyEnv {
		missing(t, "no Node that reads NODE_USE_ENV_PROXY", "install Node 22.21 or later, or "+installNode+", which brings one for Linux")
	}
	return n.spawn(t, nodeProxyEnv(a.sidecar), "mcp-client.mjs", args...)
}
