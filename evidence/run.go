package evidence

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/wopproxy/wopproxy/ancestry"
	"github.com/wopproxy/wopproxy/ancestry/peac"
)

// Run signs and stores what is observed until ctx ends, then what is left, and
// returns. A store that fails is tried again, less and less often; what comes
// meanwhile waits as long as there is room. Run must be called once.
func (m *Minter) Run(ctx context.Context) {
	for ctx.Err() == nil {
		select {
		case e := <-m.queue:
			m.keep(ctx, m.batch(e))
		case <-ctx.Done():
		}
	}
	m.mu.Lock()
	m.stopped = true
	m.mu.Unlock()
	for {
		select {
		case e := <-m.queue:
			m.keep(ctx, m.batch(e))
			continue
		default:
		}
		m.loseOpen()
		m.keep(ctx, nil)
		return
	}
}

// loseOpen has the workflows be lost of steps that will end when nobody listens, be
// it hours after their last receipt, and what else may be at work.
func (m *Minter) loseOpen() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.open > 0 {
		m.loseLocked("")
	}
	for workflow := range m.pending { // there are no more than steps: maxLost is for those that have gone
		m.lost[workflow] = true
	}
}

// maxBatch bounds what is stored at once.
const maxBatch = 256

// batch returns e and what waits behind it.
func (m *Minter) batch(e *entry) []*entry {
	batch := []*entry{e}
	for len(batch) < maxBatch {
		select {
		case e := <-m.queue:
			batch = append(batch, e)
		default:
			return batch
		}
	}
	return batch
}

// keep signs a batch and stores it, with what was lost so far.
func (m *Minter) keep(ctx context.Context, batch []*entry) {
	receipts, signed := make([]Receipt, 0, len(batch)), batch[:0]
	for _, e := range batch {
		r, err := m.receipt(ctx, e)
		m.release(e)
		if err != nil {
			m.o.Logger.ErrorContext(ctx, "receipt not signed", "peac_workflow_id", e.step.Workflow, "peac_step_id", e.step.Step, "trace_id", traceOf(e), "err", err)
			m.mu.Lock()
			m.dropLocked(e, dropInvalid)
			m.mu.Unlock()
			continue
		}
		receipts, signed = append(receipts, r), append(signed, e)
	}
	lost := m.takeLost()
	if len(receipts)+len(lost) == 0 {
		return
	}
	err := m.store(ctx, receipts, lost)
	m.settled(signed, err == nil)
	if err != nil {
		m.o.Logger.ErrorContext(ctx, "receipts lost", "receipts", len(receipts), "err", err)
		m.metrics.dropped.WithLabelValues(string(dropStoreError)).Add(float64(len(receipts)))
		return
	}
	m.metrics.receipts.Add(float64(len(receipts)))
}

// receipt returns what Seal has signed of e, or signs it.
func (m *Minter) receipt(ctx context.Context, e *entry) (Receipt, error) {
	m.recall(ctx, e.step)
	if e.seal != nil {
		if <-e.seal.tried; e.seal.receipt.JWS != "" {
			return e.seal.receipt, nil
		}
	}
	return m.sign(e)
}

// sign returns the receipt of e.
func (m *Minter) sign(e *entry) (Receipt, error) {
	now := m.o.Now()
	signer, err := m.signer(now)
	if err != nil {
		return Receipt{}, err
	}
	s := e.step
	c := m.claims(e, now)
	jws, err := signer.Sign(c)
	if err != nil {
		return Receipt{}, err
	}
	s.prev = peac.ReceiptRef(jws)
	m.o.Logger.Debug("receipt signed", "peac_workflow_id", s.Workflow, "peac_step_id", s.Step, "peac_receipt_ref", s.prev, "trace_id", traceOf(e))
	r := Receipt{ID: c.ID, Workflow: s.Workflow, Audience: s.audience, Step: s.Step, Exchange: s.exchange, JWS: jws}
	if s.run != nil && s.audience == "" { // what an audience knows as its workflow is not the run's
		r.Run = s.run.id
	}
	if s.carried {
		r.External = s.parentIDs()
	}
	return r, nil
}

// traceOf is the trace of an exchange, for the log.
func traceOf(e *entry) string {
	if e.o.Trace == (ancestry.TraceID{}) {
		return ""
	}
	return e.o.Trace.String()
}

// takeLost returns what the store is to be told of. It is owed until settled.
func (m *Minter) takeLost() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.owed, m.lost = m.lost, map[string]bool{}
	return slices.Sorted(maps.Keys(m.owed))
}

// owe notes that receipts which are signed are not stored.
func (m *Minter) owe(receipts []Receipt) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range receipts {
		m.owed[r.Workflow] = true
	}
}

// settled forgets what is owed, or has it be lost, with what was signed.
func (m *Minter) settled(signed []*entry, stored bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range signed {
		m.doneLocked(e)
		if e.seal == nil || e.seal.receipt.JWS == "" {
			continue
		}
		w := e.step.Workflow
		if m.sealed[w]--; m.sealed[w] == 0 {
			delete(m.sealed, w)
		}
	}
	if !stored {
		for workflow := range m.owed {
			m.loseLocked(workflow)
		}
	}
	m.owed = nil
}

// misses says whether the store has yet to hear of a workflow's receipts: that some
// were lost, of those that it did not take, or of those that others have already.
func (m *Minter) misses(workflow string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.lost[workflow] || m.lost[""] || m.owed[workflow] || m.owed[""] || m.sealed[workflow] > 0
}

// Back-off between attempts at a store that fails.
const (
	minBackoff = 50 * time.Millisecond
	maxBackoff = 5 * time.Second
)

// store adds to the store, or gives up when an attempt fails after ctx has ended.
func (m *Minter) store(ctx context.Context, receipts []Receipt, lost []string) error {
	for wait := minBackoff; ; wait = min(2*wait, maxBackoff) {
		last := ctx.Err() != nil
		err := m.o.Store.Add(context.WithoutCancel(ctx), receipts, lost)
		if err == nil {
			return nil
		}
		m.owe(receipts)
		if last {
			return err
		}
		m.o.Logger.WarnContext(ctx, "store receipts failed", "receipts", len(receipts), "retry", wait.String(), "err", err)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
	}
}
