//go:build !unix

package proxy

import "net"

// canPeek says whether nothingToRead knows.
const canPeek = false

func nothingToRead(uintptr) bool { return false }

// waits is not known here: at worst, what is left of an answer is lost.
func waits(net.Conn) bool { return true }
