package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// owGuard lets a run of a toy host be read by who has begun it. Its users are of
// the tenant acme.
type owGuard struct {
	mu    sync.Mutex
	fault int // a status to answer instead; owHangs: none ever
	asked int // questions about one run
}

const (
	owAlice  = "Bearer alice"
	owBob    = "Bearer bob"
	owNarrow = "Bearer alice without runs:read"
	owHangs  = -1
)

// fail makes the host answer no more, or again with 0, and forgets what it was asked.
func (g *owGuard) fail(fault int) {
	g.mu.Lock()
	g.fault, g.asked = fault, 0
	g.mu.Unlock()
}

func (g *owGuard) questions() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.asked
}

// admit returns the run if the request may know of it, or nil, unless it has
// answered itself.
func (g *owGuard) admit(w http.ResponseWriter, r *http.Request, h *owHost, id string, run *owRun) (admitted *owRun, answered bool) {
	g.mu.Lock()
	g.asked++
	fault := g.fault
	g.mu.Unlock()
	auth := r.Header.Get("Authorization")
	tenant, _, bound := strings.Cut(id, "/")
	switch {
	case fault == owHangs:
		<-r.Context().Done()
	case fault != 0:
		h.fail(w, fault, "internal_error", nil)
	case auth == owNarrow:
		h.fail(w, 403, "forbidden", nil)
	case auth != owAlice && auth != owBob:
		w.Header().Set("WWW-Authenticate", `Bearer realm="toy"`)
		h.fail(w, 401, "unauthenticated", nil)
	case h.major == 2 && bound && tenant != "acme":
		h.fail(w, 403, "id_tenant_mismatch", nil)
	case run != nil && run.owner == auth:
		return run, false
	default:
		return nil, false
	}
	return nil, true
}

// TestOpenWOPWhoMayRead asks a host with two users, through its wopproxy, on the
// protocol's path and on the mount: each reads what is its own, and nobody learns
// whether a run of somebody else's exists, be it by words, by headers, or by what
// the host is asked.
func TestOpenWOPWhoMayRead(t *testing.T) {
	for _, major := range []int{1, 2} {
		for _, mount := range []string{"", "/host/wopproxy"} {
			t.Run(fmt.Sprintf("v%d%s", major, mount), func(t *testing.T) {
				t.Parallel()
				h := newOWHost(t, "host.example.com", major, "127.0.0.2", settings{"ancestry.auth.mode": "host"})
				h.guard = new(owGuard)
				asked := forgedAncestry("acme/0123456789abcdef", "caller.example.com", "https://caller.example.com/.well-known/openwop")
				asked.Set("Authorization", owAlice)
				run := h.begun(t, owPlan{Label: "alice's"}, asked)
				absent := run.id[:len(run.id)-16] + strings.Repeat("0", 16)
				elsewhere := "globex/0123456789abcdef"

				checks := func(verdict string) float64 {
					return h.metric(t, "wopproxy_ancestry_host_checks_total", `verdict="`+verdict+`"`)
				}
				expect := func(who, id string, status int, code string) (*http.Response, string) {
					t.Helper()
					resp, body := h.readAs(t, mount, id, who)
					resp.Header.Del("Date")
					if resp.StatusCode != status || !strings.Contains(body, code) {
						t.Errorf("%q of %s = %d %s, want %d %s", who, id, resp.StatusCode, body, status, code)
					}
					if version := resp.Header.Get("OpenWOP-Version"); (version == "2.0") != (major == 2 && mount == "") {
						t.Errorf("%q of %s: OpenWOP-Version %q", who, id, version)
					}
					if status != 200 {
						validate(t, "v1/error-envelope.schema", []byte(body)) // v2 has the same
					}
					if (status == 401) != (resp.Header.Get("WWW-Authenticate") != "") {
						t.Errorf("%q of %s: %d with the challenge %q", who, id, status, resp.Header.Get("WWW-Authenticate"))
					}
					return resp, body
				}
				const parent = `"parent":{"runId":"acme/0123456789abcdef","hostId":"caller.example.com"`
				expect(owAlice, run.id, 200, parent)
				expect(owAlice, run.id, 200, parent)
				if allowed, cached := checks("allowed"), checks("cached"); allowed != 1 || cached != 1 {
					t.Errorf("the host was asked %v times and %v times not again, want once each", allowed, cached)
				}
				for _, id := range []string{run.id, absent} {
					expect("", id, 401, `"unauthenticated"`)
					expect("Bearer mallory", id, 401, `"unauthenticated"`)
					expect(owNarrow, id, 403, `"forbidden"`)
				}
				if major == 2 {
					expect(owAlice, elsewhere, 403, `"id_tenant_mismatch"`)
				}
				// What a stranger is told of a run that is there, and was shown to its
				// owner a moment ago, and of one that is not.
				var first *http.Response
				var firstBody string
				for i, id := range []string{run.id, absent, run.minted, run.minted[:len(run.minted)-4] + "0000", run.id} {
					h.guard.fail(0)
					before := checks("refused")
					resp, body := expect(owBob, id, 404, `"not_found"`)
					if i == 0 {
						first, firstBody = resp, body
					}
					if body != firstBody || !cmp.Equal(resp.Header, first.Header) {
						t.Errorf("bob of %s = %v %s\nwant the same as of a run that there is: %v %s", id, resp.Header, body, first.Header, firstBody)
					}
					if n, refused := h.guard.questions(), checks("refused")-before; n != 1 || refused != 1 {
						t.Errorf("bob of %s: the host was asked %d times and refused %v, want once each", id, n, refused)
					}
				}
				expect(owAlice, run.minted, 200, parent)

				h.guard.fail(500)
				expect(owBob, run.id, 503, `"service_unavailable"`)
				expect(owBob, absent, 503, `"service_unavailable"`)
				if n := checks("unexpected"); n != 2 {
					t.Errorf("answers that are none = %v, want 2", n)
				}
				h.guard.fail(owHangs)
				began := time.Now()
				expect(owBob, run.id, 503, `"service_unavailable"`)
				if d := time.Since(began); d > patience/2 {
					t.Errorf("a host that hangs was waited for for %v", d)
				}
				if n := checks("unreachable"); n != 1 {
					t.Errorf("answers that never came = %v, want 1", n)
				}
				h.guard.fail(0)
				expect(owAlice, run.id, 200, parent)
				expect(owBob, run.id, 404, `"not_found"`)
			})
		}
	}
}
