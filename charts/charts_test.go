// Package charts_test holds the chart together: its values, their schema and their
// documentation say the same, and what it renders is what the program wants.
package charts_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/jsonschema-go/jsonschema"
	"gopkg.in/yaml.v3"

	"github.com/wopproxy/wopproxy/deploy/inject"
	"github.com/wopproxy/wopproxy/deploy/webhook"
)

var update = flag.Bool("update", false, "rewrite what is made of something else")

func read(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// made holds a file to what it is made of, or makes it.
func made(t *testing.T, name string, want []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(name, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(string(want), string(read(t, name))); diff != "" {
		t.Errorf("%s is not what it is made of; rewrite it with -update (-want +file):\n%s", name, diff)
	}
}

// TestFilesOfTheChart holds the copies in the chart to their originals: a chart may
// not reach out of its folder.
func TestFilesOfTheChart(t *testing.T) {
	made(t, "wopproxy/files/alerts.yaml", read(t, "../deploy/alerts/wopproxy.yaml"))
	dashboards, err := filepath.Glob("../deploy/grafana/*.json")
	if err != nil || len(dashboards) == 0 {
		t.Fatalf("no dashboards: %v", err)
	}
	for _, name := range dashboards {
		made(t, "wopproxy/files/dashboards/"+filepath.Base(name), read(t, name))
	}
	if copies, _ := filepath.Glob("wopproxy/files/dashboards/*"); len(copies) != len(dashboards) {
		t.Errorf("the chart has dashboards that are gone: %q", copies)
	}
}

// value is a key of values.yaml.
type value struct {
	path, doc string
	node      *yaml.Node
}

func (v value) section() bool {
	return v.node.Kind == yaml.MappingNode && v.node.Style != yaml.FlowStyle
}

// values returns the keys of values.yaml, those below a section behind it.
func values(t *testing.T) (all []value) {
	t.Helper()
	var file yaml.Node
	if err := yaml.Unmarshal(read(t, "wopproxy/values.yaml"), &file); err != nil {
		t.Fatal(err)
	}
	var walk func(path string, n *yaml.Node)
	walk = func(path string, n *yaml.Node) {
		for i := 0; i < len(n.Content); i += 2 {
			key := n.Content[i]
			comment := key.HeadComment
			if at := strings.LastIndex(comment, "\n\n"); at >= 0 {
				comment = comment[at+2:] // what stands above is about the file
			}
			doc := regexp.MustCompile(`(?m)\s*^# ?`).ReplaceAllString(comment, " ")
			v := value{path + key.Value, strings.TrimSpace(doc), n.Content[i+1]}
			all = append(all, v)
			if v.section() && v.path != "injector.resources" {
				walk(v.path+".", v.node)
			}
		}
	}
	walk("", file.Content[0])
	return all
}

// TestReadme holds the table of values in the README to values.yaml.
func TestReadme(t *testing.T) {
	table := "| value | default | what it does |\n|---|---|---|\n"
	for _, v := range values(t) {
		if v.doc == "" {
			t.Errorf("values.yaml does not say what %s does", v.path)
		}
		shown := ""
		if !v.section() || v.path == "injector.resources" {
			var x any
			if err := v.node.Decode(&x); err != nil {
				t.Fatal(err)
			}
			text, err := json.Marshal(x)
			if err != nil {
				t.Fatal(err)
			}
			shown = "`" + string(text) + "`"
		}
		table += fmt.Sprintf("| `%s` | %s | %s |\n", v.path, shown, v.doc)
	}
	text := string(read(t, "wopproxy/README.md"))
	before, rest, found := strings.Cut(text, "<!-- values.yaml -->\n")
	_, after, ends := strings.Cut(rest, "<!-- end -->")
	if !found || !ends {
		t.Fatal("README.md has no place for the table")
	}
	made(t, "wopproxy/README.md", []byte(before+"<!-- values.yaml -->\n"+table+"<!-- end -->"+after))
}

// generatedKeys of wopproxy.yaml are said by the injector for each pod: saying them
// for all would have no effect.
var generatedKeys = []string{
	"host", "ingress.listen", "ingress.upstream", "egress.listen", "admin", "ancestry.store", "attribution.singleFlight", "drain",
}

// sidecarConfig is the schema of wopproxy.yaml without what is said for each pod.
func sidecarConfig(t *testing.T) map[string]any {
	t.Helper()
	var s map[string]any
	if err := json.Unmarshal(read(t, "../config/wopproxy.schema.json"), &s); err != nil {
		t.Fatal(err)
	}
	var strip func(path string, s map[string]any)
	strip = func(path string, s map[string]any) {
		for _, about := range []string{"description", "required", "default", "examples", "$schema", "$id", "title"} {
			delete(s, about)
		}
		properties, _ := s["properties"].(map[string]any)
		for name, below := range properties {
			if slices.Contains(generatedKeys, path+name) {
				delete(properties, name)
				continue
			}
			strip(path+name+".", below.(map[string]any))
		}
	}
	strip("", s)
	return s
}

// TestSchema holds values.schema.json to values.yaml and to the configuration that
// is a part of it, and wants it closed: no key that is not known, nowhere.
func TestSchema(t *testing.T) {
	const name = "wopproxy/values.schema.json"
	var schema map[string]any
	if err := json.Unmarshal(read(t, name), &schema); err != nil {
		t.Fatal(err)
	}
	property := func(path ...string) map[string]any {
		at := schema
		for _, p := range path {
			at, _ = at["properties"].(map[string]any)[p].(map[string]any)
		}
		return at
	}
	settings := map[string]any{}
	for _, s := range inject.Settings {
		settings[s.Key] = map[string]any{"type": []string{"string", "integer", "boolean"}}
	}
	sidecar := property("sidecar")["properties"].(map[string]any)
	sidecar["settings"] = map[string]any{"type": "object", "additionalProperties": false, "properties": settings}
	sidecar["config"] = sidecarConfig(t)
	var want bytes.Buffer
	enc := json.NewEncoder(&want)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(schema); err != nil {
		t.Fatal(err)
	}
	made(t, name, want.Bytes())

	var walk func(at string, s any)
	walk = func(at string, s any) {
		switch s := s.(type) {
		case []any:
			for i, below := range s {
				walk(fmt.Sprintf("%s[%d]", at, i), below)
			}
		case map[string]any:
			_, closed := s["additionalProperties"]
			if _, names := s["properties"]; (names || s["type"] == "object") && !closed {
				t.Errorf("values.schema.json admits any key below %s", at)
			}
			for key, below := range s {
				walk(at+"."+key, below)
			}
		}
	}
	walk("", schema)
	known := map[string]bool{}
	for _, v := range values(t) {
		known[v.path] = true
		if property(strings.Split(v.path, ".")...) == nil {
			t.Errorf("values.schema.json does not know %s", v.path)
		}
	}
	for section, s := range property()["properties"].(map[string]any) {
		below, _ := s.(map[string]any)["properties"].(map[string]any)
		for key := range below {
			if !known[section+"."+key] {
				t.Errorf("values.yaml has no %s.%s, which the schema allows", section, key)
			}
		}
	}
}

// TestBadValues has the schema refuse what is wrong, and take what is right.
func TestBadValues(t *testing.T) {
	var s jsonschema.Schema
	if err := json.Unmarshal(read(t, "wopproxy/values.schema.json"), &s); err != nil {
		t.Fatal(err)
	}
	schema, err := s.Resolve(nil)
	if err != nil {
		t.Fatal(err)
	}
	check := func(text []byte) error {
		var v any
		if err := yaml.Unmarshal(text, &v); err != nil {
			t.Fatal(err)
		}
		return schema.Validate(v)
	}
	good, err := filepath.Glob("wopproxy/ci/*.yaml")
	if err != nil || len(good) == 0 {
		t.Fatalf("no values to try: %v", err)
	}
	for _, name := range append(good, "wopproxy/values.yaml") {
		if err := check(read(t, name)); err != nil {
			t.Errorf("%s is refused: %v", name, err)
		}
	}
	var bad map[string]yaml.Node
	if err := yaml.Unmarshal(read(t, "testdata/bad.yaml"), &bad); err != nil {
		t.Fatal(err)
	}
	for name, node := range bad {
		text, err := yaml.Marshal(&node)
		if err != nil {
			t.Fatal(err)
		}
		if check(text) == nil {
			t.Errorf("%s: values are taken that should not be:\n%s", name, text)
		}
	}
}

// What is rendered for.
const (
	kubernetes = "1.36.0"
	namespace  = "wopproxy-system"
)

// render has helm make objects of the chart. It skips the test where there is no
// helm, and fails it where all tools have to be there.
func render(t *testing.T, args ...string) (stdout []byte, messages string, err error) {
	t.Helper()
	helm, err := exec.LookPath("helm")
	if err != nil && os.Getenv("WOPPROXY_E2E") == "all" {
		t.Fatal("helm is not installed")
	} else if err != nil {
		t.Skip("helm is not installed")
	}
	// A result is kept while what the test has opened is the same: helm's doing counts
	// for nothing there.
	templates, err := filepath.Glob("wopproxy/templates/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range append(templates, "wopproxy/templates/tests/injection.yaml", "wopproxy/Chart.yaml") {
		if info, err := os.Stat(name); err == nil && !info.IsDir() {
			read(t, name)
		}
	}
	args = append([]string{"template", "wopproxy", "wopproxy", "--namespace", namespace, "--kube-version", kubernetes}, args...)
	var stderr bytes.Buffer
	cmd := exec.CommandContext(t.Context(), helm, args...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	return out, stderr.String(), err
}

// rendered is what helm makes of values that are right.
func rendered(t *testing.T, args ...string) []byte {
	t.Helper()
	out, stderr, err := render(t, args...)
	if err != nil {
		t.Fatalf("helm template %s: %v\n%s", strings.Join(args, " "), err, stderr)
	}
	return out
}

// TestHelmReadsTheSchema has helm refuse what the schema refuses.
func TestHelmReadsTheSchema(t *testing.T) {
	_, stderr, err := render(t, "--set", "injector.replica=3")
	if err == nil || !strings.Contains(stderr, "'replica' not allowed") {
		t.Errorf("helm template --set injector.replica=3: %v\n%s\nwant it refused", err, stderr)
	}
}

// object is one of Kubernetes'.
type object map[string]any

func (o object) kind() string { s, _ := o["kind"].(string); return s }

func (o object) at(path ...string) any {
	var v any = map[string]any(o)
	for _, p := range path {
		m, _ := v.(map[string]any)
		v = m[p]
	}
	return v
}

func (o object) name() string { s, _ := o.at("metadata", "name").(string); return s }

func parse(t *testing.T, text []byte) (all []object) {
	t.Helper()
	for dec := yaml.NewDecoder(bytes.NewReader(text)); ; {
		var o map[string]any
		if err := dec.Decode(&o); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatalf("%v in\n%s", err, text)
		}
		if len(o) > 0 {
			all = append(all, o)
		}
	}
}

// one returns the only object of a kind.
func one(t *testing.T, all []object, kind string) object {
	t.Helper()
	var found []object
	for _, o := range all {
		if o.kind() == kind {
			found = append(found, o)
		}
	}
	if len(found) != 1 {
		t.Fatalf("%d objects of kind %s, want 1", len(found), kind)
	}
	return found[0]
}

// helms are the lines that only helm writes, and understands.
var helms = regexp.MustCompile(`(?m)^ *(app\.kubernetes\.io/managed-by: Helm|helm\.sh/chart: .*|# Source: .*)\n`)

// TestKubernetes holds deploy/kubernetes, for those without helm, to what the chart
// makes of its defaults.
func TestKubernetes(t *testing.T) {
	text := "# Made of the chart's defaults by go test ./charts -update: edit those.\n" +
		helms.ReplaceAllString(string(rendered(t, "--skip-tests")), "")
	made(t, "../deploy/kubernetes/injector.yaml", []byte(text))
}

// TestKustomization wants the folder to be what its list says, and as sound as what
// the chart renders.
func TestKustomization(t *testing.T) {
	var k struct{ Resources []string }
	if err := yaml.Unmarshal(read(t, "../deploy/kubernetes/kustomization.yaml"), &k); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("../deploy/kubernetes/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var all []object
	for _, file := range files {
		if name := filepath.Base(file); name != "kustomization.yaml" {
			all = append(all, parse(t, read(t, file))...)
			if !slices.Contains(k.Resources, name) {
				t.Errorf("kustomization.yaml leaves out %s", name)
			}
		}
	}
	if len(k.Resources) != len(files)-1 {
		t.Errorf("kustomization.yaml has %q, the folder %q", k.Resources, files)
	}
	if got := one(t, all, "Namespace").name(); got != namespace {
		t.Errorf("the namespace is %s, want %s", got, namespace)
	}
	sound(t, all)
}

// TestRendered looks at what the chart makes of several values.
func TestRendered(t *testing.T) {
	files, err := filepath.Glob("wopproxy/ci/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range append(files, "wopproxy/values.yaml") {
		t.Run(filepath.Base(file), func(t *testing.T) { sound(t, parse(t, rendered(t, "-f", file))) })
	}
}

// sound wants objects to fit together, and all pods to keep to the Pod Security
// Standard "restricted".
func sound(t *testing.T, all []object) {
	t.Helper()
	names := map[string]bool{}
	for _, o := range all {
		id := o.kind() + "/" + o.name()
		if names[id] {
			t.Errorf("two objects are %s", id)
		}
		names[id] = true
		global := slices.Contains([]string{"ClusterRole", "ClusterRoleBinding", "MutatingWebhookConfiguration", "Namespace"}, o.kind())
		hook := o.at("metadata", "annotations", "helm.sh/hook") == "test"
		if within := o.at("metadata", "namespace") == namespace; !global && within == hook {
			t.Errorf("%s is in the namespace of the release = %v", id, within)
		}
		switch o.kind() {
		case "Deployment":
			restricted(t, o.at("spec", "template", "spec"))
			fits(t, all, o)
		case "Pod":
			restricted(t, o.at("spec"))
			tests(t, o)
		case "PrometheusRule", "ConfigMap":
			unexpanded(t, o)
		}
	}
}

// restricted wants what the strictest of the Pod Security Standards does.
func restricted(t *testing.T, spec any) {
	t.Helper()
	pod := object(spec.(map[string]any))
	want := map[string]any{
		"runAsNonRoot": true, "runAsUser": 65532, "runAsGroup": 65532, "fsGroup": 65532,
		"seccompProfile": map[string]any{"type": "RuntimeDefault"},
	}
	if diff := cmp.Diff(want, pod.at("securityContext")); diff != "" {
		t.Errorf("securityContext of the pod (-want +got):\n%s", diff)
	}
	for _, c := range pod["containers"].([]any) {
		want := map[string]any{
			"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true,
			"capabilities": map[string]any{"drop": []any{"ALL"}},
		}
		if diff := cmp.Diff(want, object(c.(map[string]any)).at("securityContext")); diff != "" {
			t.Errorf("securityContext of a container (-want +got):\n%s", diff)
		}
	}
	for _, forbidden := range []string{"hostNetwork", "hostPID", "hostIPC"} {
		if pod[forbidden] != nil {
			t.Errorf("the pod has %s", forbidden)
		}
	}
}

// tests wants the pod of helm test to look where its sidecar answers.
func tests(t *testing.T, pod object) {
	t.Helper()
	text, err := yaml.Marshal(map[string]any(pod))
	if err != nil {
		t.Fatal(err)
	}
	// Whatever other pods have, this one needs nothing that its namespace has not.
	settings := map[string]string{"mode": "transparent", "store": "volume/data", "config-map": "missing", "bearer-secret": "missing", "evidence-secret": "missing"}
	out, _, err := inject.Inject(text, inject.Options{Image: "wopproxy:test", Settings: settings})
	if err != nil {
		t.Fatalf("the pod of helm test can't be injected: %v", err)
	}
	for _, name := range []string{"missing", "NET_ADMIN"} {
		if strings.Contains(string(out), name) {
			t.Errorf("the pod of helm test asks for %s:\n%s", name, out)
		}
	}
	spec := object(one(t, parse(t, out), "Pod").at("spec").(map[string]any))
	sidecar := object(spec["initContainers"].([]any)[0].(map[string]any))
	health := ""
	for _, p := range sidecar["ports"].([]any) {
		if p := p.(map[string]any); p["name"] == "wopproxy-health" {
			health = fmt.Sprintf("http://127.0.0.1:%v/readyz", p["containerPort"])
		}
	}
	want := []any{"health", "-url", health}
	if diff := cmp.Diff(want, object(spec["containers"].([]any)[0].(map[string]any))["args"]); diff != "" {
		t.Errorf("what helm test runs (-sidecar +pod):\n%s", diff)
	}
}

// fits compares the injector with the objects around it.
func fits(t *testing.T, all []object, deployment object) {
	t.Helper()
	labels := deployment.at("spec", "template", "metadata", "labels").(map[string]any)
	selects := func(what string, selector any) {
		t.Helper()
		m, _ := selector.(map[string]any)
		for key, v := range m {
			if labels[key] != v {
				t.Errorf("%s selects %s=%v, the pods have %v", what, key, v, labels[key])
			}
		}
		if len(m) == 0 {
			t.Errorf("%s selects everything", what)
		}
	}
	selects("the Deployment", deployment.at("spec", "selector", "matchLabels"))
	service := one(t, all, "Service")
	selects("the Service", service.at("spec", "selector"))
	container := object(deployment.at("spec", "template", "spec", "containers").([]any)[0].(map[string]any))
	ports := map[any]bool{}
	for _, p := range container["ports"].([]any) {
		ports[p.(map[string]any)["name"]] = true
	}
	serves := map[any]bool{}
	for _, p := range service.at("spec", "ports").([]any) {
		p := p.(map[string]any)
		serves[p["port"]] = true
		if !ports[p["targetPort"]] {
			t.Errorf("the Service leads to port %v, which the pods don't have", p["targetPort"])
		}
	}
	var args []string
	for _, a := range container["args"].([]any) {
		args = append(args, a.(string))
	}
	says := func(flag string) string {
		i := slices.IndexFunc(args, func(a string) bool { return strings.HasPrefix(a, "-"+flag+"=") })
		if i < 0 {
			return ""
		}
		return strings.TrimPrefix(args[i], "-"+flag+"=")
	}
	account := deployment.at("spec", "template", "spec", "serviceAccountName")
	if got := one(t, all, "ServiceAccount").name(); got != account {
		t.Errorf("the pods run as %v, the account is %s", account, got)
	}
	webhooks := one(t, all, "MutatingWebhookConfiguration")
	for _, w := range webhooks["webhooks"].([]any) {
		client := object(w.(map[string]any)).at("clientConfig", "service").(map[string]any)
		if client["name"] != service.name() || client["namespace"] != service.at("metadata", "namespace") || client["path"] != webhook.Path || !serves[client["port"]] {
			t.Errorf("the API server is told to ask %v, the Service is %s with ports %v", client, service.name(), serves)
		}
	}
	if says("tls-cert") != "" {
		certified(t, all, deployment)
	} else {
		if got := one(t, all, "Secret").name(); says("secret") != got {
			t.Errorf("the injector keeps its certificate in %q, the Secret is %s", says("secret"), got)
		}
		if says("configuration") != webhooks.name() || says("service") != service.name() {
			t.Errorf("the injector is told of %q and %q, want %s and %s", says("configuration"), says("service"), webhooks.name(), service.name())
		}
		want := map[string]string{"Role": says("secret"), "ClusterRole": webhooks.name()}
		for kind, name := range want {
			for _, r := range one(t, all, kind)["rules"].([]any) {
				if diff := cmp.Diff([]any{name}, r.(map[string]any)["resourceNames"]); diff != "" {
					t.Errorf("%s is not for %s alone (-want +got):\n%s", kind, name, diff)
				}
			}
			for _, s := range one(t, all, kind+"Binding")["subjects"].([]any) {
				if s.(map[string]any)["name"] != account {
					t.Errorf("%sBinding is for %v, want %v", kind, s, account)
				}
			}
		}
	}
	i := slices.IndexFunc(all, func(o object) bool { return o.kind() == "ConfigMap" && o.name() == service.name() })
	if i < 0 {
		t.Fatalf("no ConfigMap %s", service.name())
	}
	settings := map[string]string{}
	for _, a := range args {
		if set, ok := strings.CutPrefix(a, "-set="); ok {
			key, value, _ := strings.Cut(set, "=")
			settings[key] = value
		}
	}
	policy, _ := container["imagePullPolicy"].(string)
	if says("image") != container["image"] || settings["image-pull-policy"] != policy {
		t.Errorf("sidecars run %s, pulled %q; the injector %s, pulled %q", says("image"), settings["image-pull-policy"], container["image"], policy)
	}
	injects(t, says("image"), all[i].at("data", filepath.Base(says("config"))).(string), settings)
}

// certified follows the certificate that cert-manager keeps: from the pods and the
// webhook to the authority that signs it, which has to outlive it.
func certified(t *testing.T, all []object, deployment object) {
	t.Helper()
	find := func(kind string, is func(object) bool) object {
		t.Helper()
		i := slices.IndexFunc(all, func(o object) bool { return o.kind() == kind && is(o) })
		if i < 0 {
			t.Fatalf("there is no such %s", kind)
		}
		return all[i]
	}
	named := func(name any) func(object) bool {
		return func(o object) bool { return o.name() == name }
	}
	var mounted any
	for _, v := range deployment.at("spec", "template", "spec", "volumes").([]any) {
		if v := object(v.(map[string]any)); v["name"] == "tls" {
			mounted = v.at("secret", "secretName")
		}
	}
	shown := find("Certificate", func(o object) bool { return o.at("spec", "secretName") == mounted })
	service := one(t, all, "Service")
	if diff := cmp.Diff([]any{service.name() + "." + namespace + ".svc"}, shown.at("spec", "dnsNames")); diff != "" {
		t.Errorf("names in the certificate (-want +got):\n%s", diff)
	}
	if from := one(t, all, "MutatingWebhookConfiguration").at("metadata", "annotations", "cert-manager.io/inject-ca-from"); from != namespace+"/"+shown.name() {
		t.Errorf("API servers believe the authority of %v, want that of %s", from, shown.name())
	}
	issuer := shown.at("spec", "issuerRef", "name")
	if issuer == "internal" { // in ci/issuer.yaml
		if i := slices.IndexFunc(all, func(o object) bool { return o.kind() == "Issuer" }); i >= 0 {
			t.Errorf("the chart makes the Issuer %s, and another signs", all[i].name())
		}
		return
	}
	secret := find("Issuer", named(issuer)).at("spec", "ca", "secretName")
	authority := find("Certificate", func(o object) bool { return o.at("spec", "secretName") == secret })
	if authority.at("spec", "isCA") != true || authority.at("spec", "privateKey", "rotationPolicy") != "Never" || secret == mounted {
		t.Errorf("the authority in %v is %v, want one of its own that keeps its key", secret, authority["spec"])
	}
	if self, ok := find("Issuer", named(authority.at("spec", "issuerRef", "name"))).at("spec", "selfSigned").(map[string]any); !ok {
		t.Errorf("the authority is signed by %v, want itself", self)
	}
}

// injects has the program put a sidecar into a pod with what the injector is told:
// configuration and settings for all pods.
func injects(t *testing.T, image, config string, settings map[string]string) {
	t.Helper()
	pod := "apiVersion: v1\nkind: Pod\nmetadata: {name: agent}\nspec: {containers: [{name: host, image: host, ports: [{name: http, containerPort: 8080}]}]}\n"
	out, _, err := inject.Inject([]byte(pod), inject.Options{Image: image, Config: []byte(config), Settings: settings})
	if err != nil {
		t.Errorf("the injector can't use what it is told: %v", err)
		return
	}
	sidecars, _ := one(t, parse(t, out), "Pod").at("spec", "initContainers").([]any)
	if len(sidecars) != 1 || sidecars[0].(map[string]any)["image"] != image {
		t.Errorf("the pod's sidecars are %v, want one of %s", sidecars, image)
	}
}

// unexpanded wants the templates of Prometheus and Grafana to arrive as they are.
func unexpanded(t *testing.T, o object) {
	t.Helper()
	text, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	for kind, want := range map[string]string{"PrometheusRule": "{{ $labels.instance }}", "-dashboards": "{{outcome}}"} {
		if (o.kind() == kind || strings.HasSuffix(o.name(), kind)) && !bytes.Contains(text, []byte(want)) {
			t.Errorf("%s %s has lost %s", o.kind(), o.name(), want)
		}
	}
}
