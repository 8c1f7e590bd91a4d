package evidence

import (
	"cmp"
	"crypto/ed25519"
	"strings"

	"github.com/wopproxy/wopproxy/ancestry/peac"
)

// upstream is what a receipt says of those of others that were on the answer.
type upstream struct {
	ref  string   // of the first
	jtis []string // of those that are verified
}

// maxDepends is how many receipts one may depend on.
const maxDepends = 64

// verdict says what became of a receipt of another issuer.
type verdict string

const (
	verdictVerified  verdict = "verified"  // the receipt depends on it
	verdictUnknown   verdict = "unknown"   // no key of its issuer is known here, or not this one
	verdictReference verdict = "reference" // only its reference was there, or was kept
	verdictRefused   verdict = "refused"   // it is malformed, or not what its issuer has signed
)

// Upstream looks for receipts of others in an answer, or an event of one, to the
// exchange of a step that has not ended.
func (m *Minter) Upstream(s *Step, answer []byte) {
	found, refused := peac.FindCarriers(answer)
	m.found(s, found, refused)
}

// UpstreamHeader takes the values that PEAC-Receipt has in the head or the trailers of
// an answer. Of several no reader knows which one counts.
func (m *Minter) UpstreamHeader(s *Step, values []string) {
	const bound = 8192
	if len(values) == 1 && len(values[0]) <= bound {
		c := peac.NewCarrier(strings.TrimSpace(values[0]))
		if c.JWS != "" && c.Check() == nil {
			m.found(s, []peac.Carrier{c}, 0)
			return
		}
	}
	m.found(s, nil, len(values))
}

// found keeps receipts of others, and counts what stood where receipts do and is none.
// At most 64 are kept of a step, and of all that wait no more than
// Options.MaxUpstream; of the others the references are.
func (m *Minter) found(s *Step, found []peac.Carrier, refused int) {
	m.metrics.upstream.WithLabelValues(string(verdictRefused)).Add(float64(refused))
	if len(found) == 0 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range found {
		if s.ended || len(s.upstream) == maxDepends {
			m.metrics.limits.WithLabelValues(limitUpstream).Inc()
			return
		}
		if m.held+len(c.JWS) > m.o.MaxUpstream {
			m.metrics.limits.WithLabelValues(limitUpstream).Inc()
			c.JWS = ""
		}
		m.held += len(c.JWS)
		s.upstream = append(s.upstream, c)
	}
}

// release makes room for the receipts of others, and the bodies, that e has waited
// with.
func (m *Minter) release(e *entry) {
	if len(e.upstream) == 0 && e.size() == 0 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.releaseLocked(e)
}

func (m *Minter) releaseLocked(e *entry) {
	for _, c := range e.upstream {
		m.held -= len(c.JWS)
	}
	m.waiting -= e.size()
	e.upstream, e.bodies = nil, bodies{}
}

// bear returns how many carriers bear a receipt, which it takes time to verify.
func bear(found []peac.Carrier) (n int) {
	for _, c := range found {
		if c.JWS != "" {
			n++
		}
	}
	return n
}

// judge verifies the receipts of others. One that fails is named all the same: that it
// was on the answer is all which a reference says.
func (m *Minter) judge(found []peac.Carrier) upstream {
	var u upstream
	seen := map[string]bool{}
	for _, c := range found {
		if seen[c.Ref] {
			continue
		}
		seen[c.Ref] = true
		u.ref = cmp.Or(u.ref, c.Ref)
		verdict, jti := m.verdict(c)
		m.metrics.upstream.WithLabelValues(string(verdict)).Inc()
		if jti != "" {
			u.jtis = append(u.jtis, jti)
		}
	}
	return u
}

// verdict returns what becomes of the receipt in c, and its jti if that is verified.
func (m *Minter) verdict(c peac.Carrier) (v verdict, jti string) {
	if c.JWS == "" {
		return verdictReference, ""
	}
	unknown := false
	r, err := peac.Verify(c.JWS, func(issuer, keyID string) (ed25519.PublicKey, error) {
		if issuer == m.o.Issuer {
			return m.ownKey(issuer, keyID)
		}
		key, err := m.o.Known[issuer].Key(keyID)
		unknown = err != nil
		return key, err
	}, m.o.Now())
	switch {
	case unknown:
		return verdictUnknown, ""
	case err != nil:
		return verdictRefused, ""
	}
	return verdictVerified, r.Claims.ID
}
