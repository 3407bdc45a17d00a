package cli

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/toolfleet/toolfleet/internal/system"
	"github.com/toolfleet/toolfleet/internal/system/regular"
	"github.com/toolfleet/toolfleet/internal/system/yamlfile"
)

// A project's file comes with its repository, from its authors. It counts only once a person
// trusts it, at this path and with this content; what it names inside the project, such as a policy
// or a folder of tools, is part of the content.

// mark is where the trust in a file is recorded: the name has a hash of what is trusted.
type mark struct{ path, project string }

// maxTrusted bounds the files whose content is trusted, and their bytes.
const (
	maxTrustedFiles = 1000
	maxTrustedBytes = 64 << 20
)

// trustOf computes the mark of a project's file as it was read: it may have changed since.
func trustOf(s *settings) (mark, error) {
	h := &hasher{sum: sha256.New(), left: maxTrustedBytes}
	_, _ = fmt.Fprintf(h.sum, "%q %d\n%s", s.path, len(s.content), s.content) // a hash takes everything
	h.named(filepath.Dir(s.path), s.root)
	if h.err != nil {
		return mark{}, Usagef("%s: %v", s.path, h.err)
	}
	dir, err := StateDir("trusted")
	return mark{path: filepath.Join(dir, hex.EncodeToString(h.sum.Sum(nil))), project: s.path}, err
}

func (m mark) given() bool { return exists(m.path) }

func (m mark) give() error {
	if err := os.MkdirAll(filepath.Dir(m.path), 0o700); err != nil {
		return err
	}
	return regular.Replace(m.path, []byte(m.project+"\n"))
}

// Trust records that the person trusts the file of the project that dir is in, or forgets it, and
// returns the path of the file.
func Trust(dir string, forget bool) (string, error) {
	path := findProject(dir)
	if path == "" {
		return "", Usagef("no %s in %s or above it in its repository", ProjectFile, cmp.Or(dir, "."))
	}
	s := &settings{path: path}
	var m mark
	var err error
	if s.root, s.content, err = parseYAML(path); err == nil {
		m, err = trustOf(s)
	}
	switch {
	case err != nil:
		return path, err
	case !forget:
		return path, m.give()
	case !m.given():
		return path, nil
	}
	return path, os.Remove(m.path)
}

// hasher sums up files.
type hasher struct {
	sum interface {
		io.Writer
		Sum(b []byte) []byte
	}
	files int
	left  int64
	err   error
}

// file adds a file, or a directory with all below it.
func (h *hasher) file(path string) {
	err := filepath.WalkDir(path, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.Type()&fs.ModeSymlink != 0 {
			var info fs.FileInfo
			if info, err = os.Stat(path); err == nil && info.IsDir() {
				return fmt.Errorf("%s: a symbolic link to a directory cannot be trusted", path)
			}
		} else if err == nil && entry.IsDir() {
			return nil
		}
		if errors.Is(err, fs.ErrNotExist) {
			_, err = fmt.Fprintf(h.sum, "%q none\n", path)
			return err
		}
		if h.files++; err == nil && h.files > maxTrustedFiles {
			return fmt.Errorf("names more than %d files", maxTrustedFiles)
		}
		if err != nil {
			return err
		}
		return h.content(path)
	})
	h.err = errors.Join(h.err, err)
}

func (h *hasher) content(path string) error {
	content, err := regular.Read(path, h.left)
	if errors.Is(err, regular.ErrLarge) {
		return fmt.Errorf("the named files have more than %s together", Size(maxTrustedBytes))
	}
	if err != nil {
		return err
	}
	h.left -= int64(len(content))
	_, err = fmt.Fprintf(h.sum, "%q %d\n%s", path, len(content), content)
	return err
}

// obeyed are the flags with files that decide what a session does.
func obeyed() []string {
	return []string{"hooks", "mcp-config", "mcp-tokens", "model", "policy", "system", "tools"}
}

// named adds the files and directories inside a project that its settings name.
func (h *hasher) named(dir string, root *yaml.Node) {
	if root == nil {
		return
	}
	for key, node := range yamlfile.Pairs(root) {
		if node.Kind == yaml.MappingNode {
			h.named(dir, node)
		}
		for _, value := range append(node.Content, node) {
			path := strings.TrimPrefix(strings.TrimPrefix(value.Value, "script:"), "replay:")
			if value.Kind != yaml.ScalarNode || path == "" || !slices.Contains(obeyed(), key.Value) {
				continue
			}
			if !filepath.IsAbs(path) {
				path = filepath.Join(dir, path)
			}
			if system.Within(dir, path) {
				h.file(path)
			}
		}
	}
}
