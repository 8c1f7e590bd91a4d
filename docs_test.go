package wopproxy_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"gopkg.in/yaml.v3"

	"github.com/wopproxy/wopproxy/ancestry"
	"github.com/wopproxy/wopproxy/config"
)

// documents are the texts that are held to what the program does.
var documents = []string{
	"README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "CONFORMANCE.md", "deploy/README.md", "deploy/alerts/README.md",
	"deploy/compose/README.md", "deploy/inject/README.md", "deploy/kubernetes/README.md", "charts/wopproxy/README.md",
}

func read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

var fence = regexp.MustCompile("(?ms)^```(\\w*)\n(.*?)^```$")

// blocks returns the fenced blocks of a document in one language.
func blocks(text, lang string) (found []string) {
	for _, m := range fence.FindAllStringSubmatch(text, -1) {
		if m[1] == lang {
			found = append(found, m[2])
		}
	}
	return found
}

// rows returns the cells of the table whose first column has the given heading.
func rows(text, heading string) (table [][]string) {
	_, text, found := strings.Cut(text, "\n| "+heading+" |")
	if !found {
		return nil
	}
	_, text, _ = strings.Cut(text, "\n") // what is left of the heading
	_, text, _ = strings.Cut(text, "\n") // the rule below it
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "|") {
			break
		}
		var cells []string
		for cell := range strings.SplitSeq(strings.Trim(strings.TrimSpace(line), "|"), " | ") {
			cells = append(cells, strings.Trim(cell, " `"))
		}
		table = append(table, cells)
	}
	return table
}

// TestReadmeConfigurations loads each configuration that the README shows.
func TestReadmeConfigurations(t *testing.T) {
	examples := blocks(read(t, "README.md"), "yaml")
	if len(examples) != 2 {
		t.Errorf("README.md has %d configurations, want 2", len(examples))
	}
	for _, text := range examples {
		if _, err := config.Parse(strings.NewReader(text)); err != nil {
			t.Errorf("README.md has a configuration that does not load:\n%v\n%s", err, text)
		}
	}
}

// TestReadmeLadder compares the ladder that the README shows with the evidence
// that there is, from the highest rung to the lowest.
func TestReadmeLadder(t *testing.T) {
	var got []ancestry.Evidence
	for _, row := range rows(read(t, "README.md"), "evidence") {
		got = append(got, ancestry.Evidence(row[0]))
	}
	want := []ancestry.Evidence{
		ancestry.EvidenceRunID, ancestry.EvidenceTraceState, ancestry.EvidenceTraceID, ancestry.EvidenceProxyCredential,
		ancestry.EvidenceBasePath, ancestry.EvidenceProcess, ancestry.EvidenceConversation, ancestry.EvidenceEchoedID, ancestry.EvidenceSingleFlight,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("rungs in README.md (-want +got):\n%s", diff)
	}
}

// TestProgram runs the program as the documents say.
func TestProgram(t *testing.T) {
	program := filepath.Join(t.TempDir(), "wopproxy")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, "./cmd/wopproxy").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	run := func(t *testing.T, args ...string) string {
		t.Helper()
		out, err := exec.CommandContext(t.Context(), program, args...).CombinedOutput()
		if err != nil {
			t.Errorf("wopproxy %q: %v\n%s", args, err, out)
		}
		return string(out)
	}
	t.Run("demo", func(t *testing.T) {
		got := sameIDs(run(t, "demo"))
		shown := blocks(read(t, "README.md"), "")
		if len(shown) != 2 {
			t.Errorf("README.md shows %d outputs, want 2", len(shown))
		}
		for _, text := range shown {
			if !strings.Contains(got, sameIDs(text)) {
				t.Errorf("README.md shows what the demo does not print:\n%s\nbut:\n%s", text, got)
			}
		}
	})
	t.Run("flags", func(t *testing.T) {
		manuals := map[string]string{}
		for _, name := range documents {
			for _, m := range calls(read(t, name)) {
				if _, ok := manuals[m.command]; !ok {
					manuals[m.command] = run(t, m.command, "-h")
				}
				for _, f := range m.flags {
					if !regexp.MustCompile(`(?m)^  -` + f + `\b`).MatchString(manuals[m.command]) {
						t.Errorf("%s has wopproxy %s -%s, a flag that does not exist", name, m.command, f)
					}
				}
			}
		}
		for _, m := range regexp.MustCompile(`(?m)^  (\w+)`).FindAllStringSubmatch(run(t, "help"), -1) {
			if _, ok := manuals[m[1]]; !ok {
				t.Errorf("no document shows wopproxy %s", m[1])
			}
		}
	})
	t.Run("injector", func(t *testing.T) {
		manual, template := run(t, "webhook", "-h"), read(t, "charts/wopproxy/templates/deployment.yaml")
		given := regexp.MustCompile(`(?m)^ +- (?:\{\{ printf ")?-([a-z-]+)=`).FindAllStringSubmatch(template, -1)
		ports := regexp.MustCompile(`containerPort: (\d+)`).FindAllStringSubmatch(template, -1)
		if len(given) < 8 || len(ports) != 2 {
			t.Errorf("the chart gives %d flags and has %d ports: it was not read", len(given), len(ports))
		}
		for _, f := range given {
			if !regexp.MustCompile(`(?m)^  -` + f[1] + `\b`).MatchString(manual) {
				t.Errorf("the chart has wopproxy webhook -%s, a flag that does not exist", f[1])
			}
		}
		for _, p := range ports {
			if !strings.Contains(manual, fmt.Sprintf("(default %q)", ":"+p[1])) {
				t.Errorf("the chart has the port %s, which webhook does not listen on by default", p[1])
			}
		}
	})
	t.Run("check", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "wopproxy.yaml")
		if err := os.WriteFile(file, []byte(blocks(read(t, "README.md"), "yaml")[0]), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, want := run(t, "check", "-config", file), file+": ok, host my-agent.example.com\n"; got != want {
			t.Errorf("wopproxy check = %q, want %q", got, want)
		}
	})
}

// sameIDs replaces what differs from one demo to the next.
func sameIDs(text string) string {
	return regexp.MustCompile(`run_[0-9A-Z]{26}`).ReplaceAllString(text, "run_ID")
}

// call is a use of the program in a document.
type call struct {
	command string
	flags   []string
}

var (
	program = regexp.MustCompile("(?:^|[\\s`\"/])(?:\\./cmd/)?wopproxy ([a-z]+)([^`\n#]*)")
	flags   = regexp.MustCompile(`(?:^|[\s\["])-([a-z][a-z-]*)`)
	code    = regexp.MustCompile("(?m)`[^`\n]+`|^    .*$")
)

// calls returns the uses of the program in code, as far as they name a command.
func calls(text string) (found []call) {
	var spans []string
	for _, m := range fence.FindAllStringSubmatch(text, -1) {
		spans = append(spans, strings.Split(m[2], "\n")...)
	}
	for _, span := range append(spans, code.FindAllString(fence.ReplaceAllString(text, ""), -1)...) {
		for _, m := range program.FindAllStringSubmatch(span, -1) {
			c := call{command: m[1]}
			for _, f := range flags.FindAllStringSubmatch(m[2], -1) {
				c.flags = append(c.flags, f[1])
			}
			found = append(found, c)
		}
	}
	return found
}

// TestMetricsExist looks every metric that a document or a deployment names up
// in the sources, and holds the operators' table to the golden list.
func TestMetricsExist(t *testing.T) {
	series := regexp.MustCompile(`_(bucket|sum|count)$`) // of a histogram
	name := regexp.MustCompile(`\bwopproxy_[a-z_]+[a-z]\b`)
	known := map[string]bool{}
	for file, text := range files(t) {
		if strings.HasSuffix(file, ".go") && !strings.HasSuffix(file, "_test.go") {
			for _, m := range regexp.MustCompile(`"(wopproxy_[a-z_]+)"`).FindAllStringSubmatch(text, -1) {
				known[m[1]] = true
			}
		}
	}
	for file, text := range files(t) {
		if strings.HasSuffix(file, ".md") || strings.HasPrefix(file, "deploy/") {
			for _, m := range name.FindAllString(text, -1) {
				if !known[m] && !known[series.ReplaceAllString(m, "")] {
					t.Errorf("%s names the metric %s, which does not exist", file, m)
				}
			}
		}
	}
	// Served only as configured: spans exported, the host asked, evidence made.
	tabulated(t, "deploy/README.md", "metrics.golden", "wopproxy_ancestry_host_checks_total counter verdict", "wopproxy_span_export_failures_total counter",
		"wopproxy_evidence_dropped_total counter reason", "wopproxy_evidence_limit_hits_total counter limit",
		"wopproxy_evidence_queue_length gauge", "wopproxy_evidence_receipts_total counter", "wopproxy_evidence_upstream_total counter verdict")
	tabulated(t, "deploy/inject/README.md", "webhook-metrics.golden")
}

// tabulated compares the metrics that a document lists with a golden file, and more.
func tabulated(t *testing.T, document, file string, more ...string) {
	t.Helper()
	var table []string
	for _, row := range rows(read(t, document), "metric") {
		labels := strings.ReplaceAll(strings.Trim(row[2], "–"), "`", "")
		table = append(table, strings.TrimSpace(row[0]+" "+row[1]+" "+strings.ReplaceAll(labels, ", ", ",")))
	}
	golden := append(strings.Split(strings.TrimSpace(read(t, "cmd/wopproxy/testdata/"+file)), "\n"), more...)
	slices.Sort(golden)
	slices.Sort(table)
	if diff := cmp.Diff(slices.Compact(golden), table); diff != "" {
		t.Errorf("metrics in %s (-served +described):\n%s", document, diff)
	}
}

// TestKeysExist looks every configuration key that a document names up in the
// schema.
func TestKeysExist(t *testing.T) {
	keys := map[string]bool{}
	var root schema
	if err := json.Unmarshal([]byte(read(t, "config/wopproxy.schema.json")), &root); err != nil {
		t.Fatal(err)
	}
	root.walk("", keys)
	found := 0
	for _, name := range documents {
		for _, m := range regexp.MustCompile("`([a-z]+)(\\.[a-zA-Z0-9.]+)(: [^`]*)?`").FindAllStringSubmatch(read(t, name), -1) {
			if keys[m[1]] { // else it is a file, or a member of a message
				found++
				if !keys[m[1]+m[2]] {
					t.Errorf("%s names the key %s, which does not exist", name, m[1]+m[2])
				}
			}
		}
	}
	if found < 20 {
		t.Errorf("%d keys found in the documents, want 20 or more: are they still spelled as `section.key`?", found)
	}
}

// schema is as much of JSON Schema as it takes to list keys.
type schema struct {
	Properties map[string]schema `json:"properties"`
}

func (s schema) walk(path string, keys map[string]bool) {
	for name, below := range s.Properties {
		keys[path+name] = true
		below.walk(path+name+".", keys)
	}
}

// TestLinks follows each link of a document that leads to a file here.
func TestLinks(t *testing.T) {
	for _, name := range documents {
		for _, m := range regexp.MustCompile(`\]\(([^)#]+)`).FindAllStringSubmatch(read(t, name), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			if _, err := os.Stat(filepath.Join(filepath.Dir(name), m[1])); err != nil {
				t.Errorf("%s links to %s: %v", name, m[1], err)
			}
		}
	}
	if to, err := os.Readlink("AGENTS.md"); err != nil || to != "CONTRIBUTING.md" {
		t.Errorf("AGENTS.md leads to %q (%v), want CONTRIBUTING.md: one text for all who contribute", to, err)
	}
}

// TestMapOfTheHouse wants every package on the map, and every direct dependency
// explained.
func TestMapOfTheHouse(t *testing.T) {
	text := read(t, "CONTRIBUTING.md")
	var got []string
	for _, row := range rows(text, "package") {
		got = append(got, row[0])
	}
	want := slices.Sorted(maps.Keys(goList(t, "./...")))
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("map in CONTRIBUTING.md (-packages +rows):\n%s", diff)
	}
	var reasons []string
	for _, row := range rows(text, "module") {
		reasons = append(reasons, row[0])
	}
	modules := direct(t)
	covers := func(row, m string) bool { return m == row || strings.HasPrefix(m, row+"/") }
	for _, m := range modules {
		if !slices.ContainsFunc(reasons, func(row string) bool { return covers(row, m) }) {
			t.Errorf("CONTRIBUTING.md gives no reason for %s", m)
		}
	}
	for _, row := range reasons {
		if !slices.ContainsFunc(modules, func(m string) bool { return covers(row, m) }) {
			t.Errorf("CONTRIBUTING.md gives a reason for %s, which is not imported", row)
		}
	}
}

// direct returns the modules that the house imports.
func direct(t *testing.T) []string {
	t.Helper()
	var modules []string
	for _, m := range regexp.MustCompile(`(?m)^(?:require )?\s*([a-z0-9.-]+\.[a-z]+/\S+) v`).FindAllStringSubmatch(read(t, "go.mod"), -1) {
		modules = append(modules, m[1])
	}
	found := map[string]bool{}
	for _, p := range goList(t, "./...") {
		for _, path := range slices.Concat(p.Imports, p.TestImports, p.XTestImports) {
			best := ""
			for _, m := range modules {
				if (path == m || strings.HasPrefix(path, m+"/")) && len(m) > len(best) {
					best = m
				}
			}
			found[best] = true
		}
	}
	delete(found, "")
	return slices.Sorted(maps.Keys(found))
}

// manifest is as much of a Kubernetes object as the sidecar's example says.
type manifest struct {
	Kind     string
	Metadata struct{ Name string }
	Data     map[string]string
	Spec     struct {
		Template struct {
			Spec struct {
				TerminationGracePeriodSeconds int
				InitContainers, Containers    []container
				Volumes                       []struct{ ConfigMap struct{ Name string } }
			}
		}
		Ingress []struct{ Ports []struct{ Port int } }
	}
}

type container struct {
	RestartPolicy                               string
	Args                                        []string
	Ports                                       []struct{ ContainerPort int }
	Env                                         []struct{ Name, Value string }
	StartupProbe, LivenessProbe, ReadinessProbe struct{ HTTPGet struct{ Path, Port string } }
	VolumeMounts                                []struct{ Name, MountPath, SubPath string }
	Lifecycle                                   struct {
		PreStop struct {
			Sleep struct{ Seconds int }
			Exec  struct{ Command []string }
		}
	}
}

// TestSidecarManifest loads the configuration in the example for Kubernetes, and
// compares it with what stands around it.
func TestSidecarManifest(t *testing.T) {
	objects := map[string]manifest{}
	// Kubernetes spells its keys in camel case, which the decoder of YAML would
	// want to be told of each; the one of JSON does not.
	for dec := yaml.NewDecoder(strings.NewReader(blocks(read(t, "deploy/README.md"), "yaml")[0])); ; {
		var raw any
		if err := dec.Decode(&raw); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(raw)
		if err != nil {
			t.Fatal(err)
		}
		var m manifest
		if err := json.Unmarshal(text, &m); err != nil {
			t.Fatal(err)
		}
		objects[m.Kind] = m
	}
	c, err := config.Parse(strings.NewReader(objects["ConfigMap"].Data["wopproxy.yaml"]))
	if err != nil {
		t.Fatalf("the configuration does not load:\n%v", err)
	}
	pod := objects["StatefulSet"].Spec.Template.Spec
	if len(pod.InitContainers) != 1 || len(pod.Containers) != 1 {
		t.Fatalf("%d init containers and %d containers, want 1 and 1", len(pod.InitContainers), len(pod.Containers))
	}
	side, host := pod.InitContainers[0], pod.Containers[0]
	port := func(a config.Address) int {
		_, p, _ := strings.Cut(string(a), ":")
		n, _ := strconv.Atoi(p)
		return n
	}
	type facts struct {
		RestartPolicy, ConfigMap, Proxy  string
		Probes                           []string
		Ports, Admitted                  []int
		Mounts                           []string
		EgressOnLoopback, StopsInTime    bool
		LeavesInTime                     bool
		ReadsWhatIsMounted, HostIsInside bool
	}
	serves := time.Duration(host.Lifecycle.PreStop.Sleep.Seconds) * time.Second
	got := facts{
		RestartPolicy: side.RestartPolicy, ConfigMap: pod.Volumes[0].ConfigMap.Name,
		EgressOnLoopback: c.Egress.Listen.Loopback(), HostIsInside: c.Ingress.Upstream.Hostname() == "127.0.0.1",
		ReadsWhatIsMounted: slices.Contains(side.Args, "/etc/wopproxy/wopproxy.yaml"),
		StopsInTime:        serves+c.Drain.Delay.Duration+c.Drain.Timeout.Duration < time.Duration(pod.TerminationGracePeriodSeconds)*time.Second,
		LeavesInTime:       c.Drain.Delay.Duration < serves && slices.Equal(side.Lifecycle.PreStop.Exec.Command, []string{"/usr/bin/wopproxy", "drain"}),
	}
	for _, p := range side.Ports {
		got.Ports = append(got.Ports, p.ContainerPort)
	}
	for _, rule := range objects["NetworkPolicy"].Spec.Ingress {
		got.Admitted = append(got.Admitted, rule.Ports[0].Port)
	}
	for _, p := range []struct{ Path, Port string }{side.StartupProbe.HTTPGet, side.LivenessProbe.HTTPGet, side.ReadinessProbe.HTTPGet} {
		got.Probes = append(got.Probes, p.Port+p.Path)
	}
	for _, m := range side.VolumeMounts {
		got.Mounts = append(got.Mounts, m.MountPath+m.SubPath)
	}
	for _, e := range host.Env {
		if e.Name == "HTTP_PROXY" {
			got.Proxy = e.Value
		}
	}
	want := facts{
		RestartPolicy: "Always", ConfigMap: objects["ConfigMap"].Metadata.Name, Proxy: "http://" + string(c.Egress.Listen),
		Probes: []string{"admin/startupz", "admin/livez", "admin/readyz"},
		Ports:  []int{port(c.Ingress.Listen), port(c.Admin.Listen)}, Admitted: []int{port(c.Ingress.Listen), port(c.Admin.Listen)},
		Mounts:           []string{"/etc/wopproxy", c.Ancestry.Store.Bolt.Dir},
		EgressOnLoopback: true, StopsInTime: true, LeavesInTime: true, ReadsWhatIsMounted: true, HostIsInside: true,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("example in deploy/README.md (-configuration +around it):\n%s", diff)
	}
}

// declaredTests are all tests with their folders, and the files of golden cases.
func declaredTests(t *testing.T) (declared map[string]string, cases map[string]bool) {
	t.Helper()
	declared, cases = map[string]string{}, map[string]bool{}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		switch {
		case strings.HasSuffix(path, "_test.go"):
			for _, m := range regexp.MustCompile(`(?m)^func (Test\w+)\(t \*testing\.T\)`).FindAllStringSubmatch(read(t, path), -1) {
				declared[m[1]] = filepath.Dir(path)
			}
		case strings.HasSuffix(path, ".txtar"):
			cases[filepath.ToSlash(path)] = true
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return declared, cases
}

// TestSecurityNamesTests looks for each test that the table of attacks names.
func TestSecurityNamesTests(t *testing.T) {
	declared, _ := declaredTests(t)
	table := rows(read(t, "SECURITY.md"), "who")
	if len(table) < 20 {
		t.Errorf("SECURITY.md has %d attacks: the table was not read", len(table))
	}
	for _, row := range table {
		tests := regexp.MustCompile(`Test\w+`).FindAllString(row[len(row)-1], -1)
		if len(row) != 4 || len(tests) == 0 {
			t.Errorf("SECURITY.md: %q names no test", row)
		}
		for _, name := range tests {
			if declared[name] == "" {
				t.Errorf("SECURITY.md names %s, which does not exist", name)
			}
		}
	}
}

// TestConformanceNamesTests looks for each test that the table names, and for the
// file of each case. A rule that no test shows has to say so.
func TestConformanceNamesTests(t *testing.T) {
	declared, cases := declaredTests(t)
	folders := map[string]string{"TestScenarios": "scenario/", "TestRules": "", "TestGoldenDiscovery": "discovery/", "TestGoldenCausation": "causation/"}
	rules, named := 0, 0
	for line := range strings.Lines(read(t, "CONFORMANCE.md")) {
		rule, shown, found := strings.Cut(strings.Trim(strings.TrimSpace(line), "|"), " | ")
		if !found || rule == " rule" {
			continue
		}
		rules++
		tests := regexp.MustCompile("`(Test\\w+)(?:/([\\w-]+))?`").FindAllStringSubmatch(shown, -1)
		if len(tests) == 0 && !strings.HasPrefix(strings.TrimSpace(shown), "Not ") {
			t.Errorf("CONFORMANCE.md: %s: neither a test nor why there is none", rule)
		}
		for _, m := range tests {
			named++
			dir, ok := declared[m[1]]
			if !ok {
				t.Errorf("CONFORMANCE.md names %s, which does not exist", m[1])
			}
			if file := dir + "/testdata/" + folders[m[1]] + m[2] + ".txtar"; m[2] != "" && !cases[filepath.ToSlash(file)] {
				t.Errorf("CONFORMANCE.md names %s/%s, but there is no %s", m[1], m[2], file)
			}
		}
	}
	if rules < 60 || named < rules {
		t.Errorf("CONFORMANCE.md has %d rules and %d tests: the table was not read", rules, named)
	}
}
