package proxy

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/wopproxy/wopproxy/proxy/internal/wire"
)

// A request of gRPC is read to the end of its message and no further: its client
// may leave its side open. Nothing of what follows is lost.
func TestBodyOfOneFrame(t *testing.T) {
	frame := wire.AppendFrame(nil, []byte("message"))
	long := wire.AppendFrame(nil, bytes.Repeat([]byte("x"), 100))
	for name, tt := range map[string]struct {
		pieces []string // the last one comes when patience is over
		all    string
		why    bodyOutcome
	}{
		"at once, left open":   {[]string{string(frame), "more"}, string(frame), bodyWhole},
		"in pieces, left open": {[]string{string(frame[:1]), string(frame[1:6]), string(frame[6:]), "more"}, string(frame), bodyWhole},
		"with more behind":     {[]string{string(frame) + "mo", "re"}, string(frame) + "mo", bodyWhole},
		"empty, left open":     {[]string{"\x00\x00\x00\x00\x00", "more"}, "\x00\x00\x00\x00\x00", bodyWhole},
		"announced too long":   {[]string{string(long[:5]), string(long[5:])}, "", bodyTooLarge},
		"cut short":            {[]string{string(frame[:8]), string(frame[8:])}, "", bodySlow},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				src := &slowBody{err: io.EOF}
				for i, p := range tt.pieces {
					src.pieces = append(src.pieces, []byte(p))
					src.pauses = append(src.pauses, 0)
					if i == len(tt.pieces)-1 {
						src.pauses[i] = 200
					}
				}
				began := time.Now()
				all, rest, why := readBody(src, true, -1, 100, 100*time.Millisecond, plenty())
				if took := time.Since(began); string(all) != tt.all || why != tt.why || took > 0 && why != bodySlow {
					t.Errorf("readBody = %q, %v after %v, want %q, %v at once", all, why, took, tt.all, tt.why)
				}
				behind, err := io.ReadAll(rest)
				if got, want := string(all)+string(behind), strings.Join(tt.pieces, ""); got != want || err != nil {
					t.Errorf("in all %q, %v, want %q", got, err, want)
				}
			})
		})
	}
	if all, rest, why := readBody(io.NopCloser(bytes.NewReader(frame[:8])), true, -1, 100, patience, plenty()); string(all) != string(frame[:8]) || rest != nil || why != bodyWhole {
		t.Errorf("half a frame: %q, %v, %v", all, rest, why)
	}
}

// FuzzFrames: in whatever pieces an answer comes, its messages are those that it
// has as a whole, but for the compressed ones and the long ones, which are
// counted.
func FuzzFrames(f *testing.F) {
	two := wire.AppendFrame(wire.AppendFrame(nil, []byte("one")), []byte("two"))
	f.Add(two, []byte{1, 1, 3}, 100)
	f.Add(slices.Concat([]byte{1}, two[1:]), []byte{4}, 100)
	f.Add(slices.Concat(wire.AppendFrame(nil, make([]byte, 50)), two), []byte{7, 200}, 20)
	f.Add([]byte{0, 0xff, 0xff, 0xff, 0xff, 1, 2}, []byte{5}, 20)
	f.Add([]byte{0, 0, 0, 0, 0}, []byte{}, 0)
	f.Fuzz(func(t *testing.T, body, cuts []byte, limit int) {
		var want, got []string
		for b := body; len(b) >= 5; {
			size := 5 + int64(binary.BigEndian.Uint32(b[1:]))
			n := min(size, int64(len(b)))
			switch {
			case b[0] != 0 || size > int64(limit):
				want = append(want, "too long")
			case n == size:
				want = append(want, fmt.Sprintf("%q", b[5:n]))
			}
			b = b[n:]
		}
		p := parts(&frames{limit: int64(limit)})
		for _, chunk := range pieces(body, cuts) {
			p.write(chunk, func(m []byte) { got = append(got, fmt.Sprintf("%q", m)) }, func() { got = append(got, "too long") })
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("messages of %x in pieces %v (-want +got):\n%s", body, cuts, diff)
		}
		if kept := cap(p.(*frames).open); kept > max(2*limit, keptFrame)+512 {
			t.Errorf("%d bytes are kept with limit %d", kept, limit)
		}
	})
}
