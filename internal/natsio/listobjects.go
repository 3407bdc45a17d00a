package natsio

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nats-io/nats.go/jetstream"
)

// ListObjects returns what an object store says of the objects whose names are wanted, in no order,
// deleted ones too. That store's own List waits for ever when the last object is removed while it
// begins.
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
	return lastTraces(ctx, stream, bucket, names)
}

// lastTraces reads what is said of objects last, of many at once. Those that are removed meanwhile
// are left out.
func lastTraces(ctx context.Context, stream jetstream.Stream, bucket string, names []string) ([]*jetstream.ObjectInfo, error) {
	found, subjects := make(map[string]*jetstream.ObjectInfo, len(names)), make([]string, len(names))
	for i, name := range names {
		subjects[i] = objectTrace(bucket, name)
	}
	err := EachLast(ctx, stream, subjects, false, func(msg jetstream.Msg) error {
		info := &jetstream.ObjectInfo{}
		meta, err := msg.Metadata()
		if err == nil {
			err = json.Unmarshal(msg.Data(), info)
		}
		if err == nil {
			info.ModTime = meta.Timestamp
		}
		found[msg.Subject()] = info
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("look at the objects of %s: %w", bucket, err)
	}
	for i, name := range names {
		if found[subjects[i]] != nil {
			continue
		}
		info, seq, err := lastTrace(ctx, stream, subjects[i]) // removed by now, or not known to the server that was read from
		if err != nil {
			return nil, fmt.Errorf("look at object %s: %w", name, err)
		}
		if seq > 0 {
			found[subjects[i]] = info
		}
	}
	return slices.Collect(maps.Values(found)), nil
}
