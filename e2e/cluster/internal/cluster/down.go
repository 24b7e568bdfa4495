package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// down removes every trace of a node, also of a partly removed one.
func down(name, state string) error {
	say := sayer()
	if !validName.MatchString(name) {
		return fmt.Errorf("--name %q: a name is lower-case letters, digits and hyphens", name)
	}
	unlock, err := lockName(name, say)
	if err != nil {
		return err
	}
	defer unlock()
	c := &config{Name: name}
	if known, err := load(registryPath(name)); err == nil {
		c = known
	}
	if state != "" {
		if state, err = filepath.Abs(state); err != nil {
			return err
		}
		if c.State != "" && c.State != state && exists(filepath.Join(c.State, configFile)) {
			return fmt.Errorf("the state directory of the cluster %s is %s", name, c.State)
		}
		c.State = state
		own, err := load(filepath.Join(state, configFile))
		if err == nil && own.Name != name {
			return fmt.Errorf("%s is the state directory of the cluster %s", state, own.Name)
		}
		if err == nil {
			c = own
			c.State = state
		}
	}
	nothing := len(traces(name, "")) == 0
	if err := remove(c); err != nil {
		return err
	}
	if nothing {
		say("there was no cluster %s", name)
	} else {
		say("cluster %s is removed", name)
	}
	return nil
}

// remove kills processes first, so that nothing else is busy.
func remove(c *config) error {
	if err := killNode(c.Name); err != nil {
		return err
	}
	for _, device := range devices(c.Name) {
		// The kernel also removes it with the node's network namespace, a
		// moment after the last process.
		if err := runTool("ip", "link", "del", device); err != nil {
			if _, still := net.InterfaceByName(device); still == nil {
				return err
			}
		}
	}
	if err := removeCgroups(c.Name); err != nil {
		return err
	}
	if stored, err := load(registryPath(c.Name)); err == nil {
		removeKubeconfig(stored)
	}
	removeKubeconfig(c)
	if c.State != "" {
		if err := removeState(c); err != nil {
			return err
		}
	}
	if err := os.Remove(registryPath(c.Name)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	_ = os.Remove(registry) // if it was the last
	return nil
}

// removeState removes the state directory if it is one: a mistyped --state
// must not delete a home directory.
func removeState(c *config) error {
	entries, err := os.ReadDir(c.State)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	own, err := load(filepath.Join(c.State, configFile))
	if len(entries) > 0 && (err != nil || own.Name != c.Name) {
		return fmt.Errorf("%s is not the state directory of the cluster %s; nothing in it is removed", c.State, c.Name)
	}
	if mounts := mountsBelow(c.State); len(mounts) > 0 {
		return fmt.Errorf("something is mounted on %s; nothing in it is removed", mounts[0])
	}
	// Removes the identifying file last, so that an interrupted removal can be
	// repeated.
	for _, e := range entries {
		if e.Name() != configFile {
			if err := os.RemoveAll(filepath.Join(c.State, e.Name())); err != nil {
				return err
			}
		}
	}
	return os.RemoveAll(c.State)
}

// removeKubeconfig removes the file if it is still this node's, and the
// kubectl next to it if no other node has its kubeconfig there.
func removeKubeconfig(c *config) {
	if c.Kubeconfig == "" {
		return
	}
	if data, err := os.ReadFile(c.Kubeconfig); err == nil && strings.Contains(string(data), c.server()) {
		os.Remove(c.Kubeconfig)
	}
	dir := filepath.Dir(c.Kubeconfig)
	if slices.ContainsFunc(registered(), func(o *config) bool {
		return o.Name != c.Name && o.Kubeconfig != "" && filepath.Dir(o.Kubeconfig) == dir
	}) {
		return
	}
	if kubectl := filepath.Join(dir, "kubectl"); ourKubectl(kubectl) {
		os.Remove(kubectl)
	}
}

// devices lists the node's network devices on the host, or all nodes'.
func devices(node string) []string {
	paths, _ := filepath.Glob("/sys/class/net/ty-*")
	var found []string
	for _, p := range paths {
		alias, _ := os.ReadFile(filepath.Join(p, "ifalias"))
		if node == "" || strings.TrimSpace(string(alias)) == "trainyard:"+node {
			found = append(found, filepath.Base(p))
		}
	}
	return found
}

// mountsBelow lists the mounts on or below the directory in this mount
// namespace.
func mountsBelow(dir string) []string {
	data, _ := os.ReadFile("/proc/self/mountinfo")
	var found []string
	for line := range strings.Lines(string(data)) {
		fields := strings.Fields(line)
		if len(fields) > 4 && (fields[4] == dir || strings.HasPrefix(fields[4], dir+"/")) {
			found = append(found, fields[4])
		}
	}
	return found
}

// traces lists everything on this host that belongs to a node, or with an
// empty name to any node or light mode. With a cache directory and no name it
// also looks there.
func traces(name, cache string) []string {
	var found []string
	add := func(kind, format string, args ...any) {
		if line := kind + " " + fmt.Sprintf(format, args...); !slices.Contains(found, line) {
			found = append(found, line)
		}
	}
	for _, p := range processes(name) {
		args := p.args
		if len(args) > 120 {
			args = args[:120] + "..."
		}
		add("process", "%d %s", p.pid, args)
	}
	for _, d := range devices(name) {
		add("device", "%s", d)
	}
	for _, d := range cgroupDirs(name) {
		add("cgroup", "%s", d)
	}
	for _, c := range registered() {
		if name != "" && c.Name != name {
			continue
		}
		add("registered", "%s", registryPath(c.Name))
		for _, dir := range []string{c.State, c.Containerd} {
			if dir != "" {
				if exists(dir) {
					add("state", "%s", dir)
				}
				for _, m := range mountsBelow(dir) {
					add("mount", "%s", m)
				}
			}
		}
		if c.Kubeconfig != "" && exists(c.Kubeconfig) {
			add("kubeconfig", "%s", c.Kubeconfig)
		}
	}
	// With a name, everything in the cache is registered.
	if cache != "" && name == "" {
		for _, m := range mountsBelow(cache) {
			add("mount", "%s", m)
		}
		// Leftovers of a killed command, even from before a reboot.
		for _, pattern := range []string{"containerd-*.tmp", "*/" + configFile, "*/*/" + configFile} {
			paths, _ := filepath.Glob(filepath.Join(cache, pattern))
			for _, p := range paths {
				add("state", "%s", strings.TrimSuffix(p, "/"+configFile))
			}
		}
	}
	return found
}

func status(ctx context.Context, name, state string) (bool, error) {
	var nodes []*config
	switch {
	case state != "":
		c, err := find(state)
		if err != nil {
			return false, err
		}
		nodes = []*config{c}
	default:
		for _, c := range registered() {
			if name == "" || c.Name == name {
				nodes = append(nodes, c)
			}
		}
	}
	if len(nodes) == 0 {
		fmt.Println("no cluster")
		return false, nil
	}
	healthy := true
	for _, c := range nodes {
		said := "healthy"
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		if err := health(ctx, c); err != nil {
			said, healthy = "not healthy: "+err.Error(), false
		}
		cancel()
		fmt.Printf("cluster %s %s\n", c.Name, said)
		fmt.Printf("  state %s\n  kubeconfig %s\n  address %s\n", c.State, c.Kubeconfig, c.NodeIP)
		for _, p := range processes(c.Name) {
			if name := p.component(); name == initCommand || slices.Contains(parts, name) {
				fmt.Printf("  process %s %d\n", name, p.pid)
			}
		}
	}
	return healthy, nil
}
