package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/wopproxy/wopproxy/ancestry"
	"github.com/wopproxy/wopproxy/test/internal/program"
)

// way is how requests get to a contender.
type way int

const (
	directly    way = iota // to the upstream itself
	directlyTLS            // the same by TLS
	reverse                // it stands in front of the upstream
	forward                // it is asked for absolute URLs
	intercepted            // it is asked for a tunnel, and opens the TLS inside
)

// contender is a program between client and upstream, or none.
type contender struct {
	name, title string
	way         way
	wop         string                                          // the listener of wopproxy that is measured
	sampled     bool                                            // all spans are made and exported
	start       func(context.Context, *stage, *contender) error // nil: there is nothing to start

	address string // of the listener that is measured
	admin   string // of the one that tells allocations; empty: nobody does
	process *program.Process
	began   time.Time     // it was started
	startup time.Duration // until it served
	runs    []string      // live runs of the host, for its calls
	idle    int64         // bytes resident before the first request
	scrape  float64       // allocations that it takes to tell them

	collector *collector // of its spans, if it makes any
	calls     int64      // of agents
}

// contenders are the rows of the table.
func contenders() []*contender {
	return []*contender{
		{name: "direct", title: "nothing between", way: directly},
		{name: "direct-tls", title: "nothing between, TLS", way: directlyTLS},
		{name: "nginx", title: "nginx", way: reverse, start: startNginx},
		{name: "haproxy", title: "haproxy", way: reverse, start: startHaproxy},
		{name: "reverseproxy", title: "ReverseProxy, tuned", way: reverse, start: startPeer},
		{name: "goproxy", title: "goproxy", way: forward, start: startPeer},
		{name: "squid", title: "squid", way: forward, start: startSquid},
		{name: "mitmproxy", title: "mitmproxy", way: forward, start: startMitmproxy},
		{name: "ingress", title: "**wopproxy** ingress", way: reverse, wop: "ingress", start: startWopproxy},
		{name: "ingress-sampled", title: "**wopproxy** ingress, sampled", way: reverse, wop: "ingress", sampled: true, start: startWopproxy},
		{name: "egress", title: "**wopproxy** egress", way: forward, wop: "egress", start: startWopproxy},
		{name: "egress-sampled", title: "**wopproxy** egress, sampled", way: forward, wop: "egress", sampled: true, start: startWopproxy},
		{name: "goproxy-tls", title: "goproxy, opens TLS", way: intercepted, start: startPeer},
		{name: "mitmproxy-tls", title: "mitmproxy, opens TLS", way: intercepted, start: startMitmproxy},
		{name: "intercept", title: "**wopproxy** opens TLS", way: intercepted, wop: "egress", start: startWopproxy},
		{name: "intercept-sampled", title: "**wopproxy** opens TLS, sampled", way: intercepted, wop: "egress", sampled: true, start: startWopproxy},
	}
}

// yardstick is the name of the contender that others are compared with.
func (c *contender) yardstick() string {
	if c.way == intercepted {
		return "goproxy-tls"
	}
	return "reverseproxy"
}

// nothing is the name of the contender whose latency is not the proxy's.
func (c *contender) nothing() string {
	if c.way == intercepted || c.way == directlyTLS {
		return "direct-tls"
	}
	return "direct"
}

// errMissing is returned for a program that is not installed.
var errMissing = errors.New("not installed")

// find looks for a program on the path, and where Debian keeps servers.
func find(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err != nil {
		path, err = exec.LookPath(filepath.Join("/usr/sbin", name))
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w", name, errMissing)
	}
	return path, nil
}

// run starts a contender on the core of proxies.
func (s *stage) run(ctx context.Context, c *contender, argv ...string) (err error) {
	argv = s.cores.proxy(argv)
	c.began = time.Now()
	c.process, err = program.Start(ctx, append(program.CleanEnv(), "GOMAXPROCS=1"), argv[0], argv[1:]...)
	return err
}

// folder makes a folder for what a contender writes.
func (s *stage) folder(c *contender) (string, error) {
	dir := filepath.Join(s.dir, c.name)
	return dir, os.MkdirAll(dir, 0o700)
}

// startServer starts a program that is told its port, and waits until it listens.
func (s *stage) startServer(ctx context.Context, c *contender, argv func(dir, port string) ([]string, error)) error {
	port, err := program.FreePort()
	if err != nil {
		return err
	}
	dir, err := s.folder(c)
	if err != nil {
		return err
	}
	args, err := argv(dir, port)
	if err != nil {
		return err
	}
	if err := s.run(ctx, c, args...); err != nil {
		return err
	}
	c.address = net.JoinHostPort("127.0.0.1", port)
	for end := time.Now().Add(patience); ; {
		var d net.Dialer
		conn, err := d.DialContext(ctx, "tcp", c.address)
		if err == nil {
			c.startup = time.Since(c.began)
			return conn.Close()
		}
		if ctx.Err() != nil || c.process.Gone() || time.Now().After(end) {
			return c.process.Failed("does not listen: " + err.Error())
		}
		time.Sleep(time.Millisecond)
	}
}

// patience bounds every wait for a contender.
const patience = 20 * time.Second

func startNginx(ctx context.Context, s *stage, c *contender) error {
	nginx, err := find("nginx")
	if err != nil {
		return err
	}
	return s.startServer(ctx, c, func(dir, port string) ([]string, error) {
		file := filepath.Join(dir, "nginx.conf")
		return []string{nginx, "-p", dir, "-c", file, "-e", "stderr"}, os.WriteFile(file, fmt.Appendf(nil, `
daemon off; master_process off; pid nginx.pid; error_log stderr error;
worker_rlimit_nofile 16384;
events { worker_connections 8192; }
http {
  access_log off; keepalive_requests 1000000000; keepalive_timeout 1h;
  client_body_temp_path a; proxy_temp_path b; fastcgi_temp_path c; uwsgi_temp_path d; scgi_temp_path e;
  client_body_buffer_size 128k; proxy_buffers 8 32k;
  upstream to { server %s; keepalive 1024; keepalive_requests 1000000000; }
  server {
    listen 127.0.0.1:%s backlog=4096;
    proxy_http_version 1.1; proxy_set_header Connection ""; proxy_set_header Host $http_host;
    location / { proxy_pass http://to; }
    location = /sse { proxy_pass http://to; proxy_buffering off; }
  }
}
`, s.upstream.plain, port), 0o600)
	})
}

func startHaproxy(ctx context.Context, s *stage, c *contender) error {
	haproxy, err := find("haproxy")
	if err != nil {
		return err
	}
	return s.startServer(ctx, c, func(dir, port string) ([]string, error) {
		file := filepath.Join(dir, "haproxy.cfg")
		return []string{haproxy, "-db", "-f", file}, os.WriteFile(file, fmt.Appendf(nil, `
global
  nbthread 1
  maxconn 4096
defaults
  mode http
  timeout connect 10s
  timeout client 1h
  timeout server 1h
frontend in
  bind 127.0.0.1:%s backlog 4096
  default_backend out
backend out
  http-reuse always
  server upstream %s
`, port, s.upstream.plain), 0o600)
	})
}

func startSquid(ctx context.Context, s *stage, c *contender) error {
	squid, err := find("squid")
	if err != nil {
		return err
	}
	return s.startServer(ctx, c, func(dir, port string) ([]string, error) {
		file := filepath.Join(dir, "squid.conf")
		return []string{squid, "-N", "-f", file}, os.WriteFile(file, fmt.Appendf(nil, `
http_port 127.0.0.1:%s
http_access allow all
cache deny all
cache_mem 8 MB
access_log none
cache_log /dev/null
cache_store_log none
pid_filename none
netdb_filename none
pinger_enable off
shutdown_lifetime 0 seconds
max_filedescriptors 16384
visible_hostname bench.example.com
`, port), 0o600)
	})
}

func startMitmproxy(ctx context.Context, s *stage, c *contender) error {
	mitmdump, err := find("mitmdump")
	if err != nil {
		return err
	}
	return s.startServer(ctx, c, func(dir, port string) ([]string, error) {
		pem, err := os.ReadFile(s.ca)
		if err != nil {
			return nil, err
		}
		return []string{
			mitmdump, "-q", "--listen-host", "127.0.0.1", "--listen-port", port,
			"--set", "confdir=" + dir, "--set", "flow_detail=0", "--set", "connection_strategy=lazy",
			"--set", "ssl_verify_upstream_trusted_ca=" + s.ca,
		}, os.WriteFile(filepath.Join(dir, "mitmproxy-ca.pem"), pem, 0o600)
	})
}

// ready is what a peer of ours writes before its addresses.
const ready = "ready"

// startPeer starts this program as another.
func startPeer(ctx context.Context, s *stage, c *contender) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	kind, _, _ := strings.Cut(c.name, "-")
	if err := s.run(ctx, c, self, "peer", kind, "-upstream", s.upstream.plain, "-ca", s.ca); err != nil {
		return err
	}
	err = c.process.Await(func(line string) bool {
		n, _ := fmt.Sscanf(line, ready+" %s %s", &c.address, &c.admin)
		return n == 2
	})
	c.startup = time.Since(c.began)
	return err
}

// startWopproxy starts the program under test, with all that it does: a store on
// disk, metrics, and spans for a collector, of which all are sampled or none.
func startWopproxy(ctx context.Context, s *stage, c *contender) error {
	dir, err := s.folder(c)
	if err != nil {
		return err
	}
	if c.collector, err = newCollector(ctx); err != nil {
		return err
	}
	sample := 0
	if c.sampled {
		sample = 1
	}
	file := filepath.Join(dir, "wopproxy.yaml")
	if err := os.WriteFile(file, fmt.Appendf(nil, `
host: { id: %s.example.com/agent, wellKnownUrl: "http://127.0.0.1/.well-known/openwop" }
ingress: { listen: "127.0.0.1:0", upstream: "http://%s" }
egress:
  listen: "127.0.0.1:0"
  intercept: ["127.0.0.1"]
  ca: { cert: %q, key: %q }
  roots: %q
admin: { listen: "127.0.0.1:0", pprof: true }
ancestry: { store: { bolt: { dir: %q } }, auth: { mode: none } }
tracing: { otlp: { endpoint: "http://%s" }, sample: %d }
drain: { delay: 0s, timeout: 5s }
`, c.name, s.upstream.plain, s.ca, s.ca, s.ca, filepath.Join(dir, "store"), c.collector.address, sample), 0o600); err != nil {
		return err
	}
	if err := s.run(ctx, c, s.program, "serve", "-config", file); err != nil {
		return err
	}
	at, err := c.process.Serving()
	if err != nil {
		return err
	}
	c.startup = time.Since(c.began)
	c.admin, c.address = at.Admin, at.Ingress
	if c.wop == "egress" {
		c.runs, err = s.beginRuns(ctx, at.Ingress, c.sampled)
		c.address = at.Egress
	}
	return err
}

// liveRuns is how many runs of the host are at work, and make its calls.
const liveRuns = 64

// beginRuns begins runs by messages whose tasks go on.
func (s *stage) beginRuns(ctx context.Context, ingress string, sampled bool) (runs []string, err error) {
	in := &contender{way: reverse, address: ingress, sampled: sampled}
	cl, err := dial(ctx, in, s.upstream, s.authority.Pool)
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	cl.takes(working.request(in, s.upstream.plain, ""), &working)
	for range liveRuns {
		var values []string
		if err := cl.exchange(numbers.Add(1), func(line []byte) {
			if name, value, _ := strings.Cut(string(line), ":"); strings.EqualFold(name, "Run-Id") {
				values = append(values, strings.TrimSpace(value))
			}
		}); err != nil {
			return nil, fmt.Errorf("begin a run: %w", err)
		}
		run, _, err := ancestry.ParseRunIDHeader(values)
		if err != nil {
			return nil, fmt.Errorf("begin a run: %w", err)
		}
		runs = append(runs, string(run))
	}
	return runs, nil
}

// stop ends a contender. How others end is not ours to judge.
func (c *contender) stop() (err error) {
	if c.process != nil {
		err = c.process.Stop()
		c.process = nil
	}
	if c.collector != nil {
		err = errors.Join(err, c.collector.Close())
		c.collector = nil
	}
	if c.wop == "" {
		return nil
	}
	return err
}

// warnings are the metrics of wopproxy that say it did less than all, by what
// they begin with.
var warnings = []string{
	"wopproxy_store_dropped_total", `wopproxy_commit_waits_total{outcome="timeout"}`, "wopproxy_limit_hits_total",
	"wopproxy_stamp_refusals_total", "wopproxy_codec_panics_total", "wopproxy_span_export_failures_total",
}

// finish ends a wopproxy, so that it sends the spans it still has, and returns
// what it left undone: a proxy is soon quick that does not do its work.
func (c *contender) finish(ctx context.Context) (left []string, err error) {
	if c.wop == "" {
		return nil, nil
	}
	m, err := program.Metrics(ctx, c.admin)
	if err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(m)) {
		if m[name] > 0 && slices.ContainsFunc(warnings, func(w string) bool { return strings.HasPrefix(name, w) }) {
			left = append(left, fmt.Sprintf("%s: %s %.0f, of %d calls", c.name, name, m[name], c.calls))
		}
	}
	spans := &c.collector.spans
	if err := c.stop(); err != nil {
		return nil, err
	}
	if n := spans.Load(); c.sampled && n < c.calls {
		left = append(left, fmt.Sprintf("%s: %.1f %% of its spans were exported", c.name, 100*float64(n)/float64(c.calls)))
	}
	return left, nil
}
