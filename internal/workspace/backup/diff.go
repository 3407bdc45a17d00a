package backup

import (
	"context"
	"maps"
	"os"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/aymanbagabas/go-udiff"

	"github.com/toolfleet/toolfleet/internal/sandbox/snapshot"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// maxDiffed is the size in bytes up to which the difference of a file is shown.
const maxDiffed = 512 << 10

// Diff returns what has changed in the directory since a state, as a unified diff.
func (s *States) Diff(ctx context.Context, since State) (string, error) {
	before, _, err := s.Files(ctx, since)
	if err != nil {
		return "", err
	}
	after, err := s.now(ctx)
	if err != nil {
		return "", err
	}
	was, err := before.Manifest(ctx, s.contents)
	if err != nil {
		return "", err
	}
	is, err := after.Manifest(ctx, s.contents)
	if err != nil {
		return "", err
	}
	all := maps.Clone(was)
	maps.Copy(all, is)
	var text strings.Builder
	for _, path := range slices.Sorted(maps.Keys(all)) {
		if was[path] != is[path] {
			text.WriteString(s.fileDiff(ctx, path, before[path], after[path]))
		}
	}
	return text.String(), nil
}

// read returns the name and the text of a path for a diff; ok is false if it has no text. The zero
// node means that nothing is there.
func (s *States) read(ctx context.Context, node snapshot.Node, prefix, path string) (name, text string, ok bool) {
	switch node.Type {
	case "":
		return os.DevNull, "", true
	case protocol.TypeSymlink:
		return prefix + path, node.Target, true
	case protocol.TypeFile:
	default:
		return "", "", false
	}
	content, err := snapshot.LoadBytes(ctx, s.contents, node.Parts, maxDiffed)
	return prefix + path, string(content), err == nil && utf8.Valid(content)
}

func (s *States) fileDiff(ctx context.Context, path string, before, after snapshot.Node) string {
	if before.Type == protocol.TypeDir || after.Type == protocol.TypeDir {
		return "" // its files say it
	}
	from, old, ok := s.read(ctx, before, "a/", path)
	to, text, ok2 := s.read(ctx, after, "b/", path)
	if !ok || !ok2 {
		return "Binary or large file " + path + " differs\n"
	}
	diff, err := udiff.ToUnified(from, to, old, udiff.Lines(old, text), udiff.DefaultContextLines)
	if err != nil || diff == "" {
		return "Mode of " + path + " differs\n"
	}
	return diff
}
