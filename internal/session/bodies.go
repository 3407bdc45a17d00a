package session

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// body is what the object store keeps of a session.
type body struct {
	objects int
	bytes   uint64
}

// bodies sums up the object stores by session.
func (r *Reader) bodies(ctx context.Context) (map[protocol.SessionID]body, error) {
	sums := map[protocol.SessionID]body{}
	for _, store := range r.objects {
		objects, err := store.List(ctx)
		if err != nil && !errors.Is(err, jetstream.ErrNoObjectsFound) {
			return nil, fmt.Errorf("list object store: %w", err)
		}
		count(sums, objects)
	}
	return sums, nil
}

// count adds objects to the sums of their sessions.
func count(sums map[protocol.SessionID]body, objects []*jetstream.ObjectInfo) {
	for _, object := range objects {
		id := sessionOf(object)
		if id == "" {
			continue
		}
		sum := sums[id]
		sum.objects, sum.bytes = sum.objects+1, sum.bytes+object.Size
		sums[id] = sum
	}
}

// sessionOf is whose an object is, by its name: KIND/SESSION/...; "" when it is no session's.
func sessionOf(object *jetstream.ObjectInfo) protocol.SessionID {
	_, rest, _ := strings.Cut(object.Name, "/")
	id, _, found := strings.Cut(rest, "/")
	if !found {
		return ""
	}
	return protocol.SessionID(id)
}

// bodies removes what is kept of the session in the object stores: all outputs; archives, and values, which go with the results.
// A payload stays until its call is settled, in whatever lane, and is removed by who settles it; that of a call whose publisher or
// worker was lost ages out.
func (r *remover) bodies(ctx context.Context) error {
	all := func(string) bool { return true }
	if err := r.objects(ctx, r.fleet.Name.KeptBucket(), all); err != nil {
		return err
	}
	left, err := r.settledCalls(ctx)
	if err != nil {
		return err
	}
	return r.objects(ctx, r.fleet.Name.BlobsBucket(), func(name string) bool {
		kind, _, _ := strings.Cut(name, "/")
		return kind != "call" && (kind != "result" || len(left.calls) == 0)
	})
}

// objects removes those of one object store, by their names, and the traces that it keeps of deleted ones.
func (r *remover) objects(ctx context.Context, bucket string, remove func(name string) bool) error {
	store, err := r.fleet.JS.ObjectStore(ctx, bucket)
	if err != nil {
		return fmt.Errorf("open object store %s: %w", bucket, err)
	}
	objects, err := store.List(ctx, jetstream.ListObjectsShowDeleted())
	if errors.Is(err, jetstream.ErrNoObjectsFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list object store %s: %w", bucket, err)
	}
	for _, object := range objects {
		if sessionOf(object) != r.id || !object.Deleted && !remove(object.Name) {
			continue
		}
		if err := natsio.DeleteObject(ctx, r.fleet.JS, bucket, object.Name); err != nil {
			return err
		}
		if !object.Deleted {
			r.removed.Bodies++
		}
	}
	return nil
}
