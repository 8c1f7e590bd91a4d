package main

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"

	"github.com/wopproxy/wopproxy/test/internal/program"
)

// table is what is printed: a row for each mode, a column for each number of
// runs at once.
type table struct {
	columns []int
	rows    []*row
}

type row struct {
	mode  mode
	hosts []string
	cells map[int]tally
}

func (t *table) add(m mode) *row {
	r := &row{mode: m, cells: map[int]tally{}}
	t.rows = append(t.rows, r)
	return r
}

// fill plays all stages of a mode at once, and returns what breaks the rule.
func (r *row) fill(ctx context.Context, stages []*stage, columns []int) (faults []error) {
	var all sync.WaitGroup
	for _, s := range stages {
		all.Go(func() { s.err = s.play(ctx, columns) })
	}
	all.Wait()
	for _, s := range stages {
		faults = append(faults, s.err)
		r.take(s.host.name, s.tallies)
	}
	return faults
}

// take adds what came of one host.
func (r *row) take(host string, tallies map[int]tally) {
	r.hosts = append(r.hosts, host)
	for at, t := range tallies {
		sum := r.cells[at]
		sum.add(t)
		r.cells[at] = sum
	}
}

func (t *table) calls() (n int) {
	for _, r := range t.rows {
		for _, c := range r.cells {
			n += c.calls
		}
	}
	return n
}

// heading is the first line of the table.
func (t *table) heading() []string {
	cells := []string{"hosts that hand on", "in", "evidence"}
	for _, at := range t.columns {
		cells = append(cells, strconv.Itoa(at))
	}
	return cells
}

// guessed is the name of the last row.
const guessed = "for comparison: the session active last"

// write prints the table as Markdown. A cell has the share of calls that were
// linked, and of all calls those linked right, linked wrong and left alone. The
// last row has the share that is wrong by a guess, on all traffic of its column.
func (t *table) write(w io.Writer) error {
	lines := [][]string{t.heading()}
	sums := map[int]tally{}
	for _, r := range t.rows {
		line := []string{r.mode.name, strings.Join(r.hosts, ", "), strings.Join(r.mode.by, ", ")}
		for _, at := range t.columns {
			c := r.cells[at]
			line = append(line, fmt.Sprintf("%s (%d/%d/%d)", share(c.right+c.wrong, c.calls), c.right, c.wrong, c.abstained))
			sum := sums[at]
			sum.add(c)
			sums[at] = sum
		}
		lines = append(lines, line)
	}
	last := []string{guessed, "the same", "a guess"}
	for _, at := range t.columns {
		last = append(last, share(sums[at].misguessed, sums[at].calls)+" wrong")
	}
	return program.WriteMarkdown(w, append(lines, last))
}

func share(n, of int) string {
	if of == 0 {
		return "–"
	}
	return fmt.Sprintf("%.0f %%", 100*float64(n)/float64(of))
}
