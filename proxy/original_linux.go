package proxy

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"syscall"
)

// soOriginalDst asks netfilter where a connection was to go; the same number for
// both versions of IP.
const soOriginalDst = 80

// originalDst returns where a redirected connection was to go before it was. It is
// an error if nobody has redirected it.
func originalDst(c net.Conn) (dst netip.AddrPort, err error) {
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return dst, errNotRedirected
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return dst, err
	}
	local := addrPort(tcp.LocalAddr())
	var asked error
	err = raw.Control(func(fd uintptr) {
		if local.Addr().Is4() {
			dst, asked = originalDst4(int(fd))
		} else {
			dst, asked = originalDst6(int(fd))
		}
	})
	if err = errors.Join(err, asked); err == nil && dst == local {
		err = errNotRedirected
	}
	return dst, err
}

// originalDst4 reads a sockaddr_in, as the first bytes of what has room for it:
// family, port, address.
func originalDst4(fd int) (netip.AddrPort, error) {
	m, err := syscall.GetsockoptIPv6Mreq(fd, syscall.IPPROTO_IP, soOriginalDst)
	if err != nil {
		return netip.AddrPort{}, err
	}
	b := m.Multiaddr
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), binary.BigEndian.Uint16(b[2:])), nil
}

// originalDst6 reads a sockaddr_in6, as the first part of what has room for it.
func originalDst6(fd int) (netip.AddrPort, error) {
	m, err := syscall.GetsockoptIPv6MTUInfo(fd, syscall.IPPROTO_IPV6, soOriginalDst)
	if err != nil {
		return netip.AddrPort{}, err
	}
	port := binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, m.Addr.Port))
	return netip.AddrPortFrom(netip.AddrFrom16(m.Addr.Addr), port), nil
}
