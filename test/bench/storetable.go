package main

import (
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/wopproxy/wopproxy/test/internal/program"
)

// writeStoreTable prints what was measured of stores, as Markdown.
func writeStoreTable(w io.Writer, rows []storeRow) error {
	lines := [][]string{{
		"ids", "links stored", "µs CPU a link", "× empty", "commit p50, p99, ms", "p99 × empty",
		"look-up p50, p99, µs", "of no run", "of 10 children", "opened after kill -9, ms", "start, ms", "memory, mapped, MiB", "bytes a link",
	}}
	for _, r := range rows {
		bytes := "–"
		if r.bytes > 0 {
			bytes = strconv.FormatFloat(r.bytes, 'f', 0, 64)
		}
		lines = append(lines, []string{
			string(r.ids), strconv.Itoa(r.stored),
			micros(float64(r.full.cpu)), ratio(r.full.cpu, r.empty.cpu),
			r.full.commit.in(time.Millisecond, 1), ratio(r.full.commit.p99, r.empty.commit.p99),
			r.run.in(time.Microsecond, 0), r.none.in(time.Microsecond, 0), r.children.in(time.Microsecond, 0),
			strconv.FormatFloat(float64(r.opened.p50)/1e6, 'f', 1, 64), strconv.FormatFloat(float64(r.idle.ready)/1e6, 'f', 0, 64),
			mebibytes(r.idle.own) + ", " + mebibytes(r.idle.mapped), bytes,
		})
	}
	if err := program.WriteMarkdown(w, lines); err != nil {
		return err
	}
	for _, r := range rows {
		if r.forgotten > 0 {
			fmt.Fprintf(w, "\nForgetting %d links with %ss took %v.\n", r.forgotten, r.ids, r.pruned.Round(100*time.Microsecond))
		}
	}
	return nil
}

func ratio(a, b time.Duration) string {
	if b == 0 {
		return "–"
	}
	return strconv.FormatFloat(float64(a)/float64(b), 'f', 2, 64)
}

// in prints the median and the 99th percentile.
func (q quantiles) in(unit time.Duration, digits int) string {
	text := func(d time.Duration) string {
		return strconv.FormatFloat(float64(d)/float64(unit), 'f', digits, 64)
	}
	return text(q.p50) + ", " + text(q.p99)
}
