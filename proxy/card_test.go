package proxy

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// documentHost is a host that answers everything alike.
type documentHost struct {
	addr   string
	answer atomic.Pointer[given]
	asked  chan *http.Request // the requests that have come
}

// given is an answer of the host.
type given struct {
	status int
	header http.Header
	body   string // the host's address stands as HOST in it
}

func newDocumentHost(t testing.TB) *documentHost {
	h := &documentHost{asked: make(chan *http.Request, 1)}
	h.addr = peer(t, func(w http.ResponseWriter, r *http.Request) {
		select {
		case h.asked <- r:
		case <-r.Context().Done():
			return
		}
		d := h.answer.Load()
		maps.Copy(w.Header(), d.header)
		w.WriteHeader(d.status)
		if r.Method != http.MethodHead {
			_, _ = io.WriteString(w, strings.ReplaceAll(d.body, "HOST", h.addr))
		}
	})
	return h
}

// says makes the host answer 200 with body and headers: name, value, …
func (h *documentHost) says(body string, header ...string) {
	d := &given{http.StatusOK, http.Header{"Content-Type": {"application/json"}}, body}
	for i := 0; i < len(header); i += 2 {
		d.header.Set(header[i], header[i+1])
	}
	h.answer.Store(d)
}

// fetch asks the ingress as a caller who knows the host as agents.example.com,
// and returns what the caller and what the host were given.
func (h *documentHost) fetch(t testing.TB, s *sidecar, method, path string, header ...string) (resp *http.Response, body string, asked *http.Request) {
	t.Helper()
	var in io.Reader
	if method == http.MethodPost {
		in = strings.NewReader(extended)
	}
	req, err := http.NewRequestWithContext(t.Context(), method, s.ingress.URL+path, in)
	if err != nil {
		t.Fatal(err)
	}
	req.Host = "agents.example.com"
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Add(header[i], header[i+1])
	}
	if resp, err = direct(t).RoundTrip(req); err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	asked = receive(t, h.asked, "the request")
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(b), asked
}

const (
	wellKnown = "/.well-known/agent-card.json"
	plainCard = `{"name":"a","url":"http://HOST/a2a","capabilities":{}}`
	reachable = `{"name":"a","url":"http://agents.example.com/a2a","capabilities":{}}`
	otherCard = `{"name":"a","url":"https://elsewhere.example.com/a2a","capabilities":{}}`
	extended  = `{"jsonrpc":"2.0","id":1,"method":"GetExtendedAgentCard"}`
)

// cards is the series that counts cards by what became of them.
func cards(outcome string) string {
	return `wopproxy_agent_cards_total{outcome="` + outcome + `"}`
}

// A card is looked for where cards are served, under any base path, and nowhere
// else: what merely looks like one passes.
func TestWhereCardsAre(t *testing.T) {
	h := newDocumentHost(t)
	h.says(plainCard)
	s := newSidecar(t, "agent.example.com", "http://"+h.addr)
	for _, row := range []struct {
		method, path string
		header       []string
		card         bool
	}{
		{"GET", wellKnown, nil, true},
		{"GET", wellKnown + "?x=1", nil, true},
		{"GET", "/agents/a" + wellKnown, nil, true},
		{"GET", "/.well-known/agent.json", nil, true},
		{"GET", "/cards/agent.json", nil, true},
		{"GET", "/extendedAgentCard", nil, true},
		{"GET", "/tenant/extendedAgentCard", nil, true},
		{"GET", "/rest/v1/card", nil, true},
		{"GET", "/agent/authenticatedExtendedCard", nil, true},
		{"GET", "/planner.json", []string{"A2A-Version", "1.0"}, true},
		{"GET", "/planner.json", nil, false},
		{"GET", "/tasks/1", []string{"A2A-Version", "1.0"}, false},
		{"GET", "/v1/cards", nil, false},
		{"POST", wellKnown, nil, true}, // for its body
		{"PUT", wellKnown, nil, false},
		{"DELETE", wellKnown, nil, false},
	} {
		t.Run(row.method+row.path, func(t *testing.T) {
			if row.method == "POST" {
				h.says(`{"jsonrpc":"2.0","id":1,"result":` + plainCard + `}`)
				defer h.says(plainCard)
			}
			resp, got, _ := h.fetch(t, s, row.method, row.path, row.header...)
			if rewritten := strings.Contains(got, "http://agents.example.com/a2a"); rewritten != row.card {
				t.Errorf("card = %s, want rewritten = %v", got, row.card)
			}
			if resp.ContentLength != int64(len(got)) {
				t.Errorf("Content-Length = %d of %d bytes", resp.ContentLength, len(got))
			}
		})
	}
}

// Whatever the caller's conditions are, what it gets is what they ask for of the
// rewritten card: a tag is never that of a card it was not given.
func TestCardConditions(t *testing.T) {
	const old = "Mon, 02 Jan 2006 15:04:05 GMT"
	h := newDocumentHost(t)
	s := newSidecar(t, "agent.example.com", "http://"+h.addr)
	tag := func(header ...string) string {
		h.says(plainCard, header...)
		resp, _, _ := h.fetch(t, s, "GET", wellKnown)
		return resp.Header.Get("Etag")
	}
	strong, weak := tag("ETag", `"v1"`), tag("ETag", `W/"v1"`)
	if strong == `"v1"` || strong == "" || weak != "W/"+strong {
		t.Fatalf("tags of the rewritten card = %s, %s, want new ones, as strong as the host's", strong, weak)
	}
	if got := tag(); got != "" {
		t.Errorf("tag of a card that has none = %s", got)
	}
	whole := len(reachable)
	for _, row := range []struct {
		name   string
		method string // default GET
		body   string // default plainCard
		host   []string
		ask    []string
		status int
		want   string // the body; "-" for the whole rewritten card
	}{
		{name: "its tag", host: []string{"ETag", `"v1"`}, ask: []string{"If-None-Match", strong}, status: 304},
		{name: "its tag among others", host: []string{"ETag", `"v1"`}, ask: []string{"If-None-Match", `"a", W/` + strong}, status: 304},
		{name: "a weak tag", host: []string{"ETag", `W/"v1"`}, ask: []string{"If-None-Match", weak}, status: 304},
		{name: "any tag", host: []string{"ETag", `"v1"`}, ask: []string{"If-None-Match", "*"}, status: 304},
		{name: "the host's tag", host: []string{"ETag", `"v1"`}, ask: []string{"If-None-Match", `"v1"`}, status: 200, want: "-"},
		{name: "another tag", host: []string{"ETag", `"v2"`}, ask: []string{"If-None-Match", `"a"`}, status: 200, want: "-"},
		{name: "If-Match", host: []string{"ETag", `"v1"`}, ask: []string{"If-Match", strong}, status: 200, want: "-"},
		{name: "If-Match of the host's", host: []string{"ETag", `"v1"`}, ask: []string{"If-Match", `"v1"`}, status: 412},
		{name: "a date", host: []string{"Last-Modified", old}, ask: []string{"If-Modified-Since", old}, status: 200, want: "-"},
		{name: "a date of an unchanged card", body: otherCard, host: []string{"Last-Modified", old}, ask: []string{"If-Modified-Since", old}, status: 304},
		{name: "the tag of an unchanged card", body: otherCard, host: []string{"ETag", `"v1"`}, ask: []string{"If-None-Match", `"v1"`}, status: 304},
		{name: "range", host: []string{"Accept-Ranges", "bytes"}, ask: []string{"Range", "bytes=0-7"}, status: 206, want: reachable[:8]},
		{name: "range of an old card", host: []string{"Accept-Ranges", "bytes", "ETag", `"v1"`}, ask: []string{"Range", "bytes=0-7", "If-Range", `"v1"`}, status: 200, want: "-"},
		{name: "range behind the end", host: []string{"Accept-Ranges", "bytes"}, ask: []string{"Range", "bytes=5000-"}, status: 416, want: "invalid range: failed to overlap\n"},
		{name: "range of a host that has none", ask: []string{"Range", "bytes=0-7"}, status: 200, want: "-"},
		{name: "HEAD", method: "HEAD", host: []string{"ETag", `"v1"`}, status: 200},
		{name: "HEAD with its tag", method: "HEAD", host: []string{"ETag", `"v1"`}, ask: []string{"If-None-Match", strong}, status: 304},
	} {
		t.Run(row.name, func(t *testing.T) {
			if row.body == "" {
				row.body = plainCard
			}
			if row.method == "" {
				row.method = "GET"
			}
			h.says(row.body, append(row.host, "Cache-Control", "max-age=60", "Vary", "A2A-Version")...)
			ask := append(row.ask, "Accept-Encoding", "gzip", "A2A-Version", "1.0")
			resp, got, asked := h.fetch(t, s, row.method, wellKnown, ask...)
			want := row.want
			if want == "-" {
				want = reachable
			}
			if resp.StatusCode != row.status || got != want {
				t.Errorf("answer = %s %q, want %d %q", resp.Status, got, row.status, want)
			}
			if row.status == 200 || row.status == 304 {
				if cc, v := resp.Header.Get("Cache-Control"), resp.Header["Vary"]; cc != "max-age=60" || !slices.Equal(v, []string{"A2A-Version"}) {
					t.Errorf("Cache-Control, Vary = %q, %q, want the host's", cc, v)
				}
			}
			if lm := resp.Header.Get("Last-Modified"); lm != "" && row.body != otherCard {
				t.Errorf("Last-Modified = %s, want none: nobody knows", lm)
			}
			if row.method == "HEAD" && row.status == 200 && (resp.ContentLength != int64(whole) || resp.Header.Get("Etag") != strong) {
				t.Errorf("HEAD: length %d, tag %s, want what GET has: %d, %s", resp.ContentLength, resp.Header.Get("Etag"), whole, strong)
			}
			if asked.Method != "GET" || asked.Header.Get("A2A-Version") != "1.0" {
				t.Errorf("the host was asked %s with A2A-Version %q", asked.Method, asked.Header.Get("A2A-Version"))
			}
			for _, name := range documentConditions {
				if v := asked.Header[name]; v != nil {
					t.Errorf("the host was given %s: %q", name, v)
				}
			}
		})
	}
	s.wantSeries(t, "wopproxy_codec_panics_total", 0)
}

// What can't be read, or must not be changed, passes to the byte, and is counted.
func TestCardsThatPass(t *testing.T) {
	h := newDocumentHost(t)
	big := `{"name":"a","url":"http://HOST/a2a","capabilities":{},"pad":"` + strings.Repeat("x", 5<<20) + `"}`
	for _, row := range []struct {
		name, body string
		host, ask  []string
		status     int
		outcome    string // counted; "" for none
		limit      string // counted as well
	}{
		{name: "5 MB", body: big, outcome: "refused", limit: limitAnswer},
		{name: "5 MB of unknown length", body: big, host: []string{"Transfer-Encoding", "chunked"}, outcome: "refused", limit: limitAnswer},
		{name: "elsewhere", body: otherCard, outcome: "unchanged"},
		{name: "signed", body: strings.Replace(plainCard, "{", `{"signatures":[{}],`, 1), outcome: "signed"},
		{name: "no JSON", body: plainCard + "}", outcome: "refused"},
		{name: "HTML", body: "<html>HOST</html>", host: []string{"Content-Type", "text/html"}, outcome: "refused"},
		{name: "ambiguous", body: strings.Replace(plainCard, "{", `{"url":"x",`, 1), outcome: "refused"},
		{name: "too deep", body: strings.Replace(plainCard, "{}", strings.Repeat("[", 200)+strings.Repeat("]", 200), 1), outcome: "refused"},
		{name: "encoded all the same", body: plainCard, host: []string{"Content-Encoding", "br"}, outcome: "refused"},
		{name: "Content-Digest", body: plainCard, host: []string{"Content-Digest", "sha-256=:AAAA:"}, outcome: "refused"},
		{name: "Repr-Digest", body: plainCard, host: []string{"Repr-Digest", "sha-256=:AAAA:"}, outcome: "refused"},
		{name: "no-transform", body: plainCard, host: []string{"Cache-Control", "no-transform"}, outcome: "refused"},
		{name: "signed request", body: plainCard, ask: []string{"Accept-Encoding", "gzip", "Signature-Input", `s=("accept-encoding")`}, outcome: "refused"},
		{name: "404", body: plainCard, status: http.StatusNotFound},
		{name: "500", body: plainCard, status: http.StatusInternalServerError},
		{name: "no card", body: `{"url":"http://HOST/"}`},
		{name: "nothing", body: "", outcome: "refused"},
		{name: "stream", body: "data: " + plainCard + "\n\n", host: []string{"Content-Type", "text/event-stream"}},
	} {
		for _, method := range []string{"GET", "HEAD"} {
			t.Run(row.name+"/"+method, func(t *testing.T) {
				s := newSidecar(t, "agent.example.com", "http://"+h.addr)
				h.says(row.body, row.host...)
				d := *h.answer.Load()
				if len(row.host) > 0 && row.host[0] == "Content-Type" {
					d.header.Set("Content-Type", row.host[1])
				}
				if d.status = row.status; d.status == 0 {
					d.status = http.StatusOK
				}
				h.answer.Store(&d)
				resp, got, _ := h.fetch(t, s, method, wellKnown, row.ask...)
				want := strings.ReplaceAll(row.body, "HOST", h.addr)
				if method == "HEAD" {
					want = ""
				}
				if resp.StatusCode != d.status || got != want {
					t.Errorf("answer = %s %.200q, want %d %.200q", resp.Status, got, d.status, want)
				}
				for name := range d.header {
					if name != "Transfer-Encoding" && !slices.Equal(resp.Header[name], d.header[name]) {
						t.Errorf("%s = %q, want %q", name, resp.Header[name], d.header[name])
					}
				}
				s.handled.wait(t)
				for _, o := range []string{"rewritten", "stripped", "unchanged", "signed", "refused"} {
					want := 0.0
					if o == row.outcome {
						want = 1
					}
					s.wantSeries(t, cards(o), want)
				}
				if row.limit != "" {
					s.wantSeries(t, hit(row.limit), 1)
				}
				s.wantSeries(t, "wopproxy_codec_panics_total", 0)
			})
		}
	}
}

// TestDownloadsAreNoCards: what a caller of A2A gets that is no card comes as the
// host sends it, and as much of it as was asked for.
func TestDownloadsAreNoCards(t *testing.T) {
	rest := make(chan struct{})
	ranges := make(chan string, 1)
	host := peer(t, func(w http.ResponseWriter, r *http.Request) {
		ranges <- r.Method + " " + r.Header.Get("Range")
		w.Header().Set("Content-Type", "application/x-ndjson")
		_, _ = io.WriteString(w, "first\n")
		_ = http.NewResponseController(w).Flush()
		select {
		case <-rest:
		case <-r.Context().Done():
		}
	})
	s := newSidecar(t, "agent.example.com", "http://"+host, func(_ *Options, p *Policy) { p.BodyPatience = time.Hour })
	defer close(rest)
	for _, tt := range []struct{ method, ranges string }{{"GET", ""}, {"GET", "bytes=5-"}, {"HEAD", ""}} {
		r, err := http.NewRequestWithContext(t.Context(), tt.method, s.ingress.URL+"/artifacts/1", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("A2A-Version", "1.0")
		if tt.ranges != "" {
			r.Header.Set("Range", tt.ranges)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		resp, err := http.DefaultClient.Do(r.WithContext(ctx))
		if err != nil {
			t.Fatalf("%s %s: %v", tt.method, tt.ranges, err)
		}
		if first := make([]byte, len("first\n")); tt.method == "GET" {
			if _, err := io.ReadFull(resp.Body, first); err != nil {
				t.Errorf("%s %s: %v while the host waits, want what it has sent", tt.method, tt.ranges, err)
			}
		}
		if got, want := <-ranges, tt.method+" "+tt.ranges; got != want {
			t.Errorf("the host was asked %q, want %q", got, want)
		}
		_ = resp.Body.Close()
		cancel()
	}
}

// The policy says what is rewritten, to what, and may change while the proxy
// runs.
func TestCardPolicy(t *testing.T) {
	h := newDocumentHost(t)
	signed := strings.Replace(plainCard, "{", `{"signatures":[{}],`, 1)
	for _, row := range []struct {
		name, body, upstream, want string // of upstream the path
		policy                     Policy
		host                       string // the caller's Host
	}{
		{name: "as reached", body: plainCard, want: reachable},
		{name: "as reached by a port", body: plainCard, host: "127.0.0.1:8088", want: strings.Replace(reachable, "agents.example.com", "127.0.0.1:8088", 1)},
		{name: "no Host to speak of", body: plainCard, host: "a@b", want: plainCard},
		{name: "public", body: plainCard, policy: Policy{PublicURL: mustParse(t, "https://pub.example.com/planner/")},
			want: `{"name":"a","url":"https://pub.example.com/planner/a2a","capabilities":{}}`},
		{name: "public over gRPC", body: `{"name":"a","supportedInterfaces":[{"url":"HOST"}]}`, policy: Policy{PublicURL: mustParse(t, "https://pub.example.com/planner/")},
			want: `{"name":"a","supportedInterfaces":[{"url":"pub.example.com:443"}]}`},
		{name: "kept", body: plainCard, policy: Policy{KeepCards: true}, want: plainCard},
		{name: "own", body: otherCard, policy: Policy{OwnAddresses: func(a string) bool { return a == "elsewhere.example.com:443" }}, want: reachable},
		{name: "stripped", body: signed, policy: Policy{StripSignatures: true}, want: reachable},
		{name: "loopback by any name", body: strings.Replace(plainCard, "HOST", "localhost:PORT", 1), want: reachable},
		{name: "every interface", body: strings.Replace(plainCard, "HOST", "0.0.0.0:PORT", 1), want: reachable},
		{name: "IPv6", body: strings.Replace(plainCard, "HOST", "[::1]:PORT", 1), want: reachable},
		{name: "below a path", body: plainCard, upstream: "/a2a/", want: plainCard},
		{name: "in a path", body: strings.Replace(plainCard, "/a2a", "/agents/1/a2a/", 1), upstream: "/agents/1",
			want: strings.Replace(reachable, "/a2a", "/a2a/", 1)},
	} {
		t.Run(row.name, func(t *testing.T) {
			_, port, _ := strings.Cut(h.addr, ":")
			h.says(strings.ReplaceAll(row.body, "PORT", port))
			s := newSidecar(t, "agent.example.com", "http://"+h.addr+row.upstream)
			if err := s.SetPolicy(row.policy); err != nil {
				t.Fatal(err)
			}
			if row.host == "" {
				row.host = "agents.example.com"
			}
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.ingress.URL+wellKnown, nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Host = row.host
			resp, err := direct(t).RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			got, err := io.ReadAll(resp.Body)
			if err != nil {
				t.Fatal(err)
			}
			receive(t, h.asked, "the request")
			if want := strings.ReplaceAll(row.want, "HOST", h.addr); string(got) != want {
				t.Errorf("card = %s, want %s", got, want)
			}
			if resp.Header.Get("Content-Length") != strconv.Itoa(len(got)) {
				t.Errorf("Content-Length = %s of %d bytes", resp.Header.Get("Content-Length"), len(got))
			}
		})
	}
}

// The operator is told of a signed card once.
func TestSignedCardIsLoggedOnce(t *testing.T) {
	h := newDocumentHost(t)
	h.says(strings.Replace(plainCard, "{", `{"signatures":[{}],`, 1))
	var log bytes.Buffer
	s := newSidecar(t, "agent.example.com", "http://"+h.addr, func(o *Options, _ *Policy) {
		o.Logger = slog.New(slog.NewTextHandler(&log, nil))
	})
	for range 3 {
		h.fetch(t, s, "GET", wellKnown)
	}
	s.wantSeries(t, cards("signed"), 3)
	if n := strings.Count(log.String(), "ingress.agentCards.signed"); n != 1 {
		t.Errorf("log = %q, want one warning", log.String())
	}
}

func mustParse(t testing.TB, s string) *url.URL {
	t.Helper()
	u, err := url.Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return u
}
