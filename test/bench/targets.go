package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// target is a bound that wopproxy is held to, by figures of one run.
type target struct {
	what       string
	most       float64
	digits     int      // behind the point
	contenders []string // by name
	of         func(*table, *contender) float64
}

// targets are what a sidecar may cost. Ratios carry over to other machines, and the
// others are of one with a processor for it alone.
var targets = []target{
	{"CPU for MCP 1 KB, × ReverseProxy", 1, 2, []string{"ingress", "egress"}, cpuRatio(latencyKind)},
	{"the same, all sampled and exported", 1.4, 2, []string{"ingress-sampled", "egress-sampled"}, cpuRatio(latencyKind)},
	{"CPU for what is not agents', × ReverseProxy", 0.95, 2, []string{"ingress", "egress"}, cpuRatio("plain")},
	{"CPU for MCP 1 KB in TLS that is opened, × goproxy", 1.1, 2, []string{"intercept"}, cpuRatio(latencyKind)},
	{fmt.Sprintf("added p50 at %d/s, µs", latencyRate), 200, 0, []string{"ingress", "egress", "intercept"}, added(delay.median)},
	{fmt.Sprintf("added p99 at %d/s, µs", latencyRate), 400, 0, []string{"ingress", "egress", "intercept"}, added(delay.slow)},
	{"added p50, × ReverseProxy's", 1.2, 2, []string{"ingress", "egress"}, func(t *table, c *contender) float64 {
		of := added(delay.median)
		return of(t, c) / of(t, t.named("reverseproxy"))
	}},
	{"ms to start", 20, 0, []string{"ingress", "egress"}, func(_ *table, c *contender) float64 { return known(float64(c.startup.Milliseconds())) }},
	{"MiB, idle", 14, 1, []string{"ingress", "egress"}, func(_ *table, c *contender) float64 { return known(float64(c.idle) / (1 << 20)) }},
	{"MiB, 64 connections", 20, 1, []string{"ingress", "egress"}, peakAt(64)},
	{"MiB, 512 connections", 48, 1, []string{"ingress", "egress"}, peakAt(512)},
}

// held are the targets and what came of them: in bold where it is too much. Those
// that were not measured are left out.
func (t *table) held() [][]string {
	lines := [][]string{{"target", "at most", "measured"}}
	for _, g := range targets {
		var found []string
		for _, name := range g.contenders {
			c := t.named(name)
			if c == nil {
				continue
			}
			n := g.of(t, c)
			if math.IsNaN(n) || math.IsInf(n, 0) {
				continue
			}
			text := name + " " + strconv.FormatFloat(n, 'f', g.digits, 64)
			if n > g.most {
				text = "**" + text + "**"
			}
			found = append(found, text)
		}
		if found != nil {
			lines = append(lines, []string{g.what, strconv.FormatFloat(g.most, 'f', g.digits, 64), strings.Join(found, ", ")})
		}
	}
	return lines
}

// known is n, or not a number where nobody knows it.
func known(n float64) float64 {
	if n == 0 {
		return math.NaN()
	}
	return n
}

// cpuRatio is of the column that costs and latency are told of, or the last there is.
func cpuRatio(kind string) func(*table, *contender) float64 {
	return func(t *table, c *contender) float64 {
		for _, n := range []int{t.latencyAt, t.connections[len(t.connections)-1]} {
			if times := t.ratios(place{c, kind, n}); len(times) > 0 {
				return median(times)
			}
		}
		return math.NaN()
	}
}

func added(of func(delay) time.Duration) func(*table, *contender) float64 {
	return func(t *table, c *contender) float64 {
		if c != nil { // else it takes no part
			if all := t.longer(c, of); len(all) > 0 {
				return median(all)
			}
		}
		return math.NaN()
	}
}

func peakAt(connections int) func(*table, *contender) float64 {
	return func(t *table, c *contender) float64 {
		return known(float64(t.peak(place{c, latencyKind, connections})) / (1 << 20))
	}
}
