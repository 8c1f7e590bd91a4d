// Hyper is a Kubernetes of one node in one program: it is whichever of its parts
// it is called by the name of. One program is linked once, is one file to cache,
// and what its parts have in common is in memory once.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/coredns/coredns/coremain"
	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	manager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"

	// How the programs of Kubernetes log, and what they tell of their clients.
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"

	// What the cluster's name server needs. Its own program brings every plugin
	// there is, and three clouds with them.
	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/kubernetes"
)

// parts are the programs, each by the name that it is called by. A part ends the
// program itself or returns its exit status.
var parts = map[string]func() int{
	"etcd":                    func() int { etcdmain.Main(os.Args); return 0 },
	"coredns":                 func() int { coremain.Run(); return 0 },
	"kubectl":                 command(func() *cobra.Command { return kubectl.NewDefaultKubectlCommand() }),
	"kubelet":                 command(func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) }),
	"kube-apiserver":          command(apiserver.NewAPIServerCommand),
	"kube-controller-manager": command(manager.NewControllerManagerCommand),
	"kube-proxy":              command(proxy.NewProxyCommand),
	"kube-scheduler":          command(func() *cobra.Command { return scheduler.NewSchedulerCommand() }),
}

func command(c func() *cobra.Command) func() int {
	return func() int { return cli.Run(c()) }
}

func main() {
	part, ok := parts[filepath.Base(os.Args[0])]
	if !ok {
		var names []string
		for name := range parts {
			names = append(names, name)
		}
		slices.Sort(names)
		fmt.Fprintf(os.Stderr, "hyper: call me by one of these names, with a link: %s\n", strings.Join(names, " "))
		os.Exit(2)
	}
	os.Exit(part())
}
