package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/wopproxy/wopproxy/ancestry"
	"github.com/wopproxy/wopproxy/ancestry/peac"
)

const evidenceManual = `evidence export RUN [-admin URL | -config FILE] [-audience ORIGIN] [-proof REF] > FILE
       wopproxy evidence verify FILE|URL [-jwks FILE|URL] [-issuer ISSUER|FILE|URL] [-whole]

export asks a wopproxy, on its admin listener, for all that it has signed of the
workflow of RUN, and prints it as one bundle, which verify reads. With -proof it is
one receipt, and the proof that it is one of them. With -audience it is what was
signed for ORIGIN alone, of the calls to it, under ids that nobody else knows; only
evidence.privacy: strict makes that. With -config or -config-env it is read from
the store that the configuration names, of a wopproxy that has stopped.

verify checks a bundle of evidence (PEAC, wire format 0.2): that the issuer signed each
receipt, that the steps make one workflow without a gap or a cycle, and that the
summary commits to them all. Prints the steps as a tree, each with its verdict.
- reads the bundle from stdin.

The keys of the issuer come from -jwks. Without it, those that the bundle brings
are taken: then it is shown that one key signed all of it, and not whose that is.
-issuer is who the evidence has to be of: an https:// origin or a DID, or the
document that it publishes at /.well-known/peac-issuer.json. Of the document, a key
that is revoked is refused; without it, none is known to be. Nothing else is fetched.

Only a summary says that no receipt was taken out of a bundle, and there is none while
calls go on or where receipts were lost. With -whole it has to be there, and to hold.

Exits 0 if all of it holds, 1 if anything fails, or the bundle can't be had.

`

// errEvidence makes the exit status 1; what fails is on stdout already.
var errEvidence = errors.New("the evidence does not hold")

func evidenceCommand(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	f := newFlags("evidence", evidenceManual, stderr)
	jwks := f.String("jwks", "", "the keys of the issuer, `FILE or URL`")
	issuer := f.String("issuer", "", "the `issuer` that the evidence has to be of, or its document, FILE or URL")
	admin := f.String("admin", "http://127.0.0.1:9090", "export: `URL` of the wopproxy's admin listener")
	audience := f.String("audience", "", "export: the `origin` that the receipts are to be for, such as https://agent.example.com")
	whole := f.Bool("whole", false, "verify: fail without a summary, which alone shows that nothing is missing")
	proof := f.String("proof", "", "export: the `reference` of the one receipt that is wanted")
	from := sourceFlags(f)
	timeout := f.Duration("timeout", 30*time.Second, "time for all that is fetched")
	operands, err := parse(f, args, 2)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, *timeout)
	defer cancel()
	switch operands[0] {
	case "export":
		e := export{run: operands[1], audience: *audience, proof: *proof, admin: *admin, config: from}
		f.Visit(func(f *flag.Flag) {
			e.stopped = e.stopped || f.Name == "config" || f.Name == "config-env"
			e.asked = e.asked || f.Name == "admin"
		})
		if e.stopped && e.asked {
			fmt.Fprintln(stderr, "wopproxy evidence: say one of -admin and -config: who runs is asked, of who has stopped the store is read")
			return errUsage
		}
		return e.print(ctx, stdout)
	case "verify":
	default:
		fmt.Fprintf(stderr, "wopproxy evidence: %q is nothing that can be done, want export or verify\n", operands[0])
		f.Usage()
		return errUsage
	}
	b, err := readBundle(ctx, operands[1])
	if err != nil {
		return err
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
	if *whole && report.Summary == nil {
		fmt.Fprintln(stderr, "-whole: there is no summary, so receipts may be missing")
		return errEvidence
	}
	return nil
}

// export is what is wanted of the evidence of a run, and where it is.
type export struct {
	run, audience, proof string
	admin                string // URL of the wopproxy that has it
	config               func(lookupEnv) (configSource, error)
	asked, stopped       bool // the flags name the one, or the other
}

// print prints it as one bundle.
func (e export) print(ctx context.Context, w io.Writer) error {
	id, err := ancestry.ParseRunID(e.run)
	if err != nil {
		return err
	}
	read := e.ask
	if e.stopped {
		read = e.read
	}
	b, err := read(ctx, id)
	if err != nil {
		return err
	}
	return printJSON(w, b)
}

// ask asks the wopproxy that runs.
func (e export) ask(ctx context.Context, run ancestry.RunID) (peac.Bundle, error) {
	u, err := url.Parse(e.admin)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" {
		return peac.Bundle{}, fmt.Errorf("-admin: %q is no http or https URL", e.admin)
	}
	at := strings.TrimSuffix(u.String(), "/") + "/ancestry/v1/runs/" + url.PathEscape(string(run)) + "/evidence"
	query := url.Values{}
	for name, value := range map[string]string{"proof": e.proof, "audience": e.audience} {
		if value != "" {
			query.Set(name, value)
		}
	}
	if len(query) > 0 {
		at += "?" + query.Encode()
	}
	return readBundle(ctx, at)
}

// read reads the store of one that has stopped.
func (e export) read(ctx context.Context, run ancestry.RunID) (b peac.Bundle, err error) {
	q := ancestry.EvidenceQuery{Runs: []ancestry.RunID{run}, Limit: maxBundled, Proof: e.proof}
	if e.audience != "" {
		if q.Audience, err = ancestry.ParseOrigin(e.audience); err != nil {
			return b, err
		}
	}
	src, err := e.config(os.LookupEnv)
	if err != nil {
		return b, err
	}
	c, err := src.load()
	if err != nil {
		return b, err
	}
	if b, err = storedEvidence(ctx, c, q); err == nil && b.Next != "" {
		err = fmt.Errorf("%s: more than %d receipts, which a bundle can't have", run, maxBundled)
	}
	return b, err
}

// readBundle reads a bundle from a file or URL; from a URL, all pages of it. While
// the run goes on, a page may come that the ones before don't fit.
func readBundle(ctx context.Context, name string) (peac.Bundle, error) {
	for range 3 {
		b, pages, err := readPages(ctx, name)
		if err != nil || pages == 1 || b.Commitment == nil {
			return b, err
		}
		refs := make([]string, len(b.Receipts))
		for i, jws := range b.Receipts {
			refs[i] = peac.ReceiptRef(jws)
		}
		if c, err := peac.Commit(refs); err == nil && c == *b.Commitment {
			return b, nil
		}
	}
	return peac.Bundle{}, fmt.Errorf("%s: more was signed while it was read: try again when the run has come to rest", name)
}

// maxBundled is how many receipts a bundle may have.
const maxBundled = 10_000

func readPages(ctx context.Context, name string) (whole peac.Bundle, pages int, err error) {
	u, err := url.Parse(name)
	remote := err == nil && (u.Scheme == "http" || u.Scheme == "https")
	for at := name; ; pages++ {
		raw, err := readAll(ctx, at, peac.MaxBundle)
		if err != nil {
			return whole, pages, err
		}
		b, err := peac.ParseBundle(raw)
		if err != nil {
			return whole, pages, fmt.Errorf("%s: %w", at, err)
		}
		if pages > 0 && b.Issuer != whole.Issuer || b.Next != "" && b.Next == whole.Next {
			return whole, pages, fmt.Errorf("%s: the page does not follow the one before", at)
		}
		whole = whole.Join(b)
		if len(whole.Receipts) > maxBundled {
			return whole, pages, fmt.Errorf("%s: more than %d receipts, which a bundle can't have: read the pages one by one", name, maxBundled)
		}
		if b.Next == "" || !remote {
			return whole, pages + 1, nil
		}
		q := u.Query()
		q.Set("after", b.Next)
		u.RawQuery = q.Encode()
		at = u.String()
	}
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
