package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"

	"github.com/wopproxy/wopproxy/config"
)

const serveManual = `serve [-config FILE] [-config-env NAME] [-share DIR]

Runs beside one host until SIGTERM or SIGINT, then drains and exits 0; a second
signal ends it at once. SIGHUP, or a change of the file, reloads what can change
without a restart; a file with mistakes changes nothing and is reported.

With -config-env, the variable NAME holds configuration, too, which outranks that
of the file; the file is then read only if -config names one. With -share, DIR has
what the host needs of this program before anything is served: carry/node.cjs and
carry/python, and where TLS is intercepted ca.pem and, for Java, roots.jks.

On the ingress listener: the host's own interface, and /v1/runs/{id}/ancestry
and /runs/{id}/ancestry. On the egress listener: a forward proxy for the host.
On the admin listener: /livez /readyz /startupz /metrics, /ancestry/v1/ and
/log/level and /drain; on admin.health the first four alone.

Spans are exported if tracing.otlp.endpoint or OTEL_EXPORTER_OTLP_ENDPOINT is
set. OTEL_* variables count where the file is silent.

In a container that is limited to one CPU, or in memory, GOMAXPROCS and GOMEMLIMIT
are set to fit, unless they are set already.

`

// configSource is where a configuration comes from.
type configSource struct {
	file string // empty: there is none
	over string // text that outranks the file's
}

func (s configSource) load() (*config.Config, error) { return config.LoadWith(s.file, s.over) }

// sourceFlags adds the flags that name a configuration. What it returns is to be
// called when they are parsed.
func sourceFlags(f *flag.FlagSet) func(lookupEnv) (configSource, error) {
	file := f.String("config", "", "configuration `file` (default wopproxy.yaml)")
	variable := f.String("config-env", "", "`variable` whose text is configuration that outranks the file's (default none)")
	return func(env lookupEnv) (configSource, error) {
		s := configSource{file: *file}
		if *variable == "" {
			s.file = cmp.Or(s.file, "wopproxy.yaml")
			return s, nil
		}
		var ok bool
		if s.over, ok = env(*variable); !ok {
			return s, fmt.Errorf("-config-env: there is no variable %s in the environment", *variable)
		}
		return s, nil
	}
}

func serveCommand(ctx context.Context, args []string, _, stderr io.Writer) error {
	f := newFlags("serve", serveManual, stderr)
	from := sourceFlags(f)
	dir := f.String("share", "", "`folder` to write into what the host reads (default none)")
	if _, err := parse(f, args, 0); err != nil {
		return err
	}
	src, err := from(os.LookupEnv)
	if err != nil {
		return err
	}
	c, err := src.load()
	if err != nil {
		return err
	}
	l, err := listen(c)
	if err != nil {
		return err
	}
	s, err := newSidecar(ctx, c, l, os.LookupEnv, stderr)
	if err != nil {
		return err
	}
	s.source = src
	if *dir != "" {
		if err := shareWithHost(*dir, c, s.trust); err != nil {
			return errors.Join(fmt.Errorf("-share: %w", err), l.close(), s.store.Close())
		}
	}
	if chosen := fit(os.DirFS("/"), os.LookupEnv); chosen != nil {
		s.log.InfoContext(ctx, "fitted to the limits of the control group", chosen...)
	}
	return s.run(ctx)
}
