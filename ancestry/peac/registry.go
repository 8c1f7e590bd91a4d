package peac

import "strings"

// namespace is where what PEAC registers has its name.
const namespace = "org.peacprotocol/"

// registered maps PEAC's types of receipt to the group that one has to have.
var registered = index(map[string]string{
	"a2a-handoff": "a2a-agent-card-observation a2a-human-approved a2a-human-rejected a2a-human-review-requested " +
		"a2a-task-accepted a2a-task-completed a2a-task-failed a2a-task-rejected a2a-task-state-changed a2a-task-submitted",
	"access": "access-decision",
	"agent-action": "agent-action-approved-observed agent-action-cancelled-observed agent-action-delegated-observed " +
		"agent-action-denied-observed agent-action-invoked-observed agent-action-timed-out-observed",
	"attribution":   "attribution-event",
	"challenge":     "",
	"cli-execution": "cli-command-execution",
	"commerce":      "payment",
	"commerce-mandate": "commerce-authorization-observed commerce-budget-observed commerce-capture-observed " +
		"commerce-mandate-observed commerce-refund-observed commerce-settlement-observed commerce-void-observed",
	"compliance":  "compliance-check",
	"consent":     "consent-record",
	"correlation": "",
	"gateway-export": "gateway-facilitator-timeout-observed gateway-payment-submitted-observed " +
		"gateway-settlement-confirmed-late-observed gateway-settlement-confirmed-observed gateway-settlement-failed-observed " +
		"gateway-settlement-failed-orphaned-observed gateway-settlement-polling-observed gateway-settlement-unresolved-observed",
	"identity": "identity-attestation",
	"lifecycle-observation": "lifecycle-approval-denied lifecycle-approval-granted lifecycle-approval-requested " +
		"lifecycle-evaluation-completed lifecycle-evaluation-started lifecycle-experiment-assigned lifecycle-experiment-result " +
		"lifecycle-mode-observed lifecycle-workflow-transition",
	"privacy":    "privacy-signal",
	"provenance": "provenance-record",
	"provisioning-lifecycle": "provisioning-account-observed provisioning-budget-observed provisioning-catalog-observed " +
		"provisioning-credential-observed provisioning-deployment-observed provisioning-domain-observed " +
		"provisioning-payment-authorization-observed provisioning-provider-link-observed provisioning-resource-observed " +
		"provisioning-subscription-observed",
	"purpose": "purpose-declaration",
	"safety":  "safety-review",
})

// groups are the registered groups.
var groups = map[string]bool{}

func index(types map[string]string) map[string]string {
	found := map[string]string{}
	for group, list := range types {
		groups[namespace+group] = true
		for t := range strings.FieldsSeq(list) {
			found[namespace+t] = namespace + group
		}
	}
	return found
}

func isRegisteredGroup(key string) bool { return groups[key] }
