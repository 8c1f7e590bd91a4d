package proxy

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/wopproxy/wopproxy/ancestry"
)

// benchPeer answers at once, with 1 KB.
func benchPeer(b *testing.B) string {
	answer := `{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"` + strings.Repeat("x", 950) + `"}]}}`
	return peer(b, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, answer)
	})
}

// exchanges sends the same request over and over, on one connection.
func exchanges(b *testing.B, tr *http.Transport, target string, body []byte, header http.Header) {
	b.Helper()
	u, err := url.Parse(target)
	if err != nil {
		b.Fatal(err)
	}
	defer tr.CloseIdleConnections()
	buf := make([]byte, 4<<10)
	b.ReportAllocs()
	for b.Loop() {
		r := &http.Request{
			Method: http.MethodPost, URL: u, Host: u.Host, Header: header.Clone(), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
			Body: io.NopCloser(bytes.NewReader(body)), ContentLength: int64(len(body)),
		}
		resp, err := tr.RoundTrip(r)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := io.CopyBuffer(io.Discard, resp.Body, buf); err != nil || resp.StatusCode != http.StatusOK {
			b.Fatal(resp.Status, err)
		}
		resp.Body.Close()
	}
}

// storeless is a Recorder whose links are durable at once: the data path is to be
// measured, and not a store.
type storeless struct {
	*ancestry.Recorder
	done ancestry.Commit
}

func (r storeless) Record(ancestry.Link) ancestry.Commit { return r.done }

func benchSidecar(b *testing.B, to string) *sidecar {
	rec := ancestry.NewRecorder(ancestry.NewMemory(), ancestry.RecorderOptions{})
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); rec.Run(ctx) }()
	b.Cleanup(func() { stop(); <-done })
	commit := rec.Record(ancestry.Link{Run: "r", Reason: reasonNoAncestry, Time: time.Now()})
	if err := commit.Wait(b.Context()); err != nil {
		b.Fatal(err)
	}
	return newSidecar(b, "agent.example.com", "http://"+to, func(o *Options, _ *Policy) {
		o.Recorder = storeless{rec, commit}
		o.Quarantine = -1
	})
}

var (
	benchMCP = http.Header{
		"Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"},
		"Mcp-Protocol-Version": {"2025-11-25"}, "Traceparent": {traced}, "Run-Ancestry": {goodAncestry},
	}
	benchPlain = http.Header{"Content-Type": {"application/octet-stream"}, "Traceparent": {traced}}
)

// One whole exchange, client to server and back, over loopback sockets. The same
// without a proxy, and with a plain ReverseProxy, says what of it is ours.
func BenchmarkExchange(b *testing.B) {
	to := benchPeer(b)
	body := toolCall(1 << 10)
	for _, row := range []struct {
		name   string
		header http.Header
	}{{"MCP", benchMCP}, {"plain", benchPlain}} {
		name, header := row.name, row.header
		b.Run("direct/"+name, func(b *testing.B) {
			exchanges(b, direct(b), "http://"+to+"/mcp", body, header)
		})
		b.Run("ReverseProxy/"+name, func(b *testing.B) {
			u, err := url.Parse("http://" + to)
			if err != nil {
				b.Fatal(err)
			}
			s := newServer(&httputil.ReverseProxy{
				Transport: newTransport(nil), BufferPool: &copyBuffers,
				Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(u); r.Out.Host = r.In.Host },
			})
			defer s.Close()
			exchanges(b, direct(b), s.URL+"/mcp", body, header)
		})
		b.Run("ingress/"+name, func(b *testing.B) {
			exchanges(b, direct(b), benchSidecar(b, to).ingress.URL+"/mcp", body, header)
		})
		b.Run("egress/"+name, func(b *testing.B) {
			tr := direct(b)
			tr.Proxy = http.ProxyURL(benchSidecar(b, to).proxyURL())
			exchanges(b, tr, "http://"+to+"/mcp", body, header)
		})
		b.Run("egress of a run/"+name, func(b *testing.B) {
			tr := direct(b)
			tr.Proxy = http.ProxyURL(benchSidecar(b, to).proxyURL())
			h := header.Clone()
			h.Set("Run-Id", "r-1")
			exchanges(b, tr, "http://"+to+"/mcp", body, h)
		})
	}
}
