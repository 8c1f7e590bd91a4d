package peac

import (
	"cmp"
	"encoding/json"
	"errors"
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
	// ExternalStepIDs are parents of steps here that a peer carried in.
	ExternalStepIDs []string `json:"external_step_ids,omitempty"`
	// JWKS is the issuer's, as the bundle's writer had it: it proves nothing to
	// who has the keys from elsewhere.
	JWKS json.RawMessage `json:"jwks,omitempty"`
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
	isIssuer := func(v any) bool { s, ok := v.(string); return ok && isIssuer(s) }
	jws := upTo(maxJWS)
	err = closed(CodeInvalidFormat, o, []rule{
		{"format", true, nil}, {"issuer", true, isIssuer}, {"receipts", true, listOf(maxItems, jws)},
		{"summary", false, jws}, {"external_step_ids", false, listOf(maxItems, like(stepID))}, {"jwks", false, nil},
	})
	if err != nil {
		return b, err
	}
	return b, decode(v, &b)
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

// Verify checks each receipt of b, the graph of its steps, and its summary.
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
	for _, f := range CheckSet(receipts, b.ExternalStepIDs) {
		report.add(f)
	}
	if len(b.Receipts) == 0 {
		report.add(Fault{Code: CodeEmptyInput, What: "no receipts"})
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
	for _, f := range CheckSummary(r, receipts) {
		report.add(f)
	}
	return report
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
