package proxy

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/net/http/httpguts"
)

// carried is what became of a request: how it arrived, with its header lines in
// alphabetical order, and what its sender was given.
type carried struct {
	Dialled         int
	Head            []string
	Body            string
	Informed        []string
	NoAnswer        bool
	Status, Proto   string
	Answer, Trailer http.Header
	Length          int64
	Encoding        []string
	Content         string
	BreaksOff       bool
}

// arrived reads the bytes of a request as a server of net/http does, or returns
// nil for what that would refuse.
func arrived(raw []byte) *http.Request {
	r, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(raw)))
	if err != nil || r.ContentLength > shortBody {
		return nil
	}
	for name, values := range r.Header {
		if !httpguts.ValidHeaderFieldName(name) || !allOf(values, httpguts.ValidHeaderFieldValue) {
			return nil
		}
	}
	return r
}

func allOf(values []string, ok func(string) bool) bool {
	return !slices.ContainsFunc(values, func(v string) bool { return !ok(v) })
}

// carry sends what arrived as the bytes of raw to a server that gives answer and
// hangs up: by client, or by the transport that has all others. It reports false
// for what is no request, or none for client.
func carry(t *testing.T, byClient bool, raw, answer []byte) (c carried, ok bool) {
	t.Helper()
	r := arrived(raw)
	if r == nil {
		return c, false
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	r = r.WithContext(ctx)
	r.URL.Scheme, r.URL.Host = "http", "peer.example.com:80"
	r.RequestURI = ""
	x := &exchange{policy: &policy{Policy: Policy{BodyPatience: patience}}}
	out := x.outgoing(r)

	var served sync.WaitGroup
	all := newTransports(func(context.Context, string, string) (net.Conn, error) {
		near, far := net.Pipe()
		c.Dialled++
		served.Go(func() {
			defer far.Close()
			c.Head, c.Body = takeRequest(far)
			_, _ = far.Write(answer) // the sender may have had enough
		})
		return near, nil
	})
	defer all.closeIdle()
	if !all.plain.takes(out, x.atHand) {
		return c, false
	}
	by := sender(all.plain)
	if !byClient {
		by = sendBy{all.http1}
	}
	informed := informs{head: http.Header{}}
	x.informs = &informed
	resp, err := by.send(out, x)
	if ctx.Err() != nil {
		t.Fatalf("%q, answered %q, takes for ever", raw, answer)
	}
	if c.NoAnswer = err != nil; !c.NoAnswer {
		content, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		c.Status, c.Proto, c.Answer, c.Trailer = resp.Status, resp.Proto, resp.Header, resp.Trailer
		c.Length, c.Encoding, c.Content, c.BreaksOff = resp.ContentLength, resp.TransferEncoding, string(content), err != nil
	}
	all.closeIdle()
	served.Wait() // no longer than patience
	c.Informed = informed.all
	return c, true
}

// takeRequest reads one request, and returns its head by lines and its body.
func takeRequest(conn net.Conn) (head []string, body string) {
	var bytesRead bytes.Buffer
	_ = conn.SetDeadline(time.Now().Add(patience))
	r, err := http.ReadRequest(bufio.NewReader(io.TeeReader(conn, &bytesRead)))
	if err != nil {
		return []string{err.Error()}, ""
	}
	_, err = io.Copy(io.Discard, r.Body)
	h, body, _ := strings.Cut(bytesRead.String(), "\r\n\r\n")
	head = strings.Split(h, "\r\n")
	slices.Sort(head[1:])
	if err != nil {
		head = append(head, err.Error())
	}
	return head, body
}

// informs notes the informational answers that it is given.
type informs struct {
	head http.Header
	all  []string
}

func (i *informs) Header() http.Header         { return i.head }
func (i *informs) Write(b []byte) (int, error) { return 0, errors.ErrUnsupported }
func (i *informs) WriteHeader(status int)      { i.all = append(i.all, fmt.Sprint(status, i.head)) }

// checkClient holds client to what http.Transport does with the same request, and
// reports whether it is for client.
func checkClient(t *testing.T, raw, answer []byte) bool {
	t.Helper()
	want, ok := carry(t, false, raw, answer)
	if !ok {
		return false
	}
	got, _ := carry(t, true, raw, answer)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%q\nanswered %q (-http.Transport +client):\n%s", raw, answer, diff)
	}
	return true
}

// The parts of which TestClientLikeTransport makes requests and answers.
var (
	requestLines = []string{"GET / HTTP/1.1", "POST /mcp HTTP/1.1", "HEAD /a%2fb?c=%zz HTTP/1.1", "DELETE /?q= HTTP/1.1", "PUT //a/../b HTTP/1.1", "PATCH /ü HTTP/1.1", "M-SEARCH /x;y?a;b HTTP/1.0", "OPTIONS * HTTP/1.1"}
	requestHeads = []string{"Accept: */*", "User-Agent: a", "User-Agent:", "User-Agent: b", "X-Empty:", "X-Space:  a\tb ", "Cookie: a=b", "cookie: c=d", "Connection: close", "Connection: X-Empty, keep-alive", "TE: trailers", "Te: gzip", "Accept-Encoding: gzip", "Range: bytes=0-1", "X-High: \xff\xfe", "Trailer: X-End", "Content-Type: application/json", "Expect: 100-continue", "Proxy-Authorization: x", "Upgrade: websocket"}
	answerLines  = []string{"HTTP/1.1 200 OK", "HTTP/1.1 204 No Content", "HTTP/1.1 304 Not Modified", "HTTP/1.0 200 OK", "HTTP/1.1 404", "HTTP/1.1 999 odd  one", "HTTP/1.1 301 Moved", "HTTP/1.1 101 Switching Protocols", "HTTP/2.0 200 OK", "HTTP/1.1 99 x", "HTTP/1.1 200 \xff", "ICY 200 OK", "HTTP/1.1 205 Reset Content"}
	answerHeads  = []string{"Content-Type: text/plain", "Connection: close", "Connection: keep-alive", "Content-Encoding: gzip", "Set-Cookie: a", "Set-Cookie: b", "x-low: 1", "X Space: 1", "X-Fold: a\n b", "Trailer: X-End", "Upgrade: websocket", "Content-Length: 2", "Content-Length: +2", "Transfer-Encoding: gzip, chunked", "Transfer-Encoding: identity", "X-NUL: \x00", ": none", "no colon", "Keep-Alive: timeout=1"}
	answerBodies = []string{
		"Content-Length: 2\n\nok", "Content-Length: 2\n\no", "Content-Length: 0\n\n", "\n", "\nto the end", "Content-Length: 2\n\nok and more",
		"Transfer-Encoding: chunked\n\n2\nok\n0\n\n", "Transfer-Encoding: chunked\n\n2;a=b\nok\n0\nX-End: 1\n\n", "Transfer-Encoding: chunked\n\n2\nok",
		"Transfer-Encoding: chunked\n\nzz\nok\n0\n\n", "Transfer-Encoding: chunked\nContent-Length: 2\n\n2\nok\n0\n\n", "Transfer-Encoding: chunked\n\n2\nok\n0\n\nmore",
	}
	informing = []string{"HTTP/1.1 100 Continue\n\n", "HTTP/1.1 103 Early Hints\nLink: <a>\n\n", "HTTP/1.1 102 Processing\n\n"}
)

// What client sends, and what it makes of the answer, is what http.Transport would
// send and make of it, whatever both are like.
func TestClientLikeTransport(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	one := func(of []string) string { return of[rnd.IntN(len(of))] }
	some := func(b *strings.Builder, of []string, most int) {
		for range rnd.IntN(most + 1) {
			b.WriteString(one(of) + "\n")
		}
	}
	taken := 0
	for range 3000 {
		var request, answer strings.Builder
		request.WriteString(one(requestLines) + "\nHost: h.example.com\n")
		some(&request, requestHeads, 5)
		body := strings.Repeat("b", rnd.IntN(3)*rnd.IntN(shortBody/2))
		if body != "" || rnd.IntN(4) == 0 {
			fmt.Fprintf(&request, "Content-Length: %d\n", len(body))
		}
		request.WriteString("\n")
		if rnd.IntN(6) == 0 {
			some(&answer, informing, 7)
			text := answer.String()
			answer.Reset()
			answer.WriteString(strings.ReplaceAll(text, "\n\n\n", "\n\n"))
		}
		answer.WriteString(one(answerLines[:1+rnd.IntN(len(answerLines))]) + "\n")
		some(&answer, answerHeads[:1+rnd.IntN(len(answerHeads))], 2)
		answer.WriteString(one(answerBodies))
		lines := func(text string) string { return strings.ReplaceAll(text, "\n", "\r\n") }
		whole := lines(answer.String())
		if rnd.IntN(10) == 0 {
			whole = whole[:rnd.IntN(len(whole))]
		}
		if checkClient(t, []byte(lines(request.String())+body), []byte(whole)) {
			taken++
		}
		if t.Failed() {
			return
		}
	}
	if taken < 1000 {
		t.Errorf("only %d of 3000 requests were for client", taken)
	}
}

// FuzzClient does the same with what nobody has thought of.
func FuzzClient(f *testing.F) {
	lines := strings.NewReplacer("\n", "\r\n")
	for i, body := range answerBodies {
		request := requestLines[i%len(requestLines)] + "\nHost: a\n" + requestHeads[i] + "\n\n"
		f.Add([]byte(lines.Replace(request)), []byte(lines.Replace(answerLines[i%len(answerLines)]+"\n"+answerHeads[i]+"\n"+body)))
	}
	f.Add([]byte("GET / HTTP/1.1\r\nHost: a\r\nContent\u212a  ength: 2\r\n\r\n"), []byte(lines.Replace(okAnswer))) // no name of a header
	f.Add([]byte("POST /mcp HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}"), []byte(lines.Replace(informing[1]+okAnswer)))
	f.Fuzz(func(t *testing.T, request, answer []byte) { checkClient(t, request, answer) })
}
