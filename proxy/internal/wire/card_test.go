package wire

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
)

// cardCase reads the "case" of a golden file: what of the host is its own, where
// callers reach it, and what holds the card.
func cardCase(t testing.TB, text []byte) (e CardEdit, inResult bool) {
	own := []string{"127.0.0.1:8080", "127.0.0.1:9302"}
	e.Public, e.PublicHost = "https://agents.example.com", "agents.example.com:443"
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		switch key {
		case "own":
			own = strings.Fields(value)
		case "base":
			e.Base = value
		case "public":
			e.Public = value
		case "strip":
			e.Strip = true
		case "in-result":
			inResult = true
		case "":
		default:
			t.Fatalf("unknown key %q", key)
		}
	}
	e.Own = func(hostport string, grpc bool) bool {
		return slices.Contains(own, hostport) && (grpc || !strings.HasSuffix(hostport, ":9302"))
	}
	return e, inResult
}

// A golden file states a rule in prose and proves it on a card: "out" is the
// card afterwards, byte for byte, and "outcome" what is said of it.
func TestGoldenCards(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("testdata", "card", "*.txtar"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no golden files: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			ar, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if strings.TrimSpace(string(ar.Comment)) == "" {
				t.Error("no prose: which rule does this prove?")
			}
			e, inResult := cardCase(t, section(ar, "case"))
			in := section(ar, "in")
			out, outcome, why := RewriteCard(in, inResult, e)
			got := map[string]string{"out": string(out), "outcome": strings.TrimSpace(string(outcome)+" "+string(why)) + "\n"}
			for _, name := range []string{"outcome", "out"} {
				if *update {
					setSection(ar, name, got[name])
				} else if diff := cmp.Diff(string(section(ar, name)), got[name]); diff != "" {
					t.Errorf("%s (-want +got):\n%s", name, diff)
				}
			}
			checkCard(t, in, inResult, e)
			if *update {
				if err := os.WriteFile(file, txtar.Format(ar), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// checkCard holds the promise against one body: outside the URLs, and the
// signatures where they are dropped, no byte changes; a second time nothing does.
func checkCard(t *testing.T, in []byte, inResult bool, e CardEdit) {
	t.Helper()
	before := bytes.Clone(in)
	out, outcome, why := RewriteCard(in, inResult, e)
	if !bytes.Equal(in, before) {
		t.Fatal("RewriteCard changed its input")
	}
	if (why != "") != (outcome == CardRefused) || why != "" && !slices.Contains(Refusals(), why) {
		t.Errorf("RewriteCard(%q) = %q because of %q", in, outcome, why)
	}
	if !inResult {
		checkReadCard(t, in, outcome != CardNone && outcome != CardRefused)
	}
	if outcome != CardNone && !slices.Contains(CardOutcomes(), outcome) {
		t.Errorf("RewriteCard(%q): outcome %q is not in the closed set", in, outcome)
	}
	switch outcome {
	case CardRewritten:
		a, b := blankURLs(t, in, inResult), blankURLs(t, out, inResult)
		if !bytes.Equal(a, b) {
			t.Fatalf("RewriteCard(%q) = %q, which changes more than URLs", in, out)
		}
	case CardStripped:
		if diff := cmp.Diff(cardWithout(t, in, inResult), cardWithout(t, out, inResult)); diff != "" {
			t.Fatalf("RewriteCard(%q) = %q changes other members:\n%s", in, out, diff)
		}
	default:
		if !same(in, out) {
			t.Fatalf("RewriteCard(%q) = %q, with the outcome %q", in, out, outcome)
		}
		return
	}
	if bytes.Equal(in, out) {
		t.Errorf("RewriteCard(%q) changed nothing and says %q", in, outcome)
	}
	if _, again, _ := RewriteCard(out, inResult, e); again != CardUnchanged {
		t.Errorf("RewriteCard(%q), the second time: %q, want %q", out, again, CardUnchanged)
	}
}

// checkReadCard holds ReadCard against a body that is a card, or is none: what it says
// is what another reader says.
func checkReadCard(t *testing.T, in []byte, isCard bool) {
	t.Helper()
	c, ok := ReadCard(in)
	if ok != isCard {
		t.Fatalf("ReadCard(%q) = %v, want %v as RewriteCard has it", in, ok, isCard)
	}
	if !ok {
		return
	}
	var all map[string]any
	if err := decode(in, &all); err != nil {
		t.Fatalf("ReadCard(%q) reads what is no JSON: %v", in, err)
	}
	urls := []any{all["url"]}
	for _, list := range []string{"additionalInterfaces", "supportedInterfaces"} {
		of, _ := all[list].([]any)
		for _, one := range of {
			if one, ok := one.(map[string]any); ok {
				urls = append(urls, one["url"])
			}
		}
	}
	var want []string
	for _, u := range urls {
		if text, _ := u.(string); text != "" && len(want) < maxBatch {
			want = append(want, text)
		}
	}
	list, isList := all["signatures"].([]any)
	if signed := all["signatures"] != nil && (!isList || len(list) > 0); signed != c.Signed {
		t.Errorf("ReadCard(%q): signed = %v, want %v", in, c.Signed, signed)
	}
	if len(in) > maxCarrier || !utf8.Valid(in) || bytes.Contains(in, []byte(`\u`)) {
		return // one of them may be too long, or no text
	}
	if !slices.Equal(c.URLs, want) {
		t.Errorf("ReadCard(%q): URLs %q, want %q", in, c.URLs, want)
	}
}

// blankURLs returns body with the URLs of a card's interfaces left empty. It
// reads with encoding/json, not with the code under test.
func blankURLs(t *testing.T, body []byte, inResult bool) []byte {
	t.Helper()
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.UseNumber()
	type level struct {
		object, key bool // in an object; the next token is a key of it
		name        string
	}
	var stack []level
	var out []byte
	done := int64(0)
	for {
		from := dec.InputOffset()
		tok, err := dec.Token()
		if err != nil {
			break
		}
		top := func() *level { return &stack[len(stack)-1] }
		switch d, isDelim := tok.(json.Delim); {
		case isDelim && (d == '{' || d == '['):
			stack = append(stack, level{object: d == '{', key: d == '{'})
			continue
		case isDelim:
			stack = stack[:len(stack)-1]
		case len(stack) > 0 && top().key:
			top().name, top().key = tok.(string), false
			continue
		}
		if len(stack) == 0 {
			continue
		}
		var path []string
		for _, l := range stack {
			path = append(path, l.name)
		}
		at := strings.Join(path, "/")
		if inResult {
			at = strings.TrimPrefix(at, "result/")
		}
		if _, text := tok.(string); text && (at == "url" || at == "additionalInterfaces//url" || at == "supportedInterfaces//url") {
			start := from + int64(bytes.IndexByte(body[from:], '"'))
			out = append(append(out, body[done:start]...), `""`...)
			done = dec.InputOffset()
		}
		top().key = top().object
	}
	return append(out, body[done:]...)
}

// cardWithout is the card without its signatures and the URLs of its interfaces.
func cardWithout(t *testing.T, body []byte, inResult bool) any {
	t.Helper()
	var all map[string]any
	if err := decode(blankURLs(t, body, inResult), &all); err != nil {
		t.Fatalf("%q: %v", body, err)
	}
	card := all
	if inResult {
		card, _ = all["result"].(map[string]any)
	}
	delete(card, "signatures")
	return all
}

func FuzzCard(f *testing.F) {
	for _, body := range seeds(f, "card") {
		f.Add(body, false, false)
		f.Add(body, true, true)
	}
	f.Fuzz(func(t *testing.T, in []byte, inResult, strip bool) {
		e, _ := cardCase(t, nil)
		e.Strip = strip
		checkCard(t, in, inResult, e)
		e.Base = "/a2a"
		checkCard(t, in, inResult, e)
	})
}

// rpcCardOf is a card of gRPC in its frame, of 1.0 and of 0.3: with an interface
// of the agent's own, one of another's, and a field that nobody knows.
func rpcCardOf(path string, signed bool) []byte {
	own := func(url, transport int) []byte {
		return appendPB(appendPB(appendPB(nil, transport, "JSONRPC"), url, "http://127.0.0.1:8080/a2a"), 9, "x")
	}
	other := appendPB(nil, 1, "https://elsewhere.example.com/")
	card := appendPB(nil, 1, "a")
	if path == service03+"GetAgentCard" {
		card = append(card, own(3, 14)...)
		card = appendPB(appendPB(card, 15, own(1, 2)), 15, other)
		if signed {
			card = appendPB(card, 17, "s")
		}
	} else {
		card = appendPB(appendPB(card, 3, own(1, 2)), 3, other)
		if signed {
			card = appendPB(card, 13, "s")
		}
	}
	return AppendFrame(nil, append(appendPB(card, 99, "y"), 0x08|0x80, 0x7d, 0x05)) // field 2001, a varint
}

func TestRPCCard(t *testing.T) {
	const path = service10 + "GetExtendedAgentCard"
	e, _ := cardCase(t, nil)
	twice := AppendFrame(nil, appendPB(nil, 3, appendPB(appendPB(nil, 1, "http://127.0.0.1:8080/"), 1, "http://127.0.0.1:8080/")))
	for _, row := range []struct {
		name    string
		frame   []byte
		strip   bool
		outcome CardOutcome
		why     Refusal
	}{
		{"plain", rpcCardOf(path, false), false, CardRewritten, ""},
		{"signed", rpcCardOf(path, true), false, CardSigned, ""},
		{"stripped", rpcCardOf(path, true), true, CardStripped, ""},
		{"elsewhere", AppendFrame(nil, appendPB(nil, 3, appendPB(nil, 1, "https://elsewhere.example.com/"))), false, CardUnchanged, ""},
		{"custom binding", AppendFrame(nil, appendPB(nil, 3, appendPB(appendPB(nil, 1, "http://127.0.0.1:8080/"), 2, "urn:x"))), false, CardUnchanged, ""},
		{"twice", twice, false, CardRefused, RefusedDuplicateKey},
		{"compressed", append([]byte{1}, twice[1:]...), false, CardRefused, RefusedCompressed},
		{"no frame", twice[:7], false, CardRefused, RefusedFraming},
		{"no protobuf", AppendFrame(nil, []byte{0xff}), false, CardRefused, RefusedNotProtobuf},
	} {
		e.Strip = row.strip
		if _, outcome, why := RewriteRPCCard(row.frame, path, e); outcome != row.outcome || why != row.why {
			t.Errorf("%s: %q %q, want %q %q", row.name, outcome, why, row.outcome, row.why)
		}
		checkRPCCard(t, row.frame, path, e)
	}
	if _, outcome, _ := RewriteRPCCard(rpcCardOf(path, false), service10+"GetTask", e); outcome != CardNone {
		t.Errorf("of a method that has no card: %q", outcome)
	}
}

// checkRPCCard holds the promise against one frame: with the URLs of interfaces
// and the signatures left out, what comes out is what went in, field by field.
func checkRPCCard(t *testing.T, in []byte, path string, e CardEdit) {
	t.Helper()
	out, outcome, _ := RewriteRPCCard(in, path, e)
	if outcome != CardRewritten && outcome != CardStripped {
		if !same(in, out) {
			t.Fatalf("RewriteRPCCard(%x) = %x, with the outcome %q", in, out, outcome)
		}
		return
	}
	a, b := rpcFields(t, in[frameHead:], rpcCards[path], true), rpcFields(t, out[frameHead:], rpcCards[path], true)
	if diff := cmp.Diff(a, b); diff != "" {
		t.Fatalf("RewriteRPCCard(%x) = %x changes more than URLs:\n%s", in, out, diff)
	}
	if _, again, _ := RewriteRPCCard(out, path, e); again != CardUnchanged {
		t.Errorf("RewriteRPCCard(%x), the second time: %q, want %q", out, again, CardUnchanged)
	}
}

// rpcFields lists the fields of a card or an interface but for its URL and its
// signatures, each as its bytes.
func rpcFields(t *testing.T, message []byte, c *rpcCard, isCard bool) (list []string) {
	url := c.iURL
	if isCard {
		url = c.url
	}
	if !pbFields(message, 0, len(message), func(f pbField) {
		switch value := message[f.from:f.to]; {
		case f.typ == pbBytes && (f.number == url || isCard && f.number == c.signatures):
		case f.typ == pbBytes && isCard && f.number == c.interfaces:
			for _, line := range rpcFields(t, value, c, false) {
				list = append(list, "interface "+line)
			}
			list = append(list, "end of interface")
		default:
			list = append(list, string(message[f.start:f.to]))
		}
	}) {
		t.Fatalf("%x is no protobuf", message)
	}
	return list
}

func FuzzRPCCard(f *testing.F) {
	for path := range rpcCards {
		for _, signed := range []bool{false, true} {
			f.Add(rpcCardOf(path, signed), path == service03+"GetAgentCard", signed)
		}
	}
	f.Fuzz(func(t *testing.T, in []byte, old, strip bool) {
		path := service10 + "GetExtendedAgentCard"
		if old {
			path = service03 + "GetAgentCard"
		}
		e, _ := cardCase(t, nil)
		e.Strip = strip
		checkRPCCard(t, in, path, e)
	})
}
