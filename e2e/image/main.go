// Command trainyard-image makes container images without a registry: those of
// the workloads that the tests and the local cluster run, from Debian packages,
// and those of the operators, from one static program.
package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"debug/elf"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

const usage = `usage:
  trainyard-image key [--heavy] [--examples DIR]
      print a hash over all workload images (--heavy: without example files)
  trainyard-image workloads --cache DIR [--examples DIR] [NAME...]
      build what is missing; print one line for each image: the archive's path
  trainyard-image layers --cache DIR [--examples DIR] [NAME...]
      build what is missing, without archives
  trainyard-image stream --cache DIR [--examples DIR] [--have FILE] [NAME...]
      build what is missing; write one OCI layout with the images to standard
      output for "ctr images import -", each layer once and without those whose
      digests are in FILE ("-" is standard input): "ctr content ls -q"
  trainyard-image run --cache DIR [--examples DIR] [--env K=V]... NAME COMMAND [ARG...]
      run a command in a throw-away copy of an image, in the host's network
  trainyard-image operator --binary FILE --name REF --out FILE [--file SRC=DST]...
      write the image archive of a static program
  trainyard-image index --name REF --out FILE ARCHIVE...
      join the archives of an image for several architectures: an OCI layout
  trainyard-image pack --rootfs-tar FILE... --name REF --out FILE [--env K=V]...
      [--user UID:GID] [--entrypoint ARG]... [--cmd ARG]...
      write an image archive of layers that are there already
`

type list []string

func (l *list) String() string     { return strings.Join(*l, " ") }
func (l *list) Set(s string) error { *l = append(*l, s); return nil }

func main() {
	if len(os.Args) == 3 && os.Args[1] == insideArg {
		err := insideMain(os.Args[2])
		var exit *exec.ExitError
		if errors.As(err, &exit) && exit.ExitCode() > 0 {
			if !strings.HasPrefix(err.Error(), "exit status") {
				fmt.Fprintln(os.Stderr, err)
			}
			os.Exit(exit.ExitCode())
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	err := run(ctx, os.Args[1:])
	var exit *exec.ExitError
	switch {
	case err == nil:
	case errors.Is(err, errUsage):
		fmt.Fprint(os.Stderr, usage)
		os.Exit(2)
	case errors.Is(err, flag.ErrHelp):
		fmt.Print(usage)
	case ctx.Err() != nil:
		fmt.Fprintln(os.Stderr, "trainyard-image: interrupted")
		os.Exit(130)
	case errors.As(err, &exit) && exit.ExitCode() > 0 && os.Args[1] == "run":
		os.Exit(exit.ExitCode())
	default:
		fmt.Fprintln(os.Stderr, "trainyard-image:", err)
		os.Exit(1)
	}
}

var errUsage = errors.New("usage")

func run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return errUsage
	}
	switch args[0] {
	case "key":
		return keyCommand(args[1:])
	case "workloads", "layers", "stream", "run":
		return workloadsCommand(ctx, args[0], args[1:])
	case "operator":
		return operatorCommand(args[1:])
	case "index":
		return indexCommand(args[1:])
	case "pack":
		return packCommand(args[1:])
	case "help", "-h", "--help":
		return flag.ErrHelp
	}
	return errUsage
}

func flags(name string) *flag.FlagSet {
	fs := flag.NewFlagSet(name, flag.ContinueOnError)
	fs.Usage = func() {}
	return fs
}

// hostPlans are the plans of all recipes on this machine, and of some more.
func hostPlans(examples string, more ...[]Recipe) ([]*Plan, error) {
	if examples == "" {
		var err error
		if examples, err = findExamples(); err != nil {
			return nil, err
		}
	}
	suite, err := hostSuite()
	if err != nil {
		return nil, err
	}
	return plans(slices.Concat(append([][]Recipe{Recipes}, more...)...), suite, examples)
}

func keyCommand(args []string) error {
	fs := flags("key")
	heavy := fs.Bool("heavy", false, "")
	examples := fs.String("examples", "", "")
	if err := fs.Parse(args); err != nil {
		return err
	}
	ps, err := hostPlans(*examples)
	if err != nil {
		return err
	}
	fmt.Println(key(ps, !*heavy))
	return nil
}

func workloadsCommand(ctx context.Context, name string, args []string) error {
	fs := flags(name)
	cache := fs.String("cache", "", "")
	examples := fs.String("examples", "", "")
	have := ""
	if name == "stream" {
		fs.StringVar(&have, "have", "", "")
	}
	var env list
	if name == "run" {
		fs.Var(&env, "env", "")
	}
	if err := fs.Parse(args); err != nil {
		return err
	}
	if *cache == "" {
		return errUsage
	}
	dir, err := filepath.Abs(*cache)
	if err != nil {
		return err
	}
	ps, err := hostPlans(*examples)
	if err != nil {
		return err
	}
	known, err := digests(have)
	if err != nil {
		return err
	}
	wanted := fs.Args()
	var command []string
	if name == "run" {
		if len(wanted) < 2 {
			return errUsage
		}
		wanted, command = wanted[:1], wanted[1:]
	}
	if len(wanted) > 0 {
		if ps, err = hostPlans(*examples, Recordings); err != nil {
			return err
		}
		if ps, err = choose(ps, wanted); err != nil {
			return err
		}
	}
	b := &Builder{Cache: dir, Log: os.Stderr}
	unlock, err := b.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if err := b.clean(); err != nil {
		return err
	}
	if err := b.Layers(ctx, ps); err != nil {
		return err
	}
	switch name {
	case "layers":
		return nil
	case "stream":
		var images []Image
		for _, p := range ps {
			img, err := b.image(p)
			if err != nil {
				return err
			}
			images = append(images, img)
		}
		return writeLayout(os.Stdout, images, known)
	case "run":
		return b.try(ctx, unlock, ps[0], env, command)
	}
	paths, err := b.Archives(ps)
	if err != nil {
		return err
	}
	for _, p := range paths {
		fmt.Println(p)
	}
	return nil
}

func choose(ps []*Plan, names []string) ([]*Plan, error) {
	var out []*Plan
	for _, n := range names {
		found := false
		for _, p := range ps {
			if p.Name == n {
				out, found = append(out, p), true
			}
		}
		if !found {
			return nil, fmt.Errorf("there is no workload image %q", n)
		}
	}
	return out, nil
}

// digests reads one per line from a file; an empty name means none.
func digests(file string) (map[string]bool, error) {
	var data []byte
	var err error
	switch file {
	case "":
	case "-":
		data, err = io.ReadAll(os.Stdin)
	default:
		data, err = os.ReadFile(file)
	}
	out := map[string]bool{}
	for _, d := range strings.Fields(string(data)) {
		out[d] = true
	}
	return out, err
}

// try runs a command in an image.
func (b *Builder) try(ctx context.Context, unlock func(), p *Plan, env, command []string) error {
	if os.Geteuid() != 0 {
		return errors.New("running in an image needs root, for chroot and overlay mounts")
	}
	work, remove, err := b.tempDir()
	if err != nil {
		return err
	}
	defer remove()
	j := &job{Op: "run", Work: work, Command: command, Host: "image"}
	j.Env = append(append([]string{"HOME=/root"}, p.Env...), env...)
	start := time.Now()
	if j.Lower, err = b.unpack(work, p.Top.Stack()); err != nil {
		return err
	}
	unlock() // the directory has a lock of its own
	b.say("%s: unpacked in %s", p.Name, seconds(start))
	return inside(ctx, j, os.Stdin, os.Stdout, os.Stderr)
}

func operatorCommand(args []string) error {
	fs := flags("operator")
	binary := fs.String("binary", "", "")
	name := fs.String("name", "", "")
	out := fs.String("out", "", "")
	var extra list
	fs.Var(&extra, "file", "")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if *binary == "" || *name == "" || *out == "" || fs.NArg() > 0 {
		return errUsage
	}
	arch, err := checkStatic(*binary)
	if err != nil {
		return err
	}
	data, err := os.ReadFile(*binary)
	if err != nil {
		return err
	}
	program := "/" + filepath.Base(*binary)
	files := []tarFile{{program, 0o755, data}}
	for _, f := range extra {
		src, dst, ok := strings.Cut(f, "=")
		if !ok {
			return fmt.Errorf("--file %s: want SRC=DST", f)
		}
		data, err := os.ReadFile(src)
		if err != nil {
			return err
		}
		st, err := os.Stat(src)
		if err != nil {
			return err
		}
		mode := int64(0o644)
		if st.Mode()&0o100 != 0 {
			mode = 0o755
		}
		files = append(files, tarFile{dst, mode, data})
	}
	var layer bytes.Buffer
	if err := packFiles(&layer, files); err != nil {
		return err
	}
	return withLayer(layer.Bytes(), func(blob Blob) error {
		return writeImage(*out, Image{
			Ref: *name, Arch: arch, Layers: []Blob{blob}, User: "65532:65532", WorkingDir: "/",
			Entrypoint: []string{program}, CreatedBy: []string{"trainyard-image operator"},
		})
	})
}

func indexCommand(args []string) error {
	fs := flags("index")
	name := fs.String("name", "", "")
	out := fs.String("out", "", "")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if *name == "" || *out == "" || fs.NArg() == 0 {
		return errUsage
	}
	return atomically(*out, func(w io.Writer) error { return writeIndex(w, *name, fs.Args()) })
}

// checkStatic refuses a program that wouldn't start in an empty file system,
// and returns its architecture.
func checkStatic(path string) (string, error) {
	f, err := elf.Open(path)
	if err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return "", fmt.Errorf("%s isn't statically linked, so that it can't be the only file of an image", path)
		}
	}
	arch, ok := map[elf.Machine]string{elf.EM_X86_64: "amd64", elf.EM_AARCH64: "arm64"}[f.Machine]
	if !ok {
		return "", fmt.Errorf("%s is for %v, and images are for amd64 and arm64", path, f.Machine)
	}
	return arch, nil
}

// withLayer puts a layer into a temporary file for as long as use runs.
func withLayer(data []byte, use func(Blob) error) error {
	f, err := os.CreateTemp("", "trainyard-layer-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	d, sum := digesting(f)
	_, err = d.Write(data)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	return use(Blob{Path: f.Name(), DiffID: sum(), Size: d.n})
}

// writeImage writes an archive to a file, or to standard output for "-".
func writeImage(out string, img Image) error {
	if err := checkRef(img.Ref); err != nil {
		return err
	}
	if out == "-" {
		return writeArchive(os.Stdout, img)
	}
	return atomically(out, func(w io.Writer) error { return writeArchive(w, img) })
}

func packCommand(args []string) error {
	fs := flags("pack")
	name := fs.String("name", "", "")
	out := fs.String("out", "", "")
	user := fs.String("user", "", "")
	var tars, env, entrypoint, cmd list
	fs.Var(&tars, "rootfs-tar", "")
	fs.Var(&env, "env", "")
	fs.Var(&entrypoint, "entrypoint", "")
	fs.Var(&cmd, "cmd", "")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if *name == "" || *out == "" || len(tars) == 0 || fs.NArg() > 0 {
		return errUsage
	}
	img := Image{Ref: *name, User: *user, Env: env, Entrypoint: entrypoint, Cmd: cmd}
	for _, path := range tars {
		blob, remove, err := tarBlob(path)
		if err != nil {
			return err
		}
		defer remove()
		img.Layers = append(img.Layers, blob)
		img.CreatedBy = append(img.CreatedBy, "trainyard-image pack")
	}
	return writeImage(*out, img)
}

// tarBlob digests a tar, which may be gzipped.
func tarBlob(path string) (Blob, func(), error) {
	remove := func() {}
	f, err := os.Open(path)
	if err != nil {
		return Blob{}, remove, err
	}
	defer f.Close()
	d, sum := digesting(io.Discard)
	var from io.Reader = f
	if z, err := gzip.NewReader(f); err == nil {
		t, err := os.CreateTemp("", "trainyard-layer-*")
		if err != nil {
			return Blob{}, remove, err
		}
		defer t.Close()
		path, from = t.Name(), z
		remove = func() { os.Remove(t.Name()) }
		d, sum = digesting(t)
	} else if _, err := f.Seek(0, io.SeekStart); err != nil {
		return Blob{}, remove, err
	}
	if _, err := io.Copy(d, from); err != nil {
		remove()
		return Blob{}, func() {}, fmt.Errorf("%s: %w", path, err)
	}
	return Blob{Path: path, DiffID: sum(), Size: d.n}, remove, nil
}
