// Package rawhttp speaks HTTP/1.1 with as little work as it takes: clients that
// make load, servers behind what is measured, and the authority that signs for
// them. They know the messages that they will see, and understand no others.
package rawhttp

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"
)

// Client holds one connection, and sends one request after the other on it.
type Client struct {
	conn net.Conn
	r    *bufio.Reader
	line []byte // the status line that was read last
}

// NewClient returns a client on a connection, which is closed with it.
func NewClient(conn net.Conn) *Client {
	return &Client{conn: conn, r: bufio.NewReaderSize(conn, 16<<10)}
}

// Dial connects to an address.
func Dial(ctx context.Context, address string) (*Client, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	return NewClient(conn), nil
}

// Connect opens a tunnel through a proxy.
func (c *Client) Connect(to string) error {
	if err := c.Send(fmt.Appendf(nil, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", to, to)); err != nil {
		return err
	}
	h, err := c.Head(nil)
	if err != nil {
		return fmt.Errorf("CONNECT: %w", err)
	}
	if h.Status != 200 {
		return fmt.Errorf("CONNECT was answered %q", c.Status())
	}
	return nil
}

// Secure speaks TLS from now on, with a server at 127.0.0.1.
func (c *Client) Secure(ctx context.Context, roots *x509.CertPool) error {
	secure := tls.Client(c.conn, &tls.Config{RootCAs: roots, ServerName: "127.0.0.1", MinVersion: tls.VersionTLS12})
	if err := secure.HandshakeContext(ctx); err != nil {
		return fmt.Errorf("TLS: %w", err)
	}
	c.conn = secure
	c.r.Reset(secure)
	return nil
}

// Close ends the connection.
func (c *Client) Close() error { return c.conn.Close() }

// Abort ends the connection as a process that dies does: what was sent and not
// yet read is lost.
func (c *Client) Abort() error { return Abort(c.conn) }

// Abort ends a connection by a reset.
func Abort(conn net.Conn) error {
	bare := conn
	if secure, ok := conn.(*tls.Conn); ok {
		bare = secure.NetConn()
	}
	if tcp, ok := bare.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // or it ends in order
	}
	return bare.Close()
}

// SetDeadline bounds all that is read and written from now on.
func (c *Client) SetDeadline(t time.Time) { _ = c.conn.SetDeadline(t) }

// Send writes a request, or a part of one.
func (c *Client) Send(request []byte) error {
	_, err := c.conn.Write(request)
	return err
}

// Head is what an answer begins with, as far as a client goes by it.
type Head struct {
	Status  int
	Length  int  // of the body; -1: it is not said
	Chunked bool // the body comes in chunks
	Last    bool // the connection takes no further request
}

var (
	chunkedHeader = []byte("transfer-encoding: chunked")
	lengthHeader  = []byte("content-length:")
	closeHeader   = []byte("connection: close")
)

// Head reads the head of an answer. header, unless nil, is called with each line
// of it but the first.
func (c *Client) Head(header func(line []byte)) (Head, error) {
	h := Head{Length: -1}
	line, err := c.r.ReadSlice('\n')
	if err != nil {
		return h, err
	}
	c.line = append(c.line[:0], line...)
	if len(line) < 12 || line[8] != ' ' {
		return h, fmt.Errorf("answered %q", c.Status())
	}
	if h.Status, err = strconv.Atoi(string(line[9:12])); err != nil {
		return h, fmt.Errorf("answered %q", c.Status())
	}
	for {
		if line, err = c.r.ReadSlice('\n'); err != nil {
			return h, err
		}
		if len(line) <= 2 {
			return h, nil
		}
		if header != nil {
			header(line)
		}
		if len(line) > len(lengthHeader) && bytes.EqualFold(line[:len(lengthHeader)], lengthHeader) {
			if h.Length, err = strconv.Atoi(string(bytes.TrimSpace(line[len(lengthHeader):]))); err != nil {
				return h, err
			}
		}
		if len(line) >= len(chunkedHeader) && bytes.EqualFold(line[:len(chunkedHeader)], chunkedHeader) {
			h.Chunked = true
		}
		if len(line) >= len(closeHeader) && bytes.EqualFold(line[:len(closeHeader)], closeHeader) {
			h.Last = true
		}
	}
}

// Status is the status line of the last answer.
func (c *Client) Status() string { return string(bytes.TrimSpace(c.line)) }

// Answer is the body that an answer should have. In its hole stands what differs
// each time; where both ends are 0 there is none.
type Answer struct {
	Body []byte
	Hole [2]int
}

// ErrDiffers is returned for a body that is not what was sent.
var ErrDiffers = errors.New("the answer is not what the upstream sent")

// Body reads the body of an answer, which has to be as wanted.
func (c *Client) Body(h Head, want *Answer) error {
	if h.Chunked {
		return c.chunks(want)
	}
	if h.Length != len(want.Body) {
		return fmt.Errorf("%w: Content-Length %d, want %d", ErrDiffers, h.Length, len(want.Body))
	}
	return c.compare(want, 0, h.Length)
}

// Event reads up to the end of the next event of a stream.
func (c *Client) Event() error {
	for {
		line, err := c.r.ReadSlice('\n')
		if err != nil || len(line) == 1 {
			return err
		}
	}
}

// chunks compares a body that comes in chunks.
func (c *Client) chunks(want *Answer) error {
	for at := 0; ; {
		line, err := c.r.ReadSlice('\n')
		if err != nil {
			return err
		}
		size, err := strconv.ParseInt(string(bytes.TrimSpace(line)), 16, 32)
		if err != nil {
			return err
		}
		if err := c.compare(want, at, int(size)); err != nil {
			return err
		}
		at += int(size)
		if _, err := c.r.Discard(2); err != nil {
			return err
		}
		if size == 0 {
			if at != len(want.Body) {
				return fmt.Errorf("%w: %d bytes, want %d", ErrDiffers, at, len(want.Body))
			}
			return nil
		}
	}
}

// compare reads n bytes, which have to be those of the answer from at on.
func (c *Client) compare(want *Answer, at, n int) error {
	if at+n > len(want.Body) {
		return fmt.Errorf("%w: more than %d bytes", ErrDiffers, len(want.Body))
	}
	for n > 0 {
		if c.r.Buffered() == 0 {
			if _, err := c.r.Peek(1); err != nil {
				return err
			}
		}
		got, err := c.r.Peek(min(n, c.r.Buffered()))
		if err != nil {
			return err
		}
		if !want.same(got, at) {
			return ErrDiffers
		}
		at, n = at+len(got), n-len(got)
		if _, err := c.r.Discard(len(got)); err != nil {
			return err
		}
	}
	return nil
}

// same reports whether got stands in the answer at this place, outside of the
// hole.
func (a *Answer) same(got []byte, at int) bool {
	from, to := min(max(a.Hole[0]-at, 0), len(got)), min(max(a.Hole[1]-at, 0), len(got))
	return bytes.Equal(got[:from], a.Body[at:at+from]) && bytes.Equal(got[to:], a.Body[at+to:at+len(got)])
}
