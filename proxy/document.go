package proxy

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/wopproxy/wopproxy/proxy/internal/wire"
)

// document is what the answer to a request may be: a small document of the
// host's that callers are to get with changes.
type document struct {
	// edit returns the document as callers get it, and whether that is another
	// one.
	edit   func(body []byte) (out []byte, changed bool)
	unread func(why wire.Refusal) // counts a document that passes unread
	// missing makes the document that is there when the host has none; nil: none
	// is.
	missing func() (body []byte, contentType string)
	vary    string // the header that selects a representation, which the answer has to name
	framed  bool   // the document is the one message of an answer of gRPC
	json    bool   // what is not JSON is none, and must not wait
	inside  bool   // the document stands inside an answer that depends on more than the request's conditions

	// caller is the request with the conditions that the caller has set. The host
	// can't judge them, because it knows the document only as it is before.
	caller *http.Request
}

// documentConditions are the headers that make an answer something else than the
// whole document as it is.
var documentConditions = []string{
	"Accept-Encoding", "Range", "If-Range", "If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since",
}

// askForDocument makes out, which is in on its way to the host, ask for a whole
// document that can be read.
func (x *exchange) askForDocument(in, out *http.Request, d *document) {
	d.caller = &http.Request{Method: in.Method, Header: http.Header{}}
	if !d.inside && !d.takeConditions(in, out) {
		d.unread(wire.RefusedSigned)
		return
	}
	x.document = d
}

// takeConditions keeps the conditions of in to itself. It reports false, and
// changes nothing, if a signature of the caller covers what would have to go.
func (d *document) takeConditions(in, out *http.Request) bool {
	var covered []string
	for _, name := range documentConditions {
		if v := in.Header[name]; v != nil {
			d.caller.Header[name] = v
			covered = append(covered, strings.ToLower(name))
		}
	}
	if in.Method == http.MethodHead {
		covered = append(covered, "@method")
	}
	if signed(in.Header, covered...) {
		return false
	}
	for name := range d.caller.Header {
		delete(out.Header, name)
	}
	delete(d.caller.Header, "Accept-Encoding")
	if in.Method == http.MethodHead {
		out.Method = http.MethodGet // to know what GET would say of its length
	}
	return true
}

// passDocument edits the document in the answer, if there is one, and answers
// the caller's conditions. What can't be read passes as it is.
func (x *exchange) passDocument(resp *http.Response) {
	d := x.document
	if d.framed {
		x.passFramed(resp)
		return
	}
	if resp.StatusCode == http.StatusNotFound && d.missing != nil {
		d.provide(resp)
	} else if body, changed := x.readDocument(resp); body != nil && !d.inside {
		d.answer(resp, body, changed)
	}
	if d.caller.Method == http.MethodHead && resp.Body != http.NoBody {
		_ = resp.Body.Close() // nothing of it is wanted
		resp.Body = http.NoBody
	}
}

// provide answers in the place of a host that has no such document.
func (d *document) provide(resp *http.Response) {
	_ = resp.Body.Close()
	body, contentType := d.missing()
	resp.Header = http.Header{"Content-Type": {contentType}, "Etag": {`"none"`}, "Cache-Control": {"no-cache"}}
	restate(resp.Header, body)
	resp.StatusCode, resp.Status = http.StatusOK, "200 OK"
	setAnswer(resp, body)
	d.answer(resp, body, true)
}

// readDocument reads the answer and puts the edited document in its place. It
// returns the body that now stands there, or nil if it was not read.
func (x *exchange) readDocument(resp *http.Response) (body []byte, changed bool) {
	h, d := resp.Header, x.document
	switch why := uneditable(resp); {
	case resp.StatusCode != http.StatusOK && (!d.inside || resp.StatusCode/100 != 2),
		strings.HasPrefix(h.Get("Content-Type"), "text/event-stream"), d.json && !isJSON(h.Get("Content-Type")):
		return nil, false
	case why != "":
		d.unread(why)
		return nil, false
	}
	all, _, why := x.readAnswer(resp, false)
	if all == nil {
		d.unread(why)
		return nil, false
	}
	_ = resp.Body.Close() // it was read to its end
	body = all
	x.guard(func() { body, changed = d.edit(all) })
	if changed {
		restate(h, body)
	}
	if d.vary != "" {
		vary(h, d.vary)
	}
	setAnswer(resp, body)
	return body, changed
}

// uneditable says what in the head of an answer speaks against an edit of its body.
func uneditable(resp *http.Response) wire.Refusal {
	switch why := bodyBound(resp.Header); {
	case resp.Header["Content-Encoding"] != nil:
		return wire.RefusedEncoded
	case why != "":
		return why
	case len(resp.Trailer) > 0:
		return wire.RefusedTrailers
	}
	return ""
}

// passFramed edits the document in an answer of gRPC. What comes behind its
// message, the trailers among it, is left for the caller to wait for.
func (x *exchange) passFramed(resp *http.Response) {
	if resp.StatusCode != http.StatusOK || !strings.HasPrefix(resp.Header.Get("Content-Type"), mediaGRPC) || resp.Header["Grpc-Status"] != nil {
		return // an error
	}
	all, rest, why := x.readAnswer(resp, true)
	if all == nil {
		x.document.unread(why)
		return
	}
	body, changed := all, false
	if len(all) > 0 { // else the trailers say what is wrong
		x.guard(func() { body, changed = x.document.edit(all) })
	}
	if changed && resp.ContentLength >= 0 {
		resp.ContentLength += int64(len(body) - len(all))
		resp.Header["Content-Length"] = []string{strconv.FormatInt(resp.ContentLength, 10)}
	}
	resp.Body = &behind{io.MultiReader(bytes.NewReader(body), rest), rest}
}

// readAnswer reads the body of an answer, or, framed, of gRPC its first message,
// behind which is rest. If it can't, why is set, all is nil and the answer still has
// its body.
func (x *exchange) readAnswer(resp *http.Response, framed bool) (all []byte, rest io.ReadCloser, why wire.Refusal) {
	all, rest, outcome := readBody(resp.Body, framed, resp.ContentLength, x.policy.InspectedBody, x.policy.BodyPatience, &x.share)
	if all == nil {
		resp.Body = rest
		why = wire.RefusedCutOff
		switch outcome {
		case bodyTooLarge:
			x.p.metrics.limit(limitAnswer)
			why = wire.RefusedTooLarge
		case bodyCrowded:
			x.p.metrics.limit(limitBodies)
			why = wire.RefusedTooLarge
		case bodySlow:
			x.p.metrics.limit(limitSlowBody)
			why = wire.RefusedSlow
		}
		return nil, nil, why
	}
	if rest == nil {
		rest = resp.Body // at its end
	}
	if x.hears() && !framed {
		x.hear(all, true) // before it is edited
	}
	return all, rest, ""
}

// vary adds name to the headers that the answer depends on.
func vary(h http.Header, name string) {
	for _, v := range h["Vary"] {
		for one := range strings.SplitSeq(v, ",") {
			if one = strings.TrimSpace(one); one == "*" || strings.EqualFold(one, name) {
				return
			}
		}
	}
	h.Add("Vary", name)
}

// restate replaces what h says of a body that has changed. Its new tag is as
// weak as the old one; when it was changed last, nobody knows.
func restate(h http.Header, body []byte) {
	delete(h, "Last-Modified")
	if old := h.Get("Etag"); old != "" {
		sum := sha256.Sum256(body)
		tag := `"` + hex.EncodeToString(sum[:16]) + `"`
		if strings.HasPrefix(old, "W/") {
			tag = "W/" + tag
		}
		h["Etag"] = []string{tag}
	}
}

// setAnswer gives resp a body whose length is known.
func setAnswer(resp *http.Response, body []byte) {
	resp.Body, resp.ContentLength, resp.TransferEncoding = io.NopCloser(bytes.NewReader(body)), int64(len(body)), nil
	resp.Header["Content-Length"] = []string{strconv.Itoa(len(body))}
}

// answer turns the whole document in resp into what the caller's conditions ask for:
// nothing new, a part of it, its head alone. The standard library knows the
// rules; ranges are for hosts that know them.
func (d *document) answer(resp *http.Response, body []byte, changed bool) {
	h := resp.Header
	ranges := h["Accept-Ranges"]
	if !slices.Equal(ranges, []string{"bytes"}) {
		delete(d.caller.Header, "Range")
	}
	if len(d.caller.Header) == 0 {
		return
	}
	var modified time.Time
	if !changed {
		modified, _ = http.ParseTime(h.Get("Last-Modified")) // zero: unknown
	}
	typ := h["Content-Type"]
	h["Content-Type"] = typ // nil keeps it from being guessed
	w := &captured{header: h, status: http.StatusOK}
	delete(h, "Content-Length") // which a refusal would leave as it is
	http.ServeContent(w, d.caller, "", modified, bytes.NewReader(body))
	if h["Accept-Ranges"] = ranges; ranges == nil {
		delete(h, "Accept-Ranges")
	}
	if len(h["Content-Type"]) == 0 {
		delete(h, "Content-Type")
	}
	if h["Content-Length"] == nil && w.status != http.StatusNotModified {
		h["Content-Length"] = []string{strconv.Itoa(w.body.Len())}
	}
	resp.StatusCode, resp.Status = w.status, strconv.Itoa(w.status)+" "+http.StatusText(w.status)
	resp.Body, resp.ContentLength = io.NopCloser(&w.body), int64(w.body.Len())
}

// captured is a http.ResponseWriter that keeps what is written.
type captured struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (c *captured) Header() http.Header         { return c.header }
func (c *captured) WriteHeader(status int)      { c.status = status }
func (c *captured) Write(b []byte) (int, error) { return c.body.Write(b) }
