package ancestry

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// Reader is what the read API asks of a store. A Store is one, and so is a
// Recorder, which also knows what is not yet durable.
type Reader interface {
	Lookup(ctx context.Context, id RunID) (Link, error)
	Children(ctx context.Context, id RunID, after string, limit int) (links []Link, next string, err error)
	Trace(ctx context.Context, id TraceID, limit int) ([]Link, error)
}

// AuthMode says who may read the ancestry of a run.
type AuthMode string

const (
	// AuthNone answers everybody: for listeners that only trusted callers reach.
	AuthNone AuthMode = "none"
	// AuthBearer answers those who send the configured token.
	AuthBearer AuthMode = "bearer"
	// AuthHost answers those whom the host lets read the run itself, and those who
	// send the configured token, if there is one: it is the only way to read runs
	// that the host can't be asked for.
	AuthHost AuthMode = "host"
)

// APIOptions configures an API. Reader, HostID and Auth are required, and so
// are Bearer in mode bearer and Upstream in mode host. In every mode Upstream is
// asked for its own answer where no parent is known here, unless Bearer has opened
// the run.
type APIOptions struct {
	Reader Reader
	HostID string // the hostId that discovery advertises, exactly
	Auth   AuthMode

	// Bearer returns the token that opens the API, and is asked for each
	// request so that a rotated secret takes effect at once. An empty token
	// opens nothing.
	Bearer func() string

	Upstream    *url.URL          // the host itself, as ingress reaches it
	RewriteHost bool              // send Upstream's own Host, as ingress then does; default: the caller's
	Transport   http.RoundTripper // to Upstream; default: direct, no proxy from the environment
	Credentials []string          // headers the host knows its callers by; default Authorization and Cookie

	// Versions are the OpenWOP versions that the host serves, as its discovery
	// lists them; default 1.0 and 2.0. Without a 1.x the paths under /v1/ are
	// the host's business, and a bare id on the others is an error.
	Versions []string

	// Endpoint says whether the protocol's own path of a major is this API's to
	// answer on; default: EndpointServed. It is asked for each request to one, and
	// returns in bounded time.
	Endpoint func(ctx context.Context, v1 bool) Endpoint

	// Findings returns what is held against a run, under any of its ids, and
	// whether the run is watched at all; default: none is.
	Findings func(ids ...RunID) (findings any, watched bool)

	// Handoffs returns the calls by which a run, under any of its ids, has other
	// hosts do something, oldest first; default: none are known.
	Handoffs func(ids ...RunID) []Handoff

	// Evidence answers for a run with what was signed of it, or ErrNotFound; default:
	// nothing is signed.
	Evidence func(context.Context, EvidenceQuery) (any, error)

	Live       func() []LiveRun      // the runs that are live now; default: none
	Registerer prometheus.Registerer // default: metrics are not exposed
	Logger     *slog.Logger          // default: discard
}

// Endpoint is what a host's callers are told of OpenWOP's ancestry endpoint. A host
// that has a discovery document and does not advertise the endpoint there has to
// answer 404 on its path.
type Endpoint int

// What callers may be told.
const (
	EndpointServed  Endpoint = iota // it is advertised, or no document binds the host
	EndpointAbsent                  // the document does not advertise it
	EndpointForeign                 // the host itself advertises it, under another hostId than ours
	EndpointUnknown                 // there is no telling now
)

// API answers who caused a run, to those who may read that run.
//
// On an error it says no more than its caller may know: a run that does not
// exist and a run that the caller may not see get the same answer.
type API struct {
	o        APIOptions
	host     *hostAuth   // in mode host
	upstream *hostClient // whose own answer is asked for where we know no parent; nil: nobody's
	v1, v2   string      // the version served of each major, or empty
	requests *prometheus.CounterVec
	natives  *prometheus.CounterVec
	foreign  sync.Once // the warning of a host under another name
}

// NewAPI checks o and returns an API. It opens nothing and starts nothing.
func NewAPI(o APIOptions) (*API, error) {
	if o.Reader == nil || o.HostID == "" {
		return nil, errors.New("ancestry API: Reader and HostID are required")
	}
	if len(o.Versions) == 0 {
		o.Versions = []string{"1.0", "2.0"}
	}
	if o.Endpoint == nil {
		o.Endpoint = func(context.Context, bool) Endpoint { return EndpointServed }
	}
	if o.Findings == nil {
		o.Findings = func(...RunID) (any, bool) { return nil, false }
	}
	if o.Handoffs == nil {
		o.Handoffs = func(...RunID) []Handoff { return nil }
	}
	if o.Live == nil {
		o.Live = func() []LiveRun { return nil }
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Registerer == nil {
		o.Registerer = prometheus.NewRegistry()
	}
	a := &API{o: o}
	if o.Upstream != nil && o.Upstream.Host != "" {
		c := newHostClient(o)
		a.upstream = &c
	}
	for _, v := range o.Versions {
		switch major(v) {
		case 1:
			a.v1 = v
		case 2:
			a.v2 = v
		default:
			return nil, fmt.Errorf("ancestry API: version %q: want 1.x or 2.x", v)
		}
	}
	switch o.Auth {
	case AuthNone:
	case AuthBearer:
		if o.Bearer == nil {
			return nil, errors.New("ancestry API: auth mode bearer needs a token")
		}
	case AuthHost:
		var err error
		if a.host, err = newHostAuth(o); err != nil {
			return nil, err
		}
	default:
		return nil, fmt.Errorf("ancestry API: unknown auth mode %q", o.Auth)
	}
	a.requests = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "wopproxy_ancestry_requests_total",
		Help: "Requests for the ancestry of a run, by the status of the answer.",
	}, []string{"status"})
	a.natives = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "wopproxy_ancestry_native_total",
		Help: "Answers of a host that keeps ancestry itself, by what became of them.",
	}, []string{"outcome"})
	for _, outcome := range []nativeOutcome{nativeUsed, nativeInvalid, nativeForeign} {
		a.natives.WithLabelValues(string(outcome))
	}
	for _, c := range []prometheus.Collector{a.requests, a.natives} {
		if err := o.Registerer.Register(c); err != nil {
			return nil, fmt.Errorf("ancestry API: %w", err)
		}
	}
	return a, nil
}

// Wrap returns a handler that answers GET and HEAD on
//
//	/v1/runs/{runId}/ancestry
//	/runs/{runId}/ancestry
//
// where APIOptions.Endpoint lets it, always on
//
//	/v1/host/wopproxy/runs/{runId}/ancestry
//	/host/wopproxy/runs/{runId}/ancestry
//
// and hands every other request to next as it came. Paths are compared as they
// were sent, neither decoded nor cleaned, because a tenant-bound id may hold a
// %2F that is not a separator.
//
// All answer with OpenWOP's closed shape, {runId, hostId, parent}. The first two
// are the protocol's. Their response header OpenWOP-Version names the contract that
// the answer satisfies: on the unversioned path that is 2.x if it was asked for, or
// preferred, and each id in the body is tenant bound as 2.x requires, and 1.x
// otherwise: an id such as run_1 has no 2.x representation. The others are a
// vendor's mount (RFC 0181), which has no version and takes no part in choosing
// one.
func (a *API) Wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// The decoded path is at hand and costs nothing; EscapedPath may allocate.
		if !strings.HasSuffix(r.URL.Path, pathSuffix) || r.Method != http.MethodGet && r.Method != http.MethodHead {
			next.ServeHTTP(w, r)
			return
		}
		q, ok := ancestryPath(r.URL.EscapedPath())
		if !ok || q.underV1 && a.v1 == "" && !q.mounted {
			next.ServeHTTP(w, r)
			return
		}
		if !q.mounted {
			if q.endpoint = a.o.Endpoint(r.Context(), q.underV1); q.endpoint == EndpointForeign {
				next.ServeHTTP(w, r)
				return
			}
		}
		a.serve(w, r, &q)
	})
}

// serve answers one question.
func (a *API) serve(w http.ResponseWriter, r *http.Request, q *question) {
	body, err := a.answer(r, q)
	if theirs, version := a.native(r, q, body, err); theirs != nil {
		if version != "" && !q.mounted {
			w.Header().Set(versionHeader, version)
		}
		writeBody(w, http.StatusOK, theirs)
		a.requests.WithLabelValues("200").Inc()
		return
	}
	if err != nil {
		version := q.version
		if q.mounted {
			version = ""
		}
		a.requests.WithLabelValues(strconv.Itoa(a.fail(w, r, version, err))).Inc()
		return
	}
	if major(q.version) == 2 && !body.tenantBound() {
		q.version = cmp.Or(a.v1, "1.0")
	}
	if !q.underV1 && !q.mounted {
		w.Header().Set(versionHeader, q.version)
	}
	writeJSON(w, http.StatusOK, body)
	a.requests.WithLabelValues("200").Inc()
}

// answer decides in an order that tells strangers nothing: the contract, then
// who is asking, then whether the run exists. It fills in q.
func (a *API) answer(r *http.Request, q *question) (ancestryBody, error) {
	if err := a.negotiate(r.Header.Values(versionHeader), q); err != nil {
		return ancestryBody{}, err
	}
	if a.o.Auth == AuthBearer && !a.bearer(r) {
		return ancestryBody{}, errUnauthenticated
	}
	if q.endpoint == EndpointUnknown {
		return ancestryBody{}, errUnknownEndpoint
	}
	err := a.parse(q)
	if q.endpoint == EndpointAbsent {
		return ancestryBody{}, a.absent(r, q, err == nil)
	}
	if err != nil {
		return ancestryBody{}, err
	}
	link, err := a.lookup(r.Context(), q.id)
	if a.o.Auth == AuthHost && (err == nil || errors.Is(err, ErrNotFound)) {
		link, err = a.askHost(r, q, link)
	}
	if err != nil {
		return ancestryBody{}, err
	}
	parent, err := a.parent(r.Context(), q, link)
	return ancestryBody{RunID: q.name(q.id, link.Alias, link.Run), HostID: a.o.HostID, Parent: parent}, err
}

// absent is the answer on the path of an endpoint that is not advertised: the same
// for every id. Who has no credential, or one that opens nothing, is told that
// first, as everywhere at the host.
func (a *API) absent(r *http.Request, q *question, parsed bool) error {
	if a.o.Auth == AuthHost && parsed && !a.bearer(r) {
		_, err := a.host.ask(r, q.path(q.raw), q.raw)
		e, ok := errors.AsType[*apiError](err)
		if ok && (e.status == http.StatusUnauthorized || e.status == http.StatusForbidden) {
			return e
		}
	}
	return errAbsent
}

// lookup returns the link of a run on this host, or ErrNotFound.
func (a *API) lookup(ctx context.Context, id RunID) (Link, error) {
	link, err := a.o.Reader.Lookup(ctx, id)
	if err == nil && link.Host != "" { // noted on the way out; its own host answers for it
		return Link{}, ErrNotFound
	}
	return link, err
}

// askHost lets the host decide whether the caller may read the run. link is
// what is known of the run, or zero. A run of which only the host knows has no
// known parent: the answer is a zero link.
func (a *API) askHost(r *http.Request, q *question, link Link) (Link, error) {
	known := link.Run != ""
	if known && a.bearer(r) {
		// Of what a host calls its runs, only OpenWOP's own can be asked for: a
		// minted id means nothing to it, and an A2A task has another address.
		return link, nil
	}
	// Without the token the host is asked for all runs, also for those that it
	// cannot know, so that its refusal makes them look like any run that does
	// not exist.
	segment := q.raw
	if known && link.Alias != "" && link.Alias != q.id {
		segment = q.segment(link.Alias)
	}
	canonical, err := a.host.ask(r, q.path(segment), segment)
	if err != nil {
		return Link{}, err
	}
	asked := q.id
	if major(q.version) == 2 && canonical.TenantBound() {
		q.id = canonical // the body names the bound id, also where a bare one was sent
	}
	if known || canonical == asked {
		return link, nil
	}
	link, err = a.lookup(r.Context(), canonical)
	if errors.Is(err, ErrNotFound) {
		return Link{}, nil
	}
	return link, err
}

// parent renders the run's parent, if one is known, in OpenWOP's terms.
//
// The contract knows two kinds of parent, and no more. One on this host has a
// core cause and no URL: a host that called itself through MCP or A2A handed
// work to another of its runs, which is what core.dispatch means. One on
// another host has a URL; where the caller's proxy sent none, the parent is
// still named, because null would say that there is none.
func (a *API) parent(ctx context.Context, q *question, link Link) (*ancestryParent, error) {
	p := link.Parent()
	if p == nil {
		return nil, nil
	}
	out := &ancestryParent{RunID: p.Run, HostID: p.Host, WellKnown: p.WellKnown, Cause: p.Cause}
	if p.Host != a.o.HostID {
		return out, nil
	}
	out.WellKnown = ""
	if p.Cause != CauseSubWorkflow {
		out.Cause = CauseDispatch
	}
	own, err := a.lookup(ctx, p.Run)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return nil, err
	}
	out.RunID = q.name(p.Run, own.Alias)
	return out, nil
}

// ancestryBody is the closed shape of OpenWOP's run-ancestry-response.
type ancestryBody struct {
	RunID  RunID           `json:"runId"`
	HostID string          `json:"hostId"`
	Parent *ancestryParent `json:"parent"` // present also when null
}

type ancestryParent struct {
	RunID     RunID  `json:"runId"`
	HostID    string `json:"hostId"`
	WellKnown string `json:"wellKnownUrl,omitempty"`
	Cause     Cause  `json:"cause"`
}

// tenantBound reports whether the body satisfies 2.x, which binds every id in
// it to a tenant.
func (b ancestryBody) tenantBound() bool {
	return b.RunID.TenantBound() && (b.Parent == nil || b.Parent.RunID.TenantBound())
}

// bearer reports whether r carries the configured token. It takes the same time
// for every wrong one.
func (a *API) bearer(r *http.Request) bool {
	if a.o.Bearer == nil {
		return false
	}
	want := a.o.Bearer()
	scheme, got, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if want == "" || !strings.EqualFold(scheme, "Bearer") {
		return false
	}
	// Hashed, since ConstantTimeCompare is not for unequal lengths.
	w, g := sha256.Sum256([]byte(want)), sha256.Sum256([]byte(strings.TrimSpace(got)))
	return subtle.ConstantTimeCompare(w[:], g[:]) == 1
}
