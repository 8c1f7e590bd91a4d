package kube

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// TestLifecycle starts, ends and replaces pods with a sidecar in every way that a
// cluster does.
func TestLifecycle(t *testing.T) {
	n := newNamespace(t, "lifecycle", restricted)
	n.apply(t, injected(t, apps))
	for _, h := range hosts {
		n.rolledOut(t, "deployment/"+h.name)
	}
	n.awaitChain(t)
	for _, tt := range []struct {
		name  string
		check func(*testing.T, namespace)
	}{
		{"a Job completes", checkJob},
		{"a sidecar that crashes is restarted alone", checkCrash},
		{"the host ends first", checkOrder},
		{"a rolling update under load", checkRollingUpdate},
	} {
		t.Run(tt.name, func(t *testing.T) { tt.check(t, n) })
	}
}

//go:embed testdata/job.yaml
var job string

func checkJob(t *testing.T, n namespace) {
	n.apply(t, injected(t, job))
	n.kubectl(t, "wait", "job/once", "--for=condition=Complete", "--timeout="+patience.String())
}

// status is what the kubelet tells of a container.
type status struct {
	Name         string `json:"name"`
	ContainerID  string `json:"containerID"`
	Ready        bool   `json:"ready"`
	RestartCount int    `json:"restartCount"`
	State        struct {
		Terminated *struct {
			ExitCode   int       `json:"exitCode"`
			FinishedAt time.Time `json:"finishedAt"`
		} `json:"terminated"`
	} `json:"state"`
}

// pod returns what the kubelet tells of the only pod that selects, or the pod of
// that name: of the sidecar and of the host.
func (n namespace) pod(t *testing.T, selects ...string) (sidecar, host status, err error) {
	t.Helper()
	out, err := n.try(t, "", append([]string{"get", "pods", "-o", "json"}, selects...)...)
	if err != nil {
		return sidecar, host, err
	}
	type pod struct {
		Status struct {
			Init  []status `json:"initContainerStatuses"`
			Hosts []status `json:"containerStatuses"`
		} `json:"status"`
	}
	var list struct {
		Items []pod `json:"items"`
	}
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		return sidecar, host, err
	}
	if len(list.Items) != 1 {
		return sidecar, host, fmt.Errorf("%d pods, want 1", len(list.Items))
	}
	for _, s := range list.Items[0].Status.Init {
		if s.Name == "wopproxy" {
			sidecar = s
		}
	}
	if len(list.Items[0].Status.Hosts) != 1 || sidecar.Name == "" {
		return sidecar, host, errors.New("no status of both containers")
	}
	return sidecar, list.Items[0].Status.Hosts[0], nil
}

func checkCrash(t *testing.T, n namespace) {
	which := "--selector=app=" + hosts[0].name
	sidecar, _, err := n.pod(t, which)
	if err != nil {
		t.Fatal(err)
	}
	id := strings.TrimPrefix(sidecar.ContainerID, "containerd://")
	if _, err := command(t.Context(), "", "ctr", "--address", "/run/node/containerd.sock", "--namespace", "k8s.io",
		"tasks", "kill", "--signal", "SIGKILL", id); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the sidecar runs again, and the host as before", func() error {
		sidecar, host, err := n.pod(t, which)
		if err == nil && (sidecar.RestartCount != 1 || !sidecar.Ready || host.RestartCount != 0 || !host.Ready) {
			err = fmt.Errorf("sidecar = %+v, host = %+v", sidecar, host)
		}
		return err
	})
	n.checkWalk(t, n.awaitChain(t))
}

//go:embed testdata/lastwords.yaml
var lastWords string

// checkOrder deletes a pod whose host, when it is told to end, still calls somebody
// for seconds.
func checkOrder(t *testing.T, n namespace) {
	n.apply(t, injected(t, lastWords))
	n.kubectl(t, "wait", "pod/last-words", "--for=condition=Ready", "--timeout="+patience.String())
	n.kubectl(t, "delete", "pod", "last-words", "--wait=false")
	eventually(t, "both have ended", func() error {
		sidecar, host, err := n.pod(t, "--field-selector=metadata.name=last-words")
		if err != nil {
			return err
		}
		s, h := sidecar.State.Terminated, host.State.Terminated
		if s == nil || h == nil {
			return fmt.Errorf("sidecar = %+v, host = %+v", sidecar, host)
		}
		if h.ExitCode != 0 || s.ExitCode != 0 || s.FinishedAt.Before(h.FinishedAt) {
			t.Errorf("host has ended with %+v, sidecar with %+v, want both with 0 and the host first", *h, *s)
		}
		return nil
	})
	n.kubectl(t, "patch", "pod", "last-words", "--type=merge", "--patch", `{"metadata":{"finalizers":null}}`)
}

// checkRollingUpdate replaces all pods of a host while it is called, by callers who
// keep their connections for as long as they are let.
func checkRollingUpdate(t *testing.T, n namespace) {
	last := hosts[len(hosts)-1].name
	n.kubectl(t, "scale", "deployment/"+last, "--replicas=3")
	n.rolledOut(t, "deployment/"+last)
	old := strings.Fields(n.kubectl(t, "get", "pods", "--selector=app="+last, "-o", "name"))

	const callers = 8
	stop := make(chan struct{})
	var calls, failures atomic.Int64
	var load sync.WaitGroup
	for range callers {
		client := &http.Client{Transport: &http.Transport{}, Timeout: patience}
		load.Go(func() {
			defer client.CloseIdleConnections()
			for {
				select {
				case <-stop:
					return
				default:
				}
				calls.Add(1)
				if err := callTool(client, "http://"+n.address(len(hosts)-1)+"/mcp"); err != nil {
					failures.Add(1)
					t.Errorf("call %d: %v", calls.Load(), err)
				}
			}
		})
	}
	n.kubectl(t, "rollout", "restart", "deployment/"+last)
	n.rolledOut(t, "deployment/"+last)
	n.kubectl(t, append([]string{"wait", "--for=delete", "--timeout=" + patience.String()}, old...)...)
	before := calls.Load()
	eventually(t, "the new pods are called", func() error {
		if calls.Load() < before+10*callers {
			return errors.New("too few calls")
		}
		return nil
	})
	close(stop)
	load.Wait()
	t.Logf("%d calls while 3 pods were replaced, %d failed", calls.Load(), failures.Load())
}

// callTool calls the tool and wants the id of a run.
func callTool(c *http.Client, url string) error {
	const call = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"run","arguments":{}}}`
	req, err := http.NewRequest(http.MethodPost, url, strings.NewReader(call))
	if err != nil {
		return err
	}
	req.Header = http.Header{
		"Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"}, "Mcp-Protocol-Version": {"2025-11-25"},
	}
	resp, err := c.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && (resp.StatusCode != http.StatusOK || !bytes.Contains(body, []byte(`"text":"run_`))) {
		err = fmt.Errorf("status %d: %s", resp.StatusCode, body)
	}
	return err
}
