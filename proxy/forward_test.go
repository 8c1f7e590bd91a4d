package proxy

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"
)

// speaker is a server that answers each request with the same text, and hands on
// the heads of the first of them.
func speaker(t *testing.T, says string) (addr string, heads chan http.Header) {
	heads = make(chan http.Header, 8)
	return talker(t, func(c *rawConn) {
		for {
			r, err := http.ReadRequest(c.Reader)
			if err != nil {
				return
			}
			select {
			case heads <- r.Header:
			default: // nobody looks at them
			}
			_, _ = io.Copy(io.Discard, r.Body)
			if _, err := io.WriteString(c.Conn, strings.ReplaceAll(says, "\n", "\r\n")); err != nil {
				return
			}
		}
	}), heads
}

// Answers that only inform pass before the answer, each with its own headers; a
// client of HTTP/1.0 can't read them, and gets the answer alone.
func TestInformationalAnswers(t *testing.T) {
	to, _ := speaker(t, "HTTP/1.1 103 Early Hints\nLink: </a>\n\nHTTP/1.1 103 Early Hints\nLink: </b>\n\nHTTP/1.1 200 OK\nContent-Length: 2\n\nok")
	for _, way := range rawWays {
		for _, row := range []struct{ proto, head string }{
			{"HTTP/1.1", "GET"}, {"HTTP/1.1", "DELETE"}, {"HTTP/1.1", "POST"}, {"HTTP/1.0", "GET"},
		} {
			t.Run(way.name+"/"+row.head+" "+row.proto, func(t *testing.T) {
				s := newSidecar(t, "agent.example.com", "http://"+to)
				c, prefix := way.dial(t, s, to)
				length, body := "", ""
				if row.head == "POST" { // behind Expect, which net/http sends on
					length, body = "Expect: 100-continue\nContent-Length: 2\n", "{}"
				}
				c.send(row.head + " " + prefix + "/ " + row.proto + "\nHost: " + to + "\n" + length + "\n" + body)
				resp := c.answer(row.head)
				for resp.StatusCode == http.StatusContinue {
					resp = c.answer(row.head)
				}
				for _, link := range []string{"</a>", "</b>"} {
					if row.proto == "HTTP/1.0" {
						break
					}
					if resp.StatusCode != http.StatusEarlyHints || resp.Header.Get("Link") != link {
						t.Fatalf("answer = %s %v, want 103 with %s", resp.Status, resp.Header, link)
					}
					resp = c.answer(row.head)
				}
				b, err := io.ReadAll(resp.Body)
				if resp.StatusCode != http.StatusOK || resp.Header["Link"] != nil || string(b) != "ok" || err != nil {
					t.Errorf("answer = %s %v %q, %v, want 200 ok without a link", resp.Status, resp.Header, b, err)
				}
			})
		}
	}
}

// A type that the answer does not name is not guessed in its name.
func TestTypeIsNotInvented(t *testing.T) {
	to, _ := speaker(t, "HTTP/1.1 200 OK\nContent-Length: 13\n\n<html></html>")
	for _, way := range rawWays {
		t.Run(way.name, func(t *testing.T) {
			s := newSidecar(t, "agent.example.com", "http://"+to)
			c, prefix := way.dial(t, s, to)
			c.send("GET " + prefix + "/ HTTP/1.1\nHost: " + to + "\n\n")
			resp := c.answer(http.MethodGet)
			if b, err := io.ReadAll(resp.Body); resp.Header["Content-Type"] != nil || string(b) != "<html></html>" || err != nil {
				t.Errorf("answer = %v %q, %v, want it without a type", resp.Header, b, err)
			}
		})
	}
}

// Any protocol that both sides agree on passes, but for HTTP/2: that would have to
// begin between neighbours, and goes on as HTTP/1.1. Who switches to what was not
// asked for is not followed.
func TestUpgrades(t *testing.T) {
	for _, row := range []struct {
		asks, agrees string
		arrives      string
		status       int
	}{
		{"chat/1", "chat/1", "chat/1", http.StatusSwitchingProtocols},
		{"chat/1", "CHAT/1", "chat/1", http.StatusSwitchingProtocols},
		{"chat/1", "other", "chat/1", http.StatusBadGateway},
		{"chat/1", "", "chat/1", http.StatusOK},
		{"h2c", "", "", http.StatusOK},
		{"", "chat/1", "", http.StatusBadGateway},
	} {
		for _, way := range rawWays {
			t.Run(fmt.Sprintf("%s/%q, %q", way.name, row.asks, row.agrees), func(t *testing.T) {
				says := "HTTP/1.1 200 OK\nContent-Length: 5\n\nhello"
				if row.agrees != "" {
					says = "HTTP/1.1 101 Switching Protocols\nConnection: Upgrade\nUpgrade: " + row.agrees + "\n\nhello"
				}
				to, heads := speaker(t, says)
				s := newSidecar(t, "agent.example.com", "http://"+to)
				c, prefix := way.dial(t, s, to)
				asks := ""
				if row.asks != "" {
					asks = "Connection: Upgrade, Http2-Settings\nHttp2-Settings: x\nUpgrade: " + row.asks + "\n"
				}
				c.send("GET " + prefix + "/ HTTP/1.1\nHost: " + to + "\n" + asks + "\n")
				resp := c.answer(http.MethodGet)
				if resp.StatusCode != row.status {
					t.Fatalf("answer = %s, want %d", resp.Status, row.status)
				}
				if h := receive(t, heads, "the request"); h.Get("Upgrade") != row.arrives || h["Http2-Settings"] != nil {
					t.Errorf("the next hop is asked for %q (%v), want %q", h.Get("Upgrade"), h, row.arrives)
				}
				if row.status == http.StatusSwitchingProtocols {
					b := make([]byte, 5)
					if _, err := io.ReadFull(c, b); string(b) != "hello" || err != nil {
						t.Errorf("behind the answer = %q, %v, want hello", b, err)
					}
				}
				c.Close()
			})
		}
	}
}

// An answer that breaks off ends with the connection of the client, who could else
// take it for whole.
func TestAnswerBreaksOff(t *testing.T) {
	for name, says := range map[string]string{
		"length": "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello", "chunked": "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
	} {
		to := talker(t, func(c *rawConn) {
			if _, err := http.ReadRequest(c.Reader); err == nil {
				_, _ = io.WriteString(c.Conn, says)
			}
		})
		for _, way := range rawWays {
			t.Run(way.name+"/"+name, func(t *testing.T) {
				s := newSidecar(t, "agent.example.com", "http://"+to)
				c, prefix := way.dial(t, s, to)
				c.send("GET " + prefix + "/ HTTP/1.1\nHost: " + to + "\n\n")
				all, err := io.ReadAll(c) // ends, because the connection does
				if err != nil {
					t.Fatal(err)
				}
				resp, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(all)), nil)
				if err == nil { // of a short answer not even the head may have come
					_, err = io.ReadAll(resp.Body)
				}
				if err == nil {
					t.Errorf("answer = %q, as if it were whole", all)
				}
				s.handled.wait(t)
				s.awaitSeries(t, fmt.Sprintf("wopproxy_exchanges_total{direction=%q,outcome=%q,protocol=%q}", way.dir, outcomeUpstream, "http"), 1)
			})
		}
	}
}

// A next hop that can't be reached is told of at once, though the client has not
// sent all of its body, and may never do.
func TestFailureDoesNotWaitForBody(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	to := ln.Addr().String()
	ln.Close()
	const part = "a part of the body, as long as it takes to be too long"
	for _, row := range []struct {
		name, typ string
		inspected int64
	}{
		{"not looked at", "text/plain", 0}, {"slow", "application/json", 0}, {"too large", "application/json", int64(len(part)) / 2},
	} {
		for _, head := range []struct{ length, sent string }{
			{"Content-Length: 5000", part}, {"Transfer-Encoding: chunked", fmt.Sprintf("%x\r\n%s\r\n", len(part), part)},
		} {
			for _, way := range rawWays[:3] {
				t.Run(row.name+"/"+head.length+"/"+way.name, func(t *testing.T) {
					s := newSidecar(t, "agent.example.com", "http://"+to, func(_ *Options, p *Policy) {
						p.BodyPatience, p.InspectedBody = time.Millisecond, row.inspected
					})
					c, prefix := way.dial(t, s, to)
					c.send("POST " + prefix + "/ HTTP/1.1\nHost: " + to + "\nContent-Type: " + row.typ + "\n" + head.length + "\n\n" + head.sent)
					if resp := c.answer(http.MethodPost); resp.StatusCode != http.StatusBadGateway {
						t.Errorf("answer = %s, want 502", resp.Status)
					}
					c.Close()
				})
			}
		}
	}
}

// A status that no answer can have is the next hop's fault, and nobody's panic.
func TestImpossibleStatus(t *testing.T) {
	for _, status := range []string{"000", "099", "+99"} {
		to, _ := speaker(t, "HTTP/1.1 "+status+" Odd\nContent-Length: 2\n\nok")
		for _, way := range rawWays {
			for _, long := range []string{"", "Expect: 100-continue\nContent-Length: 2\n"} { // which is for net/http
				t.Run(fmt.Sprintf("%s/%s/%d", way.name, status, len(long)), func(t *testing.T) {
					s := newSidecar(t, "agent.example.com", "http://"+to)
					c, prefix := way.dial(t, s, to)
					c.send("POST " + prefix + "/ HTTP/1.1\nHost: " + to + "\n" + long + "\n" + strings.Repeat("x", min(len(long), 2)))
					resp := c.answer(http.MethodPost)
					for resp.StatusCode == http.StatusContinue {
						resp = c.answer(http.MethodPost)
					}
					if resp.StatusCode != http.StatusBadGateway {
						t.Errorf("answer = %s, want 502", resp.Status)
					}
					c.Close()
					s.awaitSeries(t, fmt.Sprintf("wopproxy_exchanges_total{direction=%q,outcome=%q,protocol=%q}", way.dir, outcomeUpstream, "http"), 1)
				})
			}
		}
	}
}

// fromReader is a writer that would copy by itself, as that of a server does: with
// a buffer made for each answer, and a write too many.
type fromReader struct {
	http.ResponseWriter
	n, copied int64
}

func (w *fromReader) Write(b []byte) (int, error) {
	w.n += int64(len(b))
	return len(b), nil
}

func (w *fromReader) ReadFrom(r io.Reader) (int64, error) {
	n, err := io.Copy(struct{ io.Writer }{w}, r)
	w.copied += n
	return n, err
}

// Answers are copied by lent memory.
func TestAnswersAreCopiedByLentMemory(t *testing.T) {
	const rounds, size = 200, 64 << 10
	w := &fromReader{ResponseWriter: httptest.NewRecorder()}
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
	body := make([]byte, size)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range rounds {
		x := &exchange{}
		x.copyBody(w, r, &http.Response{ContentLength: size, Body: io.NopCloser(bytes.NewReader(body))})
	}
	runtime.ReadMemStats(&after)
	if w.n != rounds*size || w.copied != 0 {
		t.Errorf("%d bytes were written, want %d; the writer has copied %d itself, want none", w.n, rounds*size, w.copied)
	}
	if each := (after.TotalAlloc - before.TotalAlloc) / rounds; each > 20<<10 { // the race detector makes pools forget a quarter
		t.Errorf("an answer of 64 KB allocates %d bytes on its way", each)
	}
}
