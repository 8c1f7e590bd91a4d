package wire

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const (
	testTrace = "4bf92f3577b34da6a3ce929d0e0e4736"
	testSpan  = "00f067aa0ba902b7"
)

func TestParseTraceparent(t *testing.T) {
	ids := testTrace + "-" + testSpan
	for _, tt := range []struct{ name, in, want string }{
		{"sampled", "00-" + ids + "-01", "00-" + ids + "-01"},
		{"not sampled", "00-" + ids + "-00", "00-" + ids + "-00"},
		{"flags of version 00 are kept", "00-" + ids + "-ff", "00-" + ids + "-ff"},
		{"later version", "cc-" + ids + "-01", "00-" + ids + "-01"},
		{"later version goes on", "cc-" + ids + "-01-what.the-future", "00-" + ids + "-01"},
		{"later version ends in a dash", "01-" + ids + "-01-", "00-" + ids + "-01"},
		{"later version, undefined flags", "01-" + ids + "-ff", "00-" + ids + "-03"},
		{"version 00 goes on", "00-" + ids + "-01-x", ""},
		{"version 00 ends in a dash", "00-" + ids + "-01-", ""},
		{"later version without dash", "cc-" + ids + "-01.x", ""},
		{"version ff", "ff-" + ids + "-01", ""},
		{"version upper case", "0A-" + ids + "-01", ""},
		{"version not hex", "0x-" + ids + "-01", ""},
		{"trace upper case", "00-" + strings.ToUpper(testTrace) + "-" + testSpan + "-01", ""},
		{"trace zero", "00-" + strings.Repeat("0", 32) + "-" + testSpan + "-01", ""},
		{"trace not hex", "00-" + strings.Repeat("g", 32) + "-" + testSpan + "-01", ""},
		{"span zero", "00-" + testTrace + "-0000000000000000-01", ""},
		{"span upper case", "00-" + testTrace + "-00F067AA0BA902B7-01", ""},
		{"flags not hex", "00-" + ids + "-0g", ""},
		{"flags upper case", "00-" + ids + "-0A", ""},
		{"short", "00-" + ids + "-0", ""},
		{"space in front", " 00-" + ids + "-01", ""},
		{"space behind", "00-" + ids + "-01 ", ""},
		{"first dash", "00_" + ids + "-01", ""},
		{"second dash", "00-" + testTrace + "_" + testSpan + "-01", ""},
		{"third dash", "00-" + ids + "_01", ""},
		{"empty", "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, ok := ParseTraceparent(tt.in)
			if ok != (tt.want != "") || ok != c.Valid() {
				t.Fatalf("ParseTraceparent(%q) = %v, %v", tt.in, c, ok)
			}
			if got := c.Traceparent(); ok && got != tt.want {
				t.Errorf("ParseTraceparent(%q).Traceparent() = %q, want %q", tt.in, got, tt.want)
			}
			if !ok && c != (TraceContext{}) {
				t.Errorf("ParseTraceparent(%q) = %v, want the zero value", tt.in, c)
			}
		})
	}
}

func TestTraceContextFields(t *testing.T) {
	c, _ := ParseTraceparent("00-" + testTrace + "-" + testSpan + "-03")
	if c.TraceID.String() != testTrace || c.SpanID.String() != testSpan || c.Flags != FlagSampled|FlagRandom {
		t.Errorf("ids %s %s, flags %x", c.TraceID, c.SpanID, c.Flags)
	}
	if (TraceContext{TraceID: c.TraceID}).Valid() || (TraceContext{SpanID: c.SpanID}).Valid() {
		t.Error("a context with one id is valid")
	}
	if got := string(c.AppendTraceparent([]byte("x"))); got != "x"+c.Traceparent() {
		t.Errorf("AppendTraceparent = %q", got)
	}
}

func FuzzTraceparent(f *testing.F) {
	f.Add(testTraceparent)
	f.Add("01-" + testTrace + "-" + testSpan + "-ff-x")
	f.Fuzz(func(t *testing.T, in string) {
		c, ok := ParseTraceparent(in)
		if !ok {
			return
		}
		out := c.Traceparent()
		if again, ok := ParseTraceparent(out); !ok || again != c {
			t.Errorf("ParseTraceparent(%q) = %v, again %v", in, c, again)
		}
		if len(out) != 55 || out[:3] != "00-" || out[3:53] != in[3:53] {
			t.Errorf("ParseTraceparent(%q).Traceparent() = %q", in, out)
		}
	})
}

func TestParseContext(t *testing.T) {
	valid, _ := ParseTraceparent(testTraceparent)
	with := func(state Tracestate, baggage string) TraceContext {
		c := valid
		c.State, c.Baggage = state, baggage
		return c
	}
	tp := []string{testTraceparent}
	for _, tt := range []struct {
		name                 string
		parent, state, baggy []string
		want                 TraceContext
	}{
		{"all", tp, []string{"a=b"}, []string{"k=v"}, with("a=b", "k=v")},
		{"fields are joined", tp, []string{"a=b", "c=d"}, []string{"k=v", "l=w"}, with("a=b,c=d", "k=v,l=w")},
		{"traceparent twice", []string{testTraceparent, testTraceparent}, nil, nil, TraceContext{}},
		{"no traceparent", nil, []string{"a=b"}, []string{"k=v"}, TraceContext{}},
		{"invalid traceparent", []string{"x"}, []string{"a=b"}, []string{"k=v"}, TraceContext{}},
		{"invalid tracestate", tp, []string{"A=b", "c=d"}, []string{"k=v"}, with("", "k=v")},
		{"key in both tracestates", tp, []string{"a=b", "a=d"}, nil, valid},
		{"invalid baggage", tp, []string{"a=b"}, []string{"k"}, with("a=b", "")},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := ParseContext(tt.parent, tt.state, tt.baggy); got != tt.want {
				t.Errorf("ParseContext = %+v, want %+v", got, tt.want)
			}
		})
	}
	m := Message{Traceparent: testTraceparent, Tracestate: "a=b", Baggage: "k=v"}
	if got, want := m.Context(), with("a=b", "k=v"); got != want {
		t.Errorf("Context() = %+v, want %+v", got, want)
	}
}

func TestAdopt(t *testing.T) {
	a := TraceContext{TraceID: TraceID{1}, SpanID: SpanID{1}}
	a2 := TraceContext{TraceID: TraceID{1}, SpanID: SpanID{2}}
	b := TraceContext{TraceID: TraceID{2}, SpanID: SpanID{1}}
	var none TraceContext
	for _, tt := range []struct {
		name      string
		in        []TraceContext
		parent    TraceContext
		conflicts []TraceContext
	}{
		{"nothing", nil, none, nil},
		{"nothing valid", []TraceContext{none, {TraceID: TraceID{1}}}, none, nil},
		{"first wins", []TraceContext{a, b}, a, []TraceContext{b}},
		{"first valid wins", []TraceContext{none, b, a}, b, []TraceContext{a}},
		{"same trace is no conflict", []TraceContext{a, a2}, a, nil},
		{"all conflicts are listed", []TraceContext{b, a, a2}, b, []TraceContext{a, a2}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			parent, conflicts := Adopt(tt.in...)
			if diff := cmp.Diff(tt.parent, parent) + cmp.Diff(tt.conflicts, conflicts); diff != "" {
				t.Errorf("Adopt (-want +got):\n%s", diff)
			}
		})
	}
}

func TestParseBaggage(t *testing.T) {
	many := func(n int) string { return strings.Repeat("k=v,", n-1) + "k=v" }
	for _, tt := range []struct {
		name string
		in   []string
		want string
	}{
		{"one", []string{"k=v"}, "k=v"},
		{"passed through as it is", []string{"k = v%20w ;p; q = 1 , l=w"}, "k = v%20w ;p; q = 1 , l=w"},
		{"several fields", []string{"k=v", "l=w"}, "k=v,l=w"},
		{"white space at the ends", []string{"\t k=v "}, "k=v"},
		{"empty value", []string{"k="}, "k="},
		{"equals sign in the value", []string{"k=a=b"}, "k=a=b"},
		{"members at the limit", []string{many(180)}, many(180)},
		{"members above it", []string{many(181)}, ""},
		{"bytes at the limit", []string{"k=" + strings.Repeat("v", 8190)}, "k=" + strings.Repeat("v", 8190)},
		{"bytes above it", []string{"k=" + strings.Repeat("v", 8191)}, ""},
		{"no value", []string{"k"}, ""},
		{"no key", []string{"=v"}, ""},
		{"key is no token", []string{"k(=v"}, ""},
		{"space in the value", []string{"k=a b"}, ""},
		{"quote in the value", []string{`k="v"`}, ""},
		{"backslash in the value", []string{`k=\v`}, ""},
		{"control in the value", []string{"k=a\x01"}, ""},
		{"not ASCII", []string{"k=é"}, ""},
		{"empty member", []string{"k=v,,l=w"}, ""},
		{"empty property", []string{"k=v;"}, ""},
		{"bad property", []string{"k=v;p=a b"}, ""},
		{"empty", []string{""}, ""},
		{"absent", nil, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got, ok := ParseBaggage(tt.in...); got != tt.want || ok != (tt.want != "") {
				t.Errorf("ParseBaggage(%q) = %q, %v, want %q", tt.in, got, ok, tt.want)
			}
		})
	}
}

// members returns n members k0=v, k1=v, …
func members(n int) string {
	var list []string
	for i := range n {
		list = append(list, fmt.Sprintf("k%d=v", i))
	}
	return strings.Join(list, ",")
}

func TestParseTracestate(t *testing.T) {
	long := strings.Repeat("x", 256)
	for _, tt := range []struct {
		name string
		in   []string
		want string
		ok   bool
	}{
		{"one", []string{"a=b"}, "a=b", true},
		{"passed through as it is", []string{"a=b , ,c=d e"}, "a=b , ,c=d e", true},
		{"several fields", []string{"a=b", "", "c=d"}, "a=b,,c=d", true},
		{"white space at the ends", []string{"\t a=b "}, "a=b", true},
		{"all characters of a key", []string{"a0_-*/=b"}, "a0_-*/=b", true},
		{"tenant", []string{"0a@vendor=b"}, "0a@vendor=b", true},
		{"all kinds of a value", []string{"a= !\"#+-<>~"}, "a= !\"#+-<>~", true},
		{"longest key", []string{long + "=b"}, long + "=b", true},
		{"longest value", []string{"a=" + long}, "a=" + long, true},
		{"longest tenant", []string{long[:241] + "@" + long[:14] + "=b"}, long[:241] + "@" + long[:14] + "=b", true},
		{"32 members", []string{members(32)}, members(32), true},
		{"empty", []string{""}, "", true},
		{"empty members only", []string{" , ,"}, "", true},
		{"absent", nil, "", true},
		{"33 members", []string{members(33)}, "", false},
		{"key twice", []string{"a=b,c=d,a=e"}, "", false},
		{"key too long", []string{long + "x=b"}, "", false},
		{"value too long", []string{"a=" + long + "x"}, "", false},
		{"tenant too long", []string{long[:242] + "@v=b"}, "", false},
		{"system too long", []string{"t@" + long[:15] + "=b"}, "", false},
		{"two at signs", []string{"t@v@w=b"}, "", false},
		{"no tenant", []string{"@v=b"}, "", false},
		{"no system", []string{"t@=b"}, "", false},
		{"system begins with a digit", []string{"t@0=b"}, "", false},
		{"key begins with a digit", []string{"0=b"}, "", false},
		{"key begins with a dash", []string{"-=b"}, "", false},
		{"key upper case", []string{"A=b"}, "", false},
		{"key with a space", []string{"a =b"}, "", false},
		{"no key", []string{"=b"}, "", false},
		{"no value", []string{"a="}, "", false},
		{"no equals sign", []string{"a"}, "", false},
		{"equals sign in the value", []string{"a=b=c"}, "", false},
		{"control in the value", []string{"a=b\tc"}, "", false},
		{"not ASCII", []string{"a=é"}, "", false},
		{"DEL", []string{"a=\x7f"}, "", false},
		{"one bad member voids all", []string{"a=b", "C=d"}, "", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got, ok := ParseTracestate(tt.in...); string(got) != tt.want || ok != tt.ok {
				t.Errorf("ParseTracestate(%q) = %q, %v, want %q, %v", tt.in, got, ok, tt.want, tt.ok)
			}
		})
	}
	at := func(size int) string { // of white space, which is legal
		return "a=b" + strings.Repeat(" ", size-6) + ",c="
	}
	for size, want := range map[int]bool{8192: true, 8193: false} {
		if _, ok := ParseTracestate(at(size-1) + "d"); ok != want {
			t.Errorf("ParseTracestate of %d bytes ok = %v, want %v", size, ok, want)
		}
	}
}

func TestTracestateMembers(t *testing.T) {
	long := func(n int) string { // n members of 512 bytes with their commas
		var list []string
		for i := range n {
			list = append(list, fmt.Sprintf("%0255d=%s", i, strings.Repeat("v", 255)))
		}
		return strings.ReplaceAll(strings.Join(list, ","), "0000", "k000")
	}
	for _, tt := range []struct {
		name                 string
		in, key, value, want string // an empty value removes
	}{
		{"into nothing", "", "wop", "1", "wop=1"},
		{"in front", "a=b, c=d", "wop", "1", "wop=1,a=b,c=d"},
		{"replaced and moved", "a=b,wop=0,c=d", "wop", "1", "wop=1,a=b,c=d"},
		{"nothing changes", "wop=1 ,, a=b", "wop", "1", "wop=1 ,, a=b"},
		{"same value elsewhere", "a=b,wop=1", "wop", "1", "wop=1,a=b"},
		{"prefix of another key", "wopx=0", "wop", "1", "wop=1,wopx=0"},
		{"rightmost goes", members(32), "wop", "1", "wop=1," + members(31)},
		{"32 stay", members(31) + ",wop=0", "wop", "1", "wop=1," + members(31)},
		{"too long goes", long(16), "wop", "1", "wop=1," + long(15)},
		{"bad key", "a=b", "WOP", "1", "a=b"},
		{"bad value", "a=b", "wop", "1,2", "a=b"},
		{"removed first", "wop=1,a=b", "wop", "", "a=b"},
		{"removed last", "a=b,wop=1", "wop", "", "a=b"},
		{"removed only", "wop=1", "wop", "", ""},
		{"removed not there", "a=b,,c=d", "wop", "", "a=b,,c=d"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			state, ok := ParseTracestate(tt.in)
			if !ok {
				t.Fatalf("ParseTracestate(%q) is invalid", tt.in)
			}
			got := state.Without(tt.key)
			if tt.value != "" {
				got = state.With(tt.key, tt.value)
			}
			if string(got) != tt.want {
				t.Errorf("%q with %s=%s = %q, want %q", tt.in, tt.key, tt.value, got, tt.want)
			}
		})
	}
	state := Tracestate("a=b, c=d,ab=x")
	for key, want := range map[string]string{"a": "b", "c": "d", "ab": "x", "b": "", "": ""} {
		if got := state.Member(key); got != want {
			t.Errorf("Member(%q) = %q, want %q", key, got, want)
		}
	}
	if n := testing.AllocsPerRun(100, func() {
		state.With("a", "b")
		state.Without("z")
		ParseTracestate(string(state))
	}); n != 0 {
		t.Errorf("what changes nothing allocates %v times, want 0", n)
	}
}

func FuzzTracestate(f *testing.F) {
	f.Add("a=b,c=d", "e", "f")
	f.Add(" t@s=x ,,a=b", "a", "b")
	f.Add(members(32), "k3", "v")
	f.Fuzz(func(t *testing.T, in, key, value string) {
		state, ok := ParseTracestate(in)
		if !ok {
			if state != "" {
				t.Errorf("ParseTracestate(%q) = %q, not ok", in, state)
			}
			return
		}
		with, without := state.With(key, value), state.Without(key)
		for _, s := range []Tracestate{state, with, without} {
			if again, ok := ParseTracestate(string(s)); !ok || again != s {
				t.Errorf("%q becomes %q, which reads as %q, %v", in, s, again, ok)
			}
		}
		if isStateKey(key) && isStateValue(value) && !strings.HasPrefix(strings.TrimLeft(string(with), " \t"), key+"="+value) {
			t.Errorf("%q with %s=%s = %q", in, key, value, with)
		}
		if without.Member(key) != "" {
			t.Errorf("%q without %q = %q", in, key, without)
		}
		for member := range strings.SplitSeq(in, ",") {
			k, v, _ := strings.Cut(trimSpace(member), "=")
			if k != key && without.Member(k) != v {
				t.Errorf("%q without %q = %q loses %q", in, key, without, k)
			}
		}
	})
}
