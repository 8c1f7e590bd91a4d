package main

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/wopproxy/wopproxy/test/internal/program"
)

// TestMain is also the hosts that the tests start.
func TestMain(m *testing.M) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if len(os.Args) == 2 {
		switch os.Args[1] {
		case "host":
			os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
		case "liar":
			os.Exit(status(runHost(ctx, os.Stdout, lie), os.Stderr))
		}
	}
	var err error
	if scratch, err = os.MkdirTemp("", "wopproxy-accuracy-test-"); err != nil {
		os.Exit(status(err, os.Stderr))
	}
	code := m.Run()
	os.RemoveAll(scratch)
	os.Exit(code)
}

// scratch is a folder for what the tests build.
var scratch string

// lie lets each run take the header of the run before it for its own.
func lie(next http.Handler) http.Handler {
	var mu sync.Mutex
	before := ""
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		own := r.Header.Get("Run-Id")
		if before != "" {
			r.Header.Set("Run-Id", before)
		}
		before = own
		mu.Unlock()
		next.ServeHTTP(w, r)
	})
}

func modeNamed(t *testing.T, name string) mode {
	t.Helper()
	i := slices.IndexFunc(modes, func(m mode) bool { return m.name == name })
	if i < 0 {
		t.Fatalf("no mode is named %q", name)
	}
	return modes[i]
}

// built makes the program under test, once for all tests.
var built = sync.OnceValues(func() (path string, err error) {
	path = filepath.Join(scratch, "wopproxy")
	return path, program.Build(context.Background(), path, os.Stderr)
})

// measured runs the command with the Go host, or one like it.
func measured(t *testing.T, o options) (table string, err error) {
	t.Helper()
	if o.program, err = built(); err != nil {
		t.Fatal(err)
	}
	o.quick, o.seed = true, 1
	if o.hosts == nil {
		o.hosts = hosts[:1]
	}
	var out, progress bytes.Buffer
	err = measure(t.Context(), o, &out, &progress)
	t.Logf("%s%s", &progress, &out)
	return out.String(), err
}

func TestMeasure(t *testing.T) {
	t.Parallel()
	table, err := measured(t, options{modes: []mode{modeNamed(t, "none"), modeNamed(t, "`traceparent` handed on"), modeNamed(t, "base path")}})
	if err != nil {
		t.Errorf("the rule is broken:\n%v", err)
	}
	if want := regexp.MustCompile(`\| none +\| Go +\| single-flight +\| 100 % \(12/0/0\) \|`); !want.MatchString(table) {
		t.Errorf("want a row like %s", want)
	}
	if want := regexp.MustCompile(`\| base path +\| Go +\| base-path +\| 100 % \(12/0/0\) +\| 100 % \(32/0/0\) +\| 100 % \(256/0/0\) +\|`); !want.MatchString(table) {
		t.Errorf("want a row like %s", want)
	}
}

// TestFaultsAreNoticed has hosts with which wopproxy must say what is not true,
// or nothing.
func TestFaultsAreNoticed(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	liar := host{"Liar", func(context.Context, string) ([]string, string) { return []string{self, "liar"}, "" }}
	nowhere := host{"Nowhere", func(context.Context, string) ([]string, string) { return nil, "Nowhere: not found" }}
	forgetful := modeNamed(t, "`Run-Id`")
	forgetful.cooperation = "none"
	otherRung := modeNamed(t, "`Run-Id`")
	otherRung.by = []string{"trace-id"}
	for _, tt := range []struct {
		name  string
		o     options
		error string
	}{
		{"a host that names another run", options{modes: []mode{modeNamed(t, "`Run-Id`")}, hosts: []host{liar}}, `\d+ of 256 calls are said to be of a run that did not make them`},
		{"a host that names none", options{modes: []mode{forgetful}}, `8 at once: \d+ of 32 calls are said to be of no run`},
		{"other evidence than there should be", options{modes: []mode{otherRung}}, `32 calls are linked by run-id: want it by trace-id`},
		{"a host that is missing", options{all: true, hosts: []host{nowhere}}, `left out: Nowhere: not found`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if _, err := measured(t, tt.o); err == nil || !regexp.MustCompile(tt.error).MatchString(err.Error()) {
				t.Errorf("measure = %v, want an error like %s", err, tt.error)
			}
		})
	}
}

// TestStoreIsJudged has a store that disagrees with what the server was told.
func TestStoreIsJudged(t *testing.T) {
	one := &message{root: "root-1", trace: "trace", task: "task-1"}
	two := &message{root: "root-2", trace: "trace", task: "task-2"}
	for i, m := range []*message{one, two} {
		for j := range callsPerRun {
			m.calls = append(m.calls, call{
				child: fmt.Sprintf("child-%d-%d", i, j), trace: m.trace,
				chain: []ancestor{{m.task, "go.example.com/agent"}, {m.root, caller}},
			})
		}
	}
	for _, tt := range []struct {
		name         string
		first        string // child of the second run, instead of its own
		wrong, right int
		error        string
	}{
		{"as it was told", "child-1-0", 0, 8, ""},
		{"a child of the other run", "child-0-0", 1, 7, "1 of 8 calls are said to be of a run that did not make them\n"},
		{"a child of nobody", "child-2-0", 0, 8, "lacks 1 links of which the server was told, and has 1 of which it was not"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			admin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				i := strings.Index("12", strings.TrimPrefix(strings.TrimSuffix(r.URL.Path, "/children"), "/ancestry/v1/runs/task-"))
				m := []*message{one, two}[i]
				if !strings.HasSuffix(r.URL.Path, "/children") {
					fmt.Fprintf(w, `{"runId":"run","alias":%q,"traceId":"trace","chain":{"ancestors":[{"runId":%q,"hostId":%q}]}}`, m.task, m.root, caller)
					return
				}
				first := m.calls[0].child
				if i == 1 {
					first = tt.first
				}
				fmt.Fprintf(w, `{"runs":[{"runId":%q,"evidence":"run-id"}`, first)
				for _, c := range m.calls[1:] {
					fmt.Fprintf(w, `,{"runId":%q,"evidence":"run-id"}`, c.child)
				}
				fmt.Fprint(w, "]}")
			}))
			defer admin.Close()
			s := &stage{admin: admin.URL, host: found{name: "Go"}, mode: modeNamed(t, "`Run-Id`"), book: newBook(), patience: time.Millisecond}
			got, err := s.judge(t.Context(), 1, []*message{one, two})
			if got.wrong != tt.wrong || got.right != tt.right {
				t.Errorf("%d wrong, %d right; want %d, %d", got.wrong, got.right, tt.wrong, tt.right)
			}
			if text := fmt.Sprintln(err); (err == nil) != (tt.error == "") || !strings.Contains(text, tt.error) {
				t.Errorf("error = %swant %q in it", text, tt.error)
			}
		})
	}
}

// TestReadme compares the table in the README with what the command prints:
// the same rows and columns, and in each cell nothing that the command would
// fail for.
func TestReadme(t *testing.T) {
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, shown, _ := strings.Cut(string(text), "\n<!-- go run ./test/accuracy -->\n")
	shown, _, found := strings.Cut(shown, "\n<!-- end -->\n")
	if !found {
		t.Fatal("README.md has no table between <!-- go run ./test/accuracy --> and <!-- end -->")
	}
	var lines [][]string
	for line := range strings.Lines(shown) {
		var cells []string
		for cell := range strings.SplitSeq(strings.Trim(strings.TrimSpace(line), "|"), "|") {
			cells = append(cells, strings.TrimSpace(cell))
		}
		lines = append(lines, cells)
	}
	if want := (&table{columns: columns(false)}).heading(); !slices.Equal(lines[0], want) {
		t.Errorf("columns = %q, want %q", lines[0], want)
	}
	lines = lines[2:] // below the rule
	if len(lines) != len(modes)+1 || lines[len(lines)-1][0] != guessed {
		t.Fatalf("%d rows, want one for each of the %d modes and then %q", len(lines), len(modes), guessed)
	}
	for i, m := range modes {
		line := lines[i]
		var in []string
		for _, h := range hosts {
			if !slices.Contains(m.without, h.name) {
				in = append(in, h.name)
			}
		}
		if want := []string{m.name, strings.Join(in, ", "), strings.Join(m.by, ", ")}; !slices.Equal(line[:3], want) {
			t.Errorf("row %d begins %q, want %q", i+1, line[:3], want)
		}
		for j, cell := range line[3:] {
			var percent, right, wrong, abstained int
			if _, err := fmt.Sscanf(cell, "%d %% (%d/%d/%d)", &percent, &right, &wrong, &abstained); err != nil {
				t.Errorf("%s: cell %q: %v", m.name, cell, err)
			}
			if wrong > 0 || right+abstained == 0 || (j == 0 || !m.alone) && abstained > 0 {
				t.Errorf("%s: the cell %q breaks the rule", m.name, cell)
			}
		}
	}
}

func TestUsage(t *testing.T) {
	for _, tt := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"-h"}, 0, "-quick"},
		{[]string{"-slow"}, 2, "flag provided but not defined: -slow"},
		{[]string{"-only", "luck"}, 2, `-only "luck": want one of ["none"`},
		{[]string{"more"}, 2, `["more"]: want no arguments`},
	} {
		var out, errs bytes.Buffer
		if code := run(t.Context(), tt.args, &out, &errs); code != tt.code || !strings.Contains(errs.String(), tt.says) {
			t.Errorf("run(%q) = %d, want %d, and %q in %q", tt.args, code, tt.code, tt.says, &errs)
		}
	}
}
