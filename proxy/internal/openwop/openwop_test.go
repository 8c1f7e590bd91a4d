package openwop

import "testing"

func TestClassify(t *testing.T) {
	tests := []struct {
		method, path string
		op           Op
		segment      string
	}{
		{"POST", "/v1/runs", Create, ""},
		{"POST", "/runs", Create, ""},
		{"POST", "/base/v1/runs", Create, ""},
		{"GET", "/v1/runs", None, ""},
		{"POST", "/v1/runs/", None, ""},
		{"POST", "/v1/runsheet", None, ""},
		{"POST", "/runs/acme~2F0123456789abcdef:fork", Fork, "acme~2F0123456789abcdef"},
		{"POST", "/runs/anon:acme%2F0123456789abcdef:fork", Fork, "anon:acme%2F0123456789abcdef"},
		{"POST", "/runs/r1:pause", None, ""},
		{"GET", "/v1/runs/r1", Read, "r1"},
		{"GET", "/runs/acme%2F0123456789abcdef", Read, "acme%2F0123456789abcdef"},
		{"GET", "/v1/runs/r1/events", Events, "r1"},
		{"GET", "/v1/runs/r1/events/poll", Poll, "r1"},
		{"GET", "/v1/runs/r1/debug-bundle", Bundle, "r1"},
		{"GET", "/v1/runs/r1/ancestry", None, ""},
		{"DELETE", "/v1/runs/r1", None, ""},
		{"POST", "/chat", None, ""},
		{"GET", "/", None, ""},
	}
	for _, tt := range tests {
		if op, segment := Classify(tt.method, tt.path); op != tt.op || segment != tt.segment {
			t.Errorf("Classify(%s %s) = %v, %q, want %v, %q", tt.method, tt.path, op, segment, tt.op, tt.segment)
		}
	}
}

func TestReadsMemory(t *testing.T) {
	for path, want := range map[string]bool{
		"/host/acme/memory": true, "/v1/host/sample/memory": true, "/base/v1/host/sample/memory/m1": true, "/host/acme/memory/": true,
		"/host/memory": false, "/host//memory": false, "/host/acme/memory/m1/x": false, "/host/acme/memories": false,
		"/memory": false, "/host/acme": false, "/": false, "": false,
	} {
		if got := ReadsMemory("GET", path); got != want {
			t.Errorf("ReadsMemory(GET, %s) = %v, want %v", path, got, want)
		}
		if ReadsMemory("DELETE", path) {
			t.Errorf("ReadsMemory(DELETE, %s) = true", path)
		}
	}
}

func TestCreated(t *testing.T) {
	tests := []struct {
		name, body, want string
	}{
		{"created", `{"runId":"r1","status":"pending","eventsUrl":"/v1/runs/r1/events"}`, "r1"},
		{"no id", `{"status":"pending"}`, ""},
		{"empty id", `{"runId":""}`, ""},
		{"id of another type", `{"runId":7}`, ""},
		{"not JSON", `<html>`, ""},
	}
	for _, tt := range tests {
		if id, ok := Created([]byte(tt.body)); id != tt.want || ok != (tt.want != "") {
			t.Errorf("%s: Created(%s) = %q, %v, want %q", tt.name, tt.body, id, ok, tt.want)
		}
	}
}

func TestEnded(t *testing.T) {
	tests := []struct {
		op   Op
		body string
		want bool
	}{
		{Read, `{"runId":"r1","status":"completed"}`, true},
		{Read, `{"runId":"r1","status":"failed"}`, true},
		{Read, `{"runId":"r1","status":"cancelled"}`, true},
		{Read, `{"runId":"r1","status":"waiting-input"}`, false},
		{Read, `{"type":"run.completed"}`, false},
		{Events, `{"type":"run.completed","runId":"r1"}`, true},
		{Events, `{"type":"run.started","runId":"r1"}`, false},
		{Events, `{"type":"node.completed","status":"completed"}`, false},
		{Events, `[{"type":"run.completed"}]`, false},
		{Poll, `{"events":[],"isComplete":true}`, true},
		{Poll, `{"events":[],"status":"completed","isTerminal":true}`, true},
		{Poll, `{"events":[],"isTerminal":false}`, false},
		{Create, `{"status":"completed"}`, false},
	}
	for _, tt := range tests {
		if got := Ended(tt.op, []byte(tt.body)); got != tt.want {
			t.Errorf("Ended(%v, %s) = %v, want %v", tt.op, tt.body, got, tt.want)
		}
	}
}

func TestReadChild(t *testing.T) {
	for _, tt := range []struct {
		typ, payload string
		want         Child // with Run: one is read
	}{
		{"node.dispatched", `{"childRunId":"c","childWorkflowId":"w"}`, Child{Run: "c", Cause: "core.dispatch"}},
		{"node.dispatched", `{"childRunId":"c","childStatus":"waiting-input"}`, Child{Run: "c", Cause: "core.dispatch"}},
		{"node.dispatched", `{"childRunId":"c","childStatus":"failed"}`, Child{Run: "c", Cause: "core.dispatch", Ended: true}},
		{"node.completed", `{"nodeId":"n","outputs":{"childRunId":"c","childStatus":"cancelled"}}`, Child{Run: "c", Cause: "core.subWorkflow", Node: "n", Ended: true}},
		{"core.workflowChain.event", `{"phase":"child.failed","childRunId":"c"}`, Child{Run: "c", Ended: true}},
		{"workflow-chain.event", `{"phase":"child.cancelled","childRunId":"c"}`, Child{Run: "c", Ended: true}},

		{"node.dispatched", `{"childRunId":""}`, Child{}},
		{"node.dispatched", `{"childRunId":7}`, Child{}},
		{"node.dispatched", `{"childRunId":"c"`, Child{}},
		{"node.completed", `{"nodeId":"n","outputs":{"childRunId":"c"}}`, Child{}},
		{"node.completed", `{"nodeId":"n","outputs":{"childRunId":"c","childStatus":"running"}}`, Child{}},
		{"node.completed", `{"nodeId":"n","childRunId":"c","childStatus":"completed"}`, Child{}},
		{"node.completed", `{"nodeId":"n","outputs":{"ChildRunId":"c","childStatus":"completed","x":"childRunId"}}`, Child{}},
		{"workflow-chain.event", `{"phase":"dispatch.succeeded","childRunId":"c"}`, Child{}},
		{"run.started", `{"childRunId":"c"}`, Child{}},
	} {
		if c, ok := ReadChild(tt.typ, []byte(tt.payload)); ok != (tt.want.Run != "") || ok && c != tt.want {
			t.Errorf("ReadChild(%s, %s) = %+v, %v, want %+v", tt.typ, tt.payload, c, ok, tt.want)
		}
	}
}

func TestReadNode(t *testing.T) {
	for _, tt := range []struct {
		typ, payload string
		begins, ok   bool
	}{
		{"node.started", `{"nodeId":"n","typeId":"core.subWorkflow"}`, true, true},
		{"node.started", `{"nodeId":"n","typeId":"core.sub-workflow"}`, true, true},
		{"node.started", `{"nodeId":"n","typeId":"core.dispatch"}`, false, true},
		{"node.started", `{"nodeId":"n"}`, false, false},
		{"node.started", `[]`, false, false},
		{"node.completed", `{"nodeId":"n","typeId":"core.subWorkflow"}`, false, false},
	} {
		if node, begins, ok := ReadNode(tt.typ, []byte(tt.payload)); begins != tt.begins || ok != tt.ok || ok && node != "n" {
			t.Errorf("ReadNode(%s, %s) = %q, %v, %v, want %v, %v", tt.typ, tt.payload, node, begins, ok, tt.begins, tt.ok)
		}
	}
}

func FuzzClassify(f *testing.F) {
	f.Add("GET", "/v1/runs/r1/events", []byte(`{"type":"run.completed"}`))
	f.Add("POST", "/runs/a:fork", []byte(`{"runId":"x"}`))
	f.Fuzz(func(t *testing.T, method, path string, body []byte) {
		op, segment := Classify(method, path)
		if op == None && segment != "" {
			t.Errorf("Classify(%q, %q) = None with segment %q", method, path, segment)
		}
		Ended(op, body)
		ReadNode("node.started", body)
		for _, typ := range []string{"node.dispatched", "node.completed", "workflow-chain.event"} {
			if c, ok := ReadChild(typ, body); ok && c.Run == "" {
				t.Errorf("ReadChild(%s, %q) = an empty id", typ, body)
			}
		}
		if id, ok := Created(body); ok && id == "" {
			t.Errorf("Created(%q) = an empty id", body)
		}
	})
}
