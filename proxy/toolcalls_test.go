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
