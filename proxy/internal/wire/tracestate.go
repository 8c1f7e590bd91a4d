package wire

import (
	"slices"
	"strings"
)

const (
	maxTracestate        = 8192
	maxTracestateMembers = 32
	maxTracestateText    = 256 // of a key, and of a value
)

// Tracestate is a valid tracestate, or empty.
//
// W3C asks that at least 512 characters be carried on; up to 8192 are carried
// here, because whoever wrote more than 512 knows its peers better than we do.
type Tracestate string

// ParseTracestate joins the fields of a tracestate header and checks them
// against the grammar of W3C Trace Context Level 1, which all readers accept: at
// most 32 members, no key twice, empty members allowed. It changes nothing but
// white space at the ends. It never repairs: what is invalid is dropped as a
// whole, and then it returns false.
func ParseTracestate(fields ...string) (Tracestate, bool) {
	s := trimSpace(strings.Join(fields, ","))
	if len(s) > maxTracestate {
		return "", false
	}
	var keys [maxTracestateMembers]string
	n := 0
	for member := range strings.SplitSeq(s, ",") {
		if member = trimSpace(member); member == "" {
			continue
		}
		key, value, _ := strings.Cut(member, "=")
		if n == len(keys) || !isStateKey(key) || !isStateValue(value) || slices.Contains(keys[:n], key) {
			return "", false
		}
		keys[n] = key
		n++
	}
	if n == 0 {
		s = ""
	}
	return Tracestate(s), true
}

// Member returns the value of the member key, or "".
func (t Tracestate) Member(key string) string {
	for member := range strings.SplitSeq(string(t), ",") {
		if k, v, _ := strings.Cut(trimSpace(member), "="); k == key {
			return v
		}
	}
	return ""
}

// With returns t with the member key set to value and moved to the left, as W3C
// asks of whoever changes a member. Members on the right that no longer fit are
// dropped. It returns t itself if nothing changes, or if key or value are invalid.
func (t Tracestate) With(key, value string) Tracestate {
	if !isStateKey(key) || !isStateValue(value) {
		return t
	}
	first, _, _ := strings.Cut(string(t), ",")
	if k, v, _ := strings.Cut(trimSpace(first), "="); k == key && v == value {
		return t
	}
	b := make([]byte, 0, len(key)+len(value)+len(t)+2)
	b = append(append(append(b, key...), '='), value...)
	return t.appendOthers(b, key, maxTracestateMembers-1)
}

// Without returns t without the member key.
func (t Tracestate) Without(key string) Tracestate {
	if t.Member(key) == "" { // no value is empty
		return t
	}
	return t.appendOthers(make([]byte, 0, len(t)), key, maxTracestateMembers)
}

// appendOthers appends the members but key to b, as many as fit.
func (t Tracestate) appendOthers(b []byte, key string, room int) Tracestate {
	for member := range strings.SplitSeq(string(t), ",") {
		member = trimSpace(member)
		if k, _, _ := strings.Cut(member, "="); member == "" || k == key {
			continue
		}
		if room == 0 || len(b)+1+len(member) > maxTracestate {
			break
		}
		if len(b) > 0 {
			b = append(b, ',')
		}
		b = append(b, member...)
		room--
	}
	return Tracestate(b)
}

// isStateKey accepts a simple key, or tenant@system.
func isStateKey(s string) bool {
	tenant, system, multi := strings.Cut(s, "@")
	if !multi {
		return len(s) <= maxTracestateText && isStateName(s) && isLower(s[0])
	}
	return len(tenant) <= 241 && isStateName(tenant) && len(system) <= 14 && isStateName(system) && isLower(system[0])
}

func isStateName(s string) bool {
	for i := range len(s) {
		if c := s[i]; !isLower(c) && !isDigit(c) && strings.IndexByte("_-*/", c) < 0 {
			return false
		}
	}
	return s != "" && (isLower(s[0]) || isDigit(s[0]))
}

// isStateValue accepts printable ASCII without "," and "=", not ending in a space.
func isStateValue(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == ',' || c == '=' {
			return false
		}
	}
	return s != "" && len(s) <= maxTracestateText && s[len(s)-1] != ' '
}
