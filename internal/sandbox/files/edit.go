package files

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/aymanbagabas/go-udiff"

	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

func (f *FS) edit(ctx context.Context, name string, req protocol.FilesEdit) (protocol.FilesEditResult, error) {
	result := protocol.FilesEditResult{Path: req.Path}
	edits := req.Edits
	if req.Old != "" || req.New != "" {
		edits = []protocol.FileEdit{{Old: req.Old, New: req.New, ReplaceAll: req.ReplaceAll}}
	}
	if err := checkEdit(req, edits); err != nil {
		return result, err
	}
	written, err := f.replace(ctx, name, expected{req.ExpectSHA256, req.Guard}, 0, func(file current) ([]byte, error) {
		switch {
		case !file.exists:
			return nil, fs.ErrNotExist
		case file.oversize != nil:
			return nil, file.oversize
		case req.MaxBytes > 0 && int64(len(file.content)) > req.MaxBytes:
			return nil, tooLarge(name, int64(len(file.content)), req.MaxBytes)
		case isBinary(file.content):
			return nil, protocol.Errorf(codes.NotText,
				"%q is a binary file of %d bytes, which no edit can change; nothing was changed. Use a program that knows its format",
				name, len(file.content))
		}
		apply := func(text []byte) (after []byte, err error) {
			if req.Patch != "" {
				after, result.Outcomes, err = applyPatch(name, text, req.Patch)
			} else {
				after, result.Outcomes, err = makeEdits(name, text, edits, req.First && len(req.Edits) == 0, req.BestEffort)
			}
			return after, err
		}
		if !isText(req.Patch, edits) {
			return apply(file.content)
		}
		return file.edit(inCells(name, apply))
	})
	if err != nil {
		return result, err
	}
	for _, outcome := range result.Outcomes {
		result.Replacements += outcome.Replacements
	}
	result.Bytes, result.SHA256, result.Diff = written.Bytes, written.SHA256, written.Diff
	result.Links = written.Links
	return result, nil
}

// notebookOf returns a notebook; ok is false for a text or a name that is of none.
func notebookOf(name string, text []byte) (_ *notebook, ok bool) {
	if !strings.EqualFold(path.Ext(name), ".ipynb") {
		return nil, false
	}
	return parseNotebook(text)
}

// cellsOf is the text of the cells of a notebook, and the text of every other file.
func cellsOf(name string, text []byte) []byte {
	if notebook, ok := notebookOf(name, text); ok {
		return notebook.Text()
	}
	return text
}

// inCells has a change of a notebook see and change the text of its cells.
func inCells(name string, apply func(text []byte) ([]byte, error)) func(text []byte) ([]byte, error) {
	return func(text []byte) ([]byte, error) {
		notebook, ok := notebookOf(name, text)
		if !ok {
			return apply(text)
		}
		after, err := apply(notebook.Text())
		if err != nil {
			return nil, err
		}
		return notebook.With(after)
	}
}

func checkEdit(req protocol.FilesEdit, edits []protocol.FileEdit) error {
	switch {
	case (req.Old != "" || req.New != "") && len(req.Edits) > 0, req.Patch != "" && len(edits) > 0:
		return protocol.Errorf(codes.InvalidPayload, "only one of old, edits and patch may be given")
	case len(req.Patch) > isolation.MaxPatch:
		return protocol.Errorf(codes.TooLarge, "the patch has %d bytes, at most %d are possible", len(req.Patch), isolation.MaxPatch)
	case req.Patch == "" && len(edits) == 0:
		return protocol.Errorf(codes.InvalidPatch, "there is nothing to do: neither texts to replace nor a patch with any line in it")
	case len(edits) > isolation.MaxEdits:
		return protocol.Errorf(codes.TooLarge, "there are %d edits, at most %d are possible in one call", len(edits), isolation.MaxEdits)
	default:
		return nil
	}
}

// isBinary reports whether content has no text at all, and not only some bytes that are none.
func isBinary(content []byte) bool {
	_, _, ok := decode(content)
	return !ok && bytes.IndexByte(content, 0) >= 0 || imageType(content) != ""
}

// isText reports whether a change names texts, and not bytes that are none.
func isText(patch string, edits []protocol.FileEdit) bool {
	return utf8.ValidString(patch) && !slices.ContainsFunc(edits, func(e protocol.FileEdit) bool {
		return !utf8.ValidString(e.Old) || !utf8.ValidString(e.New)
	})
}

// expected is what a file must be before it is changed.
type expected struct {
	sha256 string
	guard  protocol.Guard
}

// checkExpected returns an error unless the file is as expected.
func checkExpected(name string, expect expected, file current) error {
	switch {
	case expect.guard == protocol.GuardAbsent && file.exists:
		return protocol.Errorf(codes.FileChanged, "%q exists, and was to be made; nothing was changed", name)
	case expect.guard == protocol.GuardRead && expect.sha256 == "" && file.exists:
		return protocol.Errorf(codes.FileNotRead,
			"%q exists and has not been read in this session; nothing was changed. Read it first, then make the change", name)
	case expect.sha256 == "":
		return nil
	case !file.exists:
		return protocol.Errorf(codes.FileChanged,
			"%q no longer exists, and content with the SHA-256 %s was expected; nothing was changed. Read it again, then make the change", name, expect.sha256)
	}
	if now := digest(file.content); !strings.EqualFold(now, expect.sha256) {
		return protocol.Errorf(codes.FileChanged,
			"%q is not as it was read: its SHA-256 is %s, expected was %s; nothing was changed. Read it again, then make the change",
			name, now, expect.sha256)
	}
	return nil
}

// Bounds of diffs, in bytes.
const (
	maxDiff      = 8 << 10
	maxDiffInput = 512 << 10 // of either side
)

// diff returns a unified diff, cut at maxDiff; "" when there is no difference, or
// when either side is binary or large.
func diff(name string, before, after []byte, created bool) string {
	before, after = cellsOf(name, before), cellsOf(name, after)
	if len(before) > maxDiffInput || len(after) > maxDiffInput {
		return ""
	}
	before, _, wasText := decode(before)
	after, _, isText := decode(after)
	if !wasText || !isText {
		return ""
	}
	from, to := "a/"+name, "b/"+name
	if created {
		from = "/dev/null"
	}
	old := string(before)
	text, err := udiff.ToUnified(from, to, old, udiff.Lines(old, string(after)), udiff.DefaultContextLines)
	if err != nil {
		return ""
	}
	if len(text) <= maxDiff {
		return text
	}
	cut := strings.LastIndexByte(text[:maxDiff], '\n') + 1
	return text[:cut] + fmt.Sprintf("[... %d bytes of the diff left out ...]\n", len(text)-cut)
}

func (f *FS) readJSON(ctx context.Context, name string, req protocol.FilesJSONRead) (protocol.FilesJSONReadResult, error) {
	var result protocol.FilesJSONReadResult
	steps, err := jsonPointer(req.Query)
	if err != nil {
		return result, err
	}
	content, _, err := f.load(ctx, name, os.O_RDONLY)
	if err != nil {
		return result, err
	}
	text, _, _ := decode(content)
	document, err := parseJSON(name, text)
	if err != nil {
		return result, err
	}
	value, err := document.Find(steps)
	if err != nil {
		return result, err
	}
	result = protocol.FilesJSONReadResult{
		Path: req.Path, Query: req.Query, Value: value.Text, JSONType: value.Type, Length: value.Length, Bytes: int64(len(content)), SHA256: digest(content),
	}
	return result, nil
}

func (f *FS) writeJSON(ctx context.Context, name string, req protocol.FilesJSONWrite) (protocol.FilesJSONWriteResult, error) {
	var result protocol.FilesJSONWriteResult
	steps, err := jsonPointer(req.Query)
	if err != nil {
		return result, err
	}
	if !json.Valid(req.Content) {
		return result, protocol.Errorf(codes.InvalidJSON, "the new content is not JSON; nothing was changed")
	}
	result.FilesWriteResult, err = f.replace(ctx, name, expected{req.ExpectSHA256, req.Guard}, 0, func(file current) ([]byte, error) {
		after, err := replaceJSON(name, file, steps, bytes.TrimSpace(req.Content))
		if err == nil && len(after) > isolation.MaxFileSize {
			err = tooLarge(name, int64(len(after)), isolation.MaxFileSize)
		}
		return after, err
	})
	result.Path = req.Path
	return result, err
}

// replaceJSON returns the document with value at a place, and nothing else changed.
func replaceJSON(name string, file current, steps []string, value []byte) ([]byte, error) {
	if len(steps) == 0 || !file.exists {
		whole, err := nestJSON(steps, value)
		if err != nil {
			return nil, err
		}
		return file.edit(func(text []byte) ([]byte, error) { return wholeJSON(text, whole), nil })
	}
	if file.oversize != nil {
		return nil, file.oversize
	}
	return file.edit(func(text []byte) ([]byte, error) {
		document, err := parseJSON(name, text)
		if err != nil {
			return nil, err
		}
		return document.Replace(steps, value)
	})
}
