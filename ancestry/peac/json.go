package peac

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// object is a JSON object. The other values are []any, string, float64, bool
// and nil.
type object = map[string]any

// maxNesting bounds the stack that a hostile document takes. Receipts may nest
// far less; that is told apart from what no reader should follow.
const maxNesting = 512

// CheckIJSON says whether raw is one JSON value that every reader takes for the
// same (I-JSON, RFC 7493): no member twice, no number beyond 2^53−1 in magnitude,
// no string that isn't Unicode text. What is no JSON at all is CodeInvalidFormat.
func CheckIJSON(raw []byte) error {
	_, err := parse(raw)
	return err
}

// Canonical returns raw in the one form that RFC 8785 (JCS) gives it. It refuses
// what CheckIJSON refuses.
func Canonical(raw []byte) ([]byte, error) {
	v, err := parse(raw)
	if err != nil {
		return nil, err
	}
	return appendValue(nil, v), nil
}

// marshal returns v in canonical form. A string that isn't UTF-8 is an error:
// encoding/json would sign U+FFFD in its place.
func marshal(v any) ([]byte, error) {
	raw, err := json.Marshal(v)
	if err != nil {
		if coded, ok := errors.AsType[*Error](err); ok {
			return nil, coded
		}
		return nil, fail(CodeInvalidFormat, "can't be written: %v", err)
	}
	// What was replaced is escaped, and what was U+FFFD before is not.
	for rest := raw; ; {
		i := bytes.Index(rest, []byte(`\ufffd`))
		if i < 0 {
			return Canonical(raw)
		}
		if n := i - len(bytes.TrimRight(rest[:i], `\`)); n%2 == 0 {
			return nil, fail(CodeInvalidString, "a string is not UTF-8")
		}
		rest = rest[i+len(`\ufffd`):]
	}
}

func parse(raw []byte) (any, error) {
	p := parser{raw: raw}
	v, err := p.value(0)
	if err != nil {
		return nil, err
	}
	if p.space(); p.at < len(raw) {
		return nil, p.fault("something follows the value")
	}
	return v, nil
}

// parser reads one JSON value, and keeps to I-JSON.
type parser struct {
	raw []byte
	at  int
}

func (p *parser) fault(what string) error {
	return fail(CodeInvalidFormat, "no JSON: %s at byte %d", what, p.at)
}

func (p *parser) space() {
	for p.at < len(p.raw) && (p.raw[p.at] == ' ' || p.raw[p.at] == '\t' || p.raw[p.at] == '\r' || p.raw[p.at] == '\n') {
		p.at++
	}
}

// next skips white space and returns the byte there, or 0 at the end.
func (p *parser) next() byte {
	p.space()
	if p.at == len(p.raw) {
		return 0
	}
	return p.raw[p.at]
}

func (p *parser) value(depth int) (any, error) {
	if depth > maxNesting {
		return nil, fail(CodeConstraint, "nested deeper than %d", maxNesting)
	}
	switch c := p.next(); {
	case c == '{':
		return p.object(depth)
	case c == '[':
		return p.array(depth)
	case c == '"':
		return p.text()
	case c == '-' || '0' <= c && c <= '9':
		return p.number()
	}
	switch {
	case p.word("null"):
		return nil, nil
	case p.word("true"):
		return true, nil
	case p.word("false"):
		return false, nil
	}
	return nil, p.fault("no value")
}

func (p *parser) word(text string) bool {
	if len(p.raw)-p.at < len(text) || string(p.raw[p.at:][:len(text)]) != text {
		return false
	}
	p.at += len(text)
	return true
}

func (p *parser) object(depth int) (any, error) {
	found := object{}
	p.at++
	for first := true; ; first = false {
		switch c := p.next(); {
		case c == '}' && first:
			p.at++
			return found, nil
		case c != '"':
			return nil, p.fault("no name of a member")
		}
		name, err := p.text()
		if err != nil {
			return nil, err
		}
		if _, twice := found[name]; twice {
			return nil, fail(CodeDuplicateMember, "a member is there twice, again before byte %d", p.at)
		}
		if p.next() != ':' {
			return nil, p.fault("no colon")
		}
		p.at++
		if found[name], err = p.value(depth + 1); err != nil {
			return nil, err
		}
		switch p.next() {
		case ',':
			p.at++
		case '}':
			p.at++
			return found, nil
		default:
			return nil, p.fault("no end of an object")
		}
	}
}

func (p *parser) array(depth int) (any, error) {
	found := []any{}
	p.at++
	if p.next() == ']' {
		p.at++
		return found, nil
	}
	for {
		v, err := p.value(depth + 1)
		if err != nil {
			return nil, err
		}
		found = append(found, v)
		switch p.next() {
		case ',':
			p.at++
		case ']':
			p.at++
			return found, nil
		default:
			return nil, p.fault("no end of an array")
		}
	}
}

func (p *parser) text() (string, error) {
	if n := plain(p.raw[p.at+1:]); n >= 0 {
		s := string(p.raw[p.at+1:][:n])
		p.at += n + 2
		return s, nil
	}
	var b strings.Builder
	start := p.at
	bad := func(what string) (string, error) {
		return "", fail(CodeInvalidString, "the string at byte %d %s", start, what)
	}
	for p.at++; p.at < len(p.raw); {
		c := p.raw[p.at]
		r, size := rune(c), 1
		switch {
		case c == '"':
			p.at++
			return b.String(), nil
		case c < ' ':
			return bad("has a control character")
		case c == '\\':
			if r, size = escaped(p.raw[p.at:]); size == 0 {
				return bad("has an escape that means nothing, or half a character")
			}
		case c >= utf8.RuneSelf:
			if r, size = utf8.DecodeRune(p.raw[p.at:]); r == utf8.RuneError && size == 1 {
				return bad("is not UTF-8")
			}
		}
		if r&0xfffe == 0xfffe || 0xfdd0 <= r && r <= 0xfdef {
			return bad("has a code point that is no character")
		}
		b.WriteRune(r)
		p.at += size
	}
	return bad("has no end")
}

// plain returns the length of the string that raw goes on with, if all of it stands
// there as it is and is ASCII, or -1.
func plain(raw []byte) int {
	for i, c := range raw {
		switch {
		case c == '"':
			return i
		case c < ' ', c == '\\', c >= utf8.RuneSelf:
			return -1
		}
	}
	return -1
}

// escaped reads the escape at the start of raw: a rune and how long it was
// written, or 0 if it is none.
func escaped(raw []byte) (rune, int) {
	if len(raw) < 2 {
		return 0, 0
	}
	if i := strings.IndexByte(`"\/bfnrt`, raw[1]); i >= 0 {
		return rune("\"\\/\b\f\n\r\t"[i]), 2
	}
	r, ok := unit(raw)
	if !ok {
		return 0, 0
	}
	if !utf16.IsSurrogate(r) {
		return r, 6
	}
	low, ok := unit(raw[6:])
	if r = utf16.DecodeRune(r, low); !ok || r == utf8.RuneError {
		return 0, 0
	}
	return r, 12
}

// unit reads \uXXXX.
func unit(raw []byte) (rune, bool) {
	if len(raw) < 6 || raw[0] != '\\' || raw[1] != 'u' {
		return 0, false
	}
	n, err := strconv.ParseUint(string(raw[2:6]), 16, 16)
	return rune(n), err == nil
}

func (p *parser) number() (any, error) {
	start := p.at
	n, ok := p.numeral()
	if !ok {
		return nil, p.fault("no number")
	}
	if !n.safe() {
		return nil, fail(CodeNumberOutOfRange, "the number at byte %d is beyond 2^53-1", start)
	}
	f, _ := strconv.ParseFloat(string(p.raw[start:p.at]), 64) // what is too small is 0
	return f, nil
}

// numeral is a number as it is written, but for its sign.
type numeral struct {
	whole, fraction, exponent []byte
	negative                  bool // the exponent is
}

func (p *parser) numeral() (n numeral, ok bool) {
	p.accept('-')
	if n.whole = p.digits(); len(n.whole) == 0 || len(n.whole) > 1 && n.whole[0] == '0' {
		return n, false
	}
	if p.accept('.') {
		if n.fraction = p.digits(); len(n.fraction) == 0 {
			return n, false
		}
	}
	if p.accept('e') || p.accept('E') {
		if !p.accept('+') {
			n.negative = p.accept('-')
		}
		if n.exponent = p.digits(); len(n.exponent) == 0 {
			return n, false
		}
	}
	return n, true
}

func (p *parser) digits() []byte {
	from := p.at
	for p.at < len(p.raw) && '0' <= p.raw[p.at] && p.raw[p.at] <= '9' {
		p.at++
	}
	return p.raw[from:p.at]
}

func (p *parser) accept(c byte) bool {
	if p.at == len(p.raw) || p.raw[p.at] != c {
		return false
	}
	p.at++
	return true
}

// maxSafe is the largest number that I-JSON allows.
const maxSafe = 1<<53 - 1

// safe says whether a number is at most maxSafe in magnitude. It is told from the
// digits: as a float64, what is a little more would look as if it were not.
func (n numeral) safe() bool {
	fraction := string(n.fraction)
	digits := strings.TrimLeft(string(n.whole)+fraction, "0")
	if digits == "" {
		return true
	}
	// The point stands after this many of digits.
	point := len(digits) - len(fraction)
	if exponent := strings.TrimLeft(string(n.exponent), "0"); exponent != "" {
		if len(exponent) > 9 {
			return n.negative // no message is long enough to make up for it
		}
		by, _ := strconv.Atoi(exponent)
		if n.negative {
			by = -by
		}
		point += by
	}
	limit := strconv.Itoa(maxSafe)
	if point != len(limit) {
		return point < len(limit)
	}
	rest := ""
	if len(digits) > point {
		digits, rest = digits[:point], digits[point:]
	}
	digits += strings.Repeat("0", point-len(digits))
	return digits < limit || digits == limit && strings.Trim(rest, "0") == ""
}

// appendValue writes v as RFC 8785 has it: no white space, members in the order
// of their UTF-16 code units, numbers and strings as ECMAScript prints them.
func appendValue(b []byte, v any) []byte {
	switch v := v.(type) {
	case nil:
		return append(b, "null"...)
	case bool:
		return strconv.AppendBool(b, v)
	case string:
		return appendText(b, v)
	case float64:
		number, _ := json.Marshal(v + 0) // as ECMAScript does, and -0 is 0
		return append(b, number...)
	case []any:
		b = append(b, '[')
		for i, item := range v {
			if i > 0 {
				b = append(b, ',')
			}
			b = appendValue(b, item)
		}
		return append(b, ']')
	}
	o := v.(object)
	names := slices.SortedFunc(maps.Keys(o), compareUnits)
	b = append(b, '{')
	for i, name := range names {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(appendText(b, name), ':')
		b = appendValue(b, o[name])
	}
	return append(b, '}')
}

// compareUnits compares texts in UTF-8 by their UTF-16 code units. They sort as their
// bytes do, but that a character of two units comes before those from U+E000 on that
// have one.
func compareUnits(x, y string) int {
	const private, pairs = 0xee, 0xf0 // what the characters begin with
	for i := range min(len(x), len(y)) {
		a, b := x[i], y[i]
		switch {
		case a == b:
			continue
		case a >= pairs && private <= b && b < pairs:
			return -1
		case b >= pairs && private <= a && a < pairs:
			return 1
		}
		return cmp.Compare(a, b)
	}
	return cmp.Compare(len(x), len(y))
}

func appendText(b []byte, s string) []byte {
	b = append(b, '"')
	for _, c := range []byte(s) {
		switch i := strings.IndexByte("\"\\\b\f\n\r\t", c); {
		case i >= 0:
			b = append(b, '\\', `"\bfnrt`[i])
		case c < ' ':
			b = append(b, `\u00`...)
			b = append(b, "0123456789abcdef"[c>>4], "0123456789abcdef"[c&15])
		default:
			b = append(b, c)
		}
	}
	return append(b, '"')
}

// length is that of a string where PEAC counts: in UTF-16 code units.
func length(s string) int {
	n := 0
	for _, r := range s {
		n += utf16.RuneLen(r)
	}
	return n
}
