package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"trainyard.dev/node/internal/image"
)

// seed creates CACHE/containerd-KEY: containerd's content with the images
// imported and unpacked, for nodes that start with it. It removes the content
// that this one supersedes, which takes 10 GB.
func seed(ctx context.Context, cache, key string, files []string, say func(string, ...any)) (err error) {
	if !validName.MatchString(key) {
		return fmt.Errorf("--key %q: a key is up to 42 lower-case letters, digits and hyphens", key)
	}
	done := filepath.Join(cache, "containerd-"+key)
	if err := removeSuperseded(cache, key, say); err != nil {
		return err
	}
	if exists(done) {
		return nil
	}
	if err := checkHost(); err != nil {
		return err
	}
	for _, f := range files {
		if _, err := os.Stat(f); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return err
	}
	if err := checkFileSystem(cache); err != nil {
		return err
	}
	name := "seed-" + key
	unlock, err := lockName(name, say)
	if err != nil {
		return err
	}
	defer unlock()
	if exists(done) {
		return nil
	}
	// The node ends with its starting thread, so this thread must stay.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	program, err := os.Executable()
	if err != nil {
		return err
	}
	c := &config{
		Name: name, SeedOnly: true, Program: program, Cache: cache, NodeIP: "127.0.0.1",
		State:      filepath.Join(cache, name+".tmp"),
		Containerd: done + ".tmp",
	}
	clean := func() error {
		if err := remove(c); err != nil {
			return err
		}
		return os.RemoveAll(c.Containerd)
	}
	if err := clean(); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(c.State, "logs"), 0o755); err != nil {
		return err
	}
	if err := c.save(); err != nil {
		return err
	}
	say("images: importing %d into %s", len(files)+1, done)
	n, err := spawn(c, true)
	if err != nil {
		return err
	}
	defer func() {
		n.kill()
		if err != nil {
			err = errors.Join(err, clean())
		}
	}()
	for _, order := range []string{"network", "images"} {
		if err := n.order(order); err != nil {
			return n.explain(err)
		}
	}
	if err := n.wait(ctx, say, "containerd", func() bool {
		return inside(n.pid(), nil, nil, "ctr", "version") == nil
	}); err != nil {
		return err
	}
	if err := importPause(n.pid()); err != nil {
		return err
	}
	for _, f := range files {
		start := time.Now()
		if err := importImage(ctx, n.pid(), f); err != nil {
			return err
		}
		say("images: %s imported in %.1f s", filepath.Base(f), time.Since(start).Seconds())
	}
	// After a regular shutdown its databases are complete.
	if err := n.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case <-n.ended:
	case <-time.After(20 * time.Second):
		return n.explain(errors.New("containerd does not end"))
	}
	if err := remove(c); err != nil {
		return err
	}
	return os.Rename(c.Containerd, done)
}

// removeSuperseded removes the content of other keys with the same name: a key
// is a name and a hash, or a hash alone. Nodes that run have links of their own.
func removeSuperseded(cache, key string, say func(string, ...any)) error {
	dirs, err := filepath.Glob(filepath.Join(cache, "containerd-*"))
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		other := strings.TrimPrefix(filepath.Base(dir), "containerd-")
		if other == key || filepath.Ext(other) != "" || keyName(other) != keyName(key) {
			continue
		}
		say("images: removing %s, which is superseded", dir)
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
	}
	return nil
}

// keyName returns what a key has before its hash.
func keyName(key string) string { return key[:strings.LastIndex(key, "-")+1] }

func importPause(pid int) error {
	program, err := pauseProgram()
	if err != nil {
		return err
	}
	read, write := io.Pipe()
	go func() { write.CloseWithError(image.Pause(write, program)) }()
	return inside(pid, read, nil, "ctr", "-n", "k8s.io", "images", "import", "--snapshotter", "overlayfs", "-")
}

// importImage reads the file here: the node does not see the host's files.
func importImage(ctx context.Context, pid int, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := inside(pid, f, nil, "ctr", "-n", "k8s.io", "images", "import", "--snapshotter", "overlayfs", "-"); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return ctx.Err()
}

// inside runs a tool in the node's namespaces.
func inside(pid int, stdin io.Reader, stdout io.Writer, args ...string) error {
	cmd := enter(pid, args)
	var out strings.Builder
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, stdout, &out
	if stdout == nil {
		cmd.Stdout = &out
	}
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(out.String()))
	}
	return nil
}

// enter returns a command in the node's namespaces, with its environment
// except the marker: it is not part of the node.
func enter(pid int, args []string) *exec.Cmd {
	cmd := exec.Command("nsenter", append([]string{"-t", strconv.Itoa(pid), "-m", "-p", "-n", "-u", "-i", "--"}, args...)...)
	cmd.Env = []string{
		"PATH=" + ownDir + "/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME=/root", "LANG=C.UTF-8", "TERM=" + os.Getenv("TERM"),
		"KUBECONFIG=" + kubernetesDir + "/admin.kubeconfig",
	}
	return cmd
}

// loadImages imports images into a running node.
func loadImages(ctx context.Context, state string, files []string) error {
	c, err := find(state)
	if err != nil {
		return err
	}
	pid, ok := initOf(c.Name)
	if !ok {
		return fmt.Errorf("the cluster %s is not running", c.Name)
	}
	for _, f := range files {
		if err := importImage(ctx, pid, f); err != nil {
			return err
		}
		fmt.Printf("loaded %s\n", f)
	}
	return nil
}

// execInside is "cluster exec": its exit status is the command's.
func execInside(state string, args []string) (int, error) {
	c, err := find(state)
	if err != nil {
		return 1, err
	}
	pid, ok := initOf(c.Name)
	if !ok {
		return 1, fmt.Errorf("the cluster %s is not running", c.Name)
	}
	cmd := enter(pid, args)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	if err := cmd.Start(); err != nil {
		return 1, err
	}
	go func() {
		for s := range signals {
			_ = cmd.Process.Signal(s)
		}
	}()
	err = cmd.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		if exit.ExitCode() < 0 {
			return 1, err
		}
		return exit.ExitCode(), nil
	}
	return 0, err
}
