package proxy

import (
	"crypto/tls"
	"encoding/json"
	"errors"
	"maps"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/wopproxy/wopproxy/ancestry"
)

// failure is an answer of our own: the one place where an error becomes a
// status. It says that the proxy speaks, and no more than the peer may know.
type failure struct {
	status int
	typ    string
	body   []byte
}

// fail makes an answer. To a JSON-RPC request it is an error with the request's
// id, under a code outside the range that JSON-RPC and MCP reserve: clients
// take a reserved code, or a 4xx without one, for the server's own word and
// fall back to another protocol revision.
func (x *exchange) fail(status int, message string) *failure {
	message = "wopproxy: " + message
	if !x.isRPC() {
		return &failure{status, "text/plain; charset=utf-8", []byte(message + "\n")}
	}
	id := json.RawMessage(x.msg.ID)
	if len(id) == 0 {
		id = json.RawMessage("null")
	}
	body, _ := json.Marshal(map[string]any{ // always marshals: ID is JSON
		"jsonrpc": "2.0", "id": id,
		"error": map[string]any{"code": status, "message": message},
	})
	return &failure{status, "application/json", body}
}

// failure answers for a next hop that could not be reached.
func (x *exchange) failure(r *http.Request, err error) *failure {
	if r.Context().Err() != nil { // whatever err says: a body that broke off, for one
		x.outcome = outcomeClient
	} else {
		x.outcome = outcomeUpstream
		x.p.o.Logger.WarnContext(r.Context(), "next hop failed", "direction", x.dir, "peer", r.URL.Host, "err", err)
	}
	var forbidden forbiddenAddress
	var timeout net.Error
	var certificate *tls.CertificateVerificationError
	x.fault = ancestry.HandoffUnreachable
	switch {
	case errors.As(err, &forbidden) && forbidden.loop:
		x.fault = ancestry.HandoffRefused
		return x.fail(http.StatusLoopDetected, forbidden.Error())
	case errors.As(err, &forbidden):
		x.fault = ancestry.HandoffRefused
		return x.fail(http.StatusBadGateway, forbidden.Error())
	case errors.As(err, &timeout) && timeout.Timeout():
		x.fault = ancestry.HandoffTimeout
		return x.fail(http.StatusGatewayTimeout, "upstream did not answer in time")
	case errors.As(err, &certificate): // the host can't see it for itself
		return x.fail(http.StatusBadGateway, "upstream's certificate could not be verified")
	}
	return x.fail(http.StatusBadGateway, "upstream could not be reached")
}

func (f *failure) header() http.Header {
	return http.Header{
		"Content-Type":   {f.typ},
		"Content-Length": {strconv.Itoa(len(f.body))},
		"Cache-Control":  {"no-store"},
	}
}

func (f *failure) write(w http.ResponseWriter) {
	maps.Copy(w.Header(), f.header())
	w.WriteHeader(f.status)
	_, _ = w.Write(f.body) // the client has gone; nobody is left to tell
}

func sinceSeconds(t time.Time) float64 { return time.Since(t).Seconds() }
