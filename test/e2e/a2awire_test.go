package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2aclient"
	"github.com/a2aproject/a2a-go/v2/a2asrv"
	"github.com/a2aproject/a2a-go/v2/a2asrv/push"
	"github.com/google/go-cmp/cmp"
)

// TestA2AWire sends what no SDK sends, and looks at the bytes: all but the
// carriers reaches the agent as it was written.
func TestA2AWire(t *testing.T) {
	const (
		old   = `{ "jsonrpc":"2.0",  "id":1.0e1,"method":"message\/send","params":{"x":[1, 2e0],"message":{"kind":"message","messageId":"m","role":"user","parts":[{"kind":"text","text":"work"}]%s}} }`
		rest  = `{"message" : {"messageId":"m","role":"ROLE_USER","parts":[{"text":"work"}]%s}, "x-vendor":1.50}`
		stale = "00-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa-bbbbbbbbbbbbbbbb-01"
		slot  = `,"metadata": {"a":1,"openwop":{"traceparent":"%s"  ,"b":2} }`
	)
	body := func(text, more string) string { return fmt.Sprintf(text, more) }
	for _, tt := range []struct {
		name, uri, body string
		header          http.Header
		run             bool // it is seen to be a message
		spliced         bool // the body has a carrier, and it is brought up to date
		stale           bool // it has one that may not be touched: it wins
	}{
		{"0.3 names itself by nothing", "/old", body(old, ""), nil, true, false, false},
		{"0.3 with a slash at the end", "/old/", body(old, ""), nil, true, false, false},
		{"0.3 with the carrier", "/old", body(old, fmt.Sprintf(slot, stale)), nil, true, true, false},
		{"0.3 with the older extensions header", "/old", body(old, ""), http.Header{"X-A2a-Extensions": {"urn:x"}}, true, false, false},
		{"REST without a version", "/rest/message:send", body(rest, ""), nil, true, false, false},
		{"REST with the version in the query", "/rest/message:send?A2A-Version=1.0&q=%2F%zz", body(rest, ""), nil, true, false, false},
		{"REST with the carrier", "/rest/message:send", body(rest, fmt.Sprintf(slot, stale)), http.Header{"A2a-Version": {"1.0"}}, true, true, false},
		{"REST in its own media type", "/rest/message:send", body(rest, ""), http.Header{"Content-Type": {"application/a2a+json; charset=utf-8"}}, true, false, false},
		{"escaped colon", "/rest/message%3Asend", body(rest, ""), http.Header{"A2a-Version": {"1.0"}}, false, false, false},
		{"bound by a digest", "/old", body(old, ""), http.Header{"Content-Digest": {"sha-256=:AA==:"}}, true, false, false},
		{"bound by a digest, with the carrier", "/old", body(old, fmt.Sprintf(slot, stale)), http.Header{"Content-Digest": {"sha-256=:AA==:"}}, true, false, true},
		{"longer than is read", "/rest/message:send", body(rest, `,"pad":"`+strings.Repeat("x", 9<<10)+`"`), nil, true, false, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			small := settings{"limits.inspectedBody": "8KiB", "limits.inspectedEvent": "8KiB"}
			p := newPeer(t, "callee.example.com", small)
			p.does("work", finish)
			a := newAgent(t, "caller.example.com", small)
			var trace string
			var answer []byte
			run := a.chat(t, func(ctx context.Context, in *http.Request) error {
				trace = traceOf(in.Header.Get("Traceparent"))
				status, got, err := post(ctx, a.client(t), p.ingress+tt.uri, tt.body, tt.header)
				if err == nil && status != http.StatusOK {
					err = fmt.Errorf("status %d: %s", status, got)
				}
				answer = got
				return err
			})
			_, wire := p.seen()
			if len(wire) != 1 || t.Failed() {
				t.Fatalf("requests at the agent = %+v, want one", wire)
			}
			got, turn := wire[0], p.lastTurn(t)
			if got.method != http.MethodPost || got.uri != tt.uri {
				t.Errorf("request line = %s %s, want POST %s", got.method, got.uri, tt.uri)
			}
			want := tt.body
			if tt.spliced {
				// The tracestate comes with its traceparent.
				want = strings.Replace(want, `"`+stale+`"`, fmt.Sprintf(`%q`, turn.traceparent), 1)
				want = strings.Replace(want, `"openwop":{`, fmt.Sprintf(`"openwop":{"tracestate":%q,`, turn.state), 1)
			}
			if diff := cmp.Diff(want, got.body); diff != "" {
				t.Errorf("body (-want +got):\n%s", diff)
			}
			sent := http.Header{"Content-Type": {"application/json"}}
			maps.Copy(sent, tt.header)
			for _, name := range []string{"Content-Type", "A2a-Version", "X-A2a-Extensions", "Content-Digest"} {
				if diff := cmp.Diff(sent[name], got.header[name]); diff != "" {
					t.Errorf("header %s (-want +got):\n%s", name, diff)
				}
			}
			if tt.stale {
				trace = traceOf(stale)
			}
			if traceOf(turn.traceparent) != trace {
				t.Errorf("traceparent at the agent = %q, want trace %s", turn.traceparent, trace)
			}
			if (turn.run != "") != tt.run {
				t.Errorf("Run-Id at the agent = %q, want one: %v", turn.run, tt.run)
			}
			if !strings.Contains(string(answer), turn.task) {
				t.Errorf("answer = %s, want task %s", answer, turn.task)
			}
			if !tt.run {
				return
			}
			if got := p.parent(t, turn.task); got.RunID != run {
				t.Errorf("parent of task %s = %+v, want %s", turn.task, got, run)
			}
		})
	}
}

// receiver takes webhooks, behind its own wopproxy.
type receiver struct {
	*sidecar
	mu    sync.Mutex
	hooks []a2aRequest
}

func newReceiver(t testing.TB) *receiver {
	t.Helper()
	r := &receiver{}
	host := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		r.mu.Lock()
		defer r.mu.Unlock()
		r.hooks = append(r.hooks, a2aRequest{req.Method, req.RequestURI, req.Header.Clone(), string(body), nil})
	}))
	t.Cleanup(host.Close)
	r.sidecar = start(t, "receiver.example.com", host.URL)
	return r
}

// TestA2AWebhooks pins that what an agent posts to a webhook passes both
// proxies as it is, with the trace of its task in the headers alone, and that
// the request which has set the webhook is not changed either.
func TestA2AWebhooks(t *testing.T) {
	for _, b := range bindings {
		t.Run(b.name, func(t *testing.T) {
			to := newReceiver(t)
			p := newPeer(t, "callee.example.com")
			a := newAgent(t, "caller.example.com")
			p.does("work", finish)
			var sent []string
			sdk := push.NewHTTPPushSender(&push.HTTPSenderConfig{AllowPrivateNetworks: true, FailOnError: true})
			p.sends = senderFunc(func(ctx context.Context, c *a2a.PushConfig, e a2a.Event) error {
				// Its client takes no proxy, so the agent calls by a base path.
				call, _ := a2asrv.CallContextFrom(ctx)
				run, _ := call.ServiceParams().Get("Run-Id")
				if len(run) != 1 {
					return fmt.Errorf("Run-Id at the agent = %q, want one", run)
				}
				by := *c
				by.URL = p.egress + "/_run/" + run[0] + "/" + c.URL
				body, err := json.Marshal(a2a.StreamResponse{Event: e})
				if err != nil {
					return err
				}
				sent = append(sent, string(body)) // one at a time, before the answer
				return sdk.SendPush(ctx, &by, e)
			})
			hook := &a2a.PushConfig{
				ID: "hook", URL: to.ingress + "/hooks/a%2Fb?c=d%20e", Token: "s3cret-token",
				Auth: &a2a.PushAuthInfo{Scheme: "Bearer", Credentials: "s3cret-credentials"},
			}
			var trace string
			_, trace = converse(t, a, p, b, func(ctx context.Context, c *a2aclient.Client) error {
				_, err := c.SendMessage(ctx, &a2a.SendMessageRequest{Message: say("work"), Config: &a2a.SendMessageConfig{PushConfig: hook}})
				return err
			})
			_, wire := p.seen()
			last := wire[len(wire)-1].body
			for _, part := range []string{hook.URL, hook.Token, hook.Auth.Credentials} {
				if !strings.Contains(last, part) {
					t.Errorf("request that sets the webhook = %s, want %q in it", last, part)
				}
			}
			to.mu.Lock()
			defer to.mu.Unlock()
			var got []string
			for _, h := range to.hooks {
				got = append(got, h.body)
				if h.method != http.MethodPost || h.uri != "/hooks/a%2Fb?c=d%20e" {
					t.Errorf("request line of a webhook = %s %s, want POST /hooks/a%%2Fb?c=d%%20e", h.method, h.uri)
				}
				for name, want := range map[string]string{
					"Content-Type": "application/json", "A2a-Notification-Token": hook.Token,
					"Authorization": "Bearer " + hook.Auth.Credentials, "Run-Id": "", "Run-Ancestry": "",
				} {
					if v := h.header.Get(name); v != want {
						t.Errorf("%s of a webhook = %q, want %q", name, v, want)
					}
				}
				if v := h.header.Get("Traceparent"); traceOf(v) != trace {
					t.Errorf("traceparent of a webhook = %q, want trace %s", v, trace)
				}
			}
			if diff := cmp.Diff(sent, got); diff != "" || len(sent) != 2 {
				t.Errorf("%d webhooks (-sent +received):\n%s", len(sent), diff)
			}
			if live := to.live(t); len(live) != 0 {
				t.Errorf("live runs at the receiver = %+v, want none", live)
			}
			if runs := to.trace(t, trace); len(runs) != 0 {
				t.Errorf("runs that webhooks have started = %+v, want none", runs)
			}
			p.awaitMetric(t, 2, "wopproxy_exchanges_total", `direction="egress"`, `protocol="http"`)
			to.awaitMetric(t, 2, "wopproxy_exchanges_total", `direction="ingress"`, `protocol="http"`)
		})
	}
}
