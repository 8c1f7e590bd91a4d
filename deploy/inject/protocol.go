package inject

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// overHTTP are the names that say that a port speaks HTTP without TLS: those of ports, up to
// a hyphen and without the digits at their end, and those of a Service's appProtocol.
var overHTTP = []string{"http", "h2c", "grpc", "ws", "sse", "web", "rest", "api", "mcp", "a2a", "openwop"}

// overTLS are the names for TLS.
var overTLS = []string{"https", "tls", "ssl", "wss", "grpcs"}

// means reports whether a name is one of the protocols.
func means(name string, protocols []string) bool {
	name, _, _ = strings.Cut(strings.TrimPrefix(strings.ToLower(name), "kubernetes.io/"), "-")
	return slices.Contains(protocols, name) || slices.Contains(protocols, strings.TrimRight(name, "0123456789"))
}

// readable refuses a port of which the pod or its Services say that it speaks something
// else than HTTP, and one that doesn't say it, unless the user has chosen it: the sidecar
// could only fail its calls.
func (p *plan) readable() error {
	if p.port == nil {
		return nil
	}
	if probe := p.securelyProbed(); probe != "" {
		return fmt.Errorf("the %s of container %s speaks HTTPS to the port %d, which the sidecar can't read: have the host speak HTTP, and something in front of the pod TLS, or say %sport: none",
			probe, p.port.container, p.port.number, Prefix)
	}
	chosen := p.s["port"] != ""
	said := ""
	for _, s := range p.services {
		for _, e := range objects(s, "spec", "ports") {
			if !leads(e, p.port) {
				continue
			}
			protocol := text(e, "appProtocol")
			switch name := text(s, "metadata", "name"); {
			case means(protocol, overTLS):
				return fmt.Errorf("the Service %s has the appProtocol %s for the port %d, which the sidecar can't read: have the host speak HTTP, and something in front of the pod TLS, or say %sport: none",
					name, protocol, p.port.number, Prefix)
			case protocol != "" && !means(protocol, overHTTP) && !chosen:
				return fmt.Errorf("the Service %s has the appProtocol %s for the port %d, and the sidecar speaks HTTP: say %sport: %d if the host does, too, or %sport: none", name, protocol, p.port.number, Prefix, p.port.number, Prefix)
			case protocol != "":
				said = protocol
			}
		}
	}
	if p.port.name != "" && said == "" && !chosen && !means(p.port.name, overHTTP) {
		return fmt.Errorf("the port %d has the name %s, which is not one for HTTP (%s), all that the sidecar speaks: say %sport: %s if the host speaks it there, or %sport: none",
			p.port.number, p.port.name, strings.Join(overHTTP, ", "), Prefix, p.port.name, Prefix)
	}
	return nil
}

// securelyProbed returns the probe that speaks HTTPS to the host, "" for none.
func (p *plan) securelyProbed() string {
	for _, probe := range []path{{"livenessProbe"}, {"readinessProbe"}, {"startupProbe"}, {"lifecycle", "postStart"}, {"lifecycle", "preStop"}} {
		get, _ := at(p.pod, append(path{"spec", "containers", p.port.container}, append(probe, "httpGet")...)...).(object)
		if text(get, "scheme") == "HTTPS" && (get["port"] == p.port.name || get["port"] == p.port.number) {
			return probe[len(probe)-1]
		}
	}
	return ""
}

// admitted refuses a pod whose callers a NetworkPolicy lets through to the host's port,
// by its number, and not to the sidecar's.
func (p *plan) admitted() error {
	if p.port == nil {
		return nil
	}
	var errs []error
	for _, policy := range p.policies {
		for _, rule := range objects(policy, "spec", "ingress") {
			if allows(rule, p.port.number) && !allows(rule, p.ports.ingress) {
				errs = append(errs, fmt.Errorf("the NetworkPolicy %s lets callers through to the port %d, and the sidecar listens on %d: have the same rule allow %d, too",
					text(policy, "metadata", "name"), p.port.number, p.ports.ingress, p.ports.ingress))
				break
			}
		}
	}
	return errors.Join(errs...)
}

// allows reports whether a rule for what comes in names a port by its number.
func allows(rule object, number int) bool {
	return slices.ContainsFunc(objects(rule, "ports"), func(e object) bool {
		first, ok := e["port"].(int)
		last, isRange := e["endPort"].(int)
		if !isRange {
			last = first
		}
		protocol := text(e, "protocol")
		return (protocol == "" || protocol == "TCP") && (e["port"] == nil || ok && first <= number && number <= last)
	})
}
