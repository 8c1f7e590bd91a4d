package main

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/wopproxy/wopproxy/test/internal/rawhttp"
)

// upstream answers all that the proxies forward. It does as little as a server
// can, in the process of the clients: what it costs is not what is measured.
type upstream struct {
	rawhttp.Server
	plain, tls string             // addresses
	kinds      map[string]*served // by path
	next       atomic.Uint64      // number of an answer
	think      time.Duration      // before each
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
		all := fmt.Appendf(nil, "HTTP/1.1 200 OK\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n", a.contentType, len(a.Body))
		at := len(all)
		all = append(all, a.Body...)
		if a.Hole[1] == 0 {
			s.head = all
			return s
		}
		s.head, s.tail = all[:at+a.Hole[0]], all[at+a.Hole[1]:]
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
func newUpstream(cert tls.Certificate, think time.Duration) (u *upstream, err error) {
	u = &upstream{kinds: map[string]*served{}, think: think}
	for _, k := range append(kinds, working) {
		u.kinds[k.path] = prepare(k.answer)
	}
	u.Handle = u.answer
	if u.plain, err = u.Listen(nil); err != nil {
		return nil, err
	}
	if u.tls, err = u.Listen(&cert); err != nil {
		return nil, errors.Join(err, u.Close())
	}
	return u, nil
}

var (
	runAncestry = []byte("\r\nrun-ancestry:")
	runID       = []byte("\r\nrun-id:")
	traceparent = []byte(`"traceparent"`)
)

// answer answers one request. What it does not know it hangs up on.
func (u *upstream) answer(conn net.Conn, head, body []byte) error {
	target := rawhttp.Target(head)
	s := u.kinds[string(target[bytes.LastIndexByte(target, '/')+1:])]
	if s == nil {
		return fmt.Errorf("asked for %s", target)
	}
	s.look(head)
	if bytes.Contains(body, traceparent) {
		s.meta.Add(1)
	}
	if u.think > 0 {
		time.Sleep(u.think)
	}
	return s.write(conn, u.next.Add(1))
}

// look counts a request, and what it bears.
func (s *served) look(head []byte) {
	s.asked.Add(1)
	if rawhttp.Header(head, runAncestry) != nil {
		s.ancestry.Add(1)
	}
	if rawhttp.Header(head, runID) != nil {
		s.runID.Add(1)
	}
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
	all = append(all, rawhttp.Mark...)
	rawhttp.Number(all[len(s.head):], n)
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
