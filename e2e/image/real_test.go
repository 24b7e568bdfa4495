//go:build deep

package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestRealBuild builds for real, into the cache directory that is named by
// TRAINYARD_IMAGE_CACHE: as root, with mmdebstrap and the network.
func TestRealBuild(t *testing.T) {
	cache := os.Getenv("TRAINYARD_IMAGE_CACHE")
	if cache == "" {
		t.Skip("TRAINYARD_IMAGE_CACHE isn't set")
	}
	dir := t.TempDir()
	write(t, dir, "hi.py", "import six; print(six.__name__)\n")
	suite, err := hostSuite()
	must(t, err)
	ps, err := plans([]Recipe{Recipes[0], {
		Name: "trainyard/test:1", From: Recipes[0].Name, Apt: []string{"hello"}, Pip: []string{"six==1.17.0"}, Remove: []string{"/usr/local/*/WHEEL"},
		Files: []File{{"hi.py", "/hi.py", 0o644}},
	}}, suite, dir)
	must(t, err)

	// The test binary isn't the program that runs once more inside.
	program := dir + "/trainyard-image"
	if out, err := exec.Command("go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	self = program
	defer func() { self = "/proc/self/exe" }()

	ctx := context.Background()
	b := &Builder{Cache: cache, Log: os.Stderr}
	unlock, err := b.lock(ctx)
	must(t, err)
	defer unlock()
	must(t, b.clean())
	must(t, b.Layers(ctx, ps))
	top := ps[1].Top
	for l, want := range map[*Layer][]string{
		top.Parent:        {"usr/local/lib/python3", "/six.py", "/__pycache__/six.cpython-"},
		top.Parent.Parent: {"usr/bin/hello", "var/lib/dpkg/info/hello.list"},
	} {
		blob, ok := b.blob(l)
		if !ok {
			t.Fatal("a layer is missing")
		}
		data, err := os.ReadFile(blob.Path)
		must(t, err)
		names := ""
		for _, line := range listing(t, data) {
			line, _, _ = strings.Cut(line, " = ")
			names += line + "\n"
		}
		for _, w := range want {
			if !strings.Contains(names, w) {
				t.Errorf("the %s layer has no %s", l.Kind, w)
			}
		}
		for _, no := range []string{"/WHEEL", "/pip/", "sources.list.d/", "resolv.conf", "policy-rc.d", " tmp/", " run/", "apt/archives"} {
			if strings.Contains(names, no) {
				t.Errorf("the %s layer has %s:\n%s", l.Kind, no, names)
			}
		}
		// The same again must give the same.
		must(t, os.Remove(b.layerPath(l, ".json")))
		must(t, b.Layers(ctx, ps))
		again, _ := b.blob(l)
		equal(t, again.DiffID, blob.DiffID)
	}

	work, remove, err := b.tempDir()
	must(t, err)
	defer remove()
	j := &job{Op: "run", Work: work, Command: []string{"sh", "-c", "hello && python3 /hi.py && hostname"}, Host: "image", Env: ps[1].Env}
	j.Lower, err = b.unpack(work, top.Stack())
	must(t, err)
	var out, errs bytes.Buffer
	if err := inside(ctx, j, nil, &out, &errs); err != nil {
		t.Fatal(err, errs.String())
	}
	equal(t, out.String(), "Hello, world!\nsix\nimage\n")

	for _, l := range []*Layer{top, top.Parent, top.Parent.Parent, pipToolsLayer(top.Parent)} {
		must(t, os.Remove(b.layerPath(l, ".tar")))
		must(t, os.Remove(b.layerPath(l, ".json")))
	}
}
