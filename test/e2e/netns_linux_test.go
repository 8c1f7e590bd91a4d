package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
)

// netns is a network namespace, whose loopback is its own: nobody else's is reached
// there, and all ports are free.
type netns struct {
	name  string
	addr  string // of its end of the cable
	addr6 string // the same for IPv6
}

// newPair makes two network namespaces with a cable between them.
func newPair(t testing.TB) [2]*netns {
	t.Helper()
	ip := func(args ...string) error {
		out, err := exec.Command("ip", args...).CombinedOutput()
		if err != nil {
			err = fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, out)
		}
		return err
	}
	if _, err := exec.LookPath("ip"); err != nil {
		missing(t, "no ip", "install iproute2")
	}
	id := randomHex(6)[:6]
	pair := [2]*netns{{"wop-a-" + id, "10.77.0.1", "fd77::1"}, {"wop-b-" + id, "10.77.0.2", "fd77::2"}}
	for _, n := range pair {
		if err := ip("netns", "add", n.name); err != nil {
			t.Skip("network namespaces take a right that is not there: ", err)
		}
		t.Cleanup(func() {
			if err := ip("netns", "del", n.name); err != nil {
				t.Error(err)
			}
		})
		if err := ip("netns", "exec", n.name, "true"); err != nil {
			t.Skip("entering a network namespace takes a right that is not there: ", err)
		}
	}
	a, b := pair[0], pair[1]
	steps := [][]string{{"link", "add", "cable", "netns", a.name, "type", "veth", "peer", "name", "cable", "netns", b.name}}
	for _, n := range pair {
		steps = append(steps,
			[]string{"-n", n.name, "addr", "add", n.addr + "/24", "dev", "cable"},
			[]string{"-n", n.name, "link", "set", "lo", "up"},
			[]string{"-n", n.name, "link", "set", "cable", "up"})
	}
	if _, err := os.Stat("/proc/net/if_inet6"); err == nil {
		for _, n := range pair {
			steps = append(steps, []string{"-n", n.name, "addr", "add", n.addr6 + "/64", "dev", "cable", "nodad"})
		}
	}
	for _, s := range steps {
		if err := ip(s...); err != nil {
			t.Fatal(err)
		}
	}
	return pair
}

// do calls f on a thread in the namespace. What f opens stays there, whoever uses it.
func (n *netns) do(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		done <- func() error {
			fd, err := syscall.Open(filepath.Join("/run/netns", n.name), syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer syscall.Close(fd)
			setns := map[string]uintptr{"amd64": 308, "arm64": 268}[runtime.GOARCH]
			if _, _, errno := syscall.RawSyscall(setns, uintptr(fd), syscall.CLONE_NEWNET, 0); errno != 0 {
				return fmt.Errorf("setns: %w", errno)
			}
			return f()
		}()
	}()
	return <-done
}

// dial opens a connection from inside of the namespace.
func (n *netns) dial(ctx context.Context, network, addr string) (c net.Conn, err error) {
	err = n.do(func() error { c, err = new(net.Dialer).DialContext(ctx, network, addr); return err })
	return c, err
}

// listen opens a listener in the namespace.
func (n *netns) listen(t testing.TB, addr string) (ln net.Listener) {
	t.Helper()
	if err := n.do(func() (err error) { ln, err = net.Listen("tcp", addr); return err }); err != nil {
		t.Fatal(err)
	}
	return ln
}

// client calls from inside of the namespace, through a proxy or none.
func (n *netns) client(t testing.TB, proxy string) *http.Client {
	tr := &http.Transport{DialContext: n.dial}
	if proxy != "" {
		u, err := url.Parse(proxy)
		if err != nil {
			t.Fatal(err)
		}
		tr.Proxy = http.ProxyURL(u)
	}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: patience}
}

// newHost starts a toy host on the loopback of the namespace, and its wopproxy, of
// which the ingress alone is reached over the cable.
func (n *netns) newHost(t testing.TB, hostID string, major int) *owHost {
	t.Helper()
	h := newToy(major)
	server := httptest.NewUnstartedServer(h)
	_ = server.Listener.Close()
	server.Listener = n.listen(t, "127.0.0.1:0")
	server.Start()
	t.Cleanup(server.Close)
	h.base = server.URL
	h.sidecar = &sidecar{hostID: hostID, public: "http://" + net.JoinHostPort(n.addr, "80"), file: filepath.Join(t.TempDir(), "wopproxy.yaml")}
	h.configure(t, settings{
		"host.id": hostID, "host.wellKnownUrl": h.public + "/.well-known/openwop",
		"ingress.listen": net.JoinHostPort(n.addr, "80"), "ingress.upstream": h.base, "ingress.discovery.causation": "claim",
		"egress.listen": "127.0.0.1:0", "admin.listen": "127.0.0.1:0",
		"ancestry.store.bolt.dir": filepath.Join(t.TempDir(), "store"), "ancestry.auth.mode": "host", "drain.delay": "0s",
	})
	h.process = n.run(t, "serve", "-config", h.file)
	p := h.process
	t.Cleanup(func() { h.end(t, p) })
	serving := h.awaitLog(t, "serving")
	h.ingress, h.egress, h.admin = h.public, fmt.Sprint("http://", serving["egress"]), fmt.Sprint("http://", serving["admin"])
	h.client = n.client(t, h.egress)
	return h
}

// run starts the program in the namespace.
func (n *netns) run(t testing.TB, args ...string) *process {
	t.Helper()
	env := append(cleanEnv(), "GORACE=atexit_sleep_ms=0")
	return spawn(t, env, "ip", append([]string{"netns", "exec", n.name, program}, args...)...)
}

// TestOpenWOPNamespaces has two hosts that share nothing but a cable: each host is
// alone with its wopproxy, and only the two proxies meet. Runs of either cause runs of
// the other, and a walk from the last finds them all.
func TestOpenWOPNamespaces(t *testing.T) {
	pair := newPair(t)
	for i, majors := range [][2]int{{1, 2}, {2, 1}} {
		t.Run(fmt.Sprintf("v%d and v%d", majors[0], majors[1]), func(t *testing.T) {
			here, there := pair[i], pair[1-i]
			planner := here.newHost(t, "planner.example.com", majors[0])
			worker := there.newHost(t, "worker.example.com", majors[1])
			if conn, err := net.Dial("tcp", strings.TrimPrefix(planner.base, "http://")); err == nil {
				conn.Close()
				t.Fatal("the planner is reached from outside of its namespace")
			}
			ask := func(n *netns, method, url, body string) (int, []byte) {
				t.Helper()
				req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
				if err != nil {
					t.Fatal(err)
				}
				req.Header.Set("Content-Type", "application/json")
				resp, err := n.client(t, "").Do(req)
				if err != nil {
					t.Fatal(err)
				}
				defer resp.Body.Close()
				answer, err := io.ReadAll(resp.Body)
				if err != nil {
					t.Fatal(err)
				}
				return resp.StatusCode, answer
			}
			plan, err := json.Marshal(owPlan{Label: "root", Wait: true, Calls: []owCall{
				{Via: "a2a", To: worker.at(), Plan: owPlan{Label: "middle", Calls: []owCall{{Via: "a2a", To: planner.at(), Plan: owPlan{Label: "leaf"}}}}},
				{Via: "mcp", To: worker.at(), Plan: owPlan{Label: "tool"}},
			}})
			if err != nil {
				t.Fatal(err)
			}
			code, body := ask(there, http.MethodPost, planner.public+planner.path("/runs"), `{"workflowId":"calls","inputs":`+string(plan)+`}`)
			if code != http.StatusCreated {
				t.Fatalf("create over the cable = %d %s", code, body)
			}
			root := planner.called("root")
			planner.open()
			if err := root.await(t); err != nil {
				t.Fatal(err)
			}
			code, body = ask(here, http.MethodGet, worker.public+worker.path("/runs/"+worker.segment(worker.called("middle").id)+"/ancestry"), "")
			if want := fmt.Sprintf(`"parent":{"runId":%q,"hostId":"planner.example.com","wellKnownUrl":"%s/.well-known/openwop","cause":"a2a-message"}`, root.id, planner.public); code != 200 || !strings.Contains(string(body), want) {
				t.Errorf("ancestry over the cable = %d %s, want %s", code, body, want)
			}
			if code, body = ask(there, http.MethodGet, worker.admin+"/ancestry/v1/runs/"+worker.called("tool").minted, ""); code != 200 || !strings.Contains(string(body), `"`+root.id+`"`) {
				t.Errorf("what is recorded of the tool call = %d %s, want %s for its parent", code, body, root.id)
			}
			p := here.run(t, "ancestry", planner.called("leaf").id, "-host", planner.public, "-allow", "10.77.0.0/24", "-json")
			if code := p.wait(t); code != 0 {
				t.Errorf("exit code of the walk = %d", code)
			}
			w := decode[owWalk](t, p.stdout.Bytes())
			var hosts []string
			for _, hop := range w.Hops {
				hosts = append(hosts, hop.HostID)
			}
			if got := strings.Join(hosts, " "); w.Stop != "root" || got != "planner.example.com worker.example.com planner.example.com" || w.Hops[len(w.Hops)-1].RunID != root.id {
				t.Errorf("walk = %+v, want it over both hosts to %s", w, root.id)
			}
		})
	}
}
