package peac

import (
	"cmp"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"time"
)

// BundleFormat is what a Bundle says it is.
const BundleFormat = "dev.wopproxy/evidence-bundle/1"

// MaxBundle bounds a bundle, in bytes.
const MaxBundle = 64 << 20

// Bundle is what one issuer recorded of one workflow, as one JSON object. A
// reader with the issuer's keys needs nothing else to check it.
type Bundle struct {
	// Format is BundleFormat.
	Format string `json:"format"`
	// Issuer is who all receipts are of.
	Issuer string `json:"issuer"`
	// Receipts are the JWS of the steps, at most 10 000, in any order.
	Receipts []string `json:"receipts"`
	// Summary is the JWS of the receipt around the WorkflowSummary; without it
	// nothing says that the receipts are all.
	Summary string `json:"summary,omitempty"`
	// Commitment is to all receipts of the workflow. Only in Summary it is signed.
	Commitment *Commitment `json:"commitment,omitempty"`
	// Proofs make the bundle an extract: Receipts are some of those that Commitment
	// is to, and each has its proof, under its reference.
	Proofs map[string]Proof `json:"proofs,omitempty"`
	// ExternalStepIDs are parents of steps here that a peer carried in.
	ExternalStepIDs []string `json:"external_step_ids,omitempty"`
	// JWKS has the issuer's keys that signed what is here, as the bundle's writer had
	// them: it proves nothing to who has the keys from elsewhere.
	JWKS json.RawMessage `json:"jwks,omitempty"`
	// Next is where the next page begins. With it the bundle is a page, which shows
	// nothing until the others are joined to it.
	Next string `json:"next,omitempty"`
}

// Extract returns a bundle of those receipts of b that refs name, with the proof
// that each is one of b's. What it leaves out it doesn't show, beyond how many there
// are.
func (b Bundle) Extract(refs ...string) (Bundle, error) {
	all := make([]string, len(b.Receipts))
	jws := map[string]string{}
	for i, r := range b.Receipts {
		all[i] = ReceiptRef(r)
		jws[all[i]] = r
	}
	c, err := Commit(all)
	if err != nil {
		return Bundle{}, err
	}
	b.Commitment, b.Proofs, b.Receipts = &c, map[string]Proof{}, nil
	for _, ref := range refs {
		if b.Proofs[ref], err = Prove(all, ref); err != nil {
			return Bundle{}, err
		}
		b.Receipts = append(b.Receipts, jws[ref])
	}
	return b, nil
}

// Join returns b with the page behind it: what the last page says of all receipts is
// what the whole says.
func (b Bundle) Join(page Bundle) Bundle {
	page.Receipts = append(slices.Clone(b.Receipts), page.Receipts...)
	if page.Receipts == nil {
		page.Receipts = []string{} // null is no list
	}
	page.ExternalStepIDs = slices.Concat(b.ExternalStepIDs, page.ExternalStepIDs)
	slices.Sort(page.ExternalStepIDs)
	page.ExternalStepIDs = slices.Compact(page.ExternalStepIDs)
	return page
}

// ParseBundle reads a bundle. What its receipts say is not looked at yet.
func ParseBundle(raw []byte) (Bundle, error) {
	var b Bundle
	if len(raw) > MaxBundle {
		return b, fail(CodeInvalidFormat, "the bundle has more than %d bytes", MaxBundle)
	}
	v, err := parse(raw)
	if err != nil {
		return b, err
	}
	o, ok := v.(object)
	if !ok {
		return b, fail(CodeInvalidFormat, "the bundle is no object")
	}
	if o["format"] != BundleFormat {
		return b, fail(CodeInvalidFormat, "format is not %s", BundleFormat)
	}
	isIssuer := func(v any) bool { s, ok := v.(string); return ok && IsIssuer(s) }
	jws := upTo(maxJWS)
	err = closed(CodeInvalidFormat, o, []rule{
		{"format", true, nil}, {"issuer", true, isIssuer}, {"receipts", true, listOf(maxItems, jws)},
		{"summary", false, jws}, {"external_step_ids", false, listOf(maxItems, like(stepID))}, {"jwks", false, nil},
		{"commitment", false, isCommitment}, {"proofs", false, isProofs}, {"next", false, between(1, 1024)},
	})
	if err != nil {
		return b, err
	}
	return b, decode(v, &b)
}

// isCommitment says whether v has the members of one; what they say is Verify's to
// check, and so is that of proofs.
func isCommitment(v any) bool {
	o, ok := v.(object)
	return ok && closed(CodeInvalidFormat, o, []rule{
		{"tree_alg", true, upTo(64)}, {"hash_alg", true, upTo(64)}, {"root", true, upTo(128)}, {"tree_size", true, integer(0)},
	}) == nil
}

func isProofs(v any) bool {
	o, ok := v.(object)
	for _, p := range o {
		p, isObject := p.(object)
		ok = ok && isObject && closed(CodeInvalidFormat, p, []rule{
			{"tree_alg", true, upTo(64)}, {"hash_alg", true, upTo(64)}, {"leaf_index", true, integer(0)},
			{"tree_size", true, integer(0)}, {"hashes", true, listOf(64, upTo(128))},
		}) == nil
	}
	return ok
}

// Report is what came of checking a bundle.
type Report struct {
	// Steps are in the order in which their first receipts were issued.
	Steps []StepReport
	// Faults are those that belong to no step: a receipt that can't be believed,
	// a summary that isn't one of these receipts.
	Faults []Fault
	// Summary is what the issuer signed as one, or nil; Faults say whether it is
	// one of these receipts.
	Summary *WorkflowSummary
	// Of is how many receipts there are, where the bundle is an extract of them.
	Of int64
}

// StepReport is what a bundle has of one step.
type StepReport struct {
	ID       string
	Parents  []string
	Receipts []Receipt
	Faults   []Fault
}

// OK says whether nothing is wrong.
func (r Report) OK() bool {
	return len(r.Faults) == 0 && !slices.ContainsFunc(r.Steps, func(s StepReport) bool { return len(s.Faults) > 0 })
}

// Verify checks each receipt of b, the graph of its steps, its commitment and its
// summary. Of an extract, the graph is only checked as far as it is there.
func (b Bundle) Verify(keys KeySource, now time.Time) Report {
	var report Report
	var receipts []Receipt
	own := func(jws string) (Receipt, error) {
		r, err := Verify(jws, keys, now)
		if err == nil && r.Claims.Issuer != b.Issuer {
			err = fail(CodeInvalidIssuer, "the receipt is of another issuer")
		}
		return r, err
	}
	for _, jws := range b.Receipts {
		if r, err := own(jws); err != nil {
			report.reject(jws, err)
		} else {
			receipts = append(receipts, r)
		}
	}
	report.steps(receipts)
	for _, f := range slices.Concat(check(receipts, b.ExternalStepIDs, len(b.Proofs) > 0), b.included(receipts)) {
		report.add(f)
	}
	if len(b.Receipts) == 0 {
		report.add(Fault{Code: CodeEmptyInput, What: "no receipts"})
	}
	if b.Next != "" {
		report.add(Fault{Code: CodeInvalidFormat, What: "it is a page, and those behind it are not there"})
	}
	var extracted *Commitment
	if len(b.Proofs) > 0 && b.Commitment != nil {
		extracted = b.Commitment
		report.Of = b.Commitment.TreeSize
	}
	if b.Summary == "" {
		return report
	}
	r, err := own(b.Summary)
	if err != nil {
		report.reject(b.Summary, err)
		return report
	}
	report.Summary = r.Summary
	for _, f := range checkSummaryOf(r, receipts, extracted) {
		report.add(f)
	}
	return report
}

// included checks that the commitment is to receipts: to all of them, or to each by
// its proof.
func (b Bundle) included(receipts []Receipt) (faults []Fault) {
	steps := map[string]string{} // by the receipt
	for _, r := range receipts {
		if steps[r.Ref] = ""; r.Workflow != nil {
			steps[r.Ref] = r.Workflow.StepID
		}
	}
	fault := func(ref string, code Code, what string) {
		faults = append(faults, Fault{steps[ref], ref, code, what})
	}
	switch {
	case len(b.Proofs) == 0 && b.Commitment != nil:
		if c, err := Commit(refsOf(receipts)); err != nil || c != *b.Commitment {
			fault("", CodeInvalidCommitment, "the commitment is to other receipts")
		}
		return faults
	case len(b.Proofs) == 0:
		return nil
	case b.Commitment == nil:
		fault("", CodeInvalidCommitment, "there are proofs, and no commitment")
		return faults
	}
	for _, ref := range slices.Sorted(maps.Keys(steps)) {
		p, proven := b.Proofs[ref]
		switch holds, err := p.Verify(*b.Commitment, ref); {
		case !proven:
			fault(ref, CodeInvalidProof, "no proof says that it is one of the workflow's")
		case err != nil:
			fault(ref, CodeOf(err), "its proof: "+err.Error())
		case !holds:
			fault(ref, CodeInvalidProof, "its proof does not hold")
		}
	}
	for _, ref := range slices.Sorted(maps.Keys(b.Proofs)) {
		if _, there := steps[ref]; !there {
			fault(ref, CodeInvalidProof, "it has a proof, and is not there")
		}
	}
	return faults
}

func refsOf(receipts []Receipt) []string {
	refs := make([]string, len(receipts))
	for i, r := range receipts {
		refs[i] = r.Ref
	}
	return refs
}

// reject puts a receipt that can't be believed among the faults.
func (r *Report) reject(jws string, err error) {
	f := Fault{Ref: ReceiptRef(jws), Code: CodeOf(err), What: err.Error()}
	if e, ok := errors.AsType[*Error](err); ok {
		f.What = e.What
	}
	r.add(f)
}

// add puts a fault to its step.
func (r *Report) add(f Fault) {
	i := slices.IndexFunc(r.Steps, func(s StepReport) bool { return s.ID == f.Step })
	if i < 0 {
		r.Faults = append(r.Faults, f)
		return
	}
	r.Steps[i].Faults = append(r.Steps[i].Faults, f)
}

// steps lists the steps of receipts.
func (r *Report) steps(receipts []Receipt) {
	s := newSet(receipts)
	for step, of := range s.steps {
		r.Steps = append(r.Steps, StepReport{ID: step, Parents: s.parents[step], Receipts: of})
	}
	slices.SortFunc(r.Steps, func(x, y StepReport) int {
		cx, cy := x.Receipts[0].Claims, y.Receipts[0].Claims
		return cmp.Or(cmp.Compare(cx.IssuedAt, cy.IssuedAt), cmp.Compare(cx.ID, cy.ID), cmp.Compare(x.ID, y.ID))
	})
}
