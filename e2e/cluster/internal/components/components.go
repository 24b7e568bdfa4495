// Package components holds the components of Kubernetes in the program.
//
// Only this package imports them, so that changes of the launcher don't
// recompile them.
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
	helm "helm.sh/helm/v4/pkg/cmd"
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
		// Its discovery cache would otherwise go below the user's ~/.kube.
		if cache, err := os.UserCacheDir(); err == nil && os.Getenv("KUBECACHEDIR") == "" {
			os.Setenv("KUBECACHEDIR", filepath.Join(cache, "trainyard", "kubectl"))
		}
		if err := cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()); err != nil {
			kubectlutil.CheckErr(err)
		}
		return 0
	},
	"helm": func(args []string) int {
		command, err := helm.NewRootCmd(os.Stdout, args[1:], helm.SetupLogging)
		if err == nil {
			err = command.Execute()
		}
		// It has printed the error.
		if err != nil {
			return 1
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
	// The order in which a server's plugins see a query. By default template
	// comes before kubernetes, and could not answer only the names that
	// kubernetes does not know.
	dnsserver.Directives = []string{"bind", "health", "ready", "errors", "loadbalance", "kubernetes", "template"}
}

// Known reports whether name is one of the components.
func Known(name string) bool {
	_, ok := all[name]
	return ok
}

// Run runs a component: args[0] is its name and the rest its flags.
func Run(args []string) int {
	// Every component reads its flags from os.Args.
	os.Args = args
	return all[args[0]](args)
}
