package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"
)

// owSchemas is where OpenWOP's published schemas are, if they are here.
const owSchemas = "../../../shared/contracts/data/openwop"

// validate holds a document against one of OpenWOP's schemas, "v1/name", where
// they are at hand.
func validate(t testing.TB, name string, body []byte) {
	t.Helper()
	if _, err := os.Stat(owSchemas); err != nil {
		return // TestOpenWOPSchemas says so
	}
	load := func(id *url.URL) (*jsonschema.Schema, error) {
		b, err := os.ReadFile(filepath.Join(owSchemas, strings.TrimPrefix(id.Path, "/spec/")))
		if err != nil {
			return nil, err
		}
		s := new(jsonschema.Schema)
		return s, json.Unmarshal(b, s)
	}
	id := &url.URL{Scheme: "https", Host: "openwop.dev", Path: "/spec/" + name + ".json"}
	s, err := load(id)
	if err != nil {
		t.Fatal(err)
	}
	r, err := s.Resolve(&jsonschema.ResolveOptions{BaseURI: id.String(), Loader: load})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Validate(decode[any](t, body)); err != nil {
		t.Errorf("%s: %s: %v", name, body, err)
	}
}

// begun begins a run over REST, as who sends header, and returns it.
func (h *owHost) begun(t testing.TB, p owPlan, header http.Header) *owRun {
	t.Helper()
	resp, body := h.post(t, "/runs", map[string]any{"workflowId": "calls", "inputs": p}, header)
	if resp.StatusCode != http.StatusCreated {
		t.Fatalf("%s: create: %d %s", h.hostID, resp.StatusCode, body)
	}
	id := decode[struct{ RunID string }](t, body).RunID
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.runs[id]
}

// post sends a request of the host's own API through its wopproxy.
func (h *owHost) post(t testing.TB, path string, v any, header http.Header) (*http.Response, []byte) {
	t.Helper()
	body, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, h.public+h.path(path), strings.NewReader(string(body)))
	if err != nil {
		t.Fatal(err)
	}
	req.Header = header.Clone()
	if req.Header == nil {
		req.Header = http.Header{}
	}
	req.Header.Set("Content-Type", "application/json")
	return answerTo(t, req)
}

// ancestry asks a host who caused a run, under each spelling of the id that the
// host's major has, and returns the parent or the zero ancestor. Answers are held
// against the schema of the contract that they name.
func (h *owHost) ancestry(t testing.TB, run string) ancestor {
	t.Helper()
	segments := []string{h.segment(run)}
	if h.major == 2 {
		segments = append(segments, url.PathEscape(run), strings.ToLower(h.segment(run)))
	}
	var first string
	for i, segment := range segments {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, h.public+h.path("/runs/")+segment+"/ancestry", nil)
		if err != nil {
			t.Fatal(err)
		}
		if h.major == 2 {
			req.Header.Set("OpenWOP-Version", "2")
		}
		if i == 2 && segment != strings.Replace(segments[0], "~2F", "~2f", 1) {
			continue // an id with capitals of its own is not the same in small letters
		}
		resp, body := answerTo(t, req)
		if resp.StatusCode != http.StatusOK {
			t.Fatalf("%s: ancestry of %s: %d %s", h.hostID, segment, resp.StatusCode, body)
		}
		name := "v1/run-ancestry-response.schema"
		if strings.HasPrefix(resp.Header.Get("OpenWOP-Version"), "2") {
			name = "v2/run-ancestry-response.schema"
		}
		validate(t, name, body)
		if first == "" {
			first = string(body)
		}
		if string(body) != first {
			t.Errorf("ancestry of %s = %s, want %s as for %s", segment, body, first, segments[0])
		}
	}
	answer := decode[struct {
		RunID, HostID string
		Parent        *ancestor
	}](t, []byte(first))
	if answer.RunID != run || answer.HostID != h.hostID {
		t.Errorf("ancestry of %s = %s, want that run on %s", run, first, h.hostID)
	}
	if answer.Parent == nil {
		return ancestor{}
	}
	return *answer.Parent
}

// as is a run of this host as a parent that another one names.
func (h *owHost) as(run, cause string) ancestor {
	return ancestor{RunID: run, HostID: h.hostID, WellKnownURL: h.public + "/.well-known/openwop", Cause: cause}
}

// parentOf returns who is said to have caused the run with a label, and the run.
// A plain MCP answer names no run, so that the proxy knows it by the minted id.
func (h *owHost) parentOf(t testing.TB, label, via string) (ancestor, *owRun) {
	t.Helper()
	run := h.called(label)
	if run == nil {
		t.Fatalf("%s has no run %q", h.hostID, label)
	}
	id := run.id
	if via == "mcp" {
		id = run.minted
	}
	return h.ancestry(t, id), run
}

// owPairs are the majors of a caller and its callee.
var owPairs = [][2]int{{1, 1}, {1, 2}, {2, 1}, {2, 2}}

// TestOpenWOPSchemas says whether answers are held against the schemas.
func TestOpenWOPSchemas(t *testing.T) {
	if _, err := os.Stat(owSchemas); err != nil {
		t.Skip("no OpenWOP schemas beside the checkout")
	}
	h := newOWHost(t, "host.example.com", 1, "127.0.0.2", settings{"ingress.discovery.causation": "claim"})
	_, v1 := get(t, h.public+"/.well-known/openwop")
	validate(t, "v1/capabilities.schema", v1)
	_, missing := get(t, h.public+"/v1/runs/nobody/ancestry")
	validate(t, "v1/error-envelope.schema", missing)

	two := newOWHost(t, "two.example.com", 2, "127.0.0.3", settings{"ingress.discovery.causation": "claim"})
	_, v2 := get(t, two.public+"/.well-known/openwop")
	block := decode[struct{ MultiAgent json.RawMessage }](t, v2).MultiAgent
	validate(t, "v2/multiAgent-facet.fragment", block)
	for doc, want := range map[string]string{string(v1): "host.example.com", string(block): "two.example.com"} {
		if !strings.Contains(doc, `"hostId":"`+want+`"`) || !strings.Contains(doc, `"version":3`) {
			t.Errorf("discovery = %s, want level 3 of %s", doc, want)
		}
	}
}

// TestOpenWOPParentElsewhere pins what the public suite does not ask for: a
// parent on another host, in both majors and over both protocols, by the id that
// its own host has for it.
func TestOpenWOPParentElsewhere(t *testing.T) {
	for _, majors := range owPairs {
		t.Run(fmt.Sprintf("from v%d to v%d", majors[0], majors[1]), func(t *testing.T) {
			t.Parallel()
			planner := newOWHost(t, "planner.example.com", majors[0], "127.0.0.2")
			worker := newOWHost(t, "worker.example.com", majors[1], "127.0.0.3")
			run := planner.begun(t, owPlan{Label: "root", Wait: true, Calls: []owCall{
				{Via: "a2a", To: worker.at(), Plan: owPlan{Label: "by a2a"}},
				{Via: "mcp", To: worker.at(), Plan: owPlan{Label: "by mcp"}},
			}}, nil)
			planner.open()
			if err := run.await(t); err != nil {
				t.Fatal(err)
			}
			for via, cause := range map[string]string{"a2a": "a2a-message", "mcp": "mcp-tool-call"} {
				got, child := worker.parentOf(t, "by "+via, via)
				if want := planner.as(run.id, cause); got != want {
					t.Errorf("parent of %s = %+v, want %+v", child.id, got, want)
				}
				if trace := traceOf(child.trace.Get("Traceparent")); trace == "" || trace != traceOf(run.trace.Get("Traceparent")) {
					t.Errorf("trace of the run by %s = %q, want that of its parent, %q", via, trace, traceOf(run.trace.Get("Traceparent")))
				}
			}
			if got := planner.ancestry(t, run.id); got != (ancestor{}) {
				t.Errorf("parent of the run that nobody caused = %+v, want none", got)
			}
		})
	}
}

// TestOpenWOPTogether lets many runs of two hosts call each other at once. None
// gets a wrong parent, whether the hosts send on their trace or not, and where
// they do each gets one.
func TestOpenWOPTogether(t *testing.T) {
	const runs = 50 // on each host
	for _, traced := range []bool{true, false} {
		t.Run(fmt.Sprintf("traced %v", traced), func(t *testing.T) {
			hosts := []*owHost{newOWHost(t, "one.example.com", 1, "127.0.0.2"), newOWHost(t, "two.example.com", 2, "127.0.0.3")}
			via := func(i int) string { return []string{"a2a", "mcp"}[i%2] }
			causes := map[string]string{"a2a": "a2a-message", "mcp": "mcp-tool-call"}
			var begun [2][runs]*owRun
			for n, h := range hosts {
				h.mu.Lock()
				h.traced = traced
				h.mu.Unlock()
				other := hosts[1-n]
				for i := range runs {
					label := fmt.Sprint(h.hostID, " ", i)
					begun[n][i] = h.begun(t, owPlan{Label: label, Wait: true, Calls: []owCall{
						{Via: via(i), To: other.at(), Plan: owPlan{Label: "of " + label}},
					}}, nil)
				}
			}
			for _, h := range hosts {
				h.open()
			}
			right, wrong := 0, 0
			for n, h := range hosts {
				for i, run := range begun[n] {
					if err := run.await(t); err != nil {
						t.Fatal(err)
					}
					got, child := hosts[1-n].parentOf(t, "of "+run.plan.Label, via(i))
					switch got {
					case h.as(run.id, causes[via(i)]):
						right++
					case ancestor{}:
					default:
						wrong++
						t.Errorf("parent of %s = %+v, want %s or none", child.id, got, run.id)
					}
				}
			}
			t.Logf("right %d, wrong %d, unknown %d", right, wrong, 2*runs-right-wrong)
			if traced && right != 2*runs {
				t.Errorf("right parents = %d, want all %d", right, 2*runs)
			}
		})
	}
}

// TestOpenWOPRestart stops and starts either proxy while a run waits.
func TestOpenWOPRestart(t *testing.T) {
	planner := newOWHost(t, "planner.example.com", 1, "127.0.0.2")
	worker := newOWHost(t, "worker.example.com", 2, "127.0.0.3")
	earlier := planner.begun(t, owPlan{Label: "earlier", Calls: []owCall{{Via: "a2a", To: worker.at(), Plan: owPlan{Label: "before"}}}}, nil)
	if err := earlier.await(t); err != nil {
		t.Fatal(err)
	}
	before, _ := worker.parentOf(t, "before", "a2a")
	run := planner.begun(t, owPlan{Label: "root", Wait: true, Calls: []owCall{
		{Via: "a2a", To: worker.at(), Plan: owPlan{Label: "by a2a"}},
		{Via: "mcp", To: worker.at(), Plan: owPlan{Label: "by mcp"}},
	}}, nil)
	planner.restart(t)
	worker.restart(t)
	planner.open()
	if err := run.await(t); err != nil {
		t.Fatal(err)
	}
	for via, cause := range map[string]string{"a2a": "a2a-message", "mcp": "mcp-tool-call"} {
		got, child := worker.parentOf(t, "by "+via, via)
		if want := planner.as(run.id, cause); got != want {
			t.Errorf("parent of %s = %+v, want %+v", child.id, got, want)
		}
	}
	if got, _ := worker.parentOf(t, "before", "a2a"); got != before || got.HostID != "planner.example.com" {
		t.Errorf("parent after the restart = %+v, before it %+v", got, before)
	}
}

// TestOpenWOPForksAndReplays: a fork has no parent, whoever asks for it, and who
// repeats a request does not become the parent of its run.
func TestOpenWOPForksAndReplays(t *testing.T) {
	claim := func(run string) http.Header {
		return http.Header{"Run-Ancestry": {fmt.Sprintf(`%q;host="caller.example.com";wk="https://caller.example.com/.well-known/openwop";cause=a2a-message`, run)}}
	}
	for _, major := range []int{1, 2} {
		t.Run(fmt.Sprint("v", major), func(t *testing.T) {
			t.Parallel()
			h := newOWHost(t, "host.example.com", major, "127.0.0.2")
			first := claim("acme/first-0000000000000")
			first.Set("Idempotency-Key", "0123456789012345678901")
			run := h.begun(t, owPlan{Label: "root"}, first)
			again := claim("acme/second-000000000000")
			again.Set("Idempotency-Key", "0123456789012345678901")
			resp, body := h.post(t, "/runs", map[string]any{"workflowId": "calls", "inputs": owPlan{Label: "root"}}, again)
			if resp.Header.Get("OpenWOP-Idempotent-Replay") != "true" || !strings.Contains(string(body), run.id) {
				t.Fatalf("the replay = %v %s, want %s again", resp.Header, body, run.id)
			}
			want := ancestor{RunID: "acme/first-0000000000000", HostID: "caller.example.com", WellKnownURL: "https://caller.example.com/.well-known/openwop", Cause: "a2a-message"}
			if got := h.ancestry(t, run.id); got != want {
				t.Errorf("parent after a replay = %+v, want the first, %+v", got, want)
			}
			resp, body = h.post(t, "/runs/"+h.segment(run.id)+":fork", map[string]any{"fromSeq": 0, "mode": "branch"}, claim("acme/forker-000000000000"))
			fork := decode[struct{ RunID, SourceRunID string }](t, body)
			if resp.StatusCode != http.StatusCreated || fork.SourceRunID != run.id {
				t.Fatalf("fork = %d %s", resp.StatusCode, body)
			}
			if got := h.ancestry(t, fork.RunID); got != (ancestor{}) {
				t.Errorf("parent of a fork = %+v, want none", got)
			}
			resp, body = h.post(t, "/runs", map[string]any{"workflowId": "calls", "inputs": owPlan{Label: "other"}}, again)
			if resp.StatusCode != http.StatusConflict {
				t.Errorf("another request under the key = %d %s, want the host's 409", resp.StatusCode, body)
			}
		})
	}
}

// rendering is one way to read the log of a run.
type rendering struct {
	path, accept, last string
	shows              string // something that must be in it
}

// renderings are all the ways that the host has.
func (h *owHost) renderings(run *owRun) []rendering {
	events := h.path("/runs/" + h.segment(run.id) + "/events")
	return []rendering{
		{path: events, shows: "event: run.completed"},
		{path: events + "?streamMode=debug", shows: "event: agent.tool"},
		{path: events + "?streamMode=debug", last: "0", shows: `"sequence":1`},
		{path: events + "?streamMode=messages", shows: "event: ai.message.chunk"},
		{path: events + "?streamMode=values", shows: "event: state.snapshot"},
		{path: events + "?streamMode=updates,messages", shows: "event: updates"},
		{path: events + "?streamMode=updates,debug,messages", shows: "event: debug"},
		{path: events + "?streamMode=debug&bufferMs=100", shows: "event: batch"},
		{path: events + "?streamMode=nonsense", shows: "unsupported_stream_mode"},
		{path: events, accept: "application/json", shows: `"isComplete":true`},
		{path: events + "/poll?afterSequence=0&lastSequence=0&timeout=1", shows: `"events":[{`},
		{path: events + "/poll?afterSequence=99&lastSequence=99&timeout=1", shows: `"events":[]`},
		{path: h.path("/runs"), shows: run.id},
		{path: h.path("/runs/" + h.segment(run.id)), shows: `"completed"`},
	}
}

// read is what a rendering looks like, its headers included, at the host or
// through its proxy.
func (r rendering) read(t testing.TB, base string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, base+r.path, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, v := range map[string]string{"Accept": r.accept, "Last-Event-ID": r.last} {
		if v != "" {
			req.Header.Set(name, v)
		}
	}
	resp, body := answerTo(t, req)
	return fmt.Sprintf("%d %s %s\n%s", resp.StatusCode, resp.Header.Get("Content-Type"), resp.Header.Get("OpenWOP-Version"), body)
}

// TestOpenWOPRenderings reads a log in each way there is, from the host and
// through its proxy: the bytes are the same.
func TestOpenWOPRenderings(t *testing.T) {
	callee := newOWHost(t, "callee.example.com", 2, "127.0.0.3")
	for _, major := range []int{1, 2} {
		h := newOWHost(t, "host.example.com", major, "127.0.0.2")
		run := h.begun(t, owPlan{Label: "root", Calls: []owCall{
			{Via: "a2a", To: callee.at(), Plan: owPlan{Label: fmt.Sprint("child ", major)}},
			{Via: "mcp", To: callee.at(), Plan: owPlan{Label: fmt.Sprint("call ", major)}},
		}}, nil)
		if err := run.await(t); err != nil {
			t.Fatal(err)
		}
		for _, r := range h.renderings(run) {
			direct := r.read(t, h.base)
			if !strings.Contains(direct, r.shows) {
				t.Errorf("v%d: %s at the host = %s, want %s in it", major, r.path, direct, r.shows)
			}
			if through := r.read(t, h.ingress); through != direct {
				t.Errorf("v%d: %s (%s) through the proxy =\n%s\nwant what the host sends:\n%s", major, r.path, r.accept, through, direct)
			}
		}
	}
}

// TestOpenWOPCausation: of a run that an event on another host is said to have
// caused, the one event that names it gets the other host's id, in each way there
// is to read it, and no other byte changes.
func TestOpenWOPCausation(t *testing.T) {
	callee := newOWHost(t, "callee.example.com", 2, "127.0.0.3")
	for _, major := range []int{1, 2} {
		h := newOWHost(t, "host.example.com", major, "127.0.0.2", settings{"ingress.discovery.causation": "claim"})
		event := "ev-" + randomHex(16)
		ancestry := forgedAncestry("acme/0123456789abcdef", "parent.example.com", "https://parent.example.com/.well-known/openwop")
		ancestry["Run-Ancestry"][0] += fmt.Sprintf(";ev=%q", event)
		run := h.begun(t, owPlan{Label: "root", Cause: event, Calls: []owCall{
			{Via: "a2a", To: callee.at(), Plan: owPlan{Label: fmt.Sprint("child ", major)}},
		}}, ancestry)
		if err := run.await(t); err != nil {
			t.Fatal(err)
		}
		annotated := 0
		for _, r := range h.renderings(run) {
			direct := r.read(t, h.base)
			before, after, found := strings.Cut(direct, `"causationId":"`+event+`"`)
			want := direct
			if found {
				annotated++
				want = before + `"causationId":"` + event + `"` + strings.Replace(after, `"payload":{`, `"payload":{"causationHostId":"parent.example.com",`, 1)
			}
			if through := r.read(t, h.ingress); through != want {
				t.Errorf("v%d: %s (%s) through the proxy =\n%s\nwant:\n%s", major, r.path, r.accept, through, want)
			}
		}
		if annotated != 6 {
			t.Errorf("v%d: %d renderings show the event, want 6", major, annotated)
		}
	}
}

// TestOpenWOPStreamIsNotHeld reads an event while its run goes on.
func TestOpenWOPStreamIsNotHeld(t *testing.T) {
	h := newOWHost(t, "host.example.com", 1, "127.0.0.2")
	run := h.begun(t, owPlan{Label: "root", Wait: true}, nil)
	resp, err := direct.Get(h.ingress + "/v1/runs/" + run.id + "/events")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	readUntil(t, resp.Body, "event: run.started")
	h.open()
	rest, err := io.ReadAll(resp.Body)
	if err != nil || !strings.Contains(string(rest), "event: run.completed") {
		t.Errorf("the rest of the stream = %q, %v", rest, err)
	}
}

// readUntil reads a stream until it has shown some text, and returns all of it.
func readUntil(t testing.TB, r io.Reader, text string) (seen string) {
	t.Helper()
	for buf := make([]byte, 4096); !strings.Contains(seen, text); {
		n, err := r.Read(buf)
		if seen += string(buf[:n]); err != nil && !strings.Contains(seen, text) {
			t.Fatalf("the stream has ended with %q: %v", seen, err)
		}
	}
	return seen
}

// TestOpenWOPCausingEvent: while somebody reads the log of a run, the event of its
// tool call goes with the call to the other host's proxy, and that of an A2A message
// whose id says which it is.
func TestOpenWOPCausingEvent(t *testing.T) {
	for i := range 2 * len(owPairs) {
		majors, via := owPairs[i/2], []string{"mcp", "a2a"}[i%2]
		t.Run(fmt.Sprintf("from v%d to v%d by %s", majors[0], majors[1], via), func(t *testing.T) {
			t.Parallel()
			planner := newOWHost(t, "planner.example.com", majors[0], "127.0.0.2")
			worker := newOWHost(t, "worker.example.com", majors[1], "127.0.0.3")
			run := planner.begun(t, owPlan{Label: "root", Wait: true, Calls: []owCall{{Via: via, To: worker.at(), Plan: owPlan{Label: "child"}}}}, nil)
			resp, err := direct.Get(planner.ingress + planner.path("/runs/"+planner.segment(run.id)+"/events?streamMode=debug"))
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			readUntil(t, resp.Body, `"callId":"call-0"`)
			planner.open()
			if err := run.await(t); err != nil {
				t.Fatal(err)
			}
			entries, _, _ := run.after(0)
			event := decode[struct{ EventID, Type string }](t, entries[0].doc)
			code, body := get(t, worker.admin+"/ancestry/v1/runs/"+worker.called("child").minted)
			if code != http.StatusOK || !strings.HasPrefix(event.Type, "agent.tool") || !strings.Contains(string(body), `"`+event.EventID+`"`) {
				t.Errorf("what is recorded of the child = %d %s, want the event %+v in it", code, body, event)
			}
		})
	}
}

// TestOpenWOPSubRuns: while somebody reads the log of a run, the runs that it
// begins inside the host get it for their parent, and what they call on other
// hosts has both above it.
func TestOpenWOPSubRuns(t *testing.T) {
	for _, majors := range owPairs {
		t.Run(fmt.Sprintf("from v%d to v%d", majors[0], majors[1]), func(t *testing.T) {
			t.Parallel()
			planner := newOWHost(t, "planner.example.com", majors[0], "127.0.0.2")
			worker := newOWHost(t, "worker.example.com", majors[1], "127.0.0.3")
			run := planner.begun(t, owPlan{Label: "root", Calls: []owCall{
				{Via: "core.dispatch", Plan: owPlan{Label: "dispatched", Wait: true, Calls: []owCall{{Via: "a2a", To: worker.at(), Plan: owPlan{Label: "leaf"}}}}},
				{Via: "core.subWorkflow", Plan: owPlan{Label: "nested"}},
			}}, nil)
			resp, err := direct.Get(planner.ingress + planner.path("/runs/"+planner.segment(run.id)+"/events"))
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			readUntil(t, resp.Body, `"node.dispatched"`)
			planner.open()
			if _, err := io.ReadAll(resp.Body); err != nil {
				t.Fatal(err)
			}
			if err := run.await(t); err != nil {
				t.Fatal(err)
			}
			for label, cause := range map[string]string{"dispatched": "core.dispatch", "nested": "core.subWorkflow"} {
				want := ancestor{RunID: run.id, HostID: "planner.example.com", Cause: cause}
				if got := planner.ancestry(t, planner.called(label).id); got != want {
					t.Errorf("the parent of %s = %+v, want %+v", label, got, want)
				}
			}
			dispatched := planner.called("dispatched").id
			if got := worker.ancestry(t, worker.called("leaf").id); got.RunID != dispatched || got.Cause != "a2a-message" {
				t.Errorf("the parent of the leaf = %+v, want %s", got, dispatched)
			}
			code, body := get(t, worker.admin+"/ancestry/v1/runs/"+worker.called("leaf").minted)
			if code != http.StatusOK || !strings.Contains(string(body), `"`+run.id+`"`) || !strings.Contains(string(body), `"core.dispatch"`) {
				t.Errorf("what is recorded of the leaf = %d %s, want the root above its parent", code, body)
			}
		})
	}
}
