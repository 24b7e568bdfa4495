package cluster

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"trainyard.dev/node/internal/base"
	"trainyard.dev/node/internal/image"
)

// Paths as the node sees them. Each node has its own root, so they can be
// the same in every node.
const (
	kubernetesDir = "/etc/kubernetes"
	ownDir        = "/trainyard"
	ownProgram    = ownDir + "/bin/trainyard-node"
	containerdRun = "/run/containerd/containerd.sock"
)

// nodeInit is the first process of a node. When it ends, the namespaces end,
// and with them all processes, mounts, devices and firewall rules of the node.
func nodeInit(args []string) int {
	if len(args) != 1 || os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "node-init: only \"cluster up\" starts this, in namespaces of its own")
		return 2
	}
	c, err := load(args[0])
	if err == nil {
		err = runNode(c)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "node-init:", err)
		return 1
	}
	return 0
}

func runNode(c *config) error {
	orders := bufio.NewReader(os.NewFile(3, "orders"))
	await := func(order string) error {
		line, err := orders.ReadString('\n')
		if err != nil || strings.TrimSpace(line) != order {
			return fmt.Errorf("the command that started the node ended before %q", order)
		}
		return nil
	}
	if err := makeRoot(c); err != nil {
		return err
	}
	raiseLimits()
	if err := await("network"); err != nil {
		return err
	}
	if err := setupNetwork(c); err != nil {
		return err
	}
	s := &supervisor{children: map[int]*child{}, ended: make(chan struct{})}
	go s.reap()
	go func() {
		signals := make(chan os.Signal, 1)
		signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
		<-signals
		s.stop()
	}()

	containerd := func() error {
		if err := await("images"); err != nil {
			return err
		}
		return s.start("containerd", "/usr/bin/containerd", "--config", ownDir+"/containerd.toml")
	}
	if c.SeedOnly {
		if err := containerd(); err != nil {
			return err
		}
		<-s.ended
		return nil
	}

	own := func(args ...string) error {
		return s.start(args[0], append([]string{ownProgram}, args...)...)
	}
	const etcd = "http://127.0.0.1:2379"
	if err := own(base.EtcdArgs("/var/lib/etcd", etcd, "http://127.0.0.1:2380", false)...); err != nil {
		return err
	}
	failed := make(chan error, 1)
	go func() { failed <- containerd() }()
	for !base.EtcdReady(etcd) {
		time.Sleep(10 * time.Millisecond)
	}
	apiserver := append(base.APIServerArgs(kubernetesDir, etcd),
		"--secure-port=6443",
		"--advertise-address="+c.NodeIP,
		"--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction",
		// The node's name is in no DNS that the API server asks.
		"--kubelet-preferred-address-types=InternalIP",
		"--kubelet-certificate-authority="+kubernetesDir+"/ca.crt",
		"--kubelet-client-certificate="+kubernetesDir+"/kubelet-client.crt",
		"--kubelet-client-key="+kubernetesDir+"/kubelet-client.key",
	)
	if c.Audit {
		apiserver = append(apiserver, base.AuditArgs(kubernetesDir+"/audit-policy.json", "/var/log/trainyard/audit.log")...)
	}
	if err := own(apiserver...); err != nil {
		return err
	}
	ca, err := os.ReadFile(kubernetesDir + "/ca.crt")
	if err != nil {
		return err
	}
	token, err := os.ReadFile(kubernetesDir + "/launcher.token")
	if err != nil {
		return err
	}
	api := base.NewAPI("https://127.0.0.1:6443", ca, strings.TrimSpace(string(token)))
	until := func(ok func() bool) {
		for !ok() {
			time.Sleep(20 * time.Millisecond)
		}
	}
	get := func(path string) (int, error) {
		return api.Do(context.Background(), http.MethodGet, path, nil, nil)
	}
	// The kubelet takes longest, and needs only a responding API server. The
	// others would be refused until the roles exist, and retry only after a
	// second or more.
	until(func() bool { status, _ := get("/livez"); return status != 0 })
	if err := <-failed; err != nil {
		return err
	}
	until(criReady)
	if err := own("kubelet",
		"--config="+kubernetesDir+"/kubelet.json",
		"--kubeconfig="+kubernetesDir+"/kubelet.kubeconfig",
		"--hostname-override="+c.Name,
		"--node-ip="+c.NodeIP,
		"--v=2"); err != nil {
		return err
	}
	until(func() bool { _, err := get("/readyz"); return err == nil })
	if err := own(append(base.ControllerManagerArgs(kubernetesDir, kubernetesDir+"/controller-manager.kubeconfig"),
		"--bind-address=127.0.0.1")...); err != nil {
		return err
	}
	if err := own("kube-scheduler", "--config="+kubernetesDir+"/scheduler.json", "--bind-address=127.0.0.1", base.Gates); err != nil {
		return err
	}
	if err := own("kube-proxy", "--config="+kubernetesDir+"/proxy.json", "--hostname-override="+c.Name); err != nil {
		return err
	}
	until(func() bool { return api.Exists(context.Background(), corednsBinding) })
	api.Close()
	if err := own("coredns", "-conf", kubernetesDir+"/Corefile"); err != nil {
		return err
	}
	<-s.ended
	return nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// criReady reports whether containerd answers a kubelet, which would exit
// otherwise. On a busy machine the socket exists seconds before that.
func criReady() bool {
	conn, err := grpc.NewClient("unix://"+containerdRun, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return false
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_, err = cri.NewRuntimeServiceClient(conn).Version(ctx, &cri.VersionRequest{})
	return err == nil
}

// makeRoot builds the node's file system from the host's programs, read-only,
// and the node's own directories, and makes it the root. The node sees
// nothing else of the host, and its files are in its state directory or in
// memory.
func makeRoot(c *config) error {
	must := &mounter{}
	// First of all, or later mounts would reach the host.
	must.mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, "")
	root := filepath.Join(c.State, "root")
	must.mkdir(root)
	must.mount("tmpfs", root, "tmpfs", 0, "mode=755")
	if must.err != nil {
		return must.err
	}

	entries, err := os.ReadDir("/")
	if err != nil {
		return err
	}
	for _, e := range entries {
		switch name := e.Name(); {
		case e.Type()&os.ModeSymlink != 0: // bin, lib and sbin on most systems
			target, err := os.Readlink("/" + name)
			if err == nil {
				err = os.Symlink(target, root+"/"+name)
			}
			if err != nil {
				return err
			}
		case name == "usr" || name == "bin" || name == "sbin" || strings.HasPrefix(name, "lib"):
			must.bind("/"+name, root+"/"+name, true)
		}
	}
	must.bind("/dev", root+"/dev", false)
	must.bind("/sys", root+"/sys", false)
	must.mkdir(root + "/proc")
	must.mount("proc", root+"/proc", "proc", syscall.MS_NOSUID|syscall.MS_NODEV|syscall.MS_NOEXEC, "")
	for _, dir := range []string{"/run/lock", "/var/lib", "/var/cache", "/root", "/home", "/opt", "/mnt", "/srv", "/etc", "/.etc/upper", "/.etc/work", ownDir + "/bin", ownDir + "/cni"} {
		must.mkdir(root + dir)
	}
	for _, dir := range []string{"/tmp", "/var/tmp"} {
		must.mkdir(root + dir)
		must.do(os.Chmod(root+dir, 0o1777))
	}
	must.do(os.Symlink("/run", root+"/var/run"))
	// The host's settings, with changes that stay in memory.
	must.mount("overlay", root+"/etc", "overlay", 0, "lowerdir=/etc,upperdir="+root+"/.etc/upper,workdir="+root+"/.etc/work")
	for from, to := range map[string]string{
		filepath.Join(c.State, "kubernetes"): kubernetesDir,
		filepath.Join(c.State, "kubelet"):    "/var/lib/kubelet",
		filepath.Join(c.State, "etcd"):       "/var/lib/etcd",
		filepath.Join(c.State, "log"):        "/var/log",
		filepath.Join(c.State, "logs"):       "/var/log/trainyard",
		c.Containerd:                         "/var/lib/containerd",
	} {
		must.mkdir(from)
		if to == "/var/log/trainyard" {
			must.mkdir(filepath.Join(c.State, "log/trainyard"))
			continue // below, on top of /var/log
		}
		must.bind(from, root+to, false)
	}
	must.bind(filepath.Join(c.State, "logs"), root+"/var/log/trainyard", false)
	must.do(os.WriteFile(root+ownProgram, nil, 0o755))
	must.mount(c.Program, root+ownProgram, "", syscall.MS_BIND, "")
	must.do(os.Symlink("trainyard-node", root+ownDir+"/bin/kubectl"))

	// The kubelet would wait twice ten seconds for an unreachable name server
	// before it starts.
	must.replace(root+"/etc/hosts", "127.0.0.1 localhost\n::1 localhost\n"+c.NodeIP+" "+c.Name+"\n")
	must.replace(root+"/etc/resolv.conf", "nameserver "+c.NodeIP+"\n")
	must.replace(root+"/etc/hostname", c.Name+"\n")
	must.replace(root+ownDir+"/containerd.toml", containerdConfig)
	must.replace(root+ownDir+"/cni/10-trainyard.conflist", cniConfig)

	// The kubelet would set these for the whole machine. It finds its desired
	// values in the node's own files instead.
	for name, value := range map[string]string{
		"vm/overcommit_memory":      "1",
		"vm/panic_on_oom":           "0",
		"kernel/panic":              "10",
		"kernel/panic_on_oops":      "1",
		"kernel/keys/root_maxkeys":  "1000000",
		"kernel/keys/root_maxbytes": "25000000",
	} {
		own := root + ownDir + "/sysctl." + strings.ReplaceAll(name, "/", ".")
		must.do(os.WriteFile(own, []byte(value+"\n"), 0o644))
		must.mount(own, root+"/proc/sys/"+name, "", syscall.MS_BIND, "")
	}

	must.mkdir(root + "/.host")
	if must.err != nil {
		return must.err
	}
	if err := syscall.PivotRoot(root, root+"/.host"); err != nil {
		return fmt.Errorf("pivot_root: %w", err)
	}
	must.do(os.Chdir("/"))
	must.do(syscall.Unmount("/.host", syscall.MNT_DETACH))
	must.do(os.Remove("/.host"))
	// Volumes with mount propagation need a shared root. It is not shared
	// with the host, because it was private before.
	must.mount("", "/", "", syscall.MS_REC|syscall.MS_SHARED, "")
	must.do(syscall.Sethostname([]byte(c.Name)))
	must.do(os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1\n"), 0))
	return must.err
}

// mounter keeps the first error, so that a list of steps needs one check.
type mounter struct{ err error }

func (m *mounter) do(err error) {
	if m.err == nil {
		m.err = err
	}
}

func (m *mounter) mkdir(path string) { m.do(os.MkdirAll(path, 0o755)) }

func (m *mounter) mount(from, to, kind string, flags uintptr, data string) {
	if m.err != nil {
		return
	}
	if err := syscall.Mount(from, to, kind, flags, data); err != nil {
		m.err = fmt.Errorf("mount %s on %s: %w", from, to, err)
	}
}

// bind mounts a directory with its submounts. Read-only covers only the
// directory's own file system.
func (m *mounter) bind(from, to string, readOnly bool) {
	m.mkdir(to)
	m.mount(from, to, "", syscall.MS_BIND|syscall.MS_REC, "")
	if readOnly {
		m.mount("", to, "", syscall.MS_REMOUNT|syscall.MS_BIND|syscall.MS_RDONLY, "")
	}
}

// replace writes a file in place of an existing file or link.
func (m *mounter) replace(path, text string) {
	if m.err == nil {
		os.Remove(path)
		m.err = os.WriteFile(path, []byte(text), 0o644)
	}
}

// raiseLimits gives containers the open file limit that a container runtime
// has as a service. Not the maximum: old programs close every file descriptor
// up to the limit, one by one.
func raiseLimits() {
	var l syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l) != nil {
		return
	}
	const hard, soft = 1048576, 65536
	if l.Max < hard {
		// Without the capability this fails, and the current limit applies.
		_ = syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: soft, Max: hard})
		_ = syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l)
	}
	l.Cur = min(l.Max, soft)
	_ = syscall.Setrlimit(syscall.RLIMIT_NOFILE, &l)
}

// setupNetwork configures the node's side of the network.
func setupNetwork(c *config) error {
	if err := runTool("ip", "link", "set", "lo", "up"); err != nil || c.SeedOnly {
		return err
	}
	for _, args := range [][]string{
		{"ip", "addr", "add", c.NodeIP + "/30", "dev", "eth0"},
		{"ip", "link", "set", "eth0", "up"},
		// Without a route the kernel refuses a connection to a Service
		// before kube-proxy's rules see it. There is no default route: test
		// traffic for elsewhere fails here instead of reaching the host.
		{"ip", "route", "add", serviceCIDR, "dev", "eth0", "src", c.NodeIP},
		// The host knows no way back to pods.
		{"nft", "add table ip trainyard; add chain ip trainyard out { type nat hook postrouting priority 100; }; " +
			"add rule ip trainyard out ip saddr " + podCIDR + " oifname eth0 masquerade"},
	} {
		if err := runTool(args...); err != nil {
			return err
		}
	}
	return nil
}

func runTool(args ...string) error {
	out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}

// containerdConfig: without restrict_oom_score_adj no sandbox starts if root
// may not lower that score. AppArmor is off because profiles would be loaded
// into the host's kernel.
const containerdConfig = `version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = [
  "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs",
]
[grpc]
  address = "` + containerdRun + `"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "` + image.PauseName + `"
  restrict_oom_score_adj = true
  disable_apparmor = true
  enable_unprivileged_ports = true
  enable_unprivileged_icmp = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "` + cniBin + `"
    conf_dir = "` + ownDir + `/cni"
`

const cniBin = "/usr/lib/cni"

// cniConfig connects each pod to the node by its own link. On a common bridge
// the response of a Service's pod would go directly to the requesting pod and
// bypass address translation, unless the kernel also filters bridges, which
// is a setting of the whole machine.
const cniConfig = `{
  "cniVersion": "0.4.0",
  "name": "trainyard",
  "plugins": [
    {
      "type": "ptp",
      "ipam": {
        "type": "host-local",
        "ranges": [[{"subnet": "` + podCIDR + `"}]],
        "routes": [{"dst": "0.0.0.0/0"}]
      }
    },
    {"type": "portmap", "capabilities": {"portMappings": true}}
  ]
}
`

// supervisor starts the components, restarts those that end, and reaps
// orphaned processes, as the first process has to.
type supervisor struct {
	mu       sync.Mutex
	children map[int]*child
	stopping bool
	ended    chan struct{}
}

type child struct {
	name string
	argv []string
}

func (s *supervisor) start(name string, argv ...string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.startLocked(&child{name, argv})
}

func (s *supervisor) startLocked(c *child) error {
	if s.stopping {
		return nil
	}
	null, err := os.Open("/dev/null")
	if err != nil {
		return err
	}
	defer null.Close()
	log, err := os.OpenFile("/var/log/trainyard/"+c.name+".log", os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	// Not os/exec: it would wait for its children itself, while reap waits
	// for all.
	pid, err := syscall.ForkExec(c.argv[0], c.argv, &syscall.ProcAttr{
		Dir:   "/",
		Env:   os.Environ(),
		Files: []uintptr{null.Fd(), log.Fd(), log.Fd()},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return fmt.Errorf("%s: %w", c.name, err)
	}
	s.children[pid] = c
	fmt.Printf("%s %s: process %d\n", time.Now().Format(time.RFC3339Nano), c.name, pid)
	return nil
}

func (s *supervisor) reap() {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		if err != nil {
			time.Sleep(10 * time.Millisecond) // no children at all, yet
			continue
		}
		s.mu.Lock()
		c := s.children[pid]
		delete(s.children, pid)
		if c != nil {
			how := fmt.Sprintf("exit status %d", status.ExitStatus())
			if status.Signaled() {
				how = status.Signal().String()
			}
			fmt.Printf("%s %s: ended: %s\n", time.Now().Format(time.RFC3339Nano), c.name, how)
			if !s.stopping {
				recordEnd(c.name, how)
				time.AfterFunc(time.Second, func() {
					s.mu.Lock()
					defer s.mu.Unlock()
					if err := s.startLocked(c); err != nil {
						fmt.Println(err)
					}
				})
			}
		}
		if s.stopping && len(s.children) == 0 {
			close(s.ended)
			s.mu.Unlock()
			return
		}
		s.mu.Unlock()
	}
}

// ends is the file in which "cluster up" sees that a component has ended.
const ends = "ends"

func recordEnd(name, how string) {
	f, err := os.OpenFile("/var/log/trainyard/"+ends, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return
	}
	defer f.Close()
	_ = json.NewEncoder(f).Encode(map[string]string{"component": name, "how": how})
}

// stop ends the components in order; those that don't end are killed with
// the namespace.
func (s *supervisor) stop() {
	s.mu.Lock()
	s.stopping = true
	for pid := range s.children {
		_ = syscall.Kill(pid, syscall.SIGTERM)
	}
	none := len(s.children) == 0
	s.mu.Unlock()
	if none {
		os.Exit(0)
	}
	time.Sleep(15 * time.Second)
	os.Exit(0)
}
