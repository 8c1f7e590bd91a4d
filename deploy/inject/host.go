package inject

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/wopproxy/wopproxy/carry"
)

// direct are the destinations that no container calls through the sidecar: the pod
// itself, the cluster's API, and where clouds serve credentials, which the sidecar
// refuses to call for anybody.
var direct = []string{
	"localhost", "127.0.0.1", "::1",
	"$(KUBERNETES_SERVICE_HOST)", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local",
	"169.254.169.254", "169.254.170.2", "169.254.170.23", "fd00:ec2::254", "fd00:ec2::23", "metadata.google.internal",
}

// host leads the calls of a container through the sidecar.
func (p *plan) host(name string) {
	where := path{"spec", "containers", name}
	container, _ := at(p.pod, where...).(object)
	given := map[string]object{}
	var environ []string
	for _, e := range objects(container, "env") {
		variable, value := text(e, "name"), text(e, "value")
		if e["valueFrom"] != nil {
			value = "set elsewhere"
		}
		given[variable] = e
		environ = append(environ, variable+"="+value)
	}
	p.warn(name, container, environ)

	set := p.environment(environ)
	for _, variable := range slices.Sorted(maps.Keys(set)) {
		switch {
		case given[variable]["valueFrom"] != nil:
			p.w.note("container %s takes %s from elsewhere, so it stays as it is: set it to a value, to have it completed", name, variable)
		default:
			p.setEnv(name, variable, set[variable])
		}
	}
	if p.shares() {
		p.set(object{"name": shareVolume, "mountPath": shareDir, "readOnly": true}, slices.Concat(where, path{"volumeMounts", shareVolume})...)
	}
	p.linger(name, container)
}

// environment returns the variables to set for a container.
func (p *plan) environment(environ []string) map[string]string {
	e := carry.Settings{Egress: fmt.Sprintf("http://127.0.0.1:%d", p.ports.egress), NoProxy: slices.Clone(direct), Environ: environ}
	for _, more := range p.s.list("no-proxy") {
		e.NoProxy = append(e.NoProxy, more.(string))
	}
	if p.s["carry"] != "off" {
		e.Shims = shareDir + "/carry"
	}
	if p.intercepts() {
		e.Bundle, e.CA, e.TrustStore = bundleFile, shareDir+"/ca.pem", shareDir+"/roots.jks"
	}
	if p.transparent() {
		e.Egress = ""
	}
	set := carry.Environment(e)
	// These replace what the image sets, which nobody sees here: only who asks for
	// it has them, or who sets them in the pod, where they are added to.
	mentioned := func(name string) bool {
		return slices.ContainsFunc(environ, func(kv string) bool { return strings.HasPrefix(kv, name+"=") })
	}
	if p.s["java"] != "true" && !mentioned("JAVA_TOOL_OPTIONS") {
		delete(set, "JAVA_TOOL_OPTIONS")
	}
	switch p.s["carry"] {
	case "node":
		delete(set, "PYTHONPATH")
	case "python":
		delete(set, "NODE_OPTIONS")
	}
	return set
}

// warn tells of what keeps calls of a container from being seen.
func (p *plan) warn(name string, container object, environ []string) {
	for _, variable := range carry.ForeignProxies(environ) {
		p.w.note("container %s has a proxy of its own in %s, which stays: calls through it are not seen; remove the variable to have wopproxy instead", name, variable)
	}
	if len(objects(container, "envFrom")) > 0 && !p.transparent() {
		p.w.note("container %s takes variables from a ConfigMap or Secret, which are not seen here: a proxy among them is replaced", name)
	}
	if files := carry.CAFiles(environ); p.intercepts() && len(files) > 0 {
		p.w.note("container %s trusts roots of its own (%s): what is intercepted passes unread where it does not trust %s too", name, strings.Join(files, ", "), bundleFile)
	}
}

// linger has the container where the host listens go on serving for a while when the
// pod is deleted, because calls still arrive.
func (p *plan) linger(name string, container object) {
	seconds := int(p.sleep().Seconds())
	if p.port == nil || p.port.container != name || seconds == 0 || at(container, "lifecycle", "preStop") != nil {
		return
	}
	p.set(object{"sleep": object{"seconds": seconds}}, "spec", "containers", name, "lifecycle", "preStop")
}
