package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// TestPicture has a real Prometheus scrape, and looks for every panel of the real
// dashboards in what is drawn.
func TestPicture(t *testing.T) {
	if _, err := exec.LookPath("prometheus"); err != nil && os.Getenv("WOPPROXY_E2E") == "all" {
		t.Fatal("prometheus is not installed")
	} else if err != nil {
		t.Skip("prometheus is not installed")
	}
	metrics := prometheus.NewRegistry()
	runs := prometheus.NewGauge(prometheus.GaugeOpts{Name: "wopproxy_live_runs", Help: "Runs."})
	metrics.MustRegister(runs)
	runs.Set(1234)
	srv := httptest.NewServer(promhttp.HandlerFor(metrics, promhttp.HandlerOpts{}))
	defer srv.Close()

	out := t.TempDir()
	const dashboards = "../../deploy/grafana"
	var stderr bytes.Buffer
	args := []string{"-metrics", strings.TrimPrefix(srv.URL, "http://"), "-for", "5s", "-every", "1s", "-dashboards", dashboards, "-out", out}
	if code := run(t.Context(), args, &stderr); code != 0 {
		t.Fatalf("picture = %d: %s", code, &stderr)
	}
	files, err := filepath.Glob(filepath.Join(dashboards, "*.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no dashboards: %v", err)
	}
	for _, file := range files {
		d, err := readDashboard(file)
		if err != nil {
			t.Fatal(err)
		}
		picture, err := os.ReadFile(filepath.Join(out, strings.TrimSuffix(filepath.Base(file), ".json")+".svg"))
		if err != nil {
			t.Fatal(err)
		}
		if len(picture) > 200<<10 {
			t.Errorf("the picture of %s has %d bytes, want 200 KB at most", file, len(picture))
		}
		texts := map[string]bool{}
		for dec := xml.NewDecoder(bytes.NewReader(picture)); ; {
			token, err := dec.Token()
			if errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("the picture of %s is not XML: %v", file, err)
			}
			if text, ok := token.(xml.CharData); ok {
				texts[string(text)] = true
			}
		}
		for _, p := range d.Panels {
			if !texts[p.Title] {
				t.Errorf("the picture of %s has no panel %q", file, p.Title)
			}
			if p.Title == "Live runs" && !texts["1.23k"] {
				t.Errorf("the picture of %s does not show what Prometheus has of live runs", file)
			}
		}
	}
}

// TestPictureOfNothing has it say what is missing.
func TestPictureOfNothing(t *testing.T) {
	srv := httptest.NewServer(http.NotFoundHandler())
	defer srv.Close()
	at := strings.TrimPrefix(srv.URL, "http://")
	for _, tt := range []struct {
		name string
		args []string
		code int
		want string
	}{
		{"no address", nil, 2, "-metrics"},
		{"too short", []string{"-metrics", at, "-for", "1s"}, 2, "five times"},
		{"no dashboards", []string{"-metrics", at, "-dashboards", t.TempDir()}, 1, "no dashboards in"},
	} {
		var stderr bytes.Buffer
		if code := run(t.Context(), tt.args, &stderr); code != tt.code || !strings.Contains(stderr.String(), tt.want) {
			t.Errorf("%s: picture = %d, %q; want %d and %q", tt.name, code, &stderr, tt.code, tt.want)
		}
	}
}

func TestNumbers(t *testing.T) {
	for _, tt := range []struct {
		value float64
		unit  string
		want  string
	}{
		{0, "s", "0 s"}, {0.00025, "s", "250 µs"}, {0.0063, "s", "6.3 ms"}, {12, "s", "12 s"},
		{1029, "reqps", "1.03k/s"}, {0.5, "percentunit", "50 %"}, {600 << 20, "bytes", "600 MiB"}, {81, "short", "81"},
	} {
		if got := format(tt.value, tt.unit); got != tt.want {
			t.Errorf("format(%v, %s) = %q, want %q", tt.value, tt.unit, got, tt.want)
		}
	}
	for _, tt := range []struct {
		value float64
		unit  string
		want  float64
	}{
		{0, "short", 1}, {1, "short", 1}, {1.1, "short", 2}, {950, "reqps", 1000}, {0.027, "s", 0.03}, {540 << 20, "bytes", 600 << 20},
	} {
		if got := round(tt.value, tt.unit); got < tt.want*0.999 || got > tt.want*1.001 {
			t.Errorf("round(%v, %s) = %v, want %v", tt.value, tt.unit, got, tt.want)
		}
	}
}
