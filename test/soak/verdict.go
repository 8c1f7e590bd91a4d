package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/wopproxy/wopproxy/test/internal/program"
)

// result is what a soak has found.
type result struct {
	began         time.Time
	took          time.Duration
	samples       []sample
	before, after sample
	unsettled     error // what was left of the traffic
}

// add keeps a sample, with what it is since the one before.
func (r *result) add(sm sample) sample {
	sm.at = time.Since(r.began)
	last := r.before
	if len(r.samples) > 0 {
		last = r.samples[len(r.samples)-1]
	}
	sm.rate, sm.cpu = last.rate, last.cpu // of an instant they would say nothing
	if n := float64(sm.exchanges - last.exchanges); n > 0 && sm.at-last.at > 100*time.Millisecond {
		sm.rate = n / (sm.at - last.at).Seconds()
		sm.cpu = 1e6 * (sm.seconds - last.seconds) / n
	}
	r.samples = append(r.samples, sm)
	return sm
}

// report writes everything down, and returns what must not be.
func (r *result) report(s *stage, stdout io.Writer) error {
	if s.out != "" {
		if err := errors.Join(
			os.WriteFile(filepath.Join(s.out, "soak.csv"), r.csv(), 0o600),
			os.WriteFile(filepath.Join(s.out, "soak.svg"), r.svg(), 0o600)); err != nil {
			return err
		}
	}
	lines := [][]string{{"exchange", "ended", "times"}}
	for _, k := range s.kinds {
		if n := k.times.Load(); n > 0 {
			lines = append(lines, []string{k.name, string(k.want), fmt.Sprint(n)})
		}
	}
	if err := program.WriteMarkdown(stdout, lines); err != nil {
		return err
	}
	fmt.Fprintf(stdout, "\n%d exchanges and %d tunnels in %v, with %d reloads; of %d runs wopproxy was asked who caused them.\n",
		s.scores.exchanges.Load(), s.scores.tunnels.Load(), r.took.Round(time.Second), s.reloads, s.scores.looked.Load())
	fmt.Fprintf(stdout, "%.0f links were stored; %.0f MiB of them are on disk.\n", r.after.links, r.after.store)
	fmt.Fprintf(stdout, "Before and after: %.0f and %.0f goroutines, %.0f and %.0f descriptors, %.1f and %.1f MiB.\n",
		r.before.goroutines, r.after.goroutines, r.before.fds, r.after.fds, r.before.own, r.after.own)
	err := errors.Join(append(r.faults(s), r.unsettled, r.flat(stdout, s.quick))...)
	if err == nil {
		fmt.Fprintln(stdout, "All of it ended as it should, and nothing is left.")
	}
	return err
}

// faults are what was wrong with the traffic.
func (r *result) faults(s *stage) (errs []error) {
	if n := s.scores.faults.Load(); n > 0 {
		errs = append(append(errs, fmt.Errorf("there were %d faults", n)), s.scores.first...)
	}
	if r.after.refusals > 0 {
		errs = append(errs, fmt.Errorf("%.0f links dropped, runs ambiguous, conflicts or panics; see the metrics", r.after.refusals))
	}
	if s.scores.exchanges.Load() == 0 {
		errs = append(errs, errors.New("there was no traffic"))
	}
	return errs
}

// enough samples of the later half tell where it is going.
const enough = 20

// generous is how much memory a quick soak may take, in MiB.
const generous = 256

// flat compares how much everything has grown over the later half with its bound.
func (r *result) flat(stdout io.Writer, quick bool) error {
	half := r.samples[len(r.samples)/2:]
	if quick || len(half) < enough {
		fmt.Fprintln(stdout, "It was too short to tell where it is going.")
		if r.after.own > generous {
			return fmt.Errorf("%.0f MiB, want no more than %d", r.after.own, generous)
		}
		return nil
	}
	var errs []error
	lines := [][]string{{"over the later half", "mean", "trend", "may be"}}
	for _, c := range columns {
		if c.slack < 0 {
			continue
		}
		mean, growth, highest := trend(half, c.of)
		bound := mean/10 + c.slack
		over, may := growth > bound, fmt.Sprintf("%+.1f", bound)
		if c.most > 0 {
			over, may = highest > c.most, fmt.Sprintf("%.0f in all", c.most)
		}
		lines = append(lines, []string{strings.TrimSpace(c.title + " " + c.unit), fmt.Sprintf("%.1f", mean), fmt.Sprintf("%+.1f", growth), may})
		if over {
			errs = append(errs, fmt.Errorf("%s grew by %.1f over the later half, to %.1f at most", c.name, growth, highest))
		}
	}
	fmt.Fprintln(stdout)
	if err := program.WriteMarkdown(stdout, lines); err != nil {
		return err
	}
	cuts := 0
	for i := range len(r.samples) - 1 {
		if r.samples[i+1].store < r.samples[i].store {
			cuts++
		}
	}
	fmt.Fprintf(stdout, "\nRetention has cut the store %d times.\n", cuts)
	if cuts == 0 && r.after.links > 3*keptLinks {
		errs = append(errs, fmt.Errorf("%.0f links were stored, and none forgotten", r.after.links))
	}
	return errors.Join(errs...)
}

// trend is the mean of samples, how much the line through them rises from the first
// to the last, and the highest of them.
func trend(samples []sample, of func(*sample) *float64) (mean, growth, highest float64) {
	var x, y, xx, xy float64
	for i := range samples {
		t, v := samples[i].at.Seconds(), *of(&samples[i])
		x, y, xx, xy = x+t, y+v, xx+t*t, xy+t*v
		highest = max(highest, v)
	}
	n := float64(len(samples))
	mean = y / n
	if d := n*xx - x*x; d > 0 {
		growth = (n*xy - x*y) / d * (samples[len(samples)-1].at - samples[0].at).Seconds()
	}
	return mean, growth, highest
}

// csv is one line for each sample.
func (r *result) csv() []byte {
	var b strings.Builder
	b.WriteString("seconds,exchanges")
	for _, c := range columns {
		b.WriteString("," + c.name)
	}
	for _, sm := range r.samples {
		fmt.Fprintf(&b, "\n%.1f,%d", sm.at.Seconds(), sm.exchanges)
		for _, c := range columns {
			fmt.Fprintf(&b, ",%.1f", *c.of(&sm))
		}
	}
	return []byte(b.String() + "\n")
}

// svg draws the samples.
func (r *result) svg() []byte {
	at, values := make([]time.Duration, len(r.samples)), make([][]float64, len(columns))
	for i := range r.samples {
		at[i] = r.samples[i].at
		for j, c := range columns {
			values[j] = append(values[j], *c.of(&r.samples[i]))
		}
	}
	return draw(r.samples[len(r.samples)-1].exchanges, at, values)
}
