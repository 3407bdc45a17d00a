package store

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

const (
	// maxStored bounds a payload or value that is kept in the object store, in bytes.
	maxStored = 64 << 20
	// BlobTimeout bounds one transfer.
	BlobTimeout = time.Minute
)

// Blobs keeps payloads and values that no message can carry in the fleet's object
// store; the message then carries a [protocol.Stored]. What is not deleted ages
// out with the results. It is safe for concurrent use.
type Blobs struct {
	js     jetstream.JetStream
	bucket string
}

// NewBlobs is the object store of a fleet, which must exist when it is used.
func NewBlobs(nc *nats.Conn, fleet protocol.Fleet) (*Blobs, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("open JetStream: %w", err)
	}
	return &Blobs{js: js, bucket: fleet.BlobsBucket()}, nil
}

// Put stores a body under a new name and returns what stands for it. The error wraps [ErrTooLarge],
// or [ErrFull] when the object store has no room for it.
func (b *Blobs) Put(ctx context.Context, prefix string, body []byte) (protocol.Stored, error) {
	if len(body) > maxStored {
		return protocol.Stored{}, fmt.Errorf("%d bytes, at most %d are allowed: %w", len(body), maxStored, ErrTooLarge)
	}
	ctx, cancel := context.WithTimeout(ctx, BlobTimeout)
	defer cancel()
	stored := protocol.Stored{Blob: prefix + "/" + uuid.NewString(), Bytes: int64(len(body))}
	_, err := natsio.PutObject(ctx, b.js, b.bucket, stored.Blob, bytes.NewReader(body))
	if refused, ok := errors.AsType[*jetstream.APIError](err); ok && natsio.NoRoom(refused) {
		err = fmt.Errorf("%w: object store %s: %s", ErrFull, b.bucket, refused.Description)
	}
	return stored, err
}

// Get returns a body; the error wraps [jetstream.ErrObjectNotFound] when it is gone, also with all
// others.
func (b *Blobs) Get(ctx context.Context, stored protocol.Stored) (json.RawMessage, error) {
	ctx, cancel := context.WithTimeout(ctx, BlobTimeout)
	defer cancel()
	body, err := natsio.GetObjectBytes(ctx, b.js, b.bucket, stored.Blob)
	if err != nil {
		return nil, fmt.Errorf("get %s: %w", stored.Blob, err)
	}
	return body, nil
}

// Remove deletes a body, also where there is no room for anything more. What cannot be deleted ages
// out.
func (b *Blobs) Remove(ctx context.Context, stored protocol.Stored) {
	ctx, cancel := context.WithTimeout(ctx, OpTimeout) // it is several requests
	defer cancel()
	_ = natsio.DeleteObject(ctx, b.js, b.bucket, stored.Blob)
}

// Value puts the value of a result back that was too large for its message. The error wraps
// [protocol.ErrInvalidResult] when it cannot be read.
func (b *Blobs) Value(ctx context.Context, r *protocol.Result) error {
	stored, ok := r.Value.(protocol.Stored)
	if !ok {
		return nil
	}
	raw, err := b.Get(ctx, stored)
	if errors.Is(err, jetstream.ErrObjectNotFound) {
		r.Value = nil // the result is older than values are kept, or somebody removed them
		return nil
	}
	if err != nil {
		return err
	}
	if r.Value, err = protocol.DecodeValue(raw); err != nil {
		return fmt.Errorf("%w: value: %w", protocol.ErrInvalidResult, err)
	}
	return nil
}
