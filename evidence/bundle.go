package evidence

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/wopproxy/wopproxy/ancestry"
	"github.com/wopproxy/wopproxy/ancestry/peac"
)

// maxSummarized bounds the receipts of a workflow that are summarized: those that a
// bundle may have.
const maxSummarized = 10_000

// storePage is how many receipts are read at once.
const storePage = 1000

// WorkflowOf returns the workflow that a run belongs to, by any of its ids. One of
// them may be a workflow's own: calls that belong to no run have no other.
func (m *Minter) WorkflowOf(ctx context.Context, ids ...ancestry.RunID) (string, error) {
	for _, id := range ids {
		workflow, err := m.o.Store.Workflow(ctx, id)
		if !errors.Is(err, ancestry.ErrNotFound) {
			return workflow, err
		}
		if !strings.HasPrefix(string(id), "wf_") {
			continue
		}
		if page, _, err := m.o.Store.Receipts(ctx, string(id), "", 1); err != nil || len(page) > 0 {
			return string(id), err
		}
	}
	return "", ancestry.ErrNotFound
}

// Bundle returns the receipts of a workflow after a cursor ("" for the first), at
// most limit of them. On the last page is what all of them commit to, and a summary
// if they tell the whole: none was lost, and none is missing behind a step that is
// named. A workflow of more than 10 000 receipts is only listed.
func (m *Minter) Bundle(ctx context.Context, workflow, after string, limit int) (peac.Bundle, error) {
	page, next, err := m.o.Store.Receipts(ctx, workflow, after, limit)
	if err != nil {
		return peac.Bundle{}, err
	}
	b := m.bundle(page)
	if b.Next = next; next != "" {
		return b, nil
	}
	a, err := m.account(ctx, workflow, "")
	if err != nil {
		return peac.Bundle{}, err
	}
	return b, m.conclude(ctx, &b, a)
}

// Extract returns the bundle of one receipt of a workflow, by its reference, with
// the proof that it is one, or ancestry.ErrNotFound: also where there are more than
// 10 000.
func (m *Minter) Extract(ctx context.Context, workflow, ref string) (peac.Bundle, error) {
	a, err := m.account(ctx, workflow, ref)
	if err != nil {
		return peac.Bundle{}, err
	}
	proof, err := peac.Prove(a.refs, ref)
	if err != nil {
		return peac.Bundle{}, ancestry.ErrNotFound // a.refs are in order, so it is ref
	}
	b := m.bundle([]Receipt{a.found})
	b.Proofs = map[string]peac.Proof{ref: proof}
	return b, m.conclude(ctx, &b, a)
}

// bundle returns what a bundle has of some receipts.
func (m *Minter) bundle(receipts []Receipt) peac.Bundle {
	b := peac.Bundle{Format: peac.BundleFormat, Issuer: m.o.Issuer, Receipts: []string{}}
	external := map[string]bool{}
	for _, r := range receipts {
		b.Receipts = append(b.Receipts, r.JWS)
		for _, step := range r.External {
			external[step] = true
		}
	}
	b.ExternalStepIDs = slices.Sorted(maps.Keys(external))
	if set, err := m.ring.JWKS(m.o.Now()); err == nil {
		b.JWKS, _ = json.Marshal(set) // always marshals
	}
	return b
}

// conclude adds what all receipts of a workflow commit to, and their summary.
func (m *Minter) conclude(ctx context.Context, b *peac.Bundle, a *account) error {
	if len(a.refs) == 0 {
		return nil
	}
	c, err := peac.Commit(a.refs)
	if err != nil {
		return fmt.Errorf("evidence of %s: %w", a.workflow, err)
	}
	b.Commitment = &c
	if m.misses(a.workflow) { // asked before the store is, which may hear of it just now
		return nil
	}
	whole, err := m.o.Store.Whole(ctx, a.workflow)
	if err != nil || !whole || !a.holds() || !strings.HasPrefix(m.o.Issuer, "https://") {
		return err
	}
	now := m.o.Now()
	signer, err := m.signer(now)
	if err != nil {
		return err
	}
	summary, err := signer.Summarize(m.tell(a), a.refs, now)
	if err != nil {
		return err
	}
	// A clock that was set back makes a summary that is older than what it tells of.
	if r, err := peac.Verify(summary, m.ownKey, now); err == nil && len(peac.CheckSummary(r, a.receipts)) == 0 {
		b.Summary = summary
	}
	return nil
}

// account is what there is of a workflow, read and verified.
type account struct {
	workflow string
	refs     []string // in the order of the store, also of what isn't verified
	found    Receipt  // the one that was looked for
	receipts []peac.Receipt
	external map[string]bool
	runs     map[ancestry.RunID]bool
	began    time.Time // the first exchange
	bad      bool      // something there is no evidence of this issuer's

	outcomes map[string]string // of each step, what its last receipt says
	agents   map[string]bool
}

// account reads a workflow, and looks for the receipt with a reference. Of one that
// has more than can be summarized it returns nothing.
func (m *Minter) account(ctx context.Context, workflow, ref string) (*account, error) {
	a := &account{
		workflow: workflow, external: map[string]bool{}, runs: map[ancestry.RunID]bool{},
		outcomes: map[string]string{}, agents: map[string]bool{},
	}
	m.accounts.Lock() // one at a time: each takes as much memory as a large workflow does
	defer m.accounts.Unlock()
	for after := ""; ; {
		page, next, err := m.o.Store.Receipts(ctx, workflow, after, storePage)
		if err != nil {
			return nil, err
		}
		for _, r := range page {
			if err := ctx.Err(); err != nil { // each takes a while to verify
				return nil, err
			}
			m.read(a, r)
			of := peac.ReceiptRef(r.JWS)
			if a.refs = append(a.refs, of); of == ref {
				a.found = r
			}
		}
		if len(a.refs) > maxSummarized {
			return &account{workflow: workflow}, nil
		}
		if after = next; next == "" {
			return a, nil
		}
	}
}

// read adds a receipt to a. It keeps what the graph and the summary are told from.
func (m *Minter) read(a *account, r Receipt) {
	v, err := peac.Verify(r.JWS, m.ownKey, m.o.Now())
	if err != nil || v.Workflow == nil {
		a.bad = true
		return
	}
	if r.Run != "" {
		a.runs[r.Run] = true
	}
	if at, ok := Began(r.ID); ok && (a.began.IsZero() || at.Before(a.began)) {
		a.began = at
	}
	for _, step := range r.External {
		a.external[step] = true
	}
	told := v.Claims.Extensions
	if of := text(told[peac.ExchangeGroup], "outcome"); of != string(Ongoing) || a.outcomes[r.Step] == "" {
		a.outcomes[r.Step] = of
	}
	if state := cmp.Or(text(told[progress], "state"), text(told[peac.HandoffGroup], "state")); taskOutcomes[state] != "" {
		a.outcomes[r.Step] = taskOutcomes[state]
	}
	for _, member := range []string{"agent_ref", "caller_ref", "delegated_to_ref"} {
		if ref := text(told[peac.ActionGroup], member); ref != "" {
			a.agents[ref] = true
		}
	}
	v.Claims.Extensions = nil
	a.receipts = append(a.receipts, v)
}

// taskOutcomes are what the last state of a task says of the step that it is of.
var taskOutcomes = map[string]string{
	"completed": string(OK), "failed": string(ProtocolError), "rejected": string(ProtocolError), "canceled": string(Cancelled),
}

// text returns a member of a group, or "".
func text(group any, member string) string {
	o, _ := group.(map[string]any)
	s, _ := o[member].(string)
	return s
}

// ownKey returns a key of this issuer.
func (m *Minter) ownKey(issuer, keyID string) (ed25519.PublicKey, error) {
	if i := slices.IndexFunc(m.ring, func(k peac.Rotation) bool { return k.KeyID == keyID }); i >= 0 && issuer == m.o.Issuer {
		return m.ring[i].Public, nil
	}
	return nil, errors.New("no key of ours")
}

// holds says whether the receipts tell a whole: a step whose parent has no receipt
// may be that of a call that goes on.
func (a *account) holds() bool {
	return !a.bad && len(a.receipts) > 0 && len(peac.CheckSet(a.receipts, slices.Collect(maps.Keys(a.external)))) == 0
}

// tell says what a summary tells of a workflow. Its end is that of the steps which
// nothing here led to.
func (m *Minter) tell(a *account) peac.SummaryEvidence {
	e := peac.SummaryEvidence{
		WorkflowID: a.workflow, Status: peac.Completed, StartedAt: peac.FormatTime(a.began),
		OrchestratorID: "ref:orchestrator", AgentsInvolved: []string{},
	}
	if m.o.Privacy != Strict {
		const most = 100
		e.OrchestratorID = m.names.HostRef("", m.o.Host)
		e.AgentsInvolved = slices.Sorted(maps.Keys(a.agents))
		e.AgentsInvolved = e.AgentsInvolved[:min(len(e.AgentsInvolved), most)]
	}
	var ended time.Time
	for _, r := range a.receipts {
		w := r.Workflow
		if slices.ContainsFunc(w.ParentStepIDs, func(p string) bool { _, here := a.outcomes[p]; return here }) {
			continue // also where a peer has carried in what led to it: a call may come back
		}
		if at, err := time.Parse(time.RFC3339, r.Claims.OccurredAt); err == nil && at.After(ended) {
			ended = at
		}
		status, outcome := peac.Completed, a.outcomes[w.StepID]
		switch Outcome(outcome) {
		case OK:
		case Ongoing:
			status = peac.InProgress
		case Cancelled:
			status = peac.Cancelled
		default:
			status = peac.Failed
		}
		if gravity(status) > gravity(e.Status) {
			e.Status, e.ErrorContext = status, nil
		}
		if status == peac.Failed && e.Status == peac.Failed && e.ErrorContext == nil {
			e.ErrorContext = &peac.ErrorContext{FailedStepID: w.StepID, ErrorCode: cmp.Or(outcome, "unknown")}
		}
	}
	if m.o.Live(a.runs) {
		e.Status, e.ErrorContext = peac.InProgress, nil
	}
	if e.Status != peac.InProgress {
		e.CompletedAt = peac.FormatTime(ended)
	}
	return e
}

// gravity says which status a workflow has whose beginnings have come to several:
// one that goes on keeps it from having ended, and one that failed from being well.
func gravity(status string) int {
	return slices.Index([]string{peac.Completed, peac.Cancelled, peac.Failed, peac.InProgress}, status)
}
