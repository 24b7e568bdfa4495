package main

import (
	"context"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestKeysFollowTheRecipes(t *testing.T) {
	dir := t.TempDir()
	script := write(t, dir, "x.py", "1")
	recipes := func() []Recipe {
		return []Recipe{
			{Name: "a/base:1", Apt: []string{"p", "q"}},
			{Name: "a/more:1", From: "a/base:1", Apt: []string{"r"}, Pip: []string{"s"}, Files: []File{{"x.py", "/x.py", 0o644}}},
		}
	}
	make := func(rs []Recipe) []*Plan {
		ps, err := plans(rs, "bookworm", dir)
		must(t, err)
		return ps
	}
	first := make(recipes())
	var kinds []string
	for _, l := range first[1].Top.Stack() {
		kinds = append(kinds, l.Kind)
	}
	equal(t, kinds, []string{"base", "apt", "pip", "files"})
	equal(t, first[1].Top.Stack()[0].ID(), first[0].Top.ID())

	rs := recipes()
	rs[0].Apt = []string{"q", "p"}
	equal(t, key(make(rs), true), key(first, true)) // the order says nothing
	rs[0].Apt = []string{"q"}
	changed := make(rs)
	for i := range changed {
		if changed[i].ID() == first[i].ID() {
			t.Errorf("%s doesn't follow its base", changed[i].Name)
		}
	}
	must(t, os.WriteFile(script, []byte("2"), 0o644))
	edited := make(recipes())
	equal(t, edited[1].Heavy.ID(), first[1].Heavy.ID())
	equal(t, key(edited, false), key(first, false))
	if key(edited, true) == key(first, true) || edited[1].ID() == first[1].ID() {
		t.Error("an edited file changes nothing")
	}
	if _, err := plans([]Recipe{{Name: "a:1", From: "b:1"}}, "bookworm", dir); err == nil {
		t.Error("a recipe without its parent was taken")
	}
}

func TestRemovalsAndEditsFollowThePackages(t *testing.T) {
	base := Recipe{Name: "a/base:1", Apt: []string{"p"}}
	edits := []Edit{{Path: "/f", Old: "1", New: "2"}}
	more := Recipe{Name: "a/more:1", From: "a/base:1", Apt: []string{"q"}, Pip: []string{"r"}, Remove: []string{"/usr/x"}, Edits: edits}
	ps, err := plans([]Recipe{base, more}, "bookworm", "")
	must(t, err)
	pip := ps[1].Top
	equal(t, []string{pip.Kind, pip.Parent.Kind}, []string{"pip", "apt"})
	equal(t, pip.Remove, more.Remove)
	equal(t, pip.Parent.Remove, more.Remove)
	equal(t, pip.Edits, edits)
	equal(t, len(pip.Parent.Edits), 0)

	more.Apt, more.Pip = nil, nil
	if _, err := plans([]Recipe{base, more}, "bookworm", ""); err == nil {
		t.Error("a recipe that removes and installs nothing was taken")
	}
}

func TestAnEntryPointIsItsImagesAlone(t *testing.T) {
	plain := Recipe{Name: "a/base:1", Apt: []string{"p"}}
	entered := plain
	entered.Entrypoint = []string{"/begin"}
	child := Recipe{Name: "a/more:1", From: "a/base:1", Apt: []string{"q"}}
	before, err := plans([]Recipe{plain, child}, "bookworm", "")
	must(t, err)
	after, err := plans([]Recipe{entered, child}, "bookworm", "")
	must(t, err)
	equal(t, after[0].Entrypoint, []string{"/begin"})
	equal(t, len(after[1].Entrypoint), 0)
	if before[0].ID() == after[0].ID() {
		t.Error("another entry point is no other image")
	}
	equal(t, before[1].ID(), after[1].ID())
	equal(t, key(before, false), key(after, false))
}

func TestRecipesAreComplete(t *testing.T) {
	ps, err := plans(Recipes, "bookworm", "../../examples")
	must(t, err)
	equal(t, len(ps), len(Recipes))
	all, err := plans(slices.Concat(Recipes, Recordings), "bookworm", "../../examples")
	must(t, err)
	equal(t, len(all), len(Recipes)+len(Recordings))
	// What is recorded has no part in what clusters are given.
	equal(t, key(ps, true), key(all[:len(ps)], true))
}

func TestTheImageForJobsOfV1HasDebiansSSH(t *testing.T) {
	ps, err := plans(Recipes, "bookworm", "../../examples")
	must(t, err)
	byName := map[string]*Plan{}
	for _, p := range ps {
		byName[p.Name] = p
	}
	strict := byName["trainyard/openmpi4-debian:1"]
	equal(t, strict.Heavy.ID(), byName["trainyard/openmpi4:1"].Heavy.ID())
	for _, f := range strict.Top.Files {
		if strings.Contains(f.Dst, "ssh_config") || strings.Contains(f.Dst, "sshd_config") || strings.HasPrefix(f.Dst, "/etc/") {
			t.Errorf("%s changes the settings of SSH", f.Dst)
		}
	}
}

func TestSourcesOfTheHost(t *testing.T) {
	targets := strings.Join([]string{
		"/etc/apt/sources.list.d/debian.sources:1|Debian|bookworm|bookworm",
		"/etc/apt/sources.list.d/debian.sources:2|Debian|bookworm-security|bookworm-security",
		"/etc/apt/sources.list.d/other.list:1|Somebody|bookworm|bookworm",
		"/etc/apt/sources.list.d/next.sources:1|Debian|trixie|testing",
		"/etc/apt/sources.list:3|$(ORIGIN)|$(CODENAME)|bookworm-updates",
		"",
	}, "\n")
	got, err := sourceFiles(targets, "bookworm")
	must(t, err)
	equal(t, got, []string{"/etc/apt/sources.list.d/debian.sources", "/etc/apt/sources.list"})
	if _, err := sourceFiles("", "bookworm"); err == nil {
		t.Error("no sources are no error")
	}
	equal(t, acquireOptions("APT \"\";\nAcquire::http \"\";\nAcquire::http::Proxy \"http://proxy.example\";\nAcquire::Languages:: \"none\";\n"),
		[]string{`Acquire::http::Proxy "http://proxy.example"`})
}

func TestFileLayersAndArchivesAreCached(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "x.py", "1")
	ctx := context.Background()
	b := &Builder{Cache: filepath.Join(dir, "cache"), Log: io.Discard}
	make := func() string {
		l := &Layer{Kind: "files", Image: "a/b:1"}
		data, err := os.ReadFile(filepath.Join(dir, "x.py"))
		must(t, err)
		l.Files = []layerFile{{File{"x.py", "/x.py", 0o644}, sum(data), filepath.Join(dir, "x.py")}}
		ps := []*Plan{{Name: "a/b:1", Top: l, Heavy: l}}
		unlock, err := b.lock(ctx)
		must(t, err)
		defer unlock()
		must(t, b.clean())
		must(t, b.Layers(ctx, ps))
		paths, err := b.Archives(ps)
		must(t, err)
		checkArchive(t, paths[0])
		return paths[0]
	}
	first := make()
	before, err := os.Stat(first)
	must(t, err)
	equal(t, make(), first)
	after, err := os.Stat(first)
	must(t, err)
	if !os.SameFile(before, after) {
		t.Error("a finished archive was written again")
	}
	write(t, dir, "x.py", "2")
	second := make()
	if second == first {
		t.Error("the archive doesn't follow the file")
	}
	if _, err := os.Stat(first); err == nil {
		t.Error("the old archive is still there")
	}
}

func TestLeftoversAreRemovedUnlessInUse(t *testing.T) {
	b := &Builder{Cache: t.TempDir(), Log: io.Discard}
	unlock, err := b.lock(context.Background())
	must(t, err)
	defer unlock()
	write(t, b.Cache, "tmp/dead/upper/file", "x")
	write(t, b.Cache, "layers/.new-x-1", "x")
	used, remove, err := b.tempDir()
	must(t, err)
	must(t, b.clean())
	if _, err := os.Stat(filepath.Join(b.Cache, "tmp/dead")); err == nil {
		t.Error("what nobody uses is still there")
	}
	if _, err := os.Stat(filepath.Join(b.Cache, "layers/.new-x-1")); err == nil {
		t.Error("half a layer is still there")
	}
	if _, err := os.Stat(used); err != nil {
		t.Error("what is in use was removed")
	}
	remove()

	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := b.lock(ctx); err == nil {
		t.Error("two have the lock")
	}
}

func TestRemovedPaths(t *testing.T) {
	root := t.TempDir()
	for _, f := range []string{"usr/include/x.h", "usr/lib/a.a", "usr/lib/p/tests/t.py", "usr/lib/p/q/tests/t.py", "usr/lib/p/testing/t.py", "usr/lib/a.ab"} {
		write(t, root, f, "")
	}
	must(t, removeMatching(root, root, []string{"/usr/include", "/usr/lib/*.a", "/usr/lib/*/tests"}))
	var left []string
	must(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if !d.IsDir() {
			left = append(left, strings.TrimPrefix(path, root))
		}
		return err
	}))
	equal(t, left, []string{"/usr/lib/a.ab", "/usr/lib/p/testing/t.py"})
}

func TestEditsMustApply(t *testing.T) {
	path := write(t, t.TempDir(), "f", "one two")
	must(t, edit(path, Edit{Path: "/f", Old: "two", New: "three"}))
	data, err := os.ReadFile(path)
	must(t, err)
	equal(t, string(data), "one three")
	if err := edit(path, Edit{Path: "/f", Old: "two", New: "three"}); err == nil {
		t.Error("an edit that doesn't apply was no error")
	}
}
