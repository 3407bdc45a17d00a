package lane

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
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
	// blobTimeout bounds one transfer.
	blobTimeout = time.Minute
)

// blobs keeps payloads and values that no message can carry in the fleet's object
// store; the message then carries a [protocol.Stored]. What is not deleted ages
// out with the results. It is safe for concurrent use.
type blobs struct {
	js     jetstream.JetStream
	bucket string

	mu    sync.Mutex
	store jetstream.ObjectStore // opened when it is needed first
}

func newBlobs(nc *nats.Conn, fleet protocol.Fleet) (*blobs, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("open JetStream: %w", err)
	}
	return &blobs{js: js, bucket: fleet.BlobsBucket()}, nil
}

func (b *blobs) open(ctx context.Context) (jetstream.ObjectStore, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.store == nil {
		store, err := b.js.ObjectStore(ctx, b.bucket)
		if err != nil {
			return nil, fmt.Errorf("open object store %s: %w", b.bucket, err)
		}
		b.store = store
	}
	return b.store, nil
}

// put stores a body under a new name and returns what stands for it.
func (b *blobs) put(ctx context.Context, prefix string, body []byte) (protocol.Stored, error) {
	if len(body) > maxStored {
		return protocol.Stored{}, fmt.Errorf("%d bytes, at most %d are allowed: %w", len(body), maxStored, ErrTooLarge)
	}
	ctx, cancel := context.WithTimeout(ctx, blobTimeout)
	defer cancel()
	stored := protocol.Stored{Blob: prefix + "/" + uuid.NewString(), Bytes: int64(len(body))}
	_, err := natsio.PutObject(ctx, b.js, b.bucket, stored.Blob, bytes.NewReader(body))
	return stored, err
}

// get returns a body; the error wraps [jetstream.ErrObjectNotFound] when it is gone.
func (b *blobs) get(ctx context.Context, stored protocol.Stored) (json.RawMessage, error) {
	ctx, cancel := context.WithTimeout(ctx, blobTimeout)
	defer cancel()
	store, err := b.open(ctx)
	if err != nil {
		return nil, err
	}
	body, err := store.GetBytes(ctx, stored.Blob)
	if err != nil {
		return nil, fmt.Errorf("get %s: %w", stored.Blob, err)
	}
	return body, nil
}

// remove deletes a body. What cannot be deleted ages out.
func (b *blobs) remove(ctx context.Context, stored protocol.Stored) {
	ctx, cancel := context.WithTimeout(ctx, shortTimeout)
	defer cancel()
	if store, err := b.open(ctx); err == nil {
		_ = store.Delete(ctx, stored.Blob)
	}
}

// value puts the value of a result back that was too large for its message.
func (b *blobs) value(ctx context.Context, r *protocol.Result) error {
	stored, ok := r.Value.(protocol.Stored)
	if !ok {
		return nil
	}
	raw, err := b.get(ctx, stored)
	if errors.Is(err, jetstream.ErrObjectNotFound) {
		r.Value = nil // the result is older than values are kept
		return nil
	}
	if err != nil {
		return err
	}
	r.Value, err = protocol.DecodeValue(raw)
	return err
}
