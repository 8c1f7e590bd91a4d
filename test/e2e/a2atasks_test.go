package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2aclient"
	"github.com/a2aproject/a2a-go/v2/a2asrv"
)

// asking is a job that answers a first message with a question and finishes
// with the next.
func asking(_ context.Context, x *a2asrv.ExecutorContext, emit func(a2a.Event) bool) error {
	if x.StoredTask == nil {
		emit(a2a.NewSubmittedTask(x, x.Message))
		emit(a2a.NewStatusUpdateEvent(x, a2a.TaskStateInputRequired, nil))
		return nil
	}
	emit(a2a.NewStatusUpdateEvent(x, a2a.TaskStateCompleted, nil))
	return nil
}

// noQuarantine makes a caller's next run the only one as soon as the one before
// has ended.
var noQuarantine = settings{"attribution.quarantine": "0s"}

// converse lets a new run of a talk to p, and returns the run and its trace when
// it is no longer live.
func converse(t *testing.T, a *agent, p *peer, b binding, talk func(context.Context, *a2aclient.Client) error) (run, trace string) {
	t.Helper()
	run = a.chat(t, func(ctx context.Context, in *http.Request) error {
		trace = traceOf(in.Header.Get("Traceparent"))
		c, err := p.dial(ctx, a.client(t), b)
		if err != nil {
			return err
		}
		return talk(ctx, c)
	})
	eventually(t, "the caller's run has ended", func() bool { return len(a.live(t)) == 0 })
	if t.Failed() {
		t.FailNow()
	}
	return run, trace
}

// TestA2ALaterTurn pins that a later message to a task goes on with the task's
// run, whoever sends it: it carries the context of its own sender, and the first
// parent stays the only one.
func TestA2ALaterTurn(t *testing.T) {
	for _, b := range bindings {
		for _, other := range []string{"the same host", "another host"} {
			t.Run(b.name+"/"+other, func(t *testing.T) {
				p := newPeer(t, "callee.example.com")
				p.does("turn", asking)
				first := newAgent(t, "caller.example.com", noQuarantine)
				second := first
				if other == "another host" {
					second = newAgent(t, "other.example.com")
				}
				var task *a2a.Task
				run, trace := converse(t, first, p, b, func(ctx context.Context, c *a2aclient.Client) (err error) {
					task, err = ask(ctx, c, say("turn"))
					return err
				})
				if task.Status.State != a2a.TaskStateInputRequired {
					t.Fatalf("state after the first turn = %s, want %s", task.Status.State, a2a.TaskStateInputRequired)
				}
				if live := p.live(t); len(live) != 1 {
					t.Errorf("live runs while the agent waits for input = %+v, want the task's", live)
				}
				minted := p.lastTurn(t).run
				asked := b.send + toRunning + " task=input-required open"
				first.wantHandoffs(t, run, asked)
				later, laterTrace := converse(t, second, p, b, func(ctx context.Context, c *a2aclient.Client) error {
					m := say("turn")
					m.TaskID, m.ContextID = task.ID, task.ContextID
					got, err := ask(ctx, c, m)
					if err == nil && (got.ID != task.ID || got.Status.State != a2a.TaskStateCompleted) {
						err = fmt.Errorf("task after the second turn = %s %s, want %s %s", got.ID, got.Status.State, task.ID, a2a.TaskStateCompleted)
					}
					return err
				})
				got := p.lastTurn(t)
				if got.run != string(task.ID) || traceOf(got.traceparent) != laterTrace || laterTrace == trace {
					t.Errorf("the second turn was given %+v, want run %s in trace %s", got, task.ID, laterTrace)
				}
				if runs := p.trace(t, laterTrace); len(runs) != 0 {
					t.Errorf("runs of the second turn's trace = %+v, want none", runs)
				}
				for _, id := range []string{minted, string(task.ID)} {
					if got := p.parent(t, id); got.RunID != run || got.HostID != first.hostID {
						t.Errorf("parent of %s after the second turn = %+v, want %s on %s", id, got, run, first.hostID)
					}
				}
				checkTaskNoted(t, first, p, run, minted, string(task.ID), b.send)
				done := b.send + toHarvested + " task=completed"
				second.wantHandoffs(t, later, done)
				if first == second {
					first.wantHandoffs(t, run, done) // its host has the result
				} else {
					first.wantHandoffs(t, run, asked)
				}
				if children := second.children(t, later); len(children) != 0 {
					t.Errorf("%s: children of the second turn's run = %+v, want none: the task has another parent", second.hostID, children)
				}
				eventually(t, "the finished task is no longer live", func() bool { return len(p.live(t)) == 0 })
			})
		}
	}
}

// TestA2AUnknownTask pins that a message to a task that does not exist is
// refused by the agent alone, and leaves nothing behind.
func TestA2AUnknownTask(t *testing.T) {
	for _, b := range bindings {
		t.Run(b.name, func(t *testing.T) {
			p := newPeer(t, "callee.example.com")
			a := newAgent(t, "caller.example.com")
			run, trace := converse(t, a, p, b, func(ctx context.Context, c *a2aclient.Client) error {
				m := say("turn")
				m.TaskID = "no-such-task"
				alone, err := p.dial(ctx, direct, b)
				if err != nil {
					return err
				}
				_, want := alone.SendMessage(ctx, &a2a.SendMessageRequest{Message: m})
				_, got := c.SendMessage(ctx, &a2a.SendMessageRequest{Message: m})
				if got == nil || want == nil || got.Error() != want.Error() {
					t.Errorf("error of a message to an unknown task = %v, want %v as without the caller's proxy", got, want)
				}
				return nil
			})
			if turns, _ := p.seen(); len(turns) != 0 {
				t.Errorf("messages that reached the agent's code = %+v, want none", turns)
			}
			if l, ok := p.link(t, "no-such-task"); ok {
				t.Errorf("link of a task that never was = %+v, want none", l)
			}
			for _, l := range p.trace(t, trace) {
				if l.parent() != (ancestor{}) || l.Reason != "continued" {
					t.Errorf("link of the refused message = %+v, want no parent because of %q", l, "continued")
				}
			}
			if children := a.children(t, run); len(children) != 0 {
				t.Errorf("children of the caller = %+v, want none: nothing says who began the task", children)
			}
			a.sawCalls(t, 1, "egress", "a2a")
			eventually(t, "nothing is live", func() bool { return len(p.live(t)) == 0 })
		})
	}
}

// TestA2ALaterRequests pins that reading, following and cancelling a task carry
// the context of the run that does so, and start nothing.
func TestA2ALaterRequests(t *testing.T) {
	for _, b := range bindings {
		t.Run(b.name, func(t *testing.T) {
			p := newPeer(t, "callee.example.com")
			p.does("work", func(ctx context.Context, x *a2asrv.ExecutorContext, emit func(a2a.Event) bool) error {
				emit(a2a.NewSubmittedTask(x, x.Message))
				emit(a2a.NewStatusUpdateEvent(x, a2a.TaskStateWorking, nil))
				<-ctx.Done() // until it is cancelled
				return nil
			})
			a := newAgent(t, "caller.example.com", noQuarantine)
			var task a2a.TaskID
			run, _ := converse(t, a, p, b, func(ctx context.Context, c *a2aclient.Client) error {
				res, err := c.SendMessage(ctx, &a2a.SendMessageRequest{Message: say("work"), Config: &a2a.SendMessageConfig{ReturnImmediately: true}})
				if err == nil {
					task = res.TaskInfo().TaskID
				}
				return err
			})
			_, before := p.seen()
			later, trace := converse(t, a, p, b, func(ctx context.Context, c *a2aclient.Client) error {
				if got, err := c.GetTask(ctx, &a2a.GetTaskRequest{ID: task}); err != nil || got.ID != task {
					return fmt.Errorf("GetTask = %+v, %w, want task %s", got, err, task)
				}
				followed := false
				for e, err := range c.SubscribeToTask(ctx, &a2a.SubscribeToTaskRequest{ID: task}) {
					if got, ok := e.(*a2a.Task); err != nil || !ok || got.ID != task {
						return fmt.Errorf("first event of SubscribeToTask = %+v, %w, want task %s", e, err, task)
					}
					followed = true
					break
				}
				if !followed {
					return errors.New("SubscribeToTask has no event")
				}
				if live := p.live(t); len(live) != 1 {
					t.Errorf("live runs while the agent works = %+v, want the task's", live)
				}
				got, err := c.CancelTask(ctx, &a2a.CancelTaskRequest{ID: task})
				if err == nil && got.Status.State != a2a.TaskStateCanceled {
					err = fmt.Errorf("state after CancelTask = %s, want %s", got.Status.State, a2a.TaskStateCanceled)
				}
				return err
			})
			_, wire := p.seen()
			seen := 0
			for _, r := range wire[len(before):] {
				if !strings.HasPrefix(r.uri, b.path) {
					continue
				}
				seen++
				if got := traceOf(r.header.Get("Traceparent")); got != trace {
					t.Errorf("%s %s %s: trace = %q, want %q of the run that asks", r.method, r.uri, r.body, got, trace)
				}
				if id := r.header.Get("Run-Id"); id != "" {
					t.Errorf("%s %s: Run-Id = %q, want none", r.method, r.uri, id)
				}
			}
			if seen != 3 {
				t.Errorf("later requests that reached the agent = %d, want 3: %+v", seen, wire[len(before):])
			}
			if runs := p.trace(t, trace); len(runs) != 0 {
				t.Errorf("runs of the trace of later requests = %+v, want none", runs)
			}
			if got := p.parent(t, string(task)); got.RunID != run {
				t.Errorf("parent of task %s = %+v, want %s", task, got, run)
			}
			a.wantHandoffs(t, run, b.send+toRunning+" cancelled task=canceled")
			a.wantHandoffs(t, later)
			if children := a.children(t, later); len(children) != 0 {
				t.Errorf("children of the run that asked = %+v, want none", children)
			}
			a.sawCalls(t, 4, "egress", "a2a") // and the message before them
			eventually(t, "the cancelled task is no longer live", func() bool { return len(p.live(t)) == 0 })
		})
	}
}

// TestA2AConversation pins the evidence that a contextId is: it names the run of
// an agent that goes on with the conversation elsewhere as long as one run alone
// is part of it, and nobody when there are two.
func TestA2AConversation(t *testing.T) {
	for _, tt := range []struct {
		name  string
		runs  int
		named bool
	}{{"one run", 1, true}, {"two runs", 2, false}} {
		t.Run(tt.name, func(t *testing.T) {
			asked := newPeer(t, "asked.example.com")
			asked.does("work", finish)
			p := newPeer(t, "callee.example.com", settings{"attribution.singleFlight": false})
			entered, release := make(chan struct{}, tt.runs), make(chan struct{})
			p.does("delegate", func(ctx context.Context, x *a2asrv.ExecutorContext, emit func(a2a.Event) bool) error {
				emit(a2a.NewSubmittedTask(x, x.Message))
				entered <- struct{}{}
				if err := await(release, "all runs are live"); err != nil {
					return err
				}
				c, err := asked.dial(ctx, p.client(t), bindings[0])
				if err != nil {
					return err
				}
				m := say("work")
				m.ContextID = x.ContextID
				if _, err := ask(ctx, c, m); err != nil {
					return err
				}
				emit(a2a.NewStatusUpdateEvent(x, a2a.TaskStateCompleted, nil))
				return nil
			})
			tasks := make(chan *a2a.Task, tt.runs)
			for range tt.runs {
				go func() { // ends with the call
					task, err := askDirectly(t, p, "delegate", "ctx-shared-71d0c4f29e8b")
					if err != nil {
						t.Error(err)
					}
					tasks <- task
				}()
			}
			for range tt.runs {
				if err := await(entered, "the agent works"); err != nil {
					t.Fatal(err)
				}
			}
			close(release)
			var last *a2a.Task
			for range tt.runs {
				if last = <-tasks; last == nil || last.Status.State != a2a.TaskStateCompleted {
					t.Fatalf("task = %+v, want it completed", last)
				}
			}
			turns, _ := asked.seen()
			for _, n := range turns {
				parent := ""
				if tt.named {
					parent = string(last.ID)
				}
				// The agent is called before its own answer tells its proxy the task.
				got := asked.parent(t, n.task)
				if l, ok := p.link(t, got.RunID); tt.named && (!ok || l.Alias != parent) || !tt.named && got != (ancestor{}) {
					t.Errorf("parent of %s = %+v, want that of task %q", n.task, got, parent)
				}
			}
			if len(turns) != tt.runs {
				t.Errorf("messages passed on = %d, want %d", len(turns), tt.runs)
			}
			named, shared := 0.0, float64(tt.runs)
			if tt.named {
				named, shared = 1, 0
			}
			p.awaitMetric(t, named, "wopproxy_attributions_total", `evidence="conversation"`)
			p.awaitMetric(t, shared, "wopproxy_abstentions_total", `reason="shared-key"`)
		})
	}
}

// askDirectly sends a message of a conversation from outside, past any egress.
func askDirectly(t testing.TB, p *peer, text, conversation string) (*a2a.Task, error) {
	c, err := p.dial(t.Context(), direct, bindings[0])
	if err != nil {
		return nil, err
	}
	m := say(text)
	m.ContextID = conversation
	return ask(t.Context(), c, m)
}

// TestA2AEnds pins which answers end a run: those that say that nothing more
// will come of it.
func TestA2AEnds(t *testing.T) {
	for _, b := range bindings {
		t.Run(b.name, func(t *testing.T) {
			p := newPeer(t, "callee.example.com")
			c, err := p.dial(t.Context(), direct, b)
			if err != nil {
				t.Fatal(err)
			}
			for _, tt := range []struct {
				name string
				ends bool
				last func(*a2asrv.ExecutorContext) a2a.Event
			}{
				{"completed", true, status(a2a.TaskStateCompleted)},
				{"failed", true, status(a2a.TaskStateFailed)},
				{"canceled", true, status(a2a.TaskStateCanceled)},
				{"rejected", true, status(a2a.TaskStateRejected)},
				{"a message instead of a task", true, func(*a2asrv.ExecutorContext) a2a.Event {
					return a2a.NewMessage(a2a.MessageRoleAgent, a2a.NewTextPart("no need for a task"))
				}},
				{"input required", false, status(a2a.TaskStateInputRequired)}, // last, because its run stays
			} {
				for _, stream := range []bool{false, true} {
					p.does(tt.name, func(_ context.Context, x *a2asrv.ExecutorContext, emit func(a2a.Event) bool) error {
						if _, ok := tt.last(x).(*a2a.Message); !ok {
							emit(a2a.NewSubmittedTask(x, x.Message))
						}
						emit(tt.last(x))
						return nil
					})
					if err := sendEither(t, c, tt.name, stream); err != nil {
						t.Errorf("%s: %v", tt.name, err)
						continue
					}
					run := p.lastTurn(t).run
					isLive := func() bool {
						return slices.ContainsFunc(p.live(t), func(l liveRun) bool { return l.RunID == run })
					}
					if tt.ends {
						eventually(t, tt.name+" ends the run", func() bool { return !isLive() })
					} else if !isLive() {
						t.Errorf("%s, stream %v: the run has ended, want it to stay", tt.name, stream)
					}
				}
			}
		})
	}
}

// status makes the event by which a task takes on a state.
func status(s a2a.TaskState) func(*a2asrv.ExecutorContext) a2a.Event {
	return func(x *a2asrv.ExecutorContext) a2a.Event { return a2a.NewStatusUpdateEvent(x, s, nil) }
}

// sendEither sends a message and reads its answer to the end, which has passed
// the proxy as a whole then.
func sendEither(t testing.TB, c *a2aclient.Client, text string, stream bool) error {
	if !stream {
		_, err := c.SendMessage(t.Context(), &a2a.SendMessageRequest{Message: say(text)})
		return err
	}
	for _, err := range c.SendStreamingMessage(t.Context(), &a2a.SendMessageRequest{Message: say(text)}) {
		if err != nil {
			return err
		}
	}
	return nil
}

// TestA2ASubscriberSeesTheEnd pins that whoever follows a task lets the proxy
// see it end, though the message that began it was answered long before.
func TestA2ASubscriberSeesTheEnd(t *testing.T) {
	for _, b := range bindings {
		t.Run(b.name, func(t *testing.T) {
			p := newPeer(t, "callee.example.com")
			release := make(chan struct{})
			p.does("long", func(_ context.Context, x *a2asrv.ExecutorContext, emit func(a2a.Event) bool) error {
				emit(a2a.NewSubmittedTask(x, x.Message))
				if err := await(release, "somebody follows the task"); err != nil {
					return err
				}
				emit(a2a.NewStatusUpdateEvent(x, a2a.TaskStateCompleted, nil))
				return nil
			})
			c, err := p.dial(t.Context(), direct, b)
			if err != nil {
				t.Fatal(err)
			}
			res, err := c.SendMessage(t.Context(), &a2a.SendMessageRequest{Message: say("long"), Config: &a2a.SendMessageConfig{ReturnImmediately: true}})
			if err != nil {
				t.Fatal(err)
			}
			var last string
			for e, err := range c.SubscribeToTask(t.Context(), &a2a.SubscribeToTaskRequest{ID: res.TaskInfo().TaskID}) {
				if err != nil {
					t.Fatal(err)
				}
				if last == "" {
					if live := p.live(t); len(live) != 1 {
						t.Errorf("live runs while the agent works = %+v, want the task's", live)
					}
					close(release)
				}
				last = describe(e)
			}
			if last != string(a2a.TaskStateCompleted) {
				t.Errorf("last event = %s, want %s", last, a2a.TaskStateCompleted)
			}
			if live := p.live(t); len(live) != 0 {
				t.Errorf("live runs after the end has passed = %+v, want none", live)
			}
		})
	}
}

// TestA2AKilledAfterTheAnswer pins that who has a task's id can ask for good: the
// proxy is killed the moment the id is out, by an answer or by the first event of
// a stream, and knows the task and its parent when it is back.
func TestA2AKilledAfterTheAnswer(t *testing.T) {
	p := newPeer(t, "callee.example.com")
	p.does("work", finish)
	a := newAgent(t, "caller.example.com", noQuarantine)
	for range 3 { // what is not waited for may be stored in time by chance
		for _, first := range []bool{false, true} {
			killed := p.done
			p.does("long", func(_ context.Context, x *a2asrv.ExecutorContext, emit func(a2a.Event) bool) error {
				emit(a2a.NewSubmittedTask(x, x.Message))
				<-killed
				return nil
			})
			var task string
			run, _ := converse(t, a, p, bindings[0], func(ctx context.Context, c *a2aclient.Client) error {
				if !first {
					got, err := ask(ctx, c, say("work"))
					p.signal(t, os.Kill)
					if err == nil {
						task = string(got.ID)
					}
					return err
				}
				for e, err := range c.SendStreamingMessage(ctx, &a2a.SendMessageRequest{Message: say("long")}) {
					p.signal(t, os.Kill)
					if err == nil {
						task = string(e.TaskInfo().TaskID)
					}
					return err
				}
				return errors.New("the stream had no event")
			})
			p.wait(t)
			p.serve(t, nil, p.file)
			if l, ok := p.link(t, task); !ok || l.Alias != task || l.parent().RunID != run {
				t.Errorf("link of task %s after the kill = %+v, %v, want the child of %s", task, l, ok, run)
			}
		}
	}
}
