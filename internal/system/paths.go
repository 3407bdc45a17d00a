package system

import (
	"path/filepath"
	"strings"
)

// Within reports whether a clean path is a directory or below it, by their names alone. "" and "."
// have every relative path below them.
func Within(dir, path string) bool {
	name, err := filepath.Rel(dir, path)
	return err == nil && name != ".." && !strings.HasPrefix(name, ".."+string(filepath.Separator))
}
