package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
)

// A Blob is a finished layer: an uncompressed tar.
type Blob struct {
	Path   string `json:"-"`
	DiffID string
	Size   int64
}

// An Image is what goes into an archive.
type Image struct {
	Ref        string
	Arch       string // this machine's if empty
	Layers     []Blob
	Env        []string
	Entrypoint []string
	Cmd        []string
	User       string
	WorkingDir string
	CreatedBy  []string // one per layer
}

type ociConfig struct {
	Created      string       `json:"created"`
	Architecture string       `json:"architecture"`
	OS           string       `json:"os"`
	Config       ociRun       `json:"config"`
	RootFS       ociRootFS    `json:"rootfs"`
	History      []ociHistory `json:"history,omitempty"`
}

type ociRun struct {
	User       string   `json:"User,omitempty"`
	Env        []string `json:"Env,omitempty"`
	Entrypoint []string `json:"Entrypoint,omitempty"`
	Cmd        []string `json:"Cmd,omitempty"`
	WorkingDir string   `json:"WorkingDir,omitempty"`
}

type ociRootFS struct {
	Type    string   `json:"type"`
	DiffIDs []string `json:"diff_ids"`
}

type ociHistory struct {
	Created   string `json:"created"`
	CreatedBy string `json:"created_by,omitempty"`
}

type archiveManifest struct {
	Config   string
	RepoTags []string
	Layers   []string
}

func (i Image) arch() string {
	if i.Arch == "" {
		return runtime.GOARCH
	}
	return i.Arch
}

func (i Image) config() ([]byte, error) {
	created := epoch.UTC().Format("2006-01-02T15:04:05Z")
	c := ociConfig{
		Created: created, Architecture: i.arch(), OS: "linux",
		Config: ociRun{User: i.User, Env: i.Env, Entrypoint: i.Entrypoint, Cmd: i.Cmd, WorkingDir: i.WorkingDir},
		RootFS: ociRootFS{Type: "layers", DiffIDs: []string{}},
	}
	for _, l := range i.Layers {
		c.RootFS.DiffIDs = append(c.RootFS.DiffIDs, l.DiffID)
	}
	for _, by := range i.CreatedBy {
		c.History = append(c.History, ociHistory{Created: created, CreatedBy: by})
	}
	return json.Marshal(c)
}

var refPattern = regexp.MustCompile(`^[a-z0-9]+([._-]+[a-z0-9]+)*(:[0-9]+)?(/[a-z0-9]+([._-]+[a-z0-9]+)*)*:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$`)

func checkRef(ref string) error {
	if !refPattern.MatchString(ref) {
		return fmt.Errorf("%q isn't an image name with a tag, such as trainyard/operator:1", ref)
	}
	return nil
}

// hasHost tells whether a reference names a registry's host.
func hasHost(ref string) bool {
	first, _, ok := strings.Cut(ref, "/")
	return ok && (strings.ContainsAny(first, ".:") || first == "localhost")
}

// A tarball writes files into an archive, each name once.
type tarball struct {
	*tar.Writer
	done map[string]bool
}

func newTarball(w io.Writer) *tarball { return &tarball{tar.NewWriter(w), map[string]bool{}} }

func (t *tarball) put(name string, data []byte) error {
	return t.copy(name, int64(len(data)), func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(data)), nil
	})
}

func (t *tarball) putBlob(name string, b Blob) error {
	err := t.copy(name, b.Size, func() (io.ReadCloser, error) { return os.Open(b.Path) })
	if err != nil {
		return fmt.Errorf("%s: %w", b.Path, err)
	}
	return nil
}

func (t *tarball) copy(name string, size int64, open func() (io.ReadCloser, error)) error {
	if t.done[name] {
		return nil
	}
	t.done[name] = true
	r, err := open()
	if err != nil {
		return err
	}
	defer r.Close()
	h := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: size, ModTime: epoch}
	if err := t.WriteHeader(h); err != nil {
		return err
	}
	_, err = io.Copy(t, r)
	return err
}

// writeArchive writes an image as an archive that is an OCI image layout and a
// docker-archive at once, like those of docker save.
func writeArchive(w io.Writer, img Image) error {
	return writeLayout(w, []Image{img}, nil)
}

type ociDescriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int64             `json:"size"`
	Platform    *ociPlatform      `json:"platform,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

type ociPlatform struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
}

type ociManifest struct {
	SchemaVersion int             `json:"schemaVersion"`
	MediaType     string          `json:"mediaType"`
	Config        *ociDescriptor  `json:"config,omitempty"`
	Layers        []ociDescriptor `json:"layers,omitempty"`
	Manifests     []ociDescriptor `json:"manifests,omitempty"`
}

const (
	ociPrefix = "application/vnd.oci.image."
	ociLayout = `{"imageLayoutVersion":"1.0.0"}`
	blobs     = "blobs/sha256/"
)

// writeLayout writes an OCI image layout with several images, but without the
// layers that the reader has already. containerd takes that, since it looks
// for layers in its own store. A layout with all layers is a docker-archive too.
func writeLayout(w io.Writer, images []Image, have map[string]bool) error {
	t := newTarball(w)
	put := func(kind string, v any) (ociDescriptor, error) {
		data, ok := v.([]byte)
		if !ok {
			var err error
			if data, err = json.Marshal(v); err != nil {
				return ociDescriptor{}, err
			}
		}
		d := ociDescriptor{MediaType: ociPrefix + kind, Digest: "sha256:" + hexSum(data), Size: int64(len(data))}
		return d, t.put(blobs+hexSum(data), data)
	}
	if err := t.put("oci-layout", []byte(ociLayout)); err != nil {
		return err
	}
	index := ociManifest{SchemaVersion: 2, MediaType: ociPrefix + "index.v1+json"}
	docker := []archiveManifest{}
	for _, img := range images {
		a := archiveManifest{RepoTags: []string{img.Ref}, Layers: []string{}}
		if err := checkRef(img.Ref); err != nil {
			return err
		}
		m := ociManifest{SchemaVersion: 2, MediaType: ociPrefix + "manifest.v1+json"}
		for _, l := range img.Layers {
			m.Layers = append(m.Layers, ociDescriptor{MediaType: ociPrefix + "layer.v1.tar", Digest: l.DiffID, Size: l.Size})
			name := blobs + strings.TrimPrefix(l.DiffID, "sha256:")
			a.Layers = append(a.Layers, name)
			if have[l.DiffID] {
				continue
			}
			if err := t.putBlob(name, l); err != nil {
				return err
			}
		}
		config, err := img.config()
		if err != nil {
			return err
		}
		c, err := put("config.v1+json", config)
		if err != nil {
			return err
		}
		m.Config = &c
		a.Config = blobs + hexSum(config)
		docker = append(docker, a)
		d, err := put("manifest.v1+json", m)
		if err != nil {
			return err
		}
		d.Platform = &ociPlatform{Architecture: img.arch(), OS: "linux"}
		d.Annotations = naming(img.Ref)
		index.Manifests = append(index.Manifests, d)
	}
	list, err := json.Marshal(index)
	if err != nil {
		return err
	}
	if err := t.put("index.json", list); err != nil {
		return err
	}
	if len(have) == 0 {
		if list, err = json.Marshal(docker); err != nil {
			return err
		}
		if err := t.put("manifest.json", list); err != nil {
			return err
		}
	}
	return t.Close()
}

// writeIndex joins archives of one image for several architectures into an OCI
// image layout with one index of them.
func writeIndex(w io.Writer, ref string, archives []string) error {
	if err := checkRef(ref); err != nil {
		return err
	}
	t := newTarball(w)
	if err := t.put("oci-layout", []byte(ociLayout)); err != nil {
		return err
	}
	all := ociManifest{SchemaVersion: 2, MediaType: ociPrefix + "index.v1+json"}
	known := map[ociPlatform]string{}
	for _, path := range archives {
		d, err := t.putBlobsOf(path)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if other, ok := known[*d.Platform]; ok {
			return fmt.Errorf("%s and %s are both for %s", other, path, d.Platform.Architecture)
		}
		known[*d.Platform] = path
		d.Annotations = nil
		all.Manifests = append(all.Manifests, d)
	}
	data, err := json.Marshal(all)
	if err != nil {
		return err
	}
	if err := t.put(blobs+hexSum(data), data); err != nil {
		return err
	}
	top := ociManifest{SchemaVersion: 2, MediaType: all.MediaType, Manifests: []ociDescriptor{{
		MediaType: all.MediaType, Digest: "sha256:" + hexSum(data), Size: int64(len(data)), Annotations: naming(ref),
	}}}
	if data, err = json.Marshal(top); err != nil {
		return err
	}
	if err := t.put("index.json", data); err != nil {
		return err
	}
	return t.Close()
}

// putBlobsOf copies the blobs of an archive with one image, and returns the
// descriptor of its manifest.
func (t *tarball) putBlobsOf(path string) (ociDescriptor, error) {
	var index ociManifest
	f, err := os.Open(path)
	if err != nil {
		return ociDescriptor{}, err
	}
	defer f.Close()
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return ociDescriptor{}, err
		}
		switch {
		case h.Name == "index.json":
			err = json.NewDecoder(r).Decode(&index)
		case strings.HasPrefix(h.Name, blobs):
			err = t.copy(h.Name, h.Size, func() (io.ReadCloser, error) { return io.NopCloser(r), nil })
		}
		if err != nil {
			return ociDescriptor{}, err
		}
	}
	if len(index.Manifests) != 1 || index.Manifests[0].Platform == nil {
		return ociDescriptor{}, fmt.Errorf("want one image with its platform, have %d", len(index.Manifests))
	}
	return index.Manifests[0], nil
}

// naming is how tools find an image's name in a layout.
func naming(ref string) map[string]string {
	_, tag, _ := strings.Cut(ref[strings.LastIndex(ref, "/")+1:], ":")
	return map[string]string{
		"io.containerd.image.name":          fullRef(ref),
		"org.opencontainers.image.ref.name": tag,
	}
}

// fullRef is what containerd calls an image.
func fullRef(ref string) string {
	switch {
	case hasHost(ref):
		return ref
	case strings.Contains(ref, "/"):
		return "docker.io/" + ref
	}
	return "docker.io/library/" + ref
}

func hexSum(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// atomically writes a file under another name first.
func atomically(path string, write func(io.Writer) error) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".new-"+filepath.Base(path)+"-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	if err := write(f); err != nil {
		return err
	}
	if err := f.Chmod(0o644); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
