package calls

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Leave has another dispatcher, which has a connection of its own, carry the calls of a pool. It
// precedes the first call.
func (d *Dispatcher) Leave(pool protocol.Pool, to *Dispatcher) {
	if d.others == nil {
		d.others = map[protocol.Pool]*Dispatcher{}
	}
	d.others[pool] = to
}

// of is whose the calls of a pool are.
func (d *Dispatcher) of(pool protocol.Pool) *Dispatcher {
	if other := d.others[pool]; other != nil {
		return other
	}
	return d
}

// parts are the dispatcher itself and those that carry the calls of other pools, each once.
func (d *Dispatcher) parts() []*Dispatcher {
	parts := []*Dispatcher{d}
	for _, other := range d.others {
		if !slices.Contains(parts, other) {
			parts = append(parts, other)
		}
	}
	return parts
}

// dispatch has each call dispatched by whose it is.
func (d *Dispatcher) dispatch(ctx context.Context, calls []protocol.Call, how how, observe func(loop.Update)) error {
	calls = wire.ApplyFlow(ctx, calls)
	if len(d.others) == 0 {
		return d.dispatchOwn(ctx, calls, how, observe)
	}
	byOwner := map[*Dispatcher][]protocol.Call{}
	for i := range calls {
		if read, is := calls[i].Payload.(wire.ResultRead); is && ctx.Err() == nil { // else it is not sent
			if err := d.bring(ctx, &calls[i], read.CallID); err != nil {
				return fmt.Errorf("%w: %w: %w", lane.ErrNotSent, ErrUnreachable, err)
			}
		}
		owner := d.of(calls[i].Pool)
		byOwner[owner] = append(byOwner[owner], calls[i])
	}
	var mu sync.Mutex
	var group errgroup.Group
	for owner, own := range byOwner {
		group.Go(func() error {
			return owner.dispatchOwn(ctx, own, how, func(u loop.Update) {
				mu.Lock()
				defer mu.Unlock()
				observe(u)
			})
		})
	}
	return group.Wait()
}

// bring copies what is kept of a call's result to where one that reads it runs, if it is elsewhere.
func (d *Dispatcher) bring(ctx context.Context, read *protocol.Call, of protocol.CallID) error {
	reader, session := d.of(read.Pool), read.SessionID
	names := []string{
		wire.KeptText(session, of), wire.KeptValue(session, of),
		wire.KeptPart(session, of, wire.PartStdout), wire.KeptPart(session, of, wire.PartStderr), wire.KeptPart(session, of, wire.PartMedia),
	}
	if there, err := reader.copyKept(ctx, reader, names); there || err != nil {
		return err
	}
	for _, part := range d.parts() {
		if part == reader {
			continue
		}
		if there, err := part.copyKept(ctx, reader, names); there || err != nil {
			return err
		}
		result, err := part.publisher.Result(ctx, session, of)
		if errors.Is(err, wire.ErrInvalidResult) || err == nil && (result == nil || result.Value == nil) {
			continue
		}
		var value []byte
		if err == nil {
			value, err = wire.EncodeValue(result.Value)
		}
		if err == nil {
			_, err = natsio.PutObject(ctx, reader.js, wire.KeptBucket(d.fleet), names[1], bytes.NewReader(value))
		}
		if err != nil {
			return fmt.Errorf("bring the result of call %s to pool %s: %w", of, read.Pool, err)
		}
		return nil
	}
	return nil
}

// copyKept copies those of some objects that are there, and reports whether there is one.
func (d *Dispatcher) copyKept(ctx context.Context, to *Dispatcher, names []string) (there bool, err error) {
	for _, name := range names {
		object, err := natsio.GetObject(ctx, d.js, wire.KeptBucket(d.fleet), name)
		if errors.Is(err, jetstream.ErrObjectNotFound) {
			continue
		}
		if err == nil && d != to {
			_, err = natsio.PutObject(ctx, to.js, wire.KeptBucket(d.fleet), name, object)
		}
		if object != nil {
			err = errors.Join(err, object.Close())
		}
		if err != nil {
			return there, fmt.Errorf("look for %s: %w", name, err)
		}
		there = true
	}
	return there, nil
}
