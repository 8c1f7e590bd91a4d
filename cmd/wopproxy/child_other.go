//go:build !linux

package main

import (
	"os"
	"os/exec"
	"syscall"
)

// forwarded are the signals that a child gets in our place.
var forwarded = []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT}

// dieWithParent does nothing: only Linux ends a child with its parent. A child
// that reads from us still sees the end of its input.
func dieWithParent(*exec.Cmd) {}

// fromTerminal can't be told here: a child may see two of one Ctrl-C.
func fromTerminal(os.Signal) bool { return false }
