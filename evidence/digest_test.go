package evidence

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/wopproxy/wopproxy/ancestry/peac"
)

// TestDigests has a receipt tell the digest of a body that was seen whole, or of so much
// of it as others can cut off, too, and of none unless that is asked for.
func TestDigests(t *testing.T) {
	long := bytes.Repeat([]byte("0123456789abcdef"), MaxBody/16+1)
	digest := func(alg string, of []byte) any {
		sum := sha256.Sum256(of)
		return map[string]any{"alg": alg, "value": hex.EncodeToString(sum[:])}
	}
	on := func(o *Options) { o.Digests = true }
	for _, tt := range []struct {
		name string
		tune func(*Options)
		body Body
		want any
	}{
		{"whole", on, Body{long[:100], true}, digest("sha-256", long[:100])},
		{"empty", on, Body{[]byte{}, true}, digest("sha-256", nil)},
		{"a mebibyte", on, Body{long[:MaxBody], true}, digest("sha-256", long[:MaxBody])},
		{"more", on, Body{long, true}, digest("sha-256:trunc-1m", long[:MaxBody])},
		{"its first mebibyte", on, Body{long[:MaxBody], false}, digest("sha-256:trunc-1m", long[:MaxBody])},
		{"less of it", on, Body{long[:MaxBody-1], false}, digest("sha-256:trunc-64k", long[:minBody])},
		{"the least", on, Body{long[:minBody], false}, digest("sha-256:trunc-64k", long[:minBody])},
		{"too little", on, Body{long[:minBody-1], false}, nil},
		{"not seen", on, Body{}, nil},
		{"not asked for", func(*Options) {}, Body{long[:100], true}, nil},
		{"strict", func(o *Options) { o.Digests, o.Privacy = true, Strict }, Body{long[:100], true}, nil},
	} {
		of := newOffice(t, tt.tune)
		if of.Digests() != (tt.name != "strict" && tt.name != "not asked for") {
			t.Errorf("%s: bodies are asked for: %v", tt.name, of.Digests())
		}
		run := of.Open("run_1", Origin{})
		for _, o := range []Observed{{Request: tt.body}, {Response: tt.body}} {
			o.Direction, o.Protocol, o.Outcome, o.Ended = Ingress, MCP, OK, time.Now()
			of.End(of.Arrive(run, Place{}, time.Now()), o)
		}
		of.work()
		of.stop()
		receipts, _ := of.receipts(t, run.Workflow)
		var got []string
		for _, r := range receipts {
			g := r.Claims.Extensions[peac.ExchangeGroup].(map[string]any)
			got = append(got, fmt.Sprint(g["request_digest"], g["response_digest"]))
		}
		want := []string{fmt.Sprint(tt.want, nil), fmt.Sprint(nil, tt.want)}
		if len(got) == 2 && got[0] != want[0] { // two of one millisecond are in any order
			got[0], got[1] = got[1], got[0]
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
		if of.waiting != 0 {
			t.Errorf("%s: %d bytes are held", tt.name, of.waiting)
		}
	}
}

// TestDigestBound holds no more bodies than there is room for, and gives the room back
// also where a receipt is dropped.
func TestDigestBound(t *testing.T) {
	of := newOffice(t, func(o *Options) { o.Digests, o.MaxBodies, o.Queue = true, 25, 3 })
	run := of.Open("run_1", Origin{})
	o := ended(OK)
	o.Request = Body{[]byte("0123456789"), true}
	for range 5 { // two with a digest, one without, and two for which there is no room
		of.End(of.Arrive(run, Place{}, time.Now()), o)
	}
	if of.waiting != 20 {
		t.Errorf("%d bytes wait, want 20", of.waiting)
	}
	of.work()
	of.stop()
	receipts, _ := of.receipts(t, run.Workflow)
	digests := 0
	for _, r := range receipts {
		if group(t, r, peac.ExchangeGroup, "request_digest") != nil {
			digests++
		}
	}
	if digests != 2 || len(receipts) != 3 || of.waiting != 0 {
		t.Errorf("%d digests in %d receipts, %d bytes held", digests, len(receipts), of.waiting)
	}
	of.counts(t, `
# HELP wopproxy_evidence_limit_hits_total Bounds on what receipts tell that were reached.
# TYPE wopproxy_evidence_limit_hits_total counter
wopproxy_evidence_limit_hits_total{limit="bodies"} 3
wopproxy_evidence_limit_hits_total{limit="calls"} 0
wopproxy_evidence_limit_hits_total{limit="cards"} 0
wopproxy_evidence_limit_hits_total{limit="contexts"} 0
wopproxy_evidence_limit_hits_total{limit="parents"} 0
wopproxy_evidence_limit_hits_total{limit="runs"} 0
wopproxy_evidence_limit_hits_total{limit="states"} 0
wopproxy_evidence_limit_hits_total{limit="tasks"} 0
wopproxy_evidence_limit_hits_total{limit="upstream"} 0
`, "wopproxy_evidence_limit_hits_total")
}
