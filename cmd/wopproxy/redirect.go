package main

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"strconv"
	"strings"

	"github.com/wopproxy/wopproxy/config"
	"github.com/wopproxy/wopproxy/redirect"
)

const redirectManual = `redirect [-uid UID] [-inbound PORT] [-outbound PORT] [-app-ports PORTS]
       [-exclude-inbound-ports PORTS] [-exclude-outbound-ports PORTS]
       [-exclude-outbound-cidrs CIDRS] [-print]
       wopproxy redirect -remove

Has the kernel lead the TCP of this network namespace to the wopproxy in it, for a
host that is to know nothing of a proxy: connections into the host to
ingress.transparent, the host's own calls to egress.transparent. It is run once,
in an init container before the sidecar, as root with the capability NET_ADMIN;
wopproxy itself needs neither. The rules stay with the namespace, whatever becomes
of wopproxy: while it is down, what they redirect is refused.

It takes no other program, and no shell. Run again, it puts its rules in the place
of those that are there, all at once; -remove takes them away. They are rules of
nftables, in the tables ip wopproxy and ip6 wopproxy. Without IPv6 it says so, and
goes on.

Left alone are: the calls of the user that wopproxy runs as; connections of the
pod with itself; link-local addresses; what is not TCP; and what the flags name. A
list is separated by commas; an empty one is "".

The kubelet's probes of a port of the host come by way of wopproxy too. Of HTTP and
gRPC it is the host that answers them; but a tcpSocket probe of a port that is
redirected says no more than that wopproxy is there.

`

// portList is a flag: ports, separated by commas.
type portList []uint16

func (l *portList) String() string {
	var s []string
	for _, p := range *l {
		s = append(s, strconv.Itoa(int(p)))
	}
	return strings.Join(s, ",")
}

// Set takes the place of what was set, so that a default is no more than that.
func (l *portList) Set(text string) error {
	*l = nil
	for _, s := range fields(text) {
		n, err := strconv.ParseUint(s, 10, 16)
		if err != nil || n == 0 {
			return fmt.Errorf("%q is not a port, write numbers of 1 to 65535 separated by commas", s)
		}
		*l = append(*l, uint16(n))
	}
	return nil
}

// port is a flag: one port, or 0 for none.
type port uint16

func (p *port) String() string { return strconv.Itoa(int(*p)) }

func (p *port) Set(text string) error {
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n == 0 {
		return fmt.Errorf("%q is not a port, write a number of 1 to 65535", text)
	}
	*p = port(n)
	return nil
}

// cidrList is a flag: networks, separated by commas.
type cidrList []netip.Prefix

func (l *cidrList) String() string {
	var s []string
	for _, p := range *l {
		s = append(s, p.String())
	}
	return strings.Join(s, ",")
}

func (l *cidrList) Set(text string) error {
	*l = nil
	for _, s := range fields(text) {
		var c config.CIDR
		if err := c.UnmarshalText([]byte(s)); err != nil {
			return err
		}
		*l = append(*l, c.Prefix)
	}
	return nil
}

// fields are what commas separate.
func fields(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' })
}

func redirectCommand(_ context.Context, args []string, stdout, stderr io.Writer) error {
	var in, out port
	var remove, show bool
	excludeIn, excludeOut := portList{9090}, portList{53}
	var app portList
	var cidrs cidrList
	f := newFlags("redirect", redirectManual, stderr)
	uid := f.Uint("uid", 65532, "the `user`, by number, that wopproxy runs as")
	f.Var(&in, "inbound", "`port` of ingress.transparent (default none: nothing inbound is redirected)")
	f.Var(&out, "outbound", "`port` of egress.transparent (default none: nothing outbound is redirected)")
	f.Var(&app, "app-ports", "the only `ports` of the pod that are redirected (default all)")
	f.Var(&excludeIn, "exclude-inbound-ports", "`ports` of the pod that are left alone: admin.listen has to be there, for probes and metrics")
	f.Var(&excludeOut, "exclude-outbound-ports", "`ports` elsewhere that are left alone")
	f.Var(&cidrs, "exclude-outbound-cidrs", "`networks` elsewhere that are left alone")
	f.BoolVar(&show, "print", false, "print the rules as a script for nft -f, and set none")
	f.BoolVar(&remove, "remove", false, "take the rules away")
	if _, err := parse(f, args, 0); err != nil {
		return err
	}
	if remove {
		return redirect.Remove()
	}
	if uint64(*uid) > maxUID {
		fmt.Fprintf(stderr, "wopproxy redirect: -uid %d is no user, write a number up to %d\n", *uid, uint64(maxUID))
		return errUsage
	}
	r := redirect.Rules{
		UID: uint32(*uid), Inbound: uint16(in), Outbound: uint16(out),
		AppPorts: app, ExcludeInbound: excludeIn, ExcludeOutbound: excludeOut, ExcludeCIDRs: cidrs,
	}
	if err := r.Check(); err != nil {
		fmt.Fprintf(stderr, "wopproxy redirect: %v\n", err)
		return errUsage
	}
	if show {
		_, err := fmt.Fprint(stdout, r)
		return err
	}
	without, err := r.Set()
	if err != nil {
		return fmt.Errorf("set the rules: %w", err)
	}
	if without != nil {
		fmt.Fprintf(stderr, "wopproxy redirect: IPv6 is left alone: %v\n", without)
	}
	return nil
}

// maxUID is the last that is a user; the one behind it stands for none.
const maxUID = 1<<32 - 2
