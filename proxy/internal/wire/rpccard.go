package wire

// rpcCard is where a card of gRPC has its URLs: the fields of AgentCard, and
// those of its interfaces.
type rpcCard struct {
	url, transport   int // of the card itself; 0: it has none
	interfaces       int
	iURL, iTransport int
	signatures       int
}

// rpcCards are the methods that answer with a card, by path: 0.3, 1.0.
var rpcCards = map[string]*rpcCard{
	service03 + "GetAgentCard":         {url: 3, transport: 14, interfaces: 15, iURL: 1, iTransport: 2, signatures: 17},
	service10 + "GetExtendedAgentCard": {interfaces: 3, iURL: 1, iTransport: 2, signatures: 13},
}

// AnswersCard reports whether the gRPC method at path answers with a card.
func AnswersCard(path string) bool { return rpcCards[path] != nil }

// RewriteRPCCard is RewriteCard for the card that answers the gRPC method at
// path, in its frame.
func RewriteRPCCard(frame []byte, path string, e CardEdit) ([]byte, CardOutcome, Refusal) {
	fields := rpcCards[path]
	if fields == nil {
		return frame, CardNone, ""
	}
	message, why := FrameMessage(frame)
	if why != "" {
		return frame, CardRefused, why
	}
	r := rpcCardRewriter{b: message, card: fields, e: e}
	out := r.rewrite(span{to: int32(len(message))}, fields.url, fields.transport, true)
	switch {
	case r.refusal != "":
		return frame, CardRefused, r.refusal
	case !r.changed:
		return frame, CardUnchanged, ""
	case r.signed && !e.Strip:
		return frame, CardSigned, ""
	case r.signed:
		return AppendFrame(nil, out), CardStripped, ""
	}
	return AppendFrame(nil, out), CardRewritten, ""
}

// rpcCardRewriter goes through one card.
type rpcCardRewriter struct {
	b    []byte
	card *rpcCard
	e    CardEdit

	changed bool // a URL is another now
	signed  bool
	refusal Refusal
}

// rewrite returns the message at in, the card or one of its interfaces, with the
// URL in the field url changed, without signatures, and every other field to the
// byte as it is.
func (r *rpcCardRewriter) rewrite(in span, url, transport int, isCard bool) (out []byte) {
	p, ok := pbPick(r.b, in, url, transport)
	switch {
	case !ok:
		r.refusal = RefusedNotProtobuf
		return nil
	case p.twice: // readers take the last, or put both together
		r.refusal = RefusedDuplicateKey
		return nil
	}
	text := pbText(r.b, p.at[0], maxCarrier)
	public := text
	if text != "" && !customBinding(pbText(r.b, p.at[1], maxName)) {
		public = r.e.rewrite(text)
	}
	pbFields(r.b, int(in.from), int(in.to), func(f pbField) {
		switch {
		case f.typ == pbBytes && f.number == url && public != text:
			r.changed = true
			out = appendPB(out, url, public)
		case f.typ == pbBytes && f.number == r.card.interfaces && isCard:
			before := r.changed
			r.changed = false
			inner := r.rewrite(f.span(), r.card.iURL, r.card.iTransport, false)
			if r.changed {
				out = appendPB(out, f.number, inner)
			} else {
				out = append(out, r.b[f.start:f.to]...)
			}
			r.changed = r.changed || before
		case f.typ == pbBytes && f.number == r.card.signatures && isCard:
			r.signed = true
		default:
			out = append(out, r.b[f.start:f.to]...)
		}
	})
	return out
}
