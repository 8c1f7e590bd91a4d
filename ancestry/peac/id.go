package peac

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"time"
)

// Namer derives the identifiers of one tenant from names that its host and its
// peers have. The same name gives the same identifier; without the key, one tells
// nothing of the name, and those of two tenants or audiences nothing of each
// other. The zero Namer is not to be used.
type Namer struct{ key []byte }

// NewNamer returns the Namer of a tenant. The key is 32 secret bytes, shared by
// the replicas of a proxy, and not the key that receipts are signed with. The
// tenant is what the host's own run id says, or else the issuer: no peer's word.
func NewNamer(key []byte, tenant string) (Namer, error) {
	if len(key) != 32 {
		return Namer{}, fmt.Errorf("key for identifiers: %d bytes, want 32", len(key))
	}
	return Namer{seal(key, "wopproxy/peac/tenant/v1", tenant)}, nil
}

// RunWorkflow names the workflow that a run on a host is.
func (n Namer) RunWorkflow(host, run string) string { return "wf_" + n.uuid("run", host, run) }

// ContextWorkflow names the workflow of an A2A contextId at the peer's origin.
func (n Namer) ContextWorkflow(origin, contextID string) string {
	return "wf_" + n.uuid("a2a-context", origin, contextID)
}

// ExchangeWorkflow names the workflow of a call that belongs to no run. The id
// of an exchange is random, of at least 128 bits.
func (n Namer) ExchangeWorkflow(exchange string) string { return "wf_" + n.uuid("exchange", exchange) }

// Step names the step that an exchange is in a workflow.
func (n Namer) Step(workflow, exchange string) string {
	return "step_" + n.uuid("step", workflow, exchange)
}

// AudienceWorkflow names a workflow for one audience: the receiver's origin.
func (n Namer) AudienceWorkflow(audience, workflow string) string {
	return "wf_" + n.uuid("audience-workflow", audience, workflow)
}

// AudienceStep names a step for one audience.
func (n Namer) AudienceStep(audience, step string) string {
	return "step_" + n.uuid("audience-step", audience, step)
}

// HostRef stands for a host; the audience is "" where all may see the same.
func (n Namer) HostRef(audience, host string) string {
	return "ref:host:" + n.uuid("host", audience, host)
}

// TaskRef stands for an A2A task at the peer's origin.
func (n Namer) TaskRef(audience, origin, task string) string {
	return "ref:a2a-task:" + n.uuid("a2a-task", audience, origin, task)
}

// uuid is a UUID of version 8: one that is made of what the parts say.
func (n Namer) uuid(parts ...string) string {
	sum := seal(n.key, append([]string{"wopproxy/peac/id/v1"}, parts...)...)
	return formatUUID([16]byte(sum[:16]), 8)
}

// seal is the HMAC of parts, each behind its length: no two lists are the same.
func seal(key []byte, parts ...string) []byte {
	h := hmac.New(sha256.New, key)
	for _, p := range parts {
		h.Write(binary.BigEndian.AppendUint32(nil, uint32(len(p))))
		h.Write([]byte(p))
	}
	return h.Sum(nil)
}

// NewReceiptID returns the id of a receipt that is signed at the given time: a
// UUID of version 7, which sorts by the millisecond.
func NewReceiptID(at time.Time) string {
	var b [16]byte
	rand.Read(b[6:]) // never fails
	binary.BigEndian.PutUint64(b[:], uint64(at.UnixMilli())<<16|uint64(binary.BigEndian.Uint16(b[6:])))
	return formatUUID(b, 7)
}

func formatUUID(b [16]byte, version byte) string {
	b[6] = b[6]&0x0f | version<<4
	b[8] = b[8]&0x3f | 0x80
	text := make([]byte, 0, 36)
	for i, part := range [][]byte{b[:4], b[4:6], b[6:8], b[8:10], b[10:]} {
		if i > 0 {
			text = append(text, '-')
		}
		text = hex.AppendEncode(text, part)
	}
	return string(text)
}
