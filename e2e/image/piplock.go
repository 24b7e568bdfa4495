package main

import (
	_ "embed"
	"fmt"
	"strings"
)

// pipLock has the hashes of the files of every Python package that a recipe
// installs, as a requirements file: one package a line.
//
//go:embed pip.lock
var pipLock string

// requirements are the lines of the lock for these packages. They have no part in
// a layer's hash: what a version stands for doesn't change.
func requirements(packages []string, lock string) (string, error) {
	lines := map[string]string{}
	for _, line := range strings.Split(lock, "\n") {
		if name, _, ok := strings.Cut(line, " --hash="); ok {
			lines[name] = line
		}
	}
	var out strings.Builder
	for _, p := range packages {
		line, ok := lines[p]
		if !ok {
			return "", fmt.Errorf("pip.lock has no hash for %s: write it anew with e2e/image/lock-pip", p)
		}
		fmt.Fprintln(&out, line)
	}
	return out.String(), nil
}
