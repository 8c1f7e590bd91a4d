package proxy

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/wopproxy/wopproxy/ancestry"
	"github.com/wopproxy/wopproxy/evidence"
	"github.com/wopproxy/wopproxy/proxy/internal/attribution"
	"github.com/wopproxy/wopproxy/proxy/internal/wire"
)

// Pipes are the ends that somebody holds who stands between a stdio MCP server
// and its client.
type Pipes struct {
	FromClient io.ReadCloser
	ToClient   io.WriteCloser
	FromServer io.ReadCloser
	ToServer   io.WriteCloser
}

// Environment is the trace context of the process, as TRACEPARENT, TRACESTATE
// and BAGGAGE have it. It is the context of every message of the client that
// bears none.
type Environment struct{ Traceparent, Tracestate, Baggage string }

func (e Environment) context() spanContext {
	return wire.ParseContext([]string{e.Traceparent}, []string{e.Tracestate}, []string{e.Baggage})
}

// Stdio carries the lines between a stdio MCP server, which is the host, and its
// client, until the server has closed its output: requests and notifications
// pass like those of HTTP, with _meta for a header, and everything else as it
// came. Whichever pipe ends or breaks, the end is handed on to its other side.
//
// Lines that the client sends later are carried on as long as the process lasts.
func (p *Proxy) Stdio(pipes Pipes, env Environment) {
	s := &stdio{
		p:       p,
		ambient: env.context(),
		client:  &lineWriter{w: pipes.ToClient},
	}
	s.calls = map[direction]map[string]*open{ingress: {}, egress: {}}
	s.tokens = map[direction]map[string][]*asked{ingress: {}, egress: {}}
	said := make(chan struct{}) // closed when the client has said all
	go func() {
		if s.pump(ingress, pipes.FromClient, &lineWriter{w: pipes.ToServer}) {
			close(said)
		}
		pipes.ToServer.Close()
		pipes.FromClient.Close()
	}()
	s.pump(egress, pipes.FromServer, s.client)
	pipes.ToClient.Close()
	pipes.FromServer.Close()
	select {
	case <-said:
		s.close(outcomeClient)
	default:
		s.close(outcomeUpstream)
	}
}

// cancelGrace is how long the answer to a request that its sender has cancelled
// may still come. Usually there is none.
const cancelGrace = time.Minute

// stdio is one server and its one client.
type stdio struct {
	p       *Proxy
	ambient spanContext
	client  *lineWriter

	mu     sync.Mutex
	calls  map[direction]map[string]*open    // requests without an answer yet, by their ids
	tokens map[direction]map[string][]*asked // and by the tokens of their progress, if evidence is made of it
	ids    int                               // in calls
	closed bool
}

// open is what waits for an answer under one id: several requests only if their sender
// uses it again too early. Then it is not known which one an answer is for, and
// all of them end with the last.
type open struct {
	calls   []*asked
	answers int
}

// asked is a request, or a batch of them, that waits for its answers.
type asked struct {
	x    *exchange
	r    *http.Request
	left int // answers to come
	late *time.Timer
}

// pump hands on one direction, line by line, until either side ends. It reports
// whether it was the sender.
func (s *stdio) pump(dir direction, from io.Reader, to *lineWriter) bool {
	lines := bufio.NewReaderSize(from, 64<<10)
	for {
		line, whole, readErr := readLine(lines, s.p.policy.Load().StdioLine)
		var err error
		switch {
		case whole && len(line) > 0:
			err = to.write(s.carry(dir, line))
		case !whole:
			s.p.metrics.limit(limitLine)
			s.p.metrics.refused(dir, wire.RefusedTooLarge)
			err = to.stream(line, lines)
		}
		if err != nil || readErr != nil {
			return err == nil
		}
	}
}

// readLine returns the next line with its end, which the last one may lack. If
// it is longer than limit, it returns its beginning and false.
func readLine(r *bufio.Reader, limit int64) (line []byte, whole bool, err error) {
	for {
		part, err := r.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case int64(len(line)) > limit && errors.Is(err, bufio.ErrBufferFull):
			return line, false, nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return line, true, err
		}
	}
}

// lineWriter keeps the lines of several writers whole.
type lineWriter struct {
	mu sync.Mutex
	w  io.Writer
}

// write writes a line and its end at once.
func (w *lineWriter) write(line []byte) error {
	if len(line) == 0 {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	_, err := w.w.Write(line)
	return err
}

// stream writes a line of which begin has been read, as the rest of it comes.
func (w *lineWriter) stream(begin []byte, rest *bufio.Reader) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	part, more := begin, error(bufio.ErrBufferFull)
	for {
		if _, err := w.w.Write(part); err != nil {
			return err
		}
		if !errors.Is(more, bufio.ErrBufferFull) {
			return nil // what broke the source breaks the next read, too
		}
		part, more = rest.ReadSlice('\n')
	}
}

// carry does with one line what has to be done before it is handed on, and
// returns what to hand on.
func (s *stdio) carry(dir direction, line []byte) []byte {
	x := &exchange{p: s.p, policy: s.p.policy.Load(), dir: dir, outcome: outcomeAnswered, pipe: true, body: line}
	x.head.hints.Protocol = wire.MCP // by configuration: that is what a stdio server speaks
	if int64(len(bytes.TrimRight(line, "\r\n"))) > x.policy.StdioLine {
		s.p.metrics.limit(limitLine)
		s.p.metrics.refused(dir, wire.RefusedTooLarge)
		return line
	}
	x.recognise()
	switch x.msg.Kind {
	case wire.Request, wire.Notification:
		if x.msg.Protocol == wire.MCP {
			return s.send(x)
		}
	case wire.Response:
		s.settle(dir.opposite(), x.msg.ID, line)
		return line
	case wire.Batch:
		asks := false
		for _, item := range x.msg.Batch {
			if item.Kind == wire.Response {
				s.settle(dir.opposite(), item.ID, line)
			}
			asks = asks || item.Kind == wire.Request || item.Kind == wire.Notification
		}
		if asks && x.msg.Protocol == wire.MCP {
			return s.send(x)
		}
		return line
	}
	if x.msg.Refusal != "" && len(bytes.TrimSpace(line)) > 0 {
		s.p.metrics.refused(dir, x.msg.Refusal)
	}
	return line
}

// opposite is where the answer to a request comes from.
func (d direction) opposite() direction {
	if d == ingress {
		return egress
	}
	return ingress
}

// send passes a request, a notification or a batch through the exchange.
func (s *stdio) send(x *exchange) []byte {
	// A line has no head. What is kept of one says that a request may leave work
	// behind.
	r := &http.Request{
		Method: http.MethodPost, URL: &url.URL{Scheme: "stdio", Host: "localhost"}, Header: http.Header{},
		RemoteAddr: "127.0.0.1:0", // for rules of trust: the other side is a process beside us
	}
	if x.dir == ingress {
		x.ambient = s.ambient
		x.guard(func() { x.read(r) })
		if x.isRPC() {
			if f := x.refuse(); f != nil {
				x.outcome = outcomeRefused
				x.end(r)
				// The server may be in the middle of a line that takes its time.
				go func() { _ = s.client.write(append(f.body, '\n')) }()
				return nil
			}
		}
		x.guard(func() { x.arrive(r); x.bindRelated() })
		if x.msg.Method == "subscriptions/listen" {
			x.idle(r) // for hours, perhaps; what comes of it are notifications
		}
	} else {
		x.relate()
		x.guard(func() { x.leave(r); x.handOff(r) })
		if x.msg.Kind == wire.Notification && x.msg.TaskID != "" {
			x.guard(func() { x.learn(x.body, true) }) // of the state of a task that is a run here
		}
	}
	line := x.body
	x.guard(func() { line = x.stampLine(r) })
	x.handedOff(ancestry.HandoffDispatching)
	if x.msg.Kind == wire.Notification {
		if x.msg.Cancelled != "" {
			s.cancel(x.dir, x.msg.Cancelled)
		}
		if x.msg.ProgressToken != "" {
			s.progress(x.dir.opposite(), x.msg.ProgressToken)
		}
		x.end(r)
		return line
	}
	s.follow(&asked{x: x, r: r})
	return line
}

// follow waits for the answers to a request or batch. What can't be followed
// counts as live until its time is over: its end will not be seen.
func (s *stdio) follow(c *asked) {
	ids := []string{c.x.msg.ID}
	if c.x.msg.Kind == wire.Batch {
		ids = nil
		for _, item := range c.x.msg.Batch {
			if item.Kind == wire.Request {
				ids = append(ids, item.ID)
			}
		}
		if len(ids) == 0 { // nothing but notifications, and answers perhaps
			c.x.end(c.r)
			return
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ids+len(ids) > s.p.o.MaxRuns {
		s.p.metrics.limit(limitRuns)
		return
	}
	if token := c.x.msg.ProgressToken; token != "" && c.x.msg.ID != "" && c.x.step != nil && !s.closed {
		s.tokens[c.x.dir][token] = append(s.tokens[c.x.dir][token], c)
	}
	for _, id := range ids {
		c.left++ // one without an id that can be read is never answered
		if id == "" || s.closed {
			continue
		}
		of := s.calls[c.x.dir][id]
		if of == nil {
			of = &open{}
			s.calls[c.x.dir][id] = of
		}
		of.calls = append(of.calls, c)
		s.ids++
	}
}

// settle takes an answer to a request of direction dir.
func (s *stdio) settle(dir direction, id string, answer []byte) {
	s.mu.Lock()
	of := s.calls[dir][id]
	if of != nil {
		of.answers++
	}
	if of == nil || of.answers < len(of.calls) {
		s.mu.Unlock()
		return
	}
	s.forget(dir, id)
	var ended []*asked
	for _, c := range of.calls {
		if c.left--; c.left == 0 {
			ended = append(ended, c)
		}
	}
	s.mu.Unlock()
	for _, c := range ended {
		if len(of.calls) == 1 {
			c.x.guard(func() { c.x.learn(answer, true) })
		}
		c.x.awaitCommit(c.r.Context())
		c.end()
	}
}

// forget takes the calls of an id out of the table.
func (s *stdio) forget(dir direction, id string) {
	s.ids -= len(s.calls[dir][id].calls)
	for _, c := range s.calls[dir][id].calls {
		token := c.x.msg.ProgressToken
		left := slices.DeleteFunc(s.tokens[dir][token], func(other *asked) bool { return other == c })
		if len(left) == 0 {
			delete(s.tokens[dir], token)
		} else {
			s.tokens[dir][token] = left
		}
	}
	delete(s.calls[dir], id)
}

// progress tells of that of the one request of direction dir with a token.
func (s *stdio) progress(dir direction, token string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if known := s.tokens[dir][token]; len(known) == 1 {
		step := known[0].x.step
		s.p.o.Evidence.Progress(step, evidence.Observed{Direction: step.Direction, Protocol: step.Protocol, Ended: time.Now()})
	}
}

// cancel notes that the sender of a request no longer wants an answer.
func (s *stdio) cancel(dir direction, id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	of := s.calls[dir][id]
	if of == nil || len(of.calls) != 1 || of.calls[0].late != nil {
		return
	}
	c := of.calls[0]
	c.late = time.AfterFunc(cancelGrace, func() {
		s.mu.Lock()
		if s.calls[dir][id] != of || len(of.calls) != 1 {
			s.mu.Unlock()
			return // answered after all
		}
		s.forget(dir, id)
		c.left--
		over := c.left == 0
		s.mu.Unlock()
		if over {
			c.x.outcome = outcomeClient
			c.end()
		}
	})
}

// close ends all that will find no answer any more.
func (s *stdio) close(outcome outcome) {
	s.mu.Lock()
	s.closed = true
	left := map[*asked]bool{}
	for dir := range s.calls {
		for id, of := range s.calls[dir] {
			for _, c := range of.calls {
				left[c] = true
			}
			s.forget(dir, id)
		}
	}
	s.mu.Unlock()
	for c := range left {
		c.x.outcome = outcome
		c.end()
	}
}

// end settles what is left of a call.
func (c *asked) end() {
	if c.late != nil {
		c.late.Stop()
	}
	c.x.guard(func() { c.x.end(c.r) })
}

// stampLine writes the context into the message, the one place there is.
func (x *exchange) stampLine(r *http.Request) []byte {
	defer func() { x.p.metrics.overhead.WithLabelValues(string(x.dir)).Observe(sinceSeconds(x.began)) }()
	if !x.context.Valid() {
		return x.unnamed()
	}
	line, edited := x.splice(x.edit(r))
	if edited {
		x.p.metrics.stamped(x.dir, x.protocol(), "message")
	}
	return line
}

// What a message of the server may bear that only one run's request did.
const (
	kindProgress = "mcp-progress" // token that the client has given with a request
	kindTask     = "mcp-task"     // task that a request has become
)

// bindRelated ties the progress token of a request to the run that it is.
func (x *exchange) bindRelated() {
	if x.msg.ProgressToken != "" {
		x.bind(attribution.Key{Kind: kindProgress, ID: x.msg.ProgressToken})
	}
}

// relate notes which of the client's requests a message of the server is about.
func (x *exchange) relate() {
	if x.msg.Kind == wire.Notification { // in a request the token is the server's own
		x.clues.Keys = append(x.clues.Keys, attribution.Key{Kind: kindProgress, ID: x.msg.ProgressToken})
	}
	x.clues.Keys = append(x.clues.Keys, attribution.Key{Kind: kindTask, ID: x.msg.TaskID})
}
