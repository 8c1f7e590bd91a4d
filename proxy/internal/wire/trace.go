package wire

import (
	"encoding/hex"
	"strings"
)

// TraceID is a W3C trace id. The zero value is not valid.
type TraceID [16]byte

// SpanID is a W3C parent id. The zero value is not valid.
type SpanID [8]byte

// String returns 32 lower-case hex digits.
func (t TraceID) String() string { return hex.EncodeToString(t[:]) }

// String returns 16 lower-case hex digits.
func (s SpanID) String() string { return hex.EncodeToString(s[:]) }

// The flags of a traceparent that are defined so far.
const (
	FlagSampled byte = 1 << iota // the caller may have recorded its span
	FlagRandom                   // the trace id is random (Trace Context Level 2)
)

// TraceContext is what one carrier says, all of it: tracestate and baggage
// travel with the traceparent they came with.
type TraceContext struct {
	TraceID TraceID
	SpanID  SpanID
	Flags   byte
	State   Tracestate
	Baggage string // valid, or empty
}

// Valid reports whether neither id is zero.
func (c TraceContext) Valid() bool { return c.TraceID != TraceID{} && c.SpanID != SpanID{} }

// traceparentLen is the length of version 00.
const traceparentLen = len("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")

// ParseTraceparent reads the value of a traceparent by the grammar of W3C Trace
// Context. A version above 00 may go on with "-" and anything; of its flags only
// those defined here are kept, because it may mean something else by the others.
func ParseTraceparent(s string) (TraceContext, bool) {
	var c TraceContext
	var version, flags [1]byte
	ok := len(s) >= traceparentLen && s[2] == '-' && s[35] == '-' && s[52] == '-' &&
		lowerHex(version[:], s[0:2]) && version[0] != 0xff &&
		lowerHex(c.TraceID[:], s[3:35]) && lowerHex(c.SpanID[:], s[36:52]) && lowerHex(flags[:], s[53:55]) &&
		c.Valid()
	if !ok || len(s) > traceparentLen && (version[0] == 0 || s[traceparentLen] != '-') {
		return TraceContext{}, false
	}
	if c.Flags = flags[0]; version[0] != 0 {
		c.Flags &= FlagSampled | FlagRandom
	}
	return c, true
}

// lowerHex decodes lower-case hex, the only kind that is valid here.
func lowerHex(dst []byte, s string) bool {
	for i := range dst {
		hi, lo := nibble(s[2*i]), nibble(s[2*i+1])
		if hi|lo > 15 {
			return false
		}
		dst[i] = hi<<4 | lo
	}
	return true
}

func nibble(c byte) byte {
	switch {
	case '0' <= c && c <= '9':
		return c - '0'
	case 'a' <= c && c <= 'f':
		return c - 'a' + 10
	}
	return 0xff
}

// Traceparent returns the value of the traceparent, always version 00.
func (c TraceContext) Traceparent() string {
	return string(c.AppendTraceparent(make([]byte, 0, traceparentLen)))
}

// AppendTraceparent appends what Traceparent returns.
func (c TraceContext) AppendTraceparent(dst []byte) []byte {
	dst = append(dst, "00-"...)
	dst = hex.AppendEncode(dst, c.TraceID[:])
	dst = append(dst, '-')
	dst = hex.AppendEncode(dst, c.SpanID[:])
	dst = append(dst, '-')
	return hex.AppendEncode(dst, []byte{c.Flags})
}

// ParseContext reads a carrier from all its header fields. There must be exactly
// one traceparent and it must be valid: otherwise the context is zero, whatever
// the rest says. An invalid tracestate or baggage is dropped as a whole.
func ParseContext(traceparent, tracestate, baggage []string) TraceContext {
	if len(traceparent) != 1 {
		return TraceContext{}
	}
	return contextOf(traceparent[0], strings.Join(tracestate, ","), strings.Join(baggage, ","))
}

func contextOf(traceparent, tracestate, baggage string) TraceContext {
	c, ok := ParseTraceparent(traceparent)
	if ok {
		c.State, _ = ParseTracestate(tracestate)
		c.Baggage, _ = ParseBaggage(baggage)
	}
	return c
}

// Adopt picks the parent among the contexts of several carriers, strongest
// first: the first valid one. conflicts are the valid ones below it that belong
// to another trace; they deserve a span link. Without a valid one, parent is zero.
func Adopt(carriers ...TraceContext) (parent TraceContext, conflicts []TraceContext) {
	for _, c := range carriers {
		switch {
		case !c.Valid():
		case !parent.Valid():
			parent = c
		case c.TraceID != parent.TraceID:
			conflicts = append(conflicts, c)
		}
	}
	return parent, conflicts
}

const (
	maxBaggage        = 8192
	maxBaggageMembers = 180
)

// ParseBaggage joins the fields of a baggage header and checks them against the
// grammar and the limits of W3C Baggage: 180 members, 8192 bytes. It changes
// nothing but white space at the ends. Invalid baggage is dropped as a whole.
func ParseBaggage(fields ...string) (string, bool) {
	s := trimSpace(strings.Join(fields, ","))
	if s == "" || len(s) > maxBaggage || strings.Count(s, ",") >= maxBaggageMembers {
		return "", false
	}
	for member := range strings.SplitSeq(s, ",") {
		first := true
		for part := range strings.SplitSeq(member, ";") {
			key, value, hasValue := strings.Cut(part, "=")
			if !isToken(trimSpace(key)) || !isBaggageValue(trimSpace(value)) || first && !hasValue {
				return "", false
			}
			first = false
		}
	}
	return s, true
}

// isToken reports whether s is a token of RFC 9110.
func isToken(s string) bool {
	for i := range len(s) {
		if c := s[i]; !isLower(c) && !isDigit(c) && (c < 'A' || c > 'Z') && strings.IndexByte("!#$%&'*+-.^_`|~", c) < 0 {
			return false
		}
	}
	return s != ""
}

func isBaggageValue(s string) bool {
	for i := range len(s) {
		if c := s[i]; c <= ' ' || c > '~' || c == '"' || c == '\\' {
			return false // "," and ";" never get here
		}
	}
	return true
}

func trimSpace(s string) string { return strings.Trim(s, " \t") }
func isLower(c byte) bool       { return 'a' <= c && c <= 'z' }
func isDigit(c byte) bool       { return '0' <= c && c <= '9' }
