package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
)

// upstream answers all that the proxies forward. It does as little as a server
// can, in the process of the clients: what it costs is not what is measured.
type upstream struct {
	plain, tls net.Listener
	kinds      map[string]*served // by path
	next       atomic.Uint64      // number of an answer

	open  sync.Map // net.Conn → nothing
	tasks sync.WaitGroup
}

// served is what is answered on one path, and how often it was asked.
type served struct {
	head, tail []byte // around the hole; without one all is head
	events     [][]byte
	end        []byte

	asked    atomic.Int64
	ancestry atomic.Int64 // with Run-Ancestry
	runID    atomic.Int64 // with Run-Id
	meta     atomic.Int64 // with traceparent in the body
}

// prepare writes the answer down as it goes over the wire.
func prepare(a answer) *served {
	s := &served{}
	if a.events == nil {
		all := fmt.Appendf(nil, "HTTP/1.1 200 OK\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n", a.contentType, len(a.body))
		at := len(all)
		all = append(all, a.body...)
		if a.hole[1] == 0 {
			s.head = all
			return s
		}
		s.head, s.tail = all[:at+a.hole[0]], all[at+a.hole[1]:]
		return s
	}
	s.head = fmt.Appendf(nil, "HTTP/1.1 200 OK\r\nContent-Type: %s\r\nCache-Control: no-cache\r\nTransfer-Encoding: chunked\r\n\r\n", a.contentType)
	for _, e := range a.events {
		s.events = append(s.events, fmt.Appendf(nil, "%x\r\n%s\r\n", len(e), e))
	}
	s.end = []byte("0\r\n\r\n")
	return s
}

// newUpstream listens, and serves until Close.
func newUpstream(cert tls.Certificate) (u *upstream, err error) {
	u = &upstream{kinds: map[string]*served{}}
	for _, k := range append(kinds, working) {
		u.kinds[k.path] = prepare(k.answer)
	}
	var lc net.ListenConfig
	if u.plain, err = lc.Listen(context.Background(), "tcp", "127.0.0.1:0"); err != nil {
		return nil, err
	}
	if u.tls, err = lc.Listen(context.Background(), "tcp", "127.0.0.1:0"); err != nil {
		return nil, errors.Join(err, u.plain.Close())
	}
	u.tls = tls.NewListener(u.tls, &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12})
	for _, ln := range []net.Listener{u.plain, u.tls} {
		u.tasks.Go(func() { u.accept(ln) })
	}
	return u, nil
}

// Close ends all connections.
func (u *upstream) Close() error {
	err := errors.Join(u.plain.Close(), u.tls.Close())
	u.open.Range(func(c, _ any) bool { _ = c.(net.Conn).Close(); return true })
	u.tasks.Wait()
	return err
}

func (u *upstream) accept(ln net.Listener) {
	for {
		conn, err := ln.Accept()
		if err != nil {
			return // closed
		}
		u.open.Store(conn, nil)
		u.tasks.Go(func() {
			defer u.open.Delete(conn)
			defer conn.Close()
			_ = u.serve(conn) // the client that misses its answer says so
		})
	}
}

var (
	headEnd       = []byte("\r\n\r\n")
	contentLength = []byte("\r\ncontent-length:")
	runAncestry   = []byte("\r\nrun-ancestry:")
	runID         = []byte("\r\nrun-id:")
	traceparent   = []byte(`"traceparent"`)
)

// serve answers the requests of one connection, one after the other.
func (u *upstream) serve(conn net.Conn) error {
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
		head := buf[:end]
		length, err := strconv.Atoi(string(bytes.TrimSpace(header(head, contentLength))))
		if err != nil {
			_, err := io.WriteString(conn, "HTTP/1.1 411 Length Required\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
			return err
		}
		s := u.kinds[string(path(head))]
		if s == nil {
			_, err := io.WriteString(conn, "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
			return err
		}
		s.look(head)
		for len(buf) < end+length {
			if buf, err = more(conn, buf); err != nil {
				return err
			}
		}
		if bytes.Contains(buf[end:end+length], traceparent) {
			s.meta.Add(1)
		}
		if err := s.write(conn, u.next.Add(1)); err != nil {
			return err
		}
		buf = append(buf[:0], buf[end+length:]...)
	}
}

// look counts a request, and what it bears.
func (s *served) look(head []byte) {
	s.asked.Add(1)
	if header(head, runAncestry) != nil {
		s.ancestry.Add(1)
	}
	if header(head, runID) != nil {
		s.runID.Add(1)
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

// header returns what follows name, which is in lower case and has the line's
// beginning and the colon; nil if there is none.
func header(head, name []byte) []byte {
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

// path returns the last segment of the request's target.
func path(head []byte) []byte {
	line := head[:bytes.IndexByte(head, '\r')]
	line = line[:max(0, bytes.LastIndexByte(line, ' '))]
	return line[bytes.LastIndexByte(line, '/')+1:]
}

// buffers are for answers with a number.
var buffers = sync.Pool{New: func() any { return new([]byte) }}

func (s *served) write(conn net.Conn, n uint64) error {
	if s.tail == nil {
		if _, err := conn.Write(s.head); err != nil {
			return err
		}
		for _, e := range s.events {
			if _, err := conn.Write(e); err != nil {
				return err
			}
		}
		if s.end == nil {
			return nil
		}
		_, err := conn.Write(s.end)
		return err
	}
	b := buffers.Get().(*[]byte)
	defer buffers.Put(b)
	all := append((*b)[:0], s.head...)
	all = append(all, mark...)
	number(all[len(s.head):], n)
	all = append(all, s.tail...)
	*b = all
	_, err := conn.Write(all)
	return err
}

// seen is what the upstream was asked on one path.
type seen struct{ asked, ancestry, runID, meta int64 }

func (s *served) tell() seen {
	return seen{s.asked.Load(), s.ancestry.Load(), s.runID.Load(), s.meta.Load()}
}

func (s seen) minus(t seen) seen {
	return seen{s.asked - t.asked, s.ancestry - t.ancestry, s.runID - t.runID, s.meta - t.meta}
}

// check compares what the upstream saw with what the clients did: no proxy may
// answer by itself, and ours has to have stamped each message of an agent, or
// it was quick for the wrong reason.
func (s seen) check(c *contender, k traffic, done int64) error {
	want := seen{asked: done}
	switch {
	case !k.agent:
	case c.wop == "":
		want.ancestry = done // handed on as it came
	case c.wop == "ingress":
		want.ancestry, want.runID = s.ancestry, done
	default:
		want.ancestry = done
	}
	if k.meta && c.wop != "" {
		want.meta = done
	}
	if s != want {
		return fmt.Errorf("the upstream saw %+v, want %+v", s, want)
	}
	return nil
}
