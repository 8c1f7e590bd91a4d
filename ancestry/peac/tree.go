package peac

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// maxIndent is how far a tree goes to the right: the steps behind stand below
// each other.
const maxIndent = 40

// WriteTree draws the steps of r, each with its verdict below the first of its
// parents, then what is wrong beside them, and what the summary says.
func (r Report) WriteTree(w io.Writer) error {
	t := tree{children: map[string][]StepReport{}, drawn: map[string]bool{}}
	there := map[string]bool{}
	for _, s := range r.Steps {
		there[s.ID] = true
	}
	var roots []StepReport
	for _, s := range r.Steps {
		parent := ""
		for _, p := range s.Parents {
			if there[p] && parent == "" {
				parent = p
			}
		}
		if parent == "" {
			roots = append(roots, s)
		} else {
			t.children[parent] = append(t.children[parent], s)
		}
	}
	for _, s := range roots {
		t.draw(s, "", "", 0)
	}
	for _, s := range r.Steps { // those that nothing without a parent leads to
		if !t.drawn[s.ID] {
			t.draw(s, "", "", 0)
		}
	}
	for _, f := range r.Faults {
		t.fault("", f)
	}
	t.summary(r)
	_, err := io.WriteString(w, t.text.String())
	return err
}

// tree is a report while it is drawn.
type tree struct {
	text     strings.Builder
	children map[string][]StepReport
	drawn    map[string]bool
}

// draw writes s and what hangs on it: its line begins with first, those of its
// faults and children with indent.
func (t *tree) draw(s StepReport, first, indent string, level int) {
	t.drawn[s.ID] = true
	verdict := "ok"
	if len(s.Faults) > 0 {
		verdict = "FAILED"
	}
	fmt.Fprintf(&t.text, "%s%s  %s  %s", first, s.ID, verdict, printable(s.Receipts[0].Claims.Type))
	if n := len(s.Receipts); n > 1 {
		fmt.Fprintf(&t.text, "  %d receipts", n)
	}
	if len(s.Parents) > 1 {
		fmt.Fprintf(&t.text, "  after %s", strings.Join(s.Parents, ", "))
	}
	t.text.WriteByte('\n')
	children := t.children[s.ID]
	bar := "   "
	if len(children) > 0 {
		bar = "│  "
	}
	for _, f := range s.Faults {
		t.fault(indent+bar, f)
	}
	for i, c := range children {
		head, rest := "├─ ", "│  "
		if i == len(children)-1 {
			head, rest = "└─ ", "   "
		}
		if level >= maxIndent {
			rest = ""
		}
		if !t.drawn[c.ID] {
			t.draw(c, indent+head, indent+rest, level+1)
		}
	}
}

func (t *tree) fault(indent string, f Fault) {
	fmt.Fprintf(&t.text, "%s%s: %s", indent, f.Code, printable(f.What))
	if f.Ref != "" {
		fmt.Fprintf(&t.text, " (%s)", f.Ref)
	}
	t.text.WriteByte('\n')
}

func (t *tree) summary(r Report) {
	if r.Of > 0 {
		n := 0
		for _, s := range r.Steps {
			n += len(s.Receipts)
		}
		fmt.Fprintf(&t.text, "an extract: %d of %d receipts\n", n, r.Of)
	}
	if r.Summary == nil {
		t.text.WriteString("no summary that holds: nothing that is signed says how many receipts there are\n")
		return
	}
	verdict := "ok"
	if slices.ContainsFunc(r.Faults, func(f Fault) bool { return f.Code == CodeSummaryInvalid }) {
		verdict = "FAILED"
	}
	e := r.Summary.Evidence
	fmt.Fprintf(&t.text, "summary  %s  %s  %s", verdict, e.WorkflowID, e.Status)
	if e.ReceiptMerkleRoot != "" {
		fmt.Fprintf(&t.text, "  %d receipt%s  %s", *e.ReceiptCount, plural(*e.ReceiptCount), e.ReceiptMerkleRoot)
	}
	t.text.WriteByte('\n')
}

// printable returns s, or s in quotes if it could do more than stand in a line.
func printable(s string) string {
	if strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsGraphic(r) || r == '\u2028' || r == '\u2029' }) {
		return strconv.QuoteToASCII(s)
	}
	return s
}

// plural is what the noun of n things ends in.
func plural(n int64) string {
	if n == 1 {
		return ""
	}
	return "s"
}
