package proxy

import (
	"context"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/wopproxy/wopproxy/proxy/internal/wire"
)

// openSpan begins our span as a child of x.received and sets x.context to what
// the next hop is told.
//
// Without a tracer, and in a trace that is not sampled, there is no span that
// anybody could ever find: the id that was given is handed on. A request that
// brings no context gets one only if something will come of it: a run, or a
// span. One that brings a stranger's gets another, or the host would take that.
func (x *exchange) openSpan(kind trace.SpanKind, r *http.Request) {
	parent := x.received
	if x.p.tracer == nil || parent.Valid() && parent.Flags&1 == 0 || !x.worthASpan() {
		x.context = parent
		if !parent.Valid() && (x.starts || x.claimed || x.owner != nil) {
			x.context = x.newContext()
		}
		return
	}
	ctx := context.Background()
	if parent.Valid() {
		ctx = trace.ContextWithRemoteSpanContext(ctx, remote(parent))
	}
	_, span := x.p.tracer.Start(ctx, x.spanName(r), trace.WithSpanKind(kind), trace.WithTimestamp(x.began),
		trace.WithLinks(x.stray...), trace.WithAttributes(x.attributes(r)...))
	sc := span.SpanContext()
	x.context = spanContext{
		TraceID: wire.TraceID(sc.TraceID()), SpanID: wire.SpanID(sc.SpanID()),
		Flags: byte(sc.TraceFlags())&1 | parent.Flags&^1, State: parent.State, Baggage: parent.Baggage,
	}
	if span.IsRecording() {
		x.span = span
	}
}

// worthASpan keeps plain requests out of the trace unless a run begins or ends
// with them: their own instrumentation knows more about them than we do.
func (x *exchange) worthASpan() bool {
	return x.starts || x.owner != nil || x.head.task != "" || x.msg.Kind != wire.Response && (x.msg.Protocol != wire.None && x.body != nil)
}

// spanName follows the conventions for MCP: the method and, if it is short and
// from a small set by nature, what is called.
func (x *exchange) spanName(r *http.Request) string {
	name := x.operation(r)
	if x.msg.Target != "" && (x.msg.Method == "tools/call" || x.msg.Method == "prompts/get") {
		name += " " + x.msg.Target
	}
	return name
}

// attributes are those of the OpenTelemetry conventions for MCP, and of those
// for RPC for A2A, which has none of its own.
func (x *exchange) attributes(r *http.Request) []attribute.KeyValue {
	m := &x.msg
	a := make([]attribute.KeyValue, 0, 12)
	switch m.Protocol {
	case wire.MCP:
		a = append(a, attribute.String("mcp.method.name", x.operation(r)))
		if x.session != "" {
			a = append(a, attribute.String("mcp.session.id", x.session))
		}
		if m.ProtocolVersion != "" {
			a = append(a, attribute.String("mcp.protocol.version", m.ProtocolVersion))
		} else if v := r.Header.Get(headerMCPVersion); v != "" {
			a = append(a, attribute.String("mcp.protocol.version", v))
		}
		switch m.Method {
		case "tools/call":
			a = append(a, attribute.String("gen_ai.operation.name", "execute_tool"), attribute.String("gen_ai.tool.name", m.Target))
		case "prompts/get":
			a = append(a, attribute.String("gen_ai.prompt.name", m.Target))
		case "resources/read":
			a = append(a, attribute.String("mcp.resource.uri", m.Target))
		}
	case wire.A2A:
		a = append(a, attribute.String("rpc.system.name", rpcSystem(x)), attribute.String("rpc.method", x.operation(r)))
	default:
		a = append(a, attribute.String("http.request.method", r.Method), attribute.String("url.path", r.URL.Path))
	}
	if id := strings.Trim(m.ID, `"`); id != "" {
		a = append(a, attribute.String("jsonrpc.request.id", id))
	}
	if x.pipe {
		a = append(a, attribute.String("network.transport", "pipe"))
	} else {
		a = append(a, attribute.String("network.transport", "tcp"), attribute.String("network.protocol.name", "http"),
			attribute.String("network.protocol.version", protoVersion(r)))
		a = append(a, x.peer(r)...)
	}
	if x.run != nil { // on ingress it may not have begun yet
		a = append(a, attribute.String("wopproxy.run.id", string(x.run.ID())))
	}
	if x.evidence != "" {
		a = append(a, attribute.String("wopproxy.attribution", string(x.evidence)))
	}
	if x.step != nil { // on ingress it begins with the run
		a = append(a, stepAttributes(x.step)...)
	}
	for i, said := range a {
		if text := said.Value.AsString(); len(text) > maxAttribute {
			a[i] = said.Key.String(strings.Clone(strings.ToValidUTF8(text[:maxAttribute], "")))
		}
	}
	return a
}

// maxAttribute is how many bytes of a text a span has: thousands of them wait for
// their export, and a path alone may be as long as a head.
const maxAttribute = 1 << 10

// peer names the other side: the server we call, or the client that calls us.
func (x *exchange) peer(r *http.Request) []attribute.KeyValue {
	name, addr := "client", r.RemoteAddr
	if x.dir == egress {
		name, addr = "server", r.URL.Host
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return []attribute.KeyValue{attribute.String(name+".address", addr)}
	}
	n, _ := strconv.Atoi(port)
	return []attribute.KeyValue{attribute.String(name+".address", host), attribute.Int(name+".port", n)}
}

func protoVersion(r *http.Request) string {
	if r.ProtoMajor == 2 {
		return "2"
	}
	return strconv.Itoa(r.ProtoMajor) + "." + strconv.Itoa(r.ProtoMinor)
}

// rpcSystem tells A2A's bindings apart.
func rpcSystem(x *exchange) string {
	switch {
	case x.head.hints.GRPC != "":
		return "grpc"
	case x.head.hints.REST:
		return "http"
	}
	return "jsonrpc"
}

// finish ends the span and counts the operation; later calls do nothing. code
// is the error code of the answer, kind the error type: both empty for success.
func (x *exchange) finish(kind, code, message string) {
	if x.finished {
		return
	}
	x.finished = true
	x.observeOperation(kind, code)
	if x.span == nil {
		return
	}
	if code != "" {
		x.span.SetAttributes(attribute.String("rpc.response.status_code", code))
	}
	if kind != "" {
		x.span.SetAttributes(attribute.String("error.type", kind))
		x.span.SetStatus(codes.Error, message)
	}
	x.span.End()
}

// errorType says what counts as an error on this side. What only the caller
// did wrong is none of the server's.
func (x *exchange) errorType(code string, toolError bool) string {
	switch {
	case toolError:
		return "tool_error"
	case x.dir == ingress && callersFault(code):
		return ""
	}
	return code
}

// callersFault reports whether an error code says that the caller did something
// wrong: the codes of JSON-RPC, and those of gRPC that the OpenTelemetry
// conventions don't count as errors of a server.
func callersFault(code string) bool {
	switch code {
	case "-32700", "-32600", "-32601", "-32602", "-32002",
		"CANCELLED", "INVALID_ARGUMENT", "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED",
		"FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNAUTHENTICATED":
		return true
	}
	return false
}

// observeOperation feeds the histograms of the conventions. Names that peers
// invent are folded into _OTHER, and so are codes.
func (x *exchange) observeOperation(kind, code string) {
	if x.msg.Kind == wire.Unknown && !x.head.hints.REST {
		return // a GET that listens, or a body that could not be read
	}
	took := time.Since(x.began).Seconds()
	m := x.p.metrics
	name := "_OTHER"
	if wire.KnownMethod(x.msg.Method) {
		name = x.msg.Method
	}
	kind, code = fold(kind), fold(code)
	switch x.msg.Protocol {
	case wire.MCP:
		h := m.mcpServer
		if x.dir == egress {
			h = m.mcpClient
		}
		h.WithLabelValues(name, kind, code).Observe(took)
	case wire.A2A:
		h := m.rpcServer
		if x.dir == egress {
			h = m.rpcClient
		}
		h.WithLabelValues(rpcSystem(x), name, kind, code).Observe(took)
	}
}

// fold keeps the codes that JSON-RPC, MCP, A2A and gRPC define, and our own
// words.
func fold(code string) string {
	if wire.KnownStatus(code) {
		return code
	}
	switch code {
	case "", "tool_error", "timeout", "cancelled", "upstream", "_OTHER", "-32700":
		return code
	}
	n, err := strconv.Atoi(code)
	switch {
	case err == nil && n >= -32603 && n <= -32600:
	case err == nil && n >= -32022 && n <= -32020:
	case err == nil && n >= -32009 && n <= -32000:
	default:
		return "_OTHER"
	}
	return code
}
