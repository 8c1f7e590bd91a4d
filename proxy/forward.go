package proxy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"sync/atomic"
)

// outgoing is r on its way to the next hop: what ends with the client's connection
// stays behind. It shares its headers with r, and has its place in x: a clone would
// cost an allocation for each header.
func (x *exchange) outgoing(r *http.Request) *http.Request {
	removeHopByHop(r.Header)
	x.url, x.out = *r.URL, *r
	out := &x.out
	out.URL = &x.url
	out.Close = false // the client closes its connection to us, not ours to the next hop
	switch {
	case r.ContentLength == 0:
		out.Body = nil // which, unlike an empty one, can be sent again
	case x.body == nil && x.rest == nil:
		x.lend(out)
	}
	if out.Header["User-Agent"] == nil {
		out.Header["User-Agent"] = []string{""} // or the transport would sign for us
	}
	return out
}

// lend gives r the body of the client's request: read already, if it is short and
// comes in time, so that it can be sent at once.
func (x *exchange) lend(r *http.Request) {
	body := r.Body
	if r.ContentLength > 0 && r.ContentLength <= shortBody && r.Header["Expect"] == nil {
		all, rest, _ := readBody(body, false, r.ContentLength, shortBody, x.policy.BodyPatience, &x.share)
		if x.atHand = all != nil; x.atHand {
			r.Body = io.NopCloser(bytes.NewReader(all))
			return
		}
		body = rest
	}
	x.lent.ReadCloser = body
	r.Body = &x.lent
}

// shortBody is how long a body may be that is read, though it is not looked at,
// before its request goes on.
const shortBody = 2 << 10

// lentBody is the body of a client's request in the hands of a transport. That one
// closes it when it fails, which in net/http waits for the rest of it, and may read
// it for longer than the handler lasts, which is forbidden.
type lentBody struct {
	io.ReadCloser
	back atomic.Bool
}

func (b *lentBody) Read(p []byte) (int, error) {
	if b.back.Load() {
		return 0, errBodyBack
	}
	return b.ReadCloser.Read(p)
}

func (b *lentBody) Close() error {
	b.back.Store(true)
	return nil
}

var errBodyBack = errors.New("the request is over")

// sender carries a request to the next hop. Answers that only inform go to the
// exchange at once.
type sender interface {
	send(r *http.Request, x *exchange) (*http.Response, error)
}

// sendBy is a sender by one of net/http's transports.
type sendBy struct{ http.RoundTripper }

func (s sendBy) send(r *http.Request, x *exchange) (*http.Response, error) {
	trace := &httptrace.ClientTrace{
		Got1xxResponse: func(status int, h textproto.MIMEHeader) error {
			x.inform(status, http.Header(h))
			return nil
		},
	}
	if upgradeOf(r.Header) != "" {
		trace.GotConn = func(info httptrace.GotConnInfo) { x.hop = info.Conn }
	}
	return s.RoundTrip(r.WithContext(httptrace.WithClientTrace(r.Context(), trace)))
}

// forward sends r on, shows the answer to look, which may change it, and hands it
// on to the client.
func (x *exchange) forward(w http.ResponseWriter, r *http.Request, by sender, look func(*http.Response)) {
	if r.ProtoAtLeast(1, 1) { // others know nothing of answers that only inform
		x.informing.Lock()
		x.informs = w
		x.informing.Unlock()
	}
	resp, err := by.send(r, x)
	x.informing.Lock()
	x.informs = nil
	x.informing.Unlock()
	if err == nil && (resp.StatusCode < http.StatusContinue || resp.StatusCode > 999) { // a server of net/http would panic
		_ = resp.Body.Close()
		err = fmt.Errorf("upstream's status is %d", resp.StatusCode)
	}
	if err != nil {
		x.failure(r, err).write(w)
		return
	}
	if resp.StatusCode == http.StatusSwitchingProtocols {
		look(resp)
		x.switchProtocols(w, r, resp)
		return
	}
	removeHopByHopOfAnswer(resp.Header)
	look(resp)
	x.pass(w, r, resp)
}

// inform passes an informational answer. A transport may call it late, from a
// goroutine of its own. HTTP/2 has no 101, which a server of HTTP/1 would take for
// the answer itself.
func (x *exchange) inform(status int, h http.Header) {
	x.informing.Lock()
	defer x.informing.Unlock()
	if x.informs == nil || status == http.StatusSwitchingProtocols {
		return
	}
	own := x.informs.Header()
	maps.Copy(own, h)
	x.informs.WriteHeader(status)
	clear(own)
}

// pass hands the answer on to the client as it comes.
func (x *exchange) pass(w http.ResponseWriter, r *http.Request, resp *http.Response) {
	h := w.Header()
	maps.Copy(h, resp.Header)
	if h["Content-Type"] == nil {
		h["Content-Type"] = nil // or the server would guess one
	}
	announced := len(resp.Trailer)
	if announced > 0 {
		names := make([]string, 0, announced)
		for name := range resp.Trailer {
			names = append(names, name)
		}
		h["Trailer"] = []string{strings.Join(names, ", ")}
	}
	w.WriteHeader(resp.StatusCode)
	x.copyBody(w, r, resp)
	passTrailers(w, resp.Trailer, announced)
}

// copyBody copies the body of resp, and closes it. An answer that breaks off, on
// either side, ends with the client's connection: nobody may take it for whole.
func (x *exchange) copyBody(w http.ResponseWriter, r *http.Request, resp *http.Response) {
	defer resp.Body.Close() // now: then the trailers are there
	if resp.Body == http.NoBody {
		x.whole = true
		return
	}
	flush := func() {}
	open := resp.ContentLength < 0 && r.Method != http.MethodHead
	if open || strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		c := http.NewResponseController(w)
		flush = func() { _ = c.Flush() } // what fails here fails with the next write
	}
	if open {
		// The first byte of a stream may be hours away, and the client may say nothing
		// before it has the head. Of an answer without a body the length is known: to
		// flush that would lose the status in the trailers-only answers of gRPC.
		flush()
	}
	buf := copyBuffers.Get()
	defer copyBuffers.Put(buf)
	for {
		n, err := resp.Body.Read(buf)
		if n > 0 {
			x.illegible = x.illegible || !x.streamed
			if _, err := w.Write(buf[:n]); err != nil {
				x.undelivered = true
				panic(http.ErrAbortHandler)
			}
			flush()
		}
		switch {
		case err == io.EOF:
			x.whole = true
			return
		case err != nil:
			x.broken = err
			x.breakOff(w, r, open)
			panic(http.ErrAbortHandler)
		}
	}
}

// breakOff resets the connection of a client which would take its end for the end of
// the answer: in HTTP/1.0 nothing else tells that one of unknown length is whole.
func (x *exchange) breakOff(w http.ResponseWriter, r *http.Request, open bool) {
	if !open || r.ProtoAtLeast(1, 1) {
		return
	}
	c := http.NewResponseController(w)
	_ = c.Flush() // what there is of it
	if conn, _, err := c.Hijack(); err == nil {
		reset(conn, conn)
	}
}

// passTrailers sends the trailers, of which so many were announced by the head.
func passTrailers(w http.ResponseWriter, trailer http.Header, announced int) {
	if len(trailer) == 0 {
		return
	}
	// Of a short body the server would tell the length instead, and drop them.
	_ = http.NewResponseController(w).Flush()
	prefix := ""
	if len(trailer) != announced {
		prefix = http.TrailerPrefix
	}
	for name, v := range trailer {
		w.Header()[prefix+name] = v
	}
}

// switchProtocols joins both sides, once the next hop has agreed to speak another
// protocol with the client.
func (x *exchange) switchProtocols(w http.ResponseWriter, r *http.Request, resp *http.Response) {
	upstream, ok := resp.Body.(io.ReadWriteCloser)
	if !ok || !strings.EqualFold(upgradeOf(r.Header), upgradeOf(resp.Header)) {
		_ = resp.Body.Close()
		x.failure(r, errors.New("upstream switches to a protocol that was not asked for")).write(w)
		return
	}
	defer upstream.Close()
	client, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		x.failure(r, err).write(w)
		return
	}
	defer client.Close()
	defer context.AfterFunc(r.Context(), func() { _ = upstream.Close() })()
	resp.Body = nil // the head alone
	if resp.Write(rw) != nil || rw.Flush() != nil {
		return // the client has gone
	}
	said, _ := rw.Peek(rw.Reader.Buffered())
	j := &joint{
		client:   joined{ReadWriteCloser: client, conn: client, said: said},
		upstream: joined{ReadWriteCloser: upstream, conn: x.hop},
	}
	j.pass()
}
