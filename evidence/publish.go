package evidence

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/wopproxy/wopproxy/ancestry/peac"
)

// Where an issuer publishes what its receipts are verified with, below its origin.
// The first path is PEAC's, and leads to the second, which hosts that issue tokens of
// their own don't use.
const (
	IssuerPath = "/.well-known/peac-issuer.json"
	KeysPath   = "/.well-known/peac-jwks.json"
)

// Published is how long readers may keep what is published: a new key has to be
// there for at least as long before it signs.
const Published = time.Hour

// Publish returns a handler that answers GET and HEAD on IssuerPath and KeysPath
// with the documents of an issuer, and hands every other request to next as it came.
// Of ring it publishes the keys whose time it is, but for those that are revoked. An
// issuer that is no https:// origin has no place to publish: its requests all go to
// next. It is an error if two keys have one id, a key that is revoked signs, now or
// later, or one leaves before what it has signed last could be verified for
// peac.MinOverlap.
func Publish(next http.Handler, issuer string, ring peac.KeyRing, revoked []peac.RevokedKey, now func() time.Time) (http.Handler, error) {
	gone := map[string]bool{}
	for _, k := range revoked {
		gone[k.KeyID] = true
	}
	if err := distinct(ring); err != nil {
		return nil, err
	}
	if signing, err := ring.Signing(now()); err != nil {
		return nil, fmt.Errorf("evidence: %w", err)
	} else if i := slices.IndexFunc(ring, func(k peac.Rotation) bool { return !k.Sign.Before(signing.Sign) && gone[k.KeyID] }); i >= 0 {
		return nil, fmt.Errorf("evidence: key %.64q is revoked, and is to sign: let another key sign", ring[i].KeyID)
	}
	for i, k := range ring {
		if last := i == len(ring)-1; !k.Retire.IsZero() && (last || k.Retire.Before(ring[i+1].Sign.Add(peac.MinOverlap))) {
			return nil, fmt.Errorf("evidence: key %.64q retires less than %s after another has begun to sign: let it retire later", k.KeyID, peac.MinOverlap)
		}
		if _, err := ring.JWKS(k.Publish); err != nil { // when it is added there are the most
			return nil, fmt.Errorf("evidence: %w", err)
		}
	}
	if !strings.HasPrefix(issuer, "https://") {
		return next, nil
	}
	document := peac.NewIssuerDocument(issuer, issuer+KeysPath)
	document.RevokedKeys = revoked
	about, err := json.Marshal(document)
	if err == nil {
		_, err = peac.ParseIssuer(about, issuer)
	}
	if err != nil {
		return nil, fmt.Errorf("evidence: %w", err)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked := (r.Method == http.MethodGet || r.Method == http.MethodHead) && r.URL.RawPath == ""
		switch {
		case asked && r.URL.Path == IssuerPath:
			publish(w, r, about)
		case asked && r.URL.Path == KeysPath:
			set, _ := ring.JWKS(now()) // at no time too many, as was seen above
			set.Keys = slices.DeleteFunc(set.Keys, func(k peac.JWK) bool { return gone[k.KeyID] })
			keys, _ := json.Marshal(set) // always marshals
			publish(w, r, keys)
		default:
			next.ServeHTTP(w, r)
		}
	}), nil
}

// distinct says which id two keys of ring have, if any do: readers could not tell
// which of them has signed.
func distinct(ring peac.KeyRing) error {
	ids := map[string]bool{}
	for _, k := range ring {
		if ids[k.KeyID] {
			return fmt.Errorf("evidence: two keys have the id %.64q: name each key once, and give each a keyId of its own", k.KeyID)
		}
		ids[k.KeyID] = true
	}
	return nil
}

// publish answers with a document, or that it is still the one that the caller has.
func publish(w http.ResponseWriter, r *http.Request, document []byte) {
	sum := sha256.Sum256(document)
	h := w.Header()
	h.Set("Content-Type", "application/json; charset=utf-8")
	h.Set("Cache-Control", fmt.Sprintf("public, max-age=%d", int(Published.Seconds())))
	h.Set("ETag", `"`+hex.EncodeToString(sum[:16])+`"`)
	h.Set("X-Content-Type-Options", "nosniff")
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(document))
}
