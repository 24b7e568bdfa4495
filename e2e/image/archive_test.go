package main

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// entries reads all of a tar.
func entries(t *testing.T, path string) map[string][]byte {
	t.Helper()
	f, err := os.Open(path)
	must(t, err)
	defer f.Close()
	out := map[string][]byte{}
	tr := tar.NewReader(f)
	for {
		h, err := tr.Next()
		if err == io.EOF {
			return out
		}
		must(t, err)
		if _, ok := out[h.Name]; ok {
			t.Errorf("%s is there twice", h.Name)
		}
		out[h.Name], err = io.ReadAll(tr)
		must(t, err)
	}
}

func sum(data []byte) string {
	s := sha256.Sum256(data)
	return hex.EncodeToString(s[:])
}

// checkArchive checks that names, digests and bytes agree, and returns the
// configuration of each image by its reference.
func checkArchive(t *testing.T, path string) map[string]ociConfig {
	t.Helper()
	files := entries(t, path)
	var ms []archiveManifest
	must(t, json.Unmarshal(files["manifest.json"], &ms))
	out := map[string]ociConfig{}
	for _, m := range ms {
		var c ociConfig
		must(t, json.Unmarshal(files[m.Config], &c))
		if m.Config != blobs+sum(files[m.Config]) {
			t.Errorf("config %s has the digest %s", m.Config, sum(files[m.Config]))
		}
		if c.OS != "linux" || c.Architecture != runtime.GOARCH || c.RootFS.Type != "layers" {
			t.Errorf("config of %v: %+v", m.RepoTags, c)
		}
		if len(c.RootFS.DiffIDs) != len(m.Layers) || len(c.History) != len(m.Layers) {
			t.Fatalf("%v: %d diff ids, %d steps, %d layers", m.RepoTags, len(c.RootFS.DiffIDs), len(c.History), len(m.Layers))
		}
		for i, l := range m.Layers {
			if data, ok := files[l]; !ok || c.RootFS.DiffIDs[i] != "sha256:"+sum(data) {
				t.Errorf("%v: layer %s isn't %s", m.RepoTags, l, c.RootFS.DiffIDs[i])
			}
		}
		if len(m.RepoTags) != 1 {
			t.Fatalf("tags: %v", m.RepoTags)
		}
		out[m.RepoTags[0]] = c
	}
	return out
}

func staticProgram(t *testing.T, name string) string {
	t.Helper()
	return staticProgramFor(t, name, runtime.GOARCH)
}

func staticProgramFor(t *testing.T, name, arch string) string {
	t.Helper()
	dir := t.TempDir()
	write(t, dir, "main.go", "package main\nfunc main() {}\n")
	path := filepath.Join(dir, name)
	cmd := exec.Command("go", "build", "-o", path, filepath.Join(dir, "main.go"))
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOWORK=off", "GOARCH="+arch)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return path
}

func TestOperatorImage(t *testing.T) {
	program := staticProgram(t, "some-operator")
	dir := t.TempDir()
	extra := write(t, dir, "extra", "hi")
	make := func(out string) []byte {
		must(t, run(context.Background(), []string{"operator", "--binary", program, "--name", "trainyard/some-operator:1", "--out", out, "--file", extra + "=/etc/extra"}))
		data, err := os.ReadFile(out)
		must(t, err)
		return data
	}
	out := filepath.Join(dir, "a.tar")
	if !bytes.Equal(make(out), make(filepath.Join(dir, "b.tar"))) {
		t.Error("the same program gives two archives")
	}
	c, ok := checkArchive(t, out)["trainyard/some-operator:1"]
	if !ok {
		t.Fatal("no such image")
	}
	equal(t, c.Config.Entrypoint, []string{"/some-operator"})
	equal(t, c.Config.User, "65532:65532")
	equal(t, len(c.RootFS.DiffIDs), 1)
	layer := entries(t, out)[blobs+strings.TrimPrefix(c.RootFS.DiffIDs[0], "sha256:")]
	var names []string
	for _, line := range listing(t, layer) {
		names = append(names, strings.Fields(line)[3])
	}
	equal(t, names, []string{"etc/", "etc/extra", "some-operator"})
	left, _ := filepath.Glob(filepath.Join(dir, ".new-*"))
	equal(t, len(left), 0)
}

func TestAnIndexHasAnImageForEachArchitecture(t *testing.T) {
	dir := t.TempDir()
	const ref = "trainyard/some-operator:1"
	var archives []string
	for _, arch := range []string{"amd64", "arm64"} {
		program, out := staticProgramFor(t, "some-operator", arch), filepath.Join(dir, arch+".tar")
		must(t, run(context.Background(), []string{"operator", "--binary", program, "--name", ref, "--out", out}))
		archives = append(archives, out)
	}
	out := filepath.Join(dir, "all.tar")
	index := append([]string{"index", "--name", ref, "--out", out}, archives...)
	must(t, run(context.Background(), index))

	files := entries(t, out)
	read := func(name string, into any) {
		t.Helper()
		must(t, json.Unmarshal(files[name], into))
	}
	blob := func(d ociDescriptor, into any) {
		t.Helper()
		name := blobs + strings.TrimPrefix(d.Digest, "sha256:")
		equal(t, d.Digest, "sha256:"+sum(files[name]))
		read(name, into)
	}
	var top, all ociManifest
	read("index.json", &top)
	equal(t, len(top.Manifests), 1)
	equal(t, top.Manifests[0].Annotations, naming(ref))
	blob(top.Manifests[0], &all)
	var found []string
	for _, d := range all.Manifests {
		var m ociManifest
		var c ociConfig
		blob(d, &m)
		blob(*m.Config, &c)
		equal(t, c.Architecture, d.Platform.Architecture)
		for _, l := range m.Layers {
			data, ok := files[blobs+strings.TrimPrefix(l.Digest, "sha256:")]
			if !ok || l.Digest != "sha256:"+sum(data) {
				t.Errorf("layer %s of %s", l.Digest, c.Architecture)
			}
		}
		found = append(found, c.Architecture)
	}
	equal(t, found, []string{"amd64", "arm64"})

	index[len(index)-1] = archives[0]
	if err := run(context.Background(), index); err == nil || !strings.Contains(err.Error(), "both for amd64") {
		t.Error(err)
	}
}

func TestOperatorMustBeStatic(t *testing.T) {
	sh, err := filepath.EvalSymlinks("/bin/sh")
	must(t, err)
	if _, err := checkStatic(sh); err == nil || !strings.Contains(err.Error(), "statically") {
		t.Error(err)
	}
	if _, err := checkStatic(write(t, t.TempDir(), "script", "#!/bin/sh\n")); err == nil {
		t.Error("a script was taken")
	}
}

func TestLayoutHasEachLayerOnceOrNotAtAll(t *testing.T) {
	dir := t.TempDir()
	blob := func(name string) Blob {
		var b bytes.Buffer
		must(t, packFiles(&b, []tarFile{{"/" + name, 0o644, []byte(name)}}))
		return Blob{write(t, dir, name, b.String()), "sha256:" + sum(b.Bytes()), int64(b.Len())}
	}
	base, more := blob("base"), blob("more")
	images := []Image{
		{Ref: "a/base:1", Layers: []Blob{base}, CreatedBy: []string{"x"}},
		{Ref: "more:1", Layers: []Blob{base, more}, CreatedBy: []string{"x", "y"}},
	}
	for _, have := range []map[string]bool{nil, {base.DiffID: true}} {
		out := filepath.Join(dir, "out.tar")
		must(t, atomically(out, func(w io.Writer) error { return writeLayout(w, images, have) }))
		files := entries(t, out) // fails on a name that is there twice
		var index ociManifest
		must(t, json.Unmarshal(files["index.json"], &index))
		delete(files, "index.json")
		delete(files, "oci-layout")
		if _, ok := files["manifest.json"]; ok != (have == nil) {
			t.Errorf("manifest.json: %v, although have is %v", ok, have)
		}
		delete(files, "manifest.json")
		for name, data := range files {
			if name != "blobs/sha256/"+sum(data) {
				t.Errorf("%s has the digest %s", name, sum(data))
			}
		}
		want := 2 + 2*2 // layers, configurations and manifests
		if _, ok := files["blobs/sha256/"+strings.TrimPrefix(base.DiffID, "sha256:")]; ok == have[base.DiffID] {
			t.Errorf("base layer: %v, although have is %v", ok, have)
		}
		equal(t, len(files), want-len(have))
		for i, name := range []string{"docker.io/a/base:1", "docker.io/library/more:1"} {
			d := index.Manifests[i]
			equal(t, d.Annotations["io.containerd.image.name"], name)
			equal(t, d.Annotations["org.opencontainers.image.ref.name"], "1")
			equal(t, *d.Platform, ociPlatform{runtime.GOARCH, "linux"})
			data := files["blobs/sha256/"+strings.TrimPrefix(d.Digest, "sha256:")]
			equal(t, int64(len(data)), d.Size)
			var m ociManifest
			must(t, json.Unmarshal(data, &m))
			var c ociConfig
			must(t, json.Unmarshal(files["blobs/sha256/"+strings.TrimPrefix(m.Config.Digest, "sha256:")], &c))
			equal(t, len(m.Layers), i+1)
			for k, l := range m.Layers {
				equal(t, l.Digest, c.RootFS.DiffIDs[k])
			}
		}
	}
}

func TestPack(t *testing.T) {
	dir := t.TempDir()
	var b bytes.Buffer
	must(t, packFiles(&b, []tarFile{{"/a", 0o644, []byte("a")}}))
	plain := write(t, dir, "plain.tar", b.String())
	if out, err := exec.Command("gzip", "-k", plain).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	out := filepath.Join(dir, "out.tar")
	must(t, run(context.Background(), []string{"pack", "--rootfs-tar", plain, "--rootfs-tar", plain + ".gz", "--name", "x:1", "--out", out, "--cmd", "sleep", "--cmd", "9"}))
	c := checkArchive(t, out)["x:1"]
	equal(t, c.Config.Cmd, []string{"sleep", "9"})
	equal(t, c.RootFS.DiffIDs, []string{"sha256:" + sum(b.Bytes()), "sha256:" + sum(b.Bytes())})
}

func TestReferences(t *testing.T) {
	for _, ok := range []string{"a:1", "trainyard/pytorch-cpu:1", "registry.example:5000/a/b:v1"} {
		if err := checkRef(ok); err != nil {
			t.Error(err)
		}
	}
	for _, bad := range []string{"", "a", "a/b", "A/b:1", "a//b:1", "a:1/", "a b:1", "a:"} {
		if checkRef(bad) == nil {
			t.Errorf("%q was taken", bad)
		}
	}
	for _, r := range Recipes {
		must(t, checkRef(r.Name))
		if hasHost(r.Name) {
			t.Errorf("%s names a host", r.Name)
		}
	}
	if !hasHost("localhost/a:1") || !hasHost("r.example/a:1") || hasHost("a.b:1") {
		t.Error("hosts aren't told from names")
	}
}
