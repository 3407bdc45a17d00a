package natsio

import (
	"context"
	"encoding/base64"
	"fmt"
	"slices"
	"strings"

	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"
)

// objectLookers is how many objects are looked at side by side.
const objectLookers = 8

// ListObjects returns what an object store says of the objects whose names are wanted, in no order, deleted ones too.
// That store's own List waits for ever when the last object is removed while it begins.
func ListObjects(ctx context.Context, js jetstream.JetStream, bucket string, wanted func(name string) bool) ([]*jetstream.ObjectInfo, error) {
	stream, err := js.Stream(ctx, ObjectStream(bucket))
	if err != nil {
		return nil, fmt.Errorf("open object store %s: %w", bucket, err)
	}
	traces, err := stream.Info(ctx, jetstream.WithSubjectFilter(objectTraces(bucket)+">"))
	if err != nil {
		return nil, fmt.Errorf("list object store %s: %w", bucket, err)
	}
	var names []string
	for subject := range traces.State.Subjects {
		name, err := base64.URLEncoding.DecodeString(strings.TrimPrefix(subject, objectTraces(bucket)))
		if err == nil && wanted(string(name)) {
			names = append(names, string(name))
		}
	}
	objects := make([]*jetstream.ObjectInfo, len(names))
	group, each := errgroup.WithContext(ctx)
	group.SetLimit(objectLookers)
	for i, name := range names {
		group.Go(func() error {
			info, seq, err := lastTrace(each, stream, objectTrace(bucket, name))
			if err != nil {
				return fmt.Errorf("look at object %s: %w", name, err)
			}
			if seq > 0 { // else it is removed by now
				objects[i] = info
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(objects, func(info *jetstream.ObjectInfo) bool { return info == nil }), nil
}
