package peac

import (
	"cmp"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// The extensions of a receipt that say what was observed. ActionGroup, HandoffGroup
// and AccessGroup are PEAC's; ExchangeGroup has what they have no place for.
const (
	ActionGroup   = namespace + "agent-action"
	HandoffGroup  = namespace + "a2a-handoff"
	AccessGroup   = namespace + "access"
	ExchangeGroup = "dev.wopproxy/exchange"
)

// The types of the receipts that have them.
const (
	ActionInvoked   = namespace + "agent-action-invoked-observed"
	ActionDelegated = namespace + "agent-action-delegated-observed"
	ActionCancelled = namespace + "agent-action-cancelled-observed"
	ActionTimedOut  = namespace + "agent-action-timed-out-observed"

	AccessDecision = namespace + "access-decision"

	CardObserved     = namespace + "a2a-agent-card-observation"
	TaskSubmitted    = namespace + "a2a-task-submitted"
	TaskRejected     = namespace + "a2a-task-rejected"
	TaskStateChanged = namespace + "a2a-task-state-changed"
	TaskCompleted    = namespace + "a2a-task-completed"
	TaskFailed       = namespace + "a2a-task-failed"
)

// AgentAction is the value of ActionGroup. Refs are at most 256 bytes and begin
// with ref:, urn:, did:, peac: or https://, or are sha256: and 64 hex digits; they
// have neither white space nor an @. Times are RFC 3339, digests sha256:.
type AgentAction struct {
	// EventKind is the receipt's type without org.peacprotocol/.
	EventKind  string `json:"event_kind"`
	AgentRef   string `json:"agent_ref"`
	ActionRef  string `json:"action_ref"`
	ObservedAt string `json:"observed_at"`

	DelegatedToRef string `json:"delegated_to_ref,omitempty"` // ActionDelegated has it, and no other
	CancelledByRef string `json:"cancelled_by_ref,omitempty"` // only ActionCancelled may have it
	TimeoutAt      string `json:"timeout_at,omitempty"`       // only ActionTimedOut

	CallerRef              string `json:"caller_ref,omitempty"`
	PolicyRef              string `json:"policy_ref,omitempty"`
	PolicyDigest           string `json:"policy_digest,omitempty"`
	UpstreamArtifactRef    string `json:"upstream_artifact_ref,omitempty"`
	UpstreamArtifactDigest string `json:"upstream_artifact_digest,omitempty"`
	ParentRef              string `json:"parent_ref,omitempty"`
}

// NewAgentAction returns the group of a receipt of one of the Action types.
func NewAgentAction(receiptType, agentRef, actionRef, observedAt string) AgentAction {
	return AgentAction{EventKind: strings.TrimPrefix(receiptType, namespace), AgentRef: agentRef, ActionRef: actionRef, ObservedAt: observedAt}
}

// Access is the value of AccessGroup: what the issuer itself decided, finally.
type Access struct {
	Resource string `json:"resource"` // 1 to 2048
	Action   string `json:"action"`   // 1 to 256
	Decision string `json:"decision"` // allow, deny or review
}

// TaskHandoff is the value of HandoffGroup in a receipt about an A2A task. Refs
// are those of AgentAction.
type TaskHandoff struct {
	Type         string    `json:"type"`  // the receipt's
	Event        string    `json:"event"` // task.completed, and the like: Type says which
	TaskID       string    `json:"task_id"`
	ParentTaskID string    `json:"parent_task_id,omitempty"`
	FromAgent    AgentCard `json:"from_agent"`
	ToAgent      AgentCard `json:"to_agent,omitzero"`
	State        string    `json:"state,omitempty"`  // at most 128
	Reason       string    `json:"reason,omitempty"` // at most 1024
	ObservedAt   string    `json:"observed_at"`

	UpstreamEventRef    string `json:"upstream_event_ref,omitempty"`
	UpstreamEventDigest string `json:"upstream_event_digest,omitempty"`
}

// AgentCard stands for an A2A agent, by the digest of its card.
type AgentCard struct {
	CardRef              string `json:"card_ref,omitempty"`
	SelectedInterfaceURL string `json:"selected_interface_url,omitempty"` // http or https, at most 2048
}

// NewTaskHandoff returns the group of a receipt of one of the Task types: what a
// task of the agent to that from has handed over has come to. Of to nothing need be
// known.
func NewTaskHandoff(receiptType, taskID, state string, from, to AgentCard, observedAt string) TaskHandoff {
	return TaskHandoff{
		Type: receiptType, Event: events[receiptType], TaskID: taskID, FromAgent: from, ToAgent: to, State: state, ObservedAt: observedAt,
	}
}

// CardObservation is the value of HandoffGroup in a receipt about a card that was
// fetched.
type CardObservation struct {
	Type                 string               `json:"type"`     // CardObserved
	CardRef              string               `json:"card_ref"` // sha256: and 64 hex digits, of the card's bytes
	SignatureObservation SignatureObservation `json:"signature_observation"`
	DiscoveredAt         string               `json:"discovered_at"`
	DiscoveryPath        string               `json:"discovery_path"` // CardPath
}

// SignatureObservation says whether a card is signed, and not by whom.
type SignatureObservation struct {
	Present      bool   `json:"present"`
	Verification string `json:"caller_reported_verification"` // verified, unverified or not_checked
}

// CardPath is where an agent's card is, below whatever path the agent has.
const CardPath = "/.well-known/agent-card.json"

// NewCardObservation returns the group of a receipt of type CardObserved about a card
// whose signatures, if it is signed, nobody has checked.
func NewCardObservation(cardRef string, signed bool, observedAt string) CardObservation {
	return CardObservation{CardObserved, cardRef, SignatureObservation{signed, "not_checked"}, observedAt, CardPath}
}

// Exchange is the value of ExchangeGroup: how one exchange went, as the proxy that
// it passed saw it.
type Exchange struct {
	V         int    `json:"v"`         // 1
	Direction string `json:"direction"` // ingress or egress
	Protocol  string `json:"protocol"`  // mcp, a2a, http or grpc
	// Outcome is ok, protocol_error, rejected, timeout, cancelled, unreachable or
	// ongoing.
	Outcome    string `json:"outcome"`
	DurationMS int64  `json:"duration_ms"`
	Status     int    `json:"status,omitempty"` // of HTTP, 100 to 599
	RPCCode    *int64 `json:"rpc_code,omitempty"`
	// Evidence is the rung of the ladder that told whose the exchange is.
	Evidence       string  `json:"evidence,omitempty"`
	RequestDigest  *Digest `json:"request_digest,omitempty"`
	ResponseDigest *Digest `json:"response_digest,omitempty"`
}

// Digest is that of a body, or of its beginning.
type Digest struct {
	Alg   string `json:"alg"`   // sha-256, sha-256:trunc-64k or sha-256:trunc-1m
	Value string `json:"value"` // 64 hex digits
}

// checkObserved checks the groups of a receipt that PEAC's envelope lets pass
// whatever they are.
func checkObserved(receiptType string, groups object) error {
	for _, g := range []struct {
		key   string
		check func(receiptType string, v any) error
	}{{ActionGroup, checkAction}, {HandoffGroup, checkHandoff}, {ExchangeGroup, checkExchange}} {
		v, there := groups[g.key]
		if !there {
			continue
		}
		if err := g.check(receiptType, v); err != nil {
			return err
		}
	}
	return nil
}

// The names that would carry contents, or a verdict of who only observes, and those
// of references.
var (
	contents = words("prompt message messages body input output result response completion stdout stderr env " +
		"secret token api_key private_key credential model_output tool_input tool_output")
	verdicts = words("decision verdict score result passed failed policy_result approval_result outcome judgment " +
		"rating grade pass fail allow deny authorized denied granted rejected_reason")
	actionRefs = words("agent_ref action_ref caller_ref policy_ref upstream_artifact_ref parent_ref delegated_to_ref cancelled_by_ref")
)

func words(list string) map[string]bool {
	found := map[string]bool{}
	for w := range strings.FieldsSeq(list) {
		found[w] = true
	}
	return found
}

// forbidden returns the first name in o that is one of names.
func forbidden(o object, names map[string]bool) string {
	for _, name := range slices.Sorted(maps.Keys(o)) {
		if names[name] {
			return name
		}
	}
	return ""
}

// member says what a member of an observation has to be, and the code where it
// isn't.
type member struct {
	name     string
	required bool
	code     Code
	holds    func(any) bool
}

// observation checks that o has what members require, and nothing that they don't
// know. What is missing has its own code, or that of its member.
func observation(o object, missing, unknown Code, members []member) error {
	for _, m := range members {
		if _, there := o[m.name]; !there && m.required {
			return fail(cmp.Or(missing, m.code), "%s is missing", m.name)
		}
	}
	known := 0
	for _, m := range members {
		v, there := o[m.name]
		if there && !m.holds(v) {
			return fail(m.code, "%s is not what it has to be", m.name)
		}
		if there {
			known++
		}
	}
	if known != len(o) {
		return fail(unknown, "a member is there that is not known")
	}
	return nil
}

// actions are the kinds of agent-action that PEAC has, and what each has of its
// own.
var actions = map[string][]member{
	ActionInvoked:   nil,
	ActionDelegated: {{"delegated_to_ref", true, CodeActionRef, isRef}},
	ActionCancelled: {{"cancelled_by_ref", false, CodeActionRef, isRef}},
	ActionTimedOut:  {{"timeout_at", false, CodeActionTime, isInstant}},
	namespace + "agent-action-approved-observed": nil,
	namespace + "agent-action-denied-observed":   nil,
}

func checkAction(receiptType string, v any) error {
	o, ok := v.(object)
	if !ok {
		return fail(CodeActionMissing, "%s is no object", ActionGroup)
	}
	if name := forbidden(o, contents); name != "" {
		return fail(CodeActionContent, "%s would carry contents", name)
	}
	for _, name := range slices.Sorted(maps.Keys(o)) {
		if _, isText := o[name].(string); actionRefs[name] && !isText {
			return fail(CodeActionRefType, "%s is no string", name)
		}
	}
	if _, there := o["event_kind"]; !there {
		return fail(CodeActionMissing, "event_kind is missing")
	}
	kind, _ := o["event_kind"].(string)
	own, known := actions[namespace+kind]
	if !known {
		return fail(CodeActionKind, "event_kind is none that there is")
	}
	if err := observation(o, CodeActionMissing, CodeActionUnknown, slices.Concat([]member{
		{"event_kind", true, CodeActionKind, like(anything)}, {"observed_at", true, CodeActionTime, isInstant},
		{"agent_ref", true, CodeActionRef, isRef}, {"action_ref", true, CodeActionRef, isRef},
		{"caller_ref", false, CodeActionRef, isRef}, {"policy_ref", false, CodeActionRef, isRef},
		{"upstream_artifact_ref", false, CodeActionRef, isRef}, {"parent_ref", false, CodeActionRef, isRef},
		{"policy_digest", false, CodeActionRef, like(hashRef)}, {"upstream_artifact_digest", false, CodeActionRef, like(hashRef)},
	}, own)); err != nil {
		return err
	}
	if namespace+kind != receiptType {
		return fail(CodeActionMismatch, "event_kind is not that of the receipt's type")
	}
	return nil
}

// events are what happens to a task, by the type of the receipt.
var events = map[string]string{
	TaskSubmitted: "task.submitted", TaskRejected: "task.rejected", TaskStateChanged: "task.state_changed",
	TaskCompleted: "task.completed", TaskFailed: "task.failed", namespace + "a2a-task-accepted": "task.accepted",
	namespace + "a2a-human-review-requested": "human.review_requested",
	namespace + "a2a-human-approved":         "human.approved", namespace + "a2a-human-rejected": "human.rejected",
}

func checkHandoff(receiptType string, v any) error {
	o, ok := v.(object)
	if !ok {
		return fail(CodeHandoffSchema, "%s is no object", HandoffGroup)
	}
	kind, _ := o["type"].(string)
	if _, signature := o["signature"]; signature && kind == CardObserved {
		return fail(CodeHandoffSignature, "the signature of a card is told in signature_observation")
	}
	if name := forbidden(o, verdicts); name != "" {
		return fail(CodeHandoffVerdict, "%s would be a verdict", name)
	}
	event, isTask := events[kind]
	switch {
	case kind == "" || !isTask && kind != CardObserved:
		return fail(CodeHandoffSchema, "type is none that there is")
	case kind != receiptType:
		return fail(CodeHandoffMismatch, "type is not that of the receipt")
	case kind == CardObserved:
		return checkCard(o)
	}
	if told, ok := o["event"].(string); ok && told != event && slices.Contains(slices.Collect(maps.Values(events)), told) {
		return fail(CodeHandoffMismatch, "event is not that of the type")
	}
	err := observation(o, "", CodeHandoffUnknown, []member{
		{"type", true, CodeHandoffSchema, oneOf(kind)}, {"event", true, CodeHandoffSchema, oneOf(event)},
		{"task_id", true, CodeHandoffRef, isRef}, {"parent_task_id", false, CodeHandoffRef, isRef},
		{"from_agent", true, CodeHandoffSchema, isObject}, {"to_agent", false, CodeHandoffSchema, isObject},
		{"state", false, CodeHandoffSchema, upTo(128)}, {"reason", false, CodeHandoffSchema, upTo(1024)},
		{"observed_at", true, CodeHandoffTime, isInstant},
		{"upstream_event_ref", false, CodeHandoffRef, isRef}, {"upstream_event_digest", false, CodeHandoffSchema, like(hashRef)},
	})
	if err == nil {
		err = checkAgent(o["from_agent"], true)
	}
	if err == nil && o["to_agent"] != nil {
		err = checkAgent(o["to_agent"], false)
	}
	return err
}

// checkAgent checks an AgentCard: who hands over has to have one.
func checkAgent(v any, from bool) error {
	return observation(v.(object), "", CodeHandoffUnknown, []member{
		{"card_ref", from, CodeHandoffCard, like(hashRef)}, {"selected_interface_url", false, CodeHandoffSchema, isInterface},
	})
}

func checkCard(o object) error {
	err := observation(o, "", CodeHandoffUnknown, []member{
		{"type", true, CodeHandoffSchema, oneOf(CardObserved)}, {"card_ref", true, CodeHandoffCard, like(hashRef)},
		{"selected_interface_url", false, CodeHandoffSchema, isInterface},
		{"signature_observation", true, CodeHandoffSchema, isObject},
		{"discovered_at", true, CodeHandoffTime, isInstant},
		{"discovery_path", true, CodeHandoffSchema, oneOf(CardPath, "/.well-known/peac.json", "header-probe")},
	})
	if err != nil {
		return err
	}
	return observation(o["signature_observation"].(object), "", CodeHandoffUnknown, []member{
		{"present", true, CodeHandoffSchema, func(v any) bool { _, ok := v.(bool); return ok }},
		{"caller_reported_verification", true, CodeHandoffSchema, oneOf("verified", "unverified", "not_checked")},
		{"method_ref", false, CodeHandoffRef, isRef}, {"kid", false, CodeHandoffSchema, upTo(256)},
		{"observed_by_ref", false, CodeHandoffRef, isRef},
	})
}

func isInterface(v any) bool {
	s, ok := v.(string)
	if !ok || length(s) > 2048 || !interfaceURL.MatchString(s) {
		return false
	}
	u, err := url.Parse(s)
	return err == nil && u.Host != ""
}

func checkExchange(_ string, v any) error {
	o, ok := v.(object)
	if !ok {
		return fail(CodeInvalidFormat, "%s is no object", ExchangeGroup)
	}
	return closed(CodeInvalidFormat, o, []rule{
		{"v", true, func(v any) bool { return v == 1.0 }},
		{"direction", true, oneOf("ingress", "egress")}, {"protocol", true, oneOf("mcp", "a2a", "http", "grpc")},
		{"outcome", true, oneOf("ok", "protocol_error", "rejected", "timeout", "cancelled", "unreachable", "ongoing")},
		{"duration_ms", true, integer(0)}, {"status", false, func(v any) bool { return integer(100)(v) && v.(float64) < 600 }},
		{"rpc_code", false, integer(-maxSafe)}, {"evidence", false, func(v any) bool { return upTo(64)(v) && matches(v, framework) }},
		{"request_digest", false, isDigest}, {"response_digest", false, isDigest},
	})
}

func isDigest(v any) bool {
	o, ok := v.(object)
	return ok && closed(CodeInvalidFormat, o, []rule{
		{"alg", true, oneOf("sha-256", "sha-256:trunc-64k", "sha-256:trunc-1m")}, {"value", true, like(hex64)},
	}) == nil
}

func checkAccess(v any) error {
	o, ok := v.(object)
	if !ok {
		return fail(CodeInvalidFormat, "%s is no object", AccessGroup)
	}
	return closed(CodeInvalidFormat, o, []rule{
		{"resource", true, between(1, 2048)}, {"action", true, between(1, 256)}, {"decision", true, oneOf("allow", "deny", "review")},
	})
}

var (
	anything     = regexp.MustCompile(``)
	hex64        = regexp.MustCompile(`^[0-9a-f]{64}$`)
	interfaceURL = regexp.MustCompile(`^https?://[^\s/?#\\@]+([/?#][^\s\\]*)?$`)
	refPrefix    = regexp.MustCompile(`^(ref:|urn:|did:|peac:|https://.)`)
)

// isRef says whether v is a reference that says nothing by itself. What ECMAScript
// takes for white space is none of it.
func isRef(v any) bool {
	s, ok := v.(string)
	return ok && len(s) <= 256 && (refPrefix.MatchString(s) || hashRef.MatchString(s)) && !strings.ContainsFunc(s, func(r rune) bool {
		return r == '@' || '\t' <= r && r <= '\r' || r == ' ' || r == '\u00a0' || r == '\u1680' || '\u2000' <= r && r <= '\u200a' ||
			r == '\u2028' || r == '\u2029' || r == '\u202f' || r == '\u205f' || r == '\u3000' || r == '\ufeff'
	})
}

func isInstant(v any) bool {
	_, ok := moment(v, instant)
	return ok
}
