package wire

import (
	"slices"
	"strings"
	"unicode/utf8"
)

// CardEdit says where callers shall find the agent of a card.
type CardEdit struct {
	AddressEdit
	// Strip says that a signed card is rewritten and loses its signatures, which
	// no longer fit. Otherwise it stays as it is.
	Strip bool
}

// CardOutcome says what became of a card.
type CardOutcome string

// The outcomes. CardNone is for what is no card.
const (
	CardNone      CardOutcome = ""
	CardUnchanged CardOutcome = "unchanged" // no URL leads to the agent past Public
	CardRewritten CardOutcome = "rewritten"
	CardStripped  CardOutcome = "stripped" // rewritten, and its signatures are gone
	CardSigned    CardOutcome = "signed"   // would have to be rewritten, and is signed
	CardRefused   CardOutcome = "refused"  // unreadable, or ambiguous
)

var cardOutcomes = []CardOutcome{CardUnchanged, CardRewritten, CardStripped, CardSigned, CardRefused}

// CardOutcomes returns every outcome but CardNone.
func CardOutcomes() []CardOutcome { return slices.Clone(cardOutcomes) }

// Agent cards, 0.3 and 1.0.
const (
	atCard = envelope + iota
	atCardName
	atCardURL
	atCardTransport
	atCardAdditional
	atCardSupported
	atCardCapabilities
	atCardSignatures
	atInterfaceRoot
	atInterfaceURL
	atInterfaceTransport
	atInterfaceBinding
	cardSlots
)

var cardNode = &node{atCard, guardA2A, []edge{
	on("name", atCardName, guardA2A),
	on("url", atCardURL, guardA2A),
	on("preferredTransport", atCardTransport, guardA2A),
	on("additionalInterfaces", atCardAdditional, guardA2A),
	on("supportedInterfaces", atCardSupported, guardA2A),
	on("capabilities", atCardCapabilities, guardA2A),
	on("signatures", atCardSignatures, guardA2A),
}}

// cardTree is what to watch in a JSON-RPC answer whose result is a card.
var cardTree = &node{atRoot, guardEnvelope, []edge{{[]byte("result"), cardNode}}}

// interfaceTree is what to watch in one interface of a card: 0.3 has transport,
// 1.0 has protocolBinding.
var interfaceTree = &node{atInterfaceRoot, guardA2A, []edge{
	on("url", atInterfaceURL, guardA2A),
	on("transport", atInterfaceTransport, guardA2A),
	on("protocolBinding", atInterfaceBinding, guardA2A),
}}

// RewriteCard returns the agent card in body with the URLs of the agent's
// interfaces changed as e says: url, additionalInterfaces and
// supportedInterfaces, of 0.3, 1.0 or both. With inResult body is a JSON-RPC
// answer and the card is its result. Nothing else changes, and if nothing does,
// body itself is returned. A Refusal says why a card was refused.
func RewriteCard(body []byte, inResult bool, e CardEdit) ([]byte, CardOutcome, Refusal) {
	if len(body) > maxBody {
		return body, CardRefused, RefusedTooLarge
	}
	d, tree := doc{body: body}, cardNode
	if inResult {
		tree = cardTree
	}
	if why := d.scan(tree); why != "" {
		return body, CardRefused, why
	}
	if why := d.ambiguous(guardA2A | guardEnvelope); why != "" && d.has(atCard) {
		return body, CardRefused, why
	}
	if !d.isCard() {
		return body, CardNone, ""
	}
	r := cardRewriter{e: e}
	r.address(&d, atCardURL, atCardTransport)
	for _, s := range []slot{atCardAdditional, atCardSupported} {
		if why := r.interfaces(&d, s); why != "" {
			return body, CardRefused, why
		}
	}
	if len(r.edits) == 0 {
		return body, CardUnchanged, ""
	}
	outcome := CardRewritten
	if d.signedCard() {
		if !e.Strip {
			return body, CardSigned, ""
		}
		outcome = CardStripped
		r.drop(&d)
	}
	return applied(body, r.edits), outcome, ""
}

// Card is what an agent card says of its agent.
type Card struct {
	Signed bool     // it has signatures, of whatever form
	URLs   []string // of the interfaces, as they are written; at most 64
}

// ReadCard reads an agent card, of 0.3, 1.0 or both. It returns false for what is no
// card, or is one that readers may understand in several ways.
func ReadCard(body []byte) (Card, bool) {
	d := doc{body: body}
	if len(body) > maxBody || d.scan(cardNode) != "" || d.ambiguous(guardA2A) != "" || !d.isCard() {
		return Card{}, false
	}
	c := Card{Signed: d.signedCard()}
	note := func(d *doc, url slot) {
		if text := d.text(url, maxCarrier); text != "" && len(c.URLs) < maxBatch {
			c.URLs = append(c.URLs, text)
		}
	}
	note(&d, atCardURL)
	for _, list := range []slot{atCardAdditional, atCardSupported} {
		if why := d.eachInterface(list, func(one *doc) { note(one, atInterfaceURL) }); why != "" {
			return Card{}, false
		}
	}
	return c, true
}

// ambiguous says why nothing is edited where a key of the guards is ambiguous.
func (d *doc) ambiguous(g guard) Refusal {
	switch {
	case d.twice&g != 0:
		return RefusedDuplicateKey
	case d.variant&g != 0:
		return RefusedCaseVariant
	}
	return ""
}

// isCard reports whether the object has what every card has.
func (d *doc) isCard() bool {
	return d.first(atCard) == '{' && d.first(atCardName) == '"' &&
		(d.first(atCardSupported) == '[' || d.first(atCardURL) == '"' && d.first(atCardCapabilities) == '{')
}

// signedCard reports whether the card has signatures, of whatever form.
func (d *doc) signedCard() bool {
	switch raw := d.raw(atCardSignatures); {
	case len(raw) == 0 || raw[0] == 'n':
		return false
	case raw[0] == '[':
		return raw[skipSpace(raw, 1)] != ']'
	}
	return true
}

// cardRewriter collects the edits of one card.
type cardRewriter struct {
	e     CardEdit
	edits []patch
}

// customBinding reports whether a binding is not one of A2A's own: such a one is
// named by a URI, and nobody knows what its URL means.
func customBinding(name string) bool { return strings.Contains(name, ":") }

// address plans the edit of one URL, unless its interface is of another binding
// than A2A's own.
func (r *cardRewriter) address(d *doc, url slot, bindings ...slot) {
	for _, b := range bindings {
		if customBinding(d.text(b, maxName)) {
			return
		}
	}
	text := d.text(url, maxCarrier)
	if text == "" || strings.ContainsRune(text, utf8.RuneError) {
		return // what can't be read can't be kept
	}
	if public := r.e.rewrite(text); public != text {
		at := d.at[url]
		r.edits = append(r.edits, patch{int(at.from), int(at.to), appendQuoted(nil, public)})
	}
}

// interfaces plans the edits of one list of interfaces.
func (r *cardRewriter) interfaces(d *doc, list slot) Refusal {
	return d.eachInterface(list, func(one *doc) { r.address(one, atInterfaceURL, atInterfaceTransport, atInterfaceBinding) })
}

// eachInterface calls f with each interface in a list of the card's. It says why the
// list is ambiguous, if it is.
func (d *doc) eachInterface(list slot, f func(one *doc)) (why Refusal) {
	if d.first(list) != '[' {
		return ""
	}
	one := doc{body: d.body}
	one.array(int(d.at[list].from), 1, func(i int) int {
		one.at, one.twice, one.variant = [slots]span{}, 0, 0
		i = one.value(i, 1, interfaceTree)
		if why == "" {
			why = one.ambiguous(guardA2A)
		}
		f(&one)
		return i
	})
	return why
}

// drop plans the removal of the signatures.
func (r *cardRewriter) drop(d *doc) {
	var p splice
	p.remove(d, []member{{slot: atCardSignatures}})
	gone := p.edits[0]
	r.edits = append(r.edits, patch{from: gone.at, to: gone.at + gone.del})
}
