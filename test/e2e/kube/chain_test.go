package kube

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"testing"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2aclient"
	"github.com/a2aproject/a2a-go/v2/a2aclient/agentcard"
	"github.com/google/go-cmp/cmp"
)

// direct is a client that uses no proxy.
var direct = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}

// hosts are those of the chain, in its order, by the names of their workloads and
// Services, and what each is called with.
var hosts = [3]struct{ name, cause string }{
	{"node-agent", ""}, {"python-agent", "a2a-message"}, {"go-tools", "mcp-tool-call"},
}

// address is that of the i-th host, for any pod.
func (n namespace) address(i int) string { return hosts[i].name + "." + n.name + ".svc" }

// hostID is what the i-th host calls itself.
func (n namespace) hostID(i int) string { return n.name + "/" + hosts[i].name }

// chain is one question on its way through the hosts.
type chain struct {
	trace, span string    // the caller's place in its own trace
	runs        [3]string // as the hosts themselves were told, and told the caller
}

// ask sends a question to the first host, through its Service.
func (n namespace) ask(ctx context.Context, question string) (chain, error) {
	c := chain{trace: random(16), span: random(8)}
	card, err := agentcard.NewResolver(direct).Resolve(ctx, "http://"+n.address(0))
	if err != nil {
		return c, fmt.Errorf("card: %w", err)
	}
	traced := &http.Client{Transport: within(c)}
	client, err := a2aclient.NewFromCard(ctx, card, a2aclient.WithDefaultsDisabled(), a2aclient.WithJSONRPCTransport(traced))
	if err != nil {
		return c, err
	}
	message := a2a.NewMessage(a2a.MessageRoleUser, a2a.NewTextPart(question))
	answer, err := client.SendMessage(ctx, &a2a.SendMessageRequest{Message: message})
	if err != nil {
		return c, err
	}
	task, ok := answer.(*a2a.Task)
	if !ok || task.Status.State != a2a.TaskStateCompleted || len(task.Artifacts) != 1 {
		return c, fmt.Errorf("answer = %+v, want a completed task", answer)
	}
	if err := json.Unmarshal([]byte(task.Artifacts[0].Parts[0].Text()), &c.runs); err != nil {
		return c, err
	}
	if c.runs[0] == "" || c.runs[1] == "" || c.runs[2] == "" {
		return c, fmt.Errorf("runs of %q = %q, want one on each host", question, c.runs)
	}
	return c, nil
}

// within is a transport of a caller that has a trace of its own.
type within chain

func (c within) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Traceparent", "00-"+c.trace+"-"+c.span+"-01")
	return direct.Transport.RoundTrip(r)
}

// random returns n bytes in hexadecimal.
func random(n int) string {
	b := make([]byte, n)
	rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

// askTogether sends many questions, each of several callers one after another,
// once the hosts have found each other.
func (n namespace) askTogether(t *testing.T) []chain {
	t.Helper()
	const callers, each = 8, 4
	n.awaitChain(t)
	var mu sync.Mutex
	var all []chain
	var together sync.WaitGroup
	for i := range callers {
		together.Go(func() {
			for j := range each {
				c, err := n.ask(t.Context(), fmt.Sprintf("question %d of caller %d", j, i))
				if err != nil {
					t.Errorf("question %d of caller %d: %v", j, i, err)
					return
				}
				mu.Lock()
				all = append(all, c)
				mu.Unlock()
			}
		})
	}
	together.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return all
}

// awaitChain waits until a question finds its way: a Service lags behind its pods.
func (n namespace) awaitChain(t *testing.T) (c chain) {
	t.Helper()
	eventually(t, "the hosts answer", func() (err error) {
		c, err = n.ask(t.Context(), "are you there?")
		return err
	})
	return c
}

// checkWalks walks from the last run of each chain to the first, from inside the
// last host's pod, by the program in the sidecar.
func (n namespace) checkWalks(t *testing.T, chains []chain) {
	t.Helper()
	const atOnce = 4
	slots := make(chan struct{}, atOnce)
	var all sync.WaitGroup
	for _, c := range chains {
		all.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			n.checkWalk(t, c)
		})
	}
	all.Wait()
}

func (n namespace) checkWalk(t *testing.T, c chain) {
	t.Helper()
	type hop struct {
		RunID, HostID, Base, Cause string
		Confirmed                  bool
	}
	type walk struct {
		Hops []hop
		Stop string
	}
	want := walk{Stop: "root"}
	for i := len(hosts) - 1; i >= 0; i-- {
		h := hop{RunID: c.runs[i], HostID: n.hostID(i), Base: "http://" + n.address(i), Confirmed: true}
		if i < len(hosts)-1 {
			h.Cause = hosts[i+1].cause
		}
		want.Hops = append(want.Hops, h)
	}
	last := len(hosts) - 1
	args := []string{
		"exec", "--stdin", "deployment/" + hosts[last].name, "--container=wopproxy", "--",
		"/usr/bin/wopproxy", "ancestry", c.runs[last], "-host", "http://" + n.address(last), "-bearer-file", "/dev/stdin", "-json", "-timeout", "2m",
	}
	for i := range hosts {
		args = append(args, "-allow", n.address(i), "-bearer-for", "http://"+n.address(i))
	}
	out, err := n.try(t, token, args...)
	var got walk
	if err = errors.Join(err, json.Unmarshal([]byte(out), &got)); err != nil {
		t.Errorf("walk from %s: %v", c.runs[last], err)
		return
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("walk from %s (-want +got):\n%s", c.runs[last], diff)
	}
}
