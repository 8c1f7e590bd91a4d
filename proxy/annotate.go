package proxy

import (
	"bytes"
	"context"
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
	known wire.Causation
	void  bool // the run has an event of the same id
}

// askForCauses makes out, which is in on its way to the host, ask for events
// that can be edited, if it asks for those of a run that an event on another
// host is known to have caused. That event's id has to be one which nobody comes
// upon by chance: it is compared with what the host has written.
func (x *exchange) askForCauses(in, out *http.Request) {
	if !x.policy.Claim.claims() || x.head.openwop != openwop.Events && x.head.openwop != openwop.Poll {
		return
	}
	parent := x.parentOfPath(in.Context())
	if parent == nil || parent.Host == x.p.o.HostID || !attribution.Opaque(parent.Event) ||
		!x.p.advertised.of(in.Context(), x.head.v1).by(x.policy.Claim).Causation {
		return
	}
	x.causes = &causes{x: x, known: wire.Causation{Event: parent.Event, Host: parent.Host, Limit: x.policy.InspectedEvent}}
	x.askForDocument(in, out, &document{edit: x.causes.annotate, unread: x.causes.unread})
}

// parentOfPath is the recorded parent of the run that the path names, or nil.
func (x *exchange) parentOfPath(ctx context.Context) *ancestry.Ancestor {
	parse := ancestry.ParseSegmentV2
	if x.head.v1 {
		parse = ancestry.ParseSegmentV1
	}
	id, err := parse(x.head.segment)
	if err != nil {
		return nil
	}
	run := x.p.runs.Known(id)
	if run == nil {
		run = x.p.storedRun(ctx, id)
	}
	if run == nil {
		return nil
	}
	return run.Chain.Parent()
}

// annotate edits one document, or the data of one event of a stream.
func (c *causes) annotate(body []byte) (out []byte, changed bool) {
	if c.void {
		return body, false
	}
	var outcomes []wire.CausationOutcome
	out = body // after a fault of ours
	c.x.guard(func() {
		out = c.known.Annotate(body, func(o wire.CausationOutcome) { outcomes = append(outcomes, o) })
	})
	for _, o := range outcomes {
		c.x.p.metrics.annotations.WithLabelValues(string(o)).Inc()
		c.void = c.void || o == wire.CausationCollision
	}
	return out, slices.Contains(outcomes, wire.CausationAnnotated) && !bytes.Equal(out, body)
}

// unread counts what passes as it is because it can't be read.
func (c *causes) unread() {
	c.x.p.metrics.annotations.WithLabelValues(string(wire.CausationUnread)).Inc()
}

// passEvents edits the events of a stream as they pass. What is neither a stream
// nor a document of events passes as it is.
func (c *causes) passEvents(resp *http.Response) {
	h := resp.Header
	switch contentType := h.Get("Content-Type"); {
	case resp.StatusCode != http.StatusOK:
		return
	case isJSON(contentType):
		return // as a document
	case !strings.HasPrefix(contentType, "text/event-stream"), uneditable(resp):
		c.unread()
	default:
		resp.Body = &annotator{ReadCloser: resp.Body, causes: c, limit: c.x.policy.InspectedBody}
		resp.ContentLength = -1
		delete(h, "Content-Length")
	}
	c.x.document = nil
}

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
			a.flush() // an event that is cut off
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
		a.causes.unread()
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
