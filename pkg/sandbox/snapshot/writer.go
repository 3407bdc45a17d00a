package snapshot

import (
	"archive/tar"
	"io"

	"github.com/klauspost/compress/zstd"
)

// writer is an archive that is being made.
type writer struct {
	*tar.Writer

	zip *zstd.Encoder
}

func newWriter(w io.Writer) (*writer, error) {
	zip, err := zstd.NewWriter(w, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(2))
	if err != nil {
		return nil, err
	}
	return &writer{Writer: tar.NewWriter(zip), zip: zip}, nil
}

// finish completes the archive.
func (w *writer) finish() error {
	if err := w.Close(); err != nil {
		return err
	}
	return w.zip.Close()
}

// abort gives the archive up, which stays cut off. It waits for what is being written.
func (w *writer) abort() {
	w.zip.Reset(nil)
}
