package evidence

import (
	"crypto/ed25519"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/wopproxy/wopproxy/ancestry/peac"
)

const peerIssuer = "https://peer.example.com"

// peerReceipt returns a receipt of another issuer, signed with a key of a name.
func peerReceipt(t testing.TB, keyName, jti string) (string, peac.JWK) {
	t.Helper()
	key := ed25519.NewKeyFromSeed([]byte(fmt.Sprintf("%-32s", keyName)))
	signer, err := peac.NewSigner(peerIssuer, keyName, key)
	if err != nil {
		t.Fatal(err)
	}
	jws, err := signer.Sign(peac.Claims{Kind: peac.Evidence, Type: "com.example/observed", ID: jti, IssuedAt: time.Now().Unix()})
	if err != nil {
		t.Fatal(err)
	}
	return jws, peac.NewJWK(keyName, key.Public().(ed25519.PublicKey))
}

// TestUpstream has a receipt name those of others that were on the answer, and depend
// on those that hold.
func TestUpstream(t *testing.T) {
	good, key := peerReceipt(t, "one", "jti-1")
	stranger, _ := peerReceipt(t, "two", "jti-2")
	forged := good[:strings.LastIndexByte(good, '.')+1] + strings.Repeat("A", 86)
	reference := peac.Carrier{Ref: peac.ReceiptRef("elsewhere")}
	for _, tt := range []struct {
		name    string
		found   []peac.Carrier
		refused int
		ref     any
		depends any
		counts  string
	}{
		{"none", nil, 0, nil, nil, "0 0 0 0"},
		{"one that holds", []peac.Carrier{peac.NewCarrier(good)}, 0, peac.ReceiptRef(good), []any{"jti-1"}, "0 0 0 1"},
		{"the same twice", []peac.Carrier{peac.NewCarrier(good), peac.NewCarrier(good)}, 0, peac.ReceiptRef(good), []any{"jti-1"}, "0 0 0 1"},
		{"a reference", []peac.Carrier{reference}, 0, reference.Ref, nil, "1 0 0 0"},
		{"of a key that is not known", []peac.Carrier{peac.NewCarrier(stranger)}, 0, peac.ReceiptRef(stranger), nil, "0 0 1 0"},
		{"that nobody has signed", []peac.Carrier{peac.NewCarrier(forged)}, 0, peac.ReceiptRef(forged), nil, "0 1 0 0"},
		{"what is none", []peac.Carrier{reference, peac.NewCarrier(good)}, 2, reference.Ref, []any{"jti-1"}, "1 2 0 1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			of := newOffice(t, func(o *Options) { o.Known = map[string]peac.JWKS{peerIssuer: {Keys: []peac.JWK{key}}} })
			run := of.Open("run_1", Origin{})
			s := of.Leave(run, time.Now())
			of.found(s, tt.found, tt.refused)
			of.End(s, ended(OK))
			of.work()
			of.stop()
			receipts, _ := of.receipts(t, run.Workflow)
			if len(receipts) != 1 {
				t.Fatalf("%d receipts", len(receipts))
			}
			if got := group(t, receipts[0], peac.ActionGroup, "upstream_artifact_ref"); got != tt.ref {
				t.Errorf("upstream_artifact_ref %v, want %v", got, tt.ref)
			}
			got, _ := group(t, receipts[0], peac.CorrelationGroup, "depends_on").([]any)
			if want, _ := tt.depends.([]any); !slices.Equal(got, want) {
				t.Errorf("depends_on %v, want %v", got, want)
			}
			counts := strings.Fields(tt.counts)
			of.counts(t, fmt.Sprintf(`
				# HELP wopproxy_evidence_upstream_total Receipts of others that were on answers.
				# TYPE wopproxy_evidence_upstream_total counter
				wopproxy_evidence_upstream_total{verdict="reference"} %s
				wopproxy_evidence_upstream_total{verdict="refused"} %s
				wopproxy_evidence_upstream_total{verdict="unknown"} %s
				wopproxy_evidence_upstream_total{verdict="verified"} %s
			`, counts[0], counts[1], counts[2], counts[3]), "wopproxy_evidence_upstream_total")
			if of.held != 0 {
				t.Errorf("%d bytes are held for what is signed", of.held)
			}
		})
	}
}

// TestSealUpstream has nobody wait for the receipts of many others to be verified: what
// depends on them is signed later.
func TestSealUpstream(t *testing.T) {
	one, key := peerReceipt(t, "one", "jti-1")
	two, _ := peerReceipt(t, "one", "jti-2")
	reference := peac.Carrier{Ref: peac.ReceiptRef("elsewhere")}
	for _, tt := range []struct {
		name    string
		found   []peac.Carrier
		sealed  bool
		depends []any
	}{
		{"one, and what is only referred to", []peac.Carrier{reference, peac.NewCarrier(one), reference}, true, []any{"jti-1"}},
		{"two", []peac.Carrier{peac.NewCarrier(one), peac.NewCarrier(two)}, false, []any{"jti-1", "jti-2"}},
	} {
		of := newOffice(t, func(o *Options) { o.Known = map[string]peac.JWKS{peerIssuer: {Keys: []peac.JWK{key}}} })
		run := of.Open("run_1", Origin{})
		s := of.Arrive(run, Place{}, time.Now())
		of.found(s, tt.found, 0)
		if _, jws := of.Seal(s, ended(OK)); (jws != "") != tt.sealed {
			t.Errorf("%s: Seal = %q", tt.name, jws)
		}
		of.End(s, ended(OK))
		of.work()
		of.stop()
		receipts, _ := of.receipts(t, run.Workflow)
		if len(receipts) != 1 {
			t.Fatalf("%s: %d receipts", tt.name, len(receipts))
		}
		if got, _ := group(t, receipts[0], peac.CorrelationGroup, "depends_on").([]any); !slices.Equal(got, tt.depends) {
			t.Errorf("%s: depends_on %v, want %v", tt.name, got, tt.depends)
		}
	}
}

// TestUpstreamBound has more come than may wait: the references stay, and room is made
// by what was signed, and by what was dropped.
func TestUpstreamBound(t *testing.T) {
	good, key := peerReceipt(t, "one", "jti-1")
	of := newOffice(t, func(o *Options) {
		o.Known = map[string]peac.JWKS{peerIssuer: {Keys: []peac.JWK{key}}}
		o.MaxUpstream = len(good)
		o.Queue = 1
	})
	run := of.Open("run_1", Origin{})
	carrier := []peac.Carrier{peac.NewCarrier(good)}
	kept, bare, more, late := of.Leave(run, time.Now()), of.Leave(run, time.Now()), of.Leave(run, time.Now()), of.Leave(run, time.Now())
	of.found(kept, carrier, 0)
	of.found(bare, carrier, 0) // its reference
	of.End(bare, ended(OK))
	of.End(kept, ended(OK)) // the queue is full
	of.found(more, carrier, 0)
	of.found(late, slices.Repeat([]peac.Carrier{{Ref: peac.ReceiptRef("x")}}, maxDepends+1), 0)
	if of.held != len(good) {
		t.Errorf("%d bytes are held, want %d", of.held, len(good))
	}
	of.work()
	of.stop()
	of.counts(t, `
		# HELP wopproxy_evidence_upstream_total Receipts of others that were on answers.
		# TYPE wopproxy_evidence_upstream_total counter
		wopproxy_evidence_upstream_total{verdict="reference"} 1
		wopproxy_evidence_upstream_total{verdict="refused"} 0
		wopproxy_evidence_upstream_total{verdict="unknown"} 0
		wopproxy_evidence_upstream_total{verdict="verified"} 0
	`, "wopproxy_evidence_upstream_total")
	of.counts(t, `
		# HELP wopproxy_evidence_limit_hits_total Bounds on what receipts tell that were reached.
		# TYPE wopproxy_evidence_limit_hits_total counter
		wopproxy_evidence_limit_hits_total{limit="bodies"} 0
		wopproxy_evidence_limit_hits_total{limit="calls"} 0
		wopproxy_evidence_limit_hits_total{limit="cards"} 0
		wopproxy_evidence_limit_hits_total{limit="contexts"} 0
		wopproxy_evidence_limit_hits_total{limit="parents"} 0
wopproxy_evidence_limit_hits_total{limit="runs"} 0
		wopproxy_evidence_limit_hits_total{limit="states"} 0
		wopproxy_evidence_limit_hits_total{limit="tasks"} 0
		wopproxy_evidence_limit_hits_total{limit="upstream"} 2
	`, "wopproxy_evidence_limit_hits_total")
}
