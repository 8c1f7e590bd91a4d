package peac

import (
	"crypto/ed25519"
	"slices"
	"time"
)

// Bounds of the documents that an issuer publishes.
const (
	maxDocument = 64 << 10
	maxRevoked  = 100
)

// MaxKeys bounds a JWKS.
const MaxKeys = 20

// JWKS is the set of keys that an issuer publishes.
type JWKS struct {
	Keys []JWK `json:"keys"`
}

// JWK is the public half of an Ed25519 key.
type JWK struct {
	KeyType   string `json:"kty"` // OKP
	Curve     string `json:"crv"` // Ed25519
	X         string `json:"x"`
	KeyID     string `json:"kid"`
	Algorithm string `json:"alg,omitempty"` // EdDSA
	Use       string `json:"use,omitempty"` // sig
}

// NewJWK returns the form in which a key is published.
func NewJWK(keyID string, key ed25519.PublicKey) JWK {
	return JWK{"OKP", "Ed25519", base64url.EncodeToString(key), keyID, "EdDSA", "sig"}
}

// ParseJWKS reads a set of at most 64 KiB and 20 keys. Keys of other kinds are
// left out; a set that shows a private key, or has two keys under one id, is
// refused as a whole.
func ParseJWKS(raw []byte) (JWKS, error) {
	var set JWKS
	o, err := document(raw)
	if err != nil {
		return set, err
	}
	keys, ok := o["keys"].([]any)
	if !ok || len(keys) > MaxKeys {
		return set, fail(CodeInvalidFormat, "keys is no list of at most %d", MaxKeys)
	}
	for i, v := range keys {
		k, ok := v.(object)
		if !ok {
			return set, fail(CodeInvalidFormat, "key %d is no object", i)
		}
		if _, private := k["d"]; private {
			return set, fail(CodeInvalidFormat, "key %d shows its private half: it must not be used again", i)
		}
		if k["kty"] != "OKP" || k["crv"] != "Ed25519" {
			continue
		}
		var key JWK
		if err := decode(v, &key); err != nil {
			return set, fail(CodeInvalidFormat, "key %d: %v", i, err)
		}
		if err := key.check(); err != nil {
			return set, err
		}
		set.Keys = append(set.Keys, key)
	}
	return set, set.check()
}

func (k JWK) check() error {
	switch {
	case !isKeyID(k.KeyID):
		return fail(CodeMissingKID, "a key has no kid of 1 to %d bytes", maxKID)
	case k.Algorithm != "" && k.Algorithm != "EdDSA" || k.Use != "" && k.Use != "sig":
		return fail(CodeInvalidFormat, "key %.64q is not for EdDSA signatures", k.KeyID)
	}
	if x, err := base64url.DecodeString(k.X); err != nil || len(x) != ed25519.PublicKeySize || !admissible(x) {
		return fail(CodeInvalidFormat, "key %.64q: x is no key of Ed25519", k.KeyID)
	}
	return nil
}

func (s JWKS) check() error {
	seen := map[string]bool{}
	for _, k := range s.Keys {
		if seen[k.KeyID] {
			return fail(CodeKIDReuse, "the id %.64q is there twice", k.KeyID)
		}
		seen[k.KeyID] = true
	}
	return nil
}

// Key returns the key with an id.
func (s JWKS) Key(keyID string) (ed25519.PublicKey, error) {
	i := slices.IndexFunc(s.Keys, func(k JWK) bool { return k.KeyID == keyID })
	if i < 0 {
		return nil, fail(CodeKeyNotFound, "the issuer has no key %.64q", keyID)
	}
	return base64url.DecodeString(s.Keys[i].X)
}

// Of returns the keys of s as those of one issuer.
func (s JWKS) Of(issuer string) KeySource {
	return func(of, keyID string) (ed25519.PublicKey, error) {
		if of != issuer {
			return nil, fail(CodeInvalidIssuer, "the receipt is of another issuer")
		}
		return s.Key(keyID)
	}
}

// Follows says whether next may take the place of s: an id names one key for
// ever.
func (s JWKS) Follows(next JWKS) error {
	for _, k := range next.Keys {
		if i := slices.IndexFunc(s.Keys, func(old JWK) bool { return old.KeyID == k.KeyID }); i >= 0 && s.Keys[i].X != k.X {
			return fail(CodeKIDReuse, "the id %.64q named another key before", k.KeyID)
		}
	}
	return nil
}

// IssuerVersion is the version that an IssuerDocument has.
const IssuerVersion = "peac-issuer/0.1"

// IssuerDocument is what an issuer serves at /.well-known/peac-issuer.json.
type IssuerDocument struct {
	Version string `json:"version"`
	// Issuer is what its receipts have as iss.
	Issuer          string       `json:"issuer"`
	JWKSURI         string       `json:"jwks_uri"`
	ReceiptVersions []string     `json:"receipt_versions,omitempty"`
	Algorithms      []string     `json:"algorithms,omitempty"`
	RevokedKeys     []RevokedKey `json:"revoked_keys,omitempty"` // at most 100
}

// RevokedKey tells that receipts with a key are no longer to be believed.
type RevokedKey struct {
	KeyID     string `json:"kid"`
	RevokedAt string `json:"revoked_at"`
	Reason    string `json:"reason,omitempty"`
}

// NewIssuerDocument returns the document of an issuer whose keys are at jwksURI.
func NewIssuerDocument(issuer, jwksURI string) IssuerDocument {
	return IssuerDocument{
		Version: IssuerVersion, Issuer: issuer, JWKSURI: jwksURI,
		ReceiptVersions: []string{wireType}, Algorithms: []string{"EdDSA"},
	}
}

// ParseIssuer reads the document of the issuer that receipts name, at most 64 KiB
// and nested no deeper than 4. Members that it doesn't know are left out.
func ParseIssuer(raw []byte, issuer string) (IssuerDocument, error) {
	var d IssuerDocument
	o, err := document(raw)
	if err != nil {
		return d, err
	}
	if depth(o) > 4 {
		return d, fail(CodeInvalidFormat, "nested deeper than 4")
	}
	if err := decode(o, &d); err != nil {
		return d, fail(CodeInvalidFormat, "issuer document: %v", err)
	}
	return d, d.check(issuer)
}

func (d IssuerDocument) check(issuer string) error {
	switch {
	case d.Version != IssuerVersion:
		return fail(CodeInvalidFormat, "version is not %s", IssuerVersion)
	case d.Issuer != issuer || !IsIssuer(issuer):
		return fail(CodeInvalidIssuer, "the document is of another issuer")
	case !https.MatchString(d.JWKSURI) || len(d.JWKSURI) > 2048:
		return fail(CodeInvalidFormat, "jwks_uri is no https:// URL")
	case len(d.Algorithms) > 0 && !slices.Contains(d.Algorithms, "EdDSA"):
		return fail(CodeInvalidFormat, "algorithms lacks EdDSA")
	case len(d.RevokedKeys) > maxRevoked:
		return fail(CodeInvalidFormat, "more than %d revoked keys", maxRevoked)
	}
	for _, k := range d.RevokedKeys {
		reasons := oneOf("", "key_compromise", "superseded", "cessation_of_operation", "privilege_withdrawn")
		if _, ok := moment(k.RevokedAt, instant); !ok || !isKeyID(k.KeyID) || !reasons(k.Reason) {
			return fail(CodeInvalidFormat, "a revoked key lacks its id, its time or a reason that is known")
		}
	}
	return nil
}

// Keys returns the keys of d's issuer, of which those that it revoked are refused
// with CodeKeyRevoked, whenever a receipt was signed.
func (d IssuerDocument) Keys(set JWKS) KeySource {
	return func(issuer, keyID string) (ed25519.PublicKey, error) {
		if issuer == d.Issuer && slices.ContainsFunc(d.RevokedKeys, func(k RevokedKey) bool { return k.KeyID == keyID }) {
			return nil, fail(CodeKeyRevoked, "the issuer has revoked the key %.64q", keyID)
		}
		return set.Of(d.Issuer)(issuer, keyID)
	}
}

// document reads a JSON object of at most 64 KiB.
func document(raw []byte) (object, error) {
	if len(raw) > maxDocument {
		return nil, fail(CodeInvalidFormat, "the document has more than %d bytes", maxDocument)
	}
	v, err := parse(raw)
	if err != nil {
		return nil, err
	}
	o, ok := v.(object)
	if !ok {
		return nil, fail(CodeInvalidFormat, "the document is no object")
	}
	return o, nil
}

// depth is how deep objects and arrays are nested in v.
func depth(v any) int {
	deepest := 0
	switch v := v.(type) {
	case object:
		for _, item := range v {
			deepest = max(deepest, depth(item))
		}
	case []any:
		for _, item := range v {
			deepest = max(deepest, depth(item))
		}
	default:
		return 0
	}
	return deepest + 1
}

// MinOverlap is how long an old key is published after its successor signs: what
// it signed last has to be verifiable by those who keep keys for long.
const MinOverlap = 30 * 24 * time.Hour

// Rotation is one key's time. It is published before it signs, so that readers
// have it by then, and after it has signed.
type Rotation struct {
	KeyID  string
	Public ed25519.PublicKey
	// Publish, Sign and Retire are when it appears in the JWKS, when it begins to
	// sign, and when it leaves the JWKS; a zero Retire is never.
	Publish, Sign, Retire time.Time
}

// Published says whether the key is in the JWKS at a time.
func (k Rotation) Published(at time.Time) bool {
	return !k.Publish.After(at) && (k.Retire.IsZero() || k.Retire.After(at))
}

// KeyRing is the keys of an issuer in the order in which they sign.
type KeyRing []Rotation

// Check says whether a reader who keeps a JWKS for cache always has the key of
// what he reads: each key is published that long before it signs, stays for
// MinOverlap after its successor, and has an id of its own.
func (r KeyRing) Check(cache time.Duration) error {
	ids := map[string]bool{}
	for i, k := range r {
		if ids[k.KeyID] {
			return fail(CodeKIDReuse, "the id %.64q is there twice", k.KeyID)
		}
		ids[k.KeyID] = true
		if err := NewJWK(k.KeyID, k.Public).check(); err != nil {
			return err
		}
		if i == len(r)-1 {
			if !k.Retire.IsZero() {
				return fail(CodeInvalidFormat, "key %.64q leaves, and none follows it", k.KeyID)
			}
		} else if err := k.before(r[i+1], cache); err != nil {
			return err
		}
	}
	return nil
}

// before says whether next may follow k, for readers who keep a JWKS for cache.
func (k Rotation) before(next Rotation, cache time.Duration) error {
	overlap := max(cache, MinOverlap)
	switch {
	case next.Sign.Before(next.Publish.Add(cache)):
		return fail(CodeInvalidFormat, "key %.64q signs before readers have it", next.KeyID)
	case !next.Sign.After(k.Sign):
		return fail(CodeInvalidFormat, "key %.64q does not sign after the one before it", next.KeyID)
	case !k.Retire.IsZero() && k.Retire.Before(next.Sign.Add(overlap)):
		return fail(CodeInvalidFormat, "key %.64q leaves before %s after its successor signs", k.KeyID, overlap)
	}
	return nil
}

// Signing returns the key that signs at a time: the last that has begun to.
func (r KeyRing) Signing(at time.Time) (Rotation, error) {
	for _, k := range slices.Backward(r) {
		if !k.Sign.After(at) {
			return k, nil
		}
	}
	return Rotation{}, fail(CodeKeyNotFound, "no key signs yet")
}

// JWKS returns the set that is published at a time: at most 20 keys.
func (r KeyRing) JWKS(at time.Time) (JWKS, error) {
	set := JWKS{Keys: []JWK{}}
	for _, k := range r {
		if k.Published(at) {
			set.Keys = append(set.Keys, NewJWK(k.KeyID, k.Public))
		}
	}
	if len(set.Keys) > MaxKeys {
		return JWKS{}, fail(CodeInvalidFormat, "%d keys at once, at most %d may be there", len(set.Keys), MaxKeys)
	}
	return set, nil
}
