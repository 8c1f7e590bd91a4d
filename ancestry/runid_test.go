package ancestry_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode"

	"github.com/wopproxy/wopproxy/ancestry"
)

func TestParseRunID(t *testing.T) {
	for _, c := range []struct {
		name, in string
		ok       bool
	}{
		{"minted", "run_01ARZ3NDEKTSV4RRFFQ69G5FAV", true},
		{"one byte", "r", true},
		{"every visible byte", visibleASCII(), true},
		{"longest", strings.Repeat("x", 272), true},
		{"longest of OpenWOP v2", "anon:" + strings.Repeat("t", 128) + "/" + strings.Repeat("o", 128), true},
		{"three dots", "...", true},
		{"empty", "", false},
		{"too long", strings.Repeat("x", 273), false},
		{"dot", ".", false},
		{"dots", "..", false},
		{"space", "a b", false},
		{"line end", "a\r\nX-Evil: 1", false},
		{"NUL", "a\x00", false},
		{"DEL", "a\x7f", false},
		{"beyond ASCII", "ä", false},
	} {
		id, err := ancestry.ParseRunID(c.in)
		if (err == nil) != c.ok || c.ok && string(id) != c.in || !c.ok && id != "" {
			t.Errorf("%s: ParseRunID(%q) = %q, %v, want ok %v", c.name, c.in, id, err, c.ok)
		}
	}
}

func visibleASCII() string {
	var b strings.Builder
	for c := byte(0x21); c <= 0x7e; c++ {
		b.WriteByte(c)
	}
	return b.String()
}

func TestNewRunID(t *testing.T) {
	now := time.UnixMilli(1_700_000_000_123)
	seen := map[ancestry.RunID]bool{}
	var last ancestry.RunID
	for range 10_000 {
		id := ancestry.NewRunID(now)
		if at, ok := id.Minted(); !ok || !at.Equal(now) {
			t.Fatalf("%q.Minted() = %v, %v, want %v", id, at, ok, now)
		}
		if id <= last || seen[id] {
			t.Fatalf("%q after %q", id, last)
		}
		seen[id], last = true, id
	}
	if later := ancestry.NewRunID(now.Add(time.Millisecond)); later <= last {
		t.Errorf("%q a millisecond after %q", later, last)
	}
	for _, odd := range []time.Time{{}, time.Unix(-1, 0), time.Date(20000, 1, 1, 0, 0, 0, 0, time.UTC)} {
		if id := ancestry.NewRunID(odd); len(id) != 30 {
			t.Errorf("NewRunID(%v) = %q", odd, id)
		}
	}
}

// Whoever holds one id must not find its neighbour of the same millisecond by
// counting.
func TestNewRunIDIsNotGuessable(t *testing.T) {
	now := time.UnixMilli(1_700_000_000_124)
	near := 0
	for range 1000 {
		a, b := ancestry.NewRunID(now), ancestry.NewRunID(now)
		// 32 bits are the last six digits and a bit; a step of 2^48 leaves more.
		if a[:30-7] == b[:30-7] {
			near++
		}
	}
	if near > 10 {
		t.Errorf("%d of 1000 pairs are within 2^35", near)
	}
}

func TestNewRunIDConcurrently(t *testing.T) {
	now := time.UnixMilli(1_700_000_000_125)
	var mu sync.Mutex
	seen := map[ancestry.RunID]bool{}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 500 {
				id := ancestry.NewRunID(now)
				mu.Lock()
				seen[id] = true
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if len(seen) != 4000 {
		t.Errorf("%d different ids of 4000", len(seen))
	}
}

func TestMinted(t *testing.T) {
	at, ok := ancestry.RunID("run_01ARZ3NDEKTSV4RRFFQ69G5FAV").Minted()
	if want := time.UnixMilli(1469922850259); !ok || !at.Equal(want) {
		t.Errorf("Minted = %v, %v, want %v", at, ok, want)
	}
	for _, id := range []ancestry.RunID{
		"", "run_", "01ARZ3NDEKTSV4RRFFQ69G5FAV", "run_01ARZ3NDEKTSV4RRFFQ69G5FA", "run_01ARZ3NDEKTSV4RRFFQ69G5FAVX",
		"run_01arz3ndektsv4rrffq69g5fav", "run_81ARZ3NDEKTSV4RRFFQ69G5FAV", "run_01ARZ3NDEKTSV4RRFFQ69G5FAU", "run-01ARZ3NDEKTSV4RRFFQ69G5FAV",
	} {
		if at, ok := id.Minted(); ok {
			t.Errorf("%q.Minted() = %v, true, want false", id, at)
		}
	}
}

func TestTenantBound(t *testing.T) {
	opaque := strings.Repeat("o", 16)
	for _, c := range []struct {
		id   string
		want bool
	}{
		{"acme/" + opaque, true},
		{"anon:x/" + opaque, true},
		{"a.b_c~d-e/0.1_2~3-" + opaque, true},
		{strings.Repeat("t", 128) + "/" + strings.Repeat("o", 128), true},
		{strings.Repeat("t", 129) + "/" + opaque, false},
		{"acme/" + strings.Repeat("o", 129), false},
		{"acme/" + opaque[1:], false},
		{"/" + opaque, false},
		{"anon:/" + opaque, false},
		{"anon:anon:x/" + opaque, false},
		{"other:x/" + opaque, false},
		{"acme/x/" + opaque, false},
		{"acme/" + opaque + "!", false},
		{"run_01ARZ3NDEKTSV4RRFFQ69G5FAV", false},
		{"", false},
	} {
		if got := ancestry.RunID(c.id).TenantBound(); got != c.want {
			t.Errorf("%q.TenantBound() = %v, want %v", c.id, got, c.want)
		}
	}
}

func TestSegment(t *testing.T) {
	for _, c := range []struct{ id, want string }{
		{"run_01ARZ3NDEKTSV4RRFFQ69G5FAV", "run_01ARZ3NDEKTSV4RRFFQ69G5FAV"},
		{"acme/run.a-b_c", "acme~2Frun.a-b_c"},
		{"anon:x/y", "anon~3Ax~2Fy"},
		{"a~b", "a~7Eb"},
		{"a%2Fb?c#d", "a~252Fb~3Fc~23d"},
	} {
		if got := ancestry.RunID(c.id).Segment(); got != c.want {
			t.Errorf("%q.Segment() = %q, want %q", c.id, got, c.want)
		}
	}
}

func TestParseSegment(t *testing.T) {
	for _, c := range []struct {
		name, raw, v1, v2 string // "" is an error
	}{
		{"plain", "run_1", "run_1", "run_1"},
		{"percent", "acme%2Frun", "acme/run", "acme/run"},
		{"percent, lower case", "acme%2frun", "acme/run", "acme/run"},
		{"projected", "acme~2Frun", "acme~2Frun", "acme/run"},
		{"projected, lower case", "anon~3ax~2fy", "anon~3ax~2fy", "anon:x/y"},
		{"projected and escaped by a client", "acme%7E2Frun", "acme~2Frun", "acme/run"},
		{"projected tilde", "a~7E2F", "a~7E2F", "a~2F"},
		{"escaped percent is decoded once", "a%252F", "a%2F", "a%2F"},
		{"tilde at the end", "a~", "a~", ""},
		{"tilde with one digit", "a~2", "a~2", ""},
		{"tilde without digits", "a~zz", "a~zz", ""},
		{"tilde with a sign", "a~+2", "a~+2", ""},
		{"projected line end", "a~0D~0A", "a~0D~0A", ""},
		{"escaped line end", "a%0D%0A", "", ""},
		{"bad escape", "a%zz", "", ""},
		{"empty", "", "", ""},
		{"escaped dots", "%2e%2e", "", ""},
		{"projected dots", "~2e~2e", "~2e~2e", ""},
	} {
		if id, err := ancestry.ParseSegmentV1(c.raw); string(id) != c.v1 || (err == nil) != (c.v1 != "") {
			t.Errorf("%s: ParseSegmentV1(%q) = %q, %v, want %q", c.name, c.raw, id, err, c.v1)
		}
		id, err := ancestry.ParseSegmentV2(c.raw)
		if string(id) != c.v2 || (err == nil) != (c.v2 != "") {
			t.Errorf("%s: ParseSegmentV2(%q) = %q, %v, want %q", c.name, c.raw, id, err, c.v2)
		}
		if want := strings.HasPrefix(c.name, "tilde "); errors.Is(err, ancestry.ErrProjection) != want {
			t.Errorf("%s: ParseSegmentV2(%q) = %v, want ErrProjection %v", c.name, c.raw, err, want)
		}
	}
}

// FuzzSegment: every run id survives its projection, which needs no escaping.
func FuzzSegment(f *testing.F) {
	f.Add("acme/run")
	f.Add(visibleASCII())
	f.Fuzz(func(t *testing.T, s string) {
		id, err := ancestry.ParseRunID(s)
		if err != nil {
			return
		}
		segment := id.Segment()
		if got, err := ancestry.ParseSegmentV2(segment); got != id || err != nil {
			t.Errorf("ParseSegmentV2(%q) = %q, %v, want %q", segment, got, err, id)
		}
		for i := range len(segment) {
			if c := rune(segment[i]); c > unicode.MaxASCII || !strings.ContainsRune("~._-", c) && !unicode.IsLetter(c) && !unicode.IsDigit(c) {
				t.Errorf("%q.Segment() = %q holds %q", id, segment, c)
			}
		}
	})
}

func ExampleRunID_Segment() {
	id, _ := ancestry.ParseRunID("acme/0123456789abcdef")
	fmt.Println("/runs/" + id.Segment() + "/ancestry")
	// Output: /runs/acme~2F0123456789abcdef/ancestry
}

func BenchmarkNewRunID(b *testing.B) {
	b.ReportAllocs()
	now := time.Now()
	for b.Loop() {
		ancestry.NewRunID(now)
	}
}
