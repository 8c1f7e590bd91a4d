package openwop

import (
	"bytes"
	"encoding/json"
	"strings"
)

// Child is what the log of a run tells of a run that it has begun on the same
// host.
type Child struct {
	Run string // its id
	// Cause is core.dispatch or core.subWorkflow. It is empty where the event tells
	// of the child's end alone: a handoff may be to another host.
	Cause string
	Node  string // the node that has begun it, if the event says so
	Ended bool   // it is over
}

// ReadChild reads an event of a log, by its type in the spelling of either major
// and its payload. It reports false if the event tells of no child.
func ReadChild(typ string, payload []byte) (c Child, ok bool) {
	switch typ {
	case "node.dispatched", "node.completed", "core.workflowChain.event", "workflow-chain.event":
	default:
		return Child{}, false
	}
	if !bytes.Contains(payload, []byte(`"childRunId"`)) {
		return Child{}, false // most nodes begin none, and may have long outputs
	}
	var p struct {
		NodeID      string                     `json:"nodeId"`
		ChildRunID  string                     `json:"childRunId"`
		ChildStatus string                     `json:"childStatus"`
		Phase       string                     `json:"phase"`
		Outputs     map[string]json.RawMessage `json:"outputs"`
	}
	if json.Unmarshal(payload, &p) != nil {
		return Child{}, false
	}
	switch typ {
	case "node.dispatched":
		c = Child{Run: p.ChildRunID, Cause: "core.dispatch", Ended: terminal(p.ChildStatus)}
	case "node.completed":
		var status string
		_ = json.Unmarshal(p.Outputs["childRunId"], &c.Run)
		_ = json.Unmarshal(p.Outputs["childStatus"], &status)
		c.Cause, c.Node, c.Ended = "core.subWorkflow", p.NodeID, terminal(status)
		if !c.Ended {
			return Child{}, false // such a node completes with its child: these outputs are another's
		}
	default:
		status, ended := strings.CutPrefix(p.Phase, "child.")
		c = Child{Run: p.ChildRunID, Ended: ended && terminal(status)}
		if !c.Ended {
			return Child{}, false
		}
	}
	return c, c.Run != ""
}

// ReadNode returns the node that an event says has begun, and whether it is of
// the type that begins a run and completes with it.
func ReadNode(typ string, payload []byte) (node string, begins, ok bool) {
	if typ != "node.started" {
		return "", false, false
	}
	var p struct {
		NodeID string `json:"nodeId"`
		TypeID string `json:"typeId"`
	}
	if json.Unmarshal(payload, &p) != nil || p.NodeID == "" || p.TypeID == "" {
		return "", false, false
	}
	name := p.TypeID[strings.LastIndexByte(p.TypeID, '.')+1:]
	return p.NodeID, strings.EqualFold(strings.ReplaceAll(name, "-", ""), "subWorkflow"), true
}
