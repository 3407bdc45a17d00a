package files

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"hash"
	"io"
	"os"
	"path"
	"strings"
	"unicode/utf8"

	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// readChunk is how much of a file is read at a time.
const readChunk = 128 << 10

func (f *FS) read(ctx context.Context, name string, req protocol.FilesRead) (protocol.FilesReadResult, error) {
	if err := ctx.Err(); err != nil {
		return protocol.FilesReadResult{}, err
	}
	file, info, err := f.openRegular(name, os.O_RDONLY)
	if err != nil {
		return protocol.FilesReadResult{}, err
	}
	defer file.Close()
	s := newScan(req)
	limit := int64(isolation.MaxReadSize)
	if req.MaxBytes > 0 {
		limit = min(limit, req.MaxBytes)
	}
	buf := make([]byte, min(readChunk, max(info.Size()+1, 512)))
	for rest := buf; s.size <= limit && info.Size() <= limit; {
		if len(rest) == 0 {
			s.head, rest = bytes.Clone(s.head), buf
		}
		n, err := file.Read(rest)
		s.take(rest[:n:n])
		rest = rest[n:]
		if errors.Is(err, io.EOF) {
			result, err := f.text(ctx, name, req, s.result())
			result.Path, result.Raw = req.Path, req.Raw
			return result, err
		}
		if err = errors.Join(err, ctx.Err()); err != nil {
			return protocol.FilesReadResult{}, err
		}
	}
	return protocol.FilesReadResult{}, tooLarge(name, max(info.Size(), s.size), limit)
}

// text returns r, or, if the file is a notebook, or holds text in another encoding than UTF-8, or
// in the one that the request names, the text of that.
func (f *FS) text(ctx context.Context, name string, req protocol.FilesRead, r protocol.FilesReadResult) (protocol.FilesReadResult, error) {
	guessed, notebook := req.Encoding == "", strings.EqualFold(path.Ext(name), ".ipynb")
	if req.Raw || guessed && (!r.Binary && !notebook || r.Image != "" || r.Bytes > isolation.MaxFileSize) {
		return r, nil
	}
	content, _, err := f.load(ctx, name, os.O_RDONLY)
	if err != nil {
		return r, err
	}
	text, as, ok := decode(content)
	if !guessed {
		text, as, err = decodeAs(name, content, req.Encoding)
		ok = err == nil
	}
	if !ok {
		return r, err
	}
	cells := 0
	if notebook, is := notebookOf(name, text); is {
		text, cells = notebook.Text(), notebook.Cells()
	}
	s := newScan(req)
	s.take(text)
	decoded := s.result()
	decoded.Cells = cells
	decoded.SHA256, decoded.Bytes = digest(content), int64(len(content))
	decoded.Encoding, decoded.BOM = as.name, as.mark != ""
	return decoded, nil
}

func (f *FS) readAt(ctx context.Context, name string, req sandbox.FilesReadAt) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	file, _, err := f.openRegular(name, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if req.Count <= 0 || req.Count > isolation.MaxChunk {
		req.Count = isolation.MaxChunk
	}
	content := make([]byte, req.Count)
	n, err := file.ReadAt(content, max(req.From, 0))
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return content[:n], nil
}

// scan reads a file once from its start to its end, in pieces, and keeps the lines
// that were asked for, as many as fit.
type scan struct {
	first int // line to keep
	lines *prose.PageScan
	size  int64
	hash  hash.Hash
	text  textCheck
	head  []byte // the start of the file, in case it is not text; of the buffer that it was read into
	image string
	raw   bool
	mark  bool // the file begins with a byte order mark, which is not kept
	ends  lineEnds
}

func newScan(req protocol.FilesRead) *scan {
	first := max(req.Offset, 1)
	return &scan{first: first, raw: req.Raw, lines: prose.NewPageScan(prose.Page{First: first, Limit: req.Limit}), hash: sha256.New()}
}

func (s *scan) take(chunk []byte) {
	if len(chunk) == 0 {
		return
	}
	if s.size == 0 {
		s.image = imageType(chunk)
	}
	headLimit := isolation.MaxReadBytes
	if s.image != "" {
		headLimit = isolation.MaxImageSize
	}
	if head := chunk[:min(len(chunk), headLimit-len(s.head))]; len(s.head) == 0 {
		s.head = head // most files are one chunk
	} else {
		s.head = append(s.head, head...)
	}
	s.size += int64(len(chunk))
	s.hash.Write(chunk)
	s.text.take(chunk)
	if s.size == int64(len(chunk)) && !s.raw { // the first one
		chunk, s.mark = bytes.CutPrefix(chunk, []byte(utf8Mark))
	}
	s.ends.take(chunk)
	s.lines.Take(chunk)
}

func (s *scan) result() protocol.FilesReadResult {
	result := protocol.FilesReadResult{SHA256: hex.EncodeToString(s.hash.Sum(nil)), Bytes: s.size, Image: s.image}
	if result.Binary = s.image != "" || s.text.binary(); result.Binary {
		result.Content = s.head
		result.Truncated = int64(len(s.head)) < s.size
		return result
	}
	got := s.lines.Result()
	result.TotalLines, result.BOM, result.LineEnds = got.Total, s.mark, s.ends.String()
	if got.Lines > 0 {
		result.Content, result.FirstLine, result.Lines, result.Truncated = got.Content, s.first, got.Lines, got.Cut
		if got.Split {
			result.LineBytes = got.FirstBytes
		}
	}
	return result
}

// textCheck finds out whether the pieces that it takes are text together.
type textCheck struct {
	bad  bool
	rest []byte // the start of a character that goes on in the next piece
}

func (c *textCheck) take(chunk []byte) {
	if c.bad {
		return
	}
	if c.bad = bytes.IndexByte(chunk, 0) >= 0; c.bad {
		return
	}
	if len(c.rest) > 0 {
		chunk = append(c.rest, chunk...)
	}
	end := prose.Border(chunk)
	c.bad = !utf8.Valid(chunk[:end])
	c.rest = bytes.Clone(chunk[end:])
}

func (c *textCheck) binary() bool { return c.bad || len(c.rest) > 0 }

// imageType is the media type of an image or document of a kind that models take, or "".
func imageType(head []byte) string {
	switch {
	case bytes.HasPrefix(head, []byte("\x89PNG\r\n\x1a\n")):
		return "image/png"
	case bytes.HasPrefix(head, []byte("\xff\xd8\xff")):
		return "image/jpeg"
	case bytes.HasPrefix(head, []byte("GIF87a")), bytes.HasPrefix(head, []byte("GIF89a")):
		return "image/gif"
	case len(head) >= 12 && string(head[:4]) == "RIFF" && string(head[8:12]) == "WEBP":
		return "image/webp"
	case bytes.HasPrefix(head, []byte("%PDF-")):
		return "application/pdf"
	default:
		return ""
	}
}

// binary reports whether content is not text: it has a NUL byte, or is not UTF-8.
func binary(content []byte) bool {
	return bytes.IndexByte(content, 0) >= 0 || !utf8.Valid(content)
}

func digest(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}
