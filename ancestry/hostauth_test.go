package ancestry_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/wopproxy/wopproxy/ancestry"
)

// reply answers every request alike; headers are "Name: value".
func reply(status int, body string, headers ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		for _, s := range headers {
			name, value, _ := strings.Cut(s, ": ")
			w.Header().Set(name, value)
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

// hostAPI returns an API in mode host, the middleware of it, in front of host.
func hostAPI(t testing.TB, host http.HandlerFunc, o ancestry.APIOptions) http.Handler {
	t.Helper()
	srv := httptest.NewServer(host)
	t.Cleanup(srv.Close)
	up, err := url.Parse(srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	if o.Upstream != nil {
		up.Path, up.RawPath = o.Upstream.Path, o.Upstream.RawPath
	}
	o.Auth, o.Upstream = ancestry.AuthHost, up
	return newAPI(t, o).Wrap(behind)
}

func TestHostAuthAnswers(t *testing.T) {
	const own = `{"error":"not_found","message":"run not found"}`
	for _, tt := range []struct {
		name, path string
		host       http.HandlerFunc
		headers    []string
		status     int
		want       map[string]string // headers; "" means absent
		body       string            // "" means not compared
	}{
		{name: "shown", path: "/v1/runs/root-1/ancestry", host: reply(200, `{"status":"completed","nested":{"runId":"x"},"runId":"root-1"}`),
			status: 200, body: `{"runId":"root-1","hostId":"self.example.com/agent","parent":null}`},
		{name: "known to the host only", path: "/v1/runs/unheard-of/ancestry", host: reply(200, `{"runId":"unheard-of"}`),
			status: 200, body: `{"runId":"unheard-of","hostId":"self.example.com/agent","parent":null}`},
		{name: "bare id, bound by the host", path: "/runs/root-000000000000001/ancestry", host: reply(200, `{"runId":"acme/root-000000000000001"}`),
			headers: []string{"OpenWOP-Version: 2"}, status: 200,
			want: map[string]string{"OpenWOP-Version": "2.0"},
			body: `{"runId":"acme/root-000000000000001","hostId":"self.example.com/agent","parent":null}`},
		{name: "bare id, bound by the host, link found by the bound one", path: "/runs/child-0000000000001/ancestry", host: reply(200, `{"runId":"acme/child-0000000000001"}`),
			headers: []string{"OpenWOP-Version: 2"}, status: 200,
			body: `{"runId":"acme/child-0000000000001","hostId":"self.example.com/agent","parent":{"runId":"globex/parent-000000000001","hostId":"globex.example","wellKnownUrl":"https://globex.example/.well-known/openwop","cause":"a2a-message"}}`},
		{name: "bare id, known to the host only", path: "/runs/unheard-of-000001/ancestry", host: reply(200, `{"runId":"acme/unheard-of-000001"}`),
			headers: []string{"OpenWOP-Version: 2"}, status: 200,
			body: `{"runId":"acme/unheard-of-000001","hostId":"self.example.com/agent","parent":null}`},
		{name: "another run shown", path: "/v1/runs/root-1/ancestry", host: reply(200, `{"runId":"root-2"}`), status: 503},
		{name: "a page for every path", path: "/v1/runs/root-1/ancestry", host: reply(200, `<html>`), status: 503},
		{name: "an object without a run", path: "/v1/runs/root-1/ancestry", host: reply(200, `{"ok":true}`), status: 503},
		{name: "an endless snapshot", path: "/v1/runs/root-1/ancestry", status: 503,
			host: reply(200, `{"log":"`+strings.Repeat("x", 5<<20)+`","runId":"root-1"}`)},
		{name: "401 with challenge and envelope", path: "/v1/runs/root-1/ancestry",
			host:   reply(401, `{"error":"unauthenticated","message":"who?","details":{"correlationId":"c1"}}`, `WWW-Authenticate: Bearer resource_metadata="https://x"`),
			status: 401, want: map[string]string{"WWW-Authenticate": `Bearer resource_metadata="https://x"`},
			body: `{"error":"unauthenticated","message":"who?","details":{"correlationId":"c1"}}`},
		{name: "401 without either", path: "/v1/runs/root-1/ancestry", host: reply(401, `no`), status: 401,
			want: map[string]string{"WWW-Authenticate": "Bearer"}, body: `{"error":"unauthenticated","message":"refused by the host"}`},
		{name: "403 of the right major", path: "/runs/acme~2Fchild-0000000000001/ancestry", headers: []string{"OpenWOP-Version: 2"},
			host:   reply(403, `{"error":"id_tenant_mismatch","message":"not yours"}`, "OpenWOP-Version: 2.3"),
			status: 403, want: map[string]string{"OpenWOP-Version": "2.3", "WWW-Authenticate": ""},
			body: `{"error":"id_tenant_mismatch","message":"not yours"}`},
		{name: "403 with too many members", path: "/v1/runs/root-1/ancestry", host: reply(403, `{"error":"e","message":"m","stack":"secret"}`),
			status: 403, body: `{"error":"forbidden","message":"refused by the host"}`},
		{name: "403 with a huge envelope", path: "/v1/runs/root-1/ancestry", host: reply(403, `{"error":"e","message":"m"}`+strings.Repeat(" ", 64<<10)),
			status: 403, body: `{"error":"forbidden","message":"refused by the host"}`},
		{name: "403 as text", path: "/v1/runs/root-1/ancestry", host: reply(403, `{"error":"e","message":"m"}`, "Content-Type: text/plain"),
			status: 403, body: `{"error":"forbidden","message":"refused by the host"}`},
		{name: "404 never bears a challenge", path: "/v1/runs/root-1/ancestry", host: reply(404, ``, "WWW-Authenticate: Bearer"),
			status: 404, want: map[string]string{"WWW-Authenticate": ""}, body: own},
		{name: "400", path: "/runs/root-1/ancestry", host: reply(400, `{"error":"validation_error","message":"no tenant"}`), status: 400,
			body: `{"error":"validation_error","message":"no tenant"}`},
		{name: "redirect is not followed", path: "/v1/runs/root-1/ancestry", host: func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/yes" {
				reply(200, `{"runId":"root-1"}`)(w, r)
				return
			}
			reply(302, ``, "Location: /yes")(w, r)
		}, status: 503},
		{name: "500", path: "/v1/runs/root-1/ancestry", host: reply(500, `{"error":"internal_error","message":"secret"}`), status: 503,
			body: `{"error":"service_unavailable","message":"the host could not be asked whether you may read this run"}`},
		{name: "429 keeps Retry-After", path: "/runs/root-1/ancestry", headers: []string{"OpenWOP-Version: 2"}, host: reply(429, ``, "Retry-After: 7"), status: 503,
			want: map[string]string{"Retry-After": "7", "OpenWOP-Version": "2.0"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			resp := ask(hostAPI(t, tt.host, ancestry.APIOptions{}), tt.path, tt.headers...)
			if resp.StatusCode != tt.status {
				t.Errorf("status = %d, want %d", resp.StatusCode, tt.status)
			}
			if got := body(t, resp); tt.body != "" && got != tt.body {
				t.Errorf("body = %s\nwant   %s", got, tt.body)
			}
			for name, want := range tt.want {
				if got := resp.Header.Get(name); got != want {
					t.Errorf("%s = %q, want %q", name, got, want)
				}
			}
		})
	}
}

func TestHostAuthAsksAsTheCaller(t *testing.T) {
	for _, tt := range []struct {
		name, path, base string
		want             string // request line at the host
	}{
		{"as it was sent", "/v1/runs/root-1/ancestry", "", "/v1/runs/root-1"},
		{"percent-encoded stays", "/v1/runs/acme%2Fchild-0000000000001/ancestry", "", "/v1/runs/acme%2Fchild-0000000000001"},
		{"projected stays, also in lower case", "/runs/acme~2fchild-0000000000001/ancestry", "", "/runs/acme~2fchild-0000000000001"},
		{"minted id becomes the alias, projected", "/runs/" + string(minted) + "/ancestry", "", "/runs/acme~2Fchild-0000000000001"},
		{"minted id becomes the alias, escaped", "/v1/runs/" + string(minted) + "/ancestry", "", "/v1/runs/acme%2Fchild-0000000000001"},
		{"behind a base path", "/v1/runs/root-1/ancestry", "/a%2Fb/", "/a%2Fb/v1/runs/root-1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			base, _ := url.Parse(tt.base)
			var got *http.Request
			h := hostAPI(t, func(_ http.ResponseWriter, r *http.Request) { got = r }, ancestry.APIOptions{Upstream: base})
			ask(h, tt.path, "Authorization: Bearer a", "Authorization: Bearer b", "Cookie: c=1", "Traceparent: x", "X-Api-Key: k")
			if got == nil || got.Method != http.MethodGet || got.RequestURI != tt.want {
				t.Fatalf("the host was asked %+v, want GET %s", got, tt.want)
			}
			want := http.Header{"Authorization": {"Bearer a", "Bearer b"}, "Cookie": {"c=1"}, "Accept": {"application/json"}}
			for _, name := range []string{"User-Agent", "Accept-Encoding"} { // the transport's own
				got.Header.Del(name)
			}
			if diff := cmp.Diff(want, got.Header); diff != "" {
				t.Errorf("headers (-want +got):\n%s", diff)
			}
			if got.Host != "example.com" {
				t.Errorf("Host = %q, want the caller's", got.Host)
			}
		})
	}
}

// TestHostAuthLeadsToTheHostAlone: whatever a request says, the question goes to the
// configured address, with its credentials.
func TestHostAuthLeadsToTheHostAlone(t *testing.T) {
	const elsewhere = "169.254.169.254"
	for _, tt := range []struct{ target, host, header string }{
		{"/v1/runs/root-1/ancestry", elsewhere, ""},
		{"http://" + elsewhere + "/v1/runs/root-1/ancestry", elsewhere, ""},
		{"/v1/runs/root-1/ancestry", "a", "X-Forwarded-Host: " + elsewhere},
		{"/v1/runs/root-1/ancestry", "a", "Forwarded: host=" + elsewhere},
		{"/v1/runs/@" + elsewhere + "/ancestry", "a", ""},
		{"/v1/runs/http:%2F%2F" + elsewhere + "%2F/ancestry", "a", ""},
		{"/runs/%2F%2F" + elsewhere + "/ancestry", "a", ""},
	} {
		asked := 0
		h := hostAPI(t, func(w http.ResponseWriter, r *http.Request) { asked++; reply(404, `{}`)(w, r) }, ancestry.APIOptions{})
		r := httptest.NewRequest(http.MethodGet, tt.target, nil)
		r.Host = tt.host
		if name, value, ok := strings.Cut(tt.header, ": "); ok {
			r.Header.Set(name, value)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != http.StatusNotFound || asked != 1 {
			t.Errorf("%s for %s: %d %s, and the host was asked %d times, want its 404", tt.target, tt.host, w.Code, w.Body, asked)
		}
	}
}

// A run that the host cannot know must look, to all but the token's bearer,
// like a run that nobody knows.
func TestRunsTheHostCannotKnow(t *testing.T) {
	const secret = ancestry.RunID("run_01JD0000000000000000000009")
	reader := links{list: []ancestry.Link{{Run: secret}, {Run: minted, Alias: "the-hosts"}}}
	host := func(w http.ResponseWriter, r *http.Request) {
		reply(404, fmt.Sprintf(`{"error":"not_found","message":"no run","details":{"auth":%q}}`, r.Header.Get("Authorization")))(w, r)
	}
	h := hostAPI(t, host, ancestry.APIOptions{Reader: reader, Bearer: func() string { return "ours" }})
	path := "/v1/runs/" + string(secret) + "/ancestry"
	resp, unknown := ask(h, path, "Authorization: Bearer other"), ask(h, "/v1/runs/run_01JD0000000000000000000008/ancestry", "Authorization: Bearer other")
	got, want := body(t, resp), body(t, unknown)
	resp.Header.Del("Date")
	unknown.Header.Del("Date")
	if resp.StatusCode != 404 || unknown.StatusCode != 404 || got != want || !cmp.Equal(resp.Header, unknown.Header) {
		t.Errorf("unreadable: %d %v %s; unknown: %d %v %s; want the same 404",
			resp.StatusCode, resp.Header, got, unknown.StatusCode, unknown.Header, want)
	}
	if got := ask(h, path, "Authorization: Bearer ours").StatusCode; got != 200 {
		t.Errorf("with the token: status = %d, want 200", got)
	}
	if got := ask(h, "/v1/runs/other/ancestry", "Authorization: Bearer ours").StatusCode; got != 404 {
		t.Errorf("with the token, a run that only the host knows: status = %d, want the host's 404", got)
	}
	// An A2A task, say, which the host has under another address.
	if got := ask(h, "/v1/runs/the-hosts/ancestry", "Authorization: Bearer ours").StatusCode; got != 200 {
		t.Errorf("with the token, a run that the host can't be asked for: status = %d, want 200", got)
	}
	none := hostAPI(t, host, ancestry.APIOptions{Reader: reader})
	if got := ask(none, path, "Authorization: Bearer ").StatusCode; got != 404 {
		t.Errorf("no token configured: status = %d, want 404", got)
	}
}

// pipeHost is a transport to a host in the same synctest bubble.
type pipeHost func(*http.Request) (*http.Response, error)

func (f pipeHost) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestHostAuthRemembersGrants(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int32
		status := http.StatusOK
		h := newAPI(t, ancestry.APIOptions{Auth: ancestry.AuthHost, Upstream: &url.URL{Scheme: "http", Host: "host"},
			Transport: pipeHost(func(r *http.Request) (*http.Response, error) {
				w := httptest.NewRecorder()
				if path.Base(r.URL.Path) == "ancestry" { // not the question that is remembered
					reply(http.StatusNotFound, "")(w, r)
					return w.Result(), nil
				}
				asked.Add(1)
				reply(status, fmt.Sprintf(`{"runId":%q}`, path.Base(r.URL.Path)))(w, r)
				return w.Result(), nil
			})}).Wrap(behind)
		target := "/v1/runs/root-1/ancestry"
		expect := func(what string, n int32, headers ...string) {
			t.Helper()
			asked.Store(0)
			ask(h, target, headers...)
			if got := asked.Load(); got != n {
				t.Errorf("%s: the host was asked %d times, want %d", what, got, n)
			}
		}
		expect("first", 1, "Authorization: Bearer a")
		time.Sleep(5*time.Second - time.Nanosecond)
		expect("same credentials, just within 5 s", 0, "Authorization: Bearer a")
		expect("other credentials", 1, "Authorization: Bearer b")
		expect("same text in another header", 1, "Cookie: Bearer a")
		expect("none", 1)
		for _, target = range []string{"/v1/runs/plain/ancestry", "/runs/root-1/ancestry", "http://other.example/v1/runs/root-1/ancestry"} {
			expect(target, 1, "Authorization: Bearer a")
		}
		target = "/v1/runs/root-1/ancestry"
		time.Sleep(time.Nanosecond)
		expect("at 5 s", 1, "Authorization: Bearer a")

		status = http.StatusForbidden
		expect("refused", 1, "Authorization: Bearer c")
		expect("refusals are not remembered", 1, "Authorization: Bearer c")

		status = http.StatusOK
		for i := range 10_001 { // more than fit
			ask(h, "/v1/runs/root-1/ancestry", fmt.Sprintf("Cookie: n=%d", i))
		}
		expect("the newest of many", 0, "Cookie: n=10000")
		expect("the oldest of too many", 1, "Cookie: n=0")
	})
}

func TestHostAuthGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewRegistry()
		h := newAPI(t, ancestry.APIOptions{Auth: ancestry.AuthHost, Upstream: &url.URL{Scheme: "http", Host: "host"}, Registerer: reg,
			Transport: pipeHost(func(r *http.Request) (*http.Response, error) {
				<-r.Context().Done()
				return nil, r.Context().Err()
			})}).Wrap(behind)
		begin := time.Now()
		if got := ask(h, "/v1/runs/root-1/ancestry").StatusCode; got != 503 {
			t.Errorf("status = %d, want 503", got)
		}
		if d := time.Since(begin); d != 5*time.Second {
			t.Errorf("gave up after %v, want 5s", d)
		}
		const want = `
# HELP wopproxy_ancestry_host_checks_total Questions to the host whether a caller may read a run, by verdict.
# TYPE wopproxy_ancestry_host_checks_total counter
wopproxy_ancestry_host_checks_total{verdict="unreachable"} 1
`
		if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "wopproxy_ancestry_host_checks_total"); err != nil {
			t.Error(err)
		}
	})
}

func TestHostGone(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ln.Close()
	h := newAPI(t, ancestry.APIOptions{Auth: ancestry.AuthHost, Upstream: &url.URL{Scheme: "http", Host: ln.Addr().String()}}).Wrap(behind)
	if got := ask(h, "/v1/runs/root-1/ancestry").StatusCode; got != 503 {
		t.Errorf("status = %d, want 503", got)
	}
}
