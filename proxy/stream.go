package proxy

import (
	"bytes"

	"github.com/wopproxy/wopproxy/proxy/internal/wire"
)

// parts cuts a stream as the bytes pass by. write takes the next chunk and calls
// part with each part that ends in it, and tooLong for each that was too long to
// keep. What part is given is only good until it returns.
type parts interface {
	write(chunk []byte, part func([]byte), tooLong func())
}

// events cuts a text/event-stream into its events as the bytes pass by. It
// keeps the data of the event that is still open and nothing else.
//
// Lines end in LF, CR or CRLF, and may be cut anywhere between two chunks.
type events struct {
	limit int // data kept per event; a longer event is counted and skipped

	line     []byte // the open line
	id, name []byte // of the open event; one that is too long counts as none
	data     []byte // the data lines of the open event, joined by LF
	hasData  bool
	overflow bool // the open event is longer than limit
	sawCR    bool // the last byte was CR: an LF right after it ends nothing
}

// write takes the next chunk and calls event with the data of each event that
// ends in it, and tooLong for each that was too long to keep. Events without
// data, comments and other fields are passed over.
func (e *events) write(chunk []byte, event func(data []byte), tooLong func()) {
	for lf := -1; len(chunk) > 0; { // lf is where the next LF is, or the end; negative: unknown
		if e.sawCR {
			e.sawCR = false
			if chunk[0] == '\n' {
				chunk = chunk[1:]
				lf--
				continue
			}
		}
		if lf < 0 {
			if lf = bytes.IndexByte(chunk, '\n'); lf < 0 {
				lf = len(chunk)
			}
		}
		end := lf
		if cr := bytes.IndexByte(chunk[:lf], '\r'); cr >= 0 {
			end = cr
		}
		if end == len(chunk) {
			e.keep(chunk)
			return
		}
		line := chunk[:end]
		if len(e.line) > 0 || len(line) > e.room() {
			e.keep(line)
			line = e.line
		}
		e.sawCR = chunk[end] == '\r'
		chunk = chunk[end+1:]
		lf -= end + 1
		e.endLine(line, event, tooLong)
	}
}

// room is how much more of the open line is kept.
func (e *events) room() int { return max(e.limit+len("data: ")-len(e.line), 0) }

// keep adds to the open line, up to the limit.
func (e *events) keep(part []byte) {
	if room := e.room(); len(part) > room {
		e.overflow = true
		part = part[:room]
	}
	e.line = append(e.line, part...)
}

// endLine takes the finished line into the event, or, if it is empty, ends the
// event.
func (e *events) endLine(line []byte, event func([]byte), tooLong func()) {
	e.line = e.line[:0]
	if len(line) == 0 {
		switch {
		case e.overflow:
			tooLong()
		case e.hasData:
			event(e.data)
		}
		e.id, e.name, e.data, e.hasData, e.overflow = e.id[:0], e.name[:0], e.data[:0], false, false
		return
	}
	field, value, _ := bytes.Cut(line, []byte(":"))
	value = bytes.TrimPrefix(value, []byte(" "))
	switch string(field) {
	case "id":
		e.id = append(e.id[:0], short(value)...)
		return
	case "event":
		e.name = append(e.name[:0], short(value)...)
		return
	case "data":
	default:
		return
	}
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

// short returns v, or nothing if it is too long for an id or a name.
func short(v []byte) []byte {
	if len(v) > 256 {
		return nil
	}
	return v
}

// frames cuts the body of a gRPC answer into its messages as the bytes pass by.
// Compressed ones can't be read and count as too long.
type frames struct {
	limit int64 // of a frame that is kept; a longer one is counted and skipped

	open []byte // the frame that is open, as far as it is kept
	skip int64  // how much of it is still to be passed over
}

// write implements parts.
func (f *frames) write(chunk []byte, message func([]byte), tooLong func()) {
	for len(chunk) > 0 {
		if f.skip > 0 {
			n := min(f.skip, int64(len(chunk)))
			f.skip -= n
			chunk = chunk[n:]
			continue
		}
		want, ok := wire.FrameLength(f.open)
		if !ok {
			want = int64(len(f.open)) + 1 // the head, byte by byte
		}
		n := min(want-int64(len(f.open)), int64(len(chunk)))
		f.open = append(f.open, chunk[:n]...)
		chunk = chunk[n:]
		if want, ok = wire.FrameLength(f.open); !ok {
			continue
		}
		switch have := int64(len(f.open)); {
		case f.open[0] != 0 || want > f.limit:
			tooLong()
			f.skip, f.open = want-have, f.open[:0]
		case want == have:
			data, _ := wire.FrameMessage(f.open) // one frame, and not compressed
			message(data)
			if f.open = f.open[:0]; cap(f.open) > keptFrame {
				f.open = nil
			}
		}
	}
}

// keptFrame bounds what a stream that is waited on holds for its next message.
const keptFrame = 64 << 10
