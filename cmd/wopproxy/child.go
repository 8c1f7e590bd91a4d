package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"
	"time"
)

// exitError ends the program with a code of its own. Without an error nothing is
// said: a child has said for itself what went wrong.
type exitError struct {
	code int
	err  error
}

func (e exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit status %d", e.code)
	}
	return e.err.Error()
}

func (e exitError) Unwrap() error { return e.err }

// Exit codes of a COMMAND that could not be started, as shells have them.
const (
	exitNotExecutable = 126
	exitNotFound      = 127
	exitSignal        = 128 // and the signal's number: what ended the child
)

// child is a COMMAND that the program runs and stands in for: whoever signals
// the program means the child, and the child's exit status is the program's.
type child struct {
	cmd     *exec.Cmd
	signals chan os.Signal
	done    chan struct{} // closed when the child has ended and was waited for
	err     error         // of Wait; valid once done is closed
}

// startChild starts cmd, which must not be started otherwise. Give it files as
// standard streams, or their copying delays the end. From now on the signals
// that end a program go to the child; wait must be called. Where the system can
// (Linux), the child is killed when this process dies before it.
//
// A COMMAND that can't be started is an exitError: 127 if it is not found, else
// 126.
func startChild(cmd *exec.Cmd) (*child, error) {
	c := &child{cmd: cmd, signals: make(chan os.Signal, 16), done: make(chan struct{})}
	dieWithParent(cmd)
	signal.Notify(c.signals, forwarded...) // before there is a child, so that none is missed
	started := make(chan error)
	go func() {
		// The system takes the thread that started the child for its parent.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			c.err = cmd.Wait()
			close(c.done)
		}
	}()
	if err := <-started; err != nil {
		signal.Stop(c.signals)
		code := exitNotExecutable
		if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
			code = exitNotFound
		}
		return nil, exitError{code, fmt.Errorf("COMMAND can't be started: %w", err)}
	}
	return c, nil
}

// unheardAfter is how much later than the end of its context wait may see the
// signal that ended it.
const unheardAfter = 100 * time.Millisecond

// wait forwards signals until the child has ended, and returns how: nil for
// exit status 0, else an exitError with the child's own status, or 128 and the
// number of the signal that killed it. When ctx ends, the child is sent SIGTERM.
// A child that is still there grace after a SIGTERM is killed; grace 0 lets it
// take its time.
func (c *child) wait(ctx context.Context, grace time.Duration) error {
	defer signal.Stop(c.signals)
	ended := ctx.Done()
	var overdue, unheard <-chan time.Time
	heard := false
	send := func(s os.Signal) {
		_ = c.cmd.Process.Signal(s) // fails only if the child has just ended
		if s == syscall.SIGTERM && grace > 0 && overdue == nil {
			overdue = time.After(grace)
		}
	}
	for {
		select {
		case <-c.done:
			return c.status()
		case s := <-c.signals:
			heard, unheard = true, nil
			if !fromTerminal(s) {
				send(s)
			}
		case <-ended:
			ended = nil
			// A signal that ends ctx comes to us by itself, and gives ctx a cause;
			// unless it came before there was a child.
			switch {
			case context.Cause(ctx).Error() == ctx.Err().Error():
				send(syscall.SIGTERM)
			case !heard:
				unheard = time.After(unheardAfter)
			}
		case <-unheard:
			send(syscall.SIGTERM)
		case <-overdue:
			_ = c.cmd.Process.Kill()
		}
	}
}

// status turns the end of the child into ours.
func (c *child) status() error {
	var exit *exec.ExitError
	switch {
	case c.err == nil:
		return nil
	case !errors.As(c.err, &exit):
		return fmt.Errorf("wait for COMMAND: %w", c.err)
	}
	if s, ok := exit.Sys().(syscall.WaitStatus); ok && s.Signaled() {
		return exitError{code: exitSignal + int(s.Signal())}
	}
	return exitError{code: exit.ExitCode()}
}
