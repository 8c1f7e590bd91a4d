package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/wopproxy/wopproxy/carry"
	"github.com/wopproxy/wopproxy/config"
)

// What a host finds in the folder that it shares with its proxy.
const (
	shimsDir       = "carry"     // of Node and Python
	authorityFile  = "ca.pem"    // the authority alone
	trustStoreFile = "roots.jks" // the bundle, for Java
)

// shareWithHost writes what a host reads into dir: the carry shims and, where TLS is
// intercepted, the roots beside the bundle, which is there already.
func shareWithHost(dir string, c *config.Config, t trust) error {
	if err := carry.Write(filepath.Join(dir, shimsDir)); err != nil {
		return fmt.Errorf("write the shims: %w", err)
	}
	if len(c.Egress.Intercept) == 0 || c.Egress.CA.Bundle == "" {
		return nil
	}
	bundle, err := os.ReadFile(c.Egress.CA.Bundle)
	if err != nil {
		return fmt.Errorf("write the roots for the host: %w", err)
	}
	store, err := carry.TrustStore(bundle)
	if err != nil {
		return fmt.Errorf("write the roots for the host: %w", err)
	}
	for name, text := range map[string][]byte{authorityFile: t.ca.PEM(), trustStoreFile: store} {
		if err := writeFile(filepath.Join(dir, name), text, 0o644); err != nil {
			return fmt.Errorf("write the roots for the host: %w", err)
		}
	}
	return nil
}
