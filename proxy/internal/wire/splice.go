package wire

import (
	"bytes"
	"cmp"
	"slices"
)

// member is a member that an object shall have after an edit.
type member struct {
	slot    slot
	key     string
	text    string   // its value, a string; empty: the member goes
	members []member // or: its value is an object, with these among its members
}

// splice collects edits of one body and applies them in one copy. Its methods
// are given the body's doc each time, because a field would drag the Message to
// the heap; for the same reason the edits are an array.
type splice struct {
	text  []byte // what is inserted, one insertion after the other
	edits [maxEdits]edit
	n     int // how many edits there are
}

// maxEdits is enough for the largest edit there is: seven members, in five
// objects of which each may also get an insertion.
const maxEdits = 12

// edit replaces del bytes at offset at by text[from:to].
type edit struct{ at, del, from, to int }

// object plans the edits that give the object at s the members in want: what is
// there already is replaced where it stands, what is missing comes first, and
// what shall go takes one comma with it. Objects that would be empty are not
// created. The caller has made sure that whatever is there and has members in
// want is an object.
func (p *splice) object(d *doc, s slot, want []member) {
	at := d.at[s]
	p.remove(d, want)
	for _, m := range want {
		if d.at[m.slot].to == 0 {
			continue
		}
		if m.members != nil {
			p.object(d, m.slot, m.members)
		} else if m.text != "" {
			p.replace(d, d.at[m.slot], m.text)
		}
	}

	from := len(p.text)
	stay := int(at.members)
	for _, m := range want {
		switch {
		case d.at[m.slot].to == 0:
			p.render(m, from)
		case m.members == nil && m.text == "":
			stay--
		}
	}
	if len(p.text) == from {
		return
	}
	if stay > 0 {
		p.text = append(p.text, ',')
	}
	p.add(edit{int(at.from) + 1, 0, from, len(p.text)})
}

// replace plans to put text where the value at s stands, unless it does already.
func (p *splice) replace(d *doc, s span, text string) {
	from := len(p.text)
	p.text = appendQuoted(p.text, text)
	if string(p.text[from:]) == string(d.body[s.from:s.to]) {
		p.text = p.text[:from]
		return
	}
	p.add(edit{int(s.from), int(s.to - s.from), from, len(p.text)})
}

// render appends m, with a comma unless it is the first since from. It appends
// nothing if m has no text anywhere.
func (p *splice) render(m member, from int) {
	if !m.present() {
		return
	}
	if len(p.text) > from {
		p.text = append(p.text, ',')
	}
	p.text = append(appendQuoted(p.text, m.key), ':')
	if m.members == nil {
		p.text = appendQuoted(p.text, m.text)
		return
	}
	p.text = append(p.text, '{')
	inside := len(p.text)
	for _, m := range m.members {
		p.render(m, inside)
	}
	p.text = append(p.text, '}')
}

func (p *splice) add(e edit) {
	p.edits[p.n] = e
	p.n++
}

func (m member) present() bool {
	return m.text != "" || slices.ContainsFunc(m.members, member.present)
}

// remove plans the removal of those members of one object that shall go.
func (p *splice) remove(d *doc, want []member) {
	gone := make([]span, 0, 8)
	for _, m := range want {
		if at := d.at[m.slot]; at.to > 0 && m.members == nil && m.text == "" {
			gone = append(gone, at)
		}
	}
	slices.SortFunc(gone, func(a, b span) int { return cmp.Compare(a.key, b.key) })
	body, first := d.body, p.n
	for _, at := range gone {
		from, to := int(at.key), int(at.to)
		// A neighbour that goes too ends where this one begins: both are one removal.
		if n := p.n - 1; n >= first && p.edits[n].at+p.edits[n].del == from {
			from = p.edits[n].at
			p.n = n
		}
		if next := skipSpace(body, to); body[next] == ',' {
			to = skipSpace(body, next+1) // up to the next key
		} else if before := bytes.TrimRight(body[:from], " \n\t\r"); before[len(before)-1] == ',' {
			from = len(before) - 1
		}
		p.add(edit{at: from, del: to - from})
	}
}

// apply returns the edited body, in place of what into holds or in a new slice, or
// the body itself if there is nothing to edit. It refuses a result longer than limit.
func (p *splice) apply(body, into []byte, limit int) ([]byte, Refusal) {
	edits := p.edits[:p.n]
	if len(edits) == 0 {
		return body, ""
	}
	size := len(body)
	for _, e := range edits {
		size += e.to - e.from - e.del
	}
	if size > limit {
		return body, RefusedTooLarge
	}
	slices.SortFunc(edits, byOffset)
	out := into[:0]
	if cap(out) < size {
		out = make([]byte, 0, size)
	}
	done := 0
	for _, e := range edits {
		out = append(out, body[done:e.at]...)
		out = append(out, p.text[e.from:e.to]...)
		done = e.at + e.del
	}
	return append(out, body[done:]...), ""
}

// byOffset orders edits as they stand in the body, and an insertion before the
// removal at the same place.
func byOffset(a, b edit) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.del, b.del)) }

// patch puts text in the place of body[from:to]. A splice edits the same few
// members of every message; patches are for documents that are edited once in a
// while, in places that differ.
type patch struct {
	from, to int
	text     []byte
}

// applied returns body with patches, which must not overlap, in a new slice.
func applied(body []byte, patches []patch) []byte {
	slices.SortStableFunc(patches, func(a, b patch) int { return cmp.Compare(a.from, b.from) })
	size := len(body)
	for _, p := range patches {
		size += len(p.text)
	}
	out, done := make([]byte, 0, size), 0
	for _, p := range patches {
		out = append(append(out, body[done:p.from]...), p.text...)
		done = p.to
	}
	return append(out, body[done:]...)
}
