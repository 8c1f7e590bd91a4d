package ancestry

import (
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

func TestPublicAddresses(t *testing.T) {
	p, err := newDialPolicy(nil)
	if err != nil {
		t.Fatal(err)
	}
	for addr, want := range map[string]bool{
		"8.8.8.8": true, "2606:4700::1111": true, "::ffff:8.8.8.8": true, "64:ff9b::808:808": true,
		"172.15.255.255": true, "172.32.0.0": true, "100.128.0.0": true, "223.255.255.255": true,

		"0.0.0.0": false, "10.1.2.3": false, "100.64.0.1": false, "100.100.100.200": false, "127.0.0.1": false,
		"127.255.255.254": false, "168.63.129.16": false, "169.254.169.254": false, "172.16.0.1": false,
		"172.31.255.255": false, "192.0.0.192": false, "192.168.1.1": false, "198.18.0.1": false,
		"224.0.0.1": false, "240.0.0.1": false, "255.255.255.255": false,
		"::": false, "::1": false, "::ffff:127.0.0.1": false, "::ffff:169.254.169.254": false, "::127.0.0.1": false,
		"64:ff9b::7f00:1": false, "64:ff9b::a9fe:a9fe": false, "fc00::1": false, "fd00:ec2::254": false,
		"fe80::1": false, "fe80::1%eth0": false, "ff02::1": false, "2002:7f00:1::": false, "2001::1": false,
		"2001:db8::1": false,
	} {
		if got := p.public(netip.MustParseAddr(addr)); got != want {
			t.Errorf("public(%s) = %v, want %v", addr, got, want)
		}
	}
}

func TestListedHosts(t *testing.T) {
	p, err := newDialPolicy([]string{"Planner.internal", "tools.internal:8080", "10.0.0.0/8", "::1", "[fd00::2]:443", "fd01::/16", "192.168.7.7"})
	if err != nil {
		t.Fatal(err)
	}
	for hostport, want := range map[[2]string]bool{
		{"planner.internal", "1"}: true, {"PLANNER.INTERNAL.", "443"}: true, {"x.planner.internal", "443"}: false,
		{"tools.internal", "8080"}: true, {"tools.internal", "80"}: false,
		{"10.9.9.9", "80"}: true, {"::ffff:10.9.9.9", "80"}: true, {"11.0.0.0", "80"}: false,
		{"::1", "80"}: true, {"0:0:0:0:0:0:0:1", "80"}: true, {"fd00::2", "443"}: true, {"fd00::2", "80"}: false,
		{"fd01::5%eth0", "80"}: true, {"::ffff:192.168.7.7", "1"}: true, {"", "80"}: false,
	} {
		if got := p.listed(hostport[0], hostport[1]); got != want {
			t.Errorf("listed(%q, %q) = %v, want %v", hostport[0], hostport[1], got, want)
		}
	}
	start, _ := url.Parse("https://Start.example")
	with := p.with(start)
	if !with.listed("start.example", "443") || with.listed("start.example", "80") || p.listed("start.example", "443") {
		t.Error("with must list the host of the URL at its port, and only in the copy")
	}
	for _, bad := range []string{"", "http://x", "10.0.0.0/33", ":80", "a:b:c"} {
		if _, err := newDialPolicy([]string{bad}); err == nil {
			t.Errorf("newDialPolicy(%q) = nil error", bad)
		}
	}
}

func TestParseBase(t *testing.T) {
	for s, want := range map[string]string{
		"https://h":         "https://h",
		"https://h:8443/a/": "https://h:8443/a",
		"http://[::1]:80//": "http://[::1]:80",
		"https://h/a%2Fb":   "https://h/a%2Fb",
		"":                  "", "h": "", "/p": "", "file:///etc/passwd": "", "gopher://h": "", "https://": "", "https://:443": "",
		"https://user@h": "", "https://u:p@h": "", "https://h?q": "", "https://h?": "", "https://h#f": "", "https://h#": "",
		"https://h\r\nx": "",
	} {
		u, err := parseBase(s)
		got := ""
		if err == nil {
			got = u.String()
		}
		if got != want {
			t.Errorf("parseBase(%q) = %q, %v; want %q", s, got, err, want)
		}
	}
}

func TestOrigin(t *testing.T) {
	for s, want := range map[string]string{
		"https://H.example":           "https://h.example:443",
		"https://h.example.:443/path": "https://h.example:443",
		"http://h.example":            "http://h.example:80",
		"https://h.example:8443":      "https://h.example:8443",
		"https://[0:0::1]":            "https://[::1]:443",
	} {
		u, err := url.Parse(s)
		if err != nil {
			t.Fatal(err)
		}
		if got := origin(u); got != want {
			t.Errorf("origin(%q) = %q, want %q", s, got, want)
		}
	}
}

// A proxy named by the environment would dial in our place, past the policy; in
// a pod it is this very process. (The standard library reads the environment
// once per process, so a test cannot set it.)
func TestNoProxyOfTheEnvironment(t *testing.T) {
	start, _ := url.Parse("https://h")
	h, err := newHostAuth(APIOptions{Upstream: start, Registerer: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	w, err := NewWalker(WalkerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]*http.Client{"host auth": h.client, "walker": w.session(start).client} {
		if c.Transport.(*http.Transport).Proxy != nil {
			t.Errorf("%s: the transport has a proxy", name)
		}
	}
}

// Whatever a peer answers, what is accepted has the closed shape: rendered
// again, it is accepted again and says the same.
func FuzzParseAnswer(f *testing.F) {
	for _, s := range []string{
		`{"runId":"a","hostId":"h","parent":null}`,
		`{"runId":"a","hostId":"h","parent":{"runId":"b","hostId":"h","cause":"core.dispatch"}}`,
		`{"runId":"a","hostId":"h","parent":{"runId":"b","hostId":"k","cause":"a2a-message","wellKnownUrl":"https://k/.well-known/openwop"}}`,
		`{"runId":"a","hostId":"h","parent":{}}`, `[]`, `null`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := parseAnswer(b)
		if err != nil {
			return
		}
		if _, err := ParseRunID(string(a.RunID)); err != nil || a.HostID == "" {
			t.Fatalf("accepted %q as %+v", b, a)
		}
		again, err := parseAnswer(render(t, a))
		if err != nil || string(render(t, again)) != string(render(t, a)) {
			t.Fatalf("%q: %s, then %s (%v)", b, render(t, a), render(t, again), err)
		}
	})
}

func render(t *testing.T, a ancestryBody) []byte {
	t.Helper()
	b, err := json.Marshal(a)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// A name that is not listed leads nowhere but to what it resolves to when it is
// dialled, whatever it was before.
func TestNamesAreJudgedByTheirAddress(t *testing.T) {
	srv := httptest.NewServer(http.NotFoundHandler())
	defer srv.Close()
	_, port, err := net.SplitHostPort(srv.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		allow []string
		ok    bool
	}{{nil, false}, {[]string{"10.0.0.0/8", "other"}, false}, {[]string{"127.0.0.0/8", "::1"}, true}, {[]string{"localhost"}, true}} {
		p, err := newDialPolicy(row.allow)
		if err != nil {
			t.Fatal(err)
		}
		c, err := p.dial(t.Context(), "tcp", net.JoinHostPort("localhost", port))
		if err == nil {
			c.Close()
		}
		if row.ok != (err == nil) || !row.ok && !errors.Is(err, errNotAllowed) {
			t.Errorf("with %q listed, localhost: %v, want success: %v", row.allow, err, row.ok)
		}
	}
}
