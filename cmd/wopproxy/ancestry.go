package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/wopproxy/wopproxy/ancestry"
	"github.com/wopproxy/wopproxy/ancestry/boltstore"
)

const ancestryManual = `ancestry RUN -host URL
       wopproxy ancestry RUN -store DIR
       wopproxy ancestry RUN -admin URL

Asks the host at URL who caused RUN, then that run's host who caused it, and so
on until a run that nobody caused, and draws the chain as a tree.

Other hosts than the first are called over https and at public addresses only,
unless -allow lists them. A token is sent to the host at URL, to those that -bearer-for
names, and to nobody else.
Exits 1 if the walk stopped before it found the first run.

With -store nobody is asked: the links are read that wopproxy stdio and exec have
left in DIR, or in the stores below it. Those that are in use are passed over.

With -admin the wopproxy whose admin listener is at URL is asked what RUN has
caused, and draws that: the runs, here and on other hosts, and what has become of
the calls that started them.

`

func ancestryCommand(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	f := newFlags("ancestry", ancestryManual, stderr)
	host := f.String("host", "", "`URL` of the host that RUN belongs to")
	store := f.String("store", "", "`folder` of links to read instead")
	admin := f.String("admin", "", "`URL` of a wopproxy's admin listener, for what RUN has caused")
	token := f.String("bearer-file", "", "`file` with the token to send to that host")
	var share []string
	f.Func("bearer-for", "`URL` of a further host that the token is for; repeatable", func(s string) error {
		share = append(share, s)
		return nil
	})
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
	if !oneOf(*host, *store, *admin) {
		fmt.Fprintln(stderr, "wopproxy ancestry: say one of -host, -store and -admin")
		return errUsage
	}
	if len(share) > 0 && *token == "" {
		fmt.Fprintln(stderr, "wopproxy ancestry: -bearer-for says whom the token is for, say with -bearer-file which")
		return errUsage
	}
	if *admin != "" {
		return printCaused(ctx, stdout, *admin, run, *timeout, *asJSON)
	}
	if *store != "" {
		walk, err := walkStores(ctx, *store, run, stderr)
		if err != nil {
			return err
		}
		return printWalk(stdout, walk, *asJSON)
	}
	o := ancestry.WalkerOptions{Allow: allow, MaxHops: *hops, Timeout: *timeout}
	if *token != "" {
		if o.Bearer, err = bearer(append(share, *host), *token); err != nil {
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

// walkStores tells what is recorded of run in the store dir, or in one of those
// that it holds. What is known of the ancestors is what the run's caller said.
func walkStores(ctx context.Context, dir string, run ancestry.RunID, stderr io.Writer) (ancestry.Walk, error) {
	found := map[string]bool{}
	for _, pattern := range []string{"links-*.db", filepath.Join("*", "links-*.db")} {
		files, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			return ancestry.Walk{}, fmt.Errorf("-store: %w", err)
		}
		for _, file := range files {
			found[filepath.Dir(file)] = true
		}
	}
	if len(found) == 0 {
		return ancestry.Walk{}, fmt.Errorf("-store: %s holds no store, nor do the folders in it", dir)
	}
	for _, dir := range slices.Sorted(maps.Keys(found)) {
		l, err := readLink(ctx, dir, run)
		switch {
		case err == nil:
			return recordedWalk(dir, l), nil
		case errors.Is(err, boltstore.ErrInUse):
			fmt.Fprintf(stderr, "wopproxy ancestry: %s is in use and not read\n", dir)
		case !errors.Is(err, ancestry.ErrNotFound):
			return ancestry.Walk{}, err
		}
	}
	return ancestry.Walk{}, fmt.Errorf("%s: no such run in %s", run, dir)
}

// readLink reads one link of a store that nobody uses.
func readLink(ctx context.Context, dir string, run ancestry.RunID) (l ancestry.Link, err error) {
	s, err := boltstore.Open(boltstore.Options{Dir: dir, Wait: -1})
	if err != nil {
		return l, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	return s.Lookup(ctx, run)
}

// recordedWalk is the chain that a link holds.
func recordedWalk(dir string, l ancestry.Link) ancestry.Walk {
	walk := ancestry.Walk{Hops: []ancestry.Hop{{Run: l.ID(), Host: l.Host, Base: dir, Confirmed: true}}, Stop: ancestry.StopRoot}
	for _, a := range l.Chain.Ancestors {
		walk.Hops = append(walk.Hops, ancestry.Hop{Run: a.Run, Host: a.Host, Cause: a.Cause})
	}
	if l.Chain.More {
		walk.Stop, walk.Detail = ancestry.StopTooDeep, "older ancestors were not told"
	}
	return walk
}

func oneOf(values ...string) bool {
	given := 0
	for _, v := range values {
		if v != "" {
			given++
		}
	}
	return given == 1
}

// maxTree bounds the answer of an admin listener.
const maxTree = 64 << 20

// printCaused prints the tree of what a run has caused.
func printCaused(ctx context.Context, w io.Writer, admin string, run ancestry.RunID, timeout time.Duration, asJSON bool) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	at := strings.TrimSuffix(admin, "/") + "/ancestry/v1/runs/" + url.PathEscape(string(run)) + "/tree"
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return fmt.Errorf("-admin: %w", err)
	}
	// No proxy from the environment: it may be the wopproxy that is asked.
	resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
	if err != nil {
		return fmt.Errorf("ask %s: %w", admin, err)
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound:
		return fmt.Errorf("%s: %s knows no such run, or is no wopproxy's admin listener", run, admin)
	default:
		return fmt.Errorf("ask %s: status %s", admin, resp.Status)
	}
	var tree ancestry.Tree
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxTree)).Decode(&tree); err != nil {
		return fmt.Errorf("read the answer of %s: %w", admin, err)
	}
	if asJSON {
		return printJSON(w, tree)
	}
	return tree.WriteTree(w)
}

func printWalk(w io.Writer, walk ancestry.Walk, asJSON bool) error {
	if !asJSON {
		return walk.WriteTree(w)
	}
	return printJSON(w, walk)
}

func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// bearer reads a token for the origins of hosts.
func bearer(hosts []string, file string) (map[string]string, error) {
	token, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("-bearer-file: %w", err)
	}
	tokens := map[string]string{}
	for _, host := range hosts {
		u, err := url.Parse(host)
		if err != nil {
			return nil, fmt.Errorf("who the token is for: %w", err)
		}
		tokens[u.Scheme+"://"+u.Host] = strings.TrimSpace(string(token))
	}
	return tokens, nil
}
