package peac

import (
	"regexp"
	"time"
)

// SummaryGroup is the extension of the receipt that a summary is signed in, and
// the type of that receipt: PEAC has the form of a summary, and no receipt for it.
const SummaryGroup = "dev.wopproxy/workflow-summary"

// SummaryType is the type that a WorkflowSummary says it has.
const SummaryType = "peac/workflow-summary"

// How a workflow stands: what was seen of its end.
const (
	InProgress = "in_progress"
	Completed  = "completed"
	Failed     = "failed"
	Cancelled  = "cancelled"
)

// WorkflowSummary commits to the receipts of a workflow. Lengths are UTF-16 code
// units; times are RFC 3339 in UTC, with a Z.
type WorkflowSummary struct {
	// Type is SummaryType.
	Type string `json:"type"`
	// Issuer is the https:// origin of who signs it.
	Issuer    string `json:"issuer"`
	IssuedAt  string `json:"issued_at"`
	ExpiresAt string `json:"expires_at,omitempty"`

	Evidence SummaryEvidence `json:"evidence"`
}

// SummaryEvidence is what a summary says of its workflow. It has ReceiptRefs or
// ReceiptMerkleRoot, or both.
type SummaryEvidence struct {
	WorkflowID string `json:"workflow_id"`
	// Status is InProgress, Completed, Failed or Cancelled.
	Status      string `json:"status"`
	StartedAt   string `json:"started_at"`
	CompletedAt string `json:"completed_at,omitempty"`
	// ReceiptRefs names receipts, at most 10 000; nil is none named, and not an
	// empty list.
	ReceiptRefs []string `json:"receipt_refs,omitzero"`
	// ReceiptMerkleRoot is the root of a Commitment, and ReceiptCount its size.
	ReceiptMerkleRoot string `json:"receipt_merkle_root,omitempty"`
	ReceiptCount      *int64 `json:"receipt_count,omitempty"`
	// OrchestratorID names who directs the workflow, AgentsInvolved who else takes
	// part: at most 100, and [] where that is not to be told.
	OrchestratorID  string        `json:"orchestrator_id"`
	AgentsInvolved  []string      `json:"agents_involved"`
	FinalResultHash string        `json:"final_result_hash,omitempty"`
	ErrorContext    *ErrorContext `json:"error_context,omitempty"`
}

// ErrorContext says which step of a workflow failed, and how.
type ErrorContext struct {
	FailedStepID string `json:"failed_step_id"`
	ErrorCode    string `json:"error_code"`    // at most 64
	ErrorMessage string `json:"error_message"` // at most 1024
}

// Summarize signs a summary of the receipts that refs name, which are to be all that
// the issuer has signed of the workflow by now, those of failed steps and of progress
// included. e says the rest: Summarize fills in the root, the count, and an empty
// list of agents. The issuer has to be an https:// origin.
func (s *Signer) Summarize(e SummaryEvidence, refs []string, now time.Time) (string, error) {
	c, err := Commit(refs)
	if err != nil {
		return "", err
	}
	e.ReceiptMerkleRoot, e.ReceiptCount = c.Root, &c.TreeSize
	if e.AgentsInvolved == nil {
		e.AgentsInvolved = []string{}
	}
	return s.Sign(Claims{
		Kind: Evidence, Type: SummaryGroup, IssuedAt: now.Unix(), ID: NewReceiptID(now),
		Extensions: map[string]any{
			SummaryGroup:     WorkflowSummary{Type: SummaryType, Issuer: s.issuer, IssuedAt: FormatTime(now), Evidence: e},
			CorrelationGroup: Correlation{WorkflowID: e.WorkflowID},
		},
	})
}

// FormatTime writes a time as receipts and summaries have it: in UTC, in seconds.
func FormatTime(at time.Time) string { return at.UTC().Format("2006-01-02T15:04:05Z") }

// Validate checks s by the rules of ParseWorkflowSummary.
func (s WorkflowSummary) Validate() error {
	raw, err := marshal(s)
	if err != nil {
		return err
	}
	_, err = ParseWorkflowSummary(raw)
	return err
}

// ParseWorkflowSummary reads a summary. Whatever is wrong with one that is I-JSON
// is CodeSummaryInvalid. That the summary tells the truth is CheckSet's to say.
func ParseWorkflowSummary(raw []byte) (WorkflowSummary, error) {
	v, err := parse(raw)
	if err == nil {
		err = checkSummary(v)
	}
	var s WorkflowSummary
	if err != nil {
		return s, err
	}
	return s, decode(v, &s)
}

var (
	https   = regexp.MustCompile(`^https://[^/?#\s@]+([/?#]\S*)?$`)
	zulu    = regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$`)
	instant = regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)$`)
)

// moment reads a time in the form that pattern has.
func moment(v any, pattern *regexp.Regexp) (time.Time, bool) {
	s, ok := v.(string)
	if !ok || !pattern.MatchString(s) {
		return time.Time{}, false
	}
	at, err := time.Parse(time.RFC3339Nano, s)
	return at, err == nil
}

func utcTime(v any) bool {
	_, ok := moment(v, zulu)
	return ok
}

func checkSummary(v any) error {
	o, ok := v.(object)
	if !ok {
		return fail(CodeSummaryInvalid, "no object")
	}
	if err := closed(CodeSummaryInvalid, o, []rule{
		{"type", true, oneOf(SummaryType)}, {"issuer", true, like(https)},
		{"issued_at", true, utcTime}, {"expires_at", false, utcTime}, {"evidence", true, nil},
	}); err != nil {
		return err
	}
	if o, ok = o["evidence"].(object); !ok {
		return fail(CodeSummaryInvalid, "evidence is no object")
	}
	err := closed(CodeSummaryInvalid, o, []rule{
		{"workflow_id", true, like(workflowID)}, {"status", true, oneOf(InProgress, Completed, Failed, Cancelled)},
		{"started_at", true, utcTime}, {"completed_at", false, utcTime},
		{"receipt_refs", false, listOf(10000, upTo(256))},
		{"receipt_merkle_root", false, like(hashRef)}, {"receipt_count", false, integer(0)},
		{"orchestrator_id", true, upTo(256)}, {"agents_involved", true, listOf(100, upTo(256))},
		{"final_result_hash", false, like(hashRef)}, {"error_context", false, errorContext},
	})
	if err != nil {
		return err
	}
	_, refs := o["receipt_refs"]
	_, root := o["receipt_merkle_root"]
	_, count := o["receipt_count"]
	switch {
	case !refs && !root:
		return fail(CodeSummaryInvalid, "neither receipt_refs nor receipt_merkle_root is there")
	case root && !count:
		return fail(CodeSummaryInvalid, "receipt_merkle_root needs receipt_count")
	}
	return nil
}

func errorContext(v any) bool {
	o, ok := v.(object)
	return ok && closed(CodeSummaryInvalid, o, []rule{
		{"failed_step_id", true, like(stepID)}, {"error_code", true, upTo(64)}, {"error_message", true, upTo(1024)},
	}) == nil
}
