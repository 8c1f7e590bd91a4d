package attribution

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
	"time"

	"github.com/wopproxy/wopproxy/ancestry"
)

// Span is a place in a trace, as an outbound message names it.
type Span struct {
	Trace ancestry.TraceID
	Span  ancestry.SpanID
}

// Clues is all that one outbound call says about where it comes from. A zero
// field is a clue that the call does not give.
type Clues struct {
	RunID      ancestry.RunID // header Run-Id
	Spans      [2]Span        // of the carriers: in the message, in the header
	States     [2]string      // their tracestate members wop=
	Credential ancestry.RunID // user name of the proxy credential, its secret already checked
	BasePath   ancestry.RunID // /_run/<runId>/
	Process    ancestry.RunID // of the process that called
	Keys       []Key          // ids of the conversation it belongs to
	Echoed     []string       // ids in its body, as Echoed returns them
	Webhook    *Run           // the run that asked for it, if it is a post that was asked for
	Unsure     Reason         // why the caller of this could not tell who asked for it, or whose process it is
}

// Reason says why no run was named, from a closed set.
type Reason string

// The reasons to abstain.
const (
	ReasonNoLiveRun       Reason = "no-live-run"       // nothing is live here that could have called
	ReasonManyLiveRuns    Reason = "many-live-runs"    // several are, and nothing tells them apart
	ReasonSharedTrace     Reason = "shared-trace"      // several live runs share the call's trace
	ReasonSharedKey       Reason = "shared-key"        // several live runs share the call's conversation
	ReasonSharedProcess   Reason = "shared-process"    // the process that called works for several runs, or may
	ReasonSharedEcho      Reason = "shared-echo"       // the call mentions ids of several runs
	ReasonOtherWork       Reason = "other-work"        // one run is live, but something that is no run is too
	ReasonRestarted       Reason = "restarted"         // a run that began before a restart of the proxy may be the caller
	ReasonTableFull       Reason = "table-full"        // a run that found no place may be the caller
	ReasonUnproven        Reason = "unproven-state"    // the tracestate member names a run that is not known in the trace of the call
	ReasonSingleFlightOff Reason = "single-flight-off" // one run is live, and the rung is turned off
)

// Reasons lists the closed set.
func Reasons() []Reason {
	return []Reason{
		ReasonNoLiveRun, ReasonManyLiveRuns, ReasonSharedTrace, ReasonSharedKey, ReasonSharedProcess, ReasonSharedEcho,
		ReasonOtherWork, ReasonRestarted, ReasonTableFull, ReasonUnproven, ReasonSingleFlightOff,
	}
}

// Verdict is the answer to whose call it is. Either Evidence is set and ID
// names the run, or Reason is.
type Verdict struct {
	ID       ancestry.RunID
	Run      *Run // the run, if it is live here; nil when the evidence outlived it
	Evidence ancestry.Evidence
	Reason   Reason
	Conflict bool // a lower rung named another run
	// Trace is where a tracestate member named a run that is not live here. The
	// member is evidence only if the run is known in that trace: a peer may have
	// put it where we could not take it out.
	Trace ancestry.TraceID
}

// Attribute walks down the ladder. The first rung that names a run decides;
// those below it are asked only whether they disagree, and single-flight not
// even that: it names whatever is live.
func (t *Table) Attribute(c Clues) Verdict {
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.expireLocked(now)

	var v Verdict
	consider := func(e ancestry.Evidence, id ancestry.RunID) {
		if id == "" {
			return
		}
		run := t.byID[id]
		switch {
		case v.Evidence == "":
			v.ID, v.Run, v.Evidence = id, run, e
			if run != nil {
				v.ID = run.ID()
			}
		case run != nil && run == v.Run:
		case id != v.ID:
			v.Conflict = true
		}
	}
	consider(ancestry.EvidenceRunID, c.RunID)
	var why Reason
	for i, state := range c.States {
		id := t.ParseState(state)
		if run := t.byID[id]; run != nil && !slices.Contains(run.traces, c.Spans[i].Trace) {
			why = ReasonUnproven
			continue
		}
		if t.within[id] > 0 {
			why = cmp.Or(why, ReasonSharedTrace)
			continue
		}
		if id != "" && v.Evidence == "" && t.byID[id] == nil {
			v.Trace = c.Spans[i].Trace
		}
		consider(ancestry.EvidenceTraceState, id)
	}
	var blind Reason
	if now.Before(t.blindUntil) {
		blind = t.blindWhy
	}
	byTrace, whyNot := t.byTraceLocked(c.Spans, blind)
	why = cmp.Or(why, whyNot)
	consider(ancestry.EvidenceTraceID, byTrace)
	consider(ancestry.EvidenceProxyCredential, c.Credential)
	consider(ancestry.EvidenceBasePath, c.BasePath)
	consider(ancestry.EvidenceProcess, c.Process)
	byKey, whyNot := t.byKeyLocked(c.Keys, blind)
	why = cmp.Or(why, whyNot)
	consider(ancestry.EvidenceConversation, byKey)
	why = cmp.Or(why, c.Unsure)
	if c.Webhook != nil {
		consider(ancestry.EvidenceConversation, c.Webhook.ID())
	}
	if v.Evidence == "" && why != ReasonUnproven {
		byEcho, whyNot := t.byEchoLocked(c.Echoed, blind)
		why = cmp.Or(why, whyNot)
		consider(ancestry.EvidenceEchoedID, byEcho)
	}
	if v.Evidence == "" && why == "" {
		// What bears a trace or a conversation that could be another's is not
		// unmarked, and who is alone here says nothing about it.
		byFlight, whyNot := t.onlyLocked(now, blind)
		why = cmp.Or(why, whyNot)
		consider(ancestry.EvidenceSingleFlight, byFlight)
	}
	if v.Evidence == "" {
		v.Reason = why
		return v
	}
	if v.Run != nil && v.Evidence != ancestry.EvidenceSingleFlight {
		// Single-flight would keep the last run live for as long as anything calls.
		t.touchActiveLocked(v.Run, now)
	}
	return v
}

// touchActiveLocked notes activity of a run, but does not bring back one that
// has ended: what it leaves behind must not keep it live for ever.
func (t *Table) touchActiveLocked(r *Run, now time.Time) {
	if r.node != nil && !r.ended {
		t.touchLocked(r, now)
	}
}

// byTraceLocked names the one run that the call's trace has seen on this host.
// Of several it is the one that was handed exactly the span id that the call
// bears: a host without spans of its own returns what it was given.
func (t *Table) byTraceLocked(spans [2]Span, blind Reason) (ancestry.RunID, Reason) {
	var why Reason
	for _, s := range spans {
		if s.Trace.IsZero() {
			continue
		}
		runs := t.byTrace[s.Trace]
		if blind == ReasonTableFull && runs.len() > 0 {
			// Without spans of our own, two runs may have been handed the same one. Of a
			// run before a restart its trace is known: see Retire.
			why = cmp.Or(why, blind)
			continue
		}
		other := t.others[s.Trace] != nil
		before := t.retired.has(s.Trace)
		if r := runs.only(); r != nil && !other && !before {
			return r.ID(), ""
		}
		if r := t.bySpan[s].only(); r != nil && !other {
			return r.ID(), ""
		}
		switch {
		case runs.len() > 1, runs.len() == 1 && before:
			why = cmp.Or(why, ReasonSharedTrace)
		case runs.len() == 1:
			why = cmp.Or(why, ReasonOtherWork)
		}
	}
	return "", why
}

// byKeyLocked names the one live run that a conversation id is bound to. The
// first id that is bound decides, unless another one is bound to another run
// alone.
func (t *Table) byKeyLocked(keys []Key, blind Reason) (ancestry.RunID, Reason) {
	var found *Run
	for _, k := range keys {
		runs := t.bindings[k]
		switch {
		case k.ID == "" || runs.len() == 0 || found != nil && runs.len() > 1:
		case runs.len() > 1 || found != nil && found != runs.only():
			return "", ReasonSharedKey
		case blind != "":
			return "", blind
		default:
			found = runs.only()
		}
	}
	if found == nil {
		return "", ""
	}
	return found.ID(), ""
}

// byEchoLocked names the one run whose ids the call mentions. An id that another
// run was given in a request, too, is no evidence: it may come from there.
func (t *Table) byEchoLocked(ids []string, blind Reason) (ancestry.RunID, Reason) {
	var found *Run
	for _, id := range ids {
		owners := t.bindings[Key{kindOwn, id}]
		if owners.len() == 0 {
			continue
		}
		own, mentioned := owners.only(), t.bindings[Key{kindMentioned, id}]
		others := mentioned.len() > 0 && mentioned.only() != own
		if own == nil || others || found != nil && found != own {
			return "", ReasonSharedEcho
		}
		found = own
	}
	switch {
	case found == nil || t.unread > 0:
		return "", ""
	case blind != "":
		return "", blind
	}
	return found.ID(), ""
}

// onlyLocked names the run that is alone on this host. One that ended within
// the quarantine still counts, because hosts leave work behind.
func (t *Table) onlyLocked(now time.Time, blind Reason) (ancestry.RunID, Reason) {
	switch n := t.active.Len() + t.ended.Len(); {
	case n > 1:
		return "", ReasonManyLiveRuns
	case n == 0:
		return "", ReasonNoLiveRun
	case blind != "":
		return "", blind
	case t.other > 0 || now.Before(t.otherUntil):
		return "", ReasonOtherWork
	case t.o.NoSingle:
		return "", ReasonSingleFlightOff
	}
	q := t.active
	if q.Len() == 0 {
		q = t.ended
	}
	return q.Front().Value.(*Run).ID(), ""
}

// State returns the value of the tracestate member wop= that tells the host,
// and later us, which run its calls belong to. It names the host too, so that
// a member that reached another host by a way round its proxy is not taken for
// that host's own.
func (t *Table) State(r *Run) string { return t.tag + ":" + r.First.Segment() }

// ParseState returns the run named by a value that State has made for this
// host, by whichever replica or before a restart, and "" for any other.
func (t *Table) ParseState(value string) ancestry.RunID {
	tag, rest, ok := strings.Cut(value, ":")
	if !ok || tag != t.tag {
		return ""
	}
	id, err := ancestry.ParseSegmentV2(rest)
	if err != nil {
		return ""
	}
	return id
}

// hostTag shortens a hostId to what fits a tracestate value.
func hostTag(hostID string) string {
	sum := sha256.Sum256([]byte(hostID))
	return hex.EncodeToString(sum[:8])
}
