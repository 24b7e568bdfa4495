package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
)

// A job is what this program does once more inside private mount and process
// namespaces. When either of the two ends, even by SIGKILL, the kernel ends
// what runs in there and takes down its mounts.
type job struct {
	Op      string // base, apt, pip, run
	Work    string // a directory for temporary files
	Lower   []string
	Suite   string
	Sources []string // copies of the host's apt source files
	Acquire []string // the host's apt options for downloads
	Layer   *Layer
	Beside  map[string]string // what lies where while a layer is built: files of this machine
	Command []string
	Env     []string
	Host    string
}

const insideArg = "inside-namespaces"

// self is this program.
var self = "/proc/self/exe"

// upper is where a job leaves what it has added.
func (j *job) upper() string  { return filepath.Join(j.Work, "upper") }
func (j *job) merged() string { return filepath.Join(j.Work, "merged") }

// inside runs a job in new namespaces. Whatever it prints goes to out.
func inside(ctx context.Context, j *job, stdin io.Reader, stdout, stderr io.Writer) error {
	data, err := json.Marshal(j)
	if err != nil {
		return err
	}
	file := filepath.Join(j.Work, "job.json")
	if err := os.WriteFile(file, data, 0o600); err != nil {
		return err
	}
	// The kernel sends Pdeathsig when the thread that started the child ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd := exec.CommandContext(ctx, self, insideArg, file)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, stdout, stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWIPC | syscall.CLONE_NEWUTS,
		Pdeathsig:  syscall.SIGKILL,
	}
	return cmd.Run()
}

func insideMain(file string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	j := &job{}
	if err := json.Unmarshal(data, j); err != nil {
		return err
	}
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("making mounts private: %w", err)
	}
	if err := syscall.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("mounting /proc: %w", err)
	}
	syscall.Umask(0o022)
	switch j.Op {
	case "base":
		return j.base()
	case "apt":
		return j.apt()
	case "pip":
		return j.pip()
	case "run":
		return j.run()
	}
	return fmt.Errorf("unknown job %q", j.Op)
}

func command(env []string, name string, args ...string) error {
	cmd := exec.Command(name, args...)
	cmd.Env = env
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	fmt.Fprintln(os.Stdout, "+", name, strings.Join(args, " "))
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w", filepath.Base(name), err)
	}
	return nil
}

// base bootstraps a Debian into upper.
func (j *job) base() error {
	if err := os.Mkdir(j.upper(), 0o755); err != nil {
		return err
	}
	args := []string{
		"--mode=root", "--variant=minbase", "--format=directory",
		"--include=" + strings.Join(j.Layer.Packages, ","),
		`--aptopt=APT::Install-Recommends "false"`,
		"--dpkgopt=force-unsafe-io",
	}
	for _, o := range j.Acquire {
		args = append(args, "--aptopt="+o)
	}
	for _, e := range j.Layer.Excludes {
		args = append(args, "--dpkgopt="+e)
	}
	args = append(args, j.Suite, j.upper())
	args = append(args, j.Sources...)
	if err := command(append(os.Environ(), "TMPDIR="+j.Work), "mmdebstrap", args...); err != nil {
		return err
	}
	if err := j.finish(j.upper()); err != nil {
		return err
	}
	return tidyBase(j.upper(), j.Layer.Excludes)
}

// tidyBase takes out what ties a bootstrapped system to this machine and day.
func tidyBase(root string, excludes []string) error {
	if err := tidy(root); err != nil {
		return err
	}
	for _, pattern := range []string{
		"etc/apt/sources.list", "etc/apt/sources.list.d/*", "etc/apt/apt.conf.d/99mmdebstrap",
		"etc/dpkg/dpkg.cfg.d/99mmdebstrap", "etc/resolv.conf", "etc/hostname", "etc/hosts", "etc/machine-id",
		"etc/passwd-", "etc/group-", "etc/shadow-", "etc/gshadow-", "etc/subuid-", "etc/subgid-",
		"run/*", "dev/*",
	} {
		if err := removeAll(root, pattern); err != nil {
			return err
		}
	}
	// Packages that are added later leave out the same.
	conf := strings.Join(excludes, "\n") + "\n"
	if err := os.WriteFile(filepath.Join(root, "etc/dpkg/dpkg.cfg.d/trainyard"), []byte(conf), 0o644); err != nil {
		return err
	}
	// Container runtimes mount their own over these.
	for _, f := range []string{"etc/resolv.conf", "etc/hostname", "etc/hosts"} {
		if err := os.WriteFile(filepath.Join(root, f), nil, 0o644); err != nil {
			return err
		}
	}
	return fixShadow(filepath.Join(root, "etc/shadow"))
}

// tidy takes out what installing packages leaves behind.
func tidy(root string) error {
	for _, pattern := range []string{
		"tmp/*", "var/tmp/*", "root/.cache",
		"var/cache/apt/*", "var/cache/ldconfig/aux-cache", "var/cache/debconf/*-old", "var/cache/fontconfig/*",
		"var/lib/apt/lists/*", "var/lib/dpkg/*-old", "var/log/*",
	} {
		if err := removeAll(root, pattern); err != nil {
			return err
		}
	}
	return nil
}

func removeAll(root, pattern string) error {
	found, err := filepath.Glob(filepath.Join(root, pattern))
	if err != nil {
		return err
	}
	for _, f := range found {
		if err := os.RemoveAll(f); err != nil {
			return err
		}
	}
	return nil
}

// finish does what a recipe wants after its packages are installed.
func (j *job) finish(root string) error {
	if err := removeMatching(j.upper(), root, j.Layer.Remove); err != nil {
		return err
	}
	for _, e := range j.Layer.Edits {
		if err := edit(filepath.Join(root, e.Path), e); err != nil {
			return err
		}
	}
	return nil
}

func edit(path string, e Edit) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if n := strings.Count(string(data), e.Old); n != 1 {
		return fmt.Errorf("%s has %q %d times instead of once", e.Path, e.Old, n)
	}
	return os.WriteFile(path, []byte(strings.Replace(string(data), e.Old, e.New, 1)), 0o644)
}

// removeMatching removes from an overlay what it has in its upper directory and
// what matches a pattern.
func removeMatching(upper, merged string, patterns []string) error {
	if len(patterns) == 0 {
		return nil
	}
	var alternatives []string
	for _, p := range patterns {
		alternatives = append(alternatives, strings.ReplaceAll(regexp.QuoteMeta(p), `\*`, ".*"))
	}
	match, err := regexp.Compile("^(" + strings.Join(alternatives, "|") + ")$")
	if err != nil {
		return err
	}
	var found []string
	err = filepath.WalkDir(upper, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(path, upper)
		if !match.MatchString(name) {
			return nil
		}
		found = append(found, name)
		if d.IsDir() {
			return fs.SkipDir
		}
		return nil
	})
	for _, name := range found {
		if err == nil {
			err = os.RemoveAll(filepath.Join(merged, name))
		}
	}
	return err
}

// fixShadow replaces the day of the last password change, which is today.
func fixShadow(path string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	lines := strings.Split(string(data), "\n")
	for i, line := range lines {
		if f := strings.Split(line, ":"); len(f) > 2 && f[2] != "" {
			f[2] = fmt.Sprint(epoch.Unix() / 86400)
			lines[i] = strings.Join(f, ":")
		}
	}
	return os.WriteFile(path, []byte(strings.Join(lines, "\n")), 0o640)
}

// mount puts the overlay together, with what programs in a chroot expect.
func (j *job) mount() error {
	m := j.merged()
	work := filepath.Join(j.Work, "overlay")
	for _, d := range []string{j.upper(), work, m} {
		if err := os.Mkdir(d, 0o755); err != nil {
			return err
		}
	}
	// Plain copies only: what lands in upper must make sense without overlayfs.
	opts := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s,redirect_dir=off,metacopy=off,index=off",
		strings.Join(j.Lower, ":"), j.upper(), work)
	if err := syscall.Mount("overlay", m, "overlay", 0, opts); err != nil {
		return fmt.Errorf("mounting an overlay in %s: %w (the cache must lie on a file system like ext4 or xfs)", j.Work, err)
	}
	if err := syscall.Mount("proc", filepath.Join(m, "proc"), "proc", 0, ""); err != nil {
		return err
	}
	for _, t := range []struct{ dir, opts string }{{"dev", "mode=755"}, {"run", "mode=755"}, {"tmp", "mode=1777"}} {
		if err := syscall.Mount("tmpfs", filepath.Join(m, t.dir), "tmpfs", syscall.MS_NOSUID, t.opts); err != nil {
			return fmt.Errorf("mounting /%s: %w", t.dir, err)
		}
	}
	for _, dev := range []string{"null", "zero", "full", "random", "urandom", "tty"} {
		if err := bind("/dev/"+dev, filepath.Join(m, "dev", dev)); err != nil {
			return err
		}
	}
	for name, to := range map[string]string{"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2"} {
		if err := os.Symlink(to, filepath.Join(m, "dev", name)); err != nil {
			return err
		}
	}
	shm := filepath.Join(m, "dev/shm")
	if err := os.Mkdir(shm, 0o755); err != nil {
		return err
	}
	return syscall.Mount("tmpfs", shm, "tmpfs", syscall.MS_NOSUID|syscall.MS_NODEV, "mode=1777")
}

// bind makes one file of the host visible at a path.
func bind(from, to string) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(to, os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	f.Close()
	if err := syscall.Mount(from, to, "", syscall.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind mount of %s: %w", from, err)
	}
	return nil
}

// apt lets the host's apt install packages into the overlay: it knows how to
// reach the archive, and nothing of that has to be in the image.
func (j *job) apt() error {
	if err := j.mount(); err != nil {
		return err
	}
	m, w := j.merged(), filepath.Join(j.Work, "apt")
	for _, d := range []string{"state/lists/partial", "cache", "log", "sources.list.d"} {
		if err := os.MkdirAll(filepath.Join(w, d), 0o755); err != nil {
			return err
		}
	}
	for _, s := range j.Sources {
		if err := os.Symlink(s, filepath.Join(w, "sources.list.d", filepath.Base(s))); err != nil {
			return err
		}
	}
	// dpkg runs in the chroot, so that the packages must be visible there.
	archives := filepath.Join(m, "var/cache/apt/archives")
	if err := os.MkdirAll(filepath.Join(archives, "partial"), 0o755); err != nil {
		return err
	}
	conf := []string{
		`Dir::Etc::Main "/dev/null"`, `Dir::Etc::Parts "/dev/null"`,
		`Dir::Etc::SourceList "/dev/null"`, fmt.Sprintf("Dir::Etc::SourceParts %q", filepath.Join(w, "sources.list.d")),
		`Dir::Etc::Preferences "/dev/null"`, `Dir::Etc::PreferencesParts "/dev/null"`,
		fmt.Sprintf("Dir::State %q", filepath.Join(w, "state")),
		fmt.Sprintf("Dir::State::Status %q", filepath.Join(m, "var/lib/dpkg/status")),
		fmt.Sprintf("Dir::State::Extended_States %q", filepath.Join(m, "var/lib/apt/extended_states")),
		fmt.Sprintf("Dir::Cache %q", filepath.Join(w, "cache")),
		fmt.Sprintf("Dir::Cache::Archives %q", archives),
		fmt.Sprintf("Dir::Log %q", filepath.Join(w, "log")),
		fmt.Sprintf("DPkg::Chroot-Directory %q", m),
		`DPkg::Options:: "--force-unsafe-io"`, `DPkg::Options:: "--force-confdef"`,
		`DPkg::Use-Pty "false"`,
		`APT::Sandbox::User "root"`, `APT::Install-Recommends "false"`, `APT::Install-Suggests "false"`,
		`Acquire::Languages "none"`, `APT::Get::Assume-Yes "true"`,
	}
	conf = append(conf, j.Acquire...)
	file := filepath.Join(w, "apt.conf")
	if err := os.WriteFile(file, []byte(strings.Join(conf, ";\n")+";\n"), 0o644); err != nil {
		return err
	}
	// Services of packages must not start in here.
	policy := filepath.Join(m, "usr/sbin/policy-rc.d")
	if err := os.WriteFile(policy, []byte("#!/bin/sh\nexit 101\n"), 0o755); err != nil {
		return err
	}
	// Java links its manual here, and fails where there is no such place; manuals themselves are left out.
	manual := filepath.Join(m, "usr/share/man/man1")
	if err := os.MkdirAll(manual, 0o755); err != nil {
		return err
	}
	env := append(os.Environ(), "APT_CONFIG="+file, "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C.UTF-8")
	if err := command(env, "apt-get", "update", "-q"); err != nil {
		return err
	}
	if err := command(env, "apt-get", append([]string{"install", "-q"}, j.Layer.Packages...)...); err != nil {
		return err
	}
	for _, path := range []string{policy, manual} {
		if err := os.RemoveAll(path); err != nil {
			return err
		}
	}
	if err := j.finish(m); err != nil {
		return err
	}
	return tidy(m)
}

// pip installs Python packages with the network and the settings of the host.
func (j *job) pip() error {
	if err := j.mount(); err != nil {
		return err
	}
	m := j.merged()
	for _, f := range []string{"/etc/resolv.conf", "/etc/hosts"} {
		if err := syscall.Mount(f, filepath.Join(m, f), "", syscall.MS_BIND, ""); err != nil {
			return fmt.Errorf("bind mount of %s: %w", f, err)
		}
	}
	env := []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/run", "TMPDIR=/tmp", "LANG=C.UTF-8"}
	for _, kv := range os.Environ() {
		name, value, _ := strings.Cut(kv, "=")
		switch up := strings.ToUpper(name); {
		case up == "PIP_CERT" || up == "PIP_CONFIG_FILE" || up == "PIP_FIND_LINKS":
		case strings.HasPrefix(up, "PIP_") || strings.HasSuffix(up, "_PROXY"):
			env = append(env, name+"="+value)
		}
	}
	certs := os.Getenv("PIP_CERT")
	if certs == "" {
		certs = "/etc/ssl/certs/ca-certificates.crt"
	}
	if _, err := os.Stat(certs); err == nil {
		if err := bind(certs, filepath.Join(m, "run/host/certs.pem")); err != nil {
			return err
		}
		env = append(env, "PIP_CERT=/run/host/certs.pem")
	}
	home, _ := os.UserHomeDir()
	for _, f := range []string{os.Getenv("PIP_CONFIG_FILE"), filepath.Join(home, ".config/pip/pip.conf"), "/etc/pip.conf"} {
		if _, err := os.Stat(f); f != "" && err == nil {
			if err := bind(f, filepath.Join(m, "run/host/pip.conf")); err != nil {
				return err
			}
			env = append(env, "PIP_CONFIG_FILE=/run/host/pip.conf")
			break
		}
	}
	// Without dependencies: a recipe says with its versions all that it wants, and
	// only that can come, as it was when its hash was written down.
	wanted, err := requirements(j.Layer.Packages, pipLock)
	if err != nil {
		return err
	}
	list := filepath.Join(j.Work, "requirements.txt")
	if err := os.WriteFile(list, []byte(wanted), 0o644); err != nil {
		return err
	}
	if err := bind(list, filepath.Join(m, "run/host/requirements.txt")); err != nil {
		return err
	}
	args := []string{m, "python3", "-m", "pip", "install", "--no-cache-dir", "--no-compile", "--no-deps",
		"--no-warn-script-location", "--break-system-packages", "--root-user-action=ignore",
		"--require-hashes", "--requirement", "/run/host/requirements.txt"}
	if err := command(env, "chroot", args...); err != nil {
		return err
	}
	for _, f := range j.Layer.Source {
		if err := bind(j.Beside[f.Dst], filepath.Join(m, f.Dst)); err != nil {
			return err
		}
	}
	if len(j.Layer.Run) > 0 {
		script := "set -eu\n" + strings.Join(j.Layer.Run, "\n")
		if err := command(env, "chroot", m, "/bin/sh", "-c", script); err != nil {
			return err
		}
	}
	for _, pattern := range j.Layer.Strip {
		found, err := filepath.Glob(filepath.Join(m, pattern))
		if err != nil {
			return err
		}
		if len(found) != 1 {
			return fmt.Errorf("%d libraries are named %s", len(found), pattern)
		}
		if err := command(env, "chroot", m, "strip", "--strip-unneeded", strings.TrimPrefix(found[0], m)); err != nil {
			return err
		}
	}
	// Before they are compiled: what is removed takes its time there.
	if err := j.finish(m); err != nil {
		return err
	}
	// Debian's Python compiles with the times of the sources, which change
	// from build to build; hashes don't.
	script := `for d in /usr/local/lib/python3*; do
	if [ -d "$d" ]; then python3 -m compileall -q -j 2 --invalidation-mode unchecked-hash "$d" || true; fi
done`
	if err := command(env, "chroot", m, "/bin/sh", "-c", script); err != nil {
		return err
	}
	for _, f := range []string{"/etc/resolv.conf", "/etc/hosts"} {
		if err := syscall.Unmount(filepath.Join(m, f), syscall.MNT_DETACH); err != nil {
			return err
		}
	}
	return tidy(m)
}

// run executes a command in an image, for trying things out.
func (j *job) run() error {
	if err := j.mount(); err != nil {
		return err
	}
	m := j.merged()
	if err := syscall.Sethostname([]byte(j.Host)); err != nil {
		return err
	}
	hosts := "127.0.0.1 localhost " + j.Host + "\n"
	if err := os.WriteFile(filepath.Join(m, "etc/hosts"), []byte(hosts), 0o644); err != nil {
		return err
	}
	if err := syscall.Chroot(m); err != nil {
		return err
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	os.Clearenv()
	for _, kv := range j.Env {
		name, value, _ := strings.Cut(kv, "=")
		os.Setenv(name, value)
	}
	path, err := exec.LookPath(j.Command[0])
	if err != nil {
		return err
	}
	cmd := &exec.Cmd{Path: path, Args: j.Command, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Env: j.Env}
	return cmd.Run()
}
