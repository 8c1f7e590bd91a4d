package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/wopproxy/wopproxy/config"
)

const checkManual = `check -config FILE

Reads a configuration as serve would and prints every mistake in it, each with
the path of its key, its line, and what to write instead. Exits 1 if there is
one. Secrets are read too, so run it where they are.
`

func checkCommand(_ context.Context, args []string, stdout, stderr io.Writer) error {
	f := newFlags("check", checkManual, stderr)
	file := f.String("config", "wopproxy.yaml", "configuration `file`")
	if _, err := parse(f, args, 0); err != nil {
		return err
	}
	c, err := config.Load(*file)
	if err != nil {
		return err
	}
	if _, err := readSecrets(c, os.LookupEnv); err != nil {
		return err
	}
	_, err = fmt.Fprintf(stdout, "%s: ok, host %s\n", *file, c.Host.ID)
	return err
}
