package snapshot

import (
	"context"
	"errors"
	"io"
	"os"
)

// Packed is [Pack] for whoever reads an archive: use reads it while it is made. The error joins
// that of packing and that of use.
func Packed(ctx context.Context, root *os.Root, options *Options, use func(io.Reader) error) (manifest Manifest, stats Stats, err error) {
	reader, writer := io.Pipe()
	packed := make(chan error, 1)
	go func() {
		var err error
		manifest, stats, err = Pack(ctx, root, writer, options)
		writer.CloseWithError(err)
		packed <- err
	}()
	err = use(reader)
	reader.CloseWithError(err)
	return manifest, stats, errors.Join(<-packed, err)
}
