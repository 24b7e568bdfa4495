package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"sort"
	"strings"
	"time"

	"trainyard.dev/node/internal/base"
)

const (
	// marker is in the environment of every process of a node and holds the
	// node's name. Nothing without it, or outside the node's own cgroup, is
	// ever ended.
	marker = "TRAINYARD_NODE_PROCESS"

	// registry lists the nodes of this machine, independent of their state
	// directories. Like the nodes, it is gone after a reboot.
	registry = "/run/trainyard"

	// configFile identifies our state directories; only those are removed.
	configFile = "node.json"

	dnsService  = "10.96.0.10"
	serviceCIDR = "10.96.0.0/16"
	podCIDR     = "10.244.0.0/16"
)

// config is the configuration of a node, for the commands and its first
// process.
type config struct {
	Name       string `json:"name"`
	State      string `json:"state"`
	Cache      string `json:"cache"`
	Key        string `json:"key"`
	Kubeconfig string `json:"kubeconfig"`
	Program    string `json:"program"`
	// Containerd is the directory on the host that holds its content.
	Containerd string `json:"containerd"`
	Device     string `json:"device"`
	HostIP     string `json:"hostIP"`
	NodeIP     string `json:"nodeIP"`
	Audit      bool   `json:"audit"`
	// SeedOnly starts only containerd, to import images.
	SeedOnly bool `json:"seedOnly"`
	Ready    bool `json:"ready"`
}

var validName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,40}[a-z0-9])?$`)

func (c *config) server() string { return "https://" + c.NodeIP + ":6443" }

func (c *config) cgroup() string { return "trainyard-" + c.Name }

func (c *config) log(component string) string {
	return filepath.Join(c.State, "logs", component+".log")
}

// save writes the state directory's own copy and the registry's.
func (c *config) save() error {
	data, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return err
	}
	if err := base.WriteFile(filepath.Join(c.State, configFile), data, 0o600); err != nil {
		return err
	}
	if err := os.MkdirAll(registry, 0o700); err != nil {
		return err
	}
	return base.WriteFile(registryPath(c.Name), data, 0o600)
}

func registryPath(name string) string { return filepath.Join(registry, name+".json") }

func load(path string) (*config, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	c := new(config)
	if err := json.Unmarshal(data, c); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return c, nil
}

// registered lists the nodes of this machine, including leftovers.
func registered() []*config {
	paths, _ := filepath.Glob(registry + "/*.json")
	sort.Strings(paths)
	var all []*config
	for _, p := range paths {
		c, err := load(p)
		if err != nil {
			// Half-written by a command that was killed.
			c = &config{Name: strings.TrimSuffix(filepath.Base(p), ".json")}
		}
		all = append(all, c)
	}
	return all
}

// lockName lets one command at a time change a node. The lock is an abstract
// socket: it leaves no file behind and ends with its holder.
func lockName(name string, say func(string, ...any)) (func(), error) {
	for i := 0; ; i++ {
		l, err := net.Listen("unix", "@trainyard-node-"+name)
		if err == nil {
			return func() { l.Close() }, nil
		}
		if i == 0 {
			say("waiting for another command that is working on %s", name)
		}
		if i == 6000 {
			return nil, fmt.Errorf("another command has been working on %s for ten minutes", name)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

func defaultCache() string {
	if dir := os.Getenv("TRAINYARD_CACHE"); dir != "" {
		return dir
	}
	if dir := os.Getenv("XDG_CACHE_HOME"); dir != "" {
		return filepath.Join(dir, "trainyard")
	}
	return filepath.Join(os.Getenv("HOME"), ".cache/trainyard")
}

// find returns the node of a state directory.
func find(state string) (*config, error) {
	if state == "" {
		return nil, errors.New("--state DIR is needed")
	}
	abs, err := filepath.Abs(state)
	if err != nil {
		return nil, err
	}
	c, err := load(filepath.Join(abs, configFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%s holds no cluster", abs)
	}
	return c, err
}
