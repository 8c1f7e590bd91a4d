package proxy

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/wopproxy/wopproxy/ancestry"
	"github.com/wopproxy/wopproxy/audit"
)

// wholeLog is logOf with an end. The run breaks confidence-skipped and
// handoff-cause, each once.
func wholeLog(run string) []string {
	log := logOf(run)
	return append(log, fmt.Sprintf(`{"eventId":"e4","runId":%q,"type":"run.completed","sequence":4,"timestamp":"2026-01-01T00:00:01Z","payload":{}}`, run))
}

// frame is an event of a log on a stream.
func frame(log []string, seq int) string {
	return fmt.Sprintf("id: %d\nevent: x\ndata: %s\n\n", seq, log[seq])
}

// unreadHost is a host whose events nobody reads. It begins a run with each
// POST, and answers for their logs as a test wants it to.
type unreadHost struct {
	*httptest.Server
	events func(w http.ResponseWriter, r *http.Request, run string, n int) // the n-th request for the log of the run, from 1

	mu    sync.Mutex
	runs  int
	asked map[string][]*http.Request // for logs, by run
}

func newUnreadHost(t *testing.T, events func(w http.ResponseWriter, r *http.Request, run string, n int)) *unreadHost {
	h := &unreadHost{events: events, asked: map[string][]*http.Request{}}
	h.Server = newServer(h)
	t.Cleanup(h.Close)
	return h
}

func (h *unreadHost) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.URL.Path == discoveryPath:
		_, _ = io.WriteString(w, `{"multiAgent":{"executionModel":{"version":2,"confidenceEscalationFloor":0.7}}}`)
	case r.Method == http.MethodPost:
		h.mu.Lock()
		h.runs++
		id := fmt.Sprint("run-", h.runs)
		if !strings.HasPrefix(r.URL.Path, "/v1/") {
			id = fmt.Sprintf("acme/run-%012d", h.runs)
		}
		h.mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		switch {
		case strings.HasSuffix(r.URL.Path, "/a2a"):
			_, _ = fmt.Fprintf(w, `{"jsonrpc":"2.0","id":1,"result":{"task":{"id":%q,"contextId":"c","status":{"state":"TASK_STATE_WORKING"}}}}`, id)
		case strings.HasSuffix(r.URL.Path, "/mcp"):
			_, _ = fmt.Fprintf(w, `{"jsonrpc":"2.0","id":1,"result":{"resultType":"task","taskId":%q,"status":"working"}}`, ancestry.RunID(id).Segment())
		default:
			w.WriteHeader(http.StatusCreated)
			_, _ = fmt.Fprintf(w, `{"runId":%q,"status":"pending"}`, id)
		}
	default:
		_, rest, _ := strings.Cut(r.URL.EscapedPath(), "/runs/")
		segment, _, _ := strings.Cut(rest, "/")
		id, err := ancestry.ParseSegmentV2(segment)
		if err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		h.mu.Lock()
		h.asked[string(id)] = append(h.asked[string(id)], r)
		n := len(h.asked[string(id)])
		h.mu.Unlock()
		h.events(w, r, string(id), n)
	}
}

// requests returns those for the log of a run.
func (h *unreadHost) requests(run string) []*http.Request {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.asked[run]
}

// streamLog answers with the log behind what the request has seen, one event at a
// time, and reports false if the client has gone.
func streamLog(w http.ResponseWriter, r *http.Request, log []string, upTo int) bool {
	w.Header().Set("Content-Type", "text/event-stream")
	last, err := strconv.Atoi(r.Header.Get("Last-Event-ID"))
	if err != nil {
		last = -1
	}
	for seq := last + 1; seq < min(upTo, len(log)); seq++ {
		_, _ = io.WriteString(w, frame(log, seq))
		if http.NewResponseController(w).Flush() != nil {
			return false
		}
	}
	return true
}

// forever writes text until nobody takes it.
func forever(w io.Writer, text string) {
	for {
		if _, err := io.WriteString(w, text); err != nil {
			return
		}
	}
}

// follow starts a sidecar that reads the logs of the host's runs, and waits for
// nothing for long.
func follow(t *testing.T, h *unreadHost, tune ...func(*Options, *Policy)) *sidecar {
	t.Helper()
	u, err := url.Parse(h.URL)
	if err != nil {
		t.Fatal(err)
	}
	s := newSidecar(t, "h.example.com", h.URL, append([]func(*Options, *Policy){func(_ *Options, p *Policy) { p.WatchURL = u }}, tune...)...)
	s.follower.leastWait, s.follower.worst = time.Millisecond, 5*time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); s.Follow(ctx) }()
	t.Cleanup(func() {
		cancel()
		receive(t, done, "Follow to return")
	})
	return s
}

// begins starts a run by a POST to path.
func (s *sidecar) begins(t *testing.T, path string) {
	t.Helper()
	body := map[string]string{
		"a2a": `{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":{"message":{"role":"ROLE_USER","messageId":"m","parts":[{"text":"x"}]}}}`,
		"mcp": `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t","arguments":{}}}`,
	}[path[strings.LastIndexByte(path, '/')+1:]]
	if body == "" {
		body = `{"workflowId":"w"}`
	}
	post(t, http.DefaultClient, s.ingress.URL+path, body, http.Header{"Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"}})
}

// awaitFollows waits for the outcomes of the requests for logs.
func (s *sidecar) awaitFollows(t *testing.T, o followOutcome, want float64) {
	t.Helper()
	s.awaitSeries(t, fmt.Sprintf("wopproxy_follows_total{outcome=%q}", o), want)
}

// wantBoth checks that both breaches of wholeLog were found, each once.
func (s *sidecar) wantBoth(t *testing.T, run string) {
	t.Helper()
	found, _ := s.Findings(ancestry.RunID(run))
	var rules []audit.Rule
	for _, f := range found {
		rules = append(rules, f.Rule)
	}
	if fmt.Sprint(rules) != "[confidence-skipped handoff-cause]" {
		t.Errorf("Findings(%s) = %v, want confidence-skipped and handoff-cause", run, found)
	}
}

// TestFollow: the log of a run that nobody reads is read, in whichever form the
// host gives it out, and what it shows is found; and nothing of that is traffic.
func TestFollow(t *testing.T) {
	whole := func(w http.ResponseWriter, r *http.Request, run string, _ int) { streamLog(w, r, wholeLog(run), 5) }
	refuseStreams := func(code int) func(http.ResponseWriter, *http.Request, string, int) {
		return func(w http.ResponseWriter, r *http.Request, run string, _ int) {
			if !strings.HasSuffix(r.URL.Path, "/events/poll") {
				w.WriteHeader(code)
				return
			}
			after := strings.TrimPrefix(strings.TrimPrefix(r.URL.RawQuery, "timeout=30"), "&")
			param, at, _ := strings.Cut(after, "=")
			want := map[bool]string{true: "lastSequence", false: "afterSequence"}[strings.HasPrefix(r.URL.Path, "/v1/")]
			next, err := strconv.Atoi(at)
			if after == "" {
				next = -1
			} else if param != want || err != nil {
				w.WriteHeader(http.StatusBadRequest)
				return
			}
			w.Header().Set("Content-Type", "application/json")
			upTo := min(next+3, 5) // two at a time
			_, _ = fmt.Fprintf(w, `{"runId":%q,"events":[%s],"isTerminal":%v}`, run, strings.Join(wholeLog(run)[next+1:upTo], ","), upTo == 5)
		}
	}
	for _, tt := range []struct {
		name, path, run string
		events          func(http.ResponseWriter, *http.Request, string, int)
		asked           []string // for the log, in order
	}{
		{"v1", "/v1/runs", "run-1", whole, []string{"/v1/runs/run-1/events?streamMode=debug"}},
		{"v2", "/runs", "acme/run-000000000001", whole, []string{"/runs/acme~2Frun-000000000001/events?streamMode=debug"}},
		{"a fork", "/v1/runs/r:fork", "run-1", whole, []string{"/v1/runs/run-1/events?streamMode=debug"}},
		{"a2a", "/a2a", "acme/run-000000000001", whole, []string{"/runs/acme~2Frun-000000000001/events?streamMode=debug"}},
		{"mcp task", "/mcp", "acme/run-000000000001", whole, []string{"/runs/acme~2Frun-000000000001/events?streamMode=debug"}},
		{"v1 without streams", "/v1/runs", "run-1", refuseStreams(406), []string{
			"/v1/runs/run-1/events?streamMode=debug", "/v1/runs/run-1/events/poll?timeout=30",
			"/v1/runs/run-1/events/poll?timeout=30&lastSequence=1", "/v1/runs/run-1/events/poll?timeout=30&lastSequence=3",
		}},
		{"v2 without that mode", "/runs", "acme/run-000000000001", refuseStreams(400), []string{
			"/runs/acme~2Frun-000000000001/events?streamMode=debug", "/runs/acme~2Frun-000000000001/events/poll?timeout=30",
			"/runs/acme~2Frun-000000000001/events/poll?timeout=30&afterSequence=1", "/runs/acme~2Frun-000000000001/events/poll?timeout=30&afterSequence=3",
		}},
		{"a task of a host of v2 that looks like one of v1", "/v1/a2a", "run-1", func(w http.ResponseWriter, r *http.Request, run string, n int) {
			if strings.HasPrefix(r.URL.Path, "/v1/") {
				w.WriteHeader(http.StatusNotFound)
				return
			}
			whole(w, r, run, n)
		}, []string{"/v1/runs/run-1/events?streamMode=debug", "/v1/runs/run-1/events/poll?timeout=30", "/runs/run-1/events?streamMode=debug"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := newUnreadHost(t, tt.events)
			s := follow(t, h, func(_ *Options, p *Policy) { p.WatchCredential = "s3cret" })
			s.begins(t, tt.path)
			s.awaitFollows(t, followEnded, 1)
			s.wantBoth(t, tt.run)
			eventually(t, "the run to be over", func() bool { return len(s.Live()) == 0 })
			var asked []string
			for _, r := range h.requests(tt.run) {
				asked = append(asked, r.URL.RequestURI())
				major := map[bool]string{true: "1", false: "2"}[strings.HasPrefix(r.URL.Path, "/v1/")]
				if r.Header.Get("Authorization") != "Bearer s3cret" || r.Header.Get("OpenWOP-Version") != major || r.Header.Get("Traceparent") != "" {
					t.Errorf("header of %s = %v", r.URL, r.Header)
				}
			}
			if fmt.Sprint(asked) != fmt.Sprint(tt.asked) {
				t.Errorf("asked for\n%v, want\n%v", asked, tt.asked)
			}
			s.handled.wait(t)
			exchanges := 0.0
			for name, v := range s.series(t) {
				if strings.HasPrefix(name, "wopproxy_exchanges_total") {
					exchanges += v
				}
			}
			if exchanges != 1 {
				t.Errorf("exchanges = %v, want the one that began the run", exchanges)
			}
			s.awaitSeries(t, "wopproxy_followed_runs", 0)
		})
	}
}

// A stream that is cut anywhere goes on where it was, and nothing is lost, or
// found twice, also if a client reads the same events.
func TestFollowResumes(t *testing.T) {
	for cut := 1; cut < 5; cut++ {
		t.Run(fmt.Sprint("behind ", cut), func(t *testing.T) {
			h := newUnreadHost(t, func(w http.ResponseWriter, r *http.Request, run string, n int) {
				log := wholeLog(run)
				if n > 1 {
					streamLog(w, r, log, 5)
					return
				}
				streamLog(w, r, log, cut)
				_, _ = io.WriteString(w, frame(log, cut)[:20]) // half a frame
				_ = http.NewResponseController(w).Flush()
				panic(http.ErrAbortHandler)
			})
			s := follow(t, h)
			s.begins(t, "/v1/runs")
			s.awaitFollows(t, followEnded, 1)
			fetched(t, s.ingress.URL+"/v1/runs/run-1/events")
			s.wantBoth(t, "run-1")
			s.awaitFollows(t, followOpen, 1)
			asked := h.requests("run-1")
			if got := asked[1].Header.Get("Last-Event-ID"); got != strconv.Itoa(cut-1) {
				t.Errorf("Last-Event-ID = %q, want %d", got, cut-1)
			}
			s.wantSeries(t, `wopproxy_execution_findings_total{rule="handoff-cause"}`, 1)
		})
	}
}

// TestFollowBadHosts: whatever a host sends, the log is read as far as that goes
// and no further, and the run itself passes.
func TestFollowBadHosts(t *testing.T) {
	at := func(n int, bad func(w http.ResponseWriter, r *http.Request, run string)) func(http.ResponseWriter, *http.Request, string, int) {
		return func(w http.ResponseWriter, r *http.Request, run string, i int) {
			if i <= n {
				bad(w, r, run)
				return
			}
			streamLog(w, r, wholeLog(run), 5)
		}
	}
	status := func(code int, header ...string) func(http.ResponseWriter, *http.Request, string) {
		return func(w http.ResponseWriter, _ *http.Request, _ string) {
			if len(header) == 2 {
				w.Header().Set(header[0], header[1])
			}
			w.WriteHeader(code)
		}
	}
	smallEvents := func(_ *Options, p *Policy) { p.InspectedEvent = 8 << 10 }
	huge := strings.Repeat("x", 20<<20)
	const always = 1 << 30
	for _, tt := range []struct {
		name   string
		events func(http.ResponseWriter, *http.Request, string, int)
		tune   func(*Options, *Policy)
		want   map[followOutcome]float64
		found  bool // all that is wrong with the log
		series string
		quiet  time.Duration
	}{
		{name: "errors that pass", events: at(3, status(500)), want: map[followOutcome]float64{followFailed: 3, followEnded: 1}, found: true},
		{name: "too many requests", events: at(1, status(429, "Retry-After", "60")), want: map[followOutcome]float64{followFailed: 1, followEnded: 1}, found: true},
		{name: "errors that don't", events: at(always, status(500)), tune: func(o *Options, _ *Policy) { o.RunTTL = 20 * time.Millisecond },
			want: map[followOutcome]float64{followAbandoned: 1}},
		{name: "no permission", events: at(always, status(403)), want: map[followOutcome]float64{followRefused: 1}},
		{name: "no credential", events: at(always, status(401)), want: map[followOutcome]float64{followRefused: 1}},
		{name: "no such run", events: at(always, status(404)), want: map[followOutcome]float64{followRefused: 1}},
		{name: "a redirect", events: at(always, status(302, "Location", "/elsewhere")), want: map[followOutcome]float64{followRefused: 1}},
		{name: "a run that is gone", events: func(w http.ResponseWriter, r *http.Request, run string, n int) {
			if n > 1 {
				w.WriteHeader(http.StatusNotFound)
				return
			}
			streamLog(w, r, wholeLog(run), 2)
		}, want: map[followOutcome]float64{followOpen: 1, followRefused: 1}},
		{name: "no answer at all", events: at(1, func(_ http.ResponseWriter, r *http.Request, _ string) { <-r.Context().Done() }),
			want: map[followOutcome]float64{followFailed: 1, followEnded: 1}, found: true, quiet: 100 * time.Millisecond},
		{name: "a stream that falls silent", events: at(1, func(w http.ResponseWriter, r *http.Request, run string) {
			streamLog(w, r, wholeLog(run), 2)
			<-r.Context().Done()
		}), want: map[followOutcome]float64{followOpen: 1, followEnded: 1}, found: true, quiet: 100 * time.Millisecond},
		{name: "garbage without end", events: at(always, func(w http.ResponseWriter, _ *http.Request, _ string) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "data: ")
			forever(w, strings.Repeat("\x00{[", 1000))
		}), tune: smallEvents, want: map[followOutcome]float64{followAbandoned: 1}},
		{name: "frames without end that hold nothing new", events: at(always, func(w http.ResponseWriter, _ *http.Request, run string) {
			w.Header().Set("Content-Type", "text/event-stream")
			forever(w, frame(wholeLog(run), 0))
		}), tune: smallEvents, want: map[followOutcome]float64{followAbandoned: 1}},
		{name: "a page", events: at(always, func(w http.ResponseWriter, _ *http.Request, _ string) { _, _ = io.WriteString(w, "<html>") }),
			want: map[followOutcome]float64{followRefused: 1}},
		{name: "what was not asked for", events: at(always, func(w http.ResponseWriter, _ *http.Request, _ string) {
			w.Header().Set("Content-Encoding", "br")
			w.Header().Set("Content-Type", "text/event-stream")
		}), want: map[followOutcome]float64{followAbandoned: 1}},
		{name: "events of 20 MB", events: func(w http.ResponseWriter, _ *http.Request, run string, _ int) {
			w.Header().Set("Content-Type", "text/event-stream")
			log := wholeLog(run)
			for seq := range log {
				_, _ = io.WriteString(w, frame(log, seq))
			}
			_, _ = io.WriteString(w, "id: 5\ndata: "+huge+"\n\n")
		}, want: map[followOutcome]float64{followEnded: 1}, found: true},
		{name: "an event of 20 MB in the middle", events: func(w http.ResponseWriter, r *http.Request, run string, n int) {
			log := wholeLog(run)
			if n == 1 { // cut right behind it
				streamLog(w, r, log, 4)
				_, _ = io.WriteString(w, "id: 4\nevent: agent.reasoned\ndata: "+huge+"\n\n")
				return
			}
			w.Header().Set("Content-Type", "text/event-stream")
			if r.Header.Get("Last-Event-ID") == "4" {
				_, _ = io.WriteString(w, "id: 5\ndata: "+strings.Replace(log[4], `"sequence":4`, `"sequence":5`, 1)+"\n\n")
			}
		}, want: map[followOutcome]float64{followOpen: 1, followEnded: 1}, found: true, series: hit("inspected-event")},
		{name: "an end of 20 MB", events: func(w http.ResponseWriter, r *http.Request, run string, _ int) {
			streamLog(w, r, wholeLog(run), 4)
			_, _ = io.WriteString(w, "id: 4\nevent: run.completed\ndata: "+huge+"\n\n")
		}, want: map[followOutcome]float64{followEnded: 1}, found: true, series: hit("inspected-event")},
		{name: "a poll of 20 MB", events: func(w http.ResponseWriter, r *http.Request, _ string, _ int) {
			w.Header().Set("Content-Type", "application/json")
			if strings.HasSuffix(r.URL.Path, "/poll") {
				_, _ = io.WriteString(w, `{"events":["`+huge+`"]}`)
			}
		}, want: map[followOutcome]float64{followAbandoned: 1}, series: hit("inspected-answer")},
		{name: "half a poll", events: func(w http.ResponseWriter, r *http.Request, run string, n int) {
			w.Header().Set("Content-Type", "application/json")
			switch {
			case !strings.HasSuffix(r.URL.Path, "/poll"):
			case n == 2:
				w.Header().Set("Content-Length", "100")
				_, _ = io.WriteString(w, `{"events":[`)
			default:
				_, _ = fmt.Fprintf(w, `{"events":[%s],"isComplete":true}`, strings.Join(wholeLog(run), ","))
			}
		}, want: map[followOutcome]float64{followFailed: 1, followEnded: 1}, found: true},
		{name: "the log of somebody else", events: func(w http.ResponseWriter, r *http.Request, run string, n int) {
			if n > 1 {
				streamLog(w, r, wholeLog(run), 5)
				return
			}
			log := wholeLog("another")
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "data: "+log[0]+"\n\ndata: "+log[4]+"\n\n")
		}, want: map[followOutcome]float64{followOpen: 1, followEnded: 1}, found: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := newUnreadHost(t, tt.events)
			s := follow(t, h, func(o *Options, p *Policy) {
				if tt.tune != nil {
					tt.tune(o, p)
				}
			})
			s.follower.quiet = cmp.Or(tt.quiet, patience)
			s.begins(t, "/v1/runs")
			for o, want := range tt.want {
				s.awaitFollows(t, o, want)
			}
			s.awaitSeries(t, "wopproxy_followed_runs", 0)
			if tt.found {
				s.wantBoth(t, "run-1")
			}
			if tt.series != "" {
				s.wantSeries(t, tt.series, 1)
			}
			if ended, live := tt.want[followEnded] > 0, len(s.Live()); tt.tune == nil && ended == (live > 0) {
				t.Errorf("live runs = %d, and the log had its end: %v", live, ended)
			}
			s.wantSeries(t, "wopproxy_codec_panics_total", 0)
		})
	}
}

// What is wrong with all logs alike is said once, and again only when it was
// right in between.
func TestFollowTellsOnce(t *testing.T) {
	h := newUnreadHost(t, func(w http.ResponseWriter, r *http.Request, run string, _ int) {
		if run == "run-3" {
			streamLog(w, r, wholeLog(run), 5)
			return
		}
		w.WriteHeader(http.StatusForbidden)
	})
	var log syncBuffer
	s := follow(t, h, func(o *Options, _ *Policy) { o.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	refused := 0.0
	for i := range 5 {
		s.begins(t, "/v1/runs")
		if i == 2 {
			s.awaitFollows(t, followEnded, 1)
			continue
		}
		refused++
		s.awaitFollows(t, followRefused, refused)
	}
	s.awaitSeries(t, "wopproxy_followed_runs", 0)
	if got := strings.Count(log.String(), "executionModel.watch"); got != 2 {
		t.Errorf("log lines = %d, want one, and one when a log was read since:\n%s", got, log.String())
	}
	for _, want := range []string{"run=run-1", "run=run-4", "status=403", "outcome=refused"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log lacks %s:\n%s", want, log.String())
		}
	}
}

// The logs that are read at once are bounded, each run has one reader, and one
// that has ended makes room.
func TestFollowIsBounded(t *testing.T) {
	release := make(chan struct{})
	h := newUnreadHost(t, func(w http.ResponseWriter, r *http.Request, run string, _ int) {
		streamLog(w, r, wholeLog(run), 1)
		<-release
		streamLog(w, r, wholeLog(run), 5)
	})
	s := follow(t, h, func(_ *Options, p *Policy) { p.MaxFollowed = 2 })
	s.begins(t, "/v1/runs")
	s.follower.begin("run-1", true) // as a replay would
	s.begins(t, "/v1/runs")
	s.begins(t, "/v1/runs")
	s.wantSeries(t, hit("followed-runs"), 1)
	s.awaitSeries(t, "wopproxy_followed_runs", 2)
	close(release)
	s.awaitFollows(t, followEnded, 2)
	s.awaitSeries(t, "wopproxy_followed_runs", 0)
	s.begins(t, "/v1/runs")
	s.awaitFollows(t, followEnded, 3)
	s.wantBoth(t, "run-4")
	if n := len(h.requests("run-1")); n != 1 {
		t.Errorf("the log of run-1 was asked for %d times, want once", n)
	}
	if n := len(h.requests("run-3")); n != 0 {
		t.Errorf("the log of run-3 was asked for %d times, beyond the bound", n)
	}
}

// Nothing is read that the policy does not ask for, streams are left when it no
// longer does, and Follow returns at once although streams are open.
func TestFollowStops(t *testing.T) {
	gone := make(chan string, 10)
	h := newUnreadHost(t, func(w http.ResponseWriter, r *http.Request, run string, _ int) {
		streamLog(w, r, wholeLog(run), 1)
		for tick := time.NewTicker(time.Millisecond); ; <-tick.C { // keeps alive
			if _, err := io.WriteString(w, ": \n\n"); err != nil || http.NewResponseController(w).Flush() != nil || r.Context().Err() != nil {
				tick.Stop()
				gone <- run
				return
			}
		}
	})
	u, _ := url.Parse(h.URL)
	s := newSidecar(t, "h.example.com", h.URL)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); s.Follow(ctx) }()
	s.begins(t, "/v1/runs") // run-1, by a policy without it
	set := func(u *url.URL) {
		if err := s.SetPolicy(Policy{WatchURL: u}); err != nil {
			t.Fatal(err)
		}
	}
	set(u)
	s.begins(t, "/v1/runs")
	eventually(t, "the log of run-2 to be read", func() bool { return len(h.requests("run-2")) == 1 })
	set(nil)
	if run := receive(t, gone, "the stream to be left"); run != "run-2" {
		t.Errorf("the stream of %s was left, want run-2", run)
	}
	set(u)
	s.begins(t, "/v1/runs")
	eventually(t, "the log of run-3 to be read", func() bool { return len(h.requests("run-3")) == 1 })
	cancel()
	receive(t, done, "Follow to return")
	if run := receive(t, gone, "the stream to be cut"); run != "run-3" {
		t.Errorf("the stream of %s was cut, want run-3", run)
	}
	if n := len(h.requests("run-1")); n != 0 {
		t.Errorf("the log of run-1 was asked for %d times, and nobody wants to know", n)
	}
	s.awaitSeries(t, "wopproxy_followed_runs", 0)
}

// TestFollowLeadsToTheHostAlone: no id of a run, which the host or its callers may
// choose, leads elsewhere than to the configured address.
func TestFollowLeadsToTheHostAlone(t *testing.T) {
	base, err := url.Parse("https://host.example.com:8443/base")
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []ancestry.RunID{"@169.254.169.254", "//169.254.169.254/", "http://169.254.169.254/", "/../../x", "..", "%2e%2e%2f", `\\169.254.169.254\x`, "x?y#z"} {
		for _, v1 := range []bool{false, true} {
			l := &runLog{followed: followed{id, v1}, ways: waysTo(v1)}
			for ; len(l.ways) > 0; l.ways = l.ways[1:] {
				sent, err := url.Parse(l.url(base).String())
				if err != nil || sent.Scheme != base.Scheme || sent.Host != base.Host || sent.User != nil || !strings.HasPrefix(sent.EscapedPath(), "/base/") || strings.Count(sent.EscapedPath(), "/") > 6 {
					t.Errorf("the log of %q is asked for at %v, %v", id, sent, err)
				}
			}
		}
	}
}

// TestFollowCredentialGoesWithItsURL: a reload that moves the logs elsewhere, and
// with them to another credential, never shows that to who had the logs before.
func TestFollowCredentialGoesWithItsURL(t *testing.T) {
	asked, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	h := newUnreadHost(t, func(w http.ResponseWriter, r *http.Request, run string, _ int) { streamLog(w, r, wholeLog(run), 5) })
	before := newUnreadHost(t, h.events)
	front := newServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == discoveryPath { // the follower waits for it
			once.Do(func() { close(asked) })
			<-release
		}
		h.ServeHTTP(w, r)
	}))
	t.Cleanup(front.Close)
	s := follow(t, &unreadHost{Server: front}, func(_ *Options, p *Policy) {
		p.WatchURL, _ = url.Parse(before.URL)
		p.WatchCredential = "old"
	})
	s.begins(t, "/v1/runs")
	receive(t, asked, "the follower to ask for discovery")
	u, _ := url.Parse(h.URL)
	if err := s.SetPolicy(Policy{WatchURL: u, WatchCredential: "new"}); err != nil {
		t.Fatal(err)
	}
	close(release)
	s.awaitFollows(t, followEnded, 1)
	for credential, host := range map[string]*unreadHost{"old": before, "new": h} {
		for _, r := range host.requests("run-1") {
			if got := r.Header.Get("Authorization"); got != "Bearer "+credential {
				t.Errorf("the host of the credential %s was shown %q", credential, got)
			}
		}
	}
}

// syncBuffer is a buffer for several writers.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}
