package snapshot

import (
	"path/filepath"
	"strings"
)

// maxName is the longest part of a path, in bytes.
const maxName = 255

// checkName accepts paths that are relative, canonical, and possible on this system.
func checkName(name string) error {
	if strings.ContainsRune(name, 0) {
		return unsafef(name, "it contains a NUL byte")
	}
	for part := range strings.SplitSeq(name, "/") {
		switch {
		case part == "" || part == "." || part == "..":
			return unsafef(name, "not a canonical relative path")
		case len(part) > maxName:
			return unsafef(name, "a part of it has more than %d bytes", maxName)
		default:
		}
	}
	local := filepath.FromSlash(name)
	if filepath.Separator != '/' && strings.ContainsAny(name, `\:`) || !filepath.IsLocal(local) {
		return unsafef(name, "not a path that this system allows")
	}
	return nil
}

// checkTarget accepts what a symbolic link can say. Where it leads does not matter:
// nothing here follows it.
func checkTarget(name, target string) error {
	if target == "" || strings.ContainsRune(target, 0) {
		return unsafef(name, "a symbolic link to %q", target)
	}
	return nil
}
