package proxy

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"google.golang.org/grpc/metadata"

	"github.com/wopproxy/wopproxy/ancestry"
	"github.com/wopproxy/wopproxy/proxy/internal/wire"
)

// madeTask and otherTask are the ids of tasks that taskHost makes.
const (
	madeTask  = "8f0e7d7e-1f0f-4a51-9b0c-0a1b2c3d4e5f"
	otherTask = "11111111-2222-3333-4444-555555555555"
)

// taskHost is an agent whose every answer is about the task that it has made
// last: by JSON-RPC of either generation, over REST, on a stream.
func taskHost(t testing.TB, id *string) string {
	return peer(t, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Errorf("read body: %v", err)
		}
		task := `{"id":"` + *id + `","contextId":"c","status":{"state":"TASK_STATE_WORKING"}}`
		switch m := wire.Read(body, wire.Hints{}); {
		case m.Method == "SendStreamingMessage":
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, `data: {"jsonrpc":"2.0","id":1,"result":{"task":`+task+"}}\n\n"+
				`data: {"jsonrpc":"2.0","id":1,"result":{"statusUpdate":{"taskId":"`+otherTask+`x"}}}`+"\n\n")
			return
		case strings.HasPrefix(m.Method, "Send"):
			task = `{"jsonrpc":"2.0","id":1,"result":{"task":` + task + `}}`
		case m.Method != "":
			task = `{"jsonrpc":"2.0","id":1,"result":{"kind":"task",` + task[1:] + `}`
		case strings.HasSuffix(r.URL.Path, ":send"):
			task = `{"task":` + task + `}`
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, task)
	})
}

// a2aRequest makes a request of A2A: a method of JSON-RPC with its params, or a
// method of HTTP with a path and perhaps a body. It comes from a trace of its own.
func a2aRequest(t testing.TB, to, method, rest string) *http.Request {
	t.Helper()
	r := request(t, to, nil, "A2a-Version", "1.0", "Traceparent", laterParent)
	if !strings.HasPrefix(rest, "/") {
		body := `{"jsonrpc":"2.0","id":1,"method":"` + method + `","params":` + rest + `}`
		r.Body, r.ContentLength, r.URL.Path = io.NopCloser(strings.NewReader(body)), int64(len(body)), "/a2a"
		return r
	}
	path, body, _ := strings.Cut(rest, " ")
	r.Method, r.URL.Path = method, path
	if r.Body, r.ContentLength = io.NopCloser(strings.NewReader(body)), int64(len(body)); body == "" {
		r.Body = http.NoBody
		r.Header.Del("Content-Type")
	}
	return r
}

const laterParent = "00-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa-bbbbbbbbbbbbbbbb-01"

// later are the requests about a task, and whether they link to where it began.
var later = []struct {
	name, method, rest string
	links              bool
	span               string // its name; "" for that of the method
}{
	{"get", "GetTask", `{"id":"` + madeTask + `"}`, true, ""},
	{"get 0.3", "tasks/get", `{"id":"` + madeTask + `"}`, true, ""},
	{"cancel", "CancelTask", `{"id":"` + madeTask + `"}`, true, ""},
	{"resubscribe", "SubscribeToTask", `{"id":"` + madeTask + `"}`, true, ""},
	{"resubscribe 0.3", "tasks/resubscribe", `{"id":"` + madeTask + `"}`, true, ""},
	{"later turn", "SendMessage", `{"message":{"messageId":"m","taskId":"` + madeTask + `"}}`, true, ""},
	{"later turn 0.3", "message/send", `{"message":{"messageId":"m","taskId":"` + madeTask + `"}}`, true, ""},
	{"reference", "SendMessage", `{"message":{"messageId":"m","referenceTaskIds":["x","` + otherTask + `","` + madeTask + `"]}}`, true, ""},
	{"turn and reference", "SendMessage", `{"message":{"messageId":"m","taskId":"` + madeTask + `","referenceTaskIds":["` + madeTask + `"]}}`, true, ""},
	{"push create", "CreateTaskPushNotificationConfig", `{"taskId":"` + madeTask + `","url":"http://h.example.com/"}`, true, ""},
	{"push create 0.3", "tasks/pushNotificationConfig/set", `{"taskId":"` + madeTask + `","pushNotificationConfig":{"url":"http://h.example.com/"}}`, true, ""},
	{"list", "ListTasks", `{}`, false, ""},
	{"another task", "GetTask", `{"id":"` + otherTask + `"}`, false, ""},
	{"same conversation", "SendMessage", `{"message":{"messageId":"m","contextId":"c"}}`, false, ""},
	{"REST get", "GET", "/tasks/" + madeTask, true, "GET /tasks/{id}"},
	{"REST cancel", "POST", "/v1/tasks/" + madeTask + ":cancel {}", true, "POST /tasks/{id}:cancel"},
	{"REST subscribe", "POST", "/x/tasks/" + madeTask + ":subscribe", true, "POST /tasks/{id}:subscribe"},
	{"REST push create", "POST", "/tasks/" + madeTask + `/pushNotificationConfigs {"url":"http://h.example.com/"}`, true, "POST /tasks/{id}/pushNotificationConfigs"},
	{"REST push get", "GET", "/tasks/" + madeTask + "/pushNotificationConfigs/1", true, "GET /tasks/{id}/pushNotificationConfigs/{id}"},
	{"REST later turn", "POST", `/message:send {"message":{"messageId":"m","taskId":"` + madeTask + `"}}`, true, "POST /message:send"},
}

// A request about a task stays in the trace of its caller, and links to the span
// that the task began with, whichever binding made it: at the agent and at its
// caller.
func TestTaskLinks(t *testing.T) {
	makers := []struct{ name, method, rest string }{
		{"unary", "SendMessage", `{"message":{"messageId":"m"}}`},
		{"stream", "SendStreamingMessage", `{"message":{"messageId":"m"}}`},
		{"REST", "POST", `/message:send {"message":{"messageId":"m"}}`},
	}
	for _, way := range pathways[:3] {
		for _, made := range makers {
			t.Run(way.name+"/"+made.name, func(t *testing.T) {
				id := madeTask
				to := taskHost(t, &id)
				exporter, tune := traces()
				s := newSidecar(t, "agent.example.com", "http://"+to, tune)
				began := s.spanOf(t, exporter, way, a2aRequest(t, to, made.method, made.rest))
				if len(began.Links) != 0 {
					t.Errorf("links of the span that the task began with = %v, want none", began.Links)
				}
				for _, row := range later {
					t.Run(row.name, func(t *testing.T) {
						id = madeTask
						if !row.links {
							id = otherTask // or the answer would be about the same
						}
						span := s.spanOf(t, exporter, way, a2aRequest(t, to, row.method, row.rest))
						if row.span == "" {
							row.span = row.method
						}
						if span.Name != row.span || span.Parent.TraceID().String() != laterParent[3:35] || span.Parent.SpanID().String() != laterParent[36:52] {
							t.Errorf("span = %s with parent %s-%s, want %s with the caller's", span.Name, span.Parent.TraceID(), span.Parent.SpanID(), row.span)
						}
						want := 0
						if row.links {
							want = 1
						}
						if len(span.Links) != want || want == 1 && (span.Links[0].SpanContext.TraceID() != began.SpanContext.TraceID() || span.Links[0].SpanContext.SpanID() != began.SpanContext.SpanID()) {
							t.Errorf("links = %v, want %d, of %v", span.Links, want, began.SpanContext)
						}
					})
				}
			})
		}
	}
}

// spanOf sends r and returns the one span that comes of it.
func (s *sidecar) spanOf(t testing.TB, exporter *tracetest.InMemoryExporter, way pathway, r *http.Request) tracetest.SpanStub {
	t.Helper()
	exporter.Reset()
	resp, err := way.send(t, s, r)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	var spans tracetest.SpanStubs
	eventually(t, "a span", func() bool { spans = exporter.GetSpans(); return len(spans) > 0 })
	if len(spans) != 1 {
		t.Fatalf("spans = %v, want one", spans)
	}
	return spans[0]
}

// So it is over gRPC, of either generation.
func TestTaskLinksOverRPC(t *testing.T) {
	for _, caller := range grpcCallers {
		for _, dir := range []direction{ingress, egress} {
			t.Run(caller.name+"/"+string(dir), func(t *testing.T) {
				exporter, tune := traces()
				a, s := newGRPCSidecar(t, "agent.example.com", tune)
				conn := dialGRPC(t, s.ingress.URL)
				if dir == egress {
					conn = dialGRPC(t, a.addr, s.through(t))
				}
				span := func(call func(ctx context.Context) error) tracetest.SpanStub {
					exporter.Reset()
					if err := call(metadata.AppendToOutgoingContext(t.Context(), "traceparent", laterParent)); err != nil {
						t.Fatal(err)
					}
					var spans tracetest.SpanStubs
					eventually(t, "a span", func() bool { spans = exporter.GetSpans(); return len(spans) > 0 })
					return spans[0]
				}
				var task string
				began := span(func(ctx context.Context) (err error) {
					task, err = caller.send(ctx, conn, "", "x", nil)
					return err
				})
				for name, call := range map[string]func(context.Context) error{
					"later turn": func(ctx context.Context) error { _, err := caller.send(ctx, conn, task, "x", nil); return err },
					"get":        func(ctx context.Context) error { return caller.get(ctx, conn, task) },
					"cancel":     func(ctx context.Context) error { return caller.cancel(ctx, conn, task) },
					"subscribe":  func(ctx context.Context) error { return caller.subscribe(ctx, conn, task) },
				} {
					got := span(call)
					if len(got.Links) != 1 || got.Links[0].SpanContext.SpanID() != began.SpanContext.SpanID() || got.Parent.SpanID().String() != laterParent[36:52] {
						t.Errorf("%s: links %v, parent %v, want one to %v and the caller's", name, got.Links, got.Parent.SpanID(), began.SpanContext.SpanID())
					}
				}
			})
		}
	}
}

// What an agent's proxy has recorded of a task serves after a restart, too.
func TestTaskLinksAfterRestart(t *testing.T) {
	id := madeTask
	to := taskHost(t, &id)
	store := ancestry.NewMemory()
	exporter, tune := traces()
	s := newSidecarOn(t, store, "agent.example.com", "http://"+to, tune)
	began := s.spanOf(t, exporter, pathways[0], a2aRequest(t, to, "SendMessage", `{"message":{"messageId":"m"}}`))
	eventually(t, "the link to be stored", func() bool {
		_, err := store.Lookup(t.Context(), madeTask)
		return err == nil
	})
	s = newSidecarOn(t, store, "agent.example.com", "http://"+to, tune)
	span := s.spanOf(t, exporter, pathways[0], a2aRequest(t, to, "GetTask", `{"id":"`+madeTask+`"}`))
	if len(span.Links) != 1 || span.Links[0].SpanContext.SpanID() != began.SpanContext.SpanID() {
		t.Errorf("links = %v, want the span that the task began with, %v", span.Links, began.SpanContext)
	}
	if live := s.Live(); len(live) != 0 {
		t.Errorf("live runs = %v, want none: to ask is not to go on", live)
	}
}

// An id that others may use by chance names no task; one of another agent is
// another task.
func TestTaskLinksAbstain(t *testing.T) {
	id := "task-1"
	to, other := taskHost(t, &id), taskHost(t, &id)
	exporter, tune := traces()
	s := newSidecar(t, "agent.example.com", "http://"+to, tune)
	for _, way := range pathways[:2] {
		s.spanOf(t, exporter, way, a2aRequest(t, to, "SendMessage", `{"message":{"messageId":"m"}}`))
		if span := s.spanOf(t, exporter, way, a2aRequest(t, to, "GetTask", `{"id":"task-1"}`)); len(span.Links) != 0 {
			t.Errorf("%s: links to a task of a short id = %v, want none", way.name, span.Links)
		}
	}
	id = madeTask
	s.spanOf(t, exporter, pathways[1], a2aRequest(t, to, "SendMessage", `{"message":{"messageId":"m"}}`))
	if span := s.spanOf(t, exporter, pathways[1], a2aRequest(t, other, "GetTask", `{"id":"`+madeTask+`"}`)); len(span.Links) != 0 {
		t.Errorf("links to a task of another agent = %v, want none", span.Links)
	}
}

// Beyond the bound the task that was not asked about for longest goes, and that
// is counted.
func TestTasksAreBounded(t *testing.T) {
	id := madeTask
	to := taskHost(t, &id)
	exporter, tune := traces()
	s := newSidecar(t, "agent.example.com", "http://"+to, tune, func(o *Options, _ *Policy) { o.MaxTasks = 1 })
	for _, id = range []string{madeTask, otherTask} {
		s.spanOf(t, exporter, pathways[1], a2aRequest(t, to, "SendMessage", `{"message":{"messageId":"m"}}`))
	}
	for task, want := range map[string]int{madeTask: 0, otherTask: 1} {
		if span := s.spanOf(t, exporter, pathways[1], a2aRequest(t, to, "GetTask", `{"id":"`+task+`"}`)); len(span.Links) != want {
			t.Errorf("links to %s = %v, want %d", task, span.Links, want)
		}
	}
	s.wantSeries(t, hit(limitTasks), 1)
}

func TestTasksForget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, second := spanContext{TraceID: wire.TraceID{1}, SpanID: wire.SpanID{1}}, spanContext{TraceID: wire.TraceID{2}, SpanID: wire.SpanID{2}}
		held := newTasks(2, time.Hour)
		held.add("a", first)
		held.add("a", second) // the task of an idempotent answer began before
		time.Sleep(time.Hour - time.Nanosecond)
		if c, ok := held.find("a"); !ok || c != first {
			t.Errorf("just before the ttl: find = %v, %v, want %v", c, ok, first)
		}
		time.Sleep(time.Hour)
		if c, ok := held.find("a"); ok {
			t.Errorf("at the ttl after its last use: find = %v", c)
		}
		held.add("b", first)
		time.Sleep(time.Minute)
		held.add("c", first)
		held.find("b")
		if held.add("d", first) {
			t.Error("add to what is full = true")
		}
		if _, ok := held.find("c"); ok {
			t.Error("the one unused for longest was kept")
		}
		time.Sleep(time.Hour)
		if !held.add("e", first) || held.order.Len() != 1 || len(held.byID) != 1 {
			t.Errorf("%d are held past their ttl, want one", held.order.Len())
		}
	})
}

func TestTaskRoute(t *testing.T) {
	for _, row := range []struct {
		method, path string
		a2a          bool
		id, route    string
	}{
		{"GET", "/tasks/t1", true, "t1", "GET /tasks/{id}"},
		{"GET", "/tasks/t1", false, "", ""},
		{"GET", "/v1/tasks/a%2Fb", true, "a/b", "GET /tasks/{id}"},
		{"GET", "/tasks/t1:subscribe", false, "t1", "GET /tasks/{id}:subscribe"},
		{"POST", "/t/tasks/t1:subscribe", false, "t1", "POST /tasks/{id}:subscribe"},
		{"POST", "/tasks/a:b:cancel", false, "a:b", "POST /tasks/{id}:cancel"},
		{"GET", "/tasks/t1:cancel", true, "", ""},
		{"POST", "/tasks/t1%3Acancel", true, "", ""},
		{"POST", "/tasks/t1", true, "", ""},
		{"DELETE", "/tasks/t1", true, "", ""},
		{"GET", "/tasks", true, "", ""},
		{"GET", "/tasks/", true, "", ""},
		{"GET", "/tasks/%zz", true, "", ""},
		{"POST", "/tasks/t1/pushNotificationConfigs", false, "t1", routeConfigure},
		{"GET", "/tasks/t1/pushNotificationConfigs", false, "t1", "GET /tasks/{id}/pushNotificationConfigs"},
		{"GET", "/tasks/t1/pushNotificationConfigs/c", false, "t1", "GET /tasks/{id}/pushNotificationConfigs/{id}"},
		{"DELETE", "/tasks/t1/pushNotificationConfigs/c", false, "t1", "DELETE /tasks/{id}/pushNotificationConfigs/{id}"},
		{"PUT", "/tasks/t1/pushNotificationConfigs", true, "", ""},
		{"GET", "/tasks/t1/comments", true, "", ""},
		{"POST", "/message:send", true, "", ""},
	} {
		if id, route := taskRoute(row.method, row.path, row.a2a); id != row.id || route != row.route {
			t.Errorf("taskRoute(%s, %s, %v) = %q, %q, want %q, %q", row.method, row.path, row.a2a, id, route, row.id, row.route)
		}
	}
}
