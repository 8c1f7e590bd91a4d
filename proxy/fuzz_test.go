package proxy

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"math"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"
)

// pieces cuts b at the places that cuts names, each relative to the one before.
func pieces(b, cuts []byte) [][]byte {
	var out [][]byte
	for _, c := range cuts {
		n := min(int(c), len(b))
		out = append(out, b[:n])
		b = b[n:]
	}
	return append(out, b)
}

// plainEvents reads a whole event stream the way a reader without haste does: by
// the grammar of the HTML standard, all at once. What is not ended by an empty
// line is no event.
func plainEvents(text string, limit int) (events []string, tooLong int) {
	text = strings.ReplaceAll(strings.ReplaceAll(text, "\r\n", "\n"), "\r", "\n")
	lines := strings.Split(text, "\n")
	var data []string
	long := false
	for _, line := range lines[:len(lines)-1] {
		value, isData := strings.CutPrefix(line, "data")
		switch {
		case line != "":
			long = long || len(line) > limit+len("data: ")
			if isData && (value == "" || value[0] == ':') {
				value = strings.TrimPrefix(strings.TrimPrefix(value, ":"), " ")
				data = append(data, value)
			}
			continue
		case long || len(strings.Join(data, "\n")) > limit:
			tooLong++
		case data != nil:
			events = append(events, strings.Join(data, "\n"))
		}
		data, long = nil, false
	}
	return events, tooLong
}

// FuzzEvents holds the observer of event streams to the plain reader, wherever the
// chunks are cut.
func FuzzEvents(f *testing.F) {
	for _, s := range []string{
		"data: {\"a\":1}\n\ndata: 2\n\n", "data: 1\r\ndata: 2\r\n\r\n", "data\rdata:\r\r", ": hi\n\nid: 1\ndata:\n\n",
		"event: x\ndata:  two\n\n\n\n", "data: " + strings.Repeat("x", 40) + "\n\ndata: y\n\n", "retry: 1\n\ndata: open",
		"datax: 1\n\ndata : 2\n\n", "data: \r\n\r\ndata: a\r\rdata: b\n\r\n", "data: 12345678901234567890\ndata: 12345678901\n\n",
	} {
		f.Add([]byte(s), []byte{1, 2, 3}, 30)
		f.Add([]byte(s), bytes.Repeat([]byte{1}, len(s)), 8)
	}
	f.Fuzz(func(t *testing.T, text, cuts []byte, limit int) {
		limit = max(0, limit%100)
		e := events{limit: limit}
		var got []string
		tooLong := 0
		for _, p := range pieces(text, cuts) {
			e.write(p, func(data []byte) { got = append(got, string(data)) }, func() { tooLong++ })
			if n := cap(e.line) + cap(e.data); n > 16*(limit+100) {
				t.Fatalf("%d bytes are kept of events of at most %d", n, limit)
			}
		}
		want, wantLong := plainEvents(string(text), limit)
		if !slices.Equal(got, want) || tooLong != wantLong {
			t.Errorf("events(%q cut at %v, limit %d) = %q and %d too long, want %q and %d", text, cuts, limit, got, tooLong, want, wantLong)
		}
	})
}

// FuzzJudge holds the sniffing of tunnels to three promises. What has been said of
// a client's first bytes stays true whatever follows, so it makes no difference
// how they are cut. What net/http can serve as a plain request is never taken for
// something else. And nothing that net/http would answer with 400 at its first
// word is taken for HTTP.
func FuzzJudge(f *testing.F) {
	for _, s := range []string{
		"GET / HTTP/1.1\r\nHost: a\r\n\r\n", "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", "POST http://a/ HTTP/1.1\r\nHost: a\r\n\r\n",
		h2Preface, "PRI * HTTP/1.1\r\n", "SSH-2.0-Go\r\n", "\x16\x03\x01", "get / HTTP/1.1", "M-SEARCH * HTTP/1.1\r\n", "A", "GET", "-- /", "HELO x\r\n", "GET HTTP://a/ HTTP/1.1\r\n\r\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) == 0 {
			return
		}
		kind := judge(b)
		for n := 1; n < len(b) && n < 64; n++ {
			if k := judge(b[:n]); k != "" && k != kind {
				t.Fatalf("judge(%q) = %q, and of %q = %q", b[:n], k, b, kind)
			}
		}
		r, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(b)))
		plain := err == nil && strings.Trim(r.Method, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") == "" && len(r.Method) <= 20 && strings.HasPrefix(r.RequestURI, "/")
		if plain && kind != tunnelHTTP1 {
			t.Errorf("judge(%q) = %q, want %q", b, kind, tunnelHTTP1)
		}
		word, _, spaced := bytes.Cut(b, []byte(" "))
		if kind == tunnelHTTP1 && (!spaced || len(word) == 0 || bytes.ContainsAny(word, "\r\n\t/:.0123456789abcdefghijklmnopqrstuvwxyz")) {
			t.Errorf("judge(%q) = %q, though it does not begin with a method", b, kind)
		}
		if kind == tunnelH2C != bytes.HasPrefix(b, []byte(h2Preface)) {
			t.Errorf("judge(%q) = %q", b, kind)
		}
	})
}

// errBroken ends a body that breaks off.
var errBroken = errors.New("broken off")

// slowBody delivers one piece for each read, after the pause that stands before
// it, and ends with err.
type slowBody struct {
	pieces [][]byte
	pauses []byte // of a millisecond each; none when there are no more
	err    error
	atOnce bool // the end comes with the last piece
	closed bool
}

func (b *slowBody) Read(p []byte) (int, error) {
	if len(b.pauses) > 0 {
		time.Sleep(time.Duration(b.pauses[0]) * time.Millisecond)
		b.pauses = b.pauses[1:]
	}
	if len(b.pieces) == 0 {
		return 0, b.err
	}
	n := copy(p, b.pieces[0])
	if b.pieces[0] = b.pieces[0][n:]; len(b.pieces[0]) == 0 {
		b.pieces = b.pieces[1:]
	}
	if b.atOnce && len(b.pieces) == 0 {
		return n, b.err
	}
	return n, nil
}

func (b *slowBody) Close() error { b.closed = true; return nil }

// plenty is a share that is never used up.
func plenty() *share { return &share{all: new(atomic.Int64), limit: math.MaxInt64} }

// FuzzReadBody holds readBody to its promise: in whatever pieces a body comes, and
// whenever the patience ends, the bytes that come out are those that went in, and
// then comes the same end.
func FuzzReadBody(f *testing.F) {
	f.Add([]byte("hello"), []byte{1, 1}, []byte{0, 5, 0}, 3, 100, 7, false, true, true)
	f.Add([]byte("hello, world"), []byte{5}, []byte{200}, 100, 100, 3, false, false, false)
	f.Add([]byte("too long"), []byte{}, []byte{}, 0, 4, 1, false, true, true)
	f.Add([]byte("too long"), []byte{4}, []byte{}, 0, 4, 1, false, false, false)
	f.Add([]byte("breaks"), []byte{2}, []byte{1, 1, 1}, 50, 100, 2, true, false, false)
	f.Add([]byte(""), []byte{}, []byte{9}, 8, 100, 2, false, false, false)
	f.Fuzz(func(t *testing.T, body, cuts, pauses []byte, patience, limit, readSize int, breaks, announced, atOnce bool) {
		limit, readSize = max(0, limit%2000), 1+max(0, readSize%100)
		wait := time.Duration(max(0, patience%1000)) * time.Millisecond
		synctest.Test(t, func(t *testing.T) {
			src := &slowBody{pieces: slices.DeleteFunc(pieces(body, cuts), func(p []byte) bool { return len(p) == 0 }), pauses: pauses, err: io.EOF, atOnce: atOnce}
			if breaks {
				src.err = errBroken
			}
			length := int64(-1)
			if announced {
				length = int64(len(body))
			}
			began := time.Now()
			all, rest, why := readBody(src, false, length, int64(limit), wait, plenty())
			if took := time.Since(began); took > wait {
				t.Errorf("readBody took %v, want at most %v", took, wait)
			}
			switch {
			case (all == nil) == (rest == nil):
				t.Fatalf("readBody = %q, %v, want the one or the other", all, rest)
			case all != nil && (len(all) > limit || breaks || why != bodyWhole):
				t.Errorf("readBody = %d bytes, %v, with limit %d, broken: %v", len(all), why, limit, breaks)
			case why == bodyTooLarge && len(body) <= limit, why == bodyBroken && !breaks:
				t.Errorf("outcome = %v of %d bytes with limit %d, broken: %v", why, len(body), limit, breaks)
			}
			var err error
			if rest != nil {
				all, err = readInPieces(rest, readSize)
			}
			if !bytes.Equal(all, body) {
				t.Errorf("%q came out, want %q", all, body)
			}
			if breaks != errors.Is(err, errBroken) || !breaks && err != nil {
				t.Errorf("end = %v, broken: %v", err, breaks)
			}
			if rest != nil {
				if err := rest.Close(); err != nil || !src.closed {
					t.Errorf("Close = %v, and the source is closed: %v", err, src.closed)
				}
			}
		})
	})
}

func readInPieces(r io.Reader, size int) (all []byte, err error) {
	b := make([]byte, size)
	for {
		n, err := r.Read(b)
		all = append(all, b[:n]...)
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return all, err
		}
	}
}

// Bodies that are read at a time hold so much and no more. Small ones count for
// nothing, one that finds no room passes whole, and what was held comes back.
func TestBodiesShareMemory(t *testing.T) {
	var all atomic.Int64
	const limit, large = 1 << 20, 400 << 10
	read := func(n int, announced bool) (*share, int, bodyOutcome) {
		s, length := &share{all: &all, limit: limit}, int64(-1)
		if announced {
			length = int64(n)
		}
		got, rest, why := readBody(io.NopCloser(bytes.NewReader(make([]byte, n))), false, length, 4<<20, time.Hour, s)
		if rest != nil {
			var err error
			if got, err = io.ReadAll(rest); err != nil {
				t.Fatal(err)
			}
		}
		return s, len(got), why
	}
	var shares []*share
	for i, row := range []struct {
		n         int
		announced bool
		want      bodyOutcome
	}{
		{large, true, bodyWhole}, {large, true, bodyWhole}, {large, true, bodyCrowded}, {large, false, bodyCrowded},
		{64<<10 - 1, true, bodyWhole}, {60 << 10, false, bodyWhole}, {5 << 20, true, bodyTooLarge},
	} {
		s, n, why := read(row.n, row.announced)
		if n != row.n || why != row.want {
			t.Errorf("body %d: %d bytes of %d, outcome %v, want %v", i, n, row.n, why, row.want)
		}
		shares = append(shares, s)
	}
	if held := all.Load(); held < 2*large || held > limit {
		t.Errorf("%d bytes are held, want two bodies of %d", held, large)
	}
	for _, s := range shares {
		s.give()
		s.give() // once is enough
	}
	if held := all.Load(); held != 0 {
		t.Errorf("%d bytes are held when all is over", held)
	}
	if _, _, why := read(large, false); why != bodyWhole {
		t.Errorf("afterwards: outcome %v, want the body whole", why)
	}
}

// The patience has an exact edge, and a body that was given up still comes whole.
func TestBodyPatience(t *testing.T) {
	for name, row := range map[string]struct {
		pause byte
		want  bodyOutcome
	}{
		"just in time": {99, bodyWhole},
		"too late":     {101, bodySlow},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				src := &slowBody{pieces: [][]byte{[]byte("a"), []byte("b")}, pauses: []byte{0, row.pause}, err: io.EOF}
				_, rest, why := readBody(src, false, 2, 100, 100*time.Millisecond, plenty())
				if why != row.want {
					t.Errorf("outcome = %v, want %v", why, row.want)
				}
				if rest != nil {
					if b, err := io.ReadAll(rest); string(b) != "ab" || err != nil {
						t.Errorf("the rest = %q, %v, want all of it", b, err)
					}
				}
			})
		})
	}
}

// A reader that gives its end together with its last bytes loses none of them.
func TestBodyEndsWithItsLastBytes(t *testing.T) {
	all, _, why := readBody(io.NopCloser(iotest.DataErrReader(strings.NewReader("hello"))), false, 5, 100, time.Hour, plenty())
	if string(all) != "hello" || why != bodyWhole {
		t.Errorf("readBody = %q, %v", all, why)
	}
	_, rest, why := readBody(io.NopCloser(iotest.DataErrReader(strings.NewReader("hello"))), false, -1, 3, time.Hour, plenty())
	if b, err := io.ReadAll(rest); string(b) != "hello" || err != nil || why != bodyTooLarge {
		t.Errorf("the rest = %q, %v, %v", b, err, why)
	}
}
