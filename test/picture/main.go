// Command picture draws the dashboards with what a real Prometheus has scraped of a
// real wopproxy, for those who have no Grafana at hand.
//
//	go run ./test/soak -for 15m                                 says where its metrics are
//	go run ./test/picture -metrics 127.0.0.1:PORT -for 10m -out deploy/grafana
//
// It starts prometheus, which has to be installed, on a free port, has it scrape the
// address, asks it each query of each dashboard, and writes one SVG for each beside
// it. The panels are those of the dashboard; how they are drawn is ours, not Grafana's.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/wopproxy/wopproxy/test/internal/program"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal kills us at once
	os.Exit(run(ctx, os.Args[1:], os.Stderr))
}

// options say what is drawn of what.
type options struct {
	metrics    string        // host and port that serve /metrics
	lasts      time.Duration // how long it is scraped before it is drawn
	every      time.Duration // between two scrapes
	dashboards string        // a folder
	out        string        // a folder
}

// run is main without the process.
func run(ctx context.Context, args []string, stderr io.Writer) int {
	f := flag.NewFlagSet("picture", flag.ContinueOnError)
	f.SetOutput(stderr)
	var o options
	f.StringVar(&o.metrics, "metrics", "", "`host:port` that serves /metrics")
	f.DurationVar(&o.lasts, "for", 10*time.Minute, "scrape for this `time` before drawing")
	f.DurationVar(&o.every, "every", 5*time.Second, "`time` between two scrapes")
	f.StringVar(&o.dashboards, "dashboards", "deploy/grafana", "`folder` of the dashboards")
	f.StringVar(&o.out, "out", ".", "`folder` for the pictures")
	if err := f.Parse(args); errors.Is(err, flag.ErrHelp) {
		return 0
	} else if err != nil {
		return 2
	}
	if o.metrics == "" || o.every < 100*time.Millisecond || o.lasts < 5*o.every || f.NArg() > 0 {
		fmt.Fprintln(stderr, "picture: say with -metrics what to scrape, and -for five times as long as -every, or longer")
		return 2
	}
	if err := draw(ctx, o, stderr); err != nil {
		fmt.Fprintln(stderr, "picture:", err)
		return 1
	}
	return 0
}

// draw scrapes, and draws every dashboard.
func draw(ctx context.Context, o options, stderr io.Writer) (err error) {
	files, err := filepath.Glob(filepath.Join(o.dashboards, "*.json"))
	if err != nil || len(files) == 0 {
		return errors.Join(err, fmt.Errorf("no dashboards in %s", o.dashboards))
	}
	p, err := startScraper(ctx, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.stop()) }()
	if err := p.await(ctx); err != nil {
		return fmt.Errorf("scrape %s: %w", o.metrics, err)
	}
	fmt.Fprintf(stderr, "scraping %s for %v\n", o.metrics, o.lasts)
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(o.lasts):
	}
	at := span{time.Now().Add(-o.lasts), time.Now()}
	for _, file := range files {
		d, err := readDashboard(file)
		if err != nil {
			return err
		}
		text, err := d.svg(ctx, p, at)
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		name := filepath.Join(o.out, strings.TrimSuffix(filepath.Base(file), ".json")+".svg")
		if err := os.WriteFile(name, text, 0o644); err != nil {
			return err
		}
		fmt.Fprintf(stderr, "%s, %d KB\n", name, len(text)>>10)
	}
	return nil
}

// scraper is a Prometheus that runs here, with a store of its own.
type scraper struct {
	process *program.Process
	dir     string
	url     string
	window  time.Duration // of rates
}

func startScraper(ctx context.Context, o options) (*scraper, error) {
	port, err := program.FreePort()
	if err != nil {
		return nil, err
	}
	p := &scraper{url: "http://127.0.0.1:" + port, window: 6 * o.every}
	if p.dir, err = os.MkdirTemp("", "wopproxy-picture-"); err != nil {
		return nil, err
	}
	config := filepath.Join(p.dir, "prometheus.yml")
	text := fmt.Sprintf("scrape_configs:\n- { job_name: wopproxy, scrape_interval: %dms, scrape_timeout: %dms, static_configs: [{ targets: [%q] }] }\n",
		o.every.Milliseconds(), o.every.Milliseconds(), o.metrics)
	err = os.WriteFile(config, []byte(text), 0o600)
	if err == nil {
		p.process, err = program.Start(ctx, program.CleanEnv(), "prometheus", "--config.file="+config,
			"--storage.tsdb.path="+filepath.Join(p.dir, "data"), "--web.listen-address=127.0.0.1:"+port)
	}
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(p.dir))
	}
	ready := func(line string) bool { return strings.Contains(line, "Server is ready to receive web requests") }
	if err := p.process.Await(ready); err != nil {
		return nil, errors.Join(err, p.stop())
	}
	return p, nil
}

// patience bounds the wait for the first scrape.
const patience = time.Minute

// await returns when something has been scraped.
func (p *scraper) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("no metrics after %v", patience))
	defer cancel()
	for {
		now := time.Now()
		all, err := p.query(ctx, "up == 1", span{now.Add(-time.Second), now})
		if err == nil && len(all) > 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(p.window / 60):
		}
	}
}

func (p *scraper) stop() error { return errors.Join(p.process.Stop(), os.RemoveAll(p.dir)) }
