package ancestry

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

const (
	hostTimeout     = 5 * time.Second
	grantTTL        = 5 * time.Second
	maxGrants       = 10_000
	maxSnapshot     = 4 << 20  // of a run, read until its id is found
	maxHostEnvelope = 64 << 10 // larger refusals are told in our own words
)

// verdict is how a question to the host ended.
type verdict string

const (
	verdictCached      verdict = "cached"      // asked a moment ago, with the same credentials
	verdictAllowed     verdict = "allowed"     // the host showed the run
	verdictRefused     verdict = "refused"     // 400, 401, 403 or 404
	verdictUnreachable verdict = "unreachable" // no answer in time
	verdictUnexpected  verdict = "unexpected"  // any other status
	verdictNoRun       verdict = "no-run"      // a 2xx that does not show the run asked for
)

// hostClient asks the host, with its caller's own credentials.
type hostClient struct {
	base        string // upstream, without the slash at its end
	client      *http.Client
	rewriteHost bool
	credentials []string
}

func newHostClient(o APIOptions) hostClient {
	if o.Transport == nil {
		t := http.DefaultTransport.(*http.Transport).Clone()
		t.Proxy = nil // the pod's HTTP_PROXY points at this very process
		o.Transport = t
	}
	if o.Credentials == nil {
		o.Credentials = []string{"Authorization", "Cookie"}
	}
	base := url.URL{Scheme: o.Upstream.Scheme, Host: o.Upstream.Host, Path: o.Upstream.Path, RawPath: o.Upstream.RawPath}
	return hostClient{
		base: strings.TrimSuffix(base.String(), "/"),
		client: &http.Client{
			Transport: o.Transport,
			// A redirect would carry the caller's credentials elsewhere.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		rewriteHost: o.RewriteHost,
		credentials: append([]string{versionHeader}, o.Credentials...),
	}
}

// get asks for a path as the caller of r would, for no longer than hostTimeout.
// Close the body before cancel is called.
func (h *hostClient) get(r *http.Request, path string) (resp *http.Response, cancel func(), err error) {
	ctx, cancel := context.WithTimeout(r.Context(), hostTimeout)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, h.base+path, nil)
	if err != nil {
		cancel()
		return nil, nil, fmt.Errorf("ask host: %w", err)
	}
	if !h.rewriteHost {
		req.Host = r.Host // as ingress forwards it: some hosts tell tenants by name
	}
	req.Header.Set("Accept", "application/json")
	for _, name := range h.credentials {
		if v := r.Header.Values(name); len(v) > 0 {
			req.Header[http.CanonicalHeaderKey(name)] = v
		}
	}
	if resp, err = h.client.Do(req); err != nil {
		cancel()
		return nil, nil, err
	}
	return resp, cancel, nil
}

// hostAuth lets the host decide who may read a run: it asks for the run itself,
// which takes the same scope as its ancestry, with the caller's own credentials.
// A grant is remembered for grantTTL; a refusal never is.
type hostAuth struct {
	hostClient
	grants grants
	checks *prometheus.CounterVec
}

func newHostAuth(o APIOptions) (*hostAuth, error) {
	if o.Upstream == nil || o.Upstream.Host == "" {
		return nil, errors.New("ancestry API: auth mode host needs the upstream")
	}
	h := &hostAuth{
		hostClient: newHostClient(o),
		checks: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "wopproxy_ancestry_host_checks_total",
			Help: "Questions to the host whether a caller may read a run, by verdict.",
		}, []string{"verdict"}),
	}
	if err := o.Registerer.Register(h.checks); err != nil {
		return nil, fmt.Errorf("ancestry API: %w", err)
	}
	return h, nil
}

// ask returns the host's own id of the run at path, which ends in segment, if the
// host shows the run to the caller of r. Otherwise it returns the answer for the
// caller: the host's refusal as it came, or 503 if the host gave no clear one.
func (h *hostAuth) ask(r *http.Request, path, segment string) (RunID, error) {
	key := h.key(r, path)
	if run, ok := h.grants.get(key); ok {
		h.count(verdictCached)
		return run, nil
	}
	resp, cancel, err := h.get(r, path)
	if err != nil {
		if r.Context().Err() != nil {
			return "", r.Context().Err()
		}
		h.count(verdictUnreachable)
		return "", unavailable("")
	}
	defer cancel()
	defer resp.Body.Close()
	return h.judge(resp, segment, key)
}

// judge turns the host's answer into ours.
func (h *hostAuth) judge(resp *http.Response, segment string, key grantKey) (RunID, error) {
	switch s := resp.StatusCode; {
	case s >= 200 && s < 300:
		// A host that serves a page for every path must not open every run.
		run, err := snapshotID(io.LimitReader(resp.Body, maxSnapshot))
		if err != nil || !names(segment, run) {
			h.count(verdictNoRun)
			return "", unavailable("")
		}
		h.count(verdictAllowed)
		h.grants.put(key, run)
		return run, nil
	case s == http.StatusBadRequest, s == http.StatusUnauthorized, s == http.StatusForbidden, s == http.StatusNotFound:
		h.count(verdictRefused)
		return "", refusal(resp)
	default:
		h.count(verdictUnexpected)
		return "", unavailable(resp.Header.Get("Retry-After"))
	}
}

// refusal mirrors the host's: its status, its challenge, and its words if they
// are an error envelope. A 404 bears no challenge, which would tell a run that
// exists from one that does not.
func refusal(resp *http.Response) error {
	e := &apiError{status: resp.StatusCode, message: "refused by the host"}
	switch resp.StatusCode {
	case http.StatusBadRequest:
		e.code = "validation_error"
	case http.StatusUnauthorized:
		e.code = "unauthenticated"
		e.challenges = []string{"Bearer"}
	case http.StatusForbidden:
		e.code = "forbidden"
	default:
		e.code, e.message = "not_found", "run not found"
	}
	if c := resp.Header.Values("WWW-Authenticate"); len(c) > 0 && resp.StatusCode != http.StatusNotFound {
		e.challenges = c
	}
	if v := resp.Header.Get(versionHeader); major(v) == 2 {
		e.version = v
	}
	if b, err := io.ReadAll(io.LimitReader(resp.Body, maxHostEnvelope+1)); err == nil && isEnvelope(resp.Header, b) {
		e.envelope = b
	}
	return e
}

// isEnvelope reports whether a body is OpenWOP's closed error envelope.
func isEnvelope(h http.Header, body []byte) bool {
	if mt, _, err := mime.ParseMediaType(h.Get("Content-Type")); err != nil || mt != "application/json" || len(body) > maxHostEnvelope {
		return false
	}
	var members map[string]json.RawMessage
	var e envelope
	if json.Unmarshal(body, &members) != nil || json.Unmarshal(body, &e) != nil || e.Error == "" || e.Message == "" {
		return false
	}
	want := 2
	if members["details"] != nil {
		want++
	}
	return members["error"] != nil && members["message"] != nil && len(members) == want && (want == 2 || e.Details != nil)
}

// unavailable is the answer when the host gave none. 503 has this code in both
// majors: 1.x leaves the set of codes open, and the caller may try again.
func unavailable(retryAfter string) error {
	return &apiError{status: http.StatusServiceUnavailable, code: "service_unavailable",
		message: "the host could not be asked whether you may read this run", retryAfter: retryAfter}
}

// snapshotID returns the runId of a run's snapshot, and reads no further.
func snapshotID(r io.Reader) (RunID, error) {
	dec := json.NewDecoder(r)
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return "", cmp.Or(err, errors.New("not an object"))
	}
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return "", err
		}
		if key == "runId" {
			var s string
			if err := dec.Decode(&s); err != nil {
				return "", err
			}
			return ParseRunID(s)
		}
		var skipped json.RawMessage
		if err := dec.Decode(&skipped); err != nil {
			return "", err
		}
	}
	return "", errors.New("no runId")
}

// names reports whether a path segment can stand for a run: spelled out,
// projected, or without the tenant that the host adds.
func names(segment string, run RunID) bool {
	for _, parse := range []func(string) (RunID, error){ParseSegmentV1, ParseSegmentV2} {
		id, err := parse(segment)
		if err == nil && (id == run || run.TenantBound() && strings.HasSuffix(string(run), "/"+string(id))) {
			return true
		}
	}
	return false
}

func (h *hostAuth) count(v verdict) { h.checks.WithLabelValues(string(v)).Inc() }

// grantKey is a hash of all that the host's decision can depend on.
type grantKey [sha256.Size]byte

func (h *hostAuth) key(r *http.Request, path string) (k grantKey) {
	d := sha256.New()
	hashText(d, r.Host)
	hashText(d, path)
	for _, name := range h.credentials {
		values := r.Header.Values(name)
		hashLen(d, len(values))
		for _, v := range values {
			hashText(d, v)
		}
	}
	d.Sum(k[:0])
	return k
}

// hashText adds s with its length in front, so that no two sequences of texts
// hash the same bytes.
func hashText(d hash.Hash, s string) {
	hashLen(d, len(s))
	_, _ = io.WriteString(d, s)
}

func hashLen(d hash.Hash, n int) {
	_, _ = d.Write(binary.BigEndian.AppendUint64(nil, uint64(n)))
}

// grants remembers at most maxGrants grants, each for grantTTL. It keeps two
// generations and forgets the older one when the younger is full, so that no
// grant has to be searched for to make room.
type grants struct {
	mu         sync.Mutex
	young, old map[grantKey]grant
}

type grant struct {
	run   RunID
	until time.Time
}

func (g *grants) get(k grantKey) (RunID, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	e, ok := g.young[k]
	if !ok {
		e, ok = g.old[k]
	}
	return e.run, ok && time.Now().Before(e.until)
}

func (g *grants) put(k grantKey, run RunID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.young == nil || len(g.young) >= maxGrants/2 {
		g.young, g.old = make(map[grantKey]grant), g.young
	}
	g.young[k] = grant{run, time.Now().Add(grantTTL)}
}
