package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/wopproxy/wopproxy/audit"
)

const auditManual = `audit FILE|URL

Checks the event log of OpenWOP runs against the rules of the multi-agent
execution model (RFC 0037, RFC 0039) and prints what breaks one.

The log is a list of events, a poll, a debug bundle, one event a line, or a
recorded event stream; - reads it from stdin. What can't be used of it (no JSON,
cut off, no event, or one with the id or the place of another) is told on stderr
with its line, and the rest is checked. Of a log with gaps only what it shows is
judged, so read with streamMode=debug or by polling. What the host advertises
comes from -discovery or, for a URL, from the same origin; if neither is to be
had, no level is held against the host.

Exits 0 if nothing was found, 1 if something was, or the log can't be read.

`

// errFindings makes the exit status 1; the findings are on stdout already.
var errFindings = errors.New("the log breaks rules")

func auditCommand(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	f := newFlags("audit", auditManual, stderr)
	discovery := f.String("discovery", "", "the host's discovery document, `FILE or URL`")
	token := f.String("bearer-file", "", "`file` with the token to send to the host of the log")
	asJSON := f.Bool("json", false, "print one finding a line, as JSON")
	timeout := f.Duration("timeout", 30*time.Second, "time for all that is fetched")
	operands, err := parse(f, args, 1)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, *timeout)
	defer cancel()
	from := source{}
	if *token != "" {
		if from.bearer, err = bearer(operands, *token); err != nil {
			return err
		}
	}
	model, err := from.model(ctx, *discovery, operands[0], stderr)
	if err != nil {
		return err
	}
	r, err := from.open(ctx, operands[0])
	if err != nil {
		return err
	}
	defer r.Close()
	log, err := audit.ReadLog(r)
	if err != nil {
		return fmt.Errorf("%s: %w", operands[0], err)
	}
	for _, why := range log.Skipped {
		fmt.Fprintln(stderr, "skipped:", why)
	}
	if len(log.Events) == 0 {
		return fmt.Errorf("%s holds no event of a run", operands[0])
	}
	return printFindings(stdout, log.Events, audit.Check(log.Events, model), *asJSON)
}

func printFindings(w io.Writer, events []audit.Event, found []audit.Finding, asJSON bool) error {
	enc := json.NewEncoder(w)
	for _, x := range found {
		if !asJSON {
			fmt.Fprintln(w, x)
		} else if err := enc.Encode(x); err != nil {
			return err
		}
	}
	if !asJSON {
		fmt.Fprintf(w, "%d events, %d findings\n", len(events), len(found))
	}
	if len(found) > 0 {
		return errFindings
	}
	return nil
}

// source opens files and URLs, with a token for one origin.
type source struct{ bearer map[string]string }

// maxLog bounds what is read of a log or a document.
const maxLog = 1 << 30

func (s source) open(ctx context.Context, name string) (io.ReadCloser, error) {
	switch u, err := url.Parse(name); {
	case name == "-":
		return io.NopCloser(os.Stdin), nil
	case err == nil && (u.Scheme == "http" || u.Scheme == "https"):
		return s.fetch(ctx, u)
	}
	return os.Open(name)
}

func (s source) fetch(ctx context.Context, u *url.URL) (io.ReadCloser, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Accept", "application/json, text/event-stream;q=0.9")
	if token := s.bearer[u.Scheme+"://"+u.Host]; token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	// A redirect would carry the token along, or lead to another host's log.
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := client.Do(r)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		said, _ := io.ReadAll(io.LimitReader(resp.Body, 512)) // what has come is told
		resp.Body.Close()
		return nil, fmt.Errorf("GET %s: %s %q", u, resp.Status, said)
	}
	return struct {
		io.Reader
		io.Closer
	}{io.LimitReader(resp.Body, maxLog), resp.Body}, nil
}

// model reads what the host advertises. Only a document that was asked for must
// be there.
func (s source) model(ctx context.Context, asked, log string, stderr io.Writer) (audit.Model, error) {
	name := asked
	if u, err := url.Parse(log); name == "" && err == nil && strings.HasPrefix(u.Scheme, "http") {
		name = u.Scheme + "://" + u.Host + "/.well-known/openwop"
	}
	if name == "" {
		return audit.UnknownModel, nil
	}
	r, err := s.open(ctx, name)
	if err == nil {
		defer r.Close()
		var doc []byte
		if doc, err = io.ReadAll(io.LimitReader(r, 4<<20)); err == nil {
			var m audit.Model
			if m, err = audit.ParseDiscovery(doc); err == nil {
				return m, nil
			}
		}
	}
	if asked != "" {
		return audit.UnknownModel, fmt.Errorf("-discovery: %w", err)
	}
	fmt.Fprintf(stderr, "what the host advertises is not known: %v\n", err)
	return audit.UnknownModel, nil
}
