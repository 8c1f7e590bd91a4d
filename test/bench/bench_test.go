package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/wopproxy/wopproxy/test/internal/program"
	"github.com/wopproxy/wopproxy/test/internal/rawhttp"
)

// TestMain is also the proxies, and the writers to a store, that the tests start.
func TestMain(m *testing.M) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if len(os.Args) > 2 && (os.Args[1] == "peer" || os.Args[1] == storeWriter) {
		os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

// measured runs the command for a moment.
func measured(t *testing.T, o options) (tables string, err error) {
	t.Helper()
	if _, err := cpu([]int{os.Getpid()}); err != nil {
		t.Skip(err)
	}
	if o.program == "" {
		o.program = filepath.Join(t.TempDir(), "wopproxy")
		if err := program.Build(t.Context(), o.program, os.Stderr); err != nil {
			t.Fatal(err)
		}
	}
	o.connections, o.latencyAt, o.paced = []int{4}, 4, cmp.Or(o.paced, 20*time.Millisecond)
	o.rounds, o.window = cmp.Or(o.rounds, 2), cmp.Or(o.window, 20*time.Millisecond)
	var out, progress bytes.Buffer
	err = bench(t.Context(), o, &out, &progress)
	t.Logf("%s%s", &progress, &out)
	return out.String(), err
}

// some are contenders, by name.
func some(t *testing.T, names ...string) []*contender {
	t.Helper()
	all := contenders()
	if err := choose(&all, strings.Join(names, ","), "", func(c *contender) string { return c.name }); err != nil {
		t.Fatal(err)
	}
	return all
}

// TestBench measures all that is at hand with Go alone, all kinds of traffic.
func TestBench(t *testing.T) {
	tables, err := measured(t, options{kinds: kinds, contenders: some(t, "direct", "direct-tls", "reverseproxy", "goproxy", "goproxy-tls",
		"ingress", "ingress-sampled", "egress", "egress-sampled", "intercept", "intercept-sampled")})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`(?m)^\| ReverseProxy, tuned +(\| [1-9][\d.]* ± \d+ % \(1\.00\) +){5}\|$`,
		`(?m)^\| goproxy +(\| [1-9][\d.]* ± \d+ % \(\d+\.\d\d\) +){5}\|$`,
		`(?m)^\| \*\*wopproxy\*\* opens TLS, sampled +(\| [1-9][\d.]* ± \d+ % \(\d+\.\d\d\) +){5}\|$`,
		// On a busy machine there is no latency: nobody takes as many requests.
		`(?m)^\| nothing between +\| [1-9]\d+ +\| [0–] +\| [0–] +\| – +\| – +\| – +\| – +\|$`,
		`(?m)^\| \*\*wopproxy\*\* egress +\| [1-9]\d+ +\| \S+ +\| \S+ +\| \d+ +\| [1-9][\d.]+ +\| [1-9][\d.]+ +\| [1-9]\d+ +\|$`,
	} {
		if !regexp.MustCompile(want).MatchString(tables) {
			t.Errorf("want a row like %s", want)
		}
	}
}

// TestThink has an upstream that takes its time: what is printed is no less than
// that, and tells how much more it is.
func TestThink(t *testing.T) {
	o, err := parse([]string{"-think", "5ms"}, io.Discard)
	if err != nil || len(o.contenders) != 3 || len(o.kinds) != 2 || !slices.Equal(o.connections, []int{o.latencyAt}) {
		t.Fatalf("parse = %+v, %v", o, err)
	}
	o.paced, o.rounds = 100*time.Millisecond, 2
	tables, err := measured(t, o)
	if err != nil {
		t.Fatal(err)
	}
	took := `([5-9]|\d\d+)\.\d\d`
	added := `-?\d+, -?\d+`
	for _, want := range []string{
		`(?m)^\| host thinks 5ms, 200/s +\| MCP 1 KB: p50, p99, ms +\| added p50, p99, µs +\| A2A 1 KB: p50, p99, ms +\| added p50, p99, µs +\|$`,
		`(?m)^\| nothing between +(\| ` + took + `, ` + took + ` +\| 0, 0 +){2}\|$`,
		`(?m)^\| \*\*wopproxy\*\* ingress +(\| ` + took + `, ` + took + ` +\| ` + added + ` +){2}\|$`,
	} {
		if !regexp.MustCompile(want).MatchString(tables) {
			t.Errorf("want a row like %s", want)
		}
	}
}

// TestProfile: each cell of wopproxy leaves a profile that go tool pprof reads.
func TestProfile(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "profiles")
	if _, err := measured(t, options{kinds: kinds[1:2], contenders: some(t, "reverseproxy", "egress"), rounds: 1, window: time.Second, profiles: dir}); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if want := []string{filepath.Join(dir, "egress-mcp1k-4.pprof")}; err != nil || !slices.Equal(files, want) {
		t.Fatalf("profiles %q (%v), want %q", files, err, want)
	}
	out, err := exec.CommandContext(t.Context(), "go", "tool", "pprof", "-top", files[0]).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "wopproxy/proxy.(*Proxy).") {
		t.Errorf("go tool pprof: %v\n%s", err, out)
	}
}

// TestReadme compares the tables in the documents with what the command prints:
// the same rows and columns, and a figure wherever there is one.
func TestReadme(t *testing.T) {
	text, err := os.ReadFile("../../deploy/README.md")
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`(?s)\n<!-- go run \./test/bench((?: -?\w+)*) -->\n(.*?)\n<!-- end -->`).FindStringSubmatch(string(text))
	if m == nil {
		t.Fatal("deploy/README.md has no tables between <!-- go run ./test/bench --> and <!-- end -->")
	}
	shown := m[2]
	o, err := parse(strings.Fields(m[1]), os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	empty := newTable(o, contenders())
	var want [][][]string
	for _, n := range o.connections {
		want = append(want, empty.costs(n))
	}
	want = append(want, empty.rest())
	tables := strings.Split(shown, "\n\n")
	if len(tables) < len(want) {
		t.Fatalf("%d tables, want %d", len(tables), len(want))
	}
	figure := regexp.MustCompile(`^[\d.]+( ± \d+ %)? \([\d.]+\)$`)
	for i, lines := range want {
		got := cells(tables[i])
		if len(got) != len(lines) || !slices.Equal(got[0], lines[0]) {
			t.Errorf("table %d has %d rows and the columns %q, want %d and %q", i+1, len(got), got[0], len(lines), lines[0])
			continue
		}
		for j, line := range lines {
			if got[j][0] != line[0] {
				t.Errorf("table %d, row %d is %q, want %q", i+1, j, got[j][0], line[0])
			}
			if j == 0 || i == len(want)-1 {
				continue
			}
			for _, cell := range got[j][1:] {
				if !figure.MatchString(cell) {
					t.Errorf("table %d, %s: %q is no figure", i+1, line[0], cell)
				}
			}
		}
	}
}

// TestTable has figures of three rounds, of which the second was slow for all.
func TestTable(t *testing.T) {
	o := options{contenders: some(t, "direct", "reverseproxy", "ingress", "goproxy"), kinds: kinds[1:2], connections: []int{1}, rounds: 3}
	table := newTable(o, o.contenders)
	direct, goproxy, proxy, ours := o.contenders[0], o.contenders[2], o.contenders[1], o.contenders[3]
	ours.admin, ours.idle, ours.startup = "there", 10<<20, 12*time.Millisecond
	for i, slow := range []time.Duration{1, 3, 1} {
		table.add(proxy, kinds[1], 1, figures{cpu: slow * 40 * time.Microsecond, rate: 100})
		table.add(ours, kinds[1], 1, figures{cpu: slow * 50 * time.Microsecond, rate: 90, allocs: 70, resident: int64(20+i) << 20})
		table.delays[i][direct] = delay{slow * 10 * time.Microsecond, slow * 100 * time.Microsecond}
		table.delays[i][ours] = delay{slow * 30 * time.Microsecond, slow * 500 * time.Microsecond}
	}
	delete(table.delays[2], direct) // nothing to compare with
	table.add(goproxy, kinds[1], 1, figures{cpu: time.Microsecond, rate: 1})
	var b strings.Builder
	if err := table.write(&b); err != nil {
		t.Fatal(err)
	}
	want := `| CPU µs, 1 connections | MCP 1 KB            |
|-----------------------|---------------------|
| ReverseProxy, tuned   | 40.0 ± 100 % (1.00) |
| goproxy               | 1.0                 |
| **wopproxy** ingress  | 50.0 ± 100 % (1.25) |

| MCP 1 KB             | requests/s, 1 | added p50 at 1000/s, µs | p99 | ms to start | MiB, idle | MiB, 1 | allocations |
|----------------------|---------------|-------------------------|-----|-------------|-----------|--------|-------------|
| nothing between      | –             | 0                       | 0   | –           | –         | –      | –           |
| ReverseProxy, tuned  | 100           | –                       | –   | –           | –         | –      | –           |
| goproxy              | 1             | –                       | –   | –           | –         | –      | –           |
| **wopproxy** ingress | 90            | 40                      | 800 | 12          | 10.0      | 22.0   | 70          |
`
	if got := b.String(); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

// TestTargets: what is above its bound stands out, and what was not measured is
// left out.
func TestTargets(t *testing.T) {
	o := options{contenders: some(t, "direct", "reverseproxy", "ingress", "egress"), kinds: kinds[:2], connections: []int{64}, latencyAt: 64, rounds: 1}
	table := newTable(o, o.contenders)
	direct, proxy, in, out := o.contenders[0], o.contenders[1], o.contenders[2], o.contenders[3]
	in.startup, in.idle = 12*time.Millisecond, 15<<20
	for _, k := range kinds[:2] {
		table.add(proxy, k, 64, figures{cpu: 40 * time.Microsecond})
		table.add(in, k, 64, figures{cpu: 50 * time.Microsecond, resident: 20 << 20})
		table.add(out, k, 64, figures{cpu: 30 * time.Microsecond})
	}
	for c, us := range map[*contender]time.Duration{direct: 10, proxy: 110, in: 310, out: 60} {
		table.delays[0][c] = delay{us * time.Microsecond, us * time.Microsecond}
	}
	want := [][]string{
		{"target", "at most", "measured"},
		{"CPU for MCP 1 KB, × ReverseProxy", "1.00", "**ingress 1.25**, egress 0.75"},
		{"CPU for what is not agents', × ReverseProxy", "0.95", "**ingress 1.25**, egress 0.75"},
		{"added p50 at 1000/s, µs", "200", "**ingress 300**, egress 50"},
		{"added p99 at 1000/s, µs", "400", "ingress 300, egress 50"},
		{"added p50, × ReverseProxy's", "1.20", "**ingress 3.00**, egress 0.50"},
		{"ms to start", "20", "ingress 12"},
		{"MiB, idle", "14.0", "**ingress 15.0**"},
		{"MiB, 64 connections", "20.0", "ingress 20.0"},
	}
	if got := table.held(); !reflect.DeepEqual(got, want) {
		t.Errorf("got\n%q\nwant\n%q", got, want)
	}
}

// TestTargetsAlone has a contender without what it is compared with.
func TestTargetsAlone(t *testing.T) {
	o := options{contenders: some(t, "direct", "ingress"), kinds: kinds[:2], connections: []int{64}, latencyAt: 64, rounds: 1}
	table := newTable(o, o.contenders)
	for c, us := range map[*contender]time.Duration{o.contenders[0]: 10, o.contenders[1]: 310} {
		table.delays[0][c] = delay{us * time.Microsecond, us * time.Microsecond}
	}
	want := [][]string{
		{"target", "at most", "measured"},
		{"added p50 at 1000/s, µs", "200", "**ingress 300**"},
		{"added p99 at 1000/s, µs", "400", "ingress 300"},
	}
	if got := table.held(); !reflect.DeepEqual(got, want) {
		t.Errorf("got\n%q\nwant\n%q", got, want)
	}
}

// cells returns the lines of a table without the rule below its heading.
func cells(table string) (lines [][]string) {
	for line := range strings.Lines(strings.TrimSpace(table)) {
		var row []string
		for cell := range strings.SplitSeq(strings.Trim(strings.TrimSpace(line), "|"), "|") {
			row = append(row, strings.TrimSpace(cell))
		}
		if !strings.HasPrefix(row[0], "---") {
			lines = append(lines, row)
		}
	}
	return lines
}

// TestFaultsAreNoticed has contenders that do not do what they are measured for.
func TestFaultsAreNoticed(t *testing.T) {
	// A proxy that goes unasked for the sake of the test, and is then said to be
	// another: the check is what differs.
	posing := func(as string) func(*contender) { return func(c *contender) { c.wop = as } }
	for _, tt := range []struct {
		name  string
		as    func(*contender)
		error string
	}{
		{"messages that are not stamped", posing("egress"), `reverseproxy, 4 connections: mcp1k: the upstream saw \{asked:\d+ ancestry:\d+ runID:0 meta:0\}`},
		{"a host that is not told its run", posing("ingress"), `the upstream saw .* runID:0 .*want .* runID:[1-9]`},
		{"a program that is not there", func(c *contender) {
			c.start = func(context.Context, *stage, *contender) error { _, err := find("no-such-proxy"); return err }
		}, "start reverseproxy: no-such-proxy: not installed"},
		{"a program that does not serve", func(c *contender) {
			c.start = func(ctx context.Context, s *stage, c *contender) (err error) {
				self, err := os.Executable()
				if err != nil {
					return err
				}
				return s.startServer(ctx, c, func(string, string) ([]string, error) { return []string{self, "peer", "none", "-ca", s.ca}, nil })
			}
		}, `(?s)does not listen.*want reverseproxy or goproxy`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := some(t, "reverseproxy")
			tt.as(c[0])
			_, err := measured(t, options{contenders: c, kinds: kinds[1:2], program: "none", all: true})
			if err == nil || !regexp.MustCompile(tt.error).MatchString(err.Error()) {
				t.Errorf("bench = %v, want an error like %s", err, tt.error)
			}
		})
	}
}

// TestAnswersAreCompared has answers that differ from the upstream's in one place.
func TestAnswersAreCompared(t *testing.T) {
	a2a, sse := kinds[len(kinds)-1], kinds[3]
	right := string(prepare(a2a.answer).head) + strings.Repeat("7", len(rawhttp.Mark)) + string(prepare(a2a.answer).tail)
	s := prepare(sse.answer)
	stream := string(s.head) + string(bytes.Join(s.events, nil)) + string(s.end)
	for _, tt := range []struct {
		name, text string
		kind       traffic
		error      string
	}{
		{"as it was sent", right, a2a, ""},
		{"a stream as it was sent", stream, sse, ""},
		{"another byte behind the number", strings.Replace(right, "completed", "completeD", 1), a2a, rawhttp.ErrDiffers.Error()},
		{"another byte before it", strings.Replace(right, "jsonrpc", "jsonRpc", 1), a2a, rawhttp.ErrDiffers.Error()},
		{"a length of its own", strings.Replace(right, "Content-Length: 1024", "Content-Length: 1023", 1), a2a, "Content-Length 1023, want 1024"},
		{"an error", "HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n", a2a, `answered "HTTP/1.1 502 Bad Gateway"`},
		{"an end too early", right[:len(right)-1], a2a, io.EOF.Error()},
		{"an event less", strings.Replace(stream, string(s.events[7]), "", 1), sse, rawhttp.ErrDiffers.Error()},
		{"the last event missing", strings.Replace(stream, string(s.events[events-1]), "", 1), sse, "bytes, want"},
		{"an event more", strings.Replace(stream, string(s.end), string(s.events[7])+string(s.end), 1), sse, "more than"},
		{"no end", strings.TrimSuffix(stream, string(s.end)), sse, io.EOF.Error()},
	} {
		t.Run(tt.name, func(t *testing.T) {
			near, far := net.Pipe()
			go func() {
				defer far.Close()
				_, _ = io.ReadFull(far, make([]byte, len("request")))
				_, _ = io.WriteString(far, tt.text)
			}()
			cl := &client{Client: rawhttp.NewClient(near)}
			cl.takes([]byte("request"), &tt.kind)
			err := cl.exchange(1, nil)
			if (err == nil) != (tt.error == "") || err != nil && !strings.Contains(err.Error(), tt.error) {
				t.Errorf("exchange = %v, want %q", err, tt.error)
			}
			if got, want := cl.done.Load() == 1, tt.error == ""; got != want {
				t.Errorf("counted = %v, want %v", got, want)
			}
		})
	}
}

// TestPace has an upstream that stops for a while: all that was due meanwhile
// waited, and not only what was under way.
func TestPace(t *testing.T) {
	const pause = 200 * time.Millisecond
	var all crowd
	for range 2 {
		near, far := net.Pipe()
		defer far.Close()
		go func() {
			answer := prepare(kinds[0].answer).head
			for n := 0; ; n++ {
				if _, err := io.ReadFull(far, make([]byte, len("request"))); err != nil {
					return
				}
				if n == 10 {
					time.Sleep(pause)
				}
				_, _ = far.Write(answer)
			}
		}()
		cl := &client{Client: rawhttp.NewClient(near)}
		cl.takes([]byte("request"), &kinds[0])
		all = append(all, cl)
	}
	took, err := all.paced(latencyRate, 2*pause)
	if err != nil {
		t.Fatal(err)
	}
	late := len(slices.DeleteFunc(slices.Clone(took), func(d time.Duration) bool { return d < pause/4 }))
	if want := int(pause.Seconds() * latencyRate / 2); late < want {
		t.Errorf("%d of %d exchanges were late, want %d or more: all that were due in the pause", late, len(took), want)
	}
}

func TestCountSpans(t *testing.T) {
	field := func(n byte, value string) string { return string([]byte{n<<3 | 2, byte(len(value))}) + value }
	span := field(2, field(1, "trace")+"\x39\x01\x02\x03\x04\x05\x06\x07\x08") // a fixed64 after it
	scope := field(2, field(1, field(1, "name"))+span+span)
	resource := field(1, field(1, "attributes")+scope+scope)
	for _, tt := range []struct {
		msg   string
		spans int64
		err   error
	}{
		{"", 0, nil},
		{resource, 4, nil},
		{resource + resource, 8, nil},
		{field(1, scope), 2, nil},
		{resource[:len(resource)-1], 0, errProtobuf},
		{"\x0a", 0, errProtobuf},
		{"\x0b\x00", 0, errProtobuf}, // a group
	} {
		if n, err := countSpans([]byte(tt.msg)); n != tt.spans || !errors.Is(err, tt.err) {
			t.Errorf("countSpans(%q) = %d, %v, want %d, %v", tt.msg, n, err, tt.spans, tt.err)
		}
	}
}

func TestProcessors(t *testing.T) {
	for list, want := range map[string][]int{"0": {0}, "0-3": {0, 1, 2, 3}, "1,4-5": {1, 4, 5}, "": nil, "none": nil} {
		if got := processors(list); !slices.Equal(got, want) {
			t.Errorf("processors(%q) = %v, want %v", list, got, want)
		}
	}
}

func TestFlags(t *testing.T) {
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"-only", "nobody"}, `-only "nobody": want some of direct,direct-tls,nginx,`},
		{[]string{"-case", "mcp2k"}, `-case "mcp2k": want some of plain,mcp1k,`},
		{[]string{"-connections", "64,many"}, `-connections "many": want numbers between 1 and 1024`},
		{[]string{"-connections", "0"}, `-connections "0"`},
		{[]string{"-think", "1h"}, "-think 1h0m0s: want at most 100ms"},
		{[]string{"-store", "-ids", "UUID,numbers"}, `-ids "numbers": want some of ULID,UUID`},
		{[]string{"more"}, `["more"]: want no arguments`},
		{[]string{"-rounds", "-1"}, "-rounds and -window: want more than nothing"},
		{[]string{"-no-such-flag"}, "flag provided but not defined"},
	} {
		var stderr bytes.Buffer
		if got := run(t.Context(), tt.args, io.Discard, &stderr); got != 2 || !strings.Contains(stderr.String(), tt.want) {
			t.Errorf("bench %q: exit %d, want 2, with %q in\n%s", tt.args, got, tt.want, &stderr)
		}
	}
}
