//go:build unix

package proxy

import "syscall"

// canPeek says whether nothingToRead knows.
const canPeek = true

// nothingToRead reports whether a connection that does not block is open and has
// nothing to read. If it has, a byte of it is lost.
func nothingToRead(fd uintptr) bool {
	var b [1]byte
	_, err := syscall.Read(int(fd), b[:])
	return err == syscall.EAGAIN
}
