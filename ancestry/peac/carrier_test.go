package peac

import (
	"encoding/json"
	"os"
	"path/filepath"
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

// FuzzFindCarriers has what is found hold, wherever it stood.
func FuzzFindCarriers(f *testing.F) {
	jws := workflow(f, func(int, *Claims) {}).Receipts[0]
	for _, c := range carried {
		f.Add([]byte(strings.NewReplacer(`"A"`, `"`+ReceiptRef(jws)+`"`, `"a"`, `"`+jws+`"`, `"U"`, `"`+TraceabilityExtension+`"`).Replace(c.answer)))
	}
	f.Fuzz(func(t *testing.T, answer []byte) {
		found, _ := FindCarriers(answer)
		for _, c := range found {
			if err := c.Check(); err != nil {
				t.Errorf("found %+v: %v", c, err)
			}
		}
	})
}
