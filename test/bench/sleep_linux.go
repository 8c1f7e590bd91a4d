package main

import (
	"syscall"
	"time"
)

// sleepUntil waits in the kernel: the timers of the runtime are late by up to a
// millisecond where there is nothing else to do.
func sleepUntil(t time.Time) {
	for d := time.Until(t); d > 0; d = time.Until(t) {
		ts := syscall.NsecToTimespec(d.Nanoseconds())
		_ = syscall.Nanosleep(&ts, nil) // interrupted: it is looked at again
	}
}
