package evidence

import (
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"

	"github.com/wopproxy/wopproxy/ancestry/peac"
)

// errKey says what a file of a key has to be.
var errKey = errors.New("not an Ed25519 key in PEM: make one with openssl genpkey -algorithm ed25519")

// ParseKey reads an Ed25519 key in PEM: a private one in PKCS #8, or a public one,
// which can have signed and will not again. An empty id becomes its thumbprint
// (RFC 7638), which is the same for both halves.
func ParseKey(text []byte, id string) (Key, error) {
	block, _ := pem.Decode(text)
	if block == nil {
		return Key{}, errKey
	}
	var k Key
	switch block.Type {
	case "PRIVATE KEY":
		parsed, _ := x509.ParsePKCS8PrivateKey(block.Bytes)
		private, ok := parsed.(ed25519.PrivateKey)
		if !ok {
			return Key{}, errKey
		}
		k.Private, k.Public = private, private.Public().(ed25519.PublicKey)
	case "PUBLIC KEY":
		parsed, _ := x509.ParsePKIXPublicKey(block.Bytes)
		public, ok := parsed.(ed25519.PublicKey)
		if !ok {
			return Key{}, errKey
		}
		k.Public = public
	default:
		return Key{}, errKey
	}
	if k.KeyID = id; id == "" {
		k.KeyID = thumbprint(k.Public)
	}
	return k, nil
}

// thumbprint is the hash of what a JWK has to have, in the order of the names.
func thumbprint(key ed25519.PublicKey) string {
	sum := sha256.Sum256([]byte(`{"crv":"Ed25519","kty":"OKP","x":"` + peac.NewJWK("", key).X + `"}`))
	return base64.RawURLEncoding.EncodeToString(sum[:])
}
