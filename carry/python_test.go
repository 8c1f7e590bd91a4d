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
		missing(t, "no Python 3", "run apt-get install python3")
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
	missing(t, "no Python 3 with "+strings.Join(modules, " and "), "install them from Debian's packages, as .ci/run does")
	return python{}
}

// missing skips t, or fails it where nothing may be missing.
func missing(t testing.TB, what, remedy string) {
	t.Helper()
	text := what + ": " + remedy
	if os.Getenv("WOPPROXY_E2E") == "all" {
		t.Fatal(text)
	}
	t.Skip(text)
}

// shimDir is where PYTHONPATH leads: a copy, so that no compiled file is left in
// the source.
func shimDir(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	text, err := os.ReadFile("python/sitecustomize.py")
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "sitecustomize.py"), string(text))
	return dir
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
	seen  map[string][]call
	total int
	more  chan struct{} // closed with the next call
}

// call is one request of the host as it arrived.
type call struct {
	way    string // "/direct", "/tunnelled", or other: through the proxy, in the clear
	header http.Header
}

func newOutside(t testing.TB) *outside {
	o := &outside{seen: map[string][]call{}, more: make(chan struct{})}
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
	o.seen[id] = append(o.seen[id], call{r.URL.Path, r.Header})
	if id != "none" {
		o.total++
	}
	close(o.more)
	o.more = make(chan struct{})
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
		want = http.Header{"Traceparent": in["Traceparent"]}
	case "/tunnelled":
		want = http.Header{"Traceparent": in["Traceparent"], "Tracestate": in["Tracestate"]}
	case "/call/own":
		want = http.Header{
			"Traceparent": {"00-" + strings.Repeat("ab", 16) + "-" + strings.Repeat("cd", 8) + "-01"},
			"Run-Id":      {"own"}, "Run-Ancestry": in["Run-Ancestry"],
		}
	}
	if in == nil {
		for name := range want {
			if path != "/call/own" || name == "Run-Ancestry" {
				delete(want, name)
			}
		}
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
				play(t, o, startHost(t, p, o, server), 16, blocking, extra)
			})
		}
		// With one request at a time: a process that runs threads should not fork.
		t.Run(p.version+"/single", func(t *testing.T) {
			o := newOutside(t)
			play(t, o, startHost(t, p, o, "single"), 40, []work{{"/urllib/inline", 1, false}, {"/urllib/forked", 1, false}}, 0)
			if len(o.seen["none"]) == 0 {
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
			play(t, o, startHost(t, p, o, tt.server), 12, tt.kinds, tt.extra)
		})
	}
}
