package wire

// ReceiptExtension is the URI of A2A's extension for receipts of PEAC's, and their key
// in metadata.
const ReceiptExtension = "https://www.peacprotocol.org/ext/traceability/v1"

// Receipt is a signed receipt as an answer carries it.
type Receipt struct {
	Ref string // the hash of JWS
	JWS string
}

// maxReceipt bounds a receipt with its reference, as JSON.
const maxReceipt = 64 << 10

// ReceiptOutcome says whether an answer has a place for a receipt.
type ReceiptOutcome string

// The outcomes.
const (
	ReceiptPlaced  ReceiptOutcome = "placed"
	ReceiptCarried ReceiptOutcome = "carried"  // there is one, which stays the only one
	ReceiptError   ReceiptOutcome = "error"    // the answer is an error, which has no place
	ReceiptNoPlace ReceiptOutcome = "no-place" // nor has this, or what stands there is of another form
	ReceiptUnread  ReceiptOutcome = "unread"   // it can't be read, or is ambiguous
)

// Answers that a receipt may be put into.
const (
	atResultMeta = envelope + iota
	atReceiptRef
	atReceiptJWS
	atReceiptURL
	atReceiptBare
	atReceiptTop
	atReceiptInResult
	atFlatMessage
	atFlatStatus
	atFlatStatusMessage
	atFlatArtifacts
	atInnerMessage
	atInnerTask
	atInnerStatus
	atInnerStatusMessage
	atInnerArtifacts
	atHolder
	atHolderMetadata
	atHolderReceipts
	atHolderCarriers
	receiptSlots
)

var envelopeEdges = []edge{
	on("jsonrpc", atVersion, guardEnvelope),
	on("id", atID, guardEnvelope),
	on("method", atMethod, guardEnvelope),
	on("error", atError, guardEnvelope),
}

// receiptTreeMCP is where a result of MCP carries a receipt: in _meta, and in two
// places of earlier days.
var receiptTreeMCP = &node{atRoot, guardEnvelope, append([]edge{
	on("peac_receipt", atReceiptTop, guardMCP),
	on("result", atResult, guardEnvelope,
		on("peac_receipt", atReceiptInResult, guardMCP),
		on("_meta", atResultMeta, guardMCP,
			on("org.peacprotocol/receipt_ref", atReceiptRef, guardMCP),
			on("org.peacprotocol/receipt_jws", atReceiptJWS, guardMCP),
			on("org.peacprotocol/receipt_url", atReceiptURL, guardMCP),
			on("org.peacprotocol/receipt", atReceiptBare, guardMCP))),
}, envelopeEdges...)}

// receiptEdges lead to what has metadata in a result of A2A: a message, what a task
// says with its status, its artifacts; flat in 0.3, wrapped in 1.0.
var receiptEdges = []edge{
	on("messageId", atFlatMessage, guardA2A),
	on("status", atFlatStatus, guardA2A, on("message", atFlatStatusMessage, guardA2A)),
	on("artifacts", atFlatArtifacts, guardA2A),
	on("message", atInnerMessage, guardA2A),
	on("task", atInnerTask, guardA2A,
		on("status", atInnerStatus, guardA2A, on("message", atInnerStatusMessage, guardA2A)),
		on("artifacts", atInnerArtifacts, guardA2A)),
}

var (
	receiptTreeA2A  = &node{atRoot, guardEnvelope, append([]edge{{[]byte("result"), &node{atResult, guardEnvelope, receiptEdges}}}, envelopeEdges...)}
	receiptTreeREST = &node{atResult, guardEnvelope, append([]edge{on("error", atError, guardEnvelope)}, receiptEdges...)}
)

// holderTree is what to watch in a message, or an artifact.
var holderTree = &node{atHolder, guardA2A, []edge{
	on("metadata", atHolderMetadata, guardA2A,
		on(ReceiptExtension, atHolderReceipts, guardA2A,
			on("carriers", atHolderCarriers, guardA2A))),
}}

// ReceiptPlace is where in an answer a receipt can be put.
type ReceiptPlace struct {
	body          []byte
	at            int
	before, after string // what stands around the receipt there
	flat          bool   // its members are those of MCP's _meta
}

// PlaceReceipt finds the place for a receipt in the whole answer to a request of MCP
// or A2A, which must be one result: bare without a JSON-RPC envelope. A Refusal says
// why an answer is unread.
//
// In MCP a receipt that is there already has the only place. In A2A there is a list.
func PlaceReceipt(body []byte, p Protocol, bare bool) (ReceiptPlace, ReceiptOutcome, Refusal) {
	if len(body) > maxBody {
		return ReceiptPlace{}, ReceiptUnread, RefusedTooLarge
	}
	d, tree, g := doc{body: body}, receiptTreeMCP, guardEnvelope|guardMCP
	if p == A2A {
		tree, g = receiptTreeA2A, guardEnvelope|guardA2A
		if bare {
			tree = receiptTreeREST
		}
	}
	why := d.scan(tree)
	if why == "" {
		why = d.ambiguous(g)
	}
	switch {
	case why != "":
		return ReceiptPlace{}, ReceiptUnread, why
	case d.has(atError):
		return ReceiptPlace{}, ReceiptError, ""
	case d.first(atResult) != '{' || !bare && d.kind() != Response:
		return ReceiptPlace{}, ReceiptNoPlace, ""
	case p == A2A:
		return d.placeA2A()
	}
	place, outcome := d.placeMCP()
	return place, outcome, ""
}

func (d *doc) placeMCP() (ReceiptPlace, ReceiptOutcome) {
	for _, s := range [...]slot{atReceiptRef, atReceiptJWS, atReceiptURL, atReceiptBare, atReceiptTop, atReceiptInResult} {
		if d.has(s) {
			return ReceiptPlace{}, ReceiptCarried
		}
	}
	place := ReceiptPlace{body: d.body, flat: true}
	switch d.first(atResultMeta) {
	case 0:
		place.into(d.at[atResult], `"_meta":{`, `}`)
	case '{':
		place.into(d.at[atResultMeta], "", "")
	default:
		return ReceiptPlace{}, ReceiptNoPlace
	}
	return place, ReceiptPlaced
}

// into has the receipt stand in the object at s, before its other members.
func (p *ReceiptPlace) into(s span, before, after string) {
	if s.members > 0 {
		after += ","
	}
	p.at, p.before, p.after = int(s.from)+1, before, after
}

// placeA2A takes the message that the answer is, or the one with the status of its
// task, or the last artifact of that: the first there is.
func (d *doc) placeA2A() (ReceiptPlace, ReceiptOutcome, Refusal) {
	holder, found := span{}, 0
	note := func(there bool, s span) {
		if there {
			holder = s
			found++
		}
	}
	note(d.first(atFlatMessage) == '"', d.at[atResult])
	note(d.first(atInnerMessage) == '{', d.at[atInnerMessage])
	note(d.first(atFlatStatus) == '{', d.holderOfTask(atFlatStatusMessage, atFlatArtifacts))
	note(d.first(atInnerTask) == '{', d.holderOfTask(atInnerStatusMessage, atInnerArtifacts))
	if found != 1 || holder.to == 0 { // it must be one of them
		return ReceiptPlace{}, ReceiptNoPlace, ""
	}
	inner := doc{body: d.body}
	inner.value(int(holder.from), 1, holderTree)
	if why := inner.ambiguous(guardA2A); why != "" {
		return ReceiptPlace{}, ReceiptUnread, why
	}
	return inner.placeInMetadata()
}

// holderOfTask is what a task has that has metadata; where it has nothing, nowhere.
func (d *doc) holderOfTask(message, artifacts slot) (last span) {
	if d.first(message) == '{' {
		return d.at[message]
	}
	if d.first(artifacts) != '[' {
		return span{}
	}
	one := doc{body: d.body}
	one.array(int(d.at[artifacts].from), 1, func(i int) int {
		last = span{}
		end := one.value(i, 1, nil)
		if d.body[i] == '{' {
			last = span{from: int32(i), to: int32(end)}
		}
		return end
	})
	return last
}

// A list of receipts, as A2A's extension has it.
const (
	listBefore = `"` + ReceiptExtension + `":{"carriers":[`
	listAfter  = `],"meta":{"transport":"a2a","format":"embed","max_size":65536}}`
)

// placeInMetadata takes the list of receipts in the metadata of a holder, or makes it.
func (d *doc) placeInMetadata() (ReceiptPlace, ReceiptOutcome, Refusal) {
	place := ReceiptPlace{body: d.body}
	switch list := d.at[atHolderCarriers]; {
	case d.first(atHolderMetadata) == 0:
		place.into(d.at[atHolder], `"metadata":{`+listBefore, listAfter+`}`)
	case d.first(atHolderMetadata) == '{' && d.first(atHolderReceipts) == 0:
		place.into(d.at[atHolderMetadata], listBefore, listAfter)
	case d.first(atHolderCarriers) == '[':
		place.at = int(list.to) - 1
		if d.body[skipSpace(d.body, int(list.from)+1)] != ']' {
			place.before = ","
		}
	default:
		return ReceiptPlace{}, ReceiptNoPlace, ""
	}
	return place, ReceiptPlaced, ""
}

// Put returns the answer with r in this place, and every other byte as it was; or nil
// if r is too long for any.
func (p ReceiptPlace) Put(r Receipt) []byte {
	if len(`{"receipt_ref":"","receipt_jws":""}`)+len(r.Ref)+len(r.JWS) > maxReceipt {
		return nil
	}
	prefix, before, after := "", p.before+"{", "}"+p.after
	if p.flat {
		prefix, before, after = "org.peacprotocol/", p.before, p.after
	}
	text := append([]byte(before), `"`+prefix+`receipt_ref":`...)
	text = append(appendQuoted(text, r.Ref), `,"`+prefix+`receipt_jws":`...)
	text = append(appendQuoted(text, r.JWS), after...)
	return applied(p.body, []patch{{from: p.at, to: p.at, text: text}})
}
