package e2e

import (
	"maps"
	"testing"

	"github.com/wopproxy/wopproxy/ancestry/peac"
)

// TestEvidenceOfMCP has the progress that a tool of the official SDK tells of be told in
// the step of its call, and the digest of the call, where that is asked for.
func TestEvidenceOfMCP(t *testing.T) {
	for _, revision := range []string{stateful, stateless} {
		t.Run(revision, func(t *testing.T) {
			signer := signs(t, "tools.example.com")
			tools := newToolServer(t, "tools.example.com", revision, signer.settings, settings{"evidence.digests": true})
			cs, err := tools.connect(t.Context(), direct, tools.endpoint())
			if err != nil {
				t.Fatal(err)
			}
			if err := callTool(t.Context(), cs, "stream", map[string]any{}, "streamed", false); err != nil {
				t.Fatal(err)
			}
			if err := cs.Close(); err != nil {
				t.Error(err)
			}
			calls, _ := tools.seen()
			if len(calls) != 1 {
				t.Fatalf("calls: %+v", calls)
			}
			want := map[string]int{peac.ActionInvoked: 1, "dev.wopproxy/progress": 2} // the first and the second
			b, report := signer.evidence(t, tools.sidecar, calls[0].run, func(r peac.Report) bool { return maps.Equal(shape(r), want) })
			if len(report.Steps) != 1 {
				t.Errorf("%d steps, want the call alone", len(report.Steps))
			}
			digests := 0
			for _, jws := range b.Receipts {
				if claimsOf(t, jws).Extensions[peac.ExchangeGroup].(map[string]any)["request_digest"] != nil {
					digests++
				}
			}
			if digests != 1 { // that of the end
				t.Errorf("%d receipts tell of the body, want one: %v", digests, shape(report))
			}
		})
	}
}
