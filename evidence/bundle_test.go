package evidence

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/wopproxy/wopproxy/ancestry"
	"github.com/wopproxy/wopproxy/ancestry/peac"
)

const testIssuer = "https://agent.example.com"

// seen is a Minter whose receipts are signed when the test says so, on a clock of
// the test's.
type seen struct {
	*Minter
	t    *testing.T
	now  time.Time
	live map[ancestry.RunID]bool
	busy string // a workflow of which a run is live that has no receipt yet
	asks int    // for what is live
}

func seeing(t *testing.T, edit func(*Options)) *seen {
	t.Helper()
	s := &seen{t: t, now: time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC), live: map[ancestry.RunID]bool{}}
	key := ed25519.NewKeyFromSeed(make([]byte, 32))
	o := Options{
		Issuer: testIssuer, Host: "agent.example.com", IDKey: []byte("a secret of 32 bytes for the ids"), Store: NewMemory(),
		Keys: []Key{{peac.Rotation{KeyID: "2026-11", Public: key.Public().(ed25519.PublicKey)}, key}},
		Now:  func() time.Time { return s.now },
		Live: func(workflow string, runs map[ancestry.RunID]bool) bool {
			if s.asks++; workflow == s.busy {
				return true
			}
			for run := range runs {
				if s.live[run] {
					return true
				}
			}
			return false
		},
	}
	edit(&o)
	var err error
	if s.Minter, err = New(o); err != nil {
		t.Fatal(err)
	}
	return s
}

// tick lets a second pass.
func (s *seen) tick() time.Time {
	s.now = s.now.Add(time.Second)
	return s.now
}

// end ends a step, and signs what there is to sign.
func (s *seen) end(step *Step, direction string, outcome Outcome) {
	o := Observed{Direction: direction, Protocol: MCP, Method: "tools/call", Outcome: outcome, Ended: s.tick()}
	if direction == Egress {
		o.Protocol, o.Method, o.Callee = A2A, "SendMessage", "b.example.com"
	}
	s.End(step, o)
	s.settle()
}

func (s *seen) settle() {
	for len(s.queue) > 0 {
		s.keep(s.t.Context(), s.batch(<-s.queue))
	}
	s.keep(s.t.Context(), nil)
}

// all is the set of a run's own receipts.
func all(workflow string) Set { return Set{workflow: workflow, own: workflow, run: "a run"} }

// whole reads the evidence of a workflow in pages, and joins them.
func (s *seen) whole(workflow string, limit int) peac.Bundle {
	s.t.Helper()
	return s.read(all(workflow), limit)
}

func (s *seen) read(set Set, limit int) peac.Bundle {
	s.t.Helper()
	var whole peac.Bundle
	for after := ""; ; {
		b, err := s.Bundle(s.t.Context(), set, after, limit)
		if err != nil {
			s.t.Fatal(err)
		}
		if len(b.Receipts) > limit {
			s.t.Fatalf("a page of %d receipts, want %d at most", len(b.Receipts), limit)
		}
		whole = whole.Join(b)
		if after = b.Next; after == "" {
			return whole
		}
	}
}

// verify checks a bundle by what it brings.
func (s *seen) verify(b peac.Bundle) peac.Report {
	s.t.Helper()
	raw, err := json.Marshal(b)
	if err != nil {
		s.t.Fatal(err)
	}
	read, err := peac.ParseBundle(raw)
	if err != nil {
		s.t.Fatalf("%v: %s", err, raw)
	}
	set, err := peac.ParseJWKS(read.JWKS)
	if err != nil {
		s.t.Fatal(err)
	}
	return read.Verify(set.Of(testIssuer), s.now)
}

// call has a run begin, and call out three times: a call that fails, its retry, and
// one more.
func (s *seen) call(run ancestry.RunID) (root *Step, r *Run) {
	r = s.Open(run, Origin{})
	root = s.Arrive(r, Place{}, s.tick())
	for _, outcome := range []Outcome{Timeout, OK, OK} {
		s.end(s.Leave(r, s.tick()), Egress, outcome)
	}
	return root, r
}

// TestBundle has what is kept of a run hold, in one page and in many, whole and one
// receipt of it.
func TestBundle(t *testing.T) {
	s := seeing(t, func(*Options) {})
	root, _ := s.call("acme/run-1")
	s.end(root, Ingress, OK)
	set, err := s.SetOf(t.Context(), "", "nobody", "acme/run-1")
	if err != nil || set.workflow != root.Workflow {
		t.Fatalf("SetOf = %+v, %v", set, err)
	}
	for _, limit := range []int{1, 3, 4, 1000} {
		b := s.read(set, limit)
		report := s.verify(b)
		if !report.OK() || report.Summary == nil || len(report.Steps) != 4 || b.Commitment == nil || b.Commitment.TreeSize != 4 {
			t.Fatalf("pages of %d: %+v", limit, report)
		}
		e := report.Summary.Evidence
		if e.Status != peac.Completed || e.ErrorContext != nil || e.StartedAt != "2026-11-22T10:00:01Z" || e.CompletedAt == "" || len(e.AgentsInvolved) != 2 {
			t.Errorf("summary %+v", e)
		}
	}
	for _, jws := range s.read(set, 1000).Receipts {
		b, err := s.Extract(t.Context(), set, peac.ReceiptRef(jws))
		if err != nil {
			t.Fatal(err)
		}
		if report := s.verify(b); !report.OK() || report.Of != 4 || report.Summary == nil || !slices.Equal(b.Receipts, []string{jws}) {
			t.Errorf("an extract: %+v", report)
		}
	}
	if _, err := s.Extract(t.Context(), set, peac.ReceiptRef("x")); !errors.Is(err, ancestry.ErrNotFound) {
		t.Errorf("an extract of what is not there: %v", err)
	}
	if _, err := s.SetOf(t.Context(), "", "nobody", "wf_nobody"); !errors.Is(err, ancestry.ErrNotFound) {
		t.Errorf("the receipts of nobody: %v", err)
	}
	if of, err := s.SetOf(t.Context(), "", ancestry.RunID(set.workflow)); err != nil || of.workflow != set.workflow {
		t.Errorf("SetOf(%s) = %+v, %v", set.workflow, of, err)
	}
}

// TestBundleLoop has a call that came back to the host be no beginning: how it ended
// is not how the workflow did.
func TestBundleLoop(t *testing.T) {
	s := seeing(t, func(*Options) {})
	root, r := s.call("acme/run-1")
	out := s.Leave(r, s.tick())
	back := s.Arrive(s.Open("acme/run-2", Origin{Carried: out.Place}), out.Place, s.tick())
	s.end(back, Ingress, ProtocolError)
	s.end(out, Egress, ProtocolError)
	s.end(root, Ingress, OK)
	report := s.verify(s.whole(root.Workflow, 1000))
	if !report.OK() || report.Summary == nil || report.Summary.Evidence.Status != peac.Completed {
		t.Errorf("%+v", report)
	}
}

// TestBundleEnd has a workflow end when its last exchange did, however late that is
// signed.
func TestBundleEnd(t *testing.T) {
	s := seeing(t, func(*Options) {})
	root, r := s.call("acme/run-1")
	s.End(root, Observed{Direction: Ingress, Protocol: MCP, Method: "tools/call", Outcome: OK, Ended: s.tick()})
	s.End(s.Leave(r, s.tick()), Observed{Direction: Egress, Protocol: MCP, Outcome: OK, Ended: s.tick()})
	ended := peac.FormatTime(s.now.Add(-2 * time.Second))
	s.now = s.now.Add(time.Minute) // the store was slow
	s.settle()
	report := s.verify(s.whole(root.Workflow, 1000))
	if !report.OK() || report.Summary == nil || report.Summary.Evidence.CompletedAt != ended {
		t.Errorf("want an end at %s: %+v", ended, report)
	}
}

// TestBundleStatus has a summary say of a workflow's end what was seen of it.
func TestBundleStatus(t *testing.T) {
	for _, tt := range []struct {
		name   string
		end    func(s *seen, root *Step, r *Run)
		status string
		code   string
	}{
		{"it failed", func(s *seen, root *Step, _ *Run) { s.end(root, Ingress, ProtocolError) }, peac.Failed, "protocol_error"},
		{"nobody answered", func(s *seen, root *Step, _ *Run) { s.end(root, Ingress, Unreachable) }, peac.Failed, "unreachable"},
		{"its caller went", func(s *seen, root *Step, _ *Run) { s.end(root, Ingress, Cancelled) }, peac.Cancelled, ""},
		{"its task goes on", func(s *seen, root *Step, _ *Run) { s.end(root, Ingress, Ongoing) }, peac.InProgress, ""},
		{"it is live", func(s *seen, root *Step, _ *Run) {
			s.end(root, Ingress, OK)
			s.live["acme/run-1"] = true
		}, peac.InProgress, ""},
		{"another run of it is, without a receipt", func(s *seen, root *Step, _ *Run) {
			s.end(root, Ingress, OK)
			s.busy = root.Workflow
		}, peac.InProgress, ""},
		{"a call of it goes on", func(s *seen, root *Step, r *Run) {
			s.end(root, Ingress, OK)
			s.Leave(r, s.tick())
		}, peac.InProgress, ""},
		{"the end of a call waits to be signed", func(s *seen, root *Step, r *Run) {
			s.end(root, Ingress, OK)
			s.End(s.Leave(r, s.tick()), Observed{Direction: Egress, Protocol: MCP, Outcome: ProtocolError, Ended: s.tick()})
		}, peac.InProgress, ""},
		{"its end is stored when the store was read", func(s *seen, root *Step, r *Run) {
			s.end(root, Ingress, OK)
			call := s.Leave(r, s.tick())
			s.afterRead(2, func() { s.end(call, Egress, ProtocolError) })
		}, peac.InProgress, ""},
		{"a call begins when the store was read", func(s *seen, root *Step, r *Run) {
			s.end(root, Ingress, OK)
			s.afterRead(2, func() { s.Leave(r, s.tick()) })
		}, peac.InProgress, ""},
		{"its task was done", func(s *seen, root *Step, _ *Run) {
			for _, state := range []string{"submitted", "working", "completed"} {
				s.State(root, state, Observed{Direction: Ingress, Protocol: A2A, Method: "SendStreamingMessage", Ended: s.tick()})
			}
			s.end(root, Ingress, Cancelled)
		}, peac.Completed, ""},
		{"its task failed", func(s *seen, root *Step, _ *Run) {
			s.State(root, "failed", Observed{Direction: Ingress, Protocol: A2A, Method: "SendStreamingMessage", Ended: s.tick()})
			s.end(root, Ingress, OK)
		}, peac.Failed, "protocol_error"},
	} {
		s := seeing(t, func(*Options) {})
		root, r := s.call("acme/run-1")
		tt.end(s, root, r)
		b := s.whole(root.Workflow, 1000)
		report := s.verify(b)
		if !report.OK() || report.Summary == nil {
			t.Fatalf("%s: %+v", tt.name, report)
		}
		e := report.Summary.Evidence
		if e.Status != tt.status || (e.CompletedAt == "") != (tt.status == peac.InProgress) {
			t.Errorf("%s: %s, completed at %q; want %s", tt.name, e.Status, e.CompletedAt, tt.status)
		}
		if s.settle(); len(s.pending) != s.open {
			t.Errorf("%s: %v are waited for, %d are open", tt.name, s.pending, s.open)
		}
		if (e.ErrorContext == nil) != (tt.code == "") || e.ErrorContext != nil && (e.ErrorContext.ErrorCode != tt.code || e.ErrorContext.FailedStepID != root.Step) {
			t.Errorf("%s: error %+v, want %q", tt.name, e.ErrorContext, tt.code)
		}
	}
}

// TestBundleOfAHandoff has a workflow end as the task did that it began with, where its
// states are told as those of a handoff.
func TestBundleOfAHandoff(t *testing.T) {
	for state, want := range map[string]string{
		"completed": peac.Completed, "failed": peac.Failed, "rejected": peac.Failed, "canceled": peac.Cancelled, "working": peac.InProgress,
	} {
		s := seeing(t, func(*Options) {})
		s.Introduce("", ownCard)
		step := s.Leave(nil, s.tick())
		step.Direction, step.Protocol, step.Peer = Egress, A2A, "https://b.example.com"
		for _, state := range []string{"submitted", state} {
			s.State(step, state, Observed{Direction: Egress, Protocol: A2A, Task: "task-0123456789abcdef", Ended: s.tick()})
		}
		s.end(step, Egress, Ongoing)
		report := s.verify(s.whole(step.Workflow, 1000))
		if !report.OK() || report.Summary == nil || report.Summary.Evidence.Status != want {
			t.Errorf("%s: %+v, want %s", state, report, want)
		}
	}
}

// TestBundleWithoutSummary has no summary where it could not be true, and the
// receipts all the same.
func TestBundleWithoutSummary(t *testing.T) {
	for name, change := range map[string]func(s *seen, root *Step) *seen{
		"the call goes on": func(s *seen, _ *Step) *seen { return s },
		"a receipt was lost": func(s *seen, root *Step) *seen {
			s.end(root, Ingress, OK)
			if err := s.o.Store.Add(t.Context(), nil, []string{root.Workflow}); err != nil {
				t.Fatal(err)
			}
			return s
		},
		"a receipt is not ours": func(s *seen, root *Step) *seen {
			s.end(root, Ingress, OK)
			other := seeing(t, func(o *Options) {
				key := ed25519.NewKeyFromSeed([]byte("the seed of somebody else, 32 B."))
				o.Keys[0] = Key{peac.Rotation{KeyID: "2026-12", Public: key.Public().(ed25519.PublicKey)}, key}
				o.Store = s.o.Store
			})
			other.now = s.now
			r := other.Open("acme/run-1", Origin{})
			other.end(other.Arrive(r, Place{}, other.tick()), Ingress, OK)
			s.now = other.now
			return s
		},
		"the clock was set back": func(s *seen, root *Step) *seen {
			s.end(root, Ingress, OK)
			s.now = s.now.Add(-time.Minute)
			return s
		},
	} {
		s := seeing(t, func(*Options) {})
		root, _ := s.call("acme/run-1")
		s = change(s, root)
		b := s.whole(root.Workflow, 1000)
		if b.Summary != "" || len(b.Receipts) < 3 || b.Commitment == nil {
			t.Errorf("%s: %d receipts, commitment %v, summary %q", name, len(b.Receipts), b.Commitment, b.Summary)
		}
	}
	s := seeing(t, func(o *Options) { o.Issuer = "did:web:agent.example.com" })
	root, _ := s.call("acme/run-1")
	s.end(root, Ingress, OK)
	if b := s.whole(root.Workflow, 1000); b.Summary != "" || len(b.Receipts) != 4 {
		t.Errorf("of a DID: %d receipts, summary %q", len(b.Receipts), b.Summary)
	}
}

// busy is a store that does something whenever receipts are added, and may fail.
type busy struct {
	Store
	add func() error
}

func (b *busy) Add(ctx context.Context, receipts []Receipt, lost []string) error {
	if err := b.add(); err != nil {
		return err
	}
	return b.Store.Add(ctx, receipts, lost)
}

// TestBundleWhileStoring has no summary while the store is yet to hear of something
// that was lost, or of receipts that it did not take, and none when it never will.
func TestBundleWhileStoring(t *testing.T) {
	store := &busy{Store: NewMemory(), add: func() error { return nil }}
	s := seeing(t, func(o *Options) { o.Store = store })
	var summaries []bool
	look := func(workflow string, fails int) {
		summaries = nil
		store.add = func() error {
			summaries = append(summaries, s.whole(workflow, 1000).Summary != "")
			if len(summaries) <= fails {
				return errors.New("no room")
			}
			return nil
		}
	}
	want := func(name string, want ...bool) {
		t.Helper()
		if !slices.Equal(summaries, want) {
			t.Errorf("%s: there were summaries %v, want %v", name, summaries, want)
		}
	}
	root, run := s.call("acme/run-1")
	s.end(root, Ingress, OK)

	look(root.Workflow, 2)
	s.end(s.Arrive(run, Place{}, s.tick()), Ingress, OK)
	want("a batch that is tried again", true, false, false)
	if s.whole(root.Workflow, 1000).Summary == "" {
		t.Error("no summary of what is stored")
	}

	lose := func(step *Step) {
		s.mu.Lock()
		s.dropLocked(&entry{step: step}, dropQueueFull)
		s.mu.Unlock()
	}
	other, _ := s.call("acme/run-2")
	s.end(other, Ingress, OK)
	look(other.Workflow, 0)
	lose(other)
	if s.whole(other.Workflow, 1000).Summary != "" {
		t.Error("a summary before the store hears of a loss")
	}
	s.settle()
	want("a loss that the store is told of", false)
	if s.whole(other.Workflow, 1000).Summary != "" {
		t.Error("a summary after a loss")
	}

	look(root.Workflow, 1)
	s.End(s.Arrive(run, Place{}, s.tick()), Observed{Direction: Ingress, Protocol: MCP, Outcome: OK, Ended: s.tick()})
	stopped, stop := context.WithCancel(t.Context())
	stop()
	s.keep(stopped, s.batch(<-s.queue))
	want("a batch that is given up", true)
	if s.whole(root.Workflow, 1000).Summary != "" {
		t.Error("a summary after a batch was given up")
	}
	s.settle()
	want("and the loss told", true, false)
	if whole, err := store.Whole(t.Context(), root.Workflow); whole || err != nil {
		t.Errorf("Whole = %v, %v: the store did not hear of it", whole, err)
	}
}

// TestBundleStrict has a summary name nobody.
func TestBundleStrict(t *testing.T) {
	s := seeing(t, func(o *Options) { o.Privacy = Strict })
	root, _ := s.call("acme/run-1")
	s.end(root, Ingress, OK)
	report := s.verify(s.whole(root.Workflow, 1000))
	if !report.OK() || report.Summary == nil {
		t.Fatalf("%+v", report)
	}
	if e := report.Summary.Evidence; e.OrchestratorID != "ref:orchestrator" || len(e.AgentsInvolved) != 0 {
		t.Errorf("%+v", e)
	}
}

// endless is a store of more receipts than a bundle may have.
type endless struct{ Store }

func (endless) Receipts(_ context.Context, workflow, _ string, limit int) ([]Receipt, string, error) {
	page := make([]Receipt, limit)
	for i := range page {
		page[i] = Receipt{Workflow: workflow, JWS: "x"}
	}
	return page, "more", nil
}

// TestBundleTooLarge has a workflow without an end cost no more than a large one.
func TestBundleTooLarge(t *testing.T) {
	s := seeing(t, func(o *Options) { o.Store = endless{NewMemory()} })
	if _, err := s.Extract(t.Context(), all("wf_x"), peac.ReceiptRef("x")); !errors.Is(err, ancestry.ErrNotFound) {
		t.Errorf("Extract: %v", err)
	}
	if b, err := s.Bundle(t.Context(), all("wf_x"), "", 10); err != nil || len(b.Receipts) != 10 || b.Next != "more" {
		t.Errorf("Bundle = %d receipts, next %q, %v", len(b.Receipts), b.Next, err)
	}
}

// TestBundleAsksOnce has what is live be asked for once, however many receipts and
// runs there are.
func TestBundleAsksOnce(t *testing.T) {
	s := seeing(t, func(*Options) {})
	var root *Step
	for _, run := range []ancestry.RunID{"run-1", "run-2", "run-3"} {
		root = s.Arrive(s.Open(run, Origin{Context: "a conversation"}), Place{}, s.tick())
		s.end(root, Ingress, OK)
	}
	s.live["run-2"] = true
	b := s.whole(root.Workflow, 1000)
	if report := s.verify(b); len(b.Receipts) != 3 || report.Summary == nil || report.Summary.Evidence.Status != peac.InProgress {
		t.Fatalf("%d receipts: %+v", len(b.Receipts), report)
	}
	if s.asks != 1 {
		t.Errorf("asked %d times for what is live", s.asks)
	}
}

// afterRead does something when the store was read for the nth time from now.
func (s *seen) afterRead(n int, do func()) {
	s.o.Store = leaving{s.o.Store, func() {
		if n--; n == 0 {
			do()
		}
	}}
}

// TestBundleMeanwhile has the one page of a workflow be what its summary is of, also if
// a receipt comes between the two.
func TestBundleMeanwhile(t *testing.T) {
	s := seeing(t, func(*Options) {})
	root, r := s.call("acme/run-1")
	s.end(root, Ingress, OK)
	call := s.Leave(r, s.tick())
	s.afterRead(1, func() { s.end(call, Egress, OK) })
	report := s.verify(s.whole(root.Workflow, 1000))
	if !report.OK() || report.Summary == nil || len(report.Steps) != 5 {
		t.Errorf("%+v", report)
	}
}

// leaving is a store whose reader goes while it reads.
type leaving struct {
	Store
	leave func()
}

func (l leaving) Receipts(ctx context.Context, workflow, after string, limit int) ([]Receipt, string, error) {
	defer l.leave()
	return l.Store.Receipts(ctx, workflow, after, limit)
}

// TestBundleLeft has no page be verified for a reader who has gone.
func TestBundleLeft(t *testing.T) {
	s := seeing(t, func(*Options) {})
	root, _ := s.call("acme/run-1")
	s.end(root, Ingress, OK)
	ctx, leave := context.WithCancel(t.Context())
	s.o.Store = leaving{s.o.Store, leave}
	if _, err := s.account(ctx, all(root.Workflow), ""); !errors.Is(err, context.Canceled) {
		t.Errorf("account: %v", err)
	}
}

// TestBundleWaits has a reader who waits for another one's workflow to be read go when
// he wants to, and the next one read it.
func TestBundleWaits(t *testing.T) {
	s := seeing(t, func(*Options) {})
	root, _ := s.call("acme/run-1")
	s.end(root, Ingress, OK)
	s.accounts <- struct{}{} // as one who reads
	ctx, leave := context.WithCancel(t.Context())
	gone := make(chan error)
	go func() {
		_, err := s.account(ctx, all(root.Workflow), "")
		gone <- err
	}()
	leave()
	if err := <-gone; !errors.Is(err, context.Canceled) {
		t.Errorf("account: %v while another is read", err)
	}
	<-s.accounts
	if b := s.whole(root.Workflow, 1000); b.Summary == "" {
		t.Error("no summary when the other one was read")
	}
}

// TestBundleKeys has a bundle bring the keys that it was signed with, also when they
// are published no more, and none that is revoked.
func TestBundleKeys(t *testing.T) {
	key := func(id string, sign time.Time) Key {
		k := ed25519.NewKeyFromSeed([]byte((id + strings.Repeat("x", 32))[:32]))
		return Key{peac.Rotation{KeyID: id, Public: k.Public().(ed25519.PublicKey), Sign: sign}, k}
	}
	began := time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)
	const day = 24 * time.Hour
	keys := []Key{key("one", began.Add(-day)), key("two", began.Add(2*day)), key("three", began.Add(4*day)), key("idle", began.Add(200*day))}
	keys[0].Retire, keys[1].Retire = began.Add(40*day), began.Add(40*day)
	keys[3].Publish = began.Add(150 * day)
	s := seeing(t, func(o *Options) { o.Keys = keys })
	root, r := s.call("acme/run-1")
	s.end(root, Ingress, OK)
	s.now = began.Add(3 * day)
	s.end(s.Arrive(r, Place{}, s.tick()), Ingress, OK)
	s.now = began.Add(100 * day)
	other, _ := s.call("acme/run-2")
	s.end(other, Ingress, OK)

	ids := func(b peac.Bundle) string {
		set, err := peac.ParseJWKS(b.JWKS)
		if err != nil {
			t.Fatal(err)
		}
		var list []string
		for _, k := range set.Keys {
			list = append(list, k.KeyID)
		}
		return strings.Join(list, " ")
	}
	for _, limit := range []int{1, 4, 1000} {
		b := s.whole(root.Workflow, limit)
		if report := s.verify(b); !report.OK() || report.Summary == nil || ids(b) != "one two three" {
			t.Errorf("pages of %d: keys %s: %+v", limit, ids(b), report)
		}
	}
	b, err := s.Extract(t.Context(), all(root.Workflow), peac.ReceiptRef(s.whole(root.Workflow, 1000).Receipts[0]))
	if err != nil {
		t.Fatal(err)
	}
	if report := s.verify(b); !report.OK() || report.Summary == nil {
		t.Errorf("an extract: keys %s: %+v", ids(b), report)
	}
	if got := ids(s.whole(other.Workflow, 1000)); got != "three" {
		t.Errorf("keys %s of what the last one has signed", got)
	}
	s.o.Revoked = []peac.RevokedKey{{KeyID: "one", RevokedAt: "2026-12-01T00:00:00Z"}}
	later, err := New(s.o)
	if err != nil {
		t.Fatal(err)
	}
	s.Minter = later
	if b := s.whole(root.Workflow, 1000); ids(b) != "two three" || s.verify(b).OK() {
		t.Errorf("keys %s when one is revoked", ids(b))
	}
}

// TestJWKSBound has a bundle bring no more keys than a reader takes: those that it was
// signed with.
func TestJWKSBound(t *testing.T) {
	var i issuer
	signed := map[string]bool{}
	for n := range 2 * peac.MaxKeys {
		public := ed25519.NewKeyFromSeed([]byte(strings.Repeat(string(rune('A'+n)), 32))).Public().(ed25519.PublicKey)
		i.ring = append(i.ring, peac.Rotation{KeyID: strings.Repeat("k", n+1), Public: public})
		signed[strings.Repeat("k", n+1)] = n%2 == 0
	}
	set, err := peac.ParseJWKS(i.jwks(time.Now(), signed))
	if err != nil || len(set.Keys) != peac.MaxKeys {
		t.Fatalf("%d keys, %v", len(set.Keys), err)
	}
	for _, k := range set.Keys {
		if !signed[k.KeyID] {
			t.Errorf("%s has signed nothing", k.KeyID)
		}
	}
}

// TestPublish has readers find the keys, as they are when they ask.
func TestPublish(t *testing.T) {
	now := time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)
	day := 24 * time.Hour
	rotation := func(id, seed string, publish, sign, retire time.Time) Key {
		key := ed25519.NewKeyFromSeed([]byte((seed + strings.Repeat("x", 32))[:32]))
		return Key{peac.Rotation{KeyID: id, Public: key.Public().(ed25519.PublicKey), Publish: publish, Sign: sign, Retire: retire}, key}
	}
	order := []Key{
		rotation("lost", "a", now.Add(-300*day), now.Add(-300*day), time.Time{}),
		rotation("old", "b", now.Add(-200*day), now.Add(-200*day), now.Add(40*day)),
		rotation("new", "c", now, now.Add(5*day), time.Time{}),
	}
	revoked := []peac.RevokedKey{{KeyID: "lost", RevokedAt: "2026-05-01T00:00:00Z", Reason: "key_compromise"}}
	clock := now
	next := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) })
	m := seeing(t, func(o *Options) {
		o.Keys, o.Revoked, o.Now = order, revoked, func() time.Time { return clock }
	})
	h := m.Publish(next)
	ask := func(method, target string, header ...string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(method, target, nil)
		if len(header) > 0 {
			r.Header.Set(header[0], header[1])
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w
	}
	w := ask("GET", IssuerPath)
	document, err := peac.ParseIssuer(w.Body.Bytes(), testIssuer)
	if err != nil || document.JWKSURI != testIssuer+KeysPath || len(document.RevokedKeys) != 1 {
		t.Fatalf("%v: %s", err, w.Body)
	}
	for name, want := range map[string]string{"Content-Type": "application/json; charset=utf-8", "Cache-Control": "public, max-age=3600"} {
		if got := w.Header().Get(name); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
	keys := func() string {
		set, err := peac.ParseJWKS(ask("GET", KeysPath).Body.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		var ids []string
		for _, k := range set.Keys {
			ids = append(ids, k.KeyID)
		}
		return strings.Join(ids, " ")
	}
	tag := ask("GET", KeysPath).Header().Get("ETag")
	for _, step := range []struct {
		after time.Duration
		want  string
	}{{-day, "old"}, {0, "old new"}, {39 * day, "old new"}, {40 * day, "new"}} {
		if clock = now.Add(step.after); keys() != step.want {
			t.Errorf("after %s: %s, want %s", step.after, keys(), step.want)
		}
	}
	if got := ask("GET", KeysPath).Header().Get("ETag"); got == tag || got == "" {
		t.Errorf("ETag %s before and after a key went", got)
	}
	clock = now
	if w := ask("GET", KeysPath, "If-None-Match", tag); w.Code != http.StatusNotModified || w.Body.Len() > 0 {
		t.Errorf("a reader who has it: %d, %s", w.Code, w.Body)
	}
	if w := ask("HEAD", KeysPath); w.Code != http.StatusOK || w.Header().Get("ETag") != tag || w.Body.Len() > 0 {
		t.Errorf("HEAD: %d, %s", w.Code, w.Body)
	}
	for _, other := range [][2]string{{"POST", KeysPath}, {"GET", "/"}, {"GET", KeysPath + "/"}, {"GET", "/.well-known/jwks.json"}, {"GET", "/.well-known/peac%2Djwks.json"}} {
		if w := ask(other[0], other[1]); w.Code != http.StatusTeapot {
			t.Errorf("%s %s does not reach the host: %d", other[0], other[1], w.Code)
		}
	}
}

// TestCheck has a start fail with keys that can't be published, or can't sign.
func TestCheck(t *testing.T) {
	now := time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)
	keys := seeing(t, func(*Options) {}).o.Keys
	many := slices.Clone(keys)
	for i := range 20 {
		k := many[0]
		k.KeyID, k.Sign = strings.Repeat("k", i+1), now.Add(time.Hour*time.Duration(i+1))
		many = append(many, k)
	}
	leaving := func(k Key, next ...Key) []Key {
		k.Retire = now.Add(peac.MinOverlap)
		return append([]Key{k}, next...)
	}
	revoked := func(id, at string) []peac.RevokedKey { return []peac.RevokedKey{{KeyID: id, RevokedAt: at}} }
	for name, tt := range map[string]struct {
		keys    []Key
		revoked []peac.RevokedKey
		want    string
	}{
		"no key":            {nil, nil, "Keys are required"},
		"one id twice":      {append(slices.Clone(keys), keys[0]), nil, `two keys have the id "2026-11"`},
		"the one is gone":   {keys, revoked("2026-11", "2026-11-01T00:00:00Z"), `key "2026-11" is revoked, and is to sign`},
		"a later one":       {many[:2], revoked("k", "2026-11-01T00:00:00Z"), `key "k" is revoked, and is to sign`},
		"too many":          {many, nil, "21 keys at once"},
		"it leaves":         {leaving(keys[0]), nil, "retires less than 720h0m0s after"},
		"it leaves early":   {leaving(keys[0], many[1]), nil, "retires less than 720h0m0s after"},
		"revoked some time": {keys, revoked("other", "lately"), "a revoked key lacks"},
	} {
		o := seeing(t, func(*Options) {}).o
		o.Keys, o.Revoked, o.Now = tt.keys, tt.revoked, func() time.Time { return now }
		if m, err := New(o); err == nil || m != nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
		o.Store = nil // which is not there yet when it is checked
		if err := o.Check(); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: Check = %v, want %q", name, err, tt.want)
		}
	}
	did := seeing(t, func(o *Options) { o.Issuer = "did:web:agent.example.com" })
	h := did.Publish(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) }))
	w := httptest.NewRecorder()
	if h.ServeHTTP(w, httptest.NewRequest("GET", IssuerPath, nil)); w.Code != http.StatusTeapot {
		t.Errorf("an issuer without an origin publishes: %d", w.Code)
	}
}

// TestOrchestrator has a summary name the host as the one that has begun a workflow
// only where it has.
func TestOrchestrator(t *testing.T) {
	of := newOffice(t)
	own := of.Open("run_1", Origin{})
	from := Place{of.names.RunWorkflow("elsewhere", "run_9"), of.names.Step("wf", "exchange")}
	carried := of.Open("run_2", Origin{Carried: from})
	of.End(of.Arrive(own, Place{}, time.Now()), ended(OK))
	of.End(of.Arrive(carried, from, time.Now()), ended(OK))
	of.work()
	of.stop()
	for run, want := range map[*Run]string{own: of.names.HostRef("", testHost), carried: "ref:orchestrator"} {
		set, err := of.SetOf(t.Context(), "", run.id)
		if err != nil {
			t.Fatal(err)
		}
		b, err := of.Bundle(t.Context(), set, "", 100)
		if err != nil {
			t.Fatal(err)
		}
		r, err := peac.Verify(b.Summary, testKeys.Of("https://host-a.example.com"), time.Now())
		if err != nil {
			t.Fatal(err)
		}
		if got := r.Summary.Evidence.OrchestratorID; got != want {
			t.Errorf("orchestrator_id of %s is %s, want %s", run.id, got, want)
		}
	}
}
