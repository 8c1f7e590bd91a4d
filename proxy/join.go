package proxy

import (
	"cmp"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// joint passes bytes both ways between two sides until both have finished, keeping
// half-open connections half open. A side that breaks off, instead of ending what it
// has to say, does so for the other one, too: what TCP and TLS say at an orderly end
// would pass off as whole what is not.
type joint struct {
	client, upstream joined
	patience         time.Duration // with what is left of a side that is gone; default a minute
	broken           atomic.Bool   // one side is gone
}

// joined is one side of a joint.
type joined struct {
	io.ReadWriteCloser
	conn net.Conn // which it speaks by
	said []byte   // what was read of it already

	ended bool // it has heard all; belongs to the goroutine that tells it
}

// pass returns when both ways have ended, and has closed both sides.
func (j *joint) pass() {
	var both sync.WaitGroup
	both.Go(func() { j.tell(&j.upstream, &j.client) })
	both.Go(func() { j.tell(&j.client, &j.upstream) })
	both.Wait()
	j.client.close()
	j.upstream.close()
}

// tell tells one side all that the other one says.
func (j *joint) tell(to, from *joined) {
	_, err := to.Write(from.said)
	if err == nil {
		_, err = io.Copy(to.ReadWriteCloser, from.ReadWriteCloser) // which know how to do it in the kernel
	}
	switch {
	case err != nil:
		// Which of them is gone can't be told from that. If it is the one that is told,
		// the other way ends by itself, when it has passed on what is left there.
		if j.broken.Store(true); waits(to.conn) {
			reset(to.ReadWriteCloser, to.conn)
		} else if to.conn != nil {
			// What is left may be a part of what never comes whole.
			_ = to.conn.SetReadDeadline(time.Now().Add(cmp.Or(j.patience, time.Minute)))
		}
	case !j.broken.Load(): // or this is the end of what has broken off
		closeWrite(to.ReadWriteCloser)
		to.ended = true
	}
}

func (s *joined) close() {
	if s.ended {
		_ = s.Close()
		return
	}
	reset(s.ReadWriteCloser, s.conn)
}

// reset closes c as something that has broken off, by the connection beneath it.
func reset(c io.Closer, conn net.Conn) {
	conn = beneath(conn)
	if tcp, ok := conn.(interface{ SetLinger(sec int) error }); ok {
		_ = tcp.SetLinger(0)
	}
	if conn != nil {
		_ = conn.Close() // before TLS can say goodbye
	}
	_ = c.Close()
}

// beneath is the connection of the kernel's that c speaks by.
func beneath(c net.Conn) net.Conn {
	for {
		above, ok := c.(interface{ NetConn() net.Conn })
		if !ok {
			return c
		}
		c = above.NetConn()
	}
}

// closeWrite ends one direction of c, or all of it where that is not possible.
func closeWrite(c io.Closer) {
	if half, ok := c.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
		return
	}
	_ = c.Close()
}
