package e2e

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestDrain follows a drain that is asked for before the stop, as a preStop hook does:
// callers leave the connections that they keep with their next call, while new ones
// are served, and the host's own stay.
func TestDrain(t *testing.T) {
	entered, release := make(chan struct{}), make(chan struct{})
	s := start(t, "host.example.com", partingHost(t, entered, release), settings{"drain.delay": "10m"})
	at := strings.TrimPrefix(s.ingress, "http://")
	busy, idle, modern := keep(t, at), keep(t, at), keepHTTP2(t, at)
	busy.served(t, "/", false)
	idle.served(t, "/", false)
	slow := make(chan error, 1)
	go func() { // ends with the answer, or the connection
		resp, err := modern.RoundTrip(httptest.NewRequest(http.MethodGet, s.ingress+"/slow", nil))
		if err == nil {
			_, err = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
		}
		slow <- err
	}()
	if err := await(entered, "the host works"); err != nil {
		t.Fatal(err)
	}
	elsewhere, out := idleHost(t), s.client(t)
	calls := func() {
		t.Helper()
		resp, err := out.Get(elsewhere)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK || resp.Close {
			t.Errorf("a call of the host: %s, Close = %v, want it served on a connection that stays", resp.Status, resp.Close)
		}
	}
	calls()

	s.drain(t)
	s.drain(t) // changes nothing
	if code, _ := get(t, s.admin+"/readyz"); code != http.StatusServiceUnavailable {
		t.Errorf("readyz = %d, want 503", code)
	}
	busy.served(t, "/", true)
	busy.awaitEnd(t)
	for _, path := range []string{"/", "/hinted"} {
		c := keep(t, at)
		c.served(t, path, true)
		c.awaitEnd(t)
	}
	keep(t, at).switches(t)
	calls()
	resp, err := modern.RoundTrip(httptest.NewRequest(http.MethodGet, s.ingress+"/", nil))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	eventually(t, "HTTP/2 has a GOAWAY", func() bool { return modern.Available() == 0 })
	select {
	case err := <-slow:
		t.Errorf("the request in flight ended early: %v", err)
	default:
	}
	close(release)
	if err := <-slow; err != nil {
		t.Errorf("the request in flight = %v, want it to finish", err)
	}
	s.signal(t, syscall.SIGTERM) // takes what is left of the delay
	idle.served(t, "/", true)
	s.dieAtOnce(t)
	if n := strings.Count(s.stderr.String(), `"msg":"draining"`); n != 1 {
		t.Errorf("the log tells of %d drains, want 1", n)
	}
}

// TestDrainEnds pins that a connection without a request is closed when drain.delay is
// over, that new ones are served until the stop, and that the stop takes no time then.
func TestDrainEnds(t *testing.T) {
	const delay = time.Second
	s := start(t, "host.example.com", idleHost(t), settings{"drain.delay": delay.String()})
	at := strings.TrimPrefix(s.ingress, "http://")
	idle := keep(t, at)
	idle.served(t, "/", false)
	told := time.Now()
	s.drain(t)
	idle.awaitEnd(t)
	if took := time.Since(told); took < delay {
		t.Errorf("a connection without a request was closed after %v, want %v", took, delay)
	}
	keep(t, at).served(t, "/", true) // endpoints may lag longer than that
	s.signal(t, syscall.SIGTERM)
	if code := s.wait(t); code != 0 {
		t.Errorf("exit code = %d, want 0", code)
	}
	if n := strings.Count(s.stderr.String(), `"msg":"draining"`); n != 1 {
		t.Errorf("the log tells of %d drains, want 1", n)
	}
}

// drain has the command ask for a drain.
func (s *sidecar) drain(t *testing.T) {
	t.Helper()
	p := execute(t, "drain", "-url", s.admin+"/drain")
	if code := p.wait(t); code != 0 || p.stdout.String() != "draining\n" {
		t.Fatalf("drain = %d, %q, %q, want 0 and draining", code, p.stdout, p.stderr)
	}
}

// partingHost answers at once, /slow when it is released, and /hinted with an answer
// before that only informs; at /upgrade it speaks another protocol.
func partingHost(t *testing.T, entered, release chan struct{}) string {
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("/slow", func(w http.ResponseWriter, r *http.Request) {
		close(entered)
		select {
		case <-release:
		case <-r.Context().Done():
		}
	})
	mux.HandleFunc("/hinted", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusEarlyHints)
		io.WriteString(w, "now")
	})
	mux.HandleFunc("/upgrade", func(w http.ResponseWriter, _ *http.Request) {
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		rw.Flush()
		io.Copy(conn, rw)
	})
	srv := httptest.NewServer(mux)
	t.Cleanup(srv.Close)
	return srv.URL
}

// kept is a caller's connection of HTTP/1.1.
type kept struct {
	net.Conn
	r *bufio.Reader
}

func keep(t *testing.T, address string) kept {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return kept{conn, bufio.NewReader(conn)}
}

// served sends a request and wants an answer that is the last here, or is not.
func (c kept) served(t *testing.T, path string, last bool) {
	t.Helper()
	_ = c.SetDeadline(time.Now().Add(patience))
	req := httptest.NewRequest(http.MethodGet, "http://host.example.com"+path, nil)
	if err := req.Write(c); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(c.r, req)
	for err == nil && resp.StatusCode == http.StatusEarlyHints {
		if resp.Close {
			t.Error("an answer that only informs is to be the last")
		}
		resp, err = http.ReadResponse(c.r, req)
	}
	if err != nil {
		t.Fatalf("GET %s: %v", path, err)
	}
	io.Copy(io.Discard, resp.Body)
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK || resp.Close != last {
		t.Errorf("GET %s: %s, Close = %v, want 200 and %v", path, resp.Status, resp.Close, last)
	}
}

// switches has the host speak another protocol.
func (c kept) switches(t *testing.T) {
	t.Helper()
	_ = c.SetDeadline(time.Now().Add(patience))
	io.WriteString(c, "GET /upgrade HTTP/1.1\r\nHost: host.example.com\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
	resp, err := http.ReadResponse(c.r, nil)
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols || resp.Header.Get("Connection") != "Upgrade" {
		t.Fatalf("GET /upgrade = %v, %v, want 101 and Connection: Upgrade", resp, err)
	}
	io.WriteString(c, "echo\n")
	if said, err := c.r.ReadString('\n'); said != "echo\n" {
		t.Errorf("behind the upgrade: %q, %v, want what was said", said, err)
	}
}

// awaitEnd waits until the other side has closed the connection.
func (c kept) awaitEnd(t *testing.T) {
	t.Helper()
	_ = c.SetDeadline(time.Now().Add(patience))
	if b, err := c.r.ReadByte(); err != io.EOF {
		t.Errorf("Read = %q, %v, want the end", b, err)
	}
}

// keepHTTP2 is a connection of HTTP/2 without TLS.
func keepHTTP2(t *testing.T, address string) *http.ClientConn {
	t.Helper()
	tr := &http.Transport{Protocols: new(http.Protocols)}
	tr.Protocols.SetUnencryptedHTTP2(true)
	conn, err := tr.NewClientConn(t.Context(), "http", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}
