package e2e

import (
	"fmt"
	"net/http"
	"os"
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

// TestOpenWOPMalformedTrace creates runs with a trace context that is none: the run
// begins all the same, in a new trace, which its calls go on with, and who has caused
// it is recorded.
func TestOpenWOPMalformedTrace(t *testing.T) {
	worker := newOWHost(t, "worker.example.com", 2, "127.0.0.3")
	for _, major := range []int{1, 2} {
		planner := newOWHost(t, "planner.example.com", major, "127.0.0.2")
		traces := map[string]bool{}
		for i, bad := range []string{
			"garbage", "00-00000000000000000000000000000000-00f067aa0ba902b7-01", "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
			"00-4BF92F3577B34DA6A3CE929D0E0E4736-00F067AA0BA902B7-01", "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
			"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more", "",
		} {
			header := forgedAncestry("acme/0123456789abcdef", "front.example.com", "https://front.example.com/.well-known/openwop")
			header.Set("Traceparent", bad)
			header.Set("Tracestate", "vendor=1")
			label := fmt.Sprint(major, " ", i)
			run := planner.begun(t, owPlan{Label: label, Calls: []owCall{{Via: "a2a", To: worker.at(), Plan: owPlan{Label: "of " + label}}}}, header)
			if err := run.await(t); err != nil {
				t.Fatal(err)
			}
			trace := traceOf(run.trace.Get("Traceparent"))
			if trace == "" || traces[trace] || strings.Contains(bad, trace) || strings.Contains(run.trace.Get("Tracestate"), "vendor") {
				t.Errorf("v%d, %q: the host was given %v, want a trace of its own", major, bad, run.trace)
			}
			traces[trace] = true
			if got := traceOf(worker.called("of " + label).trace.Get("Traceparent")); got != trace {
				t.Errorf("v%d, %q: the call went out in trace %q, want %q", major, bad, got, trace)
			}
			if got := planner.ancestry(t, run.id); got.HostID != "front.example.com" {
				t.Errorf("v%d, %q: parent = %+v, want the one that was told", major, bad, got)
			}
		}
	}
}

// TestOpenWOPStalePointer: a host that has lost its links confirms nothing any more,
// and the pointer that others keep stays what it was.
func TestOpenWOPStalePointer(t *testing.T) {
	planner := newOWHost(t, "planner.example.com", 1, "127.0.0.2")
	worker := newOWHost(t, "worker.example.com", 2, "127.0.0.3")
	run := planner.begun(t, owPlan{Label: "root", Wait: true, Calls: []owCall{{Via: "a2a", To: worker.at(), Plan: owPlan{Label: "child"}}}}, nil)
	planner.open()
	if err := run.await(t); err != nil {
		t.Fatal(err)
	}
	child := worker.called("child").id
	if w := owWalkFrom(t, worker, child, "-allow", "127.0.0.0/8"); w.Stop != "root" || len(w.Hops) != 2 {
		t.Errorf("walk = %+v, want it to the root", w)
	}
	planner.stop(t)
	file, err := os.ReadFile(planner.file)
	if err != nil {
		t.Fatal(err)
	}
	dir := decode[struct {
		Ancestry struct {
			Store struct{ Bolt struct{ Dir string } }
		}
	}](t, file).Ancestry.Store.Bolt.Dir
	if err := os.RemoveAll(dir); err != nil || dir == "" {
		t.Fatalf("remove the store %q: %v", dir, err)
	}
	planner.serve(t, nil, planner.file)
	w := owWalkFrom(t, worker, child, "-allow", "127.0.0.0/8")
	want := owWalk{Stop: "not-found", Hops: []owHop{
		{RunID: child, HostID: "worker.example.com", Confirmed: true},
		{RunID: run.id, HostID: "planner.example.com", Cause: "a2a-message"},
	}}
	if diff := cmp.Diff(want, w); diff != "" {
		t.Errorf("walk over a stale pointer (-want +got):\n%s", diff)
	}
}
