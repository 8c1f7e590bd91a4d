package proxy

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/wopproxy/wopproxy/ancestry"
	"github.com/wopproxy/wopproxy/proxy/internal/attribution"
	"github.com/wopproxy/wopproxy/proxy/internal/wire"
)

const goodAncestry = `"run-p";host="caller.example.com";cause=mcp-tool-call`

// repeated is n copies of a list member, each with its number in the place of %d.
func repeated(n int, member string) string {
	var b strings.Builder
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, member, i)
	}
	return b.String()
}

// badContexts are trace contexts that do not validate: none of them may become
// anybody's parent.
var badContexts = []struct {
	name  string
	lines []string
}{
	{"upper case", []string{"Traceparent: " + strings.ToUpper(traced)}},
	{"version ff", []string{"Traceparent: ff" + traced[2:]}},
	{"trace of zeros", []string{"Traceparent: 00-00000000000000000000000000000000-00f067aa0ba902b7-01"}},
	{"span of zeros", []string{"Traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01"}},
	{"all zero", []string{"Traceparent: 00-00000000000000000000000000000000-0000000000000000-00"}},
	{"too long for version 00", []string{"Traceparent: " + traced + "-x"}},
	{"too short", []string{"Traceparent: " + traced[:54]}},
	{"no hex", []string{"Traceparent: " + strings.Replace(traced, "4bf9", "zzzz", 1)}},
	{"empty", []string{"Traceparent: "}},
	{"two fields", []string{"Traceparent: " + traced, "Traceparent: " + traced}},
	{"two in one field", []string{"Traceparent: " + traced + ", " + traced}},
	{"with a tracestate of its own", []string{"Traceparent: garbage", "Tracestate: a=b"}},
	{"100 KB", []string{"Traceparent: " + strings.Repeat("0", 100<<10)}},
}

// sendRaw sends a message with header lines as they are spelt, and returns what
// arrived and the answer.
func sendRaw(t *testing.T, c *rawConn, last <-chan seen, to, target, body string, lines ...string) (seen, *http.Response) {
	t.Helper()
	c.send("POST " + target + " HTTP/1.1\nHost: " + to + "\nContent-Type: application/json\nContent-Length: " +
		fmt.Sprint(len(body)) + "\n" + strings.Join(append(lines, ""), "\n") + "\n" + body)
	resp := c.answer(http.MethodPost)
	if resp.StatusCode != http.StatusOK {
		return seen{}, resp
	}
	return receive(t, last, "the request"), resp
}

// A context that does not validate is as good as none: a new trace begins, and it
// is counted. A plain request keeps what it has.
func TestHostileContexts(t *testing.T) {
	last := make(chan seen, 1)
	to := target(t, last)
	for _, row := range badContexts {
		t.Run(row.name, func(t *testing.T) {
			s := newSidecar(t, "agent.example.com", "http://"+to)
			got, _ := sendRaw(t, dialRaw(t, s.ingress.URL), last, to, "/mcp", call, row.lines...)
			links := s.recorded(t)
			if len(links) != 1 {
				t.Fatalf("%d runs, want 1", len(links))
			}
			l := links[0]
			tp := wire.TraceContext{TraceID: wire.TraceID(l.Trace), SpanID: wire.SpanID(l.Span), Flags: wire.FlagSampled}.Traceparent()
			if l.Trace.IsZero() || strings.HasPrefix(l.Trace.String(), "4bf92f35") || !l.ParentSpan.IsZero() || l.Parent() != nil {
				t.Errorf("link = %+v, want a trace of its own and no parent", l)
			}
			if !slices.Equal(got.head["Traceparent"], []string{tp}) || !strings.Contains(string(got.body), tp) {
				t.Errorf("Traceparent = %q, body %s, want %s in both", got.head["Traceparent"], got.body, tp)
			}
			if state := got.head.Get("Tracestate"); !strings.HasPrefix(state, "wop=") || strings.Contains(state, ",") {
				t.Errorf("Tracestate = %q, want our member alone", state)
			}
			s.wantSeries(t, `wopproxy_contexts_total{carrier="header",direction="ingress",outcome="invalid"}`, 1)
			if n := total(s.series(t), "wopproxy_contexts_total"); n != 1 {
				t.Errorf("%v contexts are counted, want 1", n)
			}

			plain, _ := sendRaw(t, dialRaw(t, s.ingress.URL), last, to, "/other", `{}`, row.lines...)
			var lines []string
			for _, name := range []string{"Traceparent", "Tracestate"} {
				for _, v := range plain.head[name] {
					lines = append(lines, name+": "+v)
				}
			}
			if diff := cmp.Diff(row.lines, lines); diff != "" {
				t.Errorf("plain request (-sent +arrived):\n%s", diff)
			}
		})
	}
}

// On the way out the same holds: the call goes on in its run's trace.
func TestHostileContextsOut(t *testing.T) {
	last := make(chan seen, 1)
	to := target(t, last)
	for _, row := range badContexts {
		t.Run(row.name, func(t *testing.T) {
			s := newSidecar(t, "agent.example.com", "http://"+to)
			post(t, http.DefaultClient, s.ingress.URL+"/chat", "{}", nil)
			chat := receive(t, last, "the run to begin")
			got, _ := sendRaw(t, dialRaw(t, s.egress.URL), last, to, "http://"+to+"/mcp", call, row.lines...)
			if want := chat.head["Traceparent"]; !slices.Equal(got.head["Traceparent"], want) || got.head["Tracestate"] != nil {
				t.Errorf("Traceparent = %q, Tracestate = %q, want %q and none", got.head["Traceparent"], got.head["Tracestate"], want)
			}
			s.wantSeries(t, `wopproxy_contexts_total{carrier="header",direction="egress",outcome="invalid"}`, 1)
		})
	}
}

// A tracestate or baggage that does not validate is dropped as a whole; the
// traceparent beside it counts.
func TestHostileCompanions(t *testing.T) {
	last := make(chan seen, 1)
	to := target(t, last)
	for _, row := range []struct {
		name  string
		lines []string
	}{
		{"40 members", []string{"Tracestate: " + repeated(40, "k%d=v")}},
		{"a key twice", []string{"Tracestate: a=1,b=2,a=3"}},
		{"a key twice in two fields", []string{"Tracestate: a=1", "Tracestate: a=1"}},
		{"no value", []string{"Tracestate: a"}},
		{"upper-case key", []string{"Tracestate: A=1"}},
		{"100 KB of tracestate", []string{"Tracestate: a=" + strings.Repeat("x", 100<<10)}},
		{"100 KB of baggage", []string{"Baggage: a=" + strings.Repeat("x", 100<<10)}},
		{"200 members of baggage", []string{"Baggage: " + repeated(200, "k%d=v")}},
		{"baggage that is none", []string{`Baggage: "quoted`}},
		{"baggage beyond ASCII", []string{"Baggage: a=\xff"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := newSidecar(t, "agent.example.com", "http://"+to)
			lines := append([]string{"Traceparent: " + traced}, row.lines...)
			got, _ := sendRaw(t, dialRaw(t, s.ingress.URL), last, to, "/mcp", call, lines...)
			links := s.recorded(t)
			if len(links) != 1 || links[0].Trace.String() != traced[3:35] || !slices.Equal(got.head["Traceparent"], []string{traced}) {
				t.Errorf("links = %+v, Traceparent = %q, want the trace of %s", links, got.head["Traceparent"], traced)
			}
			if state := got.head["Tracestate"]; len(state) != 1 || !strings.HasPrefix(state[0], "wop=") || strings.Contains(state[0], ",") {
				t.Errorf("Tracestate = %.100q, want our member alone", state)
			}
			if got.head["Baggage"] != nil {
				t.Errorf("Baggage = %.100q, want none", got.head["Baggage"])
			}

			plain, _ := sendRaw(t, dialRaw(t, s.ingress.URL), last, to, "/other", `{}`, lines...)
			var arrived []string
			for _, name := range []string{"Traceparent", "Tracestate", "Baggage"} {
				for _, v := range plain.head[name] {
					arrived = append(arrived, name+": "+v)
				}
			}
			if diff := cmp.Diff(lines, arrived); diff != "" {
				t.Errorf("plain request (-sent +arrived):\n%.500s", diff)
			}
		})
	}
}

// An ancestry that does not validate as a whole names nobody. The call passes, the
// host gets the header as it was sent, and one counter says so.
func TestHostileAncestry(t *testing.T) {
	last := make(chan seen, 1)
	to := target(t, last)
	for _, row := range []struct {
		name   string
		values []string
		reason string
	}{
		{"garbage", []string{"garbage; of no; kind"}, reasonInvalid},
		{"empty", []string{""}, reasonNoAncestry},
		{"no host", []string{`"run-p";cause=mcp-tool-call`}, reasonInvalid},
		{"no cause", []string{`"run-p";host="h"`}, reasonInvalid},
		{"another cause", []string{`"run-p";host="h";cause=because`}, reasonInvalid},
		{"cause as a string", []string{`"run-p";host="h";cause="mcp-tool-call"`}, reasonInvalid},
		{"a token", []string{`run-p;host="h";cause=mcp-tool-call`}, reasonInvalid},
		{"an inner list", []string{`("run-p");host="h";cause=mcp-tool-call`}, reasonInvalid},
		{"run id with a space", []string{`"run p";host="h";cause=mcp-tool-call`}, reasonInvalid},
		{"run id of dots", []string{`"..";host="h";cause=mcp-tool-call`}, reasonInvalid},
		{"run id of 300 bytes", []string{`"` + strings.Repeat("x", 300) + `";host="h";cause=mcp-tool-call`}, reasonInvalid},
		{"empty run id", []string{`"";host="h";cause=mcp-tool-call`}, reasonInvalid},
		{"beyond ASCII", []string{`"ü";host="h";cause=mcp-tool-call`}, reasonInvalid},
		{"wk of another scheme", []string{`"r";host="h";cause=mcp-tool-call;wk="file:///etc/passwd"`}, reasonInvalid},
		{"wk with a password", []string{`"r";host="h";cause=mcp-tool-call;wk="https://u:p@h/"`}, reasonInvalid},
		{"a good one and a bad one", []string{goodAncestry, "garbage="}, reasonInvalid},
		{"65 members", []string{repeated(65, `"r%d";host="h";cause=mcp-tool-call`)}, reasonInvalid},
		{"100 KB", []string{`"r";host="h";cause=mcp-tool-call;x="` + strings.Repeat("x", 100<<10) + `"`}, reasonInvalid},
		{"64 KB in fields", slices.Repeat([]string{goodAncestry}, 1500), reasonInvalid},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := newSidecar(t, "agent.example.com", "http://"+to)
			var lines []string
			for _, v := range row.values {
				lines = append(lines, "Run-Ancestry: "+v)
			}
			got, resp := sendRaw(t, dialRaw(t, s.ingress.URL), last, to, "/mcp", call, lines...)
			if diff := cmp.Diff(row.values, got.head["Run-Ancestry"]); diff != "" {
				t.Errorf("Run-Ancestry (-sent +arrived):\n%.500s", diff)
			}
			links := s.recorded(t)
			if len(links) != 1 || links[0].Parent() != nil || links[0].Evidence != "" || links[0].Reason != row.reason {
				t.Errorf("links = %+v, want one without parent because of %s", links, row.reason)
			}
			want := "absent"
			if row.reason == reasonInvalid {
				want = "invalid"
			}
			if n := total(s.series(t), "wopproxy_ancestry_headers_total"); n != 1 {
				t.Errorf("%v ancestries are counted, want 1", n)
			}
			if row.name != "empty" { // whether that counts as one is of no interest
				s.wantSeries(t, fmt.Sprintf("wopproxy_ancestry_headers_total{outcome=%q}", want), 1)
			}
			if id, host, err := ancestry.ParseRunIDHeader(resp.Header["Run-Id"]); err != nil || host != "agent.example.com" || id != links[0].Run {
				t.Errorf("Run-Id = %q, %v, want that of the run: the caller has asked", resp.Header["Run-Id"], err)
			}
		})
	}
}

// In a message an ancestry or a context of the wrong type or form counts for
// nothing, either.
func TestHostileMessages(t *testing.T) {
	last := make(chan seen, 1)
	to := target(t, last)
	for _, meta := range []string{
		`"traceparent":{}`, `"traceparent":7`, `"traceparent":null`, `"traceparent":["` + traced + `"]`,
		`"traceparent":"` + strings.ToUpper(traced) + `"`, `"traceparent":"` + strings.Repeat("0", 10000) + `"`,
		`"tracestate":"a=b"`, `"baggage":"a=b"`,
		`"dev.wopproxy/run-ancestry":"garbage;"`, `"dev.wopproxy/run-ancestry":7`, `"dev.wopproxy/run-ancestry":"\u0000"`,
	} {
		t.Run(meta[:min(len(meta), 60)], func(t *testing.T) {
			s := newSidecar(t, "agent.example.com", "http://"+to)
			got, _ := sendRaw(t, dialRaw(t, s.ingress.URL), last, to, "/mcp",
				`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","_meta":{`+meta+`,"progressToken":0}}}`)
			links := s.recorded(t)
			if len(links) != 1 || links[0].Parent() != nil || !links[0].ParentSpan.IsZero() {
				t.Fatalf("links = %+v, want one run that nobody has caused", links)
			}
			tp := got.head.Get("Traceparent")
			if !strings.Contains(string(got.body), `"traceparent":"`+tp+`"`) || !strings.Contains(string(got.body), `"progressToken":0`) {
				t.Errorf("body = %s, want %s in it and the rest as it was", got.body, tp)
			}
			if strings.Contains(string(got.body), `a=b`) {
				t.Errorf("body = %s: a companion without its traceparent has stayed", got.body)
			}
		})
	}
}

// Requests that HTTP itself forbids fail as they would without us, and nothing is
// recorded.
func TestForbiddenRequests(t *testing.T) {
	last := make(chan seen, 1)
	to := target(t, last)
	for _, row := range []struct {
		name, line string
		want       int
	}{
		{"megabytes of ancestry", "Run-Ancestry: " + strings.Repeat("x", 2<<20), http.StatusRequestHeaderFieldsTooLarge},
		{"a control character", "Run-Ancestry: \x01", http.StatusBadRequest},
		{"a NUL", "Traceparent: \x00", http.StatusBadRequest},
		{"a space in a name", "Trace parent: x", http.StatusBadRequest},
	} {
		for _, way := range rawWays[:2] {
			t.Run(way.name+"/"+row.name, func(t *testing.T) {
				s := newSidecar(t, "agent.example.com", "http://"+to)
				c, prefix := way.dial(t, s, to)
				go func() { // the server may answer and hang up before it has read all of it
					_, _ = fmt.Fprintf(c.Conn, "POST %s/mcp HTTP/1.1\r\nHost: %s\r\n%s\r\nContent-Length: 0\r\n\r\n", prefix, to, row.line)
				}()
				if resp := c.answer(http.MethodPost); resp.StatusCode != row.want {
					t.Errorf("answer = %s, want %d", resp.Status, row.want)
				}
				if n := len(s.noted()); n != 0 {
					t.Errorf("%d links were recorded, want none", n)
				}
			})
		}
	}
}

// What a callee answers is no more trusted than what a caller sends: an id that
// does not validate is not noted, and the answer passes without it.
func TestHostileRunIDs(t *testing.T) {
	for name, value := range map[string]string{
		"garbage":        "garbage",
		"no host":        `"r-1"`,
		"empty":          `""`,
		"a space":        `"r 1";host="h"`,
		"host of spaces": `"r-1";host="  "`,
		"60 KB":          `"` + strings.Repeat("x", 60<<10) + `";host="h"`,
		"a list":         `"r-1";host="h", "r-2";host="h"`,
	} {
		t.Run(name, func(t *testing.T) {
			to := peer(t, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Run-Id", value)
				fmt.Fprint(w, `{"jsonrpc":"2.0","id":1,"result":{}}`)
			})
			s := newSidecar(t, "agent.example.com", "http://"+to)
			resp, body := post(t, s.client(), "http://"+to+"/mcp", call, http.Header{"Run-Id": {"r-9"}})
			if resp.StatusCode != http.StatusOK || body != `{"jsonrpc":"2.0","id":1,"result":{}}` || resp.Header["Run-Id"] != nil {
				t.Errorf("answer = %s %v %q", resp.Status, resp.Header, body)
			}
			if n := s.noted(); len(n) != 0 {
				t.Errorf("noted %+v, want nothing", n)
			}
			s.wantSeries(t, `wopproxy_ancestry_headers_total{outcome="invalid"}`, 1)
		})
	}
}

// Whatever the host says of its own run does not pass on when it is no run id.
func TestHostileRunIDsFromTheHost(t *testing.T) {
	last := make(chan seen, 1)
	to := target(t, last)
	for _, value := range []string{"", "..", "a b", "ü", strings.Repeat("x", 300)} {
		t.Run(value[:min(len(value), 10)], func(t *testing.T) {
			s := newSidecar(t, "agent.example.com", "http://"+to)
			got, _ := sendRaw(t, dialRaw(t, s.egress.URL), last, to, "http://"+to+"/mcp", call, "Run-Id: "+value)
			if got.head["Run-Id"] != nil || got.head["Run-Ancestry"] != nil || string(got.body) != call {
				t.Errorf("headers = %v, body %s, want nothing of a run", got.head, got.body)
			}
			s.wantSeries(t, `wopproxy_abstentions_total{reason="no-live-run"}`, 1)
		})
	}
}

// parents counts the links that name a parent, and keeps none.
type parents struct {
	Recorder
	n int
}

func (p *parents) Record(l ancestry.Link) ancestry.Commit {
	if l.Parent() != nil || l.Host != "" {
		p.n++
	}
	return p.Recorder.Record(l)
}

// A million run ids that nobody has given out, in every place where one may stand,
// cost no memory that stays, and none of them becomes a parent. What the host says
// of its own runs is taken, and forgotten when it is sent.
func TestForgedRunIDs(t *testing.T) {
	const forged, members = 1_000_000, 60
	rec := &parents{}
	s := newSidecar(t, "agent.example.com", "http://127.0.0.1:1", unstored(t), func(o *Options, p *Policy) {
		rec.Recorder, o.Recorder = o.Recorder, rec
		o.Quarantine, o.MaxBindings, o.MaxTasks, o.MaxHandoffs = -1, 1000, 1000, 1000
		p.TrustCaller, p.Secret = netip.MustParsePrefix("198.51.100.0/24").Contains, "secret"
	})
	ids := 0
	next := func() string { ids++; return strconv.Itoa(ids) }
	list := func(last string) string {
		var b strings.Builder
		for range members {
			b.WriteString(`"` + next() + `";host="peer.example.com";cause=mcp-tool-call, `)
		}
		return b.String() + last
	}
	state := "wop=" + s.runs.State(&attribution.Run{First: "run-"})
	const in, out, chat, callee, stranger, friend = ingress, egress, "/chat", "http://peer/mcp", "192.0.2.1:1", "198.51.100.1:1"
	ways := []struct {
		dir       direction
		url, from string
		header    func(h http.Header)
		taken     bool // it is the host's word
	}{
		{in, chat, stranger, func(h http.Header) { h["Run-Ancestry"] = []string{list(goodAncestry)} }, false},
		{in, chat, friend, func(h http.Header) { h["Run-Ancestry"] = []string{list("garbage")} }, false},
		{in, chat, friend, func(h http.Header) { h["Run-Id"] = []string{next()} }, false},
		{in, "/other", friend, func(h http.Header) { h["Run-Id"] = []string{next()} }, false},
		{in, chat, friend, func(h http.Header) { h["Traceparent"], h["Tracestate"] = []string{traced}, []string{state + next()} }, false},
		{in, "/_run/" + next() + "/http://peer/mcp", friend, func(http.Header) {}, false},
		{out, callee, "", func(h http.Header) { h["Traceparent"], h["Tracestate"] = []string{traced}, []string{state + next()} }, false},
		{out, callee, "", func(h http.Header) { h["Run-Ancestry"] = []string{list(goodAncestry)} }, false},
		{out, callee, "", func(h http.Header) { h["Mcp-Session-Id"] = []string{next()} }, false},
		{out, callee, "", func(h http.Header) {
			h["Proxy-Authorization"] = []string{"Basic " + base64.StdEncoding.EncodeToString([]byte(next()+":guess"))}
		}, false},
		{out, callee, "", func(h http.Header) { h["Run-Id"] = []string{next()} }, true},
		{out, "/_run/", "", func(http.Header) {}, true},
	}
	var held uint64
	for i := 0; ids < forged; i++ {
		if ids > forged/5 && held == 0 {
			held = heap()
		}
		way := ways[i%len(ways)]
		if way.url == "/_run/" {
			way.url += next() + "/" + callee
		}
		r := httptest.NewRequest(http.MethodPost, way.url, nil)
		if way.header(r.Header); way.url != chat {
			r.Header.Set("Content-Type", "application/json")
			r.Body, r.ContentLength = io.NopCloser(strings.NewReader(call)), int64(len(call))
		}
		r.RemoteAddr = way.from
		run := s.passes(way.dir, r, []byte(`{"jsonrpc":"2.0","id":1,"result":{}}`))
		named := run != nil && string(run.ID()) == strconv.Itoa(ids)
		if named != way.taken || run != nil && run.Chain.Parent() != nil || way.dir == egress && run != nil && !way.taken {
			t.Fatalf("%s %s %v: the run is %+v", way.dir, way.url, r.Header, run)
		}
	}
	if after := heap(); after > held+12<<20 { // 15 bytes an id
		t.Errorf("%d bytes are held after %d ids, %d after a fifth of them", after, forged, held)
	}
	if live, bindings := s.runs.Len(); live != 0 || bindings > 1000 || rec.n != 0 {
		t.Errorf("%d live runs, %d bindings, %d links with a parent, want none but bindings", live, bindings, rec.n)
	}
}

// injections are run ids that try to be more than one.
var injections = []string{
	"r\r\nX-Evil: 1", "r\nX-Evil:1", "r\rX-Evil:1", "r\x00", "r\x7f", "r\u2028X-Evil:1", "ü", "r X-Evil:1",
	`r";host="evil",x="`, `r\`, `r\",evil;x="`, "r%0d%0aX-Evil:1", "r%22%2c", "r;evil=1,evil", "r~0D~0AX-Evil:1", "<!--r-->", "${r}",
}

// A run id that came from wherever one may come from stands in a header as what it
// is, or not at all: it ends no line, no string and no list.
func TestHeaderInjection(t *testing.T) {
	const message = `{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":{"message":{"messageId":"m"}}}`
	last := make(chan seen, 1)
	to := target(t, last)
	var says string // by the host
	host := peer(t, func(w http.ResponseWriter, r *http.Request) {
		last <- seen{head: r.Header.Clone()}
		w.Header().Set("Content-Type", "application/json")
		if strings.HasSuffix(r.URL.Path, "/runs") {
			w.WriteHeader(http.StatusCreated)
		}
		_, _ = io.WriteString(w, says)
	})
	// arrives has a run begin, and returns what the host and its caller were told.
	arrives := func(t *testing.T, s *sidecar, path, body string, lines ...string) (toHost, toCaller http.Header) {
		got, resp := sendRaw(t, dialRaw(t, s.ingress.URL), last, host, path, body, lines...)
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			t.Fatal(err)
		}
		s.handled.wait(t)
		return got.head, resp.Header
	}
	out := func(t *testing.T, s *sidecar, target string, lines ...string) http.Header {
		got, _ := sendRaw(t, dialRaw(t, s.egress.URL), last, to, target, call, lines...)
		return got.head
	}
	quoted := func(id string) string { return strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(id) }
	text := func(id string) string { b, _ := json.Marshal(id); return string(b) }
	for name, carrier := range map[string]func(t *testing.T, s *sidecar, id string) []http.Header{
		"runId of the host": func(t *testing.T, s *sidecar, id string) []http.Header {
			says = `{"runId":` + text(id) + `,"status":"running"}`
			resp, _ := post(t, http.DefaultClient, s.ingress.URL+"/v1/runs", `{"workflowId":"w"}`, http.Header{"Run-Ancestry": {goodAncestry}})
			toHost := receive(t, last, "the request").head
			s.handled.wait(t)
			return []http.Header{toHost, resp.Header, out(t, s, "http://"+to+"/mcp")}
		},
		"task id of the host": func(t *testing.T, s *sidecar, id string) []http.Header {
			says = `{"jsonrpc":"2.0","id":1,"result":{"task":{"id":` + text(id) + `,"contextId":"c","status":{"state":"TASK_STATE_WORKING"}}}}`
			toHost, toCaller := arrives(t, s, "/", message, "Run-Ancestry: "+goodAncestry)
			return []http.Header{toHost, toCaller, out(t, s, "http://"+to+"/mcp")}
		},
		"Run-Id": func(t *testing.T, s *sidecar, id string) []http.Header {
			if strings.ContainsAny(id, "\r\n\x00\x7f") {
				return nil // no request at all, see TestForbiddenRequests
			}
			return []http.Header{out(t, s, "http://"+to+"/mcp", "Run-Id: "+id)}
		},
		"base path": func(t *testing.T, s *sidecar, id string) []http.Header {
			if _, err := ancestry.ParseRunID(id); err != nil {
				c := dialRaw(t, s.egress.URL)
				c.send("GET /_run/" + url.PathEscape(id) + "/http://" + to + "/mcp HTTP/1.1\nHost: " + to + "\n\n")
				if resp := c.answer(http.MethodGet); resp.StatusCode != http.StatusBadGateway {
					t.Errorf("answer = %s, want 502", resp.Status)
				}
				return nil
			}
			return []http.Header{out(t, s, "/_run/"+url.PathEscape(id)+"/http://"+to+"/mcp")}
		},
		"credential": func(t *testing.T, s *sidecar, id string) []http.Header {
			if strings.Contains(id, ":") {
				id = strings.ReplaceAll(id, ":", "=") // which ends a user name
			}
			return []http.Header{out(t, s, "http://"+to+"/mcp", "Proxy-Authorization: Basic "+base64.StdEncoding.EncodeToString([]byte(id+":secret")))}
		},
		"Run-Ancestry": func(t *testing.T, s *sidecar, id string) []http.Header {
			if strings.ContainsAny(id, "\r\n\x00\x7f") {
				return nil
			}
			says = `{"runId":"run-1","status":"running"}`
			resp, _ := post(t, http.DefaultClient, s.ingress.URL+"/v1/runs", `{"workflowId":"w"}`, http.Header{"Run-Ancestry": {`"` + quoted(id) + `";host="h";cause=mcp-tool-call`}})
			receive(t, last, "the request")
			s.handled.wait(t)
			return []http.Header{resp.Header, out(t, s, "http://"+to+"/mcp")}
		},
		"ancestry in a message": func(t *testing.T, s *sidecar, id string) []http.Header {
			says = `{"jsonrpc":"2.0","id":1,"result":{"task":{"taskId":"task-1","status":"working"}}}`
			_, toCaller := arrives(t, s, "/mcp", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","task":{},"_meta":{"dev.wopproxy/run-ancestry":`+
				text(`"`+quoted(id)+`";host="h";cause=mcp-tool-call`)+`}}}`)
			return []http.Header{toCaller, out(t, s, "http://"+to+"/mcp")}
		},
	} {
		for _, id := range injections {
			t.Run(name+"/"+strconv.Quote(id), func(t *testing.T) {
				s := newSidecar(t, "agent.example.com", "http://"+host, func(_ *Options, p *Policy) { p.Secret = "secret" })
				for _, h := range carrier(t, s, id) {
					wantNoInjection(t, h, id)
				}
			})
		}
	}
}

// wantNoInjection checks that headers name no run but by an id that is one.
func wantNoInjection(t *testing.T, h http.Header, id string) {
	t.Helper()
	for name, values := range h {
		if strings.Contains(strings.ToLower(name), "evil") || len(values) > 1 {
			t.Errorf("%s = %q has come out of %q", name, values, id)
		}
	}
	known := func(run ancestry.RunID) bool {
		_, minted := run.Minted()
		return minted || run == "run-p" || run == "run-1" || run == "task-1" || string(run) == id || string(run) == strings.ReplaceAll(id, ":", "=")
	}
	chain, err := ancestry.ParseChain(h["Run-Ancestry"])
	if err != nil {
		t.Errorf("Run-Ancestry = %q: %v", h["Run-Ancestry"], err)
	}
	for _, a := range chain.Ancestors {
		if _, err := ancestry.ParseRunID(string(a.Run)); err != nil || !known(a.Run) || strings.Contains(a.Host, "evil") {
			t.Errorf("Run-Ancestry = %q names %+v", h["Run-Ancestry"], a)
		}
	}
	for _, v := range h["Run-Id"] {
		run, _, err := ancestry.ParseRunIDHeader([]string{v})
		if err != nil { // to the host it is the id alone
			run, err = ancestry.ParseRunID(v)
		}
		if err != nil || !known(run) {
			t.Errorf("Run-Id = %q names %q, %v", v, run, err)
		}
	}
}
