// Package carry makes a host that was never told of wopproxy use it: it knows
// the environment that each runtime reads its proxy and its trusted roots from,
// and holds the shims that make a runtime hand on the context of an inbound
// request by itself.
//
// Who reads what, each tried with the runtime:
//
//	                     proxy                           loopback  trusted roots
//	curl                 http_proxy, HTTPS_PROXY         proxied   CURL_CA_BUNDLE, SSL_CERT_FILE
//	Go net/http          HTTP_PROXY, HTTPS_PROXY         direct    SSL_CERT_FILE
//	grpc-go              HTTPS_PROXY                     direct    SSL_CERT_FILE
//	Python urllib        HTTP_PROXY, HTTPS_PROXY         proxied   SSL_CERT_FILE
//	Python requests      HTTP_PROXY, HTTPS_PROXY         proxied   REQUESTS_CA_BUNDLE
//	Python httpx         HTTP_PROXY, HTTPS_PROXY         proxied   SSL_CERT_FILE
//	Python aiohttp       only with trust_env             proxied   SSL_CERT_FILE
//	Python http.client   none                            direct    SSL_CERT_FILE
//	grpcio               http_proxy                      proxied   GRPC_DEFAULT_SSL_ROOTS_FILE_PATH
//	Node 20              none                            direct    NODE_EXTRA_CA_CERTS
//	Node 22.21, 24.5     HTTP_PROXY, NODE_USE_ENV_PROXY  proxied   NODE_EXTRA_CA_CERTS
//	grpc-js              https_proxy, http_proxy         proxied   NODE_EXTRA_CA_CERTS
//	Java                 JAVA_TOOL_OPTIONS               proxied   JAVA_TOOL_OPTIONS
//	Ruby                 http_proxy, https_proxy         proxied   SSL_CERT_FILE
//	git                  https_proxy                     proxied   GIT_SSL_CAINFO
//	cargo                HTTPS_PROXY                     proxied   CARGO_HTTP_CAINFO
//
// Loopback is what becomes of destinations on the machine itself. Where the
// column says direct the host has to be given the destination by another name,
// or the proxy by its own configuration.
package carry

import (
	"cmp"
	"embed"
	"io/fs"
	"maps"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

//go:embed node.cjs python/sitecustomize.py
var shims embed.FS

// Write writes the shims into dir, which is made if it is absent. They are
// readable to all: the host may be somebody else.
func Write(dir string) error {
	return fs.WalkDir(shims, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		to := filepath.Join(dir, filepath.FromSlash(name))
		if d.IsDir() {
			return os.MkdirAll(to, 0o755)
		}
		text, err := shims.ReadFile(name)
		if err != nil {
			return err
		}
		return os.WriteFile(to, text, 0o644)
	})
}

// Settings are what a host has to be told.
type Settings struct {
	// Egress is the proxy, http://127.0.0.1:8089. Empty where the kernel redirects
	// the host's calls: it is told of no proxy then.
	Egress string
	// NoProxy are hosts, and addresses host:port, that the host shall call
	// directly. Telemetry endpoints that the environment names (OTEL_EXPORTER_*)
	// are added.
	NoProxy []string
	// CA is a file with the certificate of wopproxy's authority alone, Bundle one
	// with the system's roots besides. Empty where no TLS is intercepted.
	CA, Bundle string
	// Bundles are for hosts that trust a file of their own: by its path, one with
	// its content and the authority. A variable whose file is not among them is
	// left alone. [CAFiles] lists them.
	Bundles map[string]string
	// TrustStore is the bundle for Java, a JKS file whose password is
	// [TrustStorePassword]. Empty where no TLS is intercepted.
	TrustStore string
	// Shims is the directory that [Write] has filled, as the host sees it. Empty:
	// the host gets none.
	Shims string
	// Headers are those that the shims may hand on. Default (nil):
	// [DefaultHeaders].
	Headers []string
	// Environ is the environment that the host would have, NAME=value. What is
	// set there on purpose stays: see [Environment].
	Environ []string
}

// DefaultHeaders are what the shims hand on unless they are told otherwise.
var DefaultHeaders = []string{"traceparent", "tracestate", "baggage", "Run-Id", "Run-Ancestry"}

// Names of the variables by which the shims are told.
const (
	// EnvEgress is the proxy. What goes out through HTTP_PROXY goes to wopproxy
	// if they are equal.
	EnvEgress = "WOPPROXY_EGRESS"
	// EnvHeaders lists the headers to hand on. The shims know three by their name:
	// traceparent and tracestate, which go to everyone as tracing has it (the
	// member wop= of tracestate only through the proxy), and baggage. All but the
	// first two go out in the clear and through the proxy alone, which judges and
	// removes them. Inside TLS that nobody opens, Run-Ancestry would even be a lie:
	// it names the parents of the run that hands it on, not that run.
	EnvHeaders = "WOPPROXY_CARRY_HEADERS"
	// EnvCarry switches the shims off, if it is "off".
	EnvCarry = "WOPPROXY_CARRY"
)

// bundleVariables name a file of roots that replaces the default.
var bundleVariables = []string{
	"SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "CARGO_HTTP_CAINFO",
	"AWS_CA_BUNDLE", "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
}

// extraVariable names a file of roots that are trusted besides the default.
const extraVariable = "NODE_EXTRA_CA_CERTS"

// environment is an environment to look things up in.
type environment map[string]string

func parseEnviron(environ []string) environment {
	env := environment{}
	for _, kv := range environ {
		if name, value, ok := strings.Cut(kv, "="); ok {
			env[name] = value
		}
	}
	return env
}

// either returns a variable that is known in both cases.
func (e environment) either(name string) string {
	return cmp.Or(e[name], e[strings.ToUpper(name)])
}

// CAFiles returns the files of roots that the environment names, each once.
func CAFiles(environ []string) []string {
	env := parseEnviron(environ)
	var files []string
	for _, name := range append(slices.Clone(bundleVariables), extraVariable) {
		if file := env[name]; file != "" && !slices.Contains(files, file) {
			files = append(files, file)
		}
	}
	return files
}

// Environment returns the variables to set for a host of any runtime. What the
// environment sets already on purpose outranks what would be set here:
//
//   - A proxy of its own (HTTP_PROXY, HTTPS_PROXY, in either case) stays, because
//     what it leads to may not be reached in another way; the calls of that scheme
//     then pass wopproxy by. One that an outer wopproxy has set is replaced: each
//     host has its own.
//   - NO_PROXY, NODE_OPTIONS, PYTHONPATH and JAVA_TOOL_OPTIONS are added to.
//   - A file of roots is replaced by one that has its content, too.
//
// It reads and writes nothing.
func Environment(s Settings) map[string]string {
	env := parseEnviron(s.Environ)
	set := map[string]string{}
	if s.Egress != "" {
		s.proxy(env, set)
	}
	s.trust(env, set)
	s.shim(env, set)
	return set
}

// proxy names the proxy.
func (s Settings) proxy(env environment, set map[string]string) {
	set[EnvEgress] = s.Egress
	foreign := ForeignProxies(s.Environ)
	for _, name := range proxyVariables {
		if !slices.Contains(foreign, name) {
			set[name], set[strings.ToUpper(name)] = s.Egress, s.Egress
		}
	}
	if len(foreign) == 0 { // else it would change what goes to somebody else's proxy
		direct := env.direct(s.NoProxy)
		if len(direct) > 0 {
			set["no_proxy"] = strings.Join(direct, ",")
			set["NO_PROXY"] = set["no_proxy"]
		}
		if env["NODE_USE_ENV_PROXY"] == "" {
			set["NODE_USE_ENV_PROXY"] = "1"
		}
		s.javaProxy(env, set, direct)
	}
}

// proxyVariables are known in both cases. ALL_PROXY is left alone: it stands for
// protocols that wopproxy does not speak.
var proxyVariables = []string{"http_proxy", "https_proxy"}

// ForeignProxies returns which of http_proxy and https_proxy name, in either
// case, a proxy that is not a wopproxy's.
func ForeignProxies(environ []string) (names []string) {
	env := parseEnviron(environ)
	for _, name := range proxyVariables {
		if proxy := env.either(name); proxy != "" && proxy != env[EnvEgress] {
			names = append(names, name)
		}
	}
	return names
}

// direct returns whom the host shall call directly.
func (e environment) direct(more []string) []string {
	given := e.either("no_proxy")
	if strings.TrimSpace(given) == "*" {
		return nil // which is understood alone only, and says it all
	}
	var list []string
	add := func(entries ...string) {
		for _, entry := range entries {
			if entry != "" && !slices.Contains(list, entry) {
				list = append(list, entry)
			}
		}
	}
	add(strings.FieldsFunc(given, func(r rune) bool { return r == ',' || r == ' ' })...)
	add(more...)
	for _, signal := range []string{"", "_TRACES", "_METRICS", "_LOGS"} {
		u, err := url.Parse(e["OTEL_EXPORTER_OTLP"+signal+"_ENDPOINT"])
		if err == nil {
			add(u.Host)
		}
	}
	return list
}

// trust names the files of roots, where TLS is intercepted.
func (s Settings) trust(env environment, set map[string]string) {
	if s.Bundle == "" {
		return
	}
	for _, name := range bundleVariables {
		if file := env[name]; file == "" {
			set[name] = s.Bundle
		} else if own := s.Bundles[file]; own != "" {
			set[name] = own
		}
	}
	if file := env[extraVariable]; file == "" {
		set[extraVariable] = s.CA
	} else if own := s.Bundles[file]; own != "" {
		set[extraVariable] = own
	}
	const java = "JAVA_TOOL_OPTIONS"
	if given := cmp.Or(set[java], env[java]); s.TrustStore != "" && !strings.Contains(given, "-Djavax.net.ssl.trustStore=") {
		set[java] = strings.TrimSpace(given + " " + javaQuote("-Djavax.net.ssl.trustStore="+s.TrustStore) +
			" -Djavax.net.ssl.trustStoreType=JKS -Djavax.net.ssl.trustStorePassword=" + TrustStorePassword)
	}
}

// javaProxy adds the system properties that Java takes in the place of the proxy
// variables.
func (s Settings) javaProxy(env environment, set map[string]string, direct []string) {
	given := env["JAVA_TOOL_OPTIONS"]
	u, err := url.Parse(s.Egress)
	if err != nil || strings.Contains(given, "proxyHost=") {
		return
	}
	var options []string
	for _, scheme := range []string{"http", "https"} {
		options = append(options, "-D"+scheme+".proxyHost="+u.Hostname(), "-D"+scheme+".proxyPort="+u.Port())
	}
	if !strings.Contains(given, "-Dhttp.nonProxyHosts=") {
		options = append(options, "-Dhttp.nonProxyHosts="+strings.Join(javaHosts(direct), "|"))
	}
	set["JAVA_TOOL_OPTIONS"] = strings.TrimSpace(given + " " + strings.Join(options, " "))
}

// javaHosts translates NO_PROXY: Java knows no ports and no networks here, and
// bypasses loopback unless it is told what else to bypass. A loopback address
// with a port is left out, or all the others would be called directly, too.
func javaHosts(direct []string) (hosts []string) {
	for _, entry := range direct {
		host, _, err := net.SplitHostPort(entry)
		switch {
		case strings.ContainsAny(entry, "/|"):
			continue
		case err != nil:
			host = entry
		case host == "localhost" || net.ParseIP(host).IsLoopback():
			continue
		}
		if strings.HasPrefix(host, ".") {
			host = "*" + host
		}
		hosts = append(hosts, host)
	}
	return hosts
}

// javaQuote keeps an option with spaces together.
func javaQuote(option string) string {
	if strings.ContainsAny(option, " \t") {
		return `"` + option + `"`
	}
	return option
}

// shim makes each runtime load its shim.
func (s Settings) shim(env environment, set map[string]string) {
	if s.Shims == "" {
		return
	}
	if s.Headers != nil && !slices.Equal(s.Headers, DefaultHeaders) {
		set[EnvHeaders] = strings.Join(s.Headers, ",")
	}
	file := filepath.Join(s.Shims, "node.cjs")
	if strings.ContainsAny(file, ` "\`) {
		file = strconv.Quote(file) // NODE_OPTIONS has backslashes for escapes, too
	}
	if given := env["NODE_OPTIONS"]; !strings.Contains(given, file) {
		set["NODE_OPTIONS"] = strings.TrimSpace(given + " --require " + file)
	}
	path := filepath.SplitList(env["PYTHONPATH"])
	if dir := filepath.Join(s.Shims, "python"); !slices.Contains(path, dir) {
		set["PYTHONPATH"] = strings.Join(append([]string{dir}, path...), string(filepath.ListSeparator))
	}
}

// Apply returns environ with the variables in set.
func Apply(environ []string, set map[string]string) []string {
	out := slices.DeleteFunc(slices.Clone(environ), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		_, replaced := set[name]
		return replaced
	})
	for _, name := range slices.Sorted(maps.Keys(set)) {
		out = append(out, name+"="+set[name])
	}
	return out
}
