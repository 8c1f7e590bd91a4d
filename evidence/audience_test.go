package evidence

import (
	"encoding/json"
	"errors"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/wopproxy/wopproxy/ancestry"
	"github.com/wopproxy/wopproxy/ancestry/peac"
)

const (
	atB = "https://b.example.com"
	atC = "https://c.example.com:8443"
)

// telling is a Minter under Strict, and a run of it that has called two hosts: B twice,
// where the second call becomes a task, and C in vain.
type telling struct {
	*seen
	run        *Run
	root       *Step
	b1, b2, c1 *Step
	placeB     []Place // as B was told
}

const telltale = ancestry.RunID("acme/run-1")

func tell(t *testing.T, edit func(*Options)) *telling {
	t.Helper()
	s := &telling{seen: seeing(t, func(o *Options) { o.Privacy = Strict; edit(o) })}
	s.run = s.Open(telltale, Origin{})
	s.root = s.Arrive(s.run, Place{}, s.tick())
	leave := func(to string) (*Step, Place) {
		step := s.Leave(s.run, s.tick())
		step.Direction, step.Protocol = Egress, A2A
		return step, s.For(step, to)
	}
	observed := func(o Outcome, callee string) Observed {
		return Observed{
			Direction: Egress, Protocol: A2A, Method: "SendMessage", Outcome: o, Callee: callee, Evidence: ancestry.EvidenceTraceID,
			Trace: ancestry.TraceID{1, 2, 3}, Span: ancestry.SpanID{4, 5, 6}, Caller: "planner.example.com", Ended: s.tick(),
		}
	}
	var place Place
	s.b1, place = leave(atB)
	s.placeB = append(s.placeB, place)
	s.found(s.b1, []peac.Carrier{peac.NewCarrier("e30.e30.a receipt of B's")}, 0)
	s.End(s.b1, observed(OK, "b.example.com"))
	s.b2, place = leave(atB)
	s.placeB = append(s.placeB, place)
	s.State(s.b2, "working", observed("", "b.example.com"))
	s.Progress(s.b2, observed("", "b.example.com"))
	s.End(s.b2, observed(Ongoing, "b.example.com"))
	s.State(s.b2, "completed", observed("", "b.example.com"))
	s.c1, _ = leave(atC)
	s.End(s.c1, observed(Rejected, "c.example.com"))
	s.end(s.root, Ingress, OK)
	return s
}

// bundleFor reads what there is for an audience; "": the run's own.
func (s *telling) bundleFor(audience string, limit int) peac.Bundle {
	s.t.Helper()
	set, err := s.SetOf(s.t.Context(), audience, telltale)
	if err != nil {
		s.t.Fatal(err)
	}
	return s.read(set, limit)
}

// identifying is what can tell that two texts are of the same thing.
var identifying = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|[0-9a-f]{64}|[0-9a-f]{32}|[0-9a-f]{16}`)

// tells lists all that identifies something in a bundle, but for its issuer: in what it
// says itself, and in each receipt, claims and signature.
func tells(t *testing.T, b peac.Bundle) (found []string) {
	t.Helper()
	keys, err := peac.ParseJWKS(b.JWKS)
	if err != nil {
		t.Fatal(err)
	}
	b.JWKS = nil // which all of the issuer's have
	raw, err := json.Marshal(b)
	if err != nil {
		t.Fatal(err)
	}
	texts := append([]string{string(raw)}, b.Receipts...)
	for _, jws := range append(slices.Clone(b.Receipts), b.Summary) {
		r, err := peac.Verify(jws, keys.Of(testIssuer), time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC))
		if err != nil {
			t.Fatalf("%v: %s", err, jws)
		}
		claims, err := json.Marshal(r.Claims)
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, string(claims), r.Ref)
	}
	all := map[string]bool{}
	for _, text := range texts {
		for _, id := range identifying.FindAllString(text, -1) {
			all[id] = true
		}
		all[text] = true
	}
	return slices.Sorted(maps.Keys(all))
}

// TestAudience has each audience get receipts of its own, which hold by themselves, and
// in which nothing is found again of those that others may read.
func TestAudience(t *testing.T) {
	s := tell(t, func(*Options) {})
	sets := map[string][]string{}
	for audience, want := range map[string]int{"": 4, atB: 2, atC: 1} {
		for _, limit := range []int{1, 1000} {
			b := s.bundleFor(audience, limit)
			report := s.verify(b)
			if !report.OK() || report.Summary == nil || len(report.Steps) != want {
				t.Fatalf("for %q, in pages of %d: %+v", audience, limit, report)
			}
			e := report.Summary.Evidence
			if e.OrchestratorID != "ref:orchestrator" || len(e.AgentsInvolved) != 0 || e.Status != map[string]string{"": peac.Completed, atB: peac.Completed, atC: peac.Failed}[audience] {
				t.Errorf("for %q: summary %+v", audience, e)
			}
			sets[audience] = tells(t, b)
			if audience == "" {
				continue
			}
			for _, step := range report.Steps {
				for _, r := range step.Receipts {
					w := r.Workflow
					if len(w.ParentStepIDs) > 0 || w.OrchestratorReceiptRef != "" || w.ToolName != "" || group(t, r, peac.CorrelationGroup, "parent_jti") != nil || group(t, r, peac.CorrelationGroup, "trace_id") != nil {
						t.Errorf("for %q: %+v", audience, r.Claims.Extensions)
					}
				}
			}
			extract, err := s.Extract(t.Context(), s.set(audience), peac.ReceiptRef(b.Receipts[0]))
			if err != nil || !s.verify(extract).OK() {
				t.Errorf("for %q: an extract %+v, %v", audience, extract, err)
			}
		}
	}
	for audience, ids := range sets {
		if len(ids) < 10 {
			t.Errorf("for %q: only %v are found", audience, ids)
		}
		for other, others := range sets {
			for _, id := range ids {
				if other != audience && slices.Contains(others, id) {
					t.Errorf("%s is told to %q and to %q", id, audience, other)
				}
			}
		}
	}
	stored, _, err := s.o.Store.Receipts(t.Context(), s.placeB[0].Workflow, "", 1000)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range stored {
		if r.Run != "" || r.Audience != atB {
			t.Errorf("stored as of the run %q, for %q", r.Run, r.Audience)
		}
	}
	of := s.verify(s.bundleFor(atB, 1000))
	for i, step := range of.Steps {
		if (Place{step.Receipts[0].Workflow.WorkflowID, step.ID}) != s.placeB[i] || len(step.Receipts) != []int{1, 4}[i] {
			t.Errorf("B was told %v, and reads of %s in %d receipts", s.placeB[i], step.ID, len(step.Receipts))
		}
	}
}

func (s *telling) set(audience string) Set {
	s.t.Helper()
	set, err := s.SetOf(s.t.Context(), audience, telltale)
	if err != nil {
		s.t.Fatal(err)
	}
	return set
}

// TestAudienceOnce has a step be told to one audience once, and to nobody who was told
// of none: who asks for the others gets nothing, or is told why.
func TestAudienceOnce(t *testing.T) {
	s := tell(t, func(*Options) {})
	step := s.Leave(s.run, s.tick())
	if place := s.For(step, atB); s.For(step, atB) != place || len(step.told) != 1 {
		t.Errorf("told %d times", len(step.told))
	}
	if _, err := s.SetOf(t.Context(), "https://d.example.com", telltale); !errors.Is(err, ancestry.ErrNotFound) {
		t.Errorf("who was told nothing: %v", err)
	}
	if _, err := s.SetOf(t.Context(), "", ancestry.RunID(s.placeB[0].Workflow)); !errors.Is(err, ancestry.ErrNotFound) {
		t.Errorf("the workflow that B knows, asked for as a run's own: %v", err)
	}
	if got, err := s.SetOf(t.Context(), atB, ancestry.RunID(s.run.Workflow)); err == nil {
		// Its ids are of the run's tenant, which the workflow does not tell.
		t.Errorf("by the workflow alone: %+v", got)
	}
	for _, mode := range []Privacy{Balanced, Open} {
		o := s.o
		o.Privacy = mode
		m, err := New(o)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := m.SetOf(t.Context(), atB, telltale); !errors.Is(err, ancestry.ErrNoAudiences) {
			t.Errorf("%s: %v", mode, err)
		}
		step := m.Leave(s.run, s.tick())
		if m.For(step, atB) != step.Place || len(step.told) > 0 {
			t.Errorf("%s: told %v", mode, step.told)
		}
	}
}

// TestAudienceLoop has a call that comes back be of no audience's: what the host does
// for it is under the workflow that the audience knows, and is not the audience's to read.
func TestAudienceLoop(t *testing.T) {
	s := tell(t, func(*Options) {})
	const back = ancestry.RunID("acme/run-2")
	run := s.Open(back, Origin{Carried: s.placeB[0]})
	s.end(s.Arrive(run, s.placeB[0], s.tick()), Ingress, OK)
	out := s.Leave(run, s.tick())
	if told := s.For(out, atB); told.Workflow == s.placeB[0].Workflow {
		t.Errorf("told %v", told)
	}
	s.end(out, Egress, OK)
	own, err := s.SetOf(t.Context(), "", back)
	if err != nil {
		t.Fatal(err)
	}
	for name, set := range map[string]Set{"for B": s.set(atB), "the run's own": own} {
		report := s.verify(s.read(set, 2))
		if !report.OK() || report.Summary == nil || len(report.Steps) != 2 {
			t.Errorf("%s: %+v", name, report)
		}
		for _, step := range report.Steps {
			if there := step.ID == s.placeB[0].Step || step.ID == s.placeB[1].Step; there != (name == "for B") {
				t.Errorf("%s: %s is there", name, step.ID)
			}
		}
	}
}

// TestAudienceSummary has no summary be made for an audience while a call to it may
// still come, or when it may have lost one.
func TestAudienceSummary(t *testing.T) {
	status := func(s *telling) string {
		if report := s.verify(s.bundleFor(atB, 1000)); report.Summary != nil {
			return report.Summary.Evidence.Status
		}
		return ""
	}
	for name, tt := range map[string]struct {
		change func(s *telling)
		want   string
	}{
		"all is over":     {func(*telling) {}, peac.Completed},
		"the run is live": {func(s *telling) { s.live[telltale] = true }, peac.InProgress},
		"another of it":   {func(s *telling) { s.busy = s.run.Workflow }, peac.InProgress},
		"another's run":   {func(s *telling) { s.busy = s.placeB[0].Workflow }, peac.Completed},
		"the run's workflow has lost some": {func(s *telling) {
			if err := s.o.Store.Add(t.Context(), nil, []string{s.run.Workflow}); err != nil {
				t.Fatal(err)
			}
		}, ""},
		"its receipt was dropped": {func(s *telling) {
			step := s.Leave(s.run, s.tick())
			s.For(step, atB)
			s.queue = make(chan *entry, 1) // room for the run's own
			s.end(step, Egress, OK)
		}, ""},
	} {
		s := tell(t, func(*Options) {})
		tt.change(s)
		if got := status(s); got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
		if len(s.pending) > 0 {
			t.Errorf("%s: %v are waited for", name, s.pending)
		}
		if name == "its receipt was dropped" {
			if b := s.bundleFor("", 1000); b.Summary == "" {
				t.Errorf("%s: the run's own have no summary", name)
			}
			if b := s.bundleFor(atC, 1000); b.Summary == "" {
				t.Errorf("%s: another audience has no summary", name)
			}
		}
	}
}

// TestOriginOf has one form name an origin, however it is written.
func TestOriginOf(t *testing.T) {
	for text, want := range map[string]string{
		"HTTPS://B.example.com:443/a?b": atB, "https://b.example.com": atB, "https://b.example.com:80": atB + ":80",
		"http://B.Example.com:80": "http://b.example.com", "http://[::1]:8080/": "http://[::1]:8080",
	} {
		u, err := url.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		if got := OriginOf(u); got != want {
			t.Errorf("OriginOf(%s) = %s, want %s", text, got, want)
		}
	}
	if got := OriginOf(nil); got != "" {
		t.Errorf("OriginOf(nil) = %s", got)
	}
}
