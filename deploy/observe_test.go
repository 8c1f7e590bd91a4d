// Package deploy_test holds what operators are given to the program: dashboards
// and alerts ask for metrics that exist, and each alert says what to do.
package deploy_test

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"
)

func read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// dashboard is as much of a dashboard of Grafana as the tests look at.
type dashboard struct {
	UID        string
	Links      []struct{ URL string }
	Templating struct {
		List []struct{ Name, Type string }
	}
	Panels []panel
}

type panel struct {
	ID                       int
	Type, Title, Description string
	GridPos                  struct{ X, Y, W, H int }
	Targets                  []struct{ RefID, Expr string }
}

// dashboards returns those of the folder, by file.
func dashboards(t *testing.T) map[string]dashboard {
	t.Helper()
	names, err := filepath.Glob("grafana/*.json")
	if err != nil || len(names) == 0 {
		t.Fatalf("no dashboards: %v", err)
	}
	found := map[string]dashboard{}
	for _, name := range names {
		var d dashboard
		if err := json.Unmarshal([]byte(read(t, name)), &d); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		found[name] = d
	}
	return found
}

// rules is a rule file of Prometheus.
type rules struct {
	Groups []struct {
		Name  string
		Rules []rule
	}
}

type rule struct {
	Alert, Expr, For    string
	Labels, Annotations map[string]string
}

// alerts returns the rules of all groups.
func alerts(t *testing.T) (all []rule) {
	t.Helper()
	var file rules
	dec := yaml.NewDecoder(strings.NewReader(read(t, "alerts/wopproxy.yaml")))
	dec.KnownFields(true)
	if err := dec.Decode(&file); err != nil {
		t.Fatal(err)
	}
	for _, g := range file.Groups {
		all = append(all, g.Rules...)
	}
	if len(all) == 0 {
		t.Fatal("alerts/wopproxy.yaml has no rules")
	}
	return all
}

// served are the metrics of the program with their labels.
func served(t *testing.T) map[string][]string {
	t.Helper()
	labels := map[string][]string{
		// Those of client_golang that dashboards use.
		"process_resident_memory_bytes": nil, "process_cpu_seconds_total": nil, "go_goroutines": nil,
	}
	row := regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\| [a-z]+ \\| ([^|]+) \\|")
	for _, m := range row.FindAllStringSubmatch(read(t, "README.md")+read(t, "inject/README.md"), -1) {
		labels[m[1]] = regexp.MustCompile(`[a-z_]+`).FindAllString(m[2], -1)
	}
	if len(labels) < 40 {
		t.Fatalf("%d metrics found: the tables in README.md and inject/README.md were not read", len(labels))
	}
	return labels
}

var (
	selector = regexp.MustCompile(`\b((?:wopproxy|mcp|rpc|process|go)_[a-z_]+)(?:\{([^}]*)\})?`)
	matcher  = regexp.MustCompile(`([a-z_]+)\s*(?:=~|!~|!=|=)\s*"([^"]*)"`)
	grouping = regexp.MustCompile(`\b(?:by|on|without|ignoring) \(([^)]*)\)`)
	series   = regexp.MustCompile(`_(bucket|sum|count)$`)
	words    = regexp.MustCompile(`^[a-z0-9_|-]+$`)
	literals = regexp.MustCompile(`"([a-z0-9_-]+)"`)
)

// target are the labels that scraping adds, in Kubernetes.
var target = []string{"job", "instance", "namespace", "pod"}

// sources returns every word that stands as a string in the program: where the
// values of labels come from.
func sources(t *testing.T) map[string]bool {
	t.Helper()
	found := map[string]bool{}
	for _, dir := range []string{"../proxy", "../ancestry", "../cmd", "../audit", "inject", "webhook"} {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			for _, m := range literals.FindAllStringSubmatch(read(t, path), -1) {
				found[m[1]] = true
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return found
}

// TestQueriesAreServed wants every metric, label and value that a dashboard or an
// alert asks for to exist, and every metric to be on a dashboard: a name that is
// wrong shows nothing, and is never noticed.
func TestQueriesAreServed(t *testing.T) {
	metrics, known := served(t), sources(t)
	shown := map[string]bool{}
	check := func(where, expr string) {
		may := slices.Clone(target)
		found := selector.FindAllStringSubmatch(grouping.ReplaceAllString(expr, ""), -1)
		if len(found) == 0 {
			t.Errorf("%s asks for no metric of ours: %s", where, expr)
		}
		for _, m := range found {
			name := series.ReplaceAllString(m[1], "")
			labels, ok := metrics[name]
			if !ok {
				t.Errorf("%s asks for the metric %s, which is not served", where, m[1])
			}
			if name != m[1] {
				labels = append(slices.Clone(labels), "le")
			}
			shown[name] = true
			may = append(may, labels...)
			for _, l := range matcher.FindAllStringSubmatch(m[2], -1) {
				if !slices.Contains(labels, l[1]) && !slices.Contains(target, l[1]) {
					t.Errorf("%s asks %s for the label %s, which it does not have", where, name, l[1])
				}
				if !words.MatchString(l[2]) {
					continue // a variable, or a class of values
				}
				for value := range strings.SplitSeq(l[2], "|") {
					if !known[value] {
						t.Errorf("%s asks %s for %s=%q, which nothing in the program says", where, name, l[1], value)
					}
				}
			}
		}
		for _, m := range grouping.FindAllStringSubmatch(expr, -1) {
			for label := range strings.SplitSeq(m[1], ", ") {
				if !slices.Contains(may, label) {
					t.Errorf("%s groups by %q, which none of its metrics has: %s", where, label, expr)
				}
			}
		}
	}
	for file, d := range dashboards(t) {
		for _, p := range d.Panels {
			for _, q := range p.Targets {
				check(file+": "+p.Title, q.Expr)
			}
		}
	}
	for name := range metrics {
		if !shown[name] {
			t.Errorf("no dashboard shows %s", name)
		}
	}
	for _, r := range alerts(t) {
		check(r.Alert, r.Expr)
	}
}

// TestDashboardsAreWhole looks at what Grafana takes silently: panels on top of
// each other, ids used twice, variables that are not defined, links into nothing.
func TestDashboardsAreWhole(t *testing.T) {
	all := dashboards(t)
	uids := map[string]bool{}
	for file, d := range all {
		if d.UID == "" || uids[d.UID] {
			t.Errorf("%s: uid %q is empty, or another one's", file, d.UID)
		}
		uids[d.UID] = true
	}
	for file, d := range all {
		for _, l := range d.Links {
			if !uids[strings.TrimPrefix(l.URL, "/d/")] {
				t.Errorf("%s links to %s, which is no dashboard of ours", file, l.URL)
			}
		}
		variables := []string{"__rate_interval"}
		for _, v := range d.Templating.List {
			variables = append(variables, v.Name)
		}
		for i, p := range d.Panels {
			at := fmt.Sprintf("%s: %d %s", file, p.ID, p.Title)
			if p.Title == "" || p.Type != "row" && p.Description == "" {
				t.Errorf("%s: want a title and a description", at)
			}
			if p.GridPos.X+p.GridPos.W > 24 || p.GridPos.W == 0 || p.GridPos.H == 0 {
				t.Errorf("%s does not fit: %+v", at, p.GridPos)
			}
			for _, q := range d.Panels[:i] {
				a, b := p.GridPos, q.GridPos
				if p.ID == q.ID {
					t.Errorf("%s has the id of %s", at, q.Title)
				}
				if a.X < b.X+b.W && b.X < a.X+a.W && a.Y < b.Y+b.H && b.Y < a.Y+a.H {
					t.Errorf("%s lies on %s", at, q.Title)
				}
			}
			for _, q := range p.Targets {
				for _, v := range regexp.MustCompile(`\$(\w+)`).FindAllStringSubmatch(q.Expr, -1) {
					if !slices.Contains(variables, v[1]) {
						t.Errorf("%s uses $%s, which is not defined", at, v[1])
					}
				}
			}
		}
	}
}

// TestAlertsSayWhatToDo wants a runbook for each alert, no other runbooks, and a
// case in which each fires and one in which it does not.
func TestAlertsSayWhatToDo(t *testing.T) {
	books := map[string]string{}
	for _, section := range strings.Split(read(t, "alerts/README.md"), "\n## ")[1:] {
		title, text, _ := strings.Cut(section, "\n")
		books[title] = text
	}
	var cases struct {
		Tests []struct {
			AlertRuleTest []struct {
				Alertname string
				ExpAlerts []any `yaml:"exp_alerts"`
			} `yaml:"alert_rule_test"`
		}
	}
	if err := yaml.Unmarshal([]byte(read(t, "alerts/wopproxy.test.yaml")), &cases); err != nil {
		t.Fatal(err)
	}
	fires, quiet := map[string]bool{}, map[string]bool{}
	for _, c := range cases.Tests {
		for _, a := range c.AlertRuleTest {
			fires[a.Alertname] = fires[a.Alertname] || len(a.ExpAlerts) > 0
			quiet[a.Alertname] = quiet[a.Alertname] || len(a.ExpAlerts) == 0
		}
	}
	for _, r := range alerts(t) {
		for _, part := range []string{"**Meaning.** ", "**Impact.** ", "**What to do.** "} {
			if !strings.Contains(books[r.Alert], "\n"+part) {
				t.Errorf("alerts/README.md has no %q for %s", part, r.Alert)
			}
		}
		delete(books, r.Alert)
		if !slices.Contains([]string{"critical", "warning", "info"}, r.Labels["severity"]) || len(r.Labels) != 1 {
			t.Errorf("labels of %s are %v, want a severity alone", r.Alert, r.Labels)
		}
		if r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
			t.Errorf("%s needs a summary and a description", r.Alert)
		}
		if !fires[r.Alert] || !quiet[r.Alert] {
			t.Errorf("alerts/wopproxy.test.yaml: %s fires = %v, is quiet = %v; want a case of each", r.Alert, fires[r.Alert], quiet[r.Alert])
		}
	}
	for title := range books {
		t.Errorf("alerts/README.md has a runbook for %s, which is no alert", title)
	}
}

// tool returns the path of a program that not every machine has. The test is
// skipped without it, and fails where all have to be there.
func tool(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil && os.Getenv("WOPPROXY_E2E") == "all" {
		t.Fatalf("%s is not installed", name)
	} else if err != nil {
		t.Skipf("%s is not installed", name)
	}
	return path
}

// TestPromtool has Prometheus' own tool read the alerts and every query of the
// dashboards, and run the alerts on their cases.
func TestPromtool(t *testing.T) {
	promtool := tool(t, "promtool")
	type record struct{ Record, Expr string }
	type group struct {
		Name  string
		Rules []record
	}
	asked := group{Name: "dashboards"}
	for _, d := range dashboards(t) {
		for _, p := range d.Panels {
			for _, q := range p.Targets {
				asked.Rules = append(asked.Rules, record{
					Record: fmt.Sprintf("panel:%s_%d:%s", strings.ReplaceAll(d.UID, "-", "_"), p.ID, q.RefID),
					Expr:   strings.ReplaceAll(q.Expr, "$__rate_interval", "5m"),
				})
			}
		}
	}
	text, err := yaml.Marshal(map[string][]group{"groups": {asked}})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "dashboards.yaml")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"check", "rules", "alerts/wopproxy.yaml"},
		{"check", "rules", file},
		{"test", "rules", "alerts/wopproxy.test.yaml"},
	} {
		if out, err := exec.CommandContext(t.Context(), promtool, args...).CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}
