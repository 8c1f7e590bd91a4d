package peac

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"
)

// Values of the groups that hold, to be changed.
const (
	anAction = `{"event_kind":"agent-action-invoked-observed","agent_ref":"ref:host:a","action_ref":"ref:step_1","observed_at":"2026-11-22T10:00:00Z",` +
		`"caller_ref":"urn:x","policy_ref":"did:a:b","policy_digest":"sha256:` + hexDigits + `","parent_ref":"https://x","upstream_artifact_ref":"sha256:` + hexDigits + `"}`
	aTask = `{"type":"org.peacprotocol/a2a-task-completed","event":"task.completed","task_id":"ref:a2a-task:1","from_agent":{"card_ref":"sha256:` + hexDigits + `"},` +
		`"to_agent":{"selected_interface_url":"https://agent.example.com/a2a/v1"},"state":"completed","observed_at":"2026-11-22T10:00:00.5+01:00"}`
	aCard = `{"type":"org.peacprotocol/a2a-agent-card-observation","card_ref":"sha256:` + hexDigits + `","signature_observation":` +
		`{"present":false,"caller_reported_verification":"not_checked"},"discovered_at":"2026-11-22T10:00:00Z","discovery_path":"/.well-known/agent-card.json"}`
	anExchange = `{"v":1,"direction":"ingress","protocol":"mcp","outcome":"ok","duration_ms":12,"status":200,"rpc_code":-32601,"evidence":"trace-id",` +
		`"request_digest":{"alg":"sha-256","value":"` + hexDigits + `"}}`
	anAccess  = `{"resource":"ref:host:a","action":"tools/call","decision":"deny"}`
	hexDigits = "abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789"
)

// changed is a group, changed, and the code that it gives; "" if it holds.
type changed struct {
	receiptType, group, value string
	old, text                 string
	want                      Code
}

func (c changed) json(t *testing.T) string {
	if !strings.Contains(c.value, c.old) {
		t.Fatalf("no %s in %s", c.old, c.value)
	}
	return strings.Replace(c.value, c.old, c.text, 1)
}

// observations are what PEAC's validators have to say the same of.
func observations() (found []changed) {
	long := strings.Repeat("x", 253)
	for _, c := range []struct {
		old, text string
		want      Code
	}{
		{``, ``, ""},
		{`"ref:host:a"`, `"peac:a"`, ""},
		{`"ref:host:a"`, `"ref:` + long[1:] + `"`, ""},
		{`"ref:host:a"`, `"ref:` + long + `"`, CodeActionRef},
		{`"ref:host:a"`, `"ref:é` + long[2:] + `"`, CodeActionRef},
		{`"ref:host:a"`, `"host:a"`, CodeActionRef},
		{`"ref:host:a"`, `"1d2d4e6c-8f2b-4f0e-9d4e-0e7c5a9f7f10"`, CodeActionRef},
		{`"ref:host:a"`, `"ref:someone@example.com"`, CodeActionRef},
		{`"ref:host:a"`, `"ref:a b"`, CodeActionRef},
		{`"ref:host:a"`, `"ref:a\u2028b"`, CodeActionRef},
		{`"ref:host:a"`, `"ref:a\u00a0b"`, CodeActionRef},
		{`"ref:host:a"`, `"{\"ref:\":1}"`, CodeActionRef},
		{`"ref:host:a"`, `"https://"`, CodeActionRef},
		{`"ref:host:a"`, `"sha256:abc"`, CodeActionRef},
		{`"ref:host:a"`, `""`, CodeActionRef},
		{`"ref:host:a"`, `5`, CodeActionRefType},
		{`"ref:host:a"`, `null`, CodeActionRefType},
		{`"agent_ref":"ref:host:a",`, ``, CodeActionMissing},
		{`"observed_at":"2026-11-22T10:00:00Z",`, ``, CodeActionMissing},
		{`"2026-11-22T10:00:00Z"`, `"2026-11-31T10:00:00Z"`, CodeActionTime},
		{`"2026-11-22T10:00:00Z"`, `"yesterday"`, CodeActionTime},
		{`"2026-11-22T10:00:00Z"`, `"2026-11-22T10:00:00.25-05:30"`, ""},
		{`"policy_digest":"sha256:ab`, `"policy_digest":"sha256:AB`, CodeActionRef},
		{`"event_kind"`, `"prompt":"x","event_kind"`, CodeActionContent},
		{`"event_kind"`, `"tool_output":null,"event_kind"`, CodeActionContent},
		{`"event_kind"`, `"outcome":"ok","event_kind"`, CodeActionUnknown},
		{`"event_kind"`, `"some_ref":5,"event_kind"`, CodeActionUnknown},
		{`"event_kind"`, `"delegated_to_ref":"ref:b","event_kind"`, CodeActionUnknown},
		{`"event_kind":"agent-action-invoked-observed",`, ``, CodeActionMissing},
		{`agent-action-invoked-observed`, `invoked`, CodeActionKind},
		{`"agent-action-invoked-observed"`, `7`, CodeActionKind},
		{`agent-action-invoked-observed`, `agent-action-denied-observed`, CodeActionMismatch},
		{anAction, `[]`, CodeActionMissing},
		{anAction, `"x"`, CodeActionMissing},
	} {
		found = append(found, changed{ActionInvoked, ActionGroup, anAction, c.old, c.text, c.want})
	}
	own := func(receiptType, member string, want Code) {
		kind := strings.TrimPrefix(receiptType, namespace)
		found = append(found, changed{receiptType, ActionGroup, anAction, `"event_kind":"agent-action-invoked-observed"`, `"event_kind":"` + kind + `"` + member, want})
	}
	own(ActionDelegated, `,"delegated_to_ref":"ref:b"`, "")
	own(ActionDelegated, ``, CodeActionMissing)
	own(ActionDelegated, `,"delegated_to_ref":"b"`, CodeActionRef)
	own(ActionCancelled, ``, "")
	own(ActionCancelled, `,"cancelled_by_ref":"ref:b"`, "")
	own(ActionTimedOut, `,"timeout_at":"2026-11-22T10:00:00Z"`, "")
	own(ActionTimedOut, `,"timeout_at":"soon"`, CodeActionTime)
	for _, c := range []struct {
		value, old, text string
		want             Code
	}{
		{aTask, ``, ``, ""},
		{aTask, `"ref:a2a-task:1"`, `"1d2d4e6c-8f2b-4f0e-9d4e-0e7c5a9f7f10"`, CodeHandoffRef},
		{aTask, `"task_id":"ref:a2a-task:1",`, ``, CodeHandoffRef},
		{aTask, `"task.completed"`, `"task.failed"`, CodeHandoffMismatch},
		{aTask, `"task.completed"`, `"task.done"`, CodeHandoffSchema},
		{aTask, `"event":"task.completed",`, ``, CodeHandoffSchema},
		{aTask, `a2a-task-completed`, `a2a-task-done`, CodeHandoffSchema},
		{aTask, `sha256:abc`, `sha256:ABC`, CodeHandoffCard},
		{aTask, `"from_agent":{"card_ref":"sha256:` + hexDigits + `"}`, `"from_agent":{}`, CodeHandoffCard},
		{aTask, `"from_agent":{"card_ref":"sha256:` + hexDigits + `"},`, ``, CodeHandoffSchema},
		{aTask, `"card_ref"`, `"name":"x","card_ref"`, CodeHandoffUnknown},
		{aTask, `"https://agent`, `"ftp://agent`, CodeHandoffSchema},
		{aTask, `"https://agent.example.com/a2a/v1"`, `"agent"`, CodeHandoffSchema},
		{aTask, `"https://agent`, `"http://agent`, ""},
		{aTask, `"state":"completed"`, `"state":"` + strings.Repeat("x", 129) + `"`, CodeHandoffSchema},
		{aTask, `"state"`, `"reason":"` + strings.Repeat("x", 1024) + `","state"`, ""},
		{aTask, `"state"`, `"reason":"` + strings.Repeat("x", 1025) + `","state"`, CodeHandoffSchema},
		{aTask, `"state"`, `"upstream_event_ref":"x","state"`, CodeHandoffRef},
		{aTask, `"state"`, `"upstream_event_digest":"x","state"`, CodeHandoffSchema},
		{aTask, `"state"`, `"parent_task_id":"urn:x","state"`, ""},
		{aTask, `"state"`, `"outcome":"ok","state"`, CodeHandoffVerdict},
		{aTask, `"state"`, `"text":"ok","state"`, CodeHandoffUnknown},
		{aTask, `10:00:00.5+01:00`, `10`, CodeHandoffTime},
		{aTask, aTask, `null`, CodeHandoffSchema},
		{aCard, ``, ``, ""},
		{aCard, `"card_ref"`, `"signature":{},"card_ref"`, CodeHandoffSignature},
		{aCard, `"not_checked"`, `"sure"`, CodeHandoffSchema},
		{aCard, `"present":false,`, ``, CodeHandoffSchema},
		{aCard, `"present"`, `"method_ref":"x","present"`, CodeHandoffRef},
		{aCard, `"present"`, `"kid":"x","observed_by_ref":"ref:x","present"`, ""},
		{aCard, `"present"`, `"valid":true,"present"`, CodeHandoffUnknown},
		{aCard, `"/.well-known/agent-card.json"`, `"/card"`, CodeHandoffSchema},
		{aCard, `"card_ref"`, `"verdict":1,"card_ref"`, CodeHandoffVerdict},
		{aCard, `2026-11-22T10:00:00Z`, `now`, CodeHandoffTime},
	} {
		of := TaskCompleted
		if c.value == aCard {
			of = CardObserved
		}
		found = append(found, changed{of, HandoffGroup, c.value, c.old, c.text, c.want})
	}
	return found
}

// TestObserved has the groups of what was observed hold, or give the code.
func TestObserved(t *testing.T) {
	cases := observations()
	for _, c := range []struct {
		old, text string
		want      Code
	}{
		{``, ``, ""},
		{`"v":1`, `"v":2`, CodeInvalidFormat},
		{`"ingress"`, `"both"`, CodeInvalidFormat},
		{`"mcp"`, `"smtp"`, CodeInvalidFormat},
		{`"ok"`, `"fine"`, CodeInvalidFormat},
		{`12,`, `-1,`, CodeInvalidFormat},
		{`12,`, `1.5,`, CodeInvalidFormat},
		{`200`, `99`, CodeInvalidFormat},
		{`200`, `600`, CodeInvalidFormat},
		{`-32601`, `0.1`, CodeInvalidFormat},
		{`"trace-id"`, `"Trace Id"`, CodeInvalidFormat},
		{`"v"`, `"tool":"x","v"`, CodeInvalidFormat},
		{`"sha-256"`, `"md5"`, CodeInvalidFormat},
		{hexDigits, hexDigits[1:], CodeInvalidFormat},
		{`"duration_ms":12,`, ``, CodeInvalidFormat},
		{anExchange, `[]`, CodeInvalidFormat},
	} {
		cases = append(cases, changed{"dev.wopproxy/progress", ExchangeGroup, anExchange, c.old, c.text, c.want})
	}
	for _, c := range []struct {
		old, text string
		want      Code
	}{
		{``, ``, ""},
		{`"deny"`, `"no"`, CodeInvalidFormat},
		{`"ref:host:a"`, `""`, CodeInvalidFormat},
		{`"tools/call"`, `"` + strings.Repeat("x", 257) + `"`, CodeInvalidFormat},
		{`"action"`, `"by":"x","action"`, CodeInvalidFormat},
		{anAccess, `true`, CodeInvalidFormat},
	} {
		cases = append(cases, changed{AccessDecision, AccessGroup, anAccess, c.old, c.text, c.want})
	}
	for _, c := range cases {
		extension := json.RawMessage(c.json(t))
		jws, err := newSigner(t).Sign(Claims{
			Kind: Evidence, Type: c.receiptType, IssuedAt: at, ID: "one", Extensions: map[string]any{c.group: extension},
		})
		if got := CodeOf(err); got != c.want || (err == nil) != (c.want == "") {
			t.Errorf("%s %s: %v, want %q", c.receiptType, extension, err, c.want)
		}
		if err == nil {
			if _, err := Verify(jws, keys.Of(issuer), time.Unix(at, 0)); err != nil {
				t.Errorf("%s: signed, and then %v", extension, err)
			}
		}
	}
}

// TestObservedMade signs what the types of this package are written as.
func TestObservedMade(t *testing.T) {
	const when = "2026-11-22T10:00:00Z"
	code := int64(-32601)
	delegated := NewAgentAction(ActionDelegated, "ref:host:a", "ref:step_1", when)
	delegated.DelegatedToRef = "ref:host:b"
	for receiptType, groups := range map[string]map[string]any{
		ActionInvoked: {
			ActionGroup: NewAgentAction(ActionInvoked, "ref:host:a", "ref:step_1", when),
			ExchangeGroup: Exchange{V: 1, Direction: "egress", Protocol: "grpc", Outcome: "protocol_error", Status: 200, RPCCode: &code,
				RequestDigest: &Digest{"sha-256:trunc-64k", hexDigits}},
		},
		ActionDelegated: {ActionGroup: delegated},
		AccessDecision:  {AccessGroup: Access{"ref:host:a", "tools/call", "deny"}},
		TaskFailed: {HandoffGroup: TaskHandoff{Type: TaskFailed, Event: "task.failed", TaskID: "ref:a2a-task:1",
			FromAgent: AgentCard{CardRef: "sha256:" + hexDigits}, ObservedAt: when}},
	} {
		if _, err := newSigner(t).Sign(Claims{Kind: Evidence, Type: receiptType, IssuedAt: at, ID: "one", Extensions: groups}); err != nil {
			t.Errorf("%s: %v", receiptType, err)
		}
	}
}

// TestObservedVectors has PEAC's own payloads give their verdicts. All are said to
// be accepted, by the envelope: those that are negative fail by the name.
func TestObservedVectors(t *testing.T) {
	negative := []Code{CodeHandoffCard, CodeHandoffVerdict, CodeHandoffSignature, CodeHandoffMismatch, CodeHandoffRef}
	n := 0
	for _, name := range []string{"agent-action", "a2a-handoff"} {
		var f struct {
			Vectors []struct {
				ID    string
				Input struct{ Payload object }
			}
		}
		load(t, "groups/"+name+".json", &f)
		for _, v := range f.Vectors {
			n++
			want := Code("")
			if strings.HasPrefix(v.ID, "ah-neg-") {
				want, negative = negative[0], negative[1:]
			}
			payload, err := json.Marshal(v.Input.Payload)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := inspect(payload, time.Unix(at, 0)); CodeOf(err) != want {
				t.Errorf("%s: %v, want %q", v.ID, err, want)
			}
		}
	}
	if n != 21 || len(negative) > 0 {
		t.Errorf("%d vectors, %d negative ones not seen", n, len(negative))
	}
}

// FuzzObserved gives any value to each group: there is a code, or what is taken
// can be read into the type that it is written from, and holds again, without more.
func FuzzObserved(f *testing.F) {
	for _, c := range observations() {
		f.Add(c.receiptType, strings.Replace(c.value, c.old, c.text, 1))
	}
	f.Add("a.b/c", anExchange)
	f.Fuzz(func(t *testing.T, receiptType, text string) {
		v, err := parse([]byte(text))
		if err != nil {
			return
		}
		for key, into := range map[string]any{ActionGroup: &AgentAction{}, HandoffGroup: &TaskHandoff{}, ExchangeGroup: &Exchange{}} {
			err := checkObserved(receiptType, object{key: v})
			if err != nil {
				if CodeOf(err) == "" {
					t.Fatalf("no code: %v", err)
				}
				continue
			}
			if receiptType == CardObserved && key == HandoffGroup {
				continue // nothing here makes one
			}
			if err := decode(v, into); err != nil {
				t.Fatalf("%s: taken, and then %v", text, err)
			}
			again, err := marshal(into)
			if err != nil {
				t.Fatal(err)
			}
			w, _ := parse(again)
			if err := checkObserved(receiptType, object{key: w}); err != nil {
				t.Fatalf("%s is %s, which does not hold: %v", text, again, err)
			}
			if canonical := appendValue(nil, v); !bytes.Equal(again, canonical) && len(again) > len(canonical) {
				t.Fatalf("%s is %s", canonical, again)
			}
		}
	})
}

// TestObservedTypes has each type of receipt that needs a group be known to it.
func TestObservedTypes(t *testing.T) {
	for of, group := range registered {
		_, isEvent := events[of]
		_, isAction := actions[of]
		switch group {
		case HandoffGroup:
			if !isEvent && of != CardObserved {
				t.Errorf("%s is not known", of)
			}
		case ActionGroup:
			if !isAction {
				t.Errorf("%s is not known", of)
			}
		}
	}
	if registered[AccessDecision] != AccessGroup {
		t.Errorf("%s has %s", AccessDecision, registered[AccessDecision])
	}
}
