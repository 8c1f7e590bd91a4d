package proxy

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/wopproxy/wopproxy/ancestry"
	"github.com/wopproxy/wopproxy/proxy/internal/attribution"
	"github.com/wopproxy/wopproxy/proxy/internal/openwop"
	"github.com/wopproxy/wopproxy/proxy/internal/wire"
)

// causes is what is to be written into the events of one run: the host of the
// event that has caused it. Whether it is written follows from the run alone, so
// that every rendering of an event has the same bytes.
type causes struct {
	x     *exchange
	run   ancestry.RunID // whose events they are
	known wire.Causation
	void  bool // the run has an event of the same id
}

// askForCauses makes out, which is in on its way to the host, ask for events
// that can be edited, if it asks for those of a run that an event on another
// host is known to have caused. That event's id has to be one which nobody comes
// upon by chance: it is compared with what the host has written.
func (x *exchange) askForCauses(in, out *http.Request) {
	switch x.head.openwop {
	case openwop.Events, openwop.Poll, openwop.Bundle:
	default:
		return
	}
	if !x.policy.Claim.claims() {
		return
	}
	run, err := x.pathRun()
	if err != nil {
		return
	}
	cause := x.p.causeOf(in.Context(), run)
	if cause == nil || !attribution.Opaque(cause.Event) || !x.p.advertised.of(in.Context(), x.head.v1).by(x.policy.Claim).Causation {
		return
	}
	x.causes = &causes{
		x: x, run: run, void: x.p.watch.collides(run),
		known: wire.Causation{Event: cause.Event, Host: cause.Host, Limit: x.policy.InspectedEvent},
	}
	x.askForDocument(in, out, &document{edit: x.causes.annotate, unread: x.causes.unread})
}

// maxForks bounds how many forks of forks are followed to the run that has a
// parent.
const maxForks = 16

// causeOf is the ancestor on another host whose event has caused a run; nil: none
// is known. What another run has begun on this host goes on with that one's cause,
// and so does a fork, whose log begins with its source's.
func (p *Proxy) causeOf(ctx context.Context, id ancestry.RunID) *ancestry.Ancestor {
	for range maxForks {
		l, err := p.lookup(ctx, id)
		if err != nil {
			return nil
		}
		if l.Source != "" {
			id = l.Source
			continue
		}
		i := slices.IndexFunc(l.Chain.Ancestors, func(a ancestry.Ancestor) bool { return a.Host != p.o.HostID })
		if i < 0 {
			return nil
		}
		return &l.Chain.Ancestors[i]
	}
	return nil
}

// annotate edits one document, or the data of one event of a stream.
func (c *causes) annotate(body []byte) (out []byte, changed bool) {
	if c.void {
		return body, false
	}
	out = body // after a fault of ours
	c.x.guard(func() { out = c.known.Annotate(body, c.note) })
	return out, !bytes.Equal(out, body)
}

// note counts what became of an event.
func (c *causes) note(o wire.CausationOutcome, why wire.Refusal) {
	c.x.p.metrics.annotations.WithLabelValues(string(o)).Inc()
	if o == wire.CausationCollision && !c.void {
		c.void = true
		c.x.p.watch.collided(c.run) // what else there is to read of it does not show why
	}
	if why != "" {
		c.x.p.metrics.unread(documentEvents, why)
	}
}

// unread counts what passes as it is because it can't be read.
func (c *causes) unread(why wire.Refusal) { c.note(wire.CausationUnread, why) }

// passEvents edits the events of a stream as they pass. What is neither a stream
// nor a document of events passes as it is.
func (c *causes) passEvents(resp *http.Response) {
	h := resp.Header
	switch contentType, why := h.Get("Content-Type"), uneditable(resp); {
	case resp.StatusCode != http.StatusOK:
		return
	case isJSON(contentType), strings.HasPrefix(contentType, mediaCloudEvents):
		return // as a document
	case !strings.HasPrefix(contentType, "text/event-stream"):
		c.unread(wire.RefusedUnrecognised)
	case why != "":
		c.unread(why)
	default:
		resp.Body = &annotator{ReadCloser: resp.Body, causes: c, limit: c.x.policy.InspectedBody}
		resp.ContentLength = -1
		delete(h, "Content-Length")
	}
	c.x.document = nil
}

// mediaCloudEvents begins the media types of one CloudEvent, and of several, as
// JSON.
const mediaCloudEvents = "application/cloudevents"

// annotator edits the events of a text/event-stream. It holds back lines from
// the first with data to the end of their event, because nobody reads those
// before that, and an open line; all else passes at once.
//
// The edit keeps the number of lines in the data, so each line of data gets what
// it now holds, and all that stands around it stays.
type annotator struct {
	io.ReadCloser
	causes *causes
	limit  int64 // bytes held of one event; a longer one passes as it is, and is counted

	out    bytes.Buffer // what may be read
	err    error        // how the source ended; told when out is empty
	held   []byte
	line   int    // where in held the open line begins
	length int64  // of the open line so far
	data   []part // the values of the data lines in held
	passes bool   // the open event passes as it is
	sawCR  bool   // the last byte was CR: an LF right after it ends no other line
}

// part is held[from:to].
type part struct{ from, to int }

func (a *annotator) Read(b []byte) (int, error) {
	for a.out.Len() == 0 && len(b) > 0 {
		if a.err != nil {
			return 0, a.err
		}
		n, err := a.ReadCloser.Read(b)
		a.write(b[:n])
		if err != nil {
			if !a.passes && bytes.HasPrefix(a.held, []byte("data")) && !errors.Is(err, context.Canceled) {
				a.causes.unread(wire.RefusedCutOff)
			}
			a.flush()
			a.err = err
		}
	}
	n, _ := a.out.Read(b) // whose end is not the stream's
	if a.out.Len() == 0 && a.out.Cap() > keptFrame {
		a.out = bytes.Buffer{}
	}
	return n, nil
}

// write takes the next chunk of the stream.
func (a *annotator) write(chunk []byte) {
	for len(chunk) > 0 {
		if a.sawCR {
			if a.sawCR = false; chunk[0] == '\n' {
				a.endCRLF()
				chunk = chunk[1:]
				continue
			}
		}
		i := bytes.IndexAny(chunk, "\r\n")
		if i < 0 {
			a.length += int64(len(chunk))
			a.hold(chunk)
			return
		}
		a.length += int64(i)
		a.hold(chunk[:i+1])
		a.sawCR = chunk[i] == '\r'
		chunk = chunk[i+1:]
		a.endLine()
	}
}

// endCRLF takes the LF behind a CR, with which the line has ended already.
func (a *annotator) endCRLF() {
	if len(a.held) == 0 {
		a.out.WriteByte('\n')
		return
	}
	a.held = append(a.held, '\n')
	a.line = len(a.held)
}

// hold adds to the open line.
func (a *annotator) hold(some []byte) {
	a.held = append(a.held, some...)
	if !a.passes && int64(len(a.held)) > a.limit {
		a.passes = true
		a.causes.unread(wire.RefusedTooLarge)
	}
	if a.passes {
		a.flush()
	}
}

// endLine takes the line that has just ended.
func (a *annotator) endLine() {
	empty := a.length == 0
	a.length = 0
	switch {
	case a.passes:
		a.passes = !empty
		return
	case empty:
		a.edit()
		return
	}
	from, to := a.line, len(a.held)-1
	name, _, _ := bytes.Cut(a.held[from:to], []byte(":"))
	value := min(from+len(name)+1, to)
	if value < to && a.held[value] == ' ' {
		value++
	}
	switch {
	case string(name) == "data":
		a.data = append(a.data, part{value, to})
	case string(name) == "event" && noEvents[string(a.held[value:to])]:
		a.passes = true
	}
	if a.line = len(a.held); a.passes || len(a.data) == 0 {
		a.flush()
	}
}

// noEvents are the frames of a run's stream that are not of its log.
var noEvents = map[string]bool{"state.snapshot": true, "ai.message.chunk": true, "run.annotated": true}

// edit hands on the event that is held, with what is to be written into it.
func (a *annotator) edit() {
	defer a.flush()
	if len(a.data) == 0 {
		return
	}
	var data []byte
	for i, p := range a.data {
		if i > 0 {
			data = append(data, '\n')
		}
		data = append(data, a.held[p.from:p.to]...)
	}
	changed := false
	a.causes.x.guard(func() { data, changed = a.causes.annotate(data) })
	lines := bytes.Split(data, []byte("\n"))
	if !changed || len(lines) != len(a.data) {
		return
	}
	done := 0
	for i, p := range a.data {
		a.out.Write(a.held[done:p.from])
		a.out.Write(lines[i])
		done = p.to
	}
	a.held = append(a.held[:0], a.held[done:]...)
}

// flush hands on what is held, as it is.
func (a *annotator) flush() {
	a.out.Write(a.held)
	if a.held, a.line, a.data = a.held[:0], 0, a.data[:0]; cap(a.held) > keptFrame {
		a.held = nil
	}
}
