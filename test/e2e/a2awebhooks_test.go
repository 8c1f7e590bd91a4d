package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2asrv/push"
)

// posted is a webhook as the host that asked for it was given it.
type posted struct{ run, trace, task string }

// postsVia makes the agent's webhooks leave by its egress and by nothing that
// tells the run: in the SDK's shape, or as bare tasks with the header of 0.3.
func (p *peer) postsVia(t testing.TB, bare bool) {
	t.Helper()
	egress := p.client(t)
	if bare {
		p.sends = senderFunc(func(ctx context.Context, c *a2a.PushConfig, e a2a.Event) error {
			body := fmt.Sprintf(`{"kind":"task","id":%q,"contextId":%q,"status":{"state":"working"}}`, e.TaskInfo().TaskID, e.TaskInfo().ContextID)
			status, _, err := post(ctx, egress, c.URL, body, http.Header{"X-A2A-Notification-Token": {c.Token}})
			if err == nil && status != http.StatusOK {
				err = fmt.Errorf("status of the webhook = %d", status)
			}
			return err
		})
		return
	}
	// The SDK's sender takes no proxy: a relay beside the agent goes by the
	// egress for it.
	relay := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		out, err := http.NewRequestWithContext(r.Context(), r.Method, r.URL.Query().Get("to"), bytes.NewReader(body))
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		out.Header = r.Header.Clone()
		resp, err := egress.Do(out)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		defer resp.Body.Close()
		w.WriteHeader(resp.StatusCode)
	}))
	t.Cleanup(relay.Close)
	sdk := push.NewHTTPPushSender(&push.HTTPSenderConfig{AllowPrivateNetworks: true, FailOnError: true})
	p.sends = senderFunc(func(ctx context.Context, c *a2a.PushConfig, e a2a.Event) error {
		by := *c
		by.URL = relay.URL + "/?to=" + url.QueryEscape(c.URL)
		return sdk.SendPush(ctx, &by, e)
	})
}

// TestA2AWebhookRuns lets many runs at once ask one agent for webhooks. The
// agent posts before it answers, forwards nothing, and calls by nothing that
// tells a run. Each post leaves in the trace of its task, arrives as work of the
// run that asked, and what that host calls then is the run's. Where all ask with
// the same token, what can't be told is told of nobody.
func TestA2AWebhookRuns(t *testing.T) {
	const runs = 8
	for _, b := range bindings {
		for _, shared := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/shared=%v", b.name, shared), func(t *testing.T) {
				tools := newToolServer(t, "tools.example.com", stateless)
				p := newPeer(t, "callee.example.com")
				p.postsVia(t, strings.HasSuffix(b.name, "0.3"))
				p.does("work", finish)
				a := newAgent(t, "caller.example.com")

				var mu sync.Mutex
				var got []posted
				first := make(chan struct{}) // closed when every task has posted, so that all are in flight
				waiting := map[string]bool{}
				a.hook = func(w http.ResponseWriter, r *http.Request) {
					body, _ := io.ReadAll(r.Body)
					one := posted{run: r.Header.Get("Run-Id"), trace: traceOf(r.Header.Get("Traceparent")), task: taskPosted(body)}
					mu.Lock()
					got = append(got, one)
					if waiting[one.task] = true; len(waiting) == runs && len(got) == runs {
						close(first)
					}
					mu.Unlock()
					select {
					case <-first: // a slow receiver: no answer before all have come
					case <-r.Context().Done():
						return
					}
					c := a.client(t)
					c.Transport = tracer{c.Transport}
					ctx := context.WithValue(r.Context(), headersKey{}, ownSpan(r))
					cs, err := tools.connect(ctx, c, tools.endpoint())
					if err == nil {
						err = callTool(ctx, cs, "echo", map[string]any{"token": one.task}, `{"token":"`+one.task+`"}`, false)
						_ = cs.Close()
					}
					if err != nil {
						t.Error(err)
						w.WriteHeader(http.StatusInternalServerError)
					}
				}

				truth := map[string]posted{} // by task
				var all sync.WaitGroup
				for range runs {
					all.Go(func() {
						var one posted
						run, err := a.tryChat(t.Context(), nil, func(ctx context.Context, in *http.Request) error {
							one.trace = traceOf(in.Header.Get("Traceparent"))
							c := a.client(t)
							c.Transport = tracer{c.Transport}
							ctx = context.WithValue(ctx, headersKey{}, ownSpan(in))
							client, err := p.dial(ctx, c, b)
							if err != nil {
								return err
							}
							token := "the-same-for-all"
							if !shared {
								token = randomHex(16)
							}
							hook := &a2a.PushConfig{ID: "hook", URL: a.public + "/hook", Token: token}
							res, err := client.SendMessage(ctx, &a2a.SendMessageRequest{Message: say("work"), Config: &a2a.SendMessageConfig{PushConfig: hook}})
							if err == nil {
								one.task = string(res.TaskInfo().TaskID)
							}
							return err
						})
						if err != nil {
							t.Error(err)
						}
						one.run = run
						mu.Lock()
						defer mu.Unlock()
						truth[one.task] = one
					})
				}
				all.Wait()
				if t.Failed() {
					t.FailNow()
				}
				known := 0
				for _, g := range got {
					want := truth[g.task]
					if g.trace == want.trace && g.run == want.run {
						known++
					} else if g.run != "" || g.trace != "" && g.trace != want.trace && shared {
						// A task that an answer has named is known where its posts leave, and may
						// not be yet where they arrive.
						t.Errorf("webhook of task %s arrived for run %q in trace %q, want %s in %s", g.task, g.run, g.trace, want.run, want.trace)
					}
				}
				if !shared && known != 2*runs {
					t.Errorf("webhooks that belong to a run = %d of %d, want all %d", known, len(got), 2*runs)
				}
				if shared {
					t.Logf("%d of %d webhooks with the same token are known", known, len(got))
					if ambiguous := p.metric(t, "wopproxy_webhooks_total", `direction="egress"`, `outcome="ambiguous"`); int(ambiguous) < runs {
						t.Errorf("ambiguous webhooks counted = %v, want at least %d", ambiguous, runs)
					}
				}
				calls, _ := tools.seen()
				if len(calls) != 2*runs {
					t.Errorf("calls made while webhooks were handled = %d, want %d", len(calls), 2*runs)
				}
				for _, c := range calls {
					want := truth[strings.TrimSuffix(strings.TrimPrefix(c.args, `{"token":"`), `"}`)].run
					if parent := tools.parent(t, c.run).RunID; parent != want && (parent != "" || !shared) {
						t.Errorf("call of a webhook with %s has parent %q, want %s", c.args, parent, want)
					}
				}
				for task, want := range truth {
					if got := p.parent(t, task); got.RunID != want.run {
						t.Errorf("parent of task %s = %+v, want %s", task, got, want.run)
					}
				}
				if live := a.live(t); len(live) != 0 {
					t.Errorf("live runs when all is over = %+v, want none", live)
				}
			})
		}
	}
}

// taskPosted is the task that a webhook is about, in any of its shapes.
func taskPosted(body []byte) string {
	var m struct {
		ID           string
		Task         struct{ ID string }
		StatusUpdate struct{ TaskID string }
	}
	_ = json.Unmarshal(body, &m) // what it is not, is not known
	return m.ID + m.Task.ID + m.StatusUpdate.TaskID
}
