package evidence

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"time"
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
// with the documents of the issuer, and hands every other request to next as it came.
// It publishes the keys whose time it is, but for those that are revoked. An issuer
// that is no https:// origin has no place to publish: its requests all go to next.
// Under which name they are asked for does not matter: what stands in front of the
// host may have put another in its place, and readers would find no keys.
func (m *Minter) Publish(next http.Handler) http.Handler {
	if m.document == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked := (r.Method == http.MethodGet || r.Method == http.MethodHead) && r.URL.RawPath == ""
		switch {
		case asked && r.URL.Path == IssuerPath:
			publish(w, r, m.document)
		case asked && r.URL.Path == KeysPath:
			publish(w, r, m.jwks(m.o.Now(), nil))
		default:
			next.ServeHTTP(w, r)
		}
	})
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
