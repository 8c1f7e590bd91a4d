package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
)

// missing ends a test for lack of something that this machine could have. It is
// skipped, unless WOPPROXY_E2E is "all": then nothing may be.
func missing(t testing.TB, what, remedy string) {
	t.Helper()
	text := fmt.Sprintf("%s: %s", what, remedy)
	if os.Getenv("WOPPROXY_E2E") == "all" {
		t.Fatal(text)
	}
	t.Skip(text)
}

// nodeModules is where npm ci puts the Node peers.
const nodeModules = "node/node_modules"

const installNode = "run npm ci --ignore-scripts --prefix test/e2e/node"

// nodeRuntime is a Node on this machine.
type nodeRuntime struct {
	path  string
	major int
	// readsProxyEnv tells that NODE_USE_ENV_PROXY means something to it.
	readsProxyEnv bool
}

func (n nodeRuntime) String() string { return fmt.Sprintf("Node %d", n.major) }

// nodes returns the runtimes to try peers on, oldest first: the one of the
// machine if it is 20 or later, and the one that npm ci installs. It skips t
// where there is none, or no peers.
func nodes(t testing.TB) []nodeRuntime {
	t.Helper()
	if _, err := os.Stat(nodeModules + "/.package-lock.json"); err != nil {
		missing(t, "no Node peers", installNode)
	}
	arch := map[string]string{"amd64": "x64"}[runtime.GOARCH]
	if arch == "" {
		arch = runtime.GOARCH
	}
	var found []nodeRuntime
	for _, name := range []string{"node", filepath.Join(nodeModules, "node-"+runtime.GOOS+"-"+arch, "bin", "node")} {
		path, err := exec.LookPath(name)
		if err != nil {
			continue
		}
		if path, err = filepath.Abs(path); err != nil {
			t.Fatal(err)
		}
		n := nodeRuntime{path: path}
		out, err := exec.CommandContext(t.Context(), path, "-p",
			"parseInt(process.versions.node) + ' ' + process.allowedNodeEnvironmentFlags.has('--use-env-proxy')").Output()
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		if _, err := fmt.Sscan(string(out), &n.major, &n.readsProxyEnv); err != nil {
			t.Fatalf("%s: version %q: %v", path, out, err)
		}
		if n.major >= 20 && (len(found) == 0 || found[0].major != n.major) {
			found = append(found, n)
		}
	}
	if len(found) == 0 {
		missing(t, "no Node 20 or later", "install it, or "+installNode+", which brings one for Linux")
	}
	return found
}

// node returns the newest of nodes.
func node(t testing.TB) nodeRuntime {
	t.Helper()
	found := nodes(t)
	newest := found[0]
	for _, n := range found {
		if n.major > newest.major {
			newest = n
		}
	}
	return newest
}

// spawn starts a script of the folder node.
func (n nodeRuntime) spawn(t testing.TB, env []string, script string, args ...string) *process {
	t.Helper()
	return spawn(t, peerEnv(t, env), n.path, append([]string{filepath.Join("node", script)}, args...)...)
}

// nodeProxyEnv names the egress of s to whatever in Node takes a proxy from the
// environment: fetch and http the one way, grpc-js the other.
func nodeProxyEnv(s *sidecar) []string {
	return []string{"NODE_USE_ENV_PROXY=1", "HTTP_PROXY=" + s.egress, "http_proxy=" + s.egress}
}

// python returns a Python 3 that has the module. Debian's comes first: it is what
// apt-get installs modules for.
func python(t testing.TB, module string) string {
	t.Helper()
	for _, name := range []string{"/usr/bin/python3", "python3"} {
		path, err := exec.LookPath(name)
		if err == nil && exec.CommandContext(t.Context(), path, "-c", "import "+module).Run() == nil {
			return path
		}
	}
	missing(t, "no Python 3 with "+module, "run apt-get install python3-"+module)
	return ""
}

// peerEnv is the environment of a peer: nothing that the machine says about
// proxies, certificates or telemetry, and what env adds.
func peerEnv(t testing.TB, env []string) []string {
	t.Helper()
	return append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "LANG=C.UTF-8"}, env...)
}
