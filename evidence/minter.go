package evidence

import (
	"cmp"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/wopproxy/wopproxy/ancestry"
	"github.com/wopproxy/wopproxy/ancestry/peac"
)

// Privacy is how much receipts tell.
type Privacy string

// The modes.
const (
	Strict   Privacy = "strict"   // no tool, no trace, no caller; ids and receipts of its own for each audience
	Balanced Privacy = "balanced" // the kind of a call, its trace, and pseudonyms
	Open     Privacy = "open"     // and the name of the tool
)

// Options configure a Minter. Issuer, Host, Keys, IDKey and Store are required.
type Options struct {
	Issuer  string            // an https:// origin in its one form, or a DID
	Host    string            // the host's stable id
	Keys    []Key             // in the order in which they sign; at least the last has a private half
	Revoked []peac.RevokedKey // those of Keys, and of earlier ones, that are not to be believed
	IDKey   []byte            // 32 secret bytes that ids are derived with; no signing key
	Privacy Privacy           // default Balanced
	Store   Store

	// Known are the keys of other issuers. Their receipts that were on an answer are
	// verified, and those that hold are what ours depends on.
	Known map[string]peac.JWKS

	// Digests has receipts tell those of the bodies that were seen whole, or of their
	// beginnings. Who guesses a body can see that it was the one. Not under Strict.
	Digests   bool
	MaxBodies int // bytes of bodies that may wait for it; default 16 MiB

	Queue       int              // receipts that may wait to be signed and stored; default 8192
	States      int              // states of a task that are told of one step, at most; default 32
	MaxUpstream int              // bytes of the receipts of others that may wait with ours; default 4 MiB
	Names       int              // conversations, tasks and resumed runs whose workflow is known, and agents whose card is, at most of each; default 10 000
	Recall      time.Duration    // for the store to tell what a run that began earlier did; default 10 s
	Now         func() time.Time // default time.Now

	// Live says whether a run of a workflow, or one of some runs, by the ids that they
	// were stored with, has not been seen to end; default: each has. It is asked once
	// for a summary.
	Live func(workflow string, runs map[ancestry.RunID]bool) bool

	Registerer prometheus.Registerer // default: metrics are not exposed
	Logger     *slog.Logger          // default: discard
}

// Minter makes the receipts of one issuer. Its methods may be called concurrently.
type Minter struct {
	o Options
	issuer
	contexts *memory[string] // workflows, by contextId
	tasks    *memory[*Step]
	cards    *memory[string] // digests, by the agents' addresses
	resumed  *memory[*Run]   // by id and workflow
	metrics  metrics
	queue    chan *entry
	accounts chan struct{} // has room while no workflow is accounted for

	mu      sync.Mutex
	stopped bool               // nothing is taken any more
	held    int                // bytes of the receipts of others that wait
	waiting int                // bytes of bodies that do
	open    int                // steps that have begun and not ended
	pending map[string]int     // by workflow: steps whose end is not stored yet, nor lost
	card    string             // digest of the host's own; empty: not known
	calls   map[string][]*Step // of open steps, by their names
	sealed  map[string]int     // receipts that others have and the store has not, by workflow
	lost    map[string]bool    // workflows that have lost receipts, for the store to know
	// owed are those that the store is just being told of, and the workflows of a
	// batch that it did not take at once.
	owed map[string]bool
}

// entry is a receipt to be signed.
type entry struct {
	step  *Step
	o     Observed
	state string // of the task; empty: the step has ended
	bodies
	count int // how often progress was told of; 0: it is of no interest

	upstream []peac.Carrier // receipts of others that were on the answer
	seal     *seal          // nil: it is signed by Run alone

	// Of a task: digests of the cards of who has handed it over, and to whom; empty:
	// not known.
	from, to string
}

// seal is what has come of signing a receipt ahead of Run.
type seal struct {
	tried   chan struct{} // closed at the end
	receipt Receipt       // empty: nothing
}

// bodies are those of an exchange that digests are to be made of.
type bodies struct{ request, response Body }

func (b *bodies) size() int { return len(b.request.Seen) + len(b.response.Seen) }

// New checks o and returns a Minter. Nothing is signed until Run is called.
func New(o Options) (*Minter, error) {
	if o.Store == nil {
		return nil, errors.New("evidence: Store is required")
	}
	i, err := newIssuer(o)
	if err != nil {
		return nil, err
	}
	o.Privacy = cmp.Or(o.Privacy, Balanced)
	o.Queue = cmp.Or(o.Queue, 8192)
	o.States = cmp.Or(o.States, 32)
	o.Names = cmp.Or(o.Names, 10_000)
	o.Recall = cmp.Or(o.Recall, 10*time.Second)
	o.MaxUpstream = cmp.Or(o.MaxUpstream, 4<<20)
	o.MaxBodies = cmp.Or(o.MaxBodies, 16<<20)
	o.Digests = o.Digests && o.Privacy != Strict // they would show that two have seen the same
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Live == nil {
		o.Live = func(string, map[ancestry.RunID]bool) bool { return false }
	}
	m := &Minter{o: o, issuer: i, queue: make(chan *entry, o.Queue), accounts: make(chan struct{}, 1), lost: map[string]bool{}, pending: map[string]int{}, calls: map[string][]*Step{}, sealed: map[string]int{}}
	m.metrics = newMetrics(o.Registerer, func() int { return len(m.queue) })
	m.contexts = newMemory[string](o.Names, m.metrics.limits.WithLabelValues(limitContexts))
	m.tasks = newMemory[*Step](o.Names, m.metrics.limits.WithLabelValues(limitTasks))
	m.cards = newMemory[string](o.Names, m.metrics.limits.WithLabelValues(limitCards))
	m.resumed = newMemory[*Run](o.Names, m.metrics.limits.WithLabelValues(limitRuns))
	return m, nil
}

// State tells that the task of a step has come to a state. One that it had last is
// not told again, nor more than Options.States of them, and one that ends it.
func (m *Minter) State(s *Step, state string, o Observed) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if state == s.state {
		return
	}
	room := m.o.States
	if taskOutcomes[state] != "" {
		room++
	}
	if s.states >= room {
		m.metrics.limits.WithLabelValues(limitStates).Inc()
		return
	}
	s.state = state
	s.states++
	o.Outcome = Ongoing
	e := &entry{step: s, o: o, state: state}
	if s.Direction == Egress && s.Protocol == A2A && o.Task != "" {
		e.from = m.card
		if m.o.Privacy != Strict { // who was called has a pseudonym there
			e.to = m.cards.find(s.Agent)
		}
	}
	m.takeLocked(e)
}

// progressing is the state of a step whose callee has told of its progress.
const progressing = "progress"

// Progress tells that the callee of a step has told of its progress, of which what it
// says is nobody's business. The receipts are of the first time and of each that doubles
// them, 2, 4, 8 and so on, and no more than Options.States with the states of a task.
func (m *Minter) Progress(s *Step, o Observed) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s.ended {
		return
	}
	s.progress++
	if n := s.progress; n&(n-1) != 0 {
		return
	}
	if s.states >= m.o.States {
		m.metrics.limits.WithLabelValues(limitStates).Inc()
		return
	}
	s.states++
	o.Outcome = Ongoing
	m.takeLocked(&entry{step: s, o: o, state: progressing, count: s.progress})
}

// Name has the call of a step be known by a name until its exchange has ended; "" is
// none. Of two calls of one name neither is known.
func (m *Minter) Name(s *Step, call string) {
	if call == "" || len(call) > maxName {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.calls) >= m.o.Names {
		m.metrics.limits.WithLabelValues(limitCalls).Inc()
		return
	}
	s.call = call
	m.calls[call] = append(m.calls[call], s)
}

// Cancel notes that who has made a call, by its name, wants no answer any more. Unless
// one comes all the same, the exchange ends as Cancelled.
func (m *Minter) Cancel(call string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if known := m.calls[call]; len(known) == 1 {
		known[0].cancelled = true
	}
}

// unnameLocked forgets the name of the call of a step.
func (m *Minter) unnameLocked(s *Step) {
	if s.call == "" {
		return
	}
	left := slices.DeleteFunc(m.calls[s.call], func(other *Step) bool { return other == s })
	if m.calls[s.call] = left; len(left) == 0 {
		delete(m.calls, s.call)
	}
}

// End tells how the exchange of a step has ended. Only the first call counts.
func (m *Minter) End(s *Step, o Observed) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !s.ended {
		m.takeLocked(m.endLocked(s, o))
	}
}

// endLocked ends s, and returns what is to be told of that.
func (m *Minter) endLocked(s *Step, o Observed) *entry {
	s.ended = true
	m.open--
	m.unnameLocked(s)
	if s.cancelled && !o.Answered && o.Outcome != Rejected {
		o.Outcome = Cancelled
	}
	e := &entry{step: s, o: o, upstream: s.upstream}
	s.upstream = nil
	m.holdLocked(e)
	return e
}

// Digests reports whether bodies are to be told of.
func (m *Minter) Digests() bool { return m.o.Digests }

// holdLocked has e wait with the bodies that were observed, if there is room for them.
func (m *Minter) holdLocked(e *entry) {
	of := bodies{e.o.Request, e.o.Response}
	e.o.Request, e.o.Response = Body{}, Body{}
	if !m.o.Digests {
		return
	}
	if m.waiting+of.size() > m.o.MaxBodies {
		m.metrics.limits.WithLabelValues(limitBodies).Inc()
		return
	}
	m.waiting += of.size()
	e.bodies = of
}

// Seals reports whether Seal ever returns a receipt.
func (m *Minter) Seals() bool { return m.o.Privacy != Strict }

// Seal signs at once how the exchange of a step has ended, for the answer to bear, and
// returns the receipt and its reference. It is stored with the others, and End adds
// nothing to it. Seal returns nothing, and leaves all to End, under Strict, whose
// receipts are for nobody in particular, where states of the step were told before or
// its parents are for the store to tell, where several receipts of others are to be
// verified, and where there is no room; and nothing where
// nobody can sign now, which is tried again later.
func (m *Minter) Seal(s *Step, o Observed) (ref, jws string) {
	e := m.reserve(s, o)
	if e == nil {
		return "", ""
	}
	defer close(e.seal.tried) // after a fault, too
	r, err := m.sign(e)
	if err != nil {
		return "", ""
	}
	ref = s.prev
	m.mu.Lock()
	e.seal.receipt = r
	m.sealed[s.Workflow]++
	m.mu.Unlock()
	return ref, r.JWS
}

// maxSealedUpstream bounds the receipts of others that somebody waits for to be verified.
const maxSealedUpstream = 1

// reserve ends s, if Seal may, and queues what is to be told of that, which is signed
// while it waits: what is told of the step later comes behind it.
func (m *Minter) reserve(s *Step, o Observed) *entry {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.Seals() || m.stopped || s.ended || s.states > 0 || s.lacks > 0 || bear(s.upstream) > maxSealedUpstream || len(m.queue) == cap(m.queue) {
		return nil
	}
	e := m.endLocked(s, o)
	e.seal = &seal{tried: make(chan struct{})}
	m.queue <- e // nobody else has filled it
	return e
}

// takeLocked takes what is to be told of a step, to everybody that it is to be told
// to. An audience is told neither of receipts of others nor of agent cards: all know
// them by the same name, and would find it again.
func (m *Minter) takeLocked(e *entry) {
	m.queueLocked(e)
	for _, t := range e.step.told {
		m.queueLocked(&entry{step: t, o: e.o, state: e.state, count: e.count})
	}
}

// queueLocked queues e, or drops it.
func (m *Minter) queueLocked(e *entry) {
	if m.stopped {
		m.dropLocked(e, dropStopped)
		return
	}
	select {
	case m.queue <- e:
	default:
		m.dropLocked(e, dropQueueFull)
	}
}

func (m *Minter) dropLocked(e *entry, why dropReason) {
	m.metrics.dropped.WithLabelValues(string(why)).Inc()
	m.releaseLocked(e)
	m.loseLocked(e.step.Workflow)
	m.doneLocked(e)
}

// doneLocked notes that e is stored or lost. The step goes on if e tells of its
// task.
func (m *Minter) doneLocked(e *entry) {
	if e.state != "" {
		return
	}
	w := e.step.Workflow
	if m.pending[w]--; m.pending[w] == 0 {
		delete(m.pending, w)
	}
}

// goesOn says whether a step of a workflow is yet to end, or to be stored.
func (m *Minter) goesOn(workflows ...string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.ContainsFunc(workflows, func(w string) bool { return m.pending[w] > 0 })
}

// maxLost bounds the workflows that the store is still to hear of. Beyond it, all
// that are at work count as those that have lost something.
const maxLost = 10_000

func (m *Minter) loseLocked(workflow string) {
	if len(m.lost) >= maxLost {
		m.lost = map[string]bool{"": true}
	}
	m.lost[workflow] = true
}
