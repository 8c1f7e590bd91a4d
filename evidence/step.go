package evidence

import (
	"crypto/rand"
	"encoding/hex"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/wopproxy/wopproxy/ancestry"
	"github.com/wopproxy/wopproxy/ancestry/peac"
)

// maxParents is how many parents a step may have.
const maxParents = 16

// Place is a step of a workflow, as it is told to others.
type Place struct{ Workflow, Step string }

// Run is what evidence knows of a run that is live: its workflow, which never
// changes, and the steps that it began and went on with.
type Run struct {
	Workflow string

	id      ancestry.RunID
	resumed bool // it began earlier, and has steps that only the store may know

	// Owned by who signs behind Seal.
	recalled bool     // the store was asked
	earlier  []parent // the steps that it has told of, newest last

	mu      sync.Mutex
	opens   bool     // the workflow begins with it
	opened  string   // id of the receipt that it has begun with
	inbound []parent // newest last, at most maxParents
	cut     bool     // there were more
}

// parent is a step that leads to others.
type parent struct{ step, receipt string }

// Step is one exchange in a workflow. What it is called is fixed when it begins.
type Step struct {
	Place
	Direction, Protocol string // of the exchange, set before anybody else has the step
	Peer                string // egress: the origin that was called, set as those
	Agent               string // egress: the address of the A2A agent that was called, as Introduce has it

	id       string // jti of its last receipt
	audience string // the origin that it is told to, and nobody else; empty: to whoever may read of the run
	exchange string
	run      *Run // nil: it belongs to none
	began    time.Time
	parents  []parent
	lacks    int    // how many of Run.earlier it may have as parents besides
	recalled bool   // they are added; owned by who signs
	carried  bool   // a peer has carried in the only parent
	opened   string // id of the receipt that the workflow began with; empty: not known, or this one

	// Guarded by Minter.mu.
	told      []*Step // the same step, for each audience that was told of it
	states    int     // that were told
	state     string  // the last of them, of a task
	progress  int     // how often the callee has told of it
	call      string  // its name
	cancelled bool    // by who has made it
	upstream  []peac.Carrier
	ended     bool

	prev string // reference of the receipt before; owned by who signs: Seal, and Run behind it
}

// Origin is what tells of the workflow of a run that begins.
type Origin struct {
	Carried Place  // told by a peer that is trusted
	Context string // its A2A contextId
}

// Open returns the workflow of a run that begins under id: the one that a trusted
// peer names, or that of its conversation, or its own.
func (m *Minter) Open(id ancestry.RunID, from Origin) *Run {
	run := &Run{id: id}
	known := m.contexts.find(from.Context)
	switch {
	case from.Carried.Workflow != "":
		run.Workflow = from.Carried.Workflow
	case known != "":
		run.Workflow = known
	case from.Context != "":
		run.Workflow, run.opens = m.namer(id).ContextWorkflow(m.o.Issuer, from.Context), true
	default:
		run.Workflow, run.opens = m.namer(id).RunWorkflow(m.o.Host, string(id)), true
	}
	_ = m.contexts.bind(from.Context, run.Workflow) // the first stays
	return run
}

// Converse notes that a run's conversation has got a contextId from the host: what
// begins in it later is of the same workflow.
func (m *Minter) Converse(run *Run, contextID string) { _ = m.contexts.bind(contextID, run.Workflow) }

// Task returns the step whose call has become a task, by a name that no other task
// has. What is seen of the task belongs to that step, wherever it is seen. own is the
// step that it is to be where none is known, or nil.
func (m *Minter) Task(name string, own *Step) *Step {
	if own == nil {
		return m.tasks.find(name)
	}
	return m.tasks.bind(name, own)
}

// Arrive begins the step of an exchange that comes to the host for a run; nil: it
// is none of a run. Its parent is the step that a trusted peer has carried, if that
// is of the same workflow, or else the run's step before.
func (m *Minter) Arrive(run *Run, carried Place, at time.Time) *Step {
	s := m.begin(run, carried.Workflow, at)
	if carried.Step != "" && carried.Workflow == s.Workflow && carried.Step != s.Step {
		s.parents, s.carried = []parent{{step: carried.Step}}, true
	}
	if run == nil {
		return s
	}
	run.mu.Lock()
	defer run.mu.Unlock()
	if n := len(run.inbound); n > 0 && !s.carried {
		s.parents = []parent{run.inbound[n-1]}
	} else if run.resumed && !s.carried {
		s.lacks = 1
	}
	s.opened = run.opened
	if run.opens && run.opened == "" {
		run.opened = s.id
	}
	if len(run.inbound) == maxParents {
		run.cut = true
		run.inbound = slices.Clone(run.inbound[1:]) // steps that began have the old one
	}
	run.inbound = append(run.inbound, parent{s.Step, s.id})
	return s
}

// Leave begins the step of an exchange that left the host for a run at a time; nil:
// nobody knows for which. Its parents are the steps that the run had begun and gone on
// with by then, the newest 16.
func (m *Minter) Leave(run *Run, at time.Time) *Step {
	s := m.begin(run, "", at)
	if run == nil {
		return s
	}
	run.mu.Lock()
	defer run.mu.Unlock()
	inbound := run.inbound
	for n := len(inbound); n > 0 && begunAfter(inbound[n-1], at); n-- {
		inbound = inbound[:n-1]
	}
	s.parents, s.opened = slices.Clip(inbound), run.opened
	if run.cut {
		m.metrics.limits.WithLabelValues(limitParents).Inc()
	} else if run.resumed {
		s.lacks = maxParents + 1 - len(s.parents) // one more tells that some are cut
	}
	return s
}

// begunAfter reports whether a parent began later than a time, to the millisecond.
func begunAfter(p parent, at time.Time) bool {
	began, ok := Began(p.receipt)
	return ok && began.After(at)
}

// Introduce notes the card that an agent is known by from now on, as ref: that of who
// is called at an address, or, with none, of the host itself.
func (m *Minter) Introduce(agent, ref string) {
	if agent != "" {
		m.cards.put(agent, ref)
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.card = ref
}

// Discover tells that the host has fetched an agent's card, o.Card, for a run; nil:
// nobody knows for which. That is a step of its own, which has begun at a time. Under
// Strict nothing is told: nobody can have a name of its own for a card.
func (m *Minter) Discover(run *Run, at time.Time, o Observed) {
	if m.o.Privacy == Strict {
		return
	}
	s := m.Leave(run, at)
	s.Direction, s.Protocol = o.Direction, o.Protocol
	m.End(s, o)
}

// begin makes a step of the run's workflow, or the one named, or one of its own.
func (m *Minter) begin(run *Run, workflow string, at time.Time) *Step {
	s := &Step{id: peac.NewReceiptID(at), exchange: newExchange(), run: run, began: at}
	var id ancestry.RunID
	if run != nil {
		id, workflow = run.id, run.Workflow
	}
	names := m.namer(id)
	if workflow == "" {
		workflow = names.ExchangeWorkflow(s.exchange)
	}
	s.Place = Place{workflow, names.Step(workflow, s.exchange)}
	m.mu.Lock()
	m.open++
	m.pending[s.Workflow]++
	m.mu.Unlock()
	return s
}

// For returns the place of s as it is told to an audience, the origin that it is
// sent to: another one under Strict, which that audience alone knows. Of a step that
// was told so, all is signed once more for that audience: in the place that it knows,
// and without parents, for it was told of no step that came to the host. For is
// called before anything is told of s.
func (m *Minter) For(s *Step, audience string) Place {
	if m.o.Privacy != Strict {
		return s.Place
	}
	names := m.namerOf(s)
	told := &Step{
		Place: Place{names.AudienceWorkflow(audience, s.Workflow), names.AudienceStep(audience, s.Step)},
		id:    peac.NewReceiptID(s.began), audience: audience, exchange: s.exchange, run: s.run, began: s.began,
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if !slices.ContainsFunc(s.told, func(t *Step) bool { return t.audience == audience }) {
		s.told = append(s.told, told)
		m.pending[told.Workflow]++
	}
	return told.Place
}

// OriginOf is where a request goes to, in the one form that names it: lower case,
// without the port that the scheme implies.
func OriginOf(u *url.URL) string {
	if u == nil { // a line has no destination
		return ""
	}
	host := strings.ToLower(u.Host)
	switch u.Scheme {
	case "http":
		host = strings.TrimSuffix(host, ":80")
	case "https":
		host = strings.TrimSuffix(host, ":443")
	}
	return u.Scheme + "://" + host
}

// namerOf derives the ids of what belongs to the run of a step.
func (m *Minter) namerOf(s *Step) peac.Namer {
	if s.run == nil {
		return m.names
	}
	return m.namer(s.run.id)
}

// namer derives the ids of what belongs to a run: of its tenant, where the id says
// which that is.
func (m *Minter) namer(id ancestry.RunID) peac.Namer {
	tenant, _, bound := strings.Cut(string(id), "/")
	if !bound {
		return m.names
	}
	names, _ := peac.NewNamer(m.o.IDKey, tenant) // the key is one: New has seen to it
	return names
}

// newExchange returns the id of an exchange: 128 random bits.
func newExchange() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// memory remembers something of names that peers have: at most so many, of which the
// first goes for another.
type memory[V any] struct {
	limit int
	full  prometheus.Counter // of those that went

	mu    sync.Mutex
	known map[string]V
	order []string // in a ring
	next  int
}

func newMemory[V any](limit int, full prometheus.Counter) *memory[V] {
	return &memory[V]{limit: limit, full: full, known: map[string]V{}}
}

func (c *memory[V]) find(name string) V {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.known[name]
}

// bind remembers v, unless the name has something already, and returns what it has.
func (c *memory[V]) bind(name string, v V) V {
	if name == "" || len(name) > maxName {
		return v
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if known, there := c.known[name]; there {
		return known
	}
	c.putLocked(name, v)
	return v
}

// put remembers v, whatever the name had.
func (c *memory[V]) put(name string, v V) {
	if name == "" || len(name) > maxName {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.putLocked(name, v)
}

func (c *memory[V]) putLocked(name string, v V) {
	if _, there := c.known[name]; there {
		c.known[name] = v
		return
	}
	if len(c.order) < c.limit {
		c.order = append(c.order, name)
	} else {
		c.full.Inc()
		delete(c.known, c.order[c.next])
		c.order[c.next] = name
		c.next = (c.next + 1) % c.limit
	}
	c.known[name] = v
}

// maxName bounds the names.
const maxName = 512
