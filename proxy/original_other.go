//go:build !linux

package proxy

import (
	"net"
	"net/netip"
)

// originalDst knows of no connection where it was to go: only Linux tells.
func originalDst(net.Conn) (netip.AddrPort, error) { return netip.AddrPort{}, errNotRedirected }
