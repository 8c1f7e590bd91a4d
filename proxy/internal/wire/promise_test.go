package wire

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
)

// named are the members that an edit may touch. A nil tree is such a member; the
// rest is how to get there. These lists are the promise, written down a second
// time: they must not be derived from the code.
type named map[string]named

var (
	namedTrace = named{"traceparent": nil, "tracestate": nil}
	namedMCP   = named{"params": {
		"_meta": {"traceparent": nil, "tracestate": nil, "baggage": nil, "dev.wopproxy/run-ancestry": nil},
		"tylo":  {"trace": {"traceId": nil, "parentSpanId": nil, "source": nil}},
	}}
	namedMCPWithoutTylo = named{"params": {"_meta": namedMCP["params"]["_meta"]}}

	namedREST = named{"message": {"metadata": {"openwop": namedTrace}}}
	namedA2A  = named{"params": namedREST}
)

// checkStamp holds the promise of the package against one body: a refused body
// comes back as it is, an edited one is JSON to a reader that is none of ours,
// differs to it in nothing but the named members, carries the edit, and is stable.
func checkStamp(t *testing.T, in []byte, h Hints, e Edit) {
	t.Helper()
	m := Read(in, h)
	out, refused := m.Stamp(e)
	e.Into = bytes.Repeat([]byte("?"), len(out))
	if lent, again := m.Stamp(e); !bytes.Equal(lent, out) || again != refused {
		t.Errorf("Stamp(%q) into lent memory = %q, %q, want %q, %q", in, lent, again, out, refused)
	}
	e.Into = nil
	if refused != "" {
		if !slices.Contains(Refusals(), refused) {
			t.Errorf("Stamp(%q): refusal %q is not in the closed set", in, refused)
		}
		if !same(in, out) {
			t.Errorf("Stamp(%q) refused with %q but returned %q", in, refused, out)
		}
		return
	}
	if m.Protocol == None {
		t.Fatalf("Stamp(%q) edits what is of no protocol", in)
	}
	if bytes.Equal(in, out) && !same(in, out) {
		t.Errorf("Stamp(%q) copied what it did not change", in)
	}
	if err := strictly(in, lenient...); err != nil {
		t.Fatalf("Stamp(%q) edits what another reader refuses: %v", in, err)
	}
	as := lenient
	if strictly(in) == nil {
		as = nil // and so it stays
	}
	if err := strictly(out, as...); err != nil {
		t.Fatalf("Stamp(%q) = %q, which another reader refuses: %v", in, out, err)
	}
	tree := namedMCP
	switch {
	case h.REST:
		tree = namedREST
	case m.Protocol == A2A:
		tree = namedA2A
	case m.TyloRefusal != "":
		tree = namedMCPWithoutTylo
	}
	if diff := cmp.Diff(others(t, in, tree), others(t, out, tree)); diff != "" {
		t.Fatalf("Stamp(%q) = %q changes other members (-in +out):\n%s", in, out, diff)
	}

	after := Read(out, h)
	if after.Refusal != "" {
		t.Fatalf("Stamp(%q) = %q, which is refused with %q", in, out, after.Refusal)
	}
	again, refused := after.Stamp(e)
	if refused != "" || !same(out, again) {
		t.Fatalf("Stamp(%q) = %q, and again %q %q", in, out, again, refused)
	}
	checkCarried(t, &after, e)
	without := func(m Message) Message {
		m.Traceparent, m.Tracestate, m.Baggage, m.Ancestry, m.Tylo, m.doc = "", "", "", "", TyloIDs{}, doc{}
		return m
	}
	if diff := cmp.Diff(without(m), without(after), cmp.AllowUnexported(Message{}, doc{}, span{}, pbDoc{})); diff != "" {
		t.Errorf("Stamp(%q) = %q, which reads as another message:\n%s", in, out, diff)
	}
}

// checkCarried compares what the message carries with what it shall carry.
func checkCarried(t *testing.T, m *Message, e Edit) {
	t.Helper()
	got := [4]string{m.Traceparent, m.Tracestate, m.Baggage, m.Ancestry}
	want := [4]string{e.Traceparent, e.Tracestate, e.Baggage, e.Ancestry}
	if e.Traceparent == "" {
		want[1] = ""
	}
	if m.Protocol == A2A {
		want[2], want[3] = "", ""
		if !m.sends || !m.doc.has(atOpenWOP) {
			if m.sends && e.InMessage && e.Traceparent != "" {
				t.Errorf("%q has no carrier", m.doc.body)
			}
			want = [4]string{}
		}
	}
	if got != want {
		t.Errorf("%q carries %q, want %q", m.doc.body, got, want)
	}
	if m.Protocol == MCP && e.Tylo != nil && m.TyloRefusal == "" && m.doc.has(atParams) && m.Tylo != *e.Tylo {
		t.Errorf("%q carries %v, want %v", m.doc.body, m.Tylo, *e.Tylo)
	}
}

// same reports whether both are the same memory.
func same(a, b []byte) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// strictly reports why a reader that follows RFC 8259 and RFC 7493 to the letter
// refuses a body.
func strictly(body []byte, options ...jsontext.Options) error {
	copied := jsontext.Value(body).Clone()
	return copied.Compact(options...)
}

// lenient admits what a peer may have in members that no edit is about, and gets
// back as it was: names that stand twice, and bytes that are no UTF-8.
var lenient = []jsontext.Options{jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)}

// others lists the members of a JSON object in their order, each with its path
// and the bytes of its value, except the named ones and what only holds them.
func others(t *testing.T, raw []byte, tree named) (list []string) {
	t.Helper()
	dec := jsontext.NewDecoder(bytes.NewReader(raw), lenient...)
	if dec.PeekKind() != jsontext.KindBeginObject {
		return []string{string(bytes.TrimSpace(raw))}
	}
	if _, err := dec.ReadToken(); err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for dec.PeekKind() != jsontext.KindEndObject {
		key, err := dec.ReadToken()
		if err != nil {
			t.Fatal(err)
		}
		name := key.String()
		value, err := dec.ReadValue()
		if err != nil {
			t.Fatal(err)
		}
		below, ok := tree[name]
		if ok && seen[name] {
			t.Fatalf("%q was edited, but has %q twice", raw, name)
		}
		seen[name] = true
		switch {
		case !ok:
			list = append(list, fmt.Sprintf("%q: %s", name, value))
		case below != nil:
			for _, line := range others(t, value, below) {
				list = append(list, name+"/"+line)
			}
		}
	}
	return list
}

const testTraceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

// edits are the ones that fuzzing tries on each body.
var fuzzEdits = []Edit{
	{Traceparent: testTraceparent, Tracestate: `wop=r1,a="b\c`, Baggage: "k=v", Ancestry: `"r-1";host="h"`, InMessage: true, Tylo: &TyloIDs{"trace_1", "mcp_2"}},
	{Traceparent: testTraceparent},
	{Tracestate: "a=b"},
	{},
}

// seeds returns the bodies of the golden files.
func seeds(t testing.TB, dirs ...string) (bodies [][]byte) {
	for _, dir := range dirs {
		files, err := filepath.Glob(filepath.Join("testdata", dir, "*.txtar"))
		if err != nil || len(files) == 0 {
			t.Fatalf("no golden files in %s: %v", dir, err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			bodies = append(bodies, section(txtar.Parse(text), "in"))
		}
	}
	return bodies
}

// Random bytes rarely make a message, so this makes messages of the members
// that matter, in any order, of any type, now and then twice or misspelt.
func TestStampRandomMessages(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	stamped := map[Protocol]int{}
	for range 1000 {
		m := maker{rnd: rnd}
		h := Hints{REST: rnd.IntN(4) == 0}
		switch {
		case h.REST:
			m.object(shapeREST)
		case rnd.IntN(2) == 0:
			m.object(shapeA2A)
		default:
			m.object(shapeMCP)
		}
		for _, e := range fuzzEdits {
			e.InMessage = rnd.IntN(2) == 0
			checkStamp(t, m.out, h, e)
		}
		if t.Failed() {
			return
		}
		if r := Read(m.out, h); r.Refusal == "" {
			stamped[r.Protocol]++
		}
	}
	if stamped[MCP] < 100 || stamped[A2A] < 100 {
		t.Errorf("only %v of 1000 messages could be stamped", stamped)
	}
}

// shape is the members an object may have: raw JSON, or a shape of their own.
type shape map[string]any

var (
	shapeOpenWOP  = shape{"metadata": shape{"openwop": shape{"traceparent": `"x"`, "tracestate": `"a=b"`, "interrupt": `{}`}, "x": `1`}}
	shapeREST     = shape{"message": shapeOpenWOP, "metadata": `{"openwop":{}}`, "configuration": `{}`}
	shapeA2A      = shape{"jsonrpc!": `"2.0"`, "id!": `"a"`, "method!": `"SendMessage"`, "params": shapeREST}
	shapeMCP      = shape{"jsonrpc!": `"2.0"`, "id": `1`, "method!": `"tools/call"`, "params": shape{"_meta": shapeMeta, "tylo": shapeTylo, "name": `"n"`, "arguments": `{"_meta":{"traceparent":1}}`}}
	shapeMeta     = shape{"traceparent": `"x"`, "tracestate": `"a=b"`, "baggage": `[1,{}]`, "dev.wopproxy/run-ancestry": `null`, "progressToken": `0`, "z": `"\u007d,"`}
	shapeTylo     = shape{"trace": shape{"traceId": `"a"`, "parentSpanId": `"b"`, "source": `"s"`, "x": `{}`}, "note": `[]`}
	shapeAnything = []string{`null`, `"s"`, `[]`, `1`, `{}`}
)

// maker writes random objects of a shape.
type maker struct {
	rnd *rand.Rand
	out []byte
}

func (m *maker) object(s shape) {
	keys := slices.Sorted(maps.Keys(s)) // for the same messages each time
	m.rnd.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
	m.out = append(m.out, '{')
	first := true
	for _, key := range keys {
		name, must := strings.CutSuffix(key, "!")
		times := 1
		switch m.rnd.IntN(40) {
		case 0:
			times = 2
		case 1:
			name = strings.ToUpper(name)
		case 2:
			name = escapeAll(name)
		}
		if !must && m.rnd.IntN(3) == 0 {
			times = 0
		}
		for range times {
			if !first {
				m.out = append(m.out, ',')
			}
			first = false
			m.space()
			m.out = append(append(append(m.out, '"'), name...), '"')
			m.space()
			m.out = append(m.out, ':')
			m.space()
			m.value(s[key])
			m.space()
		}
	}
	m.space()
	m.out = append(m.out, '}')
}

func (m *maker) value(v any) {
	sub, object := v.(shape)
	switch {
	case m.rnd.IntN(40) == 0:
		m.out = append(m.out, shapeAnything[m.rnd.IntN(len(shapeAnything))]...)
	case object:
		m.object(sub)
	default:
		m.out = append(m.out, v.(string)...)
	}
}

func (m *maker) space() {
	if n := m.rnd.IntN(16); n < 4 {
		m.out = append(m.out, " \t\n\r"[n])
	}
}

func FuzzMCP(f *testing.F) {
	for _, body := range seeds(f, "mcp", "foreign") {
		f.Add(body, true, false)
		f.Add(body, false, true)
	}
	f.Fuzz(func(t *testing.T, in []byte, byHeader, acceptsBoth bool) {
		h := Hints{AcceptsBoth: acceptsBoth}
		if byHeader {
			h.Protocol = MCP
		}
		for _, e := range fuzzEdits {
			checkStamp(t, in, h, e)
		}
		checkReading(t, in, h)
	})
}

func FuzzA2A(f *testing.F) {
	for _, body := range seeds(f, "a2a", "foreign") {
		f.Add(body, true)
		f.Add(body, false)
	}
	f.Fuzz(func(t *testing.T, in []byte, rest bool) {
		for _, h := range []Hints{{Protocol: A2A, REST: rest}, {REST: rest}} {
			for _, e := range fuzzEdits {
				checkStamp(t, in, h, e)
				e.InMessage = false
				checkStamp(t, in, h, e)
			}
			checkReading(t, in, h)
		}
	})
}

// checkReading compares what Read says with what encoding/json makes of the
// body, as far as nothing was refused.
func checkReading(t *testing.T, in []byte, h Hints) {
	t.Helper()
	m := Read(in, h)
	if m.Refusal != "" || h.REST {
		return
	}
	var want struct {
		JSONRPC string          `json:"jsonrpc"`
		Method  string          `json:"method"`
		ID      json.RawMessage `json:"id"`
	}
	if err := json.Unmarshal(in, &want); err != nil {
		t.Fatalf("Read(%q) accepts, json.Unmarshal: %v", in, err)
	}
	if want.JSONRPC != "2.0" || m.Method != want.Method && len(want.Method) <= maxName/6 {
		t.Errorf("Read(%q) = %+v, want %+v", in, m.Method, want)
	}
	if (m.Kind == Request) != (len(want.ID) > 0) {
		t.Errorf("Read(%q) = %v, but its id is %q", in, m.Kind, want.ID)
	}
	for _, s := range []string{m.Method, m.ID, m.Target, m.TaskID, m.Traceparent, m.Tracestate, m.Baggage, m.Ancestry, m.WebhookURL} {
		if len(s) > 3*maxCarrier || strings.ToValidUTF8(s, "") != s {
			t.Errorf("Read(%q) returns %d bytes, or invalid UTF-8", in, len(s))
		}
	}
}

func FuzzAnswer(f *testing.F) {
	for _, body := range seeds(f, "answer") {
		for mode := range byte(8) {
			f.Add(body, mode)
		}
	}
	f.Fuzz(func(t *testing.T, in []byte, mode byte) {
		p, bare := Protocol(mode%3), mode&4 != 0
		a, ok := ReadAnswer(in, p, bare)
		if !ok {
			if diff := cmp.Diff(Answer{}, a); diff != "" {
				t.Errorf("ReadAnswer(%q) is not ok, but says %s", in, diff)
			}
			return
		}
		if !json.Valid(in) {
			t.Fatalf("ReadAnswer(%q) accepts what is not JSON", in)
		}
		for _, a := range append(a.Batch, a) {
			if len(a.ErrorMessage) > maxErrorMessage || len(a.ID) > 3*maxID+2 || len(a.TaskID) > 3*maxID {
				t.Errorf("ReadAnswer(%q) exceeds its bounds: %+v", in, a)
			}
			if a.BareMessage && a.TaskID != "" || a.ErrorMessage != "" && a.ErrorCode == "" {
				t.Errorf("ReadAnswer(%q) contradicts itself: %+v", in, a)
			}
		}
	})
}
