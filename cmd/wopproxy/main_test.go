package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestCommands pins what each way of calling the program says, where, and with
// which exit code.
func TestCommands(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	good := write("good.yaml", "host: {id: h.example.com, wellKnownUrl: https://h.example.com/.well-known/openwop}\ningress: {upstream: http://127.0.0.1:1}\n")
	bad := write("bad.yaml", "hosst: {}\ningress: {upstream: nowhere}\n")
	noSecret := write("secret.yaml", "host: {id: h.example.com, wellKnownUrl: https://h.example.com/.well-known/openwop}\ningress: {upstream: http://127.0.0.1:1}\negress: {credentials: {secret: {file: /nonexistent/secret}}}\n")
	pod := write("pod.yaml", "apiVersion: v1\nkind: Pod\nmetadata:\n  name: agent\nspec:\n  containers:\n    - name: agent\n      ports: [{name: http, containerPort: 8080}]\n")
	hostNetwork := write("node.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {name: agent}\nspec: {hostNetwork: true, containers: [{name: agent}]}\n")
	t.Setenv("KUBERNETES_SERVICE_HOST", "") // wherever the test runs
	t.Setenv("WOPPROXY_TEST_CONFIG", "host: {id: v.example.com, wellKnownUrl: https://v.example.com/.well-known/openwop}\ningress: {upstream: http://127.0.0.1:1}\n")
	tests := []struct {
		name           string
		args           []string
		code           int
		stdout, stderr string // parts of it
	}{
		{"nothing", nil, 0, "usage: wopproxy COMMAND", ""},
		{"help", []string{"-h"}, 0, "ancestry", ""},
		{"unknown command", []string{"sevre"}, 2, "", `unknown command "sevre"`},
		{"version", []string{"version"}, 0, "wopproxy ", ""},
		{"manual of a command", []string{"serve", "-h"}, 0, "", "a second\nsignal ends it at once"},
		{"unknown flag", []string{"check", "-confg", good}, 2, "", "-confg"},
		{"stray operand", []string{"check", "-config", good, "x"}, 2, "", "1 operands given, want 0"},
		{"check a good file", []string{"check", "-config", good}, 0, "ok, host h.example.com", ""},
		{"check a bad file", []string{"check", "-config", bad}, 1, "", "ingress.upstream"},
		{"check names every mistake", []string{"check", "-config", bad}, 1, "", "hosst: unknown key"},
		{"check reads secrets", []string{"check", "-config", noSecret}, 1, "", "egress.credentials.secret"},
		{"check a missing file", []string{"check", "-config", filepath.Join(dir, "none.yaml")}, 1, "", "none.yaml"},
		{"serve a bad file", []string{"serve", "-config", bad}, 1, "", "ingress.upstream"},
		{"ancestry without a run", []string{"ancestry", "-host", "http://127.0.0.1:1"}, 2, "", "0 operands given, want 1"},
		{"ancestry of what is no run", []string{"ancestry", "a b", "-host", "http://127.0.0.1:1"}, 1, "", "ancestry:"},
		{"ancestry at a host that is down", []string{"ancestry", "run_x", "-host", "http://127.0.0.1:1"}, 1, "", "unreachable"},
		{"ancestry up and down", []string{"ancestry", "run_x", "-host", "http://127.0.0.1:1", "-admin", "http://127.0.0.1:1"}, 2, "", "one of -host, -store and -admin"},
		{"ancestry of nowhere", []string{"ancestry", "run_x"}, 2, "", "one of -host, -store and -admin"},
		{"ancestry at an admin listener that is down", []string{"ancestry", "run_x", "-admin", "http://127.0.0.1:1"}, 1, "", "ask http://127.0.0.1:1"},
		{"ancestry at what is none", []string{"ancestry", "run_x", "-admin", "%"}, 1, "", "-admin:"},
		{"check a variable", []string{"check", "-config-env", "WOPPROXY_TEST_CONFIG"}, 0, "configuration: ok, host v.example.com", ""},
		{"a variable outranks a file", []string{"check", "-config", good, "-config-env", "WOPPROXY_TEST_CONFIG"}, 0, "good.yaml: ok, host v.example.com", ""},
		{"check a variable that is not set", []string{"check", "-config-env", "WOPPROXY_TEST_NONE"}, 1, "", "no variable WOPPROXY_TEST_NONE"},
		{"serve a variable that is not set", []string{"serve", "-config-env", "WOPPROXY_TEST_NONE"}, 1, "", "no variable WOPPROXY_TEST_NONE"},
		{"inject", []string{"inject", "-f", pod, "-image", "w:1", "-set", "drain=0s"}, 0, "image: w:1", ""},
		{"inject without an image", []string{"inject", "-f", pod}, 1, "", "say with -image which image the sidecars run"},
		{"inject and take back", []string{"inject", "-f", pod, "--uninject"}, 0, "name: agent", ""},
		{"inject no manifest", []string{"inject"}, 2, "", "say with -f which manifest"},
		{"inject a missing file", []string{"inject", "-f", filepath.Join(dir, "none.yaml")}, 1, "", "none.yaml"},
		{"inject what can't be", []string{"inject", "-f", hostNetwork, "-image", "w:1"}, 1, "", "nothing is printed:\nPod agent (document 1): it has hostNetwork"},
		{"inject with a setting that is none", []string{"inject", "-f", pod, "-set", "carry=ruby"}, 2, "", "want one of off, node"},
		{"inject with half a setting", []string{"inject", "-f", pod, "-set", "carry"}, 2, "", "want KEY=VALUE"},
		{"inject with a configuration that is none", []string{"inject", "-f", pod, "-image", "w:1", "-config", bad}, 1, "", "hosst: unknown key"},
		{"webhook without a certificate", []string{"webhook"}, 2, "", "give -namespace, -service, -secret and -configuration, or -tls-cert and -tls-key"},
		{"webhook with half a certificate", []string{"webhook", "-tls-cert", good}, 2, "", "or -tls-cert and -tls-key"},
		{"webhook with two certificates", []string{"webhook", "-tls-cert", good, "-tls-key", good, "-namespace", "a", "-service", "b", "-secret", "c", "-configuration", "d"}, 2, "", "or -tls-cert and -tls-key"},
		{"webhook with what is no certificate", []string{"webhook", "-tls-cert", good, "-tls-key", good, "-image", "w:1"}, 1, "", "-tls-cert:"},
		{"webhook without an image", []string{"webhook", "-tls-cert", good, "-tls-key", good}, 1, "", "say with -image which image the sidecars run"},
		{"webhook with a configuration that is none", []string{"webhook", "-tls-cert", good, "-tls-key", good, "-image", "w:1", "-config", bad}, 1, "", "hosst: unknown key"},
		{"webhook with an unknown setting", []string{"webhook", "-set", "cary=auto"}, 2, "", "there is no setting cary"},
		{"webhook outside of a cluster", []string{"webhook", "-namespace", "a", "-service", "b", "-secret", "c", "-configuration", "d", "-image", "w:1"}, 1, "", "KUBERNETES_SERVICE_PORT are not set"},
		{"redirect nothing", []string{"redirect"}, 2, "", "give the port of ingress.transparent, of egress.transparent or both"},
		{"redirect to no port", []string{"redirect", "-inbound", "0"}, 2, "", `"0" is not a port`},
		{"redirect what are no ports", []string{"redirect", "-app-ports", "80,http"}, 2, "", `"http" is not a port`},
		{"redirect what is no network", []string{"redirect", "-exclude-outbound-cidrs", "10.0.0.1"}, 2, "", "write 10.0.0.1/32"},
		{"redirect for nobody", []string{"redirect", "-uid", "4294967295", "-inbound", "1"}, 2, "", "4294967295 is no user"},
		{"redirect for root", []string{"redirect", "-uid", "0", "-inbound", "1"}, 2, "", "run wopproxy as a user of its own"},
		{"print rules", []string{"redirect", "-inbound", "1", "-exclude-inbound-ports", "", "-print"}, 0, "ip6 daddr fe80::/10 return\n\t\tmeta l4proto tcp redirect to :1\n", ""},
		{"demo with no runs", []string{"demo", "-runs", "0"}, 2, "", "-runs must be 1 or more"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			code := run(t.Context(), tt.args, &stdout, &stderr)
			if code != tt.code || !strings.Contains(stdout.String(), tt.stdout) || !strings.Contains(stderr.String(), tt.stderr) {
				t.Errorf("run(%q) = %d, want %d\nstdout: %s\nstderr: %s", tt.args, code, tt.code, &stdout, &stderr)
			}
			if code != 0 && stdout.Len() > 0 && tt.args[0] == "inject" {
				t.Errorf("run(%q) fails and prints %s, which a pipe would take for its result", tt.args, &stdout)
			}
		})
	}
}

// TestDemo runs the demo as a newcomer does and holds it to what it promises:
// every link right, two rungs at work, and a chain that anybody can ask for.
func TestDemo(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var stdout, stderr bytes.Buffer
	if code := run(ctx, []string{"demo", "-runs", "8"}, &stdout, &stderr); code != 0 {
		t.Fatalf("demo = %d\n%s\n%s", code, &stdout, &stderr)
	}
	for _, want := range []string{
		`(?m)^run_\w+  planner.demo\n└─ a2a-message → run_\w+  researcher.demo\n   └─ mcp-tool-call → run_\w+  tools.demo$`,
		`Trace ids: 8 runs, 8 traces`,
		`1 +\[single-flight\] +2 +2 +2 +0 +0`,
		`8 +\[trace-state\] +16 +16 +16 +0 +0`,
		`"parent":null`,
	} {
		if !regexp.MustCompile(want).Match(stdout.Bytes()) {
			t.Errorf("the demo does not print %s:\n%s", want, &stdout)
		}
	}
	if stderr.Len() > 0 {
		t.Errorf("the demo complains: %s", &stderr)
	}
}

// TestImageOf pins that only a release has an image: no other was ever pushed.
func TestImageOf(t *testing.T) {
	for version, want := range map[string]string{
		"v1.2.3": "ghcr.io/wopproxy/wopproxy:1.2.3", "v0.1.0-rc.1": "ghcr.io/wopproxy/wopproxy:0.1.0-rc.1",
		"devel": "", "v1.2.3+dirty": "", "v0.0.0-20260101000000-0123456789ab": "", "v1.2.4-0.20260101000000-0123456789ab": "",
		"v1.2.3-rc.1.0.20260101000000-0123456789ab+dirty": "",
	} {
		if got := imageOf(version); got != want {
			t.Errorf("imageOf(%q) = %q, want %q", version, got, want)
		}
	}
}

// TestDemoEvidence has each hop of the demo sign what passed it, and the next go on
// where it ended.
func TestDemoEvidence(t *testing.T) {
	var stdout, stderr bytes.Buffer
	if code := run(t.Context(), []string{"demo", "-runs", "1", "--evidence"}, &stdout, &stderr); code != 0 {
		t.Fatalf("demo = %d\n%s\n%s", code, &stdout, &stderr)
	}
	for _, host := range []string{"planner.demo", "researcher.demo", "tools.demo"} {
		want := `(?m)^https://` + host + `\nstep_[-0-9a-f]+  ok  org.peacprotocol/agent-action-invoked-observed(.*\n)+?summary  ok  wf_[-0-9a-f]+  completed  `
		if !regexp.MustCompile(want).Match(stdout.Bytes()) {
			t.Errorf("the demo does not print %s:\n%s", want, &stdout)
		}
	}
	if stderr.Len() > 0 {
		t.Errorf("the demo complains: %s", &stderr)
	}
}
