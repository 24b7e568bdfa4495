package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sort"
	"strings"
)

// A Recipe says what is in a workload image. It becomes up to three layers on
// top of those of the image it starts from: Debian packages, Python packages,
// files. A recipe without From starts with a bootstrapped Debian instead.
type Recipe struct {
	Name   string   // reference, without a registry's host
	From   string   // reference of another recipe
	Suite  string   // Debian release when From is empty; "" is the host's own
	Apt    []string // Debian packages, installed without recommended ones
	Pip    []string // Python packages, installed to /usr/local without what they depend on
	Strip  []string // libraries of the Python packages that lose their symbol tables
	Remove []string // paths to remove from these; * stands for anything, / too
	Edits  []Edit   // repairs of what the last of these have installed
	Files  []File   // last, because they change most often
	Env    []string // added to what the parent has
}

// A File is copied from the examples directory into the image.
type File struct {
	Src  string // below the examples directory
	Dst  string // absolute
	Mode int64
}

// An Edit replaces one piece of text, which must be there, in a file.
type Edit struct{ Path, Old, New string }

// Recipes are all the workload images; a parent comes before its children.
var Recipes = []Recipe{
	{
		Name: "trainyard/python:1",
		Apt:  []string{"python3", "ca-certificates"},
		Env: []string{
			"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
			"LANG=C.UTF-8",
			"PYTHONUNBUFFERED=1",
		},
	},
	{
		Name: "trainyard/pytorch-cpu:1",
		From: "trainyard/python:1",
		// scikit-learn is there for the digits data set that it ships.
		Apt: []string{"python3-torch", "python3-sklearn"},
		// The packages bring compilers, graphics drivers and their test suites;
		// a fifth of the layer. torch/testing and the like, which the libraries
		// import themselves, don't match.
		Remove: []string{
			"/usr/bin/*-lto-dump-*",
			"/usr/include",
			"/usr/lib/*.a",
			"/usr/lib/*/dri",
			"/usr/lib/*/libLLVM-*",
			"/usr/lib/*/mfx",
			"/usr/lib/gcc/*/cc1*",
			"/usr/lib/gcc/*/lto*",
			"/usr/lib/python3*/dist-packages/*/tests",
			"/usr/lib/python3/dist-packages/torch/bin/test_*",
			"/usr/share/proj",
		},
		// Iterating over an enum leaves out its zero since Python 3.11, which
		// torchrun 1.13 trips over.
		Edits: []Edit{{
			Path: "/usr/lib/python3/dist-packages/torch/distributed/elastic/multiprocessing/api.py",
			Old:  "for s in Std:",
			New:  "for s in (Std.NONE, Std.OUT, Std.ERR, Std.ALL):",
		}},
		Files: scripts("pytorch", "ddp.py"),
	},
	{
		Name: "trainyard/tensorflow-cpu:1",
		From: "trainyard/python:1",
		// Written out with all that is needed, because tf_keras asks for the
		// package with support for GPUs, five times as large. Of scikit-learn,
		// only the digits data set is used, which works without its dependencies.
		Pip: []string{
			"tensorflow-cpu==2.18.1", "tf_keras==2.18.0", "keras==3.8.0", "scikit-learn==1.6.1",
			"absl-py==2.1.0", "astunparse==1.6.3", "certifi==2025.1.31", "charset-normalizer==3.4.1", "flatbuffers==25.2.10",
			"gast==0.6.0", "h5py==3.12.1", "idna==3.10", "ml-dtypes==0.4.1", "namex==0.0.8", "numpy==2.0.2",
			"opt-einsum==3.4.0", "optree==0.14.0", "packaging==24.2", "protobuf==5.29.5", "requests==2.32.3", "rich==13.9.4",
			"setuptools==75.8.0", "six==1.17.0", "termcolor==2.5.0", "typing-extensions==4.12.2", "urllib3==2.3.0",
			"wrapt==1.17.2",
		},
		// A quarter of it.
		Strip: []string{"/usr/local/lib/python3*/dist-packages/tensorflow/libtensorflow_cc.so.2"},
		Remove: []string{
			"/usr/local/lib/python3*/numpy/*/tests",
			"/usr/local/lib/python3*/tensorflow/include",
			"/usr/local/lib/python3*/sklearn/*.so",
			"/usr/local/lib/python3*/sklearn/*/tests",
			"/usr/local/lib/python3*/scikit_learn.libs",
		},
		Files: scripts("tensorflow", "pod.py", "digits.py", "multiworker.py", "parameter_server.py", "evaluator.py", "dynamic.py"),
	},
	{
		Name: "trainyard/xgboost-cpu:1",
		From: "trainyard/python:1",
		// LightGBM doesn't bring the OpenMP runtime that it needs.
		Apt: []string{"libgomp1"},
		Pip: []string{
			"xgboost-cpu==3.0.5", "lightgbm==4.6.0", "scikit-learn==1.6.1",
			"joblib==1.4.2", "numpy==2.0.2", "scipy==1.15.3", "threadpoolctl==3.5.0",
		},
		Remove: []string{
			"/usr/local/lib/python3*/numpy/*/tests",
			"/usr/local/lib/python3*/scipy/*/tests",
			"/usr/local/lib/python3*/sklearn/*/tests",
		},
		Files: scripts("xgboost", "pod.py", "cancer.py", "train.py", "predict.py", "train_lightgbm.py"),
	},
	{
		Name:  "trainyard/openmpi:1",
		Suite: "trixie", // with Open MPI 5
		Apt: []string{
			"ca-certificates", "openmpi-bin", "openssh-client", "openssh-server", "python3", "python3-mpi4py", "python3-numpy",
		},
		Remove: mpiRemoves,
		Edits:  mpiUser,
		Files: append(scripts("mpi", "poisson.py"),
			File{Src: "mpi/sshd_config", Dst: "/home/mpiuser/.sshd_config", Mode: 0o644},
			File{Src: "mpi/ssh_config", Dst: "/etc/ssh/ssh_config.d/mpi.conf", Mode: 0o644},
		),
		Env: mpiEnv,
	},
	{
		// Open MPI 4, for root.
		Name:   "trainyard/openmpi4:1",
		From:   "trainyard/python:1",
		Apt:    []string{"openmpi-bin", "openssh-client", "openssh-server", "python3-mpi4py", "python3-numpy"},
		Remove: mpiRemoves,
		Files:  mpiRootFiles(),
	},
	{
		// MPICH 4.2; that of Debian 12 hangs now and again. For root.
		Name:   "trainyard/mpich:1",
		Suite:  "trixie",
		Apt:    []string{"ca-certificates", "mpich", "openssh-client", "openssh-server", "python3", "python3-numpy"},
		Pip:    []string{"mpi4py==4.1.2"},
		Remove: mpiRemoves,
		Files:  mpiRootFiles(),
		Env:    append([]string{"MPI4PY_LIBMPI=libmpich.so.12"}, mpiEnv...),
	},
	{
		// Intel MPI, for root.
		Name: "trainyard/intelmpi:1",
		From: "trainyard/python:1",
		Apt:  []string{"openssh-client", "openssh-server", "python3-numpy"},
		Pip:  []string{"impi-rt==2021.13.1", "mpi4py==4.1.2"},
		Remove: []string{
			"/usr/local/bin/IMB-*",
			"/usr/local/bin/*cpuinfo",
			"/usr/local/lib/libmpcp*",
			"/usr/local/lib/libmpi_abi*",
			"/usr/local/lib/libmpifort*",
			"/usr/local/opt/mpi/tune_fast",
		},
		Files: mpiRootFiles(),
		Env: []string{
			"I_MPI_ROOT=/usr/local",
			"LD_LIBRARY_PATH=/usr/local/lib:/usr/local/lib/libfabric",
			"FI_PROVIDER_PATH=/usr/local/lib/libfabric/prov",
			"FI_PROVIDER=tcp",
			"MPI4PY_LIBMPI=/usr/local/lib/libmpi.so.12",
		},
	},
}

// scripts are examples of one framework, all of them in one directory of the
// image, where they find each other.
func scripts(framework string, names ...string) []File {
	var out []File
	for _, n := range names {
		out = append(out, File{Src: framework + "/" + n, Dst: "/opt/trainyard/" + n, Mode: 0o644})
	}
	return out
}

// mpiUser is whom the pods of MPI jobs run as: SSH knows nobody without an
// account.
var mpiUser = []Edit{{
	Path: "/etc/passwd",
	Old:  "nobody:x:",
	New:  "mpiuser:x:1000:1000::/home/mpiuser:/bin/sh\nnobody:x:",
}}

var mpiEnv = []string{
	"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
	"LANG=C.UTF-8",
	"PYTHONUNBUFFERED=1",
}

// Compilers and headers, which nothing here is built with.
var mpiRemoves = []string{
	"/usr/bin/*-lto-dump-*",
	"/usr/include",
	"/usr/lib/*.a",
	"/usr/lib/*/dri",
	"/usr/lib/*/libLLVM*",
	"/usr/lib/gcc/*/cc1*",
	"/usr/lib/gcc/*/lto*",
	"/usr/libexec/gcc",
	"/usr/lib/python3*/dist-packages/*/tests",
}

// mpiRootFiles are the program of the example, and how SSH is set up for root.
func mpiRootFiles() []File {
	return append(scripts("mpi", "poisson.py"),
		File{Src: "mpi/root_sshd_config", Dst: "/etc/ssh/sshd_config.d/mpi.conf", Mode: 0o644},
		File{Src: "mpi/root_ssh_config", Dst: "/etc/ssh/ssh_config.d/mpi.conf", Mode: 0o644},
		// The server wants the directory.
		File{Src: "mpi/root_sshd_config", Dst: "/run/sshd/.keep", Mode: 0o644},
	)
}

// pipTools is what installs and strips Python packages. It lies under the layer
// while that is built and is part of no image.
var pipTools = []string{"binutils", "python3-pip", "python3-setuptools", "python3-wheel"}

// commonExcludes are path options that dpkg is given in the base layer, for every
// package there and above. Licences stay.
var commonExcludes = []string{
	"path-exclude=/usr/share/doc/*",
	"path-include=/usr/share/doc/*/copyright",
	"path-exclude=/usr/share/man/*",
	"path-exclude=/usr/share/info/*",
	"path-exclude=/usr/share/locale/*",
	"path-exclude=/usr/share/lintian/*",
	"path-exclude=/usr/share/bug/*",
}

// layerFormat changes when the same recipe would give another layer.
const layerFormat = 1

// A Layer is one step of a recipe. Its hash covers all that decides what is in
// the layer, except for the versions that the Debian or Python archive has
// today. Fields that aren't set have no part in it: one can be added.
type Layer struct {
	Kind     string // base, apt, pip, files
	Image    string `json:"-"` // for messages
	Parent   *Layer `json:"-"`
	ParentID string `json:",omitempty"`
	Format   int
	Suite    string
	Arch     string
	Packages []string    `json:",omitempty"`
	Excludes []string    `json:",omitempty"`
	Strip    []string    `json:",omitempty"`
	Remove   []string    `json:",omitempty"`
	Edits    []Edit      `json:",omitempty"`
	Files    []layerFile `json:",omitempty"`
}

type layerFile struct {
	File
	SHA256 string
	path   string
}

func (l *Layer) ID() string {
	b, err := json.Marshal(l)
	if err != nil {
		panic(err)
	}
	return shortHash(b)
}

// Stack lists the layer and all below it, lowest first.
func (l *Layer) Stack() []*Layer {
	if l == nil {
		return nil
	}
	return append(l.Parent.Stack(), l)
}

func shortHash(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:8])
}

// A Plan is a recipe with its layers and its image configuration worked out.
type Plan struct {
	Name  string
	Top   *Layer
	Heavy *Layer // the topmost layer that isn't mere files
	Env   []string
}

// plans turns recipes into layers. Files are looked up below examples.
func plans(recipes []Recipe, suite, examples string) ([]*Plan, error) {
	byName := map[string]*Plan{}
	var out []*Plan
	for _, r := range recipes {
		p := &Plan{Name: r.Name}
		suite := suite
		if r.From != "" {
			parent := byName[r.From]
			if parent == nil {
				return nil, fmt.Errorf("recipe %s: there is no recipe %q before it", r.Name, r.From)
			}
			p.Top, p.Heavy = parent.Top, parent.Heavy
			suite = parent.Top.Suite
			p.Env = append(p.Env, parent.Env...)
		} else if r.Suite != "" {
			suite = r.Suite
		}
		p.Env = append(p.Env, r.Env...)
		push := func(l *Layer) *Layer {
			l.Image, l.Format, l.Suite, l.Arch = r.Name, layerFormat, suite, runtime.GOARCH
			if p.Top != nil {
				l.Parent, l.ParentID = p.Top, p.Top.ID()
			}
			p.Top = l
			return l
		}
		var packages []*Layer
		if p.Top == nil {
			packages = append(packages, &Layer{Kind: "base", Packages: sorted(r.Apt), Excludes: commonExcludes, Remove: r.Remove})
		} else if len(r.Apt) > 0 {
			packages = append(packages, &Layer{Kind: "apt", Packages: sorted(r.Apt), Remove: r.Remove})
		}
		if len(r.Pip) > 0 {
			packages = append(packages, &Layer{Kind: "pip", Packages: sorted(r.Pip), Strip: r.Strip, Remove: r.Remove})
		}
		if n := len(packages); n > 0 {
			packages[n-1].Edits = r.Edits // one layer's, because an edit must apply
		} else if len(r.Remove)+len(r.Edits) > 0 {
			return nil, fmt.Errorf("recipe %s: nothing is installed that could be removed or edited", r.Name)
		}
		for _, l := range packages {
			p.Heavy = push(l)
		}
		if len(r.Files) > 0 {
			l := &Layer{Kind: "files"}
			for _, f := range r.Files {
				path := filepath.Join(examples, f.Src)
				data, err := os.ReadFile(path)
				if err != nil {
					return nil, fmt.Errorf("recipe %s: %w", r.Name, err)
				}
				sum := sha256.Sum256(data)
				l.Files = append(l.Files, layerFile{f, hex.EncodeToString(sum[:]), path})
			}
			push(l)
		}
		byName[r.Name] = p
		out = append(out, p)
	}
	return out, nil
}

// ID names the image's content: its layers and its configuration.
func (p *Plan) ID() string {
	return shortHash([]byte(p.Name + "\n" + p.Top.ID() + "\n" + strings.Join(p.Env, "\n")))
}

// key is one hash over several plans; without files it doesn't change with the
// examples.
func key(ps []*Plan, files bool) string {
	var b strings.Builder
	for _, p := range ps {
		if files {
			fmt.Fprintln(&b, p.ID())
		} else {
			fmt.Fprintln(&b, p.Name, p.Heavy.ID())
		}
	}
	return shortHash([]byte(b.String()))
}

func sorted(in []string) []string {
	out := append([]string{}, in...)
	sort.Strings(out)
	return out
}

// hostSuite is the Debian release of this machine.
func hostSuite() (string, error) {
	data, err := os.ReadFile("/etc/os-release")
	if err != nil {
		return "", err
	}
	for _, line := range strings.Split(string(data), "\n") {
		if v, ok := strings.CutPrefix(line, "VERSION_CODENAME="); ok {
			return strings.Trim(v, `"'`), nil
		}
	}
	return "", fmt.Errorf("/etc/os-release has no VERSION_CODENAME; a Debian machine is needed to build workload images")
}

// findExamples looks for the examples of the work tree that the caller is in.
func findExamples() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		c := filepath.Join(dir, "examples")
		if _, err := os.Stat(filepath.Join(c, "pytorch", "ddp.py")); err == nil {
			return c, nil
		}
		if dir == "/" {
			return "", fmt.Errorf("no examples directory here or above; give --examples DIR")
		}
		dir = filepath.Dir(dir)
	}
}
