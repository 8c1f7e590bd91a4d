package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"testing"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2asrv"
	"github.com/google/go-cmp/cmp"
)

// threeHosts are an agent that asks an agent that calls a tool, each of an
// official SDK, with its own wopproxy and its own store.
type threeHosts struct {
	front, planner *peer
	tools          *toolServer
	forward        bool          // hosts send on the trace they are called in, as with OpenTelemetry
	named          chan struct{} // takes a token when a client knows its task
}

func newThreeHosts(t testing.TB) *threeHosts {
	t.Helper()
	return &threeHosts{
		front: newPeer(t, "front.example.com"), planner: newPeer(t, "planner.example.com"),
		tools: newToolServer(t, "tools.example.com", stateful), named: make(chan struct{}, 1),
	}
}

func (h *threeHosts) sidecars() []*sidecar {
	return []*sidecar{h.front.sidecar, h.planner.sidecar, h.tools.sidecar}
}

// client is what an agent calls out with while it works on a message.
func (h *threeHosts) client(t testing.TB, p *peer, x *a2asrv.ExecutorContext) *http.Client {
	c := p.client(t)
	if !h.forward {
		return c
	}
	in := &http.Request{Header: http.Header{"Traceparent": {param(x, "traceparent")}, "Tracestate": {param(x, "tracestate")}}}
	c.Transport = forwards(in, c.Transport)
	return c
}

// chain is one question on its way through all hosts. started, if any, has to
// return before the first agent asks the second.
func (h *threeHosts) chain(t testing.TB, question string, started func() error) error {
	h.planner.does(question, func(ctx context.Context, x *a2asrv.ExecutorContext, emit func(a2a.Event) bool) error {
		emit(a2a.NewSubmittedTask(x, x.Message))
		c := h.client(t, h.planner, x)
		defer c.CloseIdleConnections()
		cs, err := h.tools.connect(ctx, c, h.tools.endpoint())
		if err != nil {
			return err
		}
		args := map[string]any{"question": question}
		err = callTool(ctx, cs, "echo", args, asked(question), false)
		if err = errors.Join(err, cs.Close()); err != nil {
			return err
		}
		emit(a2a.NewStatusUpdateEvent(x, a2a.TaskStateCompleted, nil))
		return nil
	})
	h.front.does(question, func(ctx context.Context, x *a2asrv.ExecutorContext, emit func(a2a.Event) bool) error {
		emit(a2a.NewSubmittedTask(x, x.Message))
		if started != nil {
			if err := started(); err != nil {
				return err
			}
		}
		hc := h.client(t, h.front, x)
		defer hc.CloseIdleConnections()
		c, err := h.planner.dial(ctx, hc, bindings[0])
		if err != nil {
			return err
		}
		task, err := ask(ctx, c, say(question))
		if err == nil && task.Status.State != a2a.TaskStateCompleted {
			err = fmt.Errorf("state of %s on the second host = %+v", task.ID, task.Status)
		}
		if err != nil {
			return err
		}
		emit(a2a.NewStatusUpdateEvent(x, a2a.TaskStateCompleted, nil))
		return nil
	})
	return h.begin(t, question, started != nil)
}

// begin sends a question to the first host, from outside. A stream names the
// task while its agent works; a unary answer names it when all is done.
func (h *threeHosts) begin(t testing.TB, question string, stream bool) error {
	c, err := h.front.dial(t.Context(), direct, bindings[1])
	if err != nil {
		return err
	}
	var last a2a.TaskStatus
	if stream {
		for e, err := range c.SendStreamingMessage(t.Context(), &a2a.SendMessageRequest{Message: say(question)}) {
			if err != nil {
				return err
			}
			switch e := e.(type) {
			case *a2a.Task:
				h.named <- struct{}{}
			case *a2a.TaskStatusUpdateEvent:
				last = e.Status
			}
		}
	} else {
		task, err := ask(t.Context(), c, say(question))
		if err != nil {
			return err
		}
		last = task.Status
	}
	if last.State != a2a.TaskStateCompleted {
		return fmt.Errorf("status on the first host = %s %+v, want %s", last.State, last.Message, a2a.TaskStateCompleted)
	}
	return nil
}

// asked is the arguments of the tool call that a question comes to.
func asked(question string) string {
	b, _ := json.Marshal(map[string]string{"question": question}) // always marshals
	return string(b)
}

// runsOf returns the ids that a question's runs had on the three hosts, the
// oldest first, and their trace: what the hosts themselves were told.
func (h *threeHosts) runsOf(t testing.TB, question string) (runs [3]string, trace string) {
	t.Helper()
	traces := map[string]bool{}
	for i, p := range []*peer{h.front, h.planner} {
		turns, _ := p.seen()
		for _, n := range turns {
			if n.text == question {
				runs[i], trace = n.run, traceOf(n.traceparent)
				traces[trace] = true
			}
		}
	}
	calls, _ := h.tools.seen()
	for _, c := range calls {
		if c.args == asked(question) {
			runs[2] = c.run
			traces[traceOf(c.headerParent)] = true
		}
	}
	if runs[0] == "" || runs[1] == "" || runs[2] == "" || len(traces) != 1 {
		t.Errorf("runs of %s = %q in traces %v, want three runs in one trace", question, runs, traces)
	}
	return runs, trace
}

// check walks from the newest run of a question to its first, by the program,
// and compares what is drawn, what is told as JSON and what each host answers.
func (h *threeHosts) check(t testing.TB, runs [3]string) {
	t.Helper()
	tree := fmt.Sprintf("%s  front.example.com\n└─ a2a-message → %s  planner.example.com\n   └─ mcp-tool-call → %s  tools.example.com\n", runs[0], runs[1], runs[2])
	if diff := cmp.Diff(tree, h.walk(t, runs[2])); diff != "" {
		t.Errorf("tree of %s (-want +got):\n%s", runs[2], diff)
	}
	type step struct {
		RunID, HostID, Base, Cause string
		Confirmed                  bool
	}
	type walk struct {
		Hops []step
		Stop string
	}
	want := walk{Stop: "root", Hops: []step{
		{runs[2], "tools.example.com", h.tools.public, "", true},
		{runs[1], "planner.example.com", h.planner.public, "mcp-tool-call", true},
		{runs[0], "front.example.com", h.front.public, "a2a-message", true},
	}}
	if diff := cmp.Diff(want, decode[walk](t, []byte(h.walk(t, runs[2], "-json")))); diff != "" {
		t.Errorf("walk from %s (-want +got):\n%s", runs[2], diff)
	}
	causes := []string{"", "a2a-message", "mcp-tool-call"}
	for i, s := range h.sidecars() {
		want := ancestor{}
		if i > 0 {
			above := h.sidecars()[i-1]
			want = ancestor{RunID: runs[i-1], HostID: above.hostID, WellKnownURL: above.public + "/.well-known/openwop", Cause: causes[i]}
		}
		if got := s.parent(t, runs[i]); got != want {
			t.Errorf("%s: parent of %s = %+v, want %+v", s.hostID, runs[i], got, want)
		}
	}
}

// walk runs the program and returns what it prints.
func (h *threeHosts) walk(t testing.TB, run string, flags ...string) string {
	t.Helper()
	p := execute(t, append([]string{"ancestry", run, "-host", h.tools.public, "-allow", "127.0.0.1"}, flags...)...)
	if code := p.wait(t); code != 0 {
		t.Fatalf("wopproxy ancestry %s %q: exit code %d", run, flags, code)
	}
	return p.stdout.String()
}

// TestThreeHosts follows one run over two host boundaries, by hosts that hand on
// nothing, and again after every proxy was stopped and started.
func TestThreeHosts(t *testing.T) {
	h := newThreeHosts(t)
	if err := h.chain(t, "alone", nil); err != nil {
		t.Fatal(err)
	}
	before, trace := h.runsOf(t, "alone")
	h.check(t, before)
	for _, s := range h.sidecars() {
		eventually(t, "no run is live", func() bool { return len(s.live(t)) == 0 })
		flush(t, s)
	}
	for _, s := range h.sidecars() {
		s.serve(t, nil, s.file)
	}
	h.check(t, before)
	if err := h.chain(t, "restarted", nil); err != nil {
		t.Fatal(err)
	}
	after, other := h.runsOf(t, "restarted")
	if other == trace {
		t.Errorf("trace of the second chain = %s, want another than the first one's", other)
	}
	h.check(t, after)
	h.check(t, before)
}

// TestThreeHostsOwnIDs pins that a run which its host has named in time goes by
// that name on the other hosts too.
func TestThreeHostsOwnIDs(t *testing.T) {
	h := newThreeHosts(t)
	if err := h.chain(t, "named", func() error { return await(h.named, "the client knows the task") }); err != nil {
		t.Fatal(err)
	}
	runs, _ := h.runsOf(t, "named")
	runs[0] = h.front.lastTurn(t).task
	h.check(t, runs)
}

// TestThreeHostsTogether sends many chains at once through hosts that forward
// trace headers: each link is asserted, and each is right.
func TestThreeHostsTogether(t *testing.T) {
	const chains = 16
	h := newThreeHosts(t)
	h.forward = true
	var together sync.WaitGroup
	for i := range chains {
		together.Go(func() {
			if err := h.chain(t, fmt.Sprintf("question %d", i), nil); err != nil {
				t.Errorf("question %d: %v", i, err)
			}
		})
	}
	together.Wait()
	if t.Failed() {
		return
	}
	traces := map[string]bool{}
	for i := range chains {
		runs, trace := h.runsOf(t, fmt.Sprintf("question %d", i))
		traces[trace] = true
		h.check(t, runs)
	}
	if len(traces) != chains {
		t.Errorf("traces = %d, want %d", len(traces), chains)
	}
	for _, p := range []*peer{h.front, h.planner} {
		for _, reason := range []string{"many-live-runs", "shared-trace", "shared-key", "other-work"} {
			p.awaitMetric(t, 0, "wopproxy_abstentions_total", `reason="`+reason+`"`)
		}
		p.awaitMetric(t, 0, "wopproxy_attribution_conflicts_total")
		if n := p.metric(t, "wopproxy_attributions_total", `evidence="trace-state"`); n < chains {
			t.Errorf("%s: calls attributed by trace-state = %v, want %d or more", p.hostID, n, chains)
		}
	}
}
