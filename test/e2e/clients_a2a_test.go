package e2e

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2aclient"
	"github.com/a2aproject/a2a-go/v2/a2asrv"
	"github.com/google/go-cmp/cmp"
)

// stepByStep is what a message says to an agent that takes three steps for it,
// each with an event, and each when it is told to go on.
const stepByStep = "step by step"

// stepped are the events of such a task.
var stepped = []string{"task", "TASK_STATE_WORKING", "artifact", "TASK_STATE_COMPLETED"}

// steppingPeer is an agent that works step by step.
type steppingPeer struct {
	*peer
	taken func(i int) error // waits for step i
	goOn  func()
}

// newGoStepper is an agent of the Go SDK.
func newGoStepper(t *testing.T) steppingPeer {
	t.Helper()
	p := newPeer(t, "callee.example.com")
	taken, goOn := make(chan struct{}, len(stepped)), make(chan struct{}, len(stepped))
	p.does(stepByStep, func(_ context.Context, x *a2asrv.ExecutorContext, emit func(a2a.Event) bool) error {
		for _, e := range []a2a.Event{
			a2a.NewSubmittedTask(x, x.Message),
			a2a.NewStatusUpdateEvent(x, a2a.TaskStateWorking, nil),
			a2a.NewArtifactEvent(x, a2a.NewTextPart("a part")),
		} {
			emit(e)
			taken <- struct{}{}
			if err := await(goOn, "the agent is told to go on"); err != nil {
				return err
			}
		}
		emit(a2a.NewStatusUpdateEvent(x, a2a.TaskStateCompleted, nil))
		return nil
	})
	return steppingPeer{p, func(int) error { return await(taken, "the agent has taken a step") }, func() { goOn <- struct{}{} }}
}

// newNodeStepper is an agent of the JavaScript SDK. Its card gives its own
// address, and callers come by the ingress all the same.
func newNodeStepper(t *testing.T) steppingPeer {
	t.Helper()
	p := &peer{node: node(t).spawn(t, nil, "a2a-agent.mjs")}
	listening := p.node.awaitLog(t, "listening")
	p.host = fmt.Sprintf("http://127.0.0.1:%v", listening["port"])
	p.sidecar = start(t, "callee.example.com", p.host, settings{"ingress.grpcUpstream": fmt.Sprintf("http://127.0.0.1:%v", listening["grpcPort"])})
	return steppingPeer{p, func(i int) error { p.node.awaitLogAfter(t, i, "step"); return nil }, func() { get(t, p.host+"/go") }}
}

func nodeTurns(p *process) (turns []turn) {
	logged, _ := p.stderr.find("turn")
	for _, m := range logged {
		n := turn{
			text: field(m, "text"), task: field(m, "task"), run: field(m, "run"),
			traceparent: field(m, "traceparent"), state: field(m, "state"), hasMeta: m["metadata"] != nil,
		}
		var openwop map[string]any
		openwop, n.hasOpenWOP = m["openwop"].(map[string]any)
		n.inParent, n.inState = field(openwop, "traceparent"), field(openwop, "tracestate")
		turns = append(turns, n)
	}
	return turns
}

func nodeA2ARequests(p *process) (wire []a2aRequest) {
	logged, _ := p.stderr.find("request")
	for _, m := range logged {
		r := a2aRequest{method: field(m, "method"), uri: field(m, "uri"), header: http.Header{}}
		header, _ := m["header"].(map[string]any)
		for name := range header {
			r.header.Set(name, field(header, name))
		}
		wire = append(wire, r)
	}
	return wire
}

// a2aEvent is an event as a client has received it, or the only answer.
type a2aEvent struct{ kind, task string }

// a2aSender sends one message by way of a's egress, and returns what waits for
// each event of the answer, and what waits for the end.
type a2aSender func(ctx context.Context, t *testing.T, a *agent, p *peer, b binding, stream bool) (next func() (a2aEvent, error), end func() error, err error)

// sendGo is a client of the Go SDK.
func sendGo(ctx context.Context, t *testing.T, a *agent, p *peer, b binding, stream bool) (func() (a2aEvent, error), func() error, error) {
	c, err := p.dial(ctx, a.client(t), b)
	if err != nil {
		return nil, nil, err
	}
	events := make(chan a2aEvent, len(stepped))
	var failed error
	go func() { // ends with the call
		defer close(events)
		failed = sendAndTell(ctx, c, stream, events)
	}()
	next := func() (a2aEvent, error) {
		select {
		case e, ok := <-events:
			if !ok {
				return e, fmt.Errorf("the answer has ended: %w", failed)
			}
			return e, nil
		case <-time.After(patience):
			return a2aEvent{}, fmt.Errorf("no event within %v", patience)
		}
	}
	end := func() error {
		for e := range events {
			return fmt.Errorf("one event too many: %+v", e)
		}
		return failed
	}
	return next, end, nil
}

func sendAndTell(ctx context.Context, c *a2aclient.Client, stream bool, events chan<- a2aEvent) error {
	if !stream {
		task, err := ask(ctx, c, say(stepByStep))
		if err == nil {
			events <- a2aEvent{string(task.Status.State), string(task.ID)}
		}
		return err
	}
	for e, err := range c.SendStreamingMessage(ctx, &a2a.SendMessageRequest{Message: say(stepByStep)}) {
		if err != nil {
			return err
		}
		events <- a2aEvent{describe(e), string(e.TaskInfo().TaskID)}
	}
	return nil
}

// sendNode is a client of the JavaScript SDK.
func sendNode(_ context.Context, t *testing.T, a *agent, p *peer, b binding, stream bool) (func() (a2aEvent, error), func() error, error) {
	n := node(t)
	if !n.readsProxyEnv {
		missing(t, "no Node that reads NODE_USE_ENV_PROXY", "install Node 22.21 or later, or "+installNode+", which brings one for Linux")
	}
	how := "send"
	if stream {
		how = "stream"
	}
	c := n.spawn(t, nodeProxyEnv(a.sidecar), "a2a-client.mjs", p.ingress, string(b.kind), string(b.version), how, stepByStep)
	received := 0
	next := func() (a2aEvent, error) {
		e := c.awaitLogAfter(t, received, "event")
		received++
		return a2aEvent{field(e, "kind"), field(e, "task")}, nil
	}
	return next, func() error { return c.success(t) }, nil
}

// TestA2AJavaScript is TestA2A with the JavaScript SDK on either side, and on
// both, in every binding.
func TestA2AJavaScript(t *testing.T) {
	node(t)
	senders := map[string]a2aSender{"Go": sendGo, "JavaScript": sendNode}
	peers := map[string]func(*testing.T) steppingPeer{"Go": newGoStepper, "JavaScript": newNodeStepper}
	for _, tt := range []struct{ client, agent string }{{"Go", "JavaScript"}, {"JavaScript", "Go"}, {"JavaScript", "JavaScript"}} {
		for _, b := range bindings {
			for _, stream := range []bool{false, true} {
				name, operation := "unary", b.send
				if stream {
					name, operation = "stream", b.stream
				}
				if tt.client == "Go" && b.name == "REST 0.3" && !stream {
					continue // the agent answers 201, which this client takes for an error
				}
				t.Run(fmt.Sprintf("%s to %s/%s/%s", tt.client, tt.agent, b.name, name), func(t *testing.T) {
					testStepByStep(t, senders[tt.client], peers[tt.agent](t), b, stream, operation)
				})
			}
		}
	}
}

// testStepByStep lets a run send a message, and looks at the task's run after
// each step of the agent.
func testStepByStep(t *testing.T, send a2aSender, p steppingPeer, b binding, stream bool, operation string) {
	a := newAgent(t, "caller.example.com")
	var trace, task string
	run := a.chat(t, func(ctx context.Context, in *http.Request) error {
		trace = traceOf(in.Header.Get("Traceparent"))
		next, end, err := send(ctx, t, a, p.peer, b, stream)
		if err != nil {
			return err
		}
		var got []string
		event := func() error {
			e, err := next()
			got, task = append(got, e.kind), e.task
			return err
		}
		for i := range len(stepped) - 1 {
			if err := p.taken(i); err != nil {
				return err
			}
			if stream {
				if err := event(); err != nil {
					return err
				}
				// No waiting: who has the event can ask.
				if l, ok := p.link(t, task); !ok || l.parent().RunID != in.Header.Get("Run-Id") {
					return fmt.Errorf("link of task %s as soon as its id is out = %+v, %v, want the parent %s", task, l, ok, in.Header.Get("Run-Id"))
				}
			}
			live := p.live(t)
			if len(live) != 1 || live[0].Parent == nil || live[0].Parent.RunID != in.Header.Get("Run-Id") || live[0].TraceID != trace {
				return fmt.Errorf("live runs after step %d = %+v, want one of %s", i, live, in.Header.Get("Run-Id"))
			}
			p.goOn()
		}
		if err := event(); err != nil {
			return err
		}
		if err := end(); err != nil {
			return err
		}
		want := stepped
		if !stream {
			want = stepped[len(stepped)-1:]
		}
		if diff := cmp.Diff(want, got); diff != "" {
			return fmt.Errorf("events (-want +got):\n%s", diff)
		}
		return nil
	})
	if t.Failed() {
		return
	}
	checkTask(t, a, p.peer, run, trace, task, operation)
	calls := 0.0
	_, wire := p.seen()
	for _, r := range wire {
		version := r.header.Get("A2A-Version")
		if version != "" { // some ask for the card with it, too
			calls++
		}
		if !strings.HasPrefix(r.uri, "/.well-known/") && version != string(b.version) {
			t.Errorf("%s: A2A-Version = %q, want %q", r.uri, version, b.version)
		}
	}
	a.sawCalls(t, calls, "egress", "a2a")
	p.sawCalls(t, calls, "ingress", "a2a")
	eventually(t, "no run is live any more", func() bool { return len(a.live(t)) == 0 && len(p.live(t)) == 0 })
}
