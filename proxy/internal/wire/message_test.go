package wire

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Refusals and DocumentRefusals must list each constant of their type, or a metric
// would appear late.
func TestRefusalsIsClosed(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "refusal.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var want []Refusal
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || spec.Type == nil {
			return true
		}
		for _, v := range spec.Values {
			if lit, ok := v.(*ast.BasicLit); ok {
				s, _ := strconv.Unquote(lit.Value)
				want = append(want, Refusal(s))
			}
		}
		return true
	})
	got := Refusals()
	for _, r := range DocumentRefusals() {
		if !slices.Contains(got, r) {
			got = append(got, r)
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" || len(got) < 16 {
		t.Errorf("Refusals (-constants +listed):\n%s", diff)
	}
	if len(slices.Compact(got)) != len(want) {
		t.Error("two refusals have one name")
	}
	Refusals()[0] = "changed"
	if slices.Contains(Refusals(), "changed") {
		t.Error("Refusals hands out its own slice")
	}
}

func TestNames(t *testing.T) {
	got := fmt.Sprint(None, MCP, A2A, Unknown, Request, Notification, Response, Batch)
	if want := "none mcp a2a unknown request notification response batch"; got != want {
		t.Errorf("names %q, want %q", got, want)
	}
}

// TestDetect goes through the names of both protocols, by the tables of their
// contracts, without any hint and against the hint of the other.
func TestDetect(t *testing.T) {
	onlyMCP := []string{"ping", "server/discover", "tools/call", "tools/list", "resources/read", "resources/list",
		"resources/templates/list", "resources/subscribe", "resources/unsubscribe", "prompts/get", "prompts/list", "completion/complete",
		"logging/setLevel", "sampling/createMessage", "elicitation/create", "roots/list", "subscriptions/listen", "tasks/result",
		"tasks/update", "notifications/cancelled", "notifications/progress", "notifications/initialized", "notifications/message",
		"notifications/resources/updated", "notifications/tasks", "notifications/roots/list_changed"}
	onlyA2A := []string{"message/send", "message/stream", "tasks/resubscribe", "tasks/pushNotificationConfig/set",
		"tasks/pushNotificationConfig/get", "tasks/pushNotificationConfig/list", "tasks/pushNotificationConfig/delete",
		"agent/getAuthenticatedExtendedCard", "SendMessage", "SendStreamingMessage", "GetTask", "ListTasks", "CancelTask",
		"SubscribeToTask", "CreateTaskPushNotificationConfig", "GetTaskPushNotificationConfig", "ListTaskPushNotificationConfigs",
		"DeleteTaskPushNotificationConfig", "GetExtendedAgentCard"}
	check := func(method, params string, h Hints, want Protocol) {
		t.Helper()
		body := `{"jsonrpc":"2.0","id":1,"method":"` + method + `"` + params + `}`
		if got := Read([]byte(body), h).Protocol; got != want {
			t.Errorf("Read(%s, %+v).Protocol = %v, want %v", body, h, got, want)
		}
	}
	for _, m := range onlyMCP {
		check(m, "", Hints{}, MCP)
		check(m, "", Hints{Protocol: MCP}, MCP)
		check(m, "", Hints{Protocol: A2A}, A2A)
	}
	for _, m := range onlyA2A {
		check(m, "", Hints{}, A2A)
		check(m, "", Hints{AcceptsBoth: true}, A2A)
		check(m, "", Hints{Protocol: A2A}, A2A)
		check(m, "", Hints{Protocol: MCP}, None)
	}
	for _, m := range []string{"tasks/get", "tasks/cancel", "tasks/list"} {
		check(m, `,"params":{"id":"t"}`, Hints{}, A2A)
		check(m, `,"params":{"taskId":"t"}`, Hints{}, MCP)
		check(m, `,"params":{"taskId":"t","id":"t"}`, Hints{}, None)
		check(m, ``, Hints{AcceptsBoth: true}, None)
		check(m, ``, Hints{Protocol: MCP}, MCP)
		check(m, `,"params":{"taskId":"t"}`, Hints{Protocol: A2A}, A2A)
		check(m, `,"params":{"id":"t"}`, Hints{Protocol: MCP}, None)
	}
	check("initialize", "", Hints{}, None)
	check("initialize", "", Hints{AcceptsBoth: true}, MCP)
	check("initialize", `,"params":{"protocolVersion":"x"}`, Hints{}, MCP)
	for _, m := range []string{"eth_call", "textDocument/hover", "sendMessage", "Ping", "x", "", "tools", "tasks/other"} {
		check(m, "", Hints{}, None)
		check(m, "", Hints{Protocol: MCP}, MCP)
		check(m, "", Hints{AcceptsBoth: true}, MCP)
	}

	for _, m := range append(append([]string{"initialize", "tasks/get"}, onlyMCP[:24]...), onlyA2A...) {
		if !KnownMethod(m) {
			t.Errorf("KnownMethod(%q) = false", m)
		}
	}
	for _, m := range []string{"", "eth_call", "tools/other"} {
		if KnownMethod(m) {
			t.Errorf("KnownMethod(%q) = true", m)
		}
	}
}

func TestIDs(t *testing.T) {
	for _, tt := range []struct{ name, id, want string }{
		{"integer", `1`, `1`},
		{"zero", `0`, `0`},
		{"minus zero", `-0`, `0`},
		{"negative", `-7`, `-7`},
		{"string", `"1"`, `"1"`},
		{"empty string", `""`, `""`},
		{"escaped", `"\u0031\""`, `"1\""`},
		{"invalid UTF-8", "\"\xff\"", "\"\ufffd\""},
		{"exponent", `1e2`, `100`},
		{"negative exponent", `100E-2`, `1`},
		{"no fraction", `1.0`, `1`},
		{"fraction", `1.5`, `1.5`},
		{"beyond float64", `9007199254740993`, `9007199254740993`},
		{"not exact", `1e300`, `1e300`},
		{"out of range", `1e999`, `1e999`},
		{"null", `null`, ``},
		{"object", `{}`, ``},
		{"true", `true`, ``},
		{"at the bound", `"` + strings.Repeat("a", 254) + `"`, `"` + strings.Repeat("a", 254) + `"`},
		{"above it", `"` + strings.Repeat("a", 255) + `"`, ``},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := Read([]byte(`{"jsonrpc":"2.0","method":"ping","id":`+tt.id+`}`), Hints{})
			if m.ID != tt.want || m.Kind != Request {
				t.Errorf("Read: id %s is %s of a %v, want %s", tt.id, m.ID, m.Kind, tt.want)
			}
			a, ok := ReadAnswer([]byte(`{"jsonrpc":"2.0","result":{},"id":`+tt.id+`}`), MCP, false)
			if a.ID != tt.want || !ok {
				t.Errorf("ReadAnswer: id %s is %s, want %s", tt.id, a.ID, tt.want)
			}
		})
	}
}

func TestBounds(t *testing.T) {
	read := func(params string) Message {
		return Read([]byte(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{`+params+`}}`), Hints{})
	}
	x := func(n int) string { return strings.Repeat("x", n) }
	for _, tt := range []struct {
		name, key string
		bound     int
		field     func(m Message) string
	}{
		{"target", `"name":"%s"`, maxName, func(m Message) string { return m.Target }},
		{"task", `"taskId":"%s"`, maxID, func(m Message) string { return m.TaskID }},
		{"traceparent", `"_meta":{"traceparent":"%s"}`, maxCarrier, func(m Message) string { return m.Traceparent }},
		{"ancestry", `"_meta":{"dev.wopproxy/run-ancestry":"%s"}`, maxCarrier, func(m Message) string { return m.Ancestry }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.field(read(fmt.Sprintf(tt.key, x(tt.bound)))); got != x(tt.bound) {
				t.Errorf("%d bytes: %d are read", tt.bound, len(got))
			}
			if got := tt.field(read(fmt.Sprintf(tt.key, x(tt.bound+1)))); got != "" {
				t.Errorf("%d bytes: %d are read, want none", tt.bound+1, len(got))
			}
		})
	}

	a, _ := ReadAnswer([]byte(`{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"`+strings.Repeat("é", 300)+`"}}`), MCP, false)
	if a.ErrorMessage != strings.Repeat("é", 256) {
		t.Errorf("error message of 600 bytes is cut to %d", len(a.ErrorMessage))
	}

	many := `[` + strings.Repeat(`{"jsonrpc":"2.0","id":1,"method":"ping"},`, 64) + `{"jsonrpc":"2.0","id":1,"method":"message/send"}]`
	if m := Read([]byte(many), Hints{}); len(m.Batch) != 64 || m.Protocol != MCP {
		t.Errorf("batch of 65: %d are listed, protocol %v", len(m.Batch), m.Protocol)
	}
	answers := `[` + strings.Repeat(`{"jsonrpc":"2.0","id":1,"result":{}},`, 64) + `{"jsonrpc":"2.0","id":1,"result":{}}]`
	if a, _ := ReadAnswer([]byte(answers), MCP, false); len(a.Batch) != 64 {
		t.Errorf("65 answers: %d are listed", len(a.Batch))
	}

	huge := bytes.Repeat([]byte(" "), maxBody)
	copy(huge, `{"jsonrpc":"2.0","id":1,"method":"ping","result":{}}`)
	huge = append(huge, ' ')
	for _, h := range []Hints{{}, {Protocol: MCP}, {REST: true}} {
		if m := Read(huge, h); m.Refusal != RefusedTooLarge || m.Method != "" {
			t.Errorf("Read of %d bytes, %+v: refused %q", len(huge), h, m.Refusal)
		}
	}
	if _, ok := ReadAnswer(huge, MCP, false); ok {
		t.Errorf("ReadAnswer of %d bytes is ok", len(huge))
	}
}

// Without a limit given, an edited body may have 4 MiB and no byte more.
func TestStampDefaultLimit(t *testing.T) {
	frame := `{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":""}}`
	added := len(`"_meta":{"traceparent":""},`) + len(testTraceparent)
	for room, want := range map[int]Refusal{0: "", -1: RefusedTooLarge} {
		body := strings.Replace(frame, `""`, `"`+strings.Repeat("x", 4<<20-len(frame)-added-room)+`"`, 1)
		m := Read([]byte(body), Hints{})
		out, got := m.Stamp(Edit{Traceparent: testTraceparent})
		if got != want || want == "" && len(out) != 4<<20 {
			t.Errorf("Stamp with room for %d: %d bytes, refused %q, want %q", room, len(out), got, want)
		}
	}
}

func TestParseState(t *testing.T) {
	for want, names := range map[State][]string{
		"":                 {""},
		StateSubmitted:     {"submitted", "TASK_STATE_SUBMITTED"},
		StateWorking:       {"working", "TASK_STATE_WORKING"},
		StateInputRequired: {"input-required", "input_required", "TASK_STATE_INPUT_REQUIRED"},
		StateAuthRequired:  {"auth-required", "TASK_STATE_AUTH_REQUIRED"},
		StateCompleted:     {"completed", "TASK_STATE_COMPLETED"},
		StateCanceled:      {"canceled", "cancelled", "TASK_STATE_CANCELED", "TASK_STATE_CANCELLED"},
		StateFailed:        {"failed", "TASK_STATE_FAILED"},
		StateRejected:      {"rejected", "TASK_STATE_REJECTED"},
		StateUnknown:       {"unknown", "TASK_STATE_UNSPECIFIED", "Completed", "x"},
	} {
		terminal := want == StateCompleted || want == StateCanceled || want == StateFailed || want == StateRejected
		for _, name := range names {
			if got := parseState(name); got != want || got.Terminal() != terminal {
				t.Errorf("parseState(%q) = %q, terminal %v; want %q, %v", name, got, got.Terminal(), want, terminal)
			}
		}
	}
}

func TestComplete(t *testing.T) {
	for body, want := range map[string]bool{
		``: false, ` {} `: true, `{"a":[1,2]}`: true, `{"a":[1,2]`: false, `{}{}`: false, `"]"`: true,
		strings.Repeat("[", 128) + strings.Repeat("]", 128): true, strings.Repeat("[", 129) + strings.Repeat("]", 129): false,
	} {
		if got := Complete([]byte(body)); got != want {
			t.Errorf("Complete(%q) = %v, want %v", body, got, want)
		}
	}
}

// What is not ours is told without an allocation, however it looks.
func TestForeignDoesNotAllocate(t *testing.T) {
	for name, body := range map[string]string{
		"plain":    `{"messages":[{"role":"user","content":"hi"}],"model":"m"}`,
		"JSON-RPC": `{"jsonrpc":"2.0","id":"abc","method":"eth_getBalance","params":["0xabc","latest"]}`,
		"LSP":      `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"processId":1}}`,
		"response": `{"jsonrpc":"2.0","id":"abc","result":{"content":[]}}`,
		"text":     `"jsonrpc" is a word`,
	} {
		b := []byte(body)
		if n := testing.AllocsPerRun(100, func() {
			if m := Read(b, Hints{}); m.Protocol != None {
				t.Errorf("%s: protocol %v", name, m.Protocol)
			}
		}); n != 0 {
			t.Errorf("%s: Read allocates %v times, want 0", name, n)
		}
	}
}

// body returns a tools/call of about size bytes, with the values that agents
// send: short members, text with escapes, a blob.
func body(size int) []byte {
	item := `{"type":"text","id":12345,"text":"The quick brown fox\njumps over the lazy dog.","score":0.8125,"tags":["a","b"],"ok":true},`
	blob := strings.Repeat("QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVo", size/4/36+1)
	n := max(1, (size-len(blob)-200)/len(item))
	return []byte(`{"jsonrpc":"2.0","id":42,"method":"tools/call","params":{"_meta":{"progressToken":7},"name":"search","arguments":{"items":[` +
		strings.TrimSuffix(strings.Repeat(item, n), ",") + `],"blob":"` + blob + `"}}}`)
}

func BenchmarkStampMCP(b *testing.B) {
	e := Edit{Traceparent: testTraceparent, Tracestate: "wop=run_01HZX3J9V5", Ancestry: `"run_1";host="a"`, MaxSize: 8 << 20}
	for _, size := range []int{1 << 10, 64 << 10, 4 << 20} {
		in := body(size)
		b.Run(fmt.Sprintf("%dKB", size>>10), func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(in)))
			for b.Loop() {
				m := Read(in, Hints{AcceptsBoth: true})
				if out, refused := m.Stamp(e); refused != "" || len(out) <= len(in) {
					b.Fatal(refused)
				}
			}
		})
	}
}

func BenchmarkRead(b *testing.B) {
	foreign := bytes.Replace(body(1<<10), []byte("jsonrpc"), []byte("version"), 1)
	for _, tt := range []struct {
		name string
		in   []byte
	}{
		{"MCP", body(1 << 10)},
		{"A2A", []byte(`{"jsonrpc":"2.0","id":1,"method":"message/send","params":{"message":{"kind":"message","role":"user","messageId":"m-1","parts":[{"kind":"text","text":"` +
			strings.Repeat("lorem ipsum ", 75) + `"}]}}}`)},
		{"NotOurs1KB", foreign},
		{"NotOurs4MB", bytes.Replace(body(4<<20), []byte("jsonrpc"), []byte("version"), 1)},
		{"OtherRPC", bytes.Replace(body(1<<10), []byte("tools/call"), []byte("eth_getLogs"), 1)},
	} {
		b.Run(tt.name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(tt.in)))
			for b.Loop() {
				Read(tt.in, Hints{})
			}
		})
	}
}

func BenchmarkReadAnswer(b *testing.B) {
	in := []byte(`{"jsonrpc":"2.0","id":42,"result":{"content":[{"type":"text","text":"` + strings.Repeat("lorem ipsum ", 80) + `"}],"isError":false}}`)
	b.ReportAllocs()
	b.SetBytes(int64(len(in)))
	for b.Loop() {
		if _, ok := ReadAnswer(in, MCP, false); !ok {
			b.Fatal("not read")
		}
	}
}

func BenchmarkContext(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		c := contextOf(testTraceparent, "wop=run_1,vendor=abc", "tier=gold")
		c.State = c.State.With("wop", "run_2")
		_ = c.Traceparent()
	}
}

// TestRelations: what one message says of another request, by which its run may
// be found. A token of the sender's own request is not one of the other side's.
func TestRelations(t *testing.T) {
	tests := []struct {
		method, params              string
		progress, cancelled, taskID string
	}{
		{`"id":1,"method":"tools/call"`, `"_meta":{"progressToken":"t"},"progressToken":"no"`, `"t"`, "", ""},
		{`"id":1,"method":"tools/call"`, `"_meta":{"progressToken":0}`, `0`, "", ""},
		{`"id":1,"method":"tools/call"`, `"_meta":{"progressToken":7.0}`, `7`, "", ""},
		{`"id":1,"method":"tools/call"`, `"_meta":{"progressToken":{}}`, "", "", ""},
		{`"id":1,"method":"tools/call"`, `"_meta":{"progressToken":1,"progressToken":2}`, "", "", ""},
		{`"method":"notifications/progress"`, `"_meta":{"progressToken":"no"},"progressToken":7,"progress":1`, `7`, "", ""},
		{`"method":"notifications/progress"`, `"progress":1`, "", "", ""},
		{`"method":"notifications/message"`, `"progressToken":7`, "", "", ""},
		{`"method":"notifications/cancelled"`, `"requestId":"a","reason":"r"`, "", `"a"`, ""},
		{`"method":"notifications/cancelled"`, `"requestId":12`, "", `12`, ""},
		{`"id":2,"method":"notifications/cancelled"`, `"requestId":12`, "", "", ""},
		{`"id":2,"method":"elicitation/create"`, `"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"x"}}`, "", "", "x"},
		{`"id":2,"method":"tasks/get"`, `"taskId":"y","_meta":{"io.modelcontextprotocol/related-task":{"taskId":"x"}}`, "", "", "y"},
	}
	for _, tt := range tests {
		body := `{"jsonrpc":"2.0",` + tt.method + `,"params":{` + tt.params + `}}`
		m := Read([]byte(body), Hints{Protocol: MCP})
		if m.ProgressToken != tt.progress || m.Cancelled != tt.cancelled || m.TaskID != tt.taskID {
			t.Errorf("%s: progress %q, cancelled %q, task %q; want %q, %q, %q", body, m.ProgressToken, m.Cancelled, m.TaskID, tt.progress, tt.cancelled, tt.taskID)
		}
	}
}
