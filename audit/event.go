package audit

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
)

// Event is one document of a run's event log, as far as the rules look at it.
type Event struct {
	ID       string          `json:"eventId"`
	Run      string          `json:"runId"`
	Type     string          `json:"type"`
	Sequence int64           `json:"sequence"`
	Time     time.Time       `json:"timestamp"`
	Cause    string          `json:"causationId"`
	Payload  json.RawMessage `json:"payload"`
}

// ErrNoEvent says that a document is no event: a snapshot or a chunk of a
// message, which streams carry beside events, or something foreign.
var ErrNoEvent = errors.New("not an event of a run")

// ParseEvent reads one event. A timestamp that is none leaves Time zero.
func ParseEvent(doc []byte) (Event, error) {
	var e struct {
		Event
		Sequence *int64          `json:"sequence"`
		Time     json.RawMessage `json:"timestamp"`
	}
	if err := json.Unmarshal(doc, &e); err != nil {
		return Event{}, fmt.Errorf("%w: %w", ErrNoEvent, err)
	}
	if e.ID == "" || e.Run == "" || e.Type == "" || e.Sequence == nil {
		return Event{}, fmt.Errorf("%w: eventId, runId, type and sequence are required", ErrNoEvent)
	}
	e.Event.Sequence = *e.Sequence
	_ = json.Unmarshal(e.Time, &e.Event.Time) // some hosts write numbers
	return e.Event, nil
}

// Log is what ReadLog has found.
type Log struct {
	Events  []Event
	Skipped []string // where a part of the log is no event, and why, for each

	at []string // where each of the events stands
}

// ReadLog reads an event log in any of the forms in which hosts give it out: a
// JSON list of events, an object with the list in its member events (a poll, a
// debug bundle), one event a line, or a recorded event stream with its frames
// and batches. What is no event is skipped and reported, and so is one that has
// the id or the place of another; an error means that nothing of the text is in
// one of these forms. It holds the whole log.
func ReadLog(r io.Reader) (Log, error) {
	br := bufio.NewReader(r)
	var l Log
	before, first, err := firstByte(br)
	switch {
	case errors.Is(err, io.EOF):
		return l, errors.New("the log is empty")
	case err != nil:
		return l, err
	case first == '{' || first == '[':
		err = l.readJSON(br, before+1)
	default:
		err = l.readStream(br, before+1)
	}
	l.dropCollisions()
	return l, err
}

// firstByte skips white space and a byte order mark, and counts the lines.
func firstByte(br *bufio.Reader) (lines int, first byte, err error) {
	for {
		c, _, err := br.ReadRune()
		if err != nil {
			return 0, 0, err
		}
		if c == '\n' {
			lines++
		}
		if c != '\uFEFF' && !strings.ContainsRune(" \t\r\n", c) {
			return lines, byte(c), br.UnreadRune()
		}
	}
}

// ParseEvents reads one document of a stream or an answer to a poll: an event, a
// list of events, or an object with the list in its member events. What is none
// is skipped.
func ParseEvents(doc []byte) []Event {
	var l Log
	l.add(doc, "")
	return l.Events
}

// maxFaults bounds how often reading begins again behind what is no JSON.
const maxFaults = 1000

// readJSON reads one document after the other. Behind what is no JSON it goes on
// with the next line, or element of a list, that is an event.
func (l *Log) readJSON(r io.Reader, line int) error {
	text, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	in := lines{text, line}
	var fault error // of what is being passed over
	faults, read := 0, 0
	for in.next(fault != nil, faults > 0) {
		var doc json.RawMessage
		dec := json.NewDecoder(bytes.NewReader(in.text))
		if err := dec.Decode(&doc); err != nil {
			if fault == nil {
				l.Skipped = append(l.Skipped, fmt.Sprintf("line %d: %.60q: not JSON: %v", in.line, in.text, err))
			}
			if fault, faults = err, faults+1; faults > maxFaults {
				return fmt.Errorf("the log is not JSON in more than %d places, the last in line %d: %w", maxFaults, in.line, err)
			}
			if in.text[0] == '[' {
				in.skip(1) // its elements may be whole
			} else {
				in.skip(in.rest())
			}
			continue
		}
		if fault == nil || len(ParseEvents(doc)) > 0 { // else it is a part of what is no JSON
			l.add(doc, fmt.Sprint("line ", in.line))
			fault, read = nil, read+1
		}
		in.skip(int(dec.InputOffset()))
	}
	if read == 0 {
		return fmt.Errorf("the log is not JSON: %w", fault)
	}
	return nil
}

// lines is a text that is being read, and the number of its first line.
type lines struct {
	text []byte
	line int
}

// skip passes over the first n bytes.
func (t *lines) skip(n int) {
	t.line += bytes.Count(t.text[:n], []byte("\n"))
	t.text = t.text[n:]
}

// rest is how long the first line is.
func (t *lines) rest() int {
	if i := bytes.IndexByte(t.text, '\n'); i >= 0 {
		return i + 1
	}
	return len(t.text)
}

// next passes over what stands before a document, and reports whether there is
// one. Inside of what is no JSON only an object or a list can be one; behind it,
// what joined its parts may be left.
func (t *lines) next(inside, behind bool) bool {
	between := " \t\r\n"
	if behind {
		between += ",]}"
	}
	for {
		t.skip(len(t.text) - len(bytes.TrimLeft(t.text, between)))
		if len(t.text) == 0 || !inside || t.text[0] == '{' || t.text[0] == '[' {
			return len(t.text) > 0
		}
		t.skip(t.rest())
	}
}

// add takes one event, a list of events, or what has such a list inside. where
// tells where it stands.
func (l *Log) add(doc []byte, where string) {
	var list []json.RawMessage
	if doc = bytes.TrimSpace(doc); len(doc) > 0 && doc[0] == '[' {
		_ = json.Unmarshal(doc, &list) // it is JSON
	} else {
		var wrapper struct {
			Events []json.RawMessage `json:"events"`
		}
		if json.Unmarshal(doc, &wrapper) == nil && wrapper.Events != nil {
			list = wrapper.Events
		} else {
			list = []json.RawMessage{doc}
		}
	}
	for i, one := range list {
		at := where
		if len(list) > 1 && where != "" {
			at = fmt.Sprintf("%s, element %d", where, i)
		}
		if e, err := ParseEvent(one); err != nil {
			l.Skipped = append(l.Skipped, fmt.Sprintf("%s: %.60q: %v", at, one, err))
		} else {
			l.Events, l.at = append(l.Events, e), append(l.at, at)
		}
	}
}

// dropCollisions keeps one of several events of a run that have one id, or one
// place in its log: which of them is meant by it, nobody knows. The same event once
// more is no other one.
func (l *Log) dropCollisions() {
	type id struct{ run, event string }
	type place struct {
		run      string
		sequence int64
	}
	byID, byPlace := map[id]int64{}, map[place]string{}
	kept := l.Events[:0]
	for i, e := range l.Events {
		sequence, known := byID[id{e.Run, e.ID}]
		other, taken := byPlace[place{e.Run, e.Sequence}]
		switch {
		case known && sequence != e.Sequence:
			l.Skipped = append(l.Skipped, fmt.Sprintf("%s: event %s at sequence %d has the id of another, at %d", l.at[i], e.ID, e.Sequence, sequence))
			continue
		case taken && other != e.ID:
			l.Skipped = append(l.Skipped, fmt.Sprintf("%s: event %s at sequence %d has the place of another, %s", l.at[i], e.ID, e.Sequence, other))
			continue
		}
		byID[id{e.Run, e.ID}], byPlace[place{e.Run, e.Sequence}] = e.Sequence, e.ID
		kept = append(kept, e)
	}
	l.Events, l.at = kept, nil
}

// readStream reads the frames of an event stream; their ends are blank lines.
func (l *Log) readStream(br *bufio.Reader, n int) error {
	var data []byte
	fields, began := false, n
	for ; ; n++ {
		line, err := br.ReadBytes('\n')
		if err != nil && err != io.EOF {
			return err
		}
		end := err == io.EOF
		switch line = bytes.TrimRight(line, "\r\n"); {
		case len(line) == 0:
			if len(bytes.TrimSpace(data)) > 0 {
				l.add(data, fmt.Sprint("frame in line ", began))
			}
			data, began = nil, n+1
		case bytes.HasPrefix(line, []byte("data:")):
			data = append(append(data, bytes.TrimPrefix(line[len("data:"):], []byte(" "))...), '\n')
			fields = true
		case isField(line):
			fields = true
		case !fields:
			return fmt.Errorf("the log is neither JSON nor an event stream: it begins with %.40q", line)
		}
		if end {
			if len(data) > 0 {
				l.Skipped = append(l.Skipped, fmt.Sprintf("frame in line %d: %.60q: cut off", began, data))
			}
			return nil
		}
	}
}

// isField reports whether a line of a stream is a comment or a field that is no
// data.
func isField(line []byte) bool {
	name, _, _ := bytes.Cut(line, []byte(":"))
	switch string(name) {
	case "", "event", "id", "retry":
		return true
	}
	return false
}
