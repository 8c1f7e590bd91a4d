package peac

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// workflow signs the receipts of a workflow with a fork, a join, a failed step,
// a retry and a chain of progress, and its summary. edit changes claims first.
func workflow(t testing.TB, edit func(n int, c *Claims)) Bundle {
	t.Helper()
	b := Bundle{Format: BundleFormat, Issuer: issuer}
	for n, s := range [][]string{
		{"root"}, {"left", "root"}, {"right", "root"}, {"failed", "left"}, {"retry", "left"},
		{"join", "retry", "right"}, {"join", "retry", "right"}, {"join", "retry", "right"},
	} {
		c := claims(n, s[0], s[1:]...)
		if n > 5 { // progress, each behind the one before
			w := c.Extensions[WorkflowGroup].(WorkflowContext)
			w.PrevReceiptHash = ReceiptRef(b.Receipts[n-1])
			c.Extensions[WorkflowGroup] = w
		}
		edit(n, &c)
		jws, err := newSigner(t).Sign(c)
		if err != nil {
			t.Fatal(err)
		}
		b.Receipts = append(b.Receipts, jws)
	}
	b.Summary = summarize(t, b.Receipts, func(*WorkflowSummary) {})
	return b
}

func summarize(t testing.TB, receipts []string, edit func(*WorkflowSummary)) string {
	t.Helper()
	var refs []string
	for _, jws := range receipts {
		refs = append(refs, ReceiptRef(jws))
	}
	c, err := Commit(refs)
	if err != nil {
		t.Fatal(err)
	}
	s := summary()
	s.Evidence.ReceiptMerkleRoot, s.Evidence.ReceiptCount = c.Root, &c.TreeSize
	s.Evidence.Status, s.Evidence.ErrorContext = Failed, &ErrorContext{step("failed"), "timeout", ""}
	edit(&s)
	jws, err := newSigner(t).Sign(Claims{
		Kind: Evidence, Type: SummaryGroup, IssuedAt: at + 100, ID: NewReceiptID(time.Unix(at, 0)),
		Extensions: map[string]any{SummaryGroup: s, CorrelationGroup: Correlation{WorkflowID: wf}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return jws
}

func unchanged(int, *Claims) {}

// codes are the faults of a report: the step, if it is of one, and the code.
func codes(r Report) (found []string) {
	for _, f := range r.Faults {
		found = append(found, string(f.Code))
	}
	for _, s := range r.Steps {
		for _, f := range s.Faults {
			found = append(found, strings.Trim(strings.TrimPrefix(s.ID, "step_"), "0")+" "+string(f.Code))
		}
	}
	slices.Sort(found)
	return slices.Compact(found)
}

func verifyBundle(b Bundle) Report { return b.Verify(keys.Of(issuer), time.Unix(at+200, 0)) }

// TestBundle has a whole workflow hold, in any order of its receipts, and after
// it was written and read.
func TestBundle(t *testing.T) {
	b := workflow(t, unchanged)
	slices.Reverse(b.Receipts)
	raw, err := json.Marshal(b)
	if err != nil {
		t.Fatal(err)
	}
	read, err := ParseBundle(raw)
	if err != nil {
		t.Fatal(err)
	}
	report := verifyBundle(read)
	if !report.OK() || report.Summary == nil || len(report.Steps) != 6 {
		t.Errorf("OK = %v, %d steps, %q", report.OK(), len(report.Steps), codes(report))
	}
	if first, last := report.Steps[0], report.Steps[5]; first.ID != step("root") || last.ID != step("join") || len(last.Receipts) != 3 {
		t.Errorf("steps from %s to %s", first.ID, last.ID)
	}
}

// TestBundleRefuses breaks a workflow, each time in another way, with receipts
// whose signatures hold and with some whose don't.
func TestBundleRefuses(t *testing.T) {
	context := func(at int, edit func(*WorkflowContext)) func(*testing.T) Bundle {
		return func(t *testing.T) Bundle {
			return workflow(t, func(n int, c *Claims) {
				if n == at {
					w := c.Extensions[WorkflowGroup].(WorkflowContext)
					edit(&w)
					c.Extensions[WorkflowGroup] = w
					c.Extensions[CorrelationGroup] = Correlation{WorkflowID: w.WorkflowID}
				}
			})
		}
	}
	with := func(edit func(*testing.T, *Bundle)) func(*testing.T) Bundle {
		return func(t *testing.T) Bundle {
			b := workflow(t, unchanged)
			edit(t, &b)
			return b
		}
	}
	summarized := func(edit func(*WorkflowSummary)) func(*testing.T) Bundle {
		return with(func(t *testing.T, b *Bundle) { b.Summary = summarize(t, b.Receipts, edit) })
	}
	ended := func(s string) func(*WorkflowSummary) { return func(w *WorkflowSummary) { w.Evidence.CompletedAt = s } }
	count, zero, two := int64(9), int64(0), int64(2)
	const summary, dag = string(CodeSummaryInvalid), string(CodeDAGInvalid)
	for _, tt := range []struct {
		name string
		make func(*testing.T) Bundle
		want []string
	}{
		{"a receipt is left out", with(func(_ *testing.T, b *Bundle) { b.Receipts = slices.Delete(b.Receipts, 3, 4) }), []string{summary}},
		{"a parent is left out", with(func(_ *testing.T, b *Bundle) { b.Receipts = b.Receipts[1:] }),
			[]string{summary, "left " + string(CodeParentNotFound), "right " + string(CodeParentNotFound)}},
		{"a link is left out", with(func(_ *testing.T, b *Bundle) { b.Receipts = slices.Delete(b.Receipts, 6, 7) }), []string{summary, "join " + dag}},
		{"a receipt twice", with(func(_ *testing.T, b *Bundle) { b.Receipts = append(b.Receipts, b.Receipts[0]) }),
			[]string{summary, "root " + string(CodeDuplicateRef), "root " + dag}},
		{"a payload is changed", with(func(_ *testing.T, b *Bundle) {
			p := strings.Split(b.Receipts[3], ".")
			b.Receipts[3] = p[0] + "." + strings.Split(b.Receipts[4], ".")[1] + "." + p[2]
		}), []string{string(CodeInvalidSignature), summary}},
		{"a receipt of another issuer's", with(func(_ *testing.T, b *Bundle) { b.Issuer = "https://other.example.com" }), nil},
		{"nothing in it", with(func(_ *testing.T, b *Bundle) { b.Receipts = nil }), nil},
		{"a cycle", context(1, func(w *WorkflowContext) { w.ParentStepIDs = []string{step("join")} }),
			[]string{"join " + string(CodeCycleDetected), "left " + string(CodeCycleDetected), "retry " + string(CodeCycleDetected)}},
		{"a parent that is nowhere", context(2, func(w *WorkflowContext) { w.ParentStepIDs = []string{step("x")} }), []string{"right " + string(CodeParentNotFound)}},
		{"a step of another workflow", context(3, func(w *WorkflowContext) { w.WorkflowID += "b" }), []string{summary, "failed " + dag}},
		{"a retry under the same step", context(4, func(w *WorkflowContext) { w.StepID = step("failed") }),
			[]string{"failed " + dag, "join " + string(CodeParentNotFound)}},
		{"a fork of the chain", context(7, func(w *WorkflowContext) { w.PrevReceiptHash = "" }), []string{"join " + dag}},
		{"two links after one", nil, []string{"join " + dag}},
		{"a link to nothing", context(7, func(w *WorkflowContext) { w.PrevReceiptHash = ReceiptRef("") }), []string{"join " + dag}},
		{"a first link that has one before it", context(3, func(w *WorkflowContext) { w.PrevReceiptHash = ReceiptRef("") }), []string{"failed " + dag}},
		{"an index beyond the total", context(2, func(w *WorkflowContext) { w.StepIndex, w.StepTotal = &two, &two }), []string{"right " + dag}},
		{"an id twice", func(t *testing.T) Bundle {
			return workflow(t, func(n int, c *Claims) {
				if n < 2 {
					c.ID = "same"
				}
			})
		}, []string{"left " + dag}},
		{"no place in a workflow", func(t *testing.T) Bundle {
			return workflow(t, func(n int, c *Claims) {
				if n == 3 {
					delete(c.Extensions, WorkflowGroup)
				}
			})
		}, []string{string(CodeContextInvalid), summary}},
		{"two steps with one index", func(t *testing.T) Bundle {
			return workflow(t, func(n int, c *Claims) {
				if n == 1 || n == 2 {
					w := c.Extensions[WorkflowGroup].(WorkflowContext)
					w.StepIndex = &zero
					c.Extensions[WorkflowGroup] = w
				}
			})
		}, []string{"right " + dag}},
		{"another count", summarized(func(s *WorkflowSummary) { s.Evidence.ReceiptCount = &count }), []string{summary}},
		{"another root", summarized(func(s *WorkflowSummary) { s.Evidence.ReceiptMerkleRoot = ReceiptRef("") }), []string{summary}},
		{"another workflow's summary", with(func(t *testing.T, b *Bundle) {
			other := workflow(t, func(_ int, c *Claims) { c.Extensions[CorrelationGroup] = Correlation{} })
			b.Summary = other.Summary
		}), []string{summary}},
		{"a list of what is not there", summarized(func(s *WorkflowSummary) { s.Evidence.ReceiptRefs = []string{ReceiptRef("")} }), []string{summary}},
		{"a failed step that is not there", summarized(func(s *WorkflowSummary) { s.Evidence.ErrorContext.FailedStepID = step("x") }), []string{summary}},
		{"an agent that took no part", acted("ref:agent:b", "ref:agent:c"), []string{summary}},
		{"it ended before it began", summarized(ended("2001-01-01T00:00:00Z")), []string{summary}},
		{"it ends after it was told", summarized(ended("2099-01-01T00:00:00Z")), []string{summary}},
		{"told before it was", summarized(func(s *WorkflowSummary) { s.IssuedAt = s.Evidence.StartedAt }), []string{summary}},
		{"a receipt as summary", with(func(_ *testing.T, b *Bundle) { b.Summary = b.Receipts[0] }), []string{summary}},
		{"a summary as receipt", with(func(_ *testing.T, b *Bundle) { b.Receipts[3] = b.Summary }), []string{string(CodeContextInvalid), summary}},
		{"a summary that is none", with(func(_ *testing.T, b *Bundle) { b.Summary = "x" }), []string{string(CodeInvalidFormat)}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var b Bundle
			if tt.make == nil {
				var refs []string
				b = workflow(t, func(n int, c *Claims) {
					w := c.Extensions[WorkflowGroup].(WorkflowContext)
					if refs = append(refs, w.PrevReceiptHash); n == 7 {
						w.PrevReceiptHash = refs[6]
						c.Extensions[WorkflowGroup] = w
					}
				})
			} else {
				b = tt.make(t)
			}
			got := codes(verifyBundle(b))
			slices.Sort(tt.want)
			if len(got) == 0 || tt.want != nil && !slices.Equal(got, tt.want) {
				t.Errorf("faults %q, want %q", got, tt.want)
			}
		})
	}
}

// acted makes a bundle whose first receipt names ref:agent:a, which calls ref:agent:b,
// and whose summary names some agents.
func acted(agents ...string) func(t *testing.T) Bundle {
	return func(t *testing.T) Bundle {
		b := workflow(t, func(n int, c *Claims) {
			if n == 0 {
				a := NewAgentAction(ActionDelegated, "ref:agent:a", "ref:"+step("root"), c.OccurredAt)
				a.DelegatedToRef = "ref:agent:b"
				c.Type, c.Extensions[ActionGroup] = ActionDelegated, a
			}
		})
		b.Summary = summarize(t, b.Receipts, func(s *WorkflowSummary) { s.Evidence.AgentsInvolved = agents })
		return b
	}
}

// TestBundleAgents has the agents of a summary be those of its receipts.
func TestBundleAgents(t *testing.T) {
	for _, agents := range [][]string{{}, {"ref:agent:b"}, {"ref:agent:a", "ref:agent:b"}} {
		if report := verifyBundle(acted(agents...)(t)); !report.OK() {
			t.Errorf("%q: %q", agents, codes(report))
		}
	}
}

// TestBundleExternal has a parent that a peer carried in be no fault.
func TestBundleExternal(t *testing.T) {
	b := workflow(t, func(n int, c *Claims) {
		if n == 0 {
			w := c.Extensions[WorkflowGroup].(WorkflowContext)
			w.ParentStepIDs = []string{step("caller")}
			c.Extensions[WorkflowGroup] = w
		}
	})
	if got, want := codes(verifyBundle(b)), "root "+string(CodeParentNotFound); !slices.Equal(got, []string{want}) {
		t.Errorf("a parent elsewhere: %q, want %q", got, want)
	}
	b.ExternalStepIDs = []string{step("caller")}
	if report := verifyBundle(b); !report.OK() {
		t.Errorf("a parent carried in: %q", codes(report))
	}
}

// extract is a step of a workflow, and the link of a chain that another one is
// before, with their proofs.
func extract(t testing.TB) Bundle {
	t.Helper()
	b := workflow(t, unchanged)
	e, err := b.Extract(ReceiptRef(b.Receipts[3]), ReceiptRef(b.Receipts[6]))
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// TestExtract shows some receipts of a workflow to be its own, without the others.
func TestExtract(t *testing.T) {
	raw, err := json.Marshal(extract(t))
	if err != nil {
		t.Fatal(err)
	}
	read, err := ParseBundle(raw)
	if err != nil {
		t.Fatal(err)
	}
	report := verifyBundle(read)
	if !report.OK() || report.Summary == nil || len(report.Steps) != 2 || report.Of != 8 {
		t.Errorf("OK = %v, %d steps of %d receipts, %q", report.OK(), len(report.Steps), report.Of, codes(report))
	}
	var text strings.Builder
	if err := report.WriteTree(&text); err != nil || !strings.Contains(text.String(), "\nan extract: 2 of 8 receipts\nsummary  ok") {
		t.Errorf("%v: %s", err, &text)
	}
	b := workflow(t, unchanged)
	if _, err := b.Extract(ReceiptRef("x")); CodeOf(err) != CodeTargetNotFound {
		t.Errorf("an extract of what is not there: %v", err)
	}
	if _, err := (Bundle{}).Extract(ReceiptRef("x")); CodeOf(err) != CodeEmptyInput {
		t.Errorf("an extract of nothing: %v", err)
	}
}

// TestExtractRefuses breaks extracts, and the commitment of a whole bundle.
func TestExtractRefuses(t *testing.T) {
	const summary, proof, commitment = string(CodeSummaryInvalid), string(CodeInvalidProof), string(CodeInvalidCommitment)
	first := func(b *Bundle) string { return ReceiptRef(b.Receipts[0]) }
	changed := func(edit func(*Proof)) func(*Bundle) {
		return func(b *Bundle) {
			p := b.Proofs[first(b)]
			p.Hashes = slices.Clone(p.Hashes)
			edit(&p)
			b.Proofs[first(b)] = p
		}
	}
	for _, tt := range []struct {
		name string
		edit func(*Bundle)
		want []string
	}{
		{"a receipt without a proof", func(b *Bundle) { delete(b.Proofs, first(b)) }, []string{"failed " + proof}},
		{"a proof without a receipt", func(b *Bundle) { b.Receipts = b.Receipts[1:] }, []string{proof}},
		{"another hash", changed(func(p *Proof) { p.Hashes[0] = ReceiptRef("x") }), []string{"failed " + proof}},
		{"another index", changed(func(p *Proof) { p.LeafIndex = (p.LeafIndex + 1) % 8 }), []string{"failed " + proof}},
		{"a hash less", changed(func(p *Proof) { p.Hashes = p.Hashes[1:] }), []string{"failed " + proof}},
		{"an index beyond the tree", changed(func(p *Proof) { p.LeafIndex = 8 }), []string{"failed " + proof}},
		{"a hash that is none", changed(func(p *Proof) { p.Hashes[0] = "x" }), []string{"failed " + string(CodeInvalidProofHash)}},
		{"another algorithm", changed(func(p *Proof) { p.TreeAlg = "x" }), []string{"failed " + string(CodeUnsupportedTree)}},
		{"another commitment", func(b *Bundle) { b.Commitment.Root = ReceiptRef("x") }, []string{"failed " + proof, "join " + proof, summary}},
		{"another size", func(b *Bundle) { b.Commitment.TreeSize = 9 }, []string{"failed " + proof, "join " + proof, summary}},
		{"a commitment of its own", func(b *Bundle) {
			other, _ := workflow(t, func(_ int, c *Claims) { c.ID += "x" }).Extract()
			own, _ := Bundle{Receipts: b.Receipts, Proofs: other.Proofs}.Extract(first(b), ReceiptRef(b.Receipts[1]))
			b.Commitment, b.Proofs = own.Commitment, own.Proofs
		}, []string{summary}},
		{"no commitment", func(b *Bundle) { b.Commitment = nil }, []string{commitment, summary}},
		{"no proofs", func(b *Bundle) { b.Proofs = nil }, []string{commitment, "failed " + string(CodeParentNotFound), "join " + string(CodeDAGInvalid), "join " + string(CodeParentNotFound), summary}},
		{"a page", func(b *Bundle) { b.Next = "x" }, []string{string(CodeInvalidFormat)}},
		{"another signature", func(b *Bundle) {
			p := strings.Split(b.Receipts[1], ".")
			b.Receipts[1] = p[0] + "." + strings.Split(b.Receipts[0], ".")[1] + "." + p[2]
		}, []string{string(CodeInvalidSignature), proof}},
	} {
		b := extract(t)
		tt.edit(&b)
		got := codes(verifyBundle(b))
		slices.Sort(tt.want)
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: faults %q, want %q", tt.name, got, tt.want)
		}
	}
	b := workflow(t, unchanged)
	whole, err := b.Extract()
	if err != nil {
		t.Fatal(err)
	}
	b.Commitment = whole.Commitment
	if report := verifyBundle(b); !report.OK() {
		t.Errorf("a whole bundle with its commitment: %q", codes(report))
	}
	b.Commitment.Root = ReceiptRef("")
	if got := codes(verifyBundle(b)); !slices.Equal(got, []string{commitment}) {
		t.Errorf("a whole bundle with another commitment: %q", got)
	}
}

// TestSummarize signs a summary of what there is, and none of nothing, nor for an
// issuer that has no origin.
func TestSummarize(t *testing.T) {
	b := workflow(t, unchanged)
	var refs []string
	for _, jws := range b.Receipts {
		refs = append(refs, ReceiptRef(jws))
	}
	e := SummaryEvidence{WorkflowID: wf, Status: InProgress, StartedAt: FormatTime(time.Unix(at, 0)), OrchestratorID: "ref:orchestrator"}
	jws, err := newSigner(t).Summarize(e, refs, time.Unix(at+100, 0))
	if err != nil {
		t.Fatal(err)
	}
	b.Summary = jws
	if report := verifyBundle(b); !report.OK() || report.Summary.Evidence.Status != InProgress {
		t.Errorf("%q", codes(report))
	}
	if _, err := newSigner(t).Summarize(e, nil, time.Unix(at, 0)); CodeOf(err) != CodeEmptyInput {
		t.Errorf("a summary of nothing: %v", err)
	}
	did, err := NewSigner("did:web:sidecar.example.com", "k", testKey("a"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := did.Summarize(e, refs, time.Unix(at, 0)); CodeOf(err) != CodeSummaryInvalid {
		t.Errorf("a summary of a DID's: %v", err)
	}
}

func TestBundleMalformed(t *testing.T) {
	for _, raw := range []string{
		``, `[]`, `{}`, `{"format":"dev.wopproxy/evidence-bundle/1"}`, `{"format":"dev.wopproxy/evidence-bundle/2","issuer":"https://a.example","receipts":[]}`,
		`{"format":"dev.wopproxy/evidence-bundle/1","issuer":"https://a.example/","receipts":[]}`, `{"format":"dev.wopproxy/evidence-bundle/1","issuer":"https://a.example","receipts":[1]}`,
		`{"format":"dev.wopproxy/evidence-bundle/1","issuer":"https://a.example","receipts":[],"x":1}`,
		`{"format":"dev.wopproxy/evidence-bundle/1","issuer":"https://a.example","receipts":[],"external_step_ids":["x"]}`,
		`{"format":"dev.wopproxy/evidence-bundle/1","issuer":"https://a.example","receipts":[],"commitment":{"tree_alg":"x","hash_alg":"x","root":"x"}}`,
		`{"format":"dev.wopproxy/evidence-bundle/1","issuer":"https://a.example","receipts":[],"commitment":{"tree_alg":"x","hash_alg":"x","root":"x","tree_size":"8"}}`,
		`{"format":"dev.wopproxy/evidence-bundle/1","issuer":"https://a.example","receipts":[],"proofs":{"x":[]}}`,
		`{"format":"dev.wopproxy/evidence-bundle/1","issuer":"https://a.example","receipts":[],"proofs":[]}`,
		`{"format":"dev.wopproxy/evidence-bundle/1","issuer":"https://a.example","receipts":[],"next":""}`,
	} {
		if b, err := ParseBundle([]byte(raw)); CodeOf(err) != CodeInvalidFormat {
			t.Errorf("ParseBundle(%s) = %+v, %v", raw, b, err)
		}
	}
	if _, err := ParseBundle(make([]byte, MaxBundle+1)); CodeOf(err) != CodeInvalidFormat {
		t.Errorf("a bundle too large: %v", err)
	}
}

// TestDeep has a workflow as long as one may be checked without a stack as deep.
func TestDeep(t *testing.T) {
	var receipts []Receipt
	id := func(n int) string { return fmt.Sprintf("step_%020d", n) }
	for n := range 10_000 {
		w := &WorkflowContext{WorkflowID: wf, StepID: id(n)}
		if n > 0 {
			w.ParentStepIDs = []string{id(n - 1)}
		}
		receipts = append(receipts, Receipt{Ref: ReceiptRef(id(n)), Workflow: w, Claims: Claims{ID: id(n)}})
	}
	if faults := CheckSet(receipts, nil); len(faults) > 0 {
		t.Errorf("%d faults, the first %+v", len(faults), faults[0])
	}
	receipts[0].Workflow.ParentStepIDs = []string{id(9_999)}
	if faults := CheckSet(receipts, nil); len(faults) != 10_000 || faults[0].Code != CodeCycleDetected {
		t.Errorf("%d faults, want one for each step of the cycle", len(faults))
	}
}
