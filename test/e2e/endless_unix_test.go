//go:build unix

package e2e

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
)

// bomb is 256 MiB of spaces, compressed.
var bomb = sync.OnceValue(func() []byte {
	var b bytes.Buffer
	z, _ := gzip.NewWriterLevel(&b, gzip.BestCompression) // the level is one
	for blank := bytes.Repeat([]byte(" "), 1<<20); b.Len() < 1<<18; {
		_, _ = z.Write(blank)
	}
	_ = z.Close()
	return b.Bytes()
})

// TestDecompressionBombs: what is compressed passes as it is, in both directions
// and in everything that would be read if it were not.
func TestDecompressionBombs(t *testing.T) {
	want := sha256.Sum256(bomb())
	host := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if r.Method == http.MethodPost && (err != nil || sha256.Sum256(b) != want) {
			t.Errorf("%s: %d bytes have come, %v, want those that were sent", r.URL.Path, len(b), err)
		}
		w.Header().Set("Content-Type", "application/json")
		if strings.HasSuffix(r.URL.Path, "/events") {
			w.Header().Set("Content-Type", "text/event-stream")
		}
		w.Header().Set("Content-Encoding", "gzip")
		_, _ = w.Write(bomb())
	}))
	t.Cleanup(host.Close)
	s := start(t, "agent.example.com", host.URL, settings{"ingress.discovery.causation": "assert"})
	before := s.memory(t)
	for _, way := range []struct {
		client *http.Client
		base   string
	}{{&http.Client{Transport: &http.Transport{DisableCompression: true}}, s.ingress}, {s.client(t), host.URL}} {
		for _, path := range []string{"POST /mcp", "POST /message:send", "POST /v1/runs", "GET /v1/runs/r-1/events", "GET /.well-known/openwop", "GET /.well-known/agent-card.json"} {
			method, path, _ := strings.Cut(path, " ")
			var body io.Reader
			if method == http.MethodPost {
				body = bytes.NewReader(bomb())
			}
			req, err := http.NewRequest(method, way.base+path, body)
			if err != nil {
				t.Fatal(err)
			}
			req.Header = http.Header{"Content-Type": {"application/json"}, "Content-Encoding": {"gzip"}, "Accept": {"application/json, text/event-stream"}}
			resp, err := way.client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			b, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if err != nil || sha256.Sum256(b) != want || resp.Header.Get("Content-Encoding") != "gzip" {
				t.Errorf("%s%s: %d bytes %v, %v, want those that were sent", way.base, path, len(b), resp.Header, err)
			}
		}
	}
	s.wantMemory(t, before, 64)
}

// TestEndlessAnswers: answers without end in sight, in one event or line or in many,
// cost a bounded amount while they pass, and all of them passes.
func TestEndlessAnswers(t *testing.T) {
	const size = 128 << 20
	block := strings.Repeat("x", 1<<20)
	for _, row := range []struct{ name, typ, begin, each, limit string }{
		{"one event", "text/event-stream", "data: ", block, "inspected-event"},
		{"one event of many lines", "text/event-stream", "", "data: " + block + "\n", "inspected-event"},
		{"events that are comments", "text/event-stream", "", ": " + block + "\n", ""},
		{"many events", "text/event-stream", "", strings.Repeat(`data: {"jsonrpc":"2.0","method":"notifications/progress","params":{}}`+"\n\n", 1<<20/73), ""},
		{"one line of JSON", "application/x-ndjson", "{", block, ""},
		{"many lines of JSON", "application/x-ndjson", "", strings.Repeat(`{"jsonrpc":"2.0","id":9,"result":{}}`+"\n", 1<<20/37), ""},
		{"one JSON answer", "application/json", `{"jsonrpc":"2.0","id":"call-7","result":"`, block, "inspected-answer"},
	} {
		t.Run(row.name, func(t *testing.T) {
			host := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", row.typ)
				_, _ = io.WriteString(w, row.begin)
				for n := 0; n < size; n += len(row.each) {
					_, _ = io.WriteString(w, row.each)
				}
				_, _ = io.WriteString(w, "\n\n") // what is no whole event is counted by nobody
			}))
			t.Cleanup(host.Close)
			s := start(t, "agent.example.com", host.URL)
			for dir, way := range map[string]struct {
				client *http.Client
				base   string
			}{"ingress": {direct, s.ingress}, "egress": {s.client(t), host.URL}} {
				before := s.memory(t)
				req, err := http.NewRequest(http.MethodPost, way.base+"/mcp", strings.NewReader(toolCall))
				if err != nil {
					t.Fatal(err)
				}
				req.Header = http.Header{"Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"}}
				resp, err := way.client.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				n, err := io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
				if err != nil || n < size {
					t.Errorf("%s: %d bytes, %v, want %d", dir, n, err, size)
				}
				s.wantMemory(t, before, 32)
				if row.limit != "" {
					if hit := s.metric(t, "wopproxy_limit_hits_total", fmt.Sprintf("limit=%q", row.limit)); hit == 0 {
						t.Errorf("%s: limit %s was not hit", dir, row.limit)
					}
				}
			}
		})
	}
}
