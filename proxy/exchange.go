package proxy

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/wopproxy/wopproxy/ancestry"
	"github.com/wopproxy/wopproxy/audit"
	"github.com/wopproxy/wopproxy/evidence"
	"github.com/wopproxy/wopproxy/proxy/internal/attribution"
	"github.com/wopproxy/wopproxy/proxy/internal/openwop"
	"github.com/wopproxy/wopproxy/proxy/internal/wire"
)

// spanContext is a place in a trace as it travels: ids, flags, tracestate,
// baggage.
type spanContext = wire.TraceContext

// exchange is one request and its response on their way through the proxy, in
// either direction. It lives in three steps: begin reads the request, arrive or
// leave decides what it means and stamps it, and the observer follows the
// answer. It belongs to one goroutine at a time.
type exchange struct {
	p      *Proxy
	policy *policy
	dir    direction
	began  time.Time

	out  http.Request // the request as the next hop gets it
	url  url.URL      // of out
	lent lentBody     // of out, if the transport reads it from the client

	atHand bool // the body of out can be written at once

	informing sync.Mutex
	informs   http.ResponseWriter // takes informational answers; nil: none any more

	pipe    bool // a line of a stdio server or its client, not a request of HTTP
	head    head
	msg     wire.Message
	session string        // MCP session of the request
	body    []byte        // the whole body, when it was read
	rest    io.ReadCloser // the body, when it was not, or what follows the frame of gRPC that was
	share   share         // of the memory for bodies
	edited  *lease        // where the body of out is, if that was edited and is long
	clues   attribution.Clues

	ambient  spanContext  // the context of the process, where a message is said to have that
	received spanContext  // the caller's context that counts; invalid: none
	stray    []trace.Link // contexts that came along and do not count
	context  spanContext  // what the next hop is told
	span     trace.Span   // ours; nil: none is made
	finished bool         // the span has ended and the metrics are counted

	trusted  bool             // ingress: the caller may set context and ancestry
	claimed  bool             // ingress: it may not, and has set a context
	chain    ancestry.Chain   // ingress: the ancestry that the caller has sent
	reason   string           // ingress: why the run has no parent
	run      *attribution.Run // ingress: the run that this serves; egress: the run that caused it
	starts   bool             // ingress: a run begins here, or goes on
	goesOn   bool             // ingress: the run began earlier
	link     ancestry.Link    // ingress: what was recorded of the run that begins here
	named    bool             // ingress: the host has told its own id of the run
	working  bool             // ingress: counted as other work
	trace    ancestry.TraceID // ingress: that other work's
	evidence ancestry.Evidence
	asked    *attribution.Webhook // the webhook that the request asks for
	post     *attribution.Webhook // the one that the request is a post of
	unshared bool                 // ingress: the request has a connection of its own
	hop      net.Conn             // to the next hop; known only where the protocol may change
	served   func()               // ingress: ends what is known of that connection; nil: nothing is
	owner    *attribution.Run     // ingress: the run that the request works for, without being its own
	visits   bool                 // ingress: it is live for that reason
	owed     []ancestry.Commit    // of links that the answer may not go before
	wants    bool                 // the caller asked for the run's id by sending its ancestry
	sent     ancestry.Chain       // egress: the ancestry that was sent
	scope    string               // egress: whose the tasks are that the answer tells of
	document *document            // ingress: what the answer may be
	causes   *causes              // ingress: what is written into the events that it has
	server   string               // egress: host:port that the call goes to
	path     string               // egress: and its path, since a server may have several endpoints, with sessions of their own
	tylo     *wire.TyloIDs        // egress: the context in Tylo's terms, for those who want it
	child    ancestry.Link        // egress: the run that the call has started elsewhere

	handoff     *ancestry.Tracked     // egress: what the call is to the run that makes it; nil: nothing
	turn        bool                  // it was so before, and the call goes on with its task
	task        string                // the task that the call has become
	followed    bool                  // more will be known of the handoff after the exchange
	results     []*ancestry.Tracked   // whose results were read, and are about to be handed on
	undelivered bool                  // what was read could not all be handed on
	whole       bool                  // the answer was read to its end
	fault       ancestry.HandoffError // why the next hop has not answered
	told        *wire.Answer          // ingress: what the post tells

	step    *evidence.Step // in the workflow of its run; nil: no evidence is made of it
	carried evidence.Place // ingress: the step of the caller's that led to it
	asTask  string         // the task that the step has become
	fetches bool           // the answer may be an agent card that evidence is made of
	heard   overheard      // that card, or what is told of by its digest
	passed  []byte         // the body of the request, as the next hop gets it; nil: it was not read

	attachment *attachment // ingress: the receipt of the step in the answer; nil: none is wanted

	outcome   outcome
	status    int        // of the answer
	checked   *audit.Run // ingress: the events that the answer streams, while they are checked
	replay    bool       // the host says that it has repeated an earlier answer
	errorCode string     // of a JSON-RPC answer
	answered  bool       // the answer to the request was seen
	spoken    bool       // it was, or had, a message that tells of no task
	gaveUp    bool       // it is that the request was cancelled
	illegible bool       // something came that may be the answer, and is no event which was read
	streamed  bool       // the answer is to come on a stream of which every event can be read
	stays     bool       // the run goes on after the exchange
	failed    int        // the status of an answer that is an error
	broken    error      // why the answer ended early
}

// outcome says how an exchange ended.
type outcome string

const (
	outcomeAnswered outcome = "answered"
	outcomeUpstream outcome = "upstream-error" // the next hop could not be reached, or broke off
	outcomeClient   outcome = "client-gone"
	outcomeRefused  outcome = "refused" // by us, as configured
)

// begin reads as much of r as is ours to read.
func (p *Proxy) begin(dir direction, r *http.Request) *exchange {
	x := &exchange{p: p, policy: p.policy.Load(), dir: dir, outcome: outcomeAnswered}
	x.share = share{all: &p.bodies, limit: x.policy.InspectedBodies}
	if r.ContentLength == 0 && len(r.Trailer) == 0 {
		r.Body = http.NoBody // of HTTP/2 it is another, which a transport would send in chunks
	}
	x.head = readHead(r)
	x.session = r.Header.Get(headerMCPSession)
	if x.head.refusal == wire.RefusedEncoded {
		p.metrics.refused(dir, wire.RefusedEncoded)
	}
	if x.head.hints.GRPC != "" && !x.head.inspect {
		p.metrics.refused(dir, wire.RefusedUnrecognised)
	}
	if x.head.inspect {
		var why bodyOutcome
		x.body, x.rest, why = readBody(r.Body, x.head.hints.GRPC != "", r.ContentLength, x.policy.InspectedBody, x.policy.BodyPatience, &x.share)
		switch why {
		case bodyTooLarge:
			p.metrics.limit(limitBody)
			p.metrics.refused(dir, wire.RefusedTooLarge)
		case bodyCrowded:
			p.metrics.limit(limitBodies)
			p.metrics.refused(dir, wire.RefusedTooLarge)
		case bodySlow:
			p.metrics.limit(limitSlowBody)
		}
	}
	x.recognise()
	x.fetches = x.discovers(r)
	x.guard(func() { x.recall(r) })
	return x
}

// recognise starts the clock and tells what the body is.
func (x *exchange) recognise() {
	x.began = time.Now()
	if x.body != nil || x.head.hints.GRPC != "" { // whose path says what it is
		x.guard(func() { x.msg = wire.Read(x.body, x.head.hints) })
	}
	if x.head.task != "" {
		x.msg.TaskID = x.head.task
	}
	if x.msg.Protocol == wire.None && x.body == nil {
		x.msg.Protocol = x.head.hints.Protocol
	}
}

// guard runs code that reads or edits what a peer has sent. A fault in it is
// ours, so it is counted, logged and contained; the traffic passes as it is.
func (x *exchange) guard(read func()) { x.p.guard(read) }

func (p *Proxy) guard(read func()) {
	defer func() {
		if v := recover(); v != nil {
			p.metrics.panics.Inc()
			p.o.Logger.Error("contained a fault of wopproxy; please report it", "panic", v, "stack", string(debug.Stack()))
		}
	}()
	read()
}

// protocol names what the exchange speaks, for metrics.
func (x *exchange) protocol() string {
	switch {
	case x.msg.Protocol != wire.None:
		return x.msg.Protocol.String()
	case x.head.openwop != openwop.None:
		return "openwop"
	}
	return "http"
}

// operation names what the exchange does, in a closed set but for methods that
// extensions define, which are cut off.
func (x *exchange) operation(r *http.Request) string {
	const bound = 64
	if m := x.msg.Method; m != "" {
		return m[:min(len(m), bound)]
	}
	if x.pipe {
		return x.msg.Kind.String() // a batch
	}
	if x.head.route != "" {
		return x.head.route
	}
	path := r.URL.EscapedPath()
	if x.head.hints.REST {
		path = path[strings.LastIndexByte(path, '/'):]
	}
	op := r.Method + " " + path
	if len(op) > bound { // a run would hold all of it for as long as it lives
		op = strings.Clone(op[:bound])
	}
	return op
}

// setBody gives r the body that begin has taken.
func (x *exchange) setBody(r *http.Request, body []byte) {
	switch grpc := x.head.hints.GRPC != ""; {
	case x.body == nil && x.rest == nil:
		return
	case x.body == nil:
		x.lent.ReadCloser = x.rest
		r.Body = &x.lent
		return
	case grpc && r.ContentLength >= 0:
		r.ContentLength += int64(len(body) - len(x.body))
	case !grpc: // whose servers would take a length for metadata of the call
		r.ContentLength = int64(len(body))
	}
	r.TransferEncoding = nil
	if x.rest != nil {
		r.Body = &behind{io.MultiReader(bytes.NewReader(body), x.rest), x.rest}
		return
	}
	x.atHand = true
	fresh := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
	if l := x.edited; l != nil {
		fresh = func() (io.ReadCloser, error) { return l.reader(body) }
	}
	r.Body, _ = fresh()
	// With GetBody the transport may repeat a request that met a connection which
	// had just been closed and was never read from. Beside an idempotency key it
	// would also repeat one that the next hop may have acted on: that is for the
	// client to decide.
	if r.Header["Idempotency-Key"] == nil && r.Header["X-Idempotency-Key"] == nil {
		r.GetBody = fresh
	}
}

// behind is a body whose first part was read.
type behind struct {
	io.Reader
	io.Closer
}

// stamp writes x.context, and on egress the ancestry in x.sent, into r. What
// the body does not allow goes into the headers alone, and the reason is
// counted.
func (x *exchange) stamp(r *http.Request) {
	body := x.body
	defer func() { x.passed = body; x.setBody(r, body) }()
	if x.head.sealed {
		x.p.metrics.refused(x.dir, wire.RefusedSigned)
		return
	}
	if !x.context.Valid() {
		x.guard(func() { body = x.unnamed() })
		return
	}
	x.writeHeaders(r)
	carrier := "header"
	if x.msg.Protocol != wire.None && x.body != nil {
		var edited bool
		body, edited = x.splice(x.edit(r))
		// An A2A message may have no slot, and be given none.
		if edited && (x.msg.Protocol != wire.A2A || x.msg.Traceparent != "" || !bytes.Equal(body, x.body)) {
			carrier = "both"
		}
	}
	x.p.metrics.stamped(x.dir, x.protocol(), carrier)
}

// splice returns the body with e in it. If something speaks against that, which
// is counted, it returns the body as it is, and false.
func (x *exchange) splice(e wire.Edit) (body []byte, edited bool) {
	body, refusal := x.body, cmp.Or(x.head.refusal, x.msg.Refusal)
	if refusal == "" {
		if x.rest == nil && !x.pipe { // else it is handed on by other means
			x.edited = borrow(len(body))
			e.Into = x.edited.memory()
		}
		x.guard(func() {
			body, refusal = x.msg.Stamp(e)
			edited = refusal == ""
		})
		if !x.edited.has(body) {
			x.edited.drop()
			x.edited = nil
		}
	}
	if refusal != "" {
		x.p.metrics.refused(x.dir, refusal)
	}
	return body, edited
}

// unnamed is the body of a call that goes out without context. An ancestry in
// it, which the host has merely passed on, names its caller, who is not the
// parent.
func (x *exchange) unnamed() []byte {
	if x.dir != egress || x.msg.Ancestry == "" {
		return x.body
	}
	refusal := x.head.refusal
	body := x.body
	if refusal == "" {
		body, refusal = x.msg.Stamp(wire.Edit{
			Traceparent: x.msg.Traceparent, Tracestate: x.msg.Tracestate, Baggage: x.msg.Baggage,
			MaxSize: int(x.policy.InspectedBody),
		})
	}
	if refusal != "" {
		x.p.metrics.refused(x.dir, refusal)
	}
	return body
}

// writeHeaders replaces the context in the headers as a whole: a tracestate or
// baggage that belongs to another traceparent must not stay.
func (x *exchange) writeHeaders(r *http.Request) {
	set := func(name, value string) {
		if value == "" {
			delete(r.Header, name)
		} else {
			r.Header[name] = []string{value}
		}
	}
	set(headerTraceparent, x.context.Traceparent())
	set(headerTracestate, string(x.context.State))
	set(headerBaggage, x.context.Baggage)
	if x.tylo != nil {
		set(headerTyloTrace, x.tylo.TraceID)
		set(headerTyloParent, x.tylo.ParentSpanID)
	}
}

// edit is what stamp asks of the codec.
func (x *exchange) edit(r *http.Request) wire.Edit {
	e := wire.Edit{
		Traceparent: x.context.Traceparent(), Tracestate: string(x.context.State), Baggage: x.context.Baggage,
		Ancestry: x.msg.Ancestry, MaxSize: int(x.policy.InspectedBody),
	}
	if x.dir == ingress && !x.trusted {
		e.Ancestry = "" // as its header
	}
	if x.dir == egress {
		e.InMessage = allows(x.policy.A2AInMessage, authority(r.URL), false)
		e.Tylo = x.tylo
		// What the host has passed on is its caller's, and is replaced or removed.
		e.Ancestry = ""
		told := allows(x.policy.AncestryInMessage, authority(r.URL), false)
		if x.pipe {
			told = x.msg.Kind == wire.Request // there is no header, and nothing begins with a notification
		}
		if len(x.sent.Ancestors) > 0 && told {
			e.Ancestry = x.sent.Header()
		}
	}
	return e
}

// newContext begins a trace without a span of ours. Whether it counts as
// sampled follows the configured share, because whoever samples by its parent
// would follow a zero and drop its own spans.
func (x *exchange) newContext() spanContext {
	var c spanContext
	for c.TraceID == (wire.TraceID{}) {
		fill(c.TraceID[:])
	}
	for c.SpanID == (wire.SpanID{}) {
		fill(c.SpanID[:])
	}
	c.Flags = x.flags()
	return c
}

// flags are those of a trace that begins here.
func (x *exchange) flags() byte {
	if rand.Float64() < x.policy.Sample {
		return wire.FlagSampled
	}
	return 0
}

// digest shortens what a peer wants back unchanged to a key.
func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return string(sum[:])
}

// fill makes random bytes that need not be secret: trace ids are no evidence
// that anybody could gain by guessing.
func fill(b []byte) {
	for i := 0; i < len(b); i += 8 {
		v := rand.Uint64()
		for j := range b[i:min(i+8, len(b))] {
			b[i+j] = byte(v >> (8 * j))
		}
	}
}

// record hands a link to the recorder and remembers its commit.
func (x *exchange) record(l ancestry.Link) {
	x.owed = append(x.owed, x.p.o.Recorder.Record(l))
}

// awaitCommit holds the answer back until what was recorded is durable, for no
// longer than the commit timeout.
func (x *exchange) awaitCommit(ctx contextDone) {
	if len(x.owed) == 0 {
		return
	}
	owed := x.owed
	x.owed = nil
	began := time.Now()
	if outcome := x.await(owed, ctx); outcome != "" {
		x.p.metrics.committed(outcome, began)
	}
}

// await returns how the newest of some commits has ended, or "" if nobody waits
// any more. It waits for each: a newer one that is refused ends before an older.
func (x *exchange) await(owed []ancestry.Commit, ctx contextDone) commitOutcome {
	var timeout *time.Timer
	for _, c := range owed {
		select {
		case <-c.Done():
			continue
		default:
		}
		if timeout == nil {
			wait := x.policy.CommitTimeout
			if x.pipe {
				wait -= time.Since(x.began) // all that is behind this answer waits, too
			}
			timeout = time.NewTimer(wait)
			defer timeout.Stop()
		}
		select {
		case <-c.Done():
		case <-timeout.C:
			return commitTimeout
		case <-ctx.Done():
			return ""
		}
	}
	if owed[len(owed)-1].Err() != nil {
		return commitLost
	}
	return commitDurable
}
