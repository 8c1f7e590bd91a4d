package proxy

import (
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"
)

func discoveries(outcome string) string {
	return `wopproxy_discovery_documents_total{outcome="` + outcome + `"}`
}

const (
	level2   = `{"protocolVersion":"1.1", "limits":{},"multiAgent":{"executionModel":{"supported":true,"version":2}},"a2a":{"agentCardUrl":"http://HOST/card"}}`
	added    = `"crossHostCausation":{"supported":true,"hostId":"agent.example.com","ancestryEndpointSupported":true},`
	told     = `{"extensions":{"wopproxy.causation":{"ancestry":["/v1/host/wopproxy/runs/{runId}/ancestry","/host/wopproxy/runs/{runId}/ancestry"],"hostId":"agent.example.com"}},`
	elsewise = `"a2a":{"agentCardUrl":"http://agents.example.com/card"}}`
)

// TestDiscovery: what the document says follows from what the host says and what
// its operator has let us claim.
func TestDiscovery(t *testing.T) {
	level1 := strings.ReplaceAll(level2, `"version":2`, `"version":1`)
	for _, tt := range []struct {
		name    string
		claim   Claim
		in      string
		want    string // "" for the host's own bytes
		outcome string
		why     string // it is refused
	}{
		{"nothing is claimed unasked", "", level2, told + strings.ReplaceAll(level2, "HOST", "agents.example.com")[1:], "extended", ""},
		{"level 3 on level 2", ClaimLevel3, level2, `{"protocolVersion":"1.1", "limits":{},"multiAgent":{"executionModel":{` + added + `"supported":true,"version":3}},` + elsewise, "claimed", ""},
		{"level 3 on level 1", ClaimLevel3, level1, told + strings.ReplaceAll(level1, "HOST", "agents.example.com")[1:], "extended", ""},
		{"asserted", ClaimAll, level1, `{"protocolVersion":"1.1", "limits":{},"multiAgent":{"executionModel":{` + added + `"supported":true,"version":3}},` + elsewise, "claimed", ""},
		{"off", ClaimNothing, level2, "", "", ""},
		{"no document of the kind", ClaimAll, `{"name":"x"}`, "", "", ""},
		{"ambiguous", ClaimAll, `{"protocolVersion":"1.0","multiAgent":{},"multiAgent":{}}`, "", "refused", "duplicate-key"},
		{"a v1 block in v2", ClaimAll, `{"protocolVersions":["2.0"],"multiAgent":{"executionModel":{"supported":true,"version":2}}}`, "", "refused", "unrecognised"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := newDocumentHost(t)
			h.says(tt.in, "Etag", `"host"`, "Vary", "Origin", "Cache-Control", "max-age=60")
			s := newSidecar(t, "agent.example.com", "http://"+h.addr, func(_ *Options, p *Policy) { p.Claim = tt.claim })
			resp, body, asked := h.fetch(t, s, http.MethodGet, "/.well-known/openwop", "OpenWOP-Version", "1")
			want, changed := tt.want, tt.want != ""
			if !changed {
				want = strings.ReplaceAll(tt.in, "HOST", h.addr)
			}
			if body != want || int(resp.ContentLength) != len(want) {
				t.Errorf("document = %s (%d bytes)\nwant %s", body, resp.ContentLength, want)
			}
			tag := resp.Header.Get("Etag")
			if changed == (tag == `"host"`) || resp.Header.Get("Cache-Control") != "max-age=60" || asked.Header.Get("OpenWOP-Version") != "1" {
				t.Errorf("tag %s, headers %v", tag, resp.Header)
			}
			if vary := strings.Join(resp.Header["Vary"], ","); (vary == "Origin,OpenWOP-Version") != (tt.claim != ClaimNothing) {
				t.Errorf("Vary = %q", vary)
			}
			if tt.outcome != "" {
				s.wantSeries(t, discoveries(tt.outcome), 1)
			}
			if tt.why != "" {
				s.wantSeries(t, unread("discovery", tt.why), 1)
			}
			if tt.claim == ClaimNothing {
				return
			}
			// Its tag is ours to answer for: the host is never asked with it.
			again, _, asked := h.fetch(t, s, http.MethodGet, "/.well-known/openwop", "If-None-Match", tag)
			if again.StatusCode != http.StatusNotModified || asked.Header["If-None-Match"] != nil {
				t.Errorf("with the tag: %d, the host was asked with %q, want 304 and nothing", again.StatusCode, asked.Header["If-None-Match"])
			}
			head, _, _ := h.fetch(t, s, http.MethodHead, "/.well-known/openwop")
			if head.StatusCode != 200 || int(head.ContentLength) != len(want) || head.Header.Get("Etag") != tag {
				t.Errorf("HEAD: %d, %d bytes, tag %s, want what GET has", head.StatusCode, head.ContentLength, head.Header.Get("Etag"))
			}
		})
	}
}

// A host that has no discovery document gets one that says what is true of the
// proxy, in a type that is not the protocol's. One that fails has none invented.
func TestDiscoveryOfAHostWithoutOne(t *testing.T) {
	h := newDocumentHost(t)
	s := newSidecar(t, "agent.example.com", "http://"+h.addr, func(_ *Options, p *Policy) {
		p.PublicURL = &url.URL{Scheme: "https", Host: "agents.example.com", Path: "/base/"}
	})
	fetch := func(status int, method string, header ...string) (*http.Response, string) {
		h.answer.Store(&given{status, http.Header{"Content-Type": {"text/plain"}, "Retry-After": {"1"}}, "host says no"})
		resp, body, _ := h.fetch(t, s, method, "/base/.well-known/openwop", header...)
		return resp, body
	}
	resp, body := fetch(http.StatusNotFound, http.MethodGet)
	if want := strings.TrimSuffix(told, ",") + "}"; resp.StatusCode != 200 || body != want {
		t.Errorf("answer = %d %s, want 200 %s", resp.StatusCode, body, want)
	}
	if ct := resp.Header.Get("Content-Type"); ct != "application/vnd.wopproxy.discovery+json" || resp.Header.Get("OpenWOP-Version") != "" {
		t.Errorf("headers = %v: it must not look like an answer of the protocol's", resp.Header)
	}
	if again, _ := fetch(http.StatusNotFound, http.MethodGet, "If-None-Match", resp.Header.Get("Etag")); again.StatusCode != http.StatusNotModified {
		t.Errorf("with its tag: %d, want 304", again.StatusCode)
	}
	if head, _ := fetch(http.StatusNotFound, http.MethodHead); head.StatusCode != 200 || head.ContentLength != int64(len(body)) {
		t.Errorf("HEAD: %d, %d bytes, want 200, %d bytes", head.StatusCode, head.ContentLength, len(body))
	}
	s.wantSeries(t, discoveries("provided"), 3)
	if other, body, _ := h.fetch(t, s, http.MethodGet, "/base/other/.well-known/openwop"); other.StatusCode != 404 || body != "host says no" {
		t.Errorf("below another path: %d %q, want the host's own answer", other.StatusCode, body)
	}
	if root, _, _ := h.fetch(t, s, http.MethodGet, "/.well-known/openwop"); root.StatusCode != 200 {
		t.Errorf("at the root: %d, want 200", root.StatusCode)
	}
	for _, status := range []int{http.StatusNotAcceptable, http.StatusUnauthorized, http.StatusInternalServerError, http.StatusServiceUnavailable} {
		if resp, body := fetch(status, http.MethodGet); resp.StatusCode != status || body != "host says no" || resp.Header.Get("Retry-After") != "1" {
			t.Errorf("a host that answers %d: %d %q, want its own answer", status, resp.StatusCode, body)
		}
	}
}

// A compressed document passes as it is, and is counted, also to who asks for its head.
func TestDiscoveryCompressed(t *testing.T) {
	h := newDocumentHost(t)
	doc := gzipped(t, level2)
	h.says(doc, "Content-Encoding", "gzip", "Etag", `"host"`)
	s := newSidecar(t, "agent.example.com", "http://"+h.addr)
	for _, method := range []string{http.MethodGet, http.MethodHead} {
		resp, body, asked := h.fetch(t, s, method, "/.well-known/openwop", "Accept-Encoding", "gzip", "If-None-Match", `"other"`)
		want := doc
		if method == http.MethodHead {
			want = ""
		}
		if resp.StatusCode != 200 || body != want || int(resp.ContentLength) != len(doc) || resp.Header.Get("Content-Encoding") != "gzip" || resp.Header.Get("Etag") != `"host"` {
			t.Errorf("%s: %d %q, length %d, %v, want the host's own", method, resp.StatusCode, body, resp.ContentLength, resp.Header)
		}
		if asked.Header["Accept-Encoding"] != nil {
			t.Errorf("%s: the host was asked for %q", method, asked.Header["Accept-Encoding"])
		}
	}
	s.wantSeries(t, discoveries("refused"), 2)
	s.wantSeries(t, unread("discovery", "encoded"), 2)
}

// A tag is that of one representation: it changes with the major, with what the host
// says, and with what its document is made to say; an old one gets the new document.
func TestDiscoveryTags(t *testing.T) {
	h := newDocumentHost(t)
	s := newSidecar(t, "agent.example.com", "http://"+h.addr)
	v2 := `{"protocolVersions":["2.0"],"multiAgent":{"executionModel":{"version":2}}}`
	seen := map[string]string{} // tag: what it stands for
	for _, doc := range []string{level2, v2} {
		for _, claim := range []Claim{ClaimExtension, ClaimLevel3, ClaimNothing} {
			pol := *s.policy.Load()
			pol.Claim = claim
			s.policy.Store(&pol)
			h.says(doc, "Etag", `"`+strconv.Itoa(len(doc))+`"`) // the host's own differs by document
			what := string(claim) + " " + doc
			for tag, of := range seen {
				resp, _, _ := h.fetch(t, s, http.MethodGet, "/.well-known/openwop", "If-None-Match", tag)
				if resp.StatusCode != 200 {
					t.Errorf("%s, asked with the tag of %s: %d, want 200", what, of, resp.StatusCode)
				}
			}
			resp, _, _ := h.fetch(t, s, http.MethodGet, "/.well-known/openwop")
			tag := resp.Header.Get("Etag")
			if of := seen[tag]; tag == "" || of != "" {
				t.Errorf("%s: tag %q, which is that of %q", what, tag, of)
			}
			seen[tag] = what
			for _, condition := range []string{tag, `W/` + tag, `"x", ` + tag} {
				if claim == ClaimNothing {
					break // the host answers for its own
				}
				resp, body, _ := h.fetch(t, s, http.MethodGet, "/.well-known/openwop", "If-None-Match", condition)
				if resp.StatusCode != http.StatusNotModified || body != "" || resp.Header.Get("Etag") != tag {
					t.Errorf("%s, asked with %s: %d %q, tag %s, want 304", what, condition, resp.StatusCode, body, resp.Header.Get("Etag"))
				}
			}
		}
	}
}

// The addresses of a run that was created lead through ingress, and the run is
// known by its id all the same.
func TestRunAddresses(t *testing.T) {
	h := newDocumentHost(t)
	h.answer.Store(&given{http.StatusCreated, http.Header{"Content-Type": {"application/json"}}, `{"runId":"run-0000000000000001","eventsUrl":"http://HOST/v1/runs/run-0000000000000001/events", "statusUrl":"/v1/runs/run-0000000000000001"}`})
	s := newSidecar(t, "agent.example.com", "http://"+h.addr)
	got := make(chan string, 1)
	go func() {
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, s.ingress.URL+"/v1/runs", strings.NewReader(`{"workflowId":"w"}`))
		req.Host = "agents.example.com"
		req.Header.Set("Content-Type", "application/json")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Error(err)
			close(got)
			return
		}
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body)
		got <- string(b)
	}()
	receive(t, h.asked, "the request")
	body := receive(t, got, "the answer")
	if want := `{"runId":"run-0000000000000001","eventsUrl":"http://agents.example.com/v1/runs/run-0000000000000001/events", "statusUrl":"/v1/runs/run-0000000000000001"}`; body != want {
		t.Errorf("answer = %s, want %s", body, want)
	}
	if _, err := s.recorder.Lookup(t.Context(), "run-0000000000000001"); err != nil {
		t.Errorf("Lookup: %v", err)
	}
}

// What is claimed satisfies the published schema of its major.
func TestDiscoveryAgainstTheSchemas(t *testing.T) {
	dir := "../../shared/contracts/data/openwop"
	if _, err := os.Stat(dir); err != nil {
		t.Skip("no OpenWOP schemas beside the checkout")
	}
	load := func(id *url.URL) (*jsonschema.Schema, error) {
		b, err := os.ReadFile(filepath.Join(dir, strings.TrimPrefix(id.Path, "/spec/")))
		if err != nil {
			return nil, err
		}
		s := new(jsonschema.Schema)
		return s, json.Unmarshal(b, s)
	}
	read := func(name string) *jsonschema.Resolved {
		id := &url.URL{Scheme: "https", Host: "openwop.dev", Path: "/spec/" + name}
		s, err := load(id)
		if err != nil {
			t.Fatal(err)
		}
		r, err := s.Resolve(&jsonschema.ResolveOptions{BaseURI: id.String(), Loader: load})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	v1, v2 := read("v1/capabilities.schema.json"), read("v2/multiAgent-facet.fragment.json")
	h := newDocumentHost(t)
	s := newSidecar(t, "agent.example.com", "http://"+h.addr, func(_ *Options, p *Policy) { p.Claim = ClaimAll })
	ask := func(in string) map[string]any {
		h.says(in)
		_, body, _ := h.fetch(t, s, http.MethodGet, "/.well-known/openwop")
		var doc map[string]any
		if err := json.Unmarshal([]byte(body), &doc); err != nil {
			t.Fatal(err)
		}
		return doc
	}
	required := `"supportedEnvelopes":["x"],"schemaVersions":{"x":1},"limits":{"clarificationRounds":1,"schemaRounds":1,"envelopesPerTurn":1}`
	for _, block := range []string{"", `,"multiAgent":{}`, `,"multiAgent":{"executionModel":{"supported":true,"version":2,"confidenceEscalationFloor":0.6}}`} {
		if err := v1.Validate(ask(`{"protocolVersion":"1.0",` + required + block + `}`)); err != nil {
			t.Errorf("v1 with %q: %v", block, err)
		}
	}
	for _, block := range []string{"", `,"multiAgent":{"status":"stable","since":"2.0","witness":"claims-check","executionModel":{"version":1}}`} {
		doc := ask(`{"protocolVersions":["2.0"],"preferredVersion":"2.0"` + block + `}`)
		if err := v2.Validate(doc["multiAgent"]); err != nil {
			t.Errorf("v2 with %q: %v", block, err)
		}
	}
}
