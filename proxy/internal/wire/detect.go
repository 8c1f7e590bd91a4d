package wire

import "bytes"

// Protocol is what a message belongs to.
type Protocol uint8

// The protocols. None is everything that is not positively one of the others.
const (
	None Protocol = iota
	MCP
	A2A
)

// String returns the name in lower case, for metric labels.
func (p Protocol) String() string { return [...]string{"none", "mcp", "a2a"}[p] }

// method is what is known of a JSON-RPC method by its name.
type method struct {
	name     string
	protocol Protocol // None: MCP and A2A share the name
	target   slot     // MCP: where the name of what is called stands; 0: nowhere
	task     slot     // A2A: where the id of the task stands; 0: nowhere
	sends    bool     // A2A: params holds a message
}

// methods are the names known, in no order. A name that is not among them may
// still tell its protocol by its family.
var methods = index([]method{
	{name: "initialize", protocol: MCP},
	{name: "ping", protocol: MCP},
	{name: "server/discover", protocol: MCP},
	{name: "tools/call", protocol: MCP, target: atName},
	{name: "tools/list", protocol: MCP},
	{name: "prompts/get", protocol: MCP, target: atName},
	{name: "prompts/list", protocol: MCP},
	{name: "resources/read", protocol: MCP, target: atURI},
	{name: "resources/subscribe", protocol: MCP, target: atURI},
	{name: "resources/unsubscribe", protocol: MCP, target: atURI},
	{name: "resources/list", protocol: MCP},
	{name: "resources/templates/list", protocol: MCP},
	{name: "completion/complete", protocol: MCP},
	{name: "logging/setLevel", protocol: MCP},
	{name: "sampling/createMessage", protocol: MCP},
	{name: "elicitation/create", protocol: MCP},
	{name: "roots/list", protocol: MCP},
	{name: "subscriptions/listen", protocol: MCP},
	{name: "tasks/result", protocol: MCP},
	{name: "tasks/update", protocol: MCP},
	{name: "notifications/initialized", protocol: MCP},
	{name: "notifications/cancelled", protocol: MCP},
	{name: "notifications/progress", protocol: MCP},
	{name: "notifications/message", protocol: MCP},
	{name: "notifications/resources/updated", protocol: MCP, target: atURI},

	{name: "tasks/get", task: atParamID},
	{name: "tasks/cancel", task: atParamID},
	{name: "tasks/list"},

	{name: "message/send", protocol: A2A, task: atMessageTaskID, sends: true},
	{name: "message/stream", protocol: A2A, task: atMessageTaskID, sends: true},
	{name: "tasks/resubscribe", protocol: A2A, task: atParamID},
	{name: "tasks/pushNotificationConfig/set", protocol: A2A, task: atTaskID},
	{name: "tasks/pushNotificationConfig/get", protocol: A2A, task: atParamID},
	{name: "tasks/pushNotificationConfig/list", protocol: A2A, task: atParamID},
	{name: "tasks/pushNotificationConfig/delete", protocol: A2A, task: atParamID},
	{name: "agent/getAuthenticatedExtendedCard", protocol: A2A},
	{name: "SendMessage", protocol: A2A, task: atMessageTaskID, sends: true},
	{name: "SendStreamingMessage", protocol: A2A, task: atMessageTaskID, sends: true},
	{name: "GetTask", protocol: A2A, task: atParamID},
	{name: "ListTasks", protocol: A2A},
	{name: "CancelTask", protocol: A2A, task: atParamID},
	{name: "SubscribeToTask", protocol: A2A, task: atParamID},
	{name: "CreateTaskPushNotificationConfig", protocol: A2A, task: atTaskID},
	{name: "GetTaskPushNotificationConfig", protocol: A2A, task: atTaskID},
	{name: "ListTaskPushNotificationConfigs", protocol: A2A, task: atTaskID},
	{name: "DeleteTaskPushNotificationConfig", protocol: A2A, task: atTaskID},
	{name: "GetExtendedAgentCard", protocol: A2A},
})

func index(list []method) map[string]method {
	m := make(map[string]method, len(list))
	for _, x := range list {
		m[x.name] = x
	}
	return m
}

// families are the prefixes that only one protocol uses.
var families = []struct {
	prefix   string
	protocol Protocol
}{
	{"tools/", MCP}, {"resources/", MCP}, {"prompts/", MCP}, {"completion/", MCP}, {"logging/", MCP},
	{"sampling/", MCP}, {"elicitation/", MCP}, {"roots/", MCP}, {"subscriptions/", MCP}, {"notifications/", MCP},
	{"tasks/pushNotificationConfig/", A2A},
}

// detect decides what a JSON-RPC message that names the method x belongs to.
//
// The order is: headers and route, the method, the ids of the names that both
// protocols use, and last what the client accepts. Signs of both are never MCP.
func (d *doc) detect(x method, h Hints) Protocol {
	id, taskID := d.has(atParamID), d.has(atTaskID)
	switch {
	case h.Protocol == A2A:
		return A2A
	case x.protocol == A2A || x.shared() && id && !taskID:
		if h.Protocol == MCP {
			return None
		}
		return A2A
	case h.Protocol == MCP || x.shared() && taskID && !id:
		return MCP
	case x.shared():
		return None
	case x.name == "initialize" && !h.AcceptsBoth && !d.has(atInitVersion):
		return None // the Language Server Protocol begins with this name, too
	case x.protocol == MCP || h.AcceptsBoth:
		return MCP
	}
	return None
}

// KnownMethod reports whether name is a method that MCP or A2A defines, so that
// it may become a metric label.
func KnownMethod(name string) bool {
	_, ok := methods[name]
	return ok
}

// shared reports whether the name is one that MCP and A2A both use.
func (x method) shared() bool { return x.name != "" && x.protocol == None }

// method returns what is known of the method that the message names: nothing,
// if it is foreign, and only the protocol, if no more than its family is known.
func (d *doc) method() method {
	raw := d.raw(atMethod)
	if len(raw) < 2 || raw[0] != '"' {
		return method{}
	}
	raw = raw[1 : len(raw)-1]
	if bytes.IndexByte(raw, '\\') >= 0 {
		raw = []byte(d.text(atMethod, maxName))
	}
	if x, ok := methods[string(raw)]; ok { // does not allocate
		return x
	}
	for _, f := range families {
		if len(raw) > len(f.prefix) && string(raw[:len(f.prefix)]) == f.prefix {
			return method{protocol: f.protocol}
		}
	}
	return method{}
}
