// Package openwop reads a host's own OpenWOP API as it passes by: which request
// begins a run, how the host answers with its id, and when a run is over.
//
// It promises to say nothing of what it does not recognise, and changes nothing.
package openwop

import (
	"encoding/json"
	"strings"
)

// Op is what a request asks of the host.
type Op uint8

// The operations that matter to causation. None is everything else.
const (
	None   Op = iota
	Create    // POST …/runs
	Fork      // POST …/runs/{id}:fork
	Read      // GET …/runs/{id}
	Events    // GET …/runs/{id}/events, as a stream or a list
	Poll      // GET …/runs/{id}/events/poll
	Bundle    // GET …/runs/{id}/debug-bundle, in v1
)

// Classify recognises an operation by its method and escaped path, below any
// base path. segment is the run's id as it stands in the path.
func Classify(method, escapedPath string) (op Op, segment string) {
	i := strings.LastIndex(escapedPath, "/runs")
	if i < 0 {
		return None, ""
	}
	rest := escapedPath[i+len("/runs"):]
	if rest == "" {
		if method == "POST" {
			return Create, ""
		}
		return None, ""
	}
	segment, tail, _ := strings.Cut(strings.TrimPrefix(rest, "/"), "/")
	if rest[0] != '/' || segment == "" {
		return None, ""
	}
	if method == "POST" && tail == "" {
		// An id may hold a colon of its own: the suffix stands behind the last.
		if id, ok := strings.CutSuffix(segment, ":fork"); ok {
			return Fork, id
		}
		return None, ""
	}
	if method != "GET" {
		return None, ""
	}
	switch tail {
	case "":
		return Read, segment
	case "events":
		return Events, segment
	case "events/poll":
		return Poll, segment
	case "debug-bundle":
		return Bundle, segment
	}
	return None, ""
}

// ReadsMemory reports whether a request is for entries of memory, at the only place
// where OpenWOP lets a host show them: it has no path for it, and each vendor has a
// mount for what the contract leaves open (RFC 0181).
func ReadsMemory(method, escapedPath string) bool {
	_, mount, ok := strings.Cut(escapedPath, "/host/")
	if !ok || method != "GET" {
		return false
	}
	vendor, rest, _ := strings.Cut(mount, "/")
	first, entry, _ := strings.Cut(rest, "/")
	return vendor != "" && first == "memory" && !strings.Contains(entry, "/")
}

// Created returns the id in the 201 answer to Create or Fork.
func Created(body []byte) (runID string, ok bool) {
	var answer struct {
		RunID string `json:"runId"`
	}
	if json.Unmarshal(body, &answer) != nil || answer.RunID == "" {
		return "", false
	}
	return answer.RunID, true
}

// Ended reports whether body, an answer to Read or Poll or the data of an
// event, shows that its run is over.
func Ended(op Op, body []byte) bool {
	var answer struct {
		Type       string `json:"type"`
		Status     string `json:"status"`
		IsTerminal bool   `json:"isTerminal"` // v2
		IsComplete bool   `json:"isComplete"` // v1
	}
	if json.Unmarshal(body, &answer) != nil {
		return false
	}
	switch op {
	case Read:
		return terminal(answer.Status)
	case Poll:
		return answer.IsTerminal || answer.IsComplete
	case Events:
		return EndsRun(answer.Type)
	}
	return false
}

// EndsRun reports whether an event of that type is the last of its run.
func EndsRun(eventType string) bool {
	status, ok := strings.CutPrefix(eventType, "run.")
	return ok && terminal(status)
}

func terminal(status string) bool {
	return status == "completed" || status == "failed" || status == "cancelled"
}
