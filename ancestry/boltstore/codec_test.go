package boltstore

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/wopproxy/wopproxy/ancestry"
)

func TestCodecKeepsEverything(t *testing.T) {
	full := link(1)
	full.Host = "peer.example.com"
	full.Reason, full.Span, full.ParentSpan = "no-evidence", ancestry.SpanID{1}, ancestry.SpanID{2}
	full.Chain.Ancestors = append(full.Chain.Ancestors, ancestry.Ancestor{
		Run: "old", Host: "h", WellKnown: "https://h/", Cause: ancestry.CauseDispatch, Event: "event-1",
	})
	full.Chain.More, full.Chain.Depth = true, 1_000_000_000
	for _, c := range []struct {
		name string
		l    ancestry.Link
	}{
		{"full", full},
		{"bare", ancestry.Link{Run: "r", Time: time.UnixMilli(0).UTC()}},
		{"before 1970", ancestry.Link{Run: "r", Time: time.UnixMilli(-1).UTC()}},
		{"no time", ancestry.Link{Run: "r"}},
	} {
		got, err := decodeLink(c.l.Key(), encodeLink(c.l))
		if diff := cmp.Diff(c.l, got); diff != "" || err != nil {
			t.Errorf("%s: %v (-want +got):\n%s", c.name, err, diff)
		}
	}
}

// The format is on disks: what was written once must read the same for ever.
func TestCodecFormat(t *testing.T) {
	record := "\x01" + // version
		"\x01\x04acme" + "\x02\x06run-id" + "\x04\x10" + strings.Repeat("\xab", 16) +
		"\x08\x02\xe2\x09" + "\x09\x00" + "\x0a\x01\x05" +
		"\x0b\x16" + "\x01\x01p" + "\x02\x01h" + "\x04\x0ba2a-message" + "\x05\x01e"
	got, err := decodeLink("r", []byte(record))
	want := ancestry.Link{
		Run: "r", Alias: "acme", Evidence: ancestry.EvidenceRunID, Time: time.UnixMilli(625).UTC(),
		Chain: ancestry.Chain{More: true, Depth: 5, Ancestors: []ancestry.Ancestor{
			{Run: "p", Host: "h", Cause: ancestry.CauseA2AMessage, Event: "e"},
		}},
	}
	for i := range want.Trace {
		want.Trace[i] = 0xab
	}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("decodeLink: %v (-want +got):\n%s", err, diff)
	}
	if again := encodeLink(want); string(again) != record {
		t.Errorf("encodeLink = %q, want %q", again, record)
	}
	// A field of a later version is skipped, in a link and in an ancestor.
	if got, err = decodeLink("r", []byte(record+"\x7f\x03new")); err != nil || cmp.Diff(want, got) != "" {
		t.Errorf("with an unknown field: %v, %v", got, err)
	}
}

func TestCodecCutsOldAncestors(t *testing.T) {
	long := ancestry.Ancestor{
		Run: ancestry.RunID(strings.Repeat("r", ancestry.MaxRunID)), Host: strings.Repeat("h", 255),
		WellKnown: "https://h/" + strings.Repeat("w", 2038), Cause: ancestry.CauseMCPToolCall, Event: strings.Repeat("e", 128),
	}
	short := ancestry.Ancestor{Run: "p", Host: "h", Cause: ancestry.CauseDispatch}
	text := strings.Repeat("x", 256)
	largest := ancestry.Link{
		Run: long.Run, Alias: long.Run, Host: long.Host, Operation: text, Reason: text, Evidence: ancestry.Evidence(text),
		Chain: ancestry.Chain{Ancestors: []ancestry.Ancestor{long, long}}, Time: time.Now(),
		Trace: ancestry.TraceID{1}, Span: ancestry.SpanID{1}, ParentSpan: ancestry.SpanID{1},
	}
	if err := largest.Validate(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name      string
		ancestors []ancestry.Ancestor
		depth     int
		kept      int
		wantDepth int
	}{
		{"all fit", []ancestry.Ancestor{short, short}, 0, 2, 0},
		{"the parent is kept", []ancestry.Ancestor{long, long}, 0, 1, 2},
		{"depth is kept", []ancestry.Ancestor{long, short, long}, 40, 2, 40},
	} {
		l := largest
		l.Chain = ancestry.Chain{Ancestors: c.ancestors, Depth: c.depth, More: c.depth > 0}
		record := encodeLink(l)
		got, err := decodeLink(l.Key(), record)
		if err != nil || len(record) > maxRecord {
			t.Fatalf("%s: record of %d bytes, %v", c.name, len(record), err)
		}
		if diff := cmp.Diff(c.ancestors[:c.kept], got.Chain.Ancestors); diff != "" {
			t.Errorf("%s: ancestors (-want +got):\n%s", c.name, diff)
		}
		if got.Chain.Depth != c.wantDepth || got.Chain.More != (c.wantDepth > 0) {
			t.Errorf("%s: depth %d, more %v, want %d", c.name, got.Chain.Depth, got.Chain.More, c.wantDepth)
		}
	}
}

func TestCodecRefuses(t *testing.T) {
	for _, c := range []struct{ name, record string }{
		{"empty", ""},
		{"other version", "\x02"},
		{"cut in the length", "\x01\x01"},
		{"cut in the value", "\x01\x01\x05acme"},
		{"huge length", "\x01\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01a"},
		{"endless length", "\x01\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"},
		{"short trace", "\x01\x04\x01a"},
		{"long span", "\x01\x05\x09123456789"},
		{"empty time", "\x01\x08\x00"},
		{"long time", "\x01\x08\x02\x00\x00"},
		{"huge depth", "\x01\x0a\x05\xff\xff\xff\xff\x0f"},
		{"cut ancestor", "\x01\x0b\x02\x01\x05"},
	} {
		if l, err := decodeLink("r", []byte(c.record)); !errors.Is(err, errRecord) {
			t.Errorf("%s: decodeLink = %v, %v, want errRecord", c.name, l, err)
		}
	}
}

// FuzzDecodeLink: whatever is on the disk decodes to an error, or to a link
// that encodes and decodes to itself.
func FuzzDecodeLink(f *testing.F) {
	f.Add("run-1", encodeLink(link(1)))
	f.Add("run-1 peer.example.com", encodeLink(ancestry.Link{Reason: "x", Time: time.UnixMilli(1)}))
	f.Add("", []byte("\x01\x0b\x03\x01\x01a"))
	f.Fuzz(func(t *testing.T, key string, record []byte) {
		l, err := decodeLink(key, record)
		if err != nil || l.Key() != key {
			return
		}
		l.Time = time.UnixMilli(l.Time.UnixMilli()).UTC()
		again := encodeLink(l)
		got, err := decodeLink(key, again)
		if err != nil {
			t.Fatalf("decodeLink(%q) of what was encoded = %v", again, err)
		}
		if len(again) <= maxRecord && len(got.Chain.Ancestors) == len(l.Chain.Ancestors) {
			if diff := cmp.Diff(l, got, cmpopts.EquateEmpty()); diff != "" {
				t.Fatalf("(-want +got):\n%s", diff)
			}
		}
		if !bytes.Equal(again, encodeLink(got)) {
			t.Fatalf("not stable: %q", again)
		}
	})
}

func TestFilter(t *testing.T) {
	const n = 10_000
	made := newFilter(n)
	for i := range n {
		made.add([]byte(link(i).Run))
	}
	f, err := decodeFilter(made.encode())
	if err != nil {
		t.Fatal(err)
	}
	wrong := 0
	for i := range n {
		if !f.has(hashName([]byte(link(i).Run))) {
			t.Fatalf("filter hides %q", link(i).Run)
		}
		if f.has(hashName([]byte(link(i).Alias))) {
			wrong++
		}
	}
	if wrong > n/100 {
		t.Errorf("filter is wrong about %d of %d names, want about one in two hundred", wrong, n)
	}
	if newFilter(0).has(hashName([]byte("x"))) {
		t.Error("an empty filter has x")
	}
	// The hash is on disks.
	if got, want := hashName([]byte("run")), (nameHash{0x13df1aae72a7e7a2, 0x712e59f7a2633b85}); got != want {
		t.Errorf("hashName = %#x, want %#x", got, want)
	}
}

func TestFilterRefusesDamage(t *testing.T) {
	b := newFilter(100).encode()
	for _, damaged := range [][]byte{nil, b[:8], b[:len(b)-1], append(append([]byte(nil), b...), 0), append([]byte{b[0] ^ 1}, b[1:]...)} {
		if _, err := decodeFilter(damaged); err == nil {
			t.Errorf("decodeFilter of %d damaged bytes = nil", len(damaged))
		}
	}
}
