package kube

import (
	_ "embed"
	"fmt"
	"strings"
	"testing"
)

// apps are the three hosts as their owners wrote them.
//
//go:embed testdata/apps.yaml
var apps string

// restricted is the label of a namespace that takes no pod with a right too many.
const restricted = "pod-security.kubernetes.io/enforce=restricted"

// image is that of the Dockerfile, and token what opens the ancestry of every run.
const image, token = "localhost/wopproxy:test", "t0ken"

// settings are those of all sidecars.
var settings = map[string]string{
	"image-pull-policy": "Never", "bearer-secret": "wopproxy", "otlp-endpoint": telemetry + ":4318",
}

// TestInject has the command inject the hosts of a restricted namespace.
func TestInject(t *testing.T) {
	n := newNamespace(t, "injected", restricted)
	n.apply(t, injected(t, apps))
	n.checkHosts(t)
}

// TestTransparent has the kernel lead the calls of hosts that are told of no proxy.
func TestTransparent(t *testing.T) {
	n := newNamespace(t, "transparent")
	n.apply(t, injected(t, apps, "mode=transparent"))
	n.checkHosts(t)
	if env := n.kubectl(t, "get", "pods", "-o", "jsonpath={.items[*].spec.containers[*].env[*].name}"); strings.Contains(strings.ToUpper(env), "HTTP_PROXY") {
		t.Errorf("variables of the hosts = %s, want no proxy", env)
	}
}

// TestPodSecurity pins which of the Pod Security Standards takes what: restricted the
// sidecar as it is by default, baseline no pod that is to redirect its own traffic.
func TestPodSecurity(t *testing.T) {
	for _, tt := range []struct{ level, mode, says string }{
		{"restricted", "explicit", ""},
		{"baseline", "transparent", `violates PodSecurity "baseline:latest": non-default capabilities (container "wopproxy-redirect" must not include "NET_ADMIN" in securityContext.capabilities.add)`},
		{"privileged", "transparent", ""},
	} {
		t.Run(tt.level, func(t *testing.T) {
			n := newNamespace(t, "level-"+tt.level, "pod-security.kubernetes.io/enforce="+tt.level)
			_, err := n.try(t, injected(t, lastWords, "mode="+tt.mode), "create", "--dry-run=server", "-f", "-")
			if says := fmt.Sprint(err); err == nil && tt.says != "" || err != nil && (tt.says == "" || !strings.Contains(says, tt.says)) {
				t.Errorf("the server says %q, want %q", says, tt.says)
			}
		})
	}
}

// injected is what the command makes of a manifest, with further settings.
func injected(t *testing.T, manifest string, more ...string) string {
	t.Helper()
	args := []string{"inject", "-f", "-", "-image", image}
	for _, setting := range more {
		args = append(args, "-set", setting)
	}
	for key, v := range settings {
		args = append(args, "-set", key+"="+v)
	}
	out, err := command(t.Context(), manifest, "wopproxy", args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// checkHosts asks the hosts many questions, and compares what has been told of them.
func (n namespace) checkHosts(t *testing.T) {
	t.Helper()
	for _, h := range hosts {
		n.rolledOut(t, "deployment/"+h.name)
	}
	chains := n.askTogether(t)
	n.checkWalks(t, chains)
	if t.Failed() {
		return // a trace with a gap would be waited for
	}
	n.checkTraces(t, chains)
	n.checkMetrics(t)
}
