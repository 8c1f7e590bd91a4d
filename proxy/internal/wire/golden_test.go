package wire

import (
	"bytes"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
)

var update = flag.Bool("update", false, "rewrite what the golden files expect")

// A golden file states a rule in prose and proves it: "case" has the hints and
// the edit, "in" the body. "read" is what Read or ReadAnswer tells of it, "out"
// what Stamp makes of it. Both are compared byte for byte.
func TestGolden(t *testing.T) {
	for _, kind := range []string{"mcp", "a2a", "foreign", "answer"} {
		files, err := filepath.Glob(filepath.Join("testdata", kind, "*.txtar"))
		if err != nil || len(files) == 0 {
			t.Fatalf("no golden files of kind %s: %v", kind, err)
		}
		for _, file := range files {
			t.Run(kind+"/"+strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
				golden(t, file, kind == "answer")
			})
		}
	}
}

func golden(t *testing.T, file string, answer bool) {
	ar, err := txtar.ParseFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if strings.TrimSpace(string(ar.Comment)) == "" {
		t.Error("no prose: which rule does this prove?")
	}
	h, e := parseCase(t, section(ar, "case"))
	in := section(ar, "in")
	got := map[string]string{}
	if answer {
		a, ok := ReadAnswer(in, h.Protocol, h.REST)
		got["read"] = describeAnswer("", a)
		if !ok {
			got["read"] = "unreadable\n"
		}
	} else {
		before := bytes.Clone(in)
		m := Read(in, h)
		out, refused := m.Stamp(e)
		got["read"], got["out"] = describe(m), string(out)
		if refused != "" && m.Refusal == "" {
			got["read"] += fmt.Sprintf("stamp: %s\n", refused)
		}
		if !bytes.Equal(in, before) {
			t.Error("Stamp changed its input")
		}
		checkStamp(t, in, h, e)
	}
	for _, name := range slices.Sorted(maps.Keys(got)) {
		text := got[name]
		if *update {
			setSection(ar, name, text)
		} else if diff := cmp.Diff(string(section(ar, name)), text); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	if *update {
		if err := os.WriteFile(file, txtar.Format(ar), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func section(ar *txtar.Archive, name string) []byte {
	for _, f := range ar.Files {
		if f.Name == name {
			return f.Data
		}
	}
	return nil
}

func setSection(ar *txtar.Archive, name, text string) {
	for i := range ar.Files {
		if ar.Files[i].Name == name {
			ar.Files[i].Data = []byte(text)
			return
		}
	}
	ar.Files = append(ar.Files, txtar.File{Name: name, Data: []byte(text)})
}

func parseCase(t testing.TB, text []byte) (h Hints, e Edit) {
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		switch key {
		case "protocol":
			h.Protocol = map[string]Protocol{"mcp": MCP, "a2a": A2A}[value]
		case "accepts-both":
			h.AcceptsBoth = true
		case "path":
			h.GRPC = value
		case "rest":
			h.REST = true
		case "traceparent":
			e.Traceparent = value
		case "tracestate":
			e.Tracestate = value
		case "baggage":
			e.Baggage = value
		case "ancestry":
			e.Ancestry = value
		case "in-message":
			e.InMessage = true
		case "tylo":
			trace, span, _ := strings.Cut(value, " ")
			e.Tylo = &TyloIDs{trace, span}
		case "max-size":
			fmt.Sscan(value, &e.MaxSize)
		case "":
		default:
			t.Fatalf("unknown key %q", key)
		}
	}
	return h, e
}

// describe lists what a Message says, without what is empty.
func describe(m Message) string {
	var b strings.Builder
	fmt.Fprintf(&b, "protocol: %s\nkind: %s\n", m.Protocol, m.Kind)
	line := func(name string, value any) {
		if s := fmt.Sprint(value); s != "" && s != "false" {
			fmt.Fprintf(&b, "%s: %s\n", name, s)
		}
	}
	line("shared", m.Shared)
	line("method", m.Method)
	line("id", m.ID)
	line("target", m.Target)
	line("protocol version", m.ProtocolVersion)
	line("request state", string(m.RequestState))
	line("task", m.TaskID)
	line("context", m.ContextID)
	line("message", m.MessageID)
	line("webhook", m.WebhookURL)
	line("token", m.WebhookToken)
	line("credentials", m.WebhookCredentials)
	line("traceparent", m.Traceparent)
	line("tracestate", m.Tracestate)
	line("baggage", m.Baggage)
	line("ancestry", m.Ancestry)
	if m.Tylo.Valid() {
		line("tylo", m.Tylo)
	}
	line("refused", m.Refusal)
	line("tylo refused", m.TyloRefusal)
	for _, i := range m.Batch {
		line("item", fmt.Sprintf("%s %s %s %s", i.Kind, i.Method, i.ID, i.Target))
	}
	return b.String()
}

func describeAnswer(indent string, a Answer) string {
	var b strings.Builder
	line := func(name string, value any) {
		if s := fmt.Sprint(value); s != "" && s != "false" {
			fmt.Fprintf(&b, "%s%s: %s\n", indent, name, s)
		}
	}
	line("kind", a.Kind)
	line("id", a.ID)
	line("error", a.ErrorCode)
	line("error message", a.ErrorMessage)
	line("tool error", a.ToolError)
	line("result type", a.ResultType)
	line("request state", string(a.RequestState))
	line("progress of", a.ProgressOf())
	line("task", a.TaskID)
	line("context", a.ContextID)
	line("state", a.State)
	line("terminal", a.State.Terminal())
	line("bare message", a.BareMessage)
	for _, x := range a.Batch {
		b.WriteString(describeAnswer("  ", x))
	}
	return b.String()
}
