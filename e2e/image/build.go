package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// A Builder makes layers and archives below a cache directory:
//
//	layers/HASH.tar, HASH.json   a layer and its digest
//	images/NAME-HASH.tar         an image archive
//	tmp/                         work in progress; what has no owner is removed
type Builder struct {
	Cache string
	Log   io.Writer
}

func (b *Builder) say(format string, args ...any) {
	fmt.Fprintf(b.Log, "trainyard-image: "+format+"\n", args...)
}

func seconds(since time.Time) string {
	return fmt.Sprintf("%.1f s", time.Since(since).Seconds())
}

func megabytes(n int64) string { return fmt.Sprintf("%.1f MB", float64(n)/1e6) }

// lock takes the lock of the whole cache, which one builder holds at a time.
func (b *Builder) lock(ctx context.Context) (func(), error) {
	for _, d := range []string{"layers", "images", "tmp"} {
		if err := os.MkdirAll(filepath.Join(b.Cache, d), 0o755); err != nil {
			return nil, err
		}
	}
	f, err := os.OpenFile(filepath.Join(b.Cache, "image.lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	for told := false; ; {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			f.Close()
			return nil, fmt.Errorf("%s: %w", f.Name(), err)
		}
		if !told {
			told = true
			b.say("waiting for another one that is building")
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// clean removes the temporary directories and files of builds that were killed.
// The caller holds the lock.
func (b *Builder) clean() error {
	dirs, err := os.ReadDir(filepath.Join(b.Cache, "tmp"))
	if err != nil {
		return err
	}
	for _, d := range dirs {
		path := filepath.Join(b.Cache, "tmp", d.Name())
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		free := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil
		f.Close()
		if free {
			b.say("removing what an interrupted run has left in %s", path)
			if err := os.RemoveAll(path); err != nil {
				return err
			}
		}
	}
	for _, d := range []string{"layers", "images"} {
		if err := removeAll(b.Cache, filepath.Join(d, ".new-*")); err != nil {
			return err
		}
	}
	return nil
}

// tempDir makes a directory that belongs to this process. The caller holds the lock.
func (b *Builder) tempDir() (string, func(), error) {
	dir, err := os.MkdirTemp(filepath.Join(b.Cache, "tmp"), "")
	if err != nil {
		return "", nil, err
	}
	f, err := os.Open(dir)
	if err != nil {
		return "", nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return "", nil, err
	}
	return dir, func() {
		if err := os.RemoveAll(dir); err != nil {
			b.say("%v", err)
		}
		f.Close()
	}, nil
}

func (b *Builder) layerPath(l *Layer, ext string) string {
	return filepath.Join(b.Cache, "layers", l.ID()+ext)
}

// blob finds a finished layer.
func (b *Builder) blob(l *Layer) (Blob, bool) {
	blob := Blob{Path: b.layerPath(l, ".tar")}
	data, err := os.ReadFile(b.layerPath(l, ".json"))
	if err != nil || json.Unmarshal(data, &blob) != nil {
		return blob, false
	}
	st, err := os.Stat(blob.Path)
	return blob, err == nil && st.Size() == blob.Size
}

func (b *Builder) archivePath(p *Plan) string {
	name := p.Name[strings.LastIndex(p.Name, "/")+1:]
	name, _, _ = strings.Cut(name, ":")
	return filepath.Join(b.Cache, "images", name+"-"+p.ID()+".tar")
}

// image describes a plan whose layers are all there.
func (b *Builder) image(p *Plan) (Image, error) {
	img := Image{Ref: p.Name, Env: p.Env, User: p.User, WorkingDir: p.Dir, Entrypoint: p.Entrypoint, Cmd: []string{"python3"}}
	for _, l := range p.Top.Stack() {
		blob, ok := b.blob(l)
		if !ok {
			return img, fmt.Errorf("layer %s of %s is missing", l.ID(), p.Name)
		}
		img.Layers = append(img.Layers, blob)
		by := "trainyard-image " + l.Kind
		for _, s := range l.Packages {
			by += " " + s
		}
		for _, f := range l.Files {
			by += " " + f.Dst
		}
		img.CreatedBy = append(img.CreatedBy, by)
	}
	return img, nil
}

// Layers builds what is missing of these plans' layers.
func (b *Builder) Layers(ctx context.Context, ps []*Plan) error {
	var missing []*Layer
	seen := map[string]bool{}
	for _, p := range ps {
		for _, l := range p.Top.Stack() {
			if _, ok := b.blob(l); !ok && !seen[l.ID()] {
				seen[l.ID()] = true
				missing = append(missing, l)
			}
		}
	}
	if err := canBuild(missing); err != nil {
		return err
	}
	for _, l := range missing {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err := b.layer(ctx, l); err != nil {
			return err
		}
	}
	return nil
}

// canBuild says what this machine lacks for building these layers.
func canBuild(ls []*Layer) error {
	for _, l := range ls {
		if l.Kind == "files" {
			continue
		}
		if os.Geteuid() != 0 {
			return fmt.Errorf("building %s needs root, for chroot and overlay mounts", l.Image)
		}
		if _, err := exec.LookPath("mmdebstrap"); l.Kind == "base" && err != nil {
			return errors.New("mmdebstrap is missing; install it with: apt-get install -y --no-install-recommends mmdebstrap")
		}
		if _, err := exec.LookPath("apt-get"); err != nil {
			return errors.New("apt-get is missing: workload images are built on Debian")
		}
	}
	return nil
}

func (b *Builder) layer(ctx context.Context, l *Layer) error {
	start := time.Now()
	write := func(w io.Writer) error { return b.packRecipeFiles(w, l) }
	switch l.Kind {
	case "files":
		b.say("%s: adding files", l.Image)
	default:
		work, remove, err := b.tempDir()
		if err != nil {
			return err
		}
		defer remove()
		b.say("%s: building the %s layer: %s", l.Image, l.Kind, strings.Join(l.Packages, " "))
		upper, err := b.populate(ctx, work, l)
		if err != nil {
			return err
		}
		write = func(w io.Writer) error { return packDir(w, upper, start, skipMounts) }
	}
	var blob Blob
	err := atomically(b.layerPath(l, ".tar"), func(w io.Writer) error {
		d, sum := digesting(w)
		err := write(d)
		blob.DiffID, blob.Size = sum(), d.n
		return err
	})
	if err != nil {
		return err
	}
	data, err := json.Marshal(blob)
	if err != nil {
		return err
	}
	err = atomically(b.layerPath(l, ".json"), func(w io.Writer) error {
		_, err := w.Write(append(data, '\n'))
		return err
	})
	if err != nil {
		return err
	}
	b.say("%s: %s layer done in %s, %s", l.Image, l.Kind, seconds(start), megabytes(blob.Size))
	return nil
}

func (b *Builder) packRecipeFiles(w io.Writer, l *Layer) error {
	var files []tarFile
	for _, f := range l.Files {
		data, err := os.ReadFile(f.path)
		if err != nil {
			return err
		}
		files = append(files, tarFile{f.Dst, f.Mode, data})
	}
	return packFiles(w, files)
}

// skipMounts leaves out what is mounted while a layer is built.
func skipMounts(name string) bool {
	dir, _, ok := strings.Cut(name, "/")
	return ok && (dir == "dev" || dir == "proc" || dir == "sys" || dir == "run")
}

// populate makes the content of a layer and returns where it is.
func (b *Builder) populate(ctx context.Context, work string, l *Layer) (string, error) {
	j := &job{Op: l.Kind, Work: work, Layer: l, Suite: l.Suite}
	var err error
	if l.Kind != "pip" {
		if j.Sources, j.Acquire, err = aptSettings(work, l.Suite); err != nil {
			return "", err
		}
	}
	for _, f := range l.Source {
		if j.Beside == nil {
			j.Beside = map[string]string{}
		}
		if j.Beside[f.Dst], err = filepath.Abs(f.path); err != nil {
			return "", err
		}
	}
	below := l.Parent.Stack()
	if l.Kind == "pip" {
		tools := pipToolsLayer(l)
		if _, ok := b.blob(tools); !ok {
			if err := b.layer(ctx, tools); err != nil {
				return "", err
			}
		}
		below = append(below, tools)
	}
	if j.Lower, err = b.unpack(work, below); err != nil {
		return "", err
	}
	return j.upper(), b.logged(ctx, j)
}

// pipToolsLayer goes on top of the bootstrapped system below a layer.
func pipToolsLayer(l *Layer) *Layer {
	base := l.Stack()[0]
	return &Layer{
		Kind: "apt", Image: "tools for " + l.Image, Parent: base, ParentID: base.ID(), Format: l.Format,
		Suite: l.Suite, Arch: l.Arch, Packages: sorted(append(append([]string{}, pipTools...), l.Tools...)),
	}
}

// unpack extracts layers, given lowest first, and lists the directories as
// overlayfs wants them, highest first.
func (b *Builder) unpack(work string, ls []*Layer) ([]string, error) {
	var lower []string
	for i, l := range ls {
		blob, ok := b.blob(l)
		if !ok {
			return nil, fmt.Errorf("layer %s (%s of %s) is missing", l.ID(), l.Kind, l.Image)
		}
		dir := filepath.Join(work, fmt.Sprint(i))
		if err := os.Mkdir(dir, 0o755); err != nil {
			return nil, err
		}
		f, err := os.Open(blob.Path)
		if err != nil {
			return nil, err
		}
		err = unpackLayer(f, dir)
		f.Close()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", blob.Path, err)
		}
		lower = append([]string{dir}, lower...)
	}
	return lower, nil
}

// logged runs a job and shows the end of what it printed if it fails.
func (b *Builder) logged(ctx context.Context, j *job) error {
	file := filepath.Join(j.Work, "log")
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	defer f.Close()
	err = inside(ctx, j, nil, f, f)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		data, _ := os.ReadFile(file)
		lines := strings.Split(strings.TrimSpace(string(data)), "\n")
		if len(lines) > 40 {
			lines = lines[len(lines)-40:]
		}
		return fmt.Errorf("%s\n%s: building the %s layer failed: %w", strings.Join(lines, "\n"), j.Layer.Image, j.Layer.Kind, err)
	}
	return nil
}

// aptSettings copies the host's source files that a suite comes from and lists
// the host's options for downloads.
func aptSettings(work, suite string) (sources, acquire []string, err error) {
	codename, err := hostSuite()
	if err != nil {
		return nil, nil, err
	}
	out, err := exec.Command("apt-get", "indextargets", "--format", "$(SOURCESENTRY)|$(ORIGIN)|$(CODENAME)|$(RELEASE)", "Created-By: Packages").Output()
	if err != nil {
		return nil, nil, fmt.Errorf("apt-get indextargets: %w", err)
	}
	files, err := sourceFiles(string(out), codename)
	if err != nil {
		return nil, nil, err
	}
	dir := filepath.Join(work, "sources")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, nil, err
	}
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			return nil, nil, err
		}
		if suite != codename {
			data = []byte(strings.ReplaceAll(string(data), codename, suite))
		}
		to := filepath.Join(dir, filepath.Base(f))
		if err := os.WriteFile(to, data, 0o644); err != nil {
			return nil, nil, err
		}
		sources = append(sources, to)
	}
	dump, err := exec.Command("apt-config", "dump").Output()
	if err != nil {
		return nil, nil, fmt.Errorf("apt-config dump: %w", err)
	}
	return sources, acquireOptions(string(dump)), nil
}

// sourceFiles picks those source files of the host that carry its Debian release.
// Before the host's first apt-get update, the origin of an entry isn't known.
func sourceFiles(targets, codename string) ([]string, error) {
	var out []string
	seen := map[string]bool{}
	for _, line := range strings.Split(targets, "\n") {
		f := strings.Split(line, "|")
		if len(f) != 4 {
			continue
		}
		if f[1] == "Debian" {
			if !strings.HasPrefix(f[2], codename) {
				continue
			}
		} else if !strings.HasPrefix(f[1], "$(") && f[1] != "" || !strings.HasPrefix(f[3], codename) {
			continue
		}
		i := strings.LastIndex(f[0], ":")
		if i < 0 || seen[f[0][:i]] {
			continue
		}
		seen[f[0][:i]] = true
		out = append(out, f[0][:i])
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("apt knows no source of Debian %s here; after apt-get update it may", codename)
	}
	return out, nil
}

// acquireOptions keeps what decides how this machine reaches its archive, from
// the output of apt-config dump.
func acquireOptions(dump string) []string {
	var out []string
	for _, line := range strings.Split(dump, "\n") {
		for _, prefix := range []string{"Acquire::http", "Acquire::Check-", "Acquire::ForceIPv", "Acquire::Retries"} {
			if strings.HasPrefix(line, prefix) && !strings.HasSuffix(line, ` "";`) {
				out = append(out, strings.TrimSuffix(strings.TrimSpace(line), ";"))
			}
		}
	}
	return out
}

// Archives makes the missing archives of these plans and lists all their paths.
func (b *Builder) Archives(ps []*Plan) ([]string, error) {
	var paths []string
	for _, p := range ps {
		path := b.archivePath(p)
		paths = append(paths, path)
		if _, err := os.Stat(path); err == nil {
			continue
		}
		start := time.Now()
		img, err := b.image(p)
		if err != nil {
			return nil, err
		}
		old, err := filepath.Glob(strings.TrimSuffix(path, p.ID()+".tar") + strings.Repeat("[0-9a-f]", 16) + ".tar")
		if err != nil {
			return nil, err
		}
		if err := atomically(path, func(w io.Writer) error { return writeArchive(w, img) }); err != nil {
			return nil, err
		}
		// An archive holds all the layers again; of earlier ones none is needed.
		for _, f := range old {
			if err := os.Remove(f); err != nil {
				return nil, err
			}
		}
		b.say("%s: archive written in %s", p.Name, seconds(start))
	}
	return paths, nil
}
