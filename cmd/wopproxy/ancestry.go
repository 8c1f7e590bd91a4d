package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/wopproxy/wopproxy/ancestry"
)

const ancestryManual = `ancestry RUN -host URL

Asks the host at URL who caused RUN, then that run's host who caused it, and so
on until a run that nobody caused, and draws the chain as a tree.

Other hosts than the first are called over https and at public addresses only,
unless -allow lists them. A token is sent to the host at URL and to nobody else.
Exits 1 if the walk stopped before it found the first run.

`

func ancestryCommand(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	f := newFlags("ancestry", ancestryManual, stderr)
	host := f.String("host", "", "`URL` of the host that RUN belongs to")
	token := f.String("bearer-file", "", "`file` with the token to send to that host")
	hops := f.Int("hops", 64, "hosts to ask at most")
	timeout := f.Duration("timeout", 10*time.Second, "time for the whole walk")
	asJSON := f.Bool("json", false, "print the walk as JSON")
	var allow []string
	f.Func("allow", "`host`, host:port or CIDR that may be called over http and at a private address; repeatable", func(s string) error {
		allow = append(allow, s)
		return nil
	})
	operands, err := parse(f, args, 1)
	if err != nil {
		return err
	}
	run, err := ancestry.ParseRunID(operands[0])
	if err != nil {
		return err
	}
	o := ancestry.WalkerOptions{Allow: allow, MaxHops: *hops, Timeout: *timeout}
	if *token != "" {
		if o.Bearer, err = bearer(*host, *token); err != nil {
			return err
		}
	}
	w, err := ancestry.NewWalker(o)
	if err != nil {
		return err
	}
	walk, err := w.Walk(ctx, *host, run)
	if err != nil {
		return err
	}
	if err := printWalk(stdout, walk, *asJSON); err != nil {
		return err
	}
	if walk.Stop != ancestry.StopRoot {
		return fmt.Errorf("the walk stopped before the first run: %s", strings.TrimSpace(string(walk.Stop)+" "+walk.Detail))
	}
	return nil
}

func printWalk(w io.Writer, walk ancestry.Walk, asJSON bool) error {
	if !asJSON {
		return walk.WriteTree(w)
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(walk)
}

// bearer reads a token for the origin of host.
func bearer(host, file string) (map[string]string, error) {
	u, err := url.Parse(host)
	if err != nil {
		return nil, fmt.Errorf("-host: %w", err)
	}
	token, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("-bearer-file: %w", err)
	}
	return map[string]string{u.Scheme + "://" + u.Host: strings.TrimSpace(string(token))}, nil
}
