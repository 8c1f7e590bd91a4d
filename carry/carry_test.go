package carry_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/wopproxy/wopproxy/carry"
)

// proxied is what every host is told that has no settings of its own.
func proxied(more map[string]string) map[string]string {
	const egress = "http://127.0.0.1:8089"
	set := map[string]string{
		"HTTP_PROXY": egress, "http_proxy": egress, "HTTPS_PROXY": egress, "https_proxy": egress,
		"WOPPROXY_EGRESS": egress, "NODE_USE_ENV_PROXY": "1",
		"JAVA_TOOL_OPTIONS": "-Dhttp.proxyHost=127.0.0.1 -Dhttp.proxyPort=8089 -Dhttps.proxyHost=127.0.0.1 -Dhttps.proxyPort=8089 -Dhttp.nonProxyHosts=",
	}
	for name, value := range more {
		if set[name] = value; value == "" {
			delete(set, name)
		}
	}
	return set
}

func TestEnvironment(t *testing.T) {
	const egress = "http://127.0.0.1:8089"
	for _, test := range []struct {
		name     string
		settings carry.Settings
		want     map[string]string
	}{
		{"nothing set", carry.Settings{}, proxied(nil)},
		{
			"telemetry goes out directly, and what was direct stays so",
			carry.Settings{
				NoProxy: []string{"127.0.0.1:9090"},
				Environ: []string{
					"NO_PROXY=.internal, db", "OTEL_EXPORTER_OTLP_ENDPOINT=http://collector:4317",
					"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=http://127.0.0.1:4318/v1/traces", "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT=:bad:",
				},
			},
			proxied(map[string]string{
				"NO_PROXY": ".internal,db,127.0.0.1:9090,collector:4317,127.0.0.1:4318",
				"no_proxy": ".internal,db,127.0.0.1:9090,collector:4317,127.0.0.1:4318",
				"JAVA_TOOL_OPTIONS": "-Dhttp.proxyHost=127.0.0.1 -Dhttp.proxyPort=8089 -Dhttps.proxyHost=127.0.0.1 -Dhttps.proxyPort=8089 " +
					"-Dhttp.nonProxyHosts=*.internal|db|collector",
			}),
		},
		{
			"no proxy at all, on purpose",
			carry.Settings{NoProxy: []string{"127.0.0.1:9090"}, Environ: []string{"no_proxy=*"}},
			proxied(nil),
		},
		{
			"somebody else's proxy stays, and so does what goes past it",
			carry.Settings{NoProxy: []string{"127.0.0.1:9090"}, Environ: []string{"https_proxy=http://proxy.example.com:3128", "NO_PROXY=db"}},
			map[string]string{"HTTP_PROXY": egress, "http_proxy": egress, "WOPPROXY_EGRESS": egress},
		},
		{
			"the proxy of an outer wopproxy is replaced",
			carry.Settings{Environ: []string{
				"WOPPROXY_EGRESS=http://127.0.0.1:1", "HTTP_PROXY=http://127.0.0.1:1", "https_proxy=http://127.0.0.1:1", "NODE_USE_ENV_PROXY=1",
			}},
			proxied(map[string]string{"NODE_USE_ENV_PROXY": ""}),
		},
		{
			"Java's own proxy stays",
			carry.Settings{Environ: []string{"JAVA_TOOL_OPTIONS=-Dhttp.proxyHost=p"}},
			proxied(map[string]string{"JAVA_TOOL_OPTIONS": ""}),
		},
		{
			"roots, where TLS is opened",
			carry.Settings{CA: "/t/ca.pem", Bundle: "/t/all.pem", TrustStore: "/t/a b.jks", Environ: []string{"JAVA_TOOL_OPTIONS=-Xmx1g -Dhttp.nonProxyHosts=db"}},
			proxied(map[string]string{
				"SSL_CERT_FILE": "/t/all.pem", "REQUESTS_CA_BUNDLE": "/t/all.pem", "CURL_CA_BUNDLE": "/t/all.pem", "GIT_SSL_CAINFO": "/t/all.pem",
				"CARGO_HTTP_CAINFO": "/t/all.pem", "AWS_CA_BUNDLE": "/t/all.pem", "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": "/t/all.pem",
				"NODE_EXTRA_CA_CERTS": "/t/ca.pem",
				"JAVA_TOOL_OPTIONS": "-Xmx1g -Dhttp.nonProxyHosts=db -Dhttp.proxyHost=127.0.0.1 -Dhttp.proxyPort=8089 -Dhttps.proxyHost=127.0.0.1 -Dhttps.proxyPort=8089 " +
					`"-Djavax.net.ssl.trustStore=/t/a b.jks" -Djavax.net.ssl.trustStoreType=JKS -Djavax.net.ssl.trustStorePassword=changeit`,
			}),
		},
		{
			"roots of the host's own are kept in what replaces them, or stay",
			carry.Settings{
				CA: "/t/ca.pem", Bundle: "/t/all.pem", Bundles: map[string]string{"/own.pem": "/t/own.pem"},
				Environ: []string{
					"SSL_CERT_FILE=/own.pem", "NODE_EXTRA_CA_CERTS=/own.pem", "CURL_CA_BUNDLE=/unreadable.pem",
					"REQUESTS_CA_BUNDLE=/own.pem", "GIT_SSL_CAINFO=/own.pem", "CARGO_HTTP_CAINFO=/own.pem", "AWS_CA_BUNDLE=/own.pem",
					"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH=/own.pem", "JAVA_TOOL_OPTIONS=-Dhttp.proxyHost=p -Djavax.net.ssl.trustStore=x",
				},
			},
			proxied(map[string]string{
				"SSL_CERT_FILE": "/t/own.pem", "REQUESTS_CA_BUNDLE": "/t/own.pem", "GIT_SSL_CAINFO": "/t/own.pem", "CARGO_HTTP_CAINFO": "/t/own.pem",
				"AWS_CA_BUNDLE": "/t/own.pem", "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": "/t/own.pem", "NODE_EXTRA_CA_CERTS": "/t/own.pem",
				"JAVA_TOOL_OPTIONS": "",
			}),
		},
		{
			"shims",
			carry.Settings{Shims: "/my shims", Headers: []string{"traceparent", "X-Run"}, Environ: []string{"NODE_OPTIONS=--max-old-space-size=100", "PYTHONPATH=/app:/lib"}},
			proxied(map[string]string{
				"WOPPROXY_CARRY_HEADERS": "traceparent,X-Run",
				"NODE_OPTIONS":           `--max-old-space-size=100 --require "/my shims/node.cjs"`,
				"PYTHONPATH":             "/my shims/python:/app:/lib",
			}),
		},
		{
			"shims that are there already",
			carry.Settings{Shims: "/s", Headers: carry.DefaultHeaders, Environ: []string{"NODE_OPTIONS=--require /s/node.cjs", "PYTHONPATH=/app:/s/python"}},
			proxied(nil),
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.settings.Egress = egress
			if diff := cmp.Diff(test.want, carry.Environment(test.settings)); diff != "" {
				t.Errorf("Environment (-want +got):\n%s", diff)
			}
		})
	}
}

// A host whose calls the kernel redirects is told of roots and shims alone.
func TestEnvironmentWithoutProxy(t *testing.T) {
	if diff := cmp.Diff(map[string]string{}, carry.Environment(carry.Settings{NoProxy: []string{"db"}, Environ: []string{"NO_PROXY=x"}})); diff != "" {
		t.Errorf("Environment (-want +got):\n%s", diff)
	}
	want := map[string]string{
		"SSL_CERT_FILE": "/b", "REQUESTS_CA_BUNDLE": "/b", "CURL_CA_BUNDLE": "/b", "GIT_SSL_CAINFO": "/b", "CARGO_HTTP_CAINFO": "/b",
		"AWS_CA_BUNDLE": "/b", "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": "/b", "NODE_EXTRA_CA_CERTS": "/c",
		"NODE_OPTIONS": "--require /s/node.cjs", "PYTHONPATH": "/s/python",
	}
	if diff := cmp.Diff(want, carry.Environment(carry.Settings{Bundle: "/b", CA: "/c", Shims: "/s"})); diff != "" {
		t.Errorf("Environment (-want +got):\n%s", diff)
	}
}

func TestForeignProxies(t *testing.T) {
	for _, test := range []struct {
		environ string
		want    string
	}{
		{"", ""},
		{"HTTP_PROXY=", ""},
		{"HTTP_PROXY=http://p", "http_proxy"},
		{"http_proxy=http://p HTTPS_PROXY=http://p", "http_proxy https_proxy"},
		{"WOPPROXY_EGRESS=http://w HTTP_PROXY=http://w HTTPS_PROXY=http://p", "https_proxy"},
	} {
		if got := strings.Join(carry.ForeignProxies(strings.Fields(test.environ)), " "); got != test.want {
			t.Errorf("ForeignProxies(%q) = %q, want %q", test.environ, got, test.want)
		}
	}
}

func TestApply(t *testing.T) {
	got := carry.Apply([]string{"A=1", "B=2", "A=3", "odd"}, map[string]string{"A": "4", "C": "5"})
	if diff := cmp.Diff([]string{"B=2", "odd", "A=4", "C=5"}, got); diff != "" {
		t.Errorf("Apply (-want +got):\n%s", diff)
	}
}

// authority makes a certificate, PEM.
func authority(t *testing.T, name string) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// TestTrustStore has Java itself read a trust store.
func TestTrustStore(t *testing.T) {
	if _, err := carry.TrustStore([]byte("nothing")); err == nil {
		t.Error("TrustStore of no certificate: no error")
	}
	bundle := bytes.Join([][]byte{authority(t, "one"), []byte("# a comment\n"), authority(t, "two")}, nil)
	store, err := carry.TrustStore(bundle)
	if err != nil {
		t.Fatal(err)
	}
	if n := bytes.Count(store, []byte("X.509")); n != 2 {
		t.Errorf("%d certificates in the trust store, want 2", n)
	}
	keytool, err := exec.LookPath("keytool")
	if err != nil {
		missing(t, "no keytool: nobody but Java reads a trust store")
	}
	file := filepath.Join(t.TempDir(), "roots.jks")
	if err := os.WriteFile(file, store, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), keytool, "-list", "-keystore", file, "-storepass", carry.TrustStorePassword)
	out, err := cmd.CombinedOutput()
	if n := bytes.Count(out, []byte("trustedCertEntry")); err != nil || n != 2 {
		t.Errorf("keytool finds %d certificates, want 2: %v\n%s", n, err, out)
	}
}
