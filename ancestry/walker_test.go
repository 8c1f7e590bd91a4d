package ancestry_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/wopproxy/wopproxy/ancestry"
)

// peer is one host: handlers by the escaped path, and what it was asked.
type peer struct {
	*httptest.Server
	mu   sync.Mutex
	seen []string
}

func newPeer(t testing.TB, h http.Handler) *peer {
	t.Helper()
	p := new(peer)
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.mu.Lock()
		p.seen = append(p.seen, strings.TrimRight(fmt.Sprintf("%s %s %s", r.RequestURI, r.Header.Get("OpenWOP-Version"), r.Header.Get("Authorization")), " "))
		p.mu.Unlock()
		h.ServeHTTP(w, r)
	}))
	t.Cleanup(p.Close)
	return p
}

func (p *peer) asked() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seen
}

func (p *peer) wellKnown() string { return p.URL + "/.well-known/openwop" }

// answer renders a run-ancestry-response; parent is JSON.
func answer(run, host, parent string) string {
	return fmt.Sprintf(`{"runId":%q,"hostId":%q,"parent":%s}`, run, host, parent)
}

func parentAt(run, host, wellKnown string) string {
	return fmt.Sprintf(`{"runId":%q,"hostId":%q,"cause":"a2a-message","wellKnownUrl":%q}`, run, host, wellKnown)
}

func walker(t testing.TB, o ancestry.WalkerOptions) *ancestry.Walker {
	t.Helper()
	w, err := ancestry.NewWalker(o)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// Three hosts answer through the read API itself: the first in 1.x, the second
// only in 2.x, the third, the front, behind a bearer token of its own.
func TestWalkToTheRoot(t *testing.T) {
	serve := func(o ancestry.APIOptions, id string, list ...ancestry.Link) *peer {
		o.Reader, o.HostID = links{list: list}, id
		o.Auth = ancestry.AuthNone
		if o.Bearer != nil {
			o.Auth = ancestry.AuthBearer
		}
		a, err := ancestry.NewAPI(o)
		if err != nil {
			t.Fatal(err)
		}
		return newPeer(t, a.Wrap(http.NotFoundHandler()))
	}
	front := serve(ancestry.APIOptions{Bearer: func() string { return "front-token" }}, "front.example",
		ancestry.Link{Run: "acme/front-root-0000001"})
	plan := ancestry.Link{Run: "run_01JD0000000000000000000007", Alias: "acme/plan-00000000000001", Chain: ancestry.Chain{Ancestors: []ancestry.Ancestor{
		{Run: "acme/front-root-0000001", Host: "front.example", WellKnown: front.wellKnown(), Cause: ancestry.CauseMCPToolCall}}}}
	planner := serve(ancestry.APIOptions{Versions: []string{"2.0"}}, "planner.example", plan,
		child("acme/work-00000000000001", ancestry.Ancestor{Run: "acme/plan-00000000000001", Host: "planner.example", Cause: ancestry.CauseSubWorkflow}))
	research := serve(ancestry.APIOptions{}, "research.example",
		child("task-9", ancestry.Ancestor{Run: "acme/work-00000000000001", Host: "planner.example", WellKnown: planner.wellKnown(), Cause: ancestry.CauseA2AMessage}),
		child("task-8", ancestry.Ancestor{Run: plan.Run, Host: "planner.example", WellKnown: planner.wellKnown(), Cause: ancestry.CauseA2AMessage}))

	w := walker(t, ancestry.WalkerOptions{Allow: []string{"127.0.0.0/8"}, Bearer: map[string]string{
		front.URL: "front-token", research.URL: "research-token"}})
	got, err := w.Walk(t.Context(), research.URL+"/", "task-9")
	if err != nil {
		t.Fatal(err)
	}
	want := ancestry.Walk{Stop: ancestry.StopRoot, Hops: []ancestry.Hop{
		{Run: "task-9", Host: "research.example", Base: research.URL, Confirmed: true},
		{Run: "acme/work-00000000000001", Host: "planner.example", Base: planner.URL, Cause: ancestry.CauseA2AMessage, Confirmed: true},
		{Run: "acme/plan-00000000000001", Host: "planner.example", Base: planner.URL, Cause: ancestry.CauseSubWorkflow, Confirmed: true},
		{Run: "acme/front-root-0000001", Host: "front.example", Base: front.URL, Cause: ancestry.CauseMCPToolCall, Confirmed: true},
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("walk (-want +got):\n%s", diff)
	}
	var drawn strings.Builder
	if err := got.WriteTree(&drawn); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(`acme/front-root-0000001  front.example
└─ mcp-tool-call → acme/plan-00000000000001  planner.example
   └─ core.subWorkflow → acme/work-00000000000001  planner.example
      └─ a2a-message → task-9  research.example
`, drawn.String()); diff != "" {
		t.Errorf("tree (-want +got):\n%s", diff)
	}
	for name, tt := range map[string]struct {
		p    *peer
		want []string
	}{
		"research": {research, []string{"/v1/runs/task-9/ancestry  Bearer research-token"}},
		"planner": {planner, []string{
			"/v1/runs/acme%2Fwork-00000000000001/ancestry", "/runs/acme~2Fwork-00000000000001/ancestry 2",
			"/v1/runs/acme%2Fplan-00000000000001/ancestry", "/runs/acme~2Fplan-00000000000001/ancestry 2"}},
		"front": {front, []string{"/v1/runs/acme%2Ffront-root-0000001/ancestry  Bearer front-token"}},
	} {
		if diff := cmp.Diff(tt.want, tt.p.asked()); diff != "" {
			t.Errorf("%s was asked (-want +got):\n%s", name, diff)
		}
	}

	// A peer that only knows the id our proxy minted is led to the bound one.
	got, err = w.Walk(t.Context(), research.URL, "task-8")
	if err != nil || got.Stop != ancestry.StopRoot || len(got.Hops) != 3 || got.Hops[1].Run != plan.Alias {
		t.Errorf("walk over a minted id = %+v, %v", got, err)
	}
}

func TestWalkStops(t *testing.T) {
	root := newPeer(t, reply(200, answer("p", "b.example", "null")))
	liar := newPeer(t, reply(200, answer("p", "liar.example", "null")))
	other := newPeer(t, reply(200, answer("q", "b.example", "null")))
	moved := newPeer(t, http.RedirectHandler(root.URL+"/v1/runs/p/ancestry", http.StatusFound))
	local := strings.Replace(root.URL, "127.0.0.1", "localhost", 1)
	secure := strings.Replace(root.URL, "http:", "https:", 1)
	up := func(wellKnown string) http.HandlerFunc {
		return reply(200, answer("r", "a.example", parentAt("p", "b.example", wellKnown)))
	}
	wk := "/.well-known/openwop"
	majors := func(one, two http.HandlerFunc) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if strings.HasPrefix(r.URL.Path, "/v1/") {
				one(w, r)
				return
			}
			two(w, r)
		}
	}
	endless := func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			_, _ = w.Write(make([]byte, 32<<10))
		}
	}

	for _, tt := range []struct {
		name  string
		host  http.HandlerFunc
		allow string
		want  ancestry.Stop
		hops  int // named by the walk, the first included
	}{
		{"root", reply(200, answer("r", "a.example", "null")), "", ancestry.StopRoot, 1},
		{"parent's root", up(root.wellKnown()), "127.0.0.1", ancestry.StopRoot, 2},
		{"404 in both majors", reply(404, ``), "", ancestry.StopNotFound, 1},
		{"406 in both majors", reply(406, ``), "", ancestry.StopNotFound, 1},
		{"404, then an id that 2.x does not have", majors(reply(404, ``), reply(400, ``)), "", ancestry.StopNotFound, 1},
		{"406, then an answer", majors(reply(406, ``), reply(200, answer("r", "a.example", "null"))), "", ancestry.StopRoot, 1},
		{"endless", endless, "", ancestry.StopInvalidAnswer, 1},
		{"401", reply(401, ``), "", ancestry.StopUnauthorized, 1},
		{"403", reply(403, ``), "", ancestry.StopForbidden, 1},
		{"500", reply(500, ``), "", ancestry.StopUnreachable, 1},
		{"429", reply(429, ``), "", ancestry.StopUnreachable, 1},
		{"400", reply(400, ``), "", ancestry.StopInvalidAnswer, 1},
		{"204", reply(204, ``), "", ancestry.StopInvalidAnswer, 1},
		{"redirect", reply(302, ``, "Location: "+root.URL), "127.0.0.1", ancestry.StopInvalidAnswer, 1},
		{"redirect of the parent's host", up(moved.wellKnown()), "127.0.0.1", ancestry.StopInvalidAnswer, 2},
		{"not JSON", reply(200, `<html>`), "", ancestry.StopInvalidAnswer, 1},
		{"huge", reply(200, answer("r", "a.example", "null")+strings.Repeat(" ", 64<<10)), "", ancestry.StopInvalidAnswer, 1},
		{"parent absent", reply(200, `{"runId":"r","hostId":"a.example"}`), "", ancestry.StopInvalidAnswer, 1},
		{"unknown member", reply(200, `{"runId":"r","hostId":"a.example","parent":null,"depth":1}`), "", ancestry.StopInvalidAnswer, 1},
		{"member in another case", reply(200, `{"RunId":"r","hostId":"a.example","parent":null}`), "", ancestry.StopInvalidAnswer, 1},
		{"empty hostId", reply(200, answer("r", "", "null")), "", ancestry.StopInvalidAnswer, 1},
		{"run id with control characters", reply(200, answer("r", "a.example", parentAt("p\n", "b.example", root.wellKnown()))), "", ancestry.StopInvalidAnswer, 1},
		{"unknown cause", reply(200, answer("r", "a.example", `{"runId":"p","hostId":"a.example","cause":"magic"}`)), "", ancestry.StopInvalidAnswer, 1},
		{"null wellKnownUrl", reply(200, answer("r", "a.example", `{"runId":"p","hostId":"b.example","cause":"a2a-message","wellKnownUrl":null}`)), "", ancestry.StopInvalidAnswer, 1},
		{"unknown member of parent", reply(200, answer("r", "a.example", `{"runId":"p","hostId":"a.example","cause":"core.dispatch","x":1}`)), "", ancestry.StopInvalidAnswer, 1},
		{"about another run", reply(200, answer("other", "a.example", "null")), "", ancestry.StopInconsistent, 1},
		{"parent's host is another", up(liar.wellKnown()), "127.0.0.1", ancestry.StopInconsistent, 2},
		{"parent's host speaks of another run", up(other.wellKnown()), "127.0.0.1", ancestry.StopInconsistent, 2},
		{"own parent", reply(200, answer("r", "a.example", `{"runId":"r","hostId":"a.example","cause":"core.dispatch"}`)), "", ancestry.StopLoop, 1},
		{"no URL", reply(200, answer("r", "a.example", `{"runId":"p","hostId":"b.example","cause":"a2a-message"}`)), "", ancestry.StopNoWellKnownURL, 2},
		{"relative URL", up(wk), "", ancestry.StopInvalidAnswer, 1},
		{"not a well-known URL", up(root.URL + "/elsewhere"), "127.0.0.1", ancestry.StopInvalidAnswer, 2},
		{"file", up("file:///etc" + wk), "", ancestry.StopNotAllowed, 2},
		{"userinfo", up("https://user:pass@" + strings.TrimPrefix(root.URL, "http://") + wk), "127.0.0.1", ancestry.StopNotAllowed, 2},
		{"userinfo that looks like a host", up("https://a.example@127.0.0.1" + wk), "127.0.0.1", ancestry.StopNotAllowed, 2},
		{"query", up(root.URL + "/?x=" + wk), "127.0.0.1", ancestry.StopNotAllowed, 2},
		{"fragment", up(root.URL + "/#" + wk), "127.0.0.1", ancestry.StopNotAllowed, 2},
		{"http, not listed", up(root.wellKnown()), "", ancestry.StopNotAllowed, 2},
		{"http, listed at another port", up(root.wellKnown()), "127.0.0.1:1", ancestry.StopNotAllowed, 2},
		{"http by name, its network listed", up(local + wk), "127.0.0.0/8", ancestry.StopNotAllowed, 2},
		{"http by name, listed", up(local + wk), "localhost", ancestry.StopRoot, 2},
		{"https to loopback", up(secure + wk), "", ancestry.StopNotAllowed, 2},
		{"https to a name that resolves to loopback", up(strings.Replace(local, "http:", "https:", 1) + wk), "", ancestry.StopNotAllowed, 2},
		{"https to the metadata service", up("https://169.254.169.254" + wk), "", ancestry.StopNotAllowed, 2},
		{"https to mapped loopback", up("https://[::ffff:127.0.0.1]" + wk), "", ancestry.StopNotAllowed, 2},
		{"https by name, its network listed", up(strings.Replace(local, "http:", "https:", 1) + wk), "127.0.0.0/8", ancestry.StopUnreachable, 2},
		{"https spoken to an http port", up(secure + wk), "127.0.0.1", ancestry.StopUnreachable, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := ancestry.WalkerOptions{}
			if tt.allow != "" {
				o.Allow = []string{tt.allow}
			}
			before := len(root.asked())
			got, err := walker(t, o).Walk(t.Context(), newPeer(t, tt.host).URL, "r")
			if err != nil {
				t.Fatal(err)
			}
			if got.Stop != tt.want || len(got.Hops) != tt.hops {
				t.Errorf("stop = %s (%s) after %d hops, want %s after %d", got.Stop, got.Detail, len(got.Hops), tt.want, tt.hops)
			}
			if last := got.Hops[len(got.Hops)-1]; last.Confirmed != (tt.want == ancestry.StopRoot || tt.want == ancestry.StopLoop) {
				t.Errorf("last hop = %+v, want it confirmed only if its host answered", last)
			}
			if got.Stop != ancestry.StopRoot && len(root.asked()) > before {
				t.Errorf("a host was asked that must not be: %q", root.asked()[before:])
			}
		})
	}
}

// Host a says that b is its parent's host, b says a is: the ring closes.
func TestWalkLoop(t *testing.T) {
	var a, b *peer
	a = newPeer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		reply(200, answer("r", "a.example", parentAt("p", "b.example", b.wellKnown())))(w, r)
	}))
	b = newPeer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		reply(200, answer("p", "b.example", parentAt("r", "a.example", a.wellKnown())))(w, r)
	}))
	got, err := walker(t, ancestry.WalkerOptions{Allow: []string{"127.0.0.1"}}).Walk(t.Context(), a.URL, "r")
	if err != nil || got.Stop != ancestry.StopLoop || len(got.Hops) != 2 || len(a.asked())+len(b.asked()) != 2 {
		t.Errorf("walk = %+v, %v; want a loop after 2 hops and 2 questions", got, err)
	}
}

// A host that names a new parent for every run is left at the limit.
func TestWalkTooDeep(t *testing.T) {
	for max, want := range map[int]int{0: 64, 3: 3} {
		endless := newPeer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			run := strings.Split(r.URL.Path, "/")[3]
			reply(200, answer(run, "a.example", fmt.Sprintf(`{"runId":"%sx","hostId":"a.example","cause":"core.dispatch"}`, run)))(w, r)
		}))
		got, err := walker(t, ancestry.WalkerOptions{MaxHops: max}).Walk(t.Context(), endless.URL, "r")
		if err != nil || got.Stop != ancestry.StopTooDeep || len(endless.asked()) != want || len(got.Hops) != want+1 {
			t.Errorf("MaxHops %d: stop = %s, %d questions, %d hops, %v; want too-deep after %d", max, got.Stop, len(endless.asked()), len(got.Hops), err, want)
		}
	}
}

func TestWalkTimesOut(t *testing.T) {
	for name, slow := range map[string]http.HandlerFunc{
		"no answer": func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
		"no end": func(w http.ResponseWriter, r *http.Request) {
			reply(200, `{`)(w, r)
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		},
	} {
		got, err := walker(t, ancestry.WalkerOptions{Timeout: 20 * time.Millisecond}).Walk(t.Context(), newPeer(t, slow).URL, "r")
		if err != nil || got.Stop != ancestry.StopTimeout {
			t.Errorf("%s: stop = %s, %v; want timeout", name, got.Stop, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := walker(t, ancestry.WalkerOptions{}).Walk(ctx, "http://127.0.0.1:1", "r"); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled walk: err = %v, want context.Canceled", err)
	}
}

func TestWalkOverTLS(t *testing.T) {
	srv := httptest.NewTLSServer(reply(200, answer("r", "a.example", "null")))
	defer srv.Close()
	roots := x509.NewCertPool()
	roots.AddCert(srv.Certificate())
	for name, tt := range map[string]struct {
		tls  *tls.Config
		want ancestry.Stop
	}{"trusted": {&tls.Config{RootCAs: roots}, ancestry.StopRoot}, "not trusted": {nil, ancestry.StopUnreachable}} {
		got, err := walker(t, ancestry.WalkerOptions{TLS: tt.tls}).Walk(t.Context(), srv.URL, "r")
		if err != nil || got.Stop != tt.want {
			t.Errorf("%s: stop = %s (%s), %v; want %s", name, got.Stop, got.Detail, err, tt.want)
		}
	}
}

func TestWalkerRefuses(t *testing.T) {
	for name, o := range map[string]ancestry.WalkerOptions{
		"bad allow":          {Allow: []string{"http://x"}},
		"negative hops":      {MaxHops: -1},
		"negative timeout":   {Timeout: -1},
		"bearer for a path":  {Bearer: map[string]string{"https://h/path": "t"}},
		"bearer for a name":  {Bearer: map[string]string{"h": "t"}},
		"bearer, user given": {Bearer: map[string]string{"https://u@h": "t"}},
	} {
		if _, err := ancestry.NewWalker(o); err == nil {
			t.Errorf("%s: NewWalker = nil error", name)
		}
	}
	for _, base := range []string{"", "h", "ftp://h", "https://u:p@h", "https://h?q=1"} {
		if _, err := walker(t, ancestry.WalkerOptions{}).Walk(t.Context(), base, "r"); err == nil {
			t.Errorf("Walk from %q = nil error", base)
		}
	}
}

func TestWalkJSON(t *testing.T) {
	k := ancestry.Walk{Stop: ancestry.StopNoWellKnownURL, Detail: "why", Hops: []ancestry.Hop{
		{Run: "r", Host: "a.example", Base: "https://a.example", Confirmed: true},
		{Run: "p", Host: "b.example", Cause: ancestry.CauseA2AMessage}}}
	got, err := json.Marshal(k)
	const want = `{"hops":[{"runId":"r","hostId":"a.example","base":"https://a.example","confirmed":true},` +
		`{"runId":"p","hostId":"b.example","cause":"a2a-message","confirmed":false}],"stop":"no-well-known-url","detail":"why"}`
	if err != nil || string(got) != want {
		t.Errorf("JSON = %s, %v\nwant   %s", got, err, want)
	}
}

func TestWriteTreeOfABrokenWalk(t *testing.T) {
	k := ancestry.Walk{Stop: ancestry.StopUnauthorized, Detail: "\x1b[2Jhttps://b wants a credential", Hops: []ancestry.Hop{
		{Run: "r", Host: "a.example", Confirmed: true},
		{Run: "p\x9b31m", Host: "b\u202e.example", Cause: ancestry.CauseA2AMessage}}}
	var got bytes.Buffer
	if err := k.WriteTree(&got); err != nil {
		t.Fatal(err)
	}
	const want = `? ("unauthorized: \x1b[2Jhttps://b wants a credential")
└─ "p\x9b31m"  "b\u202e.example"  (unconfirmed)
   └─ a2a-message → r  a.example
`
	if diff := cmp.Diff(want, got.String()); diff != "" {
		t.Errorf("tree (-want +got):\n%s", diff)
	}
}

func ExampleWalker_Walk() {
	host := httptest.NewServer(reply(200, answer("task-9", "research.example", "null")))
	defer host.Close()
	w, err := ancestry.NewWalker(ancestry.WalkerOptions{})
	if err != nil {
		panic(err)
	}
	walk, err := w.Walk(context.Background(), host.URL, "task-9")
	if err != nil {
		panic(err)
	}
	u, _ := url.Parse(walk.Hops[0].Base)
	fmt.Println(walk.Stop, u.Scheme, walk.Hops[0].Host)
	// Output: root http research.example
}
