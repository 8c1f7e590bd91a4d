package e2e

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// owWalk is what "wopproxy ancestry -json" prints.
type owWalk struct {
	Hops []owHop
	Stop string
}

type owHop struct {
	RunID, HostID, Cause string
	Confirmed            bool
}

// owWalkFrom lets the program walk from a run of a host, and checks that its
// exit code says whether it came to the root.
func owWalkFrom(t testing.TB, h *owHost, run string, flags ...string) owWalk {
	t.Helper()
	p := execute(t, append([]string{"ancestry", run, "-host", h.public, "-json"}, flags...)...)
	code := p.wait(t)
	w := decode[owWalk](t, p.stdout.Bytes())
	if (code == 0) != (w.Stop == "root") {
		t.Errorf("exit code %d after a walk that stopped for %s", code, w.Stop)
	}
	return w
}

// TestOpenWOPWalk walks over ten hosts of both majors, and again when one in the
// middle has lost its proxy, and one of them is gone.
func TestOpenWOPWalk(t *testing.T) {
	const n = 10
	hosts := make([]*owHost, n)
	for i := range hosts {
		hosts[i] = newOWHost(t, fmt.Sprintf("h%d.example.com", i), 1+i%2, fmt.Sprintf("127.0.0.%d", 2+i))
	}
	p := owPlan{Label: "leaf"}
	for i := n - 2; i >= 0; i-- {
		// A2A, which names the child, and now and then MCP, which does not.
		p = owPlan{Label: "inner", Wait: i == 0, Calls: []owCall{{Via: []string{"a2a", "mcp", "a2a"}[i%3], To: hosts[i+1].at(), Plan: p}}}
	}
	root := hosts[0].begun(t, p, nil)
	hosts[0].open()
	if err := root.await(t); err != nil {
		t.Fatal(err)
	}
	want := owWalk{Stop: "root"}
	own := map[string]string{} // by the minted id
	for i := n - 1; i >= 0; i-- {
		h := hosts[i]
		h.mu.Lock()
		run := h.order[0]
		h.mu.Unlock()
		own[run.minted] = run.id
		hop := owHop{RunID: run.minted, HostID: h.hostID, Confirmed: true}
		if i < n-1 {
			hop.Cause = []string{"a2a-message", "mcp-tool-call", "a2a-message"}[i%3]
		}
		want.Hops = append(want.Hops, hop)
	}
	leaf := want.Hops[0].RunID
	got := owWalkFrom(t, hosts[n-1], leaf, "-allow", "127.0.0.0/8")
	for i, hop := range got.Hops {
		// One run, two names. A host calls out before it has told its own.
		if i < n && own[want.Hops[i].RunID] == hop.RunID {
			got.Hops[i].RunID = want.Hops[i].RunID
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("walk over %d hosts (-want +got):\n%s", n, diff)
	}
	short := owWalkFrom(t, hosts[n-1], leaf, "-allow", "127.0.0.0/8", "-hops", "4")
	if len(short.Hops) != 5 || short.Stop != "too-deep" {
		t.Errorf("walk of 4 hops = %d hops, %s, want 5 of which the last was not asked, too-deep", len(short.Hops), short.Stop)
	}

	bare, err := url.Parse(hosts[5].base)
	if err != nil {
		t.Fatal(err)
	}
	hosts[5].frontTo.Store(bare)
	stopped := owWalkFrom(t, hosts[n-1], leaf, "-allow", "127.0.0.0/8")
	if len(stopped.Hops) != n-5 || stopped.Stop != "not-found" || stopped.Hops[n-6].Confirmed || stopped.Hops[n-6].HostID != "h5.example.com" {
		t.Errorf("walk to a host that has lost its proxy = %+v, want not-found there, unconfirmed", stopped)
	}
	hosts[7].stop(t)
	gone := owWalkFrom(t, hosts[n-1], leaf, "-allow", "127.0.0.0/8")
	if len(gone.Hops) != n-7 || gone.Stop != "unreachable" {
		t.Errorf("walk to a host that is gone = %+v, want unreachable", gone)
	}
}

// TestOpenWOPHostWithoutProxy has a host in the middle that sends on the trace of
// its caller and no more: the run it causes has no known parent, rather than the
// one before it.
func TestOpenWOPHostWithoutProxy(t *testing.T) {
	front := newOWHost(t, "front.example.com", 1, "127.0.0.2")
	middle := newOWHost(t, "middle.example.com", 2, "127.0.0.3")
	last := newOWHost(t, "last.example.com", 1, "127.0.0.4")
	middle.mu.Lock()
	middle.client = direct
	middle.mu.Unlock()
	run := front.begun(t, owPlan{Label: "root", Calls: []owCall{{Via: "a2a", To: "2 " + middle.base, Plan: owPlan{Label: "middle", Calls: []owCall{
		{Via: "a2a", To: last.at(), Plan: owPlan{Label: "last"}},
	}}}}}, nil)
	if err := run.await(t); err != nil {
		t.Fatal(err)
	}
	got, child := last.parentOf(t, "last", "a2a")
	if got != (ancestor{}) {
		t.Errorf("parent = %+v, want none: nobody has told", got)
	}
	if trace := traceOf(child.trace.Get("Traceparent")); trace == "" || trace != traceOf(run.trace.Get("Traceparent")) {
		t.Errorf("trace of the last run = %q, want that of the first: the trace is all that has crossed", trace)
	}
	if w := owWalkFrom(t, last, child.id); len(w.Hops) != 1 || w.Stop != "root" {
		t.Errorf("walk = %+v, want the run alone", w)
	}
}

// forgedAncestry is the header of who says that a run was caused by another.
func forgedAncestry(run, host, wellKnown string) http.Header {
	return http.Header{"Run-Ancestry": {fmt.Sprintf("%q;host=%q;wk=%q;cause=a2a-message", run, host, wellKnown)}}
}

// TestOpenWOPForgedPointer: a caller may claim any parent where callers are
// trusted; the host that is named does not confirm it. Where they are not, it is
// no parent.
func TestOpenWOPForgedPointer(t *testing.T) {
	named := newOWHost(t, "named.example.com", 2, "127.0.0.2")
	forged := forgedAncestry("acme/0123456789abcdef", named.hostID, named.public+"/.well-known/openwop")
	trusting := newOWHost(t, "trusting.example.com", 2, "127.0.0.3")
	run := trusting.begun(t, owPlan{Label: "root"}, forged)
	want := owWalk{Stop: "not-found", Hops: []owHop{
		{RunID: run.id, HostID: "trusting.example.com", Confirmed: true},
		{RunID: "acme/0123456789abcdef", HostID: "named.example.com", Cause: "a2a-message"},
	}}
	if diff := cmp.Diff(want, owWalkFrom(t, trusting, run.id, "-allow", "127.0.0.0/8")); diff != "" {
		t.Errorf("walk over a forged pointer (-want +got):\n%s", diff)
	}
	// Somebody else's id at the host's address is no confirmation either.
	run = trusting.begun(t, owPlan{Label: "other"}, forgedAncestry(run.id, "impostor.example.com", trusting.public+"/.well-known/openwop"))
	if w := owWalkFrom(t, trusting, run.id, "-allow", "127.0.0.0/8"); w.Stop != "inconsistent" || w.Hops[1].Confirmed {
		t.Errorf("walk to a host under another name = %+v, want inconsistent, unconfirmed", w)
	}
	wary := newOWHost(t, "wary.example.com", 2, "127.0.0.4", settings{"trust.ingress.mode": "none"})
	if got := wary.ancestry(t, wary.begun(t, owPlan{Label: "root"}, forged).id); got != (ancestor{}) {
		t.Errorf("parent where nobody is trusted = %+v, want none", got)
	}
}

// TestOpenWOPHostileParents walks to hosts that mean harm. Each walk ends in
// time, for a reason, and nobody is asked who may not be.
func TestOpenWOPHostileParents(t *testing.T) {
	h := newOWHost(t, "host.example.com", 1, "127.0.0.2")
	asked := make(chan string, 16)
	secret := serveHost(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { asked <- r.URL.Path }))
	hang := make(chan struct{})
	hostile := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasPrefix(r.URL.Path, "/huge/"):
			for range 64 {
				if _, err := w.Write(make([]byte, 1<<20)); err != nil {
					return
				}
			}
		case strings.HasPrefix(r.URL.Path, "/redirect/"):
			http.Redirect(w, r, secret+r.URL.Path, http.StatusFound)
		case strings.HasPrefix(r.URL.Path, "/slow/"):
			select {
			case <-hang:
			case <-r.Context().Done():
			}
		case strings.HasPrefix(r.URL.Path, "/loop/"):
			_, _ = fmt.Fprintf(w, `{"runId":"p","hostId":"p.example.com","parent":{"runId":"q","hostId":"p.example.com","cause":"core.dispatch"}}`)
		default:
			_, _ = w.Write([]byte(`<html>`))
		}
	}))
	t.Cleanup(hostile.Close)
	t.Cleanup(func() { close(hang) })
	at := hostile.Listener.Addr().String()
	for _, tt := range []struct{ name, wellKnown, stop string }{
		{"huge", "http://" + at + "/huge", "invalid-answer"},
		{"redirect", "http://" + at + "/redirect", "invalid-answer"},
		{"slow", "http://" + at + "/slow", "timeout"},
		{"html", "http://" + at, "invalid-answer"},
		{"another run", "http://" + at + "/loop", "inconsistent"},
		{"private address", "https://10.1.2.3", "not-allowed"},
		{"metadata of the cloud", "http://169.254.169.254", "not-allowed"},
		{"loopback that is not listed", secret, "not-allowed"},
		{"file", "file:///etc", ""},
		{"credentials", "https://user:word@example.com", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			run := h.begun(t, owPlan{Label: tt.name}, forgedAncestry("p", "p.example.com", tt.wellKnown+"/.well-known/openwop"))
			if tt.name == "another run" {
				run = h.begun(t, owPlan{Label: tt.name}, forgedAncestry("q", "p.example.com", tt.wellKnown+"/.well-known/openwop"))
			}
			began := time.Now()
			w := owWalkFrom(t, h, run.id, "-allow", at, "-timeout", "2s")
			if tt.stop == "" { // such a pointer is not even recorded
				if len(w.Hops) != 1 || w.Stop != "root" {
					t.Errorf("walk = %+v, want the run alone", w)
				}
				return
			}
			if len(w.Hops) != 2 || w.Stop != tt.stop || w.Hops[1].Confirmed {
				t.Errorf("walk = %+v, want a second hop, unconfirmed, and %s", w, tt.stop)
			}
			if d := time.Since(began); d > patience/2 {
				t.Errorf("walk took %v", d)
			}
		})
	}
	select {
	case path := <-asked:
		t.Errorf("a host that was not listed was asked for %s", path)
	default:
	}
}

// TestOpenWOPLoop walks to a host that points back at the run it was come from.
func TestOpenWOPLoop(t *testing.T) {
	h := newOWHost(t, "host.example.com", 2, "127.0.0.2")
	var back atomic.Value
	liar := serveHost(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"runId":"acme/0123456789abcdef","hostId":"liar.example.com","parent":{"runId":%q,"hostId":"host.example.com","cause":"a2a-message","wellKnownUrl":%q}}`,
			back.Load(), h.public+"/.well-known/openwop")
	}))
	run := h.begun(t, owPlan{Label: "root"}, forgedAncestry("acme/0123456789abcdef", "liar.example.com", liar+"/.well-known/openwop"))
	back.Store(run.id)
	if w := owWalkFrom(t, h, run.id, "-allow", "127.0.0.0/8"); w.Stop != "loop" || len(w.Hops) != 2 {
		t.Errorf("walk = %+v, want two hops and the loop", w)
	}
}

// TestOpenWOPRunaway lets two hosts delegate to each other without end: the depth
// is bounded, or the visits of each, and the refusal names the chain.
func TestOpenWOPRunaway(t *testing.T) {
	for _, tt := range []struct {
		limit string
		runs  int // that begin at all
	}{
		{"limits.maxDepth", 4},         // the first, and three below it
		{"limits.maxVisitsPerHost", 8}, // each host three times above its last
	} {
		for _, via := range []string{"a2a", "mcp"} {
			t.Run(tt.limit+" "+via, func(t *testing.T) {
				t.Parallel()
				one := newOWHost(t, "one.example.com", 1, "127.0.0.2", settings{tt.limit: 3})
				two := newOWHost(t, "two.example.com", 2, "127.0.0.3", settings{tt.limit: 3})
				p := owPlan{Label: "leaf"}
				for i := 11; i >= 0; i-- {
					to := two
					if i%2 == 1 {
						to = one
					}
					p = owPlan{Label: "inner", Calls: []owCall{{Via: via, To: to.at(), Plan: p}}}
				}
				root := one.begun(t, p, nil)
				_ = root.await(t) // it has failed, or one below it
				var runs []*owRun
				for _, h := range []*owHost{one, two} {
					h.mu.Lock()
					runs = append(runs, h.order...)
					h.mu.Unlock()
				}
				refused := ""
				for _, r := range runs {
					if err := r.await(t); err != nil && strings.Contains(err.Error(), " answered 508 ") {
						refused += err.Error()
					}
				}
				if len(runs) != tt.runs || !strings.Contains(refused, tt.limit) || !strings.Contains(refused, `"jsonrpc":"2.0"`) || !strings.Contains(refused, "one.example.com") {
					t.Errorf("%d runs, and refused: %s\nwant %d runs, and a JSON-RPC error that names %s and the chain", len(runs), refused, tt.runs, tt.limit)
				}
			})
		}
	}
}
