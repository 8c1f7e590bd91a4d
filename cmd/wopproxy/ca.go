package main

import (
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/wopproxy/wopproxy/config"
	"github.com/wopproxy/wopproxy/proxy"
)

// trust is what interception needs: an authority of our own, and whom the
// destinations' certificates must lead to.
type trust struct {
	ca    *proxy.CA      // nil: nothing is intercepted
	roots *x509.CertPool // nil: the system's
}

// newTrust reads the files of the configuration, makes an authority if none is
// given, and writes the bundle that the host trusts.
func newTrust(c *config.Config, env lookupEnv) (t trust, err error) {
	e := c.Egress
	if e.Roots != "" {
		if t.roots, err = x509.SystemCertPool(); err != nil {
			return t, fmt.Errorf("egress.roots: %w", err)
		}
		text, err := os.ReadFile(e.Roots)
		if err != nil {
			return t, fmt.Errorf("egress.roots: %w", err)
		}
		if !t.roots.AppendCertsFromPEM(text) {
			return t, fmt.Errorf("egress.roots: %s holds no PEM certificate", e.Roots)
		}
	}
	switch {
	case e.CA.Cert != "":
		if err := createCA(c); err != nil {
			return t, fmt.Errorf("egress.ca.create: %w", err)
		}
		cert, certErr := os.ReadFile(e.CA.Cert)
		key, keyErr := os.ReadFile(e.CA.Key)
		if err := errors.Join(certErr, keyErr); err != nil {
			return t, fmt.Errorf("egress.ca: %w%s", err, remedy(e.CA))
		}
		if t.ca, err = proxy.ParseCA(cert, key); err != nil {
			return t, fmt.Errorf("egress.ca: %s with %s: %w%s", e.CA.Cert, e.CA.Key, err, remedy(e.CA))
		}
	case e.CA.Bundle != "":
		if t.ca, err = proxy.NewCA(c.Host.ID); err != nil {
			return t, fmt.Errorf("egress.ca: %w", err)
		}
	}
	if e.CA.Bundle == "" {
		return t, nil
	}
	return t, writeBundle(e.CA.Bundle, t.ca.PEM(), env)
}

// createCA makes the authority of the configuration, if it asks for that and there
// is none. The key comes first and the certificate by a rename: what is half done
// is done anew at the next start.
func createCA(c *config.Config) error {
	files := c.Egress.CA
	if !files.Create {
		return nil
	}
	if _, err := os.Stat(files.Cert); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	cert, key, err := proxy.GenerateCA(c.Host.ID)
	if err != nil {
		return err
	}
	if err := writeFile(files.Key, key, 0o600); err != nil {
		return err // and no certificate that has no key
	}
	return writeFile(files.Cert, cert, 0o644)
}

// remedy says what to do about a certificate that is there with no key that fits it,
// or is of no use any more.
func remedy(files config.CA) string {
	if !files.Create {
		return ""
	}
	return fmt.Sprintf("; remove %s, and a new authority is made at the next start, which the host has to trust anew", files.Cert)
}

// writeFile writes a file by a rename, so that nobody ever reads half of it. It makes
// the folder.
func writeFile(name string, text []byte, mode fs.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(name), ".new-")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name()) // does nothing after the rename
	_, err = tmp.Write(text)
	if err = errors.Join(err, tmp.Chmod(mode), tmp.Close()); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), name)
}

// systemRoots is where systems keep their bundle.
var systemRoots = []string{
	"/etc/ssl/certs/ca-certificates.crt", // Debian, Ubuntu, Alpine, and our own image
	"/etc/pki/tls/certs/ca-bundle.crt",   // Fedora, RHEL
	"/etc/ssl/ca-bundle.pem",             // SUSE
	"/etc/ssl/cert.pem",                  // macOS, BSD
}

// writeBundle writes the system's roots and ours.
func writeBundle(file string, ours []byte, env lookupEnv) error {
	var system []byte
	paths := systemRoots
	if given, ok := env("SSL_CERT_FILE"); ok && given != file {
		paths = []string{given}
	}
	for _, path := range paths {
		if text, err := os.ReadFile(path); err == nil {
			system = text
			break
		}
	}
	if err := writeFile(file, append(append(system, '\n'), ours...), 0o644); err != nil {
		return fmt.Errorf("egress.ca.bundle: %w", err)
	}
	return nil
}
