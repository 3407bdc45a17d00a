package natsio

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/pause"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Shares are the most bytes that the streams of a fleet take which workers fill, beside calls and
// claims. The server sets them aside: so whoever floods one of them, with a worker's key, takes
// nothing of the others, nor of the journals. Where it has less, all of them are halved until they
// fit.
func Shares(fleet protocol.Fleet) map[string]int64 {
	return map[string]int64{
		fleet.ResultsStream():              16 << 30, // beyond it the oldest go: whoever waits has heard them
		fleet.WorkspacesStream():           2 << 30,  // of this and the next ones: beyond it nothing more is taken
		ObjectStream(fleet.BlobsBucket()):  4 << 30,
		ObjectStream(fleet.KeptBucket()):   8 << 30,
		ObjectStream(fleet.BodiesBucket()): 16 << 30,
		"KV_" + fleet.PlacesBucket():       1 << 30,
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
	shares   map[string]int64 // nil gives none
	halved   int
	until    time.Time // when it is given up to wait for room
}

// reserve finds out what shares there is room for, by a stream that asks for all of it, and goes
// again.
func (t Topology) reserve(ctx context.Context, js jetstream.JetStream) (*reservation, error) {
	r := &reservation{topology: t, js: js, until: time.Now().Add(roomPatience)}
	if !t.Bounded {
		return r, nil
	}
	shares, room := Shares(t.Fleet), int64(0)
	for name, share := range shares {
		_, err := Open(ctx, js.Stream, name)
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			room += share
		} else if err != nil {
			return nil, fmt.Errorf("stream %s: %w", name, err)
		}
	}
	probe := t.Fleet.RoomStream()
	if room == 0 {
		return r, nil
	}
	if err := CheckRights(ctx, js.Conn(), makeRights(probe)); errors.Is(err, ErrRights) { // for what is missing, too, which will tell
		return r, nil
	} else if err != nil {
		return nil, err
	}
	r.shares = shares
	room += shares[ObjectStream(t.Fleet.BodiesBucket())] // for journals, which have no bound
	config := jetstream.StreamConfig{Name: probe, Subjects: []string{t.Fleet.RoomSubject()}, Storage: jetstream.FileStorage, Replicas: t.Replicas}
	return r, r.fit(ctx, false, func() error {
		if r.shares == nil {
			return nil
		}
		_ = js.DeleteStream(ctx, probe) // of a process that was lost
		config.MaxBytes = room>>r.halved + t.MaxBytes
		_, err := js.CreateStream(ctx, config)
		if err == nil {
			err = js.DeleteStream(ctx, probe)
		}
		if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) || errors.Is(err, jetstream.ErrStreamNotFound) { // another process asks, too
			err = nil
		}
		return err
	})
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
				r.topology.Logger.WarnContext(ctx, "servers have no room that could be set aside (max_file_store): streams that workers fill have no bounds",
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

// lacksRoom reports whether servers refuse a stream because of what it sets aside.
func lacksRoom(refused *jetstream.APIError) bool {
	return refused.ErrorCode == codeNoStorage || // a cluster says the latter, also of too few servers
		refused.ErrorCode == codeNoPeers && strings.Contains(refused.Description, "insufficient storage")
}
