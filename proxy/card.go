package proxy

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/wopproxy/wopproxy/proxy/internal/wire"
)

// cardAsk is a request whose answer may be an agent card. Callers take the
// agent's addresses from its card and call them directly, so a card that gives
// the host's own address would lead them round the proxy for good.
type cardAsk struct {
	edit     wire.CardEdit
	inResult bool // the card is the result of a JSON-RPC answer
	// caller is the request with the conditions that the caller has set. The host
	// can't judge them, because it knows the card before it is rewritten only.
	caller *http.Request
}

// cardMethods are the JSON-RPC methods whose result is a card: 0.3, 1.0.
var cardMethods = []string{"agent/getAuthenticatedExtendedCard", "GetExtendedAgentCard"}

// cardPaths are how the paths of cards end, below any base path.
var cardPaths = []string{
	"/.well-known/agent-card.json", "/.well-known/agent.json", // the second up to 0.2.6
	"/agent-card.json", "/agent.json",
	"/extendedAgentCard", "/v1/card", "/agent/authenticatedExtendedCard", // REST 1.0, 0.3, 0.2
}

// cardConditions are the headers that make an answer something else than the
// whole card as it is.
var cardConditions = []string{
	"Accept-Encoding", "Range", "If-Range", "If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since",
}

// fetchesCard reports whether a GET or HEAD may be for a card: by its path, or,
// if the caller says that it speaks A2A, by being for nothing else that A2A gets.
func (x *exchange) fetchesCard(r *http.Request) bool {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		return false
	}
	path := r.URL.EscapedPath()
	return x.head.hints.Protocol == wire.A2A && !strings.Contains(path, "/tasks") ||
		slices.ContainsFunc(cardPaths, func(end string) bool { return strings.HasSuffix(path, end) })
}

// askForCard makes out, which is in on its way to the host, ask for a whole card
// that can be read.
func (x *exchange) askForCard(in, out *http.Request) {
	inResult := x.msg.Protocol == wire.A2A && x.isRPC() && slices.Contains(cardMethods, x.msg.Method)
	if x.policy.KeepCards || !inResult && !x.fetchesCard(in) {
		return
	}
	public := x.policy.PublicURL
	if public == nil {
		public = reachedAt(in)
	}
	if public == nil {
		x.p.metrics.card(wire.CardRefused)
		return
	}
	card := &cardAsk{inResult: inResult, caller: &http.Request{Method: in.Method, Header: http.Header{}}}
	card.edit = wire.CardEdit{Strip: x.policy.StripSignatures, AddressEdit: wire.AddressEdit{
		Own: x.ownAddress, Base: strings.TrimSuffix(x.p.o.Upstream.EscapedPath(), "/"),
		Public:     public.Scheme + "://" + public.Host + strings.TrimSuffix(public.EscapedPath(), "/"),
		PublicHost: authority(public),
	}}
	if !inResult && !card.takeConditions(in, out) {
		x.p.metrics.card(wire.CardRefused)
		return
	}
	x.card = card
}

// takeConditions keeps the conditions of in to itself. It reports false, and
// changes nothing, if a signature of the caller covers what would have to go.
func (c *cardAsk) takeConditions(in, out *http.Request) bool {
	var covered []string
	for _, name := range cardConditions {
		if v := in.Header[name]; v != nil {
			c.caller.Header[name] = v
			covered = append(covered, strings.ToLower(name))
		}
	}
	if in.Method == http.MethodHead {
		covered = append(covered, "@method")
	}
	if signed(in.Header, covered...) {
		return false
	}
	for name := range c.caller.Header {
		delete(out.Header, name)
	}
	delete(c.caller.Header, "Accept-Encoding")
	if in.Method == http.MethodHead {
		out.Method = http.MethodGet // to know what GET would say of its length
	}
	return true
}

// reachedAt is the address by which the caller reached us, or nil if it did not
// say.
func reachedAt(r *http.Request) *url.URL {
	scheme := "http"
	if r.TLS != nil {
		scheme = "https"
	}
	u, err := url.Parse(scheme + "://" + r.Host)
	if err != nil || u.Host != r.Host || u.Hostname() == "" {
		return nil
	}
	return u
}

// ownAddress reports whether host:port is the host behind us.
func (x *exchange) ownAddress(hostport string) bool {
	grpc := x.p.o.GRPCUpstream
	return sameAddress(hostport, authority(x.p.o.Upstream)) || grpc != nil && sameAddress(hostport, authority(grpc)) || allows(x.policy.OwnAddresses, hostport, false)
}

// sameAddress reports whether two addresses with ports are one, seen from this
// machine: all names of loopback are, and the address of every interface too.
func sameAddress(a, b string) bool {
	hostA, portA := splitAddress(a)
	hostB, portB := splitAddress(b)
	return portA == portB && (hostA == hostB || isLocal(hostA) && isLocal(hostB))
}

// splitAddress splits host:port into what can be compared.
func splitAddress(s string) (host, port string) {
	i := strings.LastIndexByte(s, ':')
	if i < 0 {
		return strings.ToLower(s), ""
	}
	host = strings.Trim(strings.TrimSuffix(strings.ToLower(s[:i]), "."), "[]")
	if ip, err := netip.ParseAddr(host); err == nil {
		host = ip.Unmap().String()
	}
	return host, strings.TrimLeft(s[i+1:], "0")
}

func isLocal(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && (ip.IsLoopback() || ip.IsUnspecified())
}

// passCard rewrites the card in the answer, if there is one, and answers the
// caller's conditions. What can't be read passes as it is.
func (x *exchange) passCard(resp *http.Response) {
	c := x.card
	if body, changed := x.readCard(resp); body != nil && !c.inResult {
		c.answer(resp, body, changed)
	}
	if c.caller.Method == http.MethodHead && resp.Body != http.NoBody {
		_ = resp.Body.Close() // nothing of it is wanted
		resp.Body = http.NoBody
	}
}

// readCard reads the answer and puts the rewritten card in its place. It returns
// the body that now stands there, or nil if it was not read.
func (x *exchange) readCard(resp *http.Response) (body []byte, changed bool) {
	h := resp.Header
	switch {
	case resp.StatusCode != http.StatusOK || strings.HasPrefix(h.Get("Content-Type"), "text/event-stream"):
		return nil, false
	case h["Content-Encoding"] != nil || bodyBound(h) != "" || len(resp.Trailer) > 0:
		x.p.metrics.card(wire.CardRefused)
		return nil, false
	}
	all, rest, why := readBody(resp.Body, false, resp.ContentLength, x.policy.InspectedBody, x.policy.BodyPatience)
	if all == nil {
		resp.Body = rest
		switch why {
		case bodyTooLarge:
			x.p.metrics.limit(limitAnswer)
		case bodySlow:
			x.p.metrics.limit(limitSlowBody)
		}
		x.p.metrics.card(wire.CardRefused)
		return nil, false
	}
	_ = resp.Body.Close() // it was read to its end
	body = all
	var outcome wire.CardOutcome
	x.guard(func() { body, outcome, _ = wire.RewriteCard(all, x.card.inResult, x.card.edit) })
	x.p.metrics.card(outcome)
	if outcome == wire.CardSigned {
		x.p.signedCard.Do(func() {
			x.p.o.Logger.Warn("the host's agent card is signed and gives the host's own address, so its readers call past wopproxy; let the card name the public address, or set ingress.agentCards.signed to strip")
		})
	}
	if changed = outcome == wire.CardRewritten || outcome == wire.CardStripped; changed {
		restate(h, body)
	}
	setAnswer(resp, body)
	return body, changed
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

// answer turns the whole card in resp into what the caller's conditions ask for:
// nothing new, a part of it, its head alone. The standard library knows the
// rules; ranges are for hosts that know them.
func (c *cardAsk) answer(resp *http.Response, body []byte, changed bool) {
	h := resp.Header
	ranges := h["Accept-Ranges"]
	if !slices.Equal(ranges, []string{"bytes"}) {
		delete(c.caller.Header, "Range")
	}
	if len(c.caller.Header) == 0 {
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
	http.ServeContent(w, c.caller, "", modified, bytes.NewReader(body))
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
