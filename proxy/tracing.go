package proxy

import (
	"context"
	"fmt"
	"net/url"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// TracingOptions say where spans go. What is left empty is taken from the
// OTEL_* variables that the OpenTelemetry SDK and its exporters know.
type TracingOptions struct {
	Endpoint string            // URL of the collector; empty: OTEL_EXPORTER_OTLP_*
	Protocol string            // "http/protobuf" (default) or "grpc"
	Headers  map[string]string // sent with each export
	Timeout  time.Duration     // of one export; 0: the exporter's default
	Sample   float64           // share of the traces begun here that are sampled; negative: OTEL_TRACES_SAMPLER
	HostID   string            // becomes service.instance.id
	Version  string            // becomes service.version
	Failed   func(error)       // told of each export that failed; may be nil
}

// NewTracerProvider connects to nothing yet: exports begin with the first
// sampled span and are retried by the exporter. Its Shutdown sends what is
// queued.
func NewTracerProvider(ctx context.Context, o TracingOptions) (*sdktrace.TracerProvider, error) {
	exporter, err := newExporter(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("tracing: %w", err)
	}
	res, err := resource.New(ctx,
		resource.WithAttributes(
			attribute.String("service.name", "wopproxy"),
			attribute.String("service.version", o.Version),
			attribute.String("service.instance.id", o.HostID)),
		resource.WithFromEnv(), // OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES win
		resource.WithTelemetrySDK())
	if err != nil {
		return nil, fmt.Errorf("tracing: %w", err)
	}
	var batches []sdktrace.BatchSpanProcessorOption
	if o.Timeout > 0 {
		// The exporter's own timeout bounds one attempt, and it makes many.
		batches = append(batches, sdktrace.WithExportTimeout(o.Timeout))
	}
	opts := []sdktrace.TracerProviderOption{
		sdktrace.WithBatcher(reportingExporter{exporter, o.Failed}, batches...),
		sdktrace.WithResource(res),
	}
	if o.Sample >= 0 {
		opts = append(opts, sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(o.Sample))))
	}
	return sdktrace.NewTracerProvider(opts...), nil
}

func newExporter(ctx context.Context, o TracingOptions) (*otlptrace.Exporter, error) {
	if o.Endpoint != "" {
		if u, err := url.Parse(o.Endpoint); err != nil || u.Host == "" {
			return nil, fmt.Errorf("endpoint %q is not a URL", o.Endpoint)
		}
	}
	switch o.Protocol {
	case "grpc":
		var opts []otlptracegrpc.Option
		if o.Endpoint != "" {
			opts = append(opts, otlptracegrpc.WithEndpointURL(o.Endpoint))
		}
		if len(o.Headers) > 0 {
			opts = append(opts, otlptracegrpc.WithHeaders(o.Headers))
		}
		if o.Timeout > 0 {
			opts = append(opts, otlptracegrpc.WithTimeout(o.Timeout))
		}
		return otlptracegrpc.New(ctx, opts...)
	case "http/protobuf", "":
		var opts []otlptracehttp.Option
		if o.Endpoint != "" {
			opts = append(opts, otlptracehttp.WithEndpointURL(tracesURL(o.Endpoint)))
		}
		if len(o.Headers) > 0 {
			opts = append(opts, otlptracehttp.WithHeaders(o.Headers))
		}
		if o.Timeout > 0 {
			opts = append(opts, otlptracehttp.WithTimeout(o.Timeout))
		}
		return otlptracehttp.New(ctx, opts...)
	}
	return nil, fmt.Errorf("protocol %q is neither http/protobuf nor grpc", o.Protocol)
}

// tracesURL appends the signal's path to a bare endpoint, as the OTLP
// specification does for OTEL_EXPORTER_OTLP_ENDPOINT.
func tracesURL(endpoint string) string {
	u, err := url.Parse(endpoint)
	if err == nil && (u.Path == "" || u.Path == "/") {
		u.Path = "/v1/traces"
		return u.String()
	}
	return endpoint
}

// reportingExporter tells of exports that failed; the SDK would hand them to a
// process-wide handler.
type reportingExporter struct {
	sdktrace.SpanExporter
	failed func(error)
}

func (e reportingExporter) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	err := e.SpanExporter.ExportSpans(ctx, spans)
	if err != nil && e.failed != nil {
		e.failed(err)
		return nil
	}
	return err
}

// tracerName is the instrumentation scope of our spans.
const tracerName = "github.com/wopproxy/wopproxy"

// remote turns a context that came over the wire into the parent of a span.
func remote(c spanContext) trace.SpanContext {
	state, err := trace.ParseTraceState(string(c.State))
	if err != nil {
		state = trace.TraceState{} // carried as text all the same
	}
	return trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: trace.TraceID(c.TraceID), SpanID: trace.SpanID(c.SpanID),
		TraceFlags: trace.TraceFlags(c.Flags), TraceState: state, Remote: true,
	})
}
