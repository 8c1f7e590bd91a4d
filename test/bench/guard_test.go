package main

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
)

// suiteOf has two benchmarks, which allocate as often as the text says, three times.
func suiteOf(t *testing.T, goVersion string, head, exchange [3]int) *suite {
	t.Helper()
	var b strings.Builder
	fmt.Fprintf(&b, "go: %s\ngoarch: amd64\npkg: github.com/wopproxy/wopproxy/proxy\n", goVersion)
	for i := range head {
		fmt.Fprintf(&b, "BenchmarkReadHead/MCP-2         \t    5000\t       %d.5 ns/op\t 12.50 MB/s\t 48 B/op\t       %d allocs/op\n", 100+i, head[i])
		fmt.Fprintf(&b, "BenchmarkExchange/ingress/MCP-2 \t     300\t    220543 ns/op\t   25635 B/op\t     %d allocs/op\n", exchange[i])
	}
	s, err := readSuite(strings.NewReader(b.String()))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestCompare(t *testing.T) {
	for _, tt := range []struct {
		name           string
		goVersion      string
		head, exchange [3]int
		error, text    string
	}{
		{"the same", "go1.26.8", [3]int{2, 2, 2}, [3]int{200, 201, 200}, "", `\| proxy ReadHead/MCP +\| 101.5 +\| 101.5 +\| 1.00 +\| 2 +\| 2 +\|`},
		{"less", "go1.26.8", [3]int{1, 1, 1}, [3]int{100, 100, 100}, "", ""},
		{"one more", "go1.26.8", [3]int{3, 3, 3}, [3]int{200, 200, 200}, "proxy ReadHead/MCP: 3 allocations, and 2 were recorded\nif it has to be so: make figures", ""},
		{"one more, once", "go1.26.8", [3]int{3, 2, 3}, [3]int{200, 200, 200}, "", ""},
		{"as much more as chance makes it", "go1.26.8", [3]int{2, 2, 2}, [3]int{210, 210, 210}, "", ""},
		{"more than that", "go1.26.8", [3]int{2, 2, 2}, [3]int{213, 213, 213}, "proxy Exchange/ingress/MCP: 213 allocations, and 200 were recorded\nif it has to be so: make figures", ""},
		{"another Go", "go1.27.0", [3]int{3, 3, 3}, [3]int{300, 300, 300}, "", "recorded with go1.26.8, and this is go1.27.0"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var b strings.Builder
			err := compare(&b, suiteOf(t, "go1.26.8", [3]int{2, 2, 2}, [3]int{200, 201, 200}), suiteOf(t, tt.goVersion, tt.head, tt.exchange))
			if got := fmt.Sprint(err); got != tt.error && (err != nil || tt.error != "") {
				t.Errorf("compare = %v, want %q", err, tt.error)
			}
			if !regexp.MustCompile(tt.text).MatchString(b.String()) {
				t.Errorf("want %s in\n%s", tt.text, &b)
			}
		})
	}
	var b strings.Builder
	if err := compare(&b, suiteOf(t, "go1.26.8", [3]int{}, [3]int{}), &suite{goVersion: "go1.26.8"}); err != nil || !strings.Contains(b.String(), "gone: proxy ReadHead/MCP\n") {
		t.Errorf("without benchmarks: %v\n%s", err, &b)
	}
}

// TestRecorded wants a figure of each piece in the file.
func TestRecorded(t *testing.T) {
	text, err := os.ReadFile("testdata/figures.txt")
	if err != nil {
		t.Fatal(err)
	}
	s, err := readSuite(strings.NewReader(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	if s.goVersion == "" {
		t.Error("it does not say with which Go it was recorded: make figures")
	}
	for _, p := range pieces {
		found := false
		for _, name := range s.names {
			pkg, bench, _ := strings.Cut(name, " ")
			found = found || "./"+pkg == p.pkg && regexp.MustCompile("^("+p.pattern+")").MatchString(bench)
			if len(s.allocs[name]) != times || len(s.ns[name]) != times {
				t.Errorf("%s has %d figures, want %d", name, len(s.allocs[name]), times)
			}
		}
		if !found {
			t.Errorf("there is no figure of %s %s: make figures", p.pkg, p.pattern)
		}
	}
}
