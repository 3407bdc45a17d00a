package snapshot

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"

	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// copyBuffer is how much is copied at a time. Files that fit have the size in the
// archive that was read; of larger ones the size must be said before they are read.
const copyBuffer = 256 << 10

// file packs a regular file.
func (p *packer) file(ctx context.Context, name string, seen fs.FileInfo) error {
	file, err := openFile(p.root, name, seen)
	if err != nil {
		return err
	}
	defer file.Close()
	before, err := file.Stat()
	if err != nil {
		return err
	}
	head, whole, err := readHead(file, p.buf)
	if err != nil {
		return err
	}
	size := int64(len(head))
	if !whole {
		size = max(before.Size(), size)
	}
	if err := p.budget.content(name, size); err != nil {
		return err
	}
	err = p.header(name, Entry{Type: sandbox.TypeFile, Mode: before.Mode().Perm(), Size: size},
		&tar.Header{Typeflag: tar.TypeReg, Name: name, ModTime: before.ModTime()})
	if err != nil {
		return err
	}
	hash := newDigest()
	sink := io.MultiWriter(p.out, hash)
	if _, err = sink.Write(head); err == nil {
		err = copyExactly(ctx, sink, file, size-int64(len(head)), p.buf)
	}
	if err != nil {
		return err
	}
	p.setDigest(name, hash.sum())
	return p.count(file, before, size)
}

// count adds a packed file to the statistics.
func (p *packer) count(file *os.File, before fs.FileInfo, size int64) error {
	after, err := file.Stat()
	if err != nil {
		return err
	}
	p.stats.Files++
	p.stats.Bytes += size
	if after.Size() != size || !after.ModTime().Equal(before.ModTime()) {
		p.stats.Changed++
	}
	return nil
}

// readHead fills buf from r, and says whether that was all.
func readHead(r io.Reader, buf []byte) (head []byte, whole bool, err error) {
	n, err := io.ReadFull(r, buf)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return buf[:n], true, nil
	}
	return buf[:n], false, err
}

// copyExactly copies size bytes, and zeros for those that r does not have.
func copyExactly(ctx context.Context, w io.Writer, r io.Reader, size int64, buf []byte) error {
	for size > 0 {
		if err := ctx.Err(); err != nil {
			return err
		}
		part := buf[:min(size, int64(len(buf)))]
		n, err := io.ReadFull(r, part)
		if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			return err
		}
		clear(part[n:])
		if _, err := w.Write(part); err != nil {
			return err
		}
		size -= int64(len(part))
	}
	return nil
}
