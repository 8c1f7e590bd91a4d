package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/wopproxy/wopproxy/test/internal/program"
)

// footprint is what the program takes that has opened a store and idles.
type footprint struct {
	ready       time.Duration // from its start until it serves
	own, mapped int64         // resident bytes: of files of the store, and all others
}

// footprint starts the program with the store in dir.
func (b *storeBench) footprint(ctx context.Context, dir string) (f footprint, err error) {
	file := filepath.Join(b.dir, "wopproxy.yaml")
	if err := os.WriteFile(file, fmt.Appendf(nil, `
host: { id: bench.example.com/agent, wellKnownUrl: "http://127.0.0.1/.well-known/openwop" }
ingress: { listen: "127.0.0.1:0", upstream: "http://127.0.0.1:9" }
egress: { listen: "127.0.0.1:0" }
admin: { listen: "127.0.0.1:0" }
ancestry: { store: { bolt: { dir: %q } }, auth: { mode: none } }
drain: { delay: 0s, timeout: 5s }
`, dir), 0o600); err != nil {
		return f, err
	}
	start := time.Now()
	p, err := program.Start(ctx, program.CleanEnv(), b.program, "serve", "-config", file)
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, p.Stop()) }()
	var at struct{ Msg string }
	if err := p.Await(func(line string) bool { return json.Unmarshal([]byte(line), &at) == nil && at.Msg == "serving" }); err != nil {
		return f, err
	}
	f.ready = time.Since(start)
	time.Sleep(time.Second) // it idles
	f.own, f.mapped, err = residentOf(p.PID(), dir)
	return f, err
}

// residentOf is the memory of a process, in bytes: pages of files below dir, and
// what else it has.
func residentOf(pid int, dir string) (own, mapped int64, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps", pid))
	if err != nil {
		return 0, 0, err
	}
	into := &own
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		switch {
		case !strings.HasSuffix(fields[0], ":"): // the head of a mapping: addresses ... file
			into = &own
			if strings.Contains(line, dir+string(filepath.Separator)) {
				into = &mapped
			}
		case fields[0] == "Rss:":
			n, err := strconv.ParseInt(fields[1], 10, 64)
			if err != nil {
				return 0, 0, err
			}
			*into += n << 10
		}
	}
	return own, mapped, nil
}
