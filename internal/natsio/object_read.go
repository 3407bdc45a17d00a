package natsio

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/pause"
)

const (
	// readAgain is the pause after a part that could not be had, and readPatience how long it is
	// asked for: a server may be away, or one of several not know it yet.
	readAgain    = 100 * time.Millisecond
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
	return io.NopCloser(&objectReader{ctx: ctx, stream: stream, info: info, left: info.Chunks, digest: sha256.New()}), nil
}

// existing says what an object is. Of several servers the one that answers may not know it yet.
func existing(ctx context.Context, stream jetstream.Stream, bucket, name string) (*jetstream.ObjectInfo, error) {
	for again := 0; ; again++ {
		info, seq, err := lastTrace(ctx, stream, objectTrace(bucket, name))
		if err != nil || seq > 0 && !info.Deleted {
			return info, err
		}
		if stream.CachedInfo().Config.Replicas <= 1 || again == readsMeanwhile || !pause.For(ctx, readAgain) {
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
	for began := time.Now(); ; {
		msg, err := r.stream.GetMsg(r.ctx, r.seq+1, jetstream.WithGetMsgSubject(chunkSubject(r.info.Bucket, r.info.NUID)))
		if err == nil {
			r.seq, r.left, r.part = msg.Sequence, r.left-1, msg.Data
			r.digest.Write(msg.Data)
			return nil
		}
		if r.ctx.Err() == nil && (r.lasting(err) || time.Since(began) > readPatience) {
			return err
		}
		if !pause.For(r.ctx, readAgain) {
			return r.ctx.Err()
		}
	}
}

// lasting reports whether an error will be the same when it is tried again.
func (r *objectReader) lasting(err error) bool {
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return r.stream.CachedInfo().Config.Replicas <= 1
	}
	_, answered := errors.AsType[*jetstream.APIError](err)
	return answered
}
