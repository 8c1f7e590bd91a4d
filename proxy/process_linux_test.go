package proxy

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/wopproxy/wopproxy/ancestry"
	"github.com/wopproxy/wopproxy/proxy/internal/attribution"
)

// Environment of the processes that tests start from their own program.
const (
	envRole   = "PROCESS_TEST_ROLE"
	envProxy  = "PROCESS_TEST_PROXY"
	envTarget = "PROCESS_TEST_TARGET"
	envTruth  = "PROCESS_TEST_TRUTH" // the run that the process works for
)

// TestProcessHelper is no test: it is what the processes of a host do.
func TestProcessHelper(t *testing.T) {
	var err error
	switch os.Getenv(envRole) {
	case "":
		t.Skip("what the processes of other tests run")
	case "call":
		err = callAs(os.Getenv(envTruth))
	case "spawn": // the process below has an environment of its own
		c := helper(t.Context(), "call", envProxy+"="+os.Getenv(envProxy), envTarget+"="+os.Getenv(envTarget), envTruth+"="+os.Getenv(envTruth))
		var out []byte
		if out, err = c.CombinedOutput(); err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
	case "listen":
		err = listenAndFork(t.Context())
	case "serve":
		err = serveInherited()
	}
	if err != nil {
		t.Fatal(err)
	}
}

// helper is a process of this program, with no environment but env.
func helper(ctx context.Context, role string, env ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestProcessHelper$")
	c.Env = append([]string{envRole + "=" + role}, env...)
	return c
}

// callAs makes two calls on one connection, and says in them whose they are.
func callAs(truth string) error {
	u, err := url.Parse(os.Getenv(envProxy))
	if err != nil {
		return err
	}
	c := &http.Client{Transport: &http.Transport{Proxy: http.ProxyURL(u)}}
	for range 2 {
		body := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","arguments":{"truth":"` + truth + `"}}}`
		resp, err := c.Post(os.Getenv(envTarget), "application/json", strings.NewReader(body))
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// listenAndFork is a server that gives each connection to a process of its own.
func listenAndFork(ctx context.Context) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		f, err := c.(*net.TCPConn).File()
		if err != nil {
			return err
		}
		child := helper(ctx, "serve", envProxy+"="+os.Getenv(envProxy), envTarget+"="+os.Getenv(envTarget))
		child.ExtraFiles = []*os.File{f}
		err = child.Start()
		f.Close()
		c.Close()
		if err != nil {
			return err
		}
		go func() { _ = child.Wait() }() // how it went shows in its answer
	}
}

// serveInherited answers the one request on the connection that it was given.
func serveInherited() error {
	f := os.NewFile(3, "connection")
	c, err := net.FileConn(f)
	f.Close()
	if err != nil {
		return err
	}
	defer c.Close()
	r, err := http.ReadRequest(bufio.NewReader(c))
	if err != nil {
		return err
	}
	if _, err = io.Copy(io.Discard, r.Body); err != nil {
		return err
	}
	answer := "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
	if err := callAs(r.Header.Get("Run-Id")); err != nil {
		answer = "HTTP/1.1 500 " + strings.ReplaceAll(err.Error(), "\n", " ") + "\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
	}
	_, err = io.WriteString(c, answer)
	return err
}

// callJudge counts the calls that arrive, and compares what they say with the truth
// that is in them.
type callJudge struct {
	t            *testing.T
	mu           sync.Mutex
	right, wrong int
	abstained    int
}

func (j *callJudge) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var m struct {
		Params struct {
			Arguments struct{ Truth ancestry.RunID }
		}
	}
	if err := json.NewDecoder(r.Body).Decode(&m); err != nil {
		j.t.Error(err)
	}
	named := parentIn(j.t, r.Header)
	j.mu.Lock()
	defer j.mu.Unlock()
	switch truth := m.Params.Arguments.Truth; named {
	case "":
		j.abstained++
	case truth:
		j.right++
	default:
		j.wrong++
		j.t.Errorf("call of %q names %s", truth, named)
	}
}

// counts returns what the calls so far have said.
func (j *callJudge) counts() (right, wrong, abstained int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.right, j.wrong, j.abstained
}

func perProcess(o *Options, p *Policy) {
	p.ProcessPerRun, p.ProcessScan = true, patience // a busy machine must not change what is found
	o.SingleFlight = false
}

// chatAtOnce begins n runs and waits for all of them.
func chatAtOnce(t *testing.T, s *sidecar, n int) {
	t.Helper()
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			if resp, body := post(t, http.DefaultClient, s.ingress.URL+"/chat", `{}`, nil); resp.StatusCode != http.StatusOK {
				t.Errorf("answer = %s %s", resp.Status, body)
			}
		})
	}
	all.Wait()
}

// TestProcessEnvironment has a host that starts a process for each run, many at
// once, and hands it the run in its environment.
func TestProcessEnvironment(t *testing.T) {
	traceOf := func(h http.Header) []string {
		return []string{"TRACEPARENT=" + h.Get("Traceparent"), "TRACESTATE=" + h.Get("Tracestate")}
	}
	for _, tt := range []struct {
		name, role string
		env        func(http.Header) []string
		found      bool
	}{
		{"run id", "call", func(h http.Header) []string { return []string{"RUN_ID=" + h.Get("Run-Id")} }, true},
		{"trace state", "call", traceOf, true},
		{"CGI", "call", func(h http.Header) []string { return []string{"HTTP_RUN_ID=" + h.Get("Run-Id")} }, true},
		{"CGI, trace state", "call", func(h http.Header) []string {
			return []string{"HTTP_TRACEPARENT=" + h.Get("Traceparent"), "HTTP_TRACESTATE=" + h.Get("Tracestate")}
		}, true},
		{"process below", "spawn", traceOf, true},
		{"nothing", "call", func(http.Header) []string { return nil }, false},
		{"run id of another program", "call", func(http.Header) []string { return []string{"RUN_ID=17"} }, false},
		{"state without its trace", "call", func(h http.Header) []string { return []string{"TRACESTATE=" + h.Get("Tracestate")} }, false},
		{"state in another trace", "call", func(h http.Header) []string {
			return []string{"TRACEPARENT=00-11111111111111111111111111111111-2222222222222222-01", "TRACESTATE=" + h.Get("Tracestate")}
		}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			const runs = 6
			j := &callJudge{t: t}
			target := peer(t, j.ServeHTTP)
			var s *sidecar
			started := make(chan struct{}) // closed when all runs are live
			var arrived sync.WaitGroup
			arrived.Add(runs)
			go func() { arrived.Wait(); close(started) }() // ends when all runs have begun
			host := peer(t, func(w http.ResponseWriter, r *http.Request) {
				arrived.Done()
				<-started
				c := helper(r.Context(), tt.role, append(tt.env(r.Header),
					envProxy+"="+s.egress.URL, envTarget+"=http://"+target+"/mcp", envTruth+"="+r.Header.Get("Run-Id"))...)
				if out, err := c.CombinedOutput(); err != nil {
					http.Error(w, fmt.Sprintf("%v: %s", err, out), http.StatusInternalServerError)
				}
			})
			s = newSidecar(t, "agent.example.com", "http://"+host, perProcess)
			chatAtOnce(t, s, runs)
			want := 0
			if tt.found {
				want = 2 * runs
			}
			if right, wrong, abstained := j.counts(); right != want || right+abstained != 2*runs {
				t.Errorf("right %d, wrong %d, abstained %d, want %d right of %d", right, wrong, abstained, want, 2*runs)
			}
			s.wantSeries(t, `wopproxy_attributions_total{evidence="process"}`, float64(want))
		})
	}
}

// TestProcessOfConnection has hosts that fork for each connection and tell
// their children nothing: who holds the connection with the run's request is
// the run's process.
func TestProcessOfConnection(t *testing.T) {
	const runs = 6
	for _, tt := range []struct {
		name  string
		start func(t *testing.T, proxy, target string) *exec.Cmd
	}{
		{"Go", func(t *testing.T, proxy, target string) *exec.Cmd {
			return helper(t.Context(), "listen", envProxy+"="+proxy, envTarget+"="+target)
		}},
		{"Python", func(t *testing.T, proxy, target string) *exec.Cmd {
			python, err := exec.LookPath("python3")
			if err != nil && os.Getenv("WOPPROXY_E2E") == "all" {
				t.Fatal("python3 is not installed")
			} else if err != nil {
				t.Skip("python3 is not installed")
			}
			return exec.CommandContext(t.Context(), python, filepath.Join("testdata", "forking_host.py"), proxy, target)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			j := &callJudge{t: t}
			target := peer(t, j.ServeHTTP)
			// The host needs the address of the egress, which needs that of the host.
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			c := tt.start(t, "http://"+l.Addr().String(), "http://"+target+"/mcp")
			out, err := c.StdoutPipe()
			if err == nil {
				c.Stderr = os.Stderr
				err = c.Start()
			}
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
			at, err := bufio.NewReader(out).ReadString('\n')
			if err != nil {
				t.Fatal(err)
			}
			s := newSidecar(t, "agent.example.com", "http://"+strings.TrimSpace(at), perProcess)
			front := &http.Server{Handler: s.Egress()}
			go func() { _ = front.Serve(l) }() // ends with Close
			t.Cleanup(func() { _ = front.Close() })
			chatAtOnce(t, s, runs)
			if right, wrong, abstained := j.counts(); right != 2*runs || abstained != 0 {
				t.Errorf("right %d, wrong %d, abstained %d, want all %d right", right, wrong, abstained, 2*runs)
			}
			s.handled.wait(t)
			s.processes.mu.Lock()
			defer s.processes.mu.Unlock()
			if n := len(s.processes.serving); n != 0 {
				t.Errorf("%d requests are in flight when all is over, want none", n)
			}
		})
	}
}

// TestProcessOfMany: a process that was there before the runs says nothing,
// whatever connections it holds: here it is the test itself.
func TestProcessOfMany(t *testing.T) {
	j := &callJudge{t: t}
	target := peer(t, j.ServeHTTP)
	h := holdUp(t)
	s := newSidecar(t, "agent.example.com", h.at, perProcess)
	h.start(t, newRequest(t, http.MethodPost, s.ingress.URL+"/chat", nil))
	for range 2 {
		post(t, s.client(), "http://"+target+"/mcp", call, nil)
		h.start(t, newRequest(t, http.MethodPost, s.ingress.URL+"/chat", nil))
	}
	h.end()
	if right, wrong, abstained := j.counts(); abstained != 2 {
		t.Errorf("right %d, wrong %d, abstained %d, want none named", right, wrong, abstained)
	}
}

// table is a process table that a test makes up.
type table struct {
	t *testing.T
	procfs
}

func newTable(t *testing.T) table { return table{t, procfs{t.TempDir()}} }

func (tab table) write(path, text string) {
	tab.t.Helper()
	path = filepath.Join(tab.root, path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		tab.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		tab.t.Fatal(err)
	}
}

// add makes a process that holds sockets.
func (tab table) add(pid, parent int, start uint64, env string, inodes ...uint64) {
	tab.t.Helper()
	dir := fmt.Sprint(pid)
	tab.write(dir+"/stat", fmt.Sprintf("%d (a) b) S %d 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 %d 0\n", pid, parent, start))
	tab.write(dir+"/environ", env)
	for i, inode := range inodes {
		fd := filepath.Join(tab.root, dir, "fd", fmt.Sprint(i+3))
		if err := os.MkdirAll(filepath.Dir(fd), 0o755); err != nil {
			tab.t.Fatal(err)
		}
		if err := os.Symlink(fmt.Sprintf("socket:[%d]", inode), fd); err != nil {
			tab.t.Fatal(err)
		}
	}
}

// sockets writes the table of connections: each to 127.0.0.1:port, from the port
// one above, on the far end's side the other way round.
func (tab table) sockets(inodes map[int]uint64) {
	text := "  sl  local_address rem_address   st\n"
	for port, inode := range inodes {
		text += fmt.Sprintf("   0: 0100007F:%04X 0100007F:%04X 01 00000000:00000000 00:00000000 00000000     0        0 %d 1\n", port+1, port, inode)
	}
	tab.write("net/tcp", text)
}

// TestProcessVerdicts shows who is named when several processes could be meant,
// and that nobody is when what was looked at has been replaced.
func TestProcessVerdicts(t *testing.T) {
	const callInode, aInode, bInode = 1, 2, 3
	// The call comes from port 9001 to 9000; the host's side of the requests of
	// runs a and b are connections from 7001 to 7000 and from 7003 to 7002.
	all := map[int]uint64{9000: callInode, 7000: aInode, 7002: bInode}
	for _, tt := range []struct {
		name string
		make func(tab table)
		want string
		why  attribution.Reason
	}{
		{"environment", func(tab table) { tab.add(50, 1, 900, "X=1\x00RUN_ID=a\x00", callInode) }, "a", ""},
		{"nearest environment", func(tab table) {
			tab.add(40, 1, 900, "RUN_ID=a")
			tab.add(50, 40, 901, "RUN_ID=b", callInode)
		}, "b", ""},
		{"environment above", func(tab table) {
			tab.add(40, 1, 900, "RUN_ID=a")
			tab.add(50, 40, 901, "", callInode)
		}, "a", ""},
		{"two hold the connection, of one run", func(tab table) {
			tab.add(40, 1, 900, "RUN_ID=a", callInode)
			tab.add(50, 40, 901, "", callInode)
		}, "a", ""},
		{"two hold the connection, of two runs", func(tab table) {
			tab.add(40, 1, 900, "RUN_ID=a", callInode)
			tab.add(50, 1, 901, "RUN_ID=b", callInode)
		}, "", attribution.ReasonSharedProcess},
		{"two hold the connection, one of no run", func(tab table) {
			tab.add(40, 1, 900, "", callInode)
			tab.add(50, 40, 901, "RUN_ID=b", callInode)
		}, "", attribution.ReasonSharedProcess},
		{"forked for a request", func(tab table) { tab.add(50, 1, 900, "", callInode, aInode) }, "a", ""},
		{"forked for a request, parent still holds it", func(tab table) {
			tab.add(40, 1, 10, "", aInode)
			tab.add(50, 40, 900, "", callInode, aInode)
		}, "a", ""},
		{"older than the request", func(tab table) { tab.add(50, 1, 10, "", callInode, aInode) }, "", ""},
		{"two requests", func(tab table) { tab.add(50, 1, 900, "", callInode, aInode, bInode) }, "", attribution.ReasonSharedProcess},
		{"another child holds the request too", func(tab table) {
			tab.add(40, 1, 10, "")
			tab.add(50, 40, 900, "", callInode, aInode)
			tab.add(51, 40, 901, "", aInode)
		}, "", attribution.ReasonSharedProcess},
		{"its own child holds the request too", func(tab table) {
			tab.add(50, 1, 900, "", callInode, aInode)
			tab.add(51, 50, 901, "", aInode)
		}, "a", ""},
		{"nobody holds the connection", func(tab table) { tab.add(50, 1, 900, "RUN_ID=a") }, "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tab := newTable(t)
			tab.sockets(all)
			tab.add(1, 0, 1, "")
			tt.make(tab)
			s := newSidecar(t, "agent.example.com", "http://127.0.0.1:1")
			s.processes.os = tab.procfs
			x := &exchange{p: s.Proxy, policy: s.policy.Load()}
			requests := map[int]*attribution.Run{7000: {First: "a"}, 7002: {First: "b"}}
			for port, run := range requests {
				s.runs.Start(run)
				at := pair{loopback(port + 1), loopback(port)}
				s.processes.serving[at] = &served{run: run, since: 800}
			}
			shot := tab.snapshot(time.Now().Add(patience))
			if shot == nil {
				t.Fatal("no snapshot")
			}
			got, why := x.ownerOf(shot, pair{loopback(9001), loopback(9000)})
			if string(got.id()) != tt.want || why != tt.why {
				t.Fatalf("ownerOf = %q, %q, want %q, %q", got.id(), why, tt.want, tt.why)
			}
			if tt.want == "" {
				return
			}
			if id, ok := s.processes.still(got); string(id) != tt.want || !ok {
				t.Errorf("still = %q, %v, want %q", id, ok, tt.want)
			}
			if got.served != nil {
				got.served.over.Store(true)
				if id, ok := s.processes.still(got); ok {
					t.Errorf("still, when the request is answered = %q, want nothing", id)
				}
				got.served.over.Store(false)
			}
			dir := fmt.Sprint(got.holder.pid)
			tab.write(dir+"/stat", fmt.Sprintf("%s (c) S 1 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 5000 0\n", dir))
			if id, ok := s.processes.still(got); ok {
				t.Errorf("still, with another process of the same id = %q, want nothing", id)
			}
			if err := os.RemoveAll(filepath.Join(tab.root, dir)); err != nil {
				t.Fatal(err)
			}
			if late, why := x.ownerOf(shot, pair{loopback(9001), loopback(9000)}); late.id() != "" {
				t.Errorf("ownerOf a process that has ended = %q, %q, want nothing", late.id(), why)
			}
		})
	}
}

// TestProcessScanIsBounded: a table that takes too long is given up, and the
// call goes out without a run.
func TestProcessScanIsBounded(t *testing.T) {
	last := make(chan seen, 1)
	to := target(t, last)
	host := peer(t, func(http.ResponseWriter, *http.Request) {})
	s := newSidecar(t, "agent.example.com", "http://"+host, perProcess, func(_ *Options, p *Policy) { p.ProcessScan = time.Nanosecond })
	if got := s.named(t, to, last, nil); got != "" {
		t.Errorf("call = %s, want none", got)
	}
	s.wantSeries(t, hit(limitScan), 1)
}

func loopback(port int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(port))
}

// BenchmarkProcessSnapshot is what the first call on a connection costs, where
// attribution.processPerRun is on; it depends on how many processes there are.
func BenchmarkProcessSnapshot(b *testing.B) {
	p := newProcesses()
	for b.Loop() {
		if p.fresh(patience) == nil {
			b.Fatal("no snapshot")
		}
	}
}
