package ancestry

import (
	"errors"
	"fmt"
)

// ErrCursor is returned by Children for an after that no page returned.
var ErrCursor = errors.New("invalid cursor")

// Key tells links apart: the run's id, and its host unless that is this one.
// The same id on two hosts names two runs.
func (l Link) Key() string { return linkKey(l.Host, l.Run) }

func linkKey(host string, id RunID) string {
	if host == "" {
		return string(id)
	}
	return string(id) + " " + host // neither can hold a space
}

// CheckCursor accepts "" and what Link.Cursor returns.
func CheckCursor(s string) error {
	if s == "" {
		return nil
	}
	if len(s) <= cursorTime {
		return ErrCursor
	}
	for i := range cursorTime {
		if c := s[i]; unhex(c) > 15 || 'A' <= c && c <= 'F' {
			return ErrCursor
		}
	}
	return nil
}

// cursorTime is the length of the time in a cursor.
const cursorTime = 16

// Cursor is the place of l in a listing: oldest first, then by Key. Cursors
// compare as strings.
func (l Link) Cursor() string {
	return fmt.Sprintf("%016x%s", uint64(l.Time.UnixMilli())^1<<63, l.Key())
}

// Validate reports what keeps l from being stored. Each text is bounded, so
// that no link is ever too large for a store.
func (l Link) Validate() error {
	if _, err := ParseRunID(string(l.Run)); err != nil {
		return err
	}
	if l.Alias != "" {
		if _, err := ParseRunID(string(l.Alias)); err != nil {
			return fmt.Errorf("alias: %w", err)
		}
	}
	if l.Source != "" {
		if _, err := ParseRunID(string(l.Source)); err != nil {
			return fmt.Errorf("source: %w", err)
		}
	}
	if l.Host != "" {
		if err := checkHost(l.Host); err != nil {
			return err
		}
	}
	for i, a := range l.Chain.Ancestors {
		if err := a.check(); err != nil {
			return fmt.Errorf("ancestor %d: %w", i, err)
		}
	}
	if l.Chain.Depth < 0 || l.Chain.Depth > maxDepth {
		return fmt.Errorf("depth %d: want 0 to %d", l.Chain.Depth, maxDepth)
	}
	if l.Workflow != "" && !ValidWorkflow(l.Workflow) {
		return fmt.Errorf("workflow %.64q: want wf_ and 20 to 48 letters, digits, - and _", l.Workflow)
	}
	if n := max(len(l.Operation), len(l.Evidence), len(l.Reason)); n > 256 {
		return fmt.Errorf("operation, evidence or reason of %d bytes: want at most 256", n)
	}
	return nil
}

// Merge says what recording l makes of what is stored: byRun is the link that
// l.Run names, and byAlias the one that l.Alias names, nil where the id is new.
// It returns the link to store under its own Run. From then on l.Run names it,
// and so does l.Alias unless the run has another alias already; if byRun is
// another run, all its names do too.
//
// It is the one place that holds the rules of Store.Record. Merging the same
// link again changes nothing.
func Merge(l Link, byRun, byAlias *Link) Link {
	if l.Alias == l.Run {
		l.Alias = ""
	}
	switch {
	case byRun == nil && byAlias == nil:
		return l
	case byAlias == nil:
		m := *byRun
		if m.Alias == "" && l.Alias != m.Run {
			m.Alias = l.Alias
		}
		return m.fill(l)
	case byRun == nil || byRun.Run == byAlias.Run:
		return byAlias.fill(l)
	default:
		return byAlias.fill(*byRun).fill(l)
	}
}

// fill returns l with what it does not know taken from other. A run that has a
// parent, or a reason to have none, is settled.
func (l Link) fill(other Link) Link {
	if l.Parent() == nil && l.Reason == "" {
		l.Chain, l.Evidence, l.Reason = other.Chain, other.Evidence, other.Reason
	}
	if l.Source == "" {
		l.Source = other.Source
	}
	if l.Trace.IsZero() {
		l.Trace, l.Span, l.ParentSpan = other.Trace, other.Span, other.ParentSpan
	}
	if l.Operation == "" {
		l.Operation = other.Operation
	}
	if l.Workflow == "" {
		l.Workflow = other.Workflow
	}
	return l
}
