//go:build !unix

package inplace

import (
	"path/filepath"
	"strings"
)

// lineageOf returns a directory and its ancestors, by their paths: names differ in case only.
func lineageOf(dir string) (lineage []string, err error) {
	at, err := filepath.Abs(dir)
	if err == nil {
		at, err = filepath.EvalSymlinks(at)
	}
	if err != nil {
		return nil, err
	}
	for {
		lineage = append(lineage, strings.ToLower(at))
		parent := filepath.Dir(at)
		if parent == at {
			return lineage, nil
		}
		at = parent
	}
}
