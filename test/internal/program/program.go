// Package program builds, starts and stops the programs that the commands below
// test measure, and prints what they have measured.
package program

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// patience bounds every wait for a process.
const patience = 2 * time.Minute

// Build makes wopproxy, small as in the image.
func Build(ctx context.Context, path string, stderr io.Writer) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-trimpath", "-tags", "grpcnotrace", "-ldflags", "-s -w", "-o", path, "github.com/wopproxy/wopproxy/cmd/wopproxy")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	cmd.Stdout, cmd.Stderr = stderr, stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("build wopproxy: %w", err)
	}
	return nil
}

// FreePort returns a port that nobody listens on.
func FreePort() (string, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	_, port, err := net.SplitHostPort(ln.Addr().String())
	return port, errors.Join(err, ln.Close())
}

// CleanEnv is the environment without what the machine says about proxies,
// telemetry and runs, which would change what is measured.
func CleanEnv() (env []string) {
	for _, kv := range os.Environ() {
		name, _, _ := strings.Cut(kv, "=")
		if !foreign.MatchString(name) {
			env = append(env, kv)
		}
	}
	return env
}

var foreign = regexp.MustCompile(`(?i)^(OTEL_.*|.*_PROXY|WOPPROXY_.*|RUN_ID|TRACEPARENT|TRACESTATE|PORT|NODE_OPTIONS|PYTHONPATH)$`)

// Process is a program that has been started.
type Process struct {
	name string
	cmd  *exec.Cmd

	mu    sync.Mutex
	lines []string      // what it has written last, on stdout and stderr
	more  chan struct{} // closed with the next line
	gone  chan struct{} // closed when it has closed its outputs
}

// Start starts a program. It is asked to end when ctx does.
func Start(ctx context.Context, env []string, name string, args ...string) (*Process, error) {
	p := &Process{name: filepath.Base(name), more: make(chan struct{}), gone: make(chan struct{})}
	p.cmd = exec.CommandContext(ctx, name, args...)
	p.cmd.Env = env
	p.cmd.Cancel = func() error { return p.cmd.Process.Signal(syscall.SIGTERM) }
	p.cmd.WaitDelay = patience
	read, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	p.cmd.Stdout, p.cmd.Stderr = write, write
	err = errors.Join(p.cmd.Start(), write.Close())
	if err != nil {
		return nil, errors.Join(err, read.Close())
	}
	go p.follow(read) // ends with the process and those it has started
	return p, nil
}

// maxLines of what a process writes are kept.
const maxLines = 50

func (p *Process) follow(r io.ReadCloser) {
	defer close(p.gone)
	defer r.Close()
	for lines := bufio.NewScanner(r); lines.Scan(); {
		p.mu.Lock()
		p.lines = append(p.lines, lines.Text())
		p.lines = p.lines[max(0, len(p.lines)-maxLines):]
		close(p.more)
		p.more = make(chan struct{})
		p.mu.Unlock()
	}
}

// PID is the process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Signal tells the process something.
func (p *Process) Signal(sig os.Signal) error { return p.cmd.Process.Signal(sig) }

// Await waits for a line, which may be there already. It fails if the process
// ends before it writes it, or does not within two minutes.
func (p *Process) Await(line func(string) bool) error {
	timeout := time.After(patience)
	for {
		p.mu.Lock()
		there, more := slices.ContainsFunc(p.lines, line), p.more
		p.mu.Unlock()
		if there {
			return nil
		}
		select {
		case <-more:
		case <-p.gone:
			return p.Failed("ended before it was ready")
		case <-timeout:
			return p.Failed(fmt.Sprintf("was not ready after %v", patience))
		}
	}
}

// Gone reports whether the process has ended.
func (p *Process) Gone() bool {
	select {
	case <-p.gone:
		return true
	default:
		return false
	}
}

// Stop asks the process to end, and reports how it did unless that was well.
func (p *Process) Stop() error {
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // unless it has ended
	kill := time.AfterFunc(patience, func() { _ = p.cmd.Process.Kill() })
	err := p.cmd.Wait()
	kill.Stop()
	<-p.gone
	if err != nil {
		return p.Failed(err.Error())
	}
	return nil
}

// Kill ends the process as a kernel out of memory does, and returns when it is
// gone. It may have ended before.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait() // killed
	<-p.gone
}

// Failed is an error with what the process wrote last.
func (p *Process) Failed(how string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return fmt.Errorf("%s %s:\n\t%s", p.name, how, strings.Join(p.lines, "\n\t"))
}
