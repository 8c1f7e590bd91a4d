package proxy

import (
	"net/http"
	"strings"

	"github.com/wopproxy/wopproxy/proxy/internal/attribution"
	"github.com/wopproxy/wopproxy/proxy/internal/wire"
)

// bindContext ties the A2A conversation that a message belongs to to its run.
func (x *exchange) bindContext() {
	if x.msg.Protocol == wire.A2A {
		x.bindConversation(attribution.KindA2AContext, x.msg.ContextID)
	}
}

// bindConversation ties an id that both sides of a conversation repeat to the
// run of the exchange, unless it is so short that others may use the same by
// chance: "default" names no conversation.
func (x *exchange) bindConversation(kind, id string) {
	if len(id) >= unlikely {
		x.bind(attribution.Key{Kind: kind, ID: id})
	}
}

// noteIDs notes what ids the host is given with a request of a run: the run's
// own, and all that the request mentions.
func (x *exchange) noteIDs(r *http.Request) {
	if !x.p.o.EchoedIDs {
		return
	}
	fits := true
	if x.goesOn {
		ids, all := x.mentions(r)
		fits = x.p.runs.Mention(x.run, ids, all)
	}
	for _, id := range []string{string(x.run.First), string(x.run.ID()), x.msg.MessageID, x.msg.ContextID} {
		fits = x.p.runs.Own(x.run, id) && fits
	}
	if !fits {
		x.p.metrics.limit(limitBindings)
	}
}

// mentions returns the ids that the host is given with a request, and whether
// there are no more.
func (x *exchange) mentions(r *http.Request) (ids []string, all bool) {
	ids, all = attribution.Mentions(x.body)
	for _, a := range x.chain.Ancestors {
		ids = append(ids, strings.ToLower(string(a.Run)))
	}
	return ids, all && (x.body != nil || r.ContentLength == 0)
}

// own notes an id that the host has given to the run.
func (x *exchange) own(id string) {
	if !x.p.runs.Own(x.run, id) {
		x.p.metrics.limit(limitBindings)
	}
}

// bindSessions ties the sessions that vendors' headers name to the run of the
// exchange.
func (x *exchange) bindSessions(r *http.Request) {
	for _, k := range x.sessions(r) {
		x.bind(k)
	}
}

// sessions are what the configured headers of r name.
func (x *exchange) sessions(r *http.Request) []attribution.Key {
	const longest = 256
	var keys []attribution.Key
	for _, name := range x.policy.SessionHeaders {
		if v := r.Header.Get(name); len(v) >= unlikely && len(v) <= longest {
			keys = append(keys, attribution.Key{Kind: attribution.KindHeader, ID: name + "\x00" + v})
		}
	}
	return keys
}

// bind ties a conversation to the run of the exchange.
func (x *exchange) bind(k attribution.Key) {
	if x.run != nil && k.ID != "" && !x.p.runs.Bind(x.run, k) {
		x.p.metrics.limit(limitBindings)
	}
}
