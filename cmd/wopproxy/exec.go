package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/wopproxy/wopproxy/carry"
	"github.com/wopproxy/wopproxy/config"
)

const execManual = `exec [-config FILE] -- COMMAND [ARGUMENT...]

Starts wopproxy, and once it is ready, COMMAND: a host that it stands in front of
and behind. COMMAND has the standard streams and gets the signals; its exit
status is given back, 128 and the number of the signal that ended it. When it has
ended, wopproxy drains and stops. A COMMAND that is not found is 127, one that
can't be started 126; if wopproxy can't start, COMMAND is not, and it is 1.

COMMAND finds the proxy in its environment: HTTP_PROXY and HTTPS_PROXY in both
cases, NODE_USE_ENV_PROXY and JAVA_TOOL_OPTIONS; telemetry (OTEL_EXPORTER_OTLP_*)
is added to NO_PROXY. Another proxy that is set there stays, and its calls are not
seen; set the variable to nothing to have wopproxy instead. Where TLS is
intercepted, the variables that name trusted roots are set, too.

With -carry, Node and Python hand on the context of a request to the calls that
are made for it, by a shim in NODE_OPTIONS and PYTHONPATH. WOPPROXY_CARRY=off in
the environment turns it off.

Without a file, the host listens on the port that it finds in PORT: the one that
is set, or else a free one. One line on stderr says where wopproxy listens. With a
file, the file says all of that; it is read once, egress.ca.bundle is written to a
temporary folder instead, and there is no drain.delay. Its listeners may have
port 0, and then several can run.

If wopproxy fails while COMMAND runs, COMMAND gets a SIGTERM; on Linux it is killed
if wopproxy is.

`

// execOptions are the flags of exec.
type execOptions struct {
	file, upstream, ingress, egress, admin, hostID, store string
	carry                                                 bool
}

func execCommand(ctx context.Context, args []string, _, stderr io.Writer) error {
	var o execOptions
	f := newFlags("exec", execManual, stderr)
	f.StringVar(&o.file, "config", "", "configuration `file`; without it, the flags below and defaults count")
	f.BoolVar(&o.carry, "carry", true, "have the host hand on context")
	f.StringVar(&o.upstream, "upstream", "", "`URL` where the host listens (default http://localhost:PORT)")
	f.StringVar(&o.ingress, "ingress", "127.0.0.1:0", "`address` for calls into the host")
	f.StringVar(&o.egress, "egress", "127.0.0.1:0", "`address` of the host's proxy")
	f.StringVar(&o.admin, "admin", "127.0.0.1:0", "`address` for metrics, probes and ancestry")
	f.StringVar(&o.hostID, "host-id", "", "hostId of the host (default the machine's name, /, and COMMAND's)")
	f.StringVar(&o.store, "store", "", "`folder` for links (default the first that is free of\n$XDG_STATE_HOME/wopproxy/exec/HOSTID/1, 2, ...; XDG_STATE_HOME is by default ~/.local/state)")
	command, err := parseCommand(f, args)
	if err != nil {
		return err
	}
	if err := o.check(f); err != nil {
		fmt.Fprintf(stderr, "wopproxy exec: %v\n", err)
		return errUsage
	}
	h, err := o.host(command)
	if err != nil {
		return err
	}
	return h.run(ctx, stderr)
}

// check refuses flags that the file has the say about.
func (o *execOptions) check(f *flag.FlagSet) error {
	var errs []error
	f.Visit(func(f *flag.Flag) {
		if o.file != "" && f.Name != "config" && f.Name != "carry" {
			errs = append(errs, fmt.Errorf("-%s has no effect with -config, write it in the file", f.Name))
		}
	})
	return errors.Join(errs...)
}

// execHost is a host that exec starts, with a wopproxy of its own.
type execHost struct {
	cmd    *exec.Cmd
	config *config.Config
	stores string // a folder of stores, of which the first free one is taken; empty: the configured one
	carry  bool
	quiet  bool   // logs only where it listens, and what goes wrong
	dir    string // temporary
}

func (o *execOptions) host(command []string) (*execHost, error) {
	h := &execHost{cmd: exec.Command(command[0], command[1:]...), carry: o.carry, quiet: o.file == ""}
	h.cmd.Stdin, h.cmd.Stdout, h.cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	h.cmd.Env = h.cmd.Environ()
	var err error
	if o.file != "" {
		h.config, err = config.Load(o.file)
	} else {
		h.config, err = o.defaults(h, filepath.Base(command[0]))
	}
	return h, err
}

// defaults makes the configuration of a host without one.
func (o *execOptions) defaults(h *execHost, name string) (*config.Config, error) {
	if o.hostID == "" {
		o.hostID = defaultHostID(name)
	}
	if o.upstream == "" {
		port, ok := os.LookupEnv("PORT")
		if !ok || port == "" {
			n, err := freePort()
			if err != nil {
				return nil, err
			}
			port = strconv.Itoa(n)
			h.cmd.Env = carry.Apply(h.cmd.Env, map[string]string{"PORT": port})
		}
		// By name: a host may listen on either of the loopback addresses.
		o.upstream = "http://" + net.JoinHostPort("localhost", port)
	}
	store := o.store
	if store == "" {
		var err error
		if h.stores, err = storesOf("exec", o.hostID); err != nil {
			return nil, err
		}
		store = h.stores
	}
	auth := config.AuthHost
	var ingress config.Address
	if err := ingress.UnmarshalText([]byte(o.ingress)); err == nil && ingress.Loopback() {
		auth = config.AuthNone
	}
	c, err := config.Parse(strings.NewReader(fmt.Sprintf(`
host: { id: %q, wellKnownUrl: "http://127.0.0.1/.well-known/openwop" }
ingress: { listen: %q, upstream: %q }
egress: { listen: %q }
admin: { listen: %q }
ancestry: { store: { bolt: { dir: %q } }, auth: { mode: %s } }
drain: { timeout: 5s }
`, o.hostID, o.ingress, o.upstream, o.egress, o.admin, store, auth)))
	if err != nil {
		return nil, fmt.Errorf("the flags make no configuration:\n%w", err)
	}
	return c, nil
}

// defaultHostID names a host by the machine and the program it runs.
func defaultHostID(name string) string {
	machine, err := os.Hostname()
	if err != nil {
		machine = "localhost"
	}
	visible := func(r rune) rune {
		if r < '!' || r > '~' {
			return '-'
		}
		return r
	}
	id := strings.Map(visible, machine+"/"+name)
	return id[:min(len(id), 255)]
}

// freePort returns a port that nobody listens on. Somebody else may be faster to
// take it than the host; then the host says so.
func freePort() (int, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("find a port for the host: %w", err)
	}
	defer ln.Close()
	return ln.Addr().(*net.TCPAddr).Port, nil
}

// run runs the host inside of its proxy.
func (h *execHost) run(ctx context.Context, stderr io.Writer) (err error) {
	if h.dir, err = os.MkdirTemp("", "wopproxy-exec-"); err != nil {
		return err
	}
	defer os.RemoveAll(h.dir)
	h.config.Drain.Delay = config.Duration{} // it waits for callers of a host, which will be gone
	if len(h.config.Egress.Intercept) > 0 {
		h.config.Egress.CA.Bundle = filepath.Join(h.dir, "bundle.pem")
	}
	s, err := h.open(ctx, stderr)
	if err != nil {
		return err
	}
	if names := carry.ForeignProxies(h.cmd.Env); len(names) > 0 {
		s.log.WarnContext(ctx, "the environment names another proxy, which stays: calls through it are not seen; set the variable to nothing to have wopproxy instead",
			"variables", strings.Join(names, " "))
	}
	serving := begin(context.WithoutCancel(ctx), s.run)
	ended, err := h.inside(ctx, s, serving)
	stopErr := serving.stop()
	switch {
	case !ended:
		return errors.Join(err, stopErr)
	case stopErr != nil: // the host's status is what was asked for
		s.log.WarnContext(ctx, "not all could be finished", "err", stopErr)
	}
	return err
}

// open opens a wopproxy, with the first store that is free if there is a choice.
func (h *execHost) open(ctx context.Context, stderr io.Writer) (*sidecar, error) {
	store := theStore
	if h.stores != "" {
		store = firstFree(h.stores)
	}
	l, err := listen(h.config)
	if err != nil {
		return nil, err
	}
	if h.quiet { // without a file; whoever walks the ancestry comes to ingress
		h.config.Host.WellKnownURL.Host = reachable(l.ingress.Addr())
	}
	return newSidecarOn(ctx, h.config, l, forOwnHost(store), os.LookupEnv, stderr)
}

// inside starts the host once s serves, and returns how it ended. It returns
// false if it never ran, or if s has ended before it.
func (h *execHost) inside(ctx context.Context, s *sidecar, serving *task) (ended bool, err error) {
	if err := awaitReady(s, serving); err != nil {
		return false, err
	}
	if h.quiet {
		s.level.Set(slog.LevelWarn)
	}
	if err := h.prepare(s); err != nil {
		return false, err
	}
	c, err := startChild(h.cmd)
	if err != nil {
		return false, err
	}
	alive, giveUp := context.WithCancel(ctx)
	defer giveUp()
	go func() { // ends with the proxy, which ends with the host
		<-serving.done
		giveUp()
	}()
	err = c.wait(alive, 0)
	select {
	case <-serving.done:
		return false, errors.New("wopproxy has ended before COMMAND, which was then asked to end")
	default:
		return true, err
	}
}

// awaitReady returns when s serves. A signal that comes meanwhile is for the host,
// which is then started to hear it.
func awaitReady(s *sidecar, serving *task) error {
	select {
	case <-s.serving:
		return nil
	case <-serving.done:
		return errors.New("wopproxy has ended before COMMAND was started")
	}
}

// reachable is the address at which this machine reaches a listener.
func reachable(a net.Addr) string {
	tcp := a.(*net.TCPAddr)
	host := tcp.IP.String()
	if tcp.IP.IsUnspecified() {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, strconv.Itoa(tcp.Port))
}

// prepare writes what the host reads, and completes its environment.
func (h *execHost) prepare(s *sidecar) error {
	if err := shareWithHost(h.dir, h.config, s.trust); err != nil {
		return err
	}
	e := carry.Settings{
		Egress: "http://" + reachable(s.egress.Addr()), NoProxy: []string{reachable(s.admin.Addr())},
		Headers: []string{"traceparent", "tracestate", "baggage", string(h.config.Headers.RunID), string(h.config.Headers.RunAncestry)},
		Environ: h.cmd.Env,
	}
	if h.carry {
		e.Shims = filepath.Join(h.dir, shimsDir)
	}
	if len(h.config.Egress.Intercept) > 0 {
		if err := h.writeRoots(&e, s.trust.ca.PEM()); err != nil {
			return fmt.Errorf("write the roots for the host: %w", err)
		}
	}
	h.cmd.Env = carry.Apply(h.cmd.Env, carry.Environment(e))
	return nil
}

// writeRoots writes the roots that the host trusts besides ours.
func (h *execHost) writeRoots(e *carry.Settings, ours []byte) error {
	e.Bundle, e.CA, e.TrustStore = h.config.Egress.CA.Bundle, filepath.Join(h.dir, authorityFile), filepath.Join(h.dir, trustStoreFile)
	e.Bundles = map[string]string{}
	for i, file := range carry.CAFiles(e.Environ) {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // the host can't read it either
		}
		e.Bundles[file] = filepath.Join(h.dir, fmt.Sprintf("bundle-%d.pem", i+1))
		if err := os.WriteFile(e.Bundles[file], append(append(text, '\n'), ours...), 0o644); err != nil {
			return err
		}
	}
	return nil
}
