package proxy

import (
	"bytes"
	"io"
	"net/http"

	"github.com/wopproxy/wopproxy/proxy/internal/wire"
)

// observer reads an answer as it passes. What it learns takes effect before the
// bytes that said so are handed on.
type observer struct {
	io.ReadCloser
	x       *exchange
	ctx     contextDone
	want    int64        // Content-Length, or -1
	parts   parts        // of a stream; nil: the body is one document
	limit   string       // what a part that is too long is counted as
	trailer *http.Header // of gRPC: complete at the body's end

	seen  []byte // the document so far; nil once it is read or too long
	total int64
	tries int // attempts at a document whose end is not announced
	done  bool
	hears bool // the exchange keeps what passes, to the end
}

// contextDone is as much of a context as waiting takes.
type contextDone interface{ Done() <-chan struct{} }

func (o *observer) Read(b []byte) (int, error) {
	o.x.deliver() // who asks for more has passed on what there was
	n, err := o.ReadCloser.Read(b)
	if (!o.done || o.hears) && (n > 0 || err != nil) {
		o.x.guard(func() { o.see(b[:n], err == io.EOF) })
	}
	o.x.awaitCommit(o.ctx)
	return n, err
}

func (o *observer) see(chunk []byte, last bool) {
	if o.parts != nil {
		o.parts.write(chunk, func(data []byte) { o.x.learn(data, false) }, func() {
			o.x.p.metrics.limit(o.limit)
			o.x.streamed = false // this may have been the answer
		})
		if last && o.trailer != nil {
			o.x.findReceipt(*o.trailer)
			o.x.learnStatus(*o.trailer)
			o.x.attachTrailer(*o.trailer)
		}
		return
	}
	o.total += int64(len(chunk))
	whole := last || o.total == o.want
	if o.hears {
		o.x.hear(chunk, whole)
	}
	if o.done {
		return
	}
	if o.total > o.x.policy.InspectedBody {
		o.x.p.metrics.limit(limitAnswer)
		o.seen, o.done = nil, true
		return
	}
	if whole && o.seen == nil {
		o.x.learn(chunk, true) // all at once, as short answers come: no copy
		o.done = true
		return
	}
	o.seen = append(o.seen, chunk...)
	if !whole && o.want < 0 && o.tries < documentTries && endsInBracket(chunk) {
		o.tries++
		whole = wire.Complete(o.seen)
	}
	if whole {
		o.x.learn(o.seen, true)
		o.seen, o.done = nil, true
	}
}

func endsInBracket(b []byte) bool {
	b = bytes.TrimRight(b, " \t\r\n")
	return len(b) > 0 && (b[len(b)-1] == '}' || b[len(b)-1] == ']')
}
