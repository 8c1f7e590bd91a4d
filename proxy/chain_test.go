package proxy

import (
	"context"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/wopproxy/wopproxy/ancestry"
)

// sidecar is a Proxy with real listeners in front of and behind one host.
type sidecar struct {
	*Proxy
	ingress, egress *httptest.Server
	recorder        *ancestry.Recorder
	*notebook
	reg     *prometheus.Registry
	handled inFlight // by either listener, what is inside of tunnels left out
}

// newSidecar starts a Proxy for the host at upstream.
func newSidecar(t testing.TB, hostID, upstream string, tune ...func(*Options, *Policy)) *sidecar {
	t.Helper()
	return newSidecarOn(t, ancestry.NewMemory(), hostID, upstream, tune...)
}

// newSidecarOn starts a Proxy that records to store, as another replica or
// after a restart.
func newSidecarOn(t testing.TB, store ancestry.Store, hostID, upstream string, tune ...func(*Options, *Policy)) *sidecar {
	t.Helper()
	s := assemble(t, store, hostID, upstream, tune...)
	s.ingress = newServer(s.handled.wrap(s.CheckOrigin(s.Ingress())))
	s.egress = newServer(s.handled.wrap(s.Egress()))
	t.Cleanup(func() {
		s.ingress.Close()
		s.egress.Close()
		// Whatever a test has left open goes now, so that no upstream waits for it.
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = s.Drain(ctx)
	})
	return s
}

// assemble makes a Proxy and its recorder, without listeners.
func assemble(t testing.TB, store ancestry.Store, hostID, upstream string, tune ...func(*Options, *Policy)) *sidecar {
	t.Helper()
	s := &sidecar{reg: prometheus.NewRegistry()}
	s.recorder = ancestry.NewRecorder(store, ancestry.RecorderOptions{})
	s.notebook = &notebook{Recorder: s.recorder}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); s.recorder.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	u, err := url.Parse(upstream)
	if err != nil {
		t.Fatal(err)
	}
	o := Options{
		HostID: hostID, WellKnown: "https://" + hostID + "/.well-known/openwop", Upstream: u,
		Recorder: s.notebook, SingleFlight: true, Registerer: s.reg,
	}
	pol := Policy{
		Starts: func(method, path string) bool { return method+path == "POST/chat" },
		Sample: 1, Propagators: []string{"b3", "jaeger", "xray", "ottrace"},
		CommitTimeout: time.Minute, // a busy machine must not change what is counted
	}
	for _, f := range tune {
		f(&o, &pol)
	}
	if s.Proxy, err = New(o, pol); err != nil {
		t.Fatal(err)
	}
	return s
}

// notebook remembers the order of what was recorded.
type notebook struct {
	Recorder
	mu    sync.Mutex
	links []ancestry.Link
}

func (n *notebook) Record(l ancestry.Link) ancestry.Commit {
	n.mu.Lock()
	n.links = append(n.links, l)
	n.mu.Unlock()
	return n.Recorder.Record(l)
}

// noted returns what was recorded, in order.
func (n *notebook) noted() []ancestry.Link {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.links)
}

// recorded returns what is known of the runs of this host, in the order in which
// they began.
func (n *notebook) recorded(t testing.TB) []ancestry.Link {
	t.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	var runs []ancestry.Link
	seen := map[ancestry.RunID]bool{}
	for _, l := range n.links {
		if l.Host != "" || seen[l.Run] {
			continue
		}
		seen[l.Run] = true
		whole, err := n.Lookup(t.Context(), l.Run)
		if err != nil {
			t.Fatalf("Lookup(%s): %v", l.Run, err)
		}
		runs = append(runs, whole)
	}
	return runs
}

// client calls out through the sidecar.
func (s *sidecar) client() *http.Client {
	u, _ := url.Parse(s.egress.URL)
	return &http.Client{Transport: &http.Transport{Proxy: http.ProxyURL(u), DisableCompression: true}}
}

func post(t testing.TB, c *http.Client, url, body string, header http.Header) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequest(http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	maps.Copy(req.Header, header)
	req.Header.Set("Content-Type", "application/json")
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(b)
}

const call = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"search","arguments":{"q":"x"}}}`

// TestTwoHosts is the promise in its smallest form: a run that a plain request
// begins on one host is the recorded parent of the run that its MCP call begins
// on another, though the first host forwards nothing.
func TestTwoHosts(t *testing.T) {
	tools := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if !strings.Contains(string(body), r.Header.Get("Traceparent")) {
			t.Errorf("header %q and body %s disagree", r.Header.Get("Traceparent"), body)
		}
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, `{"jsonrpc":"2.0","id":1,"result":{"content":[]}}`)
	}))
	defer tools.Close()
	callee := newSidecar(t, "tools.example.com", tools.URL)

	var caller *sidecar
	agent := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, answer := post(t, caller.client(), callee.ingress.URL+"/mcp", call, nil)
		io.WriteString(w, answer)
	}))
	defer agent.Close()
	caller = newSidecar(t, "agent.example.com", agent.URL)

	if _, got := post(t, http.DefaultClient, caller.ingress.URL+"/chat", `{}`, nil); !strings.Contains(got, "result") {
		t.Fatalf("answer = %s", got)
	}
	parents, children := caller.recorded(t), callee.recorded(t)
	if len(parents) != 1 || len(children) != 1 {
		t.Fatalf("runs: %v, %v, want one on each side", parents, children)
	}
	parent, child := parents[0], children[0]
	p := child.Parent()
	if p == nil || p.Run != parent.Run || p.Host != "agent.example.com" || p.Cause != ancestry.CauseMCPToolCall {
		t.Errorf("parent of %s = %+v, want %s", child.Run, p, parent.Run)
	}
	if child.Trace != parent.Trace {
		t.Errorf("trace ids %s and %s, want one", child.Trace, parent.Trace)
	}
	kids, _, err := caller.recorder.Children(t.Context(), parent.Run, "", 10)
	if err != nil || len(kids) != 1 || kids[0].Run != child.Run || kids[0].Evidence != ancestry.EvidenceSingleFlight {
		t.Errorf("children noted by the caller = %+v, %v, want %s by single-flight", kids, err, child.Run)
	}
}

// TestReusedRunID: a host that gives an id a second time, without saying that it
// repeats an earlier answer, has begun another run. The first one keeps its name
// and its parent, and the second is not taken for it.
func TestReusedRunID(t *testing.T) {
	replay := ""
	host := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if replay != "" {
			w.Header().Set("OpenWOP-Idempotent-Replay", replay)
		}
		w.WriteHeader(http.StatusCreated)
		io.WriteString(w, `{"runId":"run-1","status":"pending"}`)
	}))
	defer host.Close()
	s := newSidecar(t, "h.example.com", host.URL)
	create := func(parent string) {
		post(t, http.DefaultClient, s.ingress.URL+"/v1/runs", `{"workflowId":"w"}`, http.Header{
			"Run-Ancestry": {`"` + parent + `";host="up.example.com";cause=core.dispatch`},
		})
	}
	create("p-1")
	create("p-2") // reused
	replay = "true"
	create("p-3") // declared
	for i, want := range []struct{ alias, parent ancestry.RunID }{{"run-1", "p-1"}, {"", "p-2"}, {"run-1", "p-1"}} {
		if got := s.recorded(t)[i]; got.Alias != want.alias || got.Parent() == nil || got.Parent().Run != want.parent {
			t.Errorf("run %d = %+v, want alias %q and parent %s", i+1, got, want.alias, want.parent)
		}
	}
	if n := testutil.ToFloat64(s.metrics.ambiguous); n != 1 {
		t.Errorf("ambiguous runs = %v, want 1", n)
	}
}
