package e2e

import (
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	collectorpb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
)

// span is one exported span.
type span struct {
	trace, id, parent string
	kind, name        string // "SERVER", "tools/call echo"
	status            string // "ERROR: message", or empty
	attributes        map[string]string
	links             []string // "trace span"
	resource          map[string]string
	scope             string
}

// host is the host whose wopproxy has made the span.
func (s span) host() string { return s.resource["service.instance.id"] }

func (s span) String() string { return s.host() + " " + s.kind + " " + s.name }

// collector receives spans as an OpenTelemetry collector does.
type collector struct {
	endpoint string
	mu       sync.Mutex
	spans    []span
	keys     map[string]bool // values of the header api-key
}

// newCollector starts a collector that speaks the protocol.
func newCollector(t testing.TB, protocol string) *collector {
	t.Helper()
	c := &collector{keys: map[string]bool{}}
	if protocol == "grpc" {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		srv := grpc.NewServer()
		collectorpb.RegisterTraceServiceServer(srv, grpcCollector{c: c})
		go srv.Serve(ln) // ends with Stop
		t.Cleanup(srv.Stop)
		c.endpoint = "http://" + ln.Addr().String()
		return c
	}
	srv := httptest.NewServer(http.HandlerFunc(c.serveHTTP))
	t.Cleanup(srv.Close)
	c.endpoint = srv.URL
	return c
}

func (c *collector) serveHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	var req collectorpb.ExportTraceServiceRequest
	if err != nil || r.URL.Path != "/v1/traces" || r.Header.Get("Content-Type") != "application/x-protobuf" || proto.Unmarshal(body, &req) != nil {
		http.Error(w, "no export of traces", http.StatusBadRequest)
		return
	}
	c.take(&req, r.Header.Values("Api-Key"))
	w.Header().Set("Content-Type", "application/x-protobuf")
	answer, _ := proto.Marshal(&collectorpb.ExportTraceServiceResponse{}) // always marshals
	_, _ = w.Write(answer)
}

// grpcCollector is the same as a service of gRPC.
type grpcCollector struct {
	collectorpb.UnimplementedTraceServiceServer
	c *collector
}

func (g grpcCollector) Export(ctx context.Context, req *collectorpb.ExportTraceServiceRequest) (*collectorpb.ExportTraceServiceResponse, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	g.c.take(req, md.Get("api-key"))
	return &collectorpb.ExportTraceServiceResponse{}, nil
}

func (c *collector) take(req *collectorpb.ExportTraceServiceRequest, keys []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range keys {
		c.keys[k] = true
	}
	for _, rs := range req.ResourceSpans {
		resource := texts(rs.Resource.GetAttributes())
		for _, ss := range rs.ScopeSpans {
			for _, s := range ss.Spans {
				c.spans = append(c.spans, newSpan(s, resource, ss.Scope.GetName()))
			}
		}
	}
}

func newSpan(s *tracepb.Span, resource map[string]string, scope string) span {
	out := span{
		trace: hex.EncodeToString(s.TraceId), id: hex.EncodeToString(s.SpanId), parent: hex.EncodeToString(s.ParentSpanId),
		kind: strings.TrimPrefix(s.Kind.String(), "SPAN_KIND_"), name: s.Name,
		attributes: texts(s.Attributes), resource: resource, scope: scope,
	}
	if s.Status.GetCode() != tracepb.Status_STATUS_CODE_UNSET {
		out.status = strings.TrimPrefix(s.Status.Code.String(), "STATUS_CODE_") + ": " + s.Status.Message
	}
	for _, l := range s.Links {
		out.links = append(out.links, hex.EncodeToString(l.TraceId)+" "+hex.EncodeToString(l.SpanId))
	}
	return out
}

// texts renders attributes as text, whatever their type.
func texts(attributes []*commonpb.KeyValue) map[string]string {
	m := map[string]string{}
	for _, a := range attributes {
		switch v := a.Value.GetValue().(type) {
		case *commonpb.AnyValue_StringValue:
			m[a.Key] = v.StringValue
		case *commonpb.AnyValue_IntValue:
			m[a.Key] = fmt.Sprint(v.IntValue)
		default:
			m[a.Key] = a.Value.String()
		}
	}
	return m
}

// received returns the spans of a trace so far, or all if trace is empty.
func (c *collector) received(trace string) []span {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(c.spans), func(s span) bool { return trace != "" && s.trace != trace })
}

// await waits until a trace has at least n spans, and returns them.
func (c *collector) await(t testing.TB, trace string, n int) []span {
	t.Helper()
	var got []span
	if !poll(func() bool { got = c.received(trace); return len(got) >= n }) {
		t.Fatalf("spans of trace %s = %v, want %d", trace, got, n)
	}
	return got
}
