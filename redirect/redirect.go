// Package redirect leads the TCP of a pod to its wopproxy, by rules of nftables in
// the pod's network namespace: calls into the host to one port, the host's own
// calls to another. Neither side has to know.
//
// Three kinds of connections are left alone, so that nothing goes round in circles
// and nothing that is no agent's business depends on the proxy: those that the
// user opens whom wopproxy runs as; those of the pod with itself; and those to
// link-local addresses, where nodes have their name servers and clouds the
// credentials of their workloads. What is not TCP is never touched.
//
// The rules are the program's alone: they stand in tables of the name wopproxy, one
// for each version of IP, which are replaced and removed as a whole.
package redirect

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Rules say which connections are redirected. They take effect by Set.
type Rules struct {
	UID      uint32 // the user whose connections are left alone; not root
	Inbound  uint16 // the port to which connections into the pod go; 0: where they were meant to
	Outbound uint16 // the port to which connections out of it go; 0: where they were meant to

	AppPorts        []uint16       // of connections into the pod, those to these ports alone are redirected; empty: all
	ExcludeInbound  []uint16       // ports of the pod that are left alone
	ExcludeOutbound []uint16       // ports elsewhere that are left alone
	ExcludeCIDRs    []netip.Prefix // networks elsewhere that are left alone
}

// maxEntries bounds each list: a packet that opens a connection is compared with
// all of them.
const maxEntries = 1000

// Check returns all that is wrong with r.
func (r Rules) Check() error {
	var errs []error
	refuse := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if r.UID == 0 {
		refuse("the user whose calls are left alone is root, whose are too many: run wopproxy as a user of its own")
	}
	switch {
	case r.Inbound == 0 && r.Outbound == 0:
		refuse("nothing is redirected: give the port of ingress.transparent, of egress.transparent or both")
	case r.Inbound == r.Outbound:
		refuse("inbound and outbound are one port, %d: give the two that wopproxy listens on", r.Inbound)
	}
	if r.Inbound == 0 && len(r.AppPorts) > 0 {
		refuse("ports of the host have no effect while nothing inbound is redirected")
	}
	for _, port := range r.AppPorts {
		switch {
		case slices.Contains(r.ExcludeInbound, port):
			refuse("port %d is the host's, and left alone: give it once", port)
		case port == r.Inbound || port == r.Outbound:
			refuse("port %d is wopproxy's and can't be the host's", port)
		}
	}
	for _, l := range []struct {
		what   string
		length int
	}{{"ports of the host", len(r.AppPorts)}, {"inbound ports", len(r.ExcludeInbound)}, {"outbound ports", len(r.ExcludeOutbound)}, {"networks", len(r.ExcludeCIDRs)}} {
		if l.length > maxEntries {
			refuse("%d %s are more than the %d that are possible", l.length, l.what, maxEntries)
		}
	}
	return errors.Join(errs...)
}

// table is the name of both tables.
const table = "wopproxy"

// family is a version of IP, in the words of nft.
type family string

const (
	ip4 family = "ip"
	ip6 family = "ip6"
)

// linkLocal are the networks that are left alone by themselves.
var linkLocal = []netip.Prefix{netip.MustParsePrefix("169.254.0.0/16"), netip.MustParsePrefix("fe80::/10")}

// chain is the rules at one hook.
type chain struct {
	name, hook string
	rules      []rule
}

// rule returns, or with a port redirects, the TCP connections that it matches. Of
// its conditions one is set, or none.
type rule struct {
	uid    uint32
	in     string // the interface by which they come
	out    string // the one by which they go
	to     netip.Prefix
	toPort uint16

	redirect uint16
}

// chains are what r comes to for f.
func (r Rules) chains(f family) []chain {
	var chains []chain
	if r.Outbound != 0 {
		c := chain{name: "outbound", hook: "output", rules: []rule{{uid: r.UID}, {out: "lo"}}}
		for _, p := range slices.Concat(linkLocal, r.ExcludeCIDRs) {
			if p.Addr().Is4() == (f == ip4) {
				c.rules = append(c.rules, rule{to: p})
			}
		}
		for _, port := range r.ExcludeOutbound {
			c.rules = append(c.rules, rule{toPort: port})
		}
		chains = append(chains, chain{c.name, c.hook, append(c.rules, rule{redirect: r.Outbound})})
	}
	if r.Inbound != 0 {
		c := chain{name: "inbound", hook: "prerouting", rules: []rule{{in: "lo"}}}
		for _, p := range linkLocal {
			if p.Addr().Is4() == (f == ip4) {
				c.rules = append(c.rules, rule{to: p})
			}
		}
		for _, port := range r.ExcludeInbound {
			c.rules = append(c.rules, rule{toPort: port})
		}
		for _, port := range r.AppPorts {
			c.rules = append(c.rules, rule{toPort: port, redirect: r.Inbound})
		}
		if len(r.AppPorts) == 0 {
			c.rules = append(c.rules, rule{redirect: r.Inbound})
		}
		chains = append(chains, c)
	}
	return chains
}

// String returns what Set does as a script for nft -f.
func (r Rules) String() string {
	var b strings.Builder
	for _, f := range []family{ip4, ip6} {
		fmt.Fprintf(&b, "add table %s %s\ndelete table %s %s\ntable %s %s {\n", f, table, f, table, f, table)
		for _, c := range r.chains(f) {
			fmt.Fprintf(&b, "\tchain %s {\n\t\ttype nat hook %s priority -100; policy accept;\n", c.name, c.hook)
			for _, rule := range c.rules {
				fmt.Fprintf(&b, "\t\t%s\n", rule.text(f))
			}
			b.WriteString("\t}\n")
		}
		b.WriteString("}\n")
	}
	return b.String()
}

// text is the rule in the words of nft.
func (r rule) text(f family) string {
	what := "meta l4proto tcp"
	switch {
	case r.uid != 0:
		what = fmt.Sprint("meta skuid ", r.uid)
	case r.in != "":
		what = fmt.Sprintf("iifname %q", r.in)
	case r.out != "":
		what = fmt.Sprintf("oifname %q", r.out)
	case r.to.IsValid():
		what = fmt.Sprintf("%s daddr %s", f, r.to)
	case r.toPort != 0:
		what = fmt.Sprint("tcp dport ", r.toPort)
	}
	if r.redirect == 0 {
		return what + " return"
	}
	return fmt.Sprintf("%s redirect to :%d", what, r.redirect)
}

// Errors of Set and Remove that whoever runs them can do something about.
var (
	errRights = errors.New("the rules take the capability NET_ADMIN: run this as root in an init container whose securityContext adds it, or use the explicit mode, which takes none")
	errKernel = errors.New("this kernel has no nftables with NAT (modules nf_tables, nft_chain_nat and nft_redir): load them on the node, or use the explicit mode, which takes none")
)
