//go:build linux

package vm

import (
	"bufio"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// image is the file system of a machine.
type image struct {
	files map[string]entry // by absolute path
}

// entry is a file, directory or link of an image.
type entry struct {
	mode    uint32 // as stat(2) has it
	from    string // a file of this machine
	content []byte // when there is no from; of a link its target
}

// Kinds of entries, as stat(2) has them.
const (
	kindDir  = 0o040000
	kindFile = 0o100000
	kindLink = 0o120000
)

func newImage() *image { return &image{files: map[string]entry{}} }

// dirs makes the directories above a path.
func (i *image) dirs(path string) {
	for dir := filepath.Dir(path); dir != "/"; dir = filepath.Dir(dir) {
		if _, there := i.files[dir]; !there {
			i.files[dir] = entry{mode: kindDir | 0o755}
		}
	}
}

func (i *image) add(path string, e entry) {
	path = i.resolve(path)
	i.dirs(path)
	i.files[path] = e
}

// resolve follows the links of the image that lead to directories, as in /bin/sh.
func (i *image) resolve(path string) string {
	for link, e := range i.files {
		if rest, below := strings.CutPrefix(path, link+"/"); below && e.mode&0o170000 == kindLink {
			return filepath.Join(filepath.Dir(link), string(e.content), rest)
		}
	}
	return path
}

// merge makes the image's /bin and the like what they are on this machine.
func (i *image) merge() {
	for _, dir := range []string{"/bin", "/sbin", "/lib", "/lib64"} {
		if target, err := os.Readlink(dir); err == nil {
			i.add(dir, entry{mode: kindLink | 0o777, content: []byte(target)})
			i.files[filepath.Join("/", target)] = entry{mode: kindDir | 0o755}
		}
	}
}

// program adds a program of this machine, by its name, and the libraries that it needs. It
// reports whether there is one.
func (i *image) program(name string) (bool, error) {
	path, err := exec.LookPath(name)
	if errors.Is(err, exec.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	target, err := filepath.EvalSymlinks(path)
	if err != nil {
		return false, err
	}
	i.add(path, entry{mode: kindFile | 0o755, from: target})
	return true, i.libraries(target)
}

// places are where libraries are looked for.
var places = []string{"/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64", "/lib", "/usr/lib"}

// libraries adds what a program is linked to.
func (i *image) libraries(path string) error {
	file, err := elf.Open(path)
	if formatErr := (*elf.FormatError)(nil); errors.As(err, &formatErr) {
		return nil // a script
	}
	if err != nil {
		return err
	}
	defer file.Close()
	needs, err := file.ImportedLibraries()
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	for _, section := range file.Progs {
		if section.Type == elf.PT_INTERP {
			loader, err := io.ReadAll(section.Open())
			if err != nil {
				return err
			}
			needs = append(needs, strings.TrimRight(string(loader), "\x00"))
		}
	}
	for _, need := range needs {
		if err := i.library(need); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	return nil
}

func (i *image) library(name string) error {
	candidates := []string{name}
	if !filepath.IsAbs(name) {
		candidates = nil
		for _, place := range places {
			candidates = append(candidates, filepath.Join(place, name))
		}
	}
	for _, path := range candidates {
		target, err := filepath.EvalSymlinks(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if _, there := i.files[i.resolve(path)]; there {
			return nil
		}
		i.add(path, entry{mode: kindFile | 0o755, from: target})
		return i.libraries(target)
	}
	return fmt.Errorf("library %s: %w", name, fs.ErrNotExist)
}

// write writes the image as a cpio archive, which is what kernels start with.
func (i *image) write(name string) (err error) {
	file, err := os.Create(name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	out := bufio.NewWriterSize(file, 1<<20)
	number := 0
	paths := make([]string, 0, len(i.files))
	for path := range i.files {
		paths = append(paths, path)
	}
	slices.Sort(paths) // directories before what is in them
	for _, path := range paths {
		e := i.files[path]
		if e.from != "" {
			if e.content, err = os.ReadFile(e.from); err != nil {
				return err
			}
		}
		number++
		writeEntry(out, number, strings.TrimPrefix(path, "/"), e)
	}
	writeEntry(out, 0, "TRAILER!!!", entry{})
	return out.Flush()
}

// writeEntry writes an entry in the format newc. Errors stay with out.
func writeEntry(out *bufio.Writer, number int, path string, e entry) {
	fields := []int{number, int(e.mode), 0, 0, 1, 0, len(e.content), 0, 0, 0, 0, len(path) + 1, 0}
	_, _ = out.WriteString("070701")
	for _, field := range fields {
		_, _ = fmt.Fprintf(out, "%08X", field)
	}
	const head = 6 + 13*8
	_, _ = out.WriteString(path + "\x00" + padding(head+len(path)+1))
	_, _ = out.Write(e.content)
	_, _ = out.WriteString(padding(len(e.content)))
}

// padding fills up to a multiple of four.
func padding(n int) string { return "\x00\x00\x00"[:(4-n%4)%4] }
