package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"trainyard.dev/node/internal/base"
)

// node is a node's first process, from the view of the starting command.
type node struct {
	c      *config
	cmd    *exec.Cmd
	orders *os.File
	ended  chan struct{}
}

// spawn starts it in its own namespaces. It ends with the command only if
// diesWithStarter is set.
func spawn(c *config, diesWithStarter bool) (*node, error) {
	read, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer read.Close()
	log, err := os.Create(c.log("node"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	os.Remove(c.log("")[:len(c.log(""))-len(".log")] + ends)
	n := &node{c: c, orders: write, ended: make(chan struct{})}
	n.cmd = exec.Command(c.Program, "cluster", initCommand, filepath.Join(c.State, configFile))
	n.cmd.Dir = "/"
	n.cmd.Stdout, n.cmd.Stderr = log, log
	n.cmd.ExtraFiles = []*os.File{read}
	// Without the caller's environment: a proxy or a locale of the host must
	// not affect the node.
	n.cmd.Env = []string{
		"PATH=" + ownDir + "/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME=/root", "LANG=C.UTF-8", marker + "=" + c.Name,
	}
	n.cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid:     true,
		Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWNET | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC,
	}
	if diesWithStarter {
		n.cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	}
	if err := n.cmd.Start(); err != nil {
		write.Close()
		return nil, fmt.Errorf("cannot make namespaces: %w; a kernel feature may be missing, see\n    e2e/cluster/prerequisites", err)
	}
	go func() {
		_ = n.cmd.Wait()
		close(n.ended)
	}()
	return n, nil
}

func (n *node) pid() int { return n.cmd.Process.Pid }

func (n *node) kill() { _ = n.cmd.Process.Kill(); <-n.ended }

func (n *node) order(what string) error {
	_, err := fmt.Fprintln(n.orders, what)
	return err
}

// explain adds the output of the node's first process to an error.
func (n *node) explain(err error) error {
	return fmt.Errorf("%w; the node's log ends:\n%s", err, base.Tail(n.c.log("node"), 10))
}

// failure reports the first component that has ended, with the end of its log.
func (n *node) failure() error {
	select {
	case <-n.ended:
		return fmt.Errorf("the node's first process ended (%s); its log ends:\n%s", n.cmd.ProcessState, base.Tail(n.c.log("node"), 10))
	default:
	}
	f, err := os.Open(filepath.Join(n.c.State, "logs", ends))
	if err != nil {
		return nil
	}
	defer f.Close()
	var e struct{ Component, How string }
	if json.NewDecoder(f).Decode(&e) != nil {
		return nil
	}
	return fmt.Errorf("%s failed (%s); its log, %s, ends:\n%s", e.Component, e.How, n.c.log(e.Component), base.Tail(n.c.log(e.Component), 20))
}

// wait prints what it waits for, and fails when a component has failed.
func (n *node) wait(ctx context.Context, say func(string, ...any), what string, ok func() bool) error {
	say("waiting for %s", what)
	for start := time.Now(); !ok(); time.Sleep(20 * time.Millisecond) {
		if err := n.failure(); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return fmt.Errorf("interrupted while waiting for %s", what)
		}
		if time.Since(start) > 90*time.Second {
			return fmt.Errorf("waited 90 s in vain for %s; the logs are in %s", what, filepath.Join(n.c.State, "logs"))
		}
	}
	return nil
}

// copyContent gives a node its own containerd content: hard links to files
// that never change, and copies of the databases, which change in place.
func copyContent(from, to string) error {
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	out, err := exec.Command("cp", "-al", from+"/.", to+"/").CombinedOutput()
	if err != nil {
		if !strings.Contains(string(out), "cross-device") {
			return fmt.Errorf("cp -al %s %s: %w: %s", from, to, err, base.FirstLine(out))
		}
		// On another file system everything is copied, which takes longer.
		if out, err := exec.Command("cp", "-a", "--remove-destination", "--reflink=auto", from+"/.", to+"/").CombinedOutput(); err != nil {
			return fmt.Errorf("cp -a %s %s: %w: %s", from, to, err, base.FirstLine(out))
		}
		return nil
	}
	return filepath.WalkDir(to, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if e.IsDir() {
			// Layers and blobs hold no databases of containerd.
			if name := e.Name(); name == "snapshots" || name == "blobs" {
				return filepath.SkipDir
			}
			return nil
		}
		if filepath.Ext(path) != ".db" {
			return nil
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return base.WriteFile(path, data, 0o600)
	})
}
