package proxy

import (
	"crypto/subtle"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/wopproxy/wopproxy/ancestry"
)

// Policy is what may change while the proxy runs. A zero field means its
// default, if it has one.
type Policy struct {
	Starts     func(method, escapedPath string) bool // plain HTTP requests that start a run; nil: none
	MCPMethods []string                              // MCP methods that start a run; default tools/call, resources/read, prompts/get

	AncestryHeader string        // default Run-Ancestry
	RunIDHeader    string        // default Run-Id
	CommitTimeout  time.Duration // an answer waits this long for its link to be durable; default 100 ms

	RewriteHost    bool                     // send the upstream's own Host; default: the caller's
	AllowedHosts   func(host string) bool   // with RewriteHost: values of Host that are let through; nil: all
	AllowedOrigins func(origin string) bool // with RewriteHost: values of Origin that are let through; nil: all

	Claim           Claim                      // what OpenWOP discovery says of the causation that the proxy adds; default ClaimExtension
	PublicURL       *url.URL                   // where callers reach Ingress, for agent cards; nil: where each one says it did
	KeepCards       bool                       // pass the host's agent cards as they are
	OwnAddresses    func(hostport string) bool // addresses in agent cards that are the host, besides that of Options.Upstream; nil: none
	AttachReceipts  bool                       // answers of the host bear the receipts of their steps, where Options.Evidence makes any; default: they pass as they are
	StripSignatures bool                       // rewrite signed agent cards too, without their signatures; default: they pass as they are

	Secret        string         // password that makes the user name of a proxy credential a run id; empty: none does
	ConnectPorts  []int          // ports that CONNECT may reach; empty: any
	DenyLinkLocal bool           // refuse to dial link-local and metadata addresses
	DenyAddresses []netip.Prefix // further networks that are not dialled

	DialTimeout time.Duration // how long egress tries to connect; default 10 s

	Intercept    func(hostport string) bool // destinations of CONNECT whose TLS is opened; nil: none
	OriginateTLS func(hostport string) bool // destinations whose http:// goes out as https://; nil: none

	TrustCaller      func(netip.Addr) bool      // callers whose context and ancestry are taken; nil: all
	TrustDestination func(hostport string) bool // who is told ancestry and baggage; nil: all

	Tylo              func(hostport string) bool // who is sent Tylo carriers too; nil: nobody
	A2AInMessage      func(hostport string) bool // who is sent context in A2A messages even where there was none; nil: nobody
	AncestryInMessage func(hostport string) bool // who is sent Run-Ancestry in MCP _meta too; nil: nobody
	SessionsPerRun    bool                       // the host opens each client session and conversation for one run only
	ProcessPerRun     bool                       // the host runs each run in a process of its own, on this machine; Linux only
	ProcessScan       time.Duration              // a call waits this long for the process that made it to be found; default 500 ms
	SessionHeaders    []string                   // request headers whose value names one run of the host at a time
	WebhookParent     bool                       // a webhook without context goes on with the context of the request that asked for it; default: it links to it

	Sample      float64  // share of the traces begun here that are marked as sampled when no spans are made
	Propagators []string // foreign formats adopted: b3, jaeger, xray, ottrace

	WatchURL        *url.URL // where the proxy reads the event logs of the host's runs by itself; nil: nowhere
	WatchCredential string   // the bearer token that it shows there; empty: none
	MaxFollowed     int      // logs that it reads at once; default 1000

	WithholdUnescalated bool // refuse calls that carry out a decision which is under the confidence floor and not escalated

	InspectedBody    int64         // longer bodies pass unread; default 4 MiB
	InspectedBodies  int64         // when all bodies that are read hold so much, further ones beyond 64 KiB pass unread; default 64 MiB
	InspectedEvent   int           // longer SSE events pass unread; default 1 MiB
	BodyPatience     time.Duration // a body that takes longer to arrive passes unread; default 10 s
	StdioLine        int64         // longer lines of stdio pass unread; default 16 MiB
	MaxDepth         int           // a delegation deeper than this is refused; 0: never
	MaxVisitsPerHost int           // a run above which this host stands more often is refused; 0: never
}

// policy is a Policy made ready for use.
type policy struct {
	Policy
	mcpMethods map[string]bool
	// runIDShadow is the spelling with underscores, which CGI and WSGI servers
	// can't tell from the header itself.
	runIDShadow string
	foreign     []foreignFormat
	outbound    *transports // to the world: connections that this policy allows
}

// compile fills in defaults and checks what a caller can get wrong.
func (p Policy) compile() (*policy, error) {
	if p.AncestryHeader == "" {
		p.AncestryHeader = ancestry.HeaderRunAncestry
	}
	if p.RunIDHeader == "" {
		p.RunIDHeader = ancestry.HeaderRunID
	}
	p.AncestryHeader, p.RunIDHeader = http.CanonicalHeaderKey(p.AncestryHeader), http.CanonicalHeaderKey(p.RunIDHeader)
	if p.ProcessScan == 0 {
		p.ProcessScan = 500 * time.Millisecond
	}
	if p.ProcessPerRun && !processesKnown {
		return nil, errors.New("proxy: which process made a call is known on Linux only, turn off attribution.processPerRun")
	}
	p.SessionHeaders = slices.Clone(p.SessionHeaders)
	for i, name := range p.SessionHeaders {
		p.SessionHeaders[i] = http.CanonicalHeaderKey(name)
	}
	if p.Claim == "" {
		p.Claim = ClaimExtension
	}
	if p.CommitTimeout == 0 {
		p.CommitTimeout = 100 * time.Millisecond
	}
	if p.MaxFollowed == 0 {
		p.MaxFollowed = 1000
	}
	if p.InspectedBody == 0 {
		p.InspectedBody = 4 << 20
	}
	if p.InspectedBodies == 0 {
		p.InspectedBodies = 64 << 20
	}
	if p.InspectedEvent == 0 {
		p.InspectedEvent = 1 << 20
	}
	if p.BodyPatience == 0 {
		p.BodyPatience = 10 * time.Second
	}
	if p.StdioLine == 0 {
		p.StdioLine = 16 << 20
	}
	if p.DialTimeout == 0 {
		p.DialTimeout = dialTimeout
	}
	if p.MCPMethods == nil {
		p.MCPMethods = []string{"tools/call", "resources/read", "prompts/get"}
	}
	c := &policy{Policy: p, mcpMethods: make(map[string]bool)}
	c.runIDShadow = http.CanonicalHeaderKey(strings.ReplaceAll(p.RunIDHeader, "-", "_"))
	for _, m := range p.MCPMethods {
		c.mcpMethods[m] = true
	}
	for _, name := range p.Propagators {
		f, ok := foreignFormats[name]
		if !ok {
			return nil, fmt.Errorf("proxy: unknown propagator %q", name)
		}
		c.foreign = append(c.foreign, f)
	}
	return c, nil
}

// reaches reports whether the same addresses are dialled as under other.
func (p *policy) reaches(other *policy) bool {
	return p.DenyLinkLocal == other.DenyLinkLocal && slices.Equal(p.DenyAddresses, other.DenyAddresses)
}

// trusts reports whether context from the caller at addr is taken.
func (p *policy) trusts(addr string) bool {
	if p.TrustCaller == nil {
		return true
	}
	ap, err := netip.ParseAddrPort(addr)
	return err == nil && p.TrustCaller(ap.Addr().Unmap())
}

// secretMatches compares in constant time.
func (p *policy) secretMatches(password string) bool {
	return p.Secret != "" && subtle.ConstantTimeCompare([]byte(password), []byte(p.Secret)) == 1
}

// authority returns host:port of a destination, with the port that its scheme
// implies.
func authority(u *url.URL) string {
	switch {
	case u.Port() != "":
		return u.Host
	case u.Scheme == "https":
		return u.Host + ":443"
	}
	return u.Host + ":80"
}

// allows asks a rule that may be absent, and then says what its absence means.
func allows[T any](rule func(T) bool, subject T, absent bool) bool {
	if rule == nil {
		return absent
	}
	return rule(subject)
}
