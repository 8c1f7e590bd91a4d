package inject_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/wopproxy/wopproxy/deploy/inject"
)

// TestDocumented holds the table of annotations to the settings that there are.
func TestDocumented(t *testing.T) {
	const file, heading = "README.md", "| annotation | default | what it says |\n|---|---|---|\n"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(text), heading)
	if !ok {
		t.Fatalf("%s has no table of annotations", file)
	}
	var want strings.Builder
	for _, s := range inject.Settings {
		standard := "–"
		if s.Default != "" {
			standard = "`" + s.Default + "`"
		}
		fmt.Fprintf(&want, "| `%s%s` | %s | %s |\n", inject.Prefix, s.Key, standard, s.Doc)
	}
	table, after := rest, ""
	if i := strings.Index(rest, "\n\n"); i >= 0 {
		table, after = rest[:i+1], rest[i+1:]
	}
	if *update {
		if err := os.WriteFile(file, []byte(before+heading+want.String()+after), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(want.String(), table); diff != "" {
		t.Errorf("%s (-settings +documented); rewrite with -update:\n%s", file, diff)
	}
}
