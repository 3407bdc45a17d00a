package snapshot

import (
	"archive/tar"
	"errors"
	"io"
	"sync/atomic"

	"github.com/klauspost/compress/zstd"
)

// writer is an archive that is being made.
type writer struct {
	*tar.Writer

	zip  *zstd.Encoder
	gate *gate
}

// errAborted is what the compressor gets to see when the archive was given up.
var errAborted = errors.New("the archive was given up")

// gate lets bytes through until it is shut, so that an archive which was given up
// stays recognisably cut off.
type gate struct {
	w    io.Writer
	shut atomic.Bool
}

func (g *gate) Write(p []byte) (int, error) {
	if g.shut.Load() {
		return 0, errAborted
	}
	return g.w.Write(p)
}

func newWriter(w io.Writer) (*writer, error) {
	gate := &gate{w: w}
	zip, err := zstd.NewWriter(gate, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(2))
	if err != nil {
		return nil, err
	}
	return &writer{Writer: tar.NewWriter(zip), zip: zip, gate: gate}, nil
}

// finish completes the archive.
func (w *writer) finish() error {
	if err := w.Close(); err != nil {
		return err
	}
	return w.zip.Close()
}

// abort gives the archive up. Nothing is written after it returned.
func (w *writer) abort() {
	w.gate.shut.Store(true)
	w.zip.Reset(nil)
}
