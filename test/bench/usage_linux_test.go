package main

import (
	"bytes"
	"os"
	"syscall"
	"testing"
	"time"
)

// TestUsage compares what the kernel tells with work that takes known time.
func TestUsage(t *testing.T) {
	pids, err := family(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	before, err := cpu(pids)
	if err != nil {
		t.Skip(err)
	}
	var own, then syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &own)
	for began := time.Now(); time.Since(began) < 100*time.Millisecond; {
		_ = bytes.Repeat([]byte{1}, 1<<10)
	}
	after, err := cpu(pids)
	if err != nil {
		t.Fatal(err)
	}
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &then)
	spent := time.Duration(then.Utime.Nano() - own.Utime.Nano() + then.Stime.Nano() - own.Stime.Nano())
	if got := after.since(before); got < spent/2 || got > 2*spent+10*time.Millisecond {
		t.Errorf("used %v, and getrusage says %v", got, spent)
	}
	if n, err := resident(pids); err != nil || n < 1<<20 {
		t.Errorf("resident = %d, %v", n, err)
	}
}
