package ancestry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"time"
)

// errNotAllowed is why a dial did not happen.
var errNotAllowed = errors.New("the address is not public, and the host is not listed")

// dialPolicy says where a walker may connect to.
type dialPolicy struct {
	hosts    map[string]bool // "host" and "host:port"
	nets     []netip.Prefix
	internal []netip.Prefix // what is not public
}

// newDialPolicy reads the hosts and networks that are listed.
func newDialPolicy(allow []string) (dialPolicy, error) {
	p := dialPolicy{hosts: make(map[string]bool)}
	for _, s := range allow {
		if strings.Contains(s, "/") {
			n, err := netip.ParsePrefix(s)
			if err != nil {
				return p, fmt.Errorf("allow %q: %w", s, err)
			}
			p.nets = append(p.nets, n.Masked())
			continue
		}
		host, port, err := net.SplitHostPort(s)
		if err != nil {
			host, port = strings.Trim(s, "[]"), "" // a name or an address alone
		}
		if _, err := netip.ParseAddr(host); host == "" || strings.Contains(host, ":") && err != nil {
			return p, fmt.Errorf("allow %q: want a host, host:port or network", s)
		}
		p.hosts[hostKey(host, port)] = true
	}
	for _, s := range []string{
		// IANA's special-purpose registry, as far as it is not globally
		// reachable, and one public address that a cloud answers inside.
		"0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "168.63.129.16/32", "169.254.0.0/16",
		"172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24", "192.168.0.0/16", "198.18.0.0/15",
		"198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/3",
		// In 2000::/3. What lies outside is not public unicast at all.
		"2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20",
	} {
		p.internal = append(p.internal, netip.MustParsePrefix(s))
	}
	return p, nil
}

// with returns a policy that lists the host and port of u as well.
func (p dialPolicy) with(u *url.URL) dialPolicy {
	p.hosts = maps.Clone(p.hosts)
	p.hosts[hostKey(u.Hostname(), port(u))] = true
	return p
}

// listed reports whether a host is listed by its name, or is an address of a
// network that is.
func (p dialPolicy) listed(host, port string) bool {
	if p.hosts[hostKey(host, "")] || p.hosts[hostKey(host, port)] {
		return true
	}
	a, err := netip.ParseAddr(host)
	return err == nil && p.listedAddr(a)
}

func (p dialPolicy) listedAddr(a netip.Addr) bool {
	a = a.Unmap().WithZone("")
	return slices.ContainsFunc(p.nets, func(n netip.Prefix) bool { return n.Contains(a) })
}

// public reports whether an address can be anyone's.
func (p dialPolicy) public(a netip.Addr) bool {
	a = a.Unmap().WithZone("")
	if b := a.As16(); netip.MustParsePrefix("64:ff9b::/96").Contains(a) {
		a = netip.AddrFrom4([4]byte(b[12:])) // NAT64: the IPv4 address behind it counts
	}
	if a.Is6() && !netip.MustParsePrefix("2000::/3").Contains(a) {
		return false
	}
	return !slices.ContainsFunc(p.internal, func(n netip.Prefix) bool { return n.Contains(a) })
}

// dial connects to addr if the policy allows. It looks at the address that is
// really dialled, after name resolution: a name can resolve to another address
// each time it is asked for.
func (p dialPolicy) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	d := net.Dialer{Timeout: 5 * time.Second}
	if !p.listed(host, port) {
		d.Control = func(_, resolved string, _ syscall.RawConn) error {
			a, err := netip.ParseAddrPort(resolved)
			if err != nil || !p.public(a.Addr()) && !p.listedAddr(a.Addr()) {
				return fmt.Errorf("dial %s: %w", resolved, errNotAllowed)
			}
			return nil
		}
	}
	return d.DialContext(ctx, network, addr)
}

// hostKey spells a host, and its port if there is one, in one way.
func hostKey(host, port string) string {
	host = strings.TrimSuffix(strings.ToLower(host), ".")
	if a, err := netip.ParseAddr(host); err == nil {
		host = a.Unmap().String()
	}
	if port == "" {
		return host
	}
	return net.JoinHostPort(host, port)
}

// parseBase accepts an absolute http or https URL that paths can be put behind.
// It drops slashes at the end.
func parseBase(s string) (*url.URL, error) {
	u, err := url.Parse(strings.TrimRight(s, "/"))
	switch {
	case err != nil:
		return nil, err
	case u.Scheme != "http" && u.Scheme != "https", u.Hostname() == "":
		return nil, errors.New("not an http or https URL")
	case u.User != nil:
		return nil, errors.New("a URL with credentials")
	case u.RawQuery != "", u.ForceQuery, strings.Contains(s, "#"):
		return nil, errors.New("a URL with a query or fragment")
	}
	return u, nil
}

// port returns the port of u, also where it is left out.
func port(u *url.URL) string {
	return cmp.Or(u.Port(), map[string]string{"http": "80", "https": "443"}[u.Scheme])
}

// origin returns scheme, host and port of u in one spelling.
func origin(u *url.URL) string {
	return u.Scheme + "://" + hostKey(u.Hostname(), port(u))
}
