package ancestry_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/wopproxy/wopproxy/ancestry"
)

const (
	selfID = "self.example.com/agent"
	minted = ancestry.RunID("run_01JD0000000000000000000000")
	bound  = ancestry.RunID("acme/child-0000000000001")
)

// links is a Reader over a list. err, if set, is what every method returns.
type links struct {
	list []ancestry.Link
	err  error
}

func (s links) Lookup(_ context.Context, id ancestry.RunID) (ancestry.Link, error) {
	if s.err != nil {
		return ancestry.Link{}, s.err
	}
	for _, l := range s.list {
		if l.Run == id || l.Alias == id {
			return l, nil
		}
	}
	return ancestry.Link{}, ancestry.ErrNotFound
}

func (s links) Children(_ context.Context, id ancestry.RunID, after string, limit int) (page []ancestry.Link, next string, err error) {
	names := []ancestry.RunID{id}
	start, _ := strconv.Atoi(after)
	for i := range s.list {
		if l := &s.list[i]; l.Run == id || l.Alias == id {
			names = []ancestry.RunID{l.Run, l.Alias}
			break
		}
	}
	for i := start; i < len(s.list); i++ {
		a := s.list[i].Chain.Ancestors
		if len(a) == 0 || !slices.Contains(names, a[0].Run) {
			continue
		}
		if len(page) == limit {
			return page, strconv.Itoa(i), s.err
		}
		page = append(page, s.list[i])
	}
	return page, "", s.err
}

func (s links) Trace(_ context.Context, id ancestry.TraceID, limit int) (page []ancestry.Link, err error) {
	for _, l := range s.list {
		if l.Trace == id && len(page) < limit {
			page = append(page, l)
		}
	}
	return page, s.err
}

// child returns the link of a run that has a parent.
func child(run ancestry.RunID, parent ancestry.Ancestor) ancestry.Link {
	return ancestry.Link{Run: run, Chain: ancestry.Chain{Ancestors: []ancestry.Ancestor{parent}},
		Evidence: ancestry.EvidenceRunAncestry, Time: time.UnixMilli(1_700_000_000_000).UTC()}
}

// family is one run of each kind.
func family() links {
	known := child(minted, ancestry.Ancestor{Run: "globex/parent-000000000001", Host: "globex.example", Cause: ancestry.CauseA2AMessage,
		WellKnown: "https://globex.example/.well-known/openwop"})
	known.Alias = bound
	foreign := child("elsewhere-1", ancestry.Ancestor{Run: minted, Host: selfID, Cause: ancestry.CauseMCPToolCall})
	foreign.Host = "other.example"
	return links{list: []ancestry.Link{
		known,
		{Run: "root-1", Reason: "no-header"},
		{Run: "acme/root-000000000000001"},
		child("plain", ancestry.Ancestor{Run: "run_1", Host: "globex.example", Cause: ancestry.CauseMCPToolCall,
			WellKnown: "https://globex.example/.well-known/openwop"}),
		child("acme/plain-0000000000001", ancestry.Ancestor{Run: "run_1", Host: "globex.example", Cause: ancestry.CauseMCPToolCall}),
		child("til~de", ancestry.Ancestor{Run: "root-1", Host: selfID, Cause: ancestry.CauseSubWorkflow}),
		child("acme/self-call-0000000001", ancestry.Ancestor{Run: minted, Host: selfID, Cause: ancestry.CauseMCPToolCall,
			WellKnown: "https://self.example.com/.well-known/openwop"}),
		child("unplaced", ancestry.Ancestor{Run: "x", Host: "nowhere.example", Cause: ancestry.CauseA2AMessage}),
		foreign,
	}}
}

func newAPI(t testing.TB, o ancestry.APIOptions) *ancestry.API {
	t.Helper()
	if o.Reader == nil {
		o.Reader = family()
	}
	o.HostID = selfID
	if o.Auth == "" {
		o.Auth = ancestry.AuthNone
	}
	a, err := ancestry.NewAPI(o)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// passedOn marks what reached the host behind the API.
const passedOn = http.StatusTeapot

var behind = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(passedOn) })

// ask sends a request with headers as "Name: value".
func ask(h http.Handler, target string, headers ...string) *http.Response {
	method, path, ok := strings.Cut(target, " ")
	if !ok {
		method, path = http.MethodGet, target
	}
	r := httptest.NewRequest(method, path, nil)
	for _, s := range headers {
		name, value, _ := strings.Cut(s, ": ")
		r.Header.Add(name, value)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result()
}

func body(t testing.TB, resp *http.Response) string {
	t.Helper()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

func TestAncestryAnswers(t *testing.T) {
	const (
		boundBody = `{"runId":"acme/child-0000000000001","hostId":"self.example.com/agent","parent":{"runId":"globex/parent-000000000001","hostId":"globex.example","wellKnownUrl":"https://globex.example/.well-known/openwop","cause":"a2a-message"}}`
		mintBody  = `{"runId":"run_01JD0000000000000000000000","hostId":"self.example.com/agent","parent":{"runId":"globex/parent-000000000001","hostId":"globex.example","wellKnownUrl":"https://globex.example/.well-known/openwop","cause":"a2a-message"}}`
	)
	for _, tt := range []struct {
		name, path, version string
		want, wantVersion   string
	}{
		{"v1 root", "/v1/runs/root-1/ancestry", "", `{"runId":"root-1","hostId":"self.example.com/agent","parent":null}`, ""},
		{"v1 selected by header too", "/v1/runs/root-1/ancestry", "1.1", `{"runId":"root-1","hostId":"self.example.com/agent","parent":null}`, ""},
		{"v1 cross-host parent", "/v1/runs/plain/ancestry", "",
			`{"runId":"plain","hostId":"self.example.com/agent","parent":{"runId":"run_1","hostId":"globex.example","wellKnownUrl":"https://globex.example/.well-known/openwop","cause":"mcp-tool-call"}}`, ""},
		{"v1 literal tilde, same-host sub-workflow", "/v1/runs/til~de/ancestry", "",
			`{"runId":"til~de","hostId":"self.example.com/agent","parent":{"runId":"root-1","hostId":"self.example.com/agent","cause":"core.subWorkflow"}}`, ""},
		{"v1 parent whose host has no known URL", "/v1/runs/unplaced/ancestry", "",
			`{"runId":"unplaced","hostId":"self.example.com/agent","parent":{"runId":"x","hostId":"nowhere.example","cause":"a2a-message"}}`, ""},
		{"v1 percent-encoded bound id", "/v1/runs/acme%2Fchild-0000000000001/ancestry", "", boundBody, ""},
		{"v1 echoes the id that was asked for", "/v1/runs/run_01JD0000000000000000000000/ancestry", "", mintBody, ""},
		{"v2 projected", "/runs/acme~2Fchild-0000000000001/ancestry", "2", boundBody, "2.0"},
		{"v2 projected in lower case", "/runs/acme~2fchild-0000000000001/ancestry", "2.0", boundBody, "2.0"},
		{"v2 percent-encoded", "/runs/acme%2Fchild-0000000000001/ancestry", "2.7", boundBody, "2.0"},
		{"v2 minted id, answered by the bound one", "/runs/run_01JD0000000000000000000000/ancestry", "2", boundBody, "2.0"},
		{"v2 root", "/runs/acme~2Froot-000000000000001/ancestry", "2", `{"runId":"acme/root-000000000000001","hostId":"self.example.com/agent","parent":null}`, "2.0"},
		{"v2 self-call is a dispatch, parent by its bound id", "/runs/acme~2Fself-call-0000000001/ancestry", "2",
			`{"runId":"acme/self-call-0000000001","hostId":"self.example.com/agent","parent":{"runId":"acme/child-0000000000001","hostId":"self.example.com/agent","cause":"core.dispatch"}}`, "2.0"},
		{"v2 asked, run not representable", "/runs/root-1/ancestry", "2", `{"runId":"root-1","hostId":"self.example.com/agent","parent":null}`, "1.0"},
		{"v2 asked, parent not representable", "/runs/acme~2Fplain-0000000000001/ancestry", "2",
			`{"runId":"acme/plain-0000000000001","hostId":"self.example.com/agent","parent":{"runId":"run_1","hostId":"globex.example","cause":"mcp-tool-call"}}`, "1.0"},
		{"no header prefers 1.x", "/runs/acme~2Fchild-0000000000001/ancestry", "", boundBody, "1.0"},
		{"no header, the id that was asked for", "/runs/run_01JD0000000000000000000000/ancestry", "", mintBody, "1.0"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var headers []string
			if tt.version != "" {
				headers = []string{"OpenWOP-Version: " + tt.version}
			}
			resp := ask(newAPI(t, ancestry.APIOptions{}).Wrap(behind), tt.path, headers...)
			if resp.StatusCode != 200 {
				t.Fatalf("status = %d, want 200", resp.StatusCode)
			}
			if diff := cmp.Diff(tt.want, body(t, resp)); diff != "" {
				t.Errorf("body (-want +got):\n%s", diff)
			}
			for name, want := range map[string]string{
				"OpenWOP-Version": tt.wantVersion, "Content-Type": "application/json", "Cache-Control": "no-store",
			} {
				if got := resp.Header.Get(name); got != want {
					t.Errorf("%s = %q, want %q", name, got, want)
				}
			}
		})
	}
}

func TestAncestryRefusals(t *testing.T) {
	both := []string{"1.4", "2.1"}
	for _, tt := range []struct {
		name, path  string
		headers     []string
		versions    []string
		status      int
		code        string
		wantVersion string
	}{
		{"v1 unknown run", "/v1/runs/nope/ancestry", nil, both, 404, "not_found", ""},
		{"v2 unknown run", "/runs/acme~2Fnope-000000000000001/ancestry", []string{"OpenWOP-Version: 2"}, both, 404, "not_found", "2.1"},
		{"a run of another host, noted on the way out", "/v1/runs/elsewhere-1/ancestry", nil, both, 404, "not_found", ""},
		{"an id that cannot be", "/v1/runs/a%20b/ancestry", nil, both, 404, "not_found", ""},
		{"dots are no id", "/runs/~2E~2E/ancestry", nil, both, 404, "not_found", ""},
		{"v2 broken projection", "/runs/acme~2/ancestry", []string{"OpenWOP-Version: 2"}, both, 400, "validation_error", "2.1"},
		{"v1 path, version 2", "/v1/runs/root-1/ancestry", []string{"OpenWOP-Version: 2"}, both, 400, "protocol_version_mismatch", ""},
		{"v1 path, no version", "/v1/runs/root-1/ancestry", []string{"OpenWOP-Version: one"}, both, 400, "protocol_version_mismatch", ""},
		{"unknown major", "/runs/root-1/ancestry", []string{"OpenWOP-Version: 3"}, both, 406, "protocol_version_unsupported", "2.1"},
		{"malformed version", "/runs/root-1/ancestry", []string{"OpenWOP-Version: 2.x"}, both, 406, "protocol_version_unsupported", "2.1"},
		{"two versions", "/runs/root-1/ancestry", []string{"OpenWOP-Version: 1", "OpenWOP-Version: 2"}, both, 406, "protocol_version_unsupported", "2.1"},
		{"major not served", "/runs/root-1/ancestry", []string{"OpenWOP-Version: 2"}, []string{"1.0"}, 406, "protocol_version_unsupported", ""},
		{"v1 path, 1.x not served", "/v1/runs/root-1/ancestry", nil, []string{"2.0"}, passedOn, "", ""},
		{"bare id, 1.x not served", "/runs/root-1/ancestry", nil, []string{"2.0"}, 400, "validation_error", "2.0"},
		{"minted id, 1.x not served", "/runs/" + string(minted) + "/ancestry", nil, []string{"2.0"}, 200, "", "2.0"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			resp := ask(newAPI(t, ancestry.APIOptions{Versions: tt.versions}).Wrap(behind), tt.path, tt.headers...)
			if resp.StatusCode != tt.status {
				t.Fatalf("status = %d, want %d", resp.StatusCode, tt.status)
			}
			if got := resp.Header.Get("OpenWOP-Version"); got != tt.wantVersion {
				t.Errorf("OpenWOP-Version = %q, want %q", got, tt.wantVersion)
			}
			if resp.Header["Www-Authenticate"] != nil {
				t.Errorf("WWW-Authenticate = %q, want none", resp.Header["Www-Authenticate"])
			}
			if tt.code == "" {
				return
			}
			var e struct {
				Error, Message string
				Details        map[string][]string
			}
			if err := json.Unmarshal([]byte(body(t, resp)), &e); err != nil || e.Error != tt.code || e.Message == "" {
				t.Errorf("envelope = %+v, %v; want error %q and a message", e, err, tt.code)
			}
			if tt.status == 406 && !slices.Equal(e.Details["protocolVersions"], tt.versions) {
				t.Errorf("details.protocolVersions = %q, want %q", e.Details["protocolVersions"], tt.versions)
			}
		})
	}
}

func TestWrapPassesEverythingElseOn(t *testing.T) {
	h := newAPI(t, ancestry.APIOptions{}).Wrap(behind)
	for _, target := range []string{
		"/", "/ancestry", "/runs/ancestry", "/runs//ancestry", "/runs/root-1", "/runs/root-1/ancestry/",
		"/runs/a/b/ancestry", "/v1/runs/root-1/events", "/v2/runs/root-1/ancestry", "/v1//runs/root-1/ancestry",
		"/runs/root-1%2Fancestry", "/runs/root-1/ancestr%79", "/%72uns/root-1/ancestry", "/x/runs/root-1/ancestry",
		"/v1%2Fruns/root-1/ancestry", "/host/wopproxy/v1/runs/root-1/ancestry", "/host/other/runs/root-1/ancestry", "/host/wopproxy/runs/a/b/ancestry",
		"POST /host/wopproxy/runs/root-1/ancestry", "POST /v1/runs/root-1/ancestry", "DELETE /runs/root-1/ancestry", "OPTIONS /v1/runs/root-1/ancestry",
	} {
		if got := ask(h, target).StatusCode; got != passedOn {
			t.Errorf("%s: status = %d, want it passed on", target, got)
		}
	}
}

func TestHeadHasNoBody(t *testing.T) {
	srv := httptest.NewServer(newAPI(t, ancestry.APIOptions{}).Wrap(behind))
	defer srv.Close()
	resp, err := http.Head(srv.URL + "/v1/runs/root-1/ancestry")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if b := body(t, resp); resp.StatusCode != 200 || b != "" || resp.ContentLength <= 0 {
		t.Errorf("HEAD = %d, %q, length %d; want 200, no body, and its length", resp.StatusCode, b, resp.ContentLength)
	}
}

func TestBearer(t *testing.T) {
	token := "s3cret"
	h := newAPI(t, ancestry.APIOptions{Auth: ancestry.AuthBearer, Bearer: func() string { return token }}).Wrap(behind)
	for _, tt := range []struct {
		name, path, authorization string
		status                    int
	}{
		{"the token", "/v1/runs/root-1/ancestry", "Bearer s3cret", 200},
		{"scheme in any case", "/v1/runs/root-1/ancestry", "bearer s3cret", 200},
		{"unknown run", "/v1/runs/nope/ancestry", "Bearer s3cret", 404},
		{"wrong token", "/v1/runs/root-1/ancestry", "Bearer s3cre", 401},
		{"wrong token, unknown run", "/v1/runs/nope/ancestry", "Bearer s3cre", 401},
		{"wrong token, broken id", "/runs/~/ancestry", "Bearer s3cre", 401},
		{"no token", "/v1/runs/root-1/ancestry", "", 401},
		{"another scheme", "/v1/runs/root-1/ancestry", "Basic s3cret", 401},
		{"empty token", "/v1/runs/root-1/ancestry", "Bearer ", 401},
	} {
		t.Run(tt.name, func(t *testing.T) {
			resp := ask(h, tt.path, "Authorization: "+tt.authorization)
			if resp.StatusCode != tt.status {
				t.Errorf("status = %d, want %d", resp.StatusCode, tt.status)
			}
			want := ""
			if tt.status == 401 {
				want = "Bearer"
			}
			if got := resp.Header.Get("WWW-Authenticate"); got != want {
				t.Errorf("WWW-Authenticate = %q, want %q", got, want)
			}
		})
	}
	token = "rotated"
	if got := ask(h, "/v1/runs/root-1/ancestry", "Authorization: Bearer rotated").StatusCode; got != 200 {
		t.Errorf("after rotation: status = %d, want 200", got)
	}
	token = "" // a secret that failed to load opens nothing
	if got := ask(h, "/v1/runs/root-1/ancestry", "Authorization: Bearer ").StatusCode; got != 401 {
		t.Errorf("without a configured token: status = %d, want 401", got)
	}
}

func TestInternalErrorsStayHidden(t *testing.T) {
	var log bytes.Buffer
	a := newAPI(t, ancestry.APIOptions{Reader: links{list: family().list, err: errors.New("disk on fire")},
		Logger: slog.New(slog.NewTextHandler(&log, nil))})
	for name, resp := range map[string]*http.Response{
		"endpoint": ask(a.Wrap(behind), "/v1/runs/gone/ancestry"),
		"admin":    ask(a.Admin(), "/ancestry/v1/traces/4bf92f3577b34da6a3ce929d0e0e4736"),
	} {
		if got, want := body(t, resp), `{"error":"internal_error","message":"internal error"}`; resp.StatusCode != 500 || got != want {
			t.Errorf("%s: %d %s, want 500 %s", name, resp.StatusCode, got, want)
		}
	}
	if n := strings.Count(log.String(), "disk on fire"); n != 2 {
		t.Errorf("log = %q, want the cause in it, once for each", log.String())
	}
}

func TestNewAPIRefuses(t *testing.T) {
	self := func(o ancestry.APIOptions) ancestry.APIOptions {
		o.Reader, o.HostID = family(), selfID
		return o
	}
	for name, o := range map[string]ancestry.APIOptions{
		"nothing":            {},
		"no host id":         {Reader: family(), Auth: ancestry.AuthNone},
		"no auth mode":       self(ancestry.APIOptions{}),
		"bearer, no token":   self(ancestry.APIOptions{Auth: ancestry.AuthBearer}),
		"host, no upstream":  self(ancestry.APIOptions{Auth: ancestry.AuthHost}),
		"host, no such host": self(ancestry.APIOptions{Auth: ancestry.AuthHost, Upstream: &url.URL{Path: "/x"}}),
		"version 3":          self(ancestry.APIOptions{Auth: ancestry.AuthNone, Versions: []string{"3.0"}}),
	} {
		if _, err := ancestry.NewAPI(o); err == nil {
			t.Errorf("%s: NewAPI = nil error", name)
		}
	}
}

func TestAPIMetrics(t *testing.T) {
	reg := prometheus.NewRegistry()
	host := httptest.NewServer(http.NotFoundHandler())
	defer host.Close()
	up, _ := url.Parse(host.URL)
	h := newAPI(t, ancestry.APIOptions{Auth: ancestry.AuthHost, Upstream: up, Registerer: reg}).Wrap(behind)
	ask(h, "/v1/runs/root-1/ancestry")
	ask(h, "/runs/~/ancestry")
	ask(h, "/elsewhere")
	const want = `
# HELP wopproxy_ancestry_host_checks_total Questions to the host whether a caller may read a run, by verdict.
# TYPE wopproxy_ancestry_host_checks_total counter
wopproxy_ancestry_host_checks_total{verdict="refused"} 1
# HELP wopproxy_ancestry_requests_total Requests for the ancestry of a run, by the status of the answer.
# TYPE wopproxy_ancestry_requests_total counter
wopproxy_ancestry_requests_total{status="400"} 1
wopproxy_ancestry_requests_total{status="404"} 1
`
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "wopproxy_ancestry_host_checks_total", "wopproxy_ancestry_requests_total"); err != nil {
		t.Error(err)
	}
	if problems, err := testutil.GatherAndLint(reg); err != nil || len(problems) > 0 {
		t.Errorf("lint: %v %v", problems, err)
	}
}

// The path decides by its raw form alone; the reference is one expression.
func FuzzWrap(f *testing.F) {
	for _, s := range []string{"/v1/runs/a/ancestry", "/runs/acme~2Fb/ancestry", "/runs/a%2Fb/ancestry", "/runs/a/b/ancestry",
		"/v1/runs/%2e%2e/ancestry", "/runs/~/ancestry", "/v1/runs/%zz/ancestry", "//runs/a/ancestry", "/runs/é/ancestry",
		"/host/wopproxy/runs/a/ancestry", "/v1/host/wopproxy/runs/a%2Fb/ancestry", "/host/wopproxy/ancestry", "/v1/host/wopproxy%2Fruns/a/ancestry"} {
		f.Add(s)
	}
	ours := regexp.MustCompile(`^(/v1)?(/host/wopproxy)?/runs/[^/]+/ancestry$`)
	h := newAPI(f, ancestry.APIOptions{}).Wrap(behind)
	f.Fuzz(func(t *testing.T, raw string) {
		u, err := url.ParseRequestURI(raw)
		if err != nil || u.Host != "" {
			return
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, &http.Request{Method: http.MethodGet, URL: u, Header: http.Header{}})
		if got, want := w.Code != passedOn, ours.MatchString(u.EscapedPath()); got != want {
			t.Fatalf("%q: answered = %v, want %v", raw, got, want)
		}
		switch w.Code {
		case passedOn, 200, 400, 404:
		default:
			t.Fatalf("%q: status = %d", raw, w.Code)
		}
		if w.Code != passedOn && !json.Valid(w.Body.Bytes()) {
			t.Fatalf("%q: body %q is not JSON", raw, w.Body)
		}
	})
}

func TestOtherTrafficCostsNothing(t *testing.T) {
	h := newAPI(t, ancestry.APIOptions{}).Wrap(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	for _, path := range []string{"/v1/mcp", "/runs/acme%2Fchild/events", "/caf%C3%A9"} {
		r, w := httptest.NewRequest(http.MethodGet, path, nil), httptest.NewRecorder()
		if n := testing.AllocsPerRun(100, func() { h.ServeHTTP(w, r) }); n != 0 {
			t.Errorf("%s: %v allocations, want 0", path, n)
		}
	}
}

func BenchmarkWrap(b *testing.B) {
	h := newAPI(b, ancestry.APIOptions{}).Wrap(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	for _, path := range []string{"/v1/mcp", "/v1/runs/root-1/ancestry"} {
		b.Run(strings.ReplaceAll(path[1:], "/", "_"), func(b *testing.B) {
			b.ReportAllocs()
			r := httptest.NewRequest(http.MethodGet, path, nil)
			for b.Loop() {
				h.ServeHTTP(discardResponse{}, r)
			}
		})
	}
}

type discardResponse struct{}

func (discardResponse) Header() http.Header         { return http.Header{} }
func (discardResponse) Write(b []byte) (int, error) { return len(b), nil }
func (discardResponse) WriteHeader(int)             {}

func ExampleAPI_Wrap() {
	api, err := ancestry.NewAPI(ancestry.APIOptions{
		Reader: family(), // a Store or a Recorder
		HostID: "self.example.com/agent",
		Auth:   ancestry.AuthNone,
	})
	if err != nil {
		panic(err)
	}
	host := http.NotFoundHandler() // the reverse proxy in front of the host
	w := httptest.NewRecorder()
	api.Wrap(host).ServeHTTP(w, httptest.NewRequest("GET", "/v1/runs/root-1/ancestry", nil))
	fmt.Print(w.Body)
	// Output: {"runId":"root-1","hostId":"self.example.com/agent","parent":null}
}
