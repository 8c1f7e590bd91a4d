package proxy

import (
	"context"
	"net/http"

	"go.opentelemetry.io/contrib/propagators/aws/xray"
	"go.opentelemetry.io/contrib/propagators/b3"
	"go.opentelemetry.io/contrib/propagators/jaeger"
	"go.opentelemetry.io/contrib/propagators/ot"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// foreignFormat is a way to carry trace context that is adopted when there is
// no W3C traceparent. It is never written: what leaves us is W3C.
type foreignFormat struct {
	headers []string // one of them is there whenever the format is
	propagation.TextMapPropagator
}

var foreignFormats = map[string]foreignFormat{
	"b3":      {[]string{"B3", "X-B3-Traceid"}, b3.New()},
	"jaeger":  {[]string{"Uber-Trace-Id"}, jaeger.Jaeger{}},
	"xray":    {[]string{"X-Amzn-Trace-Id"}, xray.Propagator{}},
	"ottrace": {[]string{"Ot-Tracer-Traceid"}, ot.OT{}},
}

// extractForeign returns the first foreign context in h. It costs a map look-up
// for each format that is not there.
func (p *policy) extractForeign(h http.Header) (c spanContext, ok bool) {
	for _, f := range p.foreign {
		for _, name := range f.headers {
			if h[name] == nil {
				continue
			}
			sc := trace.SpanContextFromContext(f.Extract(context.Background(), propagation.HeaderCarrier(h)))
			if !sc.IsValid() {
				continue
			}
			c.TraceID, c.SpanID, c.Flags = [16]byte(sc.TraceID()), [8]byte(sc.SpanID()), byte(sc.TraceFlags())
			return c, true
		}
	}
	return c, false
}
