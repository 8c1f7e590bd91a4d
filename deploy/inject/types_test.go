package inject_test

import (
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"

	"github.com/wopproxy/wopproxy/config"
	"github.com/wopproxy/wopproxy/deploy/inject"
)

// strict decodes a manifest of one object or List into the types of Kubernetes, in
// which no field is unknown and none is there twice.
func strict(t *testing.T, text string) (objects []runtime.Object) {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, appsv1.AddToScheme, batchv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	codecs := serializer.NewCodecFactory(scheme, serializer.EnableStrict)
	o, _, err := codecs.UniversalDeserializer().Decode([]byte(text), nil, nil)
	if err != nil {
		t.Errorf("Kubernetes would not take it: %v", err)
		return nil
	}
	if list, ok := o.(*corev1.List); ok {
		for _, item := range list.Items {
			objects = append(objects, strict(t, string(item.Raw))...)
		}
		return objects
	}
	return []runtime.Object{o}
}

// specOf is that of the pods of an object, nil if it has none.
func specOf(o runtime.Object) *corev1.PodSpec {
	switch o := o.(type) {
	case *corev1.Pod:
		return &o.Spec
	case *appsv1.Deployment:
		return &o.Spec.Template.Spec
	case *appsv1.StatefulSet:
		return &o.Spec.Template.Spec
	case *appsv1.DaemonSet:
		return &o.Spec.Template.Spec
	case *batchv1.CronJob:
		return &o.Spec.JobTemplate.Spec.Template.Spec
	}
	return nil
}

// documents returns those of a manifest that say something.
func documents(text string) []string {
	all := strings.Split(text, "\n---\n")
	return slices.DeleteFunc(all, func(d string) bool {
		return !strings.Contains("\n"+d, "\napiVersion:") && !strings.HasPrefix(d, "{")
	})
}

// TestTypes decodes what is injected as an API server does, and holds the sidecar's
// configuration to the pod around it.
func TestTypes(t *testing.T) {
	injected := 0
	for _, a := range archives(t, "testdata/golden/*.txtar") {
		t.Run(filepath.Base(a.path), func(t *testing.T) {
			for _, text := range documents(a.files["out"]) {
				for _, o := range strict(t, text) {
					pod := specOf(o)
					if pod == nil || len(pod.InitContainers) == 0 {
						continue
					}
					injected++
					fits(t, pod)
				}
			}
		})
	}
	if injected < 5 {
		t.Errorf("%d pods are injected, want all of the golden files", injected)
	}
}

// fits compares the parts of a pod that have to agree.
func fits(t *testing.T, pod *corev1.PodSpec) {
	t.Helper()
	// What leads to it comes before the sidecar, and all else after.
	redirected := pod.InitContainers[0].Name == "wopproxy-redirect"
	i := 0
	if redirected {
		i = 1
	}
	side := pod.InitContainers[i]
	if side.Name != "wopproxy" || side.RestartPolicy == nil || *side.RestartPolicy != corev1.ContainerRestartPolicyAlways {
		t.Fatalf("the init container %s is no sidecar", side.Name)
	}
	c := configOf(t, side)
	ports := map[string]int32{}
	for _, p := range side.Ports {
		ports[p.Name] = p.ContainerPort
	}
	if got := portOf(t, string(c.Admin.Health)); got != ports["wopproxy-health"] || c.Admin.Health.Loopback() {
		t.Errorf("admin.health is at %d, its port at %d", got, ports["wopproxy-health"])
	}
	for name, probe := range map[string]*corev1.Probe{"startupz": side.StartupProbe, "livez": side.LivenessProbe, "readyz": side.ReadinessProbe} {
		if probe == nil || probe.HTTPGet == nil || probe.HTTPGet.Path != "/"+name || probe.HTTPGet.Port.StrVal != "wopproxy-health" {
			t.Errorf("the probe for %s is %v", name, probe)
		}
	}
	if !c.Admin.Listen.Loopback() || !c.Egress.Listen.Loopback() {
		t.Errorf("admin at %s, egress at %s: want both on loopback", c.Admin.Listen, c.Egress.Listen)
	}
	delete(ports, "wopproxy-health")
	if len(ports) > 1 || (len(ports) == 0) != c.Ingress.Listen.Loopback() {
		t.Errorf("ports %v, ingress at %s: want one that others reach, or loopback", ports, c.Ingress.Listen)
	}
	for name, number := range ports {
		if number != portOf(t, string(c.Ingress.Listen)) {
			t.Errorf("the port %s is %d, ingress at %s", name, number, c.Ingress.Listen)
		}
		listens := false
		for _, host := range pod.Containers {
			for _, p := range host.Ports {
				listens = listens || strconv.Itoa(int(p.ContainerPort)) == c.Ingress.Upstream.Port()
				if p.Name == name || p.ContainerPort == number {
					t.Errorf("container %s has the port %v, too", host.Name, p)
				}
			}
		}
		if !listens {
			t.Errorf("no container listens at %v", c.Ingress.Upstream)
		}
	}
	volumes := map[string]bool{"links": true} // the claim template in a golden file
	for _, v := range pod.Volumes {
		volumes[v.Name] = true
	}
	for _, host := range append(slices.Clone(pod.Containers), side) {
		for _, m := range host.VolumeMounts {
			if !volumes[m.Name] {
				t.Errorf("container %s mounts %s, which is no volume", host.Name, m.Name)
			}
		}
		for _, e := range host.Env {
			if u, err := url.Parse(e.Value); e.Name == "WOPPROXY_EGRESS" && (err != nil || u.Host != string(c.Egress.Listen)) {
				t.Errorf("container %s has its proxy at %s, which is at %s", host.Name, e.Value, c.Egress.Listen)
			}
		}
	}
	restricted(t, side.SecurityContext)
	grace := int64(30)
	if pod.TerminationGracePeriodSeconds != nil {
		grace = *pod.TerminationGracePeriodSeconds
	}
	parts(t, pod, side, c)
	if drain := c.Drain.Timeout.Seconds() + c.Drain.Delay.Seconds(); drain > max(1, float64(grace)) {
		t.Errorf("the drain takes up to %vs, of %ds in all", drain, grace)
	}
}

// parts wants callers to leave the sidecar while the host goes on serving, if it does.
func parts(t *testing.T, pod *corev1.PodSpec, side corev1.Container, c *config.Config) {
	t.Helper()
	if called := !c.Ingress.Listen.Loopback() || c.Ingress.Transparent != ""; (side.Lifecycle != nil) != (c.Drain.Delay.Duration > 0) || side.Lifecycle != nil && !called {
		t.Errorf("the sidecar is called = %v, its hooks are %v, drain.delay = %v", called, side.Lifecycle, c.Drain.Delay)
	}
	if side.Lifecycle == nil {
		return
	}
	want := []string{"/usr/bin/wopproxy", "drain", "-url", "http://" + string(c.Admin.Listen) + "/drain"}
	if diff := cmp.Diff(want, side.Lifecycle.PreStop.Exec.Command); diff != "" {
		t.Errorf("what the sidecar does before it is stopped (-want +got):\n%s", diff)
	}
	for _, host := range pod.Containers {
		if host.Lifecycle == nil || host.Lifecycle.PreStop == nil || host.Lifecycle.PreStop.Sleep == nil {
			continue
		}
		if serves := time.Duration(host.Lifecycle.PreStop.Sleep.Seconds) * time.Second; c.Drain.Delay.Duration >= serves {
			t.Errorf("callers leave for %v, the host serves on for %v", c.Drain.Delay, serves)
		}
	}
}

// restricted is what the Pod Security Standard of that name asks of a container.
func restricted(t *testing.T, s *corev1.SecurityContext) {
	t.Helper()
	if s == nil || s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation || s.RunAsNonRoot == nil || !*s.RunAsNonRoot ||
		s.Capabilities == nil || !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) || len(s.Capabilities.Add) > 0 ||
		s.SeccompProfile == nil || s.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault || s.Privileged != nil && *s.Privileged {
		t.Errorf("the sidecar's securityContext is not restricted: %v", s)
	}
}

// configOf is the sidecar's configuration, with what the kubelet puts into it.
func configOf(t *testing.T, side corev1.Container) *config.Config {
	t.Helper()
	i := slices.IndexFunc(side.Env, func(e corev1.EnvVar) bool { return e.Name == "WOPPROXY_CONFIG" })
	if i < 0 || !slices.Contains(side.Args, "WOPPROXY_CONFIG") {
		t.Fatalf("the sidecar has no configuration: %v", side.Args)
	}
	text := strings.NewReplacer("$$", "$", "$(POD_NAMESPACE)", "prod").Replace(side.Env[i].Value)
	c, err := config.Parse(strings.NewReader(text))
	if err != nil {
		t.Fatalf("the configuration does not load:\n%v", err)
	}
	if c.Host.ID == "" || strings.Contains(c.Host.ID+c.Host.WellKnownURL.String(), "$") {
		t.Errorf("host %q at %v: something was not put in", c.Host.ID, c.Host.WellKnownURL)
	}
	return c
}

func portOf(t *testing.T, address string) int32 {
	t.Helper()
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	return int32(n)
}

// TestConfigText: what the kubelet would expand comes out as it went in.
func TestConfigText(t *testing.T) {
	o := inject.Options{Image: "w:1", Config: []byte("runs: {start: ['POST /$(HOME)/$$/$']}\nlog: {level: warn}\ndrain: {timeout: 1s}\n")}
	out, _, err := inject.Inject([]byte("apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: a, ports: [{name: http, containerPort: 80}]}]}\n"), o)
	if err != nil {
		t.Fatal(err)
	}
	c := configOf(t, specOf(strict(t, string(out))[0]).InitContainers[0])
	if got := fmt.Sprint(c.Runs.Start); !strings.Contains(got, "/$(HOME)/$$/$") {
		t.Errorf("runs.start = %s", got)
	}
	if c.Drain.Timeout.Seconds() != 20 || c.Log.Level.String() != "WARN" {
		t.Errorf("drain.timeout = %v, log.level = %v: want what is generated to outrank, and the rest to stay", c.Drain.Timeout, c.Log.Level)
	}
}

// TestEvidenceSecret: the keys of evidence are in the sidecar alone, where its user can
// read them, and nowhere unless they are asked for.
func TestEvidenceSecret(t *testing.T) {
	const manifest = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {initContainers: [{name: first}], containers: [{name: a, ports: [{name: http, containerPort: 80}]}, {name: b}]}\n"
	for _, mode := range []string{"explicit", "transparent"} {
		for _, secret := range []string{"", "keys"} {
			o := inject.Options{Image: "w:1", Settings: map[string]string{"mode": mode, "carry": "auto", "intercept": "a.example.com", "evidence-secret": secret}}
			out, _, err := inject.Inject([]byte(manifest), o)
			if err != nil {
				t.Fatal(err)
			}
			pod := specOf(strict(t, string(out))[0])
			volume := ""
			for _, v := range pod.Volumes {
				if v.Secret == nil {
					continue
				}
				if v.Secret.SecretName != "keys" || volume != "" || v.Secret.DefaultMode != nil && *v.Secret.DefaultMode&0o004 == 0 {
					t.Errorf("%s: the pod has the Secret %+v, want keys alone, for all to read", mode, v)
				}
				volume = v.Name
			}
			if (volume != "") != (secret != "") {
				t.Errorf("%s: with the Secret %q, its volume is %q", mode, secret, volume)
			}
			mounted := map[string]corev1.VolumeMount{}
			for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
				for _, m := range c.VolumeMounts {
					if m.Name == volume || strings.Contains(m.MountPath, "evidence") {
						mounted[c.Name] = m
					}
				}
			}
			want := map[string]corev1.VolumeMount{}
			if secret != "" {
				want["wopproxy"] = corev1.VolumeMount{Name: volume, MountPath: "/run/wopproxy-evidence", ReadOnly: true}
			}
			if diff := cmp.Diff(want, mounted); diff != "" {
				t.Errorf("%s, Secret %q: containers that have it (-want +got)\n%s", mode, secret, diff)
			}
		}
	}
}

// TestEvidenceOfSome: evidence in the configuration for all, as the documentation has it,
// is no mistake as such, for pods may bring the keys, or a ConfigMap that says something
// else.
func TestEvidenceOfSome(t *testing.T) {
	const manifest = "apiVersion: v1\nkind: Pod\nmetadata: {name: a, annotations: {%s}}\nspec: {containers: [{name: a, ports: [{name: http, containerPort: 80}]}]}\n"
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, example, ok := strings.Cut(string(readme), "\n    evidence:\n")
	example, _, ends := strings.Cut(example, "\n\n")
	if !ok || !ends {
		t.Fatal("README.md has no example of evidence")
	}
	o := inject.Options{Image: "w:1", Config: []byte("    evidence:\n" + example + "\n")}
	if err := o.Check(); err != nil {
		t.Errorf("Check() = %v", err)
	}
	for annotation, ok := range map[string]bool{"": false, "wopproxy.dev/evidence-secret: keys": true, "wopproxy.dev/config-map: own": true, "wopproxy.dev/store: memory": false} {
		if _, _, err := inject.Inject(fmt.Appendf(nil, manifest, annotation), o); (err == nil) != ok {
			t.Errorf("annotated with %q: error %v, want one: %t", annotation, err, !ok)
		}
	}
}
