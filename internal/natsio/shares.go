package natsio

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"

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

// maxHalvings bounds how often shares are halved: a server with less room than a thousandth of them
// has none.
const maxHalvings = 10

// reservation makes streams with their shares of what the server has.
type reservation struct {
	js     jetstream.JetStream
	shares map[string]int64 // nil gives none
	last   string           // the stream that is made last
	halved int
	made   []string // those of the shares, by this process
}

func (t Topology) reserve(js jetstream.JetStream) *reservation {
	r := &reservation{js: js, last: ObjectStream(t.Fleet.BodiesBucket())}
	if t.Bounded {
		r.shares = Shares(t.Fleet)
	}
	return r
}

// size is how many bytes a stream may have. The last one is made with twice its share, so that there
// is as much left for journals, which have no bound.
func (r *reservation) size(stream string) int64 {
	size := r.shares[stream] >> r.halved
	if stream == r.last {
		size *= 2
	}
	return size
}

// make makes a stream with its share, unless it has none, or a size that was asked for.
func (r *reservation) make(ctx context.Context, stream string, asked int64, create func(size int64) (made bool, err error)) error {
	for {
		size, shared := asked, r.shares[stream] > 0 && asked <= 0
		if shared {
			size = r.size(stream)
		}
		made, err := create(size)
		if made && shared {
			r.made = append(r.made, stream)
		}
		refused, answered := errors.AsType[*jetstream.APIError](err)
		if !answered || refused.ErrorCode != codeNoStorage && refused.ErrorCode != codeNoPeers || // a cluster says the latter
			!shared && len(r.made) == 0 || r.halved == maxHalvings {
			return err
		}
		r.halved++
		if err := r.settle(ctx); err != nil {
			return err
		}
	}
}

// settle gives the streams that were made what their shares are by now.
func (r *reservation) settle(ctx context.Context) error {
	for _, name := range r.made {
		stream, err := r.js.Stream(ctx, name)
		if err != nil {
			return fmt.Errorf("stream %s: %w", name, err)
		}
		want := stream.CachedInfo().Config
		if want.MaxBytes = r.shares[name] >> r.halved; want.MaxBytes == stream.CachedInfo().Config.MaxBytes {
			continue
		}
		if _, err := r.js.UpdateStream(ctx, want); err != nil {
			return fmt.Errorf("edit stream %s to take %d bytes: %w", name, want.MaxBytes, err)
		}
	}
	return nil
}
