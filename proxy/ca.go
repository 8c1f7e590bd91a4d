package proxy

import (
	"container/list"
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
	"net"
	"sync"
	"time"
)

// CA is a certificate authority for the host behind this proxy alone. It signs
// the certificates that the host is shown in place of those of the destinations
// whose TLS is intercepted.
type CA struct {
	cert *x509.Certificate
	key  crypto.Signer
	leaf *ecdsa.PrivateKey // of every certificate: making one costs more than signing

	mu    sync.Mutex
	names map[string]*list.Element // of *issued
	used  *list.List               // most recently used first
}

// issued is one certificate in the cache.
type issued struct {
	name string
	cert *tls.Certificate
}

// Lifetimes. A certificate is valid from an hour ago, for hosts whose clock is
// behind, and for less time than any client refuses.
const (
	caLifetime   = 5 * 365 * 24 * time.Hour
	leafLifetime = 72 * time.Hour
	clockSkew    = time.Hour
	maxIssued    = 1000
)

// NewCA makes an authority that lives as long as the process. Its key is never
// written anywhere.
func NewCA(hostID string) (*CA, error) {
	der, key, err := generateCA(hostID)
	if err != nil {
		return nil, fmt.Errorf("make CA: %w", err)
	}
	return newCA(der, key)
}

// GenerateCA makes an authority for [ParseCA] to take, as PEM: for hosts that are
// to trust it after a restart.
func GenerateCA(hostID string) (certPEM, keyPEM []byte, err error) {
	der, key, err := generateCA(hostID)
	if err != nil {
		return nil, nil, fmt.Errorf("make CA: %w", err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, nil, fmt.Errorf("make CA: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), nil
}

func generateCA(hostID string) ([]byte, *ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	now := time.Now()
	tmpl := &x509.Certificate{
		SerialNumber:          serial(),
		Subject:               pkix.Name{Organization: []string{"wopproxy"}, CommonName: "wopproxy CA of " + hostID},
		NotBefore:             now.Add(-clockSkew),
		NotAfter:              now.Add(caLifetime),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	return der, key, err
}

// ParseCA takes an authority from a certificate and its key, both PEM. The
// certificate must be valid now: hosts would refuse all that it signs.
func ParseCA(certPEM, keyPEM []byte) (*CA, error) {
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return nil, fmt.Errorf("read CA: %w", err)
	}
	key, ok := pair.PrivateKey.(crypto.Signer)
	if !ok {
		return nil, errors.New("read CA: the key can't sign")
	}
	return newCA(pair.Certificate[0], key)
}

func newCA(der []byte, key crypto.Signer) (*CA, error) {
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("read CA: %w", err)
	}
	if !cert.IsCA || cert.KeyUsage != 0 && cert.KeyUsage&x509.KeyUsageCertSign == 0 {
		return nil, errors.New("read CA: the certificate is not one of an authority")
	}
	switch now := time.Now(); {
	case now.After(cert.NotAfter):
		return nil, fmt.Errorf("read CA: the certificate has expired, on %s", cert.NotAfter.Format(time.RFC3339))
	case now.Before(cert.NotBefore):
		return nil, fmt.Errorf("read CA: the certificate is not valid yet, but from %s", cert.NotBefore.Format(time.RFC3339))
	}
	leaf, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("read CA: %w", err)
	}
	return &CA{cert: cert, key: key, leaf: leaf, names: map[string]*list.Element{}, used: list.New()}, nil
}

// PEM returns the authority's certificate, for the host to trust.
func (ca *CA) PEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.cert.Raw})
}

// certificate returns a certificate for a DNS name or an IP address, from the
// cache as long as it will stay valid for an hour.
func (ca *CA) certificate(name string) (*tls.Certificate, error) {
	ca.mu.Lock()
	defer ca.mu.Unlock()
	if e := ca.names[name]; e != nil {
		if c := e.Value.(*issued).cert; time.Until(c.Leaf.NotAfter) > clockSkew {
			ca.used.MoveToFront(e)
			return c, nil
		}
		ca.forgetLocked(e)
	}
	cert, err := ca.sign(name)
	if err != nil {
		return nil, err
	}
	ca.names[name] = ca.used.PushFront(&issued{name, cert})
	if ca.used.Len() > maxIssued {
		ca.forgetLocked(ca.used.Back())
	}
	return cert, nil
}

func (ca *CA) forgetLocked(e *list.Element) {
	delete(ca.names, e.Value.(*issued).name)
	ca.used.Remove(e)
}

func (ca *CA) sign(name string) (*tls.Certificate, error) {
	now := time.Now()
	tmpl := &x509.Certificate{
		SerialNumber: serial(),
		Subject:      pkix.Name{Organization: []string{"wopproxy"}},
		NotBefore:    now.Add(-clockSkew),
		NotAfter:     earlier(now.Add(leafLifetime), ca.cert.NotAfter),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	if ip := net.ParseIP(name); ip != nil {
		tmpl.IPAddresses = []net.IP{ip}
	} else {
		tmpl.DNSNames = []string{name}
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, ca.cert, ca.leaf.Public(), ca.key)
	if err != nil {
		return nil, fmt.Errorf("certificate for %s: %w", name, err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("certificate for %s: %w", name, err)
	}
	return &tls.Certificate{Certificate: [][]byte{der, ca.cert.Raw}, PrivateKey: ca.leaf, Leaf: leaf}, nil
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

func serial() *big.Int {
	b := make([]byte, 16)
	rand.Read(b) // never fails
	b[0] &= 0x7f // positive in 16 bytes
	return new(big.Int).SetBytes(b)
}
