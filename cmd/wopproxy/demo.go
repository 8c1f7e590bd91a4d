package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/wopproxy/wopproxy/ancestry"
	"github.com/wopproxy/wopproxy/config"
)

const demoManual = `demo

Starts three hosts on free ports of this machine: a planner and a researcher,
which are A2A agents, and an MCP tool server. None of them knows of wopproxy;
each has its own, with its own store in a temporary folder. A request to the
planner crosses all three.

The first run is alone, and the hosts forward nothing. Then many run at once,
and the hosts forward traceparent and tracestate, as OpenTelemetry does. Every
link is then asked for over HTTP and compared with what the hosts know of
themselves. Exits 1 if a link is wrong or missing.

With -evidence each wopproxy signs a receipt of what passes it, and those of the
first run are verified.

`

func demoCommand(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	f := newFlags("demo", demoManual, stderr)
	runs := f.Int("runs", 16, "runs at once in the second part")
	signed := f.Bool("evidence", false, "have receipts of each hop signed, and verify them")
	hold := f.Bool("hold", false, "stay up afterwards, until interrupted, to look around")
	if _, err := parse(f, args, 0); err != nil {
		return err
	}
	if *runs < 1 {
		fmt.Fprintln(stderr, "wopproxy demo: -runs must be 1 or more")
		return errUsage
	}
	dir, err := os.MkdirTemp("", "wopproxy-demo-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	d, err := startDemo(ctx, dir, *signed, stderr)
	if err != nil {
		return err
	}
	err = d.show(ctx, stdout, *runs)
	if *hold && err == nil {
		fmt.Fprintf(stdout, "\nStill up. Metrics: http://%s/metrics. Try:\n  %s\nStop with Ctrl-C.\n", d.sites[0].sidecar.admin.Addr(), d.command)
		<-ctx.Done()
	}
	return errors.Join(err, d.stop())
}

// demo is three sites, each calling the next.
type demo struct {
	sites   [3]*site // planner, researcher, tools
	signed  bool     // there is evidence
	command string   // that shows the first chain again
}

// site is a host with its sidecar.
type site struct {
	hostID  string
	host    *demoHost
	sidecar *sidecar
	task    *task // running the sidecar
}

// base is where others reach the host: through its ingress.
func (s *site) base() string { return "http://" + s.sidecar.ingress.Addr().String() }

// startDemo starts the sites from the last, which calls nobody, to the first.
func startDemo(ctx context.Context, dir string, signed bool, stderr io.Writer) (*demo, error) {
	d := &demo{signed: signed}
	for i, make := range []func() *demoHost{
		newToolServer,
		func() *demoHost { return newAgent(callTool, d.sites[2].base()) },
		func() *demoHost { return newAgent(sendMessage, d.sites[1].base()) },
	} {
		name := []string{"tools", "researcher", "planner"}[i]
		more := ""
		if signed {
			var err error
			if more, err = demoKeys(name+".demo", dir); err != nil {
				return nil, errors.Join(err, d.stop())
			}
		}
		s, err := startSite(ctx, name+".demo", make(), filepath.Join(dir, name), more, stderr)
		if err != nil {
			return nil, errors.Join(err, d.stop())
		}
		d.sites[2-i] = s
	}
	return d, nil
}

// startSite puts a sidecar in front of and behind a host. more is added to its
// configuration.
func startSite(ctx context.Context, hostID string, host *demoHost, store, more string, stderr io.Writer) (*site, error) {
	if err := host.start(); err != nil {
		return nil, err
	}
	c, err := config.Parse(strings.NewReader(fmt.Sprintf(`
host: { id: %s, wellKnownUrl: "http://127.0.0.1/.well-known/openwop" }
ingress: { listen: "127.0.0.1:0", upstream: "http://%s" }
egress: { listen: "127.0.0.1:0" }
admin: { listen: "127.0.0.1:0" }
ancestry: { store: { bolt: { dir: %q } }, auth: { mode: none } }
drain: { delay: 0s, timeout: 5s }
log: { level: warn }
%s`, hostID, host.addr(), store, more)))
	if err != nil {
		return nil, errors.Join(err, host.stop())
	}
	l, err := listen(c)
	if err != nil {
		return nil, errors.Join(err, host.stop())
	}
	// The ports are chosen by the system, so the public address is known only now.
	c.Host.WellKnownURL.Host = l.ingress.Addr().String()
	sc, err := newSidecar(ctx, c, l, func(string) (string, bool) { return "", false }, stderr)
	if err != nil {
		return nil, errors.Join(err, host.stop())
	}
	host.useProxy("http://" + l.egress.Addr().String())
	return &site{hostID, host, sc, begin(context.WithoutCancel(ctx), sc.run)}, nil
}

// stop ends what was started, callers first.
func (d *demo) stop() error {
	http.DefaultClient.CloseIdleConnections()
	var errs []error
	for _, s := range d.sites {
		if s != nil {
			s.host.client.CloseIdleConnections()
			errs = append(errs, s.task.stop(), s.host.stop())
		}
	}
	return errors.Join(errs...)
}

// show runs both parts and prints what came of them.
func (d *demo) show(ctx context.Context, w io.Writer, many int) error {
	fmt.Fprint(w, "Three hosts, each behind its own wopproxy, none of them aware of it:\n\n")
	for i, s := range d.sites {
		fmt.Fprintf(w, "  %-16s %-16s ingress %s\n", s.hostID, []string{"A2A agent", "A2A agent", "MCP tool server"}[i], s.base())
	}

	fmt.Fprint(w, "\n1. One run alone. The hosts forward nothing: no header, no id.\n\n")
	alone, err := d.runAll(ctx, 1)
	if err != nil {
		return err
	}
	if err := d.showChain(ctx, w, "question 1"); err != nil {
		return err
	}
	if d.signed {
		if err := d.showEvidence(ctx, w, "question 1"); err != nil {
			return err
		}
	}

	fmt.Fprintf(w, "\n2. %d runs at once. The hosts forward traceparent and tracestate, as OpenTelemetry does.\n\n", many)
	for _, s := range d.sites {
		s.host.forward.Store(true)
	}
	together, err := d.runAll(ctx, many)
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "Trace ids: %d runs, %d traces, each the same on all three hosts.\n\n", many, together.traces)
	return verdict(w, alone, together)
}

// tally is what became of the links of some runs.
type tally struct {
	runs, traces                      int
	asserted, right, wrong, abstained int
	evidence                          map[ancestry.Evidence]int // what the callers' proxies went by
}

// add adds the tally of one run.
func (t *tally) add(one tally) {
	t.asserted += one.asserted
	t.right += one.right
	t.wrong += one.wrong
	t.abstained += one.abstained
	for e, n := range one.evidence {
		t.evidence[e] += n
	}
}

// runAll asks n questions at once, each under its own name, and compares every
// link that results with what the hosts know.
func (d *demo) runAll(ctx context.Context, n int) (tally, error) {
	for _, s := range d.sites {
		s.host.forget()
	}
	g, gctx := errgroup.WithContext(ctx)
	for i := range n {
		g.Go(func() error {
			return sendMessage(gctx, http.DefaultClient, d.sites[0].base(), fmt.Sprintf("question %d", i+1), nil)
		})
	}
	if err := g.Wait(); err != nil {
		return tally{}, err
	}
	t := tally{runs: n, evidence: map[ancestry.Evidence]int{}}
	var mu sync.Mutex
	traces := map[string]bool{}
	check, cctx := errgroup.WithContext(ctx)
	check.SetLimit(8)
	for i := range n {
		check.Go(func() error {
			one, trace, err := d.check(cctx, fmt.Sprintf("question %d", i+1))
			mu.Lock()
			defer mu.Unlock()
			traces[trace] = true
			t.add(one)
			return err
		})
	}
	err := check.Wait()
	t.traces = len(traces)
	return t, err
}

// check asks each host for the parent of the run that served a question, and
// compares it with the run that served it one host before.
func (d *demo) check(ctx context.Context, question string) (t tally, trace string, err error) {
	t.evidence = map[ancestry.Evidence]int{}
	var above memory
	for i, s := range d.sites {
		own, ok := s.host.recall(question)
		if !ok {
			return t, "", fmt.Errorf("%s never saw %s", s.hostID, question)
		}
		if i > 0 && own.trace != above.trace {
			return t, "", fmt.Errorf("%s: trace %s on %s, %s on the host before", question, own.trace, s.hostID, above.trace)
		}
		body, err := getAncestry(ctx, s.base(), own.run)
		if err != nil {
			return t, "", err
		}
		var answer struct{ Parent *ancestry.Ancestor }
		if err := json.Unmarshal(body, &answer); err != nil {
			return t, "", fmt.Errorf("%s: %w", body, err)
		}
		switch p := answer.Parent; {
		case i == 0 && p == nil: // nobody caused it
		case p == nil:
			t.abstained++
		case i > 0 && d.sites[i-1].isRun(ctx, p, above):
			t.asserted, t.right = t.asserted+1, t.right+1
			t.evidence[d.sites[i-1].evidence(ctx, p.Run, own.run)]++
		default:
			t.asserted, t.wrong = t.asserted+1, t.wrong+1
		}
		above = own
	}
	return t, above.trace, nil
}

// isRun reports whether p names the run of this site that want is of. A host
// calls out before it has told its own id, so p may be the other of its names.
func (s *site) isRun(ctx context.Context, p *ancestry.Ancestor, want memory) bool {
	if p.Host != s.hostID {
		return false
	}
	l, err := s.sidecar.recorder.Lookup(ctx, p.Run)
	return err == nil && (l.Run == want.run || l.Alias == want.run)
}

// evidence is what this site's proxy went by when it said that child was caused
// by parent.
func (s *site) evidence(ctx context.Context, parent, child ancestry.RunID) ancestry.Evidence {
	children, _, err := s.sidecar.recorder.Children(ctx, parent, "", 10)
	for _, l := range children {
		if err == nil && (l.Run == child || l.Alias == child) {
			return l.Evidence
		}
	}
	return "?"
}

// showChain draws the chain of one question, and shows what was asked for it.
func (d *demo) showChain(ctx context.Context, w io.Writer, question string) error {
	last := d.sites[len(d.sites)-1]
	own, ok := last.host.recall(question)
	if !ok {
		return fmt.Errorf("%s never saw %s", last.hostID, question)
	}
	walker, err := ancestry.NewWalker(ancestry.WalkerOptions{Allow: []string{"127.0.0.1"}})
	if err != nil {
		return err
	}
	walk, err := walker.Walk(ctx, last.base(), own.run)
	if err != nil {
		return err
	}
	if walk.Stop != ancestry.StopRoot || len(walk.Hops) != len(d.sites) {
		return fmt.Errorf("the chain of %s ends after %d hosts: %s %s", own.run, len(walk.Hops), walk.Stop, walk.Detail)
	}
	d.command = fmt.Sprintf("go run ./cmd/wopproxy ancestry %s -host %s -allow 127.0.0.1", own.run, last.base())
	fmt.Fprintf(w, "Trace id, the same on all three hosts: %s\n\n", own.trace)
	if err := walk.WriteTree(w); err != nil {
		return err
	}
	fmt.Fprint(w, "\nwhich these answers say, hop by hop:\n\n")
	for _, h := range walk.Hops {
		body, err := getAncestry(ctx, h.Base, h.Run)
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "  GET %s/v1/runs/%s/ancestry\n      %s\n", h.Base, h.Run.Segment(), strings.TrimSpace(string(body)))
	}
	return nil
}

// verdict prints the table. A link that is wrong or missing is an error.
func verdict(w io.Writer, alone, together tally) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "runs\tevidence\tlinks\tasserted\tright\twrong\tabstained\t")
	for _, row := range []tally{alone, together} {
		rungs := slices.Sorted(maps.Keys(row.evidence))
		fmt.Fprintf(t, "%d\t%v\t%d\t%d\t%d\t%d\t%d\t\n", row.runs, rungs, 2*row.runs, row.asserted, row.right, row.wrong, row.abstained)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if wrong, missing := alone.wrong+together.wrong, alone.abstained+together.abstained; wrong+missing > 0 {
		return fmt.Errorf("%d links are wrong and %d are missing", wrong, missing)
	}
	fmt.Fprintln(w, "\nEvery run has the parent that really caused it.")
	return nil
}

// demoTimeout bounds each request of the demo.
const demoTimeout = 30 * time.Second
