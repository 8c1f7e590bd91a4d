package proxy

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/wopproxy/wopproxy/ancestry"
	"github.com/wopproxy/wopproxy/audit"
)

// TestToolCalls: the event that has caused a call is named where nothing else
// can have, and nowhere else. A step is an event of the log, "sequence type
// callId arguments", or a request, "make arguments = the event it is caused by".
func TestToolCalls(t *testing.T) {
	many := []string{}
	for i := range maxToolCalls + 1 {
		many = append(many, fmt.Sprintf("%d call c%d {\"i\":%d}", i, i, i))
	}
	for name, steps := range map[string][]string{
		"one call":                       {"0 start", "1 call c1 {}", "make {} = e1"},
		"v1 and v2":                      {"0 start", "1 called c1 {}", "make {} = e1"},
		"a request before its event":     {"0 start", "make {} =", "1 call c1 {}", "make {} ="},
		"a request before the log":       {"make {} =", "0 start", "1 call c1 {}", "make {} ="},
		"each event causes one call":     {"0 start", "1 call c1 {}", "make {} = e1", "make {} ="},
		"others have other arguments":    {"0 start", `1 call c1 {"a":1}`, `2 call c2 {"a":2}`, `make {"a":2} = e2`, `make {"a":1} = e1`, `make {"a":3} =`},
		"order and space do not matter":  {"0 start", `1 call c1 {"a":1,"b":[{"c":2,"d":3}]}`, `make {"b":[{"d":3,"c":2}],"a":1} = e1`},
		"numbers are as they are":        {"0 start", `1 call c1 {"a":9007199254740993}`, `make {"a":9007199254740992} =`, `make {"a":9007199254740993.0} =`},
		"two of a kind":                  {"0 start", "1 call c1 {}", "2 call c2 {}", "make {} ="},
		"two of a kind, one returns":     {"0 start", "1 call c1 {}", "2 call c2 {}", "3 return c1", "make {} ="},
		"two of a kind, both return":     {"0 start", "1 call c1 {}", "2 call c2 {}", "3 return c2", "4 return c1", "5 call c3 {}", "make {} = e5"},
		"one after the other":            {"0 start", "1 call c1 {}", "make {} = e1", "2 return c1", "3 call c2 {}", "make {} = e3"},
		"it has returned":                {"0 start", "1 call c1 {}", "2 return c1", "make {} ="},
		"a log from the middle":          {"1 call c1 {}", "make {} ="},
		"a gap":                          {"0 start", "2 call c1 {}", "make {} ="},
		"a gap that is filled":           {"0 start", "2 call c1 {}", "1 x", "2 call c1 {}", "make {} = e2"},
		"a log that is read twice":       {"0 start", "1 call c1 {}", "0 start", "1 call c1 {}", "make {} = e1", "0 start", "1 call c1 {}", "make {} ="},
		"no arguments known":             {"0 start", "1 call c1", "make {} ="},
		"a tool that MCP does not reach": {"0 start", "1 native c1 {}", "make {} ="},
		"the same id of two calls":       {"0 start", "1 call c1 {}", "2 return c1", "3 call c2 {}", "4 call c2 {}", "make {} ="},
		"an id that is used again":       {"0 start", "1 call c1 {}", `2 call c1 {"a":1}`, `make {"a":1} =`},
		"too many":                       append(many, `make {"i":1} =`),
	} {
		t.Run(name, func(t *testing.T) {
			var c toolCalls
			fits := true
			for _, step := range steps {
				words := strings.SplitN(step, " ", 4)
				if args, want, ok := strings.Cut(strings.TrimPrefix(step, "make "), " ="); ok {
					event, _ := c.make(callKey("search", json.RawMessage(args)))
					if event != strings.TrimSpace(want) {
						t.Errorf("%s: caused by %q", step, event)
					}
					continue
				}
				var seq int64
				_, _ = fmt.Sscan(words[0], &seq)
				e := audit.Event{ID: "e" + words[0], Sequence: seq, Type: "run.started"}
				if len(words) > 2 {
					e.Type = map[string]string{"call": "agent.toolCalled", "native": "agent.toolCalled", "called": "agent.tool-called", "return": "agent.toolReturned"}[words[1]]
					payload := `"agentId":"a.b","toolName":"search","callId":"` + words[2] + `"`
					if words[1] == "native" {
						payload += `,"transport":"native"`
					}
					if len(words) > 3 {
						payload += `,"inputs":` + words[3]
					}
					e.Payload = json.RawMessage("{" + payload + "}")
				}
				fits = c.see(e) && fits
			}
			if fits != (name != "too many") {
				t.Errorf("fits = %v", fits)
			}
		})
	}
	if callKey("a", json.RawMessage(`{}`)) == callKey("b", json.RawMessage(`{}`)) {
		t.Error("two tools have one key")
	}
}

// TestOrigins: a message is caused by the event whose id it has, or whose call's,
// and by no other.
func TestOrigins(t *testing.T) {
	const call, other = "b54c8ffb-7be0-4c5f-9f4c-6f3a1f4f2b11", "b54c8ffb-7be0-4c5f-9f4c-6f3a1f4f2b12"
	event := func(id, typ, payload string) audit.Event {
		return audit.Event{ID: id, Run: "r", Type: typ, Payload: json.RawMessage(payload)}
	}
	called := func(id, callID, transport string) audit.Event {
		return event(id, "agent.tool-called", fmt.Sprintf(`{"toolName":"t","callId":%q,"transport":%q}`, callID, transport))
	}
	for name, tt := range map[string]struct {
		log     []audit.Event
		message string
		want    string
	}{
		"the id of the call":              {[]audit.Event{called("e0", call, "http"), called("e1", other, "http")}, call, "e0"},
		"the id of a call of any kind":    {[]audit.Event{event("e0", "agent.toolCalled", `{"callId":"`+call+`"}`)}, call, "e0"},
		"the id of the event":             {[]audit.Event{event(call, "agent.handoff", `{}`)}, call, call},
		"the id of a decision":            {[]audit.Event{event(call, "orchestrator.decided", `null`)}, call, call},
		"another id":                      {[]audit.Event{called("e0", call, "http")}, other, ""},
		"the event is read twice":         {[]audit.Event{called("e0", call, "http"), called("e0", call, "http")}, call, "e0"},
		"two events tell of one call":     {[]audit.Event{called("e0", call, "http"), called("e1", call, "http")}, call, ""},
		"and then the first once more":    {[]audit.Event{called("e0", call, "http"), called("e1", call, "http"), called("e0", call, "http")}, call, ""},
		"a call of a tool of MCP":         {[]audit.Event{called("e0", call, "mcp")}, call, ""},
		"a call inside the host":          {[]audit.Event{called("e0", call, "native")}, call, ""},
		"an id that others may have":      {[]audit.Event{called("e0", "call-1", "http")}, "call-1", ""},
		"an event that causes no message": {[]audit.Event{event(call, "run.started", `{}`)}, call, ""},
		"no id":                           {[]audit.Event{called("e0", "", "http")}, "", ""},
	} {
		var o origins
		for _, e := range tt.log {
			if !o.see(e) {
				t.Errorf("%s: does not fit", name)
			}
		}
		if got := o.events[tt.message]; got != tt.want {
			t.Errorf("%s: caused by %q, want %q", name, got, tt.want)
		}
	}
	var o origins
	id := func(i int) string { return fmt.Sprintf("b54c8ffb-7be0-4c5f-9f4c-%012d", i) }
	for i := range maxOrigins + 1 {
		if fits := o.see(event(id(i), "agent.decided", `{}`)); fits != (i < maxOrigins) {
			t.Errorf("event %d: fits = %v", i, fits)
		}
	}
	if o.events[id(0)] != "" || o.events[id(1)] == "" || o.events[id(maxOrigins)] == "" || len(o.events) != maxOrigins {
		t.Errorf("%d are remembered, want the newest %d", len(o.events), maxOrigins)
	}
}

// TestCausingEvent: from the log of the caller to the log of what it has called:
// the event that tells of a call is known on the other host, whose events say on
// which host their cause is.
func TestCausingEvent(t *testing.T) {
	toolHost := newCausedHost(t, 2)
	tools := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/mcp" {
			toolHost.ServeHTTP(w, r)
			return
		}
		c, err := ancestry.ParseChain(r.Header["Run-Ancestry"])
		if err != nil || c.Parent() == nil {
			t.Errorf("Run-Ancestry = %q, %v", r.Header["Run-Ancestry"], err)
			return
		}
		toolHost.mu.Lock()
		id := fmt.Sprintf("tool-run-%d", len(toolHost.causes))
		toolHost.causes[id] = c.Parent().Event
		toolHost.mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"jsonrpc":"2.0","id":1,"result":{"resultType":"task","taskId":%q,"status":"working"}}`, id)
	}))
	t.Cleanup(tools.Close)
	callee := newSidecar(t, "tools.example.com", tools.URL, func(_ *Options, p *Policy) { p.Claim = ClaimLevel3 })

	done := make(chan struct{})
	agent := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusCreated)
			_, _ = io.WriteString(w, `{"runId":"agent-run-1","status":"pending"}`)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		event := func(id string, seq int, typ, payload string) {
			_, _ = fmt.Fprintf(w, "id: %d\nevent: debug\ndata: {\"eventId\":%q,\"runId\":\"agent-run-1\",\"type\":%q,\"sequence\":%d,\"timestamp\":\"2026-01-01T00:00:00Z\",\"payload\":%s}\n\n", seq, id, typ, seq, payload)
			w.(http.Flusher).Flush()
		}
		event("e0", 0, "run.started", `{"workflowId":"w"}`)
		event(causedEvent, 1, "agent.toolCalled", `{"agentId":"a.b","toolName":"search","callId":"c1","inputs":{"q":"x"}}`)
		select {
		case <-done:
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(agent.Close)
	defer close(done)
	caller := newSidecar(t, "agent.example.com", agent.URL)
	post(t, http.DefaultClient, caller.ingress.URL+"/v1/runs", `{}`, nil)
	resp, err := http.Get(caller.ingress.URL + "/v1/runs/agent-run-1/events?streamMode=debug")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	for in := bufio.NewScanner(resp.Body); in.Scan(); {
		if strings.Contains(in.Text(), causedEvent) {
			break
		}
	}
	for range 2 {
		post(t, caller.client(), callee.ingress.URL+"/mcp", call, http.Header{"Run-Id": {"agent-run-1"}})
	}
	toolHost.mu.Lock()
	first, second := toolHost.causes["tool-run-0"], toolHost.causes["tool-run-1"]
	toolHost.mu.Unlock()
	if first != causedEvent || second != "" {
		t.Errorf("causes %q and %q, want %q and none: which of two it was is not known", first, second, causedEvent)
	}
	wantRenderings(t, callee, toolHost, "tool-run-0", "agent.example.com")
	wantRenderings(t, callee, toolHost, "tool-run-1", "")
	callee.wantSeries(t, annotated("annotated"), 39)
}
