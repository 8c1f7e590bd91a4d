package proxy

import (
	"bytes"
)

// events cuts a text/event-stream into its events as the bytes pass by. It
// keeps the data of the event that is still open and nothing else.
//
// Lines end in LF, CR or CRLF, and may be cut anywhere between two chunks.
type events struct {
	limit int // data kept per event; a longer event is counted and skipped

	line     []byte // the open line
	data     []byte // the data lines of the open event, joined by LF
	hasData  bool
	overflow bool // the open event is longer than limit
	sawCR    bool // the last byte was CR: an LF right after it ends nothing
}

// write takes the next chunk and calls event with the data of each event that
// ends in it, and tooLong for each that was too long to keep. Events without
// data, comments and other fields are passed over.
func (e *events) write(chunk []byte, event func(data []byte), tooLong func()) {
	for len(chunk) > 0 {
		if e.sawCR {
			e.sawCR = false
			if chunk[0] == '\n' {
				chunk = chunk[1:]
				continue
			}
		}
		i := bytes.IndexAny(chunk, "\r\n")
		if i < 0 {
			e.keep(chunk)
			return
		}
		e.keep(chunk[:i])
		e.sawCR = chunk[i] == '\r'
		chunk = chunk[i+1:]
		e.endLine(event, tooLong)
	}
}

// keep adds to the open line, up to the limit.
func (e *events) keep(part []byte) {
	if room := e.limit + len("data: ") - len(e.line); len(part) > room {
		e.overflow = true
		part = part[:max(room, 0)]
	}
	e.line = append(e.line, part...)
}

// endLine takes the finished line into the event, or, if it is empty, ends the
// event.
func (e *events) endLine(event func([]byte), tooLong func()) {
	line := e.line
	e.line = e.line[:0]
	if len(line) == 0 && !e.overflow {
		if e.hasData {
			event(e.data)
		}
		e.data, e.hasData = e.data[:0], false
		return
	}
	if len(line) == 0 {
		tooLong()
		e.data, e.hasData, e.overflow = e.data[:0], false, false
		return
	}
	value, ok := bytes.CutPrefix(line, []byte("data"))
	if !ok || len(value) > 0 && value[0] != ':' {
		return
	}
	value = bytes.TrimPrefix(bytes.TrimPrefix(value, []byte(":")), []byte(" "))
	if e.hasData {
		e.data = append(e.data, '\n')
	}
	e.hasData = true
	if len(e.data)+len(value) > e.limit {
		e.overflow = true
		return
	}
	e.data = append(e.data, value...)
}
