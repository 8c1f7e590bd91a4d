package proxy

import (
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/wopproxy/wopproxy/proxy/internal/wire"
)

// readBody reads body as far as the proxy may look at it: to its end, or until
// it is longer than limit, or until patience is over. Either all is nil and
// rest is the whole body, the part read included, or all is the whole body.
//
// A framed body is one of gRPC, whose client may leave its side open. It is read
// to the end of its first frame, and rest is then what comes behind all.
//
// What it holds comes out of share; where that is used up, the body is too large.
//
// The patience is what keeps the promise that nothing is delayed without
// bound: a peer that sends half a request and waits gets whatever it would
// have got from the host itself.
func readBody(body io.ReadCloser, framed bool, length, limit int64, patience time.Duration, share *share) (all []byte, rest io.ReadCloser, why bodyOutcome) {
	if length > limit {
		return nil, body, bodyTooLarge
	}
	size, most := length, length
	if size < 0 {
		size, most = 512, limit
	}
	// One byte more than is expected, so that the end is seen without growing; but
	// no more than what a promise of length alone may cost us.
	p := &pending{src: body, framed: framed, buf: make([]byte, 0, min(size+1, smallBody)), share: share, most: most, done: make(chan struct{})}
	go p.fill(limit) // ends when the body does, or with the first read after detach

	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-p.done:
	case <-timer.C:
		if p.detach() {
			return nil, p, bodySlow
		}
		<-p.done
	}
	switch {
	case p.crowded:
		return nil, p, bodyCrowded
	case int64(len(p.buf)) > limit: // its end may have come with the last bytes
		return nil, p, bodyTooLarge
	case errors.Is(p.err, io.EOF):
		return p.buf, nil, bodyWhole
	case p.err == nil && frameRead(p.buf):
		return p.buf, body, bodyWhole
	case p.err == nil: // a frame that is longer than the limit
		return nil, p, bodyTooLarge
	}
	return nil, p, bodyBroken // the transport will meet the same error
}

// bodyOutcome says how much of a body the proxy could look at.
type bodyOutcome int

const (
	bodyWhole bodyOutcome = iota
	bodyTooLarge
	bodyCrowded // others hold all that bodies may
	bodySlow
	bodyBroken
)

// pending is a body of which a part has been read. It reads on where that part
// ends.
type pending struct {
	src    io.ReadCloser
	framed bool
	share  *share
	most   int64         // what is expected, or may come
	done   chan struct{} // closed when fill has ended

	mu       sync.Mutex
	buf      []byte // grows in fill until detached
	detached bool
	held     int64 // of the share
	crowded  bool  // the share is used up
	err      error // how fill ended; read after done

	off int // how much of buf has been handed on
}

// fill reads until the source ends, there is more than limit, or somebody
// detaches. A read that is under way then is waited for by Read.
func (p *pending) fill(limit int64) {
	defer close(p.done)
	for {
		p.mu.Lock()
		if len(p.buf) == cap(p.buf) && !p.grow() {
			p.mu.Unlock()
			return
		}
		free := p.buf[len(p.buf):cap(p.buf)]
		p.mu.Unlock()

		n, err := p.src.Read(free) // free is seen by nobody else yet

		p.mu.Lock()
		p.buf = p.buf[:len(p.buf)+n]
		p.err = err
		stop := err != nil || int64(len(p.buf)) > limit || p.detached || p.framed && (frameRead(p.buf) || frameLonger(p.buf, limit))
		p.mu.Unlock()
		if stop {
			return
		}
	}
}

// grow makes room for more, if nobody has detached and the share allows it. One
// byte beyond what may come is enough to see that more does.
func (p *pending) grow() bool {
	had := int64(cap(p.buf))
	size := min(2*had, max(p.most, had)+1)
	if had < smallBody {
		size = min(size, smallBody)
	}
	if p.detached {
		return false
	}
	if size > smallBody {
		if p.crowded = !p.share.take(size - p.held); p.crowded {
			return false
		}
		p.held = size
	}
	p.buf = append(make([]byte, 0, size), p.buf...)
	return true
}

// smallBody is what a body may hold that counts for nothing: no more than the
// connection that it comes by.
const smallBody = 64 << 10

// share is what one exchange holds of the memory for bodies.
type share struct {
	all   *atomic.Int64 // what all exchanges hold
	limit int64         // of all
	held  int64
}

// take adds n bytes to the share, if there are so many left.
func (s *share) take(n int64) bool {
	if s.all.Add(n) > s.limit {
		s.all.Add(-n)
		return false
	}
	s.held += n
	return true
}

// give returns all of the share.
func (s *share) give() {
	if s.held != 0 {
		s.all.Add(-s.held)
		s.held = 0
	}
}

// frameRead reports whether b has all of a frame.
func frameRead(b []byte) bool {
	n, ok := wire.FrameLength(b)
	return ok && n <= int64(len(b))
}

// frameLonger reports whether b begins with a frame longer than limit.
func frameLonger(b []byte, limit int64) bool {
	n, ok := wire.FrameLength(b)
	return ok && n > limit
}

// detach ends the filling and reports whether it had not ended by itself.
func (p *pending) detach() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.done:
		return false
	default:
		p.detached = true
		return true
	}
}

// Read hands on what was read first, then the rest of the source.
func (p *pending) Read(b []byte) (int, error) {
	if n := p.next(b); n > 0 {
		return n, nil
	}
	<-p.done
	if n := p.next(b); n > 0 {
		return n, nil
	}
	if p.err != nil {
		return 0, p.err
	}
	return p.src.Read(b)
}

func (p *pending) next(b []byte) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := copy(b, p.buf[p.off:])
	p.off += n
	return n
}

// Close closes the source, which also ends a read that is under way.
func (p *pending) Close() error { return p.src.Close() }
