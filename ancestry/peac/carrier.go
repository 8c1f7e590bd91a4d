package peac

import (
	"bytes"
	"encoding/json"
	"net/url"
	"regexp"
)

// The places of a receipt on an answer.
const (
	// TraceabilityExtension is the URI of the A2A extension under which receipts ride
	// in metadata, for those whose request names it.
	TraceabilityExtension = "https://www.peacprotocol.org/ext/traceability/v1"

	// The members of _meta in a result of MCP.
	MetaReceiptRef = namespace + "receipt_ref"
	MetaReceiptJWS = namespace + "receipt_jws"
	MetaReceiptURL = namespace + "receipt_url"

	// Older writers have the JWS alone, in _meta or beside the result.
	legacyMeta   = namespace + "receipt"
	legacyMember = "peac_receipt"
)

// MaxCarrier bounds a carrier as JSON, in bytes.
const MaxCarrier = 65_536

// maxCarriers bounds those of one answer that are read.
const maxCarriers = 64

var compact = regexp.MustCompile(`^[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+$`)

// Carrier is how a receipt rides on an answer. Who reads one knows nothing yet: what
// JWS says counts once Verify has accepted it.
type Carrier struct {
	// Ref is the reference of the receipt.
	Ref string `json:"receipt_ref"`
	// JWS is the receipt itself. Without it the carrier only refers to one.
	JWS string `json:"receipt_jws,omitempty"`
	// URL is where the receipt can be had. It is never fetched by itself.
	URL string `json:"receipt_url,omitempty"`
}

// NewCarrier returns the carrier of a receipt.
func NewCarrier(jws string) Carrier { return Carrier{Ref: ReceiptRef(jws), JWS: jws} }

// Check returns an error for a carrier that must not be believed: its reference has
// another form, or is not that of the receipt beside it, its URL is not https or has
// credentials, or it is longer than MaxCarrier.
func (c Carrier) Check() error {
	text, err := json.Marshal(c)
	switch {
	case err != nil || len(text) > MaxCarrier:
		return fail(CodeInvalidFormat, "the carrier has more than %d bytes", MaxCarrier)
	case !hashRef.MatchString(c.Ref):
		return fail(CodeInvalidFormat, "receipt_ref is no reference to a receipt")
	case c.JWS != "" && !compact.MatchString(c.JWS):
		return fail(CodeInvalidFormat, "receipt_jws is no compact JWS")
	case c.JWS != "" && ReceiptRef(c.JWS) != c.Ref:
		return fail(CodeInvalidFormat, "receipt_ref is not that of receipt_jws")
	}
	if c.URL == "" {
		return nil
	}
	u, err := url.Parse(c.URL)
	if err != nil || u.Scheme != "https" || u.Host == "" || u.User != nil || len(c.URL) > 2048 {
		return fail(CodeInvalidFormat, "receipt_url is no https URL of at most 2048 bytes without credentials")
	}
	return nil
}

// FindCarriers returns the carriers on an answer of MCP or A2A, with or without its
// JSON-RPC envelope, in the places that PEAC gives them, and nowhere else: what a
// tool returns is no evidence. At most 64 are read; refused counts what stands in
// such a place and is no carrier, or fails Check.
func FindCarriers(answer []byte) (found []Carrier, refused int) {
	if !bytes.Contains(answer, []byte("peac")) { // as almost none has
		return nil, 0
	}
	f := finder{}
	root := members(answer)
	result := members(root["result"])
	f.legacy(root[legacyMember])
	if result == nil {
		result = root
	} else {
		f.legacy(result[legacyMember])
	}
	f.meta(members(result["_meta"]))
	for _, o := range []map[string]json.RawMessage{
		result, members(result["task"]), members(result["message"]), members(result["statusUpdate"]), members(result["artifactUpdate"]),
	} {
		status := members(o["status"])
		for _, at := range []map[string]json.RawMessage{o, status, members(status["message"]), members(o["artifact"]), last(o["artifacts"])} {
			f.metadata(members(at["metadata"]))
		}
	}
	return f.found, f.refused
}

// members returns those of an object, and of anything else none.
func members(raw json.RawMessage) map[string]json.RawMessage {
	var o map[string]json.RawMessage
	_ = json.Unmarshal(raw, &o)
	return o
}

// last returns the members of the last item of a list.
func last(raw json.RawMessage) map[string]json.RawMessage {
	var list []json.RawMessage
	if json.Unmarshal(raw, &list) != nil || len(list) == 0 {
		return nil
	}
	return members(list[len(list)-1])
}

// finder collects carriers.
type finder struct {
	found   []Carrier
	refused int
}

func (f *finder) take(c Carrier, read bool) {
	switch {
	case !read || len(f.found) == maxCarriers || c.Check() != nil:
		f.refused++
	default:
		f.found = append(f.found, c)
	}
}

// legacy takes a JWS that stands alone.
func (f *finder) legacy(raw json.RawMessage) {
	if raw == nil {
		return
	}
	var jws string
	read := json.Unmarshal(raw, &jws) == nil && jws != ""
	f.take(NewCarrier(jws), read)
}

// meta takes the carrier in a _meta of MCP.
func (f *finder) meta(m map[string]json.RawMessage) {
	f.legacy(m[legacyMeta])
	var c Carrier
	there, read := false, true
	for name, to := range map[string]*string{MetaReceiptRef: &c.Ref, MetaReceiptJWS: &c.JWS, MetaReceiptURL: &c.URL} {
		if raw := m[name]; raw != nil {
			there = true
			read = json.Unmarshal(raw, to) == nil && read
		}
	}
	if there {
		f.take(c, read)
	}
}

// metadata takes the carriers in a metadata of A2A.
func (f *finder) metadata(m map[string]json.RawMessage) {
	raw := m[TraceabilityExtension]
	if raw == nil {
		return
	}
	var list []json.RawMessage
	if err := json.Unmarshal(members(raw)["carriers"], &list); err != nil {
		f.refused++
		return
	}
	for _, one := range list {
		o := members(one)
		var c Carrier
		read := o != nil && len(one) <= MaxCarrier
		for name, to := range map[string]*string{"receipt_ref": &c.Ref, "receipt_jws": &c.JWS, "receipt_url": &c.URL} {
			if raw := o[name]; raw != nil {
				read = json.Unmarshal(raw, to) == nil && read
			}
		}
		f.take(c, read)
	}
}
