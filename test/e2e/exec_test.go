package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// startExec runs "wopproxy exec" and returns when the host can be called. What
// it writes apart from the store goes to a temporary folder, which is empty when
// it has ended. t fails unless it then exits as the host does: 143, by a SIGTERM.
func startExec(t *testing.T, env []string, flags []string, command ...string) *sidecar {
	t.Helper()
	tmp := t.TempDir()
	s := &sidecar{hostID: "host.example.com"}
	args := append(append([]string{"exec", "-host-id", s.hostID, "-store", filepath.Join(t.TempDir(), "links")}, flags...), "--")
	s.process = run(t, append([]string{"TMPDIR=" + tmp}, env...), append(args, command...)...)
	serving := s.awaitLog(t, "serving")
	s.ingress, s.egress, s.admin = fmt.Sprintf("http://%v", serving["ingress"]), fmt.Sprintf("http://%v", serving["egress"]), fmt.Sprintf("http://%v", serving["admin"])
	t.Cleanup(func() {
		if !s.ended() {
			s.signal(t, syscall.SIGTERM)
		}
		if code := s.wait(t); code != 128+int(syscall.SIGTERM) {
			t.Errorf("exit code after SIGTERM = %d, want %d", code, 128+int(syscall.SIGTERM))
		}
		if left, err := os.ReadDir(tmp); err != nil || len(left) > 0 {
			t.Errorf("left behind: %v %v", left, err)
		}
	})
	eventually(t, "the host listens", func() bool {
		code, _ := get(t, s.ingress)
		return code != 0 && code != http.StatusBadGateway
	})
	return s
}

// callHost has the host at ingress call a tool with a token, and returns the run
// that the host has done it in.
func callHost(t *testing.T, ingress, token string) (run string, err error) {
	body := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","arguments":` + token + `}}`
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, ingress+"/mcp", strings.NewReader(body))
	if err != nil {
		return "", err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := direct.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return "", err
	}
	var said struct {
		Result struct{ Content []struct{ Text string } }
	}
	if err := json.Unmarshal(answer, &said); err != nil || len(said.Result.Content) != 1 {
		return "", fmt.Errorf("status %d: %s", resp.StatusCode, answer)
	}
	return said.Result.Content[0].Text, nil
}

// TestExec starts hosts in Node and Python that know nothing of wopproxy and
// forward nothing: 64 runs at once each call out, and every call is linked to the
// run that made it, by what the shim has handed on.
func TestExec(t *testing.T) {
	type row struct {
		name    string
		command []string
	}
	var rows []row
	for _, n := range nodes(t) {
		client := "http"
		if n.readsProxyEnv {
			client = "fetch"
		}
		rows = append(rows, row{fmt.Sprintf("%v, %s", n, client), []string{n.path, "node/host.mjs", client}})
	}
	rows = append(rows, row{"Python", []string{python(t, "http.server"), "python/host.py"}})
	for _, tt := range rows {
		t.Run(tt.name, func(t *testing.T) {
			tools := newToolServer(t, "tools.example.com", stateless)
			s := startExec(t, nil, nil, append(tt.command, tools.endpoint())...)
			var mu sync.Mutex
			truth := map[string]fact{}
			var all sync.WaitGroup
			for range 64 {
				all.Go(func() {
					token := `{"token":"` + randomHex(8) + `"}`
					run, err := callHost(t, s.ingress, token)
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					defer mu.Unlock()
					truth[token] = fact{caller: run, certain: true}
				})
			}
			all.Wait()
			got := judge(t, &agent{sidecar: s}, tools, truth)
			t.Logf("%d calls: %+v", len(truth), got)
			if got.wrong > 0 || got.missed > 0 {
				t.Errorf("%d links are wrong and %d are missing, want none", got.wrong, got.missed)
			}
			for _, f := range truth { // any one: whoever walks finds the host where exec listens
				child := s.children(t, f.caller)[0].RunID
				if diff := cmp.Diff([]hop{{child, tools.hostID}, {f.caller, s.hostID}}, tools.walk(t, child)); diff != "" {
					t.Errorf("walk from %s (-want +got):\n%s", child, diff)
				}
				break
			}
			if by := s.metric(t, "wopproxy_attributions_total", `evidence="trace-state"`); by+s.metric(t, "wopproxy_attributions_total", `evidence="run-id"`) != 64 {
				t.Errorf("calls attributed by what was handed on = %v, want 64", by)
			}
		})
	}
}

// TestExecCommand runs ordinary commands.
func TestExecCommand(t *testing.T) {
	seen := make(chan *http.Request, 8)
	far := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { seen <- r }))
	defer far.Close()
	state, tmp := t.TempDir(), t.TempDir()
	env := []string{"XDG_STATE_HOME=" + state, "TMPDIR=" + tmp}
	shell := func(script string) []string { return []string{"exec", "--", "sh", "-c", script} }
	file := filepath.Join(t.TempDir(), "wopproxy.yaml")
	write(t, file, "host: { id: x, wellKnownUrl: http://x/ }\n")
	for _, tt := range []struct {
		name   string
		env    []string
		args   []string
		code   int
		stdout string // all of it
		stderr string // a part of it
	}{
		{name: "exit status", args: shell("exit 7"), code: 7},
		{name: "killed", args: shell("kill -9 $$"), code: 137},
		{name: "no such command", args: []string{"exec", "--", "no-such-command"}, code: 127, stderr: "no-such-command"},
		{name: "no command", args: []string{"exec"}, code: 2, stderr: "no COMMAND given"},
		{name: "own flags of the command", args: []string{"exec", "--", "echo", "-config", "x"}, stdout: "-config x\n"},
		{name: "port of the host", env: []string{"PORT=4321"}, args: shell("echo $PORT"), stdout: "4321\n"},
		{name: "a port for the host", args: shell(`[ "$PORT" -gt 0 ] && echo yes`), stdout: "yes\n"},
		{
			name: "a flag that the file decides", args: []string{"exec", "-config", file, "-upstream", "http://x", "--", "echo", "started"},
			code: 2, stderr: "-upstream has no effect with -config, write it in the file",
		},
		{
			name: "a file with mistakes", args: []string{"exec", "-config", file, "--", "echo", "started"},
			code: 1, stderr: "ingress.upstream: required",
		},
		{
			name: "a flag with a mistake", args: []string{"exec", "-egress", "8089", "--", "echo", "started"},
			code: 1, stderr: "egress.listen",
		},
		{
			name: "somebody else's proxy", env: []string{"https_proxy=http://proxy.example.com"}, args: shell("echo $HTTPS_PROXY$https_proxy"),
			stdout: "http://proxy.example.com\n", stderr: `"variables":"https_proxy"`,
		},
		{name: "no shims", args: []string{"exec", "-carry=false", "--", "sh", "-c", "echo $NODE_OPTIONS$PYTHONPATH"}, stdout: "\n"},
		{name: "a proxy that is up", args: shell(`curl -fsS --noproxy "" "$HTTP_PROXY/x" 2>&1 | grep -c 508`), stdout: "1\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := run(t, append(tt.env, env...), tt.args...)
			if code := p.wait(t); code != tt.code {
				t.Errorf("exit code = %d, want %d", code, tt.code)
			}
			if got := p.stdout.String(); got != tt.stdout {
				t.Errorf("stdout = %q, want %q", got, tt.stdout)
			}
			if got := p.stderr.String(); !strings.Contains(got, tt.stderr) {
				t.Errorf("stderr = %q, want it to have %q", got, tt.stderr)
			}
		})
	}
	t.Run("curl sees the proxy", func(t *testing.T) {
		if _, err := exec.LookPath("curl"); err != nil {
			missing(t, "no curl", "run apt-get install curl")
		}
		p := run(t, env, "exec", "--", "curl", "-fsS", "-H", "Run-Id: r1", far.URL)
		if code := p.wait(t); code != 0 {
			t.Fatalf("exit code = %d, want 0", code)
		}
		if r := <-seen; r.Header.Get("Run-Id") != "" {
			t.Errorf("the far server was sent %v, want what has passed the proxy", r.Header)
		}
		if n := strings.Count(p.stderr.String(), "\n"); n != 1 {
			t.Errorf("lines on stderr = %d, want the one with the addresses:\n%s", n, p.stderr)
		}
	})
	if left, err := os.ReadDir(tmp); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
}

// TestExecStores runs one command twice at once: each has a store of its own.
func TestExecStores(t *testing.T) {
	state := t.TempDir()
	var both []*process
	for range 2 {
		p := run(t, []string{"XDG_STATE_HOME=" + state}, "exec", "-host-id", "h/1", "--", "sh", "-c", "exec sleep 60")
		p.awaitLog(t, "serving")
		both = append(both, p)
	}
	for _, p := range both {
		p.signal(t, syscall.SIGTERM)
		if code := p.wait(t); code != 143 {
			t.Errorf("exit code after SIGTERM = %d, want 143", code)
		}
	}
	for n := range 2 {
		files, err := filepath.Glob(filepath.Join(state, "wopproxy/exec/h_1", fmt.Sprint(n+1), "*.db"))
		if err != nil || len(files) != 1 {
			t.Errorf("files of store %d = %v %v, want 1", n+1, files, err)
		}
	}
	dir := filepath.Join(state, "one")
	first := run(t, nil, "exec", "-store", dir, "--", "sleep", "60")
	first.awaitLog(t, "serving")
	second := run(t, nil, "exec", "-store", dir, "--", "echo", "started")
	if code := second.wait(t); code != 1 || second.stdout.Len() > 0 || !strings.Contains(second.stderr.String(), "is used by another process") {
		t.Errorf("a store in use: exit code %d, stdout %q, stderr %q", code, second.stdout, second.stderr)
	}
	first.signal(t, syscall.SIGTERM)
	first.wait(t)
}

// TestExecDies kills the program: its host does not live on with a proxy that is
// gone.
func TestExecDies(t *testing.T) {
	out := filepath.Join(t.TempDir(), "pid")
	p := run(t, []string{"TMPDIR=" + t.TempDir()}, "exec", "-store", filepath.Join(t.TempDir(), "s"), "--", "sh", "-c", "echo $$ >"+out+"; exec sleep 60")
	var pid int
	eventually(t, "the host has started", func() bool {
		text, _ := os.ReadFile(out)
		_, err := fmt.Sscan(string(text), &pid)
		return err == nil
	})
	p.signal(t, syscall.SIGKILL)
	p.wait(t)
	eventually(t, "the host has ended", func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return err != nil || bytes.Contains(stat, []byte(") Z "))
	})
}

// TestExecIntercepts has a command call a destination whose TLS is opened, with
// trust in the bundle that it finds in its environment, and in the roots that the
// environment named before.
func TestExecIntercepts(t *testing.T) {
	if _, err := exec.LookPath("curl"); err != nil {
		missing(t, "no curl", "run apt-get install curl")
	}
	opened, private := newTLSPeer(t), newTLSPeer(t)
	dir, tmp := t.TempDir(), t.TempDir()
	roots, file := filepath.Join(dir, "roots.pem"), filepath.Join(dir, "wopproxy.yaml")
	write(t, roots, opened.certPEM()) // also private's: both have the certificate of httptest
	host := strings.TrimPrefix(opened.URL, "https://")
	write(t, file, fmt.Sprintf(`
host: { id: h, wellKnownUrl: "http://127.0.0.1/.well-known/openwop" }
ingress: { listen: "127.0.0.1:0", upstream: "http://127.0.0.1:1" }
egress: { listen: "127.0.0.1:0", intercept: [%q], roots: %q, ca: { bundle: %q } }
admin: { listen: "127.0.0.1:0" }
ancestry: { store: { bolt: { dir: %q } }, auth: { mode: none } }
`, host, roots, filepath.Join(dir, "unused.pem"), filepath.Join(dir, "store")))
	const message = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x"}}`
	call := func(command ...string) string {
		p := run(t, []string{"TMPDIR=" + tmp, "CURL_CA_BUNDLE=" + roots}, append([]string{"exec", "-config", file, "--"}, command...)...)
		if code := p.wait(t); code != 0 {
			t.Fatalf("exit code = %d, want 0", code)
		}
		return p.stdout.String()
	}
	curl := []string{"curl", "-fsS", "-H", "Content-Type: application/json", "-H", "Run-Id: run-of-the-host", "-d", message}
	const stamped = `"_meta":{"traceparent":`
	if got := call(append(curl, opened.URL+"/mcp")...); !strings.Contains(got, stamped) {
		t.Errorf("opened: the server saw %s, want the call stamped", got)
	}
	if got := call(append(curl, private.URL+"/mcp")...); strings.Contains(got, "traceparent") {
		t.Errorf("private: the server saw %s, want the call as it was", got)
	}
	if _, err := exec.LookPath("javac"); err == nil { // without the compiler there is no program to run
		if got := call("java", "java/Call.java", opened.URL+"/mcp", message); !strings.Contains(got, stamped) {
			t.Errorf("opened, from Java: the server saw %s, want the call stamped", got)
		}
	} else if os.Getenv("WOPPROXY_E2E") == "all" {
		t.Error("no javac: Java was not tried")
	}
	if _, err := os.Stat(filepath.Join(dir, "unused.pem")); err == nil {
		t.Error("egress.ca.bundle was written, which another wopproxy may use at the same time")
	}
	if left, err := os.ReadDir(tmp); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
}
