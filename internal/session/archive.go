package session

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/google/uuid"
	"github.com/klauspost/compress/zstd"

	"github.com/toolfleet/toolfleet/internal/fleet"
	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/sandbox/snapshot"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/internal/workspace"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Bounds of an archive that is unpacked.
const (
	maxUnpacked = 8 << 30
	maxEntries  = 200_000
	maxWindow   = 32 << 20 // memory of its decompression
	maxRest     = 1 << 20  // behind its end
)

// Content is a file of a workspace.
type Content struct {
	report.File

	SHA256   string // of all of it, in hex
	Modified time.Time

	node   snapshot.Node
	bodies snapshot.Bodies
}

// Open reads it.
func (c *Content) Open(ctx context.Context) io.ReadSeeker { return c.node.Open(ctx, c.bodies) }

// Open returns a file after a call, as [Files.List].
func (f Files) Open(ctx context.Context, id protocol.SessionID, name string, at protocol.CallID) (*Content, error) {
	tree, err := f.at(ctx, id, at)
	if err != nil {
		return nil, fmt.Errorf("session %s: %w", id, err)
	}
	node, is := tree[underWorkspace+name]
	switch {
	case !is || node.Type != protocol.TypeFile:
		return nil, fmt.Errorf("file %q: %w", name, ErrNoFile)
	case node.Size > maxRead:
		return nil, protocol.Errorf(codes.TooLarge, "file %q: has %d bytes, and at most %d can be read; an archive has it", name, node.Size, maxRead)
	}
	c := &Content{File: fileOf(name, node), Modified: time.Unix(0, node.ModTime), node: node, bodies: f.store}
	if len(node.Parts) == 1 && node.Parts[0].Sum != "" {
		sum, err := base64.RawURLEncoding.DecodeString(node.Parts[0].Sum)
		c.SHA256 = hex.EncodeToString(sum)
		return c, err
	}
	sum := sha256.New()
	if _, err := io.Copy(sum, c.Open(ctx)); err != nil {
		return nil, fmt.Errorf("file %q: %w", name, err)
	}
	c.SHA256 = hex.EncodeToString(sum.Sum(nil))
	return c, nil
}

// Archive is what a workspace had after a call, to be written.
type Archive struct {
	tree   snapshot.Tree
	bodies snapshot.Bodies
}

// Formats of archives.
const (
	FormatTar  = "tar"
	FormatGzip = "tar.gz"
	FormatZstd = "tar.zst"
)

// Archive returns the files of a workspace after a call, as [Files.List].
func (f Files) Archive(ctx context.Context, id protocol.SessionID, at protocol.CallID) (*Archive, error) {
	tree, err := f.at(ctx, id, at)
	if err != nil {
		return nil, fmt.Errorf("session %s: %w", id, err)
	}
	tree = workspace.FilesOf(tree)
	if sizes := tree.Usage().Sizes; sizes > snapshot.DefaultMaxBytes {
		return nil, protocol.Errorf(codes.TooLarge,
			"session %s: the files have %d bytes, with their holes, and an archive has at most %d", id, sizes,
			int64(snapshot.DefaultMaxBytes))
	}
	return &Archive{tree, f.store}, nil
}

// Write writes the archive. After an error it is not complete.
func (a *Archive) Write(ctx context.Context, to io.Writer, format string) (err error) {
	var packed io.WriteCloser
	switch format {
	case FormatTar:
		return a.tree.WriteTar(ctx, to, a.bodies)
	case FormatGzip:
		packed = gzip.NewWriter(to)
	case FormatZstd:
		packed, err = zstd.NewWriter(to, zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(1<<20))
	default:
		err = fmt.Errorf("format %q: must be %s, %s or %s", format, FormatTar, FormatGzip, FormatZstd)
	}
	if err == nil {
		err = a.tree.WriteTar(ctx, packed, a.bodies)
	}
	if err == nil {
		err = packed.Close()
	}
	return err
}

// Pack stores what an archive has, and returns the payload of the call that lays it over a
// directory of the workspace. The archive is tar, as it is or compressed by gzip or zstd. The error
// is a *[protocol.Error] if it is about the archive.
func (f Files) Pack(ctx context.Context, fl *fleet.Fleet, id protocol.SessionID, from io.Reader, dir string) (p wire.WorkspaceUnpack, err error) {
	uses := []protocol.Use{{Key: protocol.SandboxKey(string(id))}}
	if err = MayCall(ctx, fl, &protocol.Call{SessionID: id, Resources: uses}); err == nil {
		err = f.may(ctx, judge.Use, id)
	}
	if err != nil { // before anything is stored
		return p, err
	}
	delta, err := f.read(ctx, from)
	if err != nil {
		return p, archiveError(err)
	}
	encoded, err := json.Marshal(workspace.Upload{Delta: *delta})
	if err != nil {
		return p, fmt.Errorf("archive: %w", err)
	}
	sum := sha256.Sum256(encoded)
	p = wire.WorkspaceUnpack{Blob: wire.UploadBlob(id, uuid.NewString()), Digest: hex.EncodeToString(sum[:]), Path: dir}
	if err = f.store.Keep(ctx, delta.Stored); err == nil { // from now on the object names them
		_, err = natsio.PutObject(ctx, f.js, wire.BlobsBucket(fl.Name), p.Blob, bytes.NewReader(encoded))
	}
	if err != nil {
		return p, fmt.Errorf("archive: %w", err)
	}
	return p, nil
}

// read stores the contents of an archive.
func (f Files) read(ctx context.Context, from io.Reader) (*snapshot.Delta, error) {
	plain, end, err := decompressed(from)
	if err != nil {
		return nil, err
	}
	defer end()
	delta, err := snapshot.ReadTar(ctx, plain, f.store, snapshot.Limits{MaxEntries: maxEntries, MaxBytes: maxUnpacked})
	if err != nil {
		return nil, err
	}
	switch n, err := io.CopyN(io.Discard, plain, maxRest+1); { // up to the checksum
	case n > maxRest:
		return nil, &snapshot.Error{Kind: snapshot.ErrCorrupt, Reason: "something follows the end of the archive"}
	case !errors.Is(err, io.EOF):
		return nil, err
	}
	return delta, delta.Outline(ctx, f.store)
}

// decompressed reads what may be compressed.
func decompressed(from io.Reader) (plain io.Reader, end func(), err error) {
	packed := bufio.NewReader(from)
	head, err := packed.Peek(4)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, nil, err
	}
	none := func() {}
	switch {
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b}):
		plain, err = gzip.NewReader(packed)
		return &damaged{plain}, none, err
	case bytes.Equal(head, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		z, err := zstd.NewReader(packed, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderLowmem(true))
		if err != nil {
			return nil, nil, err
		}
		return &damaged{z}, z.Close, nil
	default:
		return packed, none, nil
	}
}

// damaged reads what is compressed, and says that it is damaged where it is.
type damaged struct{ io.Reader }

// Read implements [io.Reader].
func (d *damaged) Read(p []byte) (int, error) {
	n, err := d.Reader.Read(p)
	for _, kind := range []error{
		io.ErrUnexpectedEOF, gzip.ErrChecksum, gzip.ErrHeader, zstd.ErrCRCMismatch, zstd.ErrMagicMismatch,
		zstd.ErrCompressedSizeTooBig, zstd.ErrWindowSizeExceeded, zstd.ErrBlockTooSmall, zstd.ErrReservedBlockType,
	} {
		if errors.Is(err, kind) {
			err = &snapshot.Error{Kind: snapshot.ErrCorrupt, Reason: err.Error()}
		}
	}
	return n, err
}

// archiveError is an error about an archive with its code; others stay as they are.
func archiveError(err error) error {
	fault, is := errors.AsType[*snapshot.Error](err)
	if !is {
		return err
	}
	code := map[error]protocol.Code{snapshot.ErrUnsafe: codes.UnsafeEntry, snapshot.ErrLimit: codes.TooLarge}[fault.Kind]
	return protocol.Errorf(cmp.Or(code, codes.InvalidArchive), "archive: %v", fault)
}
