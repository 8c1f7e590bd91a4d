package config

import (
	"fmt"
	"net/netip"
	"net/url"
	"strings"
)

// What patterns of destinations, origins and requests look like.
const (
	hostPattern   = `^(\*|(\*\.)?[A-Za-z0-9_]([A-Za-z0-9._-]*[A-Za-z0-9_])?|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?$`
	originPattern = `^[A-Za-z][A-Za-z0-9+.-]*://[A-Za-z0-9._:\[\]-]+$`
	routePattern  = `^[A-Z]+ /[^?#\s]*$`
)

// HostPattern names destinations: "example.com" that host, "*.example.com"
// every host below it at any depth but not itself, "*" every host; IPv6
// addresses in brackets. ":8443" behind it means that port only, otherwise any
// port is meant. Case does not count.
type HostPattern struct {
	host string     // lower case; "" for every host, ".example.com" for those below
	addr netip.Addr // instead of host: an IPv6 address, which has many spellings
	port string     // "" for any
}

// UnmarshalText accepts what the type says.
func (p *HostPattern) UnmarshalText(text []byte) error {
	host, port := splitHost(strings.ToLower(string(text)))
	addr := addr6(host)
	if !matches(hostPattern, string(text)) || !validPort(port, true) || strings.Contains(host, "..") || host[0] == '[' && !addr.IsValid() {
		return fmt.Errorf("%q is not a host pattern, write for example example.com, *.example.com or example.com:8443", text)
	}
	p.host, p.addr, p.port = strings.TrimPrefix(host, "*"), addr, strings.TrimLeft(port, "0")
	return nil
}

// MarshalText returns the pattern.
func (p HostPattern) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// String returns the pattern in lower case.
func (p HostPattern) String() string {
	host := p.host
	if host == "" || host[0] == '.' {
		host = "*" + host
	}
	if p.port != "" {
		host += ":" + p.port
	}
	return host
}

func (p HostPattern) match(host string, addr netip.Addr, port string) bool {
	if p.port != "" && p.port != port {
		return false
	}
	if p.host == "" {
		return true
	}
	if p.addr.IsValid() {
		return p.addr == addr
	}
	if p.host[0] != '.' {
		return strings.EqualFold(p.host, host)
	}
	below := len(host) - len(p.host)
	return below > 0 && strings.EqualFold(host[below:], p.host)
}

// Hosts is a list of destinations.
type Hosts []HostPattern

// Match reports whether one of the patterns means hostport, which is what a
// Host header or the authority of a URL holds. Without a port only the patterns
// without one can mean it, so a caller that knows the scheme adds the port.
// It does not allocate.
func (h Hosts) Match(hostport string) bool {
	if len(h) == 0 {
		return false
	}
	host, port := splitHost(hostport)
	host = strings.TrimSuffix(host, ".")
	if host == "" {
		return false
	}
	addr := addr6(host)
	for _, p := range h {
		if p.match(host, addr, port) {
			return true
		}
	}
	return false
}

// splitHost splits host:port where the port may be absent.
func splitHost(s string) (host, port string) {
	i := strings.LastIndexByte(s, ':')
	if i < 0 || strings.IndexByte(s[i:], ']') >= 0 {
		return s, ""
	}
	return s[:i], s[i+1:]
}

// addr6 returns the IPv6 address in brackets that host is, or none.
func addr6(host string) netip.Addr {
	if len(host) < 2 || host[0] != '[' || host[len(host)-1] != ']' {
		return netip.Addr{}
	}
	addr, err := netip.ParseAddr(host[1 : len(host)-1])
	if err != nil || !addr.Is6() {
		return netip.Addr{}
	}
	return addr
}

// Origin is what a browser sends as Origin: scheme, host and, unless it is the
// scheme's own, port.
type Origin string

// UnmarshalText accepts an origin in any case and makes it what browsers send, whose
// hosts are ASCII and escape nothing.
func (o *Origin) UnmarshalText(text []byte) error {
	u, err := url.Parse(strings.ToLower(string(text)))
	if err != nil || !matches(originPattern, string(text)) || u.Hostname() == "" || !validPort(u.Port(), true) {
		return fmt.Errorf("%q is not an origin, write for example https://app.example.com", text)
	}
	host := u.Host
	if u.Scheme == "http" && u.Port() == "80" || u.Scheme == "https" && u.Port() == "443" {
		host = strings.TrimSuffix(host, ":"+u.Port())
	}
	*o = Origin(u.Scheme + "://" + host)
	return nil
}

// MarshalText returns the origin.
func (o Origin) MarshalText() ([]byte, error) { return []byte(o), nil }

// Origins is a list of origins.
type Origins []Origin

// Match reports whether one of the origins is the value of an Origin header.
func (o Origins) Match(header string) bool {
	for _, origin := range o {
		if strings.EqualFold(string(origin), header) {
			return true
		}
	}
	return false
}

// Route names requests: a method and a path, in which a segment * stands for
// any one segment that is not empty.
type Route struct{ Method, Path string }

// UnmarshalText accepts "METHOD /path".
func (r *Route) UnmarshalText(text []byte) error {
	if !matches(routePattern, string(text)) {
		return fmt.Errorf("%q does not name requests, write for example POST /chat or POST /threads/*/runs", text)
	}
	r.Method, r.Path, _ = strings.Cut(string(text), " ")
	return nil
}

// MarshalText returns the route.
func (r Route) MarshalText() ([]byte, error) { return []byte(r.Method + " " + r.Path), nil }

func (r Route) match(method, path string) bool {
	if r.Method != method {
		return false
	}
	pattern := r.Path
	for {
		wanted, restWanted, moreWanted := strings.Cut(pattern, "/")
		segment, rest, more := strings.Cut(path, "/")
		if moreWanted != more || wanted != segment && (wanted != "*" || segment == "") {
			return false
		}
		if !more {
			return true
		}
		pattern, path = restWanted, rest
	}
}

// Routes is a list of routes.
type Routes []Route

// Match reports whether one of the routes names a request with this method and
// this path, as it stands in the request line (url.URL.EscapedPath). It does
// not allocate.
func (r Routes) Match(method, path string) bool {
	for _, route := range r {
		if route.match(method, path) {
			return true
		}
	}
	return false
}
