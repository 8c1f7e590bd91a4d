package peac

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf16"

	"github.com/google/go-cmp/cmp"
)

// vectors are PEAC's own, where they are beside the checkout.
const vectors = "../../../shared/contracts/data/peac"

// load reads a file of PEAC's vectors.
func load(t *testing.T, name string, to any) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(vectors, name))
	if os.IsNotExist(err) {
		t.Skip("PEAC's vectors are not beside the checkout")
	}
	if err == nil {
		err = json.Unmarshal(raw, to)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// fixtures is the form of PEAC's workflow files, and of ours in testdata.
type fixtures struct {
	Fixtures []struct {
		Name, Type string
		Input      json.RawMessage
		Expected   struct {
			Valid     bool
			ErrorCode Code `json:"error_code"`
		}
	}
}

// check holds the parsers against fixtures, and returns how many there were.
func (f fixtures) check(t *testing.T) int {
	t.Helper()
	for _, x := range f.Fixtures {
		t.Run(x.Name, func(t *testing.T) {
			var err, again error
			if x.Type == "WorkflowContext" {
				var w WorkflowContext
				w, err = ParseWorkflowContext(x.Input)
				again = w.Validate()
			} else {
				var s WorkflowSummary
				s, err = ParseWorkflowSummary(x.Input)
				again = s.Validate()
			}
			want := x.Expected.ErrorCode
			if x.Expected.Valid {
				want = ""
			}
			if CodeOf(err) != want || (err == nil) != x.Expected.Valid {
				t.Errorf("parse = %v, want valid %v, code %q", err, x.Expected.Valid, want)
			}
			if err == nil && again != nil {
				t.Errorf("what was read does not hold when it is written: %v", again)
			}
		})
	}
	return len(f.Fixtures)
}

// TestWorkflowVectors has all of PEAC's fixtures for contexts and summaries give
// their verdicts and codes.
func TestWorkflowVectors(t *testing.T) {
	n := 0
	for _, name := range []string{"valid", "invalid", "edge-cases"} {
		var f fixtures
		load(t, "workflow/"+name+".json", &f)
		n += f.check(t)
	}
	if n != 47 {
		t.Errorf("%d fixtures, want 47", n)
	}
}

// TestWorkflowOwnVectors has ours, which need nothing beside the checkout.
func TestWorkflowOwnVectors(t *testing.T) {
	raw, err := os.ReadFile("testdata/workflow.json")
	if err != nil {
		t.Fatal(err)
	}
	var f fixtures
	if err := json.Unmarshal(raw, &f); err != nil {
		t.Fatal(err)
	}
	if n := f.check(t); n < 30 {
		t.Errorf("%d fixtures", n)
	}
}

func TestMerkleVectors(t *testing.T) {
	var f struct {
		Vectors []struct {
			N          int
			InputRefs  []string `json:"input_refs"`
			SortedRefs []string `json:"sorted_refs"`
			Root       string
			Proofs     []struct {
				TargetRef string `json:"target_ref"`
				LeafIndex int64  `json:"leaf_index"`
				Hashes    []string
			}
		}
	}
	load(t, "merkle/vectors.json", &f)
	for _, v := range f.Vectors {
		for _, refs := range [][]string{v.InputRefs, v.SortedRefs} {
			c, err := Commit(refs)
			if want := (Commitment{TreeAlgorithm, HashAlgorithm, v.Root, int64(v.N)}); err != nil || c != want {
				t.Errorf("Commit of %d = %+v, %v, want %+v", v.N, c, err, want)
			}
		}
		for _, p := range v.Proofs {
			got, err := Prove(v.InputRefs, p.TargetRef)
			want := Proof{TreeAlgorithm, HashAlgorithm, p.LeafIndex, int64(v.N), p.Hashes}
			if diff := cmp.Diff(want, got); err != nil || diff != "" {
				t.Errorf("Prove in %d: %v\n%s", v.N, err, diff)
			}
		}
	}
	if len(f.Vectors) != 4 {
		t.Errorf("%d vectors", len(f.Vectors))
	}
}

// TestMerkleOwn pins a root that was computed apart from this package, and has
// every proof of every small set hold, and none for another receipt.
func TestMerkleOwn(t *testing.T) {
	var refs []string
	for i := range 40 {
		refs = append(refs, ReceiptRef(string(rune('a'+i))))
		c, err := Commit(refs)
		if err != nil {
			t.Fatal(err)
		}
		reversed := slices.Clone(refs)
		slices.Reverse(reversed)
		if again, _ := Commit(reversed); again != c {
			t.Errorf("the order of %d receipts matters", len(refs))
		}
		if i == 2 {
			if want := "sha256:dd67a4e94fcb4fff954bcb093257364a5b5d0832bda9ffb7a5b6340e45ca647b"; c.Root != want {
				t.Errorf("root of a, b, c = %s, want %s", c.Root, want)
			}
		}
		for j, r := range refs {
			p, err := Prove(refs, r)
			if err != nil {
				t.Fatal(err)
			}
			if ok, err := p.Verify(c, r); !ok || err != nil {
				t.Errorf("proof %d of %d = %v, %v", j, len(refs), ok, err)
			}
			other := refs[(j+1)%len(refs)]
			if ok, err := p.Verify(c, other); ok != (other == r) || err != nil {
				t.Errorf("proof %d of %d for another = %v, %v", j, len(refs), ok, err)
			}
			p.LeafIndex = (p.LeafIndex + 1) % p.TreeSize
			if ok, _ := p.Verify(c, r); ok && len(refs) > 1 {
				t.Errorf("proof %d of %d holds at another place", j, len(refs))
			}
		}
	}
}

func TestMerkleMalformed(t *testing.T) {
	a, b := ReceiptRef("a"), ReceiptRef("b")
	refs := []string{a, b}
	c, _ := Commit(refs)
	p, _ := Prove(refs, a)
	commit := func(refs ...string) error { _, err := Commit(refs); return err }
	prove := func(target string) error { _, err := Prove(refs, target); return err }
	with := func(edit func(*Commitment, *Proof)) error {
		c, p := c, p
		p.Hashes = slices.Clone(p.Hashes)
		edit(&c, &p)
		ok, err := p.Verify(c, a)
		if ok {
			t.Error("what is malformed holds")
		}
		return err
	}
	// The sizes of the commitment and the proof are said to be others than n.
	resized := func(n int, ofCommitment, ofProof int64) error {
		few := []string{ReceiptRef("1"), ReceiptRef("2"), ReceiptRef("3")}[:n]
		set, _ := sorted(few)
		c, _ := Commit(few)
		p, _ := Prove(few, ref(set[0]))
		c.TreeSize, p.TreeSize = ofCommitment, ofProof
		ok, err := p.Verify(c, ref(set[0]))
		if ok {
			t.Errorf("%d receipts said to be %d, the proof for %d: it holds", n, ofCommitment, ofProof)
		}
		return err
	}
	for _, tt := range []struct {
		name string
		err  error
		want Code
	}{
		{"nothing", commit(), CodeEmptyInput},
		{"upper case", commit(strings.ToUpper(a)), CodeInvalidRef},
		{"jti", commit("jti:a"), CodeInvalidRef},
		{"twice", commit(a, b, a), CodeDuplicateRef},
		{"not there", prove(ReceiptRef("c")), CodeTargetNotFound},
		{"no ref", prove("x"), CodeInvalidRef},
		{"size 0", with(func(c *Commitment, _ *Proof) { c.TreeSize = 0 }), CodeInvalidCommitment},
		{"no root", with(func(c *Commitment, _ *Proof) { c.Root = "" }), CodeInvalidRoot},
		{"other tree", with(func(c *Commitment, _ *Proof) { c.TreeAlg = "x" }), CodeUnsupportedTree},
		{"other hash", with(func(_ *Commitment, p *Proof) { p.HashAlg = "x" }), CodeUnsupportedHash},
		{"index", with(func(_ *Commitment, p *Proof) { p.LeafIndex = 2 }), CodeInvalidProof},
		{"too high", with(func(_ *Commitment, p *Proof) { p.Hashes = make([]string, 65) }), CodeInvalidProof},
		{"bad hash", with(func(_ *Commitment, p *Proof) { p.Hashes[0] = "x" }), CodeInvalidProofHash},
		{"other size, which is false", with(func(_ *Commitment, p *Proof) { p.TreeSize = 3 }), ""},
		{"a proof for a larger tree of the same path, which is false", resized(3, 3, 4), ""},
		{"a tree said to be higher than it is, which is false", resized(2, 4, 4), ""},
		{"a hash too many, which is false", with(func(_ *Commitment, p *Proof) { p.Hashes = append(p.Hashes, a) }), ""},
	} {
		if CodeOf(tt.err) != tt.want || tt.want == "" && tt.err != nil {
			t.Errorf("%s: %v, want %q", tt.name, tt.err, tt.want)
		}
	}
}

func TestIJSONVectors(t *testing.T) {
	var f struct {
		Vectors []struct {
			ID       string
			Input    string `json:"input_b64"`
			Expected struct {
				Accepted bool
				Code     Code
			}
		}
	}
	load(t, "raw/ijson/vectors.json", &f)
	for _, v := range f.Vectors {
		raw, err := base64.RawURLEncoding.DecodeString(v.Input)
		if err != nil {
			t.Fatal(err)
		}
		if err := CheckIJSON(raw); (err == nil) != v.Expected.Accepted || CodeOf(err) != v.Expected.Code {
			t.Errorf("%s: CheckIJSON(%q) = %v, want %q", v.ID, raw, err, v.Expected.Code)
		}
	}
	if len(f.Vectors) != 47 {
		t.Errorf("%d vectors", len(f.Vectors))
	}
}

func TestIJSON(t *testing.T) {
	for raw, want := range map[string]Code{
		`{"a":{"b":[1,"x",null,true,false,{}]}}`: "", ` [ ] `: "", `-0.5e-7`: "", `"\u00e9\ud83d\ude00"`: "",
		`9007199254740991.000`: "", `0.9007199254740991e16`: "", `900719925474099100e-2`: "", `0e99999999999`: "",
		`900719925474099201e-2`: CodeNumberOutOfRange, `0.09007199254740992e17`: CodeNumberOutOfRange, `1e16`: CodeNumberOutOfRange,
		`{"a":1,"\u0061":2}`: CodeDuplicateMember, `[{"a":1},{"a":1}]`: "",
		`"` + "\x01" + `"`: CodeInvalidString, `"\ud800x"`: CodeInvalidString, `"\ud800\ud800"`: CodeInvalidString, `"\u+123"`: CodeInvalidString,
		"\"\xed\xa0\x80\"": CodeInvalidString, "\"\U0010ffff\"": CodeInvalidString, `"\`: CodeInvalidString, `"`: CodeInvalidString,
		``: CodeInvalidFormat, `{`: CodeInvalidFormat, `[1,]`: CodeInvalidFormat, `{"a":1,}`: CodeInvalidFormat, `{"a" 1}`: CodeInvalidFormat,
		`01`: CodeInvalidFormat, `1.`: CodeInvalidFormat, `.5`: CodeInvalidFormat, `1e`: CodeInvalidFormat, `+1`: CodeInvalidFormat, `-`: CodeInvalidFormat,
		`nul`: CodeInvalidFormat, `1 2`: CodeInvalidFormat, "\ufeff1": CodeInvalidFormat, `NaN`: CodeInvalidFormat, `[1 2]`: CodeInvalidFormat,
		strings.Repeat("[", 1e6): CodeConstraint,
	} {
		if err := CheckIJSON([]byte(raw)); CodeOf(err) != want || want == "" && err != nil {
			t.Errorf("CheckIJSON(%.40q) = %v, want %q", raw, err, want)
		}
	}
}

// TestCanonical has what RFC 8785 shows: its order of names, its numbers, its
// escapes.
func TestCanonical(t *testing.T) {
	for raw, want := range map[string]string{
		`{ "b" : 1, "a" : [ ] }`: `{"a":[],"b":1}`,
		`{"\u20ac":"e","\r":"r","\ufb33":"d","1":"o","\ud83d\ude00":"s","\u0080":"c","\u00f6":"l"}`: "{\"\\r\":\"r\",\"1\":\"o\",\"\u0080\":\"c\",\"ö\":\"l\",\"€\":\"e\",\"😀\":\"s\",\"\ufb33\":\"d\"}",
		`"\u20ac$\u000f\u000aA'\u0042\u0022\u005c\\\"\/\u2028<"`:                                    "\"€$\\u000f\\nA'B\\\"\\\\\\\\\\\"/\u2028<\"",
		`[0,-0,1e0,4.50,2e-3,0.000000000000000000000000001,1e-7,1E15,0.1]`:                          `[0,0,1,4.5,0.002,1e-27,1e-7,1000000000000000,0.1]`,
	} {
		got, err := Canonical([]byte(raw))
		if err != nil || string(got) != want {
			t.Errorf("Canonical(%s) = %s, %v, want %s", raw, got, err, want)
		}
	}
}

// TestMarshalUTF8 has bad UTF-8 refused, and what looks like the mark of it pass.
func TestMarshalUTF8(t *testing.T) {
	for in, want := range map[string]Code{"\xff": CodeInvalidString, `\` + "\xff": CodeInvalidString, "\ufffd": "", `\ufffd`: "", `\\ufffd`: "", "\uffff": CodeInvalidString} {
		raw, err := marshal(map[string]string{"s": in})
		if CodeOf(err) != want {
			t.Errorf("marshal(%q) = %s, %v, want %q", in, raw, err, want)
		}
	}
}

func TestEd25519Vectors(t *testing.T) {
	var f struct {
		Vectors []struct {
			ID        string
			Message   string                  `json:"message_hex"`
			Key       string                  `json:"public_key_hex"`
			Signature string                  `json:"signature_hex"`
			Expected  struct{ Accepted bool } `json:"peac_expected"`
		}
	}
	load(t, "raw/ed25519/vectors.json", &f)
	for _, v := range f.Vectors {
		if got := verify(unhex(v.Key), unhex(v.Message), unhex(v.Signature)); got != v.Expected.Accepted {
			t.Errorf("%s: verify = %v, want %v", v.ID, got, v.Expected.Accepted)
		}
	}
	if len(f.Vectors) != 14 {
		t.Errorf("%d vectors", len(f.Vectors))
	}
}

// TestAdmissible has each point that is refused, with both signs, and encodings
// with y from p on; and lets those around pass that are none.
func TestAdmissible(t *testing.T) {
	for _, s := range small {
		for _, sign := range []byte{0, 0x80} {
			p := bytes.Clone(s)
			if p[31] |= sign; admissible(p) {
				t.Errorf("%x may be a key", p)
			}
		}
		p := bytes.Clone(s)
		if p[3] ^= 1; !admissible(p) && p[31] != 0x7f {
			t.Errorf("%x may not be a key", p)
		}
	}
	for _, text := range []string{"ed", "ee", "ff"} {
		if p := unhex(text + strings.Repeat("ff", 30) + "7f"); admissible(p) {
			t.Errorf("%x may be a key", p)
		}
	}
	if p := unhex("eb" + strings.Repeat("ff", 30) + "7f"); !admissible(p) {
		t.Error("p-2 may not be a y")
	}
	// The two of order 8 are each other's negative: their ys make p.
	carry := 0
	for i := range 32 {
		carry += int(small[3][i]) + int(small[4][i])
		if byte(carry) != prime[i] {
			t.Errorf("byte %d of the sum is %x, want %x", i, byte(carry), prime[i])
		}
		carry >>= 8
	}
}

// TestNamer pins what identifiers are made of: the values were computed apart.
func TestNamer(t *testing.T) {
	key := make([]byte, 32)
	for i := range key {
		key[i] = byte(i)
	}
	acme, err := NewNamer(key, "acme")
	if err != nil {
		t.Fatal(err)
	}
	globex, _ := NewNamer(key, "globex")
	run := acme.RunWorkflow("host-a.example.com", "acme/01HXZ5NWJQ8QJXKZ3V5N7BMGHC")
	for _, tt := range []struct{ name, got, want string }{
		{"tenant", hex.EncodeToString(acme.key), "819a439ae5c977bdf38178df97bbcd113ae1e1b42959ff070603a25795c6cbe3"},
		{"run", run, "wf_f379bbe2-a2fd-8410-a502-84b01b301c71"},
		{"other tenant", globex.RunWorkflow("host-a.example.com", "acme/01HXZ5NWJQ8QJXKZ3V5N7BMGHC"), "wf_4bfd100a-6e51-8af1-b3a3-dc41386f4974"},
		{"context", acme.ContextWorkflow("https://peer.example.net", "550e8400-e29b-41d4-a716-446655440000"), "wf_c560f8d6-f793-8980-81dc-a96aa37627ab"},
		{"step", acme.Step(run, "01HXZ5NWJQ8QJXKZ3V5N7BMGHD"), "step_6b48bb81-27f5-8750-b3b3-ac85633260e4"},
		{"audience", acme.AudienceWorkflow("https://peer.example.net", run), "wf_f03d2f9a-c711-851c-b0ab-4ae121c3a1e1"},
		{"host", acme.HostRef("", "host-a.example.com"), "ref:host:110f858f-6e7e-82f7-8600-532a1fc6e82e"},
	} {
		if tt.got != tt.want {
			t.Errorf("%s = %s, want %s", tt.name, tt.got, tt.want)
		}
	}
	// No two kinds, audiences or ways to cut names in two give the same.
	all := map[string]bool{}
	ids := []string{
		acme.ExchangeWorkflow("x"), acme.RunWorkflow("", "x"), acme.RunWorkflow("x", ""), acme.ContextWorkflow("x", ""), acme.Step(run, "x"),
		acme.AudienceStep("x", "y"), acme.AudienceStep("y", "x"), acme.TaskRef("", "x", "y"), acme.TaskRef("x", "", "y"), acme.HostRef("x", "y"),
	}
	for _, id := range ids {
		all[id[strings.LastIndexAny(id, "_:")+1:]] = true
		w := strings.HasPrefix(id, "wf_") && !workflowID.MatchString(id) || strings.HasPrefix(id, "step_") && !stepID.MatchString(id)
		if w {
			t.Errorf("%s is no id", id)
		}
	}
	if len(all) != len(ids) {
		t.Errorf("%d ids, %d of them different: %q", len(ids), len(all), slices.Sorted(maps.Keys(all)))
	}
	if _, err := NewNamer(key[:31], "acme"); err == nil {
		t.Error("a key of 31 bytes is taken")
	}
}

func TestNewReceiptID(t *testing.T) {
	at := time.UnixMilli(0x0123456789ab)
	id := NewReceiptID(at)
	if !strings.HasPrefix(id, "01234567-89ab-7") || len(id) != 36 || !strings.ContainsRune("89ab", rune(id[19])) {
		t.Errorf("NewReceiptID = %s", id)
	}
	if id == NewReceiptID(at) {
		t.Error("two receipts of a millisecond have one id")
	}
}

// seed gives tests their keys.
func testKey(name string) ed25519.PrivateKey {
	d := [32]byte{}
	copy(d[:], name)
	return ed25519.NewKeyFromSeed(d[:])
}

// TestCompareUnits has texts sort by their UTF-16 code units, as ECMAScript's do.
func TestCompareUnits(t *testing.T) {
	texts := []string{"", "a", "ab", "b", "\x7f", "\u0080", "\u00e9", "\u07ff", "\u0800", "\ud7ff", "\ue000", "\uf900", "\ufffd", "\U00010000", "\U0001f600", "\U0010fffd", "a\ue000", "a\U00010000", "\ue000a", "\U00010000a", "\U0001f600a"}
	for _, x := range texts {
		for _, y := range texts {
			want := slices.Compare(utf16.Encode([]rune(x)), utf16.Encode([]rune(y)))
			if got := compareUnits(x, y); got != want {
				t.Errorf("compareUnits(%q, %q) = %d, want %d", x, y, got, want)
			}
		}
	}
}
