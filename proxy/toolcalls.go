package proxy

import (
	"bytes"
	"encoding/json"
	"slices"

	"github.com/wopproxy/wopproxy/ancestry"
	"github.com/wopproxy/wopproxy/audit"
	"github.com/wopproxy/wopproxy/proxy/internal/attribution"
	"github.com/wopproxy/wopproxy/proxy/internal/wire"
)

// toolCalls follows the tool calls that the log of one run tells of, to know
// which event is the cause of a call that leaves. It is certain only if the log
// was seen from its beginning without a gap, and has one call of this tool with
// these arguments that has not returned, of which no other request was made:
// whatever else there is, two calls may be told apart by nothing.
type toolCalls struct {
	next int64                // what comes next in the unbroken part of the log
	open map[string]*openCall // by tool and arguments
	ids  map[string]string    // what they are in open, by the log's own ids of calls
	lost bool                 // there were too many
}

// openCall is what is open of one kind.
type openCall struct {
	event   string // that tells of it; empty: none has yet
	made    bool   // a request was made of it
	several bool   // more than one was open at a time
	n       int    // how many of them have not returned
}

// maxToolCalls bounds the open calls of one run that are followed.
const maxToolCalls = 100

// see takes the next event of a log, of whichever of its readers. It reports
// false if there are too many calls to follow.
func (c *toolCalls) see(e audit.Event) bool {
	if e.Sequence != c.next {
		return true // seen before, or behind a gap that may be filled later
	}
	c.next++
	called := e.Type == "agent.toolCalled" || e.Type == "agent.tool-called"
	returned := e.Type == "agent.toolReturned" || e.Type == "agent.tool-returned"
	if c.lost || !called && !returned {
		return true
	}
	var p struct {
		CallID    string          `json:"callId"`
		Tool      string          `json:"toolName"`
		Inputs    json.RawMessage `json:"inputs"`
		Transport string          `json:"transport"`
	}
	if json.Unmarshal(e.Payload, &p) != nil {
		return true
	}
	if returned {
		c.close(p.CallID)
		return true
	}
	key := callKey(p.Tool, p.Inputs)
	if key == "" || p.Transport != "" && p.Transport != "mcp" {
		return true
	}
	call := c.of(key)
	if call == nil {
		return false
	}
	_, known := c.ids[p.CallID]
	call.several = call.several || call.n > 0 || known || p.CallID == ""
	call.event = e.ID
	call.n++
	c.ids[p.CallID] = key
	return true
}

// of returns what is known of calls of a kind, or nil if that is too much.
func (c *toolCalls) of(key string) *openCall {
	if c.open == nil {
		c.open, c.ids = map[string]*openCall{}, map[string]string{}
	}
	call := c.open[key]
	if call == nil {
		if len(c.open) >= maxToolCalls || len(c.ids) >= maxToolCalls {
			*c = toolCalls{next: c.next, lost: true}
			return nil
		}
		call = &openCall{}
		c.open[key] = call
	}
	return call
}

// close takes the return of a call. Of several only the last one ends what is
// not certain about them.
func (c *toolCalls) close(id string) {
	key, ok := c.ids[id]
	if !ok {
		return
	}
	delete(c.ids, id)
	if c.open[key].n--; c.open[key].n == 0 {
		delete(c.open, key)
	}
}

// make takes a request for a call, and returns the event that has caused it, or
// "" if that is not certain. It reports false if there are too many to follow.
func (c *toolCalls) make(key string) (event string, ok bool) {
	if c.lost {
		return "", true
	}
	call := c.of(key)
	if call == nil {
		return "", false
	}
	if !call.made && !call.several {
		event = call.event
	}
	call.made = true
	return event, true
}

// callKey is what calls have in common that can't be told apart, or "" if the
// arguments are not known. Numbers are the same if they are written so.
func callKey(tool string, arguments json.RawMessage) string {
	if tool == "" || len(arguments) == 0 {
		return ""
	}
	var v any
	dec := json.NewDecoder(bytes.NewReader(arguments))
	dec.UseNumber()
	if dec.Decode(&v) != nil || v == nil {
		return ""
	}
	canonical, err := json.Marshal([]any{tool, v}) // with its keys in order
	if err != nil {
		return ""
	}
	return digest(canonical)
}

// origins are the events of one run's log that a message of A2A may say it was
// caused by. No event tells of a message as of a tool call: what identifies one is
// its id alone, where the host has taken that from the event, or from the call
// which the event tells of.
type origins struct {
	events map[string]string // by either id; empty: there are several
	order  []string          // the ids, oldest first
}

// maxOrigins bounds the ids of one run that are remembered.
const maxOrigins = 200

// originTypes are the events that a message may be caused by.
var originTypes = map[string]bool{
	"agent.toolCalled": true, "agent.tool-called": true,
	"agent.handoff":           true,
	"agent.decided":           true,
	"runOrchestrator.decided": true, "orchestrator.decided": true,
	"core.workflowChain.event": true, "workflow-chain.event": true,
}

// see takes an event of the log, of whichever of its readers. It reports false if
// an older one was forgotten for it.
func (o *origins) see(e audit.Event) bool {
	if !originTypes[e.Type] {
		return true
	}
	fits := o.add(e.ID, e.ID)
	var p struct {
		CallID    string `json:"callId"`
		Transport string `json:"transport"`
	}
	if json.Unmarshal(e.Payload, &p) == nil && p.Transport != "mcp" && p.Transport != "native" {
		fits = o.add(p.CallID, e.ID) && fits
	}
	return fits
}

func (o *origins) add(id, event string) bool {
	if !attribution.Opaque(id) {
		return true // other messages may have it by chance
	}
	if known, ok := o.events[id]; ok {
		if known != event {
			o.events[id] = ""
		}
		return true
	}
	full := len(o.order) >= maxOrigins
	if full {
		delete(o.events, o.order[0])
		o.order = o.order[1:]
	}
	if o.events == nil {
		o.events = map[string]string{}
	}
	o.events[id] = event
	o.order = append(o.order, id)
	return !full
}

// causingEvent is the event of the run's own log that has caused the call, or ""
// if it is not known for certain.
func (x *exchange) causingEvent() string {
	if x.msg.Protocol == wire.A2A && x.sends() {
		return x.p.watch.origin(x.msg.MessageID, x.run.ID(), x.run.First)
	}
	if x.msg.Protocol != wire.MCP || x.msg.Kind != wire.Request || x.msg.Method != "tools/call" || x.msg.Refusal != "" {
		return ""
	}
	ids := []ancestry.RunID{x.run.ID(), x.run.First}
	if !x.p.watch.follows(ids) {
		return "" // most runs: nothing has to be read for them
	}
	var m struct {
		Params struct {
			Arguments json.RawMessage `json:"arguments"`
		} `json:"params"`
	}
	if json.Unmarshal(x.body, &m) != nil {
		return ""
	}
	key := callKey(x.msg.Target, m.Params.Arguments)
	if key == "" {
		return ""
	}
	return x.p.watch.call(ids, key)
}

// follows reports whether the log of a run, by any of its ids, is being read.
func (w *watcher) follows(ids []ancestry.RunID) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.ContainsFunc(ids, func(id ancestry.RunID) bool { return w.runs[string(id)] != nil })
}

// origin returns the event of a run, by any of its ids, whose id a message has.
func (w *watcher) origin(message string, ids ...ancestry.RunID) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, id := range ids {
		if run := w.runs[string(id)]; run != nil {
			return run.origins.events[message]
		}
	}
	return ""
}

// call takes a request for a call of a run, and returns the event that has
// caused it, if that is certain.
func (w *watcher) call(ids []ancestry.RunID, key string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, id := range ids {
		if run := w.runs[string(id)]; run != nil {
			event, ok := run.calls.make(key)
			if !ok {
				w.p.metrics.limit(limitToolCalls)
			}
			return event
		}
	}
	return ""
}
