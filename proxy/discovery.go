package proxy

import (
	"net/http"
	"strings"

	"github.com/wopproxy/wopproxy/proxy/internal/openwop"
	"github.com/wopproxy/wopproxy/proxy/internal/wire"
)

// Claim says what a host's OpenWOP discovery document is made to say of the
// causation that the proxy adds.
type Claim string

// The claims. Cross-host causation is level 3 of the execution model, and levels
// are cumulative, so whoever claims it for a host claims those below with it.
const (
	ClaimNothing   Claim = "off"       // the document passes as it is
	ClaimExtension Claim = "extension" // it gets a vendor extension, and claims no level
	ClaimLevel3    Claim = "claim"     // it claims level 3 if the host itself claims 2, and else gets the extension
	ClaimAll       Claim = "assert"    // it claims level 3 whatever the host claims: its operator knows better
)

// claims are all that make a difference to what a document tells.
var claims = []Claim{ClaimExtension, ClaimLevel3, ClaimAll}

// discoveryPath is how the path of a discovery document ends.
const discoveryPath = "/.well-known/openwop"

// nothing is above every version, so that none of a document claims.
const nothing = 99

// level is the version of the execution model from which on a claim is made.
func (c Claim) level() int {
	switch c {
	case ClaimLevel3:
		return 2
	case ClaimAll:
		return 0
	}
	return nothing
}

// claims reports whether a document may claim cross-host causation by c.
func (c Claim) claims() bool { return c.level() != nothing }

// askForDiscovery makes out, which is in on its way to the host, ask for what
// can be edited, if it is for a discovery document, or creates a run, whose
// addresses are in the answer.
func (x *exchange) askForDiscovery(in, out *http.Request) {
	claim := x.policy.Claim
	get := in.Method == http.MethodGet || in.Method == http.MethodHead
	isDiscovery := get && strings.HasSuffix(in.URL.EscapedPath(), discoveryPath)
	creates := x.head.openwop == openwop.Create || x.head.openwop == openwop.Fork
	if claim == ClaimNothing || !isDiscovery && !creates {
		return
	}
	public := x.publicURL(in)
	if public == nil {
		return
	}
	edit := wire.DiscoveryEdit{
		AddressEdit: x.addresses(public), HostID: x.p.o.HostID, Claim: claim.level(), Extension: x.p.extension,
	}
	if creates {
		x.askForDocument(in, out, &document{
			inside: true, unread: func(why wire.Refusal) { x.p.metrics.unread(documentRun, why) },
			edit: func(body []byte) ([]byte, bool) { return wire.RunAddresses(body, edit.AddressEdit) },
		})
		return
	}
	d := &document{
		edit: func(body []byte) ([]byte, bool) {
			out, outcome, why := wire.RewriteDiscovery(body, edit)
			x.p.metrics.discovery(outcome, why)
			return out, len(out) > 0 && len(body) > 0 && &out[0] != &body[0]
		},
		unread: func(why wire.Refusal) { x.p.metrics.discovery(wire.DiscoveryRefused, why) },
		vary:   "OpenWOP-Version",
	}
	if path := in.URL.EscapedPath(); path == discoveryPath || path == strings.TrimSuffix(public.EscapedPath(), "/")+discoveryPath {
		d.missing = x.p.ownDiscovery // elsewhere it would be of somebody else behind the host
	}
	x.askForDocument(in, out, d)
}

// ownDiscovery is all that can be said of a host which has no discovery
// document. It is none either: it claims neither major, and its type says that
// it is no answer of the protocol's.
func (p *Proxy) ownDiscovery() (body []byte, contentType string) {
	p.metrics.discoveries.WithLabelValues(string(discoveryProvided)).Inc()
	return []byte(`{"extensions":{"` + wire.ExtensionKey + `":` + p.extension + `}}`), "application/vnd.wopproxy.discovery+json"
}
