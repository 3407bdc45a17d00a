package natsio

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/system/pause"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Defaults of [Topology].
const (
	// DefaultAckWait is the length of a lease.
	DefaultAckWait = 10 * time.Second
	// MaxAckWait is the longest: for so long a worker that is gone may keep others from its lanes,
	// whatever it has said.
	MaxAckWait = time.Hour
	// DefaultResultAge is how long results are kept.
	DefaultResultAge = 7 * 24 * time.Hour
	// MinResultAge and MaxResultAge are what may be asked for, and MinResultSize likewise: the
	// largest message that a server may take.
	MinResultAge  = 10 * time.Minute
	MaxResultAge  = 365 * 24 * time.Hour
	MinResultSize = 64 << 20
	// DefaultMaxCalls bounds how many messages wait in the calls stream.
	DefaultMaxCalls = 2_000_000
	// DefaultMaxBytes bounds the bytes of the calls stream. Where the server has less room it is
	// halved, down to LeastCallBytes.
	DefaultMaxBytes = 1 << 30
	LeastCallBytes  = 64 << 20
	// ChannelBytes and the next ones bound what coordinators make later: channels, schedules,
	// limits and webhooks.
	ChannelBytes  = 64 << 20
	ScheduleBytes = 16 << 20
	LimitBytes    = 4 << 20
	WebhookBytes  = 32 << 20
	// DefaultStreamBytes bounds the streams that workers fill, except calls and claims, and
	// MinStreamBytes is the least that may be asked for.
	DefaultStreamBytes = 47 << 30
	MinStreamBytes     = 1 << 30
	// LeastRoom is what a fleet reserves at least on its server, and WholeRoom what it reserves
	// with a calls stream that is not halved.
	LeastRoom = LeastCallBytes + laterBytes
	WholeRoom = DefaultMaxBytes + laterBytes
	// LeastFree is what the disk of a server has to have free for that, whose limit for files
	// (max_file_store) is three quarters of it, unless it is set; WholeFree is that for WholeRoom.
	LeastFree  = LeastRoom / 3 * 4
	WholeFree  = WholeRoom / 3 * 4
	laterBytes = ChannelBytes + ScheduleBytes + LimitBytes + WebhookBytes
	// DefaultMaxClaims bounds how many claims and heartbeats there are, of at most maxClaim bytes.
	DefaultMaxClaims = 250_000
	maxClaim         = 16 << 10
)

// Topology describes the streams of a fleet. Only what the laws need is compared
// with streams that exist; sizes, and the ages of results and journals, are the
// operator's to change.
type Topology struct {
	Fleet protocol.Fleet
	Storage
	// MaxCalls and MaxBytes bound the calls stream; 0 means the default. A full
	// stream refuses calls, it never drops any.
	MaxCalls int64
	MaxBytes int64
	// MaxClaims bounds claims and heartbeats together; 0 means the default. Beyond it new ones are
	// refused, and none is dropped.
	MaxClaims int64
	// Bounded gives what else workers fill the sizes of [Topology.Share], as far as nothing else is
	// asked for. Streams that exist keep theirs.
	Bounded bool
	// Logger gets a warning for each stream that has fewer replicas than Replicas, or one on
	// servers that are several; nil discards it.
	Logger *slog.Logger
}

// Storage bounds what a fleet stores.
type Storage struct {
	// Replicas is the number of replicas of new streams: 1, 3 or 5; 0 means 1.
	Replicas int
	// KeepAge is how long what is kept of sessions stays at most; 0 means until its session
	// is removed. KeepBytes bounds what is kept of all sessions together; 0 means no bound without
	// Bounded. When it is reached, nothing more is kept. Both are for new streams.
	KeepAge   time.Duration
	KeepBytes int64
	// StreamBytes bounds the streams together that workers fill, except calls and claims; 0 means
	// DefaultStreamBytes, or none without Bounded. It is for new streams.
	StreamBytes int64
	// ResultAge is how long results are kept, and large payloads and values with them, and
	// ResultBytes how much of results in all: beyond it the oldest go. They are those of streams
	// that exist, too, which are edited; 0 takes what these have, or the default, which for
	// ResultBytes is no bound without Bounded.
	ResultAge   time.Duration
	ResultBytes int64
}

// Validate reports every invalid field.
func (s *Storage) Validate() error {
	var faults []error
	fault := func(wrong bool, format string, args ...any) {
		if wrong {
			faults = append(faults, fmt.Errorf(format, args...))
		}
	}
	fault(s.Replicas != 0 && s.Replicas != 1 && s.Replicas != 3 && s.Replicas != 5, "replicas %d: must be 1, 3 or 5", s.Replicas)
	fault(s.KeepAge != 0 && s.KeepAge < time.Second, "keep age %s: must be 0 or at least 1s", s.KeepAge)
	fault(s.KeepBytes < 0, "keep bytes %d: must not be negative", s.KeepBytes)
	fault(s.StreamBytes != 0 && s.StreamBytes < MinStreamBytes, "stream bytes %d: must be 0 or at least 1G", s.StreamBytes)
	fault(s.ResultAge != 0 && (s.ResultAge < MinResultAge || s.ResultAge > MaxResultAge), "result age %s: must be 0 or 10m to 8760h", s.ResultAge)
	fault(s.ResultBytes != 0 && s.ResultBytes < MinResultSize, "result bytes %d: must be 0 or at least 64M", s.ResultBytes)
	return errors.Join(faults...)
}

// ErrTopology is wrapped by errors about streams that exist with another configuration.
var ErrTopology = errors.New("stream exists with another configuration")

func (t Topology) withDefaults() Topology {
	if t.Fleet == "" {
		t.Fleet = protocol.DefaultFleet
	}
	if t.Replicas == 0 {
		t.Replicas = 1
	}
	if t.MaxCalls == 0 {
		t.MaxCalls = DefaultMaxCalls
	}
	if t.MaxBytes == 0 {
		t.MaxBytes = DefaultMaxBytes
	}
	if t.MaxClaims == 0 {
		t.MaxClaims = DefaultMaxClaims
	}
	return t
}

// Ensure makes the streams and buckets of a fleet where they are missing and checks existing ones.
// Errors about the latter wrap [ErrTopology] and name every difference, those about a server that
// is too old [ErrServer]. It is safe to run from many processes at once.
func Ensure(ctx context.Context, js jetstream.JetStream, t Topology) error {
	t = t.withDefaults()
	if err := t.checkAccess(ctx, js.Conn()); err != nil {
		return err
	}
	made, found, err := t.createMissing(ctx, js)
	if err != nil {
		return err
	}
	t.logRecreated(ctx, made, found)
	if err := t.bound(ctx, js, wire.ResultsStream(t.Fleet), t.ResultAge, t.ResultBytes); err != nil {
		return err
	}
	return t.bound(ctx, js, ObjectStream(wire.BlobsBucket(t.Fleet)), t.ResultAge, 0)
}

// reservedLater is the room that is left for what coordinators make later; none for a calls stream
// that is asked to be smaller than the least, as of a server that has less.
func (t Topology) reservedLater() int64 {
	if t.MaxBytes < LeastCallBytes {
		return 0
	}
	return laterBytes
}

// shares are the default maximum sizes, in GiB, of the streams that workers fill, except calls and
// claims. The server reserves them: a worker that floods one of them takes no space from the
// others, nor from the journals.
func (t Topology) shares() map[string]int64 {
	return map[string]int64{
		wire.ResultsStream(t.Fleet):              16, // beyond it the oldest go: waiting callers have received them
		wire.WorkspacesStream(t.Fleet):           2,  // of this and the next ones: beyond it nothing more is taken
		ObjectStream(wire.BlobsBucket(t.Fleet)):  4,
		ObjectStream(wire.KeptBucket(t.Fleet)):   8,
		ObjectStream(wire.BodiesBucket(t.Fleet)): 16,
		"KV_" + wire.PlacesBucket(t.Fleet):       1,
	}
}

// Share is the maximum size of a stream that workers fill; 0 is none.
func (t Topology) Share(stream string) int64 {
	if !t.Bounded && t.StreamBytes == 0 {
		return 0
	}
	return cmp.Or(t.StreamBytes, DefaultStreamBytes) / (DefaultStreamBytes >> 30) * t.shares()[stream]
}

const (
	// roomPatience is how long servers of a cluster may say that they have no room: they learn each
	// 10 s what the others have.
	roomPatience = 15 * time.Second
	roomPeriod   = 500 * time.Millisecond
)

// sized makes a stream with the size that was asked for, or its share. A calls stream, and what
// coordinators make later, is halved until the server has room for it. A share for which there is
// no room is left out, unless its size was asked for.
func (t Topology) sized(ctx context.Context, js jetstream.JetStream, stream string, asked int64, until time.Time, create func(size int64) error) error {
	size, calls := asked, stream == wire.CallsStream(t.Fleet)
	if asked <= 0 {
		size = t.Share(stream)
	}
	for {
		reserved := size
		if calls {
			reserved += t.reservedLater()
		}
		err := create(reserved)
		refused, answered := errors.AsType[*jetstream.APIError](err)
		switch {
		case !answered || !isOutOfRoom(refused):
			return err
		case js.Conn().ConnectedClusterName() != "" && time.Now().Before(until) && pause.For(ctx, roomPeriod):
		case calls && size/2 >= LeastCallBytes:
			size /= 2
		case size <= 0 || asked > 0 || ctx.Err() != nil:
			return err
		case t.StreamBytes > 0:
			return fmt.Errorf("%w; or choose a smaller --stream-size", err)
		default:
			if size = 0; t.Logger != nil {
				t.Logger.InfoContext(ctx,
					"the servers have no room to reserve (max_file_store), so a stream that workers fill has no limit; --stream-size sets smaller ones for a new fleet",
					slog.String("stream", stream), slog.Any("error", err))
			}
		}
	}
}

// isOutOfRoom reports whether servers refuse a stream because of what it sets aside.
func isOutOfRoom(refused *jetstream.APIError) bool {
	return refused.ErrorCode == codeNoStorage || // a cluster says the latter, also of too few servers
		refused.ErrorCode == codeNoPeers && strings.Contains(refused.Description, "insufficient storage")
}

// createMissing makes the streams that are missing, and names those without the buckets' as made
// and found. The calls stream gives back last what is left for what coordinators make later.
func (t Topology) createMissing(ctx context.Context, js jetstream.JetStream) (made, found []string, err error) {
	until := time.Now().Add(roomPatience)
	first := sync.OnceValue(func() uint64 { return t.firstSequence(ctx, js) })
	giveBack := func() error { return nil }
	for _, want := range t.streams() {
		var stream jetstream.Stream
		var anew bool
		err := t.sized(ctx, js, want.Name, want.MaxBytes, until, func(size int64) (err error) {
			if want.MaxBytes = size; want.Name == wire.CallsStream(t.Fleet) && t.reservedLater() > 0 {
				want.Metadata = map[string]string{sizeLater: strconv.FormatInt(size-t.reservedLater(), 10)}
			}
			stream, anew, err = ensureStream(ctx, js, want, first)
			return err
		})
		if err != nil {
			return nil, nil, err
		}
		if anew {
			made = append(made, want.Name)
		} else {
			found = append(found, want.Name)
		}
		config := stream.CachedInfo().Config
		if size, err := strconv.ParseInt(config.Metadata[sizeLater], 10, 64); err == nil {
			update := func(size int64) error {
				config.MaxBytes = size
				_, err := js.UpdateStream(ctx, config)
				return err
			}
			if anew { // a stream without a limit needs a byte
				if err := update(config.MaxBytes - 1); err != nil {
					return nil, nil, err
				}
			}
			if anew || CheckRights(ctx, js.Conn(), makeRights(want.Name)) == nil { // of a process that was lost, or failed
				giveBack = func() error { delete(config.Metadata, sizeLater); return update(size) }
			}
		}
		t.warn(ctx, want.Name, stream.CachedInfo().Config.Replicas, js.Conn().ConnectedClusterName() != "")
	}
	places := wire.PlacesBucket(t.Fleet)
	err = t.sized(ctx, js, "KV_"+places, 0, until, func(size int64) error {
		return ensureBucket(ctx, js, "KV_"+places, places, js.KeyValue, func() (jetstream.KeyValue, error) {
			return js.CreateKeyValue(ctx, jetstream.KeyValueConfig{Bucket: places, Replicas: t.Replicas, MaxBytes: size})
		}, t.Replicas, size)
	})
	if err != nil {
		return nil, nil, err
	}
	for _, want := range []jetstream.ObjectStoreConfig{
		{Bucket: wire.BlobsBucket(t.Fleet), Replicas: t.Replicas, TTL: cmp.Or(t.ResultAge, DefaultResultAge)},
		{Bucket: wire.KeptBucket(t.Fleet), Replicas: t.Replicas, TTL: t.KeepAge, MaxBytes: t.KeepBytes},
		{Bucket: wire.BodiesBucket(t.Fleet), Replicas: t.Replicas},
	} {
		stream := ObjectStream(want.Bucket)
		err := t.sized(ctx, js, stream, want.MaxBytes, until, func(size int64) error {
			return ensureBucket(ctx, js, stream, want.Bucket, js.ObjectStore, func() (jetstream.ObjectStore, error) {
				want.MaxBytes = size
				return js.CreateObjectStore(ctx, want)
			}, t.Replicas, size)
		})
		if err != nil {
			return nil, nil, err
		}
	}
	return made, found, giveBack()
}

// sizeLater is the metadata of a calls stream that has not given back the room for what is made
// later: its size after that.
const sizeLater = "toolfleet.max_bytes"

// ensureBucket makes a bucket or object store, which has a stream, if it is missing.
func ensureBucket[T any](
	ctx context.Context, js jetstream.JetStream, stream, bucket string,
	open func(context.Context, string) (T, error), create func() (T, error), replicas int, size int64,
) error {
	_, err := Open(ctx, open, bucket)
	if !errors.Is(err, jetstream.ErrBucketNotFound) {
		if err != nil {
			return fmt.Errorf("open bucket %s: %w", bucket, err)
		}
		return nil
	}
	if err = CheckRights(ctx, js.Conn(), makeRights(stream)); err == nil {
		_, err = create()
	}
	if err != nil && !errors.Is(err, jetstream.ErrBucketExists) {
		return fmt.Errorf("make bucket %s: %w%s", bucket, err, remedy(err, replicas, size))
	}
	return nil
}

// checkAccess finds out whether the server can have the fleet, and whether its streams can be
// looked at.
func (t Topology) checkAccess(ctx context.Context, nc *nats.Conn) error {
	if err := checkServer(nc); err != nil {
		return err
	}
	return CheckRights(ctx, nc, readStateRights(nc, t.names()...))
}

// warn logs a stream with so few replicas that more may be lost than expected.
func (t Topology) warn(ctx context.Context, stream string, replicas int, clustered bool) {
	switch {
	case t.Logger == nil:
	case replicas < t.Replicas:
		t.Logger.WarnContext(ctx, "stream has fewer replicas than --replicas asks for; it is not changed: nats stream edit STREAM --replicas N",
			slog.String("stream", stream), slog.Int("replicas", replicas), slog.Int("asked", t.Replicas))
	case replicas == 1 && clustered:
		t.Logger.WarnContext(ctx, "stream has one replica although there are several servers: calls may run twice if its server is killed; use --replicas 3 for new streams, or nats stream edit STREAM --replicas 3",
			slog.String("stream", stream))
	}
}

// logRecreated logs streams that were missing in a fleet that has others: they were deleted, with
// what was in them.
func (t Topology) logRecreated(ctx context.Context, made, found []string) {
	if t.Logger == nil || len(found) == 0 {
		return
	}
	for _, stream := range made {
		t.Logger.ErrorContext(ctx, "a stream was missing in a fleet that has others: it is created again, empty; its messages are lost",
			slog.String("stream", stream), slog.Any("found", found))
	}
}

// bound gives a stream an age and a size, as far as they are asked for, if it has others.
func (t Topology) bound(ctx context.Context, js jetstream.JetStream, name string, age time.Duration, size int64) error {
	if age == 0 && size == 0 {
		return nil
	}
	stream, err := js.Stream(ctx, name)
	if err != nil {
		return fmt.Errorf("stream %s: %w", name, err)
	}
	have := stream.CachedInfo().Config
	want := have
	want.MaxAge, want.MaxBytes = cmp.Or(age, have.MaxAge), cmp.Or(size, have.MaxBytes)
	if want.MaxAge == have.MaxAge && want.MaxBytes == have.MaxBytes {
		return nil
	}
	if want.MaxAge > 0 {
		want.Duplicates = min(want.Duplicates, want.MaxAge) // which the server insists on
	}
	if err := CheckRights(ctx, js.Conn(), Rights{Publish: []string{"$JS.API.STREAM.UPDATE." + name}}); err != nil {
		return fmt.Errorf("edit stream %s to keep results for %s and %s: %w; omit --result-age and --result-size to use those of the stream",
			name, want.MaxAge, sizeText(want.MaxBytes), err)
	}
	if _, err := js.UpdateStream(ctx, want); err != nil {
		return fmt.Errorf("edit stream %s to keep results for %s and %s: %w%s", name, want.MaxAge, sizeText(want.MaxBytes), err, remedy(err, want.Replicas, want.MaxBytes))
	}
	if t.Logger != nil {
		t.Logger.WarnContext(ctx, "the retention of results was changed to --result-age and --result-size", slog.String("stream", name),
			slog.Duration("age_before", have.MaxAge), slog.Duration("age", want.MaxAge),
			slog.Int64("bytes_before", have.MaxBytes), slog.Int64("bytes", want.MaxBytes))
	}
	return nil
}

// sizeText says how much a stream holds.
func sizeText(size int64) string {
	if size <= 0 {
		return "any number of bytes"
	}
	return fmt.Sprintf("%d bytes", size)
}

// ErrNoFleet is wrapped by the error of [Check] for a fleet that does not exist.
var ErrNoFleet = errors.New("stream does not exist")

// Check is [Ensure] for processes that only use a fleet: it creates nothing. A stream that is
// missing is an error that wraps [ErrNoFleet]. Buckets are made when a worker or a coordinator
// starts that needs them.
func Check(ctx context.Context, js jetstream.JetStream, t Topology) error {
	t = t.withDefaults()
	if err := t.checkAccess(ctx, js.Conn()); err != nil {
		return err
	}
	for _, want := range t.streams() {
		stream, err := Open(ctx, js.Stream, want.Name)
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			err = ErrNoFleet
		}
		if err != nil {
			return fmt.Errorf("stream %s: %w%s", want.Name, err, remedy(err, want.Replicas, want.MaxBytes))
		}
		if err := checkStream(stream, want); err != nil {
			return err
		}
	}
	return nil
}

// names returns the names of all streams of a fleet.
func (t Topology) names() []string {
	f := t.Fleet
	return []string{
		wire.CallsStream(f), wire.ClaimsStream(f), wire.ResultsStream(f), wire.SessionsStream(f), wire.WorkspacesStream(f),
		ObjectStream(wire.BlobsBucket(f)), ObjectStream(wire.KeptBucket(f)), ObjectStream(wire.BodiesBucket(f)), "KV_" + wire.PlacesBucket(f),
	}
}

// streams returns the streams as they must be.
func (t Topology) streams() []jetstream.StreamConfig {
	source, destination := wire.DoneMapping(t.Fleet)
	storedSource, storedDestination := wire.StoredMapping(t.Fleet)
	beatSource, beatDestination := wire.BeatMapping(t.Fleet)
	return []jetstream.StreamConfig{
		{
			Name: wire.CallsStream(t.Fleet), Subjects: wire.CallsSubjects(t.Fleet),
			Description: "mailboxes and ready messages of lanes",
			Storage:     jetstream.FileStorage, Replicas: t.Replicas,
			// What an acknowledgement does not remove cannot vanish by a mistake of a consumer.
			Retention: jetstream.LimitsPolicy, Discard: jetstream.DiscardNew,
			MaxMsgsPerSubject: 1, DiscardNewPerSubject: true,
			MaxMsgs: t.MaxCalls, MaxBytes: t.MaxBytes, MaxMsgSize: -1,
			AllowDirect: t.Replicas == 1, // a server that is one of several answers from its past
			RePublish:   &jetstream.RePublish{Source: storedSource, Destination: storedDestination},
		},
		{
			Name: wire.ClaimsStream(t.Fleet), Subjects: wire.ClaimsSubjects(t.Fleet),
			Description: "who holds which lane, and heartbeats of workers",
			Storage:     jetstream.FileStorage, Replicas: t.Replicas,
			// No claim is discarded for another. The bound is on messages: on one server a renewed
			// heartbeat replaces the one before, and does not count again.
			Retention: jetstream.LimitsPolicy, Discard: jetstream.DiscardNew,
			MaxMsgsPerSubject: 1, MaxMsgs: t.MaxClaims, MaxMsgSize: maxClaim,
			AllowDirect: t.Replicas == 1,
			RePublish:   &jetstream.RePublish{Source: beatSource, Destination: beatDestination},
		},
		{
			Name: wire.ResultsStream(t.Fleet), Subjects: wire.ResultsSubjects(t.Fleet),
			Description: "terminal results, one a call",
			Storage:     jetstream.FileStorage, Replicas: t.Replicas,
			Retention: jetstream.LimitsPolicy, Discard: jetstream.DiscardOld,
			MaxMsgsPerSubject: 1, MaxAge: cmp.Or(t.ResultAge, DefaultResultAge), MaxBytes: cmp.Or(t.ResultBytes, -1), MaxMsgSize: -1,
			AllowDirect: t.Replicas == 1, // each call that starts is looked for
			RePublish:   &jetstream.RePublish{Source: source, Destination: destination},
		},
		{
			Name: wire.SessionsStream(t.Fleet), Subjects: wire.SessionsSubjects(t.Fleet),
			Description: "session journals",
			Storage:     jetstream.FileStorage, Replicas: t.Replicas,
			Retention: jetstream.LimitsPolicy, Discard: jetstream.DiscardNew, MaxMsgSize: -1,
			AllowMsgTTL: true, AllowRollup: true, // of the records of removed sessions
		},
		{
			Name: wire.WorkspacesStream(t.Fleet), Subjects: wire.WorkspacesSubjects(t.Fleet),
			Description: "checkpoints of workspaces",
			Storage:     jetstream.FileStorage, Replicas: t.Replicas,
			Retention: jetstream.LimitsPolicy, Discard: jetstream.DiscardNew, MaxMsgSize: -1,
		},
	}
}

// firstSequence is the first sequence of streams that are missing; 0 is the server's own. Sequences
// are epochs, fences and positions that others have stored. If the fleet has other streams, the
// missing ones were deleted: then they begin behind all that they had, which were fewer than the
// microseconds that have passed.
func (t Topology) firstSequence(ctx context.Context, js jetstream.JetStream) uint64 {
	for _, name := range t.names() {
		if _, err := js.Stream(ctx, name); !errors.Is(err, jetstream.ErrStreamNotFound) { // also if that is not known
			return SequenceNow()
		}
	}
	return 0
}

// SequenceNow is a first sequence of a stream that is made now, greater than any that the stream
// had if it was deleted before.
func SequenceNow() uint64 {
	return uint64(time.Now().UnixMicro())
}

// ensureStream returns a stream that is as it must be, and whether it was made; first is the first
// sequence of a new one.
func ensureStream(ctx context.Context, js jetstream.JetStream, want jetstream.StreamConfig, first func() uint64) (_ jetstream.Stream, made bool, err error) {
	stream, err := Open(ctx, js.Stream, want.Name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		if err := CheckRights(ctx, js.Conn(), makeRights(want.Name)); err != nil {
			return nil, false, fmt.Errorf("make stream %s: %w", want.Name, err)
		}
		want.FirstSeq = first()
		stream, err = js.CreateStream(ctx, want)
		made = err == nil
		if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) { // another process was faster
			stream, err = js.Stream(ctx, want.Name)
		}
	}
	if err != nil {
		return nil, false, fmt.Errorf("stream %s: %w%s", want.Name, err, remedy(err, want.Replicas, want.MaxBytes))
	}
	if err := checkStream(stream, want); err != nil {
		return nil, false, err
	}
	if have := stream.CachedInfo().Config; want.AllowMsgTTL && (!have.AllowMsgTTL || !have.AllowRollup) { // of an earlier version
		have.AllowMsgTTL, have.AllowRollup = true, true
		if CheckRights(ctx, js.Conn(), Rights{Publish: []string{"$JS.API.STREAM.UPDATE." + want.Name}}) == nil {
			_, err = js.UpdateStream(ctx, have)
		}
	}
	return stream, made, err
}

// checkStream compares a stream with what it must be.
func checkStream(stream jetstream.Stream, want jetstream.StreamConfig) error {
	if differences := compare(stream.CachedInfo().Config, want); len(differences) > 0 {
		return fmt.Errorf("stream %s: %w: %w; choose another fleet name, or remove the stream when nothing in it is needed",
			want.Name, ErrTopology, errors.Join(differences...))
	}
	return nil
}

// remedy says what to do about a server that makes no stream with so many replicas and bytes, ""
// when that is not known.
func remedy(err error, replicas int, reserved int64) string {
	var refused *jetstream.APIError
	if errors.Is(err, nats.ErrNoResponders) || errors.Is(err, jetstream.ErrJetStreamNotEnabled) || errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount) {
		return "; the server must run with JetStream (nats-server -js), and the account must be allowed to use it"
	}
	if !errors.As(err, &refused) {
		return ""
	}
	switch {
	case isOutOfRoom(refused):
		return fmt.Sprintf("; it reserves %d MiB, and the server has less left: its limit for files (max_file_store) is three quarters of what its disk has free, unless it is set; make room there, or store the server's data elsewhere", reserved>>20)
	case refused.ErrorCode == codeNoPeers, refused.ErrorCode == codeNoReplicas:
		return fmt.Sprintf("; %d replicas need a cluster of at least that many servers: name one with --nats, or use --replicas 1", replicas)
	default:
		return ""
	}
}

// compare names every setting that the laws rely on and that differs.
func compare(have, want jetstream.StreamConfig) []error {
	var differences []error
	check := func(setting string, have, want any) {
		if have != want {
			differences = append(differences, fmt.Errorf("%s is %v, must be %v", setting, have, want))
		}
	}
	if !slices.Equal(have.Subjects, want.Subjects) {
		check("subjects", fmt.Sprint(have.Subjects), fmt.Sprint(want.Subjects))
	}
	check("storage", have.Storage, want.Storage)
	check("retention", have.Retention, want.Retention)
	if claims := want.MaxMsgsPerSubject == 1 && want.MaxAge == 0 && !want.DiscardNewPerSubject; claims && have.Discard == jetstream.DiscardOld {
		check("max_msgs (with discard old)", unlimited(have.MaxMsgs), int64(-1)) // no claim must make room for another
		check("max_bytes (with discard old)", unlimited(have.MaxBytes), int64(-1))
	} else {
		check("discard", have.Discard, want.Discard)
	}
	check("max_msgs_per_subject", unlimited(have.MaxMsgsPerSubject), unlimited(want.MaxMsgsPerSubject))
	check("discard_new_per_subject", have.DiscardNewPerSubject, want.DiscardNewPerSubject)
	if want.MaxAge == 0 && want.MaxMsgsPerSubject == 1 { // calls and claims must not vanish, and must be removable
		check("max_age", have.MaxAge, want.MaxAge)
		check("deny_delete", have.DenyDelete, want.DenyDelete)
	} else if have.Replicas > 1 || want.RePublish == nil { // results of one server may be read either way
		check("allow_direct", have.AllowDirect, false)
	}
	if want.RePublish != nil && (have.RePublish == nil || *have.RePublish != *want.RePublish) {
		check("republish", have.RePublish, want.RePublish)
	}
	return differences
}

// unlimited maps the server's several ways to say "no limit" to one.
func unlimited(n int64) int64 {
	if n <= 0 {
		return -1
	}
	return n
}

// Codes of JetStream's errors (errors.json of nats-server) for which nats.go has no name.
const (
	// CodeStoreFailed is the code of a message that was not stored; the description says why.
	CodeStoreFailed jetstream.ErrorCode = 10077

	codeUnavailable jetstream.ErrorCode = 10008 // a cluster has no leader at the moment
	codeAccountFull jetstream.ErrorCode = 10002
	codeServerFull  jetstream.ErrorCode = 10023 // in a cluster: one server is full
	codeNoStorage   jetstream.ErrorCode = 10047
	codeNoPeers     jetstream.ErrorCode = 10005 // this and the next: too few servers for the replicas
	codeNoReplicas  jetstream.ErrorCode = 10074
)
