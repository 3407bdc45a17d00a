// Package results stores what the results of calls cannot carry, and reads it again.
//
// A message carries a part of a long value: a [Partial]. The rest is stored as objects of the
// session, which stay until it is removed: the text that a reader is shown, each stream of a
// command, or the value as JSON, from which any section can be read. What is too large to be shown
// and not stored cannot be read again.
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
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/singleflight"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/modeltext/plain"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/worker/spool"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// Timeout bounds the storing of what does not fit into a result: it may be 128 MiB.
const Timeout = 2 * time.Minute

// Partial is a value too large for a message, or for a reader to see at once.
type Partial struct {
	protocol.Value

	// Whole stores all of it.
	Whole Func
}

// Noted is the value of a command with one more note; other values have none, and stay as they are.
func Noted(v protocol.Value, note string) protocol.Value {
	switch v := v.(type) {
	case Partial:
		v.Value = Noted(v.Value, note)
		return v
	case protocol.CommandRunResult:
		v.Notes = append(v.Notes, note)
		return v
	case protocol.CodeRunResult:
		v.Notes = append(v.Notes, note)
		return v
	default:
		return v
	}
}

// Func stores all of the value of a call.
type Func func(ctx context.Context, s *Store, c *protocol.Call) (*protocol.Kept, error)

// Store stores values of sessions until they are removed.
type Store struct {
	objects jetstream.ObjectStore
	js      jetstream.JetStream
	bucket  string
	storing singleflight.Group // of files, by the names of their objects
}

// Open opens the store of a fleet.
func Open(ctx context.Context, js jetstream.JetStream, fleet protocol.Fleet) (*Store, error) {
	bucket := wire.KeptBucket(fleet)
	objects, err := natsio.Open(ctx, js.ObjectStore, bucket)
	if err != nil {
		return nil, fmt.Errorf("object store %s: %w", bucket, err)
	}
	return &Store{objects: objects, js: js, bucket: bucket}, nil
}

func (k *Store) put(ctx context.Context, name string, content io.Reader) (*jetstream.ObjectInfo, error) {
	return natsio.PutObject(ctx, k.js, k.bucket, name, content)
}

// link has an object stand for another one.
func (k *Store) link(ctx context.Context, name string, to *jetstream.ObjectInfo) error {
	_, err := natsio.Open(ctx, func(ctx context.Context, name string) (*jetstream.ObjectInfo, error) {
		return k.objects.AddLink(ctx, name, to)
	}, name)
	return err
}

// StoreFull stores the whole of a result that a reader may see shortened, and notes that in the
// result. If it cannot be stored, Keep returns an error and leaves the result as it is. isLong
// reports whether a value that is no [Partial] is stored.
func (k *Store) StoreFull(ctx context.Context, c *protocol.Call, r *protocol.Result, isLong func(protocol.Value) bool) error {
	var whole Func
	switch value := r.Value.(type) {
	case nil:
		if r.Error == nil || len(r.Error.Message) <= plain.MaxError {
			return nil
		}
		whole = Text([]byte(r.Error.Message), &protocol.Kept{})
	case Partial:
		r.Value, whole = value.Value, value.Whole
	default:
		if !isLong(value) {
			return nil
		}
		whole = Value(value)
	}
	// A stopped call has a result, too; a call of a lost lane has none.
	storing, cancel := context.WithTimeout(context.WithoutCancel(ctx), Timeout)
	defer cancel()
	lost := context.AfterFunc(ctx, func() {
		if errors.Is(context.Cause(ctx), lane.ErrLost) {
			cancel()
		}
	})
	defer lost()
	kept, err := whole(storing, k, c)
	if err == nil {
		r.Kept = kept
	}
	return err
}

// Text stores a text.
func Text(text []byte, kept *protocol.Kept) Func {
	return func(ctx context.Context, s *Store, c *protocol.Call) (*protocol.Kept, error) {
		_, err := s.put(ctx, wire.PartObject(c.SessionID, c.ID, wire.PartText), bytes.NewReader(text))
		return kept, err
	}
}

// Value stores a value; any section of it can be read.
func Value(whole protocol.Value) Func {
	return func(ctx context.Context, s *Store, c *protocol.Call) (*protocol.Kept, error) {
		body, err := wire.EncodeValue(whole)
		if err != nil {
			return nil, err
		}
		_, err = s.put(ctx, wire.PartObject(c.SessionID, c.ID, wire.PartValue), bytes.NewReader(body))
		return &protocol.Kept{}, err
	}
}

// Output stores all that a command wrote, in its order and each stream apart, and closes the spool.
func Output(written *spool.Spool) Func {
	return func(ctx context.Context, s *Store, c *protocol.Call) (*protocol.Kept, error) {
		defer written.Close()
		if err := written.Err(); err != nil {
			return nil, err
		}
		both := []sandbox.Stream{sandbox.Stdout, sandbox.Stderr}
		text, err := s.put(ctx, wire.PartObject(c.SessionID, c.ID, wire.PartText), written.Reader(both...))
		if err != nil {
			return nil, err
		}
		for part, stream := range map[string]sandbox.Stream{wire.PartStdout: sandbox.Stdout, wire.PartStderr: sandbox.Stderr} {
			name := wire.PartObject(c.SessionID, c.ID, part)
			if written.Total(stream) == written.Total(both...) { // the other one is empty
				err = s.link(ctx, name, text)
			} else {
				_, err = s.put(ctx, name, written.Reader(stream))
			}
			if err != nil {
				return nil, err
			}
		}
		return &protocol.Kept{Truncated: written.Missing(both...) > 0}, nil
	}
}

// maxCarried is how many entries of a list a message carries when the call names no limit,
// and mostCarried when it does.
const (
	maxListEntries      = 2000
	maxRequestedEntries = 5000
)

// List is a list with n of total entries, as a message carries it: first returns its first entries.
// The list is stored if the message, or what a reader is shown, does not have all entries.
func List[V protocol.Value](all V, n, total, limit int, first func(V, int) V) (protocol.Value, error) {
	carried := maxListEntries
	if limit > 0 {
		carried = min(limit, maxRequestedEntries)
	}
	text, err := plain.Text(all)
	if err != nil {
		return nil, err
	}
	short := first(all, min(n, carried))
	if total <= min(carried, plain.MaxListed) && len(text) <= plain.MaxShown && !isCut(short) {
		return short, nil
	}
	return Partial{Value: short, Whole: Text(text, &protocol.Kept{Lines: bytes.Count(text, []byte{'\n'}), Truncated: n < total})}, nil
}

// isCut reports whether a value is a list with a line that is cut.
func isCut(v protocol.Value) bool {
	search, isSearch := v.(protocol.FilesSearchResult)
	for i := range search.Matches {
		if isSearch && search.Matches[i].Cut > 0 {
			return true
		}
	}
	return false
}

// JSON is a JSON text, which is stored if it may be shown cut.
func JSON(v protocol.FilesJSONReadResult) protocol.Value {
	if len(v.Value) <= plain.MaxShown {
		return v
	}
	lines := bytes.Count(v.Value, []byte{'\n'}) + 1
	return Partial{Value: v, Whole: Text(v.Value, &protocol.Kept{Lines: lines})}
}

// maxStoredFile is the largest file that is kept when it is not shown whole.
const maxStoredFile = 64 << 20

// File is a file that was read as a message carries it, and stored when readers may not
// be shown all that was asked for.
func File(fs sandbox.FS, v protocol.FilesReadResult) protocol.Value {
	switch {
	case v.Binary && !v.Raw, v.Bytes > maxStoredFile, isMade(v) && !whole(v):
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
func (k *Store) file(ctx context.Context, c *protocol.Call, fs sandbox.FS, v protocol.FilesReadResult) (*protocol.Kept, error) {
	kept := &protocol.Kept{Lines: v.TotalLines}
	name := wire.FileObject(c.SessionID, v.SHA256)
	if isBytes(v) {
		name += ".base64"
		kept.Lines = 1
	} else if isMade(v) || v.BOM {
		name += ".text"
	}
	// Calls that read one file side by side store it once: of two objects with one name the first
	// would stay for ever.
	_, err, _ := k.storing.Do(name, func() (any, error) { return nil, k.ensureFile(ctx, name, fs, v) })
	if err != nil {
		return nil, err
	}
	file := &jetstream.ObjectInfo{Bucket: k.bucket, ObjectMeta: jetstream.ObjectMeta{Name: name}}
	return kept, k.link(ctx, wire.PartObject(c.SessionID, c.ID, wire.PartText), file)
}

// ensureFile stores the content of a file unless it is stored already. It returns an error if the
// file has changed since it was read.
func (k *Store) ensureFile(ctx context.Context, name string, fs sandbox.FS, v protocol.FilesReadResult) error {
	_, err := k.objects.GetInfo(ctx, name)
	if errors.Is(err, jetstream.ErrObjectNotFound) {
		return k.putFile(ctx, name, fs, v)
	}
	return err
}

// putFile stores the content of a file, or an error when it is not any more what was read.
func (k *Store) putFile(ctx context.Context, name string, fs sandbox.FS, v protocol.FilesReadResult) error {
	var content io.Reader = bytes.NewReader(v.Content)
	if !isMade(v) && int64(len(v.Content)) != v.Bytes {
		content = &fileReader{ctx: ctx, fs: fs, file: v, digest: sha256.New()}
	}
	if isBytes(v) {
		content = &base64Reader{raw: content}
	}
	_, err := k.put(ctx, name, content)
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
