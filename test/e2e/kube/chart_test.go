package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestChart has the injector of the chart inject the hosts, which ask for it with a
// label. It is the first scenario, and with SUITE=quick the only one.
func TestChart(t *testing.T) {
	system := installInjector(t, "injector")
	eventually(t, "helm test passes", func() error { // the account of a new namespace may be late
		_, err := command(t.Context(), "", "helm", "test", "wopproxy", "--namespace", system.name, "--timeout", patience.String())
		return err
	})
	n := newNamespace(t, "charted", restricted)
	n.apply(t, apps)
	n.checkHosts(t)
}

// TestInjectorDown takes the injector away: pods that ask for a sidecar start without.
func TestInjectorDown(t *testing.T) {
	system := installInjector(t, "injector-down")
	n := newNamespace(t, "abandoned", restricted)
	system.kubectl(t, "scale", "deployment", "--selector=app.kubernetes.io/component=injector", "--replicas=0")
	system.kubectl(t, "wait", "pods", "--all", "--for=delete", "--timeout="+patience.String())
	n.apply(t, apps)
	for _, h := range hosts {
		n.rolledOut(t, "deployment/"+h.name)
	}
	if names := n.kubectl(t, "get", "pods", "-o", "jsonpath={.items[*].spec.initContainers[*].name}"); names != "" {
		t.Errorf("init containers = %q, want none: the injector is gone", names)
	}
	eventually(t, "a host answers", func() error {
		_, err := get("http://" + n.address(0) + "/.well-known/agent-card.json")
		return err
	})
}

// TestKustomize has the injector of those who use no Helm asked by the API server, with
// the image patched as its manual has it.
func TestKustomize(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	ours, err := filepath.Rel(dir, filepath.Join(os.Getenv("CHART"), "../../deploy/kubernetes"))
	if err != nil {
		t.Fatal(err)
	}
	name, tag, _ := strings.Cut(image, ":")
	text := fmt.Sprintf(`
resources: [%s]
images: [{ name: ghcr.io/wopproxy/wopproxy, newName: %s, newTag: %s }]
patches:
  - target: { kind: Deployment, name: wopproxy-injector }
    patch: |
      - { op: replace, path: /spec/template/spec/containers/0/args/1, value: -image=%s }
`, ours, name, tag, image)
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	system := namespace{"wopproxy-system"}
	t.Cleanup(func() {
		if t.Failed() {
			system.explain(t)
		}
		if _, err := command(context.WithoutCancel(t.Context()), "", "kubectl", "delete", "-k", dir, "--ignore-not-found", "--timeout", patience.String()); err != nil {
			t.Error(err)
		}
	})
	system.kubectl(t, "apply", "--validate=strict", "-k", dir)
	system.rolledOut(t, "deployment/wopproxy-injector")
	awaitInjector(t)
}

// asking is a pod that asks for a sidecar.
const asking = `
apiVersion: v1
kind: Pod
metadata: { name: asking, labels: { wopproxy.dev/inject: "true" } }
spec:
  containers: [{ name: host, image: localhost/go-tools:test, ports: [{ name: http, containerPort: 8080 }] }]
`

// installInjector installs the chart in a new namespace, and returns that
// when the API server asks the injector.
func installInjector(t *testing.T, name string) namespace {
	t.Helper()
	system := newNamespace(t, name, restricted)
	values := filepath.Join(t.TempDir(), "values.yaml")
	text, err := json.Marshal(map[string]any{ // JSON is YAML
		"image":   map[string]any{"repository": strings.Split(image, ":")[0], "tag": strings.Split(image, ":")[1], "pullPolicy": "Never"},
		"sidecar": map[string]any{"settings": settings},
	})
	if err == nil {
		err = os.WriteFile(values, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := command(context.WithoutCancel(t.Context()), "", "helm", "uninstall", "wopproxy", "--namespace", system.name, "--wait"); err != nil {
			t.Error(err)
		}
	})
	if _, err := command(t.Context(), "", "helm", "install", "wopproxy", os.Getenv("CHART"),
		"--namespace", system.name, "--values", values, "--wait", "--timeout", patience.String()); err != nil {
		t.Fatal(err)
	}
	awaitInjector(t)
	return system
}

// awaitInjector waits until the API server asks the injector, and believes it.
func awaitInjector(t *testing.T) {
	t.Helper()
	eventually(t, "a pod that asks for a sidecar has one", func() error {
		images, err := namespace{"default"}.try(t, asking, "create", "--dry-run=server", "-f", "-", "-o", "jsonpath={.spec.initContainers[*].image}")
		if err == nil && images != image {
			err = fmt.Errorf("images of init containers = %q, want %s", images, image)
		}
		return err
	})
}
