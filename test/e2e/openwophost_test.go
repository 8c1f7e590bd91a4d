package e2e

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// owHost is a host with OpenWOP's own API, of one major, behind its own
// wopproxy. It knows nothing of RFC 0040: it has no ancestry endpoint, claims no
// cross-host causation and takes no notice of who calls, unless it has a guard. Runs
// begin over REST, as MCP tool calls and as A2A messages, and call other hosts in the
// same ways.
type owHost struct {
	*sidecar
	major  int
	base   string // where it listens itself
	traced bool   // it sends on the trace that a run began in, as with OpenTelemetry
	guard  *owGuard
	client *http.Client

	mu      sync.Mutex
	runs    map[string]*owRun
	order   []*owRun
	answers map[string]owAnswer // by Idempotency-Key
	opened  chan struct{}       // closed when runs that wait may go on
}

// owPlan is what a run does: it calls other hosts, one after the other. The
// label is the test's name for the run.
type owPlan struct {
	Label string   `json:"label"`
	Wait  bool     `json:"wait,omitempty"`  // for the host to be opened, when the first call is in the log and not yet made
	Cause string   `json:"cause,omitempty"` // an event that the caller names: what has caused the first tool call
	Says  []owSaid `json:"says,omitempty"`  // stands in the log behind the first call, before it is made, or before the end
	Calls []owCall `json:"calls,omitempty"`
}

// owSaid is an event that a run has in its log without further ado.
type owSaid struct {
	Type    string         `json:"type"`
	Payload map[string]any `json:"payload"`
}

// owCall begins a run on another host, or inside this one.
type owCall struct {
	Via  string `json:"via"` // mcp, a2a or rest; or core.dispatch or core.subWorkflow
	To   string `json:"to"`  // where that host is found
	Plan owPlan `json:"plan"`
}

// owRun is one run. Its log is append-only.
type owRun struct {
	id     string
	minted string // the Run-Id it came with, for the test: the host makes no use of it
	within bool   // it was begun by another run of the host
	owner  string // the credential that it was begun with
	source string // of a fork
	plan   owPlan
	trace  http.Header

	mu      sync.Mutex
	log     []owEntry
	status  string
	err     error
	changed chan struct{} // closed with the next entry
	done    chan struct{}
}

// owEntry is an event, or a chunk, which belongs to no log.
type owEntry struct {
	seq   int
	typ   string
	doc   []byte
	chunk bool
}

// owAnswer is kept for who repeats a request.
type owAnswer struct {
	digest [sha256.Size]byte
	body   []byte
}

// newToy makes a host of a major, that listens nowhere and has no wopproxy yet.
func newToy(major int) *owHost {
	return &owHost{
		major: major, traced: true,
		runs: map[string]*owRun{}, answers: map[string]owAnswer{}, opened: make(chan struct{}),
	}
}

// newOWHost starts a host of a major, 1 or 2, and its wopproxy, both on the
// given loopback address where this system has it.
func newOWHost(t testing.TB, hostID string, major int, addr string, overrides ...settings) *owHost {
	t.Helper()
	h := newToy(major)
	l, err := net.Listen("tcp", addr+":0")
	if err != nil { // only Linux has all of 127.0.0.0/8 without being told
		addr = "127.0.0.1"
		if l, err = net.Listen("tcp", addr+":0"); err != nil {
			t.Fatal(err)
		}
	}
	server := httptest.NewUnstartedServer(h)
	_ = server.Listener.Close()
	server.Listener = l
	server.Start()
	t.Cleanup(server.Close)
	h.base = server.URL
	set := settings{
		"ingress.listen": addr + ":0", "egress.listen": addr + ":0", "admin.listen": addr + ":0",
		"ingress.discovery.causation": "claim", // or it may not have the endpoint that the tests ask
	}
	h.sidecar = start(t, hostID, h.base, append([]settings{set}, overrides...)...)
	h.dialOut(t)
	return h
}

// dialOut makes the host call out through its wopproxy, where that is now.
func (h *owHost) dialOut(t testing.TB) {
	c := h.sidecar.client(t)
	h.mu.Lock()
	h.client = c
	h.mu.Unlock()
}

// restart stops the wopproxy and starts it again. Its addresses change, but not
// the one that other hosts know.
func (h *owHost) restart(t testing.TB) {
	t.Helper()
	h.stop(t)
	h.serve(t, nil, h.file)
	h.dialOut(t)
}

// open lets the runs go on that wait.
func (h *owHost) open() { close(h.opened) }

// path is where the host serves something under its major.
func (h *owHost) path(rest string) string {
	if h.major == 1 {
		return "/v1" + rest
	}
	return rest
}

// segment spells a run id as one segment of a path.
func (h *owHost) segment(id string) string {
	if h.major == 1 {
		return url.PathEscape(id)
	}
	var b strings.Builder
	for _, c := range []byte(id) {
		if c == '.' || c == '_' || c == '-' || '0' <= c && c <= '9' || 'A' <= c && c <= 'Z' || 'a' <= c && c <= 'z' {
			b.WriteByte(c)
			continue
		}
		fmt.Fprintf(&b, "~%02X", c)
	}
	return b.String()
}

// unsegment is the id that a segment stands for, or nothing.
func (h *owHost) unsegment(segment string) string {
	if h.major == 2 {
		segment = strings.ReplaceAll(segment, "~", "%")
	}
	id, _ := url.PathUnescape(segment)
	return id
}

// called returns the run that has the label.
func (h *owHost) called(label string) *owRun {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range h.order {
		if r.plan.Label == label {
			return r
		}
	}
	return nil
}

// ServeHTTP routes by the escaped path: a bound id may hold a %2F.
func (h *owHost) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if h.major == 2 {
		w.Header().Set("OpenWOP-Version", "2.0")
	}
	path := r.URL.EscapedPath()
	if path == "/.well-known/openwop" {
		h.discovery(w)
		return
	}
	path, ok := strings.CutPrefix(path, h.path(""))
	switch {
	case !ok:
		h.fail(w, 404, "not_found", nil)
	case path == "/mcp" && r.Method == http.MethodPost:
		h.mcp(w, r)
	case path == "/a2a" && r.Method == http.MethodPost:
		h.a2a(w, r)
	case path == "/runs" && r.Method == http.MethodPost:
		h.create(w, r)
	case path == "/runs" && r.Method == http.MethodGet:
		h.list(w)
	case strings.HasPrefix(path, "/runs/"):
		h.one(w, r, strings.TrimPrefix(path, "/runs/"))
	default:
		h.fail(w, 404, "not_found", nil)
	}
}

// discovery claims the handoff and the floor, which are levels 1 and 2.
func (h *owHost) discovery(w http.ResponseWriter) {
	if h.major == 1 {
		h.reply(w, 200, map[string]any{
			"protocolVersion": "1.0", "supportedEnvelopes": []string{"clarification.request"}, "schemaVersions": map[string]int{"clarification.request": 1},
			"limits":     map[string]int{"clarificationRounds": 1, "schemaRounds": 1, "envelopesPerTurn": 1},
			"multiAgent": map[string]any{"executionModel": map[string]any{"supported": true, "version": 2}},
		})
		return
	}
	h.reply(w, 200, map[string]any{
		"protocolVersions": []string{"2.0"}, "preferredVersion": "2.0",
		"multiAgent": map[string]any{"status": "stable", "since": "2.0", "witness": "claims-check", "executionModel": map[string]any{"version": 2}},
	})
}

// create begins a run, or answers again for one that was begun with the same key.
func (h *owHost) create(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	var asked struct {
		Inputs owPlan `json:"inputs"`
	}
	if json.Unmarshal(body, &asked) != nil || asked.Inputs.Label == "" {
		h.fail(w, 400, "validation_error", nil)
		return
	}
	key, digest := r.Header.Get("Idempotency-Key"), sha256.Sum256(body)
	h.mu.Lock()
	before, again := h.answers[key]
	h.mu.Unlock()
	switch {
	case key != "" && again && before.digest != digest:
		h.fail(w, 409, "idempotency_key_mismatch", nil)
		return
	case key != "" && again:
		w.Header().Set("OpenWOP-Idempotent-Replay", "true")
		h.write(w, 201, before.body)
		return
	}
	run := h.begin(asked.Inputs, r.Header, "")
	answer := h.created(run, map[string]any{})
	if key != "" {
		h.mu.Lock()
		h.answers[key] = owAnswer{digest, answer}
		h.mu.Unlock()
	}
	h.write(w, 201, answer)
	_ = http.NewResponseController(w).Flush()
	go h.work(run) // ends with the run
}

// created renders the answer to who has begun a run.
func (h *owHost) created(run *owRun, more map[string]any) []byte {
	more["runId"], more["status"] = run.id, "pending"
	more["eventsUrl"] = h.path("/runs/" + h.segment(run.id) + "/events")
	b, _ := json.Marshal(more) // always marshals
	return b
}

// begin makes a run that has done nothing yet.
func (h *owHost) begin(p owPlan, header http.Header, source string) *owRun {
	run := &owRun{
		id: "run-" + randomHex(16), minted: header.Get("Run-Id"), owner: header.Get("Authorization"), source: source, plan: p, trace: http.Header{},
		status: "running", changed: make(chan struct{}), done: make(chan struct{}),
	}
	if h.major == 2 {
		run.id = "acme/" + randomHex(16)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, name := range []string{"Traceparent", "Tracestate"} {
		if v := header.Values(name); h.traced && v != nil {
			run.trace[name] = v
		}
	}
	h.runs[run.id] = run
	h.order = append(h.order, run)
	return run
}

func (h *owHost) list(w http.ResponseWriter) {
	h.mu.Lock()
	order := slices.Clone(h.order)
	h.mu.Unlock()
	all := []map[string]any{}
	for _, r := range order {
		all = append(all, r.snapshot())
	}
	h.reply(w, 200, map[string]any{"runs": all})
}

// one serves what is asked of one run.
func (h *owHost) one(w http.ResponseWriter, r *http.Request, rest string) {
	segment, tail, _ := strings.Cut(rest, "/")
	verb := ""
	if i := strings.LastIndexByte(segment, ':'); i >= 0 {
		segment, verb = segment[:i], segment[i:]
	}
	h.mu.Lock()
	run := h.runs[h.unsegment(segment)]
	h.mu.Unlock()
	if h.guard != nil {
		admitted, answered := h.guard.admit(w, r, h, h.unsegment(segment), run)
		if answered {
			return
		}
		run = admitted
	}
	get := r.Method == http.MethodGet && verb == ""
	switch {
	case run == nil:
		h.fail(w, 404, "not_found", nil)
	case r.Method == http.MethodPost && verb == ":fork" && tail == "":
		h.fork(w, r, run)
	case get && tail == "":
		h.reply(w, 200, run.snapshot())
	case get && tail == "events":
		h.events(w, r, run)
	case get && tail == "events/poll":
		h.poll(w, r, run)
	default: // ancestry among them: this host has none
		h.fail(w, 404, "not_found", nil)
	}
}

// fork begins the run again, as a branch: its calls are made once more.
func (h *owHost) fork(w http.ResponseWriter, r *http.Request, source *owRun) {
	var asked struct {
		FromSeq int    `json:"fromSeq"`
		Mode    string `json:"mode"`
	}
	if json.NewDecoder(r.Body).Decode(&asked) != nil || asked.Mode != "branch" {
		h.fail(w, 400, "validation_error", nil)
		return
	}
	p := source.plan
	p.Label += " forked"
	run := h.begin(p, r.Header, source.id)
	h.write(w, 201, h.created(run, map[string]any{"sourceRunId": source.id, "fromSeq": asked.FromSeq, "mode": asked.Mode}))
	_ = http.NewResponseController(w).Flush()
	go h.work(run) // ends with the run
}

// mcp answers a tool call when its run has ended.
func (h *owHost) mcp(w http.ResponseWriter, r *http.Request) {
	var m struct {
		ID     json.RawMessage `json:"id"`
		Method string          `json:"method"`
		Params struct {
			Name      string `json:"name"`
			Arguments owPlan `json:"arguments"`
		} `json:"params"`
	}
	if json.NewDecoder(r.Body).Decode(&m) != nil || m.Method != "tools/call" || m.Params.Name != "run" {
		h.rpc(w, m.ID, "error", map[string]any{"code": -32601, "message": "Method not found"})
		return
	}
	run := h.begin(m.Params.Arguments, r.Header, "")
	h.work(run)
	h.rpc(w, m.ID, "result", map[string]any{
		"content": []any{map[string]any{"type": "text", "text": run.status}}, "isError": run.err != nil,
	})
}

// a2a answers a message when its run, which is its task, has ended: in A2A 0.3
// under v1, and in 1.0 under v2.
func (h *owHost) a2a(w http.ResponseWriter, r *http.Request) {
	var m struct {
		ID     json.RawMessage `json:"id"`
		Method string          `json:"method"`
		Params struct {
			Message struct {
				Parts []struct {
					Text string `json:"text"`
				} `json:"parts"`
			} `json:"message"`
		} `json:"params"`
	}
	var p owPlan
	err := json.NewDecoder(r.Body).Decode(&m)
	if err != nil || len(m.Params.Message.Parts) != 1 || json.Unmarshal([]byte(m.Params.Message.Parts[0].Text), &p) != nil {
		h.rpc(w, m.ID, "error", map[string]any{"code": -32602, "message": "Invalid params"})
		return
	}
	run := h.begin(p, r.Header, "")
	h.work(run)
	state := run.status
	if h.major == 1 {
		h.rpc(w, m.ID, "result", map[string]any{"kind": "task", "id": run.id, "contextId": "c-" + run.id, "status": map[string]any{"state": state}})
		return
	}
	h.rpc(w, m.ID, "result", map[string]any{"task": map[string]any{
		"id": run.id, "contextId": "c-" + run.id, "status": map[string]any{"state": "TASK_STATE_" + strings.ToUpper(state)},
	}})
}

func (h *owHost) rpc(w http.ResponseWriter, id json.RawMessage, key string, v any) {
	h.reply(w, 200, map[string]any{"jsonrpc": "2.0", "id": id, key: v})
}

// work does what a run is for, and ends it.
func (h *owHost) work(run *owRun) {
	run.add("run.started", map[string]any{"workflowId": "calls", "inputs": run.plan}, "")
	called, returned := "agent.toolCalled", "agent.toolReturned"
	if h.major == 2 {
		called, returned = "agent.tool-called", "agent.tool-returned"
	}
	for i, c := range run.plan.Calls {
		if strings.HasPrefix(c.Via, "core.") {
			h.nest(run, c, fmt.Sprint("node-", i))
			continue
		}
		payload := map[string]any{"agentId": "caller", "toolName": "run", "callId": fmt.Sprint("call-", i), "transport": c.Via, "inputs": c.Plan}
		cause := ""
		if i == 0 {
			cause = run.plan.Cause
		}
		cause = run.add(called, payload, cause)
		if i == 0 {
			run.say()
		}
		if i == 0 && !h.ready(run) {
			run.end(errors.New("never opened"))
			return
		}
		run.chunk(`{"text":"asking \u00e9\/"}`)
		err := h.call(run, c, cause)
		run.add(returned, map[string]any{"agentId": "caller", "toolName": "run", "callId": fmt.Sprint("call-", i)}, cause)
		run.add("node.completed", map[string]any{"nodeId": fmt.Sprint("node-", i)}, "")
		if err != nil {
			run.end(err)
			return
		}
	}
	if len(run.plan.Calls) == 0 {
		run.say()
	}
	if len(run.plan.Calls) == 0 && !h.ready(run) {
		run.end(errors.New("never opened"))
		return
	}
	run.end(nil)
}

// nest begins a run inside the host and waits for its end.
func (h *owHost) nest(run *owRun, c owCall, node string) {
	run.add("node.started", map[string]any{"nodeId": node, "typeId": c.Via}, "")
	inner := h.begin(c.Plan, run.trace, "")
	inner.within = true
	outputs := map[string]any{}
	if c.Via == "core.dispatch" {
		run.add("node.dispatched", map[string]any{"childRunId": inner.id, "childWorkflowId": "calls"}, "")
	}
	h.work(inner)
	if c.Via == "core.subWorkflow" {
		outputs["childRunId"], outputs["childStatus"] = inner.id, inner.status
	}
	run.add("node.completed", map[string]any{"nodeId": node, "outputs": outputs}, "")
}

// ready waits for the host to be opened, if the run has to, and reports false if
// it never was.
func (h *owHost) ready(run *owRun) bool {
	if !run.plan.Wait {
		return true
	}
	select {
	case <-h.opened:
		return true
	case <-time.After(patience):
		return false
	}
}

// call begins a run on another host, for what an event of the log tells of, and
// waits for its end.
func (h *owHost) call(run *owRun, c owCall, event string) error {
	args, _ := json.Marshal(c.Plan) // always marshals
	quoted, _ := json.Marshal(string(args))
	major, to, _ := strings.Cut(c.To, " ")
	prefix, send, part := "/v1", `message/send`, `{"kind":"text","text":%s}`
	role := "user"
	if major == "2" {
		prefix, send, part, role = "", "SendMessage", `{"text":%s}`, "ROLE_USER"
	}
	var body string
	switch c.Via {
	case "mcp":
		body = fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"run","arguments":%s}}`, args)
	case "a2a":
		body = fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":%q,"params":{"message":{"role":%q,"messageId":%q,"parts":[`+part+`]}}}`, send, role, event, quoted)
	case "rest":
		prefix, body = prefix+"/runs", fmt.Sprintf(`{"workflowId":"calls","inputs":%s}`, args)
	}
	if c.Via != "rest" {
		prefix += "/" + c.Via
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, to+prefix, strings.NewReader(body))
	if err != nil {
		return err
	}
	req.Header = ownSpan(&http.Request{Header: run.trace})
	req.Header.Set("Content-Type", "application/json")
	if run.within { // it has no context of its own, and the host says which run it is
		req.Header.Set("Run-Id", run.id)
	}
	if major == "2" {
		req.Header.Set("OpenWOP-Version", "2")
		if c.Via == "a2a" {
			req.Header.Set("A2A-Version", "1.0")
		}
	}
	h.mu.Lock()
	client := h.client
	h.mu.Unlock()
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	var rpc struct{ Error json.RawMessage }
	if err := json.Unmarshal(answer, &rpc); err != nil || resp.StatusCode >= 300 || c.Via != "rest" && rpc.Error != nil {
		return fmt.Errorf("%s at %s answered %d %s", c.Via, to, resp.StatusCode, answer)
	}
	return nil
}

// at is how a plan names a host: its major, and where others find it.
func (h *owHost) at() string { return fmt.Sprint(h.major, " ", h.public) }

// add appends an event to the log and returns its id.
func (r *owRun) add(typ string, payload any, cause string) (id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	id, seq := "ev-"+randomHex(16), r.next()
	e := map[string]any{
		"eventId": id, "runId": r.id, "type": typ, "payload": payload, "sequence": seq, "schemaVersion": 1,
		"timestamp": time.Now().UTC().Format(time.RFC3339Nano),
	}
	if cause != "" {
		e["causationId"] = cause
	}
	doc, _ := json.Marshal(e) // always marshals
	r.append(owEntry{seq: seq, typ: typ, doc: doc})
	return id
}

// say adds what the plan wants to be in the log.
func (r *owRun) say() {
	for _, s := range r.plan.Says {
		r.add(s.Type, s.Payload, "")
	}
}

// chunk adds what only the messages mode shows.
func (r *owRun) chunk(doc string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.append(owEntry{seq: r.next() - 1, typ: "ai.message.chunk", doc: []byte(doc), chunk: true})
}

// append is called with r.mu held.
func (r *owRun) append(e owEntry) {
	r.log = append(r.log, e)
	close(r.changed)
	r.changed = make(chan struct{})
}

// next is the sequence of the next event. It is called with r.mu held.
func (r *owRun) next() int {
	n := 0
	for _, e := range r.log {
		if !e.chunk {
			n++
		}
	}
	return n
}

// end writes the terminal event.
func (r *owRun) end(err error) {
	typ, status, payload := "run.completed", "completed", map[string]any{}
	if err != nil {
		typ, status = "run.failed", "failed"
		payload["error"] = map[string]any{"code": "call_failed", "message": err.Error()}
	}
	r.mu.Lock()
	r.status, r.err = status, err
	r.mu.Unlock()
	r.add(typ, payload, "")
	close(r.done)
}

// await returns when the run has ended, with what it has failed by.
func (r *owRun) await(t testing.TB) error {
	t.Helper()
	select {
	case <-r.done:
	case <-time.After(patience):
		t.Fatalf("run %s has not ended", r.id)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

func (r *owRun) snapshot() map[string]any {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := map[string]any{"runId": r.id, "workflowId": "calls", "status": r.status}
	if r.source != "" {
		s["parentRunId"] = r.source
	}
	return s
}

// after returns the entries behind a sequence, whether the run has ended, and
// what tells of more. Chunks come with the event that they follow.
func (r *owRun) after(seq int) (found []owEntry, ended bool, changed <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.log {
		if e.seq > seq {
			found = append(found, e)
		}
	}
	if len(r.log) > 0 {
		last := r.log[len(r.log)-1].typ
		ended = last == "run.completed" || last == "run.failed"
	}
	return found, ended, r.changed
}

// events serves a run's log: as a stream, in the modes that are asked for, or as
// a list.
func (h *owHost) events(w http.ResponseWriter, r *http.Request, run *owRun) {
	asked := cmp.Or(r.URL.Query().Get("streamMode"), "updates")
	modes := strings.Split(asked, ",")
	known := []string{"values", "updates", "messages", "debug"}
	for _, m := range modes {
		if !slices.Contains(known, m) || m == "values" && len(modes) > 1 {
			h.fail(w, 400, "unsupported_stream_mode", map[string]any{"supported": known})
			return
		}
	}
	if strings.Contains(r.Header.Get("Accept"), "application/json") {
		_, ended, _ := run.after(-1)
		h.events1(w, run, -1, ended)
		return
	}
	last, err := strconv.Atoi(r.Header.Get("Last-Event-ID"))
	if err != nil {
		last = -1
	}
	buffer, _ := strconv.Atoi(r.URL.Query().Get("bufferMs"))
	w.Header().Set("Content-Type", "text/event-stream")
	w.WriteHeader(200)
	fmt.Fprint(w, ": the log of a run\nretry: 1000\n\n")
	for {
		entries, ended, changed := run.after(last)
		if len(entries) > 0 && buffer > 0 && !ended {
			select {
			case <-time.After(time.Duration(buffer) * time.Millisecond):
			case <-run.done:
			}
			entries, ended, changed = run.after(last)
		}
		if len(entries) > 0 {
			last = entries[len(entries)-1].seq
		}
		h.frames(w, run, entries, modes, buffer > 0)
		_ = http.NewResponseController(w).Flush()
		if ended {
			return
		}
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
	}
}

// frames writes what the modes show of some entries.
func (h *owHost) frames(w io.Writer, run *owRun, entries []owEntry, modes []string, batch bool) {
	var together [][]byte
	last := 0
	for _, e := range entries {
		mode := admits(modes, e)
		switch {
		case mode == "":
		case mode == "values":
			snapshot, _ := json.Marshal(run.snapshot()) // always marshals
			fmt.Fprintf(w, "id: %d\nevent: state.snapshot\ndata: %s\n\n", e.seq, snapshot)
		case e.chunk:
			fmt.Fprintf(w, "event: ai.message.chunk\ndata: %s\n\n", e.doc)
		case batch:
			together, last = append(together, e.doc), e.seq
		case len(modes) > 1:
			fmt.Fprintf(w, "id: %d\nevent: %s\ndata: %s\n\n", e.seq, mode, e.doc)
		default:
			fmt.Fprintf(w, "id: %d\nevent: %s\ndata: %s\n\n", e.seq, e.typ, e.doc)
		}
	}
	if len(together) > 0 {
		fmt.Fprintf(w, "event: batch\nid: %d\ndata: [%s]\n\n", last, bytes.Join(together, []byte(",")))
	}
}

// admits returns the first of some modes that shows an entry, or nothing.
func admits(modes []string, e owEntry) string {
	for _, m := range modes {
		switch {
		case m == "messages" && e.chunk,
			m == "debug" && !e.chunk,
			m == "updates" && !e.chunk && !strings.HasPrefix(e.typ, "agent."),
			m == "values" && strings.HasPrefix(e.typ, "run."):
			return m
		}
	}
	return ""
}

// poll answers at once, with what is behind a cursor.
func (h *owHost) poll(w http.ResponseWriter, r *http.Request, run *owRun) {
	cursor := "lastSequence"
	if h.major == 2 {
		cursor = "afterSequence"
	}
	after, err := strconv.Atoi(r.URL.Query().Get(cursor))
	if err != nil {
		after = -1
	}
	_, ended, _ := run.after(after)
	if h.major == 1 {
		h.events1(w, run, after, ended)
		return
	}
	docs, last := run.docs(after)
	h.reply(w, 200, map[string]any{"runId": run.id, "events": docs, "lastSequence": last, "status": run.snapshot()["status"], "isTerminal": ended})
}

// events1 is how v1 lists events.
func (h *owHost) events1(w http.ResponseWriter, run *owRun, after int, ended bool) {
	docs, _ := run.docs(after)
	h.reply(w, 200, map[string]any{"events": docs, "isComplete": ended})
}

// docs returns the events behind a sequence, and the last one's sequence or -1.
func (r *owRun) docs(after int) (docs []json.RawMessage, last int) {
	docs, last = []json.RawMessage{}, -1
	entries, _, _ := r.after(after)
	for _, e := range entries {
		if !e.chunk {
			docs, last = append(docs, e.doc), e.seq
		}
	}
	return docs, last
}

// fail answers with the error envelope, which both majors share.
func (h *owHost) fail(w http.ResponseWriter, status int, code string, details map[string]any) {
	e := map[string]any{"error": code, "message": strings.ReplaceAll(code, "_", " ")}
	if details != nil {
		e["details"] = details
	}
	h.reply(w, status, e)
}

func (h *owHost) reply(w http.ResponseWriter, status int, v any) {
	b, _ := json.Marshal(v) // always marshals
	h.write(w, status, b)
}

func (h *owHost) write(w http.ResponseWriter, status int, body []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body)
}
