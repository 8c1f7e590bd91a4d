package wire

import (
	"bytes"
	"unicode/utf8"
)

// maxDepth is how many objects and arrays may stand inside each other. The
// scanner recurses, so this also bounds its stack.
const maxDepth = 128

// A slot is the place in a doc where the value at a watched path is noted.
type slot uint8

// A guard is a set of edits that a key matters to: if the key is ambiguous,
// those edits are refused.
type guard uint8

// node is what to watch inside one value: a trie over member names. It is built
// once and only read afterwards.
type node struct {
	slot  slot
	guard guard
	edges []edge
}

type edge struct {
	name []byte // ASCII
	to   *node
}

// longestName bounds the names of edges; a test holds the tries to it.
const longestName = 48

// on watches the member name.
func on(name string, s slot, g guard, edges ...edge) edge {
	return edge{[]byte(name), &node{s, g, edges}}
}

// span is where a watched member stands in the body.
type span struct {
	key      int32 // the opening quote of its key; -1 once the key is ambiguous
	from, to int32 // its value; to is 0 while there is none
	members  int32 // how many members the value has, if it is an object with watched members
}

// doc is a JSON text and the spans of its watched members.
type doc struct {
	body    []byte
	at      [slots]span
	twice   guard // keys that occur twice on their level
	variant guard // keys that differ from a watched one only by case
	deep    bool
}

// scan checks that the whole body is one JSON text, exactly as json.Valid does
// but for the depth, and notes what tree watches. It does not allocate.
//
// Keys are compared after unescaping. The value of a key that occurs twice is
// noted nowhere, because readers disagree on which one counts.
func (d *doc) scan(tree *node) Refusal {
	return d.end(d.value(skipSpace(d.body, 0), 0, tree))
}

// end is the verdict when the outermost value ended at i.
func (d *doc) end(i int) Refusal {
	switch {
	case d.deep:
		return RefusedTooDeep
	case i < 0 || skipSpace(d.body, i) != len(d.body):
		return RefusedNotJSON
	}
	return ""
}

// value scans the value at i, inside depth containers, and returns the offset
// behind it, or -1. A nil n watches nothing.
func (d *doc) value(i, depth int, n *node) int {
	if i >= len(d.body) {
		return -1
	}
	from, members := i, 0
	switch d.body[i] {
	case '"':
		i = skipString(d.body, i)
	case '{':
		i, members = d.object(i, depth+1, n)
	case '[':
		i = d.array(i, depth+1, nil)
	case 't':
		i = skipLiteral(d.body, i, "true")
	case 'f':
		i = skipLiteral(d.body, i, "false")
	case 'n':
		i = skipLiteral(d.body, i, "null")
	default:
		i = skipNumber(d.body, i)
	}
	if n != nil && i > 0 {
		at := &d.at[n.slot]
		at.from, at.to, at.members = int32(from), int32(i), int32(members)
	}
	return i
}

// object scans the object at i and counts its members.
func (d *doc) object(i, depth int, n *node) (end, members int) {
	if depth > maxDepth {
		d.deep = true
		return -1, 0
	}
	b := d.body
	if i = skipSpace(b, i+1); i < len(b) && b[i] == '}' {
		return i + 1, 0
	}
	for {
		if i >= len(b) || b[i] != '"' {
			return -1, 0
		}
		key := i
		if i = skipString(b, i); i < 0 {
			return -1, 0
		}
		var child *node
		if n != nil && len(n.edges) > 0 {
			child = d.enter(n, key, i)
		}
		if i = skipSpace(b, i); i >= len(b) || b[i] != ':' {
			return -1, 0
		}
		if i = d.value(skipSpace(b, i+1), depth, child); i < 0 {
			return -1, 0
		}
		members++
		if i = skipSpace(b, i); i >= len(b) {
			return -1, 0
		}
		switch b[i] {
		case ',':
			i = skipSpace(b, i+1)
		case '}':
			return i + 1, members
		default:
			return -1, 0
		}
	}
}

// array scans the array at i. If each is given, it scans the elements.
func (d *doc) array(i, depth int, each func(i int) int) int {
	if depth > maxDepth {
		d.deep = true
		return -1
	}
	b := d.body
	if i = skipSpace(b, i+1); i < len(b) && b[i] == ']' {
		return i + 1
	}
	for {
		if each != nil {
			i = each(i)
		} else {
			i = d.value(i, depth, nil)
		}
		if i < 0 {
			return -1
		}
		if i = skipSpace(b, i); i >= len(b) {
			return -1
		}
		switch b[i] {
		case ',':
			i = skipSpace(b, i+1)
		case ']':
			return i + 1
		default:
			return -1
		}
	}
}

// enter returns the node of the key at [from,to) in n, and nil if the key is
// not watched or occurs for the second time.
func (d *doc) enter(n *node, from, to int) *node {
	key := d.body[from+1 : to-1]
	if bytes.IndexByte(key, '\\') >= 0 {
		var buf [6 * longestName]byte
		if len(key) > len(buf) {
			return nil // even if all of it were escapes, it is longer than any name
		}
		key = appendUnquoted(buf[:0], key, len(buf))
	}
	for _, e := range n.edges {
		if len(key) != len(e.name) || !bytes.Equal(key, e.name) {
			continue
		}
		at := &d.at[e.to.slot]
		if at.to > 0 || at.key < 0 {
			d.twice |= e.to.guard
			d.void(e.to)
			return nil
		}
		at.key = int32(from)
		return e.to
	}
	for _, e := range n.edges {
		// A first letter outside ASCII may still fold to one: K (U+212A), ſ (U+017F).
		if e.to.guard != 0 && len(key) >= len(e.name) &&
			(key[0] >= utf8.RuneSelf || key[0]|0x20 == e.name[0]|0x20) && bytes.EqualFold(key, e.name) {
			d.variant |= e.to.guard
		}
	}
	return nil
}

// void forgets what was noted at n and below it, for good.
func (d *doc) void(n *node) {
	d.at[n.slot] = span{key: -1}
	for _, e := range n.edges {
		d.void(e.to)
	}
}

// has reports whether the member is there, ambiguous or not.
func (d *doc) has(s slot) bool { return d.at[s].to > 0 || d.at[s].key < 0 }

// raw returns the value as it is written, or nil.
func (d *doc) raw(s slot) []byte { return d.body[d.at[s].from:d.at[s].to] }

// first returns the first byte of the value, which tells its type, or 0.
func (d *doc) first(s slot) byte {
	if d.at[s].to == 0 {
		return 0
	}
	return d.body[d.at[s].from]
}

// text returns the value if it is a string of at most limit bytes as written,
// and else the empty string. It is valid UTF-8: what is not becomes U+FFFD, as
// in encoding/json.
func (d *doc) text(s slot, limit int) string {
	raw := d.raw(s)
	if len(raw) < 2 || raw[0] != '"' || len(raw)-2 > limit {
		return ""
	}
	return unquote(raw[1:len(raw)-1], 3*limit) // at worst each byte is invalid and becomes three
}

// bytes returns the text of a string of any length, and nil if the value is no
// string. It is part of the body unless something is escaped.
func (d *doc) bytes(s slot) []byte {
	raw := d.raw(s)
	if len(raw) < 2 || raw[0] != '"' {
		return nil
	}
	if raw = raw[1 : len(raw)-1]; bytes.IndexByte(raw, '\\') < 0 {
		return raw
	}
	return appendUnquoted(nil, raw, 3*len(raw))
}

// prefix returns the value if it is a string, cut to at most limit bytes.
func (d *doc) prefix(s slot, limit int) string {
	raw := d.raw(s)
	if len(raw) < 2 || raw[0] != '"' {
		return ""
	}
	return unquote(raw[1:len(raw)-1], limit)
}
