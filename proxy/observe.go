package proxy

import (
	"bytes"
	"net/http"
	"strings"

	"github.com/wopproxy/wopproxy/proxy/internal/openwop"
	"github.com/wopproxy/wopproxy/proxy/internal/wire"
)

// observe puts an observer on the answer, if there is anything to learn from
// it. The bytes pass as they come.
func (x *exchange) observe(resp *http.Response) {
	if resp.StatusCode == http.StatusSwitchingProtocols {
		return
	}
	if x.status = resp.StatusCode; x.status >= http.StatusBadRequest {
		x.failed = x.status
	}
	contentType := resp.Header.Get("Content-Type")
	stream := strings.HasPrefix(contentType, "text/event-stream")
	if stream && (x.msg.Method == "tasks/resubscribe" || x.msg.Method == "SubscribeToTask" ||
		resp.Request.Method == http.MethodGet && (x.msg.Protocol != wire.None || x.head.openwop == openwop.Events)) {
		x.idle(resp.Request) // it listens; work begins with other requests
	}
	x.findReceipt(resp.Header)
	if x.head.hints.GRPC != "" {
		x.learnStatus(resp.Header) // an error may have no other answer than its head
	}
	if resp.Body == nil || resp.Body == http.NoBody || !x.curious() {
		return
	}
	if resp.Header["Content-Encoding"] != nil {
		x.p.metrics.limit(limitAnswer)
		return
	}
	o := &observer{ReadCloser: resp.Body, x: x, ctx: resp.Request.Context(), want: resp.ContentLength}
	o.hears = x.hears() && x.heard.Seen == nil && (!x.fetches || resp.StatusCode == http.StatusOK)
	switch {
	case x.head.hints.GRPC != "" && !strings.HasPrefix(contentType, mediaGRPC):
		return // not the host's
	case x.head.hints.GRPC != "":
		o.parts, o.limit, o.trailer = &frames{limit: x.policy.InspectedBody}, limitAnswer, &resp.Trailer
	case stream:
		o.parts, o.limit = &events{limit: x.policy.InspectedEvent}, limitEvent
		x.streamed = true
	case resp.ContentLength > x.policy.InspectedBody:
		x.p.metrics.limit(limitAnswer)
		return
	}
	resp.Body = o
}

// curious reports whether an answer can tell of a run, its id or its end.
func (x *exchange) curious() bool {
	own := x.dir == ingress && x.head.openwop != openwop.None && x.head.openwop != openwop.Bundle
	return x.msg.Protocol != wire.None || own || x.remembers() || x.fetches
}

// documentTries bounds the attempts at a document of unknown length: each chunk
// that ends in a bracket may be the last.
const documentTries = 16

// learn takes from one document or event what it says about the exchange's run.
// A document is the answer to the exchange's own request, whatever id it bears:
// some servers round large ones. On a stream the id decides.
func (x *exchange) learn(data []byte, alone bool) {
	if x.remembers() {
		if x.failed == 0 {
			x.p.watch.remembered(data)
		}
		return
	}
	if x.dir == ingress && x.head.openwop != openwop.None { // else it is another host's word
		x.learnOpenWOP(data)
		return
	}
	bare := x.bare()
	var a wire.Answer
	var ok bool
	if path := x.head.hints.GRPC; path != "" {
		a, ok = wire.ReadRPCAnswer(data, path)
	} else {
		a, ok = wire.ReadAnswer(data, x.msg.Protocol, bare)
	}
	if !ok {
		x.illegible = x.illegible || len(bytes.TrimSpace(data)) > 0 // an event without data says where to go on
		return
	}
	if alone || bare || a.ID == x.msg.ID {
		x.findReceipts(data)
	}
	x.take(a, alone, bare)
}

// bare reports whether the answer has no envelope of JSON-RPC.
func (x *exchange) bare() bool {
	return x.head.hints.REST || x.head.hints.GRPC != "" || x.msg.Protocol == wire.A2A && x.body == nil
}

// learnStatus takes the status that ends an answer of gRPC from its trailers, or
// from the head of one that has no body.
func (x *exchange) learnStatus(h http.Header) {
	if status := h["Grpc-Status"]; len(status) == 1 {
		if a, failed := wire.ReadStatus(status[0], h.Get("Grpc-Message")); failed {
			x.take(a, true, true)
		}
	}
}

// end settles what is left when the response has been sent, or cannot be.
func (x *exchange) end(r *http.Request) {
	x.share.give()
	x.idle(r)
	_ = x.lent.Close()
	if x.served != nil {
		x.served()
	}
	switch gone := r.Context().Err() != nil || x.undelivered; {
	case x.outcome != outcomeAnswered || x.answered:
	case gone:
		x.outcome = outcomeClient
	case x.broken != nil:
		x.outcome = outcomeUpstream
	}
	x.guard(x.endHandoff)
	x.guard(x.endStep)
	x.edited.drop()
	x.edited = nil
	x.p.metrics.exchanges.WithLabelValues(string(x.dir), x.protocol(), string(x.outcome)).Inc()
	switch {
	case x.outcome == outcomeUpstream:
		x.finish("upstream", "", "upstream failed")
	case x.outcome == outcomeClient:
		x.finish("cancelled", "", "client gone")
	case x.failed != 0:
		x.finish("_OTHER", "", http.StatusText(x.failed))
	default:
		x.finish("", "", "")
	}
	if x.asked != nil && x.refusedWebhook() {
		x.p.webhooks.Remove(x.asked)
	}
	switch {
	case x.dir != ingress || x.run == nil:
	case x.owner != nil:
		if x.visits {
			x.p.runs.Leave(x.run)
		}
	case x.goesOn && (x.failed != 0 || x.errorCode != "" || x.spoken && !x.stays):
		// What was refused, or answered with a message, is this turn. Whether the run
		// has ended is another question, which only a terminal state answers; and if it
		// had, it still has.
		x.p.runs.Relapse(x.run)
	case x.over():
		x.p.runs.End(x.run)
	case x.msg.Protocol == wire.MCP && !x.answered && x.session != "":
		x.bind(x.requestKey(x.msg.ID))
	}
}

// over reports whether the run that began with this exchange ends with it. A
// client that hangs up ends neither an A2A task nor, before the 2026 revision,
// an MCP request: the host works on, and may be asked for the answer later. So
// it is when the host itself ends the stream of a session's request unanswered.
func (x *exchange) over() bool {
	switch {
	case x.failed != 0 || x.outcome == outcomeUpstream || x.outcome == outcomeRefused:
		return !x.goesOn
	case x.stays || x.status == http.StatusAccepted && !x.answered:
		return false
	case x.pipe:
		return true // answered, or cancelled in so many words
	case x.msg.Protocol == wire.A2A:
		return x.answered
	case x.msg.Protocol == wire.MCP && (x.outcome == outcomeClient || x.streamed && !x.answered && x.session != ""):
		return x.msg.ProtocolVersion >= "2026"
	}
	return true
}
