package peac

import (
	"crypto/ed25519"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// conformance is the form of PEAC's files about receipts.
type conformance struct {
	Fixtures []struct {
		Name, Type string
		Input      struct {
			Claims    object
			Overrides object `json:"header_overrides"`
			Size      int    `json:"jws_size_exceeds_bytes"`
			Options   struct {
				Strictness string
				Now        int64
			}
		}
		Expected struct {
			Valid         bool
			ErrorCode     Code `json:"error_code"`
			IssueContains Code `json:"issue_contains"`
			Warnings      []Warning
		}
	}
}

const issuer = "https://sidecar.example.com"

// forge signs what Sign would refuse.
func forge(t *testing.T, header, claims any) string {
	t.Helper()
	raw := func(v any) []byte {
		if text, ok := v.(string); ok {
			return []byte(text)
		}
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	text := base64url.EncodeToString(raw(header)) + "." + base64url.EncodeToString(raw(claims))
	return text + "." + base64url.EncodeToString(ed25519.Sign(testKey("a"), []byte(text)))
}

func public(name string) ed25519.PublicKey { return testKey(name).Public().(ed25519.PublicKey) }

// anyIssuer gives every issuer the key that tests sign with.
func anyIssuer(string, string) (ed25519.PublicKey, error) { return public("a"), nil }

// TestReceiptVectors has PEAC's receipts give their verdicts. Many that are valid
// lack the group of their type, which PEAC's schema alone allows and its verifier
// does not: that verdict stands for valid here.
func TestReceiptVectors(t *testing.T) {
	n := 0
	for _, name := range []string{"valid", "invalid", "types", "issuers", "pillars", "occurred-at", "jose", "identifier-stack", "warnings"} {
		var f conformance
		load(t, "receipt/"+name+".json", &f)
		for _, x := range f.Fixtures {
			n++
			switch {
			case x.Name == "boundary-type-max-length": // its type has 258 characters
				continue
			case x.Input.Options.Strictness == "interop": // there is one strictness here
				continue
			}
			header := object{"typ": wireType, "alg": "EdDSA", "kid": "k"}
			maps.Copy(header, x.Input.Overrides)
			jws := forge(t, header, x.Input.Claims)
			if x.Input.Size > 0 {
				jws += strings.Repeat("A", x.Input.Size-len(jws))
			}
			now := time.Unix(1772600000, 0)
			if x.Input.Options.Now > 0 {
				now = time.Unix(x.Input.Options.Now, 0)
			}
			r, err := Verify(jws, anyIssuer, now)
			code := CodeOf(err)
			if code == CodeGroupRequired {
				err, code = nil, ""
			}
			want := x.Expected.ErrorCode + x.Expected.IssueContains
			if (err == nil) != x.Expected.Valid || want != "" && !x.Expected.Valid && code != want {
				t.Errorf("%s/%s: Verify = %v, want valid %v, code %q", name, x.Name, err, x.Expected.Valid, want)
			}
			for _, w := range x.Expected.Warnings {
				if !slices.Contains(r.Warnings, w) {
					t.Errorf("%s/%s: warnings %v, want %v", name, x.Name, r.Warnings, w)
				}
			}
		}
	}
	if n != 112 {
		t.Errorf("%d fixtures, want 112", n)
	}
}

func TestJOSEVectors(t *testing.T) {
	var f struct {
		Vectors []struct {
			ID    string
			Input struct{ Header, Payload object }

			Expected struct {
				Errors []struct{ Code string }
			}
		}
	}
	load(t, "raw/jose/vectors.json", &f)
	for _, v := range f.Vectors {
		want := Code(strings.Replace(v.Expected.Errors[0].Code, "CRYPTO_", "E_", 1))
		if _, err := Verify(forge(t, v.Input.Header, v.Input.Payload), anyIssuer, time.Now()); CodeOf(err) != want {
			t.Errorf("%s: Verify = %v, want %s", v.ID, err, want)
		}
	}
	if len(f.Vectors) != 8 {
		t.Errorf("%d vectors", len(f.Vectors))
	}
}

// TestSignedElsewhere reads a receipt that PEAC's own library signed.
func TestSignedElsewhere(t *testing.T) {
	var f struct {
		JWS      string
		Key      string `json:"public_key_b64url"`
		Expected struct{ Iss, Kind, Type, Kid string }
	}
	load(t, "receipt/signed-receipt.json", &f)
	set := JWKS{Keys: []JWK{{KeyType: "OKP", Curve: "Ed25519", X: f.Key, KeyID: f.Expected.Kid}}}
	r, err := Verify(f.JWS, set.Of(f.Expected.Iss), time.Now())
	if err != nil || r.Claims.Issuer != f.Expected.Iss || r.Claims.Type != f.Expected.Type || r.KeyID != f.Expected.Kid {
		t.Errorf("Verify = %+v, %v", r, err)
	}
}

func newSigner(t testing.TB) *Signer {
	t.Helper()
	s, err := NewSigner(issuer, "2026-11", testKey("a"))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

const (
	wf = "wf_aaaaaaaaaaaaaaaaaaaa"
	at = 1_795_000_000
)

func step(name string) string { return "step_" + name + strings.Repeat("0", 24-len(name)) }

// claims are those of a step, the n-th receipt of its workflow.
func claims(n int, name string, parents ...string) Claims {
	w := WorkflowContext{WorkflowID: wf, StepID: step(name), Framework: "mcp"}
	for _, p := range parents {
		w.ParentStepIDs = append(w.ParentStepIDs, step(p))
	}
	return Claims{
		Kind: Evidence, Type: "dev.wopproxy/progress", IssuedAt: at + int64(n),
		ID: NewReceiptID(time.Unix(at+int64(n), 0)), OccurredAt: time.Unix(at+int64(n), 0).UTC().Format(time.RFC3339),
		Extensions: map[string]any{
			WorkflowGroup:    w,
			CorrelationGroup: Correlation{WorkflowID: wf, TraceID: "4bf92f3577b34da6a3ce929d0e0e4736", SpanID: "00f067aa0ba902b7"},
		},
	}
}

var keys = JWKS{Keys: []JWK{NewJWK("2026-11", public("a"))}}

// TestSign has what is signed read back as it was.
func TestSign(t *testing.T) {
	c := claims(0, "root")
	jws, err := newSigner(t).Sign(c)
	if err != nil {
		t.Fatal(err)
	}
	if header, _, _, _ := split3(jws); string(header) != `{"typ":"interaction-record+jwt","alg":"EdDSA","kid":"2026-11"}` {
		t.Errorf("header %s", header)
	}
	again, _ := newSigner(t).Sign(c)
	if again != jws {
		t.Error("the same claims give other bytes")
	}
	r, err := Verify(jws, keys.Of(issuer), time.Unix(at, 0))
	if err != nil {
		t.Fatal(err)
	}
	want := c.Extensions[WorkflowGroup].(WorkflowContext)
	want.ParentStepIDs = []string{}
	if diff := cmp.Diff(&want, r.Workflow); diff != "" || r.Ref != ReceiptRef(jws) || r.KeyID != "2026-11" || r.Summary != nil {
		t.Errorf("read %+v\n%s", r, diff)
	}
	if r.Claims.Issuer != issuer || r.Claims.ID != c.ID || r.Claims.OccurredAt != c.OccurredAt || r.Claims.Version != "0.2" {
		t.Errorf("claims %+v", r.Claims)
	}
	wantWarnings := []Warning{
		{"type_unregistered", "/type"}, {"unknown_extension_preserved", "/extensions/org.peacprotocol~1workflow"},
	}
	if diff := cmp.Diff(wantWarnings, r.Warnings); diff != "" {
		t.Error(diff)
	}
}

// TestSignRefuses has nothing signed that would be refused.
func TestSignRefuses(t *testing.T) {
	workflow := func(edit func(*WorkflowContext)) func(*Claims) {
		return func(c *Claims) {
			w := c.Extensions[WorkflowGroup].(WorkflowContext)
			edit(&w)
			c.Extensions[WorkflowGroup] = w
		}
	}
	index := int64(-1)
	for name, tt := range map[string]struct {
		edit func(*Claims)
		want Code
	}{
		"a step that is its own parent": {workflow(func(w *WorkflowContext) { w.ParentStepIDs = []string{w.StepID} }), CodeDAGInvalid},
		"no step":                       {workflow(func(w *WorkflowContext) { w.StepID = "" }), CodeStepIDInvalid},
		"no workflow":                   {workflow(func(w *WorkflowContext) { w.WorkflowID = "wf_" }), CodeWorkflowIDInvalid},
		"17 parents":                    {workflow(func(w *WorkflowContext) { w.ParentStepIDs = make([]string, 17) }), CodeLimitExceeded},
		"a framework in capitals":       {workflow(func(w *WorkflowContext) { w.Framework = "MCP" }), CodeContextInvalid},
		"an index below 0":              {workflow(func(w *WorkflowContext) { w.StepIndex = &index }), CodeContextInvalid},
		"a tool that is not UTF-8":      {workflow(func(w *WorkflowContext) { w.ToolName = "a\xff" }), CodeInvalidString},
		"a tool that is no character":   {workflow(func(w *WorkflowContext) { w.ToolName = "\ufdd0" }), CodeInvalidString},
		"another workflow":              {workflow(func(w *WorkflowContext) { w.WorkflowID += "b" }), CodeContextInvalid},
		"a workflow that is no object":  {func(c *Claims) { c.Extensions[WorkflowGroup] = "x" }, CodeContextInvalid},
		"no kind":                       {func(c *Claims) { c.Kind = "" }, CodeInvalidFormat},
		"no id":                         {func(c *Claims) { c.ID = "" }, CodeInvalidFormat},
		"a type without a domain":       {func(c *Claims) { c.Type = "progress" }, CodeInvalidFormat},
		"a registered type, no group":   {func(c *Claims) { c.Type = "org.peacprotocol/access-decision" }, CodeGroupRequired},
		"a registered type, another group": {func(c *Claims) {
			c.Type = "org.peacprotocol/access-decision"
			c.Extensions["org.peacprotocol/agent-action"] = object{}
		}, CodeGroupMismatch},
		"a trace id of zeros and capitals": {func(c *Claims) { c.Extensions[CorrelationGroup] = Correlation{TraceID: strings.Repeat("A", 32)} }, CodeInvalidFormat},
		"an unknown correlation":           {func(c *Claims) { c.Extensions[CorrelationGroup] = object{"step_id": "x"} }, CodeInvalidFormat},
		"a key in capitals":                {func(c *Claims) { c.Extensions["W3C/traceparent"] = object{} }, CodeExtensionKey},
		"a key without a domain":           {func(c *Claims) { c.Extensions["w3c/traceparent"] = object{} }, CodeExtensionKey},
		"a group too large":                {func(c *Claims) { c.Extensions["a.b/c"] = []string{strings.Repeat("a", 65530), "aaaa"} }, CodeExtensionSize},
		"a string too long":                {func(c *Claims) { c.Extensions["a.b/c"] = strings.Repeat("a", 65537) }, CodeConstraint},
		"nested too deep": {func(c *Claims) {
			c.Extensions["a.b/c"] = json.RawMessage(strings.Repeat("[", 40) + strings.Repeat("]", 40))
		}, CodeConstraint},
		"a number too large":           {func(c *Claims) { c.Extensions["a.b/c"] = uint64(1 << 53) }, CodeNumberOutOfRange},
		"a member twice":               {func(c *Claims) { c.Extensions["a.b/c"] = json.RawMessage(`{"a":1,"a":2}`) }, CodeDuplicateMember},
		"what is no JSON":              {func(c *Claims) { c.Extensions["a.b/c"] = func() {} }, CodeInvalidFormat},
		"pillars out of order":         {func(c *Claims) { c.Pillars = []string{"identity", "access"} }, CodePillarsNotSorted},
		"a time on a challenge":        {func(c *Claims) { c.Kind = Challenge }, CodeOccurredOnChallenge},
		"a time that is none":          {func(c *Claims) { c.OccurredAt = "yesterday" }, CodeInvalidFormat},
		"a time far ahead of its own":  {func(c *Claims) { c.OccurredAt = "2099-01-01T00:00:00Z" }, CodeOccurredInFuture},
		"a summary under another type": {func(c *Claims) { c.Extensions[SummaryGroup] = summary() }, CodeSummaryInvalid},
		"a summary of another issuer": {func(c *Claims) {
			s := summary()
			s.Issuer = "https://other.example.com"
			c.Type, c.Extensions = SummaryGroup, map[string]any{SummaryGroup: s}
		}, CodeSummaryInvalid},
		"a summary of another workflow": {func(c *Claims) {
			c.Type, c.Extensions = SummaryGroup, map[string]any{SummaryGroup: summary(), CorrelationGroup: Correlation{WorkflowID: "x"}}
		}, CodeSummaryInvalid},
		"a summary that is also a step": {func(c *Claims) { c.Type, c.Extensions[SummaryGroup] = SummaryGroup, summary() }, CodeSummaryInvalid},
	} {
		c := claims(0, "root")
		tt.edit(&c)
		if jws, err := newSigner(t).Sign(c); jws != "" || CodeOf(err) != tt.want {
			t.Errorf("%s: Sign = %.20q, %v, want %s", name, jws, err, tt.want)
		}
	}
}

func TestNewSigner(t *testing.T) {
	for name, tt := range map[string]struct {
		issuer, keyID string
		key           ed25519.PrivateKey
		want          Code
	}{
		"an issuer with a path": {issuer + "/", "k", testKey("a"), CodeIssuerNotCanonical},
		"no key id":             {issuer, "", testKey("a"), CodeMissingKID},
		"a key id of 257":       {issuer, strings.Repeat("k", 257), testKey("a"), CodeMissingKID},
		"a key id in \ufdd0":    {issuer, "\ufdd0", testKey("a"), CodeInvalidString},
		"no key":                {issuer, "k", nil, CodeKeyNotFound},
		"a did":                 {"did:web:example.com", "k", testKey("a"), ""},
	} {
		if _, err := NewSigner(tt.issuer, tt.keyID, tt.key); CodeOf(err) != tt.want {
			t.Errorf("%s: NewSigner = %v, want %q", name, err, tt.want)
		}
	}
}

func TestIssuerForm(t *testing.T) {
	for iss, want := range map[string]bool{
		"https://a.example": true, "https://a.example:8443": true, "https://localhost": true, "https://192.0.2.1": true, "https://[2001:db8::1]": true,
		"https://[2001:db8::1]:8443": true, "https://xn--bcher-kva.example": true, "did:web:a.example": true, "did:key:z6Mk%3A8": true,
		"https://": false, "https://a..b": false, "https://a.example:443": false, "https://a.example:0443": false, "https://a.example:": false,
		"https://a.example:99999": false, "https://192.0.2.01": false, "https://192.0.2": false, "https://1": false, "https://0x7f": false,
		"https://[2001:DB8::1]": false, "https://[2001:db8:0::1]": false, "https://[::ffff:192.0.2.1]": false, "https://[::1%25eth0]": false, "https://[::1": false,
		"https://a.example/": false, "https://a.example?": false, "https://u@a.example": false, "https://A.example": false, "https://bücher.example": false,
		"did:WEB:a": false, "did:web:": false, "did:web:a/b": false, "http://a.example": false, "": false, "https://" + strings.Repeat("a.", 1024) + "a": false,
	} {
		if got := IsIssuer(iss); got != want {
			t.Errorf("IsIssuer(%.60q) = %v, want %v", iss, got, want)
		}
	}
}

// TestVerifyRefuses breaks a receipt in every way that doesn't need its key, and
// in those that do.
func TestVerifyRefuses(t *testing.T) {
	good, err := newSigner(t).Sign(claims(0, "root"))
	if err != nil {
		t.Fatal(err)
	}
	p := strings.Split(good, ".")
	header := object{"typ": wireType, "alg": "EdDSA", "kid": "2026-11"}
	_, raw, _, _ := split3(good)
	payload := string(raw)
	with := func(name string, v any) object {
		o := maps.Clone(header)
		if o[name] = v; v == nil {
			delete(o, name)
		}
		return o
	}
	now := time.Unix(at, 0)
	for name, tt := range map[string]struct {
		jws  string
		now  time.Time
		want Code
	}{
		"nothing":                     {"", now, CodeInvalidFormat},
		"two parts":                   {p[0] + "." + p[1], now, CodeInvalidFormat},
		"four parts":                  {good + ".", now, CodeInvalidFormat},
		"padding":                     {good + "==", now, CodeInvalidFormat},
		"stray bits":                  {good[:len(good)-1] + string(good[len(good)-1]+1), now, CodeInvalidFormat},
		"a line":                      {good + "\n", now, CodeInvalidFormat},
		"another signature":           {p[0] + "." + p[1] + "." + base64url.EncodeToString(make([]byte, 64)), now, CodeInvalidSignature},
		"a short signature":           {p[0] + "." + p[1] + "." + base64url.EncodeToString(make([]byte, 63)), now, CodeInvalidSignature},
		"no signature":                {p[0] + "." + p[1] + ".", now, CodeInvalidSignature},
		"another payload":             {p[0] + "." + base64url.EncodeToString([]byte(strings.Replace(payload, `"mcp"`, `"a2a"`, 1))) + "." + p[2], now, CodeInvalidSignature},
		"another header":              {forge(t, with("kid", "2026-12"), payload), now, CodeKeyNotFound},
		"none":                        {forge(t, with("alg", "none"), payload), now, CodeInvalidFormat},
		"HS256":                       {forge(t, with("alg", "HS256"), payload), now, CodeInvalidFormat},
		"no alg":                      {forge(t, with("alg", nil), payload), now, CodeInvalidFormat},
		"no typ":                      {forge(t, with("typ", nil), payload), now, CodeInvalidFormat},
		"typ JWT":                     {forge(t, with("typ", "JWT"), payload), now, CodeInvalidFormat},
		"wire 0.1 by its typ":         {forge(t, with("typ", "peac-receipt/0.1"), `{"iss":"https://sidecar.example.com"}`), now, CodeUnsupportedWire},
		"wire 0.1 by its version":     {forge(t, header, strings.Replace(payload, `"0.2"`, `"0.1"`, 1)), now, CodeWireMismatch},
		"no version":                  {forge(t, header, strings.Replace(payload, `"peac_version":"0.2",`, ``, 1)), now, CodeWireMismatch},
		"a version to come":           {forge(t, header, strings.Replace(payload, `"0.2"`, `"0.3"`, 1)), now, CodeUnsupportedWire},
		"a key in the header":         {forge(t, with("jwk", object{}), payload), now, CodeEmbeddedKey},
		"an id that is a number":      {forge(t, with("kid", 1), payload), now, CodeMissingKID},
		"two algs":                    {forge(t, `{"typ":"interaction-record+jwt","alg":"none","alg":"EdDSA","kid":"2026-11"}`, payload), now, CodeDuplicateMember},
		"a header that is an array":   {forge(t, `[]`, payload), now, CodeInvalidFormat},
		"a payload that is an array":  {forge(t, header, `[]`), now, CodeInvalidFormat},
		"a payload that is no JSON":   {forge(t, header, `{`), now, CodeInvalidFormat},
		"another issuer":              {forge(t, header, strings.Replace(payload, "sidecar.", "other.", 1)), now, CodeInvalidIssuer},
		"aud":                         {forge(t, header, strings.Replace(payload, `{`, `{"aud":"x",`, 1)), now, CodeInvalidFormat},
		"ext instead of extensions":   {forge(t, header, strings.Replace(payload, `"extensions"`, `"ext"`, 1)), now, CodeInvalidFormat},
		"no parents":                  {forge(t, header, strings.Replace(payload, `"parent_step_ids":[],`, ``, 1)), now, CodeContextInvalid},
		"a clock 300 s behind":        {good, now.Add(-300 * time.Second), ""},
		"a clock 301 s behind":        {good, now.Add(-301 * time.Second), CodeNotYetValid},
		"a clock years ahead":         {good, now.AddDate(50, 0, 0), ""},
		"a payload of another header": {p[1] + "." + p[0] + "." + p[2], now, CodeInvalidFormat},
	} {
		r, err := Verify(tt.jws, keys.Of(issuer), tt.now)
		if CodeOf(err) != tt.want || tt.want == "" && err != nil {
			t.Errorf("%s: Verify = %+v, %v, want %q", name, r, err, tt.want)
		}
	}
}

func summary() WorkflowSummary {
	count := int64(1)
	return WorkflowSummary{
		Type: SummaryType, Issuer: issuer, IssuedAt: time.Unix(at+100, 0).UTC().Format(time.RFC3339),
		Evidence: SummaryEvidence{
			WorkflowID: wf, Status: Completed, StartedAt: time.Unix(at, 0).UTC().Format(time.RFC3339),
			ReceiptMerkleRoot: ReceiptRef(""), ReceiptCount: &count, AgentsInvolved: []string{},
		},
	}
}

func TestKeys(t *testing.T) {
	x := NewJWK("k", public("a")).X
	key := func(more string) string {
		return `{"keys":[{"kty":"OKP","crv":"Ed25519","kid":"k","x":"` + x + `"` + more + `}]}`
	}
	for raw, want := range map[string]Code{
		key(""): "", key(`,"alg":"EdDSA","use":"sig","x-own":1`): "", `{"keys":[]}`: "", `{"keys":[{"kty":"RSA","n":"x"}]}`: "",
		key(`,"d":"x"`): CodeInvalidFormat, key(`,"alg":"ES256"`): CodeInvalidFormat, key(`,"use":"enc"`): CodeInvalidFormat, key(`,"kid":"j"`): CodeDuplicateMember,
		`{"keys":[{"kty":"RSA","d":"x"}]}`:                   CodeInvalidFormat,
		strings.Replace(key(""), `"kid":"k"`, `"kid":""`, 1): CodeMissingKID, strings.Replace(key(""), `"kid":"k"`, `"kid":1`, 1): CodeInvalidFormat,
		strings.Replace(key(""), x, x+"=", 1): CodeInvalidFormat, strings.Replace(key(""), x, x[1:], 1): CodeInvalidFormat,
		strings.Replace(key(""), x, base64url.EncodeToString(small[3]), 1):         CodeInvalidFormat,
		strings.Replace(key(""), `]`, strings.TrimPrefix(key(""), `{"keys":[`), 1): CodeInvalidFormat,
		`{"keys":{}}`: CodeInvalidFormat, `{"keys":[1]}`: CodeInvalidFormat, `[]`: CodeInvalidFormat, `{}`: CodeInvalidFormat,
		`{"keys":[` + strings.Repeat(`{},`, 20) + `{}]}`:                                            CodeInvalidFormat,
		`{"keys":[],"x":"` + strings.Repeat("a", maxDocument) + `"}`:                                CodeInvalidFormat,
		strings.Replace(key(""), `}]`, `},{"kty":"OKP","crv":"Ed25519","kid":"k","x":"`+x+`"}]`, 1): CodeKIDReuse,
	} {
		set, err := ParseJWKS([]byte(raw))
		if CodeOf(err) != want || want == "" && err != nil {
			t.Errorf("ParseJWKS(%.80s) = %v, %v, want %q", raw, set, err, want)
		}
	}
	other := JWKS{Keys: []JWK{NewJWK("2026-11", public("b"))}}
	if err := keys.Follows(other); CodeOf(err) != CodeKIDReuse {
		t.Errorf("an id that names another key: %v", err)
	}
	if err := keys.Follows(JWKS{Keys: append(slices.Clone(keys.Keys), NewJWK("x", public("b")))}); err != nil {
		t.Errorf("one more key: %v", err)
	}
}

func TestIssuerDocument(t *testing.T) {
	doc := NewIssuerDocument(issuer, issuer+"/.well-known/jwks.json")
	doc.RevokedKeys = []RevokedKey{{"old", "2026-09-01T00:00:00Z", "key_compromise"}}
	raw, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	for edit, want := range map[[2]string]Code{
		{"", ""}:            "",
		{"0.1", "0.2"}:      CodeInvalidFormat,
		{`.com"`, `.com/"`}: CodeInvalidIssuer,
		{`.com"`, `.net"`}:  CodeInvalidIssuer,
		{`"jwks_uri":"https`, `"jwks_uri":"http`}:  CodeInvalidFormat,
		{`["EdDSA"]`, `["ES256"]`}:                 CodeInvalidFormat,
		{`["EdDSA"]`, `"EdDSA"`}:                   CodeInvalidFormat,
		{`["EdDSA"]`, `["EdDSA"],"x":[[[[]]]]`}:    CodeInvalidFormat,
		{`["EdDSA"]`, `["EdDSA"],"x":[[[]]]`}:      "",
		{`key_compromise`, `bad luck`}:             CodeInvalidFormat,
		{`"2026-09-01T00:00:00Z"`, `"2026-09-01"`}: CodeInvalidFormat,
		{`"kid":"old"`, `"kid":""`}:                CodeInvalidFormat,
	} {
		text := strings.Replace(string(raw), edit[0], edit[1], 1)
		if d, err := ParseIssuer([]byte(text), issuer); CodeOf(err) != want || want == "" && err != nil {
			t.Errorf("%q for %q: ParseIssuer = %+v, %v, want %q", edit[1], edit[0], d, err, want)
		}
	}
	set := JWKS{Keys: []JWK{NewJWK("old", public("a")), NewJWK("new", public("b"))}}
	for args, want := range map[[2]string]Code{
		{issuer, "new"}: "", {issuer, "old"}: CodeKeyRevoked, {issuer, "none"}: CodeKeyNotFound, {"https://x.example", "new"}: CodeInvalidIssuer,
	} {
		if key, err := doc.Keys(set)(args[0], args[1]); CodeOf(err) != want || (err == nil) != public("b").Equal(key) {
			t.Errorf("%q: %x, %v, want %q", args, key, err, want)
		}
	}
}

// TestKeyRing turns from one key to the next and looks at each edge.
func TestKeyRing(t *testing.T) {
	t0 := time.Unix(at, 0)
	ring := KeyRing{
		{"1", public("a"), t0, t0, t0.Add(48*time.Hour + MinOverlap)},
		{"2", public("b"), t0.Add(24 * time.Hour), t0.Add(48 * time.Hour), time.Time{}},
	}
	if err := ring.Check(24 * time.Hour); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		after     time.Duration
		signs     string
		published int
	}{
		{-1, "", 0}, {0, "1", 1}, {24*time.Hour - 1, "1", 1}, {24 * time.Hour, "1", 2}, {48*time.Hour - 1, "1", 2}, {48 * time.Hour, "2", 2},
		{48*time.Hour + MinOverlap - 1, "2", 2}, {48*time.Hour + MinOverlap, "2", 1}, {1e6 * time.Hour, "2", 1},
	} {
		k, err := ring.Signing(t0.Add(tt.after))
		set, err2 := ring.JWKS(t0.Add(tt.after))
		if k.KeyID != tt.signs || (err == nil) != (tt.signs != "") || len(set.Keys) != tt.published || err2 != nil {
			t.Errorf("after %s: %q signs (%v), %d are published (%v), want %q, %d", tt.after, k.KeyID, err, len(set.Keys), err2, tt.signs, tt.published)
		}
		if err == nil {
			if key, err := set.Key(k.KeyID); err != nil || !key.Equal(k.Public) {
				t.Errorf("after %s: the key that signs is not published: %v", tt.after, err)
			}
		}
	}
	for name, tt := range map[string]struct {
		edit func(KeyRing)
		want Code
	}{
		"one id":               {func(r KeyRing) { r[1].KeyID = "1" }, CodeKIDReuse},
		"published late":       {func(r KeyRing) { r[1].Publish = r[1].Publish.Add(1) }, CodeInvalidFormat},
		"left early":           {func(r KeyRing) { r[0].Retire = r[0].Retire.Add(-1) }, CodeInvalidFormat},
		"not in order":         {func(r KeyRing) { r[0].Sign = r[1].Sign }, CodeInvalidFormat},
		"the last one leaves":  {func(r KeyRing) { r[1].Retire = t0.AddDate(9, 0, 0) }, CodeInvalidFormat},
		"a key that is none":   {func(r KeyRing) { r[1].Public = nil }, CodeInvalidFormat},
		"the first never goes": {func(r KeyRing) { r[0].Retire = time.Time{} }, ""},
	} {
		r := slices.Clone(ring)
		tt.edit(r)
		if err := r.Check(24 * time.Hour); CodeOf(err) != tt.want {
			t.Errorf("%s: Check = %v, want %q", name, err, tt.want)
		}
	}
	many := make(KeyRing, 21)
	if _, err := many.JWKS(t0); CodeOf(err) != CodeInvalidFormat {
		t.Errorf("21 keys: %v", err)
	}
}
