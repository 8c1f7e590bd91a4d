package evidence

import "github.com/prometheus/client_golang/prometheus"

// dropReason says why a receipt was not kept.
type dropReason string

const (
	dropQueueFull  dropReason = "queue_full"  // too many wait already
	dropInvalid    dropReason = "invalid"     // it would not be accepted, so it was not signed
	dropStopped    dropReason = "stopped"     // the exchange ended after the end of Run
	dropStoreError dropReason = "store_error" // the last attempt at the end of Run failed
)

// The bounds that can be hit.
const (
	limitParents  = "parents"  // a step has more than are named
	limitStates   = "states"   // a task has come to more than are told of one step
	limitContexts = "contexts" // the workflow of a conversation was forgotten for another's
	limitTasks    = "tasks"    // the step of a task was forgotten for another's
	limitUpstream = "upstream" // of a receipt of another the reference alone was kept
	limitCards    = "cards"    // the card of an agent was forgotten for another's
	limitRuns     = "runs"     // a run that was resumed was forgotten for another, and is looked up anew
	limitBodies   = "bodies"   // a digest is missing, for too many bodies waited
	limitCalls    = "calls"    // too many go on for one to be known by its name
)

type metrics struct {
	receipts prometheus.Counter
	dropped  *prometheus.CounterVec // reason
	limits   *prometheus.CounterVec // limit
	upstream *prometheus.CounterVec // verdict
}

func newMetrics(reg prometheus.Registerer, queued func() int) metrics {
	m := metrics{
		receipts: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "wopproxy_evidence_receipts_total", Help: "Receipts that were signed and stored.",
		}),
		dropped: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "wopproxy_evidence_dropped_total", Help: "Receipts that were not stored; their workflow gets no summary.",
		}, []string{"reason"}),
		limits: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "wopproxy_evidence_limit_hits_total", Help: "Bounds on what receipts tell that were reached.",
		}, []string{"limit"}),
		upstream: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "wopproxy_evidence_upstream_total", Help: "Receipts of others that were on answers.",
		}, []string{"verdict"}),
	}
	for _, r := range []dropReason{dropQueueFull, dropInvalid, dropStopped, dropStoreError} {
		m.dropped.WithLabelValues(string(r))
	}
	for _, l := range []string{limitParents, limitStates, limitContexts, limitTasks, limitUpstream, limitCards, limitCalls, limitRuns, limitBodies} {
		m.limits.WithLabelValues(l)
	}
	for _, v := range []verdict{verdictVerified, verdictUnknown, verdictReference, verdictRefused} {
		m.upstream.WithLabelValues(string(v))
	}
	if reg != nil {
		reg.MustRegister(m.receipts, m.dropped, m.limits, m.upstream, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "wopproxy_evidence_queue_length", Help: "Receipts that wait to be signed and stored.",
		}, func() float64 { return float64(queued()) }))
	}
	return m
}
