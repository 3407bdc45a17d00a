package kinds

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"slices"

	"github.com/toolfleet/toolfleet/internal/worker/results"
	"github.com/toolfleet/toolfleet/internal/worker/sandboxes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// fileOps executes payloads about files for one session in one sandbox.
type fileOps struct {
	sandbox sandbox.Sandbox
	session protocol.SessionID
	digests *sandboxes.Digests
	ripgrep bool // the sandbox has rg on its PATH
}

// inFiles makes a file operation the function of a kind.
func inFiles[P protocol.Payload](op func(fileOps, context.Context, sandbox.FS, P) (protocol.Value, error)) func(context.Context, *Attempt, P) (protocol.Value, error) {
	return func(ctx context.Context, a *Attempt, p P) (protocol.Value, error) {
		fs := a.sandbox.FS()
		for _, roots := range a.Run.Call.Roots {
			fs = fs.Within(sandbox.Roots{Read: roots.Read, Write: roots.Write})
		}
		f := fileOps{sandbox: a.sandbox, session: a.Run.Call.SessionID, digests: a.box.Digests, ripgrep: a.host.languages.ripgrep}
		return op(f, ctx, fs, p)
	}
}

func (f fileOps) read(ctx context.Context, fs sandbox.FS, p protocol.FilesRead) (protocol.Value, error) {
	r, err := fs.Read(ctx, sandbox.ReadRequest{Path: p.Path, Offset: p.Offset, Limit: p.Limit, MaxSize: p.MaxBytes, Raw: p.Raw})
	if err != nil {
		return nil, f.missed(p.Guard, p.Path, err)
	}
	f.digests.Note(p.Guard, f.session, p.Path, r.SHA256)
	return results.File(fs, protocol.FilesReadResult{
		Path: p.Path, Content: r.Content, SHA256: r.SHA256, Bytes: r.Size, FirstLine: r.FirstLine, Lines: r.Lines,
		TotalLines: r.TotalLines, LineBytes: r.LineBytes, Truncated: r.Truncated, Binary: r.Binary, Image: r.Image, Raw: p.Raw,
		Encoding: r.Encoding, BOM: r.BOM, LineEnds: r.LineEnds,
	}), nil
}

// missed is the error of a read. A session that finds a file gone has seen that, and may make it
// again.
func (f fileOps) missed(guard protocol.Guard, path string, err error) error {
	if fault, ok := errors.AsType[*sandbox.Fault](err); ok && fault.Code == sandbox.FaultNotFound {
		f.digests.Note(guard, f.session, path, "")
	}
	return err
}

func (f fileOps) write(ctx context.Context, fs sandbox.FS, p protocol.FilesWrite) (protocol.Value, error) {
	expect := f.digests.Expect(p.Guard, f.session, p.Path, p.ExpectSHA256)
	r, err := fs.Write(ctx, sandbox.WriteRequest{Path: p.Path, Content: p.Content, Expect: expect})
	if err != nil && f.hasContent(ctx, fs, p) {
		r, err = sandbox.WriteResult{Size: int64(len(p.Content)), SHA256: digestOf(p.Content)}, nil
	}
	if err != nil {
		return nil, err
	}
	f.digests.Note(p.Guard, f.session, p.Path, r.SHA256)
	return written(p.Path, r), nil
}

// hasContent reports whether what a guarded session may not write is in the file already: by an
// earlier attempt whose worker was lost before it could remember that, or otherwise. Nothing would
// be changed.
func (f fileOps) hasContent(ctx context.Context, fs sandbox.FS, p protocol.FilesWrite) bool {
	if p.Guard == protocol.GuardNone || p.ExpectSHA256 != "" {
		return false
	}
	r, err := fs.Read(ctx, sandbox.ReadRequest{Path: p.Path, Limit: 1})
	content := p.Content
	if r.BOM && r.Encoding == "" {
		content = slices.Concat(protocol.Bytes("\uFEFF"), content) // which a write keeps
	}
	return err == nil && (r.SHA256 == digestOf(p.Content) || r.SHA256 == digestOf(content))
}

func digestOf(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

func written(path string, r sandbox.WriteResult) protocol.FilesWriteResult {
	return protocol.FilesWriteResult{Path: path, Bytes: r.Size, SHA256: r.SHA256, Created: r.Created, Diff: r.Diff, Links: r.Links}
}

func (f fileOps) edit(ctx context.Context, fs sandbox.FS, p protocol.FilesEdit) (protocol.Value, error) {
	req, err := editRequest(p)
	if err != nil {
		return nil, err
	}
	req.Expect = f.digests.Expect(p.Guard, f.session, p.Path, p.ExpectSHA256)
	r, err := fs.Edit(ctx, req)
	if err != nil {
		return nil, err
	}
	f.digests.Note(p.Guard, f.session, p.Path, r.SHA256)
	value := protocol.FilesEditResult{Path: p.Path, Replacements: r.Replacements, Bytes: r.Size, SHA256: r.SHA256, Diff: r.Diff, Links: r.Links}
	for _, o := range r.Outcomes {
		outcome := protocol.EditOutcome{Replacements: o.Replacements, Line: o.Line, Offset: o.Offset}
		if o.Fault != nil {
			outcome.Error = protocol.Errorf(protocol.Code(o.Fault.Code), "%s", o.Fault.Message)
		}
		value.Outcomes = append(value.Outcomes, outcome)
	}
	return value, nil
}

func editRequest(p protocol.FilesEdit) (sandbox.EditRequest, error) {
	req := sandbox.EditRequest{Path: p.Path, BestEffort: p.BestEffort, Patch: p.Patch, MaxSize: p.MaxBytes}
	given := 0
	if p.Patch != "" {
		given++
	}
	if len(p.Edits) > 0 {
		given++
		for _, e := range p.Edits {
			req.Edits = append(req.Edits, sandbox.Edit{Old: e.Old, New: e.New, All: e.ReplaceAll})
		}
	}
	if p.Old != "" || p.New != "" {
		given++
		req.Edits = []sandbox.Edit{{Old: p.Old, New: p.New, All: p.ReplaceAll, First: p.First}}
	}
	if given > 1 {
		return req, protocol.Errorf(protocol.CodeInvalidPayload, "files_edit: only one of old, edits and patch may be given")
	}
	return req, nil
}

func (f fileOps) readJSON(ctx context.Context, fs sandbox.FS, p protocol.FilesJSONRead) (protocol.Value, error) {
	r, err := fs.ReadJSON(ctx, sandbox.ReadJSONRequest{Path: p.Path, Query: p.Query})
	if err != nil {
		return nil, f.missed(p.Guard, p.Path, err)
	}
	f.digests.Note(p.Guard, f.session, p.Path, r.SHA256)
	return results.JSON(protocol.FilesJSONReadResult{
		Path: p.Path, Query: p.Query, Value: r.Value, JSONType: r.Type, Length: r.Length, Bytes: r.Size, SHA256: r.SHA256,
	}), nil
}

func (f fileOps) writeJSON(ctx context.Context, fs sandbox.FS, p protocol.FilesJSONWrite) (protocol.Value, error) {
	r, err := fs.WriteJSON(ctx, sandbox.WriteJSONRequest{
		Path: p.Path, Query: p.Query, Content: p.Content, Expect: f.digests.Expect(p.Guard, f.session, p.Path, p.ExpectSHA256),
	})
	if err != nil {
		return nil, err
	}
	f.digests.Note(p.Guard, f.session, p.Path, r.SHA256)
	return protocol.FilesJSONWriteResult{FilesWriteResult: written(p.Path, r)}, nil
}

func (fileOps) exists(ctx context.Context, fs sandbox.FS, p protocol.FilesExists) (protocol.Value, error) {
	r, err := fs.Stat(ctx, sandbox.StatRequest{Path: p.Path})
	if err != nil {
		return nil, err
	}
	return protocol.FilesExistsResult{Path: p.Path, Exists: r.Exists, Type: protocol.FileType(r.Type), Size: r.Size}, nil
}

func (fileOps) list(ctx context.Context, fs sandbox.FS, p protocol.FilesList) (protocol.Value, error) {
	r, err := fs.List(ctx, sandbox.ListRequest{Path: p.Path})
	if err != nil {
		return nil, err
	}
	entries := make([]protocol.DirEntry, len(r.Entries))
	for i, e := range r.Entries {
		entries[i] = protocol.DirEntry{Name: e.Name, Type: protocol.FileType(e.Type), Size: e.Size}
	}
	all := protocol.FilesListResult{Path: p.Path, Entries: entries, Total: r.Total}
	return results.List(all, len(entries), r.Total, 0, func(v protocol.FilesListResult, n int) protocol.FilesListResult {
		v.Entries = v.Entries[:n]
		return v
	})
}

func (fileOps) tree(ctx context.Context, fs sandbox.FS, p protocol.FilesTree) (protocol.Value, error) {
	r, err := fs.Tree(ctx, sandbox.TreeRequest{Path: p.Path, Depth: p.Depth, NoIgnore: p.NoIgnore})
	if err != nil {
		return nil, err
	}
	entries := make([]protocol.TreeEntry, len(r.Entries))
	for i, e := range r.Entries {
		entries[i] = protocol.TreeEntry{Path: e.Path, Type: protocol.FileType(e.Type), Size: e.Size, Hidden: e.Hidden}
	}
	all := protocol.FilesTreeResult{Path: p.Path, Entries: entries, Total: r.Total, Ignored: r.Ignored, Skipped: r.Skipped}
	return results.List(all, len(entries), r.Total, p.Limit, func(v protocol.FilesTreeResult, n int) protocol.FilesTreeResult {
		v.Entries = v.Entries[:n]
		return v
	})
}

func (fileOps) glob(ctx context.Context, fs sandbox.FS, p protocol.FilesGlob) (protocol.Value, error) {
	r, err := fs.Glob(ctx, sandbox.GlobRequest{Pattern: p.Pattern, Names: p.Names, Path: p.Path, NoIgnore: p.NoIgnore})
	if err != nil {
		return nil, err
	}
	all := protocol.FilesGlobResult{Paths: append([]string{}, r.Paths...), Total: r.Total, Skipped: r.Skipped, Ignored: r.Ignored}
	return results.List(all, len(r.Paths), r.Total, p.Limit, func(v protocol.FilesGlobResult, n int) protocol.FilesGlobResult {
		v.Paths = v.Paths[:n]
		return v
	})
}
