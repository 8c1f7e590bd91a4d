package rawhttp

import (
	"bytes"
	"strings"
)

// Mark is what each message has another number for, in hexadecimal.
const Mark = "@@@@@@@@@@@@@@@@"

// Marks returns where Mark stands in text.
func Marks(text []byte) (at []int) {
	for from := 0; ; {
		i := bytes.Index(text[from:], []byte(Mark))
		if i < 0 {
			return at
		}
		at = append(at, from+i)
		from += i + len(Mark)
	}
}

// Number puts n in the place of a mark.
func Number(at []byte, n uint64) {
	const digits = "0123456789abcdef"
	for i := len(Mark) - 1; i >= 0; i-- {
		at[i] = digits[n&15]
		n >>= 4
	}
}

// Filled is size bytes: head, filling and tail.
func Filled(head string, size int, tail string) []byte {
	return []byte(head + strings.Repeat("lorem ipsum dolor sit amet ", size/27+1)[:size-len(head)-len(tail)] + tail)
}
