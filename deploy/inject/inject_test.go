package inject_test

import (
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"github.com/wopproxy/wopproxy/deploy/inject"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// options are those of an archive: its file "settings" has a line KEY=VALUE for
// each, "config" is configuration for all.
func options(t *testing.T, files map[string]string) inject.Options {
	t.Helper()
	o := inject.Options{Image: "registry.example.com/wopproxy:1.0.0", Settings: map[string]string{}, Config: []byte(files["config"])}
	for line := range strings.Lines(files["settings"]) {
		key, value, ok := strings.Cut(strings.TrimSpace(line), "=")
		if !ok {
			t.Fatalf("settings has the line %q", line)
		}
		o.Settings[key] = value
	}
	return o
}

// archive is a golden file: what it shows, and its texts by name.
type archive struct {
	*txtar.Archive
	path  string
	files map[string]string
}

func archives(t testing.TB, pattern string) (all []archive) {
	t.Helper()
	paths, err := filepath.Glob(pattern)
	if err != nil || len(paths) == 0 {
		t.Fatalf("no files %s: %v", pattern, err)
	}
	for _, path := range paths {
		a, err := txtar.ParseFile(path)
		if err != nil {
			t.Fatal(err)
		}
		files := map[string]string{}
		for _, f := range a.Files {
			files[f.Name] = string(f.Data)
		}
		all = append(all, archive{a, path, files})
	}
	return all
}

// expect compares, or rewrites the golden file.
func (a archive) expect(t *testing.T, name, got string) {
	t.Helper()
	if *update {
		for i := range a.Files {
			if a.Files[i].Name == name {
				a.Files[i].Data = []byte(got)
				got = a.files[name]
			}
		}
		if got != a.files[name] {
			a.Files = append(a.Files, txtar.File{Name: name, Data: []byte(got)})
		}
		if err := os.WriteFile(a.path, txtar.Format(a.Archive), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(a.files[name], got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", name, diff)
	}
}

func lines[T interface{ String() string }](notes []T) string {
	var b strings.Builder
	for _, n := range notes {
		b.WriteString(n.String() + "\n")
	}
	return b.String()
}

// TestInject compares each manifest with its golden file, and holds the promises
// of the package to it: twice is once, and uninject gives back every byte.
func TestInject(t *testing.T) {
	for _, a := range archives(t, "testdata/golden/*.txtar") {
		t.Run(filepath.Base(a.path), func(t *testing.T) {
			in := a.files["in"]
			out, notes, err := inject.Inject([]byte(in), options(t, a.files))
			if err != nil {
				t.Fatal(err)
			}
			a.expect(t, "out", string(out))
			if len(notes) > 0 || a.files["notes"] != "" {
				a.expect(t, "notes", lines(notes))
			}
			twice, _, err := inject.Inject(out, options(t, a.files))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(out), string(twice)); diff != "" {
				t.Errorf("injected twice (-once +twice):\n%s", diff)
			}
			back, _, err := inject.Uninject(out)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(in, string(back)); diff != "" {
				t.Errorf("uninjected (-in +back):\n%s", diff)
			}
		})
	}
}

// TestRefused pins what is said where a pod can't be injected: the object, and what
// to do about it. Nothing is returned then.
func TestRefused(t *testing.T) {
	for _, a := range archives(t, "testdata/refused/*.txtar") {
		t.Run(filepath.Base(a.path), func(t *testing.T) {
			out, _, err := inject.Inject([]byte(a.files["in"]), options(t, a.files))
			if err == nil || out != nil {
				t.Fatalf("Inject = %q, %v; want nothing, and an error", out, err)
			}
			a.expect(t, "error", err.Error()+"\n")
		})
	}
}

// TestInjectAnew: whatever was injected before, injecting gives what it would have
// given at first, and uninject every byte, whether or not a line break ends them.
func TestInjectAnew(t *testing.T) {
	const pod = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: agent\nspec:\n  containers:\n  - name: agent\n    ports:\n    - name: http\n      containerPort: 8080"
	const list = "kind: List\nitems:\n- apiVersion: v1\n  kind: Pod\n  spec:\n    containers:\n    - name: a\n      ports: [{name: http, containerPort: 8080}]"
	var sets []inject.Options
	for _, settings := range []map[string]string{nil, {"single-flight": "true", "host-id": "other", "store": "memory"}, {"mode": "transparent", "carry": "auto"}} {
		sets = append(sets, inject.Options{Image: "w:1", Settings: settings})
	}
	for _, text := range []string{pod, list, "# first\n---\n" + pod + " # last", "{}\n---\n" + strings.Replace(pod, "spec:", "  annotations:\n    a: b\nspec:", 1)} {
		for _, in := range []string{text, strings.ReplaceAll(text, "\n", "\r\n"), text + "\n# end"} {
			var fresh []string
			for _, o := range sets {
				out, _, err := inject.Inject([]byte(in), o)
				if err != nil {
					t.Fatalf("%q: %v", in, err)
				}
				fresh = append(fresh, string(out))
			}
			for i, was := range fresh {
				next := (i + 1) % len(sets)
				got, _, err := inject.Inject([]byte(was), sets[next])
				if diff := cmp.Diff(fresh[next], string(got)); err != nil || diff != "" {
					t.Errorf("%q, with the settings %d after %d: %v (-want +got)\n%s", in, next, i, err, diff)
				}
				back, _, err := inject.Uninject([]byte(was))
				if diff := cmp.Diff(in, string(back)); err != nil || diff != "" {
					t.Errorf("uninjected: %v (-in +back)\n%s", err, diff)
				}
			}
		}
	}
}

// TestNamesOfTransparent: the kernel goes by numbers, so a name may be there twice.
func TestNamesOfTransparent(t *testing.T) {
	const pod = "apiVersion: v1\nkind: Pod\nspec:\n  containers: [{name: agent, ports: [{name: http, containerPort: 8080}]}, {name: other, ports: [{name: http, containerPort: 9090}]}]\n"
	for port, ok := range map[string]bool{"8080": true, "http": false} {
		_, _, err := inject.Inject([]byte(pod), inject.Options{Image: "w:1", Settings: map[string]string{"mode": "transparent", "port": port}})
		if (err == nil) != ok {
			t.Errorf("port %s: error %v, want one: %t", port, err, !ok)
		}
	}
}

// TestEmptySettings: a setting that is there and empty says nothing, but for those of
// which none is a value.
func TestEmptySettings(t *testing.T) {
	const pod = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: agent\n  annotations: {%s}\nspec:\n  containers: [{name: agent, ports: [{name: http, containerPort: 8080}]}]\n"
	plain, _, err := inject.Inject([]byte(strings.Replace(pod, "%s", "", 1)), inject.Options{Image: "w:1"})
	if err != nil {
		t.Fatal(err)
	}
	sidecar := func(out []byte) string { // without the annotations
		_, text, _ := strings.Cut(string(out), "\nspec:")
		return text
	}
	for _, s := range inject.Settings {
		none := slices.Contains([]string{"memory-limit", "cpu-request", "memory-request"}, s.Key)
		for in, o := range map[string]inject.Options{
			strings.Replace(pod, "%s", inject.Prefix+s.Key+`: ""`, 1): {Image: "w:1"},
			strings.Replace(pod, "%s", "", 1):                         {Image: "w:1", Settings: map[string]string{s.Key: ""}},
		} {
			out, _, err := inject.Inject([]byte(in), o)
			if same := sidecar(out) == sidecar(plain); err != nil || same == none {
				t.Errorf("%s, empty: error %v, the same as without: %t, want %t", s.Key, err, same, !none)
			}
		}
	}
}
