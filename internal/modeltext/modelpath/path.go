// Package modelpath says what the paths that a model writes mean: which file of the
// workspace, and so which resource key. It is lexical and touches no file.
package modelpath

import (
	pathpkg "path"
	"strings"
	"unicode/utf8"

	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// MaxPathBytes bounds a path that a model names.
const MaxPathBytes = 4096

// workspaceRoot is where commands see the workspace. A path below it is taken for
// the relative path that it means.
const workspaceRoot = "/workspace"

// Path puts a path into canonical form: relative to the workspace, with
// no ".", ".." or empty segment; "" is the workspace. It is lexical. The error is
// path_escape or invalid_path.
func Path(raw string) (string, *protocol.Error) {
	switch {
	case len(raw) > MaxPathBytes:
		return "", protocol.Errorf(codes.InvalidPath, "The path has %d bytes; at most %d are allowed. Use a shorter one.", len(raw), MaxPathBytes)
	case !utf8.ValidString(raw):
		return "", protocol.Errorf(codes.InvalidPath, "The path %q is not valid UTF-8. Use bash for such a file.", prose.Short(raw, 200))
	case strings.ContainsRune(raw, 0):
		return "", protocol.Errorf(codes.InvalidPath, "The path %q has a NUL character, which no path can have.", prose.Short(raw, 200))
	}
	path := raw
	if strings.HasPrefix(raw, "/") {
		cleaned := pathpkg.Clean(raw)
		inside, ok := strings.CutPrefix(cleaned, workspaceRoot)
		if !ok || inside != "" && inside[0] != '/' {
			return "", escapes(raw)
		}
		path = strings.TrimPrefix(inside, "/")
	}
	path = pathpkg.Clean(path)
	switch {
	case path == ".":
		return "", nil
	case path == "..", strings.HasPrefix(path, "../"):
		return "", escapes(raw)
	default:
		return path, nil
	}
}

func escapes(raw string) *protocol.Error {
	return protocol.Errorf(codes.PathEscape,
		"The path %q is outside the workspace. Use a path relative to the workspace, as in \"src/main.go\".", prose.Short(raw, 200))
}

// Named is [Path] for a path that must be given.
func Named(raw string) (string, *protocol.Error) {
	if raw == "" {
		return "", protocol.Errorf(codes.InvalidPath, "The path is empty. Name a path relative to the workspace, as in \"src/main.go\".")
	}
	return Path(raw)
}

// File is [Named] for what must be a file, and so not the workspace itself.
func File(raw string) (string, *protocol.Error) {
	path, err := Named(raw)
	if err != nil {
		return "", err
	}
	if path == "" {
		return "", protocol.Errorf(codes.IsDirectory, "The path %q is the workspace itself, a directory. Name a file in it.", prose.Short(raw, 200))
	}
	return path, nil
}

// NewFile is [File] for a file that may be made: a path that spells a
// directory is refused.
func NewFile(raw string) (string, *protocol.Error) {
	path, err := File(raw)
	if err == nil && strings.HasSuffix(raw, "/") {
		return "", protocol.Errorf(codes.InvalidPath,
			"The path %q ends with a slash, which means a directory. Name a file; its directories are made with it.", prose.Short(raw, 200))
	}
	return path, err
}

// sandboxKey is the resource key of a whole sandbox.
func sandboxKey(sandbox string) (protocol.ResourceKey, *protocol.Error) {
	key := protocol.SandboxKey(sandbox)
	parsed, err := protocol.ParseResourceKey(string(key))
	if err != nil || parsed != key || key.Lane() != protocol.Lane(key) {
		return "", protocol.Errorf(protocol.CodeInternal,
			"The session's sandbox has the id %q, which is no name for one. Tell the operator of the fleet.", prose.Short(prose.Valid(sandbox), 100))
	}
	return key, nil
}

// Use is the use of a canonical path of a sandbox.
func Use(sandbox string, path string, access protocol.Access) ([]protocol.Use, *protocol.Error) {
	root, refusal := sandboxKey(sandbox)
	if refusal != nil {
		return nil, refusal
	}
	key, err := root.Join(path)
	if err != nil {
		return nil, protocol.Errorf(codes.InvalidPath, "The path %q cannot be used: %v.", prose.Short(path, 200), err)
	}
	return []protocol.Use{{Key: key, Access: access}}, nil
}
