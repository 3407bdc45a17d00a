package natsio

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

const (
	// maxStored bounds a payload or value that is kept in the object store, in bytes.
	maxStored = 64 << 20
	// BlobTimeout bounds one transfer.
	BlobTimeout = time.Minute
	// removeTimeout bounds one deletion, which is several requests.
	removeTimeout = 5 * time.Second
	// messageOverhead is the room in a message that is left for subject and headers.
	messageOverhead = 16 << 10
	// maxErrorText is how many bytes of the text of an error a result has that no message could
	// carry; escaped as JSON they are at most six times as many.
	maxErrorText = 64 << 10
)

// Errors that callers branch on.
var (
	// ErrFull says that the fleet takes no more, because the stream, the account or the server is
	// at its limit: nothing was stored.
	ErrFull = errors.New("the fleet's queue is full")
	// ErrTooLarge says that a payload is larger than the fleet keeps: over 64 MiB.
	ErrTooLarge = errors.New("too large for the fleet")
)

// Blobs keeps payloads and values that no message can carry in the fleet's object
// store; the message then carries a [wire.Stored]. What is not deleted ages
// out with the results. It is safe for concurrent use.
type Blobs struct {
	nc     *nats.Conn
	js     jetstream.JetStream
	bucket string
}

// NewBlobs is the object store of a fleet, which must exist when it is used.
func NewBlobs(nc *nats.Conn, fleet protocol.Fleet) (*Blobs, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("open JetStream: %w", err)
	}
	return &Blobs{nc: nc, js: js, bucket: wire.BlobsBucket(fleet)}, nil
}

// Put stores a body under a new name and returns what stands for it. The error wraps [ErrTooLarge],
// or [ErrFull] when the object store has no room for it.
func (b *Blobs) Put(ctx context.Context, prefix string, body []byte) (wire.Stored, error) {
	if len(body) > maxStored {
		return wire.Stored{}, fmt.Errorf("%d bytes, at most %d are allowed: %w", len(body), maxStored, ErrTooLarge)
	}
	ctx, cancel := context.WithTimeout(ctx, BlobTimeout)
	defer cancel()
	stored := wire.Stored{Blob: prefix + "/" + uuid.NewString(), Bytes: int64(len(body)), Digest: digest(body)}
	_, err := PutObject(ctx, b.js, b.bucket, stored.Blob, bytes.NewReader(body))
	if refused, _ := errors.AsType[*jetstream.APIError](err); NoRoom(err) {
		err = fmt.Errorf("%w: object store %s: %s", ErrFull, b.bucket, refused.Description)
	}
	return stored, err
}

func digest(body []byte) string {
	sum := sha256.Sum256(body)
	return hex.EncodeToString(sum[:])
}

// Get returns a body; the error wraps [jetstream.ErrObjectNotFound] when it is gone, also with all
// others, or when it is not what was put there.
func (b *Blobs) Get(ctx context.Context, stored wire.Stored) (json.RawMessage, error) {
	ctx, cancel := context.WithTimeout(ctx, BlobTimeout)
	defer cancel()
	body, err := GetObjectBytes(ctx, b.js, b.bucket, stored.Blob)
	if err != nil {
		return nil, fmt.Errorf("get %s: %w", stored.Blob, err)
	}
	if stored.Digest != "" && digest(body) != stored.Digest {
		return nil, fmt.Errorf("get %s: %w: what is there has another digest", stored.Blob, jetstream.ErrObjectNotFound)
	}
	return body, nil
}

// Remove deletes a body, also where there is no room for anything more. What cannot be deleted ages
// out.
func (b *Blobs) Remove(ctx context.Context, stored wire.Stored) {
	ctx, cancel := context.WithTimeout(ctx, removeTimeout)
	defer cancel()
	_ = DeleteObjects(ctx, b.js, b.bucket, stored.Blob)
}

// Value puts the value of a result back that was too large for its message. The error wraps
// [wire.ErrInvalidResult] when it cannot be read.
func (b *Blobs) Value(ctx context.Context, r *protocol.Result) error {
	stored, ok := r.Value.(wire.Stored)
	if !ok {
		return nil
	}
	raw, err := b.Get(ctx, stored)
	if errors.Is(err, jetstream.ErrObjectNotFound) {
		r.Value = nil // the result is older than values are kept, or an operator removed them
		return nil
	}
	if err != nil {
		return err
	}
	if r.Value, err = wire.DecodeValue(raw); err != nil {
		return fmt.Errorf("%w: value: %w", wire.ErrInvalidResult, err)
	}
	return nil
}

// carried is an error with about so many bytes of its message at most, from its head and tail.
func carried(fault *protocol.Error, most int) *protocol.Error {
	if fault == nil || len(fault.Message) <= most {
		return fault
	}
	head, tail := fault.Message[:most/2], fault.Message[len(fault.Message)-most/2:]
	message := fmt.Sprintf("%s\n[... %d bytes left out ...]\n%s", head, len(fault.Message)-most, tail)
	return &protocol.Error{Code: fault.Code, Message: strings.ToValidUTF8(message, "\uFFFD")}
}

// EncodeResult encodes a result for its message. If that cannot carry it, the middles of the texts
// of errors are left out, and the value is stored apart. A result must always arrive: where that is
// not possible, one without the value says so.
func (b *Blobs) EncodeResult(ctx context.Context, r *protocol.Result) ([]byte, error) {
	body, err := wire.EncodeResult(r)
	small := *r
	switch {
	case err != nil:
		small.Value, small.Status = nil, protocol.StatusFailed
		small.Error = protocol.Errorf(protocol.CodeInternal, "the call ran, but its result cannot be encoded: %v", err)
	case !b.TooLarge(body):
		return body, nil
	default:
		small.Error, small.Tries = carried(r.Error, maxErrorText), slices.Clone(r.Tries)
		for i := range small.Tries {
			small.Tries[i].Error = carried(small.Tries[i].Error, maxErrorText/len(small.Tries))
		}
		if body, err = wire.EncodeResult(&small); err != nil || !b.TooLarge(body) {
			return body, err
		}
		raw, err := wire.EncodeValue(r.Value)
		if err != nil {
			return nil, err
		}
		stored, err := b.Put(ctx, "result/"+string(r.SessionID), raw)
		switch {
		case err == nil:
			small.Value = stored
		case errors.Is(err, ErrTooLarge):
			small.Value, small.Status = nil, protocol.StatusFailed
			small.Error = protocol.Errorf(codes.PayloadTooLarge, "the call ran, but its result is too large: %v; ask for less at once", err)
		case errors.Is(err, ErrFull):
			small.Value, small.Status = nil, protocol.StatusFailed
			small.Error = protocol.Errorf(codes.PayloadTooLarge, "the call ran, but there is no room for a result as large as its: %v", err)
		default:
			return nil, err
		}
	}
	return wire.EncodeResult(&small)
}

// TooLarge reports whether a body does not fit into a message.
func (b *Blobs) TooLarge(body []byte) bool {
	return int64(len(body)) > b.nc.MaxPayload()-messageOverhead
}
