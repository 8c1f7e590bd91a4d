package audit

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
)

var update = flag.Bool("update", false, "write what the rules find into testdata")

// TestRules runs the logs in testdata. Each file says on top which rule it
// shows; its events have an eventId, a runId and a sequence of their own only
// where that matters.
func TestRules(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no logs: %v", err)
	}
	shown := map[Rule]bool{RuleMemoryExpiry: true, RuleForkRefusal: true} // have tests of their own
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			a, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			model, want := UnknownModel, &a.Files[len(a.Files)-1]
			var events []Event
			for _, f := range a.Files {
				switch f.Name {
				case "model":
					if err := json.Unmarshal(f.Data, &model); err != nil {
						t.Fatal(err)
					}
				case "log":
					events = parseLog(t, string(f.Data))
				}
			}
			var got strings.Builder
			for _, f := range Check(events, model) {
				shown[f.Rule] = true
				fmt.Fprintln(&got, f)
			}
			if *update {
				want.Data = []byte(got.String())
				if err := os.WriteFile(file, txtar.Format(a), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if diff := cmp.Diff(string(want.Data), got.String()); diff != "" {
				t.Errorf("findings (-want +got):\n%s", diff)
			}
		})
	}
	for _, rule := range Rules() {
		if !shown[rule] {
			t.Errorf("no log in testdata breaks the rule %s", rule)
		}
	}
}

// parseLog fills in what the logs of testdata leave out.
func parseLog(t *testing.T, text string) []Event {
	t.Helper()
	var events []Event
	for i, line := range strings.Split(strings.TrimSpace(text), "\n") {
		doc := map[string]any{"eventId": fmt.Sprint("e", i), "runId": "r1", "sequence": i}
		if err := json.Unmarshal([]byte(line), &doc); err != nil {
			t.Fatalf("line %d: %v", i, err)
		}
		b, err := json.Marshal(doc)
		if err != nil {
			t.Fatal(err)
		}
		e, err := ParseEvent(b)
		if err != nil {
			t.Fatalf("line %d: %v", i, err)
		}
		events = append(events, e)
	}
	return events
}

// A stream that is resumed repeats nothing, and one that repeats events all the
// same breaks no rule.
func TestRepeatedEvents(t *testing.T) {
	events := parseLog(t, `{"type":"runOrchestrator.decided","payload":{"agentId":"a","decision":{"kind":"next-worker","nextWorkerIds":["w"]}}}
{"type":"core.workflowChain.event","causationId":"e0","payload":{"phase":"dispatch.began","workerId":"w","parentRunId":"r1"}}
{"type":"core.workflowChain.event","causationId":"e1","payload":{"phase":"dispatch.failed","workerId":"w","parentRunId":"r1"}}
{"type":"run.completed","payload":{}}`)
	if found := Check(slices.Concat(events, events), UnknownModel); len(found) > 0 {
		t.Errorf("Check = %v, want nothing", found)
	}
}

// Held is what the guard on dispatches asks.
func TestHeld(t *testing.T) {
	events := parseLog(t, `{"type":"runOrchestrator.decided","payload":{"agentId":"a","decision":{"kind":"next-worker","nextWorkerIds":["w"],"confidence":0.3}}}
{"type":"core.workflowChain.confidence-escalated","causationId":"e0","payload":{"confidence":0.3,"floor":0.5,"escalationKind":"clarify","parentRunId":"r1"}}
{"type":"interrupt.requested","payload":{"kind":"clarification"}}
{"type":"interrupt.resolved","payload":{}}
{"type":"runOrchestrator.decided","payload":{"agentId":"a","decision":{"kind":"ask-user","confidence":0.1}}}`)
	r := NewRun("r1", UnknownModel)
	if r.Held() {
		t.Error("Held before any decision")
	}
	for i, want := range []bool{true, true, true, false, false} {
		if found := r.Event(events[i]); len(found) > 0 {
			t.Errorf("event %d: %v", i, found)
		}
		if r.Held() != want {
			t.Errorf("after event %d Held = %v, want %v", i, !want, want)
		}
	}
}

// An entry expires by when the child wrote it (RFC 0039 B).
func TestMemory(t *testing.T) {
	began := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	wrote := began.Add(10 * time.Minute)
	w, ok := ParseWrite(Event{ID: "e0", Run: "r1", Type: "memory.written", Sequence: 3, Time: wrote, Payload: json.RawMessage(`{"memoryRef":"m","memoryId":"m1"}`)})
	if !ok {
		t.Fatal("memory.written is not read")
	}
	for _, tt := range []struct {
		name  string
		entry Entry
		want  int
	}{
		{"by the write", Entry{"m", "m1", wrote, wrote.Add(time.Hour)}, 0},
		{"clocks that differ a little", Entry{"m", "m1", wrote.Add(-clockSlack), wrote.Add(time.Hour)}, 0},
		{"created before it was written", Entry{"m", "m1", began, began.Add(time.Hour)}, 1},
		{"over before it began", Entry{"m", "m1", wrote, began.Add(time.Minute)}, 1},
		{"of unknown life", Entry{"m", "m1", wrote, began.Add(time.Hour)}, 0},
		{"of unknown age", Entry{"m", "m1", time.Time{}, wrote.Add(time.Hour)}, 0},
		{"without expiry", Entry{"m", "m1", began, time.Time{}}, 0},
		{"another entry", Entry{"m", "m2", began, began}, 0},
		{"another scope", Entry{"n", "m1", began, began}, 0},
	} {
		found := w.Check(tt.entry)
		if len(found) != tt.want {
			t.Errorf("%s: Check = %v, want %d findings", tt.name, found, tt.want)
		}
		for _, f := range found {
			if f.Rule != RuleMemoryExpiry || f.Run != "r1" || f.Event != "e0" || f.Sequence != 3 {
				t.Errorf("%s: finding = %+v, want one of event e0", tt.name, f)
			}
		}
	}
	for _, e := range []Event{
		{Type: "memory.written", Time: wrote, Payload: json.RawMessage(`{"memoryRef":"m"}`)},
		{Type: "memory.written", Time: wrote, Payload: json.RawMessage(`[]`)},
		{Type: "memory.written", Payload: json.RawMessage(`{"memoryRef":"m","memoryId":"m1"}`)},
		{Type: "memory.compacted", Time: wrote, Payload: json.RawMessage(`{"memoryRef":"m","memoryId":"m1"}`)},
	} {
		if w, ok := ParseWrite(e); ok {
			t.Errorf("ParseWrite(%+v) = %+v, want nothing", e, w)
		}
	}
}

func TestParseEntries(t *testing.T) {
	at := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	for doc, want := range map[string][]Entry{
		`{"memoryRef":"m","entry":{"id":"a","content":"x","createdAt":"2026-01-01T12:00:00Z"}}`:                                         {{"m", "a", at, time.Time{}}},
		`{"memoryRef":"m","entries":[{"id":"a","createdAt":"2026-01-01T12:00:00.000Z","expiresAt":"2026-01-01T12:00:00Z"},{"id":"b"}]}`: {{"m", "a", at, at}, {"m", "b", time.Time{}, time.Time{}}},
		`{"memoryRef":"m","entries":[{"id":"a","createdAt":"yesterday"},[],{"id":7},{"content":"x"},null]}`:                             nil,
		`{"entries":[{"id":"a"}]}`:                        nil,
		`{"id":"a","createdAt":"2026-01-01T12:00:00Z"}`:   nil,
		`{"memoryRef":"m","memoryId":"a","removed":true}`: nil,
		`{"memoryRef":"m","entry":null}`:                  nil,
		`no JSON`:                                         nil,
	} {
		if got := ParseEntries([]byte(doc)); !slices.Equal(got, want) {
			t.Errorf("ParseEntries(%s) = %v, want %v", doc, got, want)
		}
	}
}

func TestForkRefusal(t *testing.T) {
	for _, tt := range []struct {
		major, status int
		body          string
		want          int
	}{
		{1, 422, `{"error":"replay_memory_snapshot_unavailable","message":"m","details":{"fromSeq":7,"sourceRunId":"r1","reason":"retention_expired"}}`, 0},
		{1, 409, `{"error":"replay_memory_snapshot_unavailable","message":"m","details":{"fromSeq":7,"sourceRunId":"r1","reason":"retention_expired"}}`, 1},
		{1, 422, `{"error":"replay_memory_snapshot_unavailable","message":"m"}`, 3},
		{2, 409, `{"error":"replay_memory_snapshot_unavailable","message":"m"}`, 0},
		{2, 409, `{"error":"replay_memory_snapshot_unavailable","message":"m","details":{"fromSeq":8}}`, 1},
		{2, 422, `{"error":"replay_memory_snapshot_unavailable","message":"m","details":{"fromSeq":7}}`, 1},
		{2, 409, `{"error":"run_already_active","message":"m"}`, 0},
		{2, 409, `no JSON`, 0},
	} {
		if found := ForkRefusal(tt.major, "r1", 7, tt.status, []byte(tt.body)); len(found) != tt.want {
			t.Errorf("ForkRefusal(v%d, %d, %s) = %v, want %d findings", tt.major, tt.status, tt.body, found, tt.want)
		}
	}
}

// Hosts give their logs out in several forms.
func TestReadLog(t *testing.T) {
	const e0 = `{"eventId":"a","runId":"r","type":"run.started","sequence":0,"timestamp":"2026-01-01T00:00:00Z","payload":{}}`
	const e1 = `{"eventId":"b","runId":"r","type":"run.completed","sequence":1,"payload":{}}`
	for _, tt := range []struct {
		name, text string
		skipped    int
	}{
		{"list", "[" + e0 + "," + e1 + "]", 0},
		{"poll", `{"events":[` + e0 + "," + e1 + `],"isComplete":true}`, 0},
		{"lines", e0 + "\n" + e1 + "\n", 0},
		{"pages", `{"events":[` + e0 + `]}` + "\n" + `{"events":[` + e1 + `]}`, 0},
		{"lines with a foreign one", e0 + "\n{\"x\":1}\n" + e1, 1},
		{"stream", ": hello\n\nid: 0\nevent: run.started\ndata: " + e0 + "\n\nid: 1\r\ndata:" + e1 + "\r\n\r\n", 0},
		{"stream with a batch and a snapshot", "event: batch\ndata: [" + e0 + ",\ndata: " + e1 + "]\n\nevent: state.snapshot\ndata: {}\n\n", 1},
		{"stream that is cut off", "data: " + e0 + "\n\ndata: " + e1 + "\n\ndata: {\"eve", 1},
		{"list that is cut off", "[" + e0 + ",\n" + e1 + ",\n{\"eve", 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l, err := ReadLog(strings.NewReader(tt.text))
			if err != nil || len(l.Events) != 2 || len(l.Skipped) != tt.skipped {
				t.Fatalf("ReadLog = %d events, skipped %q, %v, want 2 events and %d skipped", len(l.Events), l.Skipped, err, tt.skipped)
			}
			if l.Events[0].ID != "a" || l.Events[1].Type != "run.completed" {
				t.Errorf("events = %+v", l.Events)
			}
		})
	}
	for _, text := range []string{"", " \n", "hello", "<html>", `{"eventId":`, "[1,"} {
		if l, err := ReadLog(strings.NewReader(text)); err == nil {
			t.Errorf("ReadLog(%q) = %v, want an error", text, l)
		}
	}
	if _, err := ParseEvent([]byte(`{"eventId":"a","runId":"r","type":"t"}`)); !errors.Is(err, ErrNoEvent) {
		t.Errorf("ParseEvent without a sequence: %v, want ErrNoEvent", err)
	}
}

// What can't be used of a log is told with its place, and the rest is read.
func TestReadLogSkips(t *testing.T) {
	event := func(id string, seq int, more string) string {
		return fmt.Sprintf(`{"eventId":%q,"runId":"r","type":"t","sequence":%d,"payload":{%s}}`, id, seq, more)
	}
	long := `"text":"` + strings.Repeat("x", 20<<20) + `"`
	for _, tt := range []struct {
		name, text string
		events     string
		skipped    []string // how each begins
	}{
		{"a line that is no JSON", event("a", 0, "") + "\nhello\n" + event("b", 1, ""), "a b", []string{`line 2: "hello`}},
		{"two of them", "\n" + event("a", 0, "") + "\nhello\n" + event("b", 1, "") + "\n{]\n" + event("c", 2, ""), "a b c", []string{`line 3: "hello`, `line 5: "{]`}},
		{"a line that is cut off", event("a", 0, "") + "\n" + event("b", 1, "")[:30] + "\n" + event("c", 2, ""), "a c", []string{`line 2: `}},
		{"a list that is cut off", "[\n " + event("a", 0, "") + ",\n " + event("b", 1, "") + ",\n " + event("c", 2, "")[:20], "a b", []string{`line 1: `, `line 4: `}},
		{"an element that is none", "\n[" + event("a", 0, "") + `,{"x":1}]`, "a", []string{`line 2, element 1: "{\"x`}},
		{"an event of twenty megabytes", event("a", 0, "") + "\n" + event("b", 1, long) + "\n" + event("c", 2, ""), "a b c", nil},
		{"one in a stream", "data: " + event("a", 0, long) + "\n\ndata: " + event("b", 1, "") + "\n\n", "a b", nil},
		{"one that is cut off", event("a", 0, "") + "\n" + event("b", 1, long)[:10<<20], "a", []string{`line 2: `}},
		{"a frame that is no JSON", ": x\n\ndata: " + event("a", 0, "") + "\n\nid: 1\ndata: hello\n\ndata: " + event("b", 1, "") + "\n\n", "a b", []string{`frame in line 5: "hello`}},
		{"a frame that is cut off", "data: " + event("a", 0, "") + "\n\ndata: " + event("b", 1, "")[:30], "a", []string{`frame in line 3: `}},
		{"two events of one id", event("a", 0, "") + "\n" + event("b", 1, "") + "\n" + event("a", 2, ""), "a b", []string{`line 3: event a at sequence 2 has the id of another, at 0`}},
		{"two events in one place", event("a", 0, "") + "\n" + event("b", 0, ""), "a", []string{`line 2: event b at sequence 0 has the place of another, a`}},
		{"an event that is repeated", event("a", 0, "") + "\n" + event("a", 0, ""), "a a", nil},
		{"one id in two runs", event("a", 0, "") + "\n" + strings.Replace(event("a", 3, ""), `"r"`, `"fork"`, 1), "a a", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l, err := ReadLog(strings.NewReader(tt.text))
			var ids []string
			for _, e := range l.Events {
				ids = append(ids, e.ID)
			}
			if err != nil || strings.Join(ids, " ") != tt.events || len(l.Skipped) != len(tt.skipped) {
				t.Fatalf("ReadLog = %v, skipped %.200q, %v, want %s and %d skipped", ids, l.Skipped, err, tt.events, len(tt.skipped))
			}
			for i, want := range tt.skipped {
				if !strings.HasPrefix(l.Skipped[i], want) || len(l.Skipped[i]) > 300 {
					t.Errorf("skipped %.300q, want %q…", l.Skipped[i], want)
				}
			}
		})
	}
	if _, err := ReadLog(strings.NewReader(strings.Repeat("[\n", maxFaults+2))); err == nil || !strings.Contains(err.Error(), "in more than 1000 places, the last in line 1001") {
		t.Errorf("a log that is nothing but faults: %v", err)
	}
}

func FuzzReadLog(f *testing.F) {
	f.Add("data: {\"eventId\":\"a\",\"runId\":\"r\",\"type\":\"run.started\",\"sequence\":0}\n\n")
	f.Add(`[{"eventId":"a","runId":"r","type":"core.workflowChain.event","sequence":0,"payload":{"phase":"dispatch.failed"}}]`)
	f.Fuzz(func(t *testing.T, text string) {
		l, _ := ReadLog(strings.NewReader(text))
		for _, x := range Check(l.Events, Model{Version: 5}) {
			if !slices.Contains(Rules(), x.Rule) || x.Text == "" {
				t.Errorf("finding %+v", x)
			}
		}
	})
}

func TestParseDiscovery(t *testing.T) {
	for _, tt := range []struct {
		doc  string
		want Model
		ok   bool
	}{
		{`{}`, Model{}, true},
		{`{"multiAgent":{"executionModel":{"supported":false,"version":3}}}`, Model{}, true},
		{`{"multiAgent":{"executionModel":{"supported":true,"version":2,"confidenceEscalationFloor":0.8}}}`, Model{Version: 2, Floor: 0.8}, true},
		{`{"multiAgent":{"status":"stable","executionModel":{"version":4,"confidenceEscalationInterruptKind":"approval"}}}`, Model{Version: 4, InterruptKind: "approval"}, true},
		{`{"multiAgent":{"executionModel":{"version":2,"confidenceEscalationFloor":0.3}}}`, UnknownModel, false},
		{`<html>`, UnknownModel, false},
	} {
		if m, err := ParseDiscovery([]byte(tt.doc)); m != tt.want || (err == nil) != tt.ok {
			t.Errorf("ParseDiscovery(%s) = %+v, %v, want %+v, ok %v", tt.doc, m, err, tt.want, tt.ok)
		}
	}
}
