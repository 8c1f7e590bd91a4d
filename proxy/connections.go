package proxy

import (
	"net"
	"net/http"
	"sync"
)

// connections bounds how many connections of clients one server holds open. One
// too many costs the connection that has had no request for longest: clients
// that are served keep theirs, and a crowd that only waits, or spells its headers
// out slowly, pushes out itself.
type connections struct {
	limit int
	over  func() // is told of each connection that had to go

	mu   sync.Mutex
	open map[net.Conn]*connection
	wait connection // the ring of those without a request; next is the oldest
}

// connection is one that is open. It is in the ring while it has no request.
type connection struct {
	net.Conn
	next, prev *connection
}

// Connections returns the ConnState of a server that shall hold no more than
// Options.MaxConnections open. A connection that has been taken over, as by a
// CONNECT tunnel, is its new owner's to count.
func (p *Proxy) Connections() func(net.Conn, http.ConnState) {
	c := &connections{
		limit: p.o.MaxConnections, over: func() { p.metrics.limit(limitConns) },
		open: map[net.Conn]*connection{},
	}
	c.wait.next, c.wait.prev = &c.wait, &c.wait
	return c.state
}

// state follows a connection. It is called for each request, so it allocates
// nothing but for a new one.
func (c *connections) state(conn net.Conn, s http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.open[conn]
	switch {
	case s == http.StateNew:
		k = &connection{Conn: conn}
		c.open[conn] = k
		k.joinBefore(&c.wait)
		if len(c.open) > c.limit {
			c.over()
			oldest := c.wait.next // at worst the one that has just come
			c.forget(oldest)
			_ = oldest.Close() // its server notices
		}
	case k == nil: // one that had to go
	case s == http.StateIdle:
		k.leave()
		k.joinBefore(&c.wait)
	case s == http.StateActive:
		k.leave()
	default:
		c.forget(k)
	}
}

func (c *connections) forget(k *connection) {
	k.leave()
	delete(c.open, k.Conn)
}

func (k *connection) joinBefore(other *connection) {
	k.next, k.prev = other, other.prev
	other.prev.next, other.prev = k, k
}

// leave may be called twice.
func (k *connection) leave() {
	if k.next != nil {
		k.prev.next, k.next.prev = k.next, k.prev
		k.next, k.prev = nil, nil
	}
}
