package files

import (
	"bytes"
	"context"
	"encoding/json"
	"os"

	"github.com/toolfleet/toolfleet/internal/sandbox/files/internal/change"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

func (f *FS) readJSON(ctx context.Context, name string, req protocol.FilesJSONRead) (protocol.FilesJSONReadResult, error) {
	var result protocol.FilesJSONReadResult
	steps, err := change.Pointer(req.Query)
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
	result = protocol.FilesJSONReadResult{
		Path: req.Path, Query: req.Query, Value: value.Text, JSONType: value.Type, Length: value.Length, Bytes: int64(len(content)), SHA256: digest(content),
	}
	return result, nil
}

func (f *FS) writeJSON(ctx context.Context, name string, req protocol.FilesJSONWrite) (protocol.FilesJSONWriteResult, error) {
	var result protocol.FilesJSONWriteResult
	steps, err := change.Pointer(req.Query)
	if err != nil {
		return result, err
	}
	if !json.Valid(req.Content) {
		return result, protocol.Errorf(codes.InvalidJSON, "the new content is not JSON; nothing was changed")
	}
	result.FilesWriteResult, err = f.replace(ctx, name, expected{req.ExpectSHA256, req.Guard}, func(file current) ([]byte, error) {
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
		whole, err := change.Nest(steps, value)
		if err != nil {
			return nil, err
		}
		return file.edit(func(text []byte) ([]byte, error) { return change.Whole(text, whole), nil })
	}
	if file.oversize != nil {
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
