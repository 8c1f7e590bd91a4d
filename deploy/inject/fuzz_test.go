package inject_test

import (
	"bytes"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"gopkg.in/yaml.v3"

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
	o := inject.Options{Image: "w:1", Settings: map[string]string{"carry": "auto", "intercept": "a.example.com", "evidence-secret": "keys"}}
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
		back, _, err := inject.Uninject(out)
		if err == nil && string(back) != string(in) && writesNull(in) {
			in, back = decoded(in), decoded(back)
		}
		if err != nil || string(back) != string(in) {
			t.Fatalf("back: %v\n%s", err, cmp.Diff(string(in), string(back)))
		}
	})
}

// writesNull reports whether a manifest has a null that is not just a key with nothing
// behind it: that one may come back as such.
func writesNull(manifest []byte) (found bool) {
	var look func(n *yaml.Node, flow bool)
	look = func(n *yaml.Node, flow bool) {
		flow = flow || n.Style&yaml.FlowStyle != 0
		found = found || n.Tag == "!!null" && (n.Value != "" || flow)
		for _, below := range n.Content {
			look(below, flow)
		}
	}
	for dec := yaml.NewDecoder(bytes.NewReader(manifest)); ; {
		var n yaml.Node
		if dec.Decode(&n) != nil {
			return found
		}
		look(&n, false)
	}
}

// decoded is what a manifest says, in one way to write it.
func decoded(manifest []byte) []byte {
	var all [][]byte
	for dec := yaml.NewDecoder(bytes.NewReader(manifest)); ; {
		var v any
		if dec.Decode(&v) != nil {
			return slices.Concat(all...)
		}
		text, _ := yaml.Marshal(v)
		all = append(all, text, []byte("---\n"))
	}
}
