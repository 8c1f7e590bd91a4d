package proxy

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/wopproxy/wopproxy/ancestry"
	"github.com/wopproxy/wopproxy/audit"
)

// logOf is the log of a run that dispatches a decision under the floor: event 2
// breaks confidence-skipped where the host advertises level 2, and event 3,
// which names no event as its cause, handoff-cause.
func logOf(run string) []string {
	event := func(seq int, typ, cause, payload string) string {
		return fmt.Sprintf(`{"eventId":"e%d","runId":%q,"type":%q,"sequence":%d,"causationId":%q,"timestamp":"2026-01-01T00:00:00Z","payload":%s}`, seq, run, typ, seq, cause, payload)
	}
	return []string{
		event(0, "run.started", "", `{"workflowId":"w"}`),
		event(1, "runOrchestrator.decided", "", `{"agentId":"a.b","decision":{"kind":"next-worker","nextWorkerIds":["w1"],"confidence":0.6}}`),
		event(2, "core.workflowChain.event", "e1", fmt.Sprintf(`{"phase":"dispatch.began","workerId":"w1","parentRunId":%q}`, run)),
		event(3, "core.workflowChain.event", "", fmt.Sprintf(`{"phase":"dispatch.failed","workerId":"w1","parentRunId":%q}`, run)),
	}
}

// openWOPHost answers with the log of its runs in every form, and advertises a
// floor of 0.7.
func openWOPHost(t *testing.T) *httptest.Server {
	sse := func(w http.ResponseWriter, frames ...string) {
		w.Header().Set("Content-Type", "text/event-stream")
		for _, f := range frames {
			_, _ = io.WriteString(w, f)
			w.(http.Flusher).Flush()
		}
	}
	frame := func(event, data string) string { return "event: " + event + "\ndata: " + data + "\n\n" }
	host := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rest := strings.TrimPrefix(r.URL.Path, "/v1/runs/")
		run, tail, _ := strings.Cut(rest, "/")
		log := logOf(run)
		switch {
		case r.URL.Path == "/.well-known/openwop":
			_, _ = io.WriteString(w, `{"multiAgent":{"executionModel":{"supported":true,"version":2,"confidenceEscalationFloor":0.7}}}`)
		case r.Method == http.MethodPost:
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusConflict)
			_, _ = io.WriteString(w, `{"error":"replay_memory_snapshot_unavailable","message":"m","details":{"fromSeq":3,"sourceRunId":"r","reason":"retention_expired"}}`)
		case tail == "events/poll":
			w.Header().Set("Content-Type", "application/json")
			_, _ = fmt.Fprintf(w, `{"events":[%s],"isComplete":false}`, strings.Join(log, ","))
		case r.URL.Query().Get("streamMode") == "updates": // lacks the decision
			sse(w, frame("run.started", log[0]), frame("handoff", log[2]))
		case r.URL.Query().Get("bufferMs") != "":
			sse(w, frame("batch", "["+log[0]+","+log[1]+"]"), frame("state.snapshot", `{}`), frame("batch", "["+log[2]+",\ndata: "+log[3]+"]"))
		default:
			sse(w, ": hello\n\n", frame("x", log[0]), frame("x", "no JSON"), frame("x", log[1]), frame("x", log[2]), frame("x", log[3]), frame("x", log[3]))
		}
	}))
	t.Cleanup(host.Close)
	return host
}

// knowModel waits until the host's discovery is known, which a first
// look at any run's events makes the proxy fetch.
func (s *sidecar) knowModel(t *testing.T) {
	t.Helper()
	fetched(t, s.ingress.URL+"/v1/runs/first/events/poll")
	eventually(t, "the host's discovery to be read", func() bool { return s.advertised.now(true).model.Version == 2 })
}

func fetched(t *testing.T, url string) string {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestWatch: whichever way events pass, what they break is found once, and the
// bytes are the host's.
func TestWatch(t *testing.T) {
	host := openWOPHost(t)
	s := newSidecar(t, "h.example.com", host.URL)
	s.knowModel(t)
	both := []audit.Rule{audit.RuleConfidenceSkipped, audit.RuleHandoffCause}
	for _, tt := range []struct {
		name  string
		paths []string
		want  []audit.Rule
	}{
		{"stream", []string{"events?streamMode=debug"}, both},
		{"batches", []string{"events?bufferMs=100"}, both},
		{"poll", []string{"events/poll"}, both},
		{"all of them, twice", []string{"events", "events?bufferMs=1", "events/poll", "events/poll", "events"}, both},
		{"a filtered stream", []string{"events?streamMode=updates"}, nil},
		{"a filtered stream and a whole one", []string{"events?streamMode=updates", "events"}, both},
	} {
		t.Run(tt.name, func(t *testing.T) {
			run := strings.ReplaceAll(tt.name, " ", "-")
			for _, path := range tt.paths {
				if got, want := fetched(t, s.ingress.URL+"/v1/runs/"+run+"/"+path), fetched(t, host.URL+"/v1/runs/"+run+"/"+path); got != want {
					t.Errorf("%s: the bytes differ:\n%s\nwant\n%s", path, got, want)
				}
			}
			found, watched := s.Findings(ancestry.RunID(run))
			var rules []audit.Rule
			for _, f := range found {
				rules = append(rules, f.Rule)
			}
			if !watched || fmt.Sprint(rules) != fmt.Sprint(tt.want) {
				t.Errorf("Findings = %v, %v, want %v", found, watched, tt.want)
			}
		})
	}
	s.wantSeries(t, `wopproxy_execution_findings_total{rule="confidence-skipped"}`, 5)
}

// A fork that the host refuses in the wrong form is told, too: v1 wants 422.
func TestWatchForkRefusal(t *testing.T) {
	s := newSidecar(t, "h.example.com", openWOPHost(t).URL)
	post(t, http.DefaultClient, s.ingress.URL+"/v1/runs/r:fork", `{"fromSeq":3,"mode":"branch"}`, http.Header{"Content-Type": {"application/json"}})
	eventually(t, "the finding", func() bool {
		found, _ := s.Findings("r")
		return len(found) == 1 && found[0].Rule == audit.RuleForkRefusal
	})
}

// The runs that are watched are bounded; the longest quiet one is forgotten.
func TestWatchIsBounded(t *testing.T) {
	s := newSidecar(t, "h.example.com", openWOPHost(t).URL, func(o *Options, _ *Policy) { o.MaxWatched = 2 })
	for _, run := range []string{"a", "b", "a", "c"} {
		fetched(t, s.ingress.URL+"/v1/runs/"+run+"/events/poll")
	}
	for run, want := range map[ancestry.RunID]bool{"a": true, "b": false, "c": true} {
		if _, watched := s.Findings(run); watched != want {
			t.Errorf("%s is watched: %v, want %v", run, watched, want)
		}
	}
	s.wantSeries(t, hit("watched-runs"), 1)
}

// TestWithhold: a call that would carry out a decision which nobody was asked
// about is refused if that is configured, and only then, and only that call.
func TestWithhold(t *testing.T) {
	var reached atomic.Int32
	tools := peer(t, func(w http.ResponseWriter, _ *http.Request) {
		reached.Add(1)
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":7,"result":{}}`)
	})
	for _, tt := range []struct {
		name, run, method string
		on                bool
		status            int
	}{
		{"held", "r1", "tools/call", true, http.StatusServiceUnavailable},
		{"another run", "r2", "tools/call", true, 200},
		{"starts nothing", "r1", "tools/list", true, 200},
		{"off", "r1", "tools/call", false, 200},
	} {
		t.Run(tt.name, func(t *testing.T) {
			reached.Store(0)
			s := newSidecar(t, "h.example.com", openWOPHost(t).URL, func(_ *Options, p *Policy) { p.WithholdUnescalated = tt.on })
			s.knowModel(t)
			fetched(t, s.ingress.URL+"/v1/runs/r1/events")
			resp, body := post(t, s.client(), "http://"+tools+"/mcp", `{"jsonrpc":"2.0","id":7,"method":"`+tt.method+`","params":{"name":"t"}}`,
				http.Header{"Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"}, "Run-Id": {tt.run}})
			held := tt.status != 200
			if resp.StatusCode != tt.status || reached.Load() == 1 == held {
				t.Errorf("status = %d, reached %d times, want %d: %s", resp.StatusCode, reached.Load(), tt.status, body)
			}
			if held && (!strings.Contains(body, `"id":7`) || !strings.Contains(body, "withholdUnescalated")) {
				t.Errorf("answer = %s, want a JSON-RPC error for id 7 that says why", body)
			}
			want := 0.0
			if held {
				want = 1
			}
			s.wantSeries(t, "wopproxy_withheld_calls_total", want)
		})
	}
}
