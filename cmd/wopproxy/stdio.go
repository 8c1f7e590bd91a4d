package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/wopproxy/wopproxy/ancestry"
	"github.com/wopproxy/wopproxy/config"
	"github.com/wopproxy/wopproxy/proxy"
)

const stdioManual = `stdio [-config FILE] -- COMMAND [ARGUMENT...]

Runs COMMAND, an MCP server on standard input and output, and stands in for it in
the entry of any client. Calls bring their context in params._meta, or else have
that of TRACEPARENT, TRACESTATE and BAGGAGE; what the server asks of the client
goes out with the context of the call that it belongs to, and so does the call
itself to the server. Nothing else on either pipe is touched, and COMMAND has
standard error to itself.

Signals go to COMMAND, and its exit status is given back: 128 and the number of
the signal that ended it, 127 if it is not found, 126 if it can't be started.
When the client closes the input, COMMAND's is closed, and its output carried on
to the end. On Linux COMMAND is killed if wopproxy is.

The file is that of serve, read once; its ingress, egress and admin sections do
not count. The client counts as 127.0.0.1 for trust.ingress and as localhost for
trust.egress. Several can run at once, with one file: each keeps its links in the
first of STORE/1, STORE/2, ... that no other has. If it can't, that is logged, and
COMMAND runs all the same. "wopproxy ancestry RUN -store STORE" reads them when
COMMAND has ended. Spans are exported as serve does.

`

// stdioOptions are the flags of stdio.
type stdioOptions struct {
	file, hostID, store, admin, log string
	grace                           time.Duration
}

func stdioCommand(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	var o stdioOptions
	f := newFlags("stdio", stdioManual, stderr)
	f.StringVar(&o.file, "config", "", "configuration `file`; without it defaults count")
	f.StringVar(&o.hostID, "host-id", "", "hostId of the server (default host.id of the file; else the machine's name, /, and COMMAND's)")
	f.StringVar(&o.store, "store", "", "STORE, a `folder` for links (default ancestry.store.bolt.dir of the file and /stdio; else\n$XDG_STATE_HOME/wopproxy/stdio/HOSTID; XDG_STATE_HOME is by default ~/.local/state)")
	f.StringVar(&o.admin, "admin", "", "`address` for metrics, probes and ancestry (default none)")
	f.StringVar(&o.log, "log", "", "`file` to append the log to (default warnings and errors, on stderr)")
	f.DurationVar(&o.grace, "grace", 10*time.Second, "time that COMMAND has to end after a SIGTERM, before it is killed; 0: any")
	command, err := parseCommand(f, args)
	if err != nil {
		return err
	}
	w, err := o.wrapper(filepath.Base(command[0]))
	if err != nil {
		return err
	}
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stderr = stderr
	return w.run(ctx, cmd, os.Stdin, stdout, stderr)
}

// wrapper is a wopproxy around a stdio server.
type wrapper struct {
	stdioOptions
	config *config.Config
	stores string // the first free one in here is taken
}

// wrapper reads the configuration for a server of that name.
func (o stdioOptions) wrapper(name string) (*wrapper, error) {
	c := config.Default()
	if o.file != "" {
		var err error
		if c, err = config.Load(o.file); err != nil {
			return nil, err
		}
	}
	switch {
	case o.hostID != "":
		c.Host.ID = o.hostID
	case c.Host.ID == "":
		c.Host.ID = defaultHostID(name)
	}
	if err := (ancestry.Link{Run: "any", Host: c.Host.ID}).Validate(); err != nil {
		return nil, fmt.Errorf("-host-id: %w", err)
	}
	// What is for listeners. Ancestry is read by who may use -admin.
	c.Ingress, c.Egress, c.Admin = config.Ingress{}, config.Egress{}, config.Admin{}
	c.Ancestry.Auth = config.Auth{Mode: config.AuthNone}
	c.ExecutionModel.Watch = config.Watch{} // nor for a host that has no address
	w := &wrapper{stdioOptions: o, config: c, stores: o.store}
	if w.stores == "" && o.file != "" {
		w.stores = filepath.Join(c.Ancestry.Store.Bolt.Dir, "stdio")
	}
	return w, nil
}

// run runs the server inside of its proxy. Its standard error is set already.
func (w *wrapper) run(ctx context.Context, cmd *exec.Cmd, stdin io.ReadCloser, stdout, stderr io.Writer) (err error) {
	logs := stderr
	if w.log == "" {
		w.config.Log.Level = max(w.config.Log.Level, slog.LevelWarn)
	} else {
		f, err := os.OpenFile(w.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
		if err != nil {
			return fmt.Errorf("-log: %w", err)
		}
		defer f.Close()
		logs = f
	}
	l := &listeners{}
	if w.admin != "" {
		if l.admin, err = net.Listen("tcp", w.admin); err != nil {
			return fmt.Errorf("-admin: %w", err)
		}
	}
	s, err := newSidecarOn(ctx, w.config, l, w.openStore, os.LookupEnv, logs)
	if err != nil {
		return err
	}
	stop := s.background(ctx)
	at := ""
	if s.admin != nil {
		at = s.admin.Addr().String()
	}
	s.log.InfoContext(ctx, "serving", "host", w.config.Host.ID, "command", cmd.Path, "admin", at)
	err = s.wrap(ctx, cmd, w.grace, stdin, stdout)
	stop()
	return err
}

// openStore opens the first store that is free. A server runs without one, too:
// its calls carry what they carry, and no link is kept.
func (w *wrapper) openStore(c *config.Config, log *slog.Logger) (store ancestry.Store, err error) {
	dir := w.stores
	if dir == "" {
		dir, err = storesOf("stdio", c.Host.ID)
	}
	if err == nil {
		store, err = forOwnHost(firstFree(dir))(c, log)
	}
	if err != nil {
		log.Warn("links are not kept; say with -store where they can be", "err", err)
		return noStore{ancestry.NewMemory(), err}, nil
	}
	return store, nil
}

// noStore is a store that can't be used.
type noStore struct {
	*ancestry.Memory // empty
	why              error
}

// Record keeps nothing.
func (s noStore) Record(context.Context, []ancestry.Link) error { return s.why }

// background begins what goes on beside the server, and returns what ends it,
// in the order that loses nothing. A client waits for our end: what can't be
// delivered soon is left.
func (s *sidecar) background(ctx context.Context) (stop func()) {
	late := context.WithoutCancel(ctx)
	recording := late
	if _, ok := s.store.(noStore); ok {
		// A recorder that has stopped counts what it is given as lost, and nobody
		// waits for it.
		over, cancel := context.WithCancel(late)
		cancel()
		recording = over
	}
	recorder := begin(recording, func(ctx context.Context) error { s.recorder.Run(ctx); return nil })
	minter := begin(late, s.mint)
	pruner := begin(late, func(ctx context.Context) error {
		s.pruneAt(ctx, time.Now()) // servers may not live for an hour
		return s.prune(ctx)
	})
	admin := begin(late, func(ctx context.Context) error {
		if s.admin == nil {
			return nil
		}
		return serve(ctx, s.admin, s.adminHandler(s.started), s.adminServer())
	})
	return func() {
		s.drain.begun.Store(true)
		flush, cancel := context.WithTimeout(late, 2*time.Second)
		defer cancel()
		if err := errors.Join(recorder.stop(), minter.stop(), pruner.stop(), s.flushSpans(flush), s.store.Close(), admin.stop()); err != nil {
			s.log.WarnContext(ctx, "not all could be finished", "err", err)
		}
	}
}

// wrap runs cmd between stdin and stdout, and returns how it ended.
func (s *sidecar) wrap(ctx context.Context, cmd *exec.Cmd, grace time.Duration, stdin io.ReadCloser, stdout io.Writer) error {
	serverIn, toServer, err := os.Pipe()
	if err != nil {
		return err
	}
	fromServer, serverOut, err := os.Pipe()
	if err != nil {
		return err
	}
	cmd.Stdin, cmd.Stdout = serverIn, serverOut
	// A client that no longer reads is the server's affair, and must not end us.
	broken := make(chan os.Signal, 1)
	signal.Notify(broken, syscall.SIGPIPE)
	defer signal.Stop(broken)
	c, err := startChild(cmd)
	serverIn.Close()
	serverOut.Close()
	if err != nil {
		return err
	}
	var env proxy.Environment
	env.Traceparent, _ = os.LookupEnv("TRACEPARENT")
	env.Tracestate, _ = os.LookupEnv("TRACESTATE")
	env.Baggage, _ = os.LookupEnv("BAGGAGE")
	carried := make(chan struct{})
	go func() { // ends with the server's output
		defer close(carried)
		s.proxy.Stdio(proxy.Pipes{FromClient: stdin, ToClient: closing(stdout), FromServer: lastWords{fromServer}, ToServer: toServer}, env)
	}()
	err = c.wait(ctx, grace)
	_ = fromServer.SetReadDeadline(time.Now()) // where it can't be set, the output ends by itself
	<-carried
	return err
}

// lastWords is the output of a server. When the server has ended, a deadline is
// set, and what it has left behind is read until nothing comes for a moment: a
// process that it has started may hold the pipe open for good.
type lastWords struct{ *os.File }

func (w lastWords) Read(b []byte) (int, error) {
	n, err := w.File.Read(b)
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return n, err
	}
	_ = w.SetReadDeadline(time.Now().Add(time.Second))
	if n, err = w.File.Read(b); errors.Is(err, os.ErrDeadlineExceeded) {
		err = io.EOF
	}
	return n, err
}

// closing makes a writer one that can be closed, if it is none.
func closing(w io.Writer) io.WriteCloser {
	if c, ok := w.(io.WriteCloser); ok {
		return c
	}
	return struct {
		io.Writer
		io.Closer
	}{w, io.NopCloser(nil)}
}
