package attribution

import (
	"bytes"
	"math/bits"
)

// Bounds of the ids that are looked for in a body.
const (
	maxMentioned = 32  // in a request that a run is given; one with more is as good as unread
	maxEchoed    = 256 // in a call that leaves; one with more is not attributed by them
	minOpaque    = 20  // characters of an id without separators
	maxOpaque    = 128
)

// Mentions returns the ids in a body that could be those of a run: what nobody
// could have come upon by chance. Letters are in lower case. It reports false
// if there are too many, or some that are written so that they can't be told.
//
// The one pass over body costs no allocation where it finds nothing.
func Mentions(body []byte) (ids []string, ok bool) { return opaqueIDs(body, maxMentioned) }

// Echoed is Mentions for a call that leaves.
func Echoed(body []byte) (ids []string, ok bool) { return opaqueIDs(body, maxEchoed) }

// Opaque reports whether id alone could be one.
func Opaque(id string) bool { return len(id) <= maxOpaque && opaque([]byte(id)) }

func opaqueIDs(body []byte, limit int) (ids []string, ok bool) {
	for i := 0; i < len(body); {
		switch class[body[i]] {
		case classNone:
			i++
			continue
		case classEscape:
			c, n := unescape(body[i:])
			if class[c] > classEscape {
				return nil, false // a part of what may be an id
			}
			i += n
			continue
		}
		from := i
		for i < len(body) && class[body[i]] > classEscape {
			i++
		}
		if id := body[from:i]; len(id) >= minOpaque && len(id) <= maxOpaque && opaque(id) {
			if len(ids) == limit {
				return nil, false
			}
			ids = append(ids, string(bytes.ToLower(id)))
		}
	}
	return ids, true
}

// The classes of bytes. What may stand in an id comes last.
const (
	classNone = iota
	classEscape
	classSeparator
	classDigit
	classLetter
)

var class = func() (c [256]byte) {
	c['\\'], c['-'], c['_'] = classEscape, classSeparator, classSeparator
	for b := '0'; b <= '9'; b++ {
		c[b] = classDigit
	}
	for b := 'a'; b <= 'z'; b++ {
		c[b], c[b-'a'+'A'] = classLetter, classLetter
	}
	return c
}()

// unescape reads an escape of JSON: the character, if it is one of ASCII, and
// how long the escape is.
func unescape(s []byte) (c byte, n int) {
	if len(s) < 2 || s[1] != 'u' {
		return 0, 2
	}
	if len(s) < 6 {
		return 0, len(s)
	}
	for _, d := range s[2:6] {
		v := bytes.IndexByte([]byte("0123456789abcdef"), d|0x20)
		if v < 0 {
			return 0, 2
		}
		if c > 7 { // beyond ASCII with one more digit
			return 0, 6
		}
		c = c<<4 | byte(v)
	}
	return c, 6
}

// opaque reports whether id is like a UUID or a ULID: it ends in one, or in as
// many letters and digits without order. What is made of words and dates is not.
func opaque(id []byte) bool {
	if len(id) >= 36 && uuid(id[len(id)-36:]) {
		return len(id) == 36 || class[id[len(id)-37]] == classSeparator
	}
	from := len(id)
	for from > 0 && class[id[from-1]] >= classDigit {
		from--
	}
	return len(id)-from >= minOpaque && mixed(id[from:])
}

func uuid(id []byte) bool {
	for i, b := range id {
		dash := i == 8 || i == 13 || i == 18 || i == 23
		hex := class[b] == classDigit || b|0x20 >= 'a' && b|0x20 <= 'f'
		if dash != (b == '-') || !dash && !hex {
			return false
		}
	}
	return mixed(id)
}

// mixed reports whether letters, digits and what there is of each vary as they
// do by chance.
func mixed(id []byte) bool {
	const few, kinds = 3, 8
	var seen uint64 // digits, then letters in either case
	digits, letters := 0, 0
	for _, b := range id {
		switch class[b] {
		case classDigit:
			digits++
			seen |= 1 << (b - '0')
		case classLetter:
			letters++
			seen |= 1 << (10 + (b | 0x20) - 'a')
		}
	}
	return digits >= few && letters >= few && bits.OnesCount64(seen) >= kinds
}
