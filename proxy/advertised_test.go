package proxy

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/wopproxy/wopproxy/ancestry"
	"github.com/wopproxy/wopproxy/audit"
)

// A host may advertise different things under each major, so that events are held
// against the document of the major that they were read under, which is asked for
// by that name, and once.
func TestAdvertisedByMajor(t *testing.T) {
	var mu sync.Mutex
	var asked []string
	host := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		major := r.Header.Get("OpenWOP-Version")
		if r.URL.Path != discoveryPath {
			run := strings.Split(strings.TrimPrefix(r.URL.Path, "/v1"), "/")[2]
			w.Header().Set("Content-Type", "application/json")
			_, _ = fmt.Fprintf(w, `{"events":[%s]}`, strings.Join(logOf(run), ","))
			return
		}
		mu.Lock()
		asked = append(asked, major)
		mu.Unlock()
		switch major { // one that is not served is refused
		case "1":
			_, _ = io.WriteString(w, `{"multiAgent":{"executionModel":{"supported":true,"version":2,"confidenceEscalationFloor":0.7}}}`)
		case "2":
			_, _ = io.WriteString(w, `{"multiAgent":{"executionModel":{"version":2,"confidenceEscalationFloor":0.5}}}`)
		default:
			w.WriteHeader(http.StatusNotAcceptable)
		}
	}))
	t.Cleanup(host.Close)
	s := newSidecar(t, "h.example.com", host.URL)
	for _, path := range []string{"/v1/runs/", "/runs/"} {
		fetched(t, s.ingress.URL+path+"first/events/poll")
		eventually(t, "discovery to be read", func() bool { return s.advertised.now(path == "/v1/runs/").model.Version == 2 })
		for range 3 {
			fetched(t, s.ingress.URL+path+"of"+strings.ReplaceAll(path, "/", "-")+"/events/poll")
		}
	}
	for run, want := range map[ancestry.RunID][]audit.Rule{
		"of-v1-runs-": {audit.RuleConfidenceSkipped, audit.RuleHandoffCause},
		"of-runs-":    {audit.RuleHandoffCause}, // 0.6 is above the floor
	} {
		found, _ := s.Findings(run)
		var rules []audit.Rule
		for _, f := range found {
			rules = append(rules, f.Rule)
		}
		if !slices.Equal(rules, want) {
			t.Errorf("%s: found %v, want %v", run, found, want)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if !slices.Equal(asked, []string{"1", "2"}) {
		t.Errorf("discovery was asked for under %q, want each major once", asked)
	}
}
