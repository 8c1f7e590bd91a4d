package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/wopproxy/wopproxy/ancestry/peac"
)

const evidenceManual = `evidence verify FILE|URL

Checks a bundle of evidence (PEAC, wire format 0.2): that the issuer signed each
receipt, that the steps make one workflow without a gap or a cycle, and that the
summary commits to them all. Prints the steps as a tree, each with its verdict.
- reads the bundle from stdin.

The keys of the issuer come from -jwks. Without it, those that the bundle brings
are taken: then it is shown that one key signed all of it, and not whose that is.
-issuer is who the evidence has to be of: an https:// origin or a DID, or the
document that it publishes at /.well-known/peac-issuer.json. Of the document, a key
that is revoked is refused; without it, none is known to be. Nothing else is fetched.

Exits 0 if all of it holds, 1 if anything fails, or the bundle can't be read.

`

// errEvidence makes the exit status 1; what fails is on stdout already.
var errEvidence = errors.New("the evidence does not hold")

func evidenceCommand(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	f := newFlags("evidence", evidenceManual, stderr)
	jwks := f.String("jwks", "", "the keys of the issuer, `FILE or URL`")
	issuer := f.String("issuer", "", "the `issuer` that the evidence has to be of, or its document, FILE or URL")
	timeout := f.Duration("timeout", 30*time.Second, "time for all that is fetched")
	operands, err := parse(f, args, 2)
	if err != nil {
		return err
	}
	if operands[0] != "verify" {
		fmt.Fprintf(stderr, "wopproxy evidence: %q is nothing that can be done, want verify\n", operands[0])
		f.Usage()
		return errUsage
	}
	ctx, cancel := context.WithTimeout(ctx, *timeout)
	defer cancel()
	raw, err := readAll(ctx, operands[1], peac.MaxBundle)
	if err != nil {
		return err
	}
	b, err := peac.ParseBundle(raw)
	if err != nil {
		return fmt.Errorf("%s: %w", operands[1], err)
	}
	set, err := issuerKeys(ctx, *jwks, b)
	if err != nil {
		return err
	}
	keys, err := issuedBy(ctx, *issuer, b.Issuer, set)
	if err != nil {
		return fmt.Errorf("%s: %w", operands[1], err)
	}
	if *jwks == "" {
		fmt.Fprintf(stderr, "keys: those in the bundle; that they are of %s is not shown\n", b.Issuer)
	}
	report := b.Verify(keys, time.Now())
	fmt.Fprintln(stdout, b.Issuer)
	if err := report.WriteTree(stdout); err != nil {
		return err
	}
	if !report.OK() {
		return errEvidence
	}
	return nil
}

// issuerKeys reads the keys from where the user has them, or else from b.
func issuerKeys(ctx context.Context, name string, b peac.Bundle) (peac.JWKS, error) {
	raw := []byte(b.JWKS)
	switch {
	case name != "":
		var err error
		if raw, err = readAll(ctx, name, 1<<20); err != nil {
			return peac.JWKS{}, fmt.Errorf("-jwks: %w", err)
		}
	case raw == nil:
		return peac.JWKS{}, errors.New("the bundle brings no keys: name the issuer's with -jwks")
	}
	set, err := peac.ParseJWKS(raw)
	if err != nil {
		return set, fmt.Errorf("the keys of %s: %w", b.Issuer, err)
	}
	return set, nil
}

// issuedBy returns the keys of who issued some evidence, if that is who the user
// says: by name, or by where the document of that name is.
func issuedBy(ctx context.Context, want, issuer string, set peac.JWKS) (peac.KeySource, error) {
	switch {
	case want == "" || want == issuer:
		return set.Of(issuer), nil
	case peac.IsIssuer(want):
		return nil, fmt.Errorf("the evidence is of %s, not of %s", issuer, want)
	}
	raw, err := readAll(ctx, want, 1<<20)
	if err != nil {
		return nil, fmt.Errorf("-issuer: %w", err)
	}
	document, err := peac.ParseIssuer(raw, issuer)
	if err != nil {
		return nil, fmt.Errorf("-issuer: %s: %w", want, err)
	}
	return document.Keys(set), nil
}

// readAll reads a file or URL of at most limit bytes, and one more where it has
// more.
func readAll(ctx context.Context, name string, limit int64) ([]byte, error) {
	r, err := source{}.open(ctx, name)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	raw, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	return raw, nil
}
