package proxy

import (
	"net/http"
	"net/url"
	"strings"

	"github.com/wopproxy/wopproxy/ancestry"
	"github.com/wopproxy/wopproxy/proxy/internal/attribution"
	"github.com/wopproxy/wopproxy/proxy/internal/wire"
)

// An A2A agent posts what becomes of a task to a URL that its caller gave it,
// out of any connection, and often before it has answered. So whose post it is
// can only be told from what the caller gave: URL, token, credentials. It is
// remembered on both sides before the request goes on, and found again where the
// post leaves the agent and where it arrives at the caller. The posts themselves
// stay as they are, but for the context in their headers.

// webhookOutcome says what was made of a request that asks for webhooks, or of
// a post to where it asked.
type webhookOutcome string

const (
	webhookAsked     webhookOutcome = "asked"
	webhookKnown     webhookOutcome = "known"
	webhookAmbiguous webhookOutcome = "ambiguous" // several may have asked for it
)

// leaving is the place of a post as the agent's side knows it: the whole URL.
// The scheme is left out, because egress may originate TLS.
func leaving(u *url.URL) string {
	path := u.EscapedPath()
	if path == "" {
		path = "/"
	}
	host := strings.ToLower(u.Host)
	switch u.Scheme {
	case "http":
		host = strings.TrimSuffix(host, ":80")
	case "https":
		host = strings.TrimSuffix(host, ":443")
	}
	return digest([]byte("leaving\x00" + host + "\x00" + path + "?" + u.RawQuery))
}

// arriving is the place of a post as the caller's side knows it: the host may
// have another name outside.
func arriving(u *url.URL) string {
	path := u.EscapedPath()
	if path == "" {
		path = "/"
	}
	return digest([]byte("arriving\x00" + path + "?" + u.RawQuery))
}

// expectToLeave remembers the webhook that a request to the host asks for.
func (x *exchange) expectToLeave(r *http.Request) {
	run := x.run
	if run == nil { // asked for in a request of its own, of a task that there is
		run = x.runByTask(r, x.msg.TaskID)
	}
	x.expect(leaving, run, attribution.Span{Trace: ancestry.TraceID(x.context.TraceID), Span: ancestry.SpanID(x.context.SpanID)})
}

// expectToArrive remembers the webhook that a request of the host asks for.
func (x *exchange) expectToArrive() {
	x.expect(arriving, x.run, attribution.Span{Trace: ancestry.TraceID(x.context.TraceID), Span: ancestry.SpanID(x.context.SpanID)})
}

// runByTask returns the run of a task of the host, or nil.
func (x *exchange) runByTask(r *http.Request, task string) *attribution.Run {
	id, err := ancestry.ParseRunID(task)
	if err != nil {
		return nil
	}
	if run := x.p.runs.Known(id); run != nil {
		return run
	}
	return x.p.storedRun(r.Context(), id)
}

func (x *exchange) expect(place func(*url.URL) string, run *attribution.Run, at attribution.Span) {
	u, err := url.Parse(x.msg.WebhookURL)
	if err != nil || u.Host == "" {
		return
	}
	x.asked = &attribution.Webhook{Place: place(u), Run: run, Span: at, Flags: x.context.Flags, Peer: x.server}
	if t := x.msg.WebhookToken; t != "" {
		x.asked.Secrets = append(x.asked.Secrets, tokenDigest(t))
	}
	if c := x.msg.WebhookCredentials; c != "" {
		x.asked.Secrets = append(x.asked.Secrets, credentialsDigest(c))
	}
	if !x.p.webhooks.Add(x.asked, x.msg.TaskID) {
		x.p.metrics.limit(limitWebhooks)
		x.asked = nil
		return
	}
	x.p.metrics.webhook(x.dir, webhookAsked)
}

func tokenDigest(t string) string       { return digest([]byte("token\x00" + t)) }
func credentialsDigest(c string) string { return digest([]byte("credentials\x00" + c)) }

// refusedWebhook reports whether no post will come of what was asked for.
func (x *exchange) refusedWebhook() bool {
	return x.failed >= http.StatusBadRequest && x.failed < http.StatusInternalServerError || x.errorCode != "" && !x.sends()
}

// findPost returns the webhook that a request to place is a post of, or why
// that can't be told. For other requests it returns neither.
func (x *exchange) findPost(r *http.Request, place string) (*attribution.Webhook, attribution.Reason) {
	if r.Method != http.MethodPost || x.msg.Kind == wire.Request || !isJSON(r.Header.Get("Content-Type")) || !x.p.webhooks.Expects(place) {
		return nil, ""
	}
	task := ""
	if x.body != nil {
		a, ok := wire.ReadAnswer(x.body, wire.A2A, true)
		if !ok || a.TaskID == "" && !a.BareMessage {
			return nil, ""
		}
		task, x.told = a.TaskID, &a
	}
	for _, secret := range x.secrets(r.Header) {
		if x.dir == ingress && secret == "" && (!x.trusted || len(task) < unlikely) {
			continue
		}
		w, why := x.p.webhooks.Find(place, secret, task, x.dir == ingress)
		switch {
		case w != nil:
			x.p.metrics.webhook(x.dir, webhookKnown)
			return w, ""
		case why != "":
			x.p.metrics.webhook(x.dir, webhookAmbiguous)
			return nil, why
		}
	}
	return nil, ""
}

// secrets are what a post proves itself by, hashed, the best first. Senders
// differ in whether they send the token beside the credentials.
func (x *exchange) secrets(h http.Header) []string {
	var found []string
	for _, name := range []string{"A2a-Notification-Token", "X-A2a-Notification-Token"} {
		if t := h.Get(name); t != "" {
			found = append(found, tokenDigest(t))
		}
	}
	token := len(found) > 0
	if _, c, ok := strings.Cut(h.Get("Authorization"), " "); ok {
		found = append(found, credentialsDigest(c))
	}
	if !token {
		found = append(found, "")
	}
	return found
}

// joinRequest gives a post without context of its own that of the request which
// asked for it, as its parent or as a link.
func (x *exchange) joinRequest() {
	asked := spanContext{
		TraceID: wire.TraceID(x.post.Span.Trace), SpanID: wire.SpanID(x.post.Span.Span), Flags: x.post.Flags,
	}
	switch {
	case x.received.Valid() || !asked.Valid():
	case x.policy.WebhookParent && !x.claimed:
		x.received = asked
	default:
		x.strayed(asked)
	}
}

// visit hands a request to the host as work of the run that it is for, which may
// be over.
func (x *exchange) visit(r *http.Request) {
	x.run, x.visits = x.p.runs.Visit(x.owner, ancestry.TraceID(x.context.TraceID))
	if !x.visits {
		x.p.metrics.limit(limitRuns)
		x.noteOther(r)
	}
}
