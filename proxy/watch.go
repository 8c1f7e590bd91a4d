package proxy

import (
	"container/list"
	"encoding/json"
	"net/http"
	"sync"

	"github.com/wopproxy/wopproxy/ancestry"
	"github.com/wopproxy/wopproxy/audit"
	"github.com/wopproxy/wopproxy/proxy/internal/wire"
)

// watcher checks the host's runs against the rules of OpenWOP's execution model
// while their events pass by. It only looks: what it finds is counted, logged
// and kept for who asks.
type watcher struct {
	p     *Proxy
	limit int // runs at most; the one that was quiet for longest is forgotten

	mu     sync.Mutex
	runs   map[string]*watchedRun
	order  *list.List // of *watchedRun, longest quiet first
	memory memory
}

// watchedRun is what is known of one run. Events come by on several streams at
// once, of which each shows what its client has asked for, so each stream has a
// checker of its own, and so have polls, which go on where the last one ended.
type watchedRun struct {
	id       string
	node     *list.Element
	polls    *audit.Run
	next     int64 // behind the newest event that any of them has seen
	held     bool  // as of then: the latest decision may not be carried out yet
	calls    toolCalls
	origins  origins
	nodes    nodes
	collides bool // an event of it has the id of the one elsewhere that is said to have caused it
	found    []audit.Finding
	reported map[string]bool // rule and event of what was found
}

// maxFindings bounds what is kept, and logged, of one run.
const maxFindings = 100

func newWatcher(p *Proxy, limit int) *watcher {
	return &watcher{p: p, limit: limit, runs: map[string]*watchedRun{}, order: list.New(), memory: newMemory(limit)}
}

// see takes a document that has passed: on a stream, whose checker is made with
// the first event, or as the answer to a poll.
func (w *watcher) see(doc []byte, v1, streamed bool, stream **audit.Run) {
	events := audit.ParseEvents(doc)
	if len(events) == 0 {
		return
	}
	model := w.p.advertised.now(v1).model
	for _, s := range w.check(events, model, streamed, stream) {
		w.p.learnSubRun(s)
	}
}

// check holds events against the model, and returns the runs that they name as
// children.
func (w *watcher) check(events []audit.Event, model audit.Model, streamed bool, stream **audit.Run) (named []subRun) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range events {
		run := w.runLocked(e.Run)
		check := &run.polls
		if streamed {
			check = stream
		}
		if *check == nil || (*check).ID() != e.Run {
			*check = audit.NewRun(e.Run, model)
		}
		w.reportLocked(run, (*check).Event(e))
		if next := (*check).Next(); next >= run.next {
			run.next, run.held = next, (*check).Held()
		}
		if !run.calls.see(e) {
			w.p.metrics.limit(limitToolCalls)
		}
		if !run.origins.see(e) {
			w.p.metrics.limit(limitOrigins)
		}
		if !run.nodes.see(e) {
			w.p.metrics.limit(limitNodes)
		}
		if write, ok := audit.ParseWrite(e); ok && !w.memory.write(write) {
			w.p.metrics.limit(limitMemory)
		}
		if s, ok := run.nodes.subRun(e); ok {
			named = append(named, s)
		}
	}
	return named
}

// refused takes the host's refusal of a fork.
func (w *watcher) refused(x *exchange, answer []byte) {
	id, err := x.pathRun()
	major := 2
	if x.head.v1 {
		major = 1
	}
	var asked struct {
		FromSeq int64 `json:"fromSeq"`
	}
	if err != nil || json.Unmarshal(x.body, &asked) != nil {
		return
	}
	found := audit.ForkRefusal(major, string(id), asked.FromSeq, x.status, answer)
	if len(found) == 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reportLocked(w.runLocked(string(id)), found)
}

// runLocked returns what is known of a run, and notes that it was heard of.
func (w *watcher) runLocked(id string) *watchedRun {
	if run := w.runs[id]; run != nil {
		w.order.MoveToBack(run.node)
		return run
	}
	if len(w.runs) >= w.limit {
		w.p.metrics.limit(limitWatched)
		quiet := w.order.Remove(w.order.Front()).(*watchedRun)
		delete(w.runs, quiet.id)
	}
	run := &watchedRun{id: id, reported: map[string]bool{}}
	run.node = w.order.PushBack(run)
	w.runs[id] = run
	return run
}

// reportLocked tells of each finding once, whichever stream shows it.
func (w *watcher) reportLocked(run *watchedRun, found []audit.Finding) {
	for _, f := range found {
		key := string(f.Rule) + "\x00" + f.Event + "\x00" + f.Text
		if run.reported[key] || len(run.found) >= maxFindings {
			continue
		}
		run.reported[key] = true
		run.found = append(run.found, f)
		w.p.metrics.findings.WithLabelValues(string(f.Rule)).Inc()
		w.p.o.Logger.Warn("a run breaks a rule of the execution model", "run", f.Run, "rule", f.Rule, "event", f.Event, "what", f.Text)
	}
}

// withheld says why a call that would carry a decision out must not leave yet, if
// so. It is asked for only where Policy.WithholdUnescalated is set.
func (x *exchange) withheld() *failure {
	if !x.policy.WithholdUnescalated || x.run == nil || !x.dispatches() || !x.p.watch.held(x.run.First, x.run.ID()) {
		return nil
	}
	x.outcome = outcomeRefused
	x.p.metrics.withheld.Inc()
	return x.fail(http.StatusServiceUnavailable, "the latest decision of run "+string(x.run.ID())+
		" is under the confidence floor, and its escalation has not been answered (executionModel.withholdUnescalated)")
}

// dispatches reports whether the call starts work elsewhere.
func (x *exchange) dispatches() bool {
	switch x.msg.Protocol {
	case wire.MCP:
		return x.msg.Kind == wire.Request && x.policy.mcpMethods[x.msg.Method]
	case wire.A2A:
		return x.sends()
	}
	return false
}

// Findings returns what the event logs of runs have shown to be against the rules
// of the execution model, and whether any of the runs was seen at all.
func (p *Proxy) Findings(ids ...ancestry.RunID) (found []audit.Finding, watched bool) {
	w := p.watch
	found = []audit.Finding{}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, id := range ids {
		if run := w.runs[string(id)]; run != nil {
			found, watched = append(found, run.found...), true
		}
	}
	return found, watched
}

// collided notes that a run has an event of the same id as its cause elsewhere.
func (w *watcher) collided(id ancestry.RunID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.runLocked(string(id)).collides = true
}

// collides reports whether a run is known to have such an event.
func (w *watcher) collides(id ancestry.RunID) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	run := w.runs[string(id)]
	return run != nil && run.collides
}

// held reports whether the latest decision of a run, under any of its ids, may
// not be carried out yet.
func (w *watcher) held(ids ...ancestry.RunID) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, id := range ids {
		if run := w.runs[string(id)]; run != nil && run.held {
			return true
		}
	}
	return false
}
