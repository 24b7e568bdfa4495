package cluster

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestNetworkIsInTheTestRange(t *testing.T) {
	_, tests, _ := net.ParseCIDR("198.18.0.0/15")
	seen := map[string]bool{}
	for _, name := range []string{"a", "b", "demo", "e2e"} {
		c := &config{Name: name}
		if _, err := chooseNetwork(c); err != nil {
			t.Fatal(err)
		}
		_, pair, _ := net.ParseCIDR(c.HostIP + "/30")
		if !tests.Contains(net.ParseIP(c.HostIP)) || !pair.Contains(net.ParseIP(c.NodeIP)) || c.HostIP == c.NodeIP {
			t.Errorf("%s: %s and %s", name, c.HostIP, c.NodeIP)
		}
		if len(c.Device) > 15 || seen[c.Device] {
			t.Errorf("%s: device %s", name, c.Device)
		}
		seen[c.Device] = true
	}
}

func TestOnlyAStateDirectoryIsRemoved(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "precious")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if removeState(&config{Name: "n", State: dir}) == nil || !exists(file) {
		t.Error("removed a directory without node.json")
	}
	if err := os.WriteFile(filepath.Join(dir, configFile), []byte(`{"name":"other"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if removeState(&config{Name: "n", State: dir}) == nil || !exists(file) {
		t.Error("removed the directory of another node")
	}
	if err := removeState(&config{Name: "other", State: dir}); err != nil || exists(dir) {
		t.Error("did not remove the node's own directory", err)
	}
}

func TestNodeOfCgroup(t *testing.T) {
	for text, want := range map[string]string{
		"0::/trainyard-demo/kubepods/pod1\n":             "demo",
		"4:memory:/user\n3:cpuset:/trainyard-a-b/kube\n": "a-b",
		"0::/user.slice/trainyard-demo\n":                "",
		"":                                               "",
	} {
		path := filepath.Join(t.TempDir(), "cgroup")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := nodeOfCgroup(path); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}

func TestComponentOfCommandLine(t *testing.T) {
	for args, want := range map[string]string{
		"/trainyard/bin/trainyard-node etcd --name=node":           "etcd",
		"/x/trainyard-node cluster node-init /s/node.json":         initCommand,
		"/usr/bin/containerd --config /trainyard/containerd.toml":  "containerd",
		"/usr/bin/containerd-shim-runc-v2 -namespace k8s.io -id 1": "containerd-shim-runc-v2",
	} {
		if got := (process{args: args}).component(); got != want {
			t.Errorf("%s: got %s", args, got)
		}
	}
}

func TestCopyContentSharesNoDatabase(t *testing.T) {
	from, to := t.TempDir(), filepath.Join(t.TempDir(), "to")
	for _, f := range []string{"meta/meta.db", "blobs/sha256/abc", "snapshots/1/fs/app.db"} {
		path := filepath.Join(from, f)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(f), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := copyContent(from, to); err != nil {
		t.Fatal(err)
	}
	for f, shared := range map[string]bool{"meta/meta.db": false, "blobs/sha256/abc": true, "snapshots/1/fs/app.db": true} {
		a, err := os.Stat(filepath.Join(from, f))
		if err != nil {
			t.Fatal(err)
		}
		b, err := os.Stat(filepath.Join(to, f))
		if err != nil {
			t.Fatal(err)
		}
		if os.SameFile(a, b) != shared {
			t.Errorf("%s: same file is %t", f, !shared)
		}
	}
}

func TestContentOfTheSameNameIsSuperseded(t *testing.T) {
	cache := t.TempDir()
	for _, dir := range []string{"containerd-0123", "containerd-4567", "containerd-89ab.tmp", "containerd-pause-0123", "image-4567"} {
		if err := os.MkdirAll(filepath.Join(cache, dir, "blobs"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := removeSuperseded(cache, "0123", t.Logf); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(cache)
	if err != nil {
		t.Fatal(err)
	}
	names := []string{}
	for _, e := range left {
		names = append(names, e.Name())
	}
	if want := []string{"containerd-0123", "containerd-89ab.tmp", "containerd-pause-0123", "image-4567"}; !slices.Equal(names, want) {
		t.Errorf("left: %v", names)
	}
}
