package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

func lines(text string) []string { return strings.Split(text, "\n") }

// ofPlanner is the _meta of a call that a run of another host makes, and the
// trace that it is made in.
func ofPlanner(run string) (meta mcp.Meta, trace string) {
	trace = randomHex(16)
	return mcp.Meta{
		"traceparent":               "00-" + trace + "-00f067aa0ba902b7-01",
		"dev.wopproxy/run-ancestry": fmt.Sprintf(`%q;host="planner.example.com";cause=mcp-tool-call`, run),
	}, trace
}

// of returns the one run that is recorded in a trace.
func (s *stdioSession) of(t testing.TB, trace string) link {
	t.Helper()
	runs := s.trace(t, trace)
	if len(runs) != 1 {
		t.Fatalf("runs in %s = %+v, want one", trace, runs)
	}
	return runs[0]
}

// TestStdio has a client of the official SDK use a server of it through
// wopproxy: all that a call may be, in both directions.
func TestStdio(t *testing.T) {
	s := newStdioSession(t, stateful, nil)
	for _, tool := range []string{"echo", "sample", "ask", "progress"} {
		meta, trace := ofPlanner("run-of-" + tool)
		meta["progressToken"] = tool
		saw, err := s.use(t.Context(), tool, meta)
		if err != nil {
			t.Fatal(err)
		}
		l := s.of(t, trace)
		if l.parent() != (ancestor{RunID: "run-of-" + tool, HostID: "planner.example.com", Cause: "mcp-tool-call"}) || l.Operation != "tools/call" {
			t.Errorf("%s: link %+v, want the parent run-of-%s", tool, l, tool)
		}
		if got := fmt.Sprint(saw["traceparent"]); traceOf(got) != trace {
			t.Errorf("%s: the server saw traceparent %s, want trace %s", tool, got, trace)
		}
		if state := fmt.Sprint(saw["tracestate"]); !strings.Contains(state, "wop=") || !strings.HasSuffix(state, l.RunID) {
			t.Errorf("%s: the server saw tracestate %s, want run %s in it", tool, state, l.RunID)
		}
		for _, method := range map[string][]string{
			"sample": {"sampling/createMessage"}, "ask": {"roots/list", "elicitation/create", "ping"}, "progress": {"notifications/progress"},
		}[tool] {
			metas := s.asked(method)
			if method == "notifications/progress" {
				eventually(t, "progress arrives", func() bool { metas = s.asked(method); return len(metas) > 0 })
			}
			if len(metas) != 1 || traceOf(fmt.Sprint(metas[0]["traceparent"])) != trace {
				t.Errorf("%s: the client was asked for %s with %v, want trace %s once", tool, method, metas, trace)
				continue
			}
			told := fmt.Sprint(metas[0]["dev.wopproxy/run-ancestry"])
			if want := fmt.Sprintf(`%q;host="tools.example.com"`, l.RunID); strings.HasPrefix(told, want) != (method != "notifications/progress") {
				t.Errorf("%s: %s tells of the ancestry %s; want %s first, and nothing in a notification", tool, method, told, want)
			}
			if _, ok := metas[0]["tracestate"]; ok {
				t.Errorf("%s: %s has our own tracestate: %v", tool, method, metas[0])
			}
		}
	}
	if err := s.Ping(t.Context(), nil); err != nil {
		t.Error(err)
	}
	for evidence, want := range map[string]float64{"trace-state": 1, "conversation": 1, "single-flight": 3} {
		if got := s.metric(t, "wopproxy_attributions_total", fmt.Sprintf("evidence=%q", evidence)); got != want {
			t.Errorf("messages of the server attributed by %s = %v, want %v", evidence, got, want)
		}
	}
	if live := s.live(t); len(live) != 0 {
		t.Errorf("live runs after the answers = %+v, want none", live)
	}

	// A call that is cancelled is so for the server.
	ctx, cancel := context.WithCancel(t.Context())
	hung := make(chan error, 1)
	go func() { _, err := s.use(ctx, "hang", nil); hung <- err }()
	s.awaitStderr(t, "hanging")
	cancel()
	if err := <-hung; !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled call = %v", err)
	}
	s.awaitStderr(t, "cancelled")

	if err := s.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	if got := s.stderr.String(); got != "hanging\ncancelled\n" {
		t.Errorf("stderr = %q, want the server's alone", got)
	}
}

// TestStdioStateless is as much of TestStdio as the 2026 revision has.
func TestStdioStateless(t *testing.T) {
	s := newStdioSession(t, stateless, nil)
	meta, trace := ofPlanner("run-p")
	saw, err := s.use(t.Context(), "echo", meta)
	if err != nil {
		t.Fatal(err)
	}
	if l := s.of(t, trace); l.parent().RunID != "run-p" || !strings.HasSuffix(fmt.Sprint(saw["tracestate"]), l.RunID) {
		t.Errorf("link %+v, and the server saw %v; want the parent run-p, and the run in tracestate", l, saw)
	}
	meta, _ = ofPlanner("run-p")
	meta["progressToken"] = 7
	if _, err := s.use(t.Context(), "progress", meta); err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
}

// TestStdioEnvironment: a client that sends no context is in that of the process.
func TestStdioEnvironment(t *testing.T) {
	trace := randomHex(16)
	s := newStdioSession(t, stateful, []string{"TRACEPARENT=00-" + trace + "-00f067aa0ba902b7-01", "TRACESTATE=vendor=1"})
	saw, err := s.use(t.Context(), "echo", nil)
	if err != nil {
		t.Fatal(err)
	}
	l := s.of(t, trace)
	if l.parent() != (ancestor{}) || l.Reason != "no-ancestry" || l.ParentSpanID != "00f067aa0ba902b7" {
		t.Errorf("link %+v, want one without parent, below the span of the environment", l)
	}
	if traceOf(fmt.Sprint(saw["traceparent"])) != trace || !strings.HasSuffix(fmt.Sprint(saw["tracestate"]), l.RunID+",vendor=1") {
		t.Errorf("the server saw %v", saw)
	}
}

// TestStdioConcurrent: 64 calls at once, each of a run of its own, and in each
// the server asks the client something. Every link is right, and so is the
// context of every question.
func TestStdioConcurrent(t *testing.T) {
	s := newStdioSession(t, stateful, nil)
	var all sync.WaitGroup
	parents := make(map[string]string) // by trace
	for i := range 64 {
		run := fmt.Sprintf("run-%02d", i)
		meta, trace := ofPlanner(run)
		parents[trace] = run
		all.Go(func() {
			if _, err := s.use(t.Context(), "sample", meta); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	runs := map[string]string{} // by trace
	for trace, parent := range parents {
		l := s.of(t, trace)
		runs[trace] = l.RunID
		if l.parent().RunID != parent {
			t.Errorf("parent in %s = %+v, want %s", trace, l.parent(), parent)
		}
	}
	questions := s.asked("sampling/createMessage")
	for _, meta := range questions {
		trace := traceOf(fmt.Sprint(meta["traceparent"]))
		if told := fmt.Sprint(meta["dev.wopproxy/run-ancestry"]); !strings.HasPrefix(told, fmt.Sprintf("%q;", runs[trace])) {
			t.Errorf("a question in the trace of %s tells of %s", runs[trace], told)
		}
	}
	if len(questions) != 64 {
		t.Errorf("%d questions, want 64", len(questions))
	}
}

// TestStdioDies: when the server ends in the middle of a call, so does the
// program, and with the same status.
func TestStdioDies(t *testing.T) {
	s := newStdioSession(t, stateful, nil)
	if _, err := s.use(t.Context(), "die", nil); err == nil {
		t.Error("a call of a server that dies has an answer")
	}
	s.awaitStderr(t, "dying")
	_ = s.Wait()
	_ = s.Close()
	if code := s.command.ProcessState.ExitCode(); code != 9 {
		t.Errorf("exit status %d, want the server's 9", code)
	}
}

// TestStdioChain: a host that was called over HTTP calls a tool over stdio. The
// trace is one in any case; the link is there if the host says who it is.
func TestStdioChain(t *testing.T) {
	a := newAgent(t, "agent.example.com")
	s := newStdioSession(t, stateful, nil)
	var traces [2]string
	var tells mcp.Meta
	runs := [2]string{}
	for i := range traces {
		runs[i] = a.chat(t, func(ctx context.Context, in *http.Request) error {
			tells = mcp.Meta{"traceparent": in.Header.Get("Traceparent"), "tracestate": in.Header.Get("Tracestate")}
			if i == 1 {
				tells["dev.wopproxy/run-ancestry"] = fmt.Sprintf(`%q;host="agent.example.com";wk=%q;cause=mcp-tool-call`, in.Header.Get("Run-Id"), a.public+"/.well-known/openwop")
			}
			traces[i] = traceOf(in.Header.Get("Traceparent"))
			_, err := s.use(ctx, "echo", tells)
			return err
		})
	}
	if l := s.of(t, traces[0]); l.parent() != (ancestor{}) {
		t.Errorf("the host did not say who called, and the parent is %+v", l.parent())
	}
	l := s.of(t, traces[1])
	if l.parent().RunID != runs[1] || l.parent().HostID != "agent.example.com" {
		t.Errorf("parent = %+v, want %s of the agent", l.parent(), runs[1])
	}
	if own := a.trace(t, traces[1]); len(own) != 1 || own[0].RunID != runs[1] {
		t.Errorf("the agent knows %+v in that trace, want its run %s", own, runs[1])
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	// The server has ended; what it has left can still be read.
	p := execute(t, "ancestry", l.RunID, "-store", s.store)
	if code := p.wait(t); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	if got, want := p.stdout.String(), fmt.Sprintf("%s  agent.example.com  (unconfirmed)\n└─ mcp-tool-call → %s  \n", runs[1], l.RunID); got != want {
		t.Errorf("ancestry -store:\n%swant:\n%s", got, want)
	}
	p = execute(t, "ancestry", "run_unknown", "-store", s.store)
	if code := p.wait(t); code != 1 || !strings.Contains(p.stderr.String(), "no such run") {
		t.Errorf("unknown run: exit code %d, %s", code, p.stderr)
	}
}

// TestStdioMany: several servers run at once with one store, and what each has
// recorded is there afterwards.
func TestStdioMany(t *testing.T) {
	store := t.TempDir()
	call := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x"}}` + "\n"
	type server struct {
		cmd *exec.Cmd
		in  io.WriteCloser
		out *bufio.Reader
	}
	var servers []server
	for range 5 {
		cmd := wrapped([]string{"-store", store}, "sed", "-u", "p") // says each line twice: once is our call, as it came
		s := server{cmd: cmd}
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if s.in, err = cmd.StdinPipe(); err != nil {
			t.Fatal(err)
		}
		s.out = bufio.NewReader(out)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill() })
		servers = append(servers, s)
	}
	for _, s := range servers {
		if _, err := io.WriteString(s.in, call); err != nil {
			t.Fatal(err)
		}
	}
	said := make([]string, len(servers))
	for i, s := range servers { // all are up before one goes, and leaves its store to another
		line, err := s.out.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		said[i] = line
	}
	for i, s := range servers {
		s.in.Close()
		rest, err := io.ReadAll(s.out)
		if err != nil {
			t.Fatal(err)
		}
		said[i] += string(rest)
		if code := waitFor(t, s.cmd); code != 0 {
			t.Errorf("exit status %d", code)
		}
	}
	dirs, _ := filepath.Glob(filepath.Join(store, "*"))
	if len(dirs) != len(servers) {
		t.Errorf("stores %q, want one each", dirs)
	}
	for _, out := range said {
		// The echo of the call is a call of the client, and names the run that it is in.
		_, rest, ok := strings.Cut(out, `"dev.wopproxy/run-ancestry":"\"`)
		run, _, _ := strings.Cut(rest, `\"`)
		if !ok {
			t.Fatalf("output %s", out)
		}
		p := execute(t, "ancestry", run, "-store", store)
		if code := p.wait(t); code != 0 || !strings.HasPrefix(p.stdout.String(), run) {
			t.Errorf("ancestry of %s: exit code %d, %s", run, code, p.stderr)
		}
	}
}

// TestStdioLikeDirect runs commands with and without wopproxy: what they write on
// both outputs is the same, and so is how they end.
func TestStdioLikeDirect(t *testing.T) {
	long := `{"jsonrpc":"2.0","id":1,"result":"` + strings.Repeat("x", 17<<20) + `"}`
	for _, tt := range []struct {
		name, script, input string
	}{
		{"nothing", "", ""},
		{"exit status", "exit 3", ""},
		{"a high exit status", "exit 255", ""},
		{"messages", "cat", "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n\r\n\n{\"jsonrpc\":\"2.0\",\"method\":\"ping\",\"id\":2}\r\n"},
		{"garbage", `printf 'no \377\376\000 text\n\n{"a":\nlast'; cat; exit 4`, "\xff\xfe{]\n\n{\"jsonrpc\"\r\n"},
		{"standard error", `cat; printf 'warning \377\n{"level":"info"}\nno end' >&2`, "x\n"},
		{"17 MiB in a line", "cat", long + "\nbehind it\n"},
		{"17 MiB without an end", "cat", long},
		{"more than a pipe holds, at the end", `cat >/dev/null; head -c 300000 /dev/zero | tr '\0' 'z'; exit 5`, "x\n"},
		{"no input is read", "exit 6", long},
		{"the output is closed early", "exec >&-; cat >/dev/null; exit 7", "x\n"},
		{"the input is closed early", "exec <&-; echo still here; exit 8", "x\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			type result struct {
				stdout, stderr string
				code           int
			}
			do := func(cmd *exec.Cmd) result {
				var stdout, stderr bytes.Buffer
				cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(tt.input), &stdout, &stderr
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				code := waitFor(t, cmd)
				return result{stdout.String(), stderr.String(), code}
			}
			want := do(exec.Command("sh", "-c", tt.script))
			got := do(wrapped([]string{"-store", t.TempDir()}, "sh", "-c", tt.script))
			if got.code != want.code {
				t.Errorf("exit status %d, want %d", got.code, want.code)
			}
			if got.stdout != want.stdout || got.stderr != want.stderr {
				t.Errorf("%d bytes %.200q and on stderr %q, want %d bytes %.200q and %q", len(got.stdout), got.stdout, got.stderr, len(want.stdout), want.stdout, want.stderr)
			}
		})
	}
}

// TestStdioEnds: each way in which either side may go.
func TestStdioEnds(t *testing.T) {
	const ready = "echo ready; "
	start := func(t *testing.T, script string, flags ...string) (cmd *exec.Cmd, in io.WriteCloser, out io.ReadCloser) {
		t.Helper()
		cmd = wrapped(append(flags, "-store", t.TempDir()), "sh", "-c", ready+script)
		cmd.Stderr = os.Stderr
		in, inErr := cmd.StdinPipe()
		out, outErr := cmd.StdoutPipe()
		if err := errors.Join(inErr, outErr, cmd.Start()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill() })
		line := make([]byte, len("ready\n"))
		if _, err := io.ReadFull(out, line); err != nil {
			t.Fatal(err)
		}
		return cmd, in, out
	}
	rest := func(t *testing.T, out io.Reader, want string) {
		t.Helper()
		if got, err := io.ReadAll(out); err != nil || string(got) != want {
			t.Errorf("output %q, %v, want %q", got, err, want)
		}
	}
	for sig, name := range map[syscall.Signal]string{syscall.SIGTERM: "TERM", syscall.SIGINT: "INT", syscall.SIGHUP: "HUP", syscall.SIGUSR1: "USR1"} {
		t.Run("SIG"+name, func(t *testing.T) {
			// The shell waits in the foreground for what ends at once with its input.
			cmd, _, out := start(t, "trap 'echo got "+name+"; exit 42' "+name+"; echo set; while :; do sleep 0.01; done")
			if _, err := io.ReadFull(out, make([]byte, len("set\n"))); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Process.Signal(sig)
			rest(t, out, "got "+name+"\n")
			if code := waitFor(t, cmd); code != 42 {
				t.Errorf("exit status %d, want 42", code)
			}
		})
	}
	t.Run("SIGTERM that is ignored", func(t *testing.T) {
		cmd, _, out := start(t, "trap '' TERM; echo set; while :; do sleep 0.01; done", "-grace", "50ms")
		if _, err := io.ReadFull(out, make([]byte, len("set\n"))); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Process.Signal(syscall.SIGTERM)
		rest(t, out, "")
		if code := waitFor(t, cmd); code != 128+int(syscall.SIGKILL) {
			t.Errorf("exit status %d, want 137", code)
		}
	})
	t.Run("the server kills itself", func(t *testing.T) {
		cmd, _, out := start(t, "kill -9 $$")
		rest(t, out, "")
		if code := waitFor(t, cmd); code != 128+int(syscall.SIGKILL) {
			t.Errorf("exit status %d, want 137", code)
		}
	})
	t.Run("the client closes the input", func(t *testing.T) {
		cmd, in, out := start(t, "cat >/dev/null; echo last; exit 5")
		in.Close()
		rest(t, out, "last\n")
		if code := waitFor(t, cmd); code != 5 {
			t.Errorf("exit status %d, want 5", code)
		}
	})
	t.Run("the client stops reading", func(t *testing.T) {
		cmd, _, out := start(t, "while echo x; do :; done 2>/dev/null; exit 6")
		out.Close()
		if code := waitFor(t, cmd); code != 6 && code != 128+int(syscall.SIGPIPE) {
			t.Errorf("exit status %d, want that of a server whose output is gone", code)
		}
	})
	t.Run("something else holds the output", func(t *testing.T) {
		cmd, _, out := start(t, "sleep 60 & echo $!; exit 7")
		var pid int
		if _, err := fmt.Fscanln(out, &pid); err != nil {
			t.Fatal(err)
		}
		defer syscall.Kill(pid, syscall.SIGKILL)
		rest(t, out, "")
		if code := waitFor(t, cmd); code != 7 {
			t.Errorf("exit status %d, want 7", code)
		}
	})
	t.Run("the program is killed", func(t *testing.T) {
		if _, err := os.Stat("/proc/self/stat"); err != nil {
			t.Skip("only Linux ends a child with its parent")
		}
		cmd, in, out := start(t, "echo $$; while :; do sleep 0.01; done")
		defer in.Close()
		var pid int
		if _, err := fmt.Fscanln(out, &pid); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Process.Kill()
		waitFor(t, cmd)
		eventually(t, "the server is gone", func() bool {
			stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
			return err != nil || strings.Contains(string(stat), ") Z ") // for init to bury
		})
	})
}

// TestStdioUse pins what the program says when it can't do what it is asked for.
func TestStdioUse(t *testing.T) {
	dir := t.TempDir()
	bad := filepath.Join(dir, "bad.yaml")
	write(t, bad, "hosst: {}\n")
	file := filepath.Join(dir, "file")
	write(t, file, "")
	for _, tt := range []struct {
		name string
		args []string
		code int
		says string
	}{
		{"no command", []string{"-store", dir}, 2, "no COMMAND given"},
		{"unknown flag", []string{"-confg", bad, "--", "true"}, 2, "-confg"},
		{"bad configuration", []string{"-config", bad, "--", "true"}, 1, "hosst: unknown key"},
		{"bad host id", []string{"-host-id", "a b", "--", "true"}, 1, "-host-id: "},
		{"bad log", []string{"-log", dir, "--", "true"}, 1, "-log: "},
		{"bad admin", []string{"-admin", "nowhere", "--", "true"}, 1, "-admin: "},
		{"no such command", []string{"-store", dir, "--", "no-such-command"}, 127, "COMMAND can't be started"},
		{"no program", []string{"-store", dir, "--", file}, 126, "COMMAND can't be started"},
		{"no store", []string{"-store", file, "--", "sh", "-c", "exit 3"}, 3, "links are not kept"},
		{"no command line of two minuses", []string{"-store", dir, "sh", "-c", "exit 4"}, 4, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := execute(t, append([]string{"stdio"}, tt.args...)...)
			if code := p.wait(t); code != tt.code || !strings.Contains(p.stderr.String(), tt.says) || p.stdout.Len() > 0 {
				t.Errorf("exit status %d, stderr %s, stdout %q; want %d, %q and nothing", code, p.stderr, p.stdout, tt.code, tt.says)
			}
			if tt.says == "" && p.stderr.String() != "" {
				t.Errorf("stderr %s, want nothing", p.stderr)
			}
		})
	}
}

// TestStdioEverything has the TypeScript SDK use the public server-everything,
// with and without wopproxy: but for _meta, every message is the same, and so is
// the exit status.
func TestStdioEverything(t *testing.T) {
	const server = nodeModules + "/@modelcontextprotocol/server-everything/dist/index.js"
	file := filepath.Join(t.TempDir(), "wopproxy.yaml")
	write(t, file, `
host: {id: everything.example.com, wellKnownUrl: "https://everything.example.com/.well-known/openwop"}
ingress: {upstream: "http://127.0.0.1:1"}
attribution: {quarantine: 0s}
`)
	for _, n := range nodes(t) {
		t.Run(n.String(), func(t *testing.T) {
			direct, _ := transcript(t, n, n.path, server)
			got, stamped := transcript(t, n, program, "stdio", "-config", file, "-store", t.TempDir(), "--", n.path, server)
			if diff := cmp.Diff(direct, got); diff != "" || len(direct) < 50 {
				t.Errorf("%d messages (-direct +wrapped):\n%s", len(direct), diff)
			}
			want := map[string]int{"roots/list": 0, "sampling/createMessage": 1, "elicitation/create": 1, "notifications/progress": 3}
			for method, n := range want {
				if stamped[method] != n {
					t.Errorf("%s came with a context %d times, want %d", method, stamped[method], n)
				}
			}
		})
	}
}

// transcript runs the client with a server, and returns what was said, in a fixed
// order and without _meta, and how many requests and notifications of each
// method came with a context.
func transcript(t *testing.T, n nodeRuntime, server ...string) (said []string, stamped map[string]int) {
	t.Helper()
	p := n.spawn(t, nil, "stdio-client.mjs", server...)
	if err := p.success(t); err != nil {
		t.Fatal(err)
	}
	stamped = map[string]int{}
	for line := range strings.Lines(p.stdout.String()) {
		way, text, _ := strings.Cut(line, " ")
		var m map[string]any
		if way != "<" || json.Unmarshal([]byte(text), &m) != nil || m["method"] == nil {
			said = append(said, line)
			continue
		}
		if params, ok := m["params"].(map[string]any); ok {
			if meta, ok := params["_meta"].(map[string]any); ok && meta["traceparent"] != nil {
				stamped[m["method"].(string)]++
			}
			if delete(params, "_meta"); len(params) == 0 {
				delete(m, "params")
			}
		}
		said = append(said, fmt.Sprintln(way, m))
	}
	slices.Sort(said)
	return said, stamped
}
