package main

import (
	"flag"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// TestMetrics pins the names, types and labels of everything that /metrics
// serves after each kind of traffic, and holds them to Prometheus' conventions.
// Dashboards and alerts rest on this list: a change here is a change for users.
func TestMetrics(t *testing.T) {
	d, err := startDemo(t.Context(), t.TempDir(), false, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	defer d.stop()
	if err := d.show(t.Context(), io.Discard, 4); err != nil {
		t.Fatal(err)
	}
	var served []*prometheus.Registry
	for _, s := range d.sites {
		served = append(served, s.sidecar.metrics)
	}
	goldenMetrics(t, "metrics.golden", served...)
}

// goldenMetrics compares what registries serve together with a golden file.
func goldenMetrics(t *testing.T, file string, served ...*prometheus.Registry) {
	t.Helper()
	var lines []string
	for _, reg := range served {
		problems, err := testutil.GatherAndLint(reg)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range problems {
			if strings.HasPrefix(p.Metric, "wopproxy_") || strings.HasPrefix(p.Metric, "mcp_") || strings.HasPrefix(p.Metric, "rpc_") {
				t.Errorf("%s: %s", p.Metric, p.Text)
			}
		}
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			if strings.HasPrefix(f.GetName(), "go_") || strings.HasPrefix(f.GetName(), "process_") || strings.HasPrefix(f.GetName(), "promhttp_") {
				continue // client_golang's own
			}
			var labels []string
			for _, l := range f.GetMetric()[0].GetLabel() {
				labels = append(labels, l.GetName())
			}
			lines = append(lines, strings.Join([]string{f.GetName(), strings.ToLower(f.GetType().String()), strings.Join(labels, ",")}, " "))
		}
	}
	slices.Sort(lines)
	got := strings.ReplaceAll(strings.Join(slices.Compact(lines), "\n")+"\n", " \n", "\n")
	golden := filepath.Join("testdata", file)
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("metrics changed (-golden +now); rewrite with -update if that is meant:\n%s", diff)
	}
}
