package workspace

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/sandbox/snapshot"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// maxBody is more than any body has.
const maxBody = 2 * snapshot.MaxPart

// bodies is where a fleet has its bodies: in its NATS servers, or in an S3 store. It is safe for
// concurrent use. What is stored under a name again is another one of that name, so that removing
// an old one never removes what was stored meanwhile.
type bodies interface {
	// get returns a body; the error wraps ErrMissing when there is none.
	get(ctx context.Context, name string) ([]byte, error)
	// put stores a body, unless one of that name is young.
	put(ctx context.Context, name string, body []byte) error
	// keep has a body count as stored now, unless it is young; the error wraps ErrMissing when
	// there is none.
	keep(ctx context.Context, name string) error
	// before returns those that were stored before a time.
	before(ctx context.Context, at time.Time) ([]stored, error)
	// remove removes some of them.
	remove(ctx context.Context, old []stored) error
}

// stored is a body as it was listed.
type stored struct {
	name string
	key  string                // in an S3 store
	copy bool                  // there is a later one of that name
	info *jetstream.ObjectInfo // in an object store
}

// natsBodies are those in the object store of a fleet.
type natsBodies struct {
	js    jetstream.JetStream
	store jetstream.ObjectStore
	fleet protocol.Fleet
	young time.Duration // how old a body is at most that is not stored again
}

func (b natsBodies) get(ctx context.Context, name string) ([]byte, error) {
	for again := true; ; again = false { // it may be stored once more while it is read
		body, err := b.read(ctx, name)
		switch lost := errors.Is(err, jetstream.ErrMsgNotFound); {
		case lost && again:
		case lost, errors.Is(err, jetstream.ErrObjectNotFound):
			return nil, fmt.Errorf("body %s: %w: %w", name, ErrMissing, err)
		case errors.Is(err, jetstream.ErrDigestMismatch):
			return nil, fmt.Errorf("body %s: %w: %w", name, snapshot.ErrCorrupt, err)
		default:
			return body, err
		}
	}
}

func (b natsBodies) read(ctx context.Context, name string) ([]byte, error) {
	object, err := natsio.GetObject(ctx, b.js, wire.BodiesBucket(b.fleet), name)
	if err != nil {
		return nil, err
	}
	body, err := io.ReadAll(io.LimitReader(object, maxBody))
	return body, errors.Join(err, object.Close())
}

func (b natsBodies) put(ctx context.Context, name string, body []byte) error {
	info, err := b.store.GetInfo(ctx, name)
	if err == nil && time.Since(info.ModTime) < b.young {
		return nil
	}
	if err != nil && !errors.Is(err, jetstream.ErrObjectNotFound) {
		return fmt.Errorf("look for body %s: %w", name, err)
	}
	_, err = natsio.PutObject(ctx, b.js, wire.BodiesBucket(b.fleet), name, bytes.NewReader(body))
	return err
}

func (b natsBodies) keep(ctx context.Context, name string) error {
	err := natsio.RenewObject(ctx, b.js, wire.BodiesBucket(b.fleet), name, b.young)
	if errors.Is(err, jetstream.ErrObjectNotFound) {
		return fmt.Errorf("body %s: %w: %w", name, ErrMissing, err)
	}
	return err
}

func (b natsBodies) before(ctx context.Context, at time.Time) (old []stored, err error) {
	infos, err := natsio.ListObjects(ctx, b.js, wire.BodiesBucket(b.fleet), func(string) bool { return true })
	for _, info := range infos {
		if !info.Deleted && !info.ModTime.After(at) {
			old = append(old, stored{name: info.Name, info: info})
		}
	}
	return old, err
}

func (b natsBodies) remove(ctx context.Context, old []stored) error {
	infos := make([]*jetstream.ObjectInfo, 0, len(old))
	for _, o := range old {
		infos = append(infos, o.info)
	}
	return natsio.DeleteOldObjects(ctx, b.js, wire.BodiesBucket(b.fleet), slices.Clip(infos)...)
}

// lasts reports whether an error of a store will be the same when it is asked again.
func lasts(err error) bool {
	if errors.Is(err, ErrMissing) || errors.Is(err, ErrInvalid) || errors.Is(err, snapshot.ErrCorrupt) ||
		errors.Is(err, jetstream.ErrBucketNotFound) || !natsio.Repeatable(err) {
		return true
	}
	response, is := errors.AsType[minio.ErrorResponse](err)
	return is && (isFull(err) || response.StatusCode >= 400 && response.StatusCode < 500 &&
		response.StatusCode != http.StatusRequestTimeout && response.StatusCode != http.StatusTooManyRequests)
}

// isFull reports whether a store has no room.
func isFull(err error) bool {
	response, is := errors.AsType[minio.ErrorResponse](err)
	return natsio.NoRoom(err) || is && (response.StatusCode == http.StatusInsufficientStorage || strings.Contains(response.Code, "QuotaExceeded"))
}
