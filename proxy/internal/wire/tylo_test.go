package wire

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

const (
	tyloUUID      = "trace_0c98780d-22c1-4149-8096-526d5fa8728c"
	tyloSpanUUID  = "mcp_45bdc034-7d1e-4c0a-9b52-3f6a1e2d4c88"
	tyloParent1   = "00-0c98780d22c141498096526d5fa8728c-fe7f605a6877d762-01"
	tyloParent2   = "00-47eff7681d9b7748cf811e272256867a-3d5044b7d547d749-01"
	tyloExactUUID = "trace_4bf92f35-77b3-4da6-a3ce-929d0e0e4736"
	tyloExactSpan = "mcp_00f067aa0ba902b7"
)

// Vectors 1 to 7: from Tylo to W3C.
func TestTyloContext(t *testing.T) {
	for _, tt := range []struct {
		name        string
		ids         TyloIDs
		traceparent string
		member      string
	}{
		{"1 uuids", TyloIDs{tyloUUID, tyloSpanUUID}, tyloParent1, tyloUUID + "/" + tyloSpanUUID},
		{"2 short", TyloIDs{"trace_123", "mcp_abc"}, tyloParent2, "trace_123/mcp_abc"},
		{"3 demo", TyloIDs{"trace_demo", "llm_demo"}, "00-e8bf1386d36fbbf1765d5df1f829a042-ddc53b46da885a39-01", "trace_demo/llm_demo"},
		{"4 upper case", TyloIDs{"trace_0C98780D-22C1-4149-8096-526D5FA8728C", "mcp_00f067aa0ba902b7"},
			"00-f02705f4d4324618d9323979fd45ed45-00f067aa0ba902b7-01", "trace_0C98780D-22C1-4149-8096-526D5FA8728C/mcp_00f067aa0ba902b7"},
		{"5 time and random", TyloIDs{"trace_18e4c2a7b3f_8a1b2c3d4e5f6", "tool_18e4c2a7b40_1f2e3d4c5b6a7"},
			"00-e194883e79a085e2c16c11252c34146f-259dbeae4bb5666e-01", "trace_18e4c2a7b3f_8a1b2c3d4e5f6/tool_18e4c2a7b40_1f2e3d4c5b6a7"},
		{"6 zero", TyloIDs{"trace_00000000-0000-0000-0000-000000000000", "mcp_0000000000000000"},
			"00-0001b4b1ac5229abdcb09802c18baa30-27b34a3aa09f8c60-01", "trace_00000000-0000-0000-0000-000000000000/mcp_0000000000000000"},
		{"7 only mcp_ is exact", TyloIDs{tyloExactUUID, "http_00f067aa0ba902b7"},
			"00-4bf92f3577b34da6a3ce929d0e0e4736-e35adaf16349e808-01", tyloExactUUID + "/http_00f067aa0ba902b7"},
		{"exact", TyloIDs{tyloExactUUID, tyloExactSpan}, testTraceparent, ""},
		{"18 member left out", TyloIDs{strings.Repeat("a", 128), strings.Repeat("b", 128)}, "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if _, ok := ParseTyloIDs(tt.ids.TraceID, tt.ids.ParentSpanID); !ok {
				t.Fatalf("ParseTyloIDs(%q) is invalid", tt.ids)
			}
			c := tt.ids.Context(FlagSampled)
			if got := c.Traceparent(); !c.Valid() || tt.traceparent != "" && got != tt.traceparent {
				t.Errorf("%q.Context() = %q, want %q", tt.ids, got, tt.traceparent)
			}
			if got := c.State.Member("tylo"); got != tt.member {
				t.Errorf("%q: member %q, want %q", tt.ids, got, tt.member)
			}
		})
	}
	if n := len(tyloUUID + "/" + tyloSpanUUID); n != 83 {
		t.Errorf("member of vector 1 has %d characters, want 83", n)
	}
	if got := (TyloIDs{"trace_123", "mcp_abc"}).Context(0).Flags; got != 0 {
		t.Errorf("flags = %x, want those given", got)
	}
	if got := (TyloIDs{}).Context(FlagSampled); got != (TraceContext{}) {
		t.Errorf("Context of no ids = %v", got)
	}
}

// Vectors 8 to 12: from W3C to Tylo.
func TestTyloIDs(t *testing.T) {
	for _, tt := range []struct {
		name, traceparent string
		state             Tracestate
		remember          *TyloIDs
		want              TyloIDs
	}{
		{"8 made", testTraceparent, "", nil, TyloIDs{tyloExactUUID, tyloExactSpan}},
		{"9 member", tyloParent2, "tylo=trace_123/mcp_abc", nil, TyloIDs{"trace_123", "mcp_abc"}},
		{"10 another span", "00-47eff7681d9b7748cf811e272256867a-b7ad6b7169203331-01", "tylo=trace_123/mcp_abc", nil, TyloIDs{"trace_123", "mcp_b7ad6b7169203331"}},
		{"11 member of another trace", testTraceparent, "tylo=trace_123/mcp_abc", nil, TyloIDs{tyloExactUUID, tyloExactSpan}},
		{"12 no member, empty table", tyloParent2, "", nil, TyloIDs{"trace_47eff768-1d9b-7748-cf81-1e272256867a", "mcp_3d5044b7d547d749"}},
		{"table", tyloParent2, "", &TyloIDs{"trace_123", "mcp_abc"}, TyloIDs{"trace_123", "mcp_abc"}},
		{"table knows the trace alone", "00-47eff7681d9b7748cf811e272256867a-b7ad6b7169203331-01", "", &TyloIDs{"trace_123", "mcp_abc"}, TyloIDs{"trace_123", "mcp_b7ad6b7169203331"}},
		{"two slashes", tyloParent2, "tylo=trace_123/mcp_abc/x", nil, TyloIDs{"trace_47eff768-1d9b-7748-cf81-1e272256867a", "mcp_3d5044b7d547d749"}},
		{"no slash", tyloParent2, "tylo=trace_123", nil, TyloIDs{"trace_47eff768-1d9b-7748-cf81-1e272256867a", "mcp_3d5044b7d547d749"}},
		{"bad second id voids the member", tyloParent2, "tylo=trace_123/a b", nil, TyloIDs{"trace_47eff768-1d9b-7748-cf81-1e272256867a", "mcp_3d5044b7d547d749"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			table := NewTyloTable(10, time.Hour)
			if tt.remember != nil {
				table.Remember(*tt.remember)
			}
			c, _ := ParseTraceparent(tt.traceparent)
			c.State = tt.state
			got := table.IDs(c)
			if got != tt.want {
				t.Errorf("IDs = %q, want %q", got, tt.want)
			}
			if back := got.Context(c.Flags); back.TraceID != c.TraceID || back.SpanID != c.SpanID {
				t.Errorf("IDs = %q, which is %q, not %q", got, back.Traceparent(), tt.traceparent)
			}
		})
	}
}

// Vectors 13 to 15: which carrier is the parent.
func TestTyloConflicts(t *testing.T) {
	row1 := TyloIDs{tyloUUID, tyloSpanUUID}.Context(FlagSampled)
	row2 := TyloIDs{"trace_123", "mcp_abc"}.Context(FlagSampled)
	row8, _ := ParseTraceparent(testTraceparent)
	for _, tt := range []struct {
		name                string
		traceparent         string
		inMessage, inHeader TyloIDs
		parent              TraceContext
		conflicts           []TraceContext
	}{
		{"13 traceparent and headers", testTraceparent, TyloIDs{}, TyloIDs{tyloUUID, tyloSpanUUID}, row8, []TraceContext{row1}},
		{"14 zero traceparent", "00-" + strings.Repeat("0", 32) + "-00f067aa0ba902b7-01", TyloIDs{}, TyloIDs{tyloUUID, tyloSpanUUID}, row1, nil},
		{"14 version ff", "ff" + testTraceparent[2:], TyloIDs{}, TyloIDs{tyloUUID, tyloSpanUUID}, row1, nil},
		{"14 upper case", strings.ToUpper(testTraceparent), TyloIDs{}, TyloIDs{tyloUUID, tyloSpanUUID}, row1, nil},
		{"15 params and headers", "", TyloIDs{"trace_123", "mcp_abc"}, TyloIDs{tyloUUID, tyloSpanUUID}, row2, []TraceContext{row1}},
		{"same trace", tyloParent2, TyloIDs{"trace_123", "mcp_abc"}, TyloIDs{}, TraceContext{TraceID: row2.TraceID, SpanID: row2.SpanID, Flags: 1}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			header := ParseContext([]string{tt.traceparent}, nil, nil)
			parent, conflicts := Adopt(header, tt.inMessage.Context(FlagSampled), tt.inHeader.Context(FlagSampled))
			if diff := cmp.Diff(tt.parent, parent) + cmp.Diff(tt.conflicts, conflicts); diff != "" {
				t.Errorf("Adopt (-want +got):\n%s", diff)
			}
		})
	}
}

// Vectors 16 and 18: what is a pair.
func TestParseTyloHeaders(t *testing.T) {
	ok := []string{"mcp_abc"}
	for _, tt := range []struct {
		name        string
		trace, span []string
		want        bool
	}{
		{"both", []string{"trace_123"}, ok, true},
		{"all characters", []string{"AZaz09._:-"}, ok, true},
		{"128 bytes", []string{strings.Repeat("a", 128)}, []string{strings.Repeat("b", 128)}, true},
		{"16 only one", []string{"trace_123"}, nil, false},
		{"16 only the other", nil, ok, false},
		{"16 trace twice", []string{"trace_123", "trace_123"}, ok, false},
		{"16 span twice", []string{"trace_123"}, []string{"a", "a"}, false},
		{"16 empty", []string{""}, ok, false},
		{"16 129 bytes", []string{strings.Repeat("a", 129)}, ok, false},
		{"16 space", []string{"a b"}, ok, false},
		{"16 slash", []string{"a/b"}, ok, false},
		{"16 equals sign", []string{"a=b"}, ok, false},
		{"16 comma", []string{"a,b"}, ok, false},
		{"16 not ASCII", []string{"é"}, ok, false},
		{"16 bad span", []string{"trace_123"}, []string{"a b"}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ids, got := ParseTyloHeaders(tt.trace, tt.span)
			if got != tt.want || ids.Valid() != tt.want {
				t.Errorf("ParseTyloHeaders(%q, %q) = %q, %v, want %v", tt.trace, tt.span, ids, got, tt.want)
			}
			if got && (ids.TraceID != tt.trace[0] || ids.ParentSpanID != tt.span[0]) {
				t.Errorf("ParseTyloHeaders(%q, %q) = %q", tt.trace, tt.span, ids)
			}
		})
	}
}

// Vectors 16 and 17 in a message: what is no pair of strings is no context, and
// where tylo cannot be written its bytes stay.
func TestTyloInMessage(t *testing.T) {
	for _, tt := range []struct {
		name, tylo string
		want       TyloIDs
		refused    Refusal
	}{
		{"2 pair", `{"trace":{"traceId":"trace_123","parentSpanId":"mcp_abc"}}`, TyloIDs{"trace_123", "mcp_abc"}, ""},
		{"16 number", `{"trace":{"traceId":1,"parentSpanId":"mcp_abc"}}`, TyloIDs{}, ""},
		{"16 null", `{"trace":{"traceId":"trace_123","parentSpanId":null}}`, TyloIDs{}, ""},
		{"17 string", `"x"`, TyloIDs{}, RefusedMetaNotObject},
		{"17 array", `[]`, TyloIDs{}, RefusedMetaNotObject},
		{"17 trace null", `{"trace":null}`, TyloIDs{}, RefusedMetaNotObject},
	} {
		t.Run(tt.name, func(t *testing.T) {
			body := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"tylo":` + tt.tylo + `}}`
			m := Read([]byte(body), Hints{})
			if m.Tylo != tt.want || m.TyloRefusal != tt.refused {
				t.Errorf("Read: tylo %q, refused %q; want %q, %q", m.Tylo, m.TyloRefusal, tt.want, tt.refused)
			}
			out, _ := m.Stamp(Edit{Traceparent: testTraceparent, Tylo: &TyloIDs{"trace_9", "mcp_9"}})
			if kept := strings.Contains(string(out), `"tylo":`+tt.tylo); kept != (tt.refused != "") {
				t.Errorf("Stamp = %s, tylo kept: %v", out, kept)
			}
		})
	}
}

func TestTyloAnnotate(t *testing.T) {
	hashed, exact := TyloIDs{"trace_123", "mcp_abc"}, TyloIDs{tyloExactUUID, tyloExactSpan}
	for _, tt := range []struct {
		name     string
		ids      TyloIDs
		in, want Tracestate
	}{
		{"hashed", hashed, "a=b", "tylo=trace_123/mcp_abc,a=b"},
		{"hashed, another member", hashed, "a=b,tylo=x/y", "tylo=trace_123/mcp_abc,a=b"},
		{"exact", exact, "a=b", "a=b"},
		{"exact removes", exact, "tylo=x/y,a=b", "a=b"},
		{"none removes", TyloIDs{}, "tylo=x/y,a=b", "a=b"},
		{"256 characters", TyloIDs{strings.Repeat("a", 128), strings.Repeat("b", 127)}, "", Tracestate("tylo=" + strings.Repeat("a", 128) + "/" + strings.Repeat("b", 127))},
		{"257 characters removes", TyloIDs{strings.Repeat("a", 128), strings.Repeat("b", 128)}, "tylo=x/y", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.ids.Annotate(tt.in); got != tt.want {
				t.Errorf("%q.Annotate(%q) = %q, want %q", tt.ids, tt.in, got, tt.want)
			}
		})
	}
}

func TestTyloTable(t *testing.T) {
	// known reports which of the ids the table spells, "t" for trace, "s" for span.
	known := func(table *TyloTable, ids TyloIDs) (s string) {
		c := ids.Context(0)
		c.State = ""
		got := table.IDs(c)
		if got.TraceID == ids.TraceID {
			s += "t"
		}
		if got.ParentSpanID == ids.ParentSpanID {
			s += "s"
		}
		return s
	}
	check := func(when string, table *TyloTable, ids TyloIDs, want string) {
		t.Helper()
		if got := known(table, ids); got != want {
			t.Errorf("%s: table knows %q of %q, want %q", when, got, ids, want)
		}
	}
	pair := func(i int) TyloIDs { return TyloIDs{fmt.Sprintf("trace_%d", i), fmt.Sprintf("mcp_%d", i)} }

	synctest.Test(t, func(t *testing.T) {
		table := NewTyloTable(4, time.Hour)
		table.Remember(pair(1))
		time.Sleep(time.Hour - time.Nanosecond)
		check("just before the ttl", table, pair(1), "ts")
		table.Remember(pair(1)) // does not live longer for that
		time.Sleep(time.Nanosecond)
		check("at the ttl", table, pair(1), "")
		table.Remember(pair(1))
		check("remembered anew", table, pair(1), "ts")
		time.Sleep(time.Hour)
		table.Remember(pair(2))
		table.Remember(TyloIDs{})
		table.Remember(pair(3))
		check("full", table, pair(2), "ts")
		table.Remember(TyloIDs{tyloExactUUID, tyloExactSpan}) // takes no room
		check("full still", table, pair(2), "ts")
		table.Remember(TyloIDs{"trace_4", tyloExactSpan})
		check("oldest gone", table, pair(2), "s")
		check("younger stays", table, pair(3), "ts")
		check("newest stays", table, TyloIDs{"trace_4", tyloExactSpan}, "ts")
		if n := len(table.names); n != 4 || len(table.queue) != n {
			t.Errorf("table of 4 holds %d names, %d in the queue", n, len(table.queue))
		}
	})

	// The id of a span is never taken for one of a trace.
	table := NewTyloTable(4, time.Hour)
	table.Remember(TyloIDs{tyloExactUUID, "mcp_abc"})
	c := TyloIDs{tyloExactUUID, "mcp_abc"}.Context(0)
	c.State = ""
	c.TraceID = TraceID{}
	copy(c.TraceID[:], c.SpanID[:])
	if got := table.IDs(c); got.TraceID != tyloTraceID(c.TraceID) {
		t.Errorf("table takes trace %s for %q", c.TraceID, got.TraceID)
	}

	var none *TyloTable
	none.Remember(pair(1))
	check("nil", none, pair(1), "")
	empty := NewTyloTable(0, time.Hour)
	empty.Remember(pair(1))
	check("no room", empty, pair(1), "")

	synctest.Test(t, func(t *testing.T) { // the map is what bounds memory
		table := NewTyloTable(2, time.Hour)
		for i := range 1000 {
			table.Remember(pair(i))
		}
		check("after many", table, pair(999), "ts")
		if cap(table.queue) > 64 {
			t.Errorf("queue grew to %d", cap(table.queue))
		}
	})
}

// Whatever the ids: W3C to Tylo and back loses nothing, and two proxies agree.
func FuzzTylo(f *testing.F) {
	f.Add("trace_123", "mcp_abc", testTraceparent, "tylo=trace_123/mcp_abc")
	f.Add(tyloUUID, tyloSpanUUID, tyloParent2, "tylo=a/b,c=d")
	f.Add(strings.Repeat("a", 128), tyloExactSpan, tyloParent1, "")
	f.Fuzz(func(t *testing.T, traceID, spanID, traceparent, state string) {
		if ids, ok := ParseTyloIDs(traceID, spanID); ok {
			c := ids.Context(FlagSampled)
			if !c.Valid() {
				t.Fatalf("%q.Context() = %v", ids, c)
			}
			if _, ok := ParseTracestate(string(c.State)); !ok {
				t.Errorf("%q.Context() has tracestate %q", ids, c.State)
			}
			if c.State != "" || len(ids.TraceID+ids.ParentSpanID) < maxTyloMember {
				if got := (*TyloTable)(nil).IDs(c); got != ids {
					t.Errorf("%q becomes %q", ids, got)
				}
			}
			table := NewTyloTable(2, time.Hour)
			table.Remember(ids)
			c.State = ""
			if got := table.IDs(c); got != ids {
				t.Errorf("table turns %q into %q", ids, got)
			}
		}
		c := ParseContext([]string{traceparent}, []string{state}, nil)
		if !c.Valid() {
			return
		}
		ids := (*TyloTable)(nil).IDs(c)
		back := ids.Context(c.Flags)
		if back.TraceID != c.TraceID || back.SpanID != c.SpanID {
			t.Errorf("%q with %q becomes %q becomes %q", traceparent, state, ids, back.Traceparent())
		}
		if _, ok := ParseTyloIDs(ids.TraceID, ids.ParentSpanID); !ok {
			t.Errorf("%q becomes %q, which is invalid", traceparent, ids)
		}
	})
}
