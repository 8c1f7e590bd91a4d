package proxy

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/wopproxy/wopproxy/ancestry/peac"
	"github.com/wopproxy/wopproxy/evidence"
)

// digests returns those that the one receipt of a workflow tells of.
func (f *file) digests(t testing.TB, workflow string) (request, response string) {
	t.Helper()
	receipts, _ := f.of(t, workflow)
	if len(receipts) != 1 {
		t.Fatalf("%v, want one receipt", toldOf(receipts))
	}
	g := receipts[0].Claims.Extensions[peac.ExchangeGroup].(map[string]any)
	tell := func(v any) string {
		d, ok := v.(map[string]any)
		if !ok {
			return ""
		}
		return fmt.Sprint(d["alg"], " ", d["value"])
	}
	return tell(g["request_digest"]), tell(g["response_digest"])
}

func sha256Of(body string) string {
	sum := sha256.Sum256([]byte(body))
	return hex.EncodeToString(sum[:])
}

// TestEvidenceOfBodies has both sides of a hop tell the same digests of what has passed
// between them, of what was read of it, and of nothing unless that is asked for.
func TestEvidenceOfBodies(t *testing.T) {
	short := ok(`{"content":[]}`)
	padded := func(n int) string { return ok(`{"content":[{"type":"text","text":"` + strings.Repeat("x", n) + `"}]}`) }
	asked := func(n int) string { return rpc("tools/call", `{"name":"search","pad":"`+strings.Repeat("y", n)+`"}`) }
	for _, tt := range []struct {
		name, request, answer string
		off, strict           bool
		header                http.Header // of the answer
		chunked               bool
		asked, told           string // alg, or none
	}{
		{name: "short", request: asked(0), answer: short, asked: "sha-256", told: "sha-256"},
		{name: "with more behind it", request: asked(0), answer: short + "\n\n", chunked: true, asked: "sha-256", told: "sha-256"},
		{name: "in lent memory", request: asked(20 << 10), answer: padded(20 << 10), asked: "sha-256", told: "sha-256"},
		{name: "long", request: asked(evidence.MaxBody), answer: padded(evidence.MaxBody), asked: "sha-256:trunc-1m", told: "sha-256:trunc-1m"},
		{name: "too long to be read", request: asked(5 << 20), answer: padded(5 << 20), told: "sha-256:trunc-1m"},
		{name: "a stream", request: asked(0), answer: "data: " + short + "\n\n", header: http.Header{"Content-Type": {"text/event-stream"}}, asked: "sha-256"},
		{name: "compressed", request: asked(0), answer: short, header: http.Header{"Content-Encoding": {"x-none"}}, asked: "sha-256"},
		{name: "not asked for", request: asked(0), answer: short, off: true},
		{name: "strict", request: asked(0), answer: short, strict: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			host := peer(t, func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				w.Header().Set("Content-Type", "application/json")
				maps.Copy(w.Header(), tt.header)
				if tt.chunked {
					_, _ = io.WriteString(w, strings.TrimSpace(tt.answer))
					_ = http.NewResponseController(w).Flush()
					_, _ = io.WriteString(w, tt.answer[len(strings.TrimSpace(tt.answer)):])
					return
				}
				_, _ = io.WriteString(w, tt.answer)
			})
			digests := func(o *evidence.Options) {
				o.Digests = !tt.off
				if tt.strict {
					o.Privacy = evidence.Strict
				}
			}
			fa, fb := newFile(t, "https://a.example.com", digests), newFile(t, "https://b.example.com", digests)
			b := newSidecar(t, "b.example.com", "http://"+host, fb.tune)
			a := newSidecar(t, "a.example.com", "http://127.0.0.1:1", fa.tune)
			h := ofRun("run-of-the-host-1")
			h.Set("Mcp-Method", "tools/call") // which says what it is where it is not read
			h.Set("Mcp-Protocol-Version", "2026-07-28")
			if _, got := post(t, a.client(), b.ingress.URL+"/mcp", tt.request, h); got != tt.answer {
				t.Errorf("the answer of %d bytes came as %d", len(tt.answer), len(got))
			}
			a.handled.wait(t)
			b.handled.wait(t)
			fa.stop()
			fb.stop()
			of := b.recorded(t)[0].Workflow
			inB, outB := fb.digests(t, of)
			inA, outA := inB, outB
			if tt.name != "too long to be read" { // then A does not know that it is a call
				inA, outA = fa.digests(t, fa.minter.Resume("run-of-the-host-1", "").Workflow)
			}
			alg := func(digest string) string { name, _, _ := strings.Cut(digest, " "); return name }
			if inA != inB || outA != outB || alg(inA) != tt.asked || alg(outA) != tt.told {
				t.Errorf("A tells of %q and %q, B of %q and %q, want %q and %q", inA, outA, inB, outB, tt.asked, tt.told)
			}
			if want := tt.answer[:min(len(tt.answer), evidence.MaxBody)]; tt.told != "" && outA != tt.told+" "+sha256Of(want) {
				t.Errorf("the answer's is %q, want %s", outA, sha256Of(want))
			}
		})
	}
}

// TestEvidenceOfBodiesWithAttachment has a receipt that rides on the answer tell the
// digest of what the host has said.
func TestEvidenceOfBodiesWithAttachment(t *testing.T) {
	answer := ok(`{"content":[]}`)
	host := peer(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, answer)
	})
	f := newFile(t, "https://b.example.com", func(o *evidence.Options) { o.Digests = true })
	s := newSidecar(t, "b.example.com", "http://"+host, f.tune, func(_ *Options, p *Policy) { p.AttachReceipts = true })
	_, got := post(t, http.DefaultClient, s.ingress.URL+"/mcp", call, benchMCP)
	s.handled.wait(t)
	f.stop()
	stored, _, err := f.Receipts(t.Context(), s.recorded(t)[0].Workflow, "", 10)
	if err != nil || len(stored) != 1 || !strings.Contains(got, stored[0].JWS) {
		t.Fatalf("%d receipts, %v, and the answer is %s", len(stored), err, got)
	}
	request, response := f.digests(t, s.recorded(t)[0].Workflow)
	if request != "sha-256 "+sha256Of(call) || response != "sha-256 "+sha256Of(answer) {
		t.Errorf("digests %s and %s", request, response)
	}
}

// TestEvidenceOfOtherBodies has no digest be of what is of neither protocol, and none be
// of what is compressed, whether receipts ride on answers or not.
func TestEvidenceOfOtherBodies(t *testing.T) {
	for _, tt := range []struct{ name, path, body, encoding, asked string }{
		{"HTTP", "/chat", `{}`, "", ""},
		{"HTTP, compressed", "/chat", `{}`, "br", ""},
		{"a run", "/v1/runs", `{"workflowId":"w"}`, "", ""},
		{"MCP, compressed", "/mcp", call, "br", "sha-256 " + sha256Of(call)},
	} {
		to := peer(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			if tt.encoding != "" {
				w.Header().Set("Content-Encoding", tt.encoding)
			}
			_, _ = io.WriteString(w, `{"runId":"run-0123456789abcdef","status":"pending"}`)
		})
		for _, attach := range []bool{false, true} {
			f := newFile(t, "https://agent.example.com", func(o *evidence.Options) { o.Digests = true })
			s := newSidecar(t, "agent.example.com", "http://"+to, f.tune, func(_ *Options, p *Policy) { p.AttachReceipts = attach })
			post(t, http.DefaultClient, s.ingress.URL+tt.path, tt.body, nil)
			s.handled.wait(t)
			f.stop()
			if asked, told := f.digests(t, s.recorded(t)[0].Workflow); asked != tt.asked || told != "" {
				t.Errorf("%s, attach %v: digests %q and %q, want %q and none", tt.name, attach, asked, told, tt.asked)
			}
		}
	}
}

// TestEvidenceOfLentBodies has a digest be of the body that was sent, also where the
// memory that it was made in is another's by the time that it is signed.
func TestEvidenceOfLentBodies(t *testing.T) {
	var late sync.Mutex
	f := newFile(t, "https://a.example.com", func(o *evidence.Options) {
		o.Digests = true
		o.Now = func() time.Time { late.Lock(); defer late.Unlock(); return time.Now() }
	})
	got := make(chan string, 10)
	to := peer(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got <- string(body)
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, ok(`{"content":[]}`))
	})
	s := newSidecar(t, "a.example.com", "http://127.0.0.1:1", f.tune)
	late.Lock()
	inTime := sync.OnceFunc(late.Unlock)
	t.Cleanup(inTime)
	sent := map[string]bool{}
	for _, text := range []string{"a", "b", "c", "d"} {
		post(t, s.client(), "http://"+to+"/mcp", rpc("tools/call", `{"name":"x","pad":"`+strings.Repeat(text, 20<<10)+`"}`), ofRun("run-of-the-host-1"))
		s.handled.wait(t)
		sent["sha-256 "+sha256Of(<-got)] = true
	}
	inTime()
	f.stop()
	for _, r := range f.ofRun(t, "run-of-the-host-1") {
		d := r.Claims.Extensions[peac.ExchangeGroup].(map[string]any)["request_digest"].(map[string]any)
		if told := fmt.Sprint(d["alg"], " ", d["value"]); !sent[told] {
			t.Errorf("%s was not sent, or was told of before", told)
		} else {
			delete(sent, told)
		}
	}
	if len(sent) > 0 {
		t.Errorf("%d bodies were sent and not told of", len(sent))
	}
}
