package e2e

import (
	"context"
	"maps"
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

// host is how a host treats the trace headers of the request that began a run.
type host int

const (
	silent     host = iota // forwards nothing
	forwarding             // forwards the trace and its state, as OpenTelemetry does
	traceOnly              // forwards the trace alone
)

// TestAccuracy is what test/accuracy does not measure: hosts of which only some
// runs forward their trace headers, or only a part of them, with the official
// SDK as their client. It lets many runs call out at once through one host and
// compares every link with the truth, which only the test knows. What is certain
// is linked, and the rest is counted. None is ever wrong.
func TestAccuracy(t *testing.T) {
	all := func(h host) func(int) host { return func(int) host { return h } }
	for _, tt := range []struct {
		name     string
		host     func(run int) host
		oneTrace bool   // the callers of all runs are in the same trace
		evidence string // what names the caller of each call that has to be linked
	}{
		{"every other forwards", func(run int) host { return host(run % 2) }, false, "trace-state"},
		{"all forward the trace alone", all(traceOnly), false, "trace-id"},
		{"one trace, all forward", all(forwarding), true, "trace-state"},
		{"one trace, forwarded alone", all(traceOnly), true, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tools := newToolServer(t, "tools.example.com", stateless)
			a := newAgent(t, "agent.example.com")
			// One session for all runs, as hosts have it: the connection says
			// nothing of who calls.
			c := a.client(t)
			c.Transport = tracer{c.Transport}
			cs, err := tools.connect(t.Context(), c, tools.endpoint())
			if err != nil {
				t.Fatal(err)
			}
			attributed, abstained := a.metric(t, "wopproxy_attributions_total"), a.metric(t, "wopproxy_abstentions_total")

			header := func() http.Header { return nil }
			if tt.oneTrace {
				trace := randomHex(16)
				header = func() http.Header {
					return http.Header{"Traceparent": {"00-" + trace + "-" + randomHex(8) + "-01"}}
				}
			}
			truth := callAll(t, a, cs, header, tt.host)
			if err := cs.Close(); err != nil {
				t.Error(err)
			}
			if t.Failed() {
				return
			}
			for args, f := range truth {
				f.certain = tt.evidence != "" && f.host != silent
				truth[args] = f
			}
			got := judge(t, a, tools, truth)
			t.Logf("%d calls: %+v", len(truth), got)
			if got.wrong > 0 {
				t.Errorf("wrong links = %d, want 0", got.wrong)
			}
			if got.missed > 0 {
				t.Errorf("links missing of runs whose host forwards = %d, want 0", got.missed)
			}
			if by := a.metric(t, "wopproxy_attributions_total", `evidence="`+tt.evidence+`"`); int(by) < got.certain {
				t.Errorf("calls attributed by %s = %v, want %d", tt.evidence, by, got.certain)
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
	caller  string // the run that made it
	host    host   // how its host treated the trace headers
	certain bool   // and so its link has to be there
}

// callAll starts all runs at once and returns the truth by the token of each
// call.
func callAll(t *testing.T, a *agent, cs *mcp.ClientSession, header func() http.Header, hostOf func(run int) host) map[string]fact {
	var mu sync.Mutex
	truth := map[string]fact{}
	var all sync.WaitGroup
	for i := range concurrentRuns {
		all.Go(func() {
			_, err := a.tryChat(t.Context(), header(), func(ctx context.Context, in *http.Request) error {
				ctx = context.WithValue(ctx, headersKey{}, hostOf(i).headers(in))
				for range callsPerRun {
					think()
					token := randomHex(8)
					mu.Lock()
					truth[`{"token":"`+token+`"}`] = fact{caller: in.Header.Get("Run-Id"), host: hostOf(i)}
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
type verdict struct{ certain, asserted, right, wrong, missed int }

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
		if f.certain {
			v.certain++
		}
		switch p := s.parent(t, c.run); {
		case p == (ancestor{}):
			if f.certain {
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

// headers returns what a call sends on of the headers of in.
func (h host) headers(in *http.Request) http.Header {
	switch h {
	case forwarding:
		return ownSpan(in)
	case traceOnly:
		sent := ownSpan(in)
		delete(sent, "Tracestate")
		return sent
	}
	return nil
}

// headersKey is the context key of the headers that a call sends on.
type headersKey struct{}

// tracer adds them, as a host's instrumentation does.
type tracer struct{ next http.RoundTripper }

func (tr tracer) RoundTrip(r *http.Request) (*http.Response, error) {
	h, _ := r.Context().Value(headersKey{}).(http.Header)
	r = r.Clone(r.Context())
	maps.Copy(r.Header, h)
	return tr.next.RoundTrip(r)
}

// think takes a few milliseconds, so that runs overlap in every order.
func think() {
	<-time.After(time.Duration(rand.IntN(5000)) * time.Microsecond)
}
