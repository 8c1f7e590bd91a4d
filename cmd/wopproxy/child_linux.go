package main

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"syscall"
)

// forwarded are the signals that a child gets in our place.
var forwarded = []os.Signal{
	syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGCONT,
}

// dieWithParent has the kernel kill the child when we die, however that comes.
func dieWithParent(cmd *exec.Cmd) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
}

// fromTerminal reports whether s is one that a terminal sends to all processes
// in its foreground, of which the child is one: to send it again would be a
// second Ctrl-C.
func fromTerminal(s os.Signal) bool {
	if s != syscall.SIGINT && s != syscall.SIGQUIT {
		return false
	}
	stat, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		return false
	}
	// Behind the name, which is in brackets and may hold anything: state, parent,
	// process group, session, terminal, and the terminal's foreground group.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	return len(fields) > 5 && fields[2] == fields[5]
}
