package config

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// checkAll adds what no single value shows: what is missing, and what does not
// go together. A key that is wrong already is not judged again.
func (d *decoder) checkAll(c *Config) {
	d.required(reflect.ValueOf(c).Elem(), "")
	d.checkListeners(c)
	d.checkIngress(c)
	d.checkCards(c)
	d.checkInterception(c)
	d.checkAuth(c)
	d.checkHeaders(c)
	d.checkTrust(c)
	d.checkLimits(c)
	d.checkEvidence(c)
}

// checkEvidence asks for all that it takes to sign, or nothing: half of it would
// leave no evidence, and nobody would notice.
func (d *decoder) checkEvidence(c *Config) {
	e := c.Evidence
	if !d.sound("evidence.issuer") {
		return
	}
	if e.Issuer == "" {
		const what = "has no effect without evidence.issuer, write that or remove it"
		for _, k := range []struct {
			key   string
			given bool
		}{
			{"evidence.key", e.Key.File != ""}, {"evidence.keyId", e.KeyID != ""}, {"evidence.keys", len(e.Keys) > 0},
			{"evidence.revoked", len(e.Revoked) > 0}, {"evidence.idKey", !e.IDKey.IsZero()},
			{"evidence.digests", e.Digests}, {"evidence.known", len(e.Known) > 0},
			{"evidence.attach", e.Attach},
		} {
			if k.given {
				d.refuse(k.key, what)
			}
		}
		return
	}
	if e.Key.File == "" {
		d.refuse("evidence.key", "required by evidence.issuer, write {file: PATH} of a key that openssl genpkey -algorithm ed25519 has made")
	}
	switch {
	case e.IDKey.IsZero():
		d.refuse("evidence.idKey", "required by evidence.issuer, write {file: PATH} of what openssl rand -hex 32 has made")
	case e.IDKey.File != "" && e.IDKey.File == e.Key.File:
		d.refuse("evidence.idKey", "%s is evidence.key, make a secret of its own with openssl rand -hex 32", e.IDKey.File)
	}
	if e.Digests && e.Privacy == PrivacyStrict {
		d.refuse("evidence.digests", "evidence.privacy is strict, which tells none, remove it or write another privacy")
	}
	if e.Attach && e.Privacy == PrivacyStrict {
		d.refuse("evidence.attach", "evidence.privacy is strict, whose receipts are for nobody in particular, remove it or write another privacy")
	}
	d.checkKeys(e)
	d.checkRevoked(e)
	d.checkKnown(e)
}

// checkKnown asks that each issuer is there once.
func (d *decoder) checkKnown(e Evidence) {
	seen := map[string]bool{e.Issuer: true}
	for i, k := range e.Known {
		key := fmt.Sprintf("evidence.known[%d]", i)
		switch {
		case k.Issuer == "":
			d.refuse(key+".issuer", "required, write the iss that its receipts have")
		case seen[k.Issuer]:
			d.refuse(key+".issuer", "%s is there already, write all its keys into one file", k.Issuer)
		case k.File == "":
			d.refuse(key+".file", "required, write the path of its JWKS")
		}
		seen[k.Issuer] = true
	}
}

// checkRevoked asks that verifiers can read what they are told of revoked keys.
func (d *decoder) checkRevoked(e Evidence) {
	const most = 100
	if len(e.Revoked) > most {
		d.refuse("evidence.revoked", "more than %d keys, remove the oldest", most)
	}
	for i, k := range e.Revoked {
		key := fmt.Sprintf("evidence.revoked[%d]", i)
		if k.KeyID == "" {
			d.refuse(key+".keyId", "required, write the id that receipts name the key by")
		}
		if k.At.IsZero() {
			d.refuse(key+".at", "required, write for example 2026-11-22T10:00:00Z")
		}
		if k.KeyID != "" && k.KeyID == e.KeyID {
			d.refuse(key+".keyId", "it is evidence.keyId, have another key sign")
		}
	}
}

// checkKeys asks that further keys can be told apart, and in which order they sign.
func (d *decoder) checkKeys(e Evidence) {
	files, ids := map[string]bool{e.Key.File: true}, map[string]bool{e.KeyID: true}
	var last Time
	for i, k := range e.Keys {
		key := fmt.Sprintf("evidence.keys[%d]", i)
		switch {
		case k.File == "":
			d.refuse(key+".file", "required, write a path, for example /run/secrets/peac-2027.pem")
		case files[k.File]:
			d.refuse(key+".file", "%s is there already, write another file", k.File)
		case k.KeyID != "" && ids[k.KeyID]:
			d.refuse(key+".keyId", "%s is there already, and names one key for ever, write another id", k.KeyID)
		case !k.Sign.IsZero() && !k.Sign.After(last.Time):
			d.refuse(key+".sign", "not after that of the key before it, list the keys in the order in which they sign")
		case !k.Sign.IsZero() && !k.Retire.IsZero() && !k.Retire.After(k.Sign.Time):
			d.refuse(key+".retire", "not after sign, write a later time or remove it")
		}
		files[k.File], ids[k.KeyID] = true, true
		if !k.Sign.IsZero() {
			last = k.Sign
		}
	}
}

func (d *decoder) checkLimits(c *Config) {
	if l := c.Limits; l.InspectedBodies < l.InspectedBody && d.sound("limits.inspectedBody") {
		d.refuse("limits.inspectedBodies", "%v is less than limits.inspectedBody (%v), write at least that", l.InspectedBodies, l.InspectedBody)
	}
}

// refuse adds a mistake, unless the key is wrong already.
func (d *decoder) refuse(key, format string, args ...any) {
	if d.sound(key) {
		d.mistakes = append(d.mistakes, Mistake{Key: key, Line: d.lines[key], What: fmt.Sprintf(format, args...)})
	}
}

// sound reports whether nothing is wrong with key so far. A wrong key keeps its
// default, which is not what the file says, so no rule may build on it.
func (d *decoder) sound(key string) bool {
	return !slices.ContainsFunc(d.mistakes, func(m Mistake) bool { return within(m.Key, key) || within(key, m.Key) })
}

// within reports whether key is section or stands in it.
func within(key, section string) bool {
	rest, ok := strings.CutPrefix(key, section)
	return ok && (section == "" || rest == "" || rest[0] == '.' || rest[0] == '[')
}

// required asks for the keys that have no default.
func (d *decoder) required(v reflect.Value, path string) {
	for f, field := range v.Fields() {
		if !f.IsExported() {
			continue
		}
		key := keyPath(path, f.Tag.Get("yaml"))
		if hint, ok := f.Tag.Lookup("required"); ok && field.IsZero() {
			d.refuse(key, "required, write %s", hint)
		}
		if isSection(f.Type) {
			d.required(field, key)
		}
	}
}

// isSection reports whether t is a struct of keys and not a value.
func isSection(t reflect.Type) bool {
	return t.Kind() == reflect.Struct && t.NumField() > 0 && t.Field(0).Tag.Get("yaml") != "" && t != reflect.TypeFor[Secret]()
}

// checkInterception asks for a CA that the host can come to trust.
func (d *decoder) checkInterception(c *Config) {
	ca := c.Egress.CA
	switch {
	case ca.Cert != "" && ca.Key == "" && d.sound("egress.ca.key"):
		d.refuse("egress.ca.key", "required by egress.ca.cert, write the file of its private key")
	case ca.Key != "" && ca.Cert == "" && d.sound("egress.ca.cert"):
		d.refuse("egress.ca.cert", "required by egress.ca.key, write the file of its certificate")
	case ca.Create && ca.Cert == "":
		d.refuse("egress.ca.cert", "required by egress.ca.create, write where the certificate is to be kept, and egress.ca.key for its private key")
	}
	if len(c.Egress.Intercept) > 0 && ca.Cert == "" && ca.Bundle == "" && d.sound("egress.intercept") && d.sound("egress.ca") {
		d.refuse("egress.ca.bundle", "required by egress.intercept, write a file for the host to trust, or give egress.ca.cert and key")
	}
}

func (d *decoder) checkListeners(c *Config) {
	listeners := []struct {
		key  string
		addr Address
	}{
		{"ingress.listen", c.Ingress.Listen},
		{"egress.listen", c.Egress.Listen},
		{"admin.listen", c.Admin.Listen},
		{"admin.health", c.Admin.Health}, // absent, it overlaps with none
		{"ingress.transparent", c.Ingress.Transparent},
		{"egress.transparent", c.Egress.Transparent},
	}
	for i, l := range listeners {
		for _, other := range listeners[:i] {
			if l.addr.overlaps(other.addr) && d.sound(other.key) {
				d.refuse(l.key, "%s is taken by %s (%s), choose another port", l.addr, other.key, other.addr)
			}
		}
		for _, host := range []struct {
			key string
			url URL
		}{{"ingress.upstream", c.Ingress.Upstream}, {"ingress.grpcUpstream", c.Ingress.GRPCUpstream}, {"executionModel.watch.url", c.ExecutionModel.Watch.URL}} {
			if l.addr.reaches(host.url) && d.sound(l.key) {
				d.refuse(host.key, "%v is %s of this proxy, write the address of the host itself", host.url, l.key)
			}
		}
	}
	if c.Ingress.Transparent.Loopback() {
		d.refuse("ingress.transparent", "%s gets no redirected connections, which arrive at the address of the interface, write for example :8188", c.Ingress.Transparent)
	}
	if c.Admin.Pprof && !c.Admin.Listen.Loopback() {
		d.refuse("admin.pprof", "not allowed while admin.listen is %s, listen on a loopback address or remove it", c.Admin.Listen)
	}
}

func (d *decoder) checkIngress(c *Config) {
	if u := c.Host.WellKnownURL; u.URL != nil && !strings.HasSuffix(u.Path, "/.well-known/openwop") {
		d.refuse("host.wellKnownUrl", "%v does not end in /.well-known/openwop, write the whole address of the discovery document", u)
	}
	if u := c.Ingress.GRPCUpstream; u.URL != nil && u.Path != "" && u.Path != "/" {
		d.refuse("ingress.grpcUpstream", "%v has a path, which gRPC has no place for, write the address alone", u)
	}
	if !d.sound("ingress.host") {
		return
	}
	if c.Ingress.Host == HostUpstream {
		if len(c.Ingress.AllowedHosts) == 0 {
			d.refuse("ingress.allowedHosts", "required by ingress.host upstream, write the names by which callers reach this host, for example [planner.example.com]")
		}
		return
	}
	const what = "has no effect while ingress.host is preserve, remove it or write ingress.host: upstream"
	if len(c.Ingress.AllowedHosts) > 0 {
		d.refuse("ingress.allowedHosts", what)
	}
	if len(c.Ingress.AllowedOrigins) > 0 {
		d.refuse("ingress.allowedOrigins", what)
	}
}

// checkCards asks that cards lead to this proxy, and nowhere else.
func (d *decoder) checkCards(c *Config) {
	for i, p := range c.Ingress.AgentCards.Own {
		if p.port == "" {
			d.refuse(fmt.Sprintf("ingress.agentCards.own[%d]", i), "%s means every port, write the one that the host is at, for example %s:8080", p, p)
		}
	}
	if public := c.Ingress.PublicURL; public.URL != nil && c.Ingress.Upstream.URL != nil && d.sound("ingress.upstream") &&
		strings.EqualFold(public.Host, c.Ingress.Upstream.Host) {
		d.refuse("ingress.publicUrl", "%v is ingress.upstream, write the address by which callers reach this proxy", public)
	}
}

func (d *decoder) checkAuth(c *Config) {
	switch auth := c.Ancestry.Auth; {
	case auth.Mode == AuthNone && !c.Ingress.Listen.Loopback():
		d.refuse("ancestry.auth.mode", "none is not allowed while ingress.listen is %s, choose host or bearer, or listen on a loopback address", c.Ingress.Listen)
	case auth.Mode == AuthNone && c.Ingress.Transparent != "":
		d.refuse("ancestry.auth.mode", "none is not allowed with ingress.transparent, which everyone reaches who reaches the host, choose host or bearer")
	case auth.Mode == AuthNone && !auth.Bearer.IsZero():
		d.refuse("ancestry.auth.bearer", "has no effect while ancestry.auth.mode is none, remove it or choose host or bearer")
	case auth.Mode == AuthBearer && auth.Bearer.IsZero():
		d.refuse("ancestry.auth.bearer", "required by ancestry.auth.mode bearer, write {file: PATH} or {env: NAME}")
	}
}

// taken are headers that HTTP, tracing or MCP use.
var taken = []string{"traceparent", "tracestate", "baggage", "host", "connection", "content-length", "content-type",
	"content-encoding", "transfer-encoding", "te", "trailer", "upgrade", "keep-alive", "expect", "date", "accept",
	"authorization", "proxy-authorization", "proxy-authenticate", "www-authenticate", "proxy-connection",
	"cookie", "set-cookie", "origin", "via", "forwarded", "mcp-session-id", "mcp-protocol-version", "last-event-id"}

// checkHeaders keeps our names off those that mean something already: a run id
// in traceparent would cut the trace it is to follow.
func (d *decoder) checkHeaders(c *Config) {
	names := []struct {
		key  string
		name HeaderName
	}{{"headers.runAncestry", c.Headers.RunAncestry}, {"headers.runId", c.Headers.RunID}}
	for _, h := range names {
		name := strings.ToLower(string(h.name))
		switch {
		case strings.HasPrefix(name, "openwop-") || strings.HasPrefix(name, "a2a-"):
			d.refuse(h.key, "%s belongs to the protocol of that prefix, choose a name without OpenWOP- or A2A- in front", h.name)
		case slices.Contains(taken, name):
			d.refuse(h.key, "%s has a meaning already, choose another name", h.name)
		}
	}
	if c.Headers.RunAncestry == c.Headers.RunID && d.sound("headers.runAncestry") {
		d.refuse("headers.runId", "%s is headers.runAncestry too, choose two names", c.Headers.RunID)
	}
	for i, name := range c.Attribution.SessionHeaders {
		if slices.Contains(taken, strings.ToLower(string(name))) || name == c.Headers.RunAncestry || name == c.Headers.RunID {
			d.refuse(fmt.Sprintf("attribution.sessionHeaders[%d]", i), "%s has a meaning already, which is not the session of one run, remove it", name)
		}
	}
}

func (d *decoder) checkTrust(c *Config) {
	for _, t := range []struct {
		section, list string
		mode          TrustMode
		length        int
	}{
		{"trust.ingress", "trust.ingress.cidrs", c.Trust.Ingress.Mode, len(c.Trust.Ingress.CIDRs)},
		{"trust.egress", "trust.egress.hosts", c.Trust.Egress.Mode, len(c.Trust.Egress.Hosts)},
	} {
		if !d.sound(t.section + ".mode") {
			continue
		}
		switch {
		case t.mode == TrustListed && t.length == 0:
			d.refuse(t.list, "required by %s.mode listed, write at least one, or choose none", t.section)
		case t.mode != TrustListed && t.length > 0:
			d.refuse(t.list, "has no effect while %s.mode is %s, remove it or choose listed", t.section, t.mode)
		}
	}
}
