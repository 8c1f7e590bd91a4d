package ancestry

import (
	"errors"
	"io"
	"mime"
	"net/http"
)

// maxNative bounds what is read of a host's own answer; the closed shape is far
// smaller.
const maxNative = 64 << 10

// nativeOutcome is what became of a host's own answer.
type nativeOutcome string

const (
	nativeUsed    nativeOutcome = "used"
	nativeInvalid nativeOutcome = "invalid" // not of the closed shape, or about another run
	nativeForeign nativeOutcome = "foreign" // of another hostId than ours
)

// native asks the host for the ancestry that it keeps itself, where we know of
// no parent: a host may know better who caused a run that began in a way which
// the proxy can't see, or that began before the proxy was there. What it answers
// about this run in OpenWOP's shape is handed on as it came, and nothing else is: a
// host that does not serve the endpoint may answer with anything. Our own token opens
// nothing at the host, and is not shown to it.
//
// An answer in the name of another host is neither handed on nor mended. Whoever came
// here for a run of ours would have to take it for somebody else's, and under our name
// it could be a lie: it may be another host's run, behind the same address.
func (a *API) native(r *http.Request, q *question, ours ancestryBody, err error) (answer []byte, version string) {
	if a.upstream == nil || a.bearer(r) || err == nil && ours.Parent != nil || err != nil && !errors.Is(err, ErrNotFound) {
		return nil, ""
	}
	resp, cancel, err := a.upstream.get(r, q.path(q.raw)+pathSuffix)
	if err != nil {
		return nil, ""
	}
	defer cancel()
	defer resp.Body.Close()
	if mt, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type")); resp.StatusCode != http.StatusOK || err != nil || mt != "application/json" {
		return nil, ""
	}
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxNative+1))
	if err != nil {
		return nil, ""
	}
	outcome := nativeInvalid
	if host, ok := isAncestry(b, q.id); ok && len(b) <= maxNative {
		if outcome = nativeUsed; host != a.o.HostID {
			outcome = nativeForeign
			a.foreign.Do(func() {
				a.o.Logger.WarnContext(r.Context(), "the host's own ancestry is in the name of another host, and is not handed on: host.id has to be the hostId that the host advertises",
					"host", host, "configured", a.o.HostID)
			})
		}
	}
	a.natives.WithLabelValues(string(outcome)).Inc()
	if outcome != nativeUsed {
		return nil, ""
	}
	return b, resp.Header.Get(versionHeader)
}

// isAncestry reports whether b has the closed shape, with the parent present
// even when it is null, and is about the run id, and of which host. A host may bind a
// bare id to its tenant; an empty one stands for a path that only the host can read.
func isAncestry(b []byte, id RunID) (host string, ok bool) {
	body, err := parseAnswer(b)
	if err != nil || id != "" && body.RunID != id && (id.TenantBound() || !body.RunID.TenantBound()) {
		return "", false
	}
	return body.HostID, true
}
