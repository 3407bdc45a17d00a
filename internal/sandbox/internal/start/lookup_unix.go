//go:build unix

package start

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// defaultPath is where programs are looked up without a PATH.
const defaultPath = "/usr/local/bin:/usr/bin:/bin"

// Lookup finds a program in the command's PATH, which need not be ours. Relative
// names and PATH entries are relative to dir.
func Lookup(name, path, dir string) (string, error) {
	if strings.Contains(name, "/") {
		return lookupFile(name, dir)
	}
	if path == "" {
		path = defaultPath
	}
	found := false
	for _, entry := range filepath.SplitList(path) {
		file := absolute(filepath.Join(entry, name), dir)
		info, err := os.Stat(file)
		if err != nil || info.IsDir() {
			continue
		}
		if executable(info) {
			return file, nil
		}
		found = true
	}
	if found {
		return "", notExecutable(name)
	}
	return "", notFound(name)
}

func lookupFile(name, dir string) (string, error) {
	file := absolute(name, dir)
	info, err := os.Stat(file)
	switch {
	case err != nil:
		return "", sandbox.Faultf(sandbox.FaultCommand, "%q does not exist", name)
	case info.IsDir():
		return "", sandbox.Faultf(sandbox.FaultCommand, "%q is a directory", name)
	case !executable(info):
		return "", notExecutable(name)
	}
	return file, nil
}

func absolute(name, dir string) string {
	if filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(dir, name)
}

func executable(info fs.FileInfo) bool { return info.Mode()&0o111 != 0 }
