package wire

import (
	"bytes"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// unquote returns the text of a scanned string without its quotes, cut to at
// most limit bytes at the end of a character.
func unquote(raw []byte, limit int) string {
	if len(raw) <= limit && bytes.IndexByte(raw, '\\') < 0 && utf8.Valid(raw) {
		return string(raw)
	}
	return string(appendUnquoted(make([]byte, 0, min(len(raw), limit)), raw, limit))
}

// appendUnquoted appends the text of a scanned string without its quotes, up to
// a length of limit. Lone surrogates and invalid UTF-8 become U+FFFD.
func appendUnquoted(dst, raw []byte, limit int) []byte {
	for i := 0; i < len(raw); {
		r, n := utf8.DecodeRune(raw[i:])
		if r == '\\' {
			r, n = escaped(raw[i:])
		}
		if len(dst)+utf8.RuneLen(r) > limit {
			break
		}
		dst = utf8.AppendRune(dst, r)
		i += n
	}
	return dst
}

// escaped decodes the valid escape sequence that raw begins with, two of them
// if they are a surrogate pair.
func escaped(raw []byte) (r rune, n int) {
	if raw[1] != 'u' {
		const from, to = `"\/bfnrt`, "\"\\/\b\f\n\r\t"
		return rune(to[strings.IndexByte(from, raw[1])]), 2
	}
	r = hexValue(raw[2:6])
	if !utf16.IsSurrogate(r) {
		return r, 6
	}
	if len(raw) >= 12 && raw[6] == '\\' && raw[7] == 'u' {
		if pair := utf16.DecodeRune(r, hexValue(raw[8:12])); pair != utf8.RuneError {
			return pair, 12
		}
	}
	return utf8.RuneError, 6
}

// appendQuoted appends s as a JSON string. It escapes what it must, and no more.
func appendQuoted(dst []byte, s string) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	for i := 0; i < len(s); {
		plain := i
		for i < len(s) && ' ' <= s[i] && s[i] < utf8.RuneSelf && s[i] != '"' && s[i] != '\\' {
			i++
		}
		if dst = append(dst, s[plain:i]...); i == len(s) {
			break
		}
		r, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == '"' || r == '\\':
			dst = append(dst, '\\', byte(r))
		case r < ' ':
			dst = append(dst, '\\', 'u', '0', '0', hex[r>>4], hex[r&15])
		default:
			dst = utf8.AppendRune(dst, r)
		}
		i += n
	}
	return append(dst, '"')
}
