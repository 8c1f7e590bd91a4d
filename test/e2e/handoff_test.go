package e2e

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2aclient"
	"github.com/a2aproject/a2a-go/v2/a2asrv"
	"github.com/google/go-cmp/cmp"
)

// handoff is a call by which a run has another host do something.
type handoff struct {
	ID        string `json:"id"`
	RunID     string `json:"runId"`
	Peer      string `json:"peer"`
	HostID    string `json:"hostId"`
	Child     string `json:"childRunId"`
	Protocol  string `json:"protocol"`
	Operation string `json:"operation"`
	TaskID    string `json:"taskId"`
	TaskState string `json:"taskState"`
	State     string `json:"state"`
	Error     string `json:"error"`
	Open      bool   `json:"open"`
	Steps     []struct{ State, Time string }
}

// String is what it did, the steps that it took, and what else is known.
func (h handoff) String() string {
	s := h.Operation
	for _, step := range h.Steps {
		s += " " + step.State
	}
	if h.Error != "" {
		s += " error=" + h.Error
	}
	if h.TaskState != "" {
		s += " task=" + h.TaskState
	}
	if h.Open {
		s += " open"
	}
	return s
}

const (
	toRunning   = " pending dispatching running"
	toHarvested = toRunning + " harvested"
)

// handoffs returns the handoffs of a run, oldest first.
func (s *sidecar) handoffs(t testing.TB, run string) []handoff {
	t.Helper()
	code, body := get(t, s.admin+"/ancestry/v1/runs/"+url.PathEscape(run)+"/handoffs")
	if code == http.StatusNotFound {
		return nil
	}
	if code != http.StatusOK {
		t.Fatalf("%s: handoffs of %s: status %d: %s", s.hostID, run, code, body)
	}
	return decode[struct{ Handoffs []handoff }](t, body).Handoffs
}

// wantHandoffs waits until a run's handoffs are as wanted: the answer of the last
// one may have come a little before the proxy was done with it.
func (s *sidecar) wantHandoffs(t testing.TB, run string, want ...string) {
	t.Helper()
	var got []string
	if !poll(func() bool {
		got = nil
		for _, h := range s.handoffs(t, run) {
			got = append(got, h.String())
		}
		return slices.Equal(got, want)
	}) {
		t.Errorf("%s: handoffs of %s (-want +got):\n%s", s.hostID, run, cmp.Diff(want, got))
	}
}

// checkHandoffTree compares the tree of a run with its handoffs: each child on
// another host bears the one that has started it.
func (s *sidecar) checkHandoffTree(t testing.TB, run string) {
	t.Helper()
	type node struct {
		RunID, HostID string
		Handoff       *handoff
		Children      []node
	}
	_, body := get(t, s.admin+"/ancestry/v1/runs/"+url.PathEscape(run)+"/tree")
	root := decode[struct{ Root node }](t, body).Root
	of := map[string]handoff{}
	for _, h := range s.handoffs(t, run) {
		of[h.ID] = h
	}
	for _, c := range root.Children {
		if c.Handoff == nil || c.Handoff.HostID != c.HostID || of[c.Handoff.ID].String() != c.Handoff.String() {
			t.Errorf("%s: child %s of %s has the handoff %+v, want one of %+v", s.hostID, c.RunID, run, c.Handoff, of)
		}
	}
}

// TestA2AHandoffEnds: how a message ends, in each binding, unary and streaming.
func TestA2AHandoffEnds(t *testing.T) {
	for _, b := range bindings {
		t.Run(b.name, func(t *testing.T) {
			p := newPeer(t, "callee.example.com")
			a := newAgent(t, "caller.example.com", noQuarantine)
			for _, tt := range []struct {
				name, want string
				last       func(*a2asrv.ExecutorContext) a2a.Event
			}{
				{"completed", toHarvested + " task=completed", status(a2a.TaskStateCompleted)},
				{"failed", toRunning + " failed error=task-failed task=failed", status(a2a.TaskStateFailed)},
				{"canceled", toRunning + " cancelled task=canceled", status(a2a.TaskStateCanceled)},
				{"rejected", toRunning + " failed error=task-rejected task=rejected", status(a2a.TaskStateRejected)},
				{"a message", toHarvested, func(*a2asrv.ExecutorContext) a2a.Event {
					return a2a.NewMessage(a2a.MessageRoleAgent, a2a.NewTextPart("no need for a task"))
				}},
				{"input required", toRunning + " task=input-required open", status(a2a.TaskStateInputRequired)},
			} {
				for _, stream := range []bool{false, true} {
					p.does(tt.name, func(_ context.Context, x *a2asrv.ExecutorContext, emit func(a2a.Event) bool) error {
						if _, ok := tt.last(x).(*a2a.Message); !ok {
							emit(a2a.NewSubmittedTask(x, x.Message))
						}
						emit(tt.last(x))
						return nil
					})
					run, _ := converse(t, a, p, b, func(_ context.Context, c *a2aclient.Client) error {
						return sendEither(t, c, tt.name, stream)
					})
					operation := b.send
					if stream {
						operation = b.stream
					}
					a.wantHandoffs(t, run, operation+tt.want)
					a.checkHandoffTree(t, run)
				}
			}
		})
	}
}

// TestHandoffRefused: a server that nobody can reach, of which no child is known.
func TestHandoffRefused(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := l.Addr().String()
	l.Close()
	a := newAgent(t, "agent.example.com")
	run := a.chat(t, func(ctx context.Context, _ *http.Request) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+closed+"/mcp", strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x"}}`))
		if err != nil {
			return err
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Accept", "application/json, text/event-stream")
		resp, err := a.client(t).Do(req)
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		if resp.StatusCode != http.StatusBadGateway {
			err = fmt.Errorf("status = %s, want 502", resp.Status)
		}
		return err
	})
	a.wantHandoffs(t, run, "tools/call pending dispatching failed error=unreachable")
	h := a.handoffs(t, run)[0]
	if h.Peer != closed || h.RunID != run || h.Child != "" {
		t.Errorf("handoff = %+v, want one to %s of %s", h, closed, run)
	}
	_, body := get(t, a.admin+"/ancestry/v1/runs/"+run+"/tree")
	if root := decode[struct{ Root struct{ Handoffs []handoff } }](t, body).Root; len(root.Handoffs) != 1 || root.Handoffs[0].ID != h.ID {
		t.Errorf("tree = %s, want the handoff at its root", body)
	}
	drawn := execute(t, "ancestry", run, "-admin", a.admin)
	if err := drawn.success(t); err != nil {
		t.Error(err)
	}
	if got, want := drawn.stdout.String(), fmt.Sprintf("%s  agent.example.com\n└─ tools/call → %s  failed: unreachable\n", run, closed); got != want {
		t.Errorf("tree = %q, want %q", got, want)
	}
	for _, base := range []string{a.admin, a.ingress} {
		lost := execute(t, "ancestry", "nobody", "-admin", base)
		if code := lost.wait(t); code != 1 || !strings.Contains(lost.stderr.String(), "no such run, or is no wopproxy's admin listener") {
			t.Errorf("ancestry of a stranger at %s: exit code %d, %s; want 1 and why", base, code, lost.stderr)
		}
	}
	a.awaitMetric(t, 1, "wopproxy_handoffs_total", `protocol="mcp"`, `state="failed"`)
}
