package ancestry_test

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/wopproxy/wopproxy/ancestry"
)

// planner and front are the ancestors of the design's example.
func planner() ancestry.Ancestor {
	return ancestry.Ancestor{
		Run: "r-7f3a", Host: "planner.example.com/agent",
		WellKnown: "https://planner.example.com/.well-known/openwop", Cause: ancestry.CauseA2AMessage,
	}
}

func front() ancestry.Ancestor {
	return ancestry.Ancestor{
		Run: "r-0001", Host: "front.example.com/agent",
		WellKnown: "https://front.example.com/.well-known/openwop", Cause: ancestry.CauseDispatch, Event: "e-1",
	}
}

func ExampleParseChain() {
	c, err := ancestry.ParseChain([]string{
		`"r-7f3a";host="planner.example.com/agent";cause=a2a-message, "r-0001";host="front.example.com/agent";cause=core.dispatch`,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, a := range c.Ancestors {
		fmt.Println(a.Run, a.Host, a.Cause)
	}
	// Output:
	// r-7f3a planner.example.com/agent a2a-message
	// r-0001 front.example.com/agent core.dispatch
}

func ExampleChain_Header() {
	var c ancestry.Chain
	c = c.With(ancestry.Ancestor{Run: "r-0001", Host: "front.example.com", Cause: ancestry.CauseDispatch})
	c = c.With(ancestry.Ancestor{Run: "r-7f3a", Host: "planner.example.com", Cause: ancestry.CauseA2AMessage})
	fmt.Println(c.Header())
	// Output: "r-7f3a";host="planner.example.com";cause=a2a-message, "r-0001";host="front.example.com";cause=core.dispatch
}

func ExampleFormatRunID() {
	v := ancestry.FormatRunID("r-7f3a", "planner.example.com")
	fmt.Println(v)
	id, host, err := ancestry.ParseRunIDHeader([]string{v})
	fmt.Println(id, host, err)
	// Output:
	// "r-7f3a";host="planner.example.com"
	// r-7f3a planner.example.com <nil>
}

func TestHeaderFormat(t *testing.T) {
	c := ancestry.Chain{Ancestors: []ancestry.Ancestor{planner(), front()}, More: true, Depth: 9}
	want := `"r-7f3a";host="planner.example.com/agent";wk="https://planner.example.com/.well-known/openwop";cause=a2a-message;depth=9, ` +
		`"r-0001";host="front.example.com/agent";wk="https://front.example.com/.well-known/openwop";cause=core.dispatch;ev="e-1";more`
	if got := c.Header(); got != want {
		t.Errorf("Header() =\n %s, want\n %s", got, want)
	}
	if got := (ancestry.Chain{}).Header(); got != "" {
		t.Errorf("Header of no ancestors = %q", got)
	}
}

const member = `"r";host="h";cause=a2a-message`

func TestParseChain(t *testing.T) {
	short := ancestry.Ancestor{Run: "r", Host: "h", Cause: ancestry.CauseA2AMessage}
	quoted := short
	quoted.Run, quoted.Host, quoted.Event = `a"b\c`, `h"`, `\`
	two := []ancestry.Ancestor{short, short}
	for _, c := range []struct {
		name string
		in   []string
		want ancestry.Chain
	}{
		{"no header", nil, ancestry.Chain{}},
		{"empty header", []string{""}, ancestry.Chain{}},
		{"one", []string{member}, ancestry.Chain{Ancestors: two[:1]}},
		{"two in two lines", []string{member, member}, ancestry.Chain{Ancestors: two}},
		{"odd spacing", []string{" " + member + " ,\t" + member + "  "}, ancestry.Chain{Ancestors: two}},
		{"escapes", []string{`"a\"b\\c";host="h\"";cause=a2a-message;ev="\\"`}, ancestry.Chain{Ancestors: []ancestry.Ancestor{quoted}}},
		{"unknown parameters", []string{member + `;x=1;y;z=:aGk=:`}, ancestry.Chain{Ancestors: two[:1]}},
		{"the last of equal parameters", []string{`"r";host="x";host="h";cause=a2a-message`}, ancestry.Chain{Ancestors: two[:1]}},
		{"more and depth", []string{member + ";depth=7", member + ";more"}, ancestry.Chain{Ancestors: two, More: true, Depth: 7}},
		{"more says one more", []string{member + ";more"}, ancestry.Chain{Ancestors: two[:1], More: true, Depth: 2}},
		{"depth says more", []string{member + ";depth=2"}, ancestry.Chain{Ancestors: two[:1], More: true, Depth: 2}},
		{"depth says what is listed", []string{member + ";depth=1"}, ancestry.Chain{Ancestors: two[:1]}},
		{"no more", []string{member + ";more=?0"}, ancestry.Chain{Ancestors: two[:1]}},
		{"sixteen", []string{list(16)}, ancestry.Chain{Ancestors: slices.Repeat(two[:1], 16)}},
		{"seventeen", []string{list(17)}, ancestry.Chain{Ancestors: slices.Repeat(two[:1], 16), More: true, Depth: 17}},
		{"sixty-four", []string{list(64) + ";more"}, ancestry.Chain{Ancestors: slices.Repeat(two[:1], 16), More: true, Depth: 65}},
		{"longest allowed", []string{strings.Repeat(" ", 64<<10-len(member)) + member}, ancestry.Chain{Ancestors: two[:1]}},
	} {
		got, err := ancestry.ParseChain(c.in)
		if diff := cmp.Diff(c.want, got, cmpopts.EquateEmpty()); diff != "" || err != nil {
			t.Errorf("%s: ParseChain = %v (-want +got):\n%s", c.name, err, diff)
		}
	}
}

func list(n int) string { return strings.Join(slices.Repeat([]string{member}, n), ", ") }

func TestParseChainRefuses(t *testing.T) {
	with := func(param string) string { return member + ";" + param }
	for _, c := range []struct{ name, in string }{
		{"token", `r;host="h";cause=a2a-message`},
		{"number", `1;host="h";cause=a2a-message`},
		{"inner list", `("r");host="h";cause=a2a-message`},
		{"no host", `"r";cause=a2a-message`},
		{"empty host", `"r";host="";cause=a2a-message`},
		{"host is a token", `"r";host=h;cause=a2a-message`},
		{"host with a space", `"r";host="a b";cause=a2a-message`},
		{"host too long", `"r";host="` + strings.Repeat("h", 256) + `";cause=a2a-message`},
		{"no cause", `"r";host="h"`},
		{"unknown cause", `"r";host="h";cause=http`},
		{"cause is a string", `"r";host="h";cause="a2a-message"`},
		{"empty run id", `"";host="h";cause=a2a-message`},
		{"run id with a space", `"a b";host="h";cause=a2a-message`},
		{"run id too long", `"` + strings.Repeat("r", 273) + `";host="h";cause=a2a-message`},
		{"second member", member + `, "r";host="h"`},
		{"syntax", member + `,`},
		{"beyond ASCII", `"ä";host="h";cause=a2a-message`},
		{"empty event", with(`ev=""`)},
		{"event too long", with(`ev="` + strings.Repeat("e", 129) + `"`)},
		{"event with a space", with(`ev="a b"`)},
		{"event is a number", with(`ev=1`)},
		{"URL without scheme", with(`wk="//h/x"`)},
		{"relative URL", with(`wk="/x"`)},
		{"other scheme", with(`wk="file:///etc/passwd"`)},
		{"URL without host", with(`wk="https:///x"`)},
		{"URL with credentials", with(`wk="https://u:p@h/x"`)},
		{"URL with a quote", with(`wk="https://h/\""`)},
		{"URL with a space", with(`wk="https://h/ x"`)},
		{"URL that does not parse", with(`wk="https://h:port/"`)},
		{"URL too long", with(`wk="https://h/` + strings.Repeat("x", 2039) + `"`)},
		{"depth zero", with("depth=0")},
		{"depth below zero", with("depth=-1")},
		{"depth too large", with("depth=1000000001")},
		{"depth is a decimal", with("depth=2.0")},
		{"depth on the second", member + ", " + with("depth=5")},
		{"depth below the members", with("depth=1") + ", " + member},
		{"more in the middle", with("more") + ", " + member},
		{"more is a string", with(`more="yes"`)},
		{"sixty-five members", list(65)},
		{"too long", strings.Repeat(" ", 64<<10+1-len(member)) + member},
	} {
		if got, err := ancestry.ParseChain([]string{c.in}); err == nil || len(got.Ancestors) > 0 || !strings.HasPrefix(err.Error(), "parse ancestry: ") {
			t.Errorf("%s: ParseChain(%.80q) = %v, %v, want an error", c.name, c.in, got, err)
		}
	}
	if _, err := ancestry.ParseChain([]string{strings.Repeat(" ", 32<<10), strings.Repeat(" ", 32<<10+1)}); err == nil {
		t.Error("ParseChain of two long values = nil, want an error")
	}
}

func TestHeaderCuts(t *testing.T) {
	long := planner()
	long.WellKnown += strings.Repeat("x", 2048-len(long.WellKnown))
	largest := ancestry.Ancestor{
		Run: ancestry.RunID(strings.Repeat(`"`, 272)), Host: strings.Repeat(`\`, 255), WellKnown: long.WellKnown,
		Cause: ancestry.CauseSubWorkflow, Event: strings.Repeat(`"`, 128),
	}
	bad := planner()
	bad.Host = "a\r\nX: y"
	for _, c := range []struct {
		name  string
		in    ancestry.Chain
		kept  int
		depth int
	}{
		{"sixteen", ancestry.Chain{Ancestors: slices.Repeat([]ancestry.Ancestor{planner()}, 16)}, 16, 0},
		{"seventeen", ancestry.Chain{Ancestors: slices.Repeat([]ancestry.Ancestor{planner()}, 17)}, 16, 17},
		{"by size", ancestry.Chain{Ancestors: []ancestry.Ancestor{planner(), long, long, planner()}}, 2, 4},
		{"by size, deep", ancestry.Chain{Ancestors: []ancestry.Ancestor{planner(), long, long}, More: true, Depth: 50}, 2, 50},
		{"the largest parent fits", ancestry.Chain{Ancestors: []ancestry.Ancestor{largest, largest}, More: true, Depth: 1e9}, 1, 1e9},
		{"an invalid member", ancestry.Chain{Ancestors: []ancestry.Ancestor{planner(), bad, planner()}}, 1, 3},
		{"an invalid parent", ancestry.Chain{Ancestors: []ancestry.Ancestor{bad, planner()}}, 0, 0},
	} {
		h := c.in.Header()
		if len(h) > 4096 {
			t.Errorf("%s: Header() has %d bytes", c.name, len(h))
		}
		got, err := ancestry.ParseChain([]string{h})
		want := ancestry.Chain{Ancestors: c.in.Ancestors[:c.kept], More: c.depth > 0, Depth: c.depth}
		if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" || err != nil {
			t.Errorf("%s: ParseChain(Header()) = %v (-want +got):\n%s", c.name, err, diff)
		}
	}
	// One byte decides.
	fits := ancestry.Chain{Ancestors: []ancestry.Ancestor{long, planner()}}
	fits.Ancestors[1].WellKnown = "https://h/"
	fits.Ancestors[1].WellKnown += strings.Repeat("y", 4096-len(fits.Header()))
	if fits.Ancestors[1].WellKnown = fits.Ancestors[1].WellKnown[:min(2048, len(fits.Ancestors[1].WellKnown))]; len(fits.Header()) != 4096 {
		t.Fatalf("Header() has %d bytes, want 4096", len(fits.Header()))
	}
	fits.Ancestors[1].Event = "e"
	if h := fits.Header(); !strings.HasSuffix(h, ";depth=2;more") {
		t.Errorf("Header() of more than 4096 bytes ends with %q", h[len(h)-20:])
	}
}

// TestCompactChains measures what a chain holds on to that is kept, whatever its
// header had.
func TestCompactChains(t *testing.T) {
	wide := planner()
	wide.WellKnown += strings.Repeat("x", 700)
	long := planner()
	long.WellKnown += strings.Repeat("x", 2000)
	few := planner()
	few.WellKnown = ""
	text := func(a ancestry.Ancestor) string { return ancestry.Chain{Ancestors: []ancestry.Ancestor{a}}.Header() }
	junk := strings.Repeat("x", 60<<10)
	for _, c := range []struct {
		name   string
		header string
		most   int // bytes
		kept   int
	}{
		{"as many as there may be", strings.Repeat(text(wide)+", ", 63) + text(wide), 8 << 10, 5},
		{"as long as they may be", strings.Repeat(text(long)+", ", 25) + text(long), 8 << 10, 1},
		{"one, and what nobody knows", text(few) + `;x="` + junk + `"`, 1 << 10, 1},
	} {
		const chains = 300
		kept := make([]ancestry.Chain, chains)
		before := heap()
		for i := range kept {
			parsed, err := ancestry.ParseChain([]string{strings.Clone(c.header)})
			if err != nil {
				t.Fatalf("%s: %v", c.name, err)
			}
			kept[i] = parsed.Compact()
		}
		each := (int(heap()) - int(before)) / chains
		if each > c.most || len(kept[0].Ancestors) != c.kept {
			t.Errorf("%s: %d ancestors are kept, in %d bytes, want %d in at most %d", c.name, len(kept[0].Ancestors), each, c.kept, c.most)
		}
		runtime.KeepAlive(kept)
	}
}

// heap is how many bytes are in use.
func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func TestChainWith(t *testing.T) {
	var c ancestry.Chain
	for i := range 20 {
		a := planner()
		a.Run = ancestry.RunID(fmt.Sprint("r-", i))
		before := c
		c = c.With(a)
		if *c.Parent() != a || c.Count() != i+1 || len(c.Ancestors) != min(i+1, 16) {
			t.Fatalf("after %d: %d ancestors, count %d, parent %v", i+1, len(c.Ancestors), c.Count(), c.Parent())
		}
		if (c.Depth > 0) != (i >= 16) || c.More != (i >= 16) {
			t.Errorf("after %d: depth %d, more %v", i+1, c.Depth, c.More)
		}
		if len(before.Ancestors) > 0 && before.Ancestors[0].Run != ancestry.RunID(fmt.Sprint("r-", i-1)) {
			t.Fatalf("With changed the chain it was called on")
		}
	}
	if got := (ancestry.Chain{Ancestors: c.Ancestors[:1], More: true}).With(planner()); got.Depth != 3 || !got.More {
		t.Errorf("With on a chain that has more: depth %d, more %v, want 3, true", got.Depth, got.More)
	}
	// Two children of one run must not share what lies behind their chains.
	c = ancestry.Chain{Ancestors: make([]ancestry.Ancestor, 1, 8)}.Nearest(1)
	a, b := c.With(planner()), c.With(front())
	if *a.Parent() != planner() || *b.Parent() != front() {
		t.Errorf("siblings have parents %v and %v", a.Parent(), b.Parent())
	}
}

func TestRunIDHeader(t *testing.T) {
	for _, c := range []struct {
		name, in string
		id       ancestry.RunID
		host     string
	}{
		{"id and host", `"acme/r";host="h"`, "acme/r", "h"},
		{"id alone", `"r"`, "r", ""},
		{"unknown parameter", ` "r";x;host="h" `, "r", "h"},
		{"escapes", `"a\"\\"`, `a"\`, ""},
	} {
		id, host, err := ancestry.ParseRunIDHeader([]string{c.in})
		if id != c.id || host != c.host || err != nil {
			t.Errorf("%s: ParseRunIDHeader(%q) = %q, %q, %v, want %q, %q", c.name, c.in, id, host, err, c.id, c.host)
		}
	}
	for _, c := range []struct {
		name string
		in   []string
	}{
		{"none", nil}, {"empty", []string{""}}, {"token", []string{"run_1"}}, {"two", []string{`"a"`, `"b"`}},
		{"space", []string{`"a b"`}}, {"empty host", []string{`"r";host=""`}}, {"host is a token", []string{`"r";host=h`}},
		{"host with a space", []string{`"r";host="a b"`}}, {"trailing", []string{`"r" x`}},
		{"too long", []string{strings.Repeat(" ", 64<<10) + `"r"`}},
	} {
		if id, host, err := ancestry.ParseRunIDHeader(c.in); err == nil || id != "" || host != "" {
			t.Errorf("%s: ParseRunIDHeader = %q, %q, %v, want an error", c.name, id, host, err)
		}
	}
	for _, c := range []struct{ id, host, want string }{
		{"r", "h", `"r";host="h"`}, {"r", "", `"r"`}, {`a"`, `\`, `"a\"";host="\\"`},
		{"", "h", ""}, {"a\nb", "h", ""}, {"r", "a\nb", ""}, {"r", strings.Repeat("h", 256), ""},
	} {
		if got := ancestry.FormatRunID(ancestry.RunID(c.id), c.host); got != c.want {
			t.Errorf("FormatRunID(%q, %.20q) = %q, want %q", c.id, c.host, got, c.want)
		}
	}
}

// FuzzParseChain: what is accepted is bounded, can be stored and formatted, and
// survives that. What was cut is only ever from the old end.
func FuzzParseChain(f *testing.F) {
	f.Add(member, "")
	f.Add(member+";depth=9", member+";more")
	f.Add(member+`;wf="wf_0123456789-0123456789_";step="step_0123456789-0123456789_"`, "")
	f.Add(list(20), `"a\"b\\";host="\\";wk="https://h/";cause=core.dispatch;ev="e"`)
	f.Fuzz(func(t *testing.T, a, b string) {
		c, err := ancestry.ParseChain([]string{a, b})
		if err != nil {
			return
		}
		if err := (ancestry.Link{Run: "r", Chain: c}).Validate(); err != nil || len(c.Ancestors) > 16 {
			t.Fatalf("ParseChain accepts %d members: %v", len(c.Ancestors), err)
		}
		if c.More != (c.Depth > len(c.Ancestors)) || !c.More && c.Depth != 0 {
			t.Fatalf("more %v, depth %d of %d", c.More, c.Depth, len(c.Ancestors))
		}
		h := c.Header()
		if len(h) > 4096 {
			t.Fatalf("Header() has %d bytes", len(h))
		}
		if short := c.Compact(); short.Header() != h || short.With(planner()).Header() != c.With(planner()).Header() {
			t.Fatalf("Compact() of %q is sent as %q", h, short.Header())
		}
		got, err := ancestry.ParseChain([]string{h})
		if err != nil {
			t.Fatalf("ParseChain(%q) = %v", h, err)
		}
		if diff := cmp.Diff(c.Nearest(len(got.Ancestors)), got, cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("ParseChain(Header()) (-want +got):\n%s", diff)
		}
		if len(got.Ancestors) == 0 && len(c.Ancestors) > 0 {
			t.Fatal("Header() lost the parent")
		}
	})
}

// FuzzFormatAncestor: no text in a chain breaks out of its header.
func FuzzFormatAncestor(f *testing.F) {
	f.Add("r", "h", "https://h/x", "a2a-message", "e", 3, "wf_0123456789-0123456789_", "step_0123456789-0123456789_")
	f.Add(`"\`, `"\`, "", "core.dispatch", "", 0, `wf_";more`, "")
	f.Fuzz(func(t *testing.T, run, host, wk, cause, ev string, depth int, wf, step string) {
		a := ancestry.Ancestor{
			Run: ancestry.RunID(run), Host: host, WellKnown: wk, Cause: ancestry.Cause(cause), Event: ev,
			Workflow: wf, Step: step,
		}
		h := ancestry.Chain{Ancestors: []ancestry.Ancestor{a, a}, Depth: depth}.Header()
		got, err := ancestry.ParseChain([]string{h})
		if err != nil {
			t.Fatalf("ParseChain(%q) = %v", h, err)
		}
		for i, g := range got.Ancestors {
			if i > 0 || g.Workflow == "" { // one of the two that can't be is not sent, nor that of an older one
				a.Workflow, a.Step = "", ""
			}
			if g != a {
				t.Fatalf("%+v became %+v", a, g)
			}
		}
		id, back, err := ancestry.ParseRunIDHeader([]string{ancestry.FormatRunID(a.Run, host)})
		if err == nil && (id != a.Run || back != host) {
			t.Fatalf("Run-Id of %q at %q became %q at %q", a.Run, host, id, back)
		}
	})
}

// TestPlace has a step of evidence travel with the caller, and with nobody above.
func TestPlace(t *testing.T) {
	const wf, step = "wf_0123456789-0123456789_", "step_0123456789-0123456789_"
	placed := planner()
	placed.Workflow, placed.Step = wf, step
	c, err := ancestry.ParseChain([]string{ancestry.Chain{Ancestors: []ancestry.Ancestor{placed, placed}}.Header()})
	if err != nil || c.Ancestors[0] != placed || c.Ancestors[1] != planner() {
		t.Errorf("read %+v, %v", c, err)
	}
	for _, params := range []string{
		`;wf="` + wf + `"`, `;step="` + step + `"`, `;wf="wf_short";step="` + step + `"`, `;wf="` + wf + `";step="` + wf + `"`,
		`;wf=` + wf + `;step="` + step + `"`, `;wf="` + wf + `";step="` + step + `."`,
		`;wf="` + wf + strings.Repeat("x", 48) + `";step="` + step + `"`, `;wf=1;step=?1`,
	} {
		c, err := ancestry.ParseChain([]string{member + params})
		if err != nil || len(c.Ancestors) != 1 || c.Ancestors[0].Workflow+c.Ancestors[0].Step != "" {
			t.Errorf("ParseChain(%s) = %+v, %v, want the ancestor alone", params, c, err)
		}
	}
}

func BenchmarkParseChain(b *testing.B) {
	for _, n := range []int{1, 3, 16} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			h := []string{ancestry.Chain{Ancestors: slices.Repeat([]ancestry.Ancestor{planner()}, n)}.Header()}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := ancestry.ParseChain(h); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkChainHeader(b *testing.B) {
	for _, n := range []int{1, 3, 16} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			c := ancestry.Chain{Ancestors: slices.Repeat([]ancestry.Ancestor{planner()}, n)}
			b.ReportAllocs()
			for b.Loop() {
				if c.Header() == "" {
					b.Fatal("no header")
				}
			}
		})
	}
}
