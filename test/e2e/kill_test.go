package e2e

import (
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"sync"
	"testing"
	"time"
)

// TestKill kills the program under load, again and again, as a kernel out of
// memory does. Every run whose answer its caller has seen is in the store when
// the program is back, with its parent.
func TestKill(t *testing.T) {
	const rounds, callers = 5, 16
	s := start(t, "host.example.com", idleHost(t))
	seen := map[string]string{} // run: parent
	for round := range rounds {
		before := len(seen)
		maps.Copy(seen, loadUntilKilled(t, s, callers))
		if len(seen) == before {
			t.Errorf("round %d: no answer was seen before the kill", round)
		}
		s.serve(t, nil, s.file)
		for run, parent := range seen {
			l, ok := s.link(t, run)
			if !ok || l.parent().RunID != parent || l.parent().HostID != "caller.example.com" {
				t.Errorf("round %d: run %s = %+v, %v, want the child of %s", round, run, l.parent(), ok, parent)
			}
		}
	}
	t.Logf("%d runs were answered in %d rounds", len(seen), rounds)
	// The store goes on where it was.
	if run := begin(t, s, "after", http.StatusOK); s.parent(t, run).RunID != "after" {
		t.Errorf("parent of a run after the kills = %+v, want after", s.parent(t, run))
	}
}

// loadUntilKilled lets callers begin runs without pause, kills the program at a
// random point, and returns the runs whose answers were seen, with the parents
// that their callers named.
func loadUntilKilled(t *testing.T, s *sidecar, callers int) map[string]string {
	var mu sync.Mutex
	seen := map[string]string{}
	enough := make(chan struct{})
	var once sync.Once
	var load sync.WaitGroup
	// Its own, so that no connection outlives the round.
	tr := &http.Transport{MaxIdleConnsPerHost: callers}
	defer tr.CloseIdleConnections()
	c := &http.Client{Transport: tr, Timeout: patience}
	for range callers {
		load.Go(func() { // ends when the program is dead
			for {
				parent := "run-" + randomHex(8)
				req, err := http.NewRequest(http.MethodPost, s.ingress+"/chat", nil)
				if err != nil {
					t.Error(err)
					return
				}
				req.Header.Set("Run-Ancestry", `"`+parent+`";host="caller.example.com";wk="https://caller.example.com/.well-known/openwop";cause=core.dispatch`)
				resp, err := c.Do(req)
				if err != nil {
					return
				}
				_, err = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
				if err != nil || resp.StatusCode != http.StatusOK {
					return
				}
				mu.Lock()
				seen[resp.Header.Get("Seen-Run")] = parent
				if len(seen) >= callers {
					once.Do(func() { close(enough) })
				}
				mu.Unlock()
			}
		})
	}
	if err := await(enough, "there is load"); err != nil {
		t.Error(err)
	}
	<-time.After(time.Duration(rand.IntN(100)) * time.Millisecond)
	s.signal(t, os.Kill)
	load.Wait()
	if code := s.wait(t); code != -1 {
		t.Errorf("exit code after kill -9 = %d, want death by the signal", code)
	}
	return seen
}
