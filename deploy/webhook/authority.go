package webhook

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"time"
)

// Lifetimes. What has less than a third of its life left is replaced. A new authority
// signs only when it has been known for a while, and an old one is known until it
// ends: API servers trust all of them at any moment.
const (
	authorityLifetime   = 2 * 365 * 24 * time.Hour
	certificateLifetime = 90 * 24 * time.Hour
	clockSkew           = time.Hour // certificates are valid from that long ago
	known               = time.Hour // after which an authority signs
)

// keys are what the replicas of a webhook share.
type keys struct {
	authorities []pair // oldest first
	serving     pair
}

// pair is a certificate and its key.
type pair struct {
	cert *x509.Certificate
	key  crypto.Signer
}

// renewed returns keys as they have to be at a time: k itself where that is so, and
// otherwise new ones, which reuse what they can.
func (k *keys) renewed(name string, now time.Time) (*keys, error) {
	next := &keys{serving: k.serving}
	for _, a := range k.authorities {
		if now.Before(a.cert.NotAfter) {
			next.authorities = append(next.authorities, a)
		}
	}
	if len(next.authorities) == 0 || aged(next.authorities[len(next.authorities)-1].cert, now) {
		a, err := issue(&x509.Certificate{
			Subject: pkix.Name{Organization: []string{"wopproxy"}, CommonName: "wopproxy webhook"}, NotAfter: now.Add(authorityLifetime),
			KeyUsage: x509.KeyUsageCertSign, BasicConstraintsValid: true, IsCA: true, MaxPathLenZero: true,
		}, pair{}, now)
		if err != nil {
			return nil, err
		}
		next.authorities = append(next.authorities, a)
	}
	signer := next.signer(now)
	if s := next.serving.cert; s == nil || aged(s, now) || s.VerifyHostname(name) != nil || s.CheckSignatureFrom(signer.cert) != nil {
		var err error
		next.serving, err = issue(&x509.Certificate{
			Subject: pkix.Name{Organization: []string{"wopproxy"}}, NotAfter: earlier(now.Add(certificateLifetime), signer.cert.NotAfter),
			KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, DNSNames: []string{name},
		}, signer, now)
		if err != nil {
			return nil, err
		}
	}
	if next.equal(k) {
		return k, nil
	}
	return next, nil
}

// signer is the newest authority that has been known for long enough, or the oldest
// if none has.
func (k *keys) signer(now time.Time) pair {
	for _, a := range slices.Backward(k.authorities) {
		if now.Sub(a.cert.NotBefore) >= clockSkew+known {
			return a
		}
	}
	return k.authorities[0]
}

// equal reports whether two are the same.
func (k *keys) equal(other *keys) bool {
	return bytes.Equal(k.bundle(), other.bundle()) && k.serving.cert.Equal(other.serving.cert)
}

// bundle is what API servers are to trust, as PEM.
func (k *keys) bundle() (text []byte) {
	for _, a := range k.authorities {
		text = append(text, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})...)
	}
	return text
}

// certificate is what the webhook shows.
func (k *keys) certificate() *tls.Certificate {
	return &tls.Certificate{Certificate: [][]byte{k.serving.cert.Raw}, PrivateKey: k.serving.key, Leaf: k.serving.cert}
}

// aged reports whether less than a third of a certificate's life is left.
func aged(c *x509.Certificate, now time.Time) bool {
	return c.NotAfter.Sub(now) < c.NotAfter.Sub(c.NotBefore)/3
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// issue completes a certificate and has by sign it, or its own key where by is empty.
func issue(tmpl *x509.Certificate, by pair, now time.Time) (pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return pair{}, fmt.Errorf("make a certificate: %w", err)
	}
	serial := make([]byte, 16)
	rand.Read(serial) // never fails
	serial[0] &= 0x7f // positive in 16 bytes
	tmpl.SerialNumber, tmpl.NotBefore = new(big.Int).SetBytes(serial), now.Add(-clockSkew)
	if by.cert == nil {
		by = pair{tmpl, key}
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, by.cert, key.Public(), by.key)
	if err != nil {
		return pair{}, fmt.Errorf("make a certificate: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	return pair{cert, key}, err
}

// Keys of the Secret. The first two are those of a Secret of the type
// kubernetes.io/tls.
const (
	secretCert        = "tls.crt"
	secretKey         = "tls.key"
	secretAuthorities = "authorities.pem" // certificate and key of each, oldest first
)

// encode returns the data of a Secret.
func (k *keys) encode() (map[string][]byte, error) {
	var all []byte
	for _, a := range k.authorities {
		cert, key, err := a.encode()
		if err != nil {
			return nil, err
		}
		all = append(append(all, cert...), key...)
	}
	cert, key, err := k.serving.encode()
	return map[string][]byte{secretCert: cert, secretKey: key, secretAuthorities: all}, err
}

func (p pair) encode() (cert, key []byte, err error) {
	der, err := x509.MarshalPKCS8PrivateKey(p.key)
	if err != nil {
		return nil, nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: p.cert.Raw}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

// decode reads the data of a Secret. What it holds besides ours stays unread; one that
// is empty, as it is made, has no keys.
func decode(data map[string][]byte) (*keys, error) {
	k := &keys{}
	rest := data[secretAuthorities]
	for len(bytes.TrimSpace(rest)) > 0 {
		var p pair
		var err error
		if p, rest, err = decodePair(rest); err != nil {
			return nil, fmt.Errorf("%s: %w", secretAuthorities, err)
		}
		k.authorities = append(k.authorities, p)
	}
	if len(data[secretCert]) == 0 {
		return k, nil
	}
	var err error
	k.serving, _, err = decodePair(slices.Concat(data[secretCert], data[secretKey]))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", secretCert, err)
	}
	return k, nil
}

// decodePair reads a certificate and the key behind it.
func decodePair(text []byte) (pair, []byte, error) {
	cert, rest := pem.Decode(text)
	if cert == nil {
		return pair{}, nil, errors.New("not PEM")
	}
	key, rest := pem.Decode(rest)
	if key == nil {
		return pair{}, nil, errors.New("a certificate without a key")
	}
	both, err := tls.X509KeyPair(pem.EncodeToMemory(cert), pem.EncodeToMemory(key))
	if err != nil {
		return pair{}, nil, err
	}
	signer, ok := both.PrivateKey.(crypto.Signer)
	if !ok {
		return pair{}, nil, errors.New("a key that can't sign")
	}
	return pair{both.Leaf, signer}, rest, nil
}
