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
	Skipped []string // why a part of the log is no event, for each
}

// ReadLog reads an event log in any of the forms in which hosts give it out: a
// JSON list of events, an object with the list in its member events (a poll, a
// debug bundle), one event a line, or a recorded event stream with its frames
// and batches. What is no event is skipped and reported; an error means that
// the text is in none of these forms or ended early.
func ReadLog(r io.Reader) (Log, error) {
	br := bufio.NewReader(r)
	var l Log
	first, err := firstByte(br)
	switch {
	case errors.Is(err, io.EOF):
		return l, errors.New("the log is empty")
	case err != nil:
		return l, err
	case first == '{' || first == '[':
		return l, l.readJSON(br)
	}
	return l, l.readStream(br)
}

// firstByte skips white space and a byte order mark.
func firstByte(br *bufio.Reader) (byte, error) {
	for {
		c, _, err := br.ReadRune()
		if err != nil {
			return 0, err
		}
		if c != '\uFEFF' && !strings.ContainsRune(" \t\r\n", c) {
			return byte(c), br.UnreadRune()
		}
	}
}

// ParseEvents reads one document of a stream or an answer to a poll: an event, a
// list of events, or an object with the list in its member events. What is none
// is skipped.
func ParseEvents(doc []byte) []Event {
	var l Log
	l.add(doc)
	return l.Events
}

func (l *Log) readJSON(r io.Reader) error {
	dec := json.NewDecoder(r)
	for {
		var doc json.RawMessage
		if err := dec.Decode(&doc); err == io.EOF {
			return nil
		} else if err != nil {
			return fmt.Errorf("the log is not JSON behind byte %d: %w", dec.InputOffset(), err)
		}
		l.add(doc)
	}
}

// add takes one event, a list of events, or what has such a list inside.
func (l *Log) add(doc []byte) {
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
	for _, one := range list {
		if e, err := ParseEvent(one); err != nil {
			l.Skipped = append(l.Skipped, fmt.Sprintf("%.60q: %v", one, err))
		} else {
			l.Events = append(l.Events, e)
		}
	}
}

// readStream reads the frames of an event stream; their ends are blank lines.
func (l *Log) readStream(br *bufio.Reader) error {
	var data []byte
	fields := false
	for {
		line, err := br.ReadBytes('\n')
		if err != nil && err != io.EOF {
			return err
		}
		end := err == io.EOF
		switch line = bytes.TrimRight(line, "\r\n"); {
		case len(line) == 0:
			if len(bytes.TrimSpace(data)) > 0 {
				l.add(data)
			}
			data = nil
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
				l.Skipped = append(l.Skipped, "the last frame is cut off")
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
