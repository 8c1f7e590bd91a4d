package ancestry

import "time"

// HandoffState is where a handoff stands: a call by which a run of this host has
// another host do something. The states are those that OpenWOP RFC 0037 B has
// for workers inside a host.
type HandoffState string

// The states.
const (
	HandoffPending     HandoffState = "pending"     // the call has found its run
	HandoffDispatching HandoffState = "dispatching" // it was sent on
	HandoffRunning     HandoffState = "running"     // the callee has taken it
	HandoffHarvested   HandoffState = "harvested"   // its result was handed to the caller
	HandoffFailed      HandoffState = "failed"
	HandoffCancelled   HandoffState = "cancelled"
)

// HandoffStates lists the closed set.
func HandoffStates() []HandoffState {
	return []HandoffState{HandoffPending, HandoffDispatching, HandoffRunning, HandoffHarvested, HandoffFailed, HandoffCancelled}
}

// Ended reports whether nothing can follow.
func (s HandoffState) Ended() bool {
	return s == HandoffHarvested || s == HandoffFailed || s == HandoffCancelled
}

// Precedes reports whether a handoff may go from s to next in one step: forward
// one by one to the harvest, and from anywhere before that to an end that is
// none.
func (s HandoffState) Precedes(next HandoffState) bool {
	switch next {
	case HandoffDispatching:
		return s == HandoffPending
	case HandoffRunning:
		return s == HandoffDispatching
	case HandoffHarvested:
		return s == HandoffRunning
	case HandoffFailed, HandoffCancelled:
		return s == HandoffPending || s == HandoffDispatching || s == HandoffRunning
	}
	return false
}

// HandoffError says why a handoff has failed, from a closed set.
type HandoffError string

// The errors.
const (
	HandoffRefused     HandoffError = "refused"       // by wopproxy, as configured
	HandoffUnreachable HandoffError = "unreachable"   // the callee could not be reached
	HandoffTimeout     HandoffError = "timeout"       // it did not answer in time
	HandoffBroken      HandoffError = "broken"        // its answer broke off
	HandoffHTTPStatus  HandoffError = "http-status"   // its answer was an error of HTTP, or led elsewhere
	HandoffRPCError    HandoffError = "rpc-error"     // an error of JSON-RPC or gRPC
	HandoffToolError   HandoffError = "tool-error"    // an MCP result with isError
	HandoffTaskFailed  HandoffError = "task-failed"   // the task that the call became has failed
	HandoffRejected    HandoffError = "task-rejected" // the callee would not take the task on
)

// Handoff is what has been seen of one handoff. None of it is concluded: where
// nothing more was seen it stays where it was.
type Handoff struct {
	ID        string `json:"id"`                   // of this process's life
	Run       RunID  `json:"runId"`                // the calling run, by the first id it was known by
	Peer      string `json:"peer"`                 // host:port that was called, or "stdio"
	Host      string `json:"hostId,omitempty"`     // the callee's own id, where its proxy has told it
	Child     RunID  `json:"childRunId,omitempty"` // the run there, likewise
	Protocol  string `json:"protocol"`             // "mcp" or "a2a"
	Operation string `json:"operation"`            // "tools/call", "message/send"

	Task      string `json:"taskId,omitempty"`    // the task that it became
	TaskState string `json:"taskState,omitempty"` // what the callee said of that last

	State HandoffState  `json:"state"`
	Error HandoffError  `json:"error,omitempty"` // exactly where it has failed
	Steps []HandoffStep `json:"steps"`           // how it came there, in order
	Seen  time.Time     `json:"seen"`            // when it was last heard of
	// Open says that more of it may be seen. One that is neither open nor ended
	// has gone on where the proxy does not see it.
	Open bool `json:"open"`
}

// HandoffStep is one transition, and when it was seen.
type HandoffStep struct {
	State HandoffState `json:"state"`
	Time  time.Time    `json:"time"`
}
