package inject

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"

	"gopkg.in/yaml.v3"
)

// splicer makes a document say something else by changing only the text that has
// to change: comments, order, quotes and blank lines of all the rest stay.
type splicer struct {
	text    []byte
	lines   []int // where each line begins
	eol     string
	compact bool // dashes stand right below their key
	cuts    []cut
}

// cut is a piece of the text, and what comes in its place.
type cut struct {
	from, to int
	with     string
}

// splice returns text, a document of whole lines whose root is n and that says have,
// changed so that it says want. It does so or returns an error, never something else.
func splice(doc []byte, n *yaml.Node, have, want any) ([]byte, error) {
	s := &splicer{text: doc, lines: []int{0}, eol: lineBreak(doc), compact: compact(n)}
	for i, c := range doc {
		if c == '\n' {
			s.lines = append(s.lines, i+1)
		}
	}
	if err := s.walk(n, have, want, place{indent: -1}); err != nil {
		return nil, err
	}
	slices.SortStableFunc(s.cuts, func(a, b cut) int { return a.from - b.from })
	var out []byte
	end := 0
	for _, c := range s.cuts {
		if c.from < end {
			return nil, errUnclear
		}
		out = append(append(out, doc[end:c.from]...), c.with...)
		end = c.to
	}
	out = append(out, doc[end:]...)
	var says any
	if err := yaml.Unmarshal(out, &says); err != nil || !reflect.DeepEqual(says, want) {
		return nil, errUnclear
	}
	return out, nil
}

// errUnclear says that the text is written in a way that is not understood well
// enough to be edited.
var errUnclear = errors.New("it is written in a way that can't be edited safely, rewrite it with kubectl create --dry-run=client -o yaml")

// compact reports whether the document has dashes right below their key, where the
// first list in it has them.
func compact(n *yaml.Node) bool {
	if n.Kind == yaml.MappingNode && n.Style&yaml.FlowStyle == 0 {
		for i := 0; i+1 < len(n.Content); i += 2 {
			v := n.Content[i+1]
			if v.Kind == yaml.SequenceNode && v.Style&yaml.FlowStyle == 0 {
				return v.Column == n.Content[i].Column
			}
		}
	}
	return slices.ContainsFunc(n.Content, compact)
}

// place is where a node stands.
type place struct {
	indent int    // of the block that it is in
	behind int    // its key, where the key ends
	key    string // its key
	flow   bool   // within brackets
}

// walk makes n, which says have, say want.
func (s *splicer) walk(n *yaml.Node, have, want any, p place) error {
	if reflect.DeepEqual(have, want) {
		return nil
	}
	if n.Kind == yaml.AliasNode || n.Anchor != "" {
		return fmt.Errorf("%s has a YAML anchor or alias in what is to be changed, write it out", p.key)
	}
	p.flow = p.flow || n.Style&yaml.FlowStyle != 0
	switch want := want.(type) {
	case object:
		if have, ok := have.(object); ok {
			return s.mapping(n, have, want, p)
		}
	case []any:
		if have, ok := have.([]any); ok {
			return s.sequence(n, have, want, p)
		}
	case nil:
		if n.Kind != yaml.ScalarNode {
			s.empty(n, p)
			return nil
		}
	default:
		if n.Kind == yaml.ScalarNode && n.Style&(yaml.LiteralStyle|yaml.FoldedStyle) == 0 && n.Value != "" {
			s.cut(s.start(n), s.end(n, p.indent), scalar(want, n.Style))
			return nil
		}
	}
	if n.Kind != yaml.ScalarNode || n.Tag != "!!null" {
		return errUnclear
	}
	// A key without content becomes a list or a mapping.
	from, to := s.start(n), s.end(n, p.indent)
	if p.flow {
		with := flow(want)
		if from == to {
			with = " " + with
		}
		s.cut(from, to, with)
		return nil
	}
	for from < to && s.text[from-1] == ' ' { // in front of a null that is written out
		from--
	}
	s.cut(from, to, "")
	s.insertAfter(p.behind, s.block(want, p.indent+2, p.indent))
	return nil
}

// empty makes a list or a mapping a key without content.
func (s *splicer) empty(n *yaml.Node, p place) {
	if from, to := s.start(n), s.end(n, p.indent); p.flow {
		s.cut(from, to, "null")
	} else {
		s.cut(s.lines[n.Line-1], s.lineEnd(to), "")
	}
}

func (s *splicer) cut(from, to int, with string) { s.cuts = append(s.cuts, cut{from, to, with}) }

func (s *splicer) mapping(n *yaml.Node, have, want object, p place) error {
	inner := place{indent: n.Column - 1, flow: p.flow}
	var kept []*yaml.Node // the values
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		next, stays := want[k.Value]
		if !stays && k.Tag != "!!merge" {
			if err := s.remove(n, i, 2, inner, len(kept) > 0); err != nil {
				return err
			}
			continue
		}
		kept = append(kept, v)
		if k.Tag == "!!merge" {
			continue
		}
		inner.key, inner.behind = k.Value, s.end(k, inner.indent)
		if err := s.walk(v, have[k.Value], next, inner); err != nil {
			return err
		}
	}
	added := object{}
	for key, v := range want {
		if _, ok := have[key]; !ok {
			added[key] = v
		}
	}
	switch {
	case len(added) == 0:
	case p.flow:
		inside := strings.TrimSuffix(strings.TrimPrefix(flow(added), "{"), "}")
		s.insertFlow(n, inside, len(n.Content) > 0, len(kept) == 0)
	case len(kept) == 0:
		return errUnclear
	default:
		s.insertAfter(s.end(n, p.indent), s.block(added, inner.indent, inner.indent))
	}
	return nil
}

func (s *splicer) sequence(n *yaml.Node, have, want []any, p place) error {
	inner := place{indent: n.Column - 1, flow: p.flow, key: p.key}
	pairs := align(p.key, have, want)
	next, stays := 0, false // of have
	var added []any
	flush := func() {
		if len(added) == 0 {
			return
		}
		switch {
		case p.flow && next == 0 && len(have) > 0:
			s.cut(s.start(n.Content[0]), s.start(n.Content[0]), strings.Trim(flow(added), "[]")+", ")
		case p.flow:
			inside := flow(added)
			s.insertFlow(n, inside[1:len(inside)-1], len(have) > 0, len(have) == 0)
		case next == 0:
			s.insertAfter(p.behind, s.dashes(added, inner.indent))
		default:
			s.insertAfter(s.end(n.Content[next-1], inner.indent), s.dashes(added, inner.indent))
		}
		added = nil
	}
	for j, v := range want {
		i := pairs[j]
		if i < 0 {
			added = append(added, v)
			continue
		}
		flush()
		for ; next < i; next++ {
			if err := s.remove(n, next, 1, inner, stays); err != nil {
				return err
			}
		}
		if err := s.walk(n.Content[i], have[i], v, inner); err != nil {
			return err
		}
		next, stays = i+1, true
	}
	flush()
	for ; next < len(have); next++ {
		if err := s.remove(n, next, 1, inner, stays); err != nil {
			return err
		}
	}
	return nil
}

// align returns for each element of want which one of have it was, -1 for none.
// Those that are found stand in the same order in both.
func align(list string, have, want []any) []int {
	pairs := make([]int, len(want))
	next := 0
	for j, w := range want {
		pairs[j] = -1
		if len(have) == len(want) {
			pairs[j] = j
			continue
		}
		for i := next; i < len(have); i++ {
			if id := identity(list, w); id != "" && id == identity(list, have[i]) || reflect.DeepEqual(w, have[i]) {
				pairs[j], next = i, i+1
				break
			}
		}
	}
	return pairs
}

// remove takes count nodes from n's content, from the i-th on: a key and its value,
// or an element. In brackets the comma in front goes along if something stays
// there, else the one behind.
func (s *splicer) remove(n *yaml.Node, i, count int, p place, after bool) error {
	first, last := n.Content[i], n.Content[i+count-1]
	from, to := s.start(first), s.end(last, p.indent)
	if p.flow {
		switch {
		case after:
			from = s.end(n.Content[i-1], p.indent)
		case i+count < len(n.Content):
			to = s.start(n.Content[i+count])
		}
		s.cut(from, to, "")
		return nil
	}
	line := s.lines[first.Line-1]
	if lead := strings.TrimSpace(string(s.text[line:from])); lead != "" && (lead != "-" || count == 2) {
		return errUnclear
	}
	s.cut(line, s.lineEnd(to), "")
	return nil
}

// insertFlow adds to a collection in brackets, at its end.
func (s *splicer) insertFlow(n *yaml.Node, inside string, comma, empty bool) {
	if comma && empty { // all others go
		comma = false
	}
	if len(n.Content) == 0 {
		open := s.start(n) + bytes.IndexAny(s.text[s.start(n):], "{[") + 1
		s.cut(open, open, inside)
		return
	}
	if comma {
		inside = ", " + inside
	}
	end := s.end(n.Content[len(n.Content)-1], -1)
	s.cut(end, end, inside)
}

// insertAfter adds lines below the one that offset is on.
func (s *splicer) insertAfter(offset int, lines []string) {
	at := s.lineEnd(offset)
	s.cut(at, at, strings.Join(lines, s.eol)+s.eol)
}

// lineEnd is where the line behind that of offset begins.
func (s *splicer) lineEnd(offset int) int {
	if i := bytes.IndexByte(s.text[offset:], '\n'); i >= 0 {
		return offset + i + 1
	}
	return len(s.text)
}

// start is where n begins, with its tag and anchor.
func (s *splicer) start(n *yaml.Node) int {
	at := s.lines[n.Line-1]
	for range n.Column - 1 { // columns are characters
		_, size := utf8.DecodeRune(s.text[at:])
		at += size
	}
	return at
}

// end is where n ends, which stands in a block with that indent. Line breaks and
// comments behind it are not its own.
func (s *splicer) end(n *yaml.Node, indent int) int {
	from := s.start(n)
	rest := s.text[from:]
	switch {
	case n.Kind == yaml.AliasNode:
		return from + 1 + len(n.Value)
	case n.Kind != yaml.ScalarNode && n.Style&yaml.FlowStyle != 0:
		return from + closing(rest)
	case n.Kind != yaml.ScalarNode:
		return s.end(n.Content[len(n.Content)-1], n.Column-1)
	case n.Style&(yaml.LiteralStyle|yaml.FoldedStyle) != 0:
		return s.endBlock(from, indent)
	case n.Style&yaml.DoubleQuotedStyle != 0:
		return from + quoted(rest, bytes.IndexByte(rest, '"'))
	case n.Style&yaml.SingleQuotedStyle != 0:
		return from + quoted(rest, bytes.IndexByte(rest, '\''))
	}
	return from + plain(rest, n.Value)
}

// endBlock is where a literal or folded text ends: with the last line that is
// indented more than the block it is in.
func (s *splicer) endBlock(from, indent int) int {
	at := s.lineEnd(from)
	keep := bytes.ContainsRune(s.text[from:at], '+') // of blank lines at the end
	end := at
	for at < len(s.text) {
		next := s.lineEnd(at)
		line := s.text[at:next]
		blank := len(bytes.TrimSpace(line)) == 0
		if !blank && len(line)-len(bytes.TrimLeft(line, " ")) <= indent {
			break
		}
		if at = next; !blank || keep {
			end = next
		}
	}
	return max(from, len(bytes.TrimSuffix(s.text[:end], []byte("\n"))))
}

// closing is the length of the collection in brackets that text begins with.
func closing(text []byte) int {
	depth := 0
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth == 0 {
				return i + 1
			}
		case '"', '\'':
			if i == 0 || bytes.IndexByte([]byte("{[,: \t\r\n"), text[i-1]) >= 0 { // else it is part of a plain text
				i = quoted(text, i) - 1
			}
		case '#':
			if bytes.IndexByte([]byte(" \t\r\n"), text[i-1]) >= 0 {
				i += max(0, bytes.IndexByte(text[i:], '\n'))
			}
		}
	}
	return len(text)
}

// quoted is where the quotes end that open at i.
func quoted(text []byte, i int) int {
	for quote := text[i]; i+1 < len(text); {
		i++
		switch {
		case text[i] == '\\' && quote == '"':
			i++
		case text[i] == quote && quote == '\'' && i+1 < len(text) && text[i+1] == quote:
			i++
		case text[i] == quote:
			return i + 1
		}
	}
	return len(text)
}

// plain is the length of the text without quotes that says value, in which a line
// break reads as a space.
func plain(text []byte, value string) int {
	i := 0
	for _, c := range []byte(value) {
		for i < len(text) && bytes.IndexByte([]byte(" \t\r\n"), text[i]) >= 0 && (c == ' ' || c == '\n') {
			i++
		}
		if c != ' ' && c != '\n' {
			i++
		}
	}
	return i
}

// block writes v as lines of a block: a mapping at indent, a list below a key that
// stands at above.
func (s *splicer) block(v any, indent, above int) (lines []string) {
	switch v := v.(type) {
	case object:
		for _, key := range order(v) {
			lines = append(lines, s.entry(indent, key, v[key])...)
		}
	case []any:
		if !s.compact {
			above += 2
		}
		return s.dashes(v, above)
	}
	return lines
}

// entry writes a key and its value.
func (s *splicer) entry(indent int, key string, v any) []string {
	lead := strings.Repeat(" ", indent) + scalar(key, 0) + ":"
	switch v := v.(type) {
	case object:
		if len(v) > 0 {
			return append([]string{lead}, s.block(v, indent+2, indent)...)
		}
	case []any:
		if len(v) > 0 {
			return append([]string{lead}, s.block(v, indent, indent)...)
		}
	case string:
		if strings.Contains(v, "\n") && literal(v) {
			lines := []string{lead + " |"}
			for line := range strings.Lines(v) {
				lines = append(lines, strings.TrimRight(strings.Repeat(" ", indent+2)+strings.TrimSuffix(line, "\n"), " "))
			}
			return lines
		}
		return []string{lead + " " + scalar(v, 0)}
	}
	return []string{lead + " " + flow(v)}
}

// literal reports whether a text can be written line by line.
func literal(v string) bool {
	return strings.HasSuffix(v, "\n") && !strings.HasSuffix(v, "\n\n") && !strings.HasPrefix(v, " ") && !strings.HasPrefix(v, "\n") &&
		!strings.Contains(v, " \n") && !strings.ContainsAny(v, "\t\r") && utf8.ValidString(v)
}

// dashes writes the elements of a list.
func (s *splicer) dashes(list []any, indent int) (lines []string) {
	lead := strings.Repeat(" ", indent) + "- "
	for _, v := range list {
		m, ok := v.(object)
		if !ok || len(m) == 0 {
			if text, ok := v.(string); ok {
				lines = append(lines, lead+scalar(text, 0))
			} else {
				lines = append(lines, lead+flow(v))
			}
			continue
		}
		block := s.block(m, indent+2, indent+2)
		block[0] = lead + block[0][indent+2:]
		lines = append(lines, block...)
	}
	return lines
}

// order returns the keys of a mapping as people write them: the name first.
func order(m object) (keys []string) {
	for key := range m {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, func(a, b string) int {
		if a == "name" || b == "name" {
			return map[bool]int{true: -1, false: 1}[a == "name"]
		}
		return strings.Compare(a, b)
	})
	return keys
}

// scalar writes a value in one line, in the quotes that stood there before.
func scalar(v any, style yaml.Style) string {
	text, ok := v.(string)
	if !ok {
		return flow(v)
	}
	n := yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: text, Style: style & (yaml.DoubleQuotedStyle | yaml.SingleQuotedStyle)}
	out, err := yaml.Marshal(&n)
	if line := strings.TrimSuffix(string(out), "\n"); err == nil && !strings.Contains(line, "\n") && !strings.HasPrefix(line, "|") {
		return line
	}
	return flow(text)
}

// flow writes a value in one line, as JSON, which is YAML.
func flow(v any) string {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(v) // strings, numbers, lists and mappings of them
	return strings.TrimSuffix(b.String(), "\n")
}
