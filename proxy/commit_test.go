package proxy

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/wopproxy/wopproxy/ancestry"
	"github.com/wopproxy/wopproxy/ancestry/ancestrytest"
)

func waitsOf(o commitOutcome) string {
	return fmt.Sprintf("wopproxy_commit_waits_total{outcome=%q}", o)
}

// The wait for a durable link has exact edges: it ends with the commit, with the
// commit timeout, or when nobody waits for the answer any more.
func TestCommitWait(t *testing.T) {
	const timeout = 100 * time.Millisecond
	boom := errors.New("disk full")
	rows := []struct {
		name     string
		store    time.Duration // how long a commit takes
		fails    bool
		hangUp   time.Duration // when the client goes; 0: never
		want     time.Duration // how long the answer waits
		counted  commitOutcome // "" for not at all
		recorded bool          // the recorder accepts the link
	}{
		{name: "at once", store: 0, want: 0, counted: commitDurable, recorded: true},
		{name: "just in time", store: timeout - 1, want: timeout - 1, counted: commitDurable, recorded: true},
		{name: "too late", store: timeout + 1, want: timeout, counted: commitTimeout, recorded: true},
		{name: "never", store: time.Hour, want: timeout, counted: commitTimeout, recorded: true},
		{name: "fails for good", fails: true, want: 0, counted: commitLost},
		{name: "client gone", store: time.Hour, hangUp: time.Millisecond, want: time.Millisecond, recorded: true},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := ancestrytest.Memory()
				store.RecordHook = func([]ancestry.Link) error {
					time.Sleep(row.store)
					if row.fails {
						return boom
					}
					return nil
				}
				rec := ancestry.NewRecorder(store, ancestry.RecorderOptions{})
				ctx, stop := context.WithCancel(context.Background())
				if row.fails {
					stop() // so that the recorder tries once and gives up
				} else {
					go rec.Run(ctx)
				}
				reg := prometheus.NewRegistry()
				x := &exchange{
					p:      &Proxy{o: Options{Recorder: rec}, metrics: newMetrics(reg, func() holdings { return holdings{} })},
					policy: &policy{Policy: Policy{CommitTimeout: timeout}},
				}
				x.record(ancestry.Link{Run: "r-1", Reason: reasonNoAncestry, Time: time.Now()})
				if row.fails {
					rec.Run(ctx)
				}
				client, hangUp := context.WithCancel(context.Background())
				defer hangUp()
				if row.hangUp > 0 {
					time.AfterFunc(row.hangUp, hangUp)
				}
				began := time.Now()
				x.awaitCommit(client)
				if took := time.Since(began); took != row.want {
					t.Errorf("waited %v, want %v", took, row.want)
				}
				x.awaitCommit(client) // a link is waited for once
				if took := time.Since(began); took != row.want {
					t.Errorf("waited %v in all, want %v", took, row.want)
				}
				got := (&sidecar{reg: reg}).series(t)
				for _, o := range []commitOutcome{commitDurable, commitTimeout, commitLost} {
					want := 0.0
					if o == row.counted {
						want = 1
					}
					if n := got[waitsOf(o)]; n != want {
						t.Errorf("%s = %v, want %v", waitsOf(o), n, want)
					}
				}
				stop()
				time.Sleep(2 * time.Hour) // let a commit that is under way end
			})
		})
	}
}

// slowStore is a store whose commits take a while: long enough that an answer
// which does not wait for them is with the client first.
func slowStore() *ancestrytest.MemoryStore {
	store := ancestrytest.Memory()
	store.RecordHook = func([]ancestry.Link) error {
		<-time.After(30 * time.Millisecond)
		return nil
	}
	return store
}

// What the host has told of a run is in the store before the client can read it:
// whoever asks for the ancestry of that id at once gets an answer. The store is
// asked itself, and not the recorder, which knows what is still on its way.
func TestAliasIsDurableFirst(t *testing.T) {
	rows := []struct {
		name, path, body, contentType string
		status                        int
		first                         string // what the client has read when it asks
		rest                          string
		alias                         ancestry.RunID
	}{
		{"A2A", "/", `{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":{"message":{"messageId":"m"}}}`, "application/json", 200,
			`{"jsonrpc":"2.0","id":1,"result":{"task":{"id":"task-1","contextId":"c","status":{"state":"TASK_STATE_COMPLETED"}}}}`, "", "task-1"},
		{"A2A stream", "/", `{"jsonrpc":"2.0","id":1,"method":"message/stream","params":{"message":{"kind":"message","messageId":"m"}}}`, "text/event-stream", 200,
			"data: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"kind\":\"task\",\"id\":\"task-1\",\"contextId\":\"c\",\"status\":{\"state\":\"submitted\"}}}\n\n", "data: {}\n\n", "task-1"},
		{"A2A REST", "/message:send", `{"message":{"messageId":"m"}}`, "application/a2a+json; charset=utf-8", 200,
			`{"task":{"id":"task-1","contextId":"c","status":{"state":"TASK_STATE_WORKING"}}}`, "", "task-1"},
		{"A2A as text", "/", `{"jsonrpc":"2.0","id":1,"method":"message/send","params":{"message":{"kind":"message","messageId":"m"}}}`, "text/plain; charset=utf-8", 200,
			`{"jsonrpc":"2.0","id":1,"result":{"kind":"task","id":"task-1","contextId":"c","status":{"state":"working"}}}`, "", "task-1"},
		{"MCP task", "/mcp", call, "application/json", 200,
			`{"jsonrpc":"2.0","id":1,"result":{"resultType":"task","taskId":"task-1","status":"working"}}`, "", "task-1"},
		{"OpenWOP", "/v1/runs", `{"workflowId":"w"}`, "application/json", 201, `{"runId":"task-1","status":"pending"}`, "", "task-1"},
	}
	for _, row := range rows {
		for _, chunked := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/chunked=%v", row.name, chunked), func(t *testing.T) {
				t.Parallel()
				release := make(chan struct{})
				to := peer(t, func(w http.ResponseWriter, r *http.Request) {
					_, _ = io.Copy(io.Discard, r.Body)
					w.Header().Set("Content-Type", row.contentType)
					if !chunked {
						w.Header().Set("Content-Length", fmt.Sprint(len(row.first)+len(row.rest)))
					}
					w.WriteHeader(row.status)
					_, _ = io.WriteString(w, row.first)
					if row.rest == "" && chunked {
						return
					}
					_ = http.NewResponseController(w).Flush()
					if row.rest != "" {
						select {
						case <-release:
						case <-r.Context().Done():
						}
						_, _ = io.WriteString(w, row.rest)
					}
				})
				store := slowStore()
				s := newSidecarOn(t, store, "agent.example.com", "http://"+to)
				r := request(t, "x", []byte(row.body))
				r.URL.Host, r.URL.Path = strings.TrimPrefix(s.ingress.URL, "http://"), row.path
				resp, err := direct(t).RoundTrip(r)
				if err != nil {
					t.Fatal(err)
				}
				defer resp.Body.Close()
				b := make([]byte, len(row.first))
				if _, err := io.ReadFull(bufio.NewReader(resp.Body), b); err != nil {
					t.Fatal(err)
				}
				l, err := store.Lookup(t.Context(), row.alias)
				if err != nil || l.Alias != row.alias {
					t.Errorf("when the client has read the id, Lookup(%s) = %+v, %v", row.alias, l, err)
				}
				close(release)
			})
		}
	}
}

// An answer that names the run waits once for both of its links: while others are
// being committed, they come into one group.
func TestLinksOfAnAnswerShareACommit(t *testing.T) {
	groups, release := make(chan []ancestry.Link, 10), make(chan struct{})
	free := sync.OnceFunc(func() { close(release) })
	store := ancestrytest.Memory()
	store.RecordHook = func(links []ancestry.Link) error {
		groups <- links
		<-release
		return nil
	}
	to := peer(t, func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, `{"jsonrpc":"2.0","id":1,"result":{"task":{"id":"task-1","contextId":"c","status":{"state":"TASK_STATE_WORKING"}}}}`)
	})
	s := newSidecarOn(t, store, "agent.example.com", "http://"+to, func(o *Options, p *Policy) { p.CommitTimeout = time.Hour })
	t.Cleanup(free)
	s.Record(ancestry.Link{Run: "another", Reason: reasonNoAncestry, Time: time.Now()})
	receive(t, groups, "the commit of another run to begin")
	r := request(t, strings.TrimPrefix(s.ingress.URL, "http://"), []byte(`{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":{"message":{"messageId":"m"}}}`))
	client := direct(t)
	answered := make(chan error, 1)
	go func() {
		resp, err := client.RoundTrip(r)
		if err == nil {
			_, _ = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
		}
		answered <- err
	}()
	eventually(t, "the name of the run to be recorded", func() bool { return len(s.noted()) == 3 })
	select {
	case err := <-answered:
		t.Errorf("answered before anything was durable: %v", err)
	default:
	}
	free()
	if links := receive(t, groups, "the next commit"); len(links) != 2 || links[1].Alias != "task-1" {
		t.Errorf("committed %+v, want the link of the run and its name", links)
	}
	if err := receive(t, answered, "the answer"); err != nil {
		t.Fatal(err)
	}
	s.wantSeries(t, waitsOf(commitDurable), 1)
}

// An answer waits for the link of its run though the name of it was refused.
func TestRefusedNameWaitsForItsLink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := ancestrytest.Memory()
		store.RecordHook = func([]ancestry.Link) error {
			time.Sleep(time.Minute)
			return nil
		}
		rec := ancestry.NewRecorder(store, ancestry.RecorderOptions{Queue: 1})
		ctx, stop := context.WithCancel(context.Background())
		go rec.Run(ctx)
		reg := prometheus.NewRegistry()
		x := &exchange{
			p:      &Proxy{o: Options{Recorder: rec}, metrics: newMetrics(reg, func() holdings { return holdings{} })},
			policy: &policy{Policy: Policy{CommitTimeout: time.Hour}},
		}
		l := ancestry.Link{Run: "r-1", Reason: reasonNoAncestry, Time: time.Now()}
		x.record(l)
		l.Alias = "task-1"
		x.record(l)
		began := time.Now()
		x.awaitCommit(t.Context())
		if took := time.Since(began); took != time.Minute {
			t.Errorf("waited %v, want %v", took, time.Minute)
		}
		(&sidecar{reg: reg}).wantSeries(t, waitsOf(commitLost), 1)
		stop()
		synctest.Wait()
	})
}

// The head of an answer leaves only when the link of the run is durable.
func TestAnswerWaitsForItsLink(t *testing.T) {
	to := peer(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done() // there is nothing but a head
	})
	store := slowStore()
	s := newSidecarOn(t, store, "agent.example.com", "http://"+to)
	r := request(t, strings.TrimPrefix(s.ingress.URL, "http://"), []byte(call))
	resp, err := direct(t).RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	for _, l := range s.noted() {
		if _, err := store.Lookup(t.Context(), l.Run); err != nil {
			t.Errorf("when the client has the head, Lookup(%s): %v", l.Run, err)
		}
	}
	if len(s.noted()) != 1 {
		t.Errorf("%d links were recorded, want 1", len(s.noted()))
	}
}

// A store that does not come back delays an answer by the commit timeout and no
// longer; one that refuses a link delays it by nothing. Both are counted.
func TestAnswerGoesOutWithoutItsLink(t *testing.T) {
	to := peer(t, func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "hello") })
	entered, release := make(chan struct{}, 100), make(chan struct{})
	store := ancestrytest.Memory()
	store.RecordHook = func([]ancestry.Link) error {
		entered <- struct{}{}
		<-release
		return nil
	}
	s := newSidecarOn(t, store, "agent.example.com", "http://"+to, func(o *Options, p *Policy) { p.CommitTimeout = 5 * time.Millisecond })
	t.Cleanup(func() { close(release) })
	ask := func() {
		t.Helper()
		resp, body := post(t, http.DefaultClient, s.ingress.URL+"/chat", "{}", nil)
		if resp.StatusCode != http.StatusOK || body != "hello" {
			t.Errorf("answer = %s %q, want the host's", resp.Status, body)
		}
	}
	ask()
	receive(t, entered, "the commit to begin")
	s.wantSeries(t, waitsOf(commitTimeout), 1)
	// The queue is full now: what comes next is refused at once.
	s.o.Recorder = &refusing{s.notebook}
	ask()
	s.wantSeries(t, waitsOf(commitLost), 1)
	s.wantSeries(t, waitsOf(commitTimeout), 1)
}

// refusing is a Recorder whose queue is full.
type refusing struct{ *notebook }

func (r *refusing) Record(ancestry.Link) ancestry.Commit {
	full := ancestry.NewRecorder(ancestry.NewMemory(), ancestry.RecorderOptions{Queue: -1})
	return full.Record(ancestry.Link{Run: "r", Time: time.Now()})
}
