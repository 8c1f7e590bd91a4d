package peac

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// node is where the peers in Node are installed.
const node = "../../test/e2e/node"

// askPEAC hands a question to a program around PEAC's own packages, and reads what
// it answers.
func askPEAC(t *testing.T, program string, question, answer any) {
	t.Helper()
	_, err := exec.LookPath("node")
	if err == nil {
		_, err = os.Stat(filepath.Join(node, "node_modules/@peac/crypto"))
	}
	if err != nil {
		if os.Getenv("WOPPROXY_E2E") == "all" {
			t.Fatal(err)
		}
		t.Skip("PEAC's packages are not installed: npm ci --ignore-scripts --prefix test/e2e/node")
	}
	raw, err := json.Marshal(question)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "node", "--no-warnings", program)
	cmd.Dir, cmd.Stdin = node, bytes.NewReader(raw)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("node: %v\n%s", err, &stderr)
	}
	if err := json.Unmarshal(out, answer); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// TestIndependentGroups has PEAC's validators of what was observed take what is
// taken here, and refuse what is refused, for the same reason among theirs.
func TestIndependentGroups(t *testing.T) {
	type question struct {
		Type, Group string
		Value       json.RawMessage
	}
	var questions []question
	cases := observations()
	for _, c := range cases {
		questions = append(questions, question{c.receiptType, c.group, json.RawMessage(c.json(t))})
	}
	var codes [][]Code // of each, none if it holds
	askPEAC(t, "peac-groups.mjs", questions, &codes)
	if len(codes) != len(cases) {
		t.Fatalf("%d answers to %d questions", len(codes), len(cases))
	}
	for i, c := range cases {
		if (c.want == "") != (len(codes[i]) == 0) || c.want != "" && !slices.Contains(codes[i], c.want) {
			t.Errorf("%s: %s: %q here, %q there", c.receiptType, questions[i].Value, c.want, codes[i])
		}
	}
}

// TestIndependent has PEAC's own packages accept what is signed here, and refuse
// it with each of the changes that this package refuses.
func TestIndependent(t *testing.T) {
	type input struct {
		Bundle Bundle `json:"bundle"`
		Key    string `json:"key"`
	}
	key := base64url.EncodeToString(public("a"))
	inputs := map[string]input{"whole": {observed(t), key}}
	for name, b := range mutations(t) {
		inputs[name] = input{b, key}
		if report := verifyBundle(b); report.OK() {
			t.Errorf("%s: accepted here", name)
		}
	}
	inputs["another key"] = input{observed(t), base64url.EncodeToString(public("b"))}
	if report := verifyBundle(inputs["whole"].Bundle); !report.OK() {
		t.Fatalf("refused here: %q", codes(report))
	}
	var verdicts map[string]*string
	askPEAC(t, "peac-verify.mjs", inputs, &verdicts)
	for _, name := range slices.Sorted(maps.Keys(inputs)) {
		v, there := verdicts[name]
		switch {
		case !there:
			t.Errorf("%s: no verdict", name)
		case v == nil && name != "whole":
			t.Errorf("%s: accepted by PEAC's packages", name)
		case v != nil && name == "whole":
			t.Errorf("refused by PEAC's packages: %s", *v)
		case v != nil:
			t.Logf("%s: %s", name, *v)
		}
	}
	if len(verdicts) < 22 {
		t.Errorf("%d verdicts", len(verdicts))
	}
}

// observed is a workflow with receipts of a registered type among the others.
func observed(t *testing.T) Bundle {
	return workflow(t, func(n int, c *Claims) {
		const kind = "agent-action-invoked-observed"
		if n > 4 {
			return
		}
		c.Type = "org.peacprotocol/" + kind
		c.Extensions["org.peacprotocol/agent-action"] = map[string]string{
			"event_kind": kind, "agent_ref": "ref:host:a", "observed_at": time.Unix(c.IssuedAt, 0).UTC().Format(time.RFC3339),
			"action_ref": "ref:" + c.Extensions[WorkflowGroup].(WorkflowContext).StepID,
		}
	})
}

// mutations are workflows with one thing wrong. Where it can be, all of it is
// signed again, and the summary is of what there is.
func mutations(t *testing.T) map[string]Bundle {
	found := map[string]Bundle{}
	header := `{"typ":"interaction-record+jwt","alg":"EdDSA","kid":"2026-11"}`
	again := func(b Bundle) Bundle { b.Summary = summarize(t, b.Receipts, func(*WorkflowSummary) {}); return b }
	signed := func(name, header, old, text string) {
		b := observed(t)
		_, payload, _, _ := split3(b.Receipts[3])
		if old != "" && !bytes.Contains(payload, []byte(old)) {
			t.Fatalf("%s: no %s in %s", name, old, payload)
		}
		b.Receipts[3] = forge(t, header, strings.Replace(string(payload), old, text, 1))
		found[name] = again(b)
	}
	claim := func(name, old, text string) { signed(name, header, old, text) }
	claim("aud", `"iat"`, `"aud":"x","iat"`)
	claim("ext", `"extensions"`, `"ext"`)
	claim("wire 0.1", `"0.2"`, `"0.1"`)
	claim("no id", `"jti":`, `"sub":`)
	claim("a member twice", `"iat"`, `"kind":"evidence","iat"`)
	claim("a number beyond 2^53-1", `"iat":`, `"iat":9007199254740993,"x":`)
	claim("half a character", `"mcp"`, `"\ud800"`)
	claim("an issuer with a slash", `example.com"`, `example.com/"`)
	claim("pillars out of order", `"peac_version"`, `"pillars":["identity","access"],"peac_version"`)
	claim("a time on a challenge", `"evidence"`, `"challenge"`)
	claim("a type without its group", `agent-action":`, `agent-actions":`)
	claim("an unknown member of the workflow", `"framework"`, `"status":"ok","framework"`)
	claim("a framework in capitals", `"mcp"`, `"MCP"`)
	claim("its own parent", step("left"), step("failed"))
	claim("a parent twice", `"`+step("left")+`"`, `"`+step("left")+`","`+step("left")+`"`)
	claim("a parent that is not there", step("left"), step("nobody"))
	claim("a short trace id", `"trace_id":"4b`, `"trace_id":"`)
	signed("a key in the header", `{"typ":"interaction-record+jwt","alg":"EdDSA","kid":"2026-11","jwk":{"kty":"OKP"}}`, "", "")
	signed("alg none", `{"typ":"interaction-record+jwt","alg":"none","kid":"2026-11"}`, "", "")
	signed("no key id", `{"typ":"interaction-record+jwt","alg":"EdDSA"}`, "", "")
	signed("another typ", `{"typ":"JWT","alg":"EdDSA","kid":"2026-11"}`, "", "")

	b := observed(t)
	parts := strings.Split(b.Receipts[3], ".")
	b.Receipts[3] = parts[0] + "." + strings.Split(b.Receipts[4], ".")[1] + "." + parts[2]
	found["a payload under another signature"] = b
	b = observed(t)
	b.Receipts = slices.Delete(b.Receipts, 3, 4)
	found["a receipt left out"] = b
	b = observed(t)
	b.Receipts = slices.Delete(b.Receipts, 1, 2)
	found["a parent left out"] = again(b)
	b = observed(t)
	b.Receipts = slices.Delete(b.Receipts, 6, 7)
	found["a link left out"] = again(b)
	b = observed(t)
	b.Summary = summarize(t, b.Receipts, func(s *WorkflowSummary) { *s.Evidence.ReceiptCount++ })
	found["another count"] = b
	b = observed(t)
	b.Summary = summarize(t, b.Receipts, func(s *WorkflowSummary) { s.Evidence.ReceiptMerkleRoot = ReceiptRef("") })
	found["another root"] = b
	b = observed(t)
	b.Summary = forge(t, header, strings.Replace(payloadOf(b.Summary), `"failed"`, `"pending"`, 1))
	found["a status that there is not"] = b
	found["a cycle"] = again(workflow(t, func(n int, c *Claims) {
		if w := c.Extensions[WorkflowGroup].(WorkflowContext); n == 1 {
			w.ParentStepIDs = []string{step("join")}
			c.Extensions[WorkflowGroup] = w
		}
	}))
	found["a fork of the chain"] = again(workflow(t, func(n int, c *Claims) {
		if w := c.Extensions[WorkflowGroup].(WorkflowContext); n == 7 {
			w.PrevReceiptHash = ""
			c.Extensions[WorkflowGroup] = w
		}
	}))
	found["two workflows"] = again(workflow(t, func(n int, c *Claims) {
		if w := c.Extensions[WorkflowGroup].(WorkflowContext); n == 3 {
			w.WorkflowID += "b"
			c.Extensions[WorkflowGroup], c.Extensions[CorrelationGroup] = w, Correlation{WorkflowID: w.WorkflowID}
		}
	}))
	return found
}

func payloadOf(jws string) string {
	_, payload, _, _ := split3(jws)
	return string(payload)
}
