package files

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"unicode/utf8"

	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// Read implements [sandbox.FS].
func (f *FS) Read(ctx context.Context, req sandbox.ReadRequest) (sandbox.ReadResult, error) {
	name, err := clean(f.root.Name(), req.Path)
	if err != nil {
		return sandbox.ReadResult{}, err
	}
	content, _, err := f.load(ctx, name, os.O_RDONLY)
	if err != nil {
		return sandbox.ReadResult{}, f.fault("read", name, err)
	}
	result := sandbox.ReadResult{
		SHA256: digest(content),
		Size:   int64(len(content)),
		Binary: binary(content),
	}
	if result.Binary {
		result.Content = content[:min(len(content), sandbox.MaxReadBytes)]
		result.Truncated = len(result.Content) < len(content)
		return result, nil
	}
	takeLines(&result, content, req)
	return result, nil
}

// takeLines fills in the lines that req asks for, as many as fit.
func takeLines(result *sandbox.ReadResult, content []byte, req sandbox.ReadRequest) {
	result.TotalLines = countLines(content)
	first := max(req.Offset, 1)
	if first > result.TotalLines {
		return
	}
	rest := content[lineStart(content, first):]
	want := result.TotalLines - first + 1
	if req.Limit > 0 {
		want = min(want, req.Limit)
	}
	end := 0
	for result.Lines < want {
		length := lineLength(rest[end:])
		if end+length > sandbox.MaxReadBytes {
			result.Truncated = true
			break
		}
		end += length
		result.Lines++
	}
	if result.Lines == 0 { // not even one line fits
		end = runeBorder(rest, sandbox.MaxReadBytes)
		result.Lines = 1
	}
	result.FirstLine = first
	result.Content = rest[:end]
}

// countLines counts a last line without a line end, too.
func countLines(content []byte) int {
	n := bytes.Count(content, []byte{'\n'})
	if len(content) > 0 && content[len(content)-1] != '\n' {
		n++
	}
	return n
}

// lineStart returns where the line with the given number, from 1, starts.
func lineStart(content []byte, number int) int {
	start := 0
	for range number - 1 {
		start += lineLength(content[start:])
	}
	return start
}

// lineLength is the length of the first line, with its line end.
func lineLength(content []byte) int {
	if i := bytes.IndexByte(content, '\n'); i >= 0 {
		return i + 1
	}
	return len(content)
}

// runeBorder returns the last place at or before limit where no character is split.
func runeBorder(content []byte, limit int) int {
	for limit > 0 && limit < len(content) && !utf8.RuneStart(content[limit]) {
		limit--
	}
	return min(limit, len(content))
}

// binary tells content that is not text: a NUL byte, or not UTF-8.
func binary(content []byte) bool {
	return bytes.IndexByte(content, 0) >= 0 || !utf8.Valid(content)
}

func digest(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}
