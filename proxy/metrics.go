package proxy

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/wopproxy/wopproxy/ancestry"
	"github.com/wopproxy/wopproxy/audit"
	"github.com/wopproxy/wopproxy/proxy/internal/attribution"
	"github.com/wopproxy/wopproxy/proxy/internal/wire"
)

// direction is the way an exchange passes the proxy.
type direction string

const (
	ingress direction = "ingress" // into the host
	egress  direction = "egress"  // out of the host
)

// Limits that the data path can hit; the label of wopproxy_limit_hits_total.
const (
	limitBody       = "inspected-body"   // a body passed unread because of its size
	limitBodies     = "inspected-bodies" // a body passed unread because others held all the memory
	limitSlowBody   = "body-patience"    // a body passed unread because it came too slowly
	limitEvent      = "inspected-event"  // an SSE event passed unread
	limitAnswer     = "inspected-answer"
	limitRuns       = "live-runs"
	limitBindings   = "bindings"
	limitWebhooks   = "webhooks"
	limitScan       = "process-scan" // the process table could not be read in time
	limitEchoes     = "echoed-ids"   // a body had more ids than are looked at
	limitEndpoints  = "endpoints"    // what is spoken there is not remembered
	limitTasks      = "tasks"        // one was forgotten for another
	limitTunnels    = "tunnels"
	limitConns      = "connections"  // one without a request was closed for another
	limitDial       = "dial-timeout" // a destination took no connection in time
	limitDepth      = "max-depth"
	limitWatched    = "watched-runs"  // the longest quiet run is no longer checked
	limitFollowed   = "followed-runs" // nobody reads the log of a run for us
	limitToolCalls  = "tool-calls"    // a run has too many open for their events to be known
	limitOrigins    = "origins"       // of a run's events that may have caused messages the oldest is forgotten
	limitMemory     = "memory"        // what wrote an entry first is forgotten
	limitNodes      = "nodes"         // a run has too many for those that begin runs to be known
	limitHandoffs   = "handoffs"      // one that was open was forgotten for another
	limitHandoffTTL = "handoff-ttl"   // one that was open was not heard of for so long
	limitLookUp     = "look-up"       // name servers had taken too long over the names of a tunnel for another one
	limitVisits     = "max-visits-per-host"
	limitLine       = "stdio-line" // a line of a stdio server or its client passed unread
)

// operationBuckets are those the OpenTelemetry conventions for MCP prescribe.
var operationBuckets = []float64{0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300}

// metrics are the proxy's instruments. Every label takes its values from a
// closed set; no run, trace, host or tool is ever a label.
type metrics struct {
	exchanges   *prometheus.CounterVec   // direction, protocol, outcome
	overhead    *prometheus.HistogramVec // direction
	stamps      *prometheus.CounterVec   // direction, protocol, outcome
	refusals    *prometheus.CounterVec   // direction, reason
	contexts    *prometheus.CounterVec   // direction, carrier, outcome
	ancestry    *prometheus.CounterVec   // direction, outcome
	links       *prometheus.CounterVec   // evidence
	abstentions *prometheus.CounterVec   // reason
	webhooks    *prometheus.CounterVec   // direction, outcome
	conflicts   *prometheus.CounterVec   // direction
	disputes    prometheus.Counter
	ambiguous   prometheus.Counter
	commits     *prometheus.CounterVec // outcome
	commitWait  prometheus.Histogram
	limits      *prometheus.CounterVec // limit
	tunnels     *prometheus.CounterVec // kind
	redirects   *prometheus.CounterVec // direction, outcome
	handshakes  *prometheus.CounterVec // outcome
	cards       *prometheus.CounterVec // outcome
	discoveries *prometheus.CounterVec // outcome
	annotations *prometheus.CounterVec // outcome
	unreads     *prometheus.CounterVec // document, reason
	attached    *prometheus.CounterVec // carrier
	unattached  *prometheus.CounterVec // reason
	subRuns     *prometheus.CounterVec // outcome
	panics      prometheus.Counter
	findings    *prometheus.CounterVec // rule
	follows     *prometheus.CounterVec // outcome
	withheld    prometheus.Counter
	handoffs    *prometheus.CounterVec // protocol, state
	mcpServer   *prometheus.HistogramVec
	mcpClient   *prometheus.HistogramVec
	rpcServer   *prometheus.HistogramVec
	rpcClient   *prometheus.HistogramVec
}

// holdings are what the proxy has in memory now.
type holdings struct{ runs, bindings, webhooks, tunnels, handoffs, followed int }

func newMetrics(reg prometheus.Registerer, live func() holdings) *metrics {
	if reg == nil {
		reg = prometheus.NewRegistry() // nobody scrapes it
	}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
		reg.MustRegister(c)
		return c
	}
	operations := func(name, help string, labels ...string) *prometheus.HistogramVec {
		h := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: operationBuckets}, labels)
		reg.MustRegister(h)
		return h
	}
	m := &metrics{
		exchanges: counter("wopproxy_exchanges_total", "Requests that passed, by how they ended.", "direction", "protocol", "outcome"),
		overhead: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "wopproxy_overhead_seconds", Help: "Time from a request's last byte read to its forwarding.",
			Buckets: []float64{10e-6, 25e-6, 50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 5e-3, 25e-3, 100e-3, 1},
		}, []string{"direction"}),
		stamps:      counter("wopproxy_stamps_total", "Messages that context was written into, and where.", "direction", "protocol", "carrier"),
		refusals:    counter("wopproxy_stamp_refusals_total", "Messages whose body was left as it was, and why.", "direction", "reason"),
		contexts:    counter("wopproxy_contexts_total", "Trace contexts found in messages, by carrier.", "direction", "carrier", "outcome"),
		ancestry:    counter("wopproxy_ancestry_headers_total", "Run-Ancestry received with what starts a run, and what became of it.", "outcome"),
		links:       counter("wopproxy_attributions_total", "Outbound messages attributed to a run, by evidence.", "evidence"),
		abstentions: counter("wopproxy_abstentions_total", "Outbound messages attributed to no run, by reason.", "reason"),
		webhooks:    counter("wopproxy_webhooks_total", "Requests that ask for A2A webhooks, and posts to where they asked, by what was made of them.", "direction", "outcome"),
		findings:    counter("wopproxy_execution_findings_total", "Breaches of the execution model that the host's event logs have shown, by rule.", "rule"),
		follows:     counter("wopproxy_follows_total", "Requests of wopproxy's own for the event logs of the host's runs, by how they ended.", "outcome"),
		withheld:    prometheus.NewCounter(prometheus.CounterOpts{Name: "wopproxy_withheld_calls_total", Help: "Calls that were refused because the decision behind them is not escalated."}),
		handoffs:    counter("wopproxy_handoffs_total", "Calls by which runs have other hosts do something, by the states that they have come to.", "protocol", "state"),
		commits:     counter("wopproxy_commit_waits_total", "Answers that waited for their link, by how the wait ended.", "outcome"),
		limits:      counter("wopproxy_limit_hits_total", "Bounds that were reached.", "limit"),
		tunnels:     counter("wopproxy_tunnels_total", "Tunnels, by CONNECT and of redirected connections, by what was found inside.", "kind"),
		redirects:   counter("wopproxy_redirected_connections_total", "Connections to the listeners of transparent mode, by what became of them.", "direction", "outcome"),
		handshakes:  counter("wopproxy_interceptions_total", "TLS connections of the host that were to be intercepted.", "outcome"),
		discoveries: counter("wopproxy_discovery_documents_total", "OpenWOP discovery documents of the host that were asked for, by what they were made to say.", "outcome"),
		annotations: counter("wopproxy_causation_annotations_total", "Events that an event on another host is known to have caused, by what became of payload.causationHostId; and what could not be read to tell.", "outcome"),
		unreads:     counter("wopproxy_unread_documents_total", "Documents and events of the host that would have been edited and passed as they were, for a fault in their form.", "document", "reason"),
		attached:    counter("wopproxy_receipts_attached_total", "Answers of the host that bear the receipt of their exchange, by where they do.", "carrier"),
		unattached:  counter("wopproxy_receipts_unattached_total", "Answers of the host that were to bear the receipt of their exchange and do not, by reason.", "reason"),
		subRuns:     counter("wopproxy_sub_runs_total", "Runs that the host's event logs name as begun by another run inside the host, each time they do, by what was made of it.", "outcome"),
		cards:       counter("wopproxy_agent_cards_total", "Agent cards of the host that were asked for, by what became of the host's own address in them.", "outcome"),
		mcpServer:   operations("mcp_server_operation_duration_seconds", "MCP requests and notifications received by the host.", "mcp_method_name", "error_type", "rpc_response_status_code"),
		mcpClient:   operations("mcp_client_operation_duration_seconds", "MCP requests and notifications sent by the host.", "mcp_method_name", "error_type", "rpc_response_status_code"),
		rpcServer:   operations("rpc_server_call_duration_seconds", "A2A calls received by the host.", "rpc_system_name", "rpc_method", "error_type", "rpc_response_status_code"),
		rpcClient:   operations("rpc_client_call_duration_seconds", "A2A calls sent by the host.", "rpc_system_name", "rpc_method", "error_type", "rpc_response_status_code"),
		conflicts:   counter("wopproxy_context_conflicts_total", "Contexts that came along with another one and name another trace.", "direction"),
		disputes:    prometheus.NewCounter(prometheus.CounterOpts{Name: "wopproxy_attribution_conflicts_total", Help: "Outbound messages for which two rungs of the ladder named different runs."}),
		ambiguous:   prometheus.NewCounter(prometheus.CounterOpts{Name: "wopproxy_ambiguous_runs_total", Help: "Runs that could not take the id their host gave them: it names an earlier run, or a replay of one that was not seen."}),
		commitWait: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "wopproxy_commit_wait_seconds", Help: "Time an answer waited for its link to be durable.",
			Buckets: []float64{100e-6, 500e-6, 1e-3, 2e-3, 5e-3, 10e-3, 25e-3, 50e-3, 100e-3, 250e-3, 1},
		}),
		panics: prometheus.NewCounter(prometheus.CounterOpts{Name: "wopproxy_codec_panics_total", Help: "Faults of ours that were contained; the traffic passed unchanged."}),
	}
	gauge := func(name, help string, value func() int) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 { return float64(value()) })
	}
	reg.MustRegister(m.withheld, m.overhead, m.disputes, m.ambiguous, m.commitWait, m.panics,
		gauge("wopproxy_live_runs", "Runs that are live on this host.", func() int { return live().runs }),
		gauge("wopproxy_bindings", "Conversation ids bound to live runs.", func() int { return live().bindings }),
		gauge("wopproxy_webhooks", "Requests for A2A webhooks that are remembered.", func() int { return live().webhooks }),
		gauge("wopproxy_tunnels", "Tunnels that are open, by CONNECT and of redirected connections.", func() int { return live().tunnels }),
		gauge("wopproxy_handoffs_open", "Calls of runs to other hosts of which more may be seen.", func() int { return live().handoffs }),
		gauge("wopproxy_followed_runs", "Runs whose event logs wopproxy reads itself.", func() int { return live().followed }))
	m.resolve()
	return m
}

// resolve makes every series with a closed set of labels appear from the start,
// so that a rate over it never misses the first count.
func (m *metrics) resolve() {
	for _, d := range []direction{ingress, egress} {
		for _, r := range wire.Refusals() {
			m.refusals.WithLabelValues(string(d), string(r))
		}
		for _, o := range []redirectOutcome{redirectTaken, redirectDirect, redirectLoop, redirectRefused, redirectUnreachable} {
			m.redirects.WithLabelValues(string(d), string(o))
		}
		for _, o := range []webhookOutcome{webhookAsked, webhookKnown, webhookAmbiguous} {
			m.webhooks.WithLabelValues(string(d), string(o))
		}
	}
	for _, r := range attribution.Reasons() {
		m.abstentions.WithLabelValues(string(r))
	}
	for _, e := range []ancestry.Evidence{
		ancestry.EvidenceRunID, ancestry.EvidenceTraceState, ancestry.EvidenceTraceID, ancestry.EvidenceProxyCredential,
		ancestry.EvidenceBasePath, ancestry.EvidenceProcess, ancestry.EvidenceConversation, ancestry.EvidenceEchoedID, ancestry.EvidenceSingleFlight,
	} {
		m.links.WithLabelValues(string(e))
	}
	for _, r := range audit.Rules() {
		m.findings.WithLabelValues(string(r))
	}
	for _, p := range []wire.Protocol{wire.MCP, wire.A2A} {
		for _, s := range ancestry.HandoffStates() {
			m.handoffs.WithLabelValues(p.String(), string(s))
		}
	}
	for _, o := range followOutcomes() {
		m.follows.WithLabelValues(string(o))
	}
	for _, o := range []commitOutcome{commitDurable, commitTimeout, commitLost} {
		m.commits.WithLabelValues(string(o))
	}
	for _, l := range []string{
		limitBody, limitBodies, limitDial, limitSlowBody, limitEvent, limitAnswer, limitRuns, limitBindings, limitWebhooks, limitTasks,
		limitScan, limitEchoes, limitEndpoints, limitTunnels, limitConns, limitDepth, limitVisits, limitLine, limitWatched, limitFollowed,
		limitToolCalls, limitOrigins, limitMemory, limitNodes, limitHandoffs, limitHandoffTTL, limitLookUp,
	} {
		m.limits.WithLabelValues(l)
	}
	for _, o := range []handshakeOutcome{handshakeIntercepted, handshakeRefused, handshakeFailed} {
		m.handshakes.WithLabelValues(string(o))
	}
	for _, o := range append(wire.DiscoveryOutcomes(), discoveryProvided) {
		m.discoveries.WithLabelValues(string(o))
	}
	for _, o := range wire.CausationOutcomes() {
		m.annotations.WithLabelValues(string(o))
	}
	for _, d := range []string{documentCard, documentDiscovery, documentEvents, documentRun, documentAnswer} {
		for _, r := range wire.DocumentRefusals() {
			m.unreads.WithLabelValues(d, string(r))
		}
	}
	for _, c := range []receiptCarrier{carrierMCP, carrierA2A, carrierHeader, carrierGRPC} {
		m.attached.WithLabelValues(string(c))
	}
	for _, r := range []unattached{
		unattachedNoAnswer, unattachedUnasked, unattachedCarried, unattachedError, unattachedStream,
		unattachedNoPlace, unattachedUnread, unattachedUnsigned, unattachedTooLong,
	} {
		m.unattached.WithLabelValues(string(r))
	}
	for _, o := range subRunOutcomes {
		m.subRuns.WithLabelValues(string(o))
	}
	for _, o := range wire.CardOutcomes() {
		m.cards.WithLabelValues(string(o))
	}
	for _, k := range []tunnelKind{tunnelTLS, tunnelHTTP1, tunnelH2C, tunnelOther} {
		m.tunnels.WithLabelValues(string(k))
	}
}

// commitOutcome says how the wait for a durable link ended.
type commitOutcome string

const (
	commitDurable commitOutcome = "durable"
	commitTimeout commitOutcome = "timeout" // the answer went first
	commitLost    commitOutcome = "lost"    // the link was not stored
)

// limit counts a bound that was reached.
func (m *metrics) limit(name string) { m.limits.WithLabelValues(name).Inc() }

// refused counts a message whose body was left as it was.
func (m *metrics) refused(d direction, r wire.Refusal) {
	m.refusals.WithLabelValues(string(d), string(r)).Inc()
}

// discoveryProvided is the outcome where the host has no document.
const discoveryProvided wire.DiscoveryOutcome = "provided"

// discovery counts a discovery document; what turned out to be none does not
// count.
func (m *metrics) discovery(o wire.DiscoveryOutcome, why wire.Refusal) {
	if o != wire.DiscoveryNone {
		m.discoveries.WithLabelValues(string(o)).Inc()
	}
	if o == wire.DiscoveryRefused {
		m.unread(documentDiscovery, why)
	}
}

// card counts an agent card; what turned out to be none does not count.
func (m *metrics) card(o wire.CardOutcome, why wire.Refusal) {
	if o != wire.CardNone {
		m.cards.WithLabelValues(string(o)).Inc()
	}
	if o == wire.CardRefused {
		m.unread(documentCard, why)
	}
}

// The documents of the host that are edited.
const (
	documentCard      = "card"
	documentDiscovery = "discovery"
	documentEvents    = "events" // or one event of a stream
	documentRun       = "run"    // the answer to who has created one
	documentAnswer    = "answer" // to what was signed
)

// unread counts a document that passes as it is, for a fault in its form.
func (m *metrics) unread(document string, why wire.Refusal) {
	m.unreads.WithLabelValues(document, string(why)).Inc()
}

// stamped counts a message that context was written into.
func (m *metrics) stamped(d direction, protocol, carrier string) {
	m.stamps.WithLabelValues(string(d), protocol, carrier).Inc()
}

// handoff counts a state that a handoff has come to.
func (m *metrics) handoff(h *ancestry.Tracked, s ancestry.HandoffState) {
	m.handoffs.WithLabelValues(h.Protocol(), string(s)).Inc()
}

// webhook counts a request that asks for webhooks, or a post that came of it.
func (m *metrics) webhook(d direction, o webhookOutcome) {
	m.webhooks.WithLabelValues(string(d), string(o)).Inc()
}

// conflicting counts contexts of one message that belong to another trace than
// the one that was taken.
func (m *metrics) conflicting(d direction, n int) {
	m.conflicts.WithLabelValues(string(d)).Add(float64(n))
}

// committed counts one wait.
func (m *metrics) committed(o commitOutcome, since time.Time) {
	m.commits.WithLabelValues(string(o)).Inc()
	m.commitWait.Observe(time.Since(since).Seconds())
}
