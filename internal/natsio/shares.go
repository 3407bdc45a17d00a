package natsio

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/pause"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Shares are the maximum sizes, in bytes, of the streams that workers fill, except calls and
// claims. The server reserves them: a worker that floods one of them takes no space from the
// others, nor from the journals. Where it has less, all of them are halved until they fit.
func Shares(fleet protocol.Fleet) map[string]int64 {
	return map[string]int64{
		wire.ResultsStream(fleet):              16 << 30, // beyond it the oldest go: waiting callers have received them
		wire.WorkspacesStream(fleet):           2 << 30,  // of this and the next ones: beyond it nothing more is taken
		ObjectStream(wire.BlobsBucket(fleet)):  4 << 30,
		ObjectStream(wire.KeptBucket(fleet)):   8 << 30,
		ObjectStream(wire.BodiesBucket(fleet)): 16 << 30,
		"KV_" + wire.PlacesBucket(fleet):       1 << 30,
	}
}

const (
	// maxHalvings bounds how often shares are halved: a server with less room than a thousandth of
	// them has none.
	maxHalvings = 10
	// roomPatience is how long servers of a cluster may say that they have no room: they learn each
	// 10 s what the others have.
	roomPatience = 15 * time.Second
	roomPeriod   = 500 * time.Millisecond
)

// reservation makes streams with their shares of what the server has.
type reservation struct {
	topology Topology
	js       jetstream.JetStream
	lock     string           // the stream that stands for it, none where nothing is made
	shares   map[string]int64 // nil gives none
	halved   int
	until    time.Time // when it is given up to wait for room
}

// reserve finds out what shares there is room for, by a stream that asks for all of it, and goes
// again. Until release, other processes of the fleet wait: one would take for gone what another
// asks for.
func (t Topology) reserve(ctx context.Context, js jetstream.JetStream) (*reservation, error) {
	r := &reservation{topology: t, js: js, until: time.Now().Add(roomPatience)}
	lock, probe := wire.RoomStreams(t.Fleet)
	if !t.Bounded {
		return r, nil
	}
	if room, err := t.room(ctx, js); err != nil || room == 0 {
		return r, err
	}
	if err := CheckRights(ctx, js.Conn(), makeRights(probe)); errors.Is(err, ErrRights) { // also for missing streams, whose creation reports the error
		return r, nil
	} else if err != nil {
		return nil, err
	}
	if err := r.take(ctx, lock); err != nil {
		return nil, fmt.Errorf("stream %s: %w", lock, err)
	}
	room, err := t.room(ctx, js)
	if err == nil && room > 0 {
		r.shares = Shares(t.Fleet)
		err = r.fit(ctx, false, func() error {
			if r.shares == nil {
				return nil
			}
			_ = js.DeleteStream(ctx, probe) // of a process that was lost
			_, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: probe, Storage: jetstream.FileStorage, Replicas: t.Replicas, MaxBytes: room>>r.halved + t.MaxBytes + t.later()})
			if err == nil {
				err = js.DeleteStream(ctx, probe)
			}
			return err
		})
	}
	if err != nil {
		r.release(ctx)
		return nil, err
	}
	return r, nil
}

// room is what the streams take that are missing, and journals, which have no bound; none if none
// is missing.
func (t Topology) room(ctx context.Context, js jetstream.JetStream) (int64, error) {
	shares, room := Shares(t.Fleet), int64(0)
	for name, share := range shares {
		_, err := Open(ctx, js.Stream, name)
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			room += share
		} else if err != nil {
			return 0, fmt.Errorf("stream %s: %w", name, err)
		}
	}
	if room > 0 {
		room += shares[ObjectStream(wire.BodiesBucket(t.Fleet))]
	}
	return room, nil
}

// take makes the stream that stands for the lock. Who has it for longer than servers are waited for
// was lost.
func (r *reservation) take(ctx context.Context, lock string) error {
	config := jetstream.StreamConfig{Name: lock, Description: "made by " + uuid.NewString(), Storage: jetstream.FileStorage}
	for broken := false; ; {
		_, err := Open(ctx, r.js.Stream, lock)
		if err == nil {
			err = jetstream.ErrStreamNameAlreadyInUse
		} else if errors.Is(err, jetstream.ErrStreamNotFound) {
			_, err = r.js.CreateStream(ctx, config)
		}
		if err == nil {
			r.lock, r.until = lock, time.Now().Add(roomPatience)
			return nil
		}
		refused, answered := errors.AsType[*jetstream.APIError](err)
		taken := errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) || answered && refused.ErrorCode == codeNotCreated // while it was deleted
		late := time.Now().After(r.until)
		switch {
		case late && taken && !broken:
			broken, r.until = true, time.Now().Add(roomPatience)
			_ = r.js.DeleteStream(ctx, lock)
		case late || !taken && (!answered || !lacksRoom(refused)) || !pause.For(ctx, roomPeriod/10):
			return err
		}
	}
}

// release lets the next process of the fleet ask.
func (r *reservation) release(ctx context.Context) {
	if r.lock != "" {
		_ = r.js.DeleteStream(context.WithoutCancel(ctx), r.lock)
	}
}

// fit tries what takes shares until there is room for it: with less and less of them, and at last
// with none. A cluster may need a while to know that it has room: it is asked again for as much if
// it is known to have that, else when it has room for nothing.
func (r *reservation) fit(ctx context.Context, known bool, try func() error) error {
	for {
		err := try()
		refused, answered := errors.AsType[*jetstream.APIError](err)
		if !answered || r.shares == nil || !lacksRoom(refused) {
			return err
		}
		late := r.js.Conn().ConnectedClusterName() != "" && time.Now().Before(r.until)
		switch {
		case late && known && pause.For(ctx, roomPeriod):
		case r.halved < maxHalvings:
			r.halved++
		case late && pause.For(ctx, roomPeriod):
			r.halved = 0
		default:
			r.shares = nil
			if r.topology.Logger != nil {
				r.topology.Logger.WarnContext(ctx, "the servers have no room to reserve (max_file_store), so the streams that workers fill have no limits",
					slog.Any("error", err))
			}
		}
	}
}

// make makes a stream with its share, unless it has none, or a size that was asked for.
func (r *reservation) make(ctx context.Context, stream string, asked int64, create func(size int64) error) error {
	if asked > 0 {
		return create(asked)
	}
	return r.fit(ctx, true, func() error { return create(r.shares[stream] >> r.halved) })
}

// makeCalls makes the calls stream as large as was asked, or halves that until the server has room
// for it and for the streams that are made later: create gets the sum.
func (r *reservation) makeCalls(ctx context.Context, _ string, asked int64, create func(size int64) error) error {
	for {
		err := create(asked + r.topology.later())
		refused, answered := errors.AsType[*jetstream.APIError](err)
		switch {
		case !answered || !lacksRoom(refused):
			return err
		case r.js.Conn().ConnectedClusterName() != "" && time.Now().Before(r.until) && pause.For(ctx, roomPeriod):
		case asked/2 < LeastCallBytes || ctx.Err() != nil:
			return err
		default:
			asked /= 2
		}
	}
}

// lacksRoom reports whether servers refuse a stream because of what it sets aside.
func lacksRoom(refused *jetstream.APIError) bool {
	return refused.ErrorCode == codeNoStorage || // a cluster says the latter, also of too few servers
		refused.ErrorCode == codeNoPeers && strings.Contains(refused.Description, "insufficient storage")
}
