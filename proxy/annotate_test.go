package proxy

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/iotest"

	"github.com/wopproxy/wopproxy/ancestry"
	"github.com/wopproxy/wopproxy/proxy/internal/wire"
)

func unread(document, reason string) string {
	return fmt.Sprintf(`wopproxy_unread_documents_total{document=%q,reason=%q}`, document, reason)
}

func annotated(outcome string) string {
	return fmt.Sprintf(`wopproxy_causation_annotations_total{outcome=%q}`, outcome)
}

// causedHost is an OpenWOP host of both majors that knows nothing of
// causationHostId. The runs it is asked for are named by their callers, and
// their logs by the event in Run-Ancestry that has caused them.
type causedHost struct {
	*httptest.Server
	discovery string

	mu     sync.Mutex
	causes map[string]string // by run
	hold   chan struct{}     // streams wait for it before their last event; nil: they don't
	edit   func(log []string) []string
}

// newCausedHost starts a host that claims a level of the execution model.
func newCausedHost(t testing.TB, level int) *causedHost {
	h := &causedHost{
		causes:    map[string]string{},
		discovery: fmt.Sprintf(`{"protocolVersion":"1.1","multiAgent":{"executionModel":{"supported":true,"version":%d}}}`, level),
	}
	h.Server = httptest.NewServer(h)
	t.Cleanup(h.Close)
	return h
}

// log is that of a run: what is marked was caused by the event on another host.
func (h *causedHost) log(run string, v1 bool) []string {
	_, untenanted, _ := strings.Cut(run, "/")
	h.mu.Lock()
	cause := cmp.Or(h.causes[run], h.causes[untenanted])
	h.mu.Unlock()
	called := "agent.tool-called"
	if v1 {
		called = "agent.toolCalled"
	}
	event := func(seq int, typ, cause, payload string) string {
		return fmt.Sprintf(`{ "eventId":"%s-e%d","runId":%q,"type":%q, "sequence":%d,"causationId":%q,"payload":%s,"timestamp":"2026-01-01T00:00:00Z"}`, run, seq, run, typ, seq, cause, payload)
	}
	log := []string{
		event(0, "run.started", cause, `{"workflowId":"w"}`),
		event(1, "agent.reasoned", cause, `{"marked":true, "n":1.0e2}`),
		event(2, called, run+"-e1", `{"t":"caused here"}`),
		event(3, called, cause, `{"marked":true,"payload":{}}`),
		event(4, "core.workflowChain.confidence-escalated", cause, `{"confidence":0.1}`),
		event(5, "agent.decided", cause, `{"marked":true}`),
		event(6, "run.completed", "", `{}`),
	}
	if h.edit != nil {
		log = h.edit(log)
	}
	return log
}

// marked is text with what is to be written into it.
func marked(text, parent string) string {
	return strings.ReplaceAll(text, `{"marked":true`, `{"causationHostId":"`+parent+`","marked":true`)
}

func (h *causedHost) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	v1 := strings.HasPrefix(r.URL.Path, "/v1/")
	rest := strings.TrimPrefix(strings.TrimPrefix(r.URL.EscapedPath(), "/v1"), "/runs/")
	segment, tail, _ := strings.Cut(rest, "/")
	run := strings.NewReplacer("~2F", "/", "%2F", "/").Replace(segment)
	asJSON := func(status int, text string) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Etag", `"host"`)
		w.WriteHeader(status)
		_, _ = io.WriteString(w, text)
	}
	switch {
	case r.URL.Path == "/.well-known/openwop":
		asJSON(200, h.discovery)
	case r.Method == http.MethodPost:
		run, _ := io.ReadAll(r.Body)
		id := strings.Trim(string(run), `"`)
		if c, err := ancestry.ParseChain(r.Header["Run-Ancestry"]); err == nil && c.Parent() != nil {
			h.mu.Lock()
			h.causes[id] = c.Parent().Event
			h.mu.Unlock()
		}
		asJSON(201, `{"runId":"`+id+`","status":"pending"}`)
	case tail == "events/poll" && v1:
		asJSON(200, `{"events":[`+strings.Join(h.log(run, true), ", ")+`],"isComplete":true}`)
	case tail == "events/poll":
		asJSON(200, `{"runId":"`+run+`","events":[`+strings.Join(h.log(run, false), ",\n")+`],"lastSequence":6,"status":"completed","isTerminal":true}`)
	case tail == "debug-bundle":
		asJSON(200, `{"bundleVersion":"1","run":{"runId":"`+run+`"},"events":[`+strings.Join(h.log(run, v1), ",")+`],"spans":[]}`)
	case r.Header.Get("Accept") == "application/cloudevents-batch+json":
		w.Header().Set("Content-Type", "application/cloudevents-batch+json")
		var all []string
		for i, e := range h.log(run, v1) {
			all = append(all, fmt.Sprintf(`{"specversion":"1.0","id":"%d","source":"/runs","type":"x", "data":%s}`, i, e))
		}
		_, _ = io.WriteString(w, "["+strings.Join(all, ", ")+"]")
	case r.Header.Get("Accept") == "application/json":
		asJSON(200, `{"events":[`+strings.Join(h.log(run, v1), ",")+`],"isComplete":true}`)
	default:
		h.stream(w, r, h.log(run, v1))
	}
}

// stream sends a log in the stream mode that was asked for.
func (h *causedHost) stream(w http.ResponseWriter, r *http.Request, log []string) {
	var frames []string
	switch q := r.URL.Query(); {
	case q.Get("bufferMs") != "":
		frames = append(frames, "event: batch\nid: 3\ndata: ["+strings.Join(log[:4], ",")+"]\n\n",
			"event: batch\r\nid: 6\r\ndata: [\r\ndata: "+strings.Join(log[4:], ",\r\ndata:")+"]\r\n\r\n")
	case q.Get("streamMode") == "values":
		frames = append(frames, "event: state.snapshot\ndata: "+log[1]+"\n\n")
	default:
		for i, e := range log {
			name := "debug"
			if q.Get("streamMode") == "" {
				name = "x"
			}
			frames = append(frames, fmt.Sprintf("id: %d\nevent: %s\ndata: %s\nretry: 10\n\n: still here\n", i, name, e))
		}
		frames = append(frames, "event: ai.message.chunk\ndata: "+log[1]+"\n\n", "data: no JSON\n\n", "data: cut off")
	}
	w.Header().Set("Content-Type", "text/event-stream")
	if h.hold == nil {
		w.Header().Set("Content-Length", fmt.Sprint(len(strings.Join(frames, ""))))
	}
	for i, f := range frames {
		if i == len(frames)-1 && h.hold != nil {
			select {
			case <-h.hold:
			case <-r.Context().Done():
				return
			}
		}
		_, _ = io.WriteString(w, f)
		w.(http.Flusher).Flush()
	}
}

const causedEvent = "3f2b6c1e-9a04-4d7b-8f15-c0ffee5a1e77"

// cause has a run of that id caused by an event of parent.example.com.
func (s *sidecar) cause(t testing.TB, run, event string) {
	t.Helper()
	resp, body := post(t, http.DefaultClient, s.ingress.URL+"/v1/runs", `"`+run+`"`, http.Header{
		"Run-Ancestry": {`"p-1";host="parent.example.com";cause=a2a-message;ev="` + event + `"`},
	})
	if resp.StatusCode != http.StatusCreated {
		t.Fatalf("run %s: %d %s", run, resp.StatusCode, body)
	}
}

// renderings are the ways in which the events of a run are read.
var renderings = []struct{ path, accept string }{
	{"/v1/runs/RUN/events", ""},
	{"/v1/runs/RUN/events?streamMode=debug", ""},
	{"/v1/runs/RUN/events?streamMode=updates,messages", ""},
	{"/v1/runs/RUN/events?streamMode=values", ""},
	{"/v1/runs/RUN/events?bufferMs=100", ""},
	{"/v1/runs/RUN/events", "application/json"},
	{"/v1/runs/RUN/events", "application/cloudevents-batch+json"},
	{"/v1/runs/RUN/events/poll?lastSequence=-1&timeout=1", ""},
	{"/v1/runs/RUN/debug-bundle", ""},
	{"/runs/RUN/events", ""},
	{"/runs/RUN/events?bufferMs=100", ""},
	{"/runs/RUN/events", "application/json"},
	{"/runs/RUN/events", "application/cloudevents-batch+json"},
	{"/runs/RUN/events/poll?afterSequence=-1&timeout=1", ""},
}

func read(t testing.TB, url, accept string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if accept != "" {
		req.Header.Set("Accept", accept)
	}
	resp, err := direct(t).RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(b)
}

// wantRenderings compares what the proxy hands on of a run with what the host
// itself says, in every rendering. parent is the host that is to be written.
func wantRenderings(t *testing.T, s *sidecar, h *causedHost, run, parent string) {
	t.Helper()
	for _, r := range renderings {
		if strings.Contains(run, "/") && strings.HasPrefix(r.path, "/v1/") {
			continue // where no id has a tenant
		}
		path := strings.ReplaceAll(r.path, "RUN", strings.ReplaceAll(run, "/", "~2F"))
		_, want := read(t, h.URL+path, r.accept)
		resp, got := read(t, s.ingress.URL+path, r.accept)
		if parent != "" && !strings.Contains(path, "values") {
			chunk := "" // a message, which looks like an event here
			if before, after, ok := strings.Cut(want, "event: ai.message.chunk"); ok {
				want, chunk = before, "event: ai.message.chunk"+after
			}
			want = marked(want, parent) + chunk
		}
		if got != want {
			t.Errorf("%s %s:\n%s\nwant\n%s", path, r.accept, got, want)
		}
		if resp.ContentLength >= 0 && resp.ContentLength != int64(len(got)) {
			t.Errorf("%s %s: Content-Length %d of %d bytes", path, r.accept, resp.ContentLength, len(got))
		}
	}
}

// TestAnnotate: an event that is known to be caused on another host says so in
// every rendering, no other event does, and no other byte changes.
func TestAnnotate(t *testing.T) {
	h := newCausedHost(t, 2)
	store := ancestry.NewMemory()
	level3 := func(_ *Options, p *Policy) { p.Claim = ClaimLevel3 }
	s := newSidecarOn(t, store, "h.example.com", h.URL, level3)
	for _, run := range []string{"run-of-v1", "acme/run-0000000000000001"} {
		s.cause(t, run, causedEvent)
		wantRenderings(t, s, h, run, "parent.example.com")
	}
	s.wantSeries(t, annotated("annotated"), 3*13+3*5) // events in the renderings of the one run, and of the other
	s.wantSeries(t, unread("events", "not-json"), 4+1)
	s.wantSeries(t, unread("events", "cut-off"), 4+1)
	s.wantSeries(t, annotated("unread"), 2*(4+1))
	s.wantSeries(t, "wopproxy_codec_panics_total", 0)

	s.cause(t, "run~1", causedEvent) // which is no id in v2, where ~ begins an escape
	if _, got := read(t, s.ingress.URL+"/v1/runs/run~1/events/poll", ""); strings.Count(got, "causationHostId") != 3 {
		t.Errorf("run~1: %s, want three events that name the host", got)
	}

	again := newSidecarOn(t, store, "h.example.com", h.URL, level3)
	wantRenderings(t, again, h, "run-of-v1", "parent.example.com")
}

// TestAnnotateLikeItsSource: whatever has the log of another run, or goes on with
// its cause, shows its events as that one does: a run of v1 read under v2, a fork,
// and what it has begun inside the host.
func TestAnnotateLikeItsSource(t *testing.T) {
	h := newCausedHost(t, 2)
	store := ancestry.NewMemory()
	level3 := func(_ *Options, p *Policy) { p.Claim = ClaimLevel3 }
	s := newSidecarOn(t, store, "h.example.com", h.URL, level3)
	s.cause(t, "run-of-v1", causedEvent)
	s.creates(t, "/v1/runs/run-of-v1:fork", "fork-of-v1", nil)
	s.creates(t, "/runs/acme~2Frun-of-v1:fork", "acme/fork-0000000000000001", nil)
	s.creates(t, "/runs/acme%2Ffork-0000000000000001:fork", "acme/fork-0000000000000002", nil)
	s.creates(t, "/v1/runs", "root", nil)
	s.creates(t, "/v1/runs/root:fork", "fork-of-root", nil)
	h.mu.Lock()
	h.edit = func([]string) []string { // of the one log that is read before the others
		return []string{`{"eventId":"e0","runId":"run-of-v1","type":"node.dispatched","sequence":0,"payload":{"childRunId":"inner"}}`}
	}
	h.mu.Unlock()
	fetched(t, s.ingress.URL+"/v1/runs/run-of-v1/events/poll")
	h.mu.Lock()
	h.edit = nil
	for _, run := range []string{"fork-of-v1", "acme/fork-0000000000000001", "acme/fork-0000000000000002", "inner", "root", "fork-of-root"} {
		h.causes[run] = causedEvent // a root that makes up its causes, or what the log says
	}
	h.mu.Unlock()
	for _, now := range []*sidecar{s, newSidecarOn(t, store, "h.example.com", h.URL, level3)} {
		for run, parent := range map[string]string{
			"run-of-v1": "parent.example.com", "acme/run-of-v1": "parent.example.com", "fork-of-v1": "parent.example.com",
			"acme/fork-0000000000000001": "parent.example.com", "acme/fork-0000000000000002": "parent.example.com",
			"inner": "parent.example.com", "root": "", "fork-of-root": "", "acme/other": "",
		} {
			wantRenderings(t, now, h, run, parent)
		}
	}
}

// TestNotAnnotated: what is not known, or must not be told, is not written.
func TestNotAnnotated(t *testing.T) {
	for _, tt := range []struct {
		name  string
		level int
		claim Claim
		event string
		tune  func(*Options, *Policy)
		edit  func(log []string) []string
		why   string // the series that says so
	}{
		{name: "nothing is claimed", level: 2, claim: ClaimExtension},
		{name: "the document passes as it is", level: 3, claim: ClaimNothing},
		{name: "the host does not claim the level below", level: 1, claim: ClaimLevel3},
		{name: "an id that others may use by chance", level: 2, claim: ClaimLevel3, event: "evt-0000000000000001"},
		{name: "no event is known", level: 2, claim: ClaimLevel3, event: "-"},
		{name: "the parent is on the same host", level: 2, claim: ClaimLevel3, tune: func(o *Options, _ *Policy) { o.HostID = "parent.example.com" }},
		{name: "an event of the same id", level: 2, claim: ClaimLevel3, edit: func(log []string) []string {
			log[0] = strings.Replace(log[0], `"eventId":"run-1-e0"`, `"eventId":"`+causedEvent+`"`, 1)
			return log
		}, why: annotated("collision")},
		{name: "an event that is too long", level: 2, claim: ClaimLevel3, tune: func(_ *Options, p *Policy) { p.InspectedEvent = 200 }, edit: func(log []string) []string {
			for i := range log {
				log[i] = strings.Replace(log[i], `{"marked":true`, `{"marked":true,"long":"`+strings.Repeat("x", 200)+`"`, 1)
			}
			return log
		}, why: unread("events", "too-large")},
		{name: "what the host says itself", level: 2, claim: ClaimLevel3, edit: func(log []string) []string {
			for i := range log {
				log[i] = strings.Replace(log[i], `{"marked":true`, `{"causationHostId":"x","marked":true`, 1)
			}
			return log
		}, why: annotated("own")},
		{name: "keys that occur twice", level: 2, claim: ClaimLevel3, edit: func(log []string) []string {
			for i := range log {
				log[i] = strings.Replace(log[i], `"payload":{"marked":true`, `"type":"agent.decided","payload":{"marked":true`, 1)
			}
			return log
		}, why: unread("events", "duplicate-key")},
		{name: "events that are no JSON", level: 2, claim: ClaimLevel3, edit: func(log []string) []string {
			for i := range log {
				log[i] = strings.TrimSuffix(log[i], "}")
			}
			return log
		}, why: unread("events", "not-json")},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := newCausedHost(t, tt.level)
			h.edit = tt.edit
			s := newSidecar(t, "h.example.com", h.URL, func(o *Options, p *Policy) {
				p.Claim = tt.claim
				if tt.tune != nil {
					tt.tune(o, p)
				}
			})
			s.cause(t, "run-1", cmp.Or(tt.event, causedEvent))
			wantRenderings(t, s, h, "run-1", "")
			s.wantSeries(t, annotated("annotated"), 0)
			if tt.why != "" && s.series(t)[tt.why] == 0 {
				t.Errorf("%s = 0, want it to say why", tt.why)
			}
		})
	}
}

// An event of twenty megabytes passes at once and as it is, and those around it are
// edited.
func TestAnnotateHuge(t *testing.T) {
	h := newCausedHost(t, 2)
	s := newSidecar(t, "h.example.com", h.URL, func(_ *Options, p *Policy) { p.Claim = ClaimLevel3 })
	s.cause(t, "run-1", causedEvent)
	long := `{"long":"` + strings.Repeat("x", 20<<20) + `",`
	h.edit = func(log []string) []string {
		log[3] = strings.Replace(log[3], `{"marked":true`, long+`"marked":true`, 1)
		return log
	}
	const addition = `"causationHostId":"parent.example.com",`
	for path, edits := range map[string]int{"/v1/runs/run-1/events?streamMode=debug": 2, "/v1/runs/run-1/events/poll": 0} {
		_, want := read(t, h.URL+path, "")
		_, got := read(t, s.ingress.URL+path, "")
		if n := strings.Count(got, addition); n != edits || strings.ReplaceAll(got, addition, "") != want {
			t.Errorf("%s: %d bytes with %d additions, want %d with %d", path, len(got), n, len(want), edits)
		}
	}
	s.wantSeries(t, unread("events", "too-large"), 2)
	s.wantSeries(t, hit("inspected-answer"), 2) // by who edits, and by who learns
	s.wantSeries(t, hit("inspected-event"), 1)
}

// What collides in one part of a log is not told apart in another.
func TestAnnotateCollisionElsewhere(t *testing.T) {
	h := newCausedHost(t, 2)
	s := newSidecar(t, "h.example.com", h.URL, func(_ *Options, p *Policy) { p.Claim = ClaimLevel3 })
	s.cause(t, "run-1", causedEvent)
	all := h.log("run-1", true)
	for _, log := range [][]string{
		{strings.Replace(all[0], `"eventId":"run-1-e0"`, `"eventId":"`+causedEvent+`"`, 1)},
		all[1:],
	} {
		h.edit = func([]string) []string { return log }
		_, want := read(t, h.URL+"/v1/runs/run-1/events/poll", "")
		if _, got := read(t, s.ingress.URL+"/v1/runs/run-1/events/poll", ""); got != want {
			t.Errorf("%s, want the host's bytes", got)
		}
	}
	s.wantSeries(t, annotated("collision"), 1)
}

// A host that asserts nothing of the kind is believed when its operator does.
func TestAnnotateAsserted(t *testing.T) {
	h := newCausedHost(t, 1)
	s := newSidecar(t, "h.example.com", h.URL, func(_ *Options, p *Policy) { p.Claim = ClaimAll })
	s.cause(t, "run-1", causedEvent)
	wantRenderings(t, s, h, "run-1", "parent.example.com")
}

// Until the host's discovery can be read its events pass as they are.
func TestAnnotateWithoutDiscovery(t *testing.T) {
	h := newCausedHost(t, 2)
	h.discovery = "not now"
	s := newSidecar(t, "h.example.com", h.URL, func(_ *Options, p *Policy) { p.Claim = ClaimLevel3 })
	s.cause(t, "run-1", causedEvent)
	wantRenderings(t, s, h, "run-1", "")
}

// What a caller that is not trusted says of causes is not written.
func TestAnnotateUntrusted(t *testing.T) {
	h := newCausedHost(t, 2)
	s := newSidecar(t, "h.example.com", h.URL, func(_ *Options, p *Policy) {
		p.Claim, p.TrustCaller = ClaimLevel3, nobody
	})
	s.cause(t, "run-1", causedEvent)
	h.mu.Lock()
	h.causes["run-1"] = causedEvent // it has read what it must not believe
	h.mu.Unlock()
	wantRenderings(t, s, h, "run-1", "")
}

// Conditions of a caller are answered for the document that it gets.
func TestAnnotateConditions(t *testing.T) {
	h := newCausedHost(t, 2)
	s := newSidecar(t, "h.example.com", h.URL, func(_ *Options, p *Policy) { p.Claim = ClaimLevel3 })
	s.cause(t, "run-1", causedEvent)
	url := s.ingress.URL + "/v1/runs/run-1/events/poll"
	resp, _ := read(t, url, "")
	tag := resp.Header.Get("Etag")
	if tag == "" || tag == `"host"` {
		t.Errorf("Etag = %s, want another one than the host's", tag)
	}
	for condition, want := range map[string]int{tag: http.StatusNotModified, `"host"`: http.StatusOK} {
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
		req.Header.Set("If-None-Match", condition)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("If-None-Match: %s = %d, want %d", condition, resp.StatusCode, want)
		}
	}
}

// An event is handed on as soon as it is whole, also where it is edited.
func TestAnnotateAtOnce(t *testing.T) {
	h := newCausedHost(t, 2)
	h.hold = make(chan struct{})
	s := newSidecar(t, "h.example.com", h.URL, func(_ *Options, p *Policy) { p.Claim = ClaimLevel3 })
	s.cause(t, "run-1", causedEvent)
	resp, err := http.Get(s.ingress.URL + "/v1/runs/run-1/events")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	lines := make(chan string, 100)
	go func() {
		defer close(lines)
		for in := bufio.NewScanner(resp.Body); in.Scan(); {
			lines <- in.Text()
		}
	}()
	for {
		if line := receive(t, lines, "the event before the last"); strings.Contains(line, "no JSON") {
			break
		}
	}
	close(h.hold)
	for range lines {
	}
	s.wantSeries(t, annotated("annotated"), 3)
}

// Compressed events pass as they are, and are counted.
func TestAnnotateCompressed(t *testing.T) {
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	_, _ = io.WriteString(z, "data: {}\n\n")
	_ = z.Close()
	h := newCausedHost(t, 2)
	for _, contentType := range []string{"text/event-stream", "application/json"} {
		front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !strings.Contains(r.URL.Path, "/events") {
				h.ServeHTTP(w, r)
				return
			}
			w.Header().Set("Content-Type", contentType)
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = w.Write(packed.Bytes())
		}))
		defer front.Close()
		s := newSidecar(t, "h.example.com", front.URL, func(_ *Options, p *Policy) { p.Claim = ClaimLevel3 })
		s.cause(t, "run-1", causedEvent)
		if _, got := read(t, s.ingress.URL+"/v1/runs/run-1/events", ""); got != packed.String() {
			t.Errorf("%s: %q, want the host's bytes", contentType, got)
		}
		s.wantSeries(t, annotated("unread"), 1)
		s.wantSeries(t, unread("events", "encoded"), 1)
	}
}

// TestAnnotateConcurrent: each run's events name its own cause, and only that.
func TestAnnotateConcurrent(t *testing.T) {
	h := newCausedHost(t, 2)
	s := newSidecar(t, "h.example.com", h.URL, func(_ *Options, p *Policy) { p.Claim = ClaimLevel3 })
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			run := fmt.Sprintf("run-%d", i)
			event := fmt.Sprintf("3f2b6c1e-9a04-4d7b-8f15-c0ffee5a%04d", i)
			parent := fmt.Sprintf("p%d.example.com", i)
			if i%5 == 4 {
				parent = "" // a top-level run that makes up its causes
				h.mu.Lock()
				h.causes[run] = event
				h.mu.Unlock()
				post(t, http.DefaultClient, s.ingress.URL+"/v1/runs", `"`+run+`"`, nil)
			} else {
				post(t, http.DefaultClient, s.ingress.URL+"/v1/runs", `"`+run+`"`, http.Header{
					"Run-Ancestry": {`"p-1";host="` + parent + `";cause=a2a-message;ev="` + event + `"`},
				})
			}
			wantRenderings(t, s, h, run, parent)
		})
	}
	wg.Wait()
	s.wantSeries(t, "wopproxy_codec_panics_total", 0)
}

// streamOf returns an annotator of in that knows of causedEvent.
func streamOf(t testing.TB, in io.Reader, limit int64) *annotator {
	s := assemble(t, ancestry.NewMemory(), "h.example.com", "http://127.0.0.1:1")
	c := &causes{x: &exchange{p: s.Proxy}, known: wire.Causation{Event: causedEvent, Host: "p", Limit: 1000}}
	return &annotator{ReadCloser: io.NopCloser(in), causes: c, limit: limit}
}

// TestAnnotator: whatever a stream is like and wherever it is cut, nothing but
// what is written into an event changes.
func TestAnnotator(t *testing.T) {
	const event = `{"type":"agent.decided","causationId":"` + causedEvent + `","payload":{"marked":true}}`
	broken := strings.ReplaceAll(event, `,`, ",\nDATA")
	lines := func(end, field string) string {
		return "id: 1" + end + field + strings.ReplaceAll(strings.ReplaceAll(broken, "\n", end), "DATA", field) + end + ": c" + end + "retry: 1" + end + end
	}
	for name, tt := range map[string]struct{ in, want string }{
		"LF":                            {in: lines("\n", "data: ")},
		"CR":                            {in: lines("\r", "data: ")},
		"CRLF":                          {in: lines("\r\n", "data: ")},
		"no space behind the colon":     {in: lines("\n", "data:")},
		"two spaces":                    {in: lines("\n", "data:  ")},
		"several":                       {in: lines("\n", "data: ") + lines("\r\n", "data:") + lines("\r", "data: ")},
		"an empty line of data":         {in: "data\ndata: " + event + "\ndata:\n\n"},
		"between others":                {in: "\n\ndata: x\n\nevent: y\ndata: " + event + "\nid: 7\n\ndata: [1]\n\n"},
		"a byte order mark":             {in: "\ufeffid: 1\ndata: " + event + "\n\n"},
		"not ended":                     {in: "data: " + event + "\n", want: "data: " + event + "\n"},
		"cut in a line":                 {in: "data: x\n\ndata: " + event[:50], want: "data: x\n\ndata: " + event[:50]},
		"another field":                 {in: "datas: " + event + "\n\n", want: "datas: " + event + "\n\n"},
		"a snapshot":                    {in: "event: state.snapshot\ndata: " + event + "\n\n", want: "event: state.snapshot\ndata: " + event + "\n\n"},
		"a snapshot that says it last":  {in: "data: " + event + "\nevent:state.snapshot\n\n", want: "data: " + event + "\nevent:state.snapshot\n\n"},
		"behind a snapshot":             {in: "event: state.snapshot\ndata: {}\n\ndata: " + event + "\n\n"},
		"behind what is too long":       {in: "data: " + strings.Repeat("x", 5000) + "\ndata: {}\r\n\r\ndata: " + event + "\n\n"},
		"too long":                      {in: "data: " + event + "\ndata: " + strings.Repeat(" ", 5000) + "\n\n", want: "data: " + event + "\ndata: " + strings.Repeat(" ", 5000) + "\n\n"},
		"an edit beside a long comment": {in: ":" + strings.Repeat("x", 5000) + "\ndata: " + event + "\n\n", want: ":" + strings.Repeat("x", 5000) + "\ndata: " + event + "\n\n"},
	} {
		t.Run(name, func(t *testing.T) {
			want := cmp.Or(tt.want, marked(tt.in, "p"))
			for how, r := range map[string]io.Reader{
				"whole":         strings.NewReader(tt.in),
				"byte by byte":  iotest.OneByteReader(strings.NewReader(tt.in)),
				"in halves":     iotest.HalfReader(strings.NewReader(tt.in)),
				"with its end":  iotest.DataErrReader(strings.NewReader(tt.in)),
				"by long lines": bufio.NewReaderSize(strings.NewReader(tt.in), 16),
			} {
				got, err := io.ReadAll(streamOf(t, r, 2000))
				if string(got) != want || err != nil {
					t.Errorf("%s: %q, %v\nwant %q", how, got, err, want)
				}
			}
		})
	}
	// What breaks off is handed on with the error that the source had.
	got, err := io.ReadAll(streamOf(t, io.MultiReader(strings.NewReader("data: "+event), iotest.ErrReader(io.ErrUnexpectedEOF)), 2000))
	if string(got) != "data: "+event || !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("broken off: %q, %v", got, err)
	}
}

// What is not data of an open event does not wait for it.
func TestAnnotatorHoldsDataOnly(t *testing.T) {
	in, out := io.Pipe()
	defer out.Close()
	got := make(chan string, 10)
	go func() {
		a, buf := streamOf(t, in, 2000), make([]byte, 100)
		for {
			n, err := a.Read(buf)
			if n > 0 {
				got <- string(buf[:n])
			}
			if err != nil {
				close(got)
				return
			}
		}
	}()
	for _, step := range []struct{ write, read string }{
		{": still here\n", ": still here\n"},
		{"id: 1\r", "id: 1\r"},
		{"\n", "\n"},
		{"eve", ""},
		{"nt: x\n", "event: x\n"},
		{"data: x\nretry: 1\n: c\n", ""},
		{"\n", "data: x\nretry: 1\n: c\n\n"},
	} {
		if _, err := io.WriteString(out, step.write); err != nil {
			t.Fatal(err)
		}
		if step.read == "" {
			continue // what comes next shows that this did wait
		}
		if passed := receive(t, got, step.read); passed != step.read {
			t.Errorf("after %q: %q, want %q", step.write, passed, step.read)
		}
	}
}

// FuzzAnnotator: the additions are all that tells the streams apart, and it does
// not matter where the chunks end.
func FuzzAnnotator(f *testing.F) {
	event := `{"type":"agent.decided","causationId":"` + causedEvent + `","payload":{}}`
	f.Add([]byte("data: "+event+"\n\n"), 3)
	f.Add([]byte("event: batch\r\ndata: [\r\ndata:"+event+"]\r\r"), 1)
	f.Add([]byte("data\rdata: "+event+"\r\n\r\n: x\n\n"), 7)
	s := assemble(f, ancestry.NewMemory(), "h.example.com", "http://127.0.0.1:1")
	f.Fuzz(func(t *testing.T, in []byte, size int) {
		stream := func(r io.Reader) []byte {
			c := &causes{x: &exchange{p: s.Proxy}, known: wire.Causation{Event: causedEvent, Host: "\x01", Limit: 1000}}
			out, err := io.ReadAll(&annotator{ReadCloser: io.NopCloser(r), causes: c, limit: 500})
			if err != nil {
				t.Fatal(err)
			}
			return out
		}
		whole := stream(bytes.NewReader(in))
		if pieces := stream(bufio.NewReaderSize(iotest.OneByteReader(bytes.NewReader(in)), max(1, size%64))); !bytes.Equal(whole, pieces) {
			t.Fatalf("%q in pieces: %q, want %q", in, pieces, whole)
		}
		const added = `"causationHostId":"\u0001"`
		if bytes.Contains(in, []byte(added)) {
			t.Skip()
		}
		back := bytes.ReplaceAll(bytes.ReplaceAll(whole, []byte(added+","), nil), []byte(added), nil)
		if !bytes.Equal(back, in) {
			t.Fatalf("%q: %q, which has more than the additions", in, whole)
		}
	})
}
