package ancestry

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// Stop says why a walk ended.
type Stop string

// The reasons to stop. Only StopRoot means that the whole chain is known.
const (
	StopRoot           Stop = "root"              // the last run has no known parent
	StopNotFound       Stop = "not-found"         // no such run, or not for us
	StopUnauthorized   Stop = "unauthorized"      // the host wants a credential, or another one
	StopForbidden      Stop = "forbidden"         // the credential may not read the run
	StopUnreachable    Stop = "unreachable"       // no connection, or the host cannot answer now
	StopTimeout        Stop = "timeout"           // the walk took too long
	StopLoop           Stop = "loop"              // the parent was met before
	StopTooDeep        Stop = "too-deep"          // more hops than allowed
	StopNotAllowed     Stop = "not-allowed"       // the next host is not one we may call
	StopNoWellKnownURL Stop = "no-well-known-url" // the parent is elsewhere, and nobody says where
	StopInvalidAnswer  Stop = "invalid-answer"    // not the shape that OpenWOP gives
	StopInconsistent   Stop = "inconsistent"      // the host is not who it was said to be, or speaks of another run
)

// Bounds on what a host answers.
const (
	maxAnswer   = 64 << 10
	maxDocument = 1 << 20 // of discovery
)

// WalkerOptions configures a Walker. Nothing is required.
type WalkerOptions struct {
	// Allow lists the hosts that may be called over http, and at private
	// addresses: names, addresses, either with :port, or networks (CIDR). A
	// network frees its addresses, but not http to a name.
	Allow []string

	MaxHops int               // hosts asked in one walk; default 64
	Timeout time.Duration     // of one walk; default 10 s
	Bearer  map[string]string // token by origin (https://host:port); sent to that origin only
	TLS     *tls.Config       // default: the system's roots
}

// Walker follows a run's parents from host to host.
//
// Where to go next is what strangers say, so a walker goes over https to public
// addresses only, unless a host is listed; follows no redirect; sends each
// origin the credential it was given for, or none; and takes an answer for what
// it says only if it has OpenWOP's closed shape and comes from the host, and is
// about the run, that the answer before named.
type Walker struct {
	o      WalkerOptions
	policy dialPolicy
	bearer map[string]string
}

// NewWalker checks o and returns a Walker.
func NewWalker(o WalkerOptions) (*Walker, error) {
	if o.MaxHops == 0 {
		o.MaxHops = 64
	}
	if o.Timeout == 0 {
		o.Timeout = 10 * time.Second
	}
	if o.MaxHops < 0 || o.Timeout < 0 {
		return nil, errors.New("walker: MaxHops and Timeout must be positive")
	}
	policy, err := newDialPolicy(o.Allow)
	if err != nil {
		return nil, fmt.Errorf("walker: %w", err)
	}
	w := &Walker{o: o, policy: policy, bearer: make(map[string]string)}
	for at, token := range o.Bearer {
		u, err := parseBase(at)
		if err != nil || u.Path != "" {
			return nil, fmt.Errorf("walker: bearer for %q: want an origin, as https://host:port", at)
		}
		w.bearer[origin(u)] = token
	}
	return w, nil
}

// Hop is one run of a walk.
type Hop struct {
	Run   RunID  `json:"runId"`
	Host  string `json:"hostId,omitempty"` // empty if the first host never answered
	Base  string `json:"base,omitempty"`   // where the host was asked; empty if it was not
	Cause Cause  `json:"cause,omitempty"`  // how it started the run of the hop before; empty for the first
	// Confirmed says that the run's own host answered for it. If not, the run
	// is what the host of its child says.
	Confirmed bool `json:"confirmed"`
}

// Walk is the chain that a walk found: the run that was asked for first, and
// each run's parent after it.
type Walk struct {
	Hops   []Hop  `json:"hops"`
	Stop   Stop   `json:"stop"`
	Detail string `json:"detail,omitempty"` // more about Stop, for people
}

// stopped ends a walk.
type stopped struct {
	reason Stop
	detail string
}

func (s *stopped) Error() string { return string(s.reason) + ": " + s.detail }

func stop(reason Stop, format string, args ...any) *stopped {
	return &stopped{reason, fmt.Sprintf(format, args...)}
}

// Walk asks the host at base, an http or https URL in front of /v1/runs or
// /runs, who caused run, then that parent's host, and so on. The host at base
// counts as listed.
//
// A walk that cannot go on is no error: it says how far it came, and why it
// stopped. The errors are a base that is no such URL, and the end of ctx.
func (w *Walker) Walk(ctx context.Context, base string, run RunID) (Walk, error) {
	start, err := parseBase(base)
	if err != nil {
		return Walk{}, fmt.Errorf("walk from %q: %w", base, err)
	}
	outer := ctx
	ctx, cancel := context.WithTimeout(ctx, w.o.Timeout)
	defer cancel()
	s := w.session(start)
	defer s.client.CloseIdleConnections()

	walk := Walk{Hops: []Hop{{Run: run, Base: start.String()}}}
	for {
		parent, err := s.step(ctx, &walk.Hops[len(walk.Hops)-1])
		if parent != nil {
			walk.Hops = append(walk.Hops, *parent)
		}
		if err == nil && len(walk.Hops) > w.o.MaxHops {
			err = stop(StopTooDeep, "more than %d hops", w.o.MaxHops)
		}
		if err != nil {
			walk.Stop, walk.Detail = err.reason, err.detail
			return walk, outer.Err()
		}
	}
}

// session is the state of one walk.
type session struct {
	client *http.Client
	policy dialPolicy
	bearer map[string]string
	seen   map[place]bool
}

func (w *Walker) session(start *url.URL) *session {
	policy := w.policy.with(start)
	return &session{
		policy: policy, bearer: w.bearer, seen: make(map[place]bool),
		client: &http.Client{
			Transport: &http.Transport{ // no Proxy: it would dial in our place, unguarded
				DialContext:            policy.dial,
				TLSClientConfig:        w.o.TLS,
				ForceAttemptHTTP2:      true,
				MaxResponseHeaderBytes: maxAnswer,
			},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
}

// step asks the host of hop about its run, completes hop, and returns the
// parent. It returns a parent and a reason to stop if the parent is known and
// its host cannot be asked.
func (s *session) step(ctx context.Context, hop *Hop) (*Hop, *stopped) {
	body, err := s.ask(ctx, hop.Base, hop.Run)
	if err != nil {
		return nil, err
	}
	if hop.Host != "" && body.HostID != hop.Host {
		return nil, stop(StopInconsistent, "%q answered where %q was said to be", body.HostID, hop.Host)
	}
	// A host may answer to a bare id, or one that its proxy minted, with the
	// bound form of its own.
	if body.RunID != hop.Run && (hop.Run.TenantBound() || !body.RunID.TenantBound()) {
		return nil, stop(StopInconsistent, "asked about run %q, the answer is about %q", hop.Run, body.RunID)
	}
	s.seen[place{body.HostID, hop.Run}] = true
	s.seen[place{body.HostID, body.RunID}] = true
	hop.Run, hop.Host, hop.Confirmed = body.RunID, body.HostID, true

	p := body.Parent
	if p == nil {
		return nil, stop(StopRoot, "")
	}
	if s.seen[place{p.HostID, p.RunID}] {
		return nil, stop(StopLoop, "run %q on %q again", p.RunID, p.HostID)
	}
	parent := &Hop{Run: p.RunID, Host: p.HostID, Cause: p.Cause}
	if p.HostID == hop.Host {
		parent.Base = hop.Base // whatever a URL says: the host is the one that answered
		return parent, nil
	}
	if p.WellKnown == "" {
		return parent, stop(StopNoWellKnownURL, "%q is said to be the host of the parent", p.HostID)
	}
	base, err := s.baseOf(p.WellKnown)
	if err != nil {
		return parent, err
	}
	parent.Base = base
	return parent, nil
}

// baseOf returns what stands before /.well-known/openwop in a URL that a peer
// sent, if we may go there as far as the URL tells.
func (s *session) baseOf(wellKnown string) (string, *stopped) {
	before, ok := strings.CutSuffix(wellKnown, "/.well-known/openwop")
	if !ok {
		return "", stop(StopInvalidAnswer, "well-known URL %q does not end in /.well-known/openwop", wellKnown)
	}
	u, err := parseBase(before)
	if err != nil {
		return "", stop(StopNotAllowed, "well-known URL %q: %v", wellKnown, err)
	}
	if u.Scheme != "https" && !s.policy.listed(u.Hostname(), port(u)) {
		return "", stop(StopNotAllowed, "well-known URL %q: http, and the host is not listed", wellKnown)
	}
	return u.String(), nil
}

// ask puts the question on OpenWOP's own paths, and where they are not served, on
// those that the host's discovery document names instead.
func (s *session) ask(ctx context.Context, base string, run RunID) (ancestryBody, *stopped) {
	status, body, err := s.askOn(ctx, base, run, []string{"/v1" + protocolPath, protocolPath})
	if err == nil && status == http.StatusNotFound {
		var elsewhere []string
		if elsewhere, err = s.templates(ctx, base); err == nil {
			status, body, err = s.askOn(ctx, base, run, elsewhere)
		}
	}
	if err != nil {
		return ancestryBody{}, err
	}
	switch {
	case status == http.StatusOK:
		a, err := parseAnswer(body)
		if err != nil {
			return a, stop(StopInvalidAnswer, "%s: %v", base, err)
		}
		return a, nil
	case status == http.StatusNotFound:
		return ancestryBody{}, stop(StopNotFound, "%s has no ancestry of run %q for us", base, run)
	case status == http.StatusUnauthorized:
		return ancestryBody{}, stop(StopUnauthorized, "%s wants a credential", base)
	case status == http.StatusForbidden:
		return ancestryBody{}, stop(StopForbidden, "%s refused", base)
	case status >= 500, status == http.StatusTooManyRequests:
		return ancestryBody{}, stop(StopUnreachable, "%s answered %d", base, status)
	}
	return ancestryBody{}, stop(StopInvalidAnswer, "%s answered %d", base, status) // redirects among them
}

// askOn asks on one path after the other for as long as they are not there, or have
// no such run, which is 404. A path that does not begin with /v1/ is asked in 2.x.
func (s *session) askOn(ctx context.Context, base string, run RunID, templates []string) (status int, body []byte, err *stopped) {
	status = http.StatusNotFound
	for _, t := range templates {
		segment, version := url.PathEscape(string(run)), ""
		if !strings.HasPrefix(t, "/v1/") {
			segment, version = run.Segment(), "2"
		}
		status, body, err = s.get(ctx, base+strings.Replace(t, runIDVariable, segment, 1), version, maxAnswer)
		switch {
		case err != nil:
			return 0, nil, err
		case status == http.StatusNotAcceptable,
			status == http.StatusBadRequest && version != "": // 2.x has no such id
			status = http.StatusNotFound
		}
		if status != http.StatusNotFound {
			break
		}
	}
	return status, body, nil
}

// templates returns the paths on which the host's discovery document says that
// wopproxy answers for it, none if it says so nowhere.
func (s *session) templates(ctx context.Context, base string) ([]string, *stopped) {
	status, body, err := s.get(ctx, base+"/.well-known/openwop", "", maxDocument)
	if err != nil || status != http.StatusOK {
		return nil, err
	}
	return parseExtension(body), nil
}

// get returns the status and the body of one answer.
func (s *session) get(ctx context.Context, at, version string, limit int64) (int, []byte, *stopped) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return 0, nil, stop(StopInvalidAnswer, "%v", err)
	}
	req.Header.Set("Accept", "application/json")
	if version != "" {
		req.Header.Set(versionHeader, version)
	}
	if token := s.bearer[origin(req.URL)]; token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return 0, nil, failure(ctx, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, limit+1))
	if err != nil {
		return 0, nil, failure(ctx, err)
	}
	if int64(len(body)) > limit {
		return 0, nil, stop(StopInvalidAnswer, "%s sent more than %d bytes", at, limit)
	}
	return resp.StatusCode, body, nil
}

func failure(ctx context.Context, err error) *stopped {
	switch {
	case ctx.Err() != nil:
		return stop(StopTimeout, "%v", err)
	case errors.Is(err, errNotAllowed):
		return stop(StopNotAllowed, "%v", err)
	}
	return stop(StopUnreachable, "%v", err)
}

// parseAnswer accepts OpenWOP's run-ancestry-response and nothing else: every
// required member, no other one, and each of its type.
func parseAnswer(b []byte) (ancestryBody, error) {
	var a ancestryBody
	members, err := object(b, "runId", "hostId", "parent")
	if err != nil {
		return a, err
	}
	if a.RunID, a.HostID, err = identity(members); err != nil || string(members["parent"]) == "null" {
		return a, err
	}
	if members, err = object(members["parent"], "runId", "hostId", "cause", "wellKnownUrl"); err != nil {
		return a, fmt.Errorf("parent: %w", err)
	}
	a.Parent = new(ancestryParent)
	if a.Parent.RunID, a.Parent.HostID, err = identity(members); err != nil {
		return a, fmt.Errorf("parent: %w", err)
	}
	cause, err := text(members, "cause")
	if err != nil {
		return a, fmt.Errorf("parent: %w", err)
	}
	if a.Parent.Cause, err = ParseCause(cause); err != nil {
		return a, fmt.Errorf("parent: %w", err)
	}
	if members["wellKnownUrl"] != nil {
		if a.Parent.WellKnown, err = text(members, "wellKnownUrl"); err != nil {
			return a, fmt.Errorf("parent: %w", err)
		}
		if u, err := url.Parse(a.Parent.WellKnown); err != nil || !u.IsAbs() {
			return a, errors.New("parent: wellKnownUrl is not an absolute URI")
		}
	}
	return a, nil
}

// object splits a JSON object that has no members but those named. (A struct
// would not do: it also takes RUNID, and does not tell null from absent.)
func object(b []byte, names ...string) (map[string]json.RawMessage, error) {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(b, &members); err != nil {
		return nil, err
	}
	known := 0
	for _, name := range names {
		if members[name] != nil {
			known++
		}
	}
	if members == nil || known != len(members) {
		return nil, errors.New("not an object of OpenWOP's closed shape")
	}
	return members, nil
}

func identity(members map[string]json.RawMessage) (run RunID, host string, err error) {
	id, err := text(members, "runId")
	if err != nil {
		return "", "", err
	}
	if run, err = ParseRunID(id); err != nil {
		return "", "", err
	}
	host, err = text(members, "hostId")
	return run, host, err
}

// text returns a member that is a string and not empty.
func text(members map[string]json.RawMessage, name string) (string, error) {
	var s string
	if err := json.Unmarshal(members[name], &s); err != nil || s == "" {
		return "", fmt.Errorf("%s is not a string of one character or more", name)
	}
	return s, nil
}
