package peac

import (
	"bytes"
	"encoding/json"
	"math"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

// FuzzIJSON has what is taken be JSON to two other readers, and its canonical
// form be the one that another writer gives it.
func FuzzIJSON(f *testing.F) {
	for _, s := range []string{
		`{"b":[1,-0,1e-7,"\u00e9\ud83d\ude00"],"a":{"\u000a":null}}`, `9007199254740991.5`, `1e400`, `"\ud800"`, `{"a":1,"\u0061":2}`, `[true,false,null]`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		got, err := Canonical(raw)
		if err != nil {
			if CodeOf(err) == "" {
				t.Fatalf("no code: %v", err)
			}
			return
		}
		if !json.Valid(raw) {
			t.Fatalf("taken, and no JSON: %q", raw)
		}
		other := jsontext.Value(bytes.Clone(raw))
		if err := other.Canonicalize(); err != nil || !bytes.Equal(got, other) {
			t.Fatalf("%q is %s, another writer has %s (%v)", raw, got, other, err)
		}
		if again, err := Canonical(got); err != nil || !bytes.Equal(again, got) {
			t.Fatalf("%s again is %s, %v", got, again, err)
		}
	})
}

// FuzzSafe compares the bound of numbers with arithmetic.
func FuzzSafe(f *testing.F) {
	f.Add(int64(1<<53), int8(0))
	f.Add(int64(1<<53-1), int8(-1))
	f.Add(int64(9), int8(15))
	f.Fuzz(func(t *testing.T, n int64, exp int8) {
		e := int(exp % 19)
		raw, _ := json.Marshal(n)
		text := append(raw, []byte("e")...)
		text = json.RawMessage(append(text, []byte(jsonInt(e))...))
		err := CheckIJSON(text)
		abs := uint64(n)
		if n < 0 {
			abs = -abs
		}
		want := true
		for ; e > 0 && want; e-- {
			if want = abs <= math.MaxUint64/10; want {
				abs *= 10
			}
		}
		limit := uint64(maxSafe)
		for ; e < 0 && limit <= math.MaxUint64/10; e++ {
			limit *= 10
		}
		if e < 0 { // the limit is beyond any n
			limit = math.MaxUint64
		}
		if want = want && abs <= limit; (err == nil) != want {
			t.Fatalf("%s: %v, want taken %v", text, err, want)
		}
	})
}

func jsonInt(n int) string {
	b, _ := json.Marshal(n)
	return string(b)
}

// FuzzWorkflowContext has what is read be written and read as the same.
func FuzzWorkflowContext(f *testing.F) {
	f.Add([]byte(`{"workflow_id":"wf_aaaaaaaaaaaaaaaaaaaa","step_id":"step_aaaaaaaaaaaaaaaaaaaa","parent_step_ids":["step_bbbbbbbbbbbbbbbbbbbb"],"step_index":1.0,"tool_name":"x","framework":"mcp"}`))
	f.Add([]byte(`{"workflow_id":"wf_aaaaaaaaaaaaaaaaaaaa","step_id":"step_aaaaaaaaaaaaaaaaaaaa","parent_step_ids":["x","x"]}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		w, err := ParseWorkflowContext(raw)
		if err != nil {
			if CodeOf(err) == "" {
				t.Fatalf("no code: %v", err)
			}
			return
		}
		if err := w.Validate(); err != nil {
			t.Fatalf("%q is %+v, which does not hold: %v", raw, w, err)
		}
	})
}

func FuzzWorkflowSummary(f *testing.F) {
	raw, _ := json.Marshal(summary())
	f.Add(raw)
	f.Fuzz(func(t *testing.T, raw []byte) {
		s, err := ParseWorkflowSummary(raw)
		if err != nil {
			if CodeOf(err) == "" {
				t.Fatalf("no code: %v", err)
			}
			return
		}
		if err := s.Validate(); err != nil {
			t.Fatalf("%q is %+v, which does not hold: %v", raw, s, err)
		}
	})
}

// FuzzVerify changes receipts: what is taken is what was signed, byte for byte.
func FuzzVerify(f *testing.F) {
	c := claims(0, "root")
	c.ID = "one" // the same in each process that takes part
	good, err := newSigner(f).Sign(c)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add(good + "=")
	f.Add("..")
	f.Fuzz(func(t *testing.T, jws string) {
		_, err := Verify(jws, keys.Of(issuer), time.Unix(at, 0))
		if (err == nil) != (jws == good) {
			t.Fatalf("%q: %v", jws, err)
		}
		if err != nil && CodeOf(err) == "" {
			t.Fatalf("no code: %v", err)
		}
	})
}

// FuzzPayload signs what is no claims: whatever it is, there is a code, and what
// is taken can be written.
func FuzzPayload(f *testing.F) {
	good, err := newSigner(f).Sign(claims(0, "root"))
	if err != nil {
		f.Fatal(err)
	}
	_, payload, _, _ := split3(good)
	f.Add(payload)
	f.Add([]byte(`{"peac_version":"0.2","kind":"evidence","type":"a.b/c","iss":"did:a:b","iat":1,"jti":"1","actor":{},"extensions":{"a.b/c":[]}}`))
	f.Fuzz(func(t *testing.T, payload []byte) {
		r, err := inspect(payload, time.Unix(at, 0))
		if err != nil {
			if CodeOf(err) == "" {
				t.Fatalf("no code: %v", err)
			}
			return
		}
		if _, err := marshal(r.Claims); err != nil {
			t.Fatalf("%q can't be written: %v", payload, err)
		}
	})
}

func FuzzJWKS(f *testing.F) {
	raw, _ := json.Marshal(keys)
	f.Add(raw)
	f.Fuzz(func(t *testing.T, raw []byte) {
		set, err := ParseJWKS(raw)
		if err != nil {
			if CodeOf(err) == "" {
				t.Fatalf("no code: %v", err)
			}
			return
		}
		for _, k := range set.Keys {
			if key, err := set.Key(k.KeyID); err != nil || len(key) != 32 {
				t.Fatalf("key %q: %x, %v", k.KeyID, key, err)
			}
		}
	})
}

func FuzzIssuer(f *testing.F) {
	raw, _ := json.Marshal(NewIssuerDocument(issuer, issuer+"/jwks"))
	f.Add(raw)
	f.Fuzz(func(t *testing.T, raw []byte) {
		d, err := ParseIssuer(raw, issuer)
		if err != nil && CodeOf(err) == "" || err == nil && d.Issuer != issuer {
			t.Fatalf("%q: %+v, %v", raw, d, err)
		}
	})
}

// FuzzProof has a proof hold for what it was made for alone.
func FuzzProof(f *testing.F) {
	refs := []string{ReceiptRef("a"), ReceiptRef("b"), ReceiptRef("c"), ReceiptRef("d"), ReceiptRef("e")}
	c, _ := Commit(refs)
	p, _ := Prove(refs, refs[0])
	raw, _ := json.Marshal(p)
	f.Add(raw)
	f.Fuzz(func(t *testing.T, raw []byte) {
		var q Proof
		if json.Unmarshal(raw, &q) != nil {
			return
		}
		ok, err := q.Verify(c, refs[0])
		same, _ := json.Marshal(q)
		good, _ := json.Marshal(p)
		if ok != bytes.Equal(same, good) || ok && err != nil || err != nil && CodeOf(err) == "" {
			t.Fatalf("%s: %v, %v", raw, ok, err)
		}
	})
}

func FuzzBundle(f *testing.F) {
	for _, b := range []Bundle{workflow(f, unchanged), extract(f)} {
		raw, _ := json.Marshal(b)
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		b, err := ParseBundle(raw)
		if err != nil {
			if CodeOf(err) == "" {
				t.Fatalf("no code: %v", err)
			}
			return
		}
		verifyBundle(b)
	})
}
