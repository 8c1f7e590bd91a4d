package main

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
)

func versionCommand(_ context.Context, args []string, stdout, stderr io.Writer) error {
	if _, err := parse(newFlags("version", "version", stderr), args, 0); err != nil {
		return err
	}
	version, revision := build()
	_, err := fmt.Fprintf(stdout, "wopproxy %s (%s, %s)\n", version, revision, runtime.Version())
	return err
}

// build returns the module version and the commit that the program was built
// from, as the go command recorded them.
func build() (version, revision string) {
	version, revision = "devel", "unknown revision"
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return version, revision
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		version = v
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			revision = s.Value
		}
	}
	return version, revision
}
