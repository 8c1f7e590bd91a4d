package config_test

import (
	"encoding"
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/wopproxy/wopproxy/config"
)

// unmarshal parses text into a T.
func unmarshal[T any, P interface {
	*T
	encoding.TextUnmarshaler
}](text string) (T, error) {
	var v T
	err := P(&v).UnmarshalText([]byte(text))
	return v, err
}

func TestDuration(t *testing.T) {
	for _, tt := range []struct {
		in   string
		want time.Duration
		text string
	}{
		{"0", 0, "0s"},
		{"0s", 0, "0s"},
		{"100ms", 100 * time.Millisecond, "100ms"},
		{"1.5s", 1500 * time.Millisecond, "1.5s"},
		{"60m", time.Hour, "1h"},
		{"90m", 90 * time.Minute, "1h30m"},
		{"10m", 10 * time.Minute, "10m"},
		{"1h0m30s", time.Hour + 30*time.Second, "1h0m30s"},
		{"7d", 168 * time.Hour, "168h"},
		{"1d12h", 36 * time.Hour, "36h"},
		{"106751d", 106751 * 24 * time.Hour, "2562024h"},
	} {
		got, err := unmarshal[config.Duration](tt.in)
		if err != nil || got.Duration != tt.want || got.String() != tt.text {
			t.Errorf("Duration %q = %v (%q), %v, want %v (%q)", tt.in, got.Duration, got, err, tt.want, tt.text)
		}
	}
	for _, in := range []string{"", "1", "-1s", "+1s", "1.5d", "d", "1d1d", "12h1d", " 1s", "1s ", "1w", "106752d", "106751d24h", "99999999999999999999d", "9999999999h"} {
		if got, err := unmarshal[config.Duration](in); err == nil {
			t.Errorf("Duration %q = %v, want an error", in, got)
		}
	}
}

func TestBytes(t *testing.T) {
	for _, tt := range []struct {
		in   string
		want config.Bytes
		text string
	}{
		{"0", 0, "0"},
		{"4096", 4096, "4KiB"},
		{"1000", 1000, "1000"},
		{"512B", 512, "512"},
		{"64KiB", 65536, "64KiB"},
		{"4MiB", 4 << 20, "4MiB"},
		{"1536KiB", 1536 << 10, "1536KiB"},
		{"1GiB", 1 << 30, "1GiB"},
		{"8589934591GiB", 8589934591 << 30, "8589934591GiB"},
	} {
		got, err := unmarshal[config.Bytes](tt.in)
		if err != nil || got != tt.want || got.String() != tt.text {
			t.Errorf("Bytes %q = %d (%q), %v, want %d (%q)", tt.in, int64(got), got, err, int64(tt.want), tt.text)
		}
	}
	for _, in := range []string{"", "-1", "1.5MiB", "4MB", "4M", "4 MiB", "MiB", "4mib", "8589934592GiB", "9223372036854775808"} {
		if got, err := unmarshal[config.Bytes](in); err == nil {
			t.Errorf("Bytes %q = %v, want an error", in, got)
		}
	}
}

func TestURL(t *testing.T) {
	for _, in := range []string{"http://a", "https://a.example.com:8443/x/y", "HTTP://a", "http://[::1]:80/", "http://a/@x",
		"http://a/" + strings.Repeat("x", 2048-len("http://a/"))} {
		got, err := unmarshal[config.URL](in)
		if err != nil || !strings.EqualFold(got.String(), in) {
			t.Errorf("URL %q = %v, %v", in, got, err)
		}
	}
	for _, in := range []string{"", "a", "//a", "/x", "ftp://a", "http://", "http:///x", "http://:80", "http://a:70000", "http://a:x",
		"http://u@a", "http://u:p@a", "http://a?", "http://a?x", "http://a#", "http://a#x", "http://a b", "http:a", "http://a/%zz",
		"http://a/" + strings.Repeat("x", 2049-len("http://a/"))} {
		got, err := unmarshal[config.URL](in)
		if err == nil {
			t.Errorf("URL %q = %v, want an error", in, got)
		} else if in != "" && in != "a" && strings.Contains(err.Error(), in) {
			t.Errorf("URL %q: the error repeats it: %v", in, err)
		}
	}
	if got := (config.URL{}).String(); got != "" {
		t.Errorf("absent URL = %q", got)
	}
}

func TestAddress(t *testing.T) {
	for in, loopback := range map[string]bool{
		"127.0.0.1:8088": true, "127.9.9.9:0": true, "[::1]:80": true, "localhost:80": true, "LOCALHOST:80": true, "[::ffff:127.0.0.1]:80": true,
		":8088": false, "0.0.0.0:80": false, "[::]:80": false, "10.0.0.1:65535": false, "host.internal:80": false, "localhost.example.com:80": false,
	} {
		got, err := unmarshal[config.Address](in)
		if err != nil || string(got) != in || got.Loopback() != loopback {
			t.Errorf("Address %q = %q, %v, Loopback() = %v, want %v", in, got, err, got.Loopback(), loopback)
		}
	}
	for _, in := range []string{"", "8088", "a", "a:", "a:http", "a:65536", "a:-1", "::1:80", "[::1]", "[a]:80", "[:::]:80", "a b:80", "http://a:80", "a:80/"} {
		if got, err := unmarshal[config.Address](in); err == nil {
			t.Errorf("Address %q = %q, want an error", in, got)
		}
	}
}

// TestListenersClash pins which addresses cannot be used together.
func TestListenersClash(t *testing.T) {
	for _, tt := range []struct {
		ingress, egress, upstream string
		want                      string // key of the mistake
	}{
		{"127.0.0.1:1", "127.0.0.1:2", "http://127.0.0.1:3", ""},
		{"127.0.0.1:1", "127.0.0.1:1", "http://127.0.0.1:3", "egress.listen"},
		{"127.0.0.1:1", "127.0.0.1:01", "http://127.0.0.1:3", "egress.listen"},
		{"127.0.0.1:1", "127.0.0.2:1", "http://127.0.0.1:3", ""},
		{"127.0.0.1:1", "[::]:1", "http://127.0.0.1:3", "egress.listen"},
		{"0.0.0.0:1", "10.0.0.1:1", "http://127.0.0.1:3", "egress.listen"},
		{"Localhost:1", "localhost:1", "http://127.0.0.1:3", "egress.listen"},
		{"127.0.0.1:0", "127.0.0.1:0", "http://127.0.0.1:3", ""},
		{"127.0.0.1:1", "127.0.0.1:2", "http://127.0.0.1:2", "ingress.upstream"},
		{"127.0.0.1:1", "127.0.0.1:2", "http://localhost:1/x", "ingress.upstream"},
		{"127.0.0.1:1", "127.0.0.1:2", "http://127.0.0.2:1", ""},
		{":1", "127.0.0.1:2", "http://127.0.0.2:1", "ingress.upstream"},
		{":1", "127.0.0.1:2", "http://10.0.0.1:1", ""},
		{":80", "127.0.0.1:2", "http://127.0.0.1", "ingress.upstream"},
		{":443", "127.0.0.1:2", "https://127.0.0.1", "ingress.upstream"},
		{":443", "127.0.0.1:2", "http://127.0.0.1", ""},
		{"127.0.0.1:1", "10.0.0.1:2", "http://localhost:2", ""},
	} {
		_, err := config.Parse(strings.NewReader(fmt.Sprintf(`
host: {id: a, wellKnownUrl: "https://a/.well-known/openwop"}
ingress: {listen: %q, upstream: %q}
egress: {listen: %q}`, tt.ingress, tt.upstream, tt.egress)))
		var got string
		if err != nil {
			got, _, _ = strings.Cut(err.Error(), ": ")
		}
		if got != tt.want {
			t.Errorf("ingress %s, egress %s, upstream %s: %v, want a mistake at %q", tt.ingress, tt.egress, tt.upstream, err, tt.want)
		}
	}
}

func TestHeaderName(t *testing.T) {
	for in, want := range map[string]config.HeaderName{"run-id": "Run-Id", "X": "X", "RUN_ID": "Run_id"} {
		if got, err := unmarshal[config.HeaderName](in); err != nil || got != want {
			t.Errorf("HeaderName %q = %q, %v, want %q", in, got, err, want)
		}
	}
	for _, in := range []string{"", "a b", "a:", "é", "a\n"} {
		if got, err := unmarshal[config.HeaderName](in); err == nil {
			t.Errorf("HeaderName %q = %q, want an error", in, got)
		}
	}
}

func TestCIDRs(t *testing.T) {
	var list config.CIDRs
	for _, in := range []string{"10.0.0.0/8", "fd00::/8", "192.0.2.1/32"} {
		c, err := unmarshal[config.CIDR](in)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, c)
	}
	for in, want := range map[string]bool{
		"10.1.2.3": true, "::ffff:10.1.2.3": true, "11.0.0.1": false, "192.0.2.1": true, "192.0.2.2": false,
		"fd12::1": true, "fd12::1%eth0": true, "fe80::1": false,
	} {
		if got := list.Contains(netip.MustParseAddr(in)); got != want {
			t.Errorf("Contains(%s) = %v, want %v", in, got, want)
		}
	}
	if list.Contains(netip.Addr{}) {
		t.Error("Contains(no address) = true")
	}
}

// FuzzText holds every type to the same promise: what it accepts it prints so
// that it reads back as the same value, and the schema's pattern accepts it.
func FuzzText(f *testing.F) {
	for _, s := range []string{"", "1d2h", "4MiB", "http://a:1/x", "[::1]:80", "run-id", "10.0.0.0/8", "*.a:80", "https://a:443", "GET /*/x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		roundTrip[config.Duration](t, s, config.DurationPattern)
		roundTrip[config.Bytes](t, s, config.BytesPattern)
		roundTrip[config.URL](t, s, config.URLPattern)
		roundTrip[config.Address](t, s, config.AddressPattern)
		roundTrip[config.HeaderName](t, s, config.HeaderPattern)
		roundTrip[config.CIDR](t, s, config.CIDRPattern)
		roundTrip[config.HostPattern](t, s, config.HostPatternPattern)
		roundTrip[config.Origin](t, s, config.OriginPattern)
		roundTrip[config.Route](t, s, config.RoutePattern)
	})
}

func roundTrip[T encoding.TextMarshaler, P interface {
	*T
	encoding.TextUnmarshaler
}](t *testing.T, s, pattern string) {
	v, err := unmarshal[T, P](s)
	if err != nil {
		return
	}
	if !config.Matches(pattern, s) {
		t.Errorf("%T accepts %q, %s does not", v, s, pattern)
	}
	text, err := v.MarshalText()
	if err != nil {
		t.Fatalf("%T %q: MarshalText: %v", v, s, err)
	}
	again, err := unmarshal[T, P](string(text))
	if err != nil {
		t.Errorf("%T %q prints %q, which does not read back: %v", v, s, text, err)
		return
	}
	if twice, _ := again.MarshalText(); string(twice) != string(text) {
		t.Errorf("%T %q prints %q, and that %q", v, s, text, twice)
	}
}

// FuzzParse holds the schema to the parser: what the parser accepts, the schema
// does; and every mistake says what it is about.
func FuzzParse(f *testing.F) {
	accepts := schemaValidator(f)
	for _, dir := range []string{"testdata", "testdata/valid", "testdata/bad"} {
		for _, path := range yamlFiles(f, dir) {
			f.Add(readFile(f, path))
		}
	}
	f.Fuzz(func(t *testing.T, file []byte) {
		c, err := config.Parse(strings.NewReader(string(file)))
		if err != nil {
			if strings.Contains(err.Error(), "%!") {
				t.Errorf("mistake with a broken format: %v", err)
			}
			return
		}
		if err := accepts(file); err != nil {
			t.Errorf("the parser accepts what the schema refuses: %v\n%s", err, file)
		}
		if _, err := json.Marshal(c); err != nil {
			t.Errorf("a configuration that cannot be printed: %v", err)
		}
	})
}
