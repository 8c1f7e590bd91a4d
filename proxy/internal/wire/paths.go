package wire

// The slots of what is watched. The first ones belong to the JSON-RPC envelope;
// the rest of a doc is used by requests and answers in turn.
const (
	atRoot slot = iota
	atVersion
	atID
	atMethod
	atParams
	atResult
	atError
	envelope // how many
)

// Requests.
const (
	atMeta = envelope + iota
	atMetaTraceparent
	atMetaTracestate
	atMetaBaggage
	atMetaAncestry
	atMetaVersion
	atMetaProgress
	atMetaRelated
	atRelatedTask
	atProgress
	atCancelled
	atName
	atURI
	atTaskID
	atParamID
	atRequestState
	atInitVersion
	atTylo
	atTyloTrace
	atTyloTraceID
	atTyloSpanID
	atTyloSource
	atMessage
	atMessageID
	atContextID
	atMessageTaskID
	atReferences
	atMetadata
	atOpenWOP
	atOpenWOPTraceparent
	atOpenWOPTracestate
	atConfiguration
	atPush
	atPushURL
	atPushToken
	atPushAuth
	atPushCredentials
	atFlatURL
	atFlatToken
	atFlatAuth
	atFlatCredentials
	requestSlots
)

// Answers. What stands in result itself comes first, then what a wrapper in it
// holds: task, message, statusUpdate or artifactUpdate.
const (
	atErrorCode = envelope + iota
	atErrorMessage
	atIsError
	atResultType
	atQuestionState
	atTaskResult
	atTaskIsError
	atToldProgress
	atKind
	atAnswerID
	atAnswerTaskID
	atAnswerContextID
	atAnswerMessageID
	atStatus
	atState
	atTaskWrapper
	atMessageWrapper
	atStatusWrapper
	atArtifactWrapper
	atWrappedID
	atWrappedTaskID
	atWrappedContextID
	atWrappedStatus
	atWrappedState
	answerSlots
)

const slots = max(requestSlots, answerSlots, cardSlots, discoverySlots, eventSlots, receiptSlots)

const (
	guardEnvelope guard = 1 << iota
	guardMCP
	guardA2A
	guardTylo
	guardOpenWOP
)

// ancestryKey is the member of _meta that carries the text of Run-Ancestry.
const ancestryKey = "dev.wopproxy/run-ancestry"

// paramsNode is what to watch in params, and also in the body of an A2A REST
// request, which is the same document without its JSON-RPC envelope.
var paramsNode = &node{atParams, guardEnvelope, []edge{
	on("_meta", atMeta, guardMCP,
		on("traceparent", atMetaTraceparent, guardMCP),
		on("tracestate", atMetaTracestate, guardMCP),
		on("baggage", atMetaBaggage, guardMCP),
		on(ancestryKey, atMetaAncestry, guardMCP),
		on("io.modelcontextprotocol/protocolVersion", atMetaVersion, 0),
		on("progressToken", atMetaProgress, 0),
		on("io.modelcontextprotocol/related-task", atMetaRelated, 0, on("taskId", atRelatedTask, 0))),
	on("progressToken", atProgress, 0),
	on("requestId", atCancelled, 0),
	on("name", atName, 0),
	on("uri", atURI, 0),
	on("taskId", atTaskID, 0),
	on("id", atParamID, 0),
	on("requestState", atRequestState, 0),
	on("protocolVersion", atInitVersion, 0),
	on("tylo", atTylo, guardTylo,
		on("trace", atTyloTrace, guardTylo,
			on("traceId", atTyloTraceID, guardTylo),
			on("parentSpanId", atTyloSpanID, guardTylo),
			on("source", atTyloSource, guardTylo))),
	on("message", atMessage, guardA2A,
		on("messageId", atMessageID, 0),
		on("contextId", atContextID, 0),
		on("taskId", atMessageTaskID, 0),
		on("referenceTaskIds", atReferences, 0),
		on("metadata", atMetadata, guardA2A,
			on("openwop", atOpenWOP, guardA2A,
				on("traceparent", atOpenWOPTraceparent, guardA2A),
				on("tracestate", atOpenWOPTracestate, guardA2A)))),
	// A webhook given with a message: 0.3, 1.0, and 0.3 over REST.
	on("configuration", atConfiguration, 0,
		on("pushNotificationConfig", atPush, 0, pushEdges...),
		on("taskPushNotificationConfig", atPush, 0, pushEdges...),
		on("pushNotification", atPush, 0, pushEdges...)),
	// A webhook by its own request: 0.3 nested, 1.0 flat.
	on("pushNotificationConfig", atPush, 0, pushEdges...),
	on("url", atFlatURL, 0),
	on("token", atFlatToken, 0),
	on("authentication", atFlatAuth, 0, on("credentials", atFlatCredentials, 0)),
}}

var pushEdges = []edge{
	on("url", atPushURL, 0),
	on("token", atPushToken, 0),
	on("authentication", atPushAuth, 0, on("credentials", atPushCredentials, 0)),
}

// requestTree is what to watch in a JSON-RPC request.
var requestTree = &node{atRoot, guardEnvelope, []edge{
	on("jsonrpc", atVersion, guardEnvelope),
	on("id", atID, guardEnvelope),
	on("method", atMethod, guardEnvelope),
	{[]byte("params"), paramsNode},
	on("result", atResult, guardEnvelope),
	on("error", atError, guardEnvelope),
}}

var errorEdge = on("error", atError, guardEnvelope,
	on("code", atErrorCode, 0),
	on("message", atErrorMessage, 0))

// resultEdges are what to watch in a result: MCP, and A2A 0.3 and 1.0.
var resultEdges = []edge{
	on("isError", atIsError, 0),
	on("resultType", atResultType, 0),
	on("requestState", atQuestionState, 0),
	taskResultEdge,
	on("kind", atKind, 0),
	on("id", atAnswerID, 0),
	on("taskId", atAnswerTaskID, 0),
	on("contextId", atAnswerContextID, 0),
	on("messageId", atAnswerMessageID, 0),
	on("status", atStatus, 0, on("state", atState, 0)),
	on("task", atTaskWrapper, 0, wrappedEdges...),
	on("message", atMessageWrapper, 0, wrappedEdges...),
	on("statusUpdate", atStatusWrapper, 0, wrappedEdges...),
	on("artifactUpdate", atArtifactWrapper, 0, wrappedEdges...),
}

// taskResultEdge is the result of MCP's task within what tells of the task.
var taskResultEdge = on("result", atTaskResult, 0, on("isError", atTaskIsError, 0))

var wrappedEdges = []edge{
	on("id", atWrappedID, 0),
	on("taskId", atWrappedTaskID, 0),
	on("contextId", atWrappedContextID, 0),
	on("status", atWrappedStatus, 0, on("state", atWrappedState, 0)),
}

// answerTree is what to watch in a JSON-RPC response, and in what an MCP server
// sends of its own accord.
var answerTree = &node{atRoot, guardEnvelope, []edge{
	on("jsonrpc", atVersion, guardEnvelope),
	on("id", atID, guardEnvelope),
	on("method", atMethod, guardEnvelope),
	on("params", atParams, guardEnvelope,
		on("taskId", atAnswerTaskID, 0),
		on("status", atStatus, 0),
		on("progressToken", atToldProgress, 0),
		taskResultEdge),
	{[]byte("result"), &node{atResult, guardEnvelope, resultEdges}},
	errorEdge,
}}

// bareAnswerTree is what to watch in an A2A answer without an envelope: a REST
// body, the event of a REST stream, a webhook.
var bareAnswerTree = &node{atResult, guardEnvelope, append([]edge{errorEdge}, resultEdges...)}
