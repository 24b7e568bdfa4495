// The program contains every component of a local Kubernetes, and starts and
// stops clusters. The first argument selects the component or command; under
// the name kubectl, it is kubectl.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"trainyard.dev/node/internal/cluster"
	"trainyard.dev/node/internal/components"
	"trainyard.dev/node/internal/light"
)

const usage = `usage: trainyard-node COMMAND

  light --dir DIR [flags]      etcd and kube-apiserver, without root
  cluster COMMAND [flags]      a whole node; see "cluster help"
  etcd | kube-apiserver | kube-controller-manager | kube-scheduler |
  kubelet | kube-proxy | coredns | kubectl | helm
                               that component, with its own flags
`

func main() {
	args := append([]string(nil), os.Args...)
	if filepath.Base(args[0]) == "kubectl" {
		os.Exit(components.Run(append([]string{"kubectl"}, args[1:]...)))
	}
	if len(args) < 2 {
		fmt.Fprint(os.Stderr, usage)
		os.Exit(2)
	}
	switch name := args[1]; {
	case name == "light":
		os.Exit(light.Main(args[2:]))
	case name == "cluster":
		os.Exit(cluster.Main(args[2:]))
	case components.Known(name):
		os.Exit(components.Run(args[1:]))
	case name == "help" || name == "--help" || name == "-h":
		fmt.Print(usage)
	default:
		fmt.Fprintf(os.Stderr, "trainyard-node: %q is no command\n%s", name, usage)
		os.Exit(2)
	}
}
