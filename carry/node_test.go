package carry_test

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/wopproxy/wopproxy/carry"
)

// peers is where npm ci puts the Node peers of the end-to-end tests.
const peers = "../test/e2e/node/node_modules"

// missing skips t, unless WOPPROXY_E2E is "all": then nothing may be skipped.
func missing(t testing.TB, what string) {
	t.Helper()
	if os.Getenv("WOPPROXY_E2E") == "all" {
		t.Fatal(what)
	}
	t.Skip(what)
}

// nodes returns the runtimes that there are, by their path: that of the machine,
// and the newer one of the end-to-end tests.
func nodes(t testing.TB) map[string]bool {
	t.Helper()
	arch := map[string]string{"amd64": "x64"}[runtime.GOARCH]
	found := map[string]bool{}
	for _, name := range []string{"node", filepath.Join(peers, "node-"+runtime.GOOS+"-"+arch, "bin", "node")} {
		path, err := exec.LookPath(name)
		if err != nil {
			continue
		}
		out, err := exec.CommandContext(t.Context(), path, "-p", "parseInt(process.versions.node) + ' ' + process.allowedNodeEnvironmentFlags.has('--use-env-proxy')").Output()
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		major, proxied := 0, false
		if _, err := fmt.Sscan(string(out), &major, &proxied); err != nil || major < 20 {
			continue
		}
		if path, err = filepath.Abs(path); err != nil {
			t.Fatal(err)
		}
		found[path] = proxied
	}
	if len(found) == 0 {
		missing(t, "no Node 20 or later: install it")
	}
	return found
}

// received is what a server was sent, or an egress.
type received struct {
	Proxied bool              // it came through the proxy
	Headers map[string]string // of those that are handed on
}

// world stands for everything outside of the host: servers with and without TLS,
// which answer with what they were sent, and a proxy to any other.
type world struct {
	plain, tls, proxy *httptest.Server
}

func newWorld(t testing.TB) *world {
	w := &world{}
	var failed sync.Map
	tell := func(proxied bool) http.HandlerFunc {
		return func(rw http.ResponseWriter, r *http.Request) {
			if once := r.Header.Get("X-Fail-Once"); once != "" {
				if _, before := failed.LoadOrStore(once, true); !before {
					http.Error(rw, "try again", http.StatusServiceUnavailable)
					return
				}
			}
			got := received{proxied, map[string]string{}}
			for _, name := range carry.DefaultHeaders {
				if values := r.Header.Values(name); values != nil {
					got.Headers[strings.ToLower(name)] = strings.Join(values, "|")
				}
			}
			answer, err := json.Marshal(got)
			if err != nil {
				t.Error(err)
			}
			_, _ = io.Copy(io.Discard, r.Body)
			if strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc") {
				rw.Header().Set("Content-Type", "application/grpc")
				rw.Header().Set("Trailer", "Grpc-Status")
				answer = append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(answer))), answer...)
				defer rw.Header().Set("Grpc-Status", "0")
			}
			_, _ = rw.Write(answer)
		}
	}
	start := func(h http.Handler) *httptest.Server {
		s := httptest.NewUnstartedServer(h)
		s.Config.Protocols = new(http.Protocols)
		s.Config.Protocols.SetHTTP1(true)
		s.Config.Protocols.SetUnencryptedHTTP2(true)
		s.Start()
		t.Cleanup(s.Close)
		return s
	}
	w.plain = start(tell(false))
	w.tls = httptest.NewTLSServer(tell(false))
	t.Cleanup(w.tls.Close)
	tunnelled := start(tell(true))
	opened := httptest.NewTLSServer(tell(true))
	t.Cleanup(opened.Close)
	w.proxy = start(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.IsAbs():
			tell(true)(rw, r)
		case r.Method != http.MethodConnect:
			http.Error(rw, "this is a proxy", http.StatusBadRequest)
		case r.URL.Port() == "443":
			join(t, rw, opened.Listener.Addr())
		default:
			join(t, rw, tunnelled.Listener.Addr())
		}
	}))
	return w
}

// join makes a CONNECT request a tunnel to addr.
func join(t testing.TB, rw http.ResponseWriter, addr net.Addr) {
	client, _, err := http.NewResponseController(rw).Hijack()
	if err != nil {
		t.Error(err)
		return
	}
	defer client.Close()
	server, err := net.Dial("tcp", addr.String())
	if err != nil {
		t.Error(err)
		return
	}
	defer server.Close()
	_, _ = io.WriteString(client, "HTTP/1.1 200 OK\r\n\r\n")
	go func() { // ends with either side
		_, _ = io.Copy(server, client)
		_ = server.Close()
	}()
	_, _ = io.Copy(client, server)
}

// host is a Node host, at its two addresses.
type host struct{ http1, http2 string }

// startHost starts testdata/host.mjs with the environment that carry gives it,
// and with what more there is.
func (w *world) startHost(t testing.TB, node string, more ...string) host {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "the shims") // a space has to be quoted
	if err := carry.Write(dir); err != nil {
		t.Fatal(err)
	}
	ca := filepath.Join(dir, "ca.pem")
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: w.tls.Certificate().Raw})
	if err := os.WriteFile(ca, text, 0o600); err != nil {
		t.Fatal(err)
	}
	environ := append([]string{"PATH=" + os.Getenv("PATH")}, more...)
	if _, err := os.Stat(filepath.Join(peers, "undici")); err == nil {
		abs, err := filepath.Abs(peers)
		if err != nil {
			t.Fatal(err)
		}
		environ = append(environ, "PACKAGES="+abs)
	}
	cmd := exec.Command(node, "testdata/host.mjs")
	cmd.Env = carry.Apply(environ, carry.Environment(carry.Settings{
		Egress: w.proxy.URL, NoProxy: []string{w.plain.Listener.Addr().String(), w.tls.Listener.Addr().String()},
		CA: ca, Bundle: ca, Shims: dir, Environ: environ,
	}))
	var stderr strings.Builder
	cmd.Stderr = &stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = stdin.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("the host ended: %v", err)
		}
		// Node 22 finds its own reading of the proxy variables experimental.
		if text := warning.ReplaceAllString(stderr.String(), ""); text != "" {
			t.Errorf("the host wrote on stderr:\n%s", text)
		}
	})
	var h host
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if _, scanErr := fmt.Sscan(line, &h.http1, &h.http2); err != nil || scanErr != nil {
		t.Fatalf("addresses of the host: %q: %v", line, err)
	}
	return h
}

var warning = regexp.MustCompile(`(?m)^.*UNDICI-EHPA.*\n.*--trace-warnings.*\n`)

// headers are those of inbound request n, as a wopproxy sends them to its host;
// every eighth has none.
func headers(n int) map[string]string {
	if n%8 == 7 {
		return nil
	}
	return map[string]string{
		"traceparent": fmt.Sprintf("00-%032x-%016x-01", n+1, n+1), "tracestate": fmt.Sprintf("a=1,wop=tag:run_%d,b=2", n),
		"baggage": fmt.Sprintf("k=%d", n), "run-id": fmt.Sprintf(`"run_%d"`, n), "run-ancestry": fmt.Sprintf(`"parent_%d";host="h"`, n),
	}
}

// How much of the context is handed on.
func all(n int) map[string]string { return headers(n) }

func traceOnly(n int) map[string]string {
	h := headers(n)
	delete(h, "baggage")
	delete(h, "run-id")
	delete(h, "run-ancestry")
	return h
}

func public(n int) map[string]string {
	h := traceOnly(n)
	if h != nil {
		h["tracestate"] = "a=1,b=2"
	}
	return h
}

func nothing(int) map[string]string { return nil }

// clientOf speaks one version of HTTP to the host.
func clientOf(t testing.TB, version int) *http.Client {
	tr := &http.Transport{MaxIdleConnsPerHost: 8, MaxConnsPerHost: 8, Protocols: new(http.Protocols)}
	tr.Protocols.SetHTTP1(version == 1)
	tr.Protocols.SetUnencryptedHTTP2(version == 2)
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: 30 * time.Second}
}

// call sends inbound request n to the host at addr and returns what the server
// behind it was sent.
func call(c *http.Client, addr, client, to string, n int) (got received, err error) {
	r, err := http.NewRequest(http.MethodPost, "http://"+addr+"/"+client+"?url="+url.QueryEscape(to), strings.NewReader("hello"))
	if err != nil {
		return got, err
	}
	for name, value := range headers(n) {
		r.Header.Set(name, value)
	}
	resp, err := c.Do(r)
	if err != nil {
		return got, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		return got, fmt.Errorf("status %d, %w: %s", resp.StatusCode, err, body)
	}
	var answer struct {
		Length   int
		Received received
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return got, fmt.Errorf("%w: %s", err, body)
	}
	if answer.Length != len("hello") {
		return got, fmt.Errorf("the host has read %d bytes", answer.Length)
	}
	return answer.Received, nil
}

// burst sends 64 inbound requests at once, twice, and holds what goes out on
// behalf of each to want.
func burst(t *testing.T, c *http.Client, addr, client, to string, proxied bool, want func(int) map[string]string) {
	t.Helper()
	var all sync.WaitGroup
	var mu sync.Mutex
	linked := 0
	for round := range 2 {
		for i := range 64 {
			all.Go(func() {
				n := 64*round + i
				got, err := call(c, addr, client, to, n)
				if err != nil {
					t.Error(err)
					return
				}
				w := want(n)
				if w == nil {
					w = map[string]string{}
				}
				if diff := cmp.Diff(received{proxied, w}, got); diff != "" {
					t.Errorf("on behalf of request %d (-want +got):\n%s", n, diff)
				}
				mu.Lock()
				defer mu.Unlock()
				linked += min(1, len(got.Headers))
			})
		}
		all.Wait()
	}
	t.Logf("%s: 128 requests, %d handed on", client, linked)
}

// TestNode has real Node programs call out with each client, for 64 requests at
// once that share its connections: each call bears what came with the request
// that it is made for, and as much of it as may go where it goes.
func TestNode(t *testing.T) {
	for node, proxies := range nodes(t) {
		version, err := exec.CommandContext(t.Context(), node, "--version").Output()
		if err != nil {
			t.Fatal(err)
		}
		t.Run(strings.TrimSpace(string(version)), func(t *testing.T) {
			w := newWorld(t)
			h := w.startHost(t, node)
			const far, farTLS = "http://tools.example.com/", "https://example.com/"
			type row struct {
				client, to string
				proxied    bool
				want       func(int) map[string]string
			}
			rows := []row{
				{"get", w.plain.URL, false, public},
				{"request", w.plain.URL, false, public},
				{"https", w.tls.URL, false, public},
				{"few", w.plain.URL, false, public},
				{"absolute", far, true, all},
				{"fetch", w.plain.URL, false, public},
				{"fetch", w.tls.URL, false, public},
				{"http2", w.plain.URL, false, public},
				{"database", w.plain.URL, false, nothing}, // rather than another's
			}
			if proxies {
				rows = append(rows,
					row{"get", far, true, all}, row{"request", far, true, all}, row{"https", farTLS, true, traceOnly},
					row{"fetch", far, true, all}, row{"fetch", farTLS, true, traceOnly})
			}
			if _, err := os.Stat(filepath.Join(peers, "undici")); err == nil {
				rows = append(rows,
					row{"undici", w.plain.URL, false, public},
					row{"undiciGlobal", w.plain.URL, false, public},
					row{"retry", w.plain.URL, false, nothing}, // rather than another's
					row{"EnvHttpProxyAgent", far, true, all}, row{"EnvHttpProxyAgent", farTLS, true, traceOnly}, row{"EnvHttpProxyAgent", w.plain.URL, false, public},
					row{"ProxyAgent", far, true, all},
					row{"grpc", "http://tools.example.com:50051", true, traceOnly})
			}
			for _, version := range []int{1, 2} {
				addr := h.http1
				if version == 2 {
					addr = h.http2
				}
				c := clientOf(t, version)
				for _, row := range rows {
					if version == 2 && !strings.Contains("get few absolute fetch", row.client) {
						continue // how a request has come in makes no difference to them
					}
					t.Run(fmt.Sprintf("HTTP/%d in, %s to %s", version, row.client, row.to), func(t *testing.T) {
						burst(t, c, addr, row.client, row.to, row.proxied, row.want)
					})
				}
			}
		})
	}
}

// TestNodeStepsAside (whose rows must not name OpenTelemetry: the shim would find
// the name in its own path) has the shim meet what it has to leave alone: headers of the
// host's own, other propagation, a runtime that is not as expected. The host does
// its work all the same, and writes nothing.
func TestNodeStepsAside(t *testing.T) {
	preload, err := filepath.Abs("testdata/preload.cjs")
	if err != nil {
		t.Fatal(err)
	}
	only := func(names ...string) func(int) map[string]string {
		return func(n int) map[string]string {
			some := map[string]string{}
			for _, name := range names {
				some[name] = headers(n)[name]
			}
			return some
		}
	}
	own := func(more func(int) map[string]string) func(int) map[string]string {
		return func(n int) map[string]string {
			h := more(n)
			h["traceparent"] = "00-own"
			return h
		}
	}
	world := func(name string) []string { return []string{"WORLD=" + name, "NODE_OPTIONS=--require " + preload} }
	node := slices.Max(slices.Collect(maps.Keys(nodes(t)))) // one will do
	w := newWorld(t)
	const far = "http://tools.example.com/"
	for _, tt := range []struct {
		name       string
		env        []string
		client, to string
		proxied    bool
		want       func(int) map[string]string
	}{
		{"a traceparent of its own", nil, "own", w.plain.URL, false, own(only())},
		{"a traceparent of its own, fetch", nil, "fetchOwn", w.plain.URL, false, own(only())},
		{"switched off", []string{"WOPPROXY_CARRY=off"}, "absolute", far, true, nothing},
		{"telemetry in the options", []string{"NODE_OPTIONS=--title=opentelemetry"}, "absolute", far, true, nothing},
		{"telemetry registered", world("registered"), "absolute", far, true, nothing},
		{"telemetry registered, fetch", world("registered"), "fetch", w.plain.URL, false, nothing},
		{"telemetry of metrics alone", world("metrics"), "absolute", far, true, all},
		{"some headers", []string{"WOPPROXY_CARRY_HEADERS=traceparent, Run-Id"}, "absolute", far, true, only("traceparent", "run-id")},
		{"no headers", []string{"WOPPROXY_CARRY_HEADERS=\x01"}, "absolute", far, true, nothing},
		{"frozen module", world("frozen"), "absolute", far, true, nothing},
		{"frozen class", world("frozenServer"), "absolute", far, true, nothing},
		{"no AsyncLocalStorage", world("noHooks"), "absolute", far, true, nothing},
		{"an old Node", world("old"), "absolute", far, true, nothing},
		{"faults at every call", world("throwing"), "absolute", far, true, nothing},
		{"loaded twice", []string{"NODE_OPTIONS=--require ./node.cjs"}, "absolute", far, true, all},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := w.startHost(t, node, tt.env...)
			for n := range 2 {
				got, err := call(clientOf(t, 1), h.http1, tt.client, tt.to, n)
				if err != nil {
					t.Fatal(err)
				}
				want := received{tt.proxied, tt.want(n)}
				if want.Headers == nil {
					want.Headers = map[string]string{}
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("on behalf of request %d (-want +got):\n%s", n, diff)
				}
			}
		})
	}
}
