package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/wopproxy/wopproxy/test/internal/program"
)

// recorded is where figures are kept, seen from the root of the checkout, in the
// format of go test, which benchstat reads.
const recorded = "test/bench/testdata/figures.txt"

// piece is benchmarks that are kept an eye on.
type piece struct {
	pkg, pattern string
	benchtime    string
	slack        float64 // share of allocations that the network and other goroutines make it vary by
}

var pieces = []piece{
	{"./proxy/internal/wire", ".", "30ms", 0},
	{"./proxy/internal/attribution", "Attribute|Echoed", "30ms", 0},
	{"./proxy/internal/attribution", "Life", "30ms", 0.2}, // tables grow now and then
	{"./ancestry", "ParseChain|ChainHeader|NewRunID|Wrap", "30ms", 0},
	{"./ancestry/boltstore", "EncodeLink|DecodeLink", "30ms", 0},
	{"./ancestry/boltstore", "RecordBatch", "20x", 0.05}, // it costs more the more there is
	{"./evidence", "Observe|Sign", "30ms", 0.1},          // receipts say more now and then
	{"./config", ".", "30ms", 0},
	{"./proxy", "ReadHead", "30ms", 0},
	{"./proxy", "Events", "30ms", 0.02},
	{"./proxy", "Exchange", "50ms", 0.05},
}

// times is how often each benchmark runs.
const times = 5

// suite is what benchmarks have found, in their order.
type suite struct {
	goVersion string
	names     []string
	ns        map[string][]float64
	allocs    map[string][]float64
}

// runPieces runs all benchmarks that are kept, and writes what they print to w.
func runPieces(ctx context.Context, w, stderr io.Writer) error {
	if _, err := fmt.Fprintf(w, "go: %s\n", runtime.Version()); err != nil {
		return err
	}
	for _, p := range pieces {
		cmd := exec.CommandContext(ctx, "go", "test", "-run", "^$", "-bench", p.pattern, "-benchmem", "-benchtime", p.benchtime, "-count", strconv.Itoa(times), p.pkg)
		cmd.Env = program.CleanEnv()
		out, err := cmd.Output()
		if err != nil {
			stderr.Write(out)
			return fmt.Errorf("benchmarks of %s: %w", p.pkg, err)
		}
		for line := range strings.Lines(string(out)) {
			if strings.HasPrefix(line, "Benchmark") || strings.HasPrefix(line, "pkg:") || strings.HasPrefix(line, "goarch:") {
				if _, err := io.WriteString(w, line); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// readSuite reads what benchmarks print. A name is that of the package, from the
// house on, and of the benchmark.
func readSuite(r io.Reader) (*suite, error) {
	s := &suite{ns: map[string][]float64{}, allocs: map[string][]float64{}}
	pkg := ""
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		key, value, _ := strings.Cut(lines.Text(), ": ")
		switch key {
		case "go":
			s.goVersion = value
			continue
		case "pkg":
			pkg = strings.TrimPrefix(value, "github.com/wopproxy/wopproxy/")
			continue
		}
		fields := strings.Fields(lines.Text())
		if len(fields) < 4 || !strings.HasPrefix(fields[0], "Benchmark") {
			continue
		}
		name := pkg + " " + strings.TrimPrefix(fields[0], "Benchmark")
		if i := strings.LastIndexByte(name, '-'); i > 0 { // GOMAXPROCS, which is another elsewhere
			if _, err := strconv.Atoi(name[i+1:]); err == nil {
				name = name[:i]
			}
		}
		if !slices.Contains(s.names, name) {
			s.names = append(s.names, name)
		}
		for i := 2; i+1 < len(fields); i += 2 {
			v, err := strconv.ParseFloat(fields[i], 64)
			if err != nil {
				return nil, fmt.Errorf("%q: %w", lines.Text(), err)
			}
			switch fields[i+1] {
			case "ns/op":
				s.ns[name] = append(s.ns[name], v)
			case "allocs/op":
				s.allocs[name] = append(s.allocs[name], v)
			}
		}
	}
	return s, lines.Err()
}

// slack is how much more than was recorded a benchmark may allocate.
func slack(name string) float64 {
	pkg, name, _ := strings.Cut(name, " ")
	for _, p := range pieces {
		if p.pkg == "./"+pkg && slices.ContainsFunc(strings.Split(p.pattern, "|"), func(part string) bool { return strings.HasPrefix(name, part) }) {
			return p.slack
		}
	}
	return 0
}

// compare prints what has become of the recorded figures, and returns an error
// for benchmarks that allocate more. Time depends on the machine, and on what
// else it does: its ratio is there to be read.
func compare(w io.Writer, old, now *suite) error {
	lines := [][]string{{"benchmark", "ns/op, recorded", "now", "ratio", "allocs/op, recorded", "now"}}
	var faults []error
	for _, name := range now.names {
		was, is := old.allocs[name], now.allocs[name]
		if len(was) == 0 {
			lines = append(lines, []string{name, "–", fmt.Sprintf("%.4g", median(now.ns[name])), "–", "–", fmt.Sprint(median(is))})
			continue
		}
		lines = append(lines, []string{
			name, fmt.Sprintf("%.4g", median(old.ns[name])), fmt.Sprintf("%.4g", median(now.ns[name])),
			fmt.Sprintf("%.2f", median(now.ns[name])/median(old.ns[name])), fmt.Sprint(median(was)), fmt.Sprint(median(is)),
		})
		// The best of one against the worst of the other: what differs from one
		// time to the next is no more than that.
		if slices.Min(is) > slices.Max(was)*(1+slack(name)) {
			faults = append(faults, fmt.Errorf("%s: %v allocations, and %v were recorded", name, median(is), median(was)))
		}
	}
	if err := program.WriteMarkdown(w, lines); err != nil {
		return err
	}
	for _, name := range old.names {
		if len(now.allocs[name]) == 0 {
			fmt.Fprintln(w, "gone:", name)
		}
	}
	if old.goVersion != now.goVersion {
		fmt.Fprintf(w, "recorded with %s, and this is %s: more allocations are no fault\n", old.goVersion, now.goVersion)
		return nil
	}
	if len(faults) > 0 {
		faults = append(faults, errors.New("if it has to be so: make figures"))
	}
	return errors.Join(faults...)
}

// guard compares the benchmarks of this checkout with what is recorded.
func guard(ctx context.Context, stdout, stderr io.Writer) error {
	text, err := os.ReadFile(recorded)
	if err != nil {
		return fmt.Errorf("%w (run it from the root of the checkout)", err)
	}
	old, err := readSuite(strings.NewReader(string(text)))
	if err != nil {
		return err
	}
	var b strings.Builder
	if err := runPieces(ctx, &b, stderr); err != nil {
		return err
	}
	now, err := readSuite(strings.NewReader(b.String()))
	if err != nil {
		return err
	}
	return compare(stdout, old, now)
}

// record writes down what guard compares with.
func record(ctx context.Context, stderr io.Writer) error {
	var b strings.Builder
	if err := runPieces(ctx, &b, stderr); err != nil {
		return err
	}
	return os.WriteFile(recorded, []byte(b.String()), 0o600)
}
