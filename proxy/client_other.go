//go:build !unix

package proxy

// canPeek says whether nothingToRead knows.
const canPeek = false

func nothingToRead(uintptr) bool { return false }
