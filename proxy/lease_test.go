package proxy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
)

// TestLease holds memory to those who read in it.
func TestLease(t *testing.T) {
	const size = 64 << 10
	l := borrow(size)
	body := append(l.memory(), bytes.Repeat([]byte("a"), size)...)
	if !l.has(body) || l.has(bytes.Clone(body)) {
		t.Errorf("has(its own) = %v, of a copy %v", l.has(body), l.has(bytes.Clone(body)))
	}
	first, err := l.reader(body)
	if err != nil {
		t.Fatal(err)
	}
	second, err := l.reader(body)
	if err != nil {
		t.Fatal(err)
	}
	first.Close()
	first.Close() // as transports do
	l.drop()
	for range 100 { // it is not lent while it is read
		other := borrow(size)
		copy(append(other.memory(), make([]byte, size)...), bytes.Repeat([]byte("b"), size))
		defer other.drop()
	}
	if got, err := io.ReadAll(second); err != nil || !bytes.Equal(got, bytes.Repeat([]byte("a"), size)) {
		t.Errorf("who reads late reads %.20q..., %v", got, err)
	}
	second.Close()
	if n, err := second.Read(make([]byte, 1)); n != 0 || !errors.Is(err, errBodyBack) {
		t.Errorf("Read of a closed reader = %d, %v, want 0, %v", n, err, errBodyBack)
	}
	again := borrow(size) // perhaps the same memory
	defer again.drop()
	if _, err := l.reader(body); !errors.Is(err, errBodyBack) {
		t.Errorf("a reader of what is not lent any more: %v, want %v", err, errBodyBack)
	}
	if borrow(minLease/2) != nil || borrow(maxLease) != nil {
		t.Error("short and very long bodies are lent memory")
	}
}

// TestLongBodiesStayApart sends many long messages at a time. Some are answered
// before they are read, some are given up by their clients, some by the next hop,
// and some meet a connection that it is about to close, so that they are sent again.
func TestLongBodiesStayApart(t *testing.T) {
	mixed := make(chan string, 1)
	hop := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch r.Header.Get("Fate") {
		case "answered early":
		case "dropped":
			_, _ = io.ReadFull(r.Body, make([]byte, 20<<10))
			panic(http.ErrAbortHandler)
		case "last of its connection":
			w.Header().Set("Connection", "close") // in HTTP/2: what comes behind is sent again
			fallthrough
		default:
			mark := r.Header.Get("Mark")
			b, err := io.ReadAll(r.Body)
			rest := strings.TrimLeft(string(b[max(bytes.Index(b, []byte(`"text":"`)), 0):]), `"tex:`)
			if err == nil && (strings.Count(rest, mark) != longMarks || !bytes.Contains(b, []byte(`"traceparent":`))) {
				select {
				case mixed <- fmt.Sprintf("%s: %.60q", mark, rest):
				default:
				}
			}
		}
		_, _ = io.WriteString(w, benchResult)
	}
	plain := newSidecar(t, "agent.example.com", "http://"+peer(t, hop))
	far, roots := secureServer(t, hop)
	opening := newInterceptingSidecar(t, roots)
	for _, way := range []struct {
		name, url string
		client    *http.Client
	}{
		{"HTTP/1.1", plain.ingress.URL + "/mcp", http.DefaultClient},
		{"HTTP/2", far.URL + "/mcp", opening.trusting(t, opening.roots(t), true)},
	} {
		t.Run(way.name, func(t *testing.T) {
			t.Parallel() // with the other: they share the memory
			var wg sync.WaitGroup
			for i := range 8 {
				wg.Go(func() {
					for j := range 10 {
						sendMarked(t, way.client, way.url, fmt.Sprintf("%04d.", 10*i+j), longFates[j%len(longFates)])
					}
				})
			}
			wg.Wait()
		})
	}
	t.Cleanup(func() {
		select {
		case m := <-mixed:
			t.Errorf("what arrived is not what was sent: %s", m)
		default:
		}
	})
}

// longFates are what becomes of long messages in turn.
var longFates = []string{"read", "answered early", "given up", "dropped", "last of its connection"}

// sendMarked sends a long message that says nothing but mark.
func sendMarked(t *testing.T, c *http.Client, url, mark, fate string) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	body := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t","arguments":{"text":"` + strings.Repeat(mark, longMarks) + `"}}}`
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Error(err)
		return
	}
	r.Header = benchMCP.Clone()
	r.Header.Set("Run-Id", "r-1")
	r.Header.Set("Mark", mark)
	r.Header.Set("Fate", fate)
	if fate == "given up" {
		go cancel()
	}
	resp, err := c.Do(r)
	if err != nil {
		if fate == "read" {
			t.Error(err)
		}
		return
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	if fate == "read" && resp.StatusCode != http.StatusOK {
		t.Errorf("%s is answered %s", mark, resp.Status)
	}
}

// longMarks of five bytes make 64 KB.
const longMarks = 13 << 10
