package proxy

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// h2Stream is a request that a test answers frame by frame.
type h2Stream struct {
	*http2.Framer
	id    uint32
	block bytes.Buffer
	hpack *hpack.Encoder
}

// head sends headers, and with last the end of the stream. Once nobody wants to
// have them it returns an error.
func (s *h2Stream) head(last bool, fields ...string) error {
	s.block.Reset()
	for i := 0; i < len(fields); i += 2 {
		_ = s.hpack.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]}) // a buffer takes all
	}
	return s.WriteHeaders(http2.HeadersFrameParam{StreamID: s.id, BlockFragment: s.block.Bytes(), EndHeaders: true, EndStream: last})
}

// h2Talker is a server of HTTP/2 whose requests a test answers, one for each
// connection.
func h2Talker(t *testing.T, answer func(s *h2Stream)) (base string, roots *x509.CertPool) {
	t.Helper()
	srv := httptest.NewUnstartedServer(nil)
	srv.Config.ErrorLog = discardLog
	srv.TLS = &tls.Config{NextProtos: []string{"h2"}}
	srv.Config.TLSNextProto = map[string]func(*http.Server, *tls.Conn, http.Handler){
		"h2": func(_ *http.Server, c *tls.Conn, _ http.Handler) {
			preface := make([]byte, len(http2.ClientPreface))
			if _, err := io.ReadFull(c, preface); err != nil {
				return
			}
			s := &h2Stream{Framer: http2.NewFramer(c, c)}
			s.hpack = hpack.NewEncoder(&s.block)
			if s.WriteSettings() != nil {
				return
			}
			for {
				f, err := s.ReadFrame()
				if err != nil {
					return
				}
				if h, ok := f.(*http2.HeadersFrame); ok {
					s.id = h.StreamID
					answer(s)
				}
			}
		},
	}
	srv.StartTLS()
	t.Cleanup(srv.Close)
	roots = x509.NewCertPool()
	roots.AddCert(srv.Certificate())
	return srv.Listener.Addr().String(), roots
}

// callsH2 is a connection to the egress of a sidecar that speaks HTTP/2 to where
// its host says http.
func callsH2(t *testing.T, answer func(s *h2Stream)) (s *sidecar, c *rawConn, get string) {
	t.Helper()
	to, roots := h2Talker(t, answer)
	s = newSidecar(t, "agent.example.com", "http://127.0.0.1:1", func(o *Options, p *Policy) {
		o.Roots, p.OriginateTLS = roots, func(string) bool { return true }
	})
	return s, dialRaw(t, s.egress.URL), "GET http://" + to + "/ HTTP/1.1\nHost: " + to + "\n\n"
}

// In HTTP/2 nobody can switch protocols, and a status may be any number: what
// HTTP/1 can't say does not reach a client of it, and is nobody's panic.
func TestImpossibleStatusH2(t *testing.T) {
	const bad = http.StatusBadGateway
	for status, want := range map[string]int{
		"101": 200, "103": 103, "199": 199, // and the answer comes behind
		"200": 200, "999": 999, "0": bad, "7": bad, "099": bad, "-200": bad, "1000": bad, "20000": bad, "x": bad,
	} {
		t.Run(status, func(t *testing.T) {
			s, c, get := callsH2(t, func(s *h2Stream) {
				informs := len(status) == 3 && status[0] == '1'
				if s.head(!informs, ":status", status, "upgrade", "websocket") == nil && informs {
					_ = s.head(true, ":status", "200", "content-length", "0")
				}
			})
			c.send(get)
			resp := c.answer(http.MethodGet)
			if resp.StatusCode != want {
				t.Fatalf("answer = %s, want %d", resp.Status, want)
			}
			for resp.StatusCode < http.StatusOK {
				resp = c.answer(http.MethodGet)
			}
			if _, err := io.Copy(io.Discard, resp.Body); err != nil {
				t.Errorf("body: %v", err)
			}
			outcome := outcomeAnswered
			if want == bad {
				outcome = outcomeUpstream
			}
			s.wantSeries(t, fmt.Sprintf("wopproxy_exchanges_total{direction=%q,outcome=%q,protocol=%q}", egress, outcome, "http"), 1)
		})
	}
}

// Answers that only inform may come without end: they pass one by one, and end
// with the client.
func TestInformationalFlood(t *testing.T) {
	const enough = 3000
	hint := strings.Repeat("x", 1000)
	for name, peer := range map[string]func(t *testing.T, ended chan<- int) (*sidecar, *rawConn, string){
		"HTTP/1": func(t *testing.T, ended chan<- int) (*sidecar, *rawConn, string) {
			to := talker(t, func(c *rawConn) {
				_, err := http.ReadRequest(c.Reader)
				n := 0
				for ; err == nil; n++ {
					_, err = io.WriteString(c.Conn, "HTTP/1.1 103 Early Hints\r\nLink: "+hint+"\r\n\r\n")
				}
				ended <- n
			})
			s := newSidecar(t, "agent.example.com", "http://127.0.0.1:1")
			return s, dialRaw(t, s.egress.URL), "GET http://" + to + "/ HTTP/1.1\nHost: " + to + "\n\n"
		},
		"HTTP/2": func(t *testing.T, ended chan<- int) (*sidecar, *rawConn, string) {
			return callsH2(t, func(s *h2Stream) {
				gone := make(chan struct{})
				go func() { // ends with the stream, or the connection
					defer close(gone)
					for f, err := s.ReadFrame(); err == nil; f, err = s.ReadFrame() {
						if _, ok := f.(*http2.RSTStreamFrame); ok {
							return
						}
					}
				}()
				n := 0
				for ; s.head(false, ":status", "103", "link", hint) == nil; n++ {
					select {
					case <-gone:
						ended <- n
						return
					default:
					}
				}
				ended <- n
				<-gone
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			ended := make(chan int, 1)
			s, c, get := peer(t, ended)
			c.send(get)
			for i := range enough {
				if resp := c.answer(http.MethodGet); resp.StatusCode != http.StatusEarlyHints || resp.Header.Get("Link") != hint {
					t.Fatalf("answer %d = %s %v, want the hint", i, resp.Status, resp.Header)
				}
			}
			c.Close()
			if n := receive(t, ended, "the next hop to be left"); n < enough {
				t.Errorf("%d answers were sent, and %d have come", n, enough)
			}
			s.wantSeries(t, `wopproxy_exchanges_total{direction="egress",outcome="client-gone",protocol="http"}`, 1)
		})
	}
}
