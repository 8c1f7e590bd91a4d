package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	callsPerRun = 4
	maxThink    = 20                      // milliseconds
	settle      = 1100 * time.Millisecond // more than attribution.quarantine
)

// message is one A2A message, and the truth about the run that it starts.
type message struct {
	plan
	root  string // the run that is said to have sent it
	trace string
	task  string // what the host calls the run, known from its answer
	calls []call // that bore the marker
}

// call is what the server saw of one call.
type call struct {
	child   string     // the run that it has started, if who called asked for it
	chain   []ancestor // what Run-Ancestry said
	trace   string
	guessed bool // a guess would have got it right
}

type ancestor struct{ run, host string }

// runsOf is how many runs make a column.
func (s *stage) runsOf(at int) int {
	switch {
	case at == 1 && s.quick:
		return 3
	case at == 1:
		return 8
	case s.quick, s.mode.dear:
		return max(8, at)
	}
	return max(24, 4*at)
}

// messages prepares n of them. Of each two, both are in one trace, as are the
// messages of a caller that sends several.
func (s *stage) messages(n int) (all []*message) {
	for i := range n {
		m := &message{
			plan: plan{Marker: random(8), Together: s.chance.IntN(2) == 0},
			root: "run-" + random(8), trace: random(16),
		}
		for range callsPerRun {
			m.Think = append(m.Think, s.chance.IntN(maxThink+1))
		}
		if i%2 == 1 {
			m.trace = all[i-1].trace
		}
		all = append(all, m)
	}
	return all
}

// column lets runs work, so many at once, and judges what became of their
// calls.
func (s *stage) column(ctx context.Context, at int) (tally, error) {
	all := s.messages(s.runsOf(at))
	s.book.open(all)
	next := make(chan *message)
	errs := make([]error, at)
	var workers sync.WaitGroup
	for i := range at {
		workers.Go(func() {
			for m := range next {
				if at == 1 && s.mode.alone {
					<-time.After(settle) // or the run before would count as if it were at work
				}
				errs[i] = cmp.Or(errs[i], s.send(ctx, m))
			}
		})
	}
	for _, m := range all {
		next <- m
	}
	close(next)
	workers.Wait()
	if err := cmp.Or(errs...); err != nil {
		return tally{}, fmt.Errorf("not all messages were answered: %w", err)
	}
	return s.judge(ctx, at, all)
}

// caller is the host that the messages come from.
const caller = "caller.example.com/agent"

// send sends one message as a host with a wopproxy of its own would, and waits
// for the answer.
func (s *stage) send(ctx context.Context, m *message) error {
	text, err := json.Marshal(m.plan)
	if err != nil {
		return err
	}
	body, err := json.Marshal(map[string]any{
		"jsonrpc": "2.0", "id": random(4), "method": "message/send",
		"params": map[string]any{"message": map[string]any{
			"kind": "message", "role": "user", "messageId": random(16), "contextId": random(16),
			"parts": []any{map[string]any{"kind": "text", "text": string(text)}},
		}},
	})
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.ingress+"/", bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Traceparent", "00-"+m.trace+"-"+random(8)+"-01")
	req.Header.Set("Run-Ancestry", fmt.Sprintf("%q;host=%q;cause=a2a-message", m.root, caller))
	s.book.begin(m)
	defer s.book.end(m)
	var answer struct {
		Result struct{ ID string }
	}
	if err := ask(req, &answer); err != nil {
		return err
	}
	if m.task = answer.Result.ID; m.task == "" {
		return errors.New("the host's answer names no task")
	}
	return nil
}

// ask decodes the answer to a request.
func ask(req *http.Request, answer any) error {
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s %s: %s: %s", req.Method, req.URL, resp.Status, text)
	}
	if err != nil {
		return err
	}
	return json.Unmarshal(text, answer)
}

// book is the MCP server that the hosts call, and notes who does. It answers as
// if it had a wopproxy of its own.
type book struct {
	mu       sync.Mutex
	messages map[string]*message // by marker
	atWork   []*message          // in the order in which they were sent
	strays   int                 // calls with a marker of no message
}

func newBook() *book { return &book{messages: map[string]*message{}} }

func (b *book) open(all []*message) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, m := range all {
		b.messages[m.Marker] = m
	}
}

func (b *book) begin(m *message) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.atWork = append(b.atWork, m)
}

func (b *book) end(m *message) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.atWork = slices.DeleteFunc(b.atWork, func(o *message) bool { return o == m })
}

// member is one ancestor in a Run-Ancestry header.
var member = regexp.MustCompile(`"([^"]+)";host="([^"]+)"`)

func (b *book) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var rpc struct {
		ID     json.RawMessage
		Params struct {
			Arguments struct{ Marker string }
		}
	}
	if err := json.NewDecoder(r.Body).Decode(&rpc); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	var c call
	for _, a := range member.FindAllStringSubmatch(strings.Join(r.Header.Values("Run-Ancestry"), ", "), -1) {
		c.chain = append(c.chain, ancestor{a[1], a[2]})
	}
	if parts := strings.Split(r.Header.Get("Traceparent"), "-"); len(parts) == 4 {
		c.trace = parts[1]
	}
	if len(c.chain) > 0 {
		c.child = "run-" + random(8)
		w.Header().Set("Run-Id", fmt.Sprintf("%q;host=%q", c.child, "tools.example.com/mcp"))
	}
	b.note(rpc.Params.Arguments.Marker, c)
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{"jsonrpc": "2.0", "id": rpc.ID, "result": map[string]any{
		"content": []any{map[string]any{"type": "text", "text": "noted"}},
	}})
}

// note keeps a call with the message that it is of. A guess would give it to the
// session that was active last: that of the newest message which is not
// answered yet.
func (b *book) note(marker string, c call) {
	b.mu.Lock()
	defer b.mu.Unlock()
	m := b.messages[marker]
	if m == nil {
		b.strays++
		return
	}
	c.guessed = len(b.atWork) > 0 && b.atWork[len(b.atWork)-1] == m
	m.calls = append(m.calls, c)
}
