package peac

import (
	"bytes"
	"maps"
)

// sieve says what to read of a value: the members of these names, and under last the
// last item of a list. Of nil that is nothing more than how it is written.
type sieve map[string]sieve

// last is the name of the last item of a list. No member is read that has it.
const last = ""

// with returns the sieve with more members.
func (s sieve) with(more sieve) sieve {
	all := maps.Clone(s)
	maps.Copy(all, more)
	return all
}

// grain is what has stayed in a sieve: a value as it is written, and those of its
// members. Nil is a value that is not there.
type grain struct {
	name   string
	raw    []byte // empty: one of that name is no more there
	object bool
	in     []*grain
}

// at returns a member, or nil.
func (g *grain) at(name string) *grain {
	if g == nil {
		return nil
	}
	for _, m := range g.in {
		if m.name == name && len(m.raw) > 0 {
			return m
		}
	}
	return nil
}

// member returns the grain for a member that is there, perhaps once more: the last one
// counts, as encoding/json has it.
func (g *grain) member(name []byte) *grain {
	for _, m := range g.in {
		if m.name == string(name) {
			return m
		}
	}
	m := &grain{name: string(name)}
	g.in = append(g.in, m)
	return m
}

// clear forgets the members. Their grains are kept, to be used again.
func (g *grain) clear() {
	g.object = false
	for _, m := range g.in {
		m.raw = nil
	}
}

// sift reads what a sieve says of a JSON value in one pass, without building the rest.
// ok is false for what encoding/json doesn't take for JSON, or is nested too deep.
func sift(raw []byte, s sieve) (g *grain, ok bool) {
	p := parser{raw: raw}
	g = &grain{}
	if !p.sift(s, g, 0) {
		return nil, false
	}
	p.space()
	return g, p.at == len(raw)
}

// sift passes a value, as value does, but doesn't ask for I-JSON, which answers need not
// be. With no grain it reads nothing.
func (p *parser) sift(s sieve, g *grain, depth int) bool {
	if depth > maxNesting {
		return false
	}
	c := p.next()
	start := p.at
	if g != nil {
		g.clear()
	}
	ok := false
	switch {
	case c == '{':
		ok = p.siftObject(s, g, depth)
	case c == '[':
		ok = p.siftList(s, g, depth)
	case c == '"':
		ok = p.skipText()
	case c == '-' || '0' <= c && c <= '9':
		_, ok = p.numeral()
	default:
		ok = p.word("null") || p.word("true") || p.word("false")
	}
	if g != nil {
		g.raw = p.raw[start:p.at]
	}
	return ok
}

func (p *parser) siftObject(s sieve, g *grain, depth int) bool {
	if g != nil {
		g.object = true
	}
	p.at++
	if p.next() == '}' {
		p.at++
		return true
	}
	for {
		if p.next() != '"' {
			return false
		}
		start := p.at
		if !p.skipText() {
			return false
		}
		below, member := s.of(g, p.raw[start:p.at])
		if p.next() != ':' {
			return false
		}
		p.at++
		if !p.sift(below, member, depth+1) {
			return false
		}
		if more, ok := p.more('}'); !more {
			return ok
		}
	}
}

// of returns what to read of a member by its name in quotes, and the grain for that; or
// nil and nil.
func (s sieve) of(g *grain, quoted []byte) (sieve, *grain) {
	if len(s) == 0 {
		return nil, nil
	}
	name := quoted[1 : len(quoted)-1]
	if bytes.IndexByte(name, '\\') >= 0 {
		p := parser{raw: quoted}
		text, _ := p.text() // what that refuses is no name of ours
		name = []byte(text)
	}
	below, known := s[string(name)]
	if !known || string(name) == last {
		return nil, nil
	}
	return below, g.member(name)
}

func (p *parser) siftList(s sieve, g *grain, depth int) bool {
	p.at++
	if p.next() == ']' {
		p.at++
		return true
	}
	below, read := s[last]
	var item *grain
	if read {
		item = g.member(nil)
	}
	for {
		if !p.sift(below, item, depth+1) {
			return false
		}
		if more, ok := p.more(']'); !more {
			return ok
		}
	}
}

// more passes the comma behind a value, or the end of what that is in. Without either
// ok is false.
func (p *parser) more(end byte) (more, ok bool) {
	c := p.next()
	if c != ',' && c != end {
		return false, false
	}
	p.at++
	return c == ',', true
}

// items calls read where each item of a list begins, which sift has taken. It has to
// pass the item.
func items(list []byte, read func(*parser)) {
	p := parser{raw: list, at: 1}
	if p.next() == ']' {
		return
	}
	for more := true; more; more, _ = p.more(']') {
		read(&p)
	}
}

// skipText passes a string.
func (p *parser) skipText() bool {
	for i := p.at + 1; i < len(p.raw); i++ {
		switch c := p.raw[i]; {
		case c == '"':
			p.at = i + 1
			return true
		case c < ' ':
			return false
		case c == '\\':
			n := escape(p.raw[i:])
			if n == 0 {
				return false
			}
			i += n - 1
		}
	}
	return false
}

// escape returns the length of the escape that raw begins with, or 0 if it is none. One
// of half a character is one, as it is to encoding/json.
func escape(raw []byte) int {
	if len(raw) < 2 {
		return 0
	}
	if bytes.IndexByte([]byte(`"\/bfnrt`), raw[1]) >= 0 {
		return 2
	}
	if _, ok := unit(raw); ok {
		return 6
	}
	return 0
}
