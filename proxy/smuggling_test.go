package proxy

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// tap is a server that keeps each byte that it is sent, and answers the requests
// that a reader as strict as net/http finds in them.
type tap struct {
	addr string
	mu   sync.Mutex
	raw  bytes.Buffer
	n    int // requests
}

func newTap(t *testing.T) *tap {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &tap{addr: ln.Addr().String()}
	var conns sync.WaitGroup
	conns.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { c.Close() })
			conns.Go(func() { p.serve(c) })
		}
	})
	t.Cleanup(func() { ln.Close() })
	return p
}

func (p *tap) serve(c net.Conn) {
	defer c.Close()
	r := bufio.NewReader(io.TeeReader(c, p))
	for {
		req, err := http.ReadRequest(r)
		if err != nil {
			return
		}
		if _, err := io.Copy(io.Discard, req.Body); err != nil {
			return
		}
		p.mu.Lock()
		p.n++
		p.mu.Unlock()
		if _, err := io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"); err != nil {
			return
		}
	}
}

func (p *tap) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.raw.Write(b)
}

// heard returns what has come so far, and how many requests were in it.
func (p *tap) heard() (string, int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.raw.String(), p.n
}

// smuggled stands in the rows of TestRequestSmuggling for a second request, which
// its sender hopes that one of two servers takes for the body of the first.
const smuggled = "GET /smuggled HTTP/1.1\r\nHost: t\r\n\r\n"

// Requests that two servers might read in two ways arrive as one reading of them,
// or not at all. What each row wants is what the next hop hears, byte for byte;
// nothing is a refusal.
func TestRequestSmuggling(t *testing.T) {
	const te = "Transfer-Encoding: chunked\r\n"
	chunked := func(body string) string { return te + "\r\n" + body }
	for _, row := range []struct {
		name, send string   // behind "POST target HTTP/1.1\r\nHost: t\r\n"
		want       []string // behind the same, in the order in which headers are sent
		then       int      // requests that follow, each a legal one of its own
	}{
		// The length counts for nothing beside chunks, and must not go on.
		{"CL.TE", "Content-Length: 6\r\n" + te + "\r\n0\r\n\r\n" + smuggled, []string{te, "\r\n0\r\n\r\n"}, 1},
		{"CL.TE long", "Content-Length: 400\r\n" + chunked("3\r\nabc\r\n0\r\n\r\n"), []string{te, "\r\n3\r\nabc\r\n0\r\n\r\n"}, 0},
		{"TE.CL", te + "Content-Length: 3\r\n\r\n8\r\nSMUGGLED\r\n0\r\n\r\n", []string{te, "\r\n8\r\nSMUGGLED\r\n0\r\n\r\n"}, 0},
		{"CL.0", "Content-Length: 35\r\n\r\n" + smuggled, []string{"Content-Length: 35\r\n", "\r\n" + smuggled}, 0},
		{"CL twice, different", "Content-Length: 0\r\nContent-Length: 35\r\n\r\n" + smuggled, nil, 0},
		{"CL twice, the same", "Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc", []string{"Content-Length: 3\r\n", "\r\nabc"}, 0},
		{"CL as a list", "Content-Length: 3, 3\r\n\r\nabc", nil, 0},
		{"CL with a sign", "Content-Length: +3\r\n\r\nabc", nil, 0},
		{"CL negative", "Content-Length: -1\r\n\r\n", nil, 0},
		{"CL in hex", "Content-Length: 0x3\r\n\r\nabc", nil, 0},
		{"CL empty", "Content-Length: \r\n\r\n" + smuggled, nil, 0},
		{"CL with a space in it", "Content-Length: 3 7\r\n\r\n" + smuggled, nil, 0},
		{"TE unknown", "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + smuggled, nil, 0},
		{"TE identity", "Transfer-Encoding: identity\r\nContent-Length: 3\r\n\r\nabc", nil, 0},
		{"TE twice", te + te + "\r\n0\r\n\r\n" + smuggled, nil, 0},
		{"TE as a list", "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n" + smuggled, nil, 0},
		{"TE, chunked last of two fields", "Transfer-Encoding: gzip\r\n" + te + "\r\n0\r\n\r\n" + smuggled, nil, 0},
		{"TE with a tab", "Transfer-Encoding:\tchunked\r\n\r\n0\r\n\r\n", []string{te, "\r\n0\r\n\r\n"}, 0},
		{"TE with a vertical tab", "Transfer-Encoding: \vchunked\r\n\r\n0\r\n\r\n" + smuggled, nil, 0},
		{"TE folded", "Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n", []string{te, "\r\n0\r\n\r\n"}, 0},
		{"space before the colon", "Content-Length : 37\r\n\r\n" + smuggled, nil, 0},
		{"TE, space before the colon", "Content-Length: 5\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n" + smuggled, nil, 0},
		{"no colon", "X-Nothing\r\n\r\n" + smuggled, nil, 0},
		{"NUL in a name", "X-\x00: a\r\n\r\n" + smuggled, nil, 0},
		{"underscores", "Content_Length: 35\r\nContent-Length: 0\r\n\r\n" + smuggled, []string{"Content_length: 35\r\n", "Content-Length: 0\r\n", "\r\n"}, 1},
		{"obs-fold", "X-A: a\r\n b: c\r\nContent-Length: 0\r\n\r\n", []string{"X-A: a b: c\r\n", "Content-Length: 0\r\n", "\r\n"}, 0},
		{"obs-fold hides a header", "X-A: a\r\n\tTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\nabc", []string{"X-A: a Transfer-Encoding: chunked\r\n", "Content-Length: 3\r\n", "\r\nabc"}, 0},
		{"bare LF between headers", "X-A: a\nContent-Length: 3\r\n\r\nabc", []string{"X-A: a\r\n", "Content-Length: 3\r\n", "\r\nabc"}, 0},
		{"bare LF at the end", "Content-Length: 3\n\nabc", []string{"Content-Length: 3\r\n", "\r\nabc"}, 0},
		{"bare CR in a value", "X-A: a\rTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\nabc", nil, 0},
		{"chunk extension", chunked("3;a=b\r\nabc\r\n0;c=\"d\"\r\n\r\n"), []string{te, "\r\n3\r\nabc\r\n0\r\n\r\n"}, 0},
		{"chunk extension with a bare LF", chunked("3;a\nx\r\nabc\r\n0\r\n\r\n"), nil, 0},
		{"chunk size with a bare LF", chunked("3\nabc\r\n0\r\n\r\n"), nil, 0},
		{"chunk size with a sign", chunked("+3\r\nabc\r\n0\r\n\r\n"), nil, 0},
		{"chunk size with 0x", chunked("0x3\r\nabc\r\n0\r\n\r\n"), nil, 0},
		{"chunk size that overflows", chunked("10000000000000003\r\nabc\r\n0\r\n\r\n"), nil, 0},
		{"chunk longer than it says", chunked("3\r\nabcd\r\n0\r\n\r\n"), nil, 0},
		{"trailers not announced", chunked("0\r\nContent-Length: 3\r\n\r\n" + smuggled), []string{te, "\r\n0\r\n\r\n"}, 1},
	} {
		for _, way := range rawWays {
			t.Run(way.name+"/"+row.name, func(t *testing.T) {
				last := newTap(t)
				s := newSidecar(t, "agent.example.com", "http://"+last.addr)
				c, prefix := way.dial(t, s, last.addr)
				send := row.send
				if row.then > 0 && prefix != "" { // what follows is a request of its own, and needs a target
					send = strings.Replace(send, "GET /smuggled", "GET "+prefix+"/smuggled", 1)
				}
				if _, err := io.WriteString(c.Conn, "POST "+prefix+"/x HTTP/1.1\r\nHost: t\r\nUser-Agent: a\r\n"+send); err != nil {
					t.Fatal(err)
				}
				answers := answersOf(c, 1+row.then)
				heard, n := last.heard()
				if row.want == nil {
					if n > 0 || answers[0] == http.StatusOK {
						t.Errorf("answers = %v, the next hop has heard %q, want a refusal", answers, heard)
					}
					if strings.Contains(heard, "/smuggled HTTP") && strings.Contains(heard, "POST") {
						t.Errorf("a refused request has left %q", heard)
					}
					return
				}
				if n != 1+row.then {
					t.Errorf("the next hop has found %d requests in %q, want %d; answers %v", n, heard, 1+row.then, answers)
				}
				first, rest, _ := strings.Cut(heard, "GET /smuggled HTTP/1.1\r\n")
				if row.then == 0 {
					first, rest = heard, ""
				}
				if got, want := canonical(first), canonical("POST /x HTTP/1.1\r\nHost: "+hostAs(way.name, last.addr)+"\r\nUser-Agent: a\r\n"+strings.Join(row.want, "")); got != want {
					t.Errorf("the next hop has heard\n%q, want\n%q", got, want)
				}
				if (row.then > 0) != (rest != "") {
					t.Errorf("behind the first request came %q", rest)
				}
			})
		}
	}
}

// hostAs is the Host that the next hop sees of a request with Host: t.
func hostAs(way, to string) string {
	switch way {
	case "egress", "base path":
		return to // of the target
	}
	return "t"
}

// canonical sorts the header lines of a request, whose order is not the point, and
// leaves the bytes behind them. A base path names a run, whose context is added.
func canonical(request string) string {
	head, body, _ := strings.Cut(request, "\r\n\r\n")
	lines := strings.Split(head, "\r\n")
	slices.Sort(lines[1:])
	lines = slices.DeleteFunc(lines, func(l string) bool { return strings.HasPrefix(l, "Traceparent: ") })
	return strings.Join(lines, "\r\n") + "\r\n\r\n" + body
}

// answersOf reads the statuses of up to n answers.
func answersOf(c *rawConn, n int) (statuses []int) {
	for range n {
		_ = c.SetReadDeadline(time.Now().Add(patience))
		resp, err := http.ReadResponse(c.Reader, nil)
		if err != nil {
			return append(statuses, 0)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		statuses = append(statuses, resp.StatusCode)
	}
	return statuses
}

// In HTTP/1.0 there are no chunks: the length counts, the other header does not go
// on, and neither does what comes behind.
func TestRequestSmugglingHTTP10(t *testing.T) {
	for _, way := range rawWays {
		last := newTap(t)
		s := newSidecar(t, "agent.example.com", "http://"+last.addr)
		c, prefix := way.dial(t, s, last.addr)
		if _, err := io.WriteString(c.Conn, "POST "+prefix+"/x HTTP/1.0\r\nHost: t\r\nUser-Agent: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"+smuggled); err != nil {
			t.Fatal(err)
		}
		answers := answersOf(c, 2)
		heard, n := last.heard()
		want := "POST /x HTTP/1.1\r\nHost: " + hostAs(way.name, last.addr) + "\r\nUser-Agent: a\r\nContent-Length: 5\r\n\r\n0\r\n\r\n"
		if n != 1 || canonical(heard) != canonical(want) || answers[1] != 0 {
			t.Errorf("%s: the next hop has heard\n%q, want\n%q; answers %v", way.name, heard, want, answers)
		}
	}
}
