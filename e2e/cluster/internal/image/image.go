// Package image packs container images that need no build tool.
package image

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"os"
	"runtime"
)

// PauseName is the image of every pod's sandbox, as a node refers to it.
const PauseName = "docker.io/trainyard/pause:1"

// Pause writes a docker-archive with the one static program.
func Pause(w io.Writer, program string) error {
	binary, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	layer, err := archive([]file{{"pause", 0o755, binary}})
	if err != nil {
		return err
	}
	config, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH,
		"os":           "linux",
		"config": map[string]any{
			"Entrypoint": []string{"/pause"},
			"User":       "65535:65535",
			"WorkingDir": "/",
		},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + digest(layer)}},
	})
	if err != nil {
		return err
	}
	manifest, err := json.Marshal([]map[string]any{{
		"Config":   digest(config) + ".json",
		"RepoTags": []string{"trainyard/pause:1"},
		"Layers":   []string{"layer.tar"},
	}})
	if err != nil {
		return err
	}
	all, err := archive([]file{
		{"manifest.json", 0o644, manifest},
		{digest(config) + ".json", 0o644, config},
		{"layer.tar", 0o644, layer},
	})
	if err != nil {
		return err
	}
	_, err = w.Write(all)
	return err
}

type file struct {
	name string
	mode int64
	data []byte
}

// archive omits times and owners: the same files give the same bytes.
func archive(files []file) ([]byte, error) {
	var b bytes.Buffer
	t := tar.NewWriter(&b)
	for _, f := range files {
		if err := t.WriteHeader(&tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.data))}); err != nil {
			return nil, err
		}
		if _, err := t.Write(f.data); err != nil {
			return nil, err
		}
	}
	return b.Bytes(), t.Close()
}

func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}
