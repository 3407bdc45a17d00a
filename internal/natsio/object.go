package natsio

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// objectChunk is how much of an object one message has at most; the object store's own default.
const objectChunk = 128 << 10

// chunkSize is how much of an object one message has: no more than the server takes, which is told by the connection.
func chunkSize(nc *nats.Conn) uint32 {
	return uint32(min(objectChunk, nc.MaxPayload())) //nolint:gosec // at most objectChunk
}

// ObjectStream is the name of the stream in which an object store has its objects.
func ObjectStream(bucket string) string { return "OBJ_" + bucket }

// ObjectTrace is the subject of what such a stream says of an object, deleted ones too.
func ObjectTrace(bucket, name string) string {
	return "$O." + bucket + ".M." + base64.URLEncoding.EncodeToString([]byte(name))
}

// PutObject stores what r has under a name, in the place of what was there; an error of r
// leaves that as it was. It writes what [jetstream.ObjectStore] reads. That store's own Put publishes
// without waiting, by a goroutine that, with nats.go 1.55, now and then does not end: too
// often for one object a call.
func PutObject(ctx context.Context, js jetstream.JetStream, bucket, name string, r io.Reader) (*jetstream.ObjectInfo, error) {
	store, err := js.ObjectStore(ctx, bucket)
	if err != nil {
		return nil, fmt.Errorf("open object store %s: %w", bucket, err)
	}
	before, err := store.GetInfo(ctx, name, jetstream.GetObjectInfoShowDeleted())
	if err != nil && !errors.Is(err, jetstream.ErrObjectNotFound) {
		return nil, fmt.Errorf("look for object %s: %w", name, err)
	}
	info := &jetstream.ObjectInfo{
		ObjectMeta: jetstream.ObjectMeta{Name: name, Opts: &jetstream.ObjectMetaOptions{ChunkSize: chunkSize(js.Conn())}},
		Bucket:     bucket, NUID: uuid.NewString(),
	}
	if err := publishObject(ctx, js, info, r); err != nil {
		return nil, errors.Join(fmt.Errorf("store object %s: %w", name, err), purgeChunks(context.WithoutCancel(ctx), js, info))
	}
	if before != nil && before.Chunks > 0 {
		return info, purgeChunks(ctx, js, before)
	}
	return info, nil
}

// publishObject publishes the chunks of an object, and then what it is.
func publishObject(ctx context.Context, js jetstream.JetStream, info *jetstream.ObjectInfo, r io.Reader) error {
	digest, chunk := sha256.New(), make([]byte, info.Opts.ChunkSize)
	for {
		n, err := io.ReadFull(r, chunk)
		if n > 0 {
			digest.Write(chunk[:n])
			if _, err := js.Publish(ctx, chunkSubject(info.Bucket, info.NUID), chunk[:n]); err != nil {
				return err
			}
			info.Size, info.Chunks = info.Size+uint64(n), info.Chunks+1
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			break
		}
		if err != nil {
			return err
		}
	}
	info.Digest = jetstream.GetObjectDigestValue(digest)
	body, err := json.Marshal(info)
	if err != nil {
		return err
	}
	_, err = js.PublishMsg(ctx, &nats.Msg{
		Subject: ObjectTrace(info.Bucket, info.Name), Data: body,
		Header: nats.Header{jetstream.MsgRollup: []string{jetstream.MsgRollupSubject}},
	})
	return err
}

func chunkSubject(bucket, nuid string) string { return "$O." + bucket + ".C." + nuid }

// purgeChunks removes the chunks of an object that nothing names any more.
func purgeChunks(ctx context.Context, js jetstream.JetStream, info *jetstream.ObjectInfo) error {
	stream, err := js.Stream(ctx, ObjectStream(info.Bucket))
	if err == nil {
		err = stream.Purge(ctx, jetstream.WithPurgeSubject(chunkSubject(info.Bucket, info.NUID)))
	}
	if err != nil {
		return fmt.Errorf("purge what object %s was: %w", info.Name, err)
	}
	return nil
}
