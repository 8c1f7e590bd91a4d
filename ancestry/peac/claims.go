package peac

import (
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Evidence and Challenge are the kinds of receipt.
const (
	Evidence  = "evidence"
	Challenge = "challenge"
)

// CorrelationGroup is the extension of a receipt that has its Correlation.
const CorrelationGroup = "org.peacprotocol/correlation"

// Claims are what a receipt says. Lengths are UTF-16 code units.
type Claims struct {
	// Version is that of the wire format, 0.2; Sign fills it in.
	Version string `json:"peac_version"`
	// Kind is Evidence or Challenge.
	Kind string `json:"kind"`
	// Type says what was observed: a domain and a name, or a URI; at most 256.
	Type string `json:"type"`
	// Issuer is an https:// origin in its one form, or a DID; Sign fills it in.
	Issuer string `json:"iss"`
	// IssuedAt is in seconds since 1970.
	IssuedAt int64 `json:"iat"`
	// ID is unique among those of the issuer; 1 to 256.
	ID string `json:"jti"`
	// OccurredAt is RFC 3339, on Evidence alone, and not after IssuedAt.
	OccurredAt string `json:"occurred_at,omitempty"`
	// Pillars are of PEAC's list, sorted, each once.
	Pillars []string `json:"pillars,omitempty"`
	// Extensions are groups of members under keys as of org.example/name, at most
	// 64 KiB each and 256 KiB together.
	Extensions map[string]any `json:"extensions,omitempty"`

	// What else a receipt may have; this package checks no more than its form.
	Subject         string         `json:"sub,omitempty"`
	PurposeDeclared string         `json:"purpose_declared,omitempty"`
	Actor           map[string]any `json:"actor,omitempty"`
	Policy          map[string]any `json:"policy,omitempty"`
	Representation  map[string]any `json:"representation,omitempty"`
}

// Correlation joins a receipt to traces and to other receipts. All of it is
// optional.
type Correlation struct {
	TraceID    string   `json:"trace_id,omitempty"` // 32 hex digits in lower case
	SpanID     string   `json:"span_id,omitempty"`  // 16
	WorkflowID string   `json:"workflow_id,omitempty"`
	ParentJTI  string   `json:"parent_jti,omitempty"`
	DependsOn  []string `json:"depends_on,omitempty"` // at most 64 ids of receipts
}

// Warning tells of what is odd about a receipt and doesn't make it invalid. The
// pointer (RFC 6901) says where.
type Warning struct {
	Code    string `json:"code"`
	Pointer string `json:"pointer"`
}

var (
	receiptType  = regexp.MustCompile(`^[a-zA-Z0-9]([a-zA-Z0-9-]*[a-zA-Z0-9])?(\.[a-zA-Z0-9]([a-zA-Z0-9-]*[a-zA-Z0-9])?)+/[a-zA-Z0-9][a-zA-Z0-9._-]*$`)
	receiptURI   = regexp.MustCompile(`^[a-zA-Z][a-zA-Z0-9+.-]*://\S+$`)
	did          = regexp.MustCompile(`^did:[a-z0-9]+:[^/?#\s]+$`)
	label        = regexp.MustCompile(`^[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?$`)
	extensionKey = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)+/[a-z0-9][a-z0-9_-]*$`)
	traceID      = regexp.MustCompile(`^[0-9a-f]{32}$`)
	spanID       = regexp.MustCompile(`^[0-9a-f]{16}$`)

	pillars = []string{
		"access", "attribution", "commerce", "compliance", "consent", "identity", "privacy", "provenance", "purpose", "safety",
	}
)

// Bounds of what a receipt says, beyond those of its members.
const (
	maxDepth      = 32
	maxItems      = 10_000
	maxMembers    = 1_000
	maxString     = 65_536
	maxNodes      = 100_000
	maxGroup      = 64 << 10
	maxExtensions = 256 << 10
)

// limits checks the bounds that hold for any payload.
func limits(v any) error {
	nodes := 0
	var walk func(v any, depth int) string
	walk = func(v any, depth int) string {
		if nodes++; nodes > maxNodes {
			return "more than 100000 values"
		}
		if depth > maxDepth {
			return "nested deeper than 32"
		}
		switch v := v.(type) {
		case string:
			if length(v) > maxString {
				return "a string longer than 65536"
			}
		case []any:
			if len(v) > maxItems {
				return "an array of more than 10000"
			}
			for _, item := range v {
				if what := walk(item, depth+1); what != "" {
					return what
				}
			}
		case object:
			if len(v) > maxMembers {
				return "an object of more than 1000 members"
			}
			for name, item := range v {
				if length(name) > maxString {
					return "a name longer than 65536"
				}
				if what := walk(item, depth+1); what != "" {
					return what
				}
			}
		}
		return ""
	}
	if what := walk(v, 0); what != "" {
		return fail(CodeConstraint, "%s", what)
	}
	return nil
}

// checkClaims checks what a payload has to be by itself.
func checkClaims(o object) error {
	err := closed(CodeInvalidFormat, o, []rule{
		{"peac_version", true, oneOf("0.2")}, {"kind", true, oneOf(Evidence, Challenge)}, {"type", true, isType},
		{"iss", true, nil}, {"iat", true, integer(-maxSafe)}, {"jti", true, between(1, 256)},
		{"occurred_at", false, func(v any) bool { _, ok := moment(v, instant); return ok }},
		{"pillars", false, isPillars}, {"extensions", false, isObject},
		{"sub", false, upTo(2048)}, {"purpose_declared", false, upTo(256)},
		{"actor", false, isObject}, {"policy", false, isObject}, {"representation", false, isObject},
	})
	if err != nil {
		return err
	}
	if iss, ok := o["iss"].(string); !ok || !IsIssuer(iss) {
		return fail(CodeIssuerNotCanonical, "iss is neither an https:// origin in its one form nor a DID")
	}
	if p, ok := o["pillars"].([]any); ok && !slices.IsSortedFunc(p, func(x, y any) int {
		return 2*strings.Compare(x.(string), y.(string)) - 1 // what is equal is not in order either
	}) {
		return fail(CodePillarsNotSorted, "pillars are not in order, each once")
	}
	if _, there := o["occurred_at"]; there && o["kind"] == Challenge {
		return fail(CodeOccurredOnChallenge, "a challenge has no occurred_at")
	}
	groups, _ := o["extensions"].(object)
	return checkGroups(groups)
}

// checkGroups checks the keys and sizes of extensions, and those groups that this
// package knows.
func checkGroups(groups object) error {
	total := 0
	for _, key := range slices.Sorted(maps.Keys(groups)) {
		if len(key) > 512 || !extensionKey.MatchString(key) {
			return fail(CodeExtensionKey, "a key of extensions is not a domain in lower case and a name")
		}
		size := len(appendValue(nil, groups[key]))
		if total += size; size > maxGroup || total > maxExtensions {
			return fail(CodeExtensionSize, "%s makes %d bytes, all so far %d", key, size, total)
		}
	}
	if v, there := groups[AccessGroup]; there {
		if err := checkAccess(v); err != nil {
			return err
		}
	}
	if v, there := groups[CorrelationGroup]; there {
		o, ok := v.(object)
		if !ok {
			return fail(CodeInvalidFormat, "%s is no object", CorrelationGroup)
		}
		return closed(CodeInvalidFormat, o, []rule{
			{"trace_id", false, like(traceID)}, {"span_id", false, like(spanID)},
			{"workflow_id", false, between(1, 256)}, {"parent_jti", false, between(1, 256)},
			{"depends_on", false, listOf(64, between(1, 256))},
		})
	}
	return nil
}

func isObject(v any) bool { _, ok := v.(object); return ok }

func isType(v any) bool {
	s, ok := v.(string)
	return ok && length(s) <= 256 && (receiptType.MatchString(s) || receiptURI.MatchString(s))
}

func isPillars(v any) bool {
	return listOf(len(pillars)+1, oneOf(pillars...))(v) && len(v.([]any)) > 0
}

// IsIssuer says whether iss names an issuer in its one form: an https:// origin, or
// a DID. An IPv4 address inside an IPv6 one isn't taken: it has two.
func IsIssuer(iss string) bool {
	host, isHTTPS := strings.CutPrefix(iss, "https://")
	if len(iss) > 2048 || !isHTTPS {
		return len(iss) <= 2048 && did.MatchString(iss)
	}
	if i := strings.LastIndexByte(host, ':'); i > strings.LastIndexByte(host, ']') {
		n, err := strconv.ParseUint(host[i+1:], 10, 16)
		if err != nil || n == 443 || strconv.FormatUint(n, 10) != host[i+1:] {
			return false
		}
		host = host[:i]
	}
	if inside, ok := strings.CutPrefix(host, "["); ok {
		inside, ok = strings.CutSuffix(inside, "]")
		a, err := netip.ParseAddr(inside)
		return ok && err == nil && a.Is6() && !a.Is4In6() && a.Zone() == "" && a.String() == inside
	}
	labels := strings.Split(host, ".")
	last := labels[len(labels)-1]
	if strings.Trim(last, "0123456789") == "" || strings.HasPrefix(last, "0x") { // what browsers take for an address
		a, err := netip.ParseAddr(host)
		return err == nil && a.String() == host
	}
	return !slices.ContainsFunc(labels, func(l string) bool { return len(l) > 63 || !label.MatchString(l) })
}

// typeGroup checks that a registered type comes with its group, and warns of what
// is not registered. Nothing is asked of a challenge.
func typeGroup(o object) (warnings []Warning, err error) {
	groups, _ := o["extensions"].(object)
	want := registered[o["type"].(string)]
	if want == "" {
		warnings = append(warnings, Warning{"type_unregistered", "/type"})
	}
	other := ""
	for _, key := range slices.Sorted(maps.Keys(groups)) {
		switch {
		case !isRegisteredGroup(key):
			warnings = append(warnings, Warning{"unknown_extension_preserved", "/extensions/" + strings.ReplaceAll(key, "/", "~1")})
		case key != want && key != CorrelationGroup:
			other = key
		}
	}
	if _, there := groups[want]; want == "" || there || o["kind"] == Challenge {
		return warnings, nil
	}
	if other != "" {
		return warnings, fail(CodeGroupMismatch, "%s needs %s and has %s", o["type"], want, other)
	}
	return warnings, fail(CodeGroupRequired, "%s needs %s", o["type"], want)
}

// correlated says whether the correlation, if it names a workflow, names this.
func (c Claims) correlated(workflow string) bool {
	g, _ := c.Extensions[CorrelationGroup].(object)
	v, there := g["workflow_id"]
	return !there || v == workflow
}

// workflow returns the place of a receipt in its workflow, if it has one.
func (c Claims) workflow() (*WorkflowContext, error) {
	v, there := c.Extensions[WorkflowGroup]
	if !there {
		return nil, nil
	}
	if err := checkContext(v); err != nil {
		return nil, err
	}
	w := new(WorkflowContext)
	if err := decode(v, w); err != nil {
		return nil, fail(CodeContextInvalid, "%s: %v", WorkflowGroup, err)
	}
	if !c.correlated(w.WorkflowID) {
		return nil, fail(CodeContextInvalid, "the correlation names another workflow")
	}
	return w, nil
}

// summary returns the summary that a receipt is around, if it is.
func (c Claims) summary() (*WorkflowSummary, error) {
	v, there := c.Extensions[SummaryGroup]
	if !there {
		return nil, nil
	}
	if err := checkSummary(v); err != nil {
		return nil, err
	}
	s := new(WorkflowSummary)
	if err := decode(v, s); err != nil {
		return nil, fail(CodeSummaryInvalid, "%s: %v", SummaryGroup, err)
	}
	_, isStep := c.Extensions[WorkflowGroup]
	switch {
	case c.Type != SummaryGroup:
		return nil, fail(CodeSummaryInvalid, "a summary is in a receipt of another type")
	case isStep:
		return nil, fail(CodeSummaryInvalid, "a summary is no step of a workflow")
	case s.Issuer != c.Issuer:
		return nil, fail(CodeSummaryInvalid, "another issuer signed the summary")
	case !c.correlated(s.Evidence.WorkflowID):
		return nil, fail(CodeSummaryInvalid, "the correlation names another workflow")
	}
	return s, nil
}

// skew is how far an issuer's clock may be ahead.
const skew = 300 * time.Second

// checkTimes holds the times of a receipt against the reader's clock.
func (c Claims) checkTimes(now time.Time) (warnings []Warning, err error) {
	if c.IssuedAt > now.Add(skew).Unix() {
		return nil, fail(CodeNotYetValid, "iat is more than 300 s ahead")
	}
	at, there := moment(c.OccurredAt, instant)
	if !there {
		return nil, nil
	}
	if at.After(now.Add(skew)) {
		return nil, fail(CodeOccurredInFuture, "occurred_at is more than 300 s ahead")
	}
	if at.After(time.Unix(c.IssuedAt, 0)) {
		warnings = append(warnings, Warning{"occurred_at_skew", "/occurred_at"})
	}
	return warnings, nil
}
