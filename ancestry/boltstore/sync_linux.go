package boltstore

import (
	"os"
	"syscall"
)

// syncData makes the content of f durable. Times of change need not be.
func syncData(f *os.File) error {
	for {
		if err := syscall.Fdatasync(int(f.Fd())); err != syscall.EINTR {
			return os.NewSyscallError("fdatasync", err)
		}
	}
}
