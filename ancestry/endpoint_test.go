package ancestry_test

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/wopproxy/wopproxy/ancestry"
)

// endpoint makes callers of each major be told the same.
func endpoint(e ancestry.Endpoint) func(context.Context, bool) ancestry.Endpoint {
	return func(context.Context, bool) ancestry.Endpoint { return e }
}

const (
	absentV1  = `{"error":"not_found","message":"this host does not advertise ancestry; wopproxy answers under /host/wopproxy"}`
	rootV1    = `{"runId":"root-1","hostId":"self.example.com/agent","parent":null}`
	boundRoot = `{"runId":"acme/root-000000000000001","hostId":"self.example.com/agent","parent":null}`
)

// TestEndpoint: the protocol's paths follow what is advertised, and the mount is
// there whatever is. A mounted answer takes no part in the protocol's versions.
func TestEndpoint(t *testing.T) {
	const foreign, absent, unknown = ancestry.EndpointForeign, ancestry.EndpointAbsent, ancestry.EndpointUnknown
	for _, tt := range []struct {
		name          string
		endpoint      ancestry.Endpoint
		path, version string
		status        int
		want          string // the body, or a part of it
		wantVersion   string
	}{
		{"v1", absent, "/v1/runs/root-1/ancestry", "", 404, absentV1, ""},
		{"v1, a run that is not", absent, "/v1/runs/nope/ancestry", "", 404, absentV1, ""},
		{"v1, an id that cannot be", absent, "/v1/runs/a%20b/ancestry", "", 404, absentV1, ""},
		{"v2", absent, "/runs/acme~2Froot-000000000000001/ancestry", "2", 404, absentV1, "2.0"},
		{"v2, a run that is not", absent, "/runs/acme~2Fnope-000000000000001/ancestry", "2", 404, absentV1, "2.0"},
		{"v2, a broken projection", absent, "/runs/~/ancestry", "2", 404, absentV1, "2.0"},
		{"another major is refused as ever", absent, "/runs/root-1/ancestry", "3", 406, "protocol_version_unsupported", "2.0"},
		{"no telling, v1", unknown, "/v1/runs/root-1/ancestry", "", 503, `"service_unavailable"`, ""},
		{"no telling, v2", unknown, "/runs/acme~2Froot-000000000000001/ancestry", "2", 503, `"service_unavailable"`, "2.0"},
		{"no telling, a run that is not", unknown, "/v1/runs/nope/ancestry", "", 503, `"service_unavailable"`, ""},
		{"another name's, v1", foreign, "/v1/runs/root-1/ancestry", "", passedOn, "", ""},
		{"another name's, v2", foreign, "/runs/root-1/ancestry", "2", passedOn, "", ""},
		{"mounted", absent, "/v1/host/wopproxy/runs/root-1/ancestry", "", 200, rootV1, ""},
		{"mounted, unversioned", absent, "/host/wopproxy/runs/acme~2Froot-000000000000001/ancestry", "", 200, boundRoot, ""},
		{"mounted, by the minted id", absent, "/host/wopproxy/runs/" + string(minted) + "/ancestry", "", 200, `"runId":"acme/child-0000000000001"`, ""},
		{"mounted, whatever version", absent, "/host/wopproxy/runs/root-1/ancestry", "3", 200, rootV1, ""},
		{"mounted under v1, whatever version", absent, "/v1/host/wopproxy/runs/root-1/ancestry", "2", 200, rootV1, ""},
		{"mounted, no telling", unknown, "/v1/host/wopproxy/runs/root-1/ancestry", "", 200, rootV1, ""},
		{"mounted, another name's", foreign, "/v1/host/wopproxy/runs/root-1/ancestry", "", 200, rootV1, ""},
		{"mounted, advertised", ancestry.EndpointServed, "/v1/host/wopproxy/runs/root-1/ancestry", "", 200, rootV1, ""},
		{"mounted, a run that is not", absent, "/v1/host/wopproxy/runs/nope/ancestry", "", 404, `{"error":"not_found","message":"run not found"}`, ""},
		{"mounted, a broken projection", absent, "/host/wopproxy/runs/~/ancestry", "2", 400, `"validation_error"`, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var headers []string
			if tt.version != "" {
				headers = []string{"OpenWOP-Version: " + tt.version}
			}
			resp := ask(newAPI(t, ancestry.APIOptions{Endpoint: endpoint(tt.endpoint)}).Wrap(behind), tt.path, headers...)
			if got := body(t, resp); resp.StatusCode != tt.status || !strings.Contains(got, tt.want) {
				t.Errorf("answer = %d %s, want %d %s", resp.StatusCode, got, tt.status, tt.want)
			}
			if got := resp.Header.Get("OpenWOP-Version"); got != tt.wantVersion {
				t.Errorf("OpenWOP-Version = %q, want %q", got, tt.wantVersion)
			}
			if tt.status == 503 && resp.Header.Get("Retry-After") == "" {
				t.Error("no Retry-After")
			}
		})
	}
}

// TestEndpointOfEachMajor: what is advertised under one major says nothing of the
// other.
func TestEndpointOfEachMajor(t *testing.T) {
	h := newAPI(t, ancestry.APIOptions{Endpoint: func(_ context.Context, v1 bool) ancestry.Endpoint {
		if v1 {
			return ancestry.EndpointServed
		}
		return ancestry.EndpointAbsent
	}}).Wrap(behind)
	for target, want := range map[string]int{"/v1/runs/root-1/ancestry": 200, "/runs/acme~2Froot-000000000000001/ancestry": 404} {
		if got := ask(h, target, "OpenWOP-Version: "+map[int]string{200: "1", 404: "2"}[want]).StatusCode; got != want {
			t.Errorf("%s = %d, want %d", target, got, want)
		}
	}
}

// TestAbsentToStrangers: who may not read is told so first, in the host's words, and
// who may is told the same of every run, in every byte. The host's own answer on a
// path that it does not advertise is not fetched.
func TestAbsentToStrangers(t *testing.T) {
	host := func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasSuffix(r.URL.Path, "/ancestry"):
			t.Errorf("the host was asked for %s", r.URL.Path)
		case r.Header.Get("Authorization") == "":
			reply(401, `{"error":"unauthenticated","message":"who are you?"}`, "WWW-Authenticate: Bearer", "OpenWOP-Version: 2.3")(w, r)
		case r.Header.Get("Authorization") == "Bearer stranger":
			reply(403, `{"error":"forbidden","message":"not you"}`)(w, r)
		case r.URL.Path == "/v1/runs/root-1":
			reply(200, `{"runId":"root-1"}`)(w, r)
		case r.URL.Path == "/v1/runs/broken":
			reply(500, `{}`)(w, r)
		default:
			reply(404, `{"error":"not_found","message":"no such run"}`)(w, r)
		}
	}
	h := hostAPI(t, host, ancestry.APIOptions{Endpoint: endpoint(ancestry.EndpointAbsent), Bearer: func() string { return "ours" }})
	var first *http.Response
	var firstBody string
	for _, auth := range []string{"Bearer reader", "Bearer ours"} {
		for _, run := range []string{"root-1", "root-1", "nope", "broken", string(minted), "a%20b"} {
			resp := ask(h, "/v1/runs/"+run+"/ancestry", "Authorization: "+auth)
			got := body(t, resp)
			resp.Header.Del("Date")
			if first == nil {
				first, firstBody = resp, got
			}
			if resp.StatusCode != 404 || got != absentV1 || got != firstBody || !cmp.Equal(resp.Header, first.Header) {
				t.Errorf("%s of %s = %d %v %s, want 404 %v %s", auth, run, resp.StatusCode, resp.Header, got, first.Header, absentV1)
			}
		}
	}
	for _, run := range []string{"root-1", "nope"} {
		nobody := ask(h, "/v1/runs/"+run+"/ancestry")
		if got := body(t, nobody); nobody.StatusCode != 401 || !strings.Contains(got, "who are you?") || nobody.Header.Get("WWW-Authenticate") != "Bearer" {
			t.Errorf("nobody of %s = %d %s, want the host's 401", run, nobody.StatusCode, got)
		}
		stranger := ask(h, "/v1/runs/"+run+"/ancestry", "Authorization: Bearer stranger")
		if got := body(t, stranger); stranger.StatusCode != 403 || !strings.Contains(got, "not you") {
			t.Errorf("a stranger of %s = %d %s, want the host's 403", run, stranger.StatusCode, got)
		}
	}
	// On the mount the same host decides, and its version is not the mount's.
	nobody := ask(h, "/host/wopproxy/runs/root-1/ancestry")
	if nobody.StatusCode != 401 || nobody.Header.Get("OpenWOP-Version") != "" {
		t.Errorf("mounted, nobody = %d, version %q, want 401 without one", nobody.StatusCode, nobody.Header.Get("OpenWOP-Version"))
	}
}

// TestWalkFollowsTheExtension: a host that does not advertise ancestry, and says in
// its discovery document where wopproxy answers for it, is asked there.
func TestWalkFollowsTheExtension(t *testing.T) {
	serve := func(id, base string, list ...ancestry.Link) *peer {
		a, err := ancestry.NewAPI(ancestry.APIOptions{Reader: links{list: list}, HostID: id, Auth: ancestry.AuthNone, Endpoint: endpoint(ancestry.EndpointAbsent)})
		if err != nil {
			t.Fatal(err)
		}
		h := a.Wrap(reply(200, `{"protocolVersion":"1.0","extensions":{"`+ancestry.ExtensionKey+`":`+ancestry.Extension(id)+`}}`))
		return newPeer(t, http.StripPrefix(base, h))
	}
	planner := serve("planner.example", "/p", ancestry.Link{Run: "acme/plan-00000000000001"}, ancestry.Link{Run: "run-1"})
	leaf := serve("leaf.example", "",
		child("task-9", ancestry.Ancestor{Run: "acme/plan-00000000000001", Host: "planner.example", WellKnown: planner.URL + "/p/.well-known/openwop", Cause: ancestry.CauseA2AMessage}))
	w := walker(t, ancestry.WalkerOptions{Allow: []string{"127.0.0.1"}, Bearer: map[string]string{planner.URL: "token"}})
	got, err := w.Walk(t.Context(), leaf.URL, "task-9")
	if err != nil {
		t.Fatal(err)
	}
	want := ancestry.Walk{Stop: ancestry.StopRoot, Hops: []ancestry.Hop{
		{Run: "task-9", Host: "leaf.example", Base: leaf.URL, Confirmed: true},
		{Run: "acme/plan-00000000000001", Host: "planner.example", Base: planner.URL + "/p", Cause: ancestry.CauseA2AMessage, Confirmed: true},
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("walk (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{
		"/p/v1/runs/acme%2Fplan-00000000000001/ancestry  Bearer token",
		"/p/runs/acme~2Fplan-00000000000001/ancestry 2 Bearer token",
		"/p/.well-known/openwop  Bearer token",
		"/p/v1/host/wopproxy/runs/acme%2Fplan-00000000000001/ancestry  Bearer token",
	}, planner.asked()); diff != "" {
		t.Errorf("the second host was asked (-want +got):\n%s", diff)
	}
	if got, err := w.Walk(t.Context(), leaf.URL, "nope"); err != nil || got.Stop != ancestry.StopNotFound {
		t.Errorf("walk from a run that is not = %+v, %v, want not-found", got, err)
	}
}

// TestWalkAndHostileExtensions: a template leads nowhere but below its own host, and
// what is no document leads nowhere.
func TestWalkAndHostileExtensions(t *testing.T) {
	secret := newPeer(t, reply(200, answer("r", "a.example", "null")))
	for name, doc := range map[string]string{
		"not JSON":          `<html>`,
		"no object":         `[]`,
		"no extensions":     `{"extensions":null}`,
		"not a list":        `{"extensions":{"wopproxy.causation":{"ancestry":"/x/{runId}/y"}}}`,
		"huge":              `{"x":"` + strings.Repeat(" ", 1<<20) + `"}`,
		"absolute":          `"` + secret.URL + `/{runId}/y"`,
		"another origin":    `"//` + strings.TrimPrefix(secret.URL, "http://") + `/{runId}/y"`,
		"user":              `"@` + strings.TrimPrefix(secret.URL, "http://") + `/{runId}/y"`,
		"a port more":       `"0/{runId}/y"`,
		"up":                `"/../{runId}/y"`,
		"a query":           `"/x/{runId}/y?z"`,
		"a fragment":        `"/x/{runId}/y#z"`,
		"a line break":      `"/x/{runId}/y\n"`,
		"no variable":       `"/x/y"`,
		"two variables":     `"/x/{runId}/{runId}"`,
		"escapes":           `"/x%2F/{runId}/y"`,
		"too many segments": `"` + strings.Repeat("/x", 9) + `/{runId}/y"`,
		"too many":          strings.TrimSuffix(strings.Repeat(`"/none/{runId}/y",`, 4), ",") + `,"/x/{runId}/y"`,
	} {
		t.Run(name, func(t *testing.T) {
			if strings.HasPrefix(doc, `"`) {
				doc = `{"extensions":{"wopproxy.causation":{"ancestry":[` + doc + `]}}}`
			}
			p := newPeer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				switch {
				case strings.HasSuffix(r.URL.Path, "/.well-known/openwop"):
					reply(200, doc)(w, r)
				case strings.HasSuffix(r.URL.Path, "/ancestry"), strings.HasPrefix(r.URL.Path, "/none/"):
					reply(404, ``)(w, r)
				default:
					t.Errorf("asked for %s", r.RequestURI)
				}
			}))
			got, err := walker(t, ancestry.WalkerOptions{Allow: []string{"127.0.0.1"}}).Walk(t.Context(), p.URL, "r")
			want := ancestry.StopNotFound
			if name == "huge" {
				want = ancestry.StopInvalidAnswer
			}
			if err != nil || got.Stop != want {
				t.Errorf("walk = %+v, %v, want %s", got, err, want)
			}
			if asked := secret.asked(); len(asked) > 0 {
				t.Errorf("another host was asked for %q", asked)
			}
		})
	}
}
