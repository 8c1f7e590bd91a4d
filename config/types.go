package config

import (
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"net/textproto"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// What the text of each type looks like. The JSON Schema says the same, so a
// pattern accepts at least what its type does.
const (
	urlPattern      = `^[Hh][Tt][Tt][Pp][Ss]?://[^/?#@\s]+(/[^?#\s]*)?$`
	durationPattern = `^(0|([0-9]+d)?([0-9]+(\.[0-9]+)?(h|m|s|ms|us|µs|ns))*)$`
	bytesPattern    = `^[0-9]+(B|KiB|MiB|GiB)?$`
	addressPattern  = `^([A-Za-z0-9._-]*|\[[0-9A-Fa-f:.]+(%[A-Za-z0-9._-]+)?\]):[0-9]{1,5}$`
	headerPattern   = "^[!#$%&'*+.^_`|~0-9A-Za-z-]+$"
	timePattern     = `^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?(Z|[+-][0-9]{2}:[0-9]{2})$`
	cidrPattern     = `^[0-9A-Fa-f:.]+/[0-9]{1,3}$`
)

func matches(pattern, s string) bool { return regexp.MustCompile(pattern).MatchString(s) }

// URL is an absolute http or https URL without user, query and fragment. The
// zero URL is an absent one, whose embedded *url.URL is nil.
type URL struct{ *url.URL }

// UnmarshalText never repeats the text: a URL that was refused may hold a
// password.
func (u *URL) UnmarshalText(text []byte) error {
	v, err := url.Parse(string(text))
	switch {
	case err == nil && v.User != nil:
		return errors.New("a URL here takes no user and password, remove them")
	case err == nil && (v.RawQuery != "" || v.Fragment != ""):
		return errors.New("a URL here takes no query and no fragment, remove them")
	case err != nil || v.Hostname() == "" || !matches(urlPattern, string(text)) || !validPort(v.Port(), true):
		return errors.New("not an http or https URL, write for example https://host.example.com/path")
	case len(text) > 2048:
		return errors.New("a URL here takes at most 2048 bytes, shorten it")
	}
	u.URL = v
	return nil
}

// MarshalText returns the URL, or nothing for an absent one.
func (u URL) MarshalText() ([]byte, error) { return []byte(u.String()), nil }

// String returns the URL, or "" for an absent one.
func (u URL) String() string {
	if u.URL == nil {
		return ""
	}
	return u.URL.String()
}

// Duration is a length of time, never negative: "100ms", "1h30m", "7d", "0". A
// day has 24 hours and takes no fraction.
type Duration struct{ time.Duration }

// UnmarshalText accepts what the type says, and no number without a unit but 0.
func (d *Duration) UnmarshalText(text []byte) error {
	s := string(text)
	if s == "" || !matches(durationPattern, s) {
		return fmt.Errorf("%q is not a duration, write for example 100ms, 30s, 1h or 7d", s)
	}
	var days time.Duration
	if n, rest, ok := strings.Cut(s, "d"); ok {
		v, err := strconv.ParseInt(n, 10, 64)
		if err != nil || v > math.MaxInt64/int64(24*time.Hour) {
			return tooLong(s)
		}
		days, s = time.Duration(v)*24*time.Hour, rest
	}
	var rest time.Duration
	if s != "" {
		var err error
		if rest, err = time.ParseDuration(s); err != nil {
			return tooLong(string(text))
		}
	}
	if rest > math.MaxInt64-days {
		return tooLong(string(text))
	}
	d.Duration = days + rest
	return nil
}

// tooLong refuses what an int64 of nanoseconds cannot hold.
func tooLong(s string) error { return fmt.Errorf("%q is longer than 290 years, shorten it", s) }

// MarshalText returns what String does.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// String returns Go's form without the units that are zero: 720h, not 720h0m0s.
func (d Duration) String() string {
	s := d.Duration.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// Time is a moment: "2027-02-01T00:00:00Z". The zero Time is an absent one.
type Time struct{ time.Time }

// UnmarshalText accepts RFC 3339.
func (t *Time) UnmarshalText(text []byte) error {
	v, err := time.Parse(time.RFC3339, string(text))
	if err != nil || !matches(timePattern, string(text)) {
		return fmt.Errorf("%q is not a time, write for example 2027-02-01T00:00:00Z", text)
	}
	t.Time = v.UTC()
	return nil
}

// MarshalText returns the time, or nothing for an absent one.
func (t Time) MarshalText() ([]byte, error) {
	if t.IsZero() {
		return nil, nil
	}
	return t.AppendFormat(nil, time.RFC3339Nano), nil
}

// Bytes is a size: "4MiB", "64KiB", "1GiB", "512B" or a plain number of bytes.
type Bytes int64

// UnmarshalText accepts what the type says. Decimal units (kB, MB) are refused,
// because half of their users mean the binary ones.
func (b *Bytes) UnmarshalText(text []byte) error {
	s := string(text)
	if !matches(bytesPattern, s) {
		return fmt.Errorf("%q is not a size, write for example 64KiB, 4MiB, 1GiB or 4096", s)
	}
	digits := strings.TrimRight(s, "BKMGi")
	shift := map[string]int{"KiB": 10, "MiB": 20, "GiB": 30}[s[len(digits):]]
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n > math.MaxInt64>>shift {
		return fmt.Errorf("%q is too large, write for example 64KiB, 4MiB or 1GiB", s)
	}
	*b = Bytes(n << shift)
	return nil
}

// MarshalText returns what String does.
func (b Bytes) MarshalText() ([]byte, error) { return []byte(b.String()), nil }

// String returns the size in the largest unit that needs no fraction.
func (b Bytes) String() string {
	for _, u := range []struct {
		name  string
		shift int
	}{{"GiB", 30}, {"MiB", 20}, {"KiB", 10}} {
		if b != 0 && b%(1<<u.shift) == 0 {
			return strconv.FormatInt(int64(b>>u.shift), 10) + u.name
		}
	}
	return strconv.FormatInt(int64(b), 10)
}

// Address is a TCP address to listen on, host:port. An empty host is every
// address of the machine, port 0 one that the system picks.
type Address string

// UnmarshalText accepts host names, IP addresses and nothing before the colon.
func (a *Address) UnmarshalText(text []byte) error {
	host, port, err := net.SplitHostPort(string(text))
	ip, _ := netip.ParseAddr(host)
	if err != nil || !matches(addressPattern, string(text)) || !validPort(port, false) || text[0] == '[' && !ip.Is6() {
		return fmt.Errorf("%q is not host:port, write for example 127.0.0.1:8088 or :8088", text)
	}
	*a = Address(text)
	return nil
}

// MarshalText returns the address.
func (a Address) MarshalText() ([]byte, error) { return []byte(a), nil }

// Loopback reports whether only this machine can reach the address.
func (a Address) Loopback() bool {
	host, _, err := net.SplitHostPort(string(a))
	return err == nil && loopbackHost(host)
}

// overlaps reports whether a and b cannot both be listened on.
func (a Address) overlaps(b Address) bool {
	hostA, portA, errA := net.SplitHostPort(string(a))
	hostB, portB, errB := net.SplitHostPort(string(b))
	if errA != nil || errB != nil || !samePort(portA, portB) || samePort(portA, "0") {
		return false
	}
	return strings.EqualFold(hostA, hostB) || everyHost(hostA) || everyHost(hostB)
}

// reaches reports whether a caller on this machine that dials u arrives at a.
func (a Address) reaches(u URL) bool {
	host, port, err := net.SplitHostPort(string(a))
	if err != nil || u.URL == nil {
		return false
	}
	dialled := u.Port()
	if dialled == "" {
		dialled = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	if !samePort(port, dialled) {
		return false
	}
	return strings.EqualFold(host, u.Hostname()) ||
		everyHost(host) && loopbackHost(u.Hostname()) ||
		loopbackHost(host) && strings.EqualFold(u.Hostname(), "localhost")
}

func loopbackHost(host string) bool {
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback() || strings.EqualFold(host, "localhost")
}

func everyHost(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "" || err == nil && ip.Unmap().IsUnspecified()
}

// samePort compares ports as numbers: 080 is 80.
func samePort(a, b string) bool { return strings.TrimLeft(a, "0") == strings.TrimLeft(b, "0") }

// validPort reports whether s is a decimal port, or absent where that is allowed.
func validPort(s string, absent bool) bool {
	if s == "" {
		return absent
	}
	_, err := strconv.ParseUint(s, 10, 16)
	return err == nil
}

// HeaderName is the name of a header in canonical form.
type HeaderName string

// UnmarshalText accepts a token of RFC 9110 and makes it canonical.
func (h *HeaderName) UnmarshalText(text []byte) error {
	if !matches(headerPattern, string(text)) {
		return fmt.Errorf("%q is not a header name, write for example Run-Id", text)
	}
	*h = HeaderName(textproto.CanonicalMIMEHeaderKey(string(text)))
	return nil
}

// MarshalText returns the name.
func (h HeaderName) MarshalText() ([]byte, error) { return []byte(h), nil }

// CIDR is a network in its canonical form: no host bits, IPv4 not mapped into
// IPv6.
type CIDR struct{ netip.Prefix }

// UnmarshalText accepts what the type says and tells how to write the rest.
func (c *CIDR) UnmarshalText(text []byte) error {
	p, err := netip.ParsePrefix(string(text))
	if err != nil {
		if ip, err := netip.ParseAddr(string(text)); err == nil && ip.Zone() == "" {
			return fmt.Errorf("%q is an address, write %v/%d for this one alone", text, ip.Unmap(), ip.Unmap().BitLen())
		}
		return fmt.Errorf("%q is not a network, write for example 10.0.0.0/8 or fd00::/8", text)
	}
	if p.Addr().Is4In6() {
		return fmt.Errorf("%q is IPv4 mapped into IPv6, write it as IPv4", text)
	}
	if p != p.Masked() {
		return fmt.Errorf("%q has bits set behind its prefix, write %v", text, p.Masked())
	}
	c.Prefix = p
	return nil
}

// CIDRs is a list of networks.
type CIDRs []CIDR

// Prefixes returns the networks.
func (c CIDRs) Prefixes() []netip.Prefix {
	all := make([]netip.Prefix, len(c))
	for i, p := range c {
		all[i] = p.Prefix
	}
	return all
}

// Contains reports whether ip is in one of the networks. An IPv4 address that is
// mapped into IPv6, as a listener on every address sees it, is the IPv4 one.
func (c CIDRs) Contains(ip netip.Addr) bool {
	ip = ip.Unmap().WithZone("")
	for _, p := range c {
		if p.Contains(ip) {
			return true
		}
	}
	return false
}
