package results

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/modeltext/plain"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// maxKeptFile is the largest file that is kept when it is not shown whole.
const maxKeptFile = 64 << 20

// File is a file that was read as a message carries it, and stored when readers may not
// be shown all that was asked for.
func File(fs sandbox.FS, v protocol.FilesReadResult) protocol.Value {
	switch {
	case v.Binary && !v.Raw, v.Bytes > maxKeptFile, isMade(v) && !whole(v):
		return v
	case isBytes(v) && !v.Truncated && base64.StdEncoding.EncodedLen(len(v.Content)) <= plain.MaxShown:
		return v
	case !isBytes(v) && !v.Truncated && plain.FitsFile(v.Content):
		return v
	}
	return Partial{Value: v, Whole: func(ctx context.Context, s *Store, c *protocol.Call) (*protocol.Kept, error) {
		return s.file(ctx, c, fs, v)
	}}
}

// isBytes reports whether readers get the content as base64.
func isBytes(v protocol.FilesReadResult) bool { return v.Raw && v.Binary }

// isMade reports whether the content is text that was made of what the file has.
func isMade(v protocol.FilesReadResult) bool { return v.Encoding != "" || v.Cells > 0 }

// whole reports whether all of the text of a file was read.
func whole(v protocol.FilesReadResult) bool { return v.Lines == v.TotalLines && !v.Truncated }

// file stores the content of a file. A file that is read again and again is stored once for each
// content that it had.
func (s *Store) file(ctx context.Context, c *protocol.Call, fs sandbox.FS, v protocol.FilesReadResult) (*protocol.Kept, error) {
	kept := &protocol.Kept{Lines: v.TotalLines}
	name := wire.KeptFile(c.SessionID, v.SHA256)
	if isBytes(v) {
		name += ".base64"
		kept.Lines = 1
	} else if isMade(v) || v.BOM {
		name += ".text"
	}
	// Calls that read one file side by side store it once: of two objects with one name the first
	// would stay for ever.
	_, err, _ := s.storing.Do(name, func() (any, error) { return nil, s.ensureFile(ctx, name, fs, v) })
	if err != nil {
		return nil, err
	}
	file := &jetstream.ObjectInfo{Bucket: s.bucket, ObjectMeta: jetstream.ObjectMeta{Name: name}}
	return kept, s.link(ctx, wire.KeptText(c.SessionID, c.ID), file)
}

// ensureFile stores the content of a file unless it is stored already. It returns an error if the
// file has changed since it was read.
func (s *Store) ensureFile(ctx context.Context, name string, fs sandbox.FS, v protocol.FilesReadResult) error {
	_, err := s.objects.GetInfo(ctx, name)
	if errors.Is(err, jetstream.ErrObjectNotFound) {
		return s.putFile(ctx, name, fs, v)
	}
	return err
}

// putFile stores the content of a file, or an error when it is not any more what was read.
func (s *Store) putFile(ctx context.Context, name string, fs sandbox.FS, v protocol.FilesReadResult) error {
	var content io.Reader = bytes.NewReader(v.Content)
	if !isMade(v) && int64(len(v.Content)) != v.Bytes {
		content = &fileReader{ctx: ctx, fs: fs, file: v, digest: sha256.New()}
	}
	if isBytes(v) {
		content = &base64Reader{raw: content}
	}
	_, err := s.put(ctx, name, content)
	return err
}

// base64Reader is what another reader has as base64.
type base64Reader struct {
	raw     io.Reader
	encoded []byte
}

// Read implements [io.Reader].
func (b *base64Reader) Read(p []byte) (int, error) {
	if len(b.encoded) == 0 {
		raw := make([]byte, 48<<10) // a whole number of groups: only the last one is padded
		n, err := io.ReadFull(b.raw, raw)
		if n == 0 || err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
			return 0, err
		}
		b.encoded = base64.StdEncoding.AppendEncode(nil, raw[:n])
	}
	n := copy(p, b.encoded)
	b.encoded = b.encoded[n:]
	return n, nil
}

// fileReader reads a file of a sandbox, and fails at its end when it was another.
type fileReader struct {
	ctx    context.Context //nolint:containedctx // a reader gets it in no other way
	fs     sandbox.FS
	file   protocol.FilesReadResult
	digest hash.Hash
	at     int64
	chunk  []byte
}

var errFileChanged = errors.New("the file was changed while it was being kept")

// Read implements [io.Reader].
func (f *fileReader) Read(p []byte) (int, error) {
	if len(f.chunk) == 0 {
		got, err := f.fs.ReadAt(f.ctx, f.file.Path, f.at, 0)
		if err != nil {
			return 0, fmt.Errorf("read %s: %w", f.file.Path, err)
		}
		f.chunk = got
		f.at += int64(len(f.chunk))
		f.digest.Write(f.chunk)
		if f.file.BOM && !f.file.Raw && f.at == int64(len(f.chunk)) {
			f.chunk = bytes.TrimPrefix(f.chunk, []byte("\uFEFF"))
		}
		if f.at > f.file.Bytes {
			return 0, errFileChanged
		}
	}
	if len(f.chunk) == 0 {
		if hex.EncodeToString(f.digest.Sum(nil)) != f.file.SHA256 {
			return 0, errFileChanged
		}
		return 0, io.EOF
	}
	n := copy(p, f.chunk)
	f.chunk = f.chunk[n:]
	return n, nil
}
