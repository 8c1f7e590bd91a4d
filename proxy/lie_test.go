package proxy

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/wopproxy/wopproxy/ancestry"
	"github.com/wopproxy/wopproxy/proxy/internal/attribution"
)

const (
	sendMessage = `{"jsonrpc":"2.0","id":1,"method":"message/send","params":{"message":{"messageId":"m","kind":"message","parts":[]}}}`
	laterTurn   = `{"jsonrpc":"2.0","id":1,"method":"message/send","params":{"message":{"messageId":"m","kind":"message","parts":[],"taskId":"task-1"}}}`
	workingTask = `{"jsonrpc":"2.0","id":1,"result":{"kind":"task","id":"task-%d","status":{"state":"working"}}}`
)

// forgetful ends the quarantine of whatever ends at once.
func forgetful(o *Options, _ *Policy) { o.Quarantine = -1 }

// from is the ancestry that the run id of another host sends.
func from(id ancestry.RunID) http.Header {
	return http.Header{"Run-Ancestry": {`"` + string(id) + `";host="up.example.com";cause=core.dispatch`}}
}

// arrives sends a request to the host, and returns when all has come of it.
func (s *sidecar) arrives(t testing.TB, path, body string, header http.Header) {
	t.Helper()
	post(t, http.DefaultClient, s.ingress.URL+path, body, header)
	s.handled.wait(t)
}

// named is the run that a tool call of the host is said to come from, or "".
func (s *sidecar) named(t testing.TB, to string, last <-chan seen, header http.Header) ancestry.RunID {
	t.Helper()
	post(t, s.client(), "http://"+to+"/mcp", call, header)
	return parentIn(t, receive(t, last, "the call").head)
}

// parentIn is the parent that a request names, or "".
func parentIn(t testing.TB, h http.Header) ancestry.RunID {
	t.Helper()
	chain, err := ancestry.ParseChain(h["Run-Ancestry"])
	if err != nil {
		t.Errorf("Run-Ancestry %q: %v", h["Run-Ancestry"], err)
	}
	if p := chain.Parent(); p != nil {
		return p.Run
	}
	return ""
}

// parentOf is the recorded parent of a run, or "".
func (s *sidecar) parentOf(t testing.TB, id ancestry.RunID) ancestry.RunID {
	t.Helper()
	l, err := s.recorder.Lookup(t.Context(), id)
	if err != nil {
		t.Fatalf("Lookup(%s): %v", id, err)
	}
	if p := l.Parent(); p != nil {
		return p.Run
	}
	return ""
}

// held is a host that works on a request until the test lets it go on.
type held struct {
	at   string
	here chan string // path of each request that has arrived
	done sync.WaitGroup
	gone chan struct{}
}

func holdUp(t testing.TB) *held {
	h := &held{here: make(chan string, 1), gone: make(chan struct{})}
	h.at = "http://" + peer(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if r.Method == http.MethodGet {
			w.Header().Set("Content-Type", "text/event-stream")
			_ = http.NewResponseController(w).Flush()
		}
		h.here <- r.URL.Path
		if !strings.HasSuffix(r.URL.RawQuery, "quick") {
			<-h.gone
		}
	})
	return h
}

// end lets the host go on. No server of the test can close before.
func (h *held) end() {
	close(h.gone)
	h.done.Wait()
}

// start sends r and returns when the host works on it.
func (h *held) start(t testing.TB, r *http.Request) {
	t.Helper()
	h.done.Go(func() { // ends when the host lets it go
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Error(err)
			return
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
	})
	receive(t, h.here, "the host to work on "+r.URL.Path)
}

func newRequest(t testing.TB, method, url string, header http.Header) *http.Request {
	t.Helper()
	r, err := http.NewRequest(method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if header != nil {
		r.Header = header
	}
	return r
}

// TestRefusedTurnEndsNothing: a turn of a task that the host refuses, or answers
// with a message which does not tell of it, leaves the task at work, so the calls
// it makes beside another task are nobody's.
func TestRefusedTurnEndsNothing(t *testing.T) {
	for name, answer := range map[string]string{
		"refused": `"error":{"code":-32004,"message":"task is still executing"}`,
		"message": `"result":{"kind":"message","role":"agent","messageId":"m-2","parts":[]}`,
	} {
		t.Run(name, func(t *testing.T) { turnThatEndsNothing(t, answer) })
	}
}

func turnThatEndsNothing(t *testing.T, answer string) {
	last := make(chan seen, 1)
	to := target(t, last)
	tasks := 0
	host := peer(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("Content-Type", "application/json")
		if strings.Contains(string(body), "taskId") {
			_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":1,`+answer+`}`)
			return
		}
		tasks++
		fmt.Fprintf(w, workingTask, tasks)
	})
	s := newSidecar(t, "agent.example.com", "http://"+host, forgetful)
	s.arrives(t, "/", sendMessage, nil)
	s.arrives(t, "/", laterTurn, nil)
	if got := s.named(t, to, last, nil); got != "task-1" {
		t.Errorf("call of the only task = %q, want task-1", got)
	}
	s.arrives(t, "/", sendMessage, nil)
	if got := s.named(t, to, last, nil); got != "" {
		t.Errorf("call beside two tasks = %s, want none", got)
	}
}

// TestRefusedTurnBringsNothingBack: a turn of a task that has ended, which the
// host refuses, does not make it the only run at work.
func TestRefusedTurnBringsNothingBack(t *testing.T) {
	for name, quarantine := range map[string]time.Duration{"forgotten": -1, "in quarantine": 50 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			host := peer(t, func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				w.Header().Set("Content-Type", "application/json")
				if strings.Contains(string(body), "taskId") {
					_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":1,"error":{"code":-32004,"message":"task is over"}}`)
					return
				}
				_, _ = io.WriteString(w, strings.Replace(fmt.Sprintf(workingTask, 1), "working", "completed", 1))
			})
			s := newSidecar(t, "agent.example.com", "http://"+host, func(o *Options, _ *Policy) { o.Quarantine = quarantine })
			s.arrives(t, "/", sendMessage, nil)
			s.arrives(t, "/", laterTurn, nil)
			if live := s.Live(); len(live) != 0 {
				t.Errorf("live = %v, want nothing", live)
			}
		})
	}
}

// TestAcceptedIsNotDone: a run whose request was only accepted works on, so a
// call beside a second one is nobody's.
func TestAcceptedIsNotDone(t *testing.T) {
	last := make(chan seen, 1)
	to := target(t, last)
	host := peer(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.WriteHeader(http.StatusAccepted)
	})
	for path, body := range map[string]string{"/messages?sessionId=1": call, "/chat": `{}`} {
		t.Run(path, func(t *testing.T) {
			s := newSidecar(t, "agent.example.com", "http://"+host, forgetful)
			s.arrives(t, path, body, nil)
			if got, want := s.named(t, to, last, nil), s.recorded(t)[0].Run; got != want {
				t.Errorf("call of the only run = %q, want %s", got, want)
			}
			s.arrives(t, path, body, nil)
			if got := s.named(t, to, last, nil); got != "" {
				t.Errorf("call beside two runs = %s, want none", got)
			}
		})
	}
}

// TestWorkingStreamIsOtherWork: a GET whose stream is more than a listener's may
// call out as well as the only run may.
func TestWorkingStreamIsOtherWork(t *testing.T) {
	last := make(chan seen, 1)
	to := target(t, last)
	host := holdUp(t)
	defer host.end()
	s := newSidecar(t, "agent.example.com", host.at, forgetful)
	host.start(t, newRequest(t, http.MethodPost, s.ingress.URL+"/chat", nil))
	if got, want := s.named(t, to, last, nil), s.recorded(t)[0].Run; got != want {
		t.Errorf("call of the only run = %q, want %s", got, want)
	}
	host.start(t, newRequest(t, http.MethodGet, s.ingress.URL+"/ask?q=why", nil))
	if got := s.named(t, to, last, nil); got != "" {
		t.Errorf("call beside GET /ask = %s, want none", got)
	}
}

// TestOtherWorkInARunsTrace: a request that is no run and bears the trace of
// one, whoever has put it there, may call out in that trace as well.
func TestOtherWorkInARunsTrace(t *testing.T) {
	last := make(chan seen, 1)
	to := target(t, last)
	for name, trust := range map[string]func(*Options, *Policy){
		"trusted":   func(*Options, *Policy) {},
		"untrusted": func(_ *Options, p *Policy) { p.TrustCaller = nobody },
	} {
		t.Run(name, func(t *testing.T) {
			host := holdUp(t)
			defer host.end()
			s := newSidecar(t, "agent.example.com", host.at, forgetful, trust)
			host.start(t, newRequest(t, http.MethodPost, s.ingress.URL+"/chat", nil))
			run := s.Live()[0]
			inTrace := func(span string) http.Header {
				return http.Header{headerTraceparent: {"00-" + run.Trace.String() + "-" + span + "-01"}}
			}
			if got := s.named(t, to, last, inTrace("00f067aa0ba902b7")); got != run.Run {
				t.Errorf("call in the trace = %q, want %s", got, run.Run)
			}
			host.start(t, newRequest(t, http.MethodPost, s.ingress.URL+"/other", inTrace("00f067aa0ba902b8")))
			if got := s.named(t, to, last, inTrace("00f067aa0ba902b9")); got != "" {
				t.Errorf("call in the trace of other work = %s, want none", got)
			}
		})
	}
}

// TestLeftoversOfAnEndedRun: a trace of two runs does not tell the one that is
// live, since the one that has ended may have left work behind.
func TestLeftoversOfAnEndedRun(t *testing.T) {
	last := make(chan seen, 1)
	to := target(t, last)
	host := holdUp(t)
	defer host.end()
	s := newSidecar(t, "agent.example.com", host.at, forgetful, func(o *Options, _ *Policy) { o.SingleFlight = false })
	trace := http.Header{headerTraceparent: {traced}}
	go func() { <-host.here }() // the first run is over at once
	s.arrives(t, "/chat?quick", `{}`, trace)
	host.start(t, newRequest(t, http.MethodPost, s.ingress.URL+"/chat", trace))
	other := http.Header{headerTraceparent: {strings.Replace(traced, "00f067aa0ba902b7", "00f067aa0ba902b8", 1)}}
	if got := s.named(t, to, last, other); got != "" {
		t.Errorf("call in the shared trace = %s, want none", got)
	}
}

// TestForeignTaskInAStream: a stream that tells of another task beside its own
// ties neither the run nor its parent to that task.
func TestForeignTaskInAStream(t *testing.T) {
	host := peer(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if !strings.Contains(string(body), "message/stream") {
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprintf(w, workingTask, 1)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprintf(w, "data: "+workingTask+"\n\n", 2)
		_, _ = io.WriteString(w, `data: {"jsonrpc":"2.0","id":1,"result":{"kind":"status-update","taskId":"task-1","status":{"state":"working"}}}`+"\n\n")
	})
	s := newSidecar(t, "agent.example.com", "http://"+host)
	s.arrives(t, "/", sendMessage, from("p-1"))
	s.arrives(t, "/", strings.Replace(sendMessage, "message/send", "message/stream", 1), from("p-2"))
	for task, want := range map[ancestry.RunID]ancestry.RunID{"task-1": "p-1", "task-2": "p-2"} {
		if got := s.parentOf(t, task); got != want {
			t.Errorf("parent of %s = %q, want %s", task, got, want)
		}
	}
	if n := len(s.Live()); n != 2 {
		t.Errorf("%d runs live, want 2", n)
	}
}

// TestPlantedState: a member wop= in a body that could not be edited makes the
// host's calls nobody's but those of the run that is really there.
func TestPlantedState(t *testing.T) {
	last := make(chan seen, 1)
	to := target(t, last)
	var s *sidecar
	host := peer(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		_, state, _ := strings.Cut(string(body), `"tracestate":"`)
		state, _, _ = strings.Cut(state, `"`)
		// As a library does that takes the message for the better source.
		post(t, s.client(), "http://"+to+"/mcp", call, http.Header{headerTraceparent: {traced}, headerTracestate: {state}})
	})
	s = newSidecar(t, "agent.example.com", "http://"+host)
	tag, _, _ := strings.Cut(s.runs.State(&attribution.Run{First: "x"}), ":")
	planted := strings.Replace(call, `"params":{`, `"params":{"_meta":{"traceparent":"`+traced+`","tracestate":"wop=`+tag+`:run_victim"},`, 1)
	s.arrives(t, "/mcp", planted, http.Header{"Cache-Control": {"no-transform"}})
	if got := parentIn(t, receive(t, last, "the call").head); got == "run_victim" {
		t.Error("the call is said to come from the run that a stranger has named")
	}
}

// TestProjectedTaskID: a run is found by its own id though an MCP host tells it
// in the form of one path segment.
func TestProjectedTaskID(t *testing.T) {
	host := peer(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":1,"result":{"resultType":"task","taskId":"acme~2F0123456789abcdef","status":"working"}}`)
	})
	s := newSidecar(t, "agent.example.com", "http://"+host)
	s.arrives(t, "/mcp", call, from("p-1"))
	if got := s.parentOf(t, "acme/0123456789abcdef"); got != "p-1" {
		t.Errorf("parent = %q, want p-1", got)
	}
}

// TestCallToItself: a host that calls itself has one child by it, not one by
// each of its two listeners.
func TestCallToItself(t *testing.T) {
	var s *sidecar
	host := peer(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if r.URL.Path == "/chat" {
			post(t, s.client(), s.ingress.URL+"/mcp", call, nil)
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":1,"result":{}}`)
	})
	s = newSidecar(t, "agent.example.com", "http://"+host)
	s.arrives(t, "/chat", `{}`, nil)
	runs := s.recorded(t)
	if len(runs) != 2 {
		t.Fatalf("%d runs, want 2", len(runs))
	}
	kids, _, err := s.recorder.Children(t.Context(), runs[0].Run, "", 10)
	if err != nil || len(kids) != 1 || kids[0].Run != runs[1].Run {
		t.Errorf("children = %+v, %v, want %s alone", kids, err, runs[1].Run)
	}
}

// losing is a recorder that loses the first links.
type losing struct {
	Recorder
	full Recorder // has those
	n    int      // still to be lost
}

func (r *losing) Record(l ancestry.Link) ancestry.Commit {
	if r.n--; r.n >= 0 {
		return r.full.Record(l)
	}
	return r.Recorder.Record(l)
}

// TestReplayOfALostLink: whoever repeats the request of a run does not become
// its parent because the first record of it was lost.
func TestReplayOfALostLink(t *testing.T) {
	for _, lost := range []int{1, 2} { // the link, and what adds the host's id to it
		replay := ""
		host := peer(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("OpenWOP-Idempotent-Replay", replay)
			w.WriteHeader(http.StatusCreated)
			_, _ = io.WriteString(w, `{"runId":"run-1","status":"running"}`)
		})
		s := newSidecar(t, "agent.example.com", "http://"+host, func(o *Options, _ *Policy) {
			o.Recorder = &losing{o.Recorder, &refusing{}, lost}
		})
		s.arrives(t, "/v1/runs", `{"workflowId":"w"}`, from("p-1"))
		replay = "true"
		s.arrives(t, "/v1/runs", `{"workflowId":"w"}`, from("p-2"))
		if got := s.parentOf(t, "run-1"); got != "p-1" {
			t.Errorf("%d records lost: parent = %q, want p-1", lost, got)
		}
	}
}
