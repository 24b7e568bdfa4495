package main

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"syscall"
	"time"
)

// Whiteouts: an overlay's upper directory marks a removed entry with a
// character device 0:0 and a directory that hides its lower one with an xattr;
// an image layer has an empty file .wh.NAME, or .wh..wh..opq in the directory.
const (
	whPrefix    = ".wh."
	whOpaque    = ".wh..wh..opq"
	opaqueXattr = "trusted.overlay.opaque"
	capXattr    = "security.capability"
)

// epoch is the time of everything that was made while a layer was built. Files
// that came with an older time from their package keep it: compiled Python
// files are only valid together with the time of their source.
var epoch = time.Unix(1700000000, 0)

// digester hashes and counts what goes through it.
type digester struct {
	w io.Writer
	n int64
}

func digesting(w io.Writer) (*digester, func() string) {
	h := sha256.New()
	return &digester{w: io.MultiWriter(w, h)}, func() string {
		return "sha256:" + hex.EncodeToString(h.Sum(nil))
	}
}

func (d *digester) Write(p []byte) (int, error) {
	n, err := d.w.Write(p)
	d.n += int64(n)
	return n, err
}

// packDir writes the tree under root as an image layer: sorted, numeric owners,
// times no later than since become epoch. skip gets slash-less relative paths;
// a directory that is skipped keeps out what is in it, too.
func packDir(w io.Writer, root string, since time.Time, skip func(string) bool) error {
	tw := tar.NewWriter(w)
	links := map[[2]uint64]string{}
	var walk func(rel string) error
	walk = func(rel string) error {
		entries, err := os.ReadDir(filepath.Join(root, rel))
		if err != nil {
			return err
		}
		sort.Slice(entries, func(i, j int) bool { return entries[i].Name() < entries[j].Name() })
		for _, e := range entries {
			name := filepath.Join(rel, e.Name())
			if skip != nil && skip(name) {
				continue
			}
			dir, err := packEntry(tw, root, name, since, links)
			if err != nil {
				return err
			}
			if dir {
				if err := walk(name); err != nil {
					return err
				}
			}
		}
		return nil
	}
	if err := walk(""); err != nil {
		return err
	}
	return tw.Close()
}

func packEntry(tw *tar.Writer, root, name string, since time.Time, links map[[2]uint64]string) (dir bool, err error) {
	path := filepath.Join(root, name)
	var st syscall.Stat_t
	if err := syscall.Lstat(path, &st); err != nil {
		return false, &os.PathError{Op: "lstat", Path: path, Err: err}
	}
	h := &tar.Header{
		Name: name, Mode: int64(st.Mode & 0o7777),
		Uid: int(st.Uid), Gid: int(st.Gid),
		ModTime: time.Unix(st.Mtim.Sec, 0),
	}
	if !h.ModTime.Before(since.Truncate(time.Second)) {
		h.ModTime = epoch
	}
	switch st.Mode & syscall.S_IFMT {
	case syscall.S_IFDIR:
		h.Typeflag, h.Name = tar.TypeDir, name+"/"
		if err := tw.WriteHeader(h); err != nil {
			return false, err
		}
		if v, _ := getxattr(path, opaqueXattr); string(v) == "y" {
			return true, tw.WriteHeader(whiteout(filepath.Join(name, whOpaque)))
		}
		return true, nil
	case syscall.S_IFLNK:
		h.Typeflag, h.Mode = tar.TypeSymlink, 0o777
		if h.Linkname, err = os.Readlink(path); err != nil {
			return false, err
		}
		return false, tw.WriteHeader(h)
	case syscall.S_IFCHR:
		if st.Rdev == 0 {
			return false, tw.WriteHeader(whiteout(filepath.Join(filepath.Dir(name), whPrefix+filepath.Base(name))))
		}
		return false, nil // the runtime makes devices
	case syscall.S_IFREG:
	default:
		return false, nil // sockets, pipes, block devices: nothing that an image needs
	}
	if strings.HasPrefix(filepath.Base(name), whPrefix) {
		return false, fmt.Errorf("%s: this name means a removed file in an image", path)
	}
	if st.Nlink > 1 {
		id := [2]uint64{uint64(st.Dev), st.Ino}
		if first, ok := links[id]; ok {
			h.Typeflag, h.Linkname = tar.TypeLink, first
			return false, tw.WriteHeader(h)
		}
		links[id] = name
	}
	h.Typeflag, h.Size = tar.TypeReg, st.Size
	if v, _ := getxattr(path, capXattr); len(v) > 0 {
		h.PAXRecords = map[string]string{"SCHILY.xattr." + capXattr: string(v)}
	}
	if err := tw.WriteHeader(h); err != nil {
		return false, err
	}
	f, err := os.Open(path)
	if err != nil {
		return false, err
	}
	defer f.Close()
	_, err = io.Copy(tw, f)
	return false, err
}

func whiteout(name string) *tar.Header {
	return &tar.Header{Typeflag: tar.TypeReg, Name: name, ModTime: epoch}
}

func getxattr(path, name string) ([]byte, error) {
	buf := make([]byte, 1024)
	n, err := syscall.Getxattr(path, name, buf)
	if err != nil {
		return nil, err
	}
	return buf[:n], nil
}

// unpackLayer writes a layer to dir the way overlayfs wants a lower directory:
// whiteouts become devices again.
func unpackLayer(r io.Reader, dir string) error {
	tr := tar.NewReader(r)
	type stamp struct {
		path string
		at   time.Time
	}
	var dirs []stamp
	for {
		h, err := tr.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		name := filepath.Clean(h.Name)
		if !filepath.IsLocal(name) {
			return fmt.Errorf("the layer has an entry outside of its root: %q", h.Name)
		}
		path := filepath.Join(dir, name)
		base := filepath.Base(name)
		if base == whOpaque {
			if err := syscall.Setxattr(filepath.Dir(path), opaqueXattr, []byte("y"), 0); err != nil {
				return &os.PathError{Op: "setxattr", Path: path, Err: err}
			}
			continue
		}
		if gone, ok := strings.CutPrefix(base, whPrefix); ok {
			path = filepath.Join(filepath.Dir(path), gone)
			if err := syscall.Mknod(path, syscall.S_IFCHR, 0); err != nil {
				return &os.PathError{Op: "mknod", Path: path, Err: err}
			}
			continue
		}
		switch h.Typeflag {
		case tar.TypeDir:
			if err := os.Mkdir(path, 0o755); err != nil && !os.IsExist(err) {
				return err
			}
			dirs = append(dirs, stamp{path, h.ModTime})
		case tar.TypeSymlink:
			if err := os.Symlink(h.Linkname, path); err != nil {
				return err
			}
			if err := os.Lchown(path, h.Uid, h.Gid); err != nil {
				return err
			}
			continue
		case tar.TypeLink:
			if !filepath.IsLocal(filepath.Clean(h.Linkname)) {
				return fmt.Errorf("the layer links to outside of its root: %q", h.Linkname)
			}
			if err := os.Link(filepath.Join(dir, h.Linkname), path); err != nil {
				return err
			}
			continue
		case tar.TypeReg:
			f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
			if err != nil {
				return err
			}
			_, err = io.Copy(f, tr)
			if cerr := f.Close(); err == nil {
				err = cerr
			}
			if err != nil {
				return err
			}
		default:
			continue
		}
		if err := os.Lchown(path, h.Uid, h.Gid); err != nil {
			return err
		}
		if err := syscall.Chmod(path, uint32(h.Mode)); err != nil {
			return &os.PathError{Op: "chmod", Path: path, Err: err}
		}
		if v := h.PAXRecords["SCHILY.xattr."+capXattr]; v != "" {
			if err := syscall.Setxattr(path, capXattr, []byte(v), 0); err != nil {
				return &os.PathError{Op: "setxattr", Path: path, Err: err}
			}
		}
		if err := os.Chtimes(path, h.ModTime, h.ModTime); err != nil {
			return err
		}
	}
	for i := len(dirs) - 1; i >= 0; i-- {
		if err := os.Chtimes(dirs[i].path, dirs[i].at, dirs[i].at); err != nil {
			return err
		}
	}
	return nil
}

// A tarFile is one file of a layer that isn't made from a directory tree.
type tarFile struct {
	Dst  string
	Mode int64
	Data []byte
}

// packFiles writes a layer with these files and the directories above them.
func packFiles(w io.Writer, files []tarFile) error {
	files = append([]tarFile{}, files...)
	sort.Slice(files, func(i, j int) bool { return files[i].Dst < files[j].Dst })
	tw := tar.NewWriter(w)
	made := map[string]bool{}
	for _, f := range files {
		name := strings.TrimPrefix(filepath.Clean(f.Dst), "/")
		if !filepath.IsAbs(f.Dst) || name == "" {
			return fmt.Errorf("%q isn't an absolute path of a file", f.Dst)
		}
		if made[name] {
			return fmt.Errorf("%s is there twice", f.Dst)
		}
		parts := strings.Split(name, "/")
		for i := 1; i < len(parts); i++ {
			dir := strings.Join(parts[:i], "/")
			if !made[dir] {
				made[dir] = true
				if err := tw.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o755, ModTime: epoch}); err != nil {
					return err
				}
			}
		}
		made[name] = true
		if err := tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: f.Mode, Size: int64(len(f.Data)), ModTime: epoch}); err != nil {
			return err
		}
		if _, err := tw.Write(f.Data); err != nil {
			return err
		}
	}
	return tw.Close()
}
