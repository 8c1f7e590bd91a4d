package proxy

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/wopproxy/wopproxy/proxy/internal/wire"
)

// seen is a request as the far side of the sidecar got it.
type seen struct {
	head   http.Header
	length int64
	sum    string
	body   []byte
}

// target is a server that remembers the last request, and answers like an MCP
// server.
func target(t testing.TB, last chan<- seen) string {
	return peer(t, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Errorf("read body: %v", err)
		}
		select {
		case last <- seen{r.Header.Clone(), r.ContentLength, sum(body), body}:
		case <-r.Context().Done():
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":1,"result":{}}`)
	})
}

func sum(b []byte) string {
	s := sha256.Sum256(b)
	return hex.EncodeToString(s[:])
}

// pathway is one of the ways through the sidecar.
type pathway struct {
	name string
	dir  direction
	// send sends r, whose URL is that of the target. A request that leaves says
	// which run it belongs to.
	send func(t testing.TB, s *sidecar, r *http.Request) (*http.Response, error)
}

var pathways = []pathway{
	{"ingress", ingress, func(t testing.TB, s *sidecar, r *http.Request) (*http.Response, error) {
		r.Host = r.URL.Host
		r.URL.Host = strings.TrimPrefix(s.ingress.URL, "http://")
		return direct(t).RoundTrip(r)
	}},
	{"egress", egress, func(t testing.TB, s *sidecar, r *http.Request) (*http.Response, error) {
		r.Header.Set("Run-Id", "r-1")
		tr := direct(t)
		tr.Proxy = http.ProxyURL(s.proxyURL())
		return tr.RoundTrip(r)
	}},
	{"tunnel", egress, func(t testing.TB, s *sidecar, r *http.Request) (*http.Response, error) {
		r.Header.Set("Run-Id", "r-1")
		return s.tunnelled(t, false).RoundTrip(r)
	}},
	{"tunnel-h2c", egress, func(t testing.TB, s *sidecar, r *http.Request) (*http.Response, error) {
		r.Header.Set("Run-Id", "r-1")
		return s.tunnelled(t, true).RoundTrip(r)
	}},
}

// direct is a Transport of a client that adds nothing of its own.
func direct(t testing.TB) *http.Transport {
	tr := &http.Transport{DisableCompression: true}
	t.Cleanup(tr.CloseIdleConnections)
	return tr
}

const traced = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

// toolCall makes a tool call whose body is exactly size bytes long.
func toolCall(size int) []byte {
	const head, tail = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","arguments":{"pad":"`, `"}}}`
	return []byte(head + strings.Repeat("x", size-len(head)-len(tail)) + tail)
}

func zipped(b string) []byte {
	var buf bytes.Buffer
	w := gzip.NewWriter(&buf)
	_, _ = io.WriteString(w, b)
	_ = w.Close()
	return buf.Bytes()
}

// proof is a DPoP proof with the given claims; nobody checks its signature.
func proof(claims string) string {
	enc := base64.RawURLEncoding.EncodeToString
	return enc([]byte(`{"typ":"dpop+jwt"}`)) + "." + enc([]byte(claims)) + ".c2ln"
}

// Bodies that must not be edited pass byte for byte, and the reason is counted
// once. The context is in the header all the same, unless a signature covers it.
func TestBodiesThatAreNotEdited(t *testing.T) {
	const call1 = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x"}}`
	deep := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"a":` + strings.Repeat("[", 200) + strings.Repeat("]", 200) + `}}`
	rows := []struct {
		name   string
		body   string
		header []string // name, value, …
		reason wire.Refusal
		limit  string // or: the bound that was hit as well
		plain  bool   // it is not ours at all: not even a header is written
		bare   bool   // nor is a header written to what is ours
	}{
		{name: "batch", body: `[` + call1 + `]`, reason: wire.RefusedBatch},
		{name: "params null", body: `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":null}`, reason: wire.RefusedParamsNotObject},
		{name: "params empty array", body: `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":[]}`, reason: wire.RefusedParamsNotObject},
		{name: "params array", body: `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":[1]}`, reason: wire.RefusedParamsNotObject},
		{name: "params scalar", body: `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":"x"}`, reason: wire.RefusedParamsNotObject},
		{name: "meta scalar", body: `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"_meta":7,"name":"x"}}`, reason: wire.RefusedMetaNotObject},
		{name: "meta null", body: `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"_meta":null,"name":"x"}}`, reason: wire.RefusedMetaNotObject},
		{name: "duplicate params", body: `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x"},"params":{"name":"y"}}`, reason: wire.RefusedDuplicateKey},
		{name: "duplicate meta", body: `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"_meta":{},"_meta":{"a":1}}}`, reason: wire.RefusedDuplicateKey},
		{name: "duplicate traceparent", body: `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"_meta":{"traceparent":"a","traceparent":"b"}}}`, reason: wire.RefusedDuplicateKey},
		{name: "case variant", body: `{"jsonrpc":"2.0","id":1,"method":"tools/call","METHOD":"ping","params":{"name":"x"}}`, reason: wire.RefusedCaseVariant},
		{name: "case variant of meta", body: `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"_Meta":{},"name":"x"}}`, reason: wire.RefusedCaseVariant},
		{name: "byte order mark", body: "\ufeff" + call1, header: mcpHeader, reason: wire.RefusedNotJSON},
		{name: "trailing data", body: call1 + call1, header: mcpHeader, reason: wire.RefusedNotJSON},
		{name: "trailing byte", body: call1 + "x", header: mcpHeader, reason: wire.RefusedNotJSON},
		{name: "invalid JSON", body: `{"jsonrpc":"2.0","id":1,"method":"tools/call",}`, header: mcpHeader, reason: wire.RefusedNotJSON},
		{name: "empty text", body: " ", header: mcpHeader, reason: wire.RefusedNotJSON},
		{name: "too deep", body: deep, header: mcpHeader, reason: wire.RefusedTooDeep},
		{name: "response", body: `{"jsonrpc":"2.0","id":1,"result":{}}`, header: mcpHeader, reason: wire.RefusedNotAMessage},
		{name: "null id", body: `{"jsonrpc":"2.0","id":null,"method":"tools/call","params":{"name":"x"}}`, reason: wire.RefusedUnrecognised},
		{name: "gzip", body: string(zipped(call1)), header: append(mcpHeader, "Content-Encoding", "gzip"), reason: wire.RefusedEncoded},
		{name: "identity", body: call1, header: []string{"Content-Encoding", "identity"}, reason: wire.RefusedEncoded, plain: true},
		{name: "Content-Digest", body: call1, header: []string{"Content-Digest", "sha-256=:AAAA:"}, reason: wire.RefusedDigest},
		{name: "Repr-Digest", body: call1, header: []string{"Repr-Digest", "sha-256=:AAAA:"}, reason: wire.RefusedDigest},
		{name: "Digest", body: call1, header: []string{"Digest", "SHA-256=AAAA"}, reason: wire.RefusedDigest},
		{name: "Content-MD5", body: call1, header: []string{"Content-MD5", "AAAAAAAAAAAAAAAAAAAAAA=="}, reason: wire.RefusedDigest},
		{name: "Signature", body: call1, header: []string{"Signature", "sig1=:AAAA:"}, reason: wire.RefusedSigned},
		{name: "Signature-Input", body: call1, header: []string{"Signature-Input", `sig1=("@method" "content-type");created=1`}, reason: wire.RefusedSigned},
		{name: "signed traceparent", body: call1, header: []string{"Signature-Input", `sig1=("@method" "traceparent")`, "Signature", "sig1=:AAAA:"}, reason: wire.RefusedSigned, bare: true},
		{name: "SigV4 digest", body: call1, header: []string{"X-Amz-Content-Sha256", "UNSIGNED-PAYLOAD"}, reason: wire.RefusedSigned},
		{name: "SigV4 authorization", body: call1, header: []string{"Authorization", "AWS4-HMAC-SHA256 Credential=x"}, reason: wire.RefusedSigned},
		{name: "DPoP with content_digest", body: call1, header: []string{"Dpop", proof(`{"htm":"POST","content_digest":"x"}`)}, reason: wire.RefusedDPoP},
		{name: "DPoP that cannot be read", body: call1, header: []string{"Dpop", "a.%.c"}, reason: wire.RefusedDPoP},
		{name: "DPoP in two parts", body: call1, header: []string{"Dpop", "a.b"}, reason: wire.RefusedDPoP},
		{name: "no-transform", body: call1, header: []string{"Cache-Control", "no-cache, No-Transform"}, reason: wire.RefusedNoTransform},
		{name: "above the limit", body: string(toolCall(4<<20 + 1)), header: mcpHeader, reason: wire.RefusedTooLarge, limit: limitBody},
		{name: "at the limit", body: string(toolCall(4 << 20)), reason: wire.RefusedTooLarge},
		{name: "too little room", body: string(toolCall(4<<20 - 20)), reason: wire.RefusedTooLarge},
		{name: "Ethereum", body: `{"jsonrpc":"2.0","id":1,"method":"eth_call","params":[{"to":"0x0"},"latest"]}`, plain: true},
		{name: "JSON of others", body: `{"a": 1.0,  "b":[ ]}`, plain: true},
		{name: "no JSON at all", body: "\x00\xff\x16", plain: true},
		{name: "text", body: call1, header: []string{"Content-Type", "text/plain"}, plain: true},
		{name: "form", body: "a=b&c=%2F", header: []string{"Content-Type", "application/x-www-form-urlencoded"}, plain: true},
	}
	last := make(chan seen, 1)
	to := target(t, last)
	for _, way := range pathways {
		t.Run(way.name, func(t *testing.T) {
			for _, row := range rows {
				t.Run(row.name, func(t *testing.T) {
					s := newSidecar(t, "agent.example.com", "http://"+to)
					resp, err := way.send(t, s, request(t, to, []byte(row.body), row.header...))
					if err != nil {
						t.Fatal(err)
					}
					resp.Body.Close()
					got := receive(t, last, "the request to arrive")
					if want := sum([]byte(row.body)); got.sum != want {
						t.Errorf("SHA-256 of the body = %s, want %s: %.200q became %.200q", got.sum, want, row.body, got.body)
					}
					if resp.StatusCode != http.StatusOK {
						t.Errorf("answer = %s, want that of the other side", resp.Status)
					}
					if tp := got.head["Traceparent"]; len(tp) != 1 || tp[0] != traced {
						t.Errorf("Traceparent = %q, want one, %q", tp, traced)
					}
					if row.reason != "" {
						s.awaitSeries(t, refused(way.dir, string(row.reason)), 1)
					}
					if n := total(s.series(t), "wopproxy_stamp_refusals_total"); n != 1 && row.reason != "" || n != 0 && row.reason == "" {
						t.Errorf("%v refusals are counted, want them to be those of reason %q", n, row.reason)
					}
					stamps, want := total(s.series(t), "wopproxy_stamps_total"), 1.0
					if row.bare || row.plain && way.dir == ingress {
						want = 0
					}
					if stamps != want {
						t.Errorf("%v messages are counted as stamped, want %v", stamps, want)
					}
					if row.limit != "" {
						s.wantSeries(t, hit(row.limit), 1)
					}
					s.wantSeries(t, "wopproxy_codec_panics_total", 0)
				})
			}
		})
	}
}

var mcpHeader = []string{"Mcp-Protocol-Version", "2025-11-25"}

// request makes a POST of JSON with a traceparent, to a target.
func request(t testing.TB, to string, body []byte, header ...string) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+to+"/mcp", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Traceparent", traced)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	return r
}

func total(series map[string]float64, family string) (n float64) {
	for name, v := range series {
		if strings.HasPrefix(name, family) {
			n += v
		}
	}
	return n
}

// A body that may be edited is changed where the context stands, and nowhere
// else: lone surrogates, invalid UTF-8, big numbers, escapes, white space and the
// order of members survive.
func TestBodiesThatAreEdited(t *testing.T) {
	const mark = "<meta>" // where the edit goes
	rows := []struct {
		name, body string
		header     []string
	}{
		{name: "lone surrogate", body: `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{<meta>"name":"\ud800 \udfff"}}`},
		{name: "invalid UTF-8", body: "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/call\",\"params\":{<meta>\"name\":\"\xff\xc0\x80\"}}"},
		{name: "spacing and order", body: "\n\t{ \"x\" : [1, 2 ],\"params\" : {<meta> \"name\" : \"a\\u002fb\" , \"n\":9007199254740993.0e0 } ,\r\n\"method\":\"tools/call\", \"id\":1e2 ,\"jsonrpc\":\"2.0\"}\n\n"},
		{name: "DPoP without content_digest", body: `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{<meta>"name":"x"}}`, header: []string{"Dpop", proof(`{"htm":"POST"}`)}},
		{name: "charset", body: `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{<meta>"name":"x"}}`, header: []string{"Content-Type", "application/json; charset=utf-8"}},
		{name: "as much as fits", body: strings.Replace(string(toolCall(4<<20-1024)), `"params":{`, `"params":{<meta>`, 1)},
	}
	last := make(chan seen, 1)
	to := target(t, last)
	for _, way := range pathways {
		for _, row := range rows {
			t.Run(way.name+"/"+row.name, func(t *testing.T) {
				s := newSidecar(t, "agent.example.com", "http://"+to)
				before, after, ok := strings.Cut(row.body, mark)
				if !ok {
					t.Fatal("the row has no mark")
				}
				resp, err := way.send(t, s, request(t, to, []byte(before+after), row.header...))
				if err != nil {
					t.Fatal(err)
				}
				resp.Body.Close()
				got := receive(t, last, "the request to arrive")
				want := `"_meta":{"traceparent":"` + got.head.Get("Traceparent") + `"`
				if state := got.head.Get("Tracestate"); state != "" {
					want += `,"tracestate":"` + state + `"`
				}
				if want = before + want + "}," + after; string(got.body) != want {
					t.Errorf("body = %.300q, want %.300q", got.body, want)
				}
				if got.length != int64(len(got.body)) {
					t.Errorf("Content-Length = %d, want %d", got.length, len(got.body))
				}
			})
		}
	}
}

// A body that comes slower than the patience lasts passes unread, in the pieces
// in which it comes; the first of them does not wait for the last.
func TestSlowBody(t *testing.T) {
	pieces := []string{`{"jsonrpc":"2.0","id":1,`, `"method":"tools/call",`, `"params":{"name":"x"}}`}
	for _, chunked := range []bool{false, true} {
		t.Run(fmt.Sprintf("chunked=%v", chunked), func(t *testing.T) {
			arrived := make(chan string)
			to := peer(t, func(w http.ResponseWriter, r *http.Request) {
				for _, p := range pieces {
					b := make([]byte, len(p))
					if _, err := io.ReadFull(r.Body, b); err != nil {
						t.Errorf("read: %v", err)
						return
					}
					arrived <- string(b)
				}
				if n, err := io.Copy(io.Discard, r.Body); n != 0 || err != nil {
					t.Errorf("%d bytes more, %v", n, err)
				}
			})
			s := newSidecar(t, "agent.example.com", "http://"+to, func(_ *Options, p *Policy) { p.BodyPatience = time.Millisecond })
			c := dialRaw(t, s.ingress.URL)
			length := "Content-Length: " + strconv.Itoa(len(strings.Join(pieces, "")))
			if chunked {
				length = "Transfer-Encoding: chunked"
			}
			c.send("POST /mcp HTTP/1.1\nHost: agent\nContent-Type: application/json\nMcp-Method: tools/call\n" + length + "\n\n")
			for _, p := range pieces {
				piece := p
				if chunked {
					piece = fmt.Sprintf("%x\r\n%s\r\n", len(p), p)
				}
				if _, err := io.WriteString(c.Conn, piece); err != nil {
					t.Fatal(err)
				}
				if got := receive(t, arrived, "a piece of the body"); got != p {
					t.Errorf("piece = %q, want %q", got, p)
				}
			}
			if chunked {
				if _, err := io.WriteString(c.Conn, "0\r\n\r\n"); err != nil {
					t.Fatal(err)
				}
			}
			if resp := c.answer(http.MethodPost); resp.StatusCode != http.StatusOK {
				t.Errorf("answer = %s, want 200", resp.Status)
			}
			s.wantSeries(t, hit(limitSlowBody), 1)
			if links := s.recorded(t); len(links) != 1 {
				t.Errorf("%d runs are recorded, want 1: a header says what the body is", len(links))
			}
		})
	}
}

// Half a body and a hang-up is for the host what it would be without us: a body
// that breaks off. It is the client's doing, and counted so.
func TestHalfSentBody(t *testing.T) {
	for _, patience := range []time.Duration{time.Millisecond, time.Hour} {
		t.Run("patience "+patience.String(), func(t *testing.T) {
			read := make(chan string, 1)
			broke := make(chan error, 1)
			to := peer(t, func(w http.ResponseWriter, r *http.Request) {
				b := make([]byte, 4)
				_, _ = io.ReadFull(r.Body, b)
				read <- string(b)
				_, err := io.Copy(io.Discard, r.Body)
				broke <- err
			})
			s := newSidecar(t, "agent.example.com", "http://"+to, func(_ *Options, p *Policy) { p.BodyPatience = patience })
			c := dialRaw(t, s.ingress.URL)
			c.send("POST /mcp HTTP/1.1\nHost: agent\nContent-Type: application/json\nContent-Length: 1000\n\n" + `{"jsonrpc`)
			if patience < time.Second {
				if got := receive(t, read, "the first bytes"); got != `{"js` {
					t.Errorf("first bytes = %q", got)
				}
			}
			if err := c.Close(); err != nil {
				t.Fatal(err)
			}
			s.awaitSeries(t, `wopproxy_exchanges_total{direction="ingress",outcome="client-gone",protocol="http"}`, 1)
			if patience < time.Second {
				if err := receive(t, broke, "the body to break off"); err == nil {
					t.Error("the host was given the end of a body that has none")
				}
			}
		})
	}
}
