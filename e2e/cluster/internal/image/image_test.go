package image

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"io"
	"os"
	"testing"
)

func TestPauseIsALoadableArchive(t *testing.T) {
	program := t.TempDir() + "/pause"
	if err := os.WriteFile(program, []byte("program"), 0o755); err != nil {
		t.Fatal(err)
	}
	var first, second bytes.Buffer
	if err := Pause(&first, program); err != nil {
		t.Fatal(err)
	}
	if err := Pause(&second, program); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(first.Bytes(), second.Bytes()) {
		t.Error("two archives of the same program differ")
	}
	files := map[string][]byte{}
	for r := tar.NewReader(&first); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if files[h.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
	var manifest []struct {
		Config   string
		RepoTags []string
		Layers   []string
	}
	if err := json.Unmarshal(files["manifest.json"], &manifest); err != nil {
		t.Fatal(err)
	}
	var config struct {
		RootFS struct {
			DiffIDs []string `json:"diff_ids"`
		} `json:"rootfs"`
	}
	if err := json.Unmarshal(files[manifest[0].Config], &config); err != nil {
		t.Fatal(err)
	}
	if want := "sha256:" + digest(files[manifest[0].Layers[0]]); config.RootFS.DiffIDs[0] != want {
		t.Errorf("diff id %s, want %s", config.RootFS.DiffIDs[0], want)
	}
	if "docker.io/"+manifest[0].RepoTags[0] != PauseName {
		t.Errorf("tag %s", manifest[0].RepoTags[0])
	}
}
