package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// read asks for the ancestry of a run on the protocol's path, or on that of the mount.
func (h *owHost) read(t testing.TB, mount, run string) (*http.Response, string) {
	t.Helper()
	return h.readAs(t, mount, run, "")
}

// readAs is read with an Authorization header.
func (h *owHost) readAs(t testing.TB, mount, run, auth string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, h.public+h.path(mount+"/runs/"+h.segment(run)+"/ancestry"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if h.major == 2 {
		req.Header.Set("OpenWOP-Version", "2")
	}
	if auth != "" {
		req.Header.Set("Authorization", auth)
	}
	resp, body := answerTo(t, req)
	return resp, strings.TrimSpace(string(body))
}

// TestOpenWOPUnadvertised: where discovery does not advertise the endpoint, its path
// is the same 404 for every run. What is known is read on a mount of our own, which
// discovery tells of, and a walk finds its way there, on to hosts that advertise it
// and back.
func TestOpenWOPUnadvertised(t *testing.T) {
	const mount = "/host/wopproxy"
	for _, majors := range owPairs {
		t.Run(fmt.Sprintf("v%d and v%d", majors[0], majors[1]), func(t *testing.T) {
			t.Parallel()
			silent := settings{"ingress.discovery.causation": "extension"}
			front := newOWHost(t, "front.example.com", majors[0], "127.0.0.2", silent)
			middle := newOWHost(t, "middle.example.com", majors[1], "127.0.0.3")
			last := newOWHost(t, "last.example.com", majors[0], "127.0.0.4", silent)
			run := front.begun(t, owPlan{Label: "root", Calls: []owCall{{Via: "a2a", To: middle.at(), Plan: owPlan{Label: "middle", Calls: []owCall{
				{Via: "a2a", To: last.at(), Plan: owPlan{Label: "last"}},
			}}}}}, nil)
			if err := run.await(t); err != nil {
				t.Fatal(err)
			}
			leaf := last.called("last").id
			there, body := last.read(t, "", leaf)
			nowhere, none := last.read(t, "", strings.Repeat("0", len(leaf)))
			if last.major == 2 {
				nowhere, none = last.read(t, "", "acme/0000000000000000")
			}
			for _, resp := range []*http.Response{there, nowhere} {
				resp.Header.Del("Date")
			}
			if there.StatusCode != 404 || nowhere.StatusCode != 404 || body != none || !cmp.Equal(there.Header, nowhere.Header) {
				t.Errorf("a run = %d %v %s\nno run = %d %v %s\nwant the same 404", there.StatusCode, there.Header, body, nowhere.StatusCode, nowhere.Header, none)
			}
			validate(t, "v1/error-envelope.schema", []byte(body)) // v2 has the same
			if got := there.Header.Get("OpenWOP-Version"); (got == "2.0") != (last.major == 2) {
				t.Errorf("OpenWOP-Version of the 404 = %q", got)
			}
			resp, body := last.read(t, mount, leaf)
			if resp.StatusCode != 200 || !strings.Contains(body, `"hostId":"middle.example.com"`) || resp.Header["Openwop-Version"] != nil {
				t.Errorf("on the mount = %d %v %s, want the parent, and no version", resp.StatusCode, resp.Header, body)
			}
			validate(t, "v1/run-ancestry-response.schema", []byte(body)) // where an id of the parent's may be one of v1
			if w := owWalkFrom(t, last, leaf, "-allow", "127.0.0.0/8"); w.Stop != "root" || len(w.Hops) != 3 || w.Hops[2].HostID != "front.example.com" || !w.Hops[2].Confirmed {
				t.Errorf("walk = %+v, want it to come to the first host", w)
			}
		})
	}
	t.Run("off", func(t *testing.T) {
		h := newOWHost(t, "host.example.com", 1, "127.0.0.2", settings{"ingress.discovery.causation": "off"})
		run := h.begun(t, owPlan{Label: "root"}, nil).id
		if resp, body := h.read(t, "", run); resp.StatusCode != 404 {
			t.Errorf("on the protocol's path = %d %s, want 404", resp.StatusCode, body)
		}
		if resp, body := h.read(t, mount, run); resp.StatusCode != 200 {
			t.Errorf("on the mount = %d %s, want 200", resp.StatusCode, body)
		}
		if _, doc := get(t, h.public+"/.well-known/openwop"); strings.Contains(string(doc), "wopproxy") {
			t.Errorf("discovery = %s, want the host's own", doc)
		}
	})
}
