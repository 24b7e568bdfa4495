package main

import (
	"slices"
	"strings"
	"testing"
)

func TestOnlyPackagesWithAHashAreInstalled(t *testing.T) {
	lock := "# comment\na==1 --hash=sha256:11 --hash=sha256:22\nb==2 --hash=sha256:33\n"
	got, err := requirements([]string{"b==2", "a==1"}, lock)
	must(t, err)
	equal(t, got, "b==2 --hash=sha256:33\na==1 --hash=sha256:11 --hash=sha256:22\n")
	for _, unknown := range []string{"a==2", "a", "c==1"} {
		if _, err := requirements([]string{unknown}, lock); err == nil || !strings.Contains(err.Error(), unknown) {
			t.Fatalf("%s: %v", unknown, err)
		}
	}
}

func TestTheLockHasEveryPackageOfEveryRecipeAndNoOther(t *testing.T) {
	var wanted, locked []string
	for _, r := range slices.Concat(Recipes, Recordings) {
		wanted = append(wanted, r.Pip...)
		_, err := requirements(r.Pip, pipLock)
		must(t, err)
	}
	for _, line := range strings.Split(pipLock, "\n") {
		if name, hashes, ok := strings.Cut(line, " --hash="); ok {
			locked = append(locked, name)
			for _, h := range strings.Split(hashes, " --hash=") {
				if rest, ok := strings.CutPrefix(h, "sha256:"); !ok || len(rest) != 64 {
					t.Errorf("%s: %q is no hash", name, h)
				}
			}
		} else if line != "" && !strings.HasPrefix(line, "#") {
			t.Errorf("pip.lock: %q has no hash", line)
		}
	}
	slices.Sort(wanted)
	equal(t, locked, slices.Compact(wanted))
}
