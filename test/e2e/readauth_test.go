package e2e

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// guarded is a host with OpenWOP's own run API, which shows a run to those who
// may read it.
func guarded() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/runs", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Seen-Run", r.Header.Get("Run-Id"))
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write([]byte(`{"runId":"own-1","status":"running"}`))
	})
	mux.HandleFunc("POST /chat", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Seen-Run", r.Header.Get("Run-Id"))
	})
	mux.HandleFunc("GET /v1/runs/{id}", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch auth := r.Header.Get("Authorization"); {
		case auth == "":
			w.Header().Set("WWW-Authenticate", `Bearer realm="the host"`)
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = w.Write([]byte(`{"error":"unauthenticated","message":"who are you?"}`))
		case auth != "Bearer reader":
			w.WriteHeader(http.StatusForbidden)
			_, _ = w.Write([]byte(`{"error":"forbidden","message":"not you"}`))
		case r.PathValue("id") != "own-1":
			w.WriteHeader(http.StatusNotFound)
			_, _ = w.Write([]byte(`{"error":"not_found","message":"no such run"}`))
		default:
			_, _ = w.Write([]byte(`{"status":"running","runId":"own-1"}`))
		}
	})
	return mux
}

// TestWhoMayRead pins who reads ancestry: whom the host lets read the run, in
// its own words, or who has the token, which alone opens runs that no host
// knows.
func TestWhoMayRead(t *testing.T) {
	const (
		unauthenticated = `{"error":"unauthenticated","message":"who are you?"}`
		forbidden       = `{"error":"forbidden","message":"not you"}`
		notFound        = `{"error":"not_found","message":"no such run"}`
	)
	type question struct {
		name, run, auth string
		status          int
		words           string // of the host; empty: of the proxy
	}
	for _, mode := range []struct {
		name      string
		overrides settings
		questions []question
	}{
		{"host", settings{"ancestry.auth.mode": "host"}, []question{
			{"nobody", "own-1", "", 401, unauthenticated},
			{"a stranger", "own-1", "Bearer stranger", 403, forbidden},
			{"a reader", "own-1", "Bearer reader", 200, ""},
			{"a reader, by the minted id", "minted of own-1", "Bearer reader", 200, ""},
			{"a stranger, by the minted id", "minted of own-1", "Bearer stranger", 403, forbidden},
			{"a reader, of no run", "own-2", "Bearer reader", 404, notFound},
			{"nobody, of no run", "own-2", "", 401, unauthenticated},
			{"a reader, of a minted run", "minted", "Bearer reader", 404, notFound},
			{"nobody, of a minted run", "minted", "", 401, unauthenticated},
		}},
		{"host and token", settings{"ancestry.auth.mode": "host", "ancestry.auth.bearer.env": "READ_TOKEN", "env": []string{"READ_TOKEN=t0ken"}}, []question{
			{"a reader", "own-1", "Bearer reader", 200, ""},
			{"the token, which the host does not know", "own-1", "Bearer t0ken", 200, ""},
			{"the token, of no run", "own-2", "Bearer t0ken", 403, forbidden},
			{"a reader, of a minted run", "minted", "Bearer reader", 404, notFound},
			{"the token, of a minted run", "minted", "Bearer t0ken", 200, ""},
			{"a wrong token, of a minted run", "minted", "Bearer t0kem", 403, forbidden},
			{"nobody, of a minted run", "minted", "", 401, unauthenticated},
		}},
		{"bearer", settings{"ancestry.auth.mode": "bearer", "ancestry.auth.bearer.env": "READ_TOKEN", "env": []string{"READ_TOKEN=t0ken"}}, []question{
			{"nobody", "own-1", "", 401, ""},
			{"a reader of the host's", "own-1", "Bearer reader", 401, ""},
			{"the token", "own-1", "Bearer t0ken", 200, ""},
			{"the token, of a minted run", "minted", "Bearer t0ken", 200, ""},
			{"the token, of no run", "own-2", "Bearer t0ken", 404, ""},
			{"nobody, of no run", "own-2", "", 401, ""},
		}},
	} {
		t.Run(mode.name, func(t *testing.T) {
			s := start(t, "host.example.com", serveHost(t, guarded()), mode.overrides)
			names := map[string]string{"minted of own-1": beginAt(t, s, "/v1/runs"), "minted": beginAt(t, s, "/chat")}
			for _, q := range mode.questions {
				run := q.run
				if id := names[run]; id != "" {
					run = id
				}
				resp, body := readAs(t, s, run, q.auth)
				if resp.StatusCode != q.status || q.words != "" && string(body) != q.words {
					t.Errorf("%s: answer = %d %s, want %d %s", q.name, resp.StatusCode, body, q.status, q.words)
				}
				if q.words == unauthenticated && resp.Header.Get("WWW-Authenticate") != `Bearer realm="the host"` {
					t.Errorf("%s: WWW-Authenticate = %q, want the host's", q.name, resp.Header.Get("WWW-Authenticate"))
				}
				if q.status == 200 {
					want := fmt.Sprintf(`{"runId":%q,"hostId":"host.example.com","parent":{"runId":"run-p","hostId":"caller.example.com","wellKnownUrl":"https://caller.example.com/.well-known/openwop","cause":"core.dispatch"}}`, run)
					if got := strings.TrimSpace(string(body)); got != want {
						t.Errorf("%s: answer = %s, want %s", q.name, got, want)
					}
				}
			}
		})
	}
}

// TestWalkWithToken walks over hosts that ask for a token: whom it is for gets it,
// and nobody else.
func TestWalkWithToken(t *testing.T) {
	asks := settings{"ancestry.auth.mode": "bearer", "ancestry.auth.bearer.env": "READ_TOKEN", "env": []string{"READ_TOKEN=t0ken"}}
	tools := newToolServer(t, "tools.example.com", stateless, asks)
	a := newAgent(t, "agent.example.com", asks)
	a.chatIn(t, nil, func(ctx context.Context, _ *http.Request) error { return useTools(ctx, t, a, tools) })
	calls, _ := tools.seen()
	token := filepath.Join(t.TempDir(), "token")
	write(t, token, "t0ken\n")
	walk := []string{"ancestry", calls[0].run, "-host", tools.public, "-allow", "127.0.0.1"}
	for _, tt := range []struct {
		name  string
		flags []string
		code  int
		says  string
	}{
		{"for nobody", nil, 1, "unauthorized"},
		{"for the first host", []string{"-bearer-file", token}, 1, "unauthorized"},
		{"for both", []string{"-bearer-file", token, "-bearer-for", a.public}, 0, ""},
		{"for somebody, but none", []string{"-bearer-for", a.public}, 2, "say with -bearer-file which"},
	} {
		p := execute(t, append(slices.Clone(walk), tt.flags...)...)
		if code := p.wait(t); code != tt.code || !strings.Contains(p.stderr.String(), tt.says) {
			t.Errorf("walk with a token %s: exit code %d, %s; want %d, %s", tt.name, code, p.stderr, tt.code, tt.says)
		}
	}
}

// beginAt begins a run at a path of the host, and returns its minted id.
func beginAt(t testing.TB, s *sidecar, path string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.ingress+path, strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Run-Ancestry", `"run-p";host="caller.example.com";wk="https://caller.example.com/.well-known/openwop";cause=core.dispatch`)
	resp, err := direct.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	id := resp.Header.Get("Seen-Run")
	if !strings.HasPrefix(id, "run_") {
		t.Fatalf("Run-Id at the host = %q, want a minted id", id)
	}
	return id
}

// readAs asks for the ancestry of a run with an Authorization header.
func readAs(t testing.TB, s *sidecar, run, auth string) (*http.Response, []byte) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.ingress+"/v1/runs/"+url.PathEscape(run)+"/ancestry", nil)
	if err != nil {
		t.Fatal(err)
	}
	if auth != "" {
		req.Header.Set("Authorization", auth)
	}
	return answerTo(t, req)
}
