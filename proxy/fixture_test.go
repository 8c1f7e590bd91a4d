package proxy

import (
	"bufio"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// patience is how long a test waits for what another goroutine or process must
// do. It is only ever used up by a test that fails.
const patience = 30 * time.Second

var noDeadline time.Time

// newServer starts a server as cmd/wopproxy does: HTTP/1 and, without TLS,
// HTTP/2. What it has to say about its peers is nobody's business.
func newServer(h http.Handler) *httptest.Server {
	s := httptest.NewUnstartedServer(h)
	s.Config.Protocols = new(http.Protocols)
	s.Config.Protocols.SetHTTP1(true)
	s.Config.Protocols.SetUnencryptedHTTP2(true)
	s.Config.HTTP2 = &http.HTTP2Config{MaxConcurrentStreams: MaxStreams}
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.Start()
	return s
}

// peer starts a server that answers with h, and returns its host:port.
func peer(t testing.TB, h http.HandlerFunc) string {
	t.Helper()
	s := newServer(h)
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// inFlight knows whether requests are being handled: a client has its answer a
// little before the handler has returned.
type inFlight struct {
	mu   sync.Mutex
	n    int
	zero chan struct{} // closed and forgotten when n is 0 again
}

func (f *inFlight) add(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.n += n; f.n == 0 && f.zero != nil {
		close(f.zero)
		f.zero = nil
	}
}

func (f *inFlight) wrap(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodConnect { // which lasts as long as its tunnel
			f.add(1)
			defer f.add(-1)
		}
		h.ServeHTTP(w, r)
	})
}

// wait returns when nothing is being handled.
func (f *inFlight) wait(t testing.TB) {
	t.Helper()
	f.mu.Lock()
	if f.n == 0 {
		f.mu.Unlock()
		return
	}
	if f.zero == nil {
		f.zero = make(chan struct{})
	}
	zero := f.zero
	f.mu.Unlock()
	receive(t, zero, "the handlers to return")
}

// receive takes the next value of c, which must come.
func receive[T any](t testing.TB, c <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(patience):
		t.Fatalf("waited in vain for %s", what)
		panic("unreachable")
	}
}

// eventually polls for what only a socket can bring about.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s", what)
		}
		<-tick.C
	}
}

// series returns every series that is not zero, as Prometheus writes them.
// Histograms are represented by their count, and those of plain time left out.
func (s *sidecar) series(t testing.TB) map[string]float64 {
	t.Helper()
	families, err := s.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name, v := f.GetName(), m.GetCounter().GetValue()+m.GetGauge().GetValue()
			if f.GetType() == dto.MetricType_HISTOGRAM {
				if name == "wopproxy_overhead_seconds" || name == "wopproxy_commit_wait_seconds" {
					continue
				}
				name, v = name+"_count", float64(m.GetHistogram().GetSampleCount())
			}
			if v != 0 {
				all[name+labels(m)] = v
			}
		}
	}
	return all
}

// labels formats the labels of m that are not empty.
func labels(m *dto.Metric) string {
	var l []string
	for _, p := range m.GetLabel() {
		if p.GetValue() != "" {
			l = append(l, fmt.Sprintf("%s=%q", p.GetName(), p.GetValue()))
		}
	}
	if len(l) == 0 {
		return ""
	}
	slices.Sort(l)
	return "{" + strings.Join(l, ",") + "}"
}

// wantSeries checks one series once all handlers have returned.
func (s *sidecar) wantSeries(t testing.TB, name string, want float64) {
	t.Helper()
	s.handled.wait(t)
	if got := s.series(t)[name]; got != want {
		t.Errorf("%s = %v, want %v", name, got, want)
	}
}

// awaitSeries waits for a count that no answer waits for: one of a tunnel.
func (s *sidecar) awaitSeries(t testing.TB, name string, want float64) {
	t.Helper()
	eventually(t, fmt.Sprintf("%s = %v", name, want), func() bool { return s.series(t)[name] == want })
}

// refused is the series that counts an unedited body.
func refused(d direction, reason string) string {
	return fmt.Sprintf("wopproxy_stamp_refusals_total{direction=%q,reason=%q}", d, reason)
}

// hit is the series that counts a bound that was reached.
func hit(limit string) string { return fmt.Sprintf("wopproxy_limit_hits_total{limit=%q}", limit) }

// rawConn is a connection on which a test spells out each byte.
type rawConn struct {
	net.Conn
	*bufio.Reader
	t testing.TB
}

func dialRaw(t testing.TB, addr string) *rawConn {
	t.Helper()
	addr = strings.TrimPrefix(addr, "http://")
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	return &rawConn{c, bufio.NewReader(c), t}
}

func (c *rawConn) Read(b []byte) (int, error) { return c.Reader.Read(b) }

// send writes text as it is, but for line ends: LF becomes CRLF in what stands
// before the first empty line.
func (c *rawConn) send(text string) {
	c.t.Helper()
	head, body, _ := strings.Cut(text, "\n\n")
	if strings.Contains(text, "\n\n") {
		head += "\n\n"
	}
	if _, err := io.WriteString(c.Conn, strings.ReplaceAll(head, "\n", "\r\n")+body); err != nil {
		c.t.Fatal(err)
	}
}

// answer reads the head of an answer to a request of the given method. Its body
// comes as it is read.
func (c *rawConn) answer(method string) *http.Response {
	c.t.Helper()
	resp, err := http.ReadResponse(c.Reader, &http.Request{Method: method})
	if err != nil {
		c.t.Fatalf("no answer: %v", err)
	}
	return resp
}

// connect opens a tunnel to target through the sidecar's egress.
func (s *sidecar) connect(t testing.TB, target string, header ...string) *rawConn {
	t.Helper()
	c := dialRaw(t, s.egress.URL)
	c.send("CONNECT " + target + " HTTP/1.1\nHost: " + target + "\n" + strings.Join(header, "") + "\n")
	if resp := c.answer(http.MethodConnect); resp.StatusCode != http.StatusOK {
		t.Fatalf("CONNECT = %s, want 200", resp.Status)
	}
	return c
}

// proxyURL is the sidecar's egress as a client has it configured.
func (s *sidecar) proxyURL() *url.URL {
	u, _ := url.Parse(s.egress.URL)
	return u
}
