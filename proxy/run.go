package proxy

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/wopproxy/wopproxy/ancestry"
	"github.com/wopproxy/wopproxy/proxy/internal/attribution"
	"github.com/wopproxy/wopproxy/proxy/internal/openwop"
	"github.com/wopproxy/wopproxy/proxy/internal/wire"
)

// continueRun recognises a request that goes on with a run instead of starting
// one: a later turn of an A2A task, or the retry of an MCP call that the server
// has answered with a question. The first parent of that run stays.
func (x *exchange) continueRun(r *http.Request) {
	if len(x.msg.RequestState) > 0 {
		x.run = x.p.runs.Bound(x.requestStateKey(x.msg.RequestState))
		if x.run != nil && !sameParent(x.run.Chain.Parent(), x.chain.Parent()) {
			x.run = nil // the state of another caller's call, by chance or not
		}
		return
	}
	if x.msg.Protocol == wire.A2A && x.unread() {
		x.chain, x.reason, x.wants = ancestry.Chain{}, reasonUnread, false
		return
	}
	if x.msg.Protocol != wire.A2A || x.msg.TaskID == "" {
		return
	}
	id, err := ancestry.ParseRunID(x.msg.TaskID)
	if err != nil {
		return
	}
	if x.run = x.p.knownRun(r.Context(), id); x.run == nil {
		// It began before the proxy could see it, with another message than this;
		// if there is such a task at all, which only the host's answer can tell.
		x.chain, x.reason, x.wants = ancestry.Chain{}, reasonContinued, false
	}
}

// unread reports whether a gRPC request is known by its path alone, so that
// nothing tells whether it goes on with a task.
func (x *exchange) unread() bool {
	switch x.msg.Refusal {
	case wire.RefusedFraming, wire.RefusedCompressed, wire.RefusedNotProtobuf, wire.RefusedDuplicateKey:
		return x.head.hints.GRPC != ""
	}
	return x.body == nil && x.head.hints.GRPC != ""
}

// sameParent reports whether two calls come from one run, as far as is known.
func sameParent(a, b *ancestry.Ancestor) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Run == b.Run && a.Host == b.Host
}

// rejoin makes the run of a request that goes on with it known in the request's
// own trace and conversation, too. The caller is not told the run's id, or its
// proxy would note as a child what another run may have begun.
func (x *exchange) rejoin() {
	x.wants, x.goesOn = false, true
	x.p.runs.Rejoin(x.run, ancestry.TraceID(x.context.TraceID))
	x.bindContext()
}

// knownRun returns the run of that id if it is live, or was and can be made
// live again from its link.
func (p *Proxy) knownRun(ctx context.Context, id ancestry.RunID) *attribution.Run {
	if run := p.runs.Resume(id); run != nil {
		return run
	}
	run := p.storedRun(ctx, id)
	if run == nil {
		return nil
	}
	p.recall(ctx, run)
	run, ok := p.runs.Restore(run)
	if !ok {
		p.metrics.limit(limitRuns)
	}
	p.follower.resume(run)
	return run
}

// recall asks the store, after a restart, whether the trace of a run that begins
// had another one before: that one may be at work still, and call out.
func (p *Proxy) recall(ctx context.Context, run *attribution.Run) {
	if run.Trace.IsZero() || !p.runs.Unseen() {
		return
	}
	links, err := p.o.Recorder.Trace(ctx, run.Trace, 2)
	other := func(l ancestry.Link) bool { return l.Host == "" && l.Run != run.First }
	if err != nil || slices.ContainsFunc(links, other) {
		p.runs.Retire(run.Trace)
	}
}

// pathRun is the run that the path of a request to the host's own API names.
func (x *exchange) pathRun() (ancestry.RunID, error) {
	if x.head.v1 {
		return ancestry.ParseSegmentV1(x.head.segment)
	}
	return ancestry.ParseSegmentV2(x.head.segment)
}

// knownID reports whether a run of that id has been recorded.
func (p *Proxy) knownID(id ancestry.RunID) bool {
	return p.runs.Known(id) != nil || p.storedRun(context.Background(), id) != nil
}

// storedRun makes a run from what is recorded of it. It is not live.
func (p *Proxy) storedRun(ctx context.Context, id ancestry.RunID) *attribution.Run {
	l, err := p.o.Recorder.Lookup(ctx, id)
	if err != nil {
		if !errors.Is(err, ancestry.ErrNotFound) {
			p.o.Logger.WarnContext(ctx, "run could not be looked up", "run", id, "err", err)
		}
		return nil
	}
	run := &attribution.Run{
		First: l.Run, Chain: l.Chain, Trace: l.Trace, Span: l.Span,
		Operation: l.Operation, Started: l.Time,
	}
	if p.o.Evidence != nil {
		run.Evidence = p.o.Evidence.Resume(l.Run, l.Workflow)
	}
	if l.Alias != "" {
		p.runs.Alias(run, l.Alias)
	}
	return run
}

// startRun begins a run with this request, makes it live and records who caused
// it.
func (x *exchange) startRun(r *http.Request) {
	if x.head.openwop == openwop.Fork {
		x.chain, x.reason = ancestry.Chain{}, reasonFork
	}
	var evidence ancestry.Evidence
	if x.chain.Parent() != nil {
		evidence = ancestry.EvidenceRunAncestry
	}
	c := x.context
	x.run = &attribution.Run{
		First: ancestry.NewRunID(x.began), Chain: x.chain.Compact(),
		Trace: ancestry.TraceID(c.TraceID), Span: ancestry.SpanID(c.SpanID), Flags: c.Flags,
		State: string(c.State.Without(stateKey)), Baggage: c.Baggage,
		Operation: x.operation(r), Started: x.began,
	}
	if x.p.o.EchoedIDs {
		x.run.Mentions, x.run.Read = x.mentions(r)
	}
	x.openWorkflow()
	x.p.recall(r.Context(), x.run)
	if !x.p.runs.Start(x.run) {
		x.p.metrics.limit(limitRuns)
	}
	x.link = ancestry.Link{
		Run: x.run.First, Chain: x.chain, Evidence: evidence, Reason: x.reason,
		Trace: x.run.Trace, Span: x.run.Span, ParentSpan: ancestry.SpanID(x.received.SpanID),
		Operation: x.run.Operation, Workflow: workflowOf(x.run), Time: x.began.UTC().Truncate(time.Millisecond),
	}
	if x.reason == reasonFork {
		x.link.Source, _ = x.pathRun()
	}
	x.record(x.link)
	x.bindContext()
}

// alias makes id the host's name of the run that began with this exchange.
func (x *exchange) alias(id ancestry.RunID) {
	if id == x.run.ID() || x.link.Run == "" {
		return
	}
	x.run = x.p.runs.Alias(x.run, id)
	x.own(string(id))
	if x.run.First != x.link.Run {
		// A replay of a run that is live here. If its own records were lost, this
		// is the last chance to say who began it before the replay's are read.
		older := ancestry.Link{
			Run: x.run.First, Alias: id, Chain: x.run.Chain, Reason: reasonNoAncestry,
			Trace: x.run.Trace, Span: x.run.Span, Operation: x.run.Operation, Workflow: workflowOf(x.run), Time: x.run.Started.UTC(),
		}
		if older.Parent() != nil {
			older.Evidence, older.Reason = ancestry.EvidenceRunAncestry, ""
		}
		x.record(older)
	}
	// The whole link again: if the first record of it was lost, this one must not
	// leave the parent open for somebody else.
	x.link.Alias = id
	x.record(x.link)
}

// nameChild gives the child that the callee's proxy has named the id that the
// callee itself goes by.
func (x *exchange) nameChild(id ancestry.RunID) {
	if x.child.Run == "" || x.child.Alias != "" || x.child.Run == id {
		return
	}
	x.child.Alias = id
	x.record(x.child)
	x.owed = nil // noted for our own use; the host's answer need not wait
}
