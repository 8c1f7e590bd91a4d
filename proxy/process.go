package proxy

import (
	"context"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/wopproxy/wopproxy/ancestry"
	"github.com/wopproxy/wopproxy/proxy/internal/attribution"
	"github.com/wopproxy/wopproxy/proxy/internal/wire"
)

// Where a host runs each run in a process of its own, the process that a call
// comes from tells the run. The kernel knows which process holds the other end
// of a connection to us; and of a process it is known which run it is for by
// the environment that it, or the nearest process above it, was started with,
// or by the connection on which it was given the run's request.
//
// What is read is a picture of a moment, so whatever a verdict rests on is looked
// at once more before it counts: the process must still hold the connection,
// which a later one with the same id would not.

// process is one process. Its start, in ticks since the system's, tells it from
// a later one with the same id.
type process struct {
	pid   int
	start uint64
}

// pair is the two ends of a connection, seen from one of them.
type pair struct{ local, remote netip.AddrPort }

// holder is a process that holds a socket, and where.
type holder struct {
	pid int
	fd  string
}

// snapshot is what the kernel knew of sockets at one time.
type snapshot struct {
	sockets map[pair]uint64     // inodes
	holders map[uint64][]holder // by inode
}

// processes finds the runs of processes. Its methods may be called
// concurrently.
type processes struct {
	os procfs

	mu      sync.Mutex
	running *scan // under way
	next    *scan // begins when that is done
	serving map[pair]*served
	owners  map[net.Addr]*owned // by the identity of a connection's address
}

// scan is one reading of the process table, for all who wait for it.
type scan struct {
	done  chan struct{} // closed when shot is there
	shot  *snapshot     // nil: it took too long
	until time.Duration
}

// served is a request of a run that is in flight to the host, on a connection of
// its own, seen from the host's side.
type served struct {
	run   *attribution.Run
	since uint64      // ticks; who works on it was started later
	over  atomic.Bool // it is no longer in flight
}

// owned is what is known of a connection to egress.
type owned struct {
	holder  holder
	process process
	inode   uint64
	run     ancestry.RunID // by the environment, which does not change
	served  *served        // the request in flight that the process was given
	asked   time.Time      // when nothing was found
}

// Bounds of what is remembered of connections, and for how long that nothing was
// found.
const (
	maxOwners    = 10_000
	unownedFor   = 100 * time.Millisecond
	maxForebears = 64
)

func newProcesses() *processes {
	return &processes{os: procfs{"/proc"}, serving: map[pair]*served{}, owners: map[net.Addr]*owned{}}
}

// fresh returns a snapshot that was begun after the call, or nil if that takes
// longer than patience. Callers at one time share the work.
func (p *processes) fresh(patience time.Duration) *snapshot {
	p.mu.Lock()
	var mine *scan
	switch {
	case p.running == nil:
		mine = &scan{done: make(chan struct{}), until: patience}
		p.running = mine
		go p.scan(mine) // ends by itself, within patience
	case p.next == nil:
		p.next = &scan{done: make(chan struct{}), until: patience}
		fallthrough
	default:
		mine = p.next
	}
	p.mu.Unlock()
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	select {
	case <-mine.done:
		return mine.shot
	case <-timeout.C:
		return nil
	}
}

// scan works on s, and on what was asked for meanwhile.
func (p *processes) scan(s *scan) {
	for s != nil {
		s.shot = p.os.snapshot(time.Now().Add(s.until))
		close(s.done)
		p.mu.Lock()
		s, p.next = p.next, nil
		p.running = s
		p.mu.Unlock()
	}
}

// serve notes that the host is about to be given a request of run on the
// connection, until the function that it returns is called.
func (p *processes) serve(c net.Conn, run *attribution.Run, since uint64) (done func()) {
	at, ok := pairOf(c.RemoteAddr(), c.LocalAddr().String())
	if !ok {
		return func() {}
	}
	s := &served{run: run, since: since}
	p.mu.Lock()
	p.serving[at] = s
	p.mu.Unlock()
	return func() {
		s.over.Store(true)
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.serving[at] == s {
			delete(p.serving, at)
		}
	}
}

// pairOf is a connection between this machine and itself.
func pairOf(local net.Addr, remote string) (pair, bool) {
	l, ok := local.(*net.TCPAddr)
	r, err := netip.ParseAddrPort(remote)
	if !ok || err != nil {
		return pair{}, false
	}
	at := pair{local: unmapped(l.AddrPort()), remote: unmapped(r)}
	return at, at.local.Addr().IsLoopback() && at.remote.Addr().IsLoopback()
}

func unmapped(a netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()) }

// runOfProcess returns the run whose process has sent r, or why that can't be
// told; neither if no process of a run has.
func (x *exchange) runOfProcess(r *http.Request) (ancestry.RunID, attribution.Reason) {
	p := x.p.processes
	local, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if p == nil || local == nil {
		return "", ""
	}
	at, ok := pairOf(local, r.RemoteAddr)
	if !ok {
		return "", ""
	}
	p.mu.Lock()
	known := p.owners[local]
	p.mu.Unlock()
	if known != nil {
		if id, ok := p.still(known); ok {
			return id, ""
		}
	}
	shot := p.fresh(x.policy.ProcessScan)
	if shot == nil {
		x.p.metrics.limit(limitScan)
		return "", ""
	}
	found, why := x.ownerOf(shot, pair{at.remote, at.local})
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.owners) >= maxOwners {
		clear(p.owners) // each is found again when it is used
	}
	p.owners[local] = found
	return found.id(), why
}

// id is the run that the owner works for, or "".
func (o *owned) id() ancestry.RunID {
	if o.served != nil {
		return o.served.run.ID()
	}
	return o.run
}

// still returns what was found of a connection, if it holds.
func (p *processes) still(o *owned) (ancestry.RunID, bool) {
	if o.id() == "" {
		return "", time.Since(o.asked) < unownedFor
	}
	if now, err := p.os.stat(o.holder.pid); err != nil || now.process != o.process || !p.os.holds(o.holder, o.inode) {
		return "", false
	}
	return o.id(), o.served == nil || !o.served.over.Load()
}

// ownerOf finds the run of the connection at. All processes that hold it have
// to be of the same one: any of them may have written to it.
func (x *exchange) ownerOf(shot *snapshot, at pair) (*owned, attribution.Reason) {
	p := x.p.processes
	unowned := &owned{asked: time.Now()}
	inode, ok := shot.sockets[at]
	if !ok {
		return unowned, ""
	}
	var found *owned
	for i, h := range shot.holders[inode] {
		one, why := x.runOfHolder(shot, h)
		if why != "" {
			return unowned, why
		}
		if !p.os.holds(h, inode) {
			return unowned, "" // it may not be the one that was looked at
		}
		if i > 0 && one.id() != found.id() {
			return unowned, attribution.ReasonSharedProcess
		}
		one.holder, one.inode = h, inode
		found = one
	}
	if found == nil || found.id() == "" {
		return unowned, ""
	}
	return found, ""
}

// runOfHolder finds the run of a process: by the environment of the nearest
// process that has one which names a run, else by the request that it was given.
func (x *exchange) runOfHolder(shot *snapshot, h holder) (*owned, attribution.Reason) {
	p := x.p.processes
	self, err := p.os.stat(h.pid)
	if err != nil {
		return &owned{}, ""
	}
	o := &owned{process: self.process}
	forebears := map[int]bool{}
	for at, i := self, 0; i < maxForebears && at.pid != p.os.self(); i++ {
		forebears[at.pid] = true
		if o.run = x.runInEnvironment(p.os.environ(at.pid)); o.run != "" {
			break
		}
		above, err := p.os.stat(at.parent)
		again, gone := p.os.stat(at.pid)
		if err != nil || gone != nil || again != at {
			break // its parent has ended meanwhile, and the id may be another's
		}
		at = above
	}
	if again, err := p.os.stat(h.pid); err != nil || again.process != self.process {
		return &owned{}, ""
	}
	if o.run != "" {
		return o, ""
	}
	return x.givenTo(shot, o, forebears)
}

// givenTo completes o by the request in flight whose connection its process
// holds, if it was started for it. Somebody else who holds it, and is neither
// above nor below, may be the one that works on it.
func (x *exchange) givenTo(shot *snapshot, o *owned, forebears map[int]bool) (*owned, attribution.Reason) {
	p := x.p.processes
	p.mu.Lock()
	serving := maps.Clone(p.serving)
	p.mu.Unlock()
	const slack = 2 // ticks, by which the two clocks may differ
	for at, s := range serving {
		inode := shot.sockets[at]
		hs := shot.holders[inode]
		i := slices.IndexFunc(hs, func(h holder) bool { return h.pid == o.process.pid })
		if inode == 0 || i < 0 || o.process.start+slack < s.since || !p.os.holds(hs[i], inode) {
			continue
		}
		related := func(h holder) bool { return forebears[h.pid] || p.os.descends(h.pid, o.process.pid) }
		if o.served != nil && o.served.run != s.run || slices.ContainsFunc(hs, func(h holder) bool { return !related(h) }) {
			return o, attribution.ReasonSharedProcess
		}
		o.served = s
	}
	return o, ""
}

// runInEnvironment returns the run that an environment names, by the variables
// that hosts make of what they were handed, bare or as CGI has it. A run that was
// never seen here is another program's business.
func (x *exchange) runInEnvironment(env []string) ancestry.RunID {
	get := func(name string) string {
		for _, kv := range env {
			if k, v, _ := strings.Cut(kv, "="); k == name {
				return v
			}
		}
		return ""
	}
	for _, prefix := range []string{"", "HTTP_"} {
		if id, err := ancestry.ParseRunID(get(prefix + "RUN_ID")); err == nil {
			if run := x.knownHere(id); run != nil {
				return run.ID()
			}
		}
		c := wire.ParseContext([]string{get(prefix + "TRACEPARENT")}, []string{get(prefix + "TRACESTATE")}, nil)
		id := x.p.runs.ParseState(c.State.Member(stateKey))
		if id == "" || !c.Valid() {
			continue
		}
		trace := ancestry.TraceID(c.TraceID)
		if run := x.knownHere(id); run != nil && (run.Trace == trace || x.p.runs.Owns(run, trace)) {
			return run.ID()
		}
	}
	return ""
}

// knownHere returns the run of that id, if it is live here or recorded.
func (x *exchange) knownHere(id ancestry.RunID) *attribution.Run {
	if run := x.p.runs.Known(id); run != nil {
		return run
	}
	return x.p.storedRun(context.Background(), id)
}
