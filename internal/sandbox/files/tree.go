package files

import (
	"context"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// defaultDepth is how many levels a tree has when none are asked for.
const defaultDepth = 3

// Tree implements [sandbox.FS].
func (f *FS) Tree(ctx context.Context, req protocol.FilesTree) (protocol.FilesTreeResult, error) {
	return operate(f, req.Path, reading, "list", func(name string) (protocol.FilesTreeResult, error) { return f.tree(ctx, name, req) })
}

func (f *FS) tree(ctx context.Context, name string, req protocol.FilesTree) (protocol.FilesTreeResult, error) {
	result := protocol.FilesTreeResult{Path: req.Path, Entries: []protocol.TreeEntry{}}
	depth := req.Depth
	if depth <= 0 {
		depth = defaultDepth
	}
	room := newRoom(req.Limit)
	w := &walk{fs: f, noIgnore: req.NoIgnore}
	w.visit = func(ctx context.Context, at position) error {
		result.Total++
		entry := protocol.TreeEntry{Path: at.name, Type: fileType(at.entry.Type())}
		if room.take(len(at.name)) {
			if info, err := at.entry.Info(); err == nil && entry.Type == protocol.TypeFile {
				entry.Size = info.Size()
			}
			if at.entry.IsDir() && at.depth >= depth {
				inside, _, err := w.entries(ctx, at)
				if err != nil {
					w.skipped++
				}
				entry.Hidden = len(inside)
			}
			result.Entries = append(result.Entries, entry)
		}
		if at.entry.IsDir() && at.depth >= depth {
			return errPrune
		}
		return nil
	}
	err := w.from(ctx, name)
	result.Ignored, result.Skipped = w.ignored, w.skipped
	return result, err
}
