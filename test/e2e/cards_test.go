package e2e

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2asrv"
)

// TestCardsLeadThroughIngress pins that a client that takes everything from the
// card calls through ingress, though the agent's card gives the agent's own
// address: also when it has taken the extended card, and for no other reason
// than that cards are rewritten.
func TestCardsLeadThroughIngress(t *testing.T) {
	for _, b := range overHTTP { // over gRPC the extended card passes as it is
		for _, rewrite := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/rewrite=%v", b.name, rewrite), func(t *testing.T) {
				p := newPeer(t, "callee.example.com", settings{"ingress.agentCards.rewrite": rewrite})
				p.does("work", finish)
				c, err := p.dial(t.Context(), direct, b)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := ask(t.Context(), c, say("work")); err != nil {
					t.Fatal(err)
				}
				extended, err := c.GetExtendedAgentCard(t.Context(), &a2a.GetExtendedAgentCardRequest{})
				if err != nil {
					t.Fatal(err)
				}
				base, grpc := p.host, p.grpc
				if rewrite {
					base, grpc = p.ingress, p.ingress
				}
				for n, i := range extended.SupportedInterfaces {
					if want := bindings[n].url(base, grpc); i.URL != want {
						t.Errorf("URL in the extended card = %s, want %s", i.URL, want)
					}
				}
				if _, err := c.GetTask(t.Context(), &a2a.GetTaskRequest{ID: a2a.TaskID(p.lastTurn(t).task)}); err != nil {
					t.Fatal(err)
				}
				_, wire := p.seen()
				if len(wire) != 4 { // card, message, extended card, task
					t.Errorf("requests that reached the agent = %d, want 4", len(wire))
				}
				want := 1.0 // the card itself
				if rewrite {
					want = 4
					p.awaitMetric(t, 2, "wopproxy_agent_cards_total", `outcome="rewritten"`)
				}
				p.awaitMetric(t, want, "wopproxy_exchanges_total", `direction="ingress"`)
			})
		}
	}
}

// TestCardsOverHTTP pins what caches and careful clients rely on: a second look
// costs no body, HEAD tells what GET would, and a card too large to be read comes
// as it is, while everything else goes on.
func TestCardsOverHTTP(t *testing.T) {
	big := false
	host := serveHost(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("ETag", `"v1"`)
		w.Header().Set("Vary", "A2A-Version")
		pad := ""
		if big {
			pad = strings.Repeat("x", 5<<20)
		}
		fmt.Fprintf(w, `{"name":"a","capabilities":{},"url":"http://%s/a2a","pad":"%s"}`, r.Context().Value(http.LocalAddrContextKey), pad)
	}))
	s := start(t, "callee.example.com", host, settings{"ingress.publicUrl": "https://agents.example.com/callee"})
	ask := func(method, tag string) (*http.Response, string) {
		req, err := http.NewRequestWithContext(t.Context(), method, s.ingress+a2asrv.WellKnownAgentCardPath, nil)
		if err != nil {
			t.Fatal(err)
		}
		if tag != "" {
			req.Header.Set("If-None-Match", tag)
		}
		resp, body := answerTo(t, req)
		return resp, string(body)
	}
	const want = `{"name":"a","capabilities":{},"url":"https://agents.example.com/callee/a2a","pad":""}`
	first, body := ask(http.MethodGet, "")
	tag := first.Header.Get("ETag")
	if body != want || tag == "" || tag == `"v1"` || first.Header.Get("Vary") != "A2A-Version" {
		t.Errorf("card = %s with tag %s and Vary %q, want %s with a tag of its own", body, tag, first.Header.Get("Vary"), want)
	}
	if again, body := ask(http.MethodGet, tag); again.StatusCode != http.StatusNotModified || body != "" || again.Header.Get("ETag") != tag {
		t.Errorf("the second time: %s, tag %s, %q, want 304 and tag %s", again.Status, again.Header.Get("ETag"), body, tag)
	}
	if other, body := ask(http.MethodGet, `"v1"`); other.StatusCode != http.StatusOK || body != want {
		t.Errorf("with the agent's own tag: %s, want 200: that card is another one", other.Status)
	}
	if head, _ := ask(http.MethodHead, ""); head.ContentLength != int64(len(want)) || head.Header.Get("ETag") != tag {
		t.Errorf("HEAD: length %d, tag %s, want %d, %s", head.ContentLength, head.Header.Get("ETag"), len(want), tag)
	}
	big = true
	if resp, body := ask(http.MethodGet, ""); len(body) < 5<<20 || !strings.Contains(body, `"url":"`+host+`/a2a"`) || resp.Header.Get("ETag") != `"v1"` {
		t.Errorf("card of 5 MB: %d bytes, tag %s, want it as the agent has made it", len(body), resp.Header.Get("ETag"))
	}
	s.awaitMetric(t, 1, "wopproxy_agent_cards_total", `outcome="refused"`)
	s.awaitMetric(t, 1, "wopproxy_limit_hits_total", `limit="inspected-answer"`)
	big = false
	if _, body := ask(http.MethodGet, ""); body != want {
		t.Errorf("card after that = %s, want %s", body, want)
	}
}

// TestCardsFollowTheFile pins that what becomes of cards can change while the
// program runs.
func TestCardsFollowTheFile(t *testing.T) {
	p := newPeer(t, "callee.example.com")
	url := func() string {
		card, err := p.fetchCard(context.Background(), direct)
		if err != nil {
			t.Fatal(err)
		}
		return card.SupportedInterfaces[0].URL
	}
	if got, want := url(), p.ingress+bindings[0].path; got != want {
		t.Errorf("URL in the card = %s, want %s", got, want)
	}
	reload := func(more string) {
		text, err := os.ReadFile(p.file)
		if err != nil {
			t.Fatal(err)
		}
		write(t, p.file, strings.Replace(string(text), `"ingress": {`, `"ingress": {`+more, 1))
	}
	reload(`"publicUrl": "https://agents.example.com/x",`)
	eventually(t, "the card gives the public URL", func() bool { return url() == "https://agents.example.com/x"+bindings[0].path })
	reload(`"agentCards": {"rewrite": false},`)
	eventually(t, "the card is as the agent made it", func() bool { return url() == p.host+bindings[0].path })
}
