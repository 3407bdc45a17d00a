package policy

import (
	"errors"
	"fmt"
	pathpkg "path"
	"slices"
	"strings"

	"github.com/toolfleet/toolfleet/internal/system"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// pathRule is where calls may read and write; "" is the whole workspace.
type pathRule struct {
	binds       bool
	read, write []string
}

func compilePaths(p Paths) (pathRule, error) {
	rule := pathRule{binds: len(p.Read)+len(p.Write) > 0}
	var errs []error
	clean := func(field string, roots []string) (out []string) {
		for i, root := range roots {
			path := pathpkg.Clean(strings.TrimPrefix(strings.TrimPrefix(root, "/workspace"), "/"))
			switch {
			case root == "", path == "..", strings.HasPrefix(path, "../"), strings.HasPrefix(root, "/") && root != "/workspace" && !strings.HasPrefix(root, "/workspace/"):
				errs = append(errs, fmt.Errorf("paths.%s[%d] %q: must be a path in the workspace, such as src", field, i, root))
			case path == ".":
				out = append(out, "")
			default:
				out = append(out, path)
			}
		}
		return out
	}
	rule.read, rule.write = clean("read", p.Read), clean("write", p.Write)
	if len(rule.read) == 0 {
		rule.read = []string{""}
	}
	if len(rule.write) == 0 {
		rule.write = rule.read
	}
	return rule, errors.Join(errs...)
}

// pathOf is the path of a key in its sandbox; inside is false for other resources.
func pathOf(key protocol.ResourceKey) (path string, inside bool) {
	rest, inside := strings.CutPrefix(string(key), "sandbox/")
	_, path, _ = strings.Cut(rest, "/")
	return path, inside
}

func (r pathRule) judge(tool, path string, access protocol.Access) *Verdict {
	if within(r.write, path) || access == protocol.Shared && within(r.read, path) {
		return nil
	}
	rule, what, roots := "paths.write", "change", r.write
	if access == protocol.Shared {
		rule, what, roots = "paths.read", "read", slices.Clone(r.read)
		for _, root := range r.write { // which may be read as well
			if !within(roots, root) {
				roots = append(roots, root)
			}
		}
	}
	if path == "" {
		return deny(rule, "%s may %s everything in the workspace, and in this session only these may be: %s. Use a tool that names a path.",
			tool, what, shown(roots))
	}
	return deny(rule, "%s may not %s %s: in this session only these may be: %s.", tool, what, path, shown(roots))
}

// within reports whether a path is one of the roots, or below one.
func within(roots []string, path string) bool {
	for _, root := range roots {
		if system.Within(root, path) {
			return true
		}
	}
	return false
}

func shown(roots []string) string {
	if len(roots) == 0 {
		return "none"
	}
	texts := make([]string, len(roots))
	for i, root := range roots {
		if texts[i] = root; root == "" {
			texts[i] = "."
		}
	}
	return strings.Join(texts, ", ")
}
