package audit

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"strings"
)

// Check checks the logs of all runs that events are of, in the order of their
// sequence numbers, and what the log of a planner says of its children against
// theirs. The findings are in the order of runs and sequence numbers.
func Check(events []Event, m Model) []Finding {
	byRun := map[string][]Event{}
	for _, e := range events {
		byRun[e.Run] = append(byRun[e.Run], e)
	}
	runs := map[string]*Run{}
	var found []Finding
	for _, id := range slices.Sorted(maps.Keys(byRun)) {
		r := NewRun(id, m)
		runs[id] = r
		log := byRun[id]
		slices.SortStableFunc(log, func(a, b Event) int { return cmp.Compare(a.Sequence, b.Sequence) })
		for _, e := range log {
			found = append(found, r.Event(e)...)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(runs)) {
		r := runs[id]
		for _, child := range slices.Sorted(maps.Keys(r.children)) {
			c := runs[child]
			if c == nil || c.end == "" {
				continue
			}
			if said, was := strings.TrimPrefix(r.children[child], "child."), strings.TrimPrefix(c.end, "run."); said != was {
				found = append(found, Finding{
					Rule: RuleChildOutcome, Run: id, Sequence: r.next - 1,
					Text: "child " + child + " is said to be " + said + ", and its own log says " + was,
				})
			}
		}
	}
	return found
}

// ForkRefusal checks the answer of a host of that major to a fork of run at
// fromSeq, if it is a refusal because memory can't be had as of then.
func ForkRefusal(major int, run string, fromSeq int64, status int, body []byte) []Finding {
	var p struct {
		Error   string `json:"error"`
		Details struct {
			FromSeq *int64 `json:"fromSeq"`
			Source  string `json:"sourceRunId"`
			Reason  string `json:"reason"`
		} `json:"details"`
	}
	if json.Unmarshal(body, &p) != nil || p.Error != "replay_memory_snapshot_unavailable" {
		return nil
	}
	var found []Finding
	wrong := func(text string) {
		found = append(found, Finding{Rule: RuleForkRefusal, Run: run, Sequence: fromSeq, Text: text})
	}
	want := map[int]int{1: 422, 2: 409}[major]
	if status != want {
		wrong("the refusal has another status than its code's")
	}
	d := p.Details
	if d.FromSeq != nil && *d.FromSeq != fromSeq || d.FromSeq == nil && major == 1 {
		wrong("details.fromSeq is not the index that was asked for")
	}
	if major == 1 {
		if d.Source == "" {
			wrong("details.sourceRunId is missing")
		}
		if d.Reason != "retention_expired" && d.Reason != "event_log_unavailable" {
			wrong("details.reason is neither retention_expired nor event_log_unavailable")
		}
	}
	return found
}
