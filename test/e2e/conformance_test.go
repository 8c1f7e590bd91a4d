package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestConformance runs MCP's public conformance suite without proxies and with
// them at every place where one can stand. What it finds, check by check, must be
// the same. It takes Node 22 or later:
//
//	npm ci --ignore-scripts --prefix test/e2e/node
//	go test ./test/e2e -run TestConformance
func TestConformance(t *testing.T) {
	n := node(t)
	if n.major < 22 {
		missing(t, "no Node 22 or later", "install it, or "+installNode+", which brings one for Linux")
	}
	t.Run("server", func(t *testing.T) { testServerConformance(t, n) })
	t.Run("client", func(t *testing.T) { testClientConformance(t, n) })
}

// testServerConformance lets the suite judge the server that the Go SDK has for
// it: directly, through an ingress, through an egress, and through both.
func testServerConformance(t *testing.T, n nodeRuntime) {
	server := filepath.Join(t.TempDir(), "everything-server")
	build(t, "-o", server, "github.com/modelcontextprotocol/go-sdk/conformance/everything-server")
	for _, tt := range []struct {
		name     string
		suite    suite
		stateful bool
		passed   int // checks, directly
	}{
		{"0.1", suite{n, "conformance-0.1", []string{"server", "--suite", "all"}}, true, 44},
		{"0.2 at " + stateful, suite{n, "conformance-0.2", []string{"server", "--suite", "active", "--spec-version", stateful}}, true, 73},
		{"0.2 at " + stateless, suite{n, "conformance-0.2", []string{"server", "--suite", "all", "--spec-version", stateless}}, false, 153},
	} {
		t.Run(tt.name, func(t *testing.T) {
			own := listening(t, server, fmt.Sprintf("-stateless=%v", !tt.stateful))
			want, err := tt.suite.judge(t.Context(), t, nil, "--url", own+"/mcp")
			if err != nil || want.count("SUCCESS") != tt.passed {
				t.Fatalf("directly, %d checks have passed (%v), want %d: %v", want.count("SUCCESS"), err, tt.passed, want)
			}
			host := start(t, "tools.example.com", own)
			a := newAgent(t, "agent.example.com")
			// The suite calls as a run does that has its proxy from the environment.
			env := []string{"NODE_USE_ENV_PROXY=1", "HTTP_PROXY=" + a.egress}
			through := map[string]func() (verdicts, error){
				"ingress": func() (verdicts, error) { return tt.suite.judge(t.Context(), t, nil, "--url", host.ingress+"/mcp") },
				"egress":  func() (verdicts, error) { return tt.suite.inRun(t, a, env, "--url", own+"/mcp") },
				"both":    func() (verdicts, error) { return tt.suite.inRun(t, a, env, "--url", host.ingress+"/mcp") },
			}
			for _, place := range []string{"ingress", "egress", "both"} {
				t.Run(place, func(t *testing.T) {
					atHost, atAgent := mcpCalls(t, host, "ingress"), mcpCalls(t, a.sidecar, "egress")
					got, err := through[place]()
					if diff := cmp.Diff(want, got); diff != "" || err != nil {
						t.Errorf("checks (%v), -without +with proxies:\n%s", err, diff)
					}
					if came := mcpCalls(t, host, "ingress") - atHost; (came > 10) != (place != "egress") {
						t.Errorf("MCP requests that came by the ingress = %v", came)
					}
					if came := mcpCalls(t, a.sidecar, "egress") - atAgent; (came > 10) != (place != "ingress") {
						t.Errorf("MCP requests that came by the egress = %v", came)
					}
				})
			}
			// Node's fetch asks for tunnels, and what is in them is read.
			if a.metric(t, "wopproxy_tunnels_total", `kind="http1"`) == 0 {
				t.Error(`wopproxy_tunnels_total{kind="http1"} = 0, want the tunnels of the suite`)
			}
		})
	}
}

// testClientConformance lets the suite judge clients of two SDKs, with and
// without an egress between.
func testClientConformance(t *testing.T, n nodeRuntime) {
	t.Run("Go", func(t *testing.T) {
		client := filepath.Join(t.TempDir(), "everything-client")
		buildGoClient(t, client)
		all := suite{n, "conformance-0.2", []string{"client", "--suite", "all"}}
		sameClient(t, all, 494, client, "HTTP_PROXY=")
	})
	for _, scenario := range []string{"initialize", "tools_call", "elicitation-sep1034-client-defaults", "sse-retry"} {
		t.Run("TypeScript "+scenario, func(t *testing.T) {
			script, err := filepath.Abs("node/conformance-client.mjs")
			if err != nil {
				t.Fatal(err)
			}
			one := suite{n, "conformance-0.2", []string{"client", "--scenario", scenario}}
			sameClient(t, one, 1, n.path+" "+script, "NODE_USE_ENV_PROXY=1", "HTTP_PROXY=")
		})
	}
}

// sameClient compares what a suite finds of a client that calls directly, and of
// one in whose environment the last variable names the egress. At least that many
// checks have to pass.
func sameClient(t *testing.T, s suite, passed int, command string, env ...string) {
	t.Helper()
	want, err := s.judge(t.Context(), t, nil, "--command", command)
	if err != nil || want.count("SUCCESS") < passed {
		t.Fatalf("directly, %d checks have passed (%v), want %d: %v", want.count("SUCCESS"), err, passed, want)
	}
	a := newAgent(t, "agent.example.com")
	env[len(env)-1] += a.egress
	got, err := s.inRun(t, a, nil, "--command", "env "+strings.Join(env, " ")+" "+command)
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("checks (%v), -without +with a proxy:\n%s", err, diff)
	}
	if came := mcpCalls(t, a.sidecar, "egress"); came < 2 {
		t.Errorf("MCP requests that came by the egress = %v, want those of the client", came)
	}
}

// suite is a way to run a version of the suite.
type suite struct {
	node    nodeRuntime
	version string // the package
	args    []string
}

// verdicts are what a suite has found: by scenario, the checks that were made
// with their outcomes, in no order that means anything.
type verdicts map[string][]string

func (v verdicts) count(status string) (n int) {
	for _, checks := range v {
		for _, c := range checks {
			if strings.HasSuffix(c, " "+status) {
				n++
			}
		}
	}
	return n
}

// judge runs the suite with more arguments. That checks fail is no error.
func (s suite) judge(ctx context.Context, t *testing.T, env []string, args ...string) (verdicts, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	dir := t.TempDir()
	command := slices.Concat([]string{filepath.Join(nodeModules, s.version, "dist", "index.js")}, s.args, args, []string{"-o", dir})
	cmd := exec.CommandContext(ctx, s.node.path, command...)
	cmd.Env = peerEnv(t, env)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	failed := cmd.Run() // where a check has failed, too
	found, err := readVerdicts(dir)
	if err != nil || len(found) == 0 {
		return nil, fmt.Errorf("%s %v has left no checks: %w, %w\n%s", s.version, s.args, err, failed, &out)
	}
	return found, nil
}

// inRun runs the suite as the work of a run of a, so that what leaves is stamped.
func (s suite) inRun(t *testing.T, a *agent, env []string, args ...string) (found verdicts, err error) {
	a.chat(t, func(ctx context.Context, _ *http.Request) error {
		found, err = s.judge(ctx, t, env, args...)
		return nil
	})
	return found, err
}

// resultDir is where a suite leaves what it has found of one scenario.
var resultDir = regexp.MustCompile(`^(.*)-\d{4}-\d\d-\d\dT[-0-9]+Z$`)

// readVerdicts reads what a suite has left in a folder.
func readVerdicts(dir string) (verdicts, error) {
	v := verdicts{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.Name() != "checks.json" {
			return err
		}
		of, err := filepath.Rel(dir, filepath.Dir(path))
		if err != nil {
			return err
		}
		name := resultDir.FindStringSubmatch(of)
		if name == nil {
			return fmt.Errorf("%s: no time in its name", of)
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		var checks []struct{ ID, Status string }
		if err := json.Unmarshal(text, &checks); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		all := []string{}
		for _, c := range checks {
			if c.Status != "INFO" {
				all = append(all, c.ID+" "+c.Status)
			}
		}
		slices.Sort(all)
		v[name[1]] = all
		return nil
	})
	return v, err
}

// mcpCalls is how many MCP requests have come by.
func mcpCalls(t *testing.T, s *sidecar, direction string) float64 {
	t.Helper()
	return s.metric(t, "wopproxy_exchanges_total", `direction="`+direction+`"`, `protocol="mcp"`)
}

// build builds a program at the versions of the project.
func build(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), "go", append([]string{"build"}, args...)...).CombinedOutput(); err != nil {
		t.Fatalf("go build %v: %v\n%s", args, err, out)
	}
}

// proxied makes a Go program use the proxy of its environment for loopback too.
const proxied = `package main

import (
	"net/http"
	"net/url"
	"os"
)

func init() {
	if proxy, err := url.Parse(os.Getenv("HTTP_PROXY")); err == nil && proxy.Host != "" {
		http.DefaultTransport.(*http.Transport).Proxy = http.ProxyURL(proxy)
	}
}
`

// buildGoClient builds the client that the Go SDK has for the suite.
func buildGoClient(t *testing.T, path string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-f", "{{.Dir}}", "github.com/modelcontextprotocol/go-sdk/conformance/everything-client").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	source, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(out)), "main.go"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	files := []string{filepath.Join(dir, "main.go"), filepath.Join(dir, "proxied.go")}
	write(t, files[0], string(source))
	write(t, files[1], proxied)
	build(t, append([]string{"-o", path}, files...)...)
}

// listening starts a server that cannot choose its port, and returns its address.
func listening(t *testing.T, path string, args ...string) string {
	t.Helper()
	for range 3 {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		addr := ln.Addr().String()
		ln.Close() // and hope that nobody takes it first
		p := spawn(t, peerEnv(t, nil), path, append([]string{"-http=" + addr}, args...)...)
		eventually(t, "a server listens", func() bool {
			conn, err := net.Dial("tcp", addr)
			if err == nil {
				conn.Close()
			}
			return err == nil || p.ended()
		})
		if !p.ended() {
			return "http://" + addr
		}
	}
	t.Fatalf("%s does not listen", path)
	return ""
}
