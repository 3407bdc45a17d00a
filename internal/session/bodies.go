package session

import (
	"context"
	"strings"

	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// body is what the object store keeps of a session.
type body struct {
	objects int
	bytes   uint64
}

// bodies sums up what the object stores have of sessions.
func (r *Reader) bodies(ctx context.Context, of map[protocol.SessionID]bool) (map[protocol.SessionID]body, error) {
	sums := map[protocol.SessionID]body{}
	for _, part := range r.parts {
		for _, bucket := range []string{wire.KeptBucket(r.fleet), wire.BlobsBucket(r.fleet)} {
			objects, err := natsio.ListObjects(ctx, part.JS, bucket, func(name string) bool { return of[sessionOf(name)] })
			if err != nil {
				return nil, err
			}
			for _, object := range objects {
				if object.Deleted {
					continue
				}
				sum := sums[sessionOf(object.Name)]
				sum.objects, sum.bytes = sum.objects+1, sum.bytes+object.Size
				sums[sessionOf(object.Name)] = sum
			}
		}
	}
	return sums, nil
}

// sessionOf is whose an object is, by its name: KIND/SESSION/...; "" when it is no session's.
func sessionOf(name string) protocol.SessionID {
	_, rest, _ := strings.Cut(name, "/")
	id, _, found := strings.Cut(rest, "/")
	if !found {
		return ""
	}
	return protocol.SessionID(id)
}

// bodies removes what is kept of the session in the object stores: all outputs; archives, and
// values, which go with the results. A payload stays until its call is settled, in whatever lane,
// and is removed by who settles it; that of a call whose publisher or worker was lost ages out.
func (r *remover) bodies(ctx context.Context, p *part) error {
	all := func(string) bool { return true }
	if err := r.objects(ctx, p, wire.KeptBucket(r.fleet.Name), all); err != nil {
		return err
	}
	left, err := r.settledCalls(ctx, p)
	if err != nil {
		return err
	}
	return r.objects(ctx, p, wire.BlobsBucket(r.fleet.Name), func(name string) bool {
		kind, _, _ := strings.Cut(name, "/")
		return kind != "call" && (kind != "result" || len(left.calls) == 0)
	})
}

// objects removes those of one object store, by their names, and the traces that it keeps of
// deleted ones.
func (r *remover) objects(ctx context.Context, p *part, bucket string, remove func(name string) bool) error {
	objects, err := natsio.ListObjects(ctx, p.fleet.JS, bucket, func(name string) bool { return sessionOf(name) == r.id })
	if err != nil {
		return err
	}
	var names []string
	bodies := 0
	for _, object := range objects {
		if !object.Deleted && !remove(object.Name) {
			continue
		}
		names = append(names, object.Name)
		if !object.Deleted {
			bodies++
		}
	}
	if err := natsio.DeleteObjects(ctx, p.fleet.JS, bucket, names...); err != nil {
		return err
	}
	r.removed.Bodies += bodies
	return nil
}
