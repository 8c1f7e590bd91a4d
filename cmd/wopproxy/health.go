package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

const healthManual = `health [-url URL]

Asks a wopproxy whether it is ready, and exits 1 if the answer is not 200 or does
not come in time. For images without a shell: a health check of Docker, an exec
probe, a test of a chart.

`

func healthCommand(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	return askCommand(ctx, newFlags("health", healthManual, stderr), http.MethodGet,
		"http://127.0.0.1:9090/readyz", "`URL` of a probe: /readyz, /livez or /startupz of the admin listener, or of admin.health", args, stdout)
}

// askCommand asks a running wopproxy for -url, which is at unless it is said, and
// prints the answer. It is an error if that is not 200.
func askCommand(ctx context.Context, f *flag.FlagSet, method, at, usage string, args []string, stdout io.Writer) error {
	url := f.String("url", at, usage)
	timeout := f.Duration("timeout", 5*time.Second, "how long the answer may take")
	if _, err := parse(f, args, 0); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, *timeout)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, *url, nil)
	if err != nil {
		return fmt.Errorf("-url: %w", err)
	}
	// Directly: what the environment names as proxy may be the one that is asked.
	resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(r)
	if err != nil {
		return fmt.Errorf("ask %s: %w", *url, err)
	}
	defer resp.Body.Close()
	said, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10)) // what has come is told
	if resp.StatusCode != http.StatusOK {
		return errors.New(strings.TrimSpace(fmt.Sprintf("%s answers %s %s", *url, resp.Status, said)))
	}
	_, err = stdout.Write(said)
	return err
}
