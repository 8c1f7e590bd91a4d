package main

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"time"
)

// collector receives spans by OTLP over HTTP, and counts them.
type collector struct {
	address string
	spans   atomic.Int64
	srv     *http.Server
}

func newCollector(ctx context.Context) (*collector, error) {
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	c := &collector{address: ln.Addr().String()}
	c.srv = &http.Server{Handler: c, ReadHeaderTimeout: time.Minute}
	go func() { _ = c.srv.Serve(ln) }() // until Close
	return c, nil
}

func (c *collector) Close() error { return c.srv.Close() }

func (c *collector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	n, err := countSpans(body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	c.spans.Add(n)
	w.Header().Set("Content-Type", "application/x-protobuf") // an empty message: all went well
}

var errProtobuf = errors.New("not an export of spans")

// countSpans counts resource_spans.scope_spans.spans of a request to export.
func countSpans(msg []byte) (int64, error) { return count(msg, 1, 2, 2) }

// count returns how many fields there are on a path of field numbers.
func count(msg []byte, path ...uint64) (n int64, err error) {
	if len(path) == 0 {
		return 1, nil
	}
	for len(msg) > 0 {
		tag, size := binary.Uvarint(msg)
		if size <= 0 {
			return n, errProtobuf
		}
		msg = msg[size:]
		length, size := uint64(0), 0
		switch tag & 7 {
		case 0:
			_, size = binary.Uvarint(msg)
		case 1:
			size = 8
		case 2:
			length, size = binary.Uvarint(msg)
		case 5:
			size = 4
		}
		if size <= 0 || uint64(len(msg)-size) < length || len(msg) < size {
			return n, errProtobuf
		}
		if value := msg[size : size+int(length)]; tag == path[0]<<3|2 {
			below, err := count(value, path[1:]...)
			if err != nil {
				return n, err
			}
			n += below
		}
		msg = msg[size+int(length):]
	}
	return n, nil
}
