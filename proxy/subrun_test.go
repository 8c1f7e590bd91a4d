package proxy

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/wopproxy/wopproxy/ancestry"
)

func subRuns(outcome string) string {
	return fmt.Sprintf(`wopproxy_sub_runs_total{outcome=%q}`, outcome)
}

// loggedHost is an OpenWOP host of both majors. The runs that are created are
// named by their callers, and have the logs that the test gives them.
type loggedHost struct {
	*httptest.Server

	mu   sync.Mutex
	logs map[string][]string
}

func newLoggedHost(t testing.TB) *loggedHost {
	h := &loggedHost{logs: map[string][]string{}}
	h.Server = httptest.NewServer(h)
	t.Cleanup(h.Close)
	return h
}

// append adds an event to the log of a run.
func (h *loggedHost) append(run, typ, payload string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := len(h.logs[run])
	h.logs[run] = append(h.logs[run], fmt.Sprintf(`{"eventId":"%s-e%d","runId":%q,"type":%q,"sequence":%d,"timestamp":"2026-01-01T00:00:00Z","payload":%s}`, run, n, run, typ, n, payload))
}

func (h *loggedHost) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	rest := strings.TrimPrefix(strings.TrimPrefix(r.URL.EscapedPath(), "/v1"), "/runs/")
	segment, tail, _ := strings.Cut(rest, "/")
	run := strings.NewReplacer("~2F", "/", "%2F", "/").Replace(segment)
	h.mu.Lock()
	log := h.logs[run]
	h.mu.Unlock()
	if tail == "events" {
		w.Header().Set("Content-Type", "text/event-stream")
		if r.URL.Query().Get("bufferMs") != "" {
			_, _ = fmt.Fprintf(w, "event: batch\ndata: [%s]\n\n", strings.Join(log, ","))
			return
		}
		for _, e := range log {
			_, _ = fmt.Fprintf(w, "data: %s\n\n", e)
		}
		return
	}
	w.Header().Set("Content-Type", "application/json")
	switch {
	case r.Method == http.MethodPost:
		id, _ := io.ReadAll(r.Body)
		w.WriteHeader(http.StatusCreated)
		_, _ = fmt.Fprintf(w, `{"runId":%s,"status":"pending"}`, id)
	case tail == "events/poll":
		_, _ = fmt.Fprintf(w, `{"events":[%s],"isComplete":false}`, strings.Join(log, ","))
	default:
		w.WriteHeader(http.StatusNotFound)
	}
}

// creates has a run of that id created at path, by whom header says.
func (s *sidecar) creates(t testing.TB, path, run string, header http.Header) {
	t.Helper()
	if header == nil {
		header = http.Header{}
	}
	header.Set("Content-Type", "application/json")
	if resp, body := post(t, http.DefaultClient, s.ingress.URL+path, `"`+run+`"`, header); resp.StatusCode != http.StatusCreated {
		t.Fatalf("run %s: %d %s", run, resp.StatusCode, body)
	}
}

// elsewhere is the ancestry of a call by another host.
func elsewhere() http.Header {
	return http.Header{"Run-Ancestry": {`"p-1";host="parent.example.com";cause=a2a-message`}}
}

// TestSubRuns: a run that the host's log names as begun by another one has that
// one for its parent, whichever way the log is read.
func TestSubRuns(t *testing.T) {
	const (
		dispatched = `{"childRunId":"%s","childWorkflowId":"w"}`
		completed  = `{"nodeId":"n","outputs":{"childRunId":"%s","childStatus":"completed","more":1}}`
	)
	for _, tt := range []struct {
		name, create, parent, child string
		typ, payload, path          string
		cause                       ancestry.Cause
	}{
		{"dispatch, in a stream", "/v1/runs", "p-1", "c-1", "node.dispatched", dispatched, "/v1/runs/p-1/events", ancestry.CauseDispatch},
		{"dispatch, in a batch", "/v1/runs", "p-1", "c-1", "node.dispatched", dispatched, "/v1/runs/p-1/events?bufferMs=10", ancestry.CauseDispatch},
		{"dispatch, polled", "/v1/runs", "p-1", "c-1", "node.dispatched", dispatched, "/v1/runs/p-1/events/poll", ancestry.CauseDispatch},
		{"dispatch under v2", "/runs", "acme/0123456789abcdef", "acme/fedcba9876543210", "node.dispatched", dispatched, "/runs/acme~2F0123456789abcdef/events/poll", ancestry.CauseDispatch},
		{"sub-workflow", "/v1/runs", "p-1", "c-1", "node.completed", completed, "/v1/runs/p-1/events", ancestry.CauseSubWorkflow},
		{"sub-workflow under v2", "/runs", "acme/0123456789abcdef", "acme/fedcba9876543210", "node.completed", completed, "/runs/acme%2F0123456789abcdef/events", ancestry.CauseSubWorkflow},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := newLoggedHost(t)
			s := newSidecar(t, "h.example.com", h.URL)
			s.creates(t, tt.create, tt.parent, elsewhere())
			h.append(tt.parent, "run.started", `{}`)
			h.append(tt.parent, "node.completed", `{"nodeId":"m","outputs":{"text":"no \"childRunId\""}}`)
			h.append(tt.parent, tt.typ, fmt.Sprintf(tt.payload, tt.child))
			for range 2 {
				fetched(t, s.ingress.URL+tt.path)
			}
			s.wantSeries(t, subRuns("linked"), 1)
			s.wantSeries(t, subRuns("known"), 1)
			link, err := s.recorder.Lookup(t.Context(), ancestry.RunID(tt.child))
			if err != nil {
				t.Fatal(err)
			}
			want := ancestry.Ancestor{Run: ancestry.RunID(tt.parent), Host: "h.example.com", WellKnown: "https://h.example.com/.well-known/openwop", Cause: tt.cause}
			if p := link.Parent(); p == nil || *p != want || link.Evidence != ancestry.EvidenceEventLog {
				t.Errorf("parent = %+v on %q, want %+v", p, link.Evidence, want)
			}
			if a := link.Chain.Ancestors; len(a) != 2 || a[1].Host != "parent.example.com" {
				t.Errorf("ancestors = %+v, want the parent's own behind it", a)
			}
		})
	}
}

// TestSubRunsNotLearned: what does not identify a parent names none, and no
// parent that is known is replaced.
func TestSubRunsNotLearned(t *testing.T) {
	const names = `{"childRunId":"c-1","childWorkflowId":"w"}`
	const outputs = `{"nodeId":"n","outputs":{"childRunId":"c-1","childStatus":"completed"}}`
	for _, tt := range []struct {
		name, outcome string
		before        func(t *testing.T, s *sidecar, h *loggedHost)
		typ, payload  string
		kept          string // the parent that the child has all the same
	}{
		{name: "the log of a fork", outcome: "fork", typ: "node.dispatched", payload: names, before: func(t *testing.T, s *sidecar, _ *loggedHost) {
			s.creates(t, "/v1/runs/source:fork", "p-1", elsewhere())
		}},
		{name: "the log of a run that was not seen to begin", outcome: "orphan", typ: "node.dispatched", payload: names, before: func(*testing.T, *sidecar, *loggedHost) {}},
		{name: "a run that came from elsewhere", outcome: "known", typ: "node.dispatched", payload: names, kept: "parent.example.com", before: func(t *testing.T, s *sidecar, _ *loggedHost) {
			s.creates(t, "/v1/runs", "p-1", nil)
			s.creates(t, "/v1/runs", "c-1", elsewhere())
		}},
		{name: "a fork", outcome: "known", typ: "node.dispatched", payload: names, before: func(t *testing.T, s *sidecar, _ *loggedHost) {
			s.creates(t, "/v1/runs", "p-1", nil)
			s.creates(t, "/v1/runs/p-1:fork", "c-1", nil)
		}},
		{name: "itself", outcome: "known", typ: "node.dispatched", payload: `{"childRunId":"p-1"}`},
		{name: "a run above it", outcome: "elsewhere", typ: "node.dispatched", payload: `{"childRunId":"above-1"}`, before: func(t *testing.T, s *sidecar, _ *loggedHost) {
			s.creates(t, "/v1/runs", "p-1", http.Header{"Run-Ancestry": {`"q-1";host="parent.example.com";cause=a2a-message, "above-1";host="h.example.com";cause=a2a-message`}})
		}},
		{name: "a run of a tenant", outcome: "elsewhere", typ: "node.dispatched", payload: `{"childRunId":"acme/0123456789abcdef"}`},
		{name: "outputs of another node", typ: "node.completed", payload: outputs, before: func(t *testing.T, s *sidecar, h *loggedHost) {
			s.creates(t, "/v1/runs", "p-1", nil)
			h.append("p-1", "node.started", `{"nodeId":"n","typeId":"vendor.a2a.delegate"}`)
		}},
		{name: "outputs without an end", typ: "node.completed", payload: `{"nodeId":"n","outputs":{"childRunId":"c-1","childStatus":"waiting-input"}}`},
		{name: "outputs that name a callee", outcome: "elsewhere", typ: "node.completed", payload: outputs, before: func(t *testing.T, s *sidecar, _ *loggedHost) {
			s.creates(t, "/v1/runs", "p-1", nil)
			parent, _ := s.recorder.Lookup(t.Context(), "p-1")
			s.recorder.Record(ancestry.Link{Run: "c-1", Host: "callee.example.com", Time: parent.Time, Evidence: ancestry.EvidenceRunID,
				Chain: ancestry.Chain{Ancestors: []ancestry.Ancestor{{Run: parent.Run, Host: "h.example.com", Cause: ancestry.CauseA2AMessage}}}})
		}},
		{name: "too many nodes", outcome: "unsure", typ: "node.completed", payload: outputs, before: func(t *testing.T, s *sidecar, h *loggedHost) {
			s.creates(t, "/v1/runs", "p-1", nil)
			for i := range maxNodes + 1 {
				h.append("p-1", "node.started", fmt.Sprintf(`{"nodeId":"n%d","typeId":"core.subWorkflow"}`, i))
			}
		}},
		{name: "a handoff, which may be to another host", typ: "core.workflowChain.event", payload: `{"phase":"child.completed","childRunId":"c-1"}`},
		{name: "an id that is none", typ: "node.dispatched", payload: `{"childRunId":"a b"}`},
		{name: "another shape", typ: "node.dispatched", payload: `[{"childRunId":"c-1"}]`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := newLoggedHost(t)
			s := newSidecar(t, "h.example.com", h.URL)
			if tt.before == nil {
				tt.before = func(t *testing.T, s *sidecar, _ *loggedHost) { s.creates(t, "/v1/runs", "p-1", nil) }
			}
			tt.before(t, s, h)
			h.append("p-1", tt.typ, tt.payload)
			fetched(t, s.ingress.URL+"/v1/runs/p-1/events/poll")
			s.wantSeries(t, subRuns("linked"), 0)
			if tt.outcome != "" {
				s.wantSeries(t, subRuns(tt.outcome), 1)
			}
			link, err := s.recorder.Lookup(t.Context(), "c-1")
			if err != nil && !errors.Is(err, ancestry.ErrNotFound) {
				t.Fatal(err)
			}
			got := ""
			if p := link.Parent(); p != nil {
				got = p.Host
			}
			if got != tt.kept || err == nil && tt.outcome != "known" {
				t.Errorf("link = %+v, %v, want a parent on %q", link, err, tt.kept)
			}
		})
	}
}

// Only the host's own log is believed: what another host says of its runs is
// about other runs, though they have the same ids.
func TestSubRunsOfAnotherHost(t *testing.T) {
	own, other := newLoggedHost(t), newLoggedHost(t)
	s := newSidecar(t, "h.example.com", own.URL)
	s.creates(t, "/v1/runs", "p-1", nil)
	other.append("p-1", "node.dispatched", `{"childRunId":"c-1"}`)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, other.URL+"/v1/runs/p-1/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Mcp-Session-Id", "s")
	resp, err := s.client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if b, err := io.ReadAll(resp.Body); err != nil || !strings.Contains(string(b), "c-1") {
		t.Fatalf("the other host's log = %s, %v", b, err)
	}
	s.handled.wait(t)
	if link, err := s.recorder.Lookup(t.Context(), "c-1"); err == nil {
		t.Errorf("link = %+v, want none", link)
	}
}

// TestSubRunCalls: a run inside the host is live until the log says that it is
// over. Its calls carry its parent, and none is taken for its parent's.
func TestSubRunCalls(t *testing.T) {
	var mu sync.Mutex
	var sent http.Header
	tools := peer(t, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		sent = r.Header.Clone()
		mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":1,"result":{}}`)
	})
	h := newLoggedHost(t)
	handed := make(chan http.Header, 1)
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			handed <- r.Header.Clone()
		}
		h.ServeHTTP(w, r)
	}))
	defer front.Close()
	s := newSidecar(t, "h.example.com", front.URL, func(o *Options, _ *Policy) { o.Quarantine = -1 })
	s.creates(t, "/v1/runs", "p-1", elsewhere())
	given := receive(t, handed, "the run")
	call := func(header http.Header) (ancestry.Chain, http.Header) {
		t.Helper()
		header.Set("Content-Type", "application/json")
		header.Set("Accept", "application/json, text/event-stream")
		post(t, s.client(), "http://"+tools+"/mcp", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t"}}`, header)
		mu.Lock()
		defer mu.Unlock()
		chain, _ := ancestry.ParseChain(sent["Run-Ancestry"])
		return chain, sent
	}
	context := func() http.Header {
		return http.Header{"Traceparent": given["Traceparent"], "Tracestate": given["Tracestate"]}
	}
	caller := func(c ancestry.Chain) string {
		if p := c.Parent(); p != nil {
			return string(p.Run)
		}
		return ""
	}

	h.append("p-1", "node.dispatched", `{"childRunId":"c-1","childStatus":"waiting-input"}`)
	fetched(t, s.ingress.URL+"/v1/runs/p-1/events")
	s.wantSeries(t, "wopproxy_live_runs", 2)

	chain, header := call(http.Header{"Run-Id": {"c-1"}})
	var got []string
	for _, a := range chain.Ancestors {
		got = append(got, fmt.Sprint(a.Run, " ", a.Host, " ", a.Cause))
	}
	want := "[c-1 h.example.com mcp-tool-call p-1 h.example.com core.dispatch p-1 parent.example.com a2a-message]"
	if fmt.Sprint(got) != want {
		t.Errorf("Run-Ancestry = %v, want %v", got, want)
	}
	if trace := given.Get("Traceparent")[:35]; !strings.HasPrefix(header.Get("Traceparent"), trace) {
		t.Errorf("Traceparent = %s, want the trace of %s", header.Get("Traceparent"), trace)
	}
	if chain, _ := call(context()); caller(chain) != "" {
		t.Errorf("a call that bears what its parent was handed = %s, want nobody's: either may have made it", caller(chain))
	}
	s.wantSeries(t, `wopproxy_abstentions_total{reason="shared-trace"}`, 1)

	h.append("p-1", "core.workflowChain.event", `{"phase":"child.completed","childRunId":"c-1","workerId":"w","parentRunId":"p-1"}`)
	fetched(t, s.ingress.URL+"/v1/runs/p-1/events")
	s.wantSeries(t, "wopproxy_live_runs", 1)
	if chain, _ := call(context()); caller(chain) != "p-1" {
		t.Errorf("a call when the sub-run is over = %q's, want p-1's", caller(chain))
	}
	// What is known of it stays, also when it is over.
	if chain, _ := call(http.Header{"Run-Id": {"c-1"}}); len(chain.Ancestors) != 3 {
		t.Errorf("ancestors = %+v, want three", chain.Ancestors)
	}
}
