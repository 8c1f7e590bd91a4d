// Command wopproxy is a sidecar that makes causation survive the boundary
// between agent hosts.
//
//	wopproxy serve -config wopproxy.yaml      run beside a host
//	wopproxy stdio -- COMMAND                 run a stdio MCP server with a wopproxy around it
//	wopproxy exec -- COMMAND                  start a host with a wopproxy of its own
//	wopproxy check -config wopproxy.yaml      say what is wrong with a configuration
//	wopproxy ancestry RUN -host URL           ask who caused a run, host by host
//	wopproxy audit FILE|URL                   check an event log against the execution model
//	wopproxy evidence export RUN              print the signed evidence of a run as one bundle
//	wopproxy evidence verify FILE|URL         check signed evidence of a workflow, offline
//	wopproxy inject -f FILE                   put a wopproxy beside the hosts of a manifest
//	wopproxy webhook -service NAME ...        put one beside the hosts of a cluster
//	wopproxy health                           say whether one is ready
//	wopproxy drain                            tell one that its host is about to be stopped
//	wopproxy redirect -inbound P -outbound P  have the kernel lead a pod's TCP to its wopproxy
//	wopproxy demo                             watch a run cross three hosts
//	wopproxy version                          say what this is
//
// Each command has a manual: wopproxy COMMAND -h. A command exits 0 when it did
// what it was asked for (serve: after an orderly stop), 1 when it failed and 2
// when it was used wrongly. Logs go to stderr, as JSON lines; metrics, probes
// and the ancestry extensions are on the admin listener.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal kills us at once
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// errUsage is returned by a command that has already explained the mistake.
var errUsage = errors.New("usage")

// command is one of the program's commands.
type command struct {
	name, summary string
	run           func(ctx context.Context, args []string, stdout, stderr io.Writer) error
}

var commands = []command{
	{"serve", "run beside a host", serveCommand},
	{"stdio", "run a stdio MCP server with a wopproxy around it", stdioCommand},
	{"exec", "start a host with a wopproxy of its own", execCommand},
	{"check", "say what is wrong with a configuration", checkCommand},
	{"ancestry", "ask who caused a run, host by host", ancestryCommand},
	{"audit", "check an event log against the execution model", auditCommand},
	{"evidence", "export and check signed evidence of a workflow", evidenceCommand},
	{"inject", "put a wopproxy beside the hosts of a manifest", injectCommand},
	{"webhook", "put a wopproxy beside the hosts of a cluster", webhookCommand},
	{"health", "say whether a wopproxy is ready", healthCommand},
	{"drain", "tell a wopproxy that its host is about to be stopped", drainCommand},
	{"redirect", "have the kernel lead a pod's TCP to its wopproxy", redirectCommand},
	{"demo", "watch a run cross three hosts", demoCommand},
	{"version", "say what this is", versionCommand},
}

// run is main without the process: tests call it with their own context,
// arguments and writers.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	name := "help"
	if len(args) > 0 {
		name, args = args[0], args[1:]
	}
	i := slices.IndexFunc(commands, func(c command) bool { return c.name == name })
	if i < 0 {
		return usage(name, stdout, stderr)
	}
	return exitCode(commands[i].run(ctx, args, stdout, stderr), name, stderr)
}

// exitCode says what went wrong, unless that is said already, and returns the
// code to exit with.
func exitCode(err error, name string, stderr io.Writer) int {
	var exit exitError
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
		return 0
	case errors.Is(err, errUsage):
		return 2
	case !errors.As(err, &exit):
		exit = exitError{1, err}
	}
	if exit.err != nil {
		fmt.Fprintf(stderr, "wopproxy %s: %v\n", name, err)
	}
	return exit.code
}

// usage lists the commands: on stdout for who asked, on stderr for who erred.
func usage(name string, stdout, stderr io.Writer) int {
	w, code := stderr, 2
	switch name {
	case "-h", "-help", "--help", "help":
		w, code = stdout, 0
	default:
		fmt.Fprintf(stderr, "wopproxy: unknown command %q\n", name)
	}
	fmt.Fprint(w, "usage: wopproxy COMMAND [-h] ...\n\n")
	for _, c := range commands {
		fmt.Fprintf(w, "  %-10s %s\n", c.name, c.summary)
	}
	return code
}

// newFlags returns the flag set of a command, whose manual begins with text.
func newFlags(name, text string, stderr io.Writer) *flag.FlagSet {
	f := flag.NewFlagSet(name, flag.ContinueOnError)
	f.SetOutput(stderr)
	f.Usage = func() {
		fmt.Fprintf(stderr, "usage: wopproxy %s\n", text)
		f.PrintDefaults()
	}
	return f
}

// parse reads flags and operands in any order and returns the operands. It
// explains what is wrong, and then returns errUsage.
func parse(f *flag.FlagSet, args []string, operands int) ([]string, error) {
	var found []string
	for {
		if err := f.Parse(args); errors.Is(err, flag.ErrHelp) {
			return nil, err
		} else if err != nil {
			return nil, errUsage
		}
		if f.NArg() == 0 {
			break
		}
		found, args = append(found, f.Arg(0)), f.Args()[1:]
	}
	if len(found) != operands {
		fmt.Fprintf(f.Output(), "wopproxy %s: %d operands given, want %d\n", f.Name(), len(found), operands)
		f.Usage()
		return nil, errUsage
	}
	return found, nil
}

// parseCommand reads flags up to the first operand or "--", and returns what
// follows: a COMMAND and its arguments, whose own flags are left alone. It
// explains what is wrong, and then returns errUsage.
func parseCommand(f *flag.FlagSet, args []string) ([]string, error) {
	if err := f.Parse(args); errors.Is(err, flag.ErrHelp) {
		return nil, err
	} else if err != nil {
		return nil, errUsage
	}
	if f.NArg() == 0 || f.Arg(0) == "" {
		fmt.Fprintf(f.Output(), "wopproxy %s: no COMMAND given, write it behind --\n", f.Name())
		f.Usage()
		return nil, errUsage
	}
	return f.Args(), nil
}
