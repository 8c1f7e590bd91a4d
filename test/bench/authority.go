package main

import (
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
	"net"
	"os"
	"slices"
	"time"
)

// authority signs for all that opens TLS, and for the upstream.
type authority struct {
	cert tls.Certificate
	pool *x509.CertPool
}

// newAuthority writes a new one to a file, certificate and key.
func newAuthority(file string) (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	t := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "bench", Organization: []string{"bench"}},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(0, 0, 2),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, key.Public(), key)
	if err != nil {
		return nil, err
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	text := slices.Concat(
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}),
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	if err := os.WriteFile(file, text, 0o600); err != nil {
		return nil, err
	}
	return loadAuthority(file)
}

func loadAuthority(file string) (*authority, error) {
	cert, err := tls.LoadX509KeyPair(file, file)
	if err != nil {
		return nil, fmt.Errorf("authority: %w", err)
	}
	a := &authority{cert: cert, pool: x509.NewCertPool()}
	a.pool.AddCert(cert.Leaf)
	return a, nil
}

// issue makes a certificate for the upstream.
func (a *authority) issue() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	t := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "upstream"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(0, 0, 1),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	signer, ok := a.cert.PrivateKey.(*ecdsa.PrivateKey)
	if !ok {
		return tls.Certificate{}, errors.New("authority: not an ECDSA key")
	}
	der, err := x509.CreateCertificate(rand.Reader, t, a.cert.Leaf, key.Public(), signer)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}
