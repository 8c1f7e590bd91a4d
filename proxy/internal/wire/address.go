package wire

import "strings"

// AddressEdit says where callers shall find the host. URLs are compared and
// written as text, because an interface of gRPC is host:port, which is no URL.
type AddressEdit struct {
	// Own reports whether host:port is the agent itself, which callers are to
	// reach at Public instead. What is another's stays. The host may have a
	// port for gRPC alone.
	Own func(hostport string, grpc bool) bool
	// Base is the escaped path, without a slash at its end, below which the agent
	// is reachable at Public. What is above it stays.
	Base string
	// Public is scheme, host and path, without a slash at its end:
	// "https://agents.example.com/planner".
	Public string
	// PublicHost is the host:port of Public, with its port.
	PublicHost string
}

// rewrite returns where callers find what is at address, which is address itself
// if it is not the agent's own, or not below the base.
func (e *AddressEdit) rewrite(address string) string {
	scheme, rest, isURL := strings.Cut(address, "://")
	if !isURL { // gRPC
		if i := strings.LastIndexByte(address, ':'); i > 0 && isPort(address[i+1:]) && isHost(address[:i]) && e.Own(address, true) {
			return e.PublicHost
		}
		return address
	}
	port := ""
	switch {
	case strings.EqualFold(scheme, "http"):
		port = ":80"
	case strings.EqualFold(scheme, "https"):
		port = ":443"
	default:
		return address
	}
	host, path := rest, ""
	if i := strings.IndexAny(rest, `/?#\`); i >= 0 {
		host, path = rest[:i], rest[i:]
	}
	if i := strings.LastIndexByte(host, ':'); i >= 0 && isPort(host[i+1:]) {
		host, port = host[:i], host[i:]
	}
	if !isHost(host) || !e.Own(host+port, false) {
		return address
	}
	below, ok := strings.CutPrefix(path, e.Base)
	if !ok || e.Base != "" && !strings.HasPrefix(below, "/") {
		return address
	}
	return e.Public + below
}

// isPort reports whether s is a number as in host:port.
func isPort(s string) bool {
	return s != "" && len(s) <= 5 && strings.Trim(s, "0123456789") == ""
}

// isHost reports whether s is a name, an IPv4 address, or an IPv6 address in
// brackets, as far as its characters tell.
func isHost(s string) bool {
	if inside, ok := strings.CutPrefix(s, "["); ok {
		return strings.HasSuffix(inside, "]") && !strings.ContainsAny(inside[:len(inside)-1], "[]/@ ")
	}
	return s != "" && !strings.ContainsAny(s, `:/\?#@[]`+" \t\r\n")
}
