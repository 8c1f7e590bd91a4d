package ancestry

import (
	"cmp"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

const (
	mount      = "/host/wopproxy" // in front of the path, where the endpoint is our own
	pathPrefix = "/runs/"
	pathSuffix = "/ancestry"
)

// question is what one request asks.
type question struct {
	underV1  bool     // the path begins with /v1/
	mounted  bool     // it is not one of the protocol's
	endpoint Endpoint // else what callers are told of it
	raw      string   // the segment that names the run, as it was sent
	id       RunID    // what raw stands for
	version  string   // the contract to answer by; on /v1/ paths, and mounted ones, it is not sent
}

// ancestryPath splits an escaped path of the endpoint.
func ancestryPath(escaped string) (q question, ok bool) {
	rest, ok := strings.CutSuffix(escaped, pathSuffix)
	if !ok {
		return q, false
	}
	rest, q.underV1 = strings.CutPrefix(rest, "/v1")
	rest, q.mounted = strings.CutPrefix(rest, mount)
	q.raw, ok = strings.CutPrefix(rest, pathPrefix)
	return q, ok && q.raw != "" && !strings.Contains(q.raw, "/")
}

// path is where the host has the run that segment names.
func (q *question) path(segment string) string {
	if q.underV1 {
		return "/v1" + pathPrefix + segment
	}
	return pathPrefix + segment
}

// versionHeader selects a contract in a request, and names one in a response.
const versionHeader = "OpenWOP-Version"

// negotiate selects the contract by the path and the version header.
func (a *API) negotiate(sent []string, q *question) error {
	if q.mounted {
		q.version = cmp.Or(a.v2, a.v1)
		if q.underV1 {
			q.version = cmp.Or(a.v1, "1.0")
		}
		return nil
	}
	want := 0
	if len(sent) == 1 {
		want = major(strings.TrimSpace(sent[0]))
	}
	switch {
	case q.underV1 && (len(sent) == 0 || want == 1):
		q.version = a.v1
	case q.underV1:
		q.version = a.v1
		return &apiError{status: http.StatusBadRequest, code: "protocol_version_mismatch",
			message: "a path under /v1/ speaks OpenWOP 1.x only"}
	case len(sent) == 0: // preferredVersion is 1.x for as long as any 1.x is served
		q.version = cmp.Or(a.v1, a.v2)
	case want == 1 && a.v1 != "":
		q.version = a.v1
	case want == 2 && a.v2 != "":
		q.version = a.v2
	default:
		q.version = cmp.Or(a.v2, a.v1)
		return &apiError{status: http.StatusNotAcceptable, code: "protocol_version_unsupported",
			message: "this OpenWOP version is not served here",
			details: map[string]any{"protocolVersions": a.o.Versions}}
	}
	return nil
}

// parse reads the run's segment as its path spells ids: under /v1/ they are
// plain strings, elsewhere projected.
func (a *API) parse(q *question) (err error) {
	if q.underV1 {
		q.id, err = ParseSegmentV1(q.raw)
	} else {
		q.id, err = ParseSegmentV2(q.raw)
	}
	if errors.Is(err, ErrProjection) {
		return badRequest(err.Error())
	}
	if err != nil {
		return ErrNotFound // no run can have such an id
	}
	if _, minted := q.id.Minted(); !minted && a.v1 == "" && !q.id.TenantBound() {
		return badRequest("a run id without its tenant")
	}
	return nil
}

// segment spells an id as the question's path does.
func (q *question) segment(id RunID) string {
	if q.underV1 {
		return url.PathEscape(string(id))
	}
	return id.Segment()
}

// name picks what to call a run: by the first of its ids that the contract can
// represent, or else by the first.
func (q *question) name(ids ...RunID) RunID {
	if major(q.version) == 2 {
		if i := slices.IndexFunc(ids, RunID.TenantBound); i >= 0 {
			return ids[i]
		}
	}
	return ids[0]
}

// major returns the major of an OpenWOP version, "2" or "2.1", and 0 for
// anything else.
func major(version string) int {
	m, minor, dotted := strings.Cut(version, ".")
	if dotted {
		if _, err := strconv.ParseUint(minor, 10, 32); err != nil {
			return 0
		}
	}
	n, err := strconv.ParseUint(m, 10, 16)
	if err != nil {
		return 0
	}
	return int(n)
}
