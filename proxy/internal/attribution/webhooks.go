package attribution

import (
	"container/list"
	"slices"
	"sync"
	"time"
)

// Webhooks remembers for which run a peer was asked to post to which place, so
// that a post is known again when it comes: without any connection to the
// request that asked, before that one's answer or hours after.
//
// A post says two things of itself: the secret it bears, and the task in its
// body. Where a secret serves several tasks, the task decides. The methods may
// be called concurrently, and take time that does not grow with what is held.
type Webhooks struct {
	limit int
	ttl   time.Duration

	mu     sync.Mutex
	at     map[string]int        // webhooks at a place
	bearer map[string]*bearing   // by place and secret
	byTask map[string][]*Webhook // by place and task
	order  *list.List            // of *Webhook, longest unused first
	// blindUntil is when the last one that found no place has surely expired.
	blindUntil time.Time
}

// Webhook is one request for posts.
type Webhook struct {
	Place   string   // where posts go, in a form that the request and the post share
	Secrets []string // what a post may bear, hashed; none: it bears nothing
	Run     *Run     // on whose behalf; nil: not known
	Peer    string   // host:port of who was asked, where the host has asked
	Span    Span     // where in its trace it was asked for
	Flags   byte

	// Guarded by Webhooks.mu:
	task string // as far as known
	used time.Time
	node *list.Element // nil: forgotten
}

// bearing is what is known of the posts to a place that bear one secret: a host
// may use the same for all that it asks.
type bearing struct {
	n    int
	sole *Webhook   // stands for all of them; nil: they are of several runs
	open []*Webhook // those whose task is not known
}

// NewWebhooks returns an empty memory of at most limit requests, each forgotten
// when it was not used for ttl.
func NewWebhooks(limit int, ttl time.Duration) *Webhooks {
	return &Webhooks{
		limit: limit, ttl: ttl, order: list.New(),
		at: map[string]int{}, bearer: map[string]*bearing{}, byTask: map[string][]*Webhook{},
	}
}

// Add remembers w, for the task of that id if it is known. It reports false
// when there is no place: then, until w would have expired, posts are known by
// their task alone.
func (h *Webhooks) Add(w *Webhook, task string) bool {
	now := time.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.expireLocked(now)
	if h.order.Len() >= h.limit {
		h.blindUntil = now.Add(h.ttl)
		return false
	}
	w.used, w.node = now, h.order.PushBack(w)
	h.at[w.Place]++
	for _, k := range w.keys() {
		b := h.bearer[k]
		if b == nil {
			b = &bearing{sole: w}
			h.bearer[k] = b
		} else if b.sole != nil && b.sole.Run != w.Run {
			b.sole = nil
		}
		b.n++
		b.open = append(b.open, w)
	}
	h.nameLocked(w, task)
	return true
}

// Name says which task w is for, as the answer has it. It counts more than what
// an early post has led to believe.
func (h *Webhooks) Name(w *Webhook, task string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.nameLocked(w, task)
}

func (h *Webhooks) nameLocked(w *Webhook, task string) {
	if w.node == nil || w.task == task || task == "" {
		return
	}
	if w.task != "" {
		h.unnameLocked(w)
	}
	w.task = task
	for _, k := range w.keys() {
		b := h.bearer[k]
		b.open = without(b.open, w)
	}
	k := pair(w.Place, task)
	h.byTask[k] = append(h.byTask[k], w)
}

// unnameLocked takes w from the webhooks of its task.
func (h *Webhooks) unnameLocked(w *Webhook) {
	k := pair(w.Place, w.task)
	if h.byTask[k] = without(h.byTask[k], w); len(h.byTask[k]) == 0 {
		delete(h.byTask, k)
	}
}

// Remove forgets w: what it asked for was refused.
func (h *Webhooks) Remove(w *Webhook) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.removeLocked(w)
}

// Expects reports whether anybody has asked for posts to place.
func (h *Webhooks) Expects(place string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.at[place] > 0
}

// Len returns how many requests are remembered.
func (h *Webhooks) Len() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.expireLocked(time.Now())
	return h.order.Len()
}

// Find returns the request that a post to place answers, which bears secret and
// is about task; either may be empty. Where strangers may post, what bears no
// secret has to name a task that is known. For a post that answers a request,
// but nobody can tell which, there is a reason; for one that nobody has asked
// for there is neither.
func (h *Webhooks) Find(place, secret, task string, strangers bool) (*Webhook, Reason) {
	now := time.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.expireLocked(now)
	var about []*Webhook
	if task != "" {
		about = h.byTask[pair(place, task)]
	}
	b := h.bearer[pair(place, secret)]
	if b == nil { // a secret that was not given out, unless by the poster's own rules
		if strangers || len(about) == 0 {
			return nil, ""
		}
		return h.agreedLocked(about, now)
	}
	bears := func(w *Webhook) bool { return slices.Contains(w.keys(), pair(place, secret)) }
	switch i := slices.IndexFunc(about, bears); {
	case i >= 0:
		return h.agreedLocked(about, now)
	case len(about) > 0, now.Before(h.blindUntil), strangers && secret == "":
		return nil, ReasonSharedKey
	case task == "" && b.sole != nil:
		return h.agreedLocked([]*Webhook{b.sole}, now)
	case b.sole == nil || len(b.open) == 0:
		// A secret that several runs have given out may have been given out unseen, too.
		return nil, ReasonSharedKey
	}
	// The post is faster than the answer that would have named the task.
	w, why := h.agreedLocked(b.open, now)
	if len(b.open) == 1 && w != nil {
		h.nameLocked(w, task)
	}
	return w, why
}

// agreedLocked returns the newest of found, if all are of one run.
func (h *Webhooks) agreedLocked(found []*Webhook, now time.Time) (*Webhook, Reason) {
	last := found[len(found)-1]
	if last.Run == nil || slices.ContainsFunc(found, func(w *Webhook) bool { return w.Run != last.Run }) {
		return nil, ReasonSharedKey
	}
	last.used = now
	h.order.MoveToBack(last.node)
	return last, ""
}

func (h *Webhooks) expireLocked(now time.Time) {
	for n := h.order.Front(); n != nil; n = h.order.Front() {
		w := n.Value.(*Webhook)
		if now.Sub(w.used) < h.ttl {
			return
		}
		h.removeLocked(w)
	}
}

func (h *Webhooks) removeLocked(w *Webhook) {
	if w.node == nil {
		return
	}
	h.order.Remove(w.node)
	w.node = nil
	if h.at[w.Place]--; h.at[w.Place] == 0 {
		delete(h.at, w.Place)
	}
	for _, k := range w.keys() {
		b := h.bearer[k]
		if b.n--; b.n == 0 {
			delete(h.bearer, k)
			continue
		}
		if b.sole == w {
			b.sole = nil
		}
		b.open = without(b.open, w)
	}
	if w.task != "" {
		h.unnameLocked(w)
	}
}

// keys are where w stands in bearer.
func (w *Webhook) keys() []string {
	if len(w.Secrets) == 0 {
		return []string{pair(w.Place, "")}
	}
	keys := make([]string, 0, 2)
	for _, s := range w.Secrets {
		keys = append(keys, pair(w.Place, s))
	}
	return keys
}

func pair(place, what string) string { return place + "\x00" + what }

// without returns list without w.
func without(list []*Webhook, w *Webhook) []*Webhook {
	if i := slices.Index(list, w); i >= 0 {
		return slices.Delete(list, i, i+1)
	}
	return list
}
