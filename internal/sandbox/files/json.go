package files

import (
	"bytes"
	"context"
	"encoding/json"
	"io/fs"
	"os"

	"github.com/toolfleet/toolfleet/internal/sandbox/files/internal/change"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// ReadJSON implements [sandbox.FS].
func (f *FS) ReadJSON(ctx context.Context, req sandbox.ReadJSONRequest) (sandbox.ReadJSONResult, error) {
	return operate(f, req.Path, reading, "read", func(name string) (sandbox.ReadJSONResult, error) { return f.readJSON(ctx, name, req.Query) })
}

func (f *FS) readJSON(ctx context.Context, name, query string) (sandbox.ReadJSONResult, error) {
	var result sandbox.ReadJSONResult
	steps, err := change.Pointer(query)
	if err != nil {
		return result, err
	}
	content, _, err := f.load(ctx, name, os.O_RDONLY)
	if err != nil {
		return result, err
	}
	text, _, _ := decode(content)
	document, err := change.Parse(name, text)
	if err != nil {
		return result, err
	}
	value, err := document.Find(steps)
	if err != nil {
		return result, err
	}
	result = sandbox.ReadJSONResult{
		Value: value.Text, Type: value.Type, Length: value.Length, Size: int64(len(content)), SHA256: digest(content),
	}
	return result, nil
}

// WriteJSON implements [sandbox.FS].
func (f *FS) WriteJSON(ctx context.Context, req sandbox.WriteJSONRequest) (sandbox.WriteResult, error) {
	return operate(f, req.Path, writing, "write", func(name string) (sandbox.WriteResult, error) { return f.writeJSON(ctx, name, req) })
}

func (f *FS) writeJSON(ctx context.Context, name string, req sandbox.WriteJSONRequest) (sandbox.WriteResult, error) {
	steps, err := change.Pointer(req.Query)
	if err != nil {
		return sandbox.WriteResult{}, err
	}
	if !json.Valid(req.Content) {
		return sandbox.WriteResult{}, sandbox.Faultf(sandbox.FaultInvalidJSON, "the new content is not JSON; nothing was changed")
	}
	return f.write(ctx, name, req.Expect, func(file current) ([]byte, error) {
		after, err := replaceJSON(name, file, steps, bytes.TrimSpace(req.Content))
		if err == nil && len(after) > sandbox.MaxFileSize {
			err = tooLarge(name, int64(len(after)), sandbox.MaxFileSize)
		}
		return after, err
	})
}

// replaceJSON returns the document with value at a place, and nothing else changed.
func replaceJSON(name string, file current, steps []string, value []byte) ([]byte, error) {
	if len(steps) == 0 {
		return file.edit(func(text []byte) ([]byte, error) { return change.Whole(text, value), nil })
	}
	switch {
	case !file.exists:
		return nil, fs.ErrNotExist
	case file.oversize != nil:
		return nil, file.oversize
	}
	return file.edit(func(text []byte) ([]byte, error) {
		document, err := change.Parse(name, text)
		if err != nil {
			return nil, err
		}
		return document.Replace(steps, value)
	})
}
