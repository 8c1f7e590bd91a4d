package proxy

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/wopproxy/wopproxy/ancestry"
	"github.com/wopproxy/wopproxy/audit"
	"github.com/wopproxy/wopproxy/proxy/internal/attribution"
	"github.com/wopproxy/wopproxy/proxy/internal/openwop"
)

// A run that another one begins inside the host passes no listener. The host's
// own log of the parent names it, in the words of OpenWOP: node.dispatched for
// core.dispatch, and the outputs of node.completed for core.subWorkflow.

// subRunOutcome says what was made of an event that names a run as a child.
type subRunOutcome string

const (
	subRunLinked    subRunOutcome = "linked"    // its parent is recorded
	subRunKnown     subRunOutcome = "known"     // it was before, with whichever parent, or without
	subRunFork      subRunOutcome = "fork"      // the log is a fork's, which repeats what its source has begun
	subRunOrphan    subRunOutcome = "orphan"    // the run of the log is not known to have begun here
	subRunElsewhere subRunOutcome = "elsewhere" // what is named is on another host, of another tenant, or above the run
	subRunUnsure    subRunOutcome = "unsure"    // the store could not be asked, or too much is on the log
)

var subRunOutcomes = []subRunOutcome{subRunLinked, subRunKnown, subRunFork, subRunOrphan, subRunElsewhere, subRunUnsure}

// nodes are those of a run's log that have begun, and whether they begin runs.
// The outputs of others may look as if they did.
type nodes struct {
	begin map[string]bool
	lost  bool // there were too many
}

// maxNodes bounds the nodes of one run that are remembered.
const maxNodes = 1000

// see takes the next event of a log. It reports false if there are too many
// nodes to know.
func (n *nodes) see(e audit.Event) bool {
	node, begins, ok := openwop.ReadNode(e.Type, e.Payload)
	if _, known := n.begin[node]; !ok || n.lost || known {
		return true
	}
	if len(n.begin) >= maxNodes {
		*n = nodes{lost: true}
		return false
	}
	if n.begin == nil {
		n.begin = map[string]bool{}
	}
	n.begin[node] = begins
	return true
}

// subRun is a run that the log of another one names.
type subRun struct {
	parent, child ancestry.RunID
	cause         ancestry.Cause // empty: the event tells of its end alone
	ended         bool
	likely        bool // it is the outputs of a node that say so, whose type is not known
	unsure        bool // nor can it be any more
}

// subRun reads an event of the log of the run that has the nodes.
func (n *nodes) subRun(e audit.Event) (s subRun, ok bool) {
	c, ok := openwop.ReadChild(e.Type, e.Payload)
	if !ok {
		return subRun{}, false
	}
	begins, known := n.begin[c.Node]
	parent, fault := ancestry.ParseRunID(e.Run)
	child, err := ancestry.ParseRunID(c.Run)
	if known && !begins || fault != nil || err != nil {
		return subRun{}, false
	}
	likely := c.Node != "" && !known
	return subRun{parent, child, ancestry.Cause(c.Cause), c.Ended, likely, likely && n.lost}, true
}

// learnSubRun records who began a run that a log names, unless that is known, and
// makes it live for as long as the log does not say that it is over.
func (p *Proxy) learnSubRun(s subRun) {
	if s.cause == "" {
		p.endSubRun(s)
		return
	}
	outcome := subRunUnsure
	if !s.unsure {
		outcome = p.linkSubRun(context.Background(), s)
	}
	p.metrics.subRuns.WithLabelValues(string(outcome)).Inc()
	if outcome == subRunLinked {
		p.follower.begin(s.child, !s.child.TenantBound())
	}
	if s.ended {
		p.endSubRun(s)
	}
}

// linkSubRun records the parent of a run.
func (p *Proxy) linkSubRun(ctx context.Context, s subRun) subRunOutcome {
	switch _, err := p.lookup(ctx, s.child); {
	case err == nil:
		return subRunKnown // its first parent stays, and a fork or a root stays one
	case !errors.Is(err, ancestry.ErrNotFound):
		return subRunUnsure
	}
	parent, err := p.lookup(ctx, s.parent)
	switch {
	case errors.Is(err, ancestry.ErrNotFound):
		return subRunOrphan // it may be a fork that was made before the proxy was there
	case err == nil && s.parent != parent.Run && s.parent != parent.Alias && !attribution.Opaque(string(parent.ID())):
		return subRunOrphan // or of another tenant, with the same id by chance
	case err != nil:
		return subRunUnsure
	case parent.Reason == reasonFork:
		return subRunFork
	case tenantOf(s.child) != tenantOf(s.parent) || p.isAbove(parent, s.child):
		return subRunElsewhere
	}
	if s.likely {
		if outcome := p.callee(ctx, parent, s.child); outcome != "" {
			return outcome
		}
	}
	link := ancestry.Link{
		Run: s.child, Evidence: ancestry.EvidenceEventLog, Operation: string(s.cause),
		Trace: parent.Trace, Span: parent.Span, ParentSpan: parent.Span, Time: time.Now().UTC().Truncate(time.Millisecond),
		Chain:    parent.Chain.With(ancestry.Ancestor{Run: parent.ID(), Host: p.o.HostID, WellKnown: p.o.WellKnown, Cause: s.cause}),
		Workflow: parent.Workflow,
	}
	p.o.Recorder.Record(link)
	if live := p.runs.Known(parent.Run); live != nil && !s.ended {
		p.startSubRun(link, live)
	}
	return subRunLinked
}

// isAbove reports whether id names a run, or one of its ancestors on this host.
func (p *Proxy) isAbove(l ancestry.Link, id ancestry.RunID) bool {
	return id == l.Run || id == l.Alias ||
		slices.ContainsFunc(l.Chain.Ancestors, func(a ancestry.Ancestor) bool { return a.Run == id && a.Host == p.o.HostID })
}

// callee says why what the outputs of a node name is not known to be a run of
// this host: a call of the parent has begun it on another one.
func (p *Proxy) callee(ctx context.Context, parent ancestry.Link, child ancestry.RunID) subRunOutcome {
	const page = 1000
	links, next, err := p.o.Recorder.Children(ctx, parent.Run, "", page)
	switch {
	case slices.ContainsFunc(links, func(l ancestry.Link) bool { return l.Host != "" && (l.Run == child || l.Alias == child) }):
		return subRunElsewhere
	case err != nil || next != "":
		return subRunUnsure
	}
	return ""
}

// startSubRun makes a run live that works in the context of its parent. That
// names neither of the two alone from then on.
func (p *Proxy) startSubRun(l ancestry.Link, parent *attribution.Run) {
	run := &attribution.Run{
		First: l.Run, Chain: l.Chain, Trace: l.Trace, Span: l.Span, Flags: parent.Flags,
		State: parent.State, Baggage: parent.Baggage, Operation: l.Operation, Started: l.Time,
		Within: append(slices.Clip(parent.Within), parent.First), Evidence: parent.Evidence,
	}
	if _, ok := p.runs.Restore(run); !ok {
		p.metrics.limit(limitRuns)
		return
	}
	p.runs.Resume(l.Run) // for the log says that it is at work
}

// endSubRun ends a run that its parent's log says is over.
func (p *Proxy) endSubRun(s subRun) {
	run := p.runs.Known(s.child)
	if run == nil {
		return
	}
	if by := run.Chain.Parent(); by != nil && by.Host == p.o.HostID && p.sameRun(by.Run, s.parent) {
		p.runs.End(run)
	}
}

// sameRun reports whether two ids name one run.
func (p *Proxy) sameRun(a, b ancestry.RunID) bool {
	if a == b {
		return true
	}
	l, err := p.lookup(context.Background(), b)
	return err == nil && (l.Run == a || l.Alias == a)
}

// lookup returns the link of a run of this host by a name that the host has for
// it. Read under v2, a run that was created under v1 has a tenant before its id,
// and somebody else's may be the same without one.
func (p *Proxy) lookup(ctx context.Context, id ancestry.RunID) (ancestry.Link, error) {
	l, err := p.o.Recorder.Lookup(ctx, id)
	if _, untenanted, bound := strings.Cut(string(id), "/"); bound && untenanted != "" && errors.Is(err, ancestry.ErrNotFound) {
		return p.o.Recorder.Lookup(ctx, ancestry.RunID(untenanted))
	}
	return l, err
}

// tenantOf is what stands before the slash in an id of v2.
func tenantOf(id ancestry.RunID) string {
	tenant, _, bound := strings.Cut(string(id), "/")
	if !bound {
		return ""
	}
	return tenant
}
