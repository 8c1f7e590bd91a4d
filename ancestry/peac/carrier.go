package peac

import (
	"bytes"
	"encoding/json"
	"net/url"
	"strings"
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

// isCompact reports whether a text has the form of a compact JWS.
func isCompact(text string) bool {
	parts := 0
	for part := range strings.SplitSeq(text, ".") {
		if parts++; part == "" {
			return false
		}
		for _, c := range []byte(part) {
			if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' && c != '_' {
				return false
			}
		}
	}
	return parts == 3
}

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
	if !hashRef.MatchString(c.Ref) {
		return fail(CodeInvalidFormat, "receipt_ref is no reference to a receipt")
	}
	text, err := json.Marshal(c)
	switch {
	case err != nil || len(text) > MaxCarrier:
		return fail(CodeInvalidFormat, "the carrier has more than %d bytes", MaxCarrier)
	case c.JWS != "" && !isCompact(c.JWS):
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
// such a place and is no carrier, fails Check, or is not read. It takes one pass over
// the answer, whatever that is, and finds nothing in one that is no JSON or is nested
// deeper than 512.
func FindCarriers(answer []byte) (found []Carrier, refused int) {
	if !bytes.Contains(answer, []byte("peacprotocol")) && !bytes.Contains(answer, []byte(legacyMember)) { // as almost none has
		return nil, 0
	}
	root, ok := sift(answer, ofAnswer)
	if !ok {
		return nil, 0
	}
	f := finder{}
	f.legacy(root.at(legacyMember))
	result := root.at("result")
	if result == nil || !result.object {
		result = root
	} else {
		f.legacy(result.at(legacyMember))
	}
	f.meta(result.at("_meta"))
	for _, o := range []*grain{result, result.at("task"), result.at("message"), result.at("statusUpdate"), result.at("artifactUpdate")} {
		for _, at := range []*grain{o, o.at("status"), o.at("status").at("message"), o.at("artifact"), o.at("artifacts").at(last)} {
			f.metadata(at.at("metadata").at(TraceabilityExtension))
		}
	}
	return f.found, f.refused
}

// What is read of an answer, and of its parts.
var (
	ofAnswer = ofResult.with(sieve{"result": ofResult})
	ofResult = ofHolder.with(sieve{
		legacyMember: nil, "_meta": {legacyMeta: nil, MetaReceiptRef: nil, MetaReceiptJWS: nil, MetaReceiptURL: nil},
		"task": ofHolder, "message": ofHolder, "statusUpdate": ofHolder, "artifactUpdate": ofHolder,
	})
	ofHolder = ofMetadata.with(sieve{
		"status": ofMetadata.with(sieve{"message": ofMetadata}), "artifact": ofMetadata, "artifacts": {last: ofMetadata},
	})
	ofMetadata = sieve{"metadata": {TraceabilityExtension: {"carriers": nil}}}
	ofCarrier  = sieve{"receipt_ref": nil, "receipt_jws": nil, "receipt_url": nil}
)

// finder collects carriers.
type finder struct {
	found   []Carrier
	read    int
	refused int
}

// full counts one more carrier, and reports whether it is one too many.
func (f *finder) full() bool {
	if f.read == maxCarriers {
		f.refused++
		return true
	}
	f.read++
	return false
}

func (f *finder) take(c Carrier, ok bool) {
	if !ok || c.Check() != nil {
		f.refused++
		return
	}
	f.found = append(f.found, c)
}

// legacy takes a JWS that stands alone.
func (f *finder) legacy(g *grain) {
	if g == nil || f.full() {
		return
	}
	var jws string
	ok := len(g.raw) <= MaxCarrier && json.Unmarshal(g.raw, &jws) == nil && jws != ""
	f.take(NewCarrier(jws), ok)
}

// meta takes the carrier in a _meta of MCP.
func (f *finder) meta(g *grain) {
	f.legacy(g.at(legacyMeta))
	ref, jws, url := g.at(MetaReceiptRef), g.at(MetaReceiptJWS), g.at(MetaReceiptURL)
	if ref == nil && jws == nil && url == nil || f.full() {
		return
	}
	f.take(carrierOf(ref, jws, url))
}

// metadata takes the carriers in what the metadata of A2A have of the extension.
func (f *finder) metadata(g *grain) {
	if g == nil {
		return
	}
	list := g.at("carriers")
	if list == nil || list.raw[0] != '[' {
		if list == nil || string(list.raw) != "null" {
			f.refused++
		}
		return
	}
	items(list.raw, func(p *parser) {
		if f.full() {
			p.sift(nil, nil, 0)
			return
		}
		var one grain
		p.sift(ofCarrier, &one, 0)
		c, ok := carrierOf(one.at("receipt_ref"), one.at("receipt_jws"), one.at("receipt_url"))
		f.take(c, ok && one.object && len(one.raw) <= MaxCarrier)
	})
}

// carrierOf reads the members of a carrier, and reports whether they are texts that
// are no longer than one may be.
func carrierOf(ref, jws, url *grain) (c Carrier, ok bool) {
	long := 0
	for to, g := range map[*string]*grain{&c.Ref: ref, &c.JWS: jws, &c.URL: url} {
		if g == nil {
			continue
		}
		if long += len(g.raw); long > MaxCarrier || json.Unmarshal(g.raw, to) != nil {
			return Carrier{}, false
		}
	}
	return c, true
}
