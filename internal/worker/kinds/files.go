package kinds

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"slices"
	"time"

	"github.com/toolfleet/toolfleet/internal/plain"
	"github.com/toolfleet/toolfleet/internal/worker/results"
	"github.com/toolfleet/toolfleet/internal/worker/sandboxes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// fileOps executes payloads about files for one session in one sandbox.
type fileOps struct {
	session protocol.SessionID
	digests *sandboxes.Digests
}

// inFiles makes a file operation the function of a kind.
func inFiles[P protocol.Payload](op func(fileOps, context.Context, sandbox.FS, P) (protocol.Value, error)) func(context.Context, *Attempt, P) (protocol.Value, error) {
	return func(ctx context.Context, a *Attempt, p P) (protocol.Value, error) {
		fs := a.sandbox.FS().Within(a.Run.Call.Roots...)
		f := fileOps{session: a.Run.Call.SessionID, digests: a.box.Digests}
		return op(f, ctx, fs, p)
	}
}

func (f fileOps) read(ctx context.Context, fs sandbox.FS, p protocol.FilesRead) (protocol.Value, error) {
	r, err := fs.Read(ctx, p)
	if err != nil {
		return nil, f.missed(p.Guard, p.Path, err)
	}
	f.digests.Note(p.Guard, f.session, p.Path, r.SHA256)
	return results.File(fs, r), nil
}

// missed is the error of a read. A session that finds a file gone has seen that, and may make it
// again.
func (f fileOps) missed(guard protocol.Guard, path string, err error) error {
	if fault, ok := errors.AsType[*protocol.Error](err); ok && fault.Code == protocol.CodeNotFound {
		f.digests.Note(guard, f.session, path, "")
	}
	return err
}

func (f fileOps) write(ctx context.Context, fs sandbox.FS, p protocol.FilesWrite) (protocol.Value, error) {
	known := p
	known.ExpectSHA256 = f.digests.Expect(p.Guard, f.session, p.Path, p.ExpectSHA256)
	r, err := fs.Write(ctx, known)
	if err != nil && f.hasContent(ctx, fs, p) {
		r, err = protocol.FilesWriteResult{Path: p.Path, Bytes: int64(len(p.Content)), SHA256: digestOf(p.Content)}, nil
	}
	if err != nil {
		return nil, err
	}
	f.digests.Note(p.Guard, f.session, p.Path, r.SHA256)
	return r, nil
}

// hasContent reports whether the file already has the content that a guarded session may not write,
// for example from an earlier attempt whose worker was lost before it recorded that. Nothing would
// be changed.
func (f fileOps) hasContent(ctx context.Context, fs sandbox.FS, p protocol.FilesWrite) bool {
	if p.Guard == "" || p.ExpectSHA256 != "" {
		return false
	}
	r, err := fs.Read(ctx, protocol.FilesRead{Path: p.Path, Limit: 1})
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

func (f fileOps) edit(ctx context.Context, fs sandbox.FS, p protocol.FilesEdit) (protocol.Value, error) {
	p.ExpectSHA256 = f.digests.Expect(p.Guard, f.session, p.Path, p.ExpectSHA256)
	r, err := fs.Edit(ctx, p)
	if err != nil {
		return nil, err
	}
	f.digests.Note(p.Guard, f.session, p.Path, r.SHA256)
	return r, nil
}

func (f fileOps) readJSON(ctx context.Context, fs sandbox.FS, p protocol.FilesJSONRead) (protocol.Value, error) {
	r, err := fs.ReadJSON(ctx, p)
	if err != nil {
		return nil, f.missed(p.Guard, p.Path, err)
	}
	f.digests.Note(p.Guard, f.session, p.Path, r.SHA256)
	return results.JSON(r), nil
}

func (f fileOps) writeJSON(ctx context.Context, fs sandbox.FS, p protocol.FilesJSONWrite) (protocol.Value, error) {
	p.ExpectSHA256 = f.digests.Expect(p.Guard, f.session, p.Path, p.ExpectSHA256)
	r, err := fs.WriteJSON(ctx, p)
	if err != nil {
		return nil, err
	}
	f.digests.Note(p.Guard, f.session, p.Path, r.SHA256)
	return r, nil
}

func (fileOps) exists(ctx context.Context, fs sandbox.FS, p protocol.FilesExists) (protocol.Value, error) {
	r, err := fs.Stat(ctx, p)
	if err != nil {
		return nil, err
	}
	return r, nil
}

func (fileOps) list(ctx context.Context, fs sandbox.FS, p protocol.FilesList) (protocol.Value, error) {
	all, err := fs.List(ctx, p)
	if err != nil {
		return nil, err
	}
	return results.List(all, len(all.Entries), all.Total, 0, func(v protocol.FilesListResult, n int) protocol.FilesListResult {
		v.Entries = v.Entries[:n]
		return v
	})
}

// tree, glob and search look for all that the worker keeps; the payload's limit is for what is
// shown.
func (fileOps) tree(ctx context.Context, fs sandbox.FS, p protocol.FilesTree) (protocol.Value, error) {
	limit := p.Limit
	p.Limit = 0
	all, err := fs.Tree(ctx, p)
	if err != nil {
		return nil, err
	}
	return results.List(all, len(all.Entries), all.Total, limit, func(v protocol.FilesTreeResult, n int) protocol.FilesTreeResult {
		v.Entries = v.Entries[:n]
		return v
	})
}

func (fileOps) glob(ctx context.Context, fs sandbox.FS, p protocol.FilesGlob) (protocol.Value, error) {
	limit := p.Limit
	p.Limit = 0
	all, err := fs.Glob(ctx, p)
	if err != nil {
		return nil, err
	}
	return results.List(all, len(all.Paths), all.Total, limit, func(v protocol.FilesGlobResult, n int) protocol.FilesGlobResult {
		v.Paths = v.Paths[:n]
		return v
	})
}

// searchPatience is the longest time of a search. After it, the search returns what it has found.
const searchPatience = 15 * time.Second

func (fileOps) search(ctx context.Context, fs sandbox.FS, p protocol.FilesSearch) (protocol.Value, error) {
	limit := p.Limit
	p.Limit = 0
	all, err := fs.Search(ctx, p, searchPatience)
	if err != nil {
		return nil, err
	}
	return results.List(all, len(all.Matches), all.Total, limit, func(v protocol.FilesSearchResult, n int) protocol.FilesSearchResult {
		short := make([]protocol.Match, n)
		for i, m := range v.Matches[:n] {
			short[i] = plain.CutMatch(m)
		}
		v.Matches = short
		return v
	})
}
