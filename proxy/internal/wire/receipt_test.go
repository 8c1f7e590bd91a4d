package wire

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
)

var testReceipt = Receipt{"sha256:" + strings.Repeat("0f", 32), "eyJh.eyJi.c2ln"}

// A golden file states a rule in prose and proves it on an answer: "out" is the answer
// with a receipt, byte for byte, and "outcome" what is said of its place.
func TestGoldenReceipt(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("testdata", "receipt", "*.txtar"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no golden files: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			ar, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			h, _ := parseCase(t, section(ar, "case"))
			in := section(ar, "in")
			place, outcome, why := PlaceReceipt(in, h.Protocol, h.REST)
			got := map[string]string{"outcome": strings.TrimSpace(string(outcome)+" "+string(why)) + "\n", "out": string(in)}
			if outcome == ReceiptPlaced {
				got["out"] = string(place.Put(testReceipt))
			}
			for _, name := range []string{"outcome", "out"} {
				if *update {
					setSection(ar, name, got[name])
				} else if diff := cmp.Diff(string(section(ar, name)), got[name]); diff != "" {
					t.Errorf("%s (-want +got):\n%s", name, diff)
				}
			}
			checkReceipt(t, in, h.Protocol, h.REST)
			if *update {
				if err := os.WriteFile(file, txtar.Format(ar), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// What a receipt may add, and the rest is how to get there; the second list of it, as
// for stamps.
var (
	namedInMeta     = named{"result": {"_meta": {"org.peacprotocol/receipt_ref": nil, "org.peacprotocol/receipt_jws": nil}}}
	namedInMetadata = named{"metadata": {"https://www.peacprotocol.org/ext/traceability/v1": nil}}
	namedInTask     = named{"status": {"message": namedInMetadata}, "artifacts": nil}
	namedInBare     = named{"metadata": namedInMetadata["metadata"], "message": namedInMetadata, "task": namedInTask, "status": namedInTask["status"], "artifacts": nil}
	namedInResult   = named{"result": namedInBare}
)

// checkReceipt holds the promise of the package against one answer: what is added is in
// one piece, the rest is as it was, and it is JSON to another reader, in which nothing
// but the named members is new. MCP takes no second one, and A2A one behind the first.
func checkReceipt(t *testing.T, in []byte, p Protocol, bare bool) {
	t.Helper()
	before := bytes.Clone(in)
	place, outcome, why := PlaceReceipt(in, p, bare)
	if outcome != ReceiptPlaced {
		if (outcome == ReceiptUnread) != (why != "") || why != "" && !slices.Contains(DocumentRefusals(), why) {
			t.Errorf("PlaceReceipt(%q) = %q, %q", in, outcome, why)
		}
		return
	}
	out := place.Put(testReceipt)
	if !bytes.Equal(in, before) {
		t.Fatal("Put changed its input")
	}
	added := len(out) - len(in)
	if added <= 0 || !bytes.Equal(slices.Concat(out[:place.at], out[place.at+added:]), in) {
		t.Fatalf("Put(%q) = %q, which is not that and something in one place", in, out)
	}
	text := string(out[place.at : place.at+added])
	for _, s := range []string{`receipt_ref":"` + testReceipt.Ref + `"`, `receipt_jws":"` + testReceipt.JWS + `"`} {
		if strings.Count(text, s) != 1 {
			t.Errorf("Put(%q) adds %q, without %q", in, text, s)
		}
	}
	if err := strictly(in, lenient...); err != nil {
		t.Fatalf("Put(%q) edits what another reader refuses: %v", in, err)
	}
	as := lenient
	if strictly(in) == nil {
		as = nil // and so it stays
	}
	if err := strictly(out, as...); err != nil {
		t.Fatalf("Put(%q) = %q, which another reader refuses: %v", in, out, err)
	}
	tree := namedInMeta
	switch {
	case p == A2A && bare:
		tree = namedInBare
	case p == A2A:
		tree = namedInResult
	}
	if diff := cmp.Diff(others(t, in, tree), others(t, out, tree)); diff != "" {
		t.Fatalf("Put(%q) = %q changes other members (-in +out):\n%s", in, out, diff)
	}
	again, outcome, _ := PlaceReceipt(out, p, bare)
	switch {
	case p == MCP && outcome != ReceiptCarried:
		t.Errorf("Put(%q) = %q, where a second receipt is %q", in, out, outcome)
	case p == A2A && (outcome != ReceiptPlaced || again.before != ","):
		t.Errorf("Put(%q) = %q, where a second receipt is %q, not behind the first", in, out, outcome)
	}
}

// TestReceiptTooLong leaves out what no reader takes.
func TestReceiptTooLong(t *testing.T) {
	place, _, _ := PlaceReceipt([]byte(`{"jsonrpc":"2.0","id":1,"result":{}}`), MCP, false)
	fits := Receipt{Ref: testReceipt.Ref}
	fits.JWS = strings.Repeat("a", maxReceipt-len(`{"receipt_ref":"","receipt_jws":""}`)-len(fits.Ref))
	if place.Put(fits) == nil {
		t.Error("a receipt of the largest size is left out")
	}
	fits.JWS += "a"
	if place.Put(fits) != nil {
		t.Error("a receipt that is longer is put in")
	}
}

func FuzzReceipt(f *testing.F) {
	for _, body := range seeds(f, "receipt", "answer") {
		for mode := range byte(3) {
			f.Add(body, mode)
		}
	}
	f.Fuzz(func(t *testing.T, in []byte, mode byte) {
		switch mode % 3 {
		case 0:
			checkReceipt(t, in, MCP, false)
		case 1:
			checkReceipt(t, in, A2A, false)
		default:
			checkReceipt(t, in, A2A, true)
		}
	})
}
