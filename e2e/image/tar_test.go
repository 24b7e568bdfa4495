package main

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func needRoot(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: whiteouts are devices")
	}
}

func write(t *testing.T, root, name, data string) string {
	t.Helper()
	path := filepath.Join(root, name)
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must(t, os.WriteFile(path, []byte(data), 0o644))
	return path
}

// listing shows each entry of a tar in one line.
func listing(t *testing.T, data []byte) []string {
	t.Helper()
	var out []string
	tr := tar.NewReader(bytes.NewReader(data))
	for {
		h, err := tr.Next()
		if err == io.EOF {
			return out
		}
		must(t, err)
		body, err := io.ReadAll(tr)
		must(t, err)
		line := fmt.Sprintf("%c %04o %d:%d %s", h.Typeflag, h.Mode, h.Uid, h.Gid, h.Name)
		if h.Linkname != "" {
			line += " -> " + h.Linkname
		}
		if len(body) > 0 {
			line += " = " + string(body)
		}
		out = append(out, line)
	}
}

func equal(t *testing.T, got, want any) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got\n%v\nwant\n%v", got, want)
	}
}

func TestPackedTreeIsSortedAndKeepsOldTimes(t *testing.T) {
	start := time.Now()
	pack := func() []byte {
		root := t.TempDir()
		for _, name := range []string{"b/two", "b/one", "a"} {
			write(t, root, name, name)
		}
		old := time.Unix(1234567890, 0)
		must(t, os.Chtimes(filepath.Join(root, "a"), old, old))
		must(t, os.Link(filepath.Join(root, "a"), filepath.Join(root, "c")))
		must(t, os.Symlink("b/one", filepath.Join(root, "d")))
		write(t, root, "dev/null", "mounted")
		must(t, syscall.Mkfifo(filepath.Join(root, "fifo"), 0o644))
		var buf bytes.Buffer
		must(t, packDir(&buf, root, start, skipMounts))
		return buf.Bytes()
	}
	first := pack()
	owner := fmt.Sprintf("%d:%d", os.Getuid(), os.Getgid())
	want := []string{
		"0 0644 " + owner + " a = a",
		"5 0755 " + owner + " b/",
		"0 0644 " + owner + " b/one = b/one",
		"0 0644 " + owner + " b/two = b/two",
		"1 0644 " + owner + " c -> a",
		"2 0777 " + owner + " d -> b/one",
		"5 0755 " + owner + " dev/",
	}
	equal(t, listing(t, first), want)
	if !bytes.Equal(first, pack()) {
		t.Error("the same tree gives other bytes the second time")
	}
	tr := tar.NewReader(bytes.NewReader(first))
	for {
		h, err := tr.Next()
		if err == io.EOF {
			break
		}
		must(t, err)
		want := epoch
		if h.Name == "a" || h.Name == "c" {
			want = time.Unix(1234567890, 0)
		}
		if !h.ModTime.Equal(want) {
			t.Errorf("%s has the time %v, want %v", h.Name, h.ModTime, want)
		}
	}
}

func TestWhiteoutsThereAndBack(t *testing.T) {
	needRoot(t)
	upper := t.TempDir()
	write(t, upper, "etc/kept", "x")
	must(t, syscall.Mknod(filepath.Join(upper, "etc/gone"), syscall.S_IFCHR, 0))
	must(t, os.Mkdir(filepath.Join(upper, "new"), 0o700))
	write(t, upper, "new/file", "y")
	if err := syscall.Setxattr(filepath.Join(upper, "new"), opaqueXattr, []byte("y"), 0); err != nil {
		t.Skip("no trusted xattrs here:", err)
	}
	var buf bytes.Buffer
	must(t, packDir(&buf, upper, time.Unix(0, 0), nil))
	want := []string{
		"5 0755 0:0 etc/",
		"0 0000 0:0 etc/.wh.gone",
		"0 0644 0:0 etc/kept = x",
		"5 0700 0:0 new/",
		"0 0000 0:0 new/.wh..wh..opq",
		"0 0644 0:0 new/file = y",
	}
	equal(t, listing(t, buf.Bytes()), want)

	lower := t.TempDir()
	must(t, unpackLayer(bytes.NewReader(buf.Bytes()), lower))
	var again bytes.Buffer
	must(t, packDir(&again, lower, time.Unix(0, 0), nil))
	if !bytes.Equal(buf.Bytes(), again.Bytes()) {
		t.Errorf("unpacked and packed again:\n%s", strings.Join(listing(t, again.Bytes()), "\n"))
	}
}

func TestUnpackingStaysInside(t *testing.T) {
	needRoot(t)
	for _, h := range []*tar.Header{
		{Typeflag: tar.TypeReg, Name: "../out"},
		{Typeflag: tar.TypeReg, Name: "/out"},
		{Typeflag: tar.TypeLink, Name: "in", Linkname: "../out"},
	} {
		var buf bytes.Buffer
		tw := tar.NewWriter(&buf)
		must(t, tw.WriteHeader(h))
		must(t, tw.Close())
		if err := unpackLayer(&buf, t.TempDir()); err == nil || !strings.Contains(err.Error(), "outside") {
			t.Errorf("%s: %v", h.Name, err)
		}
	}
}

func TestFilesGetTheirDirectories(t *testing.T) {
	var buf bytes.Buffer
	must(t, packFiles(&buf, []tarFile{
		{"/opt/b/two", 0o755, []byte("2")},
		{"/opt/a", 0o644, []byte("1")},
	}))
	equal(t, listing(t, buf.Bytes()), []string{
		"5 0755 0:0 opt/",
		"0 0644 0:0 opt/a = 1",
		"5 0755 0:0 opt/b/",
		"0 0755 0:0 opt/b/two = 2",
	})
	for _, dst := range []string{"relative", "/"} {
		if packFiles(io.Discard, []tarFile{{dst, 0o644, nil}}) == nil {
			t.Errorf("%q was taken", dst)
		}
	}
	if packFiles(io.Discard, []tarFile{{"/a", 0o644, nil}, {"/a", 0o644, nil}}) == nil {
		t.Error("a file was taken twice")
	}
}
