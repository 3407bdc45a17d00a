package snapshot

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

const (
	// maxWindow is the most memory that an archive can ask of the decompressor.
	maxWindow = 8 << 20
	// maxPadding is the most zeros that may follow the end of the tar stream.
	maxPadding = 1 << 20
)

// item is an entry as it comes from an archive: checked, but for the content.
type item struct {
	name    string
	entry   Entry // without the digest
	modTime time.Time
	body    io.Reader // of a file
}

// reader is an archive that is being read.
type reader struct {
	in      *source
	zip     *zstd.Decoder
	plain   *plain
	tar     *tar.Reader
	skip    func(string, bool) bool
	budget  budget
	seen    map[string]sandbox.FileType
	skipped map[string]bool
}

func newReader(ctx context.Context, r io.Reader, opts Options) (*reader, error) {
	in := &source{read: func(p []byte) (int, error) {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		return r.Read(p)
	}}
	zip, err := zstd.NewReader(in,
		zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(maxWindow))
	if err != nil {
		return nil, in.cause("", err)
	}
	out := &plain{ctxErr: ctx.Err, r: zip}
	return &reader{
		in: in, zip: zip, plain: out, tar: tar.NewReader(out), skip: opts.Skip,
		budget:  budget{limits: opts.Limits},
		seen:    map[string]sandbox.FileType{},
		skipped: map[string]bool{},
	}, nil
}

func (r *reader) close() { r.zip.Close() }

// next returns the next entry that takes part, and io.EOF after the last one of an
// archive that is complete. Every other error ends the archive.
func (r *reader) next() (item, error) {
	for {
		h, err := r.tar.Next()
		if errors.Is(err, io.EOF) {
			return item{}, r.end()
		}
		if err != nil {
			return item{}, r.fault("", err)
		}
		it, err := r.check(h)
		if err != nil {
			return item{}, err
		}
		if !r.leaveOut(it) {
			return it, nil
		}
	}
}

// fault returns what is behind an error of the tar stream.
func (r *reader) fault(name string, err error) error {
	if r.plain.stopped != nil {
		return r.plain.stopped
	}
	return r.in.cause(name, err)
}

// check turns a header into an item, and takes it from the budget.
func (r *reader) check(h *tar.Header) (item, error) {
	it := item{name: h.Name, modTime: h.ModTime}
	it.entry.Mode = h.FileInfo().Mode().Perm()
	switch h.Typeflag {
	case tar.TypeReg:
		it.entry.Type, it.entry.Size = sandbox.TypeFile, h.Size
		it.body = &body{reader: r, name: it.name}
	case tar.TypeDir:
		it.entry.Type, it.name = sandbox.TypeDir, strings.TrimSuffix(h.Name, "/")
	case tar.TypeSymlink:
		it.entry = Entry{Type: sandbox.TypeSymlink, Target: h.Linkname}
	default:
		return item{}, unsafef(h.Name, "type %q is neither file, directory nor symbolic link", h.Typeflag)
	}
	for key := range h.PAXRecords {
		if strings.HasPrefix(key, "GNU.sparse") {
			return item{}, unsafef(h.Name, "a sparse file")
		}
	}
	if err := r.budget.entry(it.name, it.entry.Target); err != nil {
		return item{}, err
	}
	if err := r.budget.content(it.name, it.entry.Size); err != nil {
		return item{}, err
	}
	return it, r.place(it)
}

// place checks where an entry stands: below directories of the archive, and only once.
func (r *reader) place(it item) error {
	if err := checkName(it.name); err != nil {
		return err
	}
	if it.entry.Type == sandbox.TypeSymlink {
		if err := checkTarget(it.name, it.entry.Target); err != nil {
			return err
		}
	}
	if _, double := r.seen[it.name]; double {
		return unsafef(it.name, "it is there twice")
	}
	if parent := path.Dir(it.name); parent != "." {
		switch r.seen[parent] {
		case sandbox.TypeDir:
		case "":
			return corruptf(it.name, "it comes before its directory")
		default:
			return unsafef(it.name, "what it is in is not a directory")
		}
	}
	r.seen[it.name] = it.entry.Type
	return nil
}

// leaveOut says that an entry or something above it is skipped.
func (r *reader) leaveOut(it item) bool {
	isDir := it.entry.Type == sandbox.TypeDir
	out := r.skipped[path.Dir(it.name)] || r.skip(it.name, isDir)
	if out && isDir {
		r.skipped[it.name] = true
	}
	return out
}

// end reads what follows the last entry: only so is the end of the archive, and its
// check sum, seen to be there.
func (r *reader) end() error {
	if r.plain.ended {
		return corruptf("", "it ends in the middle")
	}
	buf := make([]byte, 4096)
	for total := 0; ; {
		n, err := r.plain.Read(buf)
		for _, b := range buf[:n] {
			if b != 0 {
				return corruptf("", "something follows the last entry")
			}
		}
		total += n
		switch {
		case errors.Is(err, io.EOF):
			return io.EOF
		case err != nil:
			return r.fault("", err)
		case total > maxPadding:
			return corruptf("", "more than %d bytes follow the last entry", maxPadding)
		default:
		}
	}
}

// body is the content of a file.
type body struct {
	reader *reader
	name   string
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.reader.tar.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = b.reader.fault(b.name, err)
	}
	return n, err
}

// source is the compressed stream. It remembers an error of its own, so that it is not
// taken for a fault of the archive. Being a type of its own it also keeps the
// decompressor from recognising a buffer and decoding all of it at once.
type source struct {
	read func([]byte) (int, error)
	err  error
}

func (s *source) Read(p []byte) (int, error) {
	n, err := s.read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		s.err = err
	}
	return n, err
}

// cause returns the source's own error, else says that the archive is corrupt.
func (s *source) cause(name string, err error) error {
	if s.err != nil {
		return fmt.Errorf("read archive: %w", s.err)
	}
	return corruptf(name, "%v", err)
}

// plain is the decompressed stream. It reports its end alone, never with data, and
// stops when the context ends, however much a few compressed bytes amount to.
type plain struct {
	ctxErr  func() error
	r       io.Reader
	ended   bool
	stopped error
}

func (p *plain) Read(buf []byte) (int, error) {
	if p.stopped = p.ctxErr(); p.stopped != nil {
		return 0, p.stopped
	}
	n, err := p.r.Read(buf)
	if n > 0 && errors.Is(err, io.EOF) {
		return n, nil
	}
	p.ended = p.ended || errors.Is(err, io.EOF)
	return n, err
}
