package evidence

import (
	"bytes"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/wopproxy/wopproxy/ancestry/peac"
)

// Key is a key of the issuer. One that has signed needs no private half any more.
type Key struct {
	peac.Rotation
	Private ed25519.PrivateKey
}

// issuer is who signs: the keys, and what is published of them.
type issuer struct {
	names    peac.Namer     // of who is of no tenant
	signers  []*peac.Signer // by Options.Keys; nil: it signs no more
	ring     peac.KeyRing
	revoked  map[string]bool
	document []byte // nil: there is no origin to publish it at
}

// Check says what is wrong with who signs: all of what New could find that takes
// no store. It is an error if the key for ids signs, too, two keys have one id, a key
// has no private half when it is to sign, a key that is revoked signs, now or later,
// or one leaves before what it has signed last could be verified for peac.MinOverlap.
func (o Options) Check() error {
	_, err := newIssuer(o)
	return err
}

func newIssuer(o Options) (i issuer, err error) {
	if o.Host == "" || len(o.Keys) == 0 {
		return i, errors.New("evidence: Host and Keys are required")
	}
	if i.names, err = peac.NewNamer(o.IDKey, o.Issuer); err != nil {
		return i, fmt.Errorf("evidence: %w", err)
	}
	for _, k := range o.Keys {
		if len(k.Private) > 0 && bytes.Equal(k.Private.Seed(), o.IDKey) {
			return i, fmt.Errorf("evidence: the key for ids is the secret of the signing key %.64q: make another", k.KeyID)
		}
		var s *peac.Signer
		if len(k.Private) > 0 {
			if s, err = peac.NewSigner(o.Issuer, k.KeyID, k.Private); err != nil {
				return i, fmt.Errorf("evidence: %w", err)
			}
		}
		i.signers, i.ring = append(i.signers, s), append(i.ring, k.Rotation)
	}
	i.revoked = map[string]bool{}
	for _, k := range o.Revoked {
		i.revoked[k.KeyID] = true
	}
	now := time.Now()
	if o.Now != nil {
		now = o.Now()
	}
	if err := i.checkKeys(now); err != nil {
		return i, err
	}
	return i, i.describe(o.Issuer, o.Revoked)
}

// checkKeys looks for what would leave receipts that nobody can verify.
func (i *issuer) checkKeys(now time.Time) error {
	if err := distinct(i.ring); err != nil {
		return err
	}
	if _, err := i.signer(now); err != nil {
		return err
	}
	signing, _ := i.ring.Signing(now)
	for n, k := range i.ring {
		if i.revoked[k.KeyID] && !k.Sign.Before(signing.Sign) {
			return fmt.Errorf("evidence: key %.64q is revoked, and is to sign: let another key sign", k.KeyID)
		}
		if last := n == len(i.ring)-1; !k.Retire.IsZero() && (last || k.Retire.Before(i.ring[n+1].Sign.Add(peac.MinOverlap))) {
			return fmt.Errorf("evidence: key %.64q retires less than %s after another has begun to sign: let it retire later", k.KeyID, peac.MinOverlap)
		}
		if _, err := i.ring.JWKS(k.Publish); err != nil { // when it is added there are the most
			return fmt.Errorf("evidence: %w", err)
		}
	}
	return nil
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

// describe makes the document of an issuer that has an origin to publish it at.
func (i *issuer) describe(name string, revoked []peac.RevokedKey) error {
	document := peac.NewIssuerDocument(name, name+KeysPath)
	if document.RevokedKeys = revoked; !strings.HasPrefix(name, "https://") {
		return nil
	}
	about, err := json.Marshal(document)
	if err == nil {
		_, err = peac.ParseIssuer(about, name)
	}
	if err != nil {
		return fmt.Errorf("evidence: %w", err)
	}
	i.document = about
	return nil
}

// signer returns who signs at a time.
func (i *issuer) signer(at time.Time) (*peac.Signer, error) {
	k, err := i.ring.Signing(at)
	if err != nil {
		return nil, fmt.Errorf("evidence: %w", err)
	}
	n := slices.IndexFunc(i.ring, func(r peac.Rotation) bool { return r.KeyID == k.KeyID })
	if i.signers[n] == nil {
		return nil, fmt.Errorf("evidence: key %.64q is to sign, and its private half is not there", k.KeyID)
	}
	return i.signers[n], nil
}

// jwks returns the keys that are published at a time, and those that have left since
// they signed, by their ids. None is of those that are revoked, which nobody is to
// believe. If there are more than a set may have, it returns those that have signed.
func (i *issuer) jwks(at time.Time, signed map[string]bool) json.RawMessage {
	set := peac.JWKS{Keys: []peac.JWK{}}
	for _, k := range i.ring {
		if (k.Published(at) || signed[k.KeyID]) && !i.revoked[k.KeyID] {
			set.Keys = append(set.Keys, peac.NewJWK(k.KeyID, k.Public))
		}
	}
	if len(set.Keys) > peac.MaxKeys {
		set.Keys = slices.DeleteFunc(set.Keys, func(k peac.JWK) bool { return !signed[k.KeyID] })
	}
	raw, _ := json.Marshal(set) // always marshals
	return raw
}
