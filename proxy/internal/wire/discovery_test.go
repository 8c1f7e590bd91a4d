package wire

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
)

// discoveryCase reads the "case" of a golden file.
func discoveryCase(t testing.TB, text []byte) DiscoveryEdit {
	e := DiscoveryEdit{HostID: "h.example.com/agent", Claim: 99, Extension: `{"hostId":"h.example.com/agent"}`}
	e.Public, e.PublicHost = "https://agents.example.com", "agents.example.com:443"
	e.Own = func(hostport string, _ bool) bool {
		return hostport == "127.0.0.1:8080" || hostport == "localhost:8080"
	}
	for line := range strings.Lines(string(text)) {
		switch key, value, _ := strings.Cut(strings.TrimSpace(line), ":"); key {
		case "claim":
			n, err := strconv.Atoi(strings.TrimSpace(value))
			if err != nil {
				t.Fatal(err)
			}
			e.Claim = n
		case "no-extension":
			e.Extension = ""
		case "":
		default:
			t.Fatalf("unknown key %q", key)
		}
	}
	return e
}

// A golden file states a rule in prose and proves it on a document: "out" is the
// document afterwards, byte for byte, and "outcome" what is said of it.
func TestGoldenDiscovery(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("testdata", "discovery", "*.txtar"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no golden files: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			ar, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			e, in := discoveryCase(t, section(ar, "case")), section(ar, "in")
			out, outcome, why := RewriteDiscovery(in, e)
			got := map[string]string{"out": string(out), "outcome": strings.TrimSpace(string(outcome)+" "+string(why)) + "\n"}
			for _, name := range []string{"outcome", "out"} {
				if *update {
					setSection(ar, name, got[name])
				} else if diff := cmp.Diff(string(section(ar, name)), got[name]); diff != "" {
					t.Errorf("%s (-want +got):\n%s", name, diff)
				}
			}
			checkDiscovery(t, in, e)
			if *update {
				if err := os.WriteFile(file, txtar.Format(ar), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// checkDiscovery holds the promise against one body: what the edit has added
// taken away again, every other member has the value that it had, and a second
// edit changes nothing.
func checkDiscovery(t *testing.T, in []byte, e DiscoveryEdit) {
	t.Helper()
	before := bytes.Clone(in)
	out, outcome, why := RewriteDiscovery(in, e)
	if !bytes.Equal(in, before) {
		t.Fatal("RewriteDiscovery changed its input")
	}
	if (why != "") != (outcome == DiscoveryRefused) || outcome != DiscoveryNone && !slices.Contains(DiscoveryOutcomes(), outcome) {
		t.Errorf("RewriteDiscovery(%q) = %q because of %q", in, outcome, why)
	}
	if outcome == DiscoveryRefused || outcome == DiscoveryNone {
		if !same(in, out) {
			t.Fatalf("RewriteDiscovery(%q) = %q, with the outcome %q", in, out, outcome)
		}
		return
	}
	if diff := cmp.Diff(membersWithout(t, in), membersWithout(t, out)); diff != "" {
		t.Fatalf("RewriteDiscovery(%q) = %q changes other members:\n%s", in, out, diff)
	}
	if again, next, _ := RewriteDiscovery(out, e); !bytes.Equal(again, out) || next == DiscoveryClaimed || next == DiscoveryExtended {
		t.Errorf("RewriteDiscovery(%q), the second time: %q, %s", out, again, next)
	}
}

// membersWithout returns the document without what an edit may touch. It reads
// with encoding/json, not with the code under test.
func membersWithout(t *testing.T, body []byte) map[string]any {
	t.Helper()
	var m map[string]any
	if err := decode(body, &m); err != nil {
		t.Fatalf("%q: %v", body, err)
	}
	object := func(in map[string]any, key string) map[string]any { o, _ := in[key].(map[string]any); return o }
	drop := func(in map[string]any, key string) {
		if o := object(in, key); o != nil && len(o) == 0 {
			delete(in, key)
		}
	}
	facet := object(m, "multiAgent")
	model := object(facet, "executionModel")
	delete(model, "crossHostCausation")
	delete(model, "version")
	delete(model, "supported")
	drop(facet, "executionModel")
	for _, key := range []string{"status", "since", "witness"} {
		delete(facet, key)
	}
	drop(m, "multiAgent")
	delete(object(m, "extensions"), ExtensionKey)
	drop(m, "extensions")
	delete(object(m, "a2a"), "agentCardUrl")
	delete(object(m, "mcp"), "serverUrls")
	return m
}

// The addresses of a run that was created are the host's own, too.
func TestRunAddresses(t *testing.T) {
	e := discoveryCase(t, nil).AddressEdit
	for in, want := range map[string]string{
		`{"runId":"r","eventsUrl":"http://127.0.0.1:8080/runs/r/events", "statusUrl":"/runs/r"}`: `{"runId":"r","eventsUrl":"https://agents.example.com/runs/r/events", "statusUrl":"/runs/r"}`,
		`{"runId":"r","eventsUrl":"https://elsewhere.example.com/e"}`:                            "",
		`{"eventsUrl":"http://127.0.0.1:8080/a","eventsUrl":"http://127.0.0.1:8080/b"}`:          "",
		`{"eventsUrl":7}`:     "",
		`{"eventsUrl":"http:`: "",
	} {
		got, changed := RunAddresses([]byte(in), e)
		if want == "" {
			want = in
		}
		if string(got) != want || changed != (want != in) {
			t.Errorf("RunAddresses(%s) = %s, %v, want %s", in, got, changed, want)
		}
	}
}

func FuzzRewriteDiscovery(f *testing.F) {
	files, _ := filepath.Glob(filepath.Join("testdata", "discovery", "*.txtar"))
	for _, file := range files {
		ar, err := txtar.ParseFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(section(ar, "in"), 2)
		f.Add(section(ar, "in"), 0)
	}
	f.Fuzz(func(t *testing.T, in []byte, claim int) {
		e := discoveryCase(t, nil)
		e.Claim = claim
		checkDiscovery(t, in, e)
	})
}
