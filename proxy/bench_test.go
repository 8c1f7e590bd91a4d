package proxy

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/wopproxy/wopproxy/ancestry"
	"github.com/wopproxy/wopproxy/ancestry/boltstore"
	"github.com/wopproxy/wopproxy/evidence"
	"github.com/wopproxy/wopproxy/proxy/internal/wire"
)

// benchAnswer is 1 KB, at once, or a stream where the path asks for one.
func benchAnswer(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	switch r.URL.Path {
	case "/stream":
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = w.Write(benchStream)
	case "/a2a":
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, benchTask)
	default:
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, benchResult)
	}
}

var (
	benchText   = strings.Repeat("x", 950)
	benchResult = `{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"` + benchText + `"}]}}`
	benchTask   = `{"jsonrpc":"2.0","id":1,"result":{"kind":"task","id":"t-1","contextId":"c-1","status":{"state":"completed"},"artifacts":[{"artifactId":"1","parts":[{"kind":"text","text":"` + benchText + `"}]}]}}`
	benchSend   = `{"jsonrpc":"2.0","id":1,"method":"message/send","params":{"message":{"kind":"message","role":"user","messageId":"m-1","parts":[{"kind":"text","text":"` + benchText + `"}]}}}`
	// benchStream is progress of 200 events, and a result.
	benchStream = []byte(strings.Repeat("event: message\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":{\"progressToken\":7,\"progress\":1}}\n\n", 199) +
		"event: message\ndata: " + benchResult + "\n\n")
)

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
	one := func() {
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
	one() // opens the connection, and everybody else's
	for b.Loop() {
		one()
	}
}

// storeless is a Recorder whose links are durable at once, and forgotten: the data
// path is to be measured, and not a store.
type storeless struct {
	*ancestry.Recorder
	done ancestry.Commit
}

func (r storeless) Record(ancestry.Link) ancestry.Commit { return r.done }

// unstored tunes a sidecar to a recorder that keeps nothing.
func unstored(t testing.TB) func(*Options, *Policy) {
	rec := ancestry.NewRecorder(ancestry.NewMemory(), ancestry.RecorderOptions{})
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); rec.Run(ctx) }()
	t.Cleanup(func() { stop(); <-done })
	commit := rec.Record(ancestry.Link{Run: "r", Reason: reasonNoAncestry, Time: time.Now()})
	if err := commit.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	return func(o *Options, _ *Policy) { o.Recorder = storeless{rec, commit} }
}

// signing tunes a sidecar to sign evidence, and to keep it on disk.
func signing(b *testing.B) func(*Options, *Policy) {
	store, err := boltstore.Open(boltstore.Options{Dir: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { store.Close() })
	return newFile(b, "https://agent.example.com", func(o *evidence.Options) { o.Store = store }).tune
}

func benchSidecar(b *testing.B, to string, tune ...func(*Options, *Policy)) *sidecar {
	return newSidecar(b, "agent.example.com", "http://"+to, append(tune, unstored(b), func(o *Options, _ *Policy) { o.Quarantine = -1 })...)
}

var (
	benchMCP = http.Header{
		"Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"},
		"Mcp-Protocol-Version": {"2025-11-25"}, "Traceparent": {traced}, "Run-Ancestry": {goodAncestry},
	}
	benchA2A = http.Header{
		"Content-Type": {"application/json"}, "Accept": {"application/json"}, "Traceparent": {traced}, "Run-Ancestry": {goodAncestry},
	}
	benchPlain = http.Header{"Content-Type": {"application/octet-stream"}, "Traceparent": {traced}}
)

// One whole exchange, client to server and back, over loopback sockets. The same
// without a proxy, and with a plain ReverseProxy, says what of it is ours.
func BenchmarkExchange(b *testing.B) {
	to := peer(b, benchAnswer)
	secure, roots := secureServer(b, benchAnswer)
	for _, row := range []struct {
		name, path string
		header     http.Header
		body       []byte
	}{
		{"MCP", "/mcp", benchMCP, toolCall(1 << 10)},
		{"MCP64KB", "/mcp", benchMCP, toolCall(64 << 10)},
		{"stream", "/stream", benchMCP, toolCall(1 << 10)},
		{"A2A", "/a2a", benchA2A, []byte(benchSend)},
		{"plain", "/mcp", benchPlain, toolCall(1 << 10)},
	} {
		name, header, body := row.name, row.header, row.body
		b.Run("direct/"+name, func(b *testing.B) {
			exchanges(b, direct(b), "http://"+to+row.path, body, header)
		})
		b.Run("ReverseProxy/"+name, func(b *testing.B) {
			u, err := url.Parse("http://" + to)
			if err != nil {
				b.Fatal(err)
			}
			rp := &httputil.ReverseProxy{
				Transport: newTransport(nil), BufferPool: &copyBuffers,
				Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(u); r.Out.Host = r.In.Host },
			}
			s := newServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_ = http.NewResponseController(w).EnableFullDuplex() // or it breaks event streams off now and then
				rp.ServeHTTP(w, r)
			}))
			defer s.Close()
			exchanges(b, direct(b), s.URL+row.path, body, header)
		})
		b.Run("ingress/"+name, func(b *testing.B) {
			exchanges(b, direct(b), benchSidecar(b, to).ingress.URL+row.path, body, header)
		})
		b.Run("egress/"+name, func(b *testing.B) {
			tr := direct(b)
			tr.Proxy = http.ProxyURL(benchSidecar(b, to).proxyURL())
			exchanges(b, tr, "http://"+to+row.path, body, header)
		})
		b.Run("egress of a run/"+name, func(b *testing.B) {
			tr := direct(b)
			tr.Proxy = http.ProxyURL(benchSidecar(b, to).proxyURL())
			h := header.Clone()
			h.Set("Run-Id", "r-1")
			exchanges(b, tr, "http://"+to+row.path, body, h)
		})
		b.Run("intercepted/"+name, func(b *testing.B) {
			tr := direct(b)
			s := benchSidecar(b, to, intercepting(b, roots))
			tr.Proxy, tr.TLSClientConfig = http.ProxyURL(s.proxyURL()), &tls.Config{RootCAs: s.roots(b)}
			h := header.Clone()
			h.Set("Run-Id", "r-1")
			exchanges(b, tr, secure.URL+row.path, body, h)
		})
	}
}

// BenchmarkEvidence is the exchange of BenchmarkExchange with a receipt of each, which
// is signed and stored on the side: its cost is in the figures, too, as far as it is
// signed meanwhile.
func BenchmarkEvidence(b *testing.B) {
	to := peer(b, benchAnswer)
	b.Run("ingress/MCP", func(b *testing.B) {
		exchanges(b, direct(b), benchSidecar(b, to, signing(b)).ingress.URL+"/mcp", toolCall(1<<10), benchMCP)
	})
	b.Run("egress of a run/MCP", func(b *testing.B) {
		tr := direct(b)
		tr.Proxy = http.ProxyURL(benchSidecar(b, to, signing(b)).proxyURL())
		h := benchMCP.Clone()
		h.Set("Run-Id", "r-1")
		exchanges(b, tr, "http://"+to+"/mcp", toolCall(1<<10), h)
	})
}

// BenchmarkReadHead is what every request costs, whose ever it is.
func BenchmarkReadHead(b *testing.B) {
	for _, row := range []struct {
		name, path string
		header     http.Header
	}{{"MCP", "/mcp", benchMCP}, {"A2A", "/a2a", benchA2A}, {"plain", "/files/report", benchPlain}} {
		b.Run(row.name, func(b *testing.B) {
			r, err := http.NewRequestWithContext(b.Context(), http.MethodPost, "http://agent.example.com"+row.path, strings.NewReader("{}"))
			if err != nil {
				b.Fatal(err)
			}
			r.Header = row.header
			b.ReportAllocs()
			for b.Loop() {
				readHead(r)
			}
		})
	}
}

// BenchmarkEvents cuts a stream of 200 events as it comes in pieces, and reads
// each.
func BenchmarkEvents(b *testing.B) {
	for _, size := range []int{128, 4 << 10} {
		b.Run(strconv.Itoa(size), func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(benchStream)))
			for b.Loop() {
				e, read := events{limit: 1 << 20}, 0
				for chunk := range slices.Chunk(benchStream, size) {
					e.write(chunk, func(data []byte) {
						if _, ok := wire.ReadAnswer(data, wire.MCP, false); ok {
							read++
						}
					}, func() { b.Fatal("too long") })
				}
				if read != 200 {
					b.Fatalf("%d events were read, want 200", read)
				}
			}
		})
	}
}
