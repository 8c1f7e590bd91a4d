package proxy

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"
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

// Names that peers invent (tools, methods, error codes, ids, hosts, paths) make no
// new series, however many there are. The exchanges take every step that those of
// the listeners take, but for the network.
func TestCardinalityIsFlat(t *testing.T) {
	const names = 10_000
	s := newSidecar(t, "agent.example.com", "http://127.0.0.1:1", func(o *Options, _ *Policy) { o.Quarantine = -1 })
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
		x := s.begin(dir, r)
		if x.dir == ingress {
			x.read(r)
			x.arrive(r)
		} else {
			x.leave(r)
		}
		x.prepare(r)
		x.learn(fmt.Appendf(nil, `{"jsonrpc":"2.0","id":1,"error":{"code":%d,"message":"m"}}`, 1000*i+7), true)
		x.end(r)
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
	for i := range 16 {
		send(i)
	}
	before := count()
	for i := 16; i < names; i++ {
		send(i)
	}
	if after := count(); after != before {
		t.Errorf("%d series after %d names, %d after 16", after, names, before)
	}
	s.wantSeries(t, `wopproxy_exchanges_total{direction="ingress",outcome="answered",protocol="mcp"}`, names*3/8)
	s.wantSeries(t, `wopproxy_exchanges_total{direction="egress",outcome="answered",protocol="a2a"}`, names/8)
}
