// Package components holds the parts of Kubernetes that the program can be.
//
// It is the only package that imports them, so that a change in the launcher
// does not compile them anew.
package components

import (
	"context"
	"os"
	"path/filepath"
	_ "time/tzdata" // CronJobs name time zones

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"
	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/loadbalance"
	_ "github.com/coredns/coredns/plugin/ready"
	_ "github.com/coredns/coredns/plugin/template"
	"go.etcd.io/etcd/server/v3/etcdmain"
	_ "k8s.io/client-go/plugin/pkg/client/auth"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	kubectlutil "k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	kubeproxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

var all = map[string]func(args []string) int{
	"etcd":    func(args []string) int { etcdmain.Main(args); return 0 },
	"coredns": func([]string) int { coremain.Run(); return 0 },
	"kubectl": func([]string) int {
		// Its cache of what a server offers would otherwise go below ~/.kube,
		// which is the user's.
		if cache, err := os.UserCacheDir(); err == nil && os.Getenv("KUBECACHEDIR") == "" {
			os.Setenv("KUBECACHEDIR", filepath.Join(cache, "trainyard", "kubectl"))
		}
		if err := cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()); err != nil {
			kubectlutil.CheckErr(err)
		}
		return 0
	},
	"kube-apiserver": func([]string) int {
		return cli.Run(apiserver.NewAPIServerCommand())
	},
	"kube-controller-manager": func([]string) int {
		return cli.Run(controllermanager.NewControllerManagerCommand())
	},
	"kube-scheduler": func([]string) int {
		return cli.Run(scheduler.NewSchedulerCommand())
	},
	"kube-proxy": func([]string) int {
		return cli.Run(kubeproxy.NewProxyCommand())
	},
	"kubelet": func([]string) int {
		return cli.Run(kubelet.NewKubeletCommand(context.Background()))
	},
}

func init() {
	// The order in which the plugins of a server see a query. By default
	// template comes before kubernetes, and could not be what answers for all
	// names that kubernetes does not know.
	dnsserver.Directives = []string{"bind", "health", "ready", "errors", "loadbalance", "kubernetes", "template"}
}

// Known says whether name is one of the components.
func Known(name string) bool {
	_, ok := all[name]
	return ok
}

// Run is the component: args[0] is its name and the rest its flags.
func Run(args []string) int {
	// Every part reads its flags from os.Args.
	os.Args = args
	return all[args[0]](args)
}
