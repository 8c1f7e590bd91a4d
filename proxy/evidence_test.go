package proxy

import (
	"context"
	"crypto/ed25519"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/wopproxy/wopproxy/ancestry"
	"github.com/wopproxy/wopproxy/ancestry/peac"
	"github.com/wopproxy/wopproxy/evidence"
)

// file is where the receipts of a sidecar are, and who signs them.
type file struct {
	*evidence.Memory
	minter *evidence.Minter
	issuer string
	public ed25519.PublicKey
	stop   func() // signs what was observed, and nothing more
}

// newFile returns a minter that runs until stop is called.
func newFile(t testing.TB, issuer string, tune ...func(*evidence.Options)) *file {
	t.Helper()
	seed := make([]byte, ed25519.SeedSize)
	copy(seed, issuer)
	key := ed25519.NewKeyFromSeed(seed)
	f := &file{Memory: evidence.NewMemory(), issuer: issuer, public: key.Public().(ed25519.PublicKey)}
	o := evidence.Options{
		Issuer: issuer, Host: strings.TrimPrefix(issuer, "https://"), Store: f.Memory, IDKey: []byte("0123456789abcdef0123456789abcdef"),
		Recall: time.Hour,
		Keys:   []evidence.Key{{Rotation: peac.Rotation{KeyID: "one", Public: f.public}, Private: key}},
	}
	for _, f := range tune {
		f(&o)
	}
	var err error
	if f.minter, err = evidence.New(o); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); f.minter.Run(ctx) }()
	f.stop = func() { cancel(); <-done }
	t.Cleanup(f.stop)
	return f
}

// tune has a sidecar make evidence.
func (f *file) tune(o *Options, _ *Policy) { o.Evidence = f.minter }

// of returns all receipts of a workflow, read back and verified.
func (f *file) of(t testing.TB, workflow string) (receipts []peac.Receipt, external []string) {
	t.Helper()
	stored, next, err := f.Receipts(t.Context(), workflow, "", 1000)
	if err != nil || next != "" {
		t.Fatal(err, next)
	}
	keys := peac.JWKS{Keys: []peac.JWK{peac.NewJWK("one", f.public)}}.Of(f.issuer)
	for _, s := range stored {
		r, err := peac.Verify(s.JWS, keys, time.Now())
		if err != nil {
			t.Fatalf("%v: %s", err, s.JWS)
		}
		receipts = append(receipts, r)
		external = append(external, s.External...)
	}
	if faults := peac.CheckSet(receipts, external); len(faults) > 0 {
		t.Errorf("faults of the set: %+v", faults)
	}
	return receipts, external
}

// TestEvidenceOfACall has an MCP call into the host leave a receipt that verifies.
func TestEvidenceOfACall(t *testing.T) {
	to := peer(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"jsonrpc":"2.0","id":1,"result":{"content":[]}}`))
	})
	f := newFile(t, "https://agent.example.com")
	s := newSidecar(t, "agent.example.com", "http://"+to, f.tune)
	post(t, http.DefaultClient, s.ingress.URL+"/mcp", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"search"}}`, benchMCP)
	s.handled.wait(t)
	f.stop()
	run := s.recorded(t)[0]
	if run.Workflow == "" {
		t.Fatalf("the run %+v has no workflow", run)
	}
	receipts, _ := f.of(t, run.Workflow)
	if len(receipts) != 1 {
		t.Fatalf("%d receipts, want 1", len(receipts))
	}
	if got, want := toldOf(receipts), []string{"ingress mcp 0: invoked ok"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// TestEvidenceOfUnreadAnswers: of an answer that nobody has read it is not said how the
// call has ended.
func TestEvidenceOfUnreadAnswers(t *testing.T) {
	const call = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"search"}}`
	const failed = `{"jsonrpc":"2.0","id":1,"error":{"code":-32000,"message":"no"}}`
	for _, tt := range []struct {
		name, body string
		header     http.Header
		answer     string
		want       string
	}{
		{"an error", call, http.Header{"Content-Type": {"application/json"}}, failed, "protocol_error"},
		{"an event with one", call, http.Header{"Content-Type": {"text/event-stream"}}, "data: " + failed + "\n\n", "protocol_error"},
		{"compressed", call, http.Header{"Content-Type": {"application/json"}, "Content-Encoding": {"br"}}, failed, "ongoing"},
		{"no JSON", call, http.Header{"Content-Type": {"text/html"}}, "<p>no</p>", "ongoing"},
		{"a batch", "[" + call + "]", http.Header{"Content-Type": {"application/json"}}, "[" + failed + "]", "ongoing"},
		{"a batch by events", "[" + call + "]", http.Header{"Content-Type": {"text/event-stream"}}, "data: " + failed + "\n\n", "ongoing"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			to := peer(t, func(w http.ResponseWriter, _ *http.Request) {
				maps.Copy(w.Header(), tt.header)
				_, _ = io.WriteString(w, tt.answer)
			})
			f := newFile(t, "https://agent.example.com")
			s := newSidecar(t, "agent.example.com", "http://"+to, f.tune)
			post(t, http.DefaultClient, s.ingress.URL+"/mcp", tt.body, benchMCP)
			s.handled.wait(t)
			f.stop()
			receipts, _ := f.of(t, s.recorded(t)[0].Workflow)
			if len(receipts) != 1 || !strings.HasSuffix(toldOf(receipts)[0], " "+tt.want) {
				t.Errorf("%v, want one that ends with %s", toldOf(receipts), tt.want)
			}
		})
	}
}

// TestEvidenceOfUpstream has receipts of others come with an answer to the host's call:
// they pass as they are, and what is signed of the call names them, and depends on
// those that hold.
func TestEvidenceOfUpstream(t *testing.T) {
	key := ed25519.NewKeyFromSeed([]byte("the seed of a peer, which is one"))
	signer, err := peac.NewSigner("https://peer.example.com", "one", key)
	if err != nil {
		t.Fatal(err)
	}
	jws, err := signer.Sign(peac.Claims{Kind: peac.Evidence, Type: "com.example/observed", ID: "jti-1", IssuedAt: time.Now().Unix()})
	if err != nil {
		t.Fatal(err)
	}
	const result = `{"jsonrpc":"2.0","id":1,"result":{"content":[]META}}`
	meta := `,"_meta":{"org.peacprotocol/receipt_ref":"` + peac.ReceiptRef(jws) + `","org.peacprotocol/receipt_jws":"` + jws + `"}`
	inMeta, other := strings.Replace(result, "META", meta, 1), strings.Replace(result, `"id":1`, `"id":7`, 1)
	other = strings.Replace(other, "META", meta, 1)
	for _, tt := range []struct {
		name, kind, answer string
		header             []string
		depends            bool
	}{
		{"in _meta", "application/json", inMeta, nil, true},
		{"in an event", "text/event-stream", "data: " + inMeta + "\n\n", nil, true},
		{"in another's event", "text/event-stream", "data: " + other + "\n\ndata: " + strings.Replace(result, "META", "", 1) + "\n\n", nil, false},
		{"in the head", "application/json", strings.Replace(result, "META", "", 1), []string{jws}, true},
		{"twice in the head", "application/json", strings.Replace(result, "META", "", 1), []string{jws, jws}, false},
		{"too long for the head", "application/json", strings.Replace(result, "META", "", 1), []string{jws + strings.Repeat("A", 8192)}, false},
		{"none", "application/json", strings.Replace(result, "META", "", 1), nil, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tool := peer(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", tt.kind)
				w.Header()["Peac-Receipt"] = tt.header
				_, _ = io.WriteString(w, tt.answer)
			})
			f := newFile(t, "https://a.example.com", func(o *evidence.Options) {
				o.Known = map[string]peac.JWKS{"https://peer.example.com": {Keys: []peac.JWK{peac.NewJWK("one", key.Public().(ed25519.PublicKey))}}}
			})
			var s *sidecar
			host := peer(t, func(_ http.ResponseWriter, r *http.Request) {
				resp, err := s.client().Do(followUp(t, r, "http://"+tool+"/mcp", call))
				if err != nil {
					t.Error(err)
					return
				}
				defer resp.Body.Close()
				got, err := io.ReadAll(resp.Body)
				if err != nil || string(got) != tt.answer || !slices.Equal(resp.Header["Peac-Receipt"], tt.header) {
					t.Errorf("the answer came as %v %s, %v", resp.Header, got, err)
				}
			})
			s = newSidecar(t, "a.example.com", "http://"+host, f.tune)
			post(t, http.DefaultClient, s.ingress.URL+"/chat", `{}`, nil)
			s.handled.wait(t)
			f.stop()
			receipts, _ := f.of(t, s.recorded(t)[0].Workflow)
			for _, r := range receipts {
				x := r.Claims.Extensions[peac.ExchangeGroup].(map[string]any)
				if x["direction"] != "egress" {
					continue
				}
				ref := r.Claims.Extensions[peac.ActionGroup].(map[string]any)["upstream_artifact_ref"]
				depends, _ := r.Claims.Extensions[peac.CorrelationGroup].(map[string]any)["depends_on"].([]any)
				if want := peac.ReceiptRef(jws); (ref == want) != tt.depends || slices.Equal(depends, []any{"jti-1"}) != tt.depends {
					t.Errorf("upstream_artifact_ref %v, depends_on %v", ref, depends)
				}
				return
			}
			t.Errorf("%v: nothing of the call", toldOf(receipts))
		})
	}
}

// askAs has a host call out for the request that it handles, as one does that hands on
// its context.
func (s *sidecar) askAs(t testing.TB, in *http.Request, to, body string) {
	resp, err := s.client().Do(followUp(t, in, to, body))
	if err != nil {
		t.Error(err)
		return
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		t.Error(err)
	}
}

// followUp is a request with the context of the one that its host works on.
func followUp(t testing.TB, in *http.Request, to, body string) *http.Request {
	r, err := http.NewRequestWithContext(in.Context(), http.MethodPost, to, strings.NewReader(body))
	if err != nil {
		t.Error(err) // and whoever sends it panics
		return nil
	}
	r.Header = http.Header{"Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"}}
	for _, name := range []string{"Traceparent", "Tracestate"} {
		r.Header[name] = in.Header[name]
	}
	return r
}

const (
	askedTask  = "task-0123456789abcdef"
	askForTask = `{"jsonrpc":"2.0","id":3,"method":"message/stream","params":{"message":{"kind":"message","role":"user","messageId":"m-1","parts":[]}}}`
	goOnWithIt = `{"jsonrpc":"2.0","id":4,"method":"message/send","params":{"message":{"kind":"message","role":"user","messageId":"m-2","taskId":"` + askedTask + `","parts":[]}}}`
	brokenCall = `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"broken"}}`
)

// state is an event of the stream on which a task tells how it goes.
func state(s string) string {
	return `data: {"jsonrpc":"2.0","id":3,"result":{"kind":"status-update","taskId":"` + askedTask + `","contextId":"conversation-0123456789","status":{"state":"` + s + `"},"final":false}}` + "\n\n"
}

// twoHosts are a host that is asked to chat, and one that it asks for tools and for a
// task, of two turns, for which that one calls a tool itself.
type twoHosts struct {
	a, b   *sidecar
	fa, fb *file
}

func newTwoHosts(t *testing.T, tuneA, tuneB func(*Options, *Policy), minting ...func(*evidence.Options)) *twoHosts {
	h := &twoHosts{fa: newFile(t, "https://a.example.com", minting...), fb: newFile(t, "https://b.example.com", minting...)}
	tool := peer(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":1,"result":{"content":[]}}`)
	})
	hostB := peer(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("Content-Type", "application/json")
		switch text := string(body); {
		case strings.Contains(text, `"broken"`):
			_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":2,"error":{"code":-32000,"message":"broken"}}`)
		case strings.Contains(text, "tools/call"):
			_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":1,"result":{"content":[]}}`)
		case strings.Contains(text, "message/stream"):
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, state("working")+state("input-required"))
		default:
			h.b.askAs(t, r, "http://"+tool+"/mcp", call)
			_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":4,"result":{"kind":"task","id":"`+askedTask+`","contextId":"conversation-0123456789","status":{"state":"completed"}}}`)
		}
	})
	h.b = newSidecar(t, "b.example.com", "http://"+hostB, h.fb.tune, tuneB)
	hostA := peer(t, func(_ http.ResponseWriter, r *http.Request) {
		for _, c := range []struct{ path, body string }{
			{"/mcp", brokenCall}, {"/mcp", call}, {"/a2a", askForTask}, {"/a2a", goOnWithIt},
		} {
			h.a.askAs(t, r, h.b.ingress.URL+c.path, c.body)
		}
	})
	h.a = newSidecar(t, "a.example.com", "http://"+hostA, h.fa.tune, tuneA)
	post(t, http.DefaultClient, h.a.ingress.URL+"/chat", `{}`, nil)
	h.a.handled.wait(t)
	h.b.handled.wait(t)
	h.fa.stop()
	h.fb.stop()
	return h
}

func asIs(*Options, *Policy) {}

// toldOf lists what a set of receipts tells of each step, sorted.
func toldOf(receipts []peac.Receipt) []string {
	steps, kinds := map[string]string{}, map[string][]string{}
	for _, r := range receipts {
		id, x := r.Workflow.StepID, r.Claims.Extensions[peac.ExchangeGroup].(map[string]any)
		kind := strings.TrimSuffix(strings.TrimPrefix(r.Claims.Type, "org.peacprotocol/agent-action-"), "-observed")
		if g, ok := r.Claims.Extensions["dev.wopproxy/progress"].(map[string]any); ok {
			kind = fmt.Sprint(g["state"])
		}
		if g, ok := r.Claims.Extensions[peac.HandoffGroup].(map[string]any); ok && g["state"] != nil {
			kind = fmt.Sprint(g["state"])
		}
		steps[id] = fmt.Sprintf("%v %v %d: ", x["direction"], x["protocol"], len(r.Workflow.ParentStepIDs))
		kinds[id] = append(kinds[id], fmt.Sprintf("%s %v", kind, x["outcome"]))
	}
	var list []string
	for id, step := range steps {
		slices.Sort(kinds[id])
		list = append(list, step+strings.Join(kinds[id], ", "))
	}
	slices.Sort(list)
	return list
}

// TestEvidenceOfTwoHosts follows a workflow with a fork, a join, a step that fails,
// its retry, and a task that tells how it goes, through two proxies.
func TestEvidenceOfTwoHosts(t *testing.T) {
	h := newTwoHosts(t, asIs, asIs)
	workflow := h.a.recorded(t)[0].Workflow
	ofA, external := h.fa.of(t, workflow)
	if len(external) > 0 {
		t.Errorf("A has external parents: %v", external)
	}
	wantA := []string{
		"egress a2a 1: completed ongoing, delegated ongoing, input-required ongoing, working ongoing",
		"egress a2a 1: delegated ok",
		"egress mcp 1: invoked ok",
		"egress mcp 1: invoked protocol_error",
		"ingress http 0: dev.wopproxy/exchange ok",
	}
	if diff := cmp.Diff(wantA, toldOf(ofA)); diff != "" {
		t.Errorf("A (-want +got):\n%s", diff)
	}
	ofB, external := h.fb.of(t, workflow)
	wantB := []string{
		"egress mcp 2: invoked ok",
		"ingress a2a 1: completed ongoing, input-required ongoing, invoked ongoing, working ongoing",
		"ingress a2a 1: invoked ok",
		"ingress mcp 1: invoked ok",
		"ingress mcp 1: invoked protocol_error",
	}
	if diff := cmp.Diff(wantB, toldOf(ofB)); diff != "" {
		t.Errorf("B (-want +got):\n%s", diff)
	}
	known := map[string]bool{}
	for _, r := range ofA {
		known[r.Workflow.StepID] = true
	}
	for _, step := range external {
		if !known[step] {
			t.Errorf("A has no step %s, which B has as a parent", step)
		}
	}
	if len(external) < 4 {
		t.Errorf("%d parents of B's steps are A's, want those of all four calls", len(external))
	}
}

// TestEvidenceIsToldToNobodyElse has workflows end where nobody is to be told of
// them, and where nobody is believed.
func TestEvidenceIsToldToNobodyElse(t *testing.T) {
	distrusting := func(_ *Options, p *Policy) { p.TrustCaller = func(netip.Addr) bool { return false } }
	silent := func(_ *Options, p *Policy) { p.TrustDestination = func(string) bool { return false } }
	strict := func(o *evidence.Options) { o.Privacy = evidence.Strict }
	for name, h := range map[string]*twoHosts{
		"not believed":   newTwoHosts(t, asIs, distrusting),
		"not told":       newTwoHosts(t, silent, asIs),
		"told otherwise": newTwoHosts(t, asIs, asIs, strict),
	} {
		workflow := h.a.recorded(t)[0].Workflow
		if receipts, _ := h.fb.of(t, workflow); len(receipts) > 0 {
			t.Errorf("%s: B has %d receipts of A's workflow", name, len(receipts))
		}
		var external []string
		for _, run := range h.b.recorded(t) {
			if run.Workflow == "" || run.Workflow == workflow {
				t.Errorf("%s: a run of B's is of workflow %q", name, run.Workflow)
			}
			_, more := h.fb.of(t, run.Workflow)
			external = append(external, more...)
		}
		if told := len(external) > 0; told != (name == "told otherwise") {
			t.Errorf("%s: B names steps of A's: %v", name, external)
		}
	}
}

// TestEvidenceForAnAudience has who is called be told of the call in receipts of its
// own, which are one graph with those that it makes itself.
func TestEvidenceForAnAudience(t *testing.T) {
	strict := func(o *evidence.Options) { o.Privacy = evidence.Strict }
	h := newTwoHosts(t, asIs, asIs, strict)
	run := h.a.recorded(t)[0].Run
	keys := peac.JWKS{Keys: []peac.JWK{peac.NewJWK("one", h.fa.public)}}.Of(h.fa.issuer)
	read := func(audience string) (receipts []peac.Receipt) {
		set, err := h.fa.minter.SetOf(t.Context(), audience, run)
		if err != nil {
			t.Fatal(err)
		}
		b, err := h.fa.minter.Bundle(t.Context(), set, "", 1000)
		if err != nil {
			t.Fatal(err)
		}
		if report := b.Verify(keys, time.Now()); !report.OK() {
			t.Errorf("for %q: %+v", audience, report)
		}
		for _, jws := range b.Receipts {
			r, err := peac.Verify(jws, keys, time.Now())
			if err != nil {
				t.Fatal(err)
			}
			receipts = append(receipts, r)
		}
		return receipts
	}
	told := read(h.b.ingress.URL)
	want := []string{
		"egress a2a 0: completed ongoing, delegated ongoing, input-required ongoing, working ongoing",
		"egress a2a 0: delegated ok",
		"egress mcp 0: invoked ok",
		"egress mcp 0: invoked protocol_error",
	}
	if diff := cmp.Diff(want, toldOf(told)); diff != "" {
		t.Errorf("A tells B (-want +got):\n%s", diff)
	}
	if own := read(""); len(own) != len(told)+1 {
		t.Errorf("A has %d receipts, of which B is told %d", len(own), len(told))
	}
	ofB, external := h.fb.of(t, told[0].Workflow.WorkflowID)
	if len(external) < 4 {
		t.Errorf("%d parents of B's steps are A's, want those of all four calls", len(external))
	}
	if faults := peac.CheckSet(slices.Concat(told, ofB), nil); len(faults) > 0 {
		t.Errorf("what A tells B and what B has are not one graph: %+v", faults)
	}
}

// TestLiveRunsHaveTheirWorkflow has a run that is live be known by its workflow, before
// there is a receipt of it.
func TestLiveRunsHaveTheirWorkflow(t *testing.T) {
	var s *sidecar
	var live []ancestry.LiveRun
	to := peer(t, func(http.ResponseWriter, *http.Request) { live = s.Live() })
	f := newFile(t, "https://agent.example.com")
	s = newSidecar(t, "agent.example.com", "http://"+to, f.tune)
	post(t, http.DefaultClient, s.ingress.URL+"/chat", `{}`, nil)
	s.handled.wait(t)
	f.stop()
	if run := s.recorded(t)[0]; len(live) != 1 || live[0].Run != run.Run || live[0].Workflow != run.Workflow || run.Workflow == "" {
		t.Errorf("live: %+v, want %+v", live, run)
	}
}

// TestEvidenceOfARefusal has what the proxy refuses itself be told as its decision.
func TestEvidenceOfARefusal(t *testing.T) {
	f := newFile(t, "https://agent.example.com")
	s := newSidecar(t, "agent.example.com", "http://127.0.0.1:1", f.tune, func(_ *Options, p *Policy) { p.MaxDepth = 1 })
	const step = `;wf="wf_0123456789-0123456789_";step="step_0123456789-0123456789_"`
	h := http.Header{"Run-Ancestry": {`"r-2";host="b.example.com";cause=a2a-message` + step + `, "r-1";host="a.example.com";cause=a2a-message`}}
	if resp, _ := post(t, http.DefaultClient, s.ingress.URL+"/mcp", call, h); resp.StatusCode != http.StatusLoopDetected {
		t.Fatalf("status %s", resp.Status)
	}
	post(t, http.DefaultClient, s.ingress.URL+"/mcp", call, nil) // the host is not there
	s.handled.wait(t)
	f.stop()
	receipts, external := f.of(t, "wf_0123456789-0123456789_")
	if len(receipts) != 1 || len(external) != 1 || receipts[0].Claims.Type != peac.AccessDecision {
		t.Fatalf("%v, external %v", toldOf(receipts), external)
	}
	receipts, _ = f.of(t, s.recorded(t)[0].Workflow)
	if got, want := toldOf(receipts), []string{"ingress mcp 0: invoked unreachable"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// TestEvidenceAfterARestart has a task go on in another process: what its second turn
// leads to has the steps of both turns as parents.
func TestEvidenceAfterARestart(t *testing.T) {
	var s *sidecar
	tool := peer(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":1,"result":{"content":[]}}`)
	})
	host := "http://" + peer(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if strings.Contains(string(body), "message/stream") {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, state("working")+state("input-required"))
			return
		}
		s.askAs(t, r, "http://"+tool+"/mcp", call)
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":4,"result":{"kind":"task","id":"`+askedTask+`","contextId":"conversation-0123456789","status":{"state":"completed"}}}`)
	})
	store := ancestry.NewMemory()
	before := newFile(t, "https://a.example.com")
	s = newSidecarOn(t, store, "a.example.com", host, before.tune)
	post(t, http.DefaultClient, s.ingress.URL+"/a2a", askForTask, benchA2A)
	s.handled.wait(t)
	workflow := s.recorded(t)[0].Workflow
	before.stop()
	now := newFile(t, "https://a.example.com", func(o *evidence.Options) { o.Store = before.Memory })
	s = newSidecarOn(t, store, "a.example.com", host, now.tune)
	post(t, http.DefaultClient, s.ingress.URL+"/a2a", goOnWithIt, http.Header{"Content-Type": {"application/json"}})
	s.handled.wait(t)
	now.stop()
	receipts, _ := before.of(t, workflow)
	want := []string{
		"egress mcp 2: invoked ok",
		"ingress a2a 0: input-required ongoing, invoked ongoing, working ongoing",
		"ingress a2a 1: completed ongoing, invoked ok",
	}
	if diff := cmp.Diff(want, toldOf(receipts)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestEvidenceOnSpans has spans and receipts name each other: the span of a step says
// which it is, and is a child of that of the step that led to it.
func TestEvidenceOnSpans(t *testing.T) {
	to := peer(t, benchAnswer)
	var s *sidecar
	host := peer(t, func(w http.ResponseWriter, r *http.Request) {
		s.askAs(t, r, "http://"+to+"/mcp", call)
		benchAnswer(w, r)
	})
	f := newFile(t, "https://agent.example.com")
	exporter, tracing := traces()
	s = newSidecar(t, "agent.example.com", "http://"+host, f.tune, tracing, attaching)
	for _, path := range []string{"/mcp", "/chat"} {
		post(t, http.DefaultClient, s.ingress.URL+path, call, http.Header{"Content-Type": {"application/json"}})
	}
	s.handled.wait(t)
	f.stop()
	spans := map[string]tracetest.SpanStub{} // by step
	said := map[string]map[string]string{}
	for _, span := range exporter.GetSpans() {
		of := map[string]string{}
		for _, a := range span.Attributes {
			of[string(a.Key)] = a.Value.String()
		}
		spans[of["peac.step_id"]], said[of["peac.step_id"]] = span, of
	}
	steps := 0
	for _, run := range s.recorded(t) {
		receipts, _ := f.of(t, run.Workflow)
		for _, r := range receipts {
			steps++
			w, span := r.Workflow, spans[r.Workflow.StepID]
			if of := said[w.StepID]; of["peac.workflow_id"] != w.WorkflowID || of["peac.framework"] != w.Framework {
				t.Errorf("the span says %v, and the receipt %+v", of, w)
			}
			if of := said[w.StepID]; len(w.ParentStepIDs) == 0 && of["peac.record.ref"] != r.Ref || len(w.ParentStepIDs) > 0 && of["peac.record.ref"] != "" {
				t.Errorf("the span of %+v refers to %q, want %s where the answer bears it", w, of["peac.record.ref"], r.Ref)
			}
			c := r.Claims.Extensions[peac.CorrelationGroup].(map[string]any)
			if c["trace_id"] != span.SpanContext.TraceID().String() || c["span_id"] != span.SpanContext.SpanID().String() {
				t.Errorf("the receipt says %v of %v", c, span.SpanContext)
			}
			if len(w.ParentStepIDs) > 0 && span.Parent.SpanID() != spans[w.ParentStepIDs[0]].SpanContext.SpanID() {
				t.Errorf("the parent of the span of %+v is %v", w, span.Parent)
			}
		}
	}
	if steps != 4 || len(spans) != steps {
		t.Errorf("%d steps, %d spans, want 4", steps, len(spans))
	}
}
