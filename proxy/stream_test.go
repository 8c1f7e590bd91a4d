package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// streamRows are requests whose answers may come in pieces: what is ours is
// observed on its way, what is not is not.
var streamRows = []struct {
	name, contentType string
	ours              bool
	pieces            []string
}{
	{"MCP events", "text/event-stream", true, []string{
		": keep-alive\n\n",
		"data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\"}\n\n",
		"data: {\"jsonrpc\":\"2.0\",", "\"id\":1,\"result\":{}}\n\n"}},
	{"MCP JSON in chunks", "application/json", true, []string{`{"jsonrpc":"2.0",`, `"id":1,"result":`, `{}}`}},
	{"events of others", "text/event-stream", false, []string{"data: 1\n\n", "data: 2\n\n"}},
	{"NDJSON", "application/x-ndjson", false, []string{"{\"a\":1}\n", "{\"a\":2}\n"}},
	{"bytes", "application/octet-stream", false, []string{"a", "b"}},
}

// streamRequest asks for one of the answers above.
func streamRequest(t testing.TB, to string, ours bool) *http.Request {
	t.Helper()
	if ours {
		return request(t, to, []byte(call), "Accept", "application/json, text/event-stream")
	}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+to+"/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// What a stream says is with the client as soon as it was said: the head before
// the first event, and each piece before the next one. The far side sends
// nothing until the client has had what came before, so a byte that waits in a
// buffer fails the test.
func TestStreamsPassAsTheyCome(t *testing.T) {
	for _, way := range pathways {
		for _, row := range streamRows {
			t.Run(way.name+"/"+row.name, func(t *testing.T) {
				next := make(chan struct{})
				to := peer(t, func(w http.ResponseWriter, r *http.Request) {
					w.Header().Set("Content-Type", row.contentType)
					w.WriteHeader(http.StatusOK)
					for _, p := range row.pieces {
						_ = http.NewResponseController(w).Flush()
						select {
						case <-next:
						case <-r.Context().Done():
							return
						}
						_, _ = io.WriteString(w, p)
					}
				})
				s := newSidecar(t, "agent.example.com", "http://"+to)
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				resp, err := way.send(t, s, streamRequest(t, to, row.ours).WithContext(ctx))
				if err != nil {
					t.Fatalf("the head waits for the body: %v", err)
				}
				defer resp.Body.Close()
				for i, p := range row.pieces {
					next <- struct{}{}
					b := make([]byte, len(p))
					if n, err := io.ReadFull(resp.Body, b); err != nil || string(b) != p {
						t.Fatalf("piece %d = %q, %v, want %q", i, b[:n], err, p)
					}
				}
				if rest, err := io.ReadAll(resp.Body); len(rest) > 0 || err != nil {
					t.Errorf("%q is left over, %v", rest, err)
				}
			})
		}
	}
}

// A client that hangs up is noticed by the far side at once, before the answer
// has begun and in the middle of it.
func TestHangUpReachesTheFarSide(t *testing.T) {
	for _, way := range pathways {
		for _, ours := range []bool{true, false} {
			for _, begun := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/ours=%v/begun=%v", way.name, ours, begun), func(t *testing.T) {
					far := newBusy(t, begun)
					to := peer(t, far.serve)
					s := newSidecar(t, "agent.example.com", "http://"+to)
					far.isLeft(t, s, way.dir, ours, func(ctx context.Context) (*http.Response, error) {
						return way.send(t, s, streamRequest(t, to, ours).WithContext(ctx))
					})
				})
			}
		}
	}
}

// So it is inside of TLS that was opened.
func TestHangUpInsideOfTLS(t *testing.T) {
	for name, h2 := range map[string]bool{"HTTP/1.1": false, "HTTP/2": true} {
		for _, ours := range []bool{true, false} {
			for _, begun := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/ours=%v/begun=%v", name, ours, begun), func(t *testing.T) {
					far := newBusy(t, begun)
					up, roots := secureServer(t, far.serve)
					s := newInterceptingSidecar(t, roots)
					c := s.trusting(t, s.roots(t), h2)
					far.isLeft(t, s, egress, ours, func(ctx context.Context) (*http.Response, error) {
						r := streamRequest(t, up.Listener.Addr().String(), ours).WithContext(ctx)
						r.URL.Scheme = "https"
						return c.Do(r)
					})
				})
			}
		}
	}
}

// busy is a far side that works until its client goes.
type busy struct {
	begun      bool // its answer has
	here, gone chan struct{}
	over       <-chan struct{} // the test is, in vain
}

func newBusy(t *testing.T, begun bool) *busy {
	return &busy{begun, make(chan struct{}), make(chan struct{}), t.Context().Done()}
}

func (b *busy) serve(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	if b.begun {
		w.Header().Set("Content-Type", "text/event-stream")
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
	}
	close(b.here)
	select {
	case <-r.Context().Done():
		close(b.gone)
	case <-b.over:
	}
}

// isLeft has a client send a request by way of s, and hang up while b works on it.
func (b *busy) isLeft(t *testing.T, s *sidecar, dir direction, ours bool, send func(context.Context) (*http.Response, error)) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	over := make(chan error, 1)
	go func() {
		resp, err := send(ctx)
		if err == nil {
			_, err = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
		}
		over <- err
	}()
	receive(t, b.here, "the request to arrive")
	cancel()
	receive(t, b.gone, "the far side to notice")
	if err := receive(t, over, "the client to end"); err == nil {
		t.Error("the client has got a whole answer")
	}
	protocol := "http"
	if ours {
		protocol = "mcp"
	}
	s.awaitSeries(t, fmt.Sprintf("wopproxy_exchanges_total{direction=%q,outcome=%q,protocol=%q}", dir, outcomeClient, protocol), 1)
}

// A far side that breaks off in the middle of its answer breaks off the client's
// answer too. A clean end would make half an answer look like a whole one.
func TestBreakOffReachesTheClient(t *testing.T) {
	for _, way := range pathways {
		for _, row := range streamRows {
			t.Run(way.name+"/"+row.name, func(t *testing.T) {
				to := peer(t, func(w http.ResponseWriter, r *http.Request) {
					_, _ = io.Copy(io.Discard, r.Body)
					w.Header().Set("Content-Type", row.contentType)
					_, _ = io.WriteString(w, row.pieces[0])
					_ = http.NewResponseController(w).Flush()
					panic(http.ErrAbortHandler)
				})
				s := newSidecar(t, "agent.example.com", "http://"+to)
				resp, err := way.send(t, s, streamRequest(t, to, row.ours))
				if err == nil {
					var b []byte
					b, err = io.ReadAll(resp.Body)
					resp.Body.Close()
					if err == nil {
						t.Errorf("the client got a clean end behind %q", b)
					}
				}
				protocol := "http"
				if row.ours {
					protocol = "mcp"
				}
				s.awaitSeries(t, fmt.Sprintf("wopproxy_exchanges_total{direction=%q,outcome=%q,protocol=%q}", way.dir, outcomeUpstream, protocol), 1)
			})
		}
	}
}

// Trailers of an answer pass, those that were announced and those that were not.
func TestTrailersPass(t *testing.T) {
	to := peer(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Trailer", "Announced")
		_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":1,"result":{}}`)
		_ = http.NewResponseController(w).Flush()
		w.Header().Set("Announced", "a")
		w.Header().Set(http.TrailerPrefix+"Sudden", "b")
	})
	for _, way := range pathways {
		for _, ours := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/ours=%v", way.name, ours), func(t *testing.T) {
				s := newSidecar(t, "agent.example.com", "http://"+to)
				resp, err := way.send(t, s, streamRequest(t, to, ours))
				if err != nil {
					t.Fatal(err)
				}
				defer resp.Body.Close()
				if _, err := io.Copy(io.Discard, resp.Body); err != nil {
					t.Fatal(err)
				}
				if a, b := resp.Trailer.Get("Announced"), resp.Trailer.Get("Sudden"); a != "a" || b != "b" {
					t.Errorf("trailers = %v, want Announced: a and Sudden: b", resp.Trailer)
				}
			})
		}
	}
}

// Trailers of a request pass as well; the body in front of them is left alone.
func TestRequestTrailersPass(t *testing.T) {
	got := make(chan http.Header, 1)
	to := peer(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		got <- r.Trailer.Clone()
	})
	for _, way := range pathways {
		for _, contentType := range []string{"application/json", "application/octet-stream"} {
			t.Run(way.name+"/"+contentType, func(t *testing.T) {
				s := newSidecar(t, "agent.example.com", "http://"+to)
				r := request(t, to, nil, "Content-Type", contentType)
				r.ContentLength = -1
				r.Trailer = http.Header{"Checksum": nil}
				// The value of a trailer is known when the body is over.
				r.Body = io.NopCloser(io.MultiReader(strings.NewReader(call), readerFunc(func([]byte) (int, error) {
					r.Trailer["Checksum"] = []string{"c"}
					return 0, io.EOF
				})))
				resp, err := way.send(t, s, r)
				if err != nil {
					t.Fatal(err)
				}
				resp.Body.Close()
				if h := receive(t, got, "the request"); h.Get("Checksum") != "c" {
					t.Errorf("trailers = %v, want Checksum: c", h)
				}
			})
		}
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }

// A host that answers before it has read the request is no reason to lose the
// answer (golang/go#40747): not with a body that is read in advance, and not with
// one that streams through.
func TestAnswerBeforeTheBodyIsRead(t *testing.T) {
	const events = 200
	to := peer(t, func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).EnableFullDuplex()
		w.Header().Set("Content-Type", "text/event-stream")
		for i := range events {
			fmt.Fprintf(w, "data: %d\n\n", i)
			_ = http.NewResponseController(w).Flush()
		}
		_, _ = io.Copy(io.Discard, r.Body)
	})
	for _, way := range pathways {
		for name, size := range map[string]int{"read in advance": 4 << 10, "streamed": 4<<20 + 1} {
			t.Run(way.name+"/"+name, func(t *testing.T) {
				s := newSidecar(t, "agent.example.com", "http://"+to)
				for range 5 {
					resp, err := way.send(t, s, request(t, to, toolCall(size)))
					if err != nil {
						t.Fatal(err)
					}
					b, err := io.ReadAll(resp.Body)
					resp.Body.Close()
					if n := strings.Count(string(b), "\n\n"); err != nil || n != events {
						t.Fatalf("%d events, %v, want %d", n, err, events)
					}
				}
			})
		}
	}
}

// Both directions of a request may stream at once: what the client sends next may
// depend on what it has been answered.
func TestFullDuplex(t *testing.T) {
	to := peer(t, func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).EnableFullDuplex()
		w.Header().Set("Content-Type", "application/octet-stream")
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		b := make([]byte, 1)
		for {
			if _, err := io.ReadFull(r.Body, b); err != nil {
				return
			}
			_, _ = w.Write(b)
			_ = http.NewResponseController(w).Flush()
		}
	})
	for _, way := range pathways {
		t.Run(way.name, func(t *testing.T) {
			s := newSidecar(t, "agent.example.com", "http://"+to)
			pr, pw := io.Pipe()
			stuck := time.AfterFunc(patience, func() { pr.CloseWithError(errors.New("nobody reads the request")) })
			defer stuck.Stop()
			r := request(t, to, nil, "Content-Type", "application/octet-stream")
			r.Body, r.ContentLength = pr, -1
			resp, err := way.send(t, s, r)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			for _, want := range []byte("ping") {
				if _, err := pw.Write([]byte{want}); err != nil {
					t.Fatal(err)
				}
				got := make([]byte, 1)
				if _, err := io.ReadFull(resp.Body, got); err != nil || got[0] != want {
					t.Fatalf("echo = %q, %v, want %q", got, err, want)
				}
			}
			pw.Close()
			if rest, err := io.ReadAll(resp.Body); len(rest) > 0 || err != nil && !errors.Is(err, io.EOF) {
				t.Errorf("%q is left over, %v", rest, err)
			}
		})
	}
}
