package proxy

import (
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/wopproxy/wopproxy/proxy/internal/wire"
)

// cardMethods are the JSON-RPC methods whose result is a card: 0.3, 1.0.
var cardMethods = []string{"agent/getAuthenticatedExtendedCard", "GetExtendedAgentCard"}

// cardPaths are how the paths of cards end, below any base path.
var cardPaths = []string{
	"/.well-known/agent-card.json", "/.well-known/agent.json", // the second up to 0.2.6
	"/agent-card.json", "/agent.json",
	"/extendedAgentCard", "/v1/card", "/agent/authenticatedExtendedCard", // REST 1.0, 0.3, 0.2
}

// fetchesCard reports whether a GET or HEAD may be for a card: surely by its
// path; or, if the caller says that it speaks A2A, by being for nothing else that
// A2A gets. Then it may still be for a file: so not if it asks for a part or for
// the head alone.
func (x *exchange) fetchesCard(r *http.Request) (may, sure bool) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		return false, false
	}
	path := r.URL.EscapedPath()
	sure = slices.ContainsFunc(cardPaths, func(end string) bool { return strings.HasSuffix(path, end) })
	return sure || x.head.hints.Protocol == wire.A2A && !strings.Contains(path, "/tasks") &&
		r.Method == http.MethodGet && r.Header["Range"] == nil, sure
}

// askForCard makes out, which is in on its way to the host, ask for a whole card
// that can be read. Callers take the agent's addresses from its card and call
// them directly, so a card that gives the host's own address would lead them
// round the proxy for good.
func (x *exchange) askForCard(in, out *http.Request) {
	inResult := x.msg.Protocol == wire.A2A && x.isRPC() && slices.Contains(cardMethods, x.msg.Method)
	path := x.head.hints.GRPC
	framed := wire.AnswersCard(path)
	fetched, sure := x.fetchesCard(in)
	if x.policy.KeepCards || !inResult && !framed && !fetched {
		return
	}
	public := x.publicURL(in)
	if public == nil {
		x.p.metrics.card(wire.CardRefused, wire.RefusedNoAddress)
		return
	}
	edit := wire.CardEdit{AddressEdit: x.addresses(public), Strip: x.policy.StripSignatures}
	x.askForDocument(in, out, &document{
		inside: inResult || framed, framed: framed, json: fetched && !sure,
		edit: func(body []byte) ([]byte, bool) {
			var out []byte
			var outcome wire.CardOutcome
			var why wire.Refusal
			if framed {
				out, outcome, why = wire.RewriteRPCCard(body, path, edit)
			} else {
				out, outcome, why = wire.RewriteCard(body, inResult, edit)
			}
			x.p.metrics.card(outcome, why)
			if outcome == wire.CardSigned {
				x.p.signedCard.Do(func() {
					x.p.o.Logger.WarnContext(in.Context(), "the host's agent card is signed and gives the host's own address, so its readers call past wopproxy; let the card name the public address, or set ingress.agentCards.signed to strip")
				})
			}
			return out, outcome == wire.CardRewritten || outcome == wire.CardStripped
		},
		unread: func(why wire.Refusal) { x.p.metrics.card(wire.CardRefused, why) },
	})
}

// publicURL is where callers reach us: as configured, or as this one did; nil if
// it did not say.
func (x *exchange) publicURL(r *http.Request) *url.URL {
	if x.policy.PublicURL != nil {
		return x.policy.PublicURL
	}
	return reachedAt(r)
}

// addresses says that callers who are given the host's own address shall use
// public.
func (x *exchange) addresses(public *url.URL) wire.AddressEdit {
	return wire.AddressEdit{
		Own: x.ownAddress, Base: strings.TrimSuffix(x.p.o.Upstream.EscapedPath(), "/"),
		Public:     public.Scheme + "://" + public.Host + strings.TrimSuffix(public.EscapedPath(), "/"),
		PublicHost: authority(public),
	}
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

// ownAddress reports whether host:port is the host behind us. The port that it
// has for gRPC alone is reached through us by gRPC alone.
func (x *exchange) ownAddress(hostport string, grpc bool) bool {
	rpc := x.p.o.GRPCUpstream
	return sameAddress(hostport, authority(x.p.o.Upstream)) ||
		grpc && rpc != nil && sameAddress(hostport, authority(rpc)) ||
		allows(x.policy.OwnAddresses, hostport, false)
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
