package main

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/wopproxy/wopproxy/test/internal/program"
)

// patience bounds every wait for a process or a peer.
const patience = 2 * time.Minute

// host is an agent that the stage is set with.
type host struct {
	name string
	find func(ctx context.Context, dir string) (argv []string, missing string)
}

// hosts are the agents of this command. Their scripts are written to a folder
// when it starts.
var hosts = []host{
	{"Go", func(context.Context, string) ([]string, string) {
		self, err := os.Executable()
		if err != nil {
			return nil, "Go: " + err.Error()
		}
		return []string{self, "host"}, ""
	}},
	{"Node", func(ctx context.Context, dir string) ([]string, string) {
		node, missing := firstOf(ctx, "-p", "process.execPath", "node")
		if missing != "" {
			return nil, "Node: " + missing
		}
		return []string{node, filepath.Join(dir, "host.mjs")}, ""
	}},
	{"Python asyncio", func(ctx context.Context, dir string) ([]string, string) {
		python, missing := firstOf(ctx, "-c", "import aiohttp, sys; print(sys.executable)", "python3", "/usr/bin/python3")
		if missing != "" {
			return nil, "Python asyncio: no python3 with aiohttp: " + missing
		}
		return []string{python, filepath.Join(dir, "host_async.py")}, ""
	}},
	{"Python threads", func(ctx context.Context, dir string) ([]string, string) {
		python, missing := firstOf(ctx, "-c", "import sys; print(sys.executable)", "python3", "/usr/bin/python3")
		if missing != "" {
			return nil, "Python threads: " + missing
		}
		return []string{python, filepath.Join(dir, "host_threads.py")}, ""
	}},
}

//go:embed hosts
var scripts embed.FS

// found is a host that can be started.
type found struct {
	name string
	argv []string
}

// findHosts writes the scripts to dir and looks for what runs them.
func findHosts(ctx context.Context, hosts []host, dir string) (there []found, missing []string, err error) {
	files, err := fs.Sub(scripts, "hosts")
	if err == nil {
		err = os.CopyFS(filepath.Join(dir, "hosts"), files)
	}
	if err != nil {
		return nil, nil, err
	}
	for _, h := range hosts {
		argv, why := h.find(ctx, filepath.Join(dir, "hosts"))
		if why != "" {
			missing = append(missing, why)
			continue
		}
		there = append(there, found{h.name, argv})
	}
	return there, missing, nil
}

// firstOf asks programs for their path until one gives it: what is on PATH may
// be a script that looks for the real one each time.
func firstOf(ctx context.Context, flag, question string, programs ...string) (path, missing string) {
	for _, p := range programs {
		out, err := exec.CommandContext(ctx, p, flag, question).Output()
		if err == nil {
			return strings.TrimSpace(string(out)), ""
		}
		missing = fmt.Sprintf("%s: %v", p, err)
	}
	return "", missing
}

// stage is one host beside its wopproxy, in one mode.
type stage struct {
	program, dir string
	mode         mode
	host         found
	quick        bool
	chance       *rand.Rand
	patience     time.Duration // with the store
	crowd        *sync.Mutex   // of all stages

	ingress, admin string // base URLs
	book           *book
	tools          *httptest.Server

	tallies map[int]tally // by the number of runs at once
	err     error
}

// newStages returns a stage for each host that knows the mode.
func newStages(dir string, m mode, there []found, o options, crowd *sync.Mutex) (stages []*stage) {
	for i, h := range there {
		if slices.Contains(m.without, h.name) {
			continue
		}
		stages = append(stages, &stage{
			program: o.program, dir: filepath.Join(dir, fmt.Sprint(i)), mode: m, host: h, quick: o.quick,
			chance: rand.New(rand.NewPCG(o.seed, uint64(i))), tallies: map[int]tally{},
			patience: patience, crowd: crowd,
		})
	}
	return stages
}

func (s *stage) hostID() string {
	return strings.ReplaceAll(strings.ToLower(s.host.name), " ", "-") + ".example.com/agent"
}

// play starts the host and its wopproxy, measures each column, and stops both.
// Its error names the stage.
func (s *stage) play(ctx context.Context, columns []int) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s, %s: %w", s.mode.name, s.host.name, err)
		}
	}()
	s.book = newBook()
	s.tools = httptest.NewServer(s.book)
	defer s.tools.Close()
	stop, err := s.start(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, at := range columns {
		t, err := s.turn(ctx, at)
		s.tallies[at] = t
		if err != nil {
			errs = append(errs, fmt.Errorf("%d at once: %w", at, err))
		}
	}
	return errors.Join(append(errs, stop())...)
}

// crowded is how many runs at once are enough work for a machine.
const crowded = 16

// turn measures a column, alone if it is crowded.
func (s *stage) turn(ctx context.Context, at int) (tally, error) {
	if at >= crowded {
		s.crowd.Lock()
		defer s.crowd.Unlock()
	}
	return s.column(ctx, at)
}

// start sets the stage: wopproxy exec, which starts the host. The function that
// it returns clears it, and reports what did not end as it should.
func (s *stage) start(ctx context.Context) (stop func() error, err error) {
	port, err := program.FreePort()
	if err != nil {
		return nil, err
	}
	file, err := s.configure(port)
	if err != nil {
		return nil, err
	}
	args := append([]string{"exec", "-config", file, fmt.Sprintf("-carry=%v", s.mode.carry), "--"}, s.host.argv...)
	both, err := program.Start(ctx, append(program.CleanEnv(),
		"PORT="+port, "TOOLS="+s.tools.URL+"/mcp", "COOPERATION="+s.mode.cooperation, "SECRET="+secret,
	), s.program, args...)
	if err != nil {
		return nil, err
	}
	// The host is started when wopproxy serves.
	at, err := both.Serving()
	if err == nil {
		err = both.Await(func(line string) bool { return line == "ready" })
	}
	if err != nil {
		return nil, errors.Join(err, both.Stop())
	}
	s.ingress, s.admin = "http://"+at.Ingress, "http://"+at.Admin
	return both.Stop, nil
}

// secret is the password of proxy credentials.
const secret = "of-this-stage-alone"

// configure writes a wopproxy.yaml with nothing in it but addresses and what
// the mode needs: all else is as it is by default.
func (s *stage) configure(port string) (file string, err error) {
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return "", err
	}
	if err := os.WriteFile(filepath.Join(s.dir, "secret"), []byte(secret), 0o600); err != nil {
		return "", err
	}
	file = filepath.Join(s.dir, "wopproxy.yaml")
	return file, os.WriteFile(file, fmt.Appendf(nil, `
host: { id: %s, wellKnownUrl: "http://127.0.0.1/.well-known/openwop" }
ingress: { listen: "127.0.0.1:0", upstream: "http://127.0.0.1:%s" }
egress: { listen: "127.0.0.1:0", credentials: { secret: { file: %q } } }
admin: { listen: "127.0.0.1:0" }
ancestry: { store: { bolt: { dir: %q } }, auth: { mode: none } }
drain: { timeout: 5s }
%s
`, s.hostID(), port, filepath.Join(s.dir, "secret"), filepath.Join(s.dir, "store"), s.mode.settings), 0o600)
}

// client asks directly, and holds as many connections as there are runs.
var client = &http.Client{Timeout: patience, Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
