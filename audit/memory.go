package audit

import (
	"encoding/json"
	"time"
)

// Entry is an entry of memory as the host shows it to who reads it.
type Entry struct {
	Ref     string    `json:"-"` // the scope that it was read from
	ID      string    `json:"id"`
	Created time.Time `json:"createdAt"`
	Expires time.Time `json:"expiresAt"` // zero: never
}

// ParseEntries reads what a host answers to who reads memory: an object with
// memoryRef, and one entry or a list of entries. What is none is skipped, and so
// is an entry without its scope: its id says nothing outside of that.
func ParseEntries(doc []byte) []Entry {
	var answer struct {
		Ref     string            `json:"memoryRef"`
		Entry   json.RawMessage   `json:"entry"`
		Entries []json.RawMessage `json:"entries"`
	}
	if json.Unmarshal(doc, &answer) != nil || answer.Ref == "" {
		return nil
	}
	if answer.Entry != nil {
		answer.Entries = append(answer.Entries, answer.Entry)
	}
	var found []Entry
	for _, one := range answer.Entries {
		x := Entry{}
		if json.Unmarshal(one, &x) == nil && x.ID != "" {
			x.Ref = answer.Ref
			found = append(found, x)
		}
	}
	return found
}

// Write is what the log of a run tells of an entry of memory that it has written.
type Write struct {
	Ref, ID string
	by      Event
}

// ParseWrite reads memory.written, which holds nothing of the entry but its name.
func ParseWrite(e Event) (w Write, ok bool) {
	if e.Type != "memory.written" || e.Time.IsZero() {
		return Write{}, false
	}
	var p struct {
		Ref string `json:"memoryRef"`
		ID  string `json:"memoryId"`
	}
	if json.Unmarshal(e.Payload, &p) != nil || p.Ref == "" || p.ID == "" {
		return Write{}, false
	}
	return Write{p.Ref, p.ID, Event{ID: e.ID, Run: e.Run, Sequence: e.Sequence, Time: e.Time}}, true
}

// Run returns the run that has written the entry.
func (w Write) Run() string { return w.by.Run }

// Same reports whether two events may tell of one write: that of a run, and what
// a fork of it has inherited.
func (w Write) Same(other Write) bool { return w.by.Time.Equal(other.by.Time) }

// clockSlack is what two notes of one moment may differ by.
const clockSlack = 2 * time.Second

// Check checks that an entry which was written once has its life from then on, and
// not from the parent's start. How long that is no host tells, so that an expiry
// is judged only if it does not even lie behind the write.
func (w Write) Check(x Entry) []Finding {
	if x.Expires.IsZero() || x.Ref != w.Ref || x.ID != w.ID {
		return nil
	}
	f := Finding{Rule: RuleMemoryExpiry, Run: w.by.Run, Event: w.by.ID, Sequence: w.by.Sequence}
	f.Text = "entry " + x.ID + " was written at " + w.by.Time.Format(time.RFC3339)
	switch {
	case !x.Created.IsZero() && x.Created.Sub(w.by.Time).Abs() > clockSlack:
		f.Text += ", and says that it was created at " + x.Created.Format(time.RFC3339)
	case x.Expires.Add(clockSlack).Before(w.by.Time):
		f.Text += ", and has expired before, at " + x.Expires.Format(time.RFC3339)
	default:
		return nil
	}
	return []Finding{f}
}
