package cluster

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"trainyard.dev/node/internal/light"
)

// process is a process on this host that belongs to a node or a light mode.
type process struct {
	pid  int
	node string // the node's name, "" if none
	args string
}

const initCommand = "node-init"

// component returns the process's component in its node.
func (p process) component() string {
	fields := strings.Fields(p.args)
	if len(fields) == 0 {
		return "?"
	}
	name := filepath.Base(fields[0])
	if name == "trainyard-node" && len(fields) > 1 {
		name = fields[1]
		if name == "cluster" && len(fields) > 2 {
			name = fields[2]
		}
	}
	return name
}

// inspect identifies one of our processes. It ignores zombies: they have no
// environment and can't be killed.
func inspect(pid int) (process, bool) {
	dir := fmt.Sprintf("/proc/%d/", pid)
	p := process{pid: pid}
	args, err := os.ReadFile(dir + "cmdline")
	if err != nil || len(args) == 0 {
		return p, false
	}
	p.args = strings.TrimSpace(string(bytes.ReplaceAll(args, []byte{0}, []byte{' '})))
	isLight := false
	environ, _ := os.ReadFile(dir + "environ")
	for v := range bytes.SplitSeq(environ, []byte{0}) {
		if name, ok := bytes.CutPrefix(v, []byte(marker+"=")); ok {
			p.node = string(name)
		}
		isLight = isLight || bytes.HasPrefix(v, []byte(light.Marker+"="))
	}
	if p.node == "" {
		// Processes in a container don't have the node's environment.
		p.node = nodeOfCgroup(dir + "cgroup")
	}
	if p.node != "" || isLight {
		return p, true
	}
	exe, _ := os.Readlink(dir + "exe")
	return p, filepath.Base(strings.TrimSuffix(exe, " (deleted)")) == "trainyard-node"
}

func nodeOfCgroup(path string) string {
	data, _ := os.ReadFile(path)
	for line := range strings.Lines(string(data)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) < 3 {
			continue
		}
		top, _, _ := strings.Cut(strings.TrimPrefix(parts[2], "/"), "/")
		if name, ok := strings.CutPrefix(top, "trainyard-"); ok {
			return name
		}
	}
	return ""
}

// processes lists our other processes: those of a node, or with an empty
// name all, including those without a node.
func processes(node string) []process {
	entries, _ := os.ReadDir("/proc")
	var found []process
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		if p, ok := inspect(pid); ok && (node == "" || p.node == node) {
			found = append(found, p)
		}
	}
	return found
}

// initOf is the first process of a node, seen from the host.
func initOf(node string) (int, bool) {
	for _, p := range processes(node) {
		if p.component() == initCommand && firstInNamespace(p.pid) {
			return p.pid, true
		}
	}
	return 0, false
}

func firstInNamespace(pid int) bool {
	data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, "NSpid:"); ok {
			ids := strings.Fields(rest)
			return len(ids) > 1 && ids[len(ids)-1] == "1"
		}
	}
	return false
}

// killProcess kills the process only if it is the node's. It opens the
// handle before the check, so that it can't hit a process that reuses the
// process id.
func killProcess(pid int, node string) {
	handle, err := os.FindProcess(pid)
	if err != nil {
		return
	}
	defer handle.Release()
	if p, ok := inspect(pid); ok && p.node == node {
		_ = handle.Signal(syscall.SIGKILL)
	}
}

// killNode ends every process of the node and waits until they are gone.
func killNode(node string) error {
	// The kernel ends all others with the first one.
	if pid, ok := initOf(node); ok {
		killProcess(pid, node)
	}
	deadline := time.Now().Add(20 * time.Second)
	for tries := 0; ; tries++ {
		left := processes(node)
		if len(left) == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("process %d (%s) does not end", left[0].pid, left[0].component())
		}
		if tries > 10 {
			for _, p := range left {
				killProcess(p.pid, node)
			}
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// hierarchies lists the mount points of all cgroup hierarchies, of version 1
// and 2, and whether the machine is on version 2 alone.
func hierarchies() (paths []string, unified bool) {
	data, _ := os.ReadFile("/proc/self/mountinfo")
	unified = true
	for line := range strings.Lines(string(data)) {
		before, after, ok := strings.Cut(line, " - ")
		fields := strings.Fields(before)
		if !ok || len(fields) < 5 {
			continue
		}
		switch strings.Fields(after)[0] {
		case "cgroup":
			unified = false
			paths = append(paths, fields[4])
		case "cgroup2":
			paths = append(paths, fields[4])
		}
	}
	return paths, unified
}

// makeCgroups makes the directory under which the kubelet keeps its pods.
func makeCgroups(name string) error {
	paths, unified := hierarchies()
	if len(paths) == 0 {
		return errors.New("no cgroup hierarchy is mounted; mount one with\n    mount -t cgroup2 none /sys/fs/cgroup")
	}
	for _, root := range paths {
		if unified {
			if err := delegate(root); err != nil {
				return err
			}
		}
		dir := filepath.Join(root, name)
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
		// A version 1 cpuset is empty, and nothing can run in it, until its
		// CPUs and memory nodes are set.
		for _, f := range []string{"cpuset.mems", "cpuset.cpus"} {
			value, err := os.ReadFile(filepath.Join(root, f))
			if unified || err != nil {
				continue
			}
			if err := os.WriteFile(filepath.Join(dir, f), value, 0); err != nil {
				return err
			}
		}
	}
	return nil
}

// delegate enables the kubelet's controllers below a version 2 root. On most
// machines they are already enabled.
func delegate(root string) error {
	available, err := os.ReadFile(filepath.Join(root, "cgroup.controllers"))
	if err != nil {
		return err
	}
	enabled, err := os.ReadFile(filepath.Join(root, "cgroup.subtree_control"))
	if err != nil {
		return err
	}
	have := strings.Fields(string(enabled))
	for _, c := range []string{"cpuset", "cpu", "io", "memory", "hugetlb", "pids"} {
		if !slices.Contains(strings.Fields(string(available)), c) || slices.Contains(have, c) {
			continue
		}
		err := os.WriteFile(filepath.Join(root, "cgroup.subtree_control"), []byte("+"+c), 0)
		if errors.Is(err, syscall.EBUSY) {
			return fmt.Errorf("cgroup controller %s cannot be used below %s, because processes are in that cgroup itself; move them with\n"+
				"    mkdir -p %[2]s/init && xargs -rn1 < %[2]s/cgroup.procs > %[2]s/init/cgroup.procs", c, root)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// cgroupDirs lists the directories of a node, or of all with an empty name.
func cgroupDirs(node string) []string {
	pattern := "trainyard-*"
	if node != "" {
		pattern = "trainyard-" + node
	}
	var found []string
	paths, _ := hierarchies()
	for _, root := range paths {
		dirs, _ := filepath.Glob(filepath.Join(root, pattern))
		found = append(found, dirs...)
	}
	return found
}

// removeCgroups removes the node's directories. A group is busy for a moment
// after its last process has ended.
func removeCgroups(node string) error {
	var last error
	for range 250 {
		last = nil
		for _, dir := range cgroupDirs(node) {
			if err := removeCgroup(dir); err != nil {
				last = err
			}
		}
		if last == nil {
			return nil
		}
		time.Sleep(20 * time.Millisecond)
	}
	return last
}

func removeCgroup(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := removeCgroup(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	// Its files are virtual, so rmdir is enough.
	if err := syscall.Rmdir(dir); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("%s: %w", dir, err)
	}
	return nil
}
