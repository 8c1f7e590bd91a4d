package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// exporting lets a wopproxy export to c, soon after each span.
func exporting(c *collector, protocol string) settings {
	return settings{
		"tracing.otlp.endpoint": c.endpoint, "tracing.otlp.protocol": protocol, "env": []string{soon},
	}
}

// soon is how long the SDK's batches wait, in milliseconds: 5 s by default.
const soon = "OTEL_BSP_SCHEDULE_DELAY=20"

// chatIn is chat by a caller that sends headers of its own.
func (a *agent) chatIn(t testing.TB, header http.Header, do work) (run string) {
	t.Helper()
	token := randomHex(8)
	var failed error
	a.mu.Lock()
	a.work[token] = func(ctx context.Context, in *http.Request) error {
		failed = do(ctx, in)
		return failed
	}
	a.mu.Unlock()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, a.ingress+"/chat", strings.NewReader(token))
	if err != nil {
		t.Fatal(err)
	}
	req.Header = header.Clone()
	resp, body := answerTo(t, req)
	if failed != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("run: status %d: %s: %v", resp.StatusCode, body, failed)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.runs[token]
}

// caller is a caller's own place in a trace.
type caller struct{ trace, span string }

func newCaller() caller { return caller{randomHex(16), randomHex(8)} }

// header says so in W3C, with the flags.
func (c caller) header(flags string) http.Header {
	return http.Header{"Traceparent": {"00-" + c.trace + "-" + c.span + "-" + flags}}
}

// useTools calls a tool, one that fails, and one that does not exist.
func useTools(ctx context.Context, t testing.TB, a *agent, tools *toolServer) error {
	c := a.client(t)
	defer c.CloseIdleConnections()
	cs, err := tools.connect(ctx, c, tools.endpoint())
	if err != nil {
		return err
	}
	if err := callTool(ctx, cs, "echo", map[string]any{"n": 1}, `{"n":1}`, false); err != nil {
		return err
	}
	if err := callTool(ctx, cs, "fail", nil, "no", true); err != nil {
		return err
	}
	var refused *jsonrpc.Error
	if _, err := cs.CallTool(ctx, &mcp.CallToolParams{Name: "absent"}); !errors.As(err, &refused) {
		return fmt.Errorf("call of a tool that is not there: error = %w, want one of JSON-RPC", err)
	}
	return cs.Close()
}

// flush stops the program, which sends what is queued before it ends.
func flush(t testing.TB, s *sidecar) {
	t.Helper()
	// A server waits 5 s for the first request on a connection that a client has
	// opened in stock.
	direct.CloseIdleConnections()
	http.DefaultTransport.(*http.Transport).CloseIdleConnections() // of what stands before an ingress
	s.stop(t)
}

// TestSpans looks at the spans of one run and its calls of another host, as a
// collector receives them: one chain without a gap, from the caller's own span
// over both proxies to the server.
func TestSpans(t *testing.T) {
	for _, protocol := range []string{"http/protobuf", "grpc"} {
		t.Run(protocol, func(t *testing.T) {
			c := newCollector(t, protocol)
			tools := newToolServer(t, "tools.example.com", stateless, exporting(c, protocol))
			a := newAgent(t, "agent.example.com", exporting(c, protocol))
			me := newCaller()
			var handed string
			run := a.chatIn(t, me.header("01"), func(ctx context.Context, in *http.Request) error {
				handed = in.Header.Get("Traceparent")
				return useTools(ctx, t, a, tools)
			})
			want := []string{"agent.example.com SERVER POST /chat < the caller"}
			for _, name := range []string{"server/discover", "tools/call echo", "tools/call fail", "tools/call absent"} {
				want = append(want,
					"agent.example.com CLIENT "+name+" < agent.example.com SERVER POST /chat",
					"tools.example.com SERVER "+name+" < agent.example.com CLIENT "+name)
			}
			spans := c.await(t, me.trace, len(want))
			byID := map[string]span{}
			for _, s := range spans {
				byID[s.id] = s
			}
			var got []string
			for _, s := range spans {
				parent := "a span that nobody has exported"
				if p, ok := byID[s.parent]; ok {
					parent = p.String()
				} else if s.parent == me.span {
					parent = "the caller"
				}
				got = append(got, s.String()+" < "+parent)
			}
			slices.Sort(want)
			slices.Sort(got)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Fatalf("spans (-want +got):\n%s", diff)
			}
			checkHandedOn(t, tools, byID, handed)
			checkLinks(t, a, tools, byID, run, me)
			checkResource(t, spans)
			checkAttributes(t, spans, tools)
			a.awaitMetric(t, 0, "wopproxy_span_export_failures_total")
		})
	}
}

// checkHandedOn looks at what the hosts were told: spans that exist.
func checkHandedOn(t *testing.T, tools *toolServer, byID map[string]span, handed string) {
	t.Helper()
	if s := byID[strings.Split(handed, "-")[2]]; s.String() != "agent.example.com SERVER POST /chat" || !strings.HasSuffix(handed, "-01") {
		t.Errorf("traceparent at the agent = %q, want the span of its proxy, sampled", handed)
	}
	_, wire := tools.seen()
	for _, r := range wire {
		if s := byID[strings.Split(r.traceparent, "-")[2]]; s.host() != tools.hostID || !strings.HasPrefix(s.name, r.rpcMethod) {
			t.Errorf("%s: traceparent at the server = %q, want the span of its proxy, not %v", r.rpcMethod, r.traceparent, s)
		}
	}
}

// checkLinks compares what is stored of runs with what was exported of them.
func checkLinks(t *testing.T, a *agent, tools *toolServer, byID map[string]span, run string, me caller) {
	t.Helper()
	if l, ok := a.link(t, run); !ok || l.TraceID != me.trace || l.ParentSpanID != me.span || byID[l.SpanID].name != "POST /chat" {
		t.Errorf("link of %s = %+v, %v, want trace %s and the caller's span %s", run, l, ok, me.trace, me.span)
	}
	links := tools.trace(t, me.trace)
	if len(links) != 3 {
		t.Errorf("runs of trace %s = %d, want 3: %+v", me.trace, len(links), links)
	}
	for _, l := range links {
		server, client := byID[l.SpanID], byID[l.ParentSpanID]
		if server.kind != "SERVER" || client.kind != "CLIENT" || server.parent != client.id || server.attributes["wopproxy.run.id"] != l.RunID {
			t.Errorf("link %+v: spans = %v and %v, want the server's of this run, and its parent", l, server, client)
		}
		if client.attributes["wopproxy.run.id"] != run || client.attributes["wopproxy.attribution"] != "single-flight" {
			t.Errorf("attributes of %v = %v, want run %s by single-flight", client, client.attributes, run)
		}
	}
}

func checkResource(t *testing.T, spans []span) {
	t.Helper()
	for _, s := range spans {
		if s.resource["service.name"] != "wopproxy" || s.resource["service.version"] == "" || s.resource["telemetry.sdk.language"] != "go" {
			t.Errorf("resource of %v = %v, want wopproxy, its version and the SDK's language", s, s.resource)
		}
		if s.scope != "github.com/wopproxy/wopproxy" {
			t.Errorf("scope of %v = %q, want the module", s, s.scope)
		}
	}
}

// checkAttributes compares the attributes with the conventions for MCP. Those
// of the moment are dropped.
func checkAttributes(t *testing.T, spans []span, tools *toolServer) {
	t.Helper()
	address, port, err := net.SplitHostPort(strings.TrimPrefix(tools.ingress, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	moment := []string{"wopproxy.run.id", "wopproxy.attribution", "jsonrpc.request.id", "client.port"}
	network := map[string]string{"network.transport": "tcp", "network.protocol.name": "http", "network.protocol.version": "1.1"}
	call := map[string]string{"mcp.method.name": "tools/call", "gen_ai.operation.name": "execute_tool", "mcp.protocol.version": stateless}
	server := map[string]string{"client.address": "127.0.0.1"}
	client := map[string]string{"server.address": address, "server.port": port}
	want := map[string][]map[string]string{
		"agent.example.com SERVER POST /chat": {network, server, {"http.request.method": "POST", "url.path": "/chat"}},

		"agent.example.com CLIENT server/discover": {network, client, {"mcp.method.name": "server/discover", "mcp.protocol.version": stateless}},
		"tools.example.com SERVER server/discover": {network, server, {"mcp.method.name": "server/discover", "mcp.protocol.version": stateless}},

		"agent.example.com CLIENT tools/call echo":   {network, call, client, {"gen_ai.tool.name": "echo"}},
		"tools.example.com SERVER tools/call echo":   {network, call, server, {"gen_ai.tool.name": "echo"}},
		"agent.example.com CLIENT tools/call fail":   {network, call, client, {"gen_ai.tool.name": "fail", "error.type": "tool_error"}},
		"tools.example.com SERVER tools/call fail":   {network, call, server, {"gen_ai.tool.name": "fail", "error.type": "tool_error"}},
		"agent.example.com CLIENT tools/call absent": {network, call, client, {"gen_ai.tool.name": "absent", "error.type": "-32602", "rpc.response.status_code": "-32602"}},
		// To the server it is the client's mistake.
		"tools.example.com SERVER tools/call absent": {network, call, server, {"gen_ai.tool.name": "absent", "rpc.response.status_code": "-32602"}},
	}
	for _, s := range spans {
		merged := map[string]string{}
		for _, part := range want[s.String()] {
			maps.Copy(merged, part)
		}
		got := map[string]string{}
		for k, v := range s.attributes {
			if !slices.Contains(moment, k) {
				got[k] = v
			}
		}
		if diff := cmp.Diff(merged, got); diff != "" {
			t.Errorf("attributes of %v (-want +got):\n%s", s, diff)
		}
		if failed := merged["error.type"] != ""; failed != strings.HasPrefix(s.status, "ERROR: ") {
			t.Errorf("status of %v = %q, want an error: %v", s, s.status, failed)
		}
		if id := s.attributes["jsonrpc.request.id"]; (id != "") != (s.name != "POST /chat") {
			t.Errorf("jsonrpc.request.id of %v = %q", s, id)
		}
	}
}

// TestSpansA2A looks at the spans of messages between agents: one for each
// request, in each binding.
func TestSpansA2A(t *testing.T) {
	c := newCollector(t, "http/protobuf")
	p := newPeer(t, "callee.example.com", exporting(c, "http/protobuf"))
	p.does("work", finish)
	a := newAgent(t, "caller.example.com", exporting(c, "http/protobuf"), noQuarantine)
	for _, b := range bindings {
		me := newCaller()
		a.chatIn(t, me.header("01"), func(ctx context.Context, _ *http.Request) error {
			client, err := p.dial(ctx, a.client(t), b)
			if err != nil {
				return err
			}
			_, err = ask(ctx, client, say("work"))
			return err
		})
		system := "jsonrpc"
		switch {
		case strings.HasPrefix(b.name, "REST"):
			system = "http"
		case strings.HasPrefix(b.name, "gRPC"):
			system = "grpc"
		}
		byName := map[string]span{}
		for _, s := range c.await(t, me.trace, 3) {
			byName[s.String()] = s
		}
		root, out, in := byName["caller.example.com SERVER POST /chat"], byName["caller.example.com CLIENT "+b.send], byName["callee.example.com SERVER "+b.send]
		if len(byName) != 3 || root.parent != me.span || out.parent != root.id || in.parent != out.id || in.id == "" {
			t.Errorf("%s: spans = %v, want a chain of three from the caller's", b.name, byName)
		}
		for _, s := range []span{out, in} {
			if s.attributes["rpc.system.name"] != system || s.attributes["rpc.method"] != b.send || s.status != "" {
				t.Errorf("%s: %v = %v %q, want rpc.system.name %s, rpc.method %s and no error", b.name, s, s.attributes, s.status, system, b.send)
			}
		}
		eventually(t, "the run has ended", func() bool { return len(a.live(t)) == 0 })
		if got := p.lastTurn(t).traceparent; got != "00-"+me.trace+"-"+in.id+"-01" {
			t.Errorf("%s: traceparent at the agent = %q, want that of span %s", b.name, got, in.id)
		}
	}
}

// TestSpansOrphan pins that the trace which a host's library has made up is not
// lost: the call is put where it belongs, and the orphan is linked.
func TestSpansOrphan(t *testing.T) {
	c := newCollector(t, "http/protobuf")
	a := newAgent(t, "agent.example.com", exporting(c, "http/protobuf"))
	p := newPeer(t, "callee.example.com")
	p.does("work", finish)
	me, orphan := newCaller(), newCaller()
	a.chatIn(t, me.header("01"), func(ctx context.Context, _ *http.Request) error {
		status, body, err := post(ctx, a.client(t), p.ingress+"/rest/message:send",
			`{"message":{"messageId":"m","role":"ROLE_USER","parts":[{"text":"work"}]}}`, orphan.header("01"))
		if err == nil && status != http.StatusOK {
			err = fmt.Errorf("status %d: %s", status, body)
		}
		return err
	})
	for _, s := range c.await(t, me.trace, 2) {
		var want []string
		if s.kind == "CLIENT" {
			want = []string{orphan.trace + " " + orphan.span}
		}
		if diff := cmp.Diff(want, s.links); diff != "" {
			t.Errorf("links of %v (-want +got):\n%s", s, diff)
		}
	}
	if got := traceOf(p.lastTurn(t).traceparent); got != me.trace {
		t.Errorf("trace at the callee = %s, want %s of the run", got, me.trace)
	}
}

// TestSpansUnsampled pins that a caller who does not want spans gets none, and
// that then, as without an exporter, hosts are told the span they were called
// from: nobody is ever pointed at a span that does not exist.
func TestSpansUnsampled(t *testing.T) {
	c := newCollector(t, "http/protobuf")
	for _, tt := range []struct {
		name     string
		settings settings
		flags    string
	}{
		{"not sampled", exporting(c, "http/protobuf"), "00"},
		{"no exporter", nil, "01"},
		{"exporter turned off", settings{"tracing.otlp.endpoint": c.endpoint, "env": []string{soon, "OTEL_SDK_DISABLED=true"}}, "01"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tools := newToolServer(t, "tools.example.com", stateless, tt.settings)
			a := newAgent(t, "agent.example.com", tt.settings)
			me := newCaller()
			a.chatIn(t, me.header(tt.flags), func(ctx context.Context, in *http.Request) error {
				if got := in.Header.Get("Traceparent"); got != me.header(tt.flags).Get("Traceparent") {
					t.Errorf("traceparent at the agent = %q, want the caller's own", got)
				}
				return useTools(ctx, t, a, tools)
			})
			_, wire := tools.seen()
			for _, r := range wire {
				if r.traceparent != me.header(tt.flags).Get("Traceparent") {
					t.Errorf("%s: traceparent at the server = %q, want the caller's own", r.rpcMethod, r.traceparent)
				}
			}
			if len(wire) != 4 || len(tools.trace(t, me.trace)) != 3 {
				t.Errorf("requests = %d and links = %d, want 4 and 3", len(wire), len(tools.trace(t, me.trace)))
			}
			flush(t, a.sidecar)
			flush(t, tools.sidecar)
			if got := c.received(me.trace); len(got) != 0 {
				t.Errorf("spans = %v, want none", got)
			}
		})
	}
}

// TestSpansSample pins that the share counts for traces that begin here, and for
// no others.
func TestSpansSample(t *testing.T) {
	c := newCollector(t, "http/protobuf")
	a := newAgent(t, "agent.example.com", exporting(c, "http/protobuf"), settings{"tracing.sample": 0})
	me := newCaller()
	var begun string
	a.chatIn(t, nil, func(_ context.Context, in *http.Request) error { begun = in.Header.Get("Traceparent"); return nil })
	a.chatIn(t, me.header("01"), func(context.Context, *http.Request) error { return nil })
	if len(begun) != 55 || !strings.HasSuffix(begun, "-00") {
		t.Errorf("traceparent of a trace that begins here = %q, want one that is not sampled", begun)
	}
	flush(t, a.sidecar)
	if got := c.received(""); len(got) != 1 || got[0].trace != me.trace {
		t.Errorf("spans = %v, want the one that the caller wants", got)
	}
}

// TestSpansEnvironment pins which of the variables of OpenTelemetry count, and
// that the file wins.
func TestSpansEnvironment(t *testing.T) {
	for _, tt := range []struct {
		name     string
		protocol string
		settings func(named, other *collector) settings
		resource map[string]string
		key      string // of the header api-key
	}{
		{"endpoint", "http/protobuf", func(named, _ *collector) settings {
			return settings{"env": []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + named.endpoint}}
		}, nil, ""},
		{"endpoint of traces", "http/protobuf", func(named, other *collector) settings {
			return settings{"env": []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + other.endpoint, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=" + named.endpoint + "/v1/traces"}}
		}, nil, ""},
		{"protocol", "grpc", func(named, _ *collector) settings {
			return settings{"env": []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + named.endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL=grpc"}}
		}, nil, ""},
		{"file against endpoint", "http/protobuf", func(named, other *collector) settings {
			return settings{"tracing.otlp.endpoint": named.endpoint, "env": []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + other.endpoint}}
		}, nil, ""},
		{"file against endpoint of traces", "http/protobuf", func(named, other *collector) settings {
			return settings{"tracing.otlp.endpoint": named.endpoint, "env": []string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=" + other.endpoint + "/v1/traces"}}
		}, nil, ""},
		{"file against protocol", "http/protobuf", func(named, _ *collector) settings {
			return settings{"tracing.otlp.endpoint": named.endpoint, "tracing.otlp.protocol": "http/protobuf", "env": []string{"OTEL_EXPORTER_OTLP_PROTOCOL=grpc"}}
		}, nil, ""},
		{"name and attributes", "http/protobuf", func(named, _ *collector) settings {
			return settings{"tracing.otlp.endpoint": named.endpoint, "env": []string{"OTEL_SERVICE_NAME=mine", "OTEL_RESOURCE_ATTRIBUTES=deployment.environment=test"}}
		}, map[string]string{"service.name": "mine", "deployment.environment": "test"}, ""},
		{"headers of the file", "http/protobuf", func(named, _ *collector) settings {
			return settings{"tracing.otlp.endpoint": named.endpoint, "tracing.otlp.headers": map[string]any{"api-key": map[string]any{"env": "KEY"}}, "env": []string{"KEY=k3y"}}
		}, nil, "k3y"},
		{"headers of the file, grpc", "grpc", func(named, _ *collector) settings {
			return settings{"tracing.otlp.endpoint": named.endpoint, "tracing.otlp.protocol": "grpc", "tracing.otlp.headers": map[string]any{"api-key": map[string]any{"env": "KEY"}}, "env": []string{"KEY=k3y"}}
		}, nil, "k3y"},
		{"headers of the environment", "http/protobuf", func(named, _ *collector) settings {
			return settings{"env": []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + named.endpoint, "OTEL_EXPORTER_OTLP_HEADERS=api-key=k3y"}}
		}, nil, "k3y"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			named, other := newCollector(t, tt.protocol), newCollector(t, tt.protocol)
			a := newAgent(t, "agent.example.com", tt.settings(named, other))
			me := newCaller()
			a.chatIn(t, me.header("01"), func(context.Context, *http.Request) error { return nil })
			flush(t, a.sidecar)
			got := named.received(me.trace)
			if len(got) != 1 || len(other.received("")) != 0 {
				t.Fatalf("spans at the collector that is named = %v, at the other = %v, want one and none", got, other.received(""))
			}
			for k, v := range tt.resource {
				if got[0].resource[k] != v {
					t.Errorf("%s = %q, want %q", k, got[0].resource[k], v)
				}
			}
			if tt.key != "" && !named.keys[tt.key] {
				t.Errorf("api-key at the collector = %v, want %q", named.keys, tt.key)
			}
		})
	}
}

// TestSpansNoCollector pins that a collector which is not there, or does not
// answer, or refuses, harms nothing and is counted.
func TestSpansNoCollector(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0") // nobody accepts
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	for _, tt := range []struct{ name, protocol, endpoint string }{
		{"not there", "http/protobuf", "http://127.0.0.1:1"},
		{"not there, grpc", "grpc", "http://127.0.0.1:1"},
		{"silent", "http/protobuf", "http://" + ln.Addr().String()},
		{"silent, grpc", "grpc", "http://" + ln.Addr().String()},
		{"refuses", "http/protobuf", serveHost(t, http.NotFoundHandler())},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := settings{
				"tracing.otlp.endpoint": tt.endpoint, "tracing.otlp.protocol": tt.protocol,
				"tracing.otlp.timeout": "300ms", "env": []string{soon},
			}
			tools := newToolServer(t, "tools.example.com", stateless, o)
			a := newAgent(t, "agent.example.com", o)
			began := time.Now()
			run := a.chatIn(t, newCaller().header("01"), func(ctx context.Context, _ *http.Request) error { return useTools(ctx, t, a, tools) })
			if took := time.Since(began); took > 2*time.Second {
				t.Errorf("the run took %v, want it not to wait for the collector", took)
			}
			if children := a.children(t, run); len(children) != 3 {
				t.Errorf("children of %s = %+v, want 3", run, children)
			}
			for _, s := range []*sidecar{a.sidecar, tools.sidecar} {
				eventually(t, "the failure is counted", func() bool { return s.metric(t, "wopproxy_span_export_failures_total") > 0 })
				if code, _ := get(t, s.admin+"/readyz"); code != http.StatusOK {
					t.Errorf("%s: /readyz = %d, want 200", s.hostID, code)
				}
			}
		})
	}
}

// TestForeignContext pins which formats are understood besides W3C, and that
// W3C is all that is passed on.
func TestForeignContext(t *testing.T) {
	const (
		trace = "4bf92f3577b34da6a3ce929d0e0e4736"
		short = "a3ce929d0e0e4736"
		id    = "00f067aa0ba902b7"
		w3c   = "00-11111111111111111111111111111111-2222222222222222-01"
	)
	all := newAgent(t, "agent.example.com", noQuarantine)
	none := newAgent(t, "strict.example.com", settings{"tracing.propagators": []string{}})
	p := newPeer(t, "callee.example.com")
	p.does("work", finish)
	for _, tt := range []struct {
		name   string
		header http.Header
		want   string // the traceparent that comes of it
	}{
		{"b3 single", http.Header{"B3": {trace + "-" + id + "-1"}}, "00-" + trace + "-" + id + "-01"},
		{"b3 single, debug", http.Header{"B3": {trace + "-" + id + "-d"}}, "00-" + trace + "-" + id + "-01"},
		{"b3 single, not sampled", http.Header{"B3": {trace + "-" + id + "-0"}}, "00-" + trace + "-" + id + "-00"},
		{"b3 single, 64 bits", http.Header{"B3": {short + "-" + id + "-1"}}, "00-0000000000000000" + short + "-" + id + "-01"},
		{"b3 multi", http.Header{"X-B3-Traceid": {trace}, "X-B3-Spanid": {id}, "X-B3-Sampled": {"1"}}, "00-" + trace + "-" + id + "-01"},
		{"jaeger", http.Header{"Uber-Trace-Id": {trace + ":" + id + ":0:1"}}, "00-" + trace + "-" + id + "-01"},
		{"xray", http.Header{"X-Amzn-Trace-Id": {"Root=1-" + trace[:8] + "-" + trace[8:] + ";Parent=" + id + ";Sampled=1"}}, "00-" + trace + "-" + id + "-01"},
		{"ottrace", http.Header{"Ot-Tracer-Traceid": {short}, "Ot-Tracer-Spanid": {id}, "Ot-Tracer-Sampled": {"true"}}, "00-0000000000000000" + short + "-" + id + "-01"},
		{"W3C first", http.Header{"B3": {trace + "-" + id + "-1"}, "Traceparent": {w3c}}, w3c},
		{"malformed W3C", http.Header{"B3": {trace + "-" + id + "-1"}, "Traceparent": {"nonsense"}}, "00-" + trace + "-" + id + "-01"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			run := all.chatIn(t, tt.header, func(ctx context.Context, in *http.Request) error {
				if got := in.Header.Get("Traceparent"); got != tt.want {
					t.Errorf("traceparent at the agent = %q, want %q", got, tt.want)
				}
				c, err := p.dial(ctx, all.client(t), bindings[0])
				if err != nil {
					return err
				}
				_, err = ask(ctx, c, say("work"))
				return err
			})
			if l, ok := all.link(t, run); !ok || l.TraceID != traceOf(tt.want) || l.ParentSpanID != tt.want[36:52] {
				t.Errorf("link of %s = %+v, %v, want the trace and span of %s", run, l, ok, tt.want)
			}
			_, wire := p.seen()
			last := wire[len(wire)-1].header
			if got := last.Get("Traceparent"); got != tt.want {
				t.Errorf("traceparent at the callee = %q, want %q", got, tt.want)
			}
			for name := range tt.header {
				if name != "Traceparent" && last.Get(name) != "" {
					t.Errorf("%s at the callee = %q, want W3C alone", name, last.Get(name))
				}
			}
			none.chatIn(t, tt.header, func(_ context.Context, in *http.Request) error {
				if got := in.Header.Get("Traceparent"); got != w3c && strings.Contains(got, id) || tt.name == "W3C first" && got != w3c {
					t.Errorf("traceparent without foreign formats = %q, want W3C or a new trace", got)
				}
				return nil
			})
			eventually(t, "the run has ended", func() bool { return len(all.live(t)) == 0 })
		})
	}
}
