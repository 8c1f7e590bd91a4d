package proxy

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
)

// counting is a server of the connections that it is given, which it counts.
func counting(t *testing.T, serve func(c *rawConn, conn int32)) (addr string, conns *atomic.Int32) {
	conns = new(atomic.Int32)
	return talker(t, func(c *rawConn) { serve(c, conns.Add(1)) }), conns
}

// answerAll reads requests, and answers each with says until it says nothing.
func answerAll(c *rawConn, says func(i int) string) {
	for i := 0; ; i++ {
		r, err := http.ReadRequest(c.Reader)
		if err != nil {
			return
		}
		_, _ = io.Copy(io.Discard, r.Body)
		text := says(i)
		if text == "" {
			return
		}
		if _, err := io.WriteString(c.Conn, strings.ReplaceAll(text, "\n", "\r\n")); err != nil {
			return
		}
	}
}

const okAnswer = "HTTP/1.1 200 OK\nContent-Length: 2\n\nok"

// A connection to the next hop is used again after an answer that was read to its
// end, and never after one that may have left something behind.
func TestConnectionsAreUsedAgain(t *testing.T) {
	for _, row := range []struct {
		name, method, says string
		status             int
		body               string
		again              bool
	}{
		{"length", "GET", okAnswer, 200, "ok", true},
		{"chunked", "GET", "HTTP/1.1 200 OK\nTransfer-Encoding: chunked\n\n2\nok\n0\n\n", 200, "ok", true},
		{"trailers", "GET", "HTTP/1.1 200 OK\nTrailer: X-End\nTransfer-Encoding: chunked\n\n2\nok\n0\nX-End: 1\n\n", 200, "ok", true},
		{"no content", "DELETE", "HTTP/1.1 204 No Content\n\n", 204, "", true},
		{"not modified", "GET", "HTTP/1.1 304 Not Modified\nContent-Length: 7\n\n", 304, "", true},
		{"empty", "POST", "HTTP/1.1 202 Accepted\nContent-Length: 0\n\n", 202, "", true},
		{"HEAD", "HEAD", "HTTP/1.1 200 OK\nContent-Length: 7\n\n", 200, "", true},
		{"informed", "GET", "HTTP/1.1 102 Processing\n\n" + okAnswer, 200, "ok", true},
		{"close", "GET", "HTTP/1.1 200 OK\nConnection: close\nContent-Length: 2\n\nok", 200, "ok", false},
		{"1.0", "GET", "HTTP/1.0 200 OK\nContent-Length: 2\n\nok", 200, "ok", false},
		{"too much", "GET", okAnswer + okAnswer, 200, "ok", false},
		{"no content, and content", "GET", "HTTP/1.1 204 No Content\n\nHTTP/1.1 200 OK\n", 204, "", false},
	} {
		for _, way := range rawWays[:3] {
			t.Run(row.name+"/"+way.name, func(t *testing.T) {
				to, conns := counting(t, func(c *rawConn, _ int32) { answerAll(c, func(int) string { return row.says }) })
				s := newSidecar(t, "agent.example.com", "http://"+to)
				c, prefix := way.dial(t, s, to)
				for range 3 {
					c.send(row.method + " " + prefix + "/ HTTP/1.1\nHost: " + to + "\n\n")
					resp := c.answer(row.method)
					for resp.StatusCode == http.StatusProcessing {
						resp = c.answer(row.method)
					}
					if b, err := io.ReadAll(resp.Body); resp.StatusCode != row.status || string(b) != row.body || err != nil {
						t.Fatalf("answer = %s %q, %v, want %d %q", resp.Status, b, err, row.status, row.body)
					}
					s.handled.wait(t)
				}
				want := int32(3)
				if row.again {
					want = 1
				}
				if n := conns.Load(); n != want {
					t.Errorf("three requests took %d connections, want %d", n, want)
				}
			})
		}
	}
}

// As many connections stay open as were needed at a time, and not two for each
// next hop, by whichever transport they were opened.
func TestManyConnectionsAreUsedAgain(t *testing.T) {
	const many = 32
	for _, secure := range []bool{false, true} {
		t.Run(fmt.Sprintf("TLS=%v", secure), func(t *testing.T) {
			var conns atomic.Int32
			here, on := make(chan struct{}), make(chan struct{})
			far := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
				here <- struct{}{}
				<-on
			}))
			far.Config.ConnState = func(_ net.Conn, st http.ConnState) {
				if st == http.StateNew {
					conns.Add(1)
				}
			}
			start := far.Start
			if secure {
				start = far.StartTLS
			}
			start()
			defer far.Close()
			s := newSidecar(t, "agent.example.com", "http://127.0.0.1:1", func(o *Options, p *Policy) {
				if secure {
					o.Roots = x509.NewCertPool()
					o.Roots.AddCert(far.Certificate())
					p.OriginateTLS = func(string) bool { return true }
				}
			})
			c := s.client()
			for range 3 {
				answers := make(chan error, many)
				for range many {
					go func() {
						resp, err := c.Get("http://" + far.Listener.Addr().String())
						if err == nil {
							resp.Body.Close()
						}
						answers <- err
					}()
				}
				for range many {
					receive(t, here, "all requests to be there at a time")
				}
				for range many {
					on <- struct{}{}
				}
				for range many {
					if err := receive(t, answers, "the answers"); err != nil {
						t.Error(err)
					}
				}
				s.handled.wait(t)
			}
			if n := conns.Load(); n != many {
				t.Errorf("three times %d requests at a time took %d connections, want %d", many, n, many)
			}
		})
	}
}

// A next hop that has closed a connection meanwhile does not fail the next
// request: what it can't have acted on is sent again, and nothing else.
func TestClosedConnectionsAreReplaced(t *testing.T) {
	closed := make(chan struct{}, 1)
	gone := func(c *rawConn, conn int32) {
		answerAll(c, func(i int) string {
			if conn == 1 && i == 1 {
				return "" // it read the second request, and hangs up
			}
			return okAnswer
		})
	}
	left := func(c *rawConn, conn int32) {
		if conn > 1 {
			answerAll(c, func(int) string { return okAnswer })
			return
		}
		if r, err := http.ReadRequest(c.Reader); err == nil {
			_, _ = io.Copy(io.Discard, r.Body)
			_, _ = io.WriteString(c.Conn, strings.ReplaceAll(okAnswer, "\n", "\r\n"))
		}
		c.Close()
		closed <- struct{}{}
	}
	for _, row := range []struct {
		name   string
		serve  func(c *rawConn, conn int32)
		method string
		status int
	}{
		{"idle", left, "POST", 200}, {"idle", left, "GET", 200},
		{"in use", gone, "GET", 200}, {"in use", gone, "POST", http.StatusBadGateway},
	} {
		t.Run(row.name+"/"+row.method, func(t *testing.T) {
			to, _ := counting(t, row.serve)
			s := newSidecar(t, "agent.example.com", "http://"+to)
			c := dialRaw(t, s.ingress.URL)
			for i, status := range []int{200, row.status, 200} {
				body := ""
				if row.method == "POST" {
					body = "{}"
				}
				c.send(fmt.Sprintf("%s / HTTP/1.1\nHost: a\nContent-Type: application/json\nContent-Length: %d\n\n%s", row.method, len(body), body))
				resp := c.answer(row.method)
				if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != status {
					t.Fatalf("answer %d = %s, %v, want %d", i, resp.Status, err, status)
				}
				s.handled.wait(t)
				if i == 0 && row.name == "idle" {
					receive(t, closed, "the next hop to hang up")
				}
			}
		})
	}
}

// Who goes away takes the request to the next hop along, before the answer and in
// the middle of it.
func TestCancelledRequestsEnd(t *testing.T) {
	for _, says := range []string{"", "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhello"} {
		for _, way := range rawWays[:3] {
			t.Run(fmt.Sprintf("%s/%d", way.name, len(says)), func(t *testing.T) {
				asked, ended := make(chan struct{}), make(chan error, 1)
				to := talker(t, func(c *rawConn) {
					if _, err := http.ReadRequest(c.Reader); err != nil {
						return
					}
					_, _ = io.WriteString(c.Conn, says)
					close(asked)
					_, err := c.ReadByte()
					ended <- err
				})
				s := newSidecar(t, "agent.example.com", "http://"+to)
				c, prefix := way.dial(t, s, to)
				c.send("GET " + prefix + "/ HTTP/1.1\nHost: " + to + "\n\n")
				receive(t, asked, "the request")
				c.Close()
				if err := receive(t, ended, "the connection to end"); err == nil {
					t.Error("the next hop was sent something more")
				} else if e, ok := errors.AsType[net.Error](err); ok && e.Timeout() {
					t.Error("the next hop was left alone with the request")
				}
			})
		}
	}
}

// The head of an answer has a bound, its body none.
func TestLongHeads(t *testing.T) {
	line := "X-Long: " + strings.Repeat("x", 1<<20) + "\n"
	for says, status := range map[string]int{
		"HTTP/1.1 200 OK\n" + strings.Repeat(line, 2) + "Content-Length: 2\n\nok":  http.StatusOK,
		"HTTP/1.1 200 OK\n" + strings.Repeat(line, 12) + "Content-Length: 2\n\nok": http.StatusBadGateway,
	} {
		to, _ := counting(t, func(c *rawConn, _ int32) { answerAll(c, func(int) string { return says }) })
		s := newSidecar(t, "agent.example.com", "http://"+to)
		resp, err := http.Get(s.ingress.URL)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != status {
			t.Errorf("behind a head of %d bytes the answer = %s, want %d", len(says), resp.Status, status)
		}
	}
}

// What http.Transport would refuse or write in another way is not for client.
func TestClientTakes(t *testing.T) {
	ok := func() *http.Request {
		r, err := http.NewRequestWithContext(context.Background(), http.MethodPost, "http://peer:8080/a", strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	c := &client{}
	if !c.takes(ok(), true) {
		t.Error("an ordinary request is not taken")
	}
	for name, change := range map[string]func(*http.Request){
		"a new line":       func(r *http.Request) { r.Header["Baggage"] = []string{"a=b\r\nX-Evil: 1"} },
		"a NUL":            func(r *http.Request) { r.Header["Baggage"] = []string{"a\x00"} },
		"TLS":              func(r *http.Request) { r.URL.Scheme = "https" },
		"an upgrade":       func(r *http.Request) { r.Header["Upgrade"] = []string{"websocket"} },
		"an expectation":   func(r *http.Request) { r.Header["Expect"] = []string{"100-continue"} },
		"trailers":         func(r *http.Request) { r.Trailer = http.Header{"X": nil} },
		"no length":        func(r *http.Request) { r.ContentLength = -1 },
		"a long body":      func(r *http.Request) { r.ContentLength = maxAtOnce + 1 },
		"long headers":     func(r *http.Request) { r.Header["Baggage"] = []string{strings.Repeat("a", maxAtOnce)} },
		"a long target":    func(r *http.Request) { r.URL.RawQuery = strings.Repeat("a", maxAtOnce) },
		"a tunnel":         func(r *http.Request) { r.Method = http.MethodConnect },
		"no host":          func(r *http.Request) { r.URL.Host = "" },
		"a zone":           func(r *http.Request) { r.URL.Host = "[fe80::1%25eth0]:80" },
		"a foreign name":   func(r *http.Request) { r.Host = "bücher.example" },
		"an odd host":      func(r *http.Request) { r.Host = "a b" },
		"an opaque target": func(r *http.Request) { r.URL.Opaque = "*" },
	} {
		r := ok()
		if change(r); c.takes(r, true) {
			t.Errorf("%s: the request is taken", name)
		}
	}
	if c.takes(ok(), false) {
		t.Error("a request whose body is still to come is taken")
	}
}
