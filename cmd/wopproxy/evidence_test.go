package main

import (
	"bytes"
	"crypto/ed25519"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/wopproxy/wopproxy/ancestry/peac"
)

// TestEvidenceCommand verifies bundles from files and hosts, whole and broken.
func TestEvidenceCommand(t *testing.T) {
	const issuer = "https://sidecar.example.com"
	key := ed25519.NewKeyFromSeed(make([]byte, 32))
	signer, err := peac.NewSigner(issuer, "k", key)
	if err != nil {
		t.Fatal(err)
	}
	names, err := peac.NewNamer(make([]byte, 32), "acme")
	if err != nil {
		t.Fatal(err)
	}
	wf := names.RunWorkflow("host.example.com", "run-1")
	now := time.Now().Add(-time.Hour)
	sign := func(exchange string, parents ...string) string {
		jws, err := signer.Sign(peac.Claims{
			Kind: peac.Evidence, Type: "dev.wopproxy/progress", IssuedAt: now.Unix(), ID: peac.NewReceiptID(now),
			Extensions: map[string]any{
				peac.WorkflowGroup: peac.WorkflowContext{WorkflowID: wf, StepID: names.Step(wf, exchange), ParentStepIDs: parents},
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		return jws
	}
	set := func(key ed25519.PrivateKey) []byte {
		raw, _ := json.Marshal(peac.JWKS{Keys: []peac.JWK{peac.NewJWK("k", key.Public().(ed25519.PublicKey))}})
		return raw
	}
	whole := peac.Bundle{
		Format: peac.BundleFormat, Issuer: issuer, JWKS: set(key),
		Receipts: []string{sign("a"), sign("b", names.Step(wf, "a"))},
	}
	gap, bare := whole, whole
	gap.Receipts, bare.JWKS = gap.Receipts[1:], nil
	bundle, _ := json.Marshal(whole)
	write := func(name string, v any) string {
		raw, ok := v.([]byte)
		if !ok {
			raw, _ = json.Marshal(v)
		}
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, raw, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	all, err := whole.Extract()
	if err != nil {
		t.Fatal(err)
	}
	part, err := whole.Extract(peac.ReceiptRef(whole.Receipts[1]))
	if err != nil {
		t.Fatal(err)
	}
	summed := whole
	summed.Summary, err = signer.Summarize(peac.SummaryEvidence{
		WorkflowID: wf, Status: peac.Completed, StartedAt: peac.FormatTime(now), CompletedAt: peac.FormatTime(now),
		OrchestratorID: "ref:orchestrator", AgentsInvolved: []string{},
	}, []string{peac.ReceiptRef(whole.Receipts[0]), peac.ReceiptRef(whole.Receipts[1])}, now)
	if err != nil {
		t.Fatal(err)
	}
	paged := 0
	host := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		page, commitment := whole, *all.Commitment
		page.Receipts, page.Commitment = whole.Receipts[1:], &commitment
		if r.FormValue("after") == "" {
			page.Receipts, page.Commitment, page.Next = whole.Receipts[:1], nil, "a page&more"
		}
		switch r.URL.Path {
		case "/ancestry/v1/runs/acme/run-1/evidence":
			if proof := r.FormValue("proof"); proof != "" {
				page, _ = whole.Extract(proof)
			}
			if r.FormValue("audience") == "https://b.example.com" {
				page = part
			}
			_ = json.NewEncoder(w).Encode(page)
		case "/ancestry/v1/runs/busy/evidence": // the first time, a receipt comes between two pages
			if paged++; paged == 2 {
				commitment.Root = peac.ReceiptRef("x")
			}
			_ = json.NewEncoder(w).Encode(page)
		case "/ancestry/v1/runs/hasty/evidence":
			commitment.Root = peac.ReceiptRef("x")
			_ = json.NewEncoder(w).Encode(page)
		case "/ancestry/v1/runs/round/evidence":
			page.Receipts, page.Next = whole.Receipts[:1], "again"
			_ = json.NewEncoder(w).Encode(page)
		case "/bundle":
			w.Write(bundle)
		case "/jwks":
			w.Write(set(key))
		default:
			http.Error(w, "nothing is signed here", http.StatusNotFound)
		}
	}))
	defer host.Close()
	file, keys := write("bundle.json", whole), write("jwks.json", set(key))
	others := write("others.json", set(ed25519.NewKeyFromSeed(bytes.Repeat([]byte{1}, 32))))
	document := peac.NewIssuerDocument(issuer, issuer+"/.well-known/jwks.json")
	revoking := document
	revoking.RevokedKeys = []peac.RevokedKey{{KeyID: "k", RevokedAt: "2026-11-01T00:00:00Z", Reason: "key_compromise"}}
	stranger := peac.NewIssuerDocument("https://x.example", issuer+"/jwks")
	page := whole
	page.Next = "x"
	tree := issuer + "\n" + names.Step(wf, "a") + "  ok  dev.wopproxy/progress\n└─ " + names.Step(wf, "b") + "  ok"
	for _, tt := range []struct {
		name           string
		args           []string
		code           int
		stdout, stderr string
	}{
		{"file", []string{"verify", file, "--jwks", keys}, 0, tree, ""},
		{"host", []string{"verify", host.URL + "/bundle", "-jwks", host.URL + "/jwks", "-issuer", issuer}, 0, tree, ""},
		{"its own keys", []string{"verify", file}, 0, tree, "that they are of " + issuer + " is not shown"},
		{"another's keys", []string{"verify", file, "-jwks", others}, 1, "E_INVALID_SIGNATURE: ", "the evidence does not hold"},
		{"the whole", []string{"verify", write("summed.json", summed), "-jwks", keys, "-whole"}, 0, tree, ""},
		{"what nobody has summed up", []string{"verify", file, "-jwks", keys, "-whole"}, 1, tree, "-whole: there is no summary, so receipts may be missing"},
		{"a gap", []string{"verify", write("gap.json", gap), "-jwks", keys}, 1, "E_WORKFLOW_PARENT_NOT_FOUND: ", "the evidence does not hold"},
		{"no keys", []string{"verify", write("bare.json", bare)}, 1, "", "name the issuer's with -jwks"},
		{"keys that are none", []string{"verify", file, "-jwks", file}, 1, "", "the keys of " + issuer + ": E_INVALID_FORMAT"},
		{"no such keys", []string{"verify", file, "-jwks", keys + "x"}, 1, "", "-jwks: open"},
		{"another issuer", []string{"verify", file, "-issuer", "https://x.example"}, 1, "", "not of https://x.example"},
		{"a DID", []string{"verify", file, "-issuer", "did:web:x.example"}, 1, "", "not of did:web:x.example"},
		{"its document", []string{"verify", file, "-jwks", keys, "-issuer", write("issuer.json", document)}, 0, tree, ""},
		{"a revoked key", []string{"verify", file, "-jwks", keys, "-issuer", write("revoked.json", revoking)}, 1, "key_revoked: ", "the evidence does not hold"},
		{"another's document", []string{"verify", file, "-jwks", keys, "-issuer", write("other.json", stranger)}, 1, "", "E_INVALID_ISSUER: the document is of another issuer"},
		{"no such document", []string{"verify", file, "-issuer", file + "x"}, 1, "", "-issuer: open"},
		{"no document", []string{"verify", file, "-issuer", keys}, 1, "", "E_INVALID_FORMAT: version is not"},
		{"an extract", []string{"verify", write("part.json", part), "-jwks", keys}, 0, "an extract: 1 of 2 receipts\n", ""},
		{"pages", []string{"verify", host.URL + "/ancestry/v1/runs/acme%2Frun-1/evidence", "-jwks", keys}, 0, tree, ""},
		{"a page", []string{"verify", write("page.json", page)}, 1, "E_INVALID_FORMAT: it is a page", "the evidence does not hold"},
		{"export", []string{"export", "acme/run-1", "-admin", host.URL + "/"}, 0, `"` + whole.Receipts[0] + `",` + "\n    " + `"` + whole.Receipts[1] + `"`, ""},
		{"export one", []string{"export", "acme/run-1", "-admin", host.URL, "-proof", peac.ReceiptRef(whole.Receipts[1])}, 0, `"leaf_index": `, ""},
		{"export for an audience", []string{"export", "acme/run-1", "-admin", host.URL, "-audience", "https://b.example.com"}, 0, `"leaf_index": `, ""},
		{"export while it goes on", []string{"export", "busy", "-admin", host.URL}, 0, whole.Receipts[1], ""},
		{"export what never rests", []string{"export", "hasty", "-admin", host.URL}, 1, "", "more was signed while it was read"},
		{"export without an end", []string{"export", "round", "-admin", host.URL}, 1, "", "does not follow the one before"},
		{"export nothing", []string{"export", "nobody", "-admin", host.URL}, 1, "", `404 Not Found "nothing is signed here`},
		{"export from nowhere", []string{"export", "nobody", "-admin", "localhost"}, 1, "", "is no http or https URL"},
		{"export no run", []string{"export", "a b"}, 1, "", "run id"},
		{"no such bundle", []string{"verify", file + "x"}, 1, "", "no such file"},
		{"nothing at the host", []string{"verify", host.URL + "/x"}, 1, "", "404"},
		{"no bundle", []string{"verify", keys}, 1, "", "E_INVALID_FORMAT: format is not dev.wopproxy/evidence-bundle/1"},
		{"no JSON", []string{"verify", write("x", []byte("<html>"))}, 1, "", "E_INVALID_FORMAT: no JSON"},
		{"nothing", []string{"verify"}, 2, "", "1 operands given, want 2"},
		{"something else", []string{"forge", file}, 2, "", `"forge" is nothing that can be done`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			code := run(t.Context(), append([]string{"evidence"}, tt.args...), &stdout, &stderr)
			if code != tt.code || !strings.Contains(stdout.String(), tt.stdout) || !strings.Contains(stderr.String(), tt.stderr) {
				t.Errorf("evidence %q = %d, want %d\nstdout: %s\nstderr: %s", tt.args, code, tt.code, &stdout, &stderr)
			}
		})
	}
}
