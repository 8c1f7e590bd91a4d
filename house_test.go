// Package wopproxy_test holds the house together: who may import whom, and what
// the documents say of the program. It has no code of its own to test.
package wopproxy_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/wopproxy/wopproxy"

// rooms says for each package what it may import beyond the standard library:
// packages of the house by their path in it, others by their module or the part
// of it. A new edge is a design decision: make it here, in view of the reviewer.
var rooms = map[string][]string{
	".": {},
	"ancestry": {
		"github.com/dunglas/httpsfv", "github.com/oklog/ulid/v2", "github.com/prometheus/client_golang",
	},
	"ancestry/ancestrytest": {"ancestry", "github.com/google/go-cmp"},
	"ancestry/boltstore":    {"ancestry", "evidence", "go.etcd.io/bbolt"},
	"ancestry/peac":         {},
	"carry":                 {},
	"charts":                {},
	"cmd/wopproxy": {
		"ancestry", "ancestry/boltstore", "ancestry/peac", "audit", "carry", "config", "deploy/inject", "deploy/webhook", "evidence", "proxy", "redirect",
		"github.com/fsnotify/fsnotify", "github.com/prometheus/client_golang", "go.opentelemetry.io/otel/sdk", "golang.org/x/sync",
	},
	"audit":    {},
	"config":   {"gopkg.in/yaml.v3"},
	"evidence": {"ancestry", "ancestry/peac", "github.com/prometheus/client_golang"},
	"proxy": {
		"ancestry", "audit", "evidence", "proxy/internal/attribution", "proxy/internal/openwop", "proxy/internal/wire",
		"github.com/elazarl/goproxy", "github.com/prometheus/client_golang",
		"go.opentelemetry.io/contrib/propagators", "go.opentelemetry.io/otel",
	},
	"proxy/internal/attribution": {"ancestry", "evidence"},
	"proxy/internal/openwop":     {},
	"proxy/internal/wire":        {},
	"redirect":                   {"github.com/google/nftables"},
	"deploy":                     {},
	"deploy/compose":             {},
	"deploy/inject":              {"carry", "config", "gopkg.in/yaml.v3"},
	"deploy/webhook":             {"deploy/inject", "github.com/prometheus/client_golang"},
	"test/accuracy":              {"test/internal/program"},
	"test/bench":                 {"ancestry", "ancestry/boltstore", "test/internal/program", "test/internal/rawhttp", "github.com/elazarl/goproxy"},
	"test/e2e":                   {},
	"test/e2e/kube":              {},
	"test/internal/program":      {},
	"test/internal/rawhttp":      {},
	"test/picture":               {"test/internal/program"},
	"test/kill":                  {"ancestry", "ancestry/boltstore", "ancestry/peac", "evidence", "test/internal/program"},
	"test/soak":                  {"test/internal/program", "test/internal/rawhttp"},
}

// atHomeInMany are the libraries that enter through more than one package, and
// why. Every other one is known to one package alone.
var atHomeInMany = map[string]string{
	"github.com/elazarl/goproxy":          "the bench measures it bare, beside what proxy makes of it",
	"gopkg.in/yaml.v3":                    "inject edits manifests in place, which takes their nodes",
	"github.com/prometheus/client_golang": "each package counts what it does itself, on a registry that it is given",
	"go.opentelemetry.io/otel/sdk":        "cmd owns the life of the tracer provider that proxy makes",
}

// oneFile are the libraries whose ways we work around: they are known to one
// file of a package, so that what they do stays in one place.
var oneFile = map[string][]string{
	"github.com/elazarl/goproxy":   {"proxy/egress.go", "test/bench/gopeers.go"},
	"github.com/dunglas/httpsfv":   {"ancestry/header.go"},
	"github.com/oklog/ulid/v2":     {"ancestry/runid.go"},
	"github.com/fsnotify/fsnotify": {"cmd/wopproxy/reload.go"},
	"github.com/google/nftables":   {"redirect/redirect_linux.go"},
}

// inTests are the libraries that only tests, and packages for tests, import.
var inTests = []string{
	"github.com/a2aproject/a2a-go", "github.com/go-json-experiment/json", "github.com/google/go-cmp", "github.com/google/jsonschema-go",
	"github.com/modelcontextprotocol/go-sdk", "github.com/prometheus/client_model",
	"go.opentelemetry.io/proto/otlp", "golang.org/x/net", "golang.org/x/tools", "google.golang.org/grpc", "google.golang.org/protobuf",
	"k8s.io/api", "k8s.io/apimachinery",
}

// pkg is what the go command tells of a package.
type pkg struct {
	ImportPath                               string
	Standard                                 bool
	Dir                                      string
	GoFiles                                  []string
	Imports, TestImports, XTestImports, Deps []string
}

// goList asks the go command for packages, each under its path in the house.
func goList(t *testing.T, args ...string) map[string]pkg {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"list", "-json"}, args...)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, &stderr)
	}
	pkgs := map[string]pkg{}
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return pkgs
		} else if err != nil {
			t.Fatal(err)
		}
		pkgs[room(p.ImportPath)] = p
	}
}

// room is the path of a package in the house, or its import path.
func room(path string) string {
	if path == module {
		return "."
	}
	return strings.TrimPrefix(path, module+"/")
}

// foreign returns what of imports is neither the standard library's nor allowed.
func foreign(imports, allowed []string) (left []string) {
	for _, path := range imports {
		first, _, _ := strings.Cut(path, "/")
		own := path == module || strings.HasPrefix(path, module+"/")
		may := func(a string) bool {
			return room(path) == a || !own && strings.HasPrefix(path, a+"/")
		}
		if (own || strings.Contains(first, ".")) && !slices.ContainsFunc(allowed, may) {
			left = append(left, room(path))
		}
	}
	return left
}

// TestImportDirection pins who may import whom, and that no entry of the list
// has outlived its import.
func TestImportDirection(t *testing.T) {
	pkgs := goList(t, "./...")
	for name := range rooms {
		if _, ok := pkgs[name]; !ok {
			t.Errorf("rooms has %s, which is no package", name)
		}
	}
	homes := map[string][]string{} // library → packages
	for _, name := range slices.Sorted(maps.Keys(pkgs)) {
		allowed, ok := rooms[name]
		if !ok {
			t.Errorf("%s is new: say in rooms what it may import", name)
			continue
		}
		if left := foreign(pkgs[name].Imports, allowed); len(left) > 0 {
			t.Errorf("%s imports %q, which rooms does not allow", name, left)
		}
		for _, a := range allowed {
			if len(foreign(pkgs[name].Imports, []string{a})) == len(foreign(pkgs[name].Imports, nil)) {
				t.Errorf("%s no longer imports %s: take it out of rooms", name, a)
			}
		}
		for _, lib := range libraries(pkgs[name].Imports) {
			homes[lib] = append(homes[lib], name)
		}
		// Tests may see every package, and what else is theirs.
		tests := slices.Concat(pkgs[name].TestImports, pkgs[name].XTestImports)
		if left := foreign(tests, slices.Concat(libraries(tests), inTests, slices.Collect(maps.Keys(pkgs)))); len(left) > 0 {
			t.Errorf("tests of %s import %q: name it in inTests", name, left)
		}
	}
	for lib, in := range homes {
		if many := atHomeInMany[lib] != ""; (len(in) > 1) != many {
			t.Errorf("%s enters through %q, and atHomeInMany has it = %v", lib, in, many)
		}
	}
}

// libraries returns the libraries of rooms that the paths belong to, each once:
// of two, the one that says more.
func libraries(paths []string) []string {
	found := map[string]bool{}
	for _, path := range paths {
		best := ""
		for _, allowed := range rooms {
			for _, lib := range allowed {
				if strings.Contains(lib, ".") && (path == lib || strings.HasPrefix(path, lib+"/")) && len(lib) > len(best) {
					best = lib
				}
			}
		}
		found[best] = true
	}
	delete(found, "")
	return slices.Sorted(maps.Keys(found))
}

// TestOneFile keeps libraries that have to be worked around in one file each.
func TestOneFile(t *testing.T) {
	for name, p := range goList(t, "./...") {
		for _, file := range p.GoFiles {
			path := strings.TrimPrefix(name+"/"+file, "./")
			f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
			if err != nil {
				t.Fatal(err)
			}
			for lib, homes := range oneFile {
				imports := slices.ContainsFunc(f.Imports, func(i *ast.ImportSpec) bool {
					of, _ := strconv.Unquote(i.Path.Value)
					return of == lib || strings.HasPrefix(of, lib+"/")
				})
				if imports != slices.Contains(homes, path) {
					t.Errorf("%s imports %s = %v, want it in %q alone", path, lib, imports, homes)
				}
			}
		}
	}
}

// TestNothingUnsafe keeps packages out that get round the language: what a peer
// sends must not be able to do more than Go lets it.
func TestNothingUnsafe(t *testing.T) {
	for name, p := range goList(t, "./...") {
		for _, path := range slices.Concat(p.Imports, p.TestImports, p.XTestImports) {
			if path == "unsafe" || path == "C" || path == "plugin" {
				t.Errorf("%s imports %s", name, path)
			}
		}
		for _, file := range p.GoFiles {
			if text := read(t, strings.TrimPrefix(name+"/"+file, "./")); strings.Contains(text, "//go:link"+"name") {
				t.Errorf("%s links to what it may not see", file)
			}
		}
	}
}

// TestNoTemplates builds as the image is: what it leaves out is the engines of
// templates, which come with gRPC's pages about its calls.
func TestNoTemplates(t *testing.T) {
	build := regexp.MustCompile(`(?m)^RUN .*go build .*-tags (\S+) `).FindStringSubmatch(read(t, "Dockerfile"))
	if build == nil {
		t.Fatal("the Dockerfile has no line RUN ... go build ... -tags TAGS")
	}
	for _, path := range goList(t, "-tags", build[1], "./cmd/wopproxy")["cmd/wopproxy"].Deps {
		if path == "text/template" || path == "html/template" {
			t.Errorf("with -tags %s, wopproxy has %s", build[1], path)
		}
	}
}

// TestPureRooms keeps the codecs what they are: functions of bytes. Attribution
// knows runs, and so package ancestry, but nothing of the network either.
func TestPureRooms(t *testing.T) {
	network := regexp.MustCompile(`^(net|net/(http|netip|rpc|smtp|textproto).*|os|os/.*|syscall|crypto/tls|log/slog)$`)
	for _, name := range []string{"proxy/internal/wire", "proxy/internal/openwop", "proxy/internal/attribution"} {
		p := goList(t, "./"+name)[name]
		for _, path := range p.Imports {
			if network.MatchString(path) {
				t.Errorf("%s imports %s: want neither network nor files", name, path)
			}
		}
		for _, path := range p.Deps {
			if strings.HasPrefix(room(path), "proxy/") {
				t.Errorf("%s depends on %s: want none of its neighbours", name, room(path))
			}
			if name != "proxy/internal/attribution" && (path == "net" || strings.HasPrefix(path, "net/")) {
				t.Errorf("%s depends on %s: want no network", name, path)
			}
		}
	}
	// Issuers are named by origins, so evidence knows the text of an address.
	p := goList(t, "./ancestry/peac")["ancestry/peac"]
	for _, path := range p.Imports {
		if network.MatchString(path) && path != "net/netip" {
			t.Errorf("ancestry/peac imports %s: want neither network nor files", path)
		}
	}
	if slices.Contains(p.Deps, "net") {
		t.Error("ancestry/peac depends on net: want no network")
	}
	for _, path := range goList(t, "./proxy")["proxy"].Deps {
		if room(path) == "config" || strings.HasPrefix(room(path), "cmd/") {
			t.Errorf("proxy depends on %s: configuration is handed to it", room(path))
		}
	}
}

// files returns the text of every file that is part of the project.
func files(t *testing.T) map[string]string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	out, err := cmd.Output()
	if err != nil {
		t.Skipf("not a git checkout: %v", err)
	}
	texts := map[string]string{}
	for name := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
		info, err := os.Lstat(name)
		if errors.Is(err, fs.ErrNotExist) || err == nil && !info.Mode().IsRegular() {
			continue // deleted and not yet committed, or a link
		}
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		texts[name] = string(text)
	}
	return texts
}

// TestNothingLeftBehind refuses marks of unfinished work, and paths that exist
// on one machine only.
func TestNothingLeftBehind(t *testing.T) {
	marks := []struct {
		name    string
		pattern *regexp.Regexp
	}{
		{"unfinished work", regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME|XX` + `X|HA` + `CK)\b`)},
		{"somebody's machine", regexp.MustCompile("(^|[\\s\"'`=(,:])/(home|root|Users|work|workspace|mnt)/[A-Za-z0-9._]")},
		{"a merge left open", regexp.MustCompile(`(?m)^(<{7}|>{7}|={7})( |$)`)},
		{"a private key", regexp.MustCompile(`BEGIN [A-Z ]*PRIVATE ` + `KEY`)},
		{"a local replacement of a module", regexp.MustCompile(`(?m)^replace .* => [./]`)},
	}
	for name, text := range files(t) {
		for _, m := range marks {
			if at := m.pattern.FindStringIndex(text); at != nil {
				t.Errorf("%s:%d has %s: %q", name, 1+strings.Count(text[:at[0]], "\n"), m.name, text[at[0]:at[1]])
			}
		}
		// Tests may compare with documents beside the checkout, and skip without.
		if strings.Contains(text, ".."+"/shared") && !strings.HasSuffix(name, "_test.go") {
			t.Errorf("%s reads what is not part of the project", name)
		}
	}
}
