package main

import (
	"bytes"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/wopproxy/wopproxy/test/internal/rawhttp"
)

// way is how an exchange passes wopproxy.
type way int

const (
	arrives way = iota // from a caller to the host
	leaves             // from the host to a tool, in clear
	opened             // the same by TLS, which is opened
	tunnel             // by TLS, which passes blind
)

// fault is what the peer that answers does wrong, or the one that asks.
type fault int

const (
	none    fault = iota
	slow          // the answer stops in the middle, and goes on
	reset         // it breaks off in the middle
	silent        // the connection breaks off instead of an answer
	hangs         // it stops in the middle, until whoever asked has gone
	half          // whoever asks breaks off in the middle of the request
	refused       // nobody listens
)

// outcome is how whoever asks sees an exchange end.
type outcome string

const (
	answered outcome = "answered" // with what was sent, whole
	brokeOff outcome = "broke off"
	left     outcome = "left" // by whoever asked
	bad      outcome = "502"
	other    outcome = "none of these"
)

// kind is a kind of exchange. Its messages bear a number of their own each time, on
// both sides.
type kind struct {
	name    string
	way     way
	share   int // of all; of a call that the host makes it is its caller's
	agent   bool
	begins  bool // a run, whose id the caller is told
	unknown bool // the call says nothing of its run
	fault   fault
	want    outcome
	byAge   bool // the run ends by its age

	request message
	answer  message
	status  int
	pieces  int // that the answer is sent in

	path string // default: one of its own
	call *kind  // that the host makes before it answers
	then *kind  // that the caller makes afterwards

	rendered []text       // the answer as it goes over the wire
	times    atomic.Int64 // that it was seen to end
}

// message is a body with marks in it.
type message struct {
	contentType string
	body        []byte
}

const (
	asJSON   = "application/json"
	asStream = "text/event-stream"
	asBytes  = "application/octet-stream"
)

// toolCall is an MCP request; more goes into its params.
func toolCall(size int, more string) message {
	return message{asJSON, rawhttp.Filled(`{"jsonrpc":"2.0","id":"`+rawhttp.Mark+`","method":"tools/call","params":{`+more+`"name":"search","arguments":{"limit":10,"text":"`, size, `"}}}`)}
}

// newest says that an MCP request is of the newest revision, by which a caller
// that hangs up cancels it.
const newest = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"},`

func toolResult(size int) message {
	return message{asJSON, rawhttp.Filled(`{"jsonrpc":"2.0","id":"`+rawhttp.Mark+`","result":{"content":[{"type":"text","text":"`, size, `"}],"isError":false}}`)}
}

// toolStream is progress, and then the result.
func toolStream(size int) message {
	var b strings.Builder
	for i := range 19 {
		fmt.Fprintf(&b, "event: message\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":{\"progressToken\":7,\"progress\":%d,\"total\":20}}\n\n", i)
	}
	fmt.Fprintf(&b, "event: message\ndata: %s\n\n", toolResult(size).body)
	return message{asStream, []byte(b.String())}
}

// task and conversation are ids of A2A.
const (
	task         = "0b6c4a3e-0000-4000-" + rawhttp.Mark
	conversation = "77ad6b1c-0000-4000-" + rawhttp.Mark
)

func a2aMessage(method string) message {
	return message{asJSON, rawhttp.Filled(`{"jsonrpc":"2.0","id":7,"method":"message/`+method+`","params":{"message":{"kind":"message","role":"user","messageId":"5f1c2f0e-0000-4000-`+
		rawhttp.Mark+`","parts":[{"kind":"text","text":"`, 1<<10, `"}]}}}`)}
}

func a2aTask(state string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":7,"result":{"kind":"task","id":"%s","contextId":"%s","status":{"state":"%s"},"artifacts":[{"artifactId":"1","parts":[{"kind":"text","text":"done"}]}]}}`, task, conversation, state)
}

func a2aUpdate(state string, final bool) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":7,"result":{"kind":"status-update","taskId":"%s","contextId":"%s","status":{"state":"%s"},"final":%v}}`, task, conversation, state, final)
}

func a2aStream() message {
	var b strings.Builder
	for _, event := range []string{a2aTask("submitted"), a2aUpdate("working", false), a2aUpdate("working", false), a2aUpdate("completed", true)} {
		fmt.Fprintf(&b, "data: %s\n\n", event)
	}
	return message{asStream, []byte(b.String())}
}

func jsonOf(text string) message { return message{asJSON, []byte(text)} }

// created is the id of an OpenWOP run.
const created = "run-0000-4000-" + rawhttp.Mark

// kinds are all there are. Faults are few, but of a million exchanges each has
// thousands.
func kinds() []*kind {
	plain := message{asBytes, rawhttp.Filled(rawhttp.Mark, 1<<10, "")}
	mcp, mcp64 := toolCall(1<<10, ""), toolCall(64<<10, "")
	result, result64 := toolResult(1<<10), toolResult(64<<10)
	get := &kind{
		name: "A2A, tasks/get", agent: true, want: answered, status: 200, pieces: 1,
		request: jsonOf(`{"jsonrpc":"2.0","id":7,"method":"tasks/get","params":{"id":"` + task + `"}}`), answer: jsonOf(a2aTask("completed")),
	}
	read := &kind{name: "OpenWOP, GET /v1/runs/…", path: "/v1/runs/" + created, want: answered, status: 200, pieces: 1, answer: jsonOf(`{"runId":"` + created + `","status":"completed"}`)}
	all := []*kind{
		{name: "not agents'", share: 200, request: plain, answer: plain},
		{name: "MCP 1 KB", share: 280, agent: true, begins: true, request: mcp, answer: result},
		{name: "MCP 64 KB", share: 15, agent: true, begins: true, request: mcp64, answer: result64},
		{name: "MCP, 20 events", share: 25, agent: true, begins: true, request: mcp, answer: toolStream(256), pieces: 20},
		{name: "A2A", share: 60, agent: true, begins: true, request: a2aMessage("send"), answer: jsonOf(a2aTask("completed"))},
		{name: "A2A, 4 events", share: 25, agent: true, begins: true, request: a2aMessage("stream"), answer: a2aStream(), pieces: 4},
		{name: "OpenWOP, POST /v1/runs", share: 20, begins: true, request: jsonOf(`{"workflowId":"soak"}`), answer: jsonOf(`{"runId":"` + created + `","status":"pending"}`), status: 201, path: "/v1/runs", then: read},
		read, get,

		{name: "MCP, answered slowly", share: 2, agent: true, begins: true, request: mcp, answer: result, pieces: 2, fault: slow},
		{name: "MCP, breaks off", share: 2, agent: true, request: mcp, answer: result64, pieces: 2, fault: reset},
		{name: "MCP, stream breaks off", share: 2, agent: true, request: mcp, answer: toolStream(256), pieces: 20, fault: reset},
		{name: "MCP, no answer", share: 2, agent: true, request: mcp64, answer: result, fault: silent},
		{name: "MCP, 503", share: 2, agent: true, request: mcp, answer: message{"text/plain", []byte("busy")}, status: 503},
		{name: "MCP, caller leaves", share: 2, agent: true, request: toolCall(1<<10, newest), answer: toolStream(256), pieces: 20, fault: hangs},
		{name: "MCP, caller leaves a call of 2025", share: 1, agent: true, request: mcp, answer: toolStream(256), pieces: 20, fault: hangs, byAge: true},
		{name: "MCP, caller breaks off", share: 2, agent: true, request: mcp64, answer: result, fault: half},
		{name: "A2A, breaks off", share: 2, agent: true, request: a2aMessage("stream"), answer: a2aStream(), pieces: 4, fault: reset},
		{name: "A2A, 500", share: 2, agent: true, request: a2aMessage("send"), answer: jsonOf(`{"jsonrpc":"2.0","id":7,"error":{"code":-32603,"message":"no"}}`), status: 500},
		{name: "A2A, caller leaves", share: 2, agent: true, request: a2aMessage("stream"), answer: a2aStream(), pieces: 4, fault: hangs, then: get},
		{name: "not agents', breaks off", share: 2, request: plain, answer: plain, pieces: 2, fault: reset},

		{name: "tunnel", way: tunnel, share: 3, request: plain, answer: plain},
		{name: "tunnel, breaks off", way: tunnel, share: 1, request: plain, answer: plain, pieces: 2, fault: reset},
	}
	for _, out := range []*kind{
		{name: "call not agents'", way: leaves, share: 60, request: plain, answer: plain},
		{name: "call MCP 1 KB", way: leaves, share: 140, agent: true, request: mcp, answer: result},
		{name: "call MCP 1 KB of no run", way: leaves, share: 20, agent: true, unknown: true, request: mcp, answer: result},
		{name: "call MCP 64 KB", way: leaves, share: 8, agent: true, request: mcp64, answer: result64},
		{name: "call MCP, 20 events", way: leaves, share: 12, agent: true, request: mcp, answer: toolStream(256), pieces: 20},
		{name: "call A2A", way: leaves, share: 40, agent: true, request: a2aMessage("send"), answer: jsonOf(a2aTask("completed"))},
		{name: "call A2A, 4 events", way: leaves, share: 12, agent: true, request: a2aMessage("stream"), answer: a2aStream(), pieces: 4},
		{name: "call MCP 1 KB by TLS", way: opened, share: 50, agent: true, request: mcp, answer: result},
		{name: "call MCP 64 KB by TLS", way: opened, share: 4, agent: true, request: mcp64, answer: result64},

		{name: "call refused", way: leaves, share: 2, agent: true, request: mcp, answer: result, fault: refused},
		{name: "call answered slowly", way: leaves, share: 2, agent: true, request: mcp, answer: result, pieces: 2, fault: slow},
		{name: "call breaks off", way: leaves, share: 2, agent: true, request: mcp, answer: result64, pieces: 2, fault: reset},
		{name: "call by TLS breaks off", way: opened, share: 1, agent: true, request: mcp, answer: result64, pieces: 2, fault: reset},
		{name: "call without an answer", way: leaves, share: 2, agent: true, request: mcp64, answer: result, fault: silent},
		{name: "call 503", way: leaves, share: 2, agent: true, request: mcp, answer: message{"text/plain", []byte("busy")}, status: 503},
		{name: "call that the host leaves", way: leaves, share: 2, agent: true, request: mcp, answer: toolStream(256), pieces: 20, fault: hangs},
		{name: "call A2A that the host leaves", way: leaves, share: 1, agent: true, request: a2aMessage("stream"), answer: a2aStream(), pieces: 4, fault: hangs},
	} {
		all = append(all, out, &kind{name: "MCP, of which comes: " + out.name, share: out.share, agent: true, begins: true, request: mcp, answer: result, call: out})
		out.share = 0 // it is the caller's that counts
	}
	for _, k := range all {
		k.status, k.pieces = max(k.status, 200), max(k.pieces, 1)
		k.want = map[fault]outcome{reset: brokeOff, silent: bad, hangs: left, half: left, refused: bad}[k.fault]
		if k.want == "" {
			k.want = answered
		}
	}
	return all
}

// text is a message that is made anew with each number, of one goroutine.
type text struct {
	bytes []byte
	at    []int
}

func newText(b []byte) text { return text{bytes.Clone(b), rawhttp.Marks(b)} }

func (t text) number(n uint64) []byte {
	for _, at := range t.at {
		rawhttp.Number(t.bytes[at:], n)
	}
	return t.bytes
}
