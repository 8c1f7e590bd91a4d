package wire

import (
	"bytes"
	"cmp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// DiscoveryEdit says what an OpenWOP discovery document, v1 or v2, shall say of
// the causation that the proxy adds to its host.
type DiscoveryEdit struct {
	AddressEdit
	HostID string
	// Claim is the execution model's version from which on the document may claim
	// cross-host causation, which raises it to version 3 and with that claims the
	// levels below, too: 2 leaves their truth to the host, 0 to the operator, and
	// more than 6 claims nothing. Where it is not claimed, Extension says it, and so
	// it does where the host claims it without the endpoint, or in another name.
	Claim int
	// Extension is the JSON object that goes into the document's extensions under
	// ExtensionKey. Empty: none does.
	Extension string
}

// ExtensionKey names our part of a document's extensions.
const ExtensionKey = "wopproxy.causation"

// claimed is the version that includes cross-host causation.
const claimed = 3

// DiscoveryOutcome says what became of a discovery document.
type DiscoveryOutcome string

// The outcomes. DiscoveryNone is for what is no such document.
const (
	DiscoveryNone      DiscoveryOutcome = ""
	DiscoveryOwn       DiscoveryOutcome = "own"       // the host claims cross-host causation itself
	DiscoveryClaimed   DiscoveryOutcome = "claimed"   // it is claimed for the host now
	DiscoveryExtended  DiscoveryOutcome = "extended"  // it is told in an extension
	DiscoveryUnchanged DiscoveryOutcome = "unchanged" // there is nothing to tell
	DiscoveryRefused   DiscoveryOutcome = "refused"   // unreadable, ambiguous, or of neither major's shape
)

var discoveryOutcomes = []DiscoveryOutcome{DiscoveryOwn, DiscoveryClaimed, DiscoveryExtended, DiscoveryUnchanged, DiscoveryRefused}

// DiscoveryOutcomes returns every outcome but DiscoveryNone.
func DiscoveryOutcomes() []DiscoveryOutcome { return slices.Clone(discoveryOutcomes) }

// Discovery documents: v1 has protocolVersion and supported, v2 has
// protocolVersions and no supported.
const (
	atDiscovery = envelope + iota
	atDiscoveryV1
	atDiscoveryV2
	atMultiAgent
	atModel
	atModelSupported
	atModelVersion
	atCausation
	atCausationSupported
	atCausationHost
	atEndpoint
	atExtensions
	atOwnExtension
	atFacetA2A
	atCardAddress
	atFacetMCP
	atServerURLs
	discoverySlots
)

var discoveryTree = &node{atDiscovery, guardOpenWOP, []edge{
	on("protocolVersion", atDiscoveryV1, guardOpenWOP),
	on("protocolVersions", atDiscoveryV2, guardOpenWOP),
	on("multiAgent", atMultiAgent, guardOpenWOP,
		on("executionModel", atModel, guardOpenWOP,
			on("supported", atModelSupported, guardOpenWOP),
			on("version", atModelVersion, guardOpenWOP),
			on("crossHostCausation", atCausation, guardOpenWOP,
				on("supported", atCausationSupported, guardOpenWOP),
				on("hostId", atCausationHost, guardOpenWOP),
				on("ancestryEndpointSupported", atEndpoint, guardOpenWOP)))),
	on("extensions", atExtensions, guardOpenWOP,
		on(ExtensionKey, atOwnExtension, guardOpenWOP)),
	on("a2a", atFacetA2A, guardOpenWOP, on("agentCardUrl", atCardAddress, guardOpenWOP)),
	on("mcp", atFacetMCP, guardOpenWOP, on("serverUrls", atServerURLs, guardOpenWOP)),
}}

// RewriteDiscovery returns the discovery document in body with what e says, and
// with addresses of the host itself changed to where callers find it. Nothing
// else changes, and if nothing does, body itself is returned.
//
// What the host says of its own causation stands: its hostId, and a version
// above ours.
func RewriteDiscovery(body []byte, e DiscoveryEdit) ([]byte, DiscoveryOutcome, Refusal) {
	if len(body) > maxBody {
		return body, DiscoveryRefused, RefusedTooLarge
	}
	d := doc{body: body}
	if why := d.scan(discoveryTree); why != "" {
		return body, DiscoveryRefused, why
	}
	v1, v2 := d.first(atDiscoveryV1) == '"', d.first(atDiscoveryV2) == '['
	if d.first(atDiscovery) != '{' || v1 == v2 {
		return body, DiscoveryNone, ""
	}
	if why := d.ambiguous(guardOpenWOP); why != "" {
		return body, DiscoveryRefused, why
	}
	w := discoveryRewriter{d: &d, e: e, v1: v1}
	outcome := w.causation()
	if outcome == DiscoveryRefused {
		return body, outcome, RefusedUnrecognised
	}
	w.addresses()
	if len(w.patches) == 0 {
		return body, outcome, ""
	}
	return applied(body, w.patches), outcome, ""
}

// Told is what the readers of a discovery document find in it.
type Told struct {
	Document  bool   // it is one, whatever its faults
	Causation bool   // it claims cross-host causation
	Endpoint  bool   // and advertises the ancestry endpoint
	HostID    string // in this name, if it gives one
}

// Tells returns what the discovery document in body tells once it is rewritten by e,
// be it the host's own word.
func Tells(body []byte, e DiscoveryEdit) Told {
	e.Own = func(string, bool) bool { return false } // addresses don't matter
	out, outcome, _ := RewriteDiscovery(body, e)
	switch outcome {
	case DiscoveryNone:
		return Told{}
	case DiscoveryRefused:
		return Told{Document: bytes.HasPrefix(bytes.TrimLeft(body, " \t\r\n"), []byte("{"))} // a page is none
	}
	d := doc{body: out}
	_ = d.scan(discoveryTree) // it was read before
	told := Told{Document: true, Causation: d.claimsCausation(d.first(atDiscoveryV1) == '"')}
	if told.Causation {
		told.Endpoint, told.HostID = d.first(atEndpoint) == 't', d.text(atCausationHost, maxCarrier)
	}
	return told
}

// claimsCausation reports whether a document of a major claims cross-host causation.
func (d *doc) claimsCausation(v1 bool) bool {
	if v1 {
		return d.first(atCausationSupported) == 't'
	}
	return d.first(atCausation) == '{'
}

// discoveryRewriter collects the patches of one document.
type discoveryRewriter struct {
	d       *doc
	e       DiscoveryEdit
	v1      bool
	patches []patch
}

// causation plans what the document shall say of cross-host causation.
func (w *discoveryRewriter) causation() DiscoveryOutcome {
	d := w.d
	for _, s := range []slot{atMultiAgent, atModel, atExtensions} {
		if d.has(s) && d.first(s) != '{' {
			return DiscoveryRefused
		}
	}
	// A shape of the one major in a document of the other is neither's.
	if d.has(atModel) && d.has(atModelSupported) != w.v1 {
		return DiscoveryRefused
	}
	if d.has(atCausation) {
		if !d.claimsCausation(w.v1) || d.first(atEndpoint) != 't' || d.text(atCausationHost, maxCarrier) != w.e.HostID {
			w.extend() // where the endpoint is not ours, we have another
		}
		return DiscoveryOwn
	}
	version, ok := w.version()
	switch {
	case !ok:
		return DiscoveryRefused
	case version >= w.e.Claim && !w.denied():
		w.claim(version)
		return DiscoveryClaimed
	case !w.extend():
		return DiscoveryUnchanged
	}
	return DiscoveryExtended
}

// extend plans the extension, and reports whether there is anything to tell.
func (w *discoveryRewriter) extend() bool {
	if w.e.Extension == "" || w.d.has(atOwnExtension) {
		return false
	}
	w.insert(atExtensions, ExtensionKey, w.e.Extension, atDiscovery, "extensions")
	return true
}

// version is what the host advertises of the execution model, 0 if nothing.
func (w *discoveryRewriter) version() (int, bool) {
	if !w.d.has(atModel) || w.denied() {
		return 0, true
	}
	n, err := strconv.Atoi(string(w.d.raw(atModelVersion)))
	return n, err == nil && n >= 1
}

// denied reports whether the host says that it has no execution model.
func (w *discoveryRewriter) denied() bool { return w.d.first(atModelSupported) == 'f' }

// claim plans the claim, in as much of the facet as is missing.
func (w *discoveryRewriter) claim(version int) {
	d := w.d
	causation := `{"hostId":` + string(appendQuoted(nil, w.e.HostID)) + `,"ancestryEndpointSupported":true}`
	model := `{"version":3,"crossHostCausation":` + causation + `}`
	facet := `{"status":"stable","since":"2.0","witness":"claims-check","executionModel":` + model + `}`
	if w.v1 {
		causation = `{"supported":true,` + causation[1:]
		model = `{"supported":true,"version":3,"crossHostCausation":` + causation + `}`
		facet = `{"executionModel":` + model + `}`
	}
	switch {
	case !d.has(atMultiAgent):
		w.add(atDiscovery, "multiAgent", facet)
	case !d.has(atModel):
		w.add(atMultiAgent, "executionModel", model)
	default:
		if version < claimed {
			at := d.at[atModelVersion]
			w.patches = append(w.patches, patch{int(at.from), int(at.to), strconv.AppendInt(nil, claimed, 10)})
		}
		w.add(atModel, "crossHostCausation", causation)
	}
}

// insert adds a member to the object at s, or s itself to parent if it is not
// there.
func (w *discoveryRewriter) insert(s slot, key, value string, parent slot, name string) {
	if w.d.has(s) {
		w.add(s, key, value)
		return
	}
	w.add(parent, name, `{"`+key+`":`+value+`}`)
}

// add puts a member first in the object at s.
func (w *discoveryRewriter) add(s slot, key, value string) {
	at := w.d.at[s]
	text := appendQuoted(nil, key)
	text = append(append(text, ':'), value...)
	if at.members > 0 {
		text = append(text, ',')
	}
	w.patches = append(w.patches, patch{int(at.from) + 1, int(at.from) + 1, text})
}

// addresses plans the change of addresses that lead to the host past Public.
func (w *discoveryRewriter) addresses() {
	w.address(w.d, atCardAddress)
	if w.d.first(atServerURLs) != '[' {
		return
	}
	one := doc{body: w.d.body}
	one.array(int(w.d.at[atServerURLs].from), 1, func(i int) int {
		one.at = [slots]span{}
		i = one.value(i, 1, serverURL)
		w.address(&one, atServerURLs)
		return i
	})
}

var serverURL = &node{slot: atServerURLs}

func (w *discoveryRewriter) address(d *doc, s slot) {
	text := d.text(s, maxCarrier)
	if !strings.Contains(text, "://") || strings.ContainsRune(text, utf8.RuneError) {
		return // relative to the document, or not to be kept
	}
	if public := w.e.rewrite(text); public != text {
		at := d.at[s]
		w.patches = append(w.patches, patch{int(at.from), int(at.to), appendQuoted(nil, public)})
	}
}

// RunAddresses returns body, the answer to the creation or the fork of a run,
// with the addresses of the run changed to where callers find it. If nothing
// changes, body itself is returned.
func RunAddresses(body []byte, e AddressEdit) ([]byte, bool) {
	d := doc{body: body}
	if len(body) > maxBody || cmp.Or(d.scan(runTree), d.ambiguous(guardOpenWOP)) != "" {
		return body, false
	}
	w := discoveryRewriter{d: &d, e: DiscoveryEdit{AddressEdit: e}}
	w.address(&d, atEventsURL)
	w.address(&d, atStatusURL)
	if len(w.patches) == 0 {
		return body, false
	}
	return applied(body, w.patches), true
}

const (
	atRun = envelope + iota
	atEventsURL
	atStatusURL
)

var runTree = &node{atRun, guardOpenWOP, []edge{
	on("eventsUrl", atEventsURL, guardOpenWOP),
	on("statusUrl", atStatusURL, guardOpenWOP),
}}
