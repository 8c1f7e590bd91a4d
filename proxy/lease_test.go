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

// TestLongBodiesStayApart sends many long messages at a time, of which some are
// answered before they are read, and some are given up by their clients.
func TestLongBodiesStayApart(t *testing.T) {
	mixed := make(chan string, 1)
	to := peer(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("early") == "" {
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
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, benchResult)
	})
	s := newSidecar(t, "agent.example.com", "http://"+to)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 24 {
				ctx, cancel := context.WithCancel(t.Context())
				mark := fmt.Sprintf("%04d.", 100*i+j)
				body := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t","arguments":{"text":"` + strings.Repeat(mark, longMarks) + `"}}}`
				url := s.ingress.URL + "/mcp"
				if j%3 == 1 {
					url += "?early=1"
				}
				r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
				if err != nil {
					t.Error(err)
				}
				r.Header = benchMCP.Clone()
				r.Header.Set("Mark", mark)
				if j%3 == 2 {
					go cancel()
				}
				if resp, err := http.DefaultClient.Do(r); err == nil {
					_, _ = io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
				} else if j%3 == 0 {
					t.Error(err)
				}
				cancel()
			}
		})
	}
	wg.Wait()
	select {
	case m := <-mixed:
		t.Errorf("what arrived is not what was sent: %s", m)
	default:
	}
}

// longMarks of five bytes make 64 KB.
const longMarks = 13 << 10
