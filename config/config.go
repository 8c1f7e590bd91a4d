// Package config reads wopproxy.yaml.
//
// A file is read strictly and as a whole: an unknown key, a key set twice and a
// value of the wrong kind are mistakes like any other, and [Load] reports all
// mistakes of a file at once, each with the path of its key, its line, and what
// to write instead. What Load returns needs no further checking: addresses,
// durations, sizes, patterns and rules are parsed into their types, and every
// number is within its limits.
//
// The package reads the file and nothing else. Secrets stand in files or in
// environment variables, the file only says where; [Secret.Read] fetches them.
//
// [Config] is the manual: each field says its default, its limits and what
// follows from it. wopproxy.schema.json, made from the same fields, is for
// editors and charts.
package config

import "log/slog"

// Config is the configuration of one wopproxy. A key that the file leaves out
// has the value that its field names as the default. A section or a list
// without content ("limits:") is a key left out; a single value without content
// is a mistake.
//
// A field whose comment says "needs a restart" is read at start only (see
// [RestartKeys]); all others follow the file while the proxy runs.
type Config struct {
	// Host says who this host is to other hosts.
	Host Host `yaml:"host"`
	// Ingress is where calls into the host arrive.
	Ingress Ingress `yaml:"ingress"`
	// Egress is where the host's own calls leave.
	Egress Egress `yaml:"egress"`
	// Admin is the listener for probes, metrics and operators.
	Admin Admin `yaml:"admin"`
	// Ancestry says where parent links are kept, how long, and who may read them.
	Ancestry Ancestry `yaml:"ancestry"`
	// Evidence says whether receipts of what passes are signed and kept, in PEAC's
	// form, and with which keys.
	Evidence Evidence `yaml:"evidence"`
	// Headers names the two headers that proxies exchange.
	Headers Headers `yaml:"headers"`
	// Runs says which requests start a run and how long one is live.
	Runs Runs `yaml:"runs"`
	// Attribution tunes how an outbound call finds its run.
	Attribution Attribution `yaml:"attribution"`
	// ExecutionModel says what follows from the rules of OpenWOP's execution model.
	ExecutionModel ExecutionModel `yaml:"executionModel"`
	// Trust says whose context is adopted and who receives ours.
	Trust Trust `yaml:"trust"`
	// Carriers names the destinations that want context in a further place.
	Carriers Carriers `yaml:"carriers"`
	// Tracing says which trace formats are read and where spans go.
	Tracing Tracing `yaml:"tracing"`
	// Limits bounds what the proxy holds in memory. What exceeds a limit is
	// counted and forwarded, unless the field says that it is refused.
	Limits Limits `yaml:"limits"`
	// Drain says how the proxy stops.
	Drain Drain `yaml:"drain"`
	// Log says what is logged.
	Log Log `yaml:"log"`

	given map[string]int // the keys that the file sets, with their lines
}

// Host says who this host is to other hosts.
type Host struct {
	// ID is the hostId of this host: stable, unique among the hosts that
	// exchange calls, the same for all its replicas and the same that the host
	// advertises itself: its own answers in another name are not handed on. 1 to 255 visible ASCII characters. No default: required.
	// A change needs a restart, because stored links were answered under the old
	// name.
	ID string `yaml:"id" required:"the hostId of this host, for example planner.example.com/agent" pattern:"^[!-~]{1,255}$" want:"1 to 255 visible ASCII characters" restart:"yes"`
	// WellKnownURL is the address of this host's discovery document as other
	// hosts reach it, ending in /.well-known/openwop. At most 2048 bytes. No
	// default: required. Whoever reads an ancestry answer walks on through it. A change
	// needs a restart.
	WellKnownURL URL `yaml:"wellKnownUrl" required:"the public address of the discovery document, for example https://planner.example.com/.well-known/openwop" restart:"yes"`
}

// Ingress is where calls into the host arrive.
type Ingress struct {
	// Listen is the address for calls into the host. Default 127.0.0.1:8088,
	// which only this machine reaches; ":8088" admits everyone who reaches the
	// host's network. A change needs a restart.
	Listen Address `yaml:"listen" restart:"yes"`
	// Transparent is the address for calls into the host that the kernel redirects
	// here, by the rules that wopproxy redirect -inbound sets: callers know nothing
	// of it, and Services need no change. Default none. Write ":8188": such a
	// connection arrives at the address of the pod, so loopback gets none. What was
	// meant for the port of upstream is served as on listen; what was meant for
	// other ports goes on to them, HTTP as exchanges and all else blind. Connections
	// that nobody has redirected are refused and counted. Linux only. A change needs
	// a restart.
	Transparent Address `yaml:"transparent" restart:"yes"`
	// Upstream is the host itself; a path in it goes in front of the path of
	// every request. No default: required. A change needs a restart.
	Upstream URL `yaml:"upstream" required:"the address of the host behind this proxy, for example http://127.0.0.1:8080" restart:"yes"`
	// GRPCUpstream is where the host takes gRPC, if that is another address than
	// upstream: many hosts serve it on a port of its own. http:// speaks HTTP/2
	// without TLS, https:// with TLS and a certificate that leads to the system's
	// roots. It takes no path. Default none, which is upstream. A change needs a
	// restart.
	GRPCUpstream URL `yaml:"grpcUpstream" restart:"yes"`
	// Host is the Host header that the host sees: the caller's (preserve) or
	// that of the upstream address (upstream). Default preserve. With upstream
	// the host can no longer tell a rebound DNS name from its own, so the proxy
	// has to, by allowedHosts and allowedOrigins.
	Host HostHeader `yaml:"host" enum:"preserve|upstream"`
	// AllowedHosts are the Host headers let in while host is upstream; others
	// are refused with 403. Default []. Required with upstream, which blinds the
	// host's own check; not allowed with preserve, where the host checks for
	// itself.
	AllowedHosts Hosts `yaml:"allowedHosts"`
	// AllowedOrigins are the Origin headers let in while host is upstream;
	// others are refused with 403, a request without one passes. Default [],
	// which then refuses every request that bears an Origin: name the origins of
	// the pages that call this host from a browser. Not allowed with preserve,
	// where the host checks for itself.
	AllowedOrigins Origins `yaml:"allowedOrigins"`
	// PublicURL is where callers reach this listener, for the host's agent cards;
	// a path in it goes in front of the paths in the card. Default none: each
	// caller is shown the address that it used itself, as its Host header says,
	// and https only if it came by TLS. Write it where something in front of this
	// listener ends TLS, or changes Host or path.
	PublicURL URL `yaml:"publicUrl"`
	// AgentCards says what becomes of the host's own address in its A2A agent
	// cards.
	AgentCards AgentCards `yaml:"agentCards"`
	// Discovery says what the host's OpenWOP discovery document is made to say.
	Discovery Discovery `yaml:"discovery"`
}

// Discovery says what the host's OpenWOP discovery document is made to say. The
// host's own addresses in it, and in its answers to who creates a run, become
// those by which callers reach this proxy.
type Discovery struct {
	// Causation is how the document tells of the causation that this proxy adds.
	// extension: in extensions["wopproxy.causation"], and no level is claimed.
	// claim: the host claims cross-host causation, which is level 3 of its
	// execution model, if it claims level 2 itself; you say by it that the host
	// makes all its calls through this proxy and that they are all attributed.
	// assert: it claims level 3 whatever it claims itself; you say that it keeps
	// levels 1 and 2, too. off: the document passes as it is. Default extension.
	// What the host says of cross-host causation itself always stands. Where claim
	// or assert make the document claim it, events of a run that are known to be
	// caused on another host get payload.causationHostId in streams, polls and
	// lists; webhooks are signed, and pass as they are. A host that has a document
	// which does not claim the ancestry endpoint has to answer 404 on its path, and
	// so it does here: ancestry is then read under /host/wopproxy and
	// /v1/host/wopproxy, which extension tells callers, and off does not.
	Causation Causation `yaml:"causation" enum:"extension|claim|assert|off"`
}

// Causation says how discovery tells of causation.
type Causation string

// The values of ingress.discovery.causation.
const (
	CausationExtension Causation = "extension"
	CausationClaim     Causation = "claim"
	CausationAssert    Causation = "assert"
	CausationOff       Causation = "off"
)

// AgentCards says what becomes of the host's own address in its A2A agent cards.
// Callers take the addresses from a card and call them directly, so the host's
// own there leads them past this proxy.
type AgentCards struct {
	// Rewrite puts publicUrl in the place of the host's own address: scheme, host
	// and port of url, additionalInterfaces and supportedInterfaces, and host:port
	// of gRPC. Default true: an address that is upstream's own is a way past this
	// proxy for certain. Other addresses stay, and so do bindings that are named
	// by a URI and URLs above the path of upstream. A card larger than
	// limits.inspectedBody passes as it is.
	Rewrite bool `yaml:"rewrite"`
	// Own are addresses of the host besides that of upstream, as its card may give
	// them: its name in the cluster, with the port. Default []. What is called
	// there is from then on called through this listener, so it has to be served
	// by upstream too. All names of loopback count as one.
	Own Hosts `yaml:"own"`
	// Signed is what becomes of a signed card that gives the host's own address:
	// it passes as it is (pass), or is rewritten and loses its signatures, which
	// would no longer fit (strip). Default pass: callers then go past this proxy,
	// which is logged once and counted.
	Signed SignedCards `yaml:"signed" enum:"pass|strip"`
}

// SignedCards says what becomes of signed agent cards.
type SignedCards string

// The values of ingress.agentCards.signed.
const (
	SignedPass  SignedCards = "pass"
	SignedStrip SignedCards = "strip"
)

// HostHeader says which Host header reaches the host.
type HostHeader string

// The values of ingress.host.
const (
	HostPreserve HostHeader = "preserve"
	HostUpstream HostHeader = "upstream"
)

// Egress is where the host's own calls leave.
type Egress struct {
	// Listen is the address that the host uses as its HTTP proxy. Default
	// 127.0.0.1:8089, which only this machine reaches. Whoever reaches it can use
	// it, without any password, to call whatever this machine can call:
	// credentials keep nobody out. Away from loopback, let the network admit the
	// host alone. A change needs a restart.
	Listen Address `yaml:"listen" restart:"yes"`
	// Transparent is the address for the host's calls that the kernel redirects
	// here, by the rules that wopproxy redirect -outbound sets: the host needs no
	// proxy in its environment. Default none. Write ":8189", which takes IPv4 and
	// IPv6. A call goes on to the address that it was meant for, whatever name it
	// has in it: HTTP as exchanges, TLS blind or opened as intercept says by the
	// name in its hello, all else blind. denyLinkLocal, denyAddresses and
	// dialTimeout count, connectPorts does not; a call that is refused, or not
	// taken, is reset. Connections that nobody has redirected are refused and
	// counted. Linux only. A change needs a restart.
	Transparent Address `yaml:"transparent" restart:"yes"`
	// ConnectPorts are the ports to which CONNECT may open a tunnel; others are
	// refused. Default [], which means any. Each 1 to 65535.
	ConnectPorts []int `yaml:"connectPorts" min:"1" max:"65535"`
	// DenyLinkLocal refuses calls to link-local addresses, where clouds serve
	// credentials to whoever asks, and to the other addresses at which AWS, Google,
	// Azure, Alibaba and Oracle do. Default true.
	DenyLinkLocal bool `yaml:"denyLinkLocal"`
	// DenyAddresses are networks to which calls are refused with 502, CONNECT
	// included. Default []. What counts is the address that is dialled, whatever
	// name led to it, and for an IPv4 address in IPv6 (NAT64, 6to4) both of them;
	// 0.0.0.0 and :: are this machine. Tunnels that are open already stay, and
	// requests under way; connections that are kept for others are closed.
	DenyAddresses CIDRs `yaml:"denyAddresses"`
	// DialTimeout is how long the proxy tries to connect to a destination. Default
	// 10s; 100ms to 2m. Past it the host is answered 504 and it is counted: longer
	// waits reach destinations that are slow to take connections.
	DialTimeout Duration `yaml:"dialTimeout" min:"100ms" max:"2m"`
	// Intercept names the destinations whose TLS the proxy opens, so that calls
	// to them can be attributed and stamped. Default []: all TLS passes blind. The
	// host must trust ca; where a client refuses it, or speaks TLS that the proxy
	// does not, the destination passes blind for a day.
	Intercept Hosts `yaml:"intercept"`
	// OriginateTLS names the destinations for which http:// from the host becomes
	// https:// outside, for hosts that can't call https. Default [].
	OriginateTLS Hosts `yaml:"originateTLS"`
	// CA signs the certificates that the host is shown where TLS is opened.
	CA CA `yaml:"ca"`
	// Roots is a file of certificates, PEM, that a destination's own may lead to
	// besides the system's. Default none. A change needs a restart.
	Roots string `yaml:"roots" pattern:"." want:"a path, write for example /etc/wopproxy/roots.pem" restart:"yes"`
	// Credentials make a proxy user name worth believing.
	Credentials Credentials `yaml:"credentials"`
}

// CA is the certificate authority of this proxy alone.
type CA struct {
	// Cert is the authority's certificate, a PEM file. Default none: one is made
	// at start and gone with the process. Goes with key. A change needs a restart.
	Cert string `yaml:"cert" pattern:"." want:"a path, write for example /etc/wopproxy/ca.pem" restart:"yes"`
	// Key is its private key, a PEM file. Default none. Goes with cert. A change
	// needs a restart.
	Key string `yaml:"key" pattern:"." want:"a path, write for example /etc/wopproxy/ca-key.pem" restart:"yes"`
	// Create has the proxy make the authority, cert and key, where cert is not there,
	// and write both: a host that has read bundle trusts it after a restart, too.
	// Keep their folder from everybody else. Default false. Goes with cert and key.
	// A change needs a restart.
	Create bool `yaml:"create" restart:"yes"`
	// Bundle is a file that is written at start: the system's roots and this
	// authority, for SSL_CERT_FILE and its like in the host's environment. Default
	// none. Required by egress.intercept unless cert is given. A change needs a
	// restart.
	Bundle string `yaml:"bundle" pattern:"." want:"a path, write for example /run/wopproxy/bundle.pem" restart:"yes"`
}

// Credentials make a proxy user name worth believing.
type Credentials struct {
	// Secret is the password with which a proxy user name counts as a run id
	// (http://<runId>:<secret>@127.0.0.1:8089). Default none: then no user name
	// is evidence of anything. A call without it, or with a wrong one, passes all
	// the same and finds its run in another way.
	Secret Secret `yaml:"secret"`
}

// Admin is the listener for probes, metrics and operators.
type Admin struct {
	// Listen is the address for probes, metrics and the ancestry extensions,
	// which need no credential: expose it to nobody who may not read all runs.
	// Default 127.0.0.1:9090. A change needs a restart.
	Listen Address `yaml:"listen" restart:"yes"`
	// Health is an address for probes and metrics alone, for a kubelet and a
	// Prometheus that come from elsewhere: with it, listen can stay on loopback.
	// Default none. A change needs a restart.
	Health Address `yaml:"health" restart:"yes"`
	// Pprof serves profiles under /debug/pprof/. Default false. Allowed only
	// where listen is a loopback address: profiles hold memory contents. A change
	// needs a restart.
	Pprof bool `yaml:"pprof" restart:"yes"`
}

// Ancestry says where parent links are kept, how long, and who may read them.
type Ancestry struct {
	// Store is where links are kept.
	Store Store `yaml:"store"`
	// Retention is when links are forgotten.
	Retention Retention `yaml:"retention"`
	// CommitTimeout is how long a response waits for its link to be durable.
	// Default 100ms; 1ms to 30s. Past it the response goes out all the same and
	// is counted: longer waits lose fewer links to a crash, and cost latency
	// when the disk stalls.
	CommitTimeout Duration `yaml:"commitTimeout" min:"1ms" max:"30s"`
	// Auth says who may read the ancestry of a run.
	Auth Auth `yaml:"auth"`
}

// Store is where links are kept. Bolt is the only kind so far.
type Store struct {
	// Bolt is the embedded store.
	Bolt Bolt `yaml:"bolt"`
}

// Bolt is the embedded store: files in one directory, which one process owns.
type Bolt struct {
	// Dir is the directory of the store; it is made if it is absent. Default
	// /var/lib/wopproxy. Links are lost with it: put it on a volume that lives
	// as long as the host's own runs. A change needs a restart.
	Dir string `yaml:"dir" pattern:"." want:"a directory, write for example /var/lib/wopproxy" restart:"yes"`
	// Journal is how large each of the two files of its journal is. What they hold
	// is in memory too, and takes about three times as much there. Default 512KiB;
	// 64KiB to 64MiB. In a smaller one fewer links share a write to the other files,
	// and more responses wait for it where the disk is slow. A change needs a
	// restart.
	Journal Bytes `yaml:"journal" min:"64KiB" max:"64MiB" restart:"yes"`
}

// Retention is when links are forgotten, and the receipts of evidence with them. A
// forgotten run is answered like one that never was.
type Retention struct {
	// Age is how long a link is kept at least. Default 720h; 1h to 87600h. A
	// change needs a restart.
	Age Duration `yaml:"age" min:"1h" max:"87600h" restart:"yes"`
	// Links is how many are kept, receipts counted with them: while there are more,
	// the oldest file of links goes, whatever its age, but never the newest. They are
	// counted once a minute.
	// A file has a day of links, or a 64th of this number (but at least 65536) if a
	// day brings more. Default 10000000; 1000 to 1000000000. A change needs a
	// restart.
	Links int `yaml:"links" min:"1000" max:"1000000000" restart:"yes"`
}

// Auth says who may read the ancestry of a run on the ingress listener.
type Auth struct {
	// Mode is how a reader is known. Default host: the host is asked, with the
	// reader's own credentials, whether it would show the run. bearer: the
	// token opens all runs and nothing else opens any. none: everyone reads all,
	// allowed only where ingress.listen is a loopback address. A change needs a
	// restart.
	Mode AuthMode `yaml:"mode" enum:"host|bearer|none" restart:"yes"`
	// Bearer is a token that may read every run. Default none. Required by mode
	// bearer; in mode host it also opens the runs that the host cannot know, in
	// mode none it is not allowed.
	Bearer Secret `yaml:"bearer"`
}

// AuthMode says how a reader of ancestry is known.
type AuthMode string

// The values of ancestry.auth.mode.
const (
	AuthHost   AuthMode = "host"
	AuthBearer AuthMode = "bearer"
	AuthNone   AuthMode = "none"
)

// Evidence is what it takes to sign receipts: each call that starts work, into the
// host or out of it, leaves one, kept beside the links for as long as they are.
type Evidence struct {
	// Issuer is who signs: an https:// origin in lower case without a path, where
	// verifiers look for the keys, or a DID, whose keys they get in another way.
	// Replicas need one each, unless all calls of a workflow reach the same one: a
	// summary tells of one store as if it were all. Default none: no evidence is made.
	// Goes with key and idKey. A change needs a restart.
	Issuer string `yaml:"issuer" pattern:"^(https://[a-z0-9.:\\[\\]-]+|did:[a-z0-9]+:[^/?#\\s]+)$" want:"an https:// origin or a DID, write for example https://agent.example.com" restart:"yes"`
	// Key is what it signs with.
	Key SigningKey `yaml:"key"`
	// KeyID names the key for ever: another key takes another id. Default none: the
	// key's own thumbprint (RFC 7638). A change needs a restart.
	KeyID string `yaml:"keyId" pattern:"^[!-~]{1,256}$" want:"1 to 256 visible ASCII characters, write for example 2026-11" restart:"yes"`
	// Keys are further keys of the issuer: those that will sign, and those that have
	// signed and are still to be published. Default []. A change needs a restart.
	Keys []EvidenceKey `yaml:"keys" restart:"yes"`
	// Revoked are keys whose receipts are no longer to be believed, as the issuer's
	// document then tells verifiers. None of them may be one that signs, or will.
	// Default []; at most 100. A change needs a restart.
	Revoked []RevokedKey `yaml:"revoked" restart:"yes"`
	// IDKey is the secret that ids of workflows and steps are derived with: 32
	// bytes, written as 64 hex digits. Replicas that share the issuer share it; with
	// another one, the ids of what goes on change. It is not key. Default none. A
	// change needs a restart.
	IDKey Secret `yaml:"idKey" restart:"yes"`
	// Privacy is how much receipts tell: strict leaves out tools, traces and who
	// calls, and gives each destination ids and receipts of its own, balanced tells the
	// kind of a call and its trace, open names the tool. Default balanced. A change
	// needs a restart.
	Privacy Privacy `yaml:"privacy" enum:"strict|balanced|open" restart:"yes"`
	// Digests has receipts tell the SHA-256 of requests and answers of MCP and A2A that
	// are read whole, up to 1 MiB, and of longer ones that of the first 1 MiB. Who
	// guesses a body can see that it was the one. Not with privacy strict. Default
	// false. A change needs a restart.
	Digests bool `yaml:"digests" restart:"yes"`
	// Known are other issuers, with their keys. A receipt of theirs that comes with an
	// answer is verified, and if it holds, that of the call depends on it. Others are
	// referred to all the same. Default []. A change needs a restart.
	Known []KnownIssuer `yaml:"known" restart:"yes"`
	// Attach has the host's answers bear the receipts of their calls: in _meta of MCP,
	// in metadata of A2A if the caller names the extension, in PEAC-Receipt of plain
	// HTTP, in trailers of gRPC. Only whole answers that are no error and bear none
	// get one; they wait until they are whole, at most limits.bodyPatience, and are
	// signed before they go on. Not with privacy strict: who reads an answer is not
	// known, and a receipt can't be made to tell less. Default false.
	Attach bool `yaml:"attach"`
	// Queue is how many receipts may wait to be signed and stored; further ones are
	// dropped and counted, and their workflow gets no summary. Default 8192; 1 to
	// 1000000. A change needs a restart.
	Queue int `yaml:"queue" min:"1" max:"1000000" restart:"yes"`
}

// KnownIssuer is who else makes receipts.
type KnownIssuer struct {
	// Issuer is as evidence.issuer, and another one. Required.
	Issuer string `yaml:"issuer" pattern:"^(https://[a-z0-9.:\\[\\]-]+|did:[a-z0-9]+:[^/?#\\s]+)$" want:"an https:// origin or a DID, write for example https://agent.example.com"`
	// File has its keys, as the issuer publishes them: a JWKS of at most 64 KiB. Leave
	// out of it the keys that the issuer has revoked. Required. It is read at start.
	File string `yaml:"file" pattern:"." want:"a path, write for example /etc/wopproxy/peer.jwks"`
}

// SigningKey is a private key in a file.
type SigningKey struct {
	// File is the PEM file of an Ed25519 key in PKCS #8, as openssl genpkey makes it.
	// Default none. It is read at start. A change needs a restart.
	File string `yaml:"file" pattern:"." want:"a path, write for example /run/secrets/peac.pem" restart:"yes"`
}

// EvidenceKey is one more key of the issuer.
type EvidenceKey struct {
	// File is a PEM file: the private key of one that signs, the private or the
	// public one of one that has. Required.
	File string `yaml:"file" pattern:"." want:"a path, write for example /run/secrets/peac-2027.pem"`
	// KeyID is as evidence.keyId.
	KeyID string `yaml:"keyId" pattern:"^[!-~]{1,256}$" want:"1 to 256 visible ASCII characters, write for example 2027-02"`
	// Sign is when it takes over from the key before it, at least a day ahead when it
	// is added, for readers keep the published keys for so long. Without it the key
	// does not sign: it has signed.
	Sign Time `yaml:"sign"`
	// Retire is when it is no longer published, at least 30 days after it has signed
	// for the last time. Without it that is never.
	Retire Time `yaml:"retire"`
}

// RevokedKey is a key of the issuer that is no longer to be believed.
type RevokedKey struct {
	// KeyID is the id that receipts name it by. Required.
	KeyID string `yaml:"keyId" pattern:"^[!-~]{1,256}$" want:"1 to 256 visible ASCII characters, write for example 2026-11"`
	// At is when it was revoked. Required.
	At Time `yaml:"at"`
	// Reason is why. Default none.
	Reason string `yaml:"reason" enum:"key_compromise|superseded|cessation_of_operation|privilege_withdrawn"`
}

// Privacy is how much receipts tell.
type Privacy string

// The modes of Privacy.
const (
	PrivacyStrict   Privacy = "strict"
	PrivacyBalanced Privacy = "balanced"
	PrivacyOpen     Privacy = "open"
)

// Headers names the two headers that proxies exchange. Both sides of a call
// must agree on them. Neither may begin with OpenWOP- or A2A-, which belong to
// those protocols, nor be a header that HTTP or tracing uses, and they must
// differ.
type Headers struct {
	// RunAncestry carries the ancestors of a run. Default Run-Ancestry.
	RunAncestry HeaderName `yaml:"runAncestry"`
	// RunID carries one run id: to the host, from the host, and back to a
	// caller. Default Run-Id.
	RunID HeaderName `yaml:"runId"`
}

// Runs says which requests start a run and how long one is live.
type Runs struct {
	// Start are plain HTTP requests that start a run, as "METHOD /path" where a
	// segment * stands for any one segment: "POST /chat", "POST /threads/*/runs".
	// Default []: only OpenWOP, A2A and MCP requests start runs. A host whose
	// runs begin with its users needs an entry, or their calls have no parent.
	Start Routes `yaml:"start"`
	// MCPMethods are the MCP requests that start a run. Default [tools/call,
	// resources/read, prompts/get]. Other methods carry trace context only.
	MCPMethods []string `yaml:"mcpMethods" pattern:"^[A-Za-z][A-Za-z0-9_./-]*$" want:"an MCP method, write for example tools/call"`
	// TTL is how long after its last activity a run whose end was not seen is
	// live. Default 1h; 1s to 720h. Too short, and late calls lose their parent;
	// too long, and dead runs keep attribution.singleFlight from deciding. A
	// change needs a restart.
	TTL Duration `yaml:"ttl" min:"1s" max:"720h" restart:"yes"`
}

// Attribution tunes how an outbound call finds its run.
type Attribution struct {
	// SingleFlight lets a call without other evidence belong to the only live
	// run. Default true. Turn it off where replicas share a host without sticky
	// ingress, or where the host also works without being called: then the only
	// run that is seen is not the only one there is. A change needs a restart.
	SingleFlight bool `yaml:"singleFlight" restart:"yes"`
	// Quarantine is how long a run that has ended still counts as live for
	// singleFlight, because hosts leave work behind. Default 1s; 0s to 1h. A
	// change needs a restart.
	Quarantine Duration `yaml:"quarantine" min:"0s" max:"1h" restart:"yes"`
	// SessionsPerRun says that the host opens its own MCP session for each run,
	// so that a session names the run it was first used in. Default false: a
	// session that two runs share would name the wrong one.
	SessionsPerRun bool `yaml:"sessionsPerRun"`
	// ProcessPerRun says that the host runs each run in a process of its own, on
	// this machine and where the proxy sees its processes: then the process that
	// holds a loopback connection to egress tells the run. It, or the nearest
	// process above it, was started with RUN_ID, or TRACEPARENT and TRACESTATE, of
	// the run in its environment, bare or as CGI's HTTP_*; or it was forked for the
	// connection on which the host was given the run, which is then never used
	// for a second one. Default false: a process that works for two runs would name
	// the wrong one. Linux only; it takes the right to read the host's /proc, as
	// the same user or root.
	ProcessPerRun bool `yaml:"processPerRun"`
	// EchoedIDs lets a call belong to the only live run of which an opaque id
	// occurs in its body: the run's own id, or the id of its task, context or first
	// message, like a UUID or a ULID. It says that the host mentions a run's ids in
	// that run's calls only. Default false: a host that works for one run on what
	// another one has left would name the wrong one. An id that a request of
	// another live run mentions is no evidence, and none is while a live run's
	// request could not be read. A change needs a restart.
	EchoedIDs bool `yaml:"echoedIds" restart:"yes"`
	// SessionHeaders are headers whose value names one run of the host at a time,
	// such as X-Claude-Code-Session-Id: a run is bound to the value that it
	// arrives with, or that a call of it bears whose run is known otherwise, and
	// further calls with that value are the run's. Default []. Values shorter than
	// 16 characters or longer than 256 are no evidence, nor are those that two live
	// runs bear.
	SessionHeaders []HeaderName `yaml:"sessionHeaders"`
	// WebhookContext is what an A2A webhook that arrives without trace context
	// has to do with the request that asked for it: its trace links to that
	// request's (link), or goes on with it (parent). Default link. It belongs to
	// the run that asked either way.
	WebhookContext WebhookContext `yaml:"webhookContext" enum:"link|parent"`
	// WebhookTTL is how long after its last use a webhook is known again. Default
	// 24h; 1m to 720h. A later one is a plain request. A change needs a restart.
	WebhookTTL Duration `yaml:"webhookTTL" min:"1m" max:"720h" restart:"yes"`
}

// WebhookContext says how a webhook follows the request that asked for it.
type WebhookContext string

// The values of attribution.webhookContext.
const (
	WebhookLink   WebhookContext = "link"
	WebhookParent WebhookContext = "parent"
)

// ExecutionModel says what follows from the rules of OpenWOP's execution model
// (RFC 0037, RFC 0039). The events of the host's runs are checked against them
// as they pass by, and as they are read from watch; what they break is counted,
// logged, and served under /ancestry/v1/runs/{id}/findings on the admin listener.
type ExecutionModel struct {
	// Watch is where the proxy reads the events of the host's runs itself, also
	// where no client does.
	Watch Watch `yaml:"watch"`
	// WithholdUnescalated refuses, with 503 and a JSON-RPC error, the MCP and A2A
	// calls by which a run would carry a decision out that is under the host's
	// confidence floor and was not escalated and answered. Default false. It needs
	// watch, or somebody who reads the run's events through the proxy, in the mode
	// debug: what is not seen is not withheld, nor what is seen too late.
	WithholdUnescalated bool `yaml:"withholdUnescalated"`
}

// Watch is where the proxy reads the events of the host's runs itself. It does
// so if either key is given, for each run that begins through it and has an id of
// the host's own: those of OpenWOP, A2A and MCP tasks. It reads the stream
// of events in the mode debug, or polls where there is none, until the run ends,
// and gives a log up that has brought nothing new for runs.ttl. A stream takes a
// connection to the host for as long as the run lasts: where the host works one
// request at a time, leave this out.
type Watch struct {
	// URL is where the host serves /runs and /v1/runs, without going through this
	// proxy; a path in it goes in front. Default none, which is ingress.upstream
	// where credential is given.
	URL URL `yaml:"url"`
	// Credential is a bearer token with the scope to read all runs there. Default
	// none, for hosts that need none. It goes nowhere else.
	Credential Secret `yaml:"credential"`
}

// Trust says whose context is adopted and who receives ours.
type Trust struct {
	// Ingress says which callers may set context.
	Ingress TrustIngress `yaml:"ingress"`
	// Egress says which destinations receive ancestry and baggage.
	Egress TrustEgress `yaml:"egress"`
}

// TrustIngress says which callers may set context. An untrusted caller starts a
// new trace, which links the one it claimed, and its run has no parent.
type TrustIngress struct {
	// Mode trusts all callers, none, or those listed in cidrs. Default all.
	Mode TrustMode `yaml:"mode" enum:"all|none|listed"`
	// CIDRs are the networks of trusted callers, by the address the connection
	// comes from. Default []. Required by mode listed, not allowed otherwise.
	CIDRs CIDRs `yaml:"cidrs"`
}

// TrustEgress says which destinations receive ancestry and baggage. Others
// receive trace context only.
type TrustEgress struct {
	// Mode trusts all destinations, none, or those listed in hosts. Default all.
	Mode TrustMode `yaml:"mode" enum:"all|none|listed"`
	// Hosts are the trusted destinations. Default []. Required by mode listed,
	// not allowed otherwise.
	Hosts Hosts `yaml:"hosts"`
}

// TrustMode says who is trusted.
type TrustMode string

// The values of trust.ingress.mode and trust.egress.mode.
const (
	TrustAll    TrustMode = "all"
	TrustNone   TrustMode = "none"
	TrustListed TrustMode = "listed"
)

// Carriers names the destinations that want context in a further place. The
// standard carriers of each protocol are always stamped.
type Carriers struct {
	// Tylo are the destinations that also get x-tylo-* headers, and
	// params.tylo.trace on MCP. Default [].
	Tylo Hosts `yaml:"tylo"`
	// A2AInMessage are the destinations whose A2A messages also get the context
	// inside the message, even where it has none. Default [].
	A2AInMessage Hosts `yaml:"a2aInMessage"`
	// AncestryInMessage are the destinations whose MCP requests also get the
	// ancestry in params._meta, for peers that do not see headers. Default [].
	AncestryInMessage Hosts `yaml:"ancestryInMessage"`
}

// Tracing says which trace formats are read and where spans go. An OTEL_*
// variable of the same meaning counts where the file leaves a key out.
type Tracing struct {
	// OTLP is where spans go. Without an endpoint, here or in the environment,
	// the proxy makes no spans and hands on those it was given.
	OTLP OTLP `yaml:"otlp"`
	// Sample is the share of new traces that are sampled; a trace that arrives
	// keeps the decision it comes with. Default 1; 0 to 1. A change needs a
	// restart; only where no spans are made do new traces follow it at once.
	Sample float64 `yaml:"sample" min:"0" max:"1" restart:"yes"`
	// TaskTTL is how long after its last use an A2A task of another host is
	// remembered, so that the spans of requests about it link to the span that it
	// began with. Default 24h; 1m to 720h. The host's own tasks are remembered as
	// long as their links. A change needs a restart.
	TaskTTL Duration `yaml:"taskTTL" min:"1m" max:"720h" restart:"yes"`
	// Propagators are the formats read besides W3C, which always comes first and
	// is the only one sent. Default [b3, jaeger, xray, ottrace].
	Propagators []Propagator `yaml:"propagators" enum:"b3|jaeger|xray|ottrace"`
}

// Propagator is a trace format that is read besides W3C.
type Propagator string

// The values of tracing.propagators.
const (
	PropagatorB3      Propagator = "b3"
	PropagatorJaeger  Propagator = "jaeger"
	PropagatorXRay    Propagator = "xray"
	PropagatorOTTrace Propagator = "ottrace"
)

// OTLP is where spans go.
type OTLP struct {
	// Endpoint is the collector, http://otel-collector:4318 for http/protobuf,
	// http://otel-collector:4317 for grpc; https:// for TLS. Default none. A
	// change needs a restart.
	Endpoint URL `yaml:"endpoint" restart:"yes"`
	// Protocol is how spans are sent, http/protobuf or grpc. Default
	// http/protobuf. A change needs a restart.
	Protocol Protocol `yaml:"protocol" enum:"http/protobuf|grpc" restart:"yes"`
	// Headers are sent with every export, such as an API key. Default {}. A
	// change needs a restart, and so does a new value in a secret's file.
	Headers map[string]Secret `yaml:"headers" restart:"yes"`
	// Timeout is how long one export may take; its spans are dropped past it.
	// Default 10s; 1ms to 5m. A change needs a restart.
	Timeout Duration `yaml:"timeout" min:"1ms" max:"5m" restart:"yes"`
}

// Protocol is an OTLP transport.
type Protocol string

// The values of tracing.otlp.protocol.
const (
	ProtocolHTTP Protocol = "http/protobuf"
	ProtocolGRPC Protocol = "grpc"
)

// Limits bounds what the proxy holds in memory and how far runs may delegate.
type Limits struct {
	// MaxDepth is how many ancestors a run may have; a call that arrives and would
	// exceed it is refused with 508. Default 64; 0 to 10000, 0 turns the refusal
	// off. What leaves is never refused: its depth is for the host to judge that it
	// arrives at, which may be a tool that goes no deeper.
	MaxDepth int `yaml:"maxDepth" min:"0" max:"10000"`
	// MaxVisitsPerHost is how often this host may stand in one ancestry; a call
	// that arrives with more is refused with 508. Default 0; 0 to 10000, 0 turns
	// the refusal off, because hosts that call each other in turn are common. At
	// most the 16 nearest ancestors arrive with a call: what can't stand among
	// them as often is never refused, and left to maxDepth.
	MaxVisitsPerHost int `yaml:"maxVisitsPerHost" min:"0" max:"10000"`
	// InspectedBody is the largest body that is read and edited; a larger one
	// passes untouched, with its context in headers only. Default 4MiB; 1KiB to
	// 256MiB. As much is held for each request in flight, and twice if it is edited.
	InspectedBody Bytes `yaml:"inspectedBody" min:"1KiB" max:"256MiB"`
	// InspectedBodies bounds what is held of all bodies that are read at a time;
	// past it, those larger than 64KiB pass untouched, with their context in
	// headers only. Default 64MiB; 64KiB to 64GiB. Not less than inspectedBody, or
	// a body of that size would never be read.
	InspectedBodies Bytes `yaml:"inspectedBodies" min:"64KiB" max:"64GiB"`
	// BodyPatience is how long the proxy waits for the whole of a request body
	// that it would read; a body that takes longer is forwarded as it comes,
	// unread, with its context in headers only. Default 10s; 10ms to 10m. A call
	// whose sender keeps the body open goes out that much later.
	BodyPatience Duration `yaml:"bodyPatience" min:"10ms" max:"10m"`
	// Header is the largest request header that is read; a larger one is refused
	// with 431. Default 64KiB; 4KiB to 16MiB. A change needs a restart.
	Header Bytes `yaml:"header" min:"4KiB" max:"16MiB" restart:"yes"`
	// InspectedEvent is the largest event of a stream that is read; a larger one,
	// of any length, passes unread, and the events behind it are read again.
	// Default 1MiB; 1KiB to 256MiB. Up to twice as much is held for each stream.
	InspectedEvent Bytes `yaml:"inspectedEvent" min:"1KiB" max:"256MiB"`
	// StdioLine is the longest line of a stdio server or its client that is read;
	// a longer one passes as it is, and the call that it answers counts as live
	// until runs.ttl is over. Default 16MiB; 64KiB to 64MiB. Up to twice as
	// much is held for a moment in each direction. A change needs a restart.
	StdioLine Bytes `yaml:"stdioLine" min:"64KiB" max:"64MiB" restart:"yes"`
	// LiveRuns is how many runs may be live at once; calls of further ones find
	// no parent. Default 100000; 1 to 10000000. A change needs a restart.
	LiveRuns int `yaml:"liveRuns" min:"1" max:"10000000" restart:"yes"`
	// Bindings is how many conversations are remembered with their run; further
	// ones are no evidence. Default 100000; 1 to 10000000. A change needs a
	// restart.
	Bindings int `yaml:"bindings" min:"1" max:"10000000" restart:"yes"`
	// Webhooks is how many requests for A2A webhooks are remembered; webhooks of
	// further ones are plain requests. Default 100000; 1 to 10000000. A change
	// needs a restart.
	Webhooks int `yaml:"webhooks" min:"1" max:"10000000" restart:"yes"`
	// WatchedRuns is how many runs are checked against the execution model at a
	// time; with one more, the one that was quiet for longest is forgotten. As many
	// entries of memory are known with who wrote them. Default 10000; 1 to 1000000.
	// A change needs a restart.
	WatchedRuns int `yaml:"watchedRuns" min:"1" max:"1000000" restart:"yes"`
	// FollowedRuns is how many runs may have their events read by the proxy itself
	// at a time (executionModel.watch); those of further runs are seen only as they
	// pass by. Default 1000; 1 to 100000. Each may take a connection to the host.
	FollowedRuns int `yaml:"followedRuns" min:"1" max:"100000"`
	// ProcessScan is how long a call waits for the process that made it to be
	// found, where attribution.processPerRun asks for it; past it the call finds
	// its run in another way, or none. Default 500ms; 1ms to 10s.
	ProcessScan Duration `yaml:"processScan" min:"1ms" max:"10s"`
	// Tasks is how many A2A tasks of other hosts are remembered with the span that
	// each began with, to which the spans of later requests link; with one more,
	// the one unused for longest is forgotten. Default 100000; 1 to 10000000. A
	// change needs a restart.
	Tasks int `yaml:"tasks" min:"1" max:"10000000" restart:"yes"`
	// Handoffs is how many calls of runs to other hosts are remembered with what
	// became of them; with one more, the first to end is forgotten, or where none
	// has ended the one that was quiet for longest. Default 15000, which hold 10 MB;
	// 1 to 10000000. A change needs a restart.
	Handoffs int `yaml:"handoffs" min:"1" max:"10000000" restart:"yes"`
	// HandoffTTL is how long after it was last heard of more is expected of such a
	// call. A later message about its task is of no call, and what the call is told
	// as does not change any more. Default 24h; 1m to 720h. A change needs a restart.
	HandoffTTL Duration `yaml:"handoffTTL" min:"1m" max:"720h" restart:"yes"`
	// Queue is how many links may wait for the disk; further ones are dropped
	// and readiness turns to degraded. Default 8192; 1 to 1000000. A change needs
	// a restart.
	Queue int `yaml:"queue" min:"1" max:"1000000" restart:"yes"`
	// Tunnels is how many tunnels may be open out of the host, by CONNECT or
	// redirected, and how many that are redirected into it; further ones are refused
	// with 503, or reset. Default 10000; 1 to 1000000. A change needs a restart.
	Tunnels int `yaml:"tunnels" min:"1" max:"1000000" restart:"yes"`
	// Connections is how many connections of clients each listener holds open,
	// besides tunnels and what else was upgraded. With one more, the one that has
	// had no request for longest is closed, or the new one if all have. Default
	// 10000; 10 to 1000000. A change needs a restart.
	Connections int `yaml:"connections" min:"10" max:"1000000" restart:"yes"`
}

// Drain says how the proxy stops: it reports unready, goes on serving for
// Delay, then accepts nothing new and gives what is in flight until Timeout.
type Drain struct {
	// Delay is how long the proxy goes on serving after it was told to drain, or to
	// stop, so that load balancers notice first. Callers leave the connections that
	// they keep to ingress meanwhile: each answer is the last on its connection, and
	// one without a request is closed at the end. Default 5s; 0s to 10m.
	Delay Duration `yaml:"delay" min:"0s" max:"10m"`
	// Timeout is how long requests, streams and tunnels in flight may take to
	// end after that; then they are cut. Default 20s; 0s to 24h. Delay and
	// timeout together have to fit in the time before the process is killed,
	// which is 30s in Kubernetes unless the pod says otherwise.
	Timeout Duration `yaml:"timeout" min:"0s" max:"24h"`
}

// Log says what is logged.
type Log struct {
	// Level is the least serious level logged: debug, info, warn or error. Default
	// info.
	Level slog.Level `yaml:"level" enum:"debug|info|warn|error"`
}
