package ancestry

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
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

// WriteTree draws the runs below each other, oldest first, and below each run its
// calls of which it is not known what run they have started:
//
//	r-0001  front.example.com
//	├─ core.dispatch → r-7f3a  front.example.com
//	│  └─ a2a-message → task-9  research.example.com  running, task input-required
//	└─ tools/call → tools.example.com:443  failed: tool-error
//
// Text from peers is quoted as in the tree of a Walk.
func (t Tree) WriteTree(w io.Writer) error {
	if t.Root == nil {
		return errors.New("a tree without a root")
	}
	var b strings.Builder
	t.Root.draw(&b, "", "")
	_, err := io.WriteString(w, b.String())
	return err
}

// draw writes the line of n and all below it: first stands in front of the line,
// and indent of those below.
func (n *TreeNode) draw(b *strings.Builder, first, indent string) {
	b.WriteString(first)
	if first != "" {
		b.WriteString(printable(string(n.Cause)) + " → ")
	}
	b.WriteString(printable(string(n.Run)) + "  " + printable(n.HostID))
	if n.Handoff != nil {
		b.WriteString("  " + n.Handoff.stands())
	}
	b.WriteByte('\n')
	left := len(n.Children) + len(n.Handoffs)
	if n.Truncated {
		left++
	}
	branch := func() (first, below string) {
		if left--; left > 0 {
			return indent + "├─ ", indent + "│  "
		}
		return indent + "└─ ", indent + "   "
	}
	for _, c := range n.Children {
		first, below := branch()
		c.draw(b, first, below)
	}
	for _, h := range n.Handoffs {
		first, _ := branch()
		fmt.Fprintf(b, "%s%s → %s  %s\n", first, printable(h.Operation), printable(h.Peer), h.stands())
	}
	if n.Truncated {
		first, _ := branch()
		b.WriteString(first + "…\n")
	}
}

// stands says where h stands, and since when that is the last that was seen.
func (h Handoff) stands() string {
	s := printable(string(h.State))
	switch {
	case h.Error != "":
		s += ": " + printable(string(h.Error))
	case h.TaskState != "" && !h.State.Ended():
		s += ", task " + printable(h.TaskState)
	}
	if !h.State.Ended() && !h.Open {
		s += ", last seen " + h.Seen.UTC().Format(time.RFC3339)
	}
	return s
}

// printable returns s, quoted unless it is all graphic characters. Marks that
// turn the direction of writing are not.
func printable(s string) string {
	if !utf8.ValidString(s) || strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return strconv.Quote(s)
	}
	return s
}
