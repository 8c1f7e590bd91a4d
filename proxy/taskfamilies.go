package proxy

import (
	"net/http"
	"sync"

	"github.com/wopproxy/wopproxy/proxy/internal/attribution"
	"github.com/wopproxy/wopproxy/proxy/internal/wire"
)

// MCP and A2A both have tasks, and some of their methods have the same names. An
// A2A task is the run itself, under the id of the run. An MCP task is what a call
// goes on as after its answer; it is asked for by requests that begin nothing.

// readsTasks are the requests that ask only how a task stands: they leave no
// work behind.
var readsTasks = map[string]bool{
	"tasks/get": true, "tasks/list": true, "tasks/result": true, "tasks/resubscribe": true,
	"GetTask": true, "ListTasks": true, "SubscribeToTask": true,
}

// inputTo returns the live run of the MCP task that a request to the host has
// input for: the task goes on with it, and the run that it is with the task.
func (x *exchange) inputTo() *attribution.Run {
	if x.msg.Protocol != wire.MCP || x.msg.Kind != wire.Request || x.msg.Method != "tasks/update" {
		return nil
	}
	return x.liveTask(x.msg.TaskID)
}

// liveTask returns the live run of a task of this host, or nil.
func (x *exchange) liveTask(id string) *attribution.Run {
	run, err := x.taskRun(wire.Answer{TaskID: id})
	if err != nil {
		return nil
	}
	return x.p.runs.Known(run)
}

// endWithResult ends the run of an MCP task whose result was asked for and has
// come: the host gives it out when the task has ended. An error may be the task's
// own, or may say that there is none.
func (x *exchange) endWithResult(a wire.Answer) {
	if x.dir != ingress || x.msg.Protocol != wire.MCP || x.msg.Method != "tasks/result" || a.ErrorCode != "" {
		return
	}
	if run := x.liveTask(x.msg.TaskID); run != nil {
		x.p.runs.End(run)
	}
}

// kindPeerTask is a task of an MCP server that a run has called.
const kindPeerTask = "mcp-task"

// peerTask names a task of the server at which a call is directed: each server
// has ids of its own.
func peerTask(server, id string) attribution.Key {
	if len(id) < unlikely {
		return attribution.Key{}
	}
	return attribution.Key{Kind: kindPeerTask, ID: server + "\x00" + id}
}

// maxEndpoints bounds the endpoints whose protocol is remembered.
const maxEndpoints = 10_000

// endpoint is where JSON-RPC is spoken.
type endpoint struct {
	dir        direction
	host, path string // host only on egress
}

// endpoints remember what was spoken where, for the few messages that do not
// tell by themselves.
type endpoints struct {
	mu     sync.RWMutex
	spoken map[endpoint]wire.Protocol // None: both
}

// recall decides the protocol of a message that both have, by what the endpoint
// has spoken before, and remembers what others speak.
func (x *exchange) recall(r *http.Request) {
	m := &x.msg
	tells := m.Protocol != wire.None && m.Kind == wire.Request && !x.head.hints.REST && x.head.hints.GRPC == ""
	if !tells && !m.Shared {
		return
	}
	at := endpoint{dir: x.dir, path: r.URL.EscapedPath()}
	if x.dir == egress {
		at.host = r.URL.Host
	}
	known, seen := x.p.spoken.at(at)
	switch {
	case m.Shared:
		if known != wire.None {
			hints := x.head.hints
			hints.Protocol = known
			x.msg = wire.Read(x.body, hints)
		}
	case !seen || known != m.Protocol && known != wire.None:
		if !x.p.spoken.note(at, m.Protocol) {
			x.p.metrics.limit(limitEndpoints)
		}
	}
}

func (e *endpoints) at(p endpoint) (wire.Protocol, bool) {
	e.mu.RLock()
	defer e.mu.RUnlock()
	protocol, ok := e.spoken[p]
	return protocol, ok
}

// note reports false when there is no place.
func (e *endpoints) note(p endpoint, protocol wire.Protocol) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	before, ok := e.spoken[p]
	switch {
	case ok && before != protocol:
		protocol = wire.None
	case !ok && len(e.spoken) >= maxEndpoints:
		return false
	case e.spoken == nil:
		e.spoken = map[endpoint]wire.Protocol{}
	}
	e.spoken[p] = protocol
	return true
}
