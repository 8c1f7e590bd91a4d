package ancestry

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// WriteTree draws the walk with its oldest run on top:
//
//	r-0001  front.example.com
//	└─ core.dispatch → r-7f3a  planner.example.com
//	   └─ a2a-message → task-9  research.example.com
//
// If the walk did not reach the root, the first line is a ? and the reason. Text
// from peers is quoted where it could move the cursor of a terminal.
func (k Walk) WriteTree(w io.Writer) error {
	var b strings.Builder
	depth := 0
	line := func(format string, args ...any) {
		if depth > 0 {
			b.WriteString(strings.Repeat("   ", depth-1) + "└─ ")
		}
		fmt.Fprintf(&b, format+"\n", args...)
		depth++
	}
	if k.Stop != StopRoot {
		line("? (%s)", printable(strings.TrimSuffix(string(k.Stop)+": "+k.Detail, ": ")))
	}
	for i, h := range slices.Backward(k.Hops) {
		arrow, note := "", ""
		if i+1 < len(k.Hops) {
			arrow = string(k.Hops[i+1].Cause) + " → "
		}
		if !h.Confirmed {
			note = "  (unconfirmed)"
		}
		line("%s%s  %s%s", arrow, printable(string(h.Run)), printable(h.Host), note)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// printable returns s, quoted unless it is all graphic characters. Marks that
// turn the direction of writing are not.
func printable(s string) string {
	if !utf8.ValidString(s) || strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return strconv.Quote(s)
	}
	return s
}
