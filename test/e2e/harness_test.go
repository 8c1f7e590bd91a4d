package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// patience bounds every wait for a process or a socket. It is never waited out
// by a test that passes.
const patience = 30 * time.Second

// program is the path of the program under test.
var program string

func TestMain(m *testing.M) {
	if role := os.Getenv(roleVariable); role != "" {
		os.Exit(play(role))
	}
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "wopproxy-e2e-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		program = filepath.Join(dir, "wopproxy")
		args := []string{"build", "-buildvcs=false", "-o", program}
		if raceEnabled {
			args = append(args, "-race")
		}
		build := exec.Command("go", append(args, "github.com/wopproxy/wopproxy/cmd/wopproxy")...)
		build.Stdout, build.Stderr = os.Stderr, os.Stderr
		if err := build.Run(); err != nil {
			fmt.Fprintln(os.Stderr, "build the program:", err)
			return 1
		}
		return m.Run()
	}())
}

// settings are keys of wopproxy.yaml by their path: {"drain.delay": "2s"}.
type settings map[string]any

// sidecar is one running wopproxy. Its addresses are base URLs without a slash
// at the end.
type sidecar struct {
	*process
	hostID                 string
	ingress, egress, admin string
	// public is where other hosts find this one: an address that was known
	// before the program was started, and leads to ingress.
	public string
	file   string // its wopproxy.yaml

	frontTo atomic.Pointer[url.URL] // where public leads
}

// start runs a wopproxy for the host at upstream and returns when it is ready.
// It is stopped when t ends, and t fails unless it then exits 0.
//
// Listeners are on free ports, the store is in a temporary folder, everyone may
// read ancestry, "POST /chat" starts a run, and there is no drain delay, unless
// overrides say otherwise. A key "env" with a []string adds to the environment.
func start(t testing.TB, hostID, upstream string, overrides ...settings) *sidecar {
	t.Helper()
	s := &sidecar{hostID: hostID}
	front := newFront(t, s)
	values := settings{
		"host.id": hostID, "host.wellKnownUrl": front + "/.well-known/openwop",
		"ingress.listen": "127.0.0.1:0", "ingress.upstream": upstream,
		"egress.listen": "127.0.0.1:0", "admin.listen": "127.0.0.1:0",
		"ancestry.store.bolt.dir": filepath.Join(t.TempDir(), "store"),
		"ancestry.auth.mode":      "none", "ancestry.commitTimeout": "10s",
		"runs.start": []string{"POST /chat"},
		// The drain takes longer than a server waits for connections without a request.
		"drain.delay": "0s", "drain.timeout": "9s",
	}
	s.public = front
	var env []string
	for _, o := range overrides {
		for key, v := range o {
			if key == "env" {
				env = append(env, v.([]string)...)
				continue
			}
			values[key] = v
		}
	}
	s.file = filepath.Join(t.TempDir(), "wopproxy.yaml")
	s.configure(t, values)
	s.serve(t, env, s.file)
	return s
}

// serve runs the program with a configuration file, for the first time or again,
// and returns when it is ready.
func (s *sidecar) serve(t testing.TB, env []string, file string) {
	t.Helper()
	s.process = run(t, env, "serve", "-config", file)
	p := s.process
	t.Cleanup(func() { s.end(t, p) })
	serving := s.awaitLog(t, "serving")
	for key, base := range map[string]*string{"ingress": &s.ingress, "egress": &s.egress, "admin": &s.admin} {
		*base = "http://" + fmt.Sprint(serving[key])
	}
	to, err := url.Parse(s.ingress)
	if err != nil {
		t.Fatal(err)
	}
	s.frontTo.Store(to)
	eventually(t, s.hostID+" is ready", func() bool {
		code, _ := get(t, s.admin+"/readyz")
		return code == http.StatusOK
	})
}

// newFront is the public address of s.
func newFront(t testing.TB, s *sidecar) string {
	front := httptest.NewServer(inFrontOf(s.frontTo.Load))
	t.Cleanup(front.Close)
	return front.URL
}

// inFrontOf passes requests on. Without full duplex an event stream would break off
// now and then: Go's server takes the rest of the request's body when the answer
// begins, and the transport finds it closed.
func inFrontOf(to func() *url.URL) http.Handler {
	pass := &httputil.ReverseProxy{
		FlushInterval: -1,
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(to()) },
		ErrorLog:      log.New(io.Discard, "", 0), // a program that a test has killed is no news
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).EnableFullDuplex()
		pass.ServeHTTP(w, r)
	})
}

// configure writes the configuration file, in one step.
func (s *sidecar) configure(t testing.TB, values settings) {
	t.Helper()
	tree := map[string]any{}
	for path, v := range values {
		at := tree
		keys := strings.Split(path, ".")
		for _, key := range keys[:len(keys)-1] {
			next, ok := at[key].(map[string]any)
			if !ok {
				next = map[string]any{}
				at[key] = next
			}
			at = next
		}
		at[keys[len(keys)-1]] = v
	}
	text, err := json.MarshalIndent(tree, "", "  ") // JSON is YAML
	if err != nil {
		t.Fatal(err)
	}
	write(t, s.file, string(text))
}

// stop asks the program to end, if it has not, and fails t unless it exits 0.
func (s *sidecar) stop(t testing.TB) {
	t.Helper()
	s.end(t, s.process)
}

func (s *sidecar) end(t testing.TB, p *process) {
	t.Helper()
	if p.ended() {
		return // by the test itself, which has judged how
	}
	p.signal(t, syscall.SIGTERM)
	if code := p.wait(t); code != 0 {
		t.Errorf("%s: exit code after SIGTERM = %d, want 0", s.hostID, code)
	}
}

// client returns a client that calls through the egress. Its credentials, if
// given, are those of the proxy URL: a user name and a password.
func (s *sidecar) client(t testing.TB, credentials ...string) *http.Client {
	t.Helper()
	u, err := url.Parse(s.egress)
	if err != nil {
		t.Fatal(err)
	}
	if len(credentials) == 2 {
		u.User = url.UserPassword(credentials[0], credentials[1])
	}
	// Explicitly: from the environment, Go takes no proxy for loopback.
	tr := &http.Transport{Proxy: http.ProxyURL(u), DisableCompression: true}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

// A link is all that a host's wopproxy knows of one run.
type link struct {
	RunID    string `json:"runId"`
	HostID   string `json:"hostId"` // empty: the host that was asked
	Alias    string `json:"alias"`
	Chain    chain  `json:"chain"`
	Evidence string `json:"evidence"`
	Reason   string `json:"reason"`

	TraceID      string `json:"traceId"`
	SpanID       string `json:"spanId"`
	ParentSpanID string `json:"parentSpanId"`
	Operation    string `json:"operation"`
}

type chain struct {
	Ancestors []ancestor `json:"ancestors"`
}

type ancestor struct {
	RunID        string `json:"runId"`
	HostID       string `json:"hostId"`
	WellKnownURL string `json:"wellKnownUrl"`
	Cause        string `json:"cause"`
}

// parent returns the run that caused this one, or the zero ancestor.
func (l link) parent() ancestor {
	if len(l.Chain.Ancestors) == 0 {
		return ancestor{}
	}
	return l.Chain.Ancestors[0]
}

// liveRun is a run that has begun and was not seen to end.
type liveRun struct {
	RunID     string    `json:"runId"`
	Parent    *ancestor `json:"parent"`
	TraceID   string    `json:"traceId"`
	Operation string    `json:"operation"`
}

// live returns the runs that are live, oldest first.
func (s *sidecar) live(t testing.TB) []liveRun {
	t.Helper()
	return list[liveRun](t, s.admin+"/ancestry/v1/runs").Runs
}

// link returns what is recorded of a run, and whether anything is.
func (s *sidecar) link(t testing.TB, run string) (link, bool) {
	t.Helper()
	code, body := get(t, s.admin+"/ancestry/v1/runs/"+url.PathEscape(run))
	switch code {
	case http.StatusOK:
		return decode[link](t, body), true
	case http.StatusNotFound:
		return link{}, false
	}
	t.Fatalf("%s: run %s: status %d: %s", s.hostID, run, code, body)
	return link{}, false
}

// children returns the runs that a run has caused, here and on other hosts.
func (s *sidecar) children(t testing.TB, run string) []link {
	t.Helper()
	var all []link
	for after := ""; ; {
		page := list[link](t, s.admin+"/ancestry/v1/runs/"+url.PathEscape(run)+"/children?after="+url.QueryEscape(after))
		all = append(all, page.Runs...)
		if after = page.Next; after == "" {
			return all
		}
	}
}

// trace returns the runs of a trace, oldest first.
func (s *sidecar) trace(t testing.TB, traceID string) []link {
	t.Helper()
	return list[link](t, s.admin+"/ancestry/v1/traces/"+traceID).Runs
}

// parent asks the public read API, where it is always served, who caused a run.
// The zero ancestor means that no parent is asserted.
func (s *sidecar) parent(t testing.TB, run string) ancestor {
	t.Helper()
	code, body := get(t, s.ingress+"/v1/host/wopproxy/runs/"+url.PathEscape(run)+"/ancestry")
	if code != http.StatusOK {
		t.Fatalf("%s: ancestry of %s: status %d: %s", s.hostID, run, code, body)
	}
	answer := decode[struct {
		RunID  string    `json:"runId"`
		HostID string    `json:"hostId"`
		Parent *ancestor `json:"parent"`
	}](t, body)
	if answer.HostID != s.hostID {
		t.Errorf("ancestry of %s: hostId = %q, want %q", run, answer.HostID, s.hostID)
	}
	if answer.Parent == nil {
		return ancestor{}
	}
	return *answer.Parent
}

// hop is one run of a chain.
type hop struct {
	RunID  string `json:"runId"`
	HostID string `json:"hostId"`
}

// walk runs "wopproxy ancestry", which asks host after host, and returns the
// chain from run to its root.
func (s *sidecar) walk(t testing.TB, run string) []hop {
	t.Helper()
	p := execute(t, "ancestry", run, "-host", s.public, "-allow", "127.0.0.1", "-json")
	if code := p.wait(t); code != 0 {
		t.Fatalf("wopproxy ancestry %s: exit code %d", run, code)
	}
	return decode[struct {
		Hops []hop `json:"hops"`
	}](t, p.stdout.Bytes()).Hops
}

// metric returns the sum of the series of a metric that bear the given labels,
// written as in {direction="egress"}: `direction="egress"`. It is 0 if there is
// none.
func (s *sidecar) metric(t testing.TB, name string, labels ...string) float64 {
	t.Helper()
	code, body := get(t, s.admin+"/metrics")
	if code != http.StatusOK {
		t.Fatalf("%s: metrics: status %d", s.hostID, code)
	}
	sum := 0.0
	for line := range strings.Lines(string(body)) {
		series, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if i := strings.IndexByte(line, '}'); i > 0 {
			series, value = line[:i+1], strings.TrimSpace(line[i+1:])
		}
		if base, _, _ := strings.Cut(series, "{"); base != name {
			continue
		}
		bears := true
		for _, l := range labels {
			bears = bears && (strings.Contains(series, "{"+l) || strings.Contains(series, ","+l))
		}
		if !bears {
			continue
		}
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			t.Fatalf("%s: metric line %q: %v", s.hostID, line, err)
		}
		sum += v
	}
	return sum
}

// awaitMetric waits until a metric has the value. Counters of an exchange move
// after its answer was sent.
func (s *sidecar) awaitMetric(t testing.TB, want float64, name string, labels ...string) {
	t.Helper()
	got := 0.0
	if !poll(func() bool { got = s.metric(t, name, labels...); return got == want }) {
		t.Errorf("%s: %s%v = %v, want %v", s.hostID, name, labels, got, want)
	}
}

// sawCalls fails t unless the proxy has counted that many exchanges: that a
// peer got its answer does not show that it came this way.
func (s *sidecar) sawCalls(t testing.TB, want float64, direction, protocol string) {
	t.Helper()
	s.awaitMetric(t, want, "wopproxy_exchanges_total", `direction="`+direction+`"`, `protocol="`+protocol+`"`)
}

// process is the program, running with some arguments, or a peer of it.
type process struct {
	cmd    *exec.Cmd
	stdout *bytes.Buffer // read it once the process has ended
	stderr *logBook
	done   chan struct{} // closed when it has ended
}

// run starts the program, as spawn does.
func run(t testing.TB, env []string, args ...string) *process {
	t.Helper()
	// Built to find races, a program would sleep for a second before it exits.
	return spawn(t, slices.Concat([]string{"GORACE=atexit_sleep_ms=0"}, cleanEnv(), env), program, args...)
}

// spawn starts a program in an environment. It is killed when t ends, if it has
// not ended by then. If t fails, its stderr is shown.
func spawn(t testing.TB, env []string, path string, args ...string) *process {
	t.Helper()
	p := &process{cmd: exec.Command(path, args...), stdout: new(bytes.Buffer), stderr: newLogBook(), done: make(chan struct{})}
	p.cmd.Env = env
	p.cmd.Stdout, p.cmd.Stderr = p.stdout, p.stderr
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { // ends with the process
		_ = p.cmd.Wait() // what it was is in ProcessState
		close(p.done)
	}()
	t.Cleanup(func() {
		if !p.ended() {
			_ = p.cmd.Process.Kill()
			<-p.done
		}
		if t.Failed() {
			t.Logf("stderr of %s %s:\n%s", filepath.Base(path), strings.Join(args, " "), p.stderr)
		}
	})
	return p
}

// execute starts the program with nothing added to its environment.
func execute(t testing.TB, args ...string) *process {
	t.Helper()
	return run(t, nil, args...)
}

// cleanEnv keeps what the machine says about proxies and telemetry from the
// program under test.
func cleanEnv() []string {
	var env []string
	for _, kv := range os.Environ() {
		name, _, _ := strings.Cut(kv, "=")
		if upper := strings.ToUpper(name); strings.HasPrefix(upper, "OTEL_") || strings.HasSuffix(upper, "_PROXY") {
			continue
		}
		env = append(env, kv)
	}
	return env
}

func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

func (p *process) signal(t testing.TB, sig os.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil {
		t.Errorf("signal %v: %v", sig, err)
	}
}

// wait returns the exit code, -1 for death by a signal.
func (p *process) wait(t testing.TB) int {
	t.Helper()
	select {
	case <-p.done:
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(patience):
		t.Fatalf("%s is still running after %v", filepath.Base(p.cmd.Path), patience)
		return 0
	}
}

// success waits until the process has ended, and says why it has failed.
func (p *process) success(t testing.TB) error {
	t.Helper()
	if code := p.wait(t); code != 0 {
		return fmt.Errorf("%s: exit code %d: %s", strings.Join(p.cmd.Args, " "), code, p.stderr)
	}
	return nil
}

// awaitLog waits for a log line with the message and returns its attributes.
func (p *process) awaitLog(t testing.TB, msg string) map[string]any {
	t.Helper()
	return p.awaitLogAfter(t, 0, msg)
}

// awaitLogAfter passes over the first skip lines with that message.
func (p *process) awaitLogAfter(t testing.TB, skip int, msg string) map[string]any {
	t.Helper()
	timeout := time.After(patience)
	for {
		found, changed := p.stderr.find(msg)
		if len(found) > skip {
			return found[skip]
		}
		select {
		case <-changed:
		case <-p.done:
			if found, _ := p.stderr.find(msg); len(found) > skip {
				return found[skip]
			}
			t.Fatalf("%s ended without logging %q", filepath.Base(p.cmd.Path), msg)
		case <-timeout:
			t.Fatalf("%s did not log %q within %v", filepath.Base(p.cmd.Path), msg, patience)
		}
	}
}

// logBook keeps what a process writes, and tells of each addition.
type logBook struct {
	mu      sync.Mutex
	text    []byte
	changed chan struct{} // closed with the next addition
}

func newLogBook() *logBook { return &logBook{changed: make(chan struct{})} }

func (b *logBook) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.text = append(b.text, p...)
	close(b.changed)
	b.changed = make(chan struct{})
	return len(p), nil
}

func (b *logBook) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return string(b.text)
}

// find returns the JSON lines with the message, and what tells of more.
func (b *logBook) find(msg string) (found []map[string]any, changed <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for line := range bytes.Lines(b.text) {
		var attrs map[string]any
		if json.Unmarshal(line, &attrs) == nil && attrs["msg"] == msg {
			found = append(found, attrs)
		}
	}
	return found, b.changed
}

// poll asks until the answer is yes and reports whether it was, within patience.
// It is for what only another process knows.
func poll(yes func() bool) bool {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); <-tick.C {
		if yes() {
			return true
		}
	}
	return yes()
}

// eventually fails t at once unless what becomes true.
func eventually(t testing.TB, what string, yes func() bool) {
	t.Helper()
	if !poll(yes) {
		t.Fatalf("not so within %v: %s", patience, what)
	}
}

// direct is a client that uses no proxy.
var direct = &http.Client{Transport: &http.Transport{Proxy: nil, MaxIdleConnsPerHost: 64}}

// get asks directly and returns status and body; status 0 means that nobody
// answered.
func get(t testing.TB, url string) (int, []byte) {
	t.Helper()
	resp, err := direct.Get(url)
	if err != nil {
		return 0, []byte(err.Error())
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, []byte(err.Error())
	}
	return resp.StatusCode, body
}

// runList is an answer of the admin API.
type runList[T any] struct {
	Runs []T    `json:"runs"`
	Next string `json:"next"`
}

func list[T any](t testing.TB, url string) runList[T] {
	t.Helper()
	code, body := get(t, url)
	if code != http.StatusOK {
		t.Fatalf("GET %s: status %d: %s", url, code, body)
	}
	return decode[runList[T]](t, body)
}

func decode[T any](t testing.TB, body []byte) T {
	t.Helper()
	var v T
	if err := json.Unmarshal(body, &v); err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	return v
}

// write replaces a file in one step, as editors and Kubernetes do.
func write(t testing.TB, path, text string) {
	t.Helper()
	next := path + ".next"
	if err := os.WriteFile(next, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(next, path); err != nil {
		t.Fatal(err)
	}
}
