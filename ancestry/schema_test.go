package ancestry_test

import (
	"encoding/json"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/wopproxy/wopproxy/ancestry"
)

const schemas = "../../shared/contracts/data/openwop"

// schema loads one of OpenWOP's published schemas, "v1/name".
func schema(t *testing.T, name string) *jsonschema.Resolved {
	t.Helper()
	load := func(id *url.URL) (*jsonschema.Schema, error) {
		b, err := os.ReadFile(filepath.Join(schemas, strings.TrimPrefix(id.Path, "/spec/")))
		if err != nil {
			return nil, err
		}
		s := new(jsonschema.Schema)
		return s, json.Unmarshal(b, s)
	}
	id := &url.URL{Scheme: "https", Host: "openwop.dev", Path: "/spec/" + name + ".schema.json"}
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

// Each body satisfies the contract that its response names; none named is 1.x.
func TestBodiesAgainstTheSchemas(t *testing.T) {
	if _, err := os.Stat(schemas); err != nil {
		t.Skip("no OpenWOP schemas beside the checkout")
	}
	failure := schema(t, "v1/error-envelope")
	ancestry1, ancestry2 := schema(t, "v1/run-ancestry-response"), schema(t, "v2/run-ancestry-response")
	open := newAPI(t, ancestry.APIOptions{}).Wrap(behind)
	closed := newAPI(t, ancestry.APIOptions{Auth: ancestry.AuthBearer, Bearer: func() string { return "t" }}).Wrap(behind)

	two := 0
	for _, l := range family().list {
		for _, id := range []ancestry.RunID{l.Run, l.ID()} {
			for _, r := range [][]string{
				{"/v1/runs/" + url.PathEscape(string(id)) + "/ancestry"},
				{"/runs/" + id.Segment() + "/ancestry"},
				{"/runs/" + id.Segment() + "/ancestry", "OpenWOP-Version: 2"},
				{"/runs/" + id.Segment() + "/ancestry", "OpenWOP-Version: 9"},
				{"/v1/runs/~/ancestry", "OpenWOP-Version: 2"},
				{"/runs/~/ancestry"},
			} {
				for h, api := range map[string]http.Handler{"open": open, "closed": closed} {
					resp := ask(api, r[0], r[1:]...)
					want := failure
					if resp.StatusCode == 200 {
						want = ancestry1
						if strings.HasPrefix(resp.Header.Get("OpenWOP-Version"), "2") {
							want = ancestry2
							two++
						}
					}
					var v any
					b := body(t, resp)
					if err := json.Unmarshal([]byte(b), &v); err != nil {
						t.Fatal(err)
					}
					if err := want.Validate(v); err != nil {
						t.Errorf("%s %q: %s: %v", h, r, b, err)
					}
				}
			}
		}
	}
	if two == 0 {
		t.Error("no answer in 2.x was checked")
	}
}
