package wire

import (
	"encoding/binary"
	"math/bits"
)

// The functions here step over one token at b[i] by the grammar of RFC 8259 and
// return the offset behind it, or -1 if there is none.

func skipSpace(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\n' || b[i] == '\t' || b[i] == '\r') {
		i++
	}
	return i
}

func skipLiteral(b []byte, i int, lit string) int {
	if len(b)-i < len(lit) || string(b[i:i+len(lit)]) != lit {
		return -1
	}
	return i + len(lit)
}

const (
	everyByte = 0x0101010101010101
	everyHigh = 0x8080808080808080
)

// skipString returns the offset behind the string at i, or -1. It looks at
// eight bytes at a time, because agents send megabytes of base64.
func skipString(b []byte, i int) int {
	for i++; ; {
		for len(b)-i >= 8 {
			w := binary.LittleEndian.Uint64(b[i:])
			quote, slash := w^('"'*everyByte), w^('\\'*everyByte)
			// The lowest high bit set marks the first byte that is a quote, a
			// backslash or below 0x20. Borrows only spoil the bits above it.
			if hit := ((quote-everyByte)&^quote | (slash-everyByte)&^slash | (w-' '*everyByte)&^w) & everyHigh; hit != 0 {
				i += bits.TrailingZeros64(hit) / 8
				break
			}
			i += 8
		}
		for i < len(b) && b[i] != '"' && b[i] != '\\' && b[i] >= ' ' {
			i++
		}
		switch {
		case i >= len(b) || b[i] < ' ':
			return -1
		case b[i] == '"':
			return i + 1
		}
		if i = skipEscape(b, i); i < 0 {
			return -1
		}
	}
}

// skipEscape returns the offset behind the escape sequence at i, or -1.
func skipEscape(b []byte, i int) int {
	if i+1 >= len(b) {
		return -1
	}
	switch b[i+1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return i + 2
	case 'u':
		if len(b)-i >= 6 && hexValue(b[i+2:i+6]) >= 0 {
			return i + 6
		}
	}
	return -1
}

// skipNumber returns the offset behind the number at i, or -1.
func skipNumber(b []byte, i int) int {
	if b[i] == '-' {
		i++
	}
	switch {
	case i < len(b) && b[i] == '0':
		i++
	default:
		if i = skipDigits(b, i); i < 0 {
			return -1
		}
	}
	if i < len(b) && b[i] == '.' {
		if i = skipDigits(b, i+1); i < 0 {
			return -1
		}
	}
	if i < len(b) && b[i]|0x20 == 'e' {
		if i++; i < len(b) && (b[i] == '+' || b[i] == '-') {
			i++
		}
		return skipDigits(b, i)
	}
	return i
}

// skipDigits returns the offset behind at least one digit, or -1.
func skipDigits(b []byte, i int) int {
	from := i
	for i < len(b) && '0' <= b[i] && b[i] <= '9' {
		i++
	}
	if i == from {
		return -1
	}
	return i
}

// hexValue returns the number that hex digits of either case spell, or -1.
func hexValue(b []byte) rune {
	var v rune
	for _, c := range b {
		switch {
		case '0' <= c && c <= '9':
			c -= '0'
		case 'a' <= c|0x20 && c|0x20 <= 'f':
			c = c | 0x20 - 'a' + 10
		default:
			return -1
		}
		v = v<<4 | rune(c)
	}
	return v
}
