package inject

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// What the sidecar adds to a pod is known by these names.
const (
	sidecarName = "wopproxy"
	redirector  = "wopproxy-redirect"
	movedPort   = "wopproxy-app" // the host's port, whose name the sidecar has
)

// plan is how one pod is injected.
type plan struct {
	editor
	w        *workload
	o        Options
	s        settings
	services []object
	policies []object // NetworkPolicies
	hosts    []string // the containers that call through the sidecar
	port     *port    // where the host listens; nil: nobody calls it
	ports    ports
}

// port is the host's.
type port struct {
	container string
	name      string
	number    int
	key       string // in the list of the container
}

// ports are those of the sidecar, and the one that the host is moved to.
type ports struct{ ingress, egress, admin, health, host, redirectedIn, redirectedOut int }

// plan looks at the pod, and returns how it can be injected or why it can't.
func (w *workload) plan(o Options, beside []object) (*plan, error) {
	annotations, _ := at(w.pod, "metadata", "annotations").(object)
	s, err := resolve(o.Settings, annotations)
	if err != nil {
		return nil, err
	}
	p := &plan{editor: editor{pod: w.pod}, w: w, o: o, s: s, services: w.services(beside), policies: w.policies(beside)}
	if err := p.suits(); err != nil {
		return nil, err
	}
	if err := p.chooseHosts(); err != nil {
		return nil, err
	}
	if p.port, err = p.choosePort(); err != nil {
		return nil, err
	}
	if err := errors.Join(p.checkStore(), p.choosePorts()); err != nil {
		return nil, err
	}
	if p.transparent() {
		return p, p.redirectable()
	}
	return p, errors.Join(p.readable(), p.admitted())
}

// transparent reports whether the kernel leads the pod's calls to the sidecar.
func (p *plan) transparent() bool { return p.s["mode"] == "transparent" }

// redirectable refuses pods whose calls the kernel can't tell from the sidecar's, or
// whose probes would no longer say anything.
func (p *plan) redirectable() error {
	if p.s["app-port-env"] != "" {
		return fmt.Errorf("%sapp-port-env moves the host, which %smode transparent leaves where it is: remove it", Prefix, Prefix)
	}
	for _, list := range []string{"initContainers", "containers"} {
		for _, c := range objects(p.pod, "spec", list) {
			runs := at(c, "securityContext", "runAsUser")
			if runs == nil {
				runs = at(p.pod, "spec", "securityContext", "runAsUser")
			}
			if runs == transparentUser {
				return fmt.Errorf("container %s runs as the user %d, by which the kernel tells the sidecar from the rest: give it another runAsUser", text(c, "name"), transparentUser)
			}
		}
	}
	if p.port == nil {
		return nil
	}
	for _, probe := range []string{"livenessProbe", "readinessProbe", "startupProbe"} {
		target := at(p.pod, "spec", "containers", p.port.container, probe, "tcpSocket", "port")
		if target != nil && (target == p.port.name || target == p.port.number) {
			return fmt.Errorf("the %s of container %s opens the port %d, which the sidecar then takes, host or no host: write httpGet, grpc or exec", probe, p.port.container, p.port.number)
		}
	}
	if p.s["no-proxy"] != "" {
		p.w.note("%sno-proxy has no effect with %smode transparent: write %sexclude-cidrs", Prefix, Prefix, Prefix)
	}
	return nil
}

// checkStore asks for the volume that the annotation names.
func (p *plan) checkStore() error {
	name, ok := strings.CutPrefix(p.s["store"], "volume/")
	if !ok || at(p.pod, "spec", "volumes", name) != nil {
		return nil
	}
	for _, claim := range objects(p.w.object, "spec", "volumeClaimTemplates") {
		if text(claim, "metadata", "name") == name {
			return nil
		}
	}
	return fmt.Errorf("%sstore names the volume %s, which is neither under volumes nor under volumeClaimTemplates: add it", Prefix, name)
}

// suits refuses pods that can't have a sidecar.
func (p *plan) suits() error {
	switch {
	case at(p.pod, "spec", "hostNetwork") == true:
		return errors.New("it has hostNetwork, and the sidecar's listeners would be the node's: remove hostNetwork, or run wopproxy by hand as deploy/README.md says")
	case text(p.pod, "spec", "os", "name") == "windows", text(p.pod, "spec", "nodeSelector", "kubernetes.io/os") == "windows":
		return errors.New("it is a pod for Windows, which wopproxy has no image for: give it the label " + Label + `: "false"`)
	}
	for _, list := range []string{"initContainers", "containers", "volumes"} {
		for _, e := range objects(p.pod, "spec", list) {
			if name := text(e, "name"); name == sidecarName || name == redirector || strings.HasPrefix(name, sidecarName+"-") && list == "volumes" {
				return fmt.Errorf("spec.%s has %q, and no annotation %s says that it was injected: remove it, or give the pod the label %s: \"false\"", list, name, Status, Label)
			}
		}
	}
	return nil
}

// chooseHosts finds the containers that call through the sidecar.
func (p *plan) chooseHosts() error {
	var all []string
	for _, c := range objects(p.pod, "spec", "containers") {
		all = append(all, text(c, "name"))
	}
	if len(all) == 0 {
		return errors.New("it has no containers")
	}
	for _, name := range p.s.list("containers") {
		if !slices.Contains(all, name.(string)) {
			return fmt.Errorf("%scontainers names %q, which is none of its containers: write one of %s", Prefix, name, strings.Join(all, ", "))
		}
		p.hosts = append(p.hosts, name.(string))
	}
	if p.hosts == nil {
		p.hosts = all
	}
	return nil
}

// declared returns the TCP ports of the containers in a list.
func (p *plan) declared(list string) (found []port) {
	for _, c := range objects(p.pod, "spec", list) {
		for _, e := range objects(c, "ports") {
			number, ok := e["containerPort"].(int)
			if protocol := text(e, "protocol"); ok && (protocol == "" || protocol == "TCP") {
				found = append(found, port{text(c, "name"), text(e, "name"), number, identity("ports", e)})
			}
		}
	}
	return found
}

// choosePort finds where the host listens, and refuses where its callers could not
// be led to the sidecar.
func (p *plan) choosePort() (*port, error) {
	wanted := p.s["port"]
	declared := p.declared("containers")
	switch {
	case wanted == "none", wanted == "" && len(declared) == 0 && p.ofJob():
		return nil, nil
	case len(declared) == 0:
		return nil, fmt.Errorf("its containers have no ports: name the one where the host listens under ports, or say %sport: none where nobody calls it", Prefix)
	}
	var found []port
	var shown []string
	for _, d := range declared {
		if wanted == "" || wanted == d.name || wanted == strconv.Itoa(d.number) {
			found = append(found, d)
		}
		shown = append(shown, strings.TrimSpace(fmt.Sprintf("%d %s", d.number, d.name)))
	}
	switch {
	case len(found) == 0:
		return nil, fmt.Errorf("%sport is %q, which none of its containers has: write one of %s, or add it under ports", Prefix, wanted, strings.Join(shown, ", "))
	case len(found) > 1:
		if err := p.unique(&found[0], found); err != nil {
			return nil, err
		}
		return nil, fmt.Errorf("it has several ports: say with %sport at which one the host is called, %s", Prefix, strings.Join(shown, ", "))
	}
	if err := p.unique(&found[0], append(declared, p.declared("initContainers")...)); err != nil {
		return nil, err
	}
	return &found[0], p.reachable(&found[0])
}

// unique refuses a host's port that another port of the pod could be taken for.
func (p *plan) unique(host *port, others []port) error {
	for _, d := range others {
		switch {
		case d == *host:
		case d.number == host.number && d.container == host.container:
			return fmt.Errorf("container %s has the port %d twice: remove one, and have all say the name of the other", d.container, d.number)
		case d.number == host.number:
			return fmt.Errorf("the containers %s and %s both have the port %d, where only one of them can listen: remove it from the other", host.container, d.container, d.number)
		case d.name == host.name && d.name != "" && (!p.transparent() || p.s["port"] == d.name): // the kernel goes by numbers
			return fmt.Errorf("the ports %d of container %s and %d of container %s both have the name %s, of which a Service finds only one: rename the one that is not the host's",
				host.number, host.container, d.number, d.container, d.name)
		}
	}
	return nil
}

// reachable refuses a port that Services name by its number: only by a name can
// they be led elsewhere, unless the host itself moves.
func (p *plan) reachable(host *port) error {
	if p.transparent() {
		return nil // whoever calls it
	}
	if variable := p.s["app-port-env"]; variable != "" {
		switch {
		case at(p.pod, "spec", "containers", host.container, "env", variable, "valueFrom") != nil:
			return fmt.Errorf("container %s takes %s from elsewhere, where it can't be changed: give it a value", host.container, variable)
		case host.number < 1024:
			return fmt.Errorf("the port %d is privileged, and the sidecar, which is not, can't take it over: have Services name it, and remove %sapp-port-env", host.number, Prefix)
		}
		return nil
	}
	for _, s := range p.services {
		ports := objects(s, "spec", "ports")
		if text(s, "spec", "clusterIP") == "None" && (len(ports) == 0 || slices.ContainsFunc(ports, func(e object) bool { return leads(e, host) })) {
			return fmt.Errorf("the Service %s is headless, so who calls it comes to the port %d by its number, past the sidecar: say %sapp-port-env: VARIABLE if the host takes its port from one, or %smode: transparent",
				text(s, "metadata", "name"), host.number, Prefix, Prefix)
		}
		for _, e := range ports {
			if leadsTo(e) == host.number {
				return fmt.Errorf("the Service %s leads to the port %d by its number, past the sidecar: have its targetPort name the port%s, or say %sapp-port-env: VARIABLE if the host takes its port from one",
					text(s, "metadata", "name"), host.number, named(host), Prefix)
			}
		}
	}
	if host.name == "" {
		return fmt.Errorf("the port %d of container %s has no name, so Services lead to it by its number, past the sidecar: name it, and have the Service's targetPort be that name; or say %sapp-port-env: VARIABLE if the host takes its port from one",
			host.number, host.container, Prefix)
	}
	return nil
}

// leadsTo is the port of the pods to which one of a Service does: a number, or a name.
func leadsTo(e object) any {
	if target := e["targetPort"]; target != nil {
		return target
	}
	return e["port"]
}

// leads reports whether the port of a Service leads to the host's.
func leads(e object, host *port) bool {
	target := leadsTo(e)
	return target == host.number || target == host.name
}

func named(host *port) string {
	if host.name == "" {
		return ", which needs a name"
	}
	return ", " + host.name
}

// ofJob reports whether the pods are those of a Job, which nobody calls.
func (p *plan) ofJob() bool {
	if p.w.kind == "Job" || p.w.kind == "CronJob" {
		return true
	}
	owner := p.w.owner()
	return owner != nil && owner["kind"] == "Job"
}

// owner is the object that made the pod, nil if it is none or nobody did.
func (w *workload) owner() object {
	for _, o := range objects(w.object, "metadata", "ownerReferences") {
		if o["controller"] == true {
			return o
		}
	}
	return nil
}

// ofJobOfCron is what a CronJob appends to the name of its Jobs.
var ofJobOfCron = regexp.MustCompile(`-[0-9]{8,}$`)

// workloadName is what all replicas of a pod have in common.
func (w *workload) workloadName() string {
	owner := w.owner()
	name := text(owner, "name")
	switch owner["kind"] {
	case nil:
		if name = w.name; name == "" {
			name = strings.TrimSuffix(text(w.object, "metadata", "generateName"), "-")
		}
	case "ReplicaSet": // of a Deployment
		if hash := text(w.labels(), "pod-template-hash"); hash != "" {
			name = strings.TrimSuffix(name, "-"+hash)
		}
	case "Job":
		name = ofJobOfCron.ReplaceAllString(name, "")
	}
	return name
}

// choosePorts finds the ports of the sidecar, which share the pod's addresses with
// those of the containers.
func (p *plan) choosePorts() error {
	base, err := strconv.Atoi(p.s["base-port"])
	if err != nil {
		return err
	}
	const last = 6
	p.ports = ports{base, base + 1, base + 2, base + 3, base + 4, base + 5, base + last}
	for _, d := range append(p.declared("containers"), p.declared("initContainers")...) {
		if d.number >= base && d.number <= base+last {
			return fmt.Errorf("container %s has the port %d, and the sidecar takes %d to %d: choose others with %sbase-port", d.container, d.number, base, base+last, Prefix)
		}
	}
	switch {
	case p.port == nil:
	case p.s["app-port-env"] != "":
		p.ports.ingress = p.port.number
	default:
		p.ports.host = p.port.number
	}
	return nil
}

// apply edits the pod.
func (p *plan) apply() error {
	container, err := p.sidecar()
	if err != nil {
		return err
	}
	p.first(container, "spec", "initContainers", sidecarName)
	if p.transparent() {
		// Before the sidecar: what comes behind it finds both.
		p.first(p.redirector(), "spec", "initContainers", redirector)
	} else {
		p.movePort()
	}
	for _, name := range p.hosts {
		p.host(name)
	}
	for _, v := range p.volumes() {
		p.set(v, "spec", "volumes", text(v, "name"))
	}
	where := path{"metadata", "annotations", Status}
	p.set("", where...) // what takes it back is part of it
	put(p.pod, flow(status{Version: 1, Mode: p.s["mode"], Containers: p.s["containers"], Undo: p.undo}), false, "", where)
	return nil
}

// movePort gives the name of the host's port to the sidecar, and leads the probes
// of the host, which mean the host itself, to where it is.
func (p *plan) movePort() {
	if p.port == nil {
		return
	}
	host := path{"spec", "containers", p.port.container}
	under := func(more ...string) path { return slices.Concat(host, more) }
	moved := p.s["app-port-env"] != ""
	for _, probe := range []path{{"livenessProbe"}, {"readinessProbe"}, {"startupProbe"}, {"lifecycle", "postStart"}, {"lifecycle", "preStop"}} {
		for _, by := range []string{"httpGet", "tcpSocket", "grpc"} {
			where := under(append(probe, by, "port")...)
			switch target := at(p.pod, where...); {
			case target == nil:
			case target == p.port.name:
				p.set(movedPort, where...)
			case moved && target == p.port.number:
				p.set(p.ports.host, where...)
			}
		}
	}
	was := at(p.pod, under("ports", p.port.key)...).(object)
	if was["hostPort"] != nil {
		p.w.note("container %s has a hostPort: who calls the node there comes past the sidecar", p.port.container)
	}
	now := clone(was).(object)
	if p.port.name != "" {
		now["name"] = movedPort
	}
	if moved {
		now["containerPort"] = p.ports.host
		p.setEnv(p.port.container, p.s["app-port-env"], strconv.Itoa(p.ports.host))
	}
	p.replace(now, under("ports", identity("ports", now)), under("ports", p.port.key))
}

// setEnv sets a variable of a container.
func (p *plan) setEnv(container, name, value string) {
	where := path{"spec", "containers", container, "env", name}
	if at(p.pod, where...) != nil {
		p.set(value, append(where, "value")...)
		return
	}
	p.set(object{"name": name, "value": value}, where...)
}
