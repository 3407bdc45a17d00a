package files

import (
	"context"

	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// defaultDepth is how many levels a tree has when none are asked for.
const defaultDepth = 3

// Tree implements [sandbox.FS].
func (f *FS) Tree(ctx context.Context, req sandbox.TreeRequest) (sandbox.TreeResult, error) {
	return operate(f, req.Path, reading, "list", func(name string) (sandbox.TreeResult, error) { return f.tree(ctx, name, req) })
}

func (f *FS) tree(ctx context.Context, name string, req sandbox.TreeRequest) (sandbox.TreeResult, error) {
	var result sandbox.TreeResult
	depth := req.Depth
	if depth <= 0 {
		depth = defaultDepth
	}
	room := newRoom(req.Limit)
	w := &walk{fs: f, noIgnore: req.NoIgnore}
	w.visit = func(ctx context.Context, at position) error {
		result.Total++
		entry := sandbox.TreeEntry{Path: at.name, Type: fileType(at.entry.Type())}
		if room.take(len(at.name)) {
			if info, err := at.entry.Info(); err == nil && entry.Type == sandbox.TypeFile {
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
