package peac

import (
	"crypto/ed25519"
	"encoding/base64"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// The forms of typ, and the bounds of a receipt.
const (
	wireType  = "interaction-record+jwt"
	mediaType = "application/" + wireType
	oldType   = "peac-receipt/0.1"
	maxJWS    = 262_144
	maxKID    = 256
)

// base64url is strict: padding and stray bits would give one receipt several
// references.
var base64url = base64.RawURLEncoding.Strict()

// Receipt is one that was read and verified.
type Receipt struct {
	// Ref is its reference, the hash of its JWS.
	Ref string
	// KeyID names the key that it was signed with, among those of Claims.Issuer.
	KeyID  string
	Claims Claims
	// Workflow is its place in a workflow, or nil.
	Workflow *WorkflowContext
	// Summary is what it says of a whole workflow, or nil.
	Summary *WorkflowSummary
	// Warnings tell of what is odd and no fault.
	Warnings []Warning
}

// Signer makes the receipts of one issuer. It may be used concurrently.
type Signer struct {
	issuer string
	header string // encoded
	key    ed25519.PrivateKey
}

// NewSigner returns a signer. The issuer is an https:// origin in its one form,
// or a DID; the key id, which names one key for ever, is 1 to 256 bytes.
func NewSigner(issuer, keyID string, key ed25519.PrivateKey) (*Signer, error) {
	switch {
	case !IsIssuer(issuer):
		return nil, fail(CodeIssuerNotCanonical, "issuer is neither an https:// origin in its one form nor a DID")
	case !isKeyID(keyID):
		return nil, fail(CodeMissingKID, "key id: want 1 to %d bytes of UTF-8", maxKID)
	case len(key) != ed25519.PrivateKeySize:
		return nil, fail(CodeKeyNotFound, "key: %d bytes, want %d", len(key), ed25519.PrivateKeySize)
	}
	header := appendText([]byte(`{"typ":"`+wireType+`","alg":"EdDSA","kid":`), keyID)
	header = append(header, '}')
	if err := CheckIJSON(header); err != nil {
		return nil, fmt.Errorf("key id: %w", err)
	}
	return &Signer{issuer, base64url.EncodeToString(header), key}, nil
}

func isKeyID(v any) bool {
	s, ok := v.(string)
	return ok && s != "" && len(s) <= maxKID && utf8.ValidString(s)
}

// Sign returns the receipt that says c, as a compact JWS, under the signer's
// issuer. It checks all that Verify does; what fails is not signed. The same
// claims give the same bytes.
func (s *Signer) Sign(c Claims) (string, error) {
	c.Version, c.Issuer = "0.2", s.issuer
	payload, err := marshal(c)
	if err != nil {
		return "", err
	}
	if _, err = inspect(payload, time.Unix(c.IssuedAt, 0)); err != nil {
		return "", err
	}
	text := s.header + "." + base64url.EncodeToString(payload)
	text += "." + base64url.EncodeToString(ed25519.Sign(s.key, []byte(text)))
	if len(text) > maxJWS {
		return "", fail(CodeInvalidFormat, "the receipt has %d bytes, at most %d may be there", len(text), maxJWS)
	}
	return text, nil
}

// KeySource returns the key that an issuer has under an id. Its error is the
// verdict on a receipt that names it.
type KeySource func(issuer, keyID string) (ed25519.PublicKey, error)

// Verify reads a receipt: it has to be whole, signed with a key of its issuer,
// and no more than 300 s ahead of now. That it was seen before, and what it says
// under extensions that have no name in this package, is not looked at. What is returned beside an error is not to be believed.
func Verify(jws string, keys KeySource, now time.Time) (Receipt, error) {
	header, payload, signature, err := split3(jws)
	if err != nil {
		return Receipt{}, err
	}
	h, claims, err := readHeader(header, payload)
	if err != nil {
		return Receipt{}, err
	}
	issuer, _ := claims["iss"].(string)
	keyID := h["kid"].(string)
	key, err := keys(issuer, keyID)
	if err != nil {
		return Receipt{}, err
	}
	if !verify(key, []byte(jws[:strings.LastIndexByte(jws, '.')]), signature) {
		return Receipt{}, fail(CodeInvalidSignature, "the signature does not hold")
	}
	if _, there := h["typ"]; !there {
		return Receipt{}, fail(CodeInvalidFormat, "typ is missing")
	}
	r, err := inspect(payload, now)
	r.Ref, r.KeyID = ReceiptRef(jws), keyID
	return r, err
}

// split3 takes a compact JWS apart.
func split3(jws string) (header, payload, signature []byte, err error) {
	if len(jws) > maxJWS {
		return nil, nil, nil, fail(CodeInvalidFormat, "the receipt has more than %d bytes", maxJWS)
	}
	parts := strings.Split(jws, ".")
	if len(parts) != 3 {
		return nil, nil, nil, fail(CodeInvalidFormat, "a receipt has three parts, not %d", len(parts))
	}
	var decoded [3][]byte
	for i, p := range parts {
		if strings.ContainsAny(p, "\r\n") { // which the decoder would skip
			return nil, nil, nil, fail(CodeInvalidFormat, "a line ends in part %d", i+1)
		}
		if decoded[i], err = base64url.DecodeString(p); err != nil {
			return nil, nil, nil, fail(CodeInvalidFormat, "part %d is no base64url: %v", i+1, err)
		}
	}
	return decoded[0], decoded[1], decoded[2], nil
}

// readHeader reads both JSON parts, and checks the header and that they agree on
// the version.
func readHeader(header, payload []byte) (h, claims object, err error) {
	read := func(raw []byte, what string) object {
		v, fault := parse(raw)
		o, ok := v.(object)
		switch {
		case err != nil:
		case fault != nil:
			err = fault
		case !ok:
			err = fail(CodeInvalidFormat, "the %s is no object", what)
		}
		return o
	}
	h, claims = read(header, "header"), read(payload, "payload")
	if err != nil {
		return nil, nil, err
	}
	if h["alg"] != "EdDSA" {
		return nil, nil, fail(CodeInvalidFormat, "alg is not EdDSA")
	}
	switch typ, there := h["typ"]; {
	case typ == oldType && claims["peac_version"] == "0.2":
		return nil, nil, fail(CodeWireMismatch, "typ is of wire format 0.1, and peac_version 0.2")
	case typ == oldType:
		return nil, nil, fail(CodeUnsupportedWire, "wire format 0.1 is not read")
	case there && typ != wireType && typ != mediaType:
		return nil, nil, fail(CodeInvalidFormat, "typ is not %s", wireType)
	case there && (claims["peac_version"] == nil || claims["peac_version"] == "0.1"):
		return nil, nil, fail(CodeWireMismatch, "typ is of wire format 0.2, and peac_version is not")
	}
	return h, claims, checkJOSE(h)
}

// checkJOSE refuses what a header could lead a reader astray with.
func checkJOSE(h object) error {
	for _, name := range []string{"jwk", "x5c", "x5u", "jku"} {
		if _, there := h[name]; there {
			return fail(CodeEmbeddedKey, "the header brings its own key, in %s", name)
		}
	}
	if _, there := h["crit"]; there {
		return fail(CodeCritRejected, "the header has crit")
	}
	if h["b64"] == false {
		return fail(CodeB64Rejected, "the payload is not encoded")
	}
	if _, there := h["zip"]; there {
		return fail(CodeZipRejected, "the payload is packed")
	}
	if !isKeyID(h["kid"]) {
		return fail(CodeMissingKID, "kid is not 1 to %d bytes", maxKID)
	}
	return nil
}

// inspect checks a payload by all rules that need no key.
func inspect(payload []byte, now time.Time) (Receipt, error) {
	var r Receipt
	v, err := parse(payload)
	if err != nil {
		return r, err
	}
	o, ok := v.(object)
	if !ok {
		return r, fail(CodeInvalidFormat, "the payload is no object")
	}
	if err := limits(o); err != nil {
		return r, err
	}
	if version, ok := o["peac_version"].(string); ok && version != "0.2" {
		return r, fail(CodeUnsupportedWire, "peac_version is not 0.2")
	}
	if err := checkClaims(o); err != nil {
		return r, err
	}
	if err := decode(o, &r.Claims); err != nil {
		return r, fail(CodeInvalidFormat, "claims: %v", err)
	}
	if r.Warnings, err = r.Claims.checkTimes(now); err != nil {
		return r, err
	}
	more, err := typeGroup(o)
	if r.Warnings = append(r.Warnings, more...); err != nil {
		return r, err
	}
	groups, _ := o["extensions"].(object)
	if err := checkObserved(r.Claims.Type, groups); err != nil {
		return r, err
	}
	if r.Workflow, err = r.Claims.workflow(); err == nil {
		r.Summary, err = r.Claims.summary()
	}
	return r, err
}
