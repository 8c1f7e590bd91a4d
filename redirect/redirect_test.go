package redirect

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestCheck pins what is said of each mistake.
func TestCheck(t *testing.T) {
	many := slices.Repeat([]uint16{1}, maxEntries+1)
	for _, tt := range []struct {
		name string
		r    Rules
		want []string
	}{
		{"all is well", Rules{UID: 1, Inbound: 2, Outbound: 3, AppPorts: []uint16{80}, ExcludeInbound: []uint16{2}}, nil},
		{"one way is enough", Rules{UID: 1, Outbound: 3}, nil},
		{"root", Rules{Inbound: 2}, []string{"the user whose calls are left alone is root"}},
		{"nothing", Rules{UID: 1}, []string{"nothing is redirected"}},
		{"one port for both", Rules{UID: 1, Inbound: 2, Outbound: 2}, []string{"inbound and outbound are one port, 2"}},
		{"ports of the host, and nothing inbound", Rules{UID: 1, Outbound: 2, AppPorts: []uint16{80}}, []string{"ports of the host have no effect"}},
		{"in and out", Rules{UID: 1, Inbound: 2, AppPorts: []uint16{80}, ExcludeInbound: []uint16{80}}, []string{"port 80 is the host's, and left alone"}},
		{"our own port", Rules{UID: 1, Inbound: 2, Outbound: 3, AppPorts: []uint16{2, 3}}, []string{"port 2 is wopproxy's", "port 3 is wopproxy's"}},
		{"too many", Rules{UID: 1, Inbound: 2, ExcludeInbound: many, ExcludeOutbound: many}, []string{"1001 inbound ports are more", "1001 outbound ports are more"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got []string
			if err := tt.r.Check(); err != nil {
				got = strings.Split(err.Error(), "\n")
			}
			if !slices.EqualFunc(got, tt.want, strings.HasPrefix) {
				t.Errorf("Check() = %q, want %q", got, tt.want)
			}
		})
	}
}

// TestString shows what is left alone in which version of IP, and in which order.
func TestString(t *testing.T) {
	r := Rules{
		UID: 7, Inbound: 8188, Outbound: 8189, AppPorts: []uint16{80, 81},
		ExcludeInbound: []uint16{9090}, ExcludeOutbound: []uint16{53},
		ExcludeCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")},
	}
	_, got, _ := strings.Cut(r.String(), "table ip6 wopproxy {\n")
	const want = `	chain outbound {
		type nat hook output priority -100; policy accept;
		meta skuid 7 return
		oifname "lo" return
		ip6 daddr fe80::/10 return
		ip6 daddr fd00::/8 return
		tcp dport 53 return
		meta l4proto tcp redirect to :8189
	}
	chain inbound {
		type nat hook prerouting priority -100; policy accept;
		iifname "lo" return
		ip6 daddr fe80::/10 return
		tcp dport 9090 return
		tcp dport 80 redirect to :8188
		tcp dport 81 redirect to :8188
	}
}
`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the rules for IPv6 (-want +got):\n%s", diff)
	}
	if got := r.String(); !strings.Contains(got, "ip daddr 10.0.0.0/8 return") || strings.Contains(got, "ip daddr fd00::/8") || strings.Contains(got, "ip6 daddr 10.0.0.0/8") {
		t.Errorf("String() = %s, want each network in its version of IP", got)
	}
}
