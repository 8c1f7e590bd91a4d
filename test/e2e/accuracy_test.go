package e2e

import (
	"context"
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const (
	concurrentRuns = 200
	callsPerRun    = 2
)

// TestAccuracy lets many runs call out at once through one host and compares
// every link with the truth, which only the test knows. A host that forwards
// its trace headers, as any OpenTelemetry host does, gets all links; one that
// forwards nothing gets those that are certain, and the rest is counted. None
// is ever wrong.
func TestAccuracy(t *testing.T) {
	for _, tt := range []struct {
		name     string
		forwards func(run int) bool
	}{
		{"all forward", func(int) bool { return true }},
		{"none forwards", func(int) bool { return false }},
		{"every other forwards", func(run int) bool { return run%2 == 0 }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tools := newToolServer(t, "tools.example.com", stateless)
			a := newAgent(t, "agent.example.com")
			// One session for all runs, as hosts have it: the connection says
			// nothing of who calls.
			c := a.client(t)
			c.Transport = forwarding{c.Transport}
			cs, err := tools.connect(t.Context(), c, tools.endpoint())
			if err != nil {
				t.Fatal(err)
			}
			attributed, abstained := a.metric(t, "wopproxy_attributions_total"), a.metric(t, "wopproxy_abstentions_total")

			truth := callAll(t, a, cs, tt.forwards)
			if err := cs.Close(); err != nil {
				t.Error(err)
			}
			if t.Failed() {
				return
			}
			got := judge(t, a, tools, truth)
			t.Logf("%d calls: %+v", len(truth), got)
			if got.wrong > 0 {
				t.Errorf("wrong links = %d, want 0", got.wrong)
			}
			if got.missed > 0 {
				t.Errorf("links missing of runs whose host forwards = %d, want 0", got.missed)
			}
			attributed = a.metric(t, "wopproxy_attributions_total") - attributed
			abstained = a.metric(t, "wopproxy_abstentions_total") - abstained
			if int(attributed) != got.asserted || int(abstained) != len(truth)-got.asserted {
				t.Errorf("counted: %v attributed, %v abstained; want %d and %d", attributed, abstained, got.asserted, len(truth)-got.asserted)
			}
		})
	}
}

// TestAccuracyLeftBehind has a host that answers first and calls afterwards, one
// run after the other, and forwards nothing. When a call leaves, the only run
// that is live is the next one, which has nothing to do with it.
func TestAccuracyLeftBehind(t *testing.T) {
	const runs = 40
	tools := newToolServer(t, "tools.example.com", stateless)
	a := newAgent(t, "agent.example.com")
	cs, err := tools.connect(t.Context(), a.client(t), tools.endpoint())
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	truth := map[string]fact{}
	var left sync.WaitGroup
	for range runs {
		a.chat(t, func(_ context.Context, in *http.Request) error {
			token := randomHex(8)
			mu.Lock()
			truth[`{"token":"`+token+`"}`] = fact{caller: in.Header.Get("Run-Id")}
			mu.Unlock()
			left.Go(func() {
				think()
				think()
				if err := callTool(t.Context(), cs, "echo", map[string]any{"token": token}, `{"token":"`+token+`"}`, false); err != nil {
					t.Error(err)
				}
			})
			think()
			return nil
		})
	}
	left.Wait()
	if err := cs.Close(); err != nil {
		t.Error(err)
	}
	if got := judge(t, a, tools, truth); got.wrong > 0 {
		t.Errorf("of %d calls: %+v, want none wrong", runs, got)
	}
}

// fact is the truth about one call.
type fact struct {
	caller   string // the run that made it
	forwards bool   // its host has forwarded the trace headers
}

// callAll starts all runs at once and returns the truth by the token of each
// call.
func callAll(t *testing.T, a *agent, cs *mcp.ClientSession, forwards func(int) bool) map[string]fact {
	var mu sync.Mutex
	truth := map[string]fact{}
	var all sync.WaitGroup
	for i := range concurrentRuns {
		all.Go(func() {
			_, err := a.tryChat(t.Context(), func(ctx context.Context, in *http.Request) error {
				if forwards(i) {
					ctx = context.WithValue(ctx, forwardedKey{}, in)
				}
				for range callsPerRun {
					think()
					token := randomHex(8)
					mu.Lock()
					truth[`{"token":"`+token+`"}`] = fact{in.Header.Get("Run-Id"), forwards(i)}
					mu.Unlock()
					if err := callTool(ctx, cs, "echo", map[string]any{"token": token}, `{"token":"`+token+`"}`, false); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				t.Errorf("run %d: %v", i, err)
			}
		})
	}
	all.Wait()
	if len(truth) != concurrentRuns*callsPerRun {
		t.Errorf("calls made = %d, want %d", len(truth), concurrentRuns*callsPerRun)
	}
	return truth
}

// verdict is what became of the links of some calls.
type verdict struct{ asserted, right, wrong, missed int }

// judge asks for the parent of each run that a call has started on the server,
// and for the children of each caller.
func judge(t *testing.T, a *agent, s *toolServer, truth map[string]fact) verdict {
	calls, _ := s.seen()
	if len(calls) != len(truth) {
		t.Errorf("calls that arrived = %d, want %d", len(calls), len(truth))
	}
	var v verdict
	caused := map[string]map[string]bool{} // by caller: the runs it caused
	for _, c := range calls {
		f, ok := truth[c.args]
		if !ok {
			t.Errorf("call with %s was never made", c.args)
			continue
		}
		if caused[f.caller] == nil {
			caused[f.caller] = map[string]bool{}
		}
		caused[f.caller][c.run] = true
		switch p := s.parent(t, c.run); {
		case p == (ancestor{}):
			if f.forwards {
				v.missed++
			}
		case p.RunID == f.caller && p.HostID == a.hostID:
			v.asserted, v.right = v.asserted+1, v.right+1
		default:
			v.asserted, v.wrong = v.asserted+1, v.wrong+1
		}
	}
	noted := 0
	for caller, runs := range caused {
		for _, l := range a.children(t, caller) {
			noted++
			if !runs[l.RunID] {
				t.Errorf("run %s is noted as a child of %s, which did not cause it", l.RunID, caller)
			}
		}
	}
	if noted != v.asserted {
		t.Errorf("children noted by the callers = %d, want %d as on the server", noted, v.asserted)
	}
	return v
}

// forwardedKey is the context key of the request whose headers are forwarded.
type forwardedKey struct{}

// forwarding sends on the trace of the request that began the run, in a span
// of the host's own.
type forwarding struct{ next http.RoundTripper }

func (f forwarding) RoundTrip(r *http.Request) (*http.Response, error) {
	if in, ok := r.Context().Value(forwardedKey{}).(*http.Request); ok {
		r = r.Clone(r.Context())
		for name, v := range ownSpan(in) {
			r.Header[name] = v
		}
	}
	return f.next.RoundTrip(r)
}

// think takes a few milliseconds, so that runs overlap in every order.
func think() {
	<-time.After(time.Duration(rand.IntN(5000)) * time.Microsecond)
}
