package natsio

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

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
		filter := chunkSubject(bucket, string(tenant)+".>")
		answer, err := nc.RequestWithContext(ctx, "$JS.API.DIRECT.GET."+ObjectStream(bucket), fmt.Appendf(nil, `{"seq":1,"batch":1,"next_by_subj":%q}`, filter))
		if err != nil {
			return 0, oldest, fmt.Errorf("count %s: %w", filter, err)
		}
		switch status := answer.Header.Get("Status"); status {
		case "404":
			continue
		case "":
		default:
			return 0, oldest, fmt.Errorf("count %s: %s %s", filter, status, answer.Header.Get("Description"))
		}
		others, err := strconv.ParseInt(answer.Header.Get("Nats-Num-Pending"), 10, 64)
		if err != nil {
			return 0, oldest, fmt.Errorf("count %s: %w", filter, err)
		}
		n += (others + 1) * int64(chunkSize(nc))
		if bucket == wire.BlobsBucket(fleet) {
			oldest, _ = time.Parse(time.RFC3339Nano, answer.Header.Get(jetstream.TimeStampHeaer))
		}
	}
	return n, oldest, nil
}
