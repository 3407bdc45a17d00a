package files

import (
	"fmt"
	"path"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Bounds of paths, in bytes.
const (
	maxPath = 4096
	maxName = 255
)

// mount is the name that the workspace has in paths that start with a slash.
const mount = "/workspace"

// clean returns the canonical relative form of a request's path: "." or names
// joined by slashes, without ".." among them. base is the host's name of the
// workspace and is used for a hint only.
func clean(base, p string) (string, error) {
	if err := checkText(p); err != nil {
		return "", err
	}
	name := path.Clean(p)
	if p == "" {
		name = "."
	}
	if path.IsAbs(name) {
		if name != mount && !strings.HasPrefix(name, mount+"/") {
			return "", outside(base, p)
		}
		name = path.Clean("." + name[len(mount):])
	}
	if name == ".." || strings.HasPrefix(name, "../") {
		return "", outside(base, p)
	}
	for part := range strings.SplitSeq(name, "/") {
		if len(part) > maxName {
			return "", protocol.Errorf(protocol.CodeInvalidPath,
				"a name in the path has %d bytes, at most %d are possible: %q...", len(part), maxName, part[:32])
		}
	}
	if !filepath.IsLocal(filepath.FromSlash(name)) {
		return "", protocol.Errorf(protocol.CodeInvalidPath, "%q is not a path that this system allows", p)
	}
	return name, nil
}

func checkText(p string) error {
	switch {
	case len(p) > maxPath:
		return protocol.Errorf(protocol.CodeInvalidPath, "the path has %d bytes, at most %d are possible", len(p), maxPath)
	case strings.ContainsRune(p, 0):
		return protocol.Errorf(protocol.CodeInvalidPath, "%q contains a NUL byte", p)
	case !utf8.ValidString(p):
		return protocol.Errorf(protocol.CodeInvalidPath, "%q is not valid UTF-8", p)
	default:
		return nil
	}
}

// outside is the fault of a path that leaves the workspace by its text alone.
func outside(base, p string) error {
	hint := `, such as "src/main.go"`
	if rel, ok := strings.CutPrefix(path.Clean(p), filepath.ToSlash(base)+"/"); ok && base != "" {
		hint = fmt.Sprintf(": %q", rel)
	}
	return protocol.Errorf(protocol.CodePathEscape,
		"%q is outside of the workspace; use a path relative to the workspace%s", p, hint)
}
