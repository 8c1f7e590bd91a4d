package main

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/wopproxy/wopproxy/ancestry/peac"
)

// forger signs what nobody should.
type forger struct {
	t      *testing.T
	issuer string
	key    ed25519.PrivateKey
	now    time.Time
}

const (
	forgedWorkflow = "wf_0123456789-0123456789_"
	forgedHeader   = `{"typ":"interaction-record+jwt","alg":"EdDSA","kid":"k"}`
)

// forgedStep is the id of a step.
func forgedStep(name string) string { return fmt.Sprintf("step_%020s", name) }

// payload is that of the receipt of a step, issued some time from now.
func (f forger) payload(step string, in time.Duration, parents ...string) string {
	named := []string{}
	for _, p := range parents {
		named = append(named, forgedStep(p))
	}
	raw, err := json.Marshal(map[string]any{
		"peac_version": "0.2", "kind": "evidence", "type": "dev.wopproxy/progress", "iss": f.issuer,
		"iat": f.now.Add(in).Unix(), "jti": "jti-" + step,
		"extensions": map[string]any{peac.WorkflowGroup: map[string]any{
			"workflow_id": forgedWorkflow, "step_id": forgedStep(step), "parent_step_ids": named,
		}},
	})
	if err != nil {
		f.t.Fatal(err)
	}
	return string(raw)
}

func (f forger) sign(header, payload string) string {
	text := base64.RawURLEncoding.EncodeToString([]byte(header)) + "." + base64.RawURLEncoding.EncodeToString([]byte(payload))
	return text + "." + base64.RawURLEncoding.EncodeToString(ed25519.Sign(f.key, []byte(text)))
}

// receipt is one that holds.
func (f forger) receipt(step string, parents ...string) string {
	return f.sign(forgedHeader, f.payload(step, -time.Hour, parents...))
}

// summary tells of receipts by the references that it is given, and by their root.
func (f forger) summary(names bool, receipts ...string) string {
	var refs []string
	for _, jws := range receipts {
		refs = append(refs, peac.ReceiptRef(jws))
	}
	signer, err := peac.NewSigner(f.issuer, "k", f.key)
	if err != nil {
		f.t.Fatal(err)
	}
	e := peac.SummaryEvidence{WorkflowID: forgedWorkflow, Status: peac.InProgress, StartedAt: peac.FormatTime(f.now.Add(-time.Hour)), OrchestratorID: "ref:orchestrator"}
	if names {
		e.ReceiptRefs = refs
	}
	jws, err := signer.Summarize(e, refs, f.now)
	if err != nil {
		f.t.Fatal(err)
	}
	return jws
}

// TestEvidenceRefused has the command refuse what others may send: each with its code,
// and what holds beside it is still said to hold.
func TestEvidenceRefused(t *testing.T) {
	f := forger{t, "https://sidecar.example.com", ed25519.NewKeyFromSeed(make([]byte, 32)), time.Now()}
	other := forger{t, "https://other.example.com", ed25519.NewKeyFromSeed(bytes.Repeat([]byte{1}, 32)), f.now}
	stranger := f
	stranger.key = other.key
	root := f.receipt("root")
	bundle := func(summary string, receipts ...string) peac.Bundle {
		return peac.Bundle{Format: peac.BundleFormat, Issuer: f.issuer, Receipts: receipts, Summary: summary}
	}
	one := func(jws string) peac.Bundle { return bundle("", root, jws) }
	dir := t.TempDir()
	write := func(name string, v any) string {
		raw, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, raw, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	keys := write("jwks.json", peac.JWKS{Keys: []peac.JWK{peac.NewJWK("k", f.key.Public().(ed25519.PublicKey))}})
	left := f.payload("left", -time.Hour, "root")
	for _, tt := range []struct {
		name string
		b    peac.Bundle
		want peac.Code // none: it holds
	}{
		{"nothing wrong", one(f.sign(forgedHeader, left)), ""},
		{"and a summary", bundle(f.summary(true, root), root), ""},
		{"no receipt", one("e30"), peac.CodeInvalidFormat},
		{"no JSON", one(f.sign(forgedHeader, "left")), peac.CodeInvalidFormat},
		{"padding", one(f.sign(forgedHeader, left) + "="), peac.CodeInvalidFormat},
		{"oversized, so nothing is judged", one(f.sign(forgedHeader, strings.Replace(left, "{", "{"+strings.Repeat(" ", 1<<18), 1))), peac.CodeInvalidFormat},
		{"another typ", one(f.sign(`{"typ":"JWT","alg":"EdDSA","kid":"k"}`, left)), peac.CodeInvalidFormat},
		{"the typ of wire format 0.1", one(f.sign(`{"typ":"peac-receipt/0.1","alg":"EdDSA","kid":"k"}`, left)), peac.CodeWireMismatch},
		{"a type that is none", one(f.sign(forgedHeader, strings.Replace(left, "dev.wopproxy/progress", "progress", 1))), peac.CodeInvalidFormat},
		{"a type without its group", one(f.sign(forgedHeader, strings.Replace(left, "dev.wopproxy/progress", peac.ActionInvoked, 1))), peac.CodeGroupRequired},
		{"alg none", one(f.sign(`{"typ":"interaction-record+jwt","alg":"none","kid":"k"}`, left)), peac.CodeInvalidFormat},
		{"alg none, without a signature", one(strings.TrimRight(f.sign(`{"typ":"interaction-record+jwt","alg":"none","kid":"k"}`, left), base64Letters)), peac.CodeInvalidFormat},
		{"a key twice", one(f.sign(forgedHeader, strings.Replace(left, `"iat"`, `"iat":1,"iat"`, 1))), peac.CodeDuplicateMember},
		{"a key twice in the header", one(f.sign(strings.Replace(forgedHeader, `"alg"`, `"kid":"x","alg"`, 1), left)), peac.CodeDuplicateMember},
		{"a key that it brings", one(f.sign(strings.Replace(forgedHeader, `"alg"`, `"jwk":{},"alg"`, 1), left)), peac.CodeEmbeddedKey},
		{"a key of another's", one(stranger.sign(forgedHeader, left)), peac.CodeInvalidSignature},
		{"a key that nobody knows", one(f.sign(strings.Replace(forgedHeader, `"k"`, `"x"`, 1), left)), peac.CodeKeyNotFound},
		{"a receipt of another issuer's", one(other.receipt("left", "root")), peac.CodeInvalidIssuer},
		{"a summary of what is not there", bundle(f.summary(false, root, f.receipt("gone")), root), peac.CodeSummaryInvalid},
		{"a summary that lists it", bundle(f.summary(true, root, f.receipt("gone")), root), peac.CodeSummaryInvalid},
		{"a cycle", bundle("", f.receipt("left", "right"), f.receipt("right", "left")), peac.CodeCycleDetected},
		{"its own parent", one(f.receipt("left", "left")), peac.CodeDAGInvalid},
		{"a clock less than five minutes ahead", one(f.sign(forgedHeader, f.payload("left", 4*time.Minute, "root"))), ""},
		{"a clock more than five minutes ahead", one(f.sign(forgedHeader, f.payload("left", time.Hour, "root"))), peac.CodeNotYetValid},
		{"a clock that is behind", one(f.sign(forgedHeader, f.payload("left", -24*time.Hour, "root"))), ""},
		{"what will have happened", one(f.sign(forgedHeader, strings.Replace(left, `"iat"`, `"occurred_at":"2999-01-01T00:00:00Z","iat"`, 1))), peac.CodeOccurredInFuture},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			code := run(t.Context(), []string{"evidence", "verify", write("bundle.json", tt.b), "-jwks", keys}, &stdout, &stderr)
			if tt.want == "" {
				if code != 0 || stderr.Len() > 0 {
					t.Errorf("exit %d, want 0\n%s%s", code, &stdout, &stderr)
				}
				return
			}
			told := stdout.String()
			if strings.HasPrefix(tt.name, "oversized") {
				told = stderr.String()
			} else if tt.b.Receipts[0] == root && !strings.Contains(told, forgedStep("root")+"  ok") {
				t.Errorf("what holds is not said to\n%s", told)
			}
			if code != 1 || !strings.Contains(told, string(tt.want)+": ") {
				t.Errorf("exit %d, want 1 and %s\n%s%s", code, tt.want, &stdout, &stderr)
			}
		})
	}
}

const base64Letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"

// TestStartWithoutKey has a start refused that could sign nothing, before anything
// is served, and what was stored stay.
func TestStartWithoutKey(t *testing.T) {
	dir := keyFiles(t)
	at := func(name string) string { return filepath.Join(dir, name) }
	if err := os.WriteFile(at("secret"), []byte(strings.Repeat("0f", 32)), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(at("short"), []byte("0f"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ key, idKey, want string }{
		{"lost.pem", "secret", "evidence.key: " + at("lost.pem") + ": open "},
		{"other.pem", "secret", "evidence.key: " + at("other.pem") + ": not an Ed25519 key in PEM: make one with openssl"},
		{"key.pub", "secret", "write the file of the private one"},
		{"key.pem", "lost", "evidence.idKey"},
		{"key.pem", "key.pub", "evidence.idKey: read secret: file " + at("key.pub") + " holds a line break"},
		{"key.pem", "short", "evidence.idKey: not 64 hex digits: make it with openssl rand -hex 32"},
	} {
		t.Run(tt.key+" "+tt.idKey, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "wopproxy.yaml")
			if err := os.WriteFile(file, fmt.Appendf(nil, `
host: { id: agent.example.com, wellKnownUrl: "https://agent.example.com/.well-known/openwop" }
ingress: { listen: "127.0.0.1:0", upstream: "http://127.0.0.1:1" }
egress: { listen: "127.0.0.1:0" }
admin: { listen: "127.0.0.1:0" }
ancestry: { store: { bolt: { dir: %q } } }
evidence: { issuer: "https://agent.example.com", key: { file: %q }, idKey: { file: %q } }
`, filepath.Join(t.TempDir(), "store"), at(tt.key), at(tt.idKey)), 0o600); err != nil {
				t.Fatal(err)
			}
			var stdout, stderr bytes.Buffer
			code := run(t.Context(), []string{"serve", "-config", file}, &stdout, &stderr)
			if code != 1 || !strings.Contains(stderr.String(), tt.want) || strings.Contains(stderr.String(), `"serving"`) {
				t.Errorf("exit %d, want 1 and %s\n%s", code, tt.want, &stderr)
			}
		})
	}
}
