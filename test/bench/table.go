package main

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	"github.com/wopproxy/wopproxy/test/internal/program"
)

// table is what is printed.
type table struct {
	options
	rows     []*contender
	cells    map[place][]figures    // a round each
	delays   []map[*contender]delay // a round each
	thoughts []map[place]delay      // the same, while the upstream thinks
}

// place is a contender with one kind of traffic and a number of connections.
type place struct {
	contender   *contender
	kind        string
	connections int
}

// delay is what a round found at a fixed rate.
type delay struct{ p50, p99 time.Duration }

func (d delay) median() time.Duration { return d.p50 }
func (d delay) slow() time.Duration   { return d.p99 }

func newTable(o options, rows []*contender) *table {
	t := &table{options: o, rows: rows, cells: map[place][]figures{}}
	for range o.rounds {
		t.delays = append(t.delays, map[*contender]delay{})
		t.thoughts = append(t.thoughts, map[place]delay{})
	}
	return t
}

func (t *table) add(c *contender, k traffic, connections int, f figures) {
	at := place{c, k.name, connections}
	t.cells[at] = append(t.cells[at], f)
}

// named returns a row by the name of its contender, or nil.
func (t *table) named(name string) *contender {
	if i := slices.IndexFunc(t.rows, func(c *contender) bool { return c.name == name }); i >= 0 {
		return t.rows[i]
	}
	return nil
}

// write prints tables: processor time for each kind of traffic, one for each number
// of connections, and then all else for MCP.
func (t *table) write(w io.Writer) error {
	if t.think > 0 {
		return program.WriteMarkdown(w, t.pondered())
	}
	for i, n := range t.connections {
		if i > 0 {
			fmt.Fprintln(w)
		}
		if err := program.WriteMarkdown(w, t.costs(n)); err != nil {
			return err
		}
	}
	if !slices.ContainsFunc(t.kinds, func(k traffic) bool { return k.name == latencyKind }) {
		return nil
	}
	fmt.Fprintln(w)
	return program.WriteMarkdown(w, t.rest())
}

// costs is microseconds of the processor for an exchange, and beside it how many
// times that of the yardstick.
func (t *table) costs(connections int) [][]string {
	heading := []string{fmt.Sprintf("CPU µs, %d connections", connections)}
	for _, k := range t.kinds {
		heading = append(heading, k.title)
	}
	lines := [][]string{heading}
	for _, c := range t.rows {
		if c.start == nil {
			continue
		}
		line := []string{c.title}
		for _, k := range t.kinds {
			line = append(line, t.cost(place{c, k.name, connections}))
		}
		lines = append(lines, line)
	}
	return lines
}

// cost is one cell: median, half of the spread, and the ratio.
func (t *table) cost(at place) string {
	own := t.column(at, cpuOf)
	if len(own) == 0 {
		return "–"
	}
	text := micros(median(own))
	if len(own) > 1 {
		text += fmt.Sprintf(" ± %.0f %%", spread(own))
	}
	if times := t.ratios(at); len(times) > 0 {
		text += fmt.Sprintf(" (%.2f)", median(times))
	}
	return text
}

// ratios are how many times that of the yardstick an exchange costs, in each round:
// what slows the machine slows both.
func (t *table) ratios(at place) (times []float64) {
	own, other := t.column(at, cpuOf), t.column(place{t.named(at.contender.yardstick()), at.kind, at.connections}, cpuOf)
	if len(other) != len(own) {
		return nil
	}
	for i := range own {
		times = append(times, own[i]/other[i])
	}
	return times
}

// rest is what else there is to say about MCP messages of 1 KB.
func (t *table) rest() [][]string {
	heading := []string{"MCP 1 KB"}
	for _, n := range t.connections {
		heading = append(heading, fmt.Sprintf("requests/s, %d", n))
	}
	heading = append(heading, fmt.Sprintf("added p50 at %d/s, µs", latencyRate), "p99", "ms to start", "MiB, idle")
	for _, n := range t.connections {
		heading = append(heading, fmt.Sprintf("MiB, %d", n))
	}
	lines := [][]string{append(heading, "allocations")}
	for _, c := range t.rows {
		line := []string{c.title}
		for _, n := range t.connections {
			line = append(line, whole(t.column(place{c, latencyKind, n}, func(f figures) float64 { return f.rate })))
		}
		line = append(line, whole(t.longer(c, delay.median)), whole(t.longer(c, delay.slow)))
		line = append(line, millis(c.startup), mebibytes(c.idle))
		for _, n := range t.connections {
			line = append(line, mebibytes(t.peak(place{c, latencyKind, n})))
		}
		allocs := "–"
		if c.admin != "" {
			allocs = whole(t.column(place{c, latencyKind, t.connections[len(t.connections)-1]}, func(f figures) float64 { return f.allocs }))
		}
		lines = append(lines, append(line, allocs))
	}
	return lines
}

// longer is by how much an exchange takes longer than without the proxy, in
// microseconds, in each round that has both.
func (t *table) longer(c *contender, of func(delay) time.Duration) (all []float64) {
	base := t.named(c.nothing())
	for _, round := range t.delays {
		own, measured := round[c]
		if other, ok := round[base]; measured && ok {
			all = append(all, float64(of(own)-of(other))/1e3)
		}
	}
	return all
}

func cpuOf(f figures) float64 { return float64(f.cpu) }

// column returns one figure of each round.
func (t *table) column(at place, of func(figures) float64) (all []float64) {
	for _, f := range t.cells[at] {
		all = append(all, of(f))
	}
	return all
}

// peak is the most memory that any round found.
func (t *table) peak(at place) (n int64) {
	for _, f := range t.cells[at] {
		n = max(n, f.resident)
	}
	return n
}

func median(all []float64) float64 {
	s := slices.Sorted(slices.Values(all))
	if n := len(s); n%2 == 0 {
		return (s[n/2-1] + s[n/2]) / 2
	}
	return s[len(s)/2]
}

// spread is half of what lies between the extremes, as a share of the median.
func spread(all []float64) float64 {
	return 50 * (slices.Max(all) - slices.Min(all)) / median(all)
}

func micros(ns float64) string { return strconv.FormatFloat(ns/1e3, 'f', 1, 64) }

func millis(d time.Duration) string {
	if d == 0 {
		return "–"
	}
	return strconv.FormatInt(d.Milliseconds(), 10)
}

// whole is the median as a whole number.
func whole(all []float64) string {
	if len(all) == 0 {
		return "–"
	}
	return strconv.FormatFloat(median(all), 'f', 0, 64)
}

func mebibytes(n int64) string {
	if n == 0 {
		return "–"
	}
	return strconv.FormatFloat(float64(n)/(1<<20), 'f', 1, 64)
}
