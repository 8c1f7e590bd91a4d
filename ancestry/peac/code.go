package peac

import (
	"errors"
	"fmt"
)

// Code names what is wrong with evidence, in the words of PEAC's registry.
type Code string

// The codes that this package gives. Those of a Merkle proof are PEAC's for
// audits; CodeKeyRevoked is the one of its issuer documents. Those in lower case at
// the end are about what was observed: PEAC's validators of ActionGroup and
// HandoffGroup give them.
const (
	CodeContextInvalid      Code = "E_WORKFLOW_CONTEXT_INVALID"
	CodeWorkflowIDInvalid   Code = "E_WORKFLOW_ID_INVALID"
	CodeStepIDInvalid       Code = "E_WORKFLOW_STEP_ID_INVALID"
	CodeLimitExceeded       Code = "E_WORKFLOW_LIMIT_EXCEEDED"
	CodeDAGInvalid          Code = "E_WORKFLOW_DAG_INVALID"
	CodeSummaryInvalid      Code = "E_WORKFLOW_SUMMARY_INVALID"
	CodeParentNotFound      Code = "E_WORKFLOW_PARENT_NOT_FOUND"
	CodeCycleDetected       Code = "E_WORKFLOW_CYCLE_DETECTED"
	CodeDuplicateMember     Code = "E_IJSON_DUPLICATE_MEMBER_NAME"
	CodeNumberOutOfRange    Code = "E_IJSON_NUMBER_OUT_OF_RANGE"
	CodeInvalidString       Code = "E_IJSON_INVALID_STRING"
	CodeInvalidFormat       Code = "E_INVALID_FORMAT"
	CodeConstraint          Code = "E_CONSTRAINT_VIOLATION"
	CodeEmbeddedKey         Code = "E_JWS_EMBEDDED_KEY"
	CodeCritRejected        Code = "E_JWS_CRIT_REJECTED"
	CodeB64Rejected         Code = "E_JWS_B64_REJECTED"
	CodeZipRejected         Code = "E_JWS_ZIP_REJECTED"
	CodeMissingKID          Code = "E_JWS_MISSING_KID"
	CodeWireMismatch        Code = "E_WIRE_VERSION_MISMATCH"
	CodeUnsupportedWire     Code = "E_UNSUPPORTED_WIRE_VERSION"
	CodeInvalidSignature    Code = "E_INVALID_SIGNATURE"
	CodeKeyNotFound         Code = "E_KEY_NOT_FOUND"
	CodeKeyRevoked          Code = "key_revoked"
	CodeKIDReuse            Code = "E_KID_REUSE_DETECTED"
	CodeIssuerNotCanonical  Code = "E_ISS_NOT_CANONICAL"
	CodeInvalidIssuer       Code = "E_INVALID_ISSUER"
	CodePillarsNotSorted    Code = "E_PILLARS_NOT_SORTED"
	CodeOccurredOnChallenge Code = "E_OCCURRED_AT_ON_CHALLENGE"
	CodeOccurredInFuture    Code = "E_OCCURRED_AT_FUTURE"
	CodeNotYetValid         Code = "E_NOT_YET_VALID"
	CodeExtensionKey        Code = "E_INVALID_EXTENSION_KEY"
	CodeExtensionSize       Code = "E_EXTENSION_SIZE_EXCEEDED"
	CodeGroupRequired       Code = "E_EXTENSION_GROUP_REQUIRED"
	CodeGroupMismatch       Code = "E_EXTENSION_GROUP_MISMATCH"

	CodeEmptyInput        Code = "audit.merkle.empty_input"
	CodeInvalidRef        Code = "audit.merkle.invalid_receipt_ref"
	CodeDuplicateRef      Code = "audit.merkle.duplicate_receipt_ref"
	CodeTargetNotFound    Code = "audit.merkle.target_not_found"
	CodeInvalidCommitment Code = "audit.merkle.invalid_commitment"
	CodeInvalidRoot       Code = "audit.merkle.invalid_merkle_root"
	CodeInvalidProof      Code = "audit.merkle.invalid_proof"
	CodeInvalidProofHash  Code = "audit.merkle.invalid_proof_hash"
	CodeUnsupportedTree   Code = "audit.merkle.unsupported_tree_alg"
	CodeUnsupportedHash   Code = "audit.merkle.unsupported_hash_alg"

	CodeActionContent    Code = "agent.action.inline_content_blocked"
	CodeActionUnknown    Code = "agent.action.unknown_field"
	CodeActionRef        Code = "agent.action.opaque_ref_grammar_violation"
	CodeActionRefType    Code = "agent.action.ref_must_be_string"
	CodeActionMissing    Code = "agent.action.missing_required_field"
	CodeActionKind       Code = "agent.action.event_kind_unknown"
	CodeActionTime       Code = "agent.action.invalid_observed_at"
	CodeActionMismatch   Code = "agent.action.type_event_kind_mismatch"
	CodeHandoffVerdict   Code = "a2a.observation_decision_blocked"
	CodeHandoffCard      Code = "a2a.card_ref_digest_invalid"
	CodeHandoffRef       Code = "a2a.opaque_ref_grammar_violation"
	CodeHandoffSignature Code = "a2a.legacy_signature_shape_blocked"
	CodeHandoffMismatch  Code = "a2a.type_event_mismatch"
	CodeHandoffTime      Code = "a2a.timestamp_invalid"
	CodeHandoffUnknown   Code = "a2a.unknown_field"
	CodeHandoffSchema    Code = "a2a.schema_rejection"
)

// Error says what is wrong with evidence. Only the code is PEAC's; the text is
// for people, and holds nothing longer than a name of what was looked at.
type Error struct {
	Code Code
	What string
}

func (e *Error) Error() string { return string(e.Code) + ": " + e.What }

// CodeOf returns the code of err, or "" if it has none.
func CodeOf(err error) Code {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code
	}
	return ""
}

func fail(code Code, format string, args ...any) error {
	return &Error{code, fmt.Sprintf(format, args...)}
}
