package e2e

import (
	"fmt"
	"net"
	"net/http"
	"syscall"
	"testing"
)

// blackHole is an address that takes no connections and refuses none: the
// listener's queue is full, and Linux drops what comes next.
func blackHole(t *testing.T) string {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Close(fd) })
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Listen(fd, 0); err != nil { // which has room for one
		t.Fatal(err)
	}
	at, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	addr := fmt.Sprintf("127.0.0.1:%d", at.(*syscall.SockaddrInet4).Port)
	conn, err := net.DialTimeout("tcp", addr, patience)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return addr
}

// TestBlackHole: a destination takes no connection and refuses none.
func TestBlackHole(t *testing.T) {
	s := start(t, "agent.example.com", "http://127.0.0.1:1", settings{"egress.dialTimeout": "100ms"})
	defer others(t, s)()
	hole := blackHole(t)
	resp, body := dialEgress(t, s).say(t, connectTo(hole))
	if resp.StatusCode != http.StatusGatewayTimeout || body != "wopproxy: upstream did not answer in time\n" {
		t.Errorf("CONNECT to a black hole: %d %q, want 504", resp.StatusCode, body)
	}
	status, typ, body := postTool(t, s.client(t), "http://"+hole+"/mcp")
	if want := rpcError(504, "upstream did not answer in time"); status != 504 || typ != "application/json" || body != want {
		t.Errorf("a call to a black hole: %d %s %s, want 504 %s", status, typ, body, want)
	}
	s.awaitMetric(t, 2, "wopproxy_limit_hits_total", `limit="dial-timeout"`)
	s.awaitMetric(t, 1, "wopproxy_exchanges_total", `direction="egress"`, `outcome="upstream-error"`, `protocol="http"`)
	s.awaitMetric(t, 1, "wopproxy_exchanges_total", `direction="egress"`, `outcome="upstream-error"`, `protocol="mcp"`)
}
