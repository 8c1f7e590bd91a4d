package proxy

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// rawWays are the ways through the sidecar for a request that is spelt out. Each
// gives a connection, and what stands in front of a path on it.
var rawWays = []struct {
	name string
	dir  direction
	dial func(t testing.TB, s *sidecar, to string) (c *rawConn, prefix string)
}{
	{"ingress", ingress, func(t testing.TB, s *sidecar, to string) (*rawConn, string) { return dialRaw(t, s.ingress.URL), "" }},
	{"egress", egress, func(t testing.TB, s *sidecar, to string) (*rawConn, string) {
		return dialRaw(t, s.egress.URL), "http://" + to
	}},
	{"base path", egress, func(t testing.TB, s *sidecar, to string) (*rawConn, string) {
		return dialRaw(t, s.egress.URL), "/_run/r-1/http://" + to
	}},
	{"tunnel", egress, func(t testing.TB, s *sidecar, to string) (*rawConn, string) { return s.connect(t, to), "" }},
}

// A request target arrives as it was sent: nothing is decoded, cleaned or sorted.
func TestRequestTargetsPassAsSent(t *testing.T) {
	got := make(chan string, 1)
	to := peer(t, func(_ http.ResponseWriter, r *http.Request) { got <- r.RequestURI })
	for _, way := range rawWays {
		for _, path := range []string{
			"/runs/acme%2Fr-1", "/runs/acme~2Fr-1", "/runs/acme%2fr-1", "/message%3Asend", "/message:send",
			"//a//b/", "/a/../b/./c", "/a%2e%2e/b", "/a;b=c;d", "/a+b", "/%41%7E", "/a%20b", "/[x]",
			"/?", "/?a=b+c&d=%20&a=2", "/?a;b", "/?%", "/?x=%zz&;=", "/?a=b?c", "/?q=ü", "/:8080", "/http://other/x",
		} {
			t.Run(way.name+path, func(t *testing.T) {
				s := newSidecar(t, "agent.example.com", "http://"+to)
				c, prefix := way.dial(t, s, to)
				c.send("GET " + prefix + path + " HTTP/1.1\nHost: " + to + "\n\n")
				if resp := c.answer(http.MethodGet); resp.StatusCode != http.StatusOK {
					t.Fatalf("answer = %s", resp.Status)
				}
				if uri := receive(t, got, "the request"); uri != path {
					t.Errorf("target = %q, want %q", uri, path)
				}
			})
		}
	}
}

// What no URL may contain is escaped on the way, as net/http does, which means the
// same: a client that sends it breaks the rules of the request line already.
func TestIllegalCharactersArriveEscaped(t *testing.T) {
	got := make(chan string, 1)
	to := peer(t, func(_ http.ResponseWriter, r *http.Request) { got <- r.RequestURI })
	for _, way := range rawWays {
		s := newSidecar(t, "agent.example.com", "http://"+to)
		c, prefix := way.dial(t, s, to)
		c.send("GET " + prefix + "/ü|^?ü|^ HTTP/1.1\nHost: " + to + "\n\n")
		c.answer(http.MethodGet)
		if uri := receive(t, got, "the request"); uri != "/%C3%BC%7C%5E?ü|^" {
			t.Errorf("%s: target = %q, want the path escaped and the query as sent", way.name, uri)
		}
	}
}

// An upstream with a path of its own stands in front of each target, escapes and
// all.
func TestUpstreamWithPath(t *testing.T) {
	got := make(chan string, 1)
	to := peer(t, func(_ http.ResponseWriter, r *http.Request) { got <- r.RequestURI })
	for base, want := range map[string]string{
		"":           "/a%2Fb?c",
		"/":          "/a%2Fb?c",
		"/base":      "/base/a%2Fb?c",
		"/base%2F1/": "/base%2F1/a%2Fb?c",
	} {
		t.Run("base "+base, func(t *testing.T) {
			s := newSidecar(t, "agent.example.com", "http://"+to+base)
			c := dialRaw(t, s.ingress.URL)
			c.send("GET /a%2Fb?c HTTP/1.1\nHost: agent\n\n")
			c.answer(http.MethodGet)
			if uri := receive(t, got, "the request"); uri != want {
				t.Errorf("target = %q, want %q", uri, want)
			}
		})
	}
}

// What belongs to one connection stays there, in both directions, whatever it is
// called. Our own headers can't be made to stay behind by naming them in
// Connection.
func TestHopByHopHeadersStay(t *testing.T) {
	got := make(chan http.Header, 1)
	to := peer(t, func(w http.ResponseWriter, r *http.Request) {
		got <- r.Header.Clone()
		for name, v := range map[string]string{
			"Connection": "X-Theirs, keep-alive", "X-Theirs": "1", "Keep-Alive": "timeout=5", "Proxy-Connection": "keep-alive",
			"Proxy-Authenticate": "Basic", "X-End": "1", "Upgrade": "h2c", "Run-Id": `"c";host="h"`,
		} {
			w.Header().Set(name, v)
		}
	})
	for _, way := range rawWays {
		t.Run(way.name, func(t *testing.T) {
			s := newSidecar(t, "agent.example.com", "http://"+to)
			c, prefix := way.dial(t, s, to)
			c.send("POST " + prefix + "/mcp HTTP/1.1\nHost: " + to + `
Connection: X-Mine, Traceparent, Tracestate, Run-Ancestry, Run-Id, close
X-Mine: 1
X-End: 1
Keep-Alive: timeout=5
Proxy-Connection: keep-alive
Te: trailers, deflate
Upgrade: h2c
Traceparent: ` + traced + `
Content-Type: application/json
Content-Length: ` + fmt.Sprint(len(call)) + "\n\n" + call)
			resp := c.answer(http.MethodPost)
			h := receive(t, got, "the request")
			for _, name := range []string{"Connection", "X-Mine", "Keep-Alive", "Proxy-Connection", "Upgrade"} {
				if h[name] != nil {
					t.Errorf("request header %s = %q has travelled on", name, h[name])
				}
			}
			if te := h.Get("Te"); te != "trailers" {
				t.Errorf("TE = %q, want the one value that is end to end, trailers", te)
			}
			if h.Get("X-End") != "1" || resp.Header.Get("X-End") != "1" {
				t.Error("an end-to-end header is lost")
			}
			if way.dir == ingress && (h.Get("Run-Id") == "" || !strings.HasPrefix(h.Get("Tracestate"), "wop=")) {
				t.Errorf("ours are lost: %v", h)
			}
			if way.name == "base path" && h.Get("Run-Ancestry") == "" {
				t.Errorf("ours are lost: %v", h)
			}
			if h.Get("Traceparent") == "" && way.dir == ingress {
				t.Error("no traceparent has arrived")
			}
			for _, name := range []string{"X-Theirs", "Keep-Alive", "Proxy-Connection", "Upgrade"} {
				if resp.Header[name] != nil {
					t.Errorf("response header %s = %q has travelled on", name, resp.Header[name])
				}
			}
		})
	}
}

// The proxy asks for nothing and signs nothing in a client's name.
func TestNothingIsInvented(t *testing.T) {
	got := make(chan http.Header, 1)
	to := peer(t, func(_ http.ResponseWriter, r *http.Request) { got <- r.Header.Clone() })
	for _, way := range rawWays {
		t.Run(way.name, func(t *testing.T) {
			s := newSidecar(t, "agent.example.com", "http://"+to)
			c, prefix := way.dial(t, s, to)
			c.send("GET " + prefix + "/ HTTP/1.1\nHost: " + to + "\nX-One: 1\nX-One: 2\n\n")
			c.answer(http.MethodGet)
			want := http.Header{"X-One": {"1", "2"}}
			h := receive(t, got, "the request")
			if way.name == "base path" { // which is attributed
				h.Del("Traceparent")
			}
			if diff := cmp.Diff(want, h); diff != "" {
				t.Errorf("headers (-sent +arrived):\n%s", diff)
			}
		})
	}
}

// A request of HTTP/2 that ends with its headers has no body on the way on either,
// whatever its method: a host that got an empty one, in chunks, could not notice
// that the caller hangs up before it has read that.
func TestNoBodyIsNone(t *testing.T) {
	got := make(chan []string, 1)
	to := peer(t, func(_ http.ResponseWriter, r *http.Request) {
		got <- append(r.TransferEncoding, r.Header["Content-Length"]...)
		<-r.Context().Done()
		got <- nil
	})
	h2c := new(http.Protocols)
	h2c.SetUnencryptedHTTP2(true)
	for _, typ := range []string{"application/json", "text/plain"} {
		s := newSidecar(t, "agent.example.com", "http://"+to)
		for way, base := range map[string]string{"ingress": s.ingress.URL, "base path": s.egress.URL + "/_run/r-1/http://" + to} {
			ctx, cancel := context.WithCancel(t.Context())
			r, err := http.NewRequestWithContext(ctx, http.MethodPost, base+"/x", nil)
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Content-Type", typ)
			tr := &http.Transport{Protocols: h2c}
			done := make(chan struct{})
			go func() { defer close(done); _, _ = tr.RoundTrip(r) }()
			if how := receive(t, got, "the request"); len(how) > 1 || len(how) == 1 && how[0] != "0" {
				t.Errorf("%s, %s: it came with %q, want no body", way, typ, how)
			}
			cancel()
			receive(t, got, "the host to notice that the caller has gone")
			<-done
			tr.CloseIdleConnections()
		}
	}
}

// Whether to compress is between the peers, but for answers that the proxy must
// be able to read: those it asks to come plain.
func TestAcceptEncoding(t *testing.T) {
	got := make(chan http.Header, 1)
	to := peer(t, func(w http.ResponseWriter, r *http.Request) {
		got <- r.Header.Clone()
		w.Header().Set("Content-Encoding", "gzip")
		_, _ = w.Write(zipped("hello"))
	})
	for _, way := range pathways {
		for _, ours := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/ours=%v", way.name, ours), func(t *testing.T) {
				s := newSidecar(t, "agent.example.com", "http://"+to)
				r := streamRequest(t, to, ours)
				r.Header.Set("Accept-Encoding", "gzip, br")
				resp, err := way.send(t, s, r)
				if err != nil {
					t.Fatal(err)
				}
				b, err := io.ReadAll(resp.Body)
				resp.Body.Close()
				if err != nil || string(b) != string(zipped("hello")) || resp.Header.Get("Content-Encoding") != "gzip" {
					t.Errorf("answer = %q, %v, %v, want it as it was sent", b, resp.Header, err)
				}
				want := "gzip, br"
				if ours {
					want = ""
					s.awaitSeries(t, hit(limitAnswer), 1) // it came compressed all the same
				}
				if ae := receive(t, got, "the request").Get("Accept-Encoding"); ae != want {
					t.Errorf("Accept-Encoding = %q, want %q", ae, want)
				}
			})
		}
	}
}

// HEAD, and answers that never have a body, keep what they say of its length.
func TestAnswersWithoutBody(t *testing.T) {
	to := peer(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/304":
			w.Header().Set("Etag", `"x"`)
			w.WriteHeader(http.StatusNotModified)
		case "/204":
			w.WriteHeader(http.StatusNoContent)
		default:
			w.Header().Set("Content-Length", "12345")
		}
	})
	for _, way := range rawWays {
		for _, row := range []struct {
			method, path string
			status       int
			length       string
		}{
			{"HEAD", "/", http.StatusOK, "12345"},
			{"GET", "/304", http.StatusNotModified, ""},
			{"GET", "/204", http.StatusNoContent, ""},
		} {
			t.Run(way.name+"/"+row.method+row.path, func(t *testing.T) {
				s := newSidecar(t, "agent.example.com", "http://"+to)
				c, prefix := way.dial(t, s, to)
				for range 2 { // the second shows that the first was over
					c.send(row.method + " " + prefix + row.path + " HTTP/1.1\nHost: " + to + "\n\n")
					resp := c.answer(row.method)
					if resp.StatusCode != row.status || resp.Header.Get("Content-Length") != row.length {
						t.Errorf("answer = %s, Content-Length %q, want %d, %q", resp.Status, resp.Header.Get("Content-Length"), row.status, row.length)
					}
				}
			})
		}
	}
}

// A WebSocket passes, with what either side says at once, and ends for one side
// when the other has closed it.
func TestWebSocket(t *testing.T) {
	for _, way := range rawWays {
		for _, closes := range []string{"client", "server"} {
			t.Run(way.name+"/"+closes+" closes", func(t *testing.T) {
				ended := make(chan error, 1)
				to := peer(t, func(w http.ResponseWriter, r *http.Request) {
					if !strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
						t.Errorf("Upgrade = %q", r.Header.Get("Upgrade"))
					}
					conn, rw, err := http.NewResponseController(w).Hijack()
					if err != nil {
						t.Error(err)
						return
					}
					defer conn.Close()
					fmt.Fprint(rw, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-Websocket-Accept: x\r\n\r\nhello")
					_ = rw.Flush()
					b := make([]byte, 5)
					_, _ = io.ReadFull(rw, b)
					_, _ = conn.Write(b)
					if closes == "client" {
						_, err = rw.ReadByte()
						ended <- err
					}
				})
				s := newSidecar(t, "agent.example.com", "http://"+to)
				c, prefix := way.dial(t, s, to)
				c.send("GET " + prefix + "/ws HTTP/1.1\nHost: " + to + "\nConnection: keep-alive, Upgrade\nUpgrade: websocket\nSec-WebSocket-Key: k\nSec-WebSocket-Version: 13\n\nfirst")
				resp := c.answer(http.MethodGet)
				if resp.StatusCode != http.StatusSwitchingProtocols || resp.Header.Get("Sec-Websocket-Accept") != "x" {
					t.Fatalf("answer = %s %v", resp.Status, resp.Header)
				}
				b := make([]byte, len("hellofirst"))
				if _, err := io.ReadFull(c, b); err != nil || string(b) != "hellofirst" {
					t.Fatalf("frames = %q, %v, want what the server said and its echo", b, err)
				}
				if closes == "client" {
					c.Close()
					if err := receive(t, ended, "the server to notice"); err == nil {
						t.Error("the server has read a byte that nobody sent")
					}
					return
				}
				if n, err := c.Read(b); !errors.Is(err, io.EOF) {
					t.Errorf("after the server closed: %d bytes, %v, want EOF", n, err)
				}
			})
		}
	}
}

// Expect: 100-continue is answered, so that the body is sent; and a host that
// refuses by the head alone is heard.
func TestExpectContinue(t *testing.T) {
	to := peer(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/refuse" {
			w.WriteHeader(http.StatusExpectationFailed)
			return
		}
		b, _ := io.ReadAll(r.Body)
		fmt.Fprint(w, len(b))
	})
	for _, way := range rawWays {
		for _, contentType := range []string{"application/json", "application/octet-stream"} {
			t.Run(way.name+"/"+contentType, func(t *testing.T) {
				s := newSidecar(t, "agent.example.com", "http://"+to)
				c, prefix := way.dial(t, s, to)
				c.send("POST " + prefix + "/ HTTP/1.1\nHost: " + to + "\nContent-Type: " + contentType + "\nExpect: 100-continue\nContent-Length: 2\n\n")
				if resp := c.answer(http.MethodPost); resp.StatusCode != http.StatusContinue {
					t.Fatalf("first answer = %s, want 100", resp.Status)
				}
				c.send("{}")
				resp := c.answer(http.MethodPost)
				for resp.StatusCode == http.StatusContinue { // the host's own, which passes as well
					resp = c.answer(http.MethodPost)
				}
				if b, err := io.ReadAll(resp.Body); string(b) != "2" || err != nil {
					t.Errorf("answer = %s %q, %v, want the length of the body", resp.Status, b, err)
				}
				c, prefix = way.dial(t, s, to)
				c.send("POST " + prefix + "/refuse HTTP/1.1\nHost: " + to + "\nContent-Type: application/octet-stream\nExpect: 100-continue\nContent-Length: 2\n\n")
				resp = c.answer(http.MethodPost)
				for resp.StatusCode == http.StatusContinue {
					resp = c.answer(http.MethodPost)
				}
				if resp.StatusCode != http.StatusExpectationFailed {
					t.Errorf("answer = %s, want the host's 417, which needs no body", resp.Status)
				}
			})
		}
	}
}

// What becomes of a request when the next hop fails is said in our own words: 502
// or 504, and to a JSON-RPC request an error under its id, with a code that no
// specification has reserved.
func TestNextHopFails(t *testing.T) {
	// Nobody listens on the client's side of a connection, and as long as it is open
	// nobody else can begin to.
	closed := func(t *testing.T) string {
		return dialRaw(t, peer(t, func(http.ResponseWriter, *http.Request) {})).LocalAddr().String()
	}
	speaks := func(say string) func(t *testing.T) string {
		return func(t *testing.T) string {
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { ln.Close() })
			go func() { // ends with ln
				for {
					c, err := ln.Accept()
					if err != nil {
						return
					}
					go func() { // ends when the request has been read
						defer c.Close()
						if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
							_, _ = io.WriteString(c, say)
						}
					}()
				}
			}()
			return ln.Addr().String()
		}
	}
	rows := []struct {
		name string
		to   func(*testing.T) string
		want int
	}{
		{"refuses", closed, http.StatusBadGateway},
		{"hangs up", speaks(""), http.StatusBadGateway},
		{"speaks no HTTP", speaks("SSH-2.0-x\r\n\r\n"), http.StatusBadGateway},
		{"breaks off in its head", speaks("HTTP/1.1 200 OK\r\nContent-"), http.StatusBadGateway},
	}
	for _, way := range rawWays[:3] {
		for _, row := range rows {
			for _, ours := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s/%s/ours=%v", way.name, row.name, ours), func(t *testing.T) {
					to := row.to(t)
					s := newSidecar(t, "agent.example.com", "http://"+to)
					c, prefix := way.dial(t, s, to)
					if !ours {
						c.send("GET " + prefix + "/ HTTP/1.1\nHost: " + to + "\n\n")
						checkFailure(t, c.answer(http.MethodGet), row.want, "")
						return
					}
					body := strings.Replace(call, `"id":1`, `"id":"a<b"`, 1)
					c.send("POST " + prefix + "/mcp HTTP/1.1\nHost: " + to + "\nContent-Type: application/json\nContent-Length: " + fmt.Sprint(len(body)) + "\n\n" + body)
					checkFailure(t, c.answer(http.MethodPost), row.want, `"a<b"`)
					s.wantSeries(t, fmt.Sprintf("wopproxy_exchanges_total{direction=%q,outcome=%q,protocol=%q}", way.dir, outcomeUpstream, "mcp"), 1)
					if way.dir == ingress {
						s.wantSeries(t, "wopproxy_live_runs", 0)
					}
				})
			}
		}
	}
	t.Run("CONNECT", func(t *testing.T) {
		to := closed(t)
		s := newSidecar(t, "agent.example.com", "http://"+to)
		c := dialRaw(t, s.egress.URL)
		c.send("CONNECT " + to + " HTTP/1.1\nHost: " + to + "\n\n")
		checkFailure(t, c.answer(http.MethodConnect), http.StatusBadGateway, "")
		s.awaitSeries(t, "wopproxy_tunnels", 0)
	})
}

// checkFailure holds an answer of our own to what is promised of it.
func checkFailure(t *testing.T, resp *http.Response, status int, id string) {
	t.Helper()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != status {
		t.Errorf("answer = %s %q, want %d", resp.Status, b, status)
	}
	for _, leak := range []string{"dial", "tcp", "connection refused", "127.0.0.1", "EOF", "malformed", "SSH"} {
		if strings.Contains(string(b), leak) {
			t.Errorf("the answer lets %q out: %q", leak, b)
		}
	}
	if !strings.Contains(string(b), "wopproxy") {
		t.Errorf("%q does not say who speaks", b)
	}
	if id == "" {
		return
	}
	var rpc struct {
		Version string          `json:"jsonrpc"`
		ID      json.RawMessage `json:"id"`
		Error   struct {
			Code    int    `json:"code"`
			Message string `json:"message"`
		} `json:"error"`
	}
	if err := json.Unmarshal(b, &rpc); err != nil || resp.Header.Get("Content-Type") != "application/json" {
		t.Fatalf("answer = %q (%s), want JSON-RPC: %v", b, resp.Header.Get("Content-Type"), err)
	}
	var got, want any
	_ = json.Unmarshal(rpc.ID, &got)
	_ = json.Unmarshal([]byte(id), &want)
	if rpc.Version != "2.0" || got != want || rpc.Error.Message == "" {
		t.Errorf("answer = %s, want version 2.0, id %s and a message", b, id)
	}
	if c := rpc.Error.Code; c >= -32768 && c <= -32000 {
		t.Errorf("code %d is reserved", c)
	}
}

// A next hop that does not even accept in time is 504. The dial is made to time
// out by its context, because a real one takes ten seconds.
func TestNextHopTimesOut(t *testing.T) {
	s := newSidecar(t, "agent.example.com", "http://127.0.0.1:1")
	x := &exchange{p: s.Proxy, policy: s.policy.Load(), dir: egress}
	r := httptest.NewRequest(http.MethodGet, "http://peer.example/", nil)
	if f := x.failure(r, &net.OpError{Op: "dial", Err: os.ErrDeadlineExceeded}); f.status != http.StatusGatewayTimeout {
		t.Errorf("status = %d, want 504", f.status)
	}
}

// The environment of the proxy is that of its host, whose HTTP_PROXY is the proxy
// itself. The test runs itself again, because net/http reads the environment once;
// 0.0.0.0 leads to the loopback interface, and unlike 127.0.0.1 it is no exception
// to HTTP_PROXY.
func TestProxyEnvironmentIsNotUsed(t *testing.T) {
	if os.Getenv("HTTP_PROXY") != "http://127.0.0.1:9" {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestProxyEnvironmentIsNotUsed$", "-test.v")
		for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "ALL_PROXY"} {
			cmd.Env = append(cmd.Env, name+"=http://127.0.0.1:9")
		}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	to := peer(t, func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "here") })
	_, port, _ := net.SplitHostPort(to)
	far := "0.0.0.0:" + port
	r, _ := http.NewRequest(http.MethodGet, "http://"+far, nil)
	if u, err := http.ProxyFromEnvironment(r); err != nil || u == nil {
		t.Fatalf("ProxyFromEnvironment = %v, %v: the test proves nothing", u, err)
	}
	s := newSidecar(t, "agent.example.com", "http://"+far)
	for name, get := range map[string]func() (*http.Response, error){
		"ingress": func() (*http.Response, error) { return direct(t).RoundTrip(get(t, s.ingress.URL)) },
		"egress": func() (*http.Response, error) {
			tr := direct(t)
			tr.Proxy = http.ProxyURL(s.proxyURL())
			return tr.RoundTrip(get(t, "http://"+far))
		},
		"tunnel": func() (*http.Response, error) { return s.tunnelled(t, false).RoundTrip(get(t, "http://"+far)) },
	} {
		resp, err := get()
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		b, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if string(b) != "here" {
			t.Errorf("%s: answer = %s %q, want that of the target", name, resp.Status, b)
		}
	}
}

func get(t testing.TB, url string) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// X-Forwarded-*, which ReverseProxy would remove, passes as it came; and on egress
// a proxy that is to be asked for a password asks in vain.
func TestForwardedHeadersPass(t *testing.T) {
	got := make(chan http.Header, 1)
	to := peer(t, func(w http.ResponseWriter, r *http.Request) {
		got <- r.Header.Clone()
		w.Header().Set("Www-Authenticate", "Bearer")
		w.Header().Set("Location", "http://elsewhere.example/")
		w.WriteHeader(http.StatusFound)
	})
	want := http.Header{
		"Forwarded": {"for=10.0.0.1", "for=10.0.0.2"}, "X-Forwarded-For": {"10.0.0.1"},
		"X-Forwarded-Host": {"h"}, "X-Forwarded-Proto": {"https"}, "Authorization": {"Bearer t"}, "Cookie": {"a=b"},
	}
	for _, way := range pathways {
		t.Run(way.name, func(t *testing.T) {
			s := newSidecar(t, "agent.example.com", "http://"+to)
			r := get(t, "http://"+to)
			r.Header = want.Clone()
			r.Header.Set("User-Agent", "")
			resp, err := way.send(t, s, r)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			h := receive(t, got, "the request")
			h.Del("Traceparent") // of the run that the request is said to belong to
			if diff := cmp.Diff(want, h); diff != "" {
				t.Errorf("headers (-sent +arrived):\n%s", diff)
			}
			if resp.StatusCode != http.StatusFound || resp.Header.Get("Location") == "" || resp.Header.Get("Www-Authenticate") != "Bearer" {
				t.Errorf("answer = %s %v, want the redirect as it is", resp.Status, resp.Header)
			}
		})
	}
}

// TestBodiesAreCopiedByLentMemory sends bodies as http.Transport does, and counts
// what that allocates.
func TestBodiesAreCopiedByLentMemory(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan int64, 1)
	go func() {
		defer close(got)
		if conn, err := ln.Accept(); err == nil {
			n, _ := io.Copy(io.Discard, conn)
			got <- n
		}
	}()
	t.Cleanup(func() { ln.Close() })
	conn, err := lending((&net.Dialer{}).DialContext)(t.Context(), "tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	const rounds, size = 200, 64 << 10
	body := make([]byte, size)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range rounds {
		if n, err := io.Copy(conn, io.LimitReader(bytes.NewReader(body), size)); n != size || err != nil {
			t.Fatal(n, err)
		}
	}
	runtime.ReadMemStats(&after)
	if each := (after.TotalAlloc - before.TotalAlloc) / rounds; each > 20<<10 { // the race detector makes pools forget a quarter
		t.Errorf("a body of 64 KB allocates %d bytes on its way", each)
	}
	closeWrite(conn)
	if n := <-got; n != rounds*size {
		t.Errorf("%d bytes arrived, want %d", n, rounds*size)
	}
}
