package wire

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"sync"
	"time"
)

// tyloMember is the tracestate member in which hashed ids travel.
const tyloMember = "tylo"

const (
	maxTyloID     = 128
	maxTyloMember = 256
)

// TyloIDs is the trace context of Tylo-Lens: the caller's trace and its span.
// The zero value means that there is none.
type TyloIDs struct {
	TraceID, ParentSpanID string
}

// ParseTyloIDs checks both ids: 1 to 128 of A-Z a-z 0-9 . _ : and -. One bad id
// voids the pair.
func ParseTyloIDs(traceID, parentSpanID string) (TyloIDs, bool) {
	if !isTyloID(traceID) || !isTyloID(parentSpanID) {
		return TyloIDs{}, false
	}
	return TyloIDs{traceID, parentSpanID}, true
}

// ParseTyloHeaders reads all the fields of x-tylo-trace-id and
// x-tylo-parent-span-id. Each must occur exactly once.
func ParseTyloHeaders(traceIDs, parentSpanIDs []string) (TyloIDs, bool) {
	if len(traceIDs) != 1 || len(parentSpanIDs) != 1 {
		return TyloIDs{}, false
	}
	return ParseTyloIDs(traceIDs[0], parentSpanIDs[0])
}

func isTyloID(s string) bool {
	for i := range len(s) {
		if c := s[i]; !isLower(c) && !isDigit(c) && (c < 'A' || c > 'Z') && strings.IndexByte("._:-", c) < 0 {
			return false
		}
	}
	return s != "" && len(s) <= maxTyloID
}

// Valid reports whether there are ids.
func (ids TyloIDs) Valid() bool { return ids != TyloIDs{} }

// Context returns the W3C context that the ids stand for, with the given flags,
// because Tylo has none. Ids that spell a W3C id are taken at their word, others
// are hashed; then the tracestate carries them on. Without ids it is zero.
func (ids TyloIDs) Context(flags byte) TraceContext {
	if !ids.Valid() {
		return TraceContext{}
	}
	trace, _ := tyloTrace(ids.TraceID)
	span, _ := tyloSpan(ids.ParentSpanID)
	return TraceContext{TraceID: trace, SpanID: span, Flags: flags, State: ids.Annotate("")}
}

// Annotate returns the tracestate that must go with the context of the ids: the
// member tylo is written leftmost if either id is hashed, and removed otherwise,
// or if it would exceed 256 characters.
func (ids TyloIDs) Annotate(t Tracestate) Tracestate {
	_, exactTrace := tyloTrace(ids.TraceID)
	_, exactSpan := tyloSpan(ids.ParentSpanID)
	value := ids.TraceID + "/" + ids.ParentSpanID
	if !ids.Valid() || exactTrace && exactSpan || len(value) > maxTyloMember {
		return t.Without(tyloMember)
	}
	return t.With(tyloMember, value)
}

// tyloTrace maps a Tylo trace id to W3C, exactly if it is trace_ and a UUID in
// lower case other than zero.
func tyloTrace(id string) (t TraceID, exact bool) {
	if s, ok := strings.CutPrefix(id, "trace_"); ok && len(s) == 36 &&
		s[8] == '-' && s[13] == '-' && s[18] == '-' && s[23] == '-' &&
		lowerHex(t[0:4], s[0:8]) && lowerHex(t[4:6], s[9:13]) && lowerHex(t[6:8], s[14:18]) &&
		lowerHex(t[8:10], s[19:23]) && lowerHex(t[10:16], s[24:36]) && t != (TraceID{}) {
		return t, true
	}
	sum := tyloHash("tylo-trace", id)
	return TraceID(sum[:16]), false
}

// tyloSpan maps a Tylo span id to W3C, exactly if it is mcp_ and 16 digits in
// lower case other than zero. A UUID does not fit.
func tyloSpan(id string) (s SpanID, exact bool) {
	if digits, ok := strings.CutPrefix(id, "mcp_"); ok && len(digits) == 16 && lowerHex(s[:], digits) && s != (SpanID{}) {
		return s, true
	}
	sum := tyloHash("tylo-span", id)
	return SpanID(sum[:8]), false
}

// tyloHash is unkeyed so that two proxies agree.
func tyloHash(kind, id string) [sha256.Size]byte {
	return sha256.Sum256([]byte(kind + "\x00" + id))
}

// tyloTraceID is the inverse of tyloTrace for what is not hashed.
func tyloTraceID(t TraceID) string {
	b := append(make([]byte, 0, 42), "trace_"...)
	b = append(hex.AppendEncode(b, t[0:4]), '-')
	b = append(hex.AppendEncode(b, t[4:6]), '-')
	b = append(hex.AppendEncode(b, t[6:8]), '-')
	b = append(hex.AppendEncode(b, t[8:10]), '-')
	return string(hex.AppendEncode(b, t[10:16]))
}

// tyloSpanID is the inverse of tyloSpan for what is not hashed.
func tyloSpanID(s SpanID) string { return "mcp_" + s.String() }

// TyloTable remembers the spelling of ids that were hashed, for a while. It is
// bounded: when it is full, the oldest go. Methods may be called concurrently,
// and on a nil table, which remembers nothing.
type TyloTable struct {
	limit int
	ttl   time.Duration

	mu    sync.Mutex // guards what follows
	names map[tyloKey]tyloName
	queue []tyloKey // the keys of names, oldest first
}

// tyloKey is a trace id, or a span id in the first half.
type tyloKey struct {
	id   TraceID
	span bool
}

type tyloName struct {
	text    string
	expires time.Time
}

// NewTyloTable returns a table that keeps at most limit ids, each for ttl.
func NewTyloTable(limit int, ttl time.Duration) *TyloTable {
	return &TyloTable{limit: limit, ttl: ttl, names: make(map[tyloKey]tyloName)}
}

// Remember notes those of the ids that are hashed. What is remembered already
// stays as it is.
func (t *TyloTable) Remember(ids TyloIDs) {
	if t == nil || !ids.Valid() {
		return
	}
	if id, exact := tyloTrace(ids.TraceID); !exact {
		t.add(tyloKey{id: id}, ids.TraceID)
	}
	if id, exact := tyloSpan(ids.ParentSpanID); !exact {
		t.add(spanKey(id), ids.ParentSpanID)
	}
}

func (t *TyloTable) add(key tyloKey, text string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	for len(t.queue) > 0 && !now.Before(t.names[t.queue[0]].expires) {
		t.drop()
	}
	if _, known := t.names[key]; known || t.limit <= 0 {
		return
	}
	if len(t.queue) == t.limit {
		t.drop()
	}
	t.names[key] = tyloName{strings.Clone(text), now.Add(t.ttl)}
	t.queue = append(t.queue, key)
}

// drop forgets the oldest name.
func (t *TyloTable) drop() {
	delete(t.names, t.queue[0])
	t.queue = t.queue[1:]
}

func (t *TyloTable) name(key tyloKey) (string, bool) {
	if t == nil {
		return "", false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	n, ok := t.names[key]
	return n.text, ok && time.Now().Before(n.expires)
}

func spanKey(s SpanID) (k tyloKey) {
	k.span = true
	copy(k.id[:], s[:])
	return k
}

// IDs returns the Tylo spelling of a valid context: from its tracestate member,
// else from the table, else made from the W3C ids. Its Context is c again.
func (t *TyloTable) IDs(c TraceContext) TyloIDs {
	ids := TyloIDs{tyloTraceID(c.TraceID), tyloSpanID(c.SpanID)}
	traceID, spanID, _ := strings.Cut(c.State.Member(tyloMember), "/")
	fits := isTyloID(traceID) && isTyloID(spanID) // a second slash is in no id
	trace, _ := tyloTrace(traceID)
	span, _ := tyloSpan(spanID)
	if fits = fits && trace == c.TraceID; fits {
		ids.TraceID = traceID
	} else if name, ok := t.name(tyloKey{id: c.TraceID}); ok {
		ids.TraceID = name
	}
	if fits && span == c.SpanID {
		ids.ParentSpanID = spanID
	} else if name, ok := t.name(spanKey(c.SpanID)); ok {
		ids.ParentSpanID = name
	}
	return ids
}
