package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2aclient"
	"github.com/a2aproject/a2a-go/v2/a2asrv"
	"github.com/google/go-cmp/cmp"
)

// TestA2A lets a run of one host send a message to an agent on another, in each
// binding of either generation. The agent's task is a run whose parent is the
// calling run, live for as long as the agent works.
func TestA2A(t *testing.T) {
	for _, b := range bindings {
		t.Run(b.name+"/unary", func(t *testing.T) { testA2A(t, b, b.send, askGated) })
		t.Run(b.name+"/stream", func(t *testing.T) { testA2A(t, b, b.stream, streamGated) })
	}
}

// exchangeA2A is one message of a run, and the looks at its task while the agent
// works and when it has answered. It returns the id of the task.
type exchangeA2A func(ctx context.Context, p *peer, c *a2aclient.Client, working, answered func(task string) error) (task string, err error)

func testA2A(t *testing.T, b binding, operation string, send exchangeA2A) {
	p := newPeer(t, "callee.example.com")
	a := newAgent(t, "caller.example.com")
	var trace, task string
	run := a.chat(t, func(ctx context.Context, in *http.Request) (err error) {
		trace = traceOf(in.Header.Get("Traceparent"))
		c, err := p.dial(ctx, a.client(t), b)
		if err != nil {
			return err
		}
		task, err = send(ctx, p, c, func(string) error {
			live := p.live(t)
			if len(live) != 1 || live[0].Parent == nil || live[0].Parent.RunID != in.Header.Get("Run-Id") || live[0].TraceID != trace {
				return fmt.Errorf("live runs while the agent works = %+v, want one of %s", live, in.Header.Get("Run-Id"))
			}
			return nil
		}, func(task string) error {
			// No waiting: who has the answer can ask.
			if l, ok := p.link(t, task); !ok || l.parent().RunID != in.Header.Get("Run-Id") {
				return fmt.Errorf("link of task %s as soon as its id is out = %+v, %v, want the parent %s", task, l, ok, in.Header.Get("Run-Id"))
			}
			return nil
		})
		return err
	})
	if t.Failed() {
		return
	}
	checkTask(t, a, p, run, trace, task, operation)
	a.wantHandoffs(t, run, operation+toHarvested+" task=completed")
	a.checkHandoffTree(t, run)
	_, wire := p.seen()
	for _, r := range wire {
		if strings.HasPrefix(r.uri, b.path) && r.header.Get("A2A-Version") != string(b.version) {
			t.Errorf("%s: A2A-Version = %q, want %q as sent", r.uri, r.header.Get("A2A-Version"), b.version)
		}
	}
	a.sawCalls(t, 1, "egress", "a2a")
	p.sawCalls(t, 1, "ingress", "a2a")
	eventually(t, "no run is live any more", func() bool { return len(a.live(t)) == 0 && len(p.live(t)) == 0 })
	// Both names are there for good, not for as long as the run is in memory.
	for _, id := range []string{task, p.lastTurn(t).run} {
		if _, ok := p.link(t, id); !ok {
			t.Errorf("run %s of a finished task: no link", id)
		}
	}
}

// askGated sends a unary message to an agent that may not finish before its work
// was looked at.
func askGated(ctx context.Context, p *peer, c *a2aclient.Client, working, answered func(string) error) (string, error) {
	entered, release := make(chan struct{}, 1), make(chan struct{})
	p.does("gated", func(_ context.Context, x *a2asrv.ExecutorContext, emit func(a2a.Event) bool) error {
		emit(a2a.NewSubmittedTask(x, x.Message))
		emit(a2a.NewStatusUpdateEvent(x, a2a.TaskStateWorking, nil))
		entered <- struct{}{}
		if err := await(release, "the agent may finish"); err != nil {
			return err
		}
		emit(a2a.NewStatusUpdateEvent(x, a2a.TaskStateCompleted, nil))
		return nil
	})
	type answer struct {
		task *a2a.Task
		err  error
	}
	came := make(chan answer, 1)
	go func() { // ends with the call
		task, err := ask(ctx, c, say("gated"))
		came <- answer{task, err}
	}()
	if err := await(entered, "the agent works"); err != nil {
		return "", err
	}
	if err := working(""); err != nil {
		return "", err
	}
	close(release)
	got := <-came
	if got.err != nil {
		return "", got.err
	}
	if got.task.Status.State != a2a.TaskStateCompleted {
		return "", fmt.Errorf("state of task %s = %s, want %s", got.task.ID, got.task.Status.State, a2a.TaskStateCompleted)
	}
	return string(got.task.ID), answered(string(got.task.ID))
}

// streamGated sends a message whose answer is a stream. Each event must have
// reached the client before the agent goes on, so one that is held back anywhere
// stops the agent.
func streamGated(ctx context.Context, p *peer, c *a2aclient.Client, working, answered func(string) error) (string, error) {
	arrived := make(chan struct{}, 1)
	p.does("gated", func(_ context.Context, x *a2asrv.ExecutorContext, emit func(a2a.Event) bool) error {
		for i, e := range []a2a.Event{
			a2a.NewSubmittedTask(x, x.Message),
			a2a.NewStatusUpdateEvent(x, a2a.TaskStateWorking, nil),
			a2a.NewArtifactEvent(x, a2a.NewTextPart("a part")),
		} {
			emit(e)
			if err := await(arrived, fmt.Sprintf("event %d of the stream has reached the client", i+1)); err != nil {
				return err
			}
		}
		emit(a2a.NewStatusUpdateEvent(x, a2a.TaskStateCompleted, nil))
		return nil
	})
	var got []string
	var task string
	for e, err := range c.SendStreamingMessage(ctx, &a2a.SendMessageRequest{Message: say("gated")}) {
		if err != nil {
			return "", fmt.Errorf("after %v: %w", got, err)
		}
		task = string(e.TaskInfo().TaskID)
		got = append(got, describe(e))
		if len(got) < 4 {
			for _, look := range []func(string) error{working, answered} {
				if err := look(task); err != nil {
					return "", fmt.Errorf("after %v: %w", got, err)
				}
			}
			arrived <- struct{}{}
		}
	}
	want := []string{"task", "TASK_STATE_WORKING", "artifact", "TASK_STATE_COMPLETED"}
	if diff := cmp.Diff(want, got); diff != "" {
		return "", fmt.Errorf("events (-want +got):\n%s", diff)
	}
	return task, nil
}

// describe names an event of a stream.
func describe(e a2a.Event) string {
	switch e := e.(type) {
	case *a2a.Task:
		return "task"
	case *a2a.TaskStatusUpdateEvent:
		return string(e.Status.State)
	case *a2a.TaskArtifactUpdateEvent:
		return "artifact"
	}
	return fmt.Sprintf("%T", e)
}

// checkTask looks at one task from both sides: that the run of p which the
// agent's newest message belongs to is a child of run, by all its names.
func checkTask(t *testing.T, a *agent, p *peer, run, trace, task, operation string) {
	t.Helper()
	got := p.lastTurn(t)
	if got.task != task || traceOf(got.traceparent) != trace || strings.Count(got.state, "wop=") != 1 {
		t.Errorf("the agent was given %+v, want task %s in trace %s and one member wop=", got, task, trace)
	}
	if !strings.HasPrefix(got.run, "run_") {
		t.Errorf("Run-Id at the agent = %q, want a minted id", got.run)
	}
	parent := ancestor{RunID: run, HostID: a.hostID, WellKnownURL: a.public + "/.well-known/openwop", Cause: "a2a-message"}
	want := link{
		RunID: got.run, Alias: task, Chain: chain{Ancestors: []ancestor{parent}}, Evidence: "run-ancestry",
		TraceID: trace, SpanID: strings.Split(got.traceparent, "-")[2], Operation: operation,
	}
	for _, id := range []string{task, got.run} {
		l, ok := p.link(t, id)
		if !ok {
			t.Errorf("%s: no link of %s", p.hostID, id)
		}
		l.ParentSpanID = "" // the caller's own
		if diff := cmp.Diff(want, l); diff != "" {
			t.Errorf("link of %s (-want +got):\n%s", id, diff)
		}
		if got := p.parent(t, id); got != parent {
			t.Errorf("parent of %s over the read API = %+v, want %+v", id, got, parent)
		}
		if diff := cmp.Diff([]hop{{id, p.hostID}, {run, a.hostID}}, p.walk(t, id)); diff != "" {
			t.Errorf("walk from %s (-want +got):\n%s", id, diff)
		}
	}
	if runs := p.trace(t, trace); len(runs) != 1 {
		t.Errorf("%s: runs of trace %s = %+v, want one", p.hostID, trace, runs)
	}
	checkTaskNoted(t, a, p, run, got.run, task, operation)
}

// checkTaskNoted looks at what the caller's proxy has noted of a task.
func checkTaskNoted(t *testing.T, a *agent, p *peer, run, minted, task, operation string) {
	t.Helper()
	children := a.children(t, run)
	if len(children) != 1 {
		t.Errorf("%s: children of %s = %+v, want one", a.hostID, run, children)
		return
	}
	type child struct{ run, alias, host, operation, parent string }
	c := children[0]
	want := child{minted, task, p.hostID, operation, run}
	if got := (child{c.RunID, c.Alias, c.HostID, c.Operation, c.parent().RunID}); got != want {
		t.Errorf("%s: child of %s = %+v, want %+v", a.hostID, run, got, want)
	}
}

// TestA2AInMessage pins the second carrier of A2A: what a message has of it is
// brought up to date, and it is given to those only who have asked for it.
func TestA2AInMessage(t *testing.T) {
	const stale = "00-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa-bbbbbbbbbbbbbbbb-01"
	for _, tt := range []struct {
		name     string
		metadata map[string]any
		asks     bool // the callee is listed in carriers.a2aInMessage
		want     bool
	}{
		{"present", inMessage(stale), false, true},
		{"malformed", inMessage("nonsense"), false, true},
		{"absent", nil, false, false},
		{"other metadata", map[string]any{"note": "mine"}, false, false},
		{"absent, asked for", nil, true, true},
		{"other metadata, asked for", map[string]any{"note": "mine"}, true, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := newPeer(t, "callee.example.com")
			p.does("work", finish)
			var o settings
			if tt.asks {
				o = settings{"carriers.a2aInMessage": []string{strings.TrimPrefix(p.ingress, "http://")}}
			}
			a := newAgent(t, "caller.example.com", o)
			for i, b := range overHTTP { // of which the bytes are known
				var trace string
				a.chat(t, func(ctx context.Context, in *http.Request) error {
					trace = traceOf(in.Header.Get("Traceparent"))
					c, err := p.dial(ctx, forwardingClient(t, a, in), b)
					if err != nil {
						return err
					}
					m := say("work")
					m.Metadata = tt.metadata
					_, err = ask(ctx, c, m)
					return err
				})
				got := p.lastTurn(t)
				if got.hasOpenWOP != tt.want || tt.want && got.inParent != got.traceparent || traceOf(got.traceparent) != trace {
					t.Errorf("%s: the agent was given %+v, want trace %s, in the message: %v", b.name, got, trace, tt.want)
				}
				if tt.want && !strings.Contains(got.inState, "wop=") {
					t.Errorf("%s: tracestate in the message = %q, want that of the header, %q", b.name, got.inState, got.state)
				}
				_, wire := p.seen()
				last := wire[len(wire)-1].body
				if tt.metadata["note"] != nil && !strings.Contains(last, `"note":"mine"`) {
					t.Errorf("%s: body = %s, want the caller's own metadata in it", b.name, last)
				}
				if !tt.want && strings.Contains(last, "traceparent") {
					t.Errorf("%s: body = %s, want no trace context in it", b.name, last)
				}
				if tt.name == "present" {
					a.awaitMetric(t, float64(i+1), "wopproxy_context_conflicts_total", `direction="egress"`)
				}
			}
		})
	}
}

// forwardingClient calls through a's egress as a host does that forwards the
// trace of the request which began its run.
func forwardingClient(t testing.TB, a *agent, in *http.Request) *http.Client {
	c := a.client(t)
	c.Transport = forwards(in, c.Transport)
	return c
}

// forwards sends on the trace of in, in a span of the host's own.
func forwards(in *http.Request, next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		r = r.Clone(r.Context())
		maps.Copy(r.Header, ownSpan(in))
		return next.RoundTrip(r)
	})
}

// roundTripper is a http.RoundTripper.
type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestA2AInMessageWins pins that a receiver believes the message before the
// header, and ignores what is malformed.
func TestA2AInMessageWins(t *testing.T) {
	const header, message = "00-11111111111111111111111111111111-2222222222222222-01", "00-33333333333333333333333333333333-4444444444444444-01"
	for _, tt := range []struct{ name, message, want string }{
		{"both", message, message},
		{"malformed message", strings.ToUpper("00-abcdefabcdefabcdefabcdefabcdefab-abcdefabcdefabcd-01"), header},
		{"header alone", "", header},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := newPeer(t, "callee.example.com")
			p.does("work", finish)
			c, err := p.dial(t.Context(), &http.Client{Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
				r = r.Clone(r.Context())
				r.Header.Set("Traceparent", header)
				return direct.Transport.RoundTrip(r)
			})}, bindings[0])
			if err != nil {
				t.Fatal(err)
			}
			m := say("work")
			if tt.message != "" {
				m.Metadata = inMessage(tt.message)
			}
			task, err := ask(t.Context(), c, m)
			if err != nil {
				t.Fatal(err)
			}
			if got := p.lastTurn(t); got.traceparent != tt.want {
				t.Errorf("traceparent at the agent = %q, want %q", got.traceparent, tt.want)
			}
			if l, ok := p.link(t, string(task.ID)); !ok || l.TraceID != traceOf(tt.want) || l.parent() != (ancestor{}) {
				t.Errorf("link of task %s = %+v, %v, want a root in trace %s", task.ID, l, ok, traceOf(tt.want))
			}
		})
	}
}

// TestA2AClientGone pins what it means that a client hangs up: the agent's
// server hears of it at once, its task goes on, and the run lives until the end
// of the task is seen.
func TestA2AClientGone(t *testing.T) {
	for _, b := range bindings {
		t.Run(b.name, func(t *testing.T) {
			p := newPeer(t, "callee.example.com")
			release, done := make(chan struct{}), make(chan error, 1)
			p.does("long", func(ctx context.Context, x *a2asrv.ExecutorContext, emit func(a2a.Event) bool) error {
				emit(a2a.NewSubmittedTask(x, x.Message))
				<-release
				err := ctx.Err() // before the end of the task: the SDK cancels behind it
				emit(a2a.NewStatusUpdateEvent(x, a2a.TaskStateCompleted, nil))
				done <- err
				return nil
			})
			a := newAgent(t, "caller.example.com")
			a.chat(t, func(ctx context.Context, _ *http.Request) error {
				defer close(release)
				c, err := p.dial(ctx, a.client(t), b)
				if err != nil {
					return err
				}
				task, err := hangUpStream(ctx, p, c)
				if err != nil {
					return err
				}
				p.awaitMetric(t, 1, "wopproxy_exchanges_total", `direction="ingress"`, `protocol="a2a"`, `outcome="client-gone"`)
				a.awaitMetric(t, 1, "wopproxy_exchanges_total", `direction="egress"`, `protocol="a2a"`, `outcome="client-gone"`)
				if live := p.live(t); len(live) != 1 {
					t.Errorf("live runs after the client has hung up = %+v, want the task's", live)
				}
				release <- struct{}{}
				if err := <-done; err != nil {
					t.Errorf("context of the agent's work = %v, want it to go on", err)
				}
				if live := p.live(t); len(live) != 1 {
					t.Errorf("live runs before anybody could see the end = %+v, want the task's", live)
				}
				for {
					got, err := c.GetTask(ctx, &a2a.GetTaskRequest{ID: task})
					if err != nil {
						return err
					}
					if got.Status.State.Terminal() {
						return nil // the store is written behind the event
					}
				}
			})
			eventually(t, "the finished task is no longer live", func() bool { return len(p.live(t)) == 0 })
		})
	}
}

// TestA2AClientGoneUnanswered pins the same of a client that hangs up before it
// has heard anything: nobody has seen a task end.
func TestA2AClientGoneUnanswered(t *testing.T) {
	for _, b := range bindings {
		t.Run(b.name, func(t *testing.T) {
			p := newPeer(t, "callee.example.com")
			entered, release := make(chan struct{}, 1), make(chan struct{})
			defer close(release)
			p.does("long", func(_ context.Context, x *a2asrv.ExecutorContext, emit func(a2a.Event) bool) error {
				emit(a2a.NewSubmittedTask(x, x.Message))
				entered <- struct{}{}
				<-release
				return nil
			})
			a := newAgent(t, "caller.example.com")
			a.chat(t, func(ctx context.Context, _ *http.Request) error {
				c, err := p.dial(ctx, a.client(t), b)
				if err != nil {
					return err
				}
				ctx, cancel := context.WithCancel(ctx)
				defer cancel()
				returned := make(chan error, 1)
				go func() { // ends with the call
					_, err := ask(ctx, c, say("long"))
					returned <- err
				}()
				if err := await(entered, "the agent works"); err != nil {
					return err
				}
				cancel()
				if err := <-returned; !errors.Is(err, context.Canceled) {
					return fmt.Errorf("error of the cancelled call = %w, want %w", err, context.Canceled)
				}
				_, wire := p.seen()
				return await(wire[len(wire)-1].left, "the agent's server has heard that the client is gone")
			})
			p.awaitMetric(t, 1, "wopproxy_exchanges_total", `direction="ingress"`, `protocol="a2a"`, `outcome="client-gone"`)
			if live := p.live(t); len(live) != 1 || live[0].RunID != p.lastTurn(t).run {
				t.Errorf("live runs after the client has hung up = %+v, want the task's", live)
			}
		})
	}
}

// hangUpStream leaves a stream after its first event, and returns when the
// agent's server has heard of it.
func hangUpStream(ctx context.Context, p *peer, c *a2aclient.Client) (a2a.TaskID, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for e, err := range c.SendStreamingMessage(ctx, &a2a.SendMessageRequest{Message: say("long")}) {
		if err != nil {
			return "", err
		}
		cancel()
		_, wire := p.seen()
		select {
		case <-wire[len(wire)-1].left:
		case <-time.After(2 * time.Second): // nothing but the news is to be waited for
			return "", fmt.Errorf("the agent's server has not heard within 2s that the client is gone")
		}
		return e.TaskInfo().TaskID, nil
	}
	return "", fmt.Errorf("the stream had no event")
}

// TestA2ACard pins that the card reaches the caller as the agent has made it, but
// for the address, which is where the caller came from, and starts nothing.
func TestA2ACard(t *testing.T) {
	p := newPeer(t, "callee.example.com")
	a := newAgent(t, "caller.example.com")
	_, want := get(t, p.ingress+a2asrv.WellKnownAgentCardPath)
	a.chat(t, func(context.Context, *http.Request) error {
		resp, err := a.client(t).Get(p.ingress + a2asrv.WellKnownAgentCardPath)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		var got strings.Builder
		if err := resp.Write(&got); err != nil {
			return err
		}
		if !strings.HasSuffix(got.String(), string(want)) || !strings.Contains(string(want), p.ingress+"/a2a") {
			t.Errorf("card through both proxies = %s, want %s", got.String(), want)
		}
		if v := resp.Header.Get("Access-Control-Allow-Origin"); v != "*" {
			t.Errorf("Access-Control-Allow-Origin = %q, want the agent's %q", v, "*")
		}
		return nil
	})
	if live := p.live(t); len(live) != 0 {
		t.Errorf("live runs after the card was read = %+v, want none", live)
	}
	_, wire := p.seen()
	if n := slices.IndexFunc(wire, func(r a2aRequest) bool { return r.header.Get("Run-Id") != "" }); n >= 0 {
		t.Errorf("request for the card = %+v, want no Run-Id", wire[n])
	}
}
