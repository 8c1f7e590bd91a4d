package proxy

import (
	"bytes"
	"io"
	"sync"
	"sync/atomic"
)

// lease is memory that one exchange makes a body in. Others get it when the
// exchange is over and whoever has read the body has closed it, which a transport
// may do later; memory that somebody never closes is not lent again. A nil lease is
// none.
type lease struct {
	buf  *[]byte      // lent to others once nobody is left; the lease itself is not used again
	refs atomic.Int64 // the exchange, and each open reader
}

// Bodies that are made in lent memory. A shorter one costs less than its lease,
// and longer ones are too rare to keep memory for.
const (
	minLease = 16 << 10
	maxLease = 256 << 10
)

// bodyBuffers is the memory that nobody has; the pool forgets what is not used.
var bodyBuffers = sync.Pool{New: func() any { return new([]byte) }}

// borrow returns memory for a body of about so many bytes, and what edits add.
func borrow(size int) *lease {
	if size += size/8 + 2<<10; size < minLease || size > maxLease {
		return nil
	}
	l := &lease{buf: bodyBuffers.Get().(*[]byte)}
	if cap(*l.buf) < size {
		*l.buf = make([]byte, 0, size)
	}
	l.refs.Store(1)
	return l
}

// memory is what the body may be made in.
func (l *lease) memory() []byte {
	if l == nil {
		return nil
	}
	return (*l.buf)[:0]
}

// has reports whether body was made in the lease.
func (l *lease) has(body []byte) bool {
	return l != nil && len(body) > 0 && &body[0] == &(*l.buf)[:1][0]
}

// drop ends one use, and with the last of them the lease.
func (l *lease) drop() {
	if l != nil && l.refs.Add(-1) == 0 {
		bodyBuffers.Put(l.buf)
	}
}

// reader returns a reader of body, which was made in the lease. It fails when the
// exchange is over.
func (l *lease) reader(body []byte) (io.ReadCloser, error) {
	for n := l.refs.Load(); n > 0; n = l.refs.Load() {
		if l.refs.CompareAndSwap(n, n+1) {
			return &leaseReader{from: bytes.NewReader(body), lease: l}, nil
		}
	}
	return nil, errBodyBack
}

// leaseReader is closed by one goroutine while another reads, as it happens in a
// transport whose request is cancelled.
type leaseReader struct {
	mu    sync.Mutex
	from  *bytes.Reader // nil: closed
	lease *lease
}

func (r *leaseReader) Read(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.from == nil {
		return 0, errBodyBack
	}
	return r.from.Read(p)
}

// Close ends the use of the memory.
func (r *leaseReader) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.from != nil {
		r.from = nil
		r.lease.drop()
	}
	return nil
}
