package natsio

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/system/pause"
)

// objectChunk is how much of an object one message has at most; the object store's own default.
const objectChunk = 128 << 10

// chunkHeader is the room for the header of a chunk, in bytes.
const chunkHeader = 128

// chunkSize is how much of an object one message has: with a header no more than a server accepts.
func chunkSize(nc *nats.Conn) uint32 {
	return uint32(min(objectChunk, nc.MaxPayload()-chunkHeader)) //nolint:gosec // at most objectChunk
}

// ObjectStream is the name of the stream in which an object store has its objects.
func ObjectStream(bucket string) string { return "OBJ_" + bucket }

// metaSubjects is the prefix of the subjects with the metadata of objects.
func metaSubjects(bucket string) string { return "$O." + bucket + ".M." }

// metaSubject is the subject of an object's metadata, also after its deletion.
func metaSubject(bucket, name string) string {
	return metaSubjects(bucket) + base64.URLEncoding.EncodeToString([]byte(name))
}

// PutObject stores what r has under a name, and replaces the object of that name; after an error of
// r that stays as it was. Of several that are stored under one name at once one stays, and the
// parts of the others are deleted. When it is not known whether an object was stored, as when the
// connection is lost, its parts stay until [SweepChunks]. It writes what [jetstream.ObjectStore]
// reads. That store's own Put publishes without waiting, by a goroutine that, with nats.go 1.55,
// now and then does not end: too often for one object a call.
func PutObject(ctx context.Context, js jetstream.JetStream, bucket, name string, r io.Reader) (*jetstream.ObjectInfo, error) {
	stream, err := Open(ctx, js.Stream, ObjectStream(bucket))
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		err = jetstream.ErrBucketNotFound
	}
	if err != nil {
		return nil, fmt.Errorf("open object store %s: %w", bucket, err)
	}
	info := &jetstream.ObjectInfo{
		ObjectMeta: jetstream.ObjectMeta{Name: name, Opts: &jetstream.ObjectMetaOptions{ChunkSize: chunkSize(js.Conn())}},
		Bucket:     bucket, NUID: uuid.NewString(),
	}
	outcome, before := NotStored, (*jetstream.ObjectInfo)(nil) // without its record there is no object
	var chunked time.Time
	if chunked, err = publishChunks(ctx, js, info, r); err == nil {
		before, err = publishMeta(ctx, js, stream, info, chunked)
		outcome = OutcomeOf(err)
	}
	switch {
	case err == nil && before.Chunks > 0:
		return info, purgeChunks(ctx, stream, before)
	case err == nil:
		return info, nil
	case outcome != Unknown:
		err = errors.Join(err, purgeChunks(context.WithoutCancel(ctx), stream, info))
	}
	return nil, fmt.Errorf("store object %s: %w", name, err)
}

// storeRetrying makes a write while no server answers, for up to 30 s: a server whose disk was full
// loses requests, and continues when there is room.
func storeRetrying(ctx context.Context, write func(context.Context) error, isThere func(context.Context) (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, openPatience)
	defer cancel()
	return UntilKnown(ctx, write, isThere)
}

// publishChunks publishes what an object has, and notes how much that is. It returns when the last
// chunk was stored.
func publishChunks(ctx context.Context, js jetstream.JetStream, info *jetstream.ObjectInfo, r io.Reader) (last time.Time, err error) {
	digest, chunk := sha256.New(), make([]byte, info.Opts.ChunkSize)
	for {
		n, err := io.ReadFull(r, chunk)
		if n > 0 {
			digest.Write(chunk[:n])
			if info.Chunks == 0 && counts(n, len(chunk)) {
				info.NUID = string(TenantOf(ctx)) + "." + info.NUID
			}
			id := jetstream.WithMsgID(fmt.Sprint(info.NUID, ".", info.Chunks)) // stored once, however often it is sent
			if err := storeRetrying(ctx, func(ctx context.Context) error {
				_, err := js.Publish(ctx, chunkSubject(info.Bucket, info.NUID), chunk[:n], id)
				return err
			}, nil); err != nil {
				return last, err
			}
			if info.Chunks > 0 && wasStopped(last) {
				return last, errStopped
			}
			last, info.Size, info.Chunks = time.Now(), info.Size+uint64(n), info.Chunks+1
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			info.Digest = jetstream.GetObjectDigestValue(digest)
			return cmp.Or(last, time.Now()), nil
		}
		if err != nil {
			return last, err
		}
	}
}

// metaConflictPause is the pause after another process has stored an object of the same name.
const metaConflictPause = 10 * time.Millisecond

// errStopped says that a process was stopped for so long while it stored an object that its chunks
// may have been removed.
var errStopped = errors.New("the process was stopped while it stored an object")

// wasStopped reports whether the chunks of an object may have been removed. The last one was stored
// at a time.
func wasStopped(chunked time.Time) bool {
	return time.Now().Round(0).Sub(chunked.Round(0)) > orphanAge/2
}

// publishMeta publishes the record of an object whose last chunk was stored at a time, and returns
// the record that it replaces. No other process gets that one.
func publishMeta(
	ctx context.Context, js jetstream.JetStream, stream jetstream.Stream, info *jetstream.ObjectInfo, chunked time.Time,
) (before *jetstream.ObjectInfo, err error) {
	body, err := json.Marshal(info)
	if err != nil {
		return nil, err
	}
	subject := metaSubject(info.Bucket, info.Name)
	for {
		err := storeRetrying(ctx, func(ctx context.Context) error {
			now, seq, err := lastMeta(ctx, stream, subject)
			switch {
			case err != nil:
				return fmt.Errorf("look for what is there: %w", err)
			case now.NUID == info.NUID: // only the answer was lost
				return nil
			case wasStopped(chunked):
				return NotSent(errStopped)
			}
			before = now
			_, err = js.PublishMsg(ctx, &nats.Msg{
				Subject: subject, Data: body, Header: nats.Header{jetstream.MsgRollup: []string{jetstream.MsgRollupSubject}},
			}, jetstream.WithExpectLastSequencePerSubject(seq))
			return err
		}, func(ctx context.Context) (bool, error) {
			now, _, err := lastMeta(ctx, stream, subject)
			return err == nil && now.NUID == info.NUID, err
		})
		if OutcomeOf(err) != Conflict || !pause.For(ctx, metaConflictPause) {
			return before, err
		}
	}
}

// lastMeta reads the latest metadata of an object, and its sequence; 0 without any.
func lastMeta(ctx context.Context, stream jetstream.Stream, subject string) (info *jetstream.ObjectInfo, seq uint64, err error) {
	info = &jetstream.ObjectInfo{}
	msg, err := stream.GetLastMsgForSubject(ctx, subject)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return info, 0, nil
	}
	if err != nil {
		return nil, 0, err
	}
	err = json.Unmarshal(msg.Data, info)
	info.ModTime = msg.Time
	return info, msg.Sequence, err
}

// ListObjects returns the metadata of the objects whose names are wanted, in no order, deleted ones
// too. That store's own List waits for ever when the last object is removed while it begins.
func ListObjects(ctx context.Context, js jetstream.JetStream, bucket string, wanted func(name string) bool) ([]*jetstream.ObjectInfo, error) {
	stream, err := js.Stream(ctx, ObjectStream(bucket))
	if err != nil {
		return nil, fmt.Errorf("open object store %s: %w", bucket, err)
	}
	traces, err := stream.Info(ctx, jetstream.WithSubjectFilter(metaSubjects(bucket)+">"))
	if err != nil {
		return nil, fmt.Errorf("list object store %s: %w", bucket, err)
	}
	var names []string
	for subject := range traces.State.Subjects {
		name, err := base64.URLEncoding.DecodeString(strings.TrimPrefix(subject, metaSubjects(bucket)))
		if err == nil && wanted(string(name)) {
			names = append(names, string(name))
		}
	}
	return lastMetas(ctx, js, stream, bucket, names)
}

// lastMetas reads what is said of objects last, of many at once. Those that are removed meanwhile
// are left out.
func lastMetas(ctx context.Context, js jetstream.JetStream, stream jetstream.Stream, bucket string, names []string) ([]*jetstream.ObjectInfo, error) {
	found, subjects := make(map[string]*jetstream.ObjectInfo, len(names)), make([]string, len(names))
	for i, name := range names {
		subjects[i] = metaSubject(bucket, name)
	}
	err := EachLast(ctx, js, stream, subjects, false, func(msg jetstream.Msg) error {
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
		info, seq, err := lastMeta(ctx, stream, subjects[i]) // removed by now, or not known to the server that was read from
		if err != nil {
			return nil, fmt.Errorf("look at object %s: %w", name, err)
		}
		if seq > 0 {
			found[subjects[i]] = info
		}
	}
	return slices.Collect(maps.Values(found)), nil
}

const (
	// readPatience is how long a part is requested that could not be read: a server may be away, or
	// one of several not know it yet.
	readPatience = 20 * time.Second
	// maxLookups is how often an object is looked for again that one of several servers does
	// not know.
	maxLookups = 20
)

// GetObject opens what [PutObject] or [jetstream.ObjectStore] has stored; its error wraps
// [jetstream.ErrObjectNotFound] when there is no such object. The reader ends with ctx. It asks for
// one part after the other: unlike the client's own, it makes no consumer, for which a worker has
// no right. What is not as its digest says is an error at the end.
func GetObject(ctx context.Context, js jetstream.JetStream, bucket, name string) (*ObjectReader, error) {
	stream, err := js.Stream(ctx, ObjectStream(bucket))
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		err = fmt.Errorf("%w: %w", jetstream.ErrObjectNotFound, jetstream.ErrBucketNotFound)
	}
	if err != nil {
		return nil, fmt.Errorf("open object store %s: %w", bucket, err)
	}
	info, err := objectInfo(ctx, stream, bucket, name)
	if err == nil && info.Opts != nil && info.Opts.Link != nil { // to another name of the same store
		info, err = objectInfo(ctx, stream, bucket, info.Opts.Link.Name)
	}
	if err != nil {
		return nil, fmt.Errorf("get object %s: %w", name, err)
	}
	return &ObjectReader{ctx: ctx, stream: stream, bucket: bucket, info: info, remaining: info.Chunks, digest: sha256.New()}, nil
}

// objectInfo returns the metadata of an object. In a cluster the server that answers may not know
// it yet.
func objectInfo(ctx context.Context, stream jetstream.Stream, bucket, name string) (*jetstream.ObjectInfo, error) {
	for again := 0; ; again++ {
		info, seq, err := lastMeta(ctx, stream, metaSubject(bucket, name))
		if err != nil || seq > 0 && !info.Deleted {
			return info, err
		}
		if stream.CachedInfo().Config.Replicas <= 1 || again == maxLookups || !pause.For(ctx, pause.Retry) {
			return nil, jetstream.ErrObjectNotFound
		}
	}
}

// GetObjectBytes is [GetObject] for an object that fits into memory.
func GetObjectBytes(ctx context.Context, js jetstream.JetStream, bucket, name string) ([]byte, error) {
	object, err := GetObject(ctx, js, bucket, name)
	if err != nil {
		return nil, err
	}
	return io.ReadAll(object)
}

// ObjectReader reads the parts of an object.
type ObjectReader struct {
	ctx       context.Context //nolint:containedctx // an io.Reader is given none
	stream    jetstream.Stream
	bucket    string
	info      *jetstream.ObjectInfo
	seq       uint64 // of the last part
	remaining uint32 // parts that were not read yet
	part      []byte
	digest    hash.Hash
}

// Size is that of the whole object, in bytes.
func (r *ObjectReader) Size() int64 { return int64(r.info.Size) } //nolint:gosec // of a file

// Close implements [io.Closer].
func (r *ObjectReader) Close() error { return nil }

// Read implements [io.Reader].
func (r *ObjectReader) Read(p []byte) (int, error) {
	for len(r.part) == 0 {
		if r.remaining == 0 {
			return 0, r.end()
		}
		if err := r.nextPart(); err != nil {
			return 0, fmt.Errorf("get object %s: %w", r.info.Name, err)
		}
	}
	n := copy(p, r.part)
	r.part = r.part[n:]
	return n, nil
}

func (r *ObjectReader) end() error {
	if have := jetstream.GetObjectDigestValue(r.digest); have != r.info.Digest {
		return fmt.Errorf("get object %s: %w", r.info.Name, jetstream.ErrDigestMismatch)
	}
	return io.EOF
}

func (r *ObjectReader) nextPart() error {
	for began := time.Now(); r.remaining > 0; {
		msg, err := r.stream.GetMsg(r.ctx, r.seq+1, jetstream.WithGetMsgSubject(chunkSubject(r.info.Bucket, r.info.NUID)))
		if err == nil {
			r.seq, r.remaining, r.part = msg.Sequence, r.remaining-1, msg.Data
			r.digest.Write(msg.Data)
			return nil
		}
		if errors.Is(err, jetstream.ErrMsgNotFound) && r.restartIfReplaced() {
			continue
		}
		if r.ctx.Err() == nil && (r.isPermanent(err) || time.Since(began) > readPatience) {
			return err
		}
		if !pause.For(r.ctx, pause.Retry) {
			return r.ctx.Err()
		}
	}
	return nil
}

// restartIfReplaced reports whether another object was stored under the name before the first part
// was read, and continues with that object. In a cluster, a server that lags still names the
// earlier object, and its parts are gone.
func (r *ObjectReader) restartIfReplaced() bool {
	if r.seq > 0 {
		return false
	}
	now, seq, err := lastMeta(r.ctx, r.stream, metaSubject(r.bucket, r.info.Name))
	if err != nil || seq == 0 || now.Deleted || now.NUID == r.info.NUID {
		return false
	}
	r.info, r.remaining = now, now.Chunks
	return true
}

// isPermanent reports whether an error will be the same when it is tried again.
func (r *ObjectReader) isPermanent(err error) bool {
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return r.stream.CachedInfo().Config.Replicas <= 1
	}
	_, answered := errors.AsType[*jetstream.APIError](err)
	return answered
}
