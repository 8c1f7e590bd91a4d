package proxy

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/wopproxy/wopproxy/proxy/internal/attribution"
)

// everyKind sends traffic of each kind through the sidecar of a host that is at
// to, as is whatever the host calls.
func everyKind(t testing.TB, s *sidecar, to string) {
	t.Helper()
	const message = `{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":{"message":{"messageId":"m"}}}`
	for _, row := range []struct{ path, body string }{
		{"/mcp", call}, {"/", message}, {"/message:send", `{"message":{"messageId":"m"}}`}, {"/v1/runs", `{"workflowId":"w"}`},
		{"/chat", "{}"}, {"/other", "{}"}, {"/mcp", "[" + call + "]"}, {"/mcp", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":[]}`},
	} {
		h := http.Header{"Traceparent": {traced}, "Run-Ancestry": {goodAncestry}, "B3": {"0"}}
		post(t, http.DefaultClient, s.ingress.URL+row.path, row.body, h)
		post(t, s.client(), "http://"+to+row.path, row.body, http.Header{"Run-Id": {"r-1"}, "Traceparent": {strings.Replace(traced, "4", "5", 1)}})
		resp, err := s.tunnelled(t, false).RoundTrip(request(t, to, []byte(row.body)))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	}
	s.handled.wait(t)
}

// The names, types and labels of all metrics of the package are what dashboards
// and alerts rest on. A change of this list is a change for its users.
func TestMetricNames(t *testing.T) {
	to := target(t, make(chan seen, 1000))
	s := newSidecar(t, "agent.example.com", "http://"+to)
	everyKind(t, s, to)
	problems, err := testutil.GatherAndLint(s.reg)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	families, err := s.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	for _, f := range families {
		var labels []string
		for _, l := range f.GetMetric()[0].GetLabel() {
			labels = append(labels, l.GetName())
		}
		slices.Sort(labels)
		fmt.Fprintln(&got, strings.TrimSpace(strings.Join([]string{f.GetName(), strings.ToLower(f.GetType().String()), strings.Join(labels, ",")}, " ")))
	}
	golden := filepath.Join("testdata", "metrics.golden")
	if *update {
		if err := os.WriteFile(golden, []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got.String()); diff != "" {
		t.Errorf("metrics changed (-golden +now); rewrite with -update if that is meant:\n%s", diff)
	}
}

// Series with a closed set of labels are there from the start, so that a rate
// never misses the first count.
func TestMetricsAreThereFromTheStart(t *testing.T) {
	s := newSidecar(t, "agent.example.com", "http://127.0.0.1:1")
	families, err := s.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]int{}
	for _, f := range families {
		got[f.GetName()] = len(f.GetMetric())
	}
	for name, least := range map[string]int{
		"wopproxy_stamp_refusals_total": 32, "wopproxy_abstentions_total": 7, "wopproxy_attributions_total": 7,
		"wopproxy_commit_waits_total": 3, "wopproxy_limit_hits_total": 9, "wopproxy_tunnels_total": 4,
		"wopproxy_codec_panics_total": 1, "wopproxy_attribution_conflicts_total": 1, "wopproxy_live_runs": 1,
	} {
		if got[name] < least {
			t.Errorf("%s has %d series, want at least %d", name, got[name], least)
		}
	}
}

// spanSizes measures the spans that it is given, and keeps none.
type spanSizes struct{ spans, longest int }

func (s *spanSizes) ExportSpans(_ context.Context, spans []sdktrace.ReadOnlySpan) error {
	for _, span := range spans {
		s.spans++
		s.longest = max(s.longest, len(span.Name()))
		for _, a := range span.Attributes() {
			s.longest = max(s.longest, len(a.Value.AsString()))
		}
	}
	return nil
}

func (s *spanSizes) Shutdown(context.Context) error { return nil }

// passes takes a request through every step of an exchange but the network, and
// returns the run that it was found to belong to.
func (s *sidecar) passes(dir direction, r *http.Request, answer []byte) *attribution.Run {
	x := s.begin(dir, r)
	if dir == ingress {
		x.read(r)
		x.arrive(r)
	} else {
		if run, target, _ := basePath(r); target != nil {
			x.clues.BasePath, r.URL = run, target
		}
		x.clues.Credential = credential(x.policy, r)
		x.leave(r)
	}
	x.prepare(r)
	x.learn(answer, true)
	x.end(r)
	return x.run
}

// Names that peers invent (tools, methods, error codes, ids, hosts, paths) make no
// new series, however many there are, and no more memory is held of the last of
// them than of the first.
func TestCardinalityIsFlat(t *testing.T) {
	few, names := 16, 100_000
	if testing.Short() {
		names = 20_000
	}
	sizes := &spanSizes{}
	s := newSidecar(t, "agent.example.com", "http://127.0.0.1:1", unstored(t), func(o *Options, _ *Policy) {
		o.Quarantine, o.MaxBindings, o.MaxTasks, o.MaxHandoffs = -1, 1000, 1000, 1000
		o.Tracer = sdktrace.NewTracerProvider(sdktrace.WithSyncer(sizes))
	})
	send := func(i int) {
		method := []string{"tools/call", fmt.Sprintf("tools/x%d", i), fmt.Sprintf("notifications/x%d", i), "message/send"}[i/2%4]
		body := fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":%q,"params":{"name":"tool%d","message":{"messageId":"m%d"}}}`, method, i, i)
		r := httptest.NewRequest(http.MethodPost, fmt.Sprintf("http://peer%d.example.com/mcp/%d", i, i), strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		if method != "message/send" {
			r.Header.Set("Mcp-Session-Id", fmt.Sprint(i))
		}
		dir := ingress
		if i%2 == 0 {
			dir = egress
			r.Header.Set("Run-Id", fmt.Sprintf("run-%d", i))
		}
		s.passes(dir, r, fmt.Appendf(nil, `{"jsonrpc":"2.0","id":1,"error":{"code":%d,"message":"m"}}`, 1000*i+7))
	}
	count := func() (n int) {
		families, err := s.reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			n += len(f.GetMetric())
		}
		return n
	}
	var series int
	var held uint64
	for i := range names {
		switch i {
		case few:
			series = count()
		case names / 5: // when every table is full
			held = heap()
		}
		send(i)
	}
	if after := count(); after != series {
		t.Errorf("%d series after %d names, %d after %d", after, names, series, few)
	}
	if after := heap(); after > held+8<<20 { // a series takes more than the 100 bytes a name
		t.Errorf("%d bytes are held after %d names, %d after a fifth of them", after, names, held)
	}
	if sizes.spans < names/2 || sizes.longest > 100 {
		t.Errorf("%d spans, with texts of up to %d bytes", sizes.spans, sizes.longest)
	}
	s.wantSeries(t, `wopproxy_exchanges_total{direction="ingress",outcome="answered",protocol="mcp"}`, float64(names*3/8))
	s.wantSeries(t, `wopproxy_exchanges_total{direction="egress",outcome="answered",protocol="a2a"}`, float64(names/8))
}

// A run that lives holds no more of the path it began with than it shows.
func TestLongPathIsNotHeld(t *testing.T) {
	s := newSidecar(t, "agent.example.com", "http://127.0.0.1:1", unstored(t), func(_ *Options, p *Policy) {
		p.Starts = func(string, string) bool { return true }
	})
	const runs, length = 500, 60 << 10
	before := heap()
	for range runs {
		r := httptest.NewRequest(http.MethodPost, "/"+strings.Repeat("x", length), nil)
		x := s.begin(ingress, r)
		x.read(r)
		x.arrive(r)
	}
	if after := heap(); after > before+runs*length/4 {
		t.Errorf("%d live runs hold %d bytes", runs, after-before)
	}
	if live, _ := s.runs.Len(); live != runs {
		t.Errorf("%d runs are live, want %d", live, runs)
	}
}

// heap is how many bytes are held, once the garbage is gone.
func heap() uint64 {
	runtime.GC()
	runtime.GC() // what pools have let go the first time
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
