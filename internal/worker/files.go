package worker

import (
	"context"

	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

func filesRead(ctx context.Context, fs sandbox.FS, p protocol.FilesRead) (protocol.Value, error) {
	r, err := fs.Read(ctx, sandbox.ReadRequest{Path: p.Path, Offset: p.Offset, Limit: p.Limit})
	if err != nil {
		return nil, err
	}
	return protocol.FilesReadResult{
		Path: p.Path, Content: r.Content, SHA256: r.SHA256, Bytes: r.Size,
		FirstLine: r.FirstLine, Lines: r.Lines, TotalLines: r.TotalLines, Truncated: r.Truncated, Binary: r.Binary,
	}, nil
}

func filesWrite(ctx context.Context, fs sandbox.FS, p protocol.FilesWrite) (protocol.Value, error) {
	r, err := fs.Write(ctx, sandbox.WriteRequest{Path: p.Path, Content: p.Content})
	if err != nil {
		return nil, err
	}
	return protocol.FilesWriteResult{Path: p.Path, Bytes: r.Size, SHA256: r.SHA256, Created: r.Created, Diff: r.Diff}, nil
}

func filesEdit(ctx context.Context, fs sandbox.FS, p protocol.FilesEdit) (protocol.Value, error) {
	r, err := fs.Edit(ctx, sandbox.EditRequest{Path: p.Path, Edits: []sandbox.Edit{{Old: p.Old, New: p.New, All: p.ReplaceAll}}})
	if err != nil {
		return nil, err
	}
	return protocol.FilesEditResult{Path: p.Path, Replacements: r.Replacements, Bytes: r.Size, SHA256: r.SHA256, Diff: r.Diff}, nil
}

func filesList(ctx context.Context, fs sandbox.FS, p protocol.FilesList) (protocol.Value, error) {
	r, err := fs.List(ctx, sandbox.ListRequest{Path: p.Path})
	if err != nil {
		return nil, err
	}
	entries := make([]protocol.DirEntry, len(r.Entries))
	for i, e := range r.Entries {
		entries[i] = protocol.DirEntry{Name: e.Name, Type: protocol.FileType(e.Type), Size: e.Size}
	}
	return protocol.FilesListResult{Path: p.Path, Entries: entries, Total: r.Total}, nil
}

func filesExists(ctx context.Context, fs sandbox.FS, p protocol.FilesExists) (protocol.Value, error) {
	r, err := fs.Stat(ctx, sandbox.StatRequest{Path: p.Path})
	if err != nil {
		return nil, err
	}
	return protocol.FilesExistsResult{Path: p.Path, Exists: r.Exists, Type: protocol.FileType(r.Type), Size: r.Size}, nil
}

func filesSearch(ctx context.Context, fs sandbox.FS, p protocol.FilesSearch) (protocol.Value, error) {
	r, err := fs.Search(ctx, sandbox.SearchRequest{Pattern: p.Pattern, Path: p.Path, Glob: p.Glob})
	if err != nil {
		return nil, err
	}
	matches := make([]protocol.Match, len(r.Matches))
	for i, m := range r.Matches {
		matches[i] = protocol.Match{Path: m.Path, Line: m.Line, Text: m.Text}
	}
	return protocol.FilesSearchResult{Matches: matches, Truncated: r.Truncated, Files: r.Files, Skipped: r.Skipped}, nil
}
