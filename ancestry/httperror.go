package ancestry

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
)

// apiError is an error that the caller may read. All other errors stay hidden.
type apiError struct {
	status     int
	code       string // OpenWOP's name for it
	message    string
	details    map[string]any
	envelope   []byte   // the host's own words, sent instead of code and message
	challenges []string // WWW-Authenticate
	retryAfter string
	version    string // the contract the host answered by, if it said so
}

func (e *apiError) Error() string { return e.code + ": " + e.message }

// errUnauthenticated is the answer to a missing token and to a wrong one. HTTP
// requires the challenge, in both majors.
var errUnauthenticated = &apiError{status: http.StatusUnauthorized, code: "unauthenticated",
	message: "a bearer token is required", challenges: []string{"Bearer"}}

// errAbsent is the answer where the endpoint is not advertised. It says nothing of
// any run, so that it may say where to ask.
var errAbsent = &apiError{status: http.StatusNotFound, code: "not_found",
	message: "this host does not advertise ancestry; wopproxy answers under " + mount}

// errUnknownEndpoint is the answer while nobody can say whether it is: 404 and an
// answer would each be a claim.
var errUnknownEndpoint = &apiError{status: http.StatusServiceUnavailable, code: "service_unavailable",
	message: "the host's discovery could not be read, which says whether it has this endpoint; wopproxy answers under " + mount, retryAfter: "5"}

// ErrNoAudiences is the answer where evidence for an audience is asked for, and none
// is made for audiences apart.
var ErrNoAudiences error = &apiError{status: http.StatusBadRequest, code: "validation_error",
	message: "nothing is signed for an audience alone: that takes evidence.privacy: strict"}

// errNoEvidence and errNoReceipt are the answers where nothing was signed.
var (
	errNoEvidence = &apiError{status: http.StatusNotFound, code: "not_found",
		message: "nothing is signed here: evidence.issuer is not configured"}
	errNoReceipt = &apiError{status: http.StatusNotFound, code: "not_found",
		message: "no such receipt of such a run: its call goes on, it was not signed here or not for that audience, it is older than what is kept, or its workflow has more than a bundle may have"}
)

func badRequest(message string) error {
	return &apiError{status: http.StatusBadRequest, code: "validation_error", message: message}
}

// envelope is the body of every error, closed, in both majors of OpenWOP.
type envelope struct {
	Error   string         `json:"error"`
	Message string         `json:"message"`
	Details map[string]any `json:"details,omitempty"`
}

// statusClientGone is what a request counts as whose client did not wait.
const statusClientGone = 499

// fail answers with err and returns the status. It is the one place where an
// error becomes a status: what is not listed here is ours, is logged, and stays
// hidden. version is the contract of the answer, unless the host has named its own;
// an empty one names none, and neither does any 1.x, which 1.x allows.
func (a *API) fail(w http.ResponseWriter, r *http.Request, version string, err error) int {
	e, ok := errors.AsType[*apiError](err)
	switch {
	case ok:
	case errors.Is(err, ErrNotFound):
		e = &apiError{status: http.StatusNotFound, code: "not_found", message: "run not found"}
	case r.Context().Err() != nil:
		return statusClientGone
	default:
		a.o.Logger.ErrorContext(r.Context(), "ancestry request failed", "err", err)
		e = &apiError{status: http.StatusInternalServerError, code: "internal_error", message: "internal error"}
	}
	h := w.Header()
	for _, c := range e.challenges {
		h.Add("WWW-Authenticate", c)
	}
	if e.retryAfter != "" {
		h.Set("Retry-After", e.retryAfter)
	}
	if e.version != "" && version != "" {
		version = e.version
	}
	if major(version) == 2 {
		h.Set(versionHeader, version)
	}
	if e.envelope != nil {
		writeBody(w, e.status, e.envelope)
	} else {
		writeJSON(w, e.status, envelope{e.code, e.message, e.details})
	}
	return e.status
}

// writeJSON sends v, which always marshals. Ancestry is never cached: who may
// read it can change, and a root may turn out to have a parent.
func writeJSON(w http.ResponseWriter, status int, v any) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(v)
	writeBody(w, status, b.Bytes())
}

func writeBody(w http.ResponseWriter, status int, body []byte) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = w.Write(body) // the client has gone; nobody is left to tell
}
