package ancestry_test

import (
	"bytes"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/wopproxy/wopproxy/ancestry"
)

// A host that keeps ancestry itself is asked where no parent is known here, and
// believed if it answers in OpenWOP's shape.
func TestNativeAncestry(t *testing.T) {
	const (
		theirs = `{"runId":"root-1", "hostId":"self.example.com/agent", "parent":{"runId":"p-1","hostId":"far.example","cause":"mcp-tool-call","wellKnownUrl":"https://far.example/.well-known/openwop"}}`
		ours   = `{"runId":"root-1","hostId":"self.example.com/agent","parent":null}`
		parent = `"runId":"run_1","hostId":"globex.example"`
	)
	for _, tt := range []struct {
		name, run string
		answer    http.HandlerFunc
		asked     bool
		status    int
		want      string // in the body
		version   string
	}{
		{"it knows the parent", "root-1", reply(200, theirs), true, 200, theirs, ""},
		{"it names its contract", "root-1", reply(200, theirs, "OpenWOP-Version: 1.3"), true, 200, theirs, "1.3"},
		{"it knows of none either", "root-1", reply(200, `{"runId":"root-1", "hostId":"self.example.com/agent","parent":null}`), true, 200, `"root-1", "hostId"`, ""},
		{"it goes by another name", "root-1", reply(200, strings.Replace(theirs, "self.example.com/agent", "other.example.com", 1)), true, 200, ours, ""},
		{"it goes by another name, and nothing is known here", "other", reply(200, `{"runId":"other","hostId":"other.example.com","parent":null}`), true, 404, `"not_found"`, ""},
		{"a run of which nothing is known here", "other", reply(200, strings.ReplaceAll(theirs, "root-1", "other")), true, 200, `"runId":"other"`, ""},
		{"we know the parent", "plain", reply(200, theirs), false, 200, parent, ""},
		{"it has no such endpoint", "root-1", reply(404, `{"error":"not_found","message":"x"}`), true, 200, ours, ""},
		{"nobody knows the run", "other", reply(404, `{"error":"not_found","message":"x"}`), true, 404, `"not_found"`, ""},
		{"it serves a page for every path", "root-1", reply(200, "<html>", "Content-Type: text/html"), true, 200, ours, ""},
		{"its answer lacks the parent", "root-1", reply(200, `{"runId":"root-1","hostId":"h"}`), true, 200, ours, ""},
		{"its answer is not closed", "root-1", reply(200, `{"runId":"root-1","hostId":"h","parent":null,"x":1}`), true, 200, ours, ""},
		{"its answer is about another run", "root-1", reply(200, strings.ReplaceAll(theirs, "root-1", "root-2")), true, 200, ours, ""},
		{"it binds the id to a tenant", "root-1", reply(200, strings.ReplaceAll(theirs, "root-1", "acme/root-000000000000001")), true, 200, `"runId":"acme/root-000000000000001"`, ""},
		{"it invents a cause", "root-1", reply(200, strings.Replace(theirs, "mcp-tool-call", "guess", 1)), true, 200, ours, ""},
		{"its answer is endless", "root-1", reply(200, theirs+strings.Repeat(" ", 1<<20)), true, 200, ours, ""},
		{"it sends elsewhere", "root-1", reply(302, "", "Location: /v1/runs/plain/ancestry"), true, 200, ours, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var asked atomic.Bool
			host := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path != "/v1/runs/"+tt.run+"/ancestry" || r.Header.Get("Authorization") != "Bearer theirs" {
					t.Errorf("the host was asked for %s with %q", r.URL.Path, r.Header.Get("Authorization"))
				}
				asked.Store(true)
				tt.answer(w, r)
			}))
			defer host.Close()
			up, err := url.Parse(host.URL)
			if err != nil {
				t.Fatal(err)
			}
			h := newAPI(t, ancestry.APIOptions{Upstream: up}).Wrap(behind)
			resp := ask(h, "/v1/runs/"+tt.run+"/ancestry", "Authorization: Bearer theirs")
			got := body(t, resp)
			if resp.StatusCode != tt.status || !strings.Contains(got, tt.want) || resp.Header.Get("OpenWOP-Version") != tt.version {
				t.Errorf("answer = %d %s, version %q, want %d with %s, version %q", resp.StatusCode, got, resp.Header.Get("OpenWOP-Version"), tt.status, tt.want, tt.version)
			}
			if asked.Load() != tt.asked {
				t.Errorf("the host was asked: %v, want %v", asked.Load(), tt.asked)
			}
		})
	}
}

// Who may not read here learns nothing by way of the host either, and who may by
// our token does not show it to the host.
func TestNativeAncestryIsNotForStrangers(t *testing.T) {
	host := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("the host was asked for %s", r.URL.Path)
	}))
	defer host.Close()
	up, err := url.Parse(host.URL)
	if err != nil {
		t.Fatal(err)
	}
	h := newAPI(t, ancestry.APIOptions{Upstream: up, Auth: ancestry.AuthBearer, Bearer: func() string { return "secret" }}).Wrap(behind)
	if resp := ask(h, "/v1/runs/root-1/ancestry", "Authorization: Bearer wrong"); resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("status = %d, want 401", resp.StatusCode)
	}
	if resp := ask(h, "/v1/runs/root-1/ancestry", "Authorization: Bearer secret"); resp.StatusCode != http.StatusOK {
		t.Errorf("with the token: status = %d, want 200", resp.StatusCode)
	}
}

// What becomes of a host's own answers is counted, and another name than ours is
// told in the log once: it is a fault of the configuration.
func TestNativeAncestryIsCounted(t *testing.T) {
	var said atomic.Value
	host := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { reply(200, said.Load().(string))(w, r) }))
	defer host.Close()
	up, err := url.Parse(host.URL)
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	reg := prometheus.NewRegistry()
	h := newAPI(t, ancestry.APIOptions{Upstream: up, Registerer: reg, Logger: slog.New(slog.NewTextHandler(&log, nil))}).Wrap(behind)
	for _, answer := range []string{
		`{"runId":"root-1","hostId":"self.example.com/agent","parent":null}`,
		`{"runId":"root-1","hostId":"stranger.example.com","parent":null}`,
		`{"runId":"root-1","hostId":"stranger.example.com","parent":null}`,
		`{"hello":"world"}`,
	} {
		said.Store(answer)
		if got := body(t, ask(h, "/v1/runs/root-1/ancestry")); !strings.Contains(got, selfID) {
			t.Errorf("answer where the host says %s = %s, want it in our name", answer, got)
		}
	}
	const want = `
# HELP wopproxy_ancestry_native_total Answers of a host that keeps ancestry itself, by what became of them.
# TYPE wopproxy_ancestry_native_total counter
wopproxy_ancestry_native_total{outcome="foreign"} 2
wopproxy_ancestry_native_total{outcome="invalid"} 1
wopproxy_ancestry_native_total{outcome="used"} 1
`
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "wopproxy_ancestry_native_total"); err != nil {
		t.Error(err)
	}
	if n := strings.Count(log.String(), "stranger.example.com"); n != 1 {
		t.Errorf("the log names the stranger %d times, want once:\n%s", n, &log)
	}
}
