package peac

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestCarrierVectors has PEAC's carriers. Those that hold bear a reference that is
// not that of the receipt beside it, which has to be refused.
func TestCarrierVectors(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(vectors, "carrier", "*.json"))
	if err != nil || len(files) == 0 {
		t.Skip("PEAC's vectors are not beside the checkout")
	}
	for _, name := range files {
		var f struct {
			Carrier json.RawMessage
			Valid   bool `json:"expected_valid"`
			Meta    struct {
				MaxSize int `json:"max_size"`
			}
		}
		raw, err := os.ReadFile(name)
		if err == nil {
			err = json.Unmarshal(raw, &f)
		}
		if err != nil {
			t.Fatal(err)
		}
		var c Carrier
		if err := json.Unmarshal(f.Carrier, &c); err != nil {
			t.Fatal(err)
		}
		if c.JWS != "" && c.Check() == nil {
			t.Errorf("%s: a reference to another receipt is believed", filepath.Base(name))
		}
		if c.JWS != "" {
			c.Ref = ReceiptRef(c.JWS)
		}
		fits := len(f.Carrier) <= f.Meta.MaxSize
		if err := c.Check(); (err == nil && fits) != f.Valid {
			t.Errorf("%s: Check() = %v, fits %v, want %v", filepath.Base(name), err, fits, f.Valid)
		}
	}
}

// carried are answers, and what rides on them; a is a JWS, A its reference.
var carried = []struct {
	name, answer  string
	want, refused int
}{
	{"MCP", `{"jsonrpc":"2.0","id":1,"result":{"content":[],"_meta":{"org.peacprotocol/receipt_ref":"A","org.peacprotocol/receipt_jws":"a"}}}`, 1, 0},
	{"MCP, a reference alone", `{"result":{"_meta":{"org.peacprotocol/receipt_ref":"A"}}}`, 1, 0},
	{"MCP, with a URL", `{"result":{"_meta":{"org.peacprotocol/receipt_ref":"A","org.peacprotocol/receipt_url":"https://h.example/r/1"}}}`, 1, 0},
	{"MCP, a URL alone", `{"result":{"_meta":{"org.peacprotocol/receipt_url":"https://h.example/r/1"}}}`, 0, 1},
	{"MCP, a URL with a password", `{"result":{"_meta":{"org.peacprotocol/receipt_ref":"A","org.peacprotocol/receipt_url":"https://u:p@h.example/"}}}`, 0, 1},
	{"MCP, a URL of http", `{"result":{"_meta":{"org.peacprotocol/receipt_ref":"A","org.peacprotocol/receipt_url":"http://h.example/"}}}`, 0, 1},
	{"MCP, the older member", `{"result":{"_meta":{"org.peacprotocol/receipt":"a"}}}`, 1, 0},
	{"beside the result", `{"result":{},"peac_receipt":"a"}`, 1, 0},
	{"in the result", `{"result":{"peac_receipt":"a"}}`, 1, 0},
	{"a tool's own", `{"result":{"structuredContent":{"_meta":{"org.peacprotocol/receipt":"a"},"peac_receipt":"a"}}}`, 0, 0},
	{"another receipt's reference", `{"result":{"_meta":{"org.peacprotocol/receipt_ref":"A","org.peacprotocol/receipt_jws":"a2"}}}`, 0, 1},
	{"no strings", `{"result":{"_meta":{"org.peacprotocol/receipt_ref":1,"org.peacprotocol/receipt_jws":[]}}}`, 0, 1},
	{"null", `{"result":{"_meta":{"org.peacprotocol/receipt":null}}}`, 0, 1},
	{"no JWS", `{"result":{},"peac_receipt":"x"}`, 0, 1},
	{"A2A, a message of 0.3", `{"result":{"kind":"message","metadata":{"U":{"carriers":[{"receipt_ref":"A","receipt_jws":"a"}]}}}}`, 1, 0},
	{"A2A, a message of 1.0", `{"result":{"message":{"metadata":{"U":{"carriers":[{"receipt_ref":"A"},{"receipt_ref":"A","receipt_jws":"a"}]}}}}}`, 2, 0},
	{"A2A, a task's message", `{"result":{"task":{"status":{"message":{"metadata":{"U":{"carriers":[{"receipt_ref":"A"}]}}}}}}}`, 1, 0},
	{"A2A, a task's last artifact", `{"task":{"artifacts":[{"metadata":{"U":{"carriers":[{"receipt_ref":"B"}]}}},{"metadata":{"U":{"carriers":[{"receipt_ref":"A"}]}}}]}}`, 1, 0},
	{"A2A, a task and its status", `{"result":{"metadata":{"U":{"carriers":[{"receipt_ref":"A"}]}},"status":{"metadata":{"U":{"carriers":[{"receipt_ref":"A"}]}}}}}`, 2, 0},
	{"A2A, an update", `{"result":{"artifactUpdate":{"artifact":{"metadata":{"U":{"carriers":[{"receipt_ref":"A"}]}}}}}}`, 1, 0},
	{"A2A, REST", `{"message":{"metadata":{"U":{"carriers":[{"receipt_ref":"A"}]}}}}`, 1, 0},
	{"A2A, no list", `{"message":{"metadata":{"U":{"carriers":{"receipt_ref":"A"}}}}}`, 0, 1},
	{"A2A, no carriers in it", `{"message":{"metadata":{"U":{"carriers":[1,null,{},{"receipt_ref":"x"}]}}}}`, 0, 4},
	{"other metadata", `{"message":{"metadata":{"https://other.example/peac":{"carriers":[{"receipt_ref":"A"}]}}}}`, 0, 0},
	{"no JSON", `peac{`, 0, 0},
	{"a batch", `[{"result":{},"peac_receipt":"a"}]`, 0, 0},
}

func TestFindCarriers(t *testing.T) {
	jws := workflow(t, func(int, *Claims) {}).Receipts[0]
	for _, c := range carried {
		t.Run(c.name, func(t *testing.T) {
			answer := strings.NewReplacer(`"A"`, `"`+ReceiptRef(jws)+`"`, `"a"`, `"`+jws+`"`, `"a2"`, `"`+jws+`A"`, `"U"`, `"`+TraceabilityExtension+`"`).Replace(c.answer)
			checkFound(t, []byte(answer))
			found, refused := FindCarriers([]byte(answer))
			if len(found) != c.want || refused != c.refused {
				t.Fatalf("%d found, %d refused, want %d and %d", len(found), refused, c.want, c.refused)
			}
			for _, got := range found {
				if got.Ref != ReceiptRef(jws) || got.JWS != "" && got.JWS != jws {
					t.Errorf("found %+v", got)
				}
			}
		})
	}
}

// TestFindCarriersBound has more carriers than are read, and one that is too long.
func TestFindCarriersBound(t *testing.T) {
	one := `{"receipt_ref":"` + ReceiptRef("x") + `"}`
	long := `{"receipt_ref":"` + ReceiptRef("x") + `","note":"` + strings.Repeat("x", MaxCarrier) + `"}`
	list := strings.Repeat(one+",", 70) + long
	found, refused := FindCarriers([]byte(`{"metadata":{"` + TraceabilityExtension + `":{"carriers":[` + list + `]}}}`))
	if len(found) != maxCarriers || refused != 7 {
		t.Errorf("%d found, %d refused", len(found), refused)
	}
}

// layered finds carriers as FindCarriers does, by having encoding/json read the answer
// layer by layer.
func layered(answer []byte) (found []Carrier, refused int) {
	type object = map[string]json.RawMessage
	members := func(raw json.RawMessage) object {
		var o object
		if json.Unmarshal(raw, &o) != nil {
			return nil
		}
		return o
	}
	read := 0
	take := func(o object, ref, jws, url string, good bool) {
		if read++; read > maxCarriers {
			refused++
			return
		}
		var c Carrier
		long := 0
		for name, to := range map[string]*string{ref: &c.Ref, jws: &c.JWS, url: &c.URL} {
			if raw, there := o[name]; there {
				long += len(raw)
				good = json.Unmarshal(raw, to) == nil && good
			}
		}
		if ref == "" { // the JWS alone
			good = good && c.JWS != ""
			c.Ref = ReceiptRef(c.JWS)
		}
		if !good || long > MaxCarrier || c.Check() != nil {
			refused++
			return
		}
		found = append(found, c)
	}
	alone := func(o object, name string) {
		if _, there := o[name]; there {
			take(o, "", name, "", true)
		}
	}
	root := members(answer)
	result := members(root["result"])
	alone(root, legacyMember)
	if result == nil {
		result = root
	} else {
		alone(result, legacyMember)
	}
	meta := members(result["_meta"])
	alone(meta, legacyMeta)
	if meta[MetaReceiptRef] != nil || meta[MetaReceiptJWS] != nil || meta[MetaReceiptURL] != nil {
		take(meta, MetaReceiptRef, MetaReceiptJWS, MetaReceiptURL, true)
	}
	for _, o := range []object{result, members(result["task"]), members(result["message"]), members(result["statusUpdate"]), members(result["artifactUpdate"])} {
		var artifacts []json.RawMessage
		var artifact object
		if json.Unmarshal(o["artifacts"], &artifacts) == nil && len(artifacts) > 0 {
			artifact = members(artifacts[len(artifacts)-1])
		}
		status := members(o["status"])
		for _, at := range []object{o, status, members(status["message"]), members(o["artifact"]), artifact} {
			extension, there := members(at["metadata"])[TraceabilityExtension]
			if !there {
				continue
			}
			var list []json.RawMessage
			if json.Unmarshal(members(extension)["carriers"], &list) != nil {
				refused++
			}
			for _, one := range list {
				take(members(one), "receipt_ref", "receipt_jws", "receipt_url", members(one) != nil && len(one) <= MaxCarrier)
			}
		}
	}
	return found, refused
}

// checkFound compares what is found on an answer with what another reader finds there,
// unless it is nested deeper than is followed, or has the names of receipts in none of
// the forms that are looked for.
func checkFound(t *testing.T, answer []byte) {
	t.Helper()
	found, refused := FindCarriers(answer)
	for _, c := range found {
		if err := c.Check(); err != nil {
			t.Errorf("found %+v: %v", c, err)
		}
	}
	deep := bytes.Count(answer, []byte("{"))+bytes.Count(answer, []byte("[")) > maxNesting
	named := bytes.Contains(answer, []byte("peacprotocol")) || bytes.Contains(answer, []byte("peac_receipt"))
	if want, no := layered(answer); !deep && named && (!slices.Equal(found, want) || refused != no) {
		t.Errorf("%q: found %v and %d refused, another reader %v and %d", answer, found, refused, want, no)
	}
}

// TestFindCarriersInPassing has unusual answers be read as encoding/json reads them.
func TestFindCarriersInPassing(t *testing.T) {
	jws := workflow(t, func(int, *Claims) {}).Receipts[0]
	for _, answer := range []string{
		`{"result":{"peac_receipt":1,"peac_receipt":"a"}}`,
		`{"result":{"peac_receipt":"a"},"result":{}}`,
		`{"result":{"_meta":{"org.peacprotocol/receipt":"a"},"_meta":{}}}`,
		`{"result":{"_meta":{"org.peacprotocol/receipt":"a"},"_meta":null}}`,
		`{"result":{"_meta":{},"_meta":{"org.peacprotocol/receipt":"a"}}}`,
		`{"result":{"peac_receipt":"a"},"result":1}`,
		`{"result":[{"peac_receipt":"a"}]}`,
		`{"result":null,"_meta":{"org.peacprotocol/receipt":"a"}}`,
		`{"r\u0065sult":{"_meta":{"org.peacprotocol\/receipt":"a"}}}`,
		`{"result":{"_meta":{"org.peacprotocol/receipt_ref":"A","org.peacprotocol/receipt_jws":null}}}`,
		`{"artifacts":{"":{"metadata":{"U":{"carriers":[{"receipt_ref":"A"}]}}},"metadata":{"U":{"carriers":[{"receipt_ref":"A"}]}}}}`,
		`{"artifacts":[{"metadata":{"U":{"carriers":[{"receipt_ref":"A"}]}}},1]}`,
		`{"artifacts":[{"metadata":{"U":{"carriers":[{"receipt_ref":"A"}]}}},{}]}`,
		`{"artifacts":[[{"metadata":{"U":{"carriers":[{"receipt_ref":"A"}]}}}]]}`,
		`{"metadata":{"U":{"carriers":null}}}`, `{"metadata":{"U":{"carriers":[ ]}}}`, `{"metadata":{"U":{}}}`, `{"metadata":{"U":null}}`, `{"metadata":{"U":[]}}`,
		`{"metadata":{"U":{"carriers":[ {"receipt_ref" : "A" } , [{"receipt_ref":"A"}], {"receipt_ref":null}, {"receipt_ref":"A","receipt_ref":"B"} ]}}}`,
		"{\"peac_receipt\":\"a\",\"\xff\":\"\xff\",\"b\":\"\\ud800\",\"c\":[1e999,-0.5E+9,9007199254740993]}", // no I-JSON
		// No JSON:
		`{"peac_receipt":"a"}x`, `{"peac_receipt":"a","b":01}`, `{"peac_receipt":"a","b":1.}`, `{"peac_receipt":"a","b":1e}`, `{"peac_receipt":"a","b":-}`,
		`{"peac_receipt":"a","b":"\x"}`, `{"peac_receipt":"a","b":"\u12g4"}`, "{\"peac_receipt\":\"a\",\"b\":\"\x00\"}", `{"peac_receipt":"a","b":[1 2]}`, `{"peac_receipt":"a","b":[1,]}`,
		`{"peac_receipt":"a",}`, `{"peac_receipt":"a" "b":1}`, `{"peac_receipt":"a","b" 1}`, `{"peac_receipt":"a",b:1}`, `{"peac_receipt":"a","b":nul}`, `{"peac_receipt":"a","b":nullx}`,
		`{"peac_receipt":"a"`, `{"peac_receipt":"a`, `{"peac_receipt`, `{"peac_receipt":"a","b":"\`, ``, ` `,
	} {
		checkFound(t, []byte(strings.NewReplacer(`"A"`, `"`+ReceiptRef(jws)+`"`, `"a"`, `"`+jws+`"`, `"U"`, `"`+TraceabilityExtension+`"`).Replace(answer)))
	}
}

// TestFindCarriersDeep has nothing be found where no reader should follow.
func TestFindCarriersDeep(t *testing.T) {
	jws := workflow(t, func(int, *Claims) {}).Receipts[0]
	for depth, want := range map[int]int{maxNesting: 1, maxNesting + 1: 0, 1 << 20: 0} {
		answer := `{"peac_receipt":"` + jws + `","b":` + strings.Repeat("[", depth) + strings.Repeat("]", depth) + `}`
		if found, refused := FindCarriers([]byte(answer)); len(found) != want || refused != 0 {
			t.Errorf("%d found and %d refused below %d lists, want %d", len(found), refused, depth, want)
		}
	}
}

// TestFindCarriersTwice has a hostile answer that says everything twice and more often
// take no memory by that.
func TestFindCarriersTwice(t *testing.T) {
	one := `"task":{"metadata":{"` + TraceabilityExtension + `":{}},"artifacts":[{"metadata":{}}]},`
	answer := func(n int) []byte { return []byte(`{` + strings.Repeat(one, n) + `"x":0}`) }
	few, many := answer(10), answer(10_000)
	of := func(answer []byte) float64 { return testing.AllocsPerRun(5, func() { FindCarriers(answer) }) }
	if a, b := of(few), of(many); a != b {
		t.Errorf("%v allocations for 10, %v for 10 000", a, b)
	}
}

// FuzzFindCarriers has what is found hold, wherever it stood, and be what another
// reader finds.
func FuzzFindCarriers(f *testing.F) {
	jws := workflow(f, func(int, *Claims) {}).Receipts[0]
	for _, c := range carried {
		f.Add([]byte(strings.NewReplacer(`"A"`, `"`+ReceiptRef(jws)+`"`, `"a"`, `"`+jws+`"`, `"U"`, `"`+TraceabilityExtension+`"`).Replace(c.answer)))
	}
	f.Fuzz(checkFound)
}

// BenchmarkFindCarriers has answers of 1 MiB that say nothing of receipts, have one, or
// were made to be hard to read.
func BenchmarkFindCarriers(b *testing.B) {
	const size = 1 << 20
	receipt := `"peac_receipt":"` + workflow(b, func(int, *Claims) {}).Receipts[0] + `"`
	fill := func(with string) string { return strings.Repeat(with, size/len(with)) }
	bare := `{"receipt_ref":"` + ReceiptRef("x") + `"},`
	for _, c := range []struct{ name, answer string }{
		{"text", `{"result":{"content":[{"type":"text","text":"` + fill("all is peaceful, ") + `"}]}}`},
		{"receipt", `{"result":{"content":[{"type":"text","text":"` + fill("all is peaceful, ") + `"}],` + receipt + `}}`},
		{"artifact", `{"result":{"task":{"artifacts":[{"parts":[{"text":"` + fill("all is peaceful, ") + `"}]}]},` + receipt + `}}`},
		{"escapes", `{"result":{"content":"` + fill(`\u0061\n`) + `",` + receipt + `}}`},
		{"space", `{"result":{"content":` + fill(" ") + `1,` + receipt + `}}`},
		{"numbers", `{"result":{"content":[` + fill("1,") + `1],` + receipt + `}}`},
		{"lists", `{"result":{"content":[` + fill("[],") + `1],` + receipt + `}}`},
		{"members", `{"result":{` + fill(`"":1,`) + receipt + `}}`},
		{"escaped members", `{"result":{` + fill(`"\n":1,`) + receipt + `}}`},
		{"tasks", `{"result":{` + fill(`"task":{"metadata":{}},`) + receipt + `}}`},
		{"carriers", `{"metadata":{"` + TraceabilityExtension + `":{"carriers":[` + fill(bare) + `1]}}}`},
		{"no carriers", `{"metadata":{"` + TraceabilityExtension + `":{"carriers":[` + fill("{},") + `1]}}}`},
		{"long carriers", `{"metadata":{"` + TraceabilityExtension + `":{"carriers":[` + fill(`{"receipt_jws":"`+strings.Repeat("a.", 1<<13)+`"},`) + `1]}}}`},
		{"long receipt", `{"peac_receipt":"` + fill("a") + `.a.a"}`},
	} {
		b.Run(c.name, func(b *testing.B) {
			answer := []byte(c.answer)
			b.SetBytes(int64(len(answer)))
			b.ReportAllocs()
			for b.Loop() {
				FindCarriers(answer)
			}
		})
	}
}
