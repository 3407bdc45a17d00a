package journal

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// storeImage puts the data of an image into the object store and returns what stands for it in the
// journal. Storing it twice is storing it once. Where there is no room the journal has it without
// its data.
func (j *Journal) storeImage(ctx context.Context, session protocol.SessionID, image *loop.Image) (*loop.Image, error) {
	sum := sha256.Sum256(image.Data)
	stored := &loop.Image{MediaType: image.MediaType, Blob: protocol.ImageBlob(session, hex.EncodeToString(sum[:]))}
	_, err := natsio.PutObject(ctx, j.js, j.fleet.KeptBucket(), stored.Blob, bytes.NewReader(image.Data))
	if api, answered := errors.AsType[*jetstream.APIError](err); answered && natsio.NoRoom(api) {
		return &loop.Image{MediaType: image.MediaType}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("store %s: %w", stored.Blob, err)
	}
	return stored, nil
}

// loadImage puts the data back. An image that is not kept any more stays without.
func (j *Journal) loadImage(ctx context.Context, image *loop.Image) error {
	if image == nil || image.Blob == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, loadTimeout)
	defer cancel()
	data, err := j.kept.GetBytes(ctx, image.Blob)
	if errors.Is(err, jetstream.ErrObjectNotFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("get %s: %w", image.Blob, err)
	}
	image.Data = data
	return nil
}
