package proxy

import (
	"context"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// nobody trusts no caller.
func nobody(netip.Addr) bool { return false }

// TestWebSocketFreesItsTunnel: a WebSocket in a tunnel gives the tunnel's place
// back when either side has closed it.
func TestWebSocketFreesItsTunnel(t *testing.T) {
	for _, closes := range []string{"client", "server"} {
		t.Run(closes+" closes", func(t *testing.T) {
			to := talker(t, func(c *rawConn) {
				if _, err := http.ReadRequest(c.Reader); err != nil {
					t.Error(err)
				}
				_, _ = io.WriteString(c.Conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nhello")
				if closes == "client" {
					_, _ = io.Copy(io.Discard, c)
				}
			})
			s := newSidecar(t, "agent.example.com", "http://"+to)
			c := s.connect(t, to)
			c.send("GET /ws HTTP/1.1\nHost: " + to + "\nConnection: Upgrade\nUpgrade: websocket\n\n")
			if resp := c.answer(http.MethodGet); resp.StatusCode != http.StatusSwitchingProtocols {
				t.Fatalf("answer = %s", resp.Status)
			}
			s.wantSeries(t, tunnelsOf(tunnelHTTP1), 1)
			if closes == "client" {
				_ = c.Close()
			} else if b, err := io.ReadAll(c); string(b) != "hello" || err != nil {
				t.Errorf("the client heard %q, %v, want hello and the end", b, err)
			}
			s.awaitSeries(t, "wopproxy_tunnels", 0)
		})
	}
}

// TestConnectNeedsHTTP1: CONNECT over HTTP/2, where no connection can be taken
// over, is refused, and takes up no place of a tunnel.
func TestConnectNeedsHTTP1(t *testing.T) {
	to := talker(t, func(c *rawConn) { _, _ = io.Copy(io.Discard, c) })
	s := newSidecar(t, "agent.example.com", "http://"+to, func(o *Options, _ *Policy) { o.MaxTunnels = 1 })
	tr := direct(t)
	tr.Protocols = new(http.Protocols)
	tr.Protocols.SetUnencryptedHTTP2(true)
	for range 2 {
		body, end := io.Pipe()
		r := (&http.Request{Method: http.MethodConnect, URL: s.proxyURL(), Host: to, Header: http.Header{}, Body: body}).WithContext(t.Context())
		resp, err := tr.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		_ = end.Close()
		if resp.StatusCode != http.StatusHTTPVersionNotSupported {
			t.Errorf("CONNECT over %s = %s, want 505", resp.Proto, resp.Status)
		}
	}
	s.connect(t, to) // the one place is free
}

// TestDrainWhileDialing: a drain that ends while a CONNECT still dials cuts that
// tunnel before it has sides, and the client is told.
func TestDrainWhileDialing(t *testing.T) {
	dialing, release := make(chan struct{}, 100), make(chan struct{})
	old := net.DefaultResolver
	defer func() { net.DefaultResolver = old }()
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		dialing <- struct{}{}
		select {
		case <-release:
		case <-ctx.Done():
		}
		return nil, net.ErrClosed
	}}
	s := newSidecar(t, "agent.example.com", "http://127.0.0.1:1")
	c := dialRaw(t, s.egress.URL)
	c.send("CONNECT slow.example.com:81 HTTP/1.1\nHost: slow.example.com:81\n\n")
	receive(t, dialing, "the name to be asked for")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Drain(ctx); err == nil {
		t.Error("Drain = nil, though a tunnel was being opened")
	}
	close(release)
	if resp := c.answer(http.MethodConnect); resp.StatusCode != http.StatusBadGateway {
		t.Errorf("CONNECT = %s, want 502", resp.Status)
	}
	s.awaitSeries(t, "wopproxy_tunnels", 0)
}

// TestTunnelsPassWhatLooksLikeHTTP: what begins like a request and is none
// passes while the client waits for its answer, and so does its silence.
func TestTunnelsPassWhatLooksLikeHTTP(t *testing.T) {
	for _, row := range []struct {
		name, say, hear string
		end             bool // the client has nothing more to say
	}{
		{name: "a method and a word", say: "GET hits\r\n", hear: "GET hits\r\n"},
		{name: "another command", say: "NICK hal\r\n", hear: "NICK hal\r\n"},
		{name: "an unfinished word", say: "PING", hear: "PING"},
		{name: "an unfinished word and the end", say: "PING", hear: "PINGbye", end: true},
		{name: "the end alone", hear: "bye", end: true},
	} {
		t.Run(row.name, func(t *testing.T) {
			to := talker(t, func(c *rawConn) {
				_, _ = io.Copy(c.Conn, c.Reader)
				_, _ = io.WriteString(c.Conn, "bye")
			})
			s := newSidecar(t, "agent.example.com", "http://"+to)
			c := s.connect(t, to)
			if _, err := io.WriteString(c.Conn, row.say); err != nil {
				t.Fatal(err)
			}
			if row.end {
				_ = c.Conn.(*net.TCPConn).CloseWrite()
			}
			got := make([]byte, len(row.hear))
			if n, err := io.ReadFull(c, got); err != nil || string(got) != row.hear {
				t.Errorf("heard %q, %v, want %q", got[:n], err, row.hear)
			}
			s.awaitSeries(t, tunnelsOf(tunnelOther), 1)
		})
	}
}

// TestSignedHeadersStay: a header that a signature covers leaves as it came,
// even where it would otherwise be replaced.
func TestSignedHeadersStay(t *testing.T) {
	last := make(chan seen, 1)
	to := target(t, last)
	s := newSidecar(t, "agent.example.com", "http://"+to)
	post(t, http.DefaultClient, s.ingress.URL+"/chat", `{}`, http.Header{headerTraceparent: {traced}, headerBaggage: {"tenant=a"}})
	receive(t, last, "the run")
	run := string(s.recorded(t)[0].Run)
	own := map[string]string{
		headerTraceparent: "00-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa-bbbbbbbbbbbbbbbb-01", headerTracestate: "vendor=1",
		headerBaggage: "own=1", "Accept-Encoding": "gzip",
	}
	for name, value := range own {
		low := strings.ToLower(name)
		for scheme, sign := range map[string][]string{
			"none":     nil,
			"SigV4":    {"Authorization", "AWS4-HMAC-SHA256 Credential=A/20260101/us-east-1/execute-api/aws4_request, SignedHeaders=host;" + low + ";x-amz-date, Signature=ab"},
			"RFC 9421": {"Signature-Input", `s=("@method" "` + low + `");created=1`, "Signature", "s=:AAAA:"},
		} {
			t.Run(scheme+"/"+name, func(t *testing.T) {
				h := http.Header{"Run-Id": {run}}
				for name, value := range own {
					h.Set(name, value)
				}
				for i := 0; i < len(sign); i += 2 {
					h.Set(sign[i], sign[i+1])
				}
				post(t, s.client(), "http://"+to+"/mcp", call, h)
				got := receive(t, last, "the call").head.Get(name)
				if signed := sign != nil; signed != (got == value) {
					t.Errorf("%s = %q, sent as %q", name, got, value)
				}
			})
		}
	}
}

// TestKeyedPostIsNotRepeated: a POST that the host may have acted on is not sent
// again because it bears an idempotency key; that is for the client to decide.
func TestKeyedPostIsNotRepeated(t *testing.T) {
	for _, key := range []string{"Idempotency-Key", "X-Idempotency-Key"} {
		t.Run(key, func(t *testing.T) {
			var posts atomic.Int32
			to := talker(t, func(c *rawConn) {
				for {
					r, err := http.ReadRequest(c.Reader)
					if err != nil {
						return
					}
					_, _ = io.Copy(io.Discard, r.Body)
					if r.Method == http.MethodPost && posts.Add(1) == 1 {
						return // the work is done, and the host dies before it says so
					}
					_, _ = io.WriteString(c.Conn, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
				}
			})
			s := newSidecar(t, "agent.example.com", "http://"+to)
			c := dialRaw(t, s.ingress.URL)
			c.send("GET /warm HTTP/1.1\nHost: a\n\n") // only on a connection used before does Go repeat
			if _, err := io.Copy(io.Discard, c.answer(http.MethodGet).Body); err != nil {
				t.Fatal(err)
			}
			s.handled.wait(t)
			c.send("POST /pay HTTP/1.1\nHost: a\nContent-Type: application/json\n" + key + ": k\nContent-Length: 2\n\n{}")
			if resp := c.answer(http.MethodPost); resp.StatusCode != http.StatusBadGateway || posts.Load() != 1 {
				t.Errorf("answer = %s behind %d posts, want 502 behind 1", resp.Status, posts.Load())
			}
		})
	}
}

// TestAnnouncedBodyCostsNothing: a client that announces a long body and sends
// one byte of it takes up little memory.
func TestAnnouncedBodyCostsNothing(t *testing.T) {
	const clients, announced = 16, 4 << 20
	synctest.Test(t, func(t *testing.T) {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range clients {
			body, client := io.Pipe()
			go func() { _, _ = client.Write([]byte("{")) }() // ends when the byte is read
			if _, _, why := readBody(body, false, announced, announced, time.Minute, plenty()); why != bodySlow {
				t.Errorf("readBody = %v, want %v", why, bodySlow)
			}
			_ = client.Close()
		}
		runtime.ReadMemStats(&after)
		if got, most := after.TotalAlloc-before.TotalAlloc, uint64(clients*announced/16); got > most {
			t.Errorf("%d bytes allocated for %d clients, want at most %d", got, clients, most)
		}
	})
}

// TestUntrustedDestinationIsNotTold: baggage and ancestry do not leave to a
// destination that is not trusted, even where the host itself has passed them on.
func TestUntrustedDestinationIsNotTold(t *testing.T) {
	last := make(chan seen, 1)
	to := target(t, last)
	own := http.Header{headerBaggage: {"user=alice"}, "Run-Ancestry": {`"p-1";host="up.example.com";cause=core.dispatch`}}
	for name, body := range map[string]string{"plain": `{}`, "MCP": call} {
		for label, more := range map[string]http.Header{
			"nobody's": nil, "nobody's, traced": {headerTraceparent: {traced}},
			"of a run": {"Run-Id": {"r-1"}}, "of a run, traced": {"Run-Id": {"r-1"}, headerTraceparent: {traced}},
		} {
			t.Run(name+"/"+label, func(t *testing.T) {
				s := newSidecar(t, "agent.example.com", "http://"+to, func(_ *Options, p *Policy) {
					p.TrustDestination = func(string) bool { return false }
				})
				h := own.Clone()
				maps.Copy(h, more)
				post(t, s.client(), "http://"+to+"/x", body, h)
				got := receive(t, last, "the call").head
				for _, name := range []string{headerBaggage, "Run-Ancestry", "Run-Id"} {
					if v := got[name]; v != nil {
						t.Errorf("%s = %q, want none", name, v)
					}
				}
			})
		}
	}
}

// TestUntrustedCallerTellsNothing: ancestry of a caller that is not trusted does
// not reach the host, and the context of its messages does not either, though
// nothing begins with them.
func TestUntrustedCallerTellsNothing(t *testing.T) {
	last := make(chan seen, 1)
	to := target(t, last)
	for _, row := range []struct {
		name, body string
		gone       []string
	}{
		{"plain", `{}`, []string{"Run-Ancestry", "Run-Id"}},
		{"MCP", strings.Replace(call, "tools/call", "tools/list", 1), []string{"Run-Ancestry", "Run-Id", headerBaggage, headerTracestate}},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := newSidecar(t, "agent.example.com", "http://"+to, func(_ *Options, p *Policy) { p.TrustCaller = nobody })
			post(t, http.DefaultClient, s.ingress.URL+"/x", row.body, http.Header{
				headerTraceparent: {traced}, headerTracestate: {"vendor=1"}, headerBaggage: {"user=alice"},
				"Run-Ancestry": {`"p-1";host="up.example.com";cause=core.dispatch`}, "Run-Id": {"r-1"},
			})
			got := receive(t, last, "the request").head
			for _, name := range row.gone {
				if v := got[name]; v != nil {
					t.Errorf("%s = %q, want none", name, v)
				}
			}
			if ours := row.name == "MCP"; ours == (got.Get(headerTraceparent) == traced) {
				t.Errorf("traceparent = %q, want that of the caller: %v", got.Get(headerTraceparent), !ours)
			}
		})
	}
}
