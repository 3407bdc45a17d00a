package files

import (
	"context"
	"io/fs"
	"slices"
	"unicode/utf8"

	"github.com/toolfleet/toolfleet/internal/sandbox/files/internal/change"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// Edit implements [sandbox.FS].
func (f *FS) Edit(ctx context.Context, req sandbox.EditRequest) (sandbox.EditResult, error) {
	return operate(f, req.Path, writing, "edit", func(name string) (sandbox.EditResult, error) { return f.edit(ctx, name, req) })
}

func (f *FS) edit(ctx context.Context, name string, req sandbox.EditRequest) (sandbox.EditResult, error) {
	var result sandbox.EditResult
	if err := checkEdit(req); err != nil {
		return result, err
	}
	written, err := f.write(ctx, name, req.Expect, func(file current) ([]byte, error) {
		switch {
		case !file.exists:
			return nil, fs.ErrNotExist
		case file.oversize != nil:
			return nil, file.oversize
		case req.MaxSize > 0 && int64(len(file.content)) > req.MaxSize:
			return nil, tooLarge(name, int64(len(file.content)), req.MaxSize)
		}
		apply := func(text []byte) (after []byte, err error) {
			if req.Patch != "" {
				after, result.Outcomes, err = change.Patch(name, text, req.Patch)
			} else {
				after, result.Outcomes, err = change.Edits(name, text, req)
			}
			return after, err
		}
		if !isText(req) {
			return apply(file.content)
		}
		return file.edit(apply)
	})
	if err != nil {
		return result, err
	}
	for _, outcome := range result.Outcomes {
		result.Replacements += outcome.Replacements
	}
	result.Size, result.SHA256, result.Diff = written.Size, written.SHA256, written.Diff
	result.Links = written.Links
	return result, nil
}

func checkEdit(req sandbox.EditRequest) error {
	switch {
	case req.Patch != "" && len(req.Edits) > 0:
		return sandbox.Faultf(sandbox.FaultArguments, "give either texts to replace or a patch, not both")
	case len(req.Patch) > sandbox.MaxPatch:
		return sandbox.Faultf(sandbox.FaultTooLarge, "the patch has %d bytes, at most %d are possible", len(req.Patch), sandbox.MaxPatch)
	case req.Patch == "" && len(req.Edits) == 0:
		return sandbox.Faultf(sandbox.FaultInvalidPatch, "there is nothing to do: neither texts to replace nor a patch with any line in it")
	case len(req.Edits) > sandbox.MaxEdits:
		return sandbox.Faultf(sandbox.FaultTooLarge, "there are %d edits, at most %d are possible in one call", len(req.Edits), sandbox.MaxEdits)
	default:
		return nil
	}
}

// isText reports whether a request names texts, and not bytes that are none.
func isText(req sandbox.EditRequest) bool {
	return utf8.ValidString(req.Patch) && !slices.ContainsFunc(req.Edits, func(e sandbox.Edit) bool {
		return !utf8.ValidString(e.Old) || !utf8.ValidString(e.New)
	})
}
