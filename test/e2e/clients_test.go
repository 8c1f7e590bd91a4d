package e2e

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// plainClient is an HTTP client of the world, used as it comes: its environment
// alone says that there is a proxy.
type plainClient struct {
	name    string
	command []string // to which the URL is added; it posts its stdin
	env     []string
	trust   string // the variable that names the certificates it trusts
	// tunnels tells that it asks for a tunnel even for http.
	tunnels bool
	// direct tells that nothing leads it to the proxy.
	direct bool
}

// plainClients are those on this machine. It skips t where one is missing.
func plainClients(t *testing.T) []plainClient {
	t.Helper()
	curl, err := exec.LookPath("curl")
	if err != nil {
		missing(t, "no curl", "run apt-get install curl")
	}
	post := []string{curl, "--silent", "--show-error", "--fail-with-body", "--data-binary", "@-",
		"--header", "Content-Type: application/json", "--header", "Accept: application/json, text/event-stream"}
	clients := []plainClient{
		{name: "curl", command: post, trust: "CURL_CA_BUNDLE"},
		{name: "curl, tunnel", command: append(slices.Clip(post), "--proxytunnel"), trust: "SSL_CERT_FILE", tunnels: true},
		{name: "urllib", command: []string{python(t, "urllib"), "python/call.py", "urllib"}, trust: "SSL_CERT_FILE"},
		{name: "requests", command: []string{python(t, "requests"), "python/call.py", "requests"}, trust: "REQUESTS_CA_BUNDLE"},
		{name: "httpx", command: []string{python(t, "httpx"), "python/call.py", "httpx"}, trust: "SSL_CERT_FILE"},
	}
	on := []string{"NODE_USE_ENV_PROXY=1"}
	for _, n := range nodes(t) {
		add := func(client string, env []string, tunnels, direct bool) {
			name := fmt.Sprintf("%v %s %s", n, client, strings.Join(env, " "))
			clients = append(clients, plainClient{
				name: strings.TrimSpace(name), command: []string{n.path, "node/call.mjs", client},
				env: env, trust: "NODE_EXTRA_CA_CERTS", tunnels: tunnels, direct: direct,
			})
		}
		for _, client := range []string{"fetch", "http"} {
			add(client, nil, false, true)
			add(client, on, client == "fetch" && n.readsProxyEnv, !n.readsProxyEnv)
		}
		add("EnvHttpProxyAgent", nil, true, false)
		add("ProxyAgent", nil, true, false)
	}
	return clients
}

// TestClients lets two runs at a time each start a client of its own, which
// calls a tool on another host, in clear and over TLS that the proxy opens. The
// proxy variables name the run, and nothing else does: each tool call has the
// run as its parent that started the client.
func TestClients(t *testing.T) {
	tools := newToolServer(t, "tools.example.com", stateless)
	front := newTLSFront(t, tools.ingress)
	dir := t.TempDir()
	roots, bundle := filepath.Join(dir, "roots.pem"), filepath.Join(dir, "bundle.pem")
	write(t, roots, front.certPEM())
	a := newAgent(t, "agent.example.com", settings{
		"attribution.singleFlight": false, "egress.credentials.secret.env": "EGRESS_SECRET", "env": []string{"EGRESS_SECRET=s3cret"},
		"egress.intercept": []string{strings.TrimPrefix(front.URL, "https://")}, "egress.ca.bundle": bundle, "egress.roots": roots,
	})
	for _, c := range plainClients(t) {
		t.Run(c.name, func(t *testing.T) {
			for _, endpoint := range []string{tools.endpoint(), front.URL + "/mcp"} {
				scheme, _, _ := strings.Cut(endpoint, ":")
				if c.direct && scheme == "https" {
					continue // nobody opens what does not come by
				}
				t.Run(scheme, func(t *testing.T) {
					kind := `kind="http1"`
					if scheme == "https" {
						kind = `kind="tls"`
					}
					before := a.metric(t, "wopproxy_tunnels_total", kind)
					for run, trace := range inTwoRuns(t, a, func(ctx context.Context, run string) error {
						return c.call(ctx, t, a, endpoint, run, bundle)
					}) {
						checkPlainCall(t, a, tools, c, run, trace)
					}
					want := before
					if c.tunnels || scheme == "https" {
						want += 2
					}
					a.awaitMetric(t, want, "wopproxy_tunnels_total", kind)
				})
			}
		})
	}
}

// TestClientsThatTrustNoCA: each client is led to a destination whose TLS is to
// be opened, and trusts that destination's certificate alone. It is cut off a few
// times at most, until it is known to refuse ours, and then gets its answer.
func TestClientsThatTrustNoCA(t *testing.T) {
	tools := newToolServer(t, "tools.example.com", stateless)
	a := newAgent(t, "agent.example.com", settings{
		"egress.intercept": []string{"127.0.0.1"}, "egress.ca.bundle": filepath.Join(t.TempDir(), "bundle.pem"),
	})
	refused := 0.0
	for _, c := range plainClients(t) {
		if c.direct {
			continue
		}
		refused++
		t.Run(c.name, func(t *testing.T) {
			front := newTLSFront(t, tools.ingress)
			theirs := filepath.Join(t.TempDir(), "theirs.pem")
			write(t, theirs, front.certPEM())
			const most = 3
			for n := 0; ; n++ {
				err := c.call(t.Context(), t, a, front.URL+"/mcp", "r-1", theirs)
				if err == nil && n == 0 {
					t.Error("the first call was answered, want it cut off")
				}
				if err == nil {
					break
				}
				if n == most {
					t.Fatalf("after it was cut off %d times: %v", most, err)
				}
			}
			a.awaitMetric(t, refused, "wopproxy_interceptions_total", `outcome="refused"`)
		})
	}
	a.awaitMetric(t, 0, "wopproxy_exchanges_total", `direction="egress"`, `protocol="mcp"`)
}

// inTwoRuns lets two runs do the same at the same time, and returns their ids
// with their traces.
func inTwoRuns(t *testing.T, a *agent, do func(ctx context.Context, run string) error) map[string]string {
	t.Helper()
	const together = 2
	begun, done := gate(together), gate(together)
	var mu sync.Mutex
	traces := map[string]string{}
	var runs sync.WaitGroup
	for range together {
		runs.Go(func() {
			_, err := a.tryChat(t.Context(), nil, func(ctx context.Context, in *http.Request) error {
				run := in.Header.Get("Run-Id")
				mu.Lock()
				traces[run] = traceOf(in.Header.Get("Traceparent"))
				mu.Unlock()
				if err := begun(); err != nil {
					return err
				}
				if err := do(ctx, run); err != nil {
					return err
				}
				return done()
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	runs.Wait()
	if len(traces) != together {
		t.Errorf("runs = %v, want %d", traces, together)
	}
	return traces
}

// gate returns what lets nobody pass until n have come.
func gate(n int64) func() error {
	var left atomic.Int64
	left.Store(n)
	open := make(chan struct{})
	return func() error {
		if left.Add(-1) == 0 {
			close(open)
		}
		return await(open, fmt.Sprintf("all %d have come to this point", n))
	}
}

// call starts the client for a run. The answer must be what the tool was told.
func (c plainClient) call(ctx context.Context, t *testing.T, a *agent, endpoint, run, trusted string) error {
	proxy, err := url.Parse(a.egress)
	if err != nil {
		return err
	}
	proxy.User = url.UserPassword(run, "s3cret")
	env := append([]string{c.trust + "=" + trusted}, c.env...)
	for _, name := range []string{"HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy"} {
		env = append(env, name+"="+proxy.String())
	}
	cmd := exec.CommandContext(ctx, c.command[0], append(slices.Clip(c.command[1:]), endpoint)...)
	cmd.Env = peerEnv(t, env)
	cmd.Stdin = strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"said":"by ` + run + `"}}}`)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	answer, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("%s: %w: %s%s", c.name, err, answer, &stderr)
	}
	if want := `{\"said\":\"by ` + run + `\"}`; !strings.Contains(string(answer), want) {
		return fmt.Errorf("%s: answer = %s, want %s in it", c.name, answer, want)
	}
	return nil
}

// checkPlainCall looks at the one tool call of a run, from both sides.
func checkPlainCall(t *testing.T, a *agent, tools *toolServer, c plainClient, run, trace string) {
	t.Helper()
	links := tools.trace(t, trace)
	if c.direct {
		if children := a.children(t, run); len(links)+len(children) != 0 {
			t.Errorf("a call past the proxy has left %+v and %+v, want nothing in the trace of run %s", links, children, run)
		}
		return
	}
	if len(links) != 1 {
		t.Errorf("runs of trace %s on the server = %+v, want one", trace, links)
		return
	}
	checkChild(t, a, tools, run, links[0])
	checkChildren(t, a, tools, run, "proxy-credential", links)
}

// newTLSFront serves what is at upstream over TLS.
func newTLSFront(t *testing.T, upstream string) tlsPeer {
	t.Helper()
	to, err := url.Parse(upstream)
	if err != nil {
		t.Fatal(err)
	}
	front := httptest.NewUnstartedServer(inFrontOf(func() *url.URL { return to }))
	front.Config.ErrorLog = log.New(io.Discard, "", 0) // of clients that hang up
	front.StartTLS()
	t.Cleanup(front.Close)
	return tlsPeer{front}
}
