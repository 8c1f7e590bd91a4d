package main

import (
	"context"
	"io"
	"os"

	"github.com/wopproxy/wopproxy/config"
)

const serveManual = `serve -config FILE

Runs beside one host until SIGTERM or SIGINT, then drains and exits 0; a second
signal ends it at once. SIGHUP, or a change of the file, reloads what can change
without a restart; a file with mistakes changes nothing and is reported.

On the ingress listener: the host's own interface, and /v1/runs/{id}/ancestry
and /runs/{id}/ancestry. On the egress listener: a forward proxy for the host.
On the admin listener: /livez /readyz /startupz /metrics, /ancestry/v1/ and
/log/level.

Spans are exported if tracing.otlp.endpoint or OTEL_EXPORTER_OTLP_ENDPOINT is
set. OTEL_* variables count where the file is silent.

In a container that is limited to one CPU, or in memory, GOMAXPROCS and GOMEMLIMIT
are set to fit, unless they are set already.

`

func serveCommand(ctx context.Context, args []string, _, stderr io.Writer) error {
	f := newFlags("serve", serveManual, stderr)
	file := f.String("config", "wopproxy.yaml", "configuration `file`")
	if _, err := parse(f, args, 0); err != nil {
		return err
	}
	c, err := config.Load(*file)
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
	s.file = *file
	if chosen := fit(os.DirFS("/"), os.LookupEnv); chosen != nil {
		s.log.InfoContext(ctx, "fitted to the limits of the control group", chosen...)
	}
	return s.run(ctx)
}
