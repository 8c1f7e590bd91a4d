package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/wopproxy/wopproxy/config"
)

// caFiles writes an authority that ends at that time, and returns the paths of
// its certificate and key.
func caFiles(t *testing.T, ends time.Time) (cert, key string) {
	t.Helper()
	signer, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "an authority"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: ends,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, signer.Public(), signer)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(signer)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cert, key = filepath.Join(dir, "ca.pem"), filepath.Join(dir, "ca-key.pem")
	for path, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "PRIVATE KEY", Bytes: keyDER}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key
}

// TestTrust: files that can't serve interception keep the program from starting,
// and the error says which, and why.
func TestTrust(t *testing.T) {
	cert, key := caFiles(t, time.Now().Add(time.Hour))
	oldCert, oldKey := caFiles(t, time.Now().Add(-time.Hour))
	empty := filepath.Join(t.TempDir(), "empty.pem")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	absent := filepath.Join(t.TempDir(), "absent.pem")
	for _, tt := range []struct {
		name string
		e    config.Egress
		says []string // in the error; none: there is no error
	}{
		{"a pair", config.Egress{CA: config.CA{Cert: cert, Key: key}}, nil},
		{"nothing", config.Egress{}, nil},
		{"another's key", config.Egress{CA: config.CA{Cert: cert, Key: oldKey}}, []string{"egress.ca: ", cert, oldKey, "private key does not match public key"}},
		{"expired", config.Egress{CA: config.CA{Cert: oldCert, Key: oldKey}}, []string{"egress.ca: ", oldCert, "has expired"}},
		{"empty", config.Egress{CA: config.CA{Cert: empty, Key: key}}, []string{"egress.ca: ", empty, "failed to find any PEM data"}},
		{"no files", config.Egress{CA: config.CA{Cert: absent, Key: absent + "2"}}, []string{"egress.ca: ", absent + ":", absent + "2:", "no such file"}},
		{"made, and another's key", config.Egress{CA: config.CA{Cert: cert, Key: oldKey, Create: true}}, []string{"egress.ca: ", "does not match", "remove " + cert}},
		{"made, and no key", config.Egress{CA: config.CA{Cert: cert, Key: absent, Create: true}}, []string{"egress.ca: ", absent, "no such file", "remove " + cert}},
		{"made, and half a key", config.Egress{CA: config.CA{Cert: cert, Key: empty, Create: true}}, []string{"egress.ca: ", empty, "remove " + cert}},
		{"made, and expired", config.Egress{CA: config.CA{Cert: oldCert, Key: oldKey, Create: true}}, []string{"egress.ca: ", "has expired", "remove " + oldCert}},
		{"roots", config.Egress{Roots: cert}, nil},
		{"no roots", config.Egress{Roots: empty}, []string{"egress.roots: ", empty, "holds no PEM certificate"}},
		{"no file of roots", config.Egress{Roots: absent}, []string{"egress.roots: ", absent, "no such file"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := newTrust(&config.Config{Host: config.Host{ID: "h"}, Egress: tt.e}, func(string) (string, bool) { return "", false })
			if (err == nil) != (tt.says == nil) {
				t.Fatalf("newTrust: %v, want %q", err, tt.says)
			}
			for _, part := range tt.says {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("newTrust: %v, want %q in it", err, part)
				}
			}
			if err == nil && ((got.ca != nil) != (tt.e.CA.Cert != "") || (got.roots != nil) != (tt.e.Roots != "")) {
				t.Errorf("newTrust = %+v, want what was given", got)
			}
		})
	}
}

// TestPolicyOfInterception: a wildcard names what is below it, at its port.
func TestPolicyOfInterception(t *testing.T) {
	if p := policyOf(t, "", ""); p.Intercept != nil || p.OriginateTLS != nil {
		t.Error("by default something is intercepted or originated, want nothing")
	}
	p := policyOf(t, "", `egress: {intercept: ["*.example.com:443", "[2001:db8::1]", "192.0.2.1"], originateTLS: ["*.example.org"], ca: {bundle: b.pem}}`)
	for target, want := range map[string]bool{
		"a.example.com:443": true, "A.B.Example.com:443": true, "example.com:443": false, "a.example.com:8443": false, "badexample.com:443": false,
		"a.example.com.example.org:443": false, "192.0.2.1:443": true, "192.0.2.1:8443": true, "192.0.2.11:443": false, "[2001:DB8:0::1]:443": true,
	} {
		if got := p.Intercept(target); got != want {
			t.Errorf("Intercept(%q) = %v, want %v", target, got, want)
		}
	}
	if !p.OriginateTLS("a.example.org:80") || p.OriginateTLS("example.org:80") {
		t.Error("OriginateTLS does not follow its pattern")
	}
}
