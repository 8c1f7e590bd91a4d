package proxy

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/wopproxy/wopproxy/ancestry"
)

// callee is a server that does what it is told for each request.
type callee struct {
	at   string
	does http.HandlerFunc
}

func newCallee(t testing.TB) *callee {
	c := &callee{}
	c.at = "http://" + peer(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		c.does(w, r)
	}) + "/rpc"
	return c
}

// says makes the next answers of the callee: a status, header lines, an empty
// line, and the body. A text that begins with { stands for its JSON.
func (c *callee) says(answer string) {
	if strings.HasPrefix(answer, "{") {
		answer = "200\nContent-Type: application/json\n\n" + answer
	}
	head, body, _ := strings.Cut(answer, "\n\n")
	status, lines, _ := strings.Cut(head, "\n")
	code, err := strconv.Atoi(status)
	if err != nil {
		panic(err)
	}
	c.does = func(w http.ResponseWriter, _ *http.Request) {
		for line := range strings.Lines(lines + "\n") {
			if name, value, ok := strings.Cut(strings.TrimSpace(line), ": "); ok {
				w.Header().Set(name, value)
			}
		}
		w.WriteHeader(code)
		_, _ = io.WriteString(w, body)
	}
}

// stream is an answer of events.
func stream(events ...string) string {
	return "200\nContent-Type: text/event-stream\n\ndata: " + strings.Join(events, "\n\ndata: ") + "\n\n"
}

// ok is a JSON-RPC answer to request 1.
func ok(result string) string { return `{"jsonrpc":"2.0","id":1,"result":` + result + `}` }

// rpc is a request of JSON-RPC, number 1.
func rpc(method, params string) string {
	return `{"jsonrpc":"2.0","id":1,"method":"` + method + `","params":` + params + `}`
}

// ofRun are the headers with which a run of the host calls.
func ofRun(run string, more ...string) http.Header {
	h := http.Header{"Run-Id": {run}, "Accept": {"application/json, text/event-stream"}}
	for i := 0; i < len(more); i += 2 {
		h.Set(more[i], more[i+1])
	}
	return h
}

// tellHandoffs renders what is known of a run's handoffs, by the steps they took.
func (s *sidecar) tellHandoffs(t testing.TB, run ancestry.RunID) string {
	t.Helper()
	s.handled.wait(t)
	var all []string
	for _, h := range s.Handoffs(run) {
		text := h.Operation
		for _, step := range h.Steps {
			text += " " + string(step.State)
		}
		if h.State != h.Steps[len(h.Steps)-1].State {
			t.Errorf("state = %s after %v", h.State, h.Steps)
		}
		if h.Error != "" {
			text += " error=" + string(h.Error)
		}
		if h.TaskState != "" {
			text += " task=" + h.TaskState
		}
		if h.Open {
			text += " open"
		}
		all = append(all, text)
	}
	return strings.Join(all, "; ")
}

func (s *sidecar) wantHandoffs(t testing.TB, run ancestry.RunID, want string) {
	t.Helper()
	if got := s.tellHandoffs(t, run); got != want {
		t.Errorf("handoffs of %s = %q\nwant %q", run, got, want)
	}
}

const (
	toRunning = "pending dispatching running"
	harvested = toRunning + " harvested"
	theTask   = "8f0e7d7e-1f0f-4a51-9b0c-0a1b2c3d4e5f"
)

// TestHandoffOfOneExchange: what one answer says, or does not.
func TestHandoffOfOneExchange(t *testing.T) {
	task := func(state string) string {
		return ok(`{"kind":"task","id":"` + theTask + `","contextId":"c","status":{"state":"` + state + `"}}`)
	}
	tool, send, send10 := rpc("tools/call", `{"name":"x"}`), rpc("message/send", `{"message":{"messageId":"m"}}`), rpc("SendMessage", `{"message":{"messageId":"m"}}`)
	for _, tt := range []struct{ name, request, answer, want string }{
		{"result", tool, ok(`{"content":[]}`), "tools/call " + harvested},
		{"resource", rpc("resources/read", `{"uri":"a:b"}`), ok(`{"contents":[]}`), "resources/read " + harvested},
		{"result on a stream", tool, stream(`{"jsonrpc":"2.0","method":"notifications/progress"}`, ok(`{"content":[]}`)), "tools/call " + harvested},
		{"tool error", tool, ok(`{"content":[],"isError":true}`), "tools/call " + toRunning + " failed error=tool-error"},
		{"error", tool, `{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"no"}}`, "tools/call " + toRunning + " failed error=rpc-error"},
		{"error with a status", tool, "404\nContent-Type: application/json\n\n" + `{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"no"}}`, "tools/call pending dispatching failed error=rpc-error"},
		{"status", tool, "500\nContent-Type: text/plain\n\noh", "tools/call pending dispatching failed error=http-status"},
		{"redirect", tool, "307\nLocation: /elsewhere\n\n", "tools/call pending dispatching failed error=http-status"},
		{"accepted, no more", tool, "202\n\n", "tools/call " + toRunning},
		{"not to be read", tool, "200\nContent-Type: application/json\nContent-Encoding: x-none\n\n" + ok(`{"content":[],"isError":true}`), "tools/call " + toRunning},
		{"answer to another", tool, stream(`{"jsonrpc":"2.0","id":2,"result":{"content":[]}}`), "tools/call " + toRunning + " failed error=broken"},
		{"stream without an answer", tool, stream(`{"jsonrpc":"2.0","method":"notifications/progress"}`), "tools/call " + toRunning + " failed error=broken"},
		{"question that can't be known again", tool, ok(`{"resultType":"input_required","inputRequests":{}}`), "tools/call " + toRunning},
		{"MCP task", tool, ok(`{"task":{"taskId":"` + theTask + `","status":"working"}}`), "tools/call " + toRunning + " task=working open"},
		{"MCP task with a common id", tool, ok(`{"task":{"taskId":"1","status":"working"}}`), "tools/call " + toRunning + " task=working"},
		{"starts nothing", rpc("tools/list", `{}`), ok(`{"tools":[]}`), ""},
		{"notification", `{"jsonrpc":"2.0","method":"notifications/initialized"}`, "202\n\n", ""},

		{"message", send, ok(`{"kind":"message","messageId":"m2"}`), "message/send " + harvested},
		{"task that is done", send, task("completed"), "message/send " + harvested + " task=completed"},
		{"1.0", send10, ok(`{"task":{"id":"` + theTask + `","status":{"state":"TASK_STATE_COMPLETED"}}}`), "SendMessage " + harvested + " task=completed"},
		{"task that failed", send, task("failed"), "message/send " + toRunning + " failed error=task-failed task=failed"},
		{"task that was rejected", send, task("rejected"), "message/send " + toRunning + " failed error=task-rejected task=rejected"},
		{"task that was cancelled", send, task("canceled"), "message/send " + toRunning + " cancelled task=canceled"},
		{"task at work", send, task("working"), "message/send " + toRunning + " task=working open"},
		{"task that asks", send, task("input-required"), "message/send " + toRunning + " task=input-required open"},
		{"state of which nothing is known", send, task("resting"), "message/send " + toRunning + " task=unknown open"},
		{"task of a common name", send, ok(`{"kind":"task","id":"1","status":{"state":"working"}}`), "message/send " + toRunning + " task=working"},
		{"stream to the end", rpc("message/stream", `{"message":{"messageId":"m"}}`), stream(task("submitted"),
			ok(`{"kind":"status-update","taskId":"`+theTask+`","status":{"state":"completed"},"final":true}`)), "message/stream " + harvested + " task=completed"},
		{"stream of a common name", rpc("message/stream", `{"message":{"messageId":"m"}}`), stream(ok(`{"kind":"task","id":"1","status":{"state":"working"}}`),
			ok(`{"kind":"status-update","taskId":"1","status":{"state":"completed"},"final":true}`)), "message/stream " + harvested + " task=completed"},
		{"stream of a common name that ends early", rpc("message/stream", `{"message":{"messageId":"m"}}`), stream(ok(`{"kind":"task","id":"1","status":{"state":"working"}}`)), "message/stream " + toRunning + " task=working"},
		{"stream that ends early", rpc("message/stream", `{"message":{"messageId":"m"}}`), stream(task("working")), "message/stream " + toRunning + " task=working open"},
		{"stream of two tasks", rpc("message/stream", `{"message":{"messageId":"m"}}`), stream(task("working"),
			ok(`{"kind":"status-update","taskId":"11111111-2222-3333-4444-555555555555","status":{"state":"failed"}}`)), "message/stream " + toRunning + " task=working open"},
		{"stream with a message after the task", rpc("message/stream", `{"message":{"messageId":"m"}}`), stream(task("working"),
			ok(`{"kind":"message","messageId":"m2"}`)), "message/stream " + toRunning + " task=working open"},
		{"stream that errs after the task", rpc("message/stream", `{"message":{"messageId":"m"}}`), stream(task("working"),
			`{"jsonrpc":"2.0","id":1,"error":{"code":-32603,"message":"no"}}`), "message/stream " + toRunning + " task=working open"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := newCallee(t)
			s := newSidecar(t, "agent.example.com", c.at)
			c.says(tt.answer)
			client := s.client()
			client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
			post(t, client, c.at, tt.request, ofRun("r-1"))
			s.wantHandoffs(t, "r-1", tt.want)
			post(t, client, c.at, tt.request, ofRun("")) // nobody's
			s.wantHandoffs(t, "r-1", tt.want)
			open := 0.0
			if strings.HasSuffix(tt.want, " open") {
				open = 1
			}
			s.wantSeries(t, "wopproxy_handoffs_open", open)
			for _, state := range ancestry.HandoffStates() {
				protocol := "a2a"
				if strings.Contains(tt.request, "tools/") || strings.Contains(tt.request, "resources/") {
					protocol = "mcp"
				}
				want := 0.0
				if strings.Contains(tt.want, " "+string(state)) {
					want = 1
				}
				s.wantSeries(t, fmt.Sprintf("wopproxy_handoffs_total{protocol=%q,state=%q}", protocol, state), want)
			}
		})
	}
}

// TestHandoffOverREST: A2A's other binding says the same.
func TestHandoffOverREST(t *testing.T) {
	c := newCallee(t)
	s := newSidecar(t, "agent.example.com", c.at)
	base := strings.TrimSuffix(c.at, "/rpc")
	c.says(`{"task":{"id":"` + theTask + `","status":{"state":"TASK_STATE_WORKING"}}}`)
	post(t, s.client(), base+"/message:send", `{"message":{"messageId":"m"}}`, ofRun("r-1", "A2A-Version", "1.0"))
	s.wantHandoffs(t, "r-1", "POST /message:send "+toRunning+" task=working open")
	c.says(`{"id":"` + theTask + `","status":{"state":"TASK_STATE_CANCELED"}}`)
	post(t, s.client(), base+"/tasks/"+theTask+":cancel", `{}`, ofRun("r-2", "A2A-Version", "1.0"))
	s.wantHandoffs(t, "r-1", "POST /message:send "+toRunning+" cancelled task=canceled")
}

// TestHandoffThatFails: what keeps an answer from coming.
func TestHandoffThatFails(t *testing.T) {
	broken := peer(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Length", "1000")
		_, _ = io.WriteString(w, `{"jsonrpc":"2.0",`)
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})
	for _, tt := range []struct {
		name, to, want string
		tune           func(*Options, *Policy)
	}{
		{"breaks off", broken, "tools/call " + toRunning + " failed error=broken", nil},
		{"nobody listens", "127.0.0.1:1", "tools/call pending dispatching failed error=unreachable", nil},
		{"not in time", broken, "tools/call pending dispatching failed error=timeout", func(_ *Options, p *Policy) { p.DialTimeout = time.Nanosecond }},
		{"forbidden", "169.254.169.254", "tools/call pending dispatching failed error=refused", func(_ *Options, p *Policy) { p.DenyLinkLocal = true }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var tune []func(*Options, *Policy)
			if tt.tune != nil {
				tune = append(tune, tt.tune)
			}
			s := newSidecar(t, "agent.example.com", "http://"+broken, tune...)
			req := request(t, tt.to, []byte(rpc("tools/call", `{"name":"x"}`)), "Run-Id", "r-1", "Accept", "application/json, text/event-stream")
			if resp, err := s.client().Do(req); err == nil {
				_, _ = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
			s.wantHandoffs(t, "r-1", tt.want)
		})
	}
}

// TestWithheldHandoff: what we refuse was never sent.
func TestWithheldHandoff(t *testing.T) {
	c := newCallee(t)
	s := newSidecar(t, "h.example.com", openWOPHost(t).URL, func(_ *Options, p *Policy) { p.WithholdUnescalated = true })
	s.knowModel(t)
	fetched(t, s.ingress.URL+"/v1/runs/r1/events")
	post(t, s.client(), c.at, rpc("tools/call", `{"name":"x"}`), ofRun("r1"))
	s.wantHandoffs(t, "r1", "tools/call pending failed error=refused")
}

// TestHandoffOfACallerThatLeaves: a call without an answer is cancelled, and a
// task goes on.
func TestHandoffOfACallerThatLeaves(t *testing.T) {
	task := ok(`{"kind":"task","id":"` + theTask + `","status":{"state":"working"}}`)
	for _, tt := range []struct{ name, request, session, first, want string }{
		{"before the head", rpc("tools/call", `{"name":"x"}`), "", "", "tools/call pending dispatching cancelled"},
		{"in a stream", rpc("tools/call", `{"name":"x"}`), "", `{"jsonrpc":"2.0","method":"notifications/progress"}`, "tools/call " + toRunning + " cancelled"},
		{"in a stream that may be resumed", rpc("tools/call", `{"name":"x"}`), "session-1", `{"jsonrpc":"2.0","method":"notifications/progress"}`, "tools/call " + toRunning + " open"},
		{"before there is a task", rpc("message/stream", `{"message":{"messageId":"m"}}`), "", `{"jsonrpc":"2.0","id":9,"result":{}}`, "message/stream " + toRunning + " cancelled"},
		{"when there is a task of a common name", rpc("message/stream", `{"message":{"messageId":"m"}}`), "", ok(`{"kind":"task","id":"1","status":{"state":"working"}}`), "message/stream " + toRunning + " task=working"},
		{"when there is a task", rpc("message/stream", `{"message":{"messageId":"m"}}`), "", task, "message/stream " + toRunning + " task=working open"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			reached, done := make(chan struct{}), make(chan struct{})
			at := peer(t, func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				if tt.first != "" {
					w.Header().Set("Content-Type", "text/event-stream")
					_, _ = io.WriteString(w, "data: "+tt.first+"\n\n")
					_ = http.NewResponseController(w).Flush()
				}
				close(reached)
				<-r.Context().Done()
				close(done)
			})
			s := newSidecar(t, "agent.example.com", "http://"+at)
			ctx, leave := context.WithCancel(t.Context())
			header := []string{"Run-Id", "r-1", "Accept", "application/json, text/event-stream"}
			if tt.session != "" {
				header = append(header, "Mcp-Session-Id", tt.session, "Mcp-Protocol-Version", "2025-11-25")
			}
			if tt.first == "" {
				go func() { <-reached; leave() }()
			}
			resp, err := s.client().Do(request(t, at, []byte(tt.request), header...).WithContext(ctx))
			if err == nil {
				if _, err := bufio.NewReader(resp.Body).ReadString('\n'); err != nil {
					t.Errorf("first event: %v", err)
				}
				leave()
				resp.Body.Close()
			}
			leave()
			receive(t, done, "the callee to be left")
			s.wantHandoffs(t, "r-1", tt.want)
		})
	}
}

// step is one request of a conversation and what is known after its answer.
type step struct {
	run, request, answer, want string
	header                     []string
	path                       string // behind that of the callee
}

// TestHandoffOfATask follows tasks over later requests, whoever makes them.
func TestHandoffOfATask(t *testing.T) {
	const began = "tools/call " + toRunning
	create := step{run: "r-1", request: rpc("tools/call", `{"name":"x","task":{}}`), answer: ok(`{"task":{"taskId":"` + theTask + `","status":"working"}}`), want: began + " task=working open"}
	about := func(method, answer, want string) step {
		return step{run: "", request: rpc(method, `{"taskId":"`+theTask+`"}`), answer: answer, want: want}
	}
	send := step{run: "r-1", request: rpc("message/send", `{"message":{"messageId":"m"}}`),
		answer: ok(`{"kind":"task","id":"` + theTask + `","contextId":"c","status":{"state":"input-required"}}`), want: "message/send " + toRunning + " task=input-required open"}
	turn := func(run, answer, want string) step {
		return step{run: run, request: rpc("message/send", `{"message":{"messageId":"m2","taskId":"`+theTask+`"}}`), answer: answer, want: want}
	}
	of := func(state string) string {
		return ok(`{"kind":"task","id":"` + theTask + `","contextId":"c","status":{"state":"` + state + `"}}`)
	}
	for _, tt := range []struct {
		name  string
		steps []step
	}{
		{"MCP result asked for", []step{
			create,
			about("tasks/get", ok(`{"taskId":"`+theTask+`","status":"input_required"}`), began+" task=input-required open"),
			about("tasks/get", ok(`{"taskId":"`+theTask+`","status":"completed"}`), began+" task=completed open"),
			about("tasks/result", `{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"no such task"}}`, began+" task=completed open"),
			about("tasks/result", ok(`{"content":[]}`), "tools/call "+harvested+" task=completed"),
			about("tasks/get", ok(`{"taskId":"`+theTask+`","status":"failed"}`), "tools/call "+harvested+" task=completed"),
		}},
		{"MCP result that is an error", []step{create, about("tasks/result", ok(`{"content":[],"isError":true}`), began+" failed error=tool-error task=working")}},
		{"MCP result that comes along", []step{create, about("tasks/get", ok(`{"resultType":"complete","taskId":"`+theTask+`","status":"completed","result":{"content":[]}}`), "tools/call "+harvested+" task=completed")}},
		{"MCP error that comes along", []step{create, about("tasks/get", ok(`{"taskId":"`+theTask+`","status":"completed","result":{"content":[],"isError":true}}`), began+" failed error=tool-error task=completed")}},
		{"MCP task that fails", []step{create, about("tasks/get", ok(`{"taskId":"`+theTask+`","status":"failed"}`), began+" failed error=task-failed task=failed")}},
		{"MCP task that is cancelled", []step{create, about("tasks/cancel", ok(`{"taskId":"`+theTask+`","status":"cancelled"}`), began+" cancelled task=canceled")}},
		{"MCP notification", []step{create, {
			request: rpc("tools/list", `{}`), want: began + " failed error=task-failed task=failed",
			answer: stream(`{"jsonrpc":"2.0","method":"notifications/tasks/status","params":{"taskId":"`+theTask+`","status":"failed"}}`, ok(`{"tools":[]}`)),
		}}},
		{"another task", []step{create, {
			request: rpc("tasks/get", `{"taskId":"11111111-2222-3333-4444-555555555555"}`), answer: ok(`{"taskId":"11111111-2222-3333-4444-555555555555","status":"failed"}`), want: create.want,
		}}},
		{"A2A turn of the same run", []step{send, turn("r-1", of("working"), "message/send "+toRunning+" task=working open"), turn("r-1", of("completed"), "message/send "+harvested+" task=completed")}},
		{"A2A turn that is refused", []step{send, turn("r-1", `{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"no"}}`, send.want), turn("r-1", "500\n\n", send.want)}},
		{"A2A turn answered with a message", []step{send, turn("r-1", ok(`{"kind":"message","messageId":"m3"}`), send.want), turn("r-1", of("completed"), "message/send "+harvested+" task=completed")}},
		{"A2A turn of another run", []step{send, turn("r-2", of("completed"), "message/send "+harvested+" task=completed")}},
		{"A2A turn after the end", []step{send, turn("r-1", of("rejected"), "message/send "+toRunning+" failed error=task-rejected task=rejected"),
			turn("r-1", of("working"), "message/send "+toRunning+" failed error=task-rejected task=rejected; message/send "+toRunning+" task=working open")}},
		{"A2A read by nobody", []step{send, {request: rpc("tasks/get", `{"id":"`+theTask+`"}`), answer: of("failed"), want: "message/send " + toRunning + " failed error=task-failed task=failed"}}},
		{"A2A cancelled", []step{send, {request: rpc("CancelTask", `{"id":"`+theTask+`"}`), answer: of("canceled"), want: "message/send " + toRunning + " cancelled task=canceled"}}},
		{"A2A on another stream", []step{send, {request: rpc("tasks/resubscribe", `{"id":"`+theTask+`"}`), answer: stream(of("working"), of("completed")), want: "message/send " + harvested + " task=completed"}}},
		{"MCP question", []step{
			{run: "r-1", request: rpc("tools/call", `{"name":"x"}`), answer: ok(`{"resultType":"input_required","requestState":"s1"}`), want: began + " open"},
			{run: "r-2", request: rpc("tools/call", `{"name":"x","requestState":"s1"}`), answer: ok(`{"content":[]}`), want: began + " open"},
			{run: "r-1", request: rpc("tools/call", `{"name":"x","requestState":"s1","inputResponses":{}}`), answer: ok(`{"resultType":"input_required","requestState":"s2"}`), want: began + " open"},
			{run: "r-1", request: rpc("tools/call", `{"name":"x","requestState":"s2","inputResponses":{}}`), answer: ok(`{"content":[]}`), want: "tools/call " + harvested},
		}},
		{"late answer", []step{
			{run: "r-1", request: rpc("tools/call", `{"name":"x"}`), answer: stream(`{"jsonrpc":"2.0","method":"notifications/progress"}`), want: began + " open", header: session},
			{answer: stream(`{"jsonrpc":"2.0","id":1,"result":{"content":[],"isError":true}}`), want: began + " failed error=tool-error", header: session},
		}},
		{"late result", []step{
			{run: "r-1", request: rpc("tools/call", `{"name":"x"}`), answer: stream(`{"jsonrpc":"2.0","method":"notifications/progress"}`), want: began + " open", header: session},
			{answer: stream(ok(`{"content":[]}`)), want: began + " open", header: []string{"Mcp-Session-Id", "another", "Mcp-Protocol-Version", "2025-11-25"}},
			{answer: stream(ok(`{"content":[]}`)), want: "tools/call " + harvested, header: session},
		}},
		{"late answer to one of two", []step{
			{run: "r-1", request: rpc("tools/call", `{"name":"x"}`), answer: stream(`{"jsonrpc":"2.0","method":"notifications/progress"}`), want: began + " open", header: session},
			{run: "r-2", request: rpc("tools/call", `{"name":"x"}`), answer: stream(`{"jsonrpc":"2.0","method":"notifications/progress"}`), want: began + " open", header: session},
			{answer: stream(ok(`{"content":[]}`)), want: began + " open", header: session},
			{request: `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`, answer: "202\n\n", want: began + " open", header: session},
		}},
		{"session of the same name elsewhere on the server", []step{
			{run: "r-1", request: rpc("tools/call", `{"name":"x"}`), answer: stream(`{"jsonrpc":"2.0","method":"notifications/progress"}`), want: began + " open", header: session},
			{answer: stream(ok(`{"content":[]}`)), want: began + " open", header: session, path: "/other"},
			{request: `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`, answer: "202\n\n", want: began + " open", header: session, path: "/other"},
			{answer: stream(ok(`{"content":[]}`)), want: "tools/call " + harvested, header: session},
		}},
		{"cancelled by a notification", []step{
			{run: "r-1", request: rpc("tools/call", `{"name":"x"}`), answer: stream(`{"jsonrpc":"2.0","method":"notifications/progress"}`), want: began + " open", header: session},
			{request: `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2}}`, answer: "202\n\n", want: began + " open", header: session},
			{request: `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`, answer: "202\n\n", want: began + " cancelled", header: session},
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := newCallee(t)
			s := newSidecar(t, "agent.example.com", c.at, func(o *Options, _ *Policy) { o.SingleFlight = false })
			for i, step := range tt.steps {
				c.says(step.answer)
				header := ofRun(step.run, step.header...)
				if step.request == "" {
					listen(t, s, c.at+step.path, header)
				} else {
					post(t, s.client(), c.at+step.path, step.request, header)
				}
				if got := s.tellHandoffs(t, "r-1"); got != step.want {
					t.Fatalf("handoffs after step %d = %q\nwant %q", i+1, got, step.want)
				}
				if step.run == "r-2" && step.want == "message/send "+harvested+" task=completed" {
					s.wantHandoffs(t, "r-2", step.want) // each of the two has it
				}
			}
		})
	}
}

var session = []string{"Mcp-Session-Id", "session-1", "Mcp-Protocol-Version", "2025-11-25"}

// listen reads what a server sends to a session of its own accord, to the end.
func listen(t testing.TB, s *sidecar, url string, header http.Header) {
	t.Helper()
	req, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header = header
	req.Header.Set("Accept", "text/event-stream")
	resp, err := s.client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		t.Error(err)
	}
}

// TestHandoffAnsweredByWebhook: what the agent posts counts once the host has
// taken it.
func TestHandoffAnsweredByWebhook(t *testing.T) {
	status := http.StatusInternalServerError
	host := peer(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) })
	c := newCallee(t)
	s := newSidecar(t, "agent.example.com", "http://"+host)
	c.says(ok(`{"task":{"id":"` + theTask + `","status":{"state":"TASK_STATE_WORKING"}}}`))
	post(t, s.client(), c.at, rpc("SendMessage", `{"message":{"messageId":"m"},"configuration":{"taskPushNotificationConfig":{"url":"https://outside.example.com/hook","token":"tok-1"}}}`), ofRun("r-1"))
	const open = "SendMessage " + toRunning + " task=working open"
	posted := func(token, task, want string) {
		t.Helper()
		post(t, http.DefaultClient, s.ingress.URL+"/hook", `{"statusUpdate":{"taskId":"`+task+`","contextId":"c","status":{"state":"TASK_STATE_COMPLETED"}}}`, http.Header{"A2a-Notification-Token": {token}})
		s.wantHandoffs(t, "r-1", want)
	}
	posted("tok-1", theTask, open)
	status = http.StatusNoContent
	posted("tok-2", theTask, open)
	posted("tok-1", "11111111-2222-3333-4444-555555555555", open)
	posted("tok-1", theTask, "SendMessage "+harvested+" task=completed")
}

// TestHandoffNamesTheChild: as its host's proxy tells it, also where that host is
// this one.
func TestHandoffNamesTheChild(t *testing.T) {
	c := newCallee(t)
	s := newSidecar(t, "agent.example.com", c.at)
	for _, host := range []string{"tools.example.com", "agent.example.com"} {
		c.says("200\nContent-Type: application/json\nRun-Id: \"run-9\";host=\"" + host + "\"\n\n" + ok(`{"content":[]}`))
		post(t, s.client(), c.at, rpc("tools/call", `{"name":"secret-tool","arguments":{"q":"secret"}}`), ofRun("r-"+host))
		s.handled.wait(t)
		h := s.Handoffs(ancestry.RunID("r-" + host))[0]
		if h.Child != "run-9" || h.Host != host || "http://"+h.Peer+"/rpc" != c.at || h.Protocol != "mcp" || strings.Contains(fmt.Sprint(h), "secret") {
			t.Errorf("handoff to %s = %+v, want its child run-9 and nothing of what was asked", host, h)
		}
	}
}

// TestHandoffLimit: one that is open is forgotten for another, which is counted.
func TestHandoffLimit(t *testing.T) {
	c := newCallee(t)
	s := newSidecar(t, "agent.example.com", c.at, func(o *Options, _ *Policy) { o.MaxHandoffs = 2 })
	for i := range 3 {
		c.says(ok(`{"kind":"task","id":"` + theTask + strconv.Itoa(i) + `","status":{"state":"working"}}`))
		post(t, s.client(), c.at, rpc("message/send", `{"message":{"messageId":"m"}}`), ofRun("r-"+strconv.Itoa(i)))
		s.wantSeries(t, hit(limitHandoffs), float64(i/2))
	}
	s.wantHandoffs(t, "r-0", "")
	s.wantSeries(t, "wopproxy_handoffs_open", 2)
}

// TestHandoffBeforeTheEnd: a result counts as soon as it was passed on, also on a
// stream that stays open, and not before.
func TestHandoffBeforeTheEnd(t *testing.T) {
	release := make(chan struct{})
	at := peer(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "data: "+ok(`{"content":[]}`)+"\n\n")
		_ = http.NewResponseController(w).Flush()
		<-release
	})
	s := newSidecar(t, "agent.example.com", "http://"+at)
	resp, err := s.client().Do(request(t, at, []byte(rpc("tools/call", `{"name":"x"}`)), "Run-Id", "r-1", "Accept", "application/json, text/event-stream"))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	eventually(t, "the result to be harvested", func() bool {
		all := s.Handoffs("r-1")
		return len(all) == 1 && all[0].State == ancestry.HandoffHarvested
	})
	close(release)
}

// failingWriter takes the head of an answer, and nothing else.
type failingWriter struct{ header http.Header }

func (w failingWriter) Header() http.Header       { return w.header }
func (w failingWriter) WriteHeader(int)           {}
func (w failingWriter) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

// TestHandoffThatIsNotHandedOn: a result that could not be given to the caller is
// not harvested.
func TestHandoffThatIsNotHandedOn(t *testing.T) {
	c := newCallee(t)
	s := newSidecar(t, "agent.example.com", c.at)
	for _, tt := range []struct{ answer, want string }{
		{ok(`{"content":[]}`), "tools/call " + toRunning + " cancelled"},
		{stream(ok(`{"content":[]}`)), "tools/call " + toRunning + " cancelled"},
		{ok(`{"content":[],"isError":true}`), "tools/call " + toRunning + " failed error=tool-error"},
	} {
		c.says(tt.answer)
		run := ancestry.RunID("r-" + strconv.Itoa(len(tt.answer)))
		r := request(t, strings.TrimSuffix(strings.TrimPrefix(c.at, "http://"), "/rpc"), []byte(rpc("tools/call", `{"name":"x"}`)), "Run-Id", string(run), "Accept", "application/json, text/event-stream")
		func() {
			defer func() { _ = recover() }() // as net/http does
			s.Egress().ServeHTTP(failingWriter{http.Header{}}, r)
		}()
		s.wantHandoffs(t, run, tt.want)
	}
}

// leavingWriter is a caller that leaves when it has its answer.
type leavingWriter struct {
	header http.Header
	leave  func()
}

func (w leavingWriter) Header() http.Header { return w.header }
func (w leavingWriter) WriteHeader(int)     {}
func (w leavingWriter) Write(b []byte) (int, error) {
	w.leave()
	return len(b), nil
}

// TestHandoffOfACallerThatHasTheAnswer: whoever leaves with the whole answer has
// cancelled nothing, also where the answer could not be read.
func TestHandoffOfACallerThatHasTheAnswer(t *testing.T) {
	c := newCallee(t)
	s := newSidecar(t, "agent.example.com", c.at)
	for encoding, want := range map[string]string{"": "tools/call " + harvested, "Content-Encoding: x-none\n": "tools/call " + toRunning} {
		c.says("200\nContent-Type: application/json\n" + encoding + "\n" + ok(`{"content":[]}`))
		run := ancestry.RunID("r-" + strconv.Itoa(len(encoding)))
		ctx, leave := context.WithCancel(t.Context())
		r := request(t, strings.TrimSuffix(strings.TrimPrefix(c.at, "http://"), "/rpc"), []byte(rpc("tools/call", `{"name":"x"}`)), "Run-Id", string(run), "Accept", "application/json, text/event-stream")
		s.Egress().ServeHTTP(leavingWriter{http.Header{}, leave}, r.WithContext(ctx))
		s.wantHandoffs(t, run, want)
	}
}

// TestHandoffOverStdio: what a stdio server has its client do, where that is
// configured to be work of its own.
func TestHandoffOverStdio(t *testing.T) {
	const sampling = "sampling/createMessage "
	for _, tt := range []struct{ name, answer, want string }{
		{"answered", `{"jsonrpc":"2.0","id":9,"result":{}}`, sampling + harvested},
		{"refused", `{"jsonrpc":"2.0","id":9,"error":{"code":-1,"message":"no"}}`, sampling + "pending dispatching failed error=rpc-error"},
		{"given up", "", sampling + "pending dispatching cancelled"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newTestProxy(t, ancestry.NewMemory(), func(_ *Options, p *Policy) { p.MCPMethods = []string{"tools/call", "sampling/createMessage"} })
				p := newPipe(t, s.Proxy, Environment{})
				p.up(`{"jsonrpc":"2.0","method":"tools/call","id":1,"params":{"name":"x"}}`)
				run := s.Live()[0].Run
				p.down(`{"jsonrpc":"2.0","method":"sampling/createMessage","id":9,"params":{}}`)
				s.wantHandoffs(t, run, sampling+"pending dispatching open")
				if got := s.Handoffs(run)[0].Peer; got != "stdio" {
					t.Errorf("peer = %q, want stdio", got)
				}
				if tt.answer != "" {
					p.up(tt.answer)
				} else {
					p.down(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":9}}`)
					time.Sleep(cancelGrace)
				}
				synctest.Wait()
				s.wantHandoffs(t, run, tt.want)
				p.end()
			})
		})
	}
}
