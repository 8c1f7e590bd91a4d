package proxy

import (
	"container/list"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/wopproxy/wopproxy/proxy/internal/wire"
)

// A task of A2A outlives the request that made it. Whoever reads, follows,
// cancels or continues it later does so in a trace of its own, and the span of
// that request links to the span that the task began with. It never becomes its
// child: the two may be of different runs, and days apart.

// linkTasks makes the spans that the request's tasks began with links of ours.
// It is for exchanges whose context has been chosen and whose span has not begun.
func (x *exchange) linkTasks(r *http.Request) {
	if x.p.tracer == nil || x.msg.Protocol != wire.A2A || x.received.Valid() && x.received.Flags&wire.FlagSampled == 0 {
		return
	}
	if x.dir == egress {
		x.scope = authority(r.URL) + "\x00"
	}
	x.linkTask(r, x.msg.TaskID)
	for _, id := range x.msg.References() {
		if id != x.msg.TaskID {
			x.linkTask(r, id)
		}
	}
}

func (x *exchange) linkTask(r *http.Request, id string) {
	if len(id) < unlikely {
		return // a task of the same name may have been before
	}
	if x.dir == egress {
		if c, ok := x.p.tasks.find(x.scope + id); ok {
			x.strayed(c)
		}
		return
	}
	// The host's own tasks are runs, which are known for longer.
	if run := x.runByTask(r, id); run != nil {
		x.strayed(spanContext{TraceID: wire.TraceID(run.Trace), SpanID: wire.SpanID(run.Span), Flags: run.Flags})
	}
}

// noteTask remembers that this exchange has made a task on another host.
func (x *exchange) noteTask(id string) {
	if x.scope == "" || x.msg.TaskID != "" || !x.sends() || id == "" {
		return // it goes on with a task, or asks about one
	}
	if len(id) >= unlikely && !x.p.tasks.add(x.scope+id, x.context) {
		x.p.metrics.limit(limitTasks)
	}
	x.scope = "" // a stream may speak of other tasks later
}

// tasks remembers the spans that tasks on other hosts began with. Its methods may
// be called concurrently.
type tasks struct {
	limit int
	ttl   time.Duration

	mu    sync.Mutex
	byID  map[string]*list.Element // by authority and id
	order *list.List               // of *task, longest unused first
}

type task struct {
	key  string
	made spanContext // without state and baggage
	used time.Time
}

func newTasks(limit int, ttl time.Duration) *tasks {
	return &tasks{limit: limit, ttl: ttl, byID: map[string]*list.Element{}, order: list.New()}
}

// add remembers where a task began, unless it is known to have begun elsewhere. It
// reports false if another had to make room.
func (t *tasks) add(key string, made spanContext) bool {
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	for n := t.order.Front(); n != nil && now.Sub(n.Value.(*task).used) >= t.ttl; n = t.order.Front() {
		t.forgetLocked(n)
	}
	if t.byID[key] != nil {
		return true
	}
	full := t.order.Len() >= t.limit
	if full {
		t.forgetLocked(t.order.Front())
	}
	made.State, made.Baggage = "", ""
	t.byID[key] = t.order.PushBack(&task{key, made, now})
	return !full
}

// find returns where a task began.
func (t *tasks) find(key string) (spanContext, bool) {
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	n := t.byID[key]
	if n == nil {
		return spanContext{}, false
	}
	found := n.Value.(*task)
	if now.Sub(found.used) >= t.ttl {
		t.forgetLocked(n)
		return spanContext{}, false
	}
	found.used = now
	t.order.MoveToBack(n)
	return found.made, true
}

func (t *tasks) forgetLocked(n *list.Element) {
	delete(t.byID, n.Value.(*task).key)
	t.order.Remove(n)
}

// routeConfigure is the one route of a task whose request has a message: it asks
// for webhooks.
const routeConfigure = "POST /tasks/{id}/pushNotificationConfigs"

// taskRoute returns the task that a request of A2A's REST binding is about, and
// the operation without it: "POST /tasks/{id}:cancel". For other requests both
// are empty. GET …/tasks/{id} alone may be anybody's, so it counts only if the
// headers say that this is A2A.
func taskRoute(method, path string, isA2A bool) (id, operation string) {
	const configs = "/pushNotificationConfigs"
	i := strings.LastIndex(path, "/tasks/")
	if i < 0 {
		return "", ""
	}
	raw, below, nested := strings.Cut(path[i+len("/tasks/"):], "/")
	switch below = "/" + below; {
	case nested && below == configs && (method == http.MethodPost || method == http.MethodGet):
		operation = method + " /tasks/{id}" + configs // routeConfigure, for one
	case nested && strings.HasPrefix(below, configs+"/") && (method == http.MethodGet || method == http.MethodDelete):
		operation = method + " /tasks/{id}" + configs + "/{id}"
	case nested:
		return "", ""
	default:
		verb := ""
		if j := strings.LastIndexByte(raw, ':'); j >= 0 { // %3A is another path
			raw, verb = raw[:j], raw[j:]
		}
		switch {
		case verb == ":cancel" && method == http.MethodPost,
			verb == ":subscribe" && (method == http.MethodPost || method == http.MethodGet),
			verb == "" && method == http.MethodGet && isA2A:
			operation = method + " /tasks/{id}" + verb
		default:
			return "", ""
		}
	}
	id, err := url.PathUnescape(raw)
	if err != nil || id == "" {
		return "", ""
	}
	return id, operation
}
