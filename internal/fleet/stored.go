package fleet

import (
	"context"

	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/telemetry"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// ObserveStored puts what the servers of the fleet have, and what waits there, into the metrics,
// until the returned function is called. Every process that does so reports the same.
func (f *Fleet) ObserveStored() (stop func()) {
	return telemetry.ObserveStored(f.Meter, func(ctx context.Context) (all telemetry.Stored) {
		all.Waiting = map[string]int64{}
		f.addStored(ctx, &all, "")
		for pool, part := range f.Pools {
			part.addStored(ctx, &all, pool)
		}
		return all
	})
}

// addStored adds what is at the servers, or in the account, of a part of the fleet.
func (f *Fleet) addStored(ctx context.Context, all *telemetry.Stored, of protocol.Pool) {
	for _, name := range natsio.StreamNames(f.Name) {
		stream, err := f.JS.Stream(ctx, name)
		if err != nil { // it was never made, or the servers do not answer
			continue
		}
		about := stream.CachedInfo()
		all.Streams = append(all.Streams, telemetry.Stream{
			Name: name, Pool: string(of), Messages: int64(about.State.Msgs), Bytes: int64(about.State.Bytes), Limit: about.Config.MaxBytes, //nolint:gosec // far less
		})
	}
	pools, err := natsio.Pools(ctx, f.JS, f.Name)
	if err != nil { // a user with fewer rights
		pools = []protocol.Pool{protocol.DefaultPool, protocol.SessionPool}
	}
	for _, pool := range pools {
		if of != "" && pool != of {
			continue
		}
		consumer, err := f.JS.Consumer(ctx, wire.CallsStream(f.Name), wire.ReadyConsumer(pool))
		if err == nil {
			all.Waiting[string(pool)] = int64(consumer.CachedInfo().NumPending) //nolint:gosec // far less
		}
	}
}
