package proxy

import (
	"encoding/base64"
	"encoding/json"
	"mime"
	"net/http"
	"slices"
	"strings"

	"github.com/wopproxy/wopproxy/proxy/internal/openwop"
	"github.com/wopproxy/wopproxy/proxy/internal/wire"
)

// Header names in the form that http.Header keeps them.
const (
	headerTraceparent = "Traceparent"
	headerTracestate  = "Tracestate"
	headerBaggage     = "Baggage"
	headerTyloTrace   = "X-Tylo-Trace-Id"
	headerTyloParent  = "X-Tylo-Parent-Span-Id"
	headerMCPSession  = "Mcp-Session-Id"
	headerMCPVersion  = "Mcp-Protocol-Version"
	headerReceipt     = "Peac-Receipt" // also in the trailers of gRPC
)

// head is what the head of a request tells of the message behind it.
type head struct {
	hints   wire.Hints
	inspect bool         // the body may be a message, and may be read
	refusal wire.Refusal // why the body may be read but not edited
	// sealed says that a signature covers the headers of the context: then nothing
	// is written at all.
	sealed  bool
	openwop openwop.Op
	segment string // id of the run that an OpenWOP request names, as in the path
	v1      bool   // it speaks OpenWOP 1.x
	memory  bool   // it reads memory, where an OpenWOP host may show that
	task    string // id of the task that an A2A REST request is about
	route   string // what it does with it, without the id
}

// readHead looks at what it takes to know whether the body is worth reading.
// For a request that is not ours it costs a few map look-ups and no allocation.
func readHead(r *http.Request) head {
	var h head
	path := r.URL.EscapedPath()
	h.openwop, h.segment = openwop.Classify(r.Method, path)
	h.memory = openwop.ReadsMemory(r.Method, path)
	h.v1 = h.openwop != openwop.None && strings.Contains(path, "/v1/runs")
	h.task, h.route = taskRoute(r.Method, path, saysA2A(r))
	h.hints.REST = h.task != "" || r.Method == http.MethodPost &&
		(strings.HasSuffix(path, "/message:send") || strings.HasSuffix(path, "/message:stream")) // %3A is another path
	if wire.IsA2AService(path) && isGRPC(r) {
		h.hints.GRPC = path
	}
	h.hints.Protocol = protocolOf(r, h.hints.REST || h.hints.GRPC != "")
	h.sealed = signed(r.Header, "traceparent", "tracestate", "baggage")
	if h.hints.GRPC != "" {
		// Each of these methods takes one message; of others the proxy knows no end.
		h.inspect = readsGRPC(r.Header.Get("Content-Type")) && wire.KnownRPC(path) &&
			r.Body != nil && r.Body != http.NoBody && len(r.Trailer) == 0
		h.refusal = bodyBound(r.Header)
		return h
	}
	if r.Method != http.MethodPost || !isJSON(r.Header.Get("Content-Type")) || h.task != "" && h.route != routeConfigure {
		return h
	}
	h.hints.AcceptsBoth = acceptsBoth(r.Header["Accept"])
	if r.Header["Content-Encoding"] != nil {
		h.refusal = wire.RefusedEncoded
		return h
	}
	// Behind announced trailers the body must stay chunked.
	h.inspect = r.Body != nil && r.Body != http.NoBody && len(r.Trailer) == 0
	h.refusal = bodyBound(r.Header)
	return h
}

// protocolOf decides by headers, and by whether the path is bound to A2A. Signs of both protocols are not
// MCP: nothing is written into a body that may be the other's.
func protocolOf(r *http.Request, bound bool) wire.Protocol {
	switch h := r.Header; {
	case bound || saysA2A(r):
		return wire.A2A
	case h[headerMCPSession] != nil || h[headerMCPVersion] != nil || h["Mcp-Method"] != nil:
		return wire.MCP
	}
	return wire.None
}

// saysA2A reports whether a request says that it is of A2A.
func saysA2A(r *http.Request) bool {
	h := r.Header
	return h["A2a-Version"] != nil || h["A2a-Extensions"] != nil || h["X-A2a-Extensions"] != nil ||
		r.URL.RawQuery != "" && strings.Contains(r.URL.RawQuery, "A2A-Version=")
}

// isJSON accepts the media types of JSON-RPC and of A2A's REST binding.
func isJSON(contentType string) bool {
	if contentType == "application/json" {
		return true
	}
	t, _, err := mime.ParseMediaType(contentType)
	return err == nil && (t == "application/json" || t == "application/a2a+json")
}

// isGRPC reports whether r is a gRPC request, of whatever encoding. gRPC-Web is
// another protocol.
func isGRPC(r *http.Request) bool {
	rest, ok := strings.CutPrefix(r.Header.Get("Content-Type"), mediaGRPC)
	return ok && r.ProtoMajor == 2 && r.Method == http.MethodPost && (rest == "" || rest[0] == '+' || rest[0] == ';')
}

// mediaGRPC is the media type of gRPC, with protobuf unless it goes on.
const mediaGRPC = "application/grpc"

// readsGRPC reports whether messages of a gRPC media type are protobuf.
func readsGRPC(contentType string) bool {
	t, _, _ := strings.Cut(contentType, ";")
	t = strings.TrimSpace(t)
	return t == mediaGRPC || t == mediaGRPC+"+proto"
}

// acceptsBoth reports whether the client takes JSON and a stream, as clients of
// MCP's Streamable HTTP must.
func acceptsBoth(accept []string) bool {
	var asJSON, asStream bool
	for _, v := range accept {
		asJSON = asJSON || strings.Contains(v, "application/json")
		asStream = asStream || strings.Contains(v, "text/event-stream")
	}
	return asJSON && asStream
}

// bodyBound says what binds the body of a request, or an answer, to its bytes, if
// anything does.
func bodyBound(h http.Header) wire.Refusal {
	switch {
	case h["Content-Digest"] != nil || h["Repr-Digest"] != nil || h["Digest"] != nil || h["Content-Md5"] != nil:
		return wire.RefusedDigest
	case h["Signature"] != nil || h["Signature-Input"] != nil ||
		h["X-Amz-Content-Sha256"] != nil || strings.HasPrefix(h.Get("Authorization"), sigV4):
		return wire.RefusedSigned
	case h["Dpop"] != nil && dpopBindsBody(h["Dpop"]):
		return wire.RefusedDPoP
	case h["Cache-Control"] != nil && strings.Contains(strings.ToLower(strings.Join(h["Cache-Control"], ",")), "no-transform"):
		return wire.RefusedNoTransform
	}
	return ""
}

// sigV4 begins the Authorization of a request that is signed for AWS.
const sigV4 = "AWS4-"

// signed reports whether a signature of the request covers one of the headers,
// given in lower case: RFC 9421 lists them quoted, SigV4 between semicolons.
func signed(h http.Header, names ...string) bool {
	inputs, auth := h["Signature-Input"], h.Get("Authorization")
	if inputs == nil && !strings.HasPrefix(auth, sigV4) {
		return false
	}
	_, list, _ := strings.Cut(auth, "SignedHeaders=")
	list, _, _ = strings.Cut(list, ",")
	list = ";" + strings.TrimSpace(list) + ";"
	for _, name := range names {
		if strings.Contains(list, ";"+name+";") ||
			slices.ContainsFunc(inputs, func(in string) bool { return strings.Contains(in, `"`+name+`"`) }) {
			return true
		}
	}
	return false
}

// dpopBindsBody reports whether a DPoP proof covers the body, or may.
func dpopBindsBody(proofs []string) bool {
	for _, proof := range proofs {
		parts := strings.Split(proof, ".")
		if len(parts) != 3 {
			return true
		}
		payload, err := base64.RawURLEncoding.DecodeString(parts[1])
		if err != nil {
			return true
		}
		var claims map[string]json.RawMessage
		if json.Unmarshal(payload, &claims) != nil || claims["content_digest"] != nil {
			return true
		}
	}
	return false
}
