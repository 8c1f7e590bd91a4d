package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
)

const checkManual = `check [-config FILE] [-config-env NAME]

Reads a configuration as serve would and prints every mistake in it, each with
the path of its key, its line, and what to write instead. Exits 1 if there is
one. Secrets and the keys of evidence are read too, so run it where they are.
`

func checkCommand(_ context.Context, args []string, stdout, stderr io.Writer) error {
	f := newFlags("check", checkManual, stderr)
	from := sourceFlags(f)
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
	sec, err := readSecrets(c, os.LookupEnv)
	if err != nil {
		return err
	}
	if _, err := evidenceOptions(c, sec); err != nil {
		return err
	}
	_, err = fmt.Fprintf(stdout, "%s: ok, host %s\n", cmp.Or(src.file, "configuration"), c.Host.ID)
	return err
}
