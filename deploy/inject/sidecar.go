package inject

import (
	"errors"
	"fmt"
	slashes "path"
	"strconv"
	"strings"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/wopproxy/wopproxy/config"
)

// Where the sidecar has its files.
const (
	configDir    = "/etc/wopproxy"          // the user's ConfigMap
	configFile   = "wopproxy.yaml"          // in it
	linksDir     = "/var/lib/wopproxy"      // the store
	shareDir     = "/run/wopproxy"          // what the containers read: roots and shims
	authorityDir = "/run/wopproxy-ca"       // the key that signs certificates for the containers
	evidenceDir  = "/run/wopproxy-evidence" // the keys of evidence
	bundleFile   = "/run/wopproxy/bundle.pem"
	configEnv    = "WOPPROXY_CONFIG"
	readersEnv   = "WOPPROXY_BEARER"
	namespaceRef = "$(POD_NAMESPACE)"  // which the kubelet fills in
	user         = 65532               // as in the image
	program      = "/usr/bin/wopproxy" // likewise
	// transparentUser is nobody else: many images for hosts have the user of ours, too.
	transparentUser = 61337
)

// Volumes of the sidecar.
const (
	linksVolume     = sidecarName + "-links"
	shareVolume     = sidecarName + "-share"
	authorityVolume = sidecarName + "-ca"
	configVolume    = sidecarName + "-config"
	evidenceVolume  = sidecarName + "-evidence"
)

// shares reports whether the containers read files of the sidecar.
func (p *plan) shares() bool { return p.s["carry"] != "off" || p.intercepts() }

func (p *plan) intercepts() bool { return len(p.s.list("intercept")) > 0 }

// sidecar returns the container.
func (p *plan) sidecar() (object, error) {
	text, says, err := p.config()
	if err != nil {
		return nil, err
	}
	if err := p.provided(says.Evidence); err != nil {
		return nil, err
	}
	args := []any{"serve", "-config-env", configEnv}
	if p.s["config-map"] != "" {
		args = append(args, "-config", configDir+"/"+configFile)
	}
	if p.shares() {
		args = append(args, "-share", shareDir)
	}
	c := p.pulled(object{
		"name": sidecarName, "args": args, "restartPolicy": "Always",
		"env":   p.sidecarEnv(text),
		"ports": p.sidecarPorts(),
		// Startup holds the containers back until their roots and shims are written.
		"startupProbe":   probe("/startupz", object{"periodSeconds": 1, "failureThreshold": 60}),
		"livenessProbe":  probe("/livez", object{"periodSeconds": 10, "timeoutSeconds": 5}),
		"readinessProbe": probe("/readyz", object{"periodSeconds": 5, "timeoutSeconds": 5}),
		"resources":      p.resources(),
		"securityContext": object{
			"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "privileged": false,
			"runAsNonRoot": true, "runAsUser": p.user(), "runAsGroup": user,
			"capabilities": object{"drop": []any{"ALL"}}, "seccompProfile": object{"type": "RuntimeDefault"},
		},
		"volumeMounts": p.sidecarMounts(),
	})
	if p.parts() {
		// The kubelet waits for the hooks of all containers at once, and with stopping
		// this one until the host has ended.
		c["lifecycle"] = object{"preStop": object{"exec": object{"command": []any{
			program, "drain", "-url", fmt.Sprintf("http://127.0.0.1:%d/drain", p.ports.admin),
		}}}}
	}
	return c, nil
}

// pulled gives a container the image.
func (p *plan) pulled(c object) object {
	if c["image"] = p.s["image"]; c["image"] == "" {
		c["image"] = p.o.Image
	}
	if policy := p.s["image-pull-policy"]; policy != "" {
		c["imagePullPolicy"] = policy
	}
	return c
}

// user is whom the sidecar runs as.
func (p *plan) user() int {
	if p.transparent() {
		return transparentUser
	}
	return user
}

// redirector returns the container that tells the kernel what to redirect.
func (p *plan) redirector() object {
	args := []any{"redirect", "-uid", strconv.Itoa(transparentUser), "-outbound", strconv.Itoa(p.ports.redirectedOut), "-exclude-outbound-ports", p.s["exclude-ports"]}
	if networks := p.s["exclude-cidrs"]; networks != "" {
		args = append(args, "-exclude-outbound-cidrs", networks)
	}
	if p.port != nil {
		args = append(args, "-inbound", strconv.Itoa(p.ports.redirectedIn), "-app-ports", strconv.Itoa(p.port.number))
	}
	return p.pulled(object{
		"name": redirector, "args": args, "resources": p.resources(),
		"securityContext": object{
			"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "privileged": false,
			"runAsNonRoot": false, "runAsUser": 0, "runAsGroup": 0,
			"capabilities":   object{"drop": []any{"ALL"}, "add": []any{"NET_ADMIN"}},
			"seccompProfile": object{"type": "RuntimeDefault"},
		},
	})
}

func probe(path string, more object) object {
	more["httpGet"] = object{"path": path, "port": "wopproxy-health"}
	return more
}

func (p *plan) sidecarEnv(text string) []any {
	field := func(name, path string) object {
		return object{"name": name, "valueFrom": object{"fieldRef": object{"fieldPath": path}}}
	}
	env := []any{
		field("POD_NAMESPACE", "metadata.namespace"), field("POD_NAME", "metadata.name"), // before who refers to them
		object{"name": "OTEL_RESOURCE_ATTRIBUTES", "value": "k8s.namespace.name=" + namespaceRef + ",k8s.pod.name=$(POD_NAME)"},
	}
	if secret := p.s["bearer-secret"]; secret != "" {
		env = append(env, object{"name": readersEnv, "valueFrom": object{"secretKeyRef": object{"name": secret, "key": "token"}}})
	}
	return append(env, object{"name": configEnv, "value": text})
}

func (p *plan) sidecarPorts() (list []any) {
	if p.port != nil && !p.transparent() {
		name := p.port.name
		if name == "" {
			name = sidecarName
		}
		list = append(list, object{"name": name, "containerPort": p.ports.ingress})
	}
	return append(list, object{"name": "wopproxy-health", "containerPort": p.ports.health})
}

func (p *plan) resources() object {
	r := object{}
	for _, kind := range []string{"request", "limit"} {
		amounts := object{}
		for _, of := range []string{"cpu", "memory"} {
			if v := p.s[of+"-"+kind]; v != "" {
				amounts[of] = v
			}
		}
		if len(amounts) > 0 {
			r[kind+"s"] = amounts
		}
	}
	return r
}

func (p *plan) sidecarMounts() []any {
	links := linksVolume
	if name, ok := strings.CutPrefix(p.s["store"], "volume/"); ok {
		links = name
	}
	list := []any{object{"name": links, "mountPath": linksDir}}
	if p.shares() {
		list = append(list, object{"name": shareVolume, "mountPath": shareDir})
	}
	if p.intercepts() {
		list = append(list, object{"name": authorityVolume, "mountPath": authorityDir})
	}
	if p.s["config-map"] != "" {
		list = append(list, object{"name": configVolume, "mountPath": configDir, "readOnly": true})
	}
	if p.s["evidence-secret"] != "" {
		list = append(list, object{"name": evidenceVolume, "mountPath": evidenceDir, "readOnly": true})
	}
	return list
}

// volumes returns those that the pod has not.
func (p *plan) volumes() (list []object) {
	memory := func(name, limit string) object {
		return object{"name": name, "emptyDir": object{"medium": "Memory", "sizeLimit": limit}}
	}
	switch p.s["store"] {
	case "pod":
		list = append(list, object{"name": linksVolume, "emptyDir": object{}})
	case "memory":
		list = append(list, memory(linksVolume, "256Mi"))
	}
	if p.shares() {
		list = append(list, memory(shareVolume, "16Mi"))
	}
	if p.intercepts() {
		list = append(list, memory(authorityVolume, "1Mi"))
	}
	if name := p.s["config-map"]; name != "" {
		list = append(list, object{"name": configVolume, "configMap": object{"name": name}})
	}
	if name := p.s["evidence-secret"]; name != "" {
		// Its files are root's, and have the mode 0644 by default: one that is stricter takes an
		// fsGroup for the sidecar's user to read them, and that is the host's to choose.
		list = append(list, object{"name": evidenceVolume, "secret": object{"secretName": name}})
	}
	return list
}

// provided refuses evidence with files that the sidecar would not find: it would not
// start, nor the pod with it. What a ConfigMap says is not seen.
func (p *plan) provided(e config.Evidence) error {
	if e.Issuer == "" {
		return nil
	}
	var errs []error
	needs := func(key, file string) {
		if file != "" && !p.mounted(file) {
			errs = append(errs, fmt.Errorf("%s is %s, which the sidecar has not: put it into the Secret that %sevidence-secret names, and write %s",
				key, file, Prefix, slashes.Join(evidenceDir, slashes.Base(file))))
		}
	}
	needs("evidence.key.file", e.Key.File)
	needs("evidence.idKey.file", e.IDKey.File)
	for i, k := range e.Keys {
		needs(fmt.Sprintf("evidence.keys[%d].file", i), k.File)
	}
	for i, k := range e.Known {
		needs(fmt.Sprintf("evidence.known[%d].file", i), k.File)
	}
	if name := e.IDKey.Env; name != "" {
		errs = append(errs, fmt.Errorf("evidence.idKey.env is %s, which nobody sets for the sidecar: put it into the Secret that %sevidence-secret names, and write evidence.idKey.file", name, Prefix))
	}
	return errors.Join(errs...)
}

// mounted reports whether a file is in a volume that may hold it before the sidecar
// starts.
func (p *plan) mounted(file string) bool {
	file = slashes.Clean(file)
	return p.s["evidence-secret"] != "" && strings.HasPrefix(file, evidenceDir+"/") ||
		strings.HasPrefix(p.s["store"], "volume/") && strings.HasPrefix(file, linksDir+"/")
}

// config returns the sidecar's configuration: the text, as the kubelet expands it, and
// what it says.
func (p *plan) config() (string, *config.Config, error) {
	all := object{}
	if p.s["config-map"] == "" {
		if err := yaml.Unmarshal(p.o.Config, &all); err != nil {
			return "", nil, fmt.Errorf("the configuration for all sidecars is not YAML: %w", err)
		}
	}
	merge(all, p.generated())
	text := strings.Join((&splicer{}).block(all, 0, 0), "\n") + "\n"
	c, err := config.Parse(strings.NewReader(strings.ReplaceAll(text, namespaceRef, "namespace")))
	if err != nil {
		return "", nil, fmt.Errorf("the settings make no configuration:\n%w", err)
	}
	// The kubelet takes $(NAME) for a variable, and $$ for a dollar.
	text = strings.ReplaceAll(text, "$", "$$")
	return strings.ReplaceAll(text, "$"+namespaceRef, namespaceRef), c, nil
}

// merge puts what is in over into base.
func merge(base, over object) {
	for key, v := range over {
		below, isObject := v.(object)
		if under, ok := base[key].(object); ok && isObject {
			merge(under, below)
		} else {
			base[key] = v
		}
	}
}

// generated is what the pod and its settings say.
func (p *plan) generated() object {
	c := object{
		"host":        object{"id": p.hostID(), "wellKnownUrl": p.wellKnown()},
		"ingress":     object{"listen": fmt.Sprintf(":%d", p.ports.ingress), "upstream": fmt.Sprintf("http://127.0.0.1:%d", p.ports.host)},
		"egress":      object{"listen": fmt.Sprintf("127.0.0.1:%d", p.ports.egress)},
		"admin":       object{"listen": fmt.Sprintf("127.0.0.1:%d", p.ports.admin), "health": fmt.Sprintf(":%d", p.ports.health)},
		"ancestry":    object{"store": object{"bolt": object{"dir": linksDir}}},
		"attribution": object{"singleFlight": p.s["single-flight"] == "true"},
		"drain":       object{"delay": p.drainDelay().String(), "timeout": p.drainTimeout().String()},
	}
	if p.port == nil { // nobody shall call what nobody answers
		c["ingress"].(object)["listen"] = fmt.Sprintf("127.0.0.1:%d", p.ports.ingress)
	}
	if p.transparent() {
		c["ingress"].(object)["listen"] = fmt.Sprintf("127.0.0.1:%d", p.ports.ingress)
		c["egress"].(object)["transparent"] = fmt.Sprintf(":%d", p.ports.redirectedOut)
		if p.port != nil {
			c["ingress"].(object)["transparent"] = fmt.Sprintf(":%d", p.ports.redirectedIn)
		}
	}
	if p.intercepts() {
		merge(c, object{"egress": object{"intercept": p.s.list("intercept"), "ca": object{
			"cert": authorityDir + "/ca.pem", "key": authorityDir + "/ca-key.pem", "create": true, "bundle": bundleFile,
		}}})
	}
	if routes := p.s.list("runs-start"); len(routes) > 0 {
		merge(c, object{"runs": object{"start": routes}})
	}
	if endpoint := p.s["otlp-endpoint"]; endpoint != "" {
		merge(c, object{"tracing": object{"otlp": object{"endpoint": endpoint}}})
	}
	if p.s["bearer-secret"] != "" {
		merge(c, object{"ancestry": object{"auth": object{"bearer": object{"env": readersEnv}}}})
	}
	return c
}

func (p *plan) hostID() string {
	if id := p.s["host-id"]; id != "" {
		return id
	}
	return namespaceRef + "/" + p.w.workloadName()
}

// wellKnown is where others find the host's discovery document: at the Service that
// leads to it, of which the one of the same name is the best guess.
func (p *plan) wellKnown() string {
	if url := p.s["well-known-url"]; url != "" {
		return url
	}
	service, number := p.w.workloadName(), ""
	for _, s := range p.services {
		for _, e := range objects(s, "spec", "ports") {
			if p.port != nil && (e["targetPort"] == p.port.name || e["targetPort"] == p.port.number || e["targetPort"] == nil && e["port"] == p.port.number) {
				service, number = text(s, "metadata", "name"), ""
				if e["port"] != 80 {
					number = fmt.Sprintf(":%v", e["port"])
				}
			}
		}
	}
	return fmt.Sprintf("http://%s.%s.svc%s/.well-known/openwop", service, namespaceRef, number)
}

// grace is how long the pod may take to stop.
func (p *plan) grace() time.Duration {
	if seconds, ok := at(p.pod, "spec", "terminationGracePeriodSeconds").(int); ok {
		return time.Duration(seconds) * time.Second
	}
	return 30 * time.Second
}

// sleep is how long the host goes on serving after the pod was deleted. It never
// takes more than half of the time that there is.
func (p *plan) sleep() time.Duration {
	d, _ := time.ParseDuration(p.s["drain"]) // checked
	return min(d, (p.grace() / 2).Truncate(time.Second))
}

// parts reports whether callers have to leave the sidecar before the host ends.
func (p *plan) parts() bool { return p.port != nil && p.sleep() > 0 }

// drainDelay ends the connections that callers keep while the host still serves: half
// of that time is left for a hook that runs late. When the sidecar is told to stop, it
// is long over.
func (p *plan) drainDelay() time.Duration {
	if !p.parts() {
		return 0
	}
	return p.sleep() / 2
}

// drainTimeout leaves the host as much time to end as there is.
func (p *plan) drainTimeout() time.Duration {
	return max(time.Second, min(20*time.Second, p.grace()-p.sleep()-5*time.Second))
}
