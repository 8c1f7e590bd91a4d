package config_test

import (
	"testing"

	"github.com/wopproxy/wopproxy/config"
)

func TestHostsMatch(t *testing.T) {
	for _, tt := range []struct {
		pattern, host string
		want          bool
	}{
		{"example.com", "example.com", true},
		{"example.com", "EXAMPLE.com", true},
		{"Example.Com", "example.com", true},
		{"example.com", "example.com.", true},
		{"example.com", "example.com:8443", true},
		{"example.com", "www.example.com", false},
		{"example.com", "example.com.evil.org", false},
		{"example.com:443", "example.com:443", true},
		{"example.com:0443", "example.com:443", true},
		{"example.com:443", "example.com:8443", false},
		{"example.com:443", "example.com", false},
		{"*.example.com", "a.example.com", true},
		{"*.example.com", "a.b.Example.com:80", true},
		{"*.example.com", "example.com", false},
		{"*.example.com", ".example.com", false},
		{"*.example.com", "badexample.com", false},
		{"*.example.com:80", "a.example.com:80", true},
		{"*.example.com:80", "a.example.com:81", false},
		{"*", "anything", true},
		{"*", "[::1]:80", true},
		{"*", "", false},
		{"*", ":80", false},
		{"*:80", "a:80", true},
		{"*:80", "a:81", false},
		{"10.0.0.1", "10.0.0.1:80", true},
		{"[::1]", "[::1]", true},
		{"[::1]", "[0:0:0:0:0:0:0:1]:80", true},
		{"[0:0::1]", "[::1]:80", true},
		{"[::1]:80", "[::1]:81", false},
		{"[::1]", "[::2]:80", false},
		{"[::1]", "1", false},
	} {
		if got := hosts(t, tt.pattern).Match(tt.host); got != tt.want {
			t.Errorf("%q Match(%q) = %v, want %v", tt.pattern, tt.host, got, tt.want)
		}
	}
	list := hosts(t, "a.example.com", "*.b.example.com:80")
	for host, want := range map[string]bool{"a.example.com": true, "x.b.example.com:80": true, "c.example.com": false} {
		if got := list.Match(host); got != want {
			t.Errorf("%v Match(%q) = %v, want %v", list, host, got, want)
		}
	}
	if (config.Hosts)(nil).Match("a") {
		t.Error("no patterns: Match(a) = true")
	}
}

func TestHostPatternRefuses(t *testing.T) {
	for _, in := range []string{"", ":80", "*.", "*.*", "a.*", "*a", "a:", "a:x", "a:65536", "a..b", "-a", "a-", "a.", "[::1", "[1.2.3.4]", "::1", "http://a", "a/b", "a b", "\u212aelvin"} {
		if got, err := unmarshal[config.HostPattern](in); err == nil {
			t.Errorf("HostPattern %q = %v, want an error", in, got)
		}
	}
}

func TestOriginsMatch(t *testing.T) {
	var list config.Origins
	for _, in := range []string{"HTTPS://App.example.com:443", "http://localhost:3000", "http://[::1]:80"} {
		o, err := unmarshal[config.Origin](in)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, o)
	}
	for origin, want := range map[string]bool{
		"https://app.example.com": true, "https://APP.example.com": true, "http://app.example.com": false, "https://app.example.com:444": false,
		"http://localhost:3000": true, "http://localhost": false, "http://[::1]": true, "null": false, "": false,
	} {
		if got := list.Match(origin); got != want {
			t.Errorf("Match(%q) = %v, want %v", origin, got, want)
		}
	}
}

func TestRoutesMatch(t *testing.T) {
	for _, tt := range []struct {
		route, method, path string
		want                bool
	}{
		{"POST /chat", "POST", "/chat", true},
		{"POST /chat", "GET", "/chat", false},
		{"POST /chat", "POST", "/chat/", false},
		{"POST /chat", "POST", "/chat/x", false},
		{"POST /chat", "POST", "/Chat", false},
		{"POST /chat", "POST", "/", false},
		{"POST /", "POST", "/", true},
		{"POST /threads/*/runs", "POST", "/threads/7/runs", true},
		{"POST /threads/*/runs", "POST", "/threads//runs", false},
		{"POST /threads/*/runs", "POST", "/threads/7/8/runs", false},
		{"POST /threads/*/runs", "POST", "/threads/7", false},
		{"POST /threads/*", "POST", "/threads/a%2Fb", true},
		{"POST /x*", "POST", "/xy", false},
		{"POST /x*", "POST", "/x*", true},
	} {
		r, err := unmarshal[config.Route](tt.route)
		if err != nil {
			t.Fatal(err)
		}
		if got := (config.Routes{{Method: "PUT", Path: "/"}, r}).Match(tt.method, tt.path); got != tt.want {
			t.Errorf("%q Match(%s, %q) = %v, want %v", tt.route, tt.method, tt.path, got, tt.want)
		}
	}
}

func TestMatchDoesNotAllocate(t *testing.T) {
	h := hosts(t, "a.example.com", "*.b.example.com:80", "[::1]")
	r := config.Routes{{Method: "POST", Path: "/chat"}, {Method: "POST", Path: "/threads/*/runs"}}
	for name, f := range map[string]func(){
		"Hosts, a name":     func() { h.Match("Tools.C.example.com:443") },
		"Hosts, an address": func() { h.Match("[fd00::1]:443") },
		"Routes":            func() { r.Match("POST", "/threads/7/messages") },
	} {
		if n := testing.AllocsPerRun(100, f); n != 0 {
			t.Errorf("%s: Match allocates %v times", name, n)
		}
	}
}

func BenchmarkHostsMatch(b *testing.B) {
	var h config.Hosts
	for _, p := range []string{"a.example.com", "*.b.example.com:80", "legacy.example.com", "*.c.example.com"} {
		v, err := unmarshal[config.HostPattern](p)
		if err != nil {
			b.Fatal(err)
		}
		h = append(h, v)
	}
	b.ReportAllocs()
	for b.Loop() {
		h.Match("tools.example.org:443")
	}
}

func BenchmarkRoutesMatch(b *testing.B) {
	r := config.Routes{{Method: "POST", Path: "/chat"}, {Method: "POST", Path: "/threads/*/runs"}}
	b.ReportAllocs()
	for b.Loop() {
		r.Match("POST", "/threads/7/messages")
	}
}
