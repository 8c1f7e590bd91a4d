package program

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// WriteMarkdown prints a table, of which the first line is the heading. It pads
// each column to its widest cell.
func WriteMarkdown(w io.Writer, lines [][]string) error {
	widths := make([]int, len(lines[0]))
	for _, line := range lines {
		for i, cell := range line {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	var b strings.Builder
	for i, line := range lines {
		for j, cell := range line {
			fmt.Fprintf(&b, "| %s%s ", cell, strings.Repeat(" ", widths[j]-utf8.RuneCountInString(cell)))
		}
		b.WriteString("|\n")
		if i == 0 {
			for _, n := range widths {
				b.WriteString("|" + strings.Repeat("-", n+2))
			}
			b.WriteString("|\n")
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}
