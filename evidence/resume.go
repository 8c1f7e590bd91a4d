package evidence

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/wopproxy/wopproxy/ancestry"
	"github.com/wopproxy/wopproxy/ancestry/peac"
)

// maxRecalled bounds the receipts of its workflow that are read for a run that began
// earlier: that is done once, while other receipts wait.
const maxRecalled = 1000

// Resume returns a run that began earlier, in this process or in one before: its
// workflow is the one that was stored with the run; empty: nothing was, and it is
// derived from the run's id. The steps that it began and went on with are looked up
// when the first of its receipts is to be signed, so nobody waits for them here.
func (m *Minter) Resume(id ancestry.RunID, workflow string) *Run {
	if workflow == "" {
		workflow = m.namer(id).RunWorkflow(m.o.Host, string(id))
	}
	name := string(id) + "\x00" + workflow
	if run := m.resumed.find(name); run != nil {
		return run
	}
	return m.resumed.bind(name, &Run{id: id, Workflow: workflow, resumed: true})
}

// recall adds to the parents of a step those steps of its run that only the store
// knows. What the store can't tell, in time, is no parent. It is called by who signs
// behind Seal, before any receipt of the run is stored, which would be told again.
func (m *Minter) recall(ctx context.Context, s *Step) {
	run := s.run
	if run == nil || !run.resumed {
		return
	}
	if !run.recalled {
		run.recalled = true
		var err error
		if run.earlier, err = m.inboundOf(ctx, run); err != nil {
			m.o.Logger.WarnContext(ctx, "the earlier steps of a run could not be read, and are no parents", "run", run.id, "peac_workflow_id", run.Workflow, "err", err)
		}
	}
	if s.lacks == 0 || s.recalled {
		return
	}
	s.recalled = true
	began := s.began.Truncate(time.Millisecond) // as ids tell it
	before := slices.DeleteFunc(slices.Clone(run.earlier), func(p parent) bool {
		at, ok := Began(p.receipt)
		return !ok || !at.Before(began)
	})
	s.parents = slices.Concat(before[max(0, len(before)-s.lacks):], s.parents)
	if cut := len(s.parents) - maxParents; cut > 0 {
		m.metrics.limits.WithLabelValues(limitParents).Inc()
		s.parents = s.parents[cut:]
	}
}

// inboundOf returns the newest inbound steps of a run that the store has receipts of,
// newest last: one more than a step may have as parents.
func (m *Minter) inboundOf(ctx context.Context, run *Run) ([]parent, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), m.o.Recall)
	defer cancel()
	stored, err := m.o.Store.Latest(ctx, run.Workflow, maxRecalled)
	if err != nil {
		return nil, err
	}
	var found []parent
	for _, r := range stored {
		if len(found) > maxParents {
			break
		}
		if r.Run != run.id {
			continue
		}
		if err := ctx.Err(); err != nil { // each takes a while to verify
			return nil, err
		}
		v, err := peac.Verify(r.JWS, m.ownKey, m.o.Now())
		if err != nil || text(v.Claims.Extensions[peac.ExchangeGroup], "direction") != Ingress {
			continue
		}
		// Of a chain, the id of the oldest receipt tells when the step began.
		if i := slices.IndexFunc(found, func(p parent) bool { return p.step == r.Step }); i >= 0 {
			found[i].receipt = r.ID
		} else {
			found = append(found, parent{r.Step, r.ID})
		}
	}
	if len(stored) == maxRecalled && len(found) < maxParents { // there may be more behind
		m.metrics.limits.WithLabelValues(limitParents).Inc()
	}
	slices.SortFunc(found, func(a, b parent) int { return strings.Compare(a.receipt, b.receipt) })
	return found, nil
}
