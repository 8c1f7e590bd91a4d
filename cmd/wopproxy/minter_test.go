package main

import (
	"crypto/ed25519"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/wopproxy/wopproxy/ancestry/boltstore"
	"github.com/wopproxy/wopproxy/config"
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
		want             string // of the error; empty: it starts
	}{
		{"a key", "key.pem", secret, nil, ""},
		{"and one that has signed", "key.pem", secret, []config.EvidenceKey{{File: at("next.pub"), KeyID: "old"}}, ""},
		{"a lost key", "lost.pem", secret, nil, "evidence.key: " + at("lost.pem") + ": open " + at("lost.pem")},
		{"no key", "other.pem", secret, nil, "make one with openssl genpkey -algorithm ed25519"},
		{"the public half", "key.pub", secret, nil, "write the file of the private one"},
		{"a short secret", "key.pem", "0f", nil, "evidence.idKey: not 64 hex digits: make it with openssl rand -hex 32"},
		{"the key itself", "key.pem", seed, nil, "evidence.idKey: it is the secret of a signing key"},
		{"the same key twice", "key.pem", secret, []config.EvidenceKey{{File: at("key.pub")}}, "name each key once"},
		{"two keys of one id", "key.pem", secret, []config.EvidenceKey{{File: at("key.pub"), KeyID: "old"}, {File: at("next.pub"), KeyID: "old"}}, `two keys have the id "old"`},
		{"a lost key among others", "key.pem", secret, []config.EvidenceKey{{File: at("lost.pem")}}, "evidence.keys[0]: "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			store, err := boltstore.Open(boltstore.Options{Dir: t.TempDir()})
			if err != nil {
				t.Fatal(err)
			}
			defer store.Close()
			c := config.Default()
			c.Host.ID = "agent.example.com"
			c.Evidence.Issuer, c.Evidence.Key.File, c.Evidence.Keys = "https://agent.example.com", at(tt.key), tt.keys
			s := &sidecar{store: ownHosts{store}, metrics: prometheus.NewRegistry(), log: slog.New(slog.DiscardHandler)}
			m, err := s.newMinter(c, &secrets{idKey: tt.idKey})
			if tt.want == "" {
				if err != nil || m == nil || len(m.Ring()) != 1+len(tt.keys) {
					t.Fatalf("newMinter = %v, %v", m, err)
				}
				signing, err := m.Ring().Signing(m.Ring()[len(tt.keys)].Sign)
				if err != nil || signing.KeyID != m.Ring()[len(tt.keys)].KeyID || len(signing.KeyID) != 43 {
					t.Errorf("%q signs, %v", signing.KeyID, err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), tt.idKey) && len(tt.idKey) > 2 {
				t.Errorf("newMinter = %v, want %s", err, tt.want)
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
	s := &sidecar{}
	if m, err := s.newMinter(config.Default(), &secrets{}); m != nil || err != nil {
		t.Errorf("without an issuer: %v, %v", m, err)
	}
}
