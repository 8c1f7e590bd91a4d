package peac_test

import (
	"crypto/ed25519"
	"fmt"
	"time"

	"github.com/wopproxy/wopproxy/ancestry/peac"
)

// The keys of an example; a real one comes from a file that nobody else reads.
var (
	signingKey = ed25519.NewKeyFromSeed([]byte("an example of a seed, not secret"))
	publicKey  = signingKey.Public().(ed25519.PublicKey)
)

// A step is signed, published with its key, and read by who has nothing else.
func Example() {
	now := time.Unix(1_795_000_000, 0)
	names, err := peac.NewNamer([]byte("another key, for identifiers, 32"), "acme")
	if err != nil {
		fmt.Println(err)
		return
	}
	workflow := names.RunWorkflow("host.example.com", "acme/run-1")
	signer, err := peac.NewSigner("https://sidecar.example.com", "2026-11", signingKey)
	if err != nil {
		fmt.Println(err)
		return
	}
	receipt, err := signer.Sign(peac.Claims{
		Kind: peac.Evidence, Type: "dev.wopproxy/progress", IssuedAt: now.Unix(), ID: peac.NewReceiptID(now),
		Extensions: map[string]any{
			peac.WorkflowGroup:    peac.WorkflowContext{WorkflowID: workflow, StepID: names.Step(workflow, "exchange-1")},
			peac.CorrelationGroup: peac.Correlation{WorkflowID: workflow},
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}

	published := peac.JWKS{Keys: []peac.JWK{peac.NewJWK("2026-11", publicKey)}}
	r, err := peac.Verify(receipt, published.Of("https://sidecar.example.com"), now)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(r.Claims.Issuer, r.Workflow.WorkflowID == workflow)

	_, err = peac.Verify(receipt, published.Of("https://elsewhere.example.com"), now)
	fmt.Println(peac.CodeOf(err))
	// Output:
	// https://sidecar.example.com true
	// E_INVALID_ISSUER
}

// The first check that fails, in PEAC's order, gives the code.
func ExampleParseWorkflowContext() {
	_, err := peac.ParseWorkflowContext([]byte(`{
		"workflow_id": "wf_01ARZ3NDEKTSV4RRFFQ69G5FAV",
		"step_id": "step_01ARZ3NDEKTSV4RRFFQ69G5FAV",
		"parent_step_ids": ["step_01ARZ3NDEKTSV4RRFFQ69G5FAV"],
		"unknown": true
	}`))
	fmt.Println(err)
	// Output: E_WORKFLOW_DAG_INVALID: the step is its own parent
}

// A proof shows that one receipt is in a set, to who doesn't have the others.
func ExampleProof_Verify() {
	refs := []string{peac.ReceiptRef("receipt a"), peac.ReceiptRef("receipt b"), peac.ReceiptRef("receipt c")}
	commitment, err := peac.Commit(refs)
	if err != nil {
		fmt.Println(err)
		return
	}
	proof, err := peac.Prove(refs, refs[1])
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(proof.Verify(commitment, refs[1]))
	fmt.Println(proof.Verify(commitment, refs[2]))
	// Output:
	// true <nil>
	// false <nil>
}

// A key is published before it signs, and stays after its successor does.
func ExampleKeyRing() {
	day := func(n int) time.Time { return time.Date(2026, 11, n, 0, 0, 0, 0, time.UTC) }
	next := ed25519.NewKeyFromSeed([]byte("the seed of the successor, 32 B.")).Public().(ed25519.PublicKey)
	ring := peac.KeyRing{
		{KeyID: "2026-11", Public: publicKey, Publish: day(1), Sign: day(1), Retire: day(20).Add(peac.MinOverlap)},
		{KeyID: "2026-12", Public: next, Publish: day(18), Sign: day(20)},
	}
	fmt.Println(ring.Check(24 * time.Hour))
	for _, n := range []int{10, 19, 21} {
		key, _ := ring.Signing(day(n))
		set, _ := ring.JWKS(day(n))
		fmt.Println(n, key.KeyID, len(set.Keys))
	}
	// Output:
	// <nil>
	// 10 2026-11 1
	// 19 2026-11 2
	// 21 2026-12 2
}

// The chain and the tree of a workflow can be checked on their own.
func ExampleCheckSet() {
	receipts := []peac.Receipt{{
		Ref: peac.ReceiptRef("receipt a"),
		Workflow: &peac.WorkflowContext{
			WorkflowID: "wf_01ARZ3NDEKTSV4RRFFQ69G5FAV", StepID: "step_01ARZ3NDEKTSV4RRFFQ69G5FAV",
			ParentStepIDs: []string{"step_01H5KPT9QZA123456789VWXYZG"},
		},
	}}
	for _, fault := range peac.CheckSet(receipts, nil) {
		fmt.Println(fault.Code, fault.What)
	}
	fmt.Println(peac.CheckSet(receipts, []string{"step_01H5KPT9QZA123456789VWXYZG"}))
	// Output:
	// E_WORKFLOW_PARENT_NOT_FOUND its parent step_01H5KPT9QZA123456789VWXYZG is not there
	// []
}
