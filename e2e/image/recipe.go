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
	Tools  []string // Debian packages that lie under the Python packages only while those are installed
	Source []string // files below the examples directory that lie in /run/host/source only then
	Run    []string // shell commands that end the installation of the Python packages
	Files  []File   // last, because they change most often
	Env    []string // added to what the parent has
	User   string   // whom pods run as that don't say; "" is root
	Dir    string   // where they begin; "" is /

	Entrypoint []string // runs whatever a pod gives as arguments alone; children have none
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
		Env:  pythonEnv,
	},
	{
		// Debian 13, for newer packages than those of the host's release.
		Name:  "trainyard/python-debian13:1",
		Suite: "trixie",
		Apt:   []string{"python3", "ca-certificates"},
		Env:   pythonEnv,
	},
	{
		Name: "trainyard/pytorch-cpu:1",
		From: "trainyard/python-debian13:1", // with PyTorch 2.6
		// scikit-learn is there for the digits data set that it ships; the last
		// line is what Transformers needs.
		Apt: []string{
			"python3-torch", "python3-sklearn",
			"python3-filelock", "python3-fsspec", "python3-psutil", "python3-regex", "python3-requests", "python3-tqdm", "python3-yaml",
		},
		Pip: []string{
			"accelerate==1.10.1", "huggingface-hub==0.34.4", "safetensors==0.6.2", "tokenizers==0.21.4", "transformers==4.55.4",
		},
		// The packages bring compilers, graphics drivers and their test suites;
		// a fifth of the layer. torch/testing and the like, which the libraries
		// import themselves, don't match.
		Remove: []string{
			"/usr/bin/*-lto-dump-*",
			"/usr/include",
			"/usr/lib/*.a",
			"/usr/lib/*/dri",
			"/usr/lib/*/libLLVM*",
			"/usr/lib/*/mfx",
			"/usr/lib/gcc/*/cc1*",
			"/usr/lib/gcc/*/lto*",
			"/usr/libexec/gcc",
			"/usr/lib/python3/dist-packages/scipy/*/tests",
			"/usr/lib/python3/dist-packages/sklearn/*/tests",
			"/usr/lib/python3/dist-packages/sympy/*/tests",
			"/usr/lib/python3/dist-packages/torch/bin/test_*",
			"/usr/share/proj",
		},
		Env: []string{"USE_LIBUV=0"},
		// Debian builds PyTorch without libuv, which torchrun uses by default.
		// The variable turns it off, except in these files, which ignore it.
		Edits: []Edit{
			withoutLibuv("rendezvous.py", "is_master=False,"),
			withoutLibuv("elastic/rendezvous/static_tcp_rendezvous.py", "multi_tenant=True,"),
			withoutLibuv("elastic/rendezvous/c10d_rendezvous_backend.py", "multi_tenant=True,"),
			withoutLibuv("elastic/rendezvous/dynamic_rendezvous.py", "multi_tenant=True,"),
		},
		Files: scripts("pytorch", "ddp.py", "resume.py", "fsdp.py", "finetune.py"),
	},
	{
		// An older one, for the tests of elastic jobs: it restarts its processes
		// without an end of the container when a worker joins.
		Name: "trainyard/pytorch1-cpu:1",
		From: "trainyard/python:1",
		Apt:  []string{"python3-torch", "python3-sklearn"},
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
		Name: "trainyard/jax-cpu:1",
		From: "trainyard/python:1",
		Pip: []string{
			"jax==0.4.38", "jaxlib==0.4.38", "ml-dtypes==0.5.1", "numpy==2.0.2", "opt-einsum==3.4.0", "scipy==1.15.3",
		},
		Remove: []string{
			"/usr/local/lib/python3*/numpy/*/tests",
			"/usr/local/lib/python3*/scipy/*/tests",
		},
		Files: scripts("jax", "train.py"),
	},
	{
		Name:   "trainyard/openmpi:1",
		From:   "trainyard/python-debian13:1", // with Open MPI 5
		Apt:    openMPI,
		Remove: mpiRemoves,
		Edits:  mpiUser,
		Files:  mpiFiles(),
	},
	{
		// Open MPI 4, for root, and with the usual port.
		Name:   "trainyard/openmpi4:1",
		From:   "trainyard/python:1",
		Apt:    openMPI,
		Remove: mpiRemoves,
		Files:  mpiRootFiles(),
	},
	{
		// The same with Debian's own settings of SSH: the server checks the
		// modes of keys, the client refuses unknown hosts. Images for jobs of
		// v1, which ran without an SSH server, have nothing better to offer.
		Name:   "trainyard/openmpi4-debian:1",
		From:   "trainyard/python:1",
		Apt:    openMPI,
		Remove: mpiRemoves,
		Files:  mpiPrograms(),
	},
	{
		// MPICH 4.2; that of Debian 12 hangs now and again.
		Name:   "trainyard/mpich:1",
		From:   "trainyard/python-debian13:1",
		Apt:    []string{"mpich", "openssh-client", "openssh-server", "python3-numpy"},
		Pip:    []string{"mpi4py==4.1.2"},
		Remove: mpiRemoves,
		Edits:  mpiUser,
		Files:  append(mpiFiles(), mpiEntrypoint),
		Env:    []string{"MPI4PY_LIBMPI=libmpich.so.12"},

		Entrypoint: []string{mpiEntrypoint.Dst},
	},
	{
		// Intel MPI.
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
		Edits: mpiUser,
		Files: append(mpiFiles(), mpiEntrypoint),
		Env: []string{
			"I_MPI_ROOT=/usr/local",
			"LD_LIBRARY_PATH=/usr/local/lib:/usr/local/lib/libfabric",
			"FI_PROVIDER_PATH=/usr/local/lib/libfabric/prov",
			"FI_PROVIDER=tcp",
			"MPI4PY_LIBMPI=/usr/local/lib/libmpi.so.12",
		},
		Entrypoint: []string{mpiEntrypoint.Dst},
	},
	{
		// Spark 4.0, as published images have it: entry point, user, directories. Of PySpark, which brings
		// Spark with it.
		Name:   "trainyard/spark:1",
		From:   "trainyard/python:1",
		Apt:    []string{"openjdk-17-jre-headless", "python3-numpy", "tini"},
		Pip:    []string{"pyspark==4.0.1", "py4j==0.10.9.9"},
		Tools:  []string{"maven", "openjdk-17-jdk-headless"},
		Source: []string{"spark/SparkPi.java"},
		Run: append(jmxExporter(),
			"home=$(echo /usr/local/lib/python3*/dist-packages/pyspark)",
			"mkdir -p /tmp/classes $home/examples/jars /opt",
			"javac --release 17 -cp \"$home/jars/*\" -d /tmp/classes /run/host/source/SparkPi.java",
			"jar --create --date=2020-01-01T00:00:00Z --file=$home/examples/jars/spark-examples.jar -C /tmp/classes .",
			"rm -rf /tmp/classes",
			"mkdir -p $home/conf $home/work-dir $home/pod-template && chmod 0777 $home/work-dir",
			"ln -s $home /opt/spark",
			"ln -s $(readlink -f /usr/bin/java | sed s:/bin/java::) /opt/java",
		),
		Edits: []Edit{{
			Path: "/etc/passwd",
			Old:  "nobody:x:",
			New:  "spark:x:185:0::/opt/spark/work-dir:/bin/bash\nnobody:x:",
		}},
		Files: append(sparkPrograms(),
			File{Src: "spark/decom.sh", Dst: "/opt/decom.sh", Mode: 0o755},
			sparkEntrypoint,
		),
		Env: []string{
			"SPARK_HOME=/opt/spark",
			"JAVA_HOME=/opt/java",
		},
		User:       "185",
		Dir:        "/opt/spark/work-dir",
		Entrypoint: []string{sparkEntrypoint.Dst},
	},
	{
		// For images that are pulled, and late.
		Name: "trainyard/registry:1",
		From: "trainyard/python:1",
		Apt:  []string{"docker-registry"},
	},
}

// pythonEnv is the environment of the images with Python.
var pythonEnv = []string{
	"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
	"LANG=C.UTF-8",
	"PYTHONUNBUFFERED=1",
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

// withoutLibuv adds an argument after this one, in a file of PyTorch's.
func withoutLibuv(name, argument string) Edit {
	return Edit{
		Path: "/usr/lib/python3/dist-packages/torch/distributed/" + name,
		Old:  argument,
		New:  argument + " use_libuv=False,",
	}
}

// openMPI is Open MPI, SSH and the bindings of Python.
var openMPI = []string{"openmpi-bin", "openssh-client", "openssh-server", "python3-mpi4py", "python3-numpy"}

// mpiUser is whom the pods of MPI jobs run as: SSH knows nobody without an
// account.
var mpiUser = []Edit{{
	Path: "/etc/passwd",
	Old:  "nobody:x:",
	New:  "mpiuser:x:1000:1000::/home/mpiuser:/bin/sh\nnobody:x:",
}}

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

// mpiPrograms are the programs of the examples; pi is where published manifests
// look for it.
func mpiPrograms() []File {
	return append(scripts("mpi", "poisson.py"),
		File{Src: "mpi/pi.py", Dst: "/home/mpiuser/pi", Mode: 0o755},
		// A server that root runs wants the directory.
		File{Src: "mpi/root_sshd_config", Dst: "/run/sshd/.keep", Mode: 0o644},
	)
}

// mpiFiles are those, and SSH as published images have it: at port 2222, for
// root and for mpiuser.
func mpiFiles() []File {
	return append(mpiPrograms(),
		File{Src: "mpi/sshd_config", Dst: "/home/mpiuser/.sshd_config", Mode: 0o644},
		File{Src: "mpi/root_sshd_config_2222", Dst: "/etc/ssh/sshd_config.d/mpi.conf", Mode: 0o644},
		File{Src: "mpi/ssh_config", Dst: "/etc/ssh/ssh_config.d/mpi.conf", Mode: 0o644},
	)
}

// mpiRootFiles are the programs, and SSH for root at the usual port.
func mpiRootFiles() []File {
	return append(mpiPrograms(),
		File{Src: "mpi/root_sshd_config", Dst: "/etc/ssh/sshd_config.d/mpi.conf", Mode: 0o644},
		File{Src: "mpi/root_ssh_config", Dst: "/etc/ssh/ssh_config.d/mpi.conf", Mode: 0o644},
	)
}

// mpiEntrypoint makes a launcher wait for its hosts by itself, as published
// images do whose commands are arguments.
var mpiEntrypoint = File{Src: "mpi/entrypoint.sh", Dst: "/usr/local/bin/mpi-entrypoint", Mode: 0o755}

// sparkPrograms are the examples, where manifests look for those of Spark.
func sparkPrograms() []File {
	var out []File
	for _, n := range []string{"pi.py", "clouds.py", "sales.py"} {
		out = append(out, File{Src: "spark/" + n, Dst: "/opt/trainyard/" + n, Mode: 0o644})
	}
	return out
}

// jmxExporter gets the agent that tells Prometheus of a JVM's beans, from Maven's central repository.
func jmxExporter() []string {
	return []string{
		// Java reads no certificates of this machine; of one file it makes what Java reads.
		`cat >/tmp/Trust.java <<'END'
import java.io.*;
import java.security.KeyStore;
import java.security.cert.*;

class Trust {
    public static void main(String[] files) throws Exception {
        KeyStore store = KeyStore.getInstance("PKCS12");
        store.load(null, null);
        int n = 0;
        try (InputStream in = new FileInputStream(files[0])) {
            for (Certificate each : CertificateFactory.getInstance("X.509").generateCertificates(in)) {
                store.setCertificateEntry("ca" + n++, each);
            }
        }
        try (OutputStream out = new FileOutputStream(files[1])) {
            store.store(out, "changeit".toCharArray());
        }
    }
}
END`,
		"if [ -e /run/host/certs.pem ]; then",
		"  java /tmp/Trust.java /run/host/certs.pem /tmp/trust",
		"  export MAVEN_OPTS='-Djavax.net.ssl.trustStore=/tmp/trust -Djavax.net.ssl.trustStorePassword=changeit'",
		"fi",
		"mvn -q -B -Dmaven.repo.local=/tmp/m2 org.apache.maven.plugins:maven-dependency-plugin:3.6.0:copy " +
			"-Dartifact=io.prometheus.jmx:jmx_prometheus_javaagent:0.20.0 -Dmdep.stripVersion=true -DoutputDirectory=/prometheus",
		"chmod 0644 /prometheus/*.jar",
		"rm -rf /tmp/m2 /tmp/trust /tmp/Trust.java",
	}
}

// sparkEntrypoint runs drivers and executors.
var sparkEntrypoint = File{Src: "spark/entrypoint.sh", Dst: "/opt/entrypoint.sh", Mode: 0o755}

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
	Tools    []string    `json:",omitempty"`
	Source   []layerFile `json:",omitempty"`
	Run      []string    `json:",omitempty"`
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
	User  string
	Dir   string

	Entrypoint []string
}

// plans turns recipes into layers. Files are looked up below examples.
func plans(recipes []Recipe, suite, examples string) ([]*Plan, error) {
	byName := map[string]*Plan{}
	var out []*Plan
	for _, r := range recipes {
		p := &Plan{Name: r.Name, Entrypoint: r.Entrypoint, User: r.User, Dir: r.Dir}
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
			source, err := layerFiles(examples, sources(r.Source))
			if err != nil {
				return nil, fmt.Errorf("recipe %s: %w", r.Name, err)
			}
			packages = append(packages, &Layer{
				Kind: "pip", Packages: sorted(r.Pip), Strip: r.Strip, Remove: r.Remove,
				Tools: r.Tools, Source: source, Run: r.Run,
			})
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
			files, err := layerFiles(examples, r.Files)
			if err != nil {
				return nil, fmt.Errorf("recipe %s: %w", r.Name, err)
			}
			push(&Layer{Kind: "files", Files: files})
		}
		byName[r.Name] = p
		out = append(out, p)
	}
	return out, nil
}

// layerFiles are files with what is in them.
func layerFiles(examples string, files []File) ([]layerFile, error) {
	var out []layerFile
	for _, f := range files {
		path := filepath.Join(examples, f.Src)
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		sum := sha256.Sum256(data)
		out = append(out, layerFile{f, hex.EncodeToString(sum[:]), path})
	}
	return out, nil
}

// sources are files that lie beside a layer while it is built.
func sources(names []string) []File {
	var out []File
	for _, n := range names {
		out = append(out, File{Src: n, Dst: "/run/host/source/" + filepath.Base(n), Mode: 0o644})
	}
	return out
}

// ID names the image's content: its layers and its configuration.
func (p *Plan) ID() string {
	lines := append([]string{p.Name, p.Top.ID()}, p.Env...)
	for _, word := range p.Entrypoint {
		lines = append(lines, "entrypoint "+word)
	}
	if p.User != "" {
		lines = append(lines, "user "+p.User)
	}
	if p.Dir != "" {
		lines = append(lines, "directory "+p.Dir)
	}
	return shortHash([]byte(strings.Join(lines, "\n")))
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
