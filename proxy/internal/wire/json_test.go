package wire

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"
)

var scanSeeds = []string{
	``, ` `, `{}`, `[]`, `{ }`, `[ ]`, `null`, `true`, `false`, `nul`, `truex`, `{"a":1}`, `{"a":1,}`, `[1,]`, `[,]`, `{,}`,
	`{"a" 1}`, `{"a":}`, `{a:1}`, `{"a":1 "b":2}`, `[1 2]`, `{"a":1`, `[1`, `"`, `"a`, `"\`, `"\u12`, `"\u12G4"`, `"\x"`, `"\ud800"`,
	`"\ud83d\ude00"`, "\"\x00\"", "\"\x1f0123456\"", "\"0123456\x1f\"", "\"\x7f\"", "\"\xff\xfe\"", "\"0123456789abcdef\"",
	`"0123456\"89"`, `"01234567\\"`, `0`, `-0`, `-`, `01`, `1.`, `.1`, `1.5`, `1e`, `1e+`, `1E-7`, `1e400`, `+1`, `0x1`, `-01`, `1.e1`,
	"\ufeff{}", `{}{}`, `{} x`, "\t\r\n {}\n", "\v{}", "{}\x00", `{"\u006dethod":1}`, `{"a":[{"b":[[]]}]}`, `[1,"a",null,{},[]]`,
	`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"_meta":{"traceparent":"x"}}}`,
}

// The scanner accepts exactly what json.Valid accepts, and says too-deep only
// of what is.
func FuzzScan(f *testing.F) {
	for _, s := range scanSeeds {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		for name, tree := range map[string]*node{"nothing": {}, "request": requestTree, "rest": paramsNode, "answer": answerTree, "bare": bareAnswerTree, "card": cardTree, "interface": interfaceTree, "discovery": discoveryTree, "events": eventsTree, "receipt of MCP": receiptTreeMCP, "receipt of A2A": receiptTreeA2A, "receipt over REST": receiptTreeREST, "holder": holderTree} {
			d := doc{body: in}
			switch got, valid := d.scan(tree), json.Valid(in); {
			case got == RefusedTooDeep && deepest(in) <= maxDepth:
				t.Errorf("watching %s: scan(%q) = %q at depth %d", name, in, got, deepest(in))
			case got == "" && !valid, got == RefusedNotJSON && valid:
				t.Errorf("watching %s: scan(%q) = %q, json.Valid = %v", name, in, got, valid)
			}
		}
	})
}

// deepest counts how many brackets are open at once, at most. It reads no
// strings, so it may count too many, never too few.
func deepest(in []byte) (deepest int) {
	for depth, i := 0, 0; i < len(in); i++ {
		switch in[i] {
		case '{', '[':
			depth++
			deepest = max(deepest, depth)
		case '}', ']':
			depth--
		}
	}
	return deepest
}

func TestScanAgreesWithJSONValid(t *testing.T) {
	for _, in := range scanSeeds {
		d := doc{body: []byte(in)}
		if got, want := d.scan(requestTree) == "", json.Valid([]byte(in)); got != want {
			t.Errorf("scan(%q) accepts = %v, want %v", in, got, want)
		}
	}
}

func TestScanDepth(t *testing.T) {
	nested := func(open, inner, end string, n int) string {
		return strings.Repeat(open, n) + inner + strings.Repeat(end, n)
	}
	for _, tt := range []struct {
		name, in string
		want     Refusal
	}{
		{"arrays at the limit", nested("[", "", "]", maxDepth), ""},
		{"arrays above it", nested("[", "", "]", maxDepth+1), RefusedTooDeep},
		{"objects at the limit", nested(`{"a":`, "1", "}", maxDepth), ""},
		{"objects above it", nested(`{"a":`, "{}", "}", maxDepth), RefusedTooDeep},
		{"watched object at the limit", `{"params":` + nested(`{"a":`, "1", "}", maxDepth-1) + "}", ""},
		{"watched object above it", `{"params":` + nested(`{"a":`, "1", "}", maxDepth) + "}", RefusedTooDeep},
		{"very deep", strings.Repeat("[", 1<<20), RefusedTooDeep},
		{"wide is not deep", "[" + strings.Repeat("[],", 1000) + "{}]", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := doc{body: []byte(tt.in)}
			if got := d.scan(requestTree); got != tt.want {
				t.Errorf("scan = %q, want %q", got, tt.want)
			}
		})
	}
}

func TestScanNotes(t *testing.T) {
	for _, tt := range []struct {
		name, in       string
		slot           slot
		want           string // as written
		twice, variant guard
	}{
		{"plain", `{"method": "ping" }`, atMethod, `"ping"`, 0, 0},
		{"absent", `{"id":1}`, atMethod, ``, 0, 0},
		{"nested", `{"params":{"_meta":{"tracestate":"a=b"}}}`, atMetaTracestate, `"a=b"`, 0, 0},
		{"any type", `{"params" :[1, 2]}`, atParams, `[1, 2]`, 0, 0},
		{"key with escapes", `{"\u006D\u0065thod":1}`, atMethod, `1`, 0, 0},
		{"all of a long key escaped", `{"params":{"_meta":{"` + escapeAll("io.modelcontextprotocol/protocolVersion") + `":"x"}}}`, atMetaVersion, `"x"`, 0, 0},
		{"not on its level", `{"a":{"method":1}}`, atMethod, ``, 0, 0},
		{"not in an array", `{"params":[{"_meta":{}}]}`, atMeta, ``, 0, 0},
		{"twice", `{"method":1,"method":2}`, atMethod, ``, guardEnvelope, 0},
		{"three times", `{"method":1,"method":2,"method":3}`, atMethod, ``, guardEnvelope, 0},
		{"twice, once escaped", `{"method":1,"m\u0065thod":2}`, atMethod, ``, guardEnvelope, 0},
		{"what is inside goes too", `{"params":{"name":"a"},"params":{}}`, atName, ``, guardEnvelope, 0},
		{"and stays away", `{"params":{},"params":{"name":"a"}}`, atName, ``, guardEnvelope, 0},
		{"twice elsewhere", `{"params":{"_meta":{"baggage":1,"baggage":1}}}`, atMethod, ``, guardMCP, 0},
		{"unguarded twice", `{"params":{"name":"a","name":"b"}}`, atName, ``, 0, 0},
		{"unwatched twice", `{"method":1,"x":1,"x":2}`, atMethod, `1`, 0, 0},
		{"one webhook under two names", `{"params":{"pushNotificationConfig":{"url":"a"},"configuration":{"pushNotification":{"token":"b"}}}}`, atPushURL, ``, 0, 0},
		{"case variant", `{"METHOD":1,"method":2}`, atMethod, `2`, 0, guardEnvelope},
		{"case variant alone", `{"Params":{"name":"a"}}`, atName, ``, 0, guardEnvelope},
		{"case variant by escape", `{"\u004dethod":1}`, atMethod, ``, 0, guardEnvelope},
		{"long s for s", `{"param\u017f":1}`, atParams, ``, 0, guardEnvelope},
		{"long s first", `{"params":{"tylo":{"trace":{"ſource":1}}}}`, atTyloSource, ``, 0, guardTylo},
		{"unguarded case variant", `{"params":{"NAME":"a"}}`, atName, ``, 0, 0},
		{"longer than the name", `{"methods":1}`, atMethod, ``, 0, 0},
		{"empty key", `{"":1}`, atMethod, ``, 0, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := doc{body: []byte(tt.in)}
			if r := d.scan(requestTree); r != "" {
				t.Fatalf("scan(%s) = %q", tt.in, r)
			}
			if got := string(d.raw(tt.slot)); got != tt.want {
				t.Errorf("scan(%s) notes %q, want %q", tt.in, got, tt.want)
			}
			if d.twice != tt.twice || d.variant != tt.variant {
				t.Errorf("scan(%s): twice %b, variant %b; want %b, %b", tt.in, d.twice, d.variant, tt.twice, tt.variant)
			}
		})
	}
}

func escapeAll(s string) string {
	var b strings.Builder
	for _, c := range s {
		fmt.Fprintf(&b, `\u%04x`, c)
	}
	return b.String()
}

func TestScanDoesNotAllocate(t *testing.T) {
	body := []byte(`{"jsonrpc":"2.0","\u006dethod":"x","METHOD":1,"id":1,"id":2,"params":{"_meta":{"a":[1,2,{"b":"\n"}]}}}`)
	if n := testing.AllocsPerRun(100, func() {
		d := doc{body: body}
		d.scan(requestTree)
	}); n != 0 {
		t.Errorf("scan allocates %v times, want 0", n)
	}
}

// The scanner relies on what these tables say.
func TestTrees(t *testing.T) {
	for name, tree := range map[string]*node{"request": requestTree, "answer": answerTree, "bare": bareAnswerTree, "card": cardTree, "interface": interfaceTree, "discovery": discoveryTree, "events": eventsTree, "receipt of MCP": receiptTreeMCP, "receipt of A2A": receiptTreeA2A, "receipt over REST": receiptTreeREST, "holder": holderTree} {
		// One slot may stand for one thing under several names, as long as they
		// are the same leaf or lead to it: webhooks, and what A2A wraps.
		holders := map[slot]string{}
		var walk func(path string, n *node)
		walk = func(path string, n *node) {
			last := path[strings.LastIndex(path, "/")+1:]
			if held, ok := holders[n.slot]; ok && held != last && !strings.HasPrefix(strings.ToLower(last), "push") && !strings.HasPrefix(strings.ToLower(last), "taskpush") {
				t.Errorf("%s: %s shares its slot with %s", name, path, held)
			}
			holders[n.slot] = last
			if int(n.slot) >= int(slots) {
				t.Errorf("%s: %s has slot %d of %d", name, path, n.slot, slots)
			}
			seen := map[string]bool{}
			for _, e := range n.edges {
				if seen[string(e.name)] {
					t.Errorf("%s: %s/%s is watched twice", name, path, e.name)
				}
				seen[string(e.name)] = true
				if len(e.name) == 0 || len(e.name) > longestName || bytes.ContainsFunc(e.name, func(r rune) bool { return r >= utf8.RuneSelf }) {
					t.Errorf("%s: %s/%s is not 1 to %d of ASCII", name, path, e.name, longestName)
				}
				walk(path+"/"+string(e.name), e.to)
			}
		}
		walk("", tree)
	}
}

// Text is what encoding/json makes of a string, and quoting is its inverse.
func FuzzText(f *testing.F) {
	for _, s := range []string{`a`, `\u0041\n\"\\\/`, `\ud83d\ude00`, `\ud83d`, `\ude00\ud83d`, `\ud83d\u0041`, `\ud83dA`, "\xff\xc0", "é€😀", "\x7f", `\u0000`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		quoted := `"` + string(raw) + `"`
		var want string
		if json.Unmarshal([]byte(quoted), &want) != nil || skipString([]byte(quoted), 0) != len(quoted) {
			t.Skip()
		}
		got := unquote(raw, 3*len(raw))
		if got != want {
			t.Fatalf("unquote(%q) = %q, want %q", raw, got, want)
		}
		var back string
		if err := json.Unmarshal(appendQuoted(nil, got), &back); err != nil || back != got {
			t.Fatalf("appendQuoted(%q) reads as %q, %v", got, back, err)
		}
		if cut := unquote(raw, 5); len(cut) > 5 || !strings.HasPrefix(want, cut) || !utf8.ValidString(cut) {
			t.Fatalf("unquote(%q, 5) = %q", raw, cut)
		}
	})
}

// decode reads a JSON text with encoding/json, and numbers of any size as they stand.
func decode(text []byte, to any) error {
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	return dec.Decode(to)
}
