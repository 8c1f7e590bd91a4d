package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"

	"github.com/wopproxy/wopproxy/deploy/inject"
)

const injectManual = `inject -f FILE [-set KEY=VALUE] [-image IMAGE]
       wopproxy inject -f FILE -uninject

Puts a wopproxy beside the host in each pod of a Kubernetes manifest, and prints
the manifest: wopproxy inject -f FILE | kubectl apply -f -. FILE may be -, for
standard input, and hold YAML or JSON, several documents and Lists. What has no
pods passes as it is.

A pod says by annotations (wopproxy.dev/KEY) what it wants, and by the label
wopproxy.dev/inject: "false" that it wants none. -set is for all pods that say
nothing; deploy/inject/README.md lists the keys. What is injected is taken back with
-uninject, and anew with each run.

Where a pod can't be injected safely nothing is printed, stderr says which and what
to do, and it exits 1. Other notes on stderr are for you to know.

`

func injectCommand(_ context.Context, args []string, stdout, stderr io.Writer) error {
	o := inject.Options{Settings: map[string]string{}}
	f := newFlags("inject", injectManual, stderr)
	file := f.String("f", "", "`file` with the manifest; - for standard input")
	var defaults string
	injectFlags(f, &o, &defaults)
	uninject := f.Bool("uninject", false, "take back what was injected")
	if _, err := parse(f, args, 0); err != nil {
		return err
	}
	if *file == "" {
		fmt.Fprintln(stderr, "wopproxy inject: say with -f which manifest, - for standard input")
		return errUsage
	}
	manifest, err := readManifest(*file)
	if err != nil {
		return err
	}
	var notes []inject.Note
	if *uninject {
		manifest, notes, err = inject.Uninject(manifest)
	} else {
		if err := readDefaults(&o, defaults); err != nil {
			return err
		}
		manifest, notes, err = inject.Inject(manifest, o)
	}
	for _, n := range notes {
		fmt.Fprintln(stderr, n)
	}
	if err != nil {
		return fmt.Errorf("nothing is printed:\n%w", err)
	}
	_, err = stdout.Write(manifest)
	return err
}

// injectFlags adds the flags that say what pods leave open.
func injectFlags(f *flag.FlagSet, o *inject.Options, defaults *string) {
	version, _ := build()
	f.StringVar(&o.Image, "image", imageOf(version), "`image` of the sidecar; a program that is no release has none by itself")
	f.StringVar(defaults, "config", "", "`file` with configuration for all sidecars, a part of wopproxy.yaml (default none)")
	f.Func("set", "`KEY=VALUE` of a setting for pods that say nothing else; repeatable", func(s string) error {
		key, value, ok := strings.Cut(s, "=")
		if !ok {
			return errors.New("want KEY=VALUE, such as carry=auto")
		}
		o.Settings[key] = value
		return inject.Check(o.Settings)
	})
}

// readDefaults reads the configuration for all sidecars, and says what is wrong with
// the options.
func readDefaults(o *inject.Options, file string) (err error) {
	if o.Image == "" {
		return errors.New("say with -image which image the sidecars run: this program is no release, which would know its own")
	}
	if file != "" {
		if o.Config, err = os.ReadFile(file); err != nil {
			return fmt.Errorf("-config: %w", err)
		}
	}
	return o.Check()
}

func readManifest(file string) ([]byte, error) {
	if file == "-" {
		return io.ReadAll(os.Stdin)
	}
	return os.ReadFile(file)
}

// released is the version of a release: one between two of them names a commit, or
// that something has been changed.
var released = regexp.MustCompile(`^v[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.]+)?$`)

// imageOf is the image that goes with a version of this program, "" if there is none.
func imageOf(version string) string {
	if !released.MatchString(version) {
		return ""
	}
	return "ghcr.io/wopproxy/wopproxy:" + strings.TrimPrefix(version, "v")
}
