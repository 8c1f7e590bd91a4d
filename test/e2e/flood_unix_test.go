//go:build unix

package e2e

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// memory is what the program has taken for its heap and its stacks so far, in
// bytes: both only grow, so that a peak shows after it is over.
func (s *sidecar) memory(t testing.TB) float64 {
	t.Helper()
	return s.metric(t, "go_memstats_heap_sys_bytes") + s.metric(t, "go_memstats_stack_sys_bytes")
}

// wantMemory fails t if the program has taken more than some MiB since before.
func (s *sidecar) wantMemory(t testing.TB, before float64, most int) {
	t.Helper()
	grown := int(s.memory(t)-before) >> 20
	if t.Logf("memory has grown by %d MiB", grown); grown > most {
		t.Errorf("memory has grown by %d MiB, want at most %d", grown, most)
	}
}

// needsFiles skips t where a process may not open so many files.
func needsFiles(t *testing.T, n uint64) {
	t.Helper()
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil || uint64(limit.Max) < n {
		t.Skipf("needs %d open files, and this process may have %d (ulimit -n), %v", n, limit.Max, err)
	}
}

// answering starts a host that answers every request with a result.
func answering(t *testing.T) *httptest.Server {
	t.Helper()
	host := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":"call-7","result":{}}`)
	}))
	t.Cleanup(host.Close)
	return host
}

// callIngress calls the host through ingress, on a connection of its own.
func callIngress(t *testing.T, s *sidecar) {
	t.Helper()
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
	if status, _, body := postTool(t, c, s.ingress+"/mcp"); status != http.StatusOK {
		t.Errorf("a call of somebody else: %d %s, want 200", status, body)
	}
}

// hangers opens connections to a listener, and does something with each.
func hangers(t *testing.T, base string, n int, do func(net.Conn)) []net.Conn {
	t.Helper()
	conns := make([]net.Conn, n)
	for i := range conns {
		c, err := net.Dial("tcp", strings.TrimPrefix(base, "http://"))
		if err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
		t.Cleanup(func() { c.Close() })
		if do != nil {
			do(c)
		}
		conns[i] = c
	}
	return conns
}

// hungUp reports whether the far side has hung up. It waits no longer than it
// takes the system to say so.
func hungUp(c net.Conn, wait time.Duration) bool {
	_ = c.SetReadDeadline(time.Now().Add(wait))
	_, err := c.Read(make([]byte, 1))
	timeout, ok := errors.AsType[net.Error](err)
	return err != nil && (!ok || !timeout.Timeout())
}

// TestIdleConnections: strangers open thousands of connections to ingress and
// leave them alone. Memory is bounded, and whoever has something to ask is
// answered: the longest idle make room.
func TestIdleConnections(t *testing.T) {
	const n, limit = 10_000, 8000
	needsFiles(t, n+1000)
	s := start(t, "agent.example.com", answering(t).URL, settings{"limits.connections": limit})
	callIngress(t, s)
	before := s.memory(t)
	conns := hangers(t, s.ingress, n, nil)
	for range 10 {
		callIngress(t, s)
	}
	s.wantMemory(t, before, n*20<<10>>20)
	// Each connection was asked for before the next one.
	if !hungUp(conns[0], patience) {
		t.Error("the connection that has idled for longest is still open")
	}
	if hit := s.metric(t, "wopproxy_limit_hits_total", `limit="connections"`); hit < n-limit || hit > n-limit+100 {
		t.Errorf("%v connections had to go, want those beyond %d", hit, limit)
	}
}

// TestIdleConnectionsSpareTheBusy: connections with a request on them, and those
// of a tunnel, are nobody's to push out, however long they last.
func TestIdleConnectionsSpareTheBusy(t *testing.T) {
	hold := make(chan struct{})
	host := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			w.(http.Flusher).Flush()
			<-hold
		}
		_, _ = io.WriteString(w, "done")
	}))
	t.Cleanup(host.Close)
	s := start(t, "agent.example.com", host.URL, settings{"limits.connections": 10})
	resp, err := direct.Get(s.ingress + "/slow")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	tunnel := dialEgress(t, s)
	if resp, _ := tunnel.say(t, connectTo(strings.TrimPrefix(host.URL, "http://"))); resp.StatusCode != http.StatusOK {
		t.Fatalf("CONNECT: %d", resp.StatusCode)
	}
	for _, base := range []string{s.ingress, s.egress, s.admin} {
		conns := hangers(t, base, 30, nil)
		for i, c := range conns[:19] {
			if !hungUp(c, patience) {
				t.Errorf("%s: idle connection %d of 30 is still open", base, i)
			}
		}
		if last := conns[29]; hungUp(last, 10*time.Millisecond) {
			t.Errorf("%s: the newest connection was closed", base)
		}
	}
	close(hold)
	if b, err := io.ReadAll(resp.Body); string(b) != "done" || err != nil {
		t.Errorf("the answer under way: %q, %v", b, err)
	}
	if resp, body := tunnel.say(t, "GET / HTTP/1.1\r\nHost: a\r\n\r\n"); resp.StatusCode != http.StatusOK || body != "done" {
		t.Errorf("in the tunnel: %d %q", resp.StatusCode, body)
	}
	for _, base := range []string{s.ingress, s.egress, s.admin} {
		if code, body := get(t, base); code == 0 {
			t.Errorf("%s does not answer: %s", base, body)
		}
	}
}

// TestSlowHeaders: requests that spell out their headers, a byte now and then,
// are cut off, and meanwhile make room for others like connections that idle.
func TestSlowHeaders(t *testing.T) {
	s := start(t, "agent.example.com", answering(t).URL, settings{"limits.connections": 50})
	defer others(t, s)()
	slow := func(c net.Conn) { _, _ = io.WriteString(c, "POST /mcp HTTP/1.1\r\nHost: a\r\nX-Slow: ") }
	conns := append(hangers(t, s.admin, 100, slow), hangers(t, s.ingress, 100, slow)...)
	callIngress(t, s)
	last, began, done := conns[len(conns)-1], time.Now(), make(chan struct{})
	go func() { // ends with the last connection
		defer close(done)
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for _, err := io.WriteString(last, "x"); err == nil; _, err = io.WriteString(last, "x") {
			<-tick.C
		}
	}()
	for i, c := range conns {
		if !hungUp(c, patience) {
			t.Fatalf("slow connection %d is open after %v", i, time.Since(began))
		}
	}
	last.Close()
	<-done
}

// TestSlowBodies: bodies that stop in the middle go on to the host as they come,
// cost no more than what has come, and keep nobody waiting.
func TestSlowBodies(t *testing.T) {
	const n = 500
	came := make(chan string, n)
	host := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			b := make([]byte, 10)
			_, _ = io.ReadFull(r.Body, b)
			came <- string(b)
			_, _ = io.Copy(io.Discard, r.Body) // until the client goes
			return
		}
		_, _ = io.WriteString(w, "{}")
	}))
	t.Cleanup(host.Close)
	s := start(t, "agent.example.com", host.URL, settings{"limits.bodyPatience": "50ms"})
	before := s.memory(t)
	conns := hangers(t, s.ingress, n, func(c net.Conn) {
		_, _ = fmt.Fprintf(c, "POST /slow HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n{\"jsonrpc\"", 4<<20)
	})
	for range n {
		select {
		case got := <-came:
			if got != `{"jsonrpc"` {
				t.Errorf("the host has received %q", got)
			}
		case <-time.After(patience):
			t.Fatal("waited in vain for the requests to reach the host")
		}
	}
	callIngress(t, s)
	s.awaitMetric(t, n, "wopproxy_limit_hits_total", `limit="body-patience"`)
	s.wantMemory(t, before, n*200<<10>>20)
	for _, c := range conns {
		c.Close()
	}
	s.awaitMetric(t, n, "wopproxy_exchanges_total", `direction="ingress"`, `outcome="client-gone"`)
}

// TestLargeHeaders: a request with a megabyte of headers is refused by every
// listener and in tunnels, and costs the connection alone.
func TestLargeHeaders(t *testing.T) {
	host := answering(t)
	s := start(t, "agent.example.com", host.URL)
	defer others(t, s)()
	tunnel := func() net.Conn {
		c := dialEgress(t, s)
		if resp, _ := c.say(t, connectTo(strings.TrimPrefix(host.URL, "http://"))); resp.StatusCode != http.StatusOK {
			t.Fatalf("CONNECT: %d", resp.StatusCode)
		}
		return c
	}
	before := s.memory(t)
	for name, dial := range map[string]func() net.Conn{
		"ingress": func() net.Conn { return hangers(t, s.ingress, 1, nil)[0] },
		"egress":  func() net.Conn { return hangers(t, s.egress, 1, nil)[0] },
		"admin":   func() net.Conn { return hangers(t, s.admin, 1, nil)[0] },
		"tunnel":  tunnel,
	} {
		for what, head := range map[string]string{
			"one line":   "X-Large: " + strings.Repeat("x", 1<<20) + "\r\n",
			"many lines": strings.Repeat("X-Large: 1234567890123456\r\n", 1<<20/27),
			"a path":     "",
		} {
			c := dial()
			path := "/"
			if head == "" {
				path += strings.Repeat("x", 1<<20)
			}
			go func() { _, _ = io.WriteString(c, "GET "+path+" HTTP/1.1\r\nHost: a\r\n"+head+"\r\n") }() // ends when it is cut off
			resp, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil || resp.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
				t.Errorf("%s, %s: %v, %v, want 431", name, what, resp, err)
			}
			c.Close()
		}
	}
	s.wantMemory(t, before, 32)
}

// TestBodiesHeldBack: callers who send all of a large body but its last byte hold
// no more memory than there is for all of them; what finds none passes unread.
func TestBodiesHeldBack(t *testing.T) {
	const n, size = 100, 4 << 20
	var got atomic.Int64
	host := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.Copy(io.Discard, r.Body)
		got.Add(b)
		_, _ = io.WriteString(w, "{}")
	}))
	t.Cleanup(host.Close)
	s := start(t, "agent.example.com", host.URL, settings{"limits.bodyPatience": "10m"})
	before := s.memory(t)
	text := strings.Repeat(" ", size-1)
	conns := hangers(t, s.ingress, n, func(c net.Conn) {
		_, _ = fmt.Fprintf(c, "POST /mcp HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", size)
		_, _ = io.WriteString(c, text)
	})
	callIngress(t, s)
	s.wantMemory(t, before, 3*64+n*200<<10>>20) // what is outgrown is not yet collected
	for _, c := range conns {
		if _, err := io.WriteString(c, "0"); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("answer: %v, %v", resp, err)
		}
	}
	if want := int64(n*size + len(toolCall)); got.Load() < want {
		t.Errorf("the host has received %d bytes, want %d and what was stamped", got.Load(), want)
	}
	if hit := s.metric(t, "wopproxy_limit_hits_total", `limit="inspected-bodies"`); hit < n-17 || hit == n {
		t.Errorf("%v bodies of %d passed unread, want those that 64 MiB had no room for", hit, n)
	}
}
