package proxy

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
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

// sniff waits for the first side to speak and says what it speaks. When it is
// the far side, nothing was asked of it, so this is not HTTP; early is then
// what it has said. There is no time limit: a client may open a tunnel long
// before it needs it, and either side's first byte ends the wait.
func sniff(client *bufio.Reader, clientConn, upstream net.Conn) (kind tunnelKind, early []byte, err error) {
	type said struct {
		kind tunnelKind
		err  error
	}
	near, far := make(chan said, 1), make(chan []byte, 1)
	go func() { // ends when the client speaks or hangs up, or is interrupted
		k, err := classify(client)
		near <- said{k, err}
	}()
	go func() { // ends when the far side speaks or hangs up, or is interrupted
		b := make([]byte, 4096)
		n, _ := upstream.Read(b)
		far <- b[:n]
	}()
	select {
	case s := <-near:
		interrupt(upstream)
		early = <-far
		if len(early) > 0 { // both at once
			s.kind = tunnelOther
		}
		return s.kind, early, errors.Join(s.err, upstream.SetReadDeadline(time.Time{}))
	case early = <-far:
		interrupt(clientConn)
		<-near
		if len(early) == 0 {
			return "", nil, io.EOF // the far side hung up
		}
		return tunnelOther, early, clientConn.SetReadDeadline(time.Time{})
	}
}

// interrupt ends a Read of c that is under way and leaves c otherwise intact.
func interrupt(c net.Conn) { _ = c.SetReadDeadline(time.Unix(1, 0)) }

// h2Preface opens an HTTP/2 connection.
const h2Preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

// classify looks at the first bytes of a client without taking them.
//
// Only what can be nothing else counts as HTTP: a method in upper case and a
// target that begins like one. Anything taken for HTTP wrongly would be
// answered 400 by us, and "SSH-2.0-…" also begins in upper case.
func classify(r *bufio.Reader) (tunnelKind, error) {
	for n := 1; ; n++ {
		b, err := r.Peek(n)
		if err != nil {
			return tunnelOther, err
		}
		switch c := b[n-1]; {
		case n == 1 && c == 0x16: // handshake record
			return tunnelTLS, nil
		case c >= 'A' && c <= 'Z' || c == '-' && n > 1:
			if n > 24 {
				return tunnelOther, nil
			}
		case c == ' ' && n > 1:
			return classifyTarget(r, n)
		default:
			return tunnelOther, nil
		}
	}
}

// classifyTarget goes on behind the method, which ends before position n.
func classifyTarget(r *bufio.Reader, n int) (tunnelKind, error) {
	b, err := r.Peek(n + 1)
	if err != nil {
		return tunnelOther, err
	}
	switch b[n] {
	case '/':
		return tunnelHTTP1, nil
	case '*':
		if string(b[:n]) != "PRI " {
			return tunnelHTTP1, nil
		}
		b, err = r.Peek(len(h2Preface))
		if err == nil && string(b) == h2Preface {
			return tunnelH2C, nil
		}
		return tunnelOther, err
	case 'h', 'H':
		b, err = r.Peek(n + len("http://"))
		if err == nil && bytes.EqualFold(b[n:], []byte("http://")) {
			return tunnelHTTP1, nil
		}
		return tunnelOther, err
	}
	return tunnelOther, nil
}
