package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2aclient"
	"github.com/a2aproject/a2a-go/v2/a2asrv"
)

// TestA2ALaterRequestsLink pins what a collector is shown of a task that goes on
// when the request that made it is over, and its client gone: whoever reads it,
// follows it again and cancels it does so in a trace of its own, and the spans of
// both hosts link to those that the task began with.
func TestA2ALaterRequestsLink(t *testing.T) {
	for _, b := range bindings {
		for _, stream := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/stream=%v", b.name, stream), func(t *testing.T) {
				spans := newCollector(t, "http/protobuf")
				p := newPeer(t, "callee.example.com", exporting(spans, "http/protobuf"))
				p.does("work", func(ctx context.Context, x *a2asrv.ExecutorContext, emit func(a2a.Event) bool) error {
					emit(a2a.NewSubmittedTask(x, x.Message))
					emit(a2a.NewStatusUpdateEvent(x, a2a.TaskStateWorking, nil))
					<-ctx.Done() // until it is cancelled
					return nil
				})
				a := newAgent(t, "caller.example.com", noQuarantine, exporting(spans, "http/protobuf"))

				var task a2a.TaskID
				_, first := converse(t, a, p, b, func(ctx context.Context, c *a2aclient.Client) (err error) {
					task, err = beginTask(ctx, c, stream)
					return err
				})
				_, later := converse(t, a, p, b, func(ctx context.Context, c *a2aclient.Client) error {
					if got, err := c.GetTask(ctx, &a2a.GetTaskRequest{ID: task}); err != nil || got.ID != task {
						return fmt.Errorf("GetTask = %+v, %w, want task %s", got, err, task)
					}
					for e, err := range c.SubscribeToTask(ctx, &a2a.SubscribeToTaskRequest{ID: task}) {
						if err != nil || e.TaskInfo().TaskID != task {
							return fmt.Errorf("first event of SubscribeToTask = %+v, %w, want task %s", e, err, task)
						}
						break
					}
					_, err := c.CancelTask(ctx, &a2a.CancelTaskRequest{ID: task})
					return err
				})

				send := b.send
				if stream {
					send = b.stream
				}
				for _, side := range []struct{ host, kind string }{{a.hostID, "CLIENT"}, {p.hostID, "SERVER"}} {
					of := func(trace string, n int) (found []span) {
						t.Helper()
						if !poll(func() bool {
							found = slices.DeleteFunc(spans.received(trace), func(s span) bool {
								return s.host() != side.host || s.kind != side.kind || s.attributes["rpc.method"] == ""
							})
							return len(found) >= n
						}) {
							t.Fatalf("%s spans of %s = %v, want %d", side.kind, side.host, found, n)
						}
						return found
					}
					began := of(first, 1)
					if len(began) != 1 || began[0].name != send || len(began[0].links) != 0 {
						t.Errorf("spans that the task began with = %v with links %v, want one, %s, with none", began, began[0].links, send)
					}
					want := []string{began[0].trace + " " + began[0].id}
					for _, s := range of(later, 3) {
						if !slices.Equal(s.links, want) {
							t.Errorf("links of %v = %v, want %v", s, s.links, want)
						}
						if s.parent == "" || s.parent == began[0].id {
							t.Errorf("parent of %v = %q, want a span of the trace of the run that asks", s, s.parent)
						}
					}
				}
			})
		}
	}
}

// beginTask sends a message and leaves as soon as it knows the task.
func beginTask(ctx context.Context, c *a2aclient.Client, stream bool) (a2a.TaskID, error) {
	if !stream {
		res, err := c.SendMessage(ctx, &a2a.SendMessageRequest{Message: say("work"), Config: &a2a.SendMessageConfig{ReturnImmediately: true}})
		if err != nil {
			return "", err
		}
		return res.TaskInfo().TaskID, nil
	}
	for e, err := range c.SendStreamingMessage(ctx, &a2a.SendMessageRequest{Message: say("work")}) {
		if err != nil {
			return "", err
		}
		return e.TaskInfo().TaskID, nil
	}
	return "", errors.New("the stream had no event")
}
