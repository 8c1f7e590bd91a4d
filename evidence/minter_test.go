package evidence

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/wopproxy/wopproxy/ancestry"
	"github.com/wopproxy/wopproxy/ancestry/peac"
)

const testHost = "host-a.example.com"

var (
	testKey   = ed25519.NewKeyFromSeed([]byte("a seed that is not secret at all"))
	testIDKey = []byte("another that is no secret at all")
	testKeys  = peac.JWKS{Keys: []peac.JWK{peac.NewJWK("one", testKey.Public().(ed25519.PublicKey))}}
)

// office is a Minter, and where its receipts go.
type office struct {
	*Minter
	store *gate
	reg   *prometheus.Registry
	stop  func()
}

// gate is a store that lets nothing in while it is closed.
type gate struct {
	*Memory
	open  chan struct{} // closed: whoever comes goes in
	fault func() error  // nil: none
}

func (g *gate) Add(ctx context.Context, receipts []Receipt, lost []string) error {
	<-g.open
	if g.fault != nil {
		if err := g.fault(); err != nil {
			return err
		}
	}
	return g.Memory.Add(ctx, receipts, lost)
}

// newOffice returns a Minter that does not run yet, in front of a store that is
// open.
func newOffice(t testing.TB, tune ...func(*Options)) *office {
	t.Helper()
	of := &office{store: &gate{Memory: NewMemory(), open: make(chan struct{})}, reg: prometheus.NewRegistry()}
	close(of.store.open)
	o := Options{
		Issuer: "https://host-a.example.com", Host: testHost, IDKey: testIDKey, Store: of.store, Registerer: of.reg, Recall: time.Hour,
		Keys: []Key{{Rotation: peac.Rotation{KeyID: "one", Public: testKey.Public().(ed25519.PublicKey)}, Private: testKey}},
	}
	for _, f := range tune {
		f(&o)
	}
	var err error
	if of.Minter, err = New(o); err != nil {
		t.Fatal(err)
	}
	return of
}

// work has the office sign until stop is called, which returns when all is stored.
func (of *office) work() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); of.Run(ctx) }()
	of.stop = func() { cancel(); <-done }
}

// receipts returns those of a workflow, verified one by one.
func (of *office) receipts(t testing.TB, workflow string) (receipts []peac.Receipt, external []string) {
	t.Helper()
	stored, _, err := of.store.Receipts(t.Context(), workflow, "", 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range stored {
		r, err := peac.Verify(s.JWS, testKeys.Of("https://host-a.example.com"), time.Now().Add(time.Hour))
		if err != nil {
			t.Fatalf("receipt of %s: %v", s.Step, err)
		}
		if r.Claims.ID != s.ID || r.Workflow.StepID != s.Step || r.Workflow.WorkflowID != workflow {
			t.Errorf("stored as %+v: %+v", s, r.Workflow)
		}
		receipts, external = append(receipts, r), append(external, s.External...)
	}
	return receipts, external
}

func ended(o Outcome) Observed {
	return Observed{Direction: Ingress, Protocol: MCP, Method: "tools/call", Target: "search", Outcome: o, Status: 200, Ended: time.Now()}
}

func (of *office) counts(t testing.TB, want string, names ...string) {
	t.Helper()
	if err := testutil.GatherAndCompare(of.reg, strings.NewReader(want), names...); err != nil {
		t.Error(err)
	}
}

// group returns a member of a group of a receipt.
func group(t testing.TB, r peac.Receipt, key, member string) any {
	t.Helper()
	g, ok := r.Claims.Extensions[key].(map[string]any)
	if !ok {
		t.Fatalf("receipt %s has no %s", r.Claims.Type, key)
	}
	return g[member]
}

// TestWorkflow has a run of several turns, calls, a retry and a task leave a set of
// receipts that holds as a graph.
func TestWorkflow(t *testing.T) {
	of := newOffice(t)
	now := time.Now()
	run := of.Open("run_1", Origin{})
	first := of.Arrive(run, Place{}, now)
	call := of.Leave(run, now)
	of.End(call, Observed{Direction: Egress, Protocol: A2A, Outcome: ProtocolError, Code: "-32000", Callee: "https://b.example", Ended: now})
	retry := of.Leave(run, now)
	of.State(retry, "working", Observed{Direction: Egress, Protocol: A2A, Ended: now})
	of.State(retry, "working", Observed{Direction: Egress, Protocol: A2A, Ended: now}) // nothing new
	of.End(retry, Observed{Direction: Egress, Protocol: A2A, Outcome: Ongoing, Callee: "https://b.example", Ended: now})
	of.State(retry, "completed", Observed{Direction: Egress, Protocol: A2A, Ended: now})
	of.End(first, ended(OK))
	of.End(first, ended(Cancelled)) // it has ended
	second := of.Arrive(run, Place{}, now)
	join := of.Leave(run, now)
	of.End(join, ended(Timeout))
	of.End(second, ended(OK))
	of.work()
	of.stop()

	receipts, external := of.receipts(t, run.Workflow)
	if faults := peac.CheckSet(receipts, external); len(faults) > 0 || len(external) > 0 {
		t.Errorf("faults %v, external %v", faults, external)
	}
	if len(receipts) != 7 {
		t.Fatalf("%d receipts, want 7", len(receipts))
	}
	parents, types, links := map[string][]string{}, map[string]string{}, 0
	for _, r := range receipts {
		parents[r.Workflow.StepID] = r.Workflow.ParentStepIDs
		types[r.Workflow.StepID] += strings.TrimPrefix(r.Claims.Type, "org.peacprotocol/") + " "
		if r.Workflow.PrevReceiptHash != "" {
			links++
		}
		if r.Workflow.StepID != first.Step && r.Workflow.OrchestratorReceiptRef != "jti:"+first.id {
			t.Errorf("%s was opened by %q", r.Claims.Type, r.Workflow.OrchestratorReceiptRef)
		}
	}
	for s, want := range map[*Step][]string{
		first: {}, call: {first.Step}, retry: {first.Step}, second: {first.Step}, join: {first.Step, second.Step},
	} {
		if got := parents[s.Step]; fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("parents of %s: %v, want %v", types[s.Step], got, want)
		}
	}
	if call.Step == retry.Step || links != 2 {
		t.Errorf("a retry is step %s after %s, %d links in chains, want 2", retry.Step, call.Step, links)
	}
	if got := types[join.Step]; got != "agent-action-timed-out-observed " {
		t.Errorf("the join is %s", got)
	}
	if whole, err := of.store.Whole(t.Context(), run.Workflow); !whole || err != nil {
		t.Errorf("Whole = %v, %v", whole, err)
	}
	if w, err := of.store.Workflow(t.Context(), "run_1"); w != run.Workflow || err != nil {
		t.Errorf("Workflow = %v, %v", w, err)
	}
}

// TestWorkflowID has the vectors of PEAC's binding, and says what comes before what.
func TestWorkflowID(t *testing.T) {
	key := make([]byte, 32)
	for i := range key {
		key[i] = byte(i)
	}
	of := newOffice(t, func(o *Options) { o.IDKey = key })
	const tenant = ancestry.RunID("acme/01HXZ5NWJQ8QJXKZ3V5N7BMGHC")
	if got, want := of.Open(tenant, Origin{}).Workflow, "wf_f379bbe2-a2fd-8410-a502-84b01b301c71"; got != want {
		t.Errorf("workflow of %s = %s, want %s", tenant, got, want)
	}
	if got := of.Resume(tenant, "").Workflow; got != of.Open(tenant, Origin{}).Workflow {
		t.Errorf("resumed as %s", got)
	}
	carried := Place{"wf_0123456789-0123456789_", "step_0123456789-0123456789_"}
	if got := of.Open("run_1", Origin{carried, "a conversation"}).Workflow; got != carried.Workflow {
		t.Errorf("carried: %s", got)
	}
	if got := of.Open("run_2", Origin{Context: "a conversation"}).Workflow; got != carried.Workflow {
		t.Errorf("a conversation that has a workflow got %s", got)
	}
	a, b := of.Open("run_3", Origin{Context: "another"}), of.Open("run_4", Origin{Context: "another"})
	if a.Workflow != b.Workflow || a.Workflow == of.Open("run_3", Origin{}).Workflow {
		t.Errorf("a conversation has the workflows %s and %s", a.Workflow, b.Workflow)
	}
	c := of.Open("run_5", Origin{})
	of.Converse(c, "named later")
	if got := of.Open("run_6", Origin{Context: "named later"}).Workflow; got != c.Workflow {
		t.Errorf("a conversation that the host has named got %s, want %s", got, c.Workflow)
	}
	if one, other := of.Arrive(nil, Place{}, time.Now()), of.Arrive(nil, Place{}, time.Now()); one.Workflow == other.Workflow {
		t.Error("two calls of no run are one workflow")
	}
}

// TestCarried believes a step of the same workflow, and of no other.
func TestCarried(t *testing.T) {
	of := newOffice(t)
	carried := Place{"wf_0123456789-0123456789_", "step_0123456789-0123456789_"}
	run := of.Open("run_1", Origin{Carried: carried})
	s := of.Arrive(run, carried, time.Now())
	of.End(s, ended(OK))
	other := of.Arrive(run, Place{"wf_another-workflow-of-a-peer", "step_another-0123456789_"}, time.Now())
	of.End(other, ended(OK))
	of.work()
	of.stop()
	receipts, external := of.receipts(t, carried.Workflow)
	if len(receipts) != 2 || fmt.Sprint(external) != "["+carried.Step+"]" {
		t.Fatalf("%d receipts, external %v", len(receipts), external)
	}
	for _, r := range receipts {
		want := carried.Step
		if r.Workflow.StepID == other.Step {
			want = s.Step
		}
		if got := r.Workflow.ParentStepIDs; len(got) != 1 || got[0] != want {
			t.Errorf("parents %v, want %s", got, want)
		}
		if r.Workflow.OrchestratorReceiptRef != "" {
			t.Errorf("the workflow of a peer was opened by %s", r.Workflow.OrchestratorReceiptRef)
		}
	}
	if faults := peac.CheckSet(receipts, external); len(faults) > 0 {
		t.Error(faults)
	}
}

// TestSeal has the receipt of a step be there before its exchange has ended, and what is
// told of the step later follow on it.
func TestSeal(t *testing.T) {
	of := newOffice(t)
	run := of.Open("run_1", Origin{})
	s, other := of.Arrive(run, Place{}, time.Now()), of.Arrive(run, Place{}, time.Now())
	of.State(other, "working", ended(Ongoing))
	if ref, jws := of.Seal(other, ended(OK)); ref+jws != "" {
		t.Error("a receipt was made before one that comes before it")
	}
	ref, jws := of.Seal(s, ended(Ongoing))
	if again, _ := of.Seal(s, ended(OK)); again != "" {
		t.Error("a step has ended twice")
	}
	of.State(s, "completed", ended(OK))
	of.End(s, ended(Cancelled)) // it has ended
	of.End(other, ended(OK))
	if !of.misses(run.Workflow) {
		t.Error("a workflow could be summed up without what others have of it")
	}
	of.work()
	of.stop()
	if of.misses(run.Workflow) {
		t.Error("nothing is missing")
	}
	receipts, external := of.receipts(t, run.Workflow)
	if faults := peac.CheckSet(receipts, external); len(faults) > 0 || len(receipts) != 4 {
		t.Errorf("%d receipts, faults %v", len(receipts), faults)
	}
	stored, _, err := of.store.Receipts(t.Context(), run.Workflow, "", 10)
	if err != nil || !slices.ContainsFunc(stored, func(r Receipt) bool { return r.JWS == jws && r.ID == s.id && r.Run == "run_1" }) {
		t.Errorf("%v: the receipt that was given away is not among %+v", err, stored)
	}
	if peac.ReceiptRef(jws) != ref {
		t.Errorf("%s is named %s", jws, ref)
	}
	if !slices.ContainsFunc(receipts, func(r peac.Receipt) bool { return r.Workflow.PrevReceiptHash == ref }) {
		t.Error("no state follows on the receipt that was given away")
	}
}

// TestSealCannot leaves to End, or to Run, what can't be signed at once.
func TestSealCannot(t *testing.T) {
	var now time.Time
	for _, tt := range []struct {
		name    string
		tune    func(*Options)
		before  func(*office, *Run)
		kept    int // receipts in the end
		running bool
	}{
		{"strict", func(o *Options) { o.Privacy = Strict }, func(*office, *Run) {}, 1, true},
		{"no room", func(o *Options) { o.Queue = 1 }, func(of *office, run *Run) { of.End(of.Leave(run, time.Now()), ended(OK)) }, 1, true},
		{"a key whose time has not come", func(o *Options) {
			now = time.Unix(1<<32, 0)
			o.Keys[0].Sign, o.Now = time.Unix(1<<31, 0), func() time.Time { return now }
		}, func(*office, *Run) { now = time.Unix(1<<30, 0) }, 1, true},
		{"stopped", func(*Options) {}, func(of *office, _ *Run) { of.work(); of.stop() }, 0, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			of := newOffice(t, tt.tune)
			run := of.Open("run_1", Origin{})
			s := of.Arrive(run, Place{}, time.Now())
			tt.before(of, run)
			if ref, jws := of.Seal(s, ended(OK)); ref+jws != "" {
				t.Errorf("Seal = %q, %q", ref, jws)
			}
			now = time.Unix(1<<32, 0)
			of.End(s, ended(OK))
			if tt.running {
				of.work()
				of.stop()
			}
			stored, _, err := of.store.Receipts(t.Context(), run.Workflow, "", 10)
			if err != nil || len(stored) != tt.kept {
				t.Errorf("%d receipts, %v, want %d", len(stored), err, tt.kept)
			}
		})
	}
}

// TestSealAtOnce has many steps of a workflow sealed while others end and all is being
// stored, and what is kept hold as a graph.
func TestSealAtOnce(t *testing.T) {
	of := newOffice(t)
	of.work()
	run := of.Open("run_1", Origin{})
	var at sync.WaitGroup
	for range 8 {
		at.Go(func() {
			for i := range 10 {
				s := of.Arrive(run, Place{}, time.Now())
				if i%2 == 0 {
					if _, jws := of.Seal(s, ended(Ongoing)); jws == "" {
						t.Error("a receipt is missing")
					}
				}
				of.State(s, "working", ended(OK))
				of.End(s, ended(OK))
			}
		})
	}
	at.Wait()
	of.stop()
	receipts, external := of.receipts(t, run.Workflow)
	if faults := peac.CheckSet(receipts, external); len(faults) > 0 || len(receipts) != 8*10*2 {
		t.Errorf("%d receipts, faults %v", len(receipts), faults)
	}
}

// TestBounds counts what is cut.
func TestBounds(t *testing.T) {
	of := newOffice(t, func(o *Options) { o.States, o.Names = 2, 1 })
	run := of.Open("run_1", Origin{Context: "one"})
	_ = of.Open("run_2", Origin{Context: "two"})
	for range maxParents + 1 {
		of.End(of.Arrive(run, Place{}, time.Now()), ended(OK))
	}
	s := of.Leave(run, time.Now())
	if n := len(s.parents); n != maxParents {
		t.Errorf("%d parents", n)
	}
	for _, state := range []string{"submitted", "working", "input-required", "completed", "failed"} {
		of.State(s, state, ended(OK))
	}
	if s.state != "completed" {
		t.Errorf("the last state told is %s, want the first of those that end a task", s.state)
	}
	of.Name(s, "one")
	of.Name(of.Leave(nil, time.Now()), "another")
	for i := range 3 {
		of.Introduce([]string{"a.example.com:443", "b.example.com:443", "b.example.com:443"}[i], "sha256:x")
	}
	if of.Task("a", s) != s || of.Task("a", of.Leave(run, time.Now())) != s || of.Task("b", s) != s || of.Task("a", nil) != nil {
		t.Error("of two tasks, not the last is known")
	}
	if run := of.Resume("run_3", ""); of.Resume("run_3", run.Workflow) != run || of.Resume("run_4", "") == run || of.Resume("run_3", "") == run {
		t.Error("of two runs that were resumed, not the last is known")
	}
	of.counts(t, `
# HELP wopproxy_evidence_limit_hits_total Bounds on what receipts tell that were reached.
# TYPE wopproxy_evidence_limit_hits_total counter
wopproxy_evidence_limit_hits_total{limit="bodies"} 0
wopproxy_evidence_limit_hits_total{limit="calls"} 1
wopproxy_evidence_limit_hits_total{limit="cards"} 1
wopproxy_evidence_limit_hits_total{limit="contexts"} 1
wopproxy_evidence_limit_hits_total{limit="parents"} 2
wopproxy_evidence_limit_hits_total{limit="runs"} 2
wopproxy_evidence_limit_hits_total{limit="states"} 2
wopproxy_evidence_limit_hits_total{limit="tasks"} 1
wopproxy_evidence_limit_hits_total{limit="upstream"} 0
`, "wopproxy_evidence_limit_hits_total")
}

// TestQueueFull drops what there is no room for, and has the store know of it.
func TestQueueFull(t *testing.T) {
	of := newOffice(t, func(o *Options) { o.Queue = 2 })
	kept, lost := of.Open("run_1", Origin{}), of.Open("run_2", Origin{})
	for _, run := range []*Run{kept, lost, lost} {
		of.End(of.Arrive(run, Place{}, time.Now()), ended(OK))
	}
	of.work()
	of.stop()
	for run, want := range map[*Run]bool{kept: true, lost: false} {
		if whole, err := of.store.Whole(t.Context(), run.Workflow); whole != want || err != nil {
			t.Errorf("Whole = %v, %v, want %v", whole, err, want)
		}
	}
	of.counts(t, `
# HELP wopproxy_evidence_dropped_total Receipts that were not stored; their workflow gets no summary.
# TYPE wopproxy_evidence_dropped_total counter
wopproxy_evidence_dropped_total{reason="invalid"} 0
wopproxy_evidence_dropped_total{reason="queue_full"} 1
wopproxy_evidence_dropped_total{reason="stopped"} 0
wopproxy_evidence_dropped_total{reason="store_error"} 0
# HELP wopproxy_evidence_receipts_total Receipts that were signed and stored.
# TYPE wopproxy_evidence_receipts_total counter
wopproxy_evidence_receipts_total 2
`, "wopproxy_evidence_dropped_total", "wopproxy_evidence_receipts_total")
}

// TestSlowStore has nobody wait for a store that takes its time, and one that fails
// be tried again.
func TestSlowStore(t *testing.T) {
	of := newOffice(t)
	of.store.open = make(chan struct{})
	faults := 2
	of.store.fault = func() error {
		if faults--; faults >= 0 {
			return errors.New("no room")
		}
		return nil
	}
	run := of.Open("run_1", Origin{})
	of.work()
	for range 10 { // all of them while the store is shut
		of.End(of.Arrive(run, Place{}, time.Now()), ended(OK))
	}
	close(of.store.open)
	deadline := time.After(time.Minute)
	for n := 0; n < 10; {
		page, _, err := of.store.Receipts(t.Context(), run.Workflow, "", 100)
		if err != nil {
			t.Fatal(err)
		}
		n = len(page)
		select {
		case <-deadline:
			t.Fatalf("%d receipts", n)
		case <-time.After(time.Millisecond):
		}
	}
	of.stop()
	if whole, err := of.store.Whole(t.Context(), run.Workflow); !whole || err != nil {
		t.Errorf("Whole = %v, %v", whole, err)
	}
}

// TestStopped has what ends too late be known to be lost, however long it has been open,
// for the run and for whom it was told to: before the store is closed it hears of that.
// What was whole stays so, also where it waited.
func TestStopped(t *testing.T) {
	for _, ago := range []time.Duration{time.Second, 3 * time.Hour} {
		of := newOffice(t, func(o *Options) { o.Privacy = Strict })
		at := time.Now().Add(-ago)
		run, other := of.Open("run_1", Origin{}), of.Open("run_2", Origin{})
		of.End(of.Arrive(run, Place{}, at), ended(OK))
		call, late := of.Leave(run, at), of.Leave(run, at.Add(time.Millisecond))
		told := of.For(call, "https://host-b.example.com").Workflow
		if of.For(late, "https://host-b.example.com").Workflow != told {
			t.Fatal("an audience knows a run as two workflows")
		}
		of.End(call, Observed{Direction: Egress, Protocol: MCP, Outcome: OK, Ended: time.Now()})
		of.End(of.Arrive(other, Place{}, at.Add(-3*time.Hour)), ended(OK))
		of.work()
		of.stop()
		of.End(late, Observed{Direction: Egress, Protocol: MCP, Outcome: ProtocolError, Ended: time.Now()})
		for _, tt := range []struct {
			workflow string
			whole    bool
			receipts int
		}{{run.Workflow, false, 2}, {told, false, 1}, {other.Workflow, true, 1}} {
			if whole, err := of.store.Whole(t.Context(), tt.workflow); whole != tt.whole || err != nil {
				t.Errorf("%v before: Whole = %v, %v, want %v", ago, whole, err, tt.whole)
			}
			if receipts, _ := of.receipts(t, tt.workflow); len(receipts) != tt.receipts {
				t.Errorf("%v before: %d receipts, want %d", ago, len(receipts), tt.receipts)
			}
		}
	}
}

// TestPrivacy says what each mode tells.
func TestPrivacy(t *testing.T) {
	for _, tt := range []struct {
		mode              Privacy
		tool, trace, ours string
		caller            bool
	}{
		{Strict, "", "", "other", false},
		{Balanced, "tool_call", "01000000000000000000000000000000", "same", true},
		{Open, "search", "01000000000000000000000000000000", "same", true},
	} {
		t.Run(string(tt.mode), func(t *testing.T) {
			of := newOffice(t, func(o *Options) { o.Privacy = tt.mode })
			run := of.Open("run_1", Origin{})
			s := of.Arrive(run, Place{}, time.Now())
			o := ended(OK)
			o.Trace, o.Span, o.Caller = ancestry.TraceID{1}, ancestry.SpanID{2}, "planner.example.com"
			of.End(s, o)
			of.work()
			of.stop()
			receipts, _ := of.receipts(t, run.Workflow)
			r := receipts[0]
			trace, _ := group(t, r, peac.CorrelationGroup, "trace_id").(string)
			caller := group(t, r, peac.ActionGroup, "caller_ref") != nil
			if r.Workflow.ToolName != tt.tool || trace != tt.trace || caller != tt.caller {
				t.Errorf("tool %q, trace %q, caller told: %v", r.Workflow.ToolName, trace, caller)
			}
			for _, secret := range []string{"planner", "run_1", testHost} {
				if raw := fmt.Sprint(r.Claims.Extensions); strings.Contains(raw, secret) {
					t.Errorf("%s is told: %s", secret, raw)
				}
			}
			a, b := of.For(s, "https://a.example"), of.For(s, "https://b.example")
			if same := a == s.Place && b == s.Place; same != (tt.ours == "same") || tt.ours == "other" && (a == b || a.Workflow == s.Workflow || a.Step == s.Step) {
				t.Errorf("told to others: %v and %v, of %v", a, b, s.Place)
			}
		})
	}
}

// TestKeys has the key sign whose time it is, and none that is not fit to.
func TestKeys(t *testing.T) {
	next := ed25519.NewKeyFromSeed([]byte("the seed of the key that follows"))
	now := time.Now()
	key := func(id string, k ed25519.PrivateKey, sign time.Time) Key {
		return Key{peac.Rotation{KeyID: id, Public: k.Public().(ed25519.PublicKey), Sign: sign}, k}
	}
	of := newOffice(t, func(o *Options) {
		o.Keys = []Key{key("one", testKey, time.Unix(0, 0)), key("two", next, now.Add(time.Hour))}
		o.Now = func() time.Time { return now }
	})
	for _, want := range []string{"one", "two"} {
		run := of.Open(ancestry.RunID("run_"+want), Origin{})
		e := &entry{step: of.Arrive(run, Place{}, now), o: ended(OK)}
		r, err := of.sign(e)
		if err != nil {
			t.Fatal(err)
		}
		keys := peac.JWKS{Keys: append([]peac.JWK{peac.NewJWK("two", next.Public().(ed25519.PublicKey))}, testKeys.Keys...)}
		got, err := peac.Verify(r.JWS, keys.Of(of.o.Issuer), now)
		if err != nil || got.KeyID != want {
			t.Errorf("signed by %s, %v, want %s", got.KeyID, err, want)
		}
		now = now.Add(2 * time.Hour)
	}
	for name, tune := range map[string]func(*Options){
		"the key for ids signs": func(o *Options) { o.IDKey = testKey.Seed() },
		"a short key for ids":   func(o *Options) { o.IDKey = []byte("short") },
		"a public key alone":    func(o *Options) { o.Keys[0].Private = nil },
		"no key yet":            func(o *Options) { o.Keys[0].Sign = time.Now().Add(time.Hour) },
		"no key":                func(o *Options) { o.Keys = nil },
		"two keys of one id":    func(o *Options) { o.Keys = append(o.Keys, key("one", next, now)) },
		"no store":              func(o *Options) { o.Store = nil },
		"an issuer with a path": func(o *Options) { o.Issuer = "https://host-a.example.com/agent" },
		"a key without an id":   func(o *Options) { o.Keys[0].KeyID = "" },
	} {
		o := of.o
		o.Keys = []Key{key("one", testKey, time.Unix(0, 0))}
		o.Registerer, o.Now = nil, nil
		tune(&o)
		if m, err := New(o); err == nil || m != nil {
			t.Errorf("%s: New = %v, %v", name, m, err)
		}
	}
}

// BenchmarkSign is what one receipt costs the goroutine that signs.
func BenchmarkSign(b *testing.B) {
	of := newOffice(b)
	run := of.Open("run_1", Origin{})
	o := ended(OK)
	o.Trace, o.Span, o.Caller = ancestry.TraceID{1}, ancestry.SpanID{2}, "planner.example.com"
	parent := of.Arrive(run, Place{}, time.Now())
	_ = parent
	b.ReportAllocs()
	for b.Loop() {
		if _, err := of.sign(&entry{step: of.Leave(run, time.Now()), o: o}); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkSeal is what one exchange pays for a receipt in its answer.
func BenchmarkSeal(b *testing.B) {
	of := newOffice(b)
	of.work()
	defer of.stop()
	run := of.Open("run_1", Origin{})
	o := ended(OK)
	b.ReportAllocs()
	for b.Loop() {
		of.Seal(of.Leave(run, time.Now()), o)
	}
}

// BenchmarkObserve is what one exchange pays for being a step.
func BenchmarkObserve(b *testing.B) {
	of := newOffice(b, func(o *Options) { o.Queue = 1 })
	run := of.Open("run_1", Origin{})
	o := ended(OK)
	b.ReportAllocs()
	for b.Loop() {
		of.End(of.Leave(run, time.Now()), o)
	}
}
