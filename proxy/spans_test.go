package proxy

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
)

// traces makes a sidecar export its spans to memory.
func traces() (*tracetest.InMemoryExporter, func(*Options, *Policy)) {
	exporter := tracetest.NewInMemoryExporter()
	return exporter, func(o *Options, _ *Policy) {
		o.Tracer = sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter), sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.AlwaysSample())))
	}
}

// describeSpan lists what a span says, a line each. What varies from run to run is
// made plain.
func describeSpan(s tracetest.SpanStub) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s\n", s.SpanKind, s.Name)
	if s.Parent.IsValid() {
		fmt.Fprintf(&b, "parent %s-%s remote=%v\n", s.Parent.TraceID(), s.Parent.SpanID(), s.Parent.IsRemote())
	}
	for _, l := range s.Links {
		fmt.Fprintf(&b, "link %s-%s\n", l.SpanContext.TraceID(), l.SpanContext.SpanID())
	}
	var lines []string
	for _, a := range s.Attributes {
		lines = append(lines, fmt.Sprintf("%s=%s\n", a.Key, a.Value.String()))
	}
	slices.Sort(lines)
	b.WriteString(strings.Join(lines, ""))
	if s.Status.Code != codes.Unset {
		fmt.Fprintf(&b, "status %s %s\n", s.Status.Code, s.Status.Description)
	}
	out := b.String()
	for _, v := range []struct{ form, plain string }{
		{`port=\d+`, "port=PORT"}, {`run_[0-9A-Z]{26}`, "RUN"},
	} {
		out = regexp.MustCompile(v.form).ReplaceAllString(out, v.plain)
	}
	return out
}

// Names, kinds, parents, links and attributes are those of the OpenTelemetry
// conventions for MCP, and for A2A those for RPC.
func TestSpans(t *testing.T) {
	const parent = "parent 4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7 remote=true\n"
	const network = "network.protocol.name=http\nnetwork.protocol.version=1.1\nnetwork.transport=tcp\n"
	const client = "client.address=127.0.0.1\nclient.port=PORT\n"
	const server = "server.address=127.0.0.1\nserver.port=PORT\n"
	rows := []struct {
		name   string
		dir    direction
		body   string
		header []string
		path   string
		answer string // default: an empty result
		status int
		want   string // "" for no span
	}{
		{name: "tool call", dir: ingress, body: call,
			want: "server tools/call search\n" + parent + client + "gen_ai.operation.name=execute_tool\ngen_ai.tool.name=search\njsonrpc.request.id=1\nmcp.method.name=tools/call\n" + network + "wopproxy.run.id=RUN\n"},
		{name: "tool call of a session", dir: ingress, body: strings.Replace(call, `"id":1`, `"id":"a"`, 1), header: []string{"Mcp-Session-Id", "s1", "Mcp-Protocol-Version", "2025-11-25"},
			answer: `{"jsonrpc":"2.0","id":"a","result":{}}`,
			want:   "server tools/call search\n" + parent + client + "gen_ai.operation.name=execute_tool\ngen_ai.tool.name=search\njsonrpc.request.id=a\nmcp.method.name=tools/call\nmcp.protocol.version=2025-11-25\nmcp.session.id=s1\n" + network + "wopproxy.run.id=RUN\n"},
		{name: "resource", dir: ingress, body: `{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"file:///x","_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}}`,
			want: "server resources/read\n" + parent + client + "jsonrpc.request.id=1\nmcp.method.name=resources/read\nmcp.protocol.version=2026-07-28\nmcp.resource.uri=file:///x\n" + network + "wopproxy.run.id=RUN\n"},
		{name: "prompt", dir: egress, body: `{"jsonrpc":"2.0","id":1,"method":"prompts/get","params":{"name":"greet"}}`,
			want: "client prompts/get greet\n" + parent + "gen_ai.prompt.name=greet\njsonrpc.request.id=1\nmcp.method.name=prompts/get\n" + network + server + "wopproxy.attribution=run-id\nwopproxy.run.id=r-9\n"},
		{name: "list", dir: ingress, body: `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`,
			want: "server tools/list\n" + parent + client + "jsonrpc.request.id=1\nmcp.method.name=tools/list\n" + network},
		{name: "notification", dir: ingress, body: `{"jsonrpc":"2.0","method":"notifications/initialized"}`, status: http.StatusAccepted,
			want: "server notifications/initialized\n" + parent + client + "mcp.method.name=notifications/initialized\n" + network},
		{name: "response", dir: ingress, body: `{"jsonrpc":"2.0","id":1,"result":{}}`, header: []string{"Mcp-Session-Id", "s1"}, status: http.StatusAccepted},
		{name: "carriers disagree", dir: ingress, body: `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":{"traceparent":"` + traced + `"}}}`,
			header: []string{"Traceparent", "00-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa-bbbbbbbbbbbbbbbb-01"},
			want:   "server tools/list\n" + parent + "link aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa-bbbbbbbbbbbbbbbb\n" + client + "jsonrpc.request.id=1\nmcp.method.name=tools/list\n" + network},
		{name: "carriers agree", dir: ingress, body: `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":{"traceparent":"` + traced + `"}}}`,
			want: "server tools/list\n" + parent + client + "jsonrpc.request.id=1\nmcp.method.name=tools/list\n" + network},
		{name: "A2A", dir: ingress, path: "/", body: `{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":{"message":{"messageId":"m"}}}`,
			answer: `{"jsonrpc":"2.0","id":1,"result":{"message":{"messageId":"n"}}}`,
			want:   "server SendMessage\n" + parent + client + "jsonrpc.request.id=1\n" + network + "rpc.method=SendMessage\nrpc.system.name=jsonrpc\nwopproxy.run.id=RUN\n"},
		{name: "A2A over REST", dir: egress, path: "/v1/message:send", body: `{"message":{"messageId":"m"}}`, answer: `{"message":{"messageId":"n"}}`,
			want: "client POST /message:send\n" + parent + network + "rpc.method=POST /message:send\nrpc.system.name=http\n" + server + "wopproxy.attribution=run-id\nwopproxy.run.id=r-9\n"},
		{name: "plain run", dir: ingress, path: "/chat", body: "{}",
			want: "server POST /chat\n" + parent + client + "http.request.method=POST\n" + network + "url.path=/chat\nwopproxy.run.id=RUN\n"},
		{name: "plain request", dir: ingress, path: "/other", body: "{}"},
		{name: "plain call of a run", dir: egress, path: "/other", body: "{}"},

		{name: "error", dir: egress, body: call, answer: `{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"no such tool"}}`,
			want: "client tools/call search\n" + parent + "error.type=-32602\ngen_ai.operation.name=execute_tool\ngen_ai.tool.name=search\njsonrpc.request.id=1\nmcp.method.name=tools/call\n" + network + "rpc.response.status_code=-32602\n" + server + "wopproxy.attribution=run-id\nwopproxy.run.id=r-9\nstatus Error no such tool\n"},
		{name: "error of the caller", dir: ingress, body: call, answer: `{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"no such tool"}}`,
			want: "server tools/call search\n" + parent + client + "gen_ai.operation.name=execute_tool\ngen_ai.tool.name=search\njsonrpc.request.id=1\nmcp.method.name=tools/call\n" + network + "rpc.response.status_code=-32602\nwopproxy.run.id=RUN\n"},
		{name: "error of the server", dir: ingress, body: call, answer: `{"jsonrpc":"2.0","id":1,"error":{"code":-32603,"message":"boom"}}`,
			want: "server tools/call search\n" + parent + client + "error.type=-32603\ngen_ai.operation.name=execute_tool\ngen_ai.tool.name=search\njsonrpc.request.id=1\nmcp.method.name=tools/call\n" + network + "rpc.response.status_code=-32603\nwopproxy.run.id=RUN\nstatus Error boom\n"},
		{name: "mismatch of headers is an error", dir: ingress, status: http.StatusBadRequest, body: `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, answer: `{"jsonrpc":"2.0","id":1,"error":{"code":-32020,"message":"mismatch"}}`,
			want: "server tools/list\n" + parent + client + "error.type=-32020\njsonrpc.request.id=1\nmcp.method.name=tools/list\n" + network + "rpc.response.status_code=-32020\nstatus Error mismatch\n"},
		{name: "tool error", dir: ingress, body: call, answer: `{"jsonrpc":"2.0","id":1,"result":{"isError":true,"content":[]}}`,
			want: "server tools/call search\n" + parent + client + "error.type=tool_error\ngen_ai.operation.name=execute_tool\ngen_ai.tool.name=search\njsonrpc.request.id=1\nmcp.method.name=tools/call\n" + network + "wopproxy.run.id=RUN\nstatus Error \n"},
		{name: "status without a message", dir: ingress, body: `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, answer: "gone", status: http.StatusNotFound,
			want: "server tools/list\n" + parent + client + "error.type=_OTHER\njsonrpc.request.id=1\nmcp.method.name=tools/list\n" + network + "status Error Not Found\n"},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			arrived := make(chan http.Header, 1)
			to := peer(t, func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				arrived <- r.Header.Clone()
				w.Header().Set("Content-Type", "application/json")
				if row.status != 0 {
					w.WriteHeader(row.status)
				}
				if row.answer != "" {
					_, _ = io.WriteString(w, row.answer)
				} else if row.status == 0 {
					_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":1,"result":{}}`)
				}
			})
			exporter, tune := traces()
			s := newSidecar(t, "agent.example.com", "http://"+to, tune)
			r := request(t, to, []byte(row.body), row.header...)
			r.URL.Path = "/mcp"
			if row.path != "" {
				r.URL.Path = row.path
			}
			tr := direct(t)
			if row.dir == egress {
				r.Header.Set("Run-Id", "r-9")
				tr.Proxy = http.ProxyURL(s.proxyURL())
			} else {
				r.URL.Host = strings.TrimPrefix(s.ingress.URL, "http://")
			}
			resp, err := tr.RoundTrip(r)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
			s.handled.wait(t)
			spans := exporter.GetSpans()
			var got string
			for _, span := range spans {
				got += describeSpan(span)
			}
			if diff := cmp.Diff(row.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			// The next hop is told our span, or, where there is none, what we were told.
			tp := receive(t, arrived, "the request").Get("Traceparent")
			want := traced
			if len(spans) == 1 {
				sc := spans[0].SpanContext
				want = fmt.Sprintf("00-%s-%s-01", sc.TraceID(), sc.SpanID())
			}
			if tp != want {
				t.Errorf("Traceparent = %s, want %s", tp, want)
			}
		})
	}
}

// The spans of a run make one tree: what a host calls hangs below the span that it
// was handed, whether it forwards anything or not.
func TestSpansMakeATree(t *testing.T) {
	to := peer(t, func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, `{"jsonrpc":"2.0","id":1,"result":{}}`) })
	exporter, tune := traces()
	var s *sidecar
	host := peer(t, func(w http.ResponseWriter, r *http.Request) {
		post(t, s.client(), "http://"+to+"/mcp", call, nil)
	})
	s = newSidecar(t, "agent.example.com", "http://"+host, tune)
	post(t, http.DefaultClient, s.ingress.URL+"/chat", "{}", nil)
	s.handled.wait(t)
	spans := exporter.GetSpans()
	if len(spans) != 2 {
		t.Fatalf("%d spans, want 2", len(spans))
	}
	call, run := spans[0], spans[1]
	if run.Parent.IsValid() || run.SpanContext.TraceID() != call.SpanContext.TraceID() || call.Parent.SpanID() != run.SpanContext.SpanID() {
		t.Errorf("run %s-%s below %s; call below %s-%s: want a root, and the call below it", run.SpanContext.TraceID(), run.SpanContext.SpanID(),
			run.Parent.SpanID(), call.Parent.TraceID(), call.Parent.SpanID())
	}
	links := s.recorded(t)
	if len(links) != 1 || links[0].Span.String() != run.SpanContext.SpanID().String() {
		t.Errorf("links = %+v, want the span that the host was handed, %s", links, run.SpanContext.SpanID())
	}
}

// A trace that is not sampled gets no spans, and its ids are handed on unchanged.
func TestUnsampledTraceIsHandedOn(t *testing.T) {
	last := make(chan seen, 1)
	to := target(t, last)
	exporter, tune := traces()
	for _, way := range pathways {
		s := newSidecar(t, "agent.example.com", "http://"+to, tune)
		unsampled := traced[:len(traced)-1] + "0"
		resp, err := way.send(t, s, request(t, to, []byte(call), "Traceparent", unsampled))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		got := receive(t, last, "the request")
		if tp := got.head.Get("Traceparent"); tp != unsampled || !strings.Contains(string(got.body), `"traceparent":"`+unsampled+`"`) {
			t.Errorf("%s: Traceparent = %s, body %s, want %s in both", way.name, tp, got.body, unsampled)
		}
	}
	if n := len(exporter.GetSpans()); n != 0 {
		t.Errorf("%d spans of a trace that is not sampled", n)
	}
}

// Contexts that come along and do not count are links of our span: what a stranger
// claims, and what a library of the host has made up.
func TestStrayContextsAreLinks(t *testing.T) {
	last := make(chan seen, 1)
	to := target(t, last)
	t.Run("untrusted", func(t *testing.T) {
		exporter, tune := traces()
		s := newSidecar(t, "agent.example.com", "http://"+to, tune, func(_ *Options, p *Policy) { p.TrustCaller = func(netip.Addr) bool { return false } })
		resp, err := pathways[0].send(t, s, request(t, to, []byte(call)))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		receive(t, last, "the request")
		s.handled.wait(t)
		span := exporter.GetSpans()[0]
		if span.Parent.IsValid() || span.SpanContext.TraceID().String() == traced[3:35] || len(span.Links) != 1 || span.Links[0].SpanContext.TraceID().String() != traced[3:35] {
			t.Errorf("span = %s, want a root with a link to what the stranger claims", describeSpan(span))
		}
	})
	t.Run("orphan", func(t *testing.T) {
		exporter, tune := traces()
		s := newSidecar(t, "agent.example.com", "http://"+to, tune)
		run := request(t, to, []byte("{}"))
		run.URL.Path = "/chat"
		resp, err := pathways[0].send(t, s, run)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		chat := receive(t, last, "the run")
		s.handled.wait(t)
		exporter.Reset()
		r := request(t, to, []byte(call), "Traceparent", "00-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa-bbbbbbbbbbbbbbbb-01")
		tr := direct(t)
		tr.Proxy = http.ProxyURL(s.proxyURL())
		if resp, err = tr.RoundTrip(r); err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		receive(t, last, "the call")
		s.handled.wait(t)
		span := exporter.GetSpans()[0]
		if got, want := span.Parent.SpanID().String(), chat.head.Get("Traceparent")[36:52]; got != want {
			t.Errorf("parent = %s, want the run's span %s", got, want)
		}
		if len(span.Links) != 1 || span.Links[0].SpanContext.SpanID().String() != "bbbbbbbbbbbbbbbb" {
			t.Errorf("links = %v, want the orphan", span.Links)
		}
	})
}

// A span ends with the JSON-RPC answer, not with the stream that bears it; an
// exchange that fails ends its span all the same, and says how.
func TestSpanEnds(t *testing.T) {
	errorType := func(span tracetest.SpanStub) string {
		for _, a := range span.Attributes {
			if a.Key == "error.type" {
				return a.Value.AsString()
			}
		}
		return ""
	}
	t.Run("with the answer", func(t *testing.T) {
		release := make(chan struct{})
		to := peer(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "data: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n\n")
			_ = http.NewResponseController(w).Flush()
			select {
			case <-release:
			case <-r.Context().Done():
			}
		})
		exporter, tune := traces()
		s := newSidecar(t, "agent.example.com", "http://"+to, tune)
		resp, err := pathways[0].send(t, s, request(t, to, []byte(call)))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b := make([]byte, 5)
		if _, err := io.ReadFull(resp.Body, b); err != nil {
			t.Fatal(err)
		}
		if n := len(exporter.GetSpans()); n != 1 {
			t.Errorf("%d spans have ended when the client has the answer, want 1", n)
		}
		close(release)
	})
	t.Run("upstream fails", func(t *testing.T) {
		exporter, tune := traces()
		s := newSidecar(t, "agent.example.com", "http://127.0.0.1:1", tune)
		resp, err := pathways[0].send(t, s, request(t, "127.0.0.1:1", []byte(call)))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		s.handled.wait(t)
		if spans := exporter.GetSpans(); len(spans) != 1 || errorType(spans[0]) != "upstream" || spans[0].Status.Code != codes.Error {
			t.Errorf("spans = %+v, want one with error.type upstream", spans)
		}
	})
	t.Run("client leaves", func(t *testing.T) {
		here := make(chan struct{})
		to := peer(t, func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			close(here)
			<-r.Context().Done()
		})
		exporter, tune := traces()
		s := newSidecar(t, "agent.example.com", "http://"+to, tune)
		ctx, cancel := context.WithCancel(t.Context())
		over := make(chan struct{})
		go func() {
			defer close(over)
			resp, err := pathways[0].send(t, s, request(t, to, []byte(call)).WithContext(ctx))
			if err == nil {
				resp.Body.Close()
			}
		}()
		receive(t, here, "the request")
		cancel()
		receive(t, over, "the client")
		s.handled.wait(t)
		if spans := exporter.GetSpans(); len(spans) != 1 || errorType(spans[0]) != "cancelled" {
			t.Errorf("spans = %+v, want one with error.type cancelled", spans)
		}
	})
}

// What a peer says at length is cut in spans, at a whole character.
func TestLongTextsAreCut(t *testing.T) {
	exporter, tune := traces()
	s := newSidecar(t, "agent.example.com", "http://127.0.0.1:1", unstored(t), tune, func(_ *Options, p *Policy) {
		p.Starts = func(string, string) bool { return true }
	})
	path := "/" + strings.Repeat("é", 30<<10)
	s.passes(ingress, httptest.NewRequest(http.MethodGet, path, nil), nil)
	var got string
	for _, span := range exporter.GetSpans() {
		for _, a := range span.Attributes {
			if a.Key == "url.path" {
				got = a.Value.AsString()
			}
		}
	}
	if len(got) != 1023 || !strings.HasPrefix(path, got) {
		t.Errorf("url.path has %d bytes of %d and ends in %q", len(got), len(path), got[max(0, len(got)-4):])
	}
}
