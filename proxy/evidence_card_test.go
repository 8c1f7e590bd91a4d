package proxy

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/wopproxy/wopproxy/ancestry"
	"github.com/wopproxy/wopproxy/ancestry/peac"
	"github.com/wopproxy/wopproxy/evidence"
)

// cardAt is the card of an agent that is called at some addresses.
func cardAt(name string, urls ...string) string {
	var list []string
	for _, u := range urls {
		list = append(list, `{"url":"`+u+`","protocolBinding":"JSONRPC","protocolVersion":"1.0"}`)
	}
	return `{"name":"` + name + `","supportedInterfaces":[` + strings.Join(list, ",") + `]}`
}

// fetch asks for something, and returns what came of it to the byte.
func fetch(t testing.TB, c *http.Client, method, url string, h http.Header) string {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	r.Header = h
	resp, err := c.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// ofRun returns what was signed for a run that the host has named.
func (f *file) ofRun(t testing.TB, run ancestry.RunID) []peac.Receipt {
	t.Helper()
	receipts, external := f.of(t, f.minter.Resume(run, "").Workflow)
	if len(external) > 0 {
		t.Errorf("external parents: %v", external)
	}
	return receipts
}

// TestEvidenceOfACard has a card be told of as it was received, and nothing be told
// of what is none.
func TestEvidenceOfACard(t *testing.T) {
	card := cardAt("b", "http://b.example.com/a2a")
	signed := strings.Replace(card, `"name"`, `"signatures":[{"protected":"e30","signature":"x"}],"name"`, 1)
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	_, _ = io.WriteString(z, card)
	_ = z.Close()
	for _, tt := range []struct {
		name, path, answer string
		method             string // default GET
		header             http.Header
		status             int // default 200
		parts              int // chunks that the answer comes in; 0: of a length that is known
		encoding           string
		want               string // signatures seen; empty: no receipt
	}{
		{name: "a card", path: peac.CardPath, answer: card, want: "false"},
		{name: "signed", path: peac.CardPath, answer: signed, want: "true"},
		{name: "of A2A", path: peac.CardPath, answer: card, header: http.Header{"A2a-Version": {"1.0"}}, want: "false"},
		{name: "of 0.3", path: peac.CardPath, answer: `{"name":"b","url":"http://b/","capabilities":{}}`, want: "false"},
		{name: "below a path", path: "/agents/b" + peac.CardPath, answer: card, want: "false"},
		{name: "asked for compressed", path: peac.CardPath, answer: card, header: http.Header{"Accept-Encoding": {"gzip"}}, want: "false"},
		{name: "in chunks, with more behind it", path: peac.CardPath, answer: card + "\n\n", parts: 3, want: "false"},
		{name: "compressed all the same", path: peac.CardPath, answer: packed.String(), encoding: "gzip"},
		{name: "its head", path: peac.CardPath, method: http.MethodHead, answer: card},
		{name: "missing", path: peac.CardPath, status: 404, answer: card},
		{name: "a part", path: peac.CardPath, status: 206, answer: card},
		{name: "elsewhere", path: "/.well-known/agent.json", answer: card},
		{name: "no card", path: peac.CardPath, answer: `{"name":"b"}`},
		{name: "two names", path: peac.CardPath, answer: strings.Replace(card, `"name"`, `"name":"a","name"`, 1)},
		{name: "HTML", path: peac.CardPath, answer: "<p>" + card},
		{name: "too long", path: peac.CardPath, answer: card + strings.Repeat(" ", evidence.MaxBody)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var asked http.Header
			to := peer(t, func(w http.ResponseWriter, r *http.Request) {
				asked = r.Header
				w.Header().Set("Content-Type", "application/json")
				if tt.encoding != "" {
					w.Header().Set("Content-Encoding", tt.encoding)
				}
				if tt.status != 0 {
					w.WriteHeader(tt.status)
				}
				rest := tt.answer
				for range tt.parts {
					n := (len(card) + tt.parts - 2) / max(tt.parts-1, 1) // what is behind the card comes last
					n = min(n, len(rest))
					_, _ = io.WriteString(w, rest[:n])
					_ = http.NewResponseController(w).Flush()
					rest = rest[n:]
				}
				_, _ = io.WriteString(w, rest)
			})
			f := newFile(t, "https://a.example.com")
			s := newSidecar(t, "a.example.com", "http://127.0.0.1:1", f.tune)
			h := ofRun("run-of-the-host-1")
			maps.Copy(h, tt.header)
			method := tt.method
			if method == "" {
				method = http.MethodGet
			}
			if got := fetch(t, s.client(), method, "http://"+to+tt.path, h); method == http.MethodGet && got != tt.answer {
				t.Errorf("the host gets %.200q, want %.200q", got, tt.answer)
			}
			if tt.want != "" && asked.Get("Accept-Encoding") != "" {
				t.Errorf("the card was asked for in %s", asked.Get("Accept-Encoding"))
			}
			s.handled.wait(t)
			f.stop()
			receipts := f.ofRun(t, "run-of-the-host-1")
			if len(receipts) == 0 && tt.want == "" {
				return
			}
			if len(receipts) != 1 || tt.want == "" {
				t.Fatalf("receipts %v, want one: %v", toldOf(receipts), tt.want != "")
			}
			c := receipts[0].Claims
			g, _ := c.Extensions[peac.HandoffGroup].(map[string]any)
			if c.Type != peac.CardObserved || g["card_ref"] != evidence.CardRef([]byte(tt.answer)) ||
				fmt.Sprint(g["signature_observation"]) != "map[caller_reported_verification:not_checked present:"+tt.want+"]" {
				t.Errorf("%s %v, want the card %s, signed: %s", c.Type, g, evidence.CardRef([]byte(tt.answer)), tt.want)
			}
			if got, want := toldOf(receipts), []string{"egress a2a 0: org.peacprotocol/a2a-agent-card-observation ok"}; !slices.Equal(got, want) {
				t.Errorf("%v, want %v", got, want)
			}
		})
	}
}

// TestEvidenceOfAHandoff has the states of a task name both agents by their cards as
// these were received, however the states are heard of, and no agent that a card does
// not speak for.
func TestEvidenceOfAHandoff(t *testing.T) {
	var own string
	host := peer(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, own)
	})
	own = cardAt("a", "http://"+host+"/a2a") + "\n"
	task := func(state string) string {
		return ok(`{"kind":"task","id":"` + theTask + `","contextId":"c","status":{"state":"` + state + `"}}`)
	}
	send, poll := rpc("message/send", `{"message":{"messageId":"m"}}`), rpc("tasks/get", `{"id":"`+theTask+`"}`)
	for _, tt := range []struct {
		name     string
		unknown  bool                          // the host's card was not seen
		below    string                        // the path that it stands below
		card     func(at, other string) string // of the callee, or of another, at the callee's place
		from     string                        // where it is fetched: "" from the callee, else from another
		to       bool                          // the callee's card is named
		handoffs bool
	}{
		{name: "a card below a path of the host's", below: "/agents/another", card: func(at, _ string) string { return cardAt("b", at+"/a2a") }},
		{name: "both", card: func(at, _ string) string { return cardAt("b", "b.example.com:50051", "::", at+"/other", at+"/a2a/") }, to: true, handoffs: true},
		{name: "the host's alone", handoffs: true},
		{name: "the callee's alone", unknown: true, card: func(at, _ string) string { return cardAt("b", at+"/a2a") }},
		{name: "of another agent there", card: func(at, _ string) string { return cardAt("b", at+"/b") }, handoffs: true},
		{name: "of another host", card: func(at, _ string) string { return cardAt("b", at+"/a2a") }, from: "another", handoffs: true},
		{name: "for another host", card: func(_, other string) string { return cardAt("b", other+"/a2a") }, handoffs: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var card, answer string
			does := func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				if r.Method == http.MethodGet {
					_, _ = io.WriteString(w, card)
					return
				}
				_, _ = io.WriteString(w, answer)
			}
			callee, other := "http://"+peer(t, does), "http://"+peer(t, does)
			f := newFile(t, "https://a.example.com")
			s := newSidecar(t, "a.example.com", "http://"+host, f.tune)
			if !tt.unknown {
				if got := fetch(t, http.DefaultClient, http.MethodGet, s.ingress.URL+tt.below+peac.CardPath, http.Header{}); got == own || !strings.Contains(got, s.ingress.Listener.Addr().String()) {
					t.Fatalf("the card %s is not that of ingress", got)
				}
				s.handled.wait(t)
			}
			if tt.card != nil {
				card = tt.card(callee, other)
				at := callee
				if tt.from != "" {
					at = other
				}
				fetch(t, s.client(), http.MethodGet, at+peac.CardPath, ofRun("another-run-of-it"))
				s.handled.wait(t)
			}
			for i, q := range []string{send, poll, poll, poll} {
				answer = task([]string{"submitted", "working", "working", "completed"}[i])
				post(t, s.client(), callee+"/a2a", q, ofRun("run-of-the-host-1"))
			}
			s.handled.wait(t)
			f.stop()
			receipts := f.ofRun(t, "run-of-the-host-1")
			want := []string{"egress a2a 0: completed ongoing, delegated ongoing, submitted ongoing, working ongoing"}
			if diff := cmp.Diff(want, toldOf(receipts)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			from, to := map[string]any{"card_ref": evidence.CardRef([]byte(own))}, map[string]any{"card_ref": evidence.CardRef([]byte(card))}
			n := 0
			for _, r := range receipts {
				g, there := r.Claims.Extensions[peac.HandoffGroup].(map[string]any)
				if !there {
					continue
				}
				n++
				if diff := cmp.Diff(any(from), g["from_agent"]); diff != "" {
					t.Errorf("from (-want +got):\n%s", diff)
				}
				if _, named := g["to_agent"]; named != tt.to || named && !cmp.Equal(any(to), g["to_agent"]) {
					t.Errorf("to %v, want %v: %v", g["to_agent"], to, tt.to)
				}
			}
			if want := map[bool]int{true: 3}[tt.handoffs]; n != want {
				t.Errorf("%d receipts of a handoff, want %d", n, want)
			}
		})
	}
}

// TestAgentAddress has a call be known as one to the address that the agent's card
// gives for its binding.
func TestAgentAddress(t *testing.T) {
	for _, tt := range []struct{ method, path, body, want string }{
		{http.MethodPost, "/a2a", rpc("SendMessage", `{"message":{"messageId":"m"}}`), "/a2a"},
		{http.MethodPost, "/", rpc("SendMessage", `{"message":{"messageId":"m"}}`), ""},
		{http.MethodPost, "/rest/message:send", `{"message":{"messageId":"m"}}`, "/rest"},
		{http.MethodPost, "/rest/v1/message:stream", `{"message":{"messageId":"m"}}`, "/rest"},
		{http.MethodPost, "/message:send", `{"message":{"messageId":"m"}}`, ""},
	} {
		s := assemble(t, ancestry.NewMemory(), "a.example.com", "http://127.0.0.1:1")
		r, err := http.NewRequestWithContext(t.Context(), tt.method, "https://B.example.com"+tt.path, strings.NewReader(tt.body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		got := s.begin(egress, r)
		got.outgoing(r)
		if at := got.agent(); at != "b.example.com:443"+tt.want {
			t.Errorf("POST %s is to %s, want b.example.com:443%s", tt.path, at, tt.want)
		}
		got.end(r)
	}
}
