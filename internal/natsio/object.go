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
	"golang.org/x/sync/errgroup"

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

// objectTraces is the prefix of the subjects with the metadata of objects.
func objectTraces(bucket string) string { return "$O." + bucket + ".M." }

// objectTrace is the subject of what it says of an object, deleted ones too.
func objectTrace(bucket, name string) string {
	return objectTraces(bucket) + base64.URLEncoding.EncodeToString([]byte(name))
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
		before, err = publishTrace(ctx, js, stream, info, chunked)
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

// store makes a write while no server answers, for up to 30 s: a server whose disk was full loses
// requests, and continues when there is room.
func store(ctx context.Context, write func(context.Context) error, isThere func(context.Context) (bool, error)) error {
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
			if err := store(ctx, func(ctx context.Context) error {
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

// traceWait is the pause after another process has stored an object of the same name.
const traceWait = 10 * time.Millisecond

// errStopped says that a process was stopped for so long while it stored an object that its chunks
// may have been removed.
var errStopped = errors.New("the process was stopped while it stored an object")

// wasStopped reports whether the chunks of an object may have been removed. The last one was stored
// at a time.
func wasStopped(chunked time.Time) bool {
	return time.Now().Round(0).Sub(chunked.Round(0)) > orphanAge/2
}

// publishTrace publishes the record of an object whose last chunk was stored at a time, and returns
// the record that it replaces. No other process gets that one.
func publishTrace(ctx context.Context, js jetstream.JetStream, stream jetstream.Stream, info *jetstream.ObjectInfo, chunked time.Time) (before *jetstream.ObjectInfo, err error) {
	body, err := json.Marshal(info)
	if err != nil {
		return nil, err
	}
	subject := objectTrace(info.Bucket, info.Name)
	for {
		err := store(ctx, func(ctx context.Context) error {
			now, seq, err := lastTrace(ctx, stream, subject)
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
			now, _, err := lastTrace(ctx, stream, subject)
			return err == nil && now.NUID == info.NUID, err
		})
		if OutcomeOf(err) != Conflict || !pause.For(ctx, traceWait) {
			return before, err
		}
	}
}

// lastTrace reads what is said of an object last, and its sequence; 0 when nothing is.
func lastTrace(ctx context.Context, stream jetstream.Stream, subject string) (info *jetstream.ObjectInfo, seq uint64, err error) {
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

// deleters is how many objects are removed side by side.
const deleters = 16

// DeleteObjects removes objects that have no readers left, in no order, and their records in the
// object store. One that is not there is fine, and one that is stored meanwhile stays. What was cut
// short is completed by doing it again. That store's own Delete stores a mark, which replaces what
// was put meanwhile: its parts stay. A full store has no room for one.
func DeleteObjects(ctx context.Context, js jetstream.JetStream, bucket string, names ...string) error {
	infos := make([]*jetstream.ObjectInfo, len(names))
	for i, name := range names {
		infos[i] = &jetstream.ObjectInfo{ObjectMeta: jetstream.ObjectMeta{Name: name}}
	}
	return DeleteTheseObjects(ctx, js, bucket, infos...)
}

// DeleteTheseObjects is [DeleteObjects] for objects as they were when they were listed: one that
// was stored again since stays.
func DeleteTheseObjects(ctx context.Context, js jetstream.JetStream, bucket string, infos ...*jetstream.ObjectInfo) error {
	return deleteObjects(ctx, js, bucket, infos, deleteObject)
}

func deleteObjects(ctx context.Context, js jetstream.JetStream, bucket string, infos []*jetstream.ObjectInfo,
	remove func(context.Context, jetstream.Stream, string, *jetstream.ObjectInfo) error,
) error {
	stream, err := js.Stream(ctx, ObjectStream(bucket))
	if err != nil {
		return fmt.Errorf("open object store %s: %w", bucket, err)
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(deleters)
	for _, info := range infos {
		group.Go(func() error {
			if err := remove(ctx, stream, bucket, info); err != nil {
				return fmt.Errorf("delete object %s: %w", info.Name, err)
			}
			return nil
		})
	}
	return group.Wait()
}

// deleteObject deletes an object by its name, and its NUID if that is known.
func deleteObject(ctx context.Context, stream jetstream.Stream, bucket string, listed *jetstream.ObjectInfo) error {
	subject := objectTrace(bucket, listed.Name)
	info, seq, err := lastTrace(ctx, stream, subject)
	if err != nil || seq == 0 || listed.NUID != "" && listed.NUID != info.NUID {
		return err
	}
	if err := purgeChunks(ctx, stream, info); err != nil {
		return err
	}
	return stream.Purge(ctx, jetstream.WithPurgeSubject(subject), jetstream.WithPurgeSequence(seq+1))
}

func chunkSubject(bucket, nuid string) string { return "$O." + bucket + ".C." + nuid }

// purgeChunks removes the chunks of an object that has no name any more.
func purgeChunks(ctx context.Context, stream jetstream.Stream, info *jetstream.ObjectInfo) error {
	if err := stream.Purge(ctx, jetstream.WithPurgeSubject(chunkSubject(info.Bucket, info.NUID))); err != nil {
		return fmt.Errorf("purge what object %s was: %w", info.Name, err)
	}
	return nil
}

// ListObjects returns the metadata of the objects whose names are wanted, in no order, deleted ones
// too. That store's own List waits for ever when the last object is removed while it begins.
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
	return lastTraces(ctx, js, stream, bucket, names)
}

// lastTraces reads what is said of objects last, of many at once. Those that are removed meanwhile
// are left out.
func lastTraces(ctx context.Context, js jetstream.JetStream, stream jetstream.Stream, bucket string, names []string) ([]*jetstream.ObjectInfo, error) {
	found, subjects := make(map[string]*jetstream.ObjectInfo, len(names)), make([]string, len(names))
	for i, name := range names {
		subjects[i] = objectTrace(bucket, name)
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

const (
	// readPatience is how long a part is requested that could not be read: a server may be away, or
	// one of several not know it yet.
	readPatience = 20 * time.Second
	// readsMeanwhile is how often an object is looked for again that one of several servers does
	// not know.
	readsMeanwhile = 20
)

// GetObject opens what [PutObject] or [jetstream.ObjectStore] has stored; its error wraps
// [jetstream.ErrObjectNotFound] when there is no such object. The reader ends with ctx. It asks for
// one part after the other: unlike the client's own, it makes no consumer, for which a worker has
// no right. What is not as its digest says is an error at the end.
func GetObject(ctx context.Context, js jetstream.JetStream, bucket, name string) (io.ReadCloser, error) {
	stream, err := js.Stream(ctx, ObjectStream(bucket))
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		err = fmt.Errorf("%w: %w", jetstream.ErrObjectNotFound, jetstream.ErrBucketNotFound)
	}
	if err != nil {
		return nil, fmt.Errorf("open object store %s: %w", bucket, err)
	}
	info, err := existing(ctx, stream, bucket, name)
	if err == nil && info.Opts != nil && info.Opts.Link != nil { // to another name of the same store
		info, err = existing(ctx, stream, bucket, info.Opts.Link.Name)
	}
	if err != nil {
		return nil, fmt.Errorf("get object %s: %w", name, err)
	}
	return io.NopCloser(&objectReader{ctx: ctx, stream: stream, bucket: bucket, info: info, left: info.Chunks, digest: sha256.New()}), nil
}

// existing says what an object is. Of several servers the one that answers may not know it yet.
func existing(ctx context.Context, stream jetstream.Stream, bucket, name string) (*jetstream.ObjectInfo, error) {
	for again := 0; ; again++ {
		info, seq, err := lastTrace(ctx, stream, objectTrace(bucket, name))
		if err != nil || seq > 0 && !info.Deleted {
			return info, err
		}
		if stream.CachedInfo().Config.Replicas <= 1 || again == readsMeanwhile || !pause.For(ctx, pause.Retry) {
			return nil, jetstream.ErrObjectNotFound
		}
	}
}

// GetObjectBytes is [GetObject] for one that fits into memory.
func GetObjectBytes(ctx context.Context, js jetstream.JetStream, bucket, name string) ([]byte, error) {
	object, err := GetObject(ctx, js, bucket, name)
	if err != nil {
		return nil, err
	}
	return io.ReadAll(object)
}

// objectReader reads the parts of an object.
type objectReader struct {
	ctx    context.Context //nolint:containedctx // an io.Reader is given none
	stream jetstream.Stream
	bucket string
	info   *jetstream.ObjectInfo
	seq    uint64 // of the last part
	left   uint32 // parts that were not read yet
	part   []byte
	digest hash.Hash
}

// Read implements [io.Reader].
func (r *objectReader) Read(p []byte) (int, error) {
	for len(r.part) == 0 {
		if r.left == 0 {
			return 0, r.end()
		}
		if err := r.next(); err != nil {
			return 0, fmt.Errorf("get object %s: %w", r.info.Name, err)
		}
	}
	n := copy(p, r.part)
	r.part = r.part[n:]
	return n, nil
}

func (r *objectReader) end() error {
	if have := jetstream.GetObjectDigestValue(r.digest); have != r.info.Digest {
		return fmt.Errorf("get object %s: %w", r.info.Name, jetstream.ErrDigestMismatch)
	}
	return io.EOF
}

func (r *objectReader) next() error {
	for began := time.Now(); r.left > 0; {
		msg, err := r.stream.GetMsg(r.ctx, r.seq+1, jetstream.WithGetMsgSubject(chunkSubject(r.info.Bucket, r.info.NUID)))
		if err == nil {
			r.seq, r.left, r.part = msg.Sequence, r.left-1, msg.Data
			r.digest.Write(msg.Data)
			return nil
		}
		if errors.Is(err, jetstream.ErrMsgNotFound) && r.replaced() {
			continue
		}
		if r.ctx.Err() == nil && (r.lasting(err) || time.Since(began) > readPatience) {
			return err
		}
		if !pause.For(r.ctx, pause.Retry) {
			return r.ctx.Err()
		}
	}
	return nil
}

// replaced reports whether another object was stored under the name before the first part was read,
// and turns to that one. Of several servers, one that is behind still names the object before, and
// its parts are gone.
func (r *objectReader) replaced() bool {
	if r.seq > 0 {
		return false
	}
	now, seq, err := lastTrace(r.ctx, r.stream, objectTrace(r.bucket, r.info.Name))
	if err != nil || seq == 0 || now.Deleted || now.NUID == r.info.NUID {
		return false
	}
	r.info, r.left = now, now.Chunks
	return true
}

// lasting reports whether an error will be the same when it is tried again.
func (r *objectReader) lasting(err error) bool {
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return r.stream.CachedInfo().Config.Replicas <= 1
	}
	_, answered := errors.AsType[*jetstream.APIError](err)
	return answered
}
