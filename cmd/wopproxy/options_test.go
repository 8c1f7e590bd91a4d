package main

import (
	"strings"
	"testing"
	"time"

	"github.com/wopproxy/wopproxy/config"
	"github.com/wopproxy/wopproxy/proxy"
)

// policyOf is the policy of a host at h.example.com whose file holds text too.
func policyOf(t *testing.T, ingress, text string) proxy.Policy {
	t.Helper()
	c, err := config.Parse(strings.NewReader("host: {id: h, wellKnownUrl: https://h.example.com/.well-known/openwop}\n" +
		"ingress: {upstream: http://127.0.0.1:1" + ingress + "}\n" + text))
	if err != nil {
		t.Fatal(err)
	}
	return proxyPolicy(c, &secrets{})
}

func TestPolicyOfBodyPatience(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"":                              10 * time.Second,
		"limits: {bodyPatience: 250ms}": 250 * time.Millisecond,
	} {
		if got := policyOf(t, "", text).BodyPatience; got != want {
			t.Errorf("BodyPatience of %q = %v, want %v", text, got, want)
		}
	}
}

func TestPolicyOfAgentCards(t *testing.T) {
	p := policyOf(t, "", "")
	if p.PublicURL != nil || p.KeepCards || p.OwnAddresses != nil || p.StripSignatures {
		t.Errorf("defaults: %v, %v, own addresses set = %v, %v; want cards rewritten to where callers came, signed ones kept",
			p.PublicURL, p.KeepCards, p.OwnAddresses != nil, p.StripSignatures)
	}
	p = policyOf(t, `, publicUrl: "https://p.example.com/a", agentCards: {rewrite: false, own: ["agent.internal:8080"], signed: strip}`, "")
	if p.PublicURL == nil || p.PublicURL.String() != "https://p.example.com/a" || !p.KeepCards || !p.StripSignatures {
		t.Errorf("PublicURL, KeepCards, StripSignatures = %v, %v, %v, want what the file says", p.PublicURL, p.KeepCards, p.StripSignatures)
	}
	for addr, want := range map[string]bool{"agent.internal:8080": true, "agent.internal:8081": false} {
		if got := p.OwnAddresses(addr); got != want {
			t.Errorf("OwnAddresses(%q) = %v, want %v", addr, got, want)
		}
	}
}

// TestPolicyOfHostHeader shows that the proxy checks Host and Origin where, and
// only where, it hides them from the host's own check.
func TestPolicyOfHostHeader(t *testing.T) {
	p := policyOf(t, "", "")
	if p.RewriteHost || p.AllowedHosts != nil || p.AllowedOrigins != nil {
		t.Errorf("preserve: RewriteHost = %v, AllowedHosts set = %v, AllowedOrigins set = %v, want none",
			p.RewriteHost, p.AllowedHosts != nil, p.AllowedOrigins != nil)
	}
	const upstream = ", host: upstream, allowedHosts: [h.example.com]"
	for _, tt := range []struct {
		name, ingress string
		app           bool // whether the application's origin is let in
	}{
		{"without origins", upstream, false},
		{"with one origin", upstream + `, allowedOrigins: ["https://app.example.com"]`, true},
	} {
		p := policyOf(t, tt.ingress, "")
		if !p.RewriteHost || p.AllowedHosts == nil || p.AllowedOrigins == nil {
			t.Errorf("%s: RewriteHost = %v, AllowedHosts set = %v, AllowedOrigins set = %v, want all",
				tt.name, p.RewriteHost, p.AllowedHosts != nil, p.AllowedOrigins != nil)
			continue
		}
		for host, want := range map[string]bool{"h.example.com": true, "h.example.com:8088": true, "rebound.example.org": false, "": false} {
			if got := p.AllowedHosts(host); got != want {
				t.Errorf("%s: AllowedHosts(%q) = %v, want %v", tt.name, host, got, want)
			}
		}
		for origin, want := range map[string]bool{"https://app.example.com": tt.app, "https://rebound.example.org": false, "null": false} {
			if got := p.AllowedOrigins(origin); got != want {
				t.Errorf("%s: AllowedOrigins(%q) = %v, want %v", tt.name, origin, got, want)
			}
		}
	}
}

// TestPolicyOfReceipts has answers bear receipts where that is asked for.
func TestPolicyOfReceipts(t *testing.T) {
	const signs = "evidence: {issuer: https://h.example.com, key: {file: k}, idKey: {env: K}"
	for text, want := range map[string]bool{
		"":                                       false,
		signs + "}":                              false,
		signs + ", attach: true}":                true,
		signs + ", attach: true, privacy: open}": true,
	} {
		if got := policyOf(t, "", text).AttachReceipts; got != want {
			t.Errorf("AttachReceipts of %q = %v, want %v", text, got, want)
		}
	}
}
