package cluster

import (
	"context"
	"crypto/sha256"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"trainyard.dev/node/internal/base"
)

// parts lists the components of a whole node.
var parts = []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "containerd", "kubelet", "kube-proxy", "coredns"}

type upOptions struct {
	name, state, cache, key, kubeconfig string
	audit                               bool
}

// sayer prints one line per step, with the seconds since the start.
func sayer() func(string, ...any) {
	start := time.Now()
	return func(format string, args ...any) {
		fmt.Printf("[%5.1fs] %s\n", time.Since(start).Seconds(), fmt.Sprintf(format, args...))
	}
}

func up(ctx context.Context, o upOptions) error {
	say := sayer()
	if !validName.MatchString(o.name) {
		return fmt.Errorf("--name %q: a name is lower-case letters, digits and hyphens", o.name)
	}
	if o.state == "" || o.kubeconfig == "" {
		return errors.New("--state DIR and --kubeconfig PATH are needed")
	}
	if err := checkHost(); err != nil {
		return err
	}
	for _, p := range []*string{&o.state, &o.cache, &o.kubeconfig} {
		abs, err := filepath.Abs(*p)
		if err != nil {
			return err
		}
		if strings.ContainsAny(abs, ",:\\\n") {
			return fmt.Errorf("%q: a path with a comma, colon or backslash cannot be mounted", abs)
		}
		*p = abs
	}
	unlock, err := lockName(o.name, say)
	if err != nil {
		return err
	}
	defer unlock()

	if old, err := load(registryPath(o.name)); err == nil && old.State != o.state {
		return fmt.Errorf("the cluster %s is in another state directory; end it first with\n    trainyard-node cluster down --name %[1]s --state %s", o.name, old.State)
	}
	old, err := load(filepath.Join(o.state, configFile))
	switch {
	case err == nil && old.Name != o.name:
		return fmt.Errorf("%s is the state directory of the cluster %s", o.state, old.Name)
	case err == nil && old.Ready:
		problem := health(ctx, old)
		// A component that was just killed restarts within seconds.
		for i := 0; problem != nil && i < 20 && ctx.Err() == nil; i++ {
			if _, alive := initOf(o.name); !alive {
				break
			}
			if i == 0 {
				say("%s is up, but %v; waiting up to 10 s", o.name, problem)
			}
			time.Sleep(500 * time.Millisecond)
			problem = health(ctx, old)
		}
		if problem == nil {
			if old.Key != o.key || old.Audit != o.audit {
				return fmt.Errorf("the cluster %s is up with --key %q and --audit=%t; end it first to change that", o.name, old.Key, old.Audit)
			}
			if err := link(o.kubeconfig, old); err != nil {
				return err
			}
			say("cluster %s is already up and healthy", o.name)
			return nil
		}
		say("cluster %s is broken (%v); starting anew", o.name, problem)
	case len(processes(o.name)) > 0 || err == nil:
		say("cluster %s is half there; cleaning up first", o.name)
	}
	if err := remove(&config{Name: o.name, State: o.state}); err != nil {
		return err
	}
	return startNode(ctx, o, say)
}

// checkHost reports missing prerequisites and how to install them.
func checkHost() error {
	if os.Geteuid() != 0 {
		return errors.New("a node needs root; become it with\n    sudo -s")
	}
	missing := []string{}
	for tool, pkg := range map[string]string{
		"/usr/bin/containerd": "containerd", "/usr/bin/ctr": "containerd", "runc": "runc",
		cniBin + "/ptp": "containernetworking-plugins", cniBin + "/portmap": "containernetworking-plugins",
		"ip": "iproute2", "iptables": "iptables", "nft": "nftables", "nsenter": "util-linux", "cp": "coreutils",
	} {
		if _, err := exec.LookPath(tool); err != nil && !slices.Contains(missing, pkg) {
			missing = append(missing, pkg)
		}
	}
	slices.Sort(missing)
	if len(missing) > 0 {
		return fmt.Errorf("packages are missing; install them with\n    apt-get update && apt-get install -y --no-install-recommends %s", strings.Join(missing, " "))
	}
	return nil
}

func startNode(ctx context.Context, o upOptions, say func(string, ...any)) (err error) {
	key := o.key
	if key == "" {
		// Nothing but the sandbox's image.
		if key, err = pauseKey(); err != nil {
			return err
		}
		if err := seed(ctx, o.cache, key, nil, say); err != nil {
			return err
		}
	}
	content := filepath.Join(o.cache, "containerd-"+key)
	if !exists(content) {
		return fmt.Errorf("%s does not exist; make it with\n    trainyard-node cluster seed --cache %s --key %s --image FILE...", content, o.cache, key)
	}
	program, err := os.Executable()
	if err != nil {
		return err
	}
	c := &config{
		Name: o.name, State: o.state, Cache: o.cache, Key: o.key, Kubeconfig: o.kubeconfig,
		Program: program, Containerd: filepath.Join(o.state, "containerd"), Audit: o.audit,
	}
	if err := os.MkdirAll(filepath.Join(c.State, "logs"), 0o755); err != nil {
		return err
	}
	if err := checkFileSystem(c.State); err != nil {
		return err
	}
	network, err := chooseNetwork(c)
	if err != nil {
		return err
	}
	if err := c.save(); err != nil {
		return err
	}
	launcher, ca, err := writeKubernetes(c)
	if err != nil {
		return err
	}

	say("cluster %s: starting, in namespaces of its own; state and logs are in %s", c.Name, c.State)
	if err := makeCgroups(c.cgroup()); err != nil {
		return err
	}
	n, err := spawn(c, false)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			// The logs stay, to be read.
			n.kill()
			_ = killNode(c.Name)
			_ = runTool("ip", "link", "del", c.Device)
			_ = removeCgroups(c.Name)
		}
	}()
	if err := network(n.pid()); err != nil {
		return err
	}
	if err := n.order("network"); err != nil {
		return n.explain(err)
	}
	say("network: %s, the host is %s, the node %s", c.Device, c.HostIP, c.NodeIP)

	copied := make(chan error, 1)
	go func() {
		err := copyContent(content, c.Containerd)
		if err == nil {
			err = n.order("images")
		}
		copied <- err
	}()

	api := base.NewAPI(c.server(), ca, launcher.Token)
	defer api.Close()
	wait := func(what string, ok func() bool) error { return n.wait(ctx, say, what, ok) }
	if err := wait("kube-apiserver to be ready", func() bool { return api.Exists(ctx, "/readyz") }); err != nil {
		return err
	}
	if err := createObjects(ctx, api, c); err != nil {
		return err
	}
	say("images: waiting for containerd's content")
	if err := <-copied; err != nil {
		return n.explain(err)
	}
	if err := wait("the node to be Ready", func() bool { return nodeReady(ctx, api, c) == nil }); err != nil {
		return err
	}
	if err := wait("the ServiceAccount of the namespace default", func() bool {
		return api.Exists(ctx, "/api/v1/namespaces/default/serviceaccounts/default")
	}); err != nil {
		return err
	}
	if err := wait("kube-proxy", func() bool { return proxyReady(c) == nil }); err != nil {
		return err
	}
	if err := wait("CoreDNS to know the API server", func() bool { return dnsReady(ctx, c) == nil }); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(c.Kubeconfig), 0o755); err != nil {
		return err
	}
	c.Ready = true
	if err := c.save(); err != nil {
		return err
	}
	if err := link(c.Kubeconfig, c); err != nil {
		return err
	}
	say("cluster %s is ready: kubectl --kubeconfig %s", c.Name, c.Kubeconfig)
	return nil
}

// link links the kubeconfig to the requested path, and kubectl next to it.
func link(path string, c *config) error {
	data, err := os.ReadFile(filepath.Join(c.State, "kubernetes/admin.kubeconfig"))
	if err != nil {
		return err
	}
	if path != c.Kubeconfig {
		removeKubeconfig(c)
		c.Kubeconfig = path
		if err := c.save(); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := base.WriteFile(path, data, 0o600); err != nil {
		return err
	}
	kubectl := filepath.Join(filepath.Dir(path), "kubectl")
	if _, err := os.Lstat(kubectl); err == nil && !ourKubectl(kubectl) {
		return nil
	}
	tmp := fmt.Sprintf("%s.%d.tmp", kubectl, os.Getpid())
	if err := os.Symlink(c.Program, tmp); err != nil {
		return err
	}
	return os.Rename(tmp, kubectl)
}

func ourKubectl(path string) bool {
	target, err := os.Readlink(path)
	return err == nil && filepath.Base(target) == "trainyard-node"
}

// checkFileSystem: containers' file systems are overlays of directories in
// the state directory, and an overlay on an overlay cannot be written.
func checkFileSystem(dir string) error {
	var fs syscall.Statfs_t
	if err := syscall.Statfs(dir, &fs); err != nil {
		return err
	}
	if fs.Type == 0x794c7630 {
		return fmt.Errorf("%s is itself on an overlay file system, which containers cannot use; mount another one there, for example with\n    mount -t tmpfs -o size=8g tmpfs %s", dir, filepath.Dir(dir))
	}
	return nil
}

// chooseNetwork finds a free pair of addresses in the range that is reserved
// for tests, and returns a function that creates the link to the node.
// Creating the host's device reserves the pair: only one of two commands can.
func chooseNetwork(c *config) (func(pid int) error, error) {
	used, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	h := fnv.New32a()
	h.Write([]byte(c.Name))
	next := h.Sum32()
	pick := func() error {
		for range 1 << 15 {
			id := next % (1 << 15) // as many as /30 networks in 198.18.0.0/15
			next++
			c.Device = fmt.Sprintf("ty-%04x", id)
			address := func(host uint32) string {
				a := 198<<24 | 18<<16 | id<<2 | host
				return net.IPv4(byte(a>>24), byte(a>>16), byte(a>>8), byte(a)).String()
			}
			c.HostIP, c.NodeIP = address(1), address(2)
			if _, err := net.InterfaceByName(c.Device); err == nil {
				continue
			}
			if !slices.ContainsFunc(used, func(a net.Addr) bool {
				n, ok := a.(*net.IPNet)
				return ok && n.Contains(net.ParseIP(c.NodeIP)) && n.IP.To4() != nil
			}) {
				return nil
			}
		}
		return errors.New("no network in 198.18.0.0/15 is free")
	}
	if err := pick(); err != nil {
		return nil, err
	}
	return func(pid int) error {
		if err := runTool("ip", "link", "add", c.Device, "type", "veth", "peer", "name", "eth0", "netns", strconv.Itoa(pid)); err != nil {
			return err
		}
		// Names its node, for "leftovers" and for people.
		if err := runTool("ip", "link", "set", c.Device, "alias", "trainyard:"+c.Name); err != nil {
			return err
		}
		if err := runTool("ip", "addr", "add", c.HostIP+"/30", "dev", c.Device); err != nil {
			return err
		}
		return runTool("ip", "link", "set", c.Device, "up")
	}, nil
}

// writeKubernetes writes the directory with all certificates and settings.
func writeKubernetes(c *config) (launcher base.User, caPEM []byte, err error) {
	dir := filepath.Join(c.State, "kubernetes")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return launcher, nil, err
	}
	ca, err := base.NewCA()
	if err != nil {
		return launcher, nil, err
	}
	masters := []string{"system:masters"}
	users := map[string]base.User{
		"admin":              {Name: "admin", Groups: masters},
		"launcher":           {Name: "launcher", Groups: masters},
		"controller-manager": {Name: "system:kube-controller-manager"},
		"scheduler":          {Name: "system:kube-scheduler"},
		"kubelet":            {Name: "system:node:" + c.Name, Groups: []string{"system:nodes"}},
		"proxy":              {Name: "system:kube-proxy"},
		"coredns":            {Name: "system:coredns"},
	}
	var list []base.User
	do := func(e error) {
		if err == nil {
			err = e
		}
	}
	write := func(name string, data []byte) { do(os.WriteFile(filepath.Join(dir, name), data, 0o600)) }
	for file, u := range users {
		if u.Token == "" {
			u.Token = base.NewToken()
		}
		list = append(list, u)
		if file == "launcher" {
			// The launcher's own requests must not look like the
			// administrator's in the audit log.
			launcher = u
			write("launcher.token", []byte(u.Token))
		}
		write(file+".kubeconfig", base.Kubeconfig(c.server(), ca.PEM, u))
	}
	do(base.WriteTokenFile(filepath.Join(dir, "tokens.csv"), list))
	write("ca.crt", ca.PEM)
	do(base.WriteServiceAccountKeys(dir))
	do(ca.Issue(dir, "apiserver", pkix.Name{CommonName: "kube-apiserver"},
		[]string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"},
		[]string{"127.0.0.1", "10.96.0.1", c.NodeIP}))
	do(ca.Issue(dir, "kubelet-client", pkix.Name{CommonName: "kube-apiserver-kubelet-client", Organization: masters}, nil, nil))
	do(ca.Issue(dir, "kubelet", pkix.Name{CommonName: "system:node:" + c.Name}, []string{c.Name}, []string{c.NodeIP, "127.0.0.1"}))
	write("audit-policy.json", []byte(base.AuditPolicy))
	write("Corefile", fmt.Appendf(nil, corefile, c.NodeIP, kubernetesDir))
	for name, settings := range map[string]any{"kubelet.json": kubeletConfig(c), "proxy.json": proxyConfig(c), "scheduler.json": schedulerConfig()} {
		data, e := json.MarshalIndent(settings, "", "  ")
		do(e)
		write(name, data)
	}
	return launcher, ca.PEM, err
}

// corefile: a name outside the cluster gets NXDOMAIN at once; without the
// template it would be refused, and resolvers would retry for seconds. No TTL
// and no cache, so that pods see a peer's name as soon as it exists.
const corefile = `.:53 {
    bind %s
    errors
    ready 127.0.0.1:8181
    kubernetes cluster.local in-addr.arpa {
        kubeconfig %s/coredns.kubeconfig trainyard
        ttl 0
    }
    template ANY ANY . {
        rcode NXDOMAIN
    }
    loadbalance
}
`

type object = map[string]any

func kubeletConfig(c *config) object {
	return object{
		"apiVersion":               "kubelet.config.k8s.io/v1beta1",
		"kind":                     "KubeletConfiguration",
		"address":                  "0.0.0.0",
		"authentication":           object{"anonymous": object{"enabled": false}, "webhook": object{"enabled": true}, "x509": object{"clientCAFile": kubernetesDir + "/ca.crt"}},
		"authorization":            object{"mode": "Webhook"},
		"tlsCertFile":              kubernetesDir + "/kubelet.crt",
		"tlsPrivateKeyFile":        kubernetesDir + "/kubelet.key",
		"containerRuntimeEndpoint": "unix://" + containerdRun,
		"clusterDomain":            "cluster.local",
		"clusterDNS":               []string{dnsService},
		"resolvConf":               "/etc/resolv.conf",
		"cgroupDriver":             "cgroupfs",
		"cgroupRoot":               "/" + c.cgroup(),
		"failCgroupV1":             false,
		"failSwapOn":               false,
		"evictionHard":             object{"memory.available": "100Mi", "nodefs.available": "0%", "nodefs.inodesFree": "0%", "imagefs.available": "0%", "imagefs.inodesFree": "0%"},
		// Removed images could not be pulled again.
		"imageGCHighThresholdPercent": 100,
		"imageGCLowThresholdPercent":  99,
		"maxPods":                     250,
		"serializeImagePulls":         false,
		// Tests would wait for the default of a minute.
		"syncFrequency":                             "1s",
		"nodeStatusUpdateFrequency":                 "1s",
		"configMapAndSecretChangeDetectionStrategy": "Watch",
		"crashLoopBackOff":                          object{"maxContainerRestartPeriod": "5s"},
		"kubeAPIQPS":                                500,
		"kubeAPIBurst":                              1000,
		"eventRecordQPS":                            0,
	}
}

func proxyConfig(c *config) object {
	return object{
		"apiVersion":         "kubeproxy.config.k8s.io/v1alpha1",
		"kind":               "KubeProxyConfiguration",
		"mode":               "nftables",
		"clusterCIDR":        podCIDR,
		"clientConnection":   object{"kubeconfig": kubernetesDir + "/proxy.kubeconfig"},
		"healthzBindAddress": c.NodeIP + ":10256",
		"metricsBindAddress": "127.0.0.1:10249",
		// Settings of the whole machine: left alone.
		"conntrack": object{"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
		"nftables":  object{"minSyncPeriod": "100ms"},
	}
}

func schedulerConfig() object {
	return object{
		"apiVersion":       "kubescheduler.config.k8s.io/v1",
		"kind":             "KubeSchedulerConfiguration",
		"clientConnection": object{"kubeconfig": kubernetesDir + "/scheduler.kubeconfig", "qps": 500, "burst": 1000},
		"leaderElection":   object{"leaderElect": false},
	}
}

const corednsBinding = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/system:coredns"

// createObjects makes CoreDNS, which is a process of the node, the cluster's
// DNS.
func createObjects(ctx context.Context, api *base.API, c *config) error {
	meta := func(name string) object { return object{"name": name} }
	inSystem := func(name string) object { return object{"name": name, "namespace": "kube-system"} }
	port := func(name, protocol string) object {
		return object{"name": name, "protocol": protocol, "port": 53}
	}
	ports := []object{port("dns", "UDP"), port("dns-tcp", "TCP")}
	slice := inSystem("kube-dns-node")
	slice["labels"] = object{"kubernetes.io/service-name": "kube-dns", "endpointslice.kubernetes.io/managed-by": "trainyard-node"}
	service := inSystem("kube-dns")
	service["labels"] = object{"k8s-app": "kube-dns", "kubernetes.io/name": "CoreDNS"}
	read := []string{"list", "watch"}
	for _, o := range []struct {
		path string
		body object
	}{
		{"/api/v1/namespaces/kube-system/services", object{
			"metadata": service,
			"spec":     object{"clusterIP": dnsService, "ports": ports},
		}},
		{"/apis/discovery.k8s.io/v1/namespaces/kube-system/endpointslices", object{
			"metadata":    slice,
			"addressType": "IPv4",
			"endpoints":   []object{{"addresses": []string{c.NodeIP}, "conditions": object{"ready": true}, "nodeName": c.Name}},
			"ports":       ports,
		}},
		{"/apis/rbac.authorization.k8s.io/v1/clusterroles", object{
			"metadata": meta("system:coredns"),
			"rules": []object{
				{"apiGroups": []string{""}, "resources": []string{"services", "pods", "namespaces"}, "verbs": read},
				{"apiGroups": []string{"discovery.k8s.io"}, "resources": []string{"endpointslices"}, "verbs": read},
			},
		}},
		{filepath.Dir(corednsBinding), object{
			"metadata": meta("system:coredns"),
			"roleRef":  object{"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "system:coredns"},
			"subjects": []object{{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "system:coredns"}},
		}},
	} {
		if status, err := api.Do(ctx, http.MethodPost, o.path, o.body, nil); err != nil && status != http.StatusConflict {
			return err
		}
	}
	return nil
}

func nodeReady(ctx context.Context, api *base.API, c *config) error {
	var node struct {
		Status struct {
			Conditions []struct{ Type, Status, Reason, Message string }
		}
	}
	if _, err := api.Do(ctx, http.MethodGet, "/api/v1/nodes/"+c.Name, nil, &node); err != nil {
		return err
	}
	for _, condition := range node.Status.Conditions {
		if condition.Type == "Ready" {
			if condition.Status == "True" {
				return nil
			}
			return fmt.Errorf("the node is not ready: %s: %s", condition.Reason, condition.Message)
		}
	}
	return errors.New("the node has no status yet")
}

func proxyReady(c *config) error {
	client := http.Client{Timeout: time.Second, Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	res, err := client.Get("http://" + c.NodeIP + ":10256/healthz")
	if err != nil {
		return err
	}
	res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("kube-proxy is not healthy: %s", res.Status)
	}
	return nil
}

func dnsReady(ctx context.Context, c *config) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	r := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, c.NodeIP+":53")
	}}
	_, err := r.LookupHost(ctx, "kubernetes.default.svc.cluster.local.")
	return err
}

// health returns nil if all of a node's components run and respond.
func health(ctx context.Context, c *config) error {
	running := map[string]bool{}
	for _, p := range processes(c.Name) {
		running[p.component()] = true
	}
	for _, part := range append([]string{initCommand}, parts...) {
		if !running[part] {
			return fmt.Errorf("%s is not running", part)
		}
	}
	ca, err := os.ReadFile(filepath.Join(c.State, "kubernetes/ca.crt"))
	if err != nil {
		return err
	}
	token, err := os.ReadFile(filepath.Join(c.State, "kubernetes/launcher.token"))
	if err != nil {
		return err
	}
	api := base.NewAPI(c.server(), ca, string(token))
	defer api.Close()
	if _, err := api.Do(ctx, http.MethodGet, "/readyz", nil, &json.RawMessage{}); err != nil {
		var syntax *json.SyntaxError // "ok" is no JSON, and all that is wanted
		if !errors.As(err, &syntax) {
			return err
		}
	}
	if err := nodeReady(ctx, api, c); err != nil {
		return err
	}
	if err := proxyReady(c); err != nil {
		return err
	}
	return dnsReady(ctx, c)
}

// pauseKey names the content with nothing but the sandbox's image.
func pauseKey() (string, error) {
	path, err := pauseProgram()
	if err != nil {
		return "", err
	}
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return "pause-" + hex.EncodeToString(h.Sum(nil))[:12], nil
}

// pauseProgram is built next to this program.
func pauseProgram() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	path := filepath.Join(filepath.Dir(self), "pause")
	if !exists(path) {
		return "", fmt.Errorf("%s is missing; build it with\n    e2e/cluster/build", path)
	}
	return path, nil
}
