package proxy

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"time"
)

// tunnelKind says what was found inside a tunnel.
type tunnelKind string

const (
	tunnelTLS   tunnelKind = "tls"   // passes blind
	tunnelHTTP1 tunnelKind = "http1" // handled as exchanges
	tunnelH2C   tunnelKind = "h2c"   // handled as exchanges
	tunnelOther tunnelKind = "other" // passes blind
)

// sniffPatience is how long a client may take over the rest of what tells its
// protocol, once it has begun to speak.
const sniffPatience = 200 * time.Millisecond

// serverFirst is how long a client may take to begin after a server that opened
// with HTTP/2.
const serverFirst = 5 * time.Second

// sniff waits for the first side to speak and says what it speaks. When it is
// the far side, nothing was asked of it, so this is not HTTP/1; early is then
// what it has said. Servers of HTTP/2 may send their settings unasked, and those
// of gRPC do: then it is still for the client to tell. There is no limit on the wait for the first byte: a client
// may open a tunnel long before it needs it, and either side ends the wait: err is
// io.EOF if the far side has hung up, and another one if a side has broken off.
func sniff(client *bufio.Reader, clientConn, upstream net.Conn) (kind tunnelKind, early []byte, err error) {
	type said struct {
		kind tunnelKind
		err  error
	}
	type heard struct {
		early []byte
		err   error
	}
	near, far := make(chan said, 1), make(chan heard, 1)
	go func() { // ends when the client speaks or hangs up, or is interrupted
		k, err := classify(client, clientConn)
		near <- said{k, err}
	}()
	go func() { // ends when the far side speaks or hangs up, or is interrupted
		b := make([]byte, 4096)
		n, err := upstream.Read(b)
		far <- heard{b[:n], err}
	}()
	select {
	case s := <-near:
		interrupt(upstream)
		h := <-far
		if early = h.early; s.err == nil && brokeOff(h.err) {
			s.err = h.err
		}
		if len(early) > 0 && (s.kind != tunnelH2C || !isSettings(early)) { // both at once
			s.kind = tunnelOther
		}
		return s.kind, early, errors.Join(s.err, upstream.SetReadDeadline(time.Time{}), clientConn.SetReadDeadline(time.Time{}))
	case h := <-far:
		early = h.early
		if isSettings(early) {
			select {
			case s := <-near:
				if s.kind != tunnelH2C {
					s.kind = tunnelOther
				}
				return s.kind, early, errors.Join(s.err, clientConn.SetReadDeadline(time.Time{}))
			case <-time.After(serverFirst):
			}
		}
		interrupt(clientConn)
		<-near
		if len(early) == 0 {
			return "", nil, h.err
		}
		return tunnelOther, early, clientConn.SetReadDeadline(time.Time{})
	}
}

// isSettings reports whether b begins with the settings of an HTTP/2 server: a
// frame of type 4 without flags, on stream 0.
func isSettings(b []byte) bool { return len(b) >= 9 && string(b[3:9]) == "\x04\x00\x00\x00\x00\x00" }

// brokeOff reports whether err, of a Read that may have been interrupted, says that
// the other side is gone.
func brokeOff(err error) bool {
	return err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, os.ErrDeadlineExceeded)
}

// interrupt ends a Read of c that is under way and leaves c otherwise intact.
func interrupt(c net.Conn) { _ = c.SetReadDeadline(time.Unix(1, 0)) }

// h2Preface opens an HTTP/2 connection.
const h2Preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

// classify looks at the first bytes of a client without taking them. A client
// that hangs up, or stops before it can be told what it speaks, speaks something
// else for all we know: its bytes go on, and so does the answer.
func classify(r *bufio.Reader, conn net.Conn) (tunnelKind, error) {
	for n := 1; ; n++ {
		b, err := r.Peek(n)
		if timeout, ok := errors.AsType[net.Error](err); errors.Is(err, io.EOF) || ok && timeout.Timeout() {
			return tunnelOther, nil
		}
		if err != nil {
			return "", err
		}
		if kind := judge(b); kind != "" {
			return kind, nil
		}
		if n == 1 {
			_ = conn.SetReadDeadline(time.Now().Add(sniffPatience)) // sniff takes it off
		}
	}
}

// judge says what a client speaks that has begun with b, or "" if more is
// needed to tell.
//
// Only what can be nothing else counts as HTTP: a method in upper case and a
// target that begins like one. Anything taken for HTTP wrongly would be
// answered 400 by us, and "SSH-2.0-…" also begins in upper case.
func judge(b []byte) tunnelKind {
	if b[0] == 0x16 { // handshake record
		return tunnelTLS
	}
	n := 0
	for n < len(b) && ('A' <= b[n] && b[n] <= 'Z' || b[n] == '-' && n > 0) {
		n++
	}
	const longest = 20 // a method; UPDATEREDIRECTREF has 17
	switch {
	case n == 0 || n > longest || n < len(b) && b[n] != ' ':
		return tunnelOther
	case n+1 >= len(b):
		return ""
	}
	method, target := string(b[:n]), b[n+1:]
	switch {
	case target[0] == '/', method == "OPTIONS" && target[0] == '*':
		return tunnelHTTP1
	case method == "PRI":
		return match(b, h2Preface, tunnelH2C)
	}
	return match(bytes.ToLower(target[:min(len(target), len("http://"))]), "http://", tunnelHTTP1)
}

// match returns kind if b begins with all of want, "" if it may still, and
// tunnelOther if not.
func match(b []byte, want string, kind tunnelKind) tunnelKind {
	switch n := min(len(b), len(want)); {
	case string(b[:n]) != want[:n]:
		return tunnelOther
	case n < len(want):
		return ""
	}
	return kind
}
