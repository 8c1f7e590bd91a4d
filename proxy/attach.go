package proxy

import (
	"bytes"
	"net/http"
	"slices"
	"strings"

	"go.opentelemetry.io/otel/attribute"

	"github.com/wopproxy/wopproxy/proxy/internal/openwop"
	"github.com/wopproxy/wopproxy/proxy/internal/wire"
)

// attachment is the receipt of a step on its way into the answer, for who has called.
// It says what was seen of the host's answer, which has to be whole for that: an
// answer that comes in parts gets none, but over gRPC, where the trailers take it.
type attachment struct {
	carrier receiptCarrier
	why     unattached    // it is not there, so far
	looked  bool          // those of others in the answer were found
	later   []wire.Answer // gRPC: what tells of states, which follow on the receipt
}

// receiptCarrier is where an answer bears a receipt.
type receiptCarrier string

// The carriers.
const (
	carrierMCP    receiptCarrier = "mcp"    // _meta of the result
	carrierA2A    receiptCarrier = "a2a"    // metadata of a message or artifact
	carrierHeader receiptCarrier = "header" // of an answer of plain HTTP
	carrierGRPC   receiptCarrier = "grpc"   // the trailers
)

// unattached says why an answer bears no receipt of ours.
type unattached string

// The reasons.
const (
	unattachedNoAnswer unattached = "no-answer" // of the host
	unattachedUnasked  unattached = "unasked"   // the caller has not named A2A's extension
	unattachedCarried  unattached = "carried"   // it bears another's
	unattachedError    unattached = "error"     // it is one
	unattachedStream   unattached = "stream"    // or another answer than one document of JSON
	unattachedNoPlace  unattached = "no-place"  // it has none, or none that may be written to
	unattachedUnread   unattached = "unread"    // it can't be read, or must not be edited
	unattachedUnsigned unattached = "unsigned"  // nothing could be signed there and then
	unattachedTooLong  unattached = "too-long"  // the receipt is, for its carrier, or the answer with it
)

// unattachedBy is what the place for a receipt says of it.
var unattachedBy = map[wire.ReceiptOutcome]unattached{
	wire.ReceiptCarried: unattachedCarried, wire.ReceiptError: unattachedError,
	wire.ReceiptNoPlace: unattachedNoPlace, wire.ReceiptUnread: unattachedUnread,
}

// Further headers of receipts, as they are found, and as PEAC spells the one that is
// written.
const (
	headerReceiptURL     = "Peac-Receipt-Url"
	headerReceiptPointer = "Peac-Receipt-Pointer"
	headerReceiptType    = "Peac-Receipt-Type" // gRPC

	receiptHeader = "PEAC-Receipt"
	receiptType   = "interaction-record+jwt"
)

// maxReceiptHeader bounds a receipt in a header or trailer.
const maxReceiptHeader = 8 << 10

// wantsReceipt decides where the answer may bear the receipt of the step.
func (x *exchange) wantsReceipt(r *http.Request) {
	if !x.policy.AttachReceipts || x.step == nil {
		return
	}
	a := &attachment{why: unattachedNoAnswer}
	x.attachment = a
	switch {
	case !x.p.o.Evidence.Seals():
		a.why = unattachedUnsigned
	case x.head.hints.GRPC != "":
		a.carrier = carrierGRPC
	case x.msg.Protocol == wire.None:
		a.carrier = carrierHeader
	case x.msg.Kind == wire.Batch:
		a.why = unattachedNoPlace
	case x.msg.Protocol == wire.MCP:
		a.carrier = carrierMCP
	case namesExtension(r.Header, wire.ReceiptExtension):
		a.carrier = carrierA2A
	default:
		a.why = unattachedUnasked
	}
}

// namesExtension reports whether a request of A2A names an extension: 1.0, 0.3.
func namesExtension(h http.Header, uri string) bool {
	for _, name := range []string{"A2a-Extensions", "X-A2a-Extensions"} {
		for _, v := range h[name] {
			if slices.ContainsFunc(strings.Split(v, ","), func(one string) bool { return strings.TrimSpace(one) == uri }) {
				return true
			}
		}
	}
	return false
}

// carriesReceipt reports whether headers or trailers have a receipt, or say where one
// is.
func carriesReceipt(h http.Header) bool {
	return h[headerReceipt] != nil || h[headerReceiptURL] != nil || h[headerReceiptPointer] != nil || h[headerReceiptType] != nil
}

// attach has the host's answer bear the receipt of the step, where it can. Whatever
// speaks against that, the answer passes as it is.
func (x *exchange) attach(resp *http.Response) {
	a := x.attachment
	if a == nil || a.carrier == "" {
		return
	}
	if a.carrier == carrierGRPC {
		if carriesReceipt(resp.Header) {
			a.why = unattachedCarried
		}
		return // its time comes with the trailers
	}
	if a.why = x.unfit(resp); a.why != "" {
		return
	}
	a.why = unattachedUnread // if nothing better comes
	all, _, why := x.readAnswer(resp, false)
	if all == nil {
		x.p.metrics.unread(documentAnswer, why)
		return
	}
	resp.Body = &behind{bytes.NewReader(all), resp.Body}
	if a.carrier == carrierHeader {
		x.guard(func() { x.attachHeader(resp, all) })
		return
	}
	if len(resp.Trailer) > 0 { // which nobody has announced
		x.p.metrics.unread(documentAnswer, wire.RefusedTrailers)
		return
	}
	body := all
	x.guard(func() { body = x.attachInside(resp, all) })
	if len(body) > len(all) {
		_ = resp.Body.Close()
		restate(resp.Header, body)
		setAnswer(resp, body)
	}
}

// unfit says what in the head of an answer speaks against a receipt.
func (x *exchange) unfit(resp *http.Response) unattached {
	h := resp.Header
	why := uneditable(resp)
	if x.attachment.carrier == carrierHeader { // the body stays as it is, and has to be read only where it tells of a run
		why = ""
		if x.curious() && h["Content-Encoding"] != nil {
			why = wire.RefusedEncoded
		}
	}
	switch {
	case carriesReceipt(h):
		return unattachedCarried
	case resp.StatusCode/100 != 2:
		return unattachedError
	case resp.StatusCode == http.StatusPartialContent, resp.Body == http.NoBody, !isJSON(h.Get("Content-Type")):
		return unattachedStream
	case why != "":
		x.p.metrics.unread(documentAnswer, why)
		return unattachedUnread
	}
	return ""
}

// attachHeader seals the step by the answer to a request of plain HTTP.
func (x *exchange) attachHeader(resp *http.Response, body []byte) {
	x.status = resp.StatusCode
	if x.head.openwop == openwop.Create || x.head.openwop == openwop.Fork {
		_, x.stays = x.created(body)
	}
	if _, jws := x.sealShort(); jws != "" {
		resp.Header[receiptHeader] = []string{jws}
	}
}

// attachInside returns the answer of MCP or A2A with the receipt of the step.
func (x *exchange) attachInside(resp *http.Response, body []byte) []byte {
	a, bare := x.attachment, x.bare()
	place, outcome, why := wire.PlaceReceipt(body, x.msg.Protocol, bare)
	if outcome != wire.ReceiptPlaced {
		if a.why = unattachedBy[outcome]; why != "" {
			x.p.metrics.unread(documentAnswer, why)
		}
		return body
	}
	answer, ok := wire.ReadAnswer(body, x.msg.Protocol, bare)
	if !ok || !bare && x.msg.Kind != wire.Request {
		return body
	}
	x.status = resp.StatusCode
	x.findReceipts(body)
	a.looked = true
	x.weigh(answer)
	ref, jws := x.seal()
	if jws == "" {
		return body
	}
	if out := place.Put(wire.Receipt{Ref: ref, JWS: jws}); out != nil && int64(len(out)) <= x.policy.InspectedBody { // else nothing more would be learned from it
		a.why = ""
		return out
	}
	a.why = unattachedTooLong
	return body
}

// seal signs what was seen of the exchange so far, as its end.
func (x *exchange) seal() (ref, jws string) {
	x.attachment.why = unattachedUnsigned
	ref, jws = x.p.o.Evidence.Seal(x.step, x.observedEnd())
	if ref != "" && x.span != nil {
		x.span.SetAttributes(attribute.String("peac.record.ref", ref))
	}
	return ref, jws
}

// sealShort is seal for what has to fit into a header.
func (x *exchange) sealShort() (ref, jws string) {
	if ref, jws = x.seal(); len(jws) > maxReceiptHeader {
		x.attachment.why = unattachedTooLong
		return "", ""
	} else if jws != "" {
		x.attachment.why = ""
	}
	return ref, jws
}

// deferState keeps what a unary call of gRPC is told of its task until the step is
// sealed, which it is with the trailers: the states of a step follow on its end, or
// come before it.
func (x *exchange) deferState(a wire.Answer) bool {
	at := x.attachment
	if at == nil || at.carrier != carrierGRPC || at.why != unattachedNoAnswer || x.msg.Method != "SendMessage" || len(at.later) > 0 {
		return false
	}
	at.later = append(at.later, a)
	return true
}

// attachTrailer has the trailers of gRPC bear the receipt, once they are known.
func (x *exchange) attachTrailer(trailer http.Header) {
	a := x.attachment
	if a == nil || a.carrier != carrierGRPC || a.why != unattachedNoAnswer {
		return
	}
	switch {
	case carriesReceipt(trailer):
		a.why = unattachedCarried
	case trailer["Grpc-Status"] == nil || x.errorCode != "":
		a.why = unattachedError
	default:
		if _, jws := x.sealShort(); jws != "" {
			trailer[headerReceipt], trailer[headerReceiptType] = []string{jws}, []string{receiptType}
		}
	}
	x.tellLater()
}

// endAttachment counts what has become of the receipt, and tells what waited for it.
func (x *exchange) endAttachment() {
	a := x.attachment
	if a == nil {
		return
	}
	if a.why == "" {
		x.p.metrics.attached.WithLabelValues(string(a.carrier)).Inc()
	} else {
		x.p.metrics.unattached.WithLabelValues(string(a.why)).Inc()
	}
	a.carrier = ""
	x.tellLater()
}

// tellLater tells of the states that have waited.
func (x *exchange) tellLater() {
	later := x.attachment.later
	x.attachment.later = nil
	for _, a := range later {
		x.noteState(a)
	}
}
