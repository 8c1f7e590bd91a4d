package wire

import "slices"

// Refusal says why a body is not edited. The set is closed, so that each can be
// a metric label; the empty Refusal means that nothing speaks against an edit.
type Refusal string

// What Read and Message.Stamp find in a body.
const (
	RefusedNotJSON          Refusal = "not-json"           // invalid, with a byte order mark, or with trailing data
	RefusedTooDeep          Refusal = "too-deep"           // nested deeper than 128
	RefusedTooLarge         Refusal = "too-large"          // the edit would exceed the limit
	RefusedBatch            Refusal = "batch"              // an array of messages
	RefusedDuplicateKey     Refusal = "duplicate-key"      // a key that matters occurs twice
	RefusedCaseVariant      Refusal = "case-variant"       // a key that some readers take for one that matters
	RefusedNotAMessage      Refusal = "not-a-message"      // a response, or an object without a method
	RefusedUnrecognised     Refusal = "unrecognised"       // not positively MCP or A2A
	RefusedParamsNotObject  Refusal = "params-not-object"  // params is there and is no object
	RefusedMetaNotObject    Refusal = "meta-not-object"    // the carrier, or what holds it, is there and is no object
	RefusedMessageNotObject Refusal = "message-not-object" // A2A: there is no message to write into
	RefusedFraming          Refusal = "framing"            // gRPC: not exactly one frame
	RefusedCompressed       Refusal = "compressed"         // gRPC: the message in the frame is
	RefusedNotProtobuf      Refusal = "not-protobuf"       // gRPC: invalid, or with groups
)

// What callers find in the headers of a request. The constants stand here so
// that the set is closed in one place.
const (
	RefusedEncoded     Refusal = "encoded"      // Content-Encoding
	RefusedDigest      Refusal = "digest"       // Content-Digest, Repr-Digest, Digest, Content-MD5
	RefusedSigned      Refusal = "signed"       // RFC 9421 or SigV4
	RefusedDPoP        Refusal = "dpop"         // a proof bound to the body, or one that cannot be read
	RefusedNoTransform Refusal = "no-transform" // Cache-Control of the request
)

// What callers find in answers that have documents to edit.
const (
	RefusedTrailers  Refusal = "trailers"   // what they say of the body is not known before its end
	RefusedSlow      Refusal = "slow"       // its end did not come in time
	RefusedCutOff    Refusal = "cut-off"    // its end did not come
	RefusedNoAddress Refusal = "no-address" // the caller did not say where it has reached us
)

// documentRefusals are what can speak against an edit of a document.
var documentRefusals = []Refusal{
	RefusedNotJSON, RefusedTooDeep, RefusedTooLarge, RefusedDuplicateKey, RefusedCaseVariant, RefusedUnrecognised,
	RefusedFraming, RefusedCompressed, RefusedNotProtobuf,
	RefusedEncoded, RefusedDigest, RefusedSigned, RefusedNoTransform, RefusedTrailers, RefusedSlow, RefusedCutOff, RefusedNoAddress,
}

// DocumentRefusals returns every Refusal that there is for documents of a host.
func DocumentRefusals() []Refusal { return slices.Clone(documentRefusals) }

var refusals = []Refusal{
	RefusedNotJSON, RefusedTooDeep, RefusedTooLarge, RefusedBatch, RefusedDuplicateKey, RefusedCaseVariant,
	RefusedNotAMessage, RefusedUnrecognised, RefusedParamsNotObject, RefusedMetaNotObject, RefusedMessageNotObject,
	RefusedFraming, RefusedCompressed, RefusedNotProtobuf,
	RefusedEncoded, RefusedDigest, RefusedSigned, RefusedDPoP, RefusedNoTransform,
}

// Refusals returns every Refusal that there is for messages, without the empty
// one.
func Refusals() []Refusal { return slices.Clone(refusals) }
