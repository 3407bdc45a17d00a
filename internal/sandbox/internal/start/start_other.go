//go:build !unix

package start

import (
	"os/exec"
	"path/filepath"
	"strings"
)

// Lookup finds a program by this program's PATH. Relative names are relative to dir.
func Lookup(name, _, dir string) (string, error) {
	if strings.ContainsAny(name, `/\`) && !filepath.IsAbs(name) {
		name = filepath.Join(dir, name)
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", notFound(name)
	}
	return path, nil
}
