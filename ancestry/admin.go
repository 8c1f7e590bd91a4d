package ancestry

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	maxPage  = 1000 // runs in one answer
	maxChain = 64   // ancestors in one answer
)

// LiveRun is a run that has begun on this host and has not been seen to end.
type LiveRun struct {
	Run       RunID     `json:"runId"`
	Alias     RunID     `json:"alias,omitempty"` // the host's own id, once learned
	Parent    *Ancestor `json:"parent"`          // null when none is asserted
	Trace     TraceID   `json:"traceId,omitzero"`
	Operation string    `json:"operation,omitempty"`
	Workflow  string    `json:"workflowId,omitempty"` // what the run belongs to in evidence, where that is made
	Began     time.Time `json:"began"`
	Active    time.Time `json:"active"` // when it was last heard of
}

// Admin returns the handler of what OpenWOP has no endpoint for. It asks for no
// credentials: serve it on the admin listener only.
//
//	GET /ancestry/v1/runs?limit=                       live runs, oldest first
//	GET /ancestry/v1/runs/{runId}                      all that is recorded of a run
//	GET /ancestry/v1/runs/{runId}/chain                its ancestors, as far as this host knows them
//	GET /ancestry/v1/runs/{runId}/children?after=&limit=   the runs it caused, a page at a time
//	GET /ancestry/v1/runs/{runId}/tree                 those, and what they caused in turn
//	GET /ancestry/v1/runs/{runId}/handoffs             its calls to other hosts, and what has become of them
//	GET /ancestry/v1/runs/{runId}/findings             what its events have shown to be against the execution model
//	GET /ancestry/v1/runs/{runId}/evidence?after=&limit=   the receipts of its workflow, a page at a time, with their summary on the last
//	GET /ancestry/v1/runs/{runId}/evidence?proof=          one of them, by its reference, with the proof that it is one
//	GET /ancestry/v1/runs/{runId}/evidence?audience=       with either: those that are for an origin alone, instead of the run's own
//	GET /ancestry/v1/traces/{traceId}?limit=           the runs of a trace, oldest first
//
// A run id is one segment, percent-encoded or projected. A page has at most 1000
// runs, which is also the default.
func (a *API) Admin() http.Handler {
	mux := http.NewServeMux()
	for pattern, answer := range map[string]func(*http.Request) (any, error){
		"/ancestry/v1/runs":                  a.liveRuns,
		"/ancestry/v1/runs/{runId}":          a.ofRun(func(_ *http.Request, l Link) (any, error) { return l, nil }),
		"/ancestry/v1/runs/{runId}/chain":    a.ofRun(a.chain),
		"/ancestry/v1/runs/{runId}/children": a.ofRun(a.children),
		"/ancestry/v1/runs/{runId}/tree":     a.ofRun(a.tree),
		"/ancestry/v1/runs/{runId}/handoffs": a.handoffs,
		"/ancestry/v1/runs/{runId}/findings": a.findings,
		"/ancestry/v1/runs/{runId}/evidence": a.evidence,
		"/ancestry/v1/traces/{traceId}":      a.trace,
	} {
		mux.HandleFunc("GET "+pattern, func(w http.ResponseWriter, r *http.Request) {
			v, err := answer(r)
			if err != nil {
				a.fail(w, r, "", err)
				return
			}
			writeJSON(w, http.StatusOK, v)
		})
	}
	return mux
}

// runList is a list of runs and what lies beyond its end.
type runList[T any] struct {
	Runs  []T    `json:"runs"`            // never null
	Total int    `json:"total,omitempty"` // of all there are, where that is known
	Next  string `json:"next,omitempty"`  // the cursor of the next page
}

func (a *API) liveRuns(r *http.Request) (any, error) {
	limit, err := pageSize(r)
	if err != nil {
		return nil, err
	}
	live := slices.SortedFunc(slices.Values(a.o.Live()), func(x, y LiveRun) int {
		return cmp.Or(x.Began.Compare(y.Began), cmp.Compare(x.Run, y.Run))
	})
	return runList[LiveRun]{Runs: orEmpty(live[:min(limit, len(live))]), Total: len(live)}, nil
}

// ofRun answers about the run in the path.
func (a *API) ofRun(answer func(*http.Request, Link) (any, error)) func(*http.Request) (any, error) {
	return func(r *http.Request) (any, error) {
		link, err := a.named(r.Context(), r.PathValue("runId"))
		if err != nil {
			return nil, err
		}
		return answer(r, link)
	}
}

// named looks a run up as an operator spells it, as it is or projected. The
// plain reading comes first: a ~ may belong to the id.
func (a *API) named(ctx context.Context, spelled string) (Link, error) {
	id, err := ParseRunID(spelled)
	if err != nil {
		return Link{}, badRequest(err.Error())
	}
	link, err := a.lookup(ctx, id)
	if errors.Is(err, ErrNotFound) && strings.Contains(spelled, "~") {
		if bare, err := unproject(spelled); err == nil {
			return a.lookup(ctx, RunID(bare))
		}
	}
	return link, err
}

// chainBody is what this host knows of all who caused a run.
type chainBody struct {
	Run       RunID      `json:"runId"`
	HostID    string     `json:"hostId"`
	Ancestors []Ancestor `json:"ancestors"` // nearest first; never null
	More      bool       `json:"more"`      // there are older ones
	Depth     int        `json:"depth"`     // of all, those not listed included
}

// chain completes the ancestors that came with the run by those that this host
// has recorded of them: an ancestor that ran here may have been recorded with
// more of its own than travelled on.
func (a *API) chain(r *http.Request, link Link) (any, error) {
	c := chainBody{Run: link.ID(), HostID: a.o.HostID, More: link.Chain.More,
		Ancestors: slices.Clone(link.Chain.Ancestors), Depth: max(link.Chain.Depth, len(link.Chain.Ancestors))}
	seen := map[RunID]bool{link.ID(): true}
	for len(c.Ancestors) > 0 && len(c.Ancestors) < maxChain {
		oldest := c.Ancestors[len(c.Ancestors)-1]
		if oldest.Host != a.o.HostID {
			break
		}
		own, err := a.lookup(r.Context(), oldest.Run)
		if errors.Is(err, ErrNotFound) {
			break
		}
		if err != nil {
			return nil, err
		}
		if seen[own.ID()] || len(own.Chain.Ancestors) == 0 {
			break
		}
		seen[own.ID()] = true
		c.Depth = max(c.Depth, len(c.Ancestors)+max(own.Chain.Depth, len(own.Chain.Ancestors)))
		c.Ancestors = append(c.Ancestors, own.Chain.Ancestors...)
		c.More = own.Chain.More
	}
	if len(c.Ancestors) > maxChain {
		c.Ancestors, c.More = c.Ancestors[:maxChain], true
	}
	c.Ancestors = orEmpty(c.Ancestors)
	return c, nil
}

func (a *API) children(r *http.Request, link Link) (any, error) {
	limit, err := pageSize(r)
	if err != nil {
		return nil, err
	}
	links, next, err := a.o.Reader.Children(r.Context(), link.Run, r.FormValue("after"), limit)
	if err != nil {
		return nil, err
	}
	// A run on another host may have the same id, and children here.
	links = slices.DeleteFunc(links, func(l Link) bool { p := l.Parent(); return p == nil || p.Host != a.o.HostID })
	return runList[Link]{Runs: orEmpty(links), Next: next}, nil
}

// findingsBody is what is held against a run.
type findingsBody struct {
	Run      RunID `json:"runId"`
	Findings any   `json:"findings"` // never null
}

func (a *API) findings(r *http.Request) (any, error) {
	id, ids, err := a.allNames(r)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return nil, err
	}
	found, watched := a.o.Findings(ids...)
	if err != nil && !watched {
		return nil, ErrNotFound
	}
	if !watched {
		found = []any{}
	}
	return findingsBody{id, found}, nil
}

// handoffsBody is how a run has other hosts do something.
type handoffsBody struct {
	Run      RunID     `json:"runId"`
	Handoffs []Handoff `json:"handoffs"` // oldest first; never null
}

func (a *API) handoffs(r *http.Request) (any, error) {
	id, ids, err := a.allNames(r)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return nil, err
	}
	handoffs := a.o.Handoffs(ids...)
	if err != nil && len(handoffs) == 0 {
		return nil, ErrNotFound
	}
	return handoffsBody{id, orEmpty(handoffs)}, nil
}

// EvidenceQuery asks for what was signed of a run.
type EvidenceQuery struct {
	Runs     []RunID  // its ids, or those that a spelling may mean
	After    string   // the cursor of the page before
	Limit    int      // receipts of a page
	Proof    string   // the reference of the one receipt that is wanted; empty: all
	Audience *url.URL // the origin whose receipts are wanted; nil: those of the run itself
}

var receiptRef = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)

// evidence answers with a bundle. A workflow that belongs to no run is asked for by
// its own id.
func (a *API) evidence(r *http.Request) (any, error) {
	if a.o.Evidence == nil {
		return nil, errNoEvidence
	}
	limit, err := pageSize(r)
	if err != nil {
		return nil, err
	}
	_, ids, err := a.allNames(r)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return nil, err
	}
	q := EvidenceQuery{Runs: ids, After: r.FormValue("after"), Limit: limit, Proof: r.FormValue("proof")}
	if q.Proof != "" && !receiptRef.MatchString(q.Proof) {
		return nil, badRequest("proof is the reference of a receipt: sha256: and 64 hex digits")
	}
	if r.Form.Has("audience") {
		if q.Audience, err = ParseOrigin(r.FormValue("audience")); err != nil {
			return nil, err
		}
	}
	bundle, err := a.o.Evidence(r.Context(), q)
	if errors.Is(err, ErrNotFound) {
		return nil, errNoReceipt
	}
	return bundle, err
}

// ParseOrigin reads the origin of a host that was called, as it is or with a slash
// behind it. That of a program which is called by its pipes is stdio://localhost.
func ParseOrigin(s string) (*url.URL, error) {
	u, err := url.Parse(strings.TrimSuffix(s, "/"))
	if err != nil || !slices.Contains([]string{"http", "https", "stdio"}, u.Scheme) || u.Hostname() == "" || u.User != nil || *u != (url.URL{Scheme: u.Scheme, Host: u.Host}) {
		return nil, badRequest("audience is an origin that was called, such as https://agent.example.com")
	}
	return u, nil
}

// allNames returns the run in the path as it is spelled, and all its ids. Along
// with ErrNotFound they are those that the spelling may mean: a host has runs that
// nobody caused through the proxy, and their events and calls pass all the same.
func (a *API) allNames(r *http.Request) (id RunID, ids []RunID, err error) {
	spelled := r.PathValue("runId")
	if id, err = ParseRunID(spelled); err != nil {
		return "", nil, badRequest(err.Error())
	}
	ids = []RunID{id}
	if bare, err := unproject(spelled); err == nil {
		ids = append(ids, RunID(bare))
	}
	link, err := a.named(r.Context(), spelled)
	if err == nil {
		ids = append(ids, link.Run, link.Alias)
	}
	slices.Sort(ids)
	return id, slices.DeleteFunc(slices.Compact(ids), func(id RunID) bool { return id == "" }), err
}

func (a *API) trace(r *http.Request) (any, error) {
	limit, err := pageSize(r)
	if err != nil {
		return nil, err
	}
	var id TraceID
	if err := id.UnmarshalText([]byte(r.PathValue("traceId"))); err != nil || id.IsZero() {
		return nil, badRequest("a trace id is 32 hex digits, not all zero")
	}
	links, err := a.o.Reader.Trace(r.Context(), id, limit)
	if err != nil {
		return nil, err
	}
	return runList[Link]{Runs: orEmpty(links)}, nil
}

// pageSize reads the query's limit.
func pageSize(r *http.Request) (int, error) {
	s := r.FormValue("limit")
	if s == "" {
		return maxPage, nil
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 {
		return 0, badRequest("limit must be a number from 1")
	}
	return min(n, maxPage), nil
}

// orEmpty returns s, as a list that JSON does not render as null.
func orEmpty[T any](s []T) []T {
	if s == nil {
		return []T{}
	}
	return s
}
