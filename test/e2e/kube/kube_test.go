package kube

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// patience bounds every wait. It is never waited out by a test that passes.
const patience = 5 * time.Minute

// inNode is set by run.sh, in the node that it has started.
const inNode = "WOPPROXY_KUBE"

func TestMain(m *testing.M) {
	if len(os.Args) == 1 && os.Getenv("PORT") != "" {
		fmt.Fprintln(os.Stderr, serveTools(":"+os.Getenv("PORT")))
		os.Exit(1)
	}
	if os.Getenv(inNode) == "" {
		fmt.Println("skipped: test/e2e/kube/run.sh starts the cluster that these tests need")
		os.Exit(0)
	}
	if err := startTelemetry(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// command runs a program to its end and returns what it prints, and as the error
// what it complains of.
func command(ctx context.Context, stdin, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdin = strings.NewReader(stdin)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, &stderr)
	}
	return stdout.String(), nil
}

// namespace is a namespace of one test. What is in it is gone with the test; if
// that fails, what a person needs is in its log.
type namespace struct{ name string }

// newNamespace makes one, with labels such as "a=b".
func newNamespace(t *testing.T, name string, labels ...string) namespace {
	t.Helper()
	n := namespace{name}
	n.kubectl(t, "create", "namespace", name)
	t.Cleanup(func() {
		if t.Failed() {
			n.explain(t)
		}
		if _, err := command(context.WithoutCancel(t.Context()), "", "kubectl", "delete", "namespace", name, "--wait=false"); err != nil {
			t.Error(err)
		}
	})
	if len(labels) > 0 {
		n.kubectl(t, append([]string{"label", "namespace", name}, labels...)...)
	}
	n.awaitAccount(t)
	n.kubectl(t, "create", "secret", "generic", settings["bearer-secret"], "--from-literal=token="+token)
	return n
}

// awaitAccount waits for the account that every pod of a namespace needs.
func (n namespace) awaitAccount(t *testing.T) {
	t.Helper()
	eventually(t, "namespace "+n.name+" has an account", func() error {
		_, err := n.try(t, "", "get", "serviceaccount", "default")
		return err
	})
}

// try runs kubectl in the namespace.
func (n namespace) try(t *testing.T, stdin string, args ...string) (string, error) {
	t.Helper()
	return command(t.Context(), stdin, "kubectl", append([]string{"--namespace", n.name}, args...)...)
}

// kubectl is try that fails t at once if kubectl does.
func (n namespace) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := n.try(t, "", args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// apply has the server take a manifest, and refuse what it does not know.
func (n namespace) apply(t *testing.T, manifest string) {
	t.Helper()
	if _, err := n.try(t, manifest, "apply", "--validate=strict", "-f", "-"); err != nil {
		t.Fatal(err)
	}
}

// rolledOut waits until each workload ("deployment/a") is as its manifest has it.
func (n namespace) rolledOut(t *testing.T, workloads ...string) {
	t.Helper()
	for _, w := range workloads {
		n.kubectl(t, "rollout", "status", w, "--timeout="+patience.String())
	}
}

// explain logs what has become of a namespace.
func (n namespace) explain(t *testing.T) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	for _, args := range [][]string{
		{"get", "all", "-o", "wide"},
		{"get", "events", "--sort-by=.lastTimestamp"},
		{"describe", "pods"},
	} {
		out, err := command(ctx, "", "kubectl", append([]string{"--namespace", n.name}, args...)...)
		t.Logf("kubectl %s:\n%s%v", strings.Join(args, " "), out, orNothing(err))
	}
	pods, _ := command(ctx, "", "kubectl", "--namespace", n.name, "get", "pods", "-o", "name")
	for pod := range strings.FieldsSeq(pods) {
		out, err := command(ctx, "", "kubectl", "--namespace", n.name, "logs", pod, "--all-containers", "--prefix", "--tail=40")
		t.Logf("%s:\n%s%v", pod, out, orNothing(err))
	}
}

func orNothing(err error) any {
	if err == nil {
		return ""
	}
	return err
}

// eventually fails t at once unless check finds nothing wrong in the end.
func eventually(t *testing.T, what string, check func() error) {
	t.Helper()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	var err error
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); <-tick.C {
		if err = check(); err == nil {
			return
		}
	}
	t.Fatalf("not so within %v: %s: %v", patience, what, err)
}
