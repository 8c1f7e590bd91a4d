package attribution

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/wopproxy/wopproxy/ancestry"
)

func TestMentions(t *testing.T) {
	const uuid, ulid = "7c9e6679-7425-40de-944b-e07fc1f90ae7", "run_01JD4Q8Z6V7K3M2N9P5R1S0TXW"
	long := strings.Repeat("a1b2c3d4e5f6g7h8", 9)
	for _, tt := range []struct {
		body string
		want []string
		ok   bool
	}{
		{`{"id":"` + uuid + `"}`, []string{uuid}, true},
		{`see ` + ulid + `, or task-` + strings.ToUpper(uuid) + `.`, []string{strings.ToLower(ulid), "task-" + uuid}, true},
		{`{"text":"line\n` + uuid + `\u003c` + uuid + `\u00e9` + uuid + `"}`, []string{uuid, uuid, uuid}, true},
		{`{"text":"7c9e6679\u002d7425-40de-944b-e07fc1f90ae7"}`, nil, false},
		{`{"text":"\u0037c9e6679"}`, nil, false},
		{`507f1f77bcf86cd799439011 5f2b1c9d8e7a4f3b2c1d0e9f8a7b6c5d`, []string{"507f1f77bcf86cd799439011", "5f2b1c9d8e7a4f3b2c1d0e9f8a7b6c5d"}, true},
		{`conversation-20251121-run-1234 customer-support-agent 20251121T112233445566Z`, nil, true},
		{`00000000-0000-0000-0000-000000000001 aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa1 default`, nil, true},
		{long + ` x` + uuid + ` ` + uuid[:35], nil, true},
		{``, nil, true}, {`\`, nil, true}, {`\u00`, nil, true}, {`\uzzzz`, nil, true},
	} {
		if got, ok := Mentions([]byte(tt.body)); !slices.Equal(got, tt.want) || ok != tt.ok {
			t.Errorf("Mentions(%s) = %q, %v, want %q, %v", tt.body, got, ok, tt.want, tt.ok)
		}
	}
	var many strings.Builder
	for i := range maxMentioned + 1 {
		fmt.Fprintf(&many, "%08x-7425-40de-944b-e07fc1f90ae7 ", i)
	}
	if ids, ok := Mentions([]byte(many.String())); ok {
		t.Errorf("Mentions of too many = %d, true, want false", len(ids))
	}
	if ids, ok := Echoed([]byte(many.String())); !ok || len(ids) != maxMentioned+1 {
		t.Errorf("Echoed = %d, %v, want %d, true", len(ids), ok, maxMentioned+1)
	}
}

func FuzzMentions(f *testing.F) {
	f.Add([]byte(`{"id":"7c9e6679-7425-40de-944b-e07fc1f90ae7","t":"\u002d\n\`))
	f.Fuzz(func(t *testing.T, body []byte) {
		ids, ok := Echoed(body)
		lower := strings.ToLower(string(body))
		for _, id := range ids {
			if !ok || !Opaque(id) || !strings.Contains(lower, id) {
				t.Errorf("Echoed(%q) = %q, %v", body, ids, ok)
			}
		}
	})
}

// TestEchoedIDs shows when an id in a call tells its run: on a host where runs a
// and b are live.
func TestEchoedIDs(t *testing.T) {
	const idA, idB, other = "7c9e6679-7425-40de-944b-e07fc1f90ae7", "9b2f6c1e-3d4a-4b5c-8d7e-6f5a4b3c2d1e", "0f8fad5b-d9cb-469f-a165-70867728950e"
	for _, tt := range []struct {
		name   string
		setUp  func(tab *Table, a, b *Run)
		echoed []string
		want   ancestry.RunID
		why    Reason
	}{
		{"id of one", nil, []string{idA, other}, "a", ""},
		{"id of nobody", nil, []string{other}, "", ReasonManyLiveRuns},
		{"ids of two", nil, []string{idA, idB}, "", ReasonSharedEcho},
		{"id of one that the other was given", func(tab *Table, _, b *Run) { tab.Mention(b, []string{idA}, true) }, []string{idA}, "", ReasonSharedEcho},
		{"id of both", func(tab *Table, _, b *Run) { tab.Own(b, strings.ToUpper(idA)) }, []string{idA}, "", ReasonSharedEcho},
		{"the other's request is not known", func(tab *Table, _, b *Run) { tab.Mention(b, nil, false) }, []string{idA}, "", ReasonManyLiveRuns},
		{"a request that was not known is over", func(tab *Table, _, b *Run) { tab.Mention(b, nil, false); tab.End(b) }, []string{idA}, "a", ""},
		{"another that begins mentions none", func(tab *Table, _, _ *Run) { tab.Start(&Run{First: "c", Read: true}) }, []string{idA}, "a", ""},
		{"another that begins mentions it", func(tab *Table, _, _ *Run) { tab.Start(&Run{First: "c", Read: true, Mentions: []string{idA}}) }, []string{idA}, "", ReasonSharedEcho},
		{"the other's request was never read", func(tab *Table, _, _ *Run) { tab.Start(&Run{First: "c"}) }, []string{idA}, "", ReasonManyLiveRuns},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tab := newTable(Options{Echoes: true, Quarantine: -1})
			a, b := start(t, tab, &Run{First: "a"}), start(t, tab, &Run{First: "b"})
			tab.Mention(a, []string{idA}, true)
			tab.Mention(b, nil, true)
			tab.Own(a, idA)
			tab.Own(b, idB)
			if tt.setUp != nil {
				tt.setUp(tab, a, b)
			}
			if v := tab.Attribute(Clues{Echoed: tt.echoed}); v.ID != tt.want || v.Reason != tt.why {
				t.Errorf("Attribute = %q, %q, want %q, %q", v.ID, v.Reason, tt.want, tt.why)
			}
			if v := tab.Attribute(Clues{RunID: "b", Echoed: tt.echoed}); v.ID != "b" || v.Conflict {
				t.Errorf("beside a Run-Id: %+v, want b and no conflict", v)
			}
			for _, r := range []*Run{a, b} {
				tab.End(r)
			}
			if live, bound := tab.Len(); live == 0 && (bound != 0 || tab.unread != 0) {
				t.Errorf("when all is over: %d bindings, %d unread, want none", bound, tab.unread)
			}
		})
	}
	off := newTable(Options{})
	a := start(t, off, &Run{First: "a"})
	start(t, off, &Run{First: "b"})
	off.Own(a, idA)
	if v := off.Attribute(Clues{Echoed: []string{idA}}); v.ID != "" {
		t.Errorf("turned off: %+v, want none", v)
	}
}

// BenchmarkEchoed is the cost of the pass over a body: one of JSON with words,
// one with ids only.
func BenchmarkEchoed(b *testing.B) {
	words := []byte(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"search","arguments":{"q":"`)
	words = append(words, strings.Repeat("the quick brown fox, jumps over the lazy dog; ", 1400)...)
	for name, body := range map[string][]byte{
		"words": words,
		"ids":   []byte(strings.Repeat(`"7c9e6679-7425-40de-944b-e07fc1f90ae7",`, 200)),
	} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				Echoed(body)
			}
		})
	}
}
