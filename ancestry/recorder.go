package ancestry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// lateCommit is how long a commit takes at a disk that is not well.
const lateCommit = time.Second

// Back-off between attempts at a store that fails.
const (
	minBackoff = 50 * time.Millisecond
	maxBackoff = 5 * time.Second
)

// RecorderOptions configures a Recorder.
type RecorderOptions struct {
	Queue      int                   // links that may wait to be stored; default 8192
	Registerer prometheus.Registerer // default: metrics are not exposed
	Logger     *slog.Logger          // default: discard
}

// Recorder stores links in groups: all that arrive while one group is being
// committed make up the next. Record never blocks, and what it accepts can be
// read from the Recorder at once and is stored before Run returns, unless the
// store fails to the end.
type Recorder struct {
	store Store
	queue int
	log   *slog.Logger
	m     recorderMetrics
	wake  chan struct{} // holds a token when pending may have links

	mu       sync.Mutex
	pending  *batch    // takes new links; only grows
	storing  *batch    // with the store; never nil, empty when there is none
	began    time.Time // when storing was taken
	late     bool      // the last commit took longer than lateCommit
	stopped  bool      // Run has been told to stop: nothing is accepted any more
	degraded bool
}

// batch is a group of links that share one commit. links is guarded by the
// Recorder until the batch is being stored, and err by done.
type batch struct {
	links []Link
	done  chan struct{}
	err   error
}

func newBatch() *batch { return &batch{done: make(chan struct{})} }

// Commit is the fate of one recorded link.
type Commit struct{ b *batch }

// Done is closed when the link is durable, or never will be.
func (c Commit) Done() <-chan struct{} { return c.b.done }

// Err returns why the link was not stored. It is valid once Done is closed.
func (c Commit) Err() error { return c.b.err }

// Wait returns Err as soon as Done is closed, or the error of ctx if that ends
// first; the link may still become durable then.
func (c Commit) Wait(ctx context.Context) error {
	select {
	case <-c.b.done:
		return c.b.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// NewRecorder returns a Recorder in front of store, which stays the caller's to
// close. Nothing is stored until Run is called.
func NewRecorder(store Store, o RecorderOptions) *Recorder {
	r := &Recorder{
		store:   store,
		queue:   cmp.Or(o.Queue, 8192),
		log:     cmp.Or(o.Logger, slog.New(slog.DiscardHandler)),
		wake:    make(chan struct{}, 1),
		pending: newBatch(),
		storing: newBatch(),
	}
	r.m = newRecorderMetrics(o.Registerer, r)
	return r
}

// Record accepts a link for storage and returns at once. The link's ancestors
// must not be changed afterwards. A link that is invalid, or for which the
// queue has no room, is dropped and counted: its Commit is done, with an error.
func (r *Recorder) Record(l Link) Commit {
	if err := l.Validate(); err != nil {
		return r.drop(dropInvalid, fmt.Errorf("record run %.40q: %w", l.Run, err))
	}
	r.mu.Lock()
	if r.stopped {
		r.mu.Unlock()
		return r.drop(dropStopped, errors.New("recorder has stopped"))
	}
	if r.queuedLocked() >= r.queue {
		r.degraded = true
		r.mu.Unlock()
		return r.drop(dropQueueFull, errors.New("queue is full"))
	}
	b := r.pending
	b.links = append(b.links, l)
	r.mu.Unlock()
	select {
	case r.wake <- struct{}{}:
	default: // Run has not yet answered the call before
	}
	return Commit{b}
}

// drop counts one link that will not be stored.
func (r *Recorder) drop(reason dropReason, err error) Commit {
	r.m.dropped.WithLabelValues(string(reason)).Inc()
	b := newBatch()
	b.err = err
	close(b.done)
	return Commit{b}
}

func (r *Recorder) queued() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.queuedLocked()
}

func (r *Recorder) queuedLocked() int { return len(r.pending.links) + len(r.storing.links) }

// Degraded reports whether links are being lost or late: from the first that
// was dropped, or the first commit that failed, until a commit succeeds and
// leaves less than half the queue in use; and while links wait for a disk that
// takes longer than a second.
func (r *Recorder) Degraded() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	storing := len(r.storing.links) > 0
	return r.degraded || storing && (r.late || time.Since(r.began) > lateCommit)
}

// Run stores links until ctx ends. Then it accepts no more, tries once to store
// each group that is left, and returns. Until ctx ends a group that the store
// refuses is tried again, less and less often: links that arrive meanwhile wait
// in the queue as long as it has room. Run must be called once.
func (r *Recorder) Run(ctx context.Context) {
	for ctx.Err() == nil {
		select {
		case <-r.wake:
		case <-ctx.Done():
		}
		r.commitAll(ctx)
	}
	r.mu.Lock()
	r.stopped = true
	r.mu.Unlock()
	r.commitAll(ctx)
}

// commitAll stores groups until nothing is pending.
func (r *Recorder) commitAll(ctx context.Context) {
	for {
		// Whoever is about to record a link does so first, and shares the sync: of 64
		// connections with one processor 25 links then share one that 2.5 shared
		// before, and an exchange costs a fifth less.
		runtime.Gosched()
		b := r.take()
		if b == nil {
			return
		}
		r.commit(ctx, b)
	}
}

// take moves the pending links to storage, or returns nil when there are none.
func (r *Recorder) take() *batch {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.pending.links) == 0 {
		return nil
	}
	r.storing, r.pending, r.began = r.pending, newBatch(), time.Now()
	return r.storing
}

// commit stores b, or gives up when an attempt fails after ctx has ended.
func (r *Recorder) commit(ctx context.Context, b *batch) {
	for wait := minBackoff; ; wait = min(2*wait, maxBackoff) {
		last := ctx.Err() != nil
		start := time.Now()
		// An orderly stop must not tear a commit: it is what the stop waits for.
		err := r.store.Record(context.WithoutCancel(ctx), b.links)
		r.m.observe(len(b.links), time.Since(start), err)
		if err == nil || last {
			r.finish(b, time.Since(start), err)
			return
		}
		r.setDegraded()
		r.log.WarnContext(ctx, "store links failed", "links", len(b.links), "retry", wait.String(), "err", err)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
	}
}

// finish tells everyone who waits for b how it ended.
func (r *Recorder) finish(b *batch, took time.Duration, err error) {
	n := len(b.links)
	r.mu.Lock()
	r.late = took > lateCommit
	r.storing = newBatch()
	r.degraded = err != nil || r.degraded && r.queuedLocked() >= (r.queue+1)/2
	r.mu.Unlock()
	if err != nil {
		r.m.dropped.WithLabelValues(string(dropStoreError)).Add(float64(n))
		r.log.Error("links lost", "links", n, "err", err)
	}
	b.err = err
	close(b.done)
}

func (r *Recorder) setDegraded() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.degraded = true
}

// dropReason says why a link was not stored.
type dropReason string

const (
	dropInvalid    dropReason = "invalid"     // Link.Validate refuses it
	dropQueueFull  dropReason = "queue_full"  // too many wait already
	dropStopped    dropReason = "stopped"     // recorded after the end of Run
	dropStoreError dropReason = "store_error" // the last attempt at the end of Run failed
)

type recorderMetrics struct {
	links   prometheus.Counter
	commits *prometheus.CounterVec
	seconds prometheus.Histogram
	dropped *prometheus.CounterVec
}

func newRecorderMetrics(reg prometheus.Registerer, r *Recorder) recorderMetrics {
	m := recorderMetrics{
		links: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "wopproxy_store_links_total", Help: "Links made durable.",
		}),
		commits: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "wopproxy_store_commits_total", Help: "Attempts to commit a group of links.",
		}, []string{"outcome"}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "wopproxy_store_commit_seconds", Help: "Time to commit a group of links.",
			Buckets: prometheus.ExponentialBuckets(0.00025, 2, 16), // to 8 s
		}),
		dropped: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "wopproxy_store_dropped_total", Help: "Links that were not stored.",
		}, []string{"reason"}),
	}
	for _, outcome := range []string{"ok", "error"} {
		m.commits.WithLabelValues(outcome)
	}
	for _, reason := range []dropReason{dropInvalid, dropQueueFull, dropStopped, dropStoreError} {
		m.dropped.WithLabelValues(string(reason))
	}
	if reg != nil {
		reg.MustRegister(m.links, m.commits, m.seconds, m.dropped,
			prometheus.NewGaugeFunc(prometheus.GaugeOpts{
				Name: "wopproxy_store_queue_length", Help: "Links that wait to be stored.",
			}, func() float64 { return float64(r.queued()) }),
			prometheus.NewGaugeFunc(prometheus.GaugeOpts{
				Name: "wopproxy_store_degraded", Help: "1 while links are being lost or late.",
			}, func() float64 {
				if r.Degraded() {
					return 1
				}
				return 0
			}))
	}
	return m
}

func (m recorderMetrics) observe(links int, took time.Duration, err error) {
	m.seconds.Observe(took.Seconds())
	if err != nil {
		m.commits.WithLabelValues("error").Inc()
		return
	}
	m.commits.WithLabelValues("ok").Inc()
	m.links.Add(float64(links))
}
