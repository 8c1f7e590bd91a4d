package wire

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
)

// elsewhere is the cause that the golden files know of.
var elsewhere = Causation{Event: "3f2b6c1e-9a04-4d7b-8f15-c0ffee5a1e77", Host: `h.example.com/"agent"`, Limit: 600}

// A golden file states a rule in prose and proves it on a document: "out" is the
// document afterwards, byte for byte, and "outcomes" what is said of it.
func TestGoldenCausation(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("testdata", "causation", "*.txtar"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no golden files: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			ar, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			in := section(ar, "in")
			var outcomes strings.Builder
			out := elsewhere.Annotate(in, func(o CausationOutcome, why Refusal) {
				outcomes.WriteString(strings.TrimSpace(string(o)+" "+string(why)) + "\n")
			})
			got := map[string]string{"out": string(out), "outcomes": outcomes.String()}
			for _, name := range []string{"outcomes", "out"} {
				if *update {
					setSection(ar, name, got[name])
				} else if diff := cmp.Diff(string(section(ar, name)), got[name]); diff != "" {
					t.Errorf("%s (-want +got):\n%s", name, diff)
				}
			}
			checkCausation(t, in)
			if *update {
				if err := os.WriteFile(file, txtar.Format(ar), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// checkCausation holds the promise against one body: taking the additions away
// leaves every byte that was there, each is the one member that encoding/json
// then finds in the payload of an event which was caused elsewhere, and a second
// edit changes nothing.
func checkCausation(t *testing.T, in []byte) {
	t.Helper()
	before := bytes.Clone(in)
	count := map[CausationOutcome]int{}
	out := elsewhere.Annotate(in, func(o CausationOutcome, why Refusal) {
		if count[o]++; why != "" && !slices.Contains(DocumentRefusals(), why) {
			t.Errorf("Annotate(%q) refuses by %q", in, why)
		}
	})
	if !bytes.Equal(in, before) {
		t.Fatal("Annotate changed its input")
	}
	for o := range count {
		if !slices.Contains(CausationOutcomes(), o) {
			t.Errorf("Annotate(%q) notes %q", in, o)
		}
	}
	n := count[CausationAnnotated]
	if n == 0 {
		if !same(in, out) {
			t.Fatalf("Annotate(%q) = %q, and notes nothing", in, out)
		}
		return
	}
	if got := without(in, out); got != n {
		t.Fatalf("Annotate(%q) = %q: %d additions and nothing else, want %d", in, out, got, n)
	}
	if bytes.Count(out, []byte("\n")) != bytes.Count(in, []byte("\n")) {
		t.Errorf("Annotate(%q) = %q: has another number of lines", in, out)
	}
	var was, is any
	if decode(in, &was) != nil || decode(out, &is) != nil {
		t.Fatalf("Annotate(%q) = %q: not JSON", in, out)
	}
	if got := tookAway(is); got != n {
		t.Errorf("Annotate(%q) = %q: %d events name the host, want %d", in, out, got, n)
	}
	if diff := cmp.Diff(was, is); diff != "" {
		t.Fatalf("Annotate(%q) changes other members:\n%s", in, diff)
	}
	again := elsewhere.Annotate(out, func(o CausationOutcome, _ Refusal) {
		if o == CausationAnnotated {
			t.Errorf("the second time: annotated")
		}
	})
	if !bytes.Equal(again, out) {
		t.Errorf("the second time: %q", again)
	}
}

// without counts the additions in out, or returns -1 if there is more between
// in and out.
func without(in, out []byte) (n int) {
	member := []byte(`"causationHostId":"h.example.com/\"agent\""`)
	for {
		i := 0
		for i < len(in) && i < len(out) && in[i] == out[i] {
			i++
		}
		if i == len(in) && i == len(out) {
			return n
		}
		// The addition may begin like what was there, by as much as it is long.
		found := false
		for j := max(0, i-len(member)); j <= i && !found; j++ {
			rest, ok := bytes.CutPrefix(out[j:], member)
			if !ok {
				continue
			}
			if comma, ok := bytes.CutPrefix(rest, []byte(",")); ok && !bytes.HasPrefix(in[j:], []byte(",")) {
				rest = comma
			}
			in, out, found = in[j:], rest, true
		}
		if !found {
			return -1
		}
		n++
	}
}

// tookAway removes our additions from a document and counts them.
func tookAway(v any) (n int) {
	var events []any
	switch v := v.(type) {
	case []any:
		events = v
	case map[string]any:
		if list, ok := v["events"].([]any); ok && v["type"] == nil {
			events = list
		} else {
			events = []any{v}
		}
	}
	for _, e := range events {
		event, _ := e.(map[string]any)
		if event["specversion"] != nil {
			event, _ = event["data"].(map[string]any)
		}
		payload, _ := event["payload"].(map[string]any)
		if event["causationId"] == elsewhere.Event && payload["causationHostId"] == elsewhere.Host {
			delete(payload, "causationHostId")
			n++
		}
	}
	return n
}

func FuzzAnnotate(f *testing.F) {
	files, _ := filepath.Glob(filepath.Join("testdata", "causation", "*.txtar"))
	for _, file := range files {
		ar, err := txtar.ParseFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(section(ar, "in"))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		if bytes.Contains(in, []byte("agent\\\"")) {
			t.Skip() // its own mention of the host can't be told from ours
		}
		checkCausation(t, in)
	})
}

// What a document tells is what its readers find in it afterwards.
func TestTells(t *testing.T) {
	v1 := func(model string) string {
		return `{"protocolVersion":"1.1","multiAgent":{"executionModel":` + model + `}}`
	}
	v2 := func(model string) string {
		return `{"protocolVersions":["2.0"],"multiAgent":{"executionModel":` + model + `}}`
	}
	silent := Told{Document: true}
	ours := Told{Document: true, Causation: true, Endpoint: true, HostID: "h"}
	named := Told{Document: true, Causation: true, HostID: "x"}
	advertised := Told{Document: true, Causation: true, Endpoint: true, HostID: "x"}
	for _, tt := range []struct {
		doc         string
		never       Told // nothing is claimed for the host
		atTwo, ever Told
	}{
		{v1(`{"supported":true,"version":2}`), silent, ours, ours},
		{v1(`{"supported":true,"version":1}`), silent, silent, ours},
		{v1(`{"supported":false,"version":2}`), silent, silent, silent},
		{v1(`{"supported":true,"version":3,"crossHostCausation":{"supported":true,"hostId":"x"}}`), named, named, named},
		{v1(`{"supported":true,"version":3,"crossHostCausation":{"supported":true,"hostId":"x","ancestryEndpointSupported":false}}`), named, named, named},
		{v1(`{"supported":true,"version":3,"crossHostCausation":{"supported":true,"hostId":"x","ancestryEndpointSupported":true}}`), advertised, advertised, advertised},
		{v1(`{"supported":true,"version":3,"crossHostCausation":{"supported":false,"ancestryEndpointSupported":true}}`), silent, silent, silent},
		{v2(`{"version":2}`), silent, ours, ours},
		{v2(`{"version":1}`), silent, silent, ours},
		{v2(`{"version":3,"crossHostCausation":{"hostId":"x"}}`), named, named, named},
		{v2(`{"version":3,"crossHostCausation":{"hostId":"x","ancestryEndpointSupported":true}}`), advertised, advertised, advertised},
		{v2(`{"version":3,"crossHostCausation":null}`), silent, silent, silent},
		{v2(`{"version":2,"supported":true}`), silent, silent, silent},
		{`{"protocolVersion":"1.1"}`, silent, silent, ours},
		{`{"name":"x"}`, Told{}, Told{}, Told{}},
		{`{"protocolVersion":"1.1"`, silent, silent, silent},
		{`<html>`, Told{}, Told{}, Told{}},
		{``, Told{}, Told{}, Told{}},
	} {
		for claim, want := range map[int]Told{0: tt.ever, 2: tt.atTwo, 99: tt.never} {
			if got := Tells([]byte(tt.doc), DiscoveryEdit{HostID: "h", Claim: claim, Extension: `{}`}); got != want {
				t.Errorf("Tells(%s, %d) = %+v, want %+v", tt.doc, claim, got, want)
			}
		}
	}
}
