package main

import (
	"bytes"
	"fmt"

	"github.com/wopproxy/wopproxy/test/internal/rawhttp"
)

// traffic is one kind of exchange: what is asked, and what is answered.
type traffic struct {
	name, title string
	path        string // the last segment of it; the upstream knows the kind by it
	contentType string
	body        []byte
	agent       bool // MCP or A2A, which wopproxy reads and stamps
	meta        bool // it is to be found in params._meta of the body, too
	answer      answer
}

// answer is what the upstream sends. In its hole there is a number of its own each
// time.
type answer struct {
	rawhttp.Answer
	contentType string
	events      [][]byte // the body, as it is sent: one write each; nil: at once
}

// events is the length of a stream.
const events = 200

// kinds are the columns of the table.
var kinds = []traffic{
	{
		name: "plain", title: "not agents'", path: "plain", contentType: "application/octet-stream", body: rawhttp.Filled("", 1<<10, ""),
		answer: answered("application/octet-stream", rawhttp.Filled("", 1<<10, "")),
	},
	{
		name: "mcp1k", title: "MCP 1 KB", path: "mcp1k", contentType: "application/json", body: toolCall(1 << 10), agent: true, meta: true,
		answer: answered("application/json", toolResult(1<<10)),
	},
	{
		name: "mcp64k", title: "MCP 64 KB", path: "mcp64k", contentType: "application/json", body: toolCall(64 << 10), agent: true, meta: true,
		answer: answered("application/json", toolResult(64<<10)),
	},
	{
		name: "sse", title: fmt.Sprintf("SSE, %d events", events), path: "sse", contentType: "application/json", body: toolCall(1 << 10), agent: true, meta: true,
		answer: stream(),
	},
	{
		name: "a2a", title: "A2A 1 KB", path: "a2a", contentType: "application/json", body: a2aMessage(), agent: true,
		answer: answered("application/json", a2aTask("completed")),
	},
}

// working is a message whose task goes on, and so does the run that it began.
var working = traffic{
	name: "working", path: "working", contentType: "application/json", body: a2aMessage(), agent: true,
	answer: answered("application/json", a2aTask("working")),
}

func toolCall(size int) []byte {
	return rawhttp.Filled(`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"search","arguments":{"limit":10,"text":"`, size, `"}}}`)
}

func toolResult(size int) []byte {
	return rawhttp.Filled(`{"jsonrpc":"2.0","id":7,"result":{"content":[{"type":"text","text":"`, size, `"}],"isError":false}}`)
}

func a2aMessage() []byte {
	return rawhttp.Filled(`{"jsonrpc":"2.0","id":7,"method":"message/send","params":{"message":{"kind":"message","role":"user","messageId":"5f1c2f0e-0000-4000-`+
		rawhttp.Mark+`","parts":[{"kind":"text","text":"`, 1<<10, `"}]}}}`)
}

func a2aTask(state string) []byte {
	return rawhttp.Filled(`{"jsonrpc":"2.0","id":7,"result":{"kind":"task","id":"0b6c4a3e-0000-4000-`+rawhttp.Mark+`","contextId":"77ad6b1c-9f52-4f86-9c1a-6a0f6f0f2d11","status":{"state":"`+
		state+`"},"artifacts":[{"artifactId":"1","parts":[{"kind":"text","text":"`, 1<<10, `"}]}]}}`)
}

func answered(contentType string, body []byte) answer {
	a := answer{Answer: rawhttp.Answer{Body: body}, contentType: contentType}
	if i := bytes.Index(body, []byte(rawhttp.Mark)); i >= 0 {
		a.Hole = [2]int{i, i + len(rawhttp.Mark)}
	}
	return a
}

// stream is progress, event by event, and then the result.
func stream() answer {
	a := answer{contentType: "text/event-stream"}
	for i := range events - 1 {
		a.events = append(a.events, fmt.Appendf(nil, "event: message\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":{\"progressToken\":7,\"progress\":%d,\"total\":%d}}\n\n", i, events))
	}
	a.events = append(a.events, fmt.Appendf(nil, "event: message\ndata: %s\n\n", toolResult(256)))
	a.Body = bytes.Join(a.events, nil)
	return a
}

// request is what a client sends for t by way of c, all but the numbers.
func (t traffic) request(c *contender, upstream, run string) []byte {
	var b bytes.Buffer
	target := "/" + t.path
	switch c.way {
	case forward:
		target = "http://" + upstream + target
	}
	fmt.Fprintf(&b, "POST %s HTTP/1.1\r\nHost: %s\r\nUser-Agent: bench\r\nContent-Type: %s\r\nContent-Length: %d\r\n", target, upstream, t.contentType, len(t.body))
	if t.agent {
		b.WriteString("Accept: application/json, text/event-stream\r\n")
		if t.meta {
			b.WriteString("Mcp-Protocol-Version: 2025-11-25\r\n")
		}
		if run != "" {
			fmt.Fprintf(&b, "Run-Id: %s\r\n", run)
		} else {
			flags := "00"
			if c.sampled {
				flags = "01"
			}
			fmt.Fprintf(&b, "Traceparent: 00-4bf92f3577b34da6%s-00f067aa0ba902b7-%s\r\n", rawhttp.Mark, flags)
			fmt.Fprintf(&b, "Run-Ancestry: \"run-%s\";host=\"caller.example.com\";cause=mcp-tool-call\r\n", rawhttp.Mark)
		}
	}
	b.WriteString("\r\n")
	b.Write(t.body)
	return b.Bytes()
}
