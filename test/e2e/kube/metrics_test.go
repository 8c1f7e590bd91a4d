package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// get returns what a URL answers with status 200.
func get(url string) (string, error) {
	resp, err := direct.Get(url)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: status %d: %s", url, resp.StatusCode, body)
	}
	return string(body), err
}

// checkMetrics has Prometheus scrape the sidecars, asks it what they have done, and
// has promtool judge what they tell.
func (n namespace) checkMetrics(t *testing.T) {
	t.Helper()
	targets := n.targets(t)
	p := newPrometheus(t, targets)
	p.eventually(t, "count(up == 1)", func(v float64) bool { return v == float64(len(hosts)) })
	p.eventually(t, "count(wopproxy_build_info)", func(v float64) bool { return v == float64(len(hosts)) })
	// Of a question each host but the last makes one call in the name of a run.
	p.eventually(t, "sum(wopproxy_attributions_total)", func(v float64) bool { return v >= 64 })
	for _, never := range []string{"wopproxy_attribution_conflicts_total", "wopproxy_store_dropped_total", "wopproxy_limit_hits_total"} {
		p.eventually(t, "sum("+never+") or vector(0)", func(v float64) bool { return v == 0 })
	}
	for _, address := range targets {
		text, err := get("http://" + address + "/metrics")
		if err == nil {
			_, err = command(t.Context(), text, "promtool", "check", "metrics")
		}
		if err != nil {
			t.Errorf("metrics of %s: %v", address, err)
		}
	}
}

// prometheus is one that scrapes sidecars.
type prometheus struct{ base string }

func newPrometheus(t *testing.T, targets []string) prometheus {
	t.Helper()
	dir := t.TempDir()
	config := filepath.Join(dir, "prometheus.yml")
	text, err := json.Marshal(map[string]any{ // JSON is YAML
		"global": map[string]any{"scrape_interval": "1s"},
		"scrape_configs": []any{map[string]any{
			"job_name": "wopproxy", "static_configs": []any{map[string]any{"targets": targets}},
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(config, text, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	cmd := exec.CommandContext(ctx, "prometheus", "--config.file="+config, "--storage.tsdb.path="+filepath.Join(dir, "data"),
		"--web.listen-address=127.0.0.1:9090", "--log.level=warn")
	cmd.Stdout, cmd.Stderr = t.Output(), t.Output()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(); _ = cmd.Wait() })
	return prometheus{"http://127.0.0.1:9090"}
}

// eventually waits until an expression has one value, and a good one.
func (p prometheus) eventually(t *testing.T, expression string, good func(float64) bool) {
	t.Helper()
	eventually(t, expression, func() error {
		text, err := get(p.base + "/api/v1/query?query=" + url.QueryEscape(expression))
		if err != nil {
			return err
		}
		var answer struct {
			Data struct {
				Result []struct {
					Value [2]any `json:"value"` // when, and how much as a text
				} `json:"result"`
			} `json:"data"`
		}
		if err := json.Unmarshal([]byte(text), &answer); err != nil || len(answer.Data.Result) != 1 {
			return errors.Join(err, fmt.Errorf("answer = %s, want one value", text))
		}
		v, err := strconv.ParseFloat(fmt.Sprint(answer.Data.Result[0].Value[1]), 64)
		if err == nil && !good(v) {
			err = fmt.Errorf("value = %v", v)
		}
		return err
	})
}

// targets are the addresses that the sidecars tell their metrics at. Debian's
// Prometheus can't find pods by itself.
func (n namespace) targets(t *testing.T) (addresses []string) {
	t.Helper()
	const each = `{range .items[*]}{.status.podIP}:{.spec.initContainers[*].ports[?(@.name=="wopproxy-health")].containerPort}{"\n"}{end}`
	addresses = strings.Fields(n.kubectl(t, "get", "pods", "-o", "jsonpath="+each))
	if len(addresses) != len(hosts) {
		t.Fatalf("targets = %q, want %d", addresses, len(hosts))
	}
	return addresses
}
