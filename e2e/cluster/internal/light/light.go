// Package light starts etcd and kube-apiserver, and optionally
// kube-controller-manager, as an ordinary user on free ports of 127.0.0.1.
package light

import (
	"context"
	"crypto/x509/pkix"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"trainyard.dev/node/internal/base"
)

// Marker is in the environment of every process of a light mode and holds its
// directory, to identify leftover processes.
const Marker = "TRAINYARD_LIGHT"

type options struct {
	dir               string
	controllerManager bool
	managerArgs       []string
	audit             bool
	fsync             bool
	verbose           bool
	untilStdinCloses  bool
	keep              bool
	users             []base.User
}

// Main is the command "light".
func Main(args []string) int {
	var o options
	f := flag.NewFlagSet("light", flag.ContinueOnError)
	f.StringVar(&o.dir, "dir", "", "directory for kubeconfigs, tokens, logs and data (needed)")
	f.BoolVar(&o.controllerManager, "controller-manager", false, "start kube-controller-manager too")
	f.Func("controller-manager-arg", "flag for kube-controller-manager, such as --node-monitor-grace-period=10s (may be repeated)", func(s string) error {
		o.managerArgs = append(o.managerArgs, s)
		return nil
	})
	f.BoolVar(&o.audit, "audit", false, "write DIR/audit.log")
	f.BoolVar(&o.fsync, "fsync", false, "let etcd sync to disk, as a real one does")
	f.BoolVar(&o.verbose, "verbose", false, "say what is started")
	f.BoolVar(&o.untilStdinCloses, "until-stdin-closes", false, "end when standard input does")
	f.BoolVar(&o.keep, "keep", false, "leave etcd's data and the keys in DIR at the end")
	f.Func("user", "name=token[,group...]: one more user (may be repeated)", func(s string) error {
		u, err := base.ParseUser(s)
		o.users = append(o.users, u)
		return err
	})
	if err := f.Parse(args); err != nil {
		return 2
	}
	if o.dir == "" || f.NArg() > 0 {
		fmt.Fprintln(os.Stderr, "light: --dir DIR is needed, and nothing but flags")
		return 2
	}
	if err := run(o); err != nil {
		fmt.Fprintln(os.Stderr, "light:", err)
		return 1
	}
	return 0
}

func run(o options) error {
	dir, err := filepath.Abs(o.dir)
	if err != nil {
		return err
	}
	o.dir = dir
	if err := os.MkdirAll(dir+"/logs", 0o755); err != nil {
		return err
	}
	unlock, err := lock(dir)
	if err != nil {
		return err
	}
	defer unlock()

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if o.untilStdinCloses {
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin)
			stop()
		}()
	}
	defer clean(o)

	start := newStarter()
	const attempts = 5
	for attempt := 1; ; attempt++ {
		clean(o)
		l := &instance{o: o, starter: start}
		err := l.up(ctx)
		if err == nil {
			fmt.Printf("ready %s/kubeconfig\n", dir)
			err = l.wait(ctx)
			l.down()
			return err
		}
		l.down()
		if ctx.Err() != nil {
			return nil
		}
		// Another process may have taken a free port meanwhile.
		if attempt == attempts || !l.portTaken() {
			return err
		}
		if o.verbose {
			fmt.Fprintln(os.Stderr, "light: a port was taken meanwhile; trying others")
		}
	}
}

// lock prevents two light modes in one directory.
func lock(dir string) (func(), error) {
	f, err := os.OpenFile(dir+"/lock", os.O_CREATE|os.O_RDWR|syscall.O_CLOEXEC, 0o644)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		return nil, fmt.Errorf("another one is running in %s", dir)
	}
	return func() { os.Remove(dir + "/lock"); f.Close() }, nil
}

// clean removes everything but the logs.
func clean(o options) {
	if o.keep {
		return
	}
	for _, pattern := range []string{"etcd", "pki", "certificates", "kubeconfig", "kubeconfig-*", "token-*"} {
		paths, _ := filepath.Glob(filepath.Join(o.dir, pattern))
		for _, p := range paths {
			os.RemoveAll(p)
		}
	}
}

// starter starts processes that the kernel kills when this one dies for any
// reason. PDEATHSIG is bound to the starting thread, not to the process, so
// all start from one thread that never ends.
type starter struct{ requests chan func() }

func newStarter() *starter {
	s := &starter{requests: make(chan func())}
	go func() {
		runtime.LockOSThread()
		for f := range s.requests {
			f()
		}
	}()
	return s
}

func (s *starter) start(cmd *exec.Cmd) error {
	result := make(chan error)
	s.requests <- func() { result <- cmd.Start() }
	return <-result
}

type component struct {
	name string
	cmd  *exec.Cmd
	done chan struct{}
	err  error
}

type instance struct {
	o          options
	starter    *starter
	components []*component
	ended      chan *component
}

func (l *instance) log(name string) string { return l.o.dir + "/logs/" + name + ".log" }

func (l *instance) run(args ...string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	log, err := os.Create(l.log(args[0]))
	if err != nil {
		return err
	}
	defer log.Close()
	c := &component{name: args[0], cmd: exec.Command(self, args...), done: make(chan struct{})}
	c.cmd.Stdout, c.cmd.Stderr = log, log
	c.cmd.Env = append(os.Environ(), Marker+"="+l.o.dir)
	// In a separate group: otherwise an interrupt from the terminal would
	// end it before its clients.
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := l.starter.start(c.cmd); err != nil {
		return err
	}
	if l.o.verbose {
		fmt.Fprintf(os.Stderr, "light: %s is process %d\n", c.name, c.cmd.Process.Pid)
	}
	l.components = append(l.components, c)
	go func() {
		c.err = c.cmd.Wait()
		close(c.done)
		l.ended <- c
	}()
	return nil
}

func (l *instance) up(ctx context.Context) error {
	l.ended = make(chan *component, 3)
	dir := l.o.dir
	ports, err := freePorts(3)
	if err != nil {
		return err
	}
	etcd := fmt.Sprintf("http://127.0.0.1:%d", ports[0])
	peer := fmt.Sprintf("http://127.0.0.1:%d", ports[1])
	server := fmt.Sprintf("https://127.0.0.1:%d", ports[2])
	if err := l.run(base.EtcdArgs(dir+"/etcd", etcd, peer, l.o.fsync)...); err != nil {
		return err
	}

	pki := dir + "/pki"
	if err := os.MkdirAll(pki, 0o700); err != nil {
		return err
	}
	ca, err := base.NewCA()
	if err != nil {
		return err
	}
	if err := os.WriteFile(pki+"/ca.crt", ca.PEM, 0o644); err != nil {
		return err
	}
	if err := ca.Issue(pki, "apiserver", pkix.Name{CommonName: "kube-apiserver"},
		[]string{"localhost", "kubernetes.default.svc"}, []string{"127.0.0.1", "10.96.0.1"}); err != nil {
		return err
	}
	if err := base.WriteServiceAccountKeys(pki); err != nil {
		return err
	}
	masters := []string{"system:masters"}
	admin := base.User{Name: "admin", Token: base.NewToken(), Groups: masters}
	// The launcher's own requests must not look like the administrator's.
	launcher := base.User{Name: "launcher", Token: base.NewToken(), Groups: masters}
	manager := base.User{Name: "system:kube-controller-manager", Token: base.NewToken()}
	// Separate users, so that the audit log distinguishes them.
	users := append([]base.User{
		{Name: "bench", Token: base.NewToken(), Groups: masters},
		{Name: "driver", Token: base.NewToken(), Groups: masters},
	}, l.o.users...)
	if err := base.WriteTokenFile(pki+"/tokens.csv", append([]base.User{admin, launcher, manager}, users...)); err != nil {
		return err
	}
	for _, u := range append([]base.User{admin}, users...) {
		if err := base.WriteFile(dir+"/token-"+u.FileName(), []byte(u.Token+"\n"), 0o600); err != nil {
			return err
		}
		if u.Name == admin.Name {
			continue // its kubeconfig comes last, when all is ready
		}
		if err := base.WriteFile(dir+"/kubeconfig-"+u.FileName(), base.Kubeconfig(server, ca.PEM, u), 0o600); err != nil {
			return err
		}
	}

	args := append(base.APIServerArgs(pki, etcd),
		fmt.Sprintf("--secure-port=%d", ports[2]),
		"--bind-address=127.0.0.1",
		"--advertise-address=127.0.0.1",
		"--endpoint-reconciler-type=none",
		"--authorization-mode=RBAC",
		"--cert-dir="+dir+"/certificates",
	)
	if !l.o.controllerManager {
		// Nobody creates the ServiceAccounts that it requires.
		args = append(args, "--disable-admission-plugins=ServiceAccount")
	}
	if l.o.audit {
		if err := os.WriteFile(pki+"/audit-policy.json", []byte(base.AuditPolicy), 0o644); err != nil {
			return err
		}
		os.Remove(dir + "/audit.log")
		args = append(args, base.AuditArgs(pki+"/audit-policy.json", dir+"/audit.log")...)
	}
	// An API server that finds no etcd tries again a second later.
	if err := l.until(ctx, "etcd to be ready", func() bool {
		return base.EtcdReady(etcd)
	}); err != nil {
		return err
	}
	if err := l.run(args...); err != nil {
		return err
	}

	api := base.NewAPI(server, ca.PEM, launcher.Token)
	defer api.Close()
	if err := l.until(ctx, "kube-apiserver to be ready", func() bool {
		return api.Exists(ctx, "/readyz")
	}); err != nil {
		return err
	}
	want := "/api/v1/namespaces/default"
	if l.o.controllerManager {
		if err := base.WriteFile(pki+"/controller-manager.kubeconfig", base.Kubeconfig(server, ca.PEM, manager), 0o600); err != nil {
			return err
		}
		// It has no clients, so it needs no port. Without a network, nobody
		// needs the addresses of pods; writing them took a fifth of all requests.
		args := append(base.ControllerManagerArgs(pki, pki+"/controller-manager.kubeconfig"), "--secure-port=0",
			"--controllers=*,-endpoints-controller,-endpointslice-controller,-endpointslice-mirroring-controller")
		if err := l.run(append(args, l.o.managerArgs...)...); err != nil {
			return err
		}
		want += "/serviceaccounts/default"
	}
	if err := l.until(ctx, want+" to exist", func() bool {
		return api.Exists(ctx, want)
	}); err != nil {
		return err
	}
	return base.WriteFile(dir+"/kubeconfig", base.Kubeconfig(server, ca.PEM, admin), 0o600)
}

func (l *instance) until(ctx context.Context, what string, ok func() bool) error {
	deadline := time.After(60 * time.Second)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case c := <-l.ended:
			return fmt.Errorf("%s ended (%v) while waiting for %s; its log ends:\n%s", c.name, c.err, what, base.Tail(l.log(c.name), 15))
		case <-ctx.Done():
			return errors.New("told to end")
		case <-deadline:
			return fmt.Errorf("waited 60 s in vain for %s; see %s/logs", what, l.o.dir)
		case <-tick.C:
		}
	}
	return nil
}

// wait returns nil on termination, and an error when a component ends.
func (l *instance) wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case c := <-l.ended:
		return fmt.Errorf("%s ended (%v); its log ends:\n%s", c.name, c.err, base.Tail(l.log(c.name), 15))
	}
}

// down ends the components in the order of their dependencies.
func (l *instance) down() {
	for i := len(l.components) - 1; i >= 0; i-- {
		c := l.components[i]
		grace := time.Second
		if c.name == "kube-apiserver" {
			// It would wait for long watches of clients to end.
			grace = 300 * time.Millisecond
		}
		_ = c.cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-c.done:
		case <-time.After(grace):
			_ = c.cmd.Process.Kill()
			<-c.done
		}
	}
}

func (l *instance) portTaken() bool {
	for _, c := range l.components {
		if strings.Contains(base.Tail(l.log(c.name), 50), "address already in use") {
			return true
		}
	}
	return false
}

// freePorts finds ports of 127.0.0.1 that nobody listens on.
func freePorts(n int) ([]int, error) {
	var ports []int
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		// Open until all are found, or one would be found twice.
		defer l.Close()
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}
