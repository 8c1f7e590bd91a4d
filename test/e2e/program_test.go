package e2e

import (
	"bytes"
	"context"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestUsage pins the exit codes of a program that is used rightly and wrongly,
// and that it explains the latter.
func TestUsage(t *testing.T) {
	for _, tt := range []struct {
		name string
		args []string
		want int
		says string // on stderr
	}{
		{"unknown command", []string{"surf"}, 2, `unknown command "surf"`},
		{"unknown flag", []string{"serve", "-colour"}, 2, "-colour"},
		{"operand too many", []string{"serve", "wopproxy.yaml"}, 2, "1 operands given, want 0"},
		{"operand missing", []string{"ancestry", "-host", "http://127.0.0.1"}, 2, "0 operands given, want 1"},
		{"check with an operand", []string{"check", "wopproxy.yaml"}, 2, "1 operands given, want 0"},
		{"no such file", []string{"serve", "-config", "/nonexistent/wopproxy.yaml"}, 1, "/nonexistent/wopproxy.yaml"},
		{"manual of a command", []string{"serve", "-h"}, 0, "usage: wopproxy serve "},
		{"help", []string{"-h"}, 0, ""},
		{"version", []string{"version"}, 0, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := execute(t, tt.args...)
			if got := p.wait(t); got != tt.want {
				t.Errorf("exit code of wopproxy %v = %d, want %d", tt.args, got, tt.want)
			}
			if !strings.Contains(p.stderr.String(), tt.says) {
				t.Errorf("stderr of wopproxy %v = %q, want it to say %q", tt.args, p.stderr, tt.says)
			}
		})
	}
}

// idleHost is a host that answers everything with the run it was handed.
func idleHost(t testing.TB) string {
	host := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Seen-Run", r.Header.Get("Run-Id"))
	}))
	t.Cleanup(host.Close)
	return host.URL
}

// plainSettings are what a configuration needs at least, for programs that are
// started by hand.
func plainSettings(t testing.TB, overrides settings) settings {
	s := settings{
		"host.id": "host.example.com", "host.wellKnownUrl": "https://host.example.com/.well-known/openwop",
		"ingress.listen": "127.0.0.1:0", "ingress.upstream": "http://127.0.0.1:1",
		"egress.listen": "127.0.0.1:0", "admin.listen": "127.0.0.1:0",
		"ancestry.store.bolt.dir": filepath.Join(t.TempDir(), "store"),
	}
	maps.Copy(s, overrides)
	return s
}

// refuses starts the program, which is to exit 1 and say all of says.
func refuses(t *testing.T, command string, values settings, says ...string) {
	t.Helper()
	s := &sidecar{file: filepath.Join(t.TempDir(), "wopproxy.yaml")}
	s.configure(t, values)
	p := execute(t, command, "-config", s.file)
	if code := p.wait(t); code != 1 {
		t.Errorf("exit code = %d, want 1", code)
	}
	for _, want := range says {
		if !strings.Contains(p.stderr.String(), want) {
			t.Errorf("stderr = %q, want it to say %q", p.stderr, want)
		}
	}
	if strings.Contains(p.stderr.String(), `"msg":"serving"`) {
		t.Error("the program has served before it failed")
	}
}

func TestStartRefusesPortInUse(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	for _, key := range []string{"ingress.listen", "egress.listen", "admin.listen"} {
		t.Run(key, func(t *testing.T) {
			refuses(t, "serve", plainSettings(t, settings{key: ln.Addr().String()}),
				key+": ", ln.Addr().String(), "address already in use", "choose an address")
		})
	}
}

// mistakes are three at once, of different kinds.
var mistakes = settings{"ingress.upstraem": "http://127.0.0.1:1", "drain.delay": "soon", "limits.maxDepth": -1}

func TestStartRefusesMistakes(t *testing.T) {
	for _, command := range []string{"serve", "check"} {
		t.Run(command, func(t *testing.T) {
			refuses(t, command, plainSettings(t, mistakes), "ingress.upstraem: ", "drain.delay: ", "limits.maxDepth: ", "wopproxy "+command+": ")
		})
	}
	t.Run("secret that is not there", func(t *testing.T) {
		refuses(t, "check", plainSettings(t, settings{"egress.credentials.secret.env": "NOT_SET_ANYWHERE"}),
			"egress.credentials.secret: ", "NOT_SET_ANYWHERE")
	})
}

func TestCheckAccepts(t *testing.T) {
	s := &sidecar{file: filepath.Join(t.TempDir(), "wopproxy.yaml")}
	values := plainSettings(t, nil)
	s.configure(t, values)
	p := execute(t, "check", "-config", s.file)
	if code := p.wait(t); code != 0 || !strings.Contains(p.stdout.String(), "ok, host host.example.com") {
		t.Errorf("check = %d, %q, want 0 and ok", code, p.stdout)
	}
	if _, err := os.Stat(values["ancestry.store.bolt.dir"].(string)); !os.IsNotExist(err) {
		t.Errorf("check has made the store's directory (%v)", err)
	}
}

func TestStartRefusesLockedStore(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	first := start(t, "host.example.com", idleHost(t), settings{"ancestry.store.bolt.dir": dir})
	refuses(t, "serve", plainSettings(t, settings{"ancestry.store.bolt.dir": dir}), dir, "is used by another process", "ancestry.store.bolt.dir")
	if code, _ := get(t, first.admin+"/readyz"); code != http.StatusOK {
		t.Errorf("readyz of the first program = %d, want 200", code)
	}
}

// TestStartRefusesDamagedStore pins that a store that cannot be read is not
// replaced: the sentence says which file, and the file stays as it is.
func TestStartRefusesDamagedStore(t *testing.T) {
	for _, tt := range []struct {
		name   string
		damage func(whole []byte) []byte
	}{
		{"foreign", func([]byte) []byte { return []byte("these are not the links you are looking for") }},
		{"empty", func([]byte) []byte { return nil }},
		{"cut short", func(b []byte) []byte { return b[:len(b)/2] }},
		{"overwritten", func(b []byte) []byte { return append(bytes.Repeat([]byte{0xA5}, len(b)/2), b[len(b)/2:]...) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "store")
			s := start(t, "host.example.com", idleHost(t), settings{"ancestry.store.bolt.dir": dir})
			begin(t, s, "", http.StatusOK)
			s.stop(t)
			files, err := filepath.Glob(filepath.Join(dir, "*.db"))
			if err != nil || len(files) != 1 {
				t.Fatalf("files of the store = %v, %v, want one", files, err)
			}
			whole, err := os.ReadFile(files[0])
			if err != nil {
				t.Fatal(err)
			}
			damaged := tt.damage(whole)
			if err := os.WriteFile(files[0], damaged, 0o600); err != nil {
				t.Fatal(err)
			}
			refuses(t, "serve", plainSettings(t, settings{"ancestry.store.bolt.dir": dir}), "open ancestry store: ", files[0], "move it away")
			after, err := os.ReadFile(files[0])
			if err != nil || !bytes.Equal(after, damaged) {
				t.Errorf("the damaged file has changed (%v): %d bytes, want %d as they were", err, len(after), len(damaged))
			}
		})
	}
}

// begin starts a run by POST /chat, in the name of a parent on another host
// unless that is empty, and returns the run's id as the caller's proxy learns it.
func begin(t testing.TB, s *sidecar, parent string, want int) (run string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.ingress+"/chat", nil)
	if err != nil {
		t.Fatal(err)
	}
	if parent != "" {
		req.Header.Set("Run-Ancestry", `"`+parent+`";host="caller.example.com";wk="https://caller.example.com/.well-known/openwop";cause=core.dispatch`)
	}
	resp, err := direct.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != want {
		t.Fatalf("POST /chat: status %d, want %d", resp.StatusCode, want)
	}
	return resp.Header.Get("Seen-Run")
}

// closed reports whether nobody listens at a base URL.
func closed(base string) bool {
	conn, err := net.Dial("tcp", strings.TrimPrefix(base, "http://"))
	if err == nil {
		conn.Close()
	}
	return err != nil
}

// TestStop follows a stop: unready at once, serving on for drain.delay, then
// accepting nothing new and finishing what is in flight, metrics to the end.
func TestStop(t *testing.T) {
	const delay = time.Second
	tools := newToolServer(t, "tools.example.com", stateless)
	a := newAgent(t, "agent.example.com", settings{"drain.delay": delay.String(), "drain.timeout": "9s"})
	entered, release := make(chan struct{}), make(chan struct{})
	finished := make(chan error, 1)
	go func() { // ends with the run
		_, err := a.tryChat(t.Context(), nil, func(ctx context.Context, _ *http.Request) error {
			close(entered)
			select {
			case <-release:
			case <-ctx.Done():
				return ctx.Err()
			}
			return nil
		})
		finished <- err
	}()
	if err := await(entered, "the run works"); err != nil {
		t.Fatal(err)
	}
	told := time.Now()
	a.signal(t, syscall.SIGTERM)
	a.awaitLog(t, "draining")
	if code, _ := get(t, a.admin+"/readyz"); code != http.StatusServiceUnavailable {
		t.Errorf("readyz during the drain delay = %d, want 503", code)
	}
	if code, _ := get(t, a.admin+"/livez"); code != http.StatusOK {
		t.Errorf("livez during the drain delay = %d, want 200", code)
	}
	// The delay is for callers who have not noticed yet: they are served, both ways.
	a.chat(t, func(ctx context.Context, _ *http.Request) error {
		cs, err := tools.connect(ctx, a.client(t), tools.endpoint())
		if err != nil {
			return err
		}
		return cs.Close()
	})
	eventually(t, "ingress and egress accept nothing new", func() bool { return closed(a.ingress) && closed(a.egress) })
	if took := time.Since(told); took < delay {
		t.Errorf("listeners closed after %v, want %v of delay first", took, delay)
	}
	if n := a.metric(t, "wopproxy_live_runs"); n != 1 {
		t.Errorf("wopproxy_live_runs during the drain = %v, want 1", n)
	}
	select {
	case err := <-finished:
		t.Fatalf("the run in flight ended early: %v", err)
	default:
	}
	if a.ended() {
		t.Fatal("the program has ended with a run in flight")
	}
	close(release)
	if err := <-finished; err != nil {
		t.Errorf("the run in flight = %v, want it to finish", err)
	}
	if code := a.wait(t); code != 0 {
		t.Errorf("exit code = %d, want 0", code)
	}
}

// TestStopTwice pins that a second signal ends the program at once.
func TestStopTwice(t *testing.T) {
	s := start(t, "host.example.com", idleHost(t), settings{"drain.delay": "10m"})
	s.signal(t, syscall.SIGTERM)
	s.awaitLog(t, "draining")
	s.dieAtOnce(t)
}

// dieAtOnce sends a program that is told to stop further signals, of which one ends it.
func (s *sidecar) dieAtOnce(t *testing.T) {
	t.Helper()
	// The first of these may still find the handler of the first signal.
	eventually(t, "a further signal has ended the program", func() bool {
		if !s.ended() {
			_ = s.cmd.Process.Signal(syscall.SIGTERM) // it may end just now
		}
		return s.ended()
	})
	if code := s.wait(t); code != -1 {
		t.Errorf("exit code after a second signal = %d, want death by the signal", code)
	}
}

// TestStopWaitsForTunnels pins that a CONNECT tunnel, which net/http knows
// nothing of, is waited for, and cut when drain.timeout is over.
func TestStopWaitsForTunnels(t *testing.T) {
	t.Run("until it closes", func(t *testing.T) {
		s, tunnel := startTunnel(t, "9s")
		if err := tunnel.Close(); err != nil {
			t.Error(err)
		}
		if code := s.wait(t); code != 0 {
			t.Errorf("exit code = %d, want 0", code)
		}
	})
	t.Run("not if it idles", func(t *testing.T) {
		host := idleHost(t)
		s := start(t, "host.example.com", host, settings{"drain.timeout": "1m"})
		resp, err := tunnelling(t, s).Get(host)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		s.awaitMetric(t, 1, "wopproxy_tunnels") // kept, for the next request
		s.signal(t, syscall.SIGTERM)
		if code := s.wait(t); code != 0 {
			t.Errorf("exit code = %d, want 0", code)
		}
	})
	t.Run("until drain.timeout", func(t *testing.T) {
		const timeout = 500 * time.Millisecond
		began := time.Now() // before the signal
		s, tunnel := startTunnel(t, timeout.String())
		_ = tunnel.SetReadDeadline(time.Now().Add(patience))
		if n, err := tunnel.Read(make([]byte, 1)); err == nil || os.IsTimeout(err) {
			t.Errorf("Read of a tunnel past drain.timeout = %d, %v, want the end", n, err)
		}
		if took := time.Since(began); took < timeout {
			t.Errorf("the tunnel was cut after %v, want %v", took, timeout)
		}
		// Not all that was in flight could finish, so this is no orderly stop.
		if code := s.wait(t); code != 1 || !strings.Contains(s.stderr.String(), "tunnels were still open and have been cut") {
			t.Errorf("exit code = %d and stderr %q, want 1 and word of the cut", code, s.stderr)
		}
	})
}

// startTunnel opens a tunnel that carries bytes nobody knows, asks the program
// to stop, and returns when its listeners are closed and the tunnel still works.
func startTunnel(t *testing.T, timeout string) (*sidecar, net.Conn) {
	echo, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { echo.Close() })
	go func() { // ends with the listener
		for {
			c, err := echo.Accept()
			if err != nil {
				return
			}
			go func() { // ends with the connection
				defer c.Close()
				b := make([]byte, 64)
				for n, err := c.Read(b); err == nil; n, err = c.Read(b) {
					_, _ = c.Write(b[:n])
				}
			}()
		}
	}()
	s := start(t, "host.example.com", idleHost(t), settings{"drain.timeout": timeout})
	tunnel, err := openTunnel(t.Context(), strings.TrimPrefix(s.egress, "http://"), echo.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tunnel.Close() })
	say := func(word string) {
		t.Helper()
		b := make([]byte, 64)
		_ = tunnel.SetDeadline(time.Now().Add(patience))
		if _, err := tunnel.Write([]byte(word)); err != nil {
			t.Fatalf("Write to the tunnel: %v", err)
		}
		if n, err := tunnel.Read(b); err != nil || string(b[:n]) != word {
			t.Fatalf("Read from the tunnel = %q, %v, want %q", b[:n], err, word)
		}
	}
	say("before")
	s.awaitMetric(t, 1, "wopproxy_tunnels")
	s.signal(t, syscall.SIGTERM)
	eventually(t, "egress accepts nothing new", func() bool { return closed(s.egress) })
	say("after")
	return s, tunnel
}
