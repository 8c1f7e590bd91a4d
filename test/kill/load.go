package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"
)

// callerID is the host that the callers say they are.
const callerID = "caller.example.com"

// host is the agent behind the sidecar. To an A2A message it answers with a task,
// to anything else with nothing.
type host struct {
	url    string
	server *http.Server

	mu    sync.Mutex
	tasks map[string]string // by the parent that the message spoke of
}

func newHost() (*host, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	h := &host{url: "http://" + ln.Addr().String(), tasks: map[string]string{}}
	h.server = &http.Server{Handler: h}
	go func() { _ = h.server.Serve(ln) }() // until Close
	return h, nil
}

func (h *host) Close() { _ = h.server.Close() }

func (h *host) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/a2a" {
		_, _ = io.Copy(io.Discard, r.Body)
		return
	}
	var m struct {
		Params struct{ Message struct{ MessageID string } }
	}
	if err := json.NewDecoder(r.Body).Decode(&m); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	id := newID()
	h.mu.Lock()
	h.tasks[strings.TrimPrefix(m.Params.Message.MessageID, "message-")] = id
	h.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"jsonrpc":"2.0","id":1,"result":{"kind":"task","id":%q,"contextId":%q,"status":{"state":"completed"}}}`, id, newID())
}

// task returns the id of the task that the host made of the message of a parent.
func (h *host) task(parent string) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.tasks[parent]
}

// newID returns an id as hosts give them.
func newID() string {
	return fmt.Sprintf("%08x-%04x-4%03x-8%03x-%012x", rand.Uint32(), rand.N(1<<16), rand.N(1<<12), rand.N(1<<12), rand.N(uint64(1)<<48))
}

// maxRuns is how many runs the admin listener tells of at once. A round has fewer.
const maxRuns = 1000

// round is what the callers do between two deaths. All its runs are of one trace.
type round struct {
	host   *host
	trace  string
	seen   chan struct{} // closed with the first answers
	signed chan struct{} // closed with the first evidence
	ended  chan string   // runs whose evidence is to be read

	mu       sync.Mutex
	begun    map[string]bool   // parents whose requests were sent
	answered map[string]answer // by the parent
	records  map[string]bundle // by the run, as they were read before the kill
	counted  int               // receipts that wopproxy has stored, as it says
	fault    error             // of evidence that was read
}

// answer is what a caller was told of the run that it began.
type answer struct{ run, task string }

func newRound(n int, h *host) *round {
	return &round{
		host: h, trace: fmt.Sprintf("%016x%016x", n+1, rand.Uint64()), seen: make(chan struct{}),
		signed: make(chan struct{}), ended: make(chan string, maxRuns),
		begun: map[string]bool{}, answered: map[string]answer{}, records: map[string]bundle{},
	}
}

// firstAnswers make the round worth a kill.
const firstAnswers = 16

// await waits for the first answers, and for evidence of one of them.
func (r *round) await(ctx context.Context) error {
	late := time.After(time.Minute)
	for _, c := range []<-chan struct{}{r.seen, r.signed} {
		select {
		case <-c:
		case <-late:
			return errors.New("the callers have no answers after a minute, or there is no evidence of them")
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// load lets callers begin runs until the sidecar is dead.
func (r *round) load(ingress string, callers int) *sync.WaitGroup {
	var all sync.WaitGroup
	for range callers {
		all.Go(func() {
			// Its own, so that no connection outlives the round.
			c := &http.Client{Timeout: time.Minute, Transport: &http.Transport{}}
			defer c.CloseIdleConnections()
			for n := 0; ; n++ {
				parent, ok := r.begin()
				if !ok {
					return
				}
				a, err := r.call(c, ingress, parent, n%2 == 0)
				if err != nil {
					return
				}
				r.answer(parent, a)
			}
		})
	}
	return &all
}

// begin notes that a request is about to be sent.
func (r *round) begin() (parent string, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.begun) == maxRuns-1 {
		return "", false
	}
	parent = "run-" + newID()
	r.begun[parent] = true
	return parent, true
}

func (r *round) answer(parent string, a answer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answered[parent] = a
	r.ended <- a.run // there is room for all
	if len(r.answered) == firstAnswers {
		close(r.seen)
	}
}

// call begins a run. Only an answer that came whole is one.
func (r *round) call(c *http.Client, ingress, parent string, a2a bool) (a answer, err error) {
	path, body := "/chat", "hello"
	if a2a {
		path = "/a2a"
		body = fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"message/send","params":{"message":{"kind":"message","role":"user","messageId":"message-%s","parts":[]}}}`, parent)
	}
	req, err := http.NewRequest(http.MethodPost, ingress+path, strings.NewReader(body))
	if err != nil {
		return a, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Traceparent", fmt.Sprintf("00-%s-%016x-00", r.trace, rand.Uint64()|1))
	req.Header.Set("Run-Ancestry", fmt.Sprintf(`"%s";host="%s";wk="https://%s/.well-known/openwop";cause=core.dispatch`, parent, callerID, callerID))
	resp, err := c.Do(req)
	if err != nil {
		return a, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return a, err
	}
	if resp.StatusCode != http.StatusOK {
		return a, errors.New(resp.Status)
	}
	// "run id";host="..."
	id, _, _ := strings.Cut(strings.TrimPrefix(resp.Header.Get("Run-Id"), `"`), `"`)
	a.run = id
	if a2a {
		var task struct{ Result struct{ ID string } }
		err = json.Unmarshal(text, &task)
		a.task = task.Result.ID
	}
	return a, err
}

// sample calls check with some of the answers.
func (r *round) sample(check func(answer) error) error {
	n := 0
	for _, a := range r.answered { // in random order
		if n++; n > 10 {
			return nil
		}
		if err := check(a); err != nil {
			return err
		}
	}
	return nil
}
