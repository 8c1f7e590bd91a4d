package main

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/wopproxy/wopproxy/ancestry/peac"
	"github.com/wopproxy/wopproxy/evidence"
)

// demoKeys makes the keys of a site in dir, as an operator would with openssl, and
// returns the part of its configuration that has it sign.
func demoKeys(hostID, dir string) (string, error) {
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		return "", err
	}
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return "", err
	}
	var secret [32]byte
	_, _ = rand.Read(secret[:]) // never fails
	files := [2]string{filepath.Join(dir, hostID+".pem"), filepath.Join(dir, hostID+".secret")}
	for i, text := range [][]byte{pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw}), []byte(hex.EncodeToString(secret[:]))} {
		if err := os.WriteFile(files[i], text, 0o600); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("evidence: { issuer: \"https://%s\", key: { file: %q }, idKey: { file: %q } }\n", hostID, files[0], files[1]), nil
}

// showEvidence prints what each hop has signed of a question, verified with the
// keys that it publishes, and sees that each goes on where the one before ended.
func (d *demo) showEvidence(ctx context.Context, w io.Writer, question string) error {
	fmt.Fprint(w, "\nwhich each hop has signed (PEAC), verified with the keys that it publishes:\n")
	var before []string // the steps of the hop before
	for _, s := range d.sites {
		report, err := s.evidenceOf(ctx, question)
		if err != nil {
			return err
		}
		var steps, parents []string
		for _, step := range report.Steps {
			steps, parents = append(steps, step.ID), append(parents, step.Parents...)
		}
		if before != nil && !slices.ContainsFunc(parents, func(p string) bool { return slices.Contains(before, p) }) {
			return fmt.Errorf("%s: no step of it follows one of the hop before", s.hostID)
		}
		before = steps
		fmt.Fprintf(w, "\nhttps://%s\n", s.hostID)
		if err := report.WriteTree(w); err != nil {
			return err
		}
	}
	return nil
}

// evidenceOf verifies what a site has signed of a question, once that is all of it and
// says so: receipts are signed when nobody waits for them.
func (s *site) evidenceOf(ctx context.Context, question string) (report peac.Report, err error) {
	own, ok := s.host.recall(question)
	if !ok {
		return report, fmt.Errorf("%s never saw %s", s.hostID, question)
	}
	keys, err := s.published(ctx)
	if err != nil {
		return report, err
	}
	ctx, cancel := context.WithTimeout(ctx, demoTimeout)
	defer cancel()
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	at := "http://" + s.sidecar.admin.Addr().String() + "/ancestry/v1/runs/" + url.PathEscape(string(own.run)) + "/evidence"
	for {
		b, err := readBundle(ctx, at)
		if err == nil {
			if report = b.Verify(keys, time.Now()); report.OK() && report.Summary != nil && report.Summary.Evidence.Status != peac.InProgress {
				return report, nil
			}
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			var text strings.Builder
			_ = report.WriteTree(&text) // never fails
			return report, fmt.Errorf("%s has not signed all of %s: %w\n%s", s.hostID, own.run, errors.Join(err, ctx.Err()), &text)
		}
	}
}

// published reads the keys of a site as any verifier would, but for the name: that
// of a demo is nowhere to be found.
func (s *site) published(ctx context.Context) (peac.KeySource, error) {
	issuer := "https://" + s.hostID
	about, err := readAll(ctx, s.base()+evidence.IssuerPath, 1<<20)
	if err != nil {
		return nil, err
	}
	document, err := peac.ParseIssuer(about, issuer)
	if err != nil {
		return nil, err
	}
	raw, err := readAll(ctx, s.base()+strings.TrimPrefix(document.JWKSURI, issuer), 1<<20)
	if err != nil {
		return nil, err
	}
	set, err := peac.ParseJWKS(bytes.TrimSpace(raw))
	if err != nil {
		return nil, err
	}
	return document.Keys(set), nil
}
