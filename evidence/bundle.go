package evidence

import (
	"cmp"
	"context"
	"crypto/ed25519"
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

// Set names the receipts of a workflow that are for the same readers, as SetOf finds
// them: by themselves they are one graph, and have a summary of their own.
type Set struct {
	workflow string
	audience string         // the origin that they are for alone; empty: they are for whoever may read of the run
	own      string         // the workflow of the run, which an audience knows as workflow
	run      ancestry.RunID // that was asked for
}

// SetOf returns the receipts that there are of the workflow which a run belongs to, by
// any of its ids: those for an audience, or, without one, the run's own. One of ids may
// be a workflow's own: calls that belong to no run have no other. The error is
// ancestry.ErrNotFound where there are none, and ancestry.ErrNoAudiences where none are
// made for an audience, as under other modes than Strict.
func (m *Minter) SetOf(ctx context.Context, audience string, ids ...ancestry.RunID) (Set, error) {
	if audience != "" && m.o.Privacy != Strict {
		return Set{}, ancestry.ErrNoAudiences
	}
	for _, id := range ids {
		workflow, err := m.o.Store.Workflow(ctx, id)
		switch {
		case err == nil:
		case !errors.Is(err, ancestry.ErrNotFound):
			return Set{}, err
		case strings.HasPrefix(string(id), "wf_"):
			workflow = string(id)
		default:
			continue
		}
		set := Set{workflow: workflow, audience: audience, own: workflow, run: id}
		if audience != "" {
			set.workflow = m.namer(id).AudienceWorkflow(audience, workflow)
		}
		if there, err := m.has(ctx, set); err != nil || there {
			return set, err
		}
	}
	return Set{}, ancestry.ErrNotFound
}

// has says whether there is a receipt of a set.
func (m *Minter) has(ctx context.Context, set Set) (bool, error) {
	for after := ""; ; {
		page, next, err := m.o.Store.Receipts(ctx, set.workflow, after, storePage)
		if err != nil || slices.ContainsFunc(page, set.holds) {
			return err == nil, err
		}
		if after = next; next == "" {
			return false, nil
		}
	}
}

// holds says whether a receipt of the workflow is one of the set. There are those of
// others when a call comes back to the host: what a peer is told as the workflow of
// the run that called it may be that of the run which it then calls.
func (s Set) holds(r Receipt) bool { return r.Audience == s.audience }

// Bundle returns the receipts of a set after a cursor ("" for the first), at most
// limit of them. On the last page is what all of them commit to, the keys that they
// were signed with, and a summary if they tell the whole: none was lost, and none is
// missing behind a step that is named. A workflow of more than 10 000 receipts is only
// listed.
func (m *Minter) Bundle(ctx context.Context, set Set, after string, limit int) (peac.Bundle, error) {
	for {
		page, next, err := m.o.Store.Receipts(ctx, set.workflow, after, limit)
		if err != nil {
			return peac.Bundle{}, err
		}
		page = slices.DeleteFunc(page, func(r Receipt) bool { return !set.holds(r) })
		a := &account{set: set}
		if next == "" {
			if a, err = m.account(ctx, set, ""); err != nil {
				return peac.Bundle{}, err
			}
		}
		if after == "" && next == "" && len(a.refs) > len(page) {
			continue // a receipt came between, and may so often as a page has room
		}
		b := m.bundle(page, a)
		b.Next = next
		return b, m.conclude(ctx, &b, a)
	}
}

// Extract returns the bundle of one receipt of a set, by its reference, with the proof
// that it is one, or ancestry.ErrNotFound: also where there are more than 10 000.
func (m *Minter) Extract(ctx context.Context, set Set, ref string) (peac.Bundle, error) {
	a, err := m.account(ctx, set, ref)
	if err != nil {
		return peac.Bundle{}, err
	}
	proof, err := peac.Prove(a.refs, ref)
	if err != nil {
		return peac.Bundle{}, ancestry.ErrNotFound // a.refs are in order, so it is ref
	}
	b := m.bundle([]Receipt{a.found}, a)
	b.Proofs = map[string]peac.Proof{ref: proof}
	return b, m.conclude(ctx, &b, a)
}

// bundle returns what a bundle has of some receipts of a.
func (m *Minter) bundle(receipts []Receipt, a *account) peac.Bundle {
	b := peac.Bundle{Format: peac.BundleFormat, Issuer: m.o.Issuer, Receipts: []string{}}
	external := map[string]bool{}
	for _, r := range receipts {
		b.Receipts = append(b.Receipts, r.JWS)
		for _, step := range r.External {
			external[step] = true
		}
	}
	b.ExternalStepIDs = slices.Sorted(maps.Keys(external))
	b.JWKS = m.jwks(m.o.Now(), a.keys)
	return b
}

// conclude adds what all receipts of a workflow commit to, and their summary.
func (m *Minter) conclude(ctx context.Context, b *peac.Bundle, a *account) error {
	if len(a.refs) == 0 {
		return nil
	}
	c, err := peac.Commit(a.refs)
	if err != nil {
		return fmt.Errorf("evidence of %s: %w", a.set.workflow, err)
	}
	b.Commitment = &c
	whole, err := m.whole(ctx, a.set)
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

// whole says whether no receipt of a set is known to be lost. An audience is told of
// some steps only, and when one of them may have been at work is to be seen from all
// that the run has done.
func (m *Minter) whole(ctx context.Context, set Set) (whole bool, err error) {
	for _, workflow := range slices.Compact([]string{set.workflow, set.own}) {
		if m.misses(workflow) { // asked before the store is, which may hear of it just now
			return false, nil
		}
		if whole, err = m.o.Store.Whole(ctx, workflow); err != nil || !whole {
			return false, err
		}
	}
	return true, nil
}

// account is what there is of a set, read and verified.
type account struct {
	set      Set
	refs     []string // in the order of the store, also of what isn't verified
	found    Receipt  // the one that was looked for
	receipts []peac.Receipt
	keys     map[string]bool // that have signed them
	external map[string]bool
	runs     map[ancestry.RunID]bool
	began    time.Time // the first exchange
	goesOn   bool      // a step was yet to end when it was read
	bad      bool      // something there is no evidence of this issuer's

	outcomes map[string]string // of each step, what its last receipt says
	agents   map[string]bool
}

// account reads a set, and looks for the receipt with a reference. Of one that has
// more than can be summarized it returns nothing.
func (m *Minter) account(ctx context.Context, set Set, ref string) (*account, error) {
	a := &account{
		set: set, keys: map[string]bool{}, external: map[string]bool{}, runs: map[ancestry.RunID]bool{set.run: true},
		outcomes: map[string]string{}, agents: map[string]bool{},
	}
	select { // one at a time: each takes as much memory as a large workflow does
	case m.accounts <- struct{}{}:
		defer func() { <-m.accounts }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	a.goesOn = m.goesOn(set.workflow, set.own) // before the store is asked, which may have all of it just then
	for after := ""; ; {
		page, next, err := m.o.Store.Receipts(ctx, set.workflow, after, storePage)
		if err != nil {
			return nil, err
		}
		for _, r := range page {
			if err := ctx.Err(); err != nil { // each takes a while to verify
				return nil, err
			}
			if !set.holds(r) {
				continue
			}
			m.read(a, r)
			of := peac.ReceiptRef(r.JWS)
			if a.refs = append(a.refs, of); of == ref {
				a.found = r
			}
		}
		if len(a.refs) > maxSummarized {
			return &account{set: set}, nil
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
	a.keys[v.KeyID] = true
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
		WorkflowID: a.set.workflow, Status: peac.Completed, StartedAt: peac.FormatTime(a.began),
		OrchestratorID: "ref:orchestrator", AgentsInvolved: []string{},
	}
	if m.o.Privacy != Strict {
		const most = 100
		if len(a.external) == 0 { // else who has begun it is elsewhere
			e.OrchestratorID = m.names.HostRef("", m.o.Host)
		}
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
	if a.goesOn || m.goesOn(a.set.workflow, a.set.own) || m.o.Live(a.set.own, a.runs) {
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
