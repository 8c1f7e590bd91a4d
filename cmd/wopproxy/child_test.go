//go:build unix

package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// roleVariable makes this test binary play a part in a test of processes.
const roleVariable = "WOPPROXY_TEST_ROLE"

func TestMain(m *testing.M) {
	if role, ok := os.LookupEnv(roleVariable); ok {
		os.Exit(play(role, os.Args[1:]))
	}
	os.Exit(m.Run())
}

// play is the child of a test, or a program that stands in for one.
func play(role string, args []string) int {
	switch role {
	case "exit":
		code, _ := strconv.Atoi(args[0])
		return code
	case "stand-in": // for a child that plays args[0]
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		context.AfterFunc(ctx, stop)
		c, err := startChild(actor(args[0], args[1:]...))
		if err == nil {
			err = c.wait(ctx, 100*time.Millisecond)
		}
		return exitCode(err, "stand-in", os.Stderr)
	case "listen": // for signals; SIGUSR2 ends it
		signals := make(chan os.Signal, 16)
		signal.Notify(signals)
		fmt.Println("ready", os.Getpid())
		for s := range signals {
			if s == syscall.SIGURG { // Go's own
				continue
			}
			fmt.Println(s)
			if s == syscall.SIGUSR2 {
				return 3
			}
		}
	case "sleep":
		time.Sleep(time.Minute)
	case "mortal":
		fmt.Println("ready", os.Getpid())
		_, _ = io.Copy(io.Discard, os.Stdin)
	}
	return 0
}

// actor is this test binary in a role, with our own standard streams.
func actor(role string, args ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), roleVariable+"="+role)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	return cmd
}

// stage is a stand-in whose child is ready.
type stage struct {
	*exec.Cmd
	child *os.Process
	lines *bufio.Scanner
}

func startStage(t *testing.T, role string) *stage {
	t.Helper()
	cmd := actor("stand-in", role)
	cmd.Stdin, cmd.Stdout = nil, nil
	in, err := cmd.StdinPipe() // stays open until the end of the test
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.Close() })
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	s := &stage{Cmd: cmd, lines: bufio.NewScanner(out)}
	pid, err := strconv.Atoi(strings.TrimPrefix(s.line(), "ready "))
	if err != nil {
		t.Fatal(err)
	}
	if s.child, err = os.FindProcess(pid); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.child.Kill() })
	return s
}

// line is the next one that the child prints; empty at the end.
func (s *stage) line() string {
	s.lines.Scan()
	return s.lines.Text()
}

// end waits for the stand-in and returns its exit status.
func (s *stage) end(t *testing.T) int {
	t.Helper()
	var exit *exec.ExitError
	if err := s.Wait(); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return s.ProcessState.ExitCode()
}

func TestChildExitStatus(t *testing.T) {
	for _, code := range []int{0, 1, 2, 77} {
		var stderr bytes.Buffer
		cmd := actor("stand-in", "exit", strconv.Itoa(code))
		cmd.Stderr = &stderr
		_ = cmd.Run()
		if got := cmd.ProcessState.ExitCode(); got != code || stderr.Len() > 0 {
			t.Errorf("child exits %d: we exit %d and say %q", code, got, &stderr)
		}
	}
}

// TestChildSignals: signals reach the child once each, in order, and do nothing
// else to the program that stands in for it.
func TestChildSignals(t *testing.T) {
	s := startStage(t, "listen")
	for _, sig := range []os.Signal{syscall.SIGHUP, syscall.SIGUSR1, os.Interrupt, syscall.SIGUSR2} {
		if !slices.Contains(forwarded, sig) {
			t.Skipf("%v is not forwarded on this system", sig)
		}
		if err := s.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		if got := s.line(); got != sig.String() {
			t.Errorf("%v came as %q", sig, got)
		}
	}
	if rest := s.line(); rest != "" {
		t.Errorf("the child saw %q, too", rest)
	}
	if code := s.end(t); code != 3 {
		t.Errorf("exit status %d, want the child's 3", code)
	}
}

// TestChildEscalation: a child that SIGTERM does not end is killed, and the exit
// status says so.
func TestChildEscalation(t *testing.T) {
	s := startStage(t, "listen")
	_ = s.Process.Signal(syscall.SIGTERM)
	if got := s.line(); got != syscall.SIGTERM.String() {
		t.Errorf("the child saw %q first, want SIGTERM", got)
	}
	if rest := s.line(); rest != "" {
		t.Errorf("the child saw %q, too", rest)
	}
	if code := s.end(t); code != exitSignal+int(syscall.SIGKILL) {
		t.Errorf("exit status %d, want 137", code)
	}
}

func TestChildKilled(t *testing.T) {
	s := startStage(t, "mortal")
	_ = s.child.Signal(syscall.SIGTERM)
	if code := s.end(t); code != exitSignal+int(syscall.SIGTERM) {
		t.Errorf("exit status %d, want 143", code)
	}
}

// TestChildDiesWithUs: not even kill -9 leaves the child behind. Its end closes
// the output that it shares with nobody who lives.
func TestChildDiesWithUs(t *testing.T) {
	c := exec.Command("true")
	if dieWithParent(c); c.SysProcAttr == nil {
		t.Skip("only Linux ends a child with its parent")
	}
	s := startStage(t, "listen")
	_ = s.Process.Kill()
	if rest := s.line(); rest != "" {
		t.Errorf("the child saw %q, want nothing but its end", rest)
	}
	s.end(t)
}

// TestChildContext: the end of a context that no signal has ended is a SIGTERM.
func TestChildContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cmd := actor("mortal")
	in, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	cmd.Stdin, cmd.Stdout = r, in
	c, err := startChild(cmd)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	cancel()
	var exit exitError
	if err := c.wait(ctx, 0); !errors.As(err, &exit) || exit.code != exitSignal+int(syscall.SIGTERM) {
		t.Errorf("wait = %v, want exit status 143", err)
	}
}

func TestChildThatCannotStart(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "text")
	if err := os.WriteFile(file, []byte("no program"), 0o600); err != nil {
		t.Fatal(err)
	}
	for command, code := range map[string]int{
		"no-such-command-here":        exitNotFound,
		filepath.Join(dir, "missing"): exitNotFound,
		file:                          exitNotExecutable,
		dir:                           exitNotExecutable,
	} {
		_, err := startChild(exec.Command(command))
		var stderr bytes.Buffer
		if got := exitCode(err, "exec", &stderr); got != code || !strings.Contains(stderr.String(), command) {
			t.Errorf("%s: exit status %d and %q, want %d and its name", command, got, &stderr, code)
		}
	}
}

func TestParseCommand(t *testing.T) {
	tests := []struct {
		args    []string
		file    string
		command []string
	}{
		{[]string{"-config", "f", "--", "cmd", "-config", "g"}, "f", []string{"cmd", "-config", "g"}},
		{[]string{"--config=f", "cmd", "--", "x"}, "f", []string{"cmd", "--", "x"}},
		{[]string{"--", "-odd"}, "", []string{"-odd"}},
		{[]string{"-config", "f"}, "f", nil},
		{[]string{"-config", "f", "--"}, "f", nil},
		{[]string{"--", ""}, "", nil},
		{[]string{"-unknown", "--", "cmd"}, "", nil},
		{nil, "", nil},
	}
	for _, tt := range tests {
		f := newFlags("exec", "exec\n", io.Discard)
		file := f.String("config", "", "")
		command, err := parseCommand(f, tt.args)
		if !slices.Equal(command, tt.command) || *file != tt.file || (tt.command == nil) != errors.Is(err, errUsage) {
			t.Errorf("parseCommand(%q) = %q, %v with config %q; want %q with %q", tt.args, command, err, *file, tt.command, tt.file)
		}
	}
}

// TestChildMissedSignal has a signal come before there is a child to send it to.
func TestChildMissedSignal(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("terminated signal received"))
	cmd := actor("sleep")
	c, err := startChild(cmd)
	if err != nil {
		t.Fatal(err)
	}
	var exit exitError
	if err := c.wait(ctx, time.Minute); !errors.As(err, &exit) || exit.code != exitSignal+int(syscall.SIGTERM) {
		t.Errorf("wait = %v, want the end by SIGTERM", err)
	}
}
