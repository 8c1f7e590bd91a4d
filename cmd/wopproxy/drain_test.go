package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
)

// TestDrainFromElsewhere: there is no way back from a drain, so a stranger on the
// network gets none.
func TestDrainFromElsewhere(t *testing.T) {
	for _, tt := range []struct {
		remote, local string
		want          bool
	}{
		{"127.0.0.1:1000", "127.0.0.1:9090", true},
		{"[::1]:1000", "[::1]:9090", true},
		{"10.0.0.7:1000", "10.0.0.7:9090", true}, // the pod's own address
		{"10.0.0.8:1000", "10.0.0.7:9090", false},
		{"[::ffff:10.0.0.7]:1000", "10.0.0.7:9090", true},
		{"@", "10.0.0.7:9090", false},
	} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPut, "/drain", nil)
		local, err := net.ResolveTCPAddr("tcp", tt.local)
		if err != nil {
			t.Fatal(err)
		}
		r.RemoteAddr = tt.remote
		r = r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, local))
		if got := fromHere(r); got != tt.want {
			t.Errorf("fromHere from %s at %s = %v, want %v", tt.remote, tt.local, got, tt.want)
		}
		if tt.want {
			continue
		}
		w, s := httptest.NewRecorder(), &sidecar{}
		if s.drainNow(w, r); w.Code != http.StatusForbidden || s.drain.begun.Load() {
			t.Errorf("PUT /drain from %s at %s = %d, draining %v", tt.remote, tt.local, w.Code, s.drain.begun.Load())
		}
	}
}

// TestPartingMeanwhile: the answer to a request that was at work when the drain began
// is the last on its connection too.
func TestPartingMeanwhile(t *testing.T) {
	s := &sidecar{}
	for name, answer := range map[string]func(w http.ResponseWriter){
		"with a head":    func(w http.ResponseWriter) { w.WriteHeader(http.StatusCreated) },
		"without a head": func(w http.ResponseWriter) { _, _ = io.WriteString(w, "done") },
	} {
		srv := httptest.NewServer(s.parting(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			s.drain.begun.Store(r.URL.Path == "/drains")
			answer(w)
		})))
		defer srv.Close()
		for path, last := range map[string]bool{"/": false, "/drains": true} {
			s.drain.begun.Store(false)
			resp, err := srv.Client().Get(srv.URL + path)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if resp.Close != last {
				t.Errorf("%s, %s: Close = %v, want %v", name, path, resp.Close, last)
			}
		}
	}
}
