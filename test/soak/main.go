// Command soak lets traffic of all kinds pass through wopproxy for long, and shows
// that nothing grows.
//
//	go run ./test/soak -out DIR                   10 million exchanges, an hour or two
//	go run ./test/soak -exchanges 0 -for 24h -out DIR
//	go run ./test/soak -quick                     a few thousand, in about 15 seconds
//
// It builds wopproxy and starts it, with a store on disk whose links are forgotten
// again and again. Callers send MCP, A2A, OpenWOP and what is none of these; the
// host answers, and calls tools for some of it, in clear and through TLS that is
// opened; tunnels pass blind. All through it the configuration is reloaded, good
// and bad, and peers fail: they refuse, break off, answer late or with errors, and
// hang up.
//
// Each exchange has to end as it must: with the bytes that the other side has sent,
// or with its fault. Each call of the host has to bear the run that makes it, and
// of some runs wopproxy is asked who caused them. Once the traffic is over nothing
// of it may be left, and a long one has to have been flat: it exits 1 otherwise. DIR
// gets soak.csv and soak.svg.
//
// Callers and hosts are in the process of the command: they know what the other
// side did without a word on the wire, and they are cheap, so that the processors
// are wopproxy's. It is measured on Linux.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal kills us at once
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// options say how much traffic there is.
type options struct {
	exchanges int64         // that end it; 0: any number
	lasts     time.Duration // that ends it; 0: any time
	callers   int           // at a time
	every     time.Duration // between two samples
	reload    time.Duration // between two reloads
	quick     bool
	out       string // a folder for the samples and the graph; empty: none are kept
	program   string // a wopproxy; empty: one is built
	kinds     []*kind
}

// run is main without the process.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	o, err := parse(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	} else if err != nil {
		return 2
	}
	if err := soak(ctx, o, stdout, stderr); err != nil {
		fmt.Fprintln(stderr, "soak:", err)
		return 1
	}
	return 0
}

func parse(args []string, stderr io.Writer) (options, error) {
	f := flag.NewFlagSet("soak", flag.ContinueOnError)
	f.SetOutput(stderr)
	o := options{every: 10 * time.Second, reload: 15 * time.Second, kinds: kinds()}
	f.Int64Var(&o.exchanges, "exchanges", 10_000_000, "end after this `number` of exchanges; 0: after any")
	f.DurationVar(&o.lasts, "for", 0, "end after this `time`, if that is sooner; 0: after any")
	f.IntVar(&o.callers, "callers", 32, "`number` of callers at a time")
	f.BoolVar(&o.quick, "quick", false, "for 8s, with more faults, without what ends only by its age; memory is not judged closely")
	f.StringVar(&o.out, "out", "", "a `folder` for the samples and their graph")
	f.StringVar(&o.program, "program", "", "a wopproxy, as a `file`, instead of building one")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if f.NArg() > 0 || o.callers < 1 || o.exchanges < 0 || o.lasts < 0 || o.exchanges == 0 && o.lasts == 0 && !o.quick {
		err := errors.New("want no arguments, at least one caller, and an end by -exchanges or -for")
		fmt.Fprintln(stderr, "soak:", err)
		return o, err
	}
	if o.quick {
		o.every, o.reload = 500*time.Millisecond, time.Second
		if o.lasts == 0 {
			o.lasts = 8 * time.Second
		}
		for _, k := range o.kinds {
			if k.byAge {
				k.share = 0
			} else if k.fault != none || k.call != nil && k.call.fault != none {
				k.share *= 5 // or there were too few
			}
		}
	}
	return o, nil
}
