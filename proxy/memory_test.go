package proxy

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/wopproxy/wopproxy/ancestry"
)

// TestWatchMemory: an entry that somebody reads is held against the event that
// tells of its writing, in its scope alone, and told of once.
func TestWatchMemory(t *testing.T) {
	const at, before = "2026-01-01T12:10:00Z", "2026-01-01T12:00:00Z"
	log := func(run string, writes ...string) string {
		var events []string
		for i, w := range writes {
			ref, rest, _ := strings.Cut(w, "/")
			id, time, ok := strings.Cut(rest, "@")
			if !ok {
				time = at
			}
			events = append(events, fmt.Sprintf(`{"eventId":"%s-e%d","runId":%q,"type":"memory.written","sequence":%d,"timestamp":%q,"payload":{"memoryRef":%q,"memoryId":%q}}`, run, i, run, i, time, ref, id))
		}
		return `{"events":[` + strings.Join(events, ",") + `]}`
	}
	entry := func(id string) string {
		return fmt.Sprintf(`{"id":%q,"content":"secret","tags":[],"createdAt":%q,"expiresAt":"2026-01-01T13:00:00Z"}`, id, before)
	}
	for _, tt := range []struct {
		name, path, answer string
		log                string
		status             int
		want               string // the event that is found
	}{
		{name: "an entry", path: "/v1/host/sample/memory/m1", log: log("r1", "ref/m1"), answer: `{"memoryRef":"ref","entry":` + entry("m1") + `}`, want: "r1-e0"},
		{name: "a list", path: "/host/acme/memory?limit=9", log: log("r1", "ref/m0", "ref/m1"), answer: `{"memoryRef":"ref","entries":[` + entry("mx") + `,` + entry("m1") + `]}`, want: "r1-e1"},
		{name: "another scope", path: "/host/acme/memory/m1", log: log("r1", "ref/m1"), answer: `{"memoryRef":"other","entry":` + entry("m1") + `}`},
		{name: "no scope", path: "/host/acme/memory/m1", log: log("r1", "ref/m1"), answer: entry("m1")},
		{name: "as the log says", path: "/host/acme/memory/m1", log: log("r1", "ref/m1@"+before), answer: `{"memoryRef":"ref","entry":` + entry("m1") + `}`},
		{name: "written twice", path: "/host/acme/memory/m1", log: log("r1", "ref/m1", "ref/m1@2026-01-01T12:20:00Z"), answer: `{"memoryRef":"ref","entry":` + entry("m1") + `}`},
		{name: "an error", path: "/host/acme/memory/m1", log: log("r1", "ref/m1"), status: 500, answer: `{"memoryRef":"ref","entry":` + entry("m1") + `}`},
		{name: "no memory", path: "/host/acme/files/m1", log: log("r1", "ref/m1"), answer: `{"memoryRef":"ref","entry":` + entry("m1") + `}`},
		{name: "nothing was written", path: "/host/acme/memory/m1", log: log("r1"), answer: `{"memoryRef":"ref","entry":` + entry("m1") + `}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var asked http.Header
			host := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				switch {
				case strings.HasSuffix(r.URL.Path, "/events/poll"):
					_, _ = io.WriteString(w, tt.log)
				case r.URL.Path == discoveryPath:
					w.WriteHeader(http.StatusNotFound)
				default:
					asked = r.Header
					w.WriteHeader(max(tt.status, 200))
					_, _ = io.WriteString(w, tt.answer)
				}
			}))
			t.Cleanup(host.Close)
			s := newSidecar(t, "h.example.com", host.URL)
			for range 2 { // who reads a log again hears of the same writes
				fetched(t, s.ingress.URL+"/runs/r1/events/poll")
				if got := fetched(t, s.ingress.URL+tt.path); got != tt.answer {
					t.Errorf("answer = %s, want %s", got, tt.answer)
				}
			}
			found, _ := s.Findings("r1")
			got := ""
			for _, f := range found {
				got += f.Event
			}
			if got != tt.want {
				t.Errorf("Findings = %v, want %q", found, tt.want)
			}
			want := 0.0
			if tt.want != "" {
				want = 1
			}
			s.handled.wait(t)
			if n := s.series(t)[`wopproxy_execution_findings_total{rule="memory-expiry"}`]; n != want {
				t.Errorf("findings counted = %v, want %v", n, want)
			}
			if asked.Get("Traceparent") != "" || asked.Get("Run-Id") != "" {
				t.Errorf("the request has got %v on its way", asked)
			}
		})
	}
}

// What was written is forgotten, first the oldest, and that is counted.
func TestWatchMemoryIsBounded(t *testing.T) {
	host := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if !strings.HasSuffix(r.URL.Path, "/events/poll") {
			var all []string
			for i := range 3 {
				all = append(all, fmt.Sprintf(`{"id":"m%d","createdAt":"2025-01-01T00:00:00Z","expiresAt":"2027-01-01T00:00:00Z"}`, i))
			}
			_, _ = fmt.Fprintf(w, `{"memoryRef":"ref","entries":[%s]}`, strings.Join(all, ","))
			return
		}
		var all []string
		for i := range 3 {
			all = append(all, fmt.Sprintf(`{"eventId":"e%d","runId":"r1","type":"memory.written","sequence":%d,"timestamp":"2026-01-01T00:00:00Z","payload":{"memoryRef":"ref","memoryId":"m%d"}}`, i, i, i))
		}
		_, _ = fmt.Fprintf(w, `{"events":[%s]}`, strings.Join(all, ","))
	}))
	t.Cleanup(host.Close)
	s := newSidecar(t, "h.example.com", host.URL, func(o *Options, _ *Policy) { o.MaxWatched = 2 })
	fetched(t, s.ingress.URL+"/runs/r1/events/poll")
	fetched(t, s.ingress.URL+"/host/acme/memory")
	s.wantSeries(t, hit("memory"), 1)
	found, _ := s.Findings(ancestry.RunID("r1"))
	var events []string
	for _, f := range found {
		events = append(events, f.Event)
	}
	if fmt.Sprint(events) != "[e1 e2]" {
		t.Errorf("found %v, want what was written last", found)
	}
}
