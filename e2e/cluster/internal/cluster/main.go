// Package cluster starts and stops a whole Kubernetes node in its own
// namespaces.
package cluster

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"trainyard.dev/node/internal/image"
)

const usage = `usage: trainyard-node cluster COMMAND

  up --name NAME --state DIR --kubeconfig PATH [--cache DIR] [--key KEY] [--audit]
      start a node, unless it is up and healthy; KEY is that of a seed
  down --name NAME [--state DIR]
      remove every trace of it
  seed --key KEY [--cache DIR] [--image] FILE...
      import docker-archives once, for nodes that start with that key
  load --state DIR FILE...
      import docker-archives into a running node
  exec --state DIR -- COMMAND...
      run a command inside the node
  status [--name NAME | --state DIR]
      exit status 0 if healthy
  leftovers [--name NAME] [--cache DIR]
      list what is there of any node or light mode; exit status 1 if anything
  pause-image --out FILE
      write the sandbox's image

The default of --cache is $TRAINYARD_CACHE, or trainyard in the user's cache.
`

// Main is the command "cluster".
func Main(args []string) int {
	if len(args) == 0 {
		fmt.Fprint(os.Stderr, usage)
		return 2
	}
	command, args := args[0], args[1:]
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()

	var o upOptions
	var images []string
	var out string
	f := flag.NewFlagSet("cluster "+command, flag.ContinueOnError)
	flags := map[string]func(){
		"name":       func() { f.StringVar(&o.name, "name", "", "the cluster's name") },
		"state":      func() { f.StringVar(&o.state, "state", "", "the cluster's own directory") },
		"cache":      func() { f.StringVar(&o.cache, "cache", defaultCache(), "directory for what is made once") },
		"key":        func() { f.StringVar(&o.key, "key", "", "key of the seeded images") },
		"kubeconfig": func() { f.StringVar(&o.kubeconfig, "kubeconfig", "", "file to write the kubeconfig to") },
		"audit":      func() { f.BoolVar(&o.audit, "audit", false, "write STATE/logs/audit.log") },
		"out":        func() { f.StringVar(&out, "out", "", "file to write") },
		"image": func() {
			f.Func("image", "a docker-archive (may be repeated)", func(s string) error {
				images = append(images, s)
				return nil
			})
		},
	}
	define := func(names ...string) bool {
		for _, n := range names {
			flags[n]()
		}
		return f.Parse(args) == nil
	}
	fail := func(err error) int {
		if err == nil {
			return 0
		}
		fmt.Fprintf(os.Stderr, "cluster %s: %s\n", command, strings.TrimRight(err.Error(), "\n"))
		return 1
	}

	switch command {
	case initCommand:
		stop() // its first process has its own ways with signals
		return nodeInit(args)
	case "up":
		if !define("name", "state", "cache", "key", "kubeconfig", "audit") {
			return 2
		}
		return fail(up(ctx, o))
	case "down":
		if !define("name", "state") {
			return 2
		}
		return fail(down(o.name, o.state))
	case "seed":
		if !define("cache", "key", "image") {
			return 2
		}
		cache, err := filepath.Abs(o.cache)
		if err != nil {
			return fail(err)
		}
		return fail(seed(ctx, cache, o.key, append(images, f.Args()...), sayer()))
	case "load":
		if !define("state", "image") {
			return 2
		}
		return fail(loadImages(ctx, o.state, append(images, f.Args()...)))
	case "exec":
		if !define("state") {
			return 2
		}
		if f.NArg() == 0 {
			return fail(errors.New("no command"))
		}
		stop()
		code, err := execInside(o.state, f.Args())
		if err != nil {
			return fail(err)
		}
		return code
	case "status":
		if !define("name", "state") {
			return 2
		}
		healthy, err := status(ctx, o.name, o.state)
		if err == nil && !healthy {
			return 1
		}
		return fail(err)
	case "leftovers":
		if !define("name", "cache") {
			return 2
		}
		found := traces(o.name, o.cache)
		for _, line := range found {
			fmt.Println(line)
		}
		if len(found) > 0 {
			return 1
		}
		return 0
	case "pause-image":
		if !define("out") {
			return 2
		}
		return fail(writePause(out))
	case "help", "--help", "-h":
		fmt.Print(usage)
		return 0
	}
	fmt.Fprintf(os.Stderr, "cluster: %q is no command\n%s", command, usage)
	return 2
}

func writePause(path string) error {
	program, err := pauseProgram()
	if err != nil {
		return err
	}
	if path == "" {
		return errors.New("--out FILE is needed")
	}
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(image.Pause(file, program), file.Close())
}
