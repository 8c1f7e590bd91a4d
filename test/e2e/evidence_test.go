package e2e

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"maps"
	"net/http"
	"net/url"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2asrv"

	"github.com/wopproxy/wopproxy/ancestry/peac"
	"github.com/wopproxy/wopproxy/evidence"
)

const keyID = "2026-11"

// signing is what has a wopproxy sign evidence, and what it signs with.
type signing struct {
	issuer   string
	key      ed25519.PrivateKey
	settings settings
}

// signs makes the keys of an issuer.
func signs(t testing.TB, hostID string) signing {
	t.Helper()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "secret"), randomHex(32))
	s := signing{issuer: "https://" + hostID, key: newKey(t, filepath.Join(dir, "key.pem"))}
	s.settings = settings{
		"evidence.issuer": s.issuer, "evidence.key.file": filepath.Join(dir, "key.pem"), "evidence.keyId": keyID,
		"evidence.idKey.file": filepath.Join(dir, "secret"),
	}
	return s
}

// newKey makes a key, and writes it to a file.
func newKey(t testing.TB, file string) ed25519.PrivateKey {
	t.Helper()
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	write(t, file, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw})))
	return key
}

// published reads the keys of the issuer, as verifiers do.
func (s signing) published(t testing.TB, at *sidecar) peac.KeySource {
	t.Helper()
	_, about := get(t, at.ingress+"/.well-known/peac-issuer.json")
	document, err := peac.ParseIssuer(about, s.issuer)
	if err != nil {
		t.Fatalf("%v: %s", err, about)
	}
	_, keys := get(t, at.ingress+strings.TrimPrefix(document.JWKSURI, s.issuer))
	set, err := peac.ParseJWKS(keys)
	if err != nil {
		t.Fatalf("%v: %s", err, keys)
	}
	return document.Keys(set)
}

// evidence waits until a wopproxy has signed all of a run, as enough says, and returns
// it with what comes of checking it.
func (s signing) evidence(t testing.TB, at *sidecar, run string, enough func(peac.Report) bool) (b peac.Bundle, report peac.Report) {
	t.Helper()
	return s.evidenceFor(t, at, run, "", enough)
}

// evidenceFor is evidence, of what was signed as query says.
func (s signing) evidenceFor(t testing.TB, at *sidecar, run, query string, enough func(peac.Report) bool) (b peac.Bundle, report peac.Report) {
	t.Helper()
	keys := s.published(t, at)
	if !poll(func() bool {
		code, body := get(t, at.admin+"/ancestry/v1/runs/"+url.PathEscape(run)+"/evidence"+query)
		if code != http.StatusOK {
			return false
		}
		var err error
		if b, err = peac.ParseBundle(body); err != nil {
			t.Fatalf("%v: %s", err, body)
		}
		report = b.Verify(keys, time.Now())
		return report.OK() && report.Summary != nil && report.Summary.Evidence.Status != peac.InProgress && enough(report)
	}) {
		var tree strings.Builder
		_ = report.WriteTree(&tree) // never fails
		t.Fatalf("%s: the evidence of %s is never whole: %v\n%s", at.hostID, run, shape(report), &tree)
	}
	return b, report
}

// told is a job of two turns with a fork, a step that fails, its retry, a chain of
// progress, another agent that is asked once its card is read, and, in the second turn, a
// step that both turns have led to.
func told(t testing.TB, p *peer, tools *toolServer, other *peer) job {
	return func(ctx context.Context, x *a2asrv.ExecutorContext, emit func(a2a.Event) bool) error {
		hc := p.client(t)
		defer hc.CloseIdleConnections()
		cs, err := tools.connect(ctx, hc, tools.endpoint())
		if err != nil {
			return err
		}
		defer cs.Close()
		if x.StoredTask != nil {
			err := callTool(ctx, cs, "echo", map[string]any{"n": 3}, `{"n":3}`, false)
			emit(a2a.NewStatusUpdateEvent(x, a2a.TaskStateCompleted, nil))
			return err
		}
		emit(a2a.NewSubmittedTask(x, x.Message))
		emit(a2a.NewStatusUpdateEvent(x, a2a.TaskStateWorking, nil))
		err = errors.Join(
			callTool(ctx, cs, "echo", map[string]any{"n": 1}, `{"n":1}`, false),
			callTool(ctx, cs, "fail", map[string]any{"n": 2}, "no", true),
			callTool(ctx, cs, "echo", map[string]any{"n": 2}, `{"n":2}`, false),
			other.askedBy(ctx, hc),
		)
		emit(a2a.NewStatusUpdateEvent(x, a2a.TaskStateInputRequired, nil))
		return err
	}
}

// askedBy has an agent, once its card is read, do what a stream tells of.
func (p *peer) askedBy(ctx context.Context, by *http.Client) error {
	c, err := p.dial(ctx, by, bindings[0])
	if err != nil {
		return err
	}
	for _, err := range c.SendStreamingMessage(ctx, &a2a.SendMessageRequest{Message: say("help")}) {
		if err != nil {
			return err
		}
	}
	return nil
}

// help is a job in three states.
func help(_ context.Context, x *a2asrv.ExecutorContext, emit func(a2a.Event) bool) error {
	emit(a2a.NewSubmittedTask(x, x.Message))
	emit(a2a.NewStatusUpdateEvent(x, a2a.TaskStateWorking, nil))
	emit(a2a.NewStatusUpdateEvent(x, a2a.TaskStateCompleted, nil))
	return nil
}

// converseTwice has an agent do both turns, and returns the task.
func converseTwice(t *testing.T, p *peer) a2a.TaskID {
	t.Helper()
	task := begunTask(t, p)
	goOn(t, p, task)
	return task.TaskID
}

// begunTask has an agent do the first turn, in a stream.
func begunTask(t *testing.T, p *peer) (task a2a.TaskInfo) {
	t.Helper()
	c, err := p.dial(t.Context(), direct, bindings[1])
	if err != nil {
		t.Fatal(err)
	}
	for e, err := range c.SendStreamingMessage(t.Context(), &a2a.SendMessageRequest{Message: say("told")}) {
		if err != nil {
			t.Fatal(err)
		}
		task = e.TaskInfo()
	}
	return task
}

// goOn has it do the second one.
func goOn(t *testing.T, p *peer, task a2a.TaskInfo) {
	t.Helper()
	c, err := p.dial(t.Context(), direct, bindings[1])
	if err != nil {
		t.Fatal(err)
	}
	m := say("told")
	m.TaskID, m.ContextID = task.TaskID, task.ContextID
	done, err := ask(t.Context(), c, m)
	if err != nil || done.Status.State != a2a.TaskStateCompleted {
		t.Fatalf("the second turn: %+v, %v", done, err)
	}
}

// shape counts the receipts by their types, and the steps that two led to.
func shape(r peac.Report) map[string]int {
	found := map[string]int{}
	for _, s := range r.Steps {
		for _, r := range s.Receipts {
			found[r.Claims.Type]++
		}
		if len(s.Parents) == 2 {
			found["joins"]++
		}
	}
	return found
}

// TestEvidence has PEAC's own packages accept all that real wopproxies have signed of
// a run, and refuse it with each of many changes.
func TestEvidence(t *testing.T) {
	n := node(t)
	front, back := signs(t, "front.example.com"), signs(t, "tools.example.com")
	p := newPeer(t, "front.example.com", front.settings)
	tools := newToolServer(t, "tools.example.com", stateless, back.settings)
	other := newPeer(t, "other.example.com")
	other.does("help", help)
	p.does("told", told(t, p, tools, other))
	task := converseTwice(t, p)

	want := map[string]int{
		"org.peacprotocol/agent-action-invoked-observed": 6, "joins": 1, "dev.wopproxy/progress": 4,
		peac.CardObserved: 1, peac.ActionDelegated: 1, peac.TaskSubmitted: 1, peac.TaskStateChanged: 1, peac.TaskCompleted: 1,
	}
	b, report := front.evidence(t, p.sidecar, string(task), func(r peac.Report) bool {
		got := shape(r)
		for what, n := range want {
			if got[what] < n {
				return false
			}
		}
		return true
	})
	if got := report.Summary.Evidence.Status; got != peac.Completed {
		t.Errorf("the workflow is %s, want %s: %v", got, peac.Completed, shape(report))
	}
	handsOver(t, p, other, b)
	calls, _ := tools.seen()
	inputs := map[string]signed{"front": {b, front.public()}}
	for i, c := range calls {
		b, report := back.evidence(t, tools.sidecar, c.run, func(r peac.Report) bool {
			return shape(r)["org.peacprotocol/agent-action-invoked-observed"] == len(calls)
		})
		if report.Summary.Evidence.WorkflowID != wfOf(t, inputs["front"].Bundle) {
			t.Errorf("call %d is of another workflow than its caller: %+v", i, report.Summary)
		}
		inputs["call "+c.run] = signed{b, back.public()}
	}
	whole := len(inputs)
	maps.Copy(inputs, front.changed(t, b))
	verdicts := n.verdicts(t, "peac-verify.mjs", inputs)
	for _, name := range slices.Sorted(maps.Keys(inputs)) {
		v, there := verdicts[name]
		isWhole := name == "front" || strings.HasPrefix(name, "call ")
		switch {
		case !there:
			t.Errorf("%s: no verdict", name)
		case isWhole && v != nil:
			t.Errorf("%s: refused by PEAC's packages: %s", name, *v)
		case !isWhole && v == nil:
			t.Errorf("%s: accepted by PEAC's packages", name)
		case !isWhole:
			keys := peac.JWKS{Keys: []peac.JWK{peac.NewJWK(keyID, front.key.Public().(ed25519.PublicKey))}}
			if inputs[name].Bundle.Verify(keys.Of(front.issuer), time.Now()).OK() {
				t.Errorf("%s: accepted by wopproxy", name)
			}
		}
	}
	if len(calls) < 4 || len(inputs)-whole < 20 {
		t.Errorf("%d calls and %d changes", len(calls), len(inputs)-whole)
	}
	front.command(t, p, string(task), b)
}

// handsOver checks that the states of a task name both agents by the cards that these
// have made.
func handsOver(t *testing.T, from, to *peer, b peac.Bundle) {
	t.Helper()
	_, own := get(t, from.host+peac.CardPath)
	_, others := get(t, to.ingress+peac.CardPath)
	for _, jws := range b.Receipts {
		g, there := claimsOf(t, jws).Extensions[peac.HandoffGroup].(map[string]any)
		if !there {
			continue
		}
		want := map[string]any{"card_ref": evidence.CardRef(others)}
		got := map[string]any{"card_ref": g["card_ref"]}
		if g["type"] != peac.CardObserved {
			want["from_agent"], got["from_agent"] = map[string]any{"card_ref": evidence.CardRef(own)}, g["from_agent"]
			got["card_ref"] = g["to_agent"].(map[string]any)["card_ref"]
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%v names %v, want %v", g["type"], got, want)
		}
	}
}

// TestEvidenceForAnAudience has a host be handed what a strict wopproxy has signed for
// it alone: it holds by itself, for PEAC's own packages too, is what that host's own
// receipts follow, and shows nothing of what else was signed.
func TestEvidenceForAnAudience(t *testing.T) {
	n := node(t)
	front, back := signs(t, "front.example.com"), signs(t, "tools.example.com")
	front.settings["evidence.privacy"] = "strict"
	p := newPeer(t, "front.example.com", front.settings)
	tools := newToolServer(t, "tools.example.com", stateless, back.settings)
	other := newPeer(t, "other.example.com")
	other.does("help", help)
	p.does("told", told(t, p, tools, other))
	task := string(converseTwice(t, p))

	const invoked = "org.peacprotocol/agent-action-invoked-observed"
	own, _ := front.evidence(t, p.sidecar, task, func(r peac.Report) bool { return shape(r)[invoked] == 6 })
	handed, report := front.evidenceFor(t, p.sidecar, task, "?audience="+url.QueryEscape(tools.ingress), func(r peac.Report) bool { return shape(r)[invoked] == 4 })
	steps := map[string]bool{}
	for _, s := range report.Steps {
		if steps[s.ID] = true; len(s.Parents) > 0 {
			t.Errorf("%s has parents: %v", s.ID, s.Parents)
		}
	}
	more, _ := front.evidenceFor(t, p.sidecar, task, "?audience="+url.QueryEscape(other.ingress), func(r peac.Report) bool {
		got := shape(r)
		return got[peac.ActionDelegated] == 1 && got["dev.wopproxy/progress"] >= 3
	})
	inputs := map[string]signed{"own": {own, front.public()}, "handed": {handed, front.public()}, "more": {more, front.public()}}
	calls, _ := tools.seen()
	for _, c := range calls {
		b, _ := back.evidence(t, tools.sidecar, c.run, func(r peac.Report) bool { return shape(r)[invoked] == len(calls) })
		inputs["call "+c.run] = signed{b, back.public()}
		if wfOf(t, b) != wfOf(t, handed) || len(b.ExternalStepIDs) != len(calls) || slices.ContainsFunc(b.ExternalStepIDs, func(id string) bool { return !steps[id] }) {
			t.Errorf("call %s follows %v of %s, want %v of %s", c.run, b.ExternalStepIDs, wfOf(t, b), steps, wfOf(t, handed))
		}
	}
	for name, fault := range n.verdicts(t, "peac-verify.mjs", inputs) {
		if fault != nil {
			t.Errorf("%s: refused by PEAC's packages: %s", name, *fault)
		}
	}
	seen := map[string]bool{}
	for _, b := range []peac.Bundle{own, handed, more} {
		ids := identifiers(t, b)
		for id := range ids {
			if seen[id] {
				t.Errorf("%s is in what two may read", id)
			}
		}
		maps.Copy(seen, ids)
	}
	front.command(t, p, task, handed, "-audience", tools.ingress)
	refused := execute(t, "evidence", "export", calls[0].run, "-admin", tools.admin, "-audience", p.ingress)
	if err := refused.success(t); err == nil || !strings.Contains(refused.stderr.String(), "that takes evidence.privacy: strict") {
		t.Errorf("where no audience has receipts of its own: %s", refused.stderr)
	}
}

// identifiers are what can tell that receipts are of the same thing.
func identifiers(t testing.TB, b peac.Bundle) map[string]bool {
	t.Helper()
	found := map[string]bool{}
	for _, jws := range append(slices.Clone(b.Receipts), b.Summary) {
		for _, text := range []string{payloadOf(t, jws), peac.ReceiptRef(jws)} {
			for _, id := range identifier.FindAllString(text, -1) {
				found[id] = true
			}
		}
	}
	if len(found) < 2*len(b.Receipts) {
		t.Errorf("only %d identifiers in %d receipts", len(found), len(b.Receipts))
	}
	return found
}

var identifier = regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{64}|[0-9a-f]{32}|[0-9a-f]{16}`)

// command has the program export the evidence of a run, as the flags in of say, and
// verify it, whole and one receipt of it.
func (s signing) command(t *testing.T, p *peer, run string, b peac.Bundle, of ...string) {
	t.Helper()
	for _, flags := range [][]string{nil, {"-proof", peac.ReceiptRef(b.Receipts[0])}} {
		export := execute(t, slices.Concat([]string{"evidence", "export", run, "-admin", p.admin}, of, flags)...)
		if err := export.success(t); err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), "bundle.json")
		write(t, file, export.stdout.String())
		known := []string{"-issuer", p.ingress + "/.well-known/peac-issuer.json", "-jwks", p.ingress + "/.well-known/peac-jwks.json"}
		verify := execute(t, slices.Concat([]string{"evidence", "verify", file}, known)...)
		if err := verify.success(t); err != nil {
			t.Fatal(err)
		}
		if got := verify.stdout.String(); !strings.HasPrefix(got, s.issuer+"\n") || !strings.Contains(got, "\nsummary  ok") || strings.Contains(got, "\nan extract: 1 of ") != (flags != nil) {
			t.Errorf("evidence verify %q prints\n%s", flags, got)
		}
	}
}

// signed is evidence that PEAC's own packages are to judge, and the key that it
// should be of.
type signed struct {
	Bundle peac.Bundle `json:"bundle"`
	Key    string      `json:"key"`
}

// verdicts are what PEAC's packages say, in a script, is wrong with each question; nil is
// nothing.
func (n nodeRuntime) verdicts(t testing.TB, script string, questions any) (found map[string]*string) {
	t.Helper()
	raw, err := json.Marshal(questions)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), n.path, "--no-warnings", script)
	cmd.Dir, cmd.Stdin, cmd.Env = "node", bytes.NewReader(raw), peerEnv(t, nil)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("node: %v\n%s", err, &stderr)
	}
	return decode[map[string]*string](t, out)
}

func (s signing) public() string {
	return base64.RawURLEncoding.EncodeToString(s.key.Public().(ed25519.PublicKey))
}

func wfOf(t testing.TB, b peac.Bundle) string {
	w := claimsOf(t, b.Receipts[0]).Extensions[peac.WorkflowGroup].(map[string]any)
	return w["workflow_id"].(string)
}

func payloadOf(t testing.TB, jws string) string {
	t.Helper()
	raw, err := base64.RawURLEncoding.DecodeString(strings.Split(jws, ".")[1])
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

func claimsOf(t testing.TB, jws string) (c peac.Claims) {
	t.Helper()
	return decode[peac.Claims](t, []byte(payloadOf(t, jws)))
}

// forge signs what nobody should, with the issuer's own key.
func (s signing) forge(header, payload string) string {
	text := base64.RawURLEncoding.EncodeToString([]byte(header)) + "." + base64.RawURLEncoding.EncodeToString([]byte(payload))
	return text + "." + base64.RawURLEncoding.EncodeToString(ed25519.Sign(s.key, []byte(text)))
}

// again signs the summary of what is in a bundle now.
func (s signing) again(t testing.TB, b peac.Bundle) peac.Bundle {
	t.Helper()
	signer, err := peac.NewSigner(s.issuer, keyID, s.key)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := json.Marshal(claimsOf(t, b.Summary).Extensions[peac.SummaryGroup])
	if err != nil {
		t.Fatal(err)
	}
	var refs []string
	for _, jws := range b.Receipts {
		refs = append(refs, peac.ReceiptRef(jws))
	}
	if b.Summary, err = signer.Summarize(decode[peac.WorkflowSummary](t, raw).Evidence, refs, time.Now()); err != nil {
		t.Fatal(err)
	}
	b.Commitment = nil
	return b
}

// changed is the evidence b, each time with one thing wrong, under signatures that
// hold where that is possible.
func (s signing) changed(t testing.TB, b peac.Bundle) map[string]signed {
	const header = `{"typ":"interaction-record+jwt","alg":"EdDSA","kid":"` + keyID + `"}`
	found := map[string]signed{}
	add := func(name string, b peac.Bundle) { found[name] = signed{b, s.public()} }
	// A call of a tool, of which there is one receipt, with one parent.
	at, parent := -1, ""
	of := map[string]int{} // a receipt of each type
	for i, jws := range b.Receipts {
		c := claimsOf(t, jws)
		of[c.Type] = i
		w := c.Extensions[peac.WorkflowGroup].(map[string]any)
		if ps := w["parent_step_ids"].([]any); len(ps) == 1 && w["framework"] == "mcp" {
			at, parent = i, ps[0].(string)
		}
	}
	if at < 0 {
		t.Fatal("no call has one parent")
	}
	step := claimsOf(t, b.Receipts[at]).Extensions[peac.WorkflowGroup].(map[string]any)["step_id"].(string)
	resignAt := func(at int, name, header, old, text string) {
		payload := payloadOf(t, b.Receipts[at])
		if !strings.Contains(payload, old) {
			t.Fatalf("%s: no %s in %s", name, old, payload)
		}
		c := b
		c.Receipts = slices.Clone(b.Receipts)
		c.Receipts[at] = s.forge(header, strings.Replace(payload, old, text, 1))
		add(name, s.again(t, c))
	}
	resign := func(name, header, old, text string) { resignAt(at, name, header, old, text) }
	for name, c := range map[string][2]string{
		"aud":                               {`"iat"`, `"aud":"x","iat"`},
		"ext for extensions":                {`"extensions"`, `"ext"`},
		"wire 0.1":                          {`"0.2"`, `"0.1"`},
		"no id":                             {`"jti":`, `"sub":`},
		"a member twice":                    {`"iat"`, `"kind":"evidence","iat"`},
		"a number beyond 2^53-1":            {`"iat":`, `"iat":9007199254740993,"x":`},
		"half a character":                  {`"framework":"mcp"`, `"framework":"\ud800"`},
		"an issuer with a slash":            {s.issuer, s.issuer + "/"},
		"pillars out of order":              {`"peac_version"`, `"pillars":["identity","access"],"peac_version"`},
		"a time on a challenge":             {`"kind":"evidence"`, `"kind":"challenge"`},
		"a type without its group":          {`agent-action":`, `agent-actions":`},
		"what an agent said":                {`"event_kind"`, `"prompt":"x","event_kind"`},
		"a reference that says who":         {`"agent_ref":"ref:`, `"agent_ref":"ref:me@`},
		"another kind of event":             {`"event_kind":"agent-action-invoked`, `"event_kind":"agent-action-denied`},
		"an unknown member of the workflow": {`"framework"`, `"status":"ok","framework"`},
		"a framework in capitals":           {`"framework":"mcp"`, `"framework":"MCP"`},
		"its own parent":                    {`["` + parent, `["` + step},
		"a parent twice":                    {`["` + parent + `"`, `["` + parent + `","` + parent + `"`},
		"a parent that is not there":        {`["` + parent, `["step_00000000000000000000`},
		"a short trace id":                  {`"trace_id":"`, `"trace_id":"0`},
	} {
		resign(name, header, c[0], c[1])
	}
	for name, c := range map[string][3]string{
		"a task of no agent":            {peac.TaskCompleted, `"from_agent"`, `"parent_task_id"`},
		"an agent without a card":       {peac.TaskCompleted, `"from_agent":{"card_ref"`, `"from_agent":{"selected_interface_url"`},
		"a task by its own id":          {peac.TaskCompleted, `"task_id":"ref:a2a-task:`, `"task_id":"`},
		"another event":                 {peac.TaskCompleted, `"task.completed"`, `"task.failed"`},
		"a verdict":                     {peac.TaskCompleted, `"state":`, `"outcome":`},
		"a state that is none":          {peac.TaskStateChanged, `"event":"task.state_changed"`, `"event":"task.accepted"`},
		"a card that was checked":       {peac.CardObserved, `"not_checked"`, `"checked"`},
		"a card without a digest":       {peac.CardObserved, `"card_ref":"sha256:`, `"card_ref":"`},
		"a card from elsewhere":         {peac.CardObserved, `"/.well-known/agent-card.json"`, `"/agent.json"`},
		"a card in place of its digest": {peac.CardObserved, `"card_ref"`, `"card":{},"card_ref"`},
	} {
		resignAt(of[c[0]], name, header, c[1], c[2])
	}
	resign("a key in the header", `{"typ":"interaction-record+jwt","alg":"EdDSA","kid":"`+keyID+`","jwk":{"kty":"OKP"}}`, "", "")
	resign("alg none", `{"typ":"interaction-record+jwt","alg":"none","kid":"`+keyID+`"}`, "", "")
	resign("another typ", `{"typ":"JWT","alg":"EdDSA","kid":"`+keyID+`"}`, "", "")

	parts := strings.Split(b.Receipts[at], ".")
	other := strings.Split(b.Receipts[(at+1)%len(b.Receipts)], ".")
	swapped := b
	swapped.Receipts = slices.Clone(b.Receipts)
	swapped.Receipts[at] = parts[0] + "." + other[1] + "." + parts[2]
	add("a payload under another signature", swapped)
	less := b
	less.Receipts = slices.Delete(slices.Clone(b.Receipts), at, at+1)
	add("a receipt left out", less)
	orphaned := b
	orphaned.Receipts = slices.DeleteFunc(slices.Clone(b.Receipts), func(jws string) bool {
		return claimsOf(t, jws).Extensions[peac.WorkflowGroup].(map[string]any)["step_id"] == parent
	})
	add("a parent left out", s.again(t, orphaned))
	root := b
	root.Summary = s.forge(header, strings.Replace(payloadOf(t, b.Summary), `"receipt_merkle_root":"sha256:`, `"receipt_merkle_root":"sha256:0`, 1))
	add("another root", root)
	status := b
	status.Summary = s.forge(header, strings.Replace(payloadOf(t, b.Summary), `"status":"`, `"status":"nearly `, 1))
	add("a status that there is not", status)
	return found
}
