package kinds

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"slices"
	"time"

	"github.com/toolfleet/toolfleet/internal/modeltext/plain"
	"github.com/toolfleet/toolfleet/internal/worker/results"
	"github.com/toolfleet/toolfleet/internal/worker/sandboxes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// fileOps is a payload about files of one session: what the payload says about the file that it
// reads or changes, and how much the caller is shown of what it finds.
type fileOps struct {
	session protocol.SessionID
	digests *sandboxes.Digests

	guard protocol.Guard
	path  string
	reads bool
	limit int
}

// fileRun does the file operation of a payload.
func fileRun(ctx context.Context, a *Attempt, payload protocol.Payload) (protocol.Value, error) {
	fs := a.sandbox.FS().Within(a.Run.Call.Roots...)
	f := &fileOps{session: a.Run.Call.SessionID, digests: a.box.Digests}
	value, err := fs.Do(ctx, f.prepare(payload))
	if write, is := payload.(protocol.FilesWrite); is && err != nil && hasContent(ctx, fs, write) {
		value, err = protocol.FilesWriteResult{Path: write.Path, Bytes: int64(len(write.Content)), SHA256: digestOf(write.Content)}, nil
	}
	if fault, ok := errors.AsType[*protocol.Error](err); ok && f.reads && fault.Code == protocol.CodeNotFound {
		f.note("") // the session has seen that the file is gone, and may make it again
	}
	if err != nil {
		return nil, err
	}
	return f.finish(fs, value)
}

func (f *fileOps) note(sha256 string) { f.digests.Note(f.guard, f.session, f.path, sha256) }

// searchPatience is the longest time of a search. After it, the search returns what it has found.
const searchPatience = 15 * time.Second

// prepare returns the payload for the sandbox: with the digest that the file must have, and without
// the limit for what is shown, since the worker stores all that is found.
func (f *fileOps) prepare(payload protocol.Payload) protocol.Payload {
	guarded := func(guard protocol.Guard, path string, reads bool) { f.guard, f.path, f.reads = guard, path, reads }
	expected := func(sha256 string) string { return f.digests.Expect(f.guard, f.session, f.path, sha256) }
	switch p := payload.(type) {
	case protocol.FilesRead:
		guarded(p.Guard, p.Path, true)
	case protocol.FilesJSONRead:
		guarded(p.Guard, p.Path, true)
	case protocol.FilesWrite:
		guarded(p.Guard, p.Path, false)
		p.ExpectSHA256 = expected(p.ExpectSHA256)
		return p
	case protocol.FilesEdit:
		guarded(p.Guard, p.Path, false)
		p.ExpectSHA256 = expected(p.ExpectSHA256)
		return p
	case protocol.FilesJSONWrite:
		guarded(p.Guard, p.Path, false)
		p.ExpectSHA256 = expected(p.ExpectSHA256)
		return p
	case protocol.FilesTree:
		f.limit, p.Limit = p.Limit, 0
		return p
	case protocol.FilesGlob:
		f.limit, p.Limit = p.Limit, 0
		return p
	case protocol.FilesSearch:
		f.limit, p.Limit = p.Limit, 0
		return sandbox.FilesSearch{FilesSearch: p, Patience: searchPatience}
	}
	return payload
}

// finish notes what the session has seen of the file, and returns the value for the caller.
func (f *fileOps) finish(fs sandbox.FS, value protocol.Value) (protocol.Value, error) {
	switch all := value.(type) {
	case protocol.FilesReadResult:
		f.note(all.SHA256)
		return results.File(fs, all), nil
	case protocol.FilesJSONReadResult:
		f.note(all.SHA256)
		return results.JSON(all), nil
	case protocol.FilesWriteResult:
		f.note(all.SHA256)
	case protocol.FilesEditResult:
		f.note(all.SHA256)
	case protocol.FilesJSONWriteResult:
		f.note(all.SHA256)
	case protocol.FilesListResult:
		return results.List(all, len(all.Entries), all.Total, f.limit, func(v protocol.FilesListResult, n int) protocol.FilesListResult {
			v.Entries = v.Entries[:n]
			return v
		})
	case protocol.FilesTreeResult:
		return results.List(all, len(all.Entries), all.Total, f.limit, func(v protocol.FilesTreeResult, n int) protocol.FilesTreeResult {
			v.Entries = v.Entries[:n]
			return v
		})
	case protocol.FilesGlobResult:
		return results.List(all, len(all.Paths), all.Total, f.limit, func(v protocol.FilesGlobResult, n int) protocol.FilesGlobResult {
			v.Paths = v.Paths[:n]
			return v
		})
	case protocol.FilesSearchResult:
		return results.List(all, len(all.Matches), all.Total, f.limit, func(v protocol.FilesSearchResult, n int) protocol.FilesSearchResult {
			short := make([]protocol.Match, n)
			for i, m := range v.Matches[:n] {
				short[i] = plain.CutMatch(m)
			}
			v.Matches = short
			return v
		})
	}
	return value, nil
}

// hasContent reports whether the file already has the content that a guarded session may not write,
// for example from an earlier attempt whose worker was lost before it recorded that. Nothing would
// be changed.
func hasContent(ctx context.Context, fs sandbox.FS, p protocol.FilesWrite) bool {
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
