package e2e

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// watchToken opens the logs at a watchPost.
const watchToken = "watch-0123456789"

// watchPost is where a wopproxy reads the logs of its host's runs: the host
// itself, with faults that a test has put in between. Nobody else passes here.
type watchPost struct {
	*httptest.Server
	to atomic.Pointer[url.URL]
	// fault answers in the place of the host, or in front of it, and reports whether
	// nothing else is to be done; n counts the requests for one log, from 1.
	fault func(w http.ResponseWriter, r *http.Request, n int) bool

	mu    sync.Mutex
	asked map[string][]string // Last-Event-ID of the requests for each log
	wrong []string            // requests that should not be here
}

// newWatched starts a host of a major that nobody reads but its wopproxy.
func newWatched(t testing.TB, hostID string, major int, addr string, fault func(http.ResponseWriter, *http.Request, int) bool, more ...settings) (*owHost, *watchPost) {
	t.Helper()
	p := &watchPost{fault: fault, asked: map[string][]string{}}
	pass := inFrontOf(p.to.Load)
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.mu.Lock()
		path := strings.TrimSuffix(r.URL.EscapedPath(), "/poll")
		p.asked[path] = append(p.asked[path], r.Header.Get("Last-Event-ID"))
		n := len(p.asked[path])
		if r.Header.Get("Authorization") != "Bearer "+watchToken || r.Method != http.MethodGet || !strings.HasSuffix(path, "/events") {
			p.wrong = append(p.wrong, r.Method+" "+r.URL.String())
		}
		p.mu.Unlock()
		if p.fault == nil || !p.fault(w, r, n) {
			pass.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(func() {
		p.CloseClientConnections()
		p.Close()
		p.mu.Lock()
		defer p.mu.Unlock()
		if len(p.wrong) > 0 {
			t.Errorf("requests of no log, or without the token: %q", p.wrong)
		}
	})
	token := filepath.Join(t.TempDir(), "token")
	write(t, token, watchToken+"\n")
	watch := settings{"executionModel.watch": map[string]any{"url": p.URL, "credential": map[string]any{"file": token}}}
	h := newOWHost(t, hostID, major, addr, append([]settings{watch}, more...)...)
	base, err := url.Parse(h.base)
	if err != nil {
		t.Fatal(err)
	}
	p.to.Store(base)
	return h, p
}

// brokenHandoff is what a run says that fails a dispatch which it has not begun.
func (h *owHost) brokenHandoff() []owSaid {
	typ := "core.workflowChain.event"
	if h.major == 2 {
		typ = "workflow-chain.event"
	}
	return []owSaid{{typ, map[string]any{"phase": "dispatch.failed", "workerId": "w1"}}}
}

// finding is what is told of a breach.
type finding struct{ Rule, RunID, EventID string }

// findings returns what was found of a run.
func (h *owHost) findings(t testing.TB, run string) []finding {
	t.Helper()
	code, body := get(t, h.admin+"/ancestry/v1/runs/"+url.PathEscape(run)+"/findings")
	if code != http.StatusOK {
		return nil
	}
	return decode[struct{ Findings []finding }](t, body).Findings
}

// awaitBroken waits until the broken handoff of a run is found, and checks that
// it is, by the event that shows it, and nothing else.
func (h *owHost) awaitBroken(t testing.TB, run *owRun) {
	t.Helper()
	var found []finding
	if !poll(func() bool { found = h.findings(t, run.id); return len(found) > 0 }) {
		t.Fatalf("%s: nothing was found of %s", h.hostID, run.id)
	}
	entries, _, _ := run.after(-1)
	for _, e := range entries {
		if strings.Contains(string(e.doc), "dispatch.failed") && !e.chunk && e.typ != "run.started" {
			id := decode[struct{ EventID string }](t, e.doc).EventID
			if len(found) != 1 || found[0] != (finding{"handoff-cause", run.id, id}) {
				t.Errorf("%s: findings of %s = %+v, want handoff-cause by %s alone", h.hostID, run.id, found, id)
			}
			return
		}
	}
	t.Errorf("the log of %s has no broken handoff", run.id)
}

// awaitOver waits until no run is live, and none is read.
func (h *owHost) awaitOver(t testing.TB) {
	t.Helper()
	if !poll(func() bool { return len(h.live(t)) == 0 }) {
		t.Errorf("%s: live runs = %+v, want none", h.hostID, h.live(t))
	}
	h.awaitMetric(t, 0, "wopproxy_followed_runs")
}

// TestOpenWOPFollow: nobody reads a host's events, and yet what its runs break is
// found, however they begin; and the event of a tool call goes with the call.
func TestOpenWOPFollow(t *testing.T) {
	for _, majors := range owPairs {
		t.Run(fmt.Sprintf("v%d calls v%d", majors[0], majors[1]), func(t *testing.T) {
			t.Parallel()
			worker, _ := newWatched(t, "worker.example.com", majors[1], "127.0.0.3", nil)
			planner, _ := newWatched(t, "planner.example.com", majors[0], "127.0.0.2", nil)
			run := planner.begun(t, owPlan{Label: "root", Wait: true, Says: planner.brokenHandoff(), Calls: []owCall{
				{Via: "mcp", To: worker.at(), Plan: owPlan{Label: "by mcp"}},
				{Via: "a2a", To: worker.at(), Plan: owPlan{Label: "by a2a", Says: worker.brokenHandoff()}},
				{Via: "rest", To: worker.at(), Plan: owPlan{Label: "by rest", Says: worker.brokenHandoff()}},
			}}, nil)
			planner.awaitBroken(t, run) // and so the call in front of it was seen
			planner.open()
			if err := run.await(t); err != nil {
				t.Fatal(err)
			}
			worker.awaitBroken(t, worker.called("by a2a"))
			worker.awaitBroken(t, worker.called("by rest"))
			planner.awaitBroken(t, run)
			planner.awaitOver(t)
			worker.awaitOver(t)
			planner.awaitMetric(t, 1, "wopproxy_execution_findings_total", `rule="handoff-cause"`)
			planner.awaitMetric(t, 1, "wopproxy_follows_total", `outcome="ended"`)
			worker.awaitMetric(t, 2, "wopproxy_follows_total", `outcome="ended"`)
			planner.sawCalls(t, 1, "ingress", "openwop")

			entries, _, _ := run.after(0)
			event := decode[struct{ EventID, Type string }](t, entries[0].doc)
			code, body := get(t, worker.admin+"/ancestry/v1/runs/"+worker.called("by mcp").minted)
			if code != http.StatusOK || !strings.HasPrefix(event.Type, "agent.tool") || !strings.Contains(string(body), `"`+event.EventID+`"`) {
				t.Errorf("what is recorded of the child = %d %s, want the event %+v in it", code, body, event)
			}
		})
	}
}

// TestOpenWOPFollowWithin: a run that another one begins inside the host has its
// parent although nobody reads the log that says so, and its own log is read, too.
func TestOpenWOPFollowWithin(t *testing.T) {
	for _, major := range []int{1, 2} {
		t.Run(fmt.Sprint("v", major), func(t *testing.T) {
			t.Parallel()
			h, _ := newWatched(t, "host.example.com", major, "127.0.0.2", nil)
			run := h.begun(t, owPlan{Label: "root", Calls: []owCall{
				{Via: "core.dispatch", Plan: owPlan{Label: "dispatched", Wait: true, Says: h.brokenHandoff()}},
				{Via: "core.subWorkflow", Plan: owPlan{Label: "nested", Says: h.brokenHandoff()}},
			}}, nil)
			h.awaitMetric(t, 2, "wopproxy_followed_runs")
			h.open()
			if err := run.await(t); err != nil {
				t.Fatal(err)
			}
			for label, cause := range map[string]string{"dispatched": "core.dispatch", "nested": "core.subWorkflow"} {
				child := h.called(label)
				h.awaitBroken(t, child)
				if got, want := h.ancestry(t, child.id), (ancestor{RunID: run.id, HostID: "host.example.com", Cause: cause}); got != want {
					t.Errorf("the parent of %s = %+v, want %+v", label, got, want)
				}
			}
			h.awaitOver(t)
			h.awaitMetric(t, 3, "wopproxy_follows_total", `outcome="ended"`)
		})
	}
}

// TestOpenWOPFollowTogether: of many runs at once each has its own finding, once.
func TestOpenWOPFollowTogether(t *testing.T) {
	const runs = 50
	h, _ := newWatched(t, "host.example.com", 2, "127.0.0.2", nil)
	var begun [runs]*owRun
	for i := range begun {
		begun[i] = h.begun(t, owPlan{Label: fmt.Sprint("run ", i), Wait: true, Says: h.brokenHandoff()}, nil)
	}
	h.awaitMetric(t, runs, "wopproxy_followed_runs")
	h.open()
	for _, run := range begun {
		if err := run.await(t); err != nil {
			t.Fatal(err)
		}
		h.awaitBroken(t, run)
	}
	h.awaitOver(t)
	h.awaitMetric(t, runs, "wopproxy_execution_findings_total")
	h.awaitMetric(t, runs, "wopproxy_follows_total", `outcome="ended"`)
}

// TestOpenWOPFollowCut cuts the connection to the host in the middle of a log:
// what follows is read behind what was, and nothing is lost or found twice.
func TestOpenWOPFollowCut(t *testing.T) {
	var post *watchPost // known before anybody asks
	cut := make(chan struct{})
	h, post := newWatched(t, "host.example.com", 1, "127.0.0.2", func(w http.ResponseWriter, r *http.Request, n int) bool {
		if n > 1 {
			return false
		}
		req, err := http.NewRequestWithContext(r.Context(), http.MethodGet, post.to.Load().String()+r.URL.String(), nil)
		if err != nil {
			t.Error(err)
			return true
		}
		resp, err := direct.Do(req)
		if err != nil {
			t.Error(err)
			return true
		}
		defer resp.Body.Close()
		w.Header().Set("Content-Type", resp.Header.Get("Content-Type"))
		_, _ = io.WriteString(w, readUntil(t, resp.Body, "event: core.workflowChain.event"))
		_ = http.NewResponseController(w).Flush()
		close(cut)
		panic(http.ErrAbortHandler)
	})
	run := h.begun(t, owPlan{Label: "root", Wait: true, Says: h.brokenHandoff()}, nil)
	<-cut
	h.awaitBroken(t, run)
	h.open()
	if err := run.await(t); err != nil {
		t.Fatal(err)
	}
	h.awaitOver(t)
	h.awaitBroken(t, run)
	h.awaitMetric(t, 1, "wopproxy_follows_total", `outcome="open"`)
	h.awaitMetric(t, 1, "wopproxy_follows_total", `outcome="ended"`)
	h.awaitMetric(t, 1, "wopproxy_execution_findings_total")
	post.mu.Lock()
	defer post.mu.Unlock()
	asked := post.asked["/v1/runs/"+run.id+"/events"]
	if len(asked) != 2 || asked[0] != "" || asked[1] != "0" && asked[1] != "1" {
		t.Errorf("the log was asked for behind %q, want all of it, and what is behind the cut", asked)
	}
}

// TestOpenWOPFollowRestart: the proxy stops at once although it reads a log, and
// reads it again when the run calls out through the next one.
func TestOpenWOPFollowRestart(t *testing.T) {
	worker := newOWHost(t, "worker.example.com", 2, "127.0.0.3")
	h, _ := newWatched(t, "host.example.com", 1, "127.0.0.2", nil)
	run := h.begun(t, owPlan{Label: "root", Wait: true, Says: h.brokenHandoff(), Calls: []owCall{
		{Via: "a2a", To: worker.at(), Plan: owPlan{Label: "child"}},
	}}, nil)
	h.awaitBroken(t, run)
	h.restart(t)
	if found := h.findings(t, run.id); len(found) != 0 {
		t.Errorf("findings after the restart = %+v, which has not read anything", found)
	}
	h.open()
	if err := run.await(t); err != nil {
		t.Fatal(err)
	}
	h.awaitBroken(t, run)
	h.awaitMetric(t, 1, "wopproxy_follows_total", `outcome="ended"`)
	h.awaitMetric(t, 0, "wopproxy_followed_runs")
}

// TestOpenWOPFollowBadHost: whatever the host does to who reads a log, its runs
// pass, and the log is read as soon as that is to be had, or not at all.
func TestOpenWOPFollowBadHost(t *testing.T) {
	first := func(bad func(http.ResponseWriter, *http.Request)) func(http.ResponseWriter, *http.Request, int) bool {
		return func(w http.ResponseWriter, r *http.Request, n int) bool {
			if n == 1 {
				bad(w, r)
			}
			return n == 1
		}
	}
	always := func(bad func(http.ResponseWriter, *http.Request)) func(http.ResponseWriter, *http.Request, int) bool {
		return func(w http.ResponseWriter, r *http.Request, _ int) bool {
			bad(w, r)
			return true
		}
	}
	for name, tt := range map[string]struct {
		fault   func(http.ResponseWriter, *http.Request, int) bool
		outcome string // of the last request
		found   bool
	}{
		"500": {first(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) }), "ended", true},
		"403": {always(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(403) }), "refused", false},
		"404": {always(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(404) }), "refused", false},
		"no streams": {func(w http.ResponseWriter, r *http.Request, _ int) bool {
			if strings.HasSuffix(r.URL.Path, "/poll") {
				return false
			}
			w.WriteHeader(http.StatusNotAcceptable)
			return true
		}, "ended", true},
		"garbage": {always(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			for {
				if _, err := io.WriteString(w, "data: "+strings.Repeat("\x00{[", 10_000)); err != nil {
					return
				}
			}
		}), "abandoned", false},
		"an event of 20 MB in front": {func(w http.ResponseWriter, _ *http.Request, n int) bool {
			if n == 1 {
				w.Header().Set("Content-Type", "text/event-stream")
				_, _ = io.WriteString(w, ": \n\nevent: x\ndata: "+strings.Repeat("x", 20<<20)+"\n\n")
				panic(http.ErrAbortHandler)
			}
			return false
		}, "ended", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h, _ := newWatched(t, "host.example.com", 1, "127.0.0.2", tt.fault)
			run := h.begun(t, owPlan{Label: "root", Says: h.brokenHandoff()}, nil)
			if err := run.await(t); err != nil {
				t.Fatal(err)
			}
			h.awaitMetric(t, 1, "wopproxy_follows_total", `outcome="`+tt.outcome+`"`)
			h.awaitMetric(t, 0, "wopproxy_followed_runs")
			if tt.found {
				h.awaitBroken(t, run)
			} else if found := h.findings(t, run.id); len(found) > 0 {
				t.Errorf("findings = %+v, and there was nothing to be read", found)
			}
			h.sawCalls(t, 1, "ingress", "openwop")
		})
	}
	t.Run("hangs", func(t *testing.T) { // it is not waited for, neither by the run nor at the end
		t.Parallel()
		hangs := make(chan struct{}, 1)
		h, _ := newWatched(t, "host.example.com", 2, "127.0.0.2", always(func(_ http.ResponseWriter, r *http.Request) {
			hangs <- struct{}{}
			<-r.Context().Done()
		}))
		run := h.begun(t, owPlan{Label: "root"}, nil)
		if err := run.await(t); err != nil {
			t.Fatal(err)
		}
		<-hangs
		h.stop(t)
	})
}
