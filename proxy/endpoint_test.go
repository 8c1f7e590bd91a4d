package proxy

import (
	"bytes"
	"compress/gzip"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/wopproxy/wopproxy/ancestry"
)

// gzipped compresses a text.
func gzipped(t testing.TB, text string) string {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := z.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestAncestryEndpoint: whether OpenWOP's path is ours follows from what callers are
// told: by the host's document as it is edited, and as it is where it can't be.
func TestAncestryEndpoint(t *testing.T) {
	const (
		own     = `{"protocolVersion":"1.1","multiAgent":{"executionModel":{"supported":true,"version":3,"crossHostCausation":{"supported":true,"hostId":"agent.example.com","ancestryEndpointSupported":true}}}}`
		other   = `{"protocolVersions":["2.0"],"multiAgent":{"executionModel":{"version":3,"crossHostCausation":{"hostId":"other.example.com","ancestryEndpointSupported":true}}}}`
		without = `{"protocolVersions":["2.0"],"multiAgent":{"executionModel":{"version":3,"crossHostCausation":{"hostId":"agent.example.com"}}}}`
	)
	for _, tt := range []struct {
		name   string
		claim  Claim
		status int
		doc    string
		header []string
		want   ancestry.Endpoint
	}{
		{"nothing is claimed", ClaimExtension, 200, level2, nil, ancestry.EndpointAbsent},
		{"off", ClaimNothing, 200, level2, nil, ancestry.EndpointAbsent},
		{"claimed", ClaimLevel3, 200, level2, nil, ancestry.EndpointServed},
		{"not to be claimed", ClaimLevel3, 200, `{"protocolVersion":"1.0"}`, nil, ancestry.EndpointAbsent},
		{"asserted", ClaimAll, 200, `{"protocolVersions":["2.0"]}`, nil, ancestry.EndpointServed},
		{"by the host itself", ClaimExtension, 200, own, nil, ancestry.EndpointServed},
		{"by the host itself, off", ClaimNothing, 200, own, nil, ancestry.EndpointServed},
		{"by the host itself, in another name", ClaimAll, 200, other, nil, ancestry.EndpointForeign},
		{"by the host itself, without the endpoint", ClaimAll, 200, without, nil, ancestry.EndpointAbsent},
		{"a document of no shape", ClaimAll, 200, `{"protocolVersion":"1.0","multiAgent":{},"multiAgent":{}}`, nil, ancestry.EndpointAbsent},
		{"broken", ClaimAll, 200, `{"protocolVersion":`, nil, ancestry.EndpointAbsent},
		{"the other major's", ClaimAll, 406, `{}`, nil, ancestry.EndpointAbsent},
		{"a page", ClaimExtension, 200, `<html>`, []string{"Content-Type", "text/html"}, ancestry.EndpointServed},
		{"another document", ClaimExtension, 200, `{"name":"x"}`, nil, ancestry.EndpointServed},
		{"no document", ClaimExtension, 404, `none`, nil, ancestry.EndpointServed},
		{"none for strangers", ClaimExtension, 401, `who?`, nil, ancestry.EndpointServed},
		{"moved", ClaimExtension, 302, ``, []string{"Location", "/login"}, ancestry.EndpointServed},
		{"failing", ClaimAll, 500, level2, nil, ancestry.EndpointUnknown},
		{"failing at what it does not know", ClaimAll, 500, `oops`, []string{"Content-Type", "text/plain"}, ancestry.EndpointServed},
		{"no GET", ClaimAll, 501, `oops`, []string{"Content-Type", "text/html"}, ancestry.EndpointServed},
		{"overloaded", ClaimAll, 429, level2, nil, ancestry.EndpointUnknown},
		{"compressed, so that nothing can be claimed", ClaimAll, 200, gzipped(t, level2), []string{"Content-Encoding", "gzip"}, ancestry.EndpointAbsent},
		{"compressed, and the host's own claim", ClaimAll, 200, gzipped(t, own), []string{"Content-Encoding", "gzip"}, ancestry.EndpointServed},
		{"compressed, it says", ClaimAll, 200, own, []string{"Content-Encoding", "gzip"}, ancestry.EndpointUnknown},
		{"compressed otherwise", ClaimAll, 200, own, []string{"Content-Encoding", "br"}, ancestry.EndpointUnknown},
		{"bound by a digest", ClaimAll, 200, level2, []string{"Content-Digest", "sha-256=:AAAA:"}, ancestry.EndpointAbsent},
		{"too large to edit", ClaimAll, 200, `{"protocolVersion":"1.0","x":"` + string(bytes.Repeat([]byte("y"), 2<<10)) + `"}`, nil, ancestry.EndpointAbsent},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := newDocumentHost(t)
			h.says(tt.doc, tt.header...)
			answer := *h.answer.Load()
			answer.status = tt.status
			h.answer.Store(&answer)
			s := newSidecar(t, "agent.example.com", "http://"+h.addr, func(_ *Options, p *Policy) { p.Claim, p.InspectedBody = tt.claim, 1<<10 })
			for _, v1 := range []bool{true, false} {
				got := make(chan ancestry.Endpoint, 1)
				go func() { got <- s.AncestryEndpoint(t.Context(), v1) }()
				asked := receive(t, h.asked, "the question for the document")
				if e := receive(t, got, "the endpoint"); e != tt.want {
					t.Errorf("AncestryEndpoint(v1 %v) = %v, want %v", v1, e, tt.want)
				}
				if want := map[bool]string{true: "1", false: "2"}[v1]; asked.Header.Get("OpenWOP-Version") != want || asked.Header["Authorization"] != nil {
					t.Errorf("the host was asked with %v, want version %s and no credential", asked.Header, want)
				}
			}
		})
	}
}

// answers is a transport to a host in the same synctest bubble.
type answers func(*http.Request) (*http.Response, error)

func (f answers) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestAncestryEndpointInTime: a host that hangs costs no more than the bound, what was
// known stands while it fails, and nobody has it asked without pause.
func TestAncestryEndpointInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := assemble(t, ancestry.NewMemory(), "agent.example.com", "test://host")
		asked, says := 0, func(r *http.Request) (*http.Response, error) {
			<-r.Context().Done()
			return nil, r.Context().Err()
		}
		s.inbound.http1.RegisterProtocol("test", answers(func(r *http.Request) (*http.Response, error) { asked++; return says(r) }))
		status := func(code int, doc string) func(*http.Request) (*http.Response, error) {
			return func(*http.Request) (*http.Response, error) {
				return &http.Response{StatusCode: code, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(doc))}, nil
			}
		}
		expect := func(what string, want ancestry.Endpoint, took time.Duration, questions int) {
			t.Helper()
			asked = 0
			began := time.Now()
			got := s.AncestryEndpoint(t.Context(), true)
			d := time.Since(began)
			synctest.Wait() // for a question that nobody waits for
			if got != want || d != took || asked != questions {
				t.Errorf("%s: %v after %v and %d questions, want %v after %v and %d", what, got, d, asked, want, took, questions)
			}
		}
		expect("a host that hangs", ancestry.EndpointUnknown, discoveryTimeout, 1)
		says = status(200, level2)
		expect("right after that", ancestry.EndpointAbsent, discoveryFirst, 1)
		pol := *s.policy.Load()
		pol.Claim = ClaimLevel3
		s.policy.Store(&pol)
		expect("another claim, of the same document", ancestry.EndpointServed, 0, 0)
		says = status(500, "")
		time.Sleep(discoveryTTL + 1)
		expect("it fails later", ancestry.EndpointServed, 0, 1)
		says = status(404, "")
		time.Sleep(discoveryRetry + 1)
		expect("what was known, while it is asked", ancestry.EndpointServed, 0, 1)
		pol.Claim = ClaimExtension
		s.policy.Store(&pol)
		expect("it has no document any more", ancestry.EndpointServed, 0, 0)
		says = status(200, level2)
		time.Sleep(discoveryMissing + 1)
		expect("what was known, while it is asked again", ancestry.EndpointServed, 0, 1)
		expect("and has one again", ancestry.EndpointAbsent, 0, 0)
	})
}
