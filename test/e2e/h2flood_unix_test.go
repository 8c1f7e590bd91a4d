//go:build unix

package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// h2Conn is a connection on which a test spells out each frame of HTTP/2.
type h2Conn struct {
	net.Conn
	*http2.Framer
	gone chan error // how the far side has hung up
}

// dialH2 begins HTTP/2 without TLS, and reads whatever comes.
func dialH2(t *testing.T, base string) *h2Conn {
	t.Helper()
	c := &h2Conn{Conn: hangers(t, base, 1, nil)[0], gone: make(chan error, 1)}
	c.Framer = http2.NewFramer(c.Conn, c.Conn)
	if _, err := io.WriteString(c.Conn, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	if err := c.WriteSettings(); err != nil {
		t.Fatal(err)
	}
	go func() { // ends when the far side hangs up, or t is over
		for {
			f, err := c.ReadFrame()
			if err != nil {
				c.gone <- err
				return
			}
			if away, ok := f.(*http2.GoAwayFrame); ok && away.ErrCode != http2.ErrCodeNo {
				c.gone <- fmt.Errorf("goaway: %v", away.ErrCode)
				return
			}
		}
	}()
	return c
}

// encode makes a block of headers, each given as name and value.
func encode(fields ...string) []byte {
	var b bytes.Buffer
	e := hpack.NewEncoder(&b)
	for i := 0; i < len(fields); i += 2 {
		_ = e.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]}) // a buffer takes all
	}
	return b.Bytes()
}

// request is the block of headers of a POST.
func request(path string) []byte {
	return encode(":method", "POST", ":scheme", "http", ":authority", "a.example.com", ":path", path, "content-type", "application/json")
}

// TestRapidReset: a client that opens streams and resets each at once, as in
// CVE-2023-44487, is cut off, or at least has no more work done for it than its
// streams may be, and others are served all the while.
func TestRapidReset(t *testing.T) {
	var reached, at, most atomic.Int64
	host := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/reset" {
			reached.Add(1)
			if n := at.Add(1); n > most.Load() {
				most.Store(n)
			}
			defer at.Add(-1)
			<-r.Context().Done()
			return
		}
		_, _ = io.WriteString(w, "{}")
	}))
	t.Cleanup(host.Close)
	s := start(t, "agent.example.com", host.URL)
	callIngress(t, s)
	before := s.memory(t)
	const streams = 50_000
	c := dialH2(t, s.ingress)
	stop := time.After(patience)
	block := request("/reset")
	sent := 0
	for ; sent < streams; sent++ {
		id := uint32(2*sent + 1)
		err := c.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block, EndHeaders: true, EndStream: true})
		if err = errors.Join(err, c.WriteRSTStream(id, http2.ErrCodeCancel)); err != nil {
			break // cut off
		}
		if sent%10_000 == 0 {
			callIngress(t, s)
		}
		select {
		case <-stop:
			t.Fatalf("%d streams took %v", sent, patience)
		default:
		}
	}
	callIngress(t, s)
	t.Logf("%d streams sent, %d reached the host, %d at once", sent, reached.Load(), most.Load())
	s.wantMemory(t, before, 256)
	if most.Load() > 10_000 {
		t.Errorf("%d requests were at the host at once", most.Load())
	}
	c.Close()
	s.awaitMetric(t, 0, "wopproxy_live_runs")
	eventually(t, "the host is rid of all requests", func() bool { return at.Load() == 0 })
}

// TestFrameFloods: frames without end cost no memory and keep nobody from being
// served; headers without end cost the connection.
func TestFrameFloods(t *testing.T) {
	s := start(t, "agent.example.com", answering(t).URL)
	block := request("/mcp")
	for name, flood := range map[string]func(c *h2Conn) func() error{
		// CVE-2024-27316 and its like: headers that do not end.
		"continuation": func(c *h2Conn) func() error {
			_ = c.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block})
			more := encode("x-more", strings.Repeat("x", 1000))
			return func() error { return c.WriteContinuation(1, false, more) }
		},
		"empty continuation": func(c *h2Conn) func() error {
			_ = c.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block})
			return func() error { return c.WriteContinuation(1, false, nil) }
		},
		// CVE-2019-9512, 9515: answers to these pile up if nobody reads them.
		"ping":     func(c *h2Conn) func() error { return func() error { return c.WritePing(false, [8]byte{}) } },
		"settings": func(c *h2Conn) func() error { return func() error { return c.WriteSettings() } },
	} {
		for listener, base := range map[string]string{"ingress": s.ingress, "egress": s.egress, "admin": s.admin} {
			t.Run(name+"/"+listener, func(t *testing.T) {
				before := s.memory(t)
				c := dialH2(t, base)
				write, began := flood(c), time.Now()
				var sent int
				for ; time.Since(began) < time.Second && sent < 200_000; sent++ {
					if write() != nil {
						break
					}
				}
				callIngress(t, s)
				s.wantMemory(t, before, 32)
				if name == "continuation" {
					select {
					case <-c.gone:
					case <-time.After(patience):
						t.Errorf("%d frames of headers did not end the connection", sent)
					}
				}
			})
		}
	}
}

// TestLargeHeadersH2: what HTTP/1 refuses, HTTP/2 does, too, and the other streams
// of the connection go on.
func TestLargeHeadersH2(t *testing.T) {
	s := start(t, "agent.example.com", answering(t).URL)
	p := new(http.Protocols)
	p.SetUnencryptedHTTP2(true)
	tr := &http.Transport{Protocols: p}
	t.Cleanup(tr.CloseIdleConnections)
	c := &http.Client{Transport: tr, Timeout: patience}
	for _, size := range []int{100, 1 << 20, 100} {
		req, err := http.NewRequest(http.MethodPost, s.ingress+"/mcp", strings.NewReader(toolCall))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("X-Large", strings.Repeat("x", size))
		resp, err := c.Do(req)
		if size > 1000 {
			if err == nil && resp.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
				t.Errorf("%d bytes: %s, want a refusal", size, resp.Status)
			}
			continue
		}
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Errorf("%d bytes: %v, %v, want 200", size, resp, err)
			continue
		}
		resp.Body.Close()
	}
}

// TestIdleConnectionsH2: connections of HTTP/2 without a stream make room like
// others.
func TestIdleConnectionsH2(t *testing.T) {
	s := start(t, "agent.example.com", answering(t).URL, settings{"limits.connections": 10})
	gone := make(chan error, 30)
	for range cap(gone) {
		c := dialH2(t, s.ingress)
		go func() { gone <- <-c.gone }() // ends with the connection, at the latest with t
	}
	// Which ones is open: a connection counts as busy while it says hello.
	for i := range cap(gone) - 10 {
		select {
		case <-gone:
		case <-time.After(patience):
			t.Fatalf("%d of 30 connections had to go, want 20", i)
		}
	}
	callIngress(t, s)
}
