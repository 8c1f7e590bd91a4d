package carry_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/wopproxy/wopproxy/carry"
)

// patience bounds every wait. A test that passes never waits it out.
const patience = 60 * time.Second

// python is a Python on this machine.
type python struct {
	path    string
	version string // "3.11"
}

// pythons returns each version of Python 3 that is on the path, the system's
// first, or skips t.
func pythons(t testing.TB) []python {
	t.Helper()
	var found []python
	for _, name := range []string{"/usr/bin/python3", "python3", "python3.8", "python3.9", "python3.10", "python3.11", "python3.12", "python3.13"} {
		out, err := exec.CommandContext(t.Context(), name, "-c", "import sys; print(sys.executable, '%d.%d' % sys.version_info[:2])").Output()
		path, version, ok := strings.Cut(strings.TrimSpace(string(out)), " ")
		if err != nil || !ok || slices.ContainsFunc(found, func(p python) bool { return p.version == version }) {
			continue
		}
		found = append(found, python{path, version})
	}
	if len(found) == 0 {
		missing(t, "no Python 3: run apt-get install python3")
	}
	return found
}

// pythonWith returns a Python that has the modules, or skips t.
func pythonWith(t testing.TB, modules ...string) python {
	t.Helper()
	for _, p := range pythons(t) {
		if exec.CommandContext(t.Context(), p.path, "-c", "import "+strings.Join(modules, ", ")).Run() == nil {
			return p
		}
	}
	missing(t, "no Python 3 with "+strings.Join(modules, " and ")+": install them from Debian's packages, as .ci/run does")
	return python{}
}

// shimDir is where PYTHONPATH has to lead.
func shimDir(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	if err := carry.Write(dir); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "python")
}

func write(t testing.TB, file, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// pythonEnv is the environment of a Python: of the machine's own, what it needs
// to run.
func pythonEnv(path string, more ...string) []string {
	return append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.TempDir(), "LANG=C.UTF-8", "PYTHONPATH=" + path}, more...)
}

// outside is the world that a host calls: what came, by the case in X-Case.
type outside struct {
	proxy, direct *httptest.Server

	mu    sync.Mutex
	seen  map[string][]outbound
	total int
	more  chan struct{} // closed with the next call
}

// outbound is one request of the host as it arrived.
type outbound struct {
	way    string // "/direct", "/tunnelled", or other: through the proxy, in the clear
	header http.Header
}

func newOutside(t testing.TB) *outside {
	o := &outside{seen: map[string][]outbound{}, more: make(chan struct{})}
	o.proxy = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodConnect {
			o.tunnel(w)
			return
		}
		o.note(r)
	}))
	o.direct = httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { o.note(r) }))
	t.Cleanup(o.proxy.Close)
	t.Cleanup(o.direct.Close)
	return o
}

func (o *outside) note(r *http.Request) {
	o.mu.Lock()
	defer o.mu.Unlock()
	id := r.Header.Get("X-Case")
	o.seen[id] = append(o.seen[id], outbound{r.URL.Path, r.Header})
	if id != "none" {
		o.total++
	}
	close(o.more)
	o.more = make(chan struct{})
}

// of returns the calls of a case that have come so far.
func (o *outside) of(id string) []outbound {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.seen[id])
}

// tunnel opens a tunnel to itself, and takes one request from it.
func (o *outside) tunnel(w http.ResponseWriter) {
	conn, buf, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, "HTTP/1.1 200 Connection established\r\n\r\n")
	r, err := http.ReadRequest(buf.Reader)
	if err != nil {
		return
	}
	o.note(r)
	_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
}

// await waits until that many calls have come.
func (o *outside) await(t testing.TB, want int) {
	t.Helper()
	for timeout := time.After(patience); ; {
		o.mu.Lock()
		total, more := o.total, o.more
		o.mu.Unlock()
		if total >= want {
			return
		}
		select {
		case <-more:
		case <-timeout:
			t.Fatalf("%d of %d calls have come within %v", total, want, patience)
		}
	}
}

// env is what leads a host to o.
func (o *outside) env() []string {
	return []string{
		"HTTP_PROXY=" + o.proxy.URL, "http_proxy=" + o.proxy.URL, "https_proxy=" + o.proxy.URL,
		"DIRECT=" + strings.TrimPrefix(o.direct.URL, "http://"),
	}
}

// startHost runs testdata/python/host.py and returns its base URL.
func startHost(t testing.TB, p python, o *outside, server string, env ...string) string {
	t.Helper()
	cmd := exec.Command(p.path, "testdata/python/host.py", server)
	cmd.Env = pythonEnv(shimDir(t), append(o.env(), env...)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	cmd.WaitDelay = time.Second // for a child that has outlived it
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	kill := time.AfterFunc(3*patience, func() { _ = cmd.Process.Kill() })
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		kill.Reset(5 * time.Second) // one that waits for its threads
		_ = cmd.Wait()              // ended by a signal
		kill.Stop()
		if t.Failed() {
			t.Logf("stderr of the host:\n%s", &stderr)
		}
	})
	port, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatalf("the host did not start: %v", err)
	}
	return "http://" + net.JoinHostPort("127.0.0.1", strings.TrimSpace(port))
}

// inbound is the context that the request of a case brings.
func inbound(id string, n int) http.Header {
	return http.Header{
		"Traceparent":  {fmt.Sprintf("00-%032x-%016x-01", n+1, n+1)},
		"Tracestate":   {"wop=" + id + ",other=1"},
		"Run-Id":       {id},
		"Run-Ancestry": {fmt.Sprintf(`"caller-of-%s";host="front.example.com"`, id)},
		"Baggage":      {"case=" + id},
	}
}

// carried is what of inbound a call has to bear, by the way that it goes.
func carried(path string, in http.Header) http.Header {
	want := maps.Clone(in)
	switch path {
	case "/direct":
		want = http.Header{"Traceparent": in["Traceparent"], "Tracestate": {"other=1"}}
	case "/tunnelled":
		want = http.Header{"Traceparent": in["Traceparent"], "Tracestate": in["Tracestate"]}
	case "/call/own":
		want = http.Header{
			"Traceparent": {"00-" + strings.Repeat("ab", 16) + "-" + strings.Repeat("cd", 8) + "-01"},
			"Run-Id":      {"own"}, "Run-Ancestry": in["Run-Ancestry"],
		}
	}
	switch {
	case in == nil && path == "/call/own":
		delete(want, "Run-Ancestry")
	case in == nil:
		return http.Header{}
	}
	return want
}

// context is what of a call's headers is ours.
func contextOf(h http.Header) http.Header {
	got := http.Header{}
	for name := range inbound("", 0) {
		if v := h[name]; v != nil {
			got[name] = v
		}
	}
	return got
}

// work is what a request makes the host do: a client, from where, and how many
// calls come of it. unsure tells that the context may get lost on the way there.
type work struct {
	path   string
	calls  int
	unsure bool
}

var blocking = []work{
	{"/urllib/inline", 1, false},
	{"/http_client/inline", 1, false},
	{"/tunnel/inline", 1, false},
	{"/base_path/inline", 1, false},
	{"/own_headers/inline", 1, false},
	{"/urllib/pool", 2, false},
	{"/urllib/small_pool", 1, false},
	{"/http_client/thread", 1, false},
	{"/urllib/own_thread", 2, false},
	{"/urllib/left_behind", 1, false},
	{"/urllib/fresh_loop", 1, false},
	{"/urllib/queue", 1, true},
	{"/urllib/simple-queue", 1, true},
	{"/urllib/deque", 1, true},
}

// pooled is for hosts that a signal ends: Python itself would wait for a worker
// that stays in a pool.
var pooled = []work{
	{"/urllib/pooled-queue", 1, true},
	{"/urllib/pooled-simple-queue", 1, true},
}

var withLibraries = []work{
	{"/requests/inline", 1, false},
	{"/requests/thread", 1, false},
	{"/session/pool", 2, false},
	{"/session/queue", 1, true},
	{"/httpx/inline", 1, false},
	{"/httpx/small_pool", 1, false},
	{"/httpx/own_thread", 2, false},
}

var async = []work{
	{"/httpx_async/inline", 1, false},
	{"/httpx_async/task", 2, false},
	{"/httpx_async/task_left_behind", 1, false},
	{"/httpx_async/shared_task", 1, true},
	{"/httpx_async/stream", 1, false},
	{"/aiohttp/inline", 1, false},
	{"/aiohttp/task", 2, false},
	{"/aiohttp/stream", 1, false},
	{"/aiohttp/shared_task", 1, true},
	{"/urllib/in_thread", 2, false},
	{"/session/in_thread", 2, false},
	{"/httpx/in_thread", 2, false},
}

// play sends requests to the host, 64 at a time, in rounds of all kinds of work,
// of which some bring no context; and judges every call that comes of them.
func play(t *testing.T, o *outside, base string, rounds int, kinds []work, extra int) {
	t.Helper()
	const concurrency = 64
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: concurrency}, Timeout: patience}
	defer client.CloseIdleConnections()
	type sent struct {
		work
		header http.Header
	}
	all, want := map[string]sent{}, 0
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	slots := make(chan struct{}, concurrency)
	var wg sync.WaitGroup
	for n := range rounds * len(kinds) {
		id := fmt.Sprintf("run-%d", n)
		s := sent{work: kinds[n%len(kinds)]}
		if n%5 != 0 {
			s.header = inbound(id, n)
		}
		all[id] = s
		want += s.calls + extra
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			r, err := http.NewRequestWithContext(ctx, http.MethodGet, base+s.path+"?"+id, nil)
			if err != nil {
				t.Error(err)
				return
			}
			maps.Copy(r.Header, s.header)
			resp, err := client.Do(r)
			if err != nil {
				t.Errorf("%s: %v", s.path, err)
				return
			}
			defer resp.Body.Close()
			if body, err := io.ReadAll(resp.Body); err != nil || string(body) != "ok" {
				t.Errorf("%s: status %d %q, %v", s.path, resp.StatusCode, body, err)
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	o.await(t, want)
	linked, wrong, abstained := 0, 0, 0
	o.mu.Lock()
	defer o.mu.Unlock()
	for id, calls := range o.seen {
		for _, c := range calls {
			s := all[id] // of "none": nothing is expected
			got := contextOf(c.header)
			switch expect := carried(c.way, s.header); {
			case maps.EqualFunc(got, expect, slices.Equal):
				linked++
			case s.unsure && len(got) == 0:
				abstained++
			default:
				wrong++
				t.Errorf("%s of %s, by %s: carries %v, want %v", id, s.path, c.way, got, expect)
			}
		}
	}
	t.Logf("%d calls: %d as expected, %d wrong, %d abstained", want, linked, wrong, abstained)
}

// TestPythonStandardLibrary shows what Python has by itself, with each version
// that is here.
func TestPythonStandardLibrary(t *testing.T) {
	for _, p := range pythons(t) {
		for server, extra := range map[string]int{"threads": 0, "wsgiref": 1} {
			t.Run(p.version+"/"+server, func(t *testing.T) {
				o := newOutside(t)
				play(t, o, startHost(t, p, o, server), 8, slices.Concat(blocking, pooled), extra)
			})
		}
		// With one request at a time: a process that runs threads should not fork.
		t.Run(p.version+"/single", func(t *testing.T) {
			o := newOutside(t)
			play(t, o, startHost(t, p, o, "single"), 40, []work{{"/urllib/inline", 1, false}, {"/urllib/small_pool", 1, false}, {"/urllib/forked", 1, false}}, 0)
			if len(o.of("none")) == 0 {
				t.Error("the host has made no call between requests")
			}
		})
	}
}

// TestPythonServers shows the servers and clients that are in wide use.
func TestPythonServers(t *testing.T) {
	threaded := slices.Concat(blocking, withLibraries)
	for _, tt := range []struct {
		server  string
		modules []string
		kinds   []work
		extra   int
	}{
		{"threads", []string{"requests", "httpx"}, threaded, 0},
		{"flask", []string{"flask", "requests", "httpx"}, threaded, 0},
		{"gunicorn-sync", []string{"gunicorn", "requests", "httpx"}, threaded, 1},
		{"gunicorn-gthread", []string{"gunicorn", "requests", "httpx"}, threaded, 1},
		{"waitress", []string{"waitress", "requests", "httpx"}, threaded, 1},
		{"cheroot", []string{"cheroot", "requests", "httpx"}, threaded, 1},
		{"aiohttp", []string{"aiohttp", "httpx", "anyio", "requests"}, async, 0},
		{"uvicorn", []string{"uvicorn", "aiohttp", "httpx", "anyio", "requests"}, async, 0},
		{"starlette", []string{"starlette", "uvicorn", "aiohttp", "httpx", "anyio", "requests"}, async, 0},
		{"hypercorn", []string{"hypercorn", "aiohttp", "httpx", "anyio", "requests"}, async, 0},
	} {
		t.Run(tt.server, func(t *testing.T) {
			p := pythonWith(t, tt.modules...)
			o := newOutside(t)
			play(t, o, startHost(t, p, o, tt.server), 8, tt.kinds, tt.extra)
		})
	}
}

// runPython runs a program with the shim and returns what it prints. Nothing but
// the program may say anything.
func runPython(t *testing.T, p python, path string, env []string, program string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), p.path, "-c", program)
	cmd.Env = pythonEnv(path, env...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("python: %v\n%s", err, &stderr)
	}
	if stderr.Len() > 0 {
		t.Errorf("stderr = %q, want nothing", &stderr)
	}
	return strings.TrimSpace(string(out))
}

// TestPythonChains: a sitecustomize that the shim hides runs as if it was alone,
// whatever it does.
func TestPythonChains(t *testing.T) {
	p := pythons(t)[0]
	shim, other := shimDir(t), t.TempDir()
	path := shim + string(os.PathListSeparator) + other
	custom := func(text string) { write(t, filepath.Join(other, "sitecustomize.py"), text) }
	const hooked = "import sys, http.client; print(hasattr(http.client.HTTPConnection.endheaders, '__wrapped__')); import sitecustomize; "

	custom("import sys\nsys.seen = (__name__, __file__, __spec__.origin)\nvalue = 7\n")
	file := filepath.Join(other, "sitecustomize.py")
	want := fmt.Sprintf("True\n7 ('sitecustomize', '%s', '%s') True", file, file)
	if got := runPython(t, p, path, nil, hooked+"print(sitecustomize.value, sys.seen, sys.modules['sitecustomize'] is sitecustomize)"); got != want {
		t.Errorf("with a sitecustomize of its own: %q, want %q", got, want)
	}

	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(other, "sitecustomize", "__init__.py"), "from .part import value\n")
	write(t, filepath.Join(other, "sitecustomize", "part.py"), "value = 8\n")
	if got := runPython(t, p, path, nil, hooked+"print(sitecustomize.value)"); got != "True\n8" {
		t.Errorf("with a package: %q, want True and 8", got)
	}
	if err := os.RemoveAll(filepath.Join(other, "sitecustomize")); err != nil {
		t.Fatal(err)
	}

	// One that fails is reported as it would be without us, and Python goes on.
	for text, says := range map[string]string{
		"raise ValueError('theirs')\n":                   "Error in sitecustomize; set PYTHONVERBOSE for traceback:\nValueError: theirs\n",
		"import no_such_module\n":                        "Error in sitecustomize; set PYTHONVERBOSE for traceback:\nModuleNotFoundError: No module named 'no_such_module'\n",
		"raise ImportError('x', name='sitecustomize')\n": "",
	} {
		custom(text)
		for _, path := range []string{other, path} {
			cmd := exec.CommandContext(t.Context(), p.path, "-c", "print('goes on')")
			cmd.Env = pythonEnv(path)
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			out, err := cmd.Output()
			if err != nil || string(out) != "goes on\n" || stderr.String() != says {
				t.Errorf("%q under %s: %v, stdout %q, stderr %q, want %q", text, path, err, out, &stderr, says)
			}
		}
	}
}

// TestPythonStaysOut shows when nothing is done at all.
func TestPythonStaysOut(t *testing.T) {
	const hooked = `
import http.client, threading, sys
print(hasattr(http.client.HTTPConnection.endheaders, "__wrapped__"), hasattr(threading.Thread.start, "__wrapped__"), "_wopproxy_carry" in sys.modules)`
	shim, otel := shimDir(t), filepath.Join(t.TempDir(), "opentelemetry", "instrumentation", "auto_instrumentation")
	write(t, filepath.Join(otel, "sitecustomize.py"), "")
	both := func(a, b string) string { return a + string(os.PathListSeparator) + b }
	for _, p := range pythons(t) {
		for _, tt := range []struct {
			name, path string
			env        []string
			want       string
		}{
			{"on", shim, nil, "True True True"},
			{"off", shim, []string{"WOPPROXY_CARRY=off"}, "False False False"},
			{"OpenTelemetry instruments, after us", both(shim, otel), nil, "False False False"},
			{"OpenTelemetry instruments, before us", both(otel, shim), nil, "False False False"},
			{"twice on the path", both(shim, shimDir(t)), nil, "True True True"},
			{"no header to carry", shim, []string{"WOPPROXY_CARRY_HEADERS= , ,"}, "True True True"},
		} {
			if got := runPython(t, p, tt.path, tt.env, hooked); got != tt.want {
				t.Errorf("%s, %s: %s, want %s", p.version, tt.name, got, tt.want)
			}
		}
	}
}

// TestPythonSurprises: what is not as expected switches the part off that met it,
// without a word, and what the program does goes on.
func TestPythonSurprises(t *testing.T) {
	p, shim := pythons(t)[0], shimDir(t)
	for _, tt := range []struct{ name, program, want string }{
		{"a module without what is looked for", `
import sys, types, threading, importlib, sitecustomize
start = threading.Thread.start
sys.modules["http.client"] = types.ModuleType("http.client")
del sys.modules["_wopproxy_carry"]
importlib.reload(sitecustomize)
print("http.client" in sys.modules["_wopproxy_carry"]._off, threading.Thread.start is not start)`, "True True"},
		{"a connection with other insides", `
import http.client, sys
carry = sys.modules["_wopproxy_carry"]
class Sock:
    def sendall(self, data): print(data)
class Other(list):
    def __getitem__(self, i): raise KeyError
def call(buffer):
    c = http.client.HTTPConnection("nowhere.test")
    c.sock = Sock()
    c.putrequest("GET", "/", skip_accept_encoding=True)
    c._buffer = buffer(c._buffer)
    c.endheaders()
carry._current.set(carry._read([("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")]))
for buffer in list, Other, list: call(buffer)
print(carry._off)`, `b'GET / HTTP/1.1\r\nHost: nowhere.test\r\ntraceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n\r\n'
b'GET / HTTP/1.1\r\nHost: nowhere.test\r\n\r\n'
b'GET / HTTP/1.1\r\nHost: nowhere.test\r\n\r\n'
{'http.client'}`},
		{"what the program's own code raises is its own", `
import sys, threading, http.client, concurrent.futures as f
carry = sys.modules["_wopproxy_carry"]
carry._current.set(carry._read([("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")]))
for fail in lambda: f.ThreadPoolExecutor(1).submit(lambda: 1 / 0).result(), \
        lambda: http.client.HTTPConnection("nowhere.test").endheaders(), \
        lambda: f.ThreadPoolExecutor(1).submit():
    try: fail()
    except Exception as e: print(type(e).__name__)
t = threading.Thread(); t.start(); t.join()
try: t.start()
except RuntimeError as e: print(e)
print(f.ThreadPoolExecutor(1).submit(lambda a, **k: (a, k), 1, self=2, fn=3).result())
print(carry._off)`, "ZeroDivisionError\nCannotSendHeader\nTypeError\nthreads can only be started once\n(1, {'self': 2, 'fn': 3})\nset()"},
	} {
		if got := runPython(t, p, shim, nil, tt.program); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
}

// TestPythonHeaders shows what is taken from a request, and what is not.
func TestPythonHeaders(t *testing.T) {
	p, shim := pythons(t)[0], shimDir(t)
	const trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	const program = `
import os, sys
carry = sys.modules["_wopproxy_carry"]
T, U = "` + trace + `", "` + trace + `".replace("a", "b")
def show(headers, way=carry._READ_BY_PROXY, own=[]):
    carry._current.set(carry._read(headers))
    print(" ".join("%s=%s" % h for h in carry._additions(own, way)) or "-")
full = [("baggage", "x=y"), ("tracestate", "a=1"), ("TRACESTATE", "wop=z,b=2"), ("My-Run", "r"), ("Run-Id", "s"), ("Traceparent", T)]
show(full)
show(full, carry._TUNNELLED)
show(full, carry._DIRECT)
show([("traceparent", T), ("tracestate", "wop=z")], carry._DIRECT)
show(full, own=[(b"TraceParent", b" " + T.encode()), ("BAGGAGE", "")])
show(full, own=[("traceparent", U)])
show([("tracestate", "a=1"), ("baggage", "x=y"), ("my_run", "r")])
show([(b"traceparent", T.encode()), (b"traceparent", U.encode()), (b"my-run", b"r")])
show([("traceparent", T + "\r\nX: y"), ("my-run", "r" * 9000)])
show([("traceparent", T.replace("-", "_")), ("my-run", "\xe9")])
sys.modules["opentelemetry"] = os
show(full, own=[("traceparent", U)])
show(full)`
	want := strings.ReplaceAll(strings.Join([]string{
		"traceparent=T baggage=x=y tracestate=a=1,wop=z,b=2 My-Run=r",
		"traceparent=T tracestate=a=1,wop=z,b=2",
		"traceparent=T tracestate=a=1,b=2",
		"traceparent=T",
		"tracestate=a=1,wop=z,b=2 My-Run=r",
		"My-Run=r",
		"My-Run=r",
		"My-Run=r",
		"-",
		"-",
		"-",
		"traceparent=T baggage=x=y tracestate=a=1,wop=z,b=2 My-Run=r",
	}, "\n"), "=T", "="+trace)
	got := runPython(t, p, shim, []string{"WOPPROXY_CARRY_HEADERS=traceparent, tracestate,baggage,My-Run"}, program)
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// TestPythonEgress shows which proxy is wopproxy's.
func TestPythonEgress(t *testing.T) {
	p, shim := pythons(t)[0], shimDir(t)
	for want, env := range map[string][]string{
		"('', 80)":             nil,
		"('127.0.0.1', 8089)":  {"HTTP_PROXY=http://run:s@127.0.0.1:8089/"},
		"('egress.test', 80)":  {"http_proxy=egress.TEST"},
		"('::1', 8089)":        {"http_proxy=http://[::1]:8089", "HTTP_PROXY=http://other:1"},
		"('127.0.0.1', 8090)":  {"WOPPROXY_EGRESS=http://127.0.0.1:8090", "http_proxy=http://corporate:3128"},
		"('egress.test', 443)": {"WOPPROXY_EGRESS=https://egress.test"},
	} {
		if got := runPython(t, p, shim, env, "import sys; print(sys.modules['_wopproxy_carry']._proxy)"); got != want {
			t.Errorf("%q: %s, want %s", env, got, want)
		}
	}
}
