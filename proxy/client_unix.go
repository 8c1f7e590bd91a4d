//go:build unix

package proxy

import (
	"net"
	"syscall"
)

// canPeek says whether nothingToRead knows.
const canPeek = true

// nothingToRead reports whether a connection that does not block is open and has
// nothing to read. If it has, a byte of it is lost.
func nothingToRead(fd uintptr) bool {
	var b [1]byte
	_, err := syscall.Read(int(fd), b[:])
	return err == syscall.EAGAIN
}

// waits reports whether to read from c would wait for the other side.
func waits(c net.Conn) bool {
	s, ok := beneath(c).(syscall.Conn)
	if !ok {
		return true
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return false // closed
	}
	err = raw.Control(func(fd uintptr) {
		var b [1]byte
		_, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK) // which does not block
		ok = err == syscall.EAGAIN
	})
	return ok && err == nil
}
