package boltstore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/wopproxy/wopproxy/ancestry"
)

// maxRecord bounds an encoded link. The parent always fits: what is cut are
// the oldest ancestors.
const maxRecord = 4 << 10

// recordVersion is the first byte of every record. What follows are fields: a
// tag, the length as uvarint, and as many bytes. A tag that is not known is
// skipped, so fields can be added without a new version. Run and Host are not
// among them: they are the key.
const recordVersion = 1

// Tags of a link. A number is never used again for something else.
const (
	tagAlias      = 1
	tagEvidence   = 2
	tagReason     = 3
	tagTrace      = 4
	tagSpan       = 5
	tagParentSpan = 6
	tagOperation  = 7
	tagTime       = 8  // milliseconds since 1970, varint
	tagMore       = 9  // empty
	tagDepth      = 10 // uvarint
	tagAncestor   = 11 // fields; nearest first
	tagSource     = 12
	tagWorkflow   = 13
)

// Tags within an ancestor.
const (
	tagAncestorRun       = 1
	tagAncestorHost      = 2
	tagAncestorWellKnown = 3
	tagAncestorCause     = 4
	tagAncestorEvent     = 5
)

// errRecord says that a record is not one of ours.
var errRecord = errors.New("damaged record")

// encodeLink returns the record of l.
func encodeLink(l ancestry.Link) []byte {
	for n := len(l.Chain.Ancestors) - 1; ; n-- {
		var scratch [512]byte // records are kept: they take no more than they need
		b := appendLink(scratch[:0], l)
		if len(b) <= maxRecord || n < 1 {
			return bytes.Clone(b)
		}
		l.Chain = l.Chain.Nearest(n)
	}
}

func appendLink(b []byte, l ancestry.Link) []byte {
	b = append(b, recordVersion)
	b = appendField(b, tagAlias, string(l.Alias))
	b = appendField(b, tagEvidence, string(l.Evidence))
	b = appendField(b, tagReason, l.Reason)
	b = appendField(b, tagSource, string(l.Source))
	if !l.Trace.IsZero() {
		b = appendField(b, tagTrace, string(l.Trace[:]))
	}
	if !l.Span.IsZero() {
		b = appendField(b, tagSpan, string(l.Span[:]))
	}
	if !l.ParentSpan.IsZero() {
		b = appendField(b, tagParentSpan, string(l.ParentSpan[:]))
	}
	b = appendField(b, tagOperation, l.Operation)
	b = appendField(b, tagWorkflow, l.Workflow)
	var num [binary.MaxVarintLen64]byte
	b = appendField(b, tagTime, string(num[:binary.PutVarint(num[:], l.Time.UnixMilli())]))
	if l.Chain.More {
		b = append(b, tagMore, 0)
	}
	if l.Chain.Depth > 0 {
		b = appendField(b, tagDepth, string(num[:binary.PutUvarint(num[:], uint64(l.Chain.Depth))]))
	}
	var scratch [512]byte
	for _, a := range l.Chain.Ancestors {
		f := appendField(scratch[:0], tagAncestorRun, string(a.Run))
		f = appendField(f, tagAncestorHost, a.Host)
		f = appendField(f, tagAncestorWellKnown, a.WellKnown)
		f = appendField(f, tagAncestorCause, string(a.Cause))
		f = appendField(f, tagAncestorEvent, a.Event)
		b = appendField(b, tagAncestor, string(f))
	}
	return b
}

// appendField appends one field, unless it says nothing.
func appendField(b []byte, tag byte, v string) []byte {
	if v == "" {
		return b
	}
	b = binary.AppendUvarint(append(b, tag), uint64(len(v)))
	return append(b, v...)
}

// decodeLink returns the link that is stored under key.
func decodeLink(key string, record []byte) (ancestry.Link, error) {
	if len(record) == 0 || record[0] != recordVersion {
		return ancestry.Link{}, fmt.Errorf("run %.40q: %w", key, errRecord)
	}
	var l ancestry.Link
	run, host, _ := strings.Cut(key, " ")
	l.Run, l.Host = ancestry.RunID(run), host
	err := eachField(record[1:], func(tag byte, v []byte) error { return decodeField(&l, tag, v) })
	if err != nil {
		return ancestry.Link{}, fmt.Errorf("run %.40q: %w", key, err)
	}
	return l, nil
}

func decodeField(l *ancestry.Link, tag byte, v []byte) error {
	switch tag {
	case tagAlias:
		l.Alias = ancestry.RunID(v)
	case tagEvidence:
		l.Evidence = ancestry.Evidence(v)
	case tagReason:
		l.Reason = string(v)
	case tagSource:
		l.Source = ancestry.RunID(v)
	case tagTrace:
		return fixed(l.Trace[:], v)
	case tagSpan:
		return fixed(l.Span[:], v)
	case tagParentSpan:
		return fixed(l.ParentSpan[:], v)
	case tagOperation:
		l.Operation = string(v)
	case tagWorkflow:
		l.Workflow = string(v)
	case tagTime:
		ms, n := binary.Varint(v)
		if n != len(v) || n <= 0 {
			return errRecord
		}
		l.Time = time.UnixMilli(ms).UTC()
	case tagMore:
		l.Chain.More = true
	case tagDepth:
		depth, n := binary.Uvarint(v)
		if n != len(v) || n <= 0 || depth > 1<<31-1 {
			return errRecord
		}
		l.Chain.Depth = int(depth)
	case tagAncestor:
		var a ancestry.Ancestor
		if err := eachField(v, func(tag byte, v []byte) error { decodeAncestor(&a, tag, v); return nil }); err != nil {
			return err
		}
		l.Chain.Ancestors = append(l.Chain.Ancestors, a)
	}
	return nil
}

func decodeAncestor(a *ancestry.Ancestor, tag byte, v []byte) {
	switch tag {
	case tagAncestorRun:
		a.Run = ancestry.RunID(v)
	case tagAncestorHost:
		a.Host = string(v)
	case tagAncestorWellKnown:
		a.WellKnown = string(v)
	case tagAncestorCause:
		a.Cause = ancestry.Cause(v)
	case tagAncestorEvent:
		a.Event = string(v)
	}
}

// fixed copies a value whose length is known.
func fixed(dst, v []byte) error {
	if len(v) != len(dst) {
		return errRecord
	}
	copy(dst, v)
	return nil
}

// eachField calls fn with each field of b.
func eachField(b []byte, fn func(tag byte, v []byte) error) error {
	for len(b) > 0 {
		tag := b[0]
		size, n := binary.Uvarint(b[1:])
		if n <= 0 || size > uint64(len(b)-1-n) {
			return errRecord
		}
		end := 1 + n + int(size)
		if err := fn(tag, b[1+n:end]); err != nil {
			return err
		}
		b = b[end:]
	}
	return nil
}
