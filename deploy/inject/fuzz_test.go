package inject_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/wopproxy/wopproxy/deploy/inject"
)

// FuzzInject holds the promises of the package against any manifest: what is injected
// can be injected again without a change, and taken back to the byte.
func FuzzInject(f *testing.F) {
	for _, dir := range []string{"golden", "refused"} {
		for _, a := range archives(f, "testdata/"+dir+"/*.txtar") {
			f.Add([]byte(a.files["in"]))
		}
	}
	o := inject.Options{Image: "w:1", Settings: map[string]string{"carry": "auto", "intercept": "a.example.com"}}
	f.Fuzz(func(t *testing.T, in []byte) {
		out, _, err := inject.Inject(in, o)
		if err != nil {
			return
		}
		twice, _, err := inject.Inject(out, o)
		if err != nil || string(twice) != string(out) {
			t.Fatalf("twice: %v\n%s", err, cmp.Diff(string(out), string(twice)))
		}
		if uninjected, _, err := inject.Uninject(in); err != nil || string(uninjected) != string(in) {
			return // it was injected already
		}
		if back, _, err := inject.Uninject(out); err != nil || string(back) != string(in) {
			t.Fatalf("back: %v\n%s", err, cmp.Diff(string(in), string(back)))
		}
	})
}
