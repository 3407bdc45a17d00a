package natsio

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
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

// shortenedError is an error with about so many bytes of its message at most, from its head and
// tail.
func shortenedError(fault *protocol.Error, most int) *protocol.Error {
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
		small.Error, small.Tries = shortenedError(r.Error, maxErrorText), slices.Clone(r.Tries)
		for i := range small.Tries {
			small.Tries[i].Error = shortenedError(small.Tries[i].Error, maxErrorText/len(small.Tries))
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

// What a tenant stores
//
// The server counts it, so it is correct after a crash and after a removal. The chunks of an object
// have the tenant in their subjects:
//
//	$O.TF_KEPT.C.<tenant>.<id>                          of an object: results that no message carries, whole outputs, workspaces
//	$O.TF_KEPT.C.<tenant>.journal.<session>.<id>        a mark of a journal, which is removed with its session
//	$O.TF_BLOBS.C.<tenant>.result.<id>                  a mark of results, which ages out with them
//
// Each such message counts as a full chunk. A smaller object gets the tenant's subject with a
// probability of its part of a chunk, and else one without a tenant. Messages whose subjects have
// no tenant get an empty mark with the same probability. So n bytes are n bytes on average, and the
// standard deviation of the count is at most the square root of chunk * count.

type storedKey struct{}

// StoredBy returns a context in which objects are stored for a tenant. Without it they are stored
// for that of [wire.WithFlow].
func StoredBy(ctx context.Context, tenant protocol.Tenant) context.Context {
	return context.WithValue(ctx, storedKey{}, cmp.Or(tenant, wire.DefaultTenant))
}

// TenantOf is the tenant of [StoredBy].
func TenantOf(ctx context.Context) protocol.Tenant {
	tenant, _ := ctx.Value(storedKey{}).(protocol.Tenant)
	return cmp.Or(tenant, wire.TenantOf(ctx), wire.DefaultTenant)
}

// counts reports whether n bytes count as a chunk, which they do with a probability of n/chunk.
func counts(n, chunk int) bool { return rand.IntN(chunk) < n } //nolint:gosec // no secret

// MarkResult counts n bytes of results for a tenant. A mark that is lost is not counted.
func MarkResult(nc *nats.Conn, fleet protocol.Fleet, tenant protocol.Tenant, n int) {
	mark(nc, wire.BlobsBucket(fleet), cmp.Or(tenant, wire.DefaultTenant), "result", n)
}

// MarkJournal counts n bytes of a session's journal for the tenant of a context.
func MarkJournal(ctx context.Context, nc *nats.Conn, fleet protocol.Fleet, session protocol.SessionID, n int) {
	mark(nc, wire.KeptBucket(fleet), TenantOf(ctx), "journal."+string(session), n)
}

func mark(nc *nats.Conn, bucket string, tenant protocol.Tenant, of string, n int) {
	for chunk := int(chunkSize(nc)); n > 0; n -= chunk {
		if counts(n, chunk) {
			_ = nc.Publish(chunkSubject(bucket, string(tenant)+"."+of+"."+uuid.NewString()), nil)
		}
	}
}

// RemoveJournalMarks removes the marks of a session's journal.
func RemoveJournalMarks(ctx context.Context, js jetstream.JetStream, fleet protocol.Fleet, session protocol.SessionID) error {
	bucket := wire.KeptBucket(fleet)
	stream, err := js.Stream(ctx, ObjectStream(bucket))
	if err == nil {
		err = stream.Purge(ctx, jetstream.WithPurgeSubject(chunkSubject(bucket, "*.journal."+string(session)+".*")))
	}
	if err != nil {
		return fmt.Errorf("purge marks of journal %s: %w", session, err)
	}
	return nil
}

// Stored estimates how many bytes a tenant has stored, and says when the oldest of those was stored
// that age out with results; the zero time if there are none.
func Stored(ctx context.Context, nc *nats.Conn, fleet protocol.Fleet, tenant protocol.Tenant) (n int64, oldest time.Time, err error) {
	for _, bucket := range []string{wire.BlobsBucket(fleet), wire.KeptBucket(fleet), wire.BodiesBucket(fleet)} {
		chunks, first, err := Count(ctx, nc, ObjectStream(bucket), chunkSubject(bucket, string(tenant)+".>"))
		if err != nil {
			return 0, oldest, err
		}
		n += int64(chunks) * int64(chunkSize(nc))
		if bucket == wire.BlobsBucket(fleet) {
			oldest = first
		}
	}
	return n, oldest, nil
}

// Count returns how many messages of a stream match a filter, and when the first of them was
// stored. Any server of a cluster may answer, so the count may be a moment old.
func Count(ctx context.Context, nc *nats.Conn, stream, filter string) (n int, first time.Time, err error) {
	answer, err := nc.RequestWithContext(ctx, "$JS.API.DIRECT.GET."+stream, fmt.Appendf(nil, `{"seq":1,"batch":1,"next_by_subj":%q}`, filter))
	if err != nil {
		return 0, first, fmt.Errorf("count %s: %w", filter, err)
	}
	switch status := answer.Header.Get("Status"); status {
	case "404":
		return 0, first, nil
	case "":
	default:
		return 0, first, fmt.Errorf("count %s: %s %s", filter, status, answer.Header.Get("Description"))
	}
	others, err := strconv.Atoi(answer.Header.Get("Nats-Num-Pending"))
	if err != nil {
		return 0, first, fmt.Errorf("count %s: %w", filter, err)
	}
	first, _ = time.Parse(time.RFC3339Nano, answer.Header.Get(jetstream.TimeStampHeaer)) // else it is not known
	return others + 1, first, nil
}
