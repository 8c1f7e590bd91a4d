package main

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/wopproxy/wopproxy/ancestry"
	"github.com/wopproxy/wopproxy/ancestry/boltstore"
	"github.com/wopproxy/wopproxy/ancestry/peac"
	"github.com/wopproxy/wopproxy/config"
	"github.com/wopproxy/wopproxy/evidence"
)

// keyFiles writes an Ed25519 key in both halves, one that is none, and a secret for
// ids, and returns where.
func keyFiles(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	write := func(name, kind string, der []byte) {
		t.Helper()
		text := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"key", "next"} {
		key := ed25519.NewKeyFromSeed([]byte(name + strings.Repeat("!", ed25519.SeedSize-len(name))))
		private, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			t.Fatal(err)
		}
		public, err := x509.MarshalPKIXPublicKey(key.Public())
		if err != nil {
			t.Fatal(err)
		}
		write(name+".pem", "PRIVATE KEY", private)
		write(name+".pub", "PUBLIC KEY", public)
	}
	write("other.pem", "CERTIFICATE", []byte("no key"))
	return dir
}

// thumbprint is the id of the key in a file.
func thumbprint(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	k, err := evidence.ParseKey(text, "")
	if err != nil {
		t.Fatal(err)
	}
	return k.KeyID
}

// TestMinter has evidence made with the keys that are configured, and a start refused
// that could not sign: what to do is said.
func TestMinter(t *testing.T) {
	dir := keyFiles(t)
	at := func(name string) string { return filepath.Join(dir, name) }
	secret := strings.Repeat("0f", 32)
	seed := "6b6579" + strings.Repeat("21", 29) // of key
	for _, tt := range []struct {
		name, key, idKey string
		keys             []config.EvidenceKey
		revoked          []string
		want             string // of the error; empty: it starts
	}{
		{"a key", "key.pem", secret, nil, nil, ""},
		{"and one that has signed", "key.pem", secret, []config.EvidenceKey{{File: at("next.pub"), KeyID: "old"}}, nil, ""},
		{"a lost key", "lost.pem", secret, nil, nil, "evidence.key: " + at("lost.pem") + ": open " + at("lost.pem") + ": no such file or directory: put it back, or, if it is lost, make another with openssl genpkey"},
		{"no key", "other.pem", secret, nil, nil, "make one with openssl genpkey -algorithm ed25519"},
		{"the public half", "key.pub", secret, nil, nil, "write the file of the private one"},
		{"a short secret", "key.pem", "0f", nil, nil, "evidence.idKey: not 64 hex digits: make it with openssl rand -hex 32"},
		{"the key itself", "key.pem", seed, nil, nil, "the key for ids is the secret of the signing key"},
		{"the same key twice", "key.pem", secret, []config.EvidenceKey{{File: at("key.pub")}}, nil, "name each key once"},
		{"two keys of one id", "key.pem", secret, []config.EvidenceKey{{File: at("key.pub"), KeyID: "old"}, {File: at("next.pub"), KeyID: "old"}}, nil, `two keys have the id "old"`},
		{"a lost key among others", "key.pem", secret, []config.EvidenceKey{{File: at("lost.pem")}}, nil, "evidence.keys[0]: "},
		{"it is revoked", "key.pem", secret, []config.EvidenceKey{{File: at("next.pub"), KeyID: "old"}}, []string{thumbprint(t, at("key.pub"))}, "is revoked, and is to sign"},
		{"one that has signed is revoked", "key.pem", secret, []config.EvidenceKey{{File: at("next.pub"), KeyID: "old"}}, []string{"old"}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := config.Default()
			c.Host.ID = "agent.example.com"
			c.Evidence.Issuer, c.Evidence.Key.File, c.Evidence.Keys = "https://agent.example.com", at(tt.key), tt.keys
			for _, id := range tt.revoked {
				c.Evidence.Revoked = append(c.Evidence.Revoked, config.RevokedKey{KeyID: id, At: config.Time{Time: time.Now()}})
			}
			o, err := evidenceOptions(c, &secrets{idKey: tt.idKey})
			if tt.want == "" {
				if err != nil || len(o.Keys) != 1+len(tt.keys) {
					t.Fatalf("evidenceOptions = %+v, %v", o, err)
				}
				if own := o.Keys[len(tt.keys)]; own.Private == nil || len(own.KeyID) != 43 {
					t.Errorf("%q signs", own.KeyID)
				}
				dir := t.TempDir()
				store, err := boltstore.Open(boltstore.Options{Dir: dir})
				if err != nil {
					t.Fatal(err)
				}
				defer store.Close()
				s := &sidecar{store: ownHosts{store}, metrics: prometheus.NewRegistry(), log: slog.New(slog.DiscardHandler)}
				if m, err := s.newMinter(t.Context(), o); err != nil || m == nil {
					t.Errorf("newMinter = %v, %v", m, err)
				}
				wantKillNoticed(t, dir)
				return
			}
			if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), tt.idKey) && len(tt.idKey) > 2 {
				t.Errorf("evidenceOptions = %v, want %s", err, tt.want)
			}
		})
	}
	for _, tt := range []struct{ name, text, want string }{
		{"keys", `{"keys":[{"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo","kid":"one","alg":"EdDSA","use":"sig"}]}`, ""},
		{"the private half", `{"keys":[{"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo","d":"AA","kid":"one"}]}`, "evidence.known[0]: "},
		{"no JSON", `keys`, "evidence.known[0]: "},
	} {
		file := filepath.Join(t.TempDir(), "peer.jwks")
		if err := os.WriteFile(file, []byte(tt.text), 0o600); err != nil {
			t.Fatal(err)
		}
		known, err := knownKeys([]config.KnownIssuer{{Issuer: "https://peer.example.com", File: file}})
		if tt.want != "" && (err == nil || !strings.HasPrefix(err.Error(), tt.want+file)) || tt.want == "" && (err != nil || len(known["https://peer.example.com"].Keys) != 1) {
			t.Errorf("%s: %v, %v", tt.name, known, err)
		}
	}
	if o, err := evidenceOptions(config.Default(), &secrets{}); o != nil || err != nil {
		t.Errorf("without an issuer: %v, %v", o, err)
	}
	if m, err := new(sidecar).newMinter(t.Context(), nil); m != nil || err != nil {
		t.Errorf("without an issuer: %v, %v", m, err)
	}
}

// wantKillNoticed wants the store in dir, as a kill would leave it now, to know that what
// was at work may have lost receipts, though it has none.
func wantKillNoticed(t *testing.T, dir string) {
	t.Helper()
	left := t.TempDir()
	if err := os.CopyFS(left, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	store, err := boltstore.Open(boltstore.Options{Dir: left})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	const workflow = "wf_0123456789-0123456789_"
	goesOn := evidence.Receipt{ID: peac.NewReceiptID(time.Now().Add(-time.Minute)), Workflow: workflow, Step: "step_0123456789-0123456789_", JWS: "a.b.c"}
	if err := store.Add(t.Context(), []evidence.Receipt{goesOn}, nil); err != nil {
		t.Fatal(err)
	}
	if whole, err := store.Whole(t.Context(), workflow); whole || err != nil {
		t.Errorf("after a kill before the first receipt: Whole = %v, %v", whole, err)
	}
}

// signingFile writes a configuration into dir, which has keys, that has evidence be made
// with the first of them, and more said of it.
func signingFile(t *testing.T, dir, name, more string) {
	t.Helper()
	at := func(name string) string { return filepath.Join(dir, name) }
	for name, text := range map[string]string{
		"secret": strings.Repeat("0f", 32),
		name: "host: {id: h, wellKnownUrl: https://h.example.com/.well-known/openwop}\n" +
			"ingress: {upstream: http://127.0.0.1:1, listen: 127.0.0.1:0}\negress: {listen: 127.0.0.1:0}\nadmin: {listen: 127.0.0.1:0}\n" +
			"ancestry: {store: {bolt: {dir: " + at("store of "+name) + "}}}\n" +
			"evidence: {issuer: https://h.example.com, key: {file: " + at("key.pem") + "}, idKey: {file: " + at("secret") + "}, " + more + "}\n",
	} {
		if err := os.WriteFile(at(name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// TestEvidenceOfAStore has evidence be exported when nothing runs any more that could be
// asked for it.
func TestEvidenceOfAStore(t *testing.T) {
	dir := keyFiles(t)
	file := filepath.Join(dir, "h.yaml")
	signingFile(t, dir, "h.yaml", "privacy: strict")
	export := func(args ...string) (int, string, string) {
		var stdout, stderr bytes.Buffer
		code := run(t.Context(), append([]string{"evidence", "export"}, args...), &stdout, &stderr)
		return code, stdout.String(), stderr.String()
	}
	refused := func(want string, args ...string) {
		t.Helper()
		if code, _, stderr := export(args...); code == 0 || !strings.Contains(stderr, want) {
			t.Errorf("export %q = %d, %s, want %s", args, code, stderr, want)
		}
	}
	refused("no such file", "run_1", "-config", file)
	c, err := config.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	o, err := evidenceOptions(c, &secrets{idKey: strings.Repeat("0f", 32)})
	if err != nil {
		t.Fatal(err)
	}
	store, err := openBolt(c, c.Ancestry.Store.Bolt.Dir, 0, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	o.Store = evidenceStore(store)
	m, err := evidence.New(*o)
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	link := ancestry.Link{Run: "run_1", Alias: "acme/run-1", Reason: "no-ancestry", Trace: ancestry.TraceID{1}, Operation: "tools/call", Time: began.UTC()}
	if err := store.Record(t.Context(), []ancestry.Link{link}); err != nil {
		t.Fatal(err)
	}
	r := m.Open("run_1", evidence.Origin{})
	in := m.Arrive(r, evidence.Place{}, began)
	call := m.Leave(r, began)
	m.For(call, "https://b.example.com")
	m.End(call, evidence.Observed{Direction: evidence.Egress, Protocol: evidence.MCP, Outcome: evidence.OK, Ended: began})
	m.End(in, evidence.Observed{Direction: evidence.Ingress, Protocol: evidence.MCP, Outcome: evidence.OK, Ended: began})
	stopped, stop := context.WithCancel(t.Context())
	stop()
	m.Run(stopped)
	refused("is in use: ask the wopproxy that has it, with -admin", "run_1", "-config", file)
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}

	for _, tt := range []struct {
		args     []string
		receipts int
	}{
		{[]string{"run_1"}, 2}, {[]string{"acme/run-1"}, 2},
		{[]string{"run_1", "-audience", "HTTPS://b.example.com:443/"}, 1},
	} {
		code, stdout, stderr := export(append(tt.args, "-config", file)...)
		b, err := peac.ParseBundle([]byte(stdout))
		if code != 0 || err != nil {
			t.Fatalf("export %q = %d, %v, %s", tt.args, code, err, stderr)
		}
		set, err := peac.ParseJWKS(b.JWKS)
		if report := b.Verify(set.Of("https://h.example.com"), time.Now()); err != nil || !report.OK() || report.Summary == nil || len(b.Receipts) != tt.receipts {
			t.Errorf("export %q: %+v, %v", tt.args, report, err)
		}
		code, stdout, stderr = export(append(tt.args, "-config", file, "-proof", peac.ReceiptRef(b.Receipts[0]))...)
		if b, err := peac.ParseBundle([]byte(stdout)); code != 0 || err != nil || len(b.Receipts) != 1 || len(b.Proofs) != 1 {
			t.Errorf("export %q of one: %d, %v, %s", tt.args, code, err, stderr)
		}
	}
	refused("nobody: no such receipt of such a run in ", "nobody", "-config", file)
	refused("audience is an origin", "run_1", "-config", file, "-audience", "b")
	refused("say one of -admin and -config", "run_1", "-config", file, "-admin", "http://127.0.0.1:1")
	if err := os.WriteFile(file, []byte("host: {id: h, wellKnownUrl: https://h.example.com/.well-known/openwop}\ningress: {upstream: http://127.0.0.1:1}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	refused("evidence.issuer is not in it", "run_1", "-config", file)
}

// TestEvidenceIsCheckedFirst has a start, and a check, find that keys can't be used
// before there is a store.
func TestEvidenceIsCheckedFirst(t *testing.T) {
	dir := keyFiles(t)
	at := func(name string) string { return filepath.Join(dir, name) }
	signingFile(t, dir, "good.yaml", "")
	signingFile(t, dir, "bad.yaml", "revoked: [{keyId: "+thumbprint(t, at("key.pub"))+", at: 2026-11-01T00:00:00Z}]")
	const want = "is revoked, and is to sign"
	for _, command := range []string{"check", "serve"} {
		var stdout, stderr bytes.Buffer
		if code := run(t.Context(), []string{command, "-config", at("bad.yaml")}, &stdout, &stderr); code != 1 || !strings.Contains(stderr.String(), want) {
			t.Errorf("%s = %d, %s, want %s", command, code, &stderr, want)
		}
	}
	if _, err := os.Stat(at("store of bad.yaml")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a store was made: %v", err)
	}
	var stdout, stderr bytes.Buffer
	if code := run(t.Context(), []string{"check", "-config", at("good.yaml")}, &stdout, &stderr); code != 0 {
		t.Errorf("check = %d, %s", code, &stderr)
	}
}
