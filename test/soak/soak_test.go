package main

import (
	"bytes"
	"encoding/csv"
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/wopproxy/wopproxy/test/internal/program"
	"github.com/wopproxy/wopproxy/test/internal/rawhttp"
)

// TestQuick lets all kinds pass, each with its fault.
func TestQuick(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("it is measured on Linux")
	}
	dir := t.TempDir()
	var out, errs bytes.Buffer
	if code := run(t.Context(), []string{"-quick", "-for", "2s", "-callers", "8", "-out", dir}, &out, &errs); code != 0 {
		t.Fatalf("exit %d: %s\n%s", code, &errs, &out)
	}
	for _, k := range kinds() {
		if !k.byAge && !strings.Contains(out.String(), "| "+k.name+" ") {
			t.Errorf("there was nothing of %s", k.name)
		}
	}
	f, err := os.Open(filepath.Join(dir, "soak.csv"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if lines, err := csv.NewReader(f).ReadAll(); err != nil || len(lines) < 2 || len(lines[0]) != len(columns)+2 {
		t.Errorf("soak.csv has %d lines (%v)", len(lines), err)
	}
}

func TestUsage(t *testing.T) {
	for _, args := range [][]string{{"-exchanges", "0"}, {"-exchanges", "-1"}, {"-callers", "0"}, {"-for", "-1s"}, {"now"}, {"-gently"}} {
		if code := run(t.Context(), args, io.Discard, io.Discard); code != 2 {
			t.Errorf("%q: exit %d, want 2", args, code)
		}
	}
}

// named returns a kind, ready to be played.
func named(t *testing.T, name string) *kind {
	t.Helper()
	for _, k := range kinds() {
		if k.name == name {
			k.rendered = k.render()
			return k
		}
	}
	t.Fatalf("there is no kind %q", name)
	return nil
}

// Each way in which wopproxy could lie to a tool or its host is noticed.
func TestCheckNotices(t *testing.T) {
	const n = 7
	tp := "Traceparent: 00-" + traceOf(n) + "-00f067aa0ba902b7-00\r\n"
	chain := func(run, parent string) string {
		return fmt.Sprintf("Run-Ancestry: %q;host=%q;cause=mcp-tool-call, %q;host=%q\r\n", run, hostID, parent, callerID)
	}
	for _, c := range []struct {
		name, kind, head, want string
	}{
		{"a call as it should be", "call MCP 1 KB", tp + "Soak-Run: run-a\r\n" + chain("run-a", parentOf(n)), ""},
		{"another run's call", "call MCP 1 KB", tp + "Soak-Run: run-a\r\n" + chain("run-b", parentOf(n)), "WRONG PARENT"},
		{"a call of nobody's", "call MCP 1 KB", tp + "Soak-Run: run-a\r\n", "WRONG PARENT"},
		{"another caller's run", "call MCP 1 KB", tp + "Soak-Run: run-a\r\n" + chain("run-a", parentOf(8)), "WRONG ANCESTOR"},
		{"another trace", "call MCP 1 KB", strings.Replace(tp, "7", "8", 1) + "Soak-Run: run-a\r\n" + chain("run-a", parentOf(n)), "want trace"},
		{"a parent for a call without a run", "call MCP 1 KB of no run", chain("run-a", parentOf(n)), "WRONG PARENT"},
		{"none for it", "call MCP 1 KB of no run", "", ""},
		{"a parent for what is no agent's", "call not agents'", chain("run-a", parentOf(n)), "WRONG PARENT"},
		{"a run that the host is told", "MCP 1 KB", tp + "Run-Id: run-a\r\n", ""},
		{"one that it is not", "MCP 1 KB", tp, "not told"},
	} {
		err := named(t, c.kind).check([]byte("POST / HTTP/1.1\r\n"+c.head+"\r\n"), n)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: check = %v, want %q", c.name, err, c.want)
		}
	}
}

// What wopproxy could answer wrongly when it is asked who caused a run is noticed.
func TestLookNotices(t *testing.T) {
	const n = 7
	parent := func(run, host string) string { return fmt.Sprintf(`{"runId":%q,"hostId":%q}`, run, host) }
	right, tool := parent(parentOf(n), callerID), `{"runId":"tool-0000000000000007"}`
	for _, c := range []struct {
		name, kind, stored, endpoint, children, want string
	}{
		{"a run", "MCP 1 KB", right, right, "", ""},
		{"a run that calls", "MCP, of which comes: call MCP 1 KB", right, right, tool, ""},
		{"none in the store", "MCP 1 KB", "", right, "", "WRONG PARENT: the store"},
		{"another one's in the store", "MCP 1 KB", parent(parentOf(8), callerID), right, "", "WRONG PARENT: the store"},
		{"another host's in the store", "MCP 1 KB", parent(parentOf(n), hostID), right, "", "WRONG PARENT: the store"},
		{"two in the store", "MCP 1 KB", right + "," + right, right, "", "WRONG PARENT: the store"},
		{"none at the endpoint", "MCP 1 KB", right, "null", "", "WRONG PARENT: the ancestry endpoint"},
		{"another one's at the endpoint", "MCP 1 KB", right, parent(parentOf(8), callerID), "", "WRONG PARENT: the ancestry endpoint"},
		{"a child of a run that has none", "MCP 1 KB", right, right, tool, "WRONG CHILD"},
		{"another run's child", "MCP, of which comes: call MCP 1 KB", right, right, `{"runId":"tool-0000000000000008"}`, "WRONG CHILD"},
		{"one child too many", "MCP, of which comes: call MCP 1 KB", right, right, tool + "," + tool, "WRONG CHILD"},
		{"no child", "MCP, of which comes: call MCP 1 KB", right, right, "", "no child"},
	} {
		wop := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch r.URL.Path {
			case "/ancestry/v1/runs/run-a":
				fmt.Fprintf(w, `{"chain":{"ancestors":[%s]}}`, c.stored)
			case "/v1/runs/run-a/ancestry":
				fmt.Fprintf(w, `{"parent":%s}`, c.endpoint)
			case "/ancestry/v1/runs/run-a/children":
				fmt.Fprintf(w, `{"runs":[%s]}`, c.children)
			default:
				http.NotFound(w, r)
			}
		}))
		address := wop.Listener.Addr().String()
		who := (&stage{at: program.Addresses{Ingress: address, Admin: address}}).caller(0)
		err := who.look(named(t, c.kind), "run-a", n)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: look = %v, want %q", c.name, err, c.want)
		}
		wop.Close()
	}
}

func TestCameNotices(t *testing.T) {
	for _, c := range []struct {
		kind string
		edit func(string) string
		ok   bool
	}{
		{"not agents'", func(s string) string { return s }, true},
		{"not agents'", func(s string) string { return s + " " }, false},
		{"not agents'", func(s string) string { return strings.Replace(s, "7", "8", 1) }, false},
		{"MCP 1 KB", func(s string) string { return strings.Replace(s, `"params":{`, `"params":{"_meta":{},`, 1) }, true},
		{"MCP 1 KB", func(s string) string { return s[:len(s)-1] }, false},
		{"MCP 64 KB", func(s string) string { return s[:60<<10] + s[61<<10:len(s)-1] }, false},
	} {
		k := named(t, c.kind)
		sent := newText(k.request.body)
		if err := k.came([]byte(c.edit(string(sent.number(7)))), 7); (err == nil) != c.ok {
			t.Errorf("%s: came = %v, want it fine: %v", c.kind, err, c.ok)
		}
	}
}

// What an exchange could be answered instead is noticed.
func TestExchangeNotices(t *testing.T) {
	right := func(name string) string {
		var b strings.Builder
		for _, p := range named(t, name).rendered {
			b.Write(p.number(7))
		}
		return b.String()
	}
	for _, c := range []struct {
		name, kind, answer string
		want               outcome
	}{
		{"as it was sent", "MCP 1 KB", right("MCP 1 KB"), answered},
		{"a stream", "A2A, 4 events", right("A2A, 4 events"), answered},
		{"the answer to another request", "MCP 1 KB", strings.Replace(right("MCP 1 KB"), "07\"", "08\"", 1), other},
		{"another status", "MCP 1 KB", strings.Replace(right("MCP 1 KB"), "200", "201", 1), other},
		{"an error", "MCP 1 KB", "HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n", bad},
		{"half of it", "MCP 1 KB", right("MCP 1 KB")[:600], brokeOff},
		{"nothing", "MCP 1 KB", "", brokeOff},
		{"all where a part was sent", "MCP, stream breaks off", right("MCP, stream breaks off"), answered},
	} {
		near, far := net.Pipe()
		go func() {
			defer far.Close()
			_, _ = far.Read(make([]byte, 8))
			_, _ = io.WriteString(far, c.answer)
		}()
		k := named(t, c.kind)
		want := newText(k.answer.body)
		got, _, err := exchange(rawhttp.NewClient(near), k, []byte("request"), want.number(7), nil)
		if got != c.want {
			t.Errorf("%s: exchange = %s (%v), want %s", c.name, got, err, c.want)
		}
	}
}

// What grows is told from what does not.
func TestFlat(t *testing.T) {
	for _, c := range []struct {
		name  string
		value func(i int) float64
		want  string
	}{
		{"level", func(int) float64 { return 40 }, ""},
		{"a beginning that grows", func(i int) float64 { return float64(min(i, 40)) }, ""},
		{"up and down", func(i int) float64 { return 40 + 10*float64(i%2) }, ""},
		{"ever more", func(i int) float64 { return float64(40 + i) }, "goroutines grew by"},
		{"more than is kept", func(i int) float64 { return keptHandoffs - 90 + float64(i) }, "open_handoffs grew by"},
	} {
		r := &result{}
		for i := range 100 {
			r.samples = append(r.samples, sample{at: time.Duration(i) * time.Second, goroutines: c.value(i), handoffs: c.value(i)})
		}
		err := r.flat(io.Discard, false)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: flat = %v, want %q", c.name, err, c.want)
		}
	}
	if err := (&result{after: sample{own: 2 * generous}}).flat(io.Discard, true); err == nil {
		t.Error("a quick soak may take any memory")
	}
}

// What traffic leaves behind is noticed.
func TestLeft(t *testing.T) {
	before := sample{goroutines: 20, fds: 15, files: 2}
	for _, c := range []struct {
		name string
		now  sample
		held int
		want string
	}{
		{"as before", before, 0, ""},
		{"connections that were held", sample{goroutines: 20, fds: 35, files: 2}, 20, ""},
		{"files of the store", sample{goroutines: 20, fds: 35, files: 22}, 0, ""},
		{"goroutines", sample{goroutines: 30, fds: 15, files: 2}, 20, "30 goroutines"},
		{"descriptors", sample{goroutines: 20, fds: 45, files: 2}, 20, "45 descriptors"},
		{"one run", sample{runs: 1}, 0, "1 live runs"},
		{"one binding", sample{bindings: 1}, 0, "1 bindings"},
		{"one tunnel", sample{tunnels: 1}, 0, "1 tunnels"},
		{"an exchange that does not count", sample{exchanges: 1}, 0, "0 exchanges counted"},
	} {
		if got := c.now.left(&before, c.held); (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: left = %q, want %q", c.name, got, c.want)
		}
	}
}

var update = flag.Bool("update", false, "draw the graph in testdata anew")

// TestGraph holds the graph in testdata to the samples beside it, of a soak that was
// long: nothing in them grows. It is one that a browser reads, with a line for each
// column.
func TestGraph(t *testing.T) {
	f, err := os.Open("testdata/soak.csv")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	number := func(text string) float64 {
		v, err := strconv.ParseFloat(text, 64)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	r := &result{}
	for _, row := range rows[1:] {
		sm := sample{at: time.Duration(number(row[0]) * float64(time.Second)), exchanges: int64(number(row[1]))}
		for i, c := range columns {
			*c.of(&sm) = number(row[2+i])
		}
		r.samples = append(r.samples, sm)
	}
	var told strings.Builder
	if err := r.flat(&told, false); err != nil {
		t.Error(err)
	}
	t.Log(told.String())
	text := r.svg()
	if *update {
		if err := os.WriteFile("testdata/soak.svg", text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if want, err := os.ReadFile("testdata/soak.svg"); err != nil || !bytes.Equal(text, want) {
		t.Errorf("testdata/soak.svg is not of soak.csv (%v): run go test ./test/soak -run TestGraph -update", err)
	}
	lines := 0
	for d := xml.NewDecoder(bytes.NewReader(text)); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if e, ok := token.(xml.StartElement); ok && e.Name.Local == "polyline" {
			lines++
		}
	}
	if lines != len(columns) {
		t.Errorf("%d lines, want %d", lines, len(columns))
	}
}
