package rawhttp

import (
	"bytes"
	"crypto/tls"
	"errors"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
)

// Server answers requests whose length is said, one after the other on each
// connection. Set Handle before Listen.
type Server struct {
	// Handle answers one request, whose head and body are its own until it
	// returns. With an error the connection is closed.
	Handle func(conn net.Conn, head, body []byte) error

	listeners []net.Listener
	open      sync.Map // net.Conn → nothing
	count     atomic.Int64
	tasks     sync.WaitGroup
}

// Listen serves at a free port of 127.0.0.1 until Close, by TLS if there is a
// certificate, and returns its address.
func (s *Server) Listen(cert *tls.Certificate) (address string, err error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	address = ln.Addr().String()
	if cert != nil {
		ln = tls.NewListener(ln, &tls.Config{Certificates: []tls.Certificate{*cert}, MinVersion: tls.VersionTLS12})
	}
	s.listeners = append(s.listeners, ln)
	s.tasks.Go(func() { s.accept(ln) })
	return address, nil
}

// Close ends all connections.
func (s *Server) Close() (err error) {
	for _, ln := range s.listeners {
		err = errors.Join(err, ln.Close())
	}
	s.HangUp()
	s.tasks.Wait()
	return err
}

// HangUp closes the connections that clients hold now.
func (s *Server) HangUp() {
	s.open.Range(func(c, _ any) bool { _ = c.(net.Conn).Close(); return true })
}

// Open is how many connections clients hold.
func (s *Server) Open() int { return int(s.count.Load()) }

func (s *Server) accept(ln net.Listener) {
	for {
		conn, err := ln.Accept()
		if err != nil {
			return // closed
		}
		s.open.Store(conn, nil)
		s.count.Add(1)
		s.tasks.Go(func() {
			defer s.count.Add(-1)
			defer s.open.Delete(conn)
			defer conn.Close()
			_ = s.serve(conn) // the client that misses its answer says so
		})
	}
}

var (
	headEnd       = []byte("\r\n\r\n")
	contentLength = []byte("\r\ncontent-length:")
)

// serve answers the requests of one connection.
func (s *Server) serve(conn net.Conn) error {
	buf := make([]byte, 0, 8<<10)
	for {
		end := -1
		for end < 0 {
			var err error
			if buf, err = more(conn, buf); err != nil {
				return err
			}
			end = bytes.Index(buf, headEnd)
		}
		end += len(headEnd)
		length := 0
		if text := Header(buf[:end], contentLength); text != nil {
			var err error
			if length, err = strconv.Atoi(string(bytes.TrimSpace(text))); err != nil {
				return err
			}
		}
		for len(buf) < end+length {
			var err error
			if buf, err = more(conn, buf); err != nil {
				return err
			}
		}
		if err := s.Handle(conn, buf[:end], buf[end:end+length]); err != nil {
			return err
		}
		buf = append(buf[:0], buf[end+length:]...)
	}
}

// more reads what there is, after buf.
func more(conn net.Conn, buf []byte) ([]byte, error) {
	if len(buf) == cap(buf) {
		buf = append(make([]byte, 0, 4*cap(buf)), buf...)
	}
	n, err := conn.Read(buf[len(buf):cap(buf)])
	if n > 0 {
		err = nil
	}
	return buf[:len(buf)+n], err
}

// Header returns what follows name, which is in lower case and has the line's
// beginning and the colon ("\r\nrun-id:"); nil if there is none.
func Header(head, name []byte) []byte {
	for i := bytes.IndexByte(head, '\r'); i >= 0 && i+len(name) <= len(head); {
		if bytes.EqualFold(head[i:i+len(name)], name) {
			value := head[i+len(name):]
			return value[:bytes.IndexByte(value, '\r')]
		}
		next := bytes.IndexByte(head[i+1:], '\r')
		if next < 0 {
			return nil
		}
		i += 1 + next
	}
	return nil
}

// Target returns the target of a request.
func Target(head []byte) []byte {
	line := head[:bytes.IndexByte(head, '\r')]
	line = line[:max(0, bytes.LastIndexByte(line, ' '))]
	return line[bytes.IndexByte(line, ' ')+1:]
}
