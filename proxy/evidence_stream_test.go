package proxy

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/wopproxy/wopproxy/ancestry"
)

// progressOf is a notification of progress with a token, as it is written.
func progressOf(token string) string {
	return `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":` + token + `,"progress":1,"message":"secret"}}`
}

// TestEvidenceOfProgress has progress be told of the step whose request bears its token,
// on its own stream, either way, and over stdio.
func TestEvidenceOfProgress(t *testing.T) {
	asked := func(token string) string {
		return rpc("tools/call", `{"name":"search","_meta":{"progressToken":`+token+`}}`)
	}
	done := ok(`{"content":[]}`)
	for _, tt := range []struct{ name, token, told, want string }{
		{"of text", `"a"`, `"a"`, "invoked ok, progress ongoing, progress ongoing"},
		{"of a number", `7`, `7.0`, "invoked ok, progress ongoing, progress ongoing"},
		{"zero", `0`, `0`, "invoked ok, progress ongoing, progress ongoing"},
		{"of another request", `"a"`, `"b"`, "invoked ok"},
		{"of another type", `7`, `"7"`, "invoked ok"},
		{"of nothing", `{}`, `{}`, "invoked ok"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			events := []string{progressOf(tt.told), progressOf(tt.told), progressOf(tt.told), done}
			c := newCallee(t)
			c.says(stream(events...))
			f := newFile(t, "https://a.example.com")
			s := newSidecar(t, "a.example.com", c.at, f.tune)
			post(t, s.client(), c.at, asked(tt.token), ofRun("run-of-the-host-1"))
			post(t, http.DefaultClient, s.ingress.URL, asked(tt.token), benchMCP)
			s.handled.wait(t)
			f.stop()
			if got, want := toldOf(f.ofRun(t, "run-of-the-host-1")), []string{"egress mcp 0: " + tt.want}; !slices.Equal(got, want) {
				t.Errorf("egress: %v, want %v", got, want)
			}
			arrived, _ := f.of(t, s.recorded(t)[0].Workflow)
			if got, want := toldOf(arrived), []string{"ingress mcp 0: " + tt.want}; !slices.Equal(got, want) {
				t.Errorf("ingress: %v, want %v", got, want)
			}
			for _, r := range arrived {
				if text := fmt.Sprint(r.Claims.Extensions); strings.Contains(text, "secret") {
					t.Errorf("what the tool says is told: %s", text)
				}
			}

			f = newFile(t, "https://b.example.com")
			over := newTestProxy(t, ancestry.NewMemory(), f.tune)
			p := newPipe(t, over.Proxy, Environment{})
			p.up(asked(tt.token))
			for _, e := range events {
				p.down(e)
			}
			p.down(progressOf(tt.told)) // too late
			p.end()
			f.stop()
			piped, _ := f.of(t, over.recorded(t)[0].Workflow)
			if got, want := toldOf(piped), []string{"ingress mcp 0: " + tt.want}; !slices.Equal(got, want) {
				t.Errorf("stdio: %v, want %v", got, want)
			}
		})
	}
}

// TestEvidenceOfProgressOverStdio has progress be told of the one request that is at
// work with its token.
func TestEvidenceOfProgressOverStdio(t *testing.T) {
	f := newFile(t, "https://a.example.com")
	s := newTestProxy(t, ancestry.NewMemory(), f.tune)
	p := newPipe(t, s.Proxy, Environment{})
	for _, id := range []string{"1", "2"} {
		p.up(`{"jsonrpc":"2.0","id":` + id + `,"method":"tools/call","params":{"name":"x","_meta":{"progressToken":"t"}}}`)
	}
	p.down(progressOf(`"t"`)) // of either
	p.down(`{"jsonrpc":"2.0","id":1,"result":{"content":[]}}`)
	p.down(progressOf(`"t"`))
	p.down(`{"jsonrpc":"2.0","id":2,"result":{"content":[]}}`)
	p.end()
	f.stop()
	var told []string
	for _, run := range s.recorded(t) {
		receipts, _ := f.of(t, run.Workflow)
		told = append(told, toldOf(receipts)...)
	}
	if diff := cmp.Diff([]string{"ingress mcp 0: invoked ok", "ingress mcp 0: invoked ok, progress ongoing"}, told); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestEvidenceOfCancellation has a request that is cancelled in its session, and not
// answered, end as cancelled, either way and over stdio. What may be an answer, and that
// nobody has read, keeps it from being said.
func TestEvidenceOfCancellation(t *testing.T) {
	session := []string{"Mcp-Session-Id", "session-0123456789", "Mcp-Protocol-Version", "2025-11-25"}
	for _, tt := range []struct {
		name    string
		caller  []string // the session of the call
		session []string // of the cancellation
		id      string
		answer  string // after it; "" ends the stream
		want    string
		piped   string // over stdio, where there are no sessions
	}{
		{"not answered", session, session, "1", "", "cancelled cancelled", "cancelled cancelled"},
		{"answered that it is", session, session, "1", `{"jsonrpc":"2.0","id":1,"error":{"code":0,"message":"Request cancelled"}}`, "cancelled cancelled", "cancelled cancelled"},
		{"answered that its context is", session, session, "1", `{"jsonrpc":"2.0","id":1,"error":{"code":0,"message":"calling \"tools/call\": context canceled"}}`, "cancelled cancelled", "cancelled cancelled"},
		{"answered by another error", session, session, "1", `{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"Request cancelled"}}`, "invoked protocol_error", "invoked protocol_error"},
		{"answered by an error without a code", session, session, "1", `{"jsonrpc":"2.0","id":1,"error":{"code":0,"message":"no such order"}}`, "invoked protocol_error", "invoked protocol_error"},
		{"answered by a task", session, session, "1", ok(`{"task":{"taskId":"task-0123456789abcdef","status":"working"}}`), "invoked ongoing, working ongoing", "invoked ongoing, working ongoing"},
		{"answered by a question", session, session, "1", ok(`{"resultType":"input_required","requestState":"0123456789abcdef"}`), "invoked ongoing", "invoked ongoing"},
		{"answered by what is read in two ways", session, session, "1", `{"jsonrpc":"2.0","id":1,"id":2,"result":{"content":[]}}`, "invoked ongoing", ""},
		{"answered all the same", session, session, "1", ok(`{"content":[]}`), "invoked ok", "invoked ok"},
		{"another request", session, session, "2", "", "invoked ongoing", ""},
		{"of another type", session, session, `"1"`, "", "invoked ongoing", ""},
		{"of another session", session, []string{"Mcp-Session-Id", "session-of-another", "Mcp-Protocol-Version", "2025-11-25"}, "1", "", "invoked ongoing", ""},
		{"of a call without one", nil, nil, "1", "", "invoked unreachable", ""},
		{"of no session", session, nil, "1", "", "invoked ongoing", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			notification := `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":` + tt.id + `}}`
			answer := ""
			if tt.answer != "" {
				answer = "data: " + tt.answer + "\n\n"
			}
			stream := http.Header{"Content-Type": {"text/event-stream"}}
			cancelCall(t, tt.caller, tt.session, notification, http.StatusOK, stream, answer, tt.want)
			if tt.piped == "" {
				return
			}
			f := newFile(t, "https://b.example.com")
			s := newTestProxy(t, ancestry.NewMemory(), f.tune)
			p := newPipe(t, s.Proxy, Environment{})
			p.up(rpc("tools/call", `{"name":"x"}`))
			p.up(notification)
			if tt.answer != "" {
				p.down(tt.answer)
			}
			p.end()
			f.stop()
			receipts, _ := f.of(t, s.recorded(t)[0].Workflow)
			if got, want := toldOf(receipts), []string{"ingress mcp 0: " + tt.piped}; !slices.Equal(got, want) {
				t.Errorf("stdio: %v, want %v", got, want)
			}
		})
	}
}

// TestEvidenceOfUnreadCancellation: a request that is cancelled, and gets something else
// than a stream, is cancelled if that is nothing.
func TestEvidenceOfUnreadCancellation(t *testing.T) {
	session := []string{"Mcp-Session-Id", "session-0123456789", "Mcp-Protocol-Version", "2025-11-25"}
	for _, tt := range []struct {
		name   string
		status int
		head   http.Header
		answer string
		want   string
	}{
		{"compressed", http.StatusOK, http.Header{"Content-Type": {"application/json"}, "Content-Encoding": {"br"}}, "what nobody reads", "invoked ongoing"},
		{"a compressed stream", http.StatusOK, http.Header{"Content-Type": {"text/event-stream"}, "Content-Encoding": {"br"}}, "what nobody reads", "invoked ongoing"},
		{"no JSON", http.StatusOK, http.Header{"Content-Type": {"text/html"}}, "<p>no</p>", "invoked ongoing"},
		{"nothing", http.StatusOK, http.Header{"Content-Type": {"application/json"}}, "", "cancelled cancelled"},
		{"an error of HTTP", http.StatusInternalServerError, http.Header{"Content-Type": {"text/plain"}}, "", "invoked protocol_error"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cancelCall(t, session, session, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`, tt.status, tt.head, tt.answer, tt.want)
		})
	}
}

// cancelCall has a call be cancelled when the head of its answer has come, before the
// rest comes, either way. want is what is told of it.
func cancelCall(t *testing.T, caller, canceller []string, notification string, status int, head http.Header, answer, want string) {
	t.Helper()
	for _, dir := range []direction{ingress, egress} {
		reached, cancelled := make(chan struct{}), make(chan struct{})
		at := peer(t, func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			if strings.Contains(string(body), "notifications/") {
				w.WriteHeader(http.StatusAccepted)
				close(cancelled)
				return
			}
			maps.Copy(w.Header(), head)
			w.WriteHeader(status)
			_ = http.NewResponseController(w).Flush()
			close(reached)
			<-cancelled
			_, _ = io.WriteString(w, answer)
		})
		f := newFile(t, "https://a.example.com")
		s := newSidecar(t, "a.example.com", "http://"+at, f.tune)
		c, to := http.DefaultClient, s.ingress.URL+"/mcp"
		if dir == egress {
			c, to = s.client(), "http://"+at+"/mcp"
		}
		ended := make(chan struct{})
		call := request(t, at, []byte(rpc("tools/call", `{"name":"x"}`)), append([]string{"Run-Id", "run-of-the-host-1", "Accept", "application/json, text/event-stream"}, caller...)...)
		call.URL, _ = url.Parse(to)
		go func() {
			defer close(ended)
			resp, err := c.Do(call)
			if err != nil {
				t.Error(err)
				return
			}
			defer resp.Body.Close()
			_, _ = io.Copy(io.Discard, resp.Body) // which may be cut off
		}()
		receive(t, reached, "the call to arrive")
		post(t, c, to, notification, ofRun("run-of-the-host-1", canceller...))
		receive(t, ended, "the call to end")
		s.handled.wait(t)
		f.stop()
		workflow := f.minter.Resume("run-of-the-host-1", "").Workflow
		if dir == ingress {
			workflow = s.recorded(t)[0].Workflow
		}
		receipts, _ := f.of(t, workflow)
		if got, want := toldOf(receipts), []string{string(dir) + " mcp 0: " + want}; !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", dir, got, want)
		}
	}
}

// TestEvidenceOfOthersTasks has the step be of the task that its answer names, and not
// of one that the host tells of on its stream.
func TestEvidenceOfOthersTasks(t *testing.T) {
	const own, others = "task-0123456789abcdef", "another-0123456789abcdef"
	tells := func(task, status string) string {
		return `{"jsonrpc":"2.0","method":"notifications/tasks/status","params":{"taskId":"` + task + `","status":"` + status + `"}}`
	}
	updates := func(envelope, task, state string) string {
		return strings.Replace(envelope, "RESULT", `{"statusUpdate":{"taskId":"`+task+`","contextId":"context-0123456789","status":{"state":"`+state+`"}}}`, 1)
	}
	const inRPC, bare = `{"jsonrpc":"2.0","id":1,"result":RESULT}`, "RESULT"
	message := `{"message":{"messageId":"m-1","role":"ROLE_USER","parts":[{"text":"x"}]}}`
	a2a := http.Header{"Content-Type": {"application/json"}, "A2a-Version": {"1.0"}}
	for _, tt := range []struct {
		name, path string
		header     http.Header
		body       string
		events     []string
		want       string
	}{
		{"MCP", "/mcp", benchMCP, rpc("tools/call", `{"name":"x"}`), []string{
			tells(others, "completed"), ok(`{"task":{"taskId":"` + own + `","status":"working"}}`), tells(others, "failed"), tells(own, "cancelled"),
		}, "mcp 0: canceled ongoing, invoked ongoing, working ongoing"},
		{"A2A", "/a2a", a2a, rpc("SendStreamingMessage", message), []string{
			updates(inRPC, own, "TASK_STATE_WORKING"), updates(inRPC, others, "TASK_STATE_FAILED"), updates(inRPC, own, "TASK_STATE_COMPLETED"),
		}, "a2a 0: completed ongoing, invoked ok, working ongoing"},
		{"A2A over REST", "/message:stream", a2a, message, []string{
			updates(bare, own, "TASK_STATE_WORKING"), updates(bare, others, "TASK_STATE_FAILED"), updates(bare, own, "TASK_STATE_COMPLETED"),
		}, "a2a 0: completed ongoing, invoked ok, working ongoing"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := newCallee(t)
			c.says(stream(tt.events...))
			f := newFile(t, "https://a.example.com")
			s := newSidecar(t, "a.example.com", c.at, f.tune)
			post(t, http.DefaultClient, s.ingress.URL+tt.path, tt.body, tt.header)
			s.handled.wait(t)
			f.stop()
			receipts, _ := f.of(t, s.recorded(t)[0].Workflow)
			if got, want := toldOf(receipts), []string{"ingress " + tt.want}; !slices.Equal(got, want) {
				t.Errorf("%v, want %v", got, want)
			}
		})
	}
}
