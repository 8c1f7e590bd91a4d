package ancestry

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
)

// maxNative bounds what is read of a host's own answer; the closed shape is far
// smaller.
const maxNative = 64 << 10

// native asks the host for the ancestry that it keeps itself, where we know of
// no parent: a host may know better who caused a run that began in a way which
// the proxy can't see, or that began before the proxy was there. What it answers
// about this run in OpenWOP's shape is handed on as it came, and nothing else is: a
// host that does not serve the endpoint may answer with anything. Our own token opens
// nothing at the host, and is not shown to it.
func (a *API) native(r *http.Request, id RunID, ours ancestryBody, err error) (answer []byte, version string) {
	if a.upstream == nil || a.bearer(r) || err == nil && ours.Parent != nil || err != nil && !errors.Is(err, ErrNotFound) {
		return nil, ""
	}
	resp, cancel, err := a.upstream.get(r, r.URL.EscapedPath())
	if err != nil {
		return nil, ""
	}
	defer cancel()
	defer resp.Body.Close()
	if mt, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type")); resp.StatusCode != http.StatusOK || err != nil || mt != "application/json" {
		return nil, ""
	}
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxNative+1))
	if err != nil || len(b) > maxNative || !isAncestry(b, id) {
		return nil, ""
	}
	return b, resp.Header.Get(versionHeader)
}

// isAncestry reports whether b has the closed shape, with the parent present
// even when it is null, and is about the run id. A host may bind a bare id to its
// tenant; an empty one stands for a path that only the host can read.
func isAncestry(b []byte, id RunID) bool {
	var members map[string]json.RawMessage
	if json.Unmarshal(b, &members) != nil || members["parent"] == nil {
		return false
	}
	var body ancestryBody
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	if dec.Decode(&body) != nil || body.RunID == "" || body.HostID == "" {
		return false
	}
	if id != "" && body.RunID != id && (id.TenantBound() || !body.RunID.TenantBound()) {
		return false
	}
	p := body.Parent
	if p == nil {
		return true
	}
	_, err := ParseCause(string(p.Cause))
	return err == nil && p.RunID != "" && p.HostID != ""
}
